"""Training of node classifiers; needs the extra ``jax-gnn[train]``."""

from jax_gnn.training.checkpoint import load_checkpoint, save_checkpoint
from jax_gnn.training.config import (
    AllDeepSetsConfig,
    AllSetTransformerConfig,
    GCNConfig,
    GINConfig,
    HGNNConfig,
    HGNNPConfig,
    HypergraphAttentionConfig,
    HypergraphConfig,
    SAGEConfig,
    TrainConfig,
    UniGATConfig,
    UniGCNIIConfig,
    UniGINConfig,
    UniSAGEConfig,
)
from jax_gnn.training.data import check_dataset, node_features
from jax_gnn.training.loop import EpochReport, Run, TrainResult, train
from jax_gnn.training.models import RECIPES, Recipe
from jax_gnn.training.plot import plot_learning_curves
from jax_gnn.training.trained import TrainedModel

__all__ = [
    "RECIPES",
    "AllDeepSetsConfig",
    "AllSetTransformerConfig",
    "EpochReport",
    "GCNConfig",
    "GINConfig",
    "HGNNConfig",
    "HGNNPConfig",
    "HypergraphAttentionConfig",
    "HypergraphConfig",
    "Recipe",
    "Run",
    "SAGEConfig",
    "TrainConfig",
    "TrainResult",
    "TrainedModel",
    "UniGATConfig",
    "UniGCNIIConfig",
    "UniGINConfig",
    "UniSAGEConfig",
    "check_dataset",
    "load_checkpoint",
    "node_features",
    "plot_learning_curves",
    "save_checkpoint",
    "train",
]
