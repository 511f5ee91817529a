"""Parts in files, of which each process reads its own devices'."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_gnn._core import arguments
from jax_gnn._core.public import public
from jax_gnn._core.triples import IntoPairs, OutOfPairs, Pairs
from jax_gnn.graph import Graph, host_arrays
from jax_gnn.hetero import HeteroGraph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._rows import fetch_rows
from jax_gnn.sharding._exchange import Exchange, Round
from jax_gnn.sharding._partition import Method
from jax_gnn.sharding._parts import HypergraphPart, Part, RelationalPart, edges_of
from jax_gnn.sharding._processes import check_same, digest
from jax_gnn.sharding._sharded import ShardedGraph, assembled, checked_graph, parts_of
from jax_gnn.sharding._split import Piece, pieces_of

PLAN = "plan.npz"
KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Piece, Part, RelationalPart, HypergraphPart, Graph),
        *(Pairs, OutOfPairs, IntoPairs, Exchange, Round),
    )
}
"""What a piece may be made of; a file names no other classes."""


@public
def save_parts(
    folder: str | os.PathLike[str],
    graph: Graph | RelationalGraph | HeteroGraph | Hypergraph,
    num_parts: int,
    method: Method | Any = "stream",
    *,
    nodes: Mapping[str, Any] | None = None,
    edges: Mapping[str, Any] | None = None,
) -> None:
    """Splits a graph as `shard_graph` does, and writes a file for each part. Needs no devices.

    :func:`load_parts` puts them on devices, and each process reads the files of its own. Values of
    one part are in memory at a time, so that those in files, as of ``np.load(file,
    mmap_mode="r")``, may be larger than it; edges may not. One process calls this.

    Args:
        folder: to write to; parts that are there, of a whole plan, are removed.
        graph: the graph, as of `shard_graph`.
        num_parts: number of parts, one for each device.
        method: as of `shard_graph`.
        nodes: by name, such as ``"x"``, what `ShardedGraph.shard` takes: ``(num_nodes, …)``, or by
            name of the type.
        edges: by another name, what `ShardedGraph.shard_edges` takes.

    Raises:
        TypeError: called inside ``jax.jit``, or an argument is of another type.
        ValueError: the graph or method is not as `shard_graph` takes it, there are more parts than
            nodes, or values have another number of rows or one name.
        OSError: the folder cannot be written to.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> save_parts(folder, graph, 2, nodes={"x": jnp.array([5, 6, 7])})
        >>> sorted(os.listdir(folder))
        ['0.npz', '1.npz', 'plan.npz']
    """
    path, whole = _folder(folder), checked_graph(graph)
    size = arguments.check_integer("num_parts", num_parts)
    if not 1 <= size <= whole.num_nodes:
        raise ValueError(f"num_parts must be 1 to num_nodes = {whole.num_nodes}, got {size}")
    with host_arrays():
        pieces, places = pieces_of(whole, size, "", *parts_of(whole, size, method))
    write(path, whole, pieces, places, nodes, edges)


@public
def load_parts(
    folder: str | os.PathLike[str], mesh: Mesh, axis: str, *, copy_engines: bool = False
) -> tuple[ShardedGraph, dict[str, Any]]:
    """Puts on the devices of a mesh what `save_parts` or ``jax-gnn partition`` wrote.

    The mesh may have devices of several processes: all call this, and each reads the files of its
    own devices, and the plan, which has two numbers for each node.

    Args:
        folder: that of the parts, alike for all processes.
        mesh: the devices.
        axis: the axis of the mesh that nodes are split over, with a device for each part.
        copy_engines: as of `shard_graph`.

    Returns:
        What `shard_graph` makes of the graph, to the bits; and by name the values that were saved
        with it, as `ShardedGraph.shard` and `ShardedGraph.shard_edges` make them.

    Raises:
        TypeError: an argument is of another type.
        FileNotFoundError: a file is missing.
        ValueError: the mesh has no such axis, or another number of devices; a file is damaged, or
            of another partition; a process has other files, or cannot read them.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> save_parts(folder, graph, 1, nodes={"x": jnp.array([5, 6, 7])})
        >>> sharded, values = load_parts(folder, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> sharded, values["x"]
        (ShardedGraph(num_nodes=3, num_parts=1), Array([[5, 6, 7]], dtype=int32))
    """
    path = _folder(folder)
    arguments.check_instance("mesh", mesh, Mesh)
    arguments.check_choice("axis", axis, mesh.axis_names)
    copy_engines = arguments.check_flag("copy_engines", copy_engines)
    count, plan, pieces, failure = mesh.shape[axis], {}, {}, None
    own = NamedSharding(mesh, PartitionSpec(axis)).addressable_devices_indices_map((count,))
    try:
        plan = _read_plan(path / PLAN, axis, count)
        for place in sorted({index[0].start or 0 for index in own.values() if index}):
            pieces[place] = _read_piece(path / f"{place}.npz", plan, axis, place)
    except Exception as error:
        failure = error
    try:  # also where reading failed, as others wait
        told = plan if failure is None else str(failure)
        check_same(mesh, axis=axis, copy_engines=copy_engines, folder=told)
    finally:
        if failure is not None:
            raise failure
    return assembled(pieces, plan["places"], mesh, axis, copy_engines)


def _folder(path: Any) -> Path:
    # With scipy, which layers do not need: they know parts.
    from jax_gnn.datasets._check import as_path

    return as_path("folder", path)


def _arrays_of(path: Path, what: str) -> dict[str, Any]:
    from jax_gnn.datasets._npz import read_npz

    return read_npz(path, what)


class _Rows(NamedTuple):
    """Values of nodes or edges, whose first is number ``start``."""

    values: np.ndarray
    start: int = 0

    @classmethod
    def of(cls, name: str, values: Any, size_name: str, size: int, start: int = 0) -> _Rows:
        """Checks them."""
        array = arguments.to_numpy(name, values)
        if not (array.dtype == np.bool_ or jnp.issubdtype(array.dtype, np.number)):
            raise TypeError(f"{name} must be an array of numbers, got {array.dtype}")
        if array.shape[:1] != (size,):
            raise ValueError(f"{name} must be ({size_name} = {size}, ...), got shape {array.shape}")
        return cls(array, start)


def write(
    folder: Path, graph: Any, pieces: list[Piece], places: Any, nodes: Any, edges: Any
) -> None:
    """Writes what `pieces_of` made of a graph, and values of its nodes and edges."""
    size_name = "num_hyperedges" if isinstance(graph, Hypergraph) else "num_edges"
    size = getattr(graph, size_name)
    nodes = {name: _of_nodes(name, each, graph) for name, each in _by_name("nodes", nodes)}
    edges = {
        name: _Rows.of(f"edges[{name!r}]", each, size_name, size)
        for name, each in _by_name("edges", edges)
    }
    both = nodes.keys() & edges.keys()
    if both:
        raise ValueError(f"edges must have other names than nodes, got {min(both)!r} in both")
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / PLAN).exists():
        (folder / PLAN).unlink()  # which is there when all parts are
        for file in folder.glob("*.npz"):  # those of another number of parts, too
            if file.stem.isdecimal():
                file.unlink()
    digests, told = [], ""
    for number, piece in enumerate(pieces):
        part: Any = piece.part
        edge_ids = part.hyperedge_ids if isinstance(graph, Hypergraph) else edges_of(part).edge_ids
        values = _picked(nodes, piece.node_ids) | _picked(edges, edge_ids)
        arrays: list[np.ndarray] = []
        told = json.dumps(_told(piece._replace(values=values), arrays))
        digests.append(digest(arrays))
        _save(folder / f"{number}.npz", {str(i): array for i, array in enumerate(arrays)})
    capacity = len(pieces[0].node_ids)
    plan = {"parts": (places // capacity).astype(np.int32), "num_parts": len(pieces)}
    _save(folder / PLAN, plan | {"places": places, "digests": np.stack(digests), "told": told})


def _by_name(name: str, given: Any) -> Any:
    """The items of a mapping, or none."""
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise TypeError(f"{name} must be arrays by name, got {arguments.described(given)}")
    return given.items()


def _of_nodes(name: str, given: Any, graph: Any) -> Any:
    """Values of nodes, or by type those of each."""
    label = f"nodes[{name!r}]"
    if not isinstance(given, Mapping):
        return _Rows.of(label, given, "num_nodes", graph.num_nodes)
    names, sizes = (getattr(graph, f"node_type_{of}", None) or () for of in ("names", "sizes"))
    starts, found = np.cumsum([0, *sizes]).tolist(), {}
    for kind, rows in given.items():
        if kind not in names:
            raise ValueError(f"{label} must be by name of types, {names}, got {kind!r}")
        number = names.index(kind)
        of_kind = f"{label}[{kind!r}]", rows, "nodes", sizes[number], starts[number]
        found[kind] = None if rows is None else _Rows.of(*of_kind)
    return found


def _picked(rows: dict[str, Any], ids: Any) -> dict[str, Any]:
    return jax.tree.map(
        lambda each: fetch_rows(each.values, ids - each.start),
        rows,
        is_leaf=lambda each: isinstance(each, _Rows),
    )


def _save(path: Path, arrays: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _told(value: Any, arrays: list[np.ndarray]) -> Any:
    """What JSON has of a piece, whose arrays are put into a list."""
    kind: Any = type(value)
    if isinstance(value, np.ndarray):  # files have no bfloat16 and the like
        arrays.append(value.view(f"u{value.itemsize}") if value.dtype.kind == "V" else value)
        return {"array": len(arrays) - 1, "dtype": value.dtype.name}
    if kind.__name__ in KINDS:
        names = [each.name for each in fields(kind)] if is_dataclass(kind) else kind._fields
        own = {name: _told(getattr(value, name), arrays) for name in names}
        return {"kind": kind.__name__, "fields": own}
    if isinstance(value, Mapping):
        return {"by name": {name: _told(each, arrays) for name, each in value.items()}}
    return [_told(each, arrays) for each in value] if isinstance(value, tuple) else value


def _made(told: Any, arrays: list[np.ndarray], axis: str) -> Any:
    """The way back."""
    if isinstance(told, list):
        return tuple(_made(each, arrays, axis) for each in told)
    if not isinstance(told, dict):
        return told
    if "array" in told:
        array = arrays[told["array"]]
        return array if array.dtype.name == told["dtype"] else array.view(jnp.dtype(told["dtype"]))
    of = told["by name" if "by name" in told else "fields"]
    made = {name: _made(each, arrays, axis) for name, each in of.items()}
    if "by name" in told:
        return made
    kind = KINDS[told["kind"]]
    return kind(**made | {"axis": axis}) if kind is Exchange else kind(**made)


def _read_plan(path: Path, axis: str, count: int) -> dict[str, Any]:
    plan = _arrays_of(path, "the plan that save_parts or jax-gnn partition --output FOLDER writes")
    if plan.keys() != {"parts", "num_parts", "places", "digests", "told"}:
        raise ValueError(f"{path} is no plan of parts")
    digests, places = plan["digests"], plan["places"]
    if digests.ndim != 2 or places.ndim != 1 or places.dtype not in (np.int32, np.int64):
        raise ValueError(f"{path} is no plan of parts")
    if len(digests) != count:
        raise ValueError(f"{path} has {len(digests)} parts, but axis {axis!r} {count} devices")
    return plan


def _read_piece(path: Path, plan: dict[str, Any], axis: str, place: int) -> Piece:
    found = _arrays_of(path, f"the part of device {place}")
    arrays = [found[name] for name in sorted(found, key=lambda name: (len(name), name))]
    if not np.array_equal(digest(arrays), plan["digests"][place]):
        raise ValueError(f"{path} is not the part that {PLAN} was written with")
    try:
        piece = _made(json.loads(str(plan["told"])), arrays, axis)
        leaves = jax.tree.leaves(piece)
    except Exception as error:  # whatever a plan that was made by hand leads to
        raise ValueError(f"{path.with_name(PLAN)} is no plan of parts: {error}") from error
    if not isinstance(piece, Piece) or not all(isinstance(each, np.ndarray) for each in leaves):
        raise ValueError(f"{path.with_name(PLAN)} is no plan of parts")
    return piece
