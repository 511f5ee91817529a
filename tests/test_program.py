"""Programs of messages: against plain JAX, in all ways to rewrite them; and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import pickle
import re
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from op_spec import strict
from program_cases import (
    MODELS,
    PLAIN,
    RELATIONAL,
    D,
    K,
    Sizes,
    largest_difference,
    random_arguments,
    random_graph,
    with_derivatives,
)

import jax_gnn
from flax_layers.readout import readout
from jax_gnn import Edge, Global, Graph, Node, NodeType, Relation, RelationalGraph, program
from jax_gnn._ops.edge_region import cuda_compile
from jax_gnn._ops.segment_matmul import api as products
from jax_gnn._program import api, explain, passes
from jax_gnn._program import regions as program_regions
from jax_gnn._program.api import Program
from jax_gnn._program.backend import backend as region_backend
from jax_gnn._program.cost import Costs
from jax_gnn._program.plan import Plan
from jax_gnn._program.regions import EdgeRegion
from jax_gnn._program.rows import topological_order
from jax_gnn._program.spaces import Space

TOLERANCE = 1e-10


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def with_regions():
    """Edge regions in plain XLA; on a CPU none are formed by default."""
    with jax_gnn.implementation("xla"):
        yield


def assert_same(function, graph, arguments, **options):
    """Compare values, gradients and JVPs of gradients of a program with its reference."""
    compiled = program(function, **options)
    seed = 7
    run_all = jax.jit(
        lambda graph, arguments: [
            with_derivatives(run, graph, arguments, seed) for run in (compiled, compiled.reference)
        ]
    )
    got, want = run_all(graph, arguments)
    assert largest_difference(got, want) < TOLERANCE


# --- Models --------------------------------------------------------------------------------------

OF_REGIONS = "gated", "edge_conv", "cg_conv", "cf_conv", "pna", "painn"


@pytest.mark.parametrize(
    "chosen",
    [
        passes.PASSES,
        (),
        ("compact_pairs",),
        ("contraction_order",),
        (*passes.PASSES, passes.DISTRIBUTE),
    ],
    ids="+".join,
)
@pytest.mark.parametrize("model", MODELS)
def test_model_is_its_reference(rng, model, chosen):
    graph = random_graph(rng, Sizes(padding=3))
    arguments = random_arguments(rng, MODELS[model], graph)
    assert_same(MODELS[model], graph, arguments, passes=chosen)


@pytest.mark.usefixtures("with_regions")
@pytest.mark.parametrize("model", OF_REGIONS)
def test_model_with_regions(rng, model):
    graph = random_graph(rng, Sizes(padding=3))
    assert_same(MODELS[model], graph, random_arguments(rng, MODELS[model], graph))


@pytest.mark.usefixtures("with_regions")
@pytest.mark.parametrize(
    "model", ["not_finite_at_zero", "painn", "pna", "regions_in_turn", "stored_rows", "both_ways"]
)
@pytest.mark.parametrize("repeat", range(3))
def test_results_do_not_depend_on_the_choice_of_regions(rng, monkeypatch, model, repeat):
    """Costs decide which regions and passes a plan has, and never its results."""
    monkeypatch.setattr(Costs, "training", lambda costs: float(rng.random()))
    graph = random_graph(rng, Sizes(padding=3))
    assert_same(MODELS[model], graph, random_arguments(rng, MODELS[model], graph))


@pytest.mark.parametrize("model", [model.__name__ for model in PLAIN])
def test_model_on_a_graph_without_relations(rng, model):
    src, dst = rng.integers(9, size=(2, 30))
    graph = Graph.from_edges(src, dst, num_nodes=9).pad(num_edges=33)
    assert_same(MODELS[model], graph, random_arguments(rng, MODELS[model], graph))


@pytest.mark.parametrize("parts", [(), ("from_pairs",), ("to_pairs",)], ids="+".join)
@pytest.mark.parametrize("model", [model.__name__ for model in RELATIONAL])
def test_model_without_parts(rng, model, parts):
    graph = random_graph(rng, Sizes(), parts=parts)
    assert_same(MODELS[model], graph, random_arguments(rng, MODELS[model], graph))


@pytest.mark.parametrize("sizes", [Sizes(2, 1, 2), Sizes(5, 0, 2), Sizes(5, 0, 2, padding=2)])
def test_hardly_any_edges(rng, sizes):
    graph = random_graph(rng, sizes)
    assert_same(MODELS["rgat"], graph, random_arguments(rng, MODELS["rgat"], graph))


def test_one_head_is_like_none(rng):
    """Axes of size 1 hide no pattern."""

    def attention(g, x: Node, w):
        q, k, v = jnp.einsum("k,nkhd->nhd", x, w)
        s = jnp.einsum("hd,hd->h", g.dst(q), g.src(k)) / 2
        return g.sum(g.softmax(s)[:, None] * g.src(v))

    src, dst = rng.integers(9, size=(2, 30))
    graph = Graph.from_edges(src, dst, num_nodes=9)
    arguments = {"x": rng.normal(size=(9, 3)), "w": rng.normal(size=(3, 3, 1, 4))}
    assert_same(attention, graph, arguments)
    assert "attention (dot)" in program(attention).explain(graph, **arguments)


@pytest.mark.usefixtures("with_regions")
def test_rows_without_numbers(rng):
    def function(g, x: Node, e: Edge):
        m = jnp.tanh(g.src(x) * g.dst(x))
        return g.sum(m), g.max(m), g.reverse.min(m), g.sum(jnp.sin(jnp.concatenate([m, e])))

    graph = Graph.from_edges(*rng.integers(0, 5, (2, 12)), num_nodes=5)
    assert_same(function, graph, {"x": np.ones((5, 0)), "e": rng.normal(size=(12, 3))})


def test_an_axis_of_one_meets_a_longer_one(rng):
    """A slice of gates of size 1 times vectors, as in PaiNN's message."""

    def function(g, v: Node, e: Edge):
        return g.sum(g.src(v) * e[1:2])

    graph = Graph.from_edges(*rng.integers(0, 5, (2, 12)), num_nodes=5)
    multiply, v, e = program(function), rng.normal(size=(5, 3, 4)), rng.normal(size=(12, 2, 4))
    want = multiply.reference(graph, v, e)
    assert largest_difference(jax.jit(multiply)(graph, v, e), want) < TOLERANCE


def sums_by_graph(g, x: Node):
    return g.graph.sum(x)


def of_rows(g, v: Global, w: Relation):
    return v if w is None else w


def normalized_by_graph(g, x: Node, c: Edge, u: Global, v: Global, w):
    h = g.sum(c * g.src(x)) + x * jnp.exp(g.graph(u) @ w)
    z = (h - g.graph(g.graph.mean(h))) / g.graph(g.graph.std(h))
    total = g.graph.sum(g.graph.softmax(z @ w.T) * h)
    return {
        "graphs": (total, g.graph.max(h), g.graph.min(z), g.graph.sum(w[0]), g.graph.logsumexp(h)),
        "products": (g.graph.mean(jnp.tanh(w @ g.graph(v)) * z[:, None]), u @ w * g.graph.sum(1.0)),
        "nodes": (g.graph(total) * x, g.sum(jnp.tanh(g.src(x) * g.dst(g.graph(u))))),
    }


@pytest.mark.parametrize("implementation", [None, "xla"])
@pytest.mark.parametrize("typed", [False, True])
def test_batch_of_graphs(rng, typed, implementation):
    """Padding nodes hold large numbers; padding graphs hold NaN, and have a deviation of 0."""
    triples = [rng.integers(n, size=(3, edges)) for n, edges in ((5, 12), (3, 9), (7, 0))]
    graphs = [
        RelationalGraph.from_triples(*x, num_nodes=n, num_relations=7)
        for x, n in zip(triples, (5, 3, 7), strict=True)
    ]
    graphs = graphs if typed else [graph.nodes for graph in graphs]
    graph = jax_gnn.batch(graphs, num_nodes=19, num_edges=30, num_graphs=5)
    x = rng.normal(size=(19, K)) + 800 * np.asarray(graph.graph_ids < 0)[:, None]
    shapes = {"c": (30,), "u": (5, K), "v": (5, K, 2), "w": (K, K)}
    arguments = {"x": x} | {name: rng.normal(size=shape) for name, shape in shapes.items()}
    arguments["v"][3:] = np.nan
    with jax_gnn.implementation(implementation):
        assert_same(normalized_by_graph, graph, arguments)
    got = program(sums_by_graph)(graph, x)
    assert largest_difference(got, readout(graph, x)) < TOLERANCE
    assert "sum by graph" in program(sums_by_graph).explain(graph, x)


