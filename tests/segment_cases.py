"""Inputs, references and descriptions of segment ops, for the modules that test them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from op_spec import Case, Incidence, OpSpec

import jax_gnn

REDUCTIONS = tuple(
    name.removeprefix("segment_")
    for name in jax_gnn.__all__
    if name.startswith("segment_") and name not in ("segment_matmul", "segment_outer")
)
"""Names of the public reductions of segments, with softmax and argmax."""

DROP_IN = tuple(name for name in REDUCTIONS if hasattr(jax.ops, f"segment_{name}"))
"""Names of those that stand in for the function of ``jax.ops``."""

Kind = Literal["sorted", "unsorted", "indptr"]


class Elements(NamedTuple):
    """Arguments of references: the segment of each element, and the number of segments."""

    ids: np.ndarray
    num_segments: int

    @property
    def valid(self) -> np.ndarray:
        return (self.ids >= 0) & (self.ids < self.num_segments)


def uneven_ids(rng: np.random.Generator, shape: str, count: int, size: int) -> np.ndarray:
    """Sorted, some out of range: a long tail, one giant segment, or nearly all empty."""
    ids = {
        "tail": np.minimum(rng.geometric(0.01, count), size - 1),
        "giant": np.full(count, 17),
        "empty": rng.choice([0, 3, 290, size - 1], count),
    }[shape]
    return np.sort(np.where(rng.random(count) < 0.05, rng.choice([-1, size], count), ids))


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=shape)


def distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers that differ within each column and stay apart in each dtype: a maximum is unique."""
    count = shape[0]
    # Steps are powers of two, so that half types represent the numbers exactly.
    step = 4.0 / 2 ** max(count - 1, 0).bit_length()
    numbers = step * (np.arange(count) - (count - 1) / 2)
    return rng.permuted(np.broadcast_to(numbers.reshape(-1, *[1] * len(shape[1:])), shape), axis=0)


# Ids that are out of range, but in range modulo 2³² or 2³¹.
FAR = np.array([2**32, -(2**32), 2**40 + 1, 2**31, -(2**31) - 1, -(2**63), 2**63 - 2**32])


def with_far_padding(rng: np.random.Generator, graph) -> Any:
    """A graph whose arrays are numpy's int64, with such ids in place of the -1 of padding."""

    def far(ids) -> np.ndarray:
        ids = np.asarray(ids).astype(np.int64)
        return np.where(ids == -1, rng.choice(FAR, ids.shape), ids)

    arrays = {name: far(getattr(graph, name)) for name in ("cols", "t_cols", "t_order", "edge_ids")}
    for name in ("rows", "t_rows"):  # which ascend
        arrays[name] = np.abs(far(getattr(graph, name)) + 1) - 1
    arrays |= {name: np.asarray(getattr(graph, name), np.int64) for name in ("indptr", "t_indptr")}
    return replace(graph, **arrays, split=None, t_split=None)


# --- Segments ------------------------------------------------------------------------------------


def segment_index(elements: Elements, kind: Kind) -> Any:
    """The operands that give an op its segments; sizes are shapes."""
    ids, size = elements
    if kind == "indptr":
        counts = np.bincount(ids[elements.valid], minlength=size)
        return ((ids < 0).sum() + np.concatenate([[0], np.cumsum(counts)])).astype(np.int32)
    return ids.astype(np.int32), np.zeros(size, np.int32)


def on_segments(op, kind: Kind, **options) -> Callable[..., jax.Array]:
    """The op as a function of (index, data)."""

    def function(index, data) -> jax.Array:
        if kind == "indptr":
            return op(data, indptr=index, **options)
        ids, like_segments = index
        size, is_sorted = like_segments.shape[0], kind == "sorted"
        return op(data, ids, size, is_sorted, **options)

    return function


def segment_case(
    kind: Kind, numbers: Callable[..., np.ndarray]
) -> Callable[[np.random.Generator, str, tuple[int, ...]], Case]:
    def make_case(rng: np.random.Generator, scenario: str, features: tuple[int, ...]) -> Case:
        incidence = Incidence.random(rng, scenario)
        ids = incidence.right if kind == "unsorted" else np.sort(incidence.right)
        elements = Elements(ids, incidence.num_right)
        data = numbers(rng, (len(ids), *features))
        padding = ~elements.valid.reshape(-1, *[1] * len(features))
        return Case(segment_index(elements, kind), elements, (data,), (padding,))

    return make_case


def each_segment(
    reduce: Callable[[np.ndarray], np.ndarray], empty: float = 0.0
) -> Callable[[Elements, np.ndarray], np.ndarray]:
    """A plain reduction of each segment's elements, which lie along the first axis."""

    def reference(elements: Elements, data: np.ndarray) -> np.ndarray:
        ids, size = elements
        result = np.full((size, *data.shape[1:]), empty, np.result_type(data, np.float64))
        for segment in np.unique(ids[elements.valid]):
            result[segment] = reduce(data[ids == segment])
        return result

    return reference


def segment_spec(
    op,
    reduce: Callable[[np.ndarray], np.ndarray],
    *,
    kind: Kind = "sorted",
    numbers: Callable[..., np.ndarray] = normal,
    empty: float = 0.0,
    linear: bool = False,
    **options,
) -> OpSpec:
    """Describe a reduction; :func:`finite` removes infinities of empty segments."""
    return OpSpec(
        function=on_segments(op, kind, **options),
        reference=each_segment(reduce, empty),
        make_case=segment_case(kind, numbers),
        operands=("data",),
        linear=("data",) if linear else (),
        feature_axis=(1,),
        result_axis=1,
    )


def finite(op: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Replace infinities of empty segments by 0, so that functions of the result are finite."""

    def function(*arguments, **options) -> jax.Array:
        result = op(*arguments, **options)
        return jnp.where(jnp.isfinite(result), result, 0)

    return function


# --- References ----------------------------------------------------------------------------------


# References take complex numbers, for complex steps: they order by the real part.
def largest(data: np.ndarray) -> np.ndarray:
    """The maximum along the first axis, of complex numbers by their real part."""
    return np.take_along_axis(data, data.real.argmax(0, keepdims=True), 0)[0]


def smallest(data: np.ndarray) -> np.ndarray:
    return -largest(-data)


def variance(data: np.ndarray, ddof: int = 0) -> np.ndarray:
    if len(data) <= ddof:
        return np.zeros_like(data[0])
    return ((data - data.mean(0)) ** 2).sum(0) / (len(data) - ddof)


def deviation(data: np.ndarray, ddof: int = 0) -> np.ndarray:
    if len(data) <= max(ddof, 1):
        return np.zeros_like(data[0])
    return variance(data, ddof) ** 0.5


def logsumexp(data: np.ndarray) -> np.ndarray:
    top = data.real.max(0)
    return np.log(np.exp(data - top).sum(0)) + top


REFERENCES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "sum": (lambda data: data.sum(0), 0.0),
    "mean": (lambda data: data.mean(0), 0.0),
    "max": (largest, -np.inf),
    "min": (smallest, np.inf),
    "prod": (lambda data: data.prod(0), 1.0),
    "var": (variance, 0.0),
    "std": (deviation, 0.0),
    "logsumexp": (logsumexp, -np.inf),
}
"""The reduction of one segment's elements, and the value of an empty segment."""
