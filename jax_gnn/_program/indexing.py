"""Rows indexed by constants, whose gradients have one order of sums.

XLA's scatter-add, which transposes a gather, adds in any order on a GPU. Indices that are known
have a table: for each number of a row, the places which read it. The gradient is a sum over that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import GatherScatterMode

from jax_gnn._core.linear import Linear

_LARGEST = 1 << 16
"""Most numbers of the table; beyond, indices are left to XLA."""

Indices = tuple[int, ...]


def _taken(known: Any, moving: Sequence[Any], *, ids: Indices, size: int) -> list[Array]:
    del known, size
    return [moving[0][np.asarray(ids)]]


def _summed(known: Any, moving: Sequence[Any], *, ids: Indices, size: int) -> list[Array]:
    (x,) = moving
    table, is_place = _table(ids, size)
    rows = x[table]
    mask = is_place.reshape(*is_place.shape, *[1] * (x.ndim - 1))
    return [jnp.sum(jnp.where(mask, rows, jnp.zeros((), x.dtype)), 1, dtype=x.dtype)]


def _table(ids: Indices, size: int) -> tuple[np.ndarray, np.ndarray]:
    """``(size, most)``, the places of each id, and which of these there are."""
    counts = np.bincount(ids, minlength=size)
    order = np.argsort(ids, kind="stable")
    at = (np.cumsum(counts) - counts)[:, None] + np.arange(max(counts.max(initial=0), 1))
    is_place = np.arange(at.shape[1]) < counts[:, None]
    return order[np.where(is_place, at, 0)], is_place


def _shape(count: int, moving: Sequence[Any]) -> list[Any]:
    return [jax.ShapeDtypeStruct((count, *moving[0].shape[1:]), moving[0].dtype)]


def _transposed_take(known: Any, moving: Any, cts: Any, **attributes: Any) -> list[Array]:
    return add_places(known, cts, **attributes)


def _transposed_add(known: Any, moving: Any, cts: Any, **attributes: Any) -> list[Array]:
    return take_places(known, cts, **attributes)


take_places = Linear(
    name="take_places",
    result=lambda known, moving, *, ids, size: _shape(len(ids), moving),
    function=_taken,
    transpose=_transposed_take,
)
add_places = Linear(
    name="add_places",
    result=lambda known, moving, *, ids, size: _shape(size, moving),
    function=_summed,
    transpose=_transposed_add,
)


def indexed(
    shape: Sequence[int], indices: np.ndarray, params: Any
) -> Callable[[Array], Array] | None:
    """A gather along one axis as a function of a row; None where it is left to XLA.

    Args:
        shape: The shape of the row.
        indices: The constant indices, with an axis of size 1 at the end.
        params: The parameters of the gather.
    """
    numbers = params["dimension_numbers"]
    if len(numbers.start_index_map) != 1 or numbers.operand_batching_dims:
        return None
    (axis,) = numbers.start_index_map
    whole = tuple(1 if i == axis else size for i, size in enumerate(shape))
    if numbers.collapsed_slice_dims != (axis,) or tuple(params["slice_sizes"]) != whole:
        return None
    size, ids = shape[axis], indices[..., 0]
    if params["mode"] is GatherScatterMode.CLIP:
        ids = np.clip(ids, 0, max(size - 1, 0))
    if not ids.size or ids.min() < 0 or ids.max() >= size:
        return None
    if size * np.bincount(ids.ravel()).max() > _LARGEST:
        return None
    of_indices = ids.shape
    rest = [n for i, n in enumerate(shape) if i != axis]
    rank = len(of_indices) + len(rest)
    after = list(numbers.offset_dims)
    order = [i for i in range(rank) if i not in after] + after
    flat = tuple(ids.ravel().tolist())

    def function(x: Array) -> Array:
        rows = jnp.moveaxis(x, axis, 0).reshape(size, math.prod(rest))
        (found,) = take_places((), (rows,), ids=flat, size=size)
        return found.reshape(*of_indices, *rest).transpose(np.argsort(order))

    return function
