"""Settings of models that predict edges."""

from __future__ import annotations

from typing import ClassVar, Literal

from flax_layers.compgcn import Composition
from flax_layers.graph import Aggregation
from flax_layers.training.config.nodes import DirectionConfig, FeatureNormalization, Scaling
from flax_layers.training.config.optimizer import OptimizerConfig
from flax_layers.training.config.settings import COUNT, PART, RATE, WHOLE, setting
from jax_gnn.extend import Implementation


class LinkConfig(OptimizerConfig):
    """Settings of every training for link prediction; use the subclass of the model."""

    # The optimizer, and the split of the edges.
    epochs: int = setting(200, "training", "passes over the training edges", COUNT)
    learning_rate: float = 0.003
    evaluate_every: int = setting(10, "training", "epochs between two validations", COUNT)
    seed: int = setting(0, "training", "seed of parameters, batches, dropout and splits", WHOLE)
    valid_share: float = setting(
        0.1, "data", "share of edges that validate, where data have no split", PART, flag="--valid"
    )
    test_share: float = setting(
        0.1, "data", "share of edges to test on, where data have no split", PART, flag="--test"
    )
    # The encoder.
    num_layers: int = setting(1, "model", "number of convolutions", COUNT, flag="--layers")
    dropout_rate: float = setting(0.3, "model", "dropout of encoded nodes", RATE, flag="--dropout")
    implementation: Implementation | None = setting(
        None, "execution", "kernels of the aggregation: this library's custom call, or plain XLA"
    )


class _FactsConfig(LinkConfig):
    """Settings of models of edges with relations."""

    # Queries of a step, and their loss.
    batch_size: int = setting(1024, "training", "queries (node, relation) per step", COUNT)
    loss: Literal["softmax", "sigmoid", "negatives"] = setting(
        "softmax",
        "training",
        "cross-entropy of all nodes for each query, binary cross-entropy of all nodes, or that of "
        "the answers and of random nodes",
    )
    label_smoothing: float = setting(
        0.1, "training", "share of the target spread over all nodes", RATE, metavar="SHARE"
    )
    num_negatives: int = setting(10, "training", "random nodes per fact", COUNT, flag="--negatives")
    leave_out: bool = setting(False, "training", "hide the edges that a step asks for")
    # The decoder, and the widths that it takes.
    decoder: Literal["distmult", "complex", "conve"] = setting(
        "distmult", "model", "score of edges"
    )
    embedding_features: int = setting(200, "model", "features of the nodes' embeddings", COUNT)
    hidden_features: int = setting(200, "model", "features after each convolution", COUNT)
    decoder_dropout_rate: float = setting(
        0.3, "model", "share dropped inside ConvE", RATE, flag="--decoder-dropout"
    )


class _EdgesConfig(DirectionConfig, LinkConfig):
    """Settings of encoders of a `flax_layers.GAE`; the defaults are Kipf and Welling's."""

    # See `TrainConfig`. Columns of zeros and ones stay, as in Kipf and Welling's code: models of
    # normalized rows learn late.
    embeds: ClassVar[bool] = False
    keeps_flags: ClassVar[bool] = True
    sums: ClassVar[bool] = False

    learning_rate: float = 0.01
    valid_share: float = 0.05
    num_layers: int = 2
    hidden_features: int = setting(32, "model", "features between two convolutions", COUNT)
    embedding_features: int = setting(16, "model", "features whose products score edges", COUNT)
    dropout_rate: float = setting(0.0, "model", "dropout between layers", RATE, flag="--dropout")
    variational: bool = setting(False, "model", "a VGAE: embeddings are drawn in training")
    features: Literal["native", "random"] = setting(
        "native", "data", "the dataset's, or random ones"
    )
    feature_normalization: FeatureNormalization = setting(
        "auto",
        "data",
        "row: divide each node's features by their absolute sum; standardize: give each column "
        "but those of zeros and ones mean 0 and deviation 1; auto: none if all are zeros and "
        "ones, row where else each column is mostly zero and none is negative, else standardize",
    )
    edge_split: Literal["auto", "random", "time"] = setting(
        "auto",
        "data",
        "random; time: the last edges test, those before them validate; auto: time where edges "
        "have times",
    )
    scaling: Scaling | None = None  # statistics of the training's data


class GCNLinkConfig(_EdgesConfig):
    """Settings of a `flax_layers.GCN` as encoder of a `flax_layers.GAE`."""

    model: ClassVar[str] = "gcn-link"
    title: ClassVar[str] = (
        "graph autoencoder of a graph convolutional network (GAE, Kipf and Welling 2016)"
    )


class SAGELinkConfig(_EdgesConfig):
    """Settings of a `flax_layers.SAGE` as encoder of a `flax_layers.GAE`."""

    model: ClassVar[str] = "sage-link"
    title: ClassVar[str] = "graph autoencoder of GraphSAGE"
    reduce: Aggregation = setting("mean", "model", "reduction of a node's messages")


class GATLinkConfig(_EdgesConfig):
    """Settings of a `flax_layers.GAT` as encoder of a `flax_layers.GAE`."""

    model: ClassVar[str] = "gat-link"
    title: ClassVar[str] = "graph autoencoder of a graph attention network"
    heads: int = setting(4, "model", "heads of all convolutions but the last, which has one", COUNT)


class RGCNLinkConfig(_FactsConfig):
    """Settings of a `flax_layers.RGCN` as encoder of a `flax_layers.LinkPredictor`."""

    model: ClassVar[str] = "rgcn-link"
    title: ClassVar[str] = (
        "relational graph convolutional network (R-GCN, Schlichtkrull et al. 2018)"
    )
    num_bases: int = setting(
        0,
        "model",
        "bases that the weights of relations are mixed from; 0: see --blocks",
        WHOLE,
        flag="--bases",
    )
    num_blocks: int = setting(
        40,
        "model",
        "blocks of the weights of relations, where there are no bases",
        COUNT,
        flag="--blocks",
    )


class CompGCNLinkConfig(_FactsConfig):
    """Settings of a `flax_layers.CompGCN` as encoder of a `flax_layers.LinkPredictor`."""

    model: ClassVar[str] = "compgcn-link"
    title: ClassVar[str] = "composition-based network (CompGCN, Vashishth et al. 2020)"
    embedding_features: int = 100
    composition: Composition = setting("mult", "model", "composition of nodes with relations")
