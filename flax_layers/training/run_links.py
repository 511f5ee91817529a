"""``jax-gnn train --task link``: one run, and its report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

import jax
import numpy as np

from flax_layers.training import options, report
from flax_layers.training.baselines import link_baselines, verdict
from flax_layers.training.config.links import LinkConfig
from flax_layers.training.data import settled_direction
from flax_layers.training.devices import check_devices
from flax_layers.training.link_models import LinkRecipe
from flax_layers.training.link_tasks import (
    EdgeTask,
    FactTask,
    has_edge_split,
    link_task,
    splits_by_time,
)
from flax_layers.training.links import LinkResult, train_links
from flax_layers.training.models import command_name
from flax_layers.training.plot import plot_link_curves
from flax_layers.training.processes import join
from flax_layers.training.sources import load_for
from jax_gnn.cli import devices, versions
from jax_gnn.datasets import NodeDataset

SHARES = "valid_share", "test_share"


def _print_split(
    recipe: LinkRecipe, config: LinkConfig, dataset: NodeDataset, task: FactTask | EdgeTask
) -> None:
    """Print on stderr how edges are split, or that settings of the split do not count."""
    if not has_edge_split(dataset):
        sizes = "{:,} to train, {:,} to validate, {:,} to test".format(*task.part_sizes)
        shares = f"--valid {config.valid_share} --test {config.test_share} --seed {config.seed}"
        how = "by time" if splits_by_time(dataset, config) else "at random"
        print(f"jax-gnn: edges are split {how}: {sizes} ({shares})", file=sys.stderr)
    elif any(getattr(config, share) != getattr(recipe.config(), share) for share in SHARES):
        note = "the data have a split of their edges: --valid and --test do not count"
        print(f"jax-gnn: {note}", file=sys.stderr)


def _results(
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
        "config": options.option_values(result.trained.config),
        "versions": versions(),
        "devices": devices(),
        "devices_used": num_devices,
        "processes": jax.process_count(),
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


def run_links(recipe: LinkRecipe, args: argparse.Namespace) -> int:
    """Train on the data that the command names, and write and print the results."""
    with join(args):
        return _run_links(recipe, args)


def _run_links(recipe: LinkRecipe, args: argparse.Namespace) -> int:
    options.require("training", options.TRAIN_EXTRA)
    config = options.settings_of(recipe.config, args)
    with report.blame_data():
        dataset = load_for(recipe, args)
        task = link_task(dataset, config)
    config = settled_direction(dataset, config, options.print_direction)
    _print_split(recipe, config, dataset, task)
    options.print_data_notes(dataset, config, task.config)
    # Errors of options come before the folder is made.
    num_devices, method = args.devices, options.method_of(args, dataset)
    check_devices(config, num_devices)
    folder, state = report.make_folder(args, f"{config.model}-{dataset.name}")
    bar = report.LinkProgress(config, task.best_by)
    with report.suggest_resume(args), report.blame_output(folder):
        with bar as progress:
            result = train_links(
                dataset,
                config,
                devices=num_devices,
                method=method,
                on_epoch=progress,
                state=state,
                resume=args.resume,
                keep_state=True,
            )
        baselines = link_baselines(task) if isinstance(task, EdgeTask) else {}
        seconds = float(np.median(result.step_seconds))
        title = f"{command_name(config.model)} on {dataset.name}"
        is_same = report.write_run(
            folder,
            result.trained,
            lambda model: model.table(dataset).values(),
            _results(dataset, task, result, baselines, seconds, num_devices),
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
