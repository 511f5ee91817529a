"""Chunks of a graph's nodes with all their neighbours, at one shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import STATIC
from jax_gnn._core.ids import PADDING, in_range, is_traced, namespace, row_ids, take_ids, to_device
from jax_gnn._core.public import public
from jax_gnn._ops.sample_block.api import chunk_block
from jax_gnn._ops.sample_block.xla import DrawnEdges
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph, edges_of
from jax_gnn.sampling._blocks import Blocks
from jax_gnn.sampling._compile import jit
from jax_gnn.sampling._relational import Relations
from jax_gnn.sampling._rows import check_positive, num_nodes_of
from jax_gnn.sampling._search import check_graph_kind


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NodeChunks:
    """The nodes of a graph in chunks, each with all edges into its nodes: see `node_chunks`.

    Attributes:
        graph: the whole graph.
        starts: ``(num_chunks + 1,)`` ids: chunk i has the nodes from ``starts[i]`` to before
            ``starts[i + 1]``.
        num_rows: room for nodes of a chunk.
        num_edges: room for edges of a chunk.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> chunks = node_chunks(graph, 2)
        >>> chunks.starts, chunks.num_edges
        (Array([0, 2, 4], dtype=int32), 2)
        >>> sources = [chunks.block(i).node_ids for i in range(len(chunks))]
    """

    graph: Graph | RelationalGraph
    starts: Array
    num_rows: int = field(metadata=STATIC)
    num_edges: int = field(metadata=STATIC)

    def __len__(self) -> int:
        return int(self.starts.shape[0]) - 1

    def block(self, number: int | Array) -> Blocks:
        """Return one chunk, as blocks of a single layer whose seeds are its nodes.

        If the graph is on the host, only the chunk's edges are moved to the device.

        Args:
            number: number of the chunk, from 0; it may be traced.

        Returns:
            Blocks of one graph, of ``num_rows`` destinations and ``num_edges`` edges, with
            relations if the whole graph has these. Its ``edge_ids`` are in the whole graph's order.
        """
        types = relations = None
        graph, starts = self.graph, self.starts
        if isinstance(graph, RelationalGraph):
            types, relations, graph = graph.edge_types, Relations.from_graph(graph), graph.nodes
        if is_traced(number):
            starts = jnp.asarray(starts)
        xp = namespace(graph.indptr, starts)
        dtype, num_nodes, num_whole = graph.indptr.dtype, graph.num_dst, graph.num_edges
        first, stop = starts[number], starts[number + 1]
        nodes = first + xp.arange(self.num_rows, dtype=dtype)
        nodes = xp.where(nodes < xp.minimum(stop, num_nodes), nodes, PADDING)
        rows = xp.clip(first + xp.arange(self.num_rows + 1, dtype=dtype), 0, stop)
        bounds = xp.clip(graph.indptr[rows], 0, num_whole)
        # Row pointers ascend, whatever the graph's indptr holds.
        running_maximum: Any = np.maximum.accumulate if xp is np else jax.lax.cummax
        indptr = running_maximum(bounds) - bounds[0]
        indptr = xp.clip(indptr, 0, self.num_edges).astype(dtype)
        edges = xp.arange(self.num_edges, dtype=dtype)
        places = xp.where(edges < indptr[-1], bounds[0] + edges, PADDING).astype(dtype)
        types = None if types is None else take_ids(types, places)
        arrays = to_device((nodes, indptr, places, take_ids(graph.cols, places), types))
        nodes, indptr, places, cols, types = arrays
        return _chunk_blocks(nodes, indptr, places, cols, types, num_nodes, num_whole, relations)

    def joined(self, rows: Array) -> Array:
        """Return rows of chunks as rows of nodes.

        Args:
            rows: ``(num_chunks, num_rows, …)``, a row for each node of each chunk.

        Returns:
            ``(num_nodes, …)``.
        """
        nodes = jnp.arange(self.graph.num_nodes, dtype=self.starts.dtype)
        starts = jnp.asarray(self.starts)
        chunk = row_ids(starts, nodes.shape[0])
        flat = rows.reshape(len(self) * self.num_rows, *rows.shape[2:])
        return flat[chunk * self.num_rows + nodes - starts[chunk]]


@public
def node_chunks(graph: Graph | RelationalGraph, num_edges: int = 2**20) -> NodeChunks:
    """Divide the nodes of a graph into chunks, to apply one layer after another to all nodes.

    A model's layer needs all edges into a chunk's nodes, and the features of their sources. Nodes
    of a chunk are consecutive. All chunks have one shape, so that a layer is compiled once.

    Args:
        graph: graph of one kind of nodes, perhaps with relations; outside ``jax.jit``, as chunks
            depend on the degrees. A graph of the host (:func:`jax_gnn.host_arrays`) stays there.
        num_edges: largest number of edges of a chunk, unless a single node has more.

    Returns:
        The chunks; each node is in one.

    Raises:
        ValueError: ``num_edges`` is not positive, or the graph is bipartite or traced.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> chunks = node_chunks(graph, 2)
        >>> len(chunks), chunks.block(1)
        (2, Blocks(num_seeds=2, graphs=[4 -> 2], num_edges=[2]))
    """
    graph = check_graph_kind(graph)
    edges = edges_of(graph)
    num_edges = check_positive("num_edges", num_edges)
    num_nodes, num_whole = num_nodes_of(edges), edges.num_edges
    if is_traced(edges.indptr):
        raise ValueError("graph must be known, as chunks follow from degrees, got a traced one")
    stops = np.maximum.accumulate(np.clip(np.asarray(edges.indptr), 0, num_whole))
    room = min(max(num_edges, int(np.diff(stops).max(initial=0))), num_whole)
    # As many nodes as have `num_edges` edges on average, so that both rooms are filled.
    average = -(-num_nodes * num_edges // max(num_whole, 1))
    num_rows = max(1, min(num_nodes, num_edges, average))
    starts = [0]
    while starts[-1] < num_nodes:
        first = starts[-1]
        limit = int(np.searchsorted(stops, stops[first] + room, side="right")) - 1
        starts.append(max(first + 1, min(first + num_rows, limit, num_nodes)))
    array: Any = np.array(starts, stops.dtype)
    on_host = isinstance(edges.indptr, np.ndarray)
    return NodeChunks(graph, array if on_host else to_device(array), num_rows, room)


@jit("num_nodes", "num_whole", "relations")
def _chunk_blocks(
    nodes: Array,
    indptr: Array,
    places: Array,
    cols: Array,
    types: Array | None,
    num_nodes: int,
    num_whole: int,
    relations: Relations | None,
) -> Blocks:
    num_rows, num_edges = nodes.shape[0], places.shape[0]
    valid = in_range(cols, num_nodes) & (places >= 0)
    rows = jnp.where(places >= 0, row_ids(indptr, num_edges), PADDING)
    drawn = DrawnEdges(indptr, rows, places, jnp.where(valid, cols, PADDING))
    num_src = num_rows + min(num_edges, num_nodes)
    graph, sources, overflow = chunk_block(nodes, drawn, num_whole, num_nodes, num_src)
    if relations is None or types is None:
        return Blocks((graph,), sources, overflow)
    typed = relations.block(graph, jnp.where(graph.rows < 0, PADDING, types))
    return Blocks((typed,), sources, overflow, node_type_sizes=relations.type_sizes)
