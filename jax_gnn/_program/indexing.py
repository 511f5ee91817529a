"""Rows indexed by constants, with gradients that add up in one order.

XLA transposes a gather to a scatter-add, which adds in any order on a GPU. For constant indices,
the gradient is a sum over a table of the places that read each element instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import GatherScatterMode

from jax_gnn._core.linear import Linear
from jax_gnn._ops.edge_region.row_program import abstract_row

_MAX_TABLE = 1 << 16
"""Largest number of elements of the table; beyond, indices are left to XLA."""

Indices = tuple[int, ...]
Arrays = Sequence[Array]


def _take(constants: object, operands: Arrays, *, ids: Indices, size: int) -> list[Array]:
    del constants, size
    return [operands[0][np.asarray(ids)]]


def _add(constants: object, operands: Arrays, *, ids: Indices, size: int) -> list[Array]:
    (x,) = operands
    table, is_place = _table(ids, size)
    mask = is_place.reshape(*is_place.shape, *[1] * (x.ndim - 1))
    return [jnp.sum(jnp.where(mask, x[table], jnp.zeros((), x.dtype)), 1, dtype=x.dtype)]


def _table(ids: Indices, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``(size, n)`` the places of each id, and a mask of the valid ones."""
    counts = np.bincount(ids, minlength=size)
    order = np.argsort(ids, kind="stable")
    places = (np.cumsum(counts) - counts)[:, None] + np.arange(max(counts.max(initial=0), 1))
    is_place = np.arange(places.shape[1]) < counts[:, None]
    return order[np.where(is_place, places, 0)], is_place


def _shape(count: int, operands: Sequence[Any]) -> list[Any]:
    return [abstract_row((count, *operands[0].shape[1:]), operands[0].dtype)]


def _transpose_take(
    constants: object, operands: object, cotangents: Arrays, **attributes: Any
) -> list[Array]:
    return add_places(constants, cotangents, **attributes)


def _transpose_add(
    constants: object, operands: object, cotangents: Arrays, **attributes: Any
) -> list[Array]:
    return take_places(constants, cotangents, **attributes)


take_places = Linear(
    name="take_places",
    result=lambda constants, operands, *, ids, size: _shape(len(ids), operands),
    function=_take,
    transpose=_transpose_take,
)
add_places = Linear(
    name="add_places",
    result=lambda constants, operands, *, ids, size: _shape(size, operands),
    function=_add,
    transpose=_transpose_add,
)


def constant_gather(
    shape: Sequence[int], indices: np.ndarray, params: Any
) -> Callable[[Array], Array] | None:
    """Return a gather along one axis as a function of a row; None if it is left to XLA.

    Args:
        shape: Shape of the row.
        indices: The constant indices, with a last axis of size 1.
        params: Parameters of the gather.
    """
    numbers = params["dimension_numbers"]
    if len(numbers.start_index_map) != 1 or numbers.operand_batching_dims:
        return None
    (axis,) = numbers.start_index_map
    slice_sizes = tuple(1 if i == axis else size for i, size in enumerate(shape))
    if numbers.collapsed_slice_dims != (axis,) or tuple(params["slice_sizes"]) != slice_sizes:
        return None
    size, ids = shape[axis], indices[..., 0]
    if params["mode"] is GatherScatterMode.CLIP:
        ids = np.clip(ids, 0, max(size - 1, 0))
    if not ids.size or ids.min() < 0 or ids.max() >= size:
        return None
    if size * np.bincount(ids.ravel()).max() > _MAX_TABLE:
        return None
    # The gather's result has the axes of the indices, with those of the row between them.
    index_shape = ids.shape
    row_shape = [n for i, n in enumerate(shape) if i != axis]
    offset_dims = list(numbers.offset_dims)
    rank = len(index_shape) + len(row_shape)
    order = [i for i in range(rank) if i not in offset_dims] + offset_dims
    flat_ids = tuple(ids.ravel().tolist())

    def function(x: Array) -> Array:
        rows = jnp.moveaxis(x, axis, 0).reshape(size, math.prod(row_shape))
        (taken,) = take_places((), (rows,), ids=flat_ids, size=size)
        return taken.reshape(*index_shape, *row_shape).transpose(np.argsort(order))

    return function
