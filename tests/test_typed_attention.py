"""Attention of edges with relations: the op and its kernels beside plain JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import assert_close, same_bits, setting, stack, wide
from op_suite import IMPLEMENTATIONS, KERNELS, PLATFORM, TOLERANCE

from jax_gnn import RelationalGraph
from jax_gnn._core.relations import RelationalMatrix
from jax_gnn._ops.relational_attention.primitive import typed_attention

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


# A kernel has rows of one head as wide as values alone, and none of widths of no whole words.
FORMS = Form(1, 8, 8), Form(1, 4, 8, False), Form(2, 4, 4), Form(1, 3, 3, True, 0.0)
each_form = pytest.mark.parametrize("form", FORMS)
everywhere = pytest.mark.parametrize("implementation", [None, *IMPLEMENTATIONS])
on_cuda = pytest.mark.skipif("cuda" not in (*KERNELS, PLATFORM), reason="kernels are on CUDA alone")


def graph_of(rng: np.random.Generator, edges: int, nodes: int = NODES) -> Graph:
    """With empty rows, rows of many edges, and padding."""
    src, dst = rng.geometric(0.1, edges) % nodes, rng.integers(nodes - 1, size=edges)
    dst = np.where(rng.random(edges) < 0.3, 7, dst)
    rel = rng.integers(RELATIONS, size=edges)
    graph = RelationalGraph.from_triples(src, rel, dst, nodes, RELATIONS).with_parts()
    assert graph.pair_src is not None
    sizes = {"num_src_pairs": graph.pair_src.num_pairs + 2}
    padded = graph.pad(num_nodes=nodes + 2, num_edges=graph.num_edges + 5, **sizes)
    types = np.repeat(np.arange(RELATIONS), np.asarray(graph.pair_src.sizes))
    return padded.matrix(weighted=True), np.append(types, [-1, -1]).astype(np.int32)


def operands_of(
    rng: np.random.Generator, graph: Graph, form: Form, *batch: int
) -> tuple[np.ndarray, ...]:
    """In the order of NAMES."""
    matrix, types = graph
    heads, k, n, *_ = form
    num_nodes, num_edges = matrix.nodes.by_row.num_rows, len(matrix.types)
    shapes = (len(types), heads * n), (RELATIONS, heads * n), (num_nodes, k), (RELATIONS, heads, k)
    floats = [rng.normal(size=(*batch, *shape)) for shape in shapes]
    return *floats, rng.uniform(0.5, 2, (*batch, num_edges, heads))


def picked(x: Any, ids: np.ndarray) -> Any:
    """Rows, zeros where an id is out of range."""
    valid = (ids >= 0) & (ids < len(x))
    rows = jnp.asarray(x)[np.where(valid, ids, 0)]
    return jnp.where(valid.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


def dots(matrix: RelationalMatrix, x: Any, of_x: Any) -> Any:
    """Of the destinations."""
    rows, types = np.asarray(matrix.nodes.by_row.rows), np.asarray(matrix.types)
    acc = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.sum((picked(x, rows)[:, None] * picked(of_x, types)).astype(acc), -1)


def ids_of(matrix: RelationalMatrix) -> tuple[np.ndarray, ...]:
    """Rows, columns and types of edges, and which are no padding."""
    assert matrix.from_pairs is not None
    half = matrix.from_pairs.by_row
    sizes = half.num_rows, matrix.from_pairs.by_col.num_rows, RELATIONS
    rows, cols, types = (np.asarray(ids) for ids in (half.rows, half.cols, matrix.types))
    each = zip((rows, cols, types), sizes, strict=True)
    return rows, cols, types, np.all([(ids >= 0) & (ids < size) for ids, size in each], axis=0)


def ours(
    form: Form,
    graph: Graph,
    *operands: Any,
    keeps_scores: bool = True,
    has_rows: bool = True,
) -> tuple[Any, Any, Any]:
    """The sum, the logarithm of what its softmax is divided by, and scores of edges; 0 for none."""
    (matrix, types), (value, of_value, x, of_x, scale) = graph, operands
    y, stats, score = typed_attention(
        *(value, of_value, *((x, of_x) if has_rows else (None, None))),
        *(dots(matrix, x, of_x), scale if form.scaled else None, types, matrix),
        heads=form.heads,
        slope=form.slope,
        keeps_scores=keeps_scores,
    )
    log_sum = stats[..., 1]
    lse = jnp.where(log_sum == jnp.inf, 0, stats[..., 0] + jnp.where(log_sum < 9e9, log_sum, 0))
    valid = ids_of(matrix)[3]
    return y, lse, jnp.where(valid[:, None], score, 0) if keeps_scores else score


def plain(form: Form, graph: Graph, *operands: Any) -> tuple[Any, Any, Any]:
    """The same in plain jax.numpy, with arrays of edges."""
    (matrix, _), (value, of_value, x, of_x, scale) = graph, operands
    rows, cols, types, valid = ids_of(matrix)
    heads, size = form.heads, matrix.nodes.by_row.num_rows
    terms = picked(value, cols) * picked(of_value, types)
    z = dots(matrix, x, of_x) + terms.reshape(len(rows), heads, -1).sum(-1)
    score = jnp.where(z > 0, z, form.slope * z)
    at = np.where(valid, rows, size)
    top = jax.lax.stop_gradient(jax.ops.segment_max(score, at, size + 1))[at]
    powers = jnp.where(valid[:, None], jnp.exp(score - jnp.where(valid[:, None], top, 0)), 0)
    sums = jax.ops.segment_sum(powers, at, size + 1)
    weight = powers / jnp.where(sums > 0, sums, 1)[at]
    weight = weight * scale if form.scaled else weight
    values = picked(value, cols).reshape(len(rows), heads, -1)
    y = jax.ops.segment_sum((weight[..., None] * values).reshape(len(rows), -1), at, size + 1)
    tops = jax.ops.segment_max(jnp.where(valid[:, None], top, -jnp.inf), at, size + 1)
    lse = jnp.where(sums > 0, jnp.log(jnp.where(sums > 0, sums, 1)) + tops, 0)
    return y[:-1], lse[:-1], jnp.where(valid[:, None], z, 0)


Attend = Callable[..., tuple[Any, Any, Any]]


def loss(attend: Attend, *operands: Any) -> Any:
    y, lse, score = attend(*operands)
    return jnp.sum(jnp.sin(y)) + jnp.sum(jnp.cos(lse)) + jnp.sum(jnp.sin(score))


def loss_of_sums(attend: Attend, *operands: Any) -> Any:
    """As training has it: scores are nobody's."""
    y, lse, _ = attend(*operands)
    return jnp.sum(jnp.sin(y)) + jnp.sum(jnp.cos(lse))


