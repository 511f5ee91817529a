"""Attention over the entries of each row: sums under a softmax that is not stored.

* ``attention`` is y[r] = Σ w[e] · value[cols[e]] over the entries e of row r, where w is a factor
  times the softmax of the entries' scores, and the softmax's statistics of each row. Scores are of
  one of the kinds in :mod:`scores`.
* ``attention_jvp`` is its derivative, linear in the tangents of values and of scores' fields;
  ``attention_vjp`` is the transpose. One pass over the entries by column has all gradients but
  those of rows, which are sums of the scores' gradients, or part of the same launch if entries are
  few. Weights are recomputed from the scores, and FlashAttention's D (Dao et al. 2022), ⟨cotangent,
  y⟩ of each row, replaces a sum over the entries.

Higher derivatives are those of the same functions composed of segment primitives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, row_width
from jax_gnn._core.batching import batch_features
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.kernels import (
    block_workspace,
    csr_operands,
    like_first,
    max_blocks,
    unscheduled_workspace,
)
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import Bind, Call, Op, Operand, composed_batch, composed_jvp
from jax_gnn._core.sharding import Piece, Sharding
from jax_gnn._ops.attention import xla
from jax_gnn._ops.attention.schedule import blocks_in_step, choose_sum, holds_whole_heads
from jax_gnn._ops.attention.scores import (
    AdditiveScores,
    DotScores,
    Entries,
    EntryScores,
    GATv2Scores,
    Scores,
    Tangents,
    TypedScores,
)
from jax_gnn._ops.matrix_sharding import matrix_sharding
from jax_gnn._ops.segment_reduce.schedule import FAMILY, plan


class Attended(NamedTuple):
    """Operands of ``attention``."""

    value: Any  # (columns, heads · features)
    scores: Scores  # scores, of one of the kinds
    entry_scale: Any  # (entries, heads) factors of the softmax, or None
    matrix: SparseMatrix  # matrix of the entries, by row in the order of arrays of entries


class Residuals(NamedTuple):
    """Residuals of the derivatives: operands of ``attention``, its results, and cotangents.

    These are the operands of ``attention_vjp``; ``attention_jvp`` has no cotangents.
    """

    value: Any  # values, as in `Attended`
    scores: Scores  # scores, as in `Attended`
    entry_scale: Any  # factors of the softmax, as in `Attended`
    y: Any  # sums; None where `log_sum_ct` includes the negative of ⟨ct, y⟩ of each row and head
    stats: Any  # (rows, heads, 2) statistics of the softmax
    raw: Any  # (entries, heads) raw scores of kinds that store them; else it is not read
    ct: Any  # cotangent of y
    log_sum_ct: Any  # (rows, heads) cotangent of the logarithm of the softmax's sum; None for 0
    matrix: SparseMatrix  # matrix of the entries, as in `Attended`


# --- Shapes of results ---------------------------------------------------------------------------


def _results(operands: Attended, *, heads: int, keeps_raw: bool, **attributes: Any) -> list[Any]:
    x, (by_row, _) = operands.value, operands.matrix
    acc = accumulator_dtype(x.dtype)
    return [
        jax.ShapeDtypeStruct((by_row.num_rows, row_width(x)), x.dtype),
        jax.ShapeDtypeStruct((by_row.num_rows, heads, 2), acc),
        jax.ShapeDtypeStruct((by_row.count if keeps_raw else 0, heads), acc),
    ]


def _gradient_shapes(
    residuals: Residuals, *, heads: int, with_row: bool, **attributes: object
) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of ``attention_vjp``'s results; absent gradients have no rows."""
    shapes = residuals.scores.shapes(residuals.value, residuals.matrix, heads)
    shapes = shapes._replace(value=like_first(residuals), **{"score" if with_row else "row": None})
    absent = jax.ShapeDtypeStruct((0, heads), accumulator_dtype(residuals.value.dtype))
    return [absent if shape is None else shape for shape in shapes]


