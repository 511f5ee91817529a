"""Edges sorted by time: the edges up to a seed's time are a prefix of each node's row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.ids import as_signed, is_traced, namespace, search_rows, take_ids
from jax_gnn._core.op import align_varying
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph, edges_of
from jax_gnn.sampling._compile import jit
from jax_gnn.sampling._rows import as_nodes, check_edges, row_bounds, values_at


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgeTime:
    """Times of edges, sorted once for :func:`sample_neighbors`.

    Attributes:
        order: ``(num_edges,)``, places of the edges in the graph, by time within each node's
            edges; edges of one time are in the graph's order.
        times: ``(num_edges,)``, the edges' times in this order.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [2, 2, 0], num_nodes=3)
        >>> EdgeTime.from_times(graph, [1, 9, 4]).times
        Array([1, 4, 9], dtype=int32)
    """

    order: Array
    times: Array

    @classmethod
    def from_times(
        cls, graph: Graph | RelationalGraph, times: ArrayLike | Sequence[float]
    ) -> EdgeTime:
        """Sort edges by time within the edges of a node.

        Works inside ``jax.jit`` as well, and in numpy for a graph of the host.

        Args:
            graph: the graph of the edges.
            times: ``(num_edges,)`` real numbers in the graph's order. They are converted to JAX's
                dtype for theirs; without 64 bits that is int32 or float32. Edges of a
                ``self_relation`` have none: theirs are replaced by the largest number.

        Raises:
            TypeError: ``graph`` is something else, or ``times`` are no real numbers.
            ValueError: The shape does not fit, or a time is NaN or has no exact JAX dtype.
        """
        check_edges(graph)
        return edge_time("times", times, graph)

    def in_degrees(
        self, graph: Graph | RelationalGraph, nodes: ArrayLike, times: ArrayLike
    ) -> Array:
        """Return the number of edges into each node that are no later than a time.

        Edges of a ``self_relation`` do not count. Works inside ``jax.jit`` as well.

        Args:
            graph: the graph whose edges were sorted.
            nodes: ``(count,)`` integers; ids out of range, such as -1, have no edges.
            times: ``(count,)``, a time for each node, of the kind of the edges' times.

        Returns:
            ``(count,)`` integers.

        Raises:
            TypeError: ``graph`` is something else, or ``nodes`` or ``times`` are not numbers.
            ValueError: a shape does not fit.

        Example:
            >>> graph = Graph.from_edges([0, 1, 2], [2, 2, 0], num_nodes=3)
            >>> edge_time = EdgeTime.from_times(graph, [1, 9, 4])
            >>> edge_time.in_degrees(graph, jnp.array([2, 2, 0]), jnp.array([1, 9, 3]))
            Array([1, 2, 0], dtype=int32)
        """
        edges = check_edges(graph)
        checked = edge_time("graph", self, graph)
        ids = arguments.check_ids("nodes", nodes, traced=True)
        limits = check_limits("times", times, "len(nodes)", ids.shape[0], checked)
        indptr = jnp.asarray(as_signed(edges.indptr))
        rows = as_nodes(jnp.asarray(ids), edges.num_dst, indptr.dtype)
        starts, degrees = row_bounds(indptr, rows, edges.num_edges)
        return num_until(jnp.asarray(checked.times), starts, degrees, jnp.asarray(limits))


def check_times(name: str, times: object, size_name: str, size: int) -> Array:
    """Return times in a dtype of JAX that holds them exactly; in numpy if they are concrete."""
    array = arguments.check_real_vector(name, times, size_name, size)
    if is_traced(array):
        return array
    concrete = np.asarray(array)
    dtype = jax.dtypes.canonicalize_dtype(concrete.dtype)
    if concrete.dtype.kind == "f" and np.isnan(concrete).any():
        raise ValueError(f"{name} must be times, got NaN")
    with np.errstate(over="ignore"):
        inexact = concrete.astype(dtype).astype(concrete.dtype) != concrete
    if inexact.any():
        raise ValueError(
            f"{name} must be exact in {dtype}: enable jax_enable_x64, or round them, got "
            f"{concrete[inexact][0]}"
        )
    return concrete.astype(dtype, copy=False)  # type: ignore[return-value]


def check_limits(name: str, limits: object, size_name: str, size: int, of: EdgeTime) -> Array:
    """Return times that are compared with those of edges, in their dtype."""
    checked, dtype = check_times(name, limits, size_name, size), of.times.dtype
    if jnp.issubdtype(dtype, np.integer) != jnp.issubdtype(checked.dtype, np.integer):
        raise TypeError(
            f"{name} must be integers or not as edge_time are, got {checked.dtype} for {dtype}"
        )
    if jnp.promote_types(dtype, checked.dtype) != dtype:
        raise TypeError(f"{name} must fit edge_time of {dtype}, got {checked.dtype}")
    return checked.astype(dtype)


def edge_time(name: str, times: object, graph: Graph | RelationalGraph) -> EdgeTime:
    """Return sorted times from times or from an :class:`EdgeTime`; in numpy if the graph is."""
    rows, count = edges_of(graph).rows, graph.num_edges
    if not isinstance(times, EdgeTime):
        checked = check_times(name, times, "num_edges", count)
        if isinstance(graph, RelationalGraph) and graph.self_relation:
            # The last edge of a row by relation is the last by time, too: draws leave it out.
            xp = namespace(graph.edge_types, checked)
            is_float = jnp.issubdtype(checked.dtype, np.floating)
            latest = xp.inf if is_float else xp.iinfo(checked.dtype).max
            is_self = graph.edge_types == graph.num_relations - 1
            checked = xp.where(is_self, xp.asarray(latest, checked.dtype), checked)
        if namespace(rows) is np and not isinstance(times, jax.Array):
            return _sort(rows, checked)
        return _compiled_sort(as_signed(rows), checked)
    shapes = [getattr(array, "shape", None) for array in (times.order, times.times)]
    if shapes != [(count,), (count,)] or not jnp.issubdtype(times.order.dtype, np.integer):
        raise ValueError(
            f"{name} must have an order and times, ({count},) each, got shapes {shapes}: sort the "
            "times of this graph"
        )
    return times


def _sort(rows: Array, times: Array) -> EdgeTime:
    xp = namespace(rows, times)
    keys = xp.where(rows < 0, xp.iinfo(rows.dtype).max, rows)  # padding comes last
    if xp is np:
        order: Any = np.lexsort((times, keys))
        return EdgeTime(order.astype(rows.dtype), times[order])
    places = jnp.arange(rows.shape[0], dtype=rows.dtype)
    _, sorted_times, order = jax.lax.sort((keys, times, places), num_keys=2, is_stable=True)
    return EdgeTime(order, sorted_times)


_compiled_sort = jit()(_sort)


def num_until(times: Array, starts: Array, degrees: Array, limits: Array) -> Array:
    """Return the number of edges of each row whose time is no later than its limit."""
    if namespace(times, starts, limits) is not np:
        times, starts, degrees, limits = align_varying([times, starts, degrees, limits])

    def is_later(place: Array) -> Array:
        return ~(values_at(times, place) <= limits)

    return search_rows(starts, starts + degrees, is_later) - starts


def graph_offsets(order: Array, offsets: Array, starts: Array, degrees: Array) -> Array:
    """Return offsets in rows sorted by time, ``(rows, fanout)``, as offsets in the graph's rows."""
    xp = namespace(order, offsets)
    column, limits = starts[:, None], xp.maximum(degrees - 1, 0)[:, None]
    result: Array = xp.clip(
        take_ids(order, column + offsets).astype(starts.dtype) - column, 0, limits
    )
    return result
