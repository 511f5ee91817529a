"""Hypergraph neural networks in Flax NNX."""

from __future__ import annotations

from typing import Any, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn import Hypergraph, hypergraph_aggregate
from jax_gnn.hypergraph_aggregate import Normalization

default_kernel_init = nnx.initializers.lecun_normal()
default_bias_init = nnx.initializers.zeros_init()


class HGNNConv(nnx.Module):
    """Hypergraph convolution: ``G (X Theta + b)``.

    ``G`` is ``Dv^-1/2 H W De^-1 H^T Dv^-1/2`` with ``normalization="symmetric"`` (Feng et al.,
    "Hypergraph Neural Networks", AAAI 2019, equations 10 and 11) and ``Dv^-1 H W De^-1 H^T`` with
    ``"row"``. ``H`` is the incidence matrix, ``W`` the diagonal matrix of the hyperedge weights,
    ``De`` and ``Dv`` are those of the hyperedge sizes and the weighted node degrees. As in that
    paper's code, the bias is added before the aggregation.

    Without a bias, ``G (X Theta)`` equals ``(G X) Theta`` and the aggregation runs on the narrower
    side; with one it always follows the linear map.

    Attributes:
        kernel: Theta, ``(in_features, out_features)``.
        bias: ``(out_features,)``, or None without a bias.
        hyperedge_weight: Learnable ``(num_hyperedges,)`` weights, initially one; None if not
            learnable. They are meant to stay positive: a node whose weighted degree is not gets
            zeros.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        normalization: Normalization = "symmetric",
        use_bias: bool = True,
        num_hyperedges: int | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        kernel_init: nnx.Initializer = default_kernel_init,
        bias_init: nnx.Initializer = default_bias_init,
        rngs: nnx.Rngs,
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output.
            normalization: "symmetric" or "row".
            use_bias: Whether to add a bias to X Theta.
            num_hyperedges: Makes one learnable weight per hyperedge; the layer then accepts only
                hypergraphs with that many hyperedges (padding counted).
            dtype: Of the computation; None infers it from input and parameters.
            param_dtype: Of the parameters.
            precision: Of the matrix product, see `jax.lax.Precision`.
            kernel_init: Initialiser of the kernel.
            bias_init: Initialiser of the bias.
            rngs: Source of the keys for initialisation (stream "params").

        Raises:
            ValueError: A size is not positive or the normalization is unknown.
        """
        _check_positive(in_features=in_features, out_features=out_features)
        if normalization not in get_args(Normalization):
            choices = ", ".join(map(repr, get_args(Normalization)))
            raise ValueError(f"normalization must be one of {choices}, got {normalization!r}")
        self.kernel = nnx.Param(
            kernel_init(rngs.params(), (in_features, out_features), param_dtype)
        )
        self.bias: nnx.Param[Array] | None = nnx.data(None)
        if use_bias:
            self.bias = nnx.Param(bias_init(rngs.params(), (out_features,), param_dtype))
        self.hyperedge_weight: nnx.Param[Array] | None = nnx.data(None)
        if num_hyperedges is not None:
            _check_positive(num_hyperedges=num_hyperedges)
            self.hyperedge_weight = nnx.Param(jnp.ones(num_hyperedges, param_dtype))
        self.in_features = in_features
        self.out_features = out_features
        self.normalization: Normalization = normalization
        self.use_bias = use_bias
        self.num_hyperedges = num_hyperedges
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision

    def __call__(
        self, hypergraph: Hypergraph, x: ArrayLike, hyperedge_weight: ArrayLike | None = None
    ) -> Array:
        """Applies the convolution.

        Args:
            hypergraph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            hyperedge_weight: Positive weights, ``(num_hyperedges,)``; multiplied by the learnable
                weights where the layer has them. None means ones.

        Returns:
            ``(num_nodes, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the hypergraph.
        """
        x = jnp.asarray(x)
        if x.ndim < 2 or (x.shape[0], x.shape[-1]) != (hypergraph.num_nodes, self.in_features):
            raise ValueError(
                f"x must have shape (num_nodes, ..., in_features) = ({hypergraph.num_nodes}, ..., "
                f"{self.in_features}), got {x.shape}"
            )
        weight = self._hyperedge_weight(hypergraph, hyperedge_weight)
        bias = None if self.bias is None else self.bias[...]
        x, kernel, bias = dtypes.promote_dtype((x, self.kernel[...], bias), dtype=self.dtype)

        def aggregate(features: Array) -> Array:
            return hypergraph_aggregate(
                hypergraph, features, weight, normalization=self.normalization
            )

        if bias is None and self.in_features < self.out_features:
            return jnp.matmul(aggregate(x), kernel, precision=self.precision)
        y = jnp.matmul(x, kernel, precision=self.precision)
        return aggregate(y if bias is None else y + bias)

    def _hyperedge_weight(self, hypergraph: Hypergraph, given: ArrayLike | None) -> Array | None:
        expected = (hypergraph.num_hyperedges,)
        weight = None if given is None else jnp.asarray(given)
        if weight is not None and weight.shape != expected:
            raise ValueError(
                f"hyperedge_weight must have shape (num_hyperedges,) = {expected}, "
                f"got {weight.shape}"
            )
        if self.hyperedge_weight is None:
            return weight
        learned = self.hyperedge_weight[...]
        if learned.shape != expected:
            raise ValueError(
                f"hypergraph has {expected[0]} hyperedges, but this layer was made with "
                f"num_hyperedges={self.num_hyperedges} learnable weights"
            )
        return learned if weight is None else learned * weight


