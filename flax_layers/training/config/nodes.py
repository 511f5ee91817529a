"""Settings of every training of classifiers, of nodes or of graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from flax_layers.training.config.optimizer import OptimizerConfig
from flax_layers.training.config.settings import (
    COUNT,
    COUNTS,
    NON_NEGATIVE,
    RATE,
    WHOLE,
    Config,
    setting,
)
from jax_gnn.extend import Implementation

FeatureNormalization = Literal["auto", "none", "row", "standardize"]
Direction = Literal["auto", "directed", "undirected"]
EdgeInput = Literal["", "optional", "required"]  # features of edges in a model's calls
Defaults = Mapping[str, float | str]  # by field
Scaling = Mapping[str, list[list[float]]]  # means and deviations of columns, by type of nodes

_FANOUT = 10  # edges drawn in each layer if no fanouts are set


class TrainConfig(OptimizerConfig):
    """Settings of every training of node classifiers; use the subclass of the model.

    Raises:
        ValueError: A value is out of range.
    """

    # Properties of the model: whether nodes without features have embeddings, whether "auto" leaves
    # columns of zeros and ones alone, whether sums over neighbours are not divided by their number.
    embeds: ClassVar[bool] = False
    keeps_flags: ClassVar[bool] = False
    # Whether the model's calls take features of edges.
    edge_input: ClassVar[EdgeInput] = ""
    sums: ClassVar[bool] = False
    # Defaults for datasets of a format, by which the model was published; columns of tables have
    # units of their own.
    published: ClassVar[Mapping[str, Defaults]] = {"tables": {"feature_normalization": "auto"}}

    # The runs, and the optimizer of each.
    splits: int = setting(
        10,
        "training",
        "models to train, each from a seed of its own and, where splits are random, on its own",
        COUNT,
    )
    split: Literal["auto", "published", "random", "time"] = setting(
        "auto",
        "training",
        "the dataset's published split; random ones into 50% training, 25% validation and 25% "
        "test nodes; time: as many, of which the earliest train and the last test; or auto: "
        "published if there is one, else by time if there are times",
    )
    epochs: int = setting(200, "training", "full-batch steps per split", COUNT)
    weight_decay: float = setting(5e-4, "training", "L2 penalty in the gradient", NON_NEGATIVE)
    weight_decay_layers: Literal["all", "first"] = setting("all", "training", "layers that decay")
    class_weight: Literal["none", "balanced"] = setting(
        "none", "training", "balanced: classes count alike in the loss, however large they are"
    )
    seed: int = setting(0, "training", "split i draws everything from seed + i", WHOLE)
    # Sizes of the model, and its dropout.
    num_layers: int = setting(2, "model", "number of convolutions", COUNT, flag="--layers")
    hidden_features: int = setting(64, "model", "features between two convolutions", COUNT)
    dropout_rate: float = setting(0.5, "model", "dropout between layers", RATE, flag="--dropout")
    input_dropout_rate: float = setting(
        0.0, "model", "share of input features dropped in training", RATE, flag="--input-dropout"
    )
    # The features.
    features: Literal["native", "noisy-label", "random"] = setting(
        "native",
        "data",
        "node features: the dataset's own, one-hot labels under Gaussian noise (AllSet's "
        "substitute where a dataset has none), or noise alone",
    )
    feature_noise: float = setting(
        1.0, "data", "standard deviation of the noise of noisy-label", NON_NEGATIVE, metavar="STD"
    )
    feature_normalization: FeatureNormalization = setting(
        "none",
        "data",
        "row: divide each node's features by their absolute sum; standardize: give each column "
        "but those of zeros and ones mean 0 and deviation 1 over all nodes, and for gin rows of "
        "length 1; auto: row where each column is mostly zero and none is negative, else "
        "standardize; all but none standardize features of edges",
    )
    # Statistics of the training's data, which `settled` and `target_scaled` fill in.
    scaling: Scaling | None = None
    target_scaling: list[list[float]] | None = None
    edge_scaling: list[list[float]] | None = None
    multilabel: bool = False  # whether nodes have several classes each
    edge_in_features: int | None = None
    implementation: Implementation | None = setting(
        None,
        "execution",
        "kernels of the aggregation: this library's custom call for the platform, or plain XLA",
    )


class DirectionConfig(Config):
    """Settings of models of edges whose reverses may be added."""

    direction: Direction = setting(
        "auto",
        "data",
        "directed, undirected, or auto: undirected if less than 10% of the edges have their "
        "reverse, and always where edges have relations",
        switches=(
            "train on the edges as they are, in their direction",
            "train on both directions of each edge, and with relations on inverse ones, too "
            "(default: both directions with relations, or if less than 10% of the edges have "
            "their reverse)",
        ),
    )


class HeadsConfig(TrainConfig):
    """Settings of models with heads; dropout rates are those of Veličković et al."""

    dropout_rate: float = 0.6
    input_dropout_rate: float = 0.6
    heads: int = setting(8, "model", "heads of all convolutions but the last, which has one", COUNT)
    attention_dropout_rate: float = setting(0.6, "model", "dropout of attention weights", RATE)


class SampledConfig(DirectionConfig, TrainConfig):
    """Settings of trainings whose steps are on the whole graph, or on batches of seed nodes.

    Raises:
        ValueError: A value is out of range, or `fanouts`, `disjoint` or `edge_time` are set without
            a `batch_size`, or fanouts are not one for each layer.
    """

    batch_size: int | None = setting(
        None,
        "training",
        "nodes per step, of which an epoch has all training nodes once; none: each step is on the "
        "whole graph",
        COUNT._replace(accept=lambda value: value is None or COUNT.accept(value)),
    )
    fanouts: tuple[int, ...] = setting(
        (),
        "training",
        "with --batch-size: number of edges drawn into each node, for each layer, that of the "
        f"batch first; all: as many as there are; none: {_FANOUT} in each",
        COUNTS,
    )
    disjoint: bool = setting(
        False, "training", "with --batch-size: neighbourhoods of two nodes share no rows"
    )
    edge_time: bool = setting(
        False,
        "data",
        "with --batch-size: a node sees only the edges up to its own time, in training and after",
    )

    def __post_init__(self) -> None:
        if isinstance(self.fanouts, list):  # JSON of a checkpoint has no tuples
            object.__setattr__(self, "fanouts", tuple(self.fanouts))
        super().__post_init__()
        if self.fanouts and not self.batch_size:
            raise ValueError(
                f"fanouts need a batch_size, the nodes of a step, got fanouts={self.fanouts} alone"
            )
        for name in ("disjoint", "edge_time"):
            if getattr(self, name) and not self.batch_size:
                raise ValueError(f"{name} needs a batch_size, the nodes of a step")
        if self.fanouts and len(self.fanouts) != self.num_layers:
            raise ValueError(
                f"fanouts must be one for each of num_layers = {self.num_layers} layers, got "
                f"{self.fanouts}"
            )

    @property
    def layer_fanouts(self) -> tuple[int, ...]:
        """Number of edges drawn into each node by layer, that of the batch first; -1 for all."""
        return self.fanouts or (_FANOUT,) * self.num_layers
