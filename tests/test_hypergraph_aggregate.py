"""Hypergraph aggregation: descriptions of the op and its variants for the shared checks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import spmm_cases
from op_spec import Case, Incidence, OpSpec, assert_close, setting, stack
from op_suite import IMPLEMENTATIONS, KERNELS, PLATFORM, CoreChecks, OpSuite
from segment_cases import distinct, largest, normal, smallest, with_far_padding

from jax_gnn import (
    Graph,
    Hypergraph,
    hyperedge_to_node,
    hypergraph_aggregate,
    hypergraph_norm,
    incidence_softmax,
    node_to_hyperedge,
    schedules,
)
from jax_gnn._core import csr

REDUCTIONS = {"sum": spmm_cases.total, "mean": spmm_cases.mean, "max": largest, "min": smallest}


# --- Inputs --------------------------------------------------------------------------------------


class Members(NamedTuple):
    """Edges from nodes to hyperedges, of the tails and of the heads, for references."""

    tails: spmm_cases.Edges
    heads: spmm_cases.Edges

    @classmethod
    def random(cls, rng: np.random.Generator, scenario: str, directed: bool) -> Members:
        tails = spmm_cases.random_edges(rng, scenario)
        return cls(tails, spmm_cases.random_edges(rng, scenario) if directed else tails)

    @property
    def to_nodes(self) -> spmm_cases.Edges:
        src, dst, num_src, num_dst = self.heads
        return spmm_cases.Edges(dst, src, num_dst, num_src)

    def hypergraph(self) -> Hypergraph:
        tails, heads = self
        sizes = {"num_nodes": tails.num_src, "num_hyperedges": tails.num_dst, "validate": False}
        if heads is tails:
            return Hypergraph.from_incidence(tails.src, tails.dst, **sizes)
        return Hypergraph.from_directed(tails.src, tails.dst, heads.src, heads.dst, **sizes)


def hypergraph_of(incidence: Incidence) -> Hypergraph:
    return Hypergraph.from_incidence(
        incidence.left,
        incidence.right,
        num_nodes=incidence.num_left,
        num_hyperedges=incidence.num_right,
        validate=False,
    )


def padding_inside(incidence: Incidence, rng: np.random.Generator) -> tuple[Hypergraph, Incidence]:
    """Replace members of rows by ids out of range, the same ones in both directions."""
    size = len(incidence.left)
    node_idx, hyperedge_idx = incidence.left, incidence.right
    # Both halves drop the same incidences, else one were not the transpose of the other.
    dropped = rng.random(size) < 0.3
    arrays, orders = [], []
    for rows, cols, num_rows, num_cols in (
        (hyperedge_idx, node_idx, incidence.num_right, incidence.num_left),
        (node_idx, hyperedge_idx, incidence.num_left, incidence.num_right),
    ):
        outside = rng.choice([-1, -7, num_cols, num_cols + 5, 2**31 - 1, -(2**31)], size)
        order = np.lexsort((cols, rows))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_rows))])
        arrays += [indptr, rows[order], np.where(dropped, outside, cols)[order]]
        orders.append(order)
    arrays += [np.argsort(orders[0])[orders[1]], orders[0]]
    valid = replace(incidence, left=node_idx[~dropped], right=hyperedge_idx[~dropped])
    return Hypergraph(Graph(*(jnp.asarray(array, jnp.int32) for array in arrays))), valid


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.5, 1.5, shape)  # sums of weights have their roots taken


def case_maker(
    operands: tuple[str, ...],
    *,
    directed: bool = False,
    heads: int | None = None,
    numbers: Callable[..., np.ndarray] = normal,
    degrees: bool = False,
    own_scale_of_all: bool = False,
) -> Callable[..., Case]:
    """Return a function that makes cases with some operands.

    Args:
        operands: names of arguments of the op.
        directed: whether the hypergraph is.
        heads: number of heads of x and of incidences' weights; None for no such axis.
        numbers: function that draws the features.
        degrees: whether the op takes weighted degrees, so that a hyperedge's weight is read if its
            tail or its head has nodes.
        own_scale_of_all: whether all nodes share one own scale.
    """
    of_heads = () if heads is None else (heads,)

    def make_case(rng: np.random.Generator, scenario: str, features: tuple[int, ...]) -> Case:
        members = Members.random(rng, scenario, directed)
        sends, receives = (edges.src[edges.valid] for edges in members)
        has_tail, has_head = (
            np.isin(np.arange(edges.num_dst), edges.dst[edges.valid]) for edges in members
        )
        values, padding = [], []
        for name in operands:
            if name in ("x", "y", "h"):
                ids, size = (sends if name == "x" else receives), members.tails.num_src
                if name == "h":
                    ids, size = members.to_nodes.src[members.heads.valid], members.tails.num_dst
                values.append(numbers(rng, (size, *of_heads, *features)))
                # A node of no hyperedge reads its own features.
                is_read = name == "x" and "self_scale" in operands  # wherever it is
                padding.append(None if is_read else spmm_cases.unused(ids, size, values[-1].ndim))
                continue
            if name in ("residual", "bias"):
                rows = (members.tails.num_src,) if name == "residual" else ()
                values.append(rng.normal(size=(*rows, *of_heads, *features)))
                padding.append(None)
                continue
            if name == "self_scale":
                values.append(rng.normal(size=() if own_scale_of_all else members.tails.num_src))
                padding.append(None)
                continue
            if name in ("incidence_weight", "head_weight", "scores"):
                edges = members.tails if name == "incidence_weight" else members.heads
                outside = ~edges.valid
                shape = (len(outside), *(features if name == "scores" else of_heads))
            else:
                ids = receives if name == "node_scale_out" else sends
                outside = spmm_cases.unused(ids, members.tails.num_src, 1)
                # The weight of a hyperedge with a tail alone enters degrees of nodes.
                if name in ("hyperedge_weight", "hyperedge_scale"):
                    outside = ~(has_tail | has_head if degrees else has_tail & has_head)
                shape = outside.shape
            values.append(positive(rng, shape))
            padding.append(outside.reshape(-1, *[1] * (len(shape) - 1)))
        return Case(members.hypergraph(), members, tuple(values), tuple(padding))

    return make_case


# --- The plain reference -------------------------------------------------------------------------


def power(degrees: np.ndarray, exponent: float) -> np.ndarray:
    positive = degrees.real > 0
    return np.where(positive, np.where(positive, degrees, 1) ** exponent, 0)


def scaled(x: np.ndarray, *scales: np.ndarray) -> np.ndarray:
    for scale in scales:
        x = x * scale.reshape(*scale.shape, *[1] * (x.ndim - scale.ndim))
    return x


def degrees_of(
    edges: spmm_cases.Edges, weight: np.ndarray | None, values: np.ndarray
) -> np.ndarray:
    if weight is not None and weight.ndim == 2:
        values = np.repeat(values[:, None], weight.shape[1], 1)
    return spmm_cases.spmm_reference(edges, values, weight)


def reference(
    members: Members,
    x: np.ndarray,
    hyperedge_weight: np.ndarray | None = None,
    *,
    incidence_weight: np.ndarray | None = None,
    head_weight: np.ndarray | None = None,
    node_scale_in: np.ndarray | None = None,
    node_scale_out: np.ndarray | None = None,
    hyperedge_scale: np.ndarray | None = None,
    self_scale: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    activation: str | None = None,
    normalization: str | None = None,
    hyperedge_reduce: str = "sum",
    node_reduce: str = "sum",
) -> np.ndarray:
    """Compute `hypergraph_aggregate`, one incidence after another."""
    tails, heads = members
    # Undirected, one weight of an incidence serves both stages.
    if head_weight is None and heads is tails:
        head_weight = incidence_weight
    num_nodes, num_hyperedges = tails.num_src, tails.num_dst
    weight = np.ones(num_hyperedges) if hyperedge_weight is None else hyperedge_weight
    scales_in, scales_out = (
        [] if scale is None else [scale] for scale in (node_scale_in, node_scale_out)
    )
    scales_edge = [weight] if hyperedge_scale is None else [weight, hyperedge_scale]
    if normalization is not None:
        received = degrees_of(members.to_nodes, head_weight, weight)
        if normalization == "symmetric":
            sent = degrees_of(Members(heads, tails).to_nodes, incidence_weight, weight)
            scales_in.append(power(sent, -0.5))
            scales_out.append(power(received, -0.5))
        else:
            scales_out.append(power(received, -1))
        # The size of a hyperedge is that of its tail, the nodes that are summed.
        scales_edge.append(power(degrees_of(tails, incidence_weight, np.ones(num_nodes)), -1))
    h = scaled(x, *scales_in)
    h = spmm_cases.spmm_reference(tails, h, incidence_weight, reduce=REDUCTIONS[hyperedge_reduce])
    h = scaled(h, *scales_edge)
    y = spmm_cases.spmm_reference(members.to_nodes, h, head_weight, reduce=REDUCTIONS[node_reduce])
    y = scaled(y, *scales_out)
    y = y if self_scale is None else y + scaled(x, self_scale)
    return spmm_cases.with_epilogue(y, x, residual=residual, bias=bias, relu=activation == "relu")


def by_name(function, operands) -> Callable[..., Any]:
    return lambda index, *values: function(index, **dict(zip(operands, values, strict=True)))


def aggregate_spec(
    *factors,
    directed=False,
    heads=None,
    numbers=normal,
    linear=("x",),
    own_scale_of_all=False,
    **options,
) -> OpSpec:
    """Describe the op with factors and options."""
    operands = ("x", *factors)
    axis = 1 if heads is None else 2
    make_case = case_maker(
        operands,
        directed=directed,
        heads=heads,
        numbers=numbers,
        degrees="normalization" in options,
        own_scale_of_all=own_scale_of_all,
    )
    if options.get("activation") == "relu":
        before = by_name(functools.partial(reference, **options | {"activation": None}), operands)
        make_case = away_from_the_kink(make_case, before, operands.index("residual"))
    return OpSpec(
        function=by_name(functools.partial(hypergraph_aggregate, **options), operands),
        reference=by_name(functools.partial(reference, **options), operands),
        make_case=make_case,
        operands=operands,
        linear=linear,
        feature_axis=(
            axis,
            *({"residual": axis, "bias": axis - 1}.get(factor) for factor in factors),
        ),
        result_axis=axis,
        composed="residual" in factors,
        summed=("bias",) if "bias" in factors else (),
    )


def separated(spec: OpSpec) -> OpSpec:
    """Return the spec with cases in which no extremum of messages depends on rounding."""

    def make(rng, *arguments) -> Case:
        case = spec.make_case(rng, *arguments)
        operands = dict(zip(spec.operands, case.operands, strict=True))
        if "x" in operands:
            # The stage that has the maximum decides which weights are moved apart.
            edges, rows, name = case.plain.tails, operands["x"], "incidence_weight"
        else:
            edges, rows, name = case.plain.to_nodes, operands["h"], "head_weight"
        if "node_scale_in" in operands:
            rows = scaled(rows, operands["node_scale_in"])
        draw = functools.partial(positive, rng)
        operands[name] = spmm_cases.keep_apart(edges, rows, operands[name], draw)
        return replace(case, operands=tuple(operands.values()))

    return replace(spec, make_case=make)


def away_from_the_kink(
    make_case: Callable[..., Case], before: Callable[..., np.ndarray], residual: int
) -> Callable[..., Case]:
    """Return a maker of cases in which no result is so near 0 that rounding moves it across."""

    def make(*arguments) -> Case:
        case = make_case(*arguments)
        operands = list(case.operands)
        operands[residual] = operands[residual] + np.sign(before(case.plain, *operands))
        return replace(case, operands=tuple(operands))

    return make


HYPERGRAPH = Hypergraph.from_incidence([0, 1, 1, 2], [0, 0, 1, 1], num_nodes=4, num_hyperedges=3)
X = np.arange(8, dtype=np.float32).reshape(4, 2)


def ones(*shape, dtype=np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


# --- The op and its variants ---------------------------------------------------------------------


SCALES = "hyperedge_weight", "node_scale_in", "node_scale_out"


class TestHypergraphAggregate(OpSuite):
    vmaps_every_set = True
    spec = replace(aggregate_spec(*SCALES), linear=("x", *SCALES))


class TestEpilogue(OpSuite):
    spec = aggregate_spec(
        "hyperedge_weight", "self_scale", "residual", "bias", linear=(), activation="relu"
    )


class TestDirected(OpSuite):
    spec = aggregate_spec("hyperedge_weight", "node_scale_in", "self_scale", directed=True)


class TestMeanOfWeightedMaxima(CoreChecks):
    """The path of two stages, with all factors."""

    spec = replace(
        separated(
            aggregate_spec(
                "incidence_weight",
                "hyperedge_weight",
                "node_scale_in",
                "node_scale_out",
                linear=("node_scale_out", "hyperedge_weight"),
                heads=2,
                directed=True,
                hyperedge_reduce="max",
                node_reduce="mean",
            )
        ),
        composed=True,
    )


class TestDirectedFactors(CoreChecks):
    """The op is linear in each factor, without a self scale."""

    spec = aggregate_spec(*SCALES, linear=("x", *SCALES), directed=True)
    implementations = IMPLEMENTATIONS
    test_linear_transpose = OpSuite.test_linear_transpose


def weight_gradient(hypergraph, x, y, node_scale_in, node_scale_out):
    """Return the gradient of hyperedges' weights."""
    scales = {"node_scale_in": node_scale_in, "node_scale_out": node_scale_out}
    # Derived from other arrays, so that it varies over the same devices under shard_map.
    weight = jnp.ones_like(hypergraph.hyperedge_degrees(), x.dtype)
    result, vjp = jax.vjp(lambda w: hypergraph_aggregate(hypergraph, x, w, **scales), weight)
    return vjp(y + jnp.zeros_like(result))[0]


