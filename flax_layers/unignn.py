"""UniGNN in Flax NNX: UniGIN, UniSAGE, UniGAT and the deep UniGCNII.

Huang and Yang, "UniGNN: a unified framework for graph and hypergraph neural networks", IJCAI 2021.
Conventions that the paper leaves open are those of the authors' code
(https://github.com/OneForward/UniGNN), except that every layer can have a bias.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._attention import (
    AttentionConvolution,
    AttentionOptions,
    AttentionStack,
    attend,
    dots,
)
from flax_layers._declaration import LinearOptions, ParameterFactory, check_rates
from jax_gnn import Hypergraph, HypergraphNorm, node_to_hyperedge
from jax_gnn.extend import check_instance
from jax_gnn.sharding import HypergraphPart

Reduce = Literal["sum", "mean", "max", "min"]
LINEAR_REDUCTIONS = ("sum", "mean")


class UniOptions(LinearOptions):
    """Options that UniGIN and UniSAGE share.

    Attributes:
        hyperedge_reduce: Reduction over a hyperedge's nodes: "mean", "sum", "max" or "min".
        l2_normalize: Whether each row of the result is divided by its Euclidean norm.
    """

    hyperedge_reduce: Reduce = "mean"
    l2_normalize: bool = False


class _UniConvolution(UniOptions, base.Convolution):
    """Base of UniGIN and UniSAGE: a node's own features plus its hyperedges', under one map."""

    has_activation = True
    takes_parts = True
    node_reduce = "sum"  # over a node's hyperedges

    def __call__(
        self, hypergraph: Hypergraph, x: ArrayLike, *, activation: base.Activation | None = None
    ) -> Array:
        """Return the new node features, ``(num_nodes, *batch, out_features)`` in `dtype`.

        Args:
            hypergraph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            activation: "relu" for a ReLU at the end, fused into the last kernel if that aggregates.
        """
        base.check_activation(activation)
        x, kernel, bias = self._operands(x, hypergraph)
        node_reduce = self.node_reduce

        def aggregate(x: Array, **options: Any) -> Array:
            return base.aggregate_incidences(
                hypergraph,
                x,
                self_scale=self._self_scale(),
                hyperedge_reduce=self.hyperedge_reduce,
                node_reduce=node_reduce,
                **options,
            )

        # A ReLU comes after the division by norms, which no kernel does.
        fused_activation = None if self.l2_normalize else activation
        if self.hyperedge_reduce in LINEAR_REDUCTIONS and node_reduce in LINEAR_REDUCTIONS:
            y = self._aggregate_narrow(aggregate, x, kernel, bias, fused_activation)
        else:
            rows = self._product(x, kernel)
            y = aggregate(rows, **base.epilogue(rows, bias, fused_activation))
        return base.finished(base.unit_rows(y), None, activation) if self.l2_normalize else y

    def _self_scale(self) -> ArrayLike:
        """Return the factor of a node's own features."""
        return 1.0


class UniGINOptions(UniOptions):
    """Options of `UniGINConv`, and of `UniGIN` for its convolutions.

    Attributes:
        eps: Weight of a node's own features beyond 1; the initial value if it is learnable.
        learn_eps: Whether eps is learnable.
    """

    eps: float = 0.0
    learn_eps: bool = False


