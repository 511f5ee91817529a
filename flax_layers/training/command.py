"""``jax-gnn train``: `jax_gnn.cli` finds it by its entry point."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from flax_layers.training import (
    LINK_RECIPES,
    RECIPES,
    EpochReport,
    LinkRecipe,
    LinkReport,
    Recipe,
    Run,
    TrainedLinks,
    TrainResult,
    check_dataset,
    check_links,
    load_checkpoint,
    plot_learning_curves,
    save_checkpoint,
    train,
    train_links,
)
from flax_layers.training.config import Config, Number, Setting, settings
from jax_gnn.cli import Commands, UserError, add_command, devices, table, versions
from jax_gnn.datasets import (
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
    load_relational,
)
from jax_gnn.extend import Implementation, status

TRAIN_EXTRA = ("matplotlib", "optax", "orbax", "sklearn", "tqdm")
BY_PATH = "FILE|FOLDER"  # how usage calls the argument of data, where there is no option


def _parser_of(number: Number) -> Callable[[str], float]:
    """Returns an argparse type that accepts a range of numbers."""

    def parse(text: str) -> float:
        try:
            value = number.kind(text)
        except ValueError:
            value = math.nan
        if not number.accept(value):
            raise argparse.ArgumentTypeError(f"expected {number.expected}, got {text!r}")
        return value

    return parse


def _add_setting(group: argparse._ArgumentGroup, name: str, setting: Setting, default: Any) -> None:
    option: dict[str, Any] = {"dest": name, "help": setting.help.replace("%", "%%")}
    if setting.number:
        option |= {"type": _parser_of(setting.number), "metavar": setting.metavar}
        option["default"] = default
    elif setting.choices:  # None leaves the choice to the library
        option |= {"choices": [choice or "auto" for choice in setting.choices]}
        option["default"] = default or "auto"
    else:
        option["action"] = "store_true"
    group.add_argument(setting.flag or "--" + name.replace("_", "-"), **option)


def _groups(parser: argparse.ArgumentParser) -> dict[str, argparse._ArgumentGroup]:
    return {
        name: parser.add_argument_group(name) for name in ("data", "model", "training", "execution")
    }


def _add_settings(
    config: type[Config], groups: dict[str, argparse._ArgumentGroup], written: str
) -> None:
    """The options of the settings, and of where results go."""
    default = config()
    for name, setting in settings(config).items():
        _add_setting(groups[setting.group], name, setting, getattr(default, name))
    groups["execution"].add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help=f"folder of {written} (default: runs/{config.model}-<dataset>)",
    )


def _settings_of(config: type[Config], args: argparse.Namespace) -> Any:
    values = {name: getattr(args, name) for name in settings(config)}
    if args.implementation == "auto":
        values["implementation"] = None
    made = config(**values)
    _require_implementation(values["implementation"])
    return made


def _add_train_arguments(recipe: Recipe, parser: argparse.ArgumentParser) -> None:
    groups = _groups(parser)
    offline = "hyperedges" if recipe.dataset is HypergraphDataset else "edges"
    files = "an .npz file or a folder in a raw format"
    if recipe.dataset is RelationalDataset:
        groups["data"].add_argument("data", metavar=BY_PATH, help=files)
    else:
        groups["data"].add_argument(
            "--data",
            default="digits",
            metavar="digits|FILE|FOLDER",
            help=f"'digits' (offline: handwritten digits, k-nearest-neighbour {offline}), {files}",
        )
    groups["execution"].add_argument(
        "--no-baseline",
        action="store_true",
        help="leave out the same training in plain JAX",
    )
    _add_settings(recipe.config, groups, "checkpoint, plot and results")


def require(purpose: str, packages: Iterable[str]) -> None:
    """Says which packages of the extra "train" are missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"{purpose} needs {', '.join(missing)}; run: pip install 'jax-gnn[train]'")


def _require_implementation(implementation: Implementation | None) -> None:
    if implementation in (None, "xla"):
        return
    found = next(each for each in status() if each.platform == implementation)
    if not found.available:
        advice = f" ({found.hint})" if found.hint else ""
        raise UserError(f"--implementation {implementation}: {found.reason}{advice}")
    backend = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if backend != implementation:
        raise UserError(
            f"--implementation {implementation}: JAX runs on {backend} here; JAX_PLATFORMS="
            f"{implementation} asks for the other"
        )


@contextlib.contextmanager
def blame_data(argument: str = "--data") -> Iterator[None]:
    """Names the argument in errors about data."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        raise UserError(f"{argument}: {error}") from error


@contextlib.contextmanager
def blame_output(path: Path) -> Iterator[None]:
    """Likewise about what is written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"--output {path}: {error.strerror}") from error


def _make_folder(path: Path) -> None:
    with blame_output(path):
        path.mkdir(parents=True, exist_ok=True)


