"""``jax-gnn train``: a command for each model, with the options of its settings."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from flax_layers.training.config.settings import settings
from flax_layers.training.link_models import LINK_RECIPES, LinkRecipe
from flax_layers.training.models import RECIPES, TASKS, Recipe, command_name
from flax_layers.training.options import add_devices, add_settings, groups_of
from flax_layers.training.processes import initialize
from flax_layers.training.run import run
from flax_layers.training.sources import add_table_options
from jax_gnn.cli import Commands, Parser, add_command
from jax_gnn.datasets import GraphsDataset, HypergraphDataset, RelationalDataset

if TYPE_CHECKING:
    _SubParsersAction = argparse._SubParsersAction[argparse.ArgumentParser]
else:  # generic for type checkers alone
    _SubParsersAction = argparse._SubParsersAction
BY_PATH = GraphsDataset, RelationalDataset  # kinds of data of which none is built in

EXAMPLES = {
    "hgnn": ("--data walmart_trips.npz --features noisy-label --no-baseline",),
    "gcn": ("--data planetoid/ind.cora.x", "--data cora.npz --split random --layers 3"),
    "gin": ("--data cora.npz --learn-eps",),
    "gin-graph": ("--data MUTAG.txt --folds 10", "--data PROTEINS --folds 10 --batch-size 128"),
    "gcn-graph": ("--data PROTEINS --folds 10",),
    "gine-graph": ("--data ogbg_molesol",),
    "gatedgcn-graph": ("--data ogbg_molesol", "--data MUTAG --layers 3"),
    "pna-graph": ("--data PROTEINS --folds 10",),
    "sage-graph": ("--data PROTEINS --reduce max",),
    "gat-graph": ("--data ogbg_molesol",),
    "sage": ("--data cora.npz --reduce max",),
    "gat": ("--data planetoid/ind.cora.x",),
    "gatv2": ("--data cora.npz --heads 4 --share-weights",),
    "gatedgcn": ("--data FOLDER",),
    "transformer": ("--data cora.npz --gated",),
    "rgcn": (
        "--data aifb.npz",
        "--data rdf/mutag --bases 30 --weight-decay 5e-4",
        "--data dblp.npz --features native --hidden-features 64 --dropout 0.5",
    ),
    "rgat": ("--data dblp.npz", "--data aifb.npz --features none --bases 10"),
    "simplehgn": ("--data dblp.npz", "--data imdb_hgb.npz --heads 4"),
    "hgt": ("--data dblp.npz", "--data imdb_hgb.npz --heads 4"),
    "gcn-link": ("", "--data cora.npz", "--data planetoid/ind.cora.x --variational"),
    "sage-link": ("", "--data cora.npz --reduce max"),
    "gat-link": ("", "--data cora.npz --heads 8"),
    "rgcn-link": ("--data fb15k237.npz", "--data wn18rr --decoder complex"),
    "compgcn-link": ("--data fb15k237.npz", "--data wn18rr --decoder complex"),
    "schnet": ("--data md17_aspirin.npz --cutoff 5", "--data frames.xyz --layers 3"),
    "unigcnii": ("--data cora_cocitation.npz --splits 20 --layers 8",),
    "allsettransformer": ("--data cora_cocitation.npz --splits 20 --heads 8",),
}


class _ModelParser(Parser):
    """Parser of a model's command, which takes no argument without an option's name."""

    _words: Sequence[str] = ()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self._words = list(args or ())
        parsed, extra = super().parse_known_args(args, namespace)
        usage = f"{self.prog} --data {extra[0] if extra else 'FILE|FOLDER'}"
        if extra and extra[0].startswith("-"):
            option = extra[0].partition("=")[0]
            # Options are compared up to the length of the word, which may be an abbreviation.
            prefixes = {name: name[: len(option) + 1] for name in self._option_string_actions}
            similar = [
                name
                for name, prefix in prefixes.items()
                if difflib.get_close_matches(option, [prefix], 1, 0.8)
            ]
            hint = f"; close are {', '.join(similar)}" if similar else f"; see {self.prog} --help"
            self.exit(2, f"jax-gnn: error: {self.prog} has no option {option}{hint}\n")
        if extra:
            self.exit(2, f"jax-gnn: error: {extra[0]} has no option; for data it is: {usage}\n")
        if parsed.data is None:
            self.exit(2, f"jax-gnn: error: --data is needed: {usage}\n")
        return parsed, extra

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if status and "--distributed" in self._words:
            # The others wait for a process that never joined; one that leaves ends them.
            with contextlib.suppress(Exception):
                initialize()
        super().exit(status, message)


class _TaskAction(_SubParsersAction):
    """Action that takes ``MODEL --task TASK`` for the command ``MODEL-TASK``, or ``MODEL``."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        # The option is parsed before others, as it chooses their parser.
        model, *words = values
        tasks = ["node"] * (model in RECIPES)
        tasks += [name for name in TASKS if f"{model}-{name}" in self.choices]
        if tasks:
            option = argparse.ArgumentParser(prog=f"{parser.prog} {model}", add_help=False)
            option.add_argument("--task", choices=tasks, default=tasks[0])
            parsed, words = option.parse_known_args(words)
            model = model if parsed.task == "node" else f"{model}-{parsed.task}"
        super().__call__(parser, namespace, [model, *words], option_string)


