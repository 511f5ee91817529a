"""Flax NNX layers over the operations of `jax_gnn`."""

from flax_layers._base import LinearOptions, Stack
from flax_layers.graph import GCN, GIN, SAGE, GCNConv, GINConv, SAGEConv, gcn_norm
from flax_layers.hypergraph import HGNN, HGNNConv
from flax_layers.typed import TypedLinear

__all__ = [
    "GCN",
    "GIN",
    "HGNN",
    "SAGE",
    "GCNConv",
    "GINConv",
    "HGNNConv",
    "LinearOptions",
    "SAGEConv",
    "Stack",
    "TypedLinear",
    "gcn_norm",
]
