"""Sampled neighbourhoods: contents of blocks, and distributions of draws."""

from __future__ import annotations

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from sampling_checks import check_distribution, check_one_program, key_of, lumpy_graph

from jax_gnn import Graph
from jax_gnn._core.random_bits import integers_below, key_words, threefry
from jax_gnn.sampling import Blocks, block_capacity, sample_neighbors

KEY = jax.random.key(0)
NODES, EDGES, FANOUTS = 12, 60, (3, 4)
OPTIONS = {
    "distinct": {},
    "with replacement": {"replace": True},
    "tree": {"tree": True},
    "tree with replacement": {"tree": True, "replace": True},
    "capacity": {"capacity": (14, 16)},
}


def check_blocks(blocks: Blocks, graph: Graph, seeds: np.ndarray, distinct: bool) -> None:
    """Compare all arrays with the edges that ``edge_ids`` names; destinations are first sources."""
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    cols, rows = np.asarray(graph.cols), np.asarray(graph.rows)
    # Sources of each block are a prefix of `ids`, the seeds first.
    ids = np.asarray(blocks.node_ids)
    valid = (seeds >= 0) & (seeds < num_nodes)
    np.testing.assert_array_equal(ids[: len(seeds)], np.where(valid, seeds, -1))
    assert ((ids >= -1) & (ids < num_nodes)).all()
    for block, next_block in itertools.pairwise((*blocks.graphs, None)):
        assert next_block is None or block.num_dst == next_block.num_src
        size = int(block.indptr[-1])
        arrays = {
            name: np.asarray(getattr(block, name))
            for name in ("rows", "cols", "t_rows", "t_cols", "t_order", "edge_ids")
        }
        assert all((array[size:] == -1).all() for array in arrays.values())
        # Without padding: the first `size` entries.
        dst, src, t_rows, t_cols, t_order, places = (array[:size] for array in arrays.values())
        assert (np.diff(dst) >= 0).all() and (np.diff(t_rows) >= 0).all()
        # Row pointers of both halves count their entries.
        for indptr, segments, count in (
            (block.indptr, dst, block.num_dst),
            (block.t_indptr, t_rows, -1),
        ):
            sizes = np.bincount(segments, minlength=block.num_src if count < 0 else count)
            np.testing.assert_array_equal(np.diff(indptr), sizes)
        # The transpose has the same edges, permuted.
        np.testing.assert_array_equal(np.sort(t_order), np.arange(size))
        np.testing.assert_array_equal((src[t_order], dst[t_order]), (t_rows, t_cols))
        np.testing.assert_array_equal((ids[src], ids[dst]), (cols[places], rows[places]))
        assert (places < int(graph.indptr[-1])).all() and int(block.num_input_edges) == num_edges
        # New sources are distinct, and none is a destination.
        if distinct:
            new = ids[block.num_dst : block.num_src]
            assert len(new[new >= 0]) == len({*new[new >= 0]} - {*ids[: block.num_dst]})
        else:
            assert len(np.unique(src)) == size


@pytest.mark.parametrize("options", OPTIONS)
def test_blocks(rng, options):
    """Padded graphs, repeated seeds, and seeds out of range."""
    kwargs = OPTIONS[options]
    graph = lumpy_graph(rng, NODES, int(rng.choice([20, EDGES])))
    seeds = rng.integers(-2, graph.num_nodes + 2, 11)
    blocks = sample_neighbors(graph, seeds, FANOUTS, key_of(rng), **kwargs)
    check_blocks(blocks, graph, seeds, not kwargs.get("tree"))
    degrees = np.r_[graph.in_degrees(), 0]
    ids = np.asarray(blocks.node_ids)
    for block, fanout in zip(blocks.graphs, FANOUTS[::-1], strict=True):
        degree = degrees[ids[: block.num_dst]]
        drawn = np.asarray(block.in_degrees())
        # With replacement any node with an edge has `fanout`; else the draws are a set.
        if kwargs.get("replace"):
            np.testing.assert_array_equal(drawn, np.where(degree > 0, fanout, 0))
        elif "capacity" in kwargs:
            assert (drawn <= np.minimum(degree, fanout)).all()
        else:
            np.testing.assert_array_equal(drawn, np.minimum(degree, fanout))
            places = np.asarray(block.edge_ids)
            pairs = np.stack([np.asarray(block.rows), places])[:, places >= 0]
            assert pairs.shape == np.unique(pairs, axis=1).shape, "an edge was drawn twice"
    assert "capacity" in kwargs or not bool(blocks.overflow)