def test_hypergraph(rng):
    """Incidences are edges from nodes to hyperedges; reverse edges go back."""

    def attention(g, x: Node, y: Node, e: Edge, w):
        h = g.sum(g.softmax(e) * g.src(x @ w)) + y
        return h, g.reverse.mean(g.dst(h)), g.reverse.sum(g.reverse.softmax(e) * g.dst(h))

    def means(g, x: Node):
        return g.reverse.sum(g.dst(g.mean(g.src(x))))

    hypergraph = jax_gnn.Hypergraph.from_hyperedges([[0, 1, 2], [2, 3], [0, 3, 4, 4], []])
    hypergraph = hypergraph.pad(num_nodes=7, num_hyperedges=6, num_incidences=12)
    shapes = {"x": (7, 3), "y": (6, 2), "e": (12, 2), "w": (3, 2)}
    arguments = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    assert_same(attention, hypergraph, arguments)
    x = arguments["x"]
    want = jax_gnn.hypergraph_aggregate(hypergraph, x, hyperedge_reduce="mean")
    assert largest_difference(program(means)(hypergraph, x), want) < TOLERANCE


def attention_of_types(g, x_src: Node, x_dst: Node, e: Edge, w, a, k: float):
    s = jax.nn.leaky_relu(g.src(x_src @ w @ a) + g.dst(x_dst.sum()) + k * e)
    return g.sum(g.softmax(s) * g.src(x_src @ w)), s, {"sources": g.reverse.mean(e) * x_src}


def test_hetero_graph(rng):
    """Each edge type runs the program, with parameters of its own or with common ones."""
    sizes = {"a": 3, "b": 5}
    types = ("a", "r", "b"), ("b", "s", "b"), ("a", "t", "b"), ("b", "u", "a")
    edges = {t: [rng.integers(sizes[end], size=9) for end in t[::2]] for t in types}
    graph = jax_gnn.HeteroGraph.from_edges(edges, sizes).with_graphs()
    x, k = {name: rng.normal(size=(n, K + n)) for name, n in sizes.items()}, 0.5
    e, a = {t: rng.normal(size=9) for t in types}, rng.normal(size=D)
    w = {t: rng.normal(size=(x[t[0]].shape[1], D)) for t in types}
    attention = program(attention_of_types)
    nodes, scores, of_sources = attention(graph, x, x, e, w, a, k)
    want = {t: attention(graph.graph(t), x[t[0]], x[t[2]], e[t], w[t], a, k) for t in types}
    sums = sum(want[t][0] for t in types[:3])
    assert largest_difference(nodes, {"a": want[types[3]][0], "b": sums}) < TOLERANCE
    assert largest_difference(scores, {t: want[t][1] for t in types}) < TOLERANCE
    from_a, from_b, more_from_a, more_from_b = (want[t][2]["sources"] for t in types)
    sums = {"a": from_a + more_from_a, "b": from_b + more_from_b}
    assert largest_difference(of_sources["sources"], sums) < TOLERANCE
    arguments = {"x_src": x, "x_dst": x, "e": e, "w": w, "a": a}
    assert_same(functools.partial(attention_of_types, k=k), graph, arguments)
    assert attention.explain(graph, x, x, e, w, a, k).count("as written") == 4
    with pytest.raises(ValueError, match=r"x_dst must be a mapping by type of nodes that has 'b'"):
        attention(graph, x, {"a": x["a"]}, e, w, a, k)
    with pytest.raises(ValueError, match=r"e must be a mapping by edge type .*, got list"):
        attention(graph, x, x, [1.0], w, a, k)
    with pytest.raises(ValueError, match=r"program gcn: x must be named …_src or …_dst, as the e"):
        program(MODELS["gcn"])(graph, x, w)
    with pytest.raises(ValueError, match=r"v has rows of each graph, and the program runs once"):
        program(of_rows)(graph, x, w)


def test_bipartite_graph(rng):
    @program
    def attention(g, x: Node, y: Node, w):
        z = x @ w
        s = jax.nn.leaky_relu(g.src(z).sum() + g.dst(y).sum(), 0.1)
        return g.sum(g.softmax(s) * g.src(z)) + y.sum(), g.src(x) * g.dst(y).sum(), z

    @program
    def of_sources(g, x: Node, y: Node):
        return x * g.reverse.degree() + g.reverse.max(g.dst(y).sum() + jnp.sin(g.src(x)))

    graph = Graph.from_edges(*rng.integers(4, size=(2, 20)), num_src=7, num_dst=4)
    arguments = {
        "x": rng.normal(size=(7, 3)),
        "y": rng.normal(size=(4, 2)),
        "w": rng.normal(size=(3, 3)),
    }
    got = attention(graph, **arguments)
    assert [y.shape for y in got] == [(4, 3), (20, 3), (7, 3)]
    assert largest_difference(got, attention.reference(graph, **arguments)) < TOLERANCE
    rows = arguments["x"], arguments["y"]
    got, want = of_sources(graph, *rows), of_sources.reference(graph, *rows)
    assert got.shape == (7, 3) and largest_difference(got, want) < TOLERANCE
    with pytest.raises(ValueError, match=r"x must have a row for each source of the graph, 7, got"):
        attention(graph, arguments["x"][:4], arguments["y"], arguments["w"])

    @program
    def reads_both_ends(g, x: Node):
        return g.sum(g.src(x) + g.dst(x))

    with pytest.raises(ValueError, match=r"x would be of sources and of destinations"):
        reads_both_ends(graph, arguments["x"])


# --- Transformations -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["rgat_of_heads", "hgt", "gated"])
def test_vmap_over_all_arrays(rng, model):
    graph = random_graph(rng, Sizes())
    batch = [random_arguments(rng, MODELS[model], graph) for _ in range(2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batch)
    layer = program(MODELS[model])
    got = jax.jit(jax.vmap(lambda arguments: layer(graph, **arguments)))(stacked)
    want = jax.vmap(lambda arguments: layer.reference(graph, **arguments))(stacked)
    assert largest_difference(got, want) < TOLERANCE


def test_inside_other_transformations(rng):
    """Programs run in JAX's loops and checkpoints, with the parameters of a Flax module."""
    graph = random_graph(rng, Sizes())
    rgat = program(MODELS["rgat"])

    class Layers(nnx.Module):
        def __init__(self):
            shapes = (2, 4, 3, 3), (2, 4, 3), (2, 4, 3)
            arrays = (jnp.asarray(rng.normal(size=shape) / 2) for shape in shapes)
            self.w, self.a, self.b = map(nnx.Param, arrays)

        def __call__(self, graph, x, run):
            def layer(x, weights):
                return jax.checkpoint(run)(graph, x, *weights), None

            return jax.lax.scan(layer, x, (self.w[...], self.a[...], self.b[...]))[0]

    layers, x = Layers(), jnp.asarray(rng.normal(size=(9, 3)))

    @nnx.jit
    def gradients(layers):
        return [
            nnx.grad(lambda layers, run=run: layers(graph, x, run).sum())(layers)
            for run in (rgat, rgat.reference)
        ]

    got, want = gradients(layers)
    assert largest_difference(got, want) < TOLERANCE


@pytest.mark.parametrize("model", ["gcn", "sage_max", "hgt", "not_finite_at_zero", "loop", "pna"])
def test_shard_map(rng, model):
    """Gradients of replicated weights, with a batch of features split over devices."""
    graph = random_graph(rng, Sizes(padding=1))
    arguments = random_arguments(rng, MODELS[model], graph)
    x = jnp.asarray(arguments.pop("x"))
    batch = jnp.stack([x, 2 * x])
    devices = jax.devices() if jax.device_count() >= 2 else jax.devices("cpu")
    mesh = jax.sharding.Mesh(np.array(devices[:2]), ("batch",))
    layer = program(MODELS[model])

    def loss(run, arguments, batch):
        return jnp.sum(jnp.sin(run(graph, x=batch[0], **arguments)), keepdims=True).reshape(1)

    def total(arguments):
        shards = jax.P(), jax.P("batch")
        row_loss = functools.partial(loss, layer)
        sharded = jax.shard_map(row_loss, mesh=mesh, in_specs=shards, out_specs=jax.P("batch"))
        return sharded(arguments, batch).sum()

    def want(arguments):
        return sum(loss(layer.reference, arguments, row_loss[None])[0] for row_loss in batch)

    got = jax.jit(jax.grad(total))(arguments)
    assert largest_difference(got, jax.jit(jax.grad(want))(arguments)) < TOLERANCE


@pytest.mark.parametrize("symbolic", [False, True])
def test_export(rng, symbolic):
    """An exported program serves other graphs, of any sizes if these are symbols."""
    layer = program(MODELS["gatv2"])

    def problem(nodes, edges):
        graph = Graph.from_edges(*rng.integers(nodes, size=(2, edges)), num_nodes=nodes)
        return graph, jax.tree.map(jnp.asarray, random_arguments(rng, MODELS["gatv2"], graph))

    graph, arguments = problem(9, 30)
    symbols = dict(zip((9, 30), jax.export.symbolic_shape("nodes, edges"), strict=True))
    symbols |= {10: symbols[9] + 1}

    def shape(x):
        sizes = (symbols.get(size, size) if symbolic else size for size in x.shape)
        return jax.ShapeDtypeStruct(tuple(sizes), x.dtype)

    run = jax.jit(lambda graph, arguments: layer(graph, **arguments))
    export = jax.export.export(run, disabled_checks=jax_gnn.EXPORT_CHECKS)
    exported = export(*jax.tree.map(shape, (graph, arguments)))
    graph, arguments = problem(7, 20) if symbolic else problem(9, 30)
    got = exported.call(graph, arguments)
    assert largest_difference(got, layer.reference(graph, **arguments)) < TOLERANCE


def test_other_contents_are_not_traced_again(rng):
    count = 0

    @program
    def counted(g, x: Node):
        nonlocal count
        count += 1
        return g.sum(g.src(x))

    first, second = (
        Graph.from_edges(*rng.integers(5, size=(2, 12)), num_nodes=5) for _ in range(2)
    )
    x = jnp.asarray(rng.normal(size=(5, 2)))
    got = counted(first, x), counted(second, x)
    assert count == 1
    assert largest_difference(got[1], counted.reference(second, x)) < TOLERANCE
    counted(first, x[:, :1])
    assert count == 3  # the reference, and another width


def test_closed_over_arrays_may_change(rng):
    graph = Graph.from_edges([0, 1], [1, 0], num_nodes=2)
    weights = [jnp.ones(3), jnp.zeros(3)]

    @program
    def weighted(g, x: Node):
        return g.sum(g.src(x) @ weights[0])

    x = jnp.ones((2, 3))
    assert weighted(graph, x).tolist() == [3, 3]
    weights.reverse()
    assert weighted(graph, x).tolist() == [0, 0]
    gradient = jax.grad(lambda w: _closed(graph, x, w))(jnp.ones(3))
    assert gradient.tolist() == [2, 2, 2]


def _closed(graph, x, w):
    return program(_closes_over(w))(graph, x).sum()


def _closes_over(w):
    def closing(g, x: Node):
        return g.sum(g.src(x) @ w)

    return closing


def test_half_types_keep_their_dtype(rng):
    graph = random_graph(rng, Sizes())
    for model in ("rgat", "rgcn", "gatv2"):
        arguments = random_arguments(rng, MODELS[model], graph)
        half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), arguments)
        got = program(MODELS[model])(graph, **half)
        assert got.dtype == jnp.bfloat16
        want = program(MODELS[model]).reference(graph, **arguments)
        np.testing.assert_allclose(got.astype(float), want, rtol=0.1, atol=0.3)