def weight_gradient_reference(
    members: Members, x: np.ndarray, y: np.ndarray, scale_in: np.ndarray, scale_out: np.ndarray
) -> np.ndarray:
    sent = spmm_cases.spmm_reference(members.tails, scaled(x, scale_in))
    product = sent * spmm_cases.spmm_reference(members.heads, scaled(y, scale_out))
    return product.sum(axis=tuple(range(1, product.ndim)))


MEAN = {"hyperedge_reduce": "mean", "node_reduce": "mean"}
VARIANTS = {
    "FeaturesOnly": aggregate_spec(),
    "AllFactors": aggregate_spec(*SCALES, "hyperedge_scale"),
    "OwnScaleOfAll": aggregate_spec(
        "hyperedge_weight",
        "node_scale_out",
        "self_scale",
        own_scale_of_all=True,
        node_reduce="mean",
    ),
    "EpilogueOfAllFactors": aggregate_spec(
        *SCALES, "self_scale", "residual", "bias", linear=(), activation="relu"
    ),
    "ResidualOfAllFactors": aggregate_spec(
        "hyperedge_scale",
        "node_scale_in",
        "node_scale_out",
        "residual",
        linear=(),
        directed=True,
        node_reduce="mean",
    ),
    "ReluOfMaxima": aggregate_spec(
        "node_scale_out",
        "residual",
        "bias",
        linear=(),
        numbers=distinct,
        hyperedge_reduce="max",
        activation="relu",
    ),
    "Symmetric": aggregate_spec("hyperedge_weight", normalization="symmetric"),
    "SymmetricAllFactors": aggregate_spec(*SCALES, "hyperedge_scale", normalization="symmetric"),
    "SymmetricUnweighted": aggregate_spec(normalization="symmetric"),
    "Row": aggregate_spec("hyperedge_weight", normalization="row"),
    "Mean": aggregate_spec("hyperedge_weight", **MEAN),
    "GradientToWeights": OpSpec(
        function=weight_gradient,
        reference=weight_gradient_reference,
        make_case=case_maker(("x", "y", "node_scale_in", "node_scale_out"), directed=True),
        operands=("x", "y", "node_scale_in", "node_scale_out"),
    ),
    "DirectedSymmetric": aggregate_spec(
        "hyperedge_weight", directed=True, normalization="symmetric"
    ),
    "DirectedRowWithWeights": aggregate_spec(
        "hyperedge_weight", "incidence_weight", "head_weight", directed=True, normalization="row"
    ),
    "IncidenceWeight": aggregate_spec("hyperedge_weight", "incidence_weight", "node_scale_in"),
    "IncidenceWeightOfHeads": aggregate_spec(
        "incidence_weight", "hyperedge_weight", "self_scale", heads=2, own_scale_of_all=True, **MEAN
    ),
    # Degrees are weighted sums, too.
    "IncidenceWeightSymmetric": aggregate_spec(
        "incidence_weight", "hyperedge_weight", heads=2, normalization="symmetric"
    ),
    "WeightsOfTheSecondStage": aggregate_spec("head_weight", linear=("x", "head_weight")),
    "MaximumOfMaxima": aggregate_spec(
        linear=(), numbers=distinct, hyperedge_reduce="max", node_reduce="max"
    ),
    "MinimumOfMeans": aggregate_spec(
        "hyperedge_weight",
        "node_scale_out",
        "hyperedge_scale",
        "self_scale",
        linear=(),
        hyperedge_reduce="mean",
        node_reduce="min",
    ),
}


