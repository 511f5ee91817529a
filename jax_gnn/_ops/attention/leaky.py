"""Scores of GATv2, ⟨a, LeakyReLU(l + r)⟩ of each entry's row and column, and their derivatives.

The LeakyReLU is its slope times its argument, and the slope is constant nearly everywhere. Hence
two linear primitives are all that derivatives of any order need:

* ``leaky_dots``, t[e] = Σ slope(l[rows[e]] + r[cols[e]]) · (p[rows[e]] + q[cols[e]]) over the
  features of a head, linear in p and q together, and
* ``leaky_sum``, out[r] = a · Σ factor[e] · slope(l[r] + r[cols[e]]) over the entries e of row r.

They are transposes of each other, in the factors. ``leaky_scores`` is ``leaky_dots`` of p = a · l
and q = a · r, with a kernel of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import JAX_OPS, accumulator_dtype, as_column, row_width, take
from jax_gnn._core.batching import batch_features
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.kernels import csr_operands, per_entry, per_row, unscheduled_workspace
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import Bind, Call, Op, Operand, composed_batch
from jax_gnn._core.sharding import where
from jax_gnn._ops.attention.schedule import choose_slopes
from jax_gnn._ops.matrix_sharding import matrix_sharding
from jax_gnn._ops.segment_reduce.xla import into_rows


class Keys(NamedTuple):
    """Operands of ``leaky_scores``; constants of ``leaky_dots``, without a vector."""

    row_key: Any  # (rows, heads · features)
    col_key: Any  # (columns, heads · features)
    vector: Any  # (1, heads · features) in the accumulator type, or None
    matrix: SparseMatrix  # the entries, by row in the order of the result


# The linear operands p and q of `leaky_dots`; None for zeros.
PQ = tuple[Array | None, Array | None]


class LeakySum(NamedTuple):
    """Operands of ``leaky_sum``."""

    row_key: Any  # (rows, heads · features)
    col_key: Any  # (columns, heads · features)
    factor: Any  # (entries, heads) in the accumulator type
    vector: Any  # (1, heads · features) in the accumulator type, or None for ones
    matrix: SparseMatrix  # the entries, by row in the order of the factors


# --- In plain XLA --------------------------------------------------------------------------------


def _key_sums(row_key: Array, col_key: Array, matrix: SparseMatrix) -> tuple[Array, Array]:
    """Return each entry's sum of both keys, and the mask of entries without padding, a column."""
    csr, acc = matrix.by_row, accumulator_dtype(row_key.dtype)
    z = take(row_key.astype(acc), csr.rows) + take(col_key.astype(acc), csr.cols)
    return z, as_column(csr.valid(col_key.shape[0]))


