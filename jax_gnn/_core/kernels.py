"""What kernels get of a sparse matrix: ids as int32, workspaces; and the shapes of results."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.csr import Csr
from jax_gnn._core.ids import MAX_SIZE, at_most, clip_ids
from jax_gnn._core.op import Operand


def csr_operands(csr: Csr, num_cols: int) -> tuple[list[Operand], dict[str, Any]] | None:
    """Index operands of a kernel; those that are absent get another in their place.

    None where no kernel serves: a gather, or ids that do not fit int32.
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
    """Makes ids int32; those out of range stay so, on their side."""
    if ids.dtype == np.int32:
        return ids
    return Operand.of(lambda wide: clip_ids(wide, size).astype(jnp.int32), ids)


def block_workspace(blocks: int, width: int, acc: Any) -> jax.ShapeDtypeStruct:
    """What so many blocks leave to others; as workspace_bytes in segments.h."""
    block_bytes = 64 + 2 * (-(-2 * width * acc.itemsize // 16) * 16)
    return jax.ShapeDtypeStruct((blocks, block_bytes), np.uint8)


# Blocks that share the entries of a sum without a schedule, more than devices have at once, and
# entries of one: of few teams a step.
_MOST_BLOCKS, _LEAST_ENTRIES = 1024, 16


def unscheduled_workspace(csr: Csr, width: int, dtype: Any) -> jax.ShapeDtypeStruct:
    """Of a sum without a schedule, whose runs have so many numbers."""
    return block_workspace(max_blocks(csr), width, np.dtype(accumulator_dtype(dtype)))


def max_blocks(csr: Csr) -> int:
    """That share the entries of a sum without a schedule."""
    # Not min and max, as sizes may be symbolic.
    needed = jax.core.max_dim(1, -(-csr.count // _LEAST_ENTRIES))
    return jax.core.min_dim(_MOST_BLOCKS, needed)


# --- Shapes of results ---------------------------------------------------------------------------


def per_row(operands: Any, **attributes: Any) -> jax.ShapeDtypeStruct:
    """A row for each of the matrix, with the features of the first operand."""
    del attributes
    x = operands[0]
    return jax.ShapeDtypeStruct((operands.matrix.by_row.num_rows, *x.shape[1:]), x.dtype)


def per_entry(operands: Any, *, heads: int, **attributes: Any) -> jax.ShapeDtypeStruct:
    """A number for each entry of the matrix and head."""
    del attributes
    dtype = accumulator_dtype(operands[0].dtype)
    return jax.ShapeDtypeStruct((operands.matrix.by_row.count, heads), dtype)


def like_first(operands: Any, **attributes: Any) -> jax.ShapeDtypeStruct:
    """A result like the first operand."""
    del attributes
    return jax.ShapeDtypeStruct(operands[0].shape, operands[0].dtype)
