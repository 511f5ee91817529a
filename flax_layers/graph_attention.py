"""Attention of nodes to their neighbours in Flax NNX: GAT, GATv2 and graph transformers."""

from __future__ import annotations

import math
from dataclasses import InitVar, field
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._attention import (
    AttentionConvolution,
    AttentionOptions,
    AttentionStack,
    HeadOptions,
    MultiHead,
    dots,
    dropout_mask,
)
from flax_layers._declaration import ParameterFactory, glorot_init
from jax_gnn import Graph, additive_attention, dot_attention, gatv2_attention, segment_mean
from jax_gnn.extend import check_instance
from jax_gnn.sharding import HostRows


class GATOptions(AttentionOptions):
    """Options of `GATConv`, and of `GAT` for its convolutions.

    Attributes:
        edge_in_features: Features per edge; None if edges have none.
        add_self_loops: Whether nodes attend to themselves, if destinations are sources.
        kernel_init: Initializer of the kernels, Glorot's by default.
    """

    edge_in_features: int | None = None
    add_self_loops: bool = True
    kernel_init: InitVar[nnx.Initializer] = glorot_init


class _GraphAttentionConv(GATOptions, AttentionConvolution):
    """Base of GAT and GATv2: two endpoints, edge features, and attention of nodes to themselves.

    Attributes:
        in_features: Features per node of the input; a pair for sources and destinations.
    """

    structure = Graph

    in_features: int | tuple[int, int] = field(kw_only=False)  # type: ignore[assignment]  # wider

    def _make_parameters(self, factory: ParameterFactory) -> None:
        super()._make_parameters(factory)
        _, self.dst_features = base.endpoint_sizes(self.in_features)
        self.edge_kernel = factory.kernel(self.edge_in_features, self._width)

    def _endpoints(self, graph: Graph, x: base.NodeFeatures) -> tuple[Array, Array]:
        """Return the features of sources and of destinations in the dtype of the computation."""
        check_instance("graph", graph, Graph)
        src, dst = base.check_endpoint_features(graph, x, *base.endpoint_sizes(self.in_features))
        dtype = base.promoted_dtype(src, dst, self.kernel[...], dtype=self.dtype)
        return src.astype(dtype), dst.astype(dtype)

    def _map(
        self, x: Array | HostRows, kernel: nnx.Param[Array], bias: nnx.Param[Array] | None
    ) -> Array:
        """Return ``x kernel + bias``, split by heads."""
        bias_value = None if bias is None else cast(bias, x)
        return self._split(self._product(x, cast(kernel, x), bias=bias_value))

    def _map_sources(self, graph: Graph, x: Array, bias: nnx.Param[Array] | None) -> Array:
        """Return `kernel` applied to the sources, split by heads."""
        return base.map_sources(graph, x, self._width, lambda x: self._map(x, self.kernel, bias))

    def _attends_to_itself(self, x: base.NodeFeatures) -> bool:
        """Return whether nodes are their own neighbours: one array for both endpoints."""
        return self.add_self_loops and not isinstance(x, tuple)

    def _finish(
        self,
        graph: Graph,
        attended: tuple[Array, Array],
        self_score: Array | None,
        value: Array,
        shape: tuple[int, ...],
        dropout: base.DropoutCall,
    ) -> Array:
        """Add the nodes' attention to themselves, join the heads and add the bias.

        A softmax over one entry more follows from that over the others and their logsumexp.
        """
        y, lse = attended
        if self_score is not None:
            # exp(s) / (exp(s) + sum) = sigmoid(s - logsumexp): the node's attention to itself.
            share = jax.nn.sigmoid(self_score - lse)
            graph._note("own", lambda: share)
            self_weight = self.attention_dropout(share, **dropout)
            y = (1 - share)[..., None].astype(y.dtype) * y
            y += self_weight[..., None].astype(y.dtype) * base.destination_rows(graph, value)
        y = self._join(y.reshape(shape))
        return base.finished(y, None if self.bias is None else cast(self.bias, y))


