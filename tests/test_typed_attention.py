"""Attention of edges with relations: the op and its kernels beside plain JAX."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import check_batch, check_derivatives, compare, loss, on_cuda
from op_spec import same_bits, setting, stack, wide
from op_suite import IMPLEMENTATIONS, TOLERANCE

from jax_gnn import RelationalGraph
from jax_gnn._core.relations import RelationalMatrix
from jax_gnn._ops.attention.primitive import attention
from jax_gnn._ops.attention.scores import Typed

NODES, RELATIONS = 40, 5
NAMES = "value", "of_value", "x", "of_x", "entry_scale"
Graph = tuple[RelationalMatrix, np.ndarray]
"""And the relation of each source pair."""


class Form(NamedTuple):
    """Widths of x and of a head of values, and whether edges have factors."""

    heads: int
    k: int
    n: int
    scaled: bool = True
    slope: float = 0.2
    keeps_scores: bool = True
    has_rows: bool = True


# A kernel has rows of one head as wide as values alone, and none of widths of no whole words.
FORMS = Form(1, 8, 8), Form(1, 4, 8, False), Form(2, 4, 4), Form(1, 3, 3, True, 0.0)
each_form = pytest.mark.parametrize("form", FORMS)
on_first = pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:1])


def graph_of(rng: np.random.Generator, edges: int, nodes: int = NODES) -> Graph:
    """With empty rows, rows of many edges, padding, and edges that only lack a relation."""
    src, dst = rng.geometric(0.1, edges) % nodes, rng.integers(nodes - 1, size=edges)
    dst = np.where(rng.random(edges) < 0.3, 7, dst)
    rel = rng.integers(RELATIONS, size=edges)
    graph = RelationalGraph.from_triples(src, rel, dst, nodes, RELATIONS)
    assert graph.pair_src is not None
    pairs = edges + 2  # as many whatever edges there are: graphs share programs
    padded = graph.pad(num_nodes=nodes + 2, num_edges=edges + 5, num_src_pairs=pairs)
    matrix = padded.matrix(weighted=True)
    lacks = rng.random(edges + 5) < 0.1
    matrix = replace(matrix, types=np.where(lacks, -1, matrix.types).astype(np.int32))
    types = np.repeat(np.arange(RELATIONS), np.asarray(graph.pair_src.sizes))
    types = np.append(types, np.full(pairs - len(types), -1))
    return matrix, types.astype(np.int32)


def operands_of(
    rng: np.random.Generator, graph: Graph, form: Form, *batch: int
) -> dict[str, np.ndarray]:
    matrix, types = graph
    heads, k, n, *_ = form
    num_nodes, num_edges = matrix.nodes.by_row.num_rows, len(matrix.types)
    shapes = (len(types), heads * n), (RELATIONS, heads * n), (num_nodes, k), (RELATIONS, heads, k)
    floats = [rng.normal(size=(*batch, *shape)) for shape in shapes]
    floats.append(rng.uniform(0.5, 2, (*batch, num_edges, heads)))
    return dict(zip(NAMES, floats, strict=True))


def picked(x: Any, ids: Any) -> Any:
    """Rows, zeros where an id is out of range."""
    valid = (ids >= 0) & (ids < len(x))
    rows = jnp.asarray(x)[jnp.where(valid, ids, 0)]
    return jnp.where(valid.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


def dots(matrix: RelationalMatrix, x: Any, of_x: Any) -> Any:
    """Of the destinations."""
    acc = jnp.promote_types(x.dtype, jnp.float32)
    at_rows = picked(x, matrix.nodes.by_row.rows)[:, None] * picked(of_x, matrix.types)
    return jnp.sum(at_rows.astype(acc), -1)


def ids_of(matrix: RelationalMatrix) -> tuple[Any, ...]:
    """Rows, columns and types of edges, and which are no padding."""
    assert matrix.from_pairs is not None
    half = matrix.from_pairs.by_row
    sizes = half.num_rows, matrix.from_pairs.by_col.num_rows, RELATIONS
    each = half.rows, half.cols, matrix.types
    valid = [(ids >= 0) & (ids < size) for ids, size in zip(each, sizes, strict=True)]
    return *each, functools.reduce(jnp.logical_and, valid)


def ours(form: Form, graph: Graph, operands: Mapping[str, Any]) -> tuple[Any, ...]:
    """The sum, the logarithm of what its softmax is divided by, and scores of edges; 0 for none.

    Scores only where they are kept: in training they are nobody's.
    """
    (matrix, types), (value, of_value, x, of_x, scale) = graph, (operands[name] for name in NAMES)
    rows = (x, of_x) if form.has_rows else (None, None)
    scores = Typed(of_value, dots(matrix, x, of_x), *rows, matrix.types, types)
    y, stats, score = attention(
        *(value, scores, scale if form.scaled else None, matrix.from_pairs),
        heads=form.heads,
        slope=form.slope,
        keeps_raw=form.keeps_scores,
    )
    log_sum = stats[..., 1]
    lse = jnp.where(log_sum == jnp.inf, 0, stats[..., 0] + jnp.where(log_sum < 9e9, log_sum, 0))
    if not form.keeps_scores:
        return y, lse
    return y, lse, jnp.where(ids_of(matrix)[3][:, None], score, 0)


def plain(form: Form, graph: Graph, operands: Mapping[str, Any]) -> tuple[Any, ...]:
    """The same in plain jax.numpy, with arrays of edges."""
    (matrix, _), (value, of_value, x, of_x, scale) = graph, (operands[name] for name in NAMES)
    rows, cols, types, valid = ids_of(matrix)
    heads, size = form.heads, matrix.nodes.by_row.num_rows
    terms = picked(value, cols) * picked(of_value, types)
    z = dots(matrix, x, of_x) + terms.reshape(len(rows), heads, -1).sum(-1)
    score = jnp.where(z > 0, z, form.slope * z)
    at = jnp.where(valid, rows, size)
    tops = jax.lax.stop_gradient(jax.ops.segment_max(score, at, size + 1))
    powers = jnp.where(valid[:, None], jnp.exp(score - jnp.where(valid[:, None], tops[at], 0)), 0)
    sums = jax.ops.segment_sum(powers, at, size + 1)
    weight = powers / jnp.where(sums > 0, sums, 1)[at]
    weight = weight * scale if form.scaled else weight
    values = picked(value, cols).reshape(len(rows), heads, -1)
    y = jax.ops.segment_sum((weight[..., None] * values).reshape(len(rows), -1), at, size + 1)
    lse = jnp.where(sums > 0, jnp.log(jnp.where(sums > 0, sums, 1)) + tops, 0)
    found = y[:-1], lse[:-1], jnp.where(valid[:, None], z, 0)
    return found[: 3 if form.keeps_scores else 2]


SUBSETS = NAMES, NAMES[:-1]  # with and without the weights' factors, which rules tell apart


@pytest.mark.parametrize(
    ("implementation", "keeps_scores"),
    [(IMPLEMENTATIONS[0], True), (IMPLEMENTATIONS[0], False), ("xla", False)],
)
@each_form
def test_derivatives(
    rng: np.random.Generator, form: Form, keeps_scores: bool, implementation: str
) -> None:
    """Results, tangents and gradients; and theirs, which are the same for all implementations."""
    graph, form = graph_of(rng, 60), form._replace(keeps_scores=keeps_scores)
    operands, moved = operands_of(rng, graph, form), operands_of(rng, graph, form)
    of_gradients = implementation == IMPLEMENTATIONS[0] and not keeps_scores
    with setting(implementation, "float64"):
        check_derivatives(
            *(ours, plain, form, graph, operands, moved, SUBSETS), of_gradients=of_gradients
        )


@on_first
def test_in_each_operand_alone(rng: np.random.Generator, implementation: str) -> None:
    graph, form = graph_of(rng, 60), FORMS[0]
    operands, moved = operands_of(rng, graph, form), operands_of(rng, graph, form)
    alone = [(name,) for name in NAMES]
    with setting(implementation, "float64"):
        check_derivatives(*(ours, plain, form, graph, operands, moved, alone), of_gradients=False)


@on_first
@pytest.mark.parametrize(
    ("form", "batched"),
    [*((form, "all") for form in FORMS), *((form, x) for form in FORMS[::2] for x in NAMES)],
)
def test_batches(rng: np.random.Generator, form: Form, batched: str, implementation: str) -> None:
    """Of one operand and of all: values and gradients."""
    graph, names = graph_of(rng, 60), NAMES if batched == "all" else (batched,)
    one, several = operands_of(rng, graph, form), operands_of(rng, graph, form, 3)
    operands = {name: several[name] if name in names else one[name] for name in NAMES}
    to = NAMES if batched == "all" else NAMES[:-1]
    with setting(implementation, "float64"):
        check_batch(ours, plain, form, graph, operands, names, to)


@on_first
def test_batches_of_graphs(rng: np.random.Generator, implementation: str) -> None:
    form = FORMS[2]._replace(has_rows=False, keeps_scores=False)
    graph, size = graph_of(rng, 60), 3
    value, of_value, x, of_x, scale = operands_of(rng, graph, form).values()

    def of_graph(at_dst: Any, graph: Graph) -> Any:
        scores = Typed(of_value, at_dst, None, None, graph[0].types, graph[1])
        options: Any = {"heads": form.heads, "slope": form.slope, "keeps_raw": False}
        return attention(value, scores, scale, graph[0].from_pairs, **options)

    with setting(implementation, "float64"):
        each = functools.partial(of_graph, dots(graph[0], x, of_x))
        got = jax.jit(jax.vmap(each))(stack([graph] * size))
        compare(got, [np.stack([x] * size) for x in each(graph)], "graphs, and one eagerly")


def test_batches_of_one_graph_join_the_heads(rng: np.random.Generator) -> None:
    """So that one call serves all of them."""
    form, graph = FORMS[0], graph_of(rng, 60)
    operands = operands_of(rng, graph, form, 3)
    jaxpr = jax.make_jaxpr(jax.vmap(functools.partial(ours, form, graph)))(operands)
    heads = [
        equation.params["heads"]
        for equation in jaxpr.jaxpr.eqns
        if equation.primitive.name == "jax_gnn_attention"
    ]
    assert heads == [3]


WIDTHS = {  # of x, and of a head of values
    "float32": [(1, 64, 64), (1, 20, 20), (1, 16, 64), (4, 64, 8), (3, 16, 128), (1, 3, 3)],
    "bfloat16": [(1, 64, 64), (2, 64, 64), (1, 40, 40)],
    "float16": [(1, 64, 64), (8, 8, 8), (1, 8, 256)],
    "float64": [(1, 64, 64), (8, 8, 4), (1, 6, 6)],
}


@functools.partial(jax.jit, static_argnums=(0, 1))
def with_gradients(attend: Any, form: Form, graph: Graph, operands: Any, moved: Any) -> Any:
    y, pull = jax.vjp(lambda operands: attend(form, graph, operands)[0], operands)
    return y, pull(moved.astype(y.dtype))[0]


def ours_of(result: Any) -> Any:
    """All but the gradients of x and its vectors, which XLA adds up here, in any order on a GPU."""
    y, gradients = result
    return y, {name: x for name, x in gradients.items() if name not in ("x", "of_x")}


# Of edges that fill blocks all widths; of few edges, and of XLA, which has no kernels, some.
NUM_WIDTHS = {0: 1, 3: 1, 90: 3, 2500: None}


@pytest.mark.parametrize(
    ("implementation", "count"),
    [*((IMPLEMENTATIONS[0], count) for count in NUM_WIDTHS), ("xla", 0), ("xla", 90)],
)
@pytest.mark.parametrize("dtype", WIDTHS)
def test_widths(rng: np.random.Generator, dtype: str, count: int, implementation: str) -> None:
    """Values and gradients, of a row that spans blocks and of rows without edges."""
    graph = graph_of(rng, count, 70)
    # Few of thousands of scores are so small that half types round them to the other side of 0:
    # there the slope is not far from 1.
    slope = 0.97 if jnp.dtype(dtype).itemsize == 2 else 0.2
    for heads, k, n in WIDTHS[dtype][: 1 if implementation == "xla" else NUM_WIDTHS[count]]:
        form = Form(heads, k, n, heads != 4, slope, keeps_scores=False)
        operands = operands_of(rng, graph, form)
        operands["of_value"] /= np.sqrt(n)
        operands["of_x"] /= np.sqrt(k)
        acc = jnp.promote_types(dtype, jnp.float32)
        operands = {
            name: x.astype(acc if name == "entry_scale" else jnp.dtype(dtype))
            for name, x in operands.items()
        }
        moved = rng.normal(size=(graph[0].nodes.by_row.num_rows, heads * n))
        with setting(implementation, dtype):
            got = with_gradients(ours, form, graph, operands, moved)
            again = with_gradients(ours, form, graph, operands, moved)
            assert same_bits(ours_of(again), ours_of(got))
        with setting("xla", "float64"):
            exact = dict(zip(NAMES, wide(list(operands.values())), strict=True))
            want = with_gradients(plain, form, graph, exact, moved)
        compare(got, want, f"{heads} heads, {k} and {n}", 3 * TOLERANCE[dtype])


@on_cuda
@pytest.mark.parametrize("has_rows", [True, False])
def test_the_kernels_and_any_ids(rng: np.random.Generator, has_rows: bool) -> None:
    """Whatever ids are, what they name beside edges is not read, and edges left are right."""
    form = Form(1, 8, 8)
    graph = graph_of(rng, 300)
    matrix, types = graph

    def corrupt(ids: Any) -> Any:
        if not jnp.issubdtype(ids.dtype, jnp.integer):
            return ids
        extremes = np.array([-(2**31), 2**31 - 1, -1, 10**6], np.int32)
        at = rng.choice(ids.size, min(ids.size, 20), replace=False)
        flat = np.array(ids).ravel()
        flat[at] = rng.choice(extremes, len(at))
        return jnp.asarray(flat.reshape(ids.shape))

    form = form._replace(keeps_scores=False, has_rows=has_rows)
    names = NAMES[:-1]

    @jax.jit
    def train(graph: Graph, operands: Any) -> Any:
        moving = {name: operands[name] for name in names}
        return jax.value_and_grad(lambda x: loss(ours(form, graph, {**operands, **x})))(moving)

    operands = {name: x.astype(np.float32) for name, x in operands_of(rng, graph, form).items()}
    with setting("cuda", "float32"):
        text = train.lower(graph, operands).as_text()
        assert text.count("attention(") + text.count("attention_vjp(") == 2, "one pass each way"
        broken = jax.tree.map(corrupt, matrix), corrupt(jnp.asarray(types))
        jax.block_until_ready(train(broken, operands))
        # Types alone: those edges are left out.
        of_none = replace(matrix, types=corrupt(jnp.asarray(matrix.types)))
        got = ours(form, (of_none, types), operands)
    with setting("xla", "float64"):
        exact = dict(zip(NAMES, wide(list(operands.values())), strict=True))
        compare(got, plain(form, (of_none, types), exact), "types", 2e-5)


@on_cuda
def test_scores_of_minus_infinity(rng: np.random.Generator) -> None:
    """They leave an edge out, whatever the slope is."""
    graph = graph_of(rng, 90)
    matrix, types = graph
    operands = operands_of(rng, graph, Form(2, 4, 4))
    value, of_value = (operands[name].astype(np.float32) for name in NAMES[:2])
    at_dst = rng.normal(size=(len(matrix.types), 2)).astype(np.float32)
    at_dst[rng.random(at_dst.shape) < 0.3] = -np.inf

    @functools.partial(jax.jit, static_argnums=0)
    def run(slope: float, *moving: Any) -> Any:
        def attend(value: Any, of_value: Any, at_dst: Any) -> Any:
            scores = Typed(of_value, at_dst, None, None, matrix.types, types)
            operands = value, scores, None, matrix.from_pairs
            return attention(*operands, heads=2, slope=slope, keeps_raw=False)[0]

        y, pull = jax.vjp(attend, *moving)
        return y, pull(jnp.cos(y))

    for slope in (0.0, 0.2, -0.5):
        with setting("cuda"):
            got = run(slope, value, of_value, at_dst)
        with setting("xla"):
            want = run(slope, value, of_value, at_dst)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))
        compare(got, want, f"{slope}", 2e-5)
