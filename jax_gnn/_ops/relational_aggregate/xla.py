"""Sums of products by relation and their gradients, in the primitives of each method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, as_column, promoted, take
from jax_gnn._core.csr import Csr, SparseMatrix, orient_by_weights, permutation
from jax_gnn._core.ids import PADDING, in_range, index_dtype, row_starts, take_ids
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._ops.relational_aggregate.schedule import Counts, Method, chosen
from jax_gnn._ops.segment_matmul import primitive as products
from jax_gnn._ops.segment_reduce.primitive import sddmm, segment_reduce, total

P = TypeVar("P")


def counts(x: Any, rhs: Any, matrix: RelationalMatrix, *, transposed: bool) -> Counts:
    """What the choice of a method looks at."""

    def pairs_of(pairs: Pairs | None) -> int:
        return 0 if pairs is None else _at_least_one(pairs.num_pairs)

    num_relations, k, n = rhs.shape
    return Counts(
        num_src=matrix.nodes.by_col.num_rows,
        num_dst=matrix.nodes.by_row.num_rows,
        edges=matrix.types.shape[0],
        relations=num_relations,
        source_pairs=pairs_of(matrix.pair_src),
        destination_pairs=pairs_of(matrix.pair_dst),
        k=n if transposed else k,
        n=k if transposed else n,
        itemsize=np.dtype(x.dtype).itemsize,
    )


def _at_least_one(size: Any) -> Any:
    return size if jax.export.is_symbolic_dim(size) else max(size, 1)


# --- The sum -------------------------------------------------------------------------------------


def relational_aggregate(
    x: Array,
    rhs: Array,
    weight: Array | None,
    matrix: RelationalMatrix,
    *,
    transposed: bool,
    method: Method | None,
    precision: Any,
    implementation: str | None = None,
) -> Array:
    if method is None:
        method = chosen(counts(x, rhs, matrix, transposed=transposed))
    options = {"precision": precision, "implementation": implementation}
    if method == "edges":
        return _by_edge(x, rhs, weight, matrix, transposed=transposed, **options)
    if method == "source_pairs":
        z = products_of_source_pairs(x, rhs, matrix, transposed=transposed, **options)
        return _sum(z, weight, matrix.from_pairs, implementation)
    pairs = _part(matrix.pair_dst)
    z = _products(
        *(sums_by_destination_pair(x, weight, matrix, implementation), rhs, None),
        *(pairs.sizes, pairs.numbering, None),
        transposed=transposed,
        **options,
    )
    return total(z, pairs.gather.T, implementation)


def products_of_source_pairs(x: Array, rhs: Array, matrix: RelationalMatrix, **options: Any) -> Any:
    """``(source pairs, n)``, by number: the product of each (source, relation) that occurs."""
    pairs = _part(matrix.pair_src)
    scatter = pairs.to_node_order if pairs.by_node else None
    return _products(x, rhs, None, pairs.sizes, pairs.gather, scatter, **options)


def sums_by_destination_pair(
    x: Array, weight: Array | None, matrix: RelationalMatrix, implementation: str | None
) -> Array:
    """``(destination pairs, k)``, by number: what goes into each (destination, relation)."""
    return _sum(x, weight, matrix.to_pairs, implementation)


def _by_edge(
    x: Array, rhs: Array, weight: Array | None, matrix: RelationalMatrix, **options: Any
) -> Array:
    edges = EdgesByRelation.of(matrix, rhs.shape[0])
    z = _edge_products(edges, x, rhs, weight, **options)
    return total(z, edges.destinations.T, options["implementation"])


def _edge_products(
    edges: EdgesByRelation, x: Array, rhs: Array, weight: Array | None, **options: Any
) -> Array:
    """``(edges, n)``, in the order of relations."""
    scale, sizes = edges.scale(weight), edges.sizes(rhs.shape[0])
    return _products(x, rhs, scale, sizes, edges.sources, None, **options)


# --- Gradients -----------------------------------------------------------------------------------


def gradient_to_rhs(
    x: Array,
    ct: Array,
    weight: Array | None,
    matrix: RelationalMatrix,
    *,
    transposed: bool,
    method: Method,
    num_relations: int,
    precision: Any,
    implementation: str | None,
) -> Array:
    """``(relations, k, n)``, or if ``transposed`` ``(relations, n, k)``."""
    of_left: SparseMatrix | None
    of_right: SparseMatrix | None
    scale = None
    if method == "edges":
        edges = EdgesByRelation.of(matrix, num_relations)
        left, right, sizes = x, ct, edges.sizes(num_relations)
        of_left, of_right = edges.sources, edges.destinations
        scale = edges.scale(weight)
    elif method == "source_pairs":
        pairs = _part(matrix.pair_src)
        left, right = x, sums_by_destination_pair(ct, weight, matrix.T, implementation)
        sizes, of_left, of_right = pairs.sizes, pairs.gather, pairs.numbering
    else:
        pairs = _part(matrix.pair_dst)
        left, right = sums_by_destination_pair(x, weight, matrix, implementation), ct
        sizes, of_left, of_right = pairs.sizes, pairs.numbering, pairs.gather
    if transposed:
        left, right, of_left, of_right = right, left, of_right, of_left
    return products.segment_outer(
        *(left, right, scale, sizes, jnp.zeros((1,), jnp.int32), of_left, of_right),
        num_groups=num_relations,
        precision=precision,
        deterministic=True,
        dtype=left.dtype,
        implementation=implementation,
    )


def gradient_to_weight(
    x: Array,
    rhs: Array,
    ct: Array,
    matrix: RelationalMatrix,
    *,
    transposed: bool,
    method: Method | None,
    precision: Any,
    implementation: str | None,
) -> Array:
    """``(edges,)``: the dot of each edge's product and the cotangent of its destination."""
    options = {"precision": precision, "implementation": implementation}
    c = counts(x, rhs, matrix, transposed=transposed)
    if method is None:  # the fewer numbers of products
        method = "edges"
        if c.source_pairs or c.destination_pairs:
            by_source = c.source_pairs * c.n < c.destination_pairs * c.k or not c.destination_pairs
            method = "source_pairs" if by_source and c.source_pairs else "destination_pairs"
    if method == "edges":
        edges = EdgesByRelation.of(matrix, c.relations)
        z = _edge_products(edges, x, rhs, None, transposed=transposed, **options)
        acc = accumulator_dtype(x.dtype)
        dots = z.astype(acc) * total(ct, edges.destinations, implementation).astype(acc)
        return total(dots.sum(1), edges.to_weights, implementation)
    if method == "source_pairs":
        z = products_of_source_pairs(x, rhs, matrix, transposed=transposed, **options)
        a, b, entries = orient_by_weights(ct, z, _part(matrix.from_pairs))
    else:
        z = products_of_source_pairs(ct, rhs, matrix.T, transposed=not transposed, **options)
        a, b, entries = orient_by_weights(z, x, _part(matrix.to_pairs))
    return sddmm(a, b, entries, heads=1, implementation=implementation)[:, 0]


