"""UniGNN in Flax NNX: UniGIN, UniSAGE, UniGAT and the deep UniGCNII.

Huang and Yang, "UniGNN: a unified framework for graph and hypergraph neural networks", IJCAI 2021.
Conventions that the paper leaves open are those of the authors' code
(https://github.com/OneForward/UniGNN), except that a bias can be had everywhere.
"""

from __future__ import annotations

import math
from typing import Any, Unpack, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers._attention import (
    AttentionConvolution,
    AttentionOptions,
    AttentionStack,
    attend,
    dots,
)
from flax_layers._base import (
    Activation,
    Convolution,
    LinearOptions,
    Stack,
    TwoLayerStack,
    aggregate,
    check_activation,
    check_features,
    check_positive,
    check_rates,
    check_structure,
    dropout_arguments,
    epilogue,
    finished,
    inverse_root,
    linear,
    linear_options,
    unit_rows,
)
from jax_gnn import Hypergraph, HypergraphNorm, node_to_hyperedge
from jax_gnn.extend import Reduce, check_choice, check_instance, check_number
from jax_gnn.sharding import HypergraphPart

LINEAR = ("sum", "mean")


class _UniConvolution(Convolution):
    """Base of UniGIN and UniSAGE: a node's own features and those of its hyperedges, one map."""

    has_activation = True
    takes_parts = True
    hyperedge_reduce: Reduce
    node_reduce: Reduce
    normalize: bool

    def __call__(
        self,
        hypergraph: Hypergraph,
        x: ArrayLike,
        *,
        activation: Activation | None = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            hypergraph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            activation: "relu" for a ReLU after all, which is part of the last kernel where that
                aggregates.

        Returns:
            ``(num_nodes, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the hypergraph, or the activation is
                unknown.
        """
        check_activation(activation)
        x, kernel, bias = self._operands(x, hypergraph)

        def aggregated(features: Array, **last: Any) -> Array:
            return aggregate(
                hypergraph,
                features,
                own_scale=self._own_scale(),
                hyperedge_reduce=self.hyperedge_reduce,
                node_reduce=self.node_reduce,
                **last,
            )

        inside = None if self.normalize else activation
        if self.hyperedge_reduce in LINEAR and self.node_reduce in LINEAR:
            y = self._aggregate_narrow(aggregated, x, kernel, bias, inside)
        else:
            mapped = self._product(x, kernel)
            y = aggregated(mapped, **epilogue(mapped, bias, inside))
        return finished(unit_rows(y), None, activation) if self.normalize else y

    def _own_scale(self) -> ArrayLike:
        """How much a node's own features count."""
        return 1.0


class UniGINConv(_UniConvolution):
    """UniGIN: ``((1 + eps) X + H agg(X)) Theta + b``, with ``agg`` over each hyperedge's nodes.

    Huang and Yang, "UniGNN", IJCAI 2021. A node sums the features of its hyperedges.
    The aggregation runs on the narrower side of Theta, unless ``agg`` is a maximum or minimum,
    which always follows the map.

    Attributes:
        kernel: Theta, ``(in_features, out_features)``.
        bias: ``(out_features,)``, or None without a bias.
        learned_eps: The learnable eps, ``()``; None if it is fixed.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniGINConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    node_reduce = "sum"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hyperedge_reduce: Reduce = "mean",
        eps: float = 0.0,
        learn_eps: bool = True,
        normalize: bool = False,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output.
            hyperedge_reduce: How a hyperedge's nodes are reduced: "mean", "sum", "max" or "min".
            eps: How much more than 1 a node's own features count; the initial value if it is
                learnable.
            learn_eps: Whether eps is learnable.
            normalize: Whether each row of the result is divided by its Euclidean norm.
            rngs: Source of the keys for initialisation (stream "params").
            **options: See `LinearOptions`.

        Raises:
            ValueError: A size is not positive or the reduction is unknown.
        """
        check_choice("hyperedge_reduce", hyperedge_reduce, get_args(Reduce))
        check_number("eps", eps)
        super().__init__(in_features, out_features, rngs=rngs, **options)
        self.learned_eps: nnx.Param[Array] | None = nnx.data(None)
        if learn_eps:
            self.learned_eps = nnx.Param(jnp.array(eps, self.param_dtype))
        self.hyperedge_reduce = hyperedge_reduce
        self.eps = eps
        self.learn_eps = learn_eps
        self.normalize = normalize

    def _own_scale(self) -> ArrayLike:
        return 1 + (self.eps if self.learned_eps is None else self.learned_eps[...].astype(float))


class UniSAGEConv(_UniConvolution):
    """UniSAGE: ``(X + agg'(agg(X))) Theta + b``, to each hyperedge and from there to each node.

    Huang and Yang, "UniGNN", IJCAI 2021: a mean over each hyperedge's nodes, and the
    sum over each node's hyperedges, unless other reductions are chosen. Sums and means run on the
    narrower side of Theta, maxima and minima follow the map.

    Attributes:
        kernel: Theta, ``(in_features, out_features)``.
        bias: ``(out_features,)``, or None without a bias.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniSAGEConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hyperedge_reduce: Reduce = "mean",
        node_reduce: Reduce = "sum",
        normalize: bool = False,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output.
            hyperedge_reduce: How a hyperedge's nodes are reduced: "mean", "sum", "max" or "min".
            node_reduce: How a node's hyperedges are reduced, likewise.
            normalize: Whether each row of the result is divided by its Euclidean norm.
            rngs: Source of the keys for initialisation (stream "params").
            **options: See `LinearOptions`.

        Raises:
            ValueError: A size is not positive or a reduction is unknown.
        """
        check_choice("hyperedge_reduce", hyperedge_reduce, get_args(Reduce))
        check_choice("node_reduce", node_reduce, get_args(Reduce))
        super().__init__(in_features, out_features, rngs=rngs, **options)
        self.hyperedge_reduce = hyperedge_reduce
        self.node_reduce = node_reduce
        self.normalize = normalize


class UniGATConv(AttentionConvolution):
    """UniGAT: each node attends to its hyperedges, ``Σ_e softmax_e(LeakyReLU(<a, h_e>)) h_e + b``.

    Huang and Yang, "UniGNN", IJCAI 2021. ``h_e`` are the features of hyperedge
    e, the mean of its nodes' ``x Theta``; the softmax is over the hyperedges of a node. As
    in the authors' code, scores depend on the hyperedge alone. The mean runs on the narrower side
    of Theta.

    Attributes:
        kernel: Theta, ``(in_features, heads · width)``.
        attention: a, ``(heads, width)``.
        bias: ``(out_features,)``, or None without a bias.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniGATConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        skip: bool = False,
        normalize: bool = False,
        rngs: nnx.Rngs,
        **options: Unpack[AttentionOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output, whatever the number of heads.
            skip: Whether a node's own ``x Theta`` is added.
            normalize: Whether each row is divided by its Euclidean norm, before the skip.
            rngs: Source of the keys, streams "params" and "dropout".
            **options: See `AttentionOptions`.

        Raises:
            ValueError: A size is not positive, heads do not divide the features that they share,
                a rate is outside [0, 1], or the slope is not finite.
        """
        super().__init__(in_features, out_features, rngs=rngs, **options)
        self.attention = self._attention(rngs)
        self.skip = skip
        self.normalize = normalize

    def __call__(
        self,
        hypergraph: Hypergraph,
        x: ArrayLike,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            hypergraph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            deterministic: Switches dropout off (True) or on (False); None leaves it to `train()`
                and `eval()`.
            rngs: Randomness of the dropout; None uses the stream given at construction.

        Returns:
            ``(num_nodes, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the hypergraph.
        """
        x, kernel, bias = self._operands(x, hypergraph)
        dropout = dropout_arguments(deterministic, rngs)

        def to_hyperedges(features: Array) -> Array:
            return node_to_hyperedge(hypergraph, features, reduce="mean")

        if self.skip:
            own = self._product(x, kernel)
            h = to_hyperedges(own)
        else:
            h = self._aggregate_narrow(to_hyperedges, x, kernel)
        h = self._split(h)
        scores = dots(h, self.attention[...].astype(h.dtype))
        scores = jax.nn.leaky_relu(scores, self.negative_slope)
        y = attend(hypergraph, "node", scores, h, self.attention_dropout, **dropout)
        y = self._join(y)
        y = unit_rows(y) if self.normalize else y
        if self.skip:
            y = y + self._join(self._split(own))
        return finished(y, bias)


def unigcn_norm(hypergraph: Hypergraph) -> HypergraphNorm:
    """The factors of UniGCN's ``G``, 0 where a degree is 0: see `UniGCNIIConv`.

    Huang and Yang, "UniGNN", IJCAI 2021. `UniGCNII` computes them once for all its
    convolutions; for a hypergraph that does not change, they can be computed once and passed to it.
    They are in float32, or in float64 where 64 bits are on.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> unigcn_norm(hypergraph).node_out
        Array([1.        , 1.        , 0.70710677, 1.        ], dtype=float32)
    """
    if isinstance(hypergraph, HypergraphPart):
        received = degree = hypergraph.node_degrees().astype(float)
        mean = hypergraph.to_hyperedges(degree, reduce="mean")
    else:
        check_instance("hypergraph", hypergraph, Hypergraph)
        degree = hypergraph.node_degrees().astype(float)
        mean = node_to_hyperedge(hypergraph._plain, degree, reduce="mean")
        received = hypergraph.receiving.out_degrees().astype(float)
    size = jnp.maximum(hypergraph.hyperedge_degrees(), 1).astype(float)
    return HypergraphNorm(None, inverse_root(mean) / size, inverse_root(received))


class UniGCNIIConv(Convolution):
    """UniGCNII: ``Y = (1 - beta) Z + beta Z Theta`` with ``Z = (1 - alpha) G X + alpha X0``.

    Huang and Yang, "UniGNN", IJCAI 2021: initial residual and identity mapping, as in
    GCNII. ``G`` is ``Dv^-1/2 H d_e^-1/2 De^-1 H^T``: the mean of each hyperedge's nodes is scaled
    by ``d_e^-1/2``, where ``d_e`` is the mean degree of these nodes.

    Attributes:
        kernel: Theta, ``(features, features)``.
        bias: ``(features,)``, or None, as by default.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> x = jnp.ones((4, 8))
        >>> UniGCNIIConv(8, rngs=nnx.Rngs(0))(hypergraph, x, x).shape
        (4, 8)
    """

    takes_parts = True

    def __init__(
        self,
        features: int,
        *,
        alpha: float = 0.1,
        lamda: float = 0.5,
        layer: int = 1,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            features: Features per node of input and output.
            alpha: Share of X0, in [0, 1].
            lamda: Makes the share of Theta, ``beta = log(lamda / layer + 1)``.
            layer: Number of the layer in its model, from 1.
            rngs: Source of the keys for initialisation (stream "params").
            **options: See `LinearOptions`; without a bias by default.

        Raises:
            ValueError: A size or lamda is not positive, or alpha is outside [0, 1].
        """
        check_positive(features=features, layer=layer)
        check_rates(alpha=alpha)
        check_number("lamda", lamda)
        if not 0 < lamda < math.inf:
            raise ValueError(f"lamda must be a positive number, got {lamda}")
        options.setdefault("use_bias", False)
        super().__init__(features, features, rngs=rngs, **options)
        self.features = features
        self.alpha = alpha
        self.lamda = lamda
        self.layer = layer

    def __call__(
        self,
        hypergraph: Hypergraph,
        x: ArrayLike,
        x0: ArrayLike,
        norm: HypergraphNorm | None = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            hypergraph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, features)``.
            x0: Those that the first of the convolutions got, of the same shape.
            norm: What `unigcn_norm` gives for the hypergraph; None computes it.

        Returns:
            ``(num_nodes, *batch, features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the hypergraph.
        """
        x, kernel, bias = self._operands(x, hypergraph)
        x0 = check_features(x0, hypergraph.num_nodes, self.in_features, "x0").astype(x.dtype)
        if x0.shape != x.shape:
            raise ValueError(f"x0 must have the shape {x.shape} of x, got {x0.shape}")
        norm = unigcn_norm(hypergraph) if norm is None else norm
        scales = norm.scales | {"node_scale_out": (1 - self.alpha) * norm.node_out}
        z = aggregate(hypergraph, x, residual=self.alpha * x0, **scales)
        mapped = self._product(z, kernel, bias=bias)
        beta = math.log(self.lamda / self.layer + 1)
        return (1 - beta) * z + beta * mapped


class UniGIN(TwoLayerStack):
    """UniGIN: two `UniGINConv` (or more), ReLU and dropout between them.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniGIN(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = UniGINConv


class UniSAGE(TwoLayerStack):
    """UniSAGE: two `UniSAGEConv` (or more), ReLU and dropout between them.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniSAGE(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = UniSAGEConv


class UniGAT(AttentionStack):
    """UniGAT: two `UniGATConv` (or more), ReLU and dropout between them; the last has one head.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniGAT(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = UniGATConv


class UniGCNII(Stack):
    """UniGCNII: a linear map, two `UniGCNIIConv` (or many), a linear map; ReLU and dropout between.

    Deep stacks keep what distinguishes nodes, by residuals to what the first map gives.

    Attributes:
        input: The first map, ``(in_features, hidden_features)``.
        output: The last map, ``(hidden_features, out_features)``.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> UniGCNII(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = UniGCNIIConv

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 2,
        alpha: float = 0.1,
        lamda: float = 0.5,
        dropout_rate: float = 0.2,
        input_dropout_rate: float = 0.2,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the layers.

        Args:
            in_features: Features per node of the input.
            hidden_features: Features per node between the maps.
            out_features: Features per node of the output, the number of classes.
            num_layers: Number of convolutions.
            alpha: See `UniGCNIIConv`.
            lamda: See `UniGCNIIConv`.
            dropout_rate: Share of hidden activations dropped in training, in [0, 1].
            input_dropout_rate: Share of input features dropped in training, in [0, 1].
            rngs: Source of the keys, streams "params" and "dropout".
            **options: See `LinearOptions`; `use_bias` is that of the two maps.

        Raises:
            ValueError: A size or lamda is not positive, or a rate or alpha is outside [0, 1].
        """
        super().__init__(
            in_features,
            hidden_features,
            out_features,
            num_layers=num_layers,
            dropout_rate=dropout_rate,
            input_dropout_rate=input_dropout_rate,
            rngs=rngs,
            alpha=alpha,
            lamda=lamda,
            **options,
        )
        self.use_bias = options.get("use_bias", True)

    def _build(self, *, rngs: nnx.Rngs, **options: Any) -> None:
        maps = linear_options(options)
        self.input = nnx.Linear(self.in_features, self.hidden_features, rngs=rngs, **maps)
        for layer in range(1, self.num_layers + 1):
            of_convolution = options | {"use_bias": False, "layer": layer}
            conv = UniGCNIIConv(self.hidden_features, rngs=rngs, **of_convolution)
            setattr(self, f"conv{layer}", conv)
        self.output = nnx.Linear(self.hidden_features, self.out_features, rngs=rngs, **maps)

    def __call__(  # type: ignore[override]  # names arguments that Stack leaves open
        self,
        graph: Hypergraph,
        x: ArrayLike,
        norm: HypergraphNorm | None = None,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> Array:
        """Computes one row of outputs (logits) per node.

        Args:
            graph: The hypergraph.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            norm: What `unigcn_norm` gives for the hypergraph; None computes it.
            deterministic: See `Stack`.
            rngs: See `Stack`.

        Returns:
            ``(num_nodes, *batch, out_features)``.

        Raises:
            ValueError: A shape does not fit a layer or the hypergraph.
        """
        assert self.output is not None
        check_structure("graph", graph, self.convolution)
        x = check_features(x, graph.num_nodes, self.in_features)
        norm = unigcn_norm(graph) if norm is None else norm
        dropout = dropout_arguments(deterministic, rngs)
        x0 = y = jax.nn.relu(linear(self.input, self.input_dropout(x, **dropout)))
        for convolution in self.convolutions:
            y = jax.nn.relu(convolution(graph, self.dropout(y, **dropout), x0, norm))
        return linear(self.output, self.dropout(y, **dropout))