def _per_head(x: Array, heads: int) -> Array:
    return x.reshape(x.shape[0], heads, x.shape[1] // heads)


def _scores(
    row_key: Array, col_key: Array, vector: Array, matrix: SparseMatrix, *, heads: int, slope: float
) -> Array:
    z, valid = _key_sums(row_key, col_key, matrix)
    terms = jnp.where(valid, vector * jnp.where(z >= 0, z, slope * z), 0)
    return jnp.sum(_per_head(terms, heads), axis=2)


def _dots(keys: Keys, pq: PQ, *, heads: int, slope: float) -> list[Array]:
    row_key, col_key, _, matrix = keys
    # Slopes are constant nearly everywhere: keys have no gradient here.
    z, valid = _key_sums(jax.lax.stop_gradient(row_key), jax.lax.stop_gradient(col_key), matrix)
    terms = jnp.zeros_like(z)
    for values, ids in zip(pq, (matrix.by_row.rows, matrix.by_row.cols), strict=True):
        if values is not None:
            terms += take(values.astype(z.dtype), ids)
    slopes = jnp.where(z >= 0, 1, jnp.asarray(slope, z.dtype))
    terms = where(valid, slopes * terms, 0)
    return [jnp.sum(_per_head(terms, heads), axis=2)]


def _sum(
    row_key: Array,
    col_key: Array,
    factor: Array,
    vector: Array | None,
    matrix: SparseMatrix,
    *,
    heads: int,
    slope: float,
) -> Array:
    csr = matrix.by_row
    z, valid = _key_sums(row_key, col_key, matrix)
    slopes = jnp.where(z >= 0, 1, jnp.asarray(slope, z.dtype))
    terms = _per_head(slopes, heads) * take(factor, csr.order)[..., None]
    terms = jnp.where(valid, terms.reshape(z.shape), 0)
    sums = into_rows(JAX_OPS["sum"], terms, valid[:, 0], csr)
    return (sums if vector is None else vector * sums).astype(row_key.dtype)


# --- What kernels get ----------------------------------------------------------------------------


def _scores_call(platform: str, operands: Keys, *, heads: int, slope: float) -> Call | None:
    row_key, col_key, vector, matrix = operands
    indices = csr_operands(matrix.by_row, col_key.shape[0])
    if indices is None:
        return None
    (rows, cols, _), flags = indices
    attributes = {"gather": flags["gather"], "heads": np.int64(heads), "slope": np.float64(slope)}
    return Call([row_key, col_key, Operand.of(jnp.ravel, vector), rows, cols], attributes)


def _sum_call(platform: str, operands: LeakySum, *, heads: int, slope: float) -> Call | None:
    row_key, col_key, factor, vector, matrix = operands
    csr = matrix.by_row
    indices = csr_operands(csr, col_key.shape[0])
    if indices is None:
        return None
    ids, flags = indices
    workspace = unscheduled_workspace(csr, row_width(col_key), col_key.dtype)
    flags |= {"has_vector": np.bool_(vector is not None), "slope": np.float64(slope)}
    flags["kernel"] = choose_slopes(csr, col_key, heads) if platform == "cuda" else "walk"
    vector = factor if vector is None else Operand.of(jnp.ravel, vector)
    return Call([row_key, col_key, factor, vector, *ids], flags, [workspace])


# --- Derivatives ---------------------------------------------------------------------------------


def _scores_jvp(bind: Bind, primals: Keys, tangents: Keys) -> tuple[Array, Array | None]:
    vector, acc = primals.vector, primals.vector.dtype

    def product(x: Array, tangent: Array | None) -> Array | None:
        terms = [] if tangent is None else [vector * tangent.astype(acc)]
        if tangents.vector is not None:  # rows that no entry reads may hold NaN
            terms.append(tangents.vector * jnp.where(jnp.isfinite(x), x, 0).astype(acc))
        return sum(terms[1:], terms[0]).astype(x.dtype) if terms else None

    p = product(primals.row_key, tangents.row_key)
    q = product(primals.col_key, tangents.col_key)
    if p is None and q is None:
        return bind(primals), None
    (tangent,) = leaky_dots(primals._replace(vector=None), (p, q), **bind.attributes)
    return bind(primals), tangent


def _scores_batch(bind: Bind, operands: Keys, batched: Keys, size: int) -> Array:
    if not any(jax.tree.leaves(batched.matrix)):
        return cast(Array, batch_features((), bind, operands, batched, size, per_entry=True))

    def scores(bind: Bind, keys: Keys) -> Array:
        p, q = ((keys.vector * x.astype(keys.vector.dtype)).astype(x.dtype) for x in keys[:2])
        return leaky_dots(keys._replace(vector=None), (p, q), **bind.attributes)[0]

    return cast(Array, composed_batch(scores, bind, operands, batched, size))


def _dots_transpose(
    keys: Keys, pq: PQ, cts: list[Array | None], **attributes: Any
) -> list[Array | None]:
    row_key, col_key, _, matrix = keys
    (p, q), (ct,) = pq, cts
    return [
        None if p is None else leaky_sum(row_key, col_key, ct, None, matrix, **attributes),
        None if q is None else leaky_sum(col_key, row_key, ct, None, matrix.T, **attributes),
    ]


def _sum_transpose_factor(bind: Bind, ct: Array, operands: LeakySum) -> Array:
    row_key, col_key, _, vector, matrix = operands
    if vector is not None:
        ct = (vector * ct.astype(vector.dtype)).astype(ct.dtype)
    # Dots come out in the order of the entries by row: take the half in the order of the factors.
    pq: PQ = (ct, None)
    keys = Keys(row_key, col_key, None, matrix)
    if matrix.by_row.order is not None:
        keys, pq = Keys(col_key, row_key, None, matrix.T), (None, ct)
    return leaky_dots(keys, pq, **bind.attributes)[0]


def _sum_transpose_vector(bind: Bind, ct: Array, operands: LeakySum) -> Array:
    sums, acc = bind(operands._replace(vector=None)), operands.factor.dtype
    return jnp.sum(ct.astype(acc) * sums.astype(acc), axis=0, keepdims=True)


def _sum_batch(bind: Bind, operands: LeakySum, batched: LeakySum, size: int) -> Any:
    if operands.vector is None or not any(jax.tree.leaves(batched.matrix)):
        return batch_features(("factor",), bind, operands, batched, size, per_entry=True)
    # Joined matrices share one vector: a batch of vectors multiplies the sums.
    vector = operands.vector
    operands, batched = operands._replace(vector=None), batched._replace(vector=None)
    sums = _sum_batch(bind, operands, batched, size)
    return (vector * sums.astype(vector.dtype)).astype(sums.dtype)


def _flops(operands: Keys | LeakySum, **attributes: object) -> int:
    return 4 * operands.matrix.by_row.count * row_width(operands[0])


# Attributes of all three: heads, and slope, that of the LeakyReLU below 0.
leaky_scores = Op(
    name="leaky_scores",
    operands=Keys,
    result=per_entry,
    xla=_scores,
    call=_scores_call,
    jvp=_scores_jvp,
    batch=_scores_batch,
    flops=_flops,
    sharding=matrix_sharding(
        {"row_key": "rows (h k)", "col_key": "cols (h k)", "vector": ". (h k)"}, "entries h"
    ),
)


# Constants are both keys and the matrix; linear operands are p and q.
leaky_dots = Linear(
    name="leaky_dots",
    result=lambda keys, pq, **attributes: [per_entry(keys, **attributes)],
    function=_dots,
    transpose=_dots_transpose,
)


leaky_sum = Op(
    name="leaky_sum",
    operands=LeakySum,
    result=per_row,
    xla=_sum,
    call=_sum_call,
    transpose={"factor": _sum_transpose_factor, "vector": _sum_transpose_vector},
    batch=_sum_batch,
    flops=_flops,
    sharding=matrix_sharding(
        {
            "row_key": "rows (h k)",
            "col_key": "cols (h k)",
            "factor": "weights h",
            "vector": ". (h k)",
        },
        "rows (h k)",
    ),
)
