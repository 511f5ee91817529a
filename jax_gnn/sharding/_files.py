"""Parts in files, of which each process reads those of its devices.

A folder has a file for each part, ``0.npz`` and so on, with the arrays of its `Piece`, and
``plan.npz``, which describes the structure of the pieces as JSON.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.files import as_path, map_npz, read_npz
from jax_gnn._core.public import public
from jax_gnn._core.relations import Pairs
from jax_gnn._ops.relation_pairs.triples import IntoPairs, OutOfPairs
from jax_gnn.graph import Graph, host_arrays
from jax_gnn.hetero import HeteroGraph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph, edges_of
from jax_gnn.sampling import Blocks, fetch_rows
from jax_gnn.sharding._exchange import Exchange, Round
from jax_gnn.sharding._host_samples import FileRows
from jax_gnn.sharding._merge import Ends, Merge
from jax_gnn.sharding._partition import Method, SplitArgs, Splittable, parse_graph
from jax_gnn.sharding._parts import HypergraphPart, Part, RelationalPart
from jax_gnn.sharding._processes import ProcessGroup, check_same, digest, largest
from jax_gnn.sharding._sharded import Messages, ShardedGraph, WireDtype, assemble
from jax_gnn.sharding._split import Piece, num_pairs, pad_pairs, split_graph

PLAN = "plan.npz"
_PARTS = Piece, Ends, Part, RelationalPart, HypergraphPart
_FIELDS = Graph, Pairs, OutOfPairs, IntoPairs, Exchange, Round
P = TypeVar("P", Piece, Ends)
CLASSES: dict[str, type] = {cls.__name__: cls for cls in (*_PARTS, *_FIELDS)}
"""Classes that a file may name: those that pieces consist of."""

NodeValues = Mapping[str, ArrayLike | Mapping[str, ArrayLike | None]]
"""Values of nodes by name, of all nodes or of the nodes of each type."""


@public
def save_parts(
    folder: str | os.PathLike[str],
    graph: Graph | RelationalGraph | HeteroGraph | Hypergraph,
    num_parts: int,
    method: Method | ArrayLike = "auto",
    *,
    nodes: NodeValues | None = None,
    edges: Mapping[str, ArrayLike] | None = None,
) -> None:
    """Split a graph as `shard_graph` does, and write a file for each part. Needs no devices.

    :func:`load_parts` puts the parts on devices, where each process reads the files of its own.
    Values of one part are in memory at a time: values in files, as of ``np.load(file,
    mmap_mode="r")``, may exceed it, but edges may not. One process calls this.

    Args:
        folder: folder to write to; files of parts in it, of a complete plan, are removed.
        graph: the graph, as of `shard_graph`.
        num_parts: number of parts, at least the number of devices that load them.
        method: as of `shard_graph`.
        nodes: values by name, such as ``"x"``, as `ShardedGraph.shard` takes them: ``(num_nodes,
            …)``, or by name of the type.
        edges: values by other names, as `ShardedGraph.shard_edges` takes them.

    Raises:
        TypeError: called inside ``jax.jit``, or an argument has the wrong type.
        ValueError: the graph or method is not as `shard_graph` takes it, there are more parts than
            nodes, values have another number of rows, or share a name.
        OSError: the folder cannot be written to.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> save_parts(folder, graph, 2, nodes={"x": jnp.array([5, 6, 7])})
        >>> sorted(os.listdir(folder))
        ['0.npz', '1.npz', 'plan.npz']
    """
    path, host_graph = as_path("folder", folder), parse_graph(graph)
    size = arguments.check_integer("num_parts", num_parts)
    if not 1 <= size <= host_graph.num_nodes:
        raise ValueError(f"num_parts must be 1 to num_nodes = {host_graph.num_nodes}, got {size}")
    args = SplitArgs.parse(host_graph, size, method)
    with host_arrays():
        pieces, places = split_graph(args, "")
    write_parts(path, host_graph, pieces, places, nodes, edges)


@public
def load_parts(
    folder: str | os.PathLike[str],
    mesh: Mesh,
    axis: str,
    *,
    copy_engines: bool = False,
    wire_dtype: WireDtype | None = None,
    on_disk: Sequence[str] = (),
) -> tuple[ShardedGraph, dict[str, Any]]:
    """Put parts in files of `save_parts` or ``jax-gnn partition`` on the devices of a mesh.

    The mesh may have devices of several processes: all call this, and each reads the files of its
    own devices, and the plan, which has two numbers for each node. On D devices, fewer than the P
    parts, part p goes to device ``p * D // P``. Consecutive parts of a device are merged: edges
    between them become local, and the exchange is planned again. Each process then reads the ids
    and degrees of the nodes of all files, too. Memory holds a device's edges about twice and one
    of its parts, besides all parts of the process.

    Args:
        folder: folder of the parts, the same for all processes.
        mesh: the devices.
        axis: the axis of the mesh that nodes are split over, with at most a device for each part.
        copy_engines: as of `shard_graph`.
        wire_dtype: as of `shard_graph`.
        on_disk: names of values of nodes that stay in the files, for `ShardedGraph.fetch_ahead`. A
            process needs the files of its own parts for them.

    Returns:
        The result of `shard_graph` of the graph, bit for bit, whose ``method`` are the devices of
        the nodes; and by name the values that were saved with it, as `ShardedGraph.shard` and
        `ShardedGraph.shard_edges` return them. Merged parts of a hypergraph keep their hyperedges.

    Raises:
        TypeError: an argument has the wrong type.
        FileNotFoundError: a file is missing.
        ValueError: the mesh has no such axis, or more devices than there are parts; a file is
            damaged, or of another partition; a process has other files, or cannot read them; nodes
            have no values of a name in ``on_disk``.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> save_parts(folder, graph, 1, nodes={"x": jnp.array([5, 6, 7])})
        >>> sharded, values = load_parts(folder, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> sharded, values["x"]
        (ShardedGraph(num_nodes=3, num_parts=1), Array([[5, 6, 7]], dtype=int32))
    """
    path = as_path("folder", folder)
    arguments.check_instance("mesh", mesh, Mesh)
    arguments.check_choice("axis", axis, mesh.axis_names)
    messages = Messages.parse(copy_engines, wire_dtype)
    if isinstance(on_disk, str) or not all(isinstance(name, str) for name in on_disk):
        raise TypeError(f"on_disk must be a sequence of names, got {on_disk!r}")
    count, failure = mesh.shape[axis], None
    split = NamedSharding(mesh, PartitionSpec(axis))
    slices = split.addressable_devices_indices_map((count,)).values()
    devices = sorted({index[0].start or 0 for index in slices if index})
    try:
        files = _Files.open(path, axis, count, on_disk)
        places, is_merged = files.plan["places"], len(files) > count
        if is_merged:
            pieces, places = files.merged(count, devices)
        else:
            pieces = {i: files.piece(i) for i in devices}
    except Exception as error:
        failure = error
    try:  # a process that cannot read its files takes part too, as the others wait for it
        contents = files.plan if failure is None else str(failure)
        names = str(sorted(on_disk))
        check_same(mesh, axis=axis, **messages._asdict(), on_disk=names, folder=contents)
    finally:
        if failure is not None:
            raise failure
    if is_merged and isinstance(pieces[devices[0]].part, RelationalPart):
        parts = {device: cast(RelationalPart, piece.part) for device, piece in pieces.items()}
        capacities = largest(mesh, np.max([[1, 1], *map(num_pairs, parts.values())], 0))
        with host_arrays():
            for device, part in parts.items():
                pieces[device] = pieces[device]._replace(part=pad_pairs(part, capacities))
    sharded, values = assemble(pieces, places, mesh, axis, messages)
    for name in on_disk:
        values[name] = jax.tree.map(
            lambda *maps: FileRows(
                dict(zip(files.mapped, maps, strict=True)), files.plan["places"]
            ),
            *(part[name] for part in files.mapped.values()),
        )
    return sharded, values


@public
@dataclass(init=False, repr=False, eq=False)
class PartFiles:
    """Parts in files of `save_parts`, loaded one at a time: for graphs larger than memory.

    `flax_layers.layerwise_inference` takes them in place of a graph, on one device.

    Attributes:
        folder: folder of the parts.
        num_nodes: number of nodes of the whole graph.
        num_edges: number of edges of the whole graph.

    Raises:
        TypeError: ``folder`` is no path.
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or of another partition; or the parts are of a hypergraph.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> save_parts(folder, graph, 2, "contiguous")
        >>> parts = PartFiles(folder)
        >>> parts
        PartFiles(num_parts=2, num_nodes=3, num_edges=3)
        >>> parts.block(0)
        Blocks(num_seeds=2, graphs=[4 -> 2], num_edges=[2])
    """

    folder: Path
    num_nodes: int
    num_edges: int

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = as_path("folder", folder)
        self._files = _Files.open(self.folder, "", 1)
        self.num_nodes = len(self._files.plan["places"])
        edges: Any = edges_of(self.block(0).graphs[0])
        self.num_edges = int(edges.num_input_edges)

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        sizes = f"num_nodes={self.num_nodes}, num_edges={self.num_edges}"
        return f"PartFiles(num_parts={len(self)}, {sizes})"

    def block(self, number: int) -> Blocks:
        """Read one part, as blocks of a single layer whose seeds are the part's own nodes.

        Args:
            number: number of the part, from 0.

        Returns:
            Blocks of one graph in numpy, with relations if the whole graph has these. Its
            ``edge_ids`` are in the whole graph's order. All parts have the same shapes.

        Raises:
            TypeError: ``number`` is no integer.
            ValueError: there is no such part.
        """
        number = arguments.check_integer("number", number)
        if not 0 <= number < len(self):
            raise ValueError(f"number must be from 0 and below {len(self)} parts, got {number}")
        piece = self._files.read(number, Piece)
        kind = RelationalGraph if isinstance(piece.part, RelationalPart) else Graph
        if isinstance(piece.part, HypergraphPart):
            raise ValueError(f"{self.folder} must have parts of a graph, got those of a hypergraph")
        arrays = {field.name: getattr(piece.part, field.name) for field in fields(kind)}
        ids: Any = np.concatenate([piece.node_ids, *piece.halo_ids])
        sizes = getattr(piece.part, "whole_type_sizes", None) or None
        overflow: Any = np.zeros((), bool)
        return Blocks((kind(**arrays),), ids, overflow, node_type_sizes=sizes)


# --- Writing -------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Values of consecutive nodes or edges, the first of which has id ``start``."""

    values: np.ndarray
    start: int = 0

    @classmethod
    def parse(
        cls, name: str, values: ArrayLike, size_name: str, size: int, start: int = 0
    ) -> _Rows:
        """Check an array of numbers with ``size`` rows."""
        array = arguments.check_numbers(name, values)
        arguments.check_rows(name, array, size_name, size)
        return cls(array, start)


def write_parts(
    folder: Path,
    graph: Splittable,
    pieces: Iterable[Piece],
    places: np.ndarray,
    nodes: NodeValues | None,
    edges: Mapping[str, ArrayLike] | None,
    group: ProcessGroup | None = None,
) -> None:
    """Write the pieces of a graph, with values of its nodes and edges; see `save_parts`.

    Each process of a group has the pieces of its share of the parts.
    """
    group = ProcessGroup(0, 1) if group is None else group
    is_hypergraph = isinstance(graph, Hypergraph)
    size_name = "num_hyperedges" if is_hypergraph else "num_edges"
    size = getattr(graph, size_name)
    node_rows = {
        name: _parse_node_rows(f"nodes[{name!r}]", values, graph)
        for name, values in by_name("nodes", nodes).items()
    }
    edge_rows = {
        name: _Rows.parse(f"edges[{name!r}]", values, size_name, size)
        for name, values in by_name("edges", edges).items()
    }
    if shared := node_rows.keys() & edge_rows.keys():
        raise ValueError(f"edges must have other names than nodes, got {min(shared)!r} in both")
    folder.mkdir(parents=True, exist_ok=True)
    # A plan exists only if all its parts do: it is removed first and written last.
    if group.index == 0 and (folder / PLAN).exists():
        (folder / PLAN).unlink()
        for file in folder.glob("*.npz"):
            if file.stem.isdecimal():
                file.unlink()
    group.gather()
    numbers, digests = iter(group.share(len(places))), []
    structure, capacity = "", 1

    def write(piece: Piece) -> None:
        nonlocal structure, capacity
        part, capacity = piece.part, len(piece.node_ids)
        edge_ids = (
            part.hyperedge_ids if isinstance(part, HypergraphPart) else edges_of(part).edge_ids
        )
        piece = piece._replace(
            node_values=_select(node_rows, piece.node_ids),
            edge_values=_select(edge_rows, np.asarray(edge_ids)),
        )
        arrays: list[np.ndarray] = []
        descriptions = _encode(piece, arrays), _encode(Ends.of(piece), arrays)
        structure = json.dumps(descriptions)
        number = next(numbers)
        members: Any = {str(i): array for i, array in enumerate(arrays)}
        np.savez(folder / f"{number}.npz", **members)
        ends = [arrays[i] for i in _array_numbers(descriptions[1])]
        digests.append(np.stack([digest(arrays), digest(ends)]))

    deque(map(write, pieces), 0)  # keeps no piece while the next one is made
    gathered = [arrays["digests"] for arrays in group.gather(digests=digests)]
    if group.index == 0:
        num_parts = sum(map(len, gathered))
        all_digests = np.empty((num_parts, 2, 4), np.uint32)
        for i, rows in enumerate(gathered[:num_parts]):
            all_digests[i :: group.count] = rows
        parts = (places // capacity).astype(np.int32)
        plan: Any = {"parts": parts, "num_parts": num_parts, "places": places}
        np.savez(folder / PLAN, **plan, digests=all_digests, told=structure)
    group.gather()


def by_name(name: str, values: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Check an argument of arrays by name; None stands for none."""
    values = {} if values is None else values
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise TypeError(f"{name} must be arrays by name, got {arguments.described(values)}")
    return values


def _parse_node_rows(
    name: str, values: ArrayLike | Mapping[str, ArrayLike | None], graph: Splittable
) -> _Rows | dict[str, _Rows | None]:
    """Check values of all nodes, or of the nodes of each type by its name."""
    if not isinstance(values, Mapping):
        return _Rows.parse(name, values, "num_nodes", graph.num_nodes)
    types = getattr(graph, "node_type_names", None) or ()
    sizes = getattr(graph, "node_type_sizes", None) or ()
    rows: dict[str, _Rows | None] = {}
    for key, type_values in values.items():
        if key not in types:
            raise ValueError(f"{name} must be by name of types, {types}, got {key!r}")
        i = types.index(key)
        rows[key] = None
        if type_values is not None:
            start = sum(sizes[:i])
            rows[key] = _Rows.parse(f"{name}[{key!r}]", type_values, "nodes", sizes[i], start)
    return rows


def _select(rows: Mapping[str, object], ids: np.ndarray) -> dict[str, Any]:
    """Return the values of some ids, zeros for ids without values."""
    # Values may be memory maps, of which only these rows are read.
    selected: dict[str, Any] = jax.tree.map(
        lambda values: fetch_rows(values.values, ids - values.start),
        rows,
        is_leaf=lambda node: isinstance(node, _Rows),
    )
    return selected


def _encode(value: object, arrays: list[np.ndarray]) -> object:
    """Describe a piece for JSON, and append its arrays to a list."""
    if isinstance(value, np.ndarray):
        number = next((i for i, array in enumerate(arrays) if array is value), len(arrays))
        if number == len(arrays):  # files have no bfloat16 and similar types
            arrays.append(value.view(f"u{value.itemsize}") if value.dtype.kind == "V" else value)
        return {"array": number, "dtype": value.dtype.name}
    cls: Any = type(value)
    if cls.__name__ in CLASSES:
        names = [field.name for field in fields(cls)] if is_dataclass(cls) else cls._fields
        contents = {name: _encode(getattr(value, name), arrays) for name in names}
        return {"kind": cls.__name__, "fields": contents}
    if isinstance(value, Mapping):
        return {"by name": {name: _encode(item, arrays) for name, item in value.items()}}
    return [_encode(item, arrays) for item in value] if isinstance(value, tuple) else value


# --- Reading -------------------------------------------------------------------------------------


def _array_numbers(description: Any) -> list[int]:
    """Return the numbers of the arrays of a description."""
    if isinstance(description, list):
        return sorted({i for item in description for i in _array_numbers(item)})
    if not isinstance(description, dict):
        return []
    if "array" in description:
        return [description["array"]]
    return _array_numbers(list(description.values()))


def _decode(description: Any, arrays: Mapping[int, np.ndarray], axis: str) -> object:
    """Invert `_encode`; exchanges get the name of the mesh axis."""
    if isinstance(description, list):
        return tuple(_decode(item, arrays, axis) for item in description)
    if not isinstance(description, dict):
        return description
    if "array" in description:
        array, dtype = arrays[description["array"]], description["dtype"]
        return array if array.dtype.name == dtype else array.view(jnp.dtype(dtype))
    items = description["by name" if "by name" in description else "fields"]
    values = {name: _decode(item, arrays, axis) for name, item in items.items()}
    if "by name" in description:
        return values
    cls = CLASSES[description["kind"]]
    if cls is Exchange:
        values["axis"] = axis
    return cast(object, cls(**values))


@dataclass(frozen=True)
class _Files:
    """Files of parts, and the plan that they were written with."""

    folder: Path
    plan: dict[str, np.ndarray]
    axis: str  # name of the mesh axis
    on_disk: Sequence[str]  # names of values of nodes that stay in the files
    mapped: dict[int, dict[str, Any]] = field(
        default_factory=dict
    )  # these, of parts that were read

    @classmethod
    def open(cls, folder: Path, axis: str, count: int, on_disk: Sequence[str] = ()) -> _Files:
        """Read the plan of at least ``count`` parts."""
        path = folder / PLAN
        plan = read_npz(
            path, "the plan that save_parts or jax-gnn partition --output FOLDER writes"
        )
        names = {"parts", "num_parts", "places", "digests", "told"}
        digests, places = plan.get("digests", np.zeros(0)), plan.get("places", np.zeros(0))
        if (
            plan.keys() != names
            or digests.shape[1:] != (2, 4)
            or places.ndim != 1
            or places.dtype not in (np.int32, np.int64)
        ):
            raise ValueError(f"{path} is no plan of parts")
        if len(digests) < count:
            raise ValueError(
                f"{path} has {len(digests)} parts, but axis {axis!r} {count} devices: load the "
                f"parts on at most {len(digests)} devices, or write {count} of them or more"
            )
        return cls(folder, plan, axis, on_disk)

    def __len__(self) -> int:
        return len(self.plan["digests"])

    def piece(self, part: int) -> Piece:
        """Read the `Piece` of a part; its values on disk go to `mapped`."""
        piece = self.read(part, Piece)
        values = dict(piece.node_values)
        self.mapped[part] = {name: values.pop(name) for name in self.on_disk}
        return piece._replace(node_values=values)

    def read(self, part: int, kind: type[P]) -> P:
        """Read the `Piece` of a part, with memory maps of values on disk; or its `Ends` alone."""
        path, number = self.folder / f"{part}.npz", int(kind is Ends)
        on_disk = set() if number else {*self.on_disk}
        description: Any
        try:
            description = json.loads(str(self.plan["told"]))[number]
            keys = {*map(str, _array_numbers(description))}
            by_name = {} if number else dict(description["fields"]["node_values"]["by name"])
        except Exception as error:  # plans that were written by hand lead to many types
            raise self._error(error) from error
        if unknown := sorted(on_disk - by_name.keys()):
            raise ValueError(
                f"{self.folder} has no values of nodes {unknown[0]!r}, but {sorted(by_name)}"
            )
        maps = {str(i) for name in on_disk for i in _array_numbers(by_name[name])}
        what = f"the file of part {part}"
        members = read_npz(path, what, keys - maps if number or maps else None)
        members |= {key: map_npz(path, key) for key in maps}
        names = sorted(members, key=lambda key: (len(key), key))  # keys are numbers
        expected = self.plan["digests"][part, number]
        if not np.array_equal(digest([members[key] for key in names]), expected):
            raise ValueError(f"{path} is not the part that {PLAN} was written with")
        try:
            value = _decode(description, {int(key): members[key] for key in names}, self.axis)
            leaves = jax.tree.leaves(value)
        except Exception as error:
            raise self._error(error) from error
        if not isinstance(value, kind) or not all(isinstance(leaf, np.ndarray) for leaf in leaves):
            raise self._error(f"no {kind.__name__}")
        return value

    def _error(self, reason: object) -> ValueError:
        return ValueError(f"{self.folder / PLAN} is no plan of parts: {reason}")

    def merged(self, count: int, devices: Iterable[int]) -> tuple[dict[int, Piece], np.ndarray]:
        """Read pieces of devices that have several parts each, and `ShardedGraph.places`."""
        try:
            merge, pieces = Merge.of([self.read(i, Ends) for i in range(len(self))], count), {}
            for device in devices:
                parts = np.flatnonzero(merge.device_of == device).tolist()
                with host_arrays():
                    pieces[device] = merge.merged(device, map(self.piece, parts), self.axis)
        except Exception as error:
            if str(error).startswith(str(self.folder)):  # names a file
                raise
            raise self._error(error) from error
        return pieces, merge.own[0].places
