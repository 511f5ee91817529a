"""Batching rules: a batch joins the features, or its structures become one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn import _ffi, _index
from jax_gnn.views import View, Views, in_range


def batch(
    weights: Sequence[int],
    bind: _ffi.Bind,
    operands: Sequence[Any],
    batched: Sequence[Any],
    size: int,
    *,
    per_entry: bool = False,
) -> Array:
    """Batching of all primitives on features.

    Args:
        weights: positions of the operands that are ``(entries, heads)``; the others are features.
        bind: the primitive.
        operands: its operands, of which the views are the last.
        batched: which arrays of theirs are.
        size: of the batch.
        per_entry: whether the result is ``(entries, heads)`` too.
    """
    *values, views = operands
    *values_batched, views_batched = batched
    if any(jax.tree.leaves(views_batched)):
        return disjoint_union(bind, operands, batched, size)
    # One structure for all: the batch joins the features of each head, or the heads.
    heads = bind.attributes.get("heads", 1)
    as_heads = per_entry or any(values_batched[i] for i in weights)
    outer = 1 if as_heads else heads

    def fold(i: int, value: Array | None, is_batched: bool) -> Array | None:
        if value is None or (i in weights and not as_heads):
            return value
        if not is_batched:
            value = jnp.broadcast_to(value, (size, *value.shape))
        _, rows, *features = value.shape
        width, others = math.prod(features[:1]), features[1:]
        value = value.reshape(size, rows, outer, width // outer, *others)
        return jnp.moveaxis(value, 0, 2).reshape(rows, size * width, *others)

    folded = [fold(i, *both) for i, both in enumerate(zip(values, values_batched, strict=True))]
    result = bind(*folded, views, **({"heads": heads * size} if as_heads else {}))
    rows, width, *others = result.shape
    result = jnp.moveaxis(result.reshape(rows, outer, size, width // size // outer, *others), 2, 0)
    is_vector = values[0].ndim - values_batched[0] == 1  # the batch is all of its features
    return result.reshape(size, rows, *([] if is_vector else [width // size]), *others)


def batch_apart(
    function: Callable[..., Any],
    bind: _ffi.Bind,
    operands: Sequence[Any],
    batched: Sequence[Any],
    size: int,
) -> Any:
    """Batching of a primitive by that of the primitives that it stands for."""
    del size
    axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, tuple(batched))
    apart = functools.partial(function, **bind.attributes, implementation=bind.implementation)
    return jax.vmap(apart, axes)(*operands)


def disjoint_union(
    bind: _ffi.Bind, operands: Sequence[Any], batched: Sequence[Any], size: int
) -> Array:
    """Joins a batch of structures to one without common rows, and applies a primitive to that."""
    operands = all_batched(operands, batched, size)
    if size == 1:
        return bind(*jax.tree.map(lambda x: x[0], operands))[None]
    *values, views = operands
    forward, backward = views
    ids = jax.tree.leaves(views)[0]
    sizes, limit = (forward.num_rows, backward.num_rows, ids.shape[1]), jnp.iinfo(ids.dtype).max
    if not all(_index.at_most(size * each, limit) for each in sizes):
        return jax.lax.map(lambda one: bind(*one), tuple(operands))
    joined = Views(_join(forward, backward.num_rows), _join(backward, forward.num_rows))
    stacked = jax.tree.map(lambda x: x.reshape(size * x.shape[1], *x.shape[2:]), values)
    result = bind(*stacked, joined)
    return result.reshape(size, result.shape[0] // size, *result.shape[1:])


def all_batched(operands: Sequence[Any], batched: Sequence[Any], size: int) -> Any:
    """The operands, of which those arrays that are not batched are repeated."""
    return jax.tree.map(
        lambda x, is_batched: x if is_batched else jnp.broadcast_to(x, (size, *x.shape)),
        tuple(operands),
        tuple(batched),
    )


def _join(view: View, num_cols: int) -> View:
    """Block-diagonal view of a batch of views."""
    size, count = jax.tree.leaves(view)[0].shape

    def shifted(ids: Array, block: int) -> Array:
        return ids + jnp.arange(size, dtype=ids.dtype)[:, None] * block

    def joined(ids: Array, valid: Array, block: int) -> Array:
        return jnp.where(valid, shifted(ids, block), -1).ravel()

    rows, cols, order = view.rows, view.cols, view.order
    if order is not None:
        order = joined(order, in_range(order, count), count)
    if rows is None:
        assert cols is not None
        cols = joined(cols, in_range(cols, num_cols), num_cols)
        return replace(view, cols=cols, order=order, num_rows=size * view.num_rows)
    # Rows stay sorted: padding gets the row before it, and is marked in the columns.
    valid = in_range(rows, view.num_rows)
    rows = shifted(jax.lax.cummax(jnp.where(valid, rows, 0), axis=1), view.num_rows).ravel()
    if cols is None:
        cols = jnp.broadcast_to(jnp.arange(count, dtype=rows.dtype), valid.shape)
    cols = joined(cols, valid & in_range(cols, num_cols), num_cols)
    return replace(view, rows=rows, cols=cols, order=order, num_rows=size * view.num_rows)
