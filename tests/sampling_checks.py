"""Helpers of the sampling tests: small graphs of all kinds of degrees, and chi-square tests."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from op_spec import strict
from scipy import stats

from jax_gnn import Graph, RelationalGraph

# A correct sampler fails at this level for one seed in 10⁷, so that tests pass with any seed.
LEVEL = 1e-7


def key_of(rng: np.random.Generator):
    return jax.random.key(int(rng.integers(2**31)))


def lumpy_edges(rng: np.random.Generator, num_nodes: int, num_edges: int):
    """Return edges, some repeated: node 0 is a hub, the last two nodes have no edges."""
    num_used = num_nodes - 2
    src, dst = rng.integers(0, num_used, (2, num_edges))
    # A quarter of the edges leave the hub, another quarter enter it.
    src[: num_edges // 4] = 0
    dst[num_edges // 4 : num_edges // 2] = 0
    dst[: num_used // 2] = np.arange(num_used // 2)
    # The last edges repeat the first one.
    src[-3:], dst[-3:] = src[0], dst[0]
    return src, dst


def lumpy_graph(rng: np.random.Generator, num_nodes: int, num_edges: int) -> Graph:
    """Return the graph of `lumpy_edges`, padded by a few nodes and edges."""
    graph = Graph.from_edges(*lumpy_edges(rng, num_nodes, num_edges), num_nodes=num_nodes)
    return graph.pad(num_nodes=num_nodes + 3, num_edges=num_edges + 5)


def spoiled(rng: np.random.Generator, graph: Graph) -> Graph:
    """Return a graph with garbage in all its arrays."""
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max

    def garbage(array):
        values = rng.choice([low, -2, -1, 0, 3, 7, 11, 40, 46, high], array.shape)
        return jnp.asarray(values, jnp.int32)

    return jax.tree.map(garbage, graph)


def spoiled_field(rng: np.random.Generator, graph: RelationalGraph, name: str) -> RelationalGraph:
    """Return a relational graph with garbage in one array: its `edge_types`, or of its nodes."""
    owner = graph if name == "edge_types" else graph.nodes
    size, count = getattr(owner, name).shape[0], graph.num_edges
    # Values around every bound of an index.
    values = rng.choice([-(2**31), -7, 0, 3, count, 2**31 - 1], size)
    owner = replace(owner, **{name: jnp.asarray(values, jnp.int32)})
    return owner if name == "edge_types" else replace(graph, nodes=owner)


def in_range(ids, size: int) -> None:
    """Check that ids are padding or below a size."""
    assert ((np.asarray(ids) >= -1) & (np.asarray(ids) < size)).all()


def counts_of(graph: Graph, num_nodes: int) -> np.ndarray:
    """Return the number of edges from each source to each destination, ``(nodes, nodes)``."""
    counts = np.zeros((num_nodes, num_nodes), int)
    np.add.at(counts, graph.edges(), 1)
    return counts


def check_distribution(counts: np.ndarray, weights: np.ndarray) -> None:
    """Test counts of outcomes against draws in proportion to weights, by chi-square."""
    counts, weights = np.ravel(counts), np.ravel(weights).astype(float)
    assert (counts[weights == 0] == 0).all(), "an outcome of weight 0 was drawn"
    counts, weights = counts[weights > 0], weights[weights > 0]
    if not counts.sum():
        assert not len(counts), "nothing was drawn"
        return
    # Pearson's statistic needs an expected count of about 25 in each group.
    expected = weights / weights.sum() * counts.sum()
    order = np.argsort(expected)
    groups = np.zeros(len(order), int)  # rare outcomes are counted together
    remaining = expected.sum()
    full = 0.0
    for place, share in enumerate(expected[order]):
        groups[place] = groups[place - 1] if place else 0
        if full >= 25 and remaining >= 25:
            groups[place] += 1
            full = 0.0
        full, remaining = full + share, remaining - share
    if groups[-1] == 0:
        return
    counts, expected = (np.bincount(groups, values[order]) for values in (counts, expected))
    statistic = ((counts - expected) ** 2 / expected).sum()
    chance = stats.chi2.sf(statistic, len(counts) - 1)
    assert chance > LEVEL, f"chi-square {statistic:.1f} of {len(counts)} outcomes: {chance:.1e}"


def check_one_program(call, rng: np.random.Generator, num_nodes: int, num_edges: int) -> None:
    """Check `call` of lumpy graphs, ids and keys by :func:`check_compiled_once`."""

    def draw():
        graph = lumpy_graph(rng, num_nodes, num_edges)
        return graph, rng.integers(-1, num_nodes, 8), key_of(rng)

    graph, ids, key, result = check_compiled_once(call, draw)
    with jax.enable_x64(True):
        # Ids of 64 bits give the same blocks in wider arrays.
        graph = jax.tree.map(lambda ids: np.asarray(ids, np.int64), graph)
        with strict():
            wide = jax.jit(call)(graph, ids, key)
    for leaf in jax.tree.leaves(wide):
        assert leaf.dtype in (np.int64, np.bool_)
    jax.tree.map(np.testing.assert_array_equal, wide, result)


def check_compiled_once(call, draw):
    """Check that one compiled program serves all drawn arguments, and equals an eager call.

    Dtypes and ranks are not promoted. Returns the last arguments and their result.
    """
    traces = 0

    def counted(*arguments):
        nonlocal traces
        traces += 1
        return call(*arguments)

    compiled = jax.jit(counted)
    for _ in range(2):
        arguments = draw()
        with strict():
            result = compiled(*arguments)
    jax.tree.map(np.testing.assert_array_equal, result, call(*arguments))
    assert traces == 1
    return *arguments, result
