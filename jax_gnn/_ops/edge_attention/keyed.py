"""Attention whose scores are those of the rows' and columns' keys: of GATv2, or dot products.

``keyed_attention`` is ``edge_attention`` of these scores, in one pass over the entries where there
is a kernel, and the composition of both elsewhere. Its derivative is linear in the tangents of all
that it is made of; the transpose of that computes the scores again, so that nothing with a number
for each entry is kept from the forward to the backward pass. ``keyed_attention_vjp`` is the part of
it that goes by column, in one pass where there is a kernel; what rows' keys get is a weighted sum.
``keyed_attention_gradients`` is both, in one launch where there are few entries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, row_width
from jax_gnn._core.batching import batch, batch_apart
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.kernels import csr_operands, most_blocks, workspace_of
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import Bind, Call, Op, Operand, define
from jax_gnn._ops.edge_attention.leaky import leaky_scores, leaky_sum
from jax_gnn._ops.edge_attention.primitive import (
    Known,
    Moving,
    by_composition,
    edge_attention,
    edge_attention_jvp,
    edge_attention_vjp,
    gradients_in_step,
    holds_whole_heads,
    of_log_sum,
    of_results,
    one_pass_workspaces,
    per_row_and_head,
    per_row_and_stats,
    records_of,
)
from jax_gnn._ops.segment_reduce.primitive import sddmm, segment_reduce


class Keyed(NamedTuple):
    """Operands of ``keyed_attention``.

    Attributes:
        value: ``(columns, heads · features)``.
        row_key: ``(rows, heads · key features)``, in the dtype of ``value``.
        col_key: ``(columns, heads · key features)``, likewise; None where it is ``value``.
        vector: ``(1, heads · key features)`` in the accumulator type, of scores ⟨vector,
            LeakyReLU(row_key + col_key)⟩; None for dot products of both keys.
        scale: ``(1, 1)`` in the accumulator type, what dot products are multiplied by.
        entry_scale: ``(entries, heads)``, factors of the softmax, or None.
        matrix: the entries, those by row in the order of what each has for itself.
    """

    value: Any
    row_key: Any
    col_key: Any
    vector: Any
    scale: Any
    entry_scale: Any
    matrix: SparseMatrix


class KeyedKnown(NamedTuple):
    """What is known of ``keyed_attention_jvp``: operands of ``keyed_attention``, and its results.

    Attributes:
        y: what it gave.
        stats: likewise.
    """

    value: Any
    row_key: Any
    col_key: Any
    vector: Any
    scale: Any
    entry_scale: Any
    y: Any
    stats: Any
    matrix: SparseMatrix


class KeyedMoving(NamedTuple):
    """Operands that ``keyed_attention_jvp`` is linear in: tangents of operands of the same name."""

    value: Any
    row_key: Any
    col_key: Any
    vector: Any
    scale: Any


class KeyedCotangents(NamedTuple):
    """Operands of ``keyed_attention_vjp``: those of ``keyed_attention``, its results, cotangents.

    Attributes:
        y: what it gave; None where of each row and head what ⟨ct, y⟩ is for is in ``log_sum_ct``,
            as its negative.
        ct: like y, its cotangent.
        log_sum_ct: ``(rows, heads)``, that of the logarithm of the softmax's sum; None stands for
            zeros.
    """

    value: Any
    row_key: Any
    col_key: Any
    vector: Any
    scale: Any
    entry_scale: Any
    y: Any
    stats: Any
    ct: Any
    log_sum_ct: Any
    matrix: SparseMatrix


_OF_SCORES = ("row_key", "col_key", "vector", "scale")


# --- In other primitives -------------------------------------------------------------------------


def _scores(
    row_key: Array,
    col_key: Array,
    vector: Array | None,
    scale: Array | None,
    matrix: SparseMatrix,
    *,
    heads: int,
    slope: float,
    implementation: str | None = None,
) -> Array:
    """Of each entry and head."""
    options: Any = {"heads": heads, "implementation": implementation}
    if vector is not None:
        return leaky_scores(row_key, col_key, vector, matrix, slope=slope, **options)
    assert scale is not None
    return sddmm(row_key, col_key, matrix, **options) * scale


def _composed(
    value: Array,
    row_key: Array,
    col_key: Array | None,
    vector: Array | None,
    scale: Array | None,
    entry_scale: Array | None,
    matrix: SparseMatrix,
    *,
    heads: int,
    slope: float,
    implementation: str | None = None,
) -> list[Array]:
    options: Any = {"heads": heads, "slope": slope, "implementation": implementation}
    key = value if col_key is None else col_key
    score = _scores(row_key, key, vector, scale, matrix, **options)
    return edge_attention(value, None, None, score, entry_scale, matrix, **options)


def _of_moving(
    known: KeyedKnown, moving: KeyedMoving, attributes: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The scores as a function of what has a tangent, that, and the tangents."""
    held = {name: getattr(known, name) for name in _OF_SCORES}
    given = {name: getattr(moving, name) for name in _OF_SCORES}
    if known.col_key is None:
        held["col_key"], given["col_key"] = known.value, moving.value
    tangents = {name: each for name, each in given.items() if each is not None}

    def scores(moved: dict[str, Any]) -> Array:
        return _scores(**{**held, **moved}, matrix=known.matrix, **attributes)

    return scores, {name: held[name] for name in tangents}, tangents


