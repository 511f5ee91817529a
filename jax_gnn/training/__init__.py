"""Training of node classifiers; needs the extra ``jax-gnn[train]``."""

from jax_gnn.training.checkpoint import load_checkpoint, save_checkpoint
from jax_gnn.training.config import (
    GCNConfig,
    GINConfig,
    HGNNConfig,
    SAGEConfig,
    TrainConfig,
)
from jax_gnn.training.data import check_dataset, node_features
from jax_gnn.training.loop import EpochReport, Run, TrainResult, train
from jax_gnn.training.models import RECIPES, Recipe
from jax_gnn.training.plot import plot_learning_curves

__all__ = [
    "RECIPES",
    "EpochReport",
    "GCNConfig",
    "GINConfig",
    "HGNNConfig",
    "Recipe",
    "Run",
    "SAGEConfig",
    "TrainConfig",
    "TrainResult",
    "check_dataset",
    "load_checkpoint",
    "node_features",
    "plot_learning_curves",
    "save_checkpoint",
    "train",
]
