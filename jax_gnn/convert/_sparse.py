"""Sparse matrices: scipy's, and those of ``jax.experimental.sparse``."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import numpy as np
import scipy.sparse

from jax_gnn._core import arguments
from jax_gnn.convert._data import Data, as_data, edges_of, incidences_of, named
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph

WEIGHT = "weight"  # what values of a matrix are called among those of edges
Format = Literal["coo", "csr", "csc"]


def from_scipy(matrix: Any) -> Data:
    """Reads an adjacency matrix ``(num_dst, num_src)`` of scipy: each stored entry is an edge.

    Args:
        matrix: a sparse matrix or array of any format. Zeros that it stores are edges, too.

    Returns:
        ``edges["weight"]`` are the values, in the dtype and the order of the matrix.

    Raises:
        TypeError: it is no sparse matrix of scipy.
        ValueError: it is not two-dimensional, or not a valid one.
    """
    coo = arguments.check_sparse("matrix", matrix, "(num_dst, num_src)")
    return Data(Graph.from_scipy(coo), edges={WEIGHT: np.array(coo.data)})


def to_scipy(data: Any, values: str | None = None, *, format: Format = "coo") -> Any:
    """Makes a sparse array of scipy, the adjacency ``(num_dst, num_src)``.

    Of a hypergraph it is the incidence ``(num_nodes, num_hyperedges)``.

    Args:
        data: ``Data`` of a ``Graph`` or of an undirected ``Hypergraph``, or one alone.
        values: the name of a column of ``edges``, of a hypergraph of ``incidences``; by default
            ``"weight"``, where there is one, else ones in float32.
        format: ``"coo"``, in the order of the input, equal entries apart; ``"csr"`` or ``"csc"``,
            in which equal entries are summed.

    Raises:
        TypeError: ``data`` is none of these.
        ValueError: the hypergraph is directed, or ``values`` or ``format`` is unknown.
    """
    if format not in get_args(Format):
        raise ValueError(f"format must be one of {', '.join(get_args(Format))}, got {format!r}")
    rows, cols, entries, shape = _coordinates(data, values)
    if entries.ndim != 1:
        raise ValueError(f"values must be a number for each edge, got shape {entries.shape}")
    return scipy.sparse.coo_array((entries, (rows, cols)), shape=shape).asformat(format)


def _coordinates(data: Any, values: str | None) -> tuple[Any, Any, Any, tuple[int, int]]:
    """Rows, columns and values of a matrix in the order of the input, and its shape."""
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
    shape = graph.num_dst, graph.num_src
    if isinstance(data.graph, Hypergraph):
        return edges.src, edges.dst, entries, shape[::-1]
    return edges.dst, edges.src, entries, shape


def from_bcoo(matrix: Any) -> Data:
    """Reads an adjacency matrix ``(num_dst, num_src)``, a ``BCOO`` of JAX.

    Args:
        matrix: of concrete arrays, without batch dimensions; values may have features.

    Returns:
        ``edges["weight"]`` are the values. Padding, whose indices are out of range, is dropped,
        and ``report`` says so.

    Raises:
        TypeError: it is no ``BCOO``.
        ValueError: it has batch dimensions.
    """
    _check(matrix, "BCOO", ("indices", "data"))
    dst, src = np.asarray(matrix.indices).T
    return _from_entries(src, dst, matrix)


def from_bcsr(matrix: Any) -> Data:
    """Reads an adjacency matrix ``(num_dst, num_src)``, a ``BCSR`` of JAX, like :func:`from_bcoo`.

    Args:
        matrix: of concrete arrays, without batch dimensions.

    Returns:
        Likewise; padding is past the end of the last row.

    Raises:
        TypeError: it is no ``BCSR``.
        ValueError: it has batch dimensions.
    """
    _check(matrix, "BCSR", ("indices", "indptr", "data"))
    indptr, src = np.asarray(matrix.indptr), np.asarray(matrix.indices)
    dst = np.full(len(src), len(indptr) - 1)
    dst[: indptr[-1]] = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return _from_entries(src, dst, matrix)


def _check(matrix: Any, kind: str, parts: tuple[str, ...]) -> None:
    if type(matrix).__name__ != kind or not all(hasattr(matrix, part) for part in parts):
        raise TypeError(
            f"matrix must be a {kind} of jax.experimental.sparse, got {type(matrix).__name__}"
        )
    if matrix.n_batch:
        raise ValueError(f"matrix must have no batch dimensions, got {matrix.n_batch}")


def _from_entries(src: np.ndarray, dst: np.ndarray, matrix: Any) -> Data:
    num_dst, num_src = matrix.shape[:2]
    there = (src >= 0) & (src < num_src) & (dst >= 0) & (dst < num_dst)
    dropped = len(there) - int(there.sum())
    report = (f"matrix: {dropped} of {len(there)} entries are padding: dropped",) if dropped else ()
    graph = Graph.from_edges(src[there], dst[there], num_src=num_src, num_dst=num_dst)
    return Data(graph, edges={WEIGHT: np.asarray(matrix.data)[there]}, report=report)


def to_bcoo(data: Any, values: str | None = None) -> Any:
    """Makes a ``BCOO`` of JAX, the adjacency ``(num_dst, num_src)``, in the order of the input.

    Args:
        data: as :func:`to_scipy` takes it.
        values: likewise; ``(num_edges, *features)``.

    Raises:
        TypeError: as :func:`to_scipy`.
        ValueError: likewise.
    """
    from jax.experimental import sparse

    rows, cols, entries, shape = _coordinates(data, values)
    indices = np.stack([rows, cols], axis=1).astype(np.int32)
    arrays = jax.device_put((entries, indices))
    return sparse.BCOO(arrays, shape=(*shape, *entries.shape[1:]))


def to_bcsr(data: Any, values: str | None = None) -> Any:
    """Makes a ``BCSR`` of JAX, likewise, in the order of the input within each row.

    Args:
        data: as :func:`to_scipy` takes it.
        values: likewise; ``(num_edges, *features)``.

    Raises:
        TypeError: as :func:`to_scipy`.
        ValueError: likewise.
    """
    from jax.experimental import sparse

    rows, cols, entries, shape = _coordinates(data, values)
    order = np.argsort(rows, kind="stable")
    indptr = np.searchsorted(rows[order], np.arange(shape[0] + 1))
    parts = entries[order], cols[order].astype(np.int32), indptr.astype(np.int32)
    return sparse.BCSR(jax.device_put(parts), shape=(*shape, *entries.shape[1:]))