def add_train(commands: Commands) -> None:
    """Add ``train``, with a command for each model."""
    parser = commands.add_parser("train", help="train a model", description="Train a model.")
    models: Any = parser.add_subparsers(
        metavar="WHAT", required=True, parser_class=_ModelParser, action=_TaskAction
    )
    recipes: list[Recipe | LinkRecipe] = [*RECIPES.values(), *LINK_RECIPES.values()]
    for recipe in recipes:
        _add_model(models, recipe)
    # A command is listed by the name of its model, and found by that of its recipe, too.
    for name in (*RECIPES, *LINK_RECIPES):
        listed = command_name(name).partition(" ")[0]
        model = models.choices[name] = models.choices[name if name in models.choices else listed]
        model.prog = f"{parser.prog} {command_name(name)}"


def _help_of(name: str, text: str) -> str | None:
    """Return the line of a command in the list of models; None if `--task` leads to it."""
    model, _, task = command_name(name).partition(" --task ")
    if task:
        return None if model in RECIPES else text
    tasks = [task for task in TASKS if f"{name}-{task}" in {*RECIPES, *LINK_RECIPES}]
    return f"{text}; also --task {' or '.join(tasks)}" if tasks else text


def _examples(name: str, lines: Sequence[str]) -> str:
    """Return the command with the options of each line, below a heading."""
    command = f"jax-gnn train {command_name(name)}"
    return "\n\nexamples:\n  " + "\n  ".join(f"{command} {line}".rstrip() for line in lines)


def _add_model(models: Commands, recipe: Recipe | LinkRecipe) -> None:
    name, title = recipe.config.model, recipe.config.title
    listed = command_name(name).partition(" ")[0]
    if isinstance(recipe, LinkRecipe):
        relational = recipe.dataset is RelationalDataset
        has_baseline, built_in = False, not relational
        metrics = "filtered mean reciprocal rank" if relational else "AUC, average precision"
        summary = f"a {title} for link prediction"
        description = (
            f"Trains a {title}\nto predict edges, and reports {metrics} and hits "
            "of the\ntest edges at the best validation. Writes a checkpoint of that model, a plot "
            "and results.json."
        )
        examples = EXAMPLES[name]
    else:
        relational = False
        # The digits have no features of edges.
        built_in = recipe.dataset not in BY_PATH and recipe.config.edge_input != "required"
        has_baseline = recipe.structure is not None
        summary = f"a {title} for {recipe.dataset.example} classification or regression"
        compares = ", beside the same layers without kernels" * has_baseline
        tasks = " For many graphs with a label each: --task graph." * (f"{name}-graph" in RECIPES)
        tasks += " For edges: --task link." * (f"{name}-link" in LINK_RECIPES)
        description = (
            f"Trains a {title}\nand reports the test accuracy at each split's best "
            f"validation epoch, or errors where labels are\nnumbers{compares}. Writes a checkpoint "
            f"of the\nbest model, a plot of the curves and results.json.{tasks}"
        )
        examples = ("",) * built_in + EXAMPLES.get(name, ())
    parser = add_command(
        models,
        # Links have the name of the model, unless nodes have it.
        name if listed in RECIPES or isinstance(recipe, Recipe) else listed,
        help=_help_of(name, summary),
        description=description + _examples(name, examples),
        run=functools.partial(run, recipe),
    )
    groups = groups_of(parser)
    files = "an .npz file or a folder in a raw format"
    if built_in:
        edges = "hyperedges" if recipe.dataset is HypergraphDataset else "edges"
        files = f"'digits' (offline: handwritten digits, k-nearest-neighbour {edges}), {files}"
        data: dict[str, Any] = {"default": "digits", "metavar": "digits|FILE|FOLDER"}
    else:
        if relational:
            files = "edges with relations: an .npz file, or a folder with train.txt"
        data = {"metavar": "FILE|FOLDER"}
    groups["data"].add_argument("--data", help=files, **data)
    add_table_options(groups["data"])
    normalization = settings(recipe.config).get("feature_normalization")
    if isinstance(recipe, Recipe) and normalization and "auto" in normalization.choices:
        groups["data"].add_argument(
            "--standardize",
            action="store_const",
            const="standardize",
            default=argparse.SUPPRESS,
            dest="feature_normalization",
            help="the same as --feature-normalization standardize",
        )
    if has_baseline:
        groups["execution"].add_argument(
            "--no-baseline",
            action="store_true",
            help="leave out the same training without kernels, in plain XLA",
        )
    add_settings(recipe.config, groups)
    add_devices(groups["execution"], distributed=True)
