"""Operands that kernels get for a sparse matrix, workspaces, and the shapes of results."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.csr import Csr
from jax_gnn._core.ids import MAX_SIZE, at_most, clip_ids
from jax_gnn._core.op import Operand
from jax_gnn._core.types import DType, PyTree


def csr_operands(csr: Csr, num_cols: int) -> tuple[list[Operand], dict[str, Any]] | None:
    """Return the index operands of a kernel, int32, and its flags; absent ids repeat the rows.

    None where no kernel serves: for a gather, and ids that do not fit int32.
    """
    sizes = csr.num_rows, num_cols, csr.count
    if csr.rows is None:
        return None
    if csr.rows.dtype != np.int32 and not all(at_most(n, MAX_SIZE - 1) for n in sizes):
        return None
    attributes = {
        "gather": np.bool_(csr.cols is not None),
        "ordered": np.bool_(csr.order is not None),
    }
    ids = [
        narrow_ids(ids or csr.rows, size)
        for ids, size in zip((csr.rows, csr.cols, csr.order), sizes, strict=True)
    ]
    return ids, attributes


def narrow_ids(ids: Operand, size: int) -> Operand:
    """Convert ids to int32; ids out of range stay below 0 or at least ``size``."""
    if ids.dtype == np.int32:
        return ids
    return Operand.of(lambda wide: clip_ids(wide, size).astype(jnp.int32), ids)


def block_workspace(blocks: int, width: int, acc: np.dtype) -> jax.ShapeDtypeStruct:
    """Return the workspace for partial rows of blocks, as workspace_bytes in segments.h."""
    block_bytes = 64 + 2 * (-(-2 * width * acc.itemsize // 16) * 16)
    return jax.ShapeDtypeStruct((blocks, block_bytes), np.uint8)


# Limits for sums without a schedule: blocks, more than devices run at once, and entries of a block,
# a step of few teams.
_MAX_BLOCKS, _MIN_ENTRIES = 1024, 16


def unscheduled_workspace(csr: Csr, width: int, dtype: DType) -> jax.ShapeDtypeStruct:
    """Return the workspace of a sum without a schedule, of rows of ``width`` numbers."""
    return block_workspace(max_blocks(csr), width, np.dtype(accumulator_dtype(dtype)))


def max_blocks(csr: Csr) -> int:
    """Return the number of blocks that share the entries of a sum without a schedule."""
    # jax.core.min_dim and max_dim work for symbolic sizes, too.
    needed = jax.core.max_dim(1, -(-csr.count // _MIN_ENTRIES))
    return jax.core.min_dim(_MAX_BLOCKS, needed)


# --- Shapes of results ---------------------------------------------------------------------------


def per_row(operands: PyTree, **attributes: object) -> jax.ShapeDtypeStruct:
    """Return the shape with a row for each row of the matrix, and the first operand's features."""
    x = operands[0]
    return jax.ShapeDtypeStruct((operands.matrix.by_row.num_rows, *x.shape[1:]), x.dtype)


def per_entry(operands: PyTree, *, heads: int, **attributes: object) -> jax.ShapeDtypeStruct:
    """Return the shape with a number for each entry of the matrix and head."""
    dtype = accumulator_dtype(operands[0].dtype)
    return jax.ShapeDtypeStruct((operands.matrix.by_row.count, heads), dtype)


def like_first(operands: PyTree, **attributes: object) -> jax.ShapeDtypeStruct:
    """Return the shape of the first operand."""
    return jax.ShapeDtypeStruct(operands[0].shape, operands[0].dtype)
