"""Settings of every training of classifiers, of nodes or of graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from flax_layers.training.config.settings import (
    COUNT,
    NON_NEGATIVE,
    POSITIVE,
    RATE,
    WHOLE,
    Config,
    Setting,
)
from jax_gnn.extend import Implementation

FeatureNormalization = Literal["auto", "none", "row", "standardize"]


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
        FeatureNormalization,
        Setting(
            "data",
            "row: divide each node's features by their absolute sum; standardize: give each column "
            "but those of zeros and ones mean 0 and deviation 1 over all nodes, of gin rows of "
            "length 1 thereby; auto: row where "
            "each column is mostly zero and none is negative, else standardize",
        ),
    ] = "none"
    keeps_flags: ClassVar[bool] = False  # whether "auto" leaves columns of zeros and ones alone
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
class HeadsConfig(TrainConfig):
    """What models with heads share; dropout as Veličković et al. have it."""

    dropout_rate: float = 0.6
    input_dropout_rate: float = 0.6
    heads: Annotated[
        int, Setting("model", "heads of all convolutions but the last, which has one", COUNT, "N")
    ] = 8
    attention_dropout_rate: Annotated[
        float, Setting("model", "share of attention weights dropped in training", RATE, "RATE")
    ] = 0.6
