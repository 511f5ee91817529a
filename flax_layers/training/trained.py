"""A trained model with all that its predictions need: preprocessing, labels and split."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from flax_layers import HeteroModel, Stack
from flax_layers.training.config.nodes import SampledConfig, TrainConfig
from flax_layers.training.data import (
    Fingerprint,
    Numbering,
    Renumbered,
    check_times,
    data_error,
    fingerprint,
    labels,
    node_mask,
    num_outputs,
    numbered_types,
    preprocessing_of,
    raw_features,
    renumbered,
    scaled_inputs,
)
from flax_layers.training.devices import (
    AXIS,
    REPLICATED,
    check_devices,
    gather,
    merge_devices,
    mesh_of,
    place,
    shard_inputs,
)
from flax_layers.training.graphs import all_groups, connected, stack_batches, to_device
from flax_layers.training.models import RECIPES, Recipe, recipe_of
from flax_layers.training.neighborhoods import predict_past
from flax_layers.training.predictor import Predictor, Preprocessing, apply_model
from flax_layers.training.types import AnyStructure, ArrayByType, Method, Model, PyTree
from jax_gnn import Batch, __version__, host_arrays
from jax_gnn.datasets import GraphsDataset, NodeDataset, Split
from jax_gnn.sharding import ShardedGraph, apply_on_devices


def raw_inputs(dataset: NodeDataset, config: TrainConfig, devices: int = 1) -> tuple[Any, ...]:
    """Return the inputs of a predictor of these settings: structure, `raw_features`, edge weights.

    Weights of edges are there if the settings ask for them. Many graphs become stacked batches, on
    the device, as many for each of several devices.
    """
    recipe = recipe_of(config, dataset)
    x: Any = raw_features(dataset, config)
    if isinstance(dataset, GraphsDataset):
        dataset = connected(dataset, config)
        groups, budget = all_groups(dataset, config, devices)  # type: ignore[arg-type]
        has_edges = config.edge_in_features is not None
        if has_edges and dataset.edge_features is None:
            raise data_error(dataset, "has no edge_features, which the model takes")
        batches, rows, _ = stack_batches(dataset, x, groups, budget, has_edges=has_edges)
        return to_device((batches, *rows))
    assert recipe.structure is not None
    graph: Any = recipe.structure(dataset, config)
    name = edge_argument(config)
    if not name:
        return graph, x
    values = getattr(dataset, name, None)
    if values is None:
        raise data_error(dataset, f"has no {name}, which the model takes")
    return graph, x, graph.edge_values(values)


def edge_argument(config: TrainConfig) -> str:
    """Return the argument for values of edges in calls of the model; "" without."""
    if config.edge_in_features is not None:
        return "edge_features"
    return "edge_weight" if getattr(config, "edge_weight", False) else ""


def model_inputs(dataset: NodeDataset, config: TrainConfig, devices: int = 1) -> tuple[Any, ...]:
    """Return the inputs of a model of these settings: `raw_inputs` after the preprocessing."""
    graph, *inputs = raw_inputs(dataset, config, devices)
    return graph, *scaled_inputs(preprocessing_of(config), *inputs)


def in_features(graph: AnyStructure, x: ArrayByType) -> int | dict[str, int]:
    """Return the input width of a model, per node type if typed; one-hot without features."""
    structure: Any = graph
    if not isinstance(x, dict):
        return structure.num_nodes if x is None else x.shape[-1]
    sizes = structure.node_type_sizes or (structure.num_nodes,)
    names = structure.node_type_names or (*x,)
    widths = {}
    for name, size in zip(names, sizes, strict=True):
        part = x[name]
        widths[name] = size if part is None else part.shape[-1]
    return widths


def make_model(
    config: TrainConfig, graph: AnyStructure, x: ArrayByType, num_classes: int, seed: int
) -> Any:
    """Return a model with parameters of a seed, after maps by type if features are by type."""
    # With features by type, maps of all types have the width that the model takes.
    recipe = RECIPES[config.model]
    widths, rngs = in_features(graph, x), nnx.Rngs(seed)
    options = recipe.options(config, graph)
    if issubclass(recipe.model, Stack):
        options["input_dropout_rate"] = config.input_dropout_rate
    make: Any = recipe.model
    model = make(
        config.hidden_features if isinstance(widths, dict) else widths,
        config.hidden_features,
        num_classes,
        num_layers=config.num_layers,
        dropout_rate=config.dropout_rate,
        rngs=rngs,
        **options,
    )
    return HeteroModel(widths, model, rngs=rngs) if isinstance(widths, dict) else model


def stack_of(model: Model | nnx.Module) -> Any:
    """Return the stack of convolutions, without maps by type before it."""
    return model.model if isinstance(model, HeteroModel) else model


def node_types_of(model: Model | nnx.Module) -> tuple[str, ...] | None:
    """Return the types by which the model takes nodes, None where it takes all alike."""
    if isinstance(model, HeteroModel):
        return tuple(model.in_features)
    if not isinstance(model, Stack):
        return None
    types = getattr(model.convolutions[0], "node_types", None)
    return types if isinstance(types, tuple) else None


# --- Losses and metrics ---------------------------------------------------------------------------


def masked_mean(values: Array, mask: Array) -> Array:
    """Return the mean of values by a mask, or by weights; 0 where all of these are 0."""
    mask = mask.astype(values.dtype)
    total = mask.sum()
    return jnp.vdot(values, mask) / jnp.where(total == 0, 1, total)


def _square_sums(values: Array, mask: Array) -> Array:
    return jnp.sum(jnp.where(mask, values, 0) ** 2, axis=0)


def losses(logits: Array, y: Array) -> Array:
    """Return the loss of each node, ``(num_nodes,)``: cross-entropy, or squared error of numbers.

    Of several classes each it is the mean of binary ones; the error of a missing number is 0.
    """
    import optax  # part of the extra "train"

    if jnp.issubdtype(y.dtype, jnp.floating):
        errors = jnp.where(jnp.isnan(y), 0, logits - y.astype(logits.dtype))
        return (errors**2).mean(1)
    if y.ndim == 2:
        entropies: Array = optax.sigmoid_binary_cross_entropy(logits, y.astype(logits.dtype))
        return entropies.mean(1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(y, 0))


def accuracy(logits: Array, y: Array, mask: Array) -> Array:
    """Return the share of the mask's nodes whose class has the greatest logit, float32.

    A row with NaN is a mistake. Where nodes may have several classes, the classes of positive
    logits are compared by micro-F1. For numbers it is R2, the mean over targets; of equal numbers 1
    less the sum of squared errors.
    """
    if jnp.issubdtype(y.dtype, jnp.floating):
        rows = mask[:, None]
        mean = jnp.sum(jnp.where(rows, y, 0), axis=0) / jnp.maximum(mask.sum(), 1).astype(y.dtype)
        variation = _square_sums(y - mean, rows)
        variation = jnp.where(variation > 0, variation, 1)
        return jnp.mean(1 - _square_sums(logits - y, rows) / variation).astype(jnp.float32)
    if y.ndim == 2:
        width = max(logits.shape[1], y.shape[1])  # data to predict on may have further classes
        predicted, y = (
            jnp.pad(flags & mask[:, None], ((0, 0), (0, width - flags.shape[1])))
            for flags in (logits > 0, y)
        )
        hits, total = jnp.sum(predicted & y), jnp.sum(predicted) + jnp.sum(y)
        return 2 * hits.astype(jnp.float32) / jnp.maximum(total, 1).astype(jnp.float32)
    hits = (logits.argmax(axis=1).astype(y.dtype) == y) & ~jnp.isnan(logits).any(axis=1)
    return masked_mean(hits.astype(jnp.float32), mask)


def regression_errors(
    dataset: NodeDataset, predictions: Array, ids: np.ndarray
) -> dict[str, float]:
    """Return mean absolute error, root of the mean squared error, and R2 of some predictions."""
    rows = len(dataset.y)
    # float64, as sums of many squares of float32 lose digits.
    y, predicted = (
        np.asarray(numbers, np.float64).reshape(rows, -1)[ids]
        for numbers in (dataset.y, predictions)
    )
    square, variance = ((errors**2).mean(0) for errors in (predicted - y, y - y.mean(0)))
    explained = 1 - square / np.where(variance > 0, variance, np.nan)
    return {
        "mae": float(np.abs(predicted - y).mean()),
        "rmse": float(np.sqrt(square.mean())),
        "r2": float(explained.mean()),
    }


# --- Trained models -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel(Predictor):
    """A model and its training, the contents of a checkpoint.

    Attributes:
        model: The model, in evaluation mode: a `Stack`, or where features are by type one after a
            `HeteroModel`. It takes graphs and features that are preprocessed already; `predict`
            takes datasets.
        preprocessing: Scaling of features and results; None is replaced by that of `config`.
        config: Settings of the training, among them the preprocessing.
        data: Identity of the dataset of the training; None where it is not known.
        label_names: Names of its classes; None also where it has none.
        split: Nodes that the model was trained, chosen and tested on, or None.
        seed: Seed of split, initial parameters and dropout, or None.
        version: Version of the library that trained it.
        numbering: Names behind the numbers of relations, node types and nodes of its dataset; None
            takes all by number.

    Raises:
        TypeError: The model is none that can be trained, or not the model of the settings.
    """

    config: TrainConfig
    data: Fingerprint | None = None
    label_names: tuple[str, ...] | None = None
    split: Split | None = None
    seed: int | None = None
    version: str = __version__
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

    def __call__(self, graph: AnyStructure, x: ArrayByType = None, **named: PyTree) -> PyTree:
        """See `Predictor`; ``edge_weight`` or ``edge_features`` must be given as in training."""
        name = edge_argument(self.config)
        if name and name not in named:
            raise ValueError(f"{name} must be given, as the model was trained with it")
        return super().__call__(graph, x, **named)

    @property
    def recipe(self) -> Recipe:
        """Recipe by which the model was trained."""
        return RECIPES[self.config.model]

    def predict(self, dataset: NodeDataset, *, devices: int = 1, method: Method = "auto") -> Array:
        """Compute logits, after the preprocessing of the training.

        Relations, types of nodes and, where the model knows them, nodes are those of the training
        with the same names, whatever their numbers. Without names numbers count, and a warning says
        so where the data are not those of the training. After a training by times, a node sees the
        edges up to its own time.

        Args:
            dataset: Data of the training, or others of the same kind and the same features.
            devices: Number of devices that share the graph, as in `train`.
            method: Assignment of nodes to devices, see `jax_gnn.sharding.shard_graph`.

        Returns:
            ``(num_nodes, num_classes)``; the greatest of a row is the predicted class. A row for
            each graph where graphs have the labels; for a regression ``(rows, targets)`` numbers.

        Raises:
            TypeError: The dataset is of another kind.
            ValueError: The dataset has other features, other names, or hyperedges without learned
                weights; or there are fewer devices, or the model has no parts.
        """
        check_devices(self.config, devices)
        check_times(dataset, self.config)
        # Weights that were learned are those of the training's hyperedges, by number.
        convolutions = getattr(stack_of(self.model), "convolutions", [None])
        learned = getattr(convolutions[0], "hyperedge_weight", None) is not None
        if learned and self.data is not None and "structure" in self.differences(dataset):
            raise ValueError(
                f"the model learned a weight for each hyperedge of {self.data.name!r}, and dataset "
                f"{dataset.name!r} has other hyperedges"
            )
        recipe_of(self.config, dataset)
        # The data are brought into the model's order by name; predictions are brought back.
        match = self.renumbered(dataset)
        with host_arrays() if devices > 1 else contextlib.nullcontext():
            inputs = raw_inputs(self._with_model_classes(match.dataset), self.config, devices)
        graph, x, *weights = inputs
        if (widths := in_features(graph, x)) != self.model.in_features:
            what = "nodes" if x is None else "features"  # by type also nodes, where it has none
            raise data_error(
                dataset, f"has {widths} {what}, the model takes {self.model.in_features}"
            )
        if (
            match.unnamed
            and self.numbering is not None
            and (self.data is None or "structure" in self.differences(dataset))
        ):
            match.warn()
        if devices > 1 and not isinstance(graph, Batch):
            graph, x, *weights = shard_inputs(graph, (x, *weights), devices, method)
        if getattr(self.config, "edge_time", False):
            scaling = self.preprocessing or Preprocessing()
            config = cast(SampledConfig, self.config)
            x, *weights = scaled_inputs(scaling, x, *weights)
            logits = predict_past(self.model, match.dataset, config, graph, x, *weights)
            logits = scaling.results(logits)
        else:
            named = dict(zip((edge_argument(self.config),), weights, strict=False))
            if devices > 1 and isinstance(graph, Batch):
                # Each device computes some of the groups of graphs.
                values, named = jax.tree.map(
                    lambda array: array.reshape(devices, -1, *array.shape[1:]), ((graph, x), named)
                )
                mesh = mesh_of(devices)
                graphdef, *arrays = self._parts()
                arrays = place(arrays, NamedSharding(mesh, REPLICATED))
                values, named = place((values, named), NamedSharding(mesh, PartitionSpec(AXIS)))

                def predict(graph: PyTree, x: Array, *, arrays: PyTree, **named: Array) -> PyTree:
                    return apply_model(graphdef, *arrays, {"graph": graph, "x": x, **named})

                logits = apply_on_devices(predict, mesh, AXIS, values, named, arrays=arrays)
                logits = merge_devices(gather(logits))
            else:
                logits = self(graph, x, **named)
        if isinstance(graph, ShardedGraph):
            logits = graph.unshard(logits)
        if isinstance(graph, Batch):  # rows of padding are dropped
            valid = np.arange(logits.shape[1]) < np.asarray(graph.count)[:, None]
            logits = logits[valid]
        return logits if match.dataset is dataset else logits[np.argsort(match.order)]

    def predict_forces(self, dataset: GraphsDataset) -> np.ndarray:
        """Compute the negative gradients of the energies to the positions of atoms.

        Args:
            dataset: Molecules, as for `predict`.

        Returns:
            ``(num_nodes, 3)`` float32, in the units of the energies and positions.

        Raises:
            TypeError: The model has no forces.
        """
        if not hasattr(self.model, "forces"):
            raise TypeError(f"model must have forces, as a SchNet has, got {type(self.model)}")
        batches, x = raw_inputs(dataset, self.config)
        graphdef, state, preprocessing = self._parts()
        scale = 1.0 if preprocessing.target_std is None else preprocessing.target_std

        def forces(inputs: PyTree) -> Array:
            model: Any = nnx.merge(graphdef, state)
            return model.forces(*inputs) * scale

        rows = np.asarray(jax.jit(lambda inputs: jax.lax.map(forces, inputs))((batches, x)))
        return rows[np.asarray(batches.graph_ids) >= 0]

    def force_error(self, dataset: GraphsDataset, ids: np.ndarray) -> dict[str, float]:
        """Return "force_mae" of some molecules, by component, or nothing without known forces."""
        if dataset.forces is None:
            return {}
        atoms = dataset.nodes_of(ids)
        errors = self.predict_forces(dataset)[atoms] - dataset.forces[atoms]
        return {"force_mae": float(np.abs(errors).mean())}

    def differences(self, dataset: NodeDataset) -> tuple[str, ...]:
        """Return which of "structure", "features" and "labels" are not those of the training.

        Relations, types and nodes are compared by name.

        Raises:
            ValueError: The data of the training are not known.
        """
        if self.data is None:
            raise ValueError("the model lacks what its data are recognised by")
        with contextlib.suppress(ValueError):  # other names, hence another structure
            dataset = self.renumbered(dataset).dataset
        return self.data.differences(fingerprint(dataset))

    def renumbered(self, dataset: NodeDataset) -> Renumbered:
        """Return the dataset in the model's numbers.

        Raises:
            ValueError: It lacks names of the model, or has names that the model does not know.
        """
        numbering = self.numbering
        if numbering is None:
            types = node_types_of(self.model)
            types = None if types == ("node",) else types
            numbering = Numbering(None, types, (None,) * len(types or ("node",)))
        return renumbered(dataset, numbering, numbered_types(dataset, self.config, numbering.types))

    def parts(self, dataset: NodeDataset) -> dict[str, np.ndarray]:
        """Return the ids of the nodes that accuracies are computed over.

        They are "train", "valid" and "test" of the training's split if these are its data, and
        otherwise "labelled", all nodes with a label of the kind that the model predicts: a class,
        several, or as many numbers. There is no part without nodes.
        """
        if self.data is not None and self.split is not None and not self.differences(dataset):
            order = self.renumbered(dataset).order
            return {part: order[ids] for part, ids in vars(self.split).items()}
        targets = self.config.target_scaling
        kind = (self.config.multilabel, None if targets is None else len(targets[0]))
        sizes = num_outputs(dataset) if dataset.regresses else None
        if kind != (not dataset.regresses and labels(dataset).ndim > 1, sizes):
            return {}
        labelled = np.flatnonzero(dataset.has_label())
        return {"labelled": labelled} if labelled.size else {}

    def accuracies(self, dataset: NodeDataset, logits: Array) -> dict[str, float]:
        """Return the accuracy in each of the dataset's `parts`; micro-F1 of several classes each.

        Classes are compared by name where model and dataset have names, and else by number. Classes
        that the model does not know count as mistakes. On the data of the training, accuracies are
        those that it recorded.
        """
        # Numbers to regress on have a column for each target.
        y = jnp.asarray(labels(self._with_model_classes(dataset)))
        y = y[:, None] if dataset.regresses and y.ndim == 1 else y
        return {
            name: float(accuracy(logits, y, jnp.asarray(node_mask(dataset, ids))))
            for name, ids in self.parts(dataset).items()
        }

    def _with_model_classes(self, dataset: NodeDataset) -> NodeDataset:
        """Number the dataset's classes as the model's of the same name, further classes after."""
        classes, names = self.label_names, dataset.label_names
        if classes is None or names is None or classes == names:
            return dataset
        classes += tuple(name for name in names if name not in classes)
        numbers = [classes.index(name) for name in names]
        y = np.array([*numbers, -1], np.int32)[
            dataset.y
        ]  # -1, of unlabelled nodes, indexes the end
        changes: dict[str, Any] = {"y": y, "label_names": classes}
        flags = labels(dataset)
        if flags.ndim == 2:
            changes["y_multilabel"] = np.zeros((len(flags), len(classes)), bool)
            changes["y_multilabel"][:, numbers] = flags
        return dataclasses.replace(dataset, **changes)
