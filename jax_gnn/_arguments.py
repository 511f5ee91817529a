"""Checks of arguments that ops on graphs and hypergraphs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from jax_gnn._index import as_array, is_real
from jax_gnn.views import FLOATS, accumulator_dtype


def check_features(
    name: str, x: Any, size_name: str = "num_rows", size: int | None = None
) -> Array:
    """An array ``(size, *features)`` of floating-point numbers."""
    x = as_array(name, x)
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, got {x.dtype}")
    if x.ndim == 0 or size not in (None, x.shape[0]):
        rows = size_name if size is None else f"{size_name}={size}"
        raise ValueError(f"{name} must be ({rows}, *features), got shape {x.shape}")
    return x


def check_real(name: str, values: Any) -> Array:
    """An array of integers or floating-point numbers."""
    values = as_array(name, values)
    if not is_real(values.dtype):
        raise TypeError(f"{name} must be real numbers, got {values.dtype}")
    return values


def check_weight(
    name: str, weight: Any, size_name: str, size: int, x: Any, x_name: str, rows_name: str
) -> Array | None:
    """Weights of entries, perhaps by head: ``(size, heads)`` in the accumulator type of x.

    Args:
        name: of the argument.
        weight: ``(size,)`` or ``(size, heads)``, or None.
        size_name: what the number of entries is called.
        size: number of entries.
        x: the features, of which only shape and dtype are looked at.
        x_name: what they are called.
        rows_name: what the number of their rows is called.
    """
    if weight is None:
        return None
    weight = check_real(name, weight)
    if weight.ndim not in (1, 2) or weight.shape[0] != size:
        raise ValueError(
            f"{name} must be ({size_name}={size},) or ({size_name}={size}, heads), got shape "
            f"{weight.shape}"
        )
    if weight.ndim == 2 and weight.shape[1:] != x.shape[1:2]:
        raise ValueError(
            f"{name} of shape {weight.shape} has a column for each of {weight.shape[1]} heads: "
            f"{x_name} must be ({rows_name}, {weight.shape[1]}, *features), got shape {x.shape}"
        )
    dtype = accumulator_dtype(x.dtype)
    if weight.shape[1:] == (0,):  # without heads there are no features either: one head is as well
        return jnp.zeros((size, 1), dtype)
    return weight.reshape(size, *weight.shape[1:] or (1,)).astype(dtype)


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """One of several options."""
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
