"""Look-up of edges by their ends, distinct ids, and rejection sampling."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, search_rows, take_ids
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._rows import row_bounds

# --- Ids -----------------------------------------------------------------------------------------


def distinct(ids: Array, size: int) -> tuple[Array, Array]:
    """Return the distinct ids from 0, ascending, padded to `size`; and the place of each id."""
    count = ids.shape[0]
    steps = jnp.arange(count, dtype=ids.dtype)
    # As unsigned keys, padding comes last. On GPUs XLA has a radix sort of these with one value.
    keys, order = jax.lax.sort((ids.astype(f"u{ids.dtype}"), steps), num_keys=1)
    valid = take_ids(ids, order) >= 0
    is_new = valid & jnp.concatenate([jnp.ones(1, bool), keys[1:] != keys[:-1]])[:count]
    number = jnp.cumsum(is_new, dtype=ids.dtype) - 1
    result = jnp.full(size, PADDING, ids.dtype)
    result = result.at[jnp.where(is_new, number, size)].set(keys.astype(ids.dtype), mode="drop")
    places = jnp.full(count, PADDING, ids.dtype)
    return result, places.at[order].set(jnp.where(valid, number, PADDING))


def without_repeats(nodes: Array, num_nodes: int) -> tuple[Array, Array]:
    """Return nodes with padding for repeated ones, and each node's place among them."""
    count, dtype = nodes.shape[0], nodes.dtype
    steps = jnp.arange(count, dtype=dtype)
    place = jnp.where(nodes < 0, num_nodes, nodes)
    table = jnp.full(num_nodes, count, dtype).at[place].min(steps, mode="drop")
    table = jnp.where(table < count, table, PADDING)
    return jnp.where(take_ids(table, nodes) == steps, nodes, PADDING), table


# --- Edges by their ends -------------------------------------------------------------------------


def check_graph_kind(graph: object) -> Graph | RelationalGraph:
    """Return a graph or relational graph that passes its check."""
    if not isinstance(graph, Graph | RelationalGraph):
        raise TypeError(
            "graph must be a jax_gnn.Graph or a jax_gnn.RelationalGraph, got "
            f"{type(graph).__name__}"
        )
    return graph.check()


def check_links(
    graph: Graph | RelationalGraph, src: object, dst: object, rel: object
) -> tuple[Array, ...]:
    """Return sources, destinations and, of a relational graph, relations, of one length."""
    columns = {"src": src, "dst": dst}
    if (rel is None) == isinstance(graph, RelationalGraph):
        requirement = "must be given for" if rel is None else "is for"
        raise TypeError(
            f"rel {requirement} a jax_gnn.RelationalGraph alone, got {arguments.described(rel)} "
            f"for a {type(graph).__name__}"
        )
    if rel is not None:
        columns["rel"] = rel
    ids = {name: arguments.as_ids(name, column) for name, column in columns.items()}
    count = ids["src"].shape[0]
    for name, column in ids.items():
        if column.shape != (count,):
            raise ValueError(
                f"src and {name} must have the same length, got {count} and {column.shape[0]}"
            )
    return tuple(ids.values())


def edge_runs(
    graph: Graph, types: Array | None, src: Array, dst: Array, rel: Array | None
) -> tuple[Array, Array]:
    """Find the edges between two nodes, by two binary searches.

    In a graph's transpose, the edges of a source ascend by destination, then relation, whatever
    their order by destination is. Equal edges are adjacent there. Ends and relations of -1 are
    padding, which has no edges. Return the start of each run in ``t_cols``, and its number of
    edges.
    """
    starts, stops = _source_rows(graph, src, dst, rel)
    first = _bisect(graph, types, starts, stops, dst, rel, after=False)
    return first, _bisect(graph, types, first, stops, dst, rel, after=True) - first


def has_edge(graph: Graph, types: Array | None, src: Array, dst: Array, rel: Array | None) -> Array:
    """Return whether edges exist, ``(count,)`` bool, by one search; arguments as of `edge_runs`."""
    starts, stops = _source_rows(graph, src, dst, rel)
    first = _bisect(graph, types, starts, stops, dst, rel, after=False)
    place = jnp.where(first < stops, first, PADDING)
    exists: Array = (place >= 0) & (take_ids(graph.t_cols, place) == dst)
    if types is not None:
        exists &= take_ids(types, take_ids(graph.t_order, place)) == rel
    return exists


def _source_rows(graph: Graph, src: Array, dst: Array, rel: Array | None) -> tuple[Array, Array]:
    valid = dst >= 0 if rel is None else (dst >= 0) & (rel >= 0)
    starts, counts = row_bounds(graph.t_indptr, src, graph.num_edges)
    return starts, starts + jnp.where(valid, counts, 0)


def _bisect(
    graph: Graph,
    types: Array | None,
    starts: Array,
    stops: Array,
    dst: Array,
    rel: Array | None,
    *,
    after: bool,
) -> Array:
    """Return the first place whose (destination, relation) is not before, or is after, another."""

    def predicate(place: Array) -> Array:
        col = take_ids(graph.t_cols, place)
        minor, limit = col, dst
        if types is not None and rel is not None:
            minor, limit = take_ids(types, take_ids(graph.t_order, place)), rel
        is_before = minor <= limit if after else minor < limit
        result: Array = (col > dst) | ((col == dst) & ~is_before)
        return result

    return search_rows(starts, stops, predicate)


# --- Rejection sampling --------------------------------------------------------------------------


def rejection_sample(
    # Maps the number of the round to values, and which of them are accepted.
    propose: Callable[[Array], tuple[tuple[Array, ...], Array]],
    # Initial values, (count,) each, which stay where nothing is accepted.
    values: tuple[Array, ...],
    is_done: Array,  # (count,) bool, elements that need no draw
    max_rounds: int | Array,  # number of rounds after which it ends
) -> tuple[tuple[Array, ...], Array]:
    """Propose values in rounds until all are accepted; return them, and which of them are."""
    State = tuple[Array, tuple[Array, ...], Array]

    def is_unfinished(state: State) -> Array:
        step, _, is_done = state
        return (step < max_rounds) & ~is_done.all()

    def run_round(state: State) -> State:
        step, values, is_done = state
        proposals, accepted = propose(step)
        accepted &= ~is_done
        values = tuple(jnp.where(accepted, *pair) for pair in zip(proposals, values, strict=True))
        return step + jnp.uint32(1), values, is_done | accepted

    _, values, is_done = jax.lax.while_loop(
        is_unfinished, run_round, (jnp.uint32(0), values, is_done)
    )
    return values, is_done
