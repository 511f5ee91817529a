"""What attention by source pair goes through, with gradients that are joined where they meet.

* ``typed_values``, values by source pair, H[p] = x[source of p] W[relation of p], and of each edge
  the number at its destination, ⟨x[v], d[relation]⟩. Linear in x, whose gradient is one sum: that
  of the values ends by adding that of the numbers. Has no kernel of its own.
* ``typed_scores``, of each edge LeakyReLU(⟨x[v], d[relation]⟩ + ⟨H[p], a[relation]⟩). On CUDA one
  pass that reads the rows at both ends of each edge. Derivatives go by pair, so that what H gets is
  an elementwise pass, which XLA joins to the sum of H's gradients.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import FLOATS, accumulator_dtype, row_width, take
from jax_gnn._core.batching import batch_apart
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.kernels import csr_operands, narrow
from jax_gnn._core.op import Bind, Call, Op, define
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._ops.edge_attention.xla import ends, leaky
from jax_gnn._ops.segment_matmul import primitive as products
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, segment_reduce, total

P = TypeVar("P")


class Projected(NamedTuple):
    """Operands of ``typed_values``.

    Attributes:
        x: ``(nodes, k)``.
        kernel: ``(relations, k, heads · n)``, of the values.
        vectors: ``(relations, heads, k)``, of the destinations' numbers.
        matrix: the graph, with the parts "from_pairs" and "to_pairs".
    """

    x: Any
    kernel: Any
    vectors: Any
    matrix: RelationalMatrix


class Scored(NamedTuple):
    """Operands of ``typed_scores``.

    Attributes:
        value: ``(source pairs, heads · n)``.
        of_value: ``(relations, heads · n)``, the vectors of the sources' numbers.
        x: ``(nodes, k)``; or None without numbers of destinations, and so for the next two.
        of_x: ``(relations, heads, k)``, the vectors of the destinations' numbers.
        at_dst: ``(edges, heads)``, the dots of these two. Of the three it alone has a derivative;
            a kernel does not read it, but takes the dots anew.
        pair_types: ``(source pairs,)``, the relation of each.
        matrix: the graph, with the part "from_pairs".
    """

    value: Any
    of_value: Any
    x: Any
    of_x: Any
    at_dst: Any
    pair_types: Any
    matrix: RelationalMatrix


def part(part: P | None) -> P:
    """A part that the way goes through, and therefore there."""
    assert part is not None
    return part


def product(
    x: Array,
    kernel: Array,
    pairs: Pairs,
    lines: SparseMatrix | None,
    *,
    bias: Array | None = None,
    transposed: bool = False,
    precision: Any,
    dtype: Any = None,
    implementation: str | None = None,
) -> Array:
    """``(pairs, n)``, in the order of their numbers: rows of x times the weights of their relation.

    Args:
        x: ``(rows, k)``.
        kernel: ``(relations, k, n)`` or, if ``transposed``, ``(relations, n, k)``.
        pairs: which.
        lines: the row of x that each pair in the order of relations reads; None: its own.
        bias: ``(relations, n)``, or None.
        transposed: see above.
        precision: of the product.
        dtype: of the result, by default that of x.
        implementation: of the kernels.
    """
    return products.segment_matmul(
        *(x, kernel, bias, None, None, pairs.sizes, jnp.zeros((1,), jnp.int32)),
        *(lines, pairs.to_node_order if pairs.by_node else None),
        transposed=transposed,
        precision=precision,
        activation=None,
        dtype=x.dtype if dtype is None else np.dtype(dtype),
        implementation=implementation,
    )


def heads_first(x: Array, heads: int) -> Array:
    """``(…, heads · n)`` as ``(heads, …, n)``."""
    return jnp.moveaxis(x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads), -2, 0)


def by_head(function: Callable[..., Array], heads: int, *arrays: Array) -> Array:
    """What a function makes of each head's part of the last axis of arrays, in turn such parts."""
    if heads == 1:
        return function(*arrays)
    found = jnp.moveaxis(jax.vmap(function)(*(heads_first(x, heads) for x in arrays)), 0, -2)
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


def _projection(
    x: Array,
    kernel: Array,
    vectors: Array,
    matrix: RelationalMatrix,
    *,
    precision: Any,
    implementation: str | None = None,
) -> list[Array]:
    options: Any = {"precision": precision, "implementation": implementation}
    return [_values(x, kernel, matrix, **options), _numbers(x, vectors, matrix, **options)]


