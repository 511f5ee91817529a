"""Attention over edges: descriptions of the ops for the shared checks, and what they promise."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import case_of, check_derivatives, check_gradients, summed
from jax.extend.core import jaxprs_in_params
from op_spec import Case, OpSpec, assert_close, same_bits, setting, wide
from op_suite import IMPLEMENTATIONS, KERNELS, CoreChecks, OpSuite
from primitive_cases import needs_kernels
from spmm_cases import Edges, graph_of, random_edges, unused

from jax_gnn import Graph, additive_attention, dot_attention, gatv2_attention, schedules
from jax_gnn._core.op import OPS

on_first = pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:1])
everywhere = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
HEADS = 4  # as many as devices of the tests
SUMS = 3  # finer rows of each destination; and two more that no edge goes into


# --- The plain reference -------------------------------------------------------------------------


def leaky(z: np.ndarray, slope: float = 0.2) -> np.ndarray:
    return np.where(z.real > 0, z, slope * z)


class Finer(NamedTuple):
    """A graph, or edges, and the finer row that each edge is summed into."""

    graph: Any
    ids: Any

    @property
    def num_sums(self) -> int:
        return SUMS * self.graph.num_dst + 2


jax.export.register_namedtuple_serialization(Finer, serialized_name="Finer")


def attend(
    edges: Edges,
    score: Callable[[np.ndarray, int], np.ndarray],
    value: np.ndarray,
    edge_scale: np.ndarray | None = None,
    carried: np.ndarray | None = None,
    finer: Finer | None = None,
) -> np.ndarray:
    """One destination after another; ``score(into, row)`` gives the scores of its edges."""
    ids, size = (edges.dst, edges.num_dst) if finer is None else (finer.ids, finer.num_sums)
    rows = list(np.zeros((size, *value.shape[1:])))
    for row in range(edges.num_dst):
        into = np.flatnonzero(edges.valid & (edges.dst == row))
        powers = np.exp(score(into, row))
        weight = powers / powers.sum(0)
        weight = weight if edge_scale is None else weight * edge_scale[into]
        values = value[edges.src[into]]
        values = values if carried is None else values + carried[into]
        weight = weight.reshape(*weight.shape, *[1] * (values.ndim - 2))
        for each in np.unique(ids[into]):
            rows[each] = (weight * values)[ids[into] == each].sum(0)
    return np.array(rows).reshape(size, *value.shape[1:])


def over_features(terms: np.ndarray) -> np.ndarray:
    return terms.reshape(*terms.shape[:2], math.prod(terms.shape[2:])).sum(2)


def additive_reference(
    edges: Edges,
    value: np.ndarray,
    dst_score: np.ndarray,
    src_score: np.ndarray,
    edge_bias: Any = None,
    edge_scale: Any = None,
    edge_features: Any = None,
    finer: Any = None,
) -> np.ndarray:
    def score(into: np.ndarray, row: int) -> np.ndarray:
        z = dst_score[row] + src_score[edges.src[into]]
        return leaky(z if edge_bias is None else z + edge_bias[into])

    return attend(edges, score, value, edge_scale, edge_features, finer)


def gatv2_reference(
    edges: Edges,
    src: np.ndarray,
    dst: np.ndarray,
    attention: np.ndarray,
    value: Any = None,
    edge_bias: Any = None,
    edge_scale: Any = None,
    edge_features: Any = None,
    finer: Any = None,
) -> np.ndarray:
    def score(into: np.ndarray, row: int) -> np.ndarray:
        z = dst[row] + src[edges.src[into]]
        z = z if edge_features is None else z + edge_features[into]
        s = over_features(attention * leaky(z))
        return s if edge_bias is None else s + edge_bias[into]

    values = src if value is None else value
    return attend(edges, score, values, edge_scale, finer=finer)


def dot_reference(
    edges: Edges,
    value: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    edge_bias: Any = None,
    edge_scale: Any = None,
    edge_features: Any = None,
    scale: Any = None,
    finer: Any = None,
) -> np.ndarray:
    def score(into: np.ndarray, row: int) -> np.ndarray:
        keys = key[edges.src[into]]
        keys = keys if edge_features is None else keys + edge_features[into]
        depth = max(math.prod(key.shape[2:]), 1)
        s = over_features(query[row] * keys) * (depth**-0.5 if scale is None else scale)
        return s if edge_bias is None else s + edge_bias[into]

    return attend(edges, score, value, edge_scale, edge_features, finer)


# --- Descriptions --------------------------------------------------------------------------------


def additive(graph: Graph, value: Any, dst_score: Any, src_score: Any, **options: Any) -> Any:
    return additive_attention(graph, dst_score, src_score, value, **options)


def gatv2(graph: Graph, src: Any, dst: Any, attention: Any, **options: Any) -> Any:
    return gatv2_attention(graph, dst, src, attention, **options)


def dots(graph: Graph, value: Any, query: Any, key: Any, **options: Any) -> Any:
    return dot_attention(graph, query, key, value, **options)


# What each operand has a row for, and how many axes its rows have beside the features'.
OF_DST, OF_SRC, OF_EDGE, OF_ALL = "dst", "src", "edge", "all"
OPERANDS = {
    "value": (OF_SRC, True),
    "src": (OF_SRC, True),
    "key": (OF_SRC, True),
    "src_score": (OF_SRC, False),
    "dst": (OF_DST, True),
    "query": (OF_DST, True),
    "dst_score": (OF_DST, False),
    "attention": (OF_ALL, True),
    "edge_bias": (OF_EDGE, False),
    "edge_scale": (OF_EDGE, False),
    "edge_features": (OF_EDGE, True),
    "scale": (OF_ALL, None),
}


def attention_spec(
    function: Callable[..., Any],
    reference: Callable[..., np.ndarray],
    *names: str,
) -> OpSpec:
    def by_name(tested: Callable[..., Any]) -> Callable[..., Any]:
        return lambda index, *operands, **sums: tested(
            index, **dict(zip(names, operands, strict=True)), **sums
        )

    def make_case(rng: np.random.Generator, scenario: str, features: tuple[int, ...]) -> Case:
        edges = random_edges(rng, scenario)
        operands, padding = [], []
        for name in names:
            owner, has_features = OPERANDS[name]
            shape: tuple[int, ...] = (HEADS, *features) if has_features else (HEADS,)
            if has_features is None:
                shape = ()
            if owner == OF_ALL:
                unread = None
            elif owner == OF_EDGE:
                shape = len(edges.src), *shape
                unread = ~edges.valid.reshape(-1, *[1] * (len(shape) - 1))
            else:
                ids, size = (
                    (edges.src, edges.num_src) if owner == OF_SRC else (edges.dst, edges.num_dst)
                )
                shape = size, *shape
                unread = unused(ids[edges.valid], size, len(shape))
            operands.append(rng.normal(size=shape))
            padding.append(unread)
        return Case(graph_of(edges), edges, tuple(operands), tuple(padding))

    heads_axis = {OF_ALL: 0}
    return OpSpec(
        function=by_name(function),
        reference=by_name(reference),
        make_case=make_case,
        operands=names,
        feature_axis=tuple(
            None if name == "scale" else heads_axis.get(OPERANDS[name][0], 1) for name in names
        ),
        result_axis=1,
        composed=True,
        summed=("attention", "scale"),
    )


# --- Sums of finer rows ---


def finer_of(edges: Edges) -> np.ndarray:
    """Of the first edge into a destination the first row, and the third of all from the third on.

    A row of its second edge is there for few destinations. Padding has ids that there are not.
    """
    place = np.array([np.sum(edges.dst[:e] == dst) for e, dst in enumerate(edges.dst)], np.int64)
    place[place == 1] = 1 + edges.dst[place == 1] % 2
    ids = SUMS * edges.dst + np.minimum(place, 2)
    return np.where(edges.valid, ids, SUMS * edges.num_dst + 2).astype(np.int32)


def summed_finer(spec: OpSpec) -> OpSpec:
    """The same with sums of finer rows."""

    def function(index: Finer, *operands: Any) -> Any:
        sums = {"sum_ids": index.ids, "num_sums": index.num_sums}
        return spec.function(index.graph, *operands, **sums)

    def reference(index: Finer, *operands: np.ndarray) -> np.ndarray:
        return spec.reference(index.graph, *operands, finer=index)

    def make_case(rng: np.random.Generator, scenario: str, features: tuple[int, ...]) -> Case:
        case = spec.make_case(rng, scenario, features)
        ids = finer_of(case.plain)
        return replace(case, index=Finer(case.index, ids), plain=Finer(case.plain, ids))

    return replace(spec, function=function, reference=reference, make_case=make_case)


class TestAdditive(OpSuite):
    spec = attention_spec(additive, additive_reference, "value", "dst_score", "src_score")


class TestAdditiveOfEdges(CoreChecks):
    spec = attention_spec(
        *(additive, additive_reference, "value", "dst_score", "src_score"),
        *("edge_bias", "edge_scale", "edge_features"),
    )


class TestGatv2(OpSuite):
    spec = attention_spec(gatv2, gatv2_reference, "src", "dst", "attention")


class TestGatv2OfEdges(CoreChecks):
    spec = attention_spec(
        *(gatv2, gatv2_reference, "src", "dst", "attention", "value"),
        *("edge_bias", "edge_scale", "edge_features"),
    )


class TestDot(OpSuite):
    spec = attention_spec(dots, dot_reference, "value", "query", "key")


class TestDotOfEdges(CoreChecks):
    spec = attention_spec(
        *(dots, dot_reference, "value", "query", "key"),
        *("edge_bias", "edge_scale", "edge_features", "scale"),
    )


class TestSumsOfAdditive(CoreChecks):
    spec = summed_finer(TestAdditive.spec)
    vmaps_every_set = False
    columns, check_vmap, test_vmap = OpSuite.columns, OpSuite.check_vmap, OpSuite.test_vmap


class TestSumsOfDotOfEdges(CoreChecks):
    spec = summed_finer(TestDotOfEdges.spec)


# --- What is particular to it --------------------------------------------------------------------


def random_graph(rng: np.random.Generator, size: int = 300, count: int = 3000) -> Graph:
    src, dst = rng.integers(0, size, count), rng.geometric(0.02, count) % size
    return Graph.from_edges(src, dst, num_nodes=size)


@everywhere
def test_large_scores(rng: np.random.Generator, implementation: str) -> None:
    """Up to 30,000; they are exact, a fifth of each, too."""
    graph, heads = random_graph(rng), 2
    of_dst, of_src = (5 * np.round(rng.normal(size=(300, heads)) * 1.6e4) / 8 for _ in range(2))
    operands = [x.astype(np.float32) for x in (of_dst, of_src, rng.normal(size=(300, heads, 7)))]
    with setting(implementation):
        y = jax.jit(additive_attention)(graph, *operands)
    want = case_of("gat", graph, *operands).results()[0]
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-5)


@everywhere
@pytest.mark.parametrize("slope", [0.2, 0.0])
def test_masked_edges(rng: np.random.Generator, slope: float, implementation: str) -> None:
    """-inf leaves edges out; a node with only such edges is 0, and its gradients are."""
    graph = random_graph(rng, 40, 200)
    of_dst, of_src, value = (rng.normal(size=(40, 2, *more)) for more in ((), (), (3,)))
    rows = np.asarray(graph.rows)
    masked = (rng.random((200, 2)) < 0.3) | (rows[:, None] < 3)
    bias = np.where(masked, -np.inf, rng.normal(size=(200, 2)))

    @jax.jit
    def run(*operands: Any) -> Any:
        def attend(of_dst: Any, of_src: Any, value: Any, bias: Any) -> Any:
            options = {"negative_slope": slope, "edge_bias": bias, "return_lse": True}
            return additive_attention(graph, of_dst, of_src, value, **options)

        every = tuple(range(len(operands)))
        gradients = jax.grad(lambda *each: jnp.sum(jnp.sin(attend(*each)[0])), every)(*operands)
        return *attend(*operands), gradients

    z = of_dst[rows] + of_src[np.asarray(graph.cols)] + np.where(masked, 0, bias)
    powers = np.where(masked, 0, np.exp(np.where(z > 0, z, slope * z)))
    sums = summed(powers, rows, 40)
    weight = powers / np.where(sums > 0, sums, 1)[rows]
    terms = weight[..., None] * value[np.asarray(graph.cols)]
    with setting(implementation, "float64"):
        y, lse, gradients = run(of_dst, of_src, value, bias)
    assert_close(y, summed(terms, rows, 40), 1e-12, "value")
    assert (np.asarray(y)[:3] == 0).all()
    assert (np.asarray(lse)[:3] == -np.inf).all()
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(lse, np.log(sums))
    for gradient in gradients:
        assert np.isfinite(gradient).all()
    assert (np.asarray(gradients[0])[:3] == 0).all()
    assert (np.asarray(gradients[3])[masked] == 0).all()


# Features of a head, from which on some hundreds of edges are too many for the kernel of one step.
WALKED = 2801
OF_STEPS = [
    *(("float32", 1, 64), ("float32", 4, 16), ("float32", 3, 5), ("float32", 8, 4)),
    *(("float32", 2, 33), ("bfloat16", 8, 8), ("float16", 1, 24), ("float64", 2, 6)),
    *(("float32", 2, WALKED), ("bfloat16", 1, 2 * WALKED + 6)),
]


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "heads", "width", "count"),
    [
        *((*each, 900) for each in OF_STEPS),
        *((*each, count) for each in OF_STEPS[:8:3] for count in (3, 20000)),
    ],
)
@pytest.mark.parametrize("given", ["nothing", "scale", "bias"])
def test_one_step_and_walks(
    rng: np.random.Generator, count: int, dtype: str, heads: int, width: int, given: str
) -> None:
    """With rows that span blocks, some padding, and NaN where nobody reads."""
    size = 70
    dst = np.where(rng.random(count) < 0.6, 7, rng.geometric(0.05, count) % (size - 3))
    src = np.where(rng.random(count) < 0.1, -1, rng.integers(0, size - 1, count))
    graph = Graph.from_edges(src, dst, num_nodes=size, validate=False)
    of_dst, of_src = (rng.normal(size=(size, heads)) * 5 for _ in range(2))
    value = rng.normal(size=(size, heads, width))
    of_src[-1], value[-1] = np.nan, np.nan
    numbers = rng.normal(size=(count, heads))
    options = {
        "nothing": {},
        "scale": {"edge_scale": numbers},
        "bias": {"edge_bias": np.where(numbers < -1, -np.inf, numbers)},
    }[given]
    operands = [x.astype(jnp.dtype(dtype)) for x in (of_dst, of_src, value)]

    @jax.jit
    def run(*operands: Any, **options: Any) -> Any:
        return additive_attention(graph, *operands, return_lse=True, **options)

    with setting(KERNELS[0], dtype):
        got = run(*operands, **options)
        assert same_bits(got, run(*operands, **options))
    want = case_of("gat", graph, *operands, **options).results()
    tolerance = {"float32": 1e-5, "float64": 1e-12, "float16": 5e-3, "bfloat16": 0.04}[dtype]
    assert_close(got[0], want[0], tolerance, "value")
    found = np.isfinite(want[1])
    assert (np.asarray(got[1])[~found] == -np.inf).all()
    assert_close(got[1][found], want[1][found], 1e-12 if dtype == "float64" else 1e-5, "lse")


KINDS: dict[str, Callable[..., Any]] = {
    "additive": additive_attention,
    "gatv2": gatv2_attention,
    "dot": dot_attention,
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def operands_of(
    rng: np.random.Generator, kind: str, rows: int, graph: Graph, width: int = 3
) -> tuple[np.ndarray, ...]:
    """Those of a kind of attention with two heads, by edges that read one of so many rows."""
    left, right = (rng.normal(size=(size, 2, width)) for size in (rows, graph.num_src))
    if kind == "additive":
        return left[..., 0], right[..., 0], right
    return (left, right, rng.normal(size=(2, width)) if kind == "gatv2" else right)


class Read(NamedTuple):
    """Which rows edges read, and how many they add up to, if not to their destinations'."""

    kind: str
    reads: str  # "destinations", "sums" or "others"
    num_sums: int | None = None
    biased: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        if self.biased:
            return ("edge_bias",)
        return ("edge_scale",) if self == Read(self.kind, "destinations") else ()


