"""Attention that is nearly an op's: its plans, and values and gradients beside the reference."""

from __future__ import annotations

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulation import WANTED
from program_cases import Sizes, largest_difference, random_graph

import jax_gnn
from jax_gnn import Edge, Node, Relation, RelationalGraph, program
from jax_gnn._ops.edge_region import cuda_compile
from jax_gnn._program import plan, relational
from jax_gnn._program.cost import Costs
from jax_gnn._program.rows import topological_order


def rgat(score=lambda s: jax.nn.leaky_relu(s, 0.2), message=lambda z: z, weights=False):
    """Return RGAT with another function of scores, or of messages, or with its weights."""

    def model(g, x: Node, w: Relation, a: Relation, b: Relation):
        z, t = g.src(x) @ g.relation(w), g.dst(x) @ g.relation(w)
        shares = g.softmax(score(z @ g.relation(a) + t @ g.relation(b)))
        y = g.sum(shares * message(z))
        return (y, shares) if weights else y

    return model


def biased(g, x: Node, w: Relation, a: Relation, b: Relation, c: Relation):
    z, t = g.src(x) @ g.relation(w), g.dst(x) @ g.relation(w)
    s = jax.nn.leaky_relu(z @ g.relation(a) + t @ g.relation(b) + g.relation(c), 0.2)
    return g.sum(g.softmax(s) * z)


def with_edges(combine):
    """Return RGAT whose messages contain features of edges."""

    def model(g, x: Node, e: Edge, w: Relation, a: Relation, b: Relation, v):
        z, t = g.src(x) @ g.relation(w), g.dst(x) @ g.relation(w)
        s = jax.nn.leaky_relu(z @ g.relation(a) + t @ g.relation(b), 0.2)
        return g.sum(g.softmax(s) * combine(z, e @ v))

    return model


def rgatv2(g, x: Node, w: Relation, a: Relation):
    z, t = g.src(x) @ g.relation(w), g.dst(x) @ g.relation(w)
    return g.sum(g.softmax(jax.nn.leaky_relu(z + t, 0.2) @ g.relation(a)) * z)


def hgt(g, x: Node, w: Relation, q, k: Relation):
    s = (g.dst(x) @ q) @ (g.src(x) @ g.relation(k)) / 8
    return g.sum(g.softmax(s) * (g.src(x) @ g.relation(w)))


def biased_dots(g, x: Node, c1: Edge, w: Relation, q, k: Relation):
    s = (g.dst(x) @ q) @ (g.src(x) @ g.relation(k)) / 8 + c1
    return g.sum(g.softmax(s) * (g.src(x) @ g.relation(w)))


def gated(g, x: Node, w: Relation, q, k: Relation, u: Relation):
    s = (g.dst(x) @ q) @ (g.src(x) @ g.relation(k)) / 8
    gate = jax.nn.sigmoid(g.src(x) @ g.relation(u))
    return g.sum(g.softmax(s) * gate * (g.src(x) @ g.relation(w)))


# Models, with ops of their plans.
MODELS = {
    "rgat": (rgat(), {"rgat_attention"}),
    "tanh": (rgat(jnp.tanh), {"attention", "node_dots"}),
    "bias": (biased, {"rgat_attention"}),
    "weights": (rgat(weights=True), {"segment_softmax", "spmm", "node_dots"}),
    "relu": (rgat(message=jax.nn.relu), {"edge_region", "node_dots"}),
    "edge sum": (with_edges(jnp.add), {"edge_region", "node_dots"}),
    "edge product": (with_edges(jnp.multiply), {"edge_region", "node_dots"}),
    "rgatv2": (rgatv2, {"edge_region", "attention"}),
    "hgt": (hgt, {"hgt_attention"}),
    "dots": (biased_dots, {"sddmm", "attention"}),
    "gate": (gated, {"edge_region", "sddmm"}),
}


def shapes(model, nodes, edges, relations, k, n):
    """Return the shapes of a model's arguments."""
    every = dict(x=(nodes, k), c1=(edges,), e=(edges, 16), v=(16, n), q=(k, n), c=(relations,))
    every |= dict.fromkeys("wku", (relations, k, n)) | dict.fromkeys("ab", (relations, n))
    return {name: every[name] for name in list(inspect.signature(model).parameters)[1:]}


@pytest.fixture(scope="module")
def large():
    rng = np.random.default_rng(0)
    src, dst = rng.integers(100_000, size=(2, 1_000_000))
    types = rng.integers(40, size=1_000_000) // (1 + src % 5)
    return RelationalGraph.from_triples(src, types, dst, num_nodes=100_000, num_relations=40)


