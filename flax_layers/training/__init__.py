"""Training of classifiers and for link prediction; needs the extra ``jax-gnn-kernels[train]``."""

from flax_layers.training.checkpoint import load_checkpoint, save_checkpoint
from flax_layers.training.config.graphs import (
    GATConfig,
    GatedGCNConfig,
    GatedGCNGraphConfig,
    GATGraphConfig,
    GATv2Config,
    GCNConfig,
    GCNGraphConfig,
    GINConfig,
    GINEConfig,
    GINEGraphConfig,
    GINGraphConfig,
    GraphsConfig,
    GraphTransformerConfig,
    PNAConfig,
    PNAGraphConfig,
    SAGEConfig,
    SAGEGraphConfig,
    SchNetConfig,
)
from flax_layers.training.config.hypergraphs import (
    AllDeepSetsConfig,
    AllSetTransformerConfig,
    HGNNConfig,
    HGNNPConfig,
    HypergraphAttentionConfig,
    HypergraphConfig,
    UniGATConfig,
    UniGCNIIConfig,
    UniGINConfig,
    UniSAGEConfig,
)
from flax_layers.training.config.links import (
    CompGCNLinkConfig,
    GATLinkConfig,
    GCNLinkConfig,
    LinkConfig,
    RGCNLinkConfig,
    SAGELinkConfig,
)
from flax_layers.training.config.nodes import TrainConfig
from flax_layers.training.config.relations import HGTConfig, RGATConfig, RGCNConfig, SimpleHGNConfig
from flax_layers.training.data import check_dataset, node_features
from flax_layers.training.link_models import LINK_RECIPES, LinkRecipe
from flax_layers.training.link_tasks import check_links
from flax_layers.training.links import Answers, LinkReport, LinkResult, TrainedLinks, train_links
from flax_layers.training.loop import train
from flax_layers.training.models import RECIPES, Recipe
from flax_layers.training.plot import plot_learning_curves, plot_link_curves
from flax_layers.training.predictor import Predictor, Preprocessing
from flax_layers.training.records import EpochReport, Run, TrainResult
from flax_layers.training.trained import TrainedModel

__all__ = [
    "LINK_RECIPES",
    "RECIPES",
    "AllDeepSetsConfig",
    "AllSetTransformerConfig",
    "Answers",
    "CompGCNLinkConfig",
    "EpochReport",
    "GATConfig",
    "GATGraphConfig",
    "GATLinkConfig",
    "GATv2Config",
    "GCNConfig",
    "GCNGraphConfig",
    "GCNLinkConfig",
    "GINConfig",
    "GINEConfig",
    "GINEGraphConfig",
    "GINGraphConfig",
    "GatedGCNConfig",
    "GatedGCNGraphConfig",
    "GraphTransformerConfig",
    "GraphsConfig",
    "HGNNConfig",
    "HGNNPConfig",
    "HGTConfig",
    "HypergraphAttentionConfig",
    "HypergraphConfig",
    "LinkConfig",
    "LinkRecipe",
    "LinkReport",
    "LinkResult",
    "PNAConfig",
    "PNAGraphConfig",
    "Predictor",
    "Preprocessing",
    "RGATConfig",
    "RGCNConfig",
    "RGCNLinkConfig",
    "Recipe",
    "Run",
    "SAGEConfig",
    "SAGEGraphConfig",
    "SAGELinkConfig",
    "SchNetConfig",
    "SimpleHGNConfig",
    "TrainConfig",
    "TrainResult",
    "TrainedLinks",
    "TrainedModel",
    "UniGATConfig",
    "UniGCNIIConfig",
    "UniGINConfig",
    "UniSAGEConfig",
    "check_dataset",
    "check_links",
    "load_checkpoint",
    "node_features",
    "plot_learning_curves",
    "plot_link_curves",
    "save_checkpoint",
    "train",
    "train_links",
]
