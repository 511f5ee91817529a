"""Norms over the nodes of a batch of graphs in Flax NNX: padding counts nowhere."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from flax_layers._base import check_features, check_positive, finished
from jax_gnn import Batch, segment_mean
from jax_gnn.extend import (
    accumulator_dtype,
    check_finite,
    check_instance,
    feature_wise,
    row_wise,
    take,
)


def check_nodes(batch: Batch, x: ArrayLike, in_features: int) -> Array:
    """Features of a batch's nodes, ``(num_nodes, *batch, in_features)``; zeros for padding."""
    check_instance("batch", batch, Batch)
    x = check_features(x, batch.graph_ids.shape[0], in_features)
    return jnp.where(row_wise(batch.node_mask, x), x, jnp.zeros((), x.dtype))


def graph_means(batch: Batch, x: Array) -> Array:
    """For each node what the nodes of its graph have in the mean; zeros for padding."""
    means = segment_mean(x, batch.graph_ids, batch.num_graphs, True)
    return take(means, batch.graph_ids)


class _Norm(nnx.Module):
    """Base of the norms with a factor and a bias for each feature."""

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-5,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        """Initialises the parameters.

        Args:
            num_features: Features per node.
            epsilon: What variances get more.
            dtype: Of the computation; None infers it from input and parameters.
            param_dtype: Of the parameters.
            rngs: Source of the keys; no parameter is random.

        Raises:
            ValueError: A size is not positive, or epsilon is not finite.
        """
        del rngs
        check_positive(num_features=num_features)
        self.scale = nnx.Param(jnp.ones(num_features, param_dtype))
        self.bias = nnx.Param(jnp.zeros(num_features, param_dtype))
        self.num_features = num_features
        self.epsilon = check_finite("epsilon", epsilon)
        self.dtype = dtype
        self.param_dtype = param_dtype

    def _operands(self, batch: Batch, x: ArrayLike) -> tuple[Array, Array, Array]:
        x = check_nodes(batch, x, self.num_features)
        return dtypes.promote_dtype((x, self.scale[...], self.bias[...]), dtype=self.dtype)


class NodeBatchNorm(_Norm):
    """Batch norm over all nodes of a batch, padding left out.

    Ioffe and Szegedy, ICML 2015. As of `nnx.BatchNorm`, `train()` and `eval()` say whether a
    batch's own statistics count, or the running ones.

    Attributes:
        mean: Running mean, ``(num_features,)``.
        var: Running variance, likewise.

    Example:
        >>> made = batch([Graph.from_edges([(0, 1)])], num_nodes=3)
        >>> NodeBatchNorm(1, rngs=nnx.Rngs(0))(made, jnp.array([[1.0], [3.0], [99.0]]))[:2, 0]
        Array([-0.999995,  0.999995], dtype=float32)
    """

    def __init__(self, num_features: int, *, momentum: float = 0.99, **options: Any) -> None:
        """Initialises parameters and running statistics.

        Args:
            num_features: Features per node.
            momentum: Share of the running statistics that a batch leaves as it is.
            **options: `epsilon`, `dtype`, `param_dtype` and `rngs`, as of `GraphLayerNorm`.

        Raises:
            ValueError: A size is not positive, or a number is not finite.
        """
        super().__init__(num_features, **options)
        dtype = accumulator_dtype(self.scale[...].dtype)
        self.mean = nnx.BatchStat(jnp.zeros(num_features, dtype))
        self.var = nnx.BatchStat(jnp.ones(num_features, dtype))
        self.momentum = check_finite("momentum", momentum)
        self.use_running_average = False

    def __call__(
        self, batch: Batch, x: ArrayLike, *, use_running_average: bool | None = None
    ) -> Array:
        """Applies the norm.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, *batch, num_features)``.
            use_running_average: Whether running statistics count; None leaves it to the mode.

        Returns:
            Of the shape of x; a constant row for padding.

        Raises:
            ValueError: A shape does not fit.
        """
        x, scale, bias = self._operands(batch, x)
        running = self.use_running_average if use_running_average is None else use_running_average
        if running:
            dtype = accumulator_dtype(x.dtype)
            mean, var = self.mean[...].astype(dtype), self.var[...].astype(dtype)
            return _standardized(x, mean, var + self.epsilon, scale, bias)
        y, mean, var = _batch_norm(x, batch.node_mask, scale, bias, self.epsilon)
        for stat, value in ((self.mean, mean), (self.var, var)):
            old = self.momentum * stat[...]
            stat[...] = old + (1 - self.momentum) * value.astype(old.dtype)
        return y


