"""Files of parts from chunks of edges, for graphs that no process has room for.

Edges are dealt out to files by ranges of destinations, each of which is sorted in memory. Together
they are the rows of the graph, in the order of `Graph.from_edges`, as a memory map; parts are made
of it one at a time. Several processes share the chunks, the ranges and the parts.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.files import as_path, errors_in
from jax_gnn._core.ids import MAX_SIZE
from jax_gnn._core.public import public
from jax_gnn.graph import Graph, host_arrays
from jax_gnn.hetero import HeteroGraph
from jax_gnn.relational import RelationalGraph, edges_of
from jax_gnn.sampling import fetch_rows
from jax_gnn.sharding._files import NodeValues, by_name, write_parts
from jax_gnn.sharding._partition import Adjacency, SplitArgs, partition_nodes
from jax_gnn.sharding._processes import ProcessGroup, sample
from jax_gnn.sharding._split import (
    LocalEdges,
    LocalRows,
    Piece,
    Routes,
    nodes_by_owner,
    pad_pairs,
)

RELATION = "relation"
"""Name of the relations among the values of edges."""

_READ_EDGES, _RANGES = 1 << 22, 256  # edges of a chunk of a file, ranges of destinations

EdgeSource = (
    str
    | os.PathLike[str]
    | tuple[ArrayLike, ArrayLike]
    | tuple[ArrayLike, ArrayLike, Mapping[str, ArrayLike]]
)
"""A file of edges; or their sources and destinations, and values by name."""


@public
def save_edge_parts(
    folder: str | os.PathLike[str],
    edges: Iterable[EdgeSource],
    num_nodes: int,
    num_parts: int,
    method: Literal["contiguous", "hash"] | ArrayLike = "contiguous",
    *,
    nodes: NodeValues | None = None,
    edge_values: Sequence[str] = (),
    schema: RelationalGraph | HeteroGraph | None = None,
    process_index: int | None = None,
    process_count: int | None = None,
) -> None:
    """Write the files of `save_parts` from chunks of edges, in the memory of one part.

    The files are those of `save_parts` of the graph of all edges, bit for bit. Memory holds about
    ten numbers for each edge of the largest part, four for each node, and the ids of all halos.
    Edges take 12 bytes each of temporary files in ``folder``, 16 with relations, and twice their
    values; a tuple is in memory as a whole. Host only.

    Several processes may each pass their own share of the edges, with equal other arguments. They
    must see the same ``folder``, by which they exchange edges. Each writes the files of some parts.
    The result is that of one process that passes all shares in the order of the processes. Runs
    that are killed leave folders ``edges-…`` there, which may be removed.

    Args:
        folder: folder to write to, as of `save_parts`.
        edges: chunks in any order, read once: tuples ``(src, dst)`` of ``(count,)`` integers, or
            ``(src, dst, values)`` with a mapping of ``(count, …)`` numbers by name; paths of
            ``.npy`` files of ``(2, count)`` integers, sources first, then with a ``schema``
            relations in a third row; paths of Parquet files, whose first two columns are sources
            and destinations (needs `pyarrow`).
        num_nodes: number of nodes.
        num_parts: number of parts, at least the number of devices that load them.
        method: "contiguous" or "hash", as of :func:`partition`; or ``(num_nodes,)`` integers.
        nodes: as of `save_parts`.
        edge_values: names of values that each chunk has, in its mapping or as Parquet columns of
            numbers or lists of one length. They are saved as the ``edges`` of `save_parts`.
        schema: a graph without edges, such as ``RelationalGraph.from_triples([], [], [],
            num_nodes, num_relations)``: the parts are of a graph with its relations, types of nodes
            and parts of pairs. Chunks then have a value ``"relation"``, ``(count,)`` integers, or
            one for all. Edges of a ``self_relation`` are added, with values of 0.
        process_index: number of this process; None for that of `jax.distributed`, if the program
            uses it.
        process_count: number of processes that call this; None likewise.

    Raises:
        ImportError: a file is of Parquet, and `pyarrow` is not installed.
        TypeError: ids are no integers, or an argument has the wrong type.
        ValueError: an id is out of range, an array has another shape, there are more parts than
            nodes, the method is another one, or there are 2³¹ edges or nodes or more; an argument
            differs between processes, or another process fails.
        OSError: a file cannot be read, or the folder not be written to; as TimeoutError, another
            process does not answer for five minutes.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> save_edge_parts(folder, [([0, 1], [1, 0]), ([2], [0])], num_nodes=3, num_parts=2)
        >>> sorted(os.listdir(folder))
        ['0.npz', '1.npz', 'plan.npz']
    """
    path, group = as_path("folder", folder), ProcessGroup(process_index, process_count)
    with group.work_on(path), host_arrays():
        num_nodes = arguments.check_integer("num_nodes", num_nodes)
        num_parts = arguments.check_integer("num_parts", num_parts)
        if not 1 <= num_parts <= num_nodes <= MAX_SIZE:
            raise ValueError(
                f"num_parts must be 1 to num_nodes, below 2³¹, got {num_parts} and {num_nodes}"
            )
        if isinstance(method, str):
            arguments.check_choice("method", method, ("contiguous", "hash"))
        for name, values in (("edges", edges), ("edge_values", edge_values)):
            if isinstance(values, str | os.PathLike):
                raise TypeError(f"{name} must be a sequence, such as [{values!r}], got {values!r}")
        if RELATION in edge_values:
            raise ValueError(f"edge_values must not have {RELATION!r}, which a schema implies")
        template = _parse_schema(schema, num_nodes)
        samples = jax.tree.map(lambda rows: sample(np.asarray(rows)), by_name("nodes", nodes))
        group.check_same(
            process_count=group.count,
            num_nodes=num_nodes,
            num_parts=num_parts,
            method=method,
            nodes=samples,
            edge_values=list(edge_values),
            schema=template,
        )
        on_disk = _EdgesOnDisk(num_nodes, template, edge_values, group)
        on_disk.deal_out(edges)
        graph, values = on_disk.sort()
        if isinstance(method, str):
            graph_edges = edges_of(graph)
            adjacency: Any = graph_edges.indptr, graph_edges.cols, graph_edges.indptr, ()
            method = partition_nodes(Adjacency(*adjacency), num_parts, method)
        parts = SplitArgs.parse(graph, num_parts, method).node_parts
        local_rows = LocalRows.of(parts, num_parts, np.dtype(np.int32))
        pieces = _pieces(graph, local_rows, group)
        write_parts(path, graph, pieces, local_rows.places, nodes, values, group)


def _parse_schema(
    schema: RelationalGraph | HeteroGraph | None, num_nodes: int
) -> RelationalGraph | None:
    """Check a graph that has the relations of others."""
    if schema is None:
        return None
    graph = schema.relational if isinstance(schema, HeteroGraph) else schema
    arguments.check_instance("schema", graph, RelationalGraph)
    num_edges = num_nodes if graph.self_relation else 0
    if graph.num_nodes != num_nodes or graph.num_edges != num_edges:
        raise ValueError(
            f"schema must have num_nodes = {num_nodes}, and no edges but those of its "
            f"self_relation, got {graph}"
        )
    return cast(RelationalGraph, jax.device_get(graph))


# --- Edges ---------------------------------------------------------------------------------------


_Chunk = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]
"""Sources and destinations in int64, and values by name, ``RELATION`` among them."""


def _parse_chunk(
    src: ArrayLike,
    dst: ArrayLike,
    values: Mapping[str, ArrayLike],
    expected: dict[str, int | None],
    num_nodes: int,
) -> _Chunk:
    """Check edges; ``expected`` has the names of values, and the end of integers."""
    senders, receivers = arguments.check_pairs("edges[0]", src, "edges[1]", dst)
    arguments.check_range("edges[0]", senders, "num_nodes", num_nodes)
    arguments.check_range("edges[1]", receivers, "num_nodes", num_nodes)
    if values.keys() != expected.keys():
        raise ValueError(
            f"edges must have the values {sorted(expected)}, got those of {sorted(values)}"
        )
    parsed = {}
    for key, limit in expected.items():
        name = f"edges[{key!r}]"
        if limit is None:
            array = arguments.check_numbers(name, values[key])
        else:
            array = arguments.to_numpy(name, values[key])
            array = np.broadcast_to(array, senders.shape) if array.ndim == 0 else array
            array = arguments.check_ids(name, array)
            arguments.check_range(name, array, "num_relations", limit)
        arguments.check_rows(name, array, "count", len(senders))
        parsed[key] = array
    return senders, receivers, parsed


def _chunks(
    edges: Iterable[EdgeSource], expected: dict[str, int | None], num_nodes: int
) -> Iterator[_Chunk]:
    """Yield the edges of files and tuples."""
    for source in edges:
        if isinstance(source, tuple):
            if len(source) not in (2, 3):
                raise ValueError(
                    f"edges must be of pairs (src, dst) or triples (src, dst, values), got "
                    f"{len(source)} arrays"
                )
            yield _parse_chunk(*source[:2], dict(*source[2:]), expected, num_nodes)
            continue
        if not isinstance(source, str | os.PathLike):
            raise TypeError(
                "edges must be a sequence of tuples (src, dst) and paths of files, got one of "
                f"{type(source).__name__}"
            )
        arrays = _read_npy if Path(source).suffix == ".npy" else _read_parquet
        with errors_in(Path(source)):
            for src, dst, values in arrays(Path(source), [*expected]):
                yield _parse_chunk(src, dst, values, expected, num_nodes)


def _read_npy(path: Path, names: list[str]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield sources, destinations and, in a third row, relations."""
    array, has_relations = np.load(path, mmap_mode="r"), RELATION in names
    if array.ndim != 2 or len(array) != 2 + has_relations:
        raise ValueError(f"edges must be ({2 + has_relations}, count), got shape {array.shape}")
    for start in range(0, array.shape[1], _READ_EDGES):
        src, dst, *types = array[:, start : start + _READ_EDGES]
        yield src, dst, {RELATION: types[0]} if types else {}


