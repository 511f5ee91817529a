"""Reading of a dataset for a training: checks, features, labels, splits and names.

A dataset is *settled* when settings hold all that its statistics decide, so that predictions on
other data scale them alike. A *numbering* holds the names of relations, types and nodes, by which
another dataset is brought into the order of the training's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import textwrap
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from flax_layers.schnet import MAX_ATOMIC_NUMBER
from flax_layers.training.config.links import LinkConfig
from flax_layers.training.config.nodes import TrainConfig
from flax_layers.training.predictor import Preprocessing, preprocessed
from jax_gnn.datasets import (
    ATOM_FEATURES,
    MIN_REVERSED_SHARE,
    GraphDataset,
    GraphsDataset,
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
    Split,
    random_folds,
    random_split,
    reversed_share,
    time_split,
    with_noisy_label_features,
    with_random_features,
)

C = TypeVar("C", bound="TrainConfig | LinkConfig")

_GENERATED_FEATURES = 100
_EDGE_SPLIT = "train_edges", "val_edges", "test_edges"
_MIN_LABELLED = 4  # for a node in each part of a 50/25/25 split


def data_error(dataset: NodeDataset, text: str) -> ValueError:
    """Return an error about a dataset, which is named at the start of the text."""
    return ValueError(f"dataset {dataset.name!r} {text}")


def check_dataset(dataset: NodeDataset, config: TrainConfig) -> None:
    """Check that a dataset can be trained on.

    Raises:
        ValueError: The dataset lacks the split or the features that the settings ask for, a part of
            the split is empty, there are too few labelled nodes, or no classes or relations.
    """
    if hasattr(config, "cutoff"):
        check_atoms(dataset)
        if config.feature_normalization != "none":
            got = repr(config.feature_normalization)
            raise ValueError(f"feature_normalization must be 'none' for molecules, got {got}")
    elif dataset.format == "molecules" and not getattr(dataset, "num_edges", 0):
        raise data_error(dataset, "has no edges; schnet has those of atoms within its cutoff")
    # A published split is checked by the seed of the first run, as seeds draw validation nodes.
    folds = getattr(config, "folds", 0)
    fixed = config.split in ("auto", "published") and not folds
    published = _published_split(dataset, config, config.seed) if fixed else None
    for part, title in (("train", "training"), ("valid", "validation"), ("test", "test")):
        if published is not None and not getattr(published, part).size:
            raise data_error(
                dataset, f"has a published split without {title} nodes; split it at random"
            )
    if config.split == "time" and dataset.node_time is None:
        raise data_error(
            dataset,
            f"has no times of {dataset.example}s to split by: give whole numbers or dates as "
            "node_time, or for tables in the column 'time', or one that --time names"
            + "".join(f"; {notice}" for notice in dataset.notices if "no time" in notice),
        )
    if config.split == "published" and fixed and published is None:
        raise data_error(
            dataset,
            "has no published split with training, validation and test nodes; split it at random",
        )
    if folds and dataset.regresses:
        raise data_error(dataset, "has numbers to regress on; folds are of classes, splits of both")
    labelled = np.count_nonzero(dataset.has_label())
    minimum = max(_MIN_LABELLED, folds)
    if published is None and labelled < minimum:
        tables = {"graph": "graphs.csv"}.get(dataset.example, "the table of nodes")
        place = f"the column 'label' or 'target' of {tables}, or one that --label or --target names"
        place = place if dataset.columns else "y"
        if dataset.format == "molecules":
            place = "energies, 'energy=NUMBER' in the second line of a frame of an .xyz file"
        raise data_error(
            dataset,
            f"has {labelled} labelled {dataset.example}s; splits need at least "
            f"{minimum}; labels are {place}",
        )
    y = dataset.y[dataset.has_label()]
    if dataset.regresses and (y == y[:1]).all():
        raise data_error(dataset, f"has the same label for all {dataset.example}s")
    if config.class_weight != "none" and (dataset.regresses or labels(dataset).ndim > 1):
        raise data_error(dataset, "has no single class for each example, which class_weight needs")
    if getattr(config, "edge_weight", False) and getattr(dataset, "edge_weight", None) is None:
        raise data_error(dataset, "has no edge_weight to weigh edges by")
    if config.edge_input == "required" and not _edge_width(dataset):
        raise data_error(
            dataset,
            "has no edge_features, features of edges (files NAME_edge_labels.txt or "
            "NAME_edge_attributes.txt, columns of numbers in edges.csv, key 'edge_features' of an "
            ".npz file)",
        )
    check_times(dataset, config)
    for plural in ("classes", "relations"):
        required = plural == "relations" or not dataset.regresses
        if required and getattr(dataset, f"num_{plural}", None) == 0:
            raise data_error(dataset, f"has no {plural}")
    _check_features(dataset, config)


def check_atoms(dataset: NodeDataset) -> None:
    """Check that nodes are atoms, with an atomic number and a position.

    Raises:
        ValueError: They have other features.
    """
    if dataset.feature_names != ATOM_FEATURES:
        raise data_error(
            dataset, "has no atoms: molecules are extended XYZ files, or .npz files such as MD17's"
        )
    numbers = np.asarray(dataset.x)[:, 0]
    if not np.isin(numbers, np.arange(1, MAX_ATOMIC_NUMBER + 1)).all():
        raise data_error(dataset, f"must have atomic numbers from 1 to {MAX_ATOMIC_NUMBER} in x")


def check_times(dataset: NodeDataset, config: TrainConfig) -> None:
    """Check that edges and nodes have times if the settings ask for them.

    Raises:
        ValueError: They have none.
    """
    times = getattr(dataset, "edge_time", None), dataset.node_time
    if getattr(config, "edge_time", False) and any(values is None for values in times):
        raise data_error(
            dataset,
            "has no times of edges and of nodes, edge_time and node_time (columns 'time' of both "
            "tables, or the one that --time names), which the settings ask for",
        )


def _check_features(dataset: NodeDataset, config: TrainConfig | LinkConfig) -> None:
    if config.features != "native" or dataset.num_features:  # type: ignore[union-attr]
        return
    typed = _features_by_type(dataset) is not None
    if not typed and not config.embeds:  # type: ignore[union-attr]
        raise data_error(
            dataset,
            "has no node features; generate them with features 'random' (--features random), or "
            "for AllSet's benchmarks 'noisy-label', which gives the labels away under noise",
        )
    if typed and getattr(dataset, "node_type_sizes", None) is None:
        raise data_error(
            dataset, "has features by type, and nodes of a type are not numbered one after another"
        )


def _features_by_type(dataset: NodeDataset) -> dict[str, np.ndarray] | None:
    return getattr(dataset, "x_by_type", None)


def settled(dataset: NodeDataset, config: C) -> C:
    """Return the settings with all that the data of a training decide, for predictions on others.

    Their `feature_normalization` is not "auto", and they have a `scaling` if they standardize. Its
    statistics are over all nodes, as training sees all features.
    """
    settings: Any = config
    replace: Callable[..., C] = dataclasses.replace
    if getattr(settings, "edge_input", "") and settings.edge_in_features is None:
        changes: dict[str, Any] = {"edge_in_features": _edge_width(dataset)}
        edges: np.ndarray | None = getattr(dataset, "edge_features", None)
        if edges is not None and edges.size and settings.feature_normalization != "none":
            changes["edge_scaling"] = _changing(_standardization(edges))
        config = settings = replace(settings, **changes)
    if settings.scaling is not None or settings.feature_normalization not in (
        "auto",
        "standardize",
    ):
        return config
    parts = {**(_features_by_type(dataset) or {})}
    if dataset.x is not None and dataset.x.size:
        parts = {"": dataset.x}
    kind: Any = settings.feature_normalization
    if kind == "auto":
        kind = "none"
        flags = all(_is_flags(x).all() for x in parts.values())
        if settings.features == "native" and not (settings.keeps_flags and flags):
            counts = all((x >= 0).all() and ((x > 0).mean(0) < 0.5).all() for x in parts.values())
            kind = "row" if counts else "standardize"
    if kind != "standardize":
        return replace(config, feature_normalization=kind)
    scaling = {}
    for name, x in parts.items():
        mean, std = _standardization(x)
        if settings.sums:  # rows of length one, or sums over many neighbours explode
            std = np.multiply(std, np.sqrt(max(x.shape[1], 1))).astype(np.float32).tolist()
        scaling[name] = [mean, std]
    if not any(map(_changing, scaling.values())) and settings.feature_normalization == "auto":
        return replace(config, feature_normalization="none")
    return replace(config, feature_normalization=kind, scaling=scaling)


def _standardization(x: np.ndarray) -> list[list[float]]:
    """Return means and deviations of columns, float32.

    Columns of zeros and ones stay as they are. Constant ones become 1 at most, as float32 keeps
    nothing of small differences between large numbers.
    """
    mean, std = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    flags, constant = _is_flags(x).all(0), std < 1e-6 * (1 + np.abs(mean))
    std = np.where(flags, 1, np.where(constant, np.maximum(np.abs(mean), 1), std))
    mean = np.where(flags | constant, 0, mean)
    return [mean.astype(np.float32).tolist(), std.astype(np.float32).tolist()]


def _changing(scaling: list[list[float]]) -> list[list[float]] | None:
    """Return a scaling, or None if it changes nothing."""
    mean, std = scaling
    return scaling if np.any(mean) or np.any(np.subtract(std, 1)) else None


def _edge_width(dataset: NodeDataset) -> int | None:
    """Return the number of features of an edge, or None."""
    features: np.ndarray | None = getattr(dataset, "edge_features", None)
    return (features.shape[1] or None) if features is not None else None


def _is_flags(x: np.ndarray) -> Any:
    return (x == 0) | (x == 1)


def sum_size(dataset: NodeDataset, config: TrainConfig, graph: Any) -> float:
    """Return the mean number of summands of a node, itself included, in a sum over neighbours.

    It is 1 for models without such sums, and for rows divided by their sum, which stay small.
    """
    if not config.sums or config.feature_normalization == "row":
        return 1.0
    weight = getattr(dataset, "edge_weight", None)
    if weight is None or not getattr(config, "edge_weight", False):
        total = float(graph.num_edges)
    else:
        total = float(np.abs(graph.edge_values(weight)).sum())
    return 1 + total / max(dataset.num_nodes, 1)


def warn(text: str) -> None:
    """Warn of the direction that a training from Python chose."""
    warnings.warn(f"{text}; direction='directed' keeps those of the data", stacklevel=4)


def settled_direction(
    dataset: NodeDataset, config: C, tell: Callable[[str], None] | None = None
) -> C:
    """Return the settings with a direction in the place of "auto".

    Args:
        dataset: The data, at whose edges the function looks.
        config: The settings.
        tell: Function that is called with a line of text if edges get their reverses.
    """
    if getattr(config, "direction", "") != "auto":
        return config
    direction = "directed"
    if isinstance(dataset, RelationalDataset):  # as in R-GCN's paper
        direction = "undirected"
    elif isinstance(dataset, GraphDataset):
        share = reversed_share(dataset.src, dataset.dst, dataset.num_nodes)
        if share < MIN_REVERSED_SHARE:
            direction = "undirected"
            if tell is not None:
                text = f"{share:.1%} of the edges of {dataset.name} have their reverse"
                tell(f"{text}: trained on both directions of all")
    replace: Callable[..., C] = dataclasses.replace
    return replace(config, direction=direction)


# --- Features -------------------------------------------------------------------------------------

Features = np.ndarray | OrderedDict[str, np.ndarray | None] | None  # pytrees keep its order


def node_features(dataset: NodeDataset, config: TrainConfig | LinkConfig) -> Features:
    """Return the features that a training feeds to the model.

    Args:
        dataset: The dataset; see :func:`jax_gnn.datasets.with_noisy_label_features` for what
            "noisy-label" means for the accuracies.
        config: Settings, of which `features`, `feature_noise`, `feature_normalization`, `scaling`
            and `seed` are used; without a scaling that of this dataset.

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
    for name, (mean, _) in (getattr(config, "scaling", None) or {}).items():
        part = x.get(name) if isinstance(x, dict) else x
        if part is not None and part.shape[1] != len(mean):
            raise data_error(dataset, f"has {part.shape[1]} features, the model takes {len(mean)}")
    return jax.tree.map(np.asarray, preprocessed(preprocessing_of(config), x))


