"""Settings of models of a graph's nodes, and of many graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from flax_layers.graph import Aggregation
from flax_layers.readout import Readout
from flax_layers.training.config.nodes import FeatureNormalization, HeadsConfig, TrainConfig
from flax_layers.training.config.sampled import SampledConfig
from flax_layers.training.config.settings import COUNT, WHOLE, Setting

_PLANETOID = {"input_dropout_rate": 0.5, "feature_normalization": "row"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WeightedConfig(SampledConfig):
    """What models of graphs whose edges may have weights share."""

    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {"planetoid": _PLANETOID}

    feature_normalization: FeatureNormalization = "auto"
    edge_weight: Annotated[bool, Setting("data", "weigh edges by the weights in the data")] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class GCNConfig(_WeightedConfig):
    """Settings of a `flax_layers.GCN`; those published for Planetoid's are Kipf and Welling's."""

    model: ClassVar[str] = "gcn"
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "planetoid": _PLANETOID | {"hidden_features": 16, "weight_decay_layers": "first"}
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class GINConfig(_WeightedConfig):
    """Settings of a `flax_layers.GIN`; on Planetoid's files those of a GCN."""

    model: ClassVar[str] = "gin"
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "planetoid": _PLANETOID | {"learning_rate": 0.01}
    }
    sums: ClassVar[bool] = True

    learning_rate: float = 0.005

    learn_eps: Annotated[
        bool,
        Setting("model", "learn in each convolution how much a node's own features count"),
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SAGEConfig(_WeightedConfig):
    """Settings of a `flax_layers.SAGE`."""

    model: ClassVar[str] = "sage"

    aggregation: Annotated[Aggregation, Setting("model", "what becomes of a node's messages")] = (
        "mean"
    )
    project: Annotated[bool, Setting("model", "a linear map and ReLU before each aggregation")] = (
        False
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GATConfig(SampledConfig, HeadsConfig):
    """Settings of a `flax_layers.GAT`; those published for Planetoid's are Veličković et al.'s."""

    model: ClassVar[str] = "gat"
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "planetoid": {
            "feature_normalization": "row",
            **{"dropout_rate": 0.6, "input_dropout_rate": 0.6, "attention_dropout_rate": 0.6},
        }
    }

    learning_rate: float = 0.005
    dropout_rate: float = 0.5
    input_dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.2
    feature_normalization: FeatureNormalization = "auto"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GATv2Config(GATConfig):
    """Settings of a `flax_layers.GATv2`; defaults as of a GAT."""

    model: ClassVar[str] = "gatv2"

    share_weights: Annotated[
        bool, Setting("model", "one linear map for sources and destinations")
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphTransformerConfig(GATConfig):
    """Settings of a `flax_layers.GraphTransformer`; defaults as of a GAT."""

    model: ClassVar[str] = "transformer"

    gated: Annotated[
        bool, Setting("model", "a gate weighs the skip connection against the rest")
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphsConfig(TrainConfig):
    """Settings of every training on many graphs; defaults as in GIN's paper."""

    left_out: ClassVar[tuple[str, ...]] = (
        *("features", "feature_noise", "input_dropout_rate", "weight_decay_layers"),
    )

    epochs: int = 350
    weight_decay: float = 0.0
    num_layers: int = 4
    hidden_features: int = 32
    feature_normalization: FeatureNormalization = "auto"
    folds: Annotated[
        int,
        Setting(
            "training",
            "of a cross-validation, with one epoch that has the best mean; 0: none",
            WHOLE,
            "N",
        ),
    ] = 0
    batch_size: Annotated[int, Setting("training", "graphs per step", COUNT, "N")] = 32
    steps: Annotated[
        int,
        Setting(
            "training",
            "batches per epoch, each of graphs drawn anew; 0: as many as hold all graphs",
            WHOLE,
            "N",
        ),
    ] = 0
    halve_every: Annotated[
        int, Setting("training", "epochs until the learning rate halves; 0: never", WHOLE, "N")
    ] = 50
    readout: Annotated[
        Readout, Setting("model", "what makes features of a graph of those of its nodes")
    ] = "mean"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GINGraphConfig(GraphsConfig):
    """Settings of a `flax_layers.GINClassifier`; the defaults are those of its paper."""

    model: ClassVar[str] = "gin-graph"

    steps: int = 50
    readout: Readout = "sum"
    learn_eps: Annotated[
        bool,
        Setting("model", "learn in each layer how much a node's own features count"),
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class GCNGraphConfig(GraphsConfig):
    """Settings of a `flax_layers.GraphClassifier` of GCN's layers."""

    model: ClassVar[str] = "gcn-graph"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SAGEGraphConfig(GraphsConfig):
    """Settings of a `flax_layers.GraphClassifier` of GraphSAGE's layers."""

    model: ClassVar[str] = "sage-graph"

    aggregation: Annotated[Aggregation, Setting("model", "what becomes of a node's messages")] = (
        "mean"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GATGraphConfig(GraphsConfig):
    """Settings of a `flax_layers.GraphClassifier` of GAT's layers."""

    model: ClassVar[str] = "gat-graph"

    heads: Annotated[int, Setting("model", "heads of the convolutions", COUNT, "N")] = 4