# --- In other primitives -------------------------------------------------------------------------


def _entry_scores(scores: Scores, raw: Array, slope: float) -> EntryScores:
    """Return scores as an array of the entries, computed from raw scores."""
    return EntryScores(xla.leaky(raw, slope) if scores.is_leaky else raw)


def _sloped(scores: Scores, tangent: Array, raw: Array, slope: float) -> Array:
    return xla.sloped(tangent, raw, slope) if scores.is_leaky else tangent


def _composed(
    value: Array,
    scores: Scores,
    entry_scale: Array | None,
    matrix: SparseMatrix,
    *,
    keeps_raw: bool,
    **options: Any,
) -> list[Array]:
    raw = scores.raw(Entries(value, matrix, **options))
    slope = options.pop("slope")
    if isinstance(scores, EntryScores):
        results = xla.attention(value, raw, entry_scale, matrix, **options)
    else:
        by_entry = _entry_scores(scores, raw, slope)
        results = attend(value, by_entry, entry_scale, matrix, **options)
    return [*results, raw if keeps_raw else raw[:0]]


def _raw_function(
    operands: Attended | Residuals, tangents: Tangents, **options: Any
) -> tuple[Callable[[dict[str, Array]], Array], dict[str, Array]]:
    """Return raw scores as a function of arrays by their names in `Tangents`, and these arrays.

    The arrays are values and fields of the scores for which ``tangents`` is not None.
    """
    value, scores, matrix = operands.value, operands.scores, operands.matrix
    names = scores.tangent_fields

    def raw(arrays: dict[str, Array]) -> Array:
        fields = {names[name]: array for name, array in arrays.items() if name != "value"}
        return replace(scores, **fields).raw(Entries(arrays.get("value", value), matrix, **options))

    arrays = {"value": value} | {name: getattr(scores, field) for name, field in names.items()}
    return raw, {name: x for name, x in arrays.items() if getattr(tangents, name) is not None}


def _raw_jvp(
    operands: Attended | Residuals, tangents: Tangents, **options: Any
) -> tuple[Array, Array]:
    """Return raw scores and their tangent."""
    function, arrays = _raw_function(operands, tangents, **options)
    raw, draw = jax.jvp(function, (arrays,), ({name: getattr(tangents, name) for name in arrays},))
    # Scores that are an array have their tangent in `arrays`; other kinds add ``score`` to it.
    is_separate = tangents.score is not None and "score" not in arrays
    return raw, draw + tangents.score if is_separate else draw


def _tangent(residuals: Residuals, tangents: Tangents, *, heads: int, slope: float) -> list[Array]:
    scores = residuals.scores
    raw, draw = _raw_jvp(residuals, tangents, heads=heads, slope=slope)
    raw = residuals.raw if scores.is_kept else raw
    dscore = _sloped(scores, draw, raw, slope)
    residuals = residuals._replace(scores=_entry_scores(scores, raw, slope))
    return xla.attention_jvp(residuals, tangents.value, dscore, heads=heads)


def _raw_gradients(
    residuals: Residuals, raw: Array, *, slope: float, **options: Any
) -> tuple[Array, Array]:
    """Return the cotangents of values, as terms of the sums, and of raw scores."""
    scores = _entry_scores(residuals.scores, raw, slope)
    grads = gradients(*residuals._replace(scores=scores, raw=None), slope=slope, **options)
    return grads.value, _sloped(residuals.scores, grads.score, raw, slope)


