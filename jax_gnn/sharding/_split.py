"""Splits of a graph into the pieces of its devices; all in numpy.

The *owner* of a node is its part. The *halo* of a part is the nodes of other parts with an edge
into it: their rows are sent to it, and come last among its sources.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from jax_gnn._core.ids import PADDING, in_range, pad_ids, pad_indptr
from jax_gnn._ops.relation_pairs.triples import sort_by_source, sort_triples
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import PARTS, RelationalGraph, edges_of
from jax_gnn.sampling import fetch_rows
from jax_gnn.sharding._exchange import Exchange, plan_rounds, plan_shares
from jax_gnn.sharding._partition import SplitArgs
from jax_gnn.sharding._parts import HypergraphPart, Part, RelationalPart


class Piece(NamedTuple):
    """Piece of a split graph for one device, in numpy."""

    part: Part | RelationalPart | HypergraphPart  # the device's part of `ShardedGraph.part`
    node_ids: np.ndarray  # (capacity,), the device's row of `ShardedGraph.node_ids`
    values: Mapping[str, object]  # values of the device's nodes and edges, by name


class LocalRows(NamedTuple):
    """Rows of the nodes on their devices: the nodes of a part have its first rows, ascending."""

    parts: np.ndarray  # (num_nodes,), the part of each node
    nodes: list[np.ndarray]  # for each part, its nodes
    rows: np.ndarray  # (num_nodes,), the row of each node on its device
    capacity: int  # largest number of nodes of a part

    @classmethod
    def of(cls, parts: np.ndarray, num_parts: int, dtype: np.dtype) -> LocalRows:
        """Number the nodes of each part."""
        parts = parts.astype(np.min_scalar_type(num_parts))  # numpy sorts small types by counting
        sizes = np.bincount(parts, minlength=num_parts)
        nodes = np.split(np.argsort(parts, kind="stable"), np.cumsum(sizes)[:-1])
        rows = np.empty(len(parts), dtype)
        for ids in nodes:
            rows[ids] = np.arange(len(ids))
        return cls(parts, nodes, rows, int(sizes.max(initial=1)))

    @property
    def places(self) -> np.ndarray:
        """``(num_nodes,)``, the row of each node in the concatenated rows of all devices."""
        places = self.parts.astype(np.int64) * self.capacity + self.rows
        return np.asarray(places, self.rows.dtype)


def split_graph(args: SplitArgs, axis: str) -> tuple[list[Piece], np.ndarray]:
    """Split a graph into the pieces of its parts; return these, and `ShardedGraph.places`."""
    graph, num_parts = args.graph, args.num_parts
    dtype = (graph.graph if isinstance(graph, Hypergraph) else edges_of(graph)).indptr.dtype
    rows = LocalRows.of(args.node_parts, num_parts, dtype)
    if not isinstance(graph, Hypergraph):
        # Nodes are sources and destinations: one numbering serves both.
        parts = _split_edges(graph, rows, rows, axis)
        return [Piece(part, ids[: part.num_dst], {}) for part, ids in parts], rows.places
    assert args.hyperedge_parts is not None
    hyperedge_rows = LocalRows.of(args.hyperedge_parts, num_parts, dtype)
    into_hyperedges = _split_edges(graph.graph, hyperedge_rows, rows, axis)
    into_nodes = _split_edges(graph.graph.transpose(), rows, hyperedge_rows, axis)
    pieces = []
    for (to_hyperedges, nodes), (to_nodes, hyperedges) in zip(
        into_hyperedges, into_nodes, strict=True
    ):
        ids: Any = hyperedges[: to_hyperedges.num_dst]
        part = HypergraphPart(to_hyperedges, to_nodes, ids, graph.num_hyperedges)
        pieces.append(Piece(part, nodes[: to_nodes.num_dst], {}))
    return pieces, rows.places


def _split_edges(
    graph: Graph | RelationalGraph, dst: LocalRows, src: LocalRows, axis: str
) -> list[tuple[Any, np.ndarray]]:
    """Return each part and the ids of its sources; threads make parts at the same time."""
    edges, num_parts = edges_of(graph), len(dst.nodes)
    dtype = edges.indptr.dtype

    def read(reader: int) -> tuple[LocalEdges, list[np.ndarray]]:
        local, cols = LocalEdges.into(edges, dst.nodes[reader])
        return local, _halo(cols, src.nodes, reader)

    with ThreadPoolExecutor(min(num_parts, os.cpu_count() or 1)) as pool:
        local_edges, halos = map(list, zip(*pool.map(read, range(num_parts)), strict=True))
        rounds = plan_rounds(np.array([[len(ids) for ids in halo] for halo in halos]).T)
        slots = sum(step.slots(num_parts) for step in rounds)
        send = np.full((num_parts, slots), PADDING, dtype)
        sources = np.full((num_parts, src.capacity + slots), PADDING, dtype)
        # Arrays of no rows crash XLA of jaxlib 0.11 on several GPUs: parts have an edge at least.
        num_edges = max(1, *(len(local.places) for local in local_edges))

        def build(reader: int) -> Graph | RelationalGraph:
            # Own nodes keep their rows; nodes of the halo get the rows of their slots.
            row_of = src.rows.copy()  # of each node among the reader's sources
            sources[reader, : len(src.nodes[reader])] = src.nodes[reader]
            for owner, ids in enumerate(halos[reader]):
                for share in plan_shares(rounds, num_parts, owner, reader, len(ids)):
                    nodes, start = ids[share.start : share.stop], src.capacity + share.receiver
                    send[owner, share.sender : share.sender + len(nodes)] = src.rows[nodes]
                    row_of[nodes] = np.arange(start, start + len(nodes))
                    sources[reader, start : start + len(nodes)] = nodes
            places, degrees = local_edges[reader]
            local = LocalEdges(pad_ids(places, num_edges - len(places)), degrees)
            local_edges[reader] = None  # its memory is needed for other parts
            return _local_graph(graph, local, row_of, src.capacity + slots, dst.capacity)

        graphs = list(pool.map(build, range(num_parts)))
    if isinstance(graph, RelationalGraph):
        capacities = {
            name: max(1, *(getattr(local, name) for local in graphs))
            for name in ("num_src_pairs", "num_dst_pairs")
            if getattr(graphs[0], name) is not None
        }
        graphs = [local.pad(**capacities) for local in graphs]
    # Sorted by source, edges from the halo come last.
    pointers = [edges_of(local).t_indptr for local in graphs]
    num_halo_edges = max(int(starts[-1] - starts[src.capacity]) for starts in pointers)
    parts = []
    for reader, local in enumerate(graphs):
        exchange = Exchange(send[reader], rounds, axis, src.capacity)
        part = _part(graph, local, sources[reader], exchange, num_halo_edges)
        parts.append((part, sources[reader]))
    return parts


class LocalEdges(NamedTuple):
    """Edges into the nodes of a part, in the order of the graph."""

    places: np.ndarray  # (num_edges,), the position of each edge in the graph; -1 is padding
    degrees: np.ndarray  # (num_own,), number of edges into each node

    @classmethod
    def into(cls, graph: Graph, nodes: np.ndarray) -> tuple[LocalEdges, np.ndarray]:
        """Return the edges into some nodes, and their sources."""
        indptr, cols = np.asarray(graph.indptr), np.asarray(graph.cols)
        starts, degrees = indptr[nodes], np.diff(indptr)[nodes]
        offsets = np.cumsum(degrees, dtype=degrees.dtype) - degrees
        places = np.repeat(starts - offsets, degrees)
        places += np.arange(len(places), dtype=places.dtype)
        cols = cols[places]
        is_edge = in_range(cols, graph.num_src)
        if not is_edge.all():  # padding between edges, of graphs that were put together by hand
            places, cols = places[is_edge], cols[is_edge]
            rows = np.repeat(np.arange(len(nodes)), degrees)[is_edge]
            degrees = np.bincount(rows, minlength=len(nodes)).astype(degrees.dtype)
        return cls(places, degrees), cols


def _halo(cols: np.ndarray, nodes: list[np.ndarray], reader: int) -> list[np.ndarray]:
    """Return, for each owner, its nodes among the sources of the reader's edges."""
    is_source = np.zeros(sum(map(len, nodes)), bool)
    is_source[cols] = True
    is_source[nodes[reader]] = False
    return [ids[is_source[ids]] for ids in nodes]