# --- One stage -----------------------------------------------------------------------------------


def stage_spec(side, weight, **options) -> OpSpec:
    """Describe one stage, from x or from h, of a directed hypergraph."""
    operands = (side,) if weight is None else (side, weight)
    function = node_to_hyperedge if side == "x" else hyperedge_to_node
    heads, axis = (None, 1) if weight is None else (2, 2)

    def stage_reference(members, rows, weight=None, *, reduce="sum"):
        edges = members.tails if side == "x" else members.to_nodes
        return spmm_cases.spmm_reference(edges, rows, weight, reduce=REDUCTIONS[reduce])

    return OpSpec(
        function=functools.partial(function, **options),
        reference=functools.partial(stage_reference, **options),
        make_case=case_maker(
            operands, directed=True, heads=heads, numbers=distinct if options else normal
        ),
        operands=operands,
        linear=() if options else operands,
        feature_axis=(axis, *[None] * len(operands[1:])),
        result_axis=axis,
    )


VARIANTS |= {
    "NodeToHyperedge": stage_spec("x", "incidence_weight"),
    "NodeToHyperedgeMaximum": stage_spec("x", None, reduce="max"),
    "HyperedgeToNode": stage_spec("h", "head_weight"),
    "HyperedgeToNodeMean": stage_spec("h", None, reduce="mean"),
    "HyperedgeToNodeMinimum": separated(stage_spec("h", "head_weight", reduce="min")),
}


