"""Negative edges: random pairs of nodes, and given edges of which one end is drawn anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, take_ids
from jax_gnn._core.public import public
from jax_gnn._core.random_bits import KeyWords, bits, fraction, integers_below, key_words
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph, edges_of
from jax_gnn.sampling._compile import jit
from jax_gnn.sampling._rows import Ids, as_nodes, row_bounds
from jax_gnn.sampling._search import check_graph_kind, check_links, has_edge, rejection_sample

Side = Literal["src", "dst", "both"]
NumNodes = ArrayLike | tuple[ArrayLike, ArrayLike] | None
MAX_ROUNDS = 128
_SRC, _DST, _ACCEPT, _SIDE = 0, 1, 2, 4  # random streams; _ACCEPT has one for each end


@public
def negative_edges(
    graph: Graph | RelationalGraph,
    num: int,
    key: Array,
    *,
    degree_power: float = 0.0,
    exclude_edges: bool = False,
    num_nodes: NumNodes = None,
) -> tuple[Array, Array]:
    """Draw pairs of nodes, as edges that a model should tell from true ones.

    Works inside ``jax.jit`` and outside. The same key gives the same pairs on every device, unless
    a power of degrees is rounded otherwise there. A power between 0 and 1 makes a table of the
    nodes in each call; other powers need none.

    Args:
        graph: the graph of the nodes. If relations are known to run between types of nodes
            (:attr:`jax_gnn.RelationalGraph.relation_ends`), so do the pairs.
        num: number of pairs; of a relational graph, for each relation.
        key: key of ``jax.random``.
        degree_power: power of the degree, from 0 to 1, to which a node's probability is
            proportional. Both ends are drawn independently: sources by edges out of them,
            destinations by edges into them. 0 is uniform, 0.75 that of word2vec (Mikolov et al.,
            NeurIPS 2013).
        exclude_edges: whether pairs that are edges, of that relation, are rejected; the odds of all
            other pairs stay. Edges are looked up by binary search.
        num_nodes: bound of the ids, to skip the padding of a padded graph; an integer, which may be
            traced, or two of a bipartite graph, (num_src, num_dst). By default the graph's. Nodes
            of a known type are drawn from the whole type.

    Returns:
        Sources and destinations, ``(num,)`` or ``(num_relations, num)`` ids each. Both are -1 where
        128 rounds gave no pair: there may be none.

    Raises:
        ValueError: A number is negative, or ``degree_power`` above 1.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
        >>> src, dst = negative_edges(graph, 100, jax.random.key(0), exclude_edges=True)
        >>> sorted(set(zip(src.tolist(), dst.tolist())))
        [(0, 0), (0, 2), (1, 0), (1, 1), (2, 1), (2, 2)]
    """
    graph, candidates = _parse(graph, num_nodes)
    num = arguments.check_size("num", num)
    shape: tuple[int, ...] = (num,)
    rel = None
    if isinstance(graph, RelationalGraph):
        shape = (graph.num_relations, num)
        numbers = np.arange(graph.num_relations, dtype=candidates.edges.indptr.dtype)
        rel = jnp.asarray(np.repeat(numbers, num))
    power = _check_power(degree_power)
    exclude_edges = arguments.check_flag("exclude_edges", exclude_edges)
    words = key_words("key", key)
    count, sides = math.prod(shape), get_args(Side)[:2]
    src, dst = _draw_pairs(candidates, None, rel, words, count, sides, power, exclude_edges)
    return src.reshape(shape), dst.reshape(shape)


@public
def corrupted_edges(
    graph: Graph | RelationalGraph,
    src: Ids,
    dst: Ids,
    num: int,
    key: Array,
    *,
    rel: Ids | None = None,
    side: Side = "both",
    degree_power: float = 0.0,
    exclude_edges: bool = False,
    num_nodes: NumNodes = None,
) -> tuple[Array, Array]:
    """Draw one end of each given edge anew, as negatives to train it against.

    Bordes et al., "Translating embeddings for modeling multi-relational data", NeurIPS 2013. Works
    inside ``jax.jit`` and outside. Other arguments: as in :func:`negative_edges`.

    Args:
        graph: the true edges.
        src: ``(count,)`` integers, sources of the given edges. -1, as any id out of range, is
            padding.
        dst: ``(count,)`` integers, destinations of the given edges.
        num: number of negatives for each edge.
        key: key of ``jax.random``.
        rel: ``(count,)`` integers, relations of the given edges, if ``graph`` is relational. If
            types of nodes are known, nodes are drawn from the types of the relation.
        side: end that is drawn: ``"src"``, the head; ``"dst"``, the tail; ``"both"``: either, by
            the toss of a coin. With ``exclude_edges`` the coin is tossed again where an edge was
            drawn, so that the side with more pairs that are no edges is drawn more often.
        degree_power: power of the degree in a node's probability.
        exclude_edges: whether pairs that are edges are rejected.
        num_nodes: bound of the ids.

    Returns:
        Sources and destinations, ``(count, num)`` ids each. Both are -1 for padding and where
        128 rounds gave no pair: there may be none.

    Raises:
        TypeError: An argument is of another type, or ``rel`` is missing or must not be given.
        ValueError: Lengths differ, a number is negative, ``side`` is unknown, or ``degree_power``
            above 1.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
        >>> src, dst = corrupted_edges(
        ...     graph, [0], [1], 8, jax.random.key(0), side="dst", exclude_edges=True
        ... )
        >>> sorted(set(zip(src[0].tolist(), dst[0].tolist())))
        [(0, 0), (0, 2)]
    """
    graph, candidates = _parse(graph, num_nodes)
    links = check_links(graph, src, dst, rel)
    num = arguments.check_size("num", num)
    arguments.check_choice("side", side, get_args(Side))
    power = _check_power(degree_power)
    exclude_edges = arguments.check_flag("exclude_edges", exclude_edges)
    words = key_words("key", key)
    src, dst = _draw_pairs(candidates, links, None, words, num, (side,), power, exclude_edges)
    shape = links[0].shape[0], num
    return src.reshape(shape), dst.reshape(shape)


# --- Arguments -----------------------------------------------------------------------------------

Bounds = tuple[Array, Array]
"""Smallest id and end of the range of nodes that are drawn: scalars, or one for each relation."""


class Candidates(NamedTuple):
    """True edges, and the ranges of nodes that may be drawn."""

    edges: Graph  # the true edges
    types: Array | None  # (num_edges,), relations of the edges; None without relations
    src: Bounds  # range of the sources
    dst: Bounds  # range of the destinations


def _parse(graph: object, num_nodes: NumNodes) -> tuple[Graph | RelationalGraph, Candidates]:
    checked = check_graph_kind(graph)
    edges = edges_of(checked)
    dtype = edges.indptr.dtype
    sizes = num_nodes if isinstance(num_nodes, tuple | list) else (num_nodes, num_nodes)
    if len(sizes) != 2:
        raise ValueError(f"num_nodes must be one integer or two, got {len(sizes)}")
    stops = _stop(sizes[0], edges.num_src, dtype), _stop(sizes[1], edges.num_dst, dtype)
    if not isinstance(checked, RelationalGraph):
        zero = jnp.zeros((), dtype)
        return checked, Candidates(edges, None, (zero, stops[0]), (zero, stops[1]))
    # Ranges by relation: all nodes of the type at that end, if it is known.
    ends = checked.relation_ends or (None,) * checked.num_relations
    ranges = []
    for side, stop in enumerate(stops):
        slices = [checked.node_slices[end[side]] if end else slice(0, -1) for end in ends]
        low, high = np.array([(s.start, s.stop) for s in slices], dtype).reshape(-1, 2).T
        ranges.append((jnp.asarray(low), jnp.where(high < 0, stop, high)))
    return checked, Candidates(edges, checked.edge_types, ranges[0], ranges[1])


def _stop(num_nodes: ArrayLike | None, size: int, dtype: DTypeLike) -> Array:
    if num_nodes is None:
        return jnp.asarray(size, dtype)
    if not isinstance(num_nodes, jax.Array):
        num_nodes = jnp.asarray(arguments.check_size("num_nodes", num_nodes))
    if num_nodes.shape or not jnp.issubdtype(num_nodes.dtype, np.integer):
        raise TypeError(f"num_nodes must be an integer, got {arguments.described(num_nodes)}")
    return jnp.clip(num_nodes, 0, size).astype(dtype)


def _check_power(power: object) -> float:
    number = float(arguments.check_finite("degree_power", power))
    if not 0 <= number <= 1:
        raise ValueError(f"degree_power must be between 0 and 1, got {number}")
    return number


# --- Draws ---------------------------------------------------------------------------------------

NodeSampler = Callable[[Array, Array], tuple[Array, Array]]
"""Maps indices and the round to proposed nodes, and whether they are accepted."""


def _node_sampler(
    graph: Graph, side: int, bounds: Bounds, key: KeyWords, power: float
) -> NodeSampler:
    """Return a sampler of one end: nodes have shares of tickets, and a random ticket is drawn."""
    low, high = bounds
    by_src = side == _SRC
    indptr, rows = (graph.t_indptr, graph.t_rows) if by_src else (graph.indptr, graph.rows)
    accept_rates = None
    if power == 0:  # one ticket for each node
        first, stop = low, high
    elif power == 1:  # one ticket for each edge
        first, stop = (jnp.clip(indptr[ids], 0, graph.num_edges) for ids in (low, high))
    else:
        starts, accept_rates = _ticket_shares(indptr, graph.num_edges, power)
        first, stop = starts[low], starts[high]
    size = jnp.where(stop > first, stop - first, 0).astype(jnp.uint32)

    def draw(index: Array, step: Array) -> tuple[Array, Array]:
        ticket = first + integers_below(bits(key, side, index, step), size).astype(first.dtype)
        node = ticket
        if power == 1:
            node = take_ids(rows, ticket)
        elif power:
            node = jnp.searchsorted(starts, ticket, side="right").astype(low.dtype) - 1
        accepted = (size > 0) & (node >= low) & (node < high)
        if accept_rates is not None:
            coin = fraction(bits(key, _ACCEPT + side, index, step)[0])
            accepted &= coin < accept_rates.at[node].get(mode="clip")
        return jnp.where(accepted, node, PADDING), accepted

    return draw


def _ticket_shares(indptr: Array, num_edges: int, power: float) -> tuple[Array, Array]:
    """Return the start of each node's share of 2³¹ tickets, by a power of its degree, in uint32.

    Shares are rounded up: the second result is the rate at which a node's tickets are accepted.
    """
    nodes = jnp.arange(indptr.shape[0] - 1, dtype=indptr.dtype)
    _, degrees = row_bounds(indptr, nodes, num_edges)
    logarithms = jnp.log(jnp.maximum(degrees, 1).astype(jnp.float32))
    exact = jnp.where(degrees > 0, jnp.exp(jnp.float32(power) * logarithms), jnp.float32(0))
    limit = jnp.float32(0.9 * (2**31 - nodes.shape[0]))
    # Scaled by a power of two, so that devices which sum in another order get the same shares.
    exponent = jnp.floor(jnp.log2(limit / jnp.maximum(exact.sum(), 1)))
    exact = jnp.ldexp(exact, exponent.astype(jnp.int32))
    shares = jnp.ceil(exact).astype(jnp.uint32)
    starts = jnp.concatenate([jnp.zeros(1, jnp.uint32), jnp.cumsum(shares, dtype=jnp.uint32)])
    return starts, exact / jnp.maximum(shares, 1).astype(jnp.float32)


@jit("num", "sides", "power", "exclude")
def _draw_pairs(
    candidates: Candidates,  # the nodes to draw from
    # Sources, destinations and any relations of edges of which an end is kept; None if both ends
    # are drawn.
    links: tuple[Array, ...] | None,
    rel: Array | None,  # (num,), relation of each pair, if it has one and there are no `links`
    key: KeyWords,  # two words
    num: int,  # number of pairs, for each of `links` if there are any
    # Ends that are drawn: both of a pair, or one, which a coin decides if it is "both".
    sides: tuple[Side, ...],
    power: float,  # power of the degree
    exclude: bool,  # whether true edges are rejected
) -> tuple[Array, Array]:
    """Draw pairs of nodes."""
    graph, count = candidates.edges, num
    src = dst = jnp.full(num, PADDING, graph.indptr.dtype)
    valid = jnp.ones(num, bool)
    if links is not None:
        count = links[0].shape[0] * num
        sizes = [graph.num_src, graph.num_dst, *candidates.src[0].shape]
        src, dst, *relations = (
            jnp.repeat(as_nodes(ids, size, graph.indptr.dtype), num)
            for ids, size in zip(links, sizes, strict=True)
        )
        valid = (src >= 0) & (dst >= 0)
        if relations:
            rel = relations[0]
            valid &= rel >= 0
    index = jnp.arange(count, dtype=jnp.uint32)
    draws = []
    for side, bounds in ((_SRC, candidates.src), (_DST, candidates.dst)):
        low, high = (
            jnp.broadcast_to(bound, count) if rel is None else take_ids(bound, rel)
            for bound in bounds
        )
        draws.append(_node_sampler(graph, side, (low, high), key, power))
    draw_src, draw_dst = draws

    def propose(step: Array) -> tuple[tuple[Array, ...], Array]:
        new_src, new_dst, accepted = src, dst, valid
        keeps_src = jnp.full(count, sides == ("dst",))
        keeps_dst = jnp.full(count, sides == ("src",))
        if sides == ("both",):  # tossed again in each round, so that allowed pairs keep their odds
            keeps_src = (bits(key, _SIDE, index, step)[0] >> jnp.uint32(31)) != 0
            keeps_dst = ~keeps_src
        if sides != ("dst",):
            node, node_accepted = draw_src(index, step)
            new_src = jnp.where(keeps_src, src, node)
            accepted = accepted & (node_accepted | keeps_src)
        if sides != ("src",):
            node, node_accepted = draw_dst(index, step)
            new_dst = jnp.where(keeps_dst, dst, node)
            accepted = accepted & (node_accepted | keeps_dst)
        if exclude:
            accepted &= ~has_edge(graph, candidates.types, new_src, new_dst, rel)
        return (new_src, new_dst), accepted

    padding = jnp.full(count, PADDING, graph.indptr.dtype)
    (src, dst), _ = rejection_sample(propose, (padding, padding), ~valid, MAX_ROUNDS)
    return src, dst
