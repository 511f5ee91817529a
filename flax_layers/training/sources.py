"""``jax-gnn data``: what a source of data holds, what it lacks, and which models take it."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flax_layers.training.data import check_dataset, num_outputs
from flax_layers.training.links import LINK_RECIPES, PARTS, LinkRecipe, check_links
from flax_layers.training.models import RECIPES, Recipe, spelled
from jax_gnn.cli import Commands, add_command, table
from jax_gnn.datasets import GraphDataset, GraphsDataset, NodeDataset, RelationalDataset
from jax_gnn.extend import known_formats, load_any


def load_for(recipe: Recipe | LinkRecipe, source: str) -> NodeDataset:
    """The dataset that a model is trained on; of another kind of data says what takes it."""
    try:
        return recipe.load(source)
    except ValueError as error:
        try:
            kind = type(load_any(source)[0])
        except ValueError:
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
    print("\n\n".join(table([*describe(dataset)]) for dataset in load_any(args.source)))
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
        "known are:\n"
        + "\n".join(f"  {what:38} {whose}" for what, whose in known_formats().items()),
        run=_run_data,
    )
    parser.add_argument("source", metavar="FILE|FOLDER", help="the data, or 'digits'")
