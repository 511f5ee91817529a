"""Hypergraphs as plain arrays in one ``.npz`` file."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn.datasets._check import blame, dense_from_csr, require_file
from jax_gnn.datasets._dataset import HypergraphDataset

_REQUIRED = ("num_nodes", "num_hyperedges", "node_idx", "hyperedge_idx", "y")
_OPTIONAL = ("x", "train_splits", "train_idx", "test_idx", "label_names", "node_names")
_CSR = ("x_data", "x_indices", "x_indptr", "x_shape")


def load_npz(path: str | os.PathLike[str]) -> HypergraphDataset:
    """Reads a hypergraph from a ``.npz`` file of plain arrays.

    The keys are the fields of :class:`HypergraphDataset` less its name, which is the file's:
    ``num_nodes``, ``num_hyperedges``, ``node_idx``, ``hyperedge_idx`` and ``y`` must be there, the
    others may; other keys are ignored. Features may also be sparse, as CSR arrays ``x_data``,
    ``x_indices``, ``x_indptr`` and ``x_shape``: they become a dense float32 ``x``, with duplicate
    entries summed. Duplicate incidences are removed.

    Args:
        path: the file; it is read without pickle.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no ``.npz`` file or damaged, lacks a key, holds an object array, or a
            field is not as :class:`HypergraphDataset` wants it.
    """
    path = require_file(Path(path), "a .npz file")
    arrays = _read(path)
    with blame(path):
        arrays.setdefault("x", None)
        if "x_data" in arrays:
            data, indices, indptr, shape = (arrays.pop(key) for key in _CSR)
            arrays["x"] = dense_from_csr("x", data, indices, indptr, shape)
        return HypergraphDataset(name=path.stem, **arrays)


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:  # numpy would leave it open when it finds damage
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path}: not a .npz file, or cut off")
        file.seek(0)
        try:
            archive = np.load(file, allow_pickle=False)
        except Exception as error:  # whatever zipfile makes of damage
            raise ValueError(f"{path}: damaged .npz file: {error}") from error
        with archive:
            return _arrays(path, archive)


def _arrays(path: Path, archive: np.lib.npyio.NpzFile) -> dict[str, Any]:
    there = set(archive.files)
    sparse = not there.isdisjoint(_CSR)
    if sparse and "x" in there:
        raise ValueError(f"{path}: has both dense features 'x' and sparse ones, 'x_...'")
    wanted = (*_REQUIRED, *(_CSR if sparse else ()))
    for key in wanted:
        if key not in there:
            raise ValueError(
                f"{path}: lacks the key {key!r} of a hypergraph dataset; "
                f"it has {', '.join(sorted(there)) or 'none at all'}"
            )
    arrays = {}
    for key in (*wanted, *there.intersection(_OPTIONAL)):
        try:
            arrays[key] = archive[key]
        except Exception as error:
            raise ValueError(f"{path}: cannot read {key!r}: {error}") from error
    return arrays
