"""Replacements of jraph's utilities.

They compute jraph's formulas, but count the elements of a segment once rather than for each
feature, and stop the gradient through the maximum that a softmax subtracts, which would be zero.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._program.lift import lift
from jax_gnn.compat._segments import ARGUMENTS, FLOATS, Segments, reduction, replacing, segments_of


def _with_segments(ours: Callable[..., Array]) -> Callable[..., Array | None]:
    """Make a replacement of a function of segments and data; it takes floating-point data only."""

    def replacement(data: object = None, **arguments: Any) -> Array | None:
        options = {"eps": arguments.pop("eps")} if "eps" in arguments else {}
        segments = segments_of(data, dtypes=FLOATS, **arguments)
        if segments is None or not segments.pays("sum", data, is_composite=True):
            return None
        return ours(segments, jnp.asarray(data), **options)

    return replacement


def _moments(segments: Segments, data: Array) -> tuple[Array, Array]:
    """Return the mean and the variance of each segment, as jraph defines them."""
    counts = jnp.maximum(segments.counts(data), 1)
    mean = segments.sum(data) / counts
    squares = segments.sum(jnp.power(data - segments.gather(mean), 2))
    return mean, squares / counts


@_with_segments
def _mean(segments: Segments, data: Array) -> Array:
    return segments.sum(data) / jnp.maximum(segments.counts(data), 1)


@_with_segments
def _variance(segments: Segments, data: Array) -> Array:
    return _moments(segments, data)[1]


@_with_segments
def _normalize(segments: Segments, data: Array, eps: float = 1e-8) -> Array:
    mean, variance = _moments(segments, data)
    # The lower bound keeps segments of equal elements finite, as in jraph.
    scale = jax.lax.rsqrt(jnp.maximum(variance, jnp.array(eps, variance.dtype)))
    return (data - segments.gather(mean)) * segments.gather(scale)


@_with_segments
def _softmax(segments: Segments, logits: Array) -> Array:
    maxima = segments.reduce("max", jax.lax.stop_gradient(logits))
    powers = jnp.exp(logits - segments.gather(maxima))
    return powers / segments.gather(segments.sum(powers))


def _or_constant(name: str) -> Callable[..., Array | None]:
    reduce = reduction(name)

    def reduce_or_constant(
        data: object = None, constant: float = 0.0, **arguments: Any
    ) -> Array | None:
        # Segments without elements hold the reduction's neutral value: their counts tell them.
        result = reduce(data, **arguments)
        segments = segments_of(data, **arguments)
        if result is None or segments is None:
            return None
        counts = segments.counts(jnp.zeros((1,) * result.ndim, jnp.float32))
        return jnp.where(counts > 0, result, jnp.array(constant, result.dtype))

    return reduce_or_constant


_REPLACEMENTS: dict[str, tuple[tuple[str, ...], Callable[..., Array | None]]] = {
    **{f"segment_{name}": (ARGUMENTS, reduction(name)) for name in ("sum", "max", "min")},
    "segment_mean": (ARGUMENTS, _mean),
    "segment_variance": (ARGUMENTS, _variance),
    "segment_normalize": ((*ARGUMENTS, "eps"), _normalize),
    "segment_softmax": (
        ("logits", *ARGUMENTS[1:]),
        lambda logits=None, **arguments: _softmax(logits, **arguments),
    ),
    "segment_max_or_constant": ((*ARGUMENTS, "constant"), _or_constant("max")),
    "segment_min_or_constant": ((*ARGUMENTS, "constant"), _or_constant("min")),
}


def makers() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Yield functions that make layers, and the same with lifted layers.

    jraph's other layers are made by its ``GraphNetwork``.
    """
    for name in ("GraphNetwork", "GraphConvolution", "GAT"):
        if (original := getattr(sys.modules["jraph"], name, None)) is not None:
            yield original, _lifted(original)


def _lifted(maker: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(maker)
    def make(*args: Any, **kwargs: Any) -> Any:
        return lift(maker(*args, **kwargs))

    return make


def replacements() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Yield functions and their replacements."""
    jraph = sys.modules["jraph"]
    for name, (names, ours) in _REPLACEMENTS.items():
        if (original := getattr(jraph, name, None)) is not None:
            yield original, replacing(original, names, ours)