def softmax_reference(members: Members, scores: np.ndarray, *, by: str) -> np.ndarray:
    edges = members.tails if by == "hyperedge" else members.heads
    rows = edges.dst if by == "hyperedge" else edges.src
    result = np.zeros(scores.shape, np.result_type(scores, np.float64))
    for row in np.unique(rows[edges.valid]):
        where = edges.valid & (rows == row)
        powers = np.exp(scores[where] - scores[where].real.max(0))
        result[where] = powers / powers.sum(0)
    return result


def softmax_spec(by: str, directed: bool) -> OpSpec:
    return OpSpec(
        function=functools.partial(incidence_softmax, by=by),
        reference=functools.partial(softmax_reference, by=by),
        make_case=case_maker(("scores",), directed=directed),
        operands=("scores",),
        feature_axis=(1,),
        result_axis=1,
    )


class TestSoftmaxByNode(OpSuite):
    spec = softmax_spec("node", directed=True)


VARIANTS["SoftmaxByHyperedge"] = softmax_spec("hyperedge", directed=False)
for name, spec in VARIANTS.items():
    globals()[f"Test{name}"] = type(f"Test{name}", (CoreChecks,), {"spec": spec})


# --- Tests of this op ----------------------------------------------------------------------------

on_all = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@on_all
@pytest.mark.parametrize("batch", [None, 3])
def test_padding_inside_rows(rng, batch, implementation):
    """Ids out of range at any place of index arrays are skipped, in values and gradients."""
    examples = [padding_inside(Incidence.random(rng, "empty"), rng) for _ in range(batch or 1)]
    hypergraph = stack([hypergraph for hypergraph, _ in examples])
    dense = np.stack([incidence.dense() for _, incidence in examples])
    isolated = dense.sum(2) == 0
    x = rng.normal(size=(*isolated.shape, 3))
    weight = rng.normal(size=dense.shape[::2])
    cotangent = rng.normal(size=x.shape)

    def value_and_gradients(hypergraph, x, weight, cotangent):
        y, vjp = jax.vjp(lambda x, w: hypergraph_aggregate(hypergraph, x, w), x, weight)
        return y, *vjp(cotangent)

    arguments = (hypergraph, np.where(isolated[..., None], np.nan, x), weight, cotangent)
    with setting(implementation, "float64"):
        if batch is None:
            results = value_and_gradients(*jax.tree.map(lambda array: array[0], arguments))
            results = [result[None] for result in results]
        else:
            results = jax.jit(jax.vmap(value_and_gradients))(*arguments)
    x = np.where(isolated[..., None], 0, x)
    y, x_gradient = (
        np.einsum("bve,be,bue,buk->bvk", dense, weight, dense, z) for z in (x, cotangent)
    )
    members = [np.einsum("bve,bvk->bek", dense, z) for z in (x, cotangent)]
    weight_gradient = np.sum(members[0] * members[1], -1)
    expected = (y, x_gradient, weight_gradient)
    for name, got, want in zip(("value", "x", "weight"), results, expected, strict=True):
        assert_close(got, want, 1e-12, name)
    assert (np.asarray(results[1])[isolated] == 0).all()


