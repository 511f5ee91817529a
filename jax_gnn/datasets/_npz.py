"""Datasets as plain arrays in one ``.npz`` file."""

from __future__ import annotations

import dataclasses
import os
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jax_gnn._core.files import (
    ID_BYTES,
    Memory,
    array_key,
    as_path,
    errors_in,
    open_npz,
    read_array,
    require_file,
)
from jax_gnn.datasets._check import check_array, check_names, check_size, dense_from_csr
from jax_gnn.datasets._dataset import (
    GraphDataset,
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
)

_CSR = ("x_data", "x_indices", "x_indptr", "x_shape")
_RELATIONAL = {"relation_names", "node_names", "node_names_utf8", "class_names", "node_type"}
_RELATIONAL |= {"edge_time", "node_time", "node_type_names", "x", "y", "y_multilabel"}

Dataset = TypeVar("Dataset", bound=NodeDataset)


def load_npz(path: str | os.PathLike[str]) -> HypergraphDataset:
    """Read a hypergraph from a ``.npz`` file of plain arrays.

    The keys are the fields of :class:`HypergraphDataset` except the name, which is the file's.
    Required are ``num_nodes``, ``num_hyperedges``, ``node_idx`` and ``hyperedge_idx``; without
    ``y`` no node has a label. Features may also be sparse, as CSR arrays ``x_data``, ``x_indices``,
    ``x_indptr`` and ``x_shape``: they become a dense float32 ``x``, with duplicate entries summed.
    Duplicate incidences are removed.

    Args:
        path: the file; it is read without pickle.
    """
    return _load(as_path("path", path), HypergraphDataset, "hypergraph")


def load_graph_npz(path: str | os.PathLike[str]) -> GraphDataset:
    """Read a graph from a ``.npz`` file of plain arrays.

    The keys are the fields of :class:`GraphDataset`, as in :func:`load_npz`; required are
    ``num_nodes``, ``src`` and ``dst``.

    Args:
        path: the file; it is read without pickle.
    """
    return _load(as_path("path", path), GraphDataset, "graph")


def load_relational_npz(path: str | os.PathLike[str]) -> RelationalDataset:
    """Read a graph with relations from a ``.npz`` file of plain arrays.

    The keys are fields of :class:`RelationalDataset`; required are ``num_nodes``,
    ``num_relations``, ``src``, ``rel`` and ``dst``, and unknown keys are ignored. Besides,
    ``class_names`` are ``label_names``, ``node_names_utf8`` is one array of bytes, names joined by
    newlines; ``x_TYPE`` are features of a type of nodes, or ``x_TYPE_data``, ``x_TYPE_indices``,
    ``x_TYPE_indptr`` and ``x_TYPE_shape``, sparse; ``y_multilabel`` may have rows for the first
    nodes only. Without labels ``train_idx``, ``val_idx`` and ``test_idx`` are edges. If
    ``train_idx`` is missing, the splits ``hgb_train_idx`` (Heterogeneous Graph Benchmark) or else
    ``train_idx_20`` (HeCo) are read.

    Args:
        path: the file; it is read without pickle.
    """
    path = require_file(as_path("path", path), "a .npz file")
    memory = Memory(path)
    with open_npz(path) as archive:
        members = {array_key(member) for member in archive.infolist()}
        required = ["num_nodes", "num_relations", "src", "rel", "dst"]
        splits = {"train_idx", "val_idx", "test_idx"}
        # Prefixes and suffixes of the splits, by priority.
        forms = ("{}", "hgb_{}", "{}_20")
        form = next((form for form in forms if form.format("train_idx") in members), "{}")
        optional = {form.format(name) for name in splits} | _RELATIONAL
        types = {name for name in members if name.startswith("x_")} - {*_CSR}
        arrays = _arrays(path, archive, required, optional | types, "relational", memory)
    with errors_in(path):
        for name in splits:
            if form.format(name) in arrays:
                arrays[name] = arrays.pop(form.format(name))
        size = check_size("num_nodes", arrays["num_nodes"])
        memory.claim("num_nodes", size * ID_BYTES)
        memory.claim("num_relations", check_size("num_relations", arrays["num_relations"]))
        if "class_names" in arrays:
            # Keys of published files are renamed to fields.
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
        type_names = check_names("node_type_names", arrays.get("node_type_names", ()))
        arrays["x_by_type"] = _features_by_type(parts, type_names, memory)
        if "y_multilabel" in arrays:
            rows = check_array("y_multilabel", arrays["y_multilabel"], "iub", "zeros and ones", 2)
            memory.claim("y_multilabel", 2 * size * max(rows.shape[1], 1))
            padding = max(size - rows.shape[0], 0)
            arrays["y_multilabel"] = np.pad(rows, ((0, padding), (0, 0)))
        if "y" not in arrays:
            # Without labels, splits are of edges.
            if "y_multilabel" not in arrays:
                for name in splits & arrays.keys():
                    arrays[name.replace("idx", "edges")] = arrays.pop(name)
            arrays["y"] = np.full(size, -1, np.int32)
        return RelationalDataset(name=path.stem, **arrays)


