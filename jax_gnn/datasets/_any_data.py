"""Loading of data whose kind is unknown, for commands that are given only a path."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from jax_gnn.datasets._dataset import NodeDataset
from jax_gnn.datasets._layouts import SUFFIXES
from jax_gnn.datasets._load import load_graph, load_graphs, load_hypergraph, load_relational

KNOWN = "; known are "  # precedes the list of formats in the error of a loader
LOADERS: tuple[Callable[..., NodeDataset], ...] = (
    load_hypergraph,
    load_graph,
    load_graphs,
    load_relational,
)


def load_any(source: str, **options: Any) -> list[NodeDataset]:
    """Load a source by each loader that can read it; several loaders may read one file.

    Options are those of :func:`load_csv`, for tables.

    Raises:
        ValueError: No loader can read the source, or it does not exist.
    """
    datasets: list[NodeDataset] = []
    errors = []
    for load in LOADERS:
        try:
            datasets.append(load(source, **options))
        except (ImportError, OSError, ValueError) as error:
            errors.append(str(error))
    if not datasets:
        # Loaders that recognised the format say more than those that know none such, and the
        # former more than those that merely miss an array.
        messages = [text for text in errors if KNOWN not in text]
        messages = [text for text in messages if ": lacks " not in text] or messages
        raise ValueError("; ".join(dict.fromkeys(messages)) or _unknown(source, errors))
    return datasets


def known_formats() -> dict[str, str]:
    """Map each format of any loader to its description, as the loaders' errors list them."""
    formats: dict[str, str] = {}
    for load in LOADERS:
        try:
            load("no/such/data")
        except FileNotFoundError as error:
            for line in str(error).partition(KNOWN)[2].split("; "):
                name, _, description = line.partition(": ")
                formats.setdefault(name, description)
    return formats


def _unknown(source: str, errors: list[str]) -> str:
    """Return the error for a source of no known format, with the format of the nearest names."""
    problem = errors[0].partition(KNOWN)[0]
    path = Path(source)
    names = [file.name for file in path.iterdir()] if path.is_dir() else [path.name]
    words = {
        word: name for name in reversed(known_formats()) for word in name.split() if "." in word
    }
    # Tables of other names: their suffixes alone make them near.
    stems = {word.partition(".")[0] for word in words}
    tables = [name for name in names if name.partition(".")[2] in SUFFIXES]
    tables = [n for n in tables if not get_close_matches(n.partition(".")[0], stems, 1, 0.7)]
    names = [name for name in names if name not in tables]
    near = [words[word] for name in names for word in get_close_matches(name, words, 1, 0.5)]
    nearest = f"; nearest is {near[0]}" if near else ""
    if tables and not near:
        nearest = "; tables of a folder are named nodes.csv and edges.csv, triples train.txt"
    return f"{problem}{nearest}; jax-gnn data --help lists what is known"
