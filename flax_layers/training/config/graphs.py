"""Settings of models of a graph's nodes, and of many graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from flax_layers.graph import Aggregation
from flax_layers.mlp import Norm
from flax_layers.readout import Readout
from flax_layers.training.config.nodes import (
    Defaults,
    DirectionConfig,
    EdgeInput,
    FeatureNormalization,
    HeadsConfig,
    SampledConfig,
    TrainConfig,
)
from flax_layers.training.config.settings import (
    COUNT,
    NON_NEGATIVE,
    POSITIVE,
    WHOLE,
    Config,
    setting,
)

_SEVERAL = COUNT._replace(
    expected="a whole number from 2 to 2147483647", accept=lambda value: 2 <= value < 2**31
)
_PLANETOID: Defaults = {"input_dropout_rate": 0.5, "feature_normalization": "row"}


class _WeightedConfig(SampledConfig):
    """Settings of models of graphs whose edges may have weights."""

    published: ClassVar[Mapping[str, Defaults]] = {"planetoid": _PLANETOID}

    feature_normalization: FeatureNormalization = "auto"
    edge_weight: bool = setting(False, "data", "weigh edges by the weights in the data")


class _EpsConfig(Config):
    """Settings of models whose layers weigh a node's own features."""

    learn_eps: bool = setting(False, "model", "learn each layer's factor of a node's own features")


class _PerceptronConfig(_EpsConfig):
    """Settings of models whose layers are sums and perceptrons."""

    mlp_norm: Norm | None = setting(
        None, "model", "batch_norm: a batch norm inside the perceptron of each layer"
    )


class GCNConfig(_WeightedConfig):
    """Settings of a `flax_layers.GCN`; those published for Planetoid's are Kipf and Welling's."""

    model: ClassVar[str] = "gcn"
    title: ClassVar[str] = "graph convolutional network (GCN, Kipf and Welling 2017)"
    published: ClassVar[Mapping[str, Defaults]] = {
        "planetoid": {**_PLANETOID, "hidden_features": 16, "weight_decay_layers": "first"}
    }


class GINConfig(_PerceptronConfig, _WeightedConfig):
    """Settings of a `flax_layers.GIN`; on Planetoid's files those of a GCN."""

    model: ClassVar[str] = "gin"
    title: ClassVar[str] = "graph isomorphism network (GIN, Xu et al. 2019)"
    published: ClassVar[Mapping[str, Defaults]] = {
        "planetoid": {**_PLANETOID, "learning_rate": 0.01}
    }
    sums: ClassVar[bool] = True

    learning_rate: float = 0.005


class SAGEConfig(_WeightedConfig):
    """Settings of a `flax_layers.SAGE`."""

    model: ClassVar[str] = "sage"
    title: ClassVar[str] = "GraphSAGE over all neighbours (Hamilton et al. 2017)"
    reduce: Aggregation = setting("mean", "model", "reduction of a node's messages")
    project: bool = setting(False, "model", "a linear map and ReLU before each aggregation")


class GATConfig(SampledConfig, HeadsConfig):
    """Settings of a `flax_layers.GAT`; those published for Planetoid's are Veličković et al.'s."""

    model: ClassVar[str] = "gat"
    title: ClassVar[str] = "graph attention network (GAT, Veličković et al. 2018)"
    published: ClassVar[Mapping[str, Defaults]] = {
        "planetoid": {
            "feature_normalization": "row",
            "dropout_rate": 0.6,
            "input_dropout_rate": 0.6,
            "attention_dropout_rate": 0.6,
        }
    }

    learning_rate: float = 0.005
    dropout_rate: float = 0.5
    input_dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.2
    feature_normalization: FeatureNormalization = "auto"


class GATv2Config(GATConfig):
    """Settings of a `flax_layers.GATv2`; defaults as of a GAT."""

    model: ClassVar[str] = "gatv2"
    title: ClassVar[str] = "graph attention network with dynamic scores (GATv2, Brody et al. 2022)"
    share_weights: bool = setting(False, "model", "one linear map for sources and destinations")


class GraphTransformerConfig(GATConfig):
    """Settings of a `flax_layers.GraphTransformer`; defaults as of a GAT."""

    model: ClassVar[str] = "transformer"
    title: ClassVar[str] = "graph transformer (Shi et al. 2021)"
    gated: bool = setting(False, "model", "a gate weighs the skip connection against the messages")


class _TowersConfig(Config):
    """Settings of PNA's layers."""

    towers: int = setting(1, "model", "towers that share the features of each layer", COUNT)


class PNAConfig(_TowersConfig, SampledConfig):
    """Settings of a `flax_layers.PNA`, whose mean degrees are those of the training's graph."""

    model: ClassVar[str] = "pna"
    title: ClassVar[str] = "principal neighbourhood aggregation (PNA, Corso et al. 2020)"
    sums: ClassVar[bool] = True

    feature_normalization: FeatureNormalization = "auto"


class GINEConfig(_PerceptronConfig, SampledConfig):
    """Settings of a `flax_layers.GINE`, which takes features of edges where the data have some."""

    model: ClassVar[str] = "gine"
    title: ClassVar[str] = "graph isomorphism network with features of edges (GINE, Hu et al. 2020)"
    edge_input: ClassVar[EdgeInput] = "optional"
    sums: ClassVar[bool] = True

    learning_rate: float = 0.005
    feature_normalization: FeatureNormalization = "auto"
    mlp_norm: Norm | None = "batch_norm"  # messages are not negative, so that their sums grow