# --- Without features ----------------------------------------------------------------------------


def lookup_matrix(matrix: RelationalMatrix, num_relations: int) -> SparseMatrix:
    """``(destinations, relations · sources)``: edges read the row of their relation and source."""
    (by_row, by_col), types = matrix.nodes, matrix.types
    num_src = by_col.num_rows
    size = num_relations * num_src
    dtype = promoted(types.dtype, index_dtype(size))
    valid = in_range(types, num_relations) & in_range(by_row.cols, num_src)
    cols = jnp.where(valid, types.astype(dtype) * num_src + by_row.cols.astype(dtype), PADDING)
    if matrix.from_pairs is not None:
        order = matrix.from_pairs.by_col.order
    else:
        order = jnp.argsort(_last(cols, size), stable=True)
    order = order.astype(dtype)
    rows = by_row.rows.astype(dtype)
    return SparseMatrix(
        Csr(rows, cols, num_rows=by_row.num_rows),
        Csr(take_ids(cols, order), take_ids(rows, order), order, num_rows=size),
    )


def types_matrix(matrix: RelationalMatrix, num_relations: int) -> SparseMatrix:
    """``(relations, edges)``: what sums edges, in the order of their weights, by relation."""
    edges = EdgesByRelation.of(matrix, num_relations)
    by_relation = Csr(edges.types, edges.order, num_rows=num_relations)
    return SparseMatrix(by_relation, Csr(None, matrix.types, num_rows=matrix.types.shape[0]))


