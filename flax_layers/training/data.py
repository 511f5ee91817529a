"""What a training reads from a dataset."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
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
_EDGE_SPLIT = "train_edges", "val_edges", "test_edges"
_MIN_LABELLED = 4  # for a node in each part of a 50/25/25 split


def check_dataset(dataset: NodeDataset, config: TrainConfig) -> None:
    """Checks that a dataset can be trained on.

    Raises:
        ValueError: it lacks the published split or the features asked for, a part of that split is
            empty, it has too few labelled nodes to split, or no classes or relations.
    """
    published = None if config.split == "random" else _published_split(dataset, config, config.seed)
    for part, what in (("train", "training"), ("valid", "validation"), ("test", "test")):
        if published is not None and not getattr(published, part).size:
            raise ValueError(
                f"dataset {dataset.name!r} has a published split without {what} nodes; split it at "
                "random"
            )
    if config.split == "published" and published is None:
        raise ValueError(
            f"dataset {dataset.name!r} has no published split with training, validation and test "
            "nodes; split it at random"
        )
    labelled = np.count_nonzero(dataset.has_label())
    if published is None and labelled < _MIN_LABELLED:
        raise ValueError(
            f"dataset {dataset.name!r} has {labelled} labelled nodes; splits need at least "
            f"{_MIN_LABELLED}"
        )
    for what in ("classes", "relations"):
        if getattr(dataset, f"num_{what}", None) == 0:
            raise ValueError(f"dataset {dataset.name!r} has no {what}")
    _check_features(dataset, config)


def _check_features(dataset: NodeDataset, config: TrainConfig) -> None:
    if config.features == "native" and dataset.num_features == 0:
        relational = dataset if isinstance(dataset, RelationalDataset) else None
        typed = relational is not None and relational.x_by_type is not None
        if not typed and not config.embeds:
            raise ValueError(
                f"dataset {dataset.name!r} has no node features; generate them with features "
                "'noisy-label' (one-hot label plus noise, as AllSet does) or 'random'"
            )
        if typed and relational is not None and relational.node_type_sizes is None:
            raise ValueError(
                f"dataset {dataset.name!r} has features by type, and nodes of a type are not "
                "numbered one after another"
            )


Features = np.ndarray | OrderedDict[str, np.ndarray | None] | None  # pytrees keep its order


def node_features(dataset: NodeDataset, config: TrainConfig) -> Features:
    """Returns the features that a training feeds to the model.

    Args:
        dataset: The dataset; see :func:`jax_gnn.datasets.with_noisy_label_features` for what
            "noisy-label" means for the accuracies.
        config: Its `features`, `feature_noise`, `feature_normalization` and `seed` are used.

    Returns:
        ``(num_nodes, features)`` float32; None without features. Where features are by type, or
        nodes without any have embeddings, by type ``(nodes of the type, features)`` or None; the
        one type of nodes without types is "node".

    Raises:
        ValueError: The dataset lacks the features, or labels to generate them from.
    """
    _check_features(dataset, config)
    if config.features == "none":
        return OrderedDict.fromkeys(_types(dataset)) if config.embeds else None
    if config.features == "noisy-label":
        width = max(_GENERATED_FEATURES, dataset.num_classes)
        noise = config.feature_noise
        dataset = with_noisy_label_features(
            dataset, num_features=width, noise=noise, seed=config.seed
        )
    elif config.features == "random":
        dataset = with_random_features(dataset, num_features=_GENERATED_FEATURES, seed=config.seed)

    def normalized(x: np.ndarray) -> np.ndarray:
        if config.feature_normalization == "row":
            total = np.abs(x).sum(axis=1, keepdims=True)
            return np.divide(x, total, out=np.zeros_like(x), where=total > 0)
        return x

    if dataset.num_features:
        return normalized(np.asarray(dataset.x))
    of_types = getattr(dataset, "x_by_type", None) or {}
    features = ((name, of_types.get(name)) for name in _types(dataset))
    return OrderedDict(
        (name, normalized(x) if x is not None and x.shape[1] else None) for name, x in features
    )


def _types(dataset: NodeDataset) -> tuple[str, ...]:
    """The types of nodes, which are one where they are not known."""
    sizes = dataset.node_type_sizes if isinstance(dataset, RelationalDataset) else None
    return ("node",) if sizes is None else tuple(sizes)


def labels(dataset: NodeDataset) -> np.ndarray:
    """``(num_nodes,)`` classes; flags, ``(num_nodes, num_classes)``, where there may be several."""
    several = getattr(dataset, "y_multilabel", None)
    return dataset.y if several is None else several


def split_of(dataset: NodeDataset, config: TrainConfig, seed: int) -> Split:
    """Returns the nodes to train, validate and test on.

    Args:
        dataset: The dataset.
        config: Its `split` says where the split comes from.
        seed: Of a random split.
    """
    published = None if config.split == "random" else _published_split(dataset, config, seed)
    return published or random_split(np.where(dataset.has_label(), 0, -1), seed=seed)


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
        structure = (*structure, "rel", "num_relations", "node_type", *_EDGE_SPLIT)
    return Fingerprint(
        dataset.name,
        dataset.num_nodes,
        structure=_sha256(dataset, *structure),
        features=_sha256(dataset, "x", "x_by_type"),
        labels=_sha256(dataset, "y", "label_names", "y_multilabel"),
    )


def _sha256(dataset: NodeDataset, *fields: str) -> str:
    """Of fields with their shapes and dtypes."""
    digest = hashlib.sha256()
    for field in fields:
        value = getattr(dataset, field, None)  # some fields are of relational datasets alone
        for name, part in (value if isinstance(value, dict) else {field: value}).items():
            if part is not None:
                array = np.ascontiguousarray(part)
                digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
                digest.update(array.data if array.size else b"")
    return digest.hexdigest()
