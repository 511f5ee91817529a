"""Hypergraph aggregation in plain ``jax.numpy``."""

from __future__ import annotations

from typing import cast

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jax_gnn._core.arrays import JAX_OPS, accumulator_dtype, row_wise, take
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.ids import in_range
from jax_gnn._ops.segment_reduce.xla import epilogue


def hypergraph_aggregate(
    x: Array,
    node_scale_in: Array,
    hyperedge_scale: Array,
    node_scale_out: Array,
    self_scale: Array | None,
    to_hyperedges: SparseMatrix,
    to_nodes: SparseMatrix,
    residual: Array | None = None,
    bias: Array | None = None,
    *,
    relu: bool = False,
) -> Array:
    """Return ``relu(Y + self_scale · x + residual + bias)``; operands as in `Aggregation`."""
    wide = x.astype(accumulator_dtype(x.dtype))
    h = _gather_reduce(to_hyperedges.by_row, wide, node_scale_in, hyperedge_scale)
    y = _gather_reduce(to_nodes.by_row, h, ones(h.dtype), node_scale_out)
    return epilogue(y, x, self_scale, None, residual, bias, relu=relu).astype(x.dtype)


def _gather_reduce(csr: Csr, x: Array, col_scale: Array, row_scale: Array) -> Array:
    """Return ``row_scale[r] · Σ col_scale[c] · x[c]``, summed over the columns c of row r."""
    messages = take(x, csr.cols)
    if col_scale.shape[0] == x.shape[0]:
        messages *= row_wise(take(col_scale, csr.cols), messages)
    # segment_sum drops ids that are too large, but wraps negative ones around.
    rows = jnp.where(in_range(csr.rows, csr.num_rows), csr.rows, csr.num_rows)
    sums = JAX_OPS["sum"](messages, rows, csr.num_rows, indices_are_sorted=True)
    return cast(Array, sums * row_wise(mask_empty(row_scale, csr), sums))


def ones(acc: DTypeLike) -> Array:
    """Return the single 1 that stands for an absent scale."""
    return jnp.ones((1,), acc)


def mask_empty(scale: Array, csr: Csr) -> Array:
    """Return the scale with 0 for empty rows, where a caller's 1 / degree is infinite."""
    return jnp.where(csr.counts == 0, 0, scale)


def add_own(y: Array | None, x: Array, self_scale: Array) -> Array:
    """Return ``y + self_scale · x`` with one rounding; None is 0."""
    acc = self_scale.dtype
    term = row_wise(self_scale, x) * x.astype(acc)
    return (term if y is None else y.astype(acc) + term).astype(x.dtype)
