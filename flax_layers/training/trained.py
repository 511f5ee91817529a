"""A trained model with all that its predictions need: preprocessing, labels and split."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from flax_layers import HeteroModel, Stack
from flax_layers.training.config import TrainConfig
from flax_layers.training.data import (
    Fingerprint,
    Numbering,
    Renumbered,
    fingerprint,
    labels,
    node_mask,
    numbered_types,
    preprocessing_of,
    raw_features,
    renumbered,
)
from flax_layers.training.devices import check_devices, over_devices
from flax_layers.training.graphs import all_groups, device, stacked
from flax_layers.training.models import RECIPES, Recipe, recipe_of
from flax_layers.training.predictor import Predictor, preprocessed
from jax_gnn import Batch, __version__, host_arrays
from jax_gnn.datasets import GraphsDataset, NodeDataset, Split
from jax_gnn.sharding import ShardedGraph


def raw_inputs(dataset: NodeDataset, config: TrainConfig) -> tuple[Any, ...]:
    """What a predictor of these settings is called with.

    Args:
        dataset: Structure and features; generated features may look at its labels.
        config: Of the training.

    Returns:
        Graph or hypergraph, and features as `raw_features` gives them; where the settings weigh
        edges, their weights, too. Of many graphs stacked batches, on the device.

    Raises:
        TypeError: The dataset is not of the kind that the model takes.
        ValueError: The dataset lacks the features that the settings ask for.
    """
    recipe = recipe_of(config, dataset)
    if isinstance(dataset, GraphsDataset):
        features: Any = raw_features(dataset, config)
        groups = all_groups(dataset, config)  # type: ignore[arg-type]
        batches, rows, _ = stacked(dataset, features, *groups)
        return device((batches, rows))
    x = raw_features(dataset, config)
    assert recipe.structure is not None
    graph = recipe.structure(dataset, config)
    if not getattr(config, "edge_weight", False):
        return graph, x
    weight = getattr(dataset, "edge_weight", None)
    if weight is None:
        raise ValueError(f"dataset {dataset.name!r} has no edge_weight, which the model takes")
    return graph, x, graph.edge_values(weight)


def model_inputs(dataset: NodeDataset, config: TrainConfig) -> tuple[Any, ...]:
    """What a model of these settings is trained on: `raw_inputs` after the preprocessing."""
    graph, x, *weights = raw_inputs(dataset, config)
    return graph, preprocessed(preprocessing_of(config), x), *weights


def in_features(graph: Any, x: Any) -> Any:
    """What a model is told of its input, perhaps by type: nodes without features are one-hot."""
    if isinstance(x, dict):
        sizes, names = graph.node_type_sizes or (graph.num_nodes,), graph.node_type_names or (*x,)
        return {
            name: size if x[name] is None else x[name].shape[-1]
            for name, size in zip(names, sizes, strict=True)
        }
    return graph.num_nodes if x is None else x.shape[-1]


def make_model(config: TrainConfig, graph: Any, x: Any, num_classes: int, seed: int) -> Any:
    """A model with parameters of a seed, after maps by type where features are by type."""
    recipe = RECIPES[config.model]
    sizes, rngs = in_features(graph, x), nnx.Rngs(seed)
    by_type = isinstance(sizes, dict)
    options = recipe.options(config, graph)
    if issubclass(recipe.model, Stack):
        options["input_dropout_rate"] = config.input_dropout_rate
    model = recipe.model(
        config.hidden_features if by_type else sizes,
        config.hidden_features,
        num_classes,
        num_layers=config.num_layers,
        dropout_rate=config.dropout_rate,
        rngs=rngs,
        **options,
    )
    return HeteroModel(sizes, model, rngs=rngs) if by_type else model


def stack_of(model: Any) -> Any:
    """The stack of convolutions, perhaps that after maps by type."""
    return model.model if isinstance(model, HeteroModel) else model


def node_types_of(model: Any) -> tuple[str, ...] | None:
    """The types by which it takes nodes, None where it takes all alike."""
    if isinstance(model, HeteroModel):
        return tuple(model.in_features)
    if not isinstance(model, Stack):
        return None
    types = getattr(model.convolutions[0], "node_types", None)
    return types if isinstance(types, tuple) else None


def masked_mean(values: Array, mask: Array) -> Array:
    """The mean of the values that the mask selects; 0 where it selects none."""
    mask = mask.astype(values.dtype)
    return jnp.vdot(values, mask) / jnp.maximum(mask.sum(), 1)


def _squares(values: Array, mask: Array) -> Array:
    return jnp.sum(jnp.where(mask, values, 0) ** 2, axis=0)


def losses(logits: Array, y: Array) -> Array:
    """``(num_nodes,)`` cross-entropies; where nodes may have several classes, the mean of each.

    Of numbers squared errors, 0 where they are not known.
    """
    import optax  # part of the extra "train"

    if jnp.issubdtype(y.dtype, jnp.floating):
        return jnp.where(jnp.isnan(y), 0, logits - y.astype(logits.dtype)).__pow__(2).mean(1)
    if y.ndim == 2:
        return optax.sigmoid_binary_cross_entropy(logits, y.astype(logits.dtype)).mean(1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(y, 0))


def accuracy(logits: Array, y: Array, mask: Array) -> Array:
    """The share of the mask's nodes whose class has the greatest logit, float32.

    A row with NaN is a mistake. Where nodes may have several classes, those of positive logits are
    compared by micro-F1. Of numbers it is R2, the mean over targets.
    """
    if jnp.issubdtype(y.dtype, jnp.floating):
        rows = mask[:, None]
        mean = jnp.sum(jnp.where(rows, y, 0), axis=0) / jnp.maximum(mask.sum(), 1).astype(y.dtype)
        apart = jnp.maximum(_squares(y - mean, rows), jnp.finfo(y.dtype).tiny)
        return jnp.mean(1 - _squares(logits - y, rows) / apart).astype(jnp.float32)
    if y.ndim == 2:
        width = max(logits.shape[1], y.shape[1])  # data to predict on may have others
        found, y = (
            jnp.pad(flags & mask[:, None], ((0, 0), (0, width - flags.shape[1])))
            for flags in (logits > 0, y)
        )
        right, given = jnp.sum(found & y), jnp.sum(found) + jnp.sum(y)
        return 2 * right.astype(jnp.float32) / jnp.maximum(given, 1).astype(jnp.float32)
    right = (logits.argmax(axis=1).astype(y.dtype) == y) & ~jnp.isnan(logits).any(axis=1)
    return masked_mean(right.astype(jnp.float32), mask)


def regression_errors(dataset: NodeDataset, found: Array, ids: np.ndarray) -> dict[str, float]:
    """Mean absolute error, root of the mean squared one, and R2, of what was found for some ids."""
    rows = len(dataset.y)
    y, given = (np.asarray(each, np.float64).reshape(rows, -1)[ids] for each in (dataset.y, found))
    square, apart = ((each**2).mean(0) for each in (given - y, y - y.mean(0)))
    explained = 1 - square / np.where(apart > 0, apart, np.nan)
    return {
        "mae": float(np.abs(given - y).mean()),
        "rmse": float(np.sqrt(square.mean())),
        "r2": float(explained.mean()),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel(Predictor):
    """A model and how it was trained, which is what a checkpoint holds.

    A checkpoint that an older version wrote leaves None what it did not keep.

    Attributes:
        model: The model, in evaluation mode: a `Stack`, or where features are by type one after a
            `HeteroModel`. It takes graphs and features that are preprocessed
            already; `predict` takes datasets.
        preprocessing: None is replaced by that of `config`.
        config: Settings of the training, among them the preprocessing.
        data: What the dataset of the training is recognised by.
        label_names: The names of its classes; None also where it has none.
        split: The nodes that the model was trained, chosen and tested on.
        seed: What split, initial parameters and dropout were drawn from.
        version: Of the library that trained it.
        numbering: What the numbers of relations, node types and nodes of its dataset stand for.

    Raises:
        TypeError: The model is none that can be trained, or not the one that the settings are of.
    """

    config: TrainConfig
    data: Fingerprint | None = None
    label_names: tuple[str, ...] | None = None
    split: Split | None = None
    seed: int | None = None
    version: str | None = __version__
    numbering: Numbering | None = None

    def __post_init__(self) -> None:
        if self.preprocessing is None:
            object.__setattr__(self, "preprocessing", preprocessing_of(self.config))
        models = [recipe.model for recipe in RECIPES.values()]
        kind = type(stack_of(self.model))
        if kind not in models:
            raise TypeError(f"model must be one of those that can be trained, got {kind}")
        if kind is not self.recipe.model:
            raise TypeError(
                f"config must be of a {kind.__name__}, got {type(self.config).__name__}"
            )

    def __call__(self, graph: Any, x: Any = None, **named: Any) -> Any:
        """See `Predictor`; ``edge_weight`` must be given after a training with weights of edges."""
        weighted, given = getattr(self.config, "edge_weight", False), "edge_weight" in named
        if weighted and not given:
            raise ValueError(
                "edge_weight must be given: the model was trained with weights of edges"
            )
        return super().__call__(graph, x, **named)

    @property
    def recipe(self) -> Recipe:
        """The recipe that the model was trained by."""
        return RECIPES[self.config.model]

    def predict(self, dataset: NodeDataset, *, devices: int = 1, method: Any = "stream") -> Array:
        """Computes logits, after the preprocessing of the training.

        Relations, types of nodes and, where the model knows them, nodes are those of the training
        with the same names, whatever their numbers. Without names numbers count, and a warning says
        so where the data are not those of the training.

        Args:
            dataset: That of the training, or another of the same kind and the same features.
            devices: How many share the graph, as in `train`.
            method: Which node each has, see `jax_gnn.sharding.shard_graph`.

        Returns:
            ``(num_nodes, num_classes)``; the greatest of a row is the predicted class. A row for
            each graph where these have the labels; of a regression ``(rows, targets)`` numbers.

        Raises:
            TypeError: The dataset is of another kind.
            ValueError: The dataset has other numbers of features, or another structure and the
                model learned a weight for each hyperedge; it lacks relations or types of the model,
                or nodes that it knows as rows of a table, or has others; or there are fewer
                devices, or the model has no parts.
        """
        check_devices(self.config, devices, training=False)
        convolutions = getattr(stack_of(self.model), "convolutions", [None])
        learned = getattr(convolutions[0], "hyperedge_weight", None) is not None
        if learned and self.data is not None and "structure" in self.differences(dataset):
            raise ValueError(
                f"the model learned a weight for each hyperedge of {self.data.name!r}, and dataset "
                f"{dataset.name!r} has other hyperedges"
            )
        recipe_of(self.config, dataset)
        own = self.renumbered(dataset)
        with host_arrays() if devices > 1 else contextlib.nullcontext():
            graph, x, *weights = raw_inputs(self._with_own_classes(own.dataset), self.config)
        if (given := in_features(graph, x)) != self.model.in_features:
            what = "nodes" if x is None else "features"  # by type also nodes, where it has none
            raise ValueError(
                f"dataset {dataset.name!r} has {given} {what}, the model takes "
                f"{self.model.in_features}"
            )
        # Of an older checkpoint it was said already, when it was read.
        unsaid = own.unnamed and self.numbering is not None
        if unsaid and (self.data is None or "structure" in self.differences(dataset)):
            own.warn()
        if devices > 1:
            graph, x, *weights = over_devices(graph, (x, *weights), devices, method)
        logits = self(graph, x, **dict(zip(("edge_weight",), weights, strict=False)))
        if isinstance(graph, ShardedGraph):
            logits = graph.unshard(logits)
        if isinstance(graph, Batch):
            there = np.arange(logits.shape[1]) < np.asarray(graph.count)[:, None]
            logits = logits[there]
        return logits if own.dataset is dataset else logits[np.argsort(own.order)]

    def differences(self, dataset: NodeDataset) -> tuple[str, ...]:
        """Which of "structure", "features" and "labels" are not those of the training.

        Relations, types and nodes are compared by name.

        Raises:
            ValueError: The checkpoint was written by an older version, which did not keep this.
        """
        if self.data is None:
            raise ValueError("the checkpoint lacks what its data are recognised by")
        with contextlib.suppress(ValueError):  # other names, hence another structure
            dataset = self.renumbered(dataset).dataset
        return self.data.differences(fingerprint(dataset))

    def renumbered(self, dataset: NodeDataset) -> Renumbered:
        """The dataset in the model's numbers.

        Raises:
            ValueError: It lacks what the model knows by name, or has what the model does not know.
        """
        own = self.numbering
        if own is None:
            types = node_types_of(self.model)
            types = None if types == ("node",) else types
            own = Numbering(None, types, (None,) * len(types or ("node",)))
        return renumbered(dataset, own, numbered_types(dataset, self.config, own.types))

    def parts(self, dataset: NodeDataset) -> dict[str, np.ndarray]:
        """The nodes that accuracies are computed over.

        Args:
            dataset: The data.

        Returns:
            Node ids: "train", "valid" and "test" of the training's split if these are its data,
            and otherwise "labelled", all nodes with a label; empty where there are none.
        """
        if self.data is not None and self.split is not None and not self.differences(dataset):
            order = self.renumbered(dataset).order
            return {part: order[ids] for part, ids in vars(self.split).items()}
        labelled = np.flatnonzero(dataset.has_label())
        return {"labelled": labelled} if labelled.size else {}

    def accuracies(self, dataset: NodeDataset, logits: Array) -> dict[str, float]:
        """The accuracy in each of the dataset's `parts`; micro-F1 where nodes have several classes.

        Classes are compared by name where model and dataset have names, and else by number. Those
        that the model does not know count as mistakes.

        Args:
            dataset: The data.
            logits: What `predict` returns for it.

        Returns:
            Shares from 0 to 1; on the data of the training those that it recorded.
        """
        y = jnp.asarray(labels(self._with_own_classes(dataset)))
        y = y[:, None] if dataset.regresses and y.ndim == 1 else y
        return {
            name: float(accuracy(logits, y, jnp.asarray(node_mask(dataset, ids))))
            for name, ids in self.parts(dataset).items()
        }

    def _with_own_classes(self, dataset: NodeDataset) -> NodeDataset:
        """Numbers the dataset's classes as the model's of the same name, further ones after."""
        own, names = self.label_names, dataset.label_names
        if own is None or names is None or own == names:
            return dataset
        own += tuple(name for name in names if name not in own)
        number = [own.index(name) for name in names]
        y = np.array([*number, -1], np.int32)[dataset.y]  # -1, for unlabelled, is the last one
        changes = {"y": y, "label_names": own}
        several = labels(dataset)
        if several.ndim == 2:
            changes["y_multilabel"] = np.zeros((len(several), len(own)), bool)
            changes["y_multilabel"][:, number] = several
        return dataclasses.replace(dataset, **changes)
