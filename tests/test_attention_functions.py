"""The public functions of attention over edges: the shared checks, and what they promise."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import check_derivatives, compare, softmax
from jax.extend.core import jaxprs_in_params
from op_spec import Case, OpSpec, setting
from op_suite import IMPLEMENTATIONS, CoreChecks, OpSuite
from spmm_cases import graph_of, random_edges, unused

from jax_gnn import Graph, additive_attention, dot_attention, gatv2_attention
from jax_gnn._core.op import OPS
from jax_gnn._ops.attention.scores import AdditiveScores, DotScores, EntryScores, GATv2Scores

everywhere = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
HEADS = 4  # as many as devices of the tests
KINDS: dict[str, Callable[..., Any]] = {
    "additive": additive_attention,
    "gatv2": gatv2_attention,
    "dot": dot_attention,
}
each_kind = pytest.mark.parametrize("kind", KINDS)


# --- The plain reference -------------------------------------------------------------------------


def reference(
    kind,
    edges,
    left,
    right,
    value,
    *,
    vector=1,
    edge_bias=None,
    edge_scale=None,
    edge_features=None,
    scale=None,
) -> np.ndarray:
    """One destination after another, by what each edge reads."""
    rows = list(np.zeros((edges.num_dst, *value.shape[1:])))

    def over_features(terms: np.ndarray) -> np.ndarray:
        return terms.reshape(*terms.shape[:2], math.prod(terms.shape[2:])).sum(2)

    def leaky(z: np.ndarray) -> np.ndarray:
        return np.where(z.real >= 0, z, 0.2 * z)

    for row in range(edges.num_dst):
        into = np.flatnonzero(edges.valid & (edges.dst == row))
        src = edges.src[into]
        bias = 0 if edge_bias is None else edge_bias[into]
        extra = 0 if edge_features is None else edge_features[into]
        if kind == "additive":
            score = leaky(left[row] + right[src] + bias)
        elif kind == "gatv2":
            score = over_features(vector * leaky(left[row] + right[src] + extra)) + bias
        else:
            factor = max(math.prod(right.shape[2:]), 1) ** -0.5 if scale is None else scale
            score = over_features(left[row] * (right[src] + extra)) * factor + bias
        powers = np.exp(score)
        weight = powers / powers.sum(0)
        weight = weight if edge_scale is None else weight * edge_scale[into]
        values = value[src] if kind == "gatv2" else value[src] + extra
        weight = weight.reshape(*weight.shape, *[1] * (values.ndim - 2))
        rows[row] = (weight * values).sum(0)
    return np.array(rows).reshape(edges.num_dst, *value.shape[1:])


# --- Descriptions --------------------------------------------------------------------------------

# By the public names, the first as wide as the result.
ARGUMENTS = {
    "additive": ("value", "dst_score", "src_score"),
    "gatv2": ("src", "dst", "attention"),
    "dot": ("value", "query", "key"),
}
ROLES = {
    **dict.fromkeys(("dst", "query", "dst_score"), "left"),
    **dict.fromkeys(("src", "key", "src_score"), "right"),
    "attention": "vector",
}
OF_EDGES = "edge_bias", "edge_scale", "edge_features"


def attention_spec(kind: str, *options: str) -> OpSpec:
    names = *ARGUMENTS[kind], *options

    def function(graph, *operands, **sums):
        return KINDS[kind](graph, **dict(zip(names, operands, strict=True)), **sums)

    def by_role(edges, *operands, **sums) -> np.ndarray:
        roles = {ROLES.get(n, n): x for n, x in zip(names, operands, strict=True)}
        return reference(kind, edges, **{"value": roles["right"], **roles}, **sums)  # type: ignore[arg-type]

    def make_case(rng: np.random.Generator, scenario: str, features: tuple[int, ...]) -> Case:
        edges = random_edges(rng, scenario)
        operands, padding = [], []
        for name in names:
            shape: tuple[int, ...] = (HEADS, *features)
            shape = () if name == "scale" else shape
            shape = (HEADS,) if name in ("dst_score", "src_score", *OF_EDGES[:2]) else shape
            unread = None
            if name in OF_EDGES:
                shape = len(edges.src), *shape
                unread = ~edges.valid.reshape(-1, *[1] * (len(shape) - 1))
            elif name not in ("attention", "scale"):
                of_dst = ROLES.get(name) == "left"
                ids, size = ((edges.src, edges.num_src), (edges.dst, edges.num_dst))[of_dst]
                shape = size, *shape
                unread = unused(ids[edges.valid], size, len(shape))
            operands.append(rng.normal(size=shape))
            padding.append(unread)
        return Case(graph_of(edges), edges, tuple(operands), tuple(padding))

    axes = {"attention": 0, "scale": None}
    return OpSpec(
        function=function,
        reference=by_role,
        make_case=make_case,
        operands=names,
        feature_axis=tuple(axes.get(name, 1) for name in names),
        result_axis=1,
        composed=True,
        summed=("attention", "scale"),
    )


class TestAdditive(OpSuite):
    spec = attention_spec("additive")


class TestAdditiveOfEdges(CoreChecks):
    spec = attention_spec("additive", *OF_EDGES)


class TestGatv2(OpSuite):
    spec = attention_spec("gatv2")


class TestGatv2OfEdges(CoreChecks):
    spec = attention_spec("gatv2", "value", *OF_EDGES)


class TestDot(OpSuite):
    spec = attention_spec("dot")


class TestDotOfEdges(CoreChecks):
    spec = attention_spec("dot", *OF_EDGES, "scale")


# --- What edges read, and add up to --------------------------------------------------------------


def random_graph(rng: np.random.Generator, size: int, count: int) -> Graph:
    src, dst = rng.integers(0, size, count), rng.geometric(0.02, count) % size
    return Graph.from_edges(src, dst, num_nodes=size)


def operands_of(
    rng: np.random.Generator, kind: str, rows: int, graph: Graph, width: int = 3
) -> tuple[np.ndarray, ...]:
    """Those of a kind of attention with two heads, by edges that read one of so many rows."""
    left, right = (rng.normal(size=(size, 2, width)) for size in (rows, graph.num_src))
    if kind == "additive":
        return left[..., 0], right[..., 0], right
    return (left, right, rng.normal(size=(2, width)) if kind == "gatv2" else right)


class Form(NamedTuple):
    """A kind, and what edges have: biases or factors."""

    kind: str
    of_edges: str


def ours(form, graph, operands) -> tuple[Any, Any]:
    arrays = (operands[name] for name in ("left", "right", "third"))
    options = {form.of_edges: operands[form.of_edges]}
    y, lse = KINDS[form.kind](graph, *arrays, return_lse=True, **options)
    return y, jnp.where(lse > -jnp.inf, lse, 0)


def plain(form, graph, operands) -> tuple[Any, Any]:
    """In plain jax.numpy."""
    left, right, third = (operands[name] for name in ("left", "right", "third"))
    valid, bias = jnp.ones((graph.num_edges, 1), bool), 0
    if form.of_edges == "edge_bias":
        valid &= operands["edge_bias"] > -jnp.inf
        bias = jnp.where(valid, operands["edge_bias"], 0)
    one, other = left[graph.rows], right[graph.cols]
    if form.kind == "additive":
        score = jax.nn.leaky_relu(one + other + bias, 0.2)
    elif form.kind == "gatv2":
        score = (third * jax.nn.leaky_relu(one + other, 0.2)).sum(-1) + bias
    else:
        score = (one * other).sum(-1) / np.sqrt(left.shape[-1]) + bias
    weight, lse = softmax(score, valid, graph.rows, graph.num_dst)
    weight = weight * operands["edge_scale"] if form.of_edges == "edge_scale" else weight
    terms = weight[..., None] * (right if form.kind == "gatv2" else third)[graph.cols]
    return jax.ops.segment_sum(terms, graph.rows, graph.num_dst), lse


@everywhere
@each_kind
@pytest.mark.parametrize("of_edges", ["edge_bias", "edge_scale"])
def test_derivatives(rng, of_edges, kind, implementation):
    """To what edges have, too, and of the logarithms of what softmaxes are divided by.

    Masked edges are left out, of some destinations all.
    """
    graph, form = random_graph(rng, 30, 150), Form(kind, of_edges)

    def operands() -> dict[str, Any]:
        arrays = operands_of(rng, kind, 30, graph)
        own = rng.uniform(0.5, 2, (150, 2))
        return dict(zip(("left", "right", "third"), arrays, strict=True)) | {of_edges: own}

    given, moved = operands(), operands()
    if of_edges == "edge_bias":
        masked = (rng.random((150, 2)) < 0.3) | (np.asarray(graph.rows)[:, None] < 2)
        given[of_edges][masked] = -np.inf
    of_gradients = form == Form("additive", "edge_scale") and implementation == IMPLEMENTATIONS[0]
    names = "left", "right", "third", of_edges
    with setting(implementation, "float64"):
        check_derivatives(
            *(ours, plain, form, graph, given, moved),
            [names, names[:3]][: 1 + of_gradients],
            of_gradients=of_gradients,
        )


def expanded(jaxpr) -> list[Any]:
    """Its equations, with those that all gradients together are made of in their place."""
    found: list[Any] = []
    for equation in jaxpr.eqns:
        op = OPS.get(equation.primitive.name.removeprefix("jax_gnn_"))
        if op is None or not equation.params.get("with_row"):
            found.append(equation)
            continue
        attributes = {
            k: v
            for k, v in equation.params.items()
            if k not in ("implementation", "tree", "devices")
        }
        unflatten = equation.params["tree"].unflatten

        def composed(*leaves, op=op, of=unflatten, given=attributes):
            return op.xla(**of(leaves)._asdict(), **given)

        shapes = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars]
        found += expanded(jax.make_jaxpr(composed)(*shapes).jaxpr)
    return found


@each_kind
def test_no_array_has_a_row_for_each_edge(rng, kind):
    """Forward and backward, but for one of a number for each head."""
    graph = random_graph(rng, 50, 4000)
    operands = [x.astype(np.float32) for x in operands_of(rng, kind, 50, graph, width=16)]

    def tested(*operands):
        return KINDS[kind](graph, *operands)

    def sizes_of(jaxpr) -> list[int]:
        found = []
        for equation in expanded(jaxpr):
            for inner in jaxprs_in_params(equation.params):
                found += sizes_of(inner)
            found += [each.aval.size for each in equation.outvars]
        return found

    by_head = 2 * graph.num_edges
    _, vjp = jax.vjp(tested, *operands)  # which holds ids of edges, but no scores
    assert max(leaf.size for leaf in jax.tree.leaves(vjp)) < by_head
    gradient = jax.make_jaxpr(jax.grad(lambda *each: jnp.sum(tested(*each)), (0, 1, 2)))(*operands)
    assert max(sizes_of(gradient.jaxpr)) == by_head


def test_scores_of_sources_have_no_sum_of_their_own(rng):
    """Their gradient comes with that of values: only destinations' is a segment sum."""
    graph = random_graph(rng, 50, 400)
    operands = [x.astype(np.float32) for x in operands_of(rng, "additive", 50, graph, width=4)]

    def loss(*operands):
        return jnp.sum(additive_attention(graph, *operands))

    def names_of(equations) -> list[str]:
        names = [each.primitive.name for each in equations]
        return [name for name in names if name.startswith("jax_gnn")]

    found = jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*operands).jaxpr
    attention = "jax_gnn_attention"
    assert names_of(found.eqns) == [attention, f"{attention}_vjp"]
    assert names_of(expanded(found)) == [attention, f"{attention}_vjp", "jax_gnn_segment_reduce"]


