"""Attention over edges and its derivatives in other primitives, which are closed themselves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, as_column
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.ids import PADDING
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, segment_reduce, total
from jax_gnn._ops.segment_softmax.primitive import segment_softmax


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
        Csr(csr.rows, jnp.where(valid, places, PADDING), num_rows=csr.num_rows, own_cols=True),
        Csr(None, jnp.where(valid, csr.rows, PADDING), num_rows=csr.count),
    )


LEAKY_COMPARISON = "ge"
"""LeakyReLUs in attention have slope 1 at 0, as `jax.nn.leaky_relu`, in all kernels."""


def leaky(z: Array, slope: float) -> Array:
    """The LeakyReLU; -inf stays, whatever the slope is."""
    below = jnp.where(z == -jnp.inf, z, slope * jnp.where(z == -jnp.inf, 0, z))
    return jnp.where(z >= 0, z, below)


def sloped(change: Array, z: Array, slope: float) -> Array:
    """A change times the slope of the LeakyReLU at z: its derivative, or the transpose of that."""
    return change if slope == 1 else jnp.where(z >= 0, change, slope * change)


def _softmax(
    score: Array, stats: Array, matrix: SparseMatrix, implementation: str | None = None
) -> tuple[Array, Array]:
    """The softmax of scores, ``(entries, heads)``, by its statistics; and what is no padding."""
    at_rows, at_cols = ends(matrix)
    valid = as_column(matrix.by_row.valid(at_cols.by_row.num_rows))
    top, log_sum = (gather(stats[..., i], at_rows, implementation) for i in range(2))
    score = jnp.where(valid, score, 0)
    share = jnp.exp((score - top) - jnp.where(valid, log_sum, 0))
    return jnp.where(valid, share, 0), valid


def weights(
    score: Array,
    entry_scale: Array | None,
    stats: Array,
    matrix: SparseMatrix,
    implementation: str | None = None,
) -> Array:
    """What values are multiplied by, ``(entries, heads)``; 0 for padding."""
    share, valid = _softmax(score, stats, matrix, implementation)
    return share if entry_scale is None else share * jnp.where(valid, entry_scale, 0)


def attention(
    value: Array,
    score: Array,
    entry_scale: Array | None,
    matrix: SparseMatrix,
    *,
    heads: int,
    implementation: str | None = None,
) -> list[Array]:
    """Of scores that entries have: the sum under their softmax, and its statistics."""
    at_rows, at_cols = ends(matrix)
    valid = as_column(matrix.by_row.valid(at_cols.by_row.num_rows))
    score = jnp.where(valid, score, 0)
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
    weight, _ = _softmax(score, stats, matrix, implementation)
    if entry_scale is not None:
        weight = weight * entry_scale
    options: dict[str, Any] = {"reduce": "sum", "heads": heads, "implementation": implementation}
    return [segment_reduce(value, weight, matrix, **options), stats]


def attention_jvp(
    known: Any, to_value: Array | None, to_score: Array, *, heads: int
) -> list[Array]:
    """Of tangents of values and of given scores: those of y and of log_sum."""
    value, given, entry_scale, y, stats, *_, matrix = known
    score = given.score
    at_rows, _ = ends(matrix)
    share, valid = _softmax(score, stats, matrix)
    moved = share * jnp.where(valid, to_score, 0)
    dlog_sum = total(moved, at_rows)
    if entry_scale is not None:
        share, moved = share * entry_scale, moved * entry_scale
    dy = segment_reduce(value, moved, matrix, reduce="sum", heads=heads)
    if to_value is not None:
        dy = segment_reduce(to_value, share, matrix, reduce="sum", heads=heads) + dy
    split = y.reshape(y.shape[0], heads, y.shape[1] // heads).astype(dlog_sum.dtype)
    back = (split * dlog_sum[..., None]).reshape(y.shape)
    return [dy - back.astype(y.dtype), dlog_sum]


def attention_vjp(
    known: Any, *, heads: int, implementation: str | None = None
) -> tuple[Array, Array]:
    """Of what is known, cotangents among it, with given scores: those of values and of scores."""
    value, given, entry_scale, y, stats, _, ct, log_sum_ct, matrix = known
    score = given.score
    at_rows, _ = ends(matrix)
    delta = row_dots(ct, jnp.zeros_like(ct) if y is None else y, heads)
    if log_sum_ct is not None:
        delta -= log_sum_ct
    share, valid = _softmax(score, stats, matrix, implementation)
    dots = sddmm(ct, value, matrix, heads=heads, implementation=implementation)
    scaled = share
    if entry_scale is not None:
        scaled, dots = share * entry_scale, dots * jnp.where(valid, entry_scale, 0)
    to_value = segment_reduce(
        ct, scaled, matrix.T, reduce="sum", heads=heads, implementation=implementation
    )
    to_score = share * (dots - gather(delta, at_rows, implementation))
    return to_value, jnp.where(valid, to_score, 0).astype(accumulator_dtype(value.dtype))


def row_dots(a: Array, b: Array, heads: int) -> Array:
    """Of each row and head, in the accumulator type."""
    acc = accumulator_dtype(a.dtype)
    products = a.astype(acc) * b.astype(acc)
    return jnp.sum(products.reshape(a.shape[0], heads, a.shape[1] // heads), axis=2)


# --- Softmaxes over finer rows -------------------------------------------------------------------


def shares(
    stats: Array,
    matrix: SparseMatrix,
    shift: Array | None = None,
    implementation: str | None = None,
) -> Array:
    """What finer rows count in the softmax of their destination, ``(finer rows, heads)``.

    Of edges that go into finer rows, attention has the softmax of each by itself. That of a
    destination differs by a factor of each finer row. Its logarithm is rounded as scores are.

    Args:
        stats: Of attention over the finer rows, ``(finer rows, heads, 2)``.
        matrix: What sums these in their destinations.
        shift: What is added to all scores of a finer row, ``(finer rows, heads)``; or None.
        implementation: Of the kernels.
    """
    logarithms = logsumexp(stats)
    logarithms = logarithms if shift is None else logarithms + shift.astype(logarithms.dtype)
    least = jnp.finfo(stats.dtype).min / 4  # differences of -inf are no number
    scores = jnp.maximum(logarithms, least)
    return segment_softmax(scores, matrix, implementation=implementation)


def logsumexp(stats: Array) -> Array:
    """Of the scores of each row, of the statistics of its softmax; -inf where it has none."""
    top, log_sum = stats[..., 0], stats[..., 1]
    empty = log_sum == jnp.inf
    return jnp.where(empty, -jnp.inf, top + jnp.where(empty, 0, log_sum))