@pytest.mark.parametrize("model", MODELS)
def test_strict_promotion(rng, model):
    """Lowered programs promote no operand implicitly."""
    graph = random_graph(rng, Sizes(padding=1))
    arguments = random_arguments(rng, MODELS[model], graph)
    arguments = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), arguments)
    with strict():
        for run in (program(MODELS[model]), program(MODELS[model], passes=())):
            jax.eval_shape(run, graph, **arguments)


def test_pytrees_and_static_arguments(rng):
    @program
    def mixed(g, x: Node, weights: dict[str, Relation], scale: float = 1.0, *, mean: bool = False):
        m = g.src(x) @ g.relation(weights)["w"] * scale
        return {"y": g.mean(m) if mean else g.sum(m)}

    graph = random_graph(rng, Sizes())
    x, w = rng.normal(size=(9, 3)), {"w": rng.normal(size=(4, 3, 2))}
    for options in ({}, {"scale": 2.0}, {"mean": True}):
        got, want = mixed(graph, x, w, **options), mixed.reference(graph, x, w, **options)
        assert largest_difference(got, want) < TOLERANCE
    with pytest.raises(ValueError, match=r"program mixed: weights\['w'\] must have a row for each"):
        mixed(graph, x, {"w": w["w"][:2]})


def test_static_arguments_are_told_apart_by_type():
    @program
    def scaled(g, x: Node, k):
        return x * (1 if k is True else 2 if isinstance(k, int) else 3 * jnp.copysign(1, k))

    graph, x = Graph.from_edges([0], [0], num_nodes=1), np.ones((1, 2))
    got = [float(scaled(graph, x, k)[0, 0]) for k in (1, True, 1.0, 0.0, -0.0, 1)]
    assert got == [2, 1, 3, 3, -3, 2]


@program
def in_this_module(g, x: Node):
    return g.sum(g.src(x))


def test_programs_are_copied_and_pickled_after_a_call():
    graph, x = Graph.from_edges([0, 1], [1, 0], num_nodes=2), np.ones((2, 2))
    in_this_module(graph, x)
    assert pickle.loads(pickle.dumps(in_this_module)) is in_this_module
    assert copy.deepcopy(in_this_module) is in_this_module
    renamed = program(MODELS["gcn"], passes=("contraction_order",))  # under another name
    assert pickle.loads(pickle.dumps(renamed))._passes == ("contraction_order",)


def test_cloudpickle_takes_programs_to_other_processes(tmp_path):
    """Programs of a script and of a function are pickled by value."""
    pytest.importorskip("cloudpickle")
    (tmp_path / "script.py").write_text(
        "import sys, cloudpickle, numpy as np\n"
        "from jax_gnn import Graph, Node, program\n"
        "@program\n"
        "def doubled(g, x: Node):\n    return 2 * g.sum(g.src(x))\n"
        "graph, x = Graph.from_edges([0, 1], [1, 0], num_nodes=2), np.ones((2, 2), np.float32)\n"
        "doubled(graph, x)\n"
        "inner = program(lambda g, x: x)\n"
        "open(sys.argv[1], 'wb').write(cloudpickle.dumps((doubled, inner, graph, x)))\n"
    )
    file = tmp_path / "programs"
    load = "import sys, pickle; p, q, g, x = pickle.load(open(sys.argv[1], 'rb')); print(p(g, x))"
    python = [sys.executable, "-P"]  # the installed package, not the folder at hand
    subprocess.run([*python, tmp_path / "script.py", file], check=True)
    process = subprocess.run([*python, "-c", load, file], check=True, capture_output=True)
    assert b"[[2. 2.]" in process.stdout


def test_a_program_leaks_no_tracers(rng):
    with jax.checking_leaks():
        layer = program(MODELS["gated"])
        graph = Graph.from_edges(*rng.integers(9, size=(2, 30)), num_nodes=9)
        layer(graph, **random_arguments(rng, MODELS["gated"], graph))


# --- Rewrites ------------------------------------------------------------------------------------


def test_constants_keep_their_values():
    @program
    def averages(g, x: Node):
        weights = jnp.ones(4)
        masked_mean = jnp.mean(x, where=jnp.arange(4) < 2)
        return (
            jnp.average(x, weights=weights),
            masked_mean,
            x / jnp.ones_like(x).sum(),
            x / (weights @ weights),
        )

    graph, x = Graph.from_edges([0], [1], num_nodes=2), np.arange(8.0).reshape(2, 4)
    want = x.mean(1), x[:, :2].mean(1), x / 4, x / 4
    assert largest_difference(averages(graph, x), want) < TOLERANCE


def test_a_quotient_is_divided():
    @program
    def quotients(g, x: Node, e: Edge):
        return g.sum(e * g.src(x)) / (g.sum(e) + jnp.asarray(1e-6, e.dtype)), x / x

    graph = Graph.from_edges([0, 1], [1, 1], num_nodes=3)
    x, e = jnp.full((3, 1), 41, jnp.float16), jnp.full((2, 1), 0.5, jnp.float16)
    got, quotient = quotients(graph, x, e)
    assert np.isfinite(got).all() and np.all(quotient == 1)


@pytest.mark.parametrize("model", ["gat", "gat_of_pairs", "gatv2", "rgat", "rgat_of_heads"])
@pytest.mark.parametrize("comparison", ["greater", "greater_equal"])
def test_derivatives_at_a_kink(rng, monkeypatch, model, comparison):
    """Parameters that start at zero give scores of 0, the kink of LeakyReLU."""
    is_above = getattr(jnp, comparison)

    def leaky_relu(x, slope):
        return jnp.where(is_above(x, 0), x, slope * x)

    monkeypatch.setattr(jax.nn, "leaky_relu", leaky_relu)
    graph = random_graph(rng, Sizes())
    arguments = random_arguments(rng, MODELS[model], graph)
    zeros = {"a", "b", "a_h", "b_h", "a_s", "b_s", "a2_s", "w1_sh", "w2_sh"}
    arguments |= {name: 0 * arguments[name] for name in zeros & arguments.keys()}
    assert_same(MODELS[model], graph, arguments)