def _read_parquet(path: Path, names: list[str]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield the first two columns, and columns by name."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(f"edges in {path} need pyarrow: pip install pyarrow") from error

    def to_numpy(column: Any) -> np.ndarray:
        if not pyarrow.types.is_nested(column.type):
            return np.asarray(column.to_numpy(zero_copy_only=False))
        values = column.flatten().to_numpy(zero_copy_only=False)
        return np.asarray(values.reshape(len(column), -1))

    with parquet.ParquetFile(path) as file:
        columns = file.schema_arrow.names
        if missing := {*names} - {*columns[2:]}:
            raise ValueError(f"edges must have a column {min(missing)!r}, got {columns}")
        for batch in file.iter_batches(_READ_EDGES, columns=[*columns[:2], *names]):
            src, dst, *values = map(to_numpy, batch.columns)
            yield src, dst, dict(zip(names, values, strict=True))


class _EdgesOnDisk:
    """Edges in files: dealt out to ranges of destinations, then sorted, one range at a time.

    At first, each process has files of its own for all ranges. Then it sorts consecutive ranges,
    with the edges of all processes, and writes its stretch of the files of all edges.

    Attributes:
        num_nodes: number of nodes.
        schema: graph with the relations; None for edges without.
        names: names of the values of edges.
        group: the processes.
        num_relations: number of relations; 1 for edges without.
        has_loops: whether edges from each node to itself are added, as the last relation.
        width: number of destinations of a range.
        counts: ``(processes, ranges)``, number of edges; of this process alone at first.
        kinds: dtype and shape of the value of an edge, for each of the names that has edges.
    """

    def __init__(
        self,
        num_nodes: int,
        schema: RelationalGraph | None,
        names: Sequence[str],
        group: ProcessGroup,
    ) -> None:
        self.num_nodes, self.schema, self.names, self.group = num_nodes, schema, names, group
        self.num_relations = 1 if schema is None else schema.num_relations
        self.has_loops = schema is not None and schema.self_relation
        self.width = -(-num_nodes // _RANGES)
        self.counts = np.zeros((1, -(-num_nodes // self.width)), np.int64)
        self.kinds: dict[str, list[Any]] = {}
        if self.width * num_nodes * self.num_relations >= 2**63:
            raise ValueError(f"schema must have fewer relations for so many nodes, got {schema}")

    def _path(self, process: int, i: int) -> Path:
        return self.group.scratch / f"{process}-{i}.edges"

    def _note_kinds(self, kinds: Mapping[str, list[Any]]) -> None:
        """Note the kinds of values, which must be the same in all chunks."""
        for name, kind in kinds.items():
            if self.kinds.setdefault(name, kind) != kind:
                raise ValueError(
                    f"edges[{name!r}] must have one dtype and shape in all chunks, got "
                    f"{self.kinds[name]} and {kind}"
                )

    def _make_records(self, keys: np.ndarray) -> np.ndarray:
        """Return edges with their keys, and zeros for their values, whose fields are numbers."""
        kinds = (self.kinds.get(name, ("float32", ())) for name in self.names)
        values = [(str(i), jnp.dtype(kind), tuple(shape)) for i, (kind, shape) in enumerate(kinds)]
        records = np.zeros(len(keys), [("key", np.int64), *values])
        records["key"] = keys
        return records

    def _check_size(self) -> None:
        if self.counts.sum() + self.has_loops * self.num_nodes > MAX_SIZE:
            raise ValueError("edges must be below 2³¹, as parts number them by int32")

    def deal_out(self, edges: Iterable[EdgeSource]) -> None:
        """Append the edges of this process to the files of ranges, and wait for all processes."""
        expected: dict[str, int | None] = dict.fromkeys(self.names)
        if self.schema is not None:
            expected[RELATION] = self.num_relations - self.has_loops
        for src, dst, values in _chunks(edges, expected, self.num_nodes):
            self.group.check()
            ranges = dst // self.width
            sizes = np.bincount(ranges, minlength=self.counts.shape[1])
            self.counts[0] += sizes
            self._check_size()
            # A key has the relation and both ends of an edge, in the order of the graph's edges.
            keys = (dst - ranges * self.width) * self.num_relations + values.pop(RELATION, 0)
            self._note_kinds({k: [v.dtype.name, [*v.shape[1:]]] for k, v in values.items()})
            records = self._make_records(keys * self.num_nodes + src)
            for i, name in enumerate(self.names):
                records[str(i)] = values[name]
            order = np.argsort(ranges.astype(np.uint8), kind="stable")
            pieces = np.split(records[order], np.cumsum(sizes)[:-1])
            for i in np.flatnonzero(sizes).tolist():
                with self._path(self.group.index, i).open("ab") as file:
                    file.write(pieces[i].tobytes())
        gathered = self.group.gather(counts=self.counts[0], kinds=json.dumps(self.kinds))
        for arrays in gathered:
            self._note_kinds(json.loads(str(arrays["kinds"])))
        self.counts = np.stack([arrays["counts"] for arrays in gathered])
        self._check_size()

    def _read(self, i: int, loops: np.ndarray) -> np.ndarray:
        """Return the sorted edges of a range, equal ones in order; remove their files."""
        paths = [self._path(process, i) for process in np.flatnonzero(self.counts[:, i]).tolist()]
        records = np.concatenate([*(np.fromfile(path, loops.dtype) for path in paths), loops])
        for path in paths:
            path.unlink()
        if self.names:
            return records[np.argsort(records["key"], kind="stable")]
        records["key"].sort()
        return records

    def sort(self) -> tuple[Graph | RelationalGraph, dict[str, np.ndarray]]:
        """Return the rows of a graph without a transpose, and values of its edges by name.

        Arrays of edges are memory maps.
        """
        num_ranges, group = self.counts.shape[1], self.group
        starts = np.minimum(np.arange(num_ranges + 1) * self.width, self.num_nodes)
        offsets = np.append(0, np.cumsum(self.counts.sum(0))) + starts * self.has_loops
        # An array without edges, for the file of each column.
        ends = ["cols"] if self.schema is None else ["cols", "types"]
        columns, no_edges = (
            dict.fromkeys(ends, np.zeros(0, np.int32)),
            self._make_records(starts[:0]),
        )
        columns |= {str(i): no_edges[str(i)] for i in range(len(self.names))}
        first, stop = (i * num_ranges // group.count for i in (group.index, group.index + 1))
        degrees = np.zeros(starts[stop] - starts[first], np.int32)
        with contextlib.ExitStack() as stack:
            files: dict[str, Any] = {}
            for name, column in columns.items():
                # Processes write to different bytes of one file.
                number = os.open(group.scratch / name, os.O_RDWR | os.O_CREAT)
                files[name] = stack.enter_context(os.fdopen(number, "r+b"))
                row_bytes = column.itemsize * math.prod(column.shape[1:])
                files[name].seek(int(offsets[first]) * row_bytes)
            for i in range(first, stop):
                group.check()
                nodes = np.arange(starts[i], starts[i + 1] if self.has_loops else starts[i])
                loops = (nodes - starts[i] + 1) * self.num_relations - 1
                records = self._read(i, self._make_records(loops * self.num_nodes + nodes))
                keys, cols = np.divmod(records["key"], self.num_nodes)
                keys, types = np.divmod(keys, self.num_relations)
                ids = {"cols": cols, "types": types}
                for name, column in columns.items():
                    values = ids[name] if name in ids else records[name]
                    values.astype(column.dtype).tofile(files[name])
                counts = np.bincount(keys, minlength=starts[i + 1] - starts[i])
                degrees[starts[i] - starts[first] : starts[i + 1] - starts[first]] = counts
        degrees = np.concatenate([arrays["degrees"] for arrays in group.gather(degrees=degrees)])
        num_edges = int(offsets[-1])
        maps: dict[str, Any] = {}
        for name, column in columns.items():
            shape = num_edges, *column.shape[1:]
            # numpy maps no empty files
            make = np.zeros if 0 in shape else partial(np.memmap, group.scratch / name, mode="r")
            maps[name] = make(shape=shape, dtype=column.dtype)
        indptr = np.append(np.int32(0), np.cumsum(degrees, dtype=np.int32))
        empty, count = np.zeros(0, np.int32), np.asarray(num_edges, np.int32)
        rows = np.broadcast_to(np.int32(0), num_edges)  # only its length is read
        arrays: list[Any] = [indptr, rows, maps["cols"], indptr, empty, empty, empty]
        arrays += [None, None, None, count]  # without edge ids, as the order is the graph's
        graph = Graph(*arrays)
        edge_values = {name: maps[str(i)] for i, name in enumerate(self.names)}
        if self.schema is None:
            return graph, edge_values
        return replace(self.schema, nodes=graph, edge_types=maps["types"]), edge_values


# --- Parts ---------------------------------------------------------------------------------------


def _edges_into(graph: Graph | RelationalGraph, nodes: np.ndarray) -> tuple[LocalEdges, np.ndarray]:
    """Return the edges into some nodes, and their sources; unmap the pages of other nodes."""
    edges = edges_of(graph)
    for array in (edges.cols, getattr(graph, "edge_types", None)):
        if isinstance(array, np.memmap):
            memory: Any = array
            memory._mmap.madvise(mmap.MADV_DONTNEED)
    return LocalEdges.into(edges, nodes)


def _count_pairs(graph: RelationalGraph, local: LocalEdges, cols: np.ndarray) -> list[int]:
    """Return `num_pairs` of the part of some edges, at least 1."""
    types, sizes = fetch_rows(np.asarray(graph.edge_types), local.places), []
    rows = np.repeat(np.arange(len(local.degrees)), local.degrees)
    for pairs, nodes in ((graph.pair_src, cols), (graph.pair_dst, rows)):
        ids = nodes.astype(np.int64) * graph.num_relations + types
        sizes.append(1 if pairs is None else max(1, len(np.unique(ids))))
    return sizes


def _pieces(
    graph: Graph | RelationalGraph, rows: LocalRows, group: ProcessGroup
) -> Iterator[Piece]:
    """Yield the pieces of `split_graph` that this process writes; only one is in memory."""
    readers = group.share(len(rows.nodes))
    halos: dict[str, np.ndarray] = {}
    sizes = [1, 0, 1, 1]  # edges, edges from the halo, pairs of both kinds
    for reader in readers:
        local, cols = _edges_into(graph, rows.nodes[reader])
        halo = nodes_by_owner(rows, [cols], {reader})
        halos[f"ids{reader}"] = np.concatenate(halo).astype(np.int32)
        halos[f"sizes{reader}"] = np.array([len(ids) for ids in halo])
        part_sizes = [len(cols), int((rows.parts[cols] != reader).sum())]
        if isinstance(graph, RelationalGraph):
            part_sizes += _count_pairs(graph, local, cols)
        sizes = list(map(max, sizes, [*part_sizes, 1, 1]))
        del local, cols
    gathered = group.gather(sizes=sizes, **halos)
    num_edges, num_halo_edges, *num_pairs = np.max([arrays["sizes"] for arrays in gathered], 0)
    ids = collections.ChainMap(*gathered)
    routes = Routes.of(
        [
            np.split(ids[f"ids{reader}"], np.cumsum(ids[f"sizes{reader}"])[:-1])
            for reader in range(len(rows.nodes))
        ],
        rows,
    )
    del halos, gathered, ids

    def piece(reader: int) -> Piece:
        local = _edges_into(graph, rows.nodes[reader])[0]
        part = routes.local_graph(reader, graph, local, int(num_edges), rows.capacity)
        if isinstance(part, RelationalGraph):
            part = pad_pairs(part, np.array(num_pairs))
        return Piece.of([routes.part(reader, graph, part, "", int(num_halo_edges))])

    yield from map(piece, readers)
