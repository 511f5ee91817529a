"""What a CPU does better than XLA with ids in any order: large scatters, and gathers of rows.

These ops are what ``segment_reduce`` is made of when it is lowered: they meet no transformation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jax_gnn._core.arrays import DTYPES, JAX_OPS, row_width, take
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import MAX_SIZE, at_most, clip_ids
from jax_gnn._core.kernels import narrow_ids
from jax_gnn._core.op import Bind, Call, Op, Operand, define

REDUCTIONS = ("sum", "mean", "max", "min", "prod", "logsumexp")
"""In the order of ``enum Reduce`` in segments.h."""

# From so many bytes of a row on, and of the array that ids point into: beyond caches. Below, XLA
# scatters as fast, and makes a gather in one loop with what reads it.
_ROW_BYTES, _LARGE = 64, 2**22


class Rows(NamedTuple):
    """Operands of both ops.

    Attributes:
        x: ``(rows, *features)``.
        ids: ``(entries,)``, where rows of x go to, or which of them are read.
    """

    x: Any
    ids: Any


def _call(platform: str, operands: Rows, **attributes: Any) -> Call | None:
    del platform
    x, ids = operands
    size = attributes.get("num_rows", x.shape[0])
    found = {"reduce": np.int64(REDUCTIONS.index(attributes["reduce"]))} if attributes else {}
    return Call([x, narrow_ids(ids, size)], found)


def _never_batched(bind: Bind, operands: Any, batched: Any, size: int) -> Any:
    raise AssertionError("it is made when a reduction is lowered")


def _define(name: str, result: Callable[..., Any], xla: Callable[..., Array]) -> Op:
    return define(
        Op(
            name=name,
            operands=Rows,
            result=result,
            xla=xla,
            transpose={},
            batch=_never_batched,
            platforms=("cpu",),
            call=_call,
        )
    )


def _scattered(operands: Rows, *, num_rows: int, reduce: str) -> jax.ShapeDtypeStruct:
    del reduce
    return jax.ShapeDtypeStruct((num_rows, *operands.x.shape[1:]), operands.x.dtype)


def _scatter(x: Array, ids: Array, *, num_rows: int, reduce: str) -> Array:
    return JAX_OPS[reduce](x, clip_ids(ids, num_rows), num_rows)


def _gathered(operands: Rows) -> jax.ShapeDtypeStruct:
    x, ids = operands
    return jax.ShapeDtypeStruct((ids.shape[0], *x.shape[1:]), x.dtype)


# out[r] = reduce of the rows of x whose id is r; and out[i] = x[ids[i]], zeros where there is none.
segment_scatter = _define("segment_scatter", _scattered, _scatter)
gather_rows = _define("gather_rows", _gathered, take)


def composition(
    platform: str,
    implementation: str | None,
    operands: Any,
    *,
    reduce: str,
    heads: int,
    relu: bool = False,
) -> Callable[..., Array] | None:
    """Of ``segment_reduce``, where one of these ops is faster."""
    del heads
    x, weight, matrix, *epilogue = operands
    plain = weight is None and not relu and all(each is None for each in epilogue)
    if platform != "cpu" or not plain or x.dtype not in DTYPES or not _sizes_known(x, matrix):
        return None
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


def _sizes_known(x: Operand, matrix: SparseMatrix) -> bool:
    """Sizes are numbers that kernels can take."""
    sizes = (*x.shape, matrix.by_row.num_rows, matrix.by_row.count)
    return all(isinstance(size, int) and at_most(size, MAX_SIZE - 1) for size in sizes)


def _as_gather(x: Array, matrix: SparseMatrix, **others: Any) -> Array:
    del others
    return gather_rows(x, matrix.by_row.cols)


def _as_scatter(reduce: str, x: Array, matrix: SparseMatrix, **others: Any) -> Array:
    del others
    assert matrix.unsorted is not None  # it was asked for before
    ids, num_rows = matrix.unsorted.rows, matrix.by_row.num_rows
    return segment_scatter(x, ids, num_rows=num_rows, reduce=reduce)
