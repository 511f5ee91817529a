"""``jax-gnn train``: one run, and its report."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_layers.training import options, report
from flax_layers.training.baselines import baseline_scores, best_baseline, link_baselines, verdict
from flax_layers.training.config.links import LinkConfig
from flax_layers.training.config.nodes import SampledConfig, TrainConfig
from flax_layers.training.config.optimizer import OptimizerConfig
from flax_layers.training.data import (
    check_dataset,
    num_outputs,
    settled_direction,
    splits_by_time,
    unused_split,
)
from flax_layers.training.devices import check_devices
from flax_layers.training.graphs import check_neighbours, connected
from flax_layers.training.link_models import LinkRecipe
from flax_layers.training.link_tasks import EdgeTask, FactTask, has_edge_split, link_task
from flax_layers.training.link_tasks import splits_by_time as splits_edges_by_time
from flax_layers.training.links import LinkResult, train_links
from flax_layers.training.loop import train
from flax_layers.training.models import Recipe, command_name
from flax_layers.training.neighborhoods import evaluation_text
from flax_layers.training.plot import plot_learning_curves, plot_link_curves
from flax_layers.training.processes import join
from flax_layers.training.records import Run, TrainResult, mean_and_std
from flax_layers.training.sources import load_for
from flax_layers.training.trained import TrainedModel
from flax_layers.training.types import ArrayByType
from jax_gnn.cli import devices, table, versions
from jax_gnn.datasets import NodeDataset

SHARES = "valid_share", "test_share"
_FEW_EXAMPLES = 100  # to test on, below which one of them is more than a point
# Layers are written for the kernels, so their plain form is not always the fastest one in JAX.
_COMPARISON = """
  An epoch is {:.2f} times as fast as without kernels, by the same layers in plain XLA.
  Models written for plain JAX may be faster than those: see docs/training.md.
"""


def run(recipe: Recipe | LinkRecipe, args: argparse.Namespace) -> int:
    """Train on the data that the command names, and write and print the results."""
    with join(args):
        options.require("training", options.TRAIN_EXTRA)
        if isinstance(recipe, LinkRecipe):
            return _run_links(recipe, args)
        return _run_train(recipe, args)


@contextlib.contextmanager
def _run_folder(
    args: argparse.Namespace,
    config: OptimizerConfig,
    dataset: NodeDataset,
    on_epoch: report.Progress | report.LinkProgress,
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Make the folder of a run; yield it, and the arguments of the training.

    Errors about files name the folder, and interruptions the command that goes on.
    """
    # Errors of options come before the folder is made.
    arguments = {"devices": args.devices, "method": options.method_of(args, dataset)}
    check_devices(config, args.devices)
    folder, state = report.make_folder(args, f"{config.model}-{dataset.name}")
    arguments |= {"state": state, "resume": args.resume, "keep_state": True}
    with report.suggest_resume(args), report.blame_output(folder):
        yield folder, arguments | {"on_epoch": on_epoch}


def _provenance(config: OptimizerConfig, num_devices: int) -> dict[str, object]:
    """Return entries of results.json that say how the training ran."""
    return {
        "config": options.option_values(config),
        "versions": versions(),
        "devices": devices(),
        "devices_used": num_devices,
        "processes": jax.process_count(),
    }


# --- Nodes and graphs -----------------------------------------------------------------------------


def _run_summary(run: Run) -> dict[str, object]:
    return {
        "test_accuracy_mean": run.accuracy_mean,
        "test_accuracy_std": run.accuracy_std,
        "test_accuracy": run.best_test_accuracy.tolist(),
        "valid_accuracy": run.best_valid_accuracy.tolist(),
        "best_epoch": (run.best_epoch + 1).tolist(),
        "median_epoch_seconds": run.median_epoch_seconds,
        "compile_seconds": run.compile_seconds,
        "custom_calls": list(run.custom_calls),
    }


def _dataset_summary(dataset: NodeDataset, result: TrainResult) -> dict[str, object]:
    outputs = "num_targets" if dataset.regresses else "num_classes"
    return {
        "name": dataset.name,
        **result.sizes,
        "num_features": _num_features(result.x),
        outputs: num_outputs(dataset),
    }


