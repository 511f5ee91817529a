"""Files of parts from chunks of edges, for graphs that no process has room for.

Edges are dealt out to files by ranges of destinations, each of which is sorted in memory. Together
they are the rows of the graph, in the order of `Graph.from_edges`, as a memory map; parts are made
of it one at a time.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.files import as_path
from jax_gnn._core.ids import MAX_SIZE, pad_ids
from jax_gnn._core.public import public
from jax_gnn.graph import Graph, host_arrays
from jax_gnn.sharding._exchange import Exchange
from jax_gnn.sharding._files import NodeValues, write_parts
from jax_gnn.sharding._partition import Adjacency, SplitArgs, partition_nodes
from jax_gnn.sharding._split import (
    LocalEdges,
    LocalRows,
    Piece,
    Routes,
    local_graph,
    make_part,
    nodes_by_owner,
)

_READ_EDGES, _RANGES = 1 << 22, 256  # edges of a chunk of a file, ranges of destinations

EdgeSource = str | os.PathLike[str] | tuple[ArrayLike, ArrayLike]
"""A file of edges, or their sources and destinations."""


@public
def save_edge_parts(
    folder: str | os.PathLike[str],
    edges: Iterable[EdgeSource],
    num_nodes: int,
    num_parts: int,
    method: Literal["contiguous", "hash"] | ArrayLike = "contiguous",
    *,
    nodes: NodeValues | None = None,
) -> None:
    """Write the files of `save_parts` from chunks of edges, in the memory of one part.

    The files are those of `save_parts` of the graph of all edges, bit for bit. Memory holds about
    ten numbers for each edge of the largest part, four for each node, and the ids of all halos.
    Edges take 12 bytes each of temporary files in ``folder``. Host only; one process calls this.

    Args:
        folder: folder to write to, as of `save_parts`.
        edges: chunks in any order, read once: pairs ``(src, dst)`` of ``(count,)`` integers; paths
            of ``.npy`` files of ``(2, count)`` integers, sources first; paths of Parquet files,
            whose first two columns are sources and destinations (needs `pyarrow`).
        num_nodes: number of nodes.
        num_parts: number of parts, at least the number of devices that load them.
        method: "contiguous" or "hash", as of :func:`partition`; or ``(num_nodes,)`` integers.
        nodes: as of `save_parts`.

    Raises:
        ImportError: a file is of Parquet, and `pyarrow` is not installed.
        TypeError: ids are no integers, or an argument has the wrong type.
        ValueError: an id is out of range, an array has another shape, there are more parts than
            nodes, the method is another one, or there are 2³¹ edges or nodes or more.
        OSError: a file cannot be read, or the folder not be written to.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> save_edge_parts(folder, [([0, 1], [1, 0]), ([2], [0])], num_nodes=3, num_parts=2)
        >>> sorted(os.listdir(folder))
        ['0.npz', '1.npz', 'plan.npz']
    """
    path = as_path("folder", folder)
    num_nodes = arguments.check_integer("num_nodes", num_nodes)
    num_parts = arguments.check_integer("num_parts", num_parts)
    if not 1 <= num_parts <= num_nodes <= MAX_SIZE:
        raise ValueError(
            f"num_parts must be 1 to num_nodes, below 2³¹, got {num_parts} and {num_nodes}"
        )
    if isinstance(method, str):
        arguments.check_choice("method", method, ("contiguous", "hash"))
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path, prefix="edges-") as temporary, host_arrays():
        graph = _graph_on_disk(edges, num_nodes, Path(temporary))
        if isinstance(method, str):
            adjacency: Any = graph.indptr, graph.cols, graph.t_indptr, graph.t_cols
            method = partition_nodes(Adjacency(*adjacency), num_parts, method)
        parts = SplitArgs.parse(graph, num_parts, method).node_parts
        rows = LocalRows.of(parts, num_parts, np.dtype(np.int32))
        write_parts(path, graph, _pieces(graph, rows), rows.places, nodes, None)


# --- Edges ---------------------------------------------------------------------------------------


def _chunks(edges: Iterable[EdgeSource]) -> Iterator[tuple[ArrayLike, ArrayLike]]:
    """Yield sources and destinations of files and pairs."""
    for source in edges:
        if isinstance(source, tuple):
            if len(source) != 2:
                raise ValueError(f"edges must be of pairs (src, dst), got {len(source)} arrays")
            yield source
        elif Path(source).suffix == ".npy":
            array = np.load(source, mmap_mode="r")
            if array.ndim != 2 or len(array) != 2:
                raise ValueError(f"edges must be (2, count) in {source}, got shape {array.shape}")
            for start in range(0, array.shape[1], _READ_EDGES):
                src, dst = array[:, start : start + _READ_EDGES]
                yield src, dst
        else:
            try:
                from pyarrow import parquet
            except ImportError as error:
                raise ImportError(f"edges in {source} need pyarrow: pip install pyarrow") from error
            with parquet.ParquetFile(source) as file:
                for batch in file.iter_batches(_READ_EDGES, columns=file.schema.names[:2]):
                    src, dst = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
                    yield src, dst


def _graph_on_disk(edges: Iterable[EdgeSource], num_nodes: int, folder: Path) -> Graph:
    """Return the rows of a graph, whose sources are a memory map; it has no transpose."""
    # A file has the keys of a range of destinations: its ids are the upper words of the keys.
    width, num_edges = -(-num_nodes // _RANGES), 0
    buckets = [folder / f"{i}.keys" for i in range(-(-num_nodes // width))]
    for src, dst in _chunks(edges):
        senders, receivers = arguments.check_pairs("edges[0]", src, "edges[1]", dst)
        arguments.check_range("edges[0]", senders, "num_nodes", num_nodes)
        arguments.check_range("edges[1]", receivers, "num_nodes", num_nodes)
        keys = receivers << 32 | senders
        num_edges += len(keys)
        if num_edges > MAX_SIZE:
            raise ValueError("edges must be below 2³¹, as parts number them by int32")
        keys.sort()
        stops = np.searchsorted(keys, np.arange(1, len(buckets)) * width << 32)
        for bucket, bucket_keys in zip(buckets, np.split(keys, stops), strict=True):
            if len(bucket_keys):
                with bucket.open("ab") as file:
                    bucket_keys.tofile(file)
    degrees = np.zeros(num_nodes + 1, np.int32)  # the first element is before all nodes
    with (folder / "cols").open("wb") as output:
        for bucket in buckets:
            if bucket.exists():
                keys = np.fromfile(bucket, np.int64)
                bucket.unlink()
                keys.sort()
                keys.astype(np.int32).tofile(output)
                keys >>= 32
                first = int(keys[0])
                counts = np.bincount(keys - first)
                degrees[first + 1 : first + 1 + len(counts)] += counts.astype(np.int32)
    indptr: Any = np.cumsum(degrees, dtype=np.int32)
    empty: Any = np.zeros(0, np.int32)
    cols: Any = np.memmap(folder / "cols", np.int32, "r") if num_edges else empty
    rows: Any = np.broadcast_to(np.int32(0), num_edges)  # only its length is read
    count: Any = np.asarray(num_edges, np.int32)
    edge_ids: Any = None  # the order is the graph's
    return Graph(indptr, rows, cols, indptr, empty, empty, empty, edge_ids, None, None, count)


# --- Parts ---------------------------------------------------------------------------------------


def _edges_into(graph: Graph, nodes: np.ndarray) -> tuple[LocalEdges, np.ndarray]:
    """Return the edges into some nodes, and their sources; unmap the pages of other nodes."""
    if isinstance(graph.cols, np.memmap):
        graph.cols._mmap.madvise(mmap.MADV_DONTNEED)
    return LocalEdges.into(graph, nodes)


def _pieces(graph: Graph, rows: LocalRows) -> Iterator[Piece]:
    """Yield the pieces of `split_graph`, of which only one is in memory."""
    halos, num_edges, num_halo_edges = [], 1, 0
    for reader, nodes in enumerate(rows.nodes):
        cols = _edges_into(graph, nodes)[1]
        halo = nodes_by_owner(rows, [cols], {reader})
        halos.append([ids.astype(np.int32) for ids in halo])
        num_edges = max(num_edges, len(cols))
        num_halo_edges = max(num_halo_edges, int((rows.parts[cols] != reader).sum()))
        del cols
    routes, capacity = Routes.of(halos, rows), rows.capacity
    del halos

    def piece(reader: int) -> Piece:
        sources, send = routes.sources[reader], routes.send[reader]
        local = _edges_into(graph, rows.nodes[reader])[0]
        padding = num_edges - len(local.places)
        local = LocalEdges(pad_ids(local.places, padding), local.degrees)
        num_sources = capacity + len(send)
        part = local_graph(graph, local, routes.rows_of(reader), num_sources, capacity)
        exchange = Exchange(send, routes.rounds, "", capacity)
        whole = make_part(graph, part, sources, exchange, num_halo_edges)
        return Piece.of([(whole, sources)])

    yield from map(piece, range(len(rows.nodes)))
