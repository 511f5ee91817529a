"""Conversions of sparse matrices: scipy's, and those of ``jax.experimental.sparse``."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import jax
import numpy as np
import scipy.sparse

from jax_gnn._core import arguments
from jax_gnn.convert._data import Data, as_data, edges_of, incidences_of, named
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph

WEIGHT = "weight"  # the column of edges that holds the values of a matrix
Format = Literal["coo", "csr", "csc"]
SparseArray: TypeAlias = Any
"""A sparse array of scipy or of JAX, of any format."""


def from_scipy(matrix: SparseArray) -> Data:
    """Read an adjacency matrix ``(num_dst, num_src)`` of scipy: each stored entry is an edge.

    Args:
        matrix: a sparse matrix or array of any format. Stored zeros are edges, too.

    Returns:
        ``Data``, where ``edges["weight"]`` are the values, in the dtype and order of the matrix.
    """
    coo = arguments.check_sparse("matrix", matrix, "(num_dst, num_src)")
    return Data(Graph.from_scipy(coo), edges={WEIGHT: np.array(coo.data)})


def to_scipy(
    data: Data | Graph | Hypergraph, values: str | None = None, *, format: Format = "coo"
) -> SparseArray:
    """Make a sparse array of scipy, the adjacency ``(num_dst, num_src)``.

    For a hypergraph, this is the incidence matrix ``(num_nodes, num_hyperedges)``.

    Args:
        data: a ``Graph`` or an undirected ``Hypergraph``, or ``Data`` of one.
        values: name of a column of ``edges``, or of ``incidences`` of a hypergraph; by default
            ``"weight"`` if it exists, else ones in float32.
        format: ``"coo"``, in the order of the input, with repeated entries; ``"csr"`` or ``"csc"``,
            which sum repeated entries.
    """
    if format not in get_args(Format):
        raise ValueError(f"format must be one of {', '.join(get_args(Format))}, got {format!r}")
    rows, cols, entries, shape = _entries(data, values)
    if entries.ndim != 1:
        raise ValueError(f"values must be a number for each edge, got shape {entries.shape}")
    return scipy.sparse.coo_array((entries, (rows, cols)), shape=shape).asformat(format)


def _entries(
    data: Data | Graph | Hypergraph, values: str | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """Return rows, columns and values of the entries in the order of the input, and the shape."""
    data = as_data(data, Graph, Hypergraph)
    graph, part = data.graph, "edges"
    if isinstance(graph, Hypergraph):
        edges, graph, part = incidences_of(graph), graph.graph, "incidences"
    else:
        edges = edges_of(graph)
    columns = named(part, getattr(data, part))
    if values is None and WEIGHT not in columns:
        entries = np.ones(len(edges.src), np.float32)
    else:
        key = WEIGHT if values is None else values
        if key not in columns:
            raise ValueError(f"values must be among {part}, {', '.join(columns)}, got {key!r}")
        entries = np.asarray(edges.values(f"{part}[{key!r}]", columns[key]))
    if part == "incidences":
        return edges.src, edges.dst, entries, (graph.num_src, graph.num_dst)
    return edges.dst, edges.src, entries, (graph.num_dst, graph.num_src)


def from_bcoo(matrix: SparseArray) -> Data:
    """Read an adjacency matrix ``(num_dst, num_src)``, a ``BCOO`` of JAX.

    Args:
        matrix: the matrix, of concrete arrays, without batch dimensions; values may have features.

    Returns:
        ``Data``, where ``edges["weight"]`` are the values. Padding, which has indices out of range,
        is dropped; ``report`` counts it.
    """
    _check(matrix, "BCOO", ("indices", "data"))
    dst, src = np.asarray(matrix.indices).T
    return _from_entries(src, dst, matrix)


def from_bcsr(matrix: SparseArray) -> Data:
    """Read an adjacency matrix ``(num_dst, num_src)``, a ``BCSR`` of JAX.

    Args:
        matrix: the matrix, of concrete arrays, without batch dimensions; values may have features.

    Returns:
        ``Data``, where ``edges["weight"]`` are the values. Padding, which comes after the last row,
        is dropped; ``report`` counts it.
    """
    _check(matrix, "BCSR", ("indices", "indptr", "data"))
    indptr, src = np.asarray(matrix.indptr), np.asarray(matrix.indices)
    # Entries after the last row are padding, with a row out of range.
    dst = np.full(len(src), len(indptr) - 1)
    dst[: indptr[-1]] = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return _from_entries(src, dst, matrix)


def _check(matrix: SparseArray, kind: str, parts: tuple[str, ...]) -> None:
    if type(matrix).__name__ != kind or not all(hasattr(matrix, part) for part in parts):
        raise TypeError(
            f"matrix must be a {kind} of jax.experimental.sparse, got {type(matrix).__name__}"
        )
    if matrix.n_batch:
        raise ValueError(f"matrix must have no batch dimensions, got {matrix.n_batch}")


def _from_entries(src: np.ndarray, dst: np.ndarray, matrix: SparseArray) -> Data:
    num_dst, num_src = matrix.shape[:2]
    valid = (src >= 0) & (src < num_src) & (dst >= 0) & (dst < num_dst)
    dropped = len(valid) - int(valid.sum())
    report = (f"matrix: {dropped} of {len(valid)} entries are padding: dropped",) if dropped else ()
    graph = Graph.from_edges(src[valid], dst[valid], num_src=num_src, num_dst=num_dst)
    return Data(graph, edges={WEIGHT: np.asarray(matrix.data)[valid]}, report=report)


def to_bcoo(data: Data | Graph | Hypergraph, values: str | None = None) -> SparseArray:
    """Make a ``BCOO`` of JAX, the adjacency ``(num_dst, num_src)``, in the order of the input.

    Args:
        data: as of :func:`to_scipy`.
        values: as of :func:`to_scipy`, but ``(num_edges, *features)``.
    """
    from jax.experimental import sparse

    rows, cols, entries, shape = _entries(data, values)
    indices = np.stack([rows, cols], axis=1).astype(np.int32)
    arrays = jax.device_put((entries, indices))
    return sparse.BCOO(arrays, shape=(*shape, *entries.shape[1:]))


def to_bcsr(data: Data | Graph | Hypergraph, values: str | None = None) -> SparseArray:
    """Make a ``BCSR`` of JAX, whose rows have their entries in the order of the input.

    Args:
        data: as of :func:`to_scipy`.
        values: as of :func:`to_scipy`, but ``(num_edges, *features)``.
    """
    from jax.experimental import sparse

    rows, cols, entries, shape = _entries(data, values)
    order = np.argsort(rows, kind="stable")
    # A stable sort keeps the order of the input within rows.
    indptr = np.searchsorted(rows[order], np.arange(shape[0] + 1))
    parts = entries[order], cols[order].astype(np.int32), indptr.astype(np.int32)
    return sparse.BCSR(jax.device_put(parts), shape=(*shape, *entries.shape[1:]))
