"""In the place of jraph's utilities.

The same formulas, in which elements of a segment are counted once, not for each feature, and no
gradient goes through the maximum that a softmax subtracts: it would be zero.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn.compat._segments import (
    ARGUMENTS,
    FLOATS,
    Segments,
    reduction,
    replacing,
    segments_of,
)


def _of_segments(ours: Callable[..., Array]) -> Callable[..., Array | None]:
    """A function of segments and data, if the data are floating-point numbers that gain by it."""

    def taken(
        data: Any = None,
        segment_ids: Any = None,
        num_segments: Any = None,
        indices_are_sorted: Any = False,
        unique_indices: Any = False,
        **options: Any,
    ) -> Array | None:
        del unique_indices
        segments = segments_of(data, segment_ids, num_segments, indices_are_sorted, dtypes=FLOATS)
        if segments is None or not segments.pays("sum", data, True):
            return None
        return ours(segments, jnp.asarray(data), **options)

    return taken


def _moments(segments: Segments, data: Array) -> tuple[Array, Array]:
    """The mean and the variance of each segment, as jraph defines them."""
    counts = jnp.maximum(segments.counts(data), 1)
    mean = segments.sum(data) / counts
    squares = segments.sum(jnp.power(data - segments.gather(mean), 2))
    return mean, squares / counts


@_of_segments
def _mean(segments: Segments, data: Array) -> Array:
    return segments.sum(data) / jnp.maximum(segments.counts(data), 1)


@_of_segments
def _variance(segments: Segments, data: Array) -> Array:
    return _moments(segments, data)[1]


@_of_segments
def _normalize(segments: Segments, data: Array, eps: Any = 1e-8) -> Array:
    mean, variance = _moments(segments, data)
    scale = jax.lax.rsqrt(jnp.maximum(variance, jnp.array(eps, variance.dtype)))
    return (data - segments.gather(mean)) * segments.gather(scale)


@_of_segments
def _softmax(segments: Segments, logits: Array) -> Array:
    top = segments.reduce("max", jax.lax.stop_gradient(logits))
    powers = jnp.exp(logits - segments.gather(top))
    return powers / segments.gather(segments.sum(powers))


def _or_constant(name: str) -> Callable[..., Array | None]:
    reduce = reduction(name)

    def reduce_or_constant(
        data: Any = None,
        segment_ids: Any = None,
        num_segments: Any = None,
        indices_are_sorted: Any = False,
        unique_indices: Any = False,
        constant: Any = 0.0,
    ) -> Array | None:
        found = reduce(data, segment_ids, num_segments, indices_are_sorted, unique_indices)
        segments = segments_of(data, segment_ids, num_segments, indices_are_sorted)
        if found is None or segments is None:
            return None
        counts = segments.counts(jnp.zeros((1,) * found.ndim, jnp.float32))
        return jnp.where(counts > 0, found, jnp.array(constant, found.dtype))

    return reduce_or_constant


_OURS: dict[str, tuple[tuple[str, ...], Callable[..., Array | None]]] = {
    **{f"segment_{name}": (ARGUMENTS, reduction(name)) for name in ("sum", "max", "min")},
    "segment_mean": (ARGUMENTS, _mean),
    "segment_variance": (ARGUMENTS, _variance),
    "segment_normalize": ((*ARGUMENTS, "eps"), _normalize),
    "segment_softmax": (
        ("logits", *ARGUMENTS[1:]),
        lambda logits=None, **rest: _softmax(logits, **rest),
    ),
    "segment_max_or_constant": ((*ARGUMENTS, "constant"), _or_constant("max")),
    "segment_min_or_constant": ((*ARGUMENTS, "constant"), _or_constant("min")),
}


def replacements() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Functions, and what replaces them."""
    jraph = sys.modules["jraph"]
    for name, (names, ours) in _OURS.items():
        if (original := getattr(jraph, name, None)) is not None:
            yield original, replacing(original, names, ours)