def test_a_capacity_that_suffices_changes_nothing(rng):
    graph = lumpy_graph(rng, NODES, EDGES)
    seeds, key = rng.integers(0, NODES, 4), key_of(rng)
    wide = sample_neighbors(graph, seeds, (2,), key)
    # The smallest capacity without overflow.
    used = int((np.asarray(wide.node_ids) >= 0).sum())
    tight = sample_neighbors(graph, seeds, (2,), key, capacity=used)
    assert not bool(tight.overflow) and tight.graphs[0].num_src == used
    for name in ("rows", "cols", "t_rows", "t_cols", "t_order", "edge_ids", "indptr"):
        np.testing.assert_array_equal(getattr(tight.graphs[0], name), getattr(wide.graphs[0], name))
    if used > 4:
        short = sample_neighbors(graph, seeds, (2,), key, capacity=used - 1)
        assert bool(short.overflow)
        check_blocks(short, graph, seeds, True)


@pytest.mark.parametrize("fanout", [1, 3, 40])
@pytest.mark.parametrize("replace", [False, True])
def test_subsets_are_equally_likely(rng, replace, fanout):
    """Chi-square test of all subsets; fanouts above 32 run the rounds as a loop."""
    degree = {1: 5, 3: 6, 40: 42}[fanout]
    graph = Graph.from_edges(np.arange(degree) + 1, np.zeros(degree, int), num_nodes=degree + 1)
    seeds = np.zeros(20_000, int)
    blocks = sample_neighbors(graph, seeds, (fanout,), key_of(rng), replace=replace, tree=True)
    # A tree's edges are in the order of the seeds, all of which have full rows.
    drawn = np.asarray(blocks.edge_ids[0]).reshape(len(seeds), fanout)
    if replace:  # draws are independent
        check_distribution(np.bincount(drawn.ravel(), minlength=degree), np.ones(degree))
        if fanout > 1:
            pairs = drawn[:, 0] * degree + drawn[:, 1]
            check_distribution(np.bincount(pairs, minlength=degree**2), np.ones(degree**2))
        return
    drawn = np.sort(drawn, axis=1)
    assert (np.diff(drawn, axis=1) > 0).all()
    if fanout == 40:  # identified by the two edges that are not drawn
        out = np.array([np.setdiff1d(np.arange(degree), row) for row in drawn])
        number = out[:, 0] * degree + out[:, 1]
        subsets = list(itertools.combinations(range(degree), 2))
        numbers = [a * degree + b for a, b in subsets]
    else:
        number = (drawn * degree ** np.arange(fanout)).sum(axis=1)
        subsets = list(itertools.combinations(range(degree), fanout))
        numbers = [int((np.array(s) * degree ** np.arange(fanout)).sum()) for s in subsets]
    counts = np.bincount(number, minlength=max(numbers) + 1)
    assert counts.sum() == counts[numbers].sum()
    check_distribution(counts[numbers], np.ones(len(numbers)))


def test_layers_are_drawn_independently(rng):
    """A seed that is also a source gets new draws in the next layer."""
    graph = Graph.from_edges(np.arange(4), np.zeros(4, int), num_nodes=4)
    blocks = sample_neighbors(graph, np.zeros(20_000, int), (1, 1), key_of(rng), tree=True)
    # A tree's seeds are also its first sources: pairs of draws for one seed.
    inner, outer = blocks.edge_ids[1], blocks.edge_ids[0][: len(blocks.edge_ids[1])]
    pairs = np.asarray(inner) * 4 + np.asarray(outer)
    check_distribution(np.bincount(pairs, minlength=16), np.ones(16))


