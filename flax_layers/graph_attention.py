"""Attention of nodes to their neighbours in Flax NNX: GAT, GATv2 and graph transformers."""

from __future__ import annotations

import math
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers._attention import (
    AttentionConvolution,
    AttentionOptions,
    AttentionStack,
    check_heads,
    dots,
    dropped,
)
from flax_layers._base import (
    Ends,
    LinearOptions,
    check_ends,
    check_features,
    check_positive,
    check_rates,
    common_dtype,
    dropout_arguments,
    end_sizes,
    finished,
    linear,
    linear_options,
    mapped_sources,
    of_destinations,
    product,
)
from flax_layers.graph import glorot_init
from jax_gnn import Graph, additive_attention, dot_attention, gatv2_attention, segment_mean
from jax_gnn.extend import check_flag, check_instance

Rngs = nnx.Rngs | nnx.RngStream | Array | None


class _GraphAttentionConv(AttentionConvolution):
    """What GAT and GATv2 have in common: two ends, features of edges, nodes that see themselves."""

    structure = Graph

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        edge_features: int | None = None,
        add_self_loops: bool = True,
        rngs: nnx.Rngs,
        **options: Unpack[AttentionOptions],
    ) -> None:
        src_features, dst_features = end_sizes(in_features)
        options.setdefault("kernel_init", glorot_init)
        super().__init__(src_features, out_features, rngs=rngs, **options)
        self.in_features: Any = in_features
        self.dst_features = dst_features
        self.edge_kernel: nnx.Param[Array] | None = nnx.data(None)
        if edge_features is not None:
            check_positive(edge_features=edge_features)
            self.edge_kernel = self._kernel(edge_features, options, rngs)
        self.edge_features = edge_features
        self.add_self_loops = check_flag("add_self_loops", add_self_loops)

    def _kernel(self, features: int, options: Any, rngs: nnx.Rngs) -> nnx.Param[Array]:
        """A further map to the features of all heads."""
        shape = features, self.kernel.shape[1]
        return nnx.Param(options["kernel_init"](rngs.params(), shape, self.param_dtype))

    def _ends(self, graph: Graph, x: Ends) -> tuple[Array, Array]:
        """The features of sources and of destinations, which are the same of one array."""
        check_instance("graph", graph, Graph)
        src, dst = check_ends(graph, x, *end_sizes(self.in_features))
        dtype = common_dtype(src, dst, self.kernel[...], dtype=self.dtype)
        return src.astype(dtype), dst.astype(dtype)

    def _param(self, param: nnx.Param[Array] | None, x: Any) -> Any:
        return None if param is None else param[...].astype(x.dtype)

    def _mapped(self, x: Any, kernel: Any, bias: Any) -> Array:
        y = self._product(x, self._param(kernel, x), bias=self._param(bias, x))
        return self._split(y)

    def _of_sources(self, graph: Graph, x: Any, bias: Any) -> Array:
        """What `kernel` makes of the sources."""
        width = self.kernel.shape[1]
        return mapped_sources(graph, x, width, lambda x: self._mapped(x, self.kernel, bias))

    def _finish(
        self,
        graph: Graph,
        attended: tuple[Array, Array],
        own_score: Array | None,
        value: Array,
        shape: tuple[int, ...],
        dropout: dict[str, Any],
    ) -> Array:
        """Adds what nodes see of themselves, joins the heads and adds the bias.

        A softmax over one entry more follows from that over the others and their logsumexp.
        """
        y, lse = attended
        if own_score is not None:
            share = jax.nn.sigmoid(own_score - lse)
            graph._note("own", lambda: share)
            own = self.attention_dropout(share, **dropout)
            y = (1 - share)[..., None].astype(y.dtype) * y
            y += own[..., None].astype(y.dtype) * of_destinations(graph, value)
        y = self._join(y.reshape(shape))
        return finished(y, self._param(self.bias, y))

    def _sees_itself(self, x: Ends) -> bool:
        """Whether nodes are among their own neighbours: of one array for sources and destinations.

        A graph's first sources are its destinations then.
        """
        return self.add_self_loops and not isinstance(x, tuple)