class _Progress:
    """A bar on a terminal, one line per split elsewhere; on stderr, apart from the result."""

    def __init__(self, splits: int, epochs: int) -> None:
        self._splits, self._epochs = splits, epochs
        self._bar: Any = None
        self._best = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self._splits * self._epochs, unit="epoch")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, report: EpochReport) -> None:
        self._best = max(self._best if report.epoch else 0.0, report.valid_accuracy)
        split = f"split {report.split + 1}/{self._splits}"
        validation = f"best validation accuracy {self._best:.1%}"
        if self._bar is not None:
            self._bar.set_description(split, refresh=False)
            self._bar.set_postfix_str(validation, refresh=False)
            self._bar.update()
        elif report.epoch + 1 == self._epochs:
            print(f"{split}: {validation}", file=sys.stderr, flush=True)


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


def _dataset_summary(recipe: Recipe, dataset: NodeDataset, result: TrainResult) -> dict[str, Any]:
    return {
        "name": dataset.name,
        **{name: getattr(result.graph, name) for name in recipe.sizes},
        "num_features": _num_features(result.x),
        "num_classes": dataset.num_classes,
    }


def _num_features(x: Any) -> int | str:
    """Where they are by type, all of them."""
    if isinstance(x, dict):
        return "/".join("0" if rows is None else str(rows.shape[1]) for rows in x.values())
    return 0 if x is None else x.shape[1]


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
        [
            "test accuracy",
            *(
                f"{100 * run.accuracy_mean:.2f} ± {100 * run.accuracy_std:.2f} %"
                for run in runs.values()
            ),
        ],
        ["time per epoch", *(f"{1e3 * run.median_epoch_seconds:.3g} ms" for run in runs.values())],
        ["compilation", *(f"{run.compile_seconds:.2g} s" for run in runs.values())],
    ]
    print(table(rows))
    if result.speedup is not None:
        print(f"\n  An epoch is {result.speedup:.2f} times as fast as in plain JAX.")
    print()


def _run_train(recipe: Recipe, args: argparse.Namespace) -> int:
    require("training", TRAIN_EXTRA)
    config = _settings_of(recipe.config, args)
    with blame_data(BY_PATH if recipe.dataset is RelationalDataset else "--data"):
        dataset = recipe.load(args.data)
        check_dataset(dataset, config)
    folder = args.output or Path("runs") / f"{config.model}-{dataset.name}"
    _make_folder(folder)
    with _Progress(config.splits, config.epochs) as progress:
        result = train(dataset, config, baseline=not args.no_baseline, on_epoch=progress)

    described = _dataset_summary(recipe, dataset, result)
    checkpoint = folder / "checkpoint"
    save_checkpoint(checkpoint, result.trained)
    predictions, again = (
        np.asarray(trained.predict(dataset))
        for trained in (result.trained, load_checkpoint(checkpoint))
    )
    assert result.trained.seed is not None
    split = result.trained.seed - config.seed
    plot = folder / "learning_curves.png"
    plot_learning_curves(result, plot, title=f"{recipe.model.__name__} on {dataset.name}")
    results = folder / "results.json"
    results.write_text(
        json.dumps(
            {
                "dataset": described,
                "config": dataclasses.asdict(config),
                "versions": versions(),
                "devices": devices(),
                "jax_gnn": _run_summary(result.run),
                "plain_jax": result.baseline and _run_summary(result.baseline),
                "speedup": result.speedup,
                "checkpoint_split": split + 1,
            },
            indent=2,
        )
        + "\n"
    )
    _print_result(described, result)
    if not np.array_equal(predictions, again, equal_nan=True):
        print(f"jax-gnn: {checkpoint} predicts otherwise than the trained model", file=sys.stderr)
        return 1
    of_split = f"of split {split + 1}, " if config.splits > 1 else ""
    accuracy = f"{of_split}test accuracy {100 * result.run.best_test_accuracy[split]:.2f} %"
    rows = [
        ["checkpoint", str(checkpoint), f"({accuracy}; loaded again: same predictions)"],
        ["plot", str(plot), ""],
        ["results", str(results), ""],
    ]
    print(table(rows))
    return 0


EXAMPLES = {
    "hgnn": (
        "--data cora_cocitation.npz --splits 20 --self-loops all --hidden-features 256 \\\n"
        "    --epochs 500 --learning-rate 0.001 --weight-decay 0",
        "--data walmart_trips.npz --features noisy-label --no-baseline",
    ),
    "gcn": ("--data planetoid/ind.cora.x", "--data cora.npz --split random --layers 3"),
    "gin": ("--data cora.npz --learn-eps",),
    "sage": ("--data cora.npz --aggregation max",),
    "gat": ("--data planetoid/ind.cora.x",),
    "gatv2": ("--data cora.npz --heads 4 --share-weights",),
    "transformer": ("--data cora.npz --gated",),
    "rgcn": (
        "aifb.npz",
        "rdf/mutag --bases 30 --weight-decay 5e-4",
        "dblp.npz --features native --hidden-features 64 --dropout 0.5",
    ),
    "rgat": ("dblp.npz", "aifb.npz --features none --bases 10"),
    "hgt": ("dblp.npz", "imdb_hgb.npz --heads 4"),
    "rgcn-link": ("fb15k237.npz", "wn18rr.npz --decoder complex"),
    "compgcn-link": ("fb15k237.npz", "wn18rr.npz --decoder complex"),
    "unigcnii": ("--data cora_cocitation.npz --splits 20 --layers 8",),
    "allsettransformer": ("--data cora_cocitation.npz --splits 20 --heads 8",),
}


