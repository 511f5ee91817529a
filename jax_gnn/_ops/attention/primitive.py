"""Attention over the entries of each row: sums under a softmax that nobody keeps.

* ``attention``, y[r] = Σ w[e] · value[cols[e]] over the entries e of row r, where w is a factor
  times the softmax of the entries' scores; and what the softmax is made of, for each row. Scores
  are of one of the kinds in :mod:`scores`.
* ``attention_jvp``, its derivative, linear in the tangents of values and of what scores are made
  of, and ``attention_vjp``, the transpose of that: one pass over the entries by column has all
  gradients but those of rows. These are sums of the scores' gradients, or in the same launch where
  there are few entries. Weights are computed again from the scores, and D of Dao's FlashAttention,
  ⟨cotangent, y⟩ of each row, takes the place of a sum over the entries.

Derivatives of the derivatives are those of what they are composed of: closed primitives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, row_width
from jax_gnn._core.batching import batch, batch_apart
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.kernels import (
    csr_operands,
    like_first,
    most_blocks,
    unscheduled_workspace,
    workspace_of,
)
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import Bind, Call, Op, Operand, composed_jvp, define
from jax_gnn._ops.attention import xla
from jax_gnn._ops.attention.schedule import blocks_in_step, choose_sum, holds_whole_heads
from jax_gnn._ops.attention.scores import (
    Arrays,
    Given,
    Gradients,
    Scores,
)
from jax_gnn._ops.segment_reduce.schedule import FAMILY, plan


class Attended(NamedTuple):
    """Operands of ``attention``.

    Attributes:
        value: ``(columns, heads · features)``.
        scores: of one of the kinds.
        entry_scale: ``(entries, heads)``, factors of the softmax, or None.
        matrix: the entries, those by row in the order of what each has for itself.
    """

    value: Any
    scores: Scores
    entry_scale: Any
    matrix: SparseMatrix


class Known(NamedTuple):
    """What is known of ``attention_jvp``: the operands of ``attention``, and its results."""

    operands: Attended
    y: Any
    stats: Any
    raw: Any


class Cotangents(NamedTuple):
    """Operands of ``attention_vjp``: those of ``attention``, its results, and cotangents.

    Attributes:
        y: what it gave; None where of each row and head what ⟨ct, y⟩ is for is in ``log_sum_ct``,
            as its negative.
        stats: ``(rows, heads, 2)``, likewise.
        raw: ``(entries, heads)``, likewise, of kinds that keep it; else it is not read.
        ct: like y, its cotangent.
        log_sum_ct: ``(rows, heads)``, that of the logarithm of the softmax's sum; None stands for
            zeros.
    """

    value: Any
    scores: Scores
    entry_scale: Any
    y: Any
    stats: Any
    raw: Any
    ct: Any
    log_sum_ct: Any
    matrix: SparseMatrix


# --- Shapes of results ---------------------------------------------------------------------------


def _results(operands: Attended, *, heads: int, keeps_raw: bool, **attributes: Any) -> list[Any]:
    del attributes
    x, (by_row, _) = operands.value, operands.matrix
    acc = accumulator_dtype(x.dtype)
    return [
        jax.ShapeDtypeStruct((by_row.num_rows, row_width(x)), x.dtype),
        jax.ShapeDtypeStruct((by_row.num_rows, heads, 2), acc),
        jax.ShapeDtypeStruct((by_row.count if keeps_raw else 0, heads), acc),
    ]


def _tangents(known: Known, moving: Any, **attributes: Any) -> list[Any]:
    del moving, attributes
    y, stats = known.y, known.stats
    return [
        jax.ShapeDtypeStruct(y.shape, y.dtype),
        jax.ShapeDtypeStruct(stats.shape[:2], stats.dtype),
    ]


def _gradients(operands: Cotangents, *, heads: int, whole: bool, **attributes: Any) -> list[Any]:
    """What is absent has no rows."""
    del attributes
    value = operands.value
    found = operands.scores.shapes(value, operands.matrix, heads)
    found = found._replace(value=like_first(operands), **{"score" if whole else "row": None})
    absent = jax.ShapeDtypeStruct((0, heads), accumulator_dtype(value.dtype))
    return [absent if each is None else each for each in found]


# --- In other primitives -------------------------------------------------------------------------


def _activated(scores: Scores, raw: Array, slope: float) -> Array:
    return xla.leaky(raw, slope) if scores.is_leaky else raw


def _sloped(scores: Scores, change: Array, raw: Array, slope: float) -> Array:
    return xla.sloped(change, raw, slope) if scores.is_leaky else change


def _composed(
    value: Array,
    scores: Scores,
    entry_scale: Array | None,
    matrix: SparseMatrix,
    *,
    heads: int,
    slope: float,
    keeps_raw: bool,
    implementation: str | None = None,
) -> list[Array]:
    options: Any = {"heads": heads, "implementation": implementation}
    raw = scores.raw(value, matrix, slope=slope, **options)
    if isinstance(scores, Given):
        found = xla.attention(value, raw, entry_scale, matrix, **options)
    else:
        given = Given(_activated(scores, raw, slope))
        found = attend(value, given, entry_scale, matrix, **options)
    return [*found, raw if keeps_raw else raw[:0]]


def _raw_of(
    operands: Attended, moving: dict[str, Any], **options: Any
) -> tuple[Callable[[Array, dict[str, Array]], Array], dict[str, Array]]:
    """Raw scores as a function of values and of the fields that move; and these fields."""
    _, scores, _, matrix = operands

    def raw(value: Array, fields: dict[str, Array]) -> Array:
        return replace(scores, **fields).raw(value, matrix, **options)

    names = [name for name in scores.moving if moving[name] is not None]
    return raw, {name: getattr(scores, name) for name in names}


def _tangent_of_raw(
    operands: Attended, moving: dict[str, Array | None], **options: Any
) -> tuple[Array, Array]:
    """Raw scores, and their tangent."""
    value = operands.value
    raw, held = _raw_of(operands, moving, **options)
    tangents = {name: moving[name] for name in held}
    if moving["value"] is None:
        return jax.jvp(lambda fields: raw(value, fields), (held,), (tangents,))
    return jax.jvp(raw, (value, held), (moving["value"], tangents))


def _names(scores: Scores) -> list[str]:
    """What ``attention_jvp`` is linear in: values, the scores' fields and, of simple ones, `raw`.

    That is a tangent of raw scores beside what the fields' add.
    """
    return ["value", *scores.moving, *(["raw"] if scores.is_simple else [])]


def _named(scores: Scores, moving: Any) -> dict[str, Any]:
    return dict(zip(_names(scores), moving, strict=True))


def _tangent(known: Known, moving: Any, *, heads: int, slope: float) -> list[Array]:
    (value, scores, entry_scale, matrix), y, stats, kept = known
    named = _named(scores, moving)
    options: Any = {"heads": heads, "slope": slope, "implementation": None}
    raw, draw = _tangent_of_raw(known.operands, named, **options)
    raw = kept if scores.is_kept else raw
    draw = draw if named.get("raw") is None else draw + named["raw"]
    score, dscore = _activated(scores, raw, slope), _sloped(scores, draw, raw, slope)
    held = value, score, entry_scale, matrix, y, stats
    return xla.attention_jvp(*held, named["value"], dscore, heads=heads)


def _back_from_given(
    operands: Cotangents, raw: Array, *, slope: float, **options: Any
) -> tuple[Array, Array]:
    """Cotangents of values, as far as they are summed, and of raw scores, from these."""
    scores = operands.scores
    given = Given(_activated(scores, raw, slope))
    back = gradients(*operands._replace(scores=given, raw=None), slope=slope, **options)
    return back.value, _sloped(scores, back.score, raw, slope)


def _composed_back(
    *, whole: bool, heads: int, slope: float, implementation: str | None = None, **by_name: Any
) -> list[Array]:
    operands = Cotangents(**by_name)
    value, scores, entry_scale, y, stats, raw, ct, log_sum_ct, matrix = operands
    options: Any = {"heads": heads, "implementation": implementation}
    both = options | {"slope": slope}
    if whole:
        found = gradients(*operands, **both)
        row = scores.cotangents(found, value, matrix, **both)["row"]
        return [*found._replace(row=row, score=found.score[:0])]
    results = y, stats, ct, log_sum_ct
    if isinstance(scores, Given):
        to_value, to_raw = xla.attention_vjp(
            value, scores.score, entry_scale, matrix, *results, **options
        )
    else:
        raw = raw if scores.is_kept else scores.raw(value, matrix, **both)
        to_value, to_raw = _back_from_given(operands, raw, **both)
    found = scores.gradients(to_raw, value, matrix, **both)
    found = found._replace(value=to_value if found.value is None else to_value + found.value)
    shapes = _gradients(operands, heads=heads, whole=False)
    return [
        jnp.zeros(like.shape, like.dtype) if each is None else each
        for each, like in zip(found, shapes, strict=True)
    ]


# --- What kernels get ----------------------------------------------------------------------------


def _arrays(found: Arrays, entry_scale: Any, other: Any) -> list[Any]:
    """Operands of a handler, with another in the place of those that are absent."""
    row, col, factor, entry, types = found
    return [each or other for each in (row, col, factor, entry, entry_scale, types)]


def _one_pass_workspace(csr: Csr, value: Operand) -> Any:
    """Of a sum under a softmax, whose runs have numbers of their own beside the features."""
    return unscheduled_workspace(csr, 2 * row_width(value), value.dtype)


def _call(
    platform: str, operands: Attended, *, heads: int, slope: float, keeps_raw: bool
) -> Call | None:
    value, scores, entry_scale, matrix = operands
    csr = matrix.by_row
    found = csr_operands(csr, value.shape[0])
    if found is None or not scores.has_kernel(platform, value, matrix, heads):
        return None
    ids, flags = found
    arrays = scores.arrays(value, heads)
    flags |= {
        "kind": np.int64(scores.number),
        "has_rows": np.bool_(arrays.row is not None),
        "scaled": np.bool_(entry_scale is not None),
        "keeps_raw": np.bool_(keeps_raw),
        "slope": np.float64(slope),
        "kernel": "walk",
    }
    if platform == "cuda":
        of_entries = arrays.entry if isinstance(scores, Given) else entry_scale
        count = csr.count if of_entries is None else of_entries.shape[0]
        flags["kernel"] = choose_sum(csr, value, heads, scores.keys, count)
    operands_ = [value, *_arrays(arrays, entry_scale, value), *ids]
    return Call(operands_, flags, [_one_pass_workspace(csr, value)])


def _call_back(
    platform: str, operands: Cotangents, *, heads: int, slope: float, whole: bool
) -> Call | None:
    value, scores, entry_scale, y, stats, raw, ct, log_sum_ct, matrix = operands
    arrays = _arrays(scores.arrays_back(value, raw, heads), entry_scale, value)
    arrays = [ct, value, y or ct, stats, log_sum_ct or value, *arrays]
    flags = {
        "kind": np.int64(scores.number),
        "whole": np.bool_(whole),
        "same": np.bool_(getattr(scores, "col", 0) is None),
        "scaled": np.bool_(entry_scale is not None),
        "has_y": np.bool_(y is not None),
        "has_log_sum_ct": np.bool_(log_sum_ct is not None),
        "slope": np.float64(slope),
    }
    acc = np.dtype(stats.dtype)
    if whole:
        by_col = csr_operands(matrix.by_col, ct.shape[0])
        by_row = csr_operands(matrix.by_row, value.shape[0])
        if platform != "cuda" or by_col is None or by_row is None or y is None:
            return None
        blocks = blocks_in_step(matrix, value, heads, scores.keys)
        if blocks is None or not scores.has_one_pass(value, heads):
            return None
        (ids, of_ids), (dst_ids, _) = by_col, by_row
        workspaces = _workspaces(workspace_of(blocks, row_width(value), acc), acc, heads=heads)
        return Call([*arrays, *ids, *dst_ids[:2]], flags | of_ids | _UNSCHEDULED, workspaces)
    csr = matrix.by_col
    found = csr_operands(csr, ct.shape[0])
    if found is None or not scores.has_kernel_back(platform, value, heads):
        return None
    ids, of_ids = found
    one_pass = not scores.is_simple or (platform == "cuda" and holds_whole_heads(ct, heads))
    workspace, schedule, count = _one_pass_workspace(csr, value), _UNSCHEDULED, 0
    if not one_pass:
        # Weights and dots lie beside the ids, as scratch memory.
        own = replace(csr, order=None)
        schedule, (workspace,) = plan("segment_reduce_vjp", own, ct, heads=heads)
        count = csr.count if platform == "cuda" else 0
    parts = 0 if scores.shapes(value, matrix, heads).vector is None else most_blocks(csr)
    workspaces = _workspaces(
        *(workspace, acc),
        heads=heads,
        count=count,
        records=stats.shape[0],
        parts=(parts, row_width(value)),
    )
    flags |= of_ids | schedule | {"by_passes": np.bool_(not one_pass)}
    return Call([*arrays, *ids, *ids[:2]], flags, workspaces)


_UNSCHEDULED = {
    "by_passes": np.bool_(False),
    "one_pass": np.bool_(True),
    "kernel": "walk",
    "lanes": np.int64(1),
    "threads": np.int64(32),
}


def _workspaces(
    workspace: Any,
    acc: Any,
    *,
    heads: int,
    count: Any = 0,
    records: Any = 0,
    parts: tuple[Any, Any] = (0, 0),
) -> list[Any]:
    """Scratch memory of the gradients.

    Args:
        workspace: what blocks leave to others.
        acc: dtype of the rest.
        heads: number of heads.
        count: of entries, whose weights and dots lie there where there are passes of their own.
        records: rows of which all that an entry reads lies there, in one word.
        parts: blocks, and the numbers of a vector's gradient that each leaves.
    """
    shapes = (2, count, heads), (records, heads, 4), parts
    return [workspace, *(jax.ShapeDtypeStruct(shape, acc) for shape in shapes)]


# --- Derivatives ---------------------------------------------------------------------------------


def _jvp(bind: Bind, primals: Attended, tangents: Attended) -> tuple[list[Array], list[Array]]:
    if tangents.entry_scale is not None:
        return _by_composition(bind, primals, tangents)
    scores = primals.scores
    keeps = bind.attributes["keeps_raw"]
    options: Any = {
        "heads": bind.attributes["heads"],
        "slope": bind.attributes["slope"],
        "implementation": bind.implementation,
    }
    y, stats, raw = bind(primals, keeps_raw=keeps or scores.is_kept)
    of_scores = [getattr(tangents.scores, name) for name in scores.moving]
    moving = tangents.value, *of_scores, *([None] if scores.is_simple else [])
    dy, dlog_sum = attention_jvp(Known(primals, y, stats, raw), moving, **options)
    if keeps:
        draw = _tangent_of_raw(primals, _named(scores, moving), **options)[1]
    else:
        raw = draw = raw[:0]
    # What the sum is relative to stands still, as it changes nothing.
    return [y, stats, raw], [dy, jnp.stack([jnp.zeros_like(dlog_sum), dlog_sum], axis=-1), draw]


def _by_composition(bind: Bind, primals: Any, tangents: Any) -> Any:
    """Of the same in other primitives."""
    options = {**bind.attributes, "implementation": bind.implementation}
    return composed_jvp(
        lambda operands: bind.op.xla(**operands._asdict(), **options), primals, tangents
    )


def _transpose(
    known: Known, moving: Any, cts: list[Array | None], **options: Any
) -> tuple[Array | None, ...]:
    (value, scores, entry_scale, matrix), y, stats, raw = known
    wanted = _named(scores, moving)
    ct = jnp.zeros_like(y) if cts[0] is None else cts[0]
    operands = Cotangents(value, scores, entry_scale, y, stats, raw, ct, cts[1], matrix)
    by_kernel = scores.is_simple or scores.has_one_pass(value, options["heads"])
    if by_kernel and wanted.get("scale") is None:
        whole = wanted.get("row") is not None and wanted.get("raw") is None
        found = gradients(*operands, whole=whole, **options)
        of_fields = scores.cotangents(found, value, matrix, **options, implementation=None)
        of_fields |= {"value": found.value, "raw": found.score}
        return tuple(of_fields.get(name) for name in wanted)
    return _transpose_by_scores(known, wanted, operands, **options)


def _transpose_by_scores(
    known: Known, wanted: dict[str, Any], operands: Cotangents, **options: Any
) -> tuple[Array | None, ...]:
    """By the transpose of what makes the scores."""
    of_fields, held = _raw_of(known.operands, wanted, **options, implementation=None)
    raw, pull = jax.vjp(of_fields, operands.value, held)
    raw = operands.raw if operands.scores.is_kept else raw
    to_value, to_raw = _back_from_given(operands, raw, **options)
    more, found = pull(to_raw)
    found |= {"value": to_value + more, "raw": to_raw}
    return tuple(found.get(name) for name in wanted)


def _jvp_back(
    bind: Bind, primals: Cotangents, tangents: Cotangents
) -> tuple[list[Array], list[Array]]:
    others = jax.tree.leaves(tangents._replace(ct=None, log_sum_ct=None))
    if others or not primals.scores.is_simple:
        return _by_composition(bind, primals, tangents)
    ct = jnp.zeros_like(primals.ct) if tangents.ct is None else tangents.ct
    return bind(primals), bind(primals._replace(ct=ct, log_sum_ct=tangents.log_sum_ct))


def _transpose_back(bind: Bind, cts: list[Array | None], operands: Cotangents) -> list[Array]:
    found, scores = Gradients(*cts), operands.scores
    by_name = {"value": found.value, "row": found.row, "col": found.col, "raw": found.score}
    if bind.attributes["whole"]:
        by_name["raw"] = None
    else:
        by_name["row"] = None
    moving = [by_name.get(name) for name in _names(scores)]
    attended = Attended(operands.value, scores, operands.entry_scale, operands.matrix)
    return attention_jvp(
        Known(attended, operands.y, operands.stats, operands.raw),
        moving,
        heads=bind.attributes["heads"],
        slope=bind.attributes["slope"],
        implementation=bind.implementation,
    )


# --- Batches -------------------------------------------------------------------------------------


def _batch(bind: Bind, operands: Attended, batched: Attended, size: int) -> list[Array]:
    scores = operands.scores
    if scores.is_simple:
        return batch((), bind, operands, batched, size, per_entry=True)
    # The batch joins the heads, which share some fields; matrices that are joined, the others, too.
    apart = [getattr(batched.scores, name) for name in scores.shared]
    if any(jax.tree.leaves((batched.matrix, apart))):
        return batch_apart(bind, operands, batched, size)
    operands, batched = (
        each._replace(scores=each.scores.of_numbers()) for each in (operands, batched)
    )
    if not any(jax.tree.leaves(batched)):
        return [jnp.broadcast_to(each, (size, *each.shape)) for each in bind(operands)]
    return batch((), bind, operands, batched, size, per_entry=True, shared=scores.shared)


def _batch_back(bind: Bind, operands: Cotangents, batched: Cotangents, size: int) -> list[Array]:
    if operands.scores.is_simple:
        return batch((), bind, operands, batched, size, per_entry=True)
    return batch_apart(bind, operands, batched, size)


def _flops(operands: Any, **attributes: Any) -> int:
    del attributes
    value = operands.value
    width = row_width(value) + operands.scores.read_width(value)
    return 2 * operands.matrix.by_row.count * width


# Results: y; of each row and head what its softmax is made of, exp((score - stats[0]) - stats[1]),
# the first a number near the largest score, or that, and taken for a constant, the second the
# logarithm of the sum, inf where that is of nothing; and raw scores, without rows unless they are
# kept, -inf for entries that have no relation. Attributes: heads, slope (of the LeakyReLU), and
# keeps_raw.
attention = define(
    Op(
        name="attention",
        operands=Attended,
        result=_results,
        xla=_composed,
        call=_call,
        jvp=_jvp,
        transpose={},
        batch=_batch,
        several=True,
        flops=_flops,
    )
)


def attend(
    value: Array,
    scores: Scores,
    entry_scale: Array | None,
    matrix: SparseMatrix,
    *,
    heads: int,
    slope: float = 1.0,
    implementation: str | None = None,
) -> list[Array]:
    """The sums and their statistics: two results of ``attention``."""
    options: Any = {"heads": heads, "slope": slope, "implementation": implementation}
    return attention(value, scores, entry_scale, matrix, keeps_raw=False, **options)[:2]


def weights(
    value: Array,
    scores: Scores,
    entry_scale: Array | None,
    stats: Array,
    matrix: SparseMatrix,
    *,
    heads: int,
    slope: float,
    implementation: str | None = None,
) -> Array:
    """What ``attention`` multiplied values by, ``(entries, heads)``; 0 for padding."""
    options: Any = {"heads": heads, "slope": slope, "implementation": implementation}
    score = _activated(scores, scores.raw(value, matrix, **options), slope)
    return xla.weights(score, entry_scale, stats, matrix, implementation)


# The tangents of y and of stats[1], of those that `_names` names.
attention_jvp = Linear(
    name="attention_jvp", result=_tangents, function=_tangent, transpose=_transpose
)


# Results are `Gradients`. Attributes: heads, slope, and whether it is the whole, with the gradient
# of rows in place of that of scores.
attention_vjp = define(
    Op(
        name="attention_vjp",
        operands=Cotangents,
        result=_gradients,
        xla=_composed_back,
        call=_call_back,
        jvp=_jvp_back,
        transpose={("ct", "log_sum_ct"): _transpose_back},
        batch=_batch_back,
        several=True,
        flops=lambda operands, **_: 2 * _flops(operands),
        family=FAMILY,
    )
)


def gradients(*operands: Any, whole: bool = False, **attributes: Any) -> Gradients:
    """The results of ``attention_vjp``, without the gradient of rows but of the whole."""
    found = Gradients(*attention_vjp(*operands, whole=whole, **attributes))
    return found if whole else found._replace(row=None)
