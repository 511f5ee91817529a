"""Settings of models that predict edges."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from flax_layers.compgcn import Composition
from flax_layers.graph import Aggregation
from flax_layers.training.config.nodes import FeatureNormalization
from flax_layers.training.config.settings import COUNT, PART, POSITIVE, RATE, WHOLE, Config, Setting
from jax_gnn.extend import Implementation


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
        FeatureNormalization,
        Setting(
            "data",
            "row: divide each node's features by their absolute sum; standardize: give each column "
            "but those of zeros and ones mean 0 and deviation 1; auto: none if all are zeros and "
            "ones, row where else each column is mostly zero and none is negative, else "
            "standardize",
        ),
    ] = "auto"
    sums: ClassVar[bool] = False
    keeps_flags: ClassVar[bool] = True  # as in Kipf and Welling's code: by rows they learn late
    scaling: Mapping[str, Any] | None = None  # means and deviations, once they are known


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