def _composed_vjp(*, with_row: bool, heads: int, slope: float, **operands: Any) -> list[Array]:
    residuals = Residuals(**operands)
    scores, options = residuals.scores, dict[str, Any](heads=heads, slope=slope)
    entries = Entries(residuals.value, residuals.matrix, heads, slope)
    if with_row:
        grads = gradients(*residuals, **options)
        row = scores.finish(grads, entries).row
        return [*grads._replace(row=row, score=grads.score[:0])]
    if isinstance(scores, EntryScores):
        to_value, to_raw = xla.attention_vjp(residuals, heads=heads)
    else:
        raw = residuals.raw if scores.is_kept else scores.raw(entries)
        to_value, to_raw = _raw_gradients(residuals, raw, **options)
    grads = scores.gradients(to_raw, entries)
    grads = grads._replace(value=to_value if grads.value is None else to_value + grads.value)
    shapes = _gradient_shapes(residuals, heads=heads, with_row=False)
    return [
        jnp.zeros(shape.shape, shape.dtype) if grad is None else grad
        for grad, shape in zip(grads, shapes, strict=True)
    ]


# --- Operands of kernels -------------------------------------------------------------------------


def _score_operands(
    arrays: dict[str, Operand], entry_scale: Operand | None, placeholder: Operand
) -> list[Operand]:
    """Return a handler's operands of scores, with a placeholder for each that is absent."""
    names = "row", "col", "factor", "entry"
    operands = [arrays.get(name) or placeholder for name in names]
    return [*operands, entry_scale or placeholder, arrays.get("types") or placeholder]


def _walk_workspace(csr: Csr, value: Operand) -> Any:
    """Return the scratch memory of a walk, whose runs hold the softmax's numbers and features."""
    return unscheduled_workspace(csr, 2 * row_width(value), value.dtype)


def _call(
    platform: str, operands: Attended, *, heads: int, slope: float, keeps_raw: bool
) -> Call | None:
    value, scores, entry_scale, matrix = operands
    csr = matrix.by_row
    indices = csr_operands(csr, value.shape[0])
    if indices is None or not scores.has_kernel(platform, value, heads):
        return None
    ids, flags = indices
    if isinstance(scores, TypedScores) and (csr.cols is None or csr.order is not None):
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
        by_entry = scores.score if isinstance(scores, EntryScores) else entry_scale
        num_weights = csr.count if by_entry is None else by_entry.shape[0]
        flags["kernel"] = choose_sum(csr, value, heads, scores.keys, num_weights)
    inputs = [value, *_score_operands(arrays, entry_scale, value), *ids]
    return Call(inputs, flags, [_walk_workspace(csr, value)])


