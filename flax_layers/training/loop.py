"""Training of a model on splits of a dataset, perhaps beside the same model in plain XLA."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array

from flax_layers.training.config.nodes import TrainConfig
from flax_layers.training.data import (
    Numbering,
    check_dataset,
    class_weights,
    fingerprint,
    num_outputs,
    settled,
    settled_direction,
    split_of,
    splits_by_time,
    sum_size,
    target_scaled,
    warn,
)
from flax_layers.training.devices import check_devices, replicate
from flax_layers.training.epochs import Runner, divided
from flax_layers.training.feeds import feed_of
from flax_layers.training.graphs import check_neighbours, connected
from flax_layers.training.models import recipe_of
from flax_layers.training.records import EpochReport, TrainResult
from flax_layers.training.resume import Best, SplitsState
from flax_layers.training.trained import TrainedModel, make_model, node_types_of, regression_errors
from flax_layers.training.types import Method, PyTree
from jax_gnn.datasets import GraphsDataset, NodeDataset


def train(
    dataset: NodeDataset,
    config: TrainConfig,
    *,
    baseline: bool = False,
    devices: int = 1,
    method: Method = "auto",
    on_epoch: Callable[[EpochReport], None] | None = None,
    state: str | os.PathLike[str] | None = None,
    resume: bool = False,
    keep_state: bool = False,
) -> TrainResult:
    """Train one model per split and report test accuracy at the best validation epoch.

    Adam on the whole graph, on sampled batches of its nodes, or on batches of many graphs. The
    splits are those of `TrainConfig.split`: the published one, that is another seed each time; or
    50 % of the labelled nodes to train, 25 % to validate, 25 % to test, by their times or at
    random, as AllSet's (Chien et al., arXiv 2106.13264, section 5). With `folds` there is a
    cross-validation instead.

    Args:
        dataset: Structure, labels and features.
        config: Settings; their class says which model, as `HGNNConfig` or `GCNConfig` does.
        baseline: Whether to train the same model in plain XLA (``implementation="xla"``) as well,
            from the same parameters and keys. Models of many graphs, batches of nodes and several
            devices have none.
        devices: Number of devices that share the graph, each with a part of it: the first of
            `jax.devices()`. Batches of graphs or nodes are dealt out to them. But for dropout and
            sampled neighbourhoods, which differ, results are those of one device to rounding.
        method: Assignment of nodes to devices, see `jax_gnn.sharding.shard_graph`.
        on_epoch: Called after each epoch of the library's run, several at a time.
        state: File for the state of the training, written every few seconds and where an exception
            ends the training; removed at the end. None writes no file.
        resume: Whether to continue from that file, if it exists: to the bits of a training that was
            not interrupted. Times are those of all epochs. Else the file must not exist. A
            baseline that the state lacks is left out.
        keep_state: Whether the file stays at the end, for a caller that removes it when the results
            are written: where that fails, `resume` leads to them again.

    Returns:
        Learning curves, times and the best model.

    Raises:
        TypeError: The dataset is not of the kind that the model takes.
        ValueError: The dataset has too few labelled nodes, no features or no published split or
            times, if they are asked for; or the state is of other settings or data, or exists
            without `resume`; or there are fewer devices, or the model or a setting is for one
            alone.
        OSError: The state cannot be written, as the disk is full; an earlier state stays whole.
    """
    recipe = recipe_of(config, dataset)
    check_devices(config, devices)
    check_dataset(dataset, config)
    check_neighbours(dataset, config)
    config = settled(dataset, settled_direction(dataset, config, warn))
    folds = getattr(config, "folds", 0)
    seeds = range(config.seed, config.seed + (folds or config.splits))
    splits = [split_of(dataset, config, seed) for seed in seeds]
    feed = feed_of(dataset, config, splits, devices, method)
    x = feed.inputs[0]

    def make(seed: int) -> Any:
        return make_model(config, feed.graph, x, num_outputs(dataset), seed)

    # The variables of a model: trained parameters, running statistics, and constants.
    graphdef, *states = nnx.split(make(config.seed), nnx.Param, nnx.BatchStat, ...)
    constants = states[2]

    def apply(
        variables: PyTree, graph: PyTree, inputs: PyTree, key: Array | None
    ) -> tuple[Array, PyTree]:
        model = nnx.merge(graphdef, *variables, constants, copy=True)  # calls change statistics
        return feed.logits(model, graph, inputs, key), nnx.state(model, nnx.BatchStat)

    size = sum_size(dataset, config, feed.graph)
    runners = [Runner(apply, config, feed.steps_per_epoch, size, feed.sample)]
    if baseline and recipe.structure is not None and feed.sample is None and devices == 1:
        plain = dataclasses.replace(config, implementation="xla")
        runners.append(Runner(apply, plain, feed.steps_per_epoch, size))

    path = None if state is None else Path(state)
    progress = SplitsState(path, config, fingerprint(dataset), resume=resume, devices=devices)
    progress.check_progress(progress.split, progress.epoch)
    best, errors = Best(), progress.errors()
    if progress.arrays:
        runners = [runner for i, runner in enumerate(runners) if f"{i}/curves/0" in progress.arrays]
    with progress:
        for number, (seed, split) in enumerate(zip(seeds, splits, strict=True)):
            if number < progress.split:
                continue
            split_config = target_scaled(dataset, config, split.train)
            weights = class_weights(dataset, config, split.train)
            data = feed.start(split_config, split, seed)
            if weights is not None:
                data = data._replace(class_weight=replicate(weights, data.graph))
            model = make(seed)
            variables = divided(nnx.state(model, nnx.Param), size), nnx.state(model, nnx.BatchStat)
            for runner in runners:
                runner.start(*variables)
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), config.epochs)
            first_epoch = progress.epoch if number == progress.split else 0
            if first_epoch:
                best = progress.restore(runners, variables)
            for epoch in range(0, config.epochs, feed.epochs_per_call):
                # Epochs before an interruption still draw batches, so that later ones are the same.
                call_keys, steps = keys[epoch : epoch + feed.epochs_per_call], feed.epochs()
                if epoch < first_epoch:
                    continue
                if runners[0].has_stopped(config.early_stopping):
                    break
                # The runners alternate, so that a change in the machine's speed meets both.
                metrics, *_ = [runner.advance(call_keys, data, steps) for runner in runners]
                progress.keep_splits(number, epoch + len(call_keys), runners, best, errors)
                rate = None
                if feed.sample is not None:
                    rate = len(split.train) / runners[0].costs()["epochs"][-1]
                if on_epoch is not None:
                    stopped = runners[0].has_stopped(config.early_stopping)
                    last = (epoch + len(call_keys) if stopped else config.epochs) - 1
                    for i in range(len(call_keys)):
                        loss, seen, valid = (float(curve[i]) for curve in metrics[:3])
                        is_last = epoch + i == last
                        on_epoch(EpochReport(number, epoch + i, loss, seen, valid, rate, is_last))
            # The runs end with the last epoch, but the model is that of the best one.
            valid, variables = runners[0].best()
            if dataset.regresses:
                trained = TrainedModel(nnx.merge(graphdef, *variables, constants), split_config)
                predictions = trained.predict(dataset, devices=devices, method=method)
                errors.append(regression_errors(dataset, predictions, split.test))
                if isinstance(dataset, GraphsDataset) and hasattr(trained.model, "forces"):
                    errors[-1] |= trained.force_error(dataset, split.test)
            if valid > best.valid:
                best = Best(valid, variables, number)
        if best.variables is None:
            raise FloatingPointError("no epoch had a validation result that is a number")
    # The best split's model is returned, with all that its predictions on other data need.
    split = splits[best.number]
    model = nnx.merge(graphdef, *best.variables, constants)
    model.eval()
    fixed = config.split != "random" and dataset.published_split is not None
    fixed |= splits_by_time(dataset, config)
    over: Any = "folds" if folds else "seeds" if fixed else "splits"
    runs = [runner.result(over) for runner in runners]
    structure: Any = feed.graph
    if recipe.structure is None:
        structure = connected(dataset, config)
    numbering = Numbering.of(dataset, by_type=node_types_of(model) is not None)
    trained = TrainedModel(
        model,
        target_scaled(dataset, config, split.train),
        data=fingerprint(dataset),
        label_names=dataset.label_names,
        split=split,
        seed=seeds[best.number],
        numbering=numbering if config.features == "native" else numbering._replace(features=None),
    )
    scores = {name: np.array([row[name] for row in errors]) for name in (errors or [{}])[0]}
    result = TrainResult(
        trained=trained,
        graph=data.graph,
        x=x,
        sizes={name: getattr(structure, name) for name in recipe.sizes},
        run=runs[0],
        baseline=runs[1] if len(runs) > 1 else None,
        errors=scores or None,
    )
    if not keep_state:
        progress.remove()
    return result
