"""Derivatives of the reductions that are not linear, written in sums and selections."""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arguments import check_concrete
from jax_gnn._core.arrays import accumulator_dtype, as_matrix, row_wise, take
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.ids import in_range
from jax_gnn._core.op import Bind
from jax_gnn._core.sharding import replicate, reshape, reshard_like, where
from jax_gnn._ops.segment_reduce.select import segment_select


def extremum_jvp(bind: Bind, primals: Any, tangents: Any) -> tuple[Array, Array | None]:
    """Of a maximum or minimum: all that attain it share its tangent."""
    x, weight, matrix = primals.message
    dx, dweight, _ = tangents.message
    result = bind(primals)

    def select(value: Array | None, factor: Array | None) -> Array:
        value = None if value is None else as_matrix(value)
        return segment_select(
            *(as_matrix(result), as_matrix(x), value, weight, factor, matrix),
            weight_on_row=False,
            heads=bind.attributes["heads"],
            implementation=bind.implementation,
        )

    terms = [] if dx is None else [select(dx, weight)]
    terms += [] if dweight is None else [select(x, dweight)]
    # None does in empty rows and where it is NaN.
    ties = jnp.maximum(select(None, None), 1)
    return result, reshape(functools.reduce(operator.add, terms) / ties, *result.shape)


def logsumexp_jvp(bind: Bind, primals: Any, tangents: Any) -> tuple[Array, Array | None]:
    """Of a logsumexp: the sum of the tangents times the softmax."""
    x, _, matrix = primals.message
    wide = x.astype(accumulator_dtype(x.dtype))  # shares want the logarithm unrounded
    result = bind(primals._replace(x=wide))
    each = bind(primals._replace(x=result, matrix=matrix.T), reduce="sum")
    counted = row_wise(not_padding(matrix), each) & (each > -jnp.inf)
    shares = jnp.where(counted, jnp.exp(jnp.where(counted, wide - each, 0)), 0)
    terms = shares * tangents.x.astype(wide.dtype)
    tangent = bind(primals._replace(x=terms.astype(x.dtype)), reduce="sum")
    return result.astype(x.dtype), tangent


def not_padding(matrix: SparseMatrix) -> Array:
    """``(entries,)``, which rows of the input of a plain segment reduction are not padding."""
    return in_range(matrix.by_col.cols, matrix.by_row.num_rows)


def prod_jvp(bind: Bind, primals: Any, tangents: Any) -> tuple[Array, Array | None]:
    """Of a product: the sum of the tangents times the product of the others."""
    x, _, matrix = primals.message
    csr, acc = jax.tree.map(replicate, matrix.by_row), accumulator_dtype(x.dtype)
    factors, tangents_of_factors = (replicate(take(each, csr.cols), 1) for each in (x, tangents.x))
    valid = row_wise(csr.valid(x.shape[0]), factors)
    factors = where(valid, factors, 1).astype(acc)
    terms = _product_of_others(factors, csr.rows) * tangents_of_factors.astype(acc)
    terms = where(valid, terms, 0).astype(x.dtype)
    in_order = SparseMatrix(replace(csr, cols=None), Csr(None, csr.rows, num_rows=csr.count))
    tangent = bind(primals._replace(x=terms, matrix=in_order), reduce="sum")
    return bind(primals), tangent


def _product_of_others(x: Array, rows: Array) -> Array:
    """For each entry the product of all others of its row; no division, as there may be zeros."""
    name = "the number of elements of a product that is differentiated"
    check_concrete(name, rows.shape[0], "running products go through them in steps")
    ends = jnp.concatenate([rows[1:] != rows[:-1], jnp.ones(min(rows.shape[0], 1), bool)])
    before = _exclusive_products(x, jnp.roll(ends, 1), reverse=False)
    return before * _exclusive_products(x, ends, reverse=True)


def _exclusive_products(x: Array, starts: Array, reverse: bool) -> Array:
    """Running products of the entries before each one, which begin again at the starts."""

    def combine(left: Any, right: Any) -> Any:
        return jnp.where(right[1], right[0], left[0] * right[0]), left[1] | right[1]

    flags = reshard_like(jnp.broadcast_to(row_wise(starts, x), x.shape), jax.typeof(x))
    products, _ = jax.lax.associative_scan(combine, (x, flags), reverse=reverse)
    return jnp.where(flags, 1, jnp.roll(products, -1 if reverse else 1, axis=0))
