"""Datasets as plain arrays in one ``.npz`` file."""

from __future__ import annotations

import dataclasses
import math
import os
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jax_gnn.datasets._check import ID_BYTES, Memory, blame, dense_from_csr, require_file
from jax_gnn.datasets._dataset import GraphDataset, HypergraphDataset, NodeDataset

_CSR = ("x_data", "x_indices", "x_indptr", "x_shape")
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

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
        ValueError: it is no ``.npz`` file or damaged, lacks a key, holds an object array, is
            compressed otherwise than by ``numpy.savez_compressed``, takes too much memory (see
            :mod:`jax_gnn.datasets`), or a field is not as :class:`HypergraphDataset` wants it.
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
    memory = Memory(path)
    try:
        archive = zipfile.ZipFile(path) if zipfile.is_zipfile(path) else None
    except Exception as error:  # whatever zipfile makes of damage
        raise ValueError(f"{path}: damaged .npz file: {error}") from error
    if archive is None:
        raise ValueError(f"{path}: not a .npz file, or cut off")
    with archive:
        arrays = _arrays(path, archive, required, optional, what, memory)
    with blame(path):
        if "x_data" in arrays:
            data, indices, indptr, shape = (arrays.pop(key) for key in _CSR)
            arrays["x"] = dense_from_csr("x", data, indices, indptr, shape, memory)
        result = dataset(name=path.stem, **arrays)
        if isinstance(result, HypergraphDataset):
            memory.claim("num_hyperedges", result.num_hyperedges * ID_BYTES)
        return result


def _arrays(
    path: Path,
    archive: zipfile.ZipFile,
    required: list[str],
    optional: set[str],
    what: str,
    memory: Memory,
) -> dict[str, Any]:
    members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
    sparse = not members.keys().isdisjoint(_CSR)
    if sparse and "x" in members:
        raise ValueError(f"{path}: has both dense features 'x' and sparse ones, 'x_...'")
    wanted = (*required, *(_CSR if sparse else ()))
    for key in wanted:
        if key not in members:
            raise ValueError(
                f"{path}: lacks the key {key!r} of a {what} dataset; "
                f"it has {', '.join(sorted(members)) or 'none at all'}"
            )
    arrays = {}
    for key in (*wanted, *sorted(optional.intersection(members))):
        try:
            arrays[key] = _array(archive, members[key], key, memory)
        except Exception as error:
            raise ValueError(f"{path}: cannot read {key!r}: {error}") from error
    return arrays


def _array(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, key: str, memory: Memory
) -> np.ndarray:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is compressed by a method that can make gigabytes of a block")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"arrays of version {version} are not supported")
        shape, _, dtype = _HEADERS[version](file)
    # Rows of nothing count too. Features are copied to float32 and looked at, all else is sorted.
    work = 8 if key == "x" else dtype.itemsize + ID_BYTES
    memory.claim("it", math.prod(max(size, 1) for size in shape) * (dtype.itemsize + work))
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
