"""Attention over the edges into each destination: sums under a softmax that nobody keeps.

* ``edge_attention``, y[r] = Σ w[e] · value[cols[e]] over the entries e of row r, where w is a
  factor times the softmax of the entries' scores; and what the softmax is made of, for each row.
  Scores are those of both ends together, through a LeakyReLU, or each entry has its own.
* ``edge_attention_jvp``, its derivative, linear in the tangents of values and of scores, and
  ``edge_attention_vjp``, the transpose of that: the gradients of values and scores, those of the
  columns' scores too, in one pass over the entries. ``edge_attention_gradients`` is that and the
  sum by row, which rows' scores get, in one launch where there are few entries.
  Weights are computed again from the scores, and D of Dao's FlashAttention, ⟨cotangent, y⟩ of each
  row, takes the place of a sum over the entries.

Derivatives of the derivatives are those of what :mod:`xla` writes them in: closed primitives.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, row_width
from jax_gnn._core.batching import batch
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.ids import at_most
from jax_gnn._core.kernels import csr_operands, like_first, unscheduled_workspace, workspace_of
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import Bind, Call, Op, Operand, composed_jvp, define
from jax_gnn._core.schedule import known_width
from jax_gnn._ops.edge_attention import xla
from jax_gnn._ops.segment_reduce.primitive import total
from jax_gnn._ops.segment_reduce.schedule import FAMILY, scheduled


class Attended(NamedTuple):
    """Operands of ``edge_attention``. Scores are in the accumulator type.

    Attributes:
        value: ``(columns, heads · features)``.
        row_score: ``(rows, heads)``, of which the entry's is added to its column's; or None.
        col_score: ``(columns, heads)``; None where ``row_score`` is.
        entry_score: ``(entries, heads)``, where there are not these.
        entry_scale: ``(entries, heads)``, factors of the softmax, or None.
        matrix: the entries, those by row in the order of what each has for itself.
    """

    value: Any
    row_score: Any
    col_score: Any
    entry_score: Any
    entry_scale: Any
    matrix: SparseMatrix


class Known(NamedTuple):
    """What is known of ``edge_attention_jvp``: the operands of ``edge_attention``, and its results.

    Attributes:
        y: what it gave.
        stats: ``(rows, heads, 2)``, likewise, see `edge_attention`.
    """

    value: Any
    row_score: Any
    col_score: Any
    entry_score: Any
    entry_scale: Any
    y: Any
    stats: Any
    matrix: SparseMatrix


class Moving(NamedTuple):
    """Operands that ``edge_attention_jvp`` is linear in: tangents.

    Attributes:
        value: of ``value``.
        row_score: of ``row_score``.
        col_score: of ``col_score``.
        score: ``(entries, heads)``, of the entries' scores, before the LeakyReLU if there is one,
            but for what the rows' and columns' add.
    """

    value: Any = None
    row_score: Any = None
    col_score: Any = None
    score: Any = None


class Cotangents(NamedTuple):
    """Operands of ``edge_attention_vjp``: those of ``edge_attention``, its results, and cotangents.

    Attributes:
        ct: like y, its cotangent.
        log_sum_ct: ``(rows, heads)``, that of the logarithm of the softmax's sum; None stands for
            zeros.
    """

    value: Any
    row_score: Any
    col_score: Any
    entry_score: Any
    entry_scale: Any
    y: Any
    stats: Any
    ct: Any
    log_sum_ct: Any
    matrix: SparseMatrix


def per_row_and_stats(operands: Attended, *, heads: int, slope: float) -> list[Any]:
    del slope
    x, num_rows = operands.value, operands.matrix.by_row.num_rows
    return [
        jax.ShapeDtypeStruct((num_rows, row_width(x)), x.dtype),
        jax.ShapeDtypeStruct((num_rows, heads, 2), accumulator_dtype(x.dtype)),
    ]


def per_row_and_head(known: Any, moving: Any, **attributes: Any) -> list[Any]:
    """Of what was computed of a softmax: the tangents of y and of stats[1]."""
    del moving, attributes
    y, stats = known.y, known.stats
    return [
        jax.ShapeDtypeStruct(y.shape, y.dtype),
        jax.ShapeDtypeStruct(stats.shape[:2], stats.dtype),
    ]


def _per_col_and_entry(operands: Cotangents, *, heads: int, slope: float) -> list[Any]:
    """Without rows for the columns' scores where there are none."""
    del slope
    value, acc = operands.value, accumulator_dtype(operands.value.dtype)
    num_scores = 0 if operands.col_score is None else value.shape[0]
    return [
        like_first(operands),
        jax.ShapeDtypeStruct((num_scores, heads), acc),
        jax.ShapeDtypeStruct((operands.matrix.by_row.count, heads), acc),
    ]