def _with_scores(known: KeyedKnown, score: Array) -> Known:
    """The same of ``edge_attention``, of these scores."""
    return Known(known.value, None, None, score, *known[5:])


def _tangents(known: KeyedKnown, moving: KeyedMoving, **attributes: Any) -> list[Array]:
    scores, held, tangents = _of_moving(known, moving, attributes)
    score, dscore = jax.jvp(scores, (held,), (tangents,))
    moved = Moving(moving.value, score=dscore)
    return edge_attention_jvp(_with_scores(known, score), moved, **attributes)


def _composed_vjp(
    *, heads: int, slope: float, implementation: str | None = None, **by_name: Any
) -> list[Array]:
    operands = KeyedCotangents(**by_name)
    value, row_key, col_key, vector, scale, entry_scale, y, stats, ct, of_log_sum, matrix = operands
    results = jnp.zeros_like(ct) if y is None else y, stats, ct, of_log_sum
    options: Any = {"heads": heads, "slope": slope, "implementation": implementation}
    key = value if col_key is None else col_key

    def scores(key: Array, vector: Array | None) -> Array:
        return _scores(row_key, key, vector, scale, matrix, **options)

    score, pull = jax.vjp(scores, key, vector)
    to_value, _, to_score = edge_attention_vjp(
        *(value, None, None, score, entry_scale, *results, matrix), **options
    )
    to_key, to_vector = pull(to_score)
    if vector is None:
        to_score *= scale
    absent = [jnp.zeros(each.shape, each.dtype) for each in _gradients(operands, heads=heads)]
    if col_key is None:
        to_value, to_key = to_value + to_key, absent[1]
    return [to_value, to_key, to_score, absent[3] if to_vector is None else to_vector]


def _composed_gradients(
    *, heads: int, slope: float, implementation: str | None = None, **by_name: Any
) -> list[Array]:
    operands = KeyedCotangents(**by_name)
    options: Any = {"heads": heads, "slope": slope, "implementation": implementation}
    to_value, to_col_key, to_score, to_vector = keyed_attention_vjp(*operands, **options)
    return [to_value, _of_row_keys(operands, to_score, **options), to_col_key, to_vector]


def _of_row_keys(
    operands: KeyedCotangents,
    to_score: Array,
    *,
    heads: int,
    slope: float,
    implementation: str | None,
) -> Array:
    """What rows' keys get of the scores' cotangents, of dot products before they are scaled."""
    value, row_key, col_key, vector, *_ = operands
    key, matrix = value if col_key is None else col_key, operands.matrix
    options: Any = {"heads": heads, "implementation": implementation}
    if vector is None:
        return segment_reduce(key, to_score, matrix, reduce="sum", **options)
    return leaky_sum(row_key, key, to_score, vector, matrix, slope=slope, **options)


# --- What the kernels get ------------------------------------------------------------------------


def _has_kernel(operands: Keyed | KeyedKnown | KeyedCotangents, heads: int) -> bool:
    same = row_width(operands.row_key) == row_width(operands.value)
    return same and holds_whole_heads(operands.value, heads)