def _num_features(x: ArrayByType) -> int | str:
    """Return the number of features; if they are by type, those of all types as text."""
    if isinstance(x, dict):
        return "/".join("0" if rows is None else str(rows.shape[-1]) for rows in x.values())
    return 0 if x is None else int(x.shape[-1])


def _score_rows(result: TrainResult, runs: Mapping[str, Run]) -> Iterator[list[str]]:
    """Yield rows of a table: errors of a regression, else accuracies; each with its deviation."""
    count = len(result.run.test_accuracy)
    if result.errors is None:
        folds = result.run.over == "folds"
        scores = (
            f"{mean_and_std(100 * run.accuracy_mean, 100 * run.accuracy_std, count, '.2f')} %"
            for run in runs.values()
        )
        yield [f"accuracy of {count} folds" if folds else "test accuracy", *scores]
        if folds:
            yield ["at epoch", *(str(run.best_epoch[0] + 1) for run in runs.values())]
        return
    for name, values in result.errors.items():
        label = report.ERRORS[name]
        score = f"{values.mean():.4g}"
        if len(values) > 1:
            score += f" ± {values.std(ddof=1):.2g}"
        yield [f"test {label}", score, *[""] * (len(runs) - 1)]


def _rate_rows(result: TrainResult) -> Iterator[list[str]]:
    """Yield the seeds of batches per second, evaluation included, and what evaluations see."""
    config, split = result.trained.config, result.trained.split
    if isinstance(config, SampledConfig) and config.batch_size and split is not None:
        rate = len(split.train) / result.run.median_epoch_seconds
        yield ["seeds per second", f"{rate:,.0f}"]
        if getattr(config, "edge_time", False):
            yield ["evaluated on", evaluation_text(config, result.graph)]


def _model_score(result: TrainResult) -> float:
    """Return the score of a training that is compared with those of baselines."""
    return result.run.accuracy_mean if result.errors is None else float(result.errors["r2"].mean())


def _baseline_table(model: str, result: TrainResult, scores: Mapping[str, np.ndarray]) -> str:
    """Return a table of the baselines, and a sentence that says what is best."""
    unit, factor, suffix, form = "points", 100, " %", ".2f"
    if result.errors is not None:
        unit, factor, suffix, form = "R2", 1, "", ".3f"
    means = {name: factor * float(values.mean()) for name, values in scores.items()}
    rows = [["without layers", "test R2" if unit == "R2" else "test accuracy"]]
    for name, values in scores.items():
        deviation = factor * float(values.std(ddof=1)) if len(values) > 1 else 0.0
        rows.append([name, mean_and_std(means[name], deviation, len(values), form) + suffix])
    sentence = verdict(
        command_name(model).partition(" ")[0], factor * _model_score(result), means, unit
    )
    split = result.trained.split
    if unit == "points" and split is not None and len(split.test) < _FEW_EXAMPLES:
        sentence += f" Of {len(split.test)} to test on, one is {100 / len(split.test):.2g} points."
    return f"{table(rows)}\n\n  {sentence}\n"


def _print_result(
    summary: Mapping[str, object], result: TrainResult, scores: Mapping[str, np.ndarray]
) -> None:
    sizes = (
        f"{size} {name.removeprefix('num_')}" for name, size in summary.items() if name != "name"
    )
    print(f"{summary['name']}: {', '.join(sizes)}\n")
    kind = "custom call" if result.run.custom_calls else "plain XLA"
    runs = {f"jax_gnn ({kind}: {jax.default_backend()})": result.run}
    if result.baseline is not None:
        runs["without kernels"] = result.baseline
    rows = [
        ["", *runs],
        *_score_rows(result, runs),
        ["time per epoch", *(f"{1e3 * run.median_epoch_seconds:.3g} ms" for run in runs.values())],
        ["compilation", *(f"{run.compile_seconds:.2g} s" for run in runs.values())],
        *_rate_rows(result),
    ]
    print(table(rows) + "\n")
    print(_baseline_table(result.trained.config.model, result, scores).rstrip())
    if result.speedup is not None:
        print(_COMPARISON.format(result.speedup).rstrip())
    print()


