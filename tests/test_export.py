"""Exported programs: of all primitives, for sizes and platforms that are not those at hand."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import emulation
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.export import symbolic_shape
from op_spec import assert_close, setting
from op_suite import IMPLEMENTATIONS, PLATFORM

import jax_gnn
from jax_gnn import Graph, Hypergraph, TypePlan, segment_matmul, segment_sum
from jax_gnn._core.op import OPS

pytestmark = pytest.mark.skipif(emulation.WANTED, reason="emulated kernels have other names")

export = functools.partial(jax.export.export, disabled_checks=jax_gnn.EXPORT_CHECKS)


def floats(*shape) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def calls(exported: jax.export.Exported) -> set[str]:
    """Return the custom calls of this library in an exported program."""
    module = exported.mlir_module()
    return {name for name in OPS if f"@jax_gnn_{name}(" in module}


# --- Checks --------------------------------------------------------------------------------------


def test_checks_cover_all_primitives() -> None:
    want = {jax.export.DisabledSafetyCheck.custom_call(f"jax_gnn_{n}") for n in OPS}
    assert set(jax_gnn.EXPORT_CHECKS) == want
    assert len(want) >= 12


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:-1])
def test_checks_are_needed(implementation: str) -> None:
    operands = np.ones((4, 2), np.float32), np.zeros(4, np.int32)
    with setting(implementation):
        # Without the checks, JAX refuses custom calls that it does not know.
        jitted = jax.jit(lambda x, ids: segment_sum(x, ids, 3, True))
        with pytest.raises(ValueError, match="jax_gnn_segment_reduce"):
            jax.export.export(jitted)(*operands)
        assert calls(export(jitted)(*operands)) == {"segment_reduce"}


# --- Symbolic shapes -----------------------------------------------------------------------------


def graph_spec(edges, num_src, num_dst) -> Graph:
    ids = integers(edges)
    arrays = integers(num_dst + 1), ids, ids, integers(num_src + 1), *[ids] * 4
    return Graph(*arrays, num_input_edges=integers())


def hypergraph_spec(count, nodes, hyperedges) -> Hypergraph:
    def split(rows) -> Any:
        slots = count // 8 + rows + 1
        return jax_gnn.graph.EdgeSplit(integers(slots, 8), integers(slots, 2))

    graph = graph_spec(count, nodes, hyperedges)
    return Hypergraph(replace(graph, split=split(hyperedges), t_split=split(nodes)))


def random_pairs(rng: np.random.Generator, size: int) -> dict[str, Any]:
    return {"src": rng.integers(0, size, 5 * size), "dst": rng.integers(0, size + 2, 5 * size)}


def random_graph(rng: np.random.Generator, size: int) -> Graph:
    return Graph.from_edges(**random_pairs(rng, size), num_src=size, num_dst=size + 2)


def random_hypergraph(rng: np.random.Generator, size: int) -> Hypergraph:
    pairs = random_pairs(rng, size).values()
    return Hypergraph.from_incidence(*pairs, num_nodes=size, num_hyperedges=size + 2)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def sorted_ids(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.sort(rng.integers(-1, size + 1, 5 * size)).astype(np.int32)


def on_segments(name: str) -> Callable[..., jax.Array]:
    def function(ids, like_segments, x) -> jax.Array:
        op = getattr(jax_gnn, f"segment_{name}")
        y = op(x, ids, like_segments.shape[0], indices_are_sorted=True)
        return jnp.where(jnp.isfinite(y), y, 0)

    return function


def typed_product(types, x, weights) -> jax.Array:
    plan = TypePlan.from_types(types, weights.shape[0])
    return plan.unsort(segment_matmul(plan.sort(x), weights, plan.group_sizes))


COUNT, ROWS, WIDTH = symbolic_shape("count, rows, width")
SEGMENTS = integers(COUNT), integers(ROWS), floats(COUNT, WIDTH)


def segment_operands(rng: np.random.Generator, size: int) -> tuple[Any, ...]:
    return sorted_ids(rng, size), np.zeros(size, np.int32), normal(rng, 5 * size, size + 3)


# By test id: the function of index arrays and then features, specifications of these, how many are
# index arrays, and what makes arguments of a size.
SYMBOLIC: dict[str, tuple[Callable[..., Any], Sequence[Any], int, Callable[..., Any]]] = {
    **{
        f"segment_{name}": (on_segments(name), SEGMENTS, 2, segment_operands)
        for name in ("sum", "max", "softmax")
    },
    "spmm": (
        jax_gnn.spmm,
        (graph_spec(COUNT, ROWS, ROWS + 2), floats(ROWS, WIDTH), floats(COUNT)),
        1,
        lambda rng, n: (random_graph(rng, n), normal(rng, n, n + 3), normal(rng, 5 * n)),
    ),
    "additive_attention": (
        jax_gnn.additive_attention,
        (
            graph_spec(COUNT, ROWS, ROWS + 2),
            floats(ROWS + 2, 2),
            floats(ROWS, 2),
            floats(ROWS, 2, WIDTH),
        ),
        1,
        lambda rng, n: (
            random_graph(rng, n),
            normal(rng, n + 2, 2),
            normal(rng, n, 2),
            normal(rng, n, 2, n + 3),
        ),
    ),
    "gatv2_attention": (
        jax_gnn.gatv2_attention,
        (
            graph_spec(COUNT, ROWS, ROWS + 2),
            floats(ROWS + 2, 2, WIDTH),
            floats(ROWS, 2, WIDTH),
            floats(2, WIDTH),
        ),
        1,
        lambda rng, n: (
            random_graph(rng, n),
            normal(rng, n + 2, 2, n + 3),
            normal(rng, n, 2, n + 3),
            normal(rng, 2, n + 3),
        ),
    ),
    "segment_matmul": (
        lambda sizes, x, w: segment_matmul(x, w, sizes, precision="highest"),
        (integers(3), floats(ROWS, WIDTH), floats(3, WIDTH, 4)),
        1,
        lambda rng, n: (
            np.array([n // 2, 0, n // 3], np.int32),
            normal(rng, n, n + 3),
            normal(rng, 3, n + 3, 4),
        ),
    ),
    "typed_product": (
        typed_product,
        (integers(COUNT), floats(COUNT, 4), floats(3, 4, WIDTH)),
        1,
        lambda rng, n: (
            rng.integers(-1, 4, 5 * n).astype(np.int32),
            normal(rng, 5 * n, 4),
            normal(rng, 3, 4, n),
        ),
    ),
    "hypergraph_aggregate": (
        functools.partial(jax_gnn.hypergraph_aggregate, normalization="symmetric"),
        (hypergraph_spec(COUNT, ROWS, ROWS + 2), floats(ROWS, WIDTH)),
        1,
        lambda rng, n: (random_hypergraph(rng, n), normal(rng, n, n + 3)),
    ),
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", SYMBOLIC)
def test_symbolic_shapes(
    rng: np.random.Generator, exact_products: None, case: str, implementation: str
) -> None:
    """One exported program serves all sizes, with kernels and gradients."""
    function, spec, num_index, make = SYMBOLIC[case]
    with setting(implementation):
        exported = export(jax.jit(function))(*spec)
        loaded = jax.export.deserialize(exported.serialize(vjp_order=1))
    # On CUDA, sizes must be known to fit: see the next test.
    if implementation != "xla" and (PLATFORM, case) != ("cuda", "hypergraph_aggregate"):
        assert calls(exported)
    for size in (5, 60):
        arguments = make(rng, size)
        index, operands = arguments[:num_index], arguments[num_index:]
        with setting(implementation):
            want, want_vjp = jax.vjp(functools.partial(function, *index), *operands)
            got, vjp = jax.vjp(functools.partial(loaded.call, *index), *operands)
            cotangent = normal(rng, *want.shape)
            gradients, want_gradients = vjp(cotangent), want_vjp(cotangent)
        assert_close(got, want, 1e-5, f"value of size {size}")
        for gradient, want_gradient in zip(gradients, want_gradients, strict=True):
            assert_close(gradient, want_gradient, 1e-4, f"gradient of size {size}")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:-1])
@pytest.mark.parametrize("bounded", [False, True])
def test_bounds_of_symbolic_shapes(bounded: bool, implementation: str) -> None:
    """Ids of 64 bits go to kernels if bounds say that the sizes fit in 32 bits."""
    bounds = ["count <= 1000000", "rows <= 1000000"] if bounded else []
    count, rows = symbolic_shape("count, rows", constraints=bounds)
    with setting(implementation, "int64"):
        ids = jax.ShapeDtypeStruct((count,), jnp.int64)
        exported = export(jax.jit(on_segments("sum")))(ids, integers(rows), floats(count, 2))
        assert calls(exported) == ({"segment_reduce"} if bounded else set())
        got = exported.call(np.array([0, 1, 2**32]), np.zeros(3, np.int32), np.ones((3, 2), "f"))
    np.testing.assert_array_equal(got, [[1, 1], [1, 1], [0, 0]])


def test_sizes_that_must_be_concrete() -> None:
    def gradient(*arguments) -> Any:
        return jax.grad(lambda x: on_segments("prod")(*arguments[:2], x).sum())(arguments[2])

    with pytest.raises(
        ValueError, match=r"product that is differentiated must be concrete.* count"
    ):
        export(jax.jit(gradient))(*SEGMENTS)
    weights = jax.ShapeDtypeStruct((ROWS, 2, 3), jnp.int32)
    with pytest.raises(ValueError, match=r"number of group_sizes must be concrete.* rows"):
        export(jax.jit(segment_matmul))(integers(COUNT, 2), weights, integers(ROWS))


# --- Platforms -----------------------------------------------------------------------------------


def test_platforms(rng: np.random.Generator) -> None:
    """One program serves several platforms, with the kernels of this installation."""
    arguments = segment_operands(rng, 20)
    function = on_segments("sum")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # there may be no kernels for CUDA here
        exported = export(jax.jit(function), platforms=["cpu", "cuda"])(*SEGMENTS)
    assert exported.platforms == ("cpu", "cuda")
    loaded = jax.export.deserialize(exported.serialize())
    assert calls(loaded) == {"segment_reduce"}
    assert_close(loaded.call(*arguments), function(*arguments), 1e-5, "value")
