"""Where training was, before it stood above the layers."""

raise ImportError("jax_gnn.training is flax_layers.training now", name=__name__)
