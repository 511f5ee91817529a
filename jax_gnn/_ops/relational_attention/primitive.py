"""What attention by source pair goes through, with gradients that are joined where they meet.

* ``typed_values``, values by source pair, H[p] = x[source of p] W[relation of p], and of each edge
  the number at its destination, ⟨x[v], d[relation]⟩. Linear in x, whose gradient is one sum: that
  of the values ends by adding that of the numbers. Has no kernel of its own.
* ``typed_attention``, the sum of values under the softmax of the edges' scores, which are
  LeakyReLU(⟨x[v], d[relation]⟩ + ⟨H[p], a[relation]⟩). On CUDA one pass that has H[p] for both.
* ``typed_attention_jvp``, its derivative, linear in the tangents of what it is made of, and
  ``typed_attention_vjp``, the part of its transpose that goes by source pair, in one pass too: H
  gets what it does for values and for scores, of kept scores, added up where a row is written.
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

from jax_gnn._core.arrays import FLOATS, accumulator_dtype, row_width
from jax_gnn._core.batching import batch, batch_apart
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.ids import ids_at, in_range
from jax_gnn._core.kernels import csr_operands, narrow
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import Bind, Call, Op, Operand, define
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._ops.edge_attention.primitive import (
    Known,
    Moving,
    by_composition,
    edge_attention,
    edge_attention_jvp,
    edge_attention_vjp,
    holds_whole_heads,
    of_log_sum,
    of_results,
    one_pass_workspaces,
    per_row_and_head,
    records_of,
)
from jax_gnn._ops.edge_attention.xla import ends, leaky
from jax_gnn._ops.segment_matmul import primitive as products
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, segment_reduce, total

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


class Attending(NamedTuple):
    """Operands of ``typed_attention``.

    Attributes:
        value: ``(source pairs, heads · n)``.
        of_value: ``(relations, heads · n)``, the vectors of the sources' numbers.
        x: ``(nodes, k)``; or None where ``at_dst`` is more than dots, and so for the next.
        of_x: ``(relations, heads, k)``, the vectors of the destinations' numbers.
        at_dst: ``(edges, heads)``, the dots of these two. Of the three it alone has a derivative;
            a kernel that can takes the dots again, and does not read it.
        entry_scale: ``(edges, heads)``, factors of the softmax, or None.
        pair_types: ``(source pairs,)``, the relation of each.
        matrix: the graph, with the part "from_pairs".
    """

    value: Any
    of_value: Any
    x: Any
    of_x: Any
    at_dst: Any
    entry_scale: Any
    pair_types: Any
    matrix: RelationalMatrix


class AttendingKnown(NamedTuple):
    """What is known of ``typed_attention_jvp``: operands of ``typed_attention``, and its results.

    Attributes:
        score: ``(edges, heads)``, before the LeakyReLU.
        y: what it gave.
        stats: likewise.
    """

    value: Any
    of_value: Any
    score: Any
    entry_scale: Any
    pair_types: Any
    y: Any
    stats: Any
    matrix: RelationalMatrix


class AttendingMoving(NamedTuple):
    """Operands that ``typed_attention_jvp`` is linear in: tangents of operands of the same name."""

    value: Any
    of_value: Any
    at_dst: Any


class AttendingCotangents(NamedTuple):
    """Operands of ``typed_attention_vjp``: likewise, and cotangents.

    Attributes:
        ct: like y, its cotangent.
        log_sum_ct: ``(nodes, heads)``, that of the logarithm of the softmax's sum; None stands for
            zeros.
    """

    value: Any
    of_value: Any
    score: Any
    entry_scale: Any
    pair_types: Any
    y: Any
    stats: Any
    ct: Any
    log_sum_ct: Any
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


def each_head(x: Array, width: int) -> Array:
    """Rows of all heads, which they have already or share."""
    return x if x.shape[1] == width else jnp.tile(x, (1, width // x.shape[1]))


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


def _projection(known: Projections, moving: tuple[Array], *, precision: Any) -> list[Array]:
    kernel, vectors, matrix = known
    (x,) = moving
    return [_values(x, kernel, matrix, precision=precision), _numbers(x, vectors, matrix)]


def _values(x: Array, kernel: Array, matrix: RelationalMatrix, **options: Any) -> Array:
    pairs = part(matrix.pair_src)
    return product(x, kernel, pairs, pairs.gather, **options)


def _numbers(x: Array, vectors: Array, matrix: RelationalMatrix) -> Array:
    heads, rows = vectors.shape[1], vectors.reshape(len(vectors), -1)
    both = each_head(x, rows.shape[1]), rows
    return sddmm(*both, _of_types(matrix, len(rows)), heads=heads)


def numbers_of_pairs(
    x: Array, vectors: Array, pairs: Pairs, implementation: str | None = None
) -> Array:
    """``(pairs, heads)``, dot products of their nodes' rows with the vectors of their relation.

    They are dots, as exact as the accumulator type, whatever the precision of products is: in
    gradients of scores terms cancel. And no products: to the vectors, gradients are weighted sums
    of rows, not outer products that are as narrow as there are heads.

    Args:
        x: ``(nodes, k)``.
        vectors: ``(relations, heads, k)``.
        pairs: which.
        implementation: of the kernels.
    """
    heads, rows = vectors.shape[1], vectors.reshape(len(vectors), -1)
    both = each_head(x, rows.shape[1]), rows
    both = both if pairs.by_node else both[::-1]
    return sddmm(*both, pairs.incidence, heads=heads, implementation=implementation)


def numbers_of_destinations(
    x: Array,
    vectors: Array,
    matrix: RelationalMatrix,
    implementation: str | None = None,
) -> Array:
    """``(edges, heads)``, those of the destinations, by way of their pairs."""
    of_pairs = numbers_of_pairs(x, vectors, part(matrix.pair_dst), implementation)
    return gather(of_pairs, ends(part(matrix.to_pairs))[0], implementation)


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
        of_types = _of_types(matrix, len(vectors))
        found = segment_reduce(rows, to_number, of_types, heads=heads, reduce="sum")
        found = jnp.sum(found.reshape(len(found), heads, -1), 1)
    if to_value is not None:
        pairs = part(matrix.pair_src)
        rows = product(to_value, kernel, pairs, None, transposed=True, precision=precision)
        last = (None, None, None if found is None else found.astype(rows.dtype))
        found = segment_reduce(rows, None, pairs.gather.T, *last, heads=1, reduce="sum")
    assert found is not None
    return (found.astype(moving[0].dtype),)


def _of_types(matrix: RelationalMatrix, num_relations: int) -> SparseMatrix:
    """``(destinations, num_relations)``, an entry an edge; those by source pair lie by relation."""
    into, out_of = matrix.nodes.by_row, part(matrix.from_pairs).by_col
    return SparseMatrix(
        Csr(into.rows, matrix.types, num_rows=into.num_rows),
        Csr(ids_at(matrix.types, out_of.order), out_of.cols, out_of.order, num_rows=num_relations),
    )


# What moves is x, (nodes, k). Attribute: precision.
typed_values = Linear(
    name="typed_values",
    result=_projected,
    function=_projection,
    transpose=_projection_transpose,
)


# --- Attention -----------------------------------------------------------------------------------


def numbers_of_values(
    value: Array,
    of_value: Array,
    pair_types: Array,
    matrix: RelationalMatrix,
    *,
    heads: int,
    implementation: str | None = None,
) -> Array:
    """``(edges, heads)``, those of the sources, by way of their pairs.

    Args:
        value: ``(source pairs, heads · n)``.
        of_value: ``(relations, heads · n)``.
        pair_types: ``(source pairs,)``, the relation of each.
        matrix: the graph, with the part "from_pairs".
        heads: number of heads.
        implementation: of the kernels.
    """
    of_types = segments(pair_types, len(of_value)).T
    of_pairs = sddmm(value, of_value, of_types, heads=heads, implementation=implementation)
    return gather(of_pairs, ends(part(matrix.from_pairs))[1], implementation)


def _attention(
    value: Array,
    of_value: Array,
    x: Array | None,
    of_x: Array | None,
    at_dst: Array,
    entry_scale: Array | None,
    pair_types: Array,
    matrix: RelationalMatrix,
    *,
    heads: int,
    slope: float,
    keeps_scores: bool,
    implementation: str | None = None,
) -> list[Array]:
    del x, of_x
    options: Any = {"heads": heads, "implementation": implementation}
    score = numbers_of_values(value, of_value, pair_types, matrix, **options) + at_dst
    is_typed = in_range(matrix.types, len(of_value))
    score = jnp.where(is_typed[:, None], score, -jnp.inf)
    operands = value, None, None, leaky(score, slope), entry_scale, part(matrix.from_pairs)
    return [*edge_attention(*operands, slope=1.0, **options), score[: _kept(score, keeps_scores)]]


def _attention_jvp(
    known: AttendingKnown, moving: AttendingMoving, *, heads: int, slope: float
) -> list[Array]:
    value, of_value, score, entry_scale, pair_types, y, stats, matrix = known
    dscore = _tangent_of_scores(value, of_value, pair_types, moving, matrix, heads=heads)
    of_pairs = part(matrix.from_pairs)
    held = Known(value, None, None, leaky(score, slope), entry_scale, y, stats, of_pairs)
    moved = Moving(moving.value, score=_sloped(dscore, score, slope))
    return edge_attention_jvp(held, moved, heads=heads, slope=1.0)


def _attention_vjp(
    value: Array,
    of_value: Array,
    score: Array,
    entry_scale: Array | None,
    pair_types: Array,
    y: Array,
    stats: Array,
    ct: Array,
    log_sum_ct: Array | None,
    matrix: RelationalMatrix,
    *,
    heads: int,
    slope: float,
    implementation: str | None = None,
) -> list[Array]:
    options: Any = {"heads": heads, "implementation": implementation}
    of_pairs = part(matrix.from_pairs)
    operands = value, None, None, leaky(score, slope), entry_scale, y, stats, ct, log_sum_ct
    to_value, _, to_score = edge_attention_vjp(*operands, of_pairs, slope=1.0, **options)
    to_score = _sloped(to_score, score, slope)
    to_number = total(to_score, ends(of_pairs)[1], implementation)
    of_types = segments(pair_types, len(of_value)).T
    to_value += segment_reduce(of_value, to_number, of_types, reduce="sum", **options)
    return [to_value, to_number, to_score]


def _tangent_of_scores(
    value: Array,
    of_value: Array,
    pair_types: Array,
    moving: AttendingMoving,
    matrix: RelationalMatrix,
    **options: Any,
) -> Array:
    """Before the LeakyReLU."""
    terms = [] if moving.at_dst is None else [moving.at_dst]
    for moved, of_moved in ((moving.value, of_value), (value, moving.of_value)):
        if moved is not None and of_moved is not None:
            terms.append(numbers_of_values(moved, of_moved, pair_types, matrix, **options))
    shape = matrix.types.shape[0], options["heads"]
    zeros = jnp.zeros(shape, accumulator_dtype(value.dtype))
    return functools.reduce(operator.add, terms, zeros)


def _sloped(dscore: Array, score: Array, slope: float) -> Array:
    """The derivative of the LeakyReLU, or its transpose."""
    return dscore if slope == 1 else jnp.where(score > 0, dscore, slope * dscore)


def _kept(per_edge: Any, keeps_scores: bool) -> Any:
    """How many edges' scores are a result."""
    return per_edge.shape[0] if keeps_scores else 0


