"""Attributions of a model's output to features, nodes and edges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._core import arguments
from jax_gnn._core.arguments import check_choice
from jax_gnn._core.arrays import summarize_fields
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.insight import _methods
from jax_gnn.insight._call import Call, Target, prepared, switched_off
from jax_gnn.insight._gates import Edged, edges_of
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
    """How much the output depends on features, nodes and edges. All arrays are of numpy.

    Attributes:
        graph: the graph that was attributed to; of a batch, that of all.
        features: of the shape of x, or None of a method that does not look at features.
        nodes: ``(num_nodes,)``, the sums over the features of each; or None.
        edges: ``(num_edges,)`` in the graph's order, 0 for padding; or None. Of a hypergraph they
            are its incidences, of a directed one those of the tails.
        layers: of attention, ``(num_edges, heads)`` of each layer.
        index: the rows of the output that were looked at, or None for all.
        target: the column of each, or None of a function of the output.
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
        """``(num_edges,)``, means of what edges between the same two nodes count, either way."""
        count, ends = self._ends()
        if isinstance(self.graph, Hypergraph):
            raise TypeError("incidences of a Hypergraph have no other way")
        assert self.edges is not None
        _, pair = np.unique(np.sort(ends, 1), axis=0, return_inverse=True)
        pair = pair.ravel()
        sums, sizes = np.bincount(pair, self.edges[:count]), np.bincount(pair)
        found = np.zeros_like(self.edges)
        found[:count] = (sums / sizes)[pair]
        return found

    def hyperedges(self) -> np.ndarray:
        """``(num_hyperedges,)``, sums over the incidences of each hyperedge."""
        count, ends = self._ends()
        if not isinstance(self.graph, Hypergraph):
            raise TypeError(f"the graph must be a Hypergraph, got {type(self.graph).__name__}")
        assert self.edges is not None
        return np.bincount(ends[:, 1], self.edges[:count], self.graph.num_hyperedges)

    def top_edges(self, k: int = 10) -> list[tuple[Any, ...]]:
        """The k edges that count most, in descending order: source, destination, and how much.

        Of a relational graph they are source, relation, destination, and how much; of a hypergraph
        node, hyperedge, and how much.
        """
        count, ends = self._ends()
        assert self.edges is not None
        order = np.argsort(-self.edges[:count], kind="stable")[: arguments.check_size("k", k)]
        columns = [ends[order, 0], ends[order, 1]]
        if isinstance(self.graph, RelationalGraph):
            columns.insert(1, np.asarray(self.graph.edge_types)[order])
        rows = zip(*(column.tolist() for column in (*columns, self.edges[order])), strict=True)
        return list(rows)

    def _ends(self) -> tuple[int, np.ndarray]:
        """The number of edges, and sources and destinations of each, without padding."""
        if self.edges is None:
            raise ValueError("there are no attributions to edges")
        graph = edges_of(self.graph)
        count = int(graph.indptr[-1])
        return count, np.stack([graph.cols, graph.rows], 1)[:count]


