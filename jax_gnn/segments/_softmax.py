"""The softmax over segments of sorted entries, and its derivative, which is its own transpose."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn import _ffi
from jax_gnn.segments import _xla
from jax_gnn.segments._batching import all_batched, batch, disjoint_union
from jax_gnn.segments._kernels import MAX_SIZE, like_first, scheduled, view_operands
from jax_gnn.segments._nonlinear import not_padding
from jax_gnn.segments._reduce import gather, total
from jax_gnn.views import accumulator_dtype, column, in_range


def _softmax_call(platform: str, *operands: Any) -> _ffi.Call | None:
    """For the softmax and its tangent."""
    del platform
    *arrays, views = operands
    view = views.forward
    found = view_operands(view, view.count)
    if found is None:
        return None
    (rows, *_), _ = found
    num_rows = view.num_rows
    if jax.export.is_symbolic_dim(num_rows):  # which is no attribute: marks what is past it
        num_rows = MAX_SIZE
        rows = rows.map(lambda ids: jnp.where(ids < view.num_rows, ids, MAX_SIZE), np.int32)
    _, workspaces = scheduled("softmax", view, arrays[0])
    return _ffi.Call([*arrays, rows], {"num_rows": np.int64(num_rows)}, workspaces)


def _softmax_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    y = bind(*primals)
    views = primals[-1]
    return y, segment_softmax_tangent(y, tangents[0], views, implementation=bind.implementation)


def _softmax_tangent_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    y, t, views = primals
    dy, dt, _ = tangents
    terms = [] if dt is None else [bind(y, dt, views)]
    if dy is not None:
        counted = column(not_padding(views))
        y, t, dy = (jnp.where(counted, z, 0).astype(accumulator_dtype(z.dtype)) for z in (y, t, dy))

        def mean(p: Array) -> Array:
            sums = total(p * t, views, bind.implementation)
            return gather(sums, views, bind.implementation)

        terms.append((dy * (t - mean(y)) - y * mean(dy)).astype(primals[0].dtype))
    return bind(*primals), functools.reduce(operator.add, terms) if terms else None


def _softmax_tangent_transpose(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    y, _, views = operands
    return bind(y, ct, views)


def _softmax_batch(
    fill: float, bind: _ffi.Bind, operands: Sequence[Any], batched: Sequence[Any], size: int
) -> Array:
    if not any(jax.tree.leaves(batched[-1])):
        return batch((), bind, operands, batched, size)
    # There are no columns to mark padding in: it gets values that change nothing.
    *values, views = all_batched(operands, batched, size)
    valid = in_range(views.forward.rows, views.forward.num_rows)[:, :, None]
    values = [jnp.where(valid, value, fill) for value in values]
    operands = (*values, views)
    result = disjoint_union(bind, operands, jax.tree.map(lambda _: True, operands), size)
    return jnp.where(valid, result, 0)


# (x, views): the softmax over each segment of sorted entries.
segment_softmax = _ffi.define_primitive(
    "segment_softmax",
    _ffi.Rules(
        result=like_first,
        xla=_xla.segment_softmax,
        call=_softmax_call,
        jvp=_softmax_jvp,
        transpose={},
        batch=functools.partial(_softmax_batch, -np.inf),
    ),
)


# (y, t, views): y · (t - sum of the segment's y · t).
segment_softmax_tangent = _ffi.define_primitive(
    "segment_softmax_tangent",
    _ffi.Rules(
        result=like_first,
        xla=_xla.segment_softmax_tangent,
        call=_softmax_call,
        jvp=_softmax_tangent_jvp,
        transpose={1: _softmax_tangent_transpose},
        batch=functools.partial(_softmax_batch, 0.0),
    ),
)
