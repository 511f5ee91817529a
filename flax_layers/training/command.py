"""``jax-gnn train``: `jax_gnn.cli` finds it by its entry point."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
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
    LinkConfig,
    LinkRecipe,
    Recipe,
    Run,
    TrainedLinks,
    TrainResult,
    check_dataset,
    load_checkpoint,
    plot_learning_curves,
    plot_link_curves,
    save_checkpoint,
    train,
    train_links,
)
from flax_layers.training.config import Config, Number, Setting, TrainConfig, settings
from flax_layers.training.data import num_outputs
from flax_layers.training.link_tasks import has_edge_split, link_task
from flax_layers.training.models import TASKS, spelled
from flax_layers.training.plot import METRICS
from jax_gnn.cli import Commands, UserError, add_command, devices, table, versions
from jax_gnn.datasets import (
    GraphDataset,
    GraphsDataset,
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
)
from jax_gnn.extend import Implementation, status

BY_PATH = GraphsDataset, RelationalDataset  # kinds of data that are not built in
ERRORS = {"mae": "MAE", "rmse": "RMSE", "r2": "R2"}
TRAIN_EXTRA = ("matplotlib", "optax", "orbax", "sklearn", "tqdm")
SHARES = "valid_share", "test_share"


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


def _add_setting(
    group: argparse._ArgumentGroup, name: str, setting: Setting, defaults: dict[str, Any]
) -> None:
    """Adds an option, whose value is there only if it is given; defaults are for the help."""
    told = "; ".join(
        f"{value or 'auto' if setting.choices else value}{where}"
        for where, value in defaults.items()
    )
    text = setting.help.replace("%", "%%")
    option: dict[str, Any] = {"dest": name, "help": text, "default": argparse.SUPPRESS}
    if setting.number or setting.choices:
        option["help"] += f" (default: {told})"
    if setting.number:
        option |= {"type": _parser_of(setting.number), "metavar": setting.metavar}
    elif setting.choices:  # None leaves the choice to the library
        option["choices"] = [choice or "auto" for choice in setting.choices]
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
        defaults = {"": getattr(default, name)}
        for kind, changes in getattr(config, "published", {}).items():
            if name in changes:
                defaults[f" on {kind.capitalize()}'s files"] = changes[name]
        _add_setting(groups[setting.group], name, setting, defaults)
    groups["execution"].add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help=f"folder of {written} (default: runs/{config.model}-<dataset>)",
    )


def _settings_of(
    config: type[Config], args: argparse.Namespace, dataset: NodeDataset | None = None
) -> Any:
    """The settings that were given, and for others the defaults for the dataset."""
    given = {name: value for name, value in vars(args).items() if name in settings(config)}
    if given.get("implementation") == "auto":
        given["implementation"] = None
    _require_implementation(given.get("implementation"))
    published = getattr(config, "published", {}).get(dataset.format, {}) if dataset else {}
    return config(**published | given)


def _add_train_arguments(recipe: Recipe, parser: argparse.ArgumentParser) -> None:
    groups = _groups(parser)
    offline = "hyperedges" if recipe.dataset is HypergraphDataset else "edges"
    files = "an .npz file or a folder in a raw format"
    if recipe.dataset in BY_PATH:
        groups["data"].add_argument("--data", metavar="FILE|FOLDER", help=files)
    else:
        groups["data"].add_argument(
            "--data",
            default="digits",
            metavar="digits|FILE|FOLDER",
            help=f"'digits' (offline: handwritten digits, k-nearest-neighbour {offline}), {files}",
        )
    if (
        issubclass(recipe.config, TrainConfig)
        and "auto" in settings(recipe.config)["feature_normalization"].choices
    ):
        groups["data"].add_argument(
            "--standardize",
            action="store_const",
            const="standardize",
            default=argparse.SUPPRESS,
            dest="feature_normalization",
            help="the same as --feature-normalization standardize",
        )
    if recipe.plain_model is not None:
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
def blame_data() -> Iterator[None]:
    """Names the option in errors about data."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        raise UserError(f"--data: {error}") from error


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

    def __init__(
        self, splits: int, epochs: int, measure: str = "accuracy", what: str = "split"
    ) -> None:
        self._splits, self._epochs, self._measure, self._what = splits, epochs, measure, what
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
        self._best = (
            max(self._best, report.valid_accuracy) if report.epoch else report.valid_accuracy
        )
        split = f"{self._what} {report.split + 1}/{self._splits}"
        best = f"{self._best:.1%}" if self._measure == "accuracy" else f"{self._best:.3f}"
        validation = f"best validation {self._measure} {best}"
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
        **{
            name: getattr(dataset if recipe.structure is None else result.graph, name)
            for name in recipe.sizes
        },
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
        return "/".join("0" if rows is None else str(rows.shape[1]) for rows in x.values())
    return 0 if x is None else x.shape[-1]