@pytest.mark.parametrize("options", ["distinct", "tree", "capacity"])
def test_one_program(rng, options):
    kwargs = OPTIONS[options]

    def call(graph: Graph, seeds, key) -> Blocks:
        return sample_neighbors(graph, seeds, FANOUTS, key, **kwargs)

    check_one_program(call, rng, NODES, EDGES)


def test_batches_of_seeds_and_keys(rng):
    graph = lumpy_graph(rng, NODES, EDGES)
    seeds, keys = jnp.asarray(rng.integers(-1, NODES, (3, 5))), jax.random.split(key_of(rng), 3)

    def call(seeds, key) -> Blocks:
        return sample_neighbors(graph, seeds, FANOUTS, key)

    # A batch must not change the random numbers of its samples.
    together = jax.vmap(call)(seeds, keys)
    for i in range(3):
        jax.tree.map(
            np.testing.assert_array_equal,
            jax.tree.map(lambda x: x[i], together),  # noqa: B023
            call(seeds[i], keys[i]),
        )


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_graphs_without_edges(num_nodes):
    graph = Graph.from_edges([], [], num_nodes=num_nodes)
    blocks = sample_neighbors(graph, [1, -1], (2, 2), KEY)
    # Node 1 exists unless the graph is empty.
    want = [1 if num_nodes else -1, -1]
    np.testing.assert_array_equal(np.asarray(blocks.node_ids)[:2], want)
    assert [int(block.indptr[-1]) for block in blocks.graphs] == [0, 0]
    assert sample_neighbors(graph, [], (2,), KEY).node_ids.shape == (0,)


def test_values_of_edges(rng):
    graph = lumpy_graph(rng, NODES, EDGES)
    values = rng.normal(size=graph.num_edges).astype(np.float32)
    blocks = sample_neighbors(graph, np.arange(5), FANOUTS, key_of(rng))
    for block, places in zip(blocks.graphs, blocks.edge_ids, strict=True):
        want = np.where(np.asarray(places) < 0, 0, values[np.asarray(places)])
        np.testing.assert_array_equal(block.edge_values(values), want)


@pytest.mark.parametrize("where", ["device", "host"])
@pytest.mark.parametrize("features", [(), (3,), (2, 3)])
def test_values_of_nodes(rng, where, features):
    """Padding reads zeros; missing rows are NaN, or the extreme integer."""
    graph = lumpy_graph(rng, NODES, EDGES)
    graph = jax.device_get(graph) if where == "host" else graph
    key = np.asarray(jax.random.key_data(KEY))
    blocks = sample_neighbors(graph, np.arange(-1, 5), FANOUTS, key)
    values = rng.normal(size=(graph.num_nodes, *features)).astype(np.float32)
    ids = np.asarray(blocks.node_ids)
    want = np.where((ids < 0).reshape(-1, *(1,) * len(features)), 0, values[ids])
    rows = blocks.node_values(values)
    assert isinstance(rows, np.ndarray) == (where == "host")
    np.testing.assert_array_equal(rows, want)
    # Arrays with fewer rows than the graph has nodes.
    few = np.asarray(blocks.node_values(values[:3]))
    assert np.isnan(few[ids >= 3]).all() and (few[ids < 0] == 0).all()
    assert np.isnan(np.asarray(blocks.node_values(values[:0]))[ids >= 0]).all()
    integers = np.asarray(blocks.node_values(np.arange(3, dtype=np.int32)))
    assert (integers[ids >= 3] == np.iinfo(np.int32).min).all()
    np.testing.assert_array_equal(integers[(ids >= 0) & (ids < 3)], ids[(ids >= 0) & (ids < 3)])
    with pytest.raises(ValueError, match="values must be"):
        blocks.node_values(np.float32(1))


