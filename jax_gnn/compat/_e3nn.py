"""Replacements of e3nn-jax's scatters; each returns None for calls that the original must take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn.compat._segments import FLOATS, Segments, replacing, segments_of

_ARGUMENTS = ("data", "dst", "nel", "output_size", "map_back", "mode")


def _segments_of_tree(
    reduction: str,
    data: object = None,
    dst: object = None,
    nel: object = None,
    output_size: object = None,
    map_back: object = False,
    mode: object = "promise_in_bounds",
) -> Segments | None:
    """Return the segments of all arrays of the tree ``data``, if a replacement pays for each."""
    leaves = jax.tree.leaves(data)
    if map_back is not False or (dst is None) == (nel is None) or not leaves:
        return None
    is_sorted = nel is not None
    if is_sorted:
        if output_size is not None or not isinstance(nel, np.ndarray | jax.Array) or nel.ndim != 1:
            return None
        output_size = nel.shape[0]
        count = leaves[0].shape[0] if np.ndim(leaves[0]) else 0
        dst = jnp.repeat(jnp.arange(output_size), nel, total_repeat_length=count)
    elif not isinstance(output_size, int | np.integer) or not isinstance(
        dst, np.ndarray | jax.Array
    ):
        return None
    elif dst.dtype.kind == "i":  # e3nn-jax counts negative ids from the end
        if isinstance(dst, jax.core.Tracer):
            dst = jnp.where(dst < 0, dst + output_size, dst)
        elif (np.asarray(dst) < 0).any():  # else the same array, whose look is cached
            dst = np.where(dst < 0, dst + output_size, dst)
    segments = [
        segments_of(x, dst, output_size, is_sorted, dtypes=FLOATS, mode=mode) for x in leaves
    ]
    for x, candidate in zip(leaves, segments, strict=True):
        if candidate is None or not candidate.pays(reduction, x):
            return None
    return segments[0]


def _sum(data: object = None, **arguments: object) -> Any:
    segments = _segments_of_tree("sum", data, **arguments)
    return None if segments is None else jax.tree.map(segments.sum, data)


def _mean(data: object = None, nel: Any = None, **arguments: object) -> Any:
    segments = _segments_of_tree("sum", data, nel=nel, **arguments)
    if segments is None:
        return None
    total = jax.tree.map(segments.sum, data)
    counts = segments.counts(jnp.zeros((1,) * total.ndim, total.dtype)) if nel is None else nel
    counts = jnp.maximum(1, counts).astype(total.dtype)
    return total / counts.reshape(-1, *(1,) * (total.ndim - 1))


def _max(data: object = None, initial: object = -jnp.inf, **arguments: object) -> Any:
    if not isinstance(initial, float) or initial != -np.inf:
        return None
    irreps = getattr(data, "irreps", None)
    if irreps is not None and not irreps.is_scalar():
        return None
    segments = _segments_of_tree("max", data, **arguments)
    return None if segments is None else jax.tree.map(lambda x: segments.reduce("max", x), data)


def replacements() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Yield functions and their replacements."""
    e3nn = sys.modules["e3nn_jax"]
    for name, ours in (("scatter_sum", _sum), ("scatter_mean", _mean), ("scatter_max", _max)):
        if (original := getattr(e3nn, name, None)) is not None:
            names = (*_ARGUMENTS, "initial") if name == "scatter_max" else _ARGUMENTS
            yield original, replacing(original, names, ours)
