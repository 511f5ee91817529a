"""Types that signatures share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import Array

IdArray: TypeAlias = Array | np.ndarray
"""An array of JAX or of numpy."""

PyTree: TypeAlias = Any
"""A nest of tuples, dicts and registered dataclasses of arrays, or of values in place of them."""

Shaped: TypeAlias = Array | np.ndarray | jax.ShapeDtypeStruct
"""A value of which only shape and dtype are read."""

DType: TypeAlias = Any
"""A dtype of numpy, its name or its scalar type; `jax.typing.DTypeLike` lacks attributes."""

Attributes: TypeAlias = Mapping[str, Any]
"""Static keyword arguments of a primitive."""

Rule: TypeAlias = Callable[..., Any]
"""A function of an op's record whose keyword arguments are the op's attributes."""