def both(form: Form, graph: Graph, **options: Any) -> tuple[Attend, Attend]:
    return functools.partial(ours, form, graph, **options), functools.partial(plain, form, graph)


def compare(got: Any, want: Any, what: str, tolerance: float = 1e-11) -> None:
    for i, (one, other) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        assert_close(one, other, tolerance, f"{what}, {i}")


@everywhere
@each_form
def test_values_and_tangents(
    rng: np.random.Generator, form: Form, implementation: str | None
) -> None:
    """In all operands together, and in each alone."""
    graph = graph_of(rng, 60)
    operands, moved = operands_of(rng, graph, form), operands_of(rng, graph, form)
    with setting(implementation, "float64"):
        attend, reference = both(form, graph)
        compare(jax.jvp(attend, operands, moved), jax.jvp(reference, operands, moved), "all")
        for i, name in enumerate(NAMES):

            def of_one(attend: Attend, x: Any, i: int = i) -> Any:
                return attend(*operands[:i], x, *operands[i + 1 :])

            got, want = (
                jax.jvp(functools.partial(of_one, each), (operands[i],), (moved[i],))
                for each in (attend, reference)
            )
            compare(got, want, name)


@everywhere
@each_form
@pytest.mark.parametrize("keeps_scores", [True, False])
def test_gradients(
    rng: np.random.Generator, form: Form, keeps_scores: bool, implementation: str | None
) -> None:
    graph = graph_of(rng, 60)
    operands = operands_of(rng, graph, form)
    with setting(implementation, "float64"):
        attends = both(form, graph, keeps_scores=keeps_scores)
        of = loss if keeps_scores else loss_of_sums
        attend, reference = (functools.partial(of, each) for each in attends)
        for argnums in (tuple(range(len(NAMES))), (0, 1, 2, 3), *range(len(NAMES))):
            got, want = (jax.grad(each, argnums)(*operands) for each in (attend, reference))
            compare(got, want, f"{argnums}")


