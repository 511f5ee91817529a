"""Graphs whose messages have factors, that tell what attention is, or that lack some edges."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import STATIC
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import PADDING, ids_at, in_range
from jax_gnn.graph import Graph
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
        return replace(self, **_parts(Graph(**_parts(self)).check(name)))

    def transpose(self) -> GatedGraph:
        """See :meth:`Graph.transpose`."""
        valid = in_range(self.t_order, self.num_edges)
        gate = jnp.where(valid, jnp.asarray(self.gate)[jnp.where(valid, self.t_order, 0)], 0)
        return GatedGraph.of(Graph(**_parts(self)).transpose(), gate, self.log)

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
        return Graph(**_parts(self)), factors

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


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class WatchedRelationalGraph(RelationalGraph):
    """A relational graph that attention tells its weights.

    Attributes:
        log: what it has told.
    """

    log: Log = field(default_factory=Log, kw_only=True, metadata=STATIC)

    @classmethod
    def of(cls, graph: RelationalGraph, log: Log) -> WatchedRelationalGraph:
        """A graph that is watched."""
        parts = {part.name: getattr(graph, part.name) for part in fields(RelationalGraph)}
        return cls(**parts, log=log)

    def _note(self, name: str, value: Any) -> None:
        del name
        self.log.layers.append(value())


def _parts(graph: Graph) -> dict[str, Any]:
    return {part.name: getattr(graph, part.name) for part in fields(Graph)}


def kept_places(keep: Array) -> tuple[Array, Array]:
    """Which of the kept edges stands at each place, -1 at the end; and where each edge goes."""
    count = keep.shape[0]
    place = jnp.where(keep, jnp.cumsum(keep) - 1, count)
    source = jnp.full(count, PADDING, jnp.int32).at[place].set(jnp.arange(count), mode="drop")
    return source, jnp.where(keep, place, PADDING)


def without_edges(graph: Graph, keep: Array) -> tuple[Graph, Array]:
    """The graph of some edges, the rest padding; works inside ``jax.jit``.

    Args:
        graph: the graph.
        keep: ``(num_edges,)`` booleans, in the graph's order.

    Returns:
        The graph, and which of the old edges is at each of its places, -1 at the end.
    """
    keep = keep & (graph.rows >= 0)
    source, place = kept_places(keep)
    t_keep = jnp.append(keep, False)[jnp.where(graph.t_order < 0, -1, graph.t_order)]
    t_source, _ = kept_places(t_keep)

    def starts(indptr: Array, kept: Array) -> Array:
        return jnp.append(0, jnp.cumsum(kept))[indptr].astype(indptr.dtype)

    def moved(ids: Array, by: Array) -> Array:
        return ids_at(ids, by).astype(ids.dtype)

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


def values_at(values: Array, source: Array) -> Array:
    """Values of edges, moved along; zeros at the end."""
    values = jnp.asarray(values)
    if values.shape[0] == 0:
        return values
    valid = (source >= 0).reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.where(valid, values[jnp.maximum(source, 0)], 0)
