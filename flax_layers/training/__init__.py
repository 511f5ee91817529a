"""Training of classifiers and for link prediction; needs the extra ``jax-gnn-kernels[train]``."""

import inspect as _inspect

from flax_layers.training.checkpoint import load_checkpoint as load_checkpoint
from flax_layers.training.checkpoint import save_checkpoint as save_checkpoint
from flax_layers.training.config.graphs import GATConfig as GATConfig
from flax_layers.training.config.graphs import GatedGCNConfig as GatedGCNConfig
from flax_layers.training.config.graphs import GatedGCNGraphConfig as GatedGCNGraphConfig
from flax_layers.training.config.graphs import GATGraphConfig as GATGraphConfig
from flax_layers.training.config.graphs import GATv2Config as GATv2Config
from flax_layers.training.config.graphs import GCNConfig as GCNConfig
from flax_layers.training.config.graphs import GCNGraphConfig as GCNGraphConfig
from flax_layers.training.config.graphs import GINConfig as GINConfig
from flax_layers.training.config.graphs import GINEConfig as GINEConfig
from flax_layers.training.config.graphs import GINEGraphConfig as GINEGraphConfig
from flax_layers.training.config.graphs import GINGraphConfig as GINGraphConfig
from flax_layers.training.config.graphs import GraphsConfig as GraphsConfig
from flax_layers.training.config.graphs import GraphTransformerConfig as GraphTransformerConfig
from flax_layers.training.config.graphs import PNAConfig as PNAConfig
from flax_layers.training.config.graphs import PNAGraphConfig as PNAGraphConfig
from flax_layers.training.config.graphs import SAGEConfig as SAGEConfig
from flax_layers.training.config.graphs import SAGEGraphConfig as SAGEGraphConfig
from flax_layers.training.config.graphs import SchNetConfig as SchNetConfig
from flax_layers.training.config.hypergraphs import AllDeepSetsConfig as AllDeepSetsConfig
from flax_layers.training.config.hypergraphs import (
    AllSetTransformerConfig as AllSetTransformerConfig,
)
from flax_layers.training.config.hypergraphs import HGNNConfig as HGNNConfig
from flax_layers.training.config.hypergraphs import HGNNPConfig as HGNNPConfig
from flax_layers.training.config.hypergraphs import (
    HypergraphAttentionConfig as HypergraphAttentionConfig,
)
from flax_layers.training.config.hypergraphs import HypergraphConfig as HypergraphConfig
from flax_layers.training.config.hypergraphs import UniGATConfig as UniGATConfig
from flax_layers.training.config.hypergraphs import UniGCNIIConfig as UniGCNIIConfig
from flax_layers.training.config.hypergraphs import UniGINConfig as UniGINConfig
from flax_layers.training.config.hypergraphs import UniSAGEConfig as UniSAGEConfig
from flax_layers.training.config.links import CompGCNLinkConfig as CompGCNLinkConfig
from flax_layers.training.config.links import GATLinkConfig as GATLinkConfig
from flax_layers.training.config.links import GCNLinkConfig as GCNLinkConfig
from flax_layers.training.config.links import LinkConfig as LinkConfig
from flax_layers.training.config.links import RGCNLinkConfig as RGCNLinkConfig
from flax_layers.training.config.links import SAGELinkConfig as SAGELinkConfig
from flax_layers.training.config.nodes import TrainConfig as TrainConfig
from flax_layers.training.config.relations import HGTConfig as HGTConfig
from flax_layers.training.config.relations import RGATConfig as RGATConfig
from flax_layers.training.config.relations import RGCNConfig as RGCNConfig
from flax_layers.training.config.relations import SimpleHGNConfig as SimpleHGNConfig
from flax_layers.training.data import check_dataset as check_dataset
from flax_layers.training.data import node_features as node_features
from flax_layers.training.link_models import LINK_RECIPES as LINK_RECIPES
from flax_layers.training.link_models import LinkRecipe as LinkRecipe
from flax_layers.training.link_tasks import check_links as check_links
from flax_layers.training.links import Answers as Answers
from flax_layers.training.links import LinkReport as LinkReport
from flax_layers.training.links import LinkResult as LinkResult
from flax_layers.training.links import TrainedLinks as TrainedLinks
from flax_layers.training.links import train_links as train_links
from flax_layers.training.loop import train as train
from flax_layers.training.models import RECIPES as RECIPES
from flax_layers.training.models import Recipe as Recipe
from flax_layers.training.plot import plot_learning_curves as plot_learning_curves
from flax_layers.training.plot import plot_link_curves as plot_link_curves
from flax_layers.training.predictor import Predictor as Predictor
from flax_layers.training.predictor import Preprocessing as Preprocessing
from flax_layers.training.records import EpochReport as EpochReport
from flax_layers.training.records import Run as Run
from flax_layers.training.records import TrainResult as TrainResult
from flax_layers.training.trained import TrainedModel as TrainedModel

# All that is imported above under its own name.
__all__ = [
    name
    for name, value in globals().items()
    if not name.startswith("_") and not _inspect.ismodule(value)
]
