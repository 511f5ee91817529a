"""From nodes to graphs in Flax NNX: readouts of a batch, and the classifier of GIN's paper."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from flax_layers._base import (
    check_positive,
    check_rates,
    default_kernel_init,
    dropout_arguments,
    finished,
    kept_options,
    linear,
    linear_options,
)
from flax_layers.graph import GCN, GIN, SAGE
from flax_layers.graph_attention import GAT, GATv2
from flax_layers.norms import NodeBatchNorm, check_nodes
from jax_gnn import Batch, Graph, segment_max, segment_mean, segment_softmax, segment_sum, spmm
from jax_gnn.extend import (
    as_array,
    check_choice,
    check_instance,
    check_number,
    described,
    row_wise,
    take,
)

Readout = Literal["sum", "mean", "max"]
Layers = Literal["GCN", "SAGE", "GIN", "GAT", "GATv2"]


def readout(batch: Batch, x: ArrayLike, kind: Readout = "sum") -> Array:
    """Reduces the features of each graph's nodes.

    Args:
        batch: The graphs.
        x: Features of nodes, ``(num_nodes, *features)``.
        kind: "sum", "mean" or "max".

    Returns:
        ``(num_graphs, *features)``; zeros for graphs without nodes, and for padding.

    Raises:
        ValueError: The kind is unknown, or x has another number of rows.

    Example:
        >>> made = batch([Graph.from_edges([(0, 1)]), Graph.from_edges([(0, 0)])], num_nodes=5)
        >>> readout(made, jnp.arange(5.0), "max")
        Array([1., 2.], dtype=float32)
    """
    check_choice("kind", kind, get_args(Readout))
    check_instance("batch", batch, Batch)
    x, ids = as_array("x", x), batch.graph_ids
    if x.shape[:1] != ids.shape:
        raise ValueError(f"x must be (num_nodes={ids.shape[0]}, *features), got shape {x.shape}")
    if kind != "max":
        reduce = segment_sum if kind == "sum" else segment_mean
        return reduce(x, ids, batch.num_graphs, True)
    y = segment_max(x, ids, batch.num_graphs, True)
    return jnp.where(row_wise(batch.num_nodes > 0, y), y, jnp.zeros((), y.dtype))


class AttentionReadout(nnx.Module):
    """Sum over a graph's nodes under the softmax of their scores: ``Σ softmax(g(x)) t(x)``.

    Li et al., "Gated graph sequence neural networks", ICLR 2016, section 3.1, as PyG's
    `AttentionalAggregation`.

    Attributes:
        gate: The scores' map to one number, or one for each feature.
        transform: What is summed; None for the features themselves.

    Example:
        >>> made = batch([Graph.from_edges([(0, 1)])])
        >>> AttentionReadout(4, rngs=nnx.Rngs(0))(made, jnp.ones((2, 4)))
        Array([[1., 1., 1., 1.]], dtype=float32)
    """

    def __init__(
        self,
        in_features: int,
        *,
        gate: nnx.Module | None = None,
        transform: nnx.Module | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node.
            gate: A module of features; None for an `nnx.Linear` to one number.
            transform: A module of features.
            param_dtype: Of the parameters.
            rngs: Source of the keys for initialisation (stream "params").

        Raises:
            ValueError: A size is not positive.
        """
        check_positive(in_features=in_features)
        if gate is None:
            gate = nnx.Linear(in_features, 1, param_dtype=param_dtype, rngs=rngs)
        self.gate: Any = gate
        self.transform: Any = nnx.data(transform)
        self.in_features = in_features

    def __call__(self, batch: Batch, x: ArrayLike) -> Array:
        """Reads out.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, in_features)``.

        Returns:
            ``(num_graphs, features)``; zeros for graphs without nodes, and for padding.

        Raises:
            ValueError: A shape does not fit.
        """
        x = check_nodes(batch, x, self.in_features)
        scores = _applied(self.gate, x)
        alpha = segment_softmax(scores, batch.graph_ids, batch.num_graphs, True)
        y = x if self.transform is None else _applied(self.transform, x)
        alpha, y = dtypes.promote_dtype((alpha, y))
        return segment_sum(alpha * y, batch.graph_ids, batch.num_graphs, True)


