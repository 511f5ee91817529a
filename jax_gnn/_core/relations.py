"""Typed sparse matrices: edges with relations, and the (node, relation) pairs that occur.

Products with one weight for each relation sum edges, or gather products, by pairs. Pairs of one
relation are contiguous, as segmented products need them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import STATIC, promoted
from jax_gnn._core.csr import Csr, SparseMatrix, permutation, segments
from jax_gnn._core.ids import PADDING, in_range, index_dtype, namespace, pad_ids, take_ids


def table_rows(
    nodes: Array, relations: Array, num_nodes: int, num_relations: int
) -> tuple[Array, int]:
    """Return rows of nodes and relations in a table of all of them, and the table's size."""
    size = num_nodes * num_relations
    dtype = promoted(relations.dtype, index_dtype(size))
    rows = nodes.astype(dtype) * num_relations + relations.astype(dtype)
    return jnp.where(in_range(nodes, num_nodes), rows, PADDING), size


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Pairs:
    """The (node, relation) pairs that occur at one end of a graph's edges.

    They are numbered in one of two orders: by relation, then node, or by node, then relation.
    Padding is last in both orders, at the same positions.

    Attributes:
        nodes: ``(num_pairs,)``, the node of each pair in the order of relations; -1 for padding.
        sizes: ``(num_relations,)``, the number of pairs of each relation.
        sorted_nodes: ``(num_pairs,)``, the node of each pair in the order of nodes.
        order: ``(num_pairs,)``, maps positions in the order of nodes to the order of relations.
        places: ``(num_pairs,)``, the inverse of ``order``.
        num_nodes: number of nodes.
        by_node: whether pairs are numbered in the order of nodes.
    """

    nodes: Any
    sizes: Any
    sorted_nodes: Any
    order: Any
    places: Any
    num_nodes: int = field(kw_only=True, metadata=STATIC)
    by_node: bool = field(kw_only=True, metadata=STATIC)

    @property
    def num_pairs(self) -> int:
        """Number of pairs, padding included."""
        return cast(int, self.nodes.shape[-1])

    @property
    def num_relations(self) -> int:
        """Number of relations."""
        return cast(int, self.sizes.shape[-1])

    @property
    def relations(self) -> Any:
        """Relation of each pair in the order of relations, ``(num_pairs,)``, then padding."""
        # Pairs of a relation are contiguous: a pair's relation is the number of those that end
        # before it. JAX's search, a loop, takes no batch over explicit mesh axes.
        bounds = jnp.cumsum(self.sizes, dtype=self.sizes.dtype)
        ends = jnp.zeros(self.num_pairs, bounds.dtype).at[bounds]
        relations = jnp.cumsum(ends.add(1, mode="drop", indices_are_sorted=True))
        return relations.astype(self.nodes.dtype)

    @property
    def gather(self) -> SparseMatrix:
        """The matrix whose row i, in the order of relations, reads the row of its node."""
        return SparseMatrix(
            Csr(None, self.nodes, num_rows=self.num_pairs),
            Csr(self.sorted_nodes, self.order, num_rows=self.num_nodes),
        )

    @property
    def incidence(self) -> SparseMatrix:
        """The matrix with an entry for each pair, in the order of their numbers.

        ``(num_nodes, num_relations)`` if pairs are numbered by node, else the transpose.
        """
        relations = self.relations
        places, order = (self.places, None) if self.by_node else (None, self.order)
        by_relation = Csr(relations, self.nodes, places, num_rows=self.num_relations)
        node_relations = take_ids(relations, self.order)
        by_node = Csr(self.sorted_nodes, node_relations, order, num_rows=self.num_nodes)
        matrix = SparseMatrix(by_node, by_relation)
        return matrix if self.by_node else matrix.T

    @property
    def table(self) -> SparseMatrix:
        """The matrix whose row ``node · num_relations + relation`` has the number of that pair.

        Its transpose looks up each pair in a table of all nodes and relations.
        """
        rows, size = table_rows(self.nodes, self.relations, self.num_nodes, self.num_relations)
        order = self.order.astype(rows.dtype)
        sorted_rows = take_ids(rows, order)
        if self.by_node:
            return segments(sorted_rows, size)
        return SparseMatrix(
            Csr(sorted_rows, order, num_rows=size), Csr(None, rows, num_rows=self.num_pairs)
        )

    @property
    def numbering(self) -> SparseMatrix | None:
        """The matrix whose row i, in the order of relations, reads its pair's row; None: row i."""
        return permutation(self.places, self.order) if self.by_node else None

    @property
    def to_node_order(self) -> SparseMatrix:
        """The matrix that permutes rows from the order of relations to the order of nodes."""
        return permutation(self.order, self.places)

    def pad(self, new: int, num_nodes: int) -> Pairs:
        """Append padding, and nodes up to ``num_nodes``."""
        xp = namespace(self.order, self.places)
        padding = xp.arange(self.num_pairs, self.num_pairs + new, dtype=self.order.dtype)
        return replace(
            self,
            nodes=pad_ids(self.nodes, new),
            sorted_nodes=pad_ids(self.sorted_nodes, new),
            order=xp.concatenate([self.order, padding]),
            places=xp.concatenate([self.places, padding]),
            num_nodes=num_nodes,
        )

    @property
    def node_segments(self) -> SparseMatrix:
        """The matrix that sums rows in the order of nodes into nodes."""
        return segments(self.sorted_nodes, self.num_nodes)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RelationalMatrix:
    """Edges with relations as primitives take them: a matrix for the pairs of each end.

    Weights of edges are in one order for all parts: by destination, relation, source. Entries
    ``by_row`` of all matrices have this order or, of a transpose, entries ``by_col``; the ``order``
    of the other half names the weight of each entry.

    Attributes:
        nodes: ``(num_dst, num_src)``, with an entry for each edge.
        types: ``(num_edges,)``, the relation of each edge in the order of the weights.
        pair_src: the (source, relation) pairs; None if they were not built.
        from_pairs: ``(num_dst, pair_src.num_pairs)``, edges from those pairs, or None.
        pair_dst: the (destination, relation) pairs, or None.
        to_pairs: ``(pair_dst.num_pairs, num_src)``, edges into those pairs, or None.
    """

    nodes: SparseMatrix
    types: Any
    pair_src: Pairs | None = None
    from_pairs: SparseMatrix | None = None
    pair_dst: Pairs | None = None
    to_pairs: SparseMatrix | None = None

    @property
    def T(self) -> RelationalMatrix:
        """The transpose: all edges reversed."""
        return replace(
            self,
            nodes=self.nodes.T,
            pair_src=self.pair_dst,
            from_pairs=None if self.to_pairs is None else self.to_pairs.T,
            pair_dst=self.pair_src,
            to_pairs=None if self.from_pairs is None else self.from_pairs.T,
        )
