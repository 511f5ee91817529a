"""Parts of graphs in files: what is read is what was split, and what does not fit is told."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_sharded_graph import (
    TYPES,
    mesh_of,
    random_graph,
    random_hypergraph,
    random_relational,
)

from jax_gnn import Graph, HeteroGraph
from jax_gnn.sharding import load_parts, save_parts, shard_graph


def assert_same(found, wanted) -> None:
    """The same structure and bits, at the same places."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert got.dtype == want.dtype and got.sharding == want.sharding
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("num_parts", [1, 2, 8])
@pytest.mark.parametrize("make", [random_graph, random_relational, random_hypergraph])
def test_files_have_what_is_split(make, num_parts, tmp_path, rng):
    """Rows of nodes are read from a file themselves, in several dtypes."""
    graph, method = make(rng), rng.integers(0, num_parts, 60)
    np.save(tmp_path / "x.npy", rng.normal(size=(60, 3)).astype(np.float32))
    nodes = {
        "x": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "half": jnp.asarray(rng.normal(size=60), jnp.bfloat16),
        "y": rng.integers(0, 5, 60),
        "mask": rng.random(60) < 0.5,
    }
    size = getattr(graph, "num_hyperedges", 0) or graph.num_edges
    edges = {"weight": rng.random(size, np.float32)}
    save_parts(tmp_path / "parts", graph, num_parts, method, nodes=nodes, edges=edges)
    split, values = load_parts(tmp_path / "parts", mesh_of(num_parts), "nodes")
    wanted = shard_graph(graph, mesh_of(num_parts), "nodes", method)
    assert_same(split, wanted)
    shown = {name: wanted.shard(each) for name, each in nodes.items()}
    assert_same(values, shown | {"weight": wanted.shard_edges(edges["weight"])})


