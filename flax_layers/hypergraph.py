"""Hypergraph neural networks in Flax NNX: HGNN and HGNN+."""

from __future__ import annotations

from typing import Any, Unpack, get_args

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers._base import (
    Activation,
    Convolution,
    LinearOptions,
    TwoLayerStack,
    aggregate,
    check_activation,
    check_positive,
    check_vector,
)
from jax_gnn import Hypergraph, HypergraphNorm
from jax_gnn.extend import Normalization, check_choice, take
from jax_gnn.sharding import HypergraphPart


class HGNNConv(Convolution):
    """Hypergraph convolution: ``G (X Theta + b)``.

    ``G`` is ``Dv^-1/2 H W De^-1 H^T Dv^-1/2`` with ``normalization="symmetric"`` (Feng et al.,
    "Hypergraph Neural Networks", AAAI 2019, equations 10 and 11) and ``Dv^-1 H W De^-1 H^T`` with
    ``"row"``. ``H`` is the incidence matrix, ``W`` the diagonal matrix of the hyperedge weights,
    ``De`` and ``Dv`` are those of the hyperedge sizes and the weighted node degrees, both summed
    over ``H``. As in that paper's code, the bias is added before the aggregation.

    Without a bias, ``G (X Theta)`` equals ``(G X) Theta`` and the aggregation runs on the narrower
    side; with one it always follows the linear map.

    Attributes:
        kernel: Theta, ``(in_features, out_features)``.
        bias: ``(out_features,)``, or None without a bias.
        hyperedge_weight: Learnable ``(num_hyperedges,)`` weights, initially one; None if not
            learnable. They are meant to stay positive: a node whose weighted degree is not gets
            zeros.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HGNNConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    has_activation = True
    takes_parts = True

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
        check_choice("normalization", normalization, get_args(Normalization))
        super().__init__(in_features, out_features, rngs=rngs, **options)
        self.hyperedge_weight: nnx.Param[Array] | None = nnx.data(None)
        if num_hyperedges is not None:
            check_positive(num_hyperedges=num_hyperedges)
            self.hyperedge_weight = nnx.Param(jnp.ones(num_hyperedges, self.param_dtype))
        self.normalization: Normalization = normalization
        self.num_hyperedges = num_hyperedges

    def __call__(
        self,
        hypergraph: Hypergraph,
        x: ArrayLike,
        hyperedge_weight: ArrayLike | None = None,
        incidence_weight: ArrayLike | None = None,
        norm: HypergraphNorm | None = None,
        *,
        activation: Activation | None = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            hypergraph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            hyperedge_weight: Positive weights, ``(num_hyperedges,)``; multiplied by the learnable
                weights where the layer has them. None means ones.
            incidence_weight: The entries of ``H``, ``(num_incidences,)`` in the hypergraph's order,
                for members of a degree (see `Hypergraph.incidence_values`). None means ones.
            norm: What `jax_gnn.hypergraph_norm` gives for the hypergraph, the layer's normalization
                and weights, those of the hyperedges among its factors; None computes it.
            activation: "relu" for a ReLU after all, which is part of the last kernel where that
                aggregates.

        Returns:
            ``(num_nodes, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the hypergraph, or there are weights of
                hyperedges beside `norm`, or the activation is unknown.
        """
        check_activation(activation)
        x, kernel, bias = self._operands(x, hypergraph)
        weight = self._hyperedge_weight(hypergraph, hyperedge_weight)
        if incidence_weight is not None:
            if isinstance(hypergraph, HypergraphPart):
                raise ValueError("incidence_weight must be None on a device's part, got some")
            incidence_weight = check_vector(
                "incidence_weight", incidence_weight, "num_incidences", hypergraph.num_incidences
            )
        factors: dict[str, Any]
        if norm is None:
            factors = {"hyperedge_weight": weight, "normalization": self.normalization}
        elif weight is None:
            factors = norm.scales
        else:
            raise ValueError(
                "norm holds the weights of the hyperedges: leave hyperedge_weight and "
                "num_hyperedges out with it, got both"
            )

        if incidence_weight is not None:
            factors["incidence_weight"] = incidence_weight

        def aggregated(features: Array, **last: Any) -> Array:
            return aggregate(hypergraph, features, **factors, **last)

        if bias is None:
            return self._aggregate_narrow(aggregated, x, kernel, activation=activation)
        mapped = self._product(x, kernel, bias=bias)
        return aggregated(mapped, activation=activation)

    def _hyperedge_weight(self, hypergraph: Hypergraph, given: ArrayLike | None) -> Array | None:
        weight = check_hyperedge_weight(hypergraph, given)
        if self.hyperedge_weight is None:
            return weight
        learned = self.hyperedge_weight[...]
        count = hypergraph.num_hyperedges
        if isinstance(hypergraph, HypergraphPart):
            count = hypergraph.num_whole_hyperedges
        if learned.shape != (count,):
            raise ValueError(
                f"hypergraph has {count} hyperedges, but this layer was made "
                f"with num_hyperedges={self.num_hyperedges} learnable weights, got {hypergraph}"
            )
        if isinstance(hypergraph, HypergraphPart):
            learned = take(learned, hypergraph.hyperedge_ids)
        if weight is None:
            return learned
        return learned.astype(float) * weight.astype(float)


class HGNNPConv(HGNNConv):
    """Hypergraph convolution of HGNN+: ``Dv^-1 H W De^-1 H^T (X Theta + b)``.

    Gao et al., "HGNN+: General hypergraph neural networks", TPAMI 2022. It is `HGNNConv` with
    ``normalization="row"``, and so are its parameters and its call.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HGNNPConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_hyperedges: int | None = None,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output.
            num_hyperedges: Gives the layer one learnable weight per hyperedge, see `HGNNConv`.
            rngs: Source of the keys for initialisation (stream "params").
            **options: See `LinearOptions`.

        Raises:
            ValueError: A size is not positive.
        """
        super().__init__(
            in_features,
            out_features,
            normalization="row",
            num_hyperedges=num_hyperedges,
            rngs=rngs,
            **options,
        )


class HGNN(TwoLayerStack):
    """Hypergraph neural network: two `HGNNConv` (or more), ReLU and dropout between them.

    The node classifier of Feng et al., "Hypergraph Neural Networks", AAAI 2019, section 4. Its call
    takes the arguments of `HGNNConv`'s.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HGNN(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = HGNNConv


class HGNNP(TwoLayerStack):
    """HGNN+: two `HGNNPConv` (or more), ReLU and dropout between them.

    Its call takes the arguments of `HGNNPConv`'s.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HGNNP(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = HGNNPConv


def check_hyperedge_weight(hypergraph: Hypergraph, weight: ArrayLike | None) -> Array | None:
    """Checks the shape of weights of hyperedges."""
    if weight is None:
        return None
    return check_vector("hyperedge_weight", weight, "num_hyperedges", hypergraph.num_hyperedges)
