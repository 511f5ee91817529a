"""What a training reads from a dataset."""

from __future__ import annotations

import dataclasses
import hashlib
import textwrap
import warnings
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from flax_layers.training.config import TrainConfig
from flax_layers.training.predictor import Preprocessing, preprocessed
from jax_gnn.datasets import (
    GraphsDataset,
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
    Split,
    random_folds,
    random_split,
    with_noisy_label_features,
    with_random_features,
)
from jax_gnn.extend import numbers_by_name

C = TypeVar("C", bound=Any)  # settings of nodes, graphs or edges

_GENERATED_FEATURES = 100
_EDGE_SPLIT = "train_edges", "val_edges", "test_edges"
_MIN_LABELLED = 4  # for a node in each part of a 50/25/25 split


def check_dataset(dataset: NodeDataset, config: TrainConfig) -> None:
    """Checks that a dataset can be trained on.

    Raises:
        ValueError: it lacks the published split or the features asked for, a part of that split is
            empty, it has too few labelled nodes to split, or no classes or relations.
    """
    folds = getattr(config, "folds", 0)
    fixed = config.split != "random" and not folds
    published = _published_split(dataset, config, config.seed) if fixed else None
    for part, what in (("train", "training"), ("valid", "validation"), ("test", "test")):
        if published is not None and not getattr(published, part).size:
            raise ValueError(
                f"dataset {dataset.name!r} has a published split without {what} nodes; split it at "
                "random"
            )
    if config.split == "published" and fixed and published is None:
        raise ValueError(
            f"dataset {dataset.name!r} has no published split with training, validation and test "
            "nodes; split it at random"
        )
    if folds and dataset.regresses:
        raise ValueError(
            f"dataset {dataset.name!r} has numbers to regress on; folds are of classes, splits of "
            "both"
        )
    labelled = np.count_nonzero(dataset.has_label())
    least = max(_MIN_LABELLED, folds)
    if published is None and labelled < least:
        where = "the column 'label' or 'target' of nodes.csv" if dataset.columns else "y"
        raise ValueError(
            f"dataset {dataset.name!r} has {labelled} labelled {dataset.example}s; splits need at "
            f"least {least}; labels are {where}"
        )
    if getattr(config, "edge_weight", False) and getattr(dataset, "edge_weight", None) is None:
        raise ValueError(f"dataset {dataset.name!r} has no edge_weight to weigh edges by")
    for what in ("classes", "relations"):
        if getattr(dataset, f"num_{what}", None) == 0 and not (
            what == "classes" and dataset.regresses
        ):
            raise ValueError(f"dataset {dataset.name!r} has no {what}")
    _check_features(dataset, config)


def _check_features(dataset: NodeDataset, config: TrainConfig) -> None:
    if config.features == "native" and dataset.num_features == 0:
        relational = dataset if isinstance(dataset, RelationalDataset) else None
        typed = relational is not None and relational.x_by_type is not None
        if not typed and not config.embeds:
            raise ValueError(
                f"dataset {dataset.name!r} has no node features; generate them with features "
                "'noisy-label' (--features noisy-label: one-hot label plus noise, as AllSet does) "
                "or 'random'"
            )
        if typed and relational is not None and relational.node_type_sizes is None:
            raise ValueError(
                f"dataset {dataset.name!r} has features by type, and nodes of a type are not "
                "numbered one after another"
            )


def settled(dataset: NodeDataset, config: C) -> C:
    """The settings with what the data of a training decide, for predictions on others.

    Args:
        dataset: The data, whose nodes all count in statistics, as all are there in training.
        config: The settings.

    Returns:
        Settings whose `feature_normalization` is not "auto", and with `scaling` if they
        standardize.
    """
    if config.scaling is not None or config.feature_normalization not in ("auto", "standardize"):
        return config
    parts = {**(getattr(dataset, "x_by_type", None) or {})}
    if dataset.x is not None and dataset.x.size:
        parts = {"": dataset.x}
    given = config.features == "native"
    kind: Any = config.feature_normalization
    if kind == "auto":
        flags = config.keeps_flags and all(((x == 0) | (x == 1)).all() for x in parts.values())
        words = all((x >= 0).all() and ((x > 0).mean(0) < 0.5).all() for x in parts.values())
        kind = "none" if flags or not given else "row" if words else "standardize"
    if kind != "standardize":
        return dataclasses.replace(config, feature_normalization=kind)
    scaling = {}
    for name, x in parts.items():
        mean, std = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
        fixed = ((x == 0) | (x == 1)).all(0) | (std < 1e-6 * (1 + np.abs(mean)))
        mean, std = np.where(fixed, 0, mean), np.where(fixed, 1, std)
        if config.sums:  # of as many neighbours as there are: rows of length one, or they explode
            std = std * np.sqrt(max(x.shape[1], 1))
        scaling[name] = [mean.astype(np.float32).tolist(), std.astype(np.float32).tolist()]
    changes = any(np.any(mean) or np.any(np.subtract(std, 1)) for mean, std in scaling.values())
    if not changes and config.feature_normalization == "auto":
        return dataclasses.replace(config, feature_normalization="none")
    return dataclasses.replace(config, feature_normalization=kind, scaling=scaling)