class GATConv(_GraphAttentionConv):
    """Graph attention: a softmax of additive scores over a node's neighbours, for each head.

    Veličković et al., "Graph attention networks", ICLR 2018, equations 1 to 6. A node's neighbours
    are the sources of its edges and, unless told otherwise, itself; an edge from a node to itself
    that the graph has counts beside. Features of edges add a score of theirs, before the LeakyReLU;
    that of a node's own is the mean of its edges', as in PyTorch Geometric.

    Attributes:
        kernel: ``(in_features, heads · width)``; of a pair, that of the sources.
        dst_kernel: that of destinations, where there is a pair, or None.
        src_attention: ``(heads, width)``, of the scores that sources add.
        dst_attention: ``(heads, width)``, of those of destinations.
        edge_kernel: ``(edge_features, heads · width)``, or None where edges have no features.
        edge_attention: ``(heads, width)``, or None likewise.
        bias: ``(out_features,)``, or None without a bias.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GATConv(4, 8, heads=2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        edge_features: int | None = None,
        add_self_loops: bool = True,
        rngs: nnx.Rngs,
        **options: Unpack[AttentionOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input; a pair for those of sources and of
                destinations, each with a kernel of their own.
            out_features: Features per node of the output, whatever the number of heads.
            edge_features: Features per edge; None where edges have none.
            add_self_loops: Whether nodes see themselves, where destinations are sources.
            rngs: Source of the keys, streams "params" and "dropout".
            **options: See `AttentionOptions`; kernel_init is Glorot's by default.

        Raises:
            ValueError: A size is not positive, heads do not divide the features that they share,
                a rate is outside [0, 1], or the slope is not finite.
        """
        super().__init__(
            *(in_features, out_features),
            edge_features=edge_features,
            add_self_loops=add_self_loops,
            rngs=rngs,
            **options,
        )
        options.setdefault("kernel_init", glorot_init)
        self.dst_kernel: nnx.Param[Array] | None = nnx.data(None)
        if isinstance(in_features, tuple):
            self.dst_kernel = self._kernel(self.dst_features, options, rngs)
        self.src_attention = self._attention(rngs)
        self.dst_attention = self._attention(rngs)
        self.edge_attention: nnx.Param[Array] | None = nnx.data(None)
        if edge_features is not None:
            self.edge_attention = self._attention(rngs)

    def __call__(
        self,
        graph: Graph,
        x: Ends,
        edge_attr: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: Rngs = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            edge_attr: Features of edges, ``(num_edges, *batch, edge_features)``, in the graph's
                order (`Graph.edge_values`), of a layer with `edge_features`.
            deterministic: Switches dropout off (True) or on (False); None leaves it to `train()`
                and `eval()`.
            rngs: Randomness of the dropout; None uses the stream given at construction.

        Returns:
            ``(num_dst, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the graph.
        """
        src, dst = self._ends(graph, x)
        attr = _edge_attr(graph, edge_attr, self.edge_features, src.dtype)
        dropout = dropout_arguments(deterministic, rngs)
        value = self._of_sources(graph, src, None)
        src_score = dots(value, self._param(self.src_attention, src))
        if self.dst_kernel is None and not isinstance(x, tuple):
            value_of_dst = of_destinations(graph, value)
            dst_score = dots(value_of_dst, self._param(self.dst_attention, src))
        else:  # of which only the scores are wanted
            kernel = self.kernel if self.dst_kernel is None else self.dst_kernel
            dst_score = self._scores(dst, kernel, self.dst_attention)
        bias = None
        if attr is not None:
            bias = self._scores(attr, self.edge_kernel, self.edge_attention)
            bias = _per_head(jnp.broadcast_to(bias, (bias.shape[0], *value.shape[1:-1])))
        shape = (graph.num_dst, *value.shape[1:])
        flat_value = _per_head(value, 1)
        of_dst, of_src = _per_head(dst_score), _per_head(src_score)
        attended = additive_attention(
            *(graph, of_dst, of_src, flat_value),
            negative_slope=self.negative_slope,
            edge_bias=bias,
            edge_scale=dropped(self.attention_dropout, graph.num_edges, of_src.shape[1], dropout),
            return_lse=True,
        )
        own_score = None
        if self._sees_itself(x):
            acc = attended[1].dtype
            own_score = of_dst.astype(acc) + of_destinations(graph, of_src).astype(acc)
            if bias is not None:
                own_score += _mean_of_edges(graph, bias.astype(acc))
            own_score = jax.nn.leaky_relu(own_score, self.negative_slope)
        return self._finish(graph, attended, own_score, flat_value, shape, dropout)

    def _scores(self, x: Any, kernel: Any, attention: Any) -> Array:
        """``⟨x kernel, attention⟩`` of each head, by a product as wide as there are heads."""
        kernel, vector = self._param(kernel, x), self._param(attention, x)
        return product(x, dots(self._split(kernel), vector), self.precision)


class GATv2Conv(_GraphAttentionConv):
    """Graph attention with dynamic scores, ``⟨a, LeakyReLU(W x_i + W' x_j)⟩``, for each head.

    Brody, Alon and Yahav, "How attentive are graph attention networks?", ICLR 2022, equation 7.
    Otherwise like `GATConv`. Features of edges are added inside the LeakyReLU, for which an array
    with a row for each edge is made.

    Attributes:
        kernel: W', ``(in_features, heads · width)``, that of the sources.
        src_bias: ``(heads · width,)``, or None without biases.
        dst_kernel: W, that of the destinations; None where both share one.
        dst_bias: ``(heads · width,)``, or None likewise.
        attention: a, ``(heads, width)``.
        edge_kernel: ``(edge_features, heads · width)``, or None where edges have no features.
        bias: ``(out_features,)``, or None without biases.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GATv2Conv(4, 8, heads=2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        share_weights: bool = False,
        edge_features: int | None = None,
        add_self_loops: bool = True,
        rngs: nnx.Rngs,
        **options: Unpack[AttentionOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input; a pair for those of sources and of
                destinations.
            out_features: Features per node of the output, whatever the number of heads.
            share_weights: Whether sources and destinations have one kernel and bias.
            edge_features: Features per edge; None where edges have none.
            add_self_loops: Whether nodes see themselves, where destinations are sources.
            rngs: Source of the keys, streams "params" and "dropout".
            **options: See `AttentionOptions`; kernel_init is Glorot's by default.

        Raises:
            ValueError: A size is not positive, heads do not divide the features that they share,
                a rate is outside [0, 1], the slope is not finite, or weights are shared by ends of
                different sizes.
        """
        src_features, dst_features = end_sizes(in_features)
        if check_flag("share_weights", share_weights) and src_features != dst_features:
            raise ValueError(
                "share_weights needs sources and destinations of one size, got in_features="
                f"{in_features}"
            )
        super().__init__(
            *(in_features, out_features),
            edge_features=edge_features,
            add_self_loops=add_self_loops,
            rngs=rngs,
            **options,
        )
        options.setdefault("kernel_init", glorot_init)
        self.share_weights = share_weights
        self.src_bias: nnx.Param[Array] | None = nnx.data(None)
        self.dst_kernel: nnx.Param[Array] | None = nnx.data(None)
        self.dst_bias: nnx.Param[Array] | None = nnx.data(None)
        if self.use_bias:
            self.src_bias = self._bias(options, rngs)
        if not share_weights:
            self.dst_kernel = self._kernel(self.dst_features, options, rngs)
            self.dst_bias = self._bias(options, rngs) if self.use_bias else None
        self.attention = self._attention(rngs)

    def _bias(self, options: Any, rngs: nnx.Rngs) -> nnx.Param[Array]:
        init = options.get("bias_init", nnx.initializers.zeros_init())
        return nnx.Param(init(rngs.params(), (self.kernel.shape[1],), self.param_dtype))

    def __call__(
        self,
        graph: Graph,
        x: Ends,
        edge_attr: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: Rngs = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            edge_attr: Features of edges, ``(num_edges, *batch, edge_features)``, in the graph's
                order (`Graph.edge_values`), of a layer with `edge_features`.
            deterministic: Switches dropout off (True) or on (False); None leaves it to `train()`
                and `eval()`.
            rngs: Randomness of the dropout; None uses the stream given at construction.

        Returns:
            ``(num_dst, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the graph.
        """
        src, dst = self._ends(graph, x)
        attr = _edge_attr(graph, edge_attr, self.edge_features, src.dtype)
        dropout = dropout_arguments(deterministic, rngs)
        right = self._of_sources(graph, src, self.src_bias)
        if not self.share_weights:
            left = self._mapped(dst, self.dst_kernel, self.dst_bias)
        elif isinstance(x, tuple):
            left = self._mapped(dst, self.kernel, self.src_bias)
        else:
            left = of_destinations(graph, right)
        of_edges = None
        if attr is not None:
            of_edges = self._mapped(attr, self.edge_kernel, None)
            of_edges = jnp.broadcast_to(of_edges, (of_edges.shape[0], *right.shape[1:]))
            of_edges = _per_head(of_edges, 1)
        shape = (graph.num_dst, *right.shape[1:])
        vector = jnp.broadcast_to(self._param(self.attention, src), right.shape[1:])
        vector = vector.reshape(-1, vector.shape[-1])
        left, right = _per_head(left, 1), _per_head(right, 1)
        attended = gatv2_attention(
            *(graph, left, right, vector),
            negative_slope=self.negative_slope,
            edge_features=of_edges,
            edge_scale=dropped(self.attention_dropout, graph.num_edges, right.shape[1], dropout),
            return_lse=True,
        )
        own_score = None
        if self._sees_itself(x):
            acc = attended[1].dtype
            z = left.astype(acc) + of_destinations(graph, right).astype(acc)
            z = z if of_edges is None else z + _mean_of_edges(graph, of_edges.astype(acc))
            own_score = dots(jax.nn.leaky_relu(z, self.negative_slope), vector.astype(acc))
        return self._finish(graph, attended, own_score, right, shape, dropout)


class TransformerConv(nnx.Module):
    """Graph transformer: dot products of queries and keys, and a skip connection with a gate.

    Shi et al., "Masked label prediction: unified message passing model for semi-supervised
    classification", IJCAI 2021, equations 3 to 5. Features of edges are added to keys and values.

    Attributes:
        query, key, value: `nnx.Linear` to ``heads · width`` features.
        edge: likewise of the edges' features, without a bias; None where edges have none.
        root: `nnx.Linear` of the destinations to `out_features`, the skip connection, or None.
        gate: `nnx.Linear` of ``3 · out_features`` to 1 without a bias, or None: how much of the
            skip connection counts in place of what is attended to.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> TransformerConv(4, 8, heads=2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = Graph

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        heads: int = 1,
        concat: bool = True,
        gated: bool = False,
        root_weight: bool = True,
        edge_features: int | None = None,
        attention_dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the maps.

        Args:
            in_features: Features per node of the input; a pair for those of sources and of
                destinations.
            out_features: Features per node of the output, whatever the number of heads.
            heads: Number of heads.
            concat: Whether the heads' features lie side by side, each of ``out_features / heads``
                features; else the result is their mean.
            gated: Whether a gate weighs the skip connection against the rest, equation 5.
            root_weight: Whether there is a skip connection.
            edge_features: Features per edge; None where edges have none.
            attention_dropout_rate: Share of the attention weights dropped in training, in [0, 1].
            rngs: Source of the keys, streams "params" and "dropout".
            **options: See `LinearOptions`, of all maps.

        Raises:
            ValueError: A size is not positive, heads do not divide the features that they share,
                a rate is outside [0, 1], or there is a gate without a skip connection.
        """
        src_features, dst_features = end_sizes(in_features)
        check_positive(out_features=out_features)
        check_heads(heads, out_features if check_flag("concat", concat) else None)
        check_rates(attention_dropout_rate=attention_dropout_rate)
        if check_flag("gated", gated) and not check_flag("root_weight", root_weight):
            raise ValueError("gated needs the skip connection, got root_weight=False")
        given: Any = linear_options(dict(options))
        without_bias: Any = {**given, "use_bias": False}
        width = out_features if concat else heads * out_features
        self.query = nnx.Linear(dst_features, width, rngs=rngs, **given)
        self.key = nnx.Linear(src_features, width, rngs=rngs, **given)
        self.value = nnx.Linear(src_features, width, rngs=rngs, **given)
        self.edge: nnx.Linear | None = nnx.data(None)
        if edge_features is not None:
            check_positive(edge_features=edge_features)
            self.edge = nnx.Linear(edge_features, width, rngs=rngs, **without_bias)
        self.root: nnx.Linear | None = nnx.data(None)
        if root_weight:
            self.root = nnx.Linear(dst_features, out_features, rngs=rngs, **given)
        self.gate: nnx.Linear | None = nnx.data(None)
        if gated:
            self.gate = nnx.Linear(3 * out_features, 1, rngs=rngs, **without_bias)
        self.attention_dropout = nnx.Dropout(attention_dropout_rate, rngs=rngs)
        self.in_features: Any = in_features
        self.out_features = out_features
        self.heads = heads
        self.concat = concat
        self.gated = gated
        self.root_weight = root_weight
        self.use_bias = given.get("use_bias", True)
        self.dtype = given.get("dtype")
        self.param_dtype = given.get("param_dtype", jnp.float32)
        self.precision = given.get("precision")
        self.edge_features = edge_features
        self.attention_dropout_rate = attention_dropout_rate

    def __call__(
        self,
        graph: Graph,
        x: Ends,
        edge_attr: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: Rngs = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            edge_attr: Features of edges, ``(num_edges, *batch, edge_features)``, in the graph's
                order (`Graph.edge_values`), of a layer with `edge_features`.
            deterministic: Switches dropout off (True) or on (False); None leaves it to `train()`
                and `eval()`.
            rngs: Randomness of the dropout; None uses the stream given at construction.

        Returns:
            ``(num_dst, *batch, out_features)`` in the maps' `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the graph.
        """
        check_instance("graph", graph, Graph)
        src, dst = check_ends(graph, x, *end_sizes(self.in_features))
        attr = _edge_attr(graph, edge_attr, self.edge_features, src.dtype)
        dropout = dropout_arguments(deterministic, rngs)
        query = self._split(linear(self.query, dst))
        key, value = mapped_sources(
            *(graph, src, 2 * self.query.out_features),
            lambda x: [self._split(linear(layer, x)) for layer in (self.key, self.value)],
        )
        of_edges = None
        if attr is not None and self.edge is not None:
            of_edges = self._split(linear(self.edge, attr))
            of_edges = jnp.broadcast_to(of_edges, (of_edges.shape[0], *value.shape[1:]))
            of_edges = _per_head(of_edges, 1)
        shape = (graph.num_dst, *value.shape[1:])
        query, key, value = (_per_head(each, 1) for each in (query, key, value))
        y = dot_attention(
            *(graph, query, key, value),
            edge_features=of_edges,
            edge_scale=dropped(self.attention_dropout, graph.num_edges, value.shape[1], dropout),
        ).reshape(shape)
        y = y.reshape(*y.shape[:-2], self.out_features) if self.concat else y.mean(axis=-2)
        if self.root is None:
            return y
        skipped = linear(self.root, dst).astype(y.dtype)
        if self.gate is None:
            return y + skipped
        gate = jax.nn.sigmoid(linear(self.gate, jnp.concatenate([y, skipped, y - skipped], -1)))
        return gate * skipped + (1 - gate) * y

    def _split(self, x: Array) -> Array:
        return x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)


# --- What they share -----------------------------------------------------------------------------


def _edge_attr(
    graph: Graph, attr: ArrayLike | None, features: int | None, dtype: Any
) -> Array | None:
    if attr is None and features is None:
        return None
    if attr is None or features is None:
        given = "none" if attr is None else "some"
        raise ValueError(f"edge_attr must be given if edge_features is, got {given} and {features}")
    return check_features(attr, graph.num_edges, features, "edge_attr", "num_edges").astype(dtype)


def _per_head(x: Array, features: int = 0) -> Array:
    """``(rows, *batch, heads, …)`` with batch and heads as one axis, before so many others."""
    last = x.shape[x.ndim - features :]
    return x.reshape(x.shape[0], math.prod(x.shape[1 : x.ndim - features]), *last)


def _mean_of_edges(graph: Graph, values: Array) -> Array:
    return segment_mean(values, graph.rows, graph.num_dst, indices_are_sorted=True)


# --- The models ----------------------------------------------------------------------------------


class GAT(AttentionStack):
    """Graph attention network: two `GATConv` (or more) with an ELU between; the last has one head.

    Its call takes the arguments of `GATConv`'s.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GAT(4, 16, 3, heads=8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = GATConv

    def _convolve_and_relu(self, *arguments: Any, **named: Any) -> Array:
        return jax.nn.elu(self._convolve(*arguments, **named))


class GATv2(GAT):
    """The same of `GATv2Conv`.

    Its call takes the arguments of `GATv2Conv`'s.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GATv2(4, 16, 3, heads=8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = GATv2Conv  # type: ignore[assignment]  # takes what GATConv does


class GraphTransformer(AttentionStack):
    """Graph transformer: two `TransformerConv` (or more) with a ReLU between, the last of one head.

    Its call takes the arguments of `TransformerConv`'s.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GraphTransformer(4, 16, 3, heads=8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = TransformerConv