class GATConv(_GraphAttentionConv):
    """Graph attention: a softmax of additive scores over a node's neighbours, for each head.

    Veličković et al., "Graph attention networks", ICLR 2018, equations 1 to 6. A node's neighbours
    are the sources of its edges and, with `add_self_loops`, itself, beside the graph's own edges
    from a node to itself. Features of edges add a score before the LeakyReLU; the score of a node's
    attention to itself gets the mean over its edges, as in PyTorch Geometric.

    Attributes:
        kernel: Map of the nodes, or of the sources, ``(in_features, heads · width)``.
        dst_kernel: Map of the destinations if `in_features` is a pair, or None.
        src_attention: Vectors of the sources' scores, ``(heads, width)``.
        dst_attention: Vectors of the destinations' scores, ``(heads, width)``.
        edge_kernel: Map of the edges, ``(edge_in_features, heads · width)``, or None.
        edge_attention: Vectors of the edges' scores, ``(heads, width)``, or None.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GATConv(4, 8, heads=2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    def _make_parameters(self, factory: ParameterFactory) -> None:
        super()._make_parameters(factory)
        is_pair = isinstance(self.in_features, tuple)
        self.dst_kernel = factory.kernel(self.dst_features, self._width, when=is_pair)
        self.src_attention = self._attention_vector(factory)
        self.dst_attention = self._attention_vector(factory)
        has_edges = self.edge_in_features is not None
        self.edge_attention = self._attention_vector(factory, when=has_edges)

    def __call__(
        self,
        graph: Graph,
        x: base.NodeFeatures,
        edge_features: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            edge_features: Features of edges, ``(num_edges, *batch, edge_in_features)``, in the
                graph's order (`Graph.edge_values`), of a layer with `edge_in_features`.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
        """
        src, dst = self._endpoints(graph, x)
        attr = base.check_edge_features(graph, edge_features, self.edge_in_features)
        dropout = base.dropout_arguments(deterministic, rngs)
        # A score is the sum of a number of the source and one of the destination: the kernel reads
        # rows for values alone.
        value = self._map_sources(graph, src, None)
        src_score = dots(value, cast(self.src_attention, src))
        if self.dst_kernel is None and not isinstance(x, tuple):
            dst_value = base.destination_rows(graph, value)
            dst_score = dots(dst_value, cast(self.dst_attention, src))
        else:  # destinations need scores, but no values
            kernel = self.kernel if self.dst_kernel is None else self.dst_kernel
            dst_score = self._scores(dst, kernel, self.dst_attention)
        bias = None
        if attr is not None:
            attr = attr.astype(src.dtype)
            bias = self._scores(attr, self.edge_kernel, self.edge_attention)
            bias = _flat_heads(jnp.broadcast_to(bias, (bias.shape[0], *value.shape[1:-1])))
        shape = (graph.num_dst, *value.shape[1:])
        flat_value = _flat_heads(value, 1)
        dst_score, src_score = _flat_heads(dst_score), _flat_heads(src_score)
        heads = src_score.shape[1]
        attended = additive_attention(
            graph,
            dst_score,
            src_score,
            flat_value,
            negative_slope=self.negative_slope,
            edge_bias=bias,
            edge_scale=dropout_mask(self.attention_dropout, graph.num_edges, heads, dropout),
            return_lse=True,
        )
        self_score = None
        if self._attends_to_itself(x):
            acc = attended[1].dtype
            self_score = dst_score.astype(acc) + base.destination_rows(graph, src_score).astype(acc)
            if bias is not None:
                self_score += _mean_over_edges(graph, bias.astype(acc))
            self_score = jax.nn.leaky_relu(self_score, self.negative_slope)
        return self._finish(graph, attended, self_score, flat_value, shape, dropout)


class GATv2Options(GATOptions):
    """Options of `GATv2Conv`, and of `GATv2` for its convolutions.

    Attributes:
        share_weights: Whether sources and destinations have one kernel and bias.
    """

    share_weights: bool = False