@pytest.mark.parametrize("name", MODELS)
def test_near_misses_keep_their_op(monkeypatch, large, name):
    """Each near miss is planned with rows of pairs: edges store no row of 64 numbers."""
    monkeypatch.setattr(cuda_compile, "missing", lambda: None)
    monkeypatch.setattr(cuda_compile, "architecture", lambda: "90")
    model, ops = MODELS[name]
    structs = shapes(model, 100_000, 1_000_000, 40, 64, 64)
    structs = {key: jax.ShapeDtypeStruct(shape, np.float32) for key, shape in structs.items()}
    with jax_gnn.implementation("cuda"):
        text = program(model).explain(large, **structs).partition("\nops")[2]
    text = text.partition("\nedge regions")[0]
    assert ops <= set(re.findall(r"\w+", text)), text
    assert not re.search(r" edge +\d+ +\(64,\)", text), text


@pytest.mark.parametrize("plan", ["counted", *range(2)])
@pytest.mark.parametrize("name", MODELS)
def test_near_misses_are_their_references(rng, monkeypatch, name, plan):
    """Values and gradients, in the plan of the counts, and in others: each choice is at random."""
    if plan != "counted":
        monkeypatch.setattr(Costs, "training", lambda costs: float(rng.random()))
        monkeypatch.setattr(Costs, "total", lambda costs, results: float(rng.random()))
        monkeypatch.setattr(relational, "table_pays", lambda *_: rng.random() < 0.8)
    model = MODELS[name][0]
    with jax.enable_x64(True), jax_gnn.implementation("cuda" if WANTED else "xla"):
        graph = random_graph(rng, Sizes(30, 200, padding=9))
        sizes = shapes(model, 30, graph.num_edges, graph.num_relations, 9, 9)
        arguments = {key: jnp.asarray(rng.normal(size=shape)) / 2 for key, shape in sizes.items()}
        for key in {"e", "c1"} & arguments.keys():
            arguments[key] = arguments[key].at[-9:].set(np.nan)

        def results(run):
            def loss(arguments):
                return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(run(graph, **arguments)))

            return run(graph, **arguments), jax.grad(loss)(arguments)

        compiled = program(model)
        got, want = jax.jit(lambda: [results(run) for run in (compiled, compiled.reference)])()
    assert largest_difference(got, want) < 1e-10


def weighted(g, x: Node, e: Edge):
    m = jax.nn.relu(g.src(x) + e)
    return g.sum(g.softmax(jnp.sin(m)) * m)


def two_sums(g, x: Node, e: Edge):
    shares = g.softmax(jnp.sin(g.src(x) * e))
    return g.sum(shares * e), g.sum(shares * g.dst(x) * jnp.tanh(e)), g.sum(jnp.cos(e))


def with_weights(g, x: Node, e: Edge):
    shares = g.softmax(jnp.sin(g.src(x) * e))
    return g.sum(shares * e), shares


def with_maximum(g, x: Node, e: Edge):
    scores = jnp.sin(g.src(x) * e)
    return g.sum(g.softmax(scores) * e), g.max(scores)


def with_squares(g, x: Node, e: Edge):
    shares = g.softmax(jnp.sin(g.src(x) * e))
    return g.sum(shares * shares * e), g.sum(jnp.tanh(shares))


@pytest.mark.parametrize(
    ("model", "num_joined"),
    [(weighted, 1), (two_sums, 1), (with_weights, 0), (with_maximum, 0), (with_squares, 1)],
)
def test_one_walk_sums_exponentials_and_finds_their_maximum(monkeypatch, rng, model, num_joined):
    """But where something else reads the maximum, or the weights; and not under differentiation."""

    def prefer_split(costs, *_):
        names = [getattr(x.op, "name", "") for x in topological_order(costs.results)]
        return -float("softmax_exp" in names)

    monkeypatch.setattr(Costs, "training", prefer_split)
    monkeypatch.setattr(Costs, "total", prefer_split)
    monkeypatch.setattr(  # all regions that there may be
        plan, "choose_regions", lambda candidates, _: candidates.regions(candidates.pushes)
    )
    with jax.enable_x64(True), jax_gnn.implementation("cuda" if WANTED else "xla"):
        graph = random_graph(rng, Sizes(30, 200, padding=9)).nodes
        x, e = (jnp.asarray(rng.normal(size=(n, 9))) for n in (30, graph.num_edges))
        e = e.at[-9:].set(np.nan)
        layer = program(model, passes=("cse", "split_softmax"))
        walks = str(jax.make_jaxpr(lambda x, e: layer(graph, x, e))(x, e)).count("exp_sum→row")
        assert bool(walks) == bool(num_joined)

        def loss(run):
            return lambda x, e: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(run(graph, x, e)))

        gradient = jax.make_jaxpr(jax.grad(loss(layer), (0, 1)))(x, e)
        assert "exp_sum" not in str(gradient)
        got, want = jax.jit(
            lambda: [
                (run(graph, x, e), jax.grad(loss(run), (0, 1))(x, e), jax.hessian(loss(run))(x, e))
                for run in (layer, layer.reference)
            ]
        )()
        stacked = jax.vmap(lambda x: layer(graph, x, e))(jnp.stack([x, 2 * x]))
        twice = jax.vmap(lambda x: layer.reference(graph, x, e))(jnp.stack([x, 2 * x]))
    assert largest_difference((got, stacked), (want, twice)) < 1e-9
