"""Random walks along edges: uniform, or weighted by the node that the walk came from (node2vec)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, in_range, take_ids
from jax_gnn._core.public import public
from jax_gnn._core.random_bits import KeyWords, bits, fraction, integers_below, key_words, threefry
from jax_gnn.graph import Graph
from jax_gnn.sampling._compile import jit
from jax_gnn.sampling._rows import Ids, as_nodes, num_nodes_of, row_bounds
from jax_gnn.sampling._search import edge_runs, has_edge, rejection_sample

_EDGE, _RETURN, _ACCEPT, _CLASS, _NEAR, _FAR = range(6)  # random streams
_SAFETY = 40  # rounds per expected round of a draw: all but a share e⁻⁴⁰ succeed
_MIN_ROUNDS = 64  # before edges are counted instead
_CHUNK = 32  # edges of a walk that are counted at a time
_ROUND_COST = 8  # edges that are counted in about the time of a proposal
_MAX_LOG_WEIGHT = 41.0  # of proposals: a chance of e⁻⁴¹ is below the resolution of a draw


@public
def random_walk(
    graph: Graph,
    starts: Ids,
    length: int,
    key: Array,
    *,
    p: float = 1.0,
    q: float = 1.0,
    reverse: bool = False,
) -> Array:
    """Walk from nodes along edges; each step takes one of the edges out of the current node.

    Works inside ``jax.jit`` and outside. With ``p = q = 1`` all edges out of a node are equally
    likely. Otherwise these are the walks of node2vec (Grover and Leskovec, KDD 2016): at v, having
    come from t, an edge to x is taken in proportion to 1 / p if x is t, to 1 if there is an edge
    from t to x, and else to 1 / q. This is exact, and needs no table of pairs of edges: edges are
    proposed and rejected, which takes longer the further p and q are from 1. If many proposals
    fail, the edges of each kind are counted instead, in the time of a pass over the edges of the
    largest current node. Repeated edges count as often as they occur.

    Args:
        graph: graph of one kind of nodes.
        starts: ``(walks,)`` integers. -1, as any id out of range, is padding.
        length: number of steps.
        key: key of ``jax.random``.
        p: the return parameter, positive: a large one keeps walks from going back.
        q: the in-out parameter, positive: a large one keeps walks close to where they came from.
        reverse: whether to walk from destinations to sources, as neighbours are sampled.

    Returns:
        ``(walks, length + 1)`` ids, the starts first. A walk that reaches a node without edges is
        padded with -1.

    Raises:
        ValueError: A number is negative, or the graph is bipartite.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 3], num_nodes=4)
        >>> random_walk(graph, jnp.array([0, 2]), 3, jax.random.key(0))
        Array([[ 0,  1,  2,  3],
               [ 2,  3, -1, -1]], dtype=int32)
    """
    graph = arguments.check_container("graph", graph, Graph)
    num_nodes = num_nodes_of(graph)
    nodes = as_nodes(arguments.as_ids("starts", starts), num_nodes, graph.indptr.dtype)
    length = arguments.check_size("length", length)
    p, q = arguments.check_finite("p", p), arguments.check_finite("q", q)
    for name, value in (("p", p), ("q", q)):
        if value <= 0:
            raise ValueError(f"{name} must be positive, got {value}")
    reverse = arguments.check_flag("reverse", reverse)
    return walk(graph, nodes, key_words("key", key), length, p, q, reverse)


@jit("length", "p", "q", "reverse")
def walk(
    graph: Graph, starts: Array, key: KeyWords, length: int, p: float, q: float, reverse: bool
) -> Array:
    """Return :func:`random_walk` of checked arguments."""

    def step(state: tuple[Array, Array], number: Array) -> tuple[tuple[Array, Array], Array]:
        previous, current = state
        words = threefry(key, number, jnp.uint32(0))
        next_node = _step(graph, previous, current, words, p, q, reverse)
        return (current, next_node), next_node

    numbers = jnp.arange(length, dtype=jnp.uint32)
    padding = jnp.full_like(starts, PADDING)
    _, visited = jax.lax.scan(step, (padding, starts), numbers)
    return jnp.concatenate([starts[:, None], visited.T], axis=1)


def _step(
    graph: Graph, previous: Array, current: Array, key: KeyWords, p: float, q: float, reverse: bool
) -> Array:
    """Return the next node of each walk.

    Previous nodes, ``(walks,)``, are -1 at the first step, current ones if a walk has ended. Other
    arguments: as in :func:`random_walk`.
    """
    indptr, cols = (graph.indptr, graph.cols) if reverse else (graph.t_indptr, graph.t_cols)
    starts, degrees = row_bounds(indptr, current, graph.num_edges)
    index = jnp.arange(current.shape[0], dtype=jnp.uint32)

    def random_neighbor(step: Array | int) -> Array:
        offset = integers_below(bits(key, _EDGE, index, step), degrees.astype(jnp.uint32))
        node = take_ids(cols, jnp.where(degrees > 0, starts + offset.astype(starts.dtype), PADDING))
        return jnp.where(in_range(node, graph.num_dst), node, PADDING)

    if p == q == 1:
        return random_neighbor(0)

    # Rejection sampling. Returning edges have a share of their own. Otherwise one of all edges is
    # proposed as if it had the largest weight of an edge that does not return; if it returns, it is
    # rejected.
    return_weight, far_weight = (
        math.exp(min(max(-math.log(value), -_MAX_LOG_WEIGHT), _MAX_LOG_WEIGHT)) for value in (p, q)
    )
    src, dst = (previous, current) if reverse else (current, previous)
    _, returns = edge_runs(graph, None, src, dst, None)
    returns = jnp.minimum(returns, degrees)
    largest = max(1.0, far_weight)
    return_share = returns.astype(jnp.float32) * jnp.float32(return_weight)
    total = return_share + degrees.astype(jnp.float32) * jnp.float32(largest)
    is_first = previous < 0

    def is_near(node: Array, previous: Array) -> Array:
        """Return whether an edge leads from the previous node to a node."""
        src, dst = (node, previous) if reverse else (previous, node)
        return has_edge(graph, None, src, dst, None)

    def propose(step: Array) -> tuple[tuple[Array, ...], Array]:
        node = random_neighbor(step)
        goes_back = fraction(bits(key, _RETURN, index, step)[0]) * total < return_share
        goes_back |= (returns == degrees) & ~is_first
        near_rate, far_rate = jnp.float32(1 / largest), jnp.float32(far_weight / largest)
        rate = jnp.where(is_near(node, previous), near_rate, far_rate)
        accepted = fraction(bits(key, _ACCEPT, index, step)[0]) < rate
        accepted &= node != previous
        return (jnp.where(goes_back, previous, node),), goes_back | accepted | is_first

    # A lower bound of the rate of success, however many edges return.
    min_rate = min(1 / (1 + 2 * largest / return_weight), min(1.0, far_weight) / (2 * largest))
    max_rounds = math.ceil(min(_SAFETY / min_rate, 2.0**24 - 1))
    rounds = jnp.maximum(degrees.max(initial=0) // _ROUND_COST, _MIN_ROUNDS)
    rounds = jnp.minimum(rounds, max_rounds).astype(jnp.uint32)
    padding = jnp.full_like(current, PADDING)
    (node,), is_done = rejection_sample(propose, (padding,), degrees == 0, rounds)
    if max_rounds <= _MIN_ROUNDS:
        return node

    # Reservoir sampling for the others: near and far edges are counted in chunks, and one edge of
    # each kind is drawn. An edge of a new chunk replaces it with the chance of the chunk's share.
    remaining = jnp.where(is_done, 0, degrees)
    State = tuple[Array, tuple[Array, Array], tuple[Array, Array]]

    def count_chunk(state: State) -> State:
        chunk, near, far = state
        places = chunk * _CHUNK + jnp.arange(_CHUNK, dtype=starts.dtype)[None]
        places = jnp.where(places < remaining[:, None], starts[:, None] + places, PADDING)
        nodes = take_ids(cols, places)
        moves_on = in_range(nodes, graph.num_dst) & (nodes != previous[:, None])
        origins = jnp.broadcast_to(previous[:, None], nodes.shape)
        mask = is_near(nodes.ravel(), origins.ravel()).reshape(nodes.shape)

        def update(stream: int, mask: Array, reservoir: tuple[Array, Array]) -> tuple[Array, Array]:
            number, chosen = reservoir
            ranks = jnp.cumsum(mask, axis=1, dtype=jnp.uint32)
            number += ranks[:, -1]
            rank = integers_below(bits(key, stream, index, chunk), number)
            hit = mask & (ranks == rank[:, None] + 1)
            chosen = jnp.where(hit.any(1), jnp.where(hit, nodes, PADDING).max(1), chosen)
            return number, chosen

        near = update(_NEAR, moves_on & mask, near)
        far = update(_FAR, moves_on & ~mask, far)
        return chunk + 1, near, far

    def is_unfinished(state: State) -> Array:
        return (state[0] * _CHUNK < remaining).any()

    empty = jnp.zeros_like(remaining, jnp.uint32), padding
    state = jnp.zeros((), starts.dtype), empty, empty
    _, near, far = jax.lax.while_loop(is_unfinished, count_chunk, state)
    # In logarithms: the ratio counts even if all kinds of edges that exist weigh next to nothing.
    logs = [
        jnp.log(number.astype(jnp.float32)) - math.log(value)
        for number, value in ((returns, p), (near[0], 1.0), (far[0], q))
    ]
    top = jnp.maximum(jnp.stack(logs).max(0), -1e30)  # finite, even without any edge
    sums = jnp.cumsum(jnp.stack([jnp.exp(log - top) for log in logs]), axis=0)
    ticket = fraction(bits(key, _CLASS, index, 0)[0]) * sums[-1]
    drawn = jnp.where(ticket < sums[1], near[1], far[1])
    return jnp.where(is_done, node, jnp.where(ticket < sums[0], previous, drawn))
