"""Training of a model on splits of a dataset, and of its plain-JAX twin beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

import jax_gnn
from flax_layers.training.config import TrainConfig
from flax_layers.training.data import (
    Numbering,
    check_dataset,
    fingerprint,
    labels,
    node_mask,
    settled,
    split_of,
)
from flax_layers.training.models import recipe_of
from flax_layers.training.trained import (
    TrainedModel,
    accuracy,
    losses,
    make_model,
    masked_mean,
    model_inputs,
    node_types_of,
)
from jax_gnn.datasets import NodeDataset

if TYPE_CHECKING:
    import optax

EPOCHS_PER_CALL = 10
MIN_HYPEREDGE_WEIGHT = 1e-2

# (params, graph, features and weights, dropout key or None) -> logits
Apply = Callable[[Any, Any, Any, Array | None], Array]


class Metrics(NamedTuple):
    """Training loss under dropout and accuracies without; scalars, or one entry per epoch."""

    train_loss: Any
    train_accuracy: Any
    valid_accuracy: Any
    test_accuracy: Any


class EpochReport(NamedTuple):
    """What `on_epoch` is told: indices from 0, and the library run's figures."""

    split: int
    epoch: int
    train_loss: float
    train_accuracy: float
    valid_accuracy: float


@dataclasses.dataclass(frozen=True)
class Run:
    """Results of one implementation over all splits.

    Attributes:
        train_loss: Mean cross-entropy of the training nodes under dropout, ``(splits, epochs)``.
        train_accuracy: Without dropout, after the epoch's step, ``(splits, epochs)``; micro-F1
            where nodes have several classes. So are the next two.
        valid_accuracy: ``(splits, epochs)``.
        test_accuracy: ``(splits, epochs)``.
        epoch_seconds: Measured seconds per epoch, one entry per timed call, without compilation.
        compile_seconds: Tracing and compilation.
        custom_calls: Names of this library's XLA custom calls in the compiled program.
    """

    train_loss: np.ndarray
    train_accuracy: np.ndarray
    valid_accuracy: np.ndarray
    test_accuracy: np.ndarray
    epoch_seconds: np.ndarray
    compile_seconds: float
    custom_calls: tuple[str, ...]

    @property
    def best_epoch(self) -> np.ndarray:
        """First epoch of the highest validation accuracy in each split, ``(splits,)``."""
        return self.valid_accuracy.argmax(axis=1)

    @property
    def best_valid_accuracy(self) -> np.ndarray:
        """Validation accuracy at `best_epoch`, ``(splits,)``."""
        return self.valid_accuracy.max(axis=1)

    @property
    def best_test_accuracy(self) -> np.ndarray:
        """Test accuracy at `best_epoch`, ``(splits,)``."""
        return self.test_accuracy[np.arange(len(self.test_accuracy)), self.best_epoch]

    @property
    def accuracy_mean(self) -> float:
        """Mean of `best_test_accuracy`."""
        return float(self.best_test_accuracy.mean())

    @property
    def accuracy_std(self) -> float:
        """Sample standard deviation of `best_test_accuracy`; 0 for one split."""
        values = self.best_test_accuracy
        return float(values.std(ddof=1)) if len(values) > 1 else 0.0

    @property
    def median_epoch_seconds(self) -> float:
        """Median of `epoch_seconds`."""
        return float(np.median(self.epoch_seconds))


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """Outcome of `train`.

    Attributes:
        trained: The best split's model at its best validation epoch, ready to predict. Splits, too,
            are compared by validation accuracy; of equal ones the first is the best.
        graph: The graph or hypergraph that it was trained on, added self-loops included.
        x: What it was trained on, see `node_features`.
        run: The library's run.
        baseline: The plain-JAX run from the same initial parameters and dropout keys, if asked for.
    """

    trained: TrainedModel
    graph: Any
    x: Any
    run: Run
    baseline: Run | None

    @property
    def model(self) -> Any:
        """The model alone, in evaluation mode: `graph` and `x` are what it takes."""
        return self.trained.model

    @property
    def speedup(self) -> float | None:
        """Plain JAX's median time per epoch over the library's."""
        if self.baseline is None:
            return None
        return self.baseline.median_epoch_seconds / self.run.median_epoch_seconds


class _Data(NamedTuple):
    graph: Any
    inputs: tuple[Any, ...]  # features, and perhaps weights of edges
    y: Array
    masks: tuple[Array, Array, Array]  # of the training, validation and test nodes


class _State(NamedTuple):
    params: Any
    optimizer: Any
    best_params: Any
    best_valid_accuracy: Array


