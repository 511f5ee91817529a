"""Artificial features for datasets without features."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import numpy as np

from jax_gnn._core.arguments import check_instance, check_integer, check_number
from jax_gnn.datasets._check import random_generator
from jax_gnn.datasets._dataset import NodeDataset

Dataset = TypeVar("Dataset", bound=NodeDataset)


def with_noisy_label_features(
    dataset: Dataset, *, num_features: int = 100, noise: float = 1.0, seed: int
) -> Dataset:
    """Give a dataset features made from its labels: **they leak the labels by design**.

    AllSet (arXiv 2106.13264) makes such features for House and Walmart, which have none: the
    one-hot label, zero padded to ``num_features``, plus Gaussian noise in every column. The labels
    of test nodes are used too: an accuracy on these features says how well a model removes noise,
    and compares only with results on the same features.

    Args:
        dataset: the dataset, whose ``x`` is replaced. Unlabelled nodes get noise only.
        num_features: number of features, at least the number of classes.
        noise: standard deviation of the noise.
        seed: seed of the noise.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: no node has a label, ``num_features`` is below the number of classes, or
            ``noise`` is negative or not finite.
    """
    check_instance("dataset", dataset, NodeDataset)
    num_features = check_integer("num_features", num_features)
    check_number("noise", noise)
    if dataset.num_classes == 0:
        raise ValueError(f"dataset {dataset.name!r} has no labels to make features from")
    if num_features < dataset.num_classes:
        raise ValueError(
            f"num_features must be at least the number of classes, {dataset.num_classes}, "
            f"got {num_features}"
        )
    if not 0 <= noise < np.inf:
        raise ValueError(f"noise must be a finite standard deviation from 0, got {noise}")
    rng = random_generator(seed)
    x = noise * rng.standard_normal((dataset.num_nodes, num_features), np.float32)
    labelled = np.flatnonzero(dataset.y >= 0)
    # One-hot labels are added to noise in place; unlabelled rows stay noise.
    x[labelled, dataset.y[labelled]] += 1
    return dataclasses.replace(dataset, x=x)


def with_random_features(dataset: Dataset, *, num_features: int = 100, seed: int) -> Dataset:
    """Give a dataset standard normal features, which are independent of the labels.

    They serve to measure speed, and the accuracy that structure alone gives.

    Args:
        dataset: the dataset, whose ``x`` is replaced.
        num_features: number of features, at least 1.
        seed: seed of the features.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: ``num_features`` is below 1.
    """
    check_instance("dataset", dataset, NodeDataset)
    num_features = check_integer("num_features", num_features)
    if num_features < 1:
        raise ValueError(f"num_features must be at least 1, got {num_features}")
    rng = random_generator(seed)
    x = rng.standard_normal((dataset.num_nodes, num_features), np.float32)
    return dataclasses.replace(dataset, x=x)
