"""Products of sparse and dense: spmm, sddmm and index_segment_reduce."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import (
    OUT_OF_RANGE,
    Case,
    OpSpec,
    assert_close,
    check_second_derivatives,
    on_host,
    random_like,
    same_bits,
    setting,
    stack,
    typed,
    wide,
)
from op_suite import IMPLEMENTATIONS, KERNELS, PLATFORM, CoreChecks, OpSuite
from segment_cases import distinct, finite, largest, normal, smallest, with_far_padding
from spmm_cases import (
    Edges,
    by_hand,
    graph_of,
    keep_apart,
    mean,
    random_edges,
    spmm_reference,
    total,
    unused,
    with_epilogue,
)

import jax_gnn
from jax_gnn import Graph, index_segment_reduce, schedules, sddmm, spmm
from jax_gnn._core.csr import Csr, LastRows, SparseMatrix
from jax_gnn._ops.segment_reduce import primitive
from jax_gnn._ops.segment_reduce.primitive import segment_reduce_vjp
from jax_gnn._ops.spmm.api import spmm_with_halo

on_all = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
on_kernels = pytest.mark.parametrize("implementation", KERNELS)


def of_kernels(widths, of_xla) -> list[tuple[Any, str]]:
    """Widths and implementations: kernels have code for each width, plain XLA has one for all."""
    pairs = [(width, kernel) for width in widths for kernel in KERNELS]
    return pairs + [(width, "xla") for width in of_xla]


# Lanes, threads and blocks of schedules of the kernel "gather".
GATHER_SIZES = ((2, 32, 1), (8, 128, 40), (16, 64, 3), (32, 128, 600))


# --- Descriptions ---------------------------------------------------------------------------------


def spmm_spec(
    *weight,
    heads=None,
    numbers=normal,
    function=spmm,
    reference=spmm_reference,
    bare_ids=False,
    extremum=False,
) -> OpSpec:
    """Describes spmm, with or without weights, or with a weight for each head."""

    def make_case(rng, scenario, features) -> Case:
        edges = random_edges(rng, scenario)
        if bare_ids:
            order = np.argsort(edges.dst, kind="stable")
            edges = edges._replace(src=edges.src[order], dst=edges.dst[order])
        of_heads = () if heads is None else (heads,)
        x = numbers(rng, (edges.num_src, *of_heads, *features))
        operands, padding = [x], [unused(edges.src[edges.valid], edges.num_src, x.ndim)]
        if weight:
            weights = rng.normal(size=(len(edges.src), *of_heads))
            if extremum:
                weights = keep_apart(edges, x, weights, functools.partial(normal, rng))
            operands.append(weights)
            padding.append(~edges.valid.reshape(-1, *[1] * len(of_heads)))
        index = by_hand(edges) if bare_ids else graph_of(edges)
        return Case(index, edges, tuple(operands), tuple(padding))

    axis = 1 if heads is None else 2
    return OpSpec(
        function=function,
        reference=reference,
        make_case=make_case,
        operands=("x", *weight),
        linear=("x", *weight),
        feature_axis=(axis, *[None] * len(weight)),
        result_axis=axis,
    )


def epilogue_spec(*names, heads=None, reduce=total, relu=False) -> OpSpec:
    """Describe spmm with an epilogue of the arguments ``names``, in the order of the kernel.

    A halo holds the sources that are no destinations.
    """

    def make_case(rng, scenario, features) -> Case:
        has_own, has_halo = "self_scale" in names, "halo" in names
        edges = random_edges(rng, scenario, square=has_own)
        if has_halo:
            edges = edges._replace(num_dst=edges.num_src - edges.num_src // 3)
        of_heads = () if heads is None else (heads,)
        features = (*of_heads, *features)
        shapes = {
            "weight": (len(edges.src), *of_heads),
            "self_scale": (edges.num_dst,),
            "out_scale": (edges.num_dst,),
            "residual": (edges.num_dst, *features),
            "bias": features,
            "result_scale": (edges.num_dst,),
            "halo": (edges.num_src - edges.num_dst, *features),
        }
        x = normal(rng, (edges.num_src, *features))
        # Rows that no edge reads are padding, unless own features read them.
        padding = {
            "x": None if has_own else unused(edges.src[edges.valid], edges.num_src, x.ndim),
            "weight": ~edges.valid.reshape(-1, *[1] * len(of_heads)),
        }
        if has_halo:
            mask = unused(edges.src[edges.valid], edges.num_src, x.ndim)
            x, padding["halo"] = x[: edges.num_dst], mask[edges.num_dst :]
            padding["x"] = None if has_own else mask[: edges.num_dst]
        operands = (x, *(normal(rng, shapes[name]) for name in names))
        if relu:  # no result so near to 0 that rounding decides whether it has a gradient
            signs = np.sign(before_relu(edges, *operands))
            operands = tuple(
                operand + signs if name == "residual" else operand
                for name, operand in zip(("x", *names), operands, strict=True)
            )
        return Case(graph_of(edges), edges, operands, tuple(map(padding.get, ("x", *names))))

    def function(graph, x, *operands) -> jax.Array:
        call: Any = spmm
        if "halo" in names:
            num_own, most = x.shape[0], graph.num_edges  # the rest is padding
            by_source = graph.matrix(weighted=True).by_col
            halo_rows = LastRows.of(by_source, num_own, graph.t_indptr[num_own], most)
            call = functools.partial(spmm_with_halo, halo_rows=halo_rows)
        return call(
            graph,
            x,
            reduce="mean" if reduce is mean else "sum",
            activation="relu" if relu else None,
            **dict(zip(names, operands, strict=True)),
        )

    def before_relu(edges, x, *operands) -> np.ndarray:
        epilogue = dict(zip(names, operands, strict=True)) | {"result_scale": None}
        rows = np.concatenate([x, epilogue.pop("halo", x[:0])])
        sums = spmm_reference(edges, rows, epilogue.pop("weight", None), reduce=reduce)
        return with_epilogue(sums, x, **epilogue)

    def reference(edges, *operands) -> np.ndarray:
        result_scale = dict(zip(("x", *names), operands, strict=True)).get("result_scale")
        before = before_relu(edges, *operands)
        return with_epilogue(before, operands[0], result_scale=result_scale, relu=relu)

    axis = 1 if heads is None else 2
    axes = {"x": axis, "residual": axis, "bias": axis - 1, "halo": axis}
    affine = "residual" in names or "bias" in names or relu
    return OpSpec(
        function=function,
        reference=reference,
        make_case=make_case,
        operands=("x", *names),
        linear=() if affine else ("x",),
        feature_axis=tuple(map(axes.get, ("x", *names))),
        result_axis=axis,
        composed=True,
        summed=("bias",),
    )


def sddmm_spec(op, combine, shape=lambda features: features) -> OpSpec:
    """Describes sddmm, with features of a shape made from the one asked for."""

    def make_case(rng, scenario, features) -> Case:
        edges = random_edges(rng, scenario)
        a = rng.normal(size=(edges.num_dst, *shape(features)))
        b = rng.normal(size=(edges.num_src, *shape(features)))
        padding = (
            unused(edges.dst[edges.valid], edges.num_dst, a.ndim),
            unused(edges.src[edges.valid], edges.num_src, b.ndim),
        )
        return Case(graph_of(edges), edges, (a, b), padding)

    def reference(edges, a, b) -> np.ndarray:
        like = combine(a[:0], b[:0])
        result = np.zeros((len(edges.src), *like.shape[1:]), np.result_type(a, b))
        result[edges.valid] = combine(a[edges.dst[edges.valid]], b[edges.src[edges.valid]])
        return result

    return OpSpec(
        function=functools.partial(sddmm, op=op),
        reference=reference,
        make_case=make_case,
        operands=("a", "b"),
        linear=("a", "b") if op in ("dot", "mul") else (),
        feature_axis=(1, 1),
        result_axis=1,
    )


def dot(a, b) -> np.ndarray:
    return (a * b).sum(-1)


GRAPH = Graph.from_edges([0, 1, 1, 3], [0, 0, 1, 1], num_src=4, num_dst=3)
LOOP = Graph.from_edges([0, 1], [1, 0])


def ones(*shape, dtype=np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


# --- The ops and their variants ------------------------------------------------------------------


class TestSpmm(OpSuite):
    vmaps_every_set = True
    spec = spmm_spec("weight", heads=2)


class TestSpmmUnweighted(CoreChecks):
    spec = spmm_spec()


class TestSpmmMean(CoreChecks):
    spec = spmm_spec(
        "weight",
        function=functools.partial(spmm, reduce="mean"),
        reference=functools.partial(spmm_reference, reduce=mean),
    )


class TestSpmmMax(CoreChecks):
    spec = replace(
        spmm_spec(
            "weight",
            heads=2,
            function=finite(functools.partial(spmm, reduce="max")),
            reference=functools.partial(spmm_reference, reduce=largest),
            extremum=True,
        ),
        linear=(),
    )


class TestSpmmMinUnweighted(CoreChecks):
    spec = spmm_spec(
        numbers=distinct,
        function=finite(functools.partial(spmm, reduce="min")),
        reference=functools.partial(spmm_reference, reduce=smallest),
    )


LAST = ("self_scale", "out_scale", "residual", "bias", "result_scale")


class TestEpilogue(OpSuite):
    spec = epilogue_spec("weight", *LAST, relu=True)


class TestEpilogueOfHeads(CoreChecks):
    implementations = KERNELS or IMPLEMENTATIONS
    spec = epilogue_spec("weight", *LAST, heads=2)


class TestScalesOfMean(CoreChecks):
    spec = epilogue_spec("weight", "self_scale", "out_scale", reduce=mean)


class TestUnweightedEpilogue(CoreChecks):
    implementations = KERNELS or IMPLEMENTATIONS
    spec = epilogue_spec("out_scale", "residual", "bias", relu=True)


class TestHalo(CoreChecks):
    implementations = IMPLEMENTATIONS
    spec = epilogue_spec("weight", *LAST, "halo", relu=True)


class TestHaloOfHeads(CoreChecks):
    implementations = KERNELS or IMPLEMENTATIONS
    spec = epilogue_spec("weight", "out_scale", "halo", heads=2)


class TestUnweightedHalo(OpSuite):
    spec = epilogue_spec("self_scale", "halo")


class TestBiasOfMean(CoreChecks):
    spec = epilogue_spec("residual", "bias", reduce=mean, relu=True)


def reduce_by_ids(index, x, weight, **options) -> jax.Array:
    cols, rows, like_segments = index
    return index_segment_reduce(x, cols, rows, like_segments.shape[0], weight, **options)


class TestIndexSegmentReduce(CoreChecks):
    spec = spmm_spec("weight", function=reduce_by_ids, bare_ids=True)


class TestIndexSegmentMax(CoreChecks):
    spec = spmm_spec(
        "weight",
        heads=2,
        function=finite(functools.partial(reduce_by_ids, reduce="max")),
        reference=functools.partial(spmm_reference, reduce=largest),
        bare_ids=True,
        extremum=True,
    )


def as_heads(features) -> tuple[int, int]:
    return int(np.prod(features)), 3


class TestSddmm(OpSuite):
    spec = sddmm_spec("dot", dot, as_heads)


class TestSddmmSub(CoreChecks):
    spec = sddmm_spec("sub", np.subtract)


class TestSddmmMul(CoreChecks):
    spec = sddmm_spec("mul", np.multiply)


# --- What is particular to these ops -------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "implementation"), of_kernels([1, 2, 5, 16, 33, 64, 100, 260], of_xla=[1, 33])
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_dots_of_all_widths(rng, width, dtype, implementation) -> None:
    """One head of any width: the suite has only multiples of 3."""
    case = sddmm_spec("dot", dot, lambda _: (width,)).make_case(rng, "random", ())
    a, b = typed(case.operands, dtype)
    with setting(implementation, dtype):
        got = sddmm(case.index, a, b)
    assert got.dtype == dtype
    edges = case.plain
    want = dot(a.astype(float)[edges.dst], b.astype(float)[edges.src])
    assert_close(got, want, {"float64": 1e-12, "float32": 2e-5, "bfloat16": 6e-2}[dtype], "value")


@on_all
def test_sddmm_add(rng, implementation) -> None:
    """Scores of attention add one number a head of either end, in the wider dtype."""
    graph = graph_of(random_edges(rng, "random"))
    a, b = rng.normal(size=(6, 2)).astype(np.float16), rng.normal(size=(9, 2)).astype(np.float32)
    with setting(implementation):
        got = sddmm(graph, a, b, op="add")
        (to_a, to_b) = jax.grad(lambda a, b: sddmm(graph, a, b, op="add").sum(), (0, 1))(a, b)
    assert got.dtype == np.float32
    assert_close(got, a.astype(float)[graph.rows] + b[graph.cols], 1e-6, "value")
    assert (to_a.dtype, to_b.dtype) == (np.float16, np.float32)
    assert_close(to_a, np.repeat(graph.in_degrees(), 2).reshape(6, 2), 1e-6, "gradient to a")
    assert_close(to_b, np.repeat(graph.out_degrees(), 2).reshape(9, 2), 1e-6, "gradient to b")


def with_holes(rng) -> tuple[Graph, Edges, np.ndarray]:
    """A graph in which sources inside of rows are out of range; its edges; which those are."""
    # Invalidate sources in both halves of the matrix, and sort the half by source again.
    edges = random_edges(rng, "empty")
    graph = on_host(graph_of(edges))
    holes = rng.permutation(len(edges.src)) < 7
    outside = rng.choice([-1, -7, 9, 14, 2**31 - 1, -(2**31)], len(holes)).astype(np.int32)
    cols = np.where(holes, outside, graph.cols)
    t_rows = np.where(holes[graph.t_order], -1, graph.t_rows)
    sort = np.argsort(np.where(t_rows < 0, 99, t_rows), kind="stable")
    transposed = {"t_cols": graph.t_cols[sort], "t_order": graph.t_order[sort]}
    return replace(graph, cols=cols, t_rows=t_rows[sort], **transposed), edges, holes


@on_all
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_padding_inside_rows(rng, reduce, implementation) -> None:
    """Padding is skipped, in value and gradients, as if the graph had been built without it."""
    graph, edges, holes = with_holes(rng)
    x, weight = rng.normal(size=(9, 2, 3)), rng.normal(size=(len(holes), 2))
    cotangent = rng.normal(size=(6, 2, 3))
    valid_edges = edges._replace(src=edges.src[~holes], dst=edges.dst[~holes])
    x[unused(valid_edges.src, 9, 1)] = np.nan
    weight[holes] = np.nan
    op = finite(functools.partial(spmm, reduce=reduce))
    with setting(implementation, "float64"):

        @jax.jit
        def run(graph, weight) -> Any:
            value, vjp = jax.vjp(functools.partial(op, graph), x, weight)
            return value, *vjp(cotangent)

        value, to_x, to_weight = run(graph, weight)
        expected, expected_to_x, expected_to_weight = run(graph_of(valid_edges), weight[~holes])
    reference = {"sum": total, "mean": mean, "max": largest}[reduce]
    want = spmm_reference(valid_edges, x, weight[~holes], reduce=reference)
    assert_close(value, want, 1e-12, "value")
    assert_close(expected, want, 1e-12, "value without")
    assert_close(to_x, expected_to_x, 1e-12, "gradient to x")
    assert_close(to_weight[~holes], expected_to_weight, 1e-12, "gradient to the weights")
    assert (np.asarray(to_weight)[holes] == 0).all()


@on_all
@pytest.mark.parametrize("op", ["dot", "add", "sub", "mul"])
def test_sddmm_of_padding_inside_rows(rng, op, implementation) -> None:
    graph, edges, holes = with_holes(rng)
    a, b = rng.normal(size=(6, 2, 3)), rng.normal(size=(9, 2, 3))
    a[unused(edges.dst[~holes], 6, 1)] = np.nan
    b[unused(edges.src[~holes], 9, 1)] = np.nan
    combine = {"dot": dot, "add": np.add, "sub": np.subtract, "mul": np.multiply}[op]
    want = combine(a[edges.dst], b[edges.src])
    want[holes] = 0
    with setting(implementation, "float64"):
        value, vjp = jax.vjp(functools.partial(sddmm, graph, op=op), a, b)
        spoilt = np.where(holes.reshape(-1, *[1] * (value.ndim - 1)), 1e30, np.ones(value.shape))
        gradients = vjp(spoilt)
    assert_close(value, want, 1e-12, "value")
    assert (np.asarray(value)[holes] == 0).all()
    assert all(np.abs(gradient).max() < 1e3 for gradient in gradients)


@on_all
def test_no_heads(implementation) -> None:
    graph = Graph.from_edges([0, 1, 1], [1, 0, 1], num_nodes=2)
    x, weight = jnp.zeros((2, 0, 3)), jnp.zeros((3, 0))
    with jax_gnn.implementation(implementation):
        for reduce in ("sum", "mean", "max", "min"):
            function = functools.partial(spmm, graph, reduce=reduce)
            y, pull = jax.vjp(function, x, weight)
            assert y.shape == x.shape
            assert [ct.shape for ct in pull(y)] == [x.shape, weight.shape]
            assert jax.vmap(function)(x[None], weight[None]).shape == (1, *x.shape)
        y, pull = jax.vjp(functools.partial(sddmm, graph), x, x)
        assert y.shape == weight.shape
        assert [ct.shape for ct in pull(y)] == [x.shape, x.shape]


@on_all
@pytest.mark.parametrize("x64", [False, True])
def test_hand_made_graphs_beyond_32_bits(rng, x64, implementation) -> None:
    """Ids out of range are padding, whatever JAX makes of them when it indexes."""
    edges = random_edges(rng, "random")
    graph = graph_of(edges).pad(num_edges=40)
    far_graph = with_far_padding(rng, graph)
    x, weight = normal(rng, (edges.num_src, 3)), normal(rng, (40,))
    rows = normal(rng, (edges.num_dst, 3))
    operands = typed((x, weight, rows), "float32")

    def results(graph, x, weight, rows) -> list[Any]:
        reduced = [spmm(graph, x, weight, reduce=reduce) for reduce in ("sum", "max")]
        reduced += [
            spmm(graph, x, reduce="mean"),
            index_segment_reduce(x, graph.cols, graph.rows, 6),
        ]
        dots = [sddmm(graph, rows, x, op=op) for op in ("dot", "add")]
        return [jnp.where(jnp.isfinite(y), y, 0) for y in (*reduced, *dots)]

    with setting(implementation, "int64" if x64 else "float32"):
        got, vjp = jax.vjp(functools.partial(results, far_graph), *operands)
        want, expected_vjp = jax.vjp(functools.partial(results, graph), *operands)
        cotangents = [jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape) for y in want]
        got, want = (*got, *vjp(cotangents)), (*want, *expected_vjp(cotangents))
    for i, (result, expected) in enumerate(zip(got, want, strict=True)):
        assert_close(result, expected, 1e-5, f"result or gradient {i}")


@on_all
def test_edges_of_no_nodes(implementation) -> None:
    """A graph of padding alone, without nodes to read, gives the values of empty rows."""
    nothing = Graph.from_edges(np.zeros(0, int), np.zeros(0, int), num_src=0, num_dst=2)
    graph = nothing.pad(num_edges=5)
    x, weight = ones(0, 3), ones(5)
    with setting(implementation):
        for name in ("sum", "mean", "max", "min"):
            y, vjp = jax.vjp(functools.partial(spmm, graph, reduce=name), x, weight)
            empty = {"max": -np.inf, "min": np.inf}.get(name, 0)
            assert (np.asarray(y) == np.full((2, 3), empty)).all()
            to_x, to_weight = vjp(jnp.ones_like(y))
            assert to_x.shape == (0, 3)
            assert (np.asarray(to_weight) == 0).all()
        assert (np.asarray(sddmm(graph, ones(2, 3), x)) == np.zeros(5)).all()


@on_all
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("weighted", [False, True])
def test_ties_share_the_gradient(rng, name, weighted, implementation) -> None:
    """Tied messages share the gradient, and so do x and the weights."""
    edges = random_edges(rng, "duplicates")
    graph, size = graph_of(edges), len(edges.src)
    x = rng.integers(-1, 2, (9, 4)).astype(float)
    weight = rng.choice([-1.0, 1.0, 2.0], size) if weighted else np.ones(size)
    messages = weight[:, None] * x[edges.src]
    cotangent = rng.normal(size=(6, 4))
    share = np.zeros((size, 4))  # of the cotangent, for each message
    for row in np.unique(edges.dst):
        is_in_row = edges.dst == row
        top = messages[is_in_row].max(0) if name == "max" else messages[is_in_row].min(0)
        tied = is_in_row[:, None] & (messages == top)
        share += tied / tied.sum(0) * cotangent[row]
    expected_x = np.zeros((9, 4))
    np.add.at(expected_x, edges.src, weight[:, None] * share)
    with setting(implementation, "float64"):

        def op(x, weight) -> jax.Array:
            return finite(spmm)(graph, x, weight if weighted else None, reduce=name)

        to_x, to_weight = jax.vjp(op, x, weight)[1](cotangent)
    assert_close(to_x, expected_x, 1e-12, "gradient to x")
    if weighted:
        assert_close(to_weight, (share * x[edges.src]).sum(1), 1e-12, "gradient to the weights")


@on_all
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_accumulate_in_float32(dtype, implementation) -> None:
    count = 2**15
    graph = Graph.from_edges(np.arange(count), np.zeros(count, int), num_src=count, num_dst=2)
    x, weight = jnp.ones((count, 3), dtype), jnp.full(count, 0.5, dtype)
    with setting(implementation):
        assert (np.asarray(spmm(graph, x)[0]) == count).all()
        assert (np.asarray(spmm(graph, x, weight)[0]) == count / 2).all()
        assert (np.asarray(spmm(graph, x, weight, reduce="mean")[0]) == 0.5).all()
        transposed = graph.transpose()
        long = sddmm(transposed, jnp.ones((count, 5000), dtype)[:, :3], jnp.ones((2, 3), dtype))
        assert (np.asarray(long) == 3).all()
        wide = jnp.ones((2, count), dtype)
        pair = Graph.from_edges([0], [1], num_nodes=2)
        assert (np.asarray(sddmm(pair, wide, wide)) == count).all()


@on_all
def test_weighted_maximum_of_half_types(rng, implementation) -> None:
    """Messages are compared before they are rounded to the type of x."""
    graph = Graph.from_edges([0, 1], [0, 0], num_src=2, num_dst=1)
    x, weight = jnp.ones((2, 1), jnp.bfloat16), np.array([1, 1 + 2**-12], np.float32)
    with setting(implementation):
        gradient = jax.grad(lambda w: spmm(graph, x, w, reduce="max").sum().astype(float))(weight)
    np.testing.assert_array_equal(gradient, [0, 1])


# --- Both gradients at once ----------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["where they are", "moved"])
def moved(request, monkeypatch) -> None:
    """Permute weights before CUDA kernels, as for large arrays."""
    if request.param:
        monkeypatch.setattr(primitive, "_MIN_PERMUTED_WEIGHTS", 0)


also_moved = pytest.mark.usefixtures("moved")


def long_tailed(rng) -> tuple[Graph, Edges, np.ndarray]:
    """A padded graph with a giant source, empty rows both ways and holes inside of rows."""
    # One source has 40 % of the edges; the last rows and columns have none.
    count = 700
    src = np.where(rng.random(count) < 0.4, 5, rng.integers(0, 30, count))
    dst = rng.integers(0, 19, count)
    edges = Edges(src, dst, 41, 23)
    # Sort as a graph does, so that holes keep their positions.
    order = np.lexsort((src, dst))
    edges = edges._replace(src=src[order], dst=dst[order])
    holes = np.append(rng.random(count) < 0.05, np.ones(13, bool))
    valid_edges = edges._replace(src=np.where(holes[:count], -1, edges.src))
    graph = on_host(graph_of(edges).pad(num_edges=count + 13))
    t_rows = np.where(holes[graph.t_order], -1, graph.t_rows)
    sort = np.argsort(np.where(t_rows < 0, 99, t_rows), kind="stable")
    transposed = {"t_cols": graph.t_cols[sort], "t_order": graph.t_order[sort]}
    cols = np.where(holes, -1, graph.cols)
    return replace(graph, cols=cols, t_rows=t_rows[sort], **transposed), valid_edges, holes


@pytest.mark.parametrize(
    ("heads_and_depth", "implementation"),
    of_kernels(
        [
            *((1, depth) for depth in (1, 2, 4, 7, 20, 32, 33, 64, 100, 128, 132, 260)),
            *((heads, depth) for heads in (2, 3, 8) for depth in (1, 4, 5, 12, 16, 64)),
        ],
        of_xla=[(1, 1), (1, 33), (3, 5)],
    ),
    ids=str,
)
@also_moved
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_both_gradients(rng, heads_and_depth, dtype, implementation) -> None:
    """Gradients are right for all widths, with NaN in all padding."""
    heads, depth = heads_and_depth
    graph, edges, holes = long_tailed(rng)
    # NaN in all that must not be read.
    valid = np.flatnonzero(~holes)
    src, dst = edges.src[valid], edges.dst[valid]
    x = rng.normal(size=(41, heads, depth))
    cotangent = rng.normal(size=(23, heads, depth))
    weight = rng.normal(size=(len(holes), heads))
    x[unused(src, 41, 1)] = np.nan
    cotangent[unused(dst, 23, 1)] = np.nan
    weight[holes] = np.nan
    x, cotangent = typed((x, cotangent), dtype)
    (weight,) = typed((weight,), "float64" if dtype == "float64" else "float32")
    with setting(implementation, dtype):
        to_x, to_weight = jax.jit(
            lambda graph, x, weight, ct: jax.vjp(functools.partial(spmm, graph), x, weight)[1](ct)
        )(graph, x, weight, cotangent)
    assert (to_x.dtype, to_weight.dtype) == (x.dtype, weight.dtype)
    # The reference in float64, by unbuffered additions.
    messages = weight.astype(float)[valid][..., None] * cotangent.astype(float)[dst]
    expected_x = np.zeros(x.shape)
    np.add.at(expected_x, src, messages)
    expected_weight = np.zeros(weight.shape)
    expected_weight[valid] = dot(cotangent.astype(float)[dst], x.astype(float)[src])
    tolerance = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 1e-2}[dtype]
    assert_close(to_x, expected_x, tolerance, "gradient to x")
    assert_close(to_weight, expected_weight, tolerance, "gradient to the weights")


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_one_pass_where_both_gradients_are_wanted(rng, reduce) -> None:
    """A gradient that is used alone has a kernel of its own."""
    graph = graph_of(random_edges(rng, "random"))
    x, weight = rng.normal(size=(9, 5)), rng.normal(size=24)

    def energy(x, weight) -> jax.Array:
        return jnp.sum(jnp.sin(spmm(graph, x, weight, reduce=reduce)))

    def primitives(expected) -> list[str]:
        program = jax.make_jaxpr(jax.grad(energy, expected))(x, weight).jaxpr
        names = (equation.primitive.name for equation in program.eqns)
        return sorted(name for name in names if name.startswith("jax_gnn_"))

    # A mean needs the counts of its rows, by a further sum.
    counts = ["jax_gnn_segment_reduce"] * (reduce == "mean")
    forward = [*counts, "jax_gnn_segment_reduce"]
    assert primitives((0, 1)) == [*forward, "jax_gnn_segment_reduce_vjp"]
    assert primitives(0) == [*forward, "jax_gnn_segment_reduce"]
    assert primitives(1) == ["jax_gnn_sddmm", *forward]
    with setting("xla", "float64"):
        gradients = jax.grad(energy, (0, 1))(x, weight)
        for i in range(2):
            assert_close(jax.grad(energy, i)(x, weight), gradients[i], 1e-12, "gradient")


def gradients_reference(edges, x, weight, cotangent) -> np.ndarray:
    """Return the gradients of spmm to x and to weights of each head, concatenated."""
    to_x = spmm_reference(
        Edges(edges.dst, edges.src, edges.num_dst, edges.num_src), cotangent, weight
    )
    to_weight = np.zeros_like(weight)
    src, dst = edges.src[edges.valid], edges.dst[edges.valid]
    to_weight[edges.valid] = (x[src] * cotangent[dst]).sum(-1)
    return np.concatenate([to_x.ravel(), to_weight.ravel()])


@on_all
@pytest.mark.parametrize("heads", [1, 2])
def test_derivatives_of_both_gradients(rng, heads, implementation) -> None:
    """Derivatives to third order, transposes and batches are those of two separate gradients."""
    edges = random_edges(rng, "padding")
    graph = graph_of(edges)
    x, cotangent = rng.normal(size=(9, heads, 3)), rng.normal(size=(6, heads, 3))
    weight = rng.normal(size=(24, heads))

    @jax.jit
    def gradients(x, weight, cotangent) -> Any:
        return jax.vjp(functools.partial(spmm, graph), x, weight)[1](cotangent)

    @jax.jit
    def apart(x, weight, cotangent) -> Any:
        (to_x,) = jax.vjp(lambda x: spmm(graph, x, weight), x)[1](cotangent)
        (to_weight,) = jax.vjp(lambda weight: spmm(graph, x, weight), weight)[1](cotangent)
        return to_x, to_weight

    def close(got, want, what) -> None:
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert_close(a, b, 1e-12, what)

    operands = x, weight, cotangent
    tangents = random_like(rng, operands, "float64")
    spec = OpSpec(
        function=lambda graph, *operands: jnp.concatenate(
            [jnp.ravel(gradient) for gradient in gradients(*operands)]
        ),
        reference=gradients_reference,
        make_case=lambda *_: Case(graph, edges, operands, (None, None, None)),
        operands=("x", "weight", "cotangent"),
    )
    with setting(implementation, "float64"):
        check_second_derivatives(spec, rng, spec.make_case(), 1e-12)
        for expected in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):

            def energy(function, *operands) -> jax.Array:
                return sum(jnp.sum(jnp.sin(y)) for y in function(*operands))

            results = [
                jax.jit(jax.grad(functools.partial(energy, function), expected))(*operands)
                for function in (gradients, apart)
            ]
            close(*results, f"gradient to {expected}")
            # Batches of the same operands, against a loop.
            axes = [0 if i in expected else None for i in range(3)]
            batch = [
                np.stack([operand, 2 * operand + 1]) if axis == 0 else operand
                for operand, axis in zip(operands, axes, strict=True)
            ]
            mapped = jax.jit(jax.vmap(gradients, axes))(*batch)
            loop = [
                apart(*(b if axis is None else b[i] for b, axis in zip(batch, axes, strict=True)))
                for i in range(2)
            ]
            close(mapped, stack(loop), f"mapped over {expected}")
        for results in (tangents[:2], (tangents[0], None), (None, tangents[1])):
            cts = [
                jnp.zeros_like(operand) if ct is None else ct
                for ct, operand in zip(results, operands, strict=False)
            ]

            def linear(cotangent, results=results) -> Any:
                pairs = zip(results, gradients(x, weight, cotangent), strict=True)
                return [y for ct, y in pairs if ct is not None]

            (back_ct,) = jax.linear_transpose(linear, cotangent)(
                [c for c in results if c is not None]
            )
            want = spmm(graph, cts[0], weight) + spmm(graph, x, cts[1])
            assert_close(back_ct, want, 1e-12, "transposed")


# --- Programs ------------------------------------------------------------------------------------


def sizes(jaxpr) -> Iterator[int]:
    """Yield the sizes of all arrays of a program."""
    for equation in jaxpr.eqns:
        yield from (int(np.prod(v.aval.shape)) for v in equation.outvars)
        for parameter in jax.tree.leaves(
            equation.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")
        ):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from sizes(inner)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("heads", [(), (4,)])
def test_no_array_of_messages(rng, reduce, heads) -> None:
    """Values, gradients and second derivatives form no array of messages."""
    graph = Graph.from_edges(*rng.integers(0, 20, (2, 500)), num_nodes=20)
    x, weight = ones(20, *heads, 16), ones(500, *heads)

    def energy(x, weight) -> jax.Array:
        return jnp.sum(finite(spmm)(graph, x, weight, reduce=reduce) ** 3)

    def derivatives(x, weight) -> Any:
        first = jax.grad(energy, (0, 1))
        return first(x, weight), jax.jvp(first, (x, weight), (x, weight))[1]

    # Messages would be 500 rows: more than all arrays of nodes and weights.
    program = jax.make_jaxpr(derivatives)(x, weight).jaxpr
    size_limit = max(x.size, weight.size)
    assert max(sizes(program)) <= size_limit < 500 * x[0].size


def test_sorting_is_for_the_gradient_only(rng) -> None:
    """index_segment_reduce sorts ids for its backward pass; without one, nothing is sorted."""
    x, ids = ones(9, 3), np.sort(rng.integers(0, 9, 30)).astype(np.int32)

    def op(x, index) -> jax.Array:
        return index_segment_reduce(x, index, ids, 9)

    def gradient(x, index) -> jax.Array:
        return jax.grad(lambda x: jnp.sum(op(x, index) ** 2))(x)

    for function, sorts in ((op, False), (gradient, True)):
        text = jax.jit(function).lower(x, ids[::-1]).compile().as_text()
        # Metadata, and tables of frames, may name functions of tests that were traced before.
        lines = [line.partition("metadata=")[0] for line in text.splitlines() if " = " in line]
        assert any("segment_order" in line or "sort(" in line for line in lines) == sorts


@on_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_same_bits_in_100_runs(rng, reduce, dtype, implementation) -> None:
    """Value and gradients, alone and under vmap over features, weights and graphs."""
    count, nodes = 6000, 500
    # Long tails make blocks share rows, where an order of additions could vary.
    tail = np.minimum(rng.geometric(0.01, (2, 2, count)), nodes - 1)
    graphs = [Graph.from_edges(*ids, num_nodes=nodes) for ids in tail]
    x = rng.normal(size=(2, nodes, 2, 9)).astype(jnp.dtype(dtype))
    weight = rng.normal(size=(2, count, 2)).astype(jnp.dtype(dtype))

    def results(graph, x, weight) -> Any:
        op = finite(functools.partial(spmm, reduce=reduce))
        value, vjp = jax.vjp(functools.partial(op, graph), x, weight)
        return value, vjp(jnp.cos(value)), sddmm(graph, value, x)

    single, mapped = jax.jit(results), jax.jit(jax.vmap(results))
    stacked = jax.tree.map(lambda *ids: np.stack(ids), *graphs)
    with setting(implementation, dtype):
        want, expected = single(graphs[0], x[0], weight[0]), mapped(stacked, x, weight)
        for _ in range(99):
            assert same_bits(single(graphs[0], x[0], weight[0]), want)
            assert same_bits(mapped(stacked, x, weight), expected)


@on_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("heads", [None, 1, 4])
@pytest.mark.parametrize(
    "schedule",
    [
        *(("gather", *sizes) for sizes in GATHER_SIZES),
        ("step", 8, 256, 16),
        *(("walk", lanes, 128, blocks) for lanes, blocks in ((1, 1), (8, 3), (32, 500))),
    ],
)
def test_sums_with_kernels_of_their_own(rng, schedule, heads, dtype, implementation) -> None:
    """Sums by each kernel are those of the reference: long runs, gaps and padding."""
    # A row with a quarter of the edges, a geometric tail, and padding in rows and columns.
    count, nodes, of_heads = 4_000, 700, () if heads is None else (heads,)
    src, dst = np.minimum(rng.geometric(0.01, (2, count)), nodes - 2)
    dst[: count // 4] = 300
    src, dst = (
        np.where(rng.random(count) < 0.03, rng.choice([-1, nodes], count), ids)
        for ids in (src, dst)
    )
    edges = Edges(src, dst, nodes, nodes)
    order = np.lexsort((src, dst, ~edges.valid))
    edges = edges._replace(src=src[order], dst=dst[order])
    graph = graph_of(edges)
    x = rng.normal(size=(nodes, *of_heads, 32 if heads is None else 8))
    weight = None if heads is None else rng.normal(size=(count, *of_heads))
    cotangent = rng.normal(size=x.shape)
    x[unused(edges.src[edges.valid], nodes, 1)] = np.nan
    cotangent[unused(edges.dst[edges.valid], nodes, 1)] = np.nan
    if weight is not None:
        weight[~edges.valid] = np.nan
    with setting(implementation, dtype), schedules.use(schedules.Schedule(*schedule)):
        x, cotangent = typed((x, cotangent), dtype)
        weight = None if weight is None else typed((weight,), dtype)[0]
        value, vjp = jax.vjp(lambda x: spmm(graph, x, weight), x)
        (to_x,) = vjp(cotangent)
        means = spmm(graph, x, weight, reduce="mean")
        top, vjp = jax.vjp(lambda x: finite(spmm)(graph, x, weight, reduce="max"), x)
        (top_to_x,) = vjp(cotangent)
    with setting("xla", dtype):
        expected_top, vjp = jax.vjp(lambda x: finite(spmm)(graph, x, weight, reduce="max"), x)
        (expected_top_to_x,) = vjp(cotangent)
    exact = [
        None if operand is None else np.asarray(operand, float)
        for operand in (x, weight, cotangent)
    ]
    reversed_edges = edges._replace(src=edges.dst, dst=edges.src)
    limit = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 2e-2}[dtype]
    want = spmm_reference(edges, exact[0], exact[1])
    assert_close(value, want, limit, "value")
    assert_close(to_x, spmm_reference(reversed_edges, exact[2], exact[1]), limit, "gradient to x")
    want = spmm_reference(edges, exact[0], exact[1], reduce=mean)
    assert_close(means, want, limit, "mean")
    assert_close(top, expected_top, limit, "maximum")
    assert_close(top_to_x, expected_top_to_x, limit, "gradient of the maximum")


@on_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("heads", [None, 1, 4])
@pytest.mark.parametrize("schedule", GATHER_SIZES)
def test_rows_of_two_arrays(rng, schedule, heads, dtype, implementation) -> None:
    """The kernel reads rows, wide or narrow, from both arrays without a copy."""
    count, num_own, num_halo = 4_000, int(rng.integers(300, 600)), int(rng.integers(1, 300))
    of_heads = () if heads is None else (heads,)
    src = rng.integers(-1, num_own + num_halo, count)
    dst = np.minimum(rng.geometric(0.01, count), num_own - 1)
    order = np.lexsort((src, dst, src < 0))
    edges = Edges(src[order], dst[order], num_own + num_halo, num_own)
    graph = graph_of(edges)
    halo_rows = LastRows.of(
        graph.matrix(weighted=True).by_col,
        num_own,
        graph.t_indptr[num_own],
        int((src >= num_own).sum()) + 9,
    )
    width = 3 if rng.random() < 0.2 else 32 // (heads or 1)
    x, halo, cotangent = (
        rng.normal(size=(size, *of_heads, width)) for size in (num_own, num_halo, num_own)
    )
    weight = None if heads is None else rng.normal(size=(count, *of_heads))
    scale = rng.uniform(0.5, 1, num_own)
    with setting(implementation, dtype), schedules.use(schedules.Schedule("gather", *schedule)):
        x, halo, cotangent = typed((x, halo, cotangent), dtype)
        weight = None if weight is None else typed((weight,), dtype)[0]
        call = functools.partial(
            spmm_with_halo, graph, weight=weight, halo_rows=halo_rows, self_scale=2
        )
        value, vjp = jax.vjp(lambda x, halo: call(x, halo=halo, out_scale=scale), x, halo)
        to_x, to_halo = vjp(cotangent)
    x, halo, cotangent = (np.asarray(operand, float) for operand in (x, halo, cotangent))
    weight = None if weight is None else np.asarray(weight, float)
    by_row = scale.reshape(-1, *[1] * (x.ndim - 1))
    limit = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 2e-2, "float16": 4e-3}[dtype]
    want = spmm_reference(edges, np.concatenate([x, halo]), weight)
    assert_close(value, by_row * (want + 2 * x), limit, "value")
    reversed_edges = edges._replace(
        src=edges.dst, dst=edges.src, num_src=edges.num_dst, num_dst=edges.num_src
    )
    want = spmm_reference(reversed_edges, by_row * cotangent, weight)
    want[:num_own] += 2 * by_row * cotangent
    assert_close(to_x, want[:num_own], limit, "gradient to x")
    assert_close(to_halo, want[num_own:], limit, "gradient to the halo")


@also_moved
@on_kernels
@pytest.mark.skipif("cuda" not in KERNELS, reason="elsewhere both gradients are two kernels")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize(
    "schedule",
    [
        *(("gather", *sizes) for sizes in ((8, 128, 3), (16, 64, 40), (32, 128, 600))),
        *(("step", lanes, 256, 48) for lanes in (8, 16, 32)),
    ],
)
def test_both_gradients_with_kernels_of_their_own(
    rng, schedule, heads, dtype, implementation
) -> None:
    """Weights are in the order of entries, in another order, or in one that is no permutation."""
    count, nodes, width = 3_000, 700, 28 if heads == 1 else 32
    rows, cols = np.minimum(rng.geometric(0.01, (2, count)), nodes - 2)
    rows[: count // 4] = 300
    rows[count // 2 :][rng.random(count - count // 2) < 0.03] = -1
    cols[rng.random(count) < 0.03] = nodes
    rows, cols = np.sort(rows).astype(np.int32), cols.astype(np.int32)
    shuffled = rng.permutation(count).astype(np.int32)
    # An order with repeated and missing weights, which a hand-made graph may have.
    broken = np.where(rng.random(count) < 0.3, np.roll(shuffled, 1), shuffled)
    broken[::50] = count
    x, ct = (rng.normal(size=(nodes, width)) for _ in range(2))
    valid = (rows >= 0) & (cols < nodes)
    x[unused(rows[valid], nodes, 1)] = np.nan
    ct[unused(cols[valid], nodes, 1)] = np.nan
    limit = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 2e-2}[dtype]
    accumulator = "float64" if dtype == "float64" else "float32"
    by_head = (nodes, heads, width // heads)
    with setting(implementation, dtype), schedules.use(schedules.Schedule(*schedule)):
        x, ct = typed((x, ct), dtype)
        (weight,) = typed((rng.normal(size=(count, heads)),), accumulator)
        for order in (None, shuffled, broken):
            at = np.arange(count) if order is None else order
            present = valid & (at < count)
            by_col = Csr(rows, cols, order, num_rows=nodes)
            matrix = SparseMatrix(Csr(rows, cols, num_rows=nodes), by_col)
            # Gradients that a kernel leaves unwritten would show the fill.
            with filled_memory(0x5A):
                gradients = jax.jit(lambda *operands: segment_reduce_vjp(*operands))
                only_x = jax.jit(
                    lambda weight, ct, matrix: primitive.segment_reduce(
                        ct, weight, matrix.T, reduce="sum", heads=heads
                    )
                )
                to_x, to_weight = map(np.asarray, gradients(x, weight, ct, matrix))
                alone = np.asarray(only_x(weight, ct, matrix))
            wide_ct, wide_x = (np.asarray(operand, float).reshape(by_head) for operand in (ct, x))
            src, dst, to = rows[present], cols[present], at[present]
            want = np.zeros(by_head)
            np.add.at(want, src, weight.astype(float)[to][:, :, None] * wide_ct[dst])
            assert_close(to_x, want.reshape(nodes, width), limit, "gradient to x")
            assert_close(alone, want.reshape(nodes, width), limit, "gradient to x alone")
            dots = (wide_ct[dst] * wide_x[src]).sum(-1)
            # Weights that several entries name have no defined gradient.
            once = np.bincount(at[at < count], minlength=count) <= 1  # of others it is any
            want = np.zeros((count, heads))
            want[to] = dots
            assert np.isfinite(to_weight).all()
            assert (to_weight[~np.isin(np.arange(count), to)] == 0).all()
            assert_close(to_weight[once], want[once], 1e-5, "gradient to the weights")
            assert (order is broken) == (not once.all())


@contextlib.contextmanager
def filled_memory(byte) -> Iterator[None]:
    """Fill fresh memory, so that reads of unwritten memory show in results."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for value in (byte, 0):
        if mallopt is not None:
            mallopt(-6, value)  # M_PERTURB
        if value:
            yield


