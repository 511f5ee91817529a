"""Public functions of attention over edges: the shared checks, and tests of arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import compare, softmax
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
    dst,
    src,
    value,
    *,
    vector=1,
    edge_bias=None,
    edge_scale=None,
    edge_features=None,
    scale=None,
) -> np.ndarray:
    """Compute one destination after another, from the rows that its edges read."""
    rows = list(np.zeros((edges.num_dst, *value.shape[1:])))

    def over_features(terms: np.ndarray) -> np.ndarray:
        return terms.reshape(*terms.shape[:2], math.prod(terms.shape[2:])).sum(2)

    def leaky(z: np.ndarray) -> np.ndarray:
        return np.where(z.real >= 0, z, 0.2 * z)

    for row in range(edges.num_dst):
        # Scores are small, so that no maximum is subtracted and complex steps pass.
        edge_ids = np.flatnonzero(edges.valid & (edges.dst == row))
        src_ids = edges.src[edge_ids]
        bias = 0 if edge_bias is None else edge_bias[edge_ids]
        features = 0 if edge_features is None else edge_features[edge_ids]
        if kind == "additive":
            score = leaky(dst[row] + src[src_ids] + bias)
        elif kind == "gatv2":
            score = over_features(vector * leaky(dst[row] + src[src_ids] + features)) + bias
        else:
            factor = max(math.prod(src.shape[2:]), 1) ** -0.5 if scale is None else scale
            score = over_features(dst[row] * (src[src_ids] + features)) * factor + bias
        powers = np.exp(score)
        weight = powers / powers.sum(0)
        weight = weight if edge_scale is None else weight * edge_scale[edge_ids]
        values = value[src_ids] if kind == "gatv2" else value[src_ids] + features
        weight = weight.reshape(*weight.shape, *[1] * (values.ndim - 2))
        rows[row] = (weight * values).sum(0)
    return np.array(rows).reshape(edges.num_dst, *value.shape[1:])


# --- Descriptions --------------------------------------------------------------------------------

# Public names of arguments; the first is as wide as the result.
ARGUMENTS = {
    "additive": ("value", "dst_score", "src_score"),
    "gatv2": ("src", "dst", "attention"),
    "dot": ("value", "query", "key"),
}
ROLES = {
    **dict.fromkeys(("dst", "query", "dst_score"), "dst"),
    **dict.fromkeys(("src", "key", "src_score"), "src"),
    "attention": "vector",
}
OF_EDGES = "edge_bias", "edge_scale", "edge_features"


def attention_spec(kind: str, *options: str) -> OpSpec:
    names = *ARGUMENTS[kind], *options

    def function(graph, *operands, **sums):
        return KINDS[kind](graph, **dict(zip(names, operands, strict=True)), **sums)

    def by_role(edges, *operands, **sums) -> np.ndarray:
        roles = {ROLES.get(n, n): x for n, x in zip(names, operands, strict=True)}
        return reference(kind, edges, **{"value": roles["src"], **roles}, **sums)  # type: ignore[arg-type]

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
                # A row is padding if no edge reads it at its side.
                of_dst = ROLES.get(name) == "dst"
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


# --- Derivatives ---------------------------------------------------------------------------------


def random_graph(rng: np.random.Generator, size: int, count: int) -> Graph:
    src, dst = rng.integers(0, size, count), rng.geometric(0.02, count) % size
    return Graph.from_edges(src, dst, num_nodes=size)


def operands_of(
    rng: np.random.Generator, kind: str, rows: int, graph: Graph, width: int = 3
) -> tuple[np.ndarray, ...]:
    """Draw the arguments of a kind of attention with two heads, for a number of destinations."""
    dst, src = (rng.normal(size=(size, 2, width)) for size in (rows, graph.num_src))
    if kind == "additive":
        return dst[..., 0], src[..., 0], src
    return (dst, src, rng.normal(size=(2, width)) if kind == "gatv2" else src)


def ours(kind, graph, operands) -> tuple[Any, Any]:
    *arrays, bias = operands
    y, lse = KINDS[kind](graph, *arrays, edge_bias=bias, return_lse=True)
    return y, jnp.where(lse > -jnp.inf, lse, 0)


def plain(kind, graph, operands) -> tuple[Any, Any]:
    """Return the results of ``ours`` in plain jax.numpy."""
    dst, src, third, bias = operands
    valid = bias > -jnp.inf
    bias = jnp.where(valid, bias, 0)
    at_dst, at_src = dst[graph.rows], src[graph.cols]
    if kind == "additive":
        score = jax.nn.leaky_relu(at_dst + at_src + bias, 0.2)
    elif kind == "gatv2":
        score = (third * jax.nn.leaky_relu(at_dst + at_src, 0.2)).sum(-1) + bias
    else:
        score = (at_dst * at_src).sum(-1) / np.sqrt(dst.shape[-1]) + bias
    weight, lse = softmax(score, valid, graph.rows, graph.num_dst)
    terms = weight[..., None] * (src if kind == "gatv2" else third)[graph.cols]
    return jax.ops.segment_sum(terms, graph.rows, graph.num_dst), lse


def expanded(jaxpr) -> list[Any]:
    """Return equations, with the composition of calls that have all gradients in one launch."""
    equations: list[Any] = []
    for equation in jaxpr.eqns:
        op = OPS.get(equation.primitive.name.removeprefix("jax_gnn_"))
        if op is None or not equation.params.get("with_row"):
            equations.append(equation)
            continue
        attributes = {
            k: v
            for k, v in equation.params.items()
            if k not in ("implementation", "tree", "devices")
        }
        unflatten = equation.params["tree"].unflatten

        def composed(*leaves, op=op, of=unflatten, options=attributes):
            return op.xla(**of(leaves)._asdict(), **options)

        shapes = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars]
        equations += expanded(jax.make_jaxpr(composed)(*shapes).jaxpr)
    return equations


@each_kind
def test_no_array_has_a_row_for_each_edge(rng, kind):
    """The only array of edges, forward and backward, has one number for each head."""
    graph = random_graph(rng, 50, 4000)
    operands = [x.astype(np.float32) for x in operands_of(rng, kind, 50, graph, width=16)]

    def tested(*operands):
        return KINDS[kind](graph, *operands)

    def sizes_of(jaxpr) -> list[int]:
        sizes = []
        for equation in expanded(jaxpr):
            for inner in jaxprs_in_params(equation.params):
                sizes += sizes_of(inner)
            sizes += [variable.aval.size for variable in equation.outvars]
        return sizes

    # A score for each edge and head is what attention must keep.
    by_head = 2 * graph.num_edges
    _, vjp = jax.vjp(tested, *operands)  # holds ids of edges, but no scores
    assert max(leaf.size for leaf in jax.tree.leaves(vjp)) < by_head
    gradient = jax.make_jaxpr(jax.grad(lambda *variable: jnp.sum(tested(*variable)), (0, 1, 2)))(
        *operands
    )
    assert max(sizes_of(gradient.jaxpr)) == by_head


def test_scores_of_sources_have_no_sum_of_their_own(rng):
    """The gradient of values includes that of sources' scores; only destinations' is a sum."""
    graph = random_graph(rng, 50, 400)
    operands = [x.astype(np.float32) for x in operands_of(rng, "additive", 50, graph, width=4)]

    def loss(*operands):
        return jnp.sum(additive_attention(graph, *operands))

    def names_of(equations) -> list[str]:
        names = [equation.primitive.name for equation in equations]
        return [name for name in names if name.startswith("jax_gnn")]

    program = jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*operands).jaxpr
    attention = "jax_gnn_attention"
    assert names_of(program.eqns) == [attention, f"{attention}_vjp"]
    assert names_of(expanded(program)) == [attention, f"{attention}_vjp", "jax_gnn_segment_reduce"]


# --- Arguments -----------------------------------------------------------------------------------


@everywhere
@each_kind
def test_masked_edges(rng, kind, implementation):
    """-inf leaves edges out; a node with only such edges is 0, as are its gradients."""
    graph = random_graph(rng, 40, 200)
    rows = np.asarray(graph.rows)
    masked = (rng.random((200, 2)) < 0.3) | (rows[:, None] < 3)
    bias = np.where(masked, -np.inf, rng.normal(size=(200, 2)))
    arrays = operands_of(rng, kind, 40, graph)

    @functools.partial(jax.jit, static_argnums=0)
    def run(attend, operands):
        y, pull = jax.vjp(lambda x: attend(kind, graph, x), operands)
        return y, pull(jax.tree.map(jnp.cos, y))[0]

    with setting(implementation, "float64"):
        got = run(ours, (*arrays, bias))
        lse = KINDS[kind](graph, *arrays, edge_bias=bias, return_lse=True)[1]
        compare(got, run(plain, (*arrays, bias)), kind)
    (y, _), gradients = got
    assert (np.asarray(y)[:3] == 0).all() and (np.asarray(lse)[:3] == -np.inf).all()
    assert (np.asarray(gradients[3])[masked] == 0).all()
    assert (np.asarray(gradients[0])[:3] == 0).all()


def scores_in(function, *operands) -> list[type]:
    """Return the kinds of scores of a function's attention."""
    return [
        type(equation.params["tree"].unflatten(equation.invars).scores)
        for equation in jax.make_jaxpr(function)(*operands).jaxpr.eqns
        if equation.primitive.name == "jax_gnn_attention"
    ]


