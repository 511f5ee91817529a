"""Compiled epochs of a training: steps of Adam, then an evaluation."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jax_gnn
from flax_layers.training.config import TrainConfig
from flax_layers.training.devices import everywhere
from flax_layers.training.records import Metrics, Run
from flax_layers.training.trained import (
    accuracy,
    losses,
    masked_mean,
)

if TYPE_CHECKING:
    import optax

MIN_HYPEREDGE_WEIGHT = 1e-2

# ((params, statistics), graph, features and weights, dropout key or None) -> logits, statistics
Apply = Callable[[Any, Any, Any, Array | None], tuple[Array, Any]]


class Data(NamedTuple):
    """What a model is evaluated on; or of each step, with leading axes, what it is trained on."""

    graph: Any
    inputs: tuple[Any, ...]  # features, and perhaps weights of edges
    y: Array
    masks: tuple[Array, ...]  # of the training, validation and test nodes; of a step's graphs one


# What the model is evaluated on, seeds, key, step -> what the step makes of what it is trained on
Sample = Callable[[Data, Array, Array, Callable[[Data], Any]], Any]


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


def _sums(path: tuple[Any, ...]) -> bool:
    """Whether a parameter is the map of sums over neighbours, which a convolution has first."""
    return re.match(r"\['conv\d+'\]\['kernel'\]", jax.tree_util.keystr(path)) is not None


def divided(params: Any, sum_size: float) -> Any:
    """Parameters, or their changes, as if sums over neighbours were divided by a number.

    A map of sums begins smaller, and moves less: at Adam's rate for other maps its results would
    jump, and ReLUs after it die.
    """
    if sum_size == 1:
        return params
    return jax.tree_util.tree_map_with_path(
        lambda path, p: p / sum_size if _sums(path) else p, params
    )


def _optimizer(config: TrainConfig, steps: int, sum_size: float) -> optax.GradientTransformation:
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
    smaller = optax.stateless(lambda updates, _: divided(updates, sum_size))
    return optax.chain(optax.stateless(add_decay), adam(rate), smaller)


def _keep_positive(params: Any) -> Any:
    """Projects hyperedge weights onto positive values, so that weighted degrees stay positive."""
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
) -> tuple[_State, Metrics]:
    """Runs one epoch per key: its steps, then an evaluation that may replace the best parameters.

    Data are one graph, on which an epoch is one step; or batches of all graphs, and then there are
    those of each epoch and step. Or steps are seeds, as `y`, of which each is sampled itself.
    """
    import optax

    def step(state: _State, given: tuple[Array, Data]) -> tuple[_State, Array]:
        key, batch = given
        if sample is None:
            return on_batch(state, key, batch)
        key, own = jax.random.split(key)
        return sample(data, batch.y, own, functools.partial(on_batch, state, key))

    def on_batch(state: _State, key: Array, batch: Data) -> tuple[_State, Array]:
        def loss_fn(params: Any) -> tuple[Array, Any]:
            logits, stats = apply((params, state.stats), batch.graph, batch.inputs, key)
            return masked_mean(losses(logits, batch.y), batch.masks[0]), stats

        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        updates, moments = optimizer.update(grads, state.optimizer, state.params)
        params = _keep_positive(optax.apply_updates(state.params, updates))
        return state._replace(params=params, stats=stats, optimizer=moments), loss

    def evaluate(variables: Any) -> tuple[Array, ...]:
        if steps is None or sample is not None:
            logits = apply(variables, data.graph, data.inputs, None)[0]
            return tuple(accuracy(logits, data.y, mask) for mask in data.masks)
        given = data.graph, data.inputs
        logits = jax.lax.map(lambda each: apply(variables, each[0], each[1], None)[0], given)
        logits, y = (each.reshape(-1, *each.shape[2:]) for each in (logits, data.y))
        return tuple(accuracy(logits, y, mask.ravel()) for mask in data.masks)

    def epoch(state: _State, given: tuple[Array, Data | None]) -> tuple[_State, Metrics]:
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


class Runner:
    """One implementation: its compiled program, current state and records."""

    def __init__(
        self,
        apply: Apply,
        config: TrainConfig,
        steps: int = 1,
        sum_size: float = 1.0,
        sample: Sample | None = None,
        graph: Any = None,
    ) -> None:
        self._optimizer = _optimizer(config, steps, sum_size)
        self._train = functools.partial(_train_epochs, apply, self._optimizer, sample)
        self._implementation = config.implementation
        self._graph = graph
        self._compiled: dict[int, Any] = {}
        self.state: _State | None = None
        self._metrics: list[list[Metrics]] = []
        self._epoch_seconds: list[float] = []
        self._compile_seconds = 0.0
        self._custom_calls: tuple[str, ...] = ()

    def start(self, params: Any, stats: Any) -> None:
        """Begins a split."""
        moments, lowest = self._optimizer.init(params), jnp.array(-jnp.inf, jnp.float32)
        self.state = _State(params, stats, moments, (params, stats), lowest)
        self._metrics.append([])

    def restore(self, state: _State, curves: Sequence[np.ndarray]) -> None:
        """Goes on from a state, and from the `curves` of all splits up to this one."""
        self.state, self._metrics = state, [[Metrics(*each)] for each in curves]

    def curves(self) -> list[np.ndarray]:
        """For each split ``(4, epochs)``, the metrics so far."""
        return [
            np.stack([np.concatenate(each) for each in zip(*m, strict=True)]) for m in self._metrics
        ]

    def advance(self, keys: Array, data: Data, steps: Data | None) -> Metrics:
        """Runs and times one epoch per key."""
        assert self.state is not None
        if self._graph is not None:
            data = data._replace(graph=self._graph)
        place = everywhere(data.graph)
        arguments = (*jax.device_put((self.state, keys), place), data, steps)
        if len(keys) not in self._compiled:
            start = time.perf_counter()
            chosen = self._implementation
            with jax_gnn.implementation(chosen) if chosen else contextlib.nullcontext():
                train = jax.jit(self._train, out_shardings=place)
                self._compiled[len(keys)] = train.lower(*arguments).compile()
            self._compile_seconds += time.perf_counter() - start
            self._custom_calls = _custom_calls(self._compiled[len(keys)])
        start = time.perf_counter()
        self.state, metrics = jax.block_until_ready(self._compiled[len(keys)](*arguments))
        self._epoch_seconds.append((time.perf_counter() - start) / len(keys))
        metrics = Metrics(*(np.asarray(each) for each in metrics))
        self._metrics[-1].append(metrics)
        return metrics

    @property
    def last_epoch_seconds(self) -> float:
        """What an epoch of the last call took."""
        return self._epoch_seconds[-1]

    def best(self) -> tuple[float, Any]:
        """Returns validation accuracy and variables of the current split's best epoch.

        These are on one device, wherever the training was.
        """
        assert self.state is not None
        best = jax.tree.map(jnp.asarray, jax.device_get(self.state.best))
        return float(self.state.best_valid_accuracy), best

    def result(self, over: Any) -> Run:
        """Collects the records of all splits."""
        curves = dict(zip(Metrics._fields, np.stack(self.curves(), axis=1), strict=True))
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
