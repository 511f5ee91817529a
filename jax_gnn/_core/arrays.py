"""Arrays of numbers: dtypes that kernels take, gathers, and changes of shape."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.ids import clip_ids
from jax_gnn._core.sharding import replicate, reshape

# Dtypes that kernels take, as weighted features or without weights.
FLOATS = (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64)
DTYPES = (*FLOATS, jnp.int32, jnp.int64)

# What plain XLA sums, bound here: users may put this library's functions in their place.
JAX_OPS = {name: getattr(jax.ops, f"segment_{name}") for name in ("sum", "prod", "max", "min")}

# Metadata of fields of pytrees that are not arrays.
STATIC = {"static": True}
"""The metadata of a dataclass's field that is no array."""


def take(x: Array, ids: Array | None) -> Array:
    """``x[ids]``, zeros where an id is out of range; None takes all of x."""
    if ids is None:
        return x
    if x.shape[0] == 0:  # a gather wants one row at least
        return jnp.zeros((*ids.shape, *x.shape[1:]), x.dtype)
    if jax.export.is_symbolic_dim(x.shape[0]):  # perhaps of no rows
        x = jnp.pad(x, [(0, 1)] + [(0, 0)] * (x.ndim - 1))
    # jnp.take would wrap -1 around.
    ids, x = replicate(clip_ids(ids, x.shape[0])), replicate(x, 1)
    mesh, own = jax.sharding.get_abstract_mesh(), jax.typeof(x).sharding.mesh
    if mesh.manual_axes and not own.empty and own != mesh:
        x = jnp.copy(x)  # of outside of jax.shard_map, which JAX indexes with no id of inside
    return x.at[ids].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def scatter_rows(x: Array, ids: Array, count: int | None = None) -> Array:
    """Return zeros with the rows of x where ``ids``, each once, name their places.

    There are ``count`` rows, by default as many as x has.
    """
    size = x.shape[0] if count is None else count
    x, ids = replicate(x, 1), replicate(clip_ids(ids, size))
    zeros = jnp.zeros_like(x) if count is None else jnp.zeros((size, *x.shape[1:]), x.dtype)
    options: Any = {"mode": "drop", "unique_indices": True, "wrap_negative_indices": False}
    return zeros.at[ids].set(x, **options)


def add_rows(x: Array, ids: Array, rows: Array) -> Array:
    """x, and added to those of its rows that ``ids`` name, once each, as many others."""
    options: Any = {"mode": "drop", "unique_indices": True, "wrap_negative_indices": False}
    return x.at[clip_ids(ids, x.shape[0])].add(rows, **options)


def as_matrix(x: Array) -> Array:
    """``(rows, *features)`` as a matrix."""
    return reshape(x, x.shape[0], row_width(x))


def row_width(x: Any) -> int:
    """The numbers in a row of ``(rows, *features)``."""
    return math.prod(x.shape[1:])


def accumulator_dtype(dtype: Any) -> Any:
    """What kernels add in: float32 for half types, else the dtype itself."""
    if jnp.issubdtype(dtype, jnp.floating):
        return promoted(dtype, jnp.float32)
    return dtype


def round_to_dtype(x: Array) -> Array:
    """The numbers of x in the dtype that kernels add in, for comparisons of half types.

    XLA computes in float32 and leaves out the rounding between two conversions, in some places.
    """
    wide = accumulator_dtype(x.dtype)
    if wide == x.dtype:
        return x
    limits = jnp.finfo(x.dtype)
    return jax.lax.reduce_precision(x.astype(wide), limits.nexp, limits.nmant)


def promoted(*dtypes: Any) -> Any:
    """What dtypes promote to by JAX's standard rules, also where promotion is set to be strict."""
    with jax.numpy_dtype_promotion("standard"):
        return functools.reduce(jnp.promote_types, dtypes)


def row_wise(values: Array, x: Array) -> Array:
    """Adds axes to a vector of rows, to work with ``(rows, *features)``."""
    return jnp.expand_dims(values, tuple(range(1, x.ndim)))


def feature_wise(values: Array, x: Array) -> Array:
    """Adds axes before those of the last features, to work with ``(rows, *features)``."""
    return jnp.expand_dims(values, tuple(range(x.ndim - values.ndim)))


def summarize(value: Any) -> str:
    """What something is, in a few words: of arrays in it dtypes and shapes, as of JAX."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {summarize(part)}' for key, part in value.items())}}}"
    if type(value) in (tuple, list):
        return f"[{', '.join(map(summarize, value))}]"
    return repr(value)


def summarize_fields(made: Any) -> str:
    """Fields of a dataclass, but for those that are None or empty."""
    given = {f.name: getattr(made, f.name) for f in fields(made)}
    shown = (
        f"{name}={summarize(value)}"
        for name, value in given.items()
        if not (value is None or (isinstance(value, Mapping | tuple) and not value))
    )
    return f"{type(made).__name__}({', '.join(shown)})"


def as_column(mask: Array) -> Array:
    """A vector as a matrix, to work with features."""
    return mask[:, None]