def _flags(operands: Keyed | KeyedCotangents, slope: float) -> dict[str, Any]:
    return {
        "leaky": np.bool_(operands.vector is not None),
        "scaled": np.bool_(operands.entry_scale is not None),
        "slope": np.float64(slope),
    }


def _call(platform: str, operands: Keyed, *, heads: int, slope: float) -> Call | None:
    del platform
    value, row_key, col_key, vector, scale, entry_scale, matrix = operands
    csr = matrix.by_row
    found = csr_operands(csr, value.shape[0])
    if found is None or not _has_kernel(operands, heads):
        return None
    ids, flags = found
    flags |= _flags(operands, slope)
    factor = Operand.of(jnp.ravel, vector or scale)
    arrays = value, row_key, col_key or value, factor, entry_scale or value
    return Call([*arrays, *ids], flags, one_pass_workspaces(csr, value))


def _gradients(
    operands: KeyedCotangents, *, heads: int, slope: float | None = None
) -> list[jax.ShapeDtypeStruct]:
    """What is absent has no rows."""
    del slope
    value, matrix = operands.value, operands.matrix
    width, acc = row_width(operands.row_key), accumulator_dtype(value.dtype)
    num_keys = 0 if operands.col_key is None else value.shape[0]
    num_vectors = 0 if operands.vector is None else 1
    return [
        jax.ShapeDtypeStruct(value.shape, value.dtype),
        jax.ShapeDtypeStruct((num_keys, width), value.dtype),
        jax.ShapeDtypeStruct((matrix.by_row.count, heads), acc),
        jax.ShapeDtypeStruct((num_vectors, width), acc),
    ]


def _vjp_call(platform: str, operands: KeyedCotangents, *, heads: int, slope: float) -> Call | None:
    value, row_key, col_key, vector, scale, entry_scale, y, stats, ct, log_sum_ct, matrix = operands
    csr = matrix.by_col
    found = csr_operands(csr, ct.shape[0])
    if found is None or not _has_kernel(operands, heads):
        return None
    if platform == "cpu" and (vector is not None or col_key is None):  # of dots, of keys apart
        return None
    ids, flags = found
    flags |= _flags(operands, slope)
    flags |= {
        "same": np.bool_(col_key is None),
        "has_y": np.bool_(y is not None),
        "has_log_sum_ct": np.bool_(log_sum_ct is not None),
    }
    factor = Operand.of(jnp.ravel, vector or scale)
    arrays = ct, value, row_key, col_key or value, factor, entry_scale or value
    num_parts = 0 if vector is None else most_blocks(csr)
    parts = jax.ShapeDtypeStruct((num_parts, row_width(value)), stats.dtype)
    workspaces = [*one_pass_workspaces(csr, value), records_of(stats), parts]
    return Call([*arrays, y or ct, stats, log_sum_ct or value, *ids], flags, workspaces)


def _of_all(operands: KeyedCotangents, *, heads: int, slope: float) -> list[jax.ShapeDtypeStruct]:
    """As `_gradients`, with that of the rows' keys in place of the scores'."""
    del slope
    to_value, to_col_key, _, to_vector = _gradients(operands, heads=heads)
    row_key = operands.row_key
    return [to_value, jax.ShapeDtypeStruct(row_key.shape, row_key.dtype), to_col_key, to_vector]


def _gradients_call(
    platform: str, operands: KeyedCotangents, *, heads: int, slope: float
) -> Call | None:
    del platform
    value, row_key, col_key, vector, scale, entry_scale, y, stats, ct, log_sum_ct, matrix = operands
    if not _has_kernel(operands, heads):
        return None
    found = gradients_in_step(value, matrix, heads, keyed=True)
    if found is None or y is None:
        return None
    flags = found.flags | _flags(operands, slope)
    flags |= {
        "same": np.bool_(col_key is None),
        "has_log_sum_ct": np.bool_(log_sum_ct is not None),
    }
    factor = Operand.of(jnp.ravel, vector or scale)
    arrays = ct, value, row_key, col_key or value, factor, entry_scale or value
    workspace = workspace_of(found.blocks, row_width(value), np.dtype(stats.dtype))
    return Call([*arrays, y, stats, log_sum_ct or value, *found.ids], flags, [workspace])


# --- Derivatives ---------------------------------------------------------------------------------


