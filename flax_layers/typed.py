"""Linear maps of typed rows in Flax NNX."""

from __future__ import annotations

import math
from dataclasses import field

import jax.numpy as jnp
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory
from jax_gnn import TypePlan, segment_matmul
from jax_gnn.extend import as_array


class TypedLinear(LinearOptions):
    """Linear map for each type: ``y[i] = x[i] W[t(i)] + b[t(i)]``.

    The heterogeneous linear layer of relational networks (Zhou et al., "FASTEN", ICS 2024), in one
    segmented product. Rows whose type is out of range give zeros.

    Attributes:
        num_types: Number of types.
        in_features: Features per row of the input.
        out_features: Features per row of the output.
        kernel: W, ``(num_types, in_features, out_features)``; `kernel_init` draws each type's.
        bias: b, ``(num_types, out_features)``, or None without a bias.

    Example:
        >>> layer = TypedLinear(3, 4, 8, rngs=nnx.Rngs(0))  # three types
        >>> layer(jnp.ones((2, 4)), jnp.array([2, 0])).shape
        (2, 8)
    """

    num_types: int = field(kw_only=False)
    in_features: int = field(kw_only=False)
    out_features: int = field(kw_only=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        self.kernel = factory.kernel(self.num_types, self.in_features, self.out_features)
        self.bias = factory.bias(self.num_types, self.out_features)

    def __call__(self, x: ArrayLike, types: ArrayLike | TypePlan) -> Array:
        """Apply the map of each row's type.

        Args:
            x: Features, ``(rows, *batch, in_features)``.
            types: Types of the rows, ``(rows,)`` integers in any order; or, to sort them only once,
                their plan from `jax_gnn.TypePlan.from_types`, or from `TypePlan.from_sizes` if x is
                sorted by type.

        Returns:
            ``(rows, *batch, out_features)`` in `dtype`.
        """
        plan = types if isinstance(types, TypePlan) else TypePlan.from_types(types, self.num_types)
        if plan.num_types != self.num_types:
            raise ValueError(
                f"types must be a plan of num_types = {self.num_types}, got {plan.num_types}"
            )
        x = as_array("x", x)
        rows = plan.num_rows
        if x.ndim < 2 or x.shape[-1] != self.in_features or rows not in (None, x.shape[0]):
            raise ValueError(
                f"x must have shape (rows, ..., in_features) = ({rows or 'any'}, ..., "
                f"{self.in_features}), got {x.shape}"
            )
        operands = x, self.kernel[...], base.parameter_value(self.bias)
        x, kernel, bias = dtypes.promote_dtype(operands, dtype=self.dtype)
        # Batch entries become rows: a row's entries have its type, and stay together when sorted.
        rows, batch = x.shape[0], x.shape[1:-1]
        count = math.prod(batch)
        y = segment_matmul(
            plan.sort(x).reshape(rows * count, self.in_features),
            kernel,
            jnp.clip(plan.group_sizes, 0, rows) * count,
            bias=bias,
            precision=self.precision,
        )
        return plan.unsort(y.reshape(rows, *batch, self.out_features))
