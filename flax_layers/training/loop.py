"""Training of a model on splits of a dataset, and of its plain-JAX twin beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array

from flax_layers.training.config import TrainConfig
from flax_layers.training.data import (
    Numbering,
    check_dataset,
    fingerprint,
    num_outputs,
    settled,
    split_of,
    sum_size,
    target_scaled,
)
from flax_layers.training.devices import check_devices
from flax_layers.training.epochs import Runner, divided
from flax_layers.training.feeds import Feed, feed_of
from flax_layers.training.models import Recipe, recipe_of
from flax_layers.training.records import EpochReport, TrainResult
from flax_layers.training.resume import Best, SplitsState
from flax_layers.training.trained import (
    TrainedModel,
    make_model,
    node_types_of,
    regression_errors,
)
from jax_gnn.datasets import NodeDataset, Split


def train(
    dataset: NodeDataset,
    config: TrainConfig,
    *,
    baseline: bool = False,
    devices: int = 1,
    method: Any = "stream",
    on_epoch: Callable[[EpochReport], None] | None = None,
    state: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> TrainResult:
    """Trains one model per split and reports test accuracy at the best validation epoch.

    Adam on the whole graph, on sampled batches of its nodes, or on batches of many graphs. The
    splits are those of `TrainConfig.split`: the published one, that is another seed each time, or
    random ones as AllSet's (Chien et al., arXiv 2106.13264, section 5), 50 % of the labelled nodes
    to train, 25 % to validate, 25 % to test. With `folds` there is a cross-validation instead.

    Args:
        dataset: Structure, labels and features.
        config: Settings; their class says which model, as `HGNNConfig` or `GCNConfig` does.
        baseline: Whether to train the plain-JAX twin as well, from the same parameters and keys.
            The two alternate every few epochs, so that a change in the machine's speed meets both.
            Models of many graphs, batches of nodes and several devices have none.
        devices: How many share the graph, each with a part of it: the first of `jax.devices()`. But
            for dropout, which differs, results are those of one device to rounding.
        method: Which node each device has, see `jax_gnn.sharding.shard_graph`.
        on_epoch: Called after each epoch of the library's run, several at a time.
        state: A file to keep the state of the training in, written every few seconds and where an
            exception ends the training; removed at the end. None keeps nothing.
        resume: Whether to go on from that file, if it exists: to the bits of a training that was
            not interrupted. Times are those since then. Else the file must not exist.

    Returns:
        Learning curves, times and the best model.

    Raises:
        TypeError: The dataset is not of the kind that the model takes.
        ValueError: The dataset has too few labelled nodes, no features or no published split, if it
            is asked for; or the state is of other settings or data, or exists without `resume`; or
            there are fewer devices, or the model or a setting is for one alone.
        OSError: The state cannot be written, as the disk is full; the one before is left whole.
    """
    recipe = recipe_of(config, dataset)
    check_devices(config, devices)
    check_dataset(dataset, config)
    config = settled(dataset, config)
    folds = getattr(config, "folds", 0)
    seeds = range(config.seed, config.seed + (folds or config.splits))
    splits = [split_of(dataset, config, seed) for seed in seeds]
    feed = feed_of(dataset, config, splits, devices, method)
    x = feed.inputs[0]

    def make(seed: int) -> Any:
        return make_model(config, feed.graph, x, num_outputs(dataset), seed)

    graphdef, *states = nnx.split(make(config.seed), nnx.Param, nnx.BatchStat, ...)
    rest = states[2]

    def apply(variables: Any, graph: Any, inputs: Any, key: Array | None) -> tuple[Array, Any]:
        model = nnx.merge(graphdef, *variables, rest, copy=True)  # whose statistics change
        return feed.logits(model, graph, inputs, key), nnx.state(model, nnx.BatchStat)

    size = sum_size(dataset, config)
    runners = [Runner(apply, config, feed.steps_per_epoch, size, feed.sample)]
    twin = baseline and recipe.plain_model is not None and feed.sample is None
    if twin and devices == 1:
        runners.append(_plain_runner(recipe, config, feed, size))

    path = None if state is None else Path(state)
    progress = SplitsState(path, config, fingerprint(dataset), resume=resume)
    best, errors = Best(), progress.errors()
    with progress:
        for number, (seed, split) in enumerate(zip(seeds, splits, strict=True)):
            if number < progress.split:
                continue
            own = target_scaled(dataset, config, split.train)
            data = feed.start(own, split, seed)
            made = make(seed)
            params, stats = (
                divided(nnx.state(made, nnx.Param), size),
                nnx.state(made, nnx.BatchStat),
            )
            starts: Any = ((params, stats), (nnx.to_pure_dict(params), {}))
            for runner, start in zip(runners, starts, strict=False):
                runner.start(*start)
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), config.epochs)
            done = progress.epoch if number == progress.split else 0
            if done:
                best = progress.restore(runners, (params, stats))
            for epoch in range(0, config.epochs, feed.epochs_per_call):
                call_keys, steps = keys[epoch : epoch + feed.epochs_per_call], feed.epochs()
                if epoch < done:
                    continue
                metrics, *_ = [runner.advance(call_keys, data, steps) for runner in runners]
                progress.keep_splits(number, epoch + len(call_keys), runners, best, errors)
                rate = None
                if feed.sample is not None:
                    rate = len(split.train) / runners[0].last_epoch_seconds
                if on_epoch is not None:
                    for i in range(len(call_keys)):
                        figures = (float(m[i]) for m in metrics[:3])
                        report = EpochReport(number, epoch + i, *figures)
                        on_epoch(report._replace(seeds_per_second=rate))
            valid, variables = runners[0].best()
            if dataset.regresses:
                trained = TrainedModel(nnx.merge(graphdef, *variables, rest), own)
                found = trained.predict(dataset, devices=devices, method=method)
                errors.append(regression_errors(dataset, found, split.test))
            if valid > best.valid:
                best = Best(valid, variables, number)
        if best.variables is None:
            raise FloatingPointError("no epoch had a validation result that is a number")
    split, seed = splits[best.number], seeds[best.number]
    own = target_scaled(dataset, config, split.train)
    model = nnx.merge(graphdef, *best.variables, rest)
    model.eval()
    fixed = config.split != "random" and dataset.published_split is not None
    over = "folds" if folds else "seeds" if fixed else "splits"
    results = [runner.result(over) for runner in runners]
    return TrainResult(
        trained=_trained(model, dataset, own, split, seed),
        graph=data.graph,
        x=x,
        sizes={
            name: getattr(dataset if recipe.structure is None else feed.graph, name)
            for name in recipe.sizes
        },
        run=results[0],
        baseline=results[1] if len(results) > 1 else None,
        errors=_by_name(errors),
    )


def _plain_runner(recipe: Recipe, config: TrainConfig, feed: Feed, size: float) -> Runner:
    """That of the plain-JAX twin."""
    twin, make_graph = recipe.plain_model, recipe.plain_structure
    assert twin is not None and make_graph is not None

    def apply(variables: Any, graph: Any, inputs: Any, key: Array | None) -> tuple[Array, Any]:
        return twin(config, variables[0], graph, inputs[0], key), {}

    graph = make_graph(feed.graph, *feed.inputs[1:])
    return Runner(apply, config, sum_size=size, graph=graph)


def _trained(
    model: Any, dataset: NodeDataset, config: TrainConfig, split: Split, seed: int
) -> TrainedModel:
    """A model with all that its predictions on other data need."""
    numbering = Numbering.of(dataset, by_type=node_types_of(model) is not None)
    return TrainedModel(
        model,
        config,
        data=fingerprint(dataset),
        label_names=dataset.label_names,
        split=split,
        seed=seed,
        numbering=numbering if config.features == "native" else numbering._replace(features=None),
    )


def _by_name(errors: list[dict[str, float]]) -> dict[str, np.ndarray] | None:
    """Errors of splits, ``(splits,)`` for each name; None if there are none."""
    if not errors:
        return None
    return {name: np.array([each[name] for each in errors]) for name in errors[0]}
