"""Edges in the order of their times: those before a seed's time are the first ones of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import ids_at, is_traced
from jax_gnn._core.op import align_varying
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._rows import first_place


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
        """Sorts edges by time within the edges of a node; inside ``jax.jit`` as well.

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
        nodes = arguments.check_container("graph", nodes, Graph)
        return cls(*_sorted(nodes.rows, check_times("times", times, "num_edges", nodes.num_edges)))


def check_times(name: str, times: Any, size_name: str, size: int) -> Array:
    """Real numbers that can be compared exactly."""
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
        given = jnp.asarray(known.astype(dtype))
    return given


def prepared(name: str, times: Any, graph: Graph) -> tuple[Array, Array]:
    """The order and the times of what is given as times or sorted."""
    count = graph.num_edges
    if not isinstance(times, EdgeTime):
        return _sorted(graph.rows, check_times(name, times, "num_edges", count))
    shapes = [getattr(array, "shape", None) for array in (times.order, times.times)]
    if shapes != [(count,), (count,)] or not jnp.issubdtype(times.order.dtype, np.integer):
        raise ValueError(
            f"{name} must have an order and times, ({count},) each, got shapes {shapes}: sort the "
            "times of this graph"
        )
    return jnp.asarray(times.order), jnp.asarray(times.times)


@jax.jit
def _sorted(rows: Array, times: Array) -> tuple[Array, Array]:
    places = jnp.arange(rows.shape[0], dtype=rows.dtype)
    last = jnp.where(rows < 0, jnp.iinfo(rows.dtype).max, rows)
    _, times, order = jax.lax.sort((last, times, places), num_keys=2, is_stable=True)
    return order, times


def earlier(times: Array, starts: Array, degrees: Array, limits: Array) -> Array:
    """How many edges of each row are no later than a limit, ``(rows,)``."""
    times, starts, degrees, limits = align_varying([times, starts, degrees, limits])
    found = first_place(starts, starts + degrees, lambda place: ~(times[place] <= limits))
    return found - starts


def in_rows(order: Array, places: Array, starts: Array, degrees: Array) -> Array:
    """Where edges, ``(rows, fanout)`` places in the order of times, are in their rows."""
    starts, last = starts[:, None], jnp.maximum(degrees - 1, 0)[:, None]
    found = ids_at(order, starts + places).astype(starts.dtype) - starts
    return jnp.clip(found, 0, last)