def preprocessing_of(config: TrainConfig | LinkConfig) -> Preprocessing:
    """Return the scaling of features and results in a training of settled settings."""
    settings: Any = config
    arguments: dict[str, Any] = {}
    if settings.feature_normalization == "standardize" and settings.scaling:
        for i, argument in enumerate(("mean", "std")):
            by_type = {name: statistics[i] for name, statistics in settings.scaling.items()}
            arguments[argument] = by_type.get("", by_type)
    targets = getattr(config, "target_scaling", None)
    if targets is not None:
        arguments["target_mean"], arguments["target_std"] = targets
        arguments["target_per_node"] = _is_per_node(config)  # type: ignore[arg-type]
    arguments["rows"] = "row" if settings.feature_normalization == "row" else "none"
    if scaling := getattr(config, "edge_scaling", None):
        arguments["edges"] = dict(zip(("mean", "std"), scaling, strict=True))
    return Preprocessing.of(**arguments)


def scaled_inputs(preprocessing: Preprocessing, x: Any, *edges: Any) -> tuple[Any, ...]:
    """Return features of nodes, and weights or features of edges, after the preprocessing."""
    if preprocessing.edges is not None:
        edges = tuple(preprocessed(preprocessing.edges, values) for values in edges)
    return preprocessed(preprocessing, x), *edges


