"""Hypergraph neural networks in Flax NNX: HGNN and HGNN+."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory
from jax_gnn import Hypergraph, HypergraphNorm
from jax_gnn.extend import Normalization, check_instance, take
from jax_gnn.sharding import HypergraphPart


class HGNNOptions(LinearOptions):
    """Options of `HGNNConv`, and of `HGNN` for its convolutions.

    Attributes:
        normalization: Scaling of the aggregation, "symmetric" or "row".
        num_hyperedges: Number of learnable weights, one per hyperedge; the layer then accepts only
            hypergraphs with as many hyperedges, padding counted. None means no such weights.
    """

    normalization: Normalization = "symmetric"
    num_hyperedges: int | None = None


class HGNNConv(HGNNOptions, base.Convolution):
    """Hypergraph convolution: ``G (X Theta + b)``.

    ``G`` is ``Dv^-1/2 H W De^-1 H^T Dv^-1/2`` with ``normalization="symmetric"`` (Feng et al.,
    "Hypergraph Neural Networks", AAAI 2019, equations 10 and 11) and ``Dv^-1 H W De^-1 H^T`` with
    ``"row"``. ``H`` is the incidence matrix, ``W`` the diagonal matrix of the hyperedge weights.
    ``De`` has the hyperedge sizes and ``Dv`` the weighted node degrees, both summed over ``H``. The
    bias is added before the aggregation, as in that paper's code.

    Without a bias, ``G (X Theta)`` equals ``(G X) Theta`` and the aggregation runs on the narrower
    side; with a bias it always follows the linear map.

    Attributes:
        kernel: Theta, ``(in_features, out_features)``.
        hyperedge_weight: Learnable weights, ``(num_hyperedges,)``, initially one; None if not
            learnable. They are meant to stay positive: a node whose weighted degree is not
            positive gets zeros.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HGNNConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    has_activation = True
    takes_parts = True

    def _make_parameters(self, factory: ParameterFactory) -> None:
        super()._make_parameters(factory)
        self.hyperedge_weight = factory.full(1, self.num_hyperedges)

    def __call__(
        self,
        hypergraph: Hypergraph,
        x: ArrayLike,
        hyperedge_weight: ArrayLike | None = None,
        incidence_weight: ArrayLike | None = None,
        hypergraph_norm: HypergraphNorm | None = None,
        *,
        activation: base.Activation | None = None,
    ) -> Array:
        """Return the new node features, ``(num_nodes, *batch, out_features)`` in `dtype`.

        Args:
            hypergraph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            hyperedge_weight: Positive weights, ``(num_hyperedges,)``, multiplied by the learnable
                weights if the layer has them; None means ones.
            incidence_weight: Entries of ``H``, ``(num_incidences,)``, in the hypergraph's order,
                for members of a degree (see `Hypergraph.incidence_values`); None means ones.
            hypergraph_norm: Factors from `jax_gnn.hypergraph_norm` for the hypergraph, the layer's
                normalization and the weights of hyperedges; None computes them.
            activation: "relu" for a ReLU at the end, fused into the last kernel if that aggregates.
        """
        base.check_activation(activation)
        x, kernel, bias = self._operands(x, hypergraph)
        weight = self._combined_weight(hypergraph, hyperedge_weight)
        factors: dict[str, Any]
        if hypergraph_norm is None:
            factors = {"hyperedge_weight": weight, "normalization": self.normalization}
        elif weight is None:
            check_instance("hypergraph_norm", hypergraph_norm, HypergraphNorm)
            factors = hypergraph_norm.scales
        else:
            raise ValueError(
                "hypergraph_norm holds the weights of the hyperedges: leave hyperedge_weight and "
                "num_hyperedges out with it, got both"
            )
        if incidence_weight is not None:
            if isinstance(hypergraph, HypergraphPart):
                raise ValueError("incidence_weight must be None on a device's part, got some")
            factors["incidence_weight"] = base.check_vector(
                "incidence_weight", incidence_weight, "num_incidences", hypergraph.num_incidences
            )

        def aggregate(x: Array, **options: Any) -> Array:
            return base.aggregate_incidences(hypergraph, x, **factors, **options)

        # With a bias, which comes before G, the order of G and Theta matters.
        if bias is None:
            return self._aggregate_narrow(aggregate, x, kernel, activation=activation)
        return aggregate(self._product(x, kernel, bias=bias), activation=activation)

    def _combined_weight(
        self, hypergraph: Hypergraph | HypergraphPart, weight: ArrayLike | None
    ) -> Array | None:
        """Return the product of the call's and the learnable weights of hyperedges."""
        weight = check_hyperedge_weight(hypergraph, weight)
        if self.hyperedge_weight is None:
            return weight
        learnable = self.hyperedge_weight[...]
        count = hypergraph.num_hyperedges
        if isinstance(hypergraph, HypergraphPart):
            count = hypergraph.num_whole_hyperedges
        if learnable.shape != (count,):
            raise ValueError(
                f"hypergraph has {count} hyperedges, but this layer was made "
                f"with num_hyperedges={self.num_hyperedges} learnable weights, got {hypergraph}"
            )
        if isinstance(hypergraph, HypergraphPart):
            # A device's part has some of the hyperedges, by their numbers in the whole hypergraph.
            learnable = take(learnable, hypergraph.hyperedge_ids)
        if weight is None:
            return learnable
        return learnable.astype(float) * weight.astype(float)


class HGNNPConv(HGNNConv):
    """Hypergraph convolution of HGNN+: ``Dv^-1 H W De^-1 H^T (X Theta + b)``.

    Gao et al., "HGNN+: General hypergraph neural networks", TPAMI 2022. It is `HGNNConv` with
    ``normalization="row"``, with the same parameters and call.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HGNNPConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    normalization: Normalization = field(default="row", init=False)


class HGNN(HGNNOptions, base.TwoLayerStack):
    """Hypergraph neural network: two `HGNNConv` by default, ReLU and dropout between them.

    The node classifier of Feng et al., "Hypergraph Neural Networks", AAAI 2019, section 4. Its call
    takes the arguments of `HGNNConv`'s.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HGNN(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = HGNNConv


class HGNNP(HGNNOptions, base.TwoLayerStack):
    """HGNN+: two `HGNNPConv` by default, ReLU and dropout between them.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HGNNP(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = HGNNPConv

    normalization: Normalization = field(default="row", init=False)


def check_hyperedge_weight(
    hypergraph: Hypergraph | HypergraphPart, weight: ArrayLike | None
) -> Array | None:
    """Check the shape of weights of hyperedges; None means ones."""
    if weight is None:
        return None
    return base.check_vector(
        "hyperedge_weight", weight, "num_hyperedges", hypergraph.num_hyperedges
    )
