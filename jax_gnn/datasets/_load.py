"""Loaders that recognise the kind and the format of a dataset by the names of its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from jax_gnn._core.files import as_path
from jax_gnn.datasets._csv import (
    load_csv,
    load_graphs_csv,
    load_hypergraph_csv,
    load_relational_csv,
)
from jax_gnn.datasets._dataset import (
    GraphDataset,
    GraphsDataset,
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
)
from jax_gnn.datasets._digits import digits, digits_graph
from jax_gnn.datasets._edge_files import load_hmetis, load_matrix_market, load_snap
from jax_gnn.datasets._graphs import load_gin, load_ogb_graphs, load_ogb_nodes, load_tu
from jax_gnn.datasets._hgb import load_hgb
from jax_gnn.datasets._hypergcn import load_hypergcn
from jax_gnn.datasets._layouts import SUFFIXES, layout_of
from jax_gnn.datasets._molecules import load_molecules, load_xyz
from jax_gnn.datasets._npz import load_graph_npz, load_npz, load_relational_npz
from jax_gnn.datasets._planetoid import load_planetoid
from jax_gnn.datasets._rdf import load_rdf
from jax_gnn.datasets._text import load_allset, load_cornell
from jax_gnn.datasets._triples import TRIPLES, load_triples

Dataset = TypeVar("Dataset", bound=NodeDataset)

KNOWN = "; known are "  # precedes the list of formats in the error of a loader
# For each loader the files and the name of its format, for errors, and patterns of the names of its
# files, any of which shows the format; the digits have no files.
_Formats = Mapping[Callable[..., Dataset], tuple[str, ...]]

_TABLES = [f"*{part}.{kind}" for part in ("nodes", "edges", "graphs") for kind in SUFFIXES]
_LAYOUTS = {load_csv: "graph", load_hypergraph_csv: "hypergraph", load_graphs_csv: "graphs"}
_LAYOUTS |= {load_relational_csv: "types", load_hmetis: ""}
_OF_EDGES = load_csv, load_relational_csv  # also take a table of edges alone

_DIGITS = ("digits: scikit-learn's handwritten digits",)

_HYPERGRAPHS: _Formats[HypergraphDataset] = {
    digits: _DIGITS,
    load_npz: ("NAME.npz: plain arrays", "*.npz"),
    load_hypergcn: (
        "a folder with hypergraph.pickle: HyperGCN",
        "hypergraph.pickle",
        "labels.pickle",
    ),
    load_allset: (
        "a folder with NAME.content and NAME.edges: AllSet, LEGCN",
        "*.content",
        "*.edges",
    ),
    load_cornell: (
        "a folder with hyperedges-NAME.txt: Cornell",
        "hyperedges-*.txt",
        "node-labels-*.txt",
    ),
    load_hmetis: ("NAME.hgr: hMETIS", "*.hgr"),
    load_hypergraph_csv: ("a folder with nodes.csv and hyperedges.csv: tables", *_TABLES),
}
_GRAPHS: _Formats[GraphDataset] = {
    digits_graph: _DIGITS,
    load_graph_npz: ("NAME.npz: plain arrays", "*.npz"),
    load_planetoid: ("a folder with ind.NAME.graph: Planetoid", "ind.*"),
    load_csv: ("a folder with nodes.csv and edges.csv: tables", *_TABLES),
    load_ogb_nodes: ("a folder with raw/node-label.csv.gz: OGB", "node-label.csv.gz"),
    load_matrix_market: ("NAME.mtx: MatrixMarket", "*.mtx", "*.mtx.gz"),
    load_snap: ("NAME.txt: SNAP's lists of edges", "*.txt", "*.txt.gz"),
}
_MANY_GRAPHS: _Formats[GraphsDataset] = {
    load_tu: ("a folder with NAME_A.txt: TUDataset", "*_A.txt"),
    load_ogb_graphs: ("a folder with raw/graph-label.csv.gz: OGB", "graph-label.csv.gz"),
    load_gin: ("NAME.txt: the format of GIN's code", "*.txt"),
    load_graphs_csv: ("a folder with nodes.csv, edges.csv and graphs.csv: tables", *_TABLES),
    load_xyz: (
        "NAME.xyz: extended XYZ",
        *(f"*.{k}xyz{z}" for k in ("", "ext") for z in ("", ".gz")),
    ),
    load_molecules: ("NAME.npz: plain arrays", "*.npz"),
}
_RELATIONAL: _Formats[RelationalDataset] = {
    load_relational_npz: ("NAME.npz: plain arrays", "*.npz"),
    load_rdf: ("a folder with NAME.nt or NAME.nt.gz: RDF", "*.nt", "*.nt.gz"),
    load_hgb: ("a folder with link.dat: HGB", "link.dat"),
    load_triples: ("a folder with train.txt: facts", *TRIPLES.values()),
    load_relational_csv: ("a folder with nodes/TYPE.csv: tables by type", "nodes", "edges"),
}


def load_hypergraph(source: str | os.PathLike[str], **options: Any) -> HypergraphDataset:
    """Read a hypergraph dataset in the format that the names of its files show.

    Args:
        source: ``"digits"`` (a folder of that name is ``"./digits"``), or what :func:`load_npz`,
            :func:`load_hypergcn`, :func:`load_allset`, :func:`load_cornell`, :func:`load_hmetis` or
            :func:`load_hypergraph_csv` reads: a folder, or one of its files.
        **options: arguments of :func:`load_csv`, for tables. A ``recipe`` is left out for others.
    """
    return _load(source, _HYPERGRAPHS, options)


def load_graph(source: str | os.PathLike[str], **options: Any) -> GraphDataset:
    """Read a graph dataset in the format that the names of its files show.

    Args:
        source: ``"digits"`` (see :func:`digits_graph`), or what :func:`load_graph_npz`,
            :func:`load_planetoid`, :func:`load_csv`, :func:`load_ogb_nodes`,
            :func:`load_matrix_market` or :func:`load_snap` reads.
        **options: as of :func:`load_hypergraph`.
    """
    return _load(source, _GRAPHS, options)


def load_graphs(source: str | os.PathLike[str], **options: Any) -> GraphsDataset:
    """Read many graphs with a label each, in the format that the names of the files show.

    Args:
        source: what :func:`load_tu`, :func:`load_ogb_graphs`, :func:`load_gin`,
            :func:`load_graphs_csv`, :func:`load_xyz` or :func:`load_molecules` reads.
        **options: as of :func:`load_hypergraph`.
    """
    return _load(source, _MANY_GRAPHS, options)


def load_relational(source: str | os.PathLike[str], **options: Any) -> RelationalDataset:
    """Read edges with relations, in the format that the names of the files show.

    Args:
        source: what :func:`load_relational_npz`, :func:`load_rdf`, :func:`load_hgb`,
            :func:`load_triples` or :func:`load_relational_csv` reads.
        **options: as of :func:`load_hypergraph`.
    """
    return _load(source, _RELATIONAL, options)


def load_any(source: str, **options: Any) -> list[NodeDataset]:
    """Load a source by each loader that can read it; several loaders may read one file.

    Options are those of :func:`load_csv`, for tables.

    Raises:
        ValueError: No loader can read the source, or it does not exist.
    """
    datasets: list[NodeDataset] = []
    errors = []
    loaders = load_hypergraph, load_graph, load_graphs, load_relational
    load: Callable[..., NodeDataset]
    for load in loaders:
        try:
            datasets.append(load(source, **options))
        except (ImportError, OSError, ValueError) as error:
            errors.append(str(error))
    if not datasets:
        # Loaders that recognised the format say more than those that know none such, and the
        # former more than those that merely miss an array.
        messages = [text for text in errors if KNOWN not in text]
        messages = [text for text in messages if ": lacks " not in text] or messages
        raise ValueError("; ".join(dict.fromkeys(messages)) or _unknown(source, errors[0]))
    return datasets


def known_formats() -> dict[str, str]:
    """Map each format of any loader to its description, as the loaders' errors list them."""
    kinds: tuple[_Formats[Any], ...] = _HYPERGRAPHS, _GRAPHS, _MANY_GRAPHS, _RELATIONAL
    known: dict[str, str] = {}
    for line in (line for formats in kinds for line in _descriptions(formats)):
        name, _, description = line.partition(": ")
        known.setdefault(name, description)  # several loaders may have one name
    return known


