"""``jax-gnn train`` and ``jax-gnn predict``: `jax_gnn.cli` finds them by their entry points."""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import functools
import importlib.util
import json
import math
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from flax_layers.training import (
    LINK_RECIPES,
    RECIPES,
    EpochReport,
    LinkConfig,
    LinkRecipe,
    Recipe,
    Run,
    TrainedLinks,
    TrainedModel,
    TrainResult,
    check_dataset,
    load_checkpoint,
    plot_learning_curves,
    plot_link_curves,
    save_checkpoint,
    train,
    train_links,
)
from flax_layers.training.config import Config, Number, Setting, settings
from flax_layers.training.link_tasks import has_edge_split, link_task
from flax_layers.training.plot import METRICS
from jax_gnn.cli import Commands, UserError, add_command, devices, table, versions
from jax_gnn.datasets import (
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
)
from jax_gnn.extend import Implementation, status

TRAIN_EXTRA = ("matplotlib", "optax", "orbax", "sklearn", "tqdm")
PREDICT_EXTRA = ("orbax",)
SHARES = "valid_share", "test_share"
BY_PATH = "FILE|FOLDER"  # how usage calls the argument of data, where there is no option


# -------------------------------------------------------------------------------------------- train


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


def _require(purpose: str, packages: Iterable[str]) -> None:
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
def _blame_data(argument: str = "--data") -> Iterator[None]:
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        raise UserError(f"{argument}: {error}") from error


@contextlib.contextmanager
def _blame_output(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"--output {path}: {error.strerror}") from error


def _make_folder(path: Path) -> None:
    with _blame_output(path):
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
    _require("training", TRAIN_EXTRA)
    config = _settings_of(recipe.config, args)
    with _blame_data(BY_PATH if recipe.dataset is RelationalDataset else "--data"):
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
    "gcn-link": ("", "--data cora.npz", "--data planetoid/ind.cora.x --variational"),
    "sage-link": ("", "--data cora.npz --aggregation max"),
    "gat-link": ("", "--data cora.npz --heads 8"),
    "rgcn-link": ("--data fb15k237.npz", "--data wn18rr --decoder complex"),
    "compgcn-link": ("--data fb15k237.npz", "--data wn18rr --decoder complex"),
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
    facts = recipe.dataset is RelationalDataset
    examples = "\n  ".join(f"jax-gnn train {name} {line}".rstrip() for line in EXAMPLES[name])
    reported = "filtered mean reciprocal rank" if facts else "AUC, average precision"
    parser = add_command(
        models,
        name,
        help=f"a {recipe.title} for link prediction",
        description=f"Trains a {recipe.title}\nto predict edges, and reports {reported} and hits "
        "of the\ntest edges at the best validation. Writes a checkpoint of that model, a plot and "
        f"results.json.\n\nexamples:\n  {examples}",
        run=functools.partial(_run_links, recipe),
    )
    groups = _groups(parser)
    if facts:
        groups["data"].add_argument(
            "--data",
            required=True,
            metavar="FILE|FOLDER",
            help="edges with relations: an .npz file, or a folder with train.txt",
        )
    else:
        groups["data"].add_argument(
            "--data",
            default="digits",
            metavar="digits|FILE|FOLDER",
            help="'digits' (offline: handwritten digits, k-nearest-neighbour edges), an .npz file "
            "or a folder in a raw format",
        )
    _add_settings(recipe.config, groups, "checkpoint, plot and results")


class _LinkProgress(_Progress):
    """Of a training for link prediction: on no terminal there is a line for each validation."""

    def __init__(self, config: LinkConfig, best_by: str) -> None:
        super().__init__(1, config.epochs)
        self._best_by = best_by

    def __call__(self, report: Any) -> None:
        loss, text = f"loss {report.loss:.4f}", ""
        if report.valid is not None:
            value = report.valid[self._best_by]
            self._best = max(self._best, value)
            text = f"validation {METRICS[self._best_by]} {value:.4f}"
        if self._bar is not None:
            best = f"best validation {METRICS[self._best_by]} {self._best:.4f}"
            self._bar.set_description(loss, refresh=False)
            self._bar.set_postfix_str(best, refresh=False)
            self._bar.update()
        elif text:
            number = f"epoch {report.epoch + 1}/{self._epochs}"
            print(f"{number}: {loss}, {text}", file=sys.stderr, flush=True)


def _percent(metrics: dict[str, float]) -> list[str]:
    return [f"{100 * metrics[name]:.2f} %" for name in METRICS if name in metrics]


def _metric_names(metrics: dict[str, float]) -> list[str]:
    return [text for name, text in METRICS.items() if name in metrics]


