"""``jax-gnn data``: contents of a source of data, and the models that take it."""

from __future__ import annotations

import argparse
import textwrap
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flax_layers.training.data import check_dataset, num_outputs
from flax_layers.training.link_models import LINK_RECIPES, LinkRecipe
from flax_layers.training.link_tasks import PARTS, check_links
from flax_layers.training.links import TrainedLinks
from flax_layers.training.models import RECIPES, Recipe, command_name
from flax_layers.training.trained import TrainedModel
from jax_gnn.cli import Commands, add_command, table
from jax_gnn.datasets import (
    GraphDataset,
    GraphsDataset,
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
    known_formats,
    load_any,
)

# Models of tables whose terms of a node's own features keep them above a regression on these.
_FIRST: dict[type, str] = {
    GraphDataset: "sage",
    HypergraphDataset: "unigcnii",
    GraphsDataset: "gin --task graph",
    RelationalDataset: "rgcn",
}
_ROLES = {
    "src": "edges with the id of the source",
    "dst": "edges with the id of the destination",
    "node": "nodes with their ids",
    "label": "nodes with their classes",
    "target": "nodes with numbers to regress on",
    "time": "edges, nodes or both with times",
    "weight": "edges with their weights",
}


def load_for(recipe: Recipe | LinkRecipe, args: argparse.Namespace) -> NodeDataset:
    """Load the dataset of a model; errors for other kinds of data say which commands take them."""
    source: str = args.data
    load: Callable[..., NodeDataset] = recipe.load
    try:
        return load(source, **_table_options(args))
    except ValueError as error:
        # If the source can be read as another kind of data, the error names what takes it.
        try:
            kind = type(load_any(source, **_table_options(args))[0])
        except ValueError as problem:
            # A damaged file of another kind of data says more than that this kind is unknown.
            unknown = "is of no known format"
            says_more = unknown in str(error) and unknown not in str(problem)
            raise (problem if says_more else error) from None
        if kind is recipe.dataset:
            raise
        model, _, task = recipe.config.model.partition("-")
        tasks: dict[type, str] = {GraphDataset: "node", GraphsDataset: "graph"}
        if recipe.dataset in tasks and kind in tasks and task != "link":
            raise ValueError(f"{source} is for --task {tasks[kind]}") from error
        raise ValueError(
            f"{source} holds a {kind.__name__}, which {model} does not take; jax-gnn data {source} "
            "lists the models that do"
        ) from error


def load_to_predict(trained: TrainedModel | TrainedLinks, source: str) -> NodeDataset:
    """Load data to predict on; columns of a table become the features of the training."""
    recipe = LINK_RECIPES.get(trained.config.model) or RECIPES[trained.config.model]
    load: Callable[..., NodeDataset] = recipe.load
    table = trained.numbering.table if trained.numbering else None
    dataset = load(source, recipe=table) if table else load(source)
    for notice in dataset.notices:
        warnings.warn(notice, stacklevel=2)
    return dataset


def add_table_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of how columns of tables are read."""
    group.add_argument(
        "--fill-missing",
        choices=("mean", "median", "zero", "indicator"),
        help="for tables: what takes the place of missing numbers; indicator is the mean, and a "
        "feature that says which were missing (default: mean)",
    )
    group.add_argument(
        "--text",
        choices=("drop", "hash"),
        help="for tables: leave columns of free text out, or take their words by hash (default: "
        "drop)",
    )
    group.add_argument(
        "--ignore",
        "--drop",
        action="append",
        metavar="COLUMN",
        help="for tables: leave a column of nodes out; may be repeated",
    )
    for role, text in _ROLES.items():
        flags = [f"--{role}", *["--id"] * (role == "node")]
        group.add_argument(*flags, metavar="COLUMN", help=f"for tables: the column of {text}")


def _table_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_table_options` that were used."""
    names = "fill_missing", "text", "ignore", *_ROLES
    options = {name: getattr(args, name, None) for name in names}
    return {name: value for name, value in options.items() if value is not None}


