"""Settings of a training; each says here, once, what the command line says of it and checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

from flax_layers.compgcn import Composition
from flax_layers.graph import Aggregation
from flax_layers.hypergraph_attention import Degrees
from flax_layers.readout import Readout
from flax_layers.relational import Norm
from flax_layers.relational_attention import Attention, Softmax
from jax_gnn.extend import Implementation, Normalization


class Number(NamedTuple):
    """A range of numbers."""

    kind: type[int] | type[float]
    expected: str
    accept: Callable[[float], bool]


COUNT = Number(int, "a whole number from 1 to 2147483647", lambda value: 1 <= value < 2**31)
WHOLE = Number(int, "a whole number from 0 to 2147483647", lambda value: 0 <= value < 2**31)
POSITIVE = Number(float, "a positive number", lambda value: 0 < value < math.inf)
NON_NEGATIVE = Number(float, "a number from 0", lambda value: 0 <= value < math.inf)
PART = Number(float, "a number between 0 and 1", lambda value: 0 < value < 1)
RATE = Number(float, "a number from 0 to below 1", lambda value: 0 <= value < 1)


class Setting(NamedTuple):
    """What a field is annotated with.

    Attributes:
        group: Heading of the command's help.
        help: One line; for a switch, which is off by default, what it does.
        number: The range of numbers, if it takes numbers.
        metavar: Stands for the number in the command's help.
        flag: The command's option; None makes it of the field's name.
        choices: The words to choose from, None among them, if it takes words; `settings` fills this
            in from the field's type.
    """

    group: Literal["data", "model", "training", "execution"]
    help: str
    number: Number | None = None
    metavar: str | None = None
    flag: str | None = None
    choices: tuple[str | None, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Base of all settings.

    Raises:
        ValueError: A value is out of range.
    """

    model: ClassVar[str]

    def __post_init__(self) -> None:
        for name, setting in settings(type(self)).items():
            value = getattr(self, name)
            if setting.number and not setting.number.accept(value):
                raise ValueError(f"{name} must be {setting.number.expected}, got {value}")
            if setting.choices and value not in setting.choices:
                raise ValueError(f"{name} must be one of {setting.choices}, got {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """Settings of every training of node classifiers; use the subclass of the model.

    Raises:
        ValueError: A value is out of range.
    """

    embeds: ClassVar[bool] = False  # whether nodes without features have embeddings
    # Defaults for datasets of a format, by which a model was published.
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    splits: Annotated[
        int,
        Setting(
            "training",
            "models to train, each from a seed of its own and, where splits are random, on its own",
            COUNT,
            "N",
        ),
    ] = 10
    split: Annotated[
        Literal["auto", "published", "random"],
        Setting(
            "training",
            "the dataset's published split; random ones into 50% training, 25% validation and 25% "
            "test nodes; or auto: published if there is one",
        ),
    ] = "auto"
    epochs: Annotated[int, Setting("training", "full-batch steps per split", COUNT, "N")] = 200
    learning_rate: Annotated[float, Setting("training", "of Adam", POSITIVE, "RATE")] = 0.01
    weight_decay: Annotated[
        float, Setting("training", "L2 penalty in the gradient", NON_NEGATIVE, "RATE")
    ] = 5e-4
    weight_decay_layers: Annotated[
        Literal["all", "first"], Setting("training", "convolutions whose parameters decay")
    ] = "all"
    seed: Annotated[
        int,
        Setting(
            "training", "split i draws its nodes, parameters and dropout from seed + i", WHOLE, "N"
        ),
    ] = 0
    num_layers: Annotated[int, Setting("model", "convolutions", COUNT, "N", "--layers")] = 2
    hidden_features: Annotated[
        int, Setting("model", "features between two convolutions", COUNT, "N")
    ] = 64
    dropout_rate: Annotated[
        float,
        Setting(
            "model", "share of hidden activations dropped in training", RATE, "RATE", "--dropout"
        ),
    ] = 0.5
    input_dropout_rate: Annotated[
        float,
        Setting(
            "model", "share of input features dropped in training", RATE, "RATE", "--input-dropout"
        ),
    ] = 0.0
    features: Annotated[
        Literal["native", "noisy-label", "random"],
        Setting(
            "data",
            "node features: the dataset's own, one-hot labels under Gaussian noise (AllSet's "
            "substitute where a dataset has none), or noise alone",
        ),
    ] = "native"
    feature_noise: Annotated[
        float,
        Setting("data", "standard deviation of the noise of noisy-label", NON_NEGATIVE, "STD"),
    ] = 1.0
    feature_normalization: Annotated[
        Literal["auto", "none", "row", "standardize"],
        Setting(
            "data",
            "row: divide each node's features by their absolute sum; standardize: give each column "
            "but those of zeros and ones mean 0 and deviation 1 over all nodes, of gin rows of "
            "length 1 thereby; auto: row where "
            "each column is mostly zero and none is negative, else standardize",
        ),
    ] = "none"
    sums: ClassVar[bool] = False  # whether the model adds up neighbours, however many there are
    scaling: Mapping[str, Any] | None = None  # means and deviations by type, once they are known
    target_scaling: Any = None  # mean and deviation of each number to regress on
    implementation: Annotated[
        Implementation | None,
        Setting(
            "execution",
            "of the aggregation: this library's custom call for the platform, or plain XLA",
        ),
    ] = None


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
class _HeadsConfig(TrainConfig):
    """What models with heads share; dropout as Veličković et al. have it."""

    dropout_rate: float = 0.6
    input_dropout_rate: float = 0.6
    heads: Annotated[
        int, Setting("model", "heads of all convolutions but the last, which has one", COUNT, "N")
    ] = 8
    attention_dropout_rate: Annotated[
        float, Setting("model", "share of attention weights dropped in training", RATE, "RATE")
    ] = 0.6


@dataclasses.dataclass(frozen=True, kw_only=True)
class _AttentionConfig(_HeadsConfig, HypergraphConfig):
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


_FeatureNormalization = Literal["auto", "none", "row", "standardize"]
_PLANETOID = {"input_dropout_rate": 0.5, "feature_normalization": "row"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WeightedConfig(TrainConfig):
    """What models of graphs whose edges may have weights share."""

    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {"planetoid": _PLANETOID}

    feature_normalization: _FeatureNormalization = "auto"
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
    """Settings of a `flax_layers.GIN`."""

    model: ClassVar[str] = "gin"
    sums: ClassVar[bool] = True

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
class GATConfig(_HeadsConfig):
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
    feature_normalization: _FeatureNormalization = "auto"


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
    feature_normalization: _FeatureNormalization = "auto"
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


_Bases = Annotated[
    int,
    Setting(
        "model",
        "bases that the weights of relations are mixed from; 0: each has weights of its own",
        WHOLE,
        "N",
        "--bases",
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RGCNConfig(TrainConfig):
    """Settings of a `flax_layers.RGCN`; the defaults are those of the authors' code for AIFB.

    For MUTAG it has 30 bases and a weight decay of 5e-4.
    """

    model: ClassVar[str] = "rgcn"

    epochs: int = 50
    weight_decay: float = 0.0
    weight_decay_layers: Literal["all", "first"] = "first"
    hidden_features: int = 16
    dropout_rate: float = 0.0
    features: Annotated[
        Literal["none", "native", "noisy-label", "random"],
        Setting(
            "data",
            "node features: none, so that each node has rows of weights of its own; the dataset's, "
            "of types of nodes through a linear map each; one-hot labels under Gaussian noise; or "
            "noise alone",
        ),
    ] = "none"  # type: ignore[assignment]  # one word more
    validation_share: Annotated[
        float,
        Setting(
            "training",
            "share of a published split's training nodes that validate, where it has no others",
            RATE,
            "SHARE",
        ),
    ] = 0.2
    norm: Annotated[Norm, Setting("model", "what becomes of a node's edges of one relation")] = (
        "mean"
    )
    num_bases: _Bases = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkConfig(Config):
    """Settings of every training for link prediction; use the subclass of the model."""

    epochs: Annotated[int, Setting("training", "passes over the training edges", COUNT, "N")] = 200
    learning_rate: Annotated[float, Setting("training", "of Adam", POSITIVE, "RATE")] = 0.003
    evaluate_every: Annotated[
        int, Setting("training", "epochs between two validations", COUNT, "N")
    ] = 10
    seed: Annotated[
        int, Setting("training", "of parameters, batches, dropout and random splits", WHOLE, "N")
    ] = 0
    valid_share: Annotated[
        float,
        Setting(
            "data",
            "share of edges that validate, where data have no split",
            PART,
            "SHARE",
            "--valid",
        ),
    ] = 0.1
    test_share: Annotated[
        float,
        Setting(
            "data", "share of edges to test on, where data have no split", PART, "SHARE", "--test"
        ),
    ] = 0.1
    num_layers: Annotated[int, Setting("model", "convolutions", COUNT, "N", "--layers")] = 1
    dropout_rate: Annotated[
        float,
        Setting("model", "share of encoded nodes dropped in training", RATE, "RATE", "--dropout"),
    ] = 0.3
    implementation: Annotated[
        Implementation | None,
        Setting("execution", "of the aggregation: this library's custom call, or plain XLA"),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FactsConfig(LinkConfig):
    """What models of edges with relations share."""

    batch_size: Annotated[
        int, Setting("training", "queries, of a node and a relation, per step", COUNT, "N")
    ] = 1024
    loss: Annotated[
        Literal["softmax", "sigmoid", "negatives"],
        Setting(
            "training",
            "cross-entropy of all nodes for each query, binary cross-entropy of all nodes, or that "
            "of the answers and of random nodes",
        ),
    ] = "softmax"
    label_smoothing: Annotated[
        float, Setting("training", "share of the target spread over all nodes", RATE, "SHARE")
    ] = 0.1
    num_negatives: Annotated[
        int,
        Setting("training", "random nodes for each answer", COUNT, "N", "--negatives"),
    ] = 10
    leave_out: Annotated[
        bool, Setting("training", "each step leaves the edges that it asks for out of the graph")
    ] = False
    decoder: Annotated[
        Literal["distmult", "complex", "conve"], Setting("model", "what scores edges")
    ] = "distmult"
    embedding_features: Annotated[
        int, Setting("model", "features of the nodes' embeddings", COUNT, "N")
    ] = 200
    hidden_features: Annotated[
        int, Setting("model", "features after each convolution", COUNT, "N")
    ] = 200
    decoder_dropout_rate: Annotated[
        float,
        Setting("model", "share dropped inside ConvE", RATE, "RATE", "--decoder-dropout"),
    ] = 0.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class _EdgesConfig(LinkConfig):
    """What encoders of a `flax_layers.GAE` share; the defaults are Kipf and Welling's."""

    scaling: ClassVar[None] = None
    embeds: ClassVar[bool] = False

    learning_rate: float = 0.01
    valid_share: float = 0.05
    num_layers: int = 2
    hidden_features: Annotated[
        int, Setting("model", "features between two convolutions", COUNT, "N")
    ] = 32
    embedding_features: Annotated[
        int, Setting("model", "features of which edges are scored by products", COUNT, "N")
    ] = 16
    dropout_rate: Annotated[
        float,
        Setting(
            "model", "share of hidden activations dropped in training", RATE, "RATE", "--dropout"
        ),
    ] = 0.0
    variational: Annotated[
        bool, Setting("model", "a VGAE: in training embeddings are drawn from distributions")
    ] = False
    features: Annotated[
        Literal["native", "random"],
        Setting("data", "node features: the dataset's, or random ones"),
    ] = "native"
    feature_normalization: Annotated[
        Literal["none", "row"],
        Setting("data", "row: divide each node's features by their absolute sum"),
    ] = "row"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GCNLinkConfig(_EdgesConfig):
    """Settings of a `flax_layers.GCN` as encoder of a `flax_layers.GAE`."""

    model: ClassVar[str] = "gcn-link"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SAGELinkConfig(_EdgesConfig):
    """Settings of a `flax_layers.SAGE` as encoder of a `flax_layers.GAE`."""

    model: ClassVar[str] = "sage-link"

    aggregation: Annotated[Aggregation, Setting("model", "what becomes of a node's messages")] = (
        "mean"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GATLinkConfig(_EdgesConfig):
    """Settings of a `flax_layers.GAT` as encoder of a `flax_layers.GAE`."""

    model: ClassVar[str] = "gat-link"

    heads: Annotated[
        int, Setting("model", "heads of all convolutions but the last, which has one", COUNT, "N")
    ] = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class RGCNLinkConfig(_FactsConfig):
    """Settings of a `flax_layers.RGCN` as encoder of a `flax_layers.LinkPredictor`."""

    model: ClassVar[str] = "rgcn-link"

    num_bases: Annotated[
        int,
        Setting(
            "model",
            "bases that the weights of relations are mixed from; 0: see --blocks",
            WHOLE,
            "N",
            "--bases",
        ),
    ] = 0
    num_blocks: Annotated[
        int,
        Setting(
            "model",
            "blocks of the weights of relations, where there are no bases",
            COUNT,
            "N",
            "--blocks",
        ),
    ] = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompGCNLinkConfig(_FactsConfig):
    """Settings of a `flax_layers.CompGCN` as encoder of a `flax_layers.LinkPredictor`."""

    model: ClassVar[str] = "compgcn-link"

    embedding_features: int = 100
    composition: Annotated[
        Composition, Setting("model", "how nodes are composed with relations")
    ] = "mult"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TypedConfig(TrainConfig):
    """What models of typed nodes share."""

    embeds: ClassVar[bool] = True

    learning_rate: float = 0.005
    feature_normalization: _FeatureNormalization = "row"
    features: Annotated[
        Literal["none", "native", "noisy-label", "random"],
        Setting(
            "data",
            "node features: the dataset's, with embeddings of the nodes of types that have none; "
            "none, embeddings for all; one-hot labels under Gaussian noise; or noise alone",
        ),
    ] = "native"  # type: ignore[assignment]  # one word more
    validation_share: Annotated[
        float,
        Setting(
            "training",
            "share of a published split's training nodes that validate, where it has no others",
            RATE,
            "SHARE",
        ),
    ] = 0.2
    heads: Annotated[
        int, Setting("model", "heads of each convolution; of RGAT the last has one", COUNT, "N")
    ] = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class RGATConfig(_TypedConfig):
    """Settings of a `flax_layers.RGAT`, after a linear map for each type of nodes."""

    model: ClassVar[str] = "rgat"

    weight_decay: float = 1e-4
    hidden_features: int = 128
    input_dropout_rate: float = 0.2
    attention_dropout_rate: Annotated[
        float, Setting("model", "share of attention weights dropped in training", RATE, "RATE")
    ] = 0.2
    attention: Annotated[
        Attention, Setting("model", "whether scores of both ends are added or multiplied")
    ] = "additive"
    softmax: Annotated[
        Softmax, Setting("model", "over all edges into a node, or within each relation")
    ] = "across"
    num_bases: _Bases = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class HGTConfig(_TypedConfig):
    """Settings of a `flax_layers.HGT`, after a linear map for each type of nodes."""

    model: ClassVar[str] = "hgt"

    epochs: int = 300
    weight_decay: float = 1e-4
    learning_rate: float = 0.003
    input_dropout_rate: float = 0.2


def settings(config: type[Config]) -> dict[str, Setting]:
    """The settings of a class of configurations, by field.

    A subclass that gives a field another default need not repeat the setting.
    """
    found = {}
    left_out = getattr(config, "left_out", ())
    for base in reversed(config.__mro__):
        for name, hint in get_type_hints(base, include_extras=True).items():
            for setting in getattr(hint, "__metadata__", ()):
                found[name] = setting._replace(choices=tuple(_words(hint.__origin__)))
    return {name: setting for name, setting in found.items() if name not in left_out}


def _words(hint: Any) -> Iterator[str | None]:
    """The words of a Literal, or of a union of them and None."""
    for part in get_args(hint):
        yield from (
            [None] if part is type(None) else [part] if isinstance(part, str) else _words(part)
        )