@pytest.mark.usefixtures("exact_products")
def test_differences_keep_their_digits(rng):
    @program
    def differences(g, x: Node, w):
        d = (g.src(x) - g.dst(x)) @ w
        return g.max(d), g.sum(d), g.sum(g.src(x) - g.dst(x))

    graph = Graph.from_edges(*rng.integers(50, size=(2, 400)), num_nodes=50)
    x, w = 1000 + rng.normal(size=(50, 16)), rng.normal(size=(16, 16))
    x = np.asarray(x, np.float32)
    want = differences.reference(graph, x.astype(np.float64), w)
    got = differences(graph, jnp.asarray(x), jnp.asarray(w, jnp.float32))
    for a, b in zip(got, want, strict=True):
        assert np.abs(np.where(np.isfinite(b), a - b, 0)).max() < 1e-3
    distributed = program(differences._function, passes=(*passes.PASSES, passes.DISTRIBUTE))
    assert "'distribute'" in distributed.explain(graph, x, w)


@program
def after_sums(g, x: Node, y: Node, v: Relation, w):
    d = 1 / g.sum(1.0)  # infinite without edges
    m = jnp.tanh(g.src(x) @ w) * g.relation(v) * g.src(y)
    return g.sum(g.dst(d) * m), g.sum(g.dst(d) * g.src(y)), g.sum((g.src(y) * g.relation(v)) @ w)


def test_rows_that_no_edge_reads_do_not_count(rng):
    """NaN in unread rows reaches neither results nor gradients."""
    graph = RelationalGraph.from_triples([0, 1, 2], [0, 1, 0], [1, 2, 1], 5, 3)
    x, y, v = rng.normal(size=(5, 4)), rng.normal(size=(5, 4)), rng.normal(size=(3, 4))
    for array in (x, y, v):
        array[-2:] = np.nan
    v[1] = 1
    arguments = {"x": x, "y": y, "v": v, "w": rng.normal(size=(4, 4))}
    assert_same(after_sums._function, graph, arguments)
    assert all(np.isfinite(result).all() for result in after_sums(graph, **arguments))


def test_linear_functions_of_unread_rows_need_no_counts(rng):
    @program
    def joined(g, x: Node, v: Relation):
        w = jnp.concatenate([g.relation(v)[1:], -g.relation(v)[:1]])
        return g.sum(jnp.tanh(g.src(x) @ w))

    graph = RelationalGraph.from_triples([0, 1, 2], [0, 2, 0], [1, 2, 1], 5, 3)
    arguments = {"x": rng.normal(size=(5, 4)), "v": rng.normal(size=(3, 4, 4))}
    arguments["v"][1] = np.nan
    assert_same(joined._function, graph, arguments)

    def total(arguments):
        return jnp.sum(joined(graph, **arguments))

    assert np.isfinite(jax.tree.leaves(jax.grad(total)(arguments))[0]).all()
    assert str(jax.make_jaxpr(total)(arguments)).count("jax_gnn_segment_reduce[") == 1


def test_float16_products_stay_in_order():
    """Products in another order would exceed 65,504, the largest float16."""

    @program
    def scaled(g, x: Node, s, w):
        return g.sum(s * g.src(x)), (x * s) * x, g.sum(jnp.concatenate([g.src(x), g.dst(x)]) @ w)

    graph = Graph.from_edges(np.arange(200), np.zeros(200, int), num_nodes=200)
    x, s = jnp.full((200, 1), 1000, jnp.float16), jnp.asarray(1e-3, jnp.float16)
    w = jnp.asarray([[80], [-80]], jnp.float16)
    for got in scaled(graph, x, s, w):
        assert np.isfinite(got).all()


def test_counts_beyond_a_half_type():
    """A sum of 70,000 zeros is 0, though float16 cannot hold the count."""
    graph = Graph.from_edges(np.zeros(70_000, int), np.zeros(70_000, int), num_nodes=1)
    sums = program(lambda g, x: g.sum(x))
    assert not sums(graph, jnp.zeros(2, jnp.float16)).any()


def test_gradients_of_constant_indices_have_one_order(rng):
    """Gradients have no scatter, whose order of additions varies on a GPU."""

    @program
    def correlated(g, x: Node, z: Relation):
        places = (np.arange(4)[:, None] + np.arange(4)) % 4
        twice = jnp.take(x, jnp.arange(6) % 3 - 2, axis=0)
        return g.sum(g.relation(z)[places] @ g.src(x)), g.src(twice)[:, None], g.src(x)[2:]

    graph = random_graph(rng, Sizes())
    arguments = {"x": rng.normal(size=(9, 4)), "z": rng.normal(size=(4, 4))}
    assert_same(correlated._function, graph, arguments)

    def total(run):
        return lambda arguments: sum(map(jnp.sum, run(graph, **arguments)))

    texts = [
        jax.jit(jax.grad(total(run))).lower(arguments).as_text()
        for run in (correlated, correlated.reference)
    ]
    assert "stablehlo.scatter" not in texts[0] and "stablehlo.scatter" in texts[1]


# --- Relations and types -------------------------------------------------------------------------


@program
def dropped(g, x: Node, y: Node, key, rate: float = 0.5):
    mask = jax.random.bernoulli(g.key(key), rate, x.shape)
    return g.sum(jnp.where(mask, jnp.tanh(g.src(x) + g.dst(y)), 0))


@pytest.mark.usefixtures("with_regions")
@pytest.mark.parametrize("typed", [True, False])
def test_random_keys_of_edges(rng, typed):
    """The key of an edge depends on its index alone; forward and backward draw the same numbers."""
    src, dst = rng.integers(9, size=(2, 30))
    graph = Graph.from_edges(src, dst, num_nodes=9).pad(num_edges=33)
    x, y = (jnp.asarray(rng.normal(size=(9, 4))) for _ in range(2))
    seed = int(rng.integers(1000))
    key = jax.random.key(seed) if typed else jax.random.PRNGKey(seed)

    def values(run):
        loss_and_gradient = jax.value_and_grad(lambda x: jnp.sum(jnp.sin(run(graph, x, y, key))))
        return run(graph, x, y, key), loss_and_gradient(x)

    def drawn(place):
        return jax.random.bernoulli(jax.random.fold_in(jax.random.key(seed), place), 0.5, (4,))

    def by_hand(graph, x, y, key):
        messages = jnp.tanh(x[graph.cols[:30]] + y[graph.rows[:30]])
        mask = jax.vmap(drawn)(jnp.arange(30, dtype=np.uint32))
        return jax.ops.segment_sum(jnp.where(mask, messages, 0), graph.rows[:30], 9)

    runs = dropped, dropped.reference, by_hand
    compiled, *references = jax.jit(lambda: [values(run) for run in runs])()
    assert all(largest_difference(compiled, x) < TOLERANCE for x in references)
    region = dropped.explain(graph, x, y, key).partition("\nedge regions")[2]
    assert "of add, tanh, select_n" in region  # which reads truth values

    @program
    def noisy(g, x: Node, key):
        noise, mask = jax.random.normal(g.key(key), x.shape), jax.random.bernoulli(g.key(key))
        return g.sum(jnp.tanh(g.src(x) + g.dst(x) + noise) * mask)

    functions = noisy.explain(graph, x, key).partition("\nedge regions\n")[2].splitlines()[0]
    assert "tanh" in functions and "convert_element_type" in functions
    assert "erf_inv" not in functions, functions


def test_refused_keys(rng):
    graph = Graph.from_edges(*rng.integers(9, size=(2, 30)), num_nodes=9)
    x = np.ones((9, 4))
    with pytest.raises(TypeError, match=r"g\.key\(key\), rate, .*: .* invalid PRNG key data"):
        dropped(graph, x, x, np.ones(3))

    @program
    def of_edges(g, key: Edge):
        return g.sum(jax.random.uniform(g.key(key)))

    with pytest.raises(
        ValueError, match=r"g\.key takes a key that all edges share, got key, a row"
    ):
        of_edges(graph, jax.random.split(jax.random.key(0), 30))