def _standardized(x: Array, mean: Array, var: Array, scale: Array, bias: Array) -> Array:
    """``scale (x - mean) / sqrt(var) + bias``, in the dtype of x."""
    dtype = accumulator_dtype(x.dtype)
    factor = jax.lax.rsqrt(var) * scale.astype(dtype)
    mean, factor = mean.astype(x.dtype), factor.astype(x.dtype)
    return finished((x - feature_wise(mean, x)) * feature_wise(factor, x), bias)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
def _batch_norm(
    x: Array, there: Array, scale: Array, bias: Array, epsilon: float
) -> tuple[Array, Array, Array]:
    """The norm, mean and variance, of x that is 0 where there is no node.

    Its derivative is written so that its transpose, the gradient, reduces rows twice, which a GPU
    does in one kernel, where JAX's own reduces them five times.
    """
    dtype, mask = accumulator_dtype(x.dtype), row_wise(there, x)
    wide = x.astype(dtype)
    count = _count(x, there, dtype)
    mean = _row_sums(wide) / count
    apart = jnp.where(mask, wide - feature_wise(mean, x), jnp.zeros((), dtype))
    var = _row_sums(apart * apart) / count
    return _standardized(x, mean, var + epsilon, scale, bias), mean, var


@_batch_norm.defjvp
def _batch_norm_jvp(epsilon: float, primals: Any, tangents: Any) -> Any:
    x, there, scale, _ = primals
    dx, _, dscale, dbias = tangents
    y, mean, var = _batch_norm(*primals, epsilon)
    dtype = mean.dtype
    apart, dx = x.astype(dtype) - feature_wise(mean, x), dx.astype(dtype)
    count, inverse = _count(x, there, dtype), jax.lax.rsqrt(var + epsilon)
    factor = scale.astype(dtype) * inverse
    dmean, dvar = _row_sums(dx) / count, 2 * _row_sums(apart * dx) / count
    shift = dbias.astype(dtype) - factor * dmean
    stretch = dscale.astype(dtype) * inverse - factor * inverse * inverse * dvar / 2
    dy = feature_wise(factor, x) * dx + apart * feature_wise(stretch, x) + feature_wise(shift, x)
    return (y, mean, var), (dy.astype(y.dtype), dmean, dvar)


def _row_sums(x: Array) -> Array:
    """``(features,)``, over all other axes."""
    return x.sum(tuple(range(x.ndim - 1)))


def _count(x: Array, there: Array, dtype: Any) -> Array:
    """How many numbers a feature has."""
    count = there.sum(dtype=dtype) * math.prod(x.shape[1:-1])
    return jnp.maximum(count, jnp.ones((), dtype))


class _GraphNorm(_Norm):
    """Base of the norms within each graph."""

    def __call__(self, batch: Batch, x: ArrayLike) -> Array:
        """Applies the norm.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, *batch, num_features)``.

        Returns:
            Of the shape of x; zeros for padding, before the bias.

        Raises:
            ValueError: A shape does not fit.
        """
        x, scale, bias = self._operands(batch, x)
        return finished(feature_wise(scale, x) * self._normalized(batch, x), bias)

    def _normalized(self, batch: Batch, x: Array) -> Array:
        """Rows of mean 0 and variance 1."""
        raise NotImplementedError


