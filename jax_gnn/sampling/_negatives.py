"""Edges that are not there: drawn at random, or of given edges with one end drawn anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, take_ids
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._random import below, bits, key_words
from jax_gnn.sampling._rows import as_nodes, row_bounds
from jax_gnn.sampling._search import fraction, has_edge, link_ids, redrawn

Side = Literal["src", "dst", "both"]
ROUNDS = 128  # draws for each edge; they end when all are found
_SRC, _DST, _ACCEPT, _SIDE = 0, 1, 2, 4  # streams of random numbers


@public
def negative_edges(
    graph: Graph | RelationalGraph,
    num: int,
    key: Any,
    *,
    degree_power: float = 0.0,
    exclude_edges: bool = False,
    num_nodes: Any = None,
) -> tuple[Array, Array]:
    """Draws pairs of nodes, as edges that a model should tell from true ones.

    Works inside ``jax.jit`` and outside. The same key gives the same pairs on every device, but
    where a power of degrees is rounded otherwise there. By a power between 0 and 1 each call makes
    a table of the nodes; else it needs none.

    Args:
        graph: whose nodes are drawn. Where relations are known to run between types of nodes
            (:attr:`jax_gnn.RelationalGraph.relation_ends`), so do the pairs.
        num: how many; of a relational graph, how many of each relation.
        key: of ``jax.random``.
        degree_power: both ends are drawn independently, a node with a probability in proportion
            to this power, from 0 to 1, of its degree: sources by edges out of them, destinations
            by edges into them. 0 draws all nodes alike, 0.75 is that of word2vec, 1 the degree.
        exclude_edges: whether a pair must not be an edge, of that relation; then what is drawn is
            as likely as before among all other pairs. Edges are looked up by binary search.
        num_nodes: ids are drawn below it, to spare the padding of a padded graph; an integer, which
            may be traced, or two of a bipartite graph, (num_src, num_dst). By default those of the
            graph. Nodes of a known type are drawn from all of it.

    Returns:
        Sources and destinations, ``(num,)`` or ``(num_relations, num)`` ids each. -1, in both,
        where in 128 rounds nothing was found: there may be no such pair.

    Raises:
        TypeError: ``graph`` or ``key`` is something else, or a number is none.
        ValueError: ``num`` or ``num_nodes`` is negative, or ``degree_power`` not between 0 and 1.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
        >>> src, dst = negative_edges(graph, 100, jax.random.key(0), exclude_edges=True)
        >>> sorted(set(zip(src.tolist(), dst.tolist())))
        [(0, 0), (0, 2), (1, 0), (1, 1), (2, 1), (2, 2)]

    Source:
        Mikolov et al., "Distributed representations of words and phrases and their
        compositionality", NeurIPS 2013, for the power 0.75.
    """
    edges, types, ranges = _parts(graph, num_nodes)
    num = arguments.check_size("num", num)
    power = _check_power(degree_power)
    exclude_edges = arguments.check_flag("exclude_edges", exclude_edges)
    shape: tuple[int, ...] = (num,)
    rel = None
    if isinstance(graph, RelationalGraph):
        shape = (graph.num_relations, num)
        rel = np.repeat(np.arange(graph.num_relations, dtype=edges.indptr.dtype), num)
    words = key_words("key", key)
    count = math.prod(shape)
    src, dst = _drawn(edges, types, ranges, rel, words, count, power, exclude_edges)
    return src.reshape(shape), dst.reshape(shape)


@public
def corrupted_edges(
    graph: Graph | RelationalGraph,
    src: Any,
    dst: Any,
    num: int,
    key: Any,
    *,
    rel: Any = None,
    side: Side = "both",
    degree_power: float = 0.0,
    exclude_edges: bool = False,
    num_nodes: Any = None,
) -> tuple[Array, Array]:
    """Draws one end of each given edge anew: what it is trained against.

    Works inside ``jax.jit`` and outside.

    Args:
        graph: the true edges.
        src: ``(count,)`` integers, where the given edges start. -1, as any id out of range, is
            padding.
        dst: ``(count,)`` integers, where they end.
        num: how many to draw for each.
        key: of ``jax.random``.
        rel: ``(count,)`` integers, their relations, if ``graph`` is a relational one. Where types
            of nodes are known, a node is replaced by one of its relation's.
        side: which end is drawn: ``"src"``, the head; ``"dst"``, the tail; ``"both"``: either, by
            the toss of a coin. With ``exclude_edges`` the coin is tossed again where an edge was
            drawn, so that the side with more pairs that are no edges is drawn more often.
        degree_power: as for :func:`negative_edges`.
        exclude_edges: likewise.
        num_nodes: likewise.

    Returns:
        Sources and destinations, ``(count, num)`` ids each. -1, in both, of padding and where in
        128 rounds nothing was found: there may be no such edge.

    Raises:
        TypeError: ``graph`` or ``key`` is something else, ids are no integers, a number is none, or
            ``rel`` is missing or not wanted.
        ValueError: lengths differ, ``num`` or ``num_nodes`` is negative, ``side`` is unknown, or
            ``degree_power`` is not between 0 and 1.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
        >>> src, dst = corrupted_edges(
        ...     graph, [0], [1], 8, jax.random.key(0), side="dst", exclude_edges=True
        ... )
        >>> sorted(set(zip(src[0].tolist(), dst[0].tolist())))
        [(0, 0), (0, 2)]

    Source:
        Bordes et al., "Translating embeddings for modeling multi-relational data", NeurIPS 2013.
    """
    edges, types, ranges = _parts(graph, num_nodes)
    ids = link_ids(graph, src, dst, rel)
    num = arguments.check_size("num", num)
    arguments.check_choice("side", side, get_args(Side))
    power = _check_power(degree_power)
    exclude_edges = arguments.check_flag("exclude_edges", exclude_edges)
    src, dst = _corrupted(
        edges, types, ranges, ids, key_words("key", key), num, side, power, exclude_edges
    )
    return src, dst


# --- Arguments -----------------------------------------------------------------------------------


class Ranges(NamedTuple):
    """From which id, and below which, each end is drawn: scalars, or one for each relation."""

    src: tuple[Any, Any]
    dst: tuple[Any, Any]


def _parts(graph: Any, num_nodes: Any) -> tuple[Graph, Array | None, Ranges]:
    """The edges, their relations, and which nodes are drawn."""
    if not isinstance(graph, Graph | RelationalGraph):
        raise TypeError(
            "graph must be a jax_gnn.Graph or a jax_gnn.RelationalGraph, got "
            f"{type(graph).__name__}"
        )
    graph = graph.check()
    edges = graph.nodes if isinstance(graph, RelationalGraph) else graph
    dtype = edges.indptr.dtype
    given = num_nodes if isinstance(num_nodes, tuple | list) else (num_nodes, num_nodes)
    if len(given) != 2:
        raise ValueError(f"num_nodes must be one integer or two, got {len(given)}")
    sizes = edges.num_src, edges.num_dst
    stops = [_stop(each, size, dtype) for each, size in zip(given, sizes, strict=True)]
    if not isinstance(graph, RelationalGraph):
        zero = np.zeros((), dtype)
        return edges, None, Ranges(*((zero, stop) for stop in stops))
    ends = graph.relation_ends or (None,) * graph.num_relations
    ranges = []
    for side, stop in enumerate(stops):
        nodes = [graph.node_slices[each[side]] if each else slice(0, -1) for each in ends]
        low, high = np.array([(s.start, s.stop) for s in nodes], dtype).reshape(-1, 2).T
        ranges.append((low, jnp.where(high < 0, stop, high)))
    return edges, graph.edge_types, Ranges(*ranges)


def _stop(given: Any, size: int, dtype: Any) -> Any:
    if given is None:
        return np.asarray(size, dtype)
    if not isinstance(given, jax.Array):
        given = np.asarray(arguments.check_size("num_nodes", given))
    if given.shape or not jnp.issubdtype(given.dtype, np.integer):
        raise TypeError(f"num_nodes must be an integer, got {arguments.described(given)}")
    return jnp.clip(jnp.asarray(given), 0, size).astype(dtype)


def _check_power(power: Any) -> float:
    power = arguments.check_finite("degree_power", power)
    if not 0 <= power <= 1:
        raise ValueError(f"degree_power must be between 0 and 1, got {power}")
    return power


# --- Draws ---------------------------------------------------------------------------------------


Draw = Callable[[Array, Array], tuple[Array, Array]]  # of indices and the round: nodes, accepted


def _drawing(
    graph: Graph, side: int, limits: tuple[Array, Array], key: tuple[Array, Array], power: float
) -> Draw:
    """What draws nodes from the first limit, below the second: each has its share of tickets."""
    low, high = limits
    by_src = side == _SRC
    indptr, rows = (graph.t_indptr, graph.t_rows) if by_src else (graph.indptr, graph.rows)
    rest = None
    if power == 0:
        first, last = low, high
    elif power == 1:  # its edges
        first, last = (jnp.clip(indptr[each], 0, graph.num_edges) for each in (low, high))
    else:
        starts, rest = _shares(indptr, graph.num_edges, power)
        first, last = starts[low], starts[high]
    size = jnp.where(last > first, last - first, 0).astype(jnp.uint32)

    def draw(index: Array, step: Array) -> tuple[Array, Array]:
        ticket = first + below(bits(key, side, index, step), size).astype(first.dtype)
        node = ticket
        if power == 1:
            node = take_ids(rows, ticket)
        elif power:
            node = jnp.searchsorted(starts, ticket, side="right").astype(low.dtype) - 1
        accepted = (size > 0) & (node >= low) & (node < high)
        if rest is not None:
            coin = fraction(bits(key, _ACCEPT + side, index, step)[0])
            accepted &= coin < rest.at[node].get(mode="clip")
        return jnp.where(accepted, node, PADDING), accepted

    return draw


def _shares(indptr: Array, num_edges: int, power: float) -> tuple[Array, Array]:
    """Shares of nodes by a power of their degree, of less than 2³¹ in all.

    Returns:
        Where the share of each node starts, ``(nodes + 1,)`` uint32; and what part of it is due, as
        shares are rounded up: draws are accepted as often.
    """
    nodes = jnp.arange(indptr.shape[0] - 1, dtype=indptr.dtype)
    _, degrees = row_bounds(indptr, nodes, num_edges)
    logarithms = jnp.log(jnp.maximum(degrees, 1).astype(jnp.float32))
    due = jnp.where(degrees > 0, jnp.exp(jnp.float32(power) * logarithms), jnp.float32(0))
    room = jnp.float32(0.9 * (2**31 - nodes.shape[0]))
    # A power of two, so that devices which add otherwise have the same.
    exponent = jnp.floor(jnp.log2(room / jnp.maximum(due.sum(), 1)))
    due = jnp.ldexp(due, exponent.astype(jnp.int32))
    shares = jnp.ceil(due).astype(jnp.uint32)
    starts = jnp.concatenate([jnp.zeros(1, jnp.uint32), jnp.cumsum(shares, dtype=jnp.uint32)])
    return starts, due / jnp.maximum(shares, 1).astype(jnp.float32)


def _of_each(ranges: Ranges, rel: Array | None, count: int) -> Ranges:
    """The limits for each of the edges that are drawn."""
    if rel is not None:
        return jax.tree.map(lambda limits: take_ids(limits, rel), ranges)
    return jax.tree.map(lambda limit: jnp.broadcast_to(jnp.asarray(limit), count), ranges)


def _drawn_plain(
    graph: Graph,
    types: Array | None,
    ranges: Ranges,
    rel: Array | None,
    key: tuple[Array, Array],
    count: int,
    power: float,
    exclude: bool,
) -> tuple[Array, Array]:
    index = jnp.arange(count, dtype=jnp.uint32)
    ranges = _of_each(ranges, rel, count)

    draw_src = _drawing(graph, _SRC, ranges.src, key, power)
    draw_dst = _drawing(graph, _DST, ranges.dst, key, power)

    def draw(step: Array) -> tuple[tuple[Array, ...], Array]:
        src, right = draw_src(index, step)
        dst, accepted = draw_dst(index, step)
        accepted &= right
        if exclude:
            accepted &= ~has_edge(graph, types, src, dst, rel)
        return (src, dst), accepted

    none = jnp.full(count, PADDING, graph.indptr.dtype)
    (src, dst), _ = redrawn(draw, (none, none), jnp.zeros(count, bool), ROUNDS)
    return src, dst


_drawn = jax.jit(_drawn_plain, static_argnums=(5, 6, 7))


def _corrupted_plain(
    graph: Graph,
    types: Array | None,
    ranges: Ranges,
    given: tuple[Array, ...],
    key: tuple[Array, Array],
    num: int,
    side: Side,
    power: float,
    exclude: bool,
) -> tuple[Array, Array]:
    count, dtype = given[0].shape[0], graph.indptr.dtype
    sizes = graph.num_src, graph.num_dst, *(ranges.src[0].shape if len(given) == 3 else ())
    ids = [
        jnp.repeat(as_nodes(each, size, dtype), num)
        for each, size in zip(given, sizes, strict=True)
    ]
    src, dst = ids[:2]
    rel = ids[2] if len(given) == 3 else None
    there = (src >= 0) & (dst >= 0)
    if rel is not None:
        there &= rel >= 0
    ranges = _of_each(ranges, rel, count * num)
    index = jnp.arange(count * num, dtype=jnp.uint32)
    draw_src = _drawing(graph, _SRC, ranges.src, key, power)
    draw_dst = _drawing(graph, _DST, ranges.dst, key, power)

    def draw(step: Array) -> tuple[tuple[Array, ...], Array]:
        new_src, new_dst, accepted = src, dst, there
        of_src = jnp.full(index.shape, side == "src")
        if side == "both":  # again in each round: all pairs that may be drawn have their odds
            of_src = (bits(key, _SIDE, index, step)[0] >> jnp.uint32(31)) == 0
        if side != "dst":
            node, right = draw_src(index, step)
            new_src, accepted = jnp.where(of_src, node, src), accepted & (right | ~of_src)
        if side != "src":
            node, right = draw_dst(index, step)
            new_dst, accepted = jnp.where(of_src, dst, node), accepted & (right | of_src)
        if exclude:
            accepted &= ~has_edge(graph, types, new_src, new_dst, rel)
        return (new_src, new_dst), accepted

    none = jnp.full(count * num, PADDING, dtype)
    (src, dst), _ = redrawn(draw, (none, none), ~there, ROUNDS)
    return src.reshape(count, num), dst.reshape(count, num)


_corrupted = jax.jit(_corrupted_plain, static_argnums=(5, 6, 7, 8))
