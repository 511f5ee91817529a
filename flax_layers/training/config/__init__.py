"""Settings of a training; each says here, once, what the command line says of it and checks."""

from flax_layers.training.config.graphs import (
    GATConfig,
    GATGraphConfig,
    GATv2Config,
    GCNConfig,
    GCNGraphConfig,
    GINConfig,
    GINGraphConfig,
    GraphsConfig,
    GraphTransformerConfig,
    SAGEConfig,
    SAGEGraphConfig,
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
from flax_layers.training.config.relations import HGTConfig, RGATConfig, RGCNConfig
from flax_layers.training.config.sampled import SampledConfig
from flax_layers.training.config.settings import Config, Number, Setting, settings

__all__ = [
    "AllDeepSetsConfig",
    "AllSetTransformerConfig",
    "CompGCNLinkConfig",
    "Config",
    "GATConfig",
    "GATGraphConfig",
    "GATLinkConfig",
    "GATv2Config",
    "GCNConfig",
    "GCNGraphConfig",
    "GCNLinkConfig",
    "GINConfig",
    "GINGraphConfig",
    "GraphTransformerConfig",
    "GraphsConfig",
    "HGNNConfig",
    "HGNNPConfig",
    "HGTConfig",
    "HypergraphAttentionConfig",
    "HypergraphConfig",
    "LinkConfig",
    "Number",
    "RGATConfig",
    "RGCNConfig",
    "RGCNLinkConfig",
    "SAGEConfig",
    "SAGEGraphConfig",
    "SAGELinkConfig",
    "SampledConfig",
    "Setting",
    "TrainConfig",
    "UniGATConfig",
    "UniGCNIIConfig",
    "UniGINConfig",
    "UniSAGEConfig",
    "settings",
]
