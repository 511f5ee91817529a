"""Input features of a dataset's nodes."""

from __future__ import annotations

import numpy as np

from jax_gnn.datasets import HypergraphDataset
from jax_gnn.training.config import TrainConfig

GENERATED_FEATURES = 100


def node_features(dataset: HypergraphDataset, config: TrainConfig) -> np.ndarray:
    """Returns the features that a training feeds to the model.

    "noisy-label" is what AllSet (arXiv 2106.13264, section 5) gives datasets without features: the
    one-hot label, zero-padded to 100 features, plus Gaussian noise. Every node sees its own label
    through the noise, so accuracies compare only with others obtained the same way. "random" is
    standard Gaussian noise of the same width.

    Args:
        dataset: The dataset.
        config: Its `features`, `feature_noise`, `feature_normalization` and `seed` are used.

    Returns:
        ``(num_nodes, features)`` float32.

    Raises:
        ValueError: "native" features of a dataset that has none.
    """
    if config.features == "native":
        if dataset.x is None:
            raise ValueError(
                f"dataset {dataset.name!r} has no node features; generate them with "
                "features='noisy-label' (one-hot label plus noise, as AllSet does) or 'random'"
            )
        x = np.asarray(dataset.x, np.float32)
    else:
        rng = np.random.default_rng(config.seed)
        width = max(GENERATED_FEATURES, dataset.num_classes)
        x = rng.standard_normal((dataset.num_nodes, width), np.float32)
        if config.features == "noisy-label":
            x *= config.feature_noise
            labelled = np.flatnonzero(dataset.y >= 0)
            x[labelled, dataset.y[labelled]] += 1
    if config.feature_normalization == "row":
        total = np.abs(x).sum(axis=1, keepdims=True)
        x = np.divide(x, total, out=np.zeros_like(x), where=total > 0)
    return x
