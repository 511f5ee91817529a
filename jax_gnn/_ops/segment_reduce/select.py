"""Sums and dots over the entries that attain a row's maximum: derivatives of maximum and minimum.

* ``segment_select``, a sum over the entries whose message is the row's maximum. Its transposes are
  itself with rows and columns swapped, and
* ``sddmm_select``, the dot of the features that are the row's maximum.

Both primitives compare keys of rows and of columns, one of which is the result of a reduction.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import row_width
from jax_gnn._core.batching import batch_features
from jax_gnn._core.csr import SparseMatrix, orient_by_weights
from jax_gnn._core.kernels import csr_operands, per_entry, per_row
from jax_gnn._core.op import Bind, Call, Op, Operand
from jax_gnn._ops.matrix_sharding import matrix_sharding
from jax_gnn._ops.segment_reduce import xla
from jax_gnn._ops.segment_reduce.schedule import FAMILY, plan


class Selection(NamedTuple):
    """Operands of ``segment_select``.

    It sums ``factor[e] · value[cols[e]]``, where None is 1, over the features of a row's entries
    for which ``weight[e] · row_key[r] = col_key[cols[e]]`` if ``weight_on_row``, or else
    ``row_key[r] = weight[e] · col_key[cols[e]]``.
    """

    row_key: Any
    col_key: Any
    value: Any
    weight: Any
    factor: Any
    matrix: SparseMatrix


class SelectedDots(NamedTuple):
    """Operands of ``sddmm_select``: ``sddmm`` over the selected features."""

    a: Any
    b: Any
    row_key: Any
    col_key: Any
    weight: Any
    matrix: SparseMatrix


def _select_call(
    platform: str, operands: Selection, *, weight_on_row: bool, heads: int
) -> Call | None:
    row_key, col_key, value, weight, factor, matrix = operands
    csr = matrix.by_row
    if csr.rows is None and csr.cols is not None and platform == "cpu":
        # XLA would fuse the comparison with what makes the row keys, round these anew, and find
        # none that equals the extreme. A kernel reads the rows that the reduction read.
        rows = Operand.of(lambda cols: jnp.arange(cols.shape[0], dtype=np.int32), csr.cols)
        csr = replace(csr, rows=rows)
    index = csr_operands(csr, col_key.shape[0])
    if index is None:
        return None
    ids, flags = index
    schedule, workspaces = plan("segment_select", csr, col_key)
    flags |= {
        "has_value": np.bool_(value is not None),
        "weighted": np.bool_(weight is not None),
        "factored": np.bool_(factor is not None),
        "weight_on_row": np.bool_(weight_on_row),
        "heads": np.int64(heads),
    }
    optional = [operand or col_key for operand in (value, weight, factor)]
    return Call([row_key, col_key, *optional, *ids], flags | schedule, workspaces)


def _sddmm_select_call(
    platform: str, operands: SelectedDots, *, weight_on_row: bool, heads: int
) -> Call | None:
    a, b, row_key, col_key, weight, matrix = operands
    index = csr_operands(matrix.by_row, b.shape[0])
    if index is None:
        return None
    ids, flags = index
    flags |= {
        "weighted": np.bool_(weight is not None),
        "weight_on_row": np.bool_(weight_on_row),
        "heads": np.int64(heads),
    }
    return Call([a, b, row_key, col_key, weight or a, *ids], flags)


# The transpose swaps rows and columns, and so the side of the comparison that is weighted.
def _select_transpose_value(bind: Bind, ct: Array, operands: Selection) -> Array:
    row_key, col_key, _, weight, factor, matrix = operands
    flipped = Selection(col_key, row_key, ct, weight, factor, matrix.T)
    return cast(Array, bind(flipped, weight_on_row=not bind.attributes["weight_on_row"]))


def _select_transpose_factor(bind: Bind, ct: Array, operands: Selection) -> Array:
    row_key, col_key, value, weight, _, matrix = operands
    # Dots go through the half of the matrix that has entries in the order of the weights.
    (a, row_key), (b, col_key), oriented = orient_by_weights(
        (ct, row_key), (value, col_key), matrix
    )
    result: Array = sddmm_select(
        a,
        b,
        row_key,
        col_key,
        weight,
        oriented,
        weight_on_row=bind.attributes["weight_on_row"] ^ (oriented is not matrix),
        heads=bind.attributes["heads"],
    )
    return result


def _sddmm_select_transpose_a(bind: Bind, ct: Array, operands: SelectedDots) -> Array:
    _, b, row_key, col_key, weight, matrix = operands
    return cast(Array, segment_select(row_key, col_key, b, weight, ct, matrix, **bind.attributes))


def _sddmm_select_transpose_b(bind: Bind, ct: Array, operands: SelectedDots) -> Array:
    a, _, row_key, col_key, weight, matrix = operands
    flipped = dict(bind.attributes, weight_on_row=not bind.attributes["weight_on_row"])
    swapped = SelectedDots(None, a, col_key, row_key, weight, matrix.T)
    return _sddmm_select_transpose_a(replace(bind, attributes=flipped), ct, swapped)


def _flops(operands: Selection | SelectedDots, **attributes: object) -> int:
    return 2 * operands.matrix.by_row.count * row_width(operands.col_key)


# Attributes: weight_on_row, heads.
segment_select = Op(
    name="segment_select",
    operands=Selection,
    result=per_row,
    xla=xla.segment_select,
    call=_select_call,
    transpose={"value": _select_transpose_value, "factor": _select_transpose_factor},
    batch=functools.partial(batch_features, ("weight", "factor")),
    flops=_flops,
    family=FAMILY,
    sharding=matrix_sharding(
        {
            "row_key": "rows features",
            **dict.fromkeys(("col_key", "value"), "cols features"),
            **dict.fromkeys(("weight", "factor"), "weights h"),
        },
        "rows features",
    ),
)


# Attributes: weight_on_row, heads.
sddmm_select = Op(
    name="sddmm_select",
    operands=SelectedDots,
    result=per_entry,
    xla=xla.sddmm_select,
    call=_sddmm_select_call,
    transpose={"a": _sddmm_select_transpose_a, "b": _sddmm_select_transpose_b},
    batch=functools.partial(batch_features, ("weight",), per_entry=True),
    flops=_flops,
    sharding=matrix_sharding(
        {
            **dict.fromkeys(("a", "row_key"), "rows features"),
            **dict.fromkeys(("b", "col_key"), "cols features"),
            "weight": "weights h",
        },
        "entries h",
    ),
)
