"""In the place of functions of JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jax_gnn
from jax_gnn._core.arrays import FLOATS, JAX_OPS
from jax_gnn.compat._segments import ARGUMENTS, is_sharded, reduction, replacing

_RAGGED_DOT = jax.lax.ragged_dot
_RAGGED = ("lhs", "rhs", "group_sizes", "precision", "preferred_element_type")


def _ragged_dot(
    lhs: Any = None,
    rhs: Any = None,
    group_sizes: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array | None:
    arrays = (np.ndarray, jax.Array)
    if not all(isinstance(x, arrays) for x in (lhs, rhs, group_sizes)):
        return None
    if (lhs.ndim, rhs.ndim, group_sizes.ndim) != (2, 3, 1) or is_sharded(lhs, rhs, group_sizes):
        return None
    if lhs.shape[1] != rhs.shape[1] or rhs.shape[0] != group_sizes.shape[0]:
        return None
    dtype = jax.dtypes.canonicalize_dtype(lhs.dtype)
    if dtype not in FLOATS or rhs.dtype != lhs.dtype or group_sizes.dtype.kind not in "iu":
        return None
    if preferred_element_type is not None:
        wanted = jnp.dtype(preferred_element_type)
        if wanted not in (dtype, jnp.promote_types(dtype, jnp.float32)):
            return None
    if rhs.shape[0] < 2:  # a dense product
        return None
    return jax_gnn.segment_matmul(
        *(lhs, rhs, group_sizes),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def replacements() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Functions, and what replaces them."""
    for name, original in JAX_OPS.items():
        yield original, replacing(original, (*ARGUMENTS, "bucket_size", "mode"), reduction(name))
    yield _RAGGED_DOT, replacing(_RAGGED_DOT, _RAGGED, _ragged_dot)
