"""The sort of ids, by a kernel on CPUs and GPUs that reads only the bits that ids have."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.batching import map_batch
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.ids import at_most, in_range, take_ids
from jax_gnn._core.kernels import like_first
from jax_gnn._core.op import Bind, Call, Op
from jax_gnn._core.sharding import UNSPLIT, Sharding, replicate


class Ids(NamedTuple):
    """Operand of ``segment_order``: ids ``(entries,)``."""

    ids: Any


def _xla(ids: Array, *, num_segments: int) -> Array:
    ids = jnp.where(in_range(ids, num_segments), ids, num_segments)
    # On TPUs and GPUs XLA is faster with unsigned keys, and with narrow ones.
    narrow = (f"uint{bits}" for bits in (8, 16) if at_most(num_segments, (1 << bits) - 1))
    keys = ids.astype(next(narrow, f"u{ids.dtype}"))
    steps = jnp.arange(ids.shape[0], dtype=ids.dtype)
    return jax.lax.sort((keys, steps), num_keys=1, is_stable=True)[1]


def _call(platform: str, operands: Ids, *, num_segments: int) -> Call | None:
    (ids,) = operands
    count = ids.shape[0]
    if any(map(jax.export.is_symbolic_dim, (count, num_segments))):
        return None
    parts = min(-(-count // _TILE), _MAX_PARTS)
    size = 3 * count + (parts << _DIGIT_BITS) if platform == "cuda" else 0
    scratch = jax.ShapeDtypeStruct((size,), ids.dtype)  # as segment_order_scratch in C++
    return Call([ids], {"num_segments": np.int64(num_segments)}, [scratch])


_TILE, _MAX_PARTS, _DIGIT_BITS = 4096, 128, 9  # constants of the kernel


def _batch(bind: Bind, operands: Ids, batched: Ids, size: int) -> Array:
    ids = operands.ids  # the only operand, which is batched
    num_segments, count = bind.attributes["num_segments"], ids.shape[1]
    block = num_segments + 1  # one segment more, for padding
    limit = np.iinfo(ids.dtype).max
    if not (at_most(size * block, limit) and at_most(size * count, limit)):
        return cast(Array, map_batch(bind, operands))
    number = jnp.arange(size, dtype=ids.dtype)[:, None]
    ids = jnp.where(in_range(ids, num_segments), ids, num_segments) + number * block
    order = bind(Ids(ids.ravel()), num_segments=size * block)
    return cast(Array, order.reshape(size, count) - number * count)


# The stable order of ids, with ids out of range last.
segment_order = Op(
    name="segment_order",
    operands=Ids,
    result=like_first,
    xla=_xla,
    call=_call,
    batch=_batch,
    sharding=lambda *_, **attributes: Sharding(
        [UNSPLIT], [UNSPLIT], lambda bind, operands, pieces: bind(operands)
    ),
)


def sorted_ids(ids: Array, bound: int, implementation: str | None = None) -> tuple[Array, Array]:
    """Return ids in ascending order, and their positions; the sort is stable.

    Args:
        ids: ``(count,)``.
        bound: ids outside ``[0, bound)`` become ``bound``, and come last.
        implementation: of the sort, for tests.
    """
    ids = replicate(ids)
    ids = jnp.where(in_range(ids, bound), ids, bound)
    order = segment_order(ids, num_segments=bound, implementation=implementation)
    return take_ids(ids, order), order


def sorted_segments(ids: Array, num_segments: int, is_sorted: bool) -> SparseMatrix:
    """Return the matrix of a reduction into segments, whose ids are sorted first if need be."""
    if is_sorted:
        return segments(ids, num_segments)
    rows, order = sorted_ids(ids, num_segments)
    by_segment = Csr(rows, order, num_rows=num_segments, resorted=True)
    return SparseMatrix(by_segment, segments(ids, num_segments).by_col)
