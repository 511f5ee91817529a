"""Derivatives of the reductions that are not linear, written in sums and selections."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn import _ffi, _index
from jax_gnn.segments._select import segment_select
from jax_gnn.views import View, Views, accumulator_dtype, flat, in_range, spread, take


def extremum_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    x, weight, views = primals
    dx, dweight, _ = tangents
    result = bind(x, weight, views)

    def select(value: Array | None, factor: Array | None) -> Array:
        value = None if value is None else flat(value)
        return segment_select(
            *(flat(result), flat(x), value, weight, factor, views),
            weight_on_row=False,
            heads=bind.attributes["heads"],
            implementation=bind.implementation,
        )

    terms = [] if dx is None else [select(dx, weight)]
    terms += [] if dweight is None else [select(x, dweight)]
    # All that attain the maximum share its tangent; none does in empty rows and where it is NaN.
    ties = jnp.maximum(select(None, None), 1)
    return result, (functools.reduce(operator.add, terms) / ties).reshape(result.shape)


def logsumexp_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    x, _, views = primals
    wide = x.astype(accumulator_dtype(x.dtype))  # shares want the logarithm unrounded
    result = bind(wide, None, views)
    each = bind(result, None, views.swapped, reduce="sum")
    counted = spread(not_padding(views), each) & (each > -jnp.inf)
    shares = jnp.where(counted, jnp.exp(jnp.where(counted, wide - each, 0)), 0)
    terms = shares * tangents[0].astype(wide.dtype)
    tangent = bind(terms.astype(x.dtype), None, views, reduce="sum")
    return result.astype(x.dtype), tangent


def not_padding(views: Views) -> Array:
    """``(entries,)``, which rows of the input of a plain segment reduction are not padding."""
    assert views.backward.cols is not None
    return in_range(views.backward.cols, views.forward.num_rows)


def prod_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    x, _, views = primals
    view, acc = views.forward, accumulator_dtype(x.dtype)
    factors = take(x, view.cols)
    valid = spread(view.valid(x.shape[0]), factors)
    factors = jnp.where(valid, factors, 1).astype(acc)
    terms = _product_of_others(factors, view.rows) * take(tangents[0], view.cols).astype(acc)
    in_order = Views(replace(view, cols=None), View(None, view.rows, None, view.count))
    terms = jnp.where(valid, terms, 0).astype(x.dtype)
    return bind(x, None, views), bind(terms, None, in_order, reduce="sum")


def _product_of_others(x: Array, rows: Array) -> Array:
    """For each entry the product of all others of its row; no division, as there may be zeros."""
    name = "the number of elements of a product that is differentiated"
    _index.check_concrete(name, rows.shape[0], "running products go through them in steps")
    ends = jnp.concatenate([rows[1:] != rows[:-1], jnp.ones(min(rows.shape[0], 1), bool)])
    before = _exclusive_products(x, jnp.roll(ends, 1), reverse=False)
    return before * _exclusive_products(x, ends, reverse=True)


def _exclusive_products(x: Array, starts: Array, reverse: bool) -> Array:
    """Running products of the entries before each one, which begin anew at the starts."""

    def combine(left: Any, right: Any) -> Any:
        return jnp.where(right[1], right[0], left[0] * right[0]), left[1] | right[1]

    flags = jnp.broadcast_to(spread(starts, x), x.shape)
    products, _ = jax.lax.associative_scan(combine, (x, flags), reverse=reverse)
    return jnp.where(flags, 1, jnp.roll(products, -1 if reverse else 1, axis=0))
