"""Datasets as plain arrays in one ``.npz`` file."""

from __future__ import annotations

import dataclasses
import math
import os
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jax_gnn.datasets._check import (
    ID_BYTES,
    Memory,
    as_path,
    blame,
    check_array,
    check_names,
    check_size,
    dense_from_csr,
    require_file,
)
from jax_gnn.datasets._dataset import (
    GraphDataset,
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
)

_CSR = ("x_data", "x_indices", "x_indptr", "x_shape")
_RELATIONAL = {
    *("relation_names", "node_names", "node_names_utf8", "class_names", "node_type"),
    *("node_type_names", "x", "y", "y_multilabel"),
}
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

Dataset = TypeVar("Dataset", bound=NodeDataset)


def load_npz(path: str | os.PathLike[str]) -> HypergraphDataset:
    """Reads a hypergraph from a ``.npz`` file of plain arrays.

    The keys are the fields of :class:`HypergraphDataset` less its name, which is the file's:
    ``num_nodes``, ``num_hyperedges``, ``node_idx`` and ``hyperedge_idx`` must be there, the others
    may, ``y`` also: without it no node has a label. Features may also be sparse, as CSR arrays
    ``x_data``, ``x_indices``, ``x_indptr`` and ``x_shape``: they become a dense float32 ``x``, with
    duplicate entries summed. Duplicate incidences are removed.

    Args:
        path: the file; it is read without pickle.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no ``.npz`` file or damaged, lacks a key or has another, holds an object
            array, is compressed otherwise than by ``numpy.savez_compressed``, takes too much memory
            (see :mod:`jax_gnn.datasets`), or a field is not as :class:`HypergraphDataset` wants it.
    """
    return _load(as_path("path", path), HypergraphDataset, "hypergraph")


def load_graph_npz(path: str | os.PathLike[str]) -> GraphDataset:
    """Reads a graph from a ``.npz`` file of plain arrays.

    As :func:`load_npz`, with the fields of :class:`GraphDataset`: ``num_nodes``, ``src`` and
    ``dst`` must be there.

    Args:
        path: the file; it is read without pickle.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: as :func:`load_npz`.
    """
    return _load(as_path("path", path), GraphDataset, "graph")


def load_relational_npz(path: str | os.PathLike[str]) -> RelationalDataset:
    """Reads a graph with relations from a ``.npz`` file of plain arrays.

    ``num_nodes``, ``num_relations``, ``src``, ``rel`` and ``dst`` must be there, the other fields
    of :class:`RelationalDataset` may; other keys are ignored. Besides, ``class_names`` are
    ``label_names``, ``node_names_utf8`` is one array of bytes, names joined by newlines; ``x_TYPE``
    are features of a type of nodes, or ``x_TYPE_data``, ``x_TYPE_indices``, ``x_TYPE_indptr`` and
    ``x_TYPE_shape``, sparse; ``y_multilabel`` may have rows for the first nodes only. In a file
    without labels ``train_idx``, ``val_idx`` and ``test_idx`` are edges; of one that lacks
    ``train_idx`` and has several splits, ``hgb_train_idx`` and the like are read (that of the
    Heterogeneous Graph Benchmark), or else ``train_idx_20`` and the like (HeCo's).

    Args:
        path: the file; it is read without pickle.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: as :func:`load_npz`.
    """
    path = require_file(as_path("path", path), "a .npz file")
    memory = Memory(path)
    with _open(path) as archive:
        members = {member.filename.removesuffix(".npy") for member in archive.infolist()}
        required = ["num_nodes", "num_relations", "src", "rel", "dst"]
        splits = {"train_idx", "val_idx", "test_idx"}
        forms = ("{}", "hgb_{}", "{}_20")
        form = next((form for form in forms if form.format("train_idx") in members), "{}")
        optional = {form.format(name) for name in splits} | _RELATIONAL
        types = {name for name in members if name.startswith("x_")} - {*_CSR}
        arrays = _arrays(path, archive, required, optional | types, "relational", memory)
    with blame(path):
        for name in splits:
            if form.format(name) in arrays:
                arrays[name] = arrays.pop(form.format(name))
        size = check_size("num_nodes", arrays["num_nodes"])
        memory.claim("num_nodes", size * ID_BYTES)
        memory.claim("num_relations", check_size("num_relations", arrays["num_relations"]))
        if "class_names" in arrays:
            arrays["label_names"] = arrays.pop("class_names")
        if "node_names_utf8" in arrays:
            names = check_array("node_names_utf8", arrays.pop("node_names_utf8"), "u", "bytes", 1)
            if names.itemsize != 1:
                raise ValueError(f"node_names_utf8: expected bytes, got dtype {names.dtype}")
            try:
                arrays["node_names"] = tuple(names.tobytes().decode("utf-8").split("\n"))
            except UnicodeDecodeError as error:
                raise ValueError(f"node_names_utf8: not UTF-8: {error}") from error
        _make_dense(arrays, memory)
        parts = {name: arrays.pop(name) for name in types}
        arrays["x_by_type"] = _features_by_type(parts, arrays, memory)
        if "y_multilabel" in arrays:
            given = check_array("y_multilabel", arrays["y_multilabel"], "iub", "zeros and ones", 2)
            memory.claim("y_multilabel", 2 * size * max(given.shape[1], 1))
            rest = max(size - given.shape[0], 0)
            arrays["y_multilabel"] = np.pad(given, ((0, rest), (0, 0)))
        if "y" not in arrays:
            if "y_multilabel" not in arrays:
                for name in splits & arrays.keys():
                    arrays[name.replace("idx", "edges")] = arrays.pop(name)
            arrays["y"] = np.full(size, -1, np.int32)
        return RelationalDataset(name=path.stem, **arrays)


