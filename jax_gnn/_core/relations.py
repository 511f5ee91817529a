"""Typed sparse matrices: edges that have a relation each, and the (node, relation) pairs they have.

What products with one weight for each relation go through: edges are summed up, or products
gathered, by pairs, and pairs stand together by relation, as segmented products want them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from jax_gnn._core.arrays import STATIC
from jax_gnn._core.csr import Csr, SparseMatrix, permutation, segments
from jax_gnn._core.ids import namespace, pad_ids, take_ids


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Pairs:
    """The (node, relation) pairs that occur at one end of a graph's edges.

    They are numbered in one of two orders: by relation, then node, or by node, then relation. Pairs
    past those that occur are padding, last in both orders, each at its own place.

    Attributes:
        nodes: ``(num_pairs,)``, the node of each pair in the order of relations; -1: padding.
        sizes: ``(num_relations,)``, how many pairs each relation has.
        sorted_nodes: ``(num_pairs,)``, the same nodes in the order of nodes: they ascend.
        order: ``(num_pairs,)``, where each pair in the order of nodes is in that of relations.
        places: ``(num_pairs,)``, the inverse: where each in the order of relations is in that of
            nodes.
        num_nodes: number of nodes.
        by_node: whether pairs are numbered in the order of nodes, else in that of relations.
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
        return self.nodes.shape[-1]

    @property
    def num_relations(self) -> int:
        """Number of relations."""
        return self.sizes.shape[-1]

    @property
    def relations(self) -> Any:
        """``(num_pairs,)``, the relation of each pair in their order; past the last: padding."""
        ends = jnp.cumsum(self.sizes, dtype=self.sizes.dtype)
        places = jnp.arange(self.num_pairs, dtype=ends.dtype)
        found = jnp.searchsorted(ends, places, side="right", method="scan_unrolled")
        return found.astype(self.nodes.dtype)

    @property
    def gather(self) -> SparseMatrix:
        """Row i, in the order of relations, reads its node's row; the transpose sums into nodes."""
        return SparseMatrix(
            Csr(None, self.nodes, num_rows=self.num_pairs),
            Csr(self.sorted_nodes, self.order, num_rows=self.num_nodes),
        )

    @property
    def incidence(self) -> SparseMatrix:
        """An entry a pair, in the order of their numbers, with its relation and its node.

        ``(num_nodes, num_relations)`` where they are numbered by node, else the transpose.
        """
        relations = self.relations
        of_relations = Csr(
            *(relations, self.nodes, self.places if self.by_node else None),
            num_rows=self.num_relations,
        )
        of_nodes = Csr(
            *(
                self.sorted_nodes,
                take_ids(relations, self.order),
                None if self.by_node else self.order,
            ),
            num_rows=self.num_nodes,
        )
        halves = (of_nodes, of_relations) if self.by_node else (of_relations, of_nodes)
        return SparseMatrix(*halves)

    @property
    def numbering(self) -> SparseMatrix | None:
        """Row i, in the order of relations, reads the row of its pair's number; None: row i."""
        return permutation(self.places, self.order) if self.by_node else None

    @property
    def to_node_order(self) -> SparseMatrix:
        """Row i, in the order of nodes, reads its row in the order of relations."""
        return permutation(self.order, self.places)

    def pad(self, new: int, num_nodes: int) -> Pairs:
        """Appends padding, and nodes up to that many."""
        xp = namespace(self.order, self.places)
        own = xp.arange(self.num_pairs, self.num_pairs + new, dtype=self.order.dtype)
        return replace(
            self,
            nodes=pad_ids(self.nodes, new),
            sorted_nodes=pad_ids(self.sorted_nodes, new),
            order=xp.concatenate([self.order, own]),
            places=xp.concatenate([self.places, own]),
            num_nodes=num_nodes,
        )

    @property
    def node_segments(self) -> SparseMatrix:
        """What sums rows in the order of nodes into nodes."""
        return segments(self.sorted_nodes, self.num_nodes)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RelationalMatrix:
    """Edges with relations as the primitives take them: a matrix for each end's pairs.

    Weights of edges are in one order for all parts: by destination, relation, source. It is that
    of the entries ``by_row`` of all matrices or, of a transpose, ``by_col``; the other half's
    ``order`` says which weight an entry has.

    Attributes:
        nodes: ``(num_dst, num_src)``, an entry an edge.
        types: ``(num_edges,)``, the relation of each edge in the order of the weights.
        pair_src: the (source, relation) pairs; None where that part was not built.
        from_pairs: ``(num_dst, pair_src.num_pairs)``, edges from those pairs; likewise.
        pair_dst: the (destination, relation) pairs; likewise.
        to_pairs: ``(pair_dst.num_pairs, num_src)``, edges into those pairs; likewise.
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
