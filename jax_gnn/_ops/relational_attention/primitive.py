"""What relational attention is made of: products by relation, and numbers of both ends.

``typed_values`` has values by source pair, H[p] = x[source of p] W[relation of p], and of each edge
the number at its destination, ⟨x[v], d[relation]⟩. It is linear in x, whose gradient is one sum:
that of the values ends by adding that of the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.ids import take_ids
from jax_gnn._core.linear import Linear
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._ops.segment_matmul import primitive as products
from jax_gnn._ops.segment_reduce.primitive import sddmm, segment_reduce

P = TypeVar("P")


class Projections(NamedTuple):
    """What is known of ``typed_values``.

    Attributes:
        kernel: ``(relations, k, heads · n)``, of the values.
        vectors: ``(relations, heads, k)``, of the destinations' numbers.
        matrix: the graph, with the parts "from_pairs" and "to_pairs".
    """

    kernel: Any
    vectors: Any
    matrix: RelationalMatrix


def part(part: P | None) -> P:
    """A part that the method goes through, and therefore there."""
    assert part is not None
    return part


def product(
    x: Array,
    kernel: Array,
    pairs: Pairs,
    lines: SparseMatrix | None,
    *,
    bias: Array | None = None,
    scale: Array | None = None,
    transposed: bool = False,
    precision: Any,
    dtype: Any = None,
) -> Array:
    """``(pairs, n)``, in the order of their numbers: rows of x times the weights of their relation.

    Args:
        x: ``(rows, k)``.
        kernel: ``(relations, k, n)`` or, if ``transposed``, ``(relations, n, k)``.
        pairs: which.
        lines: the row of x that each pair in the order of relations reads; None: its own.
        bias: ``(relations, n)``, or None.
        scale: ``(pairs,)`` in the order of relations, factors of the products; or None.
        transposed: see above.
        precision: of the product.
        dtype: of the result, by default that of x.
    """
    return products.segment_matmul(
        *(x, kernel, bias, None, scale, pairs.sizes, jnp.zeros((1,), jnp.int32)),
        *(lines, pairs.to_node_order if pairs.by_node else None),
        transposed=transposed,
        precision=precision,
        activation=None,
        dtype=x.dtype if dtype is None else np.dtype(dtype),
    )


def outer(
    x: Array, ct: Array, pairs: Pairs, num_relations: int, *, scale: Array, precision: Any
) -> Array:
    """``(relations, k, n)``, the gradient of the kernel of such a product of rows in pairs' order.

    Args:
        x: ``(pairs, k)``, in the order of their numbers.
        ct: ``(nodes, n)``, the cotangent that each pair reads at its node.
        pairs: which.
        num_relations: number of relations.
        scale: see `product`.
        precision: of the product.
    """
    return products.segment_outer(
        *(x, ct, scale, pairs.sizes, jnp.zeros((1,), jnp.int32), pairs.numbering, pairs.gather),
        precision=precision,
        dtype=x.dtype,
        num_groups=num_relations,
        deterministic=True,
    )


def each_head(x: Array, width: int) -> Array:
    """Rows of all heads, which have them already or share them."""
    return x if x.shape[1] == width else jnp.tile(x, (1, width // x.shape[1]))


def by_head(function: Callable[..., Array], heads: int, *arrays: Array) -> Array:
    """What a function makes of each head's part of the last axis of arrays, in turn such parts."""
    if heads == 1:
        return function(*arrays)
    parts = (x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads) for x in arrays)
    found = jnp.moveaxis(jax.vmap(function)(*(jnp.moveaxis(x, -2, 0) for x in parts)), 0, -2)
    return found.reshape(*found.shape[:-2], heads * found.shape[-1])


