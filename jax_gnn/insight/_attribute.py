"""Attributions of a model's output to features, nodes and edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import summarize_fields
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.insight import _methods
from jax_gnn.insight._call import Call, Container, Target, fixed_state, prepared
from jax_gnn.insight._gates import Edged, check_edged, edges_of
from jax_gnn.relational import RelationalGraph
from jax_gnn.transforms import Derived, k_hop_subgraph

Method = Literal[
    "saliency",
    "input_x_gradient",
    "integrated_gradients",
    "occlusion",
    "gnn_explainer",
    "attention",
]


@dataclass(frozen=True, eq=False)
class Attribution:
    """Dependence of an output on features, nodes and edges, as numpy arrays.

    Attributes:
        graph: the graph; for a batch, the graph that joins all graphs.
        features: an attribution of the shape of x; None for methods without features.
        nodes: ``(num_nodes,)``, the sum over the features of each node; or None.
        edges: ``(num_edges,)`` in the graph's order, 0 for padding; or None. For a hypergraph,
            these are its incidences; for a directed one, those of the tails.
        layers: for attention, ``(num_edges, heads)`` for each layer.
        index: the explained rows of the output, or None as of :func:`attribute`.
        target: the explained column of each row, or None for a function of the output.
    """

    graph: Any
    features: np.ndarray | None = None
    nodes: np.ndarray | None = None
    edges: np.ndarray | None = None
    layers: tuple[np.ndarray, ...] = ()
    index: Any = None
    target: np.ndarray | None = None

    def __repr__(self) -> str:
        return summarize_fields(self)

    def undirected(self) -> np.ndarray:
        """Average over all edges between two nodes, of either direction: ``(num_edges,)``."""
        edges, endpoints = self._edges_and_endpoints()
        if isinstance(self.graph, Hypergraph):
            raise TypeError("incidences of a Hypergraph have no other way")
        _, pair = np.unique(np.sort(endpoints, 1), axis=0, return_inverse=True)
        pair = pair.ravel()
        means = np.zeros(edges_of(self.graph).num_edges, edges.dtype)
        means[: len(edges)] = (np.bincount(pair, edges) / np.bincount(pair))[pair]
        return means

    def hyperedges(self) -> np.ndarray:
        """Sum over the incidences of each hyperedge: ``(num_hyperedges,)``."""
        edges, endpoints = self._edges_and_endpoints()
        if not isinstance(self.graph, Hypergraph):
            raise TypeError(f"the graph must be a Hypergraph, got {type(self.graph).__name__}")
        return np.bincount(endpoints[:, 1], edges, self.graph.num_hyperedges)

    def top_edges(self, k: int = 10) -> list[tuple[Any, ...]]:
        """Return the k edges of the highest scores as tuples (source, destination, score).

        For a relational graph, tuples are (source, relation, destination, score); for a hypergraph
        (node, hyperedge, score).
        """
        edges, endpoints = self._edges_and_endpoints()
        order = np.argsort(-edges, kind="stable")[: arguments.check_size("k", k)]
        columns = [endpoints[order, 0], endpoints[order, 1], edges[order]]
        if isinstance(self.graph, RelationalGraph):
            columns.insert(1, np.asarray(self.graph.edge_types)[order])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def _edges_and_endpoints(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of edges, and their sources and destinations, without padding."""
        if self.edges is None:
            raise ValueError("there are no attributions to edges")
        graph = edges_of(self.graph)
        count = int(graph.indptr[-1])
        return self.edges[:count], np.stack([graph.cols, graph.rows], 1)[:count]


def edge_scores(name: str, scores: Attribution | ArrayLike, graph: Graph) -> np.ndarray:
    """Check an attribution to edges, or a number for each edge; return those without padding."""
    values = scores.edges if isinstance(scores, Attribution) else scores
    if values is None:
        raise ValueError(f"{name} must be an attribution to edges, got one without")
    array = arguments.to_numpy(name, values)
    num_edges = graph.num_edges
    arguments.check_shape(name, array, f"({num_edges=},)", num_edges)
    if array.dtype != np.bool_ and not arguments.is_real(array.dtype):
        raise TypeError(f"{name} must be real numbers, got {array.dtype}")
    # Negative unsigned integers would be large ones.
    array = array[: int(graph.indptr[-1])].astype(np.float64)
    if (rows := np.flatnonzero(~np.isfinite(array))).size:
        edge, count = rows[0], rows.size
        raise ValueError(f"{name} must be finite, got {array[edge]} of edge {edge} ({count} such)")
    return array


