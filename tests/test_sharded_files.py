"""Parts of graphs in files: round trips, and errors of damaged or mismatched files."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import run_together
from test_sharded_graph import (
    TYPES,
    hosts,  # noqa: F401
    mesh_of,
    random_graph,
    random_hypergraph,
    random_relational,
)

from jax_gnn import Graph, HeteroGraph, Hypergraph, RelationalGraph, host_arrays
from jax_gnn.relational import edges_of
from jax_gnn.sharding import (
    _edge_chunks,
    _processes,
    load_parts,
    save_edge_parts,
    save_parts,
    shard_graph,
)
from jax_gnn.sharding._partition import SplitArgs, parse_graph
from jax_gnn.sharding._sharded import Messages, assemble
from jax_gnn.sharding._split import split_graph


def assert_same(actual_tree, expected_tree) -> None:
    """Check that trees have equal structure, bits and placement."""
    assert jax.tree.structure(actual_tree) == jax.tree.structure(expected_tree)
    for actual, expected in zip(
        jax.tree.leaves(actual_tree), jax.tree.leaves(expected_tree), strict=True
    ):
        assert actual.dtype == expected.dtype and actual.sharding == expected.sharding
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("num_parts", [1, 2, 8])
@pytest.mark.parametrize("make", [random_graph, random_relational, random_hypergraph])
def test_files_have_what_is_split(make, num_parts, tmp_path, rng):
    """Loaded parts and values, one from a memory map, are those of `shard_graph`."""
    graph, method = make(rng), rng.integers(0, num_parts, 60)
    np.save(tmp_path / "x.npy", rng.normal(size=(60, 3)).astype(np.float32))
    # Memory maps, half types, integers and booleans.
    nodes = {
        "x": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "half": jnp.asarray(rng.normal(size=60), jnp.bfloat16),
        "y": rng.integers(0, 5, 60),
        "mask": rng.random(60) < 0.5,
    }
    size = getattr(graph, "num_hyperedges", 0) or graph.num_edges
    edges = {"weight": rng.random(size, np.float32)}
    save_parts(tmp_path / "parts", graph, num_parts, method, nodes=nodes, edges=edges)
    named: Any = {"wire_dtype": rng.choice([None, "bfloat16"]), "copy_engines": True}
    split, values = load_parts(tmp_path / "parts", mesh_of(num_parts), "nodes", **named)
    expected = shard_graph(graph, mesh_of(num_parts), "nodes", method, **named)
    assert_same(split, expected)
    expected_values = {name: expected.shard(rows) for name, rows in nodes.items()}
    assert_same(values, expected_values | {"weight": expected.shard_edges(edges["weight"])})


def save_by_processes(count: int, folder: Path, chunks: list[Any], *args: Any, **named: Any):
    """Write parts from chunks in as many threads, each with the arguments of a process."""
    bounds = np.linspace(0, len(chunks), count + 1).astype(int)

    def save(i: int) -> str:
        share = iter(chunks[bounds[i] : bounds[i + 1]])
        options = {name: value(i) if callable(value) else value for name, value in named.items()}
        try:
            save_edge_parts(folder, share, *args, **options, process_index=i, process_count=count)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(save, range(count)))


def write_parquet(path: Path, src, dst, values: dict[str, np.ndarray]) -> Path:
    from pyarrow import FixedSizeListArray, array, parquet, table

    columns: dict[str, Any] = {"from": src, "to": dst, "other": src}
    for name, rows in values.items():
        is_list = rows.ndim == 2
        lists = FixedSizeListArray.from_arrays(array(rows.ravel()), rows.shape[1]) if is_list else 0
        columns[name] = lists if is_list else rows
    parquet.write_table(table(columns), path)
    return path


@pytest.mark.parametrize("num_processes", [1, 2, 7])
@pytest.mark.parametrize("num_parts", [1, 3, 8])
@pytest.mark.parametrize("method", ["contiguous", "hash", "given", "one part"])
@pytest.mark.parametrize("kind", ["graph", "values", "relations", "types, values, loops"])
def test_chunks_of_edges(kind, method, num_parts, num_processes, tmp_path, rng, monkeypatch):
    """Files from chunks of any format, by any number of processes, are those of the graph."""
    monkeypatch.setattr(_edge_chunks, "_READ_EDGES", 40)
    src, dst = rng.integers(0, 60, (2, 300))
    dst[100:160], src[-50:], dst[-50:] = 7, src[:50], dst[:50]  # a hub, repeated edges
    types, schema, graph, triples = rng.integers(0, 4, 300), None, None, None
    values: dict[str, np.ndarray] = {}
    if "values" in kind:
        values = {
            "weight": rng.random(300, np.float32),
            "z": rng.normal(size=(300, 3)).astype(np.float32),
        }
        values["flag"] = rng.random(300) < 0.5
    if kind == "relations":
        schema = RelationalGraph.from_triples([], [], [], 60, 4, parts=("from_pairs",))
        triples = RelationalGraph.from_triples(src, types, dst, 60, 4, parts=("from_pairs",))
    elif "types" in kind:
        empty: Any = {("a", str(i), "b"): [] for i in range(4)}
        schema = HeteroGraph.from_edges(empty, {"a": 20, "b": 40}, self_relation=True)
        triples = RelationalGraph.from_triples(src, types, dst, 60, 4, self_relation=True)
        names = ("node_type_sizes", "node_type_names", "relation_names")
        triples = replace(triples, **{name: getattr(schema.relational, name) for name in names})
    graph = triples or Graph.from_edges(src, dst, num_nodes=60)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    if method in ("given", "one part"):
        method = rng.integers(0, num_parts if method == "given" else 1, 60)
    given = values | ({"relation": types} if schema else {})
    chunks: Any = []
    for i, ids in enumerate(np.array_split(np.arange(300), 5)):
        rows = {name: array[ids] for name, array in given.items()}
        if i == 1 and not values:
            np.save(tmp_path / "1.npy", np.stack([src[ids], dst[ids], *rows.values()]))
            chunks.append(tmp_path / "1.npy")
        elif i == 2 and importlib.util.find_spec("pyarrow"):
            chunks.append(str(write_parquet(tmp_path / "2.parquet", src[ids], dst[ids], rows)))
        else:
            chunks.append((src[ids], dst[ids].tolist(), *([rows] if rows else [])))
    folders = tmp_path / "whole", tmp_path / "chunks"
    edges = {name: np.asarray(edges_of(graph).edge_values(rows)) for name, rows in values.items()}
    save_parts(folders[0], graph, num_parts, method, nodes={"x": x}, edges=edges)
    errors = save_by_processes(
        num_processes,
        folders[1],
        chunks,
        60,
        num_parts,
        method,
        nodes={"x": x},
        edge_values=[*values],
        schema=schema,
    )
    assert not any(errors), errors
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == sorted(path.name for path in folders[1].iterdir())
    for name in names:
        files = [np.load(folder / name) for folder in folders]
        assert files[0].keys() == files[1].keys()
        for key, array in files[0].items():
            assert files[1][key].dtype == array.dtype
            np.testing.assert_array_equal(files[1][key], array)
    empty_folder, named = tmp_path / "empty", {"edge_values": [*values], "schema": schema}
    errors = save_by_processes(num_processes, empty_folder, [], 60, num_parts, **named)
    assert not any(errors), errors
    assert load_parts(empty_folder, mesh_of(num_parts), "nodes")[0].num_nodes == 60


RELATIONS_OF_3 = RelationalGraph.from_triples([], [], [], 3, 2)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (r"edges\[1\]\[0\] = 3 is outside", {"edges": [([0], [3])]}),
        ("edges must be of pairs", {"edges": [([0],)]}),
        ("num_parts must be 1 to num_nodes", {"num_parts": 4}),
        ("method must be", {"method": "multilevel"}),
        (r"edges must have the values \['w'\], got those of \[\]", {"edge_values": ["w"]}),
        (
            "one dtype and shape in all chunks",
            {"edges": [([0], [1], {"w": [k]}) for k in (1, 1.0)], "edge_values": ["w"]},
        ),
        (
            r"edges\['w'\] must be \(count = 1, ...\), got shape \(2,\)",
            {"edges": [([0], [1], {"w": [1, 2]})], "edge_values": ["w"]},
        ),
        (
            r"edges\['relation'\]\[0\] = 2 is outside",
            {"edges": [([0], [1], {"relation": 2})], "schema": RELATIONS_OF_3},
        ),
        (
            "schema must have num_nodes = 3, and no edges",
            {"schema": RelationalGraph.from_triples([0], [0], [0], 3, 2)},
        ),
        ("edge_values must not have 'relation'", {"edge_values": ["relation"]}),
        ("process_index must be below process_count", {"process_index": 2, "process_count": 2}),
        (r"edges must be a sequence, such as \['a.npy'\], got 'a.npy'", {"edges": "a.npy"}),
        ("edge_values must be a sequence", {"edge_values": "w"}),
        ("edges must be .* got one of ndarray", {"edges": np.ones((2, 3), int)}),
    ],
)
def test_wrong_chunks_of_edges(message, changes, tmp_path):
    arguments = {"edges": [([0], [1])], "num_nodes": 3, "num_parts": 2} | changes
    with pytest.raises((TypeError, ValueError), match=message):
        save_edge_parts(tmp_path / "parts", **arguments)
    assert not [*(tmp_path / "parts").glob("*")]


def test_errors_of_several_processes(tmp_path, rng, monkeypatch):
    """An error of one process names its file on all of them; all leave, and a next run works."""
    folder, chunks = tmp_path / "parts", [tuple(rng.integers(0, 9, (2, 5))) for _ in range(3)]
    wrong = np.array([[0, 9], [1, 2]])
    np.save(tmp_path / "wrong.npy", wrong)
    cases: list[tuple[list[Any], dict[str, Any], str]] = [
        (
            [chunks[0], tmp_path / "wrong.npy", chunks[2]],
            {},
            r"wrong\.npy: edges\[0\]\[1\] = 9 is ",
        ),
        ([*chunks[:2], tmp_path / "none.npy"], {}, r"No such file .*none\.npy"),
        ([tmp_path / "wrong.npy"], {}, r"wrong\.npy: edges\[0\]\[1\] = 9 is "),
        (
            chunks,
            {"num_nodes": lambda i: 9 + (i == 2)},
            "num_nodes must be the same on all processes",
        ),
        (
            chunks,
            {"nodes": lambda i: {"x": np.full(9, i)}},
            "nodes must be the same on all processes",
        ),
        (chunks, {"num_parts": lambda i: 10 * i}, "num_parts must be 1 to num_nodes"),
        (chunks, {"nodes": {"x": np.zeros(8)}}, r"nodes\['x'\] must be \(num_nodes = 9, ...\)"),
        (
            [
                (*chunk, {"w": np.zeros(5, f"f{4 + 4 * (i == 1)}")})
                for i, chunk in enumerate(chunks)
            ],
            {"edge_values": ["w"]},
            "must have one dtype and shape in all chunks",
        ),
    ]
    for edges, changes, message in cases:
        options = {"num_nodes": 9, "num_parts": 2, **changes}
        errors = save_by_processes(3, folder, edges, **options)
        assert all(re.search(message, error) for error in errors), errors
        assert not [*folder.glob("*")]
    # Files of processes that were killed do not disturb the next run.
    for i in range(2):
        (folder / f"process-{i}").write_text("an earlier run")
    assert not any(save_by_processes(2, folder, chunks, 9, 2))
    assert sorted(path.name for path in folder.iterdir()) == ["0.npz", "1.npz", "plan.npz"]
    monkeypatch.setattr(_processes, "PATIENCE", 0.3)
    with pytest.raises(TimeoutError, match="must be used by all 2 processes, but process 1"):
        save_edge_parts(folder, chunks, 9, 2, process_index=1, process_count=2)
    with pytest.raises(TimeoutError, match="must be used by all 2 processes, but process 0"):
        save_edge_parts(folder, chunks, 9, 2, process_index=0, process_count=2)
    assert sorted(path.name for path in folder.iterdir()) == ["0.npz", "1.npz", "plan.npz"]


KILLED = """
import os, sys
from jax_gnn.sharding import _processes, save_edge_parts

