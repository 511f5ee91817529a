"""What a training reads from a dataset."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from flax_layers.training.config import TrainConfig
from jax_gnn.datasets import (
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
    Split,
    random_split,
    with_noisy_label_features,
    with_random_features,
)

_GENERATED_FEATURES = 100
_MIN_LABELLED = 4  # for a node in each part of a 50/25/25 split


def check_dataset(dataset: NodeDataset, config: TrainConfig) -> None:
    """Checks that a dataset can be trained on.

    Raises:
        ValueError: it lacks the published split or the features asked for, or has too few labelled
            nodes to split.
    """
    published = _published_split(dataset, config, config.seed) is not None
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
    _check_features(dataset, config)


def _check_features(dataset: NodeDataset, config: TrainConfig) -> None:
    if config.features == "native" and dataset.num_features == 0:
        raise ValueError(
            f"dataset {dataset.name!r} has no node features; generate them with features "
            "'noisy-label' (one-hot label plus noise, as AllSet does) or 'random'"
        )


def node_features(dataset: NodeDataset, config: TrainConfig) -> np.ndarray | None:
    """Returns the features that a training feeds to the model.

    Args:
        dataset: The dataset; see :func:`jax_gnn.datasets.with_noisy_label_features` for what
            "noisy-label" means for the accuracies.
        config: Its `features`, `feature_noise`, `feature_normalization` and `seed` are used.

    Returns:
        ``(num_nodes, features)`` float32; None without features.

    Raises:
        ValueError: The dataset lacks the features, or labels to generate them from.
    """
    _check_features(dataset, config)
    if config.features == "none":
        return None
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


def split_of(dataset: NodeDataset, config: TrainConfig, seed: int) -> Split:
    """Returns the nodes to train, validate and test on.

    Args:
        dataset: The dataset.
        config: Its `split` says where the split comes from.
        seed: Of a random split.
    """
    published = None if config.split == "random" else _published_split(dataset, config, seed)
    return published or random_split(dataset.y, seed=seed)


def _published_split(dataset: NodeDataset, config: TrainConfig, seed: int) -> Split | None:
    """The dataset's, whose training nodes are drawn from to validate where it has none for that."""
    share = getattr(config, "validation_share", None)
    train, test = dataset.train_idx, dataset.test_idx
    if dataset.published_split is not None or share is None or train is None or test is None:
        return dataset.published_split
    shuffled = np.random.default_rng(seed).permutation(train)
    count = max(1, round(share * train.size)) if share else train.size
    # Without a share of their own the training nodes validate, too.
    return Split(np.sort(shuffled[count if share else 0 :]), np.sort(shuffled[:count]), test)


def node_mask(dataset: NodeDataset, ids: np.ndarray) -> np.ndarray:
    """Returns ``(num_nodes,)`` booleans, True at the ids."""
    mask = np.zeros(dataset.num_nodes, bool)
    mask[ids] = True
    return mask


class Fingerprint(NamedTuple):
    """What a dataset is recognised by: its name, its size and SHA-256 sums, in hexadecimal.

    Attributes:
        name: The dataset's.
        num_nodes: How many nodes it has.
        structure: Of the edges or incidences.
        features: Of `x`.
        labels: Of `y` and the classes' names.
    """

    name: str
    num_nodes: int
    structure: str
    features: str
    labels: str

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """Which of structure, features and labels differ; names need not agree."""
        fields = ("structure", "features", "labels")
        return tuple(name for name in fields if getattr(self, name) != getattr(other, name))


def fingerprint(dataset: NodeDataset) -> Fingerprint:
    """Returns what a dataset is recognised by."""
    structure: tuple[str, ...] = ("num_nodes", "src", "dst")
    if isinstance(dataset, HypergraphDataset):
        structure = ("num_nodes", "num_hyperedges", "node_idx", "hyperedge_idx")
    if isinstance(dataset, RelationalDataset):
        structure = (*structure, "rel", "num_relations")
    return Fingerprint(
        dataset.name,
        dataset.num_nodes,
        structure=_sha256(dataset, *structure),
        features=_sha256(dataset, "x"),
        labels=_sha256(dataset, "y", "label_names"),
    )


def _sha256(dataset: NodeDataset, *fields: str) -> str:
    """Of fields with their shapes and dtypes."""
    digest = hashlib.sha256()
    for field in fields:
        value = getattr(dataset, field)
        if value is not None:
            array = np.ascontiguousarray(value)
            digest.update(f"{field} {array.dtype.str} {array.shape} ".encode())
            digest.update(array.data if array.size else b"")
    return digest.hexdigest()
