"""Settings of models of hypergraphs."""

from __future__ import annotations

from typing import ClassVar, Literal

from flax_layers.hypergraph_attention import Degrees
from flax_layers.training.config.nodes import HeadsConfig, TrainConfig
from flax_layers.training.config.settings import COUNT, NON_NEGATIVE, POSITIVE, RATE, setting
from jax_gnn.extend import Normalization

SelfLoops = Literal["none", "isolated", "all"]


class HypergraphConfig(TrainConfig):
    """Settings of every model of hypergraphs."""

    self_loops: SelfLoops = setting("all", "data", "nodes that get a hyperedge of their own")


class HGNNPConfig(HypergraphConfig):
    """Settings of a `flax_layers.HGNNP`; hyperedge weights are exempt from weight decay."""

    model: ClassVar[str] = "hgnnp"
    title: ClassVar[str] = "general hypergraph neural network (HGNN+, Gao et al. 2022)"
    weight_decay: float = 5e-3
    self_loops: SelfLoops = "isolated"
    learnable_hyperedge_weights: bool = setting(False, "model", "learn weights of the hyperedges")


class HGNNConfig(HGNNPConfig):
    """Settings of a `flax_layers.HGNN`: those of an HGNNP, which is the "row" of HGNN's."""

    model: ClassVar[str] = "hgnn"
    title: ClassVar[str] = "hypergraph neural network (HGNN, Feng et al. 2019)"
    normalization: Normalization = setting(
        "symmetric", "model", "symmetric: Dv^-1/2 H W De^-1 H^T Dv^-1/2; row: Dv^-1 H W De^-1 H^T"
    )


class _UniGNNConfig(HypergraphConfig):
    """Settings of UniGIN, UniSAGE and UniGAT; dropout rates as in the authors' code."""

    dropout_rate: float = 0.6
    input_dropout_rate: float = 0.6
    l2_normalize: bool = setting(False, "model", "divide rows of each result by their length")


class UniGINConfig(_UniGNNConfig):
    """Settings of a `flax_layers.UniGIN`."""

    model: ClassVar[str] = "unigin"
    title: ClassVar[str] = "UniGIN (Huang and Yang 2021)"


class UniSAGEConfig(_UniGNNConfig):
    """Settings of a `flax_layers.UniSAGE`."""

    model: ClassVar[str] = "unisage"
    title: ClassVar[str] = "UniSAGE (Huang and Yang 2021)"
    node_reduce: Literal["sum", "mean"] = setting("sum", "model", "reduction of the hyperedges")


class UniGATConfig(HeadsConfig, _UniGNNConfig):
    """Settings of a `flax_layers.UniGAT`."""

    model: ClassVar[str] = "unigat"
    title: ClassVar[str] = "UniGAT (Huang and Yang 2021)"


class UniGCNIIConfig(HypergraphConfig):
    """Settings of a `flax_layers.UniGCNII`; the defaults are those of AllSet's comparison."""

    model: ClassVar[str] = "unigcnii"
    title: ClassVar[str] = "UniGCNII (Huang and Yang 2021)"
    epochs: int = 500
    weight_decay: float = 0.01
    map_weight_decay: float = setting(
        5e-4, "training", "of the first and last linear map", NON_NEGATIVE
    )
    num_layers: int = 1
    dropout_rate: float = 0.2
    input_dropout_rate: float = 0.2
    alpha: float = setting(0.1, "model", "share of the initial residual", RATE, metavar="SHARE")
    lamda: float = setting(
        0.5, "model", "layer l learns log(lamda / l + 1) of its map", POSITIVE, metavar="NUMBER"
    )


class HypergraphAttentionConfig(HeadsConfig, HypergraphConfig):
    """Settings of a `flax_layers.HypergraphAttention`."""

    model: ClassVar[str] = "hypergraph-attention"
    title: ClassVar[str] = "hypergraph attention network (Bai et al. 2021)"
    degrees: Degrees = setting(
        "attention", "model", "summands of the degrees; those of attention make weighted means"
    )


class AllDeepSetsConfig(HypergraphConfig):
    """Settings of a `flax_layers.AllDeepSets`; the defaults are those of the authors' code."""

    model: ClassVar[str] = "alldeepsets"
    title: ClassVar[str] = "deep-sets hypergraph network (AllDeepSets, Chien et al. 2022)"
    epochs: int = 500
    learning_rate: float = 0.001
    weight_decay: float = 0.0
    num_layers: int = 1
    hidden_features: int = 256
    input_dropout_rate: float = 0.2
    mlp_layers: int = setting(2, "model", "linear maps of each MLP", COUNT)


class AllSetTransformerConfig(AllDeepSetsConfig):
    """Settings of a `flax_layers.AllSetTransformer`; defaults as of an AllDeepSets."""

    model: ClassVar[str] = "allsettransformer"
    title: ClassVar[str] = (
        "set-transformer hypergraph network (AllSetTransformer, Chien et al. 2022)"
    )
    heads: int = setting(4, "model", "heads of each attention", COUNT)
