"""What attention by source pair goes through, with gradients that are joined where they meet.

Both primitives stand for others and have no kernels: only their derivatives are particular.

* ``typed_values``, values by source pair, H[p] = x[source of p] W[relation of p], and of each edge
  the number at its destination, ⟨x[v], d[relation]⟩. Linear in x, whose gradient is one sum: that
  of the values ends by adding that of the numbers.
* ``source_numbers``, of each edge the number at its source, ⟨H[p], a[relation]⟩, and added to it
  that at its destination. Its gradients go by pair, whatever edges read: what H gets of it is a
  pass that XLA joins to the sum of H's gradients.
"""

from __future__ import annotations

import functools
import itertools
import operator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, take
from jax_gnn._core.batching import batch_apart
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.ids import bounded
from jax_gnn._core.op import Bind, Op, define
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._ops.edge_attention.xla import ends
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


class AtSources(NamedTuple):
    """Operands of ``source_numbers``.

    Attributes:
        value: ``(source pairs, heads · n)``.
        vectors: ``(relations, heads · n)``.
        at_dst: ``(edges, heads)``, what is added; or None.
        nodes: ``(nodes, k)`` and ``(relations, heads, k)``, the x and the vectors whose dots that
            are. Edges that read rows take them in the same pass, so that nobody reads ``at_dst``,
            which alone has a derivative. Or None.
        pair_types: ``(source pairs,)``, the relation of each.
        matrix: the graph, with the part "from_pairs".
    """

    value: Any
    vectors: Any
    at_dst: Any
    nodes: tuple[Any, Any] | None
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


# --- Values, and the numbers of destinations -----------------------------------------------------


def _projection(
    x: Array,
    kernel: Array,
    vectors: Array,
    matrix: RelationalMatrix,
    *,
    by_edge: bool,
    precision: Any,
    implementation: str | None = None,
) -> list[Array]:
    options: Any = {"precision": precision, "implementation": implementation}
    value = _values(x, kernel, matrix, **options)
    if by_edge:
        return [value, dots(_at_dst(x, vectors, matrix), types=matrix.types)]
    return [value, numbers_by_pair(x, vectors, matrix, **options)]


def dots(*ends: tuple[Array, Array, Array], types: Array) -> Array:
    """``(edges, heads)``: the dots of rows and of vectors that edges name, of all ends together.

    Any number of padding, whose ids are clipped, as nobody looks at it.

    Args:
        *ends: of each the rows, ``(rows, heads or 1, n)``, those that edges name, and the vectors,
            ``(relations, heads, n)``.
        types: the vectors that edges name.
    """
    acc, width = accumulator_dtype(ends[0][0].dtype), max(rows.shape[2] for rows, _, _ in ends)

    def terms(rows: Array, ids: Array, vectors: Array) -> Array:
        found = _clipped(rows, ids).astype(acc) * _clipped(vectors, types).astype(acc)
        return jnp.pad(found, ((0, 0), (0, 0), (0, width - rows.shape[2])))

    # One sum is one launch. XLA adds up sums of either end, or of both side by side, in another.
    return jnp.sum(functools.reduce(operator.add, itertools.starmap(terms, ends)), axis=-1)


def _clipped(x: Array, ids: Array) -> Array:
    return x.at[bounded(ids, x.shape[0])].get(mode="clip", wrap_negative_indices=False)


def _at_dst(x: Array, vectors: Array, matrix: RelationalMatrix) -> tuple[Array, Array, Array]:
    return x[:, None], matrix.nodes.by_row.rows, vectors


def _values(x: Array, kernel: Array, matrix: RelationalMatrix, **options: Any) -> Array:
    pairs = part(matrix.pair_src)
    return product(x, kernel, pairs, pairs.gather, **options)


def numbers_by_pair(
    x: Array,
    vectors: Array,
    matrix: RelationalMatrix,
    *,
    precision: Any,
    implementation: Any = None,
) -> Array:
    """``(edges, heads)``, those of the destinations, by a product for each of their pairs."""
    pairs, at_dst = part(matrix.pair_dst), ends(part(matrix.to_pairs))[0]
    options: Any = {"precision": precision, "implementation": implementation}
    acc = accumulator_dtype(x.dtype)
    of_pairs = product(x, vectors.swapaxes(1, 2), pairs, pairs.gather, dtype=acc, **options)
    return gather(of_pairs, at_dst, implementation)


def _projected(operands: Projected, **attributes: Any) -> list[Any]:
    del attributes
    x, kernel, vectors, matrix = operands
    edges, heads = matrix.types.shape[0], vectors.shape[1]
    return [
        jax.ShapeDtypeStruct((part(matrix.pair_src).num_pairs, kernel.shape[2]), x.dtype),
        jax.ShapeDtypeStruct((edges, heads), accumulator_dtype(x.dtype)),
    ]


