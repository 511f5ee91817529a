"""Hypergraph attention in Flax NNX."""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers._attention import AttentionConvolution, AttentionOptions, AttentionStack, dots
from flax_layers._base import check_features, dropout_arguments, finished
from flax_layers.hypergraph import check_hyperedge_weight
from jax_gnn import (
    Hypergraph,
    hyperedge_to_node,
    hypergraph_aggregate,
    incidence_softmax,
    node_to_hyperedge,
    sddmm,
)
from jax_gnn.extend import Side, check_choice

Degrees = Literal["ones", "attention"]


class HypergraphAttentionConv(AttentionConvolution):
    """Hypergraph convolution under attention: ``Dv^-1 H W De^-1 H^T X Theta + b``.

    Bai, Zhang and Torr, "Hypergraph convolution and hypergraph attention", Pattern Recognition
    2021. The entries of both H are attention weights, for each head
    ``softmax(LeakyReLU(<a, x_v Theta> + <a', z_e Theta>))`` of node v and hyperedge e with features
    ``z_e``, over the hyperedges of a node. With ``degrees="ones"``, ``De`` and ``Dv`` are those of
    H without attention, as in `HypergraphConv` of PyTorch Geometric with ``use_attention=True``:
    what a node gets shrinks with its degree. With ``"attention"`` they are those of H with
    attention, so that a node gets a weighted mean of weighted means.

    Attributes:
        kernel: Theta, ``(in_features, heads · width)``.
        node_attention: a, ``(heads, width)``.
        hyperedge_attention: a', ``(heads, width)``.
        bias: ``(out_features,)``, or None without a bias.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HypergraphAttentionConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        softmax_by: Side = "node",
        degrees: Degrees = "ones",
        rngs: nnx.Rngs,
        **options: Unpack[AttentionOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node and per hyperedge of the input.
            out_features: Features per node of the output, whatever the number of heads.
            softmax_by: "node" for attention among the hyperedges of each node, as in the paper;
                "hyperedge" for attention among the nodes of each hyperedge.
            degrees: "ones" or "attention", what the degrees are sums of.
            rngs: Source of the keys, streams "params" and "dropout".
            **options: See `AttentionOptions`.

        Raises:
            ValueError: A size is not positive, heads do not divide the features that they share,
                a rate is outside [0, 1], or softmax_by or degrees is none of these.
        """
        check_choice("softmax_by", softmax_by, get_args(Side))
        check_choice("degrees", degrees, get_args(Degrees))
        super().__init__(in_features, out_features, rngs=rngs, **options)
        self.node_attention = self._attention(rngs)
        self.hyperedge_attention = self._attention(rngs)
        self.softmax_by: Side = softmax_by
        self.degrees: Degrees = degrees

    def __call__(
        self,
        hypergraph: Hypergraph,
        x: ArrayLike,
        hyperedge_weight: ArrayLike | None = None,
        hyperedge_attr: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            hypergraph: The hypergraph, not directed.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            hyperedge_weight: W, ``(num_hyperedges,)``; None means ones.
            hyperedge_attr: Features of the hyperedges, ``(num_hyperedges, *batch, in_features)``;
                None takes the mean of each hyperedge's nodes.
            deterministic: Switches dropout off (True) or on (False); None leaves it to `train()`
                and `eval()`.
            rngs: Randomness of the dropout; None uses the stream given at construction.

        Returns:
            ``(num_nodes, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the hypergraph, or that is directed.
        """
        x, kernel, bias = self._operands(x, hypergraph)
        if hypergraph.head is not None:
            raise ValueError(
                "hypergraph must not be directed: attention is to one H, both ways, got "
                f"{hypergraph}"
            )
        weight = check_hyperedge_weight(hypergraph, hyperedge_weight)
        of_node, of_hyperedge = (
            each[...].astype(x.dtype) for each in (self.node_attention, self.hyperedge_attention)
        )
        y = self._split(self._product(x, kernel))
        plain = hypergraph._plain  # scores and degrees are no messages
        node_scores = dots(y, of_node)  # (num_nodes, *batch, heads)
        if hyperedge_attr is None:  # the score of a mean is the mean of the scores
            scores = dots(y, of_hyperedge)
            hyperedge_scores = node_to_hyperedge(plain, scores, reduce="mean")
        else:
            attr = self._hyperedge_attr(hypergraph, hyperedge_attr, x)
            to_score = dots(self._split(kernel), of_hyperedge)
            hyperedge_scores = jnp.matmul(attr, to_score, precision=self.precision)

        heads = math.prod(node_scores.shape[1:])  # each of the batch has its own
        scores = sddmm(
            plain.graph,
            hyperedge_scores.reshape(hypergraph.num_hyperedges, heads),
            node_scores.reshape(hypergraph.num_nodes, heads),
            op="add",
        )
        scores = jax.nn.leaky_relu(scores, self.negative_slope)
        attention = self.attention_dropout(
            incidence_softmax(hypergraph, scores, self.softmax_by),
            **dropout_arguments(deterministic, rngs),
        )
        if self.degrees == "attention":
            scaling: Any = {"normalization": "row"}
        else:
            node_scale = self._node_scale(plain, weight)
            scaling = {"hyperedge_reduce": "mean", "node_scale_out": node_scale}
        aggregated = hypergraph_aggregate(
            hypergraph,
            y.reshape(hypergraph.num_nodes, heads, y.shape[-1]),
            weight,
            incidence_weight=attention,
            **scaling,
        )
        y = self._join(aggregated.reshape(y.shape))
        return finished(y, bias)

    def _hyperedge_attr(self, hypergraph: Hypergraph, attr: ArrayLike, x: Array) -> Array:
        attr = check_features(
            *(attr, hypergraph.num_hyperedges, self.in_features),
            name="hyperedge_attr",
            rows_name="num_hyperedges",
        )
        if attr.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"hyperedge_attr and x must have the same batch axes, got shapes {attr.shape} and "
                f"{x.shape}"
            )
        return attr.astype(x.dtype)

    @staticmethod
    def _node_scale(hypergraph: Hypergraph, weight: Array | None) -> Array:
        if weight is None:
            degree = hypergraph.node_degrees().astype(float)
        else:
            degree = hyperedge_to_node(hypergraph, weight.astype(float))
        positive = degree > 0
        return jnp.where(positive, 1 / jnp.where(positive, degree, 1), 0)


class HypergraphAttention(AttentionStack):
    """Hypergraph attention network: two `HypergraphAttentionConv` (or more).

    ReLU and dropout are between them; the last has one head. Its call takes the arguments of the
    convolution's. Features of hyperedges are those of the first convolution; further ones take the
    means of nodes.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HypergraphAttention(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = HypergraphAttentionConv

    def _convolve(
        self,
        number: int,
        graph: Hypergraph,
        x: Array,
        hyperedge_weight: ArrayLike | None = None,
        hyperedge_attr: ArrayLike | None = None,
        **dropout: Any,
    ) -> Array:
        attr = hyperedge_attr if number == 1 else None
        return super()._convolve(number, graph, x, hyperedge_weight, attr, **dropout)