# --- What they share -----------------------------------------------------------------------------


class EdgesByRelation(NamedTuple):
    """The edges in the order of relations.

    Attributes:
        order: ``(edges,)``, which weight each has.
        types: ``(edges,)``, the relation of each; as many as there are for padding, at the end.
        sources: row i reads the source of edge i; the transpose sums into sources.
        destinations: likewise.
        to_weights: row e, in the order of the weights, reads where that edge is.
    """

    order: Array
    types: Array
    sources: SparseMatrix
    destinations: SparseMatrix
    to_weights: SparseMatrix

    @classmethod
    def of(cls, matrix: RelationalMatrix, num_relations: int) -> EdgesByRelation:
        order, count = _by_relation(matrix, num_relations), matrix.types.shape[0]
        numbers = jnp.arange(count, dtype=order.dtype)
        places = jnp.full_like(order, PADDING).at[_last(order, count)].set(numbers, mode="drop")

        def ends(half: Csr, other: Csr) -> SparseMatrix:
            ids = half.rows if half.order is None else other.cols  # in the order of the weights
            return SparseMatrix(
                Csr(None, take_ids(ids, order), num_rows=count),
                Csr(half.rows, take_ids(places, half.order), num_rows=half.num_rows),
            )

        by_row, by_col = matrix.nodes
        return cls(
            order,
            _last(take_ids(matrix.types, order), num_relations),
            ends(by_col, by_row),
            ends(by_row, by_col),
            permutation(places, order),
        )

    def sizes(self, num_relations: int) -> Array:
        """``(relations,)``, how many edges each relation has."""
        return jnp.diff(row_starts(self.types, num_relations))

    def scale(self, weight: Array | None) -> Array | None:
        """``(edges,)``, the weight of each edge."""
        return None if weight is None else take(jnp.asarray(weight), self.order)


def _by_relation(matrix: RelationalMatrix, num_relations: int) -> Array:
    """The order of relations: that of pairs numbered by relation, or else found by a sort."""
    halves = (
        (matrix.pair_src, None if matrix.from_pairs is None else matrix.from_pairs.by_col),
        (matrix.pair_dst, None if matrix.to_pairs is None else matrix.to_pairs.by_row),
    )
    for pairs, entries in halves:
        if pairs is not None and not pairs.by_node and entries is not None:
            assert entries.order is not None  # weights are by node
            return entries.order
    return jnp.argsort(_last(matrix.types, num_relations), stable=True).astype(matrix.types.dtype)


def _last(ids: Array, size: int) -> Array:
    """Ids of which those out of range come last in order, too."""
    return jnp.where(in_range(ids, size), ids, size)


def _products(
    x: Array,
    rhs: Array,
    scale: Array | None,
    sizes: Array,
    rows: SparseMatrix | None,
    to: SparseMatrix | None,
    *,
    transposed: bool,
    precision: Any,
    implementation: str | None,
) -> Array:
    """Products of rows of x, written where they are wanted."""
    return products.segment_matmul(
        *(x, rhs, None, None, scale, sizes, jnp.zeros((1,), jnp.int32), rows, to),
        transposed=transposed,
        precision=precision,
        activation=None,
        dtype=x.dtype,
        implementation=implementation,
    )


def _sum(x: Array, weight: Array | None, matrix: SparseMatrix | None, implementation: Any) -> Array:
    """What goes into each row of a matrix."""
    matrix = _part(matrix)
    if weight is None:  # then nobody asks which weight an entry has
        matrix = SparseMatrix(*(replace(half, order=None) for half in matrix))
    else:
        weight = as_column(weight)
    return segment_reduce(
        *(x, weight, matrix), reduce="sum", heads=1, implementation=implementation
    )


def _part(part: P | None) -> P:
    """A part of a matrix that was chosen because it is there."""
    assert part is not None
    return part
