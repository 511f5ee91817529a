"""Attention over edges and its derivatives in other primitives, which are closed themselves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, column
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.ids import PADDING
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, segment_reduce, total


def ends(matrix: SparseMatrix) -> tuple[SparseMatrix, SparseMatrix]:
    """What sums the entries at their rows, and at their columns; the transposes gather."""
    by_row, by_col = matrix
    at_cols = SparseMatrix(
        Csr(by_col.rows, by_col.order, num_rows=by_col.num_rows),
        Csr(None, by_row.cols, num_rows=by_row.count),
    )
    return segments(by_row.rows, by_row.num_rows), at_cols


def carried(matrix: SparseMatrix) -> SparseMatrix:
    """What sums, at their rows, what entries carry; padding carries nothing."""
    csr = matrix.by_row
    valid = csr.valid(matrix.by_col.num_rows)
    places = jnp.arange(csr.count, dtype=csr.rows.dtype)
    return SparseMatrix(
        Csr(csr.rows, jnp.where(valid, places, PADDING), num_rows=csr.num_rows),
        Csr(None, jnp.where(valid, csr.rows, PADDING), num_rows=csr.count),
    )


def _scores(
    row_score: Array | None,
    col_score: Array | None,
    entry_score: Array | None,
    matrix: SparseMatrix,
    slope: float,
    implementation: str | None = None,
) -> tuple[Array, Array, Array]:
    """Of each entry and head the score, the slope of the LeakyReLU; and which are no padding."""
    at_rows, at_cols = ends(matrix)
    valid = column(matrix.by_row.valid(at_cols.by_row.num_rows))
    if entry_score is not None:
        score = jnp.where(valid, entry_score, 0)
        return score, jnp.ones_like(score), valid
    assert row_score is not None and col_score is not None
    score = gather(row_score, at_rows, implementation) + gather(col_score, at_cols, implementation)
    score = jnp.where(valid, score, 0)
    slopes = jnp.where(score > 0, 1, jnp.asarray(slope, score.dtype)).astype(score.dtype)
    return leaky(score, slope), slopes, valid


def leaky(z: Array, slope: float) -> Array:
    """The LeakyReLU; -inf stays, whatever the slope is."""
    below = jnp.where(z == -jnp.inf, z, slope * jnp.where(z == -jnp.inf, 0, z))
    return jnp.where(z > 0, z, below)


def _shares(
    score: Array,
    valid: Array,
    stats: Array,
    matrix: SparseMatrix,
    implementation: str | None = None,
) -> Array:
    """The softmax of scores, ``(entries, heads)``, by its statistics; 0 for padding."""
    at_rows, _ = ends(matrix)
    top, log_sum = (gather(stats[..., i], at_rows, implementation) for i in range(2))
    return jnp.where(valid, jnp.exp((score - top) - jnp.where(valid, log_sum, 0)), 0)


def weights(
    row_score: Array | None,
    col_score: Array | None,
    entry_score: Array | None,
    entry_scale: Array | None,
    stats: Array,
    matrix: SparseMatrix,
    slope: float,
    implementation: str | None = None,
) -> Array:
    """What values are multiplied by, ``(entries, heads)``; 0 for padding."""
    score, _, valid = _scores(row_score, col_score, entry_score, matrix, slope, implementation)
    share = _shares(score, valid, stats, matrix, implementation)
    return share if entry_scale is None else share * jnp.where(valid, entry_scale, 0)


def edge_attention(
    value: Array,
    row_score: Array | None,
    col_score: Array | None,
    entry_score: Array | None,
    entry_scale: Array | None,
    matrix: SparseMatrix,
    *,
    heads: int,
    slope: float,
    implementation: str | None = None,
) -> list[Array]:
    score, _, valid = _scores(*(row_score, col_score, entry_score, matrix, slope, implementation))
    at_rows, _ = ends(matrix)
    least = jnp.where(valid, score, -jnp.inf)
    # A constant: differentiated it would go, as what is relative to it is a logarithm of a sum.
    top = segment_reduce(
        *(jax.lax.stop_gradient(least), None, at_rows),
        reduce="max",
        heads=1,
        implementation=implementation,
    )
    top = jnp.where(jnp.isfinite(top), top, 0)
    powers = jnp.where(valid, jnp.exp(score - gather(top, at_rows, implementation)), 0)
    sums = total(powers, at_rows, implementation)
    empty = sums == 0
    log_sum = jnp.where(empty, jnp.inf, jnp.log(jnp.where(empty, 1, sums)))
    stats = jnp.stack([top, log_sum], axis=-1)
    weight = _shares(score, valid, stats, matrix, implementation)
    if entry_scale is not None:
        weight = weight * entry_scale
    options: dict[str, Any] = {"reduce": "sum", "heads": heads, "implementation": implementation}
    return [segment_reduce(value, weight, matrix, **options), stats]


def edge_attention_jvp(known: Any, moving: Any, *, heads: int, slope: float) -> list[Array]:
    value, row_score, col_score, entry_score, entry_scale, y, stats, matrix = known
    score, slopes, valid = _scores(row_score, col_score, entry_score, matrix, slope)
    at_rows, at_cols = ends(matrix)
    dscore = jnp.zeros_like(score) if moving.score is None else moving.score
    for tangent, at in ((moving.row_score, at_rows), (moving.col_score, at_cols)):
        if tangent is not None:
            dscore = dscore + gather(tangent, at)
    share = _shares(score, valid, stats, matrix)
    moved = share * slopes * jnp.where(valid, dscore, 0)
    dlog_sum = total(moved, at_rows)
    if entry_scale is not None:
        share, moved = share * entry_scale, moved * entry_scale
    dy = segment_reduce(value, moved, matrix, reduce="sum", heads=heads)
    if moving.value is not None:
        dy = segment_reduce(moving.value, share, matrix, reduce="sum", heads=heads) + dy
    split = y.reshape(y.shape[0], heads, y.shape[1] // heads).astype(dlog_sum.dtype)
    back = (split * dlog_sum[..., None]).reshape(y.shape)
    return [dy - back.astype(y.dtype), dlog_sum]


def edge_attention_vjp(
    value: Array,
    row_score: Array | None,
    col_score: Array | None,
    entry_score: Array | None,
    entry_scale: Array | None,
    y: Array,
    stats: Array,
    ct: Array,
    log_sum_ct: Array | None,
    matrix: SparseMatrix,
    *,
    heads: int,
    slope: float,
    implementation: str | None = None,
) -> list[Array]:
    score, slopes, valid = _scores(
        *(row_score, col_score, entry_score, matrix, slope, implementation)
    )
    at_rows, at_cols = ends(matrix)
    delta = row_dots(ct, y, heads)
    if log_sum_ct is not None:
        delta -= log_sum_ct
    share = _shares(score, valid, stats, matrix, implementation)
    dots = sddmm(ct, value, matrix, heads=heads, implementation=implementation)
    scaled = share
    if entry_scale is not None:
        scaled, dots = share * entry_scale, dots * jnp.where(valid, entry_scale, 0)
    to_value = segment_reduce(
        ct, scaled, matrix.T, reduce="sum", heads=heads, implementation=implementation
    )
    to_score = share * (dots - gather(delta, at_rows, implementation)) * slopes
    to_score = jnp.where(valid, to_score, 0).astype(accumulator_dtype(value.dtype))
    if col_score is None:
        to_col_score = jnp.zeros((0, heads), to_score.dtype)
    else:
        to_col_score = total(to_score, at_cols, implementation)
    return [to_value, to_col_score, to_score]


def row_dots(a: Array, b: Array, heads: int) -> Array:
    """Of each row and head, in the accumulator type."""
    acc = accumulator_dtype(a.dtype)
    products = a.astype(acc) * b.astype(acc)
    return jnp.sum(products.reshape(a.shape[0], heads, a.shape[1] // heads), axis=2)