class GatedGCNConfig(DirectionConfig, TrainConfig):
    """Settings of a `flax_layers.GatedGCN`, whose steps are on the whole graph."""

    model: ClassVar[str] = "gatedgcn"
    title: ClassVar[str] = "gated graph convolutional network (GatedGCN, Bresson and Laurent 2017)"
    edge_input: ClassVar[EdgeInput] = "required"

    feature_normalization: FeatureNormalization = "auto"


class GraphsConfig(TrainConfig):
    """Settings of every training on many graphs; defaults as in GIN's paper."""

    # Settings of nodes that have no effect on graphs, and hence no option.
    excluded: ClassVar[tuple[str, ...]] = (
        "features",
        "feature_noise",
        "input_dropout_rate",
        "weight_decay_layers",
    )

    epochs: int = 350
    weight_decay: float = 0.0
    num_layers: int = 4
    hidden_features: int = 32
    feature_normalization: FeatureNormalization = "auto"
    folds: int = setting(
        0,
        "training",
        "folds of a cross-validation, with one epoch that has the best mean; 0: none",
        WHOLE,
    )
    batch_size: int = setting(32, "training", "graphs per step", COUNT)
    steps: int = setting(
        0,
        "training",
        "batches per epoch, each of graphs drawn anew; 0: as many as hold all graphs",
        WHOLE,
    )
    schedule: Literal["constant", "cosine", "step"] = "step"
    graph_reduce: Readout = setting("mean", "model", "reduction of nodes into their graph")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folds and self.split == "time":
            raise ValueError("split must not be 'time' with folds, which are random or published")
        if self.folds and self.early_stopping:
            raise ValueError("early_stopping must be 0 with folds, which share their best epoch")


class GINGraphConfig(_EpsConfig, GraphsConfig):
    """Settings of a `flax_layers.GINClassifier`; the defaults are those of its paper."""

    model: ClassVar[str] = "gin-graph"
    title: ClassVar[str] = "graph isomorphism network with batch norms (GIN, Xu et al. 2019)"
    steps: int = 50
    graph_reduce: Readout = "sum"


class GCNGraphConfig(GraphsConfig):
    """Settings of a `flax_layers.GraphClassifier` of GCN's layers."""

    model: ClassVar[str] = "gcn-graph"
    title: ClassVar[str] = "graph convolutional network (GCN, Kipf and Welling 2017) and a readout"


class SAGEGraphConfig(GraphsConfig):
    """Settings of a `flax_layers.GraphClassifier` of GraphSAGE's layers."""

    model: ClassVar[str] = "sage-graph"
    title: ClassVar[str] = "GraphSAGE over all neighbours (Hamilton et al. 2017) and a readout"
    reduce: Aggregation = setting("mean", "model", "reduction of a node's messages")


class GATGraphConfig(GraphsConfig):
    """Settings of a `flax_layers.GraphClassifier` of GAT's layers."""

    model: ClassVar[str] = "gat-graph"
    title: ClassVar[str] = "graph attention network (GAT, Veličković et al. 2018) and a readout"
    heads: int = setting(4, "model", "heads of the convolutions", COUNT)


class GINEGraphConfig(_PerceptronConfig, GraphsConfig):
    """Settings of a `flax_layers.GraphClassifier` of GINE's layers, which have batch norms."""

    model: ClassVar[str] = "gine-graph"
    title: ClassVar[str] = GINEConfig.title
    edge_input: ClassVar[EdgeInput] = "optional"
    graph_reduce: Readout = "sum"
    mlp_norm: Norm | None = "batch_norm"


class GatedGCNGraphConfig(GraphsConfig):
    """Settings of a `flax_layers.GraphClassifier` of GatedGCN's layers."""

    model: ClassVar[str] = "gatedgcn-graph"
    title: ClassVar[str] = GatedGCNConfig.title
    edge_input: ClassVar[EdgeInput] = "required"


class PNAGraphConfig(_TowersConfig, GraphsConfig):
    """Settings of a `flax_layers.GraphClassifier` of PNA's layers, of the data's mean degrees.

    The learning rate and no dropout are those of the paper's molecules (ZINC). At the rate of the
    other models, standard deviations of equal messages make the loss jump.
    """

    model: ClassVar[str] = "pna-graph"
    title: ClassVar[str] = PNAConfig.title
    edge_input: ClassVar[EdgeInput] = "optional"

    learning_rate: float = 1e-3
    dropout_rate: float = 0.0


class SchNetConfig(GraphsConfig):
    """Settings of a `flax_layers.SchNet`, a regression on molecules with positions."""

    model: ClassVar[str] = "schnet"
    title: ClassVar[str] = "continuous-filter network of molecules (SchNet, Schütt et al. 2017)"
    excluded: ClassVar[tuple[str, ...]] = (
        *GraphsConfig.excluded,
        *("feature_normalization", "folds", "class_weight"),
    )

    epochs: int = 100
    learning_rate: float = 1e-3
    num_layers: int = 6
    hidden_features: int = 128
    dropout_rate: float = 0.0
    feature_normalization: FeatureNormalization = "none"
    schedule: Literal["constant", "cosine", "step"] = "cosine"
    graph_reduce: Readout = "sum"
    num_filters: int = setting(128, "model", "filters of each interaction", COUNT)
    num_gaussians: int = setting(50, "model", "Gaussians of the distance, 2 or more", _SEVERAL)
    cutoff: float = setting(
        10.0,
        "model",
        "distance within which atoms interact, in the unit of positions",
        POSITIVE,
        metavar="DISTANCE",
    )
    force_weight: float = setting(
        10.0,
        "training",
        "weight of the squared error of forces beside that of energies, where data have forces",
        NON_NEGATIVE,
        metavar="WEIGHT",
    )
