"""Segmented matrix products in plain ``jax.numpy``."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jax_gnn._core.activation import ACTIVATIONS
from jax_gnn._core.arguments import check_concrete
from jax_gnn._core.arrays import accumulator_dtype, as_column, feature_wise, promoted, take
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import index_dtype
from jax_gnn._core.sharding import replicate


def _bounds(sizes: Array, offset: Array, num_groups: int, rows: int) -> Array:
    """Return ``(num_groups + 1,)``: the first row of each group of the weights, and the end."""
    reason = "plain XLA adds them up in steps"
    check_concrete("the number of group_sizes", sizes.shape[0], reason)
    sizes = replicate(sizes).astype(promoted(sizes.dtype, index_dtype(rows)))
    # A cumulative sum that saturates at `rows` and so cannot overflow.
    sums = jax.lax.associative_scan(
        lambda a, b: a + jnp.minimum(b, rows - a), jnp.clip(sizes, 0, rows)
    )
    starts = jnp.pad(sums, (1, 0))
    return starts[
        jnp.clip(offset + jnp.arange(num_groups + 1, dtype=offset.dtype), 0, sizes.shape[0])
    ]


def cover(sizes: Array, offset: Array, num_groups: int, rows: int) -> tuple[Array, Array]:
    """Return groups without an offset that cover all rows, and the mask of rows of real groups.

    Returns:
        ``(num_groups,)`` sizes whose sum is ``rows``: the first and the last group are extended
        over rows of no group; and the mask, ``(rows,)``.
    """
    bounds = _bounds(sizes, offset, num_groups, rows)
    return jnp.diff(bounds.at[0].set(0).at[-1].set(rows)), _within(bounds, rows)


def in_groups(sizes: Array, offset: Array, num_groups: int, rows: int) -> Array:
    """Return ``(rows,)``: whether a row belongs to a group with a weight."""
    return _within(_bounds(sizes, offset, num_groups, rows), rows)


def _within(bounds: Array, rows: int) -> Array:
    row = jnp.arange(rows, dtype=bounds.dtype)
    return (row >= bounds[0]) & (row < bounds[-1])


def row_groups(sizes: Array, offset: Array, num_groups: int, rows: int) -> Array:
    """Return ``(rows,)`` groups, ascending; -1 before the first group, ``num_groups`` past them."""
    bounds = _bounds(sizes, offset, num_groups, rows)
    row = jnp.arange(rows, dtype=bounds.dtype)
    groups = jnp.searchsorted(bounds, row, side="right", method="scan_unrolled")
    return groups.astype(bounds.dtype) - 1


def _ragged_dot(
    contracted: tuple[int, int], lhs: Array, rhs: Array, sizes: Array, precision: jax.lax.Precision
) -> Array:
    if jnp.issubdtype(lhs.dtype, np.complexfloating):
        # XLA's product of ragged complex rows crashes on a GPU (jax 0.11): use four real ones.
        def real(a: Array, b: Array) -> Array:
            return _ragged_dot(contracted, a, b, sizes, precision)

        return jax.lax.complex(
            real(lhs.real, rhs.real) - real(lhs.imag, rhs.imag),
            real(lhs.real, rhs.imag) + real(lhs.imag, rhs.real),
        )
    numbers = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(([contracted[0]], [contracted[1]]), ([], [])),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[0] if rhs.ndim == 3 else [],
    )
    acc = accumulator_dtype(lhs.dtype)
    return jax.lax.ragged_dot_general(
        lhs, rhs, sizes, numbers, precision=precision, preferred_element_type=acc
    )


def valid_rows(*gathers: SparseMatrix | None) -> Any:
    """Return ``(rows,)``: whether all gathers' ids are in range; True without gathers."""
    masks = [m.by_row.valid(m.by_col.num_rows) for m in gathers if m is not None]
    return functools.reduce(operator.and_, masks, np.True_)


def _gather_rows(x: Array, gather: SparseMatrix | None) -> Array:
    return take(x, None if gather is None else gather.by_row.cols)


def segment_matmul(
    lhs: Array,
    rhs: Array,
    bias: Array | None,
    residual: Array | None,
    scale: Array | None,
    sizes: Array,
    offset: Array,
    gather: SparseMatrix | None,
    scatter: SparseMatrix | None,
    *,
    transposed: bool,
    precision: jax.lax.Precision,
    activation: str | None,
    dtype: DTypeLike,
) -> Array:
    """Return the products; operands and attributes as in `Rows`."""
    lhs = _gather_rows(lhs, gather)
    rows, num_groups = lhs.shape[0], rhs.shape[0]
    shape = rows, rhs.shape[1 if transposed else 2]
    if num_groups == 0 or 0 in shape:
        return finished(jnp.zeros(shape, dtype), residual, activation, dtype)
    # Where XLA multiplies all rows with all weights, 0 · NaN is NaN: weights of no row are zeroed.
    counts = jnp.diff(_bounds(sizes, offset, num_groups, rows))
    rhs = jnp.where((counts > 0)[:, None, None], rhs, 0)
    # XLA reads all rows, so every row needs a group; rows of no group are masked after the product.
    sizes, valid = cover(sizes, offset, num_groups, rows)
    result = _ragged_dot((1, 2 if transposed else 1), lhs, rhs, sizes, precision)
    if scale is not None:
        result *= as_column(scale)
    if bias is not None:
        groups = jnp.repeat(jnp.arange(num_groups), sizes, total_repeat_length=rows)
        result += bias[groups].astype(result.dtype)
    result = _gather_rows(jnp.where(as_column(valid), result, 0), scatter)
    return finished(result, residual, activation, dtype)


def finished(
    result: Array, residual: Array | None, activation: str | None, dtype: DTypeLike
) -> Array:
    """Add the residual and apply the activation, which keeps rows without a product 0."""
    if residual is not None:
        result = feature_wise(result, residual) + feature_wise(
            residual.astype(result.dtype), result
        )
    if activation is not None:
        result = ACTIVATIONS[activation](result)
    return result.astype(dtype)


def segment_outer(
    lhs: Array,
    rhs: Array,
    scale: Array | None,
    sizes: Array,
    offset: Array,
    lhs_gather: SparseMatrix | None,
    rhs_gather: SparseMatrix | None,
    *,
    num_groups: int,
    precision: jax.lax.Precision,
    deterministic: bool,
    dtype: DTypeLike,
) -> Array:
    """Return the sums of outer products; operands and attributes as in `Factors`."""
    in_range = valid_rows(lhs_gather, rhs_gather)
    lhs, rhs = _gather_rows(lhs, lhs_gather), _gather_rows(rhs, rhs_gather)
    if num_groups == 0 or 0 in (*lhs.shape, *rhs.shape):
        return jnp.zeros((num_groups, lhs.shape[1], rhs.shape[1]), dtype)
    if scale is not None:  # in the accumulator type, to round once
        lhs, rhs = (x.astype(scale.dtype) for x in (lhs, rhs))
        lhs *= as_column(scale)
    sizes, valid = cover(sizes, offset, num_groups, lhs.shape[0])
    # Both factors are masked, since 0 · NaN is NaN.
    lhs, rhs = (jnp.where(as_column(valid & in_range), x, 0) for x in (lhs, rhs))
    return _ragged_dot((0, 0), lhs, rhs, sizes, precision).astype(dtype)