def test_values_by_type(tmp_path, rng):
    graph = HeteroGraph(random_relational(rng))
    x = {name: rng.normal(size=(size, 2)).astype(np.float32) for name, size in TYPES.items()}
    x |= {"b": rng.normal(size=(TYPES["b"], 4)).astype(np.float32), "none": None}
    save_parts(tmp_path, graph, 2, nodes={"x": x})
    split, values = load_parts(tmp_path, mesh_of(2), "nodes")
    assert_same(values["x"], split.shard(x))
    for given, message in (
        ({"c": x["a"]}, r"nodes\['x'\] must be by name of types, \('a', 'b', 'none'\), got 'c'"),
        ({"a": x["b"]}, r"nodes\['x'\]\['a'\] must be \(nodes = 22, ...\), got shape \(33, 4\)"),
    ):
        with pytest.raises(ValueError, match=message):
            save_parts(tmp_path, graph, 2, nodes={"x": given})


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Of two parts."""
    save_parts(tmp_path / "parts", random_graph(rng), 2, nodes={"x": np.ones((60, 2))})
    return tmp_path / "parts"


def test_errors_of_files(folder, rng):
    other, cut = folder.parent / "other", (folder / "1.npz").read_bytes()
    save_parts(other, random_graph(rng), 2, "hash", nodes={"x": np.ones((60, 2))})

    def changed(part: str, content: bytes | None) -> Path:
        made = shutil.copytree(folder, folder.parent / "made", dirs_exist_ok=True)
        (made / part).unlink() if content is None else (made / part).write_bytes(content)
        return made

    longer = io.BytesIO()  # numbers in it have an axis
    with np.load(folder / "1.npz") as part:
        np.savez(longer, **{name: np.atleast_1d(each) for name, each in part.items()})
    wanted: list[tuple[str, bytes | None, type[Exception], str]] = [
        ("1.npz", longer.getvalue(), ValueError, r"1\.npz is not the part that"),
        ("plan.npz", None, FileNotFoundError, r"plan\.npz does not exist; expected the plan that"),
        ("1.npz", None, FileNotFoundError, r"1\.npz does not exist; expected the part of device 1"),
        ("1.npz", cut[: int(rng.integers(len(cut)))], ValueError, r"1\.npz: "),
        ("0.npz", cut, ValueError, r"0\.npz is not the part that plan\.npz was written with"),
        ("1.npz", (other / "1.npz").read_bytes(), ValueError, r"1\.npz is not the part that"),
        ("plan.npz", (other / "plan.npz").read_bytes(), ValueError, r"0\.npz is not the part that"),
        ("plan.npz", cut, ValueError, r"plan\.npz is no plan of parts"),
    ]
    for part, content, kind, message in wanted:
        with pytest.raises(kind, match=message):
            load_parts(changed(part, content), mesh_of(2), "nodes")
    with pytest.raises(ValueError, match="has 2 parts, but axis 'nodes' 4 devices"):
        load_parts(folder, mesh_of(4), "nodes")
    with pytest.raises(ValueError, match="axis must be one of"):
        load_parts(folder, mesh_of(2), "rows")
    with pytest.raises(TypeError, match="mesh must be a "):
        load_parts(folder, None, "nodes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="folder must be the path"):
        load_parts(3, mesh_of(2), "nodes")  # type: ignore[arg-type]


def test_parts_of_another_number(folder, rng):
    """Files of other names stay, and all do where the folder was none of parts."""
    (folder / "mine.npz").write_bytes(b"")
    save_parts(folder, random_graph(rng), 1)
    assert {file.name for file in folder.iterdir()} == {"0.npz", "mine.npz", "plan.npz"}
    other = folder.parent / "other"
    other.mkdir()
    (other / "7.npz").write_bytes(b"")
    save_parts(other, random_graph(rng), 1)
    assert (other / "7.npz").exists()


def test_plans_made_by_hand(folder, rng):
    """Are read or refused."""
    plan = dict(np.load(folder / "plan.npz"))
    told = json.loads(str(plan["told"]))

    def changed(value):
        """A place in it is something else."""
        if isinstance(value, dict | list) and value and rng.random() < 0.9:
            key = rng.choice([*(value if isinstance(value, dict) else range(len(value)))]).item()
            made = value.copy()
            made[key] = changed(value[key])
            return made
        return [None, 0, -1, 1e9, "", "Graph", [], {}, {"array": 0}, True][rng.integers(10)]

    refused = 0
    for _ in range(50):
        np.savez(folder / "plan.npz", **plan | {"told": json.dumps(changed(told))})
        try:
            load_parts(folder, mesh_of(2), "nodes")
        except ValueError as error:
            assert "plan of parts" in str(error)
            refused += 1
    assert refused


def test_errors_of_values(tmp_path):
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
    x: Any = np.ones((3, 2))
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"num_parts": 4}, ValueError, "num_parts must be 1 to num_nodes = 3, got 4"),
        ({"method": "ring"}, ValueError, "method must be one of .*got 'ring'"),
        ({"nodes": {"x": x[1:]}}, ValueError, r"nodes\['x'\] must be \(num_nodes = 3, .*\(2, 2\)"),
        ({"nodes": {"x": ["a", "b", "c"]}}, TypeError, r"nodes\['x'\] must be an array of numbers"),
        ({"edges": {"w": 1.0}}, ValueError, r"edges\['w'\] must be \(num_edges = 3, ...\)"),
        ({"nodes": {"x": x}, "edges": {"x": x}}, ValueError, "edges must have other names than"),
        ({"nodes": x}, TypeError, r"nodes must be arrays by name, got an array of float64"),
        ({"edges": {1: x}}, TypeError, "edges must be arrays by name, got {1: "),
        ({"nodes": {"x": {"a": x}}}, ValueError, r"nodes\['x'\] must be by name of types, \(\)"),
    ]
    for given, kind, message in wrong:
        with pytest.raises(kind, match=message):
            save_parts(tmp_path / "parts", **{"graph": graph, "num_parts": 2} | given)
    assert not (tmp_path / "parts").exists()
