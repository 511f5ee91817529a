"""Training of hypergraph neural networks; needs the extra ``jax-gnn[train]``."""

from jax_gnn.training.checkpoint import load_checkpoint, save_checkpoint
from jax_gnn.training.config import TrainConfig
from jax_gnn.training.data import check_dataset, node_features
from jax_gnn.training.hgnn import EpochReport, Run, TrainResult, train_hgnn
from jax_gnn.training.plot import plot_learning_curves

__all__ = [
    "EpochReport",
    "Run",
    "TrainConfig",
    "TrainResult",
    "check_dataset",
    "load_checkpoint",
    "node_features",
    "plot_learning_curves",
    "save_checkpoint",
    "train_hgnn",
]