def _is_hyperedge_weight(path: tuple[Any, ...]) -> bool:
    return "hyperedge_weight" in jax.tree_util.keystr(path)


def adam(learning_rate: float) -> optax.GradientTransformation:
    """Optax's, which promotes dtypes, also where promotion is set to be strict."""
    import optax  # part of the extra "train"

    init, update = optax.adam(learning_rate)

    def updates(*state: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return update(*state)

    return optax.GradientTransformation(init, updates)


def _optimizer(config: TrainConfig) -> optax.GradientTransformation:
    import optax  # part of the extra "train"

    map_decay = getattr(config, "map_weight_decay", config.weight_decay)

    def is_map(path: tuple[Any, ...]) -> bool:
        return any(name in jax.tree_util.keystr(path[:1]) for name in ("'input'", "'output'"))

    def decay(path: tuple[Any, ...], param: Any) -> Any:
        first_only = config.weight_decay_layers == "first"
        if first_only and "'conv1'" not in jax.tree_util.keystr(path):
            return jnp.zeros_like(param)
        if _is_hyperedge_weight(path):
            return jnp.zeros_like(param)
        return (map_decay if is_map(path) else config.weight_decay) * param

    def add_decay(updates: Any, params: Any) -> Any:
        decays = jax.tree_util.tree_map_with_path(decay, params)
        return jax.tree.map(jnp.add, updates, decays)

    return optax.chain(optax.stateless(add_decay), adam(config.learning_rate))


def _keep_positive(params: Any) -> Any:
    """Projects hyperedge weights onto positive values, so that weighted degrees stay positive."""
    return jax.tree_util.tree_map_with_path(
        lambda path, p: jnp.maximum(p, MIN_HYPEREDGE_WEIGHT) if _is_hyperedge_weight(path) else p,
        params,
    )


def _train_epochs(
    apply: Apply,
    optimizer: optax.GradientTransformation,
    state: _State,
    dropout_keys: Array,
    data: _Data,
) -> tuple[_State, Metrics]:
    """Runs one epoch per key: a step, then an evaluation that may replace the best parameters."""
    import optax

    def loss_fn(params: Any, key: Array) -> Array:
        logits = apply(params, data.graph, data.inputs, key)
        return masked_mean(losses(logits, data.y), data.masks[0])

    def epoch(state: _State, key: Array) -> tuple[_State, Metrics]:
        loss, grads = jax.value_and_grad(loss_fn)(state.params, key)
        updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
        params = _keep_positive(optax.apply_updates(state.params, updates))
        logits = apply(params, data.graph, data.inputs, None)
        accuracies = [accuracy(logits, data.y, mask) for mask in data.masks]
        better = accuracies[1] > state.best_valid_accuracy
        best_params, best_valid = jax.tree.map(
            functools.partial(jnp.where, better),
            (params, accuracies[1]),
            (state.best_params, state.best_valid_accuracy),
        )
        return _State(params, optimizer_state, best_params, best_valid), Metrics(loss, *accuracies)

    return jax.lax.scan(epoch, state, dropout_keys)


class _Runner:
    """One implementation: its compiled program, current state and records."""

    def __init__(self, apply: Apply, config: TrainConfig, graph: Any) -> None:
        self._optimizer = _optimizer(config)
        self._train = jax.jit(functools.partial(_train_epochs, apply, self._optimizer))
        self._implementation = config.implementation
        self._graph = graph
        self._compiled: dict[int, Any] = {}
        self._state: _State | None = None
        self._metrics: list[list[Metrics]] = []
        self._epoch_seconds: list[float] = []
        self._compile_seconds = 0.0
        self._custom_calls: tuple[str, ...] = ()

    def start(self, params: Any) -> None:
        """Begins a split."""
        self._state = _State(params, self._optimizer.init(params), params, jnp.array(-1.0))
        self._metrics.append([])

    def advance(self, keys: Array, inputs: tuple[Any, ...], y: Array, masks: Any) -> Metrics:
        """Runs and times one epoch per key."""
        assert self._state is not None
        arguments = (self._state, keys, _Data(self._graph, inputs, y, masks))
        if len(keys) not in self._compiled:
            start = time.perf_counter()
            chosen = self._implementation
            with jax_gnn.implementation(chosen) if chosen else contextlib.nullcontext():
                self._compiled[len(keys)] = self._train.lower(*arguments).compile()
            self._compile_seconds += time.perf_counter() - start
            self._custom_calls = _custom_calls(self._compiled[len(keys)])
        start = time.perf_counter()
        self._state, metrics = jax.block_until_ready(self._compiled[len(keys)](*arguments))
        self._epoch_seconds.append((time.perf_counter() - start) / len(keys))
        metrics = Metrics(*map(np.asarray, metrics))
        self._metrics[-1].append(metrics)
        return metrics

    def best(self) -> tuple[float, Any]:
        """Returns validation accuracy and parameters of the current split's best epoch."""
        assert self._state is not None
        return float(self._state.best_valid_accuracy), self._state.best_params

    def result(self) -> Run:
        """Collects the records of all splits."""
        curves = {
            name: np.stack(
                [np.concatenate([getattr(m, name) for m in calls]) for calls in self._metrics]
            )
            for name in Metrics._fields
        }
        return Run(
            **curves,
            epoch_seconds=np.array(self._epoch_seconds),
            compile_seconds=self._compile_seconds,
            custom_calls=self._custom_calls,
        )


def _custom_calls(compiled: Any) -> tuple[str, ...]:
    targets = re.findall(r'custom_call_target="(jax_gnn[^"]*)"', compiled.as_text())
    return tuple(sorted(set(targets)))


def _calls(keys: Array) -> Iterator[tuple[int, Array]]:
    for first in range(0, len(keys), EPOCHS_PER_CALL):
        yield first, keys[first : first + EPOCHS_PER_CALL]


def train(
    dataset: NodeDataset,
    config: TrainConfig,
    *,
    baseline: bool = False,
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> TrainResult:
    """Trains one model per split and reports test accuracy at the best validation epoch.

    Full-batch Adam. The splits are those of `TrainConfig.split`: the published one, that is another
    seed each time, or random ones as AllSet's (Chien et al., arXiv 2106.13264, section 5), 50 % of
    the labelled nodes to train, 25 % to validate, 25 % to test.

    Args:
        dataset: Structure, labels and features.
        config: Settings; their class says which model, as `HGNNConfig` or `GCNConfig` does.
        baseline: Whether to train the plain-JAX twin as well, from the same parameters and keys.
            The two alternate every few epochs, so that a change in the machine's speed meets both.
        on_epoch: Called after each epoch of the library's run, several at a time.

    Returns:
        Learning curves, times and the best model.

    Raises:
        TypeError: The dataset is not of the kind that the model takes.
        ValueError: The dataset has too few labelled nodes, no features or no published split, if it
            is asked for.
    """
    recipe = recipe_of(config, dataset)
    check_dataset(dataset, config)
    config = settled(dataset, config)
    graph, *given = model_inputs(dataset, config)
    x, *weights = inputs = tuple(given)
    y = jnp.asarray(labels(dataset))

    def make(seed: int) -> Any:
        return make_model(config, graph, x, dataset.num_classes, seed)

    graphdef, *states = nnx.split(make(config.seed), nnx.Param, ...)
    rest = states[1]

    def apply(params: nnx.State, graph: Any, inputs: tuple[Any, ...], key: Array | None) -> Array:
        model = nnx.merge(graphdef, params, rest)
        return model(graph, *inputs, deterministic=key is None, rngs=key)

    runners = [_Runner(apply, config, graph)]
    if baseline:

        def plain(params: Any, graph: Any, inputs: tuple[Any, ...], key: Array | None) -> Array:
            return recipe.plain_model(config, params, graph, inputs[0], key)

        runners.append(_Runner(plain, config, recipe.plain_structure(graph, *weights)))

    best_valid, best = -1.0, None
    for number in range(config.splits):
        seed = config.seed + number
        split = split_of(dataset, config, seed)
        masks = tuple(
            jnp.asarray(node_mask(dataset, ids)) for ids in (split.train, split.valid, split.test)
        )
        params = nnx.state(make(seed), nnx.Param)
        for runner, start in zip(runners, (params, nnx.to_pure_dict(params)), strict=False):
            runner.start(start)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), config.epochs)
        for first, call_keys in _calls(keys):
            metrics, *_ = [runner.advance(call_keys, inputs, y, masks) for runner in runners]
            if on_epoch is not None:
                for i in range(len(call_keys)):
                    on_epoch(EpochReport(number, first + i, *(float(m[i]) for m in metrics[:3])))
        valid, params = runners[0].best()
        if valid > best_valid:
            best_valid, best = valid, (params, split, seed)

    assert best is not None  # an accuracy is above -1
    params, split, seed = best
    model = nnx.merge(graphdef, params, rest)
    model.eval()
    trained = TrainedModel(
        model,
        config,
        data=fingerprint(dataset),
        label_names=dataset.label_names,
        split=split,
        seed=seed,
        numbering=Numbering.of(dataset, by_type=node_types_of(model) is not None),
    )
    results = [runner.result() for runner in runners]
    return TrainResult(trained, graph, x, results[0], results[1] if baseline else None)