def _attended(operands: Attending, *, heads: int, keeps_scores: bool, **attributes: Any) -> Any:
    del attributes
    value, types = operands.value, operands.matrix.types
    num_rows, acc = part(operands.matrix.from_pairs).by_row.num_rows, accumulator_dtype(value.dtype)
    return [
        jax.ShapeDtypeStruct((num_rows, row_width(value)), value.dtype),
        jax.ShapeDtypeStruct((num_rows, heads, 2), acc),
        jax.ShapeDtypeStruct((_kept(types, keeps_scores), heads), acc),
    ]


def _gradients(operands: AttendingCotangents, *, heads: int, **attributes: Any) -> list[Any]:
    del attributes
    value, score = operands.value, operands.score
    return [
        jax.ShapeDtypeStruct(value.shape, value.dtype),
        jax.ShapeDtypeStruct((value.shape[0], heads), score.dtype),
        jax.ShapeDtypeStruct(score.shape, score.dtype),
    ]


def _call(
    platform: str, operands: Attending, *, heads: int, slope: float, keeps_scores: bool
) -> Call | None:
    del platform
    value, of_value, x, of_x, at_dst, entry_scale, _, matrix = operands
    csr = part(matrix.from_pairs).by_row
    found = csr_operands(csr, value.shape[0])
    if found is None or csr.cols is None or csr.order is not None or not _has_kernel(value, heads):
        return None
    rows, cols, _ = found[0]
    types = narrow(matrix.types, of_value.shape[0])
    # Of one head the dots of destinations are taken along with those of values as wide.
    has_rows = x is not None and heads == 1 and row_width(x) == row_width(value)
    flags = {
        "has_rows": np.bool_(has_rows),
        "scaled": np.bool_(entry_scale is not None),
        "keeps_scores": np.bool_(keeps_scores),
        "slope": np.float64(slope),
    }
    at_rows = (x, Operand.of(_one_head, of_x), value) if has_rows else (value, value, at_dst)
    arrays = value, of_value, *at_rows, entry_scale or value
    return Call([*arrays, types, rows, cols], flags, one_pass_workspaces(csr, value))


