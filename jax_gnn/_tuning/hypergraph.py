"""Tuned calls of the hypergraph aggregation, and the schedules to measure for them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jax_gnn import hypergraph_aggregate
from jax_gnn._ops.hypergraph_aggregate.schedule import FAMILY, HypergraphSchedule
from jax_gnn._tuning import measure
from jax_gnn._tuning.measure import numbers
from jax_gnn.hypergraph import Hypergraph

OPS = ("hypergraph_aggregate",)

_THREADS = (64, 128, 256)
_ROUNDS = (1, 2, 4, 8)


@dataclass(frozen=True, eq=False)
class Call(measure.Call[HypergraphSchedule]):
    """Aggregation over a hypergraph, with scales on all sides."""

    hypergraph: Hypergraph
    width: int
    dtype: str

    family = FAMILY
    kernel = OPS[0]

    @property
    def shape(self) -> dict[str, Any]:
        """Arguments by which the family chooses a schedule."""
        sizes = "incidences", "nodes", "hyperedges"
        shape = {name: getattr(self.hypergraph, f"num_{name}") for name in sizes}
        return {**shape, "width": self.width, "itemsize": self.itemsize}

    def candidates(self) -> list[HypergraphSchedule]:
        """Return schedules with blocks of several sizes, and any rounds."""
        fields = itertools.product(_THREADS, _ROUNDS, _ROUNDS)
        return [HypergraphSchedule(*values) for values in fields]

    def operands(self) -> tuple[Any, ...]:
        """Return the hypergraph, features, and the scales of nodes and of hyperedges."""
        graph, dtype = self.hypergraph, jnp.dtype(self.dtype)
        scale_dtype = jnp.promote_types(dtype, jnp.float32)
        return (
            graph,  # an operand, as each executable would have its own copy of a constant
            numbers((graph.num_nodes, self.width), dtype),
            numbers((graph.num_nodes,), scale_dtype),
            numbers((graph.num_hyperedges,), scale_dtype),
        )

    def function(self, *operands: Any) -> jax.Array:
        """Aggregate features over the hypergraph."""
        hypergraph, x, node_scale, scale = operands
        scales = {"node_scale_in": node_scale, "node_scale_out": node_scale}
        return hypergraph_aggregate(hypergraph, x, hyperedge_scale=scale, **scales)
