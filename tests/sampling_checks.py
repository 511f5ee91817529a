"""What tests of sampling share: small graphs of all kinds of degrees, and chi-square tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from op_spec import strict
from scipy import stats

from jax_gnn import Graph

# A right sampler fails a test of this level once in 10⁷ seeds: tests hold for every seed.
LEVEL = 1e-7


def key_of(rng: np.random.Generator) -> Any:
    return jax.random.key(int(rng.integers(2**31)))


def lumpy_edges(rng: np.random.Generator, num_nodes: int, num_edges: int) -> tuple[Any, Any]:
    """Edges of which some come twice: node 0 is a hub, the last two nodes have no edges."""
    used = num_nodes - 2
    src, dst = rng.integers(0, used, (2, num_edges))
    src[: num_edges // 4] = 0
    dst[num_edges // 4 : num_edges // 2] = 0
    dst[: used // 2] = np.arange(used // 2)
    src[-3:], dst[-3:] = src[0], dst[0]
    return src, dst


def lumpy_graph(rng: np.random.Generator, num_nodes: int, num_edges: int) -> Graph:
    """The same as a graph, with room for more nodes and edges."""
    graph = Graph.from_edges(*lumpy_edges(rng, num_nodes, num_edges), num_nodes=num_nodes)
    return graph.pad(num_nodes=num_nodes + 3, num_edges=num_edges + 5)


def spoiled(rng: np.random.Generator, graph: Graph) -> Graph:
    """The graph with garbage in all its arrays."""
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max

    def garbage(array: Any) -> Any:
        values = rng.choice([low, -2, -1, 0, 3, 7, 11, 40, 46, high], array.shape)
        return jnp.asarray(values, jnp.int32)

    return jax.tree.map(garbage, graph)


def counts_of(graph: Graph, num_nodes: int) -> np.ndarray:
    """``(num_nodes, num_nodes)``, how many edges there are from each source to each destination."""
    counts = np.zeros((num_nodes, num_nodes), int)
    np.add.at(counts, graph.edges(), 1)
    return counts


def check_distribution(found: np.ndarray, weights: np.ndarray) -> None:
    """Counts of outcomes are such as draws in proportion to weights give; chi-square."""
    found, weights = np.ravel(found), np.ravel(weights).astype(float)
    assert (found[weights == 0] == 0).all(), "what has no weight was drawn"
    found, weights = found[weights > 0], weights[weights > 0]
    if not found.sum():
        assert not len(found), "nothing was drawn"
        return
    expected = weights / weights.sum() * found.sum()
    order = np.argsort(expected)
    groups = np.zeros(len(order), int)  # what is rare is counted together
    left = expected.sum()
    full = 0.0
    for place, share in enumerate(expected[order]):
        groups[place] = groups[place - 1] if place else 0
        if full >= 25 and left >= 25:
            groups[place] += 1
            full = 0.0
        full, left = full + share, left - share
    if groups[-1] == 0:
        return
    found, expected = (np.bincount(groups, each[order]) for each in (found, expected))
    statistic = ((found - expected) ** 2 / expected).sum()
    chance = stats.chi2.sf(statistic, len(found) - 1)
    assert chance > LEVEL, f"chi-square {statistic:.1f} of {len(found)} outcomes: {chance:.1e}"


def check_one_program(
    call: Callable[..., Any], rng: np.random.Generator, num_nodes: int, num_edges: int
) -> None:
    """One compiled program serves all graphs, ids and keys, and gives what calls outside give.

    With ids of 64 bits as well, and where neither dtypes nor ranks are promoted.
    """
    traces = 0

    def counted(*arguments: Any) -> Any:
        nonlocal traces
        traces += 1
        return call(*arguments)

    compiled = jax.jit(counted)
    for _ in range(2):
        graph = lumpy_graph(rng, num_nodes, num_edges)
        arguments = graph, rng.integers(-1, num_nodes, 8), key_of(rng)
        with strict():
            found = compiled(*arguments)
        jax.tree.map(np.testing.assert_array_equal, found, call(*arguments))
    assert traces == 1
    with jax.enable_x64(True):
        graph = jax.tree.map(lambda ids: np.asarray(ids, np.int64), graph)
        with strict():
            wide = compiled(graph, *arguments[1:])
    for ids in jax.tree.leaves(wide):
        assert ids.dtype in (np.int64, np.bool_)
    jax.tree.map(np.testing.assert_array_equal, wide, found)