@everywhere
@each_form
def test_second_derivatives(
    rng: np.random.Generator, form: Form, implementation: str | None
) -> None:
    """Forward over reverse along all operands, and reverse over reverse."""
    graph = graph_of(rng, 60)
    operands, moved = operands_of(rng, graph, form), operands_of(rng, graph, form)

    def forward(gradient: Any) -> Any:
        return jax.jit(lambda *each: jax.jvp(gradient, each, moved)[1])(*operands)

    def reverse(gradient: Any) -> Any:
        def along(*each: Any) -> Any:
            return sum(jnp.sum(a * b) for a, b in zip(gradient(*each), moved, strict=False))

        return jax.jit(jax.grad(along, tuple(range(len(NAMES)))))(*operands)

    with setting(implementation, "float64"):
        for argnums in ((0, 1, 2, 3, 4), (0, 1, 2, 3)):  # with and without the weights' factors
            attends = both(form, graph, keeps_scores=False)
            got, want = (
                jax.grad(functools.partial(loss_of_sums, each), argnums) for each in attends
            )
            compare(forward(got), forward(want), "forward over reverse")
            compare(reverse(got), reverse(want), "reverse over reverse")


@everywhere
@each_form
@pytest.mark.parametrize("batched", [*NAMES, "all", "graph"])
def test_batches(
    rng: np.random.Generator, form: Form, batched: str, implementation: str | None
) -> None:
    """Of one operand, of all, and of ids: values and gradients."""
    graph, size = graph_of(rng, 60), 3
    one, several = operands_of(rng, graph, form), operands_of(rng, graph, form, size)
    moving = [batched in (name, "all") for name in NAMES]
    operands = [b if moves else a for a, b, moves in zip(one, several, moving, strict=True)]
    axes = [0 if moves else None for moves in moving]
    every = tuple(range(len(NAMES)))

    def run(attend: Callable[..., Any], *operands: Any) -> Any:
        each = functools.partial(attend, form)
        gradient = jax.grad(lambda *floats: loss(each, operands[0], *floats), every)
        return each(*operands), gradient(*operands[1:])

    with setting(implementation, "float64"):
        if batched == "graph":
            at_dst, scale = dots(graph[0], *one[2:4]), one[4] if form.scaled else None

            def of_graph(graph: Graph) -> Any:
                operands = *one[:2], None, None, at_dst, scale, graph[1], graph[0]
                options: Any = {"heads": form.heads, "slope": form.slope}
                return typed_attention(*operands, **options, keeps_scores=False)

            got = jax.vmap(of_graph)(stack([graph] * size))
            want = stack([of_graph(graph)] * size)
            compare(got[0], want[0], "graphs")
            return
        got = jax.jit(jax.vmap(functools.partial(run, ours, graph), axes))(*operands)
        for i in range(size):
            at = [x[i] if moves else x for x, moves in zip(operands, moving, strict=True)]
            want = run(plain, graph, *at)
            compare(jax.tree.map(lambda x, i=i: x[i], got), want, f"{batched}, {i}")


def test_batches_of_one_graph_join_the_heads(rng: np.random.Generator) -> None:
    """So that one call serves all of them."""
    form = FORMS[0]
    graph = graph_of(rng, 60)
    operands = operands_of(rng, graph, form, 3)
    jaxpr = jax.make_jaxpr(jax.vmap(functools.partial(ours, form, graph)))(*operands)
    heads = [
        equation.params["heads"]
        for equation in jaxpr.jaxpr.eqns
        if equation.primitive.name == "jax_gnn_typed_attention"
    ]
    assert heads == [3]


WIDTHS = {  # of x, and of a head of values
    "float32": [(1, 64, 64), (1, 20, 20), (1, 16, 64), (4, 64, 8), (3, 16, 128), (1, 3, 3)],
    "bfloat16": [(1, 64, 64), (2, 64, 64), (1, 40, 40)],
    "float16": [(1, 64, 64), (8, 8, 8), (1, 8, 256)],
    "float64": [(1, 64, 64), (8, 8, 4), (1, 6, 6)],
}


