"""Containers with gates, which are factors of messages, and containers without some edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jax_gnn._core.arrays import STATIC
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import PADDING, in_range, take_ids
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph


class Log:
    """Record of attention weights, layer by layer; a static field, equal only to itself."""

    def __init__(self) -> None:
        self.layers: list[Array] = []


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class GatedGraph(Graph):
    """Graph in which every op multiplies each message by a factor of its edge.

    Ops with messages take these gates as weights, attention after its softmax. An op that does not
    support gates asks for the graph's matrix, which raises an error.
    """

    gate: Array | None = None  # (num_edges,), in the graph's order
    log: Log | None = field(default=None, metadata=STATIC)  # record of attention weights, or None

    @classmethod
    def of(cls, graph: Graph, gate: Array, log: Log | None = None) -> GatedGraph:
        """Add gates to a graph."""
        return cls(**graph._arrays, gate=gate, log=log)

    def check(self, name: str = "graph") -> GatedGraph:
        """Check dtypes and shapes of the graph: see :meth:`Graph.check`."""
        return replace(self, **self._plain.check(name)._arrays)

    def transpose(self) -> GatedGraph:
        """Reverse all edges, and move their gates along: see :meth:`Graph.transpose`."""
        valid = in_range(self.t_order, self.num_edges)
        gate = jnp.where(valid, jnp.asarray(self.gate)[jnp.where(valid, self.t_order, 0)], 0)
        return GatedGraph.of(self._plain.transpose(), gate, self.log)

    def matrix(self, *, weighted: bool = False, slots: bool = False) -> SparseMatrix:
        """Raise an error, since an op that uses the matrix would leave out the gates."""
        raise TypeError(
            "an op of the model takes no factors of messages: use method='occlusion', or "
            "edges=False for attributions of features alone"
        )

    def ends(self) -> tuple[SparseMatrix, SparseMatrix]:
        """Raise an error, as :meth:`matrix` does."""
        self.matrix()
        return super().ends()

    def _gated(
        self, weight: Array | None, dtype: DTypeLike, heads: int = 1
    ) -> tuple[Graph, Array | None]:
        gate = jnp.asarray(self.gate)[:, None]
        if weight is None:
            factors = jnp.broadcast_to(gate.astype(dtype), (len(gate), heads))
        else:
            factors = weight * gate.astype(weight.dtype)
        return self._plain, factors

    @property
    def _plain(self) -> Graph:
        return Graph(**self._arrays)

    def _same_edges(self, graph: Graph) -> Graph:
        return GatedGraph.of(graph, jnp.asarray(self.gate), self.log)

    def _note(self, name: str, value: Callable[[], Array]) -> None:
        if self.log is None:
            return
        if name == "attention":
            self.log.layers.append(value())
        else:  # the weight of a self-loop, which the softmax takes from the node's edges
            rows = self.rows
            valid = in_range(rows, self.num_dst)[:, None]
            remainder = jnp.where(valid, 1 - value()[jnp.where(valid[:, 0], rows, 0)], 0)
            self.log.layers[-1] = self.log.layers[-1] * remainder


Edged = Graph | RelationalGraph | Hypergraph
"""Containers to whose edges, or incidences, outputs are attributed."""


def check_edged(prefix: str, graph: object) -> None:
    """Raise a TypeError if attribution to edges does not support a container."""
    if not isinstance(graph, Edged):
        raise TypeError(
            f"{prefix} a jax_gnn.Graph, RelationalGraph or Hypergraph, got {type(graph).__name__}"
        )


def edges_of(graph: Edged) -> Graph:
    """Return the graph of a container's edges; for a hypergraph, of its (tail) incidences."""
    if isinstance(graph, Graph):
        return graph
    return graph.nodes if isinstance(graph, RelationalGraph) else graph.graph


def gated(graph: Edged, gate: Array, log: Log | None = None) -> Edged:
    """Add gates to the edges of a container."""
    edges = GatedGraph.of(edges_of(graph), gate, log)
    if isinstance(graph, Graph):
        return edges
    if isinstance(graph, RelationalGraph):
        return replace(graph, nodes=edges)
    return replace(graph, graph=edges)


def without_edges(graph: Edged, keep: Array) -> tuple[Edged, Array]:
    """Remove edges from a container, so that they become padding; works inside ``jax.jit``.

    Return the container, and the old position of each of its edges, -1 at the end.
    """
    if isinstance(graph, Hypergraph):
        incidences: Any
        incidences, source = without_edges(graph.graph, keep)
        return replace(graph, graph=incidences), source
    edges = edges_of(graph)
    # Sources out of range make edges padding; the given order by source saves a sort.
    part = Graph.from_sorted(
        jnp.where(keep, edges.cols, PADDING),
        edges.rows,
        num_src=edges.num_src,
        num_dst=edges.num_dst,
        t_order=edges.t_order,
        validate=False,
    )
    part = jax.tree.map(lambda ids: ids.astype(edges.rows.dtype), part)
    source = part.edge_ids
    edge_ids, count = take_ids(edges.edge_ids, source), edges.num_input_edges
    part = replace(part, edge_ids=edge_ids, num_input_edges=count)._split_like(edges)
    if isinstance(graph, Graph):
        return part, source
    # Pairs of the whole graph may have lost all edges: those that are left are found anew.
    return graph._with_edges(part, take_ids(graph.edge_types, source)), source


def values_at(values: Array, source: Array) -> Array:
    """Take the values of edges at their old positions; zeros at the end."""
    values = jnp.asarray(values)
    if values.shape[0] == 0:
        return values
    valid = (source >= 0).reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.where(valid, values[jnp.maximum(source, 0)], 0)
