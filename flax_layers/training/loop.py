"""Training of a model on splits of a dataset, and of its plain-JAX twin beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
    node_features,
    node_mask,
    num_outputs,
    scaled_labels,
    settled,
    split_of,
    target_scaled,
)
from flax_layers.training.graphs import Sampler, all_groups, device, numbered, picked
from flax_layers.training.models import recipe_of
from flax_layers.training.trained import (
    TrainedModel,
    accuracy,
    losses,
    make_model,
    masked_mean,
    model_inputs,
    node_types_of,
    regression_errors,
)
from jax_gnn.datasets import GraphsDataset, NodeDataset

if TYPE_CHECKING:
    import optax

EPOCHS_PER_CALL = 10
MIN_HYPEREDGE_WEIGHT = 1e-2

# ((params, statistics), graph, features and weights, dropout key or None) -> logits, statistics
Apply = Callable[[Any, Any, Any, Array | None], tuple[Array, Any]]


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
        over: What a row is of: "splits", "seeds" of one split, or "folds", of which all have one
            best epoch.
    """

    train_loss: np.ndarray
    train_accuracy: np.ndarray
    valid_accuracy: np.ndarray
    test_accuracy: np.ndarray
    epoch_seconds: np.ndarray
    compile_seconds: float
    custom_calls: tuple[str, ...]
    over: Literal["splits", "seeds", "folds"] = "splits"

    @property
    def best_epoch(self) -> np.ndarray:
        """First epoch of the highest validation accuracy in each split, ``(splits,)``.

        Of a cross-validation that of the highest mean over the folds, for all of them.
        """
        valid = self.valid_accuracy
        if self.over == "folds":
            valid = np.broadcast_to(valid.mean(axis=0), valid.shape)
        return valid.argmax(axis=1)

    @property
    def best_valid_accuracy(self) -> np.ndarray:
        """Validation accuracy at `best_epoch`, ``(splits,)``."""
        return self.valid_accuracy[np.arange(len(self.valid_accuracy)), self.best_epoch]

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
        errors: Of a regression "mae", "rmse" and "r2" of the test examples, one for each split, by
            its best model.
    """

    trained: TrainedModel
    graph: Any
    x: Any
    run: Run
    baseline: Run | None
    errors: dict[str, np.ndarray] | None = None

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
    masks: tuple[Array, ...]  # of the training, validation and test nodes; of a step's graphs one


class _State(NamedTuple):
    params: Any
    stats: Any  # running statistics of norms
    optimizer: Any
    best: Any  # parameters and statistics
    best_valid_accuracy: Array


def _is_hyperedge_weight(path: tuple[Any, ...]) -> bool:
    return "hyperedge_weight" in jax.tree_util.keystr(path)


def adam(learning_rate: float | Callable[[Any], Any]) -> optax.GradientTransformation:
    """Optax's, which promotes dtypes, also where promotion is set to be strict."""
    import optax  # part of the extra "train"

    init, update = optax.adam(learning_rate)

    def updates(*state: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return update(*state)

    return optax.GradientTransformation(init, updates)


def _optimizer(config: TrainConfig, steps: int) -> optax.GradientTransformation:
    """For a number of steps per epoch."""
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

    rate: Any = config.learning_rate
    if halve_every := getattr(config, "halve_every", 0):
        rate = optax.exponential_decay(rate, halve_every * steps, 0.5, staircase=True)
    return optax.chain(optax.stateless(add_decay), adam(rate))


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
    steps: _Data | None,
) -> tuple[_State, Metrics]:
    """Runs one epoch per key: its steps, then an evaluation that may replace the best parameters.

    Data are one graph, on which an epoch is one step; or batches of all graphs, and then there are
    those of each epoch and step.
    """
    import optax

    def step(state: _State, given: tuple[Array, _Data]) -> tuple[_State, Array]:
        key, data = given

        def loss_fn(params: Any) -> tuple[Array, Any]:
            logits, stats = apply((params, state.stats), data.graph, data.inputs, key)
            return masked_mean(losses(logits, data.y), data.masks[0]), stats

        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        updates, moments = optimizer.update(grads, state.optimizer, state.params)
        params = _keep_positive(optax.apply_updates(state.params, updates))
        return state._replace(params=params, stats=stats, optimizer=moments), loss

    def evaluate(variables: Any) -> tuple[Array, ...]:
        if steps is None:
            logits = apply(variables, data.graph, data.inputs, None)[0]
            return tuple(accuracy(logits, data.y, mask) for mask in data.masks)
        given = data.graph, data.inputs
        logits = jax.lax.map(lambda each: apply(variables, each[0], each[1], None)[0], given)
        logits, y = (each.reshape(-1, *each.shape[2:]) for each in (logits, data.y))
        return tuple(accuracy(logits, y, mask.ravel()) for mask in data.masks)

    def epoch(state: _State, given: tuple[Array, _Data | None]) -> tuple[_State, Metrics]:
        key, batches = given
        if batches is None:
            state, loss = step(state, (key, data))
        else:
            keys = jax.random.split(key, len(batches.y))
            state, each = jax.lax.scan(step, state, (keys, batches))
            loss = each.mean()
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


