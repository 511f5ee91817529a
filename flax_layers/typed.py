"""Linear maps of typed rows in Flax NNX."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from flax_layers._base import check_positive, default_bias_init, default_kernel_init
from jax_gnn import TypePlan, segment_matmul
from jax_gnn.extend import as_array


class TypedLinear(nnx.Module):
    """A linear map for each type: ``y[i] = x[i] W[t(i)] + b[t(i)]``.

    The heterogeneous linear layer of relational networks (Zhou et al., "FASTEN", ICS 2024), in one
    segmented product. Rows whose type is out of range give zeros.

    Attributes:
        kernel: W, ``(num_types, in_features, out_features)``.
        bias: b, ``(num_types, out_features)``, or None without a bias.

    Example:
        >>> layer = TypedLinear(3, 4, 8, rngs=nnx.Rngs(0))  # three types
        >>> layer(jnp.ones((2, 4)), jnp.array([2, 0])).shape
        (2, 8)
    """

    def __init__(
        self,
        num_types: int,
        in_features: int,
        out_features: int,
        *,
        rngs: nnx.Rngs,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        kernel_init: nnx.Initializer = default_kernel_init,
        bias_init: nnx.Initializer = default_bias_init,
    ) -> None:
        """Initialises the parameters.

        Args:
            num_types: Number of types.
            in_features: Features per row of the input.
            out_features: Features per row of the output.
            rngs: Source of the keys for initialisation (stream "params").
            use_bias: See `LinearOptions`; so for all that follow.
            dtype: Of the computation.
            param_dtype: Of the parameters.
            precision: Of the products.
            kernel_init: Initialiser of the kernel of each type, ``(in_features, out_features)``.
            bias_init: Initialiser of the bias of each type, ``(out_features,)``.

        Raises:
            ValueError: A size is not positive.
        """
        check_positive(num_types=num_types, in_features=in_features, out_features=out_features)

        def of_each_type(init: nnx.Initializer, *shape: int) -> nnx.Param[Array]:
            keys = jax.random.split(rngs.params(), num_types)
            return nnx.Param(jax.vmap(lambda key: init(key, shape, param_dtype))(keys))

        self.kernel = of_each_type(kernel_init, in_features, out_features)
        self.bias: nnx.Param[Array] | None = nnx.data(None)
        if use_bias:
            self.bias = of_each_type(bias_init, out_features)
        self.num_types = num_types
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision

    def __call__(self, x: ArrayLike, types: ArrayLike | TypePlan) -> Array:
        """Applies the map of each row's type.

        Args:
            x: Features, ``(rows, *batch, in_features)``.
            types: The rows' types, ``(rows,)`` integers in any order; or, to sort them only once,
                the plan `jax_gnn.TypePlan.from_types` made of them, or `TypePlan.from_sizes` where
                x is sorted by type.

        Returns:
            ``(rows, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the types.
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
        bias = None if self.bias is None else self.bias[...]
        x, kernel, bias = dtypes.promote_dtype((x, self.kernel[...], bias), dtype=self.dtype)
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