class GATv2Conv(GATv2Options, _GraphAttentionConv):
    """Graph attention with dynamic scores, ``⟨a, LeakyReLU(W x_i + W' x_j)⟩``, for each head.

    Brody, Alon and Yahav, "How attentive are graph attention networks?", ICLR 2022, equation 7.
    Other parts are as in `GATConv`. Features of edges are added inside the LeakyReLU, which takes
    an array with a row for each edge.

    Attributes:
        kernel: W', the map of the sources, ``(in_features, heads · width)``.
        src_bias: Biases of the sources, ``(heads · width,)``, or None without biases.
        dst_kernel: W, the map of the destinations; None with `share_weights`.
        dst_bias: Biases of the destinations, ``(heads · width,)``, or None.
        attention: a, ``(heads, width)``.
        edge_kernel: Map of the edges, ``(edge_in_features, heads · width)``, or None.
        bias: Biases of the result, ``(out_features,)``, or None without biases.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GATv2Conv(4, 8, heads=2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    def _make_parameters(self, factory: ParameterFactory) -> None:
        src_features, dst_features = base.endpoint_sizes(self.in_features)
        if self.share_weights and src_features != dst_features:
            raise ValueError(
                "share_weights needs sources and destinations of one size, got in_features="
                f"{self.in_features}"
            )
        super()._make_parameters(factory)
        self.src_bias = factory.bias(self._width)
        is_own = not self.share_weights
        self.dst_kernel = factory.kernel(dst_features, self._width, when=is_own)
        self.dst_bias = factory.bias(self._width) if is_own else nnx.data(None)
        self.attention = self._attention_vector(factory)

    def __call__(
        self,
        graph: Graph,
        x: base.NodeFeatures,
        edge_features: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Apply the convolution; arguments, result and errors are those of `GATConv`'s call."""
        src, dst = self._endpoints(graph, x)
        attr = base.check_edge_features(graph, edge_features, self.edge_in_features)
        dropout = base.dropout_arguments(deterministic, rngs)
        src_rows = self._map_sources(graph, src, self.src_bias)
        if self.dst_kernel is not None:
            dst_rows = self._map(dst, self.dst_kernel, self.dst_bias)
        elif isinstance(x, tuple):
            dst_rows = self._map(dst, self.kernel, self.src_bias)
        else:
            dst_rows = base.destination_rows(graph, src_rows)
        edge_rows = None
        if attr is not None:
            edge_rows = self._map(attr.astype(src.dtype), self.edge_kernel, None)
            edge_rows = _flat_edge_rows(edge_rows, src_rows)
        shape = (graph.num_dst, *src_rows.shape[1:])
        # Batch entries become heads of their own, with the same vectors.
        vector = jnp.broadcast_to(cast(self.attention, src), src_rows.shape[1:])
        vector = vector.reshape(-1, vector.shape[-1])
        dst_rows, src_rows = _flat_heads(dst_rows, 1), _flat_heads(src_rows, 1)
        heads = src_rows.shape[1]
        attended = gatv2_attention(
            graph,
            dst_rows,
            src_rows,
            vector,
            negative_slope=self.negative_slope,
            edge_features=edge_rows,
            edge_scale=dropout_mask(self.attention_dropout, graph.num_edges, heads, dropout),
            return_lse=True,
        )
        self_score = None
        if self._attends_to_itself(x):
            acc = attended[1].dtype
            z = dst_rows.astype(acc) + base.destination_rows(graph, src_rows).astype(acc)
            if edge_rows is not None:
                z += _mean_over_edges(graph, edge_rows.astype(acc))
            self_score = dots(jax.nn.leaky_relu(z, self.negative_slope), vector.astype(acc))
        return self._finish(graph, attended, self_score, src_rows, shape, dropout)


class TransformerOptions(HeadOptions):
    """Options of `TransformerConv`, and of `GraphTransformer` for its convolutions.

    Attributes:
        gated: Whether a gate weighs the skip connection against the rest, equation 5.
        self_weight: Whether there is a skip connection.
        edge_in_features: Features per edge; None if edges have none.
    """

    gated: bool = False
    self_weight: bool = True
    edge_in_features: int | None = None


