"""The sort of ids: ``segment_order``, and the matrix of segments that are not sorted."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.batching import one_by_one
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.ids import at_most, ids_at, in_range
from jax_gnn._core.kernels import like_first
from jax_gnn._core.op import Bind, Call, Op, define
from jax_gnn._core.sharding import WHOLE, Sharding, whole
from jax_gnn._ops.segment_reduce import xla


class Ids(NamedTuple):
    """Operand of ``segment_order``: ``(entries,)``."""

    ids: Any


def _order_call(platform: str, operands: Ids, *, num_segments: int) -> Call | None:
    del platform
    if jax.export.is_symbolic_dim(num_segments):  # the kernel counts ids into as many buckets
        return None
    return Call([operands.ids], {"num_segments": np.int64(num_segments)})


def _order_batch(bind: Bind, operands: Ids, batched: Ids, size: int) -> Array:
    del batched  # there is only one operand
    ids = operands.ids
    num_segments, count = bind.attributes["num_segments"], ids.shape[1]
    block = num_segments + 1  # the last is for padding
    limit = jnp.iinfo(ids.dtype).max
    if not all(at_most(size * each, limit) for each in (block, count)):
        return one_by_one(bind, operands)
    number = jnp.arange(size, dtype=ids.dtype)[:, None]
    ids = jnp.where(in_range(ids, num_segments), ids, num_segments) + number * block
    order = bind(Ids(ids.ravel()), num_segments=size * block)
    return order.reshape(size, count) - number * count


# The stable order of ids, those out of range last. No kernel on a GPU, where XLA's is fast.
segment_order = define(
    Op(
        name="segment_order",
        operands=Ids,
        result=like_first,
        xla=xla.segment_order,
        platforms=("cpu",),
        call=_order_call,
        transpose={},
        batch=_order_batch,
        sharding=lambda *_, **attributes: Sharding(
            [WHOLE], [WHOLE], lambda bind, operands, pieces: bind(operands)
        ),
    )
)


def sort_ids(ids: Array, size: int, implementation: str | None = None) -> tuple[Array, Array]:
    """Sorts ids stably, those out of range last: (sorted ids, where each of them was)."""
    ids = whole(ids)
    ids = jnp.where(in_range(ids, size), ids, size)
    order = segment_order(ids, num_segments=size, implementation=implementation)
    return ids_at(ids, order), order


def sorted_segments(
    ids: Array, num_segments: int, is_sorted: bool, implementation: str | None = None
) -> SparseMatrix:
    """The matrix of a reduction of ``(len(ids), features)`` into segments, sorted if need be."""
    if is_sorted:
        return segments(ids, num_segments)
    rows, order = sort_ids(ids, num_segments, implementation)
    by_segment = Csr(rows, order, num_rows=num_segments, resorted=True)
    return SparseMatrix(by_segment, segments(ids, num_segments).by_col)