def _one_head(vectors: Array) -> Array:
    return vectors[:, 0]


def _has_kernel(value: Any, heads: int) -> bool:
    return value.dtype in FLOATS and holds_whole_heads(value, heads)


def _vjp_call(
    platform: str, operands: AttendingCotangents, *, heads: int, slope: float
) -> Call | None:
    del platform
    value, of_value, score, entry_scale, types, y, stats, ct, log_sum_ct, matrix = operands
    csr = part(matrix.from_pairs).by_col
    found = csr_operands(csr, ct.shape[0])
    if found is None or not _has_kernel(value, heads):
        return None
    ids, flags = found
    flags |= {
        "scaled": np.bool_(entry_scale is not None),
        "has_log_sum_ct": np.bool_(log_sum_ct is not None),
        "slope": np.float64(slope),
    }
    arrays = ct, value, of_value, narrow(types, of_value.shape[0]), score, entry_scale or value
    workspaces = [*one_pass_workspaces(csr, value), records_of(stats)]
    return Call([*arrays, y, stats, log_sum_ct or value, *ids], flags, workspaces)


def _jvp(bind: Bind, primals: Attending, tangents: Attending) -> tuple[list[Array], list[Array]]:
    if tangents.entry_scale is not None:
        return by_composition(bind, primals, tangents)
    value, of_value, *_, entry_scale, pair_types, matrix = primals
    moving = AttendingMoving(tangents.value, tangents.of_value, tangents.at_dst)
    heads, slope, keeps = (bind.attributes[k] for k in ("heads", "slope", "keeps_scores"))
    options: Any = {"heads": heads, "implementation": bind.implementation}
    y, stats, score = bind(primals, keeps_scores=True)
    known = AttendingKnown(value, of_value, score, entry_scale, pair_types, y, stats, matrix)
    dy, dlog_sum = typed_attention_jvp(known, moving, slope=slope, **options)
    if keeps:
        dscore = _tangent_of_scores(value, of_value, pair_types, moving, matrix, **options)
    else:
        score = dscore = score[:0]
    return [y, stats, score], [dy, of_log_sum(dlog_sum), dscore]