# --- Epilogues -----------------------------------------------------------------------------------


def long_runs_and_gaps(rng, nodes, count) -> Edges:
    """A giant row, rows without edges between others and at both ends, and padding."""
    src, dst = rng.integers(0, nodes, (2, count))
    # Every third row at most has edges, and a row in the middle a third of them.
    dst[: count // 3] = nodes // 2
    dst = np.clip(dst // 3 * 3, 3, nodes - 5)
    for ids in (src, dst):
        ids[rng.random(count) < 0.05] = rng.choice([*OUT_OF_RANGE, nodes])
    edges = Edges(src, dst, nodes, nodes)
    order = np.lexsort((src, dst, ~edges.valid))
    return edges._replace(src=src[order], dst=dst[order])


@on_all
@pytest.mark.parametrize("count", [3_000, 100, 0])  # of 400 nodes: where most are empty, too
@pytest.mark.parametrize(
    ("width", "schedule"),
    [
        *((width, None) for width in (1, 3, 5, 33, 64, 100)),
        *(
            (64, ("gather", *sizes))
            for sizes in [(2, 32, 1), (8, 128, 40), (16, 64, 3), (32, 128, 600)]
        ),
        *((width, ("walk", 4, 64, 3)) for width in (33, 64)),
    ],
)
def test_epilogues(rng, width, schedule, count, implementation) -> None:
    # Random subsets of the epilogue, all of it first, for each dtype.
    nodes, limits = 400, {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 1e-2}
    edges = long_runs_and_gaps(rng, nodes, count)
    graph = graph_of(edges)
    forced = None if schedule is None else schedules.Schedule(*schedule)
    for number, dtype in enumerate([*limits, *limits]):
        weight = rng.normal(size=count) if rng.random() < 0.5 else None
        reduce = rng.choice(["sum", "mean"])
        some = {
            "self_scale": rng.normal(size=nodes if rng.random() < 0.7 else ()),
            "out_scale": rng.normal(size=nodes if rng.random() < 0.7 else ()),
            "residual": typed((normal(rng, (nodes, width)),), dtype)[0],
            "bias": normal(rng, (width,)),
            "result_scale": rng.normal(size=nodes if rng.random() < 0.7 else ()),
            "activation": "relu",
        }
        if number > 0:
            some = {name: operand for name, operand in some.items() if rng.random() < 0.5}
        (x,) = typed((normal(rng, (nodes, width)),), dtype)
        if "self_scale" not in some:
            x[unused(edges.src[edges.valid], nodes, 1)] = np.nan
        if weight is not None:
            weight[~edges.valid] = np.nan
        with setting(implementation, dtype), schedules.use(forced):
            got = spmm(graph, x, weight, reduce=reduce, **some)
            assert got.dtype == dtype
        relu = some.pop("activation", None) is not None
        x, *operands = wide((x, *some.values()))
        want = spmm_reference(edges, x, weight, reduce=mean if reduce == "mean" else total)
        want = with_epilogue(want, x, **dict(zip(some, operands, strict=True)), relu=relu)
        assert_close(got, want, limits[dtype], f"{dtype}, {reduce}, {sorted(some)}, relu {relu}")


@on_all
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_epilogue_of_extremum(rng, dtype, reduce, implementation) -> None:
    edges = random_edges(rng, "giant", square=True)
    graph = graph_of(edges)
    x, residual = typed(normal(rng, (2, edges.num_dst, 3)), dtype)
    with setting(implementation, dtype):
        plain = spmm(graph, x, reduce=reduce)
        epilogue = {"self_scale": 2, "out_scale": 0.5, "residual": residual, "bias": ones(3)}
        got = spmm(graph, x, reduce=reduce, activation="relu", **epilogue)
    # Rows without edges stay infinite through the epilogue.
    some = np.isfinite(np.asarray(plain, float)[:, 0])
    assert some.any() and not some.all()
    wide = [np.asarray(operand, float) for operand in (plain, x, residual)]
    # All of the epilogue, by hand.
    want = np.maximum((wide[0] + 2 * wide[1]) / 2 + wide[2] + 1, 0)
    assert_close(np.asarray(got)[some], want[some], 1e-2 if dtype == "bfloat16" else 1e-6, reduce)
    np.testing.assert_array_equal(np.asarray(got, float)[~some], want[~some])


@on_all
@pytest.mark.parametrize("activation", ["silu", "gelu", "tanh"])
def test_other_activations(rng, activation, implementation) -> None:
    edges = random_edges(rng, "random", square=True)
    x = normal(rng, (edges.num_dst, 4))
    function = {
        "silu": lambda y: y / (1 + np.exp(-y)),
        "gelu": lambda y: y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))),
        "tanh": np.tanh,
    }[activation]
    with setting(implementation, "float64"):
        got = spmm(graph_of(edges), x, self_scale=1.5, activation=activation, result_scale=-2)
    assert_close(got, -2 * function(spmm_reference(edges, x) + 1.5 * x), 1e-12, activation)