def _jvp(bind: Bind, primals: Keyed, tangents: Keyed) -> tuple[list[Array], list[Array]]:
    if tangents.entry_scale is not None:
        return by_composition(bind, primals, tangents)
    y, stats = bind(primals)
    dy, dlog_sum = keyed_attention_jvp(
        KeyedKnown(*primals[:-1], y, stats, primals.matrix),
        KeyedMoving(*tangents[:5]),
        **bind.attributes,
        implementation=bind.implementation,
    )
    return [y, stats], [dy, of_log_sum(dlog_sum)]


def _jvp_transpose(
    known: KeyedKnown, moving: KeyedMoving, cts: list[Array | None], **attributes: Any
) -> tuple[Array | None, ...]:
    if moving.scale is None and _has_kernel(known, attributes["heads"]):
        return _by_one_pass(known, moving, cts, attributes)
    scores, held, _ = _of_moving(known, moving, attributes)
    score, pull = jax.vjp(scores, held)
    of_scores = Moving(known.value, score=score)
    to_value, _, _, to_score = edge_attention_jvp.transpose(
        _with_scores(known, score), of_scores, cts, **attributes
    )
    (to_moving,) = pull(to_score)
    if known.col_key is None and "col_key" in to_moving:
        to_value += to_moving.pop("col_key")
    return to_value, *(to_moving.get(name) for name in _OF_SCORES)


def _by_one_pass(
    known: KeyedKnown, moving: KeyedMoving, cts: list[Array | None], attributes: Any
) -> tuple[Array | None, ...]:
    """All of it together, or by column alone where rows' keys have no tangents."""
    cotangents = KeyedCotangents(*known[:8], *of_results(cts, known.y), known.matrix)
    if moving.row_key is None:
        to_value, to_col_key, _, to_vector = keyed_attention_vjp(*cotangents, **attributes)
        return to_value, None, to_col_key, to_vector, None
    return *keyed_attention_gradients(*cotangents, **attributes), None


# --- Batches -------------------------------------------------------------------------------------


def _batch(bind: Bind, operands: Keyed, batched: Keyed, size: int) -> list[Array]:
    # The batch joins the heads, which share one scale; matrices that are joined, one vector, too.
    if any(jax.tree.leaves(batched.matrix)) or batched.scale:
        return batch_apart(bind, operands, batched, size)
    return batch((), bind, operands, batched, size, per_entry=True, shared=("scale",))


def _flops(operands: Any, **attributes: Any) -> int:
    del attributes
    widths = row_width(operands.value) + row_width(operands.row_key)
    return 2 * operands.matrix.by_row.count * widths


# Results and attributes are those of edge_attention.
keyed_attention = define(
    Op(
        name="keyed_attention",
        operands=Keyed,
        result=per_row_and_stats,
        xla=_composed,
        platforms=("cuda",),
        call=_call,
        jvp=_jvp,
        transpose={},
        batch=_batch,
        several=True,
        flops=_flops,
    )
)


# The tangents of y and of stats[1].
keyed_attention_jvp = Linear(
    name="keyed_attention_jvp",
    result=per_row_and_head,
    function=_tangents,
    transpose=_jvp_transpose,
)


# The cotangents of value; of col_key, without rows where that is value, to whose it is added; of
# the entries' scores, dot products before they are scaled; and of the vector, without rows where
# there is none.
keyed_attention_vjp = define(
    Op(
        name="keyed_attention_vjp",
        operands=KeyedCotangents,
        result=_gradients,
        xla=_composed_vjp,
        call=_vjp_call,
        jvp=by_composition,
        transpose={},
        batch=batch_apart,
        several=True,
        flops=lambda operands, **_: 2 * _flops(operands),
    )
)


# The same with the cotangent of the rows' keys in place of the scores', and y in any case: in one
# launch where there are few entries.
keyed_attention_gradients = define(
    Op(
        name="keyed_attention_gradients",
        operands=KeyedCotangents,
        result=_of_all,
        xla=_composed_gradients,
        platforms=("cuda",),
        call=_gradients_call,
        jvp=by_composition,
        transpose={},
        batch=batch_apart,
        several=True,
        flops=lambda operands, **_: 3 * _flops(operands),
    )
)
