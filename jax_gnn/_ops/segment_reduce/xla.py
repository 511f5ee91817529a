"""The primitives of reductions in plain ``jax.numpy``."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import (
    JAX_OPS,
    accumulator_dtype,
    as_column,
    feature_wise,
    round_to_dtype,
    row_wise,
    take,
)
from jax_gnn._core.csr import Csr, LastRows, SparseMatrix
from jax_gnn._core.ids import clip_ids


def _scale(x: Array, weight: Array | None, heads: int) -> Array:
    """Multiply ``(entries, heads · features)`` by ``(entries, heads)``."""
    if weight is None:
        return x
    split = x.reshape(x.shape[0], heads, x.shape[1] // heads)
    return (split * weight[:, :, None]).reshape(x.shape)


def into_rows(reduce: Callable[..., Array], messages: Array, valid: Array, csr: Csr) -> Array:
    """Apply a reduction of ``jax.ops`` to the messages of all valid entries."""
    rows = clip_ids(csr.rows, csr.num_rows)
    if csr.cols is not None or csr.order is not None:  # jax.ops itself drops rows out of range
        rows = jnp.where(valid, rows, csr.num_rows)
    return reduce(messages, rows, csr.num_rows)


def epilogue(
    result: Array,
    x: Array,
    self_scale: Array | None,
    out_scale: Array | None,
    residual: Array | None,
    bias: Array | None,
    result_scale: Array | None = None,
    *,
    relu: bool,
) -> Array:
    """Apply the epilogue of `Messages` to reduced rows, in the accumulator type."""
    result = result.astype(accumulator_dtype(result.dtype))
    if self_scale is not None:
        result += row_wise(self_scale, result) * x.astype(result.dtype)
    if out_scale is not None:
        result *= row_wise(out_scale, result)
    if residual is not None:
        result += residual.astype(result.dtype)
    if bias is not None:
        result += feature_wise(bias, result)
    result = jax.nn.relu(result) if relu else result
    return result if result_scale is None else row_wise(result_scale, result) * result


def segment_reduce(
    x: Array,
    weight: Array | None,
    matrix: SparseMatrix,
    self_scale: Array | None = None,
    out_scale: Array | None = None,
    residual: Array | None = None,
    bias: Array | None = None,
    result_scale: Array | None = None,
    halo: Array | None = None,
    halo_rows: LastRows | None = None,
    num_valid: Array | None = None,
    *,
    reduce: str,
    heads: int,
    relu: bool = False,
) -> Array:
    rows = x if halo is None else jnp.concatenate([x, halo])
    result = _reduce(rows, weight, matrix, reduce, heads)
    operands = self_scale, out_scale, residual, bias, result_scale
    if relu or any(operand is not None for operand in operands):
        result = epilogue(result, x, *operands, relu=relu)
    return result.astype(x.dtype)


def _reduce(x: Array, weight: Array | None, matrix: SparseMatrix, reduce: str, heads: int) -> Array:
    csr = matrix.unsorted or matrix.by_row
    if csr.rows is None and weight is None:
        return take(x, csr.cols, csr.in_range)
    valid = csr.valid(x.shape[0])
    x = take(x.astype(accumulator_dtype(x.dtype)), csr.cols)
    if weight is not None:
        x = _scale(x, take(weight, csr.order), heads)
    if csr.rows is None:
        return jnp.where(as_column(valid), x, 0)
    if reduce == "mean":
        count = into_rows(JAX_OPS["sum"], valid.astype(x.dtype), valid, csr)
        result = into_rows(JAX_OPS["sum"], x, valid, csr)
        result /= row_wise(jnp.maximum(count, 1), result)
    elif reduce == "logsumexp":
        maximum = into_rows(JAX_OPS["max"], x, valid, csr)
        maximum = jnp.where(jnp.isfinite(maximum), maximum, 0)
        powers = jnp.exp(x - take(maximum, csr.rows))
        result = jnp.log(into_rows(JAX_OPS["sum"], powers, valid, csr)) + maximum
    else:
        result = into_rows(JAX_OPS[reduce], x, valid, csr)
    return result


def _matching(
    row_key: Array, col_key: Array, weight: Array | None, csr: Csr, weight_on_row: bool, heads: int
) -> Array:
    """Return ``(entries, features)``: whether an entry's message equals the key of its row."""
    p, q = take(round_to_dtype(row_key), csr.rows), take(round_to_dtype(col_key), csr.cols)
    if weight is not None:
        weight = take(weight, csr.order)
        p, q = (_scale(p, weight, heads), q) if weight_on_row else (p, _scale(q, weight, heads))
    return (p == q) & as_column(csr.valid(col_key.shape[0]))


def segment_select(
    row_key: Array,
    col_key: Array,
    value: Array | None,
    weight: Array | None,
    factor: Array | None,
    matrix: SparseMatrix,
    *,
    weight_on_row: bool,
    heads: int,
) -> Array:
    csr, acc = matrix.by_row, accumulator_dtype(row_key.dtype)
    match = _matching(row_key, col_key, weight, csr, weight_on_row, heads)
    messages = match.astype(acc)
    if value is not None:
        messages = jnp.where(match, take(value.astype(acc), csr.cols), 0)
    if factor is not None:
        factor = take(factor, csr.order)
        messages = jnp.where(match, _scale(messages, factor, heads), 0)
    if csr.rows is not None:
        valid = csr.valid(col_key.shape[0])
        messages = into_rows(JAX_OPS["sum"], messages, valid, csr)
    return messages.astype(row_key.dtype)


def _dots(a: Array, b: Array, csr: Csr, heads: int, mask: Array) -> Array:
    acc = accumulator_dtype(a.dtype)
    products = take(a.astype(acc), csr.rows) * take(b.astype(acc), csr.cols)
    products = jnp.where(mask, products, 0)
    return jnp.sum(products.reshape(csr.count, heads, a.shape[1] // heads), 2)


def sddmm(a: Array, b: Array, matrix: SparseMatrix, *, heads: int) -> Array:
    csr = matrix.by_row
    return _dots(a, b, csr, heads, as_column(csr.valid(b.shape[0])))


def sddmm_select(
    a: Array,
    b: Array,
    row_key: Array,
    col_key: Array,
    weight: Array | None,
    matrix: SparseMatrix,
    *,
    weight_on_row: bool,
    heads: int,
) -> Array:
    csr = matrix.by_row
    match = _matching(row_key, col_key, weight, csr, weight_on_row, heads)
    return _dots(a, b, csr, heads, match)