def attribute(
    model: Callable[..., Any],
    graph: Container,
    x: ArrayLike,
    target: Target = None,
    *,
    index: ArrayLike | None = None,
    method: Method = "saliency",
    num_hops: int | None = None,
    edges: bool | None = None,
    baseline: ArrayLike | None = None,
    num_steps: int = 200,
    learning_rate: float = 0.01,
    seed: int = 0,
    **named: Any,
) -> Attribution:
    """Attribute a number of a model's output to features, nodes and edges.

    The number is ``model(graph, x)[index, target]``; for several rows, their sum. Edges are
    attributed to through gates, factors of their messages with the value 1: every op of this
    library that has messages takes them, attention after its softmax. Degrees, and scales computed
    from degrees, do not depend on gates. A node's own features without an edge are not attributed
    to an edge. For models that compute messages by other functions, use ``"occlusion"``, which
    removes edges.

    * ``"saliency"``: magnitudes of gradients (Simonyan et al. 2014).
    * ``"input_x_gradient"``: gradients times features, and times gates (Shrikumar et al. 2016).
    * ``"integrated_gradients"``: mean gradients on a line from the baseline, times the step; for
      gates, from 0, with unchanged features (Sundararajan et al. 2017). They add up to the change
      of the output, to 1e-4 of it or to its rounding, as the line is subdivided where needed.
    * ``"occlusion"``: the decrease of the output without an edge; for nodes, with features of 0.
      The model runs once for each.
    * ``"gnn_explainer"``: masks of edges and of features, between 0 and 1, which preserve the
      prediction and have a small size and entropy (Ying et al. 2019, with its constants). The model
      returns logits, or a single column of numbers. All nodes share a mask of features.
    * ``"attention"``: the attention weights of edges, averaged over heads and layers; 0 for edges
      that the output at ``index`` does not depend on.

    Args:
        model: called as ``model(graph, x, **named)``: any function, or a module with dropout
            switched off (``model.eval()``). A pytree, such as a module of Flax NNX, is compiled
            once for many calls.
        graph: a :class:`jax_gnn.Graph`, :class:`jax_gnn.RelationalGraph` or
            :class:`jax_gnn.Hypergraph`, or a :class:`jax_gnn.Batch` of these. Other containers have
            attributions to features only.
        x: ``(num_nodes, *features)``, floating-point.
        target: the column of the output, or a function from the output to a number. None: the
            largest entry of each row.
        index: the row of the output, a node or graph, or several; None for all but a batch's
            padding.
        method: one of the above.
        num_hops: number of hops around ``index``; only that subgraph is used, which saves time in
            large graphs. Take the number of layers, and one more if they use degrees (GCN).
        edges: whether to attribute to edges; None: if the graph is one of these three.
        baseline: start of integrated gradients, of a shape that broadcasts to that of x; None means
            zeros.
        num_steps: number of steps of GNNExplainer's optimisation.
        learning_rate: learning rate of GNNExplainer.
        seed: seed of GNNExplainer's initial masks.
        **named: further arguments of the model. Arguments named ``edge_…`` have a row for each
            edge, in the graph's order.

    Raises:
        TypeError: an argument has the wrong type, an op of the model takes no gates, ``edges`` is
            set for another container, or called inside ``jax.jit``.
        ValueError: an argument has the wrong shape, or is out of range; or no message of the model
            has a gate.

    Example:
        >>> graph = Graph.from_edges([(0, 1), (1, 2), (3, 2)])
        >>> x = jnp.array([1.0, 2.0, 4.0, 8.0])
        >>> attribution = attribute(spmm, graph, x, index=2, method="input_x_gradient")
        >>> attribution.nodes, attribution.top_edges(1)
        (array([0., 2., 0., 8.], dtype=float32), [(3, 2, 8.0)])
    """
    # The model runs once here, for the explained entries; methods run it on parts of its inputs.
    arguments.check_choice("method", method, get_args(Method))
    call, columns = prepared(model, graph, x, index, target, named)
    has_edges = isinstance(call.graph, Edged)
    edges = has_edges if edges is None else arguments.check_flag("edges", edges)
    if edges:
        check_edged("edges=True needs", call.graph)
    # A subgraph has new ids: its attributions are brought back to the graph's ids at the end.
    part = None
    if num_hops is not None:
        if not isinstance(graph, Graph):
            raise TypeError(f"num_hops needs a jax_gnn.Graph, got {type(graph).__name__}")
        if index is None or call.select is not None:
            raise ValueError("num_hops needs an index, the nodes around which it looks, got None")
        part = k_hop_subgraph(graph, index, num_hops)
        call = _call_on_subgraph(call, part)
    with fixed_state():
        if method == "attention":
            attribution = _attention(call, only_relevant=edges and index is not None)
        elif method == "occlusion":
            nodes = np.asarray(_methods.occluded_nodes(call))
            of_edges = np.asarray(_methods.occluded_edges(call)) if edges else None
            attribution = Attribution(call.graph, nodes=nodes, edges=of_edges)
        else:
            options = baseline, num_steps, learning_rate, seed
            attribution = _by_gradients(call, method, edges, *options)
    attribution = replace(attribution, index=index, target=columns)
    return attribution if part is None else _on_graph(attribution, graph, part)  # type: ignore