def _local_graph(
    graph: Graph | RelationalGraph,
    local: LocalEdges,
    row_of: np.ndarray,
    num_src: int,
    num_dst: int,
) -> Graph | RelationalGraph:
    """Return edges of a graph as a bipartite graph of the same class, between local rows.

    ``row_of`` has the local row of each source; ``num_dst`` includes padding.
    """
    edges, (places, degrees) = edges_of(graph), local
    count = int(degrees.sum())
    src = fetch_rows(row_of, fetch_rows(np.asarray(edges.cols), places))
    src[count:] = PADDING
    types = None if isinstance(graph, Graph) else np.asarray(graph.edge_types)
    rel = None if types is None else fetch_rows(types, places)
    ids = np.arange(len(degrees) + 1, dtype=src.dtype)
    ids[-1] = PADDING
    dst = np.repeat(ids, np.append(degrees, len(places) - count))
    num_input_edges: Any = np.asarray(len(edges.rows), src.dtype)
    if rel is None or isinstance(graph, Graph):
        starts = np.concatenate([[0], np.cumsum(degrees)]).astype(src.dtype)
        by_dst: Any = pad_indptr(starts, num_dst - len(degrees)), dst, src
        by_src = sort_by_source(dst, src, count, num_src)
        arrays = (*by_dst, *by_src, places, None, None, num_input_edges)
        return Graph(*arrays)
    triples = sort_triples(
        src.astype(np.int64),
        rel.astype(np.int64),
        dst.astype(np.int64),
        num_src=num_src,
        num_dst=num_dst,
        num_relations=graph.num_relations,
    )
    # Places of padding are -1, which picks the element that is appended here.
    edge_ids: Any = np.append(places, places.dtype.type(PADDING))[triples.edge_ids]
    arrays = (*triples[:7], edge_ids, None, None, num_input_edges)
    without_pairs = RelationalGraph(
        Graph(*arrays),
        triples.types,
        num_relations=graph.num_relations,
        self_relation=graph.self_relation,
        node_type_names=graph.node_type_names,
        relation_names=graph.relation_names,
    )
    return without_pairs.with_parts(*(part for part in PARTS if getattr(graph, part) is not None))


def _part(
    graph: Graph | RelationalGraph,
    local: Graph | RelationalGraph,
    sources: np.ndarray,
    exchange: Exchange,
    num_halo_edges: int,
) -> Part | RelationalPart:
    """Return a local graph of `_local_graph` as a part."""
    arrays = {field.name: getattr(local, field.name) for field in fields(local)}
    if isinstance(graph, Graph):
        return Part(**arrays, exchange=exchange, num_far=num_halo_edges)
    sizes = graph.node_type_sizes
    if sizes is not None:
        types = np.repeat(np.arange(len(sizes), dtype=sources.dtype), sizes)
        # Nodes past the types are padding, as is the id -1, which picks the last element.
        types = pad_ids(types, graph.num_nodes + 1 - len(types))
        arrays["node_types"] = types[sources[: local.num_dst]]
        arrays["whole_type_sizes"] = sizes
    arrays |= {"node_ids": sources, "num_whole_nodes": graph.num_nodes}
    return RelationalPart(**arrays, exchange=exchange)
