"""Norms over the nodes of a batch of graphs; padding counts nowhere."""

from __future__ import annotations

import functools
import math
from dataclasses import InitVar, field
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from flax_layers import _base as base
from flax_layers._declaration import Layer, ParameterFactory, ParameterLayer, check_options
from jax_gnn import Batch, segment_mean
from jax_gnn.extend import (
    accumulator_dtype,
    as_array,
    check_flag,
    check_instance,
    feature_wise,
    row_wise,
    take,
)

GraphBatch = Batch[Any]


def check_nodes(batch: GraphBatch, x: ArrayLike, in_features: int) -> Array:
    """Return features of a batch's nodes, ``(num_nodes, *batch, in_features)``; padding is 0."""
    check_instance("batch", batch, Batch)
    rows = base.check_features(x, batch.graph_ids.shape[0], in_features)
    return jnp.where(row_wise(batch.node_mask, rows), rows, jnp.zeros((), rows.dtype))


def check_mask(name: str, mask: ArrayLike, size: int) -> Array:
    """Check a mask of rows, ``(size,)`` bool."""
    array = as_array(name, mask)
    if array.shape != (size,) or array.dtype != bool:
        raise ValueError(f"{name} must be ({size},) of bool, got {array.shape} of {array.dtype}")
    return array


def graph_means(batch: GraphBatch, x: Array) -> Array:
    """Return for each node the mean over the nodes of its graph; zeros for padding."""
    means = segment_mean(x, batch.graph_ids, batch.num_graphs, True)
    return take(means, batch.graph_ids)


class _Norm(ParameterLayer):
    """Base of the norms with a factor and a bias for each feature.

    Attributes:
        num_features: Features per node.
        epsilon: Constant that is added to variances.
        dtype: Dtype of the computation; None infers it from input and parameters.
        rngs: Source of keys; no parameter is random.
        scale: Factors, ``(num_features,)``.
        bias: Biases, ``(num_features,)``.
    """

    num_features: int = field(kw_only=False)
    epsilon: float = 1e-5
    dtype: DTypeLike | None = None

    def _make_parameters(self, factory: ParameterFactory) -> None:
        # The norm starts as the identity after normalisation.
        self.scale = factory.full(1, self.num_features)
        self.bias = factory.full(0, self.num_features)

    def _operands(self, batch: GraphBatch, x: ArrayLike) -> tuple[Array, Array, Array]:
        """Return checked features, scale and bias in the dtype of the computation."""
        rows = check_nodes(batch, x, self.num_features)
        return dtypes.promote_dtype((rows, self.scale[...], self.bias[...]), dtype=self.dtype)


