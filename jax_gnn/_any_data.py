"""Data of any kind, for commands that are given a file and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_gnn.datasets import NodeDataset

KNOWN = "; known are "  # before the list of formats in an error of a loader


def _loaders() -> tuple[Callable[[str], NodeDataset], ...]:
    # With scipy, which layers do not need: `jax_gnn.extend` has this module for commands.
    from jax_gnn.datasets import load_graph, load_graphs, load_hypergraph, load_relational

    return load_hypergraph, load_graph, load_graphs, load_relational


def load_any(source: str) -> list[NodeDataset]:
    """The datasets that a source is: a file may be one for several loaders.

    Raises:
        ValueError: It is none, or does not exist.
    """
    found: list[NodeDataset] = []
    errors = []
    for load in _loaders():
        try:
            found.append(load(source))
        except (ImportError, OSError, ValueError) as error:
            errors.append(str(error))
    if not found:
        told = [text for text in errors if KNOWN not in text]
        told = [text for text in told if ": lacks " not in text] or told  # all that is needed
        raise ValueError("; ".join(dict.fromkeys(told)) or _unknown(source, errors))
    return found


def known_formats() -> dict[str, str]:
    """What is known, and where it is told of, over all loaders; as these say it of no file."""
    known: dict[str, str] = {}
    for load in _loaders():
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
    words = {word: what for what in known_formats() for word in what.split() if "." in word}
    near = [words[word] for name in names for word in get_close_matches(name, words, 1, 0.5)]
    nearest = f"; nearest is {near[0]}" if near else ""
    return f"{problem}{nearest}; jax-gnn data --help lists what is known"
