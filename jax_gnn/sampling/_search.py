"""Where edges are, by their ends, and draws that are repeated until one is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, take_ids
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._rows import first_place, row_bounds

# --- Ids -----------------------------------------------------------------------------------------


def distinct(ids: Array, room: int) -> tuple[Array, Array]:
    """Ids that occur, ascending, with padding behind; and where among these each id is.

    Args:
        ids: ``(count,)``; those below 0 are padding.
        room: how many there may be, at least as many as there are.
    """
    count = ids.shape[0]
    steps = jnp.arange(count, dtype=ids.dtype)
    # Padding comes last. On GPUs XLA has a radix sort of unsigned keys with one value.
    keys, at = jax.lax.sort((ids.astype(f"u{ids.dtype}"), steps), num_keys=1)
    there = take_ids(ids, at) >= 0
    is_new = there & jnp.concatenate([jnp.ones(1, bool), keys[1:] != keys[:-1]])[:count]
    number = jnp.cumsum(is_new, dtype=ids.dtype) - 1
    found = jnp.full(room, PADDING, ids.dtype)
    found = found.at[jnp.where(is_new, number, room)].set(keys.astype(ids.dtype), mode="drop")
    places = jnp.full(count, PADDING, ids.dtype)
    return found, places.at[at].set(jnp.where(there, number, PADDING))


# --- Edges by their ends -------------------------------------------------------------------------


def link_ids(graph: Any, src: Any, dst: Any, rel: Any) -> tuple[Array, ...]:
    """The ends of edges, and their relations just where the graph has these, of one length."""
    if not isinstance(graph, Graph | RelationalGraph):
        raise TypeError(
            "graph must be a jax_gnn.Graph or a jax_gnn.RelationalGraph, got "
            f"{type(graph).__name__}"
        )
    columns = {"src": src, "dst": dst}
    if (rel is None) == isinstance(graph, RelationalGraph):
        wanted = "must be given for" if rel is None else "is for"
        raise TypeError(
            f"rel {wanted} a jax_gnn.RelationalGraph alone, got {arguments.described(rel)} for a "
            f"{type(graph).__name__}"
        )
    if rel is not None:
        columns["rel"] = rel
    ids = tuple(arguments.as_ids(name, each) for name, each in columns.items())
    for name, each in zip(columns, ids, strict=True):
        if each.shape != ids[0].shape:
            raise ValueError(
                f"src and {name} must have the same length, got {ids[0].shape[0]} and "
                f"{each.shape[0]}"
            )
    return ids


def edge_runs(
    graph: Graph, types: Array | None, src: Array, dst: Array, rel: Array | None
) -> tuple[Array, Array]:
    """Where the edges between two nodes are, by two binary searches.

    In a graph's second half, by source, edges ascend by destination, then relation, whatever their
    order by destination is. Equal ones stand side by side there.

    Args:
        graph: the graph.
        types: ``(num_edges,)``, the relation of each edge; None without relations.
        src: ``(count,)``, the sources, -1 for padding: no such edge.
        dst: ``(count,)``, the destinations, likewise.
        rel: ``(count,)``, the relations, likewise.

    Returns:
        Where they start in ``t_cols``, and how many there are, ``(count,)`` each.
    """
    starts, stops = _row(graph, src, dst, rel)
    first = _search(graph, types, starts, stops, dst, rel, after=False)
    return first, _search(graph, types, first, stops, dst, rel, after=True) - first


def has_edge(graph: Graph, types: Array | None, src: Array, dst: Array, rel: Array | None) -> Array:
    """Whether there are such edges, ``(count,)`` bool, by one search."""
    starts, stops = _row(graph, src, dst, rel)
    first = _search(graph, types, starts, stops, dst, rel, after=False)
    place = jnp.where(first < stops, first, PADDING)
    found = (place >= 0) & (take_ids(graph.t_cols, place) == dst)
    if types is None:
        return found
    return found & (take_ids(types, take_ids(graph.t_order, place)) == rel)


def _row(graph: Graph, src: Array, dst: Array, rel: Array | None) -> tuple[Array, Array]:
    there = dst >= 0 if rel is None else (dst >= 0) & (rel >= 0)
    starts, counts = row_bounds(graph.t_indptr, src, graph.num_edges)
    return starts, starts + jnp.where(there, counts, 0)


def _search(
    graph: Graph,
    types: Array | None,
    starts: Array,
    stops: Array,
    dst: Array,
    rel: Array | None,
    *,
    after: bool,
) -> Array:
    """The first place that is not before (dst, rel), or that is after it."""

    def holds(place: Array) -> Array:
        col = take_ids(graph.t_cols, place)
        last, wanted = col, dst
        if types is not None and rel is not None:
            last, wanted = take_ids(types, take_ids(graph.t_order, place)), rel
        is_before = last <= wanted if after else last < wanted
        return (col > dst) | ((col == dst) & ~is_before)

    return first_place(starts, stops, holds)


# --- Draws until one is accepted -----------------------------------------------------------------


def redrawn(
    draw: Callable[[Array], tuple[tuple[Array, ...], Array]],
    values: tuple[Array, ...],
    found: Array,
    rounds: int | Array,
) -> tuple[tuple[Array, ...], Array]:
    """Draws anew for whatever has not been accepted yet.

    Args:
        draw: of the round, gives values and which are accepted.
        values: what is there before, and stays where nothing is found.
        found: ``(count,)`` bool, for which nothing is to be drawn.
        rounds: after so many it ends.

    Returns:
        The values, and which have been found.
    """

    def goes_on(state: Any) -> Array:
        step, _, found = state
        return (step < rounds) & ~found.all()

    def once(state: Any) -> Any:
        step, values, found = state
        new, accepted = draw(step)
        accepted &= ~found
        values = tuple(jnp.where(accepted, *pair) for pair in zip(new, values, strict=True))
        return step + jnp.uint32(1), values, found | accepted

    return jax.lax.while_loop(goes_on, once, (jnp.uint32(0), values, found))[1:]


def fraction(word: Array) -> Array:
    """A random word of 32 bits as a number from 0, below 1: float32, exact."""
    return (word >> jnp.uint32(8)).astype(jnp.float32) * jnp.float32(2**-24)
