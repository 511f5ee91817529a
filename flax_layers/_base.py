"""What the layers and models share: parameters, options, checks, and the stack of layers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar, TypedDict

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike, DTypeLike

default_kernel_init = nnx.initializers.lecun_normal()
default_bias_init = nnx.initializers.zeros_init()


class LinearOptions(TypedDict, total=False):
    """Options of every convolution, which mean what they mean in `nnx.Linear`.

    Attributes:
        use_bias: Whether to add biases.
        dtype: Of the computation; None, the default, infers it from input and parameters.
        param_dtype: Of the parameters.
        precision: Of the matrix products, see `jax.lax.Precision`.
        kernel_init: Initialiser of the kernels.
        bias_init: Initialiser of the biases.
    """

    use_bias: bool
    dtype: DTypeLike | None
    param_dtype: DTypeLike
    precision: Any
    kernel_init: nnx.Initializer
    bias_init: nnx.Initializer


class Convolution(nnx.Module):
    """Base of the convolutions: one linear map beside the aggregation, and the options.

    Attributes:
        kernel: ``(in_features, width)``.
        bias: ``(width,)``, or None without a bias.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        width: int | None = None,
        rngs: nnx.Rngs,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        kernel_init: nnx.Initializer = default_kernel_init,
        bias_init: nnx.Initializer = default_bias_init,
    ) -> None:
        """Initialises kernel and bias.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output.
            width: Features after the linear map; None for `out_features`.
            rngs: Source of the keys for initialisation (stream "params").
            use_bias: See `LinearOptions`; so for all that follow.
            dtype: Of the computation.
            param_dtype: Of the parameters.
            precision: Of the matrix products.
            kernel_init: Initialiser of the kernels.
            bias_init: Initialiser of the biases.

        Raises:
            ValueError: A size is not positive.
        """
        check_positive(in_features=in_features, out_features=out_features)
        width = out_features if width is None else width
        self.kernel = nnx.Param(kernel_init(rngs.params(), (in_features, width), param_dtype))
        self.bias: nnx.Param[Array] | None = nnx.data(None)
        if use_bias:
            self.bias = nnx.Param(bias_init(rngs.params(), (width,), param_dtype))
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision

    def _operands(self, x: ArrayLike, num_nodes: int) -> tuple[Array, Array, Array | None]:
        """Checks x; returns it with kernel and bias in the dtype of the computation."""
        x = jnp.asarray(x)
        if x.ndim < 2 or (x.shape[0], x.shape[-1]) != (num_nodes, self.in_features):
            raise ValueError(
                f"x must have shape (num_nodes, ..., in_features) = ({num_nodes}, ..., "
                f"{self.in_features}), got {x.shape}"
            )
        bias = None if self.bias is None else self.bias[...]
        return dtypes.promote_dtype((x, self.kernel[...], bias), dtype=self.dtype)

    def _aggregate_narrow(
        self, aggregate: Callable[[Array], Array], x: Array, kernel: Array
    ) -> Array:
        """``aggregate(x) @ kernel`` of a linear aggregation, which gets the fewer features."""
        if kernel.shape[0] < kernel.shape[1]:
            return jnp.matmul(aggregate(x), kernel, precision=self.precision)
        return aggregate(jnp.matmul(x, kernel, precision=self.precision))


class Stack(nnx.Module):
    """Base of the models: convolutions ``conv1``, ``conv2``, … with ReLU and dropout between them.

    Attributes:
        convolution: What a subclass stacks.
        num_layers: Number of convolutions.
    """

    convolution: ClassVar[type[Convolution]]

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 3,
        dropout_rate: float = 0.5,
        input_dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        """Initialises the convolutions.

        Args:
            in_features: Features per node of the input.
            hidden_features: Features per node between the convolutions.
            out_features: Features per node of the output, the number of classes.
            num_layers: Number of convolutions.
            dropout_rate: Share of hidden activations dropped in training, in [0, 1].
            input_dropout_rate: Share of input features dropped in training, in [0, 1].
            rngs: Source of the keys, streams "params" and "dropout".
            **options: Further arguments of each convolution.

        Raises:
            ValueError: A size is not positive, a rate is outside [0, 1], or a convolution refuses
                an option.
        """
        check_positive(hidden_features=hidden_features, num_layers=num_layers)
        for name, rate in (
            ("dropout_rate", dropout_rate),
            ("input_dropout_rate", input_dropout_rate),
        ):
            if not 0 <= rate <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {rate}")
        self.num_layers = num_layers
        self.hidden_features = hidden_features
        self.dropout = nnx.Dropout(dropout_rate, rngs=rngs)
        self.input_dropout = nnx.Dropout(input_dropout_rate, rngs=rngs)
        widths = [in_features, *[hidden_features] * (num_layers - 1), out_features]
        for number, sizes in enumerate(pairwise(widths), start=1):
            setattr(self, f"conv{number}", self.convolution(*sizes, rngs=rngs, **options))

    @property
    def convolutions(self) -> list[Any]:
        """The convolutions in order."""
        return [getattr(self, f"conv{number}") for number in range(1, self.num_layers + 1)]

    def __call__(
        self,
        graph: Any,
        x: ArrayLike,
        *arguments: Any,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
        **named: Any,
    ) -> Array:
        """Computes one row of outputs (logits) per node.

        Args:
            graph: The graph or hypergraph.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            *arguments: Further arguments of the convolutions' calls, such as weights.
            deterministic: Switches dropout off (True) or on (False); None leaves it to `train()`
                and `eval()`.
            rngs: Randomness of the dropout; None uses the stream given at construction.
            **named: Further arguments of the convolutions' calls, by name.

        Returns:
            ``(num_nodes, *batch, out_features)``.

        Raises:
            ValueError: A shape does not fit a layer or the graph.
        """
        if isinstance(rngs, Array):
            rngs = nnx.Rngs(dropout=rngs)  # another key for each layer
        y = self.input_dropout(jnp.asarray(x), deterministic=deterministic, rngs=rngs)
        first, *others = self.convolutions
        y = first(graph, y, *arguments, **named)
        for convolution in others:
            y = self.dropout(jax.nn.relu(y), deterministic=deterministic, rngs=rngs)
            y = convolution(graph, y, *arguments, **named)
        return y


def check_positive(**sizes: int) -> None:
    """Raises ValueError for a size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be positive, got {size}")