Ids = tuple[Graph, Any, Any]
"""A graph, what its edges read, and what they add up to."""


def ours(form: Read, ids: Ids, operands: Mapping[str, Any]) -> tuple[Any, Any]:
    graph, read, sums = ids
    options = {name: operands[name] for name in form.options}
    if form.reads != "destinations":
        options["dst_ids"] = sums if form.reads == "sums" else read  # the same array is told apart
    if form.num_sums is not None:
        options |= {"sum_ids": sums, "num_sums": form.num_sums}
    arrays = (operands[name] for name in ("left", "right", "third"))
    y, lse = KINDS[form.kind](graph, *arrays, return_lse=True, **options)
    return y, jnp.where(lse > -jnp.inf, lse, 0)


def plain(form: Read, ids: Ids, operands: Mapping[str, Any]) -> tuple[Any, Any]:
    """In plain jax.numpy. Edges with an id out of range are left out."""
    graph, read, sums = ids
    left, right, third = (operands[name] for name in ("left", "right", "third"))
    read = sums if form.reads == "sums" else read
    valid, bias = (read < len(left))[:, None], jnp.zeros_like(operands["edge_bias"])
    if form.num_sums is None:
        sums, num_sums = graph.rows, graph.num_dst
    else:
        num_sums = form.num_sums
        valid &= (sums < num_sums)[:, None]
    if form.biased:
        valid &= operands["edge_bias"] > -jnp.inf
        bias = jnp.where(valid, operands["edge_bias"], 0)
    one, other = left[jnp.minimum(read, len(left) - 1)], right[graph.cols]
    if form.kind == "additive":
        score = jax.nn.leaky_relu(one + other + bias, 0.2)
    elif form.kind == "gatv2":
        score = (third * jax.nn.leaky_relu(one + other, 0.2)).sum(-1) + bias
    else:
        score = (one * other).sum(-1) / np.sqrt(left.shape[-1]) + bias
    powers = jnp.where(valid, jnp.exp(score), 0)
    total = jax.ops.segment_sum(powers, graph.rows, graph.num_dst)
    total = jnp.where(total > 0, total, 1)
    weight = powers / total[graph.rows]
    weight = weight * operands["edge_scale"] if "edge_scale" in form.options else weight
    terms = weight[..., None] * (right if form.kind == "gatv2" else third)[graph.cols]
    return jax.ops.segment_sum(terms, sums, num_sums), jnp.log(total)


