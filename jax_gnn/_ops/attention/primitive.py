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
from jax_gnn._core.batching import batch_composition, batch_features
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.kernels import (
    block_workspace,
    csr_operands,
    like_first,
    max_blocks,
    unscheduled_workspace,
)
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import Bind, Call, Op, Operand, composed_jvp, define
from jax_gnn._core.pieces import matrix_sharding
from jax_gnn._core.sharding import Piece, Sharding
from jax_gnn._ops.attention import xla
from jax_gnn._ops.attention.schedule import blocks_in_step, choose_sum, holds_whole_heads
from jax_gnn._ops.attention.scores import Dots, Ends, Given, Leaky, Moving, Scores, Typed
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
    """What is known of the derivatives: operands of ``attention``, its results, and cotangents.

    Those of ``attention_vjp``, its operands; ``attention_jvp`` knows the others.

    Attributes:
        value: see `Attended`.
        scores: likewise.
        entry_scale: likewise.
        y: the sums; None where of each row and head what ⟨ct, y⟩ is for is in ``log_sum_ct``, as
            its negative.
        stats: ``(rows, heads, 2)``, of their softmax.
        raw: ``(entries, heads)``, raw scores of kinds that keep them; else it is not read.
        ct: like y, its cotangent.
        log_sum_ct: ``(rows, heads)``, that of the logarithm of the softmax's sum; None stands for
            zeros.
        matrix: see `Attended`.
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


def _tangents(known: Known, moving: Moving, **attributes: Any) -> list[Any]:
    del moving, attributes
    y, stats = known.y, known.stats
    return [
        jax.ShapeDtypeStruct(y.shape, y.dtype),
        jax.ShapeDtypeStruct(stats.shape[:2], stats.dtype),
    ]


def _gradients(known: Known, *, heads: int, whole: bool, **attributes: Any) -> list[Any]:
    """What is absent has no rows."""
    del attributes
    found = known.scores.shapes(known.value, known.matrix, heads)
    found = found._replace(value=like_first(known), **{"score" if whole else "row": None})
    absent = jax.ShapeDtypeStruct((0, heads), accumulator_dtype(known.value.dtype))
    return [absent if each is None else each for each in found]


# --- In other primitives -------------------------------------------------------------------------


def _given(scores: Scores, raw: Array, slope: float) -> Given:
    """The scores that raw ones make, for each entry."""
    return Given(xla.leaky(raw, slope) if scores.is_leaky else raw)


def _sloped(scores: Scores, change: Array, raw: Array, slope: float) -> Array:
    return xla.sloped(change, raw, slope) if scores.is_leaky else change


def _composed(
    value: Array,
    scores: Scores,
    entry_scale: Array | None,
    matrix: SparseMatrix,
    *,
    keeps_raw: bool,
    **options: Any,
) -> list[Array]:
    options = {"implementation": None} | options
    raw = scores.raw(value, matrix, **options)
    slope = options.pop("slope")
    if isinstance(scores, Given):
        found = xla.attention(value, raw, entry_scale, matrix, **options)
    else:
        found = attend(value, _given(scores, raw, slope), entry_scale, matrix, **options)
    return [*found, raw if keeps_raw else raw[:0]]


def _raw_of(
    known: Attended | Known, moving: Moving, **options: Any
) -> tuple[Callable[[dict[str, Array]], Array], dict[str, Array]]:
    """Raw scores as a function of values and fields, by their names; and of these those that move.

    What moves is as in `Moving`.
    """
    value, scores, matrix = known.value, known.scores, known.matrix

    def raw(at: dict[str, Array]) -> Array:
        fields = {scores.moving[name]: x for name, x in at.items() if name != "value"}
        return replace(scores, **fields).raw(at.get("value", value), matrix, **options)

    at = {"value": value} | {name: getattr(scores, field) for name, field in scores.moving.items()}
    return raw, {name: x for name, x in at.items() if getattr(moving, name) is not None}


def _tangent_of_raw(known: Attended | Known, moving: Moving, **options: Any) -> tuple[Array, Array]:
    """Raw scores, and their tangent."""
    raw, at = _raw_of(known, moving, **options)
    found, tangent = jax.jvp(raw, (at,), ({name: getattr(moving, name) for name in at},))
    beside = None if "score" in at else moving.score  # what the fields' tangents add to
    return found, tangent if beside is None else tangent + beside


def _tangent(known: Known, moving: Moving, *, heads: int, slope: float) -> list[Array]:
    options: Any = {"heads": heads, "slope": slope, "implementation": None}
    raw, draw = _tangent_of_raw(known, moving, **options)
    raw = known.raw if known.scores.is_kept else raw
    dscore = _sloped(known.scores, draw, raw, slope)
    known = known._replace(scores=_given(known.scores, raw, slope))
    return xla.attention_jvp(known, moving.value, dscore, heads=heads)


def _back_from_given(
    known: Known, raw: Array, *, slope: float, **options: Any
) -> tuple[Array, Array]:
    """Known of values, as far as they are summed, and of raw scores, from these."""
    given = _given(known.scores, raw, slope)
    back = gradients(*known._replace(scores=given, raw=None), slope=slope, **options)
    return back.value, _sloped(known.scores, back.score, raw, slope)


def _composed_back(
    *, whole: bool, heads: int, slope: float, implementation: str | None = None, **by_name: Any
) -> list[Array]:
    known = Known(**by_name)
    value, scores, matrix = known.value, known.scores, known.matrix
    options: Any = {"heads": heads, "implementation": implementation}
    both = options | {"slope": slope}
    if whole:
        found = gradients(*known, **both)
        row = scores.finish(found, value, matrix, **both).row
        return [*found._replace(row=row, score=found.score[:0])]
    if isinstance(scores, Given):
        to_value, to_raw = xla.attention_vjp(known, **options)
    else:
        raw = known.raw if scores.is_kept else scores.raw(value, matrix, **both)
        to_value, to_raw = _back_from_given(known, raw, **both)
    found = scores.gradients(to_raw, value, matrix, **both)
    found = found._replace(value=to_value if found.value is None else to_value + found.value)
    shapes = _gradients(known, heads=heads, whole=False)
    return [
        jnp.zeros(like.shape, like.dtype) if each is None else each
        for each, like in zip(found, shapes, strict=True)
    ]


# --- What kernels get ----------------------------------------------------------------------------


def _score_operands(found: dict[str, Any], entry_scale: Any, other: Any) -> list[Any]:
    """Operands of a handler, with another in the place of those that are absent."""
    found = found | {"entry_scale": entry_scale}
    names = "row", "col", "factor", "entry", "entry_scale", "types"
    return [found.get(name) or other for name in names]


def _one_pass_workspace(csr: Csr, value: Operand) -> Any:
    """Of a sum under a softmax, whose runs have numbers of their own beside the features."""
    return unscheduled_workspace(csr, 2 * row_width(value), value.dtype)


def _call(
    platform: str, operands: Attended, *, heads: int, slope: float, keeps_raw: bool
) -> Call | None:
    value, scores, entry_scale, matrix = operands
    csr = matrix.by_row
    found = csr_operands(csr, value.shape[0])
    if found is None or not scores.has_kernel(platform, value, heads):
        return None
    ids, flags = found
    if isinstance(scores, Typed) and (csr.cols is None or csr.order is not None):
        return None
    arrays = scores.arrays(value, heads)
    flags |= {
        "kind": np.int64(scores.number),
        "has_rows": np.bool_("row" in arrays),
        "scaled": np.bool_(entry_scale is not None),
        "keeps_raw": np.bool_(keeps_raw),
        "slope": np.float64(slope),
        "kernel": "walk",
    }
    if platform == "cuda":
        of_entries = scores.score if isinstance(scores, Given) else entry_scale
        weights = csr.count if of_entries is None else of_entries.shape[0]
        flags["kernel"] = choose_sum(csr, value, heads, scores.keys, weights)
    read = [value, *_score_operands(arrays, entry_scale, value), *ids]
    return Call(read, flags, [_one_pass_workspace(csr, value)])


def _call_back(
    platform: str, known: Known, *, heads: int, slope: float, whole: bool
) -> Call | None:
    value, scores, entry_scale, y, stats, raw, ct, log_sum_ct, matrix = known
    read = [ct, value, y or ct, stats, log_sum_ct or value]
    read += _score_operands(scores.arrays(value, heads, raw), entry_scale, value)
    flags = {
        "kind": np.int64(scores.number),
        "whole": np.bool_(whole),
        "same": np.bool_(scores.keys == 1),
        "scaled": np.bool_(entry_scale is not None),
        "has_y": np.bool_(y is not None),
        "has_log_sum_ct": np.bool_(log_sum_ct is not None),
        "slope": np.float64(slope),
    }
    csr, width, acc = matrix.by_col, row_width(value), np.dtype(stats.dtype)
    by_col, by_row = csr_operands(csr, ct.shape[0]), csr_operands(matrix.by_row, value.shape[0])
    if by_col is None:
        return None
    (ids, of_ids), dst_ids = by_col, by_col[0]
    schedule, records, count, parts = _UNSCHEDULED, 0, 0, 0
    if whole:
        blocks = blocks_in_step(matrix, value, heads, scores.keys)
        if platform != "cuda" or not scores.has_one_pass(value, heads):
            return None
        if blocks is None or by_row is None or y is None:
            return None
        dst_ids, workspace = by_row[0], block_workspace(blocks, width, acc)
    elif not scores.has_kernel(platform, value, heads, back=True):
        return None
    elif scores.keys == 0 and (platform == "cpu" or not holds_whole_heads(ct, heads)):
        own = replace(csr, order=None)  # weights and dots lie beside the ids, as scratch memory
        schedule, (workspace,) = plan("segment_reduce_vjp", own, ct, heads=heads)
        schedule["by_passes"] = np.bool_(True)
        records, count = stats.shape[0], csr.count if platform == "cuda" else 0
    else:
        records, workspace = stats.shape[0], _one_pass_workspace(csr, value)
        parts = max_blocks(csr) if isinstance(scores, Leaky) else 0
    # Weights and dots of entries; of rows all that an entry reads, in one word; of blocks their
    # parts of a vector's gradient.
    shapes = (2, count, heads), (records, heads, 4), (parts, width)
    scratch = [workspace, *(jax.ShapeDtypeStruct(shape, acc) for shape in shapes)]
    return Call([*read, *ids, *dst_ids[:2]], flags | of_ids | schedule, scratch)


_UNSCHEDULED = {
    "by_passes": np.bool_(False),
    "one_pass": np.bool_(True),
    "kernel": "walk",
    "lanes": np.int64(1),
    "threads": np.int64(32),
}


# --- Derivatives ---------------------------------------------------------------------------------


def _jvp(bind: Bind, primals: Attended, tangents: Attended) -> tuple[list[Array], list[Array]]:
    if tangents.entry_scale is not None:
        return _by_composition(bind, primals, tangents)
    value, scores, entry_scale, matrix = primals
    options = {**bind.attributes, "implementation": bind.implementation}
    keeps = options.pop("keeps_raw")
    y, stats, raw = bind(primals, keeps_raw=keeps or scores.is_kept)
    fields = {name: getattr(tangents.scores, field) for name, field in scores.moving.items()}
    moving = Moving(tangents.value, **fields)
    known = Known(value, scores, entry_scale, y, stats, raw, None, None, matrix)
    dy, dlog_sum = attention_jvp(known, moving, **options)
    if keeps:
        draw = _tangent_of_raw(primals, moving, **options)[1]
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
    known: Known, moving: Moving, cts: list[Array | None], **options: Any
) -> tuple[Array | None, ...]:
    value, scores, matrix = known.value, known.scores, known.matrix
    ct = jnp.zeros_like(known.y) if cts[0] is None else cts[0]
    known = known._replace(ct=ct, log_sum_ct=cts[1])
    of_scale = isinstance(scores, Dots) and moving.vector is not None
    if not of_scale and (scores.keys == 0 or scores.has_one_pass(value, options["heads"])):
        whole = moving.row is not None and moving.score is None
        found = gradients(*known, whole=whole, **options)
        return scores.finish(found, value, matrix, **options, implementation=None)
    # By the transpose of what makes the scores.
    both = moving._replace(value=value)
    raw, pull = jax.vjp(*_raw_of(known, both, **options, implementation=None))
    to_value, to_raw = _back_from_given(known, known.raw if scores.is_kept else raw, **options)
    (of_fields,) = pull(to_raw)
    found = Moving(score=to_raw)._replace(**of_fields)
    return found._replace(value=to_value + found.value)


def _jvp_back(bind: Bind, primals: Known, tangents: Known) -> tuple[list[Array], list[Array]]:
    others = jax.tree.leaves(tangents._replace(ct=None, log_sum_ct=None))
    if others or primals.scores.keys != 0:
        return _by_composition(bind, primals, tangents)
    ct = jnp.zeros_like(primals.ct) if tangents.ct is None else tangents.ct
    return bind(primals), bind(primals._replace(ct=ct, log_sum_ct=tangents.log_sum_ct))


def _transpose_back(bind: Bind, cts: list[Array | None], known: Known) -> list[Array]:
    absent = "score" if bind.attributes["whole"] else "row"
    options = {**bind.attributes, "implementation": bind.implementation}
    del options["whole"]
    moving = Moving(*cts)._replace(**{absent: None})
    return attention_jvp(known._replace(ct=None, log_sum_ct=None), moving, **options)


# --- Batches -------------------------------------------------------------------------------------


def _batch(bind: Bind, operands: Attended, batched: Attended, size: int) -> list[Array]:
    scores = operands.scores
    if scores.keys == 0:
        return batch_features((), bind, operands, batched, size, per_entry=True)
    # The batch joins the heads, which share some fields; matrices that are joined, the others, too.
    apart = [getattr(batched.scores, name) for name in scores.shared]
    if any(jax.tree.leaves((batched.matrix, apart))):
        return batch_composition(bind, operands, batched, size)
    if isinstance(scores, Typed):  # heads share rows, but there are the numbers of each
        of_rows: Any = {"row": None, "of_row": None}
        operands, batched = (
            each._replace(scores=replace(each.scores, **of_rows)) for each in (operands, batched)
        )
    if not any(jax.tree.leaves(batched)):
        return [jnp.broadcast_to(each, (size, *each.shape)) for each in bind(operands)]
    return batch_features((), bind, operands, batched, size, per_entry=True, shared=scores.shared)


def _batch_back(bind: Bind, operands: Known, batched: Known, size: int) -> list[Array]:
    if operands.scores.keys == 0:
        return batch_features((), bind, operands, batched, size, per_entry=True)
    return batch_composition(bind, operands, batched, size)


# --- Several devices -----------------------------------------------------------------------------

# Scores need whole heads of what they are made of.
_OPERANDS = {
    "value": "cols (h K)",
    "entry_scale": "entries h",
    "scores.score": "entries h",
    "scores.scale": ". .",
    "scores.vector": ". (h Q)",
    "scores.of_value": ". (h K)",
    "scores.at_row": "entries h",
    "scores.of_row": ". h .",
    "scores.types": "entries",
    "scores.col_types": "cols",
}


def _ends(scores: Scores) -> dict[str, str]:
    """The factors of what scores have of rows and columns."""
    features = "h" if isinstance(scores, Ends) else "." if isinstance(scores, Typed) else "(h Q)"
    return {"scores.row": f"rows {features}", "scores.col": f"cols {features}"}


def _sharding(operands: Attended, results: Any, **attributes: Any) -> Sharding:
    rule = matrix_sharding(
        _OPERANDS | _ends(operands.scores),
        *("rows (h K)", "rows h .", "entries h"),
        across=_across,
    )
    return rule(operands, results, **attributes)


def _across(bind: Bind, operands: Attended, piece: Piece) -> list[Array]:
    """Of runs: each has the sums under its own softmax, which its share of the whole scales."""
    y, stats, raw = bind(operands)
    own = jnp.where(jnp.isinf(stats[..., 1]), -jnp.inf, stats[..., 0] + stats[..., 1])
    top = piece.max(own)
    top = jnp.where(jnp.isfinite(top), top, 0)
    share = jnp.exp(own - top)
    whole = piece.sum(share)
    share /= jnp.where(whole == 0, 1, whole)
    by_head = y.reshape(*share.shape, y.shape[1] // share.shape[1])
    parts = by_head.astype(share.dtype) * share[..., None]
    log_sum = jnp.where(whole == 0, jnp.inf, jnp.log(whole))
    raw = raw if raw.shape[0] else piece.sum(raw)  # what is not kept is nobody's own
    return [piece.sum(parts).reshape(y.shape).astype(y.dtype), jnp.stack([top, log_sum], -1), raw]


def _sharding_back(known: Known, results: Any, **attributes: Any) -> Sharding:
    operands = _OPERANDS | {
        **_ends(known.scores),
        **dict.fromkeys(("y", "ct"), "rows (h K)"),
        "stats": "rows h .",
        "raw": "entries h",
        "log_sum_ct": "rows h",
    }
    row, col = (operands[f"scores.{end}"] for end in ("row", "col"))
    vector = operands["scores.scale" if isinstance(known.scores, Dots) else "scores.vector"]
    col = "cols h" if isinstance(known.scores, Typed) else col
    gradients = [
        ". h" if x.shape == (0, attributes["heads"]) else of  # there is none
        for of, x in zip(("cols (h K)", row, col, vector, "entries h"), results, strict=True)
    ]
    rule = matrix_sharding(operands, *gradients, transposed=True)
    return rule(known, results, **attributes)


def _flops(operands: Any, **attributes: Any) -> int:
    del attributes
    width, scores = row_width(operands.value), operands.scores
    of_scores = 0 if scores.keys == 0 else row_width(scores.row) if scores.keys else width
    return 2 * operands.matrix.by_row.count * (width + of_scores)


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
        sharding=_sharding,
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
    given = _given(scores, scores.raw(value, matrix, **options), slope)
    return xla.weights(given.score, entry_scale, stats, matrix, implementation)


# The tangents of y and of stats[1]. What moves is a `Moving`: of scores that are numbers of heads
# ``score`` is beside what the fields' tangents make.
attention_jvp = Linear(
    name="attention_jvp", result=_tangents, function=_tangent, transpose=_transpose
)


# Results are those of a `Moving`. Attributes: heads, slope, and whether it is the whole, with the
# gradient of rows in place of that of scores.
attention_vjp = define(
    Op(
        name="attention_vjp",
        operands=Known,
        result=_gradients,
        xla=_composed_back,
        call=_call_back,
        jvp=_jvp_back,
        transpose={("ct", "log_sum_ct"): _transpose_back},
        batch=_batch_back,
        several=True,
        flops=lambda operands, **_: 2 * _flops(operands),
        family=FAMILY,
        sharding=_sharding_back,
    )
)


def gradients(*known: Any, whole: bool = False, **attributes: Any) -> Moving:
    """The results of ``attention_vjp``, without the gradient of rows but of the whole."""
    found = Moving(*attention_vjp(*known, whole=whole, **attributes))
    return found if whole else found._replace(row=None)
