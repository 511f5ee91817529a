"""Segment reductions: descriptions for the shared checks, and what is particular to each."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import OUT_OF_RANGE, assert_close, same_bits, setting
from op_suite import IMPLEMENTATIONS, KERNELS, PLATFORM, CoreChecks, OpSuite
from segment_cases import (
    DROP_IN,
    FAR,
    REDUCTIONS,
    REFERENCES,
    Elements,
    deviation,
    distinct,
    each_segment,
    finite,
    largest,
    logsumexp,
    segment_case,
    segment_spec,
    smallest,
    uneven_ids,
    variance,
)

import jax_gnn
from jax_gnn import Hypergraph, SegmentIndex, schedules
from jax_gnn._ops.segment_reduce import unsorted

on_all = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
on_kernels = pytest.mark.parametrize("implementation", KERNELS)

# The reductions that many rows are tested with: a product of many elements is 0 or infinite.
OF_MANY = tuple(name for name in unsorted.REDUCTIONS if name != "prod")
FLOATING = tuple(name for name in REDUCTIONS if name not in (*DROP_IN, "argmax"))


def ours(name) -> Callable[..., jax.Array]:
    return getattr(jax_gnn, f"segment_{name}")


def theirs(name) -> Callable[..., jax.Array]:
    return getattr(jax.ops, f"segment_{name}")


# --- The reductions ------------------------------------------------------------------------------


class TestSum(OpSuite):
    spec = segment_spec(jax_gnn.segment_sum, lambda data: data.sum(0), linear=True)


class TestMax(OpSuite):
    spec = segment_spec(finite(jax_gnn.segment_max), largest, kind="unsorted", numbers=distinct)


class TestSumUnsorted(CoreChecks):
    spec = segment_spec(jax_gnn.segment_sum, lambda data: data.sum(0), kind="unsorted")


class TestMeanByIndptr(CoreChecks):
    spec = segment_spec(jax_gnn.segment_mean, lambda data: data.mean(0), kind="indptr")


class TestMinByIndptr(CoreChecks):
    spec = segment_spec(finite(jax_gnn.segment_min), smallest, kind="indptr", numbers=distinct)


class TestProdUnsorted(CoreChecks):
    test_second_order = None  # takes long to compile; see test_products_with_zeros
    spec = segment_spec(jax_gnn.segment_prod, lambda data: data.prod(0), kind="unsorted", empty=1.0)


class TestVariance(CoreChecks):
    spec = segment_spec(jax_gnn.segment_var, variance)


class TestDeviation(CoreChecks):
    spec = segment_spec(
        jax_gnn.segment_std,
        functools.partial(deviation, ddof=1),
        kind="unsorted",
        numbers=distinct,
        ddof=1,
    )


class TestLogSumExp(CoreChecks):
    spec = segment_spec(finite(jax_gnn.segment_logsumexp), logsumexp)


def test_all_reductions_have_a_reference() -> None:
    assert {*REFERENCES, "softmax", "argmax"} == set(REDUCTIONS)


# --- Drop-in for jax.ops -------------------------------------------------------------------------


def random_ids(rng, count, size) -> np.ndarray:
    """Ids of which some are out of range."""
    ids = rng.integers(0, size, count)
    where = rng.random(count) < 0.2
    ids[where] = rng.choice([*OUT_OF_RANGE, size, size + 5], where.sum())
    return ids.astype(np.int32)


@on_all
@pytest.mark.parametrize("name", DROP_IN)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_as_jax_ops(rng, name, is_sorted, implementation) -> None:
    data = distinct(rng, (40, 3)).astype(np.float32)
    ids = random_ids(rng, 40, 7)
    ids = np.sort(ids) if is_sorted else ids
    # The same call of both libraries, value and gradient.
    cotangent = rng.normal(size=(7, 3)).astype(np.float32)
    results = []
    with setting(implementation):
        for op in (ours(name), theirs(name)):

            def function(data, op=op) -> jax.Array:
                return op(data, ids, 7, is_sorted, False, None, None)  # all by position

            value = function(data)
            if name != "prod":  # JAX has no gradient of that
                _, vjp = jax.vjp(function, data)
                value = (value, *vjp(cotangent))
            results.append(value)
    for got, want in zip(*map(jax.tree.leaves, results), strict=True):
        assert_close(got, want, 1e-5, "value or gradient")


@on_all
@pytest.mark.parametrize("name", DROP_IN)
@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint32", "int32", "int64", "bool", "complex64"]
)
def test_other_dtypes_as_jax_ops(rng, name, dtype, implementation) -> None:
    """Integers are exact and wrap around; what has no kernel is left to XLA."""
    if dtype == "complex64":
        data = (rng.normal(size=(40, 3)) + 1j * rng.normal(size=(40, 3))).astype(dtype)
    elif dtype == "bool":
        data = rng.random((40, 3)) < 0.8
    else:
        info = np.iinfo(dtype)
        data = rng.integers(info.min, info.max, (40, 3), dtype, endpoint=True)
    if dtype == "bool" and name in ("sum", "prod"):
        pytest.skip("jax.ops refuses them")
    ids = random_ids(rng, 40, 7)
    with setting(implementation, "int64"):
        want, got = (op(data, ids, num_segments=9) for op in (theirs(name), ours(name)))
    assert got.dtype == want.dtype
    if dtype == "complex64":
        assert np.allclose(got, want, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", DROP_IN)
def test_number_of_segments_by_default(rng, name) -> None:
    data, ids = rng.normal(size=(20, 2)).astype(np.float32), rng.integers(0, 6, 20)
    for kind in (np.asarray, jnp.asarray, list):
        got, want = (op(data, kind(ids)) for op in (ours(name), lambda d, i: theirs(name)(d, ids)))
        assert_close(got, want, 1e-5, "value")
    with pytest.raises(TypeError, match=r"num_segments must be given inside jax\.jit"):
        jax.jit(ours(name))(data, ids)


@on_all
@pytest.mark.parametrize("name", DROP_IN)
@pytest.mark.parametrize("mode", ["clip", "fill", "drop", None, jax.lax.GatherScatterMode.CLIP])
def test_modes(rng, name, mode, implementation) -> None:
    data = distinct(rng, (40, 3)).astype(np.float32)
    ids = random_ids(rng, 40, 7)
    with setting(implementation):
        got, want = (op(data, ids, 7, mode=mode) for op in (ours(name), theirs(name)))
    assert_close(got, want, 1e-5, "value")


@pytest.mark.parametrize("name", DROP_IN)
def test_buckets(rng, name) -> None:
    data, ids = rng.normal(size=(40, 3)).astype(np.float32), rng.integers(0, 5, 40)
    got, want = (op(data, ids, 5, bucket_size=7) for op in (ours(name), theirs(name)))
    assert_close(got, want, 1e-5, "value")
    empty = ours(name)(data[:0], ids[:0], 5, bucket_size=7)
    np.testing.assert_array_equal(empty, ours(name)(data[:0], ids[:0], 5))


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_no_segments_of_complex_numbers(name) -> None:
    data, ids = np.ones((4, 3), np.complex64), np.zeros(4, np.int32)
    y, pull = jax.vjp(lambda data: ours(name)(data, ids, 0), data)
    assert y.shape == (0, 3)
    np.testing.assert_array_equal(pull(y)[0], np.zeros_like(data))


@on_all
def test_subnormal_halves(implementation) -> None:
    # Threads of XLA flush floats below 2^-126 to 0: no half may be represented by one.
    data = np.arange(2**16, dtype=np.uint16).view(np.float16)
    data = data[np.isfinite(data)]
    with setting(implementation):
        y = ours("sum")(data, np.arange(len(data)), len(data), indices_are_sorted=True)
    assert np.abs(data[data != 0]).min() == 2.0**-24
    np.testing.assert_array_equal(y, data)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_traced_under_jit(rng, name) -> None:
    """The number of segments is static, as jax.ops users write it."""
    data, ids = rng.normal(size=(20, 2)).astype(np.float32), rng.integers(0, 6, 20)
    jitted = jax.jit(ours(name), static_argnames=("num_segments", "indices_are_sorted"))
    assert_close(
        jitted(data, ids, num_segments=6), ours(name)(data, ids, num_segments=6), 1e-6, "value"
    )


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
def test_in_place_of_jax_ops(rng, monkeypatch, shape, implementation) -> None:
    """Fallbacks call the functions of JAX even where users have replaced those of ``jax.ops``."""
    ids, originals = random_ids(rng, 40, 7), {name: theirs(name) for name in DROP_IN}
    # Other ops fall back to jax.ops, too.
    hypergraph = Hypergraph.from_incidence(ids % 5, np.arange(40) % 3, validate=False)
    for name in DROP_IN:
        monkeypatch.setattr(jax.ops, f"segment_{name}", ours(name))
    with setting(implementation):
        for dtype in ("float32", "complex64"):
            data = rng.normal(size=(40, *shape)).astype(dtype)
            for name, original in originals.items():
                got, want = (
                    jax.jit(op, static_argnums=2)(data, ids, 7) for op in (theirs(name), original)
                )
                assert_close(got.real, want.real, 1e-5, name)
            got, want = (
                op(data, ids, 7, bucket_size=9) for op in (theirs("sum"), originals["sum"])
            )
            assert_close(got.real, want.real, 1e-5, "in buckets")
        x = rng.normal(size=(5, *shape)).astype(np.float32)
        assert jax_gnn.hypergraph_aggregate(hypergraph, x).shape == x.shape


@pytest.mark.skipif(PLATFORM != "cpu", reason="about the CPU's fall-back")
@pytest.mark.parametrize("shape", [(), (3, 3, 4)], ids=str)
@pytest.mark.parametrize("name", DROP_IN)
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_plain_xla_gets_what_users_gave(name, shape, implementation) -> None:
    """Flattened features would be a copy, slower than the sum; so would those of the gradient."""
    data, ids = np.ones((40, *shape), np.float32), np.zeros(40, np.int32)

    def function(data) -> jax.Array:
        return ours(name)(data, ids, 7)

    with setting(implementation):
        programs = [jax.jit(function).lower(data).as_text()]
        if name == "sum":
            gradient = jax.jit(lambda ct: jax.vjp(function, data)[1](ct))
            programs.append(gradient.lower(np.ones((7, *shape), np.float32)).as_text())
    # The one reshape that is allowed gives ids a second axis.
    for program in programs:
        assert "scatter" in program or "gather" in program
        assert "reshape" not in program.replace("reshape %arg1", "")  # ids get an axis


@on_all
@pytest.mark.parametrize("name", [name for name in REDUCTIONS if name != "argmax"])
@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
def test_batches_of_any_features(rng, name, shape, implementation) -> None:
    """Data are mapped along each axis, with the same ids and with separate ids."""
    data, ids = (
        distinct(rng, (40, *shape)).astype(np.float32),
        random_ids(rng, 80, 7).reshape(2, -1),
    )
    # Negated data swap maxima and minima, so that elements of the batch differ.
    pair = np.stack([data, -data])

    def function(data, ids) -> Any:
        op = functools.partial(ours(name), segment_ids=ids, num_segments=7)
        value, vjp = jax.vjp(lambda x: jnp.where(jnp.isfinite(op(x)), op(x), 0), data)
        return value, vjp(jnp.cos(jnp.arange(value.size, dtype=np.float32)).reshape(value.shape))

    jitted = jax.jit(function)
    with setting(implementation):
        for axis, ids_axis in ((0, None), (len(shape) + 1, 0)):
            mapped = jax.jit(jax.vmap(function, (axis, ids_axis)))(
                np.moveaxis(pair, 0, axis), ids[0] if ids_axis is None else ids
            )
            for i in range(2):
                want = jitted(pair[i], ids[0 if ids_axis is None else i])
                for got, expected in zip(*map(jax.tree.leaves, (mapped, want)), strict=True):
                    assert_close(got[i], expected, 1e-4, f"{axis=}, {ids_axis=}")


# --- Ids of any integer type ---------------------------------------------------------------------


def far_ids(rng, is_sorted) -> tuple[np.ndarray, np.ndarray]:
    """``(40,)`` int64 ids, of which some are padding beyond 32 bits; and with padding next to 0."""
    ids = rng.integers(0, 7, 40)
    where = rng.permutation(40)[: len(FAR)]
    ids[where] = FAR
    ids = np.sort(ids) if is_sorted else ids
    return ids, np.clip(ids, -1, 7).astype(np.int32)


@on_all
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_ids_beyond_32_bits_are_padding(rng, name, is_sorted, implementation) -> None:
    """Ids are checked before JAX narrows them, whether 64 bits are enabled or not."""
    far, near = far_ids(rng, is_sorted)
    data = distinct(rng, (40, 2)).astype(np.float32)
    data[(near < 0) | (near >= 7)] = np.nan

    def results(ids) -> Any:
        op = functools.partial(
            ours(name), segment_ids=ids, num_segments=7, indices_are_sorted=is_sorted
        )
        if name == "argmax":
            return op(data)
        value, vjp = jax.vjp(op, data)
        return value, vjp(jnp.cos(jnp.arange(value.size, dtype=np.float32)).reshape(value.shape))

    # An int64 array of JAX outlives the setting that made it.
    with setting(None, "int64"):
        wide = jnp.asarray(far)
    for x64, kinds in (("float32", (far, far.tolist(), wide)), ("int64", (far, wide))):
        with setting(implementation, x64):
            jitted = jax.jit(results)
            want = jitted(near)
            got = [results(ids) for ids in kinds]
            got += [jitted(wide)] if x64 == "int64" else []  # else JAX narrows what is traced
        for values in got:
            for value, expected_value in zip(*map(jax.tree.leaves, (values, want)), strict=True):
                assert_close(value, expected_value, 1e-6, x64)


@on_all
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"])
def test_ids_of_narrow_and_unsigned_types(rng, dtype, is_sorted, implementation) -> None:
    """The largest numbers are padding, at the end if sorted; of more segments than ids can name."""
    # Ids cover the extremes of the type, and small segments between.
    info = np.iinfo(dtype)
    size = 7 if info.max > 2**31 else 70_000
    ids = rng.choice(np.array([info.min, 0, 1, 2, 3, info.max - 1, info.max], dtype), 50)
    ids = np.sort(ids) if is_sorted else ids
    near = np.clip(ids.astype(object), -1, size).astype(np.int32)
    data = rng.normal(size=(50, 3)).astype(np.float32)
    for x64 in ("float32", "int64"):
        with setting(implementation, x64):
            want = jax_gnn.segment_sum(data, near, size, is_sorted)
            variants = [ids, ids.tolist()]
            variants += [jnp.asarray(ids)] if jnp.asarray(ids).dtype == dtype else []
            for variant in variants:
                got = jax_gnn.segment_sum(data, variant, size, is_sorted)
                np.testing.assert_array_equal(got, want)


@on_all
def test_row_pointers_beyond_32_bits(implementation) -> None:
    """Pointers past the elements, beyond 32 bits too, mean their end."""
    data = np.arange(5, dtype=np.float32)
    for x64 in ("float32", "int64"):
        with setting(implementation, x64):
            for pointer in (5, 2**31, 2**32, 2**32 + 2, 2**63 - 1):
                got = jax_gnn.segment_sum(data, indptr=np.array([0, 2, pointer, pointer]))
                np.testing.assert_array_equal(got, [1, 9, 0])


@on_all
@pytest.mark.parametrize("x64", [False, True])
def test_segment_index_of_ids_beyond_32_bits(rng, x64, implementation) -> None:
    x = rng.normal(size=(7, 3)).astype(np.float32)
    with setting(implementation, "int64" if x64 else "float32"):
        for is_sorted in (False, True):
            far_index, index = (SegmentIndex.from_ids(ids, 7) for ids in far_ids(rng, is_sorted))
            edges = index.gather(x)
            np.testing.assert_array_equal(far_index.gather(x), edges)
            np.testing.assert_array_equal(far_index.segment_sum(edges), index.segment_sum(edges))
            for method in (SegmentIndex.gather, SegmentIndex.segment_sum):
                values = x if method is SegmentIndex.gather else edges
                gradients = [
                    jax.grad(lambda v, i=any_index: (method(i, v) ** 2).sum())(values)  # noqa: B023
                    for any_index in (far_index, index)
                ]
                np.testing.assert_array_equal(*gradients)


def test_sizes_that_need_64_bits() -> None:
    data = np.ones((2, 0), np.float32)
    with pytest.raises(ValueError, match=r"need 64-bit indices: enable jax_enable_x64"):
        jax_gnn.segment_sum(data, np.array([0, 2**31]), 2**31)
    with pytest.raises(ValueError, match=r"need 64-bit indices: enable jax_enable_x64"):
        jax_gnn.segment_sum(data, np.array([0, 2**32]))  # by default the largest id plus one


# --- Values of extremes --------------------------------------------------------------------------


@on_all
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_empty_segments(dtype, implementation) -> None:
    data, ids = jnp.zeros((0, 2), dtype), np.zeros(0, np.int32)
    expected = {name: empty for name, (_, empty) in REFERENCES.items()} | {"argmax": -1}
    if dtype == "int32":  # in the place of infinities
        limits = np.iinfo(dtype)
        expected |= {name: np.clip(expected[name], limits.min, limits.max) for name in DROP_IN}
    with setting(implementation):
        for name, want in expected.items():
            got = ours(name)(data, ids, 3)
            assert got.shape == (3, 2)
            assert (np.asarray(got) == want).all(), name


@on_all
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_ties_share_the_gradient(rng, name, dtype, implementation) -> None:
    """The derivative is that of the mean of the tied elements, in both modes."""
    data = rng.integers(-1, 2, (30, 3)).astype(dtype)
    ids = rng.integers(-1, 4, 30)
    extreme = {"max": np.max, "min": np.min}[name]
    # The reference averages over ties, segment by segment.
    share = np.zeros((4, 30, 3))  # derivative of each segment by each element
    for segment in range(4):
        mine = ids == segment
        if mine.any():
            tied = mine[:, None] & (data == extreme(data[mine], axis=0))
            share[segment] = tied / tied.sum(0)
    cotangent, tangent = rng.normal(size=(4, 3)).astype(dtype), rng.normal(size=(30, 3))
    tangent = tangent.astype(dtype)
    with setting(implementation, dtype):
        function = functools.partial(ours(name), segment_ids=ids, num_segments=4)
        _, derivative = jax.jvp(function, (data,), (tangent,))
        (gradient,) = jax.vjp(function, data)[1](cotangent)
    tolerance = 4e-3 if dtype == "float16" else 1e-6
    assert_close(gradient, np.einsum("snk,sk->nk", share, cotangent), tolerance, "gradient")
    assert_close(derivative, np.einsum("snk,nk->sk", share, tangent), tolerance, "tangent")


@on_all
def test_nan_and_infinity(implementation) -> None:
    """A NaN is the maximum and the minimum of its segment alone, as in jax.ops."""
    data = np.array([1, np.nan, 3, np.inf, 4, -np.inf, 5], np.float32)
    ids = np.array([0, 0, 0, 1, 1, 2, 2])
    with setting(implementation):
        for name in (*DROP_IN, "mean"):
            got = np.asarray(ours(name)(data, ids, 3))
            want = got if name == "mean" else np.asarray(theirs(name)(data, ids, 3))
            np.testing.assert_array_equal(got, want)
            assert np.isnan(got[0])
            assert not np.isnan(got[1:]).any()


@on_kernels
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 8])
def test_means_of_equal_numbers(dtype, width, implementation) -> None:
    """A mean of equal numbers is that number exactly, for segments of all lengths."""
    # Lengths cover all splits of a segment over lanes, teams and blocks.
    lengths = np.arange(1, 400)
    ids = np.repeat(np.arange(len(lengths)), lengths)
    numbers = np.arange(width) - 3.0
    with setting(implementation, dtype):
        data = jnp.asarray(np.broadcast_to(numbers, (len(ids), width)), dtype)
        got = ours("mean")(data, ids, len(lengths), indices_are_sorted=True)
    np.testing.assert_array_equal(got, np.broadcast_to(numbers, got.shape))


@on_all
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int8"])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_argmax(rng, dtype, is_sorted, implementation) -> None:
    """The first of those that tie, as in numpy."""
    data = rng.integers(-3, 4, (50, 3)).astype(dtype)
    ids = random_ids(rng, 50, 9)
    ids = np.sort(ids) if is_sorted else ids
    ids[ids == 4] = 3  # so that one is empty
    want = np.full((9, 3), -1)
    for segment in range(9):
        where = np.flatnonzero(ids == segment)
        if len(where):
            want[segment] = where[data[where].argmax(0)]
    with setting(implementation):
        got = jax_gnn.segment_argmax(data, ids, 9, indices_are_sorted=is_sorted)
    assert jnp.issubdtype(got.dtype, jnp.integer)
    np.testing.assert_array_equal(got, want)


@on_all
def test_argmax_of_nan_and_infinity(implementation) -> None:
    data = np.array([1, np.nan, 3, np.nan, -np.inf, -np.inf], np.float32)
    ids = np.array([0, 0, 0, 0, 1, 1])
    with setting(implementation):
        np.testing.assert_array_equal(jax_gnn.segment_argmax(data, ids, 2), [1, 4])
        gradient = jax.grad(lambda x: jax_gnn.segment_argmax(x, ids, 2).sum() * x[0])(data)
    assert gradient[0] == 5  # positions have no derivative


@on_all
@pytest.mark.parametrize("is_sorted", [False, True])
def test_products_with_zeros(rng, is_sorted, implementation) -> None:
    """First and second derivatives are exact with 0, 1, 2 and 3 zeros in a segment."""
    ids = np.repeat(np.arange(4), 4)
    data = rng.uniform(0.5, 2, 16)
    for segment in range(4):
        data[4 * segment + rng.choice(4, segment, replace=False)] = 0
    # Factors of a segment need not be contiguous.
    if not is_sorted:
        order = rng.permutation(16)
        ids, data = ids[order], data[order]

    def product(data) -> jax.Array:
        return jax_gnn.segment_prod(data, ids, 4, indices_are_sorted=is_sorted)

    def one_by_one(data) -> jax.Array:
        factors = [[data[i] for i in np.flatnonzero(ids == segment)] for segment in range(4)]
        return jnp.stack([functools.reduce(operator.mul, row) for row in factors])

    with setting(implementation, "float64"):
        for derivative in (jax.jacrev, jax.jacfwd, jax.hessian):
            got, want = (jax.jit(derivative(f))(data) for f in (product, one_by_one))
            assert_close(got, want, 1e-12, derivative.__name__)
            assert np.isfinite(want).all()


@on_all
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_logsumexp_of_extremes(dtype, implementation) -> None:
    """No overflow; infinities as in jax.nn.logsumexp."""
    data = np.array([6e4, 6e4, -6e4, -6e4, -np.inf, 2, -np.inf, -np.inf, np.inf, 1]).astype(
        jnp.dtype(dtype)
    )
    ids = np.repeat(np.arange(5), 2)
    with setting(implementation):
        op = functools.partial(jax_gnn.segment_logsumexp, segment_ids=ids, num_segments=5)
        got = op(data)
        gradient = jax.grad(lambda data: op(data)[:4].sum())(data)
    want = np.logaddexp(*data.astype(np.float64).reshape(5, 2).T)
    np.testing.assert_allclose(np.asarray(got).astype(float), want, rtol=1e-2)
    np.testing.assert_allclose(
        np.asarray(gradient[:8]).astype(float), [0.5, 0.5, 0.5, 0.5, 0, 1, 0, 0], rtol=1e-2
    )


@on_all
@pytest.mark.parametrize("ddof", [0, 1, 3])
def test_variance_and_deviation(rng, ddof, implementation) -> None:
    """Variances are those of numpy, also far from 0, where large sums would lose differences."""
    ids = np.sort(rng.integers(0, 8, 30))
    data = rng.normal(size=(30, 2)) + 1000
    with setting(implementation):
        for name, reduce in (("var", variance), ("std", deviation)):
            got = ours(name)(data.astype(np.float32), ids, 9, ddof=ddof)
            want = each_segment(functools.partial(reduce, ddof=ddof))(
                Elements(ids, 9), data.astype(np.float32).astype(float)
            )
            assert_close(got, want, 1e-3, name)


@on_all
def test_deviation_of_equal_elements(implementation) -> None:
    """The gradient of a deviation of 0 is 0."""
    ids = np.array([0, 0, 1, 1])
    data = np.array([2, 2, 1, 3], np.float32)
    with setting(implementation):
        value, gradient = jax.value_and_grad(lambda x: jax_gnn.segment_std(x, ids, 3).sum())(data)
    assert value == 1
    assert_close(gradient, [0, 0, -0.5, 0.5], 1e-6, "gradient")


@on_all
@pytest.mark.parametrize("name", FLOATING)
def test_integers_give_floats(rng, name, implementation) -> None:
    data, ids = rng.integers(-5, 5, (20, 2)), rng.integers(0, 4, 20)
    with setting(implementation):
        got = ours(name)(data, ids, 4)
        want = ours(name)(data.astype(np.float32), ids, 4)
    assert got.dtype == np.float32
    assert_close(got, want, 1e-6, "value")


@on_all
def test_mean_of_complex_numbers(implementation) -> None:
    data, ids = np.array([1 + 2j, 3, 5j], np.complex64), np.array([0, 0, 1])
    with setting(implementation):
        assert np.allclose(ours("mean")(data, ids, 3), [2 + 1j, 5j, 0])


@on_all
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_half_types_accumulate_in_float32(dtype, is_sorted, implementation) -> None:
    """A running sum of ones would stop at 256 in bfloat16, at 2048 in float16."""
    # Half types cannot represent running sums of so many ones.
    count = 2**15
    data, ids = jnp.ones((count, 3), dtype), np.zeros(count, np.int32)
    options: Any = {"num_segments": 2, "indices_are_sorted": is_sorted}
    with setting(implementation):
        assert (np.asarray(jax_gnn.segment_sum(data, ids, **options)[0]) == count).all()
        assert (np.asarray(jax_gnn.segment_mean(data, ids, **options)[0]) == 1).all()
        assert (np.asarray(jax_gnn.segment_var(data, ids, **options)) == 0).all()


def test_ids_that_are_not_sorted_after_all(rng) -> None:
    """Results are arbitrary, but have the right shape, and no access leaves the buffers."""
    ids = rng.integers(-3, 50, 3000).astype(np.int32)
    data = rng.normal(size=(3000, 5)).astype(np.float32)
    for name in REDUCTIONS:
        result = ours(name)(data, ids, 40, indices_are_sorted=True)
        assert jax.block_until_ready(result).shape[1:] == (5,)
    for indptr in ([5, 3, 9, 2], [-7, 0, 3], [0, 2**31 - 1, -(2**31)], [4000, 5000]):
        # Traced pointers: those that descend are refused where they are known.
        result = jax.jit(lambda indptr: jax_gnn.segment_sum(data, indptr=indptr))(
            np.array(indptr, np.int32)
        )
        assert jax.block_until_ready(result).shape == (len(indptr) - 1, 5)


# --- The same bits -------------------------------------------------------------------------------


@on_kernels
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "float32") for name in REDUCTIONS),
        *((name, dtype) for name in ("sum", "max", "softmax") for dtype in ("float64", "bfloat16")),
    ],
)
def test_same_bits_in_100_runs(rng, name, dtype, implementation) -> None:
    """Value and gradient, alone and under vmap over everything, with unsorted ids."""
    # Long tails make blocks share segments, where an order of additions could vary.
    sizes = (3, 6000, 5)
    ids = np.minimum(rng.geometric(0.01, sizes[:2]), 900).astype(np.int32)  # long-tailed
    data = rng.normal(size=sizes).astype(jnp.dtype(dtype))

    def results(ids, data) -> Any:
        op = functools.partial(ours(name), segment_ids=ids, num_segments=901)
        if name in ("argmax", "prod"):  # the derivative of a product is no kernel
            return op(data)
        value, vjp = jax.vjp(op, data)
        return value, vjp(jnp.cos(jnp.arange(value.size, dtype=dtype)).reshape(value.shape))

    single, mapped = jax.jit(results), jax.jit(jax.vmap(results))
    with setting(implementation, dtype):
        want, expected = single(ids[0], data[0]), mapped(ids, data)
        for _ in range(99):
            assert same_bits(single(ids[0], data[0]), want)
            assert same_bits(mapped(ids, data), expected)


# --- Schedules -----------------------------------------------------------------------------------

SCHEDULES = [
    schedules.Schedule("walk", 1, 32, 1),
    schedules.Schedule("gather", 1, 256, 7),
    schedules.Schedule("walk", 4, 128, 100),
    schedules.Schedule("gather", 16, 64, 3),
    schedules.Schedule("walk", 32, 256, 2000),
    schedules.Schedule("step", 8, 256, 235),
]


@on_kernels
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: "-".join(map(str, s)))
@pytest.mark.parametrize("shape", ["tail", "giant", "empty"])
def test_schedules_give_the_same_result(rng, schedule, shape, implementation) -> None:
    """All schedules agree, for segments that many blocks share, and for empty segments."""
    count, size = 60_000, 400
    ids = uneven_ids(rng, shape, count, size)
    data = rng.normal(size=(count, 19)).astype(np.float32)
    for name in OF_MANY:
        with setting(implementation), schedules.use(schedule):
            op = functools.partial(ours(name), indices_are_sorted=True)
            got = op(data, ids.astype(np.int32), size)
        want = each_segment(*REFERENCES[name])(Elements(ids, size), data.astype(float))
        assert_close(got, want, 1e-5, name)


@on_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("width, lanes", [(1, 1), (2, 2), (3, 4), (4, 1)])
@pytest.mark.parametrize("size", [20, 6_000, 20_000, 60_000])
def test_many_narrow_rows(rng, size, width, lanes, dtype, implementation) -> None:
    """Rows of an entry or none, up to more of them than wait to be written side by side."""
    count = int(rng.integers(5_500, 6_000))
    ids = rng.integers(size, size=count)
    # Mostly rows of one entry or none, or of hundreds, some longer rows, and padding.
    ids[:700] = rng.integers(size // 2, size // 2 + 9, 700)  # some longer ones
    ids[700:720] = rng.choice([-1, size], 20)
    ids = np.sort(ids)
    data = rng.normal(size=(count, width)).astype(np.float32)
    for name in OF_MANY:
        schedule = schedules.Schedule("walk", lanes, 64, 5)
        with setting(implementation, dtype), schedules.use(schedule):
            op = functools.partial(ours(name), indices_are_sorted=True)
            typed_data = jnp.asarray(data, dtype)
            got = op(typed_data, ids.astype(np.int32), size)
        exact = np.asarray(typed_data).astype(float)
        want = each_segment(*REFERENCES[name])(Elements(ids, size), exact)
        tolerance = {"float32": 1e-5, "bfloat16": 1e-2, "float64": 1e-12}[dtype]
        assert_close(np.asarray(got).astype(float), want, tolerance, name)


@on_kernels
def test_a_forced_schedule_is_used(implementation) -> None:
    """The program names the kernel; the number of blocks is in the shape of the workspace."""
    data, ids = np.ones((9000, 4), np.float32), np.zeros(9000, np.int32)
    op = functools.partial(jax_gnn.segment_sum, num_segments=2, indices_are_sorted=True)
    # Programs of different schedules must differ.
    programs = set()
    with setting(implementation):
        for blocks in (1, 2, 3):
            with schedules.use(schedules.Schedule("walk", 4, 128, blocks)):
                programs.add(jax.jit(op).lower(data, ids).as_text())
        assert all('kernel = "walk"' in program for program in programs)
        with schedules.use(schedules.Schedule("step", 8, 256, 1)):
            programs.add(program := jax.jit(op).lower(data, ids).as_text())
    assert 'kernel = "step"' in program
    assert len(programs) == 4


# --- Unsorted ids --------------------------------------------------------------------------------


@on_all
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("size", [1, 300, 30_000])
@pytest.mark.parametrize("width", [1, 3, 70])
def test_unsorted_ids(rng, width, size, dtype, implementation) -> None:
    """Rows have many entries or few; sums are exact in any order."""
    count = 20_000
    ids = rng.integers(-1, size + 1, count)
    data = rng.integers(-3, 4, (count, width))
    # numpy adds in the order of the ids; integers make the order irrelevant.
    valid = (ids >= 0) & (ids < size)
    counts = np.bincount(ids[valid], minlength=size)[:, None]

    def want(ufunc, start) -> np.ndarray:
        result = np.full((size, width), start)
        ufunc.at(result, ids[valid], data[valid])
        return result

    expected = {"sum": want(np.add, 0), "max": want(np.maximum, -4), "min": want(np.minimum, 4)}
    if dtype != "int32":
        expected["mean"] = expected["sum"] / np.maximum(counts, 1)
    with setting(implementation, dtype):
        for name, values in expected.items():
            got = np.asarray(ours(name)(jnp.asarray(data, dtype), ids, size), np.float64)
            filled = got if name in ("sum", "mean") else np.where(counts > 0, got, values)
            assert_close(filled, values, 4e-3 if dtype == "bfloat16" else 1e-6, name)


@pytest.mark.skipif(PLATFORM != "cpu", reason="about the CPU's kernels")
@pytest.mark.parametrize(
    ("count", "size", "width", "is_sorted", "by_kernel"),
    [
        (100, 20, 4, True, False),  # a custom call costs more than that
        (100, 20, 4, False, False),
        (10_000, 1000, 4, True, True),
        (10_000, 1000, 4, False, False),  # ids are not worth sorting
        (8200, 8200, 256, True, False),
        (8200, 1000, 256, True, True),
    ],
)
def test_plain_xla_where_it_is_faster(count, size, width, is_sorted, by_kernel) -> None:
    """A demanded kernel is used even where plain XLA is faster."""
    data, ids = np.ones((count, width), np.float32), np.zeros(count, np.int32)
    op = functools.partial(jax_gnn.segment_sum, num_segments=size, indices_are_sorted=is_sorted)
    for implementation, kernel in ((None, by_kernel), ("cpu", True)):
        with setting(implementation):
            program = jax.jit(op).lower(data, ids).compile().as_text()
        assert ("jax_gnn_segment_reduce" in program) == kernel
        assert ("jax_gnn_segment_order" in program) == (kernel and not is_sorted)


@pytest.mark.skipif(PLATFORM != "cpu", reason="about the CPU's kernels")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_scatter_and_gather_in_any_order(rng, dtype) -> None:
    """Kernels for large arrays are exact on small arrays, and add elements in order."""
    # Small integers are exact in all dtypes, in any order of additions.
    ufuncs = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
    with setting(None, dtype):
        for width, count, size in ((3, 40, 7), (100, 3000, 50), (1, 0, 3)):
            ids = rng.integers(-3, size + 3, count).astype(np.int32)
            valid = (ids >= 0) & (ids < size)
            data = rng.integers(-2, 3, (count, width)).astype(dtype)
            for reduce, ufunc in ufuncs.items():
                call = functools.partial(unsorted.segment_scatter, num_rows=size, reduce=reduce)
                want = np.array(call(data[:0], ids[:0]))
                ufunc.at(want, ids[valid], data[valid])
                np.testing.assert_array_equal(call(data, ids), want)
                # Sorted ids take another path of the kernel.
                order = np.argsort(ids, kind="stable")
                np.testing.assert_array_equal(call(data[order], ids[order]), want)
            rows = rng.integers(-9, 9, (size, width)).astype(dtype)
            want = np.where(valid[:, None], rows[np.where(valid, ids, 0)], 0)
            np.testing.assert_array_equal(unsorted.gather_rows(rows, ids), want)


@pytest.mark.skipif(PLATFORM != "cpu", reason="about the CPU's kernels")
def test_kernels_of_large_results() -> None:
    """Unsorted ids are scattered without a sort; the gradient is a gather."""
    x, ids = np.ones((30_000, 64), np.float32), np.zeros(30_000, np.int32)

    def value(x, size) -> Any:
        return jax.vjp(lambda x: jax_gnn.segment_sum(x, ids, size), x)[1](jnp.ones((size, 64)))

    for size, targets in ((100, []), (30_000, ["gather_rows", "segment_scatter"])):
        lowered = jax.jit(jax_gnn.segment_sum, static_argnums=2).lower(x, ids, size).as_text()
        lowered += jax.jit(value, static_argnums=1).lower(x, size).as_text()
        kernels = [
            name for name in ("gather_rows", "segment_scatter") if f"jax_gnn_{name}" in lowered
        ]
        assert kernels == targets


# --- Static indices ------------------------------------------------------------------------------


@on_all
@pytest.mark.parametrize("is_sorted", [False, True])
def test_segment_index(rng, is_sorted, implementation) -> None:
    """Gather and segment sum by constant ids, with derivatives, jitted and mapped."""
    case = segment_case("sorted" if is_sorted else "unsorted", distinct)(rng, "padding", (3,))
    ids, size = case.plain
    valid = case.plain.valid
    index = SegmentIndex.from_ids(ids, size)
    # Gather and sum are products with a one-hot matrix and its transpose.
    one_hot = np.zeros((len(ids), size))
    one_hot[valid, ids[valid]] = 1
    x, edges = rng.normal(size=(2, size, 3)), rng.normal(size=(2, len(ids), 3))
    padded = np.where(valid[:, None], edges, np.nan)
    with setting(implementation, "float64"):

        def gather(x, index) -> Any:
            return index.gather(x)

        def total(x, index) -> Any:
            return index.segment_sum(x)

        for function, matrix, values, dirty in (
            (gather, one_hot, x, x),
            (total, one_hot.T, edges, padded),
        ):
            got = jax.jit(jax.vmap(function, (0, None)))(dirty, index)
            assert_close(got, matrix @ values, 1e-12, "value")
            cotangent = rng.normal(size=got.shape[1:])
            _, vjp = jax.vjp(functools.partial(function, index=index), dirty[0])
            assert_close(vjp(cotangent)[0], matrix.T @ cotangent, 1e-12, "gradient")
            twice = jax.grad(lambda x, f=function: jnp.sum(f(x, index) ** 2))
            product = jax.jvp(twice, (values[0],), (values[1],))[1]
            assert_close(product, 2 * matrix.T @ matrix @ values[1], 1e-11, "second derivative")


@pytest.mark.parametrize("is_sorted", [False, True])
def test_segment_index_never_sorts_or_scatters(rng, is_sorted) -> None:
    ids = rng.integers(0, 6, 40)
    index = SegmentIndex.from_ids(np.sort(ids) if is_sorted else ids, 6)

    def energy(x) -> jax.Array:
        return jnp.sum(index.segment_sum(jnp.tanh(index.gather(x))) ** 2)

    program = str(jax.make_jaxpr(jax.grad(energy))(np.ones((6, 2), np.float32)))
    assert "segment_reduce" in program
    for word in ("sort", "scatter", "segment_order"):
        assert word not in program


def test_ids_of_a_segment_index_are_concrete() -> None:
    with pytest.raises(TypeError, match="ids must be concrete"):
        jax.jit(lambda ids: SegmentIndex.from_ids(ids, 2))(np.zeros(3, int))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_maxima_of_rounded_products_have_gradients(rng, dtype, implementation) -> None:
    """XLA may compare unrounded products with a maximum, which none of them attains then."""
    ids = np.sort(rng.integers(0, 7, 18))
    x, w = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((18, 3), (3, 3)))

    def gradient(reduce) -> Any:
        def total(w) -> Any:
            y = reduce(x @ w, ids, 7)
            return jnp.sum(jnp.where(jnp.isfinite(y), y, 0), dtype=jnp.float32)

        return np.asarray(jax.jit(jax.grad(total))(w), np.float32)

    with setting(implementation, "float32"):
        got = gradient(jax_gnn.segment_max)
    np.testing.assert_allclose(got, gradient(jax.ops.segment_max), rtol=0.02, atol=0.05)


# --- Size ----------------------------------------------------------------------------------------


@pytest.mark.skipif(PLATFORM != "cuda", reason="needs 15 GB of memory to spare")
@pytest.mark.parametrize("is_sorted", [True, False])
def test_more_than_2_to_the_31_elements(is_sorted) -> None:
    rows, width = 2**16 + 3, 2**15 + 8
    ids = np.arange(rows, dtype=np.int32) * 5 // rows
    data = jnp.arange(rows, dtype=jnp.bfloat16)[:, None] // 256 + jnp.zeros(width, jnp.bfloat16)
    assert data.size > 2**31
    # The array has more elements than 32 bits address.
    order = np.argsort(-ids, kind="stable")
    if not is_sorted:
        ids = ids[order]
    op = functools.partial(jax_gnn.segment_max, num_segments=5, indices_are_sorted=is_sorted)
    got = np.asarray(jax.jit(op)(data, ids))
    column = np.asarray(data[:, 0])
    want = np.stack([column[ids == segment].max() for segment in range(5)])
    assert (got == want[:, None]).all()


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_gradients_of_extremes_of_rows_that_xla_would_compute_twice(rng, reduce):
    """XLA rounds a product and a sum in one loop otherwise than apart; rows must stay equal."""
    ids = np.sort(rng.integers(6, size=17))
    x, y, weight = rng.normal(size=(17, 4)), rng.normal(size=(17, 4)), rng.normal(size=(6, 4))

    def loss(x, ids):
        rows = x[:, :1] * y + x.mean()
        extremes = getattr(jax_gnn, f"segment_{reduce}")(rows, ids, 6, indices_are_sorted=True)
        return jnp.sum(weight * jnp.where(jnp.isfinite(extremes), extremes, 0))

    def plain(x):
        rows = x[:, :1] * y + x.mean()
        extremes = getattr(jax.ops, f"segment_{reduce}")(rows, ids, 6)
        return jnp.sum(weight * jnp.where(jnp.isfinite(extremes), extremes, 0))

    with jax.enable_x64(True):
        options = {"xla_backend_optimization_level": 0}
        compiled = jax.jit(jax.grad(loss)).lower(x, ids).compile(options)
        np.testing.assert_allclose(compiled(x, ids), jax.grad(plain)(x), rtol=1e-12, atol=1e-12)