def _values(x: Array, kernel: Array, matrix: RelationalMatrix, **options: Any) -> Array:
    pairs = part(matrix.pair_src)
    return product(x, kernel, pairs, pairs.gather, **options)


def _numbers(x: Array, vectors: Array, matrix: RelationalMatrix, **options: Any) -> Array:
    if vectors.shape[1] > 1:
        return numbers_of_destinations(x, vectors, matrix, **options)
    of_types, implementation = _of_types(matrix, len(vectors)), options["implementation"]
    return sddmm(x, vectors[:, 0], of_types, heads=1, implementation=implementation)


def numbers_of_pairs(
    x: Array, vectors: Array, pairs: Pairs, *, precision: Any, implementation: str | None = None
) -> Array:
    """``(pairs, heads)``, dot products of their nodes' rows with the vectors of their relation.

    Args:
        x: ``(nodes, k)``.
        vectors: ``(relations, heads, k)``.
        pairs: which.
        precision: of a product; where there is one head, sums are exact.
        implementation: of the kernels.
    """
    if vectors.shape[1] == 1:
        # The gradient to the vectors is then a weighted sum of rows, not of outer products that are
        # a number wide, for which matrix units are no use.
        both = (x, vectors[:, 0]) if pairs.by_node else (vectors[:, 0], x)
        return sddmm(*both, pairs.incidence, heads=1, implementation=implementation)
    options: Any = {"precision": precision, "implementation": implementation}
    acc = accumulator_dtype(x.dtype)
    return product(x, vectors.swapaxes(1, 2), pairs, pairs.gather, dtype=acc, **options)


def numbers_of_destinations(
    x: Array,
    vectors: Array,
    matrix: RelationalMatrix,
    *,
    precision: Any,
    implementation: str | None = None,
) -> Array:
    """``(edges, heads)``, those of the destinations, by way of their pairs."""
    options: Any = {"precision": precision, "implementation": implementation}
    of_pairs = numbers_of_pairs(x, vectors, part(matrix.pair_dst), **options)
    return gather(of_pairs, ends(part(matrix.to_pairs))[0], implementation)


def _projected(operands: Projected, **attributes: Any) -> list[Any]:
    del attributes
    x, kernel, vectors, matrix = operands
    edges, heads = matrix.types.shape[0], vectors.shape[1]
    return [
        jax.ShapeDtypeStruct((part(matrix.pair_src).num_pairs, kernel.shape[2]), x.dtype),
        jax.ShapeDtypeStruct((edges, heads), accumulator_dtype(x.dtype)),
    ]


def _projection_flops(operands: Projected, **attributes: Any) -> int:
    del attributes
    _, kernel, vectors, matrix = operands
    _, k, n = kernel.shape
    pairs, edges = part(matrix.pair_src).num_pairs, matrix.types.shape[0]
    return 2 * k * (pairs * n + edges * vectors.shape[1])


def _projection_jvp(
    bind: Bind, primals: Projected, tangents: Projected
) -> tuple[list[Array], list[Array]]:
    x, matrix = primals.x, primals.matrix
    options: Any = {**bind.attributes, "implementation": bind.implementation}
    result = bind(primals)
    if tangents.x is None:
        found = [jnp.zeros_like(each) for each in result]
    else:
        found = bind(primals._replace(x=tangents.x))
    if tangents.kernel is not None:
        found[0] += _values(x, tangents.kernel, matrix, **options)
    if tangents.vectors is not None:
        found[1] += _numbers(x, tangents.vectors, matrix, **options)
    return result, found


def _projection_transpose_x(
    bind: Bind, cts: list[Array | None], operands: Projected
) -> Array | None:
    _, kernel, vectors, matrix = operands
    to_value, to_number = cts
    dtype, implementation = operands.x.aval.dtype, bind.implementation
    options: Any = {**bind.attributes, "implementation": implementation}
    sums: Any = {"reduce": "sum", "heads": 1, "implementation": implementation}
    found = None
    if to_number is not None and to_number.shape[1] == 1:
        # Edges of one destination after another read vectors, which are few.
        of_types = _of_types(matrix, len(vectors))
        found = segment_reduce(vectors[:, 0], to_number, of_types, **sums)
    elif to_number is not None:
        pairs, at_dst = part(matrix.pair_dst), ends(part(matrix.to_pairs))[0]
        of_pairs = total(to_number, at_dst, implementation)
        rows = product(of_pairs, vectors.astype(of_pairs.dtype), pairs, pairs.numbering, **options)
        found = segment_reduce(rows, None, pairs.node_segments, **sums)
    if to_value is not None:
        pairs = part(matrix.pair_src)
        rows = product(to_value, kernel, pairs, None, transposed=True, **options)
        last = (None, None, None if found is None else found.astype(rows.dtype))
        found = segment_reduce(rows, None, pairs.gather.T, *last, **sums)
    return None if found is None else found.astype(dtype)


