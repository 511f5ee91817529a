"""Schedules of kernels, to force one for a block of code: see ``docs/tuning.md``."""

from jax_gnn._core.schedule import use
from jax_gnn._ops.attention.schedule import AttentionSchedule
from jax_gnn._ops.hypergraph_aggregate.schedule import HypergraphSchedule
from jax_gnn._ops.relational_aggregate.schedule import RelationalSchedule
from jax_gnn._ops.segment_matmul.schedule import MatmulSchedule
from jax_gnn._ops.segment_reduce.schedule import Schedule

__all__ = [
    "AttentionSchedule",
    "HypergraphSchedule",
    "MatmulSchedule",
    "RelationalSchedule",
    "Schedule",
    "use",
]
