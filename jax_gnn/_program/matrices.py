"""The matrices of a graph, by which rows of one space are gathered to, or summed into, another."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jax_gnn._core.arrays import FLOATS, row_wise, take
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.ids import in_range, take_ids
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._ops.attention.xla import end_matrices
from jax_gnn._ops.relational_aggregate.xla import types_matrix
from jax_gnn._ops.segment_reduce.primitive import gather, segment_reduce
from jax_gnn._program.spaces import Parts, Space
from jax_gnn.batches import Batch
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph

Structure = Graph | RelationalGraph | Batch[Any]
Part = TypeVar("Part")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class FullGraph(Graph):
    """A graph without padding, which therefore needs no masks."""

    @classmethod
    def of(cls, graph: Graph) -> FullGraph:
        """Return a graph, all of whose edges are in range."""
        return cls(*(getattr(graph, field.name) for field in fields(graph)))


def parts_of(graph: Structure) -> Parts:
    """Return the spaces of a graph."""
    rows = {Space.SHARED: 1}
    if isinstance(graph, Batch):
        parts = parts_of(graph.graph)
        return parts._replace(rows={Space.GRAPH: graph.num_graphs, **parts.rows})
    nodes = graph if isinstance(graph, Graph) else graph.nodes
    rows[Space.EDGE] = graph.num_edges
    rows[Space.NODE] = max(nodes.num_src, nodes.num_dst)
    ends_known = False
    if isinstance(graph, RelationalGraph):
        optional = {
            Space.RELATION: graph.num_relations,
            Space.SOURCE_PAIR: graph.num_src_pairs,
            Space.DESTINATION_PAIR: graph.num_dst_pairs,
            Space.TYPE: None if graph.node_type_sizes is None else len(graph.node_type_sizes),
        }
        rows |= {space: size for space, size in optional.items() if size is not None}
        ends_known = graph.relation_ends is not None and None not in graph.relation_ends
    return Parts(rows, nodes.num_src, nodes.num_dst, ends_known)


class Matrices:
    """Sparse matrices between the spaces of a graph, each made at its first use.

    A matrix sums the rows of a space into those that they read by a way; its transpose gathers.

    Attributes:
        structure: The graph, or graphs.
        graph: The graph, of several graphs all edges.
        parts: Its spaces.
    """

    def __init__(self, graph: Structure) -> None:
        self.structure = graph
        self.graph: Graph | RelationalGraph = graph.graph if isinstance(graph, Batch) else graph
        self.parts = parts_of(graph)
        self._cache: dict[tuple[Space, str], SparseMatrix] = {}

    # --- Matrices ------------------------------------------------------------------------------

    @property
    def nodes(self) -> Graph:
        """The edges from nodes to nodes."""
        return self.graph if isinstance(self.graph, Graph) else self.graph.nodes

    @functools.cached_property
    def graph_ids(self) -> Array:
        """``(nodes,)``, the graph of each node; the number of graphs for padding."""
        assert isinstance(self.structure, Batch)
        ids, size = self.structure.graph_ids, self.parts.rows[Space.GRAPH]
        return jnp.where(in_range(ids, size), ids, size)

    @functools.cached_property
    def relational(self) -> RelationalMatrix:
        """All edges with their relations."""
        assert isinstance(self.graph, RelationalGraph)
        return self.graph.matrix(weighted=True)

    def edges(self, source: str, dest: Space, way: str = "dst") -> SparseMatrix:
        """Return the edges as a matrix, or the nodes of graphs.

        Args:
            source: The columns: "src", "src_pair", or "" for the edges themselves, or for nodes;
                "dst" for rows of sources.
            dest: The rows: `Space.NODE`, `Space.DESTINATION_PAIR` or `Space.GRAPH`.
            way: The way to the rows: "dst", "src" or "graph".
        """
        if way != "dst":
            reverse = self.nodes.matrix(weighted=True).T
            space = Space.EDGE if way == "src" else Space.NODE
            return reverse if source else self.matrix(space, way)
        if dest is Space.NODE:
            if source == "src":
                return self.nodes.matrix(weighted=True)
            if source == "src_pair":
                return _present(self.relational.from_pairs)
            return self.matrix(Space.EDGE, "dst")
        if source:
            by_row, by_col = _present(self.relational.to_pairs)
            if source == "src_pair":  # entries by row have one order in all matrices
                of_sources, by_col = _present(self.relational.from_pairs)
                dst_pairs = take_ids(by_row.rows, by_col.order)
                by_col = replace(by_col, cols=dst_pairs, slots=None)
                by_row = replace(by_row, cols=of_sources.cols, slots=None)
            return SparseMatrix(by_row, by_col)
        return self.matrix(Space.EDGE, "dst_pair")

    def pairs(self, space: Space) -> Pairs:
        """Return the (source, relation) or (destination, relation) pairs."""
        matrix = self.relational
        return _present(matrix.pair_src if space is Space.SOURCE_PAIR else matrix.pair_dst)

    def matrix(self, space: Space, way: str) -> SparseMatrix:
        """Return the matrix that sums rows of a space into those that they read by a way."""
        if (space, way) not in self._cache:
            self._cache[space, way] = self._make(space, way)
        return self._cache[space, way]

    def _make(self, space: Space, way: str) -> SparseMatrix:
        if space is Space.EDGE:
            if way in ("src", "dst"):
                at_end = self.nodes.ends()[way == "src"]
                if not isinstance(self.graph, FullGraph):
                    return at_end
                return at_end._replace(by_col=replace(at_end.by_col, in_range=True))
            if way == "relation":
                return types_matrix(self.relational, self.parts.rows[Space.RELATION])
            if way == "src_pair":
                return end_matrices(_present(self.relational.from_pairs))[1]
            return end_matrices(_present(self.relational.to_pairs))[0]
        if space is Space.NODE:
            return segments(self.graph_ids, self.parts.rows[Space.GRAPH])
        if space is Space.RELATION:
            assert isinstance(self.graph, RelationalGraph) and self.graph.relation_ends
            side = way == "dst_type"
            types = [-1 if types is None else types[side] for types in self.graph.relation_ends]
            return _sum_by_ids(np.array(types), self.parts.rows[Space.TYPE])
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
        """Return the matrix that sums nodes of a side by type."""
        assert isinstance(self.graph, RelationalGraph) and self.graph.node_type_sizes is not None
        sizes = self.graph.node_type_sizes
        rows = self.size(Space.NODE, side)
        ids = np.full(rows, len(sizes))
        ids[: sum(sizes)] = np.repeat(np.arange(len(sizes)), sizes)[:rows]
        return segments(jnp.asarray(ids, self.nodes.rows.dtype), len(sizes))

    # --- Rows ----------------------------------------------------------------------------------

    def size(self, space: Space, side: str = "") -> int:
        """Return the number of rows of a space; for nodes, at a side of a bipartite graph."""
        if space is Space.NODE:
            return self.parts.num_src if side == "src" else self.parts.num_dst
        return self.parts.rows[space]

    def gather(self, x: Array, space: Space, way: str, side: str = "") -> Array:
        """Return what the rows of a space read of an array by a way; zeros for padding."""
        if way == "type":
            return self._gather(x, self.types(side))
        if way == "graph":  # padding reads the first graph: functions of zeros may be infinite
            is_node = row_wise(self.graph_ids < x.shape[0], x)
            first = jax.lax.stop_gradient(x[:1])
            return jnp.where(is_node, self._gather(x, self.matrix(space, way)), first)
        if way in ("src_type", "dst_type") and space is not Space.RELATION:
            if self.parts.ends_known:
                of_relations = self.gather(x, Space.RELATION, way)
                return self.gather(of_relations, space, "relation")
            side = way.removesuffix("_type")
            return self.gather(self.gather(x, Space.NODE, "type", side), space, side)
        return self._gather(x, self.matrix(space, way))

    @staticmethod
    def _gather(x: Array, matrix: SparseMatrix) -> Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):  # padding reads a key, too
            return x[jnp.clip(matrix.by_col.cols, 0, max(x.shape[0] - 1, 0))]
        if x.dtype not in FLOATS:
            return take(x, matrix.by_col.cols)
        return gather(x, matrix)

    def counted(self, space: Space, read_by: Collection[str] | None = None) -> Array | None:
        """Return ``(rows,)``, which rows of a space count; None if all do.

        Args:
            space: The space.
            read_by: Count only rows that edges read by these ways; None counts all but padding.
        """
        if space is Space.EDGE:
            if isinstance(self.graph, FullGraph):
                return None
            return _mask(in_range(self.nodes.rows, self.parts.num_dst))
        if space in (Space.SOURCE_PAIR, Space.DESTINATION_PAIR):
            pairs = self.pairs(space)
            nodes = pairs.sorted_nodes if pairs.by_node else pairs.nodes
            return _mask(in_range(nodes, pairs.num_nodes))
        if read_by is None or space is Space.SHARED:
            return None
        masks = [self._is_read(space, way) for way in sorted(read_by)]
        return functools.reduce(jnp.logical_or, masks)

    def _is_read(self, space: Space, way: str) -> Array:
        """Return ``(rows,)``, which nodes, relations or types edges read by a way."""
        if space in (Space.NODE, Space.GRAPH):
            return self.degrees(jnp.int32, way) > 0
        if space is Space.RELATION:
            for pairs in (self.relational.pair_src, self.relational.pair_dst):
                if pairs is not None:  # which have an edge each
                    return _mask(pairs.sizes > 0)
            valid = in_range(self.nodes.rows, self.parts.num_dst).astype(jnp.float32)
            return _any(valid, self.matrix(Space.EDGE, "relation"))
        if way == "type":
            return jnp.asarray(self.graph.node_type_sizes) > 0  # type: ignore[union-attr]
        side = "src" if way == "src_type" else "dst"
        return _any(self._is_read(Space.NODE, side).astype(jnp.float32), self.types(side))

    def degrees(self, dtype: DTypeLike, way: str = "dst") -> Array:
        """Return ``(rows,)``, the number of rows that are reduced into each by a way."""
        if way == "graph":
            assert isinstance(self.structure, Batch)
            return self.structure.num_nodes.astype(dtype)
        pointers = self.nodes.indptr if way == "dst" else self.nodes.t_indptr
        return jnp.diff(pointers).astype(dtype)

    def edge_ids(self, way: str) -> Array:
        """Return ``(edges,)``, the row that each edge reads by "src", "dst" or "relation"."""
        ids: Array
        if way == "relation":
            ids = self.relational.types
        else:
            ids = self.nodes.cols if way == "src" else self.nodes.rows
        return ids

    def type_of_nodes(self, side: str) -> Array:
        """Return ``(nodes,)``, the type of each; the number of types for padding."""
        types: Array = self.types(side).by_row.rows
        return types


def _mask(mask: Array) -> Array:
    """Return a mask of the untyped helpers of containers, typed."""
    array: Array = mask
    return array


def _any(valid: Array, matrix: SparseMatrix) -> Array:
    """Return which rows of a matrix have a valid entry."""
    return _mask(segment_reduce(valid[:, None], None, matrix, reduce="sum", heads=1)[:, 0] > 0)


def _sum_by_ids(ids: np.ndarray, size: int) -> SparseMatrix:
    """Return the matrix that sums rows by ids of the host."""
    order = np.argsort(np.where(ids < 0, size, ids), kind="stable")
    ids, order = ids.astype(np.int32), order.astype(np.int32)
    return SparseMatrix(
        Csr(jnp.asarray(np.where(ids < 0, size, ids)[order]), jnp.asarray(order), num_rows=size),
        Csr(None, jnp.asarray(ids), num_rows=len(ids)),
    )


def _present(part: Part | None) -> Part:
    """Return a part of the graph that was chosen because it exists."""
    assert part is not None
    return part