def test_random_numbers(rng):
    """Words equal JAX's Threefry; integers are products of 64 random bits and a size."""
    key = key_of(rng)
    counters = jnp.asarray(rng.integers(0, 2**32, (2, 50)), jnp.uint32)
    words = threefry(key_words("key", key), *counters)
    want = threefry_2x32(jax.random.key_data(key), counters.ravel())
    np.testing.assert_array_equal(jnp.concatenate(words), want)
    # The extremes of a size: 0, and the largest uint32.
    sizes = np.r_[rng.integers(0, 2**32, 48), 0, 2**32 - 1]
    integers = integers_below(words, jnp.asarray(sizes, jnp.uint32))
    # The exact product in Python's integers.
    numbers = [(int(a) << 32) + int(b) for a, b in zip(*words, strict=True)]
    np.testing.assert_array_equal(
        integers, [n * int(s) >> 64 for n, s in zip(numbers, sizes, strict=True)]
    )


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_other_kinds_of_keys(kind):
    graph = Graph.from_edges(np.arange(9), np.zeros(9, int), num_nodes=9)
    samples = {
        tuple(np.asarray(sample_neighbors(graph, [0], (4,), key).edge_ids[0]))
        for key in jax.random.split(jax.random.key(0, impl=kind), 8)
    }
    assert len(samples) > 1
    # Raw uint32 keys equal typed ones.
    raw, typed = jax.random.PRNGKey(3), jax.random.key(3)
    blocks = (sample_neighbors(graph, [0], (4,), key) for key in (raw, typed))
    jax.tree.map(np.testing.assert_array_equal, *blocks)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"capacity": (4,)}, ValueError, "capacity must be an integer, or one for each of 2"),
        ({"capacity": 9, "tree": True}, ValueError, "it must be None for tree=True"),
        ({"fanouts": (2**20, 2**20), "tree": True}, ValueError, "need 64-bit indices"),
    ],
)
def test_bad_arguments(changes, error, message):
    arguments = {
        "graph": Graph.from_edges([0, 1], [1, 0], num_nodes=4),
        "seeds": [0, 1, 2],
        "fanouts": (2, 2),
        "key": KEY,
    }
    with pytest.raises(error, match=re.escape(message)):
        sample_neighbors(**{**arguments, **changes})


# --- Capacities ----------------------------------------------------------------------------------


def test_block_capacity(rng):
    """Measured batches fit into the capacity; their blocks differ in padding only."""
    graph = Graph.from_edges(*rng.integers(0, 3000, (2, 9000)), num_nodes=3000)
    batches, key = rng.integers(-1, 3001, (3, 20)), jax.random.key(int(rng.integers(99)))
    room = block_capacity(graph, batches, (15, 10), key, slack=0)
    assert all(20 < a < b for a, b in itertools.pairwise(room))
    for number, seeds in enumerate(batches):
        batch_key = jax.random.fold_in(key, number)
        blocks = sample_neighbors(graph, seeds, (15, 10), batch_key, capacity=room)
        assert not blocks.overflow
        # Blocks have the room of the capacity, not more.
        assert (blocks.graphs[1].num_src, blocks.graphs[0].num_src) == room
        want = sample_neighbors(graph, seeds, (15, 10), batch_key)
        for values in (lambda b: b.node_ids, lambda b: b.edge_ids[0]):
            ids, expected_ids = (np.sort(np.asarray(values(b))) for b in (blocks, want))
            np.testing.assert_array_equal(ids[ids >= 0], expected_ids[expected_ids >= 0])
    wider = block_capacity(graph, batches, (15, 10), key, slack=1)
    assert wider[0] - 20 >= 2 * (room[0] - 20 - 64)
    with pytest.raises(TypeError, match="seeds must be known"):
        jax.jit(lambda seeds: block_capacity(graph, seeds, (2,), key))(batches)
