"""Explanations of a model's output: attribution to features and edges, fidelity, pictures."""

from jax_gnn.insight._attribute import Attribution, attribute
from jax_gnn.insight._fidelity import Fidelity, fidelity
from jax_gnn.insight._plot import plot_neighborhood

__all__ = ["Attribution", "Fidelity", "attribute", "fidelity", "plot_neighborhood"]