def _descriptions(formats: _Formats[Any]) -> list[str]:
    """Return the files and the name of each format, with its loader if it has files."""
    return [
        f"{text} (see {load.__name__})" if patterns else text
        for load, (text, *patterns) in formats.items()
    ]


def _unknown(source: str, error: str) -> str:
    """Return the error for a source of no known format, with the format of the nearest names."""
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
    return f"{error.partition(KNOWN)[0]}{nearest}; jax-gnn data --help lists what is known"


def _load(
    source: str | os.PathLike[str], formats: _Formats[Dataset], options: Mapping[str, Any]
) -> Dataset:
    """Load a source by the loader of the only format that the names of its files show."""
    first = next(iter(formats))
    if isinstance(source, str) and source == "digits" and formats[first] is _DIGITS:
        _check_options(source, options)
        return first()
    choices = KNOWN + "; ".join(_descriptions(formats))
    path = as_path("source", source)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist{choices}")
    # Formats are recognised by names of files alone: nothing is opened here.
    names = [file.name for file in path.iterdir()] if path.is_dir() else [path.name]
    if (path / "raw").is_dir():  # OGB's layout
        names += [file.name for file in (path / "raw").iterdir()]
    matches = [
        load
        for load, (_, *patterns) in formats.items()
        if any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
    ]
    # Tables are of one layout; an hMETIS file beside a table of nodes is part of them.
    layout = layout_of(path)
    matches = [load for load in matches if _LAYOUTS.get(load, layout) == layout]
    if layout == "edges" and not matches:
        matches = [load for load in formats if load in _OF_EDGES]
    if path.is_dir():  # where each .npz file is a dataset, and text may be anything
        others = [load for load in matches if "*.npz" not in formats[load]]
        if matches and not others:
            raise ValueError(f"{path} is a folder of .npz files; name one of them")
        matches = [load for load in others if load is not load_snap]
    if not matches:
        problem = "is of no known format" if names else "is an empty folder"
        raise ValueError(f"{path} {problem}{choices}")
    if len(matches) > 1:  # GIN's pattern also matches the text files of other formats
        matches = [load for load in matches if load is not load_gin]
    if len(matches) > 1:
        raise ValueError(f"{path} has files of several formats; name one of them, or separate them")
    (load,) = matches
    if _LAYOUTS.get(load):
        return load(path, **options)
    _check_options(path, options)
    return load(path)


def _check_options(source: object, options: Mapping[str, Any]) -> None:
    """Check that there are no options of tables for data that are none."""
    if names := [name for name in options if name != "recipe"]:
        raise ValueError(f"{source} must be tables for {', '.join(names)}")