def _jvp_transpose(
    known: AttendingKnown,
    moving: AttendingMoving,
    cts: list[Array | None],
    *,
    heads: int,
    slope: float,
) -> tuple[Array, Array | None, Array]:
    to_value, to_number, to_score = typed_attention_vjp(
        *(*known[:7], *of_results(cts, known.y), known.matrix), heads=heads, slope=slope
    )
    to_of_value = None
    if moving.of_value is not None:
        of_types = segments(known.pair_types, len(known.of_value))
        to_of_value = segment_reduce(known.value, to_number, of_types, reduce="sum", heads=heads)
    return to_value, to_of_value, to_score


def _batch(bind: Bind, operands: Attending, batched: Attending, size: int) -> list[Array]:
    """Joins the heads, which no rows of x are for."""
    if batched.pair_types or any(jax.tree.leaves(batched.matrix)):
        return batch_apart(bind, operands, batched, size)
    weights = "at_dst", "entry_scale"
    operands, batched = (each._replace(x=None, of_x=None) for each in (operands, batched))
    if not any(jax.tree.leaves(batched)):
        return [jnp.broadcast_to(each, (size, *each.shape)) for each in bind(operands)]
    return batch(weights, bind, operands, batched, size, per_entry=True, shared=("pair_types",))


def _attention_flops(operands: Any, **attributes: Any) -> int:
    del attributes
    return 4 * operands.matrix.types.shape[0] * row_width(operands.value)


# Results: those of edge_attention, and scores of edges before the LeakyReLU, -inf for those that
# have no relation; without rows unless they are kept. Attributes: heads, slope (of the LeakyReLU),
# keeps_scores.
typed_attention = define(
    Op(
        name="typed_attention",
        operands=Attending,
        result=_attended,
        xla=_attention,
        platforms=("cuda",),
        call=_call,
        jvp=_jvp,
        transpose={},
        batch=_batch,
        several=True,
        flops=_attention_flops,
    )
)


# The tangents of y and of stats[1].
typed_attention_jvp = Linear(
    name="typed_attention_jvp",
    result=per_row_and_head,
    function=_attention_jvp,
    transpose=_jvp_transpose,
)


# The cotangents of value; of the sources' numbers, (source pairs, heads); and of the scores before
# the LeakyReLU.
typed_attention_vjp = define(
    Op(
        name="typed_attention_vjp",
        operands=AttendingCotangents,
        result=_gradients,
        xla=_attention_vjp,
        platforms=("cuda",),
        call=_vjp_call,
        jvp=by_composition,
        transpose={},
        batch=batch_apart,
        several=True,
        flops=lambda operands, **_: 2 * _attention_flops(operands),
    )
)