@everywhere
@each_kind
@pytest.mark.parametrize(
    ("reads", "finer"),
    [("destinations", False), ("others", False)]
    + [(reads, True) for reads in ("destinations", "sums", "others")],
)
def test_rows_of_other_kinds(
    rng: np.random.Generator, reads: str, finer: bool, kind: str, implementation: str
) -> None:
    """Edges may read other rows than their destinations', and add up to finer rows.

    Masked edges are left out, those with an id out of range as well. Logarithms of what softmaxes
    are divided by have derivatives, too.
    """
    num_nodes, count = 30, 150
    graph = random_graph(rng, num_nodes, count)
    rows = np.asarray(graph.rows)
    place = np.arange(count) - np.searchsorted(rows, rows)  # of an edge in its row
    sums = 3 * rows + np.minimum(place, 2)
    sums[-4:] = 3 * num_nodes
    others = 2 * rows + (place >= 1)
    others[-2:] = 2 * num_nodes
    read, size = {
        "destinations": (rows, num_nodes),
        "sums": (sums, 3 * num_nodes),
        "others": (others, 2 * num_nodes),
    }[reads]
    num_sums = 3 * num_nodes if finer else None

    def operands() -> dict[str, Any]:
        arrays = operands_of(rng, kind, size, graph)
        return {
            **dict(zip(("left", "right", "third"), arrays, strict=True)),
            "edge_bias": rng.normal(size=(count, 2)),
            "edge_scale": rng.uniform(0.5, 2, (count, 2)),
        }

    given, moved = operands(), operands()
    masked = (rng.random((count, 2)) < 0.3) | (rows[:, None] < 2)
    given["edge_bias"][masked] = -np.inf
    for biased in (False, True)[: 1 + finer]:
        form = Read(kind, reads, num_sums, biased)
        names = "left", "right", "third", *form.options
        of_gradients = form == Read("additive", "destinations")
        with setting(implementation, "float64"):
            check_derivatives(
                *(ours, plain, form, (graph, read, sums), given, moved),
                [names, names[:3]][: 1 + of_gradients],
                of_gradients=of_gradients and implementation == IMPLEMENTATIONS[0],
            )


