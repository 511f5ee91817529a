"""Edges of a graph that take no part in draws."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.ids import PADDING, in_range, take_ids
from jax_gnn._core.random_bits import KeyWords
from jax_gnn._ops.sample_block.api import uniform
from jax_gnn.graph import Graph
from jax_gnn.sampling._search import edge_runs


class ExcludedEdges(NamedTuple):
    """Runs of excluded edges, ascending by their places in the graph."""

    starts: Array  # (runs,), first edge of each run; runs of padding start after all edges
    before: Array  # (runs + 1,), number of edges in earlier runs

    def draw(
        self,
        starts: Array,
        degrees: Array,
        fanout: int,
        key: KeyWords,
        stream: int,
        *,
        replace: bool,
    ) -> tuple[Array, Array]:
        """Draw as `uniform` among each row's included edges.

        A draw is a number among the included edges of the whole graph, and then mapped to a place.
        """
        excluded = self.num_excluded_before(starts)
        excluded_in_row = self.num_excluded_before(starts + degrees) - excluded
        included = jnp.clip(degrees - excluded_in_row, 0, degrees)
        offsets, counts = uniform(included, fanout, key, stream, replace=replace)
        return self.nth_included((starts - excluded)[:, None] + offsets) - starts[:, None], counts

    def num_excluded_before(self, place: Array) -> Array:
        """Return the number of excluded edges before a place that is in no run."""
        return self.before[jnp.searchsorted(self.starts, place)]

    def nth_included(self, number: Array) -> Array:
        """Return the place of the edge that has this number among the included edges."""
        numbers = self.starts - self.before[:-1]  # of the first included edge after each run
        return number + self.before[jnp.searchsorted(numbers, number, side="right")]


def exclude_edges(
    graph: Graph, types: Array | None, src: Array, dst: Array, rel: Array | None
) -> ExcludedEdges:
    """Return the runs of all edges between given ends; arguments as of `edge_runs`."""
    dtype, num_edges = graph.indptr.dtype, graph.num_edges
    t_places, counts = edge_runs(graph, types, src, dst, rel)
    starts = take_ids(graph.t_order, jnp.where(counts > 0, t_places, PADDING))
    starts = jnp.where(in_range(starts, num_edges), starts, num_edges)
    starts, counts = jax.lax.sort((starts, counts.astype(dtype)), num_keys=1)
    # An edge may be given several times: its run counts once, at the last of equal starts.
    following = jnp.pad(starts, (0, 1), constant_values=num_edges)[1:]
    counts = jnp.where(starts < following, counts, 0)
    before = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(counts, dtype=dtype)])
    return ExcludedEdges(starts, before)
