"""Compiled epochs of a training: steps of Adam, then an evaluation."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jax_gnn
from flax_layers.training.config.nodes import TrainConfig
from flax_layers.training.data import node_mask, scaled_labels
from flax_layers.training.devices import replicate, replicated
from flax_layers.training.records import Metrics, Run
from flax_layers.training.trained import accuracy, losses, masked_mean
from flax_layers.training.types import PyTree
from jax_gnn.datasets import NodeDataset, Split

if TYPE_CHECKING:
    import optax

MIN_HYPEREDGE_WEIGHT = 1e-2

# ((params, statistics), graph, features and weights, dropout key or None) -> logits, statistics
Apply = Callable[[PyTree, PyTree, PyTree, Array | None], tuple[Array, PyTree]]
KeyPath = tuple[Any, ...]  # of `jax.tree_util`


class Data(NamedTuple):
    """Data of an evaluation; or, with leading axes for epochs and steps, data of training steps.

    Attributes:
        graph: Structure that the model is called with.
        inputs: Features, and perhaps weights of edges.
        y: Labels, or the seed nodes of steps that sample their graphs.
        masks: Masks of the training, validation and test nodes; one mask for a step's graphs.
        class_weight: Factor of each class in the loss, or None; of an evaluation's data alone.
        forces: Negative gradients of the labels to positions of atoms, NaN if unknown, or None; of
            a step's data alone.
    """

    graph: Any
    inputs: tuple[Any, ...]
    y: Array
    masks: tuple[Array, ...]
    class_weight: Array | None = None
    forces: Array | None = None


def evaluation_data(
    graph: PyTree,
    inputs: tuple[PyTree, ...],
    dataset: NodeDataset,
    config: TrainConfig,
    split: Split,
    convert: Callable[[np.ndarray], Array] = jnp.asarray,
) -> Data:
    """Return the data of evaluations on a graph, with its labels and masks of the split's parts."""
    y = convert(scaled_labels(dataset, config))
    masks = (convert(node_mask(dataset, ids)) for ids in vars(split).values())
    return Data(graph, inputs, y, tuple(masks))


# (data of the evaluation, seed nodes, key, step) -> result of the step on the sampled data
Sample = Callable[[Data, Array, Array, Callable[[Data], PyTree]], PyTree]


class _State(NamedTuple):
    params: Any
    stats: Any  # running statistics of norms
    optimizer: Any
    best: Any  # parameters and statistics
    best_valid_accuracy: Array


def _is_hyperedge_weight(path: KeyPath) -> bool:
    return "hyperedge_weight" in jax.tree_util.keystr(path)


def adam(learning_rate: float | Callable[[Array], Array]) -> optax.GradientTransformation:
    """Return Optax's Adam, which promotes dtypes, also where promotion is set to be strict."""
    import optax  # part of the extra "train"

    # Optax multiplies arrays by scalars of other dtypes, which strict promotion refuses.
    init, update = optax.adam(learning_rate)

    def promoting_update(*arguments: PyTree) -> PyTree:
        with jax.numpy_dtype_promotion("standard"):
            return update(*arguments)

    return optax.GradientTransformation(init, promoting_update)


def divided(params: PyTree, sum_size: float) -> PyTree:
    """Return parameters, or their updates, as if sums over neighbours were divided by a number.

    A map of sums, a convolution's first map, begins smaller, and moves less: at Adam's rate for
    other maps its results would jump, and ReLUs after it die.
    """
    if sum_size == 1:
        return params
    is_of_sums = re.compile(r"\['conv\d+'\]\['kernel'\]").match
    return jax.tree_util.tree_map_with_path(
        lambda path, p: p / sum_size if is_of_sums(jax.tree_util.keystr(path)) else p, params
    )


def _optimizer(config: TrainConfig, steps: int, sum_size: float) -> optax.GradientTransformation:
    """Return the optimizer of the settings for a number of steps per epoch."""
    import optax  # part of the extra "train"

    # Decay is added to the gradient, as in the published code, and not to the update as in AdamW.
    map_decay = getattr(config, "map_weight_decay", config.weight_decay)

    def decay(path: KeyPath, param: Array) -> Array:
        first_only = config.weight_decay_layers == "first"
        if first_only and "'conv1'" not in jax.tree_util.keystr(path):
            return jnp.zeros_like(param)
        if _is_hyperedge_weight(path):
            return jnp.zeros_like(param)
        is_map = any(name in jax.tree_util.keystr(path[:1]) for name in ("'input'", "'output'"))
        return (map_decay if is_map else config.weight_decay) * param

    def add_decay(updates: PyTree, params: PyTree) -> PyTree:
        decays = jax.tree_util.tree_map_with_path(decay, params)
        return jax.tree.map(jnp.add, updates, decays)

    smaller = optax.stateless(lambda updates, _: divided(updates, sum_size))
    return optax.chain(optax.stateless(add_decay), adam(config.rates(steps)), smaller)


