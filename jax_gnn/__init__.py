"""GNN kernels for JAX: CUDA and CPU custom calls, differentiable to any order."""

from jax_gnn._ffi import implementation
from jax_gnn._version import __version__
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.hypergraph_aggregate import hypergraph_aggregate

__all__ = ["Graph", "Hypergraph", "__version__", "hypergraph_aggregate", "implementation"]
