"""Splits of a graph into the pieces of its devices; all in numpy.

The *owner* of a node is its part. The *halo* of a part is the nodes of other parts with an edge
into it: their rows are sent to it, and come last among its sources.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from jax_gnn._core.ids import PADDING, in_range, pad_ids, pad_indptr
from jax_gnn._ops.relation_pairs.triples import sort_by_source, sort_triples
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph, edges_of
from jax_gnn.sampling import fetch_rows
from jax_gnn.sharding._exchange import (
    DEVICES_PER_HOST,
    Exchange,
    Round,
    plan_rounds,
    plan_shares,
    time_rounds,
)
from jax_gnn.sharding._partition import SplitArgs
from jax_gnn.sharding._parts import HypergraphPart, Part, RelationalPart

G = TypeVar("G", bound=RelationalGraph)


class Piece(NamedTuple):
    """Piece of a split graph for one device, in numpy."""

    part: Part | RelationalPart | HypergraphPart  # the device's part of `ShardedGraph.part`
    node_ids: np.ndarray  # (capacity,), the device's row of `ShardedGraph.node_ids`
    halo_ids: tuple[np.ndarray, ...]  # for each exchange (slots,), the id that arrives in each slot
    node_values: Mapping[str, Any]  # values of the device's nodes, by name
    edge_values: Mapping[str, Any]  # values of the device's edges or hyperedges, by name

    @classmethod
    def of(
        cls,
        graphs: Sequence[tuple[Any, np.ndarray]],
        num_hyperedges: int = 0,
        node_values: Mapping[str, Any] | None = None,
        edge_values: Mapping[str, Any] | None = None,
    ) -> Piece:
        """Make a piece of the part of a graph and the ids of its sources; a hypergraph has two."""
        own = [ids[: part.exchange.num_own] for part, ids in graphs]
        halo_ids = tuple(ids[part.exchange.num_own :] for part, ids in graphs)
        part = graphs[0][0]
        if len(graphs) == 2:
            part = HypergraphPart(part, graphs[1][0], own[1], num_hyperedges)  # type: ignore[arg-type]
        return cls(part, own[0], halo_ids, node_values or {}, edge_values or {})


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
        return [Piece.of([part]) for part in parts], rows.places
    assert args.hyperedge_parts is not None
    hyperedge_rows = LocalRows.of(args.hyperedge_parts, num_parts, dtype)
    into_hyperedges = _split_edges(graph.graph, hyperedge_rows, rows, axis)
    into_nodes = _split_edges(graph.graph.transpose(), rows, hyperedge_rows, axis)
    graphs = zip(into_hyperedges, into_nodes, strict=True)
    pieces = [Piece.of(pair, graph.num_hyperedges) for pair in graphs]
    return pieces, rows.places


def _split_edges(
    graph: Graph | RelationalGraph, dst: LocalRows, src: LocalRows, axis: str
) -> list[tuple[Any, np.ndarray]]:
    """Return each part and the ids of its sources; threads make parts at the same time."""
    edges, num_parts = edges_of(graph), len(dst.nodes)

    def read(reader: int) -> tuple[LocalEdges, list[np.ndarray]]:
        local, cols = LocalEdges.into(edges, dst.nodes[reader])
        return local, nodes_by_owner(src, [cols], {reader})

    with ThreadPoolExecutor(min(num_parts, os.cpu_count() or 1)) as pool:
        local_edges, halos = map(list, zip(*pool.map(read, range(num_parts)), strict=True))
        routes = Routes.of(halos, src)
        # Arrays of no rows crash XLA of jaxlib 0.11 on several GPUs: parts have an edge at least.
        num_edges = max(1, *(len(local.places) for local in local_edges))

        def build(reader: int) -> Graph | RelationalGraph:
            local, local_edges[reader] = local_edges[reader], None  # others need its memory
            return routes.local_graph(reader, graph, local, num_edges, dst.capacity)

        graphs = list(pool.map(build, range(num_parts)))
    if isinstance(graph, RelationalGraph):
        relational = cast("list[RelationalGraph]", graphs)
        capacities = np.max([[1, 1], *map(num_pairs, relational)], 0)
        graphs = [pad_pairs(local, capacities) for local in relational]
    # Sorted by source, edges from the halo come last.
    pointers = [edges_of(local).t_indptr for local in graphs]
    num_halo_edges = max(int(starts[-1] - starts[src.capacity]) for starts in pointers)
    return [routes.part(i, graph, local, axis, num_halo_edges) for i, local in enumerate(graphs)]


def num_pairs(graph: RelationalGraph) -> list[int]:
    """Return the numbers of (source, relation) and (destination, relation) pairs; 0 without any."""
    return [graph.num_src_pairs or 0, graph.num_dst_pairs or 0]


def pad_pairs(graph: G, capacities: np.ndarray) -> G:
    """Pad the pairs of a relational graph, of the kinds that it has."""
    sizes = dict(zip(("num_src_pairs", "num_dst_pairs"), capacities.tolist(), strict=True))
    sizes = {name: size for name, size in sizes.items() if getattr(graph, name) is not None}
    return cast(G, graph.pad(**sizes))


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


def nodes_by_owner(
    src: LocalRows, ids: Sequence[np.ndarray], readers: Collection[int]
) -> list[np.ndarray]:
    """Return, for each owner but the readers, its nodes among lists of nodes, ascending."""
    is_source = np.zeros(len(src.parts), bool)
    for nodes in ids:
        is_source[nodes] = True
    for reader in readers:
        is_source[src.nodes[reader]] = False
    nodes = np.flatnonzero(is_source)
    owners = src.parts[nodes]
    sizes = np.bincount(owners, minlength=len(src.nodes))
    return np.split(nodes[np.argsort(owners, kind="stable")], np.cumsum(sizes)[:-1])


class Routes(NamedTuple):
    """Rows in the slots of all devices."""

    src: LocalRows
    rounds: tuple[Round, ...]
    send: np.ndarray  # (num_parts, slots), as of `Exchange`
    sources: np.ndarray  # (num_parts, capacity + slots), node of each source; -1 is padding

    @classmethod
    def of(cls, halos: list[list[np.ndarray]], src: LocalRows) -> Routes:
        """Plan an exchange of the nodes that each reader needs of each owner.

        Rows go to their readers directly, or by two hops over several hosts, whichever is faster:
        once to each other host, to the device with the owner's position, then within the hosts.
        """
        num_parts, size = len(halos), DEVICES_PER_HOST
        counts = np.array([[len(ids) for ids in halo] for halo in halos]).T
        direct = rounds = plan_rounds(counts)
        if num_parts > size and num_parts % size == 0:
            hosts = [range(start, start + size) for start in range(0, num_parts, size)]
            far = [nodes_by_owner(src, [i for r in host for i in halos[r]], host) for host in hosts]
            to_hosts, within = np.zeros_like(counts), np.zeros_like(counts)
            for host, halo in zip(hosts, far, strict=True):
                for owner in range(num_parts):
                    to_hosts[owner, host[owner % size]] = len(halo[owner])
                within[np.ix_(host, host)] = counts[:, host].reshape(-1, size, size).sum(0)
            np.fill_diagonal(within, 0)
            rails = tuple(tuple(range(i, num_parts, size)) for i in range(size))
            first = plan_rounds(to_hosts, rails)
            second = plan_rounds(within, tuple(map(tuple, hosts)), relays=True)
            if time_rounds(first + second, num_parts) < time_rounds(direct, num_parts):
                rounds = first + second
        slots = sum(step.slots(num_parts) for step in rounds)
        dtype = src.rows.dtype
        sources = np.full((num_parts, src.capacity + slots), PADDING, dtype)
        for part, nodes in enumerate(src.nodes):
            sources[part, : len(nodes)] = nodes
        routes = cls(src, rounds, np.full((num_parts, slots), PADDING, dtype), sources)
        if rounds is direct:
            for (owner, reader), count in np.ndenumerate(counts):
                if count:
                    routes._deal(direct, 0, owner, reader, halos[reader][owner], src.rows)
            return routes
        start = sum(step.slots(num_parts) for step in first)
        for host, halo in zip(hosts, far, strict=True):
            for owner, ids in enumerate(halo):
                routes._deal(first, 0, owner, host[owner % size], ids, src.rows)
            for relay in host:
                row_of = routes.rows_of(relay)
                for reader in host:
                    if reader != relay:
                        ids = np.concatenate(halos[reader][relay % size :: size])
                        routes._deal(second, start, relay, reader, ids, row_of)
        return routes

    def _deal(
        self,
        rounds: tuple[Round, ...],
        slot: int,
        sender: int,
        receiver: int,
        ids: np.ndarray,
        row_of: np.ndarray,
    ) -> None:
        """Deal nodes out to the slots of rounds, whose first slot is ``slot``."""
        for share in plan_shares(rounds, len(self.send), sender, receiver, len(ids)):
            nodes, first = ids[share.start : share.stop], slot + share.sender
            self.send[sender, first : first + len(nodes)] = row_of[nodes]
            first = self.src.capacity + slot + share.receiver
            self.sources[receiver, first : first + len(nodes)] = nodes

    def rows_of(self, part: int) -> np.ndarray:
        """Return ``(num_nodes,)``, the row of each node among a part's sources, if it is there."""
        rows = np.flatnonzero(self.sources[part] >= 0)
        row_of = np.empty_like(self.src.rows)
        row_of[self.sources[part, rows]] = rows
        return row_of

    def local_graph(
        self,
        part: int,
        graph: Graph | RelationalGraph,
        local: LocalEdges,
        num_edges: int,
        num_dst: int,
    ) -> Graph | RelationalGraph:
        """Return edges into a part as a bipartite graph of the same class, between local rows.

        ``num_edges`` and ``num_dst`` include padding.
        """
        edges, degrees, num_src = edges_of(graph), local.degrees, self.sources.shape[1]
        count = int(degrees.sum())
        places = pad_ids(local.places, num_edges - len(local.places))
        src = fetch_rows(self.rows_of(part), fetch_rows(np.asarray(edges.cols), places))
        src[count:] = PADDING
        ids = np.arange(len(degrees) + 1, dtype=src.dtype)
        ids[-1] = PADDING
        dst = np.repeat(ids, np.append(degrees, len(places) - count))
        num_input_edges: Any = np.asarray(len(edges.rows), src.dtype)
        if isinstance(graph, Graph):
            starts = np.concatenate([[0], np.cumsum(degrees)]).astype(src.dtype)
            by_dst: Any = pad_indptr(starts, num_dst - len(degrees)), dst, src
            by_src = sort_by_source(dst, src, count, num_src)
            arrays = (*by_dst, *by_src, places, None, None, num_input_edges)
            return Graph(*arrays)
        types = fetch_rows(np.asarray(graph.edge_types), places)
        sizes = {"num_src": num_src, "num_dst": num_dst, "num_relations": graph.num_relations}
        triples = sort_triples(*(ids.astype(np.int64) for ids in (src, types, dst)), **sizes)
        # Places of padding are -1, which picks the element that is appended here.
        edge_ids: Any = np.append(places, places.dtype.type(PADDING))[triples.edge_ids]
        arrays = (*triples[:7], edge_ids, None, None, num_input_edges)
        changes: Any = dict.fromkeys(("pair_src", "out_of_pairs", "pair_dst", "into_pairs"))
        changes |= {"edge_types": triples.types, "node_type_sizes": None}
        without_pairs = replace(graph, nodes=Graph(*arrays), **changes)
        return without_pairs.with_parts(*graph._parts)

    def part(
        self,
        number: int,
        graph: Graph | RelationalGraph,
        local: Graph | RelationalGraph,
        axis: str,
        num_halo_edges: int,
    ) -> tuple[Part | RelationalPart, np.ndarray]:
        """Return a graph of `local_graph` as a part, and the ids of its sources."""
        sources = self.sources[number]
        arrays: dict[str, Any] = {field.name: getattr(local, field.name) for field in fields(local)}
        arrays["exchange"] = Exchange(self.send[number], self.rounds, axis, self.src.capacity)
        arrays["num_far"] = num_halo_edges
        if isinstance(graph, Graph):
            return Part(**arrays), sources
        sizes = graph.node_type_sizes
        if sizes is not None:
            types = np.repeat(np.arange(len(sizes), dtype=sources.dtype), sizes)
            # Nodes past the types are padding, as is the id -1, which picks the last element.
            types = pad_ids(types, graph.num_nodes + 1 - len(types))
            arrays["node_types"] = types[sources[: local.num_dst]]
            arrays["whole_type_sizes"] = sizes
        arrays |= {"node_ids": sources, "num_whole_nodes": graph.num_nodes}
        return RelationalPart(**arrays), sources
