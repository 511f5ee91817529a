"""Draws by weight and before a time, and disjoint neighbourhoods: contents and distributions."""

from __future__ import annotations

import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_checks import check_distribution, check_one_program, key_of, lumpy_graph

from jax_gnn import Graph
from jax_gnn.sampling import Blocks, EdgeProbability, EdgeTime, sample_neighbors

KEY = jax.random.key(0)
NODES, EDGES, FANOUTS = 12, 60, (3, 4)


def star(degree: int) -> Graph:
    return Graph.from_edges(np.arange(degree) + 1, np.zeros(degree, int), num_nodes=degree + 1)


def drawn_by_row(blocks: Blocks) -> np.ndarray:
    """Return the places of edges into each seed of a tree with full rows, ``(seeds, fanout)``."""
    return np.asarray(blocks.edge_ids[-1]).reshape(blocks.num_seeds, -1)


# --- Weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.5, 20, 80])
def test_integers_are_in_proportion(rng, spread):
    """Weights may be far apart or denormal; a share is 0 exactly if its weight is."""
    graph = lumpy_graph(rng, NODES, EDGES)
    weights = np.exp(rng.uniform(-spread, spread, graph.num_edges)).astype(np.float32)
    weights[rng.random(graph.num_edges) < 0.2] = 0
    weights[rng.random(graph.num_edges) < 0.1] = 1e-42
    sums = np.asarray(EdgeProbability.from_weights(graph, weights).sums)
    assert sums.dtype == np.uint32
    shares = np.diff(sums).astype(np.int64)
    rows = np.asarray(graph.rows)
    # Padding has no weight.
    weights = np.where(rows < 0, 0, weights).astype(float)
    np.testing.assert_array_equal(shares > 0, weights > 0)
    for row in range(graph.num_nodes):
        row_shares, want = shares[rows == row], weights[rows == row]
        # Shares of a row use 29 to 31 bits.
        if want.sum():
            assert 2**28 < row_shares.sum() < 2**31 + len(row_shares)
            np.testing.assert_allclose(
                row_shares / row_shares.sum(), want / want.sum(), rtol=1e-6, atol=2**-26
            )


@pytest.mark.parametrize("fanout", [1, 2, 4])
@pytest.mark.parametrize("weights", [(1, 2, 3, 4, 10), (1, 0, 1, 0, 5, 2, 100), (1, 1, 1, 1)])
def test_successive_draws(rng, weights, fanout):
    """Chi-square test against all orders in which edges can be drawn."""
    degree, num_seeds = len(weights), 20_000
    # The chance of an order: weights are renormalised after each draw.
    positive = [i for i, weight in enumerate(weights) if weight]
    chances = np.zeros((degree,) * fanout)
    for order in itertools.permutations(positive, fanout):
        remaining, chance = float(sum(weights)), 1.0
        for place in order:
            chance *= weights[place] / remaining
            remaining -= weights[place]
        chances[order] = chance
    blocks = sample_neighbors(
        star(degree),
        np.zeros(num_seeds, int),
        (fanout,),
        key_of(rng),
        edge_probability=np.array(weights),
        tree=True,
    )
    drawn = drawn_by_row(blocks)
    counts_by_order = np.zeros(chances.shape, int)
    np.add.at(counts_by_order, tuple(drawn.T), 1)
    check_distribution(counts_by_order, chances)
    # The probability that an edge is among those drawn.
    included = sum(
        chances.sum(axis=tuple(j for j in range(fanout) if j != i)) for i in range(fanout)
    )
    counts = np.bincount(drawn.ravel(), minlength=degree)
    for count, share in zip(counts, np.clip(included, 0, 1), strict=True):
        check_distribution(np.array([count, num_seeds - count]), np.array([share, 1 - share]))


def test_draws_with_replacement(rng):
    weights = np.array([1, 0, 3, 0.5, 8])
    blocks = sample_neighbors(
        star(5),
        np.zeros(20_000, int),
        (2,),
        key_of(rng),
        edge_probability=weights,
        replace=True,
        tree=True,
    )
    # Draws with replacement are independent.
    drawn = drawn_by_row(blocks)
    pairs = np.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25)
    check_distribution(pairs, np.outer(weights, weights).ravel())


