"""Hypergraph aggregation: descriptions of the op and its variants for the shared checks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from op_spec import Case, Incidence, OpSpec
from op_suite import CoreChecks, OpSuite

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
        linear=("x", "hyperedge_weight"),
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