def _features_by_type(
    parts: dict[str, Any], arrays: dict[str, Any], memory: Memory
) -> dict[str, np.ndarray] | None:
    features = {}
    types_of: dict[str, str] = {}
    for name in check_names("node_type_names", arrays.get("node_type_names", ())):
        key = f"x_{name}"
        sparse = [f"{key}_{part}" for part in ("data", "indices", "indptr", "shape")]
        if key in parts:
            sparse = []
            features[name] = parts[key]
        elif parts.keys() >= {*sparse}:
            data, indices, indptr, shape = (parts[part] for part in sparse)
            features[name] = dense_from_csr(key, data, indices, indptr, shape, memory)
        for used in sparse or [key]:
            if name in features and types_of.setdefault(used, name) != name:
                raise ValueError(f"{used} may be of the type {types_of[used]!r} or {name!r}")
    return features or None


def _make_dense(arrays: dict[str, Any], memory: Memory) -> None:
    if "x_data" in arrays:
        data, indices, indptr, shape = (arrays.pop(key) for key in _CSR)
        arrays["x"] = dense_from_csr("x", data, indices, indptr, shape, memory)


def _open(path: Path) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(path) if zipfile.is_zipfile(path) else None
    except Exception as error:  # whatever zipfile makes of damage
        raise ValueError(f"{path}: damaged .npz file: {error}") from error
    if archive is None:
        raise ValueError(f"{path}: not a .npz file, or cut off")
    return archive


def _load(path: Path, dataset: type[Dataset], what: str) -> Dataset:
    require_file(path, "a .npz file")
    own = "name", "format"
    fields = [field for field in dataclasses.fields(dataset) if field.name not in own]
    optional = {field.name for field in fields if field.default is None} | {"y"}
    required = [field.name for field in fields if field.name not in optional]
    memory = Memory(path)
    with _open(path) as archive:
        arrays = _arrays(path, archive, required, optional, what, memory)
        given = {member.filename.removesuffix(".npy") for member in archive.infolist()}
    if unknown := sorted(given - {*own, *required, *optional, *_CSR}):
        raise ValueError(
            f"{path}: has the key {unknown[0]!r}, which is none of a {what} dataset: "
            f"{', '.join([*required, *sorted(optional | {*_CSR})])}"
        )
    with blame(path):
        _make_dense(arrays, memory)
        if "y" not in arrays:
            size = check_size("num_nodes", arrays["num_nodes"])
            memory.claim("num_nodes", size * ID_BYTES)
            arrays["y"] = np.full(size, -1, np.int32)
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
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        if members.setdefault(member.filename.removesuffix(".npy"), member) is not member:
            raise ValueError(f"{path}: has {member.filename!r} twice")
    sparse = not members.keys().isdisjoint(_CSR)
    if sparse and "x" in members:
        raise ValueError(f"{path}: has both dense features 'x' and sparse ones, 'x_...'")
    wanted = (*required, *(_CSR if sparse else ()))
    lacking = [key for key in wanted if key not in members]
    if lacking:
        raise ValueError(
            f"{path}: lacks {', '.join(map(repr, lacking))} of the keys of a {what} dataset; "
            f"needed are {', '.join(required)}; there may be "
            f"{', '.join(sorted({*optional, *_CSR}))}; "
            f"the file has {', '.join(sorted(members)) or 'none at all'}"
        )
    keys = (*wanted, *sorted(optional.intersection(members)))
    return {key: _read(path, archive, members[key], memory) for key in keys}


def read_npz(path: Path, what: str) -> dict[str, np.ndarray]:
    """All arrays of a file, in so much memory as it has bytes."""
    memory = Memory(require_file(path, what))
    with _open(path) as archive:
        return {
            member.filename.removesuffix(".npy"): _read(path, archive, member, memory)
            for member in archive.infolist()
        }


def _read(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, memory: Memory) -> Any:
    key = member.filename.removesuffix(".npy")
    try:
        return _array(archive, member, key, memory)
    except Exception as error:
        raise ValueError(f"{path}: cannot read {key!r}: {error}") from error


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
    work = 8 if key == "x" or key.endswith("_utf8") else dtype.itemsize + ID_BYTES
    memory.claim("it", math.prod(max(size, 1) for size in shape) * (dtype.itemsize + work))
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
