"""Names of types that signatures share.

Aliases of ``Any`` stand for kinds of values that JAX has no public class for.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import numpy as np
from jax import Array

IdArray: TypeAlias = Array | np.ndarray
"""An array of ids, of JAX or of numpy."""

Shaped: TypeAlias = Array | np.ndarray | jax.ShapeDtypeStruct
"""A value of which only shape and dtype are read."""

DType: TypeAlias = Any
"""A dtype of numpy, its name or its scalar type."""

PyTree: TypeAlias = Any
"""A nest of tuples, dicts and registered dataclasses of arrays, or of values in place of them."""

Leaf: TypeAlias = Any
"""An array, a tracer, or the placeholder of an array in a rule of JAX."""

Aval: TypeAlias = Any
"""An abstract value of JAX: shape, dtype and sharding of an array."""

Attribute: TypeAlias = Any
"""A static parameter of a primitive."""

LoweringContext: TypeAlias = Any
"""The context that JAX passes to lowering rules."""
