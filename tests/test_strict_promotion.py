"""Strict promotion of dtypes and ranks where the ops' own suite does not look.

All is traced, nothing is compiled: promotion is an error of tracing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import DIRECTED, DST, GRAPH, HYPERGRAPH, LAYERS, SIZE, SRC
from op_spec import strict
from segment_cases import DROP_IN, REDUCTIONS

import flax_layers
import jax_gnn
from jax_gnn import Graph, HeteroGraph, Hypergraph, RelationalGraph, SegmentIndex, TypePlan

FLOATS = ("float64", "float32", "bfloat16", "float16")


@contextmanager
def strict_of(dtype) -> Iterator[None]:
    with strict(), jax.enable_x64(dtype in ("float64", "int64")):
        yield


# --- Containers and static indices ---------------------------------------------------------------


def of_graph(src, dst) -> Any:
    graph = Graph.from_edges(src, dst, num_nodes=SIZE).with_edge_split()
    bipartite = Graph.from_edges(src, dst, num_src=SIZE, num_dst=SIZE + 1)
    values = graph.edge_values(jnp.ones(src.shape, jnp.bfloat16))
    padded = graph.pad(num_nodes=9, num_edges=9)
    return graph.transpose(), bipartite, values, padded, graph.in_degrees(), graph.out_degrees()


def of_hypergraph(src, dst) -> Any:
    sizes = {"num_nodes": SIZE, "num_hyperedges": SIZE}
    hypergraph = Hypergraph.from_incidence(src, dst, **sizes)
    directed = Hypergraph.from_directed(src, dst, dst, src, **sizes)
    values = hypergraph.incidence_values(jnp.ones(src.shape, jnp.float16))
    padded = directed.pad(num_nodes=9, num_hyperedges=9, num_incidences=9, num_head_incidences=9)
    return hypergraph.dual, directed.dual, values, padded, hypergraph.node_degrees()


def of_relational_graph(src, dst) -> Any:
    rel = jnp.zeros(src.shape, src.dtype)
    graph = RelationalGraph.from_triples(src, rel, dst, SIZE, 2, inverse=True, self_relation=True)
    values = graph.edge_values(jnp.ones(src.shape, jnp.bfloat16))
    padded = graph.pad(num_nodes=9, num_edges=30)
    return graph.norm("mean"), values, padded, graph.relation_degrees(), graph.in_degrees()


def of_hetero_graph(src, dst) -> Any:
    edges = {("a", "r", "b"): (src, dst), ("b", "s", "b"): (dst, dst)}
    graph = HeteroGraph.from_edges(edges, {"a": SIZE, "b": SIZE}, inverse=True)
    values = graph.edge_values({key: jnp.ones(src.shape, jnp.bfloat16) for key in edges})
    return values, graph.split(jnp.ones((2 * SIZE, 2), jnp.float16))


def of_type_plan(types, _) -> Any:
    plan = TypePlan.from_types(types, 3)
    x = jnp.ones((types.shape[0], 2), jnp.bfloat16)
    weights = jnp.ones((3, 2, 4), jnp.bfloat16)
    return plan.unsort(jax_gnn.segment_matmul(plan.sort(x), weights, plan.group_sizes))


CONTAINERS = (of_graph, of_hypergraph, of_relational_graph, of_hetero_graph, of_type_plan)


@pytest.mark.parametrize("make", CONTAINERS)
@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint16"])
def test_containers(make, dtype) -> None:
    for sizes in (dtype, "int64"):  # 64 bits off, and on
        with strict_of(sizes):
            ids = SRC.astype(dtype), DST.astype(dtype)
            jax.eval_shape(make, *ids)
            jax.eval_shape(jax.vmap(make), *(np.stack([array, array]) for array in ids))


@pytest.mark.parametrize("dtype", FLOATS)
def test_static_indices(dtype) -> None:
    index = SegmentIndex.from_ids([3, 1, -1, 1, 0], SIZE)

    def both(data) -> Any:
        return index.gather(index.segment_sum(data))

    with strict_of(dtype):
        jax.eval_shape(lambda x: jax.vjp(both, x)[1](x), jnp.ones((5, 2), dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, "complex64", "int32", "uint8"])
@pytest.mark.parametrize("kind", ["sorted", "unsorted", "indptr"])
def test_reductions_of_all_dtypes(kind, dtype) -> None:
    ids: Any = {
        "segment_ids": np.sort(DST),
        "num_segments": SIZE,
        "indices_are_sorted": kind == "sorted",
    }
    if kind == "indptr":
        ids = {"indptr": np.array([0, 2, 2, 7])}
    names = (*DROP_IN, "mean") if dtype.startswith("complex") else REDUCTIONS
    with strict_of(dtype):
        data = jnp.ones((len(DST), 2), dtype)
        for name in names:
            reduction = getattr(jax_gnn, f"segment_{name}")
            jax.eval_shape(functools.partial(reduction, **ids), data)


@pytest.mark.parametrize(
    "dtypes", [("int8", "uint8"), ("bfloat16", "float32"), ("int32", "float16")]
)
def test_operands_of_several_dtypes(dtypes) -> None:
    """Ops that promise a common dtype give it, as jax.lax.ragged_dot does."""
    with strict_of("float32"):
        lhs, rhs = jnp.ones((5, 2), dtypes[0]), jnp.ones((2, 2, 3), dtypes[1])
        product = jax.eval_shape(jax_gnn.segment_matmul, lhs, rhs, np.array([2, 3]))
        if jnp.issubdtype(dtypes[0], jnp.floating):
            a, b = jnp.ones((SIZE, 2), dtypes[0]), jnp.ones((SIZE, 2), dtypes[1])
            assert jax.eval_shape(jax_gnn.sddmm, GRAPH, a, b).dtype == jnp.float32
    assert product.dtype == jnp.promote_types(*dtypes)


@pytest.mark.parametrize("dtype", FLOATS)
def test_norms(dtype) -> None:
    with strict_of(dtype):
        weight = jnp.ones(len(SRC), dtype)
        for graph in (HYPERGRAPH, DIRECTED):
            jax.eval_shape(
                lambda w, g=graph: jax_gnn.hypergraph_norm(g, incidence_weight=w), weight
            )
            jax.eval_shape(flax_layers.unigcn_norm, graph)
        jax.eval_shape(flax_layers.gcn_norm, GRAPH, weight)


# --- Layers --------------------------------------------------------------------------------------


def converted(tree, dtype) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, dtype) -> None:
    """Values and all gradients, under dropout, where parameters have the dtype of the features."""
    case = LAYERS[name]

    def run(operands, named) -> None:
        def total(layer, operands, named) -> Any:
            results = jax.tree.leaves(case.call(layer, *operands, **named))
            # Positions keep 32 bits beside features of a half type.
            return functools.reduce(jnp.add, (jnp.sum(y).astype(float) for y in results))

        nnx.grad(total, argnums=(0, 1, 2))(case.make(dtype), operands, named)

    with strict_of(dtype):
        jax.eval_shape(run, *converted((case.operands, case.named), dtype))


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "LinkPredictor"])
def test_features_of_more_bits_than_parameters(rng, name) -> None:
    """Nothing is rounded to the parameters' dtype on the way, such as factors of edges."""
    case = LAYERS[name]
    with jax.enable_x64(True):
        layer, wide = (case.make(dtype) for dtype in ("float32", "float64"))
        params = nnx.state(layer, nnx.Param)
        params = jax.tree.map(lambda p: rng.uniform(0.1, 1, p.shape).astype("f"), params)
        for model, dtype in ((layer, "float32"), (wide, "float64")):
            model.eval()
            nnx.update(model, converted(params, dtype))
        # Operands beside the features may have fewer bits, too. Copies: jaxlib 0.10 keeps an array
        # in float32 which a trace without x64 closed over, when an error ended that trace.
        named, operands = converted(case.named, "float32"), jax.tree.map(np.copy, case.operands)

        @jax.jit
        def both(operands) -> Any:
            exact = case.call(wide, *operands, **converted(named, "float64"))
            return case.call(layer, *operands, **named), exact

        for result, exact in zip(*map(jax.tree.leaves, both(operands)), strict=True):
            assert result.dtype == "float64"
            np.testing.assert_allclose(result, exact, rtol=1e-12, atol=1e-12 * np.abs(exact).max())


def test_all_layers_are_here() -> None:
    public = {getattr(flax_layers, name) for name in flax_layers.__all__}
    # Modules that are only parts of layers are reached through these.
    public = {kind for kind in public if isinstance(kind, type) and issubclass(kind, nnx.Module)}
    layers = [nnx.eval_shape(functools.partial(case.make, "float32")) for case in LAYERS.values()]
    kinds = {type(module) for layer in layers for _, module in nnx.iter_modules(layer)}
    bases = {flax_layers.AttentionOptions, flax_layers.LinearOptions, flax_layers.Stack}
    assert public - kinds == bases