def edges():
    yield [0], [1]
    if sys.argv[2] == "1":
        os.kill(os.getpid(), 9)

_processes.PATIENCE = 4.0
save_edge_parts(sys.argv[1], edges(), 9, 2, process_index=int(sys.argv[2]), process_count=2)
"""


def test_a_process_is_killed(tmp_path):
    ends = run_together([("-c", KILLED, tmp_path, i) for i in range(2)], [{}] * 2)
    assert [end.returncode for end in ends] == [1, -9], ends
    assert "process 1 of 2 shows no life for 4 s" in ends[0].stdout, ends[0]
    assert [path.name for path in tmp_path.iterdir()] == ["process-1"]


@pytest.mark.parametrize("num_parts", [2, 5])  # on two devices
def test_values_by_type(num_parts, tmp_path, rng):
    graph = HeteroGraph(random_relational(rng))
    x = {name: rng.normal(size=(size, 2)).astype(np.float32) for name, size in TYPES.items()}
    x |= {"b": rng.normal(size=(TYPES["b"], 4)).astype(np.float32), "none": None}
    save_parts(tmp_path, graph, num_parts, nodes={"x": x})
    split, values = load_parts(tmp_path, mesh_of(2), "nodes")
    assert_same(values["x"], split.shard(x))
    for rows, message in (
        ({"c": x["a"]}, r"nodes\['x'\] must be by name of types, \('a', 'b', 'none'\), got 'c'"),
        ({"a": x["b"]}, r"nodes\['x'\]\['a'\] must be \(nodes = 22, ...\), got shape \(33, 4\)"),
    ):
        with pytest.raises(ValueError, match=message):
            save_parts(tmp_path, graph, 2, nodes={"x": rows})


FEWER = [(8, 7), (8, 4), (8, 2), (8, 1), (6, 3), (3, 1)]
"""Numbers of parts, and of devices that they are loaded on."""


def parts_with_empty_ones(rng: np.random.Generator, num_parts: int) -> np.ndarray:
    parts = rng.integers(0, num_parts, 60)
    return np.where(parts % 3 == 2, 0, parts)


@pytest.mark.parametrize(("num_parts", "num_devices"), FEWER)
@pytest.mark.parametrize("make", [random_graph, random_relational, random_hypergraph])
def test_parts_on_fewer_devices(make, num_parts, num_devices, hosts, tmp_path, rng):  # noqa: F811
    """Parts are merged to those of `split_graph` for the devices, bit for bit."""
    graph, parts = make(rng), parts_with_empty_ones(rng, num_parts)
    mesh, devices = mesh_of(num_devices), np.arange(num_parts) * num_devices // num_parts
    size = getattr(graph, "num_hyperedges", 0) or graph.num_edges
    nodes = {"x": rng.normal(size=(60, 3)).astype(np.float32), "half": jnp.ones(60, jnp.bfloat16)}
    edges = {"weight": rng.random((size, 2), np.float32)}
    save_parts(tmp_path, graph, num_parts, parts, nodes=nodes, edges=edges)
    split, values = load_parts(tmp_path, mesh, "nodes")
    # The part of a hyperedge does not follow from the merged parts of its nodes.
    args = SplitArgs.parse(parse_graph(graph), num_parts, parts)
    merged = [None if ids is None else devices[ids] for ids in args[2:]]
    with host_arrays():
        pieces, places = split_graph(SplitArgs(args.graph, num_devices, *merged), "nodes")
    expected, _ = assemble(dict(enumerate(pieces)), places, mesh, "nodes", Messages())
    assert_same(split, expected)
    expected_values = {name: expected.shard(rows) for name, rows in nodes.items()}
    assert_same(values, expected_values | {"weight": expected.shard_edges(edges["weight"])})
    np.testing.assert_array_equal(split.unshard(values["x"]), nodes["x"])


def test_a_hub_and_no_edges_on_fewer_devices(tmp_path, rng):
    """Parts of a graph into one node, on a mesh of two axes; and of graphs without edges."""
    mesh, x = jax.make_mesh((2, 4), ("data", "nodes")), rng.integers(0, 9, (50, 3)).astype(float)
    for graph, expected in (
        (Graph.from_edges(np.arange(200) % 50, np.zeros(200, int), num_nodes=50), 4 * x.sum(0)),
        (Graph.from_edges([], [], num_nodes=50), np.zeros(3)),
        (Hypergraph.from_hyperedges([], num_nodes=50), np.zeros(3)),
    ):
        save_parts(tmp_path, graph, 7, "contiguous", nodes={"x": x})
        split, values = load_parts(tmp_path, mesh, "nodes")
        y = split.unshard(split.apply(lambda part, x: part.aggregate(x), values["x"]))
        np.testing.assert_array_equal(y[0], expected)
        np.testing.assert_array_equal(y[1:], 0)


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Write a graph of two parts."""
    save_parts(tmp_path / "parts", random_graph(rng), 2, nodes={"x": np.ones((60, 2))})
    return tmp_path / "parts"