def with_scaled_edges(dataset: Any, config: TrainConfig) -> Any:
    """Return the dataset with features of edges after the preprocessing of settled settings."""
    edges = preprocessing_of(config).edges
    if edges is None:
        return dataset
    features = np.asarray(preprocessed(edges, dataset.edge_features))
    return dataclasses.replace(dataset, edge_features=features)


def raw_features(dataset: NodeDataset, config: TrainConfig | LinkConfig) -> Features:
    """Return features before the preprocessing: the dataset's, or generated ones."""
    settings: Any = config
    _check_features(dataset, config)
    if settings.features == "none":
        return OrderedDict.fromkeys(_types(dataset)) if settings.embeds else None
    if settings.features == "noisy-label":
        width = max(_GENERATED_FEATURES, dataset.num_classes)
        dataset = with_noisy_label_features(
            dataset, num_features=width, noise=settings.feature_noise, seed=config.seed
        )
    elif settings.features == "random":
        dataset = with_random_features(dataset, num_features=_GENERATED_FEATURES, seed=config.seed)
    if dataset.num_features:
        return np.asarray(dataset.x)
    by_type = _features_by_type(dataset) or {}
    features = ((name, by_type.get(name)) for name in _types(dataset))
    return OrderedDict((name, x if x is not None and x.shape[1] else None) for name, x in features)