def _score_rows(result: TrainResult, runs: dict[str, Run]) -> Iterator[list[str]]:
    """Errors of a regression, else accuracies; each with its deviation."""
    if result.errors is None:
        over = f"accuracy of {len(result.run.test_accuracy)} folds"
        yield [
            over if result.run.over == "folds" else "test accuracy",
            *(
                f"{100 * run.accuracy_mean:.2f} ± {100 * run.accuracy_std:.2f} %"
                for run in runs.values()
            ),
        ]
        if result.run.over == "folds":
            yield ["at epoch", *(str(run.best_epoch[0] + 1) for run in runs.values())]
        return
    for name, label in ERRORS.items():
        values = result.errors[name]
        std = values.std(ddof=1) if len(values) > 1 else 0.0
        yield [f"test {label}", f"{values.mean():.4g} ± {std:.2g}", *[""] * (len(runs) - 1)]


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
    ]
    print(table(rows))
    if result.speedup is not None:
        print(f"\n  An epoch is {result.speedup:.2f} times as fast as in plain JAX.")
    print()


def _told(config: TrainConfig) -> dict[str, Any]:
    """The settings that have an option."""
    return {name: getattr(config, name) for name in settings(type(config))}


def _tell_notes(dataset: NodeDataset, config: Any, settled: Any) -> None:
    """Says on stderr what of the data does not count, or not as given; and what was settled."""
    weighted = getattr(dataset, "edge_weight", None) is not None
    if dataset.repeated:
        weights = ", with the sum of their weights" if weighted else ""
        print(f"jax-gnn: {dataset.repeated} repeated edges count once{weights}", file=sys.stderr)
    if dataset.unused:
        print(f"jax-gnn: not used: {', '.join(dataset.unused)}", file=sys.stderr)
    if weighted and not getattr(config, "edge_weight", False):
        takes = "--edge-weight uses them" if hasattr(config, "edge_weight") else "none are taken"
        print(f"jax-gnn: weights of edges are not used ({takes})", file=sys.stderr)
    if config.feature_normalization == "auto":
        kind = settled.feature_normalization
        print(f"jax-gnn: --feature-normalization auto is {kind} here", file=sys.stderr)


def _fits(task: str, source: str) -> bool:
    """Whether data are of a task that the same models have."""
    load = {"node": RECIPES["gcn"].load, "graph": RECIPES["gcn-graph"].load}[task]
    with contextlib.suppress(ImportError, OSError, ValueError):
        return bool(load(source))
    return False


def _run_train(recipe: Recipe, args: argparse.Namespace) -> int:
    require("training", TRAIN_EXTRA)
    with blame_data():
        try:
            dataset = recipe.load(args.data)
        except ValueError as error:
            other = {GraphDataset: "graph", GraphsDataset: "node"}.get(recipe.dataset)
            if other is None or not _fits(other, args.data):
                raise
            raise ValueError(f"{args.data} is for --task {other}") from error
    config = _settings_of(recipe.config, args, dataset)
    with blame_data():
        check_dataset(dataset, config)
    folder = args.output or Path("runs") / f"{config.model}-{dataset.name}"
    _make_folder(folder)
    runs = getattr(config, "folds", 0) or config.splits
    measure = "R2" if dataset.regresses else "accuracy"
    what = "fold" if getattr(config, "folds", 0) else "split"
    with _Progress(runs, config.epochs, measure, what) as progress:
        baseline = not getattr(args, "no_baseline", True)
        result = train(dataset, config, baseline=baseline, on_epoch=progress)
    _tell_notes(dataset, config, result.trained.config)

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
                "config": _told(result.trained.config),
                "versions": versions(),
                "devices": devices(),
                "measure": measure,
                "jax_gnn": _run_summary(result.run),
                "test_errors": result.errors
                and {name: values.tolist() for name, values in result.errors.items()},
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
    what = {"folds": "fold", "seeds": "seed"}.get(result.run.over, "split")
    score = f"test accuracy {100 * result.run.best_test_accuracy[split]:.2f} %"
    if result.run.over == "folds":
        score = f"its best accuracy {100 * result.run.valid_accuracy[split].max():.2f} %"
    if result.errors is not None:
        score = f"test MAE {result.errors['mae'][split]:.4g}"
    of_run = f"of {what} {split + 1}, " if runs > 1 else ""
    rows = [
        ["checkpoint", str(checkpoint), f"({of_run}{score}; loaded again: same predictions)"],
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
    "gin-graph": ("--data MUTAG.txt --folds 10", "--data PROTEINS --folds 10 --batch-size 128"),
    "gcn-graph": ("--data PROTEINS --folds 10",),
    "sage-graph": ("--data PROTEINS --aggregation max",),
    "gat-graph": ("--data ogbg_molesol",),
    "sage": ("--data cora.npz --aggregation max",),
    "gat": ("--data planetoid/ind.cora.x",),
    "gatv2": ("--data cora.npz --heads 4 --share-weights",),
    "transformer": ("--data cora.npz --gated",),
    "rgcn": (
        "--data aifb.npz",
        "--data rdf/mutag --bases 30 --weight-decay 5e-4",
        "--data dblp.npz --features native --hidden-features 64 --dropout 0.5",
    ),
    "rgat": ("--data dblp.npz", "--data aifb.npz --features none --bases 10"),
    "hgt": ("--data dblp.npz", "--data imdb_hgb.npz --heads 4"),
    "gcn-link": ("", "--data cora.npz", "--data planetoid/ind.cora.x --variational"),
    "sage-link": ("", "--data cora.npz --aggregation max"),
    "gat-link": ("", "--data cora.npz --heads 8"),
    "rgcn-link": ("--data fb15k237.npz", "--data wn18rr --decoder complex"),
    "compgcn-link": ("--data fb15k237.npz", "--data wn18rr --decoder complex"),
    "unigcnii": ("--data cora_cocitation.npz --splits 20 --layers 8",),
    "allsettransformer": ("--data cora_cocitation.npz --splits 20 --heads 8",),
}


