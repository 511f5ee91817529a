"""Settings of models of graphs with relations."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal

from flax_layers.relational import Norm
from flax_layers.relational_attention import Attention, Softmax
from flax_layers.training.config.nodes import FeatureNormalization
from flax_layers.training.config.sampled import SampledConfig
from flax_layers.training.config.settings import COUNT, RATE, WHOLE, Setting

_Share = Annotated[
    float,
    Setting(
        "training",
        "share of a published split's training nodes that validate, where it has no others",
        RATE,
        "SHARE",
    ),
]
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
class RGCNConfig(SampledConfig):
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
    validation_share: _Share = 0.2
    norm: Annotated[Norm, Setting("model", "what becomes of a node's edges of one relation")] = (
        "mean"
    )
    num_bases: _Bases = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TypedConfig(SampledConfig):
    """What models of typed nodes share."""

    embeds: ClassVar[bool] = True

    learning_rate: float = 0.005
    feature_normalization: FeatureNormalization = "row"
    features: Annotated[
        Literal["none", "native", "noisy-label", "random"],
        Setting(
            "data",
            "node features: the dataset's, with embeddings of the nodes of types that have none; "
            "none, embeddings for all; one-hot labels under Gaussian noise; or noise alone",
        ),
    ] = "native"  # type: ignore[assignment]  # one word more
    validation_share: _Share = 0.2
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
