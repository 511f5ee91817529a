"""Options of the command ``jax-gnn train``: those of the settings, and what they come to."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jax
import numpy as np

from flax_layers.training.config import Config, Number, Setting, settings
from flax_layers.training.config.settings import COUNT
from jax_gnn.cli import UserError
from jax_gnn.datasets import (
    NodeDataset,
)
from jax_gnn.extend import Implementation, status
from jax_gnn.sharding import partition

METHODS: tuple[str, ...] = get_args(get_type_hints(partition)["method"])
TRAIN_EXTRA = ("matplotlib", "optax", "orbax", "sklearn", "tqdm")


def _parser_of(number: Number) -> Callable[[str], Any]:
    """Returns an argparse type that accepts a range of numbers."""

    def parse(text: str) -> Any:
        try:
            value = number.kind(text)
        except ValueError:
            value = math.nan
        if not number.accept(value):
            raise argparse.ArgumentTypeError(f"expected {number.expected}, got {text!r}")
        return value

    return parse


def _shown(value: Any, setting: Setting) -> Any:
    """A default, as the help tells it."""
    if setting.choices:
        return value or "auto"
    if isinstance(value, tuple):
        value = ",".join(map(str, value)) or None
    return "none" if value is None else value


def _add_setting(
    group: argparse._ArgumentGroup, name: str, setting: Setting, defaults: dict[str, Any]
) -> None:
    """Adds an option, whose value is there only if it is given; defaults are for the help."""
    told = "; ".join(f"{_shown(value, setting)}{where}" for where, value in defaults.items())
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


def groups_of(parser: argparse.ArgumentParser) -> dict[str, argparse._ArgumentGroup]:
    """The headings of a command's help."""
    return {
        name: parser.add_argument_group(name) for name in ("data", "model", "training", "execution")
    }


def add_settings(
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
    groups["execution"].add_argument(
        "--overwrite",
        action="store_true",
        help="replace the results of an earlier run there, and the state of an interrupted one",
    )
    groups["execution"].add_argument(
        "--resume",
        action="store_true",
        help="go on with an interrupted run in the output folder, to the same results",
    )


def add_devices(parser: Any) -> None:
    """The options of how many devices share a graph, and which nodes each has."""
    parser.add_argument(
        "--devices",
        type=_parser_of(COUNT),
        default=1,
        metavar="N",
        help="how many share the graph, each with a part of it",
    )
    parser.add_argument(
        "--partition",
        metavar="METHOD|FILE",
        help=f"with --devices: which nodes each has, by one of {', '.join(METHODS)}, or by what "
        "jax-gnn partition wrote (default: stream)",
    )


def method_of(args: argparse.Namespace, dataset: NodeDataset) -> Any:
    """What `add_devices` came to, as `jax_gnn.sharding.shard_graph` has it: a word, or parts."""
    if args.partition is None:
        return "stream"
    if args.devices == 1:
        raise UserError(f"--partition {args.partition} needs --devices, for more than one")
    path = Path(args.partition)
    if args.partition in METHODS:
        return args.partition
    if path.suffix != ".npz":
        raise UserError(
            f"--partition: expected one of {', '.join(METHODS)}, or an .npz file, got "
            f"{args.partition!r}"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            parts, num_parts = file["parts"], int(file["num_parts"])
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"--partition: {path} is nothing that jax-gnn partition wrote") from error
    if parts.shape != (dataset.num_nodes,):
        raise UserError(
            f"--partition: {path} is of {parts.size} nodes, {dataset.name} has {dataset.num_nodes}"
        )
    if num_parts != args.devices:
        raise UserError(f"--partition: {path} has {num_parts} parts, --devices is {args.devices}")
    return parts


def settings_of(
    config: type[Config], args: argparse.Namespace, dataset: NodeDataset | None = None
) -> Any:
    """The settings that were given, and for others the defaults for the dataset."""
    given = {name: value for name, value in vars(args).items() if name in settings(config)}
    if given.get("implementation") == "auto":
        given["implementation"] = None
    _require_implementation(given.get("implementation"))
    published = getattr(config, "published", {}).get(dataset.format, {}) if dataset else {}
    return config(**published | given)


def require(purpose: str, packages: Iterable[str]) -> None:
    """Says which packages of the extra "train" are missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        packages = ", ".join(missing)
        raise UserError(f"{purpose} needs {packages}; run: pip install 'jax-gnn-kernels[train]'")


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


def told(config: Config) -> dict[str, Any]:
    """The settings that have an option."""
    return {name: getattr(config, name) for name in settings(type(config))}


def tell_data(dataset: Any, config: Any, settled: Any) -> None:
    """Says on stderr what columns were taken for, what is not used, what "auto" has become."""
    if dataset.columns:
        print(f"jax-gnn: columns: {'; '.join(dataset.columns)}", file=sys.stderr)
    if dataset.unused:
        print(f"jax-gnn: not used: {', '.join(dataset.unused)}", file=sys.stderr)
    if getattr(config, "feature_normalization", "none") == "auto":
        kind = settled.feature_normalization
        print(f"jax-gnn: --feature-normalization auto is {kind} here", file=sys.stderr)