# --- What is particular to arguments -------------------------------------------------------------


@everywhere
@each_kind
def test_masked_edges(rng, kind, implementation):
    """-inf leaves edges out; a node with only such edges is 0, and its gradients are."""
    graph = random_graph(rng, 40, 200)
    rows = np.asarray(graph.rows)
    masked = (rng.random((200, 2)) < 0.3) | (rows[:, None] < 3)
    bias = np.where(masked, -np.inf, rng.normal(size=(200, 2)))
    operands = dict(zip(("left", "right", "third"), operands_of(rng, kind, 40, graph), strict=True))
    form = Form(kind, "edge_bias")

    @functools.partial(jax.jit, static_argnums=0)
    def run(attend, operands):
        y, pull = jax.vjp(lambda x: attend(form, graph, x), operands)
        return y, pull(jax.tree.map(jnp.cos, y))[0]

    operands["edge_bias"] = bias
    with setting(implementation, "float64"):
        got = run(ours, operands)
        arrays = (operands[name] for name in ("left", "right", "third"))
        lse = KINDS[kind](graph, *arrays, edge_bias=bias, return_lse=True)[1]
        compare(got, run(plain, operands), kind)
    (y, _), gradients = got
    assert (np.asarray(y)[:3] == 0).all() and (np.asarray(lse)[:3] == -np.inf).all()
    assert (np.asarray(gradients["edge_bias"])[masked] == 0).all()
    assert (np.asarray(gradients["left"])[:3] == 0).all()