class GraphLayerNorm(_GraphNorm):
    """Layer norm of each graph, over its nodes and features together.

    Ba et al., arXiv 1607.06450, as PyG's `LayerNorm` in mode "graph". For a norm of each node
    alone take `nnx.LayerNorm`, which sees no other rows.

    Example:
        >>> made = batch([Graph.from_edges([(0, 1)])])
        >>> GraphLayerNorm(1, rngs=nnx.Rngs(0))(made, jnp.array([[1.0], [3.0]]))[:, 0]
        Array([-0.999995,  0.999995], dtype=float32)
    """

    def _normalized(self, batch: Batch, x: Array) -> Array:
        x = x - graph_means(batch, jnp.mean(x, -1, keepdims=True))
        variance = graph_means(batch, jnp.mean(x * x, -1, keepdims=True))
        x = jnp.where(row_wise(batch.node_mask, x), x, jnp.zeros((), x.dtype))
        return x * jax.lax.rsqrt(variance + self.epsilon)


class GraphNorm(_GraphNorm):
    """Norm of each feature over the nodes of a graph, with a learned share of the mean.

    Cai et al., "GraphNorm: A principled approach to accelerating graph neural network training",
    ICML 2021: ``(x - a mean) / sqrt(var) scale + bias``.

    Attributes:
        mean_scale: a, ``(num_features,)``.

    Example:
        >>> made = batch([Graph.from_edges([(0, 1)])])
        >>> GraphNorm(1, rngs=nnx.Rngs(0))(made, jnp.array([[1.0], [3.0]]))[:, 0]
        Array([-0.999995,  0.999995], dtype=float32)
    """

    def __init__(
        self, num_features: int, *, param_dtype: DTypeLike = jnp.float32, **options: Any
    ) -> None:
        """Initialises the parameters.

        Args:
            num_features: Features per node.
            param_dtype: Of the parameters.
            **options: `epsilon`, `dtype` and `rngs`, as of `GraphLayerNorm`.

        Raises:
            ValueError: A size is not positive, or epsilon is not finite.
        """
        super().__init__(num_features, param_dtype=param_dtype, **options)
        self.mean_scale = nnx.Param(jnp.ones(num_features, param_dtype))

    def _normalized(self, batch: Batch, x: Array) -> Array:
        share = feature_wise(self.mean_scale[...].astype(x.dtype), x)
        x = x - share * graph_means(batch, x)
        return x * jax.lax.rsqrt(graph_means(batch, x * x) + self.epsilon)


class PairNorm(nnx.Module):
    """Norm that keeps the distances of a graph's nodes: centred rows of one total length.

    Zhao and Akoglu, "PairNorm: Tackling oversmoothing in GNNs", ICLR 2020, equations 10 and 11. It
    has no parameters.

    Example:
        >>> made = batch([Graph.from_edges([(0, 1)])])
        >>> PairNorm(1)(made, jnp.array([[1.0], [3.0]]))[:, 0]
        Array([-0.999995,  0.999995], dtype=float32)
    """

    def __init__(
        self,
        num_features: int,
        *,
        scale: float = 1.0,
        individually: bool = False,
        epsilon: float = 1e-5,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        """Keeps the options.

        Args:
            num_features: Features per node.
            scale: What rows are multiplied by.
            individually: Whether each row gets the same length (PairNorm-SI).
            epsilon: What lengths get more.
            rngs: Of no use here, but norms may then take each other's place.

        Raises:
            ValueError: A size is not positive, or a number is not finite.
        """
        del rngs
        check_positive(num_features=num_features)
        self.num_features = num_features
        self.scale = check_finite("scale", scale)
        self.individually = individually
        self.epsilon = check_finite("epsilon", epsilon)

    def __call__(self, batch: Batch, x: ArrayLike) -> Array:
        """Applies the norm.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, *batch, num_features)``.

        Returns:
            Of the shape of x; zeros for padding.

        Raises:
            ValueError: A shape does not fit.
        """
        x = check_nodes(batch, x, self.num_features)
        x = x - graph_means(batch, x)
        squares = jnp.sum(x * x, -1, keepdims=True)
        if not self.individually:
            return self.scale * x * jax.lax.rsqrt(graph_means(batch, squares) + self.epsilon)
        there = squares > 0
        lengths = jnp.where(there, jnp.sqrt(jnp.where(there, squares, 1)), 0)
        return self.scale * x / (lengths + self.epsilon)
