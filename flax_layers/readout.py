"""Readouts of a batch of graphs, which reduce nodes to graphs, and classifiers of graphs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory, ParameterLayer, check_positive
from flax_layers.edge_layers import GINE, PNA, GatedGCN
from flax_layers.gin import GIN, GINBlock
from flax_layers.graph import GCN, SAGE
from flax_layers.graph_attention import GAT, GATv2
from flax_layers.norms import GraphBatch, check_nodes
from jax_gnn import Batch, Graph, segment_max, segment_mean, segment_softmax, segment_sum
from jax_gnn.extend import (
    accumulator_dtype,
    as_array,
    check_choice,
    check_instance,
    described,
    row_wise,
    take,
)

Readout = Literal["sum", "mean", "max"]
Layers = Literal["GCN", "SAGE", "GIN", "GAT", "GATv2", "GINE", "GatedGCN", "PNA"]
NodeMap = Callable[[Array], Array]
"""Map of the features of each node, such as an `nnx.Linear`."""


def readout(batch: GraphBatch, x: ArrayLike, reduce: Readout = "sum") -> Array:
    """Reduce the features of each graph's nodes.

    Args:
        batch: The graphs.
        x: Features of nodes, ``(num_nodes, *features)``.
        reduce: "sum", "mean" or "max".

    Returns:
        ``(num_graphs, *features)``; zeros for graphs without nodes, and for padding.

    Raises:
        ValueError: The reduction is unknown, or x has another number of rows.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1)]), Graph.from_edges([(0, 0)])], num_nodes=5)
        >>> readout(graphs, jnp.arange(5.0), "max")
        Array([1., 2.], dtype=float32)
    """
    check_choice("reduce", reduce, get_args(Readout))
    check_instance("batch", batch, Batch)
    rows, ids = as_array("x", x), batch.graph_ids
    if rows.shape[:1] != ids.shape:
        raise ValueError(f"x must be (num_nodes={ids.shape[0]}, *features), got shape {rows.shape}")
    if reduce != "max":
        segment_reduce = segment_sum if reduce == "sum" else segment_mean
        return segment_reduce(rows, ids, batch.num_graphs, True)
    # The maximum over no nodes is the dtype's smallest value.
    y = segment_max(rows, ids, batch.num_graphs, True)
    return jnp.where(row_wise(batch.num_nodes > 0, y), y, jnp.zeros((), y.dtype))


class _Readout(ParameterLayer):
    """Base of the readouts with parameters.

    Attributes:
        in_features: Features per node.
    """

    in_features: int = field(kw_only=False)

    def __call__(self, batch: GraphBatch, x: ArrayLike) -> Array:
        """Read out features of nodes, ``(num_nodes, in_features)``: one result for each graph."""
        return self._read(batch, check_nodes(batch, x, self.in_features))

    def _read(self, batch: GraphBatch, x: Array) -> Array:
        """Return the result for checked features, with zeros for padding."""
        raise NotImplementedError


class AttentionReadout(_Readout):
    """Sum over a graph's nodes, weighted by the softmax of their scores: ``Σ softmax(g(x)) t(x)``.

    Li et al., "Gated graph sequence neural networks", ICLR 2016, section 3.1, as PyG's
    `AttentionalAggregation`.

    Attributes:
        gate: Map g of features to a score, or to one for each feature; None makes an `nnx.Linear`
            to one score.
        transform: Map t of features to summed values; None is the identity.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1)])])
        >>> AttentionReadout(4, rngs=nnx.Rngs(0))(graphs, jnp.ones((2, 4)))
        Array([[1., 1., 1., 1.]], dtype=float32)
    """

    gate: Any = None
    transform: Any = None

    def _make_parameters(self, factory: ParameterFactory) -> None:
        if self.gate is None:
            self.gate = nnx.data(factory.linear(self.in_features, 1))
        # None as data, too: a module may replace it.
        self.transform = nnx.data(self.transform)

    def _read(self, batch: GraphBatch, x: Array) -> Array:
        """Return ``(num_graphs, features)``; zeros for graphs without nodes, and for padding."""
        scores = _map_nodes(self.gate, x)
        alpha = segment_softmax(scores, batch.graph_ids, batch.num_graphs, True)
        y = x if self.transform is None else _map_nodes(self.transform, x)
        alpha, y = dtypes.promote_dtype((alpha, y))
        return segment_sum(alpha * y, batch.graph_ids, batch.num_graphs, True)


def _map_nodes(module: NodeMap, x: Array) -> Array:
    return base.linear(module, x) if type(module) is nnx.Linear else module(x)


class Set2Set(_Readout):
    """Attention to a graph's nodes in several steps, whose queries an LSTM computes.

    Vinyals et al., "Order matters: sequence to sequence for sets", ICLR 2016, section 4.2.

    Attributes:
        num_steps: Number of steps.
        kernel: Weights of the LSTM's input, ``(2 in_features, 4 in_features)``: gates i, f, g, o.
        recurrent_kernel: Weights of the LSTM's state, ``(in_features, 4 in_features)``.
        bias: Biases of the gates, ``(4 in_features,)``.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1)])])
        >>> Set2Set(4, num_steps=3, rngs=nnx.Rngs(0))(graphs, jnp.ones((2, 4))).shape
        (1, 8)
    """

    num_steps: int

    def _make_parameters(self, factory: ParameterFactory) -> None:
        n, dtype = self.in_features, self.param_dtype
        self.kernel = factory.kernel(2 * n, 4 * n)
        # JAX decomposes no half types.
        orthogonal = nnx.initializers.orthogonal()(
            factory.rngs.params(), (n, 4 * n), accumulator_dtype(dtype)
        )
        self.recurrent_kernel = nnx.Param(orthogonal.astype(dtype))
        self.bias = factory.full(0, 4 * n)

    def _read(self, batch: GraphBatch, x: Array) -> Array:
        """Return ``(num_graphs, 2 in_features)``: the final query, and the sum that it read."""
        parameters = self.kernel[...], self.recurrent_kernel[...], self.bias[...]
        x, kernel, recurrent, bias = dtypes.promote_dtype((x, *parameters))
        size, ids = batch.num_graphs, batch.graph_ids
        # One LSTM step makes a query, whose attention over the nodes is the next input.
        cell = query = context = jnp.zeros((size, self.in_features), x.dtype)
        for _ in range(self.num_steps):
            gates = jnp.concatenate([query, context], -1) @ kernel + query @ recurrent
            i, f, g, o = jnp.split(base.finished(gates, bias), 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            query = jax.nn.sigmoid(o) * jnp.tanh(cell)
            scores = jnp.sum(x * take(query, ids), -1, keepdims=True)
            alpha = segment_softmax(scores, ids, size, True)
            context = segment_sum(alpha * x, ids, size, True)
        return jnp.concatenate([query, context], -1)


class TopKReadout(_Readout):
    """The k nodes of each graph with the highest scores, by score, and gated by it.

    Gao and Ji, "Graph U-Nets", ICML 2019, equation 2: ``s = tanh(X p / |p|)``, and rows of
    ``s X``. Flattened, they are the input of a dense layer.

    Attributes:
        k: Number of nodes of each graph.
        vector: Projection p, ``(in_features,)``.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1), (1, 2)])])
        >>> TopKReadout(4, k=2, rngs=nnx.Rngs(0))(graphs, jnp.ones((3, 4))).shape
        (1, 2, 4)
    """

    k: int

    def _make_parameters(self, factory: ParameterFactory) -> None:
        bound, shape = self.in_features**-0.5, (self.in_features,)  # as in PyG
        key = factory.rngs.params()
        self.vector = nnx.Param(jax.random.uniform(key, shape, self.param_dtype, -bound, bound))

    def _read(self, batch: GraphBatch, x: Array) -> Array:
        """Return ``(num_graphs, k, in_features)``; padded with zeros if a graph has fewer nodes."""
        x, vector = dtypes.promote_dtype((x, self.vector[...]))
        scores = jnp.tanh(x @ vector / jnp.linalg.norm(vector))
        # Nodes sorted by graph, then by falling score: a node's rank is its place in its graph.
        size, ids = batch.num_graphs, batch.graph_ids
        graphs = jnp.where(batch.node_mask, ids, size)
        order = jnp.lexsort((-scores, graphs))
        first = jnp.cumsum(batch.num_nodes) - batch.num_nodes
        rank = jnp.arange(len(ids), dtype=ids.dtype) - take(first, ids)
        # Nodes beyond the k-th, and padding, are written out of range, hence dropped.
        places = jnp.where(batch.node_mask & (rank < self.k), ids * self.k + rank, size * self.k)
        rows = (scores[:, None] * x)[order]
        y = jnp.zeros((size * self.k, self.in_features), x.dtype)
        return y.at[places].set(rows, mode="drop").reshape(size, self.k, self.in_features)


def jumping_knowledge(layers: Sequence[Array], mode: Literal["concat", "max"] = "concat") -> Array:
    """Join the results of several layers for the same nodes, or graphs.

    Xu et al., "Representation learning on graphs with jumping knowledge networks", ICML 2018.

    Args:
        layers: Results, ``(rows, *features)`` each.
        mode: "concat" of the features, or "max" of each feature.

    Returns:
        ``(rows, *features)``; with "concat" the features of all layers, concatenated.

    Raises:
        TypeError: `layers` is no list or tuple.
        ValueError: There are no layers, shapes do not fit, or the mode is unknown.

    Example:
        >>> jumping_knowledge([jnp.zeros((3, 4)), jnp.ones((3, 4))]).shape
        (3, 8)
    """
    check_choice("mode", mode, ("concat", "max"))
    if not isinstance(layers, list | tuple):
        raise TypeError(f"layers must be a list of arrays, got {described(layers)}")
    if not layers:
        raise ValueError("layers must be one at least, got none")
    arrays = [as_array(f"layers[{i}]", layer) for i, layer in enumerate(layers)]
    common = slice(None, -1) if mode == "concat" else slice(None)
    for i, array in enumerate(arrays):
        if not array.ndim or array.shape[common] != arrays[0].shape[common]:
            raise ValueError(
                f"layers[{i}] must fit layers[0] of shape {arrays[0].shape}, got {array.shape}"
            )
    # Layers may compute in different dtypes.
    promoted = dtypes.promote_dtype(tuple(arrays))
    if mode == "concat":
        return jnp.concatenate(promoted, -1)
    return functools.reduce(jnp.maximum, promoted)


class _Classifier(ParameterLayer):
    """Base of the classifiers of graphs.

    Attributes:
        in_features: Features per node of the input.
        hidden_features: Features per node after each layer.
        out_features: Numbers per graph, such as of classes.
    """

    in_features: int = field(kw_only=False)
    hidden_features: int = field(kw_only=False)
    out_features: int = field(kw_only=False)

    def __call__(
        self,
        batch: Batch[Graph],
        x: ArrayLike,
        edge_features: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Compute one row of outputs (logits) per graph.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, in_features)``.
            edge_features: Features of edges, ``(num_edges, edge_in_features)``, in the graph's
                order, for layers that take some.
            deterministic: Whether nothing is dropped, and norms use running statistics; None leaves
                it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.

        Returns:
            ``(num_graphs, out_features)``; the biases for padding graphs.
        """
        edges = () if edge_features is None else (edge_features,)
        rows = check_nodes(batch, x, self.in_features)
        return self._classify(batch, rows, *edges, **base.dropout_arguments(deterministic, rngs))

    def _classify(self, batch: Batch[Graph], x: Array, *edges: ArrayLike, **dropout: Any) -> Array:
        """Return the logits for checked features; `dropout` are `dropout_arguments`."""
        raise NotImplementedError


