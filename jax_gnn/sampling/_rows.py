"""Nodes and their rows: of arrays that have one for each node, and of edges, where each starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._core import arguments
from jax_gnn._core.arrays import take
from jax_gnn._core.ffi import host_function
from jax_gnn._core.ids import MAX_SIZE, PADDING, clip_ids, in_range, namespace
from jax_gnn._core.public import public
from jax_gnn._core.triples import empty_vector
from jax_gnn.graph import Graph

_STEPS = 8  # of a search, until it is asked whether all have ended: a GPU tells the host each time

# --- Nodes ---------------------------------------------------------------------------------------


def one_kind(graph: Graph, whose: str = "") -> int:
    """How many nodes a graph has, which must not be bipartite; an error says whose it must be."""
    if graph.num_src != graph.num_dst:
        raise ValueError(
            f"graph must have one kind of nodes{whose}, got num_src={graph.num_src} and "
            f"num_dst={graph.num_dst}"
        )
    return graph.num_dst


def as_nodes(ids: Any, size: int, dtype: Any) -> Any:
    """Ids in the type of a graph, those out of range as padding; of an array of numpy it is one."""
    xp = namespace(ids)
    ids = np.clip(ids, -1, size) if xp is np else clip_ids(ids, size)
    ids = ids.astype(dtype)
    return xp.where(in_range(ids, size), ids, PADDING)


# --- Rows of edges -------------------------------------------------------------------------------


def row_bounds(indptr: Any, nodes: Any, num_edges: int) -> tuple[Any, Any]:
    """Where the rows of nodes start, and how long they are; padding has an empty one.

    Whatever ``indptr`` holds, they lie within the edges. Of arrays of numpy they are.
    """
    xp, num_nodes = namespace(indptr, nodes), indptr.shape[0] - 1
    if num_nodes == 0:  # all ids are padding
        none = xp.zeros(nodes.shape, indptr.dtype)
        return none, none
    there = in_range(nodes, num_nodes)
    place = xp.where(there, nodes, 0)
    starts = xp.clip(indptr[place], 0, num_edges)
    ends = xp.clip(indptr[place + 1], starts, num_edges)
    return starts, xp.where(there, ends - starts, 0)


def values_at(values: Any, places: Any) -> Any:
    """Return the values at places; any values where places are padding."""
    if namespace(values, places) is np:
        return values[np.maximum(places, 0)]
    return take(values, places)  # also of no values


def first_place(starts: Any, ends: Any, holds: Callable[[Any], Any]) -> Any:
    """The first place from which on something holds, by binary search; ``ends`` if nowhere.

    Of arrays of numpy it is one.

    Args:
        starts: ``(rows,)``, where to begin.
        ends: ``(rows,)``, where to end: the place before is the last one to look at.
        holds: tells of places, ``(rows,)``, whether it does.
    """
    xp = namespace(starts, ends)

    def once(bounds: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bounds
        goes_on = low < high
        middle = xp.where(goes_on, low + (high - low) // 2, 0)  # a place to look at
        found = holds(middle)
        return (
            xp.where(goes_on & ~found, middle + 1, low),
            xp.where(goes_on & found, middle, high),
        )

    if xp is np:
        bounds = starts, ends
        while (bounds[0] < bounds[1]).any():
            bounds = once(bounds)
        return bounds[0]

    def some(bounds: tuple[Any, Any]) -> tuple[Any, Any]:
        for _ in range(_STEPS):
            bounds = once(bounds)
        return bounds

    return jax.lax.while_loop(lambda bounds: (bounds[0] < bounds[1]).any(), some, (starts, ends))[0]


# --- Rows of values ------------------------------------------------------------------------------


@public
def fetch_rows(rows: np.ndarray, ids: Any, *, out: np.ndarray | None = None) -> np.ndarray:
    """``rows[ids]`` by compiled threads, zeros where an id is out of range; compiles nothing.

    Args:
        rows: ``(num_rows, *features)`` of any dtype, an array of numpy, such as a memory map: only
            the rows that are named are read.
        ids: ``(count,)`` integers. -1, as any id out of range, is padding.
        out: ``(count, *features)``, an array to write to in place of a new one. Where
            ``jax.device_put`` took it, it must not be used again before its copy is done; on a CPU
            there may be none, and JAX reads the array itself.

    Returns:
        ``(count, *features)`` of the dtype of ``rows``.

    Raises:
        TypeError: ``rows`` is no array of numpy, ``ids`` are no integers, or ``out`` is of another
            dtype.
        ValueError: ``rows`` is a scalar, ``ids`` is not one-dimensional, or ``out`` has another
            shape, or is not contiguous and writable.

    Example:
        >>> import numpy as np
        >>> fetch_rows(np.array([[1.0], [2.0], [3.0]]), [2, -1])
        array([[3.],
               [0.]])
    """
    if not isinstance(rows, np.ndarray) or rows.dtype.hasobject:
        kind = getattr(rows, "dtype", type(rows).__name__)
        raise TypeError(f"rows must be an array of numpy, of numbers, got {kind}")
    if rows.ndim == 0:
        raise ValueError("rows must have rows, got shape ()")
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int32 or ids.ndim != 1:
        ids = arguments.check_ids("ids", ids)
    shape = (len(ids), *rows.shape[1:])
    if out is None:
        out = empty_vector(math.prod(shape), rows.dtype).reshape(shape)
    elif not isinstance(out, np.ndarray) or out.dtype != rows.dtype:
        kind = getattr(out, "dtype", type(out).__name__)
        raise TypeError(f"out must be an array of numpy of {rows.dtype}, got {kind}")
    elif out.shape != shape or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"out must be contiguous, writable and of shape {shape}, got {out.shape}")
    if not out.size or not rows.size:
        out[...] = 0
    elif rows.flags.c_contiguous and len(rows) <= MAX_SIZE:
        if ids.dtype != np.int32:
            ids = np.where(in_range(ids, len(rows)), ids, PADDING).astype(np.int32)
        ids = np.ascontiguousarray(ids)
        host_function("gather_rows")(_as_bytes(rows), ids, _as_bytes(out))
    else:
        there = in_range(ids, len(rows))
        out[...] = rows[np.where(there, ids, 0)]
        out[~there] = 0
    return out


def _as_bytes(rows: np.ndarray) -> np.ndarray:
    return rows.view(np.ndarray).reshape(len(rows), -1).view(np.uint8)


def values_of(node_ids: Any, values: Any) -> Any:
    """The rows of values that nodes name, zeros for padding."""
    xp = namespace(node_ids, values)
    values = arguments.as_numbers("values", values, xp)
    if values.ndim == 0:
        raise ValueError("values must be (num_nodes, *features), got a scalar")
    if xp is np:
        rows: Any = fetch_rows(values, node_ids)
        rows[node_ids >= len(values)] = arguments.fill_value(values.dtype)
        return rows
    ids = clip_ids(node_ids, values.shape[0])
    if values.shape[0] == 0:  # a gather wants one row at least
        values = jnp.full((1, *values.shape[1:]), arguments.fill_value(values.dtype), values.dtype)
    rows = values.at[ids].get(mode="fill", wrap_negative_indices=False)
    there = (node_ids >= 0).reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.where(there, rows, jnp.zeros_like(rows))