def _call(platform: str, operands: Attended, *, heads: int, slope: float) -> Call | None:
    del platform, heads
    value, row_score, col_score, entry_score, entry_scale, matrix = operands
    csr = matrix.by_row
    found = csr_operands(csr, value.shape[0])
    if found is None or known_width(row_width(value)) == 0:
        return None
    ids, flags = found
    flags |= _flags(operands, slope)
    optional = (each or value for each in (row_score, col_score, entry_score, entry_scale))
    return Call([value, *optional, *ids], flags, one_pass_workspaces(csr, value))


def one_pass_workspaces(csr: Csr, value: Operand) -> list[Any]:
    """Of a sum under a softmax, whose runs have numbers of their own beside the features."""
    return [unscheduled_workspace(csr, 2 * row_width(value), value.dtype)]


def holds_whole_heads(value: Any, heads: int) -> bool:
    """Whether a team of lanes does, in words of 16 bytes; as in edge_attention.h."""
    width = row_width(value)
    if jax.export.is_symbolic_dim(width):
        return False
    words, rest = divmod(width * np.dtype(value.dtype).itemsize, 16 * max(heads, 1))
    return rest == 0 and 1 <= words <= 32 and (heads == 1 or words.bit_count() == 1)


# Of the kernel that has all gradients in one launch, as in edge_gradients.cuh: words of 16 bytes in
# a tile, and entries of a block. And entries times tiles up to which it is the faster one on an
# H100; half as many where scores are numbers of several heads.
_TILE_WORDS, _STEP_BLOCK, _MOST_IN_STEP = 16, 48, 1 << 15


class InStep(NamedTuple):
    """What the kernel of all gradients gets of a matrix.

    Attributes:
        ids: rows and columns of the entries by row, rows, columns and order of those by column.
        flags: what is said of these.
        blocks: of the workspace.
    """

    ids: list[Operand]
    flags: dict[str, Any]
    blocks: int


