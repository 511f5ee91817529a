"""Hypergraph aggregation: descriptions of the op and its variants for the shared checks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import Case, Incidence, OpSpec, assert_close, setting, stack
from op_suite import IMPLEMENTATIONS, CoreChecks, OpSuite

from jax_gnn import Hypergraph, hypergraph_aggregate

CUSTOM_CALLS = ("jax_gnn_hypergraph_aggregate", "jax_gnn_hyperedge_dot")
OF_HYPEREDGES = ("hyperedge_weight", "hyperedge_scale")


# --- Inputs --------------------------------------------------------------------------------------


def hypergraph_of(incidence: Incidence) -> Hypergraph:
    return Hypergraph.from_incidence(
        incidence.left,
        incidence.right,
        num_nodes=incidence.num_left,
        num_hyperedges=incidence.num_right,
        validate=False,
    )


def padding_inside(incidence: Incidence, rng: np.random.Generator) -> tuple[Hypergraph, Incidence]:
    """Overwrites members of rows with ids out of range, in both directions alike."""
    size = len(incidence.left)
    node_idx, hyperedge_idx = incidence.left, incidence.right
    dropped = rng.random(size) < 0.3
    arrays = []
    for rows, cols, num_rows, num_cols in (
        (hyperedge_idx, node_idx, incidence.num_right, incidence.num_left),
        (node_idx, hyperedge_idx, incidence.num_left, incidence.num_right),
    ):
        outside = rng.choice([-1, -7, num_cols, num_cols + 5, 2**31 - 1, -(2**31)], size)
        order = np.lexsort((cols, rows))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_rows))])
        arrays += [indptr, np.where(dropped, outside, cols)[order]]
    kept = replace(incidence, left=node_idx[~dropped], right=hyperedge_idx[~dropped])
    return Hypergraph(*(jnp.asarray(array, jnp.int32) for array in arrays)), kept


def case_maker(operands: tuple[str, ...]) -> Callable[..., Case]:
    def make_case(rng: np.random.Generator, scenario: str, features: tuple[int, ...]) -> Case:
        incidence = Incidence.random(rng, scenario)
        plain = incidence.dense()
        values, padding = [], []
        for name in operands:
            members = plain.sum(0 if name in OF_HYPEREDGES else 1)
            if name in ("x", "y"):
                values.append(rng.normal(size=(len(members), *features)))
                padding.append((members == 0).reshape(-1, *[1] * len(features)))
            else:  # weights have roots of their sums taken
                values.append(rng.uniform(0.5, 1.5, len(members)))
                padding.append(members == 0)
        return Case(hypergraph_of(incidence), plain, tuple(values), tuple(padding))

    return make_case


# --- The plain reference -------------------------------------------------------------------------


def power(degrees: np.ndarray, exponent: float) -> np.ndarray:
    positive = degrees.real > 0
    return np.where(positive, np.where(positive, degrees, 1) ** exponent, 0)


def times(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.tensordot(matrix, x, axes=1)


def scaled(x: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
    return x * np.reshape(scale, (-1, *[1] * (x.ndim - 1)))


def reference(
    dense: np.ndarray,
    x: np.ndarray,
    hyperedge_weight: np.ndarray | None = None,
    *,
    node_scale_in: np.ndarray | float = 1.0,
    node_scale_out: np.ndarray | float = 1.0,
    hyperedge_scale: np.ndarray | float = 1.0,
    normalization: str | None = None,
    hyperedge_reduce: str = "sum",
    node_reduce: str = "sum",
) -> np.ndarray:
    """``hypergraph_aggregate`` with a dense incidence matrix."""
    weight = np.ones(dense.shape[1]) if hyperedge_weight is None else hyperedge_weight
    into, back, edge = node_scale_in, node_scale_out, weight * hyperedge_scale
    if normalization == "symmetric":
        into, back = (scale * power(dense @ weight, -0.5) for scale in (into, back))
    if normalization == "row":
        back = back * power(dense @ weight, -1)
    if normalization is not None or hyperedge_reduce == "mean":
        edge = edge * power(dense.sum(0), -1)
    if node_reduce == "mean":
        back = back * power(dense.sum(1), -1)
    return scaled(times(dense, scaled(times(dense.T, scaled(x, into)), edge)), back)


def by_name(function: Callable[..., Any], operands: tuple[str, ...]) -> Callable[..., Any]:
    return lambda index, *values: function(index, **dict(zip(operands, values, strict=True)))


def aggregate_spec(*scales: str, **options: Any) -> OpSpec:
    """Describes the op with the given factors, under the given options."""
    operands = ("x", *scales)
    return OpSpec(
        function=by_name(functools.partial(hypergraph_aggregate, **options), operands),
        reference=by_name(functools.partial(reference, **options), operands),
        make_case=case_maker(operands),
        operands=operands,
        linear=("x",),
        feature_axis=(1, *[None] * len(scales)),
        result_axis=1,
        custom_calls=CUSTOM_CALLS,
    )


# --- Bad arguments -------------------------------------------------------------------------------

HYPERGRAPH = Hypergraph.from_incidence([0, 1, 1, 2], [0, 0, 1, 1], num_nodes=4, num_hyperedges=3)
X = np.arange(8, dtype=np.float32).reshape(4, 2)


def bad(error: type[Exception], message: str, *arguments: Any, **options: Any) -> Any:
    def call() -> jax.Array:
        hypergraph, x = (*arguments, *(HYPERGRAPH, np.ones((4, 2), np.float32))[len(arguments) :])
        return hypergraph_aggregate(hypergraph, x, **options)

    return call, error, message


def with_arrays(**arrays: Any) -> Hypergraph:
    return replace(HYPERGRAPH, **arrays)


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


BAD_ARGUMENTS = {
    "hypergraph-type": bad(TypeError, r"hypergraph must be .*Hypergraph, got ndarray", ones(4, 4)),
    "hypergraph-float-array": bad(
        TypeError,
        r"hypergraph\.hyperedge_nodes must be an int32 or int64 array, got float32",
        with_arrays(hyperedge_nodes=ones(4)),
    ),
    "hypergraph-list": bad(
        TypeError, r"hypergraph\.node_indptr .*got list", with_arrays(node_indptr=[0, 1, 3, 4, 4])
    ),
    "hypergraph-rank": bad(
        ValueError,
        r"hypergraph\.hyperedge_nodes must be one-dimensional, got shape \(2, 2\)",
        with_arrays(hyperedge_nodes=ones(2, 2, dtype=np.int32)),
    ),
    "hypergraph-empty-indptr": bad(
        ValueError,
        r"hypergraph\.hyperedge_indptr must have at least one element",
        with_arrays(hyperedge_indptr=ones(0, dtype=np.int32)),
    ),
    "hypergraph-mixed-dtypes": bad(
        TypeError,
        r"arrays of the hypergraph must have one dtype, .*node_indptr: int64",
        with_arrays(node_indptr=np.array([0, 1, 3, 4, 4], np.int64)),
    ),
    "x-integer": bad(
        TypeError, r"x must be float16, .*got int32", HYPERGRAPH, ones(4, 2, dtype=np.int32)
    ),
    "x-complex": bad(
        TypeError, r"x must be .*got complex64", HYPERGRAPH, ones(4, 2, dtype=np.complex64)
    ),
    "x-rows": bad(
        ValueError, r"x must be \(num_nodes=4, .*got shape \(3, 2\)", HYPERGRAPH, ones(3, 2)
    ),
    "x-scalar": bad(
        ValueError, r"x must be \(num_nodes=4, .*got shape \(\)", HYPERGRAPH, np.float32(1)
    ),
    "weight-shape": bad(
        ValueError,
        r"hyperedge_weight must be \(num_hyperedges=3,\), got shape \(4,\)",
        hyperedge_weight=ones(4),
    ),
    "weight-complex": bad(
        TypeError,
        r"hyperedge_weight must be real numbers, got complex64",
        hyperedge_weight=ones(3, dtype=np.complex64),
    ),
    "hyperedge-scale-rank": bad(
        ValueError, r"hyperedge_scale .*got shape \(3, 1\)", hyperedge_scale=ones(3, 1)
    ),
    "node-scale-in-shape": bad(
        ValueError,
        r"node_scale_in must be \(num_nodes=4,\), got shape \(3,\)",
        node_scale_in=ones(3),
    ),
    "node-scale-out-bool": bad(
        TypeError,
        r"node_scale_out must be real numbers, got bool",
        node_scale_out=ones(4, dtype=bool),
    ),
    "normalization": bad(
        ValueError,
        r"normalization must be one of .*'symmetric', 'row', got 'sym'",
        normalization="sym",
    ),
    "hyperedge-reduce": bad(
        ValueError, r"hyperedge_reduce must be one of 'sum', 'mean', got", hyperedge_reduce="max"
    ),
    "node-reduce": bad(ValueError, r"node_reduce must be one of .*got None", node_reduce=None),
    "normalized-twice": bad(
        ValueError,
        r"normalization='row' divides by the degrees already",
        normalization="row",
        node_reduce="mean",
    ),
    "implementation": bad(
        ValueError, r"implementation must be None or one of .*got 'gpu'", implementation="gpu"
    ),
}


# --- The op and its variants ---------------------------------------------------------------------


class TestHypergraphAggregate(OpSuite):
    spec = replace(
        aggregate_spec("hyperedge_weight", "node_scale_in", "node_scale_out"),
        linear=("x", "hyperedge_weight", "node_scale_in", "node_scale_out"),
        bad_arguments=BAD_ARGUMENTS,
    )


class TestFeaturesOnly(CoreChecks):
    spec = aggregate_spec()


class TestAllFactors(CoreChecks):
    spec = aggregate_spec("hyperedge_weight", "hyperedge_scale", "node_scale_in", "node_scale_out")


class TestSymmetric(CoreChecks):
    spec = aggregate_spec("hyperedge_weight", normalization="symmetric")


class TestSymmetricAllFactors(CoreChecks):
    spec = aggregate_spec(
        "hyperedge_weight",
        "hyperedge_scale",
        "node_scale_in",
        "node_scale_out",
        normalization="symmetric",
    )


class TestRow(CoreChecks):
    spec = aggregate_spec("hyperedge_weight", normalization="row")


class TestSymmetricUnweighted(CoreChecks):
    spec = aggregate_spec(normalization="symmetric")


class TestMean(CoreChecks):
    spec = aggregate_spec("hyperedge_weight", hyperedge_reduce="mean", node_reduce="mean")


def dot(hypergraph: Hypergraph, x: Any, y: Any, node_scale_in: Any, node_scale_out: Any) -> Any:
    """The second primitive, as it occurs: the gradient to the weights."""
    scales = {"node_scale_in": node_scale_in, "node_scale_out": node_scale_out}
    # Made from other arrays, to vary over the same devices under shard_map as those do.
    weight = jnp.ones_like(hypergraph.hyperedge_degrees(), x.dtype)
    result, vjp = jax.vjp(lambda w: hypergraph_aggregate(hypergraph, x, w, **scales), weight)
    return vjp(y + jnp.zeros_like(result))[0]


def dot_reference(
    dense: np.ndarray, x: np.ndarray, y: np.ndarray, scale_in: np.ndarray, scale_out: np.ndarray
) -> np.ndarray:
    product = times(dense.T, scaled(x, scale_in)) * times(dense.T, scaled(y, scale_out))
    return product.sum(axis=tuple(range(1, product.ndim)))


class TestHyperedgeDot(OpSuite):
    test_bad_argument = None  # not public: it checks no arguments
    spec = OpSpec(
        function=dot,
        reference=dot_reference,
        make_case=case_maker(("x", "y", "node_scale_in", "node_scale_out")),
        operands=("x", "y", "node_scale_in", "node_scale_out"),
        linear=("x", "y"),
        feature_axis=(1, 1, None, None),
        result_axis=None,  # each device sums its features, and vjp the devices
        custom_calls=CUSTOM_CALLS,
    )


# --- What is particular to this op ---------------------------------------------------------------

on_all = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@on_all
@pytest.mark.parametrize("batch", [None, 3])
def test_padding_inside_rows(
    rng: np.random.Generator, batch: int | None, implementation: str
) -> None:
    """Ids out of range anywhere in hand-made arrays are skipped, in values and gradients."""
    examples = [padding_inside(Incidence.random(rng, "empty"), rng) for _ in range(batch or 1)]
    hypergraph = stack([hypergraph for hypergraph, _ in examples])
    dense = np.stack([kept.dense() for _, kept in examples])
    isolated = dense.sum(2) == 0
    x = rng.normal(size=(*isolated.shape, 3))
    weight = rng.normal(size=dense.shape[::2])
    cotangent = rng.normal(size=x.shape)

    def value_and_gradients(hypergraph: Hypergraph, x: Any, weight: Any, cotangent: Any) -> Any:
        y, vjp = jax.vjp(lambda x, w: hypergraph_aggregate(hypergraph, x, w), x, weight)
        return y, *vjp(cotangent)

    arguments = (hypergraph, np.where(isolated[..., None], np.nan, x), weight, cotangent)
    with setting(implementation, "float64"):
        if batch is None:
            results = value_and_gradients(*jax.tree.map(lambda array: array[0], arguments))
            results = [result[None] for result in results]
        else:
            results = jax.vmap(value_and_gradients)(*arguments)
    x = np.where(isolated[..., None], 0, x)
    y, x_gradient = (
        np.einsum("bve,be,bue,buk->bvk", dense, weight, dense, z) for z in (x, cotangent)
    )
    members = [np.einsum("bve,bvk->bek", dense, z) for z in (x, cotangent)]
    weight_gradient = np.sum(members[0] * members[1], -1)
    wanted = (y, x_gradient, weight_gradient)
    for name, got, want in zip(("value", "x", "weight"), results, wanted, strict=True):
        assert_close(got, want, 1e-12, name)
    assert (np.asarray(results[1])[isolated] == 0).all()


@on_all
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_accumulate_in_float32(dtype: str, implementation: str) -> None:
    """A sum of 70,000 ones stops at 256 in bfloat16 and exceeds float16; the mean is 1."""
    n = 70_000
    hypergraph = Hypergraph.from_incidence(np.arange(n), np.zeros(n, int))
    x = jnp.ones((n, 1), dtype)
    y = hypergraph_aggregate(
        hypergraph, x, hyperedge_reduce="mean", node_reduce="mean", implementation=implementation
    )
    assert y.dtype == dtype
    assert (np.asarray(y) == 1).all()


def test_factors_of_other_types() -> None:
    """Factors may be integers, or of a type other than that of the features, which decides."""
    want = hypergraph_aggregate(HYPERGRAPH, X, jnp.arange(3.0))
    for weight in (np.arange(3), jnp.arange(3, dtype=jnp.bfloat16), [0, 1, 2]):
        got = hypergraph_aggregate(HYPERGRAPH, X, weight)
        assert got.dtype == np.float32
        assert_close(got, want, 1e-6, "value")


def test_gradient_to_the_weights_counts_the_degrees() -> None:
    """With two equal weights in a symmetric normalization, scaling both changes nothing."""
    gradient = jax.grad(
        lambda weight: jnp.sum(
            hypergraph_aggregate(HYPERGRAPH, X, weight, normalization="symmetric") ** 2
        )
    )(jnp.full(3, 0.7))
    assert abs(float(jnp.sum(gradient))) < 1e-5 < float(jnp.abs(gradient).max())


def test_inverse_degrees_may_be_infinite() -> None:
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


def test_batch_too_large_to_be_joined(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of hypergraphs beyond the range of the index type runs one after another."""
    examples = [hypergraph_of(Incidence.random(rng, name)) for name in ("random", "padding")]
    x = rng.normal(size=(2, examples[0].num_nodes, 3)).astype(np.float32)

    weight = np.ones(examples[0].num_hyperedges, np.float32)

    def run() -> tuple[str, Any]:  # traced anew each time
        def energy(hypergraph: Hypergraph, x: Any, weight: Any) -> jax.Array:
            return jnp.sum(hypergraph_aggregate(hypergraph, x, weight) ** 2)

        gradient = jax.jit(jax.vmap(jax.grad(energy, argnums=(1, 2)), in_axes=(0, 0, None)))
        arguments = (stack(examples), x, weight)
        return str(gradient.trace(*arguments).jaxpr), gradient(*arguments)

    program, joined = run()
    assert "scan" not in program
    module = sys.modules[hypergraph_aggregate.__module__]  # the function hides its module
    monkeypatch.setattr(module, "_max_id", lambda _: 2 * examples[0].num_incidences - 1)
    program, looped = run()
    assert "scan" in program
    for one, other in zip(looped, joined, strict=True):
        assert_close(one, other, 1e-5, "gradient")
