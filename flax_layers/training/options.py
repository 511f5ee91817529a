"""Options of the command ``jax-gnn train``, and the settings that they amount to."""

from __future__ import annotations

import argparse
import importlib.util
import math
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import jax
import numpy as np

from flax_layers.training.config.settings import COUNT, Config, Number, Setting, settings
from flax_layers.training.types import Method
from jax_gnn import shared_library
from jax_gnn.cli import UserError
from jax_gnn.datasets import GraphsDataset, NodeDataset
from jax_gnn.extend import Implementation
from jax_gnn.sharding import partition

METHODS: tuple[str, ...] = get_args(get_type_hints(partition)["method"])
TRAIN_EXTRA = ("matplotlib", "optax", "orbax", "sklearn", "tqdm")

C = TypeVar("C", bound=Config)
Groups = Mapping[str, argparse._ArgumentGroup]
"""Headings of a command's help."""


def _parser_of(number: Number) -> Callable[[str], Any]:
    """Return an argparse type that accepts a range of numbers."""

    def parse(text: str) -> Any:
        try:
            value = number.parse(text)
        except ValueError:
            value = math.nan
        if not number.accept(value):
            raise argparse.ArgumentTypeError(f"expected {number.expected}, got {text!r}")
        return value

    return parse


def _choice(name: str, value: object) -> object:
    """Return a value of a setting of words as the command line has it."""
    return value or ("auto" if name == "implementation" else "none")


def _default_text(name: str, value: object, setting: Setting) -> object:
    """Return a default as the help shows it."""
    if setting.choices:
        return _choice(name, value)
    if isinstance(value, tuple):
        value = ",".join(map(str, value)) or None
    return "none" if value is None else value


def _add_setting(
    group: argparse._ArgumentGroup, name: str, setting: Setting, defaults: Mapping[str, object]
) -> None:
    """Add an option without a default in the namespace.

    Defaults, by the phrase that says where they hold, are for the help.
    """
    if setting.switches:
        switches = group.add_mutually_exclusive_group()
        for word, help in zip(setting.choices[1:], setting.switches, strict=True):
            switches.add_argument(
                f"--{word}",
                action="store_const",
                const=word,
                dest=name,
                default=argparse.SUPPRESS,
                help=help.replace("%", "%%"),
            )
        return
    text = "; ".join(
        f"{_default_text(name, value, setting)}{phrase}" for phrase, value in defaults.items()
    )
    option: dict[str, Any] = {
        "dest": name,
        "help": setting.help.replace("%", "%%"),
        "default": argparse.SUPPRESS,
    }
    if setting.number or setting.choices:
        option["help"] += f" (default: {text})"
    if setting.number:
        option |= {"type": _parser_of(setting.number), "metavar": setting.metavar}
    elif setting.choices:
        option["choices"] = [_choice(name, value) for value in setting.choices]
    else:
        option["action"] = "store_true"
    group.add_argument(setting.flag or "--" + name.replace("_", "-"), **option)


def groups_of(parser: argparse.ArgumentParser) -> Groups:
    """Return the headings of a command's help by name."""
    return {
        name: parser.add_argument_group(name) for name in ("data", "model", "training", "execution")
    }


def add_settings(config: type[Config], groups: Groups) -> None:
    """Add the options of the settings, and of where results go."""
    default = config()
    for name, setting in settings(config).items():
        defaults = {"": getattr(default, name)}
        for kind, changes in getattr(config, "published", {}).items():
            if name in changes:
                of_format = kind if kind == "tables" else f"{kind.capitalize()}'s files"
                defaults[f" on {of_format}"] = changes[name]
        _add_setting(groups[setting.group], name, setting, defaults)
    groups["execution"].add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help=f"folder of checkpoint, plot and results (default: runs/{config.model}-<dataset>)",
    )
    for flag, text in (
        (
            "--overwrite",
            "replace the results of an earlier run there, or the state of an unfinished one",
        ),
        ("--resume", "go on with an interrupted run in the output folder, to the same results"),
    ):
        groups["execution"].add_argument(flag, action="store_true", help=text)


def add_devices(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, distributed: bool = False
) -> None:
    """Add the options of how many devices share a graph, and which nodes each has.

    With `distributed` there is the option of several processes, and `join` sets the default.
    """
    parser.add_argument(
        "--devices",
        type=_parser_of(COUNT),
        default=None if distributed else 1,
        metavar="N",
        help="how many share the graph, each with a part of it, or batches of graphs or nodes"
        + " (default: 1; with --distributed all)" * distributed,
    )
    if distributed:
        parser.add_argument(
            "--distributed",
            action="store_true",
            help="the command runs in each process of a job, such as by srun: all train together "
            "on the devices of all, and see one output folder",
        )
    parser.add_argument(
        "--partition",
        metavar="METHOD|FILE",
        help=f"with --devices: which nodes each has, by one of {', '.join(METHODS)}, or by what "
        "jax-gnn partition wrote (default: auto)",
    )


