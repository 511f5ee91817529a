"""Flax NNX layers over the operations of `jax_gnn`."""

import inspect as _inspect

from flax_layers import _installation  # before jax_gnn, which it checks
from flax_layers._attention import AttentionOptions as AttentionOptions
from flax_layers._base import Stack as Stack
from flax_layers._declaration import LinearOptions as LinearOptions
from flax_layers._declaration import Signature as _Signature
from flax_layers.allset import AllDeepSets as AllDeepSets
from flax_layers.allset import AllDeepSetsConv as AllDeepSetsConv
from flax_layers.allset import AllSetTransformer as AllSetTransformer
from flax_layers.allset import AllSetTransformerConv as AllSetTransformerConv
from flax_layers.attention_layers import AGNNConv as AGNNConv
from flax_layers.attention_layers import FAConv as FAConv
from flax_layers.attention_layers import GMMConv as GMMConv
from flax_layers.attention_layers import PDNConv as PDNConv
from flax_layers.attention_layers import SuperGATConv as SuperGATConv
from flax_layers.autoencoder import GAE as GAE
from flax_layers.autoencoder import VGAE as VGAE
from flax_layers.compgcn import CompGCN as CompGCN
from flax_layers.compgcn import CompGCNConv as CompGCNConv
from flax_layers.edge_layers import GINE as GINE
from flax_layers.edge_layers import PNA as PNA
from flax_layers.edge_layers import CGConv as CGConv
from flax_layers.edge_layers import EdgeConv as EdgeConv
from flax_layers.edge_layers import GatedGCN as GatedGCN
from flax_layers.edge_layers import GatedGCNConv as GatedGCNConv
from flax_layers.edge_layers import GENConv as GENConv
from flax_layers.edge_layers import GINEConv as GINEConv
from flax_layers.edge_layers import NNConv as NNConv
from flax_layers.edge_layers import PNAConv as PNAConv
from flax_layers.edge_layers import ResGatedGraphConv as ResGatedGraphConv
from flax_layers.gin import GIN as GIN
from flax_layers.gin import GINBlock as GINBlock
from flax_layers.gin import GINConv as GINConv
from flax_layers.gps import GPSConv as GPSConv
from flax_layers.graph import GCN as GCN
from flax_layers.graph import SAGE as SAGE
from flax_layers.graph import GCNConv as GCNConv
from flax_layers.graph import SAGEConv as SAGEConv
from flax_layers.graph import gcn_norm as gcn_norm
from flax_layers.graph_attention import GAT as GAT
from flax_layers.graph_attention import GATConv as GATConv
from flax_layers.graph_attention import GATv2 as GATv2
from flax_layers.graph_attention import GATv2Conv as GATv2Conv
from flax_layers.graph_attention import GraphTransformer as GraphTransformer
from flax_layers.graph_attention import TransformerConv as TransformerConv
from flax_layers.han import HAN as HAN
from flax_layers.han import HANConv as HANConv
from flax_layers.hetero import HeteroConv as HeteroConv
from flax_layers.hetero import HeteroLinear as HeteroLinear
from flax_layers.hetero import HeteroModel as HeteroModel
from flax_layers.hetero_stack import HeteroStack as HeteroStack
from flax_layers.hetero_stack import to_hetero as to_hetero
from flax_layers.hypergraph import HGNN as HGNN
from flax_layers.hypergraph import HGNNP as HGNNP
from flax_layers.hypergraph import HGNNConv as HGNNConv
from flax_layers.hypergraph import HGNNPConv as HGNNPConv
from flax_layers.hypergraph_attention import HypergraphAttention as HypergraphAttention
from flax_layers.hypergraph_attention import HypergraphAttentionConv as HypergraphAttentionConv
from flax_layers.layerwise import layerwise_inference as layerwise_inference
from flax_layers.links import ComplEx as ComplEx
from flax_layers.links import ConvE as ConvE
from flax_layers.links import DistMult as DistMult
from flax_layers.links import LinkPredictor as LinkPredictor
from flax_layers.links import LinkRanking as LinkRanking
from flax_layers.links import edge_metrics as edge_metrics
from flax_layers.links import link_metrics as link_metrics
from flax_layers.links import negative_sampling_loss as negative_sampling_loss
from flax_layers.links import one_vs_all_loss as one_vs_all_loss
from flax_layers.mlp import MLP as MLP
from flax_layers.mlp import InnerProductDecoder as InnerProductDecoder
from flax_layers.mlp import MLPDecoder as MLPDecoder
from flax_layers.norms import GraphLayerNorm as GraphLayerNorm
from flax_layers.norms import GraphNorm as GraphNorm
from flax_layers.norms import NodeBatchNorm as NodeBatchNorm
from flax_layers.norms import PairNorm as PairNorm
from flax_layers.point_layers import CFConv as CFConv
from flax_layers.point_layers import EGNNConv as EGNNConv
from flax_layers.point_layers import PaiNNConv as PaiNNConv
from flax_layers.point_layers import PointNetConv as PointNetConv
from flax_layers.point_layers import PointTransformerConv as PointTransformerConv
from flax_layers.program_conv import ProgramConv as ProgramConv
from flax_layers.program_conv import ProgramModel as ProgramModel
from flax_layers.program_conv import axes as axes
from flax_layers.program_conv import dense as dense
from flax_layers.readout import AttentionReadout as AttentionReadout
from flax_layers.readout import GINClassifier as GINClassifier
from flax_layers.readout import GraphClassifier as GraphClassifier
from flax_layers.readout import Set2Set as Set2Set
from flax_layers.readout import TopKReadout as TopKReadout
from flax_layers.readout import jumping_knowledge as jumping_knowledge
from flax_layers.readout import readout as readout
from flax_layers.relation_layers import HEAT as HEAT
from flax_layers.relation_layers import FiLMConv as FiLMConv
from flax_layers.relation_layers import HEATConv as HEATConv
from flax_layers.relation_layers import RGINConv as RGINConv
from flax_layers.relation_layers import SimpleHGN as SimpleHGN
from flax_layers.relation_layers import SimpleHGNConv as SimpleHGNConv
from flax_layers.relational import RGCN as RGCN
from flax_layers.relational import RGCNConv as RGCNConv
from flax_layers.relational_attention import HGT as HGT
from flax_layers.relational_attention import RGAT as RGAT
from flax_layers.relational_attention import HGTConv as HGTConv
from flax_layers.relational_attention import RGATConv as RGATConv
from flax_layers.schnet import SchNet as SchNet
from flax_layers.tabular import DatabaseModel as DatabaseModel
from flax_layers.tabular import TableEncoder as TableEncoder
from flax_layers.typed import TypedLinear as TypedLinear
from flax_layers.unignn import UniGAT as UniGAT
from flax_layers.unignn import UniGATConv as UniGATConv
from flax_layers.unignn import UniGCNII as UniGCNII
from flax_layers.unignn import UniGCNIIConv as UniGCNIIConv
from flax_layers.unignn import UniGIN as UniGIN
from flax_layers.unignn import UniGINConv as UniGINConv
from flax_layers.unignn import UniSAGE as UniSAGE
from flax_layers.unignn import UniSAGEConv as UniSAGEConv
from flax_layers.unignn import unigcn_norm as unigcn_norm

# All that is imported above under its own name.
__all__ = [
    name
    for name, value in globals().items()
    if not name.startswith("_") and not _inspect.ismodule(value)
]

for _name in __all__:
    _made = globals()[_name]
    if isinstance(_made, type) and issubclass(_made, _installation.nnx.Module):
        _made.__signature__ = _Signature()  # type: ignore[attr-defined]
