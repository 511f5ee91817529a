"""Bases of the layers with heads, and attention over the incidences of a hypergraph."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory, glorot_init
from jax_gnn import Hypergraph, additive_attention
from jax_gnn.extend import Side, feature_wise, take

attention_init = glorot_init


class HeadOptions(LinearOptions):
    """Options of convolutions with several heads.

    Attributes:
        heads: Number of heads.
        concat: Whether the heads' features are concatenated, ``out_features / heads`` features
            from each head; else the result is their mean.
        attention_dropout_rate: Share of the attention weights dropped in training, in [0, 1].
    """

    heads: int = 1
    concat: bool = True
    attention_dropout_rate: float = 0.0


class AttentionOptions(HeadOptions):
    """Options of convolutions whose attention has additive scores.

    Attributes:
        negative_slope: Slope of the LeakyReLU of the scores.
    """

    negative_slope: float = 0.2


class MultiHead:
    """Mixin of convolutions with heads: checks, the dropout, and the layout of the features.

    Attributes:
        out_features: Features per node of the output, for any number of heads.
        heads: Number of heads; other attributes as in `HeadOptions`.
    """

    out_features: int
    heads: int
    concat: bool
    attention_dropout_rate: float
    precision: jax.lax.PrecisionLike

    def _check_heads(self) -> None:
        base.check_heads(self.heads, self.out_features if self.concat else None)

    def _dropout(self, factory: ParameterFactory) -> nnx.Dropout:
        return nnx.Dropout(self.attention_dropout_rate, rngs=factory.rngs)

    @property
    def _head_features(self) -> int:
        """Features of each head."""
        return self.out_features // self.heads if self.concat else self.out_features

    @property
    def _width(self) -> int:
        """Features of all heads."""
        return self.heads * self._head_features

    def _attention_vector(self, factory: ParameterFactory, *lead: int, when: bool = True) -> Any:
        """Return a vector for each head, ``(*lead, heads, features)``."""
        shape = *lead, self.heads, self._head_features
        return factory.kernel(*shape, init=attention_init, when=when)

    def _scores(self, x: Array, kernel: nnx.Param[Array], attention: nnx.Param[Array]) -> Array:
        """Return ``⟨x kernel, attention⟩`` of each head, by a product as wide as the heads."""
        # Scores need one number per head: kernel and vector are multiplied first.
        kernel_rows = self._split(kernel[...].astype(x.dtype))
        head_kernel = dots(kernel_rows, attention[...].astype(x.dtype))
        return base.product(x, head_kernel, self.precision)

    def _split(self, x: Array) -> Array:
        """Reshape ``(…, heads · features)`` to ``(…, heads, features)``."""
        return x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)

    def _join(self, x: Array) -> Array:
        """Reduce ``(…, heads, features)`` to ``(…, out_features)``."""
        return x.reshape(*x.shape[:-2], self.out_features) if self.concat else x.mean(axis=-2)


class AttentionConvolution(AttentionOptions, MultiHead, base.Convolution):
    """Base of the convolutions with heads that have one linear map.

    Attributes:
        kernel: Weights of the linear map, ``(in_features, heads · features)``.
        bias: Biases of the result, ``(out_features,)``, or None without a bias.
    """

    def _make_parameters(self, factory: ParameterFactory) -> None:
        self._check_heads()
        # Kernels are as wide as all heads together, biases as the result.
        sources, _ = base.endpoint_sizes(self.in_features)
        self.kernel = factory.kernel(sources, self._width)
        self.bias = factory.bias(self.out_features)
        self.attention_dropout = self._dropout(factory)


class AttentionStack(base.TwoLayerStack):
    """Base of the models of convolutions with heads, of which the last has one head."""

    dropout_in_convolutions = True

    def _overrides(self, number: int) -> dict[str, Any]:
        return {"heads": 1} if number == self.num_layers else {}


def dots(x: Array, vectors: Array) -> Array:
    """Return ``⟨x, vector⟩`` of each head, for ``(…, heads, width)`` and ``(heads, width)``."""
    return jnp.sum(x * feature_wise(vectors, x), axis=-1)


def dropout_mask(
    dropout: nnx.Dropout, count: int, heads: int, arguments: base.DropoutCall
) -> Array | None:
    """Return factors of attention weights ``(count, heads)``; None if nothing is dropped."""
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
    dropout_arguments: base.DropoutCall | None = None,
) -> Array:
    """Sum values under the softmax of scores, over the senders of each receiver.

    Args:
        hypergraph: Hypergraph whose nodes and hyperedges send to each other.
        to: Receivers: "node" from its hyperedges, or "hyperedge" from its nodes.
        scores: Scores of the senders, ``(senders, *batch, heads)``.
        values: Values of the senders, ``(senders, *batch, heads, width)``.
        dropout: Dropout of the attention weights; None without.
        dropout_arguments: Arguments of the dropout's call.

    Returns:
        ``(receivers, *batch, heads, width)``; 0 for a receiver without senders.
    """
    heads = math.prod(scores.shape[1:])
    # Attention over incidences is that of a bipartite graph of nodes and hyperedges, transposed if
    # nodes receive, so that edges run from senders to receivers.
    hypergraph = hypergraph.check()
    graph = hypergraph.graph if to == "hyperedge" else hypergraph.receiving
    mask = None
    if dropout is not None and dropout_arguments is not None:
        mask = dropout_mask(dropout, graph.num_edges, heads, dropout_arguments)
    if to == "node":
        mask = None if mask is None else take(mask, graph.t_order)
        graph = graph.transpose()
    y: Array = additive_attention(
        graph,
        jnp.zeros((graph.num_dst, heads), scores.dtype),  # receivers add nothing to scores
        scores.reshape(graph.num_src, heads),
        values.reshape(graph.num_src, heads, values.shape[-1]),
        negative_slope=1.0,
        edge_scale=mask,
    )
    return y.reshape(graph.num_dst, *values.shape[1:])
