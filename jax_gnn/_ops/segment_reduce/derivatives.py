"""Derivatives of the reductions that are not linear, in sums and selections."""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import cast

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arguments import check_concrete
from jax_gnn._core.arrays import accumulator_dtype, as_matrix, row_wise, take
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.ids import in_range
from jax_gnn._core.op import Bind
from jax_gnn._core.sharding import replicate, reshape, reshard_like, where
from jax_gnn._core.types import PyTree
from jax_gnn._ops.segment_reduce.select import segment_select


def extremum_jvp(bind: Bind, primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    """Return value and tangent of an extremum, which all messages that attain it share."""
    x, weight, matrix = primals.message
    dx, dweight, _ = tangents.message
    result = bind(primals)

    def select(value: Array | None, factor: Array | None) -> Array:
        returned: Array = segment_select(
            as_matrix(result),
            as_matrix(x),
            None if value is None else as_matrix(value),
            weight,
            factor,
            matrix,
            weight_on_row=False,
            heads=bind.attributes["heads"],
        )
        return returned

    # Select the tangents of the messages that attain the extremum, then average over ties.
    terms = [] if dx is None else [select(dx, weight)]
    terms += [] if dweight is None else [select(x, dweight)]
    # No message attains the extremum of an empty row, nor NaN.
    ties = jnp.maximum(select(None, None), 1)
    return result, reshape(functools.reduce(operator.add, terms) / ties, *result.shape)


def logsumexp_jvp(bind: Bind, primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    """Return value and tangent of a logsumexp: the sum of the tangents times the softmax."""
    x, _, matrix = primals.message
    wide = x.astype(accumulator_dtype(x.dtype))  # the softmax needs the logarithm unrounded
    result = bind(primals._replace(x=wide))
    # The logsumexp of the row of each entry: a sum by the transposed matrix is a gather.
    of_entry = bind(primals._replace(x=result, matrix=matrix.T), reduce="sum")
    counts = row_wise(not_padding(matrix), of_entry) & (of_entry > -jnp.inf)
    softmax = jnp.where(counts, jnp.exp(jnp.where(counts, wide - of_entry, 0)), 0)
    terms = softmax * tangents.x.astype(wide.dtype)
    tangent = bind(primals._replace(x=terms.astype(x.dtype)), reduce="sum")
    return result.astype(x.dtype), tangent


def not_padding(matrix: SparseMatrix) -> Array:
    """Return ``(rows of x,)``: whether each row of a segment reduction's input has a segment."""
    return cast(Array, in_range(matrix.by_col.cols, matrix.by_row.num_rows))


def prod_jvp(bind: Bind, primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    """Return value and tangent of a product: each tangent times the product of other factors."""
    x, _, matrix = primals.message
    csr, acc = jax.tree.map(replicate, matrix.by_row), accumulator_dtype(x.dtype)
    factors, directions = (replicate(take(rows, csr.cols), 1) for rows in (x, tangents.x))
    valid = row_wise(csr.valid(x.shape[0]), factors)
    factors = where(valid, factors, 1).astype(acc)
    terms = _cofactors(factors, csr.rows) * directions.astype(acc)
    terms = where(valid, terms, 0).astype(x.dtype)
    in_order = SparseMatrix(replace(csr, cols=None), Csr(None, csr.rows, num_rows=csr.count))
    tangent = bind(primals._replace(x=terms, matrix=in_order), reduce="sum")
    return bind(primals), tangent


def _cofactors(x: Array, rows: Array) -> Array:
    """Return for each entry the product of the other entries of its row.

    It multiplies the products before and after the entry: a division would fail at zeros.
    """
    name = "the number of elements of a product that is differentiated"
    check_concrete(name, rows.shape[0], "running products go through them in steps")
    is_last = jnp.concatenate([rows[1:] != rows[:-1], jnp.ones(min(rows.shape[0], 1), bool)])
    before = _exclusive_products(x, jnp.roll(is_last, 1), reverse=False)
    return before * _exclusive_products(x, is_last, reverse=True)


def _exclusive_products(x: Array, starts: Array, reverse: bool) -> Array:
    """Return running products of the entries before each entry, restarted at the starts."""

    def combine(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.where(y[1], y[0], x[0] * y[0]), x[1] | y[1]

    flags = reshard_like(jnp.broadcast_to(row_wise(starts, x), x.shape), jax.typeof(x))
    products, _ = jax.lax.associative_scan(combine, (x, flags), reverse=reverse)
    return jnp.where(flags, 1, jnp.roll(products, -1 if reverse else 1, axis=0))
