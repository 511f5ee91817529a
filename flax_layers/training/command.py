"""``jax-gnn train``: `jax_gnn.cli` finds it by its entry point."""

from __future__ import annotations

import argparse
import difflib
import functools
from typing import Any

from flax_layers.training import (
    LINK_RECIPES,
    RECIPES,
    LinkRecipe,
    Recipe,
)
from flax_layers.training.config import TrainConfig, settings
from flax_layers.training.models import TASKS, spelled
from flax_layers.training.options import add_devices, add_settings, groups_of
from flax_layers.training.run_links import run_links
from flax_layers.training.run_nodes import run_train
from jax_gnn.cli import Commands, Parser, add_command
from jax_gnn.datasets import (
    GraphsDataset,
    HypergraphDataset,
    RelationalDataset,
)

BY_PATH = GraphsDataset, RelationalDataset  # kinds of data that are not built in

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


class _ModelParser(Parser):
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


def _add_train_arguments(recipe: Recipe, parser: argparse.ArgumentParser) -> None:
    groups = groups_of(parser)
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
    add_settings(recipe.config, groups, "checkpoint, plot and results")
    if recipe.structure is not None:
        add_devices(groups["execution"])


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
        run=functools.partial(run_train, recipe),
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
        run=functools.partial(run_links, recipe),
    )
    groups = groups_of(parser)
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
    add_settings(recipe.config, groups, "checkpoint, plot and results")
