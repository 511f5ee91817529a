"""Settings of a training."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, get_args

from jax_gnn._ffi import Implementation
from jax_gnn.hypergraph_aggregate import Normalization

Features = Literal["native", "noisy-label", "random"]
FeatureNormalization = Literal["none", "row"]
SelfLoops = Literal["none", "isolated", "all"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of `train_hgnn`; the defaults are those of ``jax-gnn train hgnn``.

    Attributes:
        splits: Random splits into 50 % training, 25 % validation and 25 % test nodes, a model each.
        epochs: Full-batch steps per split.
        hidden_features: Features between the two convolutions.
        learning_rate: Of Adam.
        weight_decay: L2 penalty added to the gradient, as `torch.optim.Adam` does; hyperedge
            weights are exempt.
        dropout_rate: Share of hidden activations dropped in training.
        normalization: "symmetric" or "row", see `flax_layers.HGNNConv`.
        learnable_hyperedge_weights: Whether each convolution learns a positive weight per
            hyperedge.
        self_loops: Nodes that get a hyperedge of their own.
        features: The dataset's own features, its one-hot labels under noise, or noise alone.
        feature_noise: Standard deviation of the noise of "noisy-label".
        feature_normalization: "row" divides each node's features by their absolute sum.
        seed: Split i uses seed + i for its split, initial parameters and dropout.
        implementation: Of `jax_gnn.hypergraph_aggregate`; None chooses by platform.

    Raises:
        ValueError: A value is out of range.
    """

    splits: int = 10
    epochs: int = 200
    hidden_features: int = 64
    learning_rate: float = 0.01
    weight_decay: float = 5e-3
    dropout_rate: float = 0.5
    normalization: Normalization = "symmetric"
    learnable_hyperedge_weights: bool = False
    self_loops: SelfLoops = "isolated"
    features: Features = "native"
    feature_noise: float = 1.0
    feature_normalization: FeatureNormalization = "none"
    seed: int = 0
    implementation: Implementation | None = None

    def __post_init__(self) -> None:
        for name in ("splits", "epochs", "hidden_features"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be finite and positive, got {self.learning_rate}")
        for name in ("weight_decay", "feature_noise", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be finite and not negative, got {getattr(self, name)}"
                )
        if not 0 <= self.dropout_rate < 1:
            raise ValueError(f"dropout_rate must lie in [0, 1), got {self.dropout_rate}")
        choices = {
            "normalization": get_args(Normalization),
            "self_loops": get_args(SelfLoops),
            "features": get_args(Features),
            "feature_normalization": get_args(FeatureNormalization),
            "implementation": (None, *get_args(Implementation)),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
