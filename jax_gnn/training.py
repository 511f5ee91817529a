"""Former place of training, which is in `flax_layers` now."""

raise ImportError("jax_gnn.training is flax_layers.training now", name=__name__)
