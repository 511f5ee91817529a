"""AllSet in Flax NNX: learned functions of multisets, to the hyperedges and back to the nodes.

Chien et al., "You are AllSet: a multiset function framework for hypergraph neural networks", ICLR
2022 (arXiv 2106.13264), with the conventions of the authors' code
(https://github.com/jianhao2016/AllSet).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._attention import attend, attention_init, dots
from flax_layers._declaration import LinearOptions, ParameterFactory
from jax_gnn import Hypergraph, hyperedge_to_node, node_to_hyperedge
from jax_gnn.extend import Side, check_instance

SetAggregation = Literal["sum", "mean"]


class _MLP(nnx.Module):
    """Linear maps ``linear1``, ``linear2``, … with ReLU, normalization and dropout between them.

    With `normalize`, layer normalizations ``norm1``, ``norm2``, … come before each map.
    """

    def __init__(
        self,
        widths: list[int],
        factory: ParameterFactory,
        *,
        normalize: bool,
        dropout_rate: float = 0.0,
    ) -> None:
        self.num_layers = len(widths) - 1
        for number in range(1, len(widths)):
            in_features, out_features = widths[number - 1 : number + 1]
            if normalize:
                setattr(self, f"norm{number}", _layer_norm(in_features, factory))
            setattr(self, f"linear{number}", factory.linear(in_features, out_features))
        self.dropout = nnx.Dropout(dropout_rate, rngs=factory.rngs)
        self.normalize = normalize

    def __call__(self, x: Array, dropout: base.DropoutCall) -> Array:
        for number in range(1, self.num_layers + 1):
            if number > 1:
                x = jax.nn.relu(x)
            if self.normalize:
                x = base.normalized(getattr(self, f"norm{number}"), x)
            if number > 1:
                x = self.dropout(x, **dropout)
            x = getattr(self, f"linear{number}")(x)
        return x


class _DeepSet(nnx.Module):
    """``ReLU(decoder(aggregate(ReLU(encoder(x)))))``, the aggregation over senders."""

    def __init__(
        self, in_features: int, options: AllDeepSetsConv, factory: ParameterFactory
    ) -> None:
        width, rate = options.out_features, options.dropout_rate
        widths = [width] * options.mlp_layers
        self.encoder = _MLP([in_features, *widths], factory, normalize=True, dropout_rate=rate)
        self.decoder = _MLP([width, *widths], factory, normalize=True, dropout_rate=rate)
        self.dropout = nnx.Dropout(rate, rngs=factory.rngs)
        self.reduce = options.reduce

    def __call__(
        self, hypergraph: Hypergraph, x: Array, to: Side, dropout: base.DropoutCall
    ) -> Array:
        # Only the sum over senders needs the hypergraph; both MLPs work on rows.
        reduce = hyperedge_to_node if to == "node" else node_to_hyperedge
        y = self.dropout(jax.nn.relu(self.encoder(x, dropout)), **dropout)
        y = reduce(hypergraph, y, reduce=self.reduce)
        return jax.nn.relu(self.decoder(y, dropout))


class _AttentionPooling(nnx.Module):
    """Pooling by multihead attention, with a learned query: ``LN(y + ReLU(MLP(y)))``.

    ``y = LN(seed + Σ softmax(LeakyReLU(<seed, key>)) value)``, the sum over senders.
    """

    def __init__(
        self, in_features: int, options: AllSetTransformerConv, factory: ParameterFactory
    ) -> None:
        width = options.out_features
        self.key = factory.linear(in_features, width)
        self.value = factory.linear(in_features, width)
        head_features = width // options.heads
        self.seed = factory.kernel(options.heads, head_features, init=attention_init)
        self.norm1 = _layer_norm(width, factory)
        self.mlp = _MLP([width] * (options.mlp_layers + 1), factory, normalize=False)
        self.norm2 = _layer_norm(width, factory)
        self.negative_slope = options.negative_slope

    def __call__(
        self, hypergraph: Hypergraph, x: Array, to: Side, dropout: base.DropoutCall
    ) -> Array:
        value = self.value(x)
        seed = self.seed[...].astype(value.dtype)
        scores = jax.nn.leaky_relu(self._scores(x), self.negative_slope)
        y = attend(hypergraph, to, scores, value.reshape(*value.shape[:-1], *seed.shape))
        y = base.finished(y, seed)
        y = base.normalized(self.norm1, y.reshape(*y.shape[:-2], math.prod(y.shape[-2:])))
        return base.normalized(self.norm2, y + jax.nn.relu(self.mlp(y, dropout)))

    def _scores(self, x: Array) -> Array:
        """Return ``<seed, key>``.

        Keys have no other use, so that their map and the seed are multiplied first: the result is
        a map as narrow as the heads.
        """
        operands = x, self.key.kernel[...], base.parameter_value(self.key.bias), self.seed[...]
        x, kernel, bias, seed = dtypes.promote_dtype(operands, dtype=self.key.dtype)
        score_kernel = dots(kernel.reshape(-1, *seed.shape), seed)
        scores = jnp.matmul(x, score_kernel, precision=self.key.precision)
        return base.finished(scores, None if bias is None else dots(bias.reshape(seed.shape), seed))


def _layer_norm(features: int, factory: ParameterFactory) -> nnx.LayerNorm:
    """Return a layer normalization with the epsilon of the authors' code."""
    return nnx.LayerNorm(
        features,
        epsilon=1e-5,
        use_fast_variance=False,
        dtype=factory.dtype,
        param_dtype=factory.param_dtype,
        rngs=factory.rngs,
    )