@on_all
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_accumulate_in_float32(dtype, implementation):
    """A sum of 70,000 ones stops at 256 in bfloat16 and exceeds float16; the mean is 1."""
    n = 70_000
    hypergraph = Hypergraph.from_incidence(np.arange(n), np.zeros(n, int))
    x = jnp.ones((n, 1), dtype)
    y = hypergraph_aggregate(
        hypergraph, x, hyperedge_reduce="mean", node_reduce="mean", implementation=implementation
    )
    assert y.dtype == dtype
    assert (np.asarray(y) == 1).all()


def test_factors_of_other_types():
    """Factors may be integers, or of a type other than that of the features, which decides."""
    want = hypergraph_aggregate(HYPERGRAPH, X, jnp.arange(3.0))
    for weight in (np.arange(3), jnp.arange(3, dtype=jnp.bfloat16), [0, 1, 2]):
        got = hypergraph_aggregate(HYPERGRAPH, X, weight)
        assert got.dtype == np.float32
        assert_close(got, want, 1e-6, "value")


def test_gradient_to_the_weights_counts_the_degrees():
    """A symmetric normalization does not depend on a factor of all weights."""
    gradient = jax.grad(
        lambda weight: jnp.sum(
            hypergraph_aggregate(HYPERGRAPH, X, weight, normalization="symmetric") ** 2
        )
    )(jnp.full(3, 0.7))
    assert abs(float(jnp.sum(gradient))) < 1e-5 < float(jnp.abs(gradient).max())


def test_inverse_degrees_may_be_infinite():
    """Normalization by hand, with 1 / 0 at the isolated node, equals the named one."""
    with np.errstate(divide="ignore"):
        nodes = np.asarray(HYPERGRAPH.node_degrees(), np.float32) ** -0.5
        hyperedges = 1 / np.asarray(HYPERGRAPH.hyperedge_degrees(), np.float32)
    assert np.isinf(nodes).any()
    assert np.isinf(hyperedges).any()
    got = hypergraph_aggregate(
        HYPERGRAPH, X, node_scale_in=nodes, node_scale_out=nodes, hyperedge_scale=hyperedges
    )
    want = hypergraph_aggregate(HYPERGRAPH, X, normalization="symmetric")
    assert_close(got, want, 1e-6, "value")


def test_batch_too_large_to_be_joined(rng, monkeypatch):
    """A batch of hypergraphs beyond the range of the index type runs one after another."""
    examples = [hypergraph_of(Incidence.random(rng, name)) for name in ("random", "padding")]
    x = rng.normal(size=(2, examples[0].num_nodes, 3)).astype(np.float32)

    weight = np.ones(examples[0].num_hyperedges, np.float32)

    def run() -> tuple[str, Any]:  # traced again each time
        def energy(hypergraph, x, weight) -> jax.Array:
            return jnp.sum(hypergraph_aggregate(hypergraph, x, weight) ** 2)

        gradient = jax.jit(jax.vmap(jax.grad(energy, argnums=(1, 2)), in_axes=(0, 0, None)))
        arguments = (stack(examples), x, weight)
        return str(gradient.trace(*arguments).jaxpr), gradient(*arguments)

    program, joined = run()
    assert "scan" not in program
    # One id less than the joined batch needs.
    limit = 2 * examples[0].num_incidences - 1
    monkeypatch.setattr(csr, "_max_id", lambda _: limit)
    program, looped = run()
    assert "scan" in program
    for a, b in zip(looped, joined, strict=True):
        assert_close(a, b, 1e-5, "gradient")