def sum_size(dataset: NodeDataset, config: TrainConfig) -> float:
    """What a model that adds up neighbours adds for a node in the mean, itself included.

    1 of other models, and of rows that are divided by their sum, which stay small.
    """
    if not config.sums or config.feature_normalization == "row":
        return 1.0
    weight = getattr(dataset, "edge_weight", None)
    edges = dataset.src if weight is None or not config.edge_weight else np.abs(weight)  # type: ignore[attr-defined]
    total = len(edges) if edges.dtype.kind == "i" else float(edges.sum())
    return 1 + total / max(dataset.num_nodes, 1)


Features = np.ndarray | OrderedDict[str, np.ndarray | None] | None  # pytrees keep its order


def node_features(dataset: NodeDataset, config: TrainConfig) -> Features:
    """Returns the features that a training feeds to the model.

    Args:
        dataset: The dataset; see :func:`jax_gnn.datasets.with_noisy_label_features` for what
            "noisy-label" means for the accuracies.
        config: Its `features`, `feature_noise`, `feature_normalization`, `scaling` and `seed` are
            used; without a scaling that of this dataset.

    Returns:
        ``(num_nodes, features)`` float32; None without features. Where features are by type, or
        nodes without any have embeddings, by type ``(nodes of the type, features)`` or None; the
        one type of nodes without types is "node".

    Raises:
        ValueError: The dataset lacks the features, or labels to generate them from, or has other
            numbers of them than the scaling.
    """
    x = raw_features(dataset, config)
    config = settled(dataset, config)
    for name, columns in (config.scaling or {}).items():
        part = x.get(name) if isinstance(x, dict) else x
        if part is not None and part.shape[1] != len(columns[0]):
            raise ValueError(
                f"dataset {dataset.name!r} has {part.shape[1]} features, the model takes "
                f"{len(columns[0])}"
            )
    preprocessing = preprocessing_of(config)
    made: Features = jax.tree.map(np.asarray, preprocessed(preprocessing, x))
    return made


def preprocessing_of(config: Any) -> Preprocessing:
    """What becomes of features, and of results, in a training of these settings."""
    columns: dict[str, Any] = {}
    if config.feature_normalization == "standardize" and config.scaling:
        by_name = [{name: both[i] for name, both in config.scaling.items()} for i in range(2)]
        columns = {
            name: each.get("", each) for name, each in zip(("mean", "std"), by_name, strict=True)
        }
    targets = getattr(config, "target_scaling", None)
    if targets is not None:
        columns |= zip(("target_mean", "target_std"), targets, strict=True)
    rows = "row" if config.feature_normalization == "row" else "none"
    return Preprocessing.of(**columns, rows=rows)


def raw_features(dataset: NodeDataset, config: Any) -> Features:
    """Features before the preprocessing: the dataset's, or generated ones; as `node_features`."""
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
    if dataset.num_features:
        return np.asarray(dataset.x)
    of_types = getattr(dataset, "x_by_type", None) or {}
    features = ((name, of_types.get(name)) for name in _types(dataset))
    return OrderedDict((name, x if x is not None and x.shape[1] else None) for name, x in features)


def numbered_types(dataset: NodeDataset, config: TrainConfig, types: Iterable[str]) -> set[str]:
    """The types whose nodes are rows of a table: of embeddings, or of features drawn by number."""
    if config.features == "native" and dataset.x is None:
        return {*types} - (getattr(dataset, "x_by_type", None) or {}).keys()
    return {*types} if config.features in ("none", "random") else set()


def _types(dataset: NodeDataset) -> tuple[str, ...]:
    """The types of nodes, which are one where they are not known."""
    sizes = dataset.node_type_sizes if isinstance(dataset, RelationalDataset) else None
    return ("node",) if sizes is None else tuple(sizes)


def num_outputs(dataset: NodeDataset) -> int:
    """What a model makes for each node or graph: a number for each class, or each target."""
    return dataset.y[:1].size if dataset.regresses else dataset.num_classes


def target_scaled(dataset: NodeDataset, config: C, ids: np.ndarray) -> C:
    """The settings with mean and deviation of the numbers that a model learns from these ids."""
    if not dataset.regresses:
        return config
    y = dataset.y[ids].reshape(len(ids), -1).astype(np.float64)
    std = y.std(0)
    scaling = [y.mean(0).astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)]
    return dataclasses.replace(config, target_scaling=[each.tolist() for each in scaling])


