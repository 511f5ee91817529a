"""What a training reads from a dataset."""

from __future__ import annotations

import numpy as np

from jax_gnn.datasets import (
    NodeDataset,
    random_split,
    with_noisy_label_features,
    with_random_features,
)
from jax_gnn.training.config import TrainConfig

_GENERATED_FEATURES = 100
_MIN_LABELLED = 4  # for a node in each part of a 50/25/25 split


def check_dataset(dataset: NodeDataset, config: TrainConfig) -> None:
    """Checks that a dataset can be trained on.

    Raises:
        ValueError: it lacks the published split or the features asked for, or has too few labelled
            nodes to split.
    """
    published = dataset.published_split is not None
    if config.split == "published" and not published:
        raise ValueError(
            f"dataset {dataset.name!r} has no published split with training, validation and test "
            "nodes; split it at random"
        )
    labelled = np.count_nonzero(dataset.y >= 0)
    if (config.split == "random" or not published) and labelled < _MIN_LABELLED:
        raise ValueError(
            f"dataset {dataset.name!r} has {labelled} labelled nodes; splits need at least "
            f"{_MIN_LABELLED}"
        )
    if config.features == "native" and dataset.num_features == 0:
        raise ValueError(
            f"dataset {dataset.name!r} has no node features; generate them with features "
            "'noisy-label' (one-hot label plus noise, as AllSet does) or 'random'"
        )


def node_features(dataset: NodeDataset, config: TrainConfig) -> np.ndarray:
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


def split_nodes(dataset: NodeDataset, config: TrainConfig, seed: int) -> np.ndarray:
    """Returns the part of each node: 0 training, 1 validation, 2 test, -1 none of them.

    Args:
        dataset: The dataset.
        config: Its `split` says where the split comes from.
        seed: Of a random split.

    Returns:
        ``(num_nodes,)`` int32.
    """
    published = None if config.split == "random" else dataset.published_split
    split = published or random_split(dataset.y, seed=seed)
    part = np.full(dataset.num_nodes, -1, np.int32)
    for number, ids in enumerate((split.train, split.valid, split.test)):
        part[ids] = number
    return part
