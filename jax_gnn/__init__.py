"""GNN kernels for JAX: CUDA and CPU custom calls, differentiable to any order."""

import jax_gnn.sampling  # noqa: F401 (an attribute of the package, and the ops that it calls)
from jax_gnn._core.ffi import implementation, shared_library
from jax_gnn._core.op import export_checks
from jax_gnn._ops.attention.api import additive_attention, dot_attention, gatv2_attention
from jax_gnn._ops.hypergraph_aggregate.api import (
    HypergraphNorm,
    hyperedge_to_node,
    hypergraph_aggregate,
    hypergraph_norm,
    incidence_softmax,
    node_to_hyperedge,
)
from jax_gnn._ops.relational_aggregate.api import relational_aggregate, relational_lookup
from jax_gnn._ops.relational_attention.api import hgt_attention, rgat_attention
from jax_gnn._ops.relational_attention.weights import HGTWeights, RelationMaps, RGATWeights
from jax_gnn._ops.segment_matmul.api import segment_matmul, segment_outer
from jax_gnn._ops.segment_matmul.type_plan import TypePlan
from jax_gnn._ops.segment_reduce.api import (
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
from jax_gnn._ops.segment_reduce.index import SegmentIndex
from jax_gnn._ops.spmm.api import index_segment_reduce, sddmm, spmm
from jax_gnn._program.api import Program, program
from jax_gnn._program.lift import Lifted, lift
from jax_gnn._program.trace import Edge, Global, Node, NodeType, Relation
from jax_gnn._saving import load, save
from jax_gnn._version import __version__
from jax_gnn.batches import Batch, batch, batch_budget, pack, unbatch
from jax_gnn.graph import Graph, host_arrays
from jax_gnn.hetero import HeteroGraph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph

# The imports above define all primitives, whose custom calls `jax.export` refuses by default.
EXPORT_CHECKS = export_checks()
"""Checks of `jax.export` to disable for programs with these ops: `disabled_checks`."""
del export_checks

__all__ = [
    "EXPORT_CHECKS",
    "Batch",
    "Edge",
    "Global",
    "Graph",
    "HGTWeights",
    "HeteroGraph",
    "Hypergraph",
    "HypergraphNorm",
    "Lifted",
    "Node",
    "NodeType",
    "Program",
    "RGATWeights",
    "Relation",
    "RelationMaps",
    "RelationalGraph",
    "SegmentIndex",
    "TypePlan",
    "__version__",
    "additive_attention",
    "batch",
    "batch_budget",
    "dot_attention",
    "gatv2_attention",
    "hgt_attention",
    "host_arrays",
    "hyperedge_to_node",
    "hypergraph_aggregate",
    "hypergraph_norm",
    "implementation",
    "incidence_softmax",
    "index_segment_reduce",
    "lift",
    "load",
    "node_to_hyperedge",
    "pack",
    "program",
    "relational_aggregate",
    "relational_lookup",
    "rgat_attention",
    "save",
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
    "shared_library",
    "spmm",
    "unbatch",
]
