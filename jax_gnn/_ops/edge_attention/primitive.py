"""Attention over the edges into each destination: sums under a softmax that nobody keeps.

* ``edge_attention``, y[r] = Σ w[e] · value[cols[e]] over the entries e of row r, where w is a
  factor times the softmax of the entries' scores; and what the softmax is made of, for each row.
  Scores are those of both ends together, through a LeakyReLU, or each entry has its own.
* ``edge_attention_jvp``, its derivative, linear in the tangents of values and of scores, and
  ``edge_attention_vjp``, the transpose of that: both gradients in one pass over the entries.
  Weights are made anew of the scores, and D of Dao's FlashAttention, ⟨cotangent, y⟩ of each row,
  takes the place of a sum over the entries.

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
from jax_gnn._core.kernels import csr_operands, like_first, unscheduled_workspace
from jax_gnn._core.op import Bind, Call, Op, Operand, composed_jvp, define
from jax_gnn._core.schedule import known_width
from jax_gnn._ops.edge_attention import xla
from jax_gnn._ops.segment_reduce.primitive import gather
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


class Tangents(NamedTuple):
    """Operands of ``edge_attention_jvp``: those of ``edge_attention``, its results, and tangents.

    Attributes:
        y: what it gave.
        stats: ``(rows, heads, 2)``, likewise, see `edge_attention`.
        dvalue: tangent of ``value``.
        dscore: ``(entries, heads)``, of the entries' scores, before the LeakyReLU if there is one.
    """

    value: Any
    row_score: Any
    col_score: Any
    entry_score: Any
    entry_scale: Any
    y: Any
    stats: Any
    dvalue: Any
    dscore: Any
    matrix: SparseMatrix


class Cotangents(NamedTuple):
    """Operands of ``edge_attention_vjp``.

    Attributes:
        ct: like y, its cotangent.
        delta: ``(rows, heads)``, ⟨ct, y⟩ less the cotangent of the logarithm of the softmax's sum.
    """

    value: Any
    row_score: Any
    col_score: Any
    entry_score: Any
    entry_scale: Any
    stats: Any
    ct: Any
    delta: Any
    matrix: SparseMatrix


def per_row_and_stats(operands: Attended, *, heads: int, slope: float) -> list[Any]:
    del slope
    x, num_rows = operands.value, operands.matrix.by_row.num_rows
    return [
        jax.ShapeDtypeStruct((num_rows, row_width(x)), x.dtype),
        jax.ShapeDtypeStruct((num_rows, heads, 2), accumulator_dtype(x.dtype)),
    ]


def per_row_and_head(operands: Tangents, *, heads: int, slope: float) -> list[Any]:
    del slope
    num_rows, acc = operands.matrix.by_row.num_rows, accumulator_dtype(operands.value.dtype)
    return [
        jax.ShapeDtypeStruct(operands.y.shape, operands.y.dtype),
        jax.ShapeDtypeStruct((num_rows, heads), acc),
    ]


def _per_col_and_entry(operands: Cotangents, *, heads: int, slope: float) -> list[Any]:
    del slope
    count, acc = operands.matrix.by_row.count, accumulator_dtype(operands.value.dtype)
    return [like_first(operands), jax.ShapeDtypeStruct((count, heads), acc)]


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


def _flags(operands: Attended | Cotangents, slope: float) -> dict[str, Any]:
    return {
        "additive": np.bool_(operands.entry_score is None),
        "scaled": np.bool_(operands.entry_scale is not None),
        "slope": np.float64(slope),
    }


def _vjp_call(platform: str, operands: Cotangents, *, heads: int, slope: float) -> Call | None:
    value, row_score, col_score, entry_score, entry_scale, stats, ct, delta, matrix = operands
    csr = matrix.by_col
    found = csr_operands(csr, ct.shape[0])
    if found is None:
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

    record = record_operand(stats, delta, row_score)
    optional = (each or value for each in (col_score, entry_score, entry_scale))
    flags |= _flags(operands, slope) | schedule | {"one_pass": np.bool_(one_pass)}
    return Call([ct, value, record, *optional, *ids], flags, workspaces)


# Records up to which XLA may make them and the sums in them in one kernel: that takes up to twice
# as long as two do, but for a launch.
_FEW_RECORDS = 2**16


def record_operand(stats: Operand, delta: Operand, row_score: Operand | None = None) -> Operand:
    """All that an entry reads of its row, in one word."""

    def records(stats: Array, delta: Array, *score: Array) -> Array:
        score = score or (jnp.zeros_like(delta),)
        if not at_most(delta.size, _FEW_RECORDS):
            delta = jax.lax.optimization_barrier(delta)
        return jnp.concatenate([score[0][..., None], stats, delta[..., None]], axis=-1)

    return Operand.of(records, stats, delta, *([] if row_score is None else [row_score]))


def _jvp(bind: Bind, primals: Attended, tangents: Attended) -> tuple[list[Array], list[Array]]:
    if tangents.entry_scale is not None:
        return by_composition(bind, primals, tangents)
    y, stats = bind(primals)
    dscore = tangents.entry_score
    at_rows, at_cols = xla.ends(primals.matrix)
    for tangent, at_end in ((tangents.row_score, at_rows), (tangents.col_score, at_cols)):
        if tangent is not None:
            term = gather(tangent, at_end, bind.implementation)
            dscore = term if dscore is None else dscore + term
    if dscore is None:
        shape = primals.matrix.by_row.count, bind.attributes["heads"]
        dscore = jnp.zeros(shape, stats.dtype)
    dvalue = jnp.zeros_like(primals.value) if tangents.value is None else tangents.value
    dy, dlog_sum = edge_attention_jvp(
        *(*primals[:5], y, stats, dvalue, dscore, primals.matrix),
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


def _linear_jvp(
    linear: tuple[str, str], bind: Bind, primals: Any, tangents: Any
) -> tuple[list[Array], list[Array]]:
    """Of what is linear in two operands together."""
    moving = {name for name, each in tangents._asdict().items() if each is not None}
    if moving - {"matrix"} <= set(linear):
        given = {name: getattr(tangents, name) for name in linear}
        filled = {
            name: jnp.zeros_like(getattr(primals, name)) if each is None else each
            for name, each in given.items()
        }
        return bind(primals), bind(primals._replace(**filled))
    return by_composition(bind, primals, tangents)


def jvp_transpose(bind: Bind, cts: list[Array | None], operands: Tangents) -> tuple[Array, Array]:
    to_value, to_score = edge_attention_vjp(
        *(*operands[:5], operands.stats, *ct_and_delta(bind, cts, operands.y), operands.matrix),
        **bind.attributes,
        implementation=bind.implementation,
    )
    return to_value, to_score


def ct_and_delta(bind: Bind, cts: list[Array | None], y: Array) -> tuple[Array, Array]:
    """What a derivative by source takes of the cotangents of both results."""
    ct = jnp.zeros_like(y) if cts[0] is None else cts[0]
    delta = _dots(ct, y, bind.attributes["heads"])
    return ct, delta if cts[1] is None else delta - cts[1]


def _dots(a: Array, b: Array, heads: int) -> Array:
    """Of each row and head, in the accumulator type."""
    acc = accumulator_dtype(a.dtype)
    products = a.astype(acc) * b.astype(acc)
    return jnp.sum(products.reshape(a.shape[0], heads, a.shape[1] // heads), axis=2)


def _vjp_transpose(
    bind: Bind, cts: list[Array | None], operands: Cotangents
) -> tuple[Array, Array]:
    heads, matrix, stats = bind.attributes["heads"], operands.matrix, operands.stats
    dvalue, dscore = cts
    if dvalue is None:
        dvalue = jnp.zeros_like(operands.value)
    if dscore is None:
        dscore = jnp.zeros((matrix.by_row.count, heads), stats.dtype)
    y = jnp.zeros((matrix.by_row.num_rows, dvalue.shape[1]), dvalue.dtype)
    to_ct, dlog_sum = edge_attention_jvp(
        *(*operands[:5], y, stats, dvalue, dscore, matrix),
        **bind.attributes,
        implementation=bind.implementation,
    )
    return to_ct, -dlog_sum


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
edge_attention_jvp = define(
    Op(
        name="edge_attention_jvp",
        operands=Tangents,
        result=per_row_and_head,
        xla=xla.edge_attention_jvp,
        platforms=(),
        jvp=functools.partial(_linear_jvp, ("dvalue", "dscore")),
        transpose={("dvalue", "dscore"): jvp_transpose},
        batch=_batch,
        several=True,
        flops=lambda operands, **_: 2 * _flops(operands),
    )
)


# The cotangents of value, and of the entries' scores before the LeakyReLU.
edge_attention_vjp = define(
    Op(
        name="edge_attention_vjp",
        operands=Cotangents,
        result=_per_col_and_entry,
        xla=xla.edge_attention_vjp,
        call=_vjp_call,
        jvp=functools.partial(_linear_jvp, ("ct", "delta")),
        transpose={("ct", "delta"): _vjp_transpose},
        batch=_batch,
        several=True,
        flops=lambda operands, **_: 2 * _flops(operands),
        family=FAMILY,
    )
)