def scores_in(function, *operands) -> list[type]:
    """The kinds of scores that its attention has."""
    return [
        type(each.params["tree"].unflatten(each.invars).scores)
        for each in jax.make_jaxpr(function)(*operands).jaxpr.eqns
        if each.primitive.name == "jax_gnn_attention"
    ]


@each_kind
def test_what_edges_add_to_scores_needs_scores_of_edges(rng, kind):
    graph = random_graph(rng, 12, 45)
    arguments, count = operands_of(rng, kind, 12, graph), graph.num_edges
    own = {"additive": AdditiveScores, "gatv2": GATv2Scores, "dot": DotScores}[kind]
    features = {"edge_features": np.ones((count, 2, 3))}
    for options, kinds in (
        ({}, own),
        ({"edge_scale": np.ones((count, 2)), "return_lse": True}, own),
        ({"edge_bias": np.ones((count, 2))}, EntryScores),
        (features, AdditiveScores if kind == "additive" else EntryScores),
    ):
        assert scores_in(functools.partial(KINDS[kind], graph, **options), *arguments) == [kinds]


@everywhere
@each_kind
def test_no_heads_and_no_features(rng, kind, implementation):
    graph = random_graph(rng, 12, 30)
    for heads, features in ((0, 3), (2, 0)):
        left, right, value = np.zeros((3, 12, heads, features), np.float32)
        third = value[0] if kind == "gatv2" else value
        ends = (left.sum(-1), right.sum(-1)) if kind == "additive" else (left, right)
        with setting(implementation):
            y, lse = KINDS[kind](graph, *ends, third, return_lse=True)
        assert y.shape == (12, heads, features)
        with np.errstate(divide="ignore"):
            want = np.log(np.bincount(np.asarray(graph.rows), minlength=12))
        want = np.broadcast_to(want[:, None], (12, heads))
        np.testing.assert_allclose(lse, want, rtol=1e-6)


@everywhere
def test_keys_that_are_values(rng, implementation):
    """An edge reads them once: the same result, and the sum of both gradients."""
    graph = random_graph(rng, 12, 45)
    query, x, _ = operands_of(rng, "dot", 12, graph)

    @jax.jit
    def both(query, x, copy):
        def total(query, key, value):
            return jnp.sum(jnp.sin(dot_attention(graph, query, key, value)))

        one = jax.value_and_grad(lambda query, x: total(query, x, x), (0, 1))(query, x)
        value, (to_query, *others) = jax.value_and_grad(total, (0, 1, 2))(query, x, copy)
        return one, (value, (to_query, sum(others)))

    with setting(implementation, "float64"):
        compare(*both(query, x, x.copy()), "one array")