class GINClassifier(_Classifier):
    """Classifier of graphs by GIN as published: a readout of every layer, with a map of its own.

    Xu et al., "How powerful are graph neural networks?", ICLR 2019, equation 4.2 and section 7:
    ``Σ_l dropout(W_l READOUT(H_l))`` over the input and all layers.

    Attributes:
        num_layers: Number of layers; the paper counts the input, too, and has 5.
        graph_reduce: Reduction over nodes: "sum", "mean" or "max".
        dropout_rate: Share of each layer's scores dropped in training, in [0, 1].
        eps: Weight of a node's own features, less 1, see `GINBlock`.
        learn_eps: Whether eps is learnable.
        blocks: The layers, `GINBlock`.
        heads: Linear maps of the readouts of the input, and of each layer.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1)]), Graph.from_edges([(0, 0)])], num_graphs=4)
        >>> model = GINClassifier(4, 8, 2, num_layers=2, rngs=nnx.Rngs(0))
        >>> model(graphs, jnp.ones((3, 4)), deterministic=True).shape
        (4, 2)
    """

    num_layers: int = 4
    graph_reduce: Readout = "sum"
    dropout_rate: float = 0.5
    eps: float = 0.0
    learn_eps: bool = False

    def _make_parameters(self, factory: ParameterFactory) -> None:
        widths = [self.in_features, *[self.hidden_features] * self.num_layers]
        options: Any = {"eps": self.eps, "learn_eps": self.learn_eps}
        options |= {"param_dtype": self.param_dtype, "rngs": factory.rngs}
        blocks = [GINBlock(width, self.hidden_features, **options) for width in widths[:-1]]
        self.blocks = nnx.List(blocks)
        self.heads = nnx.List([factory.linear(width, self.out_features) for width in widths])
        self.dropout = nnx.Dropout(self.dropout_rate, rngs=factory.rngs)

    def _classify(self, batch: Batch[Graph], x: Array, *edges: ArrayLike, **dropout: Any) -> Array:
        # Features after each layer, of which each has a readout and a head.
        layers = [x]
        for block in self.blocks:
            layers.append(block._apply(batch, layers[-1], dropout.get("deterministic")))
        scores = (
            self.dropout(base.linear(head, readout(batch, y, self.graph_reduce)), **dropout)
            for head, y in zip(self.heads, layers, strict=True)
        )
        return functools.reduce(operator.add, scores)


