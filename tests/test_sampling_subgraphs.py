"""Subgraphs as batches: their contents and distributions."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampling_checks
from scipy import stats

from jax_gnn import Graph, spmm
from jax_gnn.sampling import (
    Subgraph,
    _subgraphs,
    cluster_batch,
    induced_subgraph,
    saint_norms,
    saint_subgraph,
)

KEY = jax.random.key(0)
NODES, EDGES = 9, 40


def check_subgraph(
    part: Subgraph, graph: Graph, nodes: np.ndarray, room: int, drops_nodes: bool = False
) -> None:
    """Compare all arrays with those of the nodes and of the first edges among them.

    ``drops_nodes``: whether there was no room for further nodes.
    """
    valid_ids = np.array([i if 0 <= i < graph.num_dst else -1 for i in nodes], int)
    # A repeated node is padding.
    repeated = [i in valid_ids[:place] for place, i in enumerate(valid_ids)]
    valid_ids[repeated] = -1
    np.testing.assert_array_equal(part.node_ids, valid_ids)
    count = int(graph.indptr[-1])
    rows, cols = np.asarray(graph.rows)[:count], np.asarray(graph.cols)[:count]
    # Edges among the nodes, by destination in the order of the nodes.
    place = {int(i): number for number, i in enumerate(valid_ids) if i >= 0}
    edges = [e for i in place for e in np.flatnonzero(rows == i) if int(cols[e]) in place]
    assert bool(part.overflow) == (drops_nodes or len(edges) > room)
    edges = edges[:room]
    src, dst = ([place[int(i)] for i in nodes_of_edges[edges]] for nodes_of_edges in (cols, rows))
    want = Graph.from_sorted(src, dst, num_nodes=len(nodes)).pad(num_edges=room)
    for name in ("indptr", "rows", "cols", "t_indptr", "t_rows", "t_cols", "t_order"):
        np.testing.assert_array_equal(getattr(part.graph, name), getattr(want, name))
    np.testing.assert_array_equal(part.graph.edge_ids, np.r_[edges, [-1] * (room - len(edges))])
    assert part.graph.num_input_edges == graph.num_edges


@pytest.mark.parametrize("room", [None, 12, 0])
@pytest.mark.parametrize("count", [0, 1, 7, 20])
def test_edges_among_nodes(rng, count, room):
    graph = sampling_checks.lumpy_graph(rng, NODES, EDGES)
    nodes = rng.integers(-1, NODES + 4, count)
    part = induced_subgraph(graph, nodes, num_edges=room)
    check_subgraph(part, graph, nodes, graph.num_edges if room is None else room)


def test_chunks_of_edges(rng, monkeypatch):
    monkeypatch.setattr(_subgraphs, "CHUNK", 3)
    graph = sampling_checks.lumpy_graph(rng, NODES, EDGES)
    nodes = rng.permutation(NODES)[:6]
    for room in (2, 5, 30):
        part = jax.jit(_subgraphs.induce.__wrapped__, static_argnums=2)(graph, nodes, room)
        check_subgraph(part, graph, nodes, room)


def test_weights_and_features(rng):
    """A product with the subgraph equals one with rows and columns of the dense matrix."""
    src, dst = sampling_checks.lumpy_edges(rng, NODES, EDGES)
    graph = Graph.from_edges(src, dst, num_nodes=NODES)
    weights, x = rng.normal(size=EDGES), rng.normal(size=(NODES, 3))
    # Repeated edges add up.
    dense = np.zeros((NODES, NODES))
    np.add.at(dense, (dst, src), weights)
    nodes = rng.permutation(NODES)[:5]
    part = induced_subgraph(graph, nodes)
    y = spmm(part.graph, x[part.node_ids], part.graph.edge_values(graph.edge_values(weights)))
    np.testing.assert_allclose(y, dense[np.ix_(nodes, nodes)] @ x[nodes], rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(("room", "edges"), [(None, None), (4, 10)])
def test_nodes_of_parts(rng, room, edges):
    graph = sampling_checks.lumpy_graph(rng, NODES, EDGES)
    size = graph.num_nodes
    # Part ids may be far apart; 7 is no part.
    parts = rng.integers(-1, 4, size) * 10**6
    chosen = rng.choice([-1, 0, 10**6, 10**6, 3 * 10**6, 7], 3)
    part = cluster_batch(graph, parts, chosen, num_nodes=room, num_edges=edges)
    nodes = np.flatnonzero((parts >= 0) & np.isin(parts, chosen))
    limit_nodes = size if room is None else room
    padded = np.r_[nodes[:limit_nodes], [-1] * (limit_nodes - len(nodes))].astype(int)
    limit = graph.num_edges if edges is None else edges
    check_subgraph(part, graph, padded, limit, len(nodes) > limit_nodes)


def test_parts_of_nothing():
    graph = Graph.from_edges([0], [1], num_nodes=2)
    assert (np.asarray(cluster_batch(graph, [0, 0], []).node_ids) == -1).all()
    empty = Graph.from_edges([], [], num_nodes=0)
    assert cluster_batch(empty, [], [0]).node_ids.shape == (0,)
    for method in ("node", "edge", "walk"):
        part = saint_subgraph(empty, 3, KEY, method=method)
        assert part.node_ids.shape == (0,)
        lonely = Graph.from_edges([], [], num_nodes=3)
        part = saint_subgraph(lonely, 2, KEY, method=method, num_edges=4)
        # Walks start anywhere; nodes and edges are drawn along edges.
        drawn = np.asarray(part.node_ids)
        assert (drawn == -1).all() != (method == "walk") and not bool(part.overflow)
        assert saint_subgraph(lonely, 0, KEY, method=method).node_ids.shape == (0,)


# --- GraphSAINT ----------------------------------------------------------------------------------


def outcomes(counts: np.ndarray, method: str) -> dict[tuple[int, ...], float]:
    """Return the probability of each set of nodes that one draw gives; walks have one step."""
    size = len(counts)
    out_degrees, in_degrees = counts.sum(1), counts.sum(0)
    chances: dict[tuple[int, ...], float] = {}
    for u in range(size):
        if method == "node":
            chances[u,] = out_degrees[u] / counts.sum()
        if method == "walk" and not out_degrees[u]:
            chances[u,] = 1 / size
        for v in range(size):
            # A pair counts as often as it has edges, in either direction.
            if counts[u, v] and method != "node":
                chance = (
                    1 / out_degrees[u] / size
                    if method == "walk"
                    else 1 / out_degrees[u] + 1 / in_degrees[v]
                )
                nodes = tuple(sorted({u, v}))
                chances[nodes] = chances.get(nodes, 0) + chance * counts[u, v]
    total = sum(chances.values())
    return {nodes: chance / total for nodes, chance in chances.items()}


@partial(jax.jit, static_argnums=(1, 2, 4))
def draw_many(graph: Graph, num: int, method, key, samples: int):
    def draw(key):
        return saint_subgraph(graph, num, key, method=method, walk_length=1, num_edges=60).node_ids

    return jax.vmap(draw)(jax.random.split(key, samples))


@pytest.mark.parametrize("method", ["node", "edge", "walk"])
def test_draws_of_saint_have_their_distribution(rng, method):
    graph = sampling_checks.lumpy_graph(rng, NODES, EDGES)
    counts = sampling_checks.counts_of(graph, graph.num_nodes)
    want = outcomes(counts, method)
    sets = np.asarray(draw_many(graph, 1, method, sampling_checks.key_of(rng), 2_000)).tolist()
    drawn = [tuple(i for i in nodes if i >= 0) for nodes in sets]
    assert set(drawn) <= set(want)
    sampling_checks.check_distribution(
        np.array([drawn.count(nodes) for nodes in want]), np.array(list(want.values()))
    )


@pytest.mark.parametrize("method", ["node", "edge", "walk"])
def test_inclusion_probabilities_of_nodes(rng, method):
    """Binomial test for each node, of several draws with replacement."""
    graph = sampling_checks.lumpy_graph(rng, NODES, EDGES)
    size, samples, num = graph.num_nodes, 2_000, 3
    counts = sampling_checks.counts_of(graph, size)
    single = np.zeros(size)
    for nodes, chance in outcomes(counts, method).items():
        single[list(nodes)] += chance
    drawn = np.asarray(draw_many(graph, num, method, sampling_checks.key_of(rng), samples))
    for row in drawn[:20]:
        ids = row[row >= 0]
        assert (np.diff(ids) > 0).all() and (row[len(ids) :] == -1).all()
    for node in range(size):
        # Draws are independent: 1 - (1 - c)^num.
        hits, chance = int((drawn == node).sum()), 1 - (1 - single[node]) ** num
        assert stats.binomtest(hits, samples, min(chance, 1)).pvalue > sampling_checks.LEVEL / size


@pytest.mark.parametrize("method", ["node", "edge", "walk"])
def test_norms_make_sums_unbiased(rng, method):
    """Norms are exact over the subgraphs in which they were counted."""
    graph = sampling_checks.lumpy_graph(rng, NODES, EDGES)
    size, samples, key = graph.num_nodes, 30, sampling_checks.key_of(rng)

    def sample(key) -> Subgraph:
        return saint_subgraph(graph, 3, key, method=method, num_edges=45)

    node_norm, edge_norm = map(
        np.asarray, jax.jit(lambda key: saint_norms(graph, sample, key, num_samples=samples))(key)
    )
    nodes, edges = np.zeros(size, int), np.zeros(graph.num_edges, int)
    # The mean of the weighted sums over the subgraphs.
    losses, value = rng.normal(size=size), 0.0
    for number in range(samples):
        part = sample(jax.random.fold_in(key, number))
        ids, edge_ids = np.asarray(part.node_ids), np.asarray(part.graph.edge_ids)
        ids, edge_ids = ids[ids >= 0], edge_ids[edge_ids >= 0]
        nodes[ids] += 1
        edges[edge_ids] += 1
        value += (node_norm[ids] * losses[ids]).sum() / samples
    np.testing.assert_allclose(value, losses[nodes > 0].sum(), rtol=1e-4, atol=1e-4)
    rows = np.asarray(graph.rows)
    want = np.maximum(nodes, 1)[rows] / np.maximum(edges, 1)
    np.testing.assert_allclose(edge_norm, np.where(rows < 0, 0, want), rtol=1e-6)
    np.testing.assert_allclose(node_norm, samples / np.maximum(nodes, 1), rtol=1e-6)


# --- Inside jit, and bad input -------------------------------------------------------------------


CALLS = {
    "induced_subgraph": lambda graph, ids, key: induced_subgraph(graph, ids, num_edges=20),
    "cluster_batch": lambda graph, ids, key: cluster_batch(
        graph, jnp.arange(graph.num_nodes) // 2, ids, num_nodes=6, num_edges=20
    ),
    **{
        method: lambda graph, ids, key, method=method: saint_subgraph(
            graph, 3, key, method=method, num_edges=20
        )
        for method in ("node", "edge", "walk")
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_one_program_gives_the_same_inside_jit(rng, name):
    sampling_checks.check_one_program(CALLS[name], rng, NODES, EDGES)


@pytest.mark.parametrize("name", CALLS)
def test_garbage_gives_ids_in_range(rng, name):
    graph = sampling_checks.lumpy_graph(rng, NODES, EDGES)
    broken = sampling_checks.spoiled(rng, graph)
    part = CALLS[name](broken, jnp.asarray(rng.integers(-3, 15, 8)), sampling_checks.key_of(rng))
    for ids, size in (
        (part.node_ids, graph.num_nodes),
        (part.graph.edge_ids, graph.num_edges),
        (part.graph.cols, part.graph.num_src),
        (part.graph.rows, part.graph.num_dst),
    ):
        assert ((np.asarray(ids) >= -1) & (np.asarray(ids) < size)).all()


GRAPH = Graph.from_edges([0, 1], [1, 2], num_nodes=3)
BIPARTITE = Graph.from_edges([0, 1], [1, 2], num_src=2, num_dst=3)
LARGER = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
ARGUMENTS = {
    induced_subgraph: {"graph": GRAPH, "nodes": [0]},
    cluster_batch: {"graph": GRAPH, "parts": [0, 1, 1], "chosen": [0]},
    saint_subgraph: {"graph": GRAPH, "num": 1, "key": KEY},
    saint_norms: {"graph": GRAPH, "sample": lambda key: induced_subgraph(GRAPH, [0]), "key": KEY},
}
BAD_ARGUMENTS = [
    (saint_norms, {"num_samples": 0}, "^num_samples must be positive"),
    (saint_norms, {"sample": 3}, "^sample must be callable"),
    (saint_norms, {"sample": lambda key: GRAPH}, "^sample must give a Subgraph"),
    (
        saint_norms,
        {"sample": lambda key: induced_subgraph(LARGER, [0])},
        "^sample must give parts of graph",
    ),
]


@pytest.mark.parametrize(("function", "changes", "message"), BAD_ARGUMENTS)
def test_bad_arguments(function, changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        function(**ARGUMENTS[function] | changes)
