"""Datasets as plain arrays in one ``.npz`` file."""

from __future__ import annotations

import dataclasses
import os
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jax_gnn.datasets._check import blame, dense_from_csr, require_file
from jax_gnn.datasets._dataset import GraphDataset, HypergraphDataset, NodeDataset

_CSR = ("x_data", "x_indices", "x_indptr", "x_shape")

Dataset = TypeVar("Dataset", bound=NodeDataset)


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
    return _load(Path(path), HypergraphDataset, "hypergraph")


def load_graph_npz(path: str | os.PathLike[str]) -> GraphDataset:
    """Reads a graph from a ``.npz`` file of plain arrays.

    As :func:`load_npz`, with the fields of :class:`GraphDataset`: ``num_nodes``, ``src``, ``dst``
    and ``y`` must be there.

    Args:
        path: the file; it is read without pickle.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: as :func:`load_npz`.
    """
    return _load(Path(path), GraphDataset, "graph")


def _load(path: Path, dataset: type[Dataset], what: str) -> Dataset:
    require_file(path, "a .npz file")
    fields = [field for field in dataclasses.fields(dataset) if field.name != "name"]
    optional = {field.name for field in fields if field.default is None}
    required = [field.name for field in fields if field.name not in optional]
    with path.open("rb") as file:  # numpy would leave it open when it finds damage
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path}: not a .npz file, or cut off")
        file.seek(0)
        try:
            archive = np.load(file, allow_pickle=False)
        except Exception as error:  # whatever zipfile makes of damage
            raise ValueError(f"{path}: damaged .npz file: {error}") from error
        with archive:
            arrays = _arrays(path, archive, required, optional, what)
    with blame(path):
        if "x_data" in arrays:
            data, indices, indptr, shape = (arrays.pop(key) for key in _CSR)
            arrays["x"] = dense_from_csr("x", data, indices, indptr, shape)
        return dataset(name=path.stem, **arrays)


def _arrays(
    path: Path, archive: np.lib.npyio.NpzFile, required: list[str], optional: set[str], what: str
) -> dict[str, Any]:
    there = set(archive.files)
    sparse = not there.isdisjoint(_CSR)
    if sparse and "x" in there:
        raise ValueError(f"{path}: has both dense features 'x' and sparse ones, 'x_...'")
    wanted = (*required, *(_CSR if sparse else ()))
    for key in wanted:
        if key not in there:
            raise ValueError(
                f"{path}: lacks the key {key!r} of a {what} dataset; "
                f"it has {', '.join(sorted(there)) or 'none at all'}"
            )
    arrays = {}
    for key in (*wanted, *there.intersection(optional)):
        try:
            arrays[key] = archive[key]
        except Exception as error:
            raise ValueError(f"{path}: cannot read {key!r}: {error}") from error
    return arrays
