"""Random walks along edges: each edge equally likely, or weighed by where the walk came from."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, ids_at, in_range
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.sampling._random import below, bits, key_words, threefry
from jax_gnn.sampling._rows import as_nodes, one_kind, row_bounds
from jax_gnn.sampling._search import edge_runs, fraction, has_edge, redrawn

_EDGE, _RETURN, _ACCEPT = 0, 1, 2  # streams of random numbers
_CERTAIN = 40  # rounds are so many times those that a draw takes on average: all but e⁻⁴⁰ succeed


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
    elsewhere. This is exact: edges are proposed and rejected, so that it needs no table of pairs of
    edges, and takes longer the further p and q are from 1. An edge that the graph has twice counts
    twice.

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
    weights = []
    for name, value in (("p", p), ("q", q)):
        value = arguments.check_finite(name, value)
        if value <= 0:
            raise ValueError(f"{name} must be positive, got {value}")
        weights.append(1 / value)
    reverse = arguments.check_flag("reverse", reverse)
    return _walk(graph, starts, key_words("key", key), length, *weights, reverse)


def _walk_plain(
    graph: Graph,
    starts: Array,
    key: tuple[Array, Array],
    length: int,
    back: float,
    far: float,
    reverse: bool,
) -> Array:
    def step(state: tuple[Array, Array], number: Array) -> Any:
        before, at = state
        words = threefry(key, number, jnp.uint32(0))
        new = _step(graph, before, at, words, back, far, reverse)
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
    back: float,
    far: float,
    reverse: bool,
) -> Array:
    """Where walks go next.

    Args:
        graph: the graph.
        before: ``(walks,)``, where they came from, -1 for nowhere.
        at: ``(walks,)``, where they are, -1 for nowhere.
        key: two words.
        back: how likely an edge back is: 1 / p.
        far: how likely an edge is that leads away from where the walk came from: 1 / q.
        reverse: whether to go against the edges.
    """
    indptr, cols = (graph.indptr, graph.cols) if reverse else (graph.t_indptr, graph.t_cols)
    starts, degrees = row_bounds(indptr, at, graph.num_edges)
    index = jnp.arange(at.shape[0], dtype=jnp.uint32)

    def propose(step: Any) -> Array:
        offset = below(bits(key, _EDGE, index, step), degrees.astype(jnp.uint32))
        node = ids_at(cols, jnp.where(degrees > 0, starts + offset.astype(starts.dtype), PADDING))
        return jnp.where(in_range(node, graph.num_dst), node, PADDING)

    if back == far == 1:
        return propose(0)

    ends = (before, at) if reverse else (at, before)
    _, returns = edge_runs(graph, None, *ends, None)
    returns = jnp.minimum(returns, degrees)
    # Edges back have their own share. Of all edges one is proposed by the largest other weight:
    # where it leads back, it is rejected.
    largest = max(1.0, far)
    share = returns.astype(jnp.float32) * jnp.float32(back)
    total = share + degrees.astype(jnp.float32) * jnp.float32(largest)
    is_first = before < 0

    def draw(step: Array) -> tuple[tuple[Array, ...], Array]:
        node = propose(step)
        goes_back = fraction(bits(key, _RETURN, index, step)[0]) * total < share
        goes_back |= (returns == degrees) & ~is_first
        ends = (node, before) if reverse else (before, node)
        is_near = has_edge(graph, None, *ends, None)
        weight = jnp.where(is_near, jnp.float32(1 / largest), jnp.float32(far / largest))
        accepted = fraction(bits(key, _ACCEPT, index, step)[0]) < weight
        accepted &= node != before
        return (jnp.where(goes_back, before, node),), goes_back | accepted | is_first

    # A draw succeeds at least so often, however many edges lead back.
    rate = min(1 / (1 + 2 * largest / back), min(1.0, far) / (2 * largest))
    rounds = min(math.ceil(_CERTAIN / rate), 2**24 - 1)
    nowhere = jnp.full_like(at, PADDING)
    (node,), _ = redrawn(draw, (nowhere,), degrees == 0, rounds)
    return node
