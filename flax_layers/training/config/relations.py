"""Settings of models of graphs with relations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from flax_layers.relational import Norm
from flax_layers.relational_attention import Attention, Softmax
from flax_layers.training.config.nodes import Defaults, FeatureNormalization, SampledConfig
from flax_layers.training.config.settings import COUNT, RATE, WHOLE, setting

_BASES_HELP = "bases that the weights of relations are mixed from; 0: each has weights of its own"


class RelationalConfig(SampledConfig):
    """Settings of all models of graphs with relations."""

    validation_share: float = setting(
        0.2,
        "training",
        "share of a published split's training nodes that validate, where it has no others",
        RATE,
        metavar="SHARE",
    )


class RGCNConfig(RelationalConfig):
    """Settings of a `flax_layers.RGCN`; the defaults are those of the authors' code for AIFB.

    For MUTAG it has 30 bases and a weight decay of 5e-4.
    """

    model: ClassVar[str] = "rgcn"
    title: ClassVar[str] = (
        "relational graph convolutional network (R-GCN, Schlichtkrull et al. 2018)"
    )
    published: ClassVar[Mapping[str, Defaults]] = {
        "tables": {
            "features": "native",
            "feature_normalization": "auto",
            "hidden_features": 64,
            "dropout_rate": 0.5,
            "weight_decay": 5e-4,
            "epochs": 200,
        }
    }
    epochs: int = 50
    # As in the authors' code, only the first convolution decays.
    weight_decay: float = 0.0
    weight_decay_layers: Literal["all", "first"] = "first"
    hidden_features: int = 16
    dropout_rate: float = 0.0
    features: Literal["none", "native", "noisy-label", "random"] = setting(  # type: ignore[assignment]
        "none",
        "data",
        "node features: none, so that each node has rows of weights of its own; the dataset's, "
        "of types of nodes through a linear map each; one-hot labels under Gaussian noise; or "
        "noise alone",
    )
    normalization: Norm = setting("mean", "model", "reduction of a node's edges of one relation")
    num_bases: int = setting(0, "model", _BASES_HELP, WHOLE, flag="--bases")


class _TypedConfig(RelationalConfig):
    """Settings of models of typed nodes."""

    embeds: ClassVar[bool] = True

    learning_rate: float = 0.005
    feature_normalization: FeatureNormalization = "row"
    features: Literal["none", "native", "noisy-label", "random"] = setting(  # type: ignore[assignment]
        "native",
        "data",
        "node features: the dataset's, with embeddings of the nodes of types that have none; "
        "none, embeddings for all; one-hot labels under Gaussian noise; or noise alone",
    )
    heads: int = setting(8, "model", "heads of each convolution; of RGAT the last has one", COUNT)


class RGATConfig(_TypedConfig):
    """Settings of a `flax_layers.RGAT`, after a linear map for each type of nodes."""

    model: ClassVar[str] = "rgat"
    title: ClassVar[str] = "relational graph attention network (RGAT, Busbridge et al. 2019)"
    weight_decay: float = 1e-4
    hidden_features: int = 128
    input_dropout_rate: float = 0.2
    attention_dropout_rate: float = setting(0.2, "model", "dropout of attention weights", RATE)
    attention: Attention = setting("additive", "model", "scores of ends, added or multiplied")
    softmax: Softmax = setting("across", "model", "over all edges into a node, or by relation")
    num_bases: int = setting(0, "model", _BASES_HELP, WHOLE, flag="--bases")


class SimpleHGNConfig(_TypedConfig):
    """Settings of a `flax_layers.SimpleHGN`, after a linear map for each type of nodes."""

    model: ClassVar[str] = "simplehgn"
    title: ClassVar[str] = "simple heterogeneous graph network (Simple-HGN, Lv et al. 2021)"
    epochs: int = 300
    weight_decay: float = 1e-4
    learning_rate: float = 5e-4
    attention_dropout_rate: float = setting(0.5, "model", "dropout of attention weights", RATE)
    relation_features: int = setting(64, "model", "features of a relation's embedding", COUNT)
    beta: float = setting(0.05, "model", "share of the previous layer's attention", RATE)
    l2_normalize: bool = setting(False, "model", "divide each row of results by its norm")


class HGTConfig(_TypedConfig):
    """Settings of a `flax_layers.HGT`, after a linear map for each type of nodes."""

    model: ClassVar[str] = "hgt"
    title: ClassVar[str] = "heterogeneous graph transformer (HGT, Hu et al. 2020)"
    epochs: int = 300
    weight_decay: float = 1e-4
    learning_rate: float = 0.003
    input_dropout_rate: float = 0.2
