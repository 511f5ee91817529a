"""The baseline: the same models as one writes them in plain JAX, without this library's operations.

Linear maps and aggregations come in the same order as in the layers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn import Graph, Hypergraph, RelationalGraph


class Dropout:
    """The dropouts of one pass, which draw what those of the layers draw."""

    def __init__(self, key: Array | None) -> None:
        self._key = key
        self._count = 0

    def __call__(self, x: Array, rate: float) -> Array:
        """Drops a share; nothing without a key."""
        if self._key is None or rate == 0:
            return x
        key = jax.random.fold_in(self._key, self._count)
        self._count += 1
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def _promotes(model: Callable[..., Array]) -> Callable[..., Array]:
    """Lets a model add vectors to matrices, as one writes plain JAX, also where that is refused."""

    @functools.wraps(model)
    def promoting(*arguments: Any) -> Array:
        with jax.numpy_rank_promotion("allow"):
            return model(*arguments)

    return promoting


# (parameters of the convolution, structure, x, settings, dropout) -> result
PlainConvolution = Callable[[Any, Any, Array, Any, Dropout], Array]


class CooHypergraph(NamedTuple):
    """Incidences as id pairs in both orders, so that both segment sums see sorted ids.

    Attributes:
        member: Node of each incidence in hyperedge order, ``(num_incidences,)``.
        hyperedge: Its hyperedge, ascending.
        node: Node of each incidence in node order, ascending.
        incident: Its hyperedge.
        node_degree: ``(num_nodes,)`` float32.
        hyperedge_degree: ``(num_hyperedges,)`` float32.
    """

    member: Array
    hyperedge: Array
    node: Array
    incident: Array
    node_degree: Array
    hyperedge_degree: Array

    @classmethod
    def from_hypergraph(cls, hypergraph: Hypergraph) -> CooHypergraph:
        """Converts an unpadded, undirected hypergraph."""
        graph = hypergraph.graph
        return cls(
            member=graph.cols,
            hyperedge=graph.rows,
            node=graph.t_rows,
            incident=graph.t_cols,
            node_degree=jnp.asarray(hypergraph.node_degrees(), jnp.float32),
            hyperedge_degree=jnp.asarray(hypergraph.hyperedge_degrees(), jnp.float32),
        )

    def to_hyperedges(self, x: Array) -> Array:
        """Sums the rows of each hyperedge's nodes."""
        return _sorted_sum(x[self.member], self.hyperedge, self.hyperedge_degree.shape[0])

    def to_nodes(self, x: Array) -> Array:
        """Sums the rows of each node's hyperedges."""
        return _sorted_sum(x[self.incident], self.node, self.node_degree.shape[0])

    def mean_to_hyperedges(self, x: Array) -> Array:
        """Their mean."""
        return self.to_hyperedges(x) * _inverse(self.hyperedge_degree)[:, None]

    def attend(self, scores: Array, values: Array, to: str, dropout: Any = None) -> Array:
        """Sums values ``(senders, heads, width)`` under the softmax of scores for each receiver."""
        senders, receivers, size = self.hyperedge, self.member, self.node_degree.shape[0]
        if to == "hyperedge":
            senders, receivers = receivers, senders
            size = self.hyperedge_degree.shape[0]
        weight = _softmax(scores[senders], receivers, size)
        weight = weight if dropout is None else dropout(weight)
        return jax.ops.segment_sum(values[senders] * weight[..., None], receivers, size)