class _Runner:
    """One implementation: its compiled program, current state and records."""

    def __init__(self, apply: Apply, config: TrainConfig, graph: Any, steps: int = 1) -> None:
        self._optimizer = _optimizer(config, steps)
        self._train = jax.jit(functools.partial(_train_epochs, apply, self._optimizer))
        self._implementation = config.implementation
        self._graph = graph
        self._compiled: dict[int, Any] = {}
        self._state: _State | None = None
        self._metrics: list[list[Metrics]] = []
        self._epoch_seconds: list[float] = []
        self._compile_seconds = 0.0
        self._custom_calls: tuple[str, ...] = ()

    def start(self, params: Any, stats: Any) -> None:
        """Begins a split."""
        moments, lowest = self._optimizer.init(params), jnp.array(-jnp.inf, jnp.float32)
        self._state = _State(params, stats, moments, (params, stats), lowest)
        self._metrics.append([])

    def advance(
        self,
        keys: Array,
        inputs: tuple[Any, ...],
        y: Array,
        masks: Any,
        steps: _Data | None = None,
    ) -> Metrics:
        """Runs and times one epoch per key."""
        assert self._state is not None
        arguments = (self._state, keys, _Data(self._graph, inputs, y, masks), steps)
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
        metrics = Metrics(*(np.asarray(each) for each in metrics))
        self._metrics[-1].append(metrics)
        return metrics

    def best(self) -> tuple[float, Any]:
        """Returns validation accuracy and variables of the current split's best epoch."""
        assert self._state is not None
        return float(self._state.best_valid_accuracy), self._state.best

    def result(self, over: Any) -> Run:
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
            over=over,
        )


def _custom_calls(compiled: Any) -> tuple[str, ...]:
    targets = re.findall(r'custom_call_target="(jax_gnn[^"]*)"', compiled.as_text())
    return tuple(sorted(set(targets)))


def _calls(keys: Array, size: int) -> Iterator[tuple[int, Array]]:
    for first in range(0, len(keys), size):
        yield first, keys[first : first + size]


