"""Flax NNX layers over the operations of `jax_gnn`."""

from flax_layers.hypergraph import HGNN, HGNNConv

__all__ = ["HGNN", "HGNNConv"]