class UniGINConv(UniGINOptions, _UniConvolution):
    """UniGIN: ``((1 + eps) X + H agg(X)) Theta + b``, with ``agg`` over each hyperedge's nodes.

    Huang and Yang, "UniGNN", IJCAI 2021. A node sums the features of its hyperedges.
    The aggregation runs on the narrower side of Theta, unless ``agg`` is a maximum or minimum,
    which always follows the map.

    Attributes:
        kernel: Theta, ``(in_features, out_features)``.
        learned_eps: The learnable eps, ``()``; None if it is fixed.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniGINConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    def _make_parameters(self, factory: ParameterFactory) -> None:
        super()._make_parameters(factory)
        self.learned_eps = factory.full(self.eps, when=self.learn_eps)

    def _self_scale(self) -> ArrayLike:
        return 1 + (self.eps if self.learned_eps is None else self.learned_eps[...].astype(float))


class UniSAGEOptions(UniOptions):
    """Options of `UniSAGEConv`, and of `UniSAGE` for its convolutions.

    Attributes:
        node_reduce: Reduction over a node's hyperedges: "sum", "mean", "max" or "min".
    """

    node_reduce: Reduce = "sum"


class UniSAGEConv(UniSAGEOptions, _UniConvolution):  # type: ignore[misc]  # a field there
    """UniSAGE: ``(X + agg'(agg(X))) Theta + b``, to each hyperedge and from there to each node.

    Huang and Yang, "UniGNN", IJCAI 2021: by default a mean over each hyperedge's nodes, and a sum
    over each node's hyperedges. Sums and means run on the narrower side of Theta, maxima and minima
    follow the map.

    Attributes:
        kernel: Theta, ``(in_features, out_features)``.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniSAGEConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """


class UniGATOptions(AttentionOptions):
    """Options of `UniGATConv`, and of `UniGAT` for its convolutions.

    Attributes:
        residual: Whether a node's own ``x Theta`` is added.
        l2_normalize: Whether each row is divided by its Euclidean norm, before the residual.
    """

    residual: bool = False
    l2_normalize: bool = False


class UniGATConv(UniGATOptions, AttentionConvolution):
    """UniGAT: each node attends to its hyperedges, ``Σ_e softmax_e(LeakyReLU(<a, h_e>)) h_e + b``.

    Huang and Yang, "UniGNN", IJCAI 2021. ``h_e`` are the features of hyperedge e, the mean of its
    nodes' ``x Theta``; the softmax is over the hyperedges of a node. Scores depend on the hyperedge
    alone, as in the authors' code. The mean runs on the narrower side of Theta.

    Attributes:
        kernel: Theta, ``(in_features, heads · width)``.
        attention: a, ``(heads, width)``.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniGATConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    def _make_parameters(self, factory: ParameterFactory) -> None:
        super()._make_parameters(factory)
        self.attention = self._attention_vector(factory)

    def __call__(
        self,
        hypergraph: Hypergraph,
        x: ArrayLike,
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Return the new node features, ``(num_nodes, *batch, out_features)`` in `dtype`.

        Args:
            hypergraph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
        """
        x, kernel, bias = self._operands(x, hypergraph)
        dropout = base.dropout_arguments(deterministic, rngs)

        def to_hyperedges(x: Array, **options: Any) -> Array:
            return node_to_hyperedge(hypergraph, x, reduce="mean", **options)

        self_term = None
        if self.residual:
            self_term = self._product(x, kernel)
            h = to_hyperedges(self_term)
        else:
            h = self._aggregate_narrow(to_hyperedges, x, kernel)
        # Scores belong to hyperedges, so that no array has a row for each incidence.
        h = self._split(h)
        scores = dots(h, self.attention[...].astype(h.dtype))
        scores = jax.nn.leaky_relu(scores, self.negative_slope)
        y = self._join(attend(hypergraph, "node", scores, h, self.attention_dropout, dropout))
        y = base.unit_rows(y) if self.l2_normalize else y
        if self_term is not None:
            y = y + self._join(self._split(self_term))
        return base.finished(y, bias)


def unigcn_norm(hypergraph: Hypergraph) -> HypergraphNorm:
    """Return the factors of UniGCN's ``G``, 0 where a degree is 0: see `UniGCNIIConv`.

    Huang and Yang, "UniGNN", IJCAI 2021. `UniGCNII` computes them once for all its
    convolutions; for a hypergraph that does not change, they can be computed once and passed to it.
    They are in float32, or in float64 where 64 bits are on.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> unigcn_norm(hypergraph).node_out
        Array([1.        , 1.        , 0.70710677, 1.        ], dtype=float32)
    """
    # Nodes receive from the heads of a directed hypergraph, and send to its tails.
    if isinstance(hypergraph, HypergraphPart):
        received = degree = hypergraph.node_degrees().astype(float)
        mean = hypergraph.to_hyperedges(degree, reduce="mean")
    else:
        check_instance("hypergraph", hypergraph, Hypergraph)
        degree = hypergraph.node_degrees().astype(float)
        mean = node_to_hyperedge(hypergraph._plain, degree, reduce="mean")
        received = hypergraph.receiving.out_degrees().astype(float)
    size = jnp.maximum(hypergraph.hyperedge_degrees(), 1).astype(float)
    return HypergraphNorm(None, base.inverse_root(mean) / size, base.inverse_root(received))


class UniGCNIIOptions(LinearOptions):
    """Options of `UniGCNIIConv`, and of `UniGCNII` for its convolutions.

    Attributes:
        alpha: Share of X0, in [0, 1].
        lamda: Positive number in the share of Theta, ``beta = log(lamda / layer + 1)``.
    """

    alpha: float = 0.1
    lamda: float = 0.5


class UniGCNIIConv(UniGCNIIOptions, base.Convolution):
    """UniGCNII: ``Y = (1 - beta) Z + beta Z Theta`` with ``Z = (1 - alpha) G X + alpha X0``.

    Huang and Yang, "UniGNN", IJCAI 2021: initial residual and identity mapping, as in
    GCNII. ``G`` is ``Dv^-1/2 H d_e^-1/2 De^-1 H^T``: the mean of each hyperedge's nodes is scaled
    by ``d_e^-1/2``, where ``d_e`` is the mean degree of these nodes.

    Attributes:
        features: Features per node of input and output.
        layer: Number of the layer in its model, from 1.
        kernel: Theta, ``(features, features)``.
        bias: Biases, ``(features,)``, or None, as by default.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> x = jnp.ones((4, 8))
        >>> UniGCNIIConv(8, rngs=nnx.Rngs(0))(hypergraph, x, x).shape
        (4, 8)
    """

    takes_parts = True

    features: int = field(kw_only=False)
    layer: int = 1
    use_bias: bool = False
    in_features: int = field(init=False)
    out_features: int = field(init=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        check_rates(alpha=self.alpha)
        if self.lamda <= 0:
            raise ValueError(f"lamda must be a positive number, got {self.lamda}")
        self.in_features = self.out_features = self.features
        super()._make_parameters(factory)

    def __call__(
        self,
        hypergraph: Hypergraph,
        x: ArrayLike,
        x0: ArrayLike,
        hypergraph_norm: HypergraphNorm | None = None,
    ) -> Array:
        """Return the new node features, ``(num_nodes, *batch, features)`` in `dtype`.

        Args:
            hypergraph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, features)``.
            x0: Input of the first convolution, of the same shape.
            hypergraph_norm: Factors from `unigcn_norm` for the hypergraph; None computes them.
        """
        x, kernel, bias = self._operands(x, hypergraph)
        x0 = base.check_features(x0, hypergraph.num_nodes, self.in_features, "x0").astype(x.dtype)
        if x0.shape != x.shape:
            raise ValueError(f"x0 must have the shape {x.shape} of x, got {x0.shape}")
        norm = unigcn_norm(hypergraph) if hypergraph_norm is None else hypergraph_norm
        check_instance("hypergraph_norm", norm, HypergraphNorm)
        scales = norm.scales | {"node_scale_out": (1 - self.alpha) * norm.node_out}
        # The residual is added where rows of G X are stored.
        z = base.aggregate_incidences(hypergraph, x, residual=self.alpha * x0, **scales)
        y = self._product(z, kernel, bias=bias)
        beta = math.log(self.lamda / self.layer + 1)
        return (1 - beta) * z + beta * y


class UniGIN(UniGINOptions, base.TwoLayerStack):
    """UniGIN: two `UniGINConv` by default, ReLU and dropout between them.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniGIN(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = UniGINConv


class UniSAGE(UniSAGEOptions, base.TwoLayerStack):
    """UniSAGE: two `UniSAGEConv` by default, ReLU and dropout between them.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniSAGE(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = UniSAGEConv


class UniGAT(UniGATOptions, AttentionStack):
    """UniGAT: two `UniGATConv` by default, ReLU and dropout between them; the last has one head.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniGAT(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = UniGATConv


class UniGCNII(UniGCNIIOptions, base.TwoLayerStack):
    """UniGCNII: a linear map, `UniGCNIIConv` layers, a linear map; ReLU and dropout between.

    There are two convolutions by default, and there may be many: deep stacks keep what
    distinguishes nodes, by residuals to the result of the first map. Biases are those of the two
    maps.

    Attributes:
        input: The first map, ``(in_features, hidden_features)``.
        output: The last map, ``(hidden_features, out_features)``.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniGCNII(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = UniGCNIIConv

    dropout_rate: float = 0.2
    input_dropout_rate: float = 0.2

    def _make_layers(self, factory: ParameterFactory) -> None:
        self.input = factory.linear(self.in_features, self.hidden_features)
        for number in range(1, self.num_layers + 1):
            self._make_convolution(number, self.hidden_features, factory=factory)
        self.output = factory.linear(self.hidden_features, self.out_features)

    def _overrides(self, number: int) -> dict[str, Any]:
        return {"layer": number, "use_bias": False}

    def __call__(  # type: ignore[override]  # names arguments that Stack leaves open
        self,
        graph: Hypergraph,
        x: ArrayLike,
        hypergraph_norm: HypergraphNorm | None = None,
        **dropout: Unpack[base.DropoutCall],
    ) -> Array:
        """Compute one row of outputs (logits) per node.

        Args:
            graph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            hypergraph_norm: Factors from `unigcn_norm` for the hypergraph; None computes them.
            **dropout: `deterministic` and `rngs`, see `Stack`.
        """
        assert self.output is not None
        base.check_structure("graph", graph, self.convolution)
        x = base.check_features(x, graph.num_nodes, self.in_features)
        norm = unigcn_norm(graph) if hypergraph_norm is None else hypergraph_norm
        dropout = base.dropout_arguments(**dropout)
        # All convolutions refer to the input of the first one.
        x0 = y = jax.nn.relu(base.linear(self.input, self.input_dropout(x, **dropout)))
        for convolution in self.convolutions:
            y = jax.nn.relu(convolution(graph, self.dropout(y, **dropout), x0, norm))
        return base.linear(self.output, self.dropout(y, **dropout))