def _applied(module: Any, x: Array) -> Array:
    return linear(module, x) if type(module) is nnx.Linear else module(x)


class Set2Set(nnx.Module):
    """Attention to a graph's nodes in several steps, by an LSTM that makes the queries.

    Vinyals et al., "Order matters: sequence to sequence for sets", ICLR 2016, section 4.2.

    Attributes:
        kernel: Of the LSTM's input, ``(2 in_features, 4 in_features)``: gates i, f, g, o.
        recurrent_kernel: Of its state, ``(in_features, 4 in_features)``.
        bias: ``(4 in_features,)``.

    Example:
        >>> made = batch([Graph.from_edges([(0, 1)])])
        >>> Set2Set(4, num_steps=3, rngs=nnx.Rngs(0))(made, jnp.ones((2, 4))).shape
        (1, 8)
    """

    def __init__(
        self,
        in_features: int,
        *,
        num_steps: int,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node.
            num_steps: How often the nodes are read.
            param_dtype: Of the parameters.
            rngs: Source of the keys for initialisation (stream "params").

        Raises:
            ValueError: A size is not positive.
        """
        check_positive(in_features=in_features, num_steps=num_steps)
        n = in_features
        self.kernel = nnx.Param(default_kernel_init(rngs.params(), (2 * n, 4 * n), param_dtype))
        orthogonal = nnx.initializers.orthogonal()
        self.recurrent_kernel = nnx.Param(orthogonal(rngs.params(), (n, 4 * n), param_dtype))
        self.bias = nnx.Param(jnp.zeros(4 * n, param_dtype))
        self.in_features = in_features
        self.num_steps = num_steps
        self.param_dtype = param_dtype

    def __call__(self, batch: Batch, x: ArrayLike) -> Array:
        """Reads out.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, in_features)``.

        Returns:
            ``(num_graphs, 2 in_features)``: the last query, and what it read.

        Raises:
            ValueError: A shape does not fit.
        """
        x = check_nodes(batch, x, self.in_features)
        parameters = self.kernel[...], self.recurrent_kernel[...], self.bias[...]
        x, kernel, recurrent, bias = dtypes.promote_dtype((x, *parameters))
        size, ids = batch.num_graphs, batch.graph_ids
        cell = query = read = jnp.zeros((size, self.in_features), x.dtype)
        for _ in range(self.num_steps):
            gates = jnp.concatenate([query, read], -1) @ kernel + query @ recurrent
            i, f, g, o = jnp.split(finished(gates, bias), 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            query = jax.nn.sigmoid(o) * jnp.tanh(cell)
            scores = jnp.sum(x * take(query, ids), -1, keepdims=True)
            alpha = segment_softmax(scores, ids, size, True)
            read = segment_sum(alpha * x, ids, size, True)
        return jnp.concatenate([query, read], -1)


class TopKReadout(nnx.Module):
    """The k nodes of each graph with the highest scores, by score, and gated by it.

    Gao and Ji, "Graph U-Nets", ICML 2019, equation 2: ``s = tanh(X p / |p|)``, and rows of
    ``s X``. Flattened, they are what a dense layer reads.

    Attributes:
        vector: p, ``(in_features,)``.

    Example:
        >>> made = batch([Graph.from_edges([(0, 1), (1, 2)])])
        >>> TopKReadout(4, k=2, rngs=nnx.Rngs(0))(made, jnp.ones((3, 4))).shape
        (1, 2, 4)
    """

    def __init__(
        self,
        in_features: int,
        *,
        k: int,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        """Initialises the vector.

        Args:
            in_features: Features per node.
            k: How many nodes of each graph.
            param_dtype: Of the vector.
            rngs: Source of the keys for initialisation (stream "params").

        Raises:
            ValueError: A size is not positive.
        """
        check_positive(in_features=in_features, k=k)
        bound = in_features**-0.5
        key = rngs.params()
        self.vector = nnx.Param(
            jax.random.uniform(key, (in_features,), param_dtype, -bound, bound)  # as PyG's
        )
        self.in_features = in_features
        self.k = k
        self.param_dtype = param_dtype

    def __call__(self, batch: Batch, x: ArrayLike) -> Array:
        """Reads out.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, in_features)``.

        Returns:
            ``(num_graphs, k, in_features)``; zeros where a graph has fewer nodes.

        Raises:
            ValueError: A shape does not fit.
        """
        x = check_nodes(batch, x, self.in_features)
        x, vector = dtypes.promote_dtype((x, self.vector[...]))
        scores = jnp.tanh(x @ vector / jnp.linalg.norm(vector))
        size, ids = batch.num_graphs, batch.graph_ids
        graphs = jnp.where(batch.node_mask, ids, size)
        order = jnp.lexsort((-scores, graphs))  # by graph, then score
        first = jnp.cumsum(batch.num_nodes) - batch.num_nodes
        rank = jnp.arange(len(ids), dtype=ids.dtype) - take(first, ids)
        places = jnp.where(batch.node_mask & (rank < self.k), ids * self.k + rank, size * self.k)
        rows = (scores[:, None] * x)[order]
        y = jnp.zeros((size * self.k, self.in_features), x.dtype)
        return y.at[places].set(rows, mode="drop").reshape(size, self.k, self.in_features)


def jumping_knowledge(layers: Sequence[Array], mode: Literal["concat", "max"] = "concat") -> Array:
    """Joins what several layers made of the same nodes, or graphs.

    Xu et al., "Representation learning on graphs with jumping knowledge networks", ICML 2018.

    Args:
        layers: Arrays ``(rows, *features)``.
        mode: "concat" of features, or the "max" of each.

    Returns:
        ``(rows, *features)``, with "concat" those of all layers, one after another.

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
    kept = slice(None, -1) if mode == "concat" else slice(None)
    for i, array in enumerate(arrays):
        if not array.ndim or array.shape[kept] != arrays[0].shape[kept]:
            raise ValueError(
                f"layers[{i}] must fit layers[0] of shape {arrays[0].shape}, got {array.shape}"
            )
    same = dtypes.promote_dtype(tuple(arrays))
    return jnp.concatenate(same, -1) if mode == "concat" else functools.reduce(jnp.maximum, same)