def numbered_types(dataset: NodeDataset, config: TrainConfig, types: Iterable[str]) -> set[str]:
    """Return the types whose nodes are rows of a table: embeddings, or features drawn by number."""
    if config.features == "native" and dataset.x is None:
        return {*types} - (_features_by_type(dataset) or {}).keys()
    return {*types} if config.features in ("none", "random") else set()


def _types(dataset: NodeDataset) -> tuple[str, ...]:
    """Return the types of nodes, which are one, "node", where they are not known."""
    sizes = getattr(dataset, "node_type_sizes", None)
    return ("node",) if sizes is None else tuple(sizes)


# --- Labels and splits ----------------------------------------------------------------------------


def num_outputs(dataset: NodeDataset) -> int:
    """Return the width of a model's results: the number of classes, or of targets."""
    return dataset.y[:1].size if dataset.regresses else dataset.num_classes


def target_scaled(dataset: NodeDataset, config: TrainConfig, ids: np.ndarray) -> TrainConfig:
    """Return the settings with mean and deviation of the targets of these training nodes.

    If nodes have classes, the settings say instead whether they have several each.
    """
    if not dataset.regresses:
        return dataclasses.replace(config, multilabel=labels(dataset).ndim > 1)
    y = dataset.y[ids].reshape(len(ids), -1).astype(np.float64)
    sizes = dataset.sizes[ids, None] if _is_per_node(config) else np.ones((len(ids), 1))  # type: ignore[attr-defined]
    mean = (y / sizes).mean(0)
    std = (y - mean * sizes).std(0)
    scaling = mean.astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)
    return dataclasses.replace(config, target_scaling=[row.tolist() for row in scaling])