def _run_links(recipe: LinkRecipe, args: argparse.Namespace) -> int:
    _require("training", TRAIN_EXTRA)
    config = _settings_of(recipe.config, args)
    with _blame_data():
        dataset = recipe.load(args.data)
        task = link_task(dataset, config)
    if not has_edge_split(dataset):
        sizes = "{:,} to train, {:,} to validate, {:,} to test".format(*task.part_sizes)
        shares = f"--valid {config.valid_share} --test {config.test_share} --seed {config.seed}"
        print(f"jax-gnn: edges are split at random: {sizes} ({shares})", file=sys.stderr)
    elif any(getattr(config, s) != getattr(recipe.config(), s) for s in SHARES):
        told = "the data have a split of their edges: --valid and --test do not count"
        print(f"jax-gnn: {told}", file=sys.stderr)
    folder = args.output or Path("runs") / f"{config.model}-{dataset.name}"
    _make_folder(folder)
    with _LinkProgress(config, task.best_by) as progress:
        result = train_links(dataset, config, on_epoch=progress)
    checkpoint = folder / "checkpoint"
    save_checkpoint(checkpoint, result.trained)
    again = load_checkpoint(checkpoint)
    assert isinstance(again, TrainedLinks)
    tables = [trained.table(dataset) for trained in (result.trained, again)]
    plot = folder / "learning_curves.png"
    plot_link_curves(result, plot, title=f"{config.model} on {dataset.name}")
    step = float(np.median(result.step_seconds))
    results = folder / "results.json"
    fields = ("num_nodes", "num_edges", "num_relations", "num_features")
    summary = {
        "dataset": {
            "name": dataset.name,
            **{name: getattr(dataset, name) for name in fields if hasattr(dataset, name)},
        },
        "edges": dict(zip(("train", "valid", "test"), task.part_sizes, strict=True)),
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
        ["", *_metric_names(result.test), ""],
        ["validation", *_percent(result.valid[result.best]), best],
        ["test", *_percent(result.test), ""],
    ]
    print(table(rows))
    print(f"\n  {1e3 * step:.3g} ms per step, {result.compile_seconds:.2g} s of compilation\n")
    if not all(np.array_equal(tables[0][name], tables[1][name]) for name in tables[0]):
        print(f"jax-gnn: {checkpoint} ranks otherwise than the trained model", file=sys.stderr)
        return 1
    rows = [
        ["checkpoint", str(checkpoint), "(loaded again: same ranks)"],
        ["plot", str(plot), ""],
        ["results", str(results), ""],
    ]
    print(table(rows))
    return 0


# ------------------------------------------------------------------------------------------ predict

PARTS = {"train": "training", "valid": "validation", "test": "test"}


def _table_file(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".csv", ".npz"):
        raise argparse.ArgumentTypeError(f"expected a .csv or .npz file, got {text!r}")
    return path


def _add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="folder that jax-gnn train wrote, such as runs/gcn-cora/checkpoint",
    )
    parser.add_argument(
        "--data",
        metavar="digits|FILE|FOLDER",
        help="what to predict on, as of jax-gnn train: the data of the training, or others of the "
        "same features (may be left out after training on the built-in digits)",
    )
    parser.add_argument(
        "--output",
        type=_table_file,
        metavar="FILE",
        help="a .csv or .npz file to write, with node, label and probability for each node, or "
        "ranks for each edge",
    )


