"""Training of node classifiers; needs the extra ``jax-gnn[train]``."""

from flax_layers.training.checkpoint import load_checkpoint, save_checkpoint
from flax_layers.training.config import (
    AllDeepSetsConfig,
    AllSetTransformerConfig,
    GATConfig,
    GATv2Config,
    GCNConfig,
    GINConfig,
    GraphTransformerConfig,
    HGNNConfig,
    HGNNPConfig,
    HypergraphAttentionConfig,
    HypergraphConfig,
    RGCNConfig,
    SAGEConfig,
    TrainConfig,
    UniGATConfig,
    UniGCNIIConfig,
    UniGINConfig,
    UniSAGEConfig,
)
from flax_layers.training.data import check_dataset, node_features
from flax_layers.training.loop import EpochReport, Run, TrainResult, train
from flax_layers.training.models import RECIPES, Recipe
from flax_layers.training.plot import plot_learning_curves
from flax_layers.training.trained import TrainedModel

__all__ = [
    "RECIPES",
    "AllDeepSetsConfig",
    "AllSetTransformerConfig",
    "EpochReport",
    "GATConfig",
    "GATv2Config",
    "GCNConfig",
    "GINConfig",
    "GraphTransformerConfig",
    "HGNNConfig",
    "HGNNPConfig",
    "HypergraphAttentionConfig",
    "HypergraphConfig",
    "RGCNConfig",
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