def _is_per_node(config: TrainConfig) -> bool:
    """Return whether targets of a graph have a mean for each of its nodes, as energies have."""
    return getattr(config, "graph_reduce", "") == "sum" and hasattr(config, "cutoff")


def scaled_labels(dataset: NodeDataset, config: TrainConfig) -> np.ndarray:
    """Return `labels`; targets are scaled by the settings, ``(num_examples, targets)``."""
    if not dataset.regresses:
        return labels(dataset)
    mean, std = np.array(config.target_scaling, np.float32)
    if _is_per_node(config):
        mean = mean * dataset.sizes[:, None].astype(np.float32)  # type: ignore[attr-defined]
    return (dataset.y.reshape(len(dataset.y), -1) - mean) / std


def labels(dataset: NodeDataset) -> np.ndarray:
    """Return classes, ``(num_nodes,)``, or flags, ``(num_nodes, num_classes)``, of several each."""
    flags: np.ndarray | None = getattr(dataset, "y_multilabel", None)
    return dataset.y if flags is None else flags


def split_of(dataset: NodeDataset, config: TrainConfig, seed: int) -> Split:
    """Return the nodes to train, validate and test on, by the seed of a run.

    If the settings have `folds`, the same examples validate and test, and the seed is the number of
    the fold from the settings' seed.
    """
    # Folds of the data are used if there are as many; else random ones, stratified by class.
    if folds := getattr(config, "folds", 0):
        fold_of = getattr(dataset, "folds", None)
        if fold_of is None or fold_of.max(initial=-1) != folds - 1:
            classes = np.where(dataset.has_label(), dataset.y, -1)
            fold_of = random_folds(classes.astype(np.int32), folds, seed=config.seed)
        fold = (seed - config.seed) % folds
        train = np.flatnonzero((fold_of != fold) & dataset.has_label())
        test = np.flatnonzero((fold_of == fold) & dataset.has_label())
        return Split(train, test, test)
    labelled = np.where(dataset.has_label(), 0, -1)
    if splits_by_time(dataset, config):
        assert dataset.node_time is not None
        return time_split(labelled, dataset.node_time, seed=seed)
    published = None if config.split == "random" else _published_split(dataset, config, seed)
    return published or random_split(labelled, seed=seed)


def splits_by_time(dataset: NodeDataset, config: TrainConfig) -> bool:
    """Return whether nodes, or graphs, are split by their times."""
    if getattr(config, "folds", 0) or dataset.node_time is None:
        return False
    has_split = _published_split(dataset, config, config.seed) is not None
    return config.split == "time" or (config.split == "auto" and not has_split)


def _published_split(dataset: NodeDataset, config: TrainConfig, seed: int) -> Split | None:
    """Return the dataset's split; validation nodes, if it has none, are drawn from training."""
    share = getattr(config, "validation_share", None)
    train, test = dataset.train_idx, dataset.test_idx
    if dataset.published_split is not None or share is None or train is None or test is None:
        return dataset.published_split
    shuffled = np.random.default_rng(seed).permutation(train)
    # With a share of 0 all training nodes validate, too.
    count = max(1, round(share * train.size)) if share else train.size
    return Split(np.sort(shuffled[count if share else 0 :]), np.sort(shuffled[:count]), test)


