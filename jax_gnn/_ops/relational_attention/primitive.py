"""Parts of relational attention: products by relation, and dots at both ends of edges.

``typed_values`` computes values by source pair, H[p] = x[source of p] W[relation of p], and a dot
for each edge at its destination, ⟨x[v], d[relation]⟩. It is linear in x, whose gradient is one sum:
that of the values adds that of the dots as its epilogue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.ids import take_ids
from jax_gnn._core.linear import Linear
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._ops.relational_aggregate.xla import existing, product
from jax_gnn._ops.segment_reduce.primitive import sddmm, segment_reduce, weighted_sum


class Projections(NamedTuple):
    """Constants of ``typed_values``."""

    kernel: Array  # (relations, k, heads · n) weights of the values
    vectors: Array  # (relations, heads, k) vectors of the destinations' dots
    matrix: RelationalMatrix  # matrix of the graph, with the parts "from_pairs" and "to_pairs"


def each_head(x: Array, width: int) -> Array:
    """Return rows with the features of all heads, which may share those of x."""
    return x if x.shape[1] == width else jnp.tile(x, (1, width // x.shape[1]))


def by_head(function: Callable[..., Array], heads: int, *arrays: Array) -> Array:
    """Apply a function to each head's features, along the last axis of arrays and result."""
    if heads == 1:
        return function(*arrays)
    # Heads become the leading axis, a batch of products with the same ids.
    split = (x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads) for x in arrays)
    result = jax.vmap(function)(*(jnp.moveaxis(x, -2, 0) for x in split))
    result = jnp.moveaxis(result, 0, -2)
    return result.reshape(*result.shape[:-2], heads * result.shape[-1])


def product_of_heads(
    x: Array, kernel: Array, bias: Array | None, pairs: Pairs, *, heads: int, **options: Any
) -> Array:
    """Return `product` for each head: ``(pairs, heads · n)``, in the order of the pairs' numbers.

    Args:
        x: Rows of the pairs, ``(pairs, heads · k)``.
        kernel: Weights, ``(relations, k, heads · n)``.
        bias: Biases, ``(relations, heads · n)``, or None.
        pairs: The pairs.
        heads: Number of heads.
        **options: Options of `product`.
    """

    def head_product(x: Array, kernel: Array, bias: Array | None = None) -> Array:
        return product(x, kernel, pairs, pairs.numbering, bias=bias, **options)

    arrays = (x, kernel) if bias is None else (x, kernel, bias)
    return by_head(head_product, heads, *arrays)


# --- Values of sources, and dots of destinations -------------------------------------------------


def _projection(
    constants: Projections, linear: tuple[Array], *, precision: jax.lax.Precision
) -> list[Array]:
    kernel, vectors, matrix = constants
    (x,) = linear
    pairs = existing(matrix.pair_src)
    value = product(x, kernel, pairs, pairs.gather, precision=precision)
    return [value, relation_dots(x, vectors, typed_matrix(matrix, len(vectors)))]


def relation_dots(
    x: Array, vectors: Array, matrix: SparseMatrix, *, by_relation: bool = False
) -> Array:
    """Return ``(entries, heads)`` dots of nodes' rows with the vectors of their relation.

    Dots are as exact as the accumulator type, at any precision of products, since terms cancel in
    gradients of scores. With segmented products, gradients of the vectors would be outer products
    only as wide as there are heads; with dots they are weighted sums of rows.

    Args:
        x: Rows of nodes, ``(nodes, k)``.
        vectors: Vectors, ``(relations, heads, k)``.
        matrix: Matrix ``(nodes, relations)``, or if ``by_relation`` its transpose.
        by_relation: Whether the rows of the matrix are relations.
    """
    heads, by_type = vectors.shape[1], vectors.reshape(len(vectors), -1)
    by_node = each_head(x, by_type.shape[1])
    a, b = (by_type, by_node) if by_relation else (by_node, by_type)
    return cast(Array, sddmm(a, b, matrix, heads=heads))


def _projection_shapes(
    constants: Projections, linear: tuple[Array], **attributes: object
) -> list[jax.ShapeDtypeStruct]:
    kernel, vectors, matrix = constants
    (x,) = linear
    edges, heads = matrix.types.shape[0], vectors.shape[1]
    return [
        jax.ShapeDtypeStruct((existing(matrix.pair_src).num_pairs, kernel.shape[2]), x.dtype),
        jax.ShapeDtypeStruct((edges, heads), accumulator_dtype(x.dtype)),
    ]


def _projection_transpose(
    constants: Projections,
    linear: tuple[Array],
    cts: list[Array | None],
    *,
    precision: jax.lax.Precision,
) -> tuple[Array]:
    kernel, vectors, matrix = constants
    to_value, to_dots = cts
    gradient: Array | None = None
    if to_dots is not None:
        # A sum by destination over edges, which read vectors: these are few and stay in cache.
        heads, rows = to_dots.shape[1], vectors.reshape(len(vectors), -1)
        by_type = typed_matrix(matrix, len(vectors))
        sums = weighted_sum(rows, to_dots, by_type, heads)
        gradient = jnp.sum(sums.reshape(len(sums), heads, sums.shape[1] // heads), 1)
    if to_value is not None:
        pairs = existing(matrix.pair_src)
        rows = product(to_value, kernel, pairs, None, transposed=True, precision=precision)
        # The sum over pairs adds the gradient of the dots where it stores a row.
        self_scale = out_scale = None
        residual = None if gradient is None else gradient.astype(rows.dtype)
        matrix_of_pairs = pairs.gather.T
        gradient = segment_reduce(
            rows, None, matrix_of_pairs, self_scale, out_scale, residual, heads=1, reduce="sum"
        )
    assert gradient is not None
    return (gradient.astype(linear[0].dtype),)


def typed_matrix(matrix: RelationalMatrix, num_relations: int) -> SparseMatrix:
    """Return ``(destinations, num_relations)``, an entry for each edge.

    Entries by column need no sort: edges by source pair are already sorted by relation.
    """
    by_dst, by_pair = matrix.nodes.by_row, existing(matrix.from_pairs).by_col
    types = take_ids(matrix.types, by_pair.order)
    return SparseMatrix(
        Csr(by_dst.rows, matrix.types, num_rows=by_dst.num_rows),
        Csr(types, by_pair.cols, by_pair.order, num_rows=num_relations),
    )


# The linear operand is x, (nodes, k). Attribute: precision.
typed_values = Linear(
    name="typed_values",
    result=_projection_shapes,
    function=_projection,
    transpose=_projection_transpose,
)