def with_gradients(attend: Attend, moved: np.ndarray, *operands: Any) -> Any:
    def result(*operands: Any) -> Any:
        return attend(*operands)[0]

    y, pull = jax.vjp(result, *operands)
    return y, pull(jnp.asarray(moved, y.dtype))


def ours_of(result: Any) -> Any:
    """All but the gradients of x and its vectors, which XLA adds up here, in any order on a GPU."""
    y, (value, of_value, _, _, scale) = result
    return y, value, of_value, scale


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("count", [0, 3, 90, 2500])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_widths(
    rng: np.random.Generator, dtype: str, count: int, implementation: str | None
) -> None:
    """Values and gradients, of a row that spans blocks and of rows without edges."""
    graph = graph_of(rng, count, 70)
    for heads, k, n in WIDTHS[dtype]:
        form = Form(heads, k, n, scaled=heads != 4)
        value, of_value, x, of_x, _ = operands_of(rng, graph, form)
        floats = value, of_value / np.sqrt(n), x, of_x / np.sqrt(k)
        operands = [each.astype(jnp.dtype(dtype)) for each in floats]
        acc = jnp.promote_types(dtype, jnp.float32)
        operands.append(rng.uniform(0.5, 2, (len(graph[0].types), heads)).astype(acc))
        moved = rng.normal(size=(graph[0].nodes.by_row.num_rows, heads * n))
        attend, reference = both(form, graph, keeps_scores=False)
        with setting(implementation, dtype):
            step = jax.jit(functools.partial(with_gradients, attend, moved))
            got = step(*operands)
            assert same_bits(ours_of(step(*operands)), ours_of(got))
        with setting("xla", "float64"):
            want = jax.jit(functools.partial(with_gradients, reference, moved))(*wide(operands))
        tolerance = 3 * TOLERANCE[dtype]
        compare(got, want, f"{heads} heads, {k} and {n}", tolerance)


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

    with setting("cuda", "float32"):
        operands = [jnp.asarray(x, jnp.float32) for x in operands_of(rng, graph, form)]

        def train(graph: Graph, *operands: Any) -> Any:
            attend = functools.partial(ours, form, graph, keeps_scores=False, has_rows=has_rows)
            return jax.value_and_grad(functools.partial(loss_of_sums, attend), (0, 1, 2, 3))(
                *operands
            )

        step = jax.jit(lambda *each: train(graph, *each))
        text = step.lower(*operands).as_text()
        assert text.count("_typed_attention") == 2, "one pass each way"
        broken = jax.tree.map(corrupt, matrix), corrupt(jnp.asarray(types))
        jax.block_until_ready(train(broken, *operands))
        # Types alone: those edges are left out.
        of_none = jax.tree.map(lambda x: x, matrix)
        object.__setattr__(of_none, "types", corrupt(matrix.types))
        got = ours(form, (of_none, types), *operands, has_rows=has_rows)
    with setting("xla", "float64"):
        want = plain(form, (of_none, types), *wide(operands))
        compare(got, want, "types", 2e-5)


@on_cuda
def test_scores_of_minus_infinity(rng: np.random.Generator) -> None:
    """They leave an edge out, whatever the slope is."""
    graph = graph_of(rng, 90)
    matrix, types = graph
    value, of_value, *_ = (x.astype(np.float32) for x in operands_of(rng, graph, Form(2, 4, 4)))
    at_dst = rng.normal(size=(len(matrix.types), 2)).astype(np.float32)
    at_dst[rng.random(at_dst.shape) < 0.3] = -np.inf

    def attend(slope: float, value: Any, of_value: Any, at_dst: Any) -> Any:
        operands = value, of_value, None, None, at_dst, None, types, matrix
        return typed_attention(*operands, heads=2, slope=slope, keeps_scores=False)[0]

    def run(slope: float, implementation: str) -> Any:
        with setting(implementation):
            y, pull = jax.vjp(functools.partial(attend, slope), value, of_value, at_dst)
            return y, pull(jnp.cos(y))

    for slope in (0.0, 0.2, -0.5):
        got = run(slope, "cuda")
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))
        compare(got, run(slope, "xla"), f"{slope}", 2e-5)