def attribute(
    model: Any,
    graph: Any,
    x: Any,
    target: Target = None,
    *,
    index: Any = None,
    method: Method = "saliency",
    num_hops: int | None = None,
    edges: bool | None = None,
    baseline: Any = None,
    num_steps: int = 200,
    learning_rate: float = 0.01,
    seed: int = 0,
    **named: Any,
) -> Attribution:
    """Says how much a number of a model's output depends on features, nodes and edges.

    The number is ``model(graph, x)[index, target]``; of several rows, the sum. Edges are looked at
    through factors of their messages, which are 1: every op of this library that has messages
    takes them, attention after its softmax. So degrees, and scales made of them, stay as they are.
    What a node sees of itself without an edge is left out. Models that make their messages
    themselves are looked at by ``"occlusion"``, which removes edges.

    * ``"saliency"``: the magnitude of derivatives (Simonyan et al. 2014).
    * ``"input_x_gradient"``: derivatives times features, and times the factors (Shrikumar et al.
      2016).
    * ``"integrated_gradients"``: the same along a straight line from the baseline, and of factors
      from 0, with features as they are (Sundararajan et al. 2017). They add up to what the output
      changes, to 1e-4 of it or to its rounding: the line is cut into pieces where it must be.
    * ``"occlusion"``: by how much the output falls without an edge; for nodes, without its
      features, which are 0 then. A run of the model for each.
    * ``"gnn_explainer"``: masks of edges and of features, between 0 and 1, that keep the
      prediction while they are small and certain (Ying et al. 2019, with its constants). The model
      gives logits, or of one column a number. All nodes share a mask of features.
    * ``"attention"``: what ops with attention weigh edges by, as a mean over heads and layers; 0
      where the output at ``index`` does not depend on an edge.

    Args:
        model: called as ``model(graph, x, **named)``: any function, or a module, whose dropout is
            to be off (``model.eval()``). One that is a pytree, as modules of Flax NNX are, is
            compiled once for many calls.
        graph: a :class:`jax_gnn.Graph`, :class:`jax_gnn.RelationalGraph` or
            :class:`jax_gnn.Hypergraph`, or a :class:`jax_gnn.Batch` of such. Of any other container
            only features are attributed to.
        x: ``(num_nodes, *features)``, floating-point.
        target: the column of the output, or a function that makes a number of it. None: the
            largest one of each row.
        index: the row of the output, a node or graph, or several; None for all.
        method: one of the above.
        num_hops: look at the subgraph of so many hops around ``index`` alone, which spares time in
            large graphs: as many as the model has layers, and one more if degrees count (GCN).
        edges: whether edges are attributed to; None: if the graph is one of these three.
        baseline: where integrated gradients begin, of the shape of x or one that broadcasts to it;
            None means zeros.
        num_steps: of GNNExplainer's optimisation.
        learning_rate: of that.
        seed: of its initial masks.
        **named: further arguments of the model. Those whose names begin with ``edge_`` have a row
            for each edge, in the graph's order.

    Raises:
        TypeError: an argument has the wrong type, an op of the model takes no factors, edges are
            asked for of another container, or called inside ``jax.jit``.
        ValueError: an argument has the wrong shape, or is out of range; or no message of the model
            has factors.

    Example:
        >>> graph = Graph.from_edges([(0, 1), (1, 2), (3, 2)])
        >>> x = jnp.array([1.0, 2.0, 4.0, 8.0])
        >>> made = attribute(spmm, graph, x, index=2, method="input_x_gradient")
        >>> made.nodes, made.top_edges(1)
        (array([0., 2., 0., 8.], dtype=float32), [(3, 2, 8.0)])
    """
    check_choice("method", method, get_args(Method))
    call, columns = prepared(model, graph, x, index, target, named)
    takes_edges = isinstance(call.graph, Edged)
    edges = takes_edges if edges is None else arguments.check_flag("edges", edges)
    if edges and not takes_edges:
        raise TypeError(
            "edges=True needs a jax_gnn.Graph, RelationalGraph or Hypergraph, got "
            f"{type(call.graph).__name__}"
        )
    part = None
    if num_hops is not None:
        if not isinstance(graph, Graph):
            raise TypeError(f"num_hops needs a jax_gnn.Graph, got {type(graph).__name__}")
        if index is None or call.select is not None:
            raise ValueError("num_hops needs an index, the nodes around which it looks, got None")
        part = k_hop_subgraph(graph, index, num_hops)
        call = _part_of(call, part)
    everywhere = index is None
    with switched_off():
        found = _found(call, method, edges, everywhere, baseline, num_steps, learning_rate, seed)
    whole = call.graph if part is None else graph
    found = replace(found, graph=whole, index=index, target=columns)
    return found if part is None else _spread(found, part, np.shape(x))


