"""Edges that take no part in a draw, though the graph has them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.ids import take_ids
from jax_gnn.graph import Graph
from jax_gnn.sampling._native import uniform
from jax_gnn.sampling._search import edge_runs


class LeftOut(NamedTuple):
    """Edges that take no part: runs of the places that they have in the graph, ascending.

    Attributes:
        starts: ``(runs,)``, where they start; runs that there are not start behind all edges.
        before: ``(runs + 1,)``, how many edges are in the runs before.
    """

    starts: Array
    before: Array

    def draw(
        self, starts: Array, degrees: Array, fanout: int, key: Any, stream: int, *, replace: bool
    ) -> tuple[Array, Array]:
        """:func:`jax_gnn.sampling._native.uniform` of what is left of rows, which start there."""
        ahead = self.ahead_of(starts)
        left = jnp.clip(degrees - self.ahead_of(starts + degrees) + ahead, 0, degrees)
        offsets, counts = uniform(left, fanout, key, stream, replace=replace)
        return self.place_of((starts - ahead)[:, None] + offsets) - starts[:, None], counts

    def ahead_of(self, place: Array) -> Array:
        """How many are ahead of a place between two runs."""
        return self.before[jnp.searchsorted(self.starts, place)]

    def place_of(self, number: Array) -> Array:
        """Where the edge is that has this number among those which take part."""
        return (
            number
            + self.before[jnp.searchsorted(self.starts - self.before[:-1], number, side="right")]
        )


def left_out(
    graph: Graph, types: Array | None, src: Array, dst: Array, rel: Array | None
) -> LeftOut:
    """All edges between given ends, of given relations; an edge may be named several times."""
    dtype, num_edges = graph.indptr.dtype, graph.num_edges
    first, counts = edge_runs(graph, types, src, dst, rel)
    starts = take_ids(graph.t_order, jnp.where(counts > 0, first, -1))
    starts = jnp.where((starts >= 0) & (starts < num_edges), starts, num_edges)
    starts, counts = jax.lax.sort((starts, counts.astype(dtype)), num_keys=1)
    again = jnp.concatenate([jnp.zeros(1, bool), starts[1:] == starts[:-1]])[: starts.shape[0]]
    starts = jnp.where(again, num_edges, starts)
    counts = jnp.where(starts < num_edges, counts, 0)
    starts, counts = jax.lax.sort((starts, counts), num_keys=1)
    before = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(counts, dtype=dtype)])
    return LeftOut(starts, before)
