"""Pieces of consecutive parts as one piece, for fewer devices than parts; all in numpy.

Edges between merged parts become local, and the exchange is planned again. The result is that of
`split_graph` for the parts of the devices, bit for bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_gnn._core.ids import PADDING, take_ids
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph, edges_of
from jax_gnn.sampling import fetch_rows
from jax_gnn.sharding._parts import HypergraphPart, RelationalPart, graphs_of
from jax_gnn.sharding._split import LocalEdges, LocalRows, Piece, Routes, nodes_by_owner


class Ends(NamedTuple):
    """The nodes of a piece, without its edges: what all devices' pieces are planned by."""

    own_ids: tuple[np.ndarray, ...]  # ids of own nodes; of a hypergraph also of own hyperedges
    halo_ids: tuple[np.ndarray, ...]  # as of `Piece`
    starts: tuple[np.ndarray, ...]  # for each exchange, the graph's ``t_indptr``

    @classmethod
    def of(cls, piece: Piece) -> Ends:
        """Return the nodes of a piece."""
        own_ids: tuple[Any, ...] = (piece.node_ids,)
        if isinstance(piece.part, HypergraphPart):
            own_ids += (piece.part.hyperedge_ids,)
        starts: Any = tuple(graph.t_indptr for graph in graphs_of(piece.part))
        return cls(own_ids, piece.halo_ids, starts)


