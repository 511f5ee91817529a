"""What is tuned of the hypergraph aggregation: calls, and the schedules that are worth trying."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_gnn import hypergraph_aggregate
from jax_gnn._ops.hypergraph_aggregate.schedule import FAMILY, HypergraphSchedule
from jax_gnn._tuning.measure import numbers
from jax_gnn._tuning.timing import Kernel
from jax_gnn.hypergraph import Hypergraph

OPS = ("hypergraph_aggregate",)

_THREADS = (64, 128, 256)
_ROUNDS = (1, 2, 4, 8)


class Call(NamedTuple):
    """What is measured: the aggregation over a hypergraph, with scales on all sides."""

    hypergraph: Hypergraph
    width: int
    dtype: str

    @property
    def shape(self) -> dict[str, Any]:
        """What schedules are chosen by."""
        return {
            "incidences": self.hypergraph.num_incidences,
            "nodes": self.hypergraph.num_nodes,
            "hyperedges": self.hypergraph.num_hyperedges,
            "width": self.width,
            "itemsize": jnp.dtype(self.dtype).itemsize,
        }

    @property
    def key(self) -> str:
        """In the cache."""
        return FAMILY.key(*OPS, **self.shape)

    def rule(self) -> HypergraphSchedule:
        """What the rule says, whatever is in the cache."""
        return FAMILY.rule(*OPS, **self.shape)

    def candidates(self) -> list[HypergraphSchedule]:
        """Blocks of several sizes, and any rounds."""
        return [HypergraphSchedule(*each) for each in itertools.product(_THREADS, _ROUNDS, _ROUNDS)]

    def effective(self, schedule: HypergraphSchedule) -> HypergraphSchedule:
        """The same for all schedules that come to the same."""
        return schedule

    def operands(self) -> tuple[Any, ...]:
        """The hypergraph, features, and the scales of nodes and of hyperedges."""
        graph, dtype = self.hypergraph, jnp.dtype(self.dtype)
        acc = jnp.promote_types(dtype, jnp.float32)
        return (
            graph,  # as a constant every executable would have its own
            numbers((graph.num_nodes, self.width), dtype),
            numbers((graph.num_nodes,), acc),
            numbers((graph.num_hyperedges,), acc),
        )

    def function(
        self,
        hypergraph: Hypergraph,
        x: jax.Array,
        node_scale: jax.Array,
        hyperedge_scale: jax.Array,
    ) -> jax.Array:
        """What is timed, of the operands."""
        return hypergraph_aggregate(
            hypergraph,
            x,
            node_scale_in=node_scale,
            node_scale_out=node_scale,
            hyperedge_scale=hyperedge_scale,
        )


def stage_seconds(kernels: list[Kernel]) -> tuple[float, float]:
    """What each sum of a call takes; the second has begun, and waits, when the first one ends.

    Raises:
        RuntimeError: There are not two sums.
    """
    sums = [kernel for kernel in kernels if "sum_kernel" in kernel.name]
    if len(sums) != 2:
        names = [kernel.name for kernel in kernels]
        raise RuntimeError(f"expected the kernels of two sums, the profile shows {names}")
    first, second = sums
    return (first.end - first.begin) * 1e-9, (second.end - first.end) * 1e-9
