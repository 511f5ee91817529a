"""The softmax over segments and its derivative in plain ``jax.numpy``."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import JAX_OPS, accumulator_dtype, as_column, take
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._ops.segment_reduce.xla import into_rows


def segment_softmax(x: Array, matrix: SparseMatrix) -> Array:
    csr, dtype = matrix.by_row, x.dtype
    valid = csr.valid(x.shape[0])
    x = x.astype(accumulator_dtype(dtype))
    maximum = into_rows(JAX_OPS["max"], x, valid, csr)
    powers = jnp.exp(x - take(maximum, csr.rows))
    y = powers / take(into_rows(JAX_OPS["sum"], powers, valid, csr), csr.rows)
    return jnp.where(as_column(valid), y, 0).astype(dtype)


def segment_softmax_tangent(y: Array, t: Array, matrix: SparseMatrix) -> Array:
    csr, dtype = matrix.by_row, y.dtype
    valid = csr.valid(y.shape[0])
    y, t = (z.astype(accumulator_dtype(dtype)) for z in (y, t))
    mean = take(into_rows(JAX_OPS["sum"], y * t, valid, csr), csr.rows)
    return jnp.where(as_column(valid), y * (t - mean), 0).astype(dtype)