@pytest.mark.parametrize("replace", [False, True])
def test_hubs_leaves_and_padding(rng, replace):
    """First draws are in proportion to weights, for every row, in every layer."""
    graph = lumpy_graph(rng, NODES, EDGES)
    weights = rng.choice([0, 0.5, 1, 7], graph.num_edges)
    # All nodes, also out of range.
    seeds = np.tile(np.arange(-1, NODES + 4), 1000)
    blocks = sample_neighbors(
        graph, seeds, (1, 1), key_of(rng), edge_probability=weights, tree=True, replace=replace
    )
    rows = np.asarray(graph.rows)
    for places in blocks.edge_ids:
        counts = np.bincount(np.asarray(places)[np.asarray(places) >= 0], minlength=len(rows))
        for row in range(graph.num_nodes):
            if counts[rows == row].sum() or places is blocks.edge_ids[-1]:
                check_distribution(counts[rows == row], weights[rows == row])
        assert not counts[rows < 0].any()


def test_fanouts_above_the_number_of_positive_weights(rng):
    """Every edge of positive weight is drawn once, however small its weight."""
    graph = lumpy_graph(rng, NODES, EDGES)
    weights = np.where(rng.random(graph.num_edges) < 0.5, 0, 10.0 ** rng.integers(-9, 9))
    weights[rng.random(graph.num_edges) < 0.1] = 1e-30
    weights[0] = 1e9
    fanout = int(graph.in_degrees().max())
    blocks = sample_neighbors(
        graph, np.arange(NODES), (fanout,), key_of(rng), edge_probability=weights
    )
    places = np.asarray(blocks.edge_ids[0])
    want = np.flatnonzero((weights > 0) & (np.asarray(graph.rows) >= 0))
    np.testing.assert_array_equal(np.sort(places[places >= 0]), want)


def test_consecutive_hubs(rng):
    """Rows of half a million edges, which sums in float32 could not resolve."""
    degree = 500_000
    dst = np.repeat([0, 1, 2], [degree, degree, 4])
    src = rng.integers(0, 1000, len(dst))
    graph = Graph.from_edges(src, dst, num_nodes=1000)
    weights = np.ones(len(dst), np.float32)
    weights[:degree] = 1e6  # the prefix of the second row is 5e11
    weights[degree : degree + 10] = degree / 10
    weights[-4:] = [1, 2, 3, 4]
    seeds = np.repeat([1, 2], 4096)
    blocks = sample_neighbors(graph, seeds, (1,), key_of(rng), edge_probability=weights, tree=True)
    drawn = drawn_by_row(blocks)[:, 0]
    # Places within each of the two rows.
    hub, leaf = drawn[:4096] - degree, drawn[4096:] - 2 * degree
    check_distribution(np.bincount(leaf, minlength=4), weights[-4:])
    # Ten heavy edges of the hub, and its others in ten groups.
    groups = np.where(hub < 10, hub, 10 + hub * 10 // degree)
    share = np.r_[np.full(10, degree / 10), degree / 10 - 10, np.full(9, degree / 10)]
    check_distribution(np.bincount(groups, minlength=20), share)


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"tree": True}, {"disjoint": True}])
def test_one_program_of_weights(rng, options):
    """Raw weights inside ``jax.jit`` give the draws of prepared ones."""

    def call(graph: Graph, seeds, key) -> Blocks:
        # Any weights that depend on the traced graph.
        weights = jnp.sqrt(jnp.abs(graph.cols).astype(jnp.float32))
        kwargs = {"edge_probability": weights, **options}
        return sample_neighbors(graph, seeds, FANOUTS, key, **kwargs)

    check_one_program(call, rng, NODES, EDGES)
    graph, seeds, key = lumpy_graph(rng, NODES, EDGES), rng.integers(-1, NODES, 8), key_of(rng)
    weights = np.sqrt(np.abs(np.asarray(graph.cols)).astype(np.float32))
    probability = EdgeProbability.from_weights(graph, weights)
    blocks = sample_neighbors(graph, seeds, FANOUTS, key, edge_probability=probability, **options)
    jax.tree.map(np.testing.assert_array_equal, blocks, call(graph, seeds, key))


def test_traced_invalid_weights(rng):
    weights = np.array([np.nan, -1, np.inf, 2, -0.0, -np.inf], np.float32)

    @jax.jit
    def call(weights) -> Blocks:
        return sample_neighbors(
            star(6), [0, 0, 1], (3,), key_of(rng), edge_probability=weights, tree=True
        )

    np.testing.assert_array_equal(call(weights).edge_ids[0], [3, 3, *[-1] * 7])