def gradients_in_step(
    value: Operand, matrix: SparseMatrix, heads: int, *, keyed: bool
) -> InStep | None:
    """Whether one launch has all gradients: of few entries, of which none is left out by an order.

    The only place that decides it: the kernel refuses what it cannot do.
    """
    by_row, by_col = matrix
    of_rows, of_cols = (
        csr_operands(csr, num_cols)
        for csr, num_cols in ((by_row, by_col.num_rows), (by_col, by_row.num_rows))
    )
    if of_rows is None or of_cols is None:
        return None
    if by_row.order is not None or by_row.cols is None or by_col.cols is None:
        return None
    if not holds_whole_heads(value, heads):
        return None
    count, width = by_row.count, row_width(value)
    words = width * np.dtype(value.dtype).itemsize // 16
    of_head = words // heads
    # Many heads of double precision would want more shared memory than all GPUs have.
    if of_head > _TILE_WORDS or (value.dtype == np.float64 and heads > 1 and of_head < 2):
        return None
    tiles = -(-words // _TILE_WORDS)
    sizes = by_row.num_rows, by_col.num_rows
    # Where most rows are empty they are filled by launches of their own.
    if not (at_most(1, count) and all(at_most(size, 2 * count) for size in sizes)):
        return None
    if not at_most(count * tiles, _MOST_IN_STEP if keyed or heads == 1 else _MOST_IN_STEP // 2):
        return None
    ids, flags = of_cols
    blocks = 3 * -(-count // _STEP_BLOCK)  # of both, and of parts of a vector
    return InStep([*of_rows[0][:2], *ids], {"ordered": flags["ordered"]}, blocks)


def _flags(operands: Attended | Cotangents, slope: float) -> dict[str, Any]:
    return {
        "additive": np.bool_(operands.entry_score is None),
        "scaled": np.bool_(operands.entry_scale is not None),
        "slope": np.float64(slope),
    }


def _vjp_call(platform: str, operands: Cotangents, *, heads: int, slope: float) -> Call | None:
    value, row_score, col_score, entry_score, entry_scale, y, stats, ct, log_sum_ct, matrix = (
        operands
    )
    csr = matrix.by_col
    found = csr_operands(csr, ct.shape[0])
    if found is None or known_width(row_width(ct)) == 0:
        return None
    ids, flags = found
    depth = known_width(row_width(ct)) // max(heads, 1)
    # Weights and dots lie beside the ids, as scratch memory.
    own = replace(csr, order=None)
    schedule, workspaces = scheduled("segment_reduce_vjp", own, ct, depth=depth)
    one_pass = platform == "cuda" and holds_whole_heads(ct, heads)
    if one_pass:
        workspaces = one_pass_workspaces(csr, ct)
    count = csr.count if platform == "cuda" and not one_pass else 0
    workspaces.append(jax.ShapeDtypeStruct((2, count, heads), accumulator_dtype(ct.dtype)))
    workspaces.append(records_of(stats))

    scores = row_score, col_score, entry_score, entry_scale
    optional = (each or value for each in (log_sum_ct, *scores))
    flags |= _flags(operands, slope) | schedule
    flags |= {"one_pass": np.bool_(one_pass), "has_log_sum_ct": np.bool_(log_sum_ct is not None)}
    return Call([ct, value, y, stats, *optional, *ids], flags, workspaces)


def _per_row_and_col(operands: Cotangents, *, heads: int, slope: float) -> list[Any]:
    del slope
    value, matrix = operands.value, operands.matrix
    acc = accumulator_dtype(value.dtype)
    return [
        like_first(operands),
        jax.ShapeDtypeStruct((matrix.by_row.num_rows, heads), acc),
        jax.ShapeDtypeStruct((value.shape[0], heads), acc),
    ]


def _gradients_call(
    platform: str, operands: Cotangents, *, heads: int, slope: float
) -> Call | None:
    del platform
    value, row_score, col_score, _, entry_scale, y, stats, ct, log_sum_ct, matrix = operands
    found = gradients_in_step(value, matrix, heads, keyed=False)
    if found is None:
        return None
    flags = found.flags | {
        "scaled": np.bool_(entry_scale is not None),
        "has_log_sum_ct": np.bool_(log_sum_ct is not None),
        "slope": np.float64(slope),
    }
    arrays = ct, value, y, stats, log_sum_ct or value, row_score, col_score, entry_scale or value
    workspace = workspace_of(found.blocks, row_width(value), np.dtype(stats.dtype))
    return Call([*arrays, *found.ids], flags, [workspace])


def records_of(stats: Operand) -> jax.ShapeDtypeStruct:
    """Scratch memory for all that an entry reads of its row, in one word."""
    return jax.ShapeDtypeStruct((*stats.shape[:2], 4), stats.dtype)


def _jvp(bind: Bind, primals: Attended, tangents: Attended) -> tuple[list[Array], list[Array]]:
    if tangents.entry_scale is not None:
        return by_composition(bind, primals, tangents)
    y, stats = bind(primals)
    dy, dlog_sum = edge_attention_jvp(
        Known(*primals[:5], y, stats, primals.matrix),
        Moving(*tangents[:4]),
        **bind.attributes,
        implementation=bind.implementation,
    )
    return [y, stats], [dy, of_log_sum(dlog_sum)]


def of_log_sum(tangent: Array) -> Array:
    """The tangent of stats: what the sum is relative to stands still, as it changes nothing."""
    return jnp.stack([jnp.zeros_like(tangent), tangent], axis=-1)


def by_composition(bind: Bind, primals: Any, tangents: Any) -> Any:
    """Of the same in other primitives."""
    options = {**bind.attributes, "implementation": bind.implementation}
    return composed_jvp(
        lambda operands: bind.op.xla(**operands._asdict(), **options), primals, tangents
    )


def _jvp_transpose(
    known: Known, moving: Moving, cts: list[Array | None], **attributes: Any
) -> tuple[Array | None, ...]:
    cotangents = Cotangents(*known[:7], *of_results(cts, known.y), known.matrix)
    if moving.row_score is not None and moving.score is None:
        return *edge_attention_gradients(*cotangents, **attributes), None
    to_value, to_col_score, to_score = edge_attention_vjp(*cotangents, **attributes)
    to_row_score = None
    if moving.row_score is not None:
        to_row_score = total(to_score, xla.ends(known.matrix)[0])
    return to_value, to_row_score, to_col_score, to_score


def of_results(cts: list[Array | None], y: Array) -> tuple[Array, Array | None]:
    """The cotangents of both results, that of y in any case."""
    return jnp.zeros_like(y) if cts[0] is None else cts[0], cts[1]


def _vjp_jvp(
    bind: Bind, primals: Cotangents, tangents: Cotangents
) -> tuple[list[Array], list[Array]]:
    if jax.tree.leaves(tangents._replace(ct=None, log_sum_ct=None)):
        return by_composition(bind, primals, tangents)
    ct = jnp.zeros_like(primals.ct) if tangents.ct is None else tangents.ct
    moved = primals._replace(ct=ct, log_sum_ct=tangents.log_sum_ct)
    return bind(primals), bind(moved)


def _vjp_transpose(bind: Bind, cts: list[Array | None], operands: Cotangents) -> list[Array]:
    to_value, to_col_score, to_score = cts
    return edge_attention_jvp(
        Known(*operands[:7], operands.matrix),
        Moving(to_value, None, None if operands.col_score is None else to_col_score, to_score),
        **bind.attributes,
        implementation=bind.implementation,
    )


def _composed_gradients(*, implementation: str | None = None, **by_name: Any) -> list[Array]:
    operands = Cotangents(**{name: by_name.pop(name) for name in Cotangents._fields})
    to_value, to_col_score, to_score = edge_attention_vjp(
        *operands, **by_name, implementation=implementation
    )
    at_rows, _ = xla.ends(operands.matrix)
    return [to_value, total(to_score, at_rows, implementation), to_col_score]


def _flops(operands: Any, **attributes: Any) -> int:
    del attributes
    return 2 * operands.matrix.by_row.count * row_width(operands.value)


_WEIGHTS = ("row_score", "col_score", "entry_score", "entry_scale")
_batch = functools.partial(batch, _WEIGHTS, per_entry=True)


# Results: y, and of each row and head what its softmax is made of: exp((score - stats[0]) -
# stats[1]). The first is a number near the largest score, or that, and taken for a constant, the
# second the logarithm of the sum, inf where that is of nothing. Attributes: heads, slope (of the
# LeakyReLU).
edge_attention = define(
    Op(
        name="edge_attention",
        operands=Attended,
        result=per_row_and_stats,
        xla=xla.edge_attention,
        call=_call,
        jvp=_jvp,
        transpose={},
        batch=_batch,
        several=True,
        flops=_flops,
    )
)


# The tangents of y and of stats[1].
edge_attention_jvp = Linear(
    name="edge_attention_jvp",
    result=per_row_and_head,
    function=xla.edge_attention_jvp,
    transpose=_jvp_transpose,
)


# The cotangents of value; of col_score, without rows where there is none; and of the entries'
# scores before the LeakyReLU.
edge_attention_vjp = define(
    Op(
        name="edge_attention_vjp",
        operands=Cotangents,
        result=_per_col_and_entry,
        xla=xla.edge_attention_vjp,
        call=_vjp_call,
        jvp=_vjp_jvp,
        transpose={("ct", "log_sum_ct"): _vjp_transpose},
        batch=_batch,
        several=True,
        flops=lambda operands, **_: 2 * _flops(operands),
        family=FAMILY,
    )
)


# Of scores of rows and columns, of which there are both: the cotangents of value, of row_score and
# of col_score, in one launch where there are few entries.
edge_attention_gradients = define(
    Op(
        name="edge_attention_gradients",
        operands=Cotangents,
        result=_per_row_and_col,
        xla=_composed_gradients,
        platforms=("cuda",),
        call=_gradients_call,
        jvp=by_composition,
        transpose={},
        batch=_batch,
        several=True,
        flops=lambda operands, **_: 2 * _flops(operands),
    )
)
