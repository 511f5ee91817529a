"""The order of ids, by every implementation, for every number of digits of keys."""

from __future__ import annotations

from functools import partial

import emulation
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_gnn._ops.segment_order.primitive import sorted_ids

IMPLEMENTATIONS = [None, "xla", *(["cuda"] if emulation.WANTED else [])]
TILE = 4096
"""Ids that a block of the CUDA kernel reads at once."""


def ids_of(rng, count, bound, kind, dtype) -> np.ndarray:
    """Return random ids, some out of range: mostly one id, or ids of any distance."""
    largest = np.iinfo(dtype).max
    ids = rng.integers(-2, min(bound + 2, largest), count, dtype, endpoint=True)
    if kind == "one":
        ids[rng.random(count) < 0.9] = rng.choice(ids[:1]) if count else 0
    if kind == "far":
        ids[rng.random(count) < 0.3] = rng.choice([np.iinfo(dtype).min, -1, largest])
    return ids


def in_order(ids, bound) -> tuple[np.ndarray, np.ndarray]:
    # Padding sorts last, as the bound.
    keys = np.where((ids >= 0) & (ids < bound), ids, bound)
    order = np.argsort(keys, kind="stable")
    return keys[order], order


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["any", "one", "far"])
@pytest.mark.parametrize("count", [0, 1, 33, TILE, 3 * TILE + 5])
@pytest.mark.parametrize("bound", [0, 1, 31, 32, 511, 512, 70_000, 2**27, 2**31 - 1, 2**50])
def test_sorted_ids(rng, bound, count, kind, implementation) -> None:
    dtypes = ["int64"] if bound >= 2**31 else ["int32", "int64"]
    dtype = str(rng.choice(dtypes))
    with jax.enable_x64(dtype == "int64"):
        ids = ids_of(rng, count, bound, kind, dtype)
        results = jax.jit(partial(sorted_ids, bound=bound, implementation=implementation))(ids)
        for result, expected in zip(results, in_order(ids, bound), strict=True):
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, expected)


@pytest.mark.skipif(not emulation.WANTED, reason="about the CUDA kernel")
@pytest.mark.parametrize("bound", [7, 300_000])
def test_more_ids_than_blocks_have_at_once(rng, bound) -> None:
    """Each of 128 parts of the ids has two tiles, and the last part fewer."""
    ids = ids_of(rng, 128 * TILE + int(rng.integers(1, 99)), bound, "any", "int32")
    results = jax.jit(partial(sorted_ids, bound=bound, implementation="cuda"))(ids)
    for result, expected in zip(results, in_order(ids, bound), strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("bound", [3, 40_000, 2**30])
def test_a_batch(rng, bound, implementation) -> None:
    """A batch is one sort, or a loop where its keys would have too many bits."""
    ids = np.stack([ids_of(rng, 50, bound, "any", "int32") for _ in range(3)])
    results = jax.vmap(partial(sorted_ids, bound=bound, implementation=implementation))(ids)
    for row, keys, order in zip(ids, *results, strict=True):
        for result, expected in zip((keys, order), in_order(row, bound), strict=True):
            np.testing.assert_array_equal(result, expected)


def test_no_derivative(rng) -> None:
    """Values are permuted with derivatives, although the order has none."""
    ids = rng.integers(0, 9, 20)

    def weighed(x) -> jax.Array:
        return jnp.sum(x[sorted_ids(jnp.asarray(ids), 9)[1]] * jnp.arange(20.0))

    expected = np.argsort(np.argsort(ids, kind="stable"))
    np.testing.assert_array_equal(jax.grad(weighed)(jnp.ones(20)), expected)