# --- Times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [False, True])
def test_times(rng, tree):
    """All edges no later than the seed's time are drawn in all layers, and no others."""
    graph = lumpy_graph(rng, NODES, EDGES)
    times = rng.integers(0, 9, graph.num_edges)
    seeds, seed_time = rng.integers(-1, NODES, 6), rng.integers(-1, 10, 6)
    fanout = int(graph.in_degrees().max())
    blocks = sample_neighbors(
        graph,
        seeds,
        (fanout, fanout),
        key_of(rng),
        edge_time=EdgeTime.from_times(graph, times),
        seed_time=seed_time,
        tree=tree,
    )
    seed_ids, ids = np.asarray(blocks.seed_ids), np.asarray(blocks.node_ids)
    rows = np.asarray(graph.rows)
    for block in blocks.graphs:
        dst, places = np.asarray(block.rows), np.asarray(block.edge_ids)
        for i in range(block.num_dst):
            allowed = (rows == ids[i]) & (times <= seed_time[seed_ids[i]]) & (ids[i] >= 0)
            np.testing.assert_array_equal(np.sort(places[dst == i]), np.flatnonzero(allowed))


def test_edges_before_a_time_are_equally_likely(rng):
    times = np.array([5.0, 1.0, 3.0, 9.0, 3.0], np.float32)
    seed_time = np.repeat(np.array([0.5, 3.0, 6.0], np.float32), 10_000)
    blocks = sample_neighbors(
        star(5),
        np.zeros(30_000, int),
        (2,),
        key_of(rng),
        edge_time=times,
        seed_time=seed_time,
        tree=True,
    )
    dst, places = np.asarray(blocks.graphs[0].rows), np.asarray(blocks.edge_ids[0])
    # No edge, three edges, four edges.
    for limit in (0.5, 3.0, 6.0):
        drawn = places[(dst >= 0) & (seed_time[dst] == limit)].reshape(-1, 2)
        pairs = np.bincount((1 << drawn).sum(axis=1), minlength=32)
        allowed = np.flatnonzero(times <= limit)
        want = np.zeros(32)
        want[[(1 << a) + (1 << b) for a, b in itertools.combinations(allowed, 2)]] = 1
        check_distribution(pairs, want)


def test_one_program_of_times(rng):
    def call(graph: Graph, seeds, key) -> Blocks:
        times = graph.cols.astype(jnp.int32) % 5
        limits = jnp.arange(8, dtype=jnp.int32) % 6
        kwargs = {"edge_time": times, "seed_time": limits}
        return sample_neighbors(graph, seeds, FANOUTS, key, **kwargs)

    check_one_program(call, rng, NODES, EDGES)


def test_traced_nan_times(rng):
    """An edge with time NaN is never drawn; a seed with time NaN has no edges."""

    @jax.jit
    def call(times, limits) -> Blocks:
        kwargs = {"edge_time": times, "seed_time": limits, "tree": True}
        return sample_neighbors(star(3), [0, 0], (3,), key_of(rng), **kwargs)

    blocks = call(np.array([np.nan, 1, 2], np.float32), np.array([9, np.nan], np.float32))
    np.testing.assert_array_equal(np.sort(blocks.edge_ids[0]), [-1, -1, -1, -1, 1, 2])


# --- Neighbourhoods by seed ----------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [None, (30, 60)])
def test_disjoint(rng, capacity):
    """A seed's edges equal those of a sample for it alone if fanouts are large."""
    graph = lumpy_graph(rng, NODES, EDGES)
    seeds = np.r_[rng.integers(-2, NODES + 4, 5), 0, 0]
    fanout = int(graph.in_degrees().max())
    kwargs = {"disjoint": True, "capacity": capacity}
    blocks = sample_neighbors(graph, seeds, (fanout, fanout), key_of(rng), **kwargs)
    ids, seed_ids = np.asarray(blocks.node_ids), np.asarray(blocks.seed_ids)
    assert ((seed_ids >= 0) == (ids >= 0)).all()
    valid = (seeds >= 0) & (seeds < graph.num_nodes)
    np.testing.assert_array_equal(
        seed_ids[: len(seeds)], np.where(valid, np.arange(len(seeds)), -1)
    )
    # A node is one source for each seed.
    pairs = np.stack([seed_ids, ids])[:, ids >= 0]
    assert pairs.shape == np.unique(pairs, axis=1).shape
    for block in blocks.graphs:
        size = int(block.indptr[-1])
        src, dst = np.asarray(block.cols)[:size], np.asarray(block.rows)[:size]
        places = np.asarray(block.edge_ids)[:size]
        np.testing.assert_array_equal(seed_ids[src], seed_ids[dst])
        np.testing.assert_array_equal(ids[src], np.asarray(graph.cols)[places])
        np.testing.assert_array_equal(ids[dst], np.asarray(graph.rows)[places])
        order = np.asarray(block.t_order)[:size]
        np.testing.assert_array_equal(np.asarray(block.t_rows)[:size], src[order])
        assert (np.diff(src[order]) >= 0).all()
    # With too small a capacity edges are missing.
    if bool(blocks.overflow):
        return
    for number, seed in enumerate(seeds):
        alone = sample_neighbors(graph, [seed], (fanout, fanout), KEY)
        nodes = np.asarray(alone.node_ids)
        np.testing.assert_array_equal(np.sort(ids[seed_ids == number]), np.sort(nodes[nodes >= 0]))
        for block, places_alone in zip(blocks.graphs, alone.edge_ids, strict=True):
            is_own = np.append(seed_ids, -1)[np.asarray(block.rows)] == number
            places_alone = np.asarray(places_alone)
            want = np.sort(places_alone[places_alone >= 0])
            np.testing.assert_array_equal(np.sort(np.asarray(block.edge_ids)[is_own]), want)