@each_kind
def test_what_reads_the_rows_of_sums_gathers_nothing(rng: np.random.Generator, kind: str) -> None:
    """The kernel reads them itself: no more operations than of sums of destinations' rows."""
    graph = random_graph(rng, 50, 400)
    operands = operands_of(rng, kind, 50, graph)
    sums = {"sum_ids": graph.rows, "num_sums": 50}

    def names(**options: Any) -> list[str]:
        jaxpr = jax.make_jaxpr(lambda *each: KINDS[kind](graph, *each, **options, **sums))
        found = [each.primitive.name for each in jaxpr(*operands).jaxpr.eqns]
        return [name for name in found if name.startswith("jax_gnn")]

    with_sums = names(dst_ids=graph.rows)
    assert with_sums == [
        f"jax_gnn_{op}" for op in ("segment_reduce", "attention", "segment_softmax")
    ]
    assert len(names()) == len(with_sums) + 1


def expanded(jaxpr: Any) -> list[Any]:
    """Its equations, with those that all gradients together are made of in their place."""
    found: list[Any] = []
    for equation in jaxpr.eqns:
        op = OPS.get(equation.primitive.name.removeprefix("jax_gnn_"))
        if op is None or not equation.params.get("whole"):
            found.append(equation)
            continue
        attributes = {
            k: v for k, v in equation.params.items() if k not in ("implementation", "tree")
        }
        unflatten = equation.params["tree"].unflatten

        def composed(
            *leaves: Any, op: Any = op, of: Any = unflatten, given: Any = attributes
        ) -> Any:
            return op.xla(**of(leaves)._asdict(), **given)

        shapes = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars]
        found += expanded(jax.make_jaxpr(composed)(*shapes).jaxpr)
    return found