class TransformerConv(TransformerOptions, MultiHead):
    """Graph transformer: dot products of queries and keys, and a skip connection with a gate.

    Shi et al., "Masked label prediction: unified message passing model for semi-supervised
    classification", IJCAI 2021, equations 3 to 5. Features of edges are added to keys and values.

    Attributes:
        in_features: Features per node of the input; a pair for sources and destinations.
        out_features: Features per node of the output, for any number of heads.
        query: `nnx.Linear` of the destinations to ``heads · width`` features.
        key: `nnx.Linear` of the sources to ``heads · width`` features.
        value: `nnx.Linear` of the sources to ``heads · width`` features.
        edge: `nnx.Linear` of the edges' features, without a bias; None if edges have none.
        root: `nnx.Linear` of the destinations to `out_features`, the skip connection, or None.
        gate: `nnx.Linear` of ``3 · out_features`` to 1 without a bias, the share of the skip
            connection in the result, or None.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> TransformerConv(4, 8, heads=2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = Graph

    in_features: int | tuple[int, int] = field(kw_only=False)
    out_features: int = field(kw_only=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        src_features, dst_features = base.endpoint_sizes(self.in_features)
        self._check_heads()
        if self.gated and not self.self_weight:
            raise ValueError("gated needs the skip connection, got self_weight=False")
        self.query = factory.linear(dst_features, self._width)
        self.key = factory.linear(src_features, self._width)
        self.value = factory.linear(src_features, self._width)
        self.edge = factory.linear(self.edge_in_features, self._width, use_bias=False)
        self.root = factory.linear(dst_features, self.out_features, when=self.self_weight)
        self.gate = factory.linear(3 * self.out_features, 1, use_bias=False, when=self.gated)
        self.attention_dropout = self._dropout(factory)

    def __call__(
        self,
        graph: Graph,
        x: base.NodeFeatures,
        edge_features: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Apply the convolution; arguments, result and errors are those of `GATConv`'s call."""
        check_instance("graph", graph, Graph)
        src, dst = base.check_endpoint_features(graph, x, *base.endpoint_sizes(self.in_features))
        attr = base.check_edge_features(graph, edge_features, self.edge_in_features)
        dropout = base.dropout_arguments(deterministic, rngs)
        query = self._split(base.linear(self.query, dst))

        # Keys and values are mapped together: halo rows are sent once, on the narrower side.
        def key_and_value(x: Array | HostRows) -> tuple[Array, Array]:
            return self._split(base.linear(self.key, x)), self._split(base.linear(self.value, x))

        key, value = base.map_sources(graph, src, 2 * self._width, key_and_value)
        edge_rows = None
        if attr is not None:
            edge_rows = self._split(base.linear(self.edge, attr.astype(src.dtype)))
            edge_rows = _flat_edge_rows(edge_rows, value)
        shape = (graph.num_dst, *value.shape[1:])
        query, key, value = _flat_heads(query, 1), _flat_heads(key, 1), _flat_heads(value, 1)
        heads = value.shape[1]
        y = dot_attention(
            graph,
            query,
            key,
            value,
            edge_features=edge_rows,
            edge_scale=dropout_mask(self.attention_dropout, graph.num_edges, heads, dropout),
        )
        y = self._join(y.reshape(shape))
        if self.root is None:
            return y
        skip = base.linear(self.root, dst).astype(y.dtype)
        if self.gate is None:
            return y + skip
        gate = jax.nn.sigmoid(base.linear(self.gate, jnp.concatenate([y, skip, y - skip], -1)))
        return gate * skip + (1 - gate) * y


class GAT(GATOptions, AttentionStack):
    """Graph attention network: two `GATConv` by default, an ELU between, one head in the last.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GAT(4, 16, 3, heads=8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution: ClassVar[type[_GraphAttentionConv]] = GATConv

    def _activate(self, y: Array) -> Array:
        return jax.nn.elu(y)


class GATv2(GATv2Options, GAT):
    """Graph attention network of `GATv2Conv`, two by default, whose calls have its arguments.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GATv2(4, 16, 3, heads=8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = GATv2Conv


class GraphTransformer(TransformerOptions, AttentionStack):
    """Graph transformer: two `TransformerConv` by default, a ReLU between, one head in the last.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GraphTransformer(4, 16, 3, heads=8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = TransformerConv


def cast(param: nnx.Param[Array], x: Array | HostRows) -> Array:
    """Return a parameter in the dtype of x."""
    return param[...].astype(x.dtype)


def _flat_heads(x: Array, num_feature_axes: int = 0) -> Array:
    """Merge batch and heads of ``(rows, *batch, heads, *features)`` into one axis."""
    features = x.shape[x.ndim - num_feature_axes :]
    heads = math.prod(x.shape[1 : x.ndim - num_feature_axes])
    return x.reshape(x.shape[0], heads, *features)


def _flat_edge_rows(edge_rows: Array, node_rows: Array) -> Array:
    """Broadcast rows of edges to the batch of nodes' rows, and merge batch and heads."""
    return _flat_heads(jnp.broadcast_to(edge_rows, (edge_rows.shape[0], *node_rows.shape[1:])), 1)


def _mean_over_edges(graph: Graph, values: Array) -> Array:
    """Return the mean of edge values for each destination."""
    return segment_mean(values, graph.rows, graph.num_dst, indices_are_sorted=True)