class CooGraph(NamedTuple):
    """Edges as id pairs, sorted by destination.

    Attributes:
        src: Source of each edge, ``(num_edges,)``.
        dst: Its destination, ascending.
        degree: In-degrees, ``(num_nodes,)`` float32.
        weight: Its weight, ``(num_edges, 1)`` float32, where edges have weights.
    """

    src: Array
    dst: Array
    degree: Array
    weight: Array | None = None

    @classmethod
    def from_graph(cls, graph: Graph, weight: Array | None = None) -> CooGraph:
        """Converts an unpadded graph, and weights in its order."""
        weight = None if weight is None else weight[:, None]
        return cls(graph.cols, graph.rows, graph.in_degrees().astype(jnp.float32), weight)

    def messages(self, x: Array) -> Array:
        """The rows of the edges' sources, by their weights."""
        return x[self.src] if self.weight is None else self.weight * x[self.src]

    def sum(self, x: Array) -> Array:
        """Sums the rows of each node's sources."""
        return _sorted_sum(self.messages(x), self.dst, self.degree.shape[0])

    def max(self, x: Array) -> Array:
        """Their maximum, 0 where there are none."""
        num_nodes = self.degree.shape[0]
        y = jax.ops.segment_max(self.messages(x), self.dst, num_nodes, indices_are_sorted=True)
        return jnp.where(self.degree[:, None] > 0, y, 0)

    def attend(
        self, scores: Array, values: Array, own: Array | None, dropout: Callable[[Array], Array]
    ) -> Array:
        """Sums values ``(num_nodes, heads, width)`` under the softmax of the edges' scores.

        With ``own``, the scores that nodes have of themselves, their own values count, too.
        """
        size = self.degree.shape[0]
        top = jax.ops.segment_max(scores, self.dst, size, indices_are_sorted=True)
        top = top if own is None else jnp.maximum(top, own)
        top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
        powers = jnp.exp(scores - top[self.dst])
        sums = _sorted_sum(powers, self.dst, size)
        own = None if own is None else jnp.exp(own - top)
        sums = sums if own is None else sums + own
        weight = dropout(powers / sums[self.dst])
        y = _sorted_sum(values[self.src] * weight[..., None], self.dst, size)
        return y if own is None else y + dropout(own / sums)[..., None] * values


class CooTriples(NamedTuple):
    """Edges with relations as ids, sorted by destination, those of nodes to themselves among them.

    Attributes:
        src: Source of each edge, ``(num_edges,)``.
        rel: Its relation.
        dst: Its destination, ascending.
        share: 1 / the number of edges into its destination by its relation, float32.
        degree: In-degrees, ``(num_nodes,)`` float32.
    """

    src: Array
    rel: Array
    dst: Array
    share: Array
    degree: Array

    @classmethod
    def from_graph(cls, graph: RelationalGraph) -> CooTriples:
        """Converts an unpadded graph."""
        nodes = graph.nodes
        degree = nodes.in_degrees().astype(jnp.float32)
        return cls(nodes.cols, graph.edge_types, nodes.rows, graph.norm(dtype=jnp.float32), degree)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CooTyped:
    """Edges with relations, of nodes that have types.

    Attributes:
        edges: The edges.
        sizes: How many nodes each type has.
    """

    edges: CooTriples
    sizes: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def from_graph(cls, graph: RelationalGraph) -> CooTyped:
        """Converts an unpadded graph."""
        return cls(CooTriples.from_graph(graph), graph.node_type_sizes or (graph.num_nodes,))


def _sorted_sum(data: Array, segment_ids: Array, num_segments: int) -> Array:
    return jax.ops.segment_sum(data, segment_ids, num_segments, indices_are_sorted=True)


def _softmax(scores: Array, segment_ids: Array, num_segments: int) -> Array:
    top = jax.lax.stop_gradient(jax.ops.segment_max(scores, segment_ids, num_segments))
    exponentials = jnp.exp(scores - top[segment_ids])
    return exponentials / jax.ops.segment_sum(exponentials, segment_ids, num_segments)[segment_ids]


def _inverse(degree: Array) -> Array:
    return jnp.where(degree > 0, 1 / jnp.where(degree > 0, degree, 1), 0)


def _aggregate_narrow(aggregate: Callable[[Array], Array], x: Array, kernel: Array) -> Array:
    return aggregate(x) @ kernel if kernel.shape[0] < kernel.shape[1] else aggregate(x @ kernel)


def hgnn_convolution(
    params: Any, graph: CooHypergraph, x: Array, config: Any, dropout: Dropout
) -> Array:
    """`flax_layers.HGNNConv` and `HGNNPConv`."""
    x = x @ params["kernel"] + params["bias"]
    weight = params.get("hyperedge_weight")
    degree = graph.node_degree
    hyperedge_scale = _inverse(graph.hyperedge_degree)
    if weight is not None:
        degree = graph.to_nodes(weight)
        hyperedge_scale = hyperedge_scale * weight
    node_scale = _inverse(degree)
    if getattr(config, "normalization", "row") == "symmetric":
        node_scale = jnp.sqrt(node_scale)
        x = x * node_scale[:, None]
    message = graph.to_hyperedges(x) * hyperedge_scale[:, None]
    return graph.to_nodes(message) * node_scale[:, None]