class GINBlock(nnx.Module):
    """GIN's layer as published: ``MLP((1 + eps) X + A X)`` with batch norms, and ReLU last.

    Xu et al., "How powerful are graph neural networks?", ICLR 2019, section 7. `GINConv` is the
    same without norms, for single graphs; with norms one is ``batch([graph])``.

    Attributes:
        first: The MLP's first map.
        second: Its second map.
        norms: The batch norms after either.
        learned_eps: The learnable eps, ``()``; None if it is fixed.

    Example:
        >>> made = batch([Graph.from_edges([(0, 1)])])
        >>> GINBlock(4, 8, rngs=nnx.Rngs(0))(made, jnp.ones((2, 4))).shape
        (2, 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        eps: float = 0.0,
        learn_eps: bool = False,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output, and inside the MLP.
            eps: How much more than 1 a node's own features count; the initial value if it is
                learnable.
            learn_eps: Whether eps is learnable.
            param_dtype: Of the parameters.
            rngs: Source of the keys for initialisation (stream "params").

        Raises:
            ValueError: A size is not positive.
        """
        check_positive(in_features=in_features, out_features=out_features)
        check_number("eps", eps)
        options: Any = {"param_dtype": param_dtype, "rngs": rngs}
        self.first = nnx.Linear(in_features, out_features, **options)
        self.second = nnx.Linear(out_features, out_features, **options)
        norms = [NodeBatchNorm(out_features, momentum=0.9, **options) for _ in range(2)]
        self.norms = nnx.List(norms)
        self.learned_eps: nnx.Param[Array] | None = nnx.data(None)
        if learn_eps:
            self.learned_eps = nnx.Param(jnp.asarray(eps, param_dtype))
        self.eps = eps
        self.learn_eps = learn_eps
        self.in_features = in_features
        self.out_features = out_features
        self.param_dtype = param_dtype

    def __call__(
        self, batch: Batch[Graph], x: ArrayLike, *, use_running_average: bool | None = None
    ) -> Array:
        """Applies the layer.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, in_features)``.
            use_running_average: Of the norms: whether running statistics count; None leaves it to
                the mode.

        Returns:
            ``(num_nodes, out_features)``.

        Raises:
            ValueError: A shape does not fit.
        """
        x = check_nodes(batch, x, self.in_features)
        return self._of_nodes(batch, x, use_running_average)

    def _of_nodes(self, batch: Batch[Graph], x: Array, use_running_average: bool | None) -> Array:
        """The same of x that is 0, or any finite constant, for padding."""
        eps: Any = self.eps if self.learned_eps is None else self.learned_eps[...]
        if self.learned_eps is not None:
            x, eps = dtypes.promote_dtype((x, eps))
        y: Array = spmm(batch.graph, x, own_scale=1 + eps)
        for layer, norm in zip((self.first, self.second), self.norms, strict=True):
            y = jax.nn.relu(norm(batch, linear(layer, y), use_running_average=use_running_average))
        return y