def method_of(args: argparse.Namespace, dataset: NodeDataset) -> Method:
    """Return the `method` of `jax_gnn.sharding.shard_graph`, from the options of `add_devices`."""
    if args.partition is None:
        return "auto"
    if isinstance(dataset, GraphsDataset):
        raise UserError(
            "--partition is for the nodes of one graph: graphs are dealt out as they are"
        )
    # A word names a method; a file has the part of each node.
    path = Path(args.partition)
    if args.partition in METHODS:
        if args.devices == 1:
            raise UserError(f"--partition {args.partition} needs --devices, for more than one")
        return str(args.partition)
    if path.suffix != ".npz":
        raise UserError(
            f"--partition: expected one of {', '.join(METHODS)}, or an .npz file, got "
            f"{args.partition!r}"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            parts: np.ndarray = file["parts"]
            num_parts = int(file["num_parts"])
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"--partition: {path} is nothing that jax-gnn partition wrote") from error
    if parts.shape != (dataset.num_nodes,):
        raise UserError(
            f"--partition: {path} is of {parts.size} nodes, {dataset.name} has {dataset.num_nodes}"
        )
    if num_parts < args.devices:
        raise UserError(
            f"--partition: {path} has {num_parts} parts, --devices is {args.devices}: it must be "
            f"{num_parts} or less, or the file be made with --parts {args.devices} or more"
        )
    return np.asarray(parts.astype(np.int64) * args.devices // num_parts)  # as in `load_parts`


def settings_of(config: type[C], args: argparse.Namespace, dataset: NodeDataset | None = None) -> C:
    """Return the settings of the command line, and for others the defaults for the dataset."""
    # Options that are absent on the command line have no value in the namespace.
    known = settings(config)
    options = {name: value for name, value in vars(args).items() if name in known}
    for name, value in options.items():
        if None in known[name].choices and value == _choice(name, None):
            options[name] = None
    _require_implementation(options.get("implementation"))
    published = getattr(config, "published", {}).get(dataset.format, {}) if dataset else {}
    return config(**published | options)


def require(purpose: str, packages: Iterable[str]) -> None:
    """Check that packages of the extra "train" are installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"{purpose} needs {', '.join(missing)}; run: pip install 'jax-gnn-kernels[train]'"
        )


def _require_implementation(implementation: Implementation | None) -> None:
    if implementation is None or implementation == "xla":
        return
    # The library's own error says why there are no kernels, and what brings them.
    try:
        shared_library(implementation)
    except ValueError as error:
        raise UserError(f"--implementation {implementation}: {error}") from None
    # JAX calls its backend "gpu", where this library says "cuda".
    backend = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if backend != implementation:
        raise UserError(
            f"--implementation {implementation}: JAX runs on {backend} here; JAX_PLATFORMS="
            f"{implementation} asks for the other"
        )


def option_values(config: Config) -> dict[str, object]:
    """Return the values of the settings that have an option."""
    return {name: getattr(config, name) for name in settings(type(config))}


def print_direction(text: str) -> None:
    """Print on stderr that edges get their reverses: see `settled_direction`."""
    print(f"jax-gnn: {text} (--directed: as they are)", file=sys.stderr)


def print_data_notes(dataset: NodeDataset, config: Config, settled: Config) -> None:
    """Print on stderr the use of columns, notices, unused data, and the choice of "auto"."""
    if dataset.columns:
        brief = (
            f"{name or '(no name)'}: {re.split(', |[;(]', use)[0].rstrip()}"
            for name, use in dataset.columns
        )
        print(f"jax-gnn: columns: {'; '.join(brief)}", file=sys.stderr)
    for notice in dataset.notices:
        print(f"jax-gnn: {notice}", file=sys.stderr)
    if dataset.unused and not dataset.columns:
        print(f"jax-gnn: not used: {', '.join(dataset.unused)}", file=sys.stderr)
    if getattr(config, "feature_normalization", "none") == "auto":
        kind = getattr(settled, "feature_normalization", "none")
        print(f"jax-gnn: --feature-normalization auto is {kind} here", file=sys.stderr)
