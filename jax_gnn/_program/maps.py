"""A graph as programs use it: how many rows spaces have, and what gathers and sums along ways."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import FLOATS, take
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.ids import in_range, take_ids
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._ops.attention.xla import end_matrices
from jax_gnn._ops.relational_aggregate.xla import types_matrix
from jax_gnn._ops.segment_reduce.primitive import gather, segment_reduce
from jax_gnn._program.spaces import Parts, Space
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph

Structure = Graph | RelationalGraph


def parts_of(graph: Structure) -> Parts:
    """What a graph has."""
    nodes = graph if isinstance(graph, Graph) else graph.nodes
    rows = {Space.SHARED: 1, Space.EDGE: graph.num_edges}
    rows[Space.NODE] = max(nodes.num_src, nodes.num_dst)
    ends_known = False
    if isinstance(graph, RelationalGraph):
        rows[Space.RELATION] = graph.num_relations
        if graph.num_src_pairs is not None:
            rows[Space.SOURCE_PAIR] = graph.num_src_pairs
        if graph.num_dst_pairs is not None:
            rows[Space.DESTINATION_PAIR] = graph.num_dst_pairs
        if graph.node_type_sizes is not None:
            rows[Space.TYPE] = len(graph.node_type_sizes)
        known = graph.relation_ends
        ends_known = known is not None and None not in known
    return Parts(rows, nodes.num_src, nodes.num_dst, ends_known)


class Maps:
    """The matrices of a graph: each sums the rows of a space in what they read by a way.

    Their transposes gather. They are made where they are asked for, and once.

    Attributes:
        graph: The graph.
        parts: What it has.
    """

    def __init__(self, graph: Structure) -> None:
        self.graph = graph
        self.parts = parts_of(graph)
        self._found: dict[tuple[Space, str], SparseMatrix] = {}

    # --- Matrices ------------------------------------------------------------------------------

    @property
    def nodes(self) -> Graph:
        """The edges from nodes to nodes."""
        return self.graph if isinstance(self.graph, Graph) else self.graph.nodes

    @functools.cached_property
    def relational(self) -> RelationalMatrix:
        """All edges with their relations."""
        assert isinstance(self.graph, RelationalGraph)
        return self.graph.matrix(weighted=True)

    def edges(self, read: str, into: Space) -> SparseMatrix:
        """The edges as a matrix, from what they read to nodes or to (destination, relation) pairs.

        Args:
            read: "src", "src_pair", or "": each edge reads its own row.
            into: `Space.NODE` or `Space.DESTINATION_PAIR`.
        """
        if into is Space.NODE:
            if read == "src":
                return self.nodes.matrix(weighted=True)
            if read == "src_pair":
                return _there(self.relational.from_pairs)
            return self.matrix(Space.EDGE, "dst")
        if read == "src":
            return _there(self.relational.to_pairs)
        assert not read
        return self.matrix(Space.EDGE, "dst_pair")

    def pairs(self, space: Space) -> Pairs:
        """Those of either end."""
        matrix = self.relational
        return _there(matrix.pair_src if space is Space.SOURCE_PAIR else matrix.pair_dst)

    def matrix(self, space: Space, way: str) -> SparseMatrix:
        """What sums the rows of a space in what they read by a way."""
        if (space, way) not in self._found:
            self._found[space, way] = self._matrix(space, way)
        return self._found[space, way]

    def _matrix(self, space: Space, way: str) -> SparseMatrix:
        if space is Space.EDGE:
            if way in ("src", "dst"):
                return self.nodes.ends()[way == "src"]
            if way == "relation":
                return types_matrix(self.relational, self.parts.rows[Space.RELATION])
            if way == "src_pair":
                return end_matrices(_there(self.relational.from_pairs))[1]
            return end_matrices(_there(self.relational.to_pairs))[0]
        if space is Space.RELATION:
            assert isinstance(self.graph, RelationalGraph) and self.graph.relation_ends
            side = way == "dst_type"
            return _by_ids(
                np.array([-1 if e is None else e[side] for e in self.graph.relation_ends]),
                self.parts.rows[Space.TYPE],
            )
        pairs = self.pairs(space)
        if way in ("src", "dst"):
            return pairs.node_segments if pairs.by_node else pairs.gather.T
        assert way == "relation"
        relations = pairs.relations
        if not pairs.by_node:
            return segments(relations, pairs.num_relations)
        return SparseMatrix(
            Csr(relations, pairs.places, num_rows=pairs.num_relations),
            Csr(None, take_ids(relations, pairs.order), num_rows=pairs.num_pairs),
        )

    def types(self, side: str) -> SparseMatrix:
        """What sums nodes by their types."""
        assert isinstance(self.graph, RelationalGraph) and self.graph.node_type_sizes is not None
        sizes = self.graph.node_type_sizes
        rows = self.size(Space.NODE, side)
        ids = np.full(rows, len(sizes))
        ids[: sum(sizes)] = np.repeat(np.arange(len(sizes)), sizes)[:rows]
        return segments(jnp.asarray(ids, self.nodes.rows.dtype), len(sizes))

    # --- Rows ----------------------------------------------------------------------------------

    def size(self, space: Space, side: str = "") -> int:
        """How many rows a space has; of nodes at one side of a bipartite graph."""
        if space is Space.NODE:
            return self.parts.num_src if side == "src" else self.parts.num_dst
        return self.parts.rows[space]

    def read(self, x: Array, space: Space, way: str, side: str = "") -> Array:
        """What the rows of a space read of an array by a way; zeros for padding."""
        if way == "type":
            return self._gather(x, self.types(side))
        if way in ("src_type", "dst_type"):
            if self.parts.ends_known and space is not Space.RELATION:
                return self.read(self.read(x, Space.RELATION, way), space, "relation")
            if space is not Space.RELATION:
                end = way.removesuffix("_type")
                return self.read(self.read(x, Space.NODE, "type", end), space, end)
        return self._gather(x, self.matrix(space, way))

    @staticmethod
    def _gather(x: Array, matrix: SparseMatrix) -> Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):  # padding reads a key, too
            return x[jnp.clip(matrix.by_col.cols, 0, max(x.shape[0] - 1, 0))]
        if x.dtype not in FLOATS:
            return take(x, matrix.by_col.cols)
        return gather(x, matrix)

    def counted(self, space: Space, read_by: Collection[str] | None = None) -> Array | None:
        """``(rows,)``, which rows are no padding and, if so, read by an edge; None: all are."""
        if space is Space.EDGE:
            return in_range(self.nodes.rows, self.parts.num_dst)
        if space in (Space.SOURCE_PAIR, Space.DESTINATION_PAIR):
            pairs = self.pairs(space)
            nodes = pairs.sorted_nodes if pairs.by_node else pairs.nodes
            return in_range(nodes, pairs.num_nodes)
        if read_by is None or space is Space.SHARED:
            return None
        return functools.reduce(jnp.logical_or, (self._read(space, way) for way in sorted(read_by)))

    def _read(self, space: Space, way: str) -> Array:
        """``(rows,)``, which rows of nodes, relations or types edges read by a way."""
        if space is Space.NODE:
            pointers = self.nodes.t_indptr if way == "src" else self.nodes.indptr
            return jnp.diff(pointers) > 0
        valid = in_range(self.nodes.rows, self.parts.num_dst).astype(jnp.float32)
        if space is Space.RELATION:
            return self._any(valid, self.matrix(Space.EDGE, "relation"))
        if way == "type":
            return jnp.asarray(self.graph.node_type_sizes) > 0  # type: ignore[union-attr]
        end = "src" if way == "src_type" else "dst"
        return self._any(self._read(Space.NODE, end).astype(jnp.float32), self.types(end))

    @staticmethod
    def _any(valid: Array, matrix: SparseMatrix) -> Array:
        return segment_reduce(valid[:, None], None, matrix, reduce="sum", heads=1)[:, 0] > 0

    def degrees(self, dtype: Any) -> Array:
        """``(destinations,)``, how many edges go into each."""
        return jnp.diff(self.nodes.indptr).astype(dtype)

    def edge_ids(self, way: str) -> Array:
        """``(edges,)``, what each edge reads by a way: "src", "dst" or "relation"."""
        if way == "relation":
            return self.relational.types
        return self.nodes.cols if way == "src" else self.nodes.rows

    def type_of_nodes(self, side: str) -> Array:
        """``(nodes,)``, the type of each; the number of types for padding."""
        return self.types(side).by_row.rows


def _by_ids(ids: np.ndarray, size: int) -> SparseMatrix:
    """What sums rows by ids that are known."""
    order = np.argsort(np.where(ids < 0, size, ids), kind="stable")
    ids, order = ids.astype(np.int32), order.astype(np.int32)
    return SparseMatrix(
        Csr(jnp.asarray(np.where(ids < 0, size, ids)[order]), jnp.asarray(order), num_rows=size),
        Csr(None, jnp.asarray(ids), num_rows=len(ids)),
    )


def _there(part: Any) -> Any:
    """A part that was chosen because it is there."""
    assert part is not None
    return part
