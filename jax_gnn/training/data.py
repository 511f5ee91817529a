"""What a training reads from a dataset."""

from __future__ import annotations

import numpy as np

from jax_gnn.datasets import (
    HypergraphDataset,
    with_noisy_label_features,
    with_random_features,
)
from jax_gnn.training.config import TrainConfig

_GENERATED_FEATURES = 100
_MIN_LABELLED = 4  # for a node in each part of a 50/25/25 split


def check_dataset(dataset: HypergraphDataset, config: TrainConfig) -> None:
    """Checks that a dataset can be trained on.

    Raises:
        ValueError: it has too few labelled nodes to split, or lacks the features asked for.
    """
    labelled = np.count_nonzero(dataset.y >= 0)
    if labelled < _MIN_LABELLED:
        raise ValueError(
            f"dataset {dataset.name!r} has {labelled} labelled nodes; splits need at least "
            f"{_MIN_LABELLED}"
        )
    if config.features == "native" and dataset.num_features == 0:
        raise ValueError(
            f"dataset {dataset.name!r} has no node features; generate them with features "
            "'noisy-label' (one-hot label plus noise, as AllSet does) or 'random'"
        )


def node_features(dataset: HypergraphDataset, config: TrainConfig) -> np.ndarray:
    """Returns the features that a training feeds to the model.

    Args:
        dataset: The dataset; see :func:`jax_gnn.datasets.with_noisy_label_features` for what
            "noisy-label" means for the accuracies.
        config: Its `features`, `feature_noise`, `feature_normalization` and `seed` are used.

    Returns:
        ``(num_nodes, features)`` float32.

    Raises:
        ValueError: see :func:`check_dataset`.
    """
    check_dataset(dataset, config)
    if config.features == "noisy-label":
        width = max(_GENERATED_FEATURES, dataset.num_classes)
        noise = config.feature_noise
        dataset = with_noisy_label_features(
            dataset, num_features=width, noise=noise, seed=config.seed
        )
    elif config.features == "random":
        dataset = with_random_features(dataset, num_features=_GENERATED_FEATURES, seed=config.seed)
    x = np.asarray(dataset.x)
    if config.feature_normalization == "row":
        total = np.abs(x).sum(axis=1, keepdims=True)
        x = np.divide(x, total, out=np.zeros_like(x), where=total > 0)
    return x