@program
def dropped_features(g, x: Node, key: Node, of_edges: Edge):
    h = x * jax.random.bernoulli(key, 0.5, x.shape)
    mask = jax.random.bernoulli(of_edges, 0.5, x.shape)
    return g.sum(jnp.where(mask, jnp.tanh(g.src(h)), jax.random.normal(g.dst(key)))), h


def test_keys_of_nodes_and_edges(rng):
    graph = Graph.from_edges(*rng.integers(9, size=(2, 30)), num_nodes=9).pad(num_edges=33)
    x = jnp.asarray(rng.normal(size=(9, 4)))
    keys, of_edges = (jax.random.split(jax.random.key(i), n) for i, n in enumerate((9, 33)))
    results = [
        run(graph, x, keys, of_edges) for run in (dropped_features, dropped_features.reference)
    ]
    assert largest_difference(*results) < TOLERANCE
    masks = np.asarray(results[0][1]) != 0
    assert len(np.unique(masks, axis=0)) > 1


def test_a_shared_key_is_refused_where_rows_are_drawn(rng):
    graph = Graph.from_edges(*rng.integers(9, size=(2, 30)), num_nodes=9)
    x, key = rng.normal(size=(9, 4)), jax.random.key(0)

    def masked(g, x: Node, key):
        return g.sum(g.src(x * jax.random.bernoulli(key, 0.5, x.shape)))

    def noisy(g, x: Node, key):
        return g.sum(g.src(x) + jax.random.normal(key, (4,)))

    def of_weights(g, x: Node, key):  # which all share
        return g.sum(g.src(x) @ jax.random.normal(key, (4, 4)))

    with pytest.raises(ValueError, match=r"same for each node, .* such as key: Node, and pass"):
        program(masked)(graph, x, key)
    with pytest.raises(ValueError, match=r"same for each edge, .* draw with g\.key\(key\)"):
        program(noisy)(graph, x, key)
    assert program(of_weights)(graph, x, key).shape == (9, 4)


@pytest.mark.usefixtures("with_regions")
def test_a_mask_is_a_result_of_a_region(rng):
    @program
    def masked(g, x: Node, e: Edge):
        mask = g.src(x) > e
        return g.sum(jnp.where(mask, jnp.tanh(e), 0)), mask

    graph = Graph.from_edges(*rng.integers(9, size=(2, 30)), num_nodes=9)
    x, e = rng.normal(size=(9, 4)), rng.normal(size=(30, 4))
    (got, mask), (want, expected_mask) = masked(graph, x, e), masked.reference(graph, x, e)
    assert largest_difference(got, want) < TOLERANCE
    np.testing.assert_array_equal(mask, expected_mask)


def test_types_at_the_ends_of_relations():
    edges = {("a", "to", "b"): [[0], [1]], ("b", "in", "b"): [[0], [1]]}
    graph = RelationalGraph.from_edge_dict(edges, {"a": 2, "b": 2}, inverse=True)
    assert graph.relation_ends == ((0, 1), (1, 1), (1, 0), (1, 1))
    with_self = RelationalGraph.from_edge_dict(edges, {"a": 2, "b": 2}, self_relation=True)
    assert with_self.relation_ends == ((0, 1), (1, 1), None)
    assert with_self.pad(num_edges=20).relation_ends == with_self.relation_ends
    assert RelationalGraph.from_triples([0], [0], [0], num_nodes=1).relation_ends is None


def test_weights_of_types_meet_those_of_relations(rng):
    """W[type] A[relation] is a product of relations if relations know their end types."""

    @program
    def typed(g, x: Node, w: NodeType, a: Relation):
        return g.sum(g.src(x) @ (g.src_type(w) @ g.relation(a)))

    graph = random_graph(rng, Sizes())
    arguments = rng.normal(size=(9, 3)), rng.normal(size=(2, 3, 4)), rng.normal(size=(4, 4, 2))
    got, want = typed(graph, *arguments), typed.reference(graph, *arguments)
    assert largest_difference(got, want) < TOLERANCE
    first = random_graph(rng, Sizes(), self_relation=True)
    a = rng.normal(size=(5, 4, 2))
    got, want = (run(first, *arguments[:2], a) for run in (typed, typed.reference))
    assert largest_difference(got, want) < TOLERANCE


# --- Which ops ------------------------------------------------------------------------------------

OPS = {
    "rgcn": ["segment_matmul", "spmm"],
    "rgat": ["rgat_attention (source_pairs)"],
    "rgat_of_heads": ["rgat_attention (source_pairs)"],
    "gat": ["attention (sum)"],
    "gat_of_pairs": ["attention (sum)"],
    "gatv2": ["attention (leaky)"],
    "transformer": ["attention (dot)"],
    "gcn": ["spmm", "count"],
    **{model: ["edge_region"] for model in OF_REGIONS},
}


@pytest.mark.usefixtures("with_regions")
@pytest.mark.parametrize("model", OPS)
def test_ops_that_serve_a_model(rng, model):
    graph = random_graph(rng, Sizes(200, 3000))
    text = program(MODELS[model]).explain(graph, **random_arguments(rng, MODELS[model], graph))
    table = text[text.index("\nops") :]
    assert all(op in table for op in OPS[model]), table
    assert "einsum" not in table or model not in ("rgcn",), table
    if OPS[model] == ["edge_region"]:
        assert "edge regions" in table and "fell back" not in table


@pytest.mark.usefixtures("with_regions")
def test_a_region_is_worth_more_than_an_order(rng):
    """A product of nodes is not moved to the edges for a better contraction order."""
    graph = Graph.from_edges(*rng.integers(200, size=(2, 3000)), num_nodes=200)
    rows = (200, 64), (3000, 64), (64, 64), (64, 64), (64, 64)
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in rows]
    ops = program(MODELS["gated"]).explain(graph, *shapes).partition("\nops")[2]
    assert "edge_region" in ops and "fell back" not in ops


@pytest.mark.usefixtures("with_regions")
def test_a_region_stores_what_else_is_read(rng):
    """Rows that results, ops and later regions are functions of are made once."""

    @program
    def gated(g, x: Node, e: Edge, w):
        gate = jax.nn.sigmoid(g.src(x @ w) + e)
        share = gate / (g.dst(g.sum(gate)) + 1)
        return g.sum(share * jnp.tanh(e)), share, jax.nn.relu(gate - 0.4)

    graph = Graph.from_edges(*rng.integers(2000, size=(2, 30_000)), num_nodes=2000)
    shapes = [jax.ShapeDtypeStruct(x, np.float32) for x in ((2000, 64), (30_000, 64), (64, 64))]
    ops, regions = gated.explain(graph, *shapes).partition("\nops")[2].split("counted", 1)
    assert re.findall(r"(\w+) +edge ", ops) == ["edge_region"] * 3, ops
    assert regions.count("logistic") == 1 and "fell back" not in regions, regions


def test_weights_are_reshaped_rather_than_rows_of_edges(rng):
    """Scores of heads, of which (e @ w).reshape(...) would be an array of edges."""

    def sums(g, e: Edge, w, a):
        return g.sum(((e @ w).reshape(*e.shape[:-1], 3, 5) * a).sum(-1))

    graph = Graph.from_edges(*rng.integers(9, size=(2, 40)), num_nodes=9)
    e, w, a = (rng.normal(size=n) for n in ((40, 7), (7, 15), (3, 5)))
    assert_same(sums, graph, {"e": e, "w": w, "a": a})
    made = program(sums).explain(graph, e, w, a).partition("\nops")[2]
    assert "(3, 5)" not in made and "(15,)" not in made and "(3,)" in made


@pytest.mark.usefixtures("with_regions")
def test_a_region_reads_rows_of_pairs(rng):
    """Rows of (source, relation) pairs are read by the region, not gathered for each edge."""

    @program
    def gated(g, x: Node, w: Relation, e: Edge):
        return g.sum(jax.nn.sigmoid(g.src(x) @ g.relation(w) + e))

    graph = random_graph(rng, Sizes(40, 3000))  # about 20 edges a pair
    shapes = (40, 64), (4, 64, 64), (graph.num_edges, 64)
    structs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    ops = gated.explain(graph, *structs).partition("\nops")[2]
    assert "edge_region" in ops and "gather" not in ops, ops
    arrays = [jnp.asarray(rng.normal(size=shape)) / 8 for shape in shapes]

    def values(run):
        loss_and_gradient = jax.value_and_grad(lambda arrays: jnp.sum(jnp.sin(run(graph, *arrays))))
        return run(graph, *arrays), loss_and_gradient(arrays)

    assert (
        largest_difference(*jax.jit(lambda: (values(gated), values(gated.reference)))()) < TOLERANCE
    )


