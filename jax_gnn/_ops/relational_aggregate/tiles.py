"""What the kernel that sums by tiles gets."""

from __future__ import annotations

from typing import Any, get_args

import jax
import numpy as np

from jax_gnn._core.arrays import FLOATS, accumulator_dtype
from jax_gnn._core.ids import MAX_SIZE
from jax_gnn._core.kernels import narrow
from jax_gnn._core.op import Call, Operand
from jax_gnn._core.tiles import Tiles
from jax_gnn._ops.segment_matmul.xla import Activation

MAX_WIDTH = 128  # as kMaxTileWidth in relational_aggregate.h


def tiles_call(
    operands: Any,
    *,
    transposed: bool,
    precision: jax.lax.Precision,
    bias: Operand | None = None,
    activation: str | None = None,
    dtype: Any,
) -> Call | None:
    """A call of the CUDA kernel; None where it does not serve.

    Args:
        operands: x, rhs, weight and matrix, of which ``matrix.tiles`` is taken.
        transposed: whether ``rhs`` is ``(num_types, n, k)``.
        precision: HIGHEST multiplies float32 in full precision.
        bias: ``(n,)`` in the dtype of x.
        activation: of the sums, after the bias.
        dtype: of the result, that of x or its accumulator's.
    """
    x, rhs, weight = operands.x, operands.rhs, operands.weight
    tiles: Tiles | None = operands.matrix.tiles
    n = rhs.shape[1 if transposed else 2]
    acc = np.dtype(accumulator_dtype(x.dtype))
    if tiles is None or x.dtype not in FLOATS or max(x.shape[1], n) > MAX_WIDTH:
        return None
    if rhs.dtype != x.dtype or np.dtype(dtype) not in (x.dtype, acc):
        return None
    attributes = {
        "transposed": np.bool_(transposed),
        "exact": np.bool_(precision is jax.lax.Precision.HIGHEST),
        "has_bias": np.bool_(bias is not None),
        "weighted": np.bool_(weight is not None),
        "activation": np.int64((None, *get_args(Activation)).index(activation)),
    }
    ids = [
        narrow(getattr(tiles, name), MAX_SIZE - 1)
        for name in ("rows", "cols", "order", "items", "starts")
    ]
    # As tile_workspace_bytes in relational_aggregate.h.
    workspace = jax.ShapeDtypeStruct((tiles.num_shares, 64 * 128 * 3 * acc.itemsize), np.uint8)
    return Call([x, rhs, weight or x, *ids, bias or rhs], attributes, [workspace])