def gcn_convolution(params: Any, graph: CooGraph, x: Array, config: Any, dropout: Dropout) -> Array:
    """`flax_layers.GCNConv`."""
    degree = graph.degree[:, None]
    if graph.weight is not None:
        degree = graph.sum(jnp.ones_like(degree))
    scale = jax.lax.rsqrt(degree + 1)

    def aggregate(x: Array) -> Array:
        return scale * (graph.sum(scale * x) + scale * x)

    return _aggregate_narrow(aggregate, x, params["kernel"]) + params["bias"]


def gin_convolution(params: Any, graph: CooGraph, x: Array, config: Any, dropout: Dropout) -> Array:
    """`flax_layers.GINConv`."""
    own = 1 + params.get("learned_eps", 0)
    y = _aggregate_narrow(lambda x: own * x + graph.sum(x), x, params["kernel"])
    return jax.nn.relu(y + params["bias"]) @ params["output"]["kernel"] + params["output"]["bias"]


def sage_convolution(
    params: Any, graph: CooGraph, x: Array, config: Any, dropout: Dropout
) -> Array:
    """`flax_layers.SAGEConv`."""
    messages = x
    if config.project:
        projection = params["projection"]
        messages = jax.nn.relu(x @ projection["kernel"] + projection["bias"])
    if config.aggregation == "max":
        y = graph.max(messages) @ params["kernel"]
    else:
        scale = _inverse(graph.degree)[:, None] if config.aggregation == "mean" else 1
        y = _aggregate_narrow(lambda x: graph.sum(x) * scale, messages, params["kernel"])
    return y + x @ params["root"]["kernel"] + params["bias"]


def gat_convolution(params: Any, graph: CooGraph, x: Array, config: Any, dropout: Dropout) -> Array:
    """`flax_layers.GATConv`."""
    y = (x @ params["kernel"]).reshape(-1, *params["src_attention"].shape)
    of_src = (y * params["src_attention"]).sum(-1)
    of_dst = (y * params["dst_attention"]).sum(-1)
    scores = jax.nn.leaky_relu(of_dst[graph.dst] + of_src[graph.src], 0.2)
    own = jax.nn.leaky_relu(of_dst + of_src, 0.2)
    y = graph.attend(scores, y, own, lambda w: dropout(w, config.attention_dropout_rate))
    return y.reshape(len(y), -1) + params["bias"]


def gatv2_convolution(
    params: Any, graph: CooGraph, x: Array, config: Any, dropout: Dropout
) -> Array:
    """`flax_layers.GATv2Conv`."""
    attention = params["attention"]
    right = (x @ params["kernel"] + params["src_bias"]).reshape(-1, *attention.shape)
    left = right
    if "dst_kernel" in params:
        left = (x @ params["dst_kernel"] + params["dst_bias"]).reshape(-1, *attention.shape)

    def score(z: Array) -> Array:
        return (attention * jax.nn.leaky_relu(z, 0.2)).sum(-1)

    scores, own = score(left[graph.dst] + right[graph.src]), score(left + right)
    y = graph.attend(scores, right, own, lambda w: dropout(w, config.attention_dropout_rate))
    return y.reshape(len(y), -1) + params["bias"]


def transformer_convolution(
    params: Any, graph: CooGraph, x: Array, config: Any, dropout: Dropout
) -> Array:
    """`flax_layers.TransformerConv`."""
    query, key, value = (
        _linear(params[name], x).reshape(len(x), config.heads, -1)
        for name in ("query", "key", "value")
    )
    scores = (query[graph.dst] * key[graph.src]).sum(-1) / math.sqrt(key.shape[-1])
    y = graph.attend(scores, value, None, lambda w: dropout(w, config.attention_dropout_rate))
    y, skipped = y.reshape(len(y), -1), _linear(params["root"], x)
    if "gate" not in params:
        return y + skipped
    gate = jnp.concatenate([y, skipped, y - skipped], axis=1) @ params["gate"]["kernel"]
    gate = jax.nn.sigmoid(gate)
    return gate * skipped + (1 - gate) * y