def _features_by_type(
    parts: dict[str, np.ndarray], names: tuple[str, ...], memory: Memory
) -> dict[str, np.ndarray] | None:
    """Return the features of each type, of arrays ``x_TYPE`` or those of a CSR matrix."""
    features: dict[str, np.ndarray] = {}
    type_of: dict[str, str] = {}
    for name in names:
        key = f"x_{name}"
        used = [key]
        if key in parts:
            features[name] = parts[key]
        else:
            used = [f"{key}_{part}" for part in ("data", "indices", "indptr", "shape")]
            if not parts.keys() >= {*used}:
                continue
            data, indices, indptr, shape = (parts[part] for part in used)
            features[name] = dense_from_csr(key, data, indices, indptr, shape, memory)
        # Types may be called "a" and "a_data": an array must not serve both.
        for part in used:
            if type_of.setdefault(part, name) != name:
                raise ValueError(f"{part} may be of the type {type_of[part]!r} or {name!r}")
    return features or None


def _make_dense(arrays: dict[str, Any], memory: Memory) -> None:
    if "x_data" in arrays:
        data, indices, indptr, shape = (arrays.pop(key) for key in _CSR)
        arrays["x"] = dense_from_csr("x", data, indices, indptr, shape, memory)


def _load(path: Path, dataset: type[Dataset], what: str) -> Dataset:
    """Read a dataset whose arrays have the names of its fields."""
    require_file(path, "a .npz file")
    ignored = "name", "format"
    fields = [field for field in dataclasses.fields(dataset) if field.name not in ignored]
    optional = {field.name for field in fields if field.default is None} | {"y"}
    required = [field.name for field in fields if field.name not in optional]
    memory = Memory(path)
    with open_npz(path) as archive:
        arrays = _arrays(path, archive, required, optional, what, memory)
        members = {array_key(member) for member in archive.infolist()}
    if unknown := sorted(members - {*ignored, *required, *optional, *_CSR}):
        raise ValueError(
            f"{path}: has the key {unknown[0]!r}, which is none of a {what} dataset: "
            f"{', '.join([*required, *sorted(optional | {*_CSR})])}"
        )
    with errors_in(path):
        _make_dense(arrays, memory)
        if "y" not in arrays:  # no node has a label
            size = check_size("num_nodes", arrays["num_nodes"])
            memory.claim("num_nodes", size * ID_BYTES)
            arrays["y"] = np.full(size, -1, np.int32)
        result = dataset(name=path.stem, **arrays)
        if isinstance(result, HypergraphDataset):
            # Empty hyperedges are a mere number in the file.
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
    """Read the arrays of required and optional keys, which include a CSR matrix of features."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        if members.setdefault(array_key(member), member) is not member:
            raise ValueError(f"{path}: has {member.filename!r} twice")
    # Features are dense or sparse, not both.
    sparse = not members.keys().isdisjoint(_CSR)
    if sparse and "x" in members:
        raise ValueError(f"{path}: has both dense features 'x' and sparse ones, 'x_...'")
    needed = (*required, *(_CSR if sparse else ()))
    missing = [key for key in needed if key not in members]
    if missing:
        raise ValueError(
            f"{path}: lacks {', '.join(map(repr, missing))} of the keys of a {what} dataset; "
            f"needed are {', '.join(required)}; there may be "
            f"{', '.join(sorted({*optional, *_CSR}))}; "
            f"the file has {', '.join(sorted(members)) or 'none at all'}"
        )
    keys = (*needed, *sorted(optional.intersection(members)))
    return {key: read_array(path, archive, members[key], memory) for key in keys}