@each_kind
def test_no_array_has_a_row_for_each_edge(rng: np.random.Generator, kind: str) -> None:
    """Forward and backward, but for one of a number for each head."""
    graph = random_graph(rng, 50, 4000)
    operands = [x.astype(np.float32) for x in operands_of(rng, kind, 50, graph, width=16)]

    def tested(*operands: Any) -> Any:
        return KINDS[kind](graph, *operands)

    def sizes_of(jaxpr: Any) -> list[int]:
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


def test_scores_of_sources_have_no_sum_of_their_own(rng: np.random.Generator) -> None:
    """Their gradient comes with that of values: only destinations' is a segment sum."""
    graph = random_graph(rng, 50, 400)
    operands = [x.astype(np.float32) for x in operands_of(rng, "additive", 50, graph, width=4)]

    def loss(*operands: Any) -> Any:
        return jnp.sum(additive_attention(graph, *operands))

    def names_of(equations: Any) -> list[str]:
        names = [each.primitive.name for each in equations]
        return [name for name in names if name.startswith("jax_gnn")]

    found = jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*operands).jaxpr
    attention = "jax_gnn_attention"
    assert names_of(found.eqns) == [attention, f"{attention}_vjp"]
    assert names_of(expanded(found)) == [attention, f"{attention}_vjp", "jax_gnn_segment_reduce"]


