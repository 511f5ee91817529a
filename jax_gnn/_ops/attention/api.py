"""Attention of nodes to their neighbours: softmax over the edges into each destination.

Three public functions make three kinds of scores; all call one op, which sums values under the
softmax of the scores. The softmax is not stored: the backward pass recomputes it from the scores
(as FlashAttention, Dao et al. 2022, on a graph).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import accumulator_dtype, as_matrix, feature_wise, row_width, row_wise
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.public import Implementation, public
from jax_gnn._core.shapes import Float, Real
from jax_gnn._core.sharding import reshape
from jax_gnn._ops.attention import xla
from jax_gnn._ops.attention.leaky import leaky_scores
from jax_gnn._ops.attention.primitive import attend, weights
from jax_gnn._ops.attention.scores import (
    AdditiveScores,
    DotScores,
    EntryScores,
    GATv2Scores,
    Scores,
)
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, weighted_sum
from jax_gnn.graph import Graph


@public
def additive_attention(
    graph: Graph,
    dst_score: Real[ArrayLike, "num_dst heads"],
    src_score: Real[ArrayLike, "num_src heads"],
    value: Float[ArrayLike, "num_src heads *features"],
    *,
    negative_slope: float = 0.2,
    edge_bias: Real[ArrayLike, "num_edges heads"] | None = None,
    edge_scale: Real[ArrayLike, "num_edges heads"] | None = None,
    edge_features: Float[ArrayLike, "num_edges heads *features"] | None = None,
    return_lse: bool = False,
    implementation: Implementation | None = None,
) -> Any:
    """Sum values under the softmax of additive scores: attention of GAT and RGAT.

    ``out[i] = Σ softmax(LeakyReLU(dst_score[i] + src_score[j])) · value[j]`` over the edges
    ``e = (j → i)`` into i, for each head (Veličković et al. 2018, arXiv 1710.10903, equations 3 to
    6). No array with a row for each edge is formed, except for the gradients of scores,
    ``(num_edges, heads)``, in the backward pass. Derivatives of any order to all floating-point
    arguments.

    Args:
        graph: the graph.
        dst_score: ``(num_dst, heads)`` terms of the scores from destinations.
        src_score: ``(num_src, heads)`` terms of the scores from sources.
        value: ``(num_src, heads, *features)``: float16, bfloat16, float32 or float64.
        negative_slope: slope of the LeakyReLU below 0, finite.
        edge_bias: ``(num_edges, heads)`` in the graph's order of edges
            (:meth:`Graph.edge_values`), added to the scores before the LeakyReLU: GAT's term of
            edge features. -inf leaves an edge out.
        edge_scale: ``(num_edges, heads)`` factors of the weights after the softmax: dropout masks
            or priors.
        edge_features: ``(num_edges, heads, *features)``, added to the value that an edge carries.
        return_lse: whether to return the logarithms of the softmax's denominators, too.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_dst, heads, *features)`` in the dtype of ``value``; half types accumulate in float32,
        to which scores are converted. Destinations without edges get 0. With ``return_lse`` that,
        and ``(num_dst, heads)`` in the accumulator type, -inf without edges.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or the slope is not finite.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)  # sources, destinations
        >>> value = jnp.array([[1.0], [2.0], [4.0]])
        >>> additive_attention(graph, jnp.zeros((3, 1)), jnp.zeros((3, 1)), value)
        Array([[3.],
               [1.],
               [0.]], dtype=float32)
    """
    args = _AttentionArgs.parse(graph, "value", value, negative_slope, edge_scale, return_lse)
    dst_score = args.check_scores("dst_score", dst_score, "num_dst", args.graph.num_dst)
    src_score = args.check_scores("src_score", src_score, "num_src", args.graph.num_src)
    bias = args.check_edge_scores("edge_bias", edge_bias)
    features = args.check_edge_features(edge_features, args.value, "value")
    if bias is None:
        return args.attend(AdditiveScores(dst_score, src_score), features)
    at_dst, at_src = xla.end_matrices(args.matrix)
    score = gather(dst_score, at_dst) + gather(src_score, at_src)
    return args.attend(EntryScores(xla.leaky(score + bias, args.slope)), features)


@public
def gatv2_attention(
    graph: Graph,
    dst: Float[ArrayLike, "num_dst heads *features"],
    src: Float[ArrayLike, "num_src heads *features"],
    attention: Real[ArrayLike, "heads *features"],
    *,
    value: Float[ArrayLike, "num_src heads *value_features"] | None = None,
    negative_slope: float = 0.2,
    edge_bias: Real[ArrayLike, "num_edges heads"] | None = None,
    edge_scale: Real[ArrayLike, "num_edges heads"] | None = None,
    edge_features: Float[ArrayLike, "num_edges heads *features"] | None = None,
    return_lse: bool = False,
    implementation: Implementation | None = None,
) -> Any:
    """Sum values under the softmax of GATv2's scores.

    ``out[i] = Σ softmax(⟨attention, LeakyReLU(dst[i] + src[j])⟩) · value[j]`` over the edges
    ``e = (j → i)`` into i, for each head (Brody, Alon and Yahav 2022, arXiv 2105.14491, equation
    7). No array of messages is formed, forward or backward, unless edges have features. Derivatives
    of any order to all floating-point arguments; the LeakyReLU has derivative 1 at 0, as
    `jax.nn.leaky_relu`.

    Args:
        graph: the graph.
        dst: ``(num_dst, heads, *features)``: float16, bfloat16, float32 or float64.
        src: ``(num_src, heads, *features)``, of the same features; converted to the dtype of
            ``value``, as is ``dst``.
        attention: ``(heads, *features)`` vectors whose dot products are the scores.
        value: ``(num_src, heads, *features)``, of any features; None takes ``src``.
        negative_slope: slope of the LeakyReLU below 0, finite.
        edge_bias: ``(num_edges, heads)`` in the graph's order of edges, added to the scores. -inf
            leaves an edge out.
        edge_scale: ``(num_edges, heads)`` factors of the weights after the softmax.
        edge_features: ``(num_edges, heads, *features)``, added to ``dst[i] + src[j]``.
        return_lse: see :func:`additive_attention`.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        The same arrays as :func:`additive_attention`.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or the slope is not finite.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> x = jnp.array([[1.0], [2.0], [2.0]])
        >>> gatv2_attention(graph, x, x, jnp.ones(1))
        Array([[2.],
               [1.],
               [0.]], dtype=float32)
    """
    values, name = (src, "src") if value is None else (value, "value")
    args = _AttentionArgs.parse(graph, name, values, negative_slope, edge_scale, return_lse)
    acc, matrix = args.acc, args.matrix
    dst = args.check_rows("dst", dst, "num_dst", args.graph.num_dst)
    src = args.check_rows("src", src, "num_src", args.graph.num_src)
    _check_same_features("src", src, "dst", dst)
    attention = arguments.check_real("attention", attention).astype(acc)
    if attention.shape != dst.shape[1:]:
        raise ValueError(
            f"attention must be (heads, *features), {dst.shape[1:]} as dst has them, got shape "
            f"{attention.shape}"
        )
    vector = reshape(attention, attention.size)[None]
    bias = args.check_edge_scores("edge_bias", edge_bias)
    features = args.check_edge_features(edge_features, dst, "dst")
    if features is None and bias is None:
        return args.attend(
            GATv2Scores(as_matrix(dst), None if value is None else as_matrix(src), vector)
        )
    if features is None:
        heads = max(args.heads, 1)
        score = leaky_scores(
            as_matrix(dst),
            as_matrix(src),
            vector,
            matrix,
            heads=heads,
            slope=args.slope,
        )
    else:
        at_dst, at_src = xla.end_matrices(matrix)
        # Half types would round the sum of two terms across the LeakyReLU's kink at 0.
        dst, src, features = (x.astype(acc) for x in (dst, src, features))
        summed = gather(dst, at_dst) + gather(src, at_src)
        valid = matrix.by_row.valid(args.graph.num_src)
        summed = jnp.where(row_wise(valid, summed), summed + features, 0)
        terms = feature_wise(attention, summed) * xla.leaky(summed, args.slope)
        score = jnp.sum(terms, axis=tuple(range(2, terms.ndim)))
    return args.attend(EntryScores(score if bias is None else score + bias))


@public
def dot_attention(
    graph: Graph,
    query: Float[ArrayLike, "num_dst heads *features"],
    key: Float[ArrayLike, "num_src heads *features"],
    value: Float[ArrayLike, "num_src heads *value_features"],
    *,
    scale: Real[ArrayLike, ""] | None = None,
    edge_bias: Real[ArrayLike, "num_edges heads"] | None = None,
    edge_scale: Real[ArrayLike, "num_edges heads"] | None = None,
    edge_features: Float[ArrayLike, "num_edges heads *features"] | None = None,
    return_lse: bool = False,
    implementation: Implementation | None = None,
) -> Any:
    """Sum values under the softmax of dot products: attention of graph transformers and HGT.

    ``out[i] = Σ softmax(scale · ⟨query[i], key[j]⟩) · value[j]`` over the edges ``e = (j → i)``
    into i, for each head (Shi et al. 2021, arXiv 2009.03509, equations 3 and 4). No array of
    messages is formed, forward or backward. Derivatives of any order to all floating-point
    arguments.

    Args:
        graph: the graph.
        query: ``(num_dst, heads, *features)``: float16, bfloat16, float32 or float64; converted to
            the dtype of ``value``, as is ``key``.
        key: ``(num_src, heads, *features)``, of the same features.
        value: ``(num_src, heads, *features)``, of any features.
        scale: a number; by default one over the root of the number of a head's features.
        edge_bias: ``(num_edges, heads)`` in the graph's order of edges, added to the scores. -inf
            leaves an edge out.
        edge_scale: ``(num_edges, heads)`` factors of the weights after the softmax.
        edge_features: ``(num_edges, heads, *features)``, added to the key and to the value of each
            edge; keys and values must then have the same features.
        return_lse: see :func:`additive_attention`.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        The same arrays as :func:`additive_attention`.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> x = jnp.array([[0.0], [2.0], [4.0]])
        >>> dot_attention(graph, x, x, x)
        Array([[3.],
               [0.],
               [0.]], dtype=float32)
    """
    args = _AttentionArgs.parse(graph, "value", value, 1.0, edge_scale, return_lse)
    key_is_value = key is value
    query = args.check_rows("query", query, "num_dst", args.graph.num_dst)
    key = args.check_rows("key", key, "num_src", args.graph.num_src)
    _check_same_features("key", key, "query", query)
    heads = max(args.heads, 1)
    scale = arguments.check_real(
        "scale", 1 / math.sqrt(max(row_width(query) // heads, 1)) if scale is None else scale
    )
    if scale.ndim:
        raise ValueError(f"scale must be a number, got shape {scale.shape}")
    scale = scale.astype(args.acc)
    bias = args.check_edge_scores("edge_bias", edge_bias)
    features = args.check_edge_features(edge_features, key, "key")
    if features is not None:
        _check_same_features("value", args.value, "key", key)
    query, key = as_matrix(query), as_matrix(key)
    if features is None and bias is None:
        return args.attend(DotScores(query, None if key_is_value else key, scale.reshape(1, 1)))
    score = sddmm(query, key, args.matrix, heads=heads)
    if features is not None:
        by_edge = xla.carried(args.matrix)
        score += sddmm(query, as_matrix(features), by_edge, heads=heads)
    score *= scale
    return args.attend(EntryScores(score if bias is None else score + bias), features)


class _AttentionArgs(NamedTuple):
    """Parsed arguments that all kinds of attention have in common."""

    graph: Graph  # the graph without its gates, which are factors in `edge_scale`
    gated_graph: Graph  # the graph of the caller
    value: Array  # (num_src, heads, *features)
    value_name: str  # name of the argument that holds the values
    slope: float  # slope of the LeakyReLU
    edge_scale: Array | None  # (num_edges, heads) in the accumulator type, or None
    return_lse: bool  # whether to return the logarithms of the softmax's denominators

    @classmethod
    def parse(
        cls,
        graph: Graph,
        name: str,
        value: ArrayLike,
        negative_slope: float,
        edge_scale: ArrayLike | None,
        return_lse: bool,
    ) -> _AttentionArgs:
        """Check the arguments; ``name`` is that of the values in errors."""
        graph = arguments.check_container("graph", graph, Graph)
        value = arguments.check_features(name, value)
        if value.ndim < 2 or value.shape[0] != graph.num_src:
            raise ValueError(
                f"{name} must be (num_src={graph.num_src}, heads, *features), got shape "
                f"{value.shape}"
            )
        slope = arguments.check_finite("negative_slope", negative_slope)
        return_lse = arguments.check_flag("return_lse", return_lse)
        args = cls(graph, graph, value, name, slope, None, return_lse)
        scale = args.check_edge_scores("edge_scale", edge_scale)
        graph, scale = graph._gated(scale, args.acc, args.heads)
        return args._replace(graph=graph, edge_scale=scale)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.value.shape[1]

    @property
    def acc(self) -> DTypeLike:
        """Accumulator type."""
        return cast(DTypeLike, accumulator_dtype(self.value.dtype))

    @property
    def matrix(self) -> SparseMatrix:
        """Matrix with a row for each destination and a column for each source."""
        return self.graph.matrix(weighted=True)

    def check_scores(self, name: str, score: ArrayLike, size_name: str, size: int) -> Array:
        """Return ``(size, heads)`` scores in the accumulator type."""
        score = arguments.check_real(name, score)
        heads = f"with {self.heads} heads as {self.value_name}"
        axes = f"({size_name}={size}, heads), {heads}"
        arguments.check_shape(name, score, axes, size, self.heads)
        return score.astype(self.acc)

    def check_edge_scores(self, name: str, score: ArrayLike | None) -> Array | None:
        """Return ``(num_edges, heads)`` scores in the accumulator type, or None."""
        if score is None:
            return None
        return self.check_scores(name, score, "num_edges", self.graph.num_edges)

    def check_rows(self, name: str, x: ArrayLike, size_name: str, size: int) -> Array:
        """Return ``(size, heads, *features)`` rows in the dtype of the values."""
        x = arguments.check_features(name, x, size_name, size)
        if x.shape[1:2] != (self.heads,):
            raise ValueError(
                f"{name} must be ({size_name}={size}, heads, *features), with {self.heads} heads "
                f"as {self.value_name}, got shape {x.shape}"
            )
        return x.astype(self.value.dtype)

    def check_edge_features(
        self, features: ArrayLike | None, like: Array, like_name: str
    ) -> Array | None:
        """Return ``(num_edges, *features)``, with the features of ``like``, or None."""
        if features is None:
            return None
        features = self.check_rows("edge_features", features, "num_edges", self.graph.num_edges)
        _check_same_features("edge_features", features, like_name, like)
        return features

    def attend(self, scores: Scores, edge_features: Array | None = None) -> Any:
        """Return the sums of values and edges' features under the softmax of the scores."""
        value, matrix, heads = as_matrix(self.value), self.matrix, self.heads
        num_dst = matrix.by_row.num_rows
        if heads == 0:  # kernels need one head
            y, stats = jnp.zeros((num_dst, 0), self.acc), jnp.zeros((num_dst, 0, 2), self.acc)
        else:
            options: Any = {"heads": heads, "slope": self.slope}
            y, stats = attend(value, scores, self.edge_scale, matrix, **options)
            edge_weights = functools.partial(
                weights, value, scores, self.edge_scale, stats, matrix, **options
            )
            self.gated_graph._note("attention", edge_weights)
            if edge_features is not None:
                features, by_edge = as_matrix(edge_features), xla.carried(matrix)
                y += weighted_sum(features, edge_weights(), by_edge, heads)
        y = reshape(y, num_dst, *self.value.shape[1:]).astype(self.value.dtype)
        return (y, xla.logsumexp(stats)) if self.return_lse else y


def _check_same_features(name: str, x: Array, like_name: str, like: Array) -> None:
    if x.shape[1:] != like.shape[1:]:
        raise ValueError(
            f"{name} must have the features {like.shape[1:]} of {like_name}, got shape {x.shape}"
        )