def product_of_heads(
    x: Array, kernel: Array, bias: Array | None, pairs: Pairs, *, heads: int, **options: Any
) -> Array:
    """``(pairs, heads · n)`` of ``(pairs, heads · k)``, in the order of their numbers.

    Args:
        x: See above.
        kernel: ``(relations, k, heads · n)``, of each head by itself.
        bias: ``(relations, heads · n)``, or None.
        pairs: Which.
        heads: Number of heads.
        **options: Of `product`.
    """

    def of_head(x: Array, kernel: Array, *bias: Array) -> Array:
        last = bias[0] if bias else None
        return product(x, kernel, pairs, pairs.numbering, bias=last, **options)

    return by_head(of_head, heads, x, kernel, *([] if bias is None else [bias]))


# --- Values, and the numbers of destinations -----------------------------------------------------


def _projection(known: Projections, moving: tuple[Array], *, precision: Any) -> list[Array]:
    kernel, vectors, matrix = known
    (x,) = moving
    pairs = part(matrix.pair_src)
    value = product(x, kernel, pairs, pairs.gather, precision=precision)
    return [value, relation_dots(x, vectors, of_types(matrix, len(vectors)))]


def relation_dots(
    x: Array, vectors: Array, matrix: SparseMatrix, *, by_relation: bool = False
) -> Array:
    """``(entries, heads)``, dot products of their nodes' rows with the vectors of their relation.

    They are dots, as exact as the accumulator type, whatever the precision of products is: in
    gradients of scores terms cancel. And no products: to the vectors, gradients are weighted sums
    of rows, not outer products that are as narrow as there are heads.

    Args:
        x: ``(nodes, k)``.
        vectors: ``(relations, heads, k)``.
        matrix: ``(nodes, relations)``, or if ``by_relation`` the transpose.
        by_relation: See above.
    """
    heads, rows = vectors.shape[1], vectors.reshape(len(vectors), -1)
    both = each_head(x, rows.shape[1]), rows
    return sddmm(*(both[::-1] if by_relation else both), matrix, heads=heads)


def _projected(known: Projections, moving: tuple[Any], **attributes: Any) -> list[Any]:
    del attributes
    kernel, vectors, matrix = known
    (x,) = moving
    edges, heads = matrix.types.shape[0], vectors.shape[1]
    return [
        jax.ShapeDtypeStruct((part(matrix.pair_src).num_pairs, kernel.shape[2]), x.dtype),
        jax.ShapeDtypeStruct((edges, heads), accumulator_dtype(x.dtype)),
    ]


def _projection_transpose(
    known: Projections, moving: tuple[Any], cts: list[Array | None], *, precision: Any
) -> tuple[Array]:
    kernel, vectors, matrix = known
    to_value, to_number = cts
    found = None
    if to_number is not None:
        # Edges of one destination after another read vectors, which are few.
        heads, rows = to_number.shape[1], vectors.reshape(len(vectors), -1)
        by_types = of_types(matrix, len(vectors))
        found = segment_reduce(rows, to_number, by_types, heads=heads, reduce="sum")
        found = jnp.sum(found.reshape(len(found), heads, found.shape[1] // heads), 1)
    if to_value is not None:
        pairs = part(matrix.pair_src)
        rows = product(to_value, kernel, pairs, None, transposed=True, precision=precision)
        last = (None, None, None if found is None else found.astype(rows.dtype))
        found = segment_reduce(rows, None, pairs.gather.T, *last, heads=1, reduce="sum")
    assert found is not None
    return (found.astype(moving[0].dtype),)


def of_types(matrix: RelationalMatrix, num_relations: int) -> SparseMatrix:
    """``(destinations, num_relations)``, an entry an edge; those by source pair lie by relation."""
    into, out_of = matrix.nodes.by_row, part(matrix.from_pairs).by_col
    return SparseMatrix(
        Csr(into.rows, matrix.types, num_rows=into.num_rows),
        Csr(
            take_ids(matrix.types, out_of.order), out_of.cols, out_of.order, num_rows=num_relations
        ),
    )


# What moves is x, (nodes, k). Attribute: precision.
typed_values = Linear(
    name="typed_values",
    result=_projected,
    function=_projection,
    transpose=_projection_transpose,
)
