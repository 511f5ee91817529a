"""The reduction of entries into rows, and the linear primitives that a sum's derivatives are.

A sum or mean is linear in the features and in the weights: its transposes are itself with the views
swapped, and ``sddmm``. Where both have tangents, or want gradients, one primitive does both.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn import _ffi
from jax_gnn.segments import _nonlinear, _xla
from jax_gnn.segments._batching import batch, batch_apart
from jax_gnn.segments._kernels import like_first, per_entry, per_row, scheduled, view_operands
from jax_gnn.views import (
    DTYPES,
    Views,
    accumulator_dtype,
    entrywise,
    flat,
    row_width,
    spread,
)

_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "logsumexp")  # as in segments.h


def _reduce_call(
    platform: str,
    x: _ffi.Operand,
    weight: _ffi.Operand | None,
    views: Views,
    *,
    reduce: str,
    heads: int,
) -> _ffi.Call | None:
    del platform, heads
    view = views.forward
    found = view_operands(view, x.shape[0])
    if found is None or x.dtype not in DTYPES:  # such as a complex bias's gradient
        return None
    ids, flags = found
    schedule, workspaces = scheduled("segment_reduce", view, x)
    flags |= {
        "reduce": np.int64(_REDUCTIONS.index(reduce)),
        "weighted": np.bool_(weight is not None),
    }
    return _ffi.Call([x, weight or x, *ids], flags | schedule, workspaces)


def _reduce_prefers_xla(
    platform: str,
    x: _ffi.Operand,
    weight: _ffi.Operand | None,
    views: Views,
    *,
    reduce: str,
    heads: int,
) -> bool:
    """On a CPU: unsorted ids, what is too small for a custom call, and rows of few entries."""
    del heads
    view, count, width = views.forward, x.shape[0], row_width(x)
    if platform != "cpu" or weight is not None or reduce == "logsumexp":
        return False
    if views.unsorted is not None:
        return True
    if view.cols is not None or reduce == "mean":
        return False
    # Few entries to a row do not pay for going through wide rows in tiles, nor for widening.
    costly = (width >= 256 and count * width >= 2**21) or (width < 8 and x.dtype.itemsize == 2)
    few = count < 4 * view.num_rows
    return (few and costly) or (count + view.num_rows) * width < 2**13


def _reduce_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    rules = {
        "max": _nonlinear.extremum_jvp,
        "min": _nonlinear.extremum_jvp,
        "prod": _nonlinear.prod_jvp,
        "logsumexp": _nonlinear.logsumexp_jvp,
    }
    return rules.get(bind.attributes["reduce"], _sum_jvp)(bind, primals, tangents)


def _sum_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    dx, dweight, _ = tangents
    if dx is None or dweight is None:
        return _ffi.multilinear_jvp((0, 1), bind, primals, tangents)
    x, weight, views = primals
    tangent = segment_reduce_jvp(
        *(x, weight, dx, dweight, views), **bind.attributes, implementation=bind.implementation
    )
    return bind(*primals), tangent


def _reduce_transpose_x(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    _, weight, views = operands
    return bind(_divide_by_counts(bind, ct, views), weight, views.swapped, reduce="sum")


def _reduce_transpose_weight(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    x, _, views = operands
    ct, heads = _divide_by_counts(bind, ct, views), bind.attributes["heads"]
    return _gradient_to_weight(x, ct, views, heads, implementation=bind.implementation)


def _divide_by_counts(bind: _ffi.Bind, ct: Array, views: Views) -> Array:
    if bind.attributes["reduce"] == "sum":
        return ct
    acc = accumulator_dtype(ct.dtype)
    counts = total(jnp.ones((views.backward.num_rows,), acc), views, bind.implementation)
    return (ct.astype(acc) / spread(jnp.maximum(counts, 1), ct)).astype(ct.dtype)


# (x, weight or None, views, *, reduce, heads): x is (rows, *features) as users gave it, since plain
# XLA copies what was made a matrix. Of a weight, which is (entries, heads) in the accumulator type,
# it is (rows, features).
segment_reduce = _ffi.define_primitive(
    "segment_reduce",
    _ffi.Rules(
        result=per_row,
        xla=_xla.segment_reduce,
        call=_reduce_call,
        prefers_xla=_reduce_prefers_xla,
        jvp=_reduce_jvp,
        transpose={0: _reduce_transpose_x, 1: _reduce_transpose_weight},
        batch=functools.partial(batch, (1,)),
    ),
)


def total(x: Array, views: Views, implementation: str | None = None) -> Array:
    """The sums of rows of x."""
    return segment_reduce(x, None, views, reduce="sum", heads=1, implementation=implementation)


def gather(x: Array, views: Views, implementation: str | None = None) -> Array:
    """The transpose of :func:`total`: rows of x for each entry, zeros for padding."""
    return total(x, views.swapped, implementation)


def reduce_messages(
    x: Array,
    weight: Array | None,
    views: Views,
    reduce: str,
    implementation: str | None = None,
) -> Array:
    """Reduces ``(rows, *features)`` with weights ``(entries, heads)`` of the first axis."""
    dtype = x.dtype
    if weight is not None and reduce in ("max", "min"):
        x = x.astype(accumulator_dtype(dtype))  # else rounding would hide which was the maximum
    result = segment_reduce(
        *(x if weight is None else flat(x), weight, views),
        reduce=reduce,
        heads=1 if weight is None else weight.shape[1],
        implementation=implementation,
    )
    return result.astype(dtype).reshape(views.forward.num_rows, *x.shape[1:])


# --- Dots ----------------------------------------------------------------------------------------


def _sddmm_call(
    platform: str, a: _ffi.Operand, b: _ffi.Operand, views: Views, *, heads: int
) -> _ffi.Call | None:
    del platform
    found = view_operands(views.forward, b.shape[0])
    if found is None:
        return None
    (rows, cols, _), flags = found
    return _ffi.Call([a, b, rows, cols], {"gather": flags["gather"], "heads": np.int64(heads)})


def _sddmm_transpose_a(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    _, b, views = operands
    heads = bind.attributes["heads"]
    return segment_reduce(
        b, ct, views, reduce="sum", heads=heads, implementation=bind.implementation
    )


def _sddmm_transpose_b(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    a, _, views = operands
    return _sddmm_transpose_a(bind, ct, (None, a, views.swapped))


# (a, b, views, *, heads): a belongs to the rows of the forward view, b to its columns.
sddmm = _ffi.define_primitive(
    "sddmm",
    _ffi.Rules(
        result=per_entry,
        xla=_xla.sddmm,
        call=_sddmm_call,
        transpose={0: _sddmm_transpose_a, 1: _sddmm_transpose_b},
        batch=functools.partial(batch, (), per_entry=True),
    ),
)


# --- Both tangents and both gradients of a weighted sum or mean ----------------------------------

# Each is the other's transpose, and their derivatives in the other operands are sums of
# segment_reduce and sddmm.


def _vjp_call(
    platform: str, x: _ffi.Operand, weight: _ffi.Operand, ct: _ffi.Operand, views: Views
) -> _ffi.Call | None:
    view = views.backward
    found = view_operands(view, ct.shape[0])
    if platform != "cuda" or found is None:
        return None
    ids, flags = found
    schedule, workspaces = scheduled("segment_reduce", view, ct)
    return _ffi.Call([ct, weight, x, *ids], flags | schedule, workspaces)


def _both_tangents(
    x: Array, weight: Array, dx: Array, dweight: Array, views: Views, **attributes: Any
) -> Array:
    return segment_reduce(dx, weight, views, **attributes) + segment_reduce(
        x, dweight, views, **attributes
    )


def _both_gradients(
    x: Array, weight: Array, ct: Array, views: Views, **options: Any
) -> list[Array]:
    return [
        _gradient_to_x(weight, ct, views, **options),
        _gradient_to_weight(x, ct, views, weight.shape[1], **options),
    ]


def _gradient_to_x(weight: Array, ct: Array, views: Views, **options: Any) -> Array:
    heads = weight.shape[1]
    return segment_reduce(ct, weight, views.swapped, reduce="sum", heads=heads, **options)


def _gradient_to_weight(x: Array, ct: Array, views: Views, heads: int, **options: Any) -> Array:
    a, b, views = entrywise(ct, x, views)
    return sddmm(a, b, views, heads=heads, **options)


def _both_tangents_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    x, weight, dx, dweight, views = primals
    to_x, to_weight, to_dx, to_dweight, _ = tangents
    sums = functools.partial(segment_reduce, **bind.attributes, implementation=bind.implementation)
    terms = [
        sums(values, weights, views)
        for values, weights in (
            (to_x, dweight),
            (dx, to_weight),
            (to_dx, weight),
            (x, to_dweight),
        )
        if values is not None and weights is not None
    ]
    return bind(*primals), functools.reduce(operator.add, terms) if terms else None


def _both_tangents_transpose(
    bind: _ffi.Bind, ct: Array, operands: Sequence[Any]
) -> tuple[Array, Array]:
    x, weight, *_, views = operands
    ct = _divide_by_counts(bind, ct, views)
    to_x, to_weight = segment_reduce_vjp(x, weight, ct, views, implementation=bind.implementation)
    return to_x, to_weight


def _both_gradients_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Array], list[Array]]:
    x, weight, ct, views = primals
    dx, dweight, dct, _ = tangents
    options = {"implementation": bind.implementation}
    zeros = [jnp.zeros_like(x), jnp.zeros_like(weight)]
    to_x, to_weight = zeros if dct is None else bind(x, weight, dct, views)
    if dweight is not None:
        to_x += _gradient_to_x(dweight, ct, views, **options)
    if dx is not None:
        to_weight += _gradient_to_weight(dx, ct, views, weight.shape[1], **options)
    return bind(*primals), [to_x, to_weight]


def _both_gradients_transpose(
    bind: _ffi.Bind, cts: Sequence[Array | None], operands: Sequence[Any]
) -> Array:
    x, weight, _, views = operands
    to_x, to_weight = cts
    attributes = {"reduce": "sum", "heads": weight.shape[1], "implementation": bind.implementation}
    if to_x is None:
        return segment_reduce(x, to_weight, views, **attributes)
    if to_weight is None:
        return segment_reduce(to_x, weight, views, **attributes)
    return segment_reduce_jvp(x, weight, to_x, to_weight, views, **attributes)


# (x, weight, dx, dweight, views, *, reduce, heads): the derivative of a sum or mean in both.
segment_reduce_jvp = _ffi.define_primitive(
    "segment_reduce_jvp",
    _ffi.Rules(
        result=per_row,
        xla=_both_tangents,
        call=lambda platform, *operands, **attributes: None,
        jvp=_both_tangents_jvp,
        transpose={(2, 3): _both_tangents_transpose},
        batch=functools.partial(batch_apart, _both_tangents),
    ),
)


# (x, weight, ct, views): the gradients of a sum to x and to weight.
segment_reduce_vjp = _ffi.define_primitive(
    "segment_reduce_vjp",
    _ffi.Rules(
        result=lambda x, weight, ct, views: [like_first(x), like_first(weight)],
        xla=_both_gradients,
        call=_vjp_call,
        jvp=_both_gradients_jvp,
        transpose={2: _both_gradients_transpose},
        batch=functools.partial(batch_apart, _both_gradients),
        several=True,
    ),
)