def _print_notes(dataset: NodeDataset, config: TrainConfig, trained: TrainedModel) -> None:
    """Print on stderr the data that do not count, or not as given, and the choices of "auto"."""
    weighted = getattr(dataset, "edge_weight", None) is not None
    if dataset.repeated:
        weights = ", with the sum of their weights" if weighted else ""
        print(f"jax-gnn: {dataset.repeated} repeated edges count once{weights}", file=sys.stderr)
    if weighted and not getattr(config, "edge_weight", False):
        advice = "--edge-weight uses them" if hasattr(config, "edge_weight") else "none are taken"
        print(f"jax-gnn: weights of edges are not used ({advice})", file=sys.stderr)
    if getattr(dataset, "edge_time", None) is not None and not getattr(config, "edge_time", False):
        advice = "nodes see edges of all times; --batch-size N --edge-time: up to their own"
        print(f"jax-gnn: times of edges are not used ({advice})", file=sys.stderr)
    if lacking := unused_split(dataset, config):
        text = f"lacks {' and '.join(lacking)} {dataset.example}s: another is drawn"
        print(f"jax-gnn: the split of the data {text}", file=sys.stderr)
    if splits_by_time(dataset, config):
        sizes = "{:,} to train, {:,} to validate, {:,} to test".format(
            *map(len, vars(trained.split).values())
        )
        split = f"{dataset.example}s are split by time: {sizes}"
        print(f"jax-gnn: {split} (--split random: at random)", file=sys.stderr)
    options.print_data_notes(dataset, config, trained.config)


def _node_results(
    summary: Mapping[str, object],
    result: TrainResult,
    scores: Mapping[str, np.ndarray],
    measure: str,
    split: int,
    num_devices: int,
) -> dict[str, object]:
    """Return the contents of results.json."""
    errors = result.errors
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    best, score = best_baseline(means)
    return {
        "dataset": summary,
        **_provenance(result.trained.config, num_devices),
        "measure": measure,
        "jax_gnn": _run_summary(result.run),
        "test_errors": errors and {name: values.tolist() for name, values in errors.items()},
        "baselines": {
            name: {"mean": means[name], "values": values.tolist()}
            for name, values in scores.items()
        },
        "best": command_name(result.trained.config.model) if _model_score(result) > score else best,
        "plain_jax": result.baseline and _run_summary(result.baseline),
        "speedup": result.speedup,
        "checkpoint_split": split + 1,
    }


def _score(result: TrainResult, split: int) -> str:
    """Return the score of the checkpoint, which is of a split, a fold or a seed, as text."""
    run = result.run
    score = f"test accuracy {100 * run.best_test_accuracy[split]:.2f} %"
    if run.over == "folds":
        score = f"its best accuracy {100 * run.valid_accuracy[split].max():.2f} %"
    if result.errors is not None:
        score = f"test MAE {result.errors['mae'][split]:.4g}"
    row = {"folds": "fold", "seeds": "seed"}.get(run.over, "split")
    return f"of {row} {split + 1}, {score}" if len(run.test_accuracy) > 1 else score


def _run_train(recipe: Recipe, args: argparse.Namespace) -> int:
    with report.blame_data():
        dataset = load_for(recipe, args)
    config = options.settings_of(recipe.config, args, dataset)
    with report.blame_data():
        check_dataset(dataset, config)
        check_neighbours(dataset, config)
    config = settled_direction(dataset, config, options.print_direction)
    folds = getattr(config, "folds", 0)
    measure = "R2" if dataset.regresses else "accuracy"
    bar = report.Progress(
        folds or config.splits, config.epochs, measure, "fold" if folds else "split"
    )
    with _run_folder(args, config, dataset, bar) as (folder, arguments):
        baseline = not getattr(args, "no_baseline", True)
        with bar:
            result = train(dataset, config, baseline=baseline, **arguments)
        scores = baseline_scores(connected(dataset, config), result.trained.config)
        _print_notes(dataset, config, result.trained)
        summary = _dataset_summary(dataset, result)
        assert result.trained.seed is not None
        split = result.trained.seed - config.seed
        title = f"{recipe.model.__name__} on {dataset.name}"
        on_devices = {name: arguments[name] for name in ("devices", "method")}
        is_same = report.write_run(
            folder,
            result.trained,
            lambda model: [np.asarray(model.predict(dataset, **on_devices))],
            _node_results(summary, result, scores, measure, split, args.devices),
            lambda plot: plot_learning_curves(result, plot, title=title, baselines=scores),
        )
    _print_result(summary, result, scores)
    return report.print_files(folder, is_same, f"{_score(result, split)}; ")