def unused_split(dataset: NodeDataset, config: TrainConfig) -> list[str]:
    """Return the parts that the dataset's split lacks, so that a training draws another split."""
    ids: dict[str, np.ndarray | None] = {
        "training": dataset.train_idx,
        "validation": dataset.val_idx,
        "test": dataset.test_idx,
    }
    lacking = [part for part, rows in ids.items() if rows is None]
    folds: int = getattr(config, "folds", 0)
    if config.split != "auto" or folds or len(lacking) == len(ids):
        return []
    return lacking if _published_split(dataset, config, config.seed) is None else []


def class_weights(dataset: NodeDataset, config: TrainConfig, ids: np.ndarray) -> np.ndarray | None:
    """Return factors of the classes in the loss of training nodes, of which the mean is 1."""
    if config.class_weight == "none":
        return None
    counts = np.bincount(dataset.y[ids], minlength=dataset.num_classes)
    weights: np.ndarray = len(ids) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return weights.astype(np.float32)


def node_mask(dataset: NodeDataset, ids: np.ndarray) -> np.ndarray:
    """Return ``(num_examples,)`` booleans, True at the ids of nodes, or of graphs."""
    mask = np.zeros(dataset.num_examples, bool)
    mask[ids] = True
    return mask


# --- Names ----------------------------------------------------------------------------------------


class Numbering(NamedTuple):
    """Names behind the numbers in a training's dataset; None where it had no names.

    Attributes:
        relations: Names of the relations.
        node_types: Names of the types by which the model takes nodes; None where it takes all
            alike, which then are of the type "node".
        nodes: Names of the nodes of each type; None also where two have one name.
        features: Names of the columns of the features.
        table: `table_recipe` of the dataset, by which tables to predict on get the same features.
    """

    relations: tuple[str, ...] | None = None
    node_types: tuple[str, ...] | None = None
    nodes: tuple[tuple[str, ...] | None, ...] = (None,)
    features: tuple[str, ...] | None = None
    table: str | None = None

    @classmethod
    def of(cls, dataset: NodeDataset, *, by_type: bool = False) -> Numbering:
        """Return the numbering of a dataset, by type where a model takes nodes by type."""
        sizes = getattr(dataset, "node_type_sizes", None) if by_type else None
        counts = [dataset.num_nodes] if sizes is None else [*sizes.values()]
        groups = np.split(np.arange(dataset.num_nodes), np.cumsum(counts)[:-1])
        return cls(
            getattr(dataset, "relation_names", None),
            None if sizes is None else tuple(sizes),
            tuple(_distinct_names(dataset, ids) for ids in groups),
            dataset.feature_names,
            dataset.table_recipe,
        )

    @property
    def types(self) -> tuple[str, ...]:
        """Types of nodes, which are one, "node", where the model takes all alike."""
        return ("node",) if self.node_types is None else self.node_types


def _distinct_names(dataset: NodeDataset, ids: np.ndarray) -> tuple[str, ...] | None:
    """Return the names of some nodes; None if two have the same name."""
    if dataset.node_names is None:
        return None
    names = tuple(map(dataset.node_names.__getitem__, ids.tolist()))
    return names if len({*names}) == len(names) else None


class Renumbered(NamedTuple):
    """A dataset in the numbers by which a model refers to relations, types and nodes."""

    dataset: Any  # dataset in the model's numbers
    order: np.ndarray  # (num_nodes,), numbers of its nodes in the original dataset
    edges: np.ndarray  # (num_edges,), numbers of the original edges with relations in this dataset
    # Plurals of entities that are matched by number, as not both sides have names.
    unnamed: tuple[str, ...]

    def warn(self) -> None:
        """Warn of entities that are matched by number."""
        warnings.warn(
            f"dataset {self.dataset.name!r} is not that of the training, and its "
            f"{' and '.join(self.unnamed)} are taken by number, as not both have names",
            stacklevel=3,
        )