def describe(dataset: NodeDataset) -> Iterator[list[str]]:
    """Yield rows of a table: contents, models that take the data, and what others lack in it."""
    recipes = [recipe for recipe in RECIPES.values() if isinstance(dataset, recipe.dataset)]
    yield ["data", f"{dataset.name} ({type(dataset).__name__})"]
    for size in recipes[0].sizes:
        yield [size.removeprefix("num_"), f"{getattr(dataset, size):,}"]
    by_type = getattr(dataset, "x_by_type", None) or {}
    widths = [f"{x.shape[1]:,} of {name}" for name, x in by_type.items()]
    names = textwrap.shorten(", ".join(dataset.feature_names or ()), 100, placeholder=" …")
    yield ["features", ", ".join(widths) or f"{dataset.num_features:,}{': ' * bool(names)}{names}"]
    labelled = np.count_nonzero(dataset.has_label())
    kind = "numbers to regress on" if dataset.regresses else "classes"
    yield ["labels", f"{num_outputs(dataset):,} {kind}, {labelled:,} labelled {dataset.example}s"]
    if getattr(dataset, "edge_weight", None) is not None:
        yield ["edge weights", "used with --edge-weight"]
    if (features := getattr(dataset, "edge_features", None)) is not None:
        yield ["edge features", f"{features.shape[1]:,}, used by gine and gatedgcn"]
    if getattr(dataset, "edge_time", None) is not None:
        uses = ["--task link, which splits edges by them"] * isinstance(dataset, GraphDataset)
        uses += ["--batch-size with --edge-time"] * (dataset.node_time is not None)
        yield ["edge times", f"used by {'; by '.join(uses)}" if uses else "not used"]
    if dataset.node_time is not None:
        yield [
            f"{dataset.example} times",
            "split the data, unless --split or its own says otherwise",
        ]
    for i, (name, text) in enumerate(dataset.columns):
        yield ["" if i else "columns", f"{name or '(no name)'}: {text}"]
    for notice in dataset.notices:
        yield ["notice", notice]
    if dataset.repeated:
        yield ["repeated", f"{dataset.repeated:,}, which count once"]
    if dataset.unused and not dataset.columns:
        yield ["not used", ", ".join(dataset.unused)]
    if (split := dataset.published_split) is not None:
        sizes = map(len, (split.train, split.valid, split.test))
        text = "{:,} training, {:,} validation, {:,} test".format(*sizes)
        yield ["split", f"{text} {dataset.example}s"]
    if isinstance(dataset, RelationalDataset):
        edges = {part: getattr(dataset, f"{part}_edges") for part in PARTS}
        parts = [f"{len(ids):,} {part}" for part, ids in edges.items() if ids is not None]
        yield ["split of edges", ", ".join(parts) or "none"]
    # Models are listed by obstacle; those that can be trained have none.
    models: dict[str, list[str]] = {}
    takers: list[Recipe | LinkRecipe] = [*recipes, *LINK_RECIPES.values()]
    for taker in (taker for taker in takers if isinstance(dataset, taker.dataset)):
        obstacle = _obstacle(taker, dataset)
        models.setdefault(obstacle, []).append(command_name(taker.config.model))
    first = _FIRST[type(dataset)] if dataset.columns else ""
    if first in models.get("", ()):
        yield ["start with", f"jax-gnn train {first} --data ..."]
    for obstacle, commands in sorted(models.items()):
        listed = ", ".join(commands)
        yield ["lacking", f"{obstacle} ({listed})"] if obstacle else ["models", listed]


def _obstacle(recipe: Recipe | LinkRecipe, dataset: NodeDataset) -> str:
    """Return the reason why a model cannot be trained on a dataset by default settings, or ""."""
    try:
        if isinstance(recipe, Recipe):
            check_dataset(dataset, recipe.config())
        else:
            check_links(dataset, recipe.config())
    except ValueError as error:
        return str(error)
    return ""


def _run_data(args: argparse.Namespace) -> int:
    datasets = load_any(args.source, **_table_options(args))
    print("\n\n".join(table([*describe(dataset)]) for dataset in datasets))
    return 0


def add_data(commands: Commands) -> None:
    """Add ``data``."""
    parser = add_command(
        commands,
        "data",
        help="say what a file or folder of data holds, and which models take it",
        description="Says what a file or folder of data holds, which models jax-gnn train can "
        "train on it\nwith their default settings, and what it lacks for others.\n\n"
        "examples:\n"
        "  jax-gnn data planetoid/ind.cora.x\n"
        "  jax-gnn data FOLDER     where nodes.csv and edges.csv are: column by column\n"
        "  jax-gnn data FOLDER --fill-missing median --ignore postcode --text hash\n\n"
        "known are:\n"
        + "\n".join(f"  {format:38} {origin}" for format, origin in known_formats().items()),
        run=_run_data,
    )
    parser.add_argument("source", metavar="FILE|FOLDER", help="the data, or 'digits'")
    add_table_options(parser.add_argument_group("tables"))
