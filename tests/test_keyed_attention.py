"""Attention whose scores are made of keys: the op, and the kernel that has them in one pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    SLOPE,
    case_of,
    check_batch,
    check_derivatives,
    check_gradients,
    compare,
)
from op_spec import assert_close, same_bits, setting, stack
from op_suite import IMPLEMENTATIONS, KERNELS
from primitive_cases import needs_kernels

from jax_gnn import Graph, dot_attention, gatv2_attention
from jax_gnn._ops.attention.primitive import attend
from jax_gnn._ops.attention.scores import Dots, Given, Leaky

HEADS, FEATURES = 2, 4
SIZE, COUNT = 12, 40  # two nodes and five edges more are padding
PUBLIC = "gatv2", "dot"
SELF = "gatv2 of values", "dot of values"  # values are keys, too
KINDS = *PUBLIC, *SELF
NAMES = "value", "row_key", "col_key", "factor", "entry_scale"
# What rules tell apart: with and without the weights' factors, and then the vector or the scale.
SUBSETS = NAMES, NAMES[:-1], NAMES[:-2]


def padded_graph(rng: np.random.Generator) -> Graph:
    src, dst = rng.integers(0, SIZE, COUNT), rng.geometric(0.2, COUNT) % SIZE
    return Graph.from_edges(src, dst, num_nodes=SIZE).pad(num_nodes=SIZE + 2, num_edges=COUNT + 5)


def is_dot(kind: str) -> bool:
    return kind.startswith("dot")


def operands_of(rng: np.random.Generator, kind: str, *batch: int) -> dict[str, np.ndarray]:
    """``factor`` is the vector or the scale."""
    rows, width = SIZE + 2, HEADS * FEATURES
    shapes = [(rows, width)] * 3 + [(1, 1 if is_dot(kind) else width), (COUNT + 5, HEADS)]
    floats = (rng.normal(size=(*batch, *shape)) for shape in shapes)
    return dict(zip(NAMES, floats, strict=True))


def ours(kind: str, graph: Graph, operands: Mapping[str, Any]) -> tuple[Any, Any]:
    """The sum, and the logarithm of what its softmax is divided by, 0 where there is nothing."""
    value, row_key, col_key, factor, entry_scale = (operands[name] for name in NAMES)
    key = None if kind in SELF else col_key
    scores = (Dots if is_dot(kind) else Leaky)(row_key, key, factor)
    matrix = graph.matrix(weighted=True)
    y, stats = attend(value, scores, entry_scale, matrix, heads=HEADS, slope=SLOPE)
    log_sum = stats[..., 1]
    return y, jnp.where(log_sum == jnp.inf, 0, stats[..., 0] + jnp.where(log_sum < 9e9, log_sum, 0))


def plain(kind: str, graph: Graph, operands: Mapping[str, Any]) -> tuple[Any, Any]:
    """The same in plain jax.numpy, with arrays of edges."""
    value, row_key, col_key, factor, entry_scale = (operands[name] for name in NAMES)
    rows, cols, size = graph.rows, graph.cols, value.shape[0]
    valid = ((cols >= 0) & (cols < size) & (rows >= 0) & (rows < size))[:, None]
    key = value if kind in SELF else col_key
    left, right = (x[jnp.clip(at, 0, size - 1)] for x, at in ((row_key, rows), (key, cols)))
    z = left + right
    terms = factor * (left * right if is_dot(kind) else jnp.where(z > 0, z, SLOPE * z))
    score = terms.reshape(len(rows), HEADS, FEATURES).sum(2)
    powers = jnp.where(valid, jnp.exp(jnp.where(valid, score, 0)), 0)
    at = jnp.where(valid[:, 0], rows, size)
    sums = jax.ops.segment_sum(powers, at, size + 1)
    weight = powers / jnp.where(sums > 0, sums, 1)[at]
    weight = weight * jnp.where(valid, entry_scale, 0)
    values = value[jnp.clip(cols, 0, size - 1)].reshape(len(rows), HEADS, FEATURES)
    y = jax.ops.segment_sum((weight[..., None] * values).reshape(len(rows), -1), at, size + 1)
    return y[:-1], jnp.log(jnp.where(sums > 0, sums, 1))[:-1]


each_kind = pytest.mark.parametrize("kind", KINDS)
public_kinds = pytest.mark.parametrize("kind", PUBLIC)
on_first = pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:1])
everywhere = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@everywhere
@each_kind
def test_derivatives(rng: np.random.Generator, kind: str, implementation: str) -> None:
    """Results, tangents and gradients; and theirs, which are the same for all implementations."""
    graph, operands, moved = padded_graph(rng), operands_of(rng, kind), operands_of(rng, kind)
    of_gradients = implementation == IMPLEMENTATIONS[0]
    with setting(implementation, "float64"):
        check_derivatives(
            *(ours, plain, kind, graph, operands, moved, SUBSETS), of_gradients=of_gradients
        )


@on_first
@each_kind
def test_in_each_operand_alone(rng: np.random.Generator, kind: str, implementation: str) -> None:
    graph, operands, moved = padded_graph(rng), operands_of(rng, kind), operands_of(rng, kind)
    alone = [(name,) for name in NAMES]
    with setting(implementation, "float64"):
        check_derivatives(*(ours, plain, kind, graph, operands, moved, alone), of_gradients=False)


BATCHES = {"keys": NAMES[1:3], "all": NAMES, "graph": NAMES, **{name: (name,) for name in NAMES}}


@on_first
@each_kind
@pytest.mark.parametrize("batched", BATCHES)
def test_batches(rng: np.random.Generator, kind: str, batched: str, implementation: str) -> None:
    """Of one operand, of several, and of graphs: values and gradients."""
    size, names = 3, BATCHES[batched]
    one, several = operands_of(rng, kind), operands_of(rng, kind, size)
    operands = {name: several[name] if name in names else one[name] for name in NAMES}
    of_graphs = batched == "graph"
    graphs = stack([padded_graph(rng) for _ in range(size)]) if of_graphs else padded_graph(rng)
    # What a kernel gives at once, and what is composed.
    to = NAMES if batched == "all" else NAMES[:-2]
    with setting(implementation, "float64"):
        check_batch(
            *(ours, plain, kind, graphs, operands, names, to),
            graph_axis=0 if of_graphs else None,
        )


@each_kind
def test_batches_of_a_shared_graph_join_the_heads(rng: np.random.Generator, kind: str) -> None:
    """So that one call serves all of them."""
    graph, operands = padded_graph(rng), operands_of(rng, kind, 3)
    axes = {name: None if name == "factor" else 0 for name in NAMES}
    run = jax.vmap(functools.partial(ours, kind, graph), (axes,))
    jaxpr = jax.make_jaxpr(run)({**operands, "factor": operands["factor"][0]})
    heads = [
        equation.params["heads"]
        for equation in jaxpr.jaxpr.eqns
        if equation.primitive.name == "jax_gnn_attention"
    ]
    assert heads == [3 * HEADS]


# --- The public functions ------------------------------------------------------------------------


def attention(kind: str, graph: Graph, left: Any, right: Any, third: Any, **options: Any) -> Any:
    """``third`` is the vector or the values."""
    function = gatv2_attention if kind == "gatv2" else dot_attention
    return function(graph, left, right, third, **options)


@functools.partial(jax.jit, static_argnums=0)
def attended(kind: str, graph: Graph, *arguments: Any, **options: Any) -> Any:
    return attention(kind, graph, *arguments, return_lse=True, **options)


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(
    kind: str, graph: Graph, arguments: Any, options: Any, of_y: Any, of_lse: Any
) -> Any:
    def function(*arguments: Any) -> Any:
        return attention(kind, graph, *arguments, return_lse=True, **options)

    results, pull = jax.vjp(function, *arguments)
    return *results, pull((of_y, of_lse))


def arguments_of(
    rng: np.random.Generator, kind: str, size: int, heads: int, features: int
) -> list[np.ndarray]:
    left, right, value = rng.normal(size=(3, size, heads, features))
    return [left, right, rng.normal(size=(heads, features)) if kind == "gatv2" else value]


def scores_in(function: Callable[..., Any], *operands: Any) -> list[type]:
    """The kinds of scores that its attention has."""
    return [
        type(each.params["tree"].unflatten(each.invars).scores)
        for each in jax.make_jaxpr(function)(*operands).jaxpr.eqns
        if each.primitive.name == "jax_gnn_attention"
    ]


@public_kinds
def test_what_edges_add_to_scores_needs_scores_of_edges(
    rng: np.random.Generator, kind: str
) -> None:
    graph, count = padded_graph(rng), COUNT + 5
    arguments = arguments_of(rng, kind, SIZE + 2, HEADS, FEATURES)
    for options, is_keyed in (
        ({}, True),
        ({"edge_scale": np.ones((count, HEADS)), "return_lse": True}, True),
        ({"edge_bias": np.ones((count, HEADS))}, False),
        ({"edge_features": np.ones((count, HEADS, FEATURES))}, False),
        ({"dst_ids": np.asarray(graph.rows)}, False),
    ):
        found = scores_in(functools.partial(attention, kind, graph, **options), *arguments)
        assert found == [(Leaky if kind == "gatv2" else Dots) if is_keyed else Given]


@everywhere
@public_kinds
def test_no_heads_and_no_features(rng: np.random.Generator, kind: str, implementation: str) -> None:
    graph = padded_graph(rng)
    for heads, features in ((0, 3), (2, 0)):
        arguments = arguments_of(rng, kind, SIZE + 2, heads, features)
        with setting(implementation):
            y, lse = attended(kind, graph, *arguments)
        assert y.shape == (SIZE + 2, heads, features)
        count = np.bincount(np.asarray(graph.rows)[:COUNT], minlength=SIZE + 2)
        with np.errstate(divide="ignore"):
            want = np.broadcast_to(np.log(count)[:, None], (SIZE + 2, heads))
        np.testing.assert_allclose(lse, want, rtol=1e-6)


@everywhere
def test_large_scores(rng: np.random.Generator, implementation: str) -> None:
    """Up to 10,000; they are exact, and of neither sign only."""
    graph = padded_graph(rng)
    query, key, value = arguments_of(rng, "dot", SIZE + 2, HEADS, FEATURES)
    query, key = (np.round(x * 240) / 8 for x in (query, key))
    for sign in (-1, 1):
        operands = [x.astype(np.float32) for x in (sign * query, key, value)]
        with setting(implementation):
            got, _ = attended("dot", graph, *operands, scale=2.0)
        want = case_of("dot", graph, *operands)._replace(factor=2.0).results()[0]
        assert_close(got, want, 1e-5, f"{sign}")


ERRORS = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 0.016}


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "heads", "features", "counts"),
    [
        *(("float32", 1, 64, (3, 90, 900)), ("float32", 4, 8, (900,))),
        *(("float32", 1, 20, (90,)), ("float32", 3, 128, (900,))),
        *(("bfloat16", 2, 64, (90, 900)), ("bfloat16", 1, 40, (3,)), ("float16", 8, 8, (900,))),
        *(("float16", 2, 256, (90,)), ("float64", 8, 4, (900,)), ("float64", 1, 6, (3, 90))),
        *(("float64", 1, 64, (900,)), ("float32", 8, 64, (90,)), ("float32", 1, 128, (90,))),
        *(("float16", 1, 64, (900,)), ("bfloat16", 4, 128, (900,))),
    ],
)
@public_kinds
def test_one_pass(
    rng: np.random.Generator,
    kind: str,
    dtype: str,
    heads: int,
    features: int,
    counts: tuple[int, ...],
) -> None:
    """Values and gradients, with a row and a column that span blocks, and some without edges.

    Heads of more than 16 words of 16 bytes are not for the kernel of one step. Errors are relative
    to what gradients' terms add up to without their signs, as the terms may cancel.
    """
    size = 70
    for count in counts:
        dst = np.where(rng.random(count) < 0.5, 7, rng.geometric(0.05, count) % (size - 3))
        src = np.where(rng.random(count) < 0.3, 11, rng.integers(0, size, count))
        graph = Graph.from_edges(src, dst, num_nodes=size).pad(num_edges=count + 9)
        arguments = [
            np.asarray(x / features**0.25).astype(jnp.dtype(dtype))
            for x in arguments_of(rng, kind, size, heads, features)
        ]
        of_y, of_lse = rng.normal(size=(size, heads, features)), rng.normal(size=(size, heads))
        of_y, acc = of_y.astype(jnp.dtype(dtype)), jnp.promote_types(dtype, np.float32)
        of_lse = of_lse.astype(acc)
        every: list[dict[str, Any]] = [{}, {"edge_scale": rng.uniform(0.5, 2, (count + 9, heads))}]
        if kind == "gatv2":
            value = rng.normal(size=(size, heads, features)).astype(jnp.dtype(dtype))
            every.append({"value": value})
        for options in every:
            with setting(KERNELS[0], dtype):
                got = with_gradients(kind, graph, arguments, options, of_y, of_lse)
                again = with_gradients(kind, graph, arguments, options, of_y, of_lse)
                assert same_bits(got, again)
            y, lse, gradients = got
            case = case_of(kind, graph, *arguments, **options)
            compare((y, lse), case.results()[:2], "results", ERRORS[dtype])
            names = "left", "right", "factor" if kind == "gatv2" else "value"
            same = "right" if kind == "gatv2" and "value" not in options else ""
            check_gradients(case, names, gradients, y, of_y, ERRORS[dtype], of_lse, same=same)


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "heads", "features"),
    [
        *(("float32", 1, 32), ("float32", 1, 64), ("float32", 8, 64), ("float32", 2, 128)),
        *(("float16", 1, 64), ("bfloat16", 2, 256), ("float64", 1, 64)),
    ],
)
@public_kinds
def test_scores_made_anew_have_the_same_bits(
    rng: np.random.Generator, kind: str, dtype: str, heads: int, features: int
) -> None:
    """However large they are: the only edge of a row weighs 1, in the gradient of values, too."""
    count, size = 900, 905
    src = rng.integers(0, size, count)
    graph = Graph.from_edges(src, rng.permutation(count), num_nodes=size)
    arguments = [
        (80 * x if x.ndim > 2 else x).astype(jnp.dtype(dtype))
        for x in arguments_of(rng, kind, size, heads, features)
    ]
    value = rng.normal(size=(size, heads, features)).astype(jnp.dtype(dtype))
    ct = rng.integers(-2, 3, (size, heads, features))

    def attend(value: Any) -> Any:
        if kind == "dot":
            return dot_attention(graph, *arguments[:2], value)
        return gatv2_attention(graph, *arguments, value=value)

    with setting(KERNELS[0], dtype):
        (got,) = jax.jit(lambda value, ct: jax.vjp(attend, value)[1](ct))(
            value, ct.astype(value.dtype)
        )
    want = np.zeros_like(ct)
    np.add.at(want, np.asarray(graph.cols), ct[np.asarray(graph.rows)])
    assert np.array_equal(np.asarray(got, np.float64), want)


@needs_kernels
@public_kinds
def test_a_row_of_many_blocks(rng: np.random.Generator, kind: str) -> None:
    """It is handed on by relays."""
    size, count = 30, 9000
    dst = np.where(rng.random(count) < 0.7, 7, rng.integers(0, size, count))
    graph = Graph.from_edges(rng.integers(0, size, count), dst, num_nodes=size)
    arguments = [x.astype(np.float32) for x in arguments_of(rng, kind, size, HEADS, FEATURES)]
    for value in (None, arguments[0])[: 2 if kind == "gatv2" else 1]:
        options = {} if value is None else {"value": value}
        with setting(KERNELS[0]):
            got = attended(kind, graph, *arguments, **options)
            assert same_bits(got, attended(kind, graph, *arguments, **options))
        want = case_of(kind, graph, *arguments, **options).results()[:2]
        compare(tuple(got), want, "result", 5e-5)  # sums of 6,000 terms


@pytest.mark.parametrize("kind", PUBLIC)
def test_gradients_of_masked_edges(rng: np.random.Generator, kind: str) -> None:
    """Exactly 0 in what only padding reads, whatever that holds."""
    graph = padded_graph(rng)
    arguments = arguments_of(rng, kind, SIZE + 2, HEADS, FEATURES)
    rows = np.asarray(graph.rows)[:COUNT], np.asarray(graph.cols)[:COUNT]
    left, right = (np.setdiff1d(np.arange(SIZE + 2), each) for each in rows)
    arguments[0][left], arguments[1][right] = np.nan, np.inf
    if kind == "dot":
        arguments[2][right] = np.nan

    def total(*arguments: Any) -> Any:
        return jnp.sum(attention(kind, graph, *arguments)[:SIZE])

    with setting(None, "float64"):
        found = jax.jit(jax.grad(total, (0, 1, 2)))(*arguments)
    assert all(np.isfinite(each).all() for each in found)
    assert not np.any(found[0][left]) and not np.any(found[1][right])


@everywhere
def test_keys_that_are_values(rng: np.random.Generator, implementation: str) -> None:
    """An edge reads them once: the same result, and the sum of both gradients."""
    graph = padded_graph(rng)
    query, x, _ = arguments_of(rng, "dot", SIZE + 2, HEADS, FEATURES)

    @jax.jit
    def both(query: Any, x: Any, copy: Any) -> Any:
        def total(query: Any, key: Any, value: Any) -> Any:
            return jnp.sum(jnp.sin(dot_attention(graph, query, key, value)))

        one = jax.value_and_grad(lambda query, x: total(query, x, x), (0, 1))(query, x)
        value, (to_query, *others) = jax.value_and_grad(total, (0, 1, 2))(query, x, copy)
        return one, (value, (to_query, sum(others)))

    with setting(implementation, "float64"):
        compare(*both(query, x, x.copy()), "one array")
