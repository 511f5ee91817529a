"""Random walks along edges: each edge equally likely, or weighed by where the walk came from."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, in_range, take_ids
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.sampling._random import below, bits, key_words, threefry
from jax_gnn.sampling._rows import as_nodes, one_kind, row_bounds
from jax_gnn.sampling._search import edge_runs, fraction, has_edge, redrawn

_EDGE, _RETURN, _ACCEPT, _CLASS, _NEAR, _FAR = range(6)  # streams of random numbers
_CERTAIN = 40  # rounds are so many times those that a draw takes on average: all but e⁻⁴⁰ succeed
_MIN_ROUNDS = 64  # before edges are counted instead
_CHUNK = 32  # edges of a walk that are counted at a time
_ROUNDS_COST = 8  # edges that are counted in the time of a proposal, about
_MAX_LOG_WEIGHT = 41.0  # of proposals: a chance of e⁻⁴¹ is below the resolution of a draw


@public
def random_walk(
    graph: Graph,
    starts: Any,
    length: int,
    key: Any,
    *,
    p: float = 1.0,
    q: float = 1.0,
    reverse: bool = False,
) -> Array:
    """Walks from nodes along edges, at each step along one of the edges out of where it is.

    Works inside ``jax.jit`` and outside. With ``p = q = 1`` all edges out of a node are equally
    likely. Otherwise these are the walks of node2vec: at v, having come from t, an edge to x is
    taken in proportion to 1 / p where x is t, to 1 where there is an edge from t to x, and to 1 / q
    elsewhere. This is exact, and needs no table of pairs of edges: edges are proposed and rejected,
    which takes longer the further p and q are from 1. Where many proposals fail, the edges of each
    kind are counted instead, in the time of a pass over the edges of the largest node at hand. An
    edge that the graph has twice counts twice.

    Args:
        graph: of one kind of nodes.
        starts: ``(walks,)`` integers. -1, as any id out of range, is padding.
        length: how many steps.
        key: of ``jax.random``.
        p: the return parameter, positive: a large one keeps walks from going back.
        q: the in-out parameter, positive: a large one keeps walks close to where they came from.
        reverse: whether to walk from destinations to sources: as neighbours are sampled.

    Returns:
        ``(walks, length + 1)`` ids, the starts first. Where no edge leads on, the rest is -1.

    Raises:
        TypeError: ``graph``, ``starts`` or ``key`` is something else, or a number is none.
        ValueError: ``length`` is negative, ``p`` or ``q`` is not positive, or the graph is
            bipartite.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 3], num_nodes=4)
        >>> random_walk(graph, jnp.array([0, 2]), 3, jax.random.key(0))
        Array([[ 0,  1,  2,  3],
               [ 2,  3, -1, -1]], dtype=int32)

    Source:
        Grover and Leskovec, "node2vec: scalable feature learning for networks", KDD 2016.
    """
    graph = arguments.check_container("graph", graph, Graph)
    num_nodes = one_kind(graph)
    starts = as_nodes(arguments.as_ids("starts", starts), num_nodes, graph.indptr.dtype)
    length = arguments.check_size("length", length)
    parameters = [arguments.check_finite(name, value) for name, value in (("p", p), ("q", q))]
    for name, value in zip("pq", parameters, strict=True):
        if value <= 0:
            raise ValueError(f"{name} must be positive, got {value}")
    reverse = arguments.check_flag("reverse", reverse)
    return _walk(graph, starts, key_words("key", key), length, *parameters, reverse)


def _walk_plain(
    graph: Graph,
    starts: Array,
    key: tuple[Array, Array],
    length: int,
    p: float,
    q: float,
    reverse: bool,
) -> Array:
    def step(state: tuple[Array, Array], number: Array) -> Any:
        before, at = state
        words = threefry(key, number, jnp.uint32(0))
        new = _step(graph, before, at, words, p, q, reverse)
        return (at, new), new

    numbers = jnp.arange(length, dtype=jnp.uint32)
    nowhere = jnp.full_like(starts, PADDING)
    _, visited = jax.lax.scan(step, (nowhere, starts), numbers)
    return jnp.concatenate([starts[:, None], visited.T], axis=1)


_walk = jax.jit(_walk_plain, static_argnums=(3, 4, 5, 6))


def _step(
    graph: Graph,
    before: Array,
    at: Array,
    key: tuple[Array, Array],
    p: float,
    q: float,
    reverse: bool,
) -> Array:
    """Where walks go next.

    Args:
        graph: the graph.
        before: ``(walks,)``, where they came from, -1 for nowhere.
        at: ``(walks,)``, where they are, -1 for nowhere.
        key: two words.
        p: the return parameter.
        q: the in-out parameter.
        reverse: whether to go against the edges.
    """
    indptr, cols = (graph.indptr, graph.cols) if reverse else (graph.t_indptr, graph.t_cols)
    starts, degrees = row_bounds(indptr, at, graph.num_edges)
    index = jnp.arange(at.shape[0], dtype=jnp.uint32)

    def propose(step: Any) -> Array:
        offset = below(bits(key, _EDGE, index, step), degrees.astype(jnp.uint32))
        node = take_ids(cols, jnp.where(degrees > 0, starts + offset.astype(starts.dtype), PADDING))
        return jnp.where(in_range(node, graph.num_dst), node, PADDING)

    if p == q == 1:
        return propose(0)

    back, far = (
        math.exp(min(max(-math.log(value), -_MAX_LOG_WEIGHT), _MAX_LOG_WEIGHT)) for value in (p, q)
    )
    ends = (before, at) if reverse else (at, before)
    _, returns = edge_runs(graph, None, *ends, None)
    returns = jnp.minimum(returns, degrees)
    # Edges back have their own share. Of all edges one is proposed by the largest other weight:
    # where it leads back, it is rejected.
    largest = max(1.0, far)
    share = returns.astype(jnp.float32) * jnp.float32(back)
    total = share + degrees.astype(jnp.float32) * jnp.float32(largest)
    is_first = before < 0

    def near(node: Array, before: Array) -> Array:
        """Whether an edge leads from where the walk came from to a node."""
        return has_edge(graph, None, *((node, before) if reverse else (before, node)), None)

    def draw(step: Array) -> tuple[tuple[Array, ...], Array]:
        node = propose(step)
        goes_back = fraction(bits(key, _RETURN, index, step)[0]) * total < share
        goes_back |= (returns == degrees) & ~is_first
        weight = jnp.where(near(node, before), jnp.float32(1 / largest), jnp.float32(far / largest))
        accepted = fraction(bits(key, _ACCEPT, index, step)[0]) < weight
        accepted &= node != before
        return (jnp.where(goes_back, before, node),), goes_back | accepted | is_first

    # A draw succeeds at least so often, however many edges lead back.
    rate = min(1 / (1 + 2 * largest / back), min(1.0, far) / (2 * largest))
    certain = math.ceil(min(_CERTAIN / rate, 2.0**24 - 1))
    rounds = jnp.minimum(jnp.maximum(degrees.max(initial=0) // _ROUNDS_COST, _MIN_ROUNDS), certain)
    nowhere = jnp.full_like(at, PADDING)
    (node,), found = redrawn(draw, (nowhere,), degrees == 0, rounds.astype(jnp.uint32))
    if certain <= _MIN_ROUNDS:
        return node

    # Edges that do not lead back, near and far, are counted in chunks, and one of either kind is
    # drawn: the one so far, or with the chance that its share makes one of the chunk.
    left = jnp.where(found, 0, degrees)

    def count(state: Any) -> Any:
        chunk, *kinds = state
        places = chunk * _CHUNK + jnp.arange(_CHUNK, dtype=starts.dtype)[None]
        places = jnp.where(places < left[:, None], starts[:, None] + places, PADDING)
        nodes = take_ids(cols, places)
        others = in_range(nodes, graph.num_dst) & (nodes != before[:, None])
        origins = jnp.broadcast_to(before[:, None], nodes.shape)
        is_near = near(nodes.ravel(), origins.ravel()).reshape(nodes.shape)
        masks = {_NEAR: others & is_near, _FAR: others & ~is_near}
        new = []
        for (stream, mask), (number, chosen) in zip(masks.items(), kinds, strict=True):
            ranks = jnp.cumsum(mask, axis=1, dtype=jnp.uint32)
            number += ranks[:, -1]
            rank = below(bits(key, stream, index, chunk), number)
            hit = mask & (ranks == rank[:, None] + 1)
            chosen = jnp.where(hit.any(1), jnp.where(hit, nodes, PADDING).max(1), chosen)
            new.append((number, chosen))
        return chunk + 1, *new

    def goes_on(state: Any) -> Array:
        return (state[0] * _CHUNK < left).any()

    none = jnp.zeros_like(left, jnp.uint32), nowhere
    first = jnp.zeros((), starts.dtype)
    _, *kinds = jax.lax.while_loop(goes_on, count, (first, none, none))
    # By logarithms: where both classes that exist weigh next to nothing, their ratio counts.
    logs = [
        jnp.log(number.astype(jnp.float32)) - math.log(value)
        for number, value in ((returns, p), (kinds[0][0], 1.0), (kinds[1][0], q))
    ]
    top = jnp.maximum(jnp.stack(logs).max(0), -1e30)  # finite, where there is no edge at all
    sums = jnp.cumsum(jnp.stack([jnp.exp(log - top) for log in logs]), axis=0)
    ticket = fraction(bits(key, _CLASS, index, 0)[0]) * sums[-1]
    drawn = jnp.where(ticket < sums[1], kinds[0][1], kinds[1][1])
    return jnp.where(found, node, jnp.where(ticket < sums[0], before, drawn))
