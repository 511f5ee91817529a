"""Hypergraph attention in Flax NNX."""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._attention import AttentionConvolution, AttentionOptions, AttentionStack, dots
from flax_layers._declaration import ParameterFactory
from flax_layers.hypergraph import check_hyperedge_weight
from jax_gnn import (
    Hypergraph,
    hypergraph_aggregate,
    hypergraph_norm,
    incidence_softmax,
    node_to_hyperedge,
    sddmm,
)
from jax_gnn.extend import Side

Degrees = Literal["ones", "attention"]


class HypergraphAttentionOptions(AttentionOptions):
    """Options of `HypergraphAttentionConv`, and of `HypergraphAttention` for its convolutions.

    Attributes:
        softmax_by: "node" for attention among the hyperedges of each node, as in the paper;
            "hyperedge" for attention among the nodes of each hyperedge.
        degrees: Entries of H that the degrees sum, "ones" or "attention".
    """

    softmax_by: Side = "node"
    degrees: Degrees = "ones"


class HypergraphAttentionConv(HypergraphAttentionOptions, AttentionConvolution):
    """Hypergraph convolution under attention: ``Dv^-1 H W De^-1 H^T X Theta + b``.

    Bai, Zhang and Torr, "Hypergraph convolution and hypergraph attention", Pattern Recognition
    2021. The entries of both H are attention weights, for each head
    ``softmax(LeakyReLU(<a, x_v Theta> + <a', z_e Theta>))`` of node v and hyperedge e with features
    ``z_e``, over the hyperedges of a node. With ``degrees="ones"``, ``De`` and ``Dv`` are the
    degrees of H without attention, as in `HypergraphConv` of PyTorch Geometric with
    ``use_attention=True``: a node's result shrinks with its degree. With ``"attention"`` they are
    the degrees of H with attention, so that a node gets a weighted mean of weighted means.

    Attributes:
        kernel: Theta, ``(in_features, heads · width)``.
        node_attention: a, ``(heads, width)``.
        hyperedge_attention: a', ``(heads, width)``.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HypergraphAttentionConv(4, 8, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 8)
    """

    def _make_parameters(self, factory: ParameterFactory) -> None:
        super()._make_parameters(factory)
        self.node_attention = self._attention_vector(factory)
        self.hyperedge_attention = self._attention_vector(factory)

    def __call__(
        self,
        hypergraph: Hypergraph,
        x: ArrayLike,
        hyperedge_weight: ArrayLike | None = None,
        hyperedge_features: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Return the new node features, ``(num_nodes, *batch, out_features)`` in `dtype`.

        Args:
            hypergraph: Hypergraph, not directed.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            hyperedge_weight: W, ``(num_hyperedges,)``; None means ones.
            hyperedge_features: Features of the hyperedges, ``(num_hyperedges, *batch,
                in_features)``; None means the mean of each hyperedge's nodes.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
        """
        x, kernel, bias = self._operands(x, hypergraph)
        if hypergraph.head is not None:
            raise ValueError(
                "hypergraph must not be directed: attention is to one H, both ways, got "
                f"{hypergraph}"
            )
        weight = check_hyperedge_weight(hypergraph, hyperedge_weight)
        node_vector = self.node_attention[...].astype(x.dtype)
        hyperedge_vector = self.hyperedge_attention[...].astype(x.dtype)
        y = self._split(self._product(x, kernel))
        # Scores and degrees are no messages: an attribution of messages must not see them.
        plain = hypergraph._plain
        node_scores = dots(y, node_vector)  # (num_nodes, *batch, heads)
        if hyperedge_features is None:  # the score of a mean is the mean of the scores
            hyperedge_scores = node_to_hyperedge(plain, dots(y, hyperedge_vector), reduce="mean")
        else:
            attr = base.check_features(
                hyperedge_features,
                hypergraph.num_hyperedges,
                self.in_features,
                "hyperedge_features",
                "num_hyperedges",
            )
            if attr.shape[1:] != x.shape[1:]:
                raise ValueError(
                    "hyperedge_features and x must have the same batch axes, got shapes "
                    f"{attr.shape} and {x.shape}"
                )
            attr = attr.astype(x.dtype)
            score_kernel = dots(self._split(kernel), hyperedge_vector)
            hyperedge_scores = jnp.matmul(attr, score_kernel, precision=self.precision)

        heads = math.prod(node_scores.shape[1:])  # each batch entry has scores of its own
        # The score of an incidence is the sum of its node's and its hyperedge's.
        scores = sddmm(
            plain.graph,
            hyperedge_scores.reshape(hypergraph.num_hyperedges, heads),
            node_scores.reshape(hypergraph.num_nodes, heads),
            op="add",
        )
        scores = jax.nn.leaky_relu(scores, self.negative_slope)
        attention = self.attention_dropout(
            incidence_softmax(hypergraph, scores, self.softmax_by),
            **base.dropout_arguments(deterministic, rngs),
        )
        # Row normalization sums attention weights; with "ones" the degrees do not depend on them.
        scaling: dict[str, Any] = {"normalization": "row"}
        if self.degrees == "ones":
            norm = hypergraph_norm(plain, weight, normalization="row")
            scaling = {"hyperedge_reduce": "mean", "node_scale_out": norm.node_out}
        sums = hypergraph_aggregate(
            hypergraph,
            y.reshape(hypergraph.num_nodes, heads, y.shape[-1]),
            weight,
            incidence_weight=attention,
            **scaling,
        )
        return base.finished(self._join(sums.reshape(y.shape)), bias)


class HypergraphAttention(HypergraphAttentionOptions, AttentionStack):
    """Hypergraph attention network: two `HypergraphAttentionConv` by default.

    ReLU and dropout are between them; the last has one head. Its call takes the arguments of the
    convolution's. Features of hyperedges go to the first convolution; later convolutions take the
    means of nodes.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> HypergraphAttention(4, 16, 3, rngs=nnx.Rngs(0))(hypergraph, jnp.ones((4, 4))).shape
        (4, 3)
    """

    convolution = HypergraphAttentionConv

    def _convolve(  # type: ignore[override]  # names arguments that Stack leaves open
        self,
        number: int,
        graph: base.Structure,
        x: Array,
        hyperedge_weight: ArrayLike | None = None,
        hyperedge_features: ArrayLike | None = None,
        **dropout: object,
    ) -> Array:
        attr = hyperedge_features if number == 1 else None
        return super()._convolve(number, graph, x, hyperedge_weight, attr, **dropout)