def scaled_labels(dataset: NodeDataset, config: TrainConfig) -> np.ndarray:
    """`labels`, of numbers to regress on by the settings' scaling, ``(num_examples, targets)``."""
    if not dataset.regresses:
        return labels(dataset)
    mean, std = np.array(config.target_scaling, np.float32)
    return (dataset.y.reshape(len(dataset.y), -1) - mean) / std


def labels(dataset: NodeDataset) -> np.ndarray:
    """``(num_nodes,)`` classes; flags, ``(num_nodes, num_classes)``, where there may be several."""
    several = getattr(dataset, "y_multilabel", None)
    return dataset.y if several is None else several


def split_of(dataset: NodeDataset, config: TrainConfig, seed: int) -> Split:
    """Returns the nodes to train, validate and test on.

    Args:
        dataset: The dataset.
        config: Its `split` says where the split comes from, its `folds`, if there are any, that it
            is one of a cross-validation, where the same examples validate and test.
        seed: Of a random split.
    """
    if folds := getattr(config, "folds", 0):
        held_out = getattr(dataset, "folds", None)
        if held_out is None or held_out.max(initial=-1) != folds - 1:
            classes = np.where(dataset.has_label(), dataset.y, -1)
            held_out = random_folds(classes.astype(np.int32), folds, seed=config.seed)
        number = (seed - config.seed) % folds
        kept = np.flatnonzero((held_out != number) & dataset.has_label())
        out = np.flatnonzero(held_out == number)
        return Split(kept, out, out)
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
    """Returns ``(num_examples,)`` booleans, True at the ids of nodes, or of graphs."""
    mask = np.zeros(dataset.num_examples, bool)
    mask[ids] = True
    return mask


class Numbering(NamedTuple):
    """What the numbers in a training's dataset stand for; None where it had no names.

    Attributes:
        relations: The names of its relations.
        node_types: Those of the types by which the model takes nodes; None where it takes all
            alike, which then are of the type "node".
        nodes: The names of the nodes of each type; None also where two have one name.
        features: The names of the columns of its features.
    """

    relations: tuple[str, ...] | None = None
    node_types: tuple[str, ...] | None = None
    nodes: tuple[tuple[str, ...] | None, ...] = (None,)
    features: tuple[str, ...] | None = None

    @classmethod
    def of(cls, dataset: NodeDataset, *, by_type: bool = False) -> Numbering:
        """That of a dataset, whose nodes a model takes by type, where they have types, or alike."""
        sizes = getattr(dataset, "node_type_sizes", None) if by_type else None
        counts = [dataset.num_nodes] if sizes is None else [*sizes.values()]
        groups = np.split(np.arange(dataset.num_nodes), np.cumsum(counts)[:-1])
        return cls(
            getattr(dataset, "relation_names", None),
            None if sizes is None else tuple(sizes),
            tuple(_names_of(dataset, ids) for ids in groups),
            dataset.feature_names,
        )

    @property
    def types(self) -> tuple[str, ...]:
        """The types of nodes, which are one where the model takes all alike."""
        return ("node",) if self.node_types is None else self.node_types


def _names_of(dataset: NodeDataset, ids: np.ndarray) -> tuple[str, ...] | None:
    """The names of some nodes, if all have one of their own."""
    if dataset.node_names is None:
        return None
    names = tuple(map(dataset.node_names.__getitem__, ids.tolist()))
    return names if len({*names}) == len(names) else None


class Renumbered(NamedTuple):
    """A dataset in the numbers that a model knows its relations, types and nodes by.

    Attributes:
        dataset: What came of it.
        order: ``(num_nodes,)``, the numbers that its nodes had.
        edges: ``(num_edges,)``, the numbers that edges with relations have now.
        unnamed: What has no names on both sides, and therefore the numbers that it had.
    """

    dataset: Any
    order: np.ndarray
    edges: np.ndarray
    unnamed: tuple[str, ...]

    def warn(self) -> None:
        """Says what is taken by number."""
        warnings.warn(
            f"dataset {self.dataset.name!r} is not that of the training, and its "
            f"{' and '.join(self.unnamed)} are taken by number, as not both have names",
            stacklevel=3,
        )