def rgcn_convolution(
    params: Any, graph: CooTriples, x: Array | None, config: Any, dropout: Dropout
) -> Array:
    """`flax_layers.RGCNConv` with an own weight, which is the last relation's."""
    kernel = params["kernel"]
    if "coefficients" in params:
        mixed = jnp.einsum("rb,bkm->rkm", params["coefficients"], kernel[:-1])
        kernel = jnp.concatenate([mixed, kernel[-1:]])
    products = kernel if x is None else jnp.einsum("nk,rkm->rnm", x, kernel)
    messages = products[graph.rel, graph.src]
    if config.norm == "mean":
        messages = messages * graph.share[:, None]
    return _sorted_sum(messages, graph.dst, graph.degree.shape[0]) + params["bias"]


def rgat_convolution(
    params: Any, graph: CooTriples, x: Array, config: Any, dropout: Dropout
) -> Array:
    """`flax_layers.RGATConv`."""
    kernel = params["kernel"]
    if "coefficients" in params:
        kernel = jnp.einsum("rb,bkm->rkm", params["coefficients"], kernel)
    heads = params["src_attention"].shape[1]
    y = jnp.einsum("nk,rkm->rnm", x, kernel).reshape(*kernel.shape[:1], len(x), heads, -1)
    of_src, of_dst = (
        jnp.einsum("rnhd,rhd->rnh", y, params[f"{end}_attention"]) for end in ("src", "dst")
    )
    of_src, of_dst = of_src[graph.rel, graph.src], of_dst[graph.rel, graph.dst]
    if config.attention == "multiplicative":
        scores = of_dst * of_src
    else:
        scores = jax.nn.leaky_relu(of_dst + of_src, 0.2)
    size, count = len(x), len(graph.share)
    rows, num_rows = graph.dst, size
    if config.softmax == "within":
        rows, num_rows = graph.dst * len(kernel) + graph.rel, size * len(kernel)
    weight = dropout(_softmax(scores, rows, num_rows), config.attention_dropout_rate)
    messages = y[graph.rel, graph.src] * weight[..., None]
    return _sorted_sum(messages.reshape(count, -1), graph.dst, size) + params["bias"]


@_promotes
def hgt(
    config: Any, params: dict[str, Any], graph: CooTyped, x: Array, dropout_key: Array | None
) -> Array:
    """`flax_layers.HGT`; arguments and result as of `stack`."""
    dropout = Dropout(dropout_key)
    starts = np.cumsum(graph.sizes)[:-1]
    types = np.repeat(np.arange(len(graph.sizes)), graph.sizes)
    y = dropout(x, config.input_dropout_rate)
    for number in range(1, config.num_layers + 1):
        p = params[f"conv{number}"]

        def mapped(name: str, x: Array, p: Any = p) -> Array:
            """By type, one after another."""
            rows = jnp.split(x, starts)
            kernel, bias = p[name], p[f"{name}_bias"]
            return jnp.concatenate([r @ k + b for r, k, b in zip(rows, kernel, bias, strict=True)])

        query, key, value = (
            mapped(name, y).reshape(len(y), config.heads, -1) for name in ("query", "key", "value")
        )
        edges = graph.edges
        keys = jnp.einsum("nhd,rhde->rnhe", key, p["attention"])[edges.rel, edges.src]
        scores = (query[edges.dst] * keys).sum(-1) * p["prior"][edges.rel]
        weight = _softmax(scores / math.sqrt(query.shape[-1]), edges.dst, len(y))
        messages = jnp.einsum("nhd,rhde->rnhe", value, p["message"])[edges.rel, edges.src]
        z = _sorted_sum(messages * weight[..., None], edges.dst, len(y))
        z = mapped("output", jax.nn.gelu(z.reshape(len(y), -1), approximate=False))
        if z.shape == y.shape:
            gate = jax.nn.sigmoid(p["skip"])[types, None]
            z = gate * z + (1 - gate) * y
        y = dropout(z, config.dropout_rate)
    return _linear(params["output"], y)