def _attention(call: Call, only_relevant: bool) -> Attribution:
    layers = tuple(map(np.asarray, _methods.attention(call)))
    mean = np.mean([layer.mean(1) for layer in layers], 0)
    if only_relevant:
        _, to_gates = _methods.gradients(call, edges=True)
        mean = np.where(np.asarray(to_gates) != 0, mean, 0)
    return Attribution(call.graph, edges=mean, layers=layers)


def _by_gradients(
    call: Call,
    method: Method,
    edges: bool,
    baseline: ArrayLike | None,
    num_steps: int,
    learning_rate: float,
    seed: int,
) -> Attribution:
    """Attribute to features and edges by a method that differentiates the model."""
    if method == "integrated_gradients":
        with arguments.argument_errors("baseline", "of a shape that broadcasts to x's", baseline):
            start = jnp.asarray(0 if baseline is None else baseline, call.x.dtype)
            start = jnp.broadcast_to(start, call.x.shape)
        of_x, of_edges = _methods.integrated(call, start, edges)
    elif method == "gnn_explainer":
        if call.select is not None:
            raise ValueError("gnn_explainer needs target to be a column, got a function")
        steps = arguments.check_size("num_steps", num_steps)
        rate = arguments.check_finite("learning_rate", learning_rate)
        key = jax.random.key(arguments.check_integer("seed", seed))
        of_x, of_edges = _methods.masks(call, key, steps, rate, edges=edges)
    else:
        of_x, of_edges = _methods.gradients(call, edges=edges)
        if method == "saliency":
            of_x, of_edges = jax.tree.map(jnp.abs, (of_x, of_edges))
        else:
            of_x = of_x * call.x
    # Zeros alone may mean that the model has messages that no gate reaches: say so.
    if of_edges is not None and not np.any(of_edges):
        _methods.check_gates(call)
    features = np.asarray(of_x)
    nodes = features.sum(tuple(range(1, features.ndim)))
    edge_scores = None if of_edges is None else np.asarray(of_edges)
    return Attribution(call.graph, features, nodes, edge_scores)


def _call_on_subgraph(call: Call, part: Derived) -> Call:
    """Restrict a call to a subgraph, padded to powers of two, so that few programs are compiled."""
    num_nodes, num_edges = (
        1 << max(len(ids) - 1, 0).bit_length() for ids in (part.nodes, part.edges)
    )

    def rows(values: ArrayLike, ids: np.ndarray, count: int) -> Array:
        values = np.asarray(values)
        padded = np.zeros((count, *values.shape[1:]), values.dtype)
        padded[: len(ids)] = values[ids]
        return jnp.asarray(padded)

    # Arguments of nodes and edges shrink with the graph; the prefixes of their names tell them.
    named = dict(call.named)
    for name, value in call.named.items():
        if name.startswith("edge_") and value is not None:
            named[name] = rows(value, part.edges, num_edges)
        elif name.startswith("node_") and value is not None:
            named[name] = rows(value, part.nodes, num_nodes)
    return call._replace(
        graph=part.graph.pad(num_nodes=num_nodes, num_edges=num_edges),
        x=rows(call.x, part.nodes, num_nodes),
        named=named,
        rows=jnp.arange(len(call.rows)),  # the roots are the first nodes of the subgraph
    )


def _on_graph(attribution: Attribution, graph: Graph, part: Derived) -> Attribution:
    """Scatter the attributions of a subgraph to the graph, with zeros elsewhere."""

    def scatter(values: np.ndarray, ids: np.ndarray, count: int) -> np.ndarray:
        scattered = np.zeros((count, *values.shape[1:]), values.dtype)
        scattered[ids] = values[: len(ids)]
        return scattered

    features, nodes, edges = attribution.features, attribution.nodes, attribution.edges
    return replace(
        attribution,
        graph=graph,
        features=None if features is None else scatter(features, part.nodes, graph.num_nodes),
        nodes=None if nodes is None else scatter(nodes, part.nodes, graph.num_nodes),
        edges=None if edges is None else scatter(edges, part.edges, graph.num_edges),
        layers=tuple(scatter(x, part.edges, graph.num_edges) for x in attribution.layers),
    )