@pytest.mark.usefixtures("with_regions")
def test_explanation_and_source_of_a_region(rng):
    """The reads and costs of a region in the explanation, and its generated CUDA source."""
    graph = random_graph(rng, Sizes(40, 3000))
    arguments = random_arguments(rng, MODELS["pna"], graph)
    text = program(MODELS["pna"]).explain(graph, **arguments)
    region = text.partition("\nedge regions")[2]
    assert re.search(r"reads %\d+ by source; %\d+ by destination; e by edge", region), region
    assert re.search(r"[0-9.]+ µs, .*B; with gradients [0-9.]+ µs, .*B, where ops take", region)
    generated = program(MODELS["pna"]).kernels(graph, **arguments)
    forward, gradients = generated.split(", gradients\n")
    assert all(f" to row, {reduce}" in forward for reduce in ("sum", "max", "min"))
    assert forward.count("struct Text") == 1  # a walk by destination
    assert gradients.count("struct Text") == 2 and " to col, sum" in gradients
    assert (
        program(MODELS["rgcn_of_ones"]).kernels(graph, x=np.ones((40, 3)), w=np.ones((4, 3, 4)))
        == ""
    )


def set_transformer(g, x: Node, e: Edge, w):
    """Scores of each channel, by a product; messages of edges; shares that are returned."""
    scores = jax.nn.leaky_relu((g.dst(x) - g.src(x)) * e, 0.2) @ w
    shares = g.softmax(scores)
    return g.sum(shares * (g.src(x) + e)), g.mean(shares), shares[:1]


def masked_attention(g, x: Node, e: Edge):
    """Scores of -inf, for all edges of some nodes."""
    s = jnp.where(e[:2] > 0.5, e[:2], -jnp.inf)
    return g.sum(g.softmax(s[:1]) * g.src(x)), g.softmax(s[1:])


@pytest.mark.usefixtures("with_regions")
@pytest.mark.parametrize("function", [set_transformer, masked_attention])
@pytest.mark.parametrize("sizes", [Sizes(40, 300), Sizes(40, 300, padding=70), Sizes(4, 0)])
def test_softmax_in_regions(rng, monkeypatch, function, sizes):
    def make_plan(traced, parts, names):
        return Plan(traced, parts, names, requested=names)

    monkeypatch.setattr(api, "make_plan", make_plan)
    graph = random_graph(rng, sizes)
    arguments = dict(
        x=rng.normal(size=(graph.num_nodes, 6)), e=rng.normal(size=(graph.num_edges, 6))
    )
    if function is set_transformer:
        arguments["w"] = rng.normal(size=(6, 6))
    assert_same(function, graph, arguments)


def test_scores_of_minus_infinity(rng):
    graph = random_graph(rng, Sizes(padding=3))
    arrays = {"x": rng.normal(size=(9, 2)), "e": rng.normal(size=(33, 2))}
    assert_same(masked_attention, graph, arrays)


def test_default_precision_is_that_of_the_call(rng):
    @program
    def convolution(g, x: Node, e: Edge, w):
        return g.sum(g.src(x) * jnp.tanh(e @ w))

    graph = random_graph(rng, Sizes(40, 3000))
    arrays = [jnp.zeros(shape) for shape in ((graph.num_nodes, 5), (graph.num_edges, 4), (4, 5))]
    for precision, name in ("default", "DEFAULT"), ("highest", "HIGHEST"), ("default", "DEFAULT"):
        with jax.default_matmul_precision(precision):
            text = str(jax.make_jaxpr(lambda *x: convolution(graph, *x))(*arrays))
        assert f"Precision.{name}" in text


def test_types_are_those_of_the_call(rng):
    @program
    def scaled(g, x: Node):
        return g.sum(g.src(x) * jnp.linspace(0, 1, 5))

    graph = random_graph(rng, Sizes(40, 300))
    x = rng.normal(size=(graph.num_nodes, 5)).astype(np.float32)
    for x64 in (False, True):
        with jax.enable_x64(x64):
            assert scaled(graph, x).dtype == scaled.reference(graph, x).dtype


def test_linear_maps_are_in_regions(rng):
    """Regions have linear maps if the chosen implementation has kernels for them."""

    @program
    def convolution(g, x: Node, e: Edge, w):
        return g.sum(g.src(x) * (jnp.tanh(e) @ w))

    graph = random_graph(rng, Sizes(40, 3000))
    shapes = (graph.num_nodes, 20), (graph.num_edges, 12), (12, 20)
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    text = convolution.explain(graph, *arrays)
    assert ("w by all" in text) == (region_backend() == "cuda")
    assert ("edge regions" in text) == (region_backend() != "cpu")
    with jax_gnn.implementation("cuda"):
        text = convolution.explain(graph, *arrays)
        assert ("w by all" in text) == (cuda_compile.missing() is None)
    with jax_gnn.implementation("xla"):
        assert "w by all" not in convolution.explain(graph, *arrays)

    def gradients(run):
        return jax.grad(lambda *x: jnp.sum(jnp.sin(run(graph, *x))), (0, 1, 2))(*arrays)

    for got, want in zip(gradients(convolution), gradients(convolution.reference), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_regions_without_kernels_are_left_to_ops(rng, monkeypatch):
    @program
    def convolution(g, x: Node, e: Edge):
        return g.sum(g.src(x) * jnp.tanh(e))

    graph = random_graph(rng, Sizes(40, 3000))
    arrays = [jnp.zeros((rows, 20)) for rows in (graph.num_nodes, graph.num_edges)]
    monkeypatch.setattr(cuda_compile, "supports_linear_maps", lambda: True)
    with jax_gnn.implementation("cuda"):
        assert "edge regions" in convolution.explain(graph, *arrays)
        monkeypatch.setattr(program_regions, "flops_of_walks", lambda region: np.inf)
        other = jnp.zeros((graph.num_edges, 21))  # plans are kept by shapes
        text = convolution.explain(graph, jnp.zeros((graph.num_nodes, 21)), other)
        assert "no region, which has no kernel for GPUs" in text and "for each edge" not in text


@pytest.mark.usefixtures("with_regions")
def test_products_of_mixed_types_are_linear_maps(rng):
    """Rows in float32 times weights in bfloat16, as where a program closes over constants."""

    @program
    def filtered(g, x: Node, e: Edge, w):
        return g.sum(g.src(x) * (jnp.tanh(e.astype(jnp.float32)) @ w))

    graph = random_graph(rng, Sizes(40, 3000))
    shapes = (graph.num_nodes, 20), (graph.num_edges, 12), (12, 20)
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes]
    assert "dot_general" not in filtered.explain(graph, *arrays).split("after")[-1]
    exact = [np.asarray(x, np.float64) for x in arrays]
    got, want = filtered(graph, *arrays), filtered.reference(graph, *exact)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_regions_in_turn_make_a_product_once(rng, monkeypatch):
    monkeypatch.setattr(cuda_compile, "missing", lambda: None)

    @program
    def gated(g, x: Node, e: Edge, w):
        gate = jax.nn.sigmoid(g.src(x) + e @ w)
        return g.max(gate * jnp.tanh(g.src(x) - g.dst(g.sum(gate))))

    graph = Graph.from_edges(*rng.integers(100_000, size=(2, 700_000)), num_nodes=100_000)
    rows = (100_000, 64), (700_000, 16), (16, 64)
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in rows]
    with jax_gnn.implementation("cuda"):
        text = gated.explain(graph, *shapes)
    assert text.count("w by all") == 1 and "fell back" not in text, text


def test_gradients_have_a_plan_of_their_own(rng, monkeypatch):
    """Where the map of a region is too large for gradients, it is split before it is left out."""

    def gradient_flops(region):
        return np.inf if any(matrix.size > 64 * 64 for matrix in region.linear_maps) else 0

    monkeypatch.setattr(cuda_compile, "missing", lambda: None)
    monkeypatch.setattr(EdgeRegion, "gradient_flops", gradient_flops)

    @program
    def pna(g, x: Node, e: Edge, w):
        m = jax.nn.relu(jnp.concatenate([g.dst(x), g.src(x), e]) @ w)
        return jnp.concatenate([g.max(m), g.min(m), g.mean(m * m)])

    graph = Graph.from_edges(*rng.integers(100_000, size=(2, 700_000)), num_nodes=100_000)
    rows = (100_000, 64), (700_000, 64), (192, 64)
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in rows]
    with jax_gnn.implementation("cuda"):
        gradients = pna.kernels(graph, *shapes).split(", gradients\n")[1]
    assert re.search(r"= outer .* of float32\[4096\]", gradients), gradients


