"""Replacements of functions of JAX; each returns None for calls that the original must take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

import jax_gnn
from jax_gnn._core.arrays import FLOATS, JAX_OPS
from jax_gnn.compat._segments import ARGUMENTS, is_array, is_sharded, reduction, replacing

_RAGGED_DOT = jax.lax.ragged_dot
_RAGGED = ("lhs", "rhs", "group_sizes", "precision", "preferred_element_type")


def _ragged_dot(
    lhs: object = None,
    rhs: object = None,
    group_sizes: object = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array | None:
    if not (is_array(lhs) and is_array(rhs) and is_array(group_sizes)):
        return None
    if (lhs.ndim, rhs.ndim, group_sizes.ndim) != (2, 3, 1) or is_sharded(lhs, rhs, group_sizes):
        return None
    if lhs.shape[1] != rhs.shape[1] or rhs.shape[0] != group_sizes.shape[0]:
        return None
    dtype = jax.dtypes.canonicalize_dtype(lhs.dtype)
    if dtype not in FLOATS or rhs.dtype != lhs.dtype or group_sizes.dtype.kind not in "iu":
        return None
    if preferred_element_type is not None:
        result_dtype = jnp.dtype(preferred_element_type)
        if result_dtype not in (dtype, jnp.promote_types(dtype, jnp.float32)):
            return None
    if rhs.shape[0] < 2:  # a dense product
        return None
    return jax_gnn.segment_matmul(
        lhs, rhs, group_sizes, precision=precision, preferred_element_type=preferred_element_type
    )


def replacements() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Yield functions and their replacements."""
    for name, original in JAX_OPS.items():
        yield original, replacing(original, (*ARGUMENTS, "bucket_size", "mode"), reduction(name))
    yield _RAGGED_DOT, replacing(_RAGGED_DOT, _RAGGED, _ragged_dot, is_reduction=False)