@on_all
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_nothing_infinite_leaves_empty_rows(reduce, implementation):
    """A hyperedge without nodes gives its nodes in the head 0, and a node without hyperedges 0."""
    hypergraph = Hypergraph.from_directed([0, 1], [0, 0], [0, 2], [0, 1], num_nodes=4)
    x = jnp.array([[-3.0], [-5.0], [jnp.nan], [jnp.inf]])

    def run(x, scale) -> jax.Array:
        return hypergraph_aggregate(
            hypergraph,
            x,
            hyperedge_scale=scale,
            hyperedge_reduce=reduce,
            node_reduce=reduce,
            implementation=implementation,
        )

    y, vjp = jax.vjp(run, x, jnp.array([2.0, jnp.inf]))
    best = {"max": -3.0, "min": -5.0}[reduce]
    np.testing.assert_array_equal(y, [[2 * best], [0], [0], [0]])
    to_x, to_scale = vjp(jnp.ones_like(y))
    np.testing.assert_array_equal(to_x[:, 0], 2 * (np.asarray(x)[:, 0] == best))
    np.testing.assert_array_equal(to_scale, [best, 0])


@on_all
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_not_rounded_between_the_stages(dtype, implementation):
    """Sums of 70,000 exceed float16 and stop at 256 in bfloat16, unless they stay float32."""
    n = 70_000
    hypergraph = Hypergraph.from_incidence(np.arange(n), np.zeros(n, int))
    x, scale = jnp.ones((n, 1), dtype), np.float32([1 / n])

    def run(scale, **options) -> jax.Array:
        return hypergraph_aggregate(
            hypergraph, x, hyperedge_scale=scale, implementation=implementation, **options
        )

    y = run(scale, node_reduce="max")
    assert y.dtype == dtype
    assert (np.asarray(y) == 1).all()
    y, vjp = jax.vjp(lambda scale: run(scale, node_scale_in=np.full(n, 0.5)), scale)
    assert float(vjp(jnp.ones_like(y))[0][0]) == pytest.approx(n * n / 2, rel=1e-6)


def test_one_call_where_it_is_linear():
    def primitives(**options) -> str:
        program = jax.make_jaxpr(functools.partial(hypergraph_aggregate, **options))
        return str(program(HYPERGRAPH, X))

    ones_of_incidences = ones(4)
    for fused in ({}, {"hyperedge_reduce": "mean", "node_reduce": "mean", "self_scale": 0.5}):
        program = primitives(**fused)
        assert program.count("jax_gnn_") == program.count("jax_gnn_hypergraph_aggregate") == 1
    for staged in ({"node_reduce": "max"}, {"incidence_weight": ones_of_incidences}):
        program = primitives(**staged)
        assert program.count("jax_gnn_segment_reduce") == 2
        assert "jax_gnn_hypergraph_aggregate" not in program


def test_own_scale_takes_no_pass_of_its_own():
    """Value and gradient to x are one call each, and nothing else."""

    def run(x, ct, self_scale):
        function = functools.partial(hypergraph_aggregate, HYPERGRAPH, self_scale=self_scale)
        y, vjp = jax.vjp(function, x)
        return y, vjp(ct)

    for self_scale in (1.5, ones(4)):
        program = jax.make_jaxpr(run)(X, X, self_scale).jaxpr
        of_features = [
            equation.primitive.name
            for equation in program.eqns
            if any(variable.aval.shape == X.shape for variable in equation.outvars)
        ]
        assert of_features == 2 * ["jax_gnn_hypergraph_aggregate"]


@on_all
def test_nan_stays_behind_a_relu(implementation):
    x = np.float32([[np.nan], [-1], [1], [1]])
    options = {"activation": "relu", "implementation": implementation}
    y = hypergraph_aggregate(HYPERGRAPH, x, self_scale=1.0, **options)
    np.testing.assert_array_equal(np.isnan(y[:, 0]), [True, True, False, False])


@on_all
@pytest.mark.parametrize("activation", ["silu", "tanh"])
@pytest.mark.parametrize("node_reduce", ["sum", "max"])
def test_other_activations(activation, node_reduce, implementation):
    options = {"node_reduce": node_reduce, "bias": ones(2) / 2, "implementation": implementation}
    before = hypergraph_aggregate(HYPERGRAPH, X / 8, **options)
    y = hypergraph_aggregate(HYPERGRAPH, X / 8, activation=activation, **options)
    np.testing.assert_allclose(
        y, getattr(jnp, activation, jax.nn.silu)(before), rtol=1e-6, atol=1e-5
    )


def test_epilogue_takes_no_pass_of_its_own():
    """Value and gradient are one call each, with the ReLU's mask between them."""

    def run(x, residual, ct):
        options = {"self_scale": 1.5, "bias": ones(2), "activation": "relu"}
        function = functools.partial(hypergraph_aggregate, HYPERGRAPH, **options)
        y, vjp = jax.vjp(lambda x, residual: function(x, residual=residual), x, residual)
        return y, vjp(ct)

    program = jax.make_jaxpr(run)(X, X, X)
    calls = [call for call in program.jaxpr.eqns if call.primitive.name.startswith("jax_gnn_")]
    assert [call.primitive.name for call in calls] == 2 * ["jax_gnn_hypergraph_aggregate"]
    assert calls[0].params["relu"] and not calls[1].params["relu"]