def _clip_hyperedge_weights(params: PyTree) -> PyTree:
    """Project hyperedge weights onto positive values, so that weighted degrees stay positive."""
    return jax.tree_util.tree_map_with_path(
        lambda path, p: jnp.maximum(p, MIN_HYPEREDGE_WEIGHT) if _is_hyperedge_weight(path) else p,
        params,
    )


def _train_epochs(
    apply: Apply,
    optimizer: optax.GradientTransformation,
    sample: Sample | None,
    state: _State,
    dropout_keys: Array,
    data: Data,
    steps: Data | None,
    force_weight: float = 0.0,
) -> tuple[_State, Metrics]:
    """Run one epoch per key: its steps, then an evaluation that may replace the best parameters.

    There are three kinds of steps. Without `steps` an epoch is one step on the whole of `data`.
    With `steps` it is one step on each of their batches of graphs. With `sample`, too, `steps` are
    seed nodes, whose neighbourhoods are sampled in `data` inside the step.
    """
    import optax

    def step(state: _State, inputs: tuple[Array, Data]) -> tuple[_State, tuple[Array, Array]]:
        key, batch = inputs
        if sample is None:
            return batch_step(state, key, batch)
        # Samples and dropout have keys of their own.
        key, sample_key = jax.random.split(key)
        return sample(data, batch.y, sample_key, functools.partial(batch_step, state, key))

    def batch_step(state: _State, key: Array, batch: Data) -> tuple[_State, tuple[Array, Array]]:
        """Return the state after a step, and the step's loss and weight."""

        def loss_fn(params: PyTree) -> tuple[Array, PyTree]:
            logits, stats = apply((params, state.stats), batch.graph, batch.inputs, key)
            weight = batch.masks[0]
            if data.class_weight is not None:
                weight = jnp.where(weight, data.class_weight[batch.y], 0)
            loss = masked_mean(losses(logits, batch.y), weight)
            if batch.forces is not None:
                loss += force_weight * force_loss(params, batch.forces)
            return loss, (stats, weight.sum())

        def force_loss(params: PyTree, forces: Array) -> Array:
            """Return the squared error of forces, the mean over components that are known."""

            def energy(x: Array) -> Array:
                variables = params, state.stats
                return apply(variables, batch.graph, (x, *batch.inputs[1:]), key)[0].sum()

            errors = jax.grad(energy)(batch.inputs[0])[..., 1:] + forces
            known = ~jnp.isnan(forces)
            return masked_mean(jnp.where(known, errors, 0).ravel() ** 2, known.ravel())

        (loss, (stats, size)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        updates, moments = optimizer.update(grads, state.optimizer, state.params)
        params = _clip_hyperedge_weights(optax.apply_updates(state.params, updates))
        return state._replace(params=params, stats=stats, optimizer=moments), (loss, size)

    def evaluate(variables: PyTree) -> tuple[Array, ...]:
        if steps is None or sample is not None:
            logits = apply(variables, data.graph, data.inputs, None)[0]
            return tuple(accuracy(logits, data.y, mask) for mask in data.masks)
        # Batches of graphs have a leading axis.
        batches = data.graph, data.inputs
        logits = jax.lax.map(lambda batch: apply(variables, batch[0], batch[1], None)[0], batches)
        logits, y = (rows.reshape(-1, *rows.shape[2:]) for rows in (logits, data.y))
        return tuple(accuracy(logits, y, mask.ravel()) for mask in data.masks)

    def epoch(state: _State, inputs: tuple[Array, Data | None]) -> tuple[_State, Metrics]:
        key, batches = inputs
        if batches is None:
            state, (loss, _) = step(state, (key, data))
        else:
            keys = jax.random.split(key, len(batches.y))
            state, (step_losses, sizes) = jax.lax.scan(step, state, (keys, batches))
            loss = masked_mean(step_losses, sizes)  # the last step may have fewer nodes
        # The best variables are selected on the device, so that epochs need no host.
        variables = state.params, state.stats
        accuracies = evaluate(variables)
        better = accuracies[1] > state.best_valid_accuracy
        best, best_valid = jax.tree.map(
            functools.partial(jnp.where, better),
            (variables, accuracies[1]),
            (state.best, state.best_valid_accuracy),
        )
        state = state._replace(best=best, best_valid_accuracy=best_valid)
        return state, Metrics(loss, *accuracies)

    return jax.lax.scan(epoch, state, (dropout_keys, steps))


class Runner:
    """One implementation: its compiled programs, current state and records."""

    def __init__(
        self,
        apply: Apply,
        config: TrainConfig,
        steps: int = 1,
        sum_size: float = 1.0,
        sample: Sample | None = None,
    ) -> None:
        self._optimizer = _optimizer(config, steps, sum_size)
        weight = getattr(config, "force_weight", 0.0)
        self._train = functools.partial(
            _train_epochs, apply, self._optimizer, sample, force_weight=weight
        )
        self._implementation = config.implementation
        self._compiled: dict[PyTree, Any] = {}  # by number of epochs and shapes of steps
        self.state: _State | None = None
        self._metrics: list[list[Metrics]] = []  # by split and call
        self._costs: dict[str, Any] = {"epochs": [], "compilation": 0.0, "custom_calls": []}

    def start(self, params: PyTree, stats: PyTree) -> None:
        """Begin a split."""
        moments, lowest = self._optimizer.init(params), jnp.array(-jnp.inf, jnp.float32)
        self.state = _State(params, stats, moments, (params, stats), lowest)
        self._metrics.append([])

    def restore(self, state: _State, curves: Sequence[np.ndarray], costs: dict[str, Any]) -> None:
        """Continue from a state, from the `curves` of all splits up to this one, and `costs`."""
        self.state, self._metrics = state, [[Metrics(*rows)] for rows in curves]
        self._costs = costs

    def costs(self) -> dict[str, Any]:
        """Return seconds per epoch of each call, seconds of compilation, names of custom calls."""
        return self._costs | {"epochs": [*self._costs["epochs"]]}

    def curves(self) -> list[np.ndarray]:
        """Return the metrics of each split so far, ``(4, epochs)``."""
        for calls in self._metrics:  # joined once, as every epoch asks for them
            calls[:] = [Metrics(*map(np.concatenate, zip(*calls, strict=True)))]
        return [np.stack(calls[0]) for calls in self._metrics]

    def advance(self, keys: Array, data: Data, steps: Data | None) -> Metrics:
        """Run and time one epoch per key."""
        assert self.state is not None
        sharding = replicated(data.graph)
        arguments = (*replicate((self.state, keys), data.graph), data, steps)
        shapes = len(keys), *(array.shape for array in jax.tree.leaves(steps))
        if shapes not in self._compiled:
            start = time.perf_counter()
            with implementation_context(self._implementation):
                train = jax.jit(self._train, out_shardings=sharding)
                self._compiled[shapes] = train.lower(*arguments).compile()
            self._costs["compilation"] += time.perf_counter() - start
            program = self._compiled[shapes].as_text()
            targets = re.findall(r'custom_call_target="(jax_gnn[^"]*)"', program)
            self._costs["custom_calls"] = sorted({*targets})
        # Only the finished program is timed: dispatch returns before its results are there.
        start = time.perf_counter()
        self.state, metrics = jax.block_until_ready(self._compiled[shapes](*arguments))
        self._costs["epochs"].append((time.perf_counter() - start) / len(keys))
        metrics = Metrics(*map(np.asarray, metrics))
        self._metrics[-1].append(metrics)
        return metrics

    def has_stopped(self, patience: int) -> bool:
        """Return whether so many epochs of the split had no better validation; never for 0."""
        if not (patience and self._metrics[-1]):
            return False
        valid = self.curves()[-1][2]
        return len(valid) - 1 - int(np.where(np.isnan(valid), -np.inf, valid).argmax()) >= patience

    def best(self) -> tuple[float, PyTree]:
        """Return validation accuracy and variables of the current split's best epoch.

        The variables are on the default device, wherever the training was.
        """
        assert self.state is not None
        best = jax.tree.map(jnp.asarray, jax.device_get(self.state.best))
        return float(self.state.best_valid_accuracy), best

    def result(self, over: Literal["splits", "seeds", "folds"]) -> Run:
        """Return the records of all splits."""
        by_split = self.curves()
        longest = max(curves.shape[1] for curves in by_split)
        padded = (
            np.pad(curves, ((0, 0), (0, longest - curves.shape[1])), constant_values=np.nan)
            for curves in by_split
        )
        curves = dict(zip(Metrics._fields, np.stack([*padded], axis=1), strict=True))
        return Run(
            **curves,
            epoch_seconds=np.array(self._costs["epochs"]),
            compile_seconds=self._costs["compilation"],
            custom_calls=tuple(self._costs["custom_calls"]),
            over=over,
        )


def implementation_context(
    implementation: Literal["cuda", "cpu", "xla"] | None,
) -> contextlib.AbstractContextManager[None]:
    """Return the context of an implementation; None leaves the choice to the library."""
    if implementation is None:
        return contextlib.nullcontext()
    return jax_gnn.implementation(implementation)
