"""Sums of products by relation, out[v] = Σ w[e] · x[u] rhs[rel e] over edges e = (u → v).

They are composed of segmented products and sums by one of three methods. JAX differentiates them,
by the same method: gradients of features and weights share the sums of cotangents by pair.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jax_gnn._core.arrays import as_column, promoted
from jax_gnn._core.csr import Csr, LastRows, SparseMatrix, permutation
from jax_gnn._core.ids import PADDING, in_range, index_dtype, row_starts, take_ids
from jax_gnn._core.linear import Linear
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._core.sharding import auto_axes_like
from jax_gnn._ops.relational_aggregate.schedule import Counts, Method, chosen
from jax_gnn._ops.segment_matmul.primitive import grouped_outer, grouped_product
from jax_gnn._ops.segment_reduce.primitive import Messages, reduce_rows, total

P = TypeVar("P")


def existing(part: P | None) -> P:
    """Return a part of a graph, which exists since the method was chosen for it."""
    assert part is not None
    return part


def counts(x: Any, rhs: Any, matrix: RelationalMatrix, *, transposed: bool) -> Counts:
    """Return the sizes that decide between methods."""

    def num_pairs(pairs: Pairs | None) -> Any:
        if pairs is None:
            return 0
        size = pairs.num_pairs
        return size if jax.export.is_symbolic_dim(size) else max(size, 1)

    num_relations, k, n = rhs.shape
    return Counts(
        num_src=matrix.nodes.by_col.num_rows,
        num_dst=matrix.nodes.by_row.num_rows,
        edges=matrix.types.shape[0],
        relations=num_relations,
        source_pairs=num_pairs(matrix.pair_src),
        destination_pairs=num_pairs(matrix.pair_dst),
        k=n if transposed else k,
        n=k if transposed else n,
        itemsize=np.dtype(x.dtype).itemsize,
    )


# --- The sum -------------------------------------------------------------------------------------


@auto_axes_like(0)
def relational_aggregate(
    x: Array,  # features, (sources, k)
    rhs: Array,  # weights of relations, (relations, k, n), or if `transposed` (relations, n, k)
    weight: Array | None,  # weights of edges, (edges,) in the accumulator type, or None
    matrix: RelationalMatrix,  # matrix of the edges
    # Rows of the last sources, and their entries in ``matrix.to_pairs``, as of `Messages`: only of
    # the method "destination_pairs".
    halo: tuple[Array, LastRows] | None = None,
    *,
    transposed: bool,
    method: Method | None,  # None means the fastest
    precision: jax.lax.Precision,
) -> Array:
    """Return the sums by one method, ``(destinations, n)`` in the dtype of x and rhs."""
    if method is None:
        method = chosen(counts(x, rhs, matrix, transposed=transposed))
    options: Any = {"transposed": transposed, "precision": precision}
    if method == "edges":
        edges = EdgesByRelation.of(matrix, rhs.shape[0])
        sizes, scale = edges.sizes(rhs.shape[0]), None
        if weight is not None:
            scale = total(weight[:, None], edges.to_weights.T)[:, 0]
        z = grouped_product(x, rhs, sizes, gather=edges.sources, scale=scale, **options)
        return total(z, edges.destinations.T)
    if method == "source_pairs":
        pairs = existing(matrix.pair_src)
        z = product(x, rhs, pairs, pairs.gather, **options)
        return _weighted_sum(z, weight, existing(matrix.from_pairs))
    pairs = existing(matrix.pair_dst)
    sums = _weighted_sum(x, weight, existing(matrix.to_pairs), *(halo or ()))
    return _summed_products(sums, rhs, pairs, **options)


def product(
    x: Array,  # (rows, k) rows
    kernel: Array,  # (relations, k, n) weights, or if `transposed` (relations, n, k)
    pairs: Pairs,  # the pairs
    # The row of x that each pair, in the order of relations, reads; None: row i.
    rows: SparseMatrix | None,
    **options: Any,  # bias, scale, precision and others, as in `grouped_product`
) -> Array:
    """Return ``(pairs, n)`` rows of x times the weights of their relation, by pairs' numbers."""
    scatter = pairs.to_node_order if pairs.by_node else None
    return grouped_product(x, kernel, pairs.sizes, gather=rows, scatter=scatter, **options)


