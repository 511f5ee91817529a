"""In the place of e3nn-jax's scatters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn.compat._segments import FLOATS, Segments, replacing, segments_of

_ARGUMENTS = ("data", "dst", "nel", "output_size", "map_back", "mode")


def _taken(
    name: str, data: Any, dst: Any, nel: Any, output_size: Any, map_back: Any, mode: Any
) -> Segments | None:
    """Segments of all arrays of the tree ``data``, if they are for us."""
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
    elif dst.dtype.kind == "i":  # here, negative ids count from the end
        xp = np if isinstance(dst, np.ndarray) else jnp
        if xp is np or not isinstance(dst, jax.core.Tracer):
            dst = (
                dst
                if not (np.asarray(dst) < 0).any()
                else np.where(dst < 0, dst + output_size, dst)
            )
        else:
            dst = jnp.where(dst < 0, dst + output_size, dst)
    every = [segments_of(x, dst, output_size, is_sorted, dtypes=FLOATS, mode=mode) for x in leaves]
    first = every[0]
    if any(each is None or not each.pays(name, x) for each, x in zip(every, leaves, strict=True)):
        return None
    return first


def _sum(
    data: Any = None,
    dst: Any = None,
    nel: Any = None,
    output_size: Any = None,
    map_back: Any = False,
    mode: Any = "promise_in_bounds",
) -> Any:
    segments = _taken("sum", data, dst, nel, output_size, map_back, mode)
    return None if segments is None else jax.tree.map(segments.sum, data)


def _mean(
    data: Any = None,
    dst: Any = None,
    nel: Any = None,
    output_size: Any = None,
    map_back: Any = False,
    mode: Any = "promise_in_bounds",
) -> Any:
    segments = _taken("sum", data, dst, nel, output_size, map_back, mode)
    if segments is None:
        return None
    total = jax.tree.map(segments.sum, data)
    counts = segments.counts(jnp.zeros((1,) * total.ndim, total.dtype)) if nel is None else nel
    counts = jnp.maximum(1, counts).astype(total.dtype)
    return total / counts.reshape(-1, *(1,) * (total.ndim - 1))


def _max(
    data: Any = None,
    dst: Any = None,
    nel: Any = None,
    initial: Any = -jnp.inf,
    output_size: Any = None,
    map_back: Any = False,
    mode: Any = "promise_in_bounds",
) -> Any:
    if not isinstance(initial, float) or initial != -np.inf:
        return None
    irreps = getattr(data, "irreps", None)
    if irreps is not None and not irreps.is_scalar():
        return None
    segments = _taken("max", data, dst, nel, output_size, map_back, mode)
    return None if segments is None else jax.tree.map(lambda x: segments.reduce("max", x), data)


def replacements() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Functions, and what replaces them."""
    e3nn = sys.modules["e3nn_jax"]
    for name, ours in (("scatter_sum", _sum), ("scatter_mean", _mean), ("scatter_max", _max)):
        if (original := getattr(e3nn, name, None)) is not None:
            names = (*_ARGUMENTS, "initial") if name == "scatter_max" else _ARGUMENTS
            yield original, replacing(original, names, ours)
