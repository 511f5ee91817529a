"""One entry for all formats of hypergraphs, one for those of graphs, one for relational ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from jax_gnn.datasets._check import as_path
from jax_gnn.datasets._csv import load_csv
from jax_gnn.datasets._dataset import (
    GraphDataset,
    GraphsDataset,
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
)
from jax_gnn.datasets._digits import digits, digits_graph
from jax_gnn.datasets._graphs import load_gin, load_ogb_graphs, load_ogb_nodes, load_tu
from jax_gnn.datasets._hgb import load_hgb
from jax_gnn.datasets._hypergcn import load_hypergcn
from jax_gnn.datasets._npz import load_graph_npz, load_npz, load_relational_npz
from jax_gnn.datasets._planetoid import load_planetoid
from jax_gnn.datasets._rdf import load_rdf
from jax_gnn.datasets._text import load_allset, load_cornell
from jax_gnn.datasets._triples import TRIPLES, load_triples

Dataset = TypeVar("Dataset", bound=NodeDataset)


class _Format(NamedTuple, Generic[Dataset]):
    files: tuple[str, ...]  # patterns of the names of its files
    load: Callable[[Path], Dataset]
    what: str
    whose: str


_HYPERGRAPHS = (
    _Format(("*.npz",), load_npz, "NAME.npz", "plain arrays (see load_npz)"),
    _Format(
        ("hypergraph.pickle", "labels.pickle"),
        load_hypergcn,
        "a folder with hypergraph.pickle",
        "HyperGCN (see load_hypergcn)",
    ),
    _Format(
        ("*.content", "*.edges"),
        load_allset,
        "a folder with NAME.content and NAME.edges",
        "AllSet, LEGCN (see load_allset)",
    ),
    _Format(
        ("hyperedges-*.txt", "node-labels-*.txt"),
        load_cornell,
        "a folder with hyperedges-NAME.txt",
        "Cornell (see load_cornell)",
    ),
)
_GRAPHS = (
    _Format(("*.npz",), load_graph_npz, "NAME.npz", "plain arrays (see load_graph_npz)"),
    _Format(
        ("ind.*",), load_planetoid, "a folder with ind.NAME.graph", "Planetoid (see load_planetoid)"
    ),
    _Format(
        ("*nodes.csv", "*edges.csv"),
        load_csv,
        "a folder with nodes.csv and edges.csv",
        "tables (see load_csv)",
    ),
    _Format(
        ("node-label.csv.gz",),
        load_ogb_nodes,
        "a folder with raw/node-label.csv.gz",
        "OGB (see load_ogb_nodes)",
    ),
)
_MANY_GRAPHS = (
    _Format(("*_A.txt",), load_tu, "a folder with NAME_A.txt", "TUDataset (see load_tu)"),
    _Format(
        ("graph-label.csv.gz",),
        load_ogb_graphs,
        "a folder with raw/graph-label.csv.gz",
        "OGB (see load_ogb_graphs)",
    ),
    _Format(("*.txt",), load_gin, "NAME.txt", "the format of GIN's code (see load_gin)"),
)

_RELATIONAL = (
    _Format(("*.npz",), load_relational_npz, "NAME.npz", "plain arrays (see load_relational_npz)"),
    _Format(
        ("*.nt", "*.nt.gz"), load_rdf, "a folder with NAME.nt or NAME.nt.gz", "RDF (see load_rdf)"
    ),
    _Format(("link.dat",), load_hgb, "a folder with link.dat", "HGB (see load_hgb)"),
    _Format(
        tuple(TRIPLES.values()), load_triples, "a folder with train.txt", "facts (see load_triples)"
    ),
)


def load_hypergraph(source: str | os.PathLike[str]) -> HypergraphDataset:
    """Reads a hypergraph dataset, finding out its format by the names of the files.

    Args:
        source: ``"digits"`` (a folder of that name is ``"./digits"``), a ``.npz`` file
            (:func:`load_npz`), a folder with HyperGCN's pickles (:func:`load_hypergcn`), or a
            folder in the format of AllSet (:func:`load_allset`) or the Cornell collection
            (:func:`load_cornell`), or one of the files of the last two.

    Raises:
        FileNotFoundError: there is no such file or folder, or it lacks a part.
        ValueError: the format is unknown or ambiguous, or the contents cannot be read; see the
            format's own function.
        ImportError: ``"digits"`` without scikit-learn.
    """
    return _load(source, digits, _HYPERGRAPHS)


def load_graph(source: str | os.PathLike[str]) -> GraphDataset:
    """Reads a graph dataset, finding out its format by the names of the files.

    Args:
        source: ``"digits"`` (a folder of that name is ``"./digits"``, see :func:`digits_graph`), a
            ``.npz`` file (:func:`load_graph_npz`), or a folder in the format of Planetoid
            (:func:`load_planetoid`) or with two CSV files (:func:`load_csv`), or one of the files.

    Raises:
        FileNotFoundError: there is no such file or folder, or it lacks a part.
        ValueError: the format is unknown or ambiguous, or the contents cannot be read; see the
            format's own function.
        ImportError: ``"digits"`` without scikit-learn.
    """
    return _load(source, digits_graph, _GRAPHS)


def load_graphs(source: str | os.PathLike[str]) -> GraphsDataset:
    """Reads many graphs with a label each, finding out their format by the names of the files.

    Args:
        source: a folder of TUDataset (:func:`load_tu`), a folder of the Open Graph Benchmark
            (:func:`load_ogb_graphs`), or a file in the format of GIN's code (:func:`load_gin`).

    Raises:
        FileNotFoundError: there is no such file or folder, or it lacks a part.
        ValueError: the format is unknown or ambiguous, or the contents cannot be read; see the
            format's own function.
    """
    return _load(source, None, _MANY_GRAPHS)


def load_relational(source: str | os.PathLike[str]) -> RelationalDataset:
    """Reads a dataset of edges with relations, finding out its format by the names of the files.

    Args:
        source: a ``.npz`` file (:func:`load_relational_npz`), a folder with N-Triples or their file
            (:func:`load_rdf`), a folder of the Heterogeneous Graph Benchmark (:func:`load_hgb`), or
            one with facts as text, or one of their files (:func:`load_triples`).

    Raises:
        FileNotFoundError: there is no such file or folder, or it lacks a part.
        ValueError: the format is unknown or ambiguous, or the contents cannot be read; see the
            format's own function.
    """
    return _load(source, None, _RELATIONAL)


def _load(
    source: str | os.PathLike[str],
    offline: Callable[[], Dataset] | None,
    formats: Sequence[_Format[Dataset]],
) -> Dataset:
    rows = [(f.what, f.whose) for f in formats]
    if offline is not None:
        if isinstance(source, str) and source == "digits":
            return offline()
        rows.insert(0, ("digits", "scikit-learn's handwritten digits"))
    known = "known are " + "; ".join(f"{what}: {whose}" for what, whose in rows)
    path = as_path("source", source)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; {known}")
    names = [file.name for file in path.iterdir()] if path.is_dir() else [path.name]
    if (path / "raw").is_dir():  # as OGB has it
        names += [file.name for file in (path / "raw").iterdir()]
    found = [
        entry
        for entry in formats
        if any(fnmatchcase(name, pattern) for name in names for pattern in entry.files)
    ]
    if path.is_dir() and any("*.npz" in entry.files for entry in found):  # each of them a dataset
        found = [entry for entry in found if "*.npz" not in entry.files]
        if not found:
            raise ValueError(f"{path} is a folder of .npz files; name one of them")
    if not found:
        problem = "is of no known format" if names else "is an empty folder"
        raise ValueError(f"{path} {problem}; {known}")
    if len(found) > 1 and load_gin in {entry.load for entry in found}:  # its names are any
        found = [entry for entry in found if entry.load is not load_gin]
    if len(found) > 1:
        raise ValueError(f"{path} has files of several formats; name one of them, or separate them")
    return found[0].load(path)