def unisage_convolution(
    params: Any, graph: CooHypergraph, x: Array, config: Any, dropout: Dropout
) -> Array:
    """`flax_layers.UniGINConv` and `UniSAGEConv`, of means over hyperedges."""
    own = 1 + params.get("learned_eps", 0)
    node_scale = 1 if config.node_reduce == "sum" else _inverse(graph.node_degree)[:, None]

    def aggregate(x: Array) -> Array:
        return own * x + graph.to_nodes(graph.mean_to_hyperedges(x)) * node_scale

    y = _aggregate_narrow(aggregate, x, params["kernel"]) + params["bias"]
    return _unit_rows(y) if config.normalize else y


def unigat_convolution(
    params: Any, graph: CooHypergraph, x: Array, config: Any, dropout: Dropout
) -> Array:
    """`flax_layers.UniGATConv`."""
    attention = params["attention"]
    h = _aggregate_narrow(graph.mean_to_hyperedges, x, params["kernel"])
    h = h.reshape(-1, *attention.shape)
    scores = jax.nn.leaky_relu((h * attention).sum(-1), 0.2)
    y = graph.attend(scores, h, "node", lambda w: dropout(w, config.attention_dropout_rate))
    y = y.reshape(len(y), -1)
    return (_unit_rows(y) if config.normalize else y) + params["bias"]


def hypergraph_attention_convolution(
    params: Any, graph: CooHypergraph, x: Array, config: Any, dropout: Dropout
) -> Array:
    """`flax_layers.HypergraphAttentionConv`."""
    num_nodes, num_hyperedges = graph.node_degree.shape[0], graph.hyperedge_degree.shape[0]
    of_nodes, of_hyperedges = params["node_attention"], params["hyperedge_attention"]
    y = (x @ params["kernel"]).reshape(-1, *of_nodes.shape)
    node_scores = (y * of_nodes).sum(-1)
    hyperedge_scores = graph.mean_to_hyperedges((y * of_hyperedges).sum(-1))
    scores = jax.nn.leaky_relu(hyperedge_scores[graph.hyperedge] + node_scores[graph.member], 0.2)
    weight = dropout(_softmax(scores, graph.member, num_nodes), config.attention_dropout_rate)
    hyperedge_degree, node_degree = graph.hyperedge_degree[:, None], graph.node_degree[:, None]
    if config.degrees == "attention":
        hyperedge_degree = _sorted_sum(weight, graph.hyperedge, num_hyperedges)
        node_degree = jax.ops.segment_sum(weight, graph.member, num_nodes)
    weight = weight[..., None]
    message = _sorted_sum(y[graph.member] * weight, graph.hyperedge, num_hyperedges)
    message = message * _inverse(hyperedge_degree)[..., None]
    y = jax.ops.segment_sum(message[graph.hyperedge] * weight, graph.member, num_nodes)
    return (y * _inverse(node_degree)[..., None]).reshape(num_nodes, -1) + params["bias"]


def alldeepsets_convolution(
    params: Any, graph: CooHypergraph, x: Array, config: Any, dropout: Dropout
) -> Array:
    """`flax_layers.AllDeepSetsConv`."""
    rate = config.dropout_rate

    def half(params: Any, reduce: Callable[[Array], Array], x: Array) -> Array:
        y = dropout(jax.nn.relu(_mlp(params["encoder"], x, dropout, rate)), rate)
        return jax.nn.relu(_mlp(params["decoder"], reduce(y), dropout, rate))

    y = dropout(half(params["to_hyperedges"], graph.to_hyperedges, x), rate)
    return half(params["to_nodes"], graph.to_nodes, y)


def allsettransformer_convolution(
    params: Any, graph: CooHypergraph, x: Array, config: Any, dropout: Dropout
) -> Array:
    """`flax_layers.AllSetTransformerConv`."""

    def half(params: Any, to: str, x: Array) -> Array:
        seed = params["seed"]
        key, value = (_linear(params[name], x) for name in ("key", "value"))
        scores = jax.nn.leaky_relu((key.reshape(-1, *seed.shape) * seed).sum(-1), 0.2)
        y = graph.attend(scores, value.reshape(-1, *seed.shape), to) + seed
        y = _layer_norm(params["norm1"], y.reshape(len(y), -1))
        return _layer_norm(params["norm2"], y + jax.nn.relu(_mlp(params["mlp"], y, dropout, 0)))

    y = jax.nn.relu(half(params["to_hyperedges"], "hyperedge", x))
    return half(params["to_nodes"], "node", dropout(y, config.dropout_rate))


