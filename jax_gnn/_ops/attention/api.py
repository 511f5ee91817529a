"""Attention of nodes to their neighbours: softmax over the edges into each destination.

Scores of three kinds, one sum under their softmax. Forward, edges gather rows once for each array
that they read; the softmax is never kept, but computed again from scores in the backward pass
(FlashAttention's way, Dao et al. 2022, on a graph).
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.arguments import (
    check_container,
    check_features,
    check_finite,
    check_flag,
    check_real,
)
from jax_gnn._core.arrays import accumulator_dtype, as_matrix, feature_wise, row_width, row_wise
from jax_gnn._core.ffi import Implementation
from jax_gnn._core.public import public
from jax_gnn._core.sharding import reshape
from jax_gnn._ops.attention import xla
from jax_gnn._ops.attention.leaky import leaky_scores
from jax_gnn._ops.attention.primitive import attend, weights
from jax_gnn._ops.attention.scores import Dots, Ends, Given, Leaky, Scores
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, segment_reduce
from jax_gnn.graph import Graph


@public
def additive_attention(
    graph: Graph,
    dst_score: ArrayLike,
    src_score: ArrayLike,
    value: ArrayLike,
    *,
    negative_slope: float = 0.2,
    edge_bias: ArrayLike | None = None,
    edge_scale: ArrayLike | None = None,
    edge_features: ArrayLike | None = None,
    return_lse: bool = False,
    implementation: Implementation | None = None,
) -> Any:
    """Sums values under the softmax of additive scores: attention of GAT and RGAT.

    ``out[i] = Σ softmax(LeakyReLU(dst_score[i] + src_score[j])) · value[j]`` over the edges
    ``e = (j → i)`` into i, for each head (Veličković et al. 2018, arXiv 1710.10903, equations 3 to
    6). No array with a number for each edge is formed, but for what is given for edges and, in the
    backward pass, for ``(num_edges, heads)`` once. Derivatives of any order to all floating-point
    arguments.

    Args:
        graph: the graph.
        dst_score: ``(num_dst, heads)``, what destinations add to the scores of their edges.
        src_score: ``(num_src, heads)``, what sources add.
        value: ``(num_src, heads, *features)``: float16, bfloat16, float32 or float64.
        negative_slope: of the LeakyReLU, finite.
        edge_bias: ``(num_edges, heads)`` in the graph's order of edges
            (:meth:`Graph.edge_values`), added to the scores before the LeakyReLU, as GAT takes
            features of edges. -inf leaves an edge out.
        edge_scale: ``(num_edges, heads)``, factors of the weights after the softmax: masks of a
            dropout, or priors.
        edge_features: ``(num_edges, heads, *features)``, added to the value that an edge carries.
        return_lse: whether to return the logarithms of the sums that the softmax divides by, too.
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
    edges = _Edges(graph, "value", value, negative_slope, edge_scale, return_lse, implementation)
    graph, matrix = edges.graph, edges.matrix
    of_dst = edges.check_scores("dst_score", dst_score, "num_dst", graph.num_dst)
    of_src = edges.check_scores("src_score", src_score, "num_src", graph.num_src)
    bias = edges.check_edge_bias(edge_bias)
    extra = edges.check_edge_features(edge_features, edges.value, "value")
    if bias is None:
        return edges.attend(Ends(of_dst, of_src), extra)
    at_dst, at_src = xla.ends(matrix)
    score = gather(of_dst, at_dst, implementation) + gather(of_src, at_src, implementation)
    return edges.attend(Given(xla.leaky(score + bias, edges.slope)), extra)