@on_all
def test_nan_stays_behind_a_relu(implementation) -> None:
    with setting(implementation):
        got = spmm(LOOP, np.float32([np.nan, -1]), self_scale=0.0, activation="relu")
    np.testing.assert_array_equal(got, [np.nan, np.nan])


@on_kernels
def test_sums_of_half_types_overflow_only_where_results_do(implementation) -> None:
    graph = Graph.from_edges(np.arange(64), np.zeros(64, int), num_src=64, num_dst=2)
    x = np.full((64, 8), 60_000, np.float16)
    with setting(implementation):
        got = spmm(graph, x, out_scale=1 / 64, residual=np.full((2, 8), -30_000, np.float16))
    np.testing.assert_array_equal(got, [[30_000] * 8, [-30_000] * 8])


def primitives(jaxpr) -> list[Any]:
    """The equations of this library's primitives."""
    equations = []
    for equation in jaxpr.eqns:
        inner = [value for value in equation.params.values() if hasattr(value, "jaxpr")]
        equations += [inside for value in inner for inside in primitives(value.jaxpr)]
        equations += [equation] if "jax_gnn" in equation.primitive.name else []
    return equations


def test_without_epilogue_nothing_is_added() -> None:
    jaxpr = jax.make_jaxpr(functools.partial(spmm, GRAPH))(ones(4, 2))
    (equation,) = jaxpr.eqns
    assert set(equation.params) == {"reduce", "heads", "implementation", "tree", "devices"}
    assert (
        len(equation.invars)
        == sum(leaf.size > 0 for leaf in jax.tree.leaves(GRAPH.matrix()) if hasattr(leaf, "size"))
        + 1
    )


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradients_of_epilogues_are_one_more_sum(rng, reduce) -> None:
    """The gradient to own features costs no further pass."""
    edges = random_edges(rng, "random", square=True)
    graph, nodes = graph_of(edges), edges.num_dst

    def energy(x, self_scale, residual, bias) -> Any:
        options = {"self_scale": self_scale, "residual": residual, "bias": bias}
        y = spmm(graph, x, reduce=reduce, out_scale=ones(nodes), activation="relu", **options)
        return (y * y).sum()

    operands = ones(nodes, 2), ones(nodes), ones(nodes, 2), ones(2)
    jaxpr = jax.make_jaxpr(jax.grad(energy, (0, 1, 2, 3)))(*operands)
    names = [equation.primitive.name for equation in primitives(jaxpr.jaxpr)]
    counted = reduce == "mean"  # what it divides by is a sum, too
    assert names == ["jax_gnn_segment_reduce"] * (2 + counted)
    (transposed,) = [
        e for e in primitives(jaxpr.jaxpr)[1:] if e.outvars[0].aval.shape == (nodes, 2)
    ]
    # Own features are part of the transposed sum, and the mask of the ReLU is applied before.
    back_operands = jax.tree.unflatten(transposed.params["tree"], transposed.invars)
    assert back_operands.self_scale is not None and "relu" not in transposed.params


