"""``jax-gnn data``: what a source of data holds, what it lacks, and which models take it."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from flax_layers.training.data import check_dataset, num_outputs
from flax_layers.training.links import LINK_RECIPES, PARTS, LinkRecipe, check_links
from flax_layers.training.models import RECIPES, Recipe, spelled
from jax_gnn.cli import Commands, UserError, add_command, table
from jax_gnn.datasets import GraphDataset, GraphsDataset, NodeDataset, RelationalDataset

KNOWN = "; known are "  # before the list of formats in an error of a loader


def read_all(source: str) -> list[NodeDataset]:
    """The datasets that a source is: a file may be one for several loaders.

    Raises:
        UserError: It is none, or does not exist.
    """
    found, errors = [], []
    for load in dict.fromkeys(recipe.load for recipe in RECIPES.values()):
        try:
            found.append(load(source))
        except (ImportError, OSError, ValueError) as error:
            errors.append(str(error))
    if not found:
        told = [text for text in errors if KNOWN not in text]
        told = [text for text in told if ": lacks " not in text] or told  # all that is needed
        raise UserError("; ".join(dict.fromkeys(told)) or _unknown(source, errors))
    return found


def load_for(recipe: Recipe | LinkRecipe, source: str) -> NodeDataset:
    """The dataset that a model is trained on; of another kind of data says what takes it."""
    try:
        return recipe.load(source)
    except ValueError as error:
        try:
            kind = type(read_all(source)[0])
        except UserError:
            raise error from None
        if kind is recipe.dataset:
            raise
        model, _, task = recipe.config.model.partition("-")
        tasks = {GraphDataset: "node", GraphsDataset: "graph"}
        if recipe.dataset in tasks and kind in tasks and task != "link":
            raise ValueError(f"{source} is for --task {tasks[kind]}") from error
        raise ValueError(
            f"{source} holds a {kind.__name__}, which {model} does not take; jax-gnn data {source} "
            "lists the models that do"
        ) from error


def formats() -> dict[str, str]:
    """What is known, and where it is told of, over all loaders; as these say it of no file."""
    known: dict[str, str] = {}
    for load in dict.fromkeys(recipe.load for recipe in RECIPES.values()):
        try:
            load("no/such/data")
        except FileNotFoundError as error:
            for each in str(error).partition(KNOWN)[2].split("; "):
                what, _, whose = each.partition(": ")
                known.setdefault(what, whose)
    return known


def _unknown(source: str, errors: list[str]) -> str:
    """What is said of a source of no format: the nearest one, by the names of its files."""
    problem = errors[0].partition(KNOWN)[0]
    path = Path(source)
    names = [file.name for file in path.iterdir()] if path.is_dir() else [path.name]
    words = {word: what for what in formats() for word in what.split() if "." in word}
    near = [words[word] for name in names for word in get_close_matches(name, words, 1, 0.5)]
    nearest = f"; nearest is {near[0]}" if near else ""
    return f"{problem}{nearest}; jax-gnn data --help lists what is known"


def describe(dataset: NodeDataset) -> Iterator[list[str]]:
    """Rows of a table: what there is, the models that take it, and what others want."""
    fitting = [recipe for recipe in RECIPES.values() if isinstance(dataset, recipe.dataset)]
    kind = type(dataset).__name__
    yield ["data", f"{dataset.name} ({kind})"]
    for size in fitting[0].sizes:
        yield [size.removeprefix("num_"), f"{getattr(dataset, size):,}"]
    by_type = getattr(dataset, "x_by_type", None) or {}
    widths = [f"{x.shape[1]:,} of {name}" for name, x in by_type.items()]
    told = textwrap.shorten(", ".join(dataset.feature_names or ()), 100, placeholder=" …")
    yield ["features", ", ".join(widths) or f"{dataset.num_features:,}{': ' * bool(told)}{told}"]
    labelled = np.count_nonzero(dataset.has_label())
    what = "numbers to regress on" if dataset.regresses else "classes"
    count = num_outputs(dataset)
    yield ["labels", f"{count:,} {what}, {labelled:,} labelled {dataset.example}s"]
    if getattr(dataset, "edge_weight", None) is not None:
        yield ["edge weights", "used with --edge-weight"]
    if dataset.columns:
        yield ["columns", "; ".join(dataset.columns)]
    if dataset.repeated:
        yield ["repeated", f"{dataset.repeated:,}, which count once"]
    if dataset.unused:
        yield ["not used", ", ".join(dataset.unused)]
    split = dataset.published_split
    if split is not None:
        sizes = map(len, (split.train, split.valid, split.test))
        told = "{:,} training, {:,} validation, {:,} test".format(*sizes)
        yield ["split", f"{told} {dataset.example}s"]
    checks: list[tuple[str, Callable[..., None], Any]] = [
        (recipe.config.model, check_dataset, (dataset, recipe.config())) for recipe in fitting
    ]
    if isinstance(dataset, RelationalDataset):
        edges = {part: getattr(dataset, f"{part}_edges") for part in PARTS}
        given = [f"{len(ids):,} {part}" for part, ids in edges.items() if ids is not None]
        yield ["split of edges", ", ".join(given) or "none"]
    checks += [
        (name, check_links, (dataset, recipe.config()))
        for name, recipe in LINK_RECIPES.items()
        if isinstance(dataset, recipe.dataset)
    ]
    models: dict[str, list[str]] = {}
    for model, check, arguments in checks:
        try:
            check(*arguments)
            lacking = ""
        except ValueError as error:
            lacking = str(error)
        models.setdefault(lacking, []).append(model)
    for lacking, names in sorted(models.items()):
        listed = ", ".join(map(spelled, names))
        yield ["lacking", f"{lacking} ({listed})"] if lacking else ["models", listed]


def _run_data(args: argparse.Namespace) -> int:
    print("\n\n".join(table([*describe(dataset)]) for dataset in read_all(args.source)))
    return 0


def add_data(commands: Commands) -> None:
    """Adds ``data``."""
    parser = add_command(
        commands,
        "data",
        help="say what a file or folder of data holds, and which models take it",
        description="Says what a file or folder of data holds, which models jax-gnn train can "
        "train on it\nwith their default settings, and what it lacks for others.\n\n"
        "examples:\n"
        "  jax-gnn data planetoid/ind.cora.x\n"
        "  jax-gnn data FOLDER     where nodes.csv and edges.csv are\n\n"
        "known are:\n" + "\n".join(f"  {what:38} {whose}" for what, whose in formats().items()),
        run=_run_data,
    )
    parser.add_argument("source", metavar="FILE|FOLDER", help="the data, or 'digits'")