@public
def gatv2_attention(
    graph: Graph,
    dst: ArrayLike,
    src: ArrayLike,
    attention: ArrayLike,
    *,
    value: ArrayLike | None = None,
    negative_slope: float = 0.2,
    edge_bias: ArrayLike | None = None,
    edge_scale: ArrayLike | None = None,
    edge_features: ArrayLike | None = None,
    return_lse: bool = False,
    implementation: Implementation | None = None,
) -> Any:
    """Sums values under the softmax of GATv2's scores.

    ``out[i] = Σ softmax(⟨attention, LeakyReLU(dst[i] + src[j])⟩) · value[j]`` over the edges
    ``e = (j → i)`` into i, for each head (Brody, Alon and Yahav 2022, arXiv 2105.14491, equation
    7). Edges read rows where they are: no array of messages is formed, forward or backward, unless
    edges have features. Derivatives of any order to all floating-point arguments; the LeakyReLU has
    derivative 1 at 0, as `jax.nn.leaky_relu`.

    Args:
        graph: the graph.
        dst: ``(num_dst, heads, *features)``: float16, bfloat16, float32 or float64.
        src: ``(num_src, heads, *features)``, of the same features; converted to the dtype of
            ``value``, as is ``dst``.
        attention: ``(heads, *features)``.
        value: ``(num_src, heads, *features)``, perhaps of other features; None takes ``src``.
        negative_slope: of the LeakyReLU, finite.
        edge_bias: ``(num_edges, heads)`` in the graph's order of edges, added to the scores. -inf
            leaves an edge out.
        edge_scale: ``(num_edges, heads)``, factors of the weights after the softmax.
        edge_features: ``(num_edges, heads, *features)``, added to ``dst[i] + src[j]``.
        return_lse: see :func:`additive_attention`.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        As :func:`additive_attention`.

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
    is_key = value is None
    value, name = (src, "src") if value is None else (value, "value")
    edges = _Edges(graph, name, value, negative_slope, edge_scale, return_lse, implementation)
    graph, acc, matrix = edges.graph, edges.acc, edges.matrix
    left = edges.check_rows("dst", dst, "num_dst", graph.num_dst)
    right = edges.check_rows("src", src, "num_src", graph.num_src)
    _check_same_features("src", right, "dst", left)
    vector = check_real("attention", attention)
    if vector.shape != left.shape[1:]:
        raise ValueError(
            f"attention must be (heads, *features), {left.shape[1:]} as dst has them, got shape "
            f"{vector.shape}"
        )
    bias = edges.check_edge_bias(edge_bias)
    extra = edges.check_edge_features(edge_features, left, "dst")
    if extra is None and bias is None:
        left, key = as_matrix(left), None if is_key else as_matrix(right)
        return edges.attend(Leaky(left, key, reshape(vector.astype(acc), vector.size)[None]))
    if extra is None:
        score = leaky_scores(
            *(
                as_matrix(left),
                as_matrix(right),
                reshape(vector.astype(acc), vector.size)[None],
                matrix,
            ),
            heads=max(edges.heads, 1),
            slope=edges.slope,
            implementation=implementation,
        )
    else:
        at_dst, at_src = xla.ends(matrix)
        # Half types would round a sum of two of three to the other side of the LeakyReLU's kink.
        left, right, extra = (each.astype(acc) for each in (left, right, extra))
        summed = gather(left, at_dst, implementation) + gather(right, at_src, implementation)
        valid = matrix.by_row.valid(graph.num_src)
        summed = jnp.where(row_wise(valid, summed), summed + extra, 0)
        terms = feature_wise(vector.astype(acc), summed) * xla.leaky(summed, edges.slope)
        score = jnp.sum(terms, axis=tuple(range(2, terms.ndim)))
    score = score if bias is None else score + bias
    return edges.attend(Given(score))


@public
def dot_attention(
    graph: Graph,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    scale: ArrayLike | None = None,
    edge_bias: ArrayLike | None = None,
    edge_scale: ArrayLike | None = None,
    edge_features: ArrayLike | None = None,
    return_lse: bool = False,
    implementation: Implementation | None = None,
) -> Any:
    """Sums values under the softmax of dot products: attention of graph transformers and HGT.

    ``out[i] = Σ softmax(scale · ⟨query[i], key[j]⟩) · value[j]`` over the edges ``e = (j → i)``
    into i, for each head (Shi et al. 2021, arXiv 2009.03509, equations 3 and 4). Edges read rows
    where they are: no array of messages is formed, forward or backward. Derivatives of any order to
    all floating-point arguments.

    Args:
        graph: the graph.
        query: ``(num_dst, heads, *features)``: float16, bfloat16, float32 or float64; converted to
            the dtype of ``value``, as is ``key``.
        key: ``(num_src, heads, *features)``, of the same features.
        value: ``(num_src, heads, *features)``, perhaps of other features.
        scale: a number; by default one over the root of the number of a head's features.
        edge_bias: ``(num_edges, heads)`` in the graph's order of edges, added to the scores. -inf
            leaves an edge out.
        edge_scale: ``(num_edges, heads)``, factors of the weights after the softmax.
        edge_features: ``(num_edges, heads, *features)``, added to the key and to the value that an
            edge reads, which then have the same features.
        return_lse: see :func:`additive_attention`.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        As :func:`additive_attention`.

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
    edges = _Edges(graph, "value", value, 1.0, edge_scale, return_lse, implementation)
    graph, matrix, heads, is_value = edges.graph, edges.matrix, edges.heads, key is value
    query = edges.check_rows("query", query, "num_dst", graph.num_dst)
    key = edges.check_rows("key", key, "num_src", graph.num_src)
    _check_same_features("key", key, "query", query)
    depth = row_width(query) // max(heads, 1)
    if scale is None:
        scale = 1 / math.sqrt(max(depth, 1))
    scale = check_real("scale", scale)
    if scale.ndim:
        raise ValueError(f"scale must be a number, got shape {scale.shape}")
    bias = edges.check_edge_bias(edge_bias)
    extra = edges.check_edge_features(edge_features, key, "key")
    if extra is not None:
        _check_same_features("value", edges.value, "key", key)
    scale = scale.astype(edges.acc)
    if extra is None and bias is None:
        keys = None if is_value else as_matrix(key)
        return edges.attend(Dots(as_matrix(query), keys, scale.reshape(1, 1)))
    options: Any = {"heads": max(heads, 1), "implementation": implementation}
    score = sddmm(as_matrix(query), as_matrix(key), matrix, **options)
    if extra is not None:
        score += sddmm(as_matrix(query), as_matrix(extra), xla.carried(matrix), **options)
    score *= scale
    score = score if bias is None else score + bias
    return edges.attend(Given(score), extra)