@on_all
@pytest.mark.parametrize(("dtype", "weight"), [("float16", 1024.5), ("bfloat16", 128.5)])
def test_own_scale_rounds_once(dtype, weight, implementation):
    """The odd sum at node 0 is halfway between two numbers of the type."""
    y = hypergraph_aggregate(
        HYPERGRAPH,
        jnp.ones((4, 1), dtype),
        np.float32([weight, 0, 0]),
        self_scale=0.5,
        implementation=implementation,
    )
    np.testing.assert_array_equal(y[:, 0], [2 * weight + 1, 2 * weight + 1, 0.5, 0.5])


@on_all
def test_own_scale_rounds_once_after_a_maximum(implementation):
    """float16 has no 2049, the sum of node 0 before its own features are added."""
    hypergraph = Hypergraph.from_hyperedges([[0, 1], [0, 2]])
    x = jnp.float16([1, 2048, 1])
    options = {"hyperedge_reduce": "max", "implementation": implementation}
    y = hypergraph_aggregate(hypergraph, x, self_scale=-2000.0, **options)
    assert float(y[0]) == 49


@pytest.mark.parametrize("directed", [False, True])
def test_default_of_head_weight(rng, directed):
    members = Members.random(rng, "random", directed)
    hypergraph = members.hypergraph()
    x = rng.normal(size=(hypergraph.num_nodes, 3)).astype(np.float32)
    weight = rng.uniform(0.5, 1.5, hypergraph.num_incidences).astype(np.float32)
    default = np.ones_like(weight) if directed else weight
    got = hypergraph_aggregate(hypergraph, x, incidence_weight=weight)
    want = hypergraph_aggregate(hypergraph, x, incidence_weight=weight, head_weight=default)
    assert_close(got, want, 1e-6, "value")
    # The same weights, passed to each stage by itself.
    h = node_to_hyperedge(hypergraph, x, weight)
    assert_close(got, hyperedge_to_node(hypergraph, h, default), 1e-6, "in two stages")


def test_weights_of_ones_change_nothing(rng):
    """The two paths agree, whatever the normalization."""
    members = Members.random(rng, "padding", True)
    hypergraph = members.hypergraph()
    x = rng.normal(size=(hypergraph.num_nodes, 3)).astype(np.float32)
    weight = rng.uniform(0.5, 1.5, hypergraph.num_hyperedges).astype(np.float32)
    for normalization in (None, "symmetric", "row"):
        options: Any = {"normalization": normalization}
        want = hypergraph_aggregate(hypergraph, x, weight, **options)
        options["incidence_weight"] = ones(hypergraph.num_incidences)
        assert_close(hypergraph_aggregate(hypergraph, x, weight, **options), want, 1e-5, "value")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("normalization", ["symmetric", "row"])
def test_norm_beforehand(rng, normalization, directed, weighted):
    members = Members.random(rng, "empty-rows", directed)
    hypergraph = members.hypergraph()
    x = rng.normal(size=(hypergraph.num_nodes, 3)).astype(np.float32)
    of_hyperedges, of_incidences = None, {}
    if weighted:
        of_hyperedges = rng.uniform(0.5, 1.5, hypergraph.num_hyperedges).astype(np.float32)
        sizes = {
            "incidence_weight": hypergraph.num_incidences,
            "head_weight": hypergraph.receiving.num_edges,
        }
        of_incidences = {
            name: rng.uniform(0.5, 1.5, size).astype(np.float32) for name, size in sizes.items()
        }
    norm = hypergraph_norm(hypergraph, of_hyperedges, normalization=normalization, **of_incidences)
    assert (norm.node_in is None) == (normalization == "row")
    got = hypergraph_aggregate(hypergraph, x, **norm.scales, **of_incidences)
    options = {"normalization": normalization, **of_incidences}
    assert_close(got, hypergraph_aggregate(hypergraph, x, of_hyperedges, **options), 1e-6, "value")


def test_norm_of_other_types():
    ones_of_incidences = ones(HYPERGRAPH.num_incidences)
    half = hypergraph_norm(HYPERGRAPH, incidence_weight=ones_of_incidences.astype(np.float16))
    assert half.hyperedge.dtype == np.float32
    with jax.enable_x64(True):
        weight = np.ones(HYPERGRAPH.num_hyperedges, np.float32)
        norm = hypergraph_norm(HYPERGRAPH, weight)  # of features in float64, perhaps
        assert norm.node_in.dtype == norm.hyperedge.dtype == norm.node_out.dtype == np.float64
    with pytest.raises(ValueError, match="normalization must be"):
        hypergraph_norm(HYPERGRAPH, normalization="column")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hyperedge_weight must be"):
        hypergraph_norm(HYPERGRAPH, np.ones(HYPERGRAPH.num_hyperedges + 1, np.float32))
    with pytest.raises(ValueError, match="incidence_weight of shape"):
        hypergraph_norm(HYPERGRAPH, incidence_weight=np.stack([ones_of_incidences] * 2, 1))
    with pytest.raises(TypeError, match="hypergraph must be"):
        hypergraph_norm(HYPERGRAPH.graph)  # type: ignore[arg-type]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_padding_within_rows(implementation):
    """Index arrays may hold padding at any place, also as all of a row's last slot."""
    # Rows of 10, 2 and 10: slots hold 8, so that padding fills the last slot of a row.
    nodes = np.array([*range(8), -1, -1, 3, -1, *[4] * 9, 99], np.int32)
    graph = Graph.from_edges(
        np.zeros(22, int), np.repeat([0, 1, 2], [10, 2, 10]), num_src=9, num_dst=3
    )
    hypergraph = Hypergraph(replace(graph, cols=nodes))
    x = np.arange(1, 10, dtype=np.float32)[:, None]
    scale = np.array([1, 2, 3], np.float32)
    with setting(implementation, "float32"):
        y = hypergraph_aggregate(hypergraph, x, hyperedge_scale=scale)
    want = np.zeros((9, 1))
    want[0] = np.dot([10, 2, 10], scale * [36, 4, 45])  # node 0 has them all
    assert_close(y, want, 1e-6, "value")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("x64", [False, True])