def _linear(params: Any, x: Array) -> Array:
    return x @ params["kernel"] + params["bias"]


def _mlp(params: Any, x: Array, dropout: Dropout, rate: float) -> Array:
    number = 1
    while f"linear{number}" in params:
        x = jax.nn.relu(x) if number > 1 else x
        x = _layer_norm(params[f"norm{number}"], x) if "norm1" in params else x
        x = dropout(x, rate) if number > 1 else x
        x = _linear(params[f"linear{number}"], x)
        number += 1
    return x


def _layer_norm(params: Any, x: Array) -> Array:
    x = x - x.mean(axis=1, keepdims=True)
    scale = jax.lax.rsqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)
    return x * scale * params["scale"] + params["bias"]


def _unit_rows(y: Array) -> Array:
    square = (y**2).sum(axis=1, keepdims=True)
    return y * jnp.sqrt(_inverse(square))


@_promotes
def stack(
    convolution: PlainConvolution,
    activation: Literal["relu", "elu"],
    config: Any,
    params: dict[str, Any],
    graph: Any,
    x: Array | None,
    dropout_key: Array | None,
) -> Array:
    """Computes what a `flax_layers.Stack` computes from the same parameters and dropout key.

    Args:
        convolution: One of this module.
        activation: Function of `jax.nn` between two of them; by name, as `jax.nn.relu` itself
            cannot be pickled.
        config: Settings of the training.
        params: ``{"conv1": {"kernel", "bias", …}, "conv2": …}``, and "output" if there is one.
        graph: What the convolution takes.
        x: Node features, ``(num_nodes, in_features)``; None without features.
        dropout_key: Key of the dropout; None switches it off.

    Returns:
        Logits, ``(num_nodes, out_features)``.
    """
    activate, dropout = getattr(jax.nn, activation), Dropout(dropout_key)
    y: Any = None if x is None else dropout(x, config.input_dropout_rate)
    for number in range(1, config.num_layers + 1):
        if number > 1:
            y = dropout(activate(y), config.dropout_rate)
        if number == config.num_layers and hasattr(config, "heads"):
            config = dataclasses.replace(config, heads=1)
        y = convolution(params[f"conv{number}"], graph, y, config, dropout)
    if "output" in params:
        y = _linear(params["output"], dropout(activate(y), config.dropout_rate))
    return y


@_promotes
def behind_types(
    model: Callable[..., Array],
    config: Any,
    params: dict[str, Any],
    graph: Any,
    x: Any,
    dropout_key: Array | None,
) -> Array:
    """`flax_layers.HeteroModel` where x is by type, else the model; arguments as of `stack`."""
    if not isinstance(x, dict):
        return model(config, params, graph, x, dropout_key)
    maps = params["input"]["layers"]["members"]
    rows = [
        maps[i]["kernel"] + maps[i]["bias"] if part is None else _linear(maps[i], part)
        for i, part in enumerate(x.values())
    ]
    y = jax.nn.relu(jnp.concatenate(rows))
    return model(config, params["model"], graph, y, dropout_key)


@_promotes
def unigcnii(
    config: Any, params: dict[str, Any], graph: CooHypergraph, x: Array, dropout_key: Array | None
) -> Array:
    """`flax_layers.UniGCNII`; arguments and result as of `stack`."""
    dropout = Dropout(dropout_key)
    node_scale = jnp.sqrt(_inverse(graph.node_degree))[:, None]
    mean_degree = graph.mean_to_hyperedges(graph.node_degree[:, None])
    hyperedge_scale = jnp.sqrt(_inverse(mean_degree * graph.hyperedge_degree[:, None] ** 2))
    y = x0 = jax.nn.relu(_linear(params["input"], dropout(x, config.input_dropout_rate)))
    for number in range(1, config.num_layers + 1):
        y = graph.to_hyperedges(dropout(y, config.dropout_rate)) * hyperedge_scale
        z = (1 - config.alpha) * graph.to_nodes(y) * node_scale + config.alpha * x0
        beta = math.log(config.lamda / number + 1)
        y = jax.nn.relu((1 - beta) * z + beta * z @ params[f"conv{number}"]["kernel"])
    return _linear(params["output"], dropout(y, config.dropout_rate))
