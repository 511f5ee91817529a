"""Graph transformers of batches: a local convolution beside attention within each graph."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory, check_positive
from flax_layers.mlp import make_norm
from flax_layers.norms import GraphLayerNorm, GraphNorm, check_nodes
from flax_layers.program_conv import matmul_precision
from jax_gnn import Batch, Graph
from jax_gnn.extend import accumulator_dtype, check_instance, row_wise, take

GPSNorm = Literal["batch_norm", "layer_norm", "graph_norm"]
GPSActivation = Literal["relu", "gelu", "silu", "elu", "leaky_relu", "tanh"]

# Rows of a graph, up to which XLA's attention takes less time on an H200 than cuDNN's.
_CUDNN_NODES = 64


def attention_within_graphs(
    batch: Batch[Any], query: Array, key: Array, value: Array, max_nodes: int | None = None
) -> Array:
    """Attend from each node of a batch to the nodes of its own graph, by dot products.

    Rows of each graph are padded to `max_nodes`, where that makes few scores. On GPUs, cuDNN
    attends within graphs of half types of more than 64 nodes. Otherwise rows are cut into tiles of
    `max_nodes`. A graph, whose nodes follow each other, lies in two tiles at most, so that a tile
    attends to itself and its two neighbours under the mask of equal graphs:
    ``3 num_nodes max_nodes`` scores for any number of graphs.

    Args:
        batch: The graphs.
        query: Queries, ``(num_nodes, heads, width)``.
        key: Keys, ``(num_nodes, heads, width)``.
        value: Values, ``(num_nodes, heads, width)``.
        max_nodes: Nodes of the largest graph or more; rows of larger graphs are NaN. None reads it
            from the batch, or where `jax.jit` traces the batch takes all its nodes.

    Returns:
        ``(num_nodes, heads, width)``; finite for padding.
    """
    count = query.shape[0]
    if max_nodes is None:
        is_traced = isinstance(batch.num_nodes, jax.core.Tracer)
        max_nodes = count if is_traced else int(np.asarray(batch.num_nodes).max(initial=0))
    # A multiple of 8 rows, as batches of nearly equal graphs share a program then.
    size = max(min(-(-max_nodes // 8) * 8, count), 1)
    tiles = -(-count // size)
    sizes = take(batch.num_nodes, batch.graph_ids)
    is_padded = batch.num_graphs <= (3 * tiles if tiles > 1 else 1)
    attend = _attend_padded if is_padded else _attend_tiles
    y = attend(batch, (query, key, value), size)
    return jnp.where(row_wise(sizes > max_nodes, y), jnp.nan, y)


def _attend_padded(batch: Batch[Any], operands: tuple[Array, ...], size: int) -> Array:
    """Return results for the first ``size`` rows of each graph; other rows are zeros."""
    graphs, sizes = batch.graph_ids, batch.num_nodes
    count = batch.num_graphs * size
    starts = jnp.cumsum(sizes, dtype=sizes.dtype) - sizes
    position = jnp.arange(len(graphs), dtype=graphs.dtype) - take(starts, graphs)
    places = jnp.where((graphs >= 0) & (position < size), graphs * size + position, count)
    query, key, value = (
        jnp.zeros((count, *rows.shape[1:]), rows.dtype)
        .at[places]
        .set(rows, mode="drop", unique_indices=True)
        .reshape(-1, size, *rows.shape[1:])
        for rows in operands
    )
    attend: Callable[..., Array] = _attend_graphs
    if size > _CUDNN_NODES and _has_cudnn(query):  # the process may compile for its CPU, too
        attend = functools.partial(
            jax.lax.platform_dependent, cuda=_attend_by_cudnn, default=_attend_graphs
        )
    y = attend(query, key, value, sizes)
    y = y.reshape(count, *y.shape[2:])
    return y.at[places].get(mode="fill", fill_value=0, unique_indices=True)


def _attend_graphs(query: Array, key: Array, value: Array, sizes: Array) -> Array:
    """Attend within ``(graphs, rows, heads, width)``, of which the first ``sizes`` are nodes."""
    is_node = jnp.arange(query.shape[1], dtype=sizes.dtype)[None] < sizes[:, None]
    return _attend(query, key, value, is_node, is_node)


def _attend_by_cudnn(query: Array, key: Array, value: Array, sizes: Array) -> Array:
    lengths = jnp.clip(sizes, 1, query.shape[1]).astype(jnp.int32)
    of_lengths: Any = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
    attend: Callable[..., Array] = jax.nn.dot_product_attention
    return attend(query, key, value, implementation="cudnn", **of_lengths)


def _has_cudnn(query: Array) -> bool:
    is_half = query.dtype in (jnp.bfloat16, jnp.float16)
    return jax.default_backend() == "gpu" and is_half and query.shape[-1] in range(8, 129, 8)


def _attend_tiles(batch: Batch[Any], operands: tuple[Array, ...], size: int) -> Array:
    """Return results for the rows of graphs of at most ``size`` nodes."""
    query, key, value = operands
    count = len(query)
    tiles = -(-count // size)
    before, after = (0, 0) if tiles == 1 else (size, size)
    padding = (before, tiles * size - count + after)

    def tiled(rows: Array, fill: int) -> Array:
        """Return for each tile its own rows, and those of its neighbours, (tiles, 3 size, …)."""
        padded = jnp.pad(
            rows, (padding, *[(0, 0)] * (rows.ndim - 1)), constant_values=jnp.asarray(fill)
        )
        parts = padded.reshape(-1, size, *rows.shape[1:])
        if tiles == 1:
            return parts
        return jnp.concatenate([parts[:-2], parts[1:-1], parts[2:]], axis=1)

    own = slice(before, before + size)
    graphs = tiled(batch.graph_ids, -1)
    y = _attend(tiled(query, 0)[:, own], tiled(key, 0), tiled(value, 0), graphs[:, own], graphs)
    return y.reshape(tiles * size, *y.shape[2:])[:count]


def _attend(query: Array, key: Array, value: Array, own: Array, others: Array) -> Array:
    """Attend from rows to rows of equal marks; padding attends to padding, so that all rows do."""
    # Scores are float32 at least, and float64 of float64, which `jax.nn.dot_product_attention`
    # rounds.
    mask = own[:, None, :, None] == others[:, None, None, :]
    dtype = accumulator_dtype(query.dtype)
    scores = jnp.einsum("tqhd,tkhd->thqk", query, key, preferred_element_type=dtype)
    scores = jnp.where(mask, scores * query.shape[-1] ** -0.5, -jnp.inf)
    return jnp.einsum("thqk,tkhd->tqhd", jax.nn.softmax(scores).astype(value.dtype), value)


class GPSConv(LinearOptions):
    """GraphGPS's layer: a convolution beside attention within each graph, then an MLP.

    ``h = norm(x + conv(x)) + norm(x + attention(x))`` and ``norm(h + MLP(h))``, with dropout before
    each sum. Rampášek et al., "Recipe for a general, powerful, scalable graph transformer", NeurIPS
    2022, as PyTorch Geometric's layer of this name with `attn_type` "multihead".

    Attributes:
        in_features: Features per node of the input and of the output.
        conv: Convolution of `in_features` to as many, called ``conv(graph, x, …)``, such as a
            `GINEConv`; None leaves attention alone.
        heads: Number of heads.
        mlp_activation: Function inside the MLP: "relu", "gelu", "silu", "elu", "leaky_relu" or
            "tanh".
        node_norm: "batch_norm", "layer_norm" or "graph_norm"; None without.
        dropout_rate: Share of features dropped in training, in [0, 1].
        attention_in: Map to queries, keys and values, side by side.
        attention_out: Map of the heads' results.
        mlp: Maps of the MLP, with twice as many features inside.
        norms: The norms of the convolution, of attention and of the MLP; none without.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1)]), Graph.from_edges([(0, 0)])])
        >>> conv = GPSConv(4, GINEConv(4, 4, rngs=nnx.Rngs(0)), heads=2, rngs=nnx.Rngs(0))
        >>> conv(graphs, jnp.ones((3, 4))).shape
        (3, 4)
    """

    in_features: int = field(kw_only=False)
    conv: Any = field(kw_only=False, default=None)
    heads: int = 1
    mlp_activation: GPSActivation = "relu"
    node_norm: GPSNorm | None = "batch_norm"
    dropout_rate: float = 0.0

    def _make_parameters(self, factory: ParameterFactory) -> None:
        base.check_heads(self.heads, self.in_features)
        if self.conv is not None:
            base.check_model("conv", self.conv)
        self.conv = nnx.data(self.conv)
        width = self.in_features
        self.attention_in = factory.linear(width, 3 * width)
        self.attention_out = factory.linear(width, width)
        self.mlp = nnx.List([factory.linear(width, 2 * width), factory.linear(2 * width, width)])
        self.norms = nnx.List([self._make_norm(factory) for _ in range(3 if self.node_norm else 0)])
        self.dropout = nnx.Dropout(self.dropout_rate, rngs=factory.rngs)

    def _make_norm(self, factory: ParameterFactory) -> Any:
        if self.node_norm == "batch_norm":
            return make_norm(self.in_features, factory)
        kind = GraphLayerNorm if self.node_norm == "layer_norm" else GraphNorm
        options: Any = {"dtype": factory.dtype, "param_dtype": factory.param_dtype}
        return kind(self.in_features, rngs=factory.rngs, **options)

    def __call__(
        self,
        batch: Batch[Graph],
        x: ArrayLike,
        *arguments: object,
        max_nodes: int | None = None,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
        **named: object,
    ) -> Array:
        """Return the new node features, ``(num_nodes, in_features)`` in `dtype`.

        Args:
            batch: The graphs; one alone is ``batch([graph])``.
            x: Features of nodes, ``(num_nodes, in_features)``.
            *arguments: Further arguments of the convolution, such as features of edges.
            max_nodes: Nodes of the largest graph or more, by which the cost of attention grows;
                rows of larger graphs are NaN. None reads it from the batch, which only outside of
                `jax.jit` is possible; inside, each node is compared with all others.
            deterministic: Whether dropout is off, and norms use running statistics; None leaves it
                to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
            **named: Further arguments of the convolution by name.
        """
        check_instance("batch", batch, Batch)
        if max_nodes is not None:
            check_positive(max_nodes=max_nodes)
        rows = check_nodes(batch, x, self.in_features)
        if rows.ndim != 2:
            raise ValueError(
                f"x must have shape (num_nodes, in_features), without batch axes, got {rows.shape}"
            )
        (rows, _) = base.promote((rows, self.attention_in.kernel[...]), self.dtype)
        dropout = base.dropout_arguments(deterministic, rngs)
        terms: list[Array | None] = [None]
        if self.conv is not None:
            takes = inspect.signature(self.conv.__call__).parameters
            options = {"node_mask": batch.node_mask, **dropout, **named}
            options = {k: v for k, v in options.items() if k in takes or k in named}
            terms = [self.conv(batch.graph, rows, *arguments, **options)]
        terms.append(self._attention(batch, rows, max_nodes))
        parts = [
            self._normalized(i, batch, rows + self.dropout(y, **dropout), deterministic)
            for i, y in enumerate(terms)
            if y is not None
        ]
        h = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        hidden = base.linear(self.mlp[0], h)
        exact = {"approximate": False} if self.mlp_activation == "gelu" else {}
        hidden = getattr(jax.nn, self.mlp_activation)(hidden, **exact)
        y = base.linear(self.mlp[1], self.dropout(hidden, **dropout))
        return self._normalized(2, batch, h + self.dropout(y, **dropout), deterministic)

    def _attention(self, batch: Batch[Graph], x: Array, max_nodes: int | None) -> Array:
        """Return multi-head attention of each node to the nodes of its graph."""
        parts = jnp.split(base.linear(self.attention_in, x), 3, axis=-1)
        shape = len(x), self.heads, self.in_features // self.heads
        query, key, value = (part.reshape(shape) for part in parts)
        with matmul_precision(self.precision):
            y = attention_within_graphs(batch, query, key, value, max_nodes)
        return base.linear(self.attention_out, y.reshape(x.shape))

    def _normalized(
        self, number: int, batch: Batch[Graph], x: Array, deterministic: bool | None
    ) -> Array:
        if self.node_norm is None:
            return x
        options = {"use_running_average": deterministic} if self.node_norm == "batch_norm" else {}
        return self.norms[number](batch, x, **options)
