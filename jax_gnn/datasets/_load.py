"""One entry for every format."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from jax_gnn.datasets._dataset import HypergraphDataset
from jax_gnn.datasets._digits import digits
from jax_gnn.datasets._hypergcn import load_hypergcn
from jax_gnn.datasets._npz import load_npz
from jax_gnn.datasets._text import load_allset, load_cornell

_KNOWN = """known are
  digits                                      scikit-learn's handwritten digits
  NAME.npz                                    plain arrays (see load_npz)
  a folder with hypergraph.pickle             HyperGCN (see load_hypergcn)
  a folder with NAME.content and NAME.edges   AllSet, LEGCN (see load_allset)
  a folder with hyperedges-NAME.txt           Cornell (see load_cornell)"""


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
    if isinstance(source, str) and source == "digits":
        return digits()
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; {_KNOWN}")
    names = [file.name for file in path.iterdir()] if path.is_dir() else [path.name]
    loaders = {loader for name in names if (loader := _loader(name))}
    if path.is_dir() and load_npz in loaders:  # each of them a dataset
        loaders.remove(load_npz)
        if not loaders:
            raise ValueError(f"{path} is a folder of .npz files; name one of them")
    if not loaders:
        problem = "is of no known format" if names else "is an empty folder"
        raise ValueError(f"{path} {problem}; {_KNOWN}")
    if len(loaders) > 1:
        raise ValueError(f"{path} has files of several formats; name one of them, or separate them")
    return loaders.pop()(path)


def _loader(name: str) -> Callable[[Path], HypergraphDataset] | None:
    if name.endswith(".npz"):
        return load_npz
    if name in ("hypergraph.pickle", "labels.pickle"):
        return load_hypergcn
    if name.endswith((".content", ".edges")):
        return load_allset
    if name.startswith(("hyperedges-", "node-labels-")) and name.endswith(".txt"):
        return load_cornell
    return None
