"""Tuned calls of sums over typed edges, and the methods to measure for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jax_gnn import RelationalGraph, relational_aggregate
from jax_gnn._ops.relational_aggregate.api import counts_of
from jax_gnn._ops.relational_aggregate.schedule import (
    FAMILY,
    METHODS,
    Counts,
    RelationalSchedule,
    expected,
)
from jax_gnn._tuning import measure
from jax_gnn._tuning.measure import numbers

OPS = ("relational_aggregate",)


@dataclass(frozen=True, eq=False)
class Call(measure.Call[RelationalSchedule]):
    """Sum over a graph's edges, which have weights."""

    graph: RelationalGraph
    width: int
    dtype: str

    family = FAMILY
    kernel = OPS[0]

    @property
    def counts(self) -> Counts:
        """Counts of the graph, by which the family chooses a schedule."""
        shape = self.graph.num_relations, self.width, self.width
        weights = jax.eval_shape(lambda: jnp.zeros(shape, self.dtype))
        return counts_of(self.graph, weights)

    @property
    def shape(self) -> dict[str, Any]:
        """Arguments by which the family chooses a schedule."""
        return self.counts._asdict()

    def candidates(self) -> list[RelationalSchedule]:
        """Return a schedule for each method."""
        return [RelationalSchedule(method) for method in METHODS]

    def effective(self, schedule: RelationalSchedule) -> RelationalSchedule:
        """Replace a method for which the graph lacks parts by that of the rule."""
        return schedule if schedule.method in expected(self.counts) else self.rule()

    def operands(self) -> tuple[Any, ...]:
        """Return the graph, features, weights of relations and of edges."""
        graph, dtype, width = self.graph, jnp.dtype(self.dtype), self.width
        weights = numbers((graph.num_relations * width, width), dtype)
        return (
            graph,  # an operand, as each executable would have its own copy of a constant
            numbers((graph.num_src, width), dtype),
            weights.reshape(graph.num_relations, width, width),
            numbers((graph.num_edges,), jnp.promote_types(dtype, jnp.float32)),
        )

    def function(
        self, graph: RelationalGraph, x: jax.Array, rhs: jax.Array, weight: jax.Array
    ) -> jax.Array:
        """Sum over the edges of the graph."""
        return relational_aggregate(graph, x, rhs, weight)
