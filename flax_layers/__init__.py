"""Flax NNX layers over the operations of `jax_gnn`."""

from flax_layers import _installation  # before jax_gnn, which it checks
from flax_layers._attention import AttentionOptions
from flax_layers._base import Stack
from flax_layers._declaration import LinearOptions
from flax_layers._declaration import Signature as _Signature
from flax_layers.allset import (
    AllDeepSets,
    AllDeepSetsConv,
    AllSetTransformer,
    AllSetTransformerConv,
)
from flax_layers.attention_layers import AGNNConv, FAConv, GMMConv, PDNConv, SuperGATConv
from flax_layers.autoencoder import GAE, VGAE
from flax_layers.compgcn import CompGCN, CompGCNConv
from flax_layers.edge_layers import (
    GINE,
    PNA,
    CGConv,
    EdgeConv,
    GatedGCN,
    GatedGCNConv,
    GENConv,
    GINEConv,
    NNConv,
    PNAConv,
    ResGatedGraphConv,
)
from flax_layers.gin import GIN, GINBlock, GINConv
from flax_layers.gps import GPSConv
from flax_layers.graph import GCN, SAGE, GCNConv, SAGEConv, gcn_norm
from flax_layers.graph_attention import (
    GAT,
    GATConv,
    GATv2,
    GATv2Conv,
    GraphTransformer,
    TransformerConv,
)
from flax_layers.han import HAN, HANConv
from flax_layers.hetero import HeteroConv, HeteroLinear, HeteroModel
from flax_layers.hetero_stack import HeteroStack, to_hetero
from flax_layers.hypergraph import HGNN, HGNNP, HGNNConv, HGNNPConv
from flax_layers.hypergraph_attention import HypergraphAttention, HypergraphAttentionConv
from flax_layers.layerwise import layerwise_inference
from flax_layers.links import (
    ComplEx,
    ConvE,
    DistMult,
    LinkPredictor,
    LinkRanking,
    edge_metrics,
    link_metrics,
    negative_sampling_loss,
    one_vs_all_loss,
)
from flax_layers.mlp import MLP, InnerProductDecoder, MLPDecoder
from flax_layers.norms import GraphLayerNorm, GraphNorm, NodeBatchNorm, PairNorm
from flax_layers.point_layers import CFConv, EGNNConv, PaiNNConv, PointNetConv, PointTransformerConv
from flax_layers.program_conv import ProgramConv, ProgramModel, axes, dense
from flax_layers.readout import (
    AttentionReadout,
    GINClassifier,
    GraphClassifier,
    Set2Set,
    TopKReadout,
    jumping_knowledge,
    readout,
)
from flax_layers.relation_layers import HEAT, FiLMConv, HEATConv, RGINConv, SimpleHGN, SimpleHGNConv
from flax_layers.relational import RGCN, RGCNConv
from flax_layers.relational_attention import HGT, RGAT, HGTConv, RGATConv
from flax_layers.schnet import SchNet
from flax_layers.tabular import DatabaseModel, TableEncoder
from flax_layers.typed import TypedLinear
from flax_layers.unignn import (
    UniGAT,
    UniGATConv,
    UniGCNII,
    UniGCNIIConv,
    UniGIN,
    UniGINConv,
    UniSAGE,
    UniSAGEConv,
    unigcn_norm,
)

__all__ = [
    "GAE",
    "GAT",
    "GCN",
    "GIN",
    "GINE",
    "HAN",
    "HEAT",
    "HGNN",
    "HGNNP",
    "HGT",
    "MLP",
    "PNA",
    "RGAT",
    "RGCN",
    "SAGE",
    "VGAE",
    "AGNNConv",
    "AllDeepSets",
    "AllDeepSetsConv",
    "AllSetTransformer",
    "AllSetTransformerConv",
    "AttentionOptions",
    "AttentionReadout",
    "CFConv",
    "CGConv",
    "CompGCN",
    "CompGCNConv",
    "ComplEx",
    "ConvE",
    "DatabaseModel",
    "DistMult",
    "EGNNConv",
    "EdgeConv",
    "FAConv",
    "FiLMConv",
    "GATConv",
    "GATv2",
    "GATv2Conv",
    "GCNConv",
    "GENConv",
    "GINBlock",
    "GINClassifier",
    "GINConv",
    "GINEConv",
    "GMMConv",
    "GPSConv",
    "GatedGCN",
    "GatedGCNConv",
    "GraphClassifier",
    "GraphLayerNorm",
    "GraphNorm",
    "GraphTransformer",
    "HANConv",
    "HEATConv",
    "HGNNConv",
    "HGNNPConv",
    "HGTConv",
    "HeteroConv",
    "HeteroLinear",
    "HeteroModel",
    "HeteroStack",
    "HypergraphAttention",
    "HypergraphAttentionConv",
    "InnerProductDecoder",
    "LinearOptions",
    "LinkPredictor",
    "LinkRanking",
    "MLPDecoder",
    "NNConv",
    "NodeBatchNorm",
    "PDNConv",
    "PNAConv",
    "PaiNNConv",
    "PairNorm",
    "PointNetConv",
    "PointTransformerConv",
    "ProgramConv",
    "ProgramModel",
    "RGATConv",
    "RGCNConv",
    "RGINConv",
    "ResGatedGraphConv",
    "SAGEConv",
    "SchNet",
    "Set2Set",
    "SimpleHGN",
    "SimpleHGNConv",
    "Stack",
    "SuperGATConv",
    "TableEncoder",
    "TopKReadout",
    "TransformerConv",
    "TypedLinear",
    "UniGAT",
    "UniGATConv",
    "UniGCNII",
    "UniGCNIIConv",
    "UniGIN",
    "UniGINConv",
    "UniSAGE",
    "UniSAGEConv",
    "axes",
    "dense",
    "edge_metrics",
    "gcn_norm",
    "jumping_knowledge",
    "layerwise_inference",
    "link_metrics",
    "negative_sampling_loss",
    "one_vs_all_loss",
    "readout",
    "to_hetero",
    "unigcn_norm",
]

for _name in __all__:
    _made = globals()[_name]
    if isinstance(_made, type) and issubclass(_made, _installation.nnx.Module):
        _made.__signature__ = _Signature()  # type: ignore[attr-defined]