def _weighted_sum(
    x: Array,
    weight: Array | None,
    matrix: SparseMatrix,
    halo: Array | None = None,
    halo_rows: LastRows | None = None,
) -> Array:
    """Return the sums of rows of x, and of the halo, over the entries of each row of a matrix."""
    if weight is None:  # the order of the weights is not read
        by_row, by_col = (replace(csr, order=None) for csr in matrix)
        matrix = SparseMatrix(by_row, by_col)
    else:
        weight = as_column(weight)
    messages = Messages(x, weight, matrix, halo=halo, halo_rows=halo_rows)
    return reduce_rows(messages, "sum")


# --- Products of destination pairs ---------------------------------------------------------------


class PairFactors(NamedTuple):
    """Factors of products of destination pairs, or tangents or cotangents of these."""

    sums: Any  # (destination pairs, k) rows
    rhs: Any  # weights of relations, as in `relational_aggregate`


def _steps(factors: PairFactors, pairs: Pairs, **options: Any) -> Array:
    z = grouped_product(*factors, pairs.sizes, gather=pairs.numbering, **options)
    return total(z, pairs.gather.T)


def _tangent(
    residuals: tuple[PairFactors, Pairs], tangents: PairFactors, **options: Any
) -> list[Array]:
    factors, pairs = residuals
    terms = [
        _steps(factors._replace(**{name: x}), pairs, **options)
        for name, x in tangents._asdict().items()
        if x is not None
    ]
    return [functools.reduce(jnp.add, terms)]


def _transpose(
    residuals: tuple[PairFactors, Pairs],
    tangents: PairFactors,
    cts: list[Array],
    *,
    transposed: bool,
    precision: jax.lax.Precision,
) -> PairFactors:
    """Return the cotangents; both products gather rows of that of the result by pair."""
    ((sums, rhs), pairs), (ct,), to_sums, to_rhs = residuals, cts, None, None
    if tangents.sums is not None:
        options: Any = {"transposed": not transposed, "precision": precision}
        to_sums = product(ct, rhs, pairs, pairs.gather, **options)
    if tangents.rhs is not None:
        factors = (sums, pairs.numbering), (ct, pairs.gather)
        (lhs, lhs_rows), (rhs, rhs_rows) = factors[::-1] if transposed else factors
        options = {"lhs_rows": lhs_rows, "rhs_rows": rhs_rows, "scale": None}
        to_rhs = grouped_outer(lhs, rhs, pairs.sizes, **options, precision=precision)
    return PairFactors(to_sums, to_rhs)


# The result is the tangent of the sums; linear operands are tangents of the factors.
summed_products_jvp = Linear(
    name="summed_products_jvp",
    result=lambda residuals, tangents, **options: [
        jax.eval_shape(functools.partial(_steps, **options), *residuals)
    ],
    function=_tangent,
    transpose=_transpose,
)


def _summed_products(sums: Array, rhs: Array, pairs: Pairs, **options: Any) -> Array:
    """Return the sums at destinations of rows of their pairs times the weights of relations."""

    @jax.custom_jvp
    def summed(factors: PairFactors, pairs: Pairs) -> Array:
        return _steps(factors, pairs, **options)

    def jvp(operands: Any, tangents: Any) -> tuple[Array, Array]:
        moving = [None if isinstance(t, SymbolicZero) else t for t in tangents[0]]
        (tangent,) = summed_products_jvp(operands, PairFactors(*moving), **options)
        return summed(*operands), tangent

    summed.defjvp(jvp, symbolic_zeros=True)
    return summed(PairFactors(sums, rhs), pairs)


# --- Matrices ------------------------------------------------------------------------------------


