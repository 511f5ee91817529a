"""Rows of arrays that nodes name: feature rows, and the rows of edges in a CSR structure.

Functions here take arrays of JAX, and compute in numpy where all of them are numpy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import empty_vector, take
from jax_gnn._core.ffi import host_function
from jax_gnn._core.ids import MAX_SIZE, PADDING, clip_ids, in_range, namespace
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph, edges_of

Ids = ArrayLike | Sequence[int]
"""Integers as users write them."""

# --- Arguments -----------------------------------------------------------------------------------


def num_nodes_of(graph: Graph, reason: str = "") -> int:
    """Return the number of nodes of a graph, which must not be bipartite; errors give `reason`."""
    if graph.num_src != graph.num_dst:
        raise ValueError(
            f"graph must have one kind of nodes{reason}, got num_src={graph.num_src} and "
            f"num_dst={graph.num_dst}"
        )
    return graph.num_dst


def check_edges(graph: Graph | RelationalGraph) -> Graph:
    """Return the edges of a graph or a relational graph, whose arrays are checked."""
    if not isinstance(graph, RelationalGraph):
        arguments.check_instance("graph", graph, Graph)
    graph.check_arrays()
    return edges_of(graph)


def check_positive(name: str, value: object) -> int:
    """Return a positive integer."""
    number = arguments.check_integer(name, value)
    if number < 1:
        raise ValueError(f"{name} must be positive, got {number}")
    return number


def as_nodes(ids: Array, size: int, dtype: DTypeLike) -> Array:
    """Return ids in the dtype of a graph; those out of range become padding."""
    xp = namespace(ids)
    clipped = xp.clip(ids, -1, size) if xp is np else clip_ids(ids, size)
    nodes = clipped.astype(dtype)
    result: Array = xp.where(in_range(nodes, size), nodes, PADDING)
    return result


# --- Rows of edges -------------------------------------------------------------------------------


def row_bounds(indptr: Array, nodes: Array, num_edges: int) -> tuple[Array, Array]:
    """Return the start and the length of each node's row of edges; rows of padding are empty.

    Rows lie within the edges, whatever ``indptr`` holds.
    """
    xp, num_nodes = namespace(indptr, nodes), indptr.shape[0] - 1
    if num_nodes == 0:  # all ids are padding
        empty = xp.zeros(nodes.shape, indptr.dtype)
        return empty, empty
    valid = in_range(nodes, num_nodes)
    rows = xp.where(valid, nodes, 0)
    starts = xp.clip(indptr[rows], 0, num_edges)
    stops = xp.clip(indptr[rows + 1], starts, num_edges)
    return starts, xp.where(valid, stops - starts, 0)


def values_at(values: Array, places: Array) -> Array:
    """Return the values at places; any values where places are padding."""
    if namespace(values, places) is np:
        return values[np.maximum(places, 0)]
    return take(values, places)  # also if there are no values


# --- Rows of values ------------------------------------------------------------------------------


@public
def fetch_rows(rows: np.ndarray, ids: Ids, *, out: np.ndarray | None = None) -> np.ndarray:
    """Return ``rows[ids]``, zeros where an id is out of range; compiled threads, no jit.

    Args:
        rows: ``(num_rows, *features)`` of any dtype, an array of numpy, such as a memory map: only
            the rows that are named are read.
        ids: ``(count,)`` integers. -1, as any id out of range, is padding.
        out: ``(count, *features)``, an array to write to in place of a new one. If
            ``jax.device_put`` took it, do not use it again before its copy is done; on a CPU there
            may be no copy, and JAX reads the array itself.

    Returns:
        ``(count, *features)`` of the dtype of ``rows``.

    Raises:
        TypeError: ``rows`` is no array of numpy, or a dtype does not fit.
        ValueError: A shape does not fit, or ``out`` is not contiguous and writable.

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
    if isinstance(ids, np.ndarray) and ids.dtype == np.int32 and ids.ndim == 1:
        indices = ids
    else:
        indices = arguments.check_ids("ids", ids)
    shape = (len(indices), *rows.shape[1:])
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
        if indices.dtype != np.int32:
            indices = np.where(in_range(indices, len(rows)), indices, PADDING).astype(np.int32)
        host_function("gather_rows")(
            rows=_bytes_of(rows), ids=np.ascontiguousarray(indices), out=_bytes_of(out)
        )
    else:
        valid = in_range(indices, len(rows))
        out[...] = rows[np.where(valid, indices, 0)]
        out[~valid] = 0
    return out


def _bytes_of(rows: np.ndarray) -> np.ndarray:
    return rows.view(np.ndarray).reshape(len(rows), -1).view(np.uint8)


def values_of(node_ids: Array, values: ArrayLike) -> Array:
    """Return the rows of values that nodes name, zeros for padding.

    Rows that ``values`` lacks are NaN, of integers the extreme value.
    """
    xp = namespace(node_ids, values)
    array = arguments.as_numbers("values", values, xp)
    if array.ndim == 0:
        raise ValueError("values must be (num_nodes, *features), got a scalar")
    if xp is np:
        host_rows = fetch_rows(array, node_ids)
        host_rows[np.asarray(node_ids) >= len(array)] = arguments.fill_value(array.dtype)
        return host_rows  # type: ignore[return-value]  # numpy in, numpy out
    ids = clip_ids(node_ids, array.shape[0])
    if array.shape[0] == 0:  # a gather needs one row at least
        array = jnp.full((1, *array.shape[1:]), arguments.fill_value(array.dtype), array.dtype)
    rows = array.at[ids].get(mode="fill", wrap_negative_indices=False)
    valid = (node_ids >= 0).reshape(-1, *(1,) * (array.ndim - 1))
    return jnp.where(valid, rows, jnp.zeros_like(rows))