@pytest.mark.usefixtures("with_regions")
def test_explanation_names_functions_without_instructions(rng):
    @program
    def sorted_rows(g, x: Node, e: Edge):
        return g.sum(jnp.sort(g.src(x) * e)), g.sum(jnp.tile(jnp.tanh(g.src(x) + e), 20_000))

    graph = Graph.from_edges(*rng.integers(9, size=(2, 30)), num_nodes=9)
    text = sorted_rows.explain(graph, np.ones((9, 4)), np.ones((30, 4)))
    assert "jax.vmap, as sort has no instruction for rows of edges" in text
    assert "by plain XLA on a GPU: " in text


@pytest.mark.usefixtures("with_regions")
def test_a_weighted_sum_is_no_region(rng):
    @program
    def weighted(g, x: Node, c: Edge):
        return g.sum(jnp.exp(-(c**2)) * jnp.cos(c) * g.src(x))

    graph = Graph.from_edges(*rng.integers(200, size=(2, 3000)), num_nodes=200)
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((200, 64), (3000,))]
    assert "spmm" in weighted.explain(graph, *shapes).partition("\nops")[2]


def test_explanation_names_the_gain_of_a_missing_part(rng):
    graph = random_graph(rng, Sizes(100, 3000), parts=("to_pairs",))
    text = program(MODELS["rgat"]).explain(graph, **random_arguments(rng, MODELS["rgat"], graph))
    assert re.search(r'lacks its part "from_pairs", with which [0-9.]+ µs', text)


def test_tuned_program_is_the_same(rng):
    graph = random_graph(rng, Sizes())
    arguments = random_arguments(rng, MODELS["rgcn"], graph)
    got = program(MODELS["rgcn"], tune=True)(graph, **jax.tree.map(jnp.asarray, arguments))
    want = program(MODELS["rgcn"]).reference(graph, **arguments)
    assert largest_difference(got, want) < TOLERANCE


# --- Bad input -----------------------------------------------------------------------------------


def adds_ends(g, x: Node):
    return g.sum(g.src(x) + x)


def sums_nodes(g, x: Node):
    return g.sum(x)


def shared_relation(g, x: Node, w):
    return g.sum(g.src(x) @ g.relation(w))


def closed_over_relation(g, x: Node):
    return g.sum(g.src(x) @ g.relation(_WEIGHTS))


def source_of_edges(g, e: Edge):
    return g.sum(g.src(e))


def unequal_widths(g, x: Node, w: Relation):
    return g.sum(g.src(x) @ g.relation(w).T)


def control_flow(g, x: Node):
    return g.sum(g.src(x)) if g.src(x)[0] > 0 else x


def side_effects(g, x: Node):
    jax.debug.print("{}", x)
    return g.sum(g.src(x))


def inside_a_loop(g, x: Node):
    return jax.lax.fori_loop(0, 65, lambda i, h: h + g.sum(g.src(x)), x)


def inside_a_rule(g, x: Node):
    @jax.custom_vjp
    def clipped(x):
        return g.sum(g.src(x))

    clipped.defvjp(lambda x: (clipped(x), None), lambda _, ct: (jnp.clip(ct, -1, 1),))
    return clipped(x)


def differentiates(g, x: Node):
    return g.sum(jax.grad(lambda x: jnp.sum(g.src(x)))(x))


def varies(g, x: Node) -> Node:
    return g.src(x)


def of_booleans(g, x: Node):
    return g.sum(g.src(x) > 0)


_WEIGHTS = np.ones((4, 3, 2))
REFUSED = {
    adds_ends: (ValueError, r"\(g\.src\(x\) \+ x\)`: add combines .* x, a row of each"),
    sums_nodes: (ValueError, r"g\.sum\(x\)`: g\.sum takes a row of each edge, got x, a row"),
    shared_relation: (ValueError, r"g\.relation reads a row of a relation, got w, shared"),
    closed_over_relation: (ValueError, r"row of a relation, got an array that the program closes"),
    source_of_edges: (ValueError, r"g\.src reads a row of a node, got e, a row of each edge"),
    unequal_widths: (TypeError, r"program unequal_widths, test_program\.py:\d+, `return g\.sum\("),
    control_flow: (TypeError, r"`return g\.sum.*if .*`: Python looks at what a row holds"),
    side_effects: (TypeError, r"`jax\.debug\.print.*`: a program has no side effects"),
    inside_a_loop: (ValueError, r"scan holds a g\.…: rows are read and reduced outside of"),
    inside_a_rule: (ValueError, r"custom_vjp_call holds a g\.…: .* derivative rule, and of loops"),
    differentiates: (TypeError, r"not differentiated through g\.… inside a program"),
    varies: (ValueError, r"annotated as a row of a node, and varies over more"),
    of_booleans: (TypeError, r"g\.sum takes numbers, got bool"),
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_refused(rng, function):
    kind, message = REFUSED[function]
    graph = random_graph(rng, Sizes())
    arrays = {"x": np.ones((9, 3)), "w": np.ones((4, 3, 2)), "e": np.ones((30, 2))}
    count = function.__code__.co_argcount
    arguments = {name: arrays[name] for name in function.__code__.co_varnames[1:count]}
    for run in (program(function), program(function).reference, program(function).explain):
        with pytest.raises(kind, match=message):
            run(graph, **arguments)


def test_refused_arguments(rng):
    rgcn = program(MODELS["rgcn_of_ones"])
    graph = random_graph(rng, Sizes())
    x, w = np.ones((9, 3)), np.ones((4, 3, 2))
    with pytest.raises(ValueError, match=r"w must have a row for each relation of the graph, 4"):
        rgcn(graph, x, w[:3])
    with pytest.raises(ValueError, match=r"program rgcn_of_ones: x must have a row for each node"):
        rgcn(graph, x[:4], w)
    with pytest.raises(ValueError, match=r"w has a row for each relation, and the graph has no"):
        rgcn(graph.nodes, x, w)
    with pytest.raises(TypeError, match=r"graph must be a Graph, .* or HeteroGraph, got ndarray"):
        rgcn(x, x, w)
    hypergraph = jax_gnn.Hypergraph.from_directed([0], [0], [1], [0])
    with pytest.raises(ValueError, match=r"an undirected hypergraph, .*, got a directed one: call"):
        rgcn(hypergraph, x, w)
    batch = jax_gnn.batch([graph.nodes])
    wrong = dataclasses.replace(batch, graph_ids=batch.graph_ids[1:])
    with pytest.raises(ValueError, match=r"graph\.graph_ids must be \(num_nodes,\) = \(9,\), got"):
        rgcn(wrong, x, w)
    with pytest.raises(ValueError, match=r"g\.graph is the graph of .*: graph must be a Batch"):
        program(sums_by_graph)(graph, x)
    with pytest.raises(ValueError, match=r"v has a row for each graph, and the graph has no gra"):
        program(of_rows)(graph, x, None)
    with pytest.raises(TypeError, match=r"program rgcn_of_ones: missing a required argument: 'w'"):
        rgcn(graph, x)
    for scalar in (np.float64(1), 1.0):
        with pytest.raises(ValueError, match=r"x must have a row for each node, got a scalar"):
            rgcn(graph, scalar, w)
    untyped = RelationalGraph.from_triples([0], [0], [0], num_nodes=1)
    with pytest.raises(ValueError, match=r"of_type\[0\] has a row for each node type, and"):
        program(MODELS["hgt"])(untyped, x[:1], [w], w, w, w)
    with pytest.raises(ValueError, match=r"passes must be among cse, .*, got fast"):
        program(MODELS["gcn"], passes=("fast",))
    with pytest.raises(TypeError, match=r"must take an edge, g, first, got no arguments"):
        program(lambda: 1)
    with pytest.raises(TypeError, match=r"x must be an array .*, got float in a list: pass jnp"):
        rgcn(graph, x.tolist(), w)
    with pytest.raises(TypeError, match=r"passes must be a sequence of names, got 'order'"):
        program(MODELS["gcn"], passes="order")
    with pytest.raises(TypeError, match=r"takes a function of an edge, g, and of rows, got Graph"):
        program(graph.nodes)
    with pytest.raises(
        TypeError, match=r"program forward must .*, got self: write the program out"
    ):

        class Layer:
            @program
            def forward(self, g, x: Node):
                return g.sum(g.src(x))


def test_reductions_of_edges_are_those_of_segments(rng):
    graph = random_graph(rng, Sizes()).nodes

    @program
    def all_of(g, x: Node):
        m = g.src(x)
        return g.degree(), g.var(m), g.std(m), g.logsumexp(m)

    x = rng.normal(size=(9, 3))
    names = "sum", "var", "std", "logsumexp"
    values = [np.ones(graph.num_edges), *[x[np.asarray(graph.cols)]] * 3]
    for name, got, value in zip(names, all_of(graph, x), values, strict=True):
        reduce = getattr(jax_gnn, f"segment_{name}")
        np.testing.assert_allclose(got, reduce(value, graph.rows, 9), 1e-12, 1e-12, err_msg=name)


@pytest.mark.parametrize("name", ["in_degree", "prod", "readout", "other"])
def test_unknown_attribute_of_an_edge(rng, name):
    graph = random_graph(rng, Sizes())
    hint = "" if name == "other" else ": write .*"
    with pytest.raises(AttributeError, match=rf"g has no {name}{hint}; it has .*g\.src, .*g\.mean"):
        program(lambda g, x: getattr(g, name)(x))(graph, np.ones(3))


def test_a_partial_function_is_a_program(rng):
    def scaled(g, x: Node, k: float):
        return k * g.sum(g.src(x))

    graph = random_graph(rng, Sizes())
    x = rng.normal(size=(9, 3))
    got = program(functools.partial(scaled, k=2.0))(graph, x)
    assert largest_difference(got, 2 * program(scaled)(graph, x, 1.0)) < TOLERANCE


def test_program_is_public():
    assert isinstance(program(MODELS["gcn"]), Program)
    assert program(passes=())(MODELS["gcn"]).__name__ == "gcn"
    assert jax_gnn.Program is Program


# --- Passes --------------------------------------------------------------------------------------


def plan_after_all_passes(compiled, graph, arguments):
    """Return the plan after all passes, even if fewer passes would be cheaper."""
    call = compiled._call(graph, (), arguments)
    traced, _ = compiled._traced(call)
    names = tuple(name for name in passes.PASSES if name not in passes.FOR_REGIONS)  # as on a CPU
    return Plan(traced, call.parts, names)


def test_tall_products_are_those_of_layers(rng, monkeypatch):
    """The gradient of weights of a float32 product of many rows uses this library's kernel."""
    src, dst = rng.integers(9, size=(2, 30))
    graph = Graph.from_edges(src, dst, num_nodes=9)
    arguments = random_arguments(rng, MODELS["gatv2"], graph)
    arguments = {name: jnp.asarray(x, jnp.float32) for name, x in arguments.items()}

    def values(run):
        return jax.value_and_grad(lambda arguments: run(graph, **arguments).sum())(arguments)

    def names():
        jaxpr = jax.make_jaxpr(lambda arguments: layer(graph, **arguments))(arguments)
        return [equation.primitive.name for equation in jaxpr.eqns]

    layer = program(MODELS["gatv2"])
    assert "jax_gnn_linear" not in names()
    want = values(layer.reference)
    monkeypatch.setitem(products.MIN_ROWS, jax.default_backend(), 9)
    monkeypatch.setitem(products._MIN_FEATURES, jax.default_backend(), 2)
    layer = program(MODELS["gatv2"])
    assert names().count("jax_gnn_linear") == 2
    assert largest_difference(values(layer), want) < 5e-3  # TF32 on a GPU


def test_gradients_of_weights_of_tall_products_are_outer_products(rng, monkeypatch):
    """XLA computes the product and its gradient of rows; vmap and second derivatives work."""
    monkeypatch.setitem(products.MIN_ROWS, jax.default_backend(), 9)
    x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((50, 33), (33, 130)))
    assert products.is_tall(x, w, None) and not products.is_tall(x, w, "highest")
    assert not products.is_tall(x[:, :15], w[:15], None) and not products.is_tall(x[:8], w, None)

    def loss(product):
        return lambda x, w: jnp.sum(jnp.sin(product(x, w)))

    def derivatives(product, x, w):
        gradient = jax.grad(loss(product), (0, 1))
        return gradient(x, w), jax.jvp(gradient, (x, w), (w[:1, :33] + x, w * w))

    names = str(jax.make_jaxpr(jax.grad(loss(products.tall_matmul), (0, 1)))(x, w))
    assert names.count("segment_outer") == 1 and "segment_matmul" not in names
    got = jax.vmap(lambda x: derivatives(products.tall_matmul, x, w))(jnp.stack([x, 2 * x]))
    with jax.default_matmul_precision("highest"):
        want = jax.vmap(lambda x: derivatives(jnp.matmul, x, w))(jnp.stack([x, 2 * x]))
    assert largest_difference(got, want) < 5e-3  # TF32 on a GPU