@pytest.mark.skipif(PLATFORM != "cuda", reason="needs 15 GB of memory to spare")
def test_more_than_2_to_the_31_elements() -> None:
    """Rows of x lie beyond what 32 bits address."""
    rows, width = 2**16 + 3, 2**15 + 8
    # Small integers, exact in bfloat16, tell rows apart.
    x = (jnp.arange(rows, dtype=jnp.float32) % 251).astype(jnp.bfloat16)[:, None]
    x = x + jnp.zeros(width, jnp.bfloat16)
    assert x.size > 2**31
    src = np.array([rows - 1, 0, rows - 2, 7])
    graph = Graph.from_edges(src, [0, 0, 1, 1], num_src=rows, num_dst=2)
    got = np.asarray(jax.jit(spmm)(graph, x, np.ones(4, np.float32)))
    column = np.asarray(x[:, 0]).astype(np.float32)
    want = np.array([column[rows - 1] + column[0], column[rows - 2] + column[7]])
    assert (got.astype(np.float32) == want[:, None]).all()
    transposed = graph.transpose()
    wide = np.asarray(jax.jit(spmm)(transposed, jnp.ones((2, width), jnp.bfloat16)))
    np.testing.assert_array_equal(np.flatnonzero(wide[:, -1]), np.sort(src))