def _vjp_call(
    platform: str, residuals: Residuals, *, heads: int, slope: float, with_row: bool
) -> Call | None:
    value, scores, entry_scale, y, stats, raw, ct, log_sum_ct, matrix = residuals
    inputs = [ct, value, y or ct, stats, log_sum_ct or value]
    inputs += _score_operands(scores.arrays(value, heads, raw), entry_scale, value)
    flags = {
        "kind": np.int64(scores.number),
        "whole": np.bool_(with_row),
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
    (ids, id_flags), dst_ids = by_col, by_col[0]
    schedule, num_records, num_weights, num_parts = _UNSCHEDULED, 0, 0, 0
    if with_row:  # all gradients in one launch
        blocks = blocks_in_step(matrix, value, heads, scores.keys)
        if platform != "cuda" or not scores.has_one_pass(value, heads):
            return None
        if blocks is None or by_row is None or y is None:
            return None
        dst_ids, workspace = by_row[0], block_workspace(blocks, width, acc)
    elif not scores.has_kernel(platform, value, heads, for_vjp=True):
        return None
    elif scores.keys == 0 and (platform == "cpu" or not holds_whole_heads(ct, heads)):
        # Passes of segment kernels: weights and dots are scratch memory in the order of the ids.
        in_order = replace(csr, order=None)
        schedule, (workspace,) = plan("segment_reduce_vjp", in_order, ct, heads=heads)
        schedule["by_passes"] = np.bool_(True)
        num_records, num_weights = stats.shape[0], csr.count if platform == "cuda" else 0
    else:  # one pass by column
        num_records, workspace = stats.shape[0], _walk_workspace(csr, value)
        num_parts = max_blocks(csr) if isinstance(scores, GATv2Scores) else 0
    # Scratch memory: entries' weights and dots; for each row, all numbers that an entry reads, in
    # one word; for each block, its partial gradient of a vector.
    shapes = (2, num_weights, heads), (num_records, heads, 4), (num_parts, width)
    scratch = [workspace, *(jax.ShapeDtypeStruct(shape, acc) for shape in shapes)]
    return Call([*inputs, *ids, *dst_ids[:2]], flags | id_flags | schedule, scratch)


_UNSCHEDULED = {
    "by_passes": np.bool_(False),
    "one_pass": np.bool_(True),
    "kernel": "walk",
    "lanes": np.int64(1),
    "threads": np.int64(32),
}


# --- Derivatives ---------------------------------------------------------------------------------


def _options(bind: Bind) -> dict[str, Any]:
    """Return the heads and the slope of a primitive."""
    return {name: bind.attributes[name] for name in ("heads", "slope")}


def _jvp(bind: Bind, primals: Attended, tangents: Attended) -> tuple[list[Array], list[Array]]:
    if tangents.entry_scale is not None:
        return composed_jvp(Bind.plain, bind, primals, tangents)
    value, scores, entry_scale, matrix = primals
    keeps_raw = bind.attributes["keeps_raw"]
    y, stats, raw = bind(primals, keeps_raw=keeps_raw or scores.is_kept)
    fields = {name: getattr(tangents.scores, f) for name, f in scores.tangent_fields.items()}
    moving = Tangents(tangents.value, **fields)
    residuals = Residuals(value, scores, entry_scale, y, stats, raw, None, None, matrix)
    dy, dlog_sum = attention_jvp(residuals, moving, **_options(bind))
    if keeps_raw:
        draw = _raw_jvp(primals, moving, **_options(bind))[1]
    else:
        raw = draw = raw[:0]
    # The number that scores are relative to has no tangent, as it cancels in the result.
    return [y, stats, raw], [dy, jnp.stack([jnp.zeros_like(dlog_sum), dlog_sum], axis=-1), draw]


def _transpose(
    residuals: Residuals, tangents: Tangents, cts: list[Array | None], **options: Any
) -> tuple[Array | None, ...]:
    value, scores, matrix = residuals.value, residuals.scores, residuals.matrix
    ct = jnp.zeros_like(residuals.y) if cts[0] is None else cts[0]
    residuals = residuals._replace(ct=ct, log_sum_ct=cts[1])
    to_scale = isinstance(scores, DotScores) and tangents.vector is not None
    if not to_scale and (scores.keys == 0 or scores.has_one_pass(value, options["heads"])):
        with_row = tangents.row is not None and tangents.score is None
        grads = gradients(*residuals, with_row=with_row, **options)
        return scores.finish(grads, Entries(value, matrix, options["heads"], options["slope"]))
    # No kernel has these gradients: transpose the computation of the raw scores.
    tangents = tangents._replace(value=value)
    function, arrays = _raw_function(residuals, tangents, **options)
    raw, pull = jax.vjp(function, arrays)
    raw = residuals.raw if scores.is_kept else raw
    to_value, to_raw = _raw_gradients(residuals, raw, **options)
    (to_arrays,) = pull(to_raw)
    grads = Tangents(score=to_raw)._replace(**to_arrays)
    return grads._replace(value=to_value + grads.value)


def _vjp_jvp(
    bind: Bind, primals: Residuals, tangents: Residuals
) -> tuple[list[Array], list[Array]]:
    # Linear in the cotangents; other tangents, and kinds with keys, go through the composition.
    if jax.tree.leaves(tangents._replace(ct=None, log_sum_ct=None)) or primals.scores.keys != 0:
        return composed_jvp(Bind.plain, bind, primals, tangents)
    ct = jnp.zeros_like(primals.ct) if tangents.ct is None else tangents.ct
    return bind(primals), bind(primals._replace(ct=ct, log_sum_ct=tangents.log_sum_ct))


def _vjp_transpose(bind: Bind, cts: list[Array | None], residuals: Residuals) -> list[Array]:
    absent = "score" if bind.attributes["with_row"] else "row"
    tangents = Tangents(*cts)._replace(**{absent: None})
    residuals = residuals._replace(ct=None, log_sum_ct=None)
    return attention_jvp(residuals, tangents, **_options(bind))


# --- Batches -------------------------------------------------------------------------------------


def _batch(bind: Bind, operands: Attended, batched: Attended, size: int) -> Any:
    scores = operands.scores
    if scores.keys == 0:
        return batch_features((), bind, operands, batched, size, per_entry=True)
    # The batch joins the heads, which share some fields and the matrix: these must not be batched.
    shared = [getattr(batched.scores, name) for name in scores.shared]
    if any(jax.tree.leaves((batched.matrix, shared))):
        return composed_batch(Bind.plain, bind, operands, batched, size)
    if isinstance(scores, TypedScores):  # drop rows shared by heads; ``at_row`` has their terms
        fields: Any = {"row": None, "of_row": None}
        operands = operands._replace(scores=replace(operands.scores, **fields))
        batched = batched._replace(scores=replace(batched.scores, **fields))
    if not any(jax.tree.leaves(batched)):
        return [jnp.broadcast_to(result, (size, *result.shape)) for result in bind(operands)]
    return batch_features((), bind, operands, batched, size, per_entry=True, shared=scores.shared)


def _vjp_batch(bind: Bind, operands: Residuals, batched: Residuals, size: int) -> Any:
    if operands.scores.keys == 0:
        return batch_features((), bind, operands, batched, size, per_entry=True)
    return composed_batch(Bind.plain, bind, operands, batched, size)


# --- Several devices -----------------------------------------------------------------------------

# Factors of each operand's axes. Devices split rows, columns or entries, and whole heads: h is
# split, the features K of a head's value and Q of its key are not.
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


def _end_factors(scores: Scores) -> dict[str, str]:
    """Return the factors of the fields ``row`` and ``col``."""
    if isinstance(scores, AdditiveScores):
        return {"scores.row": "rows h", "scores.col": "cols h"}
    features = "." if isinstance(scores, TypedScores) else "(h Q)"
    return {"scores.row": f"rows {features}", "scores.col": f"cols {features}"}


def _sharding(operands: Attended, results: object, **attributes: Any) -> Sharding:
    factors = _OPERANDS | _end_factors(operands.scores)
    rule = matrix_sharding(factors, "rows (h K)", "rows h .", "entries h", across=_across)
    return rule(operands, results, **attributes)


def _across(bind: Bind, operands: Attended, piece: Piece) -> list[Array]:
    """Combine the sums of devices that each have some of a row's entries.

    Each device has the softmax of its own entries. Its share is that of its log-sum-exp in the
    softmax of all devices'.
    """
    y, stats, raw = bind(operands)
    lse = jnp.where(jnp.isinf(stats[..., 1]), -jnp.inf, stats[..., 0] + stats[..., 1])
    top = piece.whole.reduce(lse, "max")
    top = jnp.where(jnp.isfinite(top), top, 0)
    share = jnp.exp(lse - top)
    denominator = piece.whole.reduce(share)
    share /= jnp.where(denominator == 0, 1, denominator)
    by_head = y.reshape(*share.shape, y.shape[1] // share.shape[1])
    terms = by_head.astype(share.dtype) * share[..., None]
    log_sum = jnp.where(denominator == 0, jnp.inf, jnp.log(denominator))
    if not raw.shape[0]:
        raw = piece.whole.reduce(raw)  # an empty array must not vary over devices
    y = piece.reduce(terms.reshape(y.shape)).astype(y.dtype)
    stats = jnp.stack([top, log_sum], -1)
    return [y, piece.own(stats, y.shape[0]), raw]


def _vjp_sharding(residuals: Residuals, results: Sequence[Array], **attributes: Any) -> Sharding:
    operands = _OPERANDS | {
        **_end_factors(residuals.scores),
        "y": "rows (h K)",
        "ct": "rows (h K)",
        "stats": "rows h .",
        "raw": "entries h",
        "log_sum_ct": "rows h",
    }
    scores = residuals.scores
    col = "cols h" if isinstance(scores, TypedScores) else operands["scores.col"]
    vector = operands["scores.scale" if isinstance(scores, DotScores) else "scores.vector"]
    factors = "cols (h K)", operands["scores.row"], col, vector, "entries h"
    absent = (0, attributes["heads"])
    grads = [". h" if x.shape == absent else f for f, x in zip(factors, results, strict=True)]
    rule = matrix_sharding(operands, *grads, transposed=True)
    return rule(residuals, results, **attributes)


def _flops(operands: Any, **attributes: object) -> int:
    width, scores = row_width(operands.value), operands.scores
    score_flops = 0 if scores.keys == 0 else row_width(scores.row) if scores.keys else width
    return int(2 * operands.matrix.by_row.count * (width + score_flops))


# Results: y; statistics of each row and head, whose softmax is exp((score - stats[0]) - stats[1]):
# the largest score or a number near it, without a derivative, and the logarithm of the sum, inf for
# a row without entries; and raw scores, which have no rows unless `keeps_raw`, and are -inf for
# entries without a relation. Attributes: heads, slope of the LeakyReLU, keeps_raw.
attention = Op(
    name="attention",
    operands=Attended,
    result=_results,
    xla=_composed,
    call=_call,
    jvp=_jvp,
    batch=_batch,
    several=True,
    flops=_flops,
    sharding=_sharding,
)


def attend(
    value: Array,
    scores: Scores,
    entry_scale: Array | None,
    matrix: SparseMatrix,
    *,
    heads: int,
    slope: float = 1.0,
) -> list[Array]:
    """Return the sums and the statistics: the first two results of ``attention``."""
    options: Any = {"heads": heads, "slope": slope, "keeps_raw": False}
    y, stats, _ = attention(value, scores, entry_scale, matrix, **options)
    return [y, stats]


def weights(
    value: Array,
    scores: Scores,
    entry_scale: Array | None,
    stats: Array,
    matrix: SparseMatrix,
    *,
    heads: int,
    slope: float,
) -> Array:
    """Return the weights of values in ``attention``, ``(entries, heads)``; 0 for padding."""
    raw = scores.raw(Entries(value, matrix, heads, slope))
    return xla.weights(_entry_scores(scores, raw, slope).score, entry_scale, stats, matrix)


# Results: tangents of y and of stats[1]. Linear operands are `Tangents`; the tangent ``score`` is
# added to that which the fields' tangents make.
attention_jvp = Linear(
    name="attention_jvp",
    result=lambda residuals, tangents, **attributes: [
        jax.ShapeDtypeStruct(residuals.y.shape, residuals.y.dtype),
        jax.ShapeDtypeStruct(residuals.stats.shape[:2], residuals.stats.dtype),
    ],
    function=_tangent,
    transpose=_transpose,
)


# Results: the gradients of `Tangents`. Attributes: heads, slope, and with_row, whether the gradient
# of rows is a result, in place of that of scores.
attention_vjp = Op(
    name="attention_vjp",
    operands=Residuals,
    result=_gradient_shapes,
    xla=_composed_vjp,
    call=_vjp_call,
    jvp=_vjp_jvp,
    transpose={("ct", "log_sum_ct"): _vjp_transpose},
    batch=_vjp_batch,
    several=True,
    flops=lambda operands, **_: 2 * _flops(operands),
    family=FAMILY,
    sharding=_vjp_sharding,
)


def gradients(*residuals: Any, with_row: bool = False, **attributes: Any) -> Tangents:
    """Return the results of ``attention_vjp``; the gradient of rows is None unless ``with_row``."""
    grads = Tangents(*attention_vjp(*residuals, with_row=with_row, **attributes))
    return grads if with_row else grads._replace(row=None)