def renumbered(
    dataset: NodeDataset, numbering: Numbering, fixed: Collection[str] = ()
) -> Renumbered:
    """Give relations, types and nodes of a dataset the numbers of a training's of the same names.

    Nodes of `fixed` types must be the same; other types may have new nodes, which keep their order.

    Raises:
        ValueError: A name is on one side only; the error says which.
    """

    def numbers(plural: str, names: Sequence[str], new_names: Sequence[str]) -> np.ndarray:
        positions = {name: i for i, name in enumerate(names)}
        # One error for both directions, as a renamed entity is missing on either side.
        problems = []
        if unknown := [name for name in new_names if name not in positions]:
            problems.append(f"has the {plural} {_listed(unknown)}, which the model lacks")
        if missing := positions.keys() - {*new_names}:
            ordered = sorted(missing, key=positions.__getitem__)
            problems.append(f"lacks the {plural} {_listed(ordered)}")
        if problems:
            raise data_error(dataset, ", and ".join(problems))
        return np.array([positions[name] for name in new_names], np.int64)

    # Relations and types are few, and must have the model's names, if both sides have names.
    changes: dict[str, Any] = {}
    unnamed = []
    if isinstance(dataset, RelationalDataset):
        names = dataset.relation_names
        if numbering.relations is None or names is None:
            unnamed.append("relations")
        elif numbering.relations != names:
            rel = numbers("relations", numbering.relations, names)[dataset.rel]
            changes |= {"rel": rel, "relation_names": numbering.relations}
    types = np.zeros(dataset.num_nodes, np.int64)
    if numbering.node_types is not None:
        names = getattr(dataset, "node_type_names", None) or ()
        new_types = numbers("node types", numbering.node_types, names)
        types = np.append(new_types, -1)[dataset.node_type]  # type: ignore[attr-defined]
        if numbering.node_types != names:
            changes |= {"node_type": types, "node_type_names": numbering.node_types}
    if numbering.features and dataset.feature_names not in (None, (), numbering.features):
        changes |= _with_columns(dataset, numbering.features)
    # The order of nodes: type by type, and inside a type by the model's names.
    groups = []
    for number, (kind, names) in enumerate(zip(numbering.types, numbering.nodes, strict=True)):
        ids = np.flatnonzero(types == number)
        plural = "nodes" if numbering.node_types is None else f"nodes of type {kind!r}"
        new_names = _distinct_names(dataset, ids)
        if names is None or new_names is None:
            unnamed += [plural] if kind in fixed else []
        elif names != new_names and (kind in fixed or {*names} == {*new_names}):
            ids = ids[np.argsort(numbers(plural, names, new_names))]
        groups.append(ids)
    order = np.concatenate([*groups, np.flatnonzero(types < 0)])
    if (np.diff(order) < 0).any():
        fields = {field.name: getattr(dataset, field.name) for field in dataclasses.fields(dataset)}
        changes = _reordered(fields | changes, order)
    edges = np.arange(len(getattr(dataset, "rel", ())))
    if changes:
        if edges.size:  # datasets sort edges by relation, destination and source
            columns = (changes.get(name, getattr(dataset, name)) for name in ("src", "dst", "rel"))
            edges = np.argsort(np.lexsort(tuple(columns)))
        dataset = dataclasses.replace(dataset, **changes)
    return Renumbered(dataset, order, edges, tuple(unnamed))


def _listed(names: Sequence[str]) -> str:
    return textwrap.shorten(", ".join(map(repr, names)), 200)