class GraphClassifier(_Classifier):
    """Classifier of graphs: convolutions of one kind, ReLU, a readout, dropout and a linear map.

    Attributes:
        stack: The convolutions, such as a `GCN`, whose result has the hidden features.
        output: The linear map.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1)]), Graph.from_edges([(0, 0)])], num_graphs=4)
        >>> model = GraphClassifier(4, 8, 2, layers="GCN", rngs=nnx.Rngs(0))
        >>> model(graphs, jnp.ones((3, 4)), deterministic=True).shape
        (4, 2)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        layers: Layers,
        num_layers: int = 3,
        graph_reduce: Readout = "mean",
        dropout_rate: float = 0.5,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        """Make the layers.

        Args:
            in_features: Features per node of the input.
            hidden_features: Features per node after each convolution.
            out_features: Numbers per graph, such as of classes.
            layers: Name of the stack's class.
            num_layers: Number of convolutions.
            graph_reduce: Reduction over nodes: "sum", "mean" or "max".
            dropout_rate: Share of hidden activations dropped in training, in [0, 1].
            rngs: Source of the keys, streams "params" and "dropout".
            **options: Further arguments of the stack; `LinearOptions` hold for the final map, too.

        Raises:
            ValueError: A size is not positive, the rate is outside [0, 1], or a name is unknown.
        """
        check_choice("layers", layers, get_args(Layers))
        check_choice("graph_reduce", graph_reduce, get_args(Readout))
        check_positive(out_features=out_features)
        kinds = GCN, SAGE, GIN, GAT, GATv2, GINE, GatedGCN, PNA
        kind: Any = next(kind for kind in kinds if kind.__name__ == layers)
        widths = in_features, hidden_features, hidden_features
        shared: Any = {"num_layers": num_layers, "dropout_rate": dropout_rate, "rngs": rngs}
        self.stack = kind(*widths, **shared, **options)
        linear = LinearOptions.__annotations__.keys() & options.keys()
        self.output = nnx.Linear(
            hidden_features, out_features, rngs=rngs, **{name: options[name] for name in linear}
        )
        self.dropout = nnx.Dropout(dropout_rate, rngs=rngs)
        self.layers: Layers = layers
        self.graph_reduce: Readout = graph_reduce
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.out_features = out_features
        self.num_layers = num_layers
        self.dropout_rate = dropout_rate
        # Static attributes are hashable; these describe the module, without initializers.
        kept = {k: v for k, v in options.items() if not k.endswith("_init")}
        kept |= {k: tuple(v) for k, v in kept.items() if isinstance(v, list)}
        self.options = tuple(sorted(kept.items()))

    def _classify(self, batch: Batch[Graph], x: Array, *edges: ArrayLike, **dropout: Any) -> Array:
        # The stack's last convolution has no activation, so the ReLU is applied here.
        mask = {"node_mask": batch.node_mask} if isinstance(self.stack, GIN) else {}
        y = self.stack(batch.graph, x, *edges, **mask, **dropout)
        y = readout(batch, jax.nn.relu(y), self.graph_reduce)
        return base.linear(self.output, self.dropout(y, **dropout))
