"""What kernels of segments get: ids as int32, a schedule, a workspace; and what they give."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn import _ffi, _index, schedules
from jax_gnn.views import View, accumulator_dtype, row_width

MAX_SIZE = 2**31 - 1  # kernels take int32 ids


def view_operands(view: Any, num_cols: int) -> tuple[list[_ffi.Operand], dict[str, Any]] | None:
    """Index operands of a kernel; those that are absent get another in their place.

    None where no kernel serves: a gather, or ids that do not fit int32.
    """
    sizes = view.num_rows, num_cols, view.count
    if view.rows is None:
        return None
    if view.rows.dtype != np.int32 and not all(_index.at_most(n, MAX_SIZE - 1) for n in sizes):
        return None
    attributes = {
        "gather": np.bool_(view.cols is not None),
        "ordered": np.bool_(view.order is not None),
    }
    ids = [
        narrow(ids or view.rows, size)
        for ids, size in zip((view.rows, view.cols, view.order), sizes, strict=True)
    ]
    return ids, attributes


def narrow(ids: _ffi.Operand, size: int) -> _ffi.Operand:
    """Makes ids int32; those out of range stay so, on their side."""
    if ids.dtype == np.int32:
        return ids
    return ids.map(lambda wide: _index.bounded(wide, size).astype(jnp.int32), np.int32)


def scheduled(op: str, view: View, x: _ffi.Operand) -> tuple[Any, list[Any]]:
    """The schedule's attributes, and the workspace."""
    schedule = schedules.choose(
        op,
        count=view.count,
        num_rows=view.num_rows,
        width=row_width(x),
        itemsize=np.dtype(x.dtype).itemsize,
        gather=view.cols is not None,
        max_degree=view.max_degree,
    )
    attributes = {
        "parallel": np.bool_(schedule.parallel),
        "lanes": np.int64(schedule.lanes),
        "threads": np.int64(schedule.threads),
    }
    teams = schedule.threads // schedule.lanes
    # Not min and max, as sizes may be symbolic.
    blocks = jax.core.min_dim(schedule.blocks, jax.core.max_dim(1, -(-view.count // teams)))
    return attributes, [workspace_of(blocks, row_width(x), np.dtype(accumulator_dtype(x.dtype)))]


def workspace_of(blocks: int, width: int, acc: Any) -> jax.ShapeDtypeStruct:
    """What so many blocks leave to others; as workspace_bytes in segments.h."""
    block_bytes = 64 + 2 * (-(-2 * width * acc.itemsize // 16) * 16)
    return jax.ShapeDtypeStruct((blocks, block_bytes), np.uint8)


def per_row(x: Any, *others: Any, **attributes: Any) -> jax.ShapeDtypeStruct:
    """The result of a reduction."""
    del attributes
    views = others[-1]
    return jax.ShapeDtypeStruct((views.forward.num_rows, *x.shape[1:]), x.dtype)


def per_entry(x: Any, *others: Any, heads: int, **attributes: Any) -> jax.ShapeDtypeStruct:
    """The result of dots."""
    del attributes
    views = others[-1]
    return jax.ShapeDtypeStruct((views.forward.count, heads), accumulator_dtype(x.dtype))


def like_first(x: Any, *others: Any, **attributes: Any) -> jax.ShapeDtypeStruct:
    """A result like the first operand."""
    del others, attributes
    return jax.ShapeDtypeStruct(x.shape, x.dtype)