class AllSetOptions(LinearOptions):
    """Options that both kinds of convolutions share.

    Attributes:
        mlp_layers: Number of maps of each MLP.
    """

    mlp_layers: int = 2


class _AllSetConv(AllSetOptions):
    """Base of both kinds: a function of multisets to the hyperedges, another to the nodes.

    Attributes:
        in_features: Features per node of the input.
        out_features: Features per node of the output and inside.
        dropout_rate: Share of activations inside dropped in training, in [0, 1].
        to_hyperedges: Function from the nodes' features to the hyperedges'.
        to_nodes: Function from the hyperedges' features to the nodes'.
    """

    structure = Hypergraph

    in_features: int = field(kw_only=False)
    out_features: int = field(kw_only=False)
    dropout_rate: float = 0.0
    to_hyperedges: Callable[..., Array] = field(init=False)
    to_nodes: Callable[..., Array] = field(init=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        self.dropout = nnx.Dropout(self.dropout_rate, rngs=factory.rngs)

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
        dropout = base.dropout_arguments(deterministic, rngs)
        check_instance("hypergraph", hypergraph, Hypergraph)
        x = base.check_features(x, hypergraph.num_nodes, self.in_features)
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            x = x.astype(self.param_dtype)
        # Two functions of multisets: over each hyperedge's nodes, then over each node's hyperedges.
        y = jax.nn.relu(self.to_hyperedges(hypergraph, x, "hyperedge", dropout))
        return self.to_nodes(hypergraph, self.dropout(y, **dropout), "node", dropout)


class AllDeepSetsOptions(AllSetOptions):
    """Options of `AllDeepSetsConv`, and of `AllDeepSets` for its convolutions.

    Attributes:
        reduce: Reduction of a multiset, "sum" or "mean".
    """

    reduce: SetAggregation = "sum"


class AllDeepSetsConv(AllDeepSetsOptions, _AllSetConv):
    """AllDeepSets: to each hyperedge and back, ``ReLU(MLP(Σ ReLU(MLP(x))))``.

    Chien et al., "You are AllSet", ICLR 2022. Each MLP has layer normalization before
    each of its maps, and dropout inside.

    Attributes:
        to_hyperedges: Function to the hyperedges, with an ``encoder`` and a ``decoder``.
        to_nodes: Function back to the nodes, with an ``encoder`` and a ``decoder``.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> AllDeepSetsConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    def _make_parameters(self, factory: ParameterFactory) -> None:
        super()._make_parameters(factory)
        self.to_hyperedges = _DeepSet(self.in_features, self, factory)
        self.to_nodes = _DeepSet(self.out_features, self, factory)


class AllSetTransformerOptions(AllSetOptions):
    """Options of `AllSetTransformerConv`, and of `AllSetTransformer` for its convolutions.

    Attributes:
        heads: Number of heads, which share `out_features`.
        negative_slope: Slope of the LeakyReLU of the scores.
    """

    heads: int = 1
    negative_slope: float = 0.2


class AllSetTransformerConv(AllSetTransformerOptions, _AllSetConv):
    """AllSetTransformer: to each hyperedge and back, pooling by multihead attention.

    Chien et al., "You are AllSet", ICLR 2022; ``LN(y + ReLU(MLP(y)))`` with
    ``y = LN(seed + Σ softmax(LeakyReLU(<seed, x K>)) x V)``. Each head has a seed; the softmax is
    over the senders of each receiver. A receiver without senders has the seed alone.

    Attributes:
        to_hyperedges: Function to the hyperedges, with ``seed``, ``key``, ``value``, ``mlp`` and
            two layer normalizations.
        to_nodes: Function back to the nodes, with the same members.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> AllSetTransformerConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    def _make_parameters(self, factory: ParameterFactory) -> None:
        super()._make_parameters(factory)
        base.check_heads(self.heads, self.out_features)
        self.to_hyperedges = _AttentionPooling(self.in_features, self, factory)
        self.to_nodes = _AttentionPooling(self.out_features, self, factory)


class _AllSet(base.Stack):
    """Base of the models: convolutions of hidden features, and a linear map to the classes.

    Attributes:
        dropout_rate: Share of hidden activations dropped in training, in [0, 1], also inside the
            convolutions.
        output: The linear map, ``(hidden_features, out_features)``.
    """

    dropout_in_convolutions = True

    num_layers: int = 1
    input_dropout_rate: float = 0.2

    def _make_layers(self, factory: ParameterFactory) -> None:
        hidden = self.hidden_features
        for number in range(1, self.num_layers + 1):
            in_features = self.in_features if number == 1 else hidden
            self._make_convolution(number, in_features, hidden, factory=factory)
        self.output = factory.linear(hidden, self.out_features)


class AllDeepSets(AllDeepSetsOptions, _AllSet):
    """AllDeepSets: one `AllDeepSetsConv` by default, ReLU and dropout, a linear map.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> AllDeepSets(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = AllDeepSetsConv


class AllSetTransformer(AllSetTransformerOptions, _AllSet):
    """AllSetTransformer: one `AllSetTransformerConv` by default, ReLU and dropout, a linear map.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> AllSetTransformer(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = AllSetTransformerConv