def _projection_jvp(
    bind: Bind, primals: Projected, tangents: Projected
) -> tuple[list[Array], list[Array]]:
    x, matrix = primals.x, primals.matrix
    options: Any = {
        "precision": bind.attributes["precision"],
        "implementation": bind.implementation,
    }
    result = bind(primals)
    if tangents.x is None:
        found = [jnp.zeros_like(each) for each in result]
    else:
        found = bind(primals._replace(x=tangents.x))
    if tangents.kernel is not None:
        found[0] += _values(x, tangents.kernel, matrix, **options)
    if tangents.vectors is not None:
        found[1] += numbers_by_pair(x, tangents.vectors, matrix, **options)
    return result, found


def _projection_transpose_x(
    bind: Bind, cts: list[Array | None], operands: Projected
) -> Array | None:
    _, kernel, vectors, matrix = operands
    to_value, to_number = cts
    dtype, implementation = operands.x.aval.dtype, bind.implementation
    options: Any = {"precision": bind.attributes["precision"], "implementation": implementation}
    sums: Any = {"reduce": "sum", "heads": 1, "implementation": implementation}
    found = None
    if to_number is not None and to_number.shape[1] == 1:
        # Edges of one destination after another read vectors, which are few.
        csr = matrix.nodes.by_row
        of_types = SparseMatrix(
            Csr(csr.rows, matrix.types, num_rows=csr.num_rows), _by_type(matrix, len(vectors))
        )
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


def _by_type(matrix: RelationalMatrix, num_relations: int) -> Csr:
    """Edges by relation, which those by source pair lie by, and their destinations."""
    csr = part(matrix.from_pairs).by_col
    return Csr(take(matrix.types, csr.order), csr.cols, csr.order, num_rows=num_relations)


# Attributes: by_edge, precision. Only what x has tangents of is transposed.
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
    )
)


# --- Numbers of sources --------------------------------------------------------------------------


def _source_numbers(
    value: Array,
    vectors: Array,
    at_dst: Array | None,
    nodes: tuple[Array, Array] | None,
    pair_types: Array,
    matrix: RelationalMatrix,
    *,
    heads: int,
    by_edge: bool,
    precision: Any,
    implementation: str | None = None,
) -> Array:
    del precision
    edges = part(matrix.from_pairs)
    if by_edge:
        at_src = _split(value, heads), edges.by_row.cols, _split(vectors, heads)
        if at_dst is None or nodes is None:
            found = dots(at_src, types=matrix.types)
            return found if at_dst is None else found + at_dst
        return dots(_at_dst(*nodes, matrix), at_src, types=matrix.types)
    of_types = segments(pair_types, len(vectors)).T
    of_pairs = sddmm(value, vectors, of_types, heads=heads, implementation=implementation)
    found = gather(of_pairs, ends(edges)[1], implementation)
    return found if at_dst is None else found + at_dst


def _split(x: Array, heads: int) -> Array:
    """``(rows, heads · n)`` to ``(rows, heads, n)``."""
    return x.reshape(x.shape[0], heads, x.shape[1] // heads)


def _source_numbers_jvp(
    bind: Bind, primals: AtSources, tangents: AtSources
) -> tuple[Array, Array | None]:
    value, vectors, _, _, pair_types, matrix = primals
    heads, implementation = bind.attributes["heads"], bind.implementation
    acc, terms = accumulator_dtype(value.dtype), []
    if tangents.value is not None:
        of_types = segments(pair_types, len(vectors)).T
        options: Any = {"heads": heads, "implementation": implementation}
        terms.append(sddmm(tangents.value, vectors, of_types, **options))
    if tangents.vectors is not None:
        options = {"precision": bind.attributes["precision"], "implementation": implementation}
        columns = (
            _split(tangents.vectors, heads)[..., None] * jnp.eye(heads, dtype=value.dtype)[:, None]
        )
        columns = columns.reshape(*tangents.vectors.shape, heads)
        pairs = part(matrix.pair_src)
        terms.append(product(value, columns, pairs, None, dtype=acc, **options))
    found = [] if tangents.at_dst is None else [tangents.at_dst]
    if terms:
        of_pairs, at_src = functools.reduce(operator.add, terms), ends(part(matrix.from_pairs))[1]
        found.append(gather(of_pairs, at_src, implementation))
    return bind(primals), functools.reduce(operator.add, found) if found else None


# Attributes: heads, by_edge, precision.
source_numbers = define(
    Op(
        name="source_numbers",
        operands=AtSources,
        result=lambda operands, heads, **_: jax.ShapeDtypeStruct(
            (operands.matrix.types.shape[0], heads), accumulator_dtype(operands.value.dtype)
        ),
        xla=_source_numbers,
        platforms=(),
        jvp=_source_numbers_jvp,
        transpose={},
        batch=batch_apart,
    )
)
