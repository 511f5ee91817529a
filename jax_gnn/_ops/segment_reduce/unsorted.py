"""Kernels for CPUs of ids in any order: large scatters and gathers, which are slow in XLA.

``segment_reduce`` is lowered to these ops. They are never transformed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax import Array

from jax_gnn._core.arrays import DTYPES, JAX_OPS, row_width, take
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import MAX_SIZE, at_most, clip_ids
from jax_gnn._core.kernels import narrow_ids
from jax_gnn._core.op import Call, Op
from jax_gnn._core.types import Attribute, PyTree, Shaped

REDUCTIONS = ("sum", "mean", "max", "min", "prod", "logsumexp")
"""Names of reductions, in the order of ``enum Reduce`` in segments.h."""

# Least bytes of a row, and of the array that ids index, which exceeds caches. Below, XLA scatters
# as fast, and fuses a gather with its consumer.
_ROW_BYTES, _LARGE = 64, 2**22


class Rows(NamedTuple):
    """Operands of both ops: rows, and ids of the rows that are written or read."""

    x: Any  # (rows, *features)
    ids: Any  # (entries,)


def _call(platform: str, operands: Rows, **attributes: Attribute) -> Call | None:
    x, ids = operands
    size = attributes.get("num_rows", x.shape[0])
    is_scatter = "reduce" in attributes
    flags = {"reduce": np.int64(REDUCTIONS.index(attributes["reduce"]))} if is_scatter else {}
    return Call([x, narrow_ids(ids, size)], flags)


_define = functools.partial(Op, operands=Rows, platforms=("cpu",), call=_call)


def _scatter(x: Array, ids: Array, *, num_rows: int, reduce: str) -> Array:
    return cast(Array, JAX_OPS[reduce](x, clip_ids(ids, num_rows), num_rows))


def _rows_like(x: Shaped, num_rows: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((num_rows, *x.shape[1:]), x.dtype)


# out[r] = reduce of the rows of x whose id is r; and out[i] = x[ids[i]], zeros for padding.
segment_scatter = _define(
    name="segment_scatter",
    result=lambda rows, *, num_rows, reduce: _rows_like(rows.x, num_rows),
    xla=_scatter,
)
gather_rows = _define(
    name="gather_rows", result=lambda rows: _rows_like(rows.x, rows.ids.shape[0]), xla=take
)


def composition(
    platform: str,
    implementation: str | None,
    operands: PyTree,
    *,
    reduce: str,
    heads: int,
    relu: bool = False,
) -> Callable[..., Array] | None:
    """Return ``segment_reduce`` by one of these ops where that is faster."""
    x, weight, matrix, *epilogue = operands
    plain = weight is None and not relu and all(operand is None for operand in epilogue)
    sizes = (*x.shape, matrix.by_row.num_rows, matrix.by_row.count)
    fits = all(isinstance(size, int) and at_most(size, MAX_SIZE - 1) for size in sizes)
    if platform != "cpu" or not plain or x.dtype not in DTYPES or not fits:
        return None
    # A scatter pays for wide rows of a large array, with entries enough to touch most of it.
    row_bytes = row_width(x) * np.dtype(x.dtype).itemsize
    csr, unsorted = matrix.by_row, matrix.unsorted
    is_gather = csr.rows is None
    rows = x.shape[0] if is_gather else csr.num_rows
    if row_bytes < _ROW_BYTES or rows * row_bytes < _LARGE or 4 * csr.count < rows:
        return None
    if is_gather:
        return _as_gather if csr.order is None and csr.cols is not None else None
    if unsorted is None or implementation is not None or x.dtype.itemsize < 4:
        return None
    return functools.partial(_as_scatter, reduce) if reduce in JAX_OPS else None


def _as_gather(x: Array, matrix: SparseMatrix, **operands: object) -> Array:
    return cast(Array, gather_rows(x, matrix.by_row.cols))


def _as_scatter(reduce: str, x: Array, matrix: SparseMatrix, **operands: object) -> Array:
    assert matrix.unsorted is not None  # `composition` has checked it
    ids, num_rows = matrix.unsorted.rows, matrix.by_row.num_rows
    return cast(Array, segment_scatter(x, ids, num_rows=num_rows, reduce=reduce))
