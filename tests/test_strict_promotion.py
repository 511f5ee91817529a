"""Strict promotion of dtypes where the ops' own suite does not look: containers and layers.

All is traced, nothing is compiled: promotion is an error of tracing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import flax_layers
import jax_gnn
from jax_gnn import Graph, Hypergraph, RelationalGraph, SegmentIndex, TypePlan

SIZE, WIDTH = 6, 4
SRC, DST = np.array([0, 1, 2, 3, 3]), np.array([1, 0, 5, 2, 3])
GRAPH = Graph.from_edges(SRC, DST, num_nodes=SIZE)
HYPERGRAPH = Hypergraph.from_incidence(SRC, DST, num_nodes=SIZE, num_hyperedges=SIZE)
REL = np.array([0, 1, 1, 0, 1])
RELATIONAL = RelationalGraph.from_triples(SRC, REL, DST, SIZE, 2).with_parts()
DIRECTED = Hypergraph.from_directed(SRC, DST, DST, SRC, num_nodes=SIZE, num_hyperedges=SIZE)
FLOATS = ("float64", "float32", "bfloat16", "float16")


@contextmanager
def strict(dtype: str) -> Iterator[None]:
    wide = jax.enable_x64(dtype in ("float64", "int64"))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), wide:
        yield


# --- Containers and static indices ---------------------------------------------------------------


def of_graph(src: Any, dst: Any) -> Any:
    graph = Graph.from_edges(src, dst, num_nodes=SIZE).with_edge_split()
    bipartite = Graph.from_edges(src, dst, num_src=SIZE, num_dst=SIZE + 1)
    values = graph.edge_values(jnp.ones(src.shape, jnp.bfloat16))
    padded = graph.pad(num_nodes=9, num_edges=9)
    return graph.transpose(), bipartite, values, padded, graph.in_degrees(), graph.out_degrees()


def of_hypergraph(src: Any, dst: Any) -> Any:
    sizes = {"num_nodes": SIZE, "num_hyperedges": SIZE}
    hypergraph = Hypergraph.from_incidence(src, dst, **sizes)
    directed = Hypergraph.from_directed(src, dst, dst, src, **sizes)
    values = hypergraph.incidence_values(jnp.ones(src.shape, jnp.float16))
    padded = directed.pad(num_nodes=9, num_hyperedges=9, num_incidences=9, num_head_incidences=9)
    return hypergraph.dual, directed.dual, values, padded, hypergraph.node_degrees()


def of_relational_graph(src: Any, dst: Any) -> Any:
    rel = jnp.zeros(src.shape, src.dtype)
    graph = RelationalGraph.from_triples(src, rel, dst, SIZE, 2, inverse=True, self_relation=True)
    values = graph.edge_values(jnp.ones(src.shape, jnp.bfloat16))
    padded = graph.pad(num_nodes=9, num_edges=30)
    return graph.norm("mean"), values, padded, graph.relation_degrees(), graph.in_degrees()


def of_type_plan(types: Any, _: Any) -> Any:
    plan = TypePlan.from_types(types, 3)
    x = jnp.ones((types.shape[0], 2), jnp.bfloat16)
    weights = jnp.ones((3, 2, 4), jnp.bfloat16)
    return plan.unsort(jax_gnn.segment_matmul(plan.sort(x), weights, plan.group_sizes))


@pytest.mark.parametrize("make", [of_graph, of_hypergraph, of_relational_graph, of_type_plan])
@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint16"])
def test_containers(make: Callable[..., Any], dtype: str) -> None:
    for sizes in (dtype, "int64"):  # 64 bits off, and on
        with strict(sizes):
            ids = SRC.astype(dtype), DST.astype(dtype)
            jax.eval_shape(make, *ids)
            jax.eval_shape(jax.vmap(make), *(np.stack([each, each]) for each in ids))


@pytest.mark.parametrize("dtype", FLOATS)
def test_static_indices(dtype: str) -> None:
    index = SegmentIndex.from_ids([3, 1, -1, 1, 0], SIZE)

    def both(data: Any) -> Any:
        return index.gather(index.segment_sum(data))

    with strict(dtype):
        jax.eval_shape(lambda x: jax.vjp(both, x)[1](x), jnp.ones((5, 2), dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, "complex64", "int32", "uint8"])
@pytest.mark.parametrize("kind", ["sorted", "unsorted", "indptr"])
def test_reductions_of_all_dtypes(kind: str, dtype: str) -> None:
    ids: Any = {"segment_ids": DST, "num_segments": SIZE, "indices_are_sorted": kind == "sorted"}
    if kind == "indptr":
        ids = {"indptr": np.array([0, 2, 2, 5])}
    names = ["sum", "mean", "max", "min", "prod"]
    if not dtype.startswith("complex"):
        names += ["var", "std", "logsumexp", "softmax", "argmax"]
    with strict(dtype):
        data = jnp.ones((5, 2), dtype)
        for name in names:
            reduction = getattr(jax_gnn, f"segment_{name}")
            jax.eval_shape(functools.partial(reduction, **ids), data)


@pytest.mark.parametrize(
    "dtypes", [("int8", "uint8"), ("bfloat16", "float32"), ("int32", "float16")]
)
def test_operands_of_several_dtypes(dtypes: tuple[str, str]) -> None:
    """Ops that promise a common dtype give it, as jax.lax.ragged_dot does."""
    with strict("float32"):
        lhs, rhs = jnp.ones((5, 2), dtypes[0]), jnp.ones((2, 2, 3), dtypes[1])
        product = jax.eval_shape(jax_gnn.segment_matmul, lhs, rhs, np.array([2, 3]))
        if jnp.issubdtype(dtypes[0], jnp.floating):
            a, b = jnp.ones((SIZE, 2), dtypes[0]), jnp.ones((SIZE, 2), dtypes[1])
            assert jax.eval_shape(jax_gnn.sddmm, GRAPH, a, b).dtype == jnp.float32
    assert product.dtype == jnp.promote_types(*dtypes)


@pytest.mark.parametrize("dtype", FLOATS)
def test_norms(dtype: str) -> None:
    with strict(dtype):
        weight = jnp.ones(5, dtype)
        for graph in (HYPERGRAPH, DIRECTED):
            jax.eval_shape(
                lambda w, g=graph: jax_gnn.hypergraph_norm(g, incidence_weight=w), weight
            )
            jax.eval_shape(flax_layers.unigcn_norm, graph)
        jax.eval_shape(flax_layers.gcn_norm, GRAPH, weight)


# --- Layers --------------------------------------------------------------------------------------

SIZES = {"in_features": WIDTH, "out_features": 2 * WIDTH}
MODEL = {"in_features": WIDTH, "hidden_features": WIDTH, "out_features": 3}
ONES = np.ones(SRC.shape)
OF_HYPEREDGES = np.ones(SIZE)
GRAPHS = {
    flax_layers.GCN: [({}, {}), ({}, {"edge_weight": ONES})],
    flax_layers.GIN: [({"learn_eps": True}, {}), ({}, {"edge_weight": ONES})],
    flax_layers.SAGE: [
        ({"aggregation": "mean", "normalize": True}, {}),
        ({"aggregation": "max", "project": True}, {"edge_weight": ONES}),
        ({"aggregation": "sum"}, {}),
    ],
    flax_layers.GAT: [
        ({"heads": 2, "attention_dropout_rate": 0.5}, {}),
        ({"edge_features": 3}, {"edge_attr": np.ones((len(SRC), 3))}),
    ],
    flax_layers.GATv2: [
        ({"heads": 2, "share_weights": True}, {}),
        ({"edge_features": 3}, {"edge_attr": np.ones((len(SRC), 3))}),
    ],
    flax_layers.GraphTransformer: [
        ({"heads": 2, "gated": True}, {}),
        ({"edge_features": 3}, {"edge_attr": np.ones((len(SRC), 3))}),
    ],
}
WAYS = ("source_pairs", "destination_pairs", "tiles")
OF_RELATIONS = {"num_relations": 2}
RELATIONALS = {
    flax_layers.RGCN: [
        (OF_RELATIONS, {}),
        (OF_RELATIONS | {"num_bases": 3, "norm": "sum"}, {"edge_weight": ONES}),
    ],
    flax_layers.RGAT: [
        (OF_RELATIONS | {"heads": 2, "attention_dropout_rate": 0.5, "method": method}, {})
        for method in WAYS
    ]
    + [
        (
            OF_RELATIONS | {"attention": "multiplicative", "softmax": "within", "edge_features": 3},
            {"edge_attr": np.ones((len(SRC), 3))},
        )
    ],
    flax_layers.HGT: [(OF_RELATIONS | {"heads": 2, "method": method}, {}) for method in WAYS],
}
HYPERGRAPHS = {
    flax_layers.HGNN: [
        ({}, {}),
        ({"num_hyperedges": SIZE}, {"hyperedge_weight": OF_HYPEREDGES}),
        ({"use_bias": False}, {"incidence_weight": ONES}),
    ],
    flax_layers.HGNNP: [({}, {})],
    flax_layers.HypergraphAttention: [
        ({"heads": 2, "attention_dropout_rate": 0.5}, {}),
        ({"degrees": "attention"}, {"hyperedge_attr": np.ones((SIZE, WIDTH))}),
        ({"softmax_by": "hyperedge"}, {"hyperedge_weight": OF_HYPEREDGES}),
    ],
    flax_layers.UniGIN: [({}, {}), ({"hyperedge_reduce": "max", "learn_eps": False}, {})],
    flax_layers.UniSAGE: [({"normalize": True}, {}), ({"node_reduce": "min"}, {})],
    flax_layers.UniGAT: [({"heads": 2}, {}), ({"skip": True, "normalize": True}, {})],
    flax_layers.UniGCNII: [({}, {})],
    flax_layers.AllDeepSets: [({}, {}), ({"aggregation": "mean"}, {})],
    flax_layers.AllSetTransformer: [({"heads": 2}, {})],
}
# nnx.LayerNorm itself promotes all but float32.
NORMALIZED = (flax_layers.AllDeepSets, flax_layers.AllSetTransformer)
STRUCTURES = ((GRAPH, GRAPHS), (HYPERGRAPH, HYPERGRAPHS), (RELATIONAL, RELATIONALS))
LAYERS = [
    pytest.param(model, structure, *case, dtype, id=f"{model.__name__}-{i}-{dtype}")
    for structure, models in STRUCTURES
    for model, cases in models.items()
    for i, case in enumerate(cases)
    for dtype in (["float32"] if model in NORMALIZED else FLOATS)
]


def trace_gradients(layer: Any, *arguments: Any, **named: Any) -> None:
    nnx.grad(lambda layer: jnp.sum(layer(*arguments, **named)))(layer)


@pytest.mark.parametrize(("model", "structure", "options", "arguments", "dtype"), LAYERS)
def test_models(model: Any, structure: Any, options: Any, arguments: Any, dtype: str) -> None:
    """Values and gradients to the parameters, which have the dtype of the features."""

    def run(x: Any) -> None:
        layer = model(**MODEL, **options, param_dtype=dtype, rngs=nnx.Rngs(0))
        given = {name: jnp.asarray(value, dtype) for name, value in arguments.items()}
        trace_gradients(layer, structure, x, **given)

    with strict(dtype):
        jax.eval_shape(run, jax.ShapeDtypeStruct((SIZE, WIDTH), dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_typed_linear(dtype: str) -> None:
    def run(x: Any, types: Any) -> None:
        layer = flax_layers.TypedLinear(3, **SIZES, param_dtype=dtype, rngs=nnx.Rngs(0))
        trace_gradients(layer, x, types)

    with strict(dtype):
        jax.eval_shape(run, jax.ShapeDtypeStruct((SIZE, WIDTH), dtype), np.zeros(SIZE, np.int32))


@pytest.mark.parametrize("composition", ["sub", "mult", "corr"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_compgcn(composition: str, dtype: str) -> None:
    graph = RelationalGraph.from_triples(SRC, SRC % 2, DST, SIZE, 2, inverse=True)

    def run(x: Any, z: Any) -> None:
        options = {"num_relations": 4, "composition": composition, "param_dtype": dtype}
        model = flax_layers.CompGCN(**MODEL, **options, rngs=nnx.Rngs(0))
        nnx.grad(lambda model: sum(jnp.sum(y) for y in model(graph, x, z)))(model)

    with strict(dtype):
        shapes = (SIZE, WIDTH), (4, WIDTH)
        jax.eval_shape(run, *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))


def test_all_models_are_here() -> None:
    models = {getattr(flax_layers, name) for name in flax_layers.__all__}
    stacks = {m for m in models if isinstance(m, type) and issubclass(m, flax_layers.Stack)}
    stacks -= {flax_layers.Stack, flax_layers.CompGCN}  # which has a test of its own
    assert stacks == {model for _, models in STRUCTURES for model in models}