def lookup_matrix(matrix: RelationalMatrix, num_relations: int) -> SparseMatrix:
    """Return ``(destinations, relations · sources)``, an entry for each edge."""
    (by_row, by_col), types = matrix.nodes, matrix.types
    num_src = by_col.num_rows
    size = num_relations * num_src
    dtype = promoted(types.dtype, index_dtype(size))
    valid = in_range(types, num_relations) & in_range(by_row.cols, num_src)
    cols = jnp.where(valid, types.astype(dtype) * num_src + by_row.cols.astype(dtype), PADDING)
    # Source pairs numbered by relation already sort the edges by column.
    if matrix.from_pairs is not None:
        order = matrix.from_pairs.by_col.order
    else:
        order = jnp.argsort(_padding_last(cols, size), stable=True)
    order = order.astype(dtype)
    rows = by_row.rows.astype(dtype)
    return SparseMatrix(
        Csr(rows, cols, num_rows=by_row.num_rows),
        Csr(take_ids(cols, order), take_ids(rows, order), order, num_rows=size),
    )


def types_matrix(matrix: RelationalMatrix, num_relations: int) -> SparseMatrix:
    """Return ``(relations, edges)``, with edges in the order of their weights."""
    edges = EdgesByRelation.of(matrix, num_relations)
    by_relation = Csr(edges.types, edges.order, num_rows=num_relations)
    return SparseMatrix(by_relation, Csr(None, matrix.types, num_rows=matrix.types.shape[0]))


class EdgesByRelation(NamedTuple):
    """Edges in the order of relations."""

    order: Array  # (edges,) places in the order of the weights
    types: Array  # (edges,) relations, ascending; the number of relations for padding
    # Matrix whose row i reads the source of edge i; its transpose sums into sources.
    sources: SparseMatrix
    destinations: SparseMatrix  # matrix whose row i reads the destination of edge i
    to_weights: SparseMatrix  # matrix that brings arrays of edges into the order of the weights

    @classmethod
    def of(cls, matrix: RelationalMatrix, num_relations: int) -> EdgesByRelation:
        """Sort the edges of a matrix by relation."""
        order, num_edges = _order_by_relation(matrix, num_relations), matrix.types.shape[0]
        # `places` inverts `order`; padding has no place.
        numbers = jnp.arange(num_edges, dtype=order.dtype)
        places = jnp.full_like(order, PADDING)
        places = places.at[_padding_last(order, num_edges)].set(numbers, mode="drop")

        def endpoints(csr: Csr, opposite: Csr) -> SparseMatrix:
            ids = csr.rows if csr.order is None else opposite.cols  # in the order of the weights
            return SparseMatrix(
                Csr(None, take_ids(ids, order), num_rows=num_edges),
                Csr(csr.rows, take_ids(places, csr.order), num_rows=csr.num_rows),
            )

        by_row, by_col = matrix.nodes
        return cls(
            order,
            _padding_last(take_ids(matrix.types, order), num_relations),
            endpoints(by_col, by_row),
            endpoints(by_row, by_col),
            permutation(places, order),
        )

    def sizes(self, num_relations: int) -> Array:
        """Return ``(relations,)`` numbers of edges."""
        return jnp.diff(row_starts(self.types, num_relations))


def _order_by_relation(matrix: RelationalMatrix, num_relations: int) -> Array:
    """Return the edges' order by relation: that of pairs numbered by relation, else by a sort."""
    halves = (
        (matrix.pair_src, None if matrix.from_pairs is None else matrix.from_pairs.by_col),
        (matrix.pair_dst, None if matrix.to_pairs is None else matrix.to_pairs.by_row),
    )
    for pairs, entries in halves:
        if pairs is not None and not pairs.by_node and entries is not None:
            order: Array | None = entries.order
            assert order is not None  # weights are in the order of nodes
            return order
    types = _padding_last(matrix.types, num_relations)
    return jnp.argsort(types, stable=True).astype(matrix.types.dtype)


def _padding_last(ids: Array, size: int) -> Array:
    """Return the ids, with ``size`` for those out of range, which then sort last."""
    return jnp.where(in_range(ids, size), ids, size)
