"""Activations that kernels, or XLA after them, apply to results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, row_wise

Activation = Literal["relu", "silu", "gelu", "tanh"]  # in the order of the enum in C++

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "tanh": jnp.tanh,
}


def apply_activation(
    result: Array, activation: Activation | None, scale: Array | None = None
) -> Array:
    """Apply an activation that kernels lack, all but the ReLU, and then the scale of each row."""
    if activation in (None, "relu"):
        return result
    wide = ACTIVATIONS[activation](result.astype(accumulator_dtype(result.dtype)))
    return (wide if scale is None else row_wise(scale, wide) * wide).astype(result.dtype)