def train(
    dataset: NodeDataset,
    config: TrainConfig,
    *,
    baseline: bool = False,
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> TrainResult:
    """Trains one model per split and reports test accuracy at the best validation epoch.

    Adam on the whole graph, or on batches of many graphs. The splits are those of
    `TrainConfig.split`: the published one, that is another seed each time, or random ones as
    AllSet's (Chien et al., arXiv 2106.13264, section 5), 50 % of the labelled nodes to train, 25 %
    to validate, 25 % to test. With `folds` there is a cross-validation instead.

    Args:
        dataset: Structure, labels and features.
        config: Settings; their class says which model, as `HGNNConfig` or `GCNConfig` does.
        baseline: Whether to train the plain-JAX twin as well, from the same parameters and keys.
            The two alternate every few epochs, so that a change in the machine's speed meets both.
            Models of many graphs have none.
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
    folds = getattr(config, "folds", 0)
    seeds = range(config.seed, config.seed + (folds or config.splits))
    splits = [split_of(dataset, config, seed) for seed in seeds]
    numbers, sampler = None, None  # of many graphs those in the batches, and what draws these
    graph, *given = model_inputs(dataset, config)
    x, *weights = inputs = tuple(given)
    if isinstance(dataset, GraphsDataset):
        features: Any = node_features(dataset, config)
        numbers = numbered(*all_groups(dataset, config))  # type: ignore[arg-type]
        count = max(len(split.train) for split in splits)
        sampler = Sampler(dataset, features, count, config)  # type: ignore[arg-type]

    def make(seed: int) -> Any:
        return make_model(config, graph, x, num_outputs(dataset), seed)

    graphdef, *states = nnx.split(make(config.seed), nnx.Param, nnx.BatchStat, ...)
    rest = states[2]

    def apply(variables: Any, graph: Any, inputs: Any, key: Array | None) -> tuple[Array, Any]:
        model = nnx.merge(graphdef, *variables, rest, copy=True)  # whose statistics change
        logits = model(graph, *inputs, deterministic=key is None, rngs=key)
        return logits, nnx.state(model, nnx.BatchStat)

    runners = [_Runner(apply, config, graph, sampler.steps if sampler else 1)]
    if baseline and recipe.plain_model is not None:
        make_plain: Any = recipe.plain_structure
        twin = recipe.plain_model

        def plain(variables: Any, graph: Any, inputs: Any, key: Array | None) -> tuple[Array, Any]:
            return twin(config, variables[0], graph, inputs[0], key), {}

        runners.append(_Runner(plain, config, make_plain(graph, *weights)))

    def of_batches(values: np.ndarray, numbers: Any, fill: Any) -> Array:
        """What nodes have, or graphs of batches."""
        return jnp.asarray(values if numbers is None else picked(values, numbers, fill))

    best_valid, best = -np.inf, None
    errors: list[dict[str, float]] = []
    for number, (seed, split) in enumerate(zip(seeds, splits, strict=True)):
        own = target_scaled(dataset, config, split.train)
        known = scaled_labels(dataset, own)
        fill = np.nan if dataset.regresses else 0
        parts = split.train, split.valid, split.test
        masks = tuple(of_batches(node_mask(dataset, ids), numbers, False) for ids in parts)
        y = of_batches(known, numbers, fill)
        rng = np.random.default_rng([seed, 2])
        made = make(seed)
        params, stats = nnx.state(made, nnx.Param), nnx.state(made, nnx.BatchStat)
        starts: Any = ((params, stats), (nnx.to_pure_dict(params), {}))
        for runner, start in zip(runners, starts, strict=False):
            runner.start(*start)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), config.epochs)
        for epoch, call_keys in _calls(keys, 1 if sampler else EPOCHS_PER_CALL):
            steps = None
            if sampler is not None:
                batches, rows, chosen = sampler.epoch(split.train, rng)
                there = jnp.asarray(chosen >= 0)
                steps = _Data(
                    device(batches), (jnp.asarray(rows),), of_batches(known, chosen, fill), (there,)
                )
                steps = jax.tree.map(lambda array: array[None], steps)
            metrics, *_ = [runner.advance(call_keys, inputs, y, masks, steps) for runner in runners]
            if on_epoch is not None:
                for i in range(len(call_keys)):
                    on_epoch(EpochReport(number, epoch + i, *(float(m[i]) for m in metrics[:3])))
        valid, variables = runners[0].best()
        if dataset.regresses:
            trained = TrainedModel(nnx.merge(graphdef, *variables, rest), own)
            errors.append(regression_errors(dataset, trained.predict(dataset), split.test))
        if valid > best_valid:
            best_valid, best = valid, (variables, split, seed, own)

    if best is None:
        raise FloatingPointError("no epoch had a validation result that is a number")
    variables, split, seed, own = best
    model = nnx.merge(graphdef, *variables, rest)
    model.eval()
    numbering = Numbering.of(dataset, by_type=node_types_of(model) is not None)
    trained = TrainedModel(
        model,
        own,
        data=fingerprint(dataset),
        label_names=dataset.label_names,
        split=split,
        seed=seed,
        numbering=numbering if config.features == "native" else numbering._replace(features=None),
    )
    fixed = config.split != "random" and dataset.published_split is not None
    over = "folds" if folds else "seeds" if fixed else "splits"
    results = [runner.result(over) for runner in runners]
    return TrainResult(
        *(trained, graph, x, results[0], results[1] if len(results) > 1 else None),
        errors={name: np.array([each[name] for each in errors]) for name in errors[0]}
        if errors
        else None,
    )
