"""Edges in the order of their times: those before a seed's time are the first ones of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import as_signed, is_traced, namespace, take_ids
from jax_gnn._core.op import align_varying
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._rows import first_place, values_at


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgeTime:
    """When edges came to be, sorted once for :func:`sample_neighbors`.

    Attributes:
        order: ``(num_edges,)``, where edges are in the graph, those of each node by time; those
            of one time in the graph's order.
        times: ``(num_edges,)``, their times in this order.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [2, 2, 0], num_nodes=3)
        >>> EdgeTime.from_times(graph, [1, 9, 4]).times
        Array([1, 4, 9], dtype=int32)
    """

    order: Array
    times: Array

    @classmethod
    def from_times(cls, graph: Graph | RelationalGraph, times: Any) -> EdgeTime:
        """Sorts edges by time within the edges of a node.

        Inside ``jax.jit`` as well, and in numpy for a graph of the host.

        Args:
            graph: whose edges have the times.
            times: ``(num_edges,)`` real numbers in the graph's order. They are taken in the dtype
                that JAX has for theirs; without 64 bits these are int32 and float32.

        Raises:
            TypeError: ``graph`` is something else, or ``times`` are no real numbers.
            ValueError: there is not one time for each edge, one is NaN, or one is no number of 32
                bits where JAX has no others.
        """
        nodes = graph.nodes if isinstance(graph, RelationalGraph) else graph
        arguments.check_instance("graph", nodes, Graph)
        nodes.check_arrays()
        return cls(*prepared("times", times, nodes))


def check_times(name: str, times: Any, size_name: str, size: int) -> Any:
    """Real numbers that can be compared exactly; in numpy if they are known."""
    given = arguments.to_array(name, times)
    if not arguments.is_real(given.dtype):
        raise TypeError(f"{name} must be real numbers, got {given.dtype}")
    if given.shape != (size,):
        raise ValueError(f"{name} must be ({size_name}={size},), got shape {given.shape}")
    if not is_traced(given):
        known = np.asarray(given)
        dtype = jax.dtypes.canonicalize_dtype(known.dtype)
        if known.dtype.kind == "f" and np.isnan(known).any():
            raise ValueError(f"{name} must be times, got NaN")
        with np.errstate(over="ignore"):
            is_other = known.astype(dtype).astype(known.dtype) != known
        if is_other.any():
            raise ValueError(
                f"{name} must be exact in {dtype}: enable jax_enable_x64, or round them, got "
                f"{known[is_other][0]}"
            )
        given = known.astype(dtype, copy=False)
    return given


def prepared(name: str, times: Any, graph: Graph) -> tuple[Any, Any]:
    """The order and the times of what is given as times or sorted; in numpy where the graph is."""
    count = graph.num_edges
    if not isinstance(times, EdgeTime):
        checked = check_times(name, times, "num_edges", count)
        if namespace(graph.rows) is np and not isinstance(times, jax.Array):
            return _sorted(np.asarray(graph.rows), checked)
        return _compiled_sort(as_signed(graph.rows), checked)
    shapes = [getattr(array, "shape", None) for array in (times.order, times.times)]
    if shapes != [(count,), (count,)] or not jnp.issubdtype(times.order.dtype, np.integer):
        raise ValueError(
            f"{name} must have an order and times, ({count},) each, got shapes {shapes}: sort the "
            "times of this graph"
        )
    return times.order, times.times


def _sorted(rows: Any, times: Any) -> tuple[Any, Any]:
    xp = namespace(rows, times)
    last = xp.where(rows < 0, np.iinfo(rows.dtype).max, rows)
    if xp is np:
        found = np.lexsort((times, last))
        return found.astype(rows.dtype), times[found]
    places = jnp.arange(rows.shape[0], dtype=rows.dtype)
    _, times, order = jax.lax.sort((last, times, places), num_keys=2, is_stable=True)
    return order, times


_compiled_sort = jax.jit(_sorted)


def earlier(times: Any, starts: Any, degrees: Any, limits: Any) -> Any:
    """How many edges of each row are no later than a limit, ``(rows,)``; in numpy where all are."""
    if namespace(times, starts, limits) is not np:
        times, starts, degrees, limits = align_varying([times, starts, degrees, limits])

    def is_later(place: Any) -> Any:
        return ~(values_at(times, place) <= limits)

    return first_place(starts, starts + degrees, is_later) - starts


def in_rows(order: Any, places: Any, starts: Any, degrees: Any) -> Any:
    """Where edges, ``(rows, fanout)`` places in the order of times, are in their rows."""
    xp = namespace(order, places)
    starts, last = starts[:, None], xp.maximum(degrees - 1, 0)[:, None]
    found = take_ids(order, starts + places).astype(starts.dtype) - starts
    return xp.clip(found, 0, last)
