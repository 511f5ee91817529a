"""Hypergraph neural networks in Flax NNX."""

from __future__ import annotations

from typing import Any, Unpack, get_args

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers._base import Convolution, LinearOptions, Stack, check_positive
from jax_gnn import Hypergraph, hypergraph_aggregate
from jax_gnn.hypergraph_aggregate import Normalization


class HGNNConv(Convolution):
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
        num_hyperedges: int | None = None,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output.
            normalization: "symmetric" or "row".
            num_hyperedges: Makes one learnable weight per hyperedge; the layer then accepts only
                hypergraphs with that many hyperedges (padding counted).
            rngs: Source of the keys for initialisation (stream "params").
            **options: See `LinearOptions`.

        Raises:
            ValueError: A size is not positive or the normalization is unknown.
        """
        if normalization not in get_args(Normalization):
            choices = ", ".join(map(repr, get_args(Normalization)))
            raise ValueError(f"normalization must be one of {choices}, got {normalization!r}")
        super().__init__(in_features, out_features, rngs=rngs, **options)
        self.hyperedge_weight: nnx.Param[Array] | None = nnx.data(None)
        if num_hyperedges is not None:
            check_positive(num_hyperedges=num_hyperedges)
            self.hyperedge_weight = nnx.Param(jnp.ones(num_hyperedges, self.param_dtype))
        self.normalization: Normalization = normalization
        self.num_hyperedges = num_hyperedges

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
        x, kernel, bias = self._operands(x, hypergraph.num_nodes)
        weight = self._hyperedge_weight(hypergraph, hyperedge_weight)

        def aggregate(features: Array) -> Array:
            return hypergraph_aggregate(
                hypergraph, features, weight, normalization=self.normalization
            )

        if bias is None:
            return self._aggregate_narrow(aggregate, x, kernel)
        return aggregate(jnp.matmul(x, kernel, precision=self.precision) + bias)

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


class HGNN(Stack):
    """Hypergraph neural network: two `HGNNConv` (or more), ReLU and dropout between them.

    The node classifier of Feng et al., "Hypergraph Neural Networks", AAAI 2019, section 4. Its call
    takes the arguments of `HGNNConv`'s.
    """

    convolution = HGNNConv

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 2,
        **options: Any,
    ) -> None:
        """Initialises the convolutions.

        Args:
            in_features: Features per node of the input.
            hidden_features: Features per node between the convolutions.
            out_features: Features per node of the output, the number of classes.
            num_layers: Number of convolutions.
            **options: Dropout rates and rngs, see `Stack`; further arguments of `HGNNConv`.

        Raises:
            ValueError: A size is not positive, a rate is outside [0, 1] or the normalization is
                unknown.
        """
        super().__init__(
            in_features, hidden_features, out_features, num_layers=num_layers, **options
        )
