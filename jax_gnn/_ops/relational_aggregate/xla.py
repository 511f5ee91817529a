"""Sums of products by relation, and their gradients, composed of other primitives by method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, as_column, promoted, take
from jax_gnn._core.csr import Csr, SparseMatrix, orient_by_weights, permutation
from jax_gnn._core.ids import PADDING, in_range, index_dtype, row_starts, take_ids
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._ops import composition
from jax_gnn._ops.relational_aggregate.schedule import Counts, Method, chosen
from jax_gnn._ops.segment_matmul.primitive import grouped_outer, grouped_product
from jax_gnn._ops.segment_reduce.primitive import sddmm, total, weighted_sum

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


@composition
def relational_aggregate(
    x: Array,
    rhs: Array,
    weight: Array | None,
    matrix: RelationalMatrix,
    *,
    transposed: bool,
    method: Method | None,
    precision: jax.lax.Precision,
) -> Array:
    """Return the sums by one method, by default the fastest; operands as in `Relations`."""
    if method is None:
        method = chosen(counts(x, rhs, matrix, transposed=transposed))
    options: Any = {"transposed": transposed, "precision": precision}
    if method == "edges":
        edges = EdgesByRelation.of(matrix, rhs.shape[0])
        return total(edges.products(x, rhs, weight, **options), edges.destinations.T)
    if method == "source_pairs":
        z = _source_pair_products(x, rhs, matrix, **options)
        return _weighted_sum(z, weight, existing(matrix.from_pairs))
    pairs = existing(matrix.pair_dst)
    sums = _weighted_sum(x, weight, existing(matrix.to_pairs))
    z = grouped_product(sums, rhs, pairs.sizes, gather=pairs.numbering, **options)
    return total(z, pairs.gather.T)


def _source_pair_products(x: Array, rhs: Array, matrix: RelationalMatrix, **options: Any) -> Array:
    """Return ``(source pairs, n)`` products in the order of the pairs' numbers."""
    pairs = existing(matrix.pair_src)
    scatter = pairs.to_node_order if pairs.by_node else None
    return grouped_product(x, rhs, pairs.sizes, gather=pairs.gather, scatter=scatter, **options)


def _weighted_sum(x: Array, weight: Array | None, matrix: SparseMatrix) -> Array:
    """Return the sums of rows of x over the entries of each row of a matrix."""
    if weight is None:  # the order of the weights is not read
        by_row, by_col = (replace(csr, order=None) for csr in matrix)
        matrix = SparseMatrix(by_row, by_col)
    else:
        weight = as_column(weight)
    return weighted_sum(x, weight, matrix)


# --- Gradients -----------------------------------------------------------------------------------


@composition
def gradient_to_rhs(
    x: Array,
    ct: Array,
    weight: Array | None,
    matrix: RelationalMatrix,
    *,
    transposed: bool,
    method: Method,
    num_relations: int,
    precision: jax.lax.Precision,
) -> Array:
    """Return ``(relations, k, n)``, or if ``transposed`` ``(relations, n, k)``."""
    lhs_rows: SparseMatrix | None
    rhs_rows: SparseMatrix | None
    lhs, rhs, scale = x, ct, None
    if method == "edges":
        edges = EdgesByRelation.of(matrix, num_relations)
        sizes, scale = edges.sizes(num_relations), edges.scale(weight)
        lhs_rows, rhs_rows = edges.sources, edges.destinations
    elif method == "source_pairs":
        pairs = existing(matrix.pair_src)
        rhs = _weighted_sum(ct, weight, existing(matrix.T.to_pairs))
        sizes, lhs_rows, rhs_rows = pairs.sizes, pairs.gather, pairs.numbering
    else:
        pairs = existing(matrix.pair_dst)
        lhs = _weighted_sum(x, weight, existing(matrix.to_pairs))
        sizes, lhs_rows, rhs_rows = pairs.sizes, pairs.numbering, pairs.gather
    # The gradient of transposed weights is the transposed outer product.
    if transposed:
        lhs, rhs, lhs_rows, rhs_rows = rhs, lhs, rhs_rows, lhs_rows
    return grouped_outer(
        lhs, rhs, sizes, lhs_rows=lhs_rows, rhs_rows=rhs_rows, scale=scale, precision=precision
    )


@composition
def gradient_to_weight(
    x: Array,
    rhs: Array,
    ct: Array,
    matrix: RelationalMatrix,
    *,
    transposed: bool,
    method: Method | None,
    precision: jax.lax.Precision,
) -> Array:
    """Return ``(edges,)`` dots of each edge's product with the cotangent of its destination."""
    c = counts(x, rhs, matrix, transposed=transposed)
    if method is None:  # by the end whose products have fewer numbers
        method = "edges"
        if c.source_pairs or c.destination_pairs:
            by_source = c.source_pairs * c.n < c.destination_pairs * c.k or not c.destination_pairs
            method = "source_pairs" if by_source and c.source_pairs else "destination_pairs"
    if method == "edges":
        edges = EdgesByRelation.of(matrix, c.relations)
        z = edges.products(x, rhs, None, transposed=transposed, precision=precision)
        acc = accumulator_dtype(x.dtype)
        dots = z.astype(acc) * total(ct, edges.destinations).astype(acc)
        return total(dots.sum(1), edges.to_weights)
    if method == "source_pairs":
        z = _source_pair_products(x, rhs, matrix, transposed=transposed, precision=precision)
        a, b, entries = orient_by_weights(ct, z, existing(matrix.from_pairs))
    else:
        z = _source_pair_products(ct, rhs, matrix.T, transposed=not transposed, precision=precision)
        a, b, entries = orient_by_weights(z, x, existing(matrix.to_pairs))
    return cast(Array, sddmm(a, b, entries, heads=1)[:, 0])


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

    def scale(self, weight: Array | None) -> Array | None:
        """Return ``(edges,)`` weights, from the order of the weights."""
        return None if weight is None else take(jnp.asarray(weight), self.order)

    def products(self, x: Array, rhs: Array, weight: Array | None, **options: Any) -> Array:
        """Return ``(edges, n)`` products of sources with the weights of relations and edges."""
        sizes, scale = self.sizes(rhs.shape[0]), self.scale(weight)
        return grouped_product(x, rhs, sizes, gather=self.sources, scale=scale, **options)


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