class HGNN(nnx.Module):
    """Two-layer hypergraph neural network: convolution, ReLU, dropout, convolution.

    The node classifier of Feng et al., "Hypergraph Neural Networks", AAAI 2019, section 4.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        dropout_rate: float = 0.5,
        normalization: Normalization = "symmetric",
        use_bias: bool = True,
        num_hyperedges: int | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        kernel_init: nnx.Initializer = default_kernel_init,
        bias_init: nnx.Initializer = default_bias_init,
        rngs: nnx.Rngs,
    ) -> None:
        """Initialises both convolutions.

        Args:
            in_features: Features per node of the input.
            hidden_features: Features per node between the convolutions.
            out_features: Features per node of the output, the number of classes.
            dropout_rate: Share of hidden activations dropped in training, in [0, 1].
            normalization: See `HGNNConv`; so for all that follow.
            use_bias: Whether the convolutions have biases.
            num_hyperedges: Gives each convolution its own learnable hyperedge weights.
            dtype: Of the computation.
            param_dtype: Of the parameters.
            precision: Of the matrix products.
            kernel_init: Initialiser of the kernels.
            bias_init: Initialiser of the biases.
            rngs: Source of the keys, streams "params" and "dropout".

        Raises:
            ValueError: A size is not positive, the rate is outside [0, 1] or the normalization is
                unknown.
        """
        _check_positive(hidden_features=hidden_features)
        if not 0 <= dropout_rate <= 1:
            raise ValueError(f"dropout_rate must lie in [0, 1], got {dropout_rate}")
        shared: dict[str, Any] = {
            "normalization": normalization,
            "use_bias": use_bias,
            "num_hyperedges": num_hyperedges,
            "dtype": dtype,
            "param_dtype": param_dtype,
            "precision": precision,
            "kernel_init": kernel_init,
            "bias_init": bias_init,
            "rngs": rngs,
        }
        self.conv1 = HGNNConv(in_features, hidden_features, **shared)
        self.dropout = nnx.Dropout(dropout_rate, rngs=rngs)
        self.conv2 = HGNNConv(hidden_features, out_features, **shared)

    def __call__(
        self,
        hypergraph: Hypergraph,
        x: ArrayLike,
        hyperedge_weight: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> Array:
        """Computes one row of outputs (logits) per node.

        Args:
            hypergraph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            hyperedge_weight: Positive weights, ``(num_hyperedges,)``, see `HGNNConv`.
            deterministic: Switches dropout off (True) or on (False); None leaves it to `train()`
                and `eval()`.
            rngs: Randomness of the dropout; None uses the stream given at construction.

        Returns:
            ``(num_nodes, *batch, out_features)``.

        Raises:
            ValueError: A shape does not fit the layer or the hypergraph.
        """
        hidden = jax.nn.relu(self.conv1(hypergraph, x, hyperedge_weight))
        hidden = self.dropout(hidden, deterministic=deterministic, rngs=rngs)
        return self.conv2(hypergraph, hidden, hyperedge_weight)


def _check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be positive, got {size}")
