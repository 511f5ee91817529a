"""Containers whose messages have factors, that tell what attention is, or that lack some edges."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import STATIC
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import PADDING, in_range, take_ids
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph


class Log:
    """What attention notes, layer by layer; equal to itself alone."""

    def __init__(self) -> None:
        self.layers: list[Any] = []


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class GatedGraph(Graph):
    """A graph whose messages are multiplied by a number of their edge, in every op.

    Ops with messages take these factors as weights, attention after its softmax. An op that does
    not know them asks for the graph's matrix, and is refused.

    Attributes:
        gate: ``(num_edges,)``, in the graph's order.
        log: what attention tells its weights, or None.
    """

    gate: Array | None = None
    log: Log | None = field(default=None, metadata=STATIC)

    @classmethod
    def of(cls, graph: Graph, gate: Array, log: Log | None = None) -> GatedGraph:
        """A graph with gates."""
        return cls(**_parts(graph), gate=gate, log=log)

    def check(self, name: str = "graph") -> GatedGraph:
        """See :meth:`Graph.check`."""
        return replace(self, **_parts(self._plain.check(name)))

    def transpose(self) -> GatedGraph:
        """See :meth:`Graph.transpose`."""
        valid = in_range(self.t_order, self.num_edges)
        gate = jnp.where(valid, jnp.asarray(self.gate)[jnp.where(valid, self.t_order, 0)], 0)
        return GatedGraph.of(self._plain.transpose(), gate, self.log)

    def matrix(self, *, weighted: bool = False, slots: bool = False) -> SparseMatrix:
        """Refused, as whoever asks would leave out the factors."""
        raise TypeError(
            "an op of the model takes no factors of messages: use method='occlusion', or "
            "edges=False for attributions of features alone"
        )

    def ends(self) -> tuple[SparseMatrix, SparseMatrix]:
        """Refused, likewise."""
        self.matrix()
        return super().ends()

    def _gated(self, weight: Any, dtype: Any, heads: int = 1) -> tuple[Graph, Any]:
        gate = jnp.asarray(self.gate)[:, None]
        if weight is None:
            factors = jnp.broadcast_to(gate.astype(dtype), (len(gate), heads))
        else:
            factors = weight * gate.astype(weight.dtype)
        return self._plain, factors

    @property
    def _plain(self) -> Graph:
        return Graph(**_parts(self))

    def _same_edges(self, graph: Graph) -> Graph:
        return GatedGraph.of(graph, jnp.asarray(self.gate), self.log)

    def _note(self, name: str, value: Any) -> None:
        if self.log is None:
            return
        if name == "attention":
            self.log.layers.append(value())
        else:  # what a node sees of itself, which leaves so much less for its edges
            rows = self.rows
            valid = in_range(rows, self.num_dst)[:, None]
            rest = jnp.where(valid, 1 - value()[jnp.where(valid[:, 0], rows, 0)], 0)
            self.log.layers[-1] = self.log.layers[-1] * rest


Edged = Graph | RelationalGraph | Hypergraph
"""Containers whose edges, or incidences, are attributed to."""


def edges_of(graph: Edged) -> Graph:
    """The graph that has them: of nodes; of a hypergraph's nodes and hyperedges, those of tails."""
    if isinstance(graph, Graph):
        return graph
    return graph.nodes if isinstance(graph, RelationalGraph) else graph.graph


def with_edges(graph: Edged, edges: Graph) -> Edged:
    """The container with another graph that has its edges."""
    if isinstance(graph, Graph):
        return edges
    if isinstance(graph, RelationalGraph):
        return replace(graph, nodes=edges)
    return replace(graph, graph=edges)


def gated(graph: Edged, gate: Array, log: Log | None = None) -> Edged:
    """The container with factors of messages."""
    return with_edges(graph, GatedGraph.of(edges_of(graph), gate, log))


def _parts(graph: Graph) -> dict[str, Any]:
    return {part.name: getattr(graph, part.name) for part in fields(Graph)}


def kept_places(keep: Array) -> tuple[Array, Array]:
    """Which of the kept edges stands at each place, -1 at the end; and where each edge goes."""
    count = keep.shape[0]
    place = jnp.where(keep, jnp.cumsum(keep) - 1, count)
    source = jnp.full(count, PADDING, jnp.int32).at[place].set(jnp.arange(count), mode="drop")
    return source, jnp.where(keep, place, PADDING)


def without_edges(graph: Edged, keep: Array) -> tuple[Any, Array]:
    """The container of some edges, the rest padding; works inside ``jax.jit``.

    Args:
        graph: the container.
        keep: ``(num_edges,)`` booleans, in the graph's order.

    Returns:
        The graph, and which of the old edges is at each of its places, -1 at the end.
    """
    if isinstance(graph, RelationalGraph):
        return _without_relations(graph, keep)
    if isinstance(graph, Hypergraph):
        made, source = without_edges(graph.graph, keep)
        return replace(graph, graph=made), source
    keep = keep & (graph.rows >= 0)
    source, place = kept_places(keep)
    t_keep = jnp.append(keep, False)[jnp.where(graph.t_order < 0, -1, graph.t_order)]
    t_source, _ = kept_places(t_keep)

    def starts(indptr: Array, kept: Array) -> Array:
        return jnp.append(0, jnp.cumsum(kept))[indptr].astype(indptr.dtype)

    def moved(ids: Array, by: Array) -> Array:
        return take_ids(ids, by).astype(ids.dtype)

    made = Graph(
        indptr=starts(graph.indptr, keep),
        rows=moved(graph.rows, source),
        cols=moved(graph.cols, source),
        t_indptr=starts(graph.t_indptr, t_keep),
        t_rows=moved(graph.t_rows, t_source),
        t_cols=moved(graph.t_cols, t_source),
        t_order=moved(moved(place, graph.t_order).astype(graph.t_order.dtype), t_source),
        edge_ids=moved(graph.edge_ids, source),
        num_input_edges=graph.num_input_edges,
    )
    return (made if graph.split is None else made.with_edge_split()), source


def _without_relations(graph: RelationalGraph, keep: Array) -> tuple[RelationalGraph, Array]:
    """The same of edges with relations, whose order is that in which they are built."""
    nodes = graph.nodes
    keep = keep & (nodes.rows >= 0)
    source, _ = kept_places(keep)
    src, rel, dst = (
        jnp.where(keep, ids, PADDING) for ids in (nodes.cols, graph.edge_types, nodes.rows)
    )
    made = RelationalGraph.from_triples(
        *(src, rel, dst),
        num_src=nodes.num_src,
        num_dst=nodes.num_dst,
        num_relations=graph.num_relations,
        parts=(),
        validate=False,
    )
    edge_ids = take_ids(nodes.edge_ids, source).astype(nodes.edge_ids.dtype)
    rest = replace(made.nodes, edge_ids=edge_ids, num_input_edges=nodes.num_input_edges)
    types = made.edge_types.astype(graph.edge_types.dtype)
    there = {"from_pairs": graph.pair_src, "to_pairs": graph.pair_dst}
    parts: Any = [part for part, pairs in there.items() if pairs is not None]
    gone: Any = dict.fromkeys(("pair_src", "out_of_pairs", "pair_dst", "into_pairs"))
    bare = replace(graph, nodes=rest, edge_types=types, **gone)
    return (bare.with_parts(*parts) if parts else bare), source


def values_at(values: Array, source: Array) -> Array:
    """Values of edges, moved along; zeros at the end."""
    values = jnp.asarray(values)
    if values.shape[0] == 0:
        return values
    valid = (source >= 0).reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.where(valid, values[jnp.maximum(source, 0)], 0)