def test_products_with_a_vector_are_xlas(rng, monkeypatch):
    """XLA fuses products with a vector into their neighbours; kernels cannot."""
    monkeypatch.setitem(products.MIN_ROWS, jax.default_backend(), 9)
    monkeypatch.setitem(products._MIN_FEATURES, jax.default_backend(), 2)
    graph = Graph.from_edges(*rng.integers(9, size=(2, 30)), num_nodes=9)
    arguments = random_arguments(rng, MODELS["gat"], graph)
    arguments = {name: jnp.asarray(x, jnp.float32) for name, x in arguments.items()}
    run = program(MODELS["gat"], passes=())  # as it is written: x w, and that times two vectors
    jaxpr = jax.make_jaxpr(lambda arguments: run(graph, **arguments))(arguments)
    names = [equation.primitive.name for equation in jaxpr.eqns]
    assert names.count("jax_gnn_linear") == 1


def test_a_product_goes_behind_a_choice_if_asked_to(rng):
    graph = random_graph(rng, Sizes(200, 3000))
    arguments = random_arguments(rng, MODELS["chosen_heads"], graph)
    plan = plan_after_all_passes(program(MODELS["chosen_heads"]), graph, arguments)
    assert "w1_sh) +node" not in explain.table_of_rows(plan.results, plan)
    plan = Plan(plan.traced, plan.parts, (*passes.PASSES, passes.DISTRIBUTE))
    text = explain.explain(plan, graph)
    final_rows = text[text.rindex("\nafter") : text.index("\nops")]
    assert re.search(r"einsum \S+ \(%\d+, w1_sh\) +node", final_rows), final_rows
    assert re.search(r"select_n\(%\d+, dst\(%\d+\), src\(%\d+\)\)", final_rows), final_rows


def scaled_copies(g, x: Node, w_s, v_s):
    """Four parts, of which all but the first are one row, as it is, scaled, and scaled twice."""
    y, d = g.mean(g.src(x)), g.sum(1.0)
    parts = [x, y, y * d, y * d * jnp.sqrt(d)]
    return jnp.concatenate(parts) @ w_s, jnp.einsum("k,ckd->dc", jnp.concatenate(parts), v_s)


def other_copies(g, x: Node, w_s, v_s):
    """Copies scaled by column, of several rows, and in float16."""
    y, d = g.mean(g.src(x)), g.sum(1.0)
    parts = [x, y * x, y * jnp.arange(3), y]
    half = jnp.concatenate([y, y * d]).astype(jnp.float16) @ w_s[:6].astype(jnp.float16)
    return jnp.concatenate(parts) @ w_s, half, jnp.concatenate([y, y * d]) @ v_s[0, :6, 0]


def test_scaled_copies_are_multiplied_once(rng):
    graph = Graph.from_edges(*rng.integers(9, size=(2, 30)), num_nodes=9)
    args = {"x": rng.normal(size=(9, 3)), "w_s": rng.normal(size=(12, 5))}
    args["v_s"] = rng.normal(size=(2, 12, 4))
    largest = {}
    for function in (scaled_copies, other_copies):
        rows = topological_order(plan_after_all_passes(program(function), graph, args).results)
        largest[function] = max(math.prod(row.shape) for row in rows if row.space is Space.NODE)
        got = with_derivatives(program(function), graph, args, 0)
        want = with_derivatives(program(function).reference, graph, args, 0)
        assert largest_difference(got, want) < 1e-10
    assert largest == {scaled_copies: 24, other_copies: 12}


@pytest.mark.parametrize("model", ["rgcn", "rgat_of_heads", "hgt", "gat_of_pairs", "gatv2", "gcn"])
def test_passes_change_nothing_twice(rng, model):
    graph = random_graph(rng, Sizes(50, 400))
    arguments = random_arguments(rng, MODELS[model], graph)
    plan = plan_after_all_passes(program(MODELS[model]), graph, arguments)
    once = plan.results
    listed = explain.table_of_rows(once, plan)
    for name in ("cse", "hoist_linear_maps", "compact_pairs"):
        again = passes.apply(name, once, plan.parts, plan.passes)
        assert explain.table_of_rows(passes.apply("cse", again, plan.parts, ()), plan) == listed
    again = passes.apply("contraction_order", once, plan.parts, plan.passes)
    again = passes.apply(
        "cse", passes.apply("compact_pairs", again, plan.parts, ()), plan.parts, ()
    )
    assert explain.table_of_rows(again, plan) == listed
