"""The primitives in plain ``jax.numpy``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from jax_gnn import _index
from jax_gnn.views import JAX_OPS, View, Views, accumulator_dtype, column, in_range, spread, take


def _scale(x: Array, weight: Array | None, heads: int) -> Array:
    """Multiplies ``(entries, heads · features)`` by ``(entries, heads)``."""
    if weight is None:
        return x
    split = x.reshape(x.shape[0], heads, x.shape[1] // heads)
    return (split * weight[:, :, None]).reshape(x.shape)


def _into_rows(reduce: Any, messages: Array, valid: Array, view: View) -> Array:
    """Applies one of ``jax.ops``'s reductions to the messages of all valid entries."""
    assert view.rows is not None
    rows = _index.bounded(view.rows, view.num_rows)
    if view.cols is not None or view.order is not None:  # jax.ops itself drops rows out of range
        rows = jnp.where(valid, rows, view.num_rows)
    return reduce(messages, rows, view.num_rows)


def segment_reduce(
    x: Array, weight: Array | None, views: Views, *, reduce: str, heads: int
) -> Array:
    view, dtype = views.unsorted or views.forward, x.dtype
    if view.rows is None and weight is None:
        return take(x, view.cols)
    valid = view.valid(x.shape[0])
    x = take(x.astype(accumulator_dtype(dtype)), view.cols)
    if weight is not None:
        x = _scale(x, take(weight, view.order), heads)
    if view.rows is None:
        return jnp.where(column(valid), x, 0).astype(dtype)
    if reduce == "mean":
        count = _into_rows(JAX_OPS["sum"], valid.astype(x.dtype), valid, view)
        result = _into_rows(JAX_OPS["sum"], x, valid, view)
        result /= spread(jnp.maximum(count, 1), result)
    elif reduce == "logsumexp":
        top = _into_rows(JAX_OPS["max"], x, valid, view)
        top = jnp.where(jnp.isfinite(top), top, 0)
        powers = jnp.exp(x - take(top, view.rows))
        result = jnp.log(_into_rows(JAX_OPS["sum"], powers, valid, view)) + top
    else:
        result = _into_rows(JAX_OPS[reduce], x, valid, view)
    return result.astype(dtype)


def _matching(
    row_key: Array,
    col_key: Array,
    weight: Array | None,
    view: View,
    weight_on_row: bool,
    heads: int,
) -> Array:
    """``(entries, features)``, whether an entry's message is what the row has."""
    acc = accumulator_dtype(row_key.dtype)
    p, q = take(row_key.astype(acc), view.rows), take(col_key.astype(acc), view.cols)
    if weight is not None:
        weight = take(weight, view.order)
        p, q = (_scale(p, weight, heads), q) if weight_on_row else (p, _scale(q, weight, heads))
    return (p == q) & column(view.valid(col_key.shape[0]))


def segment_select(
    row_key: Array,
    col_key: Array,
    value: Array | None,
    weight: Array | None,
    factor: Array | None,
    views: Views,
    *,
    weight_on_row: bool,
    heads: int,
) -> Array:
    view, acc = views.forward, accumulator_dtype(row_key.dtype)
    match = _matching(row_key, col_key, weight, view, weight_on_row, heads)
    messages = match.astype(acc)
    if value is not None:
        messages = jnp.where(match, take(value.astype(acc), view.cols), 0)
    if factor is not None:
        factor = take(factor, view.order)
        messages = jnp.where(match, _scale(messages, factor, heads), 0)
    if view.rows is not None:
        valid = view.valid(col_key.shape[0])
        messages = _into_rows(JAX_OPS["sum"], messages, valid, view)
    return messages.astype(row_key.dtype)


def _dots(a: Array, b: Array, view: View, heads: int, mask: Array) -> Array:
    acc = accumulator_dtype(a.dtype)
    products = take(a.astype(acc), view.rows) * take(b.astype(acc), view.cols)
    products = jnp.where(mask, products, 0)
    return jnp.sum(products.reshape(view.count, heads, a.shape[1] // heads), 2)


def sddmm(a: Array, b: Array, views: Views, *, heads: int) -> Array:
    view = views.forward
    return _dots(a, b, view, heads, column(view.valid(b.shape[0])))


def sddmm_select(
    a: Array,
    b: Array,
    row_key: Array,
    col_key: Array,
    weight: Array | None,
    views: Views,
    *,
    weight_on_row: bool,
    heads: int,
) -> Array:
    view = views.forward
    match = _matching(row_key, col_key, weight, view, weight_on_row, heads)
    return _dots(a, b, view, heads, match)


def segment_softmax(x: Array, views: Views) -> Array:
    view, dtype = views.forward, x.dtype
    valid = view.valid(x.shape[0])
    x = x.astype(accumulator_dtype(dtype))
    top = _into_rows(JAX_OPS["max"], x, valid, view)
    powers = jnp.exp(x - take(top, view.rows))
    y = powers / take(_into_rows(JAX_OPS["sum"], powers, valid, view), view.rows)
    return jnp.where(column(valid), y, 0).astype(dtype)


def segment_softmax_tangent(y: Array, t: Array, views: Views) -> Array:
    view, dtype = views.forward, y.dtype
    valid = view.valid(y.shape[0])
    y, t = (z.astype(accumulator_dtype(dtype)) for z in (y, t))
    mean = take(_into_rows(JAX_OPS["sum"], y * t, valid, view), view.rows)
    return jnp.where(column(valid), y * (t - mean), 0).astype(dtype)


def segment_order(ids: Array, *, num_segments: int) -> Array:
    ids = jnp.where(in_range(ids, num_segments), ids, num_segments)
    return jnp.argsort(ids, stable=True).astype(ids.dtype)