# --- Links ----------------------------------------------------------------------------------------


def _print_split(
    recipe: LinkRecipe, config: LinkConfig, dataset: NodeDataset, task: FactTask | EdgeTask
) -> None:
    """Print on stderr how edges are split, or that settings of the split do not count."""
    if not has_edge_split(dataset):
        sizes = "{:,} to train, {:,} to validate, {:,} to test".format(*task.part_sizes)
        shares = f"--valid {config.valid_share} --test {config.test_share} --seed {config.seed}"
        how = "by time" if splits_edges_by_time(dataset, config) else "at random"
        print(f"jax-gnn: edges are split {how}: {sizes} ({shares})", file=sys.stderr)
    elif any(getattr(config, share) != getattr(recipe.config(), share) for share in SHARES):
        note = "the data have a split of their edges: --valid and --test do not count"
        print(f"jax-gnn: {note}", file=sys.stderr)


def _link_results(
    dataset: NodeDataset,
    task: FactTask | EdgeTask,
    result: LinkResult,
    baselines: Mapping[str, dict[str, float]],
    step_seconds: float,
    num_devices: int,
) -> dict[str, object]:
    """Return the contents of results.json."""
    fields = ("num_nodes", "num_edges", "num_relations", "num_features")
    return {
        "dataset": {
            "name": dataset.name,
            **{name: getattr(dataset, name) for name in fields if hasattr(dataset, name)},
        },
        "edges": dict(zip(("train", "valid", "test"), task.part_sizes, strict=True)),
        **_provenance(result.trained.config, num_devices),
        "loss": result.losses.tolist(),
        "validations": [
            {"epoch": epoch, **metrics}
            for epoch, metrics in zip(result.epochs, result.valid, strict=True)
        ],
        "best_epoch": result.epochs[result.best],
        "test": result.test,
        "baselines": baselines,
        "median_step_seconds": step_seconds,
        "compile_seconds": result.compile_seconds,
        "evaluation_seconds": result.evaluation_seconds,
    }


def _run_links(recipe: LinkRecipe, args: argparse.Namespace) -> int:
    config = options.settings_of(recipe.config, args)
    with report.blame_data():
        dataset = load_for(recipe, args)
        task = link_task(dataset, config)
    config = settled_direction(dataset, config, options.print_direction)
    _print_split(recipe, config, dataset, task)
    options.print_data_notes(dataset, config, task.config)
    bar = report.LinkProgress(config, task.best_by)
    with _run_folder(args, config, dataset, bar) as (folder, arguments):
        with bar:
            result = train_links(dataset, config, **arguments)
        baselines = link_baselines(task) if isinstance(task, EdgeTask) else {}
        seconds = float(np.median(result.step_seconds))
        title = f"{command_name(config.model)} on {dataset.name}"
        is_same = report.write_run(
            folder,
            result.trained,
            lambda model: model.table(dataset).values(),
            _link_results(dataset, task, result, baselines, seconds, args.devices),
            lambda plot: plot_link_curves(result, plot, title=title, baselines=baselines),
        )
    rows = {"validation": result.valid[result.best], "test": result.test, **baselines}
    notes = {"validation": f"(epoch {result.epochs[result.best]})"}
    print(report.metric_table(rows, notes))
    if baselines:
        scores = {name: 100 * metrics[task.best_by] for name, metrics in baselines.items()}
        test = 100 * result.test[task.best_by]
        print("\n  " + verdict(config.model.partition("-")[0], test, scores, "points of AUC"))
    print(f"\n  {1e3 * seconds:.3g} ms per step, {result.compile_seconds:.2g} s of compilation\n")
    return report.print_files(folder, is_same)