def test_seed_ids_of_trees(rng):
    graph = lumpy_graph(rng, NODES, EDGES)
    seeds = rng.integers(-2, NODES + 4, 7)
    blocks = sample_neighbors(graph, seeds, FANOUTS, key_of(rng), tree=True)
    ids, seed_ids = np.asarray(blocks.node_ids), np.asarray(blocks.seed_ids)
    assert ((seed_ids >= 0) == (ids >= 0)).all()
    for block in blocks.graphs:
        size = int(block.indptr[-1])
        endpoints = np.asarray(block.cols)[:size], np.asarray(block.rows)[:size]
        np.testing.assert_array_equal(seed_ids[endpoints[0]], seed_ids[endpoints[1]])
    assert sample_neighbors(graph, seeds, FANOUTS, KEY).seed_ids is None


# --- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["sums", "order", "times", "indptr"])
def test_corrupt_arrays(rng, what):
    """Garbage in containers gives places and nodes in range."""
    graph = jax.tree.map(jnp.asarray, lumpy_graph(rng, NODES, EDGES))
    garbage = jnp.asarray(rng.choice([-(2**31), -7, 0, 3, EDGES, 2**31 - 1], EDGES + 6), jnp.int32)
    count = graph.num_edges
    kwargs_list: list[dict[str, Any]] = []
    if what in ("sums", "indptr"):
        sums = EdgeProbability.from_weights(graph, np.ones(count)).sums
        sums = garbage.view(jnp.uint32)[: count + 1] if what == "sums" else sums
        kwargs_list.append({"edge_probability": EdgeProbability(sums)})
    if what != "sums":
        arrays = vars(EdgeTime.from_times(graph, rng.integers(0, 9, count)))
        if what != "indptr":
            arrays = {**arrays, what: garbage[:count]}
        kwargs_list.append({"edge_time": EdgeTime(**arrays), "seed_time": np.full(NODES + 1, 5)})
    if what == "indptr":
        graph = Graph(**{**vars(graph), what: garbage[: graph.num_nodes + 1]})
    for kwargs, replace in itertools.product(kwargs_list, (False, True)):
        blocks = sample_neighbors(
            graph, np.arange(-1, NODES), FANOUTS, key_of(rng), replace=replace, **kwargs
        )
        ids = np.asarray(blocks.node_ids)
        assert (ids >= -1).all() and (ids < graph.num_nodes).all()
        for block in blocks.graphs:
            assert (np.asarray(block.edge_ids) < count).all()
            assert (np.asarray(block.rows) < block.num_dst).all()
            assert (np.asarray(block.cols) < block.num_src).all()


OTHER = star(4)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"edge_probability": [1e39, 1, 1]}, ValueError, "got edge_probability[0] = 1e+39"),
        (
            {"edge_probability": EdgeProbability.from_weights(OTHER, np.ones(4))},
            ValueError,
            "edge_probability.sums must be (num_edges + 1 = 4,) uint32, got",
        ),
        ({"edge_time": [1, 2, 3]}, ValueError, "edge_time needs seed_time, which must be given"),
        ({"seed_time": [1, 2]}, ValueError, "seed_time needs edge_time, which must be given"),
        (
            {"edge_time": [1, 2, 2**40], "seed_time": [1, 2]},
            ValueError,
            "edge_time must be exact in int32: enable jax_enable_x64, or round them, got 1099511",
        ),
        (
            {"edge_time": EdgeTime.from_times(OTHER, [1, 2, 3, 4]), "seed_time": [1, 2]},
            ValueError,
            "edge_time must have an order and times, (3,) each",
        ),
        (
            {"edge_time": [1, 2, 3], "seed_time": [1, 2], "edge_probability": [1, 1, 1]},
            ValueError,
            "edge_probability must be None where edge_time is given",
        ),
    ],
)
def test_bad_arguments(kwargs, error, message):
    with pytest.raises(error, match=re.escape(message)):
        sample_neighbors(star(3), [0, 1], (2,), KEY, **kwargs)