@each_kind
def test_what_edges_add_to_scores_needs_scores_of_edges(rng, kind):
    graph = random_graph(rng, 12, 45)
    arguments, count = operands_of(rng, kind, 12, graph), graph.num_edges
    kernel_kind = {"additive": AdditiveScores, "gatv2": GATv2Scores, "dot": DotScores}[kind]
    features = {"edge_features": np.ones((count, 2, 3))}
    for options, kinds in (
        ({}, kernel_kind),
        ({"edge_scale": np.ones((count, 2)), "return_lse": True}, kernel_kind),
        ({"edge_bias": np.ones((count, 2))}, EntryScores),
        (features, AdditiveScores if kind == "additive" else EntryScores),
    ):
        assert scores_in(functools.partial(KINDS[kind], graph, **options), *arguments) == [kinds]


@everywhere
@each_kind
def test_no_heads_and_no_features(rng, kind, implementation):
    graph = random_graph(rng, 12, 30)
    for heads, features in ((0, 3), (2, 0)):
        dst, src, value = np.zeros((3, 12, heads, features), np.float32)
        third = value[0] if kind == "gatv2" else value
        inputs = (dst.sum(-1), src.sum(-1)) if kind == "additive" else (dst, src)
        with setting(implementation):
            y, lse = KINDS[kind](graph, *inputs, third, return_lse=True)
        assert y.shape == (12, heads, features)
        # Without features all scores are 0: a denominator is the number of edges.
        with np.errstate(divide="ignore"):
            want = np.log(np.bincount(np.asarray(graph.rows), minlength=12))
        want = np.broadcast_to(want[:, None], (12, heads))
        np.testing.assert_allclose(lse, want, rtol=1e-6)


@everywhere
def test_keys_that_are_values(rng, implementation):
    """Keys that are values have the same result, and the sum of both gradients."""
    graph = random_graph(rng, 12, 45)
    query, x, _ = operands_of(rng, "dot", 12, graph)

    @jax.jit
    def both(query, x, copy):
        def total(query, key, value):
            return jnp.sum(jnp.sin(dot_attention(graph, query, key, value)))

        shared = jax.value_and_grad(lambda query, x: total(query, x, x), (0, 1))(query, x)
        value, (to_query, *grads) = jax.value_and_grad(total, (0, 1, 2))(query, x, copy)
        return shared, (value, (to_query, sum(grads)))

    with setting(implementation, "float64"):
        compare(*both(query, x, x.copy()), "one array")