@on_first
@each_kind
@pytest.mark.parametrize("width", [9, 8, 32])
def test_the_same_bits(
    rng: np.random.Generator, kind: str, width: int, implementation: str
) -> None:
    graph = random_graph(rng)
    operands = [x.astype(np.float32) for x in operands_of(rng, kind, 300, graph, width)]

    @jax.jit
    def run(*operands: Any) -> Any:
        y, vjp = jax.vjp(lambda *each: KINDS[kind](graph, *each), *operands)
        return y, vjp(jnp.cos(y))

    with setting(implementation):
        first = jax.device_get(run(*operands))
        for _ in range(30):
            assert same_bits(first, jax.device_get(run(*operands)))


@on_first
@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 8), ("float64", 2)])
def test_many_edges(rng: np.random.Generator, dtype: str, width: int, implementation: str) -> None:
    """Of more than 2^17, slopes are summed up by another walk: with a hub, padding and no edges."""
    size, count = 700, 2**17 + 1001
    dst = np.where(rng.random(count) < 0.3, 7, rng.geometric(0.01, count) % (size - 3))
    src = np.where(rng.random(count) < 0.01, -1, rng.integers(0, size - 1, count))
    graph = Graph.from_edges(src, dst, num_nodes=size, validate=False)
    of_dst, of_src = rng.normal(size=(2, size, 2, width))
    of_src[-1] = np.nan  # only padding could read it
    operands = [x.astype(jnp.dtype(dtype)) for x in (of_dst, of_src, rng.normal(size=(2, width)))]

    def run(*operands: Any) -> Any:
        y, vjp = jax.vjp(lambda *each: gatv2_attention(graph, *each), *operands)
        to_dst, _, to_vector = vjp((1 + jnp.arange(y.size).reshape(y.shape) % 3).astype(y.dtype))
        return y, to_dst, to_vector

    with setting(implementation, dtype):
        y, to_dst, to_vector = jax.jit(run)(*operands)
    tolerance = {"float32": 1e-4, "float64": 1e-12, "bfloat16": 0.06}[dtype]
    case = case_of("gatv2", graph, *operands)
    assert_close(y, case.results()[0], tolerance, "value")
    ct = (1 + np.arange(y.size).reshape(y.shape) % 3).astype(np.float64)
    want = case.gradients(wide([y])[0], ct, np.zeros(y.shape[:2]))
    assert_close(to_dst, want["left"], tolerance, "gradient to dst")
    assert_close(to_vector, want["factor"], tolerance, "gradient to the vector")