class _Exchanged(NamedTuple):
    """Plan of one exchange of the merged pieces."""

    dst: LocalRows  # rows of destinations: nodes, or hyperedges of the exchange to them
    src: LocalRows  # rows of sources
    routes: Routes
    num_edges: int  # largest number of edges of a device
    num_halo_edges: int  # largest number of edges from the halo

    @classmethod
    def of(
        cls, dst: LocalRows, src: LocalRows, halos: Sequence[Sequence[tuple[np.ndarray, ...]]]
    ) -> _Exchanged:
        """Plan an exchange from ``halo_ids`` and ``starts`` of each part of each device."""
        needed, num_edges, num_halo_edges = [], 1, 0
        for device, parts in enumerate(halos):
            ids = np.concatenate([halo for halo, _ in parts])
            # Slots without an edge have rows that are relayed, or none.
            counts = np.concatenate([np.diff(starts[-1 - len(halo) :]) for halo, starts in parts])
            ids, counts = ids[counts > 0], counts[counts > 0]
            needed.append(nodes_by_owner(src, [ids], {device}))
            num_edges = max(num_edges, sum(int(starts[-1]) for _, starts in parts))
            num_halo_edges = max(num_halo_edges, int(counts[src.parts[ids] != device].sum()))
        return cls(dst, src, Routes.of(needed, src), num_edges, num_halo_edges)

    def merged(
        self, device: int, edges: list[np.ndarray], part: Any, axis: str
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """Return the part of a device, its sources' ids, and edges' places among the given ones.

        Args:
            device: position of the device in the axis.
            edges: for each merged part ``(3, num_edges)``, sources, destinations and edge ids; or
                ``(4, num_edges)``, with relations. The list is emptied.
            part: one of the merged parts.
            axis: name of the mesh axis.
        """
        array = np.concatenate(edges, 1)
        edges.clear()
        order = np.argsort(array[2], kind="stable")  # the order of the whole graph
        cols, nodes, ids, *types = array[:, order]
        del array
        degrees = np.bincount(self.dst.rows[nodes], minlength=len(self.dst.nodes[device]))
        empty: Any = np.zeros(0, ids.dtype)
        indptr: Any = np.zeros(len(self.src.parts) + 1, ids.dtype)
        whole: Any = Graph(indptr, cols, cols, indptr, empty, empty, empty, empty)
        if types:
            arrays = {field.name: getattr(part, field.name) for field in fields(RelationalGraph)}
            arrays |= {"nodes": whole, "edge_types": types[0]}
            if part.node_types is not None:
                arrays["node_type_sizes"] = part.whole_type_sizes
            whole = RelationalGraph(**arrays)
        sorted_edges = LocalEdges(np.arange(len(ids), dtype=ids.dtype), degrees.astype(ids.dtype))
        routes, sizes = self.routes, (self.num_edges, self.dst.capacity)
        local: Any = routes.local_graph(device, whole, sorted_edges, *sizes)
        graph = edges_of(local)
        places = take_ids(order, graph.edge_ids)
        graph = graph._renumbered(ids, edges_of(part).num_input_edges)
        local = replace(local, nodes=graph) if types else graph
        return (*routes.part(device, whole, local, axis, self.num_halo_edges), places)


class Merge(NamedTuple):
    """Plan by which the parts of each device are merged."""

    device_of: np.ndarray  # (num_parts,), the device of each part
    own: tuple[LocalRows, ...]  # rows of nodes, and of hyperedges if there are any
    exchanges: tuple[_Exchanged, ...]

    @classmethod
    def of(cls, ends: Sequence[Ends], num_devices: int) -> Merge:
        """Deal consecutive parts out to devices, and plan their exchanges."""
        device_of = np.arange(len(ends)) * num_devices // len(ends)

        def rows(ids: Sequence[np.ndarray]) -> LocalRows:
            valid = [part_ids[part_ids != PADDING] for part_ids in ids]
            parts = np.empty(sum(map(len, valid)), np.int64)
            for part_ids, device in zip(valid, device_of, strict=True):
                parts[part_ids] = device
            return LocalRows.of(parts, num_devices, ids[0].dtype)

        own = tuple(map(rows, zip(*(part.own_ids for part in ends), strict=True)))
        pairs = [(own[0], own[0])] if len(own) == 1 else [(own[1], own[0]), (own[0], own[1])]
        exchanges = []
        for i, (dst, src) in enumerate(pairs):
            halos: list[list[Any]] = [[] for _ in range(num_devices)]
            for part, device in zip(ends, device_of, strict=True):
                halos[device].append((part.halo_ids[i], part.starts[i]))
            exchanges.append(_Exchanged.of(dst, src, halos))
        return cls(device_of, own, tuple(exchanges))

    def merged(self, device: int, pieces: Iterable[Piece], axis: str) -> Piece:
        """Return the piece of a device from those of its parts, of which one is in memory.

        Pairs of relational graphs are not padded.
        """
        template: Any = None
        edges: list[list[np.ndarray]] = [[] for _ in self.exchanges]
        values: list[Any] = []  # of own nodes, and of own hyperedges if there are any
        edge_values: list[Any] = []

        def add(piece: Piece) -> None:
            nonlocal template, values
            template, (own_ids, halo_ids, _) = piece.part, Ends.of(piece)
            part_values = (piece.node_values, piece.edge_values)[: len(own_ids)]
            values = values or list(map(_zeros, part_values, self.own))
            for total, rows, ids, new in zip(values, self.own, own_ids, part_values, strict=True):
                jax.tree.map(partial(_put, rows.rows[ids[ids != PADDING]]), total, new)
            for i, graph in enumerate(graphs_of(piece.part)):
                count = int(graph.indptr[-1])
                sources = np.concatenate([own_ids[i], halo_ids[i]])
                arrays = [sources[graph.cols[:count]], own_ids[-1 - i][graph.rows[:count]]]
                arrays.append(np.asarray(graph.edge_ids[:count]))
                if isinstance(piece.part, RelationalPart):
                    arrays.append(np.asarray(piece.part.edge_types[:count]))
                edges[i].append(np.stack(arrays))
            if len(own_ids) == 1:
                num_edges = edges[0][-1].shape[1]
                edge_values.append(jax.tree.map(lambda rows: rows[:num_edges], piece.edge_values))

        deque(map(add, pieces), 0)  # keeps no piece while the next one is read
        graphs = []
        for i, exchange in enumerate(self.exchanges):
            part = getattr(template, ("into", "back")[i], template)
            graph, sources, places = exchange.merged(device, edges[i], part, axis)
            graphs.append((graph, sources))
        if len(values) == 1:
            values.append(
                jax.tree.map(lambda *rows: fetch_rows(np.concatenate(rows), places), *edge_values)
            )
        return Piece.of(graphs, getattr(template, "num_whole_hyperedges", 0), *values)


def _zeros(values: Any, rows: LocalRows) -> Any:
    """Return zeros for the values of a device's rows."""
    shape = (rows.capacity,)
    return jax.tree.map(lambda array: np.zeros(shape + array.shape[1:], array.dtype), values)


def _put(rows: np.ndarray, total: np.ndarray, values: np.ndarray) -> None:
    """Write the first values to rows of the total, in place."""
    total[rows] = values[: len(rows)]
