"""Sampling by kernels of the CPU, and on arrays of the host: the bits of plain ``jax.numpy``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_checks import key_of, lumpy_graph

import jax_gnn
from jax_gnn import Graph
from jax_gnn.sampling import sample_neighbors
from jax_gnn.sampling._native import sample_uniform

INT32 = np.iinfo(np.int32)


def assert_same(one: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def in_both(function: Any, *arguments: Any) -> Any:
    """What the kernel gives, having compared it with what plain XLA does."""
    found = jax.jit(function)(*arguments)
    with jax_gnn.implementation("xla"):
        assert_same(found, jax.jit(function)(*arguments))
    return found


def some_seeds(rng: np.random.Generator, count: int, num_nodes: int) -> np.ndarray:
    """Ids, of which some come twice, and some are none."""
    ids = rng.integers(-2, num_nodes + 2, count)
    return np.where(rng.random(count) < 0.1, rng.choice([-1, INT32.max, INT32.min], count), ids)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("fanout", [1, 7, 40])
@pytest.mark.parametrize("replace", [False, True])
def test_draws(rng: np.random.Generator, dtype: str, fanout: int, replace: bool) -> None:
    """Degrees around the fanout and large ones; few rows, and more than are drawn for at once."""
    for rows in (0, 5, 100):
        degrees = rng.choice([0, 1, fanout, fanout + 1, 50, 10**6, 2**31 - 1], rows)
        words = rng.integers(0, 2**32, 2, dtype=np.uint32)
        with jax.enable_x64(dtype == "int64"):
            offsets, counts = in_both(
                lambda degrees, words: sample_uniform(
                    degrees, words, fanout=fanout, stream=3, replace=replace
                ),
                jnp.asarray(degrees, dtype),
                jnp.asarray(words),
            )
        assert offsets.dtype == counts.dtype == dtype
        there = np.arange(fanout) < np.asarray(counts)[:, None]
        assert (np.asarray(offsets) < degrees[:, None])[there].all()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("kind", ["tree", "distinct", "capacity", "replace"])
def test_blocks(rng: np.random.Generator, dtype: str, kind: str) -> None:
    """Three layers of a padded graph, with seeds that come twice and seeds that are none."""
    with jax.enable_x64(dtype == "int64"):
        graph = jax.tree.map(lambda ids: ids.astype(dtype), lumpy_graph(rng, 40, 200))
        seeds = jnp.asarray(some_seeds(rng, 9, 40), dtype)
        options = {
            "tree": {"tree": True, "replace": bool(rng.integers(2))},
            "distinct": {},
            "capacity": {"capacity": (11, 20, int(rng.integers(20, 60)))},
            "replace": {"replace": True},
        }[kind]
        blocks = in_both(
            lambda graph, seeds, key: sample_neighbors(graph, seeds, (2, 3, 4), key, **options),
            *(graph, seeds, key_of(rng)),
        )
    assert blocks.node_ids.dtype == dtype


@pytest.mark.parametrize("kind", ["tree", "distinct", "capacity"])
def test_garbage(rng: np.random.Generator, kind: str) -> None:
    """Whatever a graph holds, the bits are the same, and nothing out of range is read."""
    num_nodes, num_edges = 12, 50
    graph = Graph.from_edges(*rng.integers(0, num_nodes, (2, num_edges)), num_nodes=num_nodes)

    def anything(count: int, size: int) -> Any:
        values = rng.integers(-3, size + 3, count)
        extremes = rng.choice([INT32.min, INT32.max, -1, size], count)
        return jnp.asarray(np.where(rng.random(count) < 0.2, extremes, values), jnp.int32)

    indptr, cols = anything(num_nodes + 1, num_edges), anything(num_edges, num_nodes)
    options = {"tree": {"tree": True}, "distinct": {}, "capacity": {"capacity": (10, 12)}}[kind]

    def sample(indptr: Any, cols: Any, seeds: Any, key: Any) -> Any:
        garbage = jax.tree.map(lambda ids: ids, graph)
        object.__setattr__(garbage, "indptr", indptr)
        object.__setattr__(garbage, "cols", cols)
        return sample_neighbors(garbage, seeds, (4, 3), key, **options)

    in_both(sample, indptr, cols, anything(8, num_nodes), key_of(rng))