def _with_columns(dataset: NodeDataset, names: tuple[str, ...]) -> dict[str, Any]:
    """Return fields with the features of these names; ``KEY=VALUE`` is zero if it is missing."""
    columns = {name: i for i, name in enumerate(dataset.feature_names or ())}
    missing = [name for name in names if name not in columns and "=" not in name]
    if missing:
        raise data_error(
            dataset, f"lacks the features {', '.join(map(repr, missing))} of the model"
        )
    if unknown := [name for name in columns if name not in names]:
        warnings.warn(
            f"dataset {dataset.name!r} has features that the model does not know, which do not "
            f"count: {textwrap.shorten(', '.join(unknown), 200)}",
            stacklevel=2,
        )
    x = np.zeros((dataset.num_nodes, len(names)), np.float32)
    present = [i for i, name in enumerate(names) if name in columns]
    if not present:
        raise data_error(dataset, "has none of the features of the model")
    x[:, present] = np.asarray(dataset.x)[:, [columns[names[i]] for i in present]]
    return {"x": x, "feature_names": names}


# Fields that have a row for each node, and fields that hold numbers of nodes.
_NODE_ROWS = "x", "y", "y_multilabel", "node_type", "node_time"
_NODE_IDS = "src", "dst", "node_idx", "train_idx", "val_idx", "test_idx", "train_splits"


def _reordered(fields: dict[str, Any], order: np.ndarray) -> dict[str, Any]:
    """Return a dataset's fields with its nodes in another order."""
    fields = {name: value for name, value in fields.items() if value is not None}
    # `order` lists the original numbers; its inverse maps them to new ones.
    new_ids = np.argsort(order)
    changes = {name: fields[name][order] for name in _NODE_ROWS if name in fields}
    changes |= {name: new_ids[fields[name]] for name in _NODE_IDS if name in fields}
    if "node_names" in fields:
        changes["node_names"] = tuple(map(fields["node_names"].__getitem__, order.tolist()))
    if "x_by_type" in fields:
        changes["x_by_type"] = {}
        for name, rows in fields["x_by_type"].items():
            ids = np.flatnonzero(fields["node_type"] == fields["node_type_names"].index(name))
            rank = np.searchsorted(ids, order[np.isin(order, ids)])
            changes["x_by_type"][name] = rows[rank]
    return fields | changes


class Fingerprint(NamedTuple):
    """Identity of a dataset: its name, its size and SHA-256 sums, in hexadecimal."""

    name: str  # name of the dataset
    num_nodes: int  # number of nodes
    structure: str  # sum of the edges or incidences
    features: str  # sum of `x`
    labels: str  # sum of `y` and the classes' names

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """Return the names of the sums that differ; names of datasets need not agree."""
        fields = ("structure", "features", "labels")
        return tuple(name for name in fields if getattr(self, name) != getattr(other, name))


def fingerprint(dataset: NodeDataset) -> Fingerprint:
    """Return the identity of a dataset."""
    # Fields that decide the structure; names are compared apart, see `Numbering`.
    structure: tuple[str, ...] = ("num_nodes", "src", "dst")
    if isinstance(dataset, HypergraphDataset):
        structure = ("num_nodes", "num_hyperedges", "node_idx", "hyperedge_idx")
    if isinstance(dataset, GraphsDataset):
        structure = (*structure, "sizes")
    if isinstance(dataset, RelationalDataset):
        structure = (*structure, "rel", "num_relations", "node_type", *_EDGE_SPLIT)
    fields = "edge_weight", "edge_time", "edge_features", "node_time"
    structure += tuple(name for name in fields if getattr(dataset, name, None) is not None)
    return Fingerprint(
        dataset.name,
        dataset.num_nodes,
        structure=_sha256(dataset, *structure),
        features=_sha256(dataset, "x", "x_by_type"),
        labels=_sha256(dataset, "y", "label_names", "y_multilabel"),
    )


def _sha256(dataset: NodeDataset, *fields: str) -> str:
    """Return the sum of fields with their shapes and dtypes, of those that the dataset has."""
    # Dtype and shape are part of the sum, as arrays of other shapes may have the same bytes.
    digest = hashlib.sha256()
    for field in fields:
        value = getattr(dataset, field, None)
        for name, part in (value if isinstance(value, dict) else {field: value}).items():
            if part is not None:
                array = np.ascontiguousarray(part)
                digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
                digest.update(array.data if array.size else b"")
    return digest.hexdigest()