def add_train(commands: Commands) -> None:
    """Adds ``train``, with a command for each model."""
    parser = commands.add_parser("train", help="train a model", description="Train a model.")
    models = parser.add_subparsers(metavar="WHAT", required=True)
    for recipe in RECIPES.values():
        _add_model(models, recipe)
    for link_recipe in LINK_RECIPES.values():
        _add_links(models, link_recipe)


def _add_model(models: Commands, recipe: Recipe) -> None:
    name = recipe.config.model
    examples = "\n  ".join(
        f"jax-gnn train {name} {line}".rstrip()
        for line in ([] if recipe.dataset is RelationalDataset else [""])
        + [*EXAMPLES.get(name, ())]
    )
    parser = add_command(
        models,
        name,
        help=f"a {recipe.title} for node classification",
        description=f"Trains a {recipe.title}\nand reports the test accuracy at each split's best "
        "validation epoch, beside the same training in\nplain JAX. Writes a checkpoint of the best "
        "model, a plot of the learning curves and results.json.\n\n"
        f"examples:\n  {examples}",
        run=functools.partial(_run_train, recipe),
    )
    _add_train_arguments(recipe, parser)


def _add_links(models: Commands, recipe: LinkRecipe) -> None:
    name = recipe.config.model
    examples = "\n  ".join(f"jax-gnn train {name} {line}" for line in EXAMPLES[name])
    parser = add_command(
        models,
        name,
        help=f"a {recipe.title} for link prediction",
        description=f"Trains a {recipe.title}\nto predict edges, and reports filtered mean "
        "reciprocal rank and hits of the test edges at the best\nvalidation. Writes a checkpoint "
        f"of that model and results.json.\n\nexamples:\n  {examples}",
        run=functools.partial(_run_links, recipe),
    )
    groups = _groups(parser)
    groups["data"].add_argument(
        "data", metavar=BY_PATH, help="data with a split of edges, mostly an .npz file"
    )
    _add_settings(recipe.config, groups, "checkpoint and results")


def percent(metrics: dict[str, float]) -> list[str]:
    """Cells of a table."""
    return [f"{100 * value:.2f} %" for value in metrics.values()]


def _run_links(recipe: LinkRecipe, args: argparse.Namespace) -> int:
    require("training", TRAIN_EXTRA)
    config = _settings_of(recipe.config, args)
    with blame_data(BY_PATH):
        dataset = load_relational(args.data)
        check_links(dataset)
    folder = args.output or Path("runs") / f"{config.model}-{dataset.name}"
    _make_folder(folder)

    def report(epoch: LinkReport) -> None:
        if epoch.valid is not None:
            mrr = f"validation MRR {epoch.valid['mrr']:.4f}"
            number = f"epoch {epoch.epoch + 1}/{config.epochs}"
            print(f"{number}: loss {epoch.loss:.4f}, {mrr}", file=sys.stderr, flush=True)

    result = train_links(dataset, config, on_epoch=report)
    checkpoint = folder / "checkpoint"
    save_checkpoint(checkpoint, result.trained)
    again = load_checkpoint(checkpoint)
    assert isinstance(again, TrainedLinks)
    ranks, found = (np.asarray(each.ranks(dataset)) for each in (result.trained, again))
    step = float(np.median(result.step_seconds))
    results = folder / "results.json"
    summary = {
        "dataset": {
            "name": dataset.name,
            **{name: getattr(dataset, name) for name in ("num_nodes", "num_edges")},
            "num_relations": dataset.num_relations,
        },
        "config": dataclasses.asdict(config),
        "versions": versions(),
        "devices": devices(),
        "loss": result.losses.tolist(),
        "validations": [
            {"epoch": epoch, **metrics}
            for epoch, metrics in zip(result.epochs, result.valid, strict=True)
        ],
        "best_epoch": result.epochs[result.best],
        "test": result.test,
        "median_step_seconds": step,
        "compile_seconds": result.compile_seconds,
        "evaluation_seconds": result.evaluation_seconds,
    }
    results.write_text(json.dumps(summary, indent=2) + "\n")
    best = f"(epoch {result.epochs[result.best]})"
    rows = [
        ["", "MRR", "Hits@1", "Hits@3", "Hits@10", ""],
        ["validation", *percent(result.valid[result.best]), best],
        ["test", *percent(result.test), ""],
    ]
    print(table(rows))
    print(f"\n  {1e3 * step:.3g} ms per step, {result.compile_seconds:.2g} s of compilation\n")
    if not np.array_equal(ranks, found):
        print(f"jax-gnn: {checkpoint} ranks otherwise than the trained model", file=sys.stderr)
        return 1
    rows = [
        ["checkpoint", str(checkpoint), "(loaded again: same ranks)"],
        ["results", str(results), ""],
    ]
    print(table(rows))
    return 0
