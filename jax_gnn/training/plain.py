"""The baseline: the same HGNN as one writes it in plain JAX, without this library's operations."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn import Hypergraph
from jax_gnn.hypergraph_aggregate import Normalization


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


def _sorted_sum(data: Array, segment_ids: Array, num_segments: int) -> Array:
    return jax.ops.segment_sum(data, segment_ids, num_segments, indices_are_sorted=True)


def _inverse(degree: Array) -> Array:
    return jnp.where(degree > 0, 1 / jnp.where(degree > 0, degree, 1), 0)


def _convolution(
    graph: CooHypergraph, params: dict[str, Array], x: Array, normalization: Normalization
) -> Array:
    num_nodes, num_hyperedges = graph.node_degree.shape[0], graph.hyperedge_degree.shape[0]
    x = x @ params["kernel"] + params["bias"]
    weight = params.get("hyperedge_weight")
    degree = graph.node_degree
    hyperedge_scale = _inverse(graph.hyperedge_degree)
    if weight is not None:
        degree = _sorted_sum(weight[graph.incident], graph.node, num_nodes)
        hyperedge_scale = hyperedge_scale * weight
    node_scale = _inverse(degree)
    if normalization == "symmetric":
        node_scale = jnp.sqrt(node_scale)
        x = x * node_scale[:, None]
    message = _sorted_sum(x[graph.member], graph.hyperedge, num_hyperedges)
    message = message * hyperedge_scale[:, None]
    return _sorted_sum(message[graph.incident], graph.node, num_nodes) * node_scale[:, None]


def plain_hgnn(
    params: dict[str, Any],
    graph: CooHypergraph,
    x: Array,
    dropout_key: Array | None,
    *,
    dropout_rate: float,
    normalization: Normalization,
) -> Array:
    """Computes what `flax_layers.HGNN` computes from the same parameters and dropout key.

    Args:
        params: ``{"conv1": {"kernel", "bias"[, "hyperedge_weight"]}, "conv2": ...}``.
        graph: The hypergraph.
        x: Node features, ``(num_nodes, in_features)``.
        dropout_key: Key of the dropout; None switches it off.
        dropout_rate: Share of hidden activations dropped, in [0, 1).
        normalization: "symmetric" or "row".

    Returns:
        Logits, ``(num_nodes, out_features)``.
    """
    hidden = jax.nn.relu(_convolution(graph, params["conv1"], x, normalization))
    if dropout_key is not None and dropout_rate > 0:
        kept = jax.random.bernoulli(dropout_key, 1 - dropout_rate, hidden.shape)
        hidden = jnp.where(kept, hidden / (1 - dropout_rate), 0)
    return _convolution(graph, params["conv2"], hidden, normalization)