def test_errors_of_files(folder, rng):
    other_parts, cut = folder.parent / "other", (folder / "1.npz").read_bytes()
    save_parts(other_parts, random_graph(rng), 2, "hash", nodes={"x": np.ones((60, 2))})

    def changed(part: str, content: bytes | None) -> Path:
        copy = shutil.copytree(folder, folder.parent / "made", dirs_exist_ok=True)
        (copy / part).unlink() if content is None else (copy / part).write_bytes(content)
        return copy

    longer = io.BytesIO()  # scalars have an axis here
    with np.load(folder / "1.npz") as part:
        np.savez(longer, **{name: np.atleast_1d(array) for name, array in part.items()})
    cases: list[tuple[str, bytes | None, type[Exception], str]] = [
        ("1.npz", longer.getvalue(), ValueError, r"1\.npz is not the part that"),
        ("plan.npz", None, FileNotFoundError, r"plan\.npz does not exist; expected the plan that"),
        ("1.npz", None, FileNotFoundError, r"1\.npz does not exist; expected the file of part 1"),
        ("1.npz", cut[: int(rng.integers(len(cut)))], ValueError, r"1\.npz: "),
        ("0.npz", cut, ValueError, r"0\.npz is not the part that plan\.npz was written with"),
        ("1.npz", (other_parts / "1.npz").read_bytes(), ValueError, r"1\.npz is not the part that"),
        (
            "plan.npz",
            (other_parts / "plan.npz").read_bytes(),
            ValueError,
            r"0\.npz is not the part that",
        ),
        ("plan.npz", cut, ValueError, r"plan\.npz is no plan of parts"),
    ]
    # Files that are missing, cut, exchanged, or of another split.
    for part, content, kind, message in cases:
        for num_devices in (2, 1):  # on one device, parts are merged
            with pytest.raises(kind, match=message):
                load_parts(changed(part, content), mesh_of(num_devices), "nodes")
    message = "has 2 parts, but axis 'nodes' 4 devices: load the parts on at most 2 devices, or"
    with pytest.raises(ValueError, match=message):
        load_parts(folder, mesh_of(4), "nodes")
    packed = io.BytesIO()
    np.savez_compressed(packed, **np.load(folder / "1.npz"))
    for num_devices in (2, 1):
        load_parts(changed("1.npz", packed.getvalue()), mesh_of(num_devices), "nodes")
        with pytest.raises(
            ValueError, match=r"1\.npz: '\d+' is compressed, which cannot be mapped"
        ):
            load_parts(folder.parent / "made", mesh_of(num_devices), "nodes", on_disk=["x"])
        with pytest.raises(ValueError, match=r"has no values of nodes 'z', but \['x'\]"):
            load_parts(folder, mesh_of(num_devices), "nodes", on_disk=["z"])
    with pytest.raises(TypeError, match="on_disk must be a sequence of names, got 'x'"):
        load_parts(folder, mesh_of(2), "nodes", on_disk="x")
    with pytest.raises(ValueError, match="axis must be one of"):
        load_parts(folder, mesh_of(2), "rows")
    with pytest.raises(TypeError, match="mesh must be a "):
        load_parts(folder, None, "nodes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="folder must be the path"):
        load_parts(3, mesh_of(2), "nodes")  # type: ignore[arg-type]


def test_parts_of_another_number(folder, rng):
    """Old parts are removed, but no other_folder files, and none without a plan."""
    (folder / "mine.npz").write_bytes(b"")
    save_parts(folder, random_graph(rng), 1)
    assert {file.name for file in folder.iterdir()} == {"0.npz", "mine.npz", "plan.npz"}
    other_folder = folder.parent / "other"
    other_folder.mkdir()
    (other_folder / "7.npz").write_bytes(b"")
    save_parts(other_folder, random_graph(rng), 1)
    assert (other_folder / "7.npz").exists()


def test_plans_made_by_hand(folder, rng):
    """Plans with random changes are read, or refused as no plans."""
    plan = dict(np.load(folder / "plan.npz"))
    structure = json.loads(str(plan["told"]))

    def changed(value):
        """Replace a random element."""
        if isinstance(value, dict | list) and value and rng.random() < 0.9:
            # Mostly a change deep in the tree, sometimes of the whole.
            key = rng.choice([*(value if isinstance(value, dict) else range(len(value)))]).item()
            copy = value.copy()
            copy[key] = changed(value[key])
            return copy
        return [None, 0, -1, 1e9, "", "Graph", [], {}, {"array": 0}, True][rng.integers(10)]

    refused = 0
    for i in range(100):
        np.savez(folder / "plan.npz", **plan | {"told": json.dumps(changed(structure))})
        try:
            load_parts(folder, mesh_of(1 + i % 2), "nodes", on_disk=["x"] * (i % 3 == 0))
        except ValueError as error:
            messages = "plan of parts|is not the part|has no values of nodes|it has no array"
            assert re.search(messages, str(error)), error
            refused += 1
    assert refused


def test_errors_of_values(tmp_path):
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
    x: Any = np.ones((3, 2))
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
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
    for options, kind, message in cases:
        with pytest.raises(kind, match=message):
            save_parts(tmp_path / "parts", **{"graph": graph, "num_parts": 2} | options)
    assert not (tmp_path / "parts").exists()
