"""Sums and dots over what is the row's maximum: the derivatives of maximum and minimum.

Both primitives compare keys of rows and of columns, one of which is the result of a reduction.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax import Array

from jax_gnn import _ffi
from jax_gnn.segments import _xla
from jax_gnn.segments._batching import batch
from jax_gnn.segments._kernels import per_entry, per_row, scheduled, view_operands
from jax_gnn.views import Views, entrywise


def _select_call(
    platform: str,
    row_key: _ffi.Operand,
    col_key: _ffi.Operand,
    value: _ffi.Operand | None,
    weight: _ffi.Operand | None,
    factor: _ffi.Operand | None,
    views: Views,
    *,
    weight_on_row: bool,
    heads: int,
) -> _ffi.Call | None:
    del platform
    view = views.forward
    found = view_operands(view, col_key.shape[0])
    if found is None:
        return None
    ids, flags = found
    schedule, workspaces = scheduled("segment_select", view, col_key)
    flags |= {
        "has_value": np.bool_(value is not None),
        "weighted": np.bool_(weight is not None),
        "factored": np.bool_(factor is not None),
        "weight_on_row": np.bool_(weight_on_row),
        "heads": np.int64(heads),
    }
    optional = [operand or col_key for operand in (value, weight, factor)]
    return _ffi.Call([row_key, col_key, *optional, *ids], flags | schedule, workspaces)


def _sddmm_select_call(
    platform: str,
    a: _ffi.Operand,
    b: _ffi.Operand,
    row_key: _ffi.Operand,
    col_key: _ffi.Operand,
    weight: _ffi.Operand | None,
    views: Views,
    *,
    weight_on_row: bool,
    heads: int,
) -> _ffi.Call | None:
    del platform
    found = view_operands(views.forward, b.shape[0])
    if found is None:
        return None
    ids, flags = found
    flags |= {
        "weighted": np.bool_(weight is not None),
        "weight_on_row": np.bool_(weight_on_row),
        "heads": np.int64(heads),
    }
    return _ffi.Call([a, b, row_key, col_key, weight or a, *ids], flags)


def _select_transpose_value(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    row_key, col_key, _, weight, factor, views = operands
    flipped = not bind.attributes["weight_on_row"]
    return bind(col_key, row_key, ct, weight, factor, views.swapped, weight_on_row=flipped)


def _select_transpose_factor(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    row_key, col_key, value, weight, _, views = operands
    on_rows, on_cols, in_order = entrywise((ct, row_key), (value, col_key), views)
    return sddmm_select(
        *(on_rows[0], on_cols[0], on_rows[1], on_cols[1], weight, in_order),
        weight_on_row=bind.attributes["weight_on_row"] ^ (in_order is not views),
        heads=bind.attributes["heads"],
        implementation=bind.implementation,
    )


def _sddmm_select_transpose_a(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    _, b, row_key, col_key, weight, views = operands
    return segment_select(
        *(row_key, col_key, b, weight, ct, views),
        **bind.attributes,
        implementation=bind.implementation,
    )


def _sddmm_select_transpose_b(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    a, _, row_key, col_key, weight, views = operands
    flipped = dict(bind.attributes, weight_on_row=not bind.attributes["weight_on_row"])
    swapped = (None, a, col_key, row_key, weight, views.swapped)
    return _sddmm_select_transpose_a(replace(bind, attributes=flipped), ct, swapped)


# (row_key, col_key, value, weight, factor, views, *, weight_on_row, heads): the sum of
# factor[e] · value[cols[e]], where None is 1, over those features of the entries of a row for which
# weight[e] · row_key[r] = col_key[cols[e]], or else row_key[r] = weight[e] · col_key[cols[e]].
segment_select = _ffi.define_primitive(
    "segment_select",
    _ffi.Rules(
        result=per_row,
        xla=_xla.segment_select,
        call=_select_call,
        transpose={2: _select_transpose_value, 4: _select_transpose_factor},
        batch=functools.partial(batch, (3, 4)),
    ),
)


# (a, b, row_key, col_key, weight, views, *, weight_on_row, heads): sddmm over the features that
# segment_select selects.
sddmm_select = _ffi.define_primitive(
    "sddmm_select",
    _ffi.Rules(
        result=per_entry,
        xla=_xla.sddmm_select,
        call=_sddmm_select_call,
        transpose={0: _sddmm_select_transpose_a, 1: _sddmm_select_transpose_b},
        batch=functools.partial(batch, (4,), per_entry=True),
    ),
)