class _ModelParser(argparse.ArgumentParser):
    """Of a model's command, which takes no argument without an option's name."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        wanted = f"{self.prog} --data {rest[0] if rest else 'FILE|FOLDER'}"
        if rest and rest[0].startswith("-"):
            option = rest[0].partition("=")[0]
            starts = {name: [name[: len(option) + 1]] for name in self._option_string_actions}
            near = [
                k for k, start in starts.items() if difflib.get_close_matches(option, start, 1, 0.8)
            ]
            close = f"; close are {', '.join(near)}" if near else f"; see {self.prog} --help"
            self.exit(2, f"jax-gnn: error: {self.prog} has no option {option}{close}\n")
        if rest:
            self.exit(2, f"jax-gnn: error: {rest[0]} has no option; for data it is: {wanted}\n")
        if found.data is None:
            self.exit(2, f"jax-gnn: error: --data is needed: {wanted}\n")
        return found, rest


class _ByTask(argparse._SubParsersAction):
    """Takes ``MODEL --task TASK`` for the command ``MODEL-TASK``, or of nodes ``MODEL``."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        model, *rest = values
        tasks = [name for name in TASKS if f"{model}-{name}" in self.choices]
        tasks = ["node"] * (model in RECIPES) + tasks
        if tasks:
            option = argparse.ArgumentParser(prog=f"{parser.prog} {model}", add_help=False)
            option.add_argument("--task", choices=tasks, default=tasks[0])
            found, rest = option.parse_known_args(rest)
            model = model if found.task == "node" else f"{model}-{found.task}"
        super().__call__(parser, namespace, [model, *rest], option_string)


def add_train(commands: Commands) -> None:
    """Adds ``train``, with a command for each model."""
    parser = commands.add_parser("train", help="train a model", description="Train a model.")
    models: Any = parser.add_subparsers(
        metavar="WHAT", required=True, parser_class=_ModelParser, action=_ByTask
    )
    for recipe in RECIPES.values():
        _add_model(models, recipe)
    for link_recipe in LINK_RECIPES.values():
        _add_links(models, link_recipe)
    for name, parser in [*models.choices.items()]:
        parser.prog = parser.prog.replace(name, spelled(name))
        models.choices.setdefault(name.partition("-link")[0], parser)


def _add_model(models: Commands, recipe: Recipe) -> None:
    name = recipe.config.model
    examples = "\n  ".join(
        f"jax-gnn train {spelled(name)} {line}".rstrip()
        for line in ([] if recipe.dataset in BY_PATH else [""]) + [*EXAMPLES.get(name, ())]
    )
    of = recipe.dataset.example
    other = f"{name}-graph"
    parser = add_command(
        models,
        name,
        help=f"a {recipe.title} for {of} classification or regression",
        description=f"Trains a {recipe.title}\nand reports the test accuracy at each split's best "
        "validation epoch, or errors where labels are\nnumbers"
        + (", beside the same training in plain JAX" if recipe.plain_model else "")
        + ". Writes a checkpoint of the\nbest model, a plot of the curves and results.json."
        + (" For many graphs with a label each: --task graph." if other in RECIPES else "")
        + f"\n\nexamples:\n  {examples}",
        run=functools.partial(_run_train, recipe),
    )
    _add_train_arguments(recipe, parser)


def _add_links(models: Commands, recipe: LinkRecipe) -> None:
    name = recipe.config.model
    facts = recipe.dataset is RelationalDataset
    command = f"jax-gnn train {spelled(name)}"
    examples = "\n  ".join(f"{command} {line}".rstrip() for line in EXAMPLES[name])
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


def percent(metrics: dict[str, float]) -> list[str]:
    """Cells of a table."""
    return [f"{100 * metrics[name]:.2f} %" for name in METRICS if name in metrics]


def metric_names(metrics: dict[str, float]) -> list[str]:
    """Their heads."""
    return [text for name, text in METRICS.items() if name in metrics]


def _run_links(recipe: LinkRecipe, args: argparse.Namespace) -> int:
    require("training", TRAIN_EXTRA)
    config = _settings_of(recipe.config, args)
    with blame_data():
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
        ["", *metric_names(result.test), ""],
        ["validation", *percent(result.valid[result.best]), best],
        ["test", *percent(result.test), ""],
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