def _found(
    call: Call,
    method: Method,
    edges: bool,
    everywhere: bool,
    baseline: Any,
    num_steps: int,
    learning_rate: float,
    seed: int,
) -> Attribution:
    if method == "attention":
        layers = tuple(map(np.asarray, _methods.attention(call)))
        mean = np.mean([layer.mean(1) for layer in layers], 0)
        if edges and not everywhere:
            mean = np.where(np.asarray(_methods.gradients(call, edges=True)[1]) != 0, mean, 0)
        return Attribution(None, edges=mean, layers=layers)
    if method == "occlusion":
        nodes = np.asarray(_methods.occluded_nodes(call))
        return Attribution(
            None,
            nodes=nodes,
            edges=np.asarray(_methods.occluded_edges(call)) if edges else None,
        )
    features: Any
    of_edges: Any = None
    if method == "integrated_gradients":
        with arguments.argument_errors("baseline", "of a shape that broadcasts to x's", baseline):
            given = jnp.asarray(0 if baseline is None else baseline, call.x.dtype)
            start = jnp.broadcast_to(given, call.x.shape)
        features, of_edges = _methods.integrated(call, start, edges)
    elif method == "gnn_explainer":
        if call.select is not None:
            raise ValueError("gnn_explainer needs target to be a column, got a function")
        steps = arguments.check_size("num_steps", num_steps)
        rate = arguments.check_finite("learning_rate", learning_rate)
        key = jax.random.key(arguments.check_integer("seed", seed))
        features, of_edges = _methods.masks(call, key, steps, rate, edges=edges)
    else:
        features, of_edges = _methods.gradients(call, edges=edges)
        if method == "saliency":
            features = jnp.abs(features)
            of_edges = None if of_edges is None else jnp.abs(of_edges)
        else:
            features = features * call.x
    if of_edges is not None and not np.any(of_edges):
        _methods.check_gates(call)
    features = np.asarray(features)
    nodes = features.sum(tuple(range(1, features.ndim)))
    return Attribution(None, features, nodes, None if of_edges is None else np.asarray(of_edges))


def _part_of(call: Call, part: Derived) -> Call:
    """The call on a subgraph, padded to powers of two, so that few programs are compiled."""

    def size(count: int) -> int:
        return 1 << max(count - 1, 0).bit_length()

    num_nodes, num_edges = size(len(part.nodes)), size(len(part.edges))
    graph = part.graph.pad(num_nodes=num_nodes, num_edges=num_edges)

    def rows(values: Any, ids: np.ndarray, count: int) -> Any:
        values = np.asarray(values)
        made = np.zeros((count, *values.shape[1:]), values.dtype)
        made[: len(ids)] = values[ids]
        return jnp.asarray(made)

    named = {
        name: rows(value, part.edges, num_edges)
        if name.startswith("edge_") and value is not None
        else rows(value, part.nodes, num_nodes)
        if name.startswith("node_") and value is not None
        else value
        for name, value in call.named.items()
    }
    own = jnp.arange(len(call.rows))  # come first
    x = rows(call.x, part.nodes, num_nodes)
    return call._replace(graph=graph, x=x, named=named, rows=own)


def _spread(found: Attribution, part: Derived, shape: tuple[int, ...]) -> Attribution:
    """Attributions of a subgraph's parts as such of the whole graph, zeros elsewhere."""

    def whole(values: np.ndarray | None, places: np.ndarray, count: int) -> Any:
        if values is None:
            return None
        made = np.zeros((count, *values.shape[1:]), values.dtype)
        made[places] = values[: len(places)]
        return made

    edges = found.graph.num_edges
    return replace(
        found,
        features=whole(found.features, part.nodes, shape[0]),
        nodes=whole(found.nodes, part.nodes, shape[0]),
        edges=whole(found.edges, part.edges, edges),
        layers=tuple(whole(layer, part.edges, edges) for layer in found.layers),
    )