class NodeBatchNorm(_Norm):
    """Batch norm over all nodes of a batch, except padding.

    Ioffe and Szegedy, ICML 2015. As for `nnx.BatchNorm`, `train()` selects a batch's statistics,
    and `eval()` the running ones.

    Attributes:
        momentum: Weight of the running statistics when a batch's are added, in [0, 1].
        mean: Running mean, ``(num_features,)``.
        var: Running variance, ``(num_features,)``.
        use_running_average: Mode, which `train()` and `eval()` set.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1)])], num_nodes=3)
        >>> NodeBatchNorm(1, rngs=nnx.Rngs(0))(graphs, jnp.array([[1.0], [3.0], [99.0]]))[:2, 0]
        Array([-0.999995,  0.999995], dtype=float32)
    """

    momentum: float = 0.99
    use_running_average: bool = field(default=False, init=False)
    # Within `ShardedGraph.apply`: the axis of the devices, and the rows that are no padding.
    axis_name: str | None = field(default=None, init=False)
    is_node: Array | None = field(default=None, init=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        super()._make_parameters(factory)
        dtype = accumulator_dtype(self.scale[...].dtype)
        self.mean = nnx.BatchStat(jnp.zeros(self.num_features, dtype))
        self.var = nnx.BatchStat(jnp.ones(self.num_features, dtype))

    def synchronize(self, axis_name: str, is_node: Array | None) -> None:
        """Use the statistics of all devices of a mesh axis, within `jax.shard_map`.

        Args:
            axis_name: Name of the axis.
            is_node: The device's rows that count if the norm is called without a mask,
                ``(num_nodes,)`` bool; None means all.
        """
        self.axis_name, self.is_node = axis_name, is_node

    def __call__(
        self,
        batch: GraphBatch | ArrayLike | None,
        x: ArrayLike,
        *,
        use_running_average: bool | None = None,
    ) -> Array:
        """Apply the norm.

        Args:
            batch: The graphs; or the rows of x that count in the statistics, ``(num_nodes,)`` bool;
                or None: all count.
            x: Features of nodes, ``(num_nodes, *batch, num_features)``.
            use_running_average: Whether running statistics are used; None means the mode's.

        Returns:
            An array of the shape of x; a constant row for padding.
        """
        mask, x, scale, bias = self._masked_operands(batch, x)
        mode = self.use_running_average if use_running_average is None else use_running_average
        if check_flag("use_running_average", mode):
            dtype = accumulator_dtype(x.dtype)
            mean, var = self.mean[...].astype(dtype), self.var[...].astype(dtype)
            return _standardize(x, mean, var + self.epsilon, scale, bias)
        y, mean, var = _batch_norm(x, mask, scale, bias, self.epsilon, self.axis_name)
        # Exponential moving averages, as of `nnx.BatchNorm`.
        for stat, value in ((self.mean, mean), (self.var, var)):
            decayed = self.momentum * stat[...]
            stat[...] = decayed + (1 - self.momentum) * value.astype(decayed.dtype)
        return y

    def _masked_operands(
        self, batch: GraphBatch | ArrayLike | None, x: ArrayLike
    ) -> tuple[Array, Array, Array, Array]:
        """Return the mask of rows that count, and operands as of other norms."""
        if isinstance(batch, Batch) or not (batch is None or hasattr(batch, "dtype")):
            operands = self._operands(batch, x)  # type: ignore[arg-type]  # raises for others
            return batch.node_mask, *operands  # type: ignore[union-attr]
        rows = as_array("x", x)
        count = rows.shape[0] if rows.ndim else 0
        base.check_features(rows, count, self.num_features)
        mask = jnp.ones(count, bool)
        batch = self.is_node if batch is None else batch
        if batch is not None:  # padding is 0, so that sums need no mask
            mask = check_mask("batch", batch, count)
            rows = jnp.where(row_wise(mask, rows), rows, jnp.zeros((), rows.dtype))
        params = self.scale[...], self.bias[...]
        return mask, *dtypes.promote_dtype((rows, *params), dtype=self.dtype)


def _standardize(x: Array, mean: Array, var: Array, scale: Array, bias: Array) -> Array:
    """Return ``scale (x - mean) / sqrt(var) + bias``, in the dtype of x."""
    dtype = accumulator_dtype(x.dtype)
    factor = jax.lax.rsqrt(var) * scale.astype(dtype)
    mean, factor = mean.astype(x.dtype), factor.astype(x.dtype)
    return base.finished((x - feature_wise(mean, x)) * feature_wise(factor, x), bias)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def _batch_norm(
    x: Array, mask: Array, scale: Array, bias: Array, epsilon: float, axis_name: str | None
) -> tuple[Array, Array, Array]:
    """Return the norm, mean and variance of x, whose rows outside the mask are 0.

    The derivative is written so that its transpose, the gradient, reduces rows twice, which a GPU
    does in one kernel; JAX's own gradient reduces them five times.
    """
    dtype = accumulator_dtype(x.dtype)
    # Padding rows of x are 0, so that sums need no mask; centered rows do.
    wide = x.astype(dtype)
    count = _count(x, mask, dtype, axis_name)
    mean = _row_sums(wide, axis_name) / count
    centered = jnp.where(row_wise(mask, x), wide - feature_wise(mean, x), jnp.zeros((), dtype))
    var = _row_sums(centered * centered, axis_name) / count
    return _standardize(x, mean, var + epsilon, scale, bias), mean, var


Operands = tuple[Array, Array, Array, Array]
Results = tuple[Array, Array, Array]


@_batch_norm.defjvp
def _batch_norm_jvp(
    epsilon: float, axis_name: str | None, primals: Operands, tangents: Operands
) -> tuple[Results, Results]:
    x, mask, scale, bias = primals
    dx, _, dscale, dbias = tangents
    y, mean, var = _batch_norm(x, mask, scale, bias, epsilon, axis_name)
    dtype = mean.dtype
    centered, dx = x.astype(dtype) - feature_wise(mean, x), dx.astype(dtype)
    count, inverse = _count(x, mask, dtype, axis_name), jax.lax.rsqrt(var + epsilon)
    factor = scale.astype(dtype) * inverse
    dmean = _row_sums(dx, axis_name) / count
    dvar = 2 * _row_sums(centered * dx, axis_name) / count
    # dy is linear in each row's dx and centered features, with coefficients for each feature.
    shift = dbias.astype(dtype) - factor * dmean
    slope = dscale.astype(dtype) * inverse - factor * inverse * inverse * dvar / 2
    dy = feature_wise(factor, x) * dx + centered * feature_wise(slope, x) + feature_wise(shift, x)
    return (y, mean, var), (dy.astype(y.dtype), dmean, dvar)


def _row_sums(x: Array, axis_name: str | None) -> Array:
    """Return sums over all axes but the features, and over devices, ``(features,)``."""
    total = x.sum(tuple(range(x.ndim - 1)))
    return total if axis_name is None else cast(Array, jax.lax.psum(total, axis_name))


def _count(x: Array, mask: Array, dtype: DTypeLike, axis_name: str | None) -> Array:
    """Return the number of values of a feature, at least 1."""
    count = _row_sums(mask[:, None].astype(dtype), axis_name)[0] * math.prod(x.shape[1:-1])
    return jnp.maximum(count, jnp.ones((), dtype))


class _GraphNorm(_Norm):
    """Base of the norms within each graph."""

    def __call__(self, batch: GraphBatch, x: ArrayLike) -> Array:
        """Apply the norm.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, *batch, num_features)``.

        Returns:
            An array of the shape of x; the biases for padding.
        """
        x, scale, bias = self._operands(batch, x)
        # Half types may not hold squares.
        y = self._normalized(batch, x.astype(accumulator_dtype(x.dtype))).astype(x.dtype)
        return base.finished(feature_wise(scale, x) * y, bias)

    def _normalized(self, batch: GraphBatch, x: Array) -> Array:
        """Return rows of mean 0 and variance 1."""
        raise NotImplementedError


class GraphLayerNorm(_GraphNorm):
    """Layer norm of each graph, over its nodes and features together.

    Ba et al., arXiv 1607.06450, as PyG's `LayerNorm` in mode "graph". A norm of each node alone is
    `nnx.LayerNorm`.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1)])])
        >>> GraphLayerNorm(1, rngs=nnx.Rngs(0))(graphs, jnp.array([[1.0], [3.0]]))[:, 0]
        Array([-0.999995,  0.999995], dtype=float32)
    """

    def _normalized(self, batch: GraphBatch, x: Array) -> Array:
        # A mean over features, then over nodes, is that over both.
        x = x - graph_means(batch, jnp.mean(x, -1, keepdims=True))
        variance = graph_means(batch, jnp.mean(x * x, -1, keepdims=True))
        x = jnp.where(row_wise(batch.node_mask, x), x, jnp.zeros((), x.dtype))
        return x * jax.lax.rsqrt(variance + self.epsilon)


class GraphNorm(_GraphNorm):
    """Norm of each feature over the nodes of a graph, with a learned share of the mean.

    Cai et al., "GraphNorm: A principled approach to accelerating graph neural network training",
    ICML 2021: ``(x - a mean) / sqrt(var) scale + bias``.

    Attributes:
        mean_scale: Share of the mean that is subtracted, a, ``(num_features,)``.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1)])])
        >>> GraphNorm(1, rngs=nnx.Rngs(0))(graphs, jnp.array([[1.0], [3.0]]))[:, 0]
        Array([-0.999995,  0.999995], dtype=float32)
    """

    def _make_parameters(self, factory: ParameterFactory) -> None:
        super()._make_parameters(factory)
        self.mean_scale = factory.full(1, self.num_features)

    def _normalized(self, batch: GraphBatch, x: Array) -> Array:
        share = feature_wise(self.mean_scale[...].astype(x.dtype), x)
        x = x - share * graph_means(batch, x)
        return x * jax.lax.rsqrt(graph_means(batch, x * x) + self.epsilon)


class PairNorm(Layer):
    """Norm that preserves the distances of a graph's nodes: centred rows of one total length.

    Zhao and Akoglu, "PairNorm: Tackling oversmoothing in GNNs", ICLR 2020, equations 10 and 11. It
    has no parameters.

    Attributes:
        num_features: Features per node.
        scale: Factor of the rows.
        individually: Whether all rows get the same length (PairNorm-SI).
        epsilon: Constant that is added to lengths.
        rngs: Ignored, so that norms may replace each other.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1)])])
        >>> PairNorm(1)(graphs, jnp.array([[1.0], [3.0]]))[:, 0]
        Array([-0.999995,  0.999995], dtype=float32)
    """

    num_features: int = field(kw_only=False)
    scale: float = 1.0
    individually: bool = False
    epsilon: float = 1e-5
    rngs: InitVar[nnx.Rngs | None] = None

    def __post_init__(self, rngs: nnx.Rngs | None) -> None:
        check_options(self)

    def __call__(self, batch: GraphBatch, x: ArrayLike) -> Array:
        """Apply the norm.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, *batch, num_features)``.

        Returns:
            An array of the shape of x; zeros for padding.
        """
        x = check_nodes(batch, x, self.num_features)
        dtype = dtypes.canonicalize_dtype(x)
        x = x.astype(accumulator_dtype(dtype))  # half types may not hold squares
        x = x - graph_means(batch, x)
        squares = jnp.sum(x * x, -1, keepdims=True)
        if not self.individually:
            y = self.scale * x * jax.lax.rsqrt(graph_means(batch, squares) + self.epsilon)
            return y.astype(dtype)
        # Roots of 0 have no gradient, so that their argument is replaced.
        is_positive = squares > 0
        lengths = jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, squares, 1)), 0)
        return (self.scale * x / (lengths + self.epsilon)).astype(dtype)
