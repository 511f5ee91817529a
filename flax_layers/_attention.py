"""What the layers with attention over incidences share."""

from __future__ import annotations

import math
from typing import Any, Unpack

import jax.numpy as jnp
from flax import nnx
from jax import Array

from flax_layers._base import (
    Convolution,
    LinearOptions,
    TwoLayerStack,
    check_positive,
    check_rates,
)
from jax_gnn import Hypergraph, additive_attention
from jax_gnn.extend import Side, check_finite, feature_wise, take

attention_init = nnx.initializers.glorot_uniform()


class AttentionOptions(LinearOptions, total=False):
    """Options of every convolution with heads.

    Attributes:
        heads: Number of heads.
        concat: Whether the heads' features lie side by side, each of ``out_features / heads``
            features; else the result is their mean.
        negative_slope: Of the LeakyReLU of the scores.
        attention_dropout_rate: Share of the attention weights dropped in training, in [0, 1].
    """

    heads: int
    concat: bool
    negative_slope: float
    attention_dropout_rate: float


class AttentionConvolution(Convolution):
    """Base of the convolutions with heads that weigh incidences.

    Attributes:
        kernel: ``(in_features, heads · width)``.
        bias: ``(out_features,)``, or None without a bias.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        attention_dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises kernel and bias.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output, whatever the number of heads.
            heads: See `AttentionOptions`; so for the next three.
            concat: Whether heads lie side by side.
            negative_slope: Of the LeakyReLU.
            attention_dropout_rate: Of the attention weights.
            rngs: Source of the keys, streams "params" and "dropout".
            **options: See `LinearOptions`.

        Raises:
            ValueError: A size is not positive, heads do not divide the features that they share,
                a rate is outside [0, 1], or the slope is not finite.
        """
        check_positive(out_features=out_features)
        check_heads(heads, out_features if concat else None)
        check_rates(attention_dropout_rate=attention_dropout_rate)
        check_finite("negative_slope", negative_slope)
        width = out_features if concat else heads * out_features
        super().__init__(in_features, out_features, width=width, rngs=rngs, **options)
        if self.bias is not None:
            self.bias = nnx.Param(self.bias[:out_features])  # of the result, not of each head
        self.attention_dropout = nnx.Dropout(attention_dropout_rate, rngs=rngs)
        self.heads = heads
        self.concat = concat
        self.negative_slope = negative_slope
        self.attention_dropout_rate = attention_dropout_rate

    def _attention(self, rngs: nnx.Rngs) -> nnx.Param[Array]:
        """A vector of each head, ``(heads, width)``."""
        shape = (self.heads, self.kernel.shape[1] // self.heads)
        return nnx.Param(attention_init(rngs.params(), shape, self.param_dtype))

    def _split(self, x: Array) -> Array:
        """``(…, heads · width)`` to ``(…, heads, width)``."""
        return x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)

    def _join(self, x: Array) -> Array:
        """``(…, heads, width)`` to ``(…, out_features)``."""
        return x.reshape(*x.shape[:-2], self.out_features) if self.concat else x.mean(axis=-2)


class AttentionStack(TwoLayerStack):
    """Base of the models of such convolutions; the last has one head."""

    dropout_in_convolutions = True

    def _options_of(self, number: int, options: dict[str, Any]) -> dict[str, Any]:
        return options | {"heads": 1} if number == self.num_layers else options


def check_heads(heads: int, features: int | None) -> None:
    """Raises ValueError for numbers of heads below 1, or that do not divide what they share."""
    check_positive(heads=heads)
    if features is not None and features % heads:
        raise ValueError(
            f"heads must divide out_features, which they share, got heads={heads} and "
            f"out_features={features}"
        )


def dots(x: Array, vectors: Array) -> Array:
    """``⟨x, vector⟩`` of each head, of ``(…, heads, width)`` and ``(heads, width)``."""
    return jnp.sum(x * feature_wise(vectors, x), axis=-1)


def dropped(
    dropout: nnx.Dropout, count: int, heads: int, arguments: dict[str, Any]
) -> Array | None:
    """What a dropout multiplies attention weights ``(count, heads)`` with; None for ones."""
    deterministic = arguments.get("deterministic")
    deterministic = dropout.deterministic if deterministic is None else deterministic
    if dropout.rate == 0 or deterministic:
        return None
    return dropout(jnp.ones((count, heads)), **arguments)


def attend(
    hypergraph: Hypergraph,
    to: Side,
    scores: Array,
    values: Array,
    dropout: nnx.Dropout | None = None,
    **arguments: Any,
) -> Array:
    """Sums values under the softmax of scores, over the senders of each receiver.

    Args:
        hypergraph: The hypergraph.
        to: Who receives: "node" from its hyperedges, or "hyperedge" from its nodes.
        scores: ``(senders, *batch, heads)``.
        values: ``(senders, *batch, heads, width)``.
        dropout: Of the weights.
        **arguments: Of the dropout.

    Returns:
        ``(receivers, *batch, heads, width)``; 0 where nobody sends.
    """
    heads = math.prod(scores.shape[1:])
    hypergraph = hypergraph.check()
    graph = hypergraph.graph if to == "hyperedge" else hypergraph.receiving
    kept = None if dropout is None else dropped(dropout, graph.num_edges, heads, arguments)
    if to == "node":
        kept = None if kept is None else take(kept, graph.t_order)
        graph = graph.transpose()
    y = additive_attention(
        graph,
        jnp.zeros((graph.num_dst, heads), scores.dtype),  # receivers add nothing to scores
        scores.reshape(graph.num_src, heads),
        values.reshape(graph.num_src, heads, values.shape[-1]),
        negative_slope=1.0,
        edge_scale=kept,
    )
    return y.reshape(graph.num_dst, *values.shape[1:])
