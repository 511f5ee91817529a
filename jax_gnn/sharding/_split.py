"""Splitting a graph: what each part has, and what it sends to others; all in numpy."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from jax_gnn._core.ids import PADDING, id_count, in_range, pad_ids, pad_indptr, take_ids
from jax_gnn._core.triples import sort_by_source
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import PARTS, RelationalGraph
from jax_gnn.sampling._rows import fetch_rows
from jax_gnn.sharding._exchange import Exchange, rounds_of, shares_of
from jax_gnn.sharding._parts import HypergraphPart, Part, RelationalPart, edges_of


def square_of(whole: Graph | RelationalGraph | Hypergraph, *, joined: bool) -> Graph:
    """The graph that is partitioned for the sake of another; its first nodes are those of that.

    Of a hypergraph, each incidence is an edge both ways between a node and a hyperedge, which is a
    node, too; or if these are not to be joined, from the node to itself.
    """
    if not isinstance(whole, Hypergraph):
        return edges_of(whole)
    nodes, hyperedges = whole.graph.cols, whole.graph.rows
    if not joined:
        return Graph.from_edges(nodes, nodes, num_nodes=whole.num_nodes, validate=False)
    size = whole.num_nodes + whole.num_hyperedges
    others = np.where(hyperedges < 0, PADDING, hyperedges + whole.num_nodes)
    ends = np.concatenate([nodes, others]), np.concatenate([others, nodes])
    return Graph.from_edges(*ends, num_nodes=size, validate=False)


def hyperedge_parts(hypergraph: Hypergraph, parts: Any, num_parts: int) -> Any:
    """The part of each hyperedge: that of most of its nodes, of equal ones any."""
    nodes, hyperedges, size = (
        hypergraph.graph.cols,
        hypergraph.graph.rows,
        hypergraph.num_hyperedges,
    )
    valid = in_range(nodes, hypergraph.num_nodes) & in_range(hyperedges, size)
    nodes, hyperedges = nodes[valid], hyperedges[valid]
    # Of hyperedge e the parts are looked at from e on, so that equal ones are chosen in turn.
    turned = (parts[nodes] - hyperedges) % num_parts
    members = np.bincount(
        hyperedges.astype(np.int64) * num_parts + turned, minlength=size * num_parts
    )
    return (members.reshape(size, num_parts).argmax(1) + np.arange(size)) % num_parts


class Piece(NamedTuple):
    """What one device has of a graph, on the host.

    Attributes:
        part: see `ShardedGraph.part`.
        node_ids: ``(capacity,)``, likewise.
        values: by name, values of its nodes and edges.
    """

    part: Part | RelationalPart | HypergraphPart
    node_ids: Any
    values: dict[str, Any]


def pieces_of(
    whole: Any,
    num_parts: int,
    axis: str,
    parts: Any,
    of_hyperedges: Any = None,
) -> tuple[list[Piece], Any]:
    """The pieces of a graph of any kind, and the place of each node in the rows of all of them."""
    pieces, how = [], (num_parts, axis)
    if isinstance(whole, Hypergraph):
        into, _ = split_arrays(whole.graph, of_hyperedges, *how, parts)
        back, places = split_arrays(whole.graph.transpose(), parts, *how, of_hyperedges)
        for (first, nodes), (second, hyperedges) in zip(into, back, strict=True):
            own = hyperedges[: first.num_dst]
            made = HypergraphPart(first, second, own, whole.num_hyperedges)
            pieces.append(Piece(made, nodes[: second.num_dst], {}))
        return pieces, places
    of_nodes, places = split_arrays(whole, parts, *how)
    for part, sources in of_nodes:
        pieces.append(Piece(part, sources[: part.num_dst], {}))
    return pieces, places


def _part(whole: Any, graph: Any, sources: Any, exchange: Exchange, num_far: int) -> Any:
    """A graph as a part; any has so many edges from the halo at most."""
    kept = {each.name: getattr(graph, each.name) for each in fields(graph)}
    if isinstance(graph, Graph):
        return Part(**kept, exchange=exchange, num_far=num_far)
    sizes = whole.node_type_sizes
    if sizes is not None:
        types = np.repeat(np.arange(len(sizes), dtype=sources.dtype), sizes)
        types = pad_ids(types, whole.num_nodes - len(types))
        kept["node_types"] = take_ids(types, sources[: graph.num_dst])
        kept["whole_type_sizes"] = sizes
    kept |= {"node_ids": sources, "num_whole_nodes": whole.num_nodes}
    return RelationalPart(**kept, exchange=exchange)


def split_arrays(
    whole: Graph | RelationalGraph,
    parts: Any,
    num_parts: int,
    axis: str,
    src_parts: Any = None,
) -> tuple[list[Any], Any]:
    """Each part and its sources; the places of all nodes. All in numpy, parts by threads.

    Of a bipartite graph sources have parts of their own, and places are those of destinations.
    """
    graph: Any = edges_of(whole)
    dtype = graph.indptr.dtype
    own, local, capacity = _owned(parts, num_parts, dtype)
    own_src, local_src, room = own, local, capacity
    if src_parts is not None:
        own_src, local_src, room = _owned(src_parts, num_parts, dtype)

    def read(reader: int) -> tuple[Any, Any, list[Any]]:
        edges, degrees, cols = _edges_into(graph, own[reader])
        return edges, degrees, _halo(cols, own_src, reader)

    with ThreadPoolExecutor(min(num_parts, os.cpu_count() or 1)) as pool:
        edges_into, degrees, halos = map(list, zip(*pool.map(read, range(num_parts)), strict=True))
        wanted = np.array([[len(ids) for ids in halo] for halo in halos]).T
        rounds = rounds_of(wanted)
        slots = sum(each.slots(num_parts) for each in rounds)
        send = np.full((num_parts, slots), PADDING, dtype)
        sources = np.full((num_parts, room + slots), PADDING, dtype)
        # Parts have no arrays of no rows, which crash XLA of jaxlib 0.11 on several GPUs.
        most_edges = max(1, *map(len, edges_into))

        def with_sources(reader: int) -> tuple[Any, Any, Any]:
            place = local_src.copy()  # of each node, where it is a source
            sources[reader, : len(own_src[reader])] = own_src[reader]
            for owner, ids in enumerate(halos[reader]):
                for share in shares_of(rounds, num_parts, owner, reader, len(ids)):
                    sent, at = ids[share.start : share.stop], room + share.receiver
                    send[owner, share.sender : share.sender + len(sent)] = local_src[sent]
                    place[sent] = np.arange(at, at + len(sent))
                    sources[reader, at : at + len(sent)] = sent
            count = len(edges_into[reader])
            edges, edges_into[reader] = pad_ids(edges_into[reader], most_edges - count), None
            src = fetch_rows(place, fetch_rows(graph.cols, edges))
            src[count:] = PADDING
            return edges, src, degrees[reader]

        sizes = room + slots, capacity
        graphs = [
            _with_edges(whole, *each, *sizes) for each in pool.map(with_sources, range(num_parts))
        ]
    if isinstance(whole, RelationalGraph):  # parts have as many pairs as the one with most
        most = {
            name: max(1, *(getattr(each, name) for each in graphs))
            for name in ("num_src_pairs", "num_dst_pairs")
            if getattr(whole, name) is not None
        }
        graphs = [each.pad(**most) for each in graphs]
    outs = [edges_of(each).t_indptr for each in graphs]
    num_far = max(int(out[-1] - out[room]) for out in outs)
    made = []
    for row, made_of, ids in zip(send, graphs, sources, strict=True):
        part = _part(whole, made_of, ids, Exchange(row, rounds, axis, room), num_far)
        made.append((part, ids))
    return made, (parts.astype(np.int64) * capacity + local).astype(dtype)


def _owned(parts: Any, num_parts: int, dtype: Any) -> tuple[list[Any], Any, int]:
    """The nodes of each part, the row that each has there, and room for those of any part."""
    parts = parts.astype(np.min_scalar_type(num_parts))  # which numpy sorts by counting
    sizes = np.bincount(parts, minlength=num_parts)
    own = np.split(np.argsort(parts, kind="stable"), np.cumsum(sizes)[:-1])
    local = np.empty(len(parts), dtype)
    for ids in own:
        local[ids] = np.arange(len(ids))
    return own, local, int(sizes.max(initial=1))


def _with_edges(whole: Any, edges: Any, src: Any, degrees: Any, num_src: int, num_dst: int) -> Any:
    """Some edges of a graph, which have other ends now, as a bipartite graph of its kind.

    They are by destination, of which each has as many as ``degrees`` says, and stay in that order
    among those of one relation. ``edges`` are the places that they had; the rest is padding.
    """
    count = int(degrees.sum())
    ids = np.arange(len(degrees) + 1, dtype=src.dtype)
    ids[-1] = PADDING
    dst: Any = np.repeat(ids, np.append(degrees, len(edges) - count))
    input_edges = id_count(edges_of(whole).rows, src.dtype)
    if isinstance(whole, Graph):
        starts = np.concatenate([[0], np.cumsum(degrees)]).astype(src.dtype)
        indptr = pad_indptr(starts, num_dst - len(degrees))
        transposed = sort_by_source(dst, src, count, num_src)
        return Graph(indptr, dst, src, *transposed, edges, num_input_edges=input_edges)
    made = RelationalGraph.from_triples(
        *(src, take_ids(whole.edge_types, edges), dst),
        num_relations=whole.num_relations,
        num_src=num_src,
        num_dst=num_dst,
        validate=False,
        parts=tuple(part for part in PARTS if getattr(whole, part) is not None),
    )
    edge_ids = take_ids(edges, made.nodes.edge_ids)
    return replace(
        made,
        nodes=replace(made.nodes, edge_ids=edge_ids, num_input_edges=input_edges),
        node_type_names=whole.node_type_names,
        relation_names=whole.relation_names,
        self_relation=whole.self_relation,
    )


def _edges_into(graph: Any, nodes: Any) -> tuple[Any, Any, Any]:
    """The places of the edges into some nodes, in the graph's order; how many each has; sources."""
    starts, degrees = graph.indptr[nodes], np.diff(graph.indptr)[nodes]
    places = np.repeat(starts - (np.cumsum(degrees, dtype=degrees.dtype) - degrees), degrees)
    places += np.arange(len(places), dtype=places.dtype)
    cols = graph.cols[places]
    is_edge = in_range(cols, graph.num_src)
    if not is_edge.all():
        places, cols = places[is_edge], cols[is_edge]
        rows = np.repeat(np.arange(len(nodes)), degrees)[is_edge]
        degrees = np.bincount(rows, minlength=len(nodes)).astype(degrees.dtype)
    return places, degrees, cols


def _halo(cols: Any, own_src: list[Any], reader: int) -> list[Any]:
    """The sources of edges that are of other parts, of each part."""
    is_source = np.zeros(sum(map(len, own_src)), bool)
    is_source[cols] = True
    is_source[own_src[reader]] = False
    return [ids[is_source[ids]] for ids in own_src]
