"""The hypergraph container: incidence lists in both directions, as a pytree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn import _index


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Hypergraph:
    """Which nodes belong to which hyperedges, by hyperedge and by node.

    The two halves are the CSR forms of the transposed incidence matrix Hᵀ and of the incidence
    matrix H. All sizes are shapes, so that hypergraphs of equal sizes share one compiled program;
    :meth:`pad` makes sizes equal. Build one with a ``from_…`` method. The arrays are int32, or
    int64 where 32 bits do not suffice.

    Attributes:
        hyperedge_indptr: ``(num_hyperedges + 1,)``, where each hyperedge starts in
            ``hyperedge_nodes``.
        hyperedge_nodes: ``(num_incidences,)``, the nodes of each hyperedge, in ascending order.
        node_indptr: ``(num_nodes + 1,)``, where each node starts in ``node_hyperedges``.
        node_hyperedges: ``(num_incidences,)``, the hyperedges of each node, in ascending order.

    Entries past ``indptr[-1]`` are padding and hold -1. A node named twice in a hyperedge counts
    twice.
    """

    hyperedge_indptr: Array
    hyperedge_nodes: Array
    node_indptr: Array
    node_hyperedges: Array

    @property
    def num_nodes(self) -> int:
        """Number of nodes, padding included."""
        return self.node_indptr.shape[-1] - 1

    @property
    def num_hyperedges(self) -> int:
        """Number of hyperedges, padding included."""
        return self.hyperedge_indptr.shape[-1] - 1

    @property
    def num_incidences(self) -> int:
        """Number of (node, hyperedge) pairs, padding included."""
        return self.hyperedge_nodes.shape[-1]

    @property
    def dual(self) -> Hypergraph:
        """The hypergraph with nodes and hyperedges swapped."""
        return Hypergraph(
            self.node_indptr, self.node_hyperedges, self.hyperedge_indptr, self.hyperedge_nodes
        )

    def __repr__(self) -> str:
        shapes = {f.name: getattr(getattr(self, f.name), "shape", None) for f in fields(self)}
        if any(not shape for shape in shapes.values()):  # a pytree of something else than arrays
            return f"Hypergraph({', '.join(f'{n}={getattr(self, n)!r}' for n in shapes)})"
        return (
            f"Hypergraph(num_nodes={self.num_nodes}, num_hyperedges={self.num_hyperedges}, "
            f"num_incidences={self.num_incidences})"
        )

    @classmethod
    def from_incidence(
        cls,
        node_idx: Any,
        hyperedge_idx: Any,
        *,
        num_nodes: int | None = None,
        num_hyperedges: int | None = None,
        validate: bool = True,
    ) -> Hypergraph:
        """Builds a hypergraph from (node, hyperedge) pairs in any order.

        Works on host arrays, which are checked, and on traced arrays inside ``jax.jit``, which
        cannot be: there, and with ``validate=False``, pairs with an id out of range are padding and
        are dropped.

        Args:
            node_idx: ``(num_incidences,)`` integers, the nodes.
            hyperedge_idx: ``(num_incidences,)`` integers, the hyperedges they belong to.
            num_nodes: number of nodes; by default the largest id plus one (host arrays only).
            num_hyperedges: number of hyperedges, likewise.
            validate: whether ids out of range in host arrays are an error.

        Raises:
            TypeError: an array is not of integers, or a size is missing or not an integer.
            ValueError: an array is not one-dimensional, lengths differ, a size is negative, or an
                id is out of range.
        """
        nodes, hyperedges = _index.check_pairs("node_idx", node_idx, "hyperedge_idx", hyperedge_idx)
        num_nodes = _index.check_size("num_nodes", num_nodes, nodes)
        num_hyperedges = _index.check_size("num_hyperedges", num_hyperedges, hyperedges)
        if validate and not _index.is_traced(nodes):
            _index.check_range("node_idx", nodes, "num_nodes", num_nodes)
            _index.check_range("hyperedge_idx", hyperedges, "num_hyperedges", num_hyperedges)
        by_hyperedge, by_node, _ = _index.sort_both_ways(
            hyperedges, nodes, num_hyperedges, num_nodes
        )
        arrays = (by_hyperedge.indptr, by_hyperedge.cols, by_node.indptr, by_node.cols)
        return cls(*map(jnp.asarray, arrays))

    @classmethod
    def from_hyperedges(
        cls, hyperedges: Iterable[Sequence[int]], *, num_nodes: int | None = None
    ) -> Hypergraph:
        """Builds a hypergraph from one sequence of node ids per hyperedge; sequences may be empty.

        Args:
            hyperedges: the node ids of each hyperedge.
            num_nodes: number of nodes; by default the largest id plus one.

        Raises:
            TypeError: node ids are not integers.
            ValueError: a hyperedge is not a flat sequence, or an id is out of range.
        """
        members = []
        for i, hyperedge in enumerate(hyperedges):
            ids = _index.to_numpy(f"hyperedges[{i}]", hyperedge)
            members.append(
                _index.check_ids(f"hyperedges[{i}]", ids if ids.size else ids.astype(int))
            )
        return cls.from_incidence(
            np.concatenate(members) if members else np.zeros(0, np.int64),
            np.repeat(np.arange(len(members)), [len(ids) for ids in members]),
            num_nodes=num_nodes,
            num_hyperedges=len(members),
        )

    @classmethod
    def from_scipy(cls, incidence: Any) -> Hypergraph:
        """Builds a hypergraph from a sparse incidence matrix.

        Args:
            incidence: ``(num_nodes, num_hyperedges)`` scipy sparse matrix or array of zeros and
                ones.

        Raises:
            TypeError: it is not a scipy sparse matrix or array.
            ValueError: it holds something else than zeros and ones, or is not two-dimensional.
        """
        incidence = _index.check_sparse("incidence", incidence, "(num_nodes, num_hyperedges)")
        coo = incidence.tocoo(copy=True)
        coo.sum_duplicates()
        coo.eliminate_zeros()
        others = coo.data[coo.data != 1]
        if others.size:
            raise ValueError(
                f"incidence must hold zeros and ones, found {others[0]}; "
                "pass (incidence != 0) to ignore the values"
            )
        return cls.from_incidence(
            coo.row, coo.col, num_nodes=coo.shape[0], num_hyperedges=coo.shape[1]
        )

    @classmethod
    def from_knn(cls, features: Any, k: int) -> Hypergraph:
        """Builds one hyperedge per node: the node itself and its ``k - 1`` nearest others.

        This is how HGNN turns features into a hypergraph (Feng et al. 2019, arXiv 1809.09401,
        section 3.1). Distances are Euclidean, in float64; among equals the smaller id wins. Runs on
        the host in O(num_nodes²).

        Args:
            features: ``(num_nodes, features)`` finite real numbers.
            k: size of each hyperedge, from 1 to ``num_nodes``.

        Raises:
            TypeError: ``k`` is not an integer.
            ValueError: wrong shape, ``k`` out of range, or a feature that is not finite.
        """
        points = _index.to_numpy("features", features, np.float64)
        k = _index.check_integer("k", k)
        if points.ndim != 2:
            raise ValueError(f"features must be (num_nodes, features), got shape {points.shape}")
        n = points.shape[0]
        if not 1 <= k <= max(n, 1):
            raise ValueError(f"k must be between 1 and the number of nodes, {n}, got {k}")
        if not np.isfinite(points).all():
            raise ValueError("features must be finite")
        # |a|² + |b|² - 2ab finds candidates fast; among those, the differences a - b decide.
        centered = points - points.mean(axis=0) if n else points
        squares = np.einsum("nf,nf->n", centered, centered)
        error = 16 * (points.shape[1] + 1) * np.finfo(np.float64).eps * squares.max(initial=0)
        nearest = np.empty((n, k), np.int64)
        chunk = max(1, 2**24 // max(n, 1))  # 128 MB of distances at a time
        for start in range(0, n, chunk):
            rows = np.arange(start, min(start + chunk, n))
            distances = squares[rows, None] + squares - 2 * centered[rows] @ centered.T
            distances[rows - start, rows] = -np.inf  # the node itself, even among duplicates
            kth = np.partition(distances, k - 1, axis=1)[:, k - 1]
            for row, distance, bound in zip(rows, distances, kth, strict=True):
                candidates = np.flatnonzero(distance <= bound + error)
                exact = np.square(points[candidates] - points[row]).sum(axis=1)
                exact[candidates == row] = -np.inf
                nearest[row] = candidates[np.argsort(exact, kind="stable")[:k]]
        return cls.from_incidence(
            nearest.ravel(), np.repeat(np.arange(n), k), num_nodes=n, num_hyperedges=n
        )

    def with_self_loops(self, nodes: Literal["isolated", "all"] = "isolated") -> Hypergraph:
        """Adds hyperedges of a single node at the end.

        Host only: how many there are depends on the values.

        Args:
            nodes: ``"isolated"`` for the nodes in no hyperedge, ``"all"`` for every node that has
                no hyperedge of its own yet (as AllSet does, arXiv 2106.13264).

        Raises:
            ValueError: ``nodes`` is none of these.
            TypeError: called inside ``jax.jit``.
        """
        if _index.is_traced(self.node_indptr):
            raise TypeError(
                "with_self_loops works on the host only, as the number of hyperedges depends on "
                "values; call it before jax.jit"
            )
        node_idx, hyperedge_idx = (
            ids[: int(self.node_indptr[-1])] for ids in map(np.asarray, self.incidence())
        )
        if nodes == "isolated":
            have = node_idx
        elif nodes == "all":
            have = node_idx[np.asarray(self.hyperedge_degrees())[hyperedge_idx] == 1]
        else:
            raise ValueError(f"nodes must be 'isolated' or 'all', got {nodes!r}")
        loops = np.setdiff1d(np.arange(self.num_nodes), have)
        return Hypergraph.from_incidence(
            np.concatenate([node_idx, loops]),
            np.concatenate([hyperedge_idx, self.num_hyperedges + np.arange(len(loops))]),
            num_nodes=self.num_nodes,
            num_hyperedges=self.num_hyperedges + len(loops),
        )

    def pad(
        self,
        *,
        num_nodes: int | None = None,
        num_hyperedges: int | None = None,
        num_incidences: int | None = None,
    ) -> Hypergraph:
        """Pads to given capacities, so that differing hypergraphs share one compiled program.

        The new nodes and hyperedges are empty: they have degree 0 and results 0.

        Args:
            num_nodes: capacity in nodes; None leaves it.
            num_hyperedges: capacity in hyperedges; None leaves it.
            num_incidences: capacity in incidences; None leaves it.

        Raises:
            TypeError: a capacity is not an integer.
            ValueError: a capacity is smaller than what is there.
        """
        new_nodes = _index.growth("num_nodes", num_nodes, self.num_nodes)
        new_hyperedges = _index.growth("num_hyperedges", num_hyperedges, self.num_hyperedges)
        new_incidences = _index.growth("num_incidences", num_incidences, self.num_incidences)
        return Hypergraph(
            _index.pad_indptr(self.hyperedge_indptr, new_hyperedges),
            _index.pad_ids(self.hyperedge_nodes, new_incidences),
            _index.pad_indptr(self.node_indptr, new_nodes),
            _index.pad_ids(self.node_hyperedges, new_incidences),
        )

    def incidence(self) -> tuple[Array, Array]:
        """The pairs ``(node_idx, hyperedge_idx)`` ordered by hyperedge, then node; padding is -1.

        Returns:
            Two arrays ``(num_incidences,)``.
        """
        return self.hyperedge_nodes, _index.row_ids(self.hyperedge_indptr, self.num_incidences)

    def node_degrees(self) -> Array:
        """Number of hyperedges of each node: ``(num_nodes,)`` integers."""
        return jnp.diff(self.node_indptr)

    def hyperedge_degrees(self) -> Array:
        """Number of nodes of each hyperedge: ``(num_hyperedges,)`` integers."""
        return jnp.diff(self.hyperedge_indptr)


# Exported functions that take hypergraphs can be serialized.
jax.export.register_pytree_node_serialization(
    Hypergraph,
    serialized_name="jax_gnn.Hypergraph",
    serialize_auxdata=lambda auxdata: b"",
    deserialize_auxdata=lambda data: (),
)
