"""CPU kernels in each of their variants, on a machine that has them all or some."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_gnn
from jax_gnn import Graph, Hypergraph, _cpu
from jax_gnn._ops.segment_reduce import unsorted

NAMES = ("baseline", "AVX2", "AVX-512")
HERE = _cpu.instruction_sets()
ENTRIES, ROWS, NODES = 900, 50, 40


@pytest.fixture(params=NAMES)
def instruction_set(request) -> Iterator[str]:
    if request.param not in HERE:
        pytest.skip(f"this machine or this build has no {request.param}")
    _cpu.limit_instruction_set(request.param)
    yield request.param
    _cpu.limit_instruction_set(HERE[-1])


def graph_of(rng) -> Graph:
    edges = rng.integers(0, NODES, ENTRIES), rng.integers(0, ROWS, ENTRIES)
    return Graph.from_edges(*edges, num_src=NODES, num_dst=ROWS)


def reductions(reduce) -> Callable[..., jax.Array]:
    def run(rng, dtype, width) -> jax.Array:
        ids = np.sort(rng.integers(0, ROWS, ENTRIES))
        data = jnp.asarray(rng.uniform(-1, 1, (ENTRIES, width)), dtype)
        function = getattr(jax_gnn, f"segment_{reduce}")
        return function(data, ids, ROWS, indices_are_sorted=True)

    return run


def spmm(rng, dtype, width) -> jax.Array:
    x = jnp.asarray(rng.uniform(-1, 1, (NODES, width)), dtype)
    return jax_gnn.spmm(graph_of(rng), x, jnp.asarray(rng.uniform(-1, 1, ENTRIES), jnp.float32))


def sddmm(rng, dtype, width) -> jax.Array:
    a, b = (jnp.asarray(rng.uniform(-1, 1, (size, width)), dtype) for size in (ROWS, NODES))
    return jax_gnn.sddmm(graph_of(rng), a, b)


def hypergraph(rng, dtype, width) -> jax.Array:
    edges = rng.integers(0, NODES, ENTRIES), rng.integers(0, ROWS, ENTRIES)
    structure = Hypergraph.from_incidence(*edges, num_nodes=NODES, num_hyperedges=ROWS)
    x = jnp.asarray(rng.uniform(-1, 1, (NODES, width)), dtype)
    scale = jnp.asarray(rng.uniform(-1, 1, ROWS), jnp.float32)
    return jax_gnn.hypergraph_aggregate(structure, x, hyperedge_scale=scale)


def matmul(rng, dtype, width) -> jax.Array:
    sizes = np.array([0, 1, 7, 130, 300, 462], np.int32)
    lhs = jnp.asarray(rng.uniform(-1, 1, (ENTRIES, width)), dtype)
    rhs = jnp.asarray(rng.uniform(-1, 1, (len(sizes), width, width)), dtype)
    return jax_gnn.segment_matmul(lhs, rhs, sizes, activation="silu")


def outer(rng, dtype, width) -> jax.Array:
    sizes = np.array([0, 1, 7, 130, 300, 462], np.int32)
    lhs, rhs = (jnp.asarray(rng.uniform(-1, 1, (ENTRIES, width)), dtype) for _ in range(2))
    return jax_gnn.segment_outer(lhs, rhs, sizes)


OPS = {f"segment_{name}": reductions(name) for name in (*unsorted.REDUCTIONS, "softmax")} | {
    function.__name__: function for function in (spmm, sddmm, hypergraph, matmul, outer)
}


@pytest.mark.parametrize("width", [1, 13, 67])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", OPS)
def test_value(instruction_set, op, dtype, width, rng) -> None:
    results, seed = {}, rng.integers(2**32)
    for implementation in ("cpu", "xla"):
        with jax_gnn.implementation(implementation):
            result = OPS[op](np.random.default_rng(seed), dtype, width)
        results[implementation] = np.asarray(result, np.float64)
    tolerance = 1e-4 if dtype == "float32" else 0.05
    # Variants round differently, so the tolerance is relative to the largest result.
    scale = np.abs(results["xla"]).max()
    np.testing.assert_allclose(results["cpu"], results["xla"], atol=tolerance * scale, rtol=0)


def test_variants_are_used(instruction_set) -> None:
    """AVX2 and later round a product and a sum once; the baseline rounds both."""
    if len(HERE) == 1:
        pytest.skip("this machine or this build has one variant")
    if "Clang" in _cpu.compiler:
        pytest.skip("clang rounds some of these products and sums apart in every variant")
    small = np.float32(2**-13)  # (1 + small) (1 - small) rounds to 1
    rounding = 0 if instruction_set == "baseline" else -small * small
    lhs, rhs = np.array([-1, 1 + small], np.float32), np.array([1, 1 - small], np.float32)
    with jax_gnn.implementation("cpu"):
        for width in (1, 4, 16):
            rows, weight = np.tile(lhs[:, None], width), jnp.asarray(rhs)
            graph = Graph.from_edges([0, 1], [0, 0], num_src=2, num_dst=1)
            sums = jax_gnn.spmm(graph, rows, weight)
            product = jax_gnn.segment_matmul(
                lhs[None], np.tile(rhs[:, None], width)[None], np.array([1], np.int32)
            )
            for result in (sums, product):
                np.testing.assert_array_equal(np.asarray(result), np.full((1, width), rounding))


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="no such instruction set"):
        _cpu.limit_instruction_set("MMX")
