"""Layers and static indices under JAX's transformations in all orders, of graphs from anywhere.

All is traced, nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_strict_promotion import DST, MODEL, REL, SIZE, SRC, STRUCTURES, WIDTH

import flax_layers
import jax_gnn
from jax_gnn import Graph, HeteroGraph, Hypergraph, RelationalGraph, SegmentIndex, TypePlan

KEYS = (("a", "r", "b"), ("b", "s", "b"), ("b", "t", "b"))
X = np.ones((SIZE, WIDTH), np.float32)
EDGES = {key: np.stack([SRC, DST]) for key in KEYS}
SIZES = {"a": SIZE, "b": SIZE}

# Containers of host arrays.
MAKE: dict[type, Callable[[], Any]] = {
    Graph: lambda: Graph.from_edges(SRC, DST, num_nodes=SIZE),
    Hypergraph: lambda: Hypergraph.from_incidence(SRC, DST, num_nodes=SIZE, num_hyperedges=SIZE),
    RelationalGraph: lambda: RelationalGraph.from_triples(SRC, REL, DST, SIZE, 2).with_parts(),
    HeteroGraph: lambda: HeteroGraph.from_edges(EDGES, SIZES).with_graphs(),
    SegmentIndex: lambda: SegmentIndex.from_ids(DST, SIZE),
    TypePlan: lambda: TypePlan.from_types(REL, 2),
}

Call = Callable[[Any, Any], Any]  # of a container and weights
Case = tuple[type, Callable[[], tuple[Call, Any]]]


def of_layer(
    make: Callable[[], Any], x: Any = X, arguments: Any = None
) -> Callable[[], tuple[Call, Any]]:
    """A layer's call, and the shapes of its weights."""

    def case() -> tuple[Call, Any]:
        layer = nnx.eval_shape(make)
        definition, weights, rest = nnx.split(layer, nnx.Param, ...)
        given = {n: np.asarray(v, np.float32) for n, v in (arguments or {}).items()}
        if isinstance(layer, flax_layers.Stack):
            given["deterministic"] = True

        def call(graph: Any, weights: Any) -> Any:
            zeros = jax.tree.map(lambda r: jnp.zeros(r.shape, r.dtype), rest)
            return nnx.merge(definition, weights, zeros)(graph, x, **given)

        return call, weights

    return case


def hetero_layer() -> nnx.Module:
    rngs = nnx.Rngs(0)
    convs: dict[Any, Any] = {
        key: flax_layers.SAGEConv((WIDTH, WIDTH), 4, rngs=rngs) for key in KEYS[:2]
    }
    return flax_layers.HeteroConv(convs | {KEYS[2]: flax_layers.GATConv(WIDTH, 4, rngs=rngs)})


def cases() -> Iterator[tuple[str, Case]]:
    for structure, models in STRUCTURES:
        for model, options in models.items():
            for i, (sizes, given) in enumerate(options):
                make = lambda m=model, s=sizes: m(**MODEL, **s, rngs=nnx.Rngs(0))  # noqa: E731
                yield f"{model.__name__}-{i}", (type(structure), of_layer(make, X, given))
    yield "HeteroConv", (HeteroGraph, of_layer(hetero_layer, {"a": X, "b": X}))
    of_rows = jax.ShapeDtypeStruct(X[: len(DST)].shape, np.float32)
    yield (
        "SegmentIndex",
        (SegmentIndex, lambda: (lambda index, x: index.gather(index.segment_sum(x)), of_rows)),
    )
    product = jax.ShapeDtypeStruct((2, WIDTH, 3), np.float32)

    def typed(plan: TypePlan, weights: Any) -> Any:
        return plan.unsort(
            jax_gnn.segment_matmul(plan.sort(X[: len(REL)]), weights, plan.group_sizes)
        )

    yield "TypePlan", (TypePlan, lambda: (typed, product))


CASES = dict(cases())


def orders(loss: Callable[[Any], jax.Array]) -> dict[str, Callable[[Any], Any]]:
    """Gradients to weights, and to a batch of weights, by the order of what they go through."""

    def each(batch: Any) -> jax.Array:
        return jax.vmap(jax.jit(loss))(batch).sum()

    return {
        "grad(remat(jit))": lambda w: jax.grad(jax.checkpoint(jax.jit(loss)))(w),
        "grad(jit(remat))": lambda w: jax.grad(jax.jit(jax.checkpoint(loss)))(w),
        "jvp(grad(jit))": lambda w: jax.jvp(jax.grad(jax.jit(loss)), (w,), (w,)),
        "grad(vmap(jit))": lambda w: jax.grad(each)(jax.tree.map(lambda a: jnp.stack([a] * 2), w)),
    }


@pytest.mark.parametrize("source", ["built inside", "of numpy", "of the device"])
@pytest.mark.parametrize("name", CASES)
def test_orders_of_transformations(name: str, source: str) -> None:
    kind, case = CASES[name]
    call, weights = case()
    made = MAKE[kind]()
    if source == "of numpy":
        made = jax.tree.map(np.asarray, made)

    def loss(weights: Any) -> jax.Array:
        graph = MAKE[kind]() if source == "built inside" and kind is not HeteroGraph else made
        return sum(jnp.sum(y**2) for y in jax.tree.leaves(call(graph, weights)))

    for order, gradient in orders(loss).items():
        found = jax.eval_shape(gradient, weights)
        assert found, order
