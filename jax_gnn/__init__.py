"""GNN kernels for JAX: CUDA and CPU custom calls, differentiable to any order."""

from jax_gnn._ffi import export_checks, implementation
from jax_gnn._version import __version__
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.hypergraph_aggregate import (
    HypergraphNorm,
    hyperedge_to_node,
    hypergraph_aggregate,
    hypergraph_norm,
    incidence_softmax,
    node_to_hyperedge,
)
from jax_gnn.segment_matmul import segment_matmul, segment_outer
from jax_gnn.segment_reduce import (
    SegmentIndex,
    segment_argmax,
    segment_logsumexp,
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_softmax,
    segment_std,
    segment_sum,
    segment_var,
)
from jax_gnn.spmm import index_segment_reduce, sddmm, spmm
from jax_gnn.type_plan import TypePlan

EXPORT_CHECKS = export_checks()  # of all primitives, which are defined by now
del export_checks

__all__ = [
    "EXPORT_CHECKS",
    "Graph",
    "Hypergraph",
    "HypergraphNorm",
    "SegmentIndex",
    "TypePlan",
    "__version__",
    "hyperedge_to_node",
    "hypergraph_aggregate",
    "hypergraph_norm",
    "implementation",
    "incidence_softmax",
    "index_segment_reduce",
    "node_to_hyperedge",
    "sddmm",
    "segment_argmax",
    "segment_logsumexp",
    "segment_matmul",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_outer",
    "segment_prod",
    "segment_softmax",
    "segment_std",
    "segment_sum",
    "segment_var",
    "spmm",
]