def renumbered(dataset: NodeDataset, own: Numbering, fixed: Collection[str] = ()) -> Renumbered:
    """Gives relations, types and nodes of a dataset the numbers of a training's of the same names.

    Args:
        dataset: The data.
        own: What the numbers of the training stand for.
        fixed: The types whose nodes must be the same; nodes of others may be other ones, which
            keep their order.

    Raises:
        ValueError: There is a name on one side only; the error says which.
    """

    def numbers(what: str, names: Sequence[str], given: Sequence[str]) -> np.ndarray:
        return numbers_by_name(what, names, given, "the model", f"dataset {dataset.name!r}")

    changes: dict[str, Any] = {}
    unnamed = []
    if isinstance(dataset, RelationalDataset):
        names = dataset.relation_names
        if own.relations is None or names is None:
            unnamed.append("relations")
        elif own.relations != names:
            rel = numbers("relations", own.relations, names)[dataset.rel]
            changes |= {"rel": rel, "relation_names": own.relations}
    types = np.zeros(dataset.num_nodes, np.int64)
    if own.node_types is not None:
        names = getattr(dataset, "node_type_names", None) or ()
        own_types = numbers("node types", own.node_types, names)
        types = np.append(own_types, -1)[dataset.node_type]  # type: ignore[attr-defined]
        if own.node_types != names:
            changes |= {"node_type": types, "node_type_names": own.node_types}
    if own.features and dataset.feature_names and own.features != dataset.feature_names:
        changes |= _with_columns(dataset, own.features)
    groups = []
    for number, (kind, known) in enumerate(zip(own.types, own.nodes, strict=True)):
        ids = np.flatnonzero(types == number)
        what = "nodes" if own.node_types is None else f"nodes of type {kind!r}"
        found = _names_of(dataset, ids)
        if known is None or found is None:
            unnamed += [what] if kind in fixed else []
        elif known != found and (kind in fixed or {*known} == {*found}):
            ids = ids[np.argsort(numbers(what, known, found))]
        groups.append(ids)
    order = np.concatenate([*groups, np.flatnonzero(types < 0)])
    if (np.diff(order) < 0).any():
        fields = {each.name: getattr(dataset, each.name) for each in dataclasses.fields(dataset)}
        changes = _reordered(fields | changes, order)
    edges = np.arange(len(getattr(dataset, "rel", ())))
    if changes:
        if edges.size:
            columns = (changes.get(name, getattr(dataset, name)) for name in ("src", "dst", "rel"))
            edges = np.argsort(np.lexsort(tuple(columns)))
        dataset = dataclasses.replace(dataset, **changes)
    return Renumbered(dataset, order, edges, tuple(unnamed))


def _with_columns(dataset: NodeDataset, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Features in other columns of the same names; ``KEY=VALUE`` is zero where no node has it."""
    places = {name: i for i, name in enumerate(dataset.feature_names or ())}
    lacking = [name for name in wanted if name not in places and "=" not in name]
    if lacking:
        raise ValueError(
            f"dataset {dataset.name!r} lacks the features {', '.join(map(repr, lacking))} of the "
            "model"
        )
    if strange := [name for name in places if name not in wanted]:
        warnings.warn(
            f"dataset {dataset.name!r} has features that the model does not know, which do not "
            f"count: {textwrap.shorten(', '.join(strange), 200)}",
            stacklevel=2,
        )
    x = np.zeros((dataset.num_nodes, len(wanted)), np.float32)
    known = [i for i, name in enumerate(wanted) if name in places]
    if not known:
        raise ValueError(f"dataset {dataset.name!r} has none of the features of the model")
    x[:, known] = np.asarray(dataset.x)[:, [places[wanted[i]] for i in known]]
    return {"x": x, "feature_names": wanted}


_OF_NODES = "x", "y", "y_multilabel", "node_type"  # fields of a row for each node
_NODES = "src", "dst", "node_idx", "train_idx", "val_idx", "test_idx", "train_splits"


def _reordered(fields: dict[str, Any], order: np.ndarray) -> dict[str, Any]:
    """A dataset's fields with its nodes in another order."""
    fields = {name: value for name, value in fields.items() if value is not None}
    places = np.argsort(order)
    changes = {name: fields[name][order] for name in _OF_NODES if name in fields}
    changes |= {name: places[fields[name]] for name in _NODES if name in fields}
    if "node_names" in fields:
        changes["node_names"] = tuple(map(fields["node_names"].__getitem__, order.tolist()))
    if "x_by_type" in fields:
        changes["x_by_type"] = {}
        for name, rows in fields["x_by_type"].items():
            ids = np.flatnonzero(fields["node_type"] == fields["node_type_names"].index(name))
            wanted = np.searchsorted(ids, order[np.isin(order, ids)])
            changes["x_by_type"][name] = rows[wanted]
    return fields | changes


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
    if isinstance(dataset, GraphsDataset):
        structure = (*structure, "sizes")
    if isinstance(dataset, RelationalDataset):
        structure = (*structure, "rel", "num_relations", "node_type", *_EDGE_SPLIT)
    if getattr(dataset, "edge_weight", None) is not None:
        structure = (*structure, "edge_weight")
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
