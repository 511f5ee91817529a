"""The softmax over segments of sorted entries, and its derivative, which is its own transpose."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple, cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, as_column, row_width, take
from jax_gnn._core.batching import batch_features, broadcast_batch, disjoint_union
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import MAX_SIZE, in_range
from jax_gnn._core.kernels import csr_operands, like_first
from jax_gnn._core.op import Bind, Call, Op, Operand
from jax_gnn._core.sharding import Piece
from jax_gnn._core.types import PyTree
from jax_gnn._ops.matrix_sharding import matrix_sharding
from jax_gnn._ops.segment_reduce.derivatives import not_padding
from jax_gnn._ops.segment_reduce.primitive import gather, segment_reduce, total
from jax_gnn._ops.segment_reduce.schedule import FAMILY, plan
from jax_gnn._ops.segment_softmax import xla


class Scores(NamedTuple):
    """Operands of ``segment_softmax``: x is ``(entries, features)``, sorted by segment."""

    x: Any
    matrix: SparseMatrix


class Tangents(NamedTuple):
    """Operands of ``segment_softmax_tangent``: the softmax y, and the tangent t of its operand."""

    y: Any
    t: Any
    matrix: SparseMatrix


def _call(platform: str, operands: Scores | Tangents) -> Call | None:
    """Return the custom call of the softmax or of its tangent."""
    *arrays, matrix = operands
    csr = matrix.by_row
    index = csr_operands(csr, csr.count)
    if index is None:
        return None
    (rows, *_), _ = index
    num_rows = csr.num_rows
    if jax.export.is_symbolic_dim(num_rows):  # no attribute: ids mark padding instead
        num_rows = MAX_SIZE
        rows = Operand.of(lambda ids: jnp.where(ids < csr.num_rows, ids, MAX_SIZE), rows)
    _, workspaces = plan("softmax", csr, arrays[0])
    return Call([*arrays, rows], {"num_rows": np.int64(num_rows)}, workspaces)


def _jvp(bind: Bind, primals: Scores, tangents: Scores) -> tuple[Array, Array | None]:
    # The tangent needs the softmax alone, not the scores.
    y, matrix = bind(primals), primals.matrix
    tangent = segment_softmax_tangent(y, tangents.x, matrix)
    return y, tangent


def _tangent_jvp(bind: Bind, primals: Tangents, tangents: Tangents) -> tuple[Array, Array | None]:
    y, t, matrix = primals
    dy, dt, _ = tangents
    terms = [] if dt is None else [bind(primals._replace(t=dt))]
    # The derivative in y, by the product rule: of the factor, and of the mean.
    if dy is not None:
        valid = as_column(not_padding(matrix))
        y, t, dy = (jnp.where(valid, z, 0).astype(accumulator_dtype(z.dtype)) for z in (y, t, dy))

        def mean(p: Array) -> Array:
            sums = total(p * t, matrix)
            return gather(sums, matrix)

        terms.append((dy * (t - mean(y)) - y * mean(dy)).astype(primals.y.dtype))
    return bind(primals), functools.reduce(operator.add, terms) if terms else None


def _batch(fill: float, bind: Bind, operands: PyTree, batched: PyTree, size: int) -> Array:
    if not any(jax.tree.leaves(batched.matrix)):
        return cast(Array, batch_features((), bind, operands, batched, size))
    # No columns could mark padding in the joined matrix: it gets values that change no result.
    *values, matrix = broadcast_batch(operands, batched, size)
    valid = in_range(matrix.by_row.rows, matrix.by_row.num_rows)[:, :, None]
    operands = type(operands)(*(jnp.where(valid, value, fill) for value in values), matrix)
    result = disjoint_union(bind, operands, jax.tree.map(lambda _: True, operands), size)
    return jnp.where(valid, result, 0)


def _flops(operands: Scores | Tangents) -> int:
    return 5 * operands.matrix.by_row.count * row_width(operands[0])


def _softmax_across(bind: Bind, operands: Scores, piece: Piece) -> Array:
    """Return the softmax of a run of entries: its local softmax, times its share of each row."""
    x, matrix = operands
    wide = x.astype(accumulator_dtype(x.dtype))
    local = segment_reduce(wide, None, matrix, reduce="logsumexp", heads=1)
    maximum = piece.reduce(local, "max")
    maximum = jnp.where(jnp.isfinite(maximum), maximum, 0)
    share = jnp.exp(local - maximum)
    share /= jnp.maximum(piece.reduce(share), jnp.finfo(wide.dtype).tiny)
    return cast(Array, (bind(operands) * take(share, matrix.by_row.rows)).astype(x.dtype))


def _tangent_across(bind: Bind, operands: Tangents, piece: Piece) -> Array:
    y, t, matrix = operands
    acc = accumulator_dtype(y.dtype)
    valid = as_column(in_range(matrix.by_row.rows, matrix.by_row.num_rows))
    y, t = (jnp.where(valid, z, 0).astype(acc) for z in (y, t))
    mean = piece.reduce(total(y * t, matrix))
    return (y * (t - take(mean, matrix.by_row.rows))).astype(operands.y.dtype)


# The softmax over each segment of sorted entries.
segment_softmax = Op(
    name="segment_softmax",
    operands=Scores,
    result=like_first,
    xla=xla.segment_softmax,
    call=_call,
    jvp=_jvp,
    batch=functools.partial(_batch, -np.inf),
    flops=_flops,
    family=FAMILY,
    sharding=matrix_sharding({"x": "entries features"}, "entries features", across=_softmax_across),
)


# y · (t - sum of the segment's y · t).
segment_softmax_tangent = Op(
    name="segment_softmax_tangent",
    operands=Tangents,
    result=like_first,
    xla=xla.segment_softmax_tangent,
    call=_call,
    jvp=_tangent_jvp,
    transpose={"t": lambda bind, ct, operands: bind(operands._replace(t=ct))},
    batch=functools.partial(_batch, 0.0),
    flops=_flops,
    family=FAMILY,
    sharding=matrix_sharding(
        dict.fromkeys(("y", "t"), "entries features"), "entries features", across=_tangent_across
    ),
)