def _of_types(matrix: RelationalMatrix, num_relations: int) -> SparseMatrix:
    """``(destinations, num_relations)``, an entry an edge; those by source pair lie by relation."""
    into, out_of = matrix.nodes.by_row, part(matrix.from_pairs).by_col
    return SparseMatrix(
        Csr(into.rows, matrix.types, num_rows=into.num_rows),
        Csr(take(matrix.types, out_of.order), out_of.cols, out_of.order, num_rows=num_relations),
    )


# Attribute: precision. Only what x has tangents of is transposed.
typed_values = define(
    Op(
        name="typed_values",
        operands=Projected,
        result=_projected,
        xla=_projection,
        platforms=(),
        jvp=_projection_jvp,
        transpose={"x": _projection_transpose_x},
        batch=batch_apart,
        several=True,
        flops=_projection_flops,
    )
)


# --- Scores --------------------------------------------------------------------------------------


def _scores(
    value: Array,
    of_value: Array,
    x: Array | None,
    of_x: Array | None,
    at_dst: Array | None,
    pair_types: Array,
    matrix: RelationalMatrix,
    *,
    heads: int,
    slope: float,
    implementation: str | None = None,
) -> Array:
    del x, of_x
    of_types = segments(pair_types, len(of_value)).T
    of_pairs = sddmm(value, of_value, of_types, heads=heads, implementation=implementation)
    found = gather(of_pairs, ends(part(matrix.from_pairs))[1], implementation)
    found = found if at_dst is None else found + at_dst
    return found if slope == 1 else leaky(found, slope)


def _scores_call(platform: str, operands: Scored, *, heads: int, slope: float) -> Call | None:
    del platform
    value, of_value, x, of_x, _, _, matrix = operands
    found = csr_operands(part(matrix.from_pairs).by_row, value.shape[0])
    if found is None or x is None or value.dtype not in FLOATS:
        return None
    rows, cols, _ = found[0]
    types = narrow(matrix.types, of_value.shape[0])
    attributes = {"heads": np.int64(heads), "slope": np.float64(slope)}
    return Call([value, of_value, x, of_x, types, rows, cols], attributes)


def _scores_jvp(bind: Bind, primals: Scored, tangents: Scored) -> tuple[Array, Array | None]:
    value, of_value, matrix = primals.value, primals.of_value, primals.matrix
    heads, slope = bind.attributes["heads"], bind.attributes["slope"]
    implementation, result = bind.implementation, bind(primals)
    of_types = segments(primals.pair_types, len(of_value)).T
    options: Any = {"heads": heads, "implementation": implementation}
    terms = []
    if tangents.value is not None:
        terms.append(sddmm(tangents.value, of_value, of_types, **options))
    if tangents.of_value is not None:
        terms.append(sddmm(value, tangents.of_value, of_types, **options))
    found = [] if tangents.at_dst is None else [tangents.at_dst]
    if terms:
        of_pairs, at_src = functools.reduce(operator.add, terms), ends(part(matrix.from_pairs))[1]
        found.append(gather(of_pairs, at_src, implementation))
    if not found:
        return result, None
    tangent = functools.reduce(operator.add, found)
    # The sign is that of what the LeakyReLU was applied to, as its slope is not negative.
    return result, tangent if slope == 1 else jnp.where(result > 0, tangent, slope * tangent)


# Attributes: heads, slope (of the LeakyReLU, not below 0).
typed_scores = define(
    Op(
        name="typed_scores",
        operands=Scored,
        result=lambda operands, heads, **_: jax.ShapeDtypeStruct(
            (operands.matrix.types.shape[0], heads), accumulator_dtype(operands.value.dtype)
        ),
        xla=_scores,
        platforms=("cuda",),
        call=_scores_call,
        jvp=_scores_jvp,
        transpose={},
        batch=batch_apart,
        flops=lambda operands, **_: 2 * operands.matrix.types.shape[0] * row_width(operands.value),
    )
)
