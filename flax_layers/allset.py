"""AllSet in Flax NNX: learned functions of multisets, to the hyperedges and back to the nodes.

Chien et al., "You are AllSet: a multiset function framework for hypergraph neural networks", ICLR
2022 (arXiv 2106.13264), with the conventions of the authors' code
(https://github.com/jianhao2016/AllSet).
"""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike

from flax_layers._attention import attend, attention_init, check_heads, dots
from flax_layers._base import (
    LinearOptions,
    Stack,
    check_features,
    check_positive,
    check_rates,
    dropout_arguments,
    finished,
    linear_options,
    normalized,
)
from jax_gnn import Hypergraph, hyperedge_to_node, node_to_hyperedge
from jax_gnn.extend import Side, check_choice, check_instance, check_number, promoted

SetAggregation = Literal["sum", "mean"]


class _MLP(nnx.Module):
    """Linear maps ``linear1``, ``linear2``, … with ReLU, normalisation and dropout between them.

    Layer normalisations ``norm1``, ``norm2``, … are before each map, if asked for.
    """

    def __init__(
        self,
        widths: list[int],
        *,
        normalize: bool,
        dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        self.num_layers = len(widths) - 1
        for number in range(1, len(widths)):
            before, after = widths[number - 1 : number + 1]
            if normalize:
                setattr(self, f"norm{number}", _layer_norm(before, rngs, options))
            setattr(self, f"linear{number}", nnx.Linear(before, after, rngs=rngs, **options))
        self.dropout = nnx.Dropout(dropout_rate, rngs=rngs)
        self.normalize = normalize

    def __call__(self, x: Array, dropout: dict[str, Any]) -> Array:
        for number in range(1, self.num_layers + 1):
            if number > 1:
                x = jax.nn.relu(x)
            if self.normalize:
                x = normalized(getattr(self, f"norm{number}"), x)
            if number > 1:
                x = self.dropout(x, **dropout)
            x = getattr(self, f"linear{number}")(x)
        return x


class _DeepSet(nnx.Module):
    """``ReLU(decoder(aggregate(ReLU(encoder(x)))))``, the aggregation over senders."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        aggregation: SetAggregation,
        mlp_layers: int,
        dropout_rate: float,
        rngs: nnx.Rngs,
        options: LinearOptions,
    ) -> None:
        inner = [out_features] * mlp_layers
        mlp: Any = {"normalize": True, "dropout_rate": dropout_rate, "rngs": rngs, **options}
        self.encoder = _MLP([in_features, *inner], **mlp)
        self.decoder = _MLP([out_features, *inner], **mlp)
        self.dropout = nnx.Dropout(dropout_rate, rngs=rngs)
        self.aggregation: SetAggregation = aggregation

    def __call__(
        self, hypergraph: Hypergraph, x: Array, to: Side, dropout: dict[str, Any]
    ) -> Array:
        reduce = hyperedge_to_node if to == "node" else node_to_hyperedge
        y = self.dropout(jax.nn.relu(self.encoder(x, dropout)), **dropout)
        y = reduce(hypergraph, y, reduce=self.aggregation)
        return jax.nn.relu(self.decoder(y, dropout))


class _AttentionPooling(nnx.Module):
    """Pooling by multihead attention, with a learned query: ``LN(y + ReLU(MLP(y)))``.

    ``y = LN(seed + Σ softmax(LeakyReLU(<seed, key>)) value)``, the sum over senders.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int,
        mlp_layers: int,
        negative_slope: float,
        rngs: nnx.Rngs,
        options: LinearOptions,
    ) -> None:
        self.key = nnx.Linear(in_features, out_features, rngs=rngs, **options)
        self.value = nnx.Linear(in_features, out_features, rngs=rngs, **options)
        param_dtype = options.get("param_dtype", jnp.float32)
        shape = (heads, out_features // heads)
        self.seed = nnx.Param(attention_init(rngs.params(), shape, param_dtype))
        self.norm1 = _layer_norm(out_features, rngs, options)
        self.mlp = _MLP([out_features] * (mlp_layers + 1), normalize=False, rngs=rngs, **options)
        self.norm2 = _layer_norm(out_features, rngs, options)
        self.negative_slope = negative_slope

    def __call__(
        self, hypergraph: Hypergraph, x: Array, to: Side, dropout: dict[str, Any]
    ) -> Array:
        value = self.value(x)
        seed = self.seed[...].astype(value.dtype)
        scores = jax.nn.leaky_relu(self._scores(x), self.negative_slope)
        y = attend(hypergraph, to, scores, value.reshape(*value.shape[:-1], *seed.shape))
        y = finished(y, seed)
        y = normalized(self.norm1, y.reshape(*y.shape[:-2], math.prod(y.shape[-2:])))
        return normalized(self.norm2, y + jax.nn.relu(self.mlp(y, dropout)))

    def _scores(self, x: Array) -> Array:
        """``<seed, key>``; keys serve nothing else, so that seed and their map become one map."""
        bias = None if self.key.bias is None else self.key.bias[...]
        x, kernel, bias, seed = dtypes.promote_dtype(
            (x, self.key.kernel[...], bias, self.seed[...]), dtype=self.key.dtype
        )
        to_scores = dots(kernel.reshape(-1, *seed.shape), seed)
        scores = jnp.matmul(x, to_scores, precision=self.key.precision)
        return finished(scores, None if bias is None else dots(bias.reshape(seed.shape), seed))


def _layer_norm(features: int, rngs: nnx.Rngs, options: LinearOptions) -> nnx.LayerNorm:
    kept: Any = {name: options[name] for name in ("dtype", "param_dtype") if name in options}
    return nnx.LayerNorm(features, epsilon=1e-5, use_fast_variance=False, rngs=rngs, **kept)


class _AllSetConv(nnx.Module):
    """Base of the two convolutions: a function of multisets to the hyperedges, one to the nodes.

    Attributes:
        to_hyperedges: What makes hyperedges' features of those of their nodes.
        to_nodes: What makes nodes' features of those of their hyperedges.
    """

    structure = Hypergraph
    to_hyperedges: Any
    to_nodes: Any

    def __init__(
        self,
        in_features: int,
        out_features: int,
        mlp_layers: int,
        dropout_rate: float,
        rngs: nnx.Rngs,
        options: LinearOptions,
    ) -> None:
        check_positive(in_features=in_features, out_features=out_features, mlp_layers=mlp_layers)
        check_rates(dropout_rate=dropout_rate)
        self.in_features = in_features
        self.out_features = out_features
        self.mlp_layers = mlp_layers
        self.dropout_rate = dropout_rate
        self.use_bias = options.get("use_bias", True)
        self.dtype = options.get("dtype")
        self.param_dtype = options.get("param_dtype", jnp.float32)
        self.precision = options.get("precision")
        self.dropout = nnx.Dropout(dropout_rate, rngs=rngs)

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
        dropout = dropout_arguments(deterministic, rngs)
        check_instance("hypergraph", hypergraph, Hypergraph)
        x = check_features(x, hypergraph.num_nodes, self.in_features)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(promoted(x.dtype, self.param_dtype))
        y = jax.nn.relu(self.to_hyperedges(hypergraph, x, "hyperedge", dropout))
        return self.to_nodes(hypergraph, self.dropout(y, **dropout), "node", dropout)


class AllDeepSetsConv(_AllSetConv):
    """AllDeepSets: to each hyperedge and back, ``ReLU(MLP(Σ ReLU(MLP(x))))``.

    Chien et al., "You are AllSet", ICLR 2022. Each MLP has layer normalisation before
    each of its maps, and dropout inside.

    Attributes:
        to_hyperedges: The first ``encoder`` and ``decoder``.
        to_nodes: The second ones.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> AllDeepSetsConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        aggregation: SetAggregation = "sum",
        mlp_layers: int = 2,
        dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output and inside.
            aggregation: "sum" or "mean".
            mlp_layers: Number of maps of each MLP.
            dropout_rate: Share of activations inside that are dropped in training, in [0, 1].
            rngs: Source of the keys, streams "params" and "dropout".
            **options: See `LinearOptions`.

        Raises:
            ValueError: A size is not positive, the rate is outside [0, 1], or the aggregation is
                unknown.
        """
        check_choice("aggregation", aggregation, get_args(SetAggregation))
        super().__init__(in_features, out_features, mlp_layers, dropout_rate, rngs, options)
        of_both: Any = (aggregation, mlp_layers, dropout_rate, rngs, options)
        self.to_hyperedges = _DeepSet(in_features, out_features, *of_both)
        self.to_nodes = _DeepSet(out_features, out_features, *of_both)
        self.aggregation: SetAggregation = aggregation


class AllSetTransformerConv(_AllSetConv):
    """AllSetTransformer: to each hyperedge and back, pooling by multihead attention.

    Chien et al., "You are AllSet", ICLR 2022; ``LN(y + ReLU(MLP(y)))`` of
    ``y = LN(seed + Σ softmax(LeakyReLU(<seed, x K>)) x V)``, with a seed of each head and the
    softmax over the senders of each receiver, of whom those without any have the seed alone.

    Attributes:
        to_hyperedges: ``seed``, ``key``, ``value``, ``mlp`` and two layer normalisations.
        to_nodes: The same, back to the nodes.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> AllSetTransformerConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int = 1,
        mlp_layers: int = 2,
        negative_slope: float = 0.2,
        dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output, which the heads share.
            heads: Number of heads.
            mlp_layers: Number of maps of each MLP.
            negative_slope: Of the LeakyReLU of the scores.
            dropout_rate: Share of the hyperedges' features dropped in training, in [0, 1].
            rngs: Source of the keys, streams "params" and "dropout".
            **options: See `LinearOptions`.

        Raises:
            ValueError: A size is not positive, heads do not divide out_features, or the rate is
                outside [0, 1].
        """
        super().__init__(in_features, out_features, mlp_layers, dropout_rate, rngs, options)
        check_heads(heads, out_features)
        check_number("negative_slope", negative_slope)
        of_both: Any = (heads, mlp_layers, negative_slope, rngs, options)
        self.to_hyperedges = _AttentionPooling(in_features, out_features, *of_both)
        self.to_nodes = _AttentionPooling(out_features, out_features, *of_both)
        self.heads = heads
        self.negative_slope = negative_slope


class _AllSet(Stack):
    """Convolutions of hidden features, and a linear map to the classes.

    Attributes:
        output: The linear map, ``(hidden_features, out_features)``.
    """

    dropout_in_convolutions = True

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 1,
        input_dropout_rate: float = 0.2,
        **options: Any,
    ) -> None:
        """Initialises the layers.

        Args:
            in_features: Features per node of the input.
            hidden_features: Features per node after each convolution.
            out_features: Features per node of the output, the number of classes.
            num_layers: Number of convolutions.
            input_dropout_rate: Share of input features dropped in training, in [0, 1].
            **options: `dropout_rate`, also of the dropout inside the convolutions, and rngs, see
                `Stack`; further arguments of each convolution.

        Raises:
            ValueError: A size is not positive, a rate is outside [0, 1], or a convolution refuses
                an option.
        """
        super().__init__(
            in_features,
            hidden_features,
            out_features,
            num_layers=num_layers,
            input_dropout_rate=input_dropout_rate,
            **options,
        )

    def _build(self, *, rngs: nnx.Rngs, **options: Any) -> None:
        hidden = self.hidden_features
        for number in range(1, self.num_layers + 1):
            before = self.in_features if number == 1 else hidden
            of_layer: Any = options | {"dropout_rate": self.dropout_rate, "rngs": rngs}
            setattr(self, f"conv{number}", self.convolution(before, hidden, **of_layer))
        self.output = nnx.Linear(hidden, self.out_features, rngs=rngs, **linear_options(options))


class AllDeepSets(_AllSet):
    """AllDeepSets: an `AllDeepSetsConv` (or more), ReLU and dropout, a linear map.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> AllDeepSets(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = AllDeepSetsConv


class AllSetTransformer(_AllSet):
    """AllSetTransformer: an `AllSetTransformerConv` (or more), ReLU and dropout, a linear map.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> AllSetTransformer(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = AllSetTransformerConv
