"""Segment softmax: descriptions for the shared checks, and what is particular to it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import OpSpec, assert_close, setting
from op_suite import IMPLEMENTATIONS, KERNELS, CoreChecks, OpSuite
from segment_cases import Elements, normal, on_segments, segment_case, segment_index, uneven_ids

from jax_gnn import schedules, segment_softmax

on_all = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def reference(elements, data) -> np.ndarray:
    result = np.zeros_like(data)
    for segment in np.unique(elements.ids[elements.valid]):
        mine = elements.ids == segment
        powers = np.exp(data[mine] - data[mine].real.max(0))
        result[mine] = powers / powers.sum(0)
    return result


def softmax_spec(kind) -> OpSpec:
    return OpSpec(
        function=on_segments(segment_softmax, kind),
        reference=reference,
        make_case=segment_case(kind, normal),
        operands=("data",),
        feature_axis=(1,),
        result_axis=1,
    )


class TestSoftmax(OpSuite):
    spec = softmax_spec("sorted")


class TestSoftmaxUnsorted(CoreChecks):
    spec = softmax_spec("unsorted")


class TestSoftmaxByIndptr(CoreChecks):
    spec = softmax_spec("indptr")


# --- What is particular to this op ---------------------------------------------------------------


@on_all
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_sums_to_one(rng, dtype, is_sorted, implementation) -> None:
    """Also one giant segment in a half type, where each share is tiny."""
    # Most elements are in one segment, so that shares are tiny.
    count = 3000
    ids = np.where(rng.random(count) < 0.8, 5, rng.integers(-1, 40, count))
    ids = np.sort(ids) if is_sorted else ids
    data = rng.normal(size=(count, 3)).astype(jnp.dtype(dtype))
    with setting(implementation):
        y = segment_softmax(data, ids, 40, is_sorted)
        assert y.dtype == dtype
    y = np.asarray(y).astype(np.float64)
    tolerance = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}[dtype]
    assert (y[(ids < 0)] == 0).all()
    for segment in np.unique(ids[ids >= 0]):
        assert_close(y[ids == segment].sum(0), np.ones(3), tolerance, f"segment {segment}")


@on_all
@pytest.mark.parametrize(
    "levels", [(0, 100), (1, -200), (-200, -300), (-200, 20), (-np.inf, 0), (0, -np.inf, 50)]
)
def test_levels_of_a_giant_segment(rng, levels, implementation) -> None:
    """Parts of a segment are measured apart: some small, some not, some without a finite number."""
    # The parts of a segment that different blocks reduce have very different maxima.
    count = 12_000
    data = rng.normal(size=(len(levels), count, 2)) + np.reshape(levels, (-1, 1, 1))
    data = data.reshape(-1, 2).astype(np.float32)
    ids = np.zeros(len(data), np.int32)
    with setting(implementation):
        y = segment_softmax(data, ids, 1, indices_are_sorted=True)
    assert_close(y, reference(Elements(ids, 1), data.astype(np.float64)), 1e-5, "value")


@on_all
def test_extremes(implementation) -> None:
    """No overflow; a -inf has no share; NaN and all of -inf spoil their own segment only."""
    inf = np.inf
    data = np.array([1e30, 1e30, -1e30, -1e30, -inf, 3, 88, 0, np.nan, 1, -inf, -inf], np.float32)
    ids = np.repeat(np.arange(6), 2)
    with setting(implementation):
        y = np.asarray(segment_softmax(data, ids, 6, indices_are_sorted=True))
        finite = slice(0, 8)
        gradient = jax.grad(lambda data: segment_softmax(data, ids, 6, True)[finite][::2].sum())(
            data
        )
    small = np.exp(-88.0)
    assert_close(y[finite], [0.5, 0.5, 0.5, 0.5, 0, 1, 1 - small, small], 1e-6, "value")
    assert np.isnan(y[8:]).all()
    assert_close(gradient[finite], [0.25, -0.25, 0.25, -0.25, 0, 0, 0, 0], 1e-6, "gradient")


@on_all
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_share_of_a_lone_element_is_one(rng, dtype, implementation) -> None:
    """Exactly, with or without other segments, of small numbers and of large ones."""
    # Magnitudes vary, as exp(x - max) must be exactly 1 for any x.
    ids = np.sort(rng.integers(0, 4000, 4000))  # a third of them alone
    lone = np.bincount(ids, minlength=4000)[ids] == 1
    data = (rng.normal(size=(4000, 5)) * rng.choice([0.1, 3, 300], (4000, 1))).astype(
        jnp.dtype(dtype)
    )
    with setting(implementation, dtype):
        y = segment_softmax(data, ids, 4000, indices_are_sorted=True)
        small = segment_softmax(data / 100, ids, 4000, indices_are_sorted=True)
    assert lone.sum() > 1000
    assert (np.asarray(y)[lone] == 1).all()
    assert (np.asarray(small)[lone] == 1).all()


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("blocks", [1, 2, 5, 100])
@pytest.mark.parametrize("shape", ["tail", "giant", "empty"])
def test_schedules_give_the_same_result(rng, blocks, shape, implementation) -> None:
    """Segments that many blocks share, in value and derivative."""
    count, size = 60_000, 400
    ids = uneven_ids(rng, shape, count, size)
    elements = Elements(ids, size)
    data, tangent = rng.normal(size=(2, count, 19))
    index = segment_index(elements, "sorted")
    function = functools.partial(on_segments(segment_softmax, "sorted"), index)
    with (
        setting(implementation, "float64"),
        schedules.use(schedules.Schedule("walk", 4, 128, blocks)),
    ):
        y, dy = jax.jit(lambda x, dx: jax.jvp(function, (x,), (dx,)))(data, tangent)
    assert_close(y, reference(elements, data), 1e-12, "value")
    # A complex step gives the exact derivative of the reference.
    step = 1e-40
    want = reference(elements, data + 1j * step * tangent).imag / step
    assert_close(dy, want, 1e-12, "tangent")