@contextlib.contextmanager
def _tell_warnings() -> Iterator[None]:
    """Tells each warning once, on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    told = (str(each.message) for each in caught if issubclass(each.category, UserWarning))
    for message in dict.fromkeys(told):
        print(f"jax-gnn: warning: {message}", file=sys.stderr)


def _load_trained(path: Path) -> Any:
    """Loads a checkpoint; what it lacks is told on stderr."""
    try:
        with _tell_warnings():
            return load_checkpoint(path)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error


def _data_of(trained: TrainedModel | TrainedLinks, path: str | None) -> str:
    if path is not None:
        return path
    if trained.data is None:
        raise UserError("--data is needed: the checkpoint does not say what it was trained on")
    if trained.data.name != "digits":
        raise UserError(f"--data is needed: the model was trained on {trained.data.name!r}")
    return "digits"


def _origin(trained: TrainedModel | TrainedLinks, dataset: Any) -> str:
    """What the data are to the model."""
    if trained.data is None:
        return "not known to be those of the training"
    different = trained.differences(dataset)
    origin = f"other {', '.join(different)} than in training" if different else "as in training"
    by_name = trained.renumbered(dataset).dataset is not dataset
    return f"{origin}, numbers matched by name" if by_name else origin


def _accuracy_rows(
    trained: TrainedModel, dataset: NodeDataset, logits: jax.Array
) -> Iterator[list[str]]:
    accuracies = trained.accuracies(dataset, logits)
    for part, ids in trained.parts(dataset).items():
        name = f"{PARTS[part]} accuracy" if part in PARTS else "accuracy"
        nodes = f"({len(ids)} nodes)" if part in PARTS else f"(all {len(ids)} labelled nodes)"
        yield [name, f"{100 * accuracies[part]:.2f} %", nodes]
    if not accuracies:
        yield ["accuracy", "unknown", "(no node has a label)"]


def _write_predictions(
    path: Path, trained: TrainedModel, dataset: NodeDataset, logits: jax.Array
) -> None:
    """Writes names of nodes and labels where there are any, numbers elsewhere."""
    names, nodes = trained.label_names, dataset.node_names
    logits = logits.astype(jnp.float32)
    columns: dict[str, Any] = {}
    if getattr(dataset, "y_multilabel", None) is not None:  # a probability for each class
        several = np.asarray(jax.nn.sigmoid(logits)).T
        columns |= zip(names or map(str, range(len(several))), several, strict=True)
    else:
        label = np.asarray(logits.argmax(axis=1))
        columns["label"] = label if names is None else np.array(names)[label]
        columns["probability"] = np.asarray(jax.nn.softmax(logits, axis=1).max(axis=1))
    first = "node"
    while first in columns:  # a class has this name
        first += " id"
    numbers = np.arange(dataset.num_nodes) if nodes is None else np.array(nodes)
    _write_table(path, {first: numbers} | columns)


def _write_table(path: Path, columns: dict[str, Any]) -> None:
    with _blame_output(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npz":
            # Not by np.savez, whose own arguments may be names of columns.
            with zipfile.ZipFile(path, "w") as archive:
                for name, column in columns.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asarray(column), allow_pickle=False)
        else:
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))


def _run_predict(args: argparse.Namespace) -> int:
    _require("predicting", PREDICT_EXTRA)
    trained = _load_trained(args.checkpoint)
    path = _data_of(trained, args.data)
    if isinstance(trained, TrainedLinks):
        return _rank_links(trained, path, args.output)
    with _blame_data(), _tell_warnings():
        dataset = trained.recipe.load(path)
        logits = trained.predict(dataset)
    source = f"(trained on {trained.data.name}, seed {trained.seed})" if trained.data else ""
    rows = [
        ["model", trained.config.model, source],
        ["data", dataset.name, f"({_origin(trained, dataset)})"],
        *_accuracy_rows(trained, dataset, logits),
    ]
    if args.output:
        _write_predictions(args.output, trained, dataset, logits)
        rows.append(["predictions", str(args.output), ""])
    print(table(rows))
    return 0


def _rank_links(trained: TrainedLinks, path: str, output: Path | None) -> int:
    with _blame_data(), _tell_warnings():
        dataset = LINK_RECIPES[trained.config.model].load(path)
        found = {part: trained.evaluate(dataset, part) for part in ("val", "test")}
        columns = trained.table(dataset) if output else {}
    print(
        table(
            [
                ["model", trained.config.model, f"(trained on {trained.data.name})"],
                ["data", dataset.name, f"({_origin(trained, dataset)})"],
            ]
        )
    )
    rows = [["", *_metric_names(found["test"])]]
    for part, metrics in found.items():
        rows.append([{"val": "validation"}.get(part, part), *_percent(metrics)])
    print(table(rows))
    if output is not None:
        _write_table(output, columns)
        print(table([["test edges", str(output), ""]]))
    return 0


def add_predict(commands: Commands) -> None:
    """Adds ``predict``."""
    parser = add_command(
        commands,
        "predict",
        help="predict with a model that was trained",
        description="Predicts the labels of nodes with a model that jax-gnn train wrote, after the "
        "same\npreprocessing. On the data of the training, accuracies are those of its split, as\n"
        "training recorded them; on other data, there is one, of all nodes that have a label.\n"
        "After training for link prediction it ranks validation and test edges again. Relations,\n"
        "types and nodes are known by their names, where the data have them.\n\n"
        "examples:\n"
        "  jax-gnn predict runs/hgnn-digits/checkpoint\n"
        "  jax-gnn predict runs/gcn-cora/checkpoint --data planetoid/ind.cora.x\n"
        "  jax-gnn predict runs/gcn-cora/checkpoint --data new.npz --output predictions.csv",
        run=_run_predict,
    )
    _add_predict_arguments(parser)
