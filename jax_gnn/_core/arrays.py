"""Arrays of numbers: dtypes that kernels take, gathers, and changes of shape."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.ids import clip_ids
from jax_gnn._core.sharding import replicate, reshape
from jax_gnn._core.types import DType

# Dtypes of kernels, for weighted features or without weights.
FLOATS = (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64)
DTYPES = (*FLOATS, jnp.int32, jnp.int64)

# Bound here, as users may replace those of jax.ops by functions of this library.
JAX_OPS = {name: getattr(jax.ops, f"segment_{name}") for name in ("sum", "prod", "max", "min")}

STATIC = {"static": True}
"""The metadata of a field of a registered dataclass that is no array."""


def take(x: Array, ids: Array | None, is_in_range: bool = False) -> Array:
    """Return ``x[ids]``, zeros where an id is out of range; all of x for None."""
    if ids is None:
        return x
    if x.shape[0] == 0:  # a gather needs at least one row
        return jnp.zeros((*ids.shape, *x.shape[1:]), x.dtype)
    if jax.export.is_symbolic_dim(x.shape[0]):  # the size may be 0
        x = jnp.pad(x, [(0, 1)] + [(0, 0)] * (x.ndim - 1))
    # jnp.take would wrap -1 around.
    ids, x = replicate(clip_ids(ids, x.shape[0])), replicate(jnp.asarray(x), 1)
    mesh, x_mesh = jax.sharding.get_abstract_mesh(), jax.typeof(x).sharding.mesh
    if mesh.manual_axes and not x_mesh.empty and x_mesh != mesh:
        x = jnp.copy(x)  # from outside of jax.shard_map: JAX cannot index it with ids from inside
    mode = "promise_in_bounds" if is_in_range else "fill"
    return x.at[ids].get(mode=mode, fill_value=0, wrap_negative_indices=False)


_TO_DIFFERENT_ROWS: dict[str, Any] = {
    "mode": "drop",
    "unique_indices": True,
    "wrap_negative_indices": False,
}


def scatter_rows(x: Array, ids: Array, count: int | None = None) -> Array:
    """Return ``count`` rows, by default as many as x has, with the rows of x at different ids.

    The others are zeros.
    """
    size = x.shape[0] if count is None else count
    x, ids = replicate(x, 1), replicate(clip_ids(ids, size))
    zeros = jnp.zeros_like(x) if count is None else jnp.zeros((size, *x.shape[1:]), x.dtype)
    return zeros.at[ids].set(x, **_TO_DIFFERENT_ROWS)


def add_rows(x: Array, ids: Array, rows: Array) -> Array:
    """Return x with ``rows`` added to its rows at ``ids``, which are different."""
    return x.at[clip_ids(ids, x.shape[0])].add(rows, **_TO_DIFFERENT_ROWS)


def as_matrix(x: Array) -> Array:
    """Return ``(rows, *features)`` as a matrix."""
    return reshape(x, x.shape[0], row_width(x))


def row_width(x: Any) -> int:
    """Return the number of elements in a row of ``(rows, *features)``."""
    return math.prod(x.shape[1:])


def accumulator_dtype(dtype: DType) -> Any:
    """Return the dtype in which kernels add: float32 for half types, else the dtype itself."""
    if jnp.issubdtype(dtype, jnp.floating):
        return promoted(dtype, jnp.float32)
    return dtype


def round_to_dtype(x: Array) -> Array:
    """Return x in its accumulator type, rounded to its dtype, for comparisons of half types.

    XLA computes in float32, and may omit the rounding between two conversions.
    """
    wide = accumulator_dtype(x.dtype)
    if wide == x.dtype:
        return x
    limits = jnp.finfo(x.dtype)
    return jax.lax.reduce_precision(x.astype(wide), limits.nexp, limits.nmant)


def promoted(*dtypes: DType) -> Any:
    """Return the common dtype by JAX's standard rules, also where promotion is strict."""
    with jax.numpy_dtype_promotion("standard"):
        return functools.reduce(jnp.promote_types, dtypes)


def row_wise(values: Array, x: Array) -> Array:
    """Add axes to a vector of rows, so that it broadcasts against ``(rows, *features)``."""
    return jnp.expand_dims(values, tuple(range(1, x.ndim)))


def feature_wise(values: Array, x: Array) -> Array:
    """Add leading axes to features, so that they broadcast against ``(rows, *features)``."""
    return jnp.expand_dims(values, tuple(range(x.ndim - values.ndim)))


def summarize(value: Any) -> str:
    """Describe a value in a few words: arrays by dtypes and shapes, as JAX does."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {summarize(part)}' for key, part in value.items())}}}"
    if type(value) in (tuple, list):
        return f"[{', '.join(map(summarize, value))}]"
    return repr(value)


def summarize_fields(container: Any) -> str:
    """Describe a dataclass by its fields, without those that are None or empty."""
    values = {f.name: getattr(container, f.name) for f in fields(container)}
    shown = (
        f"{name}={summarize(value)}"
        for name, value in values.items()
        if not (value is None or (isinstance(value, Mapping | tuple) and not value))
    )
    return f"{type(container).__name__}({', '.join(shown)})"


def as_column(mask: Array) -> Array:
    """Return a vector of rows as a column."""
    return mask[:, None]


def empty_vector(size: int, dtype: DType) -> np.ndarray:
    """Return a vector, aligned if it is large, so that XLA on a CPU uses it without a copy."""
    alignment, num_bytes = 64, size * np.dtype(dtype).itemsize
    if num_bytes < 1 << 16:  # a copy takes less time
        return np.empty(size, dtype)
    memory = np.empty(num_bytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + memory.size - alignment].view(dtype)