class GINClassifier(nnx.Module):
    """Classifies graphs by GIN as published: a readout of every layer, each with a map of its own.

    Xu et al., "How powerful are graph neural networks?", ICLR 2019, equation 4.2 and section 7:
    ``Σ_l dropout(W_l READOUT(H_l))`` over the input and all layers.

    Attributes:
        blocks: The layers, `GINBlock`.
        heads: The maps of the readouts: of the input, and of each layer.

    Example:
        >>> made = batch([Graph.from_edges([(0, 1)]), Graph.from_edges([(0, 0)])], num_graphs=4)
        >>> model = GINClassifier(4, 8, 2, num_layers=2, rngs=nnx.Rngs(0))
        >>> model(made, jnp.ones((3, 4)), deterministic=True).shape
        (4, 2)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 4,
        readout: Readout = "sum",
        dropout_rate: float = 0.5,
        eps: float = 0.0,
        learn_eps: bool = False,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            hidden_features: Features per node after each layer.
            out_features: Numbers per graph, such as of classes.
            num_layers: Number of layers; the paper counts the input, too, and has 5.
            readout: "sum", "mean" or "max".
            dropout_rate: Share of each layer's scores dropped in training, in [0, 1].
            eps: See `GINBlock`.
            learn_eps: Likewise.
            param_dtype: Of the parameters.
            rngs: Source of the keys, streams "params" and "dropout".

        Raises:
            ValueError: A size is not positive, the rate is outside [0, 1], or the readout is
                unknown.
        """
        check_positive(
            in_features=in_features,
            hidden_features=hidden_features,
            out_features=out_features,
            num_layers=num_layers,
        )
        check_rates(dropout_rate=dropout_rate)
        check_choice("readout", readout, get_args(Readout))
        widths = [in_features, *[hidden_features] * num_layers]
        options: Any = {"param_dtype": param_dtype, "rngs": rngs}
        of_blocks = options | {"eps": eps, "learn_eps": learn_eps}
        self.blocks = nnx.List([GINBlock(n, hidden_features, **of_blocks) for n in widths[:-1]])
        self.heads = nnx.List([nnx.Linear(width, out_features, **options) for width in widths])
        self.dropout = nnx.Dropout(dropout_rate, rngs=rngs)
        self.readout: Readout = readout
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.out_features = out_features
        self.num_layers = num_layers
        self.dropout_rate = dropout_rate
        self.eps = eps
        self.learn_eps = learn_eps
        self.param_dtype = param_dtype

    def __call__(
        self,
        batch: Batch[Graph],
        x: ArrayLike,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> Array:
        """Computes one row of outputs (logits) per graph.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, in_features)``.
            deterministic: Switches dropout off and lets running statistics count (True), or the
                reverse (False); None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None uses the stream given at construction.

        Returns:
            ``(num_graphs, out_features)``; of padding graphs the biases.

        Raises:
            ValueError: A shape does not fit.
        """
        x = check_nodes(batch, x, self.in_features)
        layers = [x]
        for block in self.blocks:
            layers.append(block._of_nodes(batch, layers[-1], deterministic))
        dropout = dropout_arguments(deterministic, rngs)
        scores = (
            self.dropout(linear(head, readout(batch, y, self.readout)), **dropout)
            for head, y in zip(self.heads, layers, strict=True)
        )
        return functools.reduce(operator.add, scores)


class GraphClassifier(nnx.Module):
    """Classifies graphs by convolutions of one kind, ReLU, a readout, dropout and a linear map.

    Attributes:
        stack: The convolutions, such as a `GCN`, whose result has the hidden features.
        output: The linear map.

    Example:
        >>> made = batch([Graph.from_edges([(0, 1)]), Graph.from_edges([(0, 0)])], num_graphs=4)
        >>> model = GraphClassifier(4, 8, 2, layers="GCN", rngs=nnx.Rngs(0))
        >>> model(made, jnp.ones((3, 4)), deterministic=True).shape
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
        readout: Readout = "mean",
        dropout_rate: float = 0.5,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        """Initialises the layers.

        Args:
            in_features: Features per node of the input.
            hidden_features: Features per node after each convolution.
            out_features: Numbers per graph, such as of classes.
            layers: The class of the stack.
            num_layers: Number of convolutions.
            readout: "sum", "mean" or "max".
            dropout_rate: Share of hidden activations dropped in training, in [0, 1].
            rngs: Source of the keys, streams "params" and "dropout".
            **options: Further arguments of the stack; `LinearOptions` are of the last map, too.

        Raises:
            ValueError: A size is not positive, the rate is outside [0, 1], or a name is unknown.
        """
        check_choice("layers", layers, get_args(Layers))
        check_choice("readout", readout, get_args(Readout))
        check_positive(out_features=out_features)
        kind: Any = {"GCN": GCN, "SAGE": SAGE, "GIN": GIN, "GAT": GAT, "GATv2": GATv2}[layers]
        widths = in_features, hidden_features, hidden_features
        shared: Any = {"num_layers": num_layers, "dropout_rate": dropout_rate, "rngs": rngs}
        self.stack = kind(*widths, **shared, **options)
        self.output = nnx.Linear(
            hidden_features, out_features, rngs=rngs, **linear_options(options)
        )
        self.dropout = nnx.Dropout(dropout_rate, rngs=rngs)
        self.layers: Layers = layers
        self.readout: Readout = readout
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.out_features = out_features
        self.num_layers = num_layers
        self.dropout_rate = dropout_rate
        self.options = kept_options(options)

    def __call__(
        self,
        batch: Batch[Graph],
        x: ArrayLike,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> Array:
        """Computes one row of outputs (logits) per graph.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, in_features)``.
            deterministic: Switches dropout off (True) or on (False); None leaves it to `train()`
                and `eval()`.
            rngs: Randomness of the dropout; None uses the stream given at construction.

        Returns:
            ``(num_graphs, out_features)``; of padding graphs the bias.

        Raises:
            ValueError: A shape does not fit.
        """
        x = check_nodes(batch, x, self.in_features)
        dropout = dropout_arguments(deterministic, rngs)
        y = self.stack(batch.graph, x, **dropout)
        y = readout(batch, jax.nn.relu(y), self.readout)
        return linear(self.output, self.dropout(y, **dropout))