def test_hand_made_arrays_beyond_32_bits(rng, x64, implementation):
    """Ids out of range of 32 bits are padding, which JAX's indexing would wrap around."""
    incidences = rng.integers(0, 5, 30), rng.integers(0, 4, 30)
    near = Hypergraph.from_incidence(*incidences, num_nodes=5, num_hyperedges=4)
    near = near.pad(num_incidences=45)
    wide = Hypergraph(with_far_padding(rng, near.graph))
    x, scores = normal(rng, (5, 3)), normal(rng, (45,))

    def results(hypergraph, x, scores) -> list[jax.Array]:
        weights = [incidence_softmax(hypergraph, scores, by) for by in ("node", "hyperedge")]
        y = hypergraph_aggregate(hypergraph, x, normalization="symmetric")
        return [y, *weights, node_to_hyperedge(hypergraph, x, weights[1], reduce="max")]

    operands = x.astype(np.float32), scores.astype(np.float32)
    with setting(implementation, "int64" if x64 else "float32"):
        want, wanted_vjp = jax.vjp(functools.partial(results, near), *operands)
        got, vjp = jax.vjp(functools.partial(results, wide), *operands)
        cotangents = [jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape) for y in want]
        got, want = (*got, *vjp(cotangents)), (*want, *wanted_vjp(cotangents))
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_close(a, b, 1e-5, f"result or gradient {i}")


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("width", [1, 4, 19, 64, 136, 300] if PLATFORM == "cuda" else [19])
@pytest.mark.parametrize(
    "schedule",
    [
        schedules.HypergraphSchedule(32, 1, 1),
        schedules.HypergraphSchedule(128, 1, 3),
        schedules.HypergraphSchedule(256, 7, 2),
        schedules.HypergraphSchedule(64, 200, 5000),
    ],
)
def test_schedules_give_the_same_result(rng, schedule, width, dtype, implementation):
    """Blocks share rows in both stages: of very large hyperedges and of nodes with many."""
    # Long tails: blocks share the rows of the largest hyperedges and nodes.
    node_idx, hyperedge_idx = np.minimum(rng.geometric(0.02, (2, 20_000)), 299)
    hypergraph = Hypergraph.from_incidence(
        node_idx, hyperedge_idx, num_nodes=310, num_hyperedges=305
    )
    hypergraph = hypergraph.pad(num_incidences=20_007)
    incidence = np.zeros((310, 305))
    np.add.at(incidence, (node_idx, hyperedge_idx), 1)
    numbers = dict(zip(("scale_in", "hyperedge", "scale_out"), (310, 305, 310), strict=True))
    scales = {name: rng.normal(size=size) / 20 for name, size in numbers.items()}
    with setting(implementation, dtype), schedules.use(schedule):
        x = jnp.asarray(rng.normal(size=(310, width)), dtype)
        acc = jnp.promote_types(dtype, jnp.float32)
        run = functools.partial(
            hypergraph_aggregate,
            hypergraph,
            x,
            node_scale_in=scales["scale_in"].astype(acc),
            hyperedge_scale=scales["hyperedge"].astype(acc),
            node_scale_out=scales["scale_out"].astype(acc),
        )
        self_scale, bias = rng.normal(size=310), rng.normal(size=width)
        residual = jnp.asarray(rng.normal(size=(310, width)), dtype)
        epilogue = {
            "self_scale": self_scale.astype(acc),
            "residual": residual,
            "bias": bias.astype(acc),
            "activation": "relu",
        }
        subsets = [(), ("self_scale",), ("residual",), ("bias", "activation"), tuple(epilogue)]
        results = [
            np.asarray(run(**{name: epilogue[name] for name in names}), np.float64)
            for names in subsets
        ]
        x, residual = (np.asarray(array, np.float64) for array in (x, residual))
    scaled_in = scales["scale_in"][:, None] * x
    sums = scales["hyperedge"][:, None] * (incidence.T @ scaled_in)
    want = scales["scale_out"][:, None] * (incidence @ sums)
    tolerance = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2}[dtype]
    added = {"self_scale": self_scale[:, None] * x, "residual": residual, "bias": bias}
    for names, got in zip(subsets, results, strict=True):
        y = want + sum(added[name] for name in names if name in added)
        assert_close(got, np.maximum(y, 0) if "activation" in names else y, tolerance, str(names))
