"""``jax-gnn train`` for classes and numbers of nodes or graphs: one run, and its report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_layers.training import (
    Recipe,
    Run,
    TrainedModel,
    TrainResult,
    check_dataset,
    load_checkpoint,
    plot_learning_curves,
    save_checkpoint,
    train,
)
from flax_layers.training.checkpoint import CHECKPOINT
from flax_layers.training.config import SampledConfig
from flax_layers.training.data import num_outputs
from flax_layers.training.devices import check_devices
from flax_layers.training.options import (
    TRAIN_EXTRA,
    method_of,
    require,
    settings_of,
    tell_data,
    told,
)
from flax_layers.training.records import mean_and_std
from flax_layers.training.report import (
    ERRORS,
    Progress,
    blame_data,
    blame_output,
    make_folder,
    tell_resume,
)
from flax_layers.training.sources import load_for
from jax_gnn.cli import devices, table, versions
from jax_gnn.datasets import (
    NodeDataset,
)


def _implementation_name(run: Run) -> str:
    backend = jax.default_backend()
    return f"custom call: {backend}" if run.custom_calls else f"plain XLA: {backend}"


def _run_summary(run: Run) -> dict[str, Any]:
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


def _dataset_summary(dataset: NodeDataset, result: TrainResult) -> dict[str, Any]:
    return {
        "name": dataset.name,
        **result.sizes,
        "num_features": _num_features(result.x),
        **(
            {"num_targets": num_outputs(dataset)}
            if dataset.regresses
            else {"num_classes": dataset.num_classes}
        ),
    }


def _num_features(x: Any) -> int | str:
    """Where they are by type, all of them."""
    if isinstance(x, dict):
        return "/".join("0" if rows is None else str(rows.shape[-1]) for rows in x.values())
    return 0 if x is None else x.shape[-1]


def _score_rows(result: TrainResult, runs: dict[str, Run]) -> Iterator[list[str]]:
    """Errors of a regression, else accuracies; each with its deviation."""
    count = len(result.run.test_accuracy)
    if result.errors is None:
        over = f"accuracy of {count} folds"
        yield [
            over if result.run.over == "folds" else "test accuracy",
            *(
                f"{mean_and_std(100 * run.accuracy_mean, 100 * run.accuracy_std, count, '.2f')} %"
                for run in runs.values()
            ),
        ]
        if result.run.over == "folds":
            yield ["at epoch", *(str(run.best_epoch[0] + 1) for run in runs.values())]
        return
    for name, label in ERRORS.items():
        values = result.errors[name]
        told = f"{values.mean():.4g}"
        if len(values) > 1:
            told += f" ± {values.std(ddof=1):.2g}"
        yield [f"test {label}", told, *[""] * (len(runs) - 1)]


def _rate_rows(result: TrainResult) -> Iterator[list[str]]:
    """Of batches of nodes, how many of them a second trained on, evaluation included."""
    config, split = result.trained.config, result.trained.split
    if isinstance(config, SampledConfig) and config.batch_size and split is not None:
        rate = len(split.train) / result.run.median_epoch_seconds
        yield ["seeds per second", f"{rate:,.0f}"]


def _print_result(dataset: dict[str, Any], result: TrainResult) -> None:
    sizes = (
        f"{size} {name.removeprefix('num_')}" for name, size in dataset.items() if name != "name"
    )
    print(f"{dataset['name']}: {', '.join(sizes)}\n")
    runs = {f"jax_gnn ({_implementation_name(result.run)})": result.run}
    if result.baseline is not None:
        runs["plain JAX"] = result.baseline
    rows = [
        ["", *runs],
        *_score_rows(result, runs),
        ["time per epoch", *(f"{1e3 * run.median_epoch_seconds:.3g} ms" for run in runs.values())],
        ["compilation", *(f"{run.compile_seconds:.2g} s" for run in runs.values())],
        *_rate_rows(result),
    ]
    print(table(rows))
    if result.speedup is not None:
        print(f"\n  An epoch is {result.speedup:.2f} times as fast as in plain JAX.")
    print()


def _tell_notes(dataset: NodeDataset, config: Any, settled: Any) -> None:
    """Says on stderr what of the data does not count, or not as given; and what was settled."""
    weighted = getattr(dataset, "edge_weight", None) is not None
    if dataset.repeated:
        weights = ", with the sum of their weights" if weighted else ""
        print(f"jax-gnn: {dataset.repeated} repeated edges count once{weights}", file=sys.stderr)
    if weighted and not getattr(config, "edge_weight", False):
        takes = "--edge-weight uses them" if hasattr(config, "edge_weight") else "none are taken"
        print(f"jax-gnn: weights of edges are not used ({takes})", file=sys.stderr)
    tell_data(dataset, config, settled)


def _same_predictions(
    checkpoint: Path, trained: TrainedModel, dataset: NodeDataset, over: dict[str, Any]
) -> bool:
    """Whether a checkpoint predicts to the same bits what the trained model does."""
    predictions, again = (
        np.asarray(each.predict(dataset, **over)) for each in (trained, load_checkpoint(checkpoint))
    )
    return np.array_equal(predictions, again, equal_nan=True)


def _results(
    described: dict[str, Any], result: TrainResult, measure: str, split: int, devices_used: int
) -> dict[str, Any]:
    """What results.json holds."""
    errors = result.errors
    return {
        "dataset": described,
        "config": told(result.trained.config),
        "versions": versions(),
        "devices": devices(),
        "devices_used": devices_used,
        "measure": measure,
        "jax_gnn": _run_summary(result.run),
        "test_errors": errors and {name: values.tolist() for name, values in errors.items()},
        "plain_jax": result.baseline and _run_summary(result.baseline),
        "speedup": result.speedup,
        "checkpoint_split": split + 1,
    }


def _score(result: TrainResult, split: int) -> str:
    """That of the checkpoint, which is of a split, a fold or a seed."""
    run = result.run
    score = f"test accuracy {100 * run.best_test_accuracy[split]:.2f} %"
    if run.over == "folds":
        score = f"its best accuracy {100 * run.valid_accuracy[split].max():.2f} %"
    if result.errors is not None:
        score = f"test MAE {result.errors['mae'][split]:.4g}"
    what = {"folds": "fold", "seeds": "seed"}.get(run.over, "split")
    return f"of {what} {split + 1}, {score}" if len(run.test_accuracy) > 1 else score


def run_train(recipe: Recipe, args: argparse.Namespace) -> int:
    """Trains on the data that the command names, and writes and prints what came of it."""
    require("training", TRAIN_EXTRA)
    with blame_data():
        dataset = load_for(recipe, args.data)
    config = settings_of(recipe.config, args, dataset)
    with blame_data():
        check_dataset(dataset, config)
    over: dict[str, Any] = {}
    if recipe.structure is not None:
        over = {"devices": args.devices, "method": method_of(args, dataset)}
        check_devices(config, args.devices)
    folder, state = make_folder(args, f"{config.model}-{dataset.name}")
    folds = getattr(config, "folds", 0)
    measure = "R2" if dataset.regresses else "accuracy"
    what = "fold" if folds else "split"
    bar = Progress(folds or config.splits, config.epochs, measure, what)
    with tell_resume(args, state), blame_output(folder), bar as progress:
        baseline = not getattr(args, "no_baseline", True)
        result = train(
            *(dataset, config),
            baseline=baseline,
            **over,
            on_epoch=progress,
            state=state,
            resume=args.resume,
        )
    _tell_notes(dataset, config, result.trained.config)

    described = _dataset_summary(dataset, result)
    checkpoint, plot, results = (
        folder / name for name in (CHECKPOINT, "learning_curves.png", "results.json")
    )
    with blame_output(folder):
        save_checkpoint(checkpoint, result.trained)
    same = _same_predictions(checkpoint, result.trained, dataset, over)
    assert result.trained.seed is not None
    split = result.trained.seed - config.seed
    document = _results(described, result, measure, split, over.get("devices", 1))
    with blame_output(folder):
        plot_learning_curves(result, plot, title=f"{recipe.model.__name__} on {dataset.name}")
        results.write_text(json.dumps(document, indent=2) + "\n")
    _print_result(described, result)
    if not same:
        print(f"jax-gnn: {checkpoint} predicts otherwise than the trained model", file=sys.stderr)
        return 1
    told = f"({_score(result, split)}; loaded again: same predictions)"
    rows = [["checkpoint", str(checkpoint), told], ["plot", str(plot), ""]]
    print(table([*rows, ["results", str(results), ""]]))
    return 0
