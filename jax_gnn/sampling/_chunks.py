"""All nodes with all their neighbours, in chunks of one shape."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, in_range, is_traced, namespace, row_ids, take_ids, to_device
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._blocks import Blocks, Drawn
from jax_gnn.sampling._native import distinct
from jax_gnn.sampling._relational import Relations
from jax_gnn.sampling._rows import one_kind


@public
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
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
    num_rows: int = dataclasses.field(metadata={"static": True})
    num_edges: int = dataclasses.field(metadata={"static": True})

    def __len__(self) -> int:
        return self.starts.shape[0] - 1

    def block(self, number: Any) -> Blocks:
        """One chunk, as blocks of a single layer whose seeds are its nodes.

        Of a graph on the host, only the chunk's part of it is moved to the device.

        Args:
            number: from 0, below the number of chunks; it may be traced.

        Returns:
            Blocks of one graph, of ``num_rows`` destinations and ``num_edges`` edges, with
            relations if the whole graph has these. Its ``edge_ids`` are in the whole graph's order.
        """
        types = relations = None
        graph, starts = self.graph, self.starts
        if isinstance(graph, RelationalGraph):
            types, relations, graph = graph.edge_types, Relations.of(graph), graph.nodes
        if is_traced(number):
            starts = jnp.asarray(starts)
        xp = namespace(graph.indptr, starts)
        dtype, num_nodes, num_whole = graph.indptr.dtype, graph.num_dst, graph.num_edges
        first, stop = starts[number], starts[number + 1]
        nodes = first + xp.arange(self.num_rows, dtype=dtype)
        nodes = xp.where(nodes < xp.minimum(stop, num_nodes), nodes, PADDING)
        ends = xp.clip(first + xp.arange(self.num_rows + 1, dtype=dtype), 0, stop)
        bounds = xp.clip(graph.indptr[ends], 0, num_whole)
        # Whatever indptr holds, rows lie one behind the other.
        ascends = np.maximum.accumulate if xp is np else jax.lax.cummax
        indptr = xp.clip(ascends(bounds) - bounds[0], 0, self.num_edges).astype(dtype)
        edges = xp.arange(self.num_edges, dtype=dtype)
        places = xp.where(edges < indptr[-1], bounds[0] + edges, PADDING).astype(dtype)
        types = None if types is None else take_ids(types, places)
        found = to_device((nodes, indptr, places, take_ids(graph.cols, places), types))
        return _block(*found, num_nodes, num_whole, relations)

    def joined(self, rows: Array) -> Array:
        """Rows of chunks as rows of nodes.

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
    """Divides the nodes of a graph into chunks, for a layer after another over all nodes.

    A model's layer needs of a chunk all edges into its nodes, and the features of their sources.
    Nodes of a chunk are consecutive. All chunks have one shape, so that a layer is compiled once.

    Args:
        graph: of one kind of nodes, perhaps with relations; outside ``jax.jit``, as chunks follow
            from the degrees. Of the host (:func:`jax_gnn.host_arrays`) it stays there.
        num_edges: about how many edges a chunk has: at most so many, but for a node that has more.

    Returns:
        The chunks, of which each node is in one.

    Raises:
        TypeError: ``graph`` is something else, or ``num_edges`` is no integer.
        ValueError: ``num_edges`` is not positive, or the graph is bipartite or traced.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> chunks = node_chunks(graph, 2)
        >>> len(chunks), chunks.block(1)
        (2, Blocks(num_seeds=2, graphs=[4 -> 2], num_edges=[2]))
    """
    if not isinstance(graph, RelationalGraph):
        arguments.check_instance("graph", graph, Graph)
    whole = graph.check()
    graph = whole.nodes if isinstance(whole, RelationalGraph) else whole
    num_edges = arguments.check_integer("num_edges", num_edges)
    if num_edges < 1:
        raise ValueError(f"num_edges must be positive, got {num_edges}")
    one_kind(graph)
    if is_traced(graph.indptr):
        raise ValueError("graph must be known, as chunks follow from degrees, got a traced one")
    num_nodes, num_whole = graph.num_dst, graph.num_edges
    ends = np.maximum.accumulate(np.clip(np.asarray(graph.indptr), 0, num_whole))
    room = min(max(num_edges, int(np.diff(ends).max(initial=0))), num_whole)
    # As many nodes as have so many edges on average, so that neither room is left empty.
    share = -(-num_nodes * num_edges // max(num_whole, 1))
    rows = max(1, min(num_nodes, num_edges, share))
    starts = [0]
    while starts[-1] < num_nodes:
        first = starts[-1]
        fits = int(np.searchsorted(ends, ends[first] + room, side="right")) - 1
        starts.append(max(first + 1, min(first + rows, fits, num_nodes)))
    found: Any = np.array(starts, ends.dtype)
    on_host = isinstance(graph.indptr, np.ndarray)
    return NodeChunks(whole, found if on_host else to_device(found), rows, room)


@jax.jit(static_argnums=(5, 6, 7))
def _block(
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
    there = in_range(cols, num_nodes) & (places >= 0)
    rows = jnp.where(places >= 0, row_ids(indptr, num_edges), PADDING)
    drawn = Drawn(indptr, rows, places, jnp.where(there, cols, PADDING))
    room = num_rows + min(num_edges, num_nodes)
    graph, sources, overflow = distinct(nodes, drawn, num_whole, num_nodes, room)
    if relations is None or types is None:
        return Blocks((graph,), sources, overflow)
    typed = relations.block(graph, jnp.where(graph.rows < 0, PADDING, types))
    return Blocks((typed,), sources, overflow, node_type_sizes=relations.type_sizes)
