"""Attention over edges and its derivatives, composed of segment primitives."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, as_column
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.ids import PADDING
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, segment_reduce, total, weighted_sum
from jax_gnn._ops.segment_softmax.primitive import segment_softmax


def end_matrices(matrix: SparseMatrix) -> tuple[SparseMatrix, SparseMatrix]:
    """Return the matrices that sum entries at their rows and at their columns.

    Their transposes gather from rows and from columns to entries.
    """
    by_row, by_col = matrix
    at_cols = SparseMatrix(
        Csr(by_col.rows, by_col.order, num_rows=by_col.num_rows),
        Csr(None, by_row.cols, num_rows=by_row.count),
    )
    return segments(by_row.rows, by_row.num_rows), at_cols


def carried(matrix: SparseMatrix) -> SparseMatrix:
    """Return the matrix that sums arrays of entries at their rows, without padding."""
    csr = matrix.by_row
    valid = csr.valid(matrix.by_col.num_rows)
    places = jnp.arange(csr.count, dtype=csr.rows.dtype)
    return SparseMatrix(
        Csr(csr.rows, jnp.where(valid, places, PADDING), num_rows=csr.num_rows, own_cols=True),
        Csr(None, jnp.where(valid, csr.rows, PADDING), num_rows=csr.count),
    )


# LeakyReLUs in attention have slope 1 at 0, as `jax.nn.leaky_relu`, in all kernels.
LEAKY_COMPARISON = "ge"


def leaky(z: Array, slope: float) -> Array:
    """Return the LeakyReLU of z; -inf stays -inf for any slope."""
    negative = jnp.where(z == -jnp.inf, z, slope * jnp.where(z == -jnp.inf, 0, z))
    return jnp.where(z >= 0, z, negative)


def sloped(tangent: Array, z: Array, slope: float) -> Array:
    """Return a tangent or cotangent times the slope of the LeakyReLU at z."""
    return tangent if slope == 1 else jnp.where(z >= 0, tangent, slope * tangent)


def _softmax(score: Array, stats: Array, matrix: SparseMatrix) -> tuple[Array, Array]:
    """Return the softmax, ``(entries, heads)``, from its statistics, and the mask of no padding."""
    at_rows, at_cols = end_matrices(matrix)
    valid = as_column(matrix.by_row.valid(at_cols.by_row.num_rows))
    top, log_sum = (gather(stats[..., i], at_rows) for i in range(2))
    score = jnp.where(valid, score, 0)
    share = jnp.exp((score - top) - jnp.where(valid, log_sum, 0))
    return jnp.where(valid, share, 0), valid


def weights(score: Array, entry_scale: Array | None, stats: Array, matrix: SparseMatrix) -> Array:
    """Return the weights of the values, ``(entries, heads)``; 0 for padding."""
    share, valid = _softmax(score, stats, matrix)
    return share if entry_scale is None else share * jnp.where(valid, entry_scale, 0)


def attention(
    value: Array, score: Array, entry_scale: Array | None, matrix: SparseMatrix, *, heads: int
) -> list[Array]:
    """Return the sums under the softmax of entries' scores, and the softmax's statistics."""
    at_rows, at_cols = end_matrices(matrix)
    valid = as_column(matrix.by_row.valid(at_cols.by_row.num_rows))
    score = jnp.where(valid, score, 0)
    # The maximum is a constant: its gradient cancels in the logarithm of the sum.
    masked = jax.lax.stop_gradient(jnp.where(valid, score, -jnp.inf))
    top = segment_reduce(masked, None, at_rows, reduce="max", heads=1)
    top = jnp.where(jnp.isfinite(top), top, 0)
    powers = jnp.where(valid, jnp.exp(score - gather(top, at_rows)), 0)
    sums = total(powers, at_rows)
    empty = sums == 0
    log_sum = jnp.where(empty, jnp.inf, jnp.log(jnp.where(empty, 1, sums)))
    stats = jnp.stack([top, log_sum], axis=-1)
    weight, _ = _softmax(score, stats, matrix)
    if entry_scale is not None:
        weight = weight * entry_scale
    y = weighted_sum(value, weight, matrix, heads)
    return [y, stats]


def attention_jvp(
    residuals: Any, dvalue: Array | None, dscore: Array, *, heads: int
) -> list[Array]:
    """Return the tangents of y and of log_sum, from those of values and of entries' scores."""
    value, scores, entry_scale, y, stats, *_, matrix = residuals
    at_rows, _ = end_matrices(matrix)
    share, valid = _softmax(scores.score, stats, matrix)
    dshare = share * jnp.where(valid, dscore, 0)
    dlog_sum = total(dshare, at_rows)
    if entry_scale is not None:
        share, dshare = share * entry_scale, dshare * entry_scale
    dy = weighted_sum(value, dshare, matrix, heads)
    if dvalue is not None:
        dy = weighted_sum(dvalue, share, matrix, heads) + dy
    by_head = y.reshape(y.shape[0], heads, y.shape[1] // heads).astype(dlog_sum.dtype)
    normalization = (by_head * dlog_sum[..., None]).reshape(y.shape)
    return [dy - normalization.astype(y.dtype), dlog_sum]


def attention_vjp(residuals: Any, *, heads: int) -> tuple[Array, Array]:
    """Return the cotangents of values and of entries' scores; `residuals` has those of results."""
    value, scores, entry_scale, y, stats, _, ct, log_sum_ct, matrix = residuals
    score = scores.score
    at_rows, _ = end_matrices(matrix)
    # FlashAttention's D: ⟨ct, y⟩ of a row replaces a sum over its entries.
    delta = row_dots(ct, jnp.zeros_like(ct) if y is None else y, heads)
    if log_sum_ct is not None:
        delta -= log_sum_ct
    share, valid = _softmax(score, stats, matrix)
    dots = sddmm(ct, value, matrix, heads=heads)
    scaled = share
    if entry_scale is not None:
        scaled, dots = share * entry_scale, dots * jnp.where(valid, entry_scale, 0)
    to_value = weighted_sum(ct, scaled, matrix.T, heads)
    to_score = share * (dots - gather(delta, at_rows))
    return to_value, jnp.where(valid, to_score, 0).astype(accumulator_dtype(value.dtype))


def row_dots(a: Array, b: Array, heads: int) -> Array:
    """Return the dot products of rows for each head, in the accumulator type."""
    acc = accumulator_dtype(a.dtype)
    products = a.astype(acc) * b.astype(acc)
    return jnp.sum(products.reshape(a.shape[0], heads, a.shape[1] // heads), axis=2)


# --- Softmaxes over finer rows -------------------------------------------------------------------


def shares(stats: Array, matrix: SparseMatrix, shift: Array | None = None) -> Array:
    """Return the weights of finer rows in the softmax of their destination, ``(rows, heads)``.

    Attention over finer rows has a softmax for each of them. The softmax of their destination
    differs by a factor of each finer row, whose logarithm is rounded as scores are.

    Args:
        stats: Statistics of attention over the finer rows, ``(rows, heads, 2)``.
        matrix: Matrix that sums finer rows at their destinations.
        shift: Terms of all scores of a finer row, ``(rows, heads)``; or None.
    """
    scores = logsumexp(stats)
    scores = scores if shift is None else scores + shift.astype(scores.dtype)
    smallest = float(jnp.finfo(stats.dtype).min) / 4  # the difference of two -inf is NaN
    scores = jnp.maximum(scores, smallest)
    return cast(Array, segment_softmax(scores, matrix))


def logsumexp(stats: Array) -> Array:
    """Return log Σ exp(score) of each row, from its statistics; -inf for rows without entries."""
    top, log_sum = stats[..., 0], stats[..., 1]
    empty = log_sum == jnp.inf
    return jnp.where(empty, -jnp.inf, top + jnp.where(empty, 0, log_sum))
