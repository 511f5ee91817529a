"""What is tuned of sums over typed edges: calls, and the methods for them."""

from __future__ import annotations

from typing import Any, NamedTuple

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
from jax_gnn._tuning.measure import numbers

OPS = ("relational_aggregate",)


class Call(NamedTuple):
    """What is measured: a sum over a graph's edges, which have weights."""

    graph: RelationalGraph
    width: int
    dtype: str

    @property
    def counts(self) -> Counts:
        """What schedules are chosen by."""
        weights = self.graph.num_relations, self.width, self.width
        return counts_of(self.graph, jax.ShapeDtypeStruct(weights, jnp.dtype(self.dtype)))

    @property
    def key(self) -> str:
        """In the cache."""
        return FAMILY.key(*OPS, **self.counts._asdict())

    def rule(self) -> RelationalSchedule:
        """What the rule says, whatever is in the cache."""
        return FAMILY.rule(*OPS, **self.counts._asdict())

    def candidates(self) -> list[RelationalSchedule]:
        """All methods."""
        return [RelationalSchedule(method) for method in METHODS]

    def effective(self, schedule: RelationalSchedule) -> RelationalSchedule:
        """The rule's where the graph lacks the parts for a method."""
        return schedule if schedule.method in expected(self.counts) else self.rule()

    def operands(self) -> tuple[Any, ...]:
        """The graph, features, weights of relations and of edges."""
        graph, dtype, width = self.graph, jnp.dtype(self.dtype), self.width
        weights = numbers((graph.num_relations * width, width), dtype)
        return (
            graph,  # as a constant every executable would have its own
            numbers((graph.num_src, width), dtype),
            weights.reshape(graph.num_relations, width, width),
            numbers((graph.num_edges,), jnp.promote_types(dtype, jnp.float32)),
        )

    def function(
        self, graph: RelationalGraph, x: jax.Array, rhs: jax.Array, weight: jax.Array
    ) -> jax.Array:
        """What is timed, of the operands."""
        return relational_aggregate(graph, x, rhs, weight)
