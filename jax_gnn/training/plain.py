"""The baseline: the same models as one writes them in plain JAX, without this library's operations.

Linear maps and aggregations come in the same order as in the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn import Graph, Hypergraph

# (parameters of the convolution, structure, x, settings) -> result
PlainConvolution = Callable[[Any, Any, Array, Any], Array]


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
        """Converts an unpadded hypergraph (on the host)."""
        node, hyperedge = (np.asarray(ids) for ids in hypergraph.incidence())
        by_node = np.lexsort((hyperedge, node))
        return cls(
            member=jnp.asarray(node),
            hyperedge=jnp.asarray(hyperedge),
            node=jnp.asarray(node[by_node]),
            incident=jnp.asarray(hyperedge[by_node]),
            node_degree=jnp.asarray(hypergraph.node_degrees(), jnp.float32),
            hyperedge_degree=jnp.asarray(hypergraph.hyperedge_degrees(), jnp.float32),
        )


class CooGraph(NamedTuple):
    """Edges as id pairs, sorted by destination.

    Attributes:
        src: Source of each edge, ``(num_edges,)``.
        dst: Its destination, ascending.
        degree: In-degrees, ``(num_nodes,)`` float32.
    """

    src: Array
    dst: Array
    degree: Array

    @classmethod
    def from_graph(cls, graph: Graph) -> CooGraph:
        """Converts an unpadded graph."""
        return cls(graph.cols, graph.rows, graph.in_degrees().astype(jnp.float32))

    def sum(self, x: Array) -> Array:
        """Sums the rows of each node's sources."""
        return _sorted_sum(x[self.src], self.dst, self.degree.shape[0])

    def max(self, x: Array) -> Array:
        """Their maximum, 0 where there are none."""
        num_nodes = self.degree.shape[0]
        y = jax.ops.segment_max(x[self.src], self.dst, num_nodes, indices_are_sorted=True)
        return jnp.where(self.degree[:, None] > 0, y, 0)


def _sorted_sum(data: Array, segment_ids: Array, num_segments: int) -> Array:
    return jax.ops.segment_sum(data, segment_ids, num_segments, indices_are_sorted=True)


def _inverse(degree: Array) -> Array:
    return jnp.where(degree > 0, 1 / jnp.where(degree > 0, degree, 1), 0)


def _aggregate_narrow(aggregate: Callable[[Array], Array], x: Array, kernel: Array) -> Array:
    return aggregate(x) @ kernel if kernel.shape[0] < kernel.shape[1] else aggregate(x @ kernel)


def hgnn_convolution(params: Any, graph: CooHypergraph, x: Array, config: Any) -> Array:
    """`flax_layers.HGNNConv`."""
    num_nodes, num_hyperedges = graph.node_degree.shape[0], graph.hyperedge_degree.shape[0]
    x = x @ params["kernel"] + params["bias"]
    weight = params.get("hyperedge_weight")
    degree = graph.node_degree
    hyperedge_scale = _inverse(graph.hyperedge_degree)
    if weight is not None:
        degree = _sorted_sum(weight[graph.incident], graph.node, num_nodes)
        hyperedge_scale = hyperedge_scale * weight
    node_scale = _inverse(degree)
    if config.normalization == "symmetric":
        node_scale = jnp.sqrt(node_scale)
        x = x * node_scale[:, None]
    message = _sorted_sum(x[graph.member], graph.hyperedge, num_hyperedges)
    message = message * hyperedge_scale[:, None]
    return _sorted_sum(message[graph.incident], graph.node, num_nodes) * node_scale[:, None]


def gcn_convolution(params: Any, graph: CooGraph, x: Array, config: Any) -> Array:
    """`flax_layers.GCNConv`."""
    scale = jax.lax.rsqrt(graph.degree + 1)[:, None]

    def aggregate(x: Array) -> Array:
        return scale * (graph.sum(scale * x) + scale * x)

    return _aggregate_narrow(aggregate, x, params["kernel"]) + params["bias"]


def gin_convolution(params: Any, graph: CooGraph, x: Array, config: Any) -> Array:
    """`flax_layers.GINConv`."""
    own = 1 + params.get("learned_eps", 0)
    y = _aggregate_narrow(lambda x: own * x + graph.sum(x), x, params["kernel"])
    return jax.nn.relu(y + params["bias"]) @ params["output"]["kernel"] + params["output"]["bias"]


def sage_convolution(params: Any, graph: CooGraph, x: Array, config: Any) -> Array:
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


def _dropout(x: Array, rate: float, key: Array) -> Array:
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def plain_model(
    convolution: PlainConvolution,
    config: Any,
    params: dict[str, Any],
    graph: Any,
    x: Array,
    dropout_key: Array | None,
) -> Array:
    """Computes what a model of `flax_layers` computes from the same parameters and dropout key.

    Args:
        convolution: One of this module.
        config: Settings of the training.
        params: ``{"conv1": {"kernel", "bias", …}, "conv2": …}``.
        graph: What the convolution takes.
        x: Node features, ``(num_nodes, in_features)``.
        dropout_key: Key of the dropout; None switches it off.

    Returns:
        Logits, ``(num_nodes, out_features)``.
    """
    count = 0
    for number in range(1, config.num_layers + 1):
        rate = config.input_dropout_rate
        if number > 1:
            x, rate = jax.nn.relu(x), config.dropout_rate
        if dropout_key is not None and rate > 0:
            x = _dropout(x, rate, jax.random.fold_in(dropout_key, count))
            count += 1
        x = convolution(params[f"conv{number}"], graph, x, config)
    return x
