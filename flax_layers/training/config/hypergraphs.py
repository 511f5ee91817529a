"""Settings of models of hypergraphs."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal

from flax_layers.hypergraph_attention import Degrees
from flax_layers.training.config.nodes import HeadsConfig, TrainConfig
from flax_layers.training.config.settings import COUNT, NON_NEGATIVE, POSITIVE, RATE, Setting
from jax_gnn.extend import Normalization


@dataclasses.dataclass(frozen=True, kw_only=True)
class HypergraphConfig(TrainConfig):
    """Settings of every model of hypergraphs."""

    self_loops: Annotated[
        Literal["none", "isolated", "all"],
        Setting("data", "nodes that get a hyperedge of their own"),
    ] = "all"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HGNNPConfig(HypergraphConfig):
    """Settings of a `flax_layers.HGNNP`; hyperedge weights are exempt from weight decay."""

    model: ClassVar[str] = "hgnnp"

    weight_decay: float = 5e-3
    self_loops: Literal["none", "isolated", "all"] = "isolated"
    learnable_hyperedge_weights: Annotated[
        bool, Setting("model", "learn one positive weight per hyperedge and convolution")
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class HGNNConfig(HGNNPConfig):
    """Settings of a `flax_layers.HGNN`: those of an HGNNP, which is the "row" of HGNN's."""

    model: ClassVar[str] = "hgnn"

    normalization: Annotated[
        Normalization,
        Setting("model", "symmetric: Dv^-1/2 H W De^-1 H^T Dv^-1/2; row: Dv^-1 H W De^-1 H^T"),
    ] = "symmetric"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _UniGNNConfig(HypergraphConfig):
    """What UniGIN, UniSAGE and UniGAT share; dropout as in the authors' code."""

    dropout_rate: float = 0.6
    input_dropout_rate: float = 0.6
    normalize: Annotated[
        bool, Setting("model", "divide each row of a convolution's result by its length")
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniGINConfig(_UniGNNConfig):
    """Settings of a `flax_layers.UniGIN`."""

    model: ClassVar[str] = "unigin"
    node_reduce: ClassVar[str] = "sum"


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniSAGEConfig(_UniGNNConfig):
    """Settings of a `flax_layers.UniSAGE`."""

    model: ClassVar[str] = "unisage"

    node_reduce: Annotated[
        Literal["sum", "mean"], Setting("model", "what becomes of a node's hyperedges")
    ] = "sum"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _AttentionConfig(HeadsConfig, HypergraphConfig):
    """What UniGAT and hypergraph attention share."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniGATConfig(_AttentionConfig, _UniGNNConfig):
    """Settings of a `flax_layers.UniGAT`."""

    model: ClassVar[str] = "unigat"


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniGCNIIConfig(HypergraphConfig):
    """Settings of a `flax_layers.UniGCNII`; the defaults are those of AllSet's comparison."""

    model: ClassVar[str] = "unigcnii"

    epochs: int = 500
    weight_decay: float = 0.01
    map_weight_decay: Annotated[
        float,
        Setting("training", "that of the first and last linear map", NON_NEGATIVE, "RATE"),
    ] = 5e-4
    num_layers: int = 1
    dropout_rate: float = 0.2
    input_dropout_rate: float = 0.2
    alpha: Annotated[float, Setting("model", "share of the initial residual", RATE, "SHARE")] = 0.1
    lamda: Annotated[
        float,
        Setting("model", "layer l learns log(lamda / l + 1) of its map", POSITIVE, "NUMBER"),
    ] = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class HypergraphAttentionConfig(_AttentionConfig):
    """Settings of a `flax_layers.HypergraphAttention`."""

    model: ClassVar[str] = "hypergraph-attention"

    degrees: Annotated[
        Degrees,
        Setting("model", "what the degrees are sums of; those of attention make weighted means"),
    ] = "attention"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllDeepSetsConfig(HypergraphConfig):
    """Settings of a `flax_layers.AllDeepSets`; the defaults are those of the authors' code."""

    model: ClassVar[str] = "alldeepsets"

    epochs: int = 500
    learning_rate: float = 0.001
    weight_decay: float = 0.0
    num_layers: int = 1
    hidden_features: int = 256
    input_dropout_rate: float = 0.2
    mlp_layers: Annotated[int, Setting("model", "linear maps of each MLP", COUNT, "N")] = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllSetTransformerConfig(AllDeepSetsConfig):
    """Settings of a `flax_layers.AllSetTransformer`; defaults as of an AllDeepSets."""

    model: ClassVar[str] = "allsettransformer"

    heads: Annotated[int, Setting("model", "heads of each attention", COUNT, "N")] = 4