class _Edges:
    """What all kinds of attention have in common: checked arguments, and the sum."""

    def __init__(
        self,
        graph: Graph,
        name: str,
        value: ArrayLike,
        negative_slope: float,
        edge_scale: ArrayLike | None,
        return_lse: bool,
        implementation: Implementation | None,
    ) -> None:
        self.graph = self.given = check_container("graph", graph, Graph)
        self.value = check_features(name, value)
        if self.value.ndim < 2 or self.value.shape[0] != self.graph.num_src:
            raise ValueError(
                f"{name} must be (num_src={self.graph.num_src}, heads, *features), got shape "
                f"{self.value.shape}"
            )
        self.heads = self.value.shape[1]
        self.of_heads = f"{self.heads} heads as {name}"
        self.acc = accumulator_dtype(self.value.dtype)
        self.slope = check_finite("negative_slope", negative_slope)
        self.edge_scale = None if edge_scale is None else self._of_edges("edge_scale", edge_scale)
        self.return_lse = check_flag("return_lse", return_lse)
        self.implementation = implementation
        self.graph, self.edge_scale = self.given._gated(self.edge_scale, self.acc, self.heads)
        self.matrix = self.graph.matrix(weighted=True)

    def check_scores(self, name: str, score: ArrayLike, size_name: str, size: int) -> Array:
        """``(size, heads)`` in the accumulator type."""
        score = check_real(name, score)
        if score.shape != (size, self.heads):
            raise ValueError(
                f"{name} must be ({size_name}={size}, heads), with {self.of_heads}, got shape "
                f"{score.shape}"
            )
        return score.astype(self.acc)

    def _of_edges(self, name: str, score: ArrayLike) -> Array:
        return self.check_scores(name, score, "num_edges", self.graph.num_edges)

    def check_edge_bias(self, bias: ArrayLike | None) -> Array | None:
        """``(num_edges, heads)`` in the accumulator type, or None."""
        return None if bias is None else self._of_edges("edge_bias", bias)

    def check_rows(self, name: str, x: ArrayLike, size_name: str, size: int) -> Array:
        """``(size, heads, *features)`` in the dtype of the values."""
        x = check_features(name, x, size_name, size)
        if x.shape[1:2] != (self.heads,):
            raise ValueError(
                f"{name} must be ({size_name}={size}, heads, *features), with {self.of_heads}, got "
                f"shape {x.shape}"
            )
        return x.astype(self.value.dtype)

    def check_edge_features(
        self, features: ArrayLike | None, like: Array, like_name: str
    ) -> Array | None:
        """``(num_edges, *features)`` with features as another array has them, or None."""
        if features is None:
            return None
        found = self.check_rows("edge_features", features, "num_edges", self.graph.num_edges)
        _check_same_features("edge_features", found, like_name, like)
        return found

    def attend(self, scores: Scores, extra: Array | None = None) -> Any:
        """The sum of values, and of what edges add to them, under the softmax of the scores."""
        options: Any = {"heads": self.heads, "implementation": self.implementation}
        value, matrix, num_dst = as_matrix(self.value), self.matrix, self.matrix.by_row.num_rows
        both = value, scores, self.edge_scale
        if self.heads == 0:  # of which there are no kernels
            y, stats = (jnp.zeros((num_dst, *more), self.acc) for more in ((0,), (0, 2)))
        else:
            y, stats = attend(*both, matrix, slope=self.slope, **options)

            def of_edges() -> Array:
                return weights(*both, stats, self.matrix, slope=self.slope, **options)

            self.given._note("attention", of_edges)
        if extra is not None and self.heads > 0:
            weight = of_edges()
            matrix = xla.carried(matrix)
            y += segment_reduce(as_matrix(extra), weight, matrix, reduce="sum", **options)
        y = reshape(y, num_dst, *self.value.shape[1:]).astype(self.value.dtype)
        return (y, xla.logsumexp(stats)) if self.return_lse else y


def _check_same_features(name: str, x: Array, other_name: str, other: Array) -> None:
    if x.shape[1:] != other.shape[1:]:
        raise ValueError(
            f"{name} must have the features {other.shape[1:]} of {other_name}, got shape {x.shape}"
        )