@pytest.mark.parametrize(
    ("implementation", "width"),
    [*((IMPLEMENTATIONS[0], width) for width in (1, 4, 33, WALKED)), ("xla", 4)],
)
@each_kind
def test_corrupt_indices(
    rng: np.random.Generator, kind: str, width: int, implementation: str
) -> None:
    """Whatever index arrays hold, nothing is read or written out of bounds, and all ends."""
    if width == WALKED and kind != "additive":
        width = 128  # of float32, which the kernel of one step does not take either
    whole = random_graph(rng, 40, 500)
    operands = [x.astype(np.float32) for x in operands_of(rng, kind, 40, whole, width)]
    operands = [np.abs(x) for x in operands]

    @functools.partial(jax.jit, static_argnames="num_sums")
    def run(graph: Graph, *operands: Any, **sums: Any) -> Any:
        y, vjp = jax.vjp(lambda *each: KINDS[kind](graph, *each, **sums), *operands)
        return y, vjp(jnp.ones_like(y))

    limits = np.iinfo(np.int32)
    pool = np.array([limits.min, limits.max, -1, 0, 1, 39, 40, 41, 500], np.int64)
    names = "rows", "cols", "t_rows", "t_cols", "t_order"
    with setting(implementation):
        for share in (0.02, 0.5, 1.0):
            broken = {
                name: jnp.asarray(
                    np.where(
                        rng.random(500) < share,
                        rng.choice(pool, 500),
                        np.asarray(getattr(whole, name)),
                    ),
                    jnp.int32,
                )
                for name in names
            }
            y, _ = jax.block_until_ready(run(replace(whole, **broken), *operands))
            assert np.shape(y) == (40, 2, width)
            ids = np.where(rng.random(500) < share, rng.choice(pool, 500), np.arange(500) // 10)
            sums: dict[str, Any] = {"sum_ids": ids, "num_sums": 50}
            for graph in (whole, replace(whole, **broken)):
                y, _ = jax.block_until_ready(run(graph, *operands, **sums))
                assert np.shape(y) == (50, 2, width)


SCHEDULES = [
    *(("step", 8, 256, 4), ("walk", 16, 256, 8), ("walk", 32, 256, 15), ("walk", 16, 128, 5)),
    *(("gather", 8, 128, 6), ("gather", 16, 128, 2), ("walk", 1, 64, 3)),
]
WIDTHS = (1, 64), (4, 8), (3, 5), (8, 4), (1, 300)


@needs_kernels
@pytest.mark.parametrize(
    ("schedule", "heads", "width", "dtype"),
    [
        (schedule, *width, dtype)
        for i, schedule in enumerate(SCHEDULES)
        for j, width in enumerate(WIDTHS)
        for k, dtype in enumerate(("float32", "float64", "bfloat16"))
        if dtype == "float32" or (i + j + k) % 3 == 0
    ],
    ids=str,
)
def test_schedules(
    rng: np.random.Generator, schedule: Any, heads: int, width: int, dtype: str
) -> None:
    """All kernels that a schedule may choose, with a row that spans blocks."""
    size, count = 70, 900
    dst = np.where(rng.random(count) < 0.5, 7, rng.geometric(0.05, count) % (size - 3))
    src = np.where(rng.random(count) < 0.3, 11, rng.integers(0, size, count))
    graph = Graph.from_edges(src, dst, num_nodes=size)
    of_dst, of_src = rng.normal(size=(2, size, heads))
    value, ct = rng.normal(size=(2, size, heads, width))
    scale = rng.uniform(0.5, 2, (count, heads))
    *operands, scale, ct = (x.astype(jnp.dtype(dtype)) for x in (of_dst, of_src, value, scale, ct))

    @jax.jit
    def run(*operands: Any) -> Any:
        y, vjp = jax.vjp(
            lambda *each: additive_attention(graph, *each, edge_scale=scale), *operands
        )
        return y, vjp(ct)

    with setting(KERNELS[0], dtype), schedules.use(schedules.Schedule(*schedule)):
        y, gradients = run(*operands)
    tolerance = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 0.02}[dtype]
    case = case_of("gat", graph, *operands, edge_scale=scale)
    assert_close(y, case.results()[0], tolerance, "value")
    check_gradients(case, ("left", "right", "value"), gradients, y, ct, tolerance)
