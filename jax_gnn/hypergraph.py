"""The hypergraph container: a bipartite graph, or two of them, as a pytree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.export
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.arguments import check_choice
from jax_gnn._core.ids import PADDING, device_of, is_traced, on_host, run_on_host, to_device
from jax_gnn.graph import Graph, check_one_dtype


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Which nodes belong to which hyperedges: a bipartite graph, from nodes to hyperedges.

    All sizes are shapes, so that hypergraphs of equal sizes share one compiled program; :meth:`pad`
    makes sizes equal. Build one with a ``from_…`` method, which also cuts the incidences into slots
    for the kernels (:meth:`Graph.with_edge_split`).

    Messages run from nodes to hyperedges and from there to nodes again. In a directed hypergraph,
    the nodes that a hyperedge hears from, its tail, are others than those that hear from it, its
    head.

    Attributes:
        graph: the incidences, as edges from nodes to hyperedges; those of the tails, if directed.
            What ops take or give for each incidence is in the order of its edges: by hyperedge,
            then node. :meth:`incidence_values` brings values there,
            :meth:`to_input_order` back.
        head: the incidences of the heads, also as edges from nodes to hyperedges; None: those of
            ``graph``.

    A node named twice in a hyperedge counts twice.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> hypergraph
        Hypergraph(num_nodes=4, num_hyperedges=2, num_incidences=5)
        >>> hypergraph.node_degrees(), hypergraph.hyperedge_degrees()
        (Array([1, 1, 2, 1], dtype=int32), Array([3, 2], dtype=int32))
    """

    graph: Graph
    head: Graph | None = None

    @property
    def receiving(self) -> Graph:
        """The incidences along which nodes receive: ``head``, or ``graph`` where that is None."""
        return self.graph if self.head is None else self.head

    @property
    def hyperedge_indptr(self) -> Array:
        """``(num_hyperedges + 1,)``, where each hyperedge starts in ``hyperedge_nodes``."""
        return self.graph.indptr

    @property
    def hyperedge_nodes(self) -> Array:
        """``(num_incidences,)``, the nodes of each hyperedge, ascending; -1 for padding."""
        return self.graph.cols

    @property
    def node_indptr(self) -> Array:
        """``(num_nodes + 1,)``, where each node starts in ``node_hyperedges``."""
        return self.graph.t_indptr

    @property
    def node_hyperedges(self) -> Array:
        """``(num_incidences,)``, the hyperedges of each node, ascending; -1 for padding."""
        return self.graph.t_cols

    @property
    def num_nodes(self) -> int:
        """Number of nodes, padding included."""
        return self.graph.num_src

    @property
    def num_hyperedges(self) -> int:
        """Number of hyperedges, padding included."""
        return self.graph.num_dst

    @property
    def num_incidences(self) -> int:
        """Number of (node, hyperedge) pairs of ``graph``, padding included."""
        return self.graph.num_edges

    @property
    def dual(self) -> Hypergraph:
        """The hypergraph with nodes and hyperedges swapped."""
        head = None if self.head is None else self.graph.transpose()
        return Hypergraph(self.receiving.transpose(), head)

    def __repr__(self) -> str:
        if any(not repr(graph).startswith("Graph(num_") for graph in (self.graph, self.receiving)):
            return f"Hypergraph(graph={self.graph!r}, head={self.head!r})"  # a pytree of others
        sizes = ["num_nodes", "num_hyperedges", "num_incidences"]
        parts = [f"{name}={getattr(self, name)}" for name in sizes]
        if self.head is not None:
            parts.append(f"num_head_incidences={self.head.num_edges}")
        return f"Hypergraph({', '.join(parts)})"

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
        pairs = ("node_idx", node_idx, "hyperedge_idx", hyperedge_idx)
        return cls(*_build([pairs], num_nodes, num_hyperedges, validate))

    @classmethod
    def from_directed(
        cls,
        tail_nodes: Any,
        tail_hyperedges: Any,
        head_nodes: Any,
        head_hyperedges: Any,
        *,
        num_nodes: int | None = None,
        num_hyperedges: int | None = None,
        validate: bool = True,
    ) -> Hypergraph:
        """Builds a directed hypergraph, from pairs in any order like :meth:`from_incidence`.

        Args:
            tail_nodes: ``(num_incidences,)`` integers, nodes that hyperedges hear from.
            tail_hyperedges: ``(num_incidences,)`` integers, the hyperedges they send to.
            head_nodes: ``(num_head_incidences,)`` integers, nodes that hear from hyperedges.
            head_hyperedges: ``(num_head_incidences,)`` integers, the hyperedges that send to them.
            num_nodes: number of nodes; by default the largest id plus one (host arrays only).
            num_hyperedges: number of hyperedges, likewise.
            validate: whether ids out of range in host arrays are an error.

        Raises:
            TypeError: an array is not of integers, or a size is missing or not an integer.
            ValueError: an array is not one-dimensional, lengths differ, a size is negative, or an
                id is out of range.
        """
        tail = ("tail_nodes", tail_nodes, "tail_hyperedges", tail_hyperedges)
        head = ("head_nodes", head_nodes, "head_hyperedges", head_hyperedges)
        return cls(*_build([tail, head], num_nodes, num_hyperedges, validate))

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
        if isinstance(hyperedges, Mapping | str) or not isinstance(hyperedges, Iterable):
            raise TypeError(
                f"hyperedges must be sequences of node ids, got {type(hyperedges).__name__}; "
                "jax_gnn.convert.from_table takes names"
            )
        members = []
        for i, hyperedge in enumerate(hyperedges):
            members.append(arguments.check_ids(f"hyperedges[{i}]", hyperedge))
        none = np.zeros(0, np.int64)
        num_nodes = arguments.check_size("num_nodes", num_nodes, none, *members)
        for i, ids in enumerate(members):
            arguments.check_range(f"hyperedges[{i}]", ids, "num_nodes", num_nodes)
        return cls.from_incidence(
            np.concatenate([none, *members]),
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
            ValueError: it holds something else than zeros and ones, is not two-dimensional, or its
                index arrays are not those of a matrix of its shape.
        """
        coo = arguments.check_sparse("incidence", incidence, "(num_nodes, num_hyperedges)")
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
            TypeError: ``features`` are not real numbers, or ``k`` is not an integer.
            ValueError: wrong shape, ``k`` out of range, or a feature that is not finite.
        """
        points = arguments.to_numpy("features", features)
        if points.dtype != bool and not arguments.is_real(points.dtype):
            raise TypeError(f"features must be real numbers, got {points.dtype}")
        points = points.astype(np.float64)
        k = arguments.check_integer("k", k)
        if points.ndim != 2:
            raise ValueError(f"features must be (num_nodes, features), got shape {points.shape}")
        n = points.shape[0]
        if not 1 <= k <= max(n, 1):
            raise ValueError(f"k must be between 1 and the number of nodes, {n}, got {k}")
        if not np.isfinite(points).all():
            node, feature = np.argwhere(~np.isfinite(points))[0]
            raise ValueError(
                f"features must be finite, got {points[node, feature]} at [{node}, {feature}]"
            )
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
        """Adds hyperedges of a single node, tail and head in one, at the end. Host only.

        The new incidences were not in the input: :meth:`incidence_values` gives them its
        ``fill_value``. Padding is dropped.

        Args:
            nodes: ``"isolated"`` for the nodes in no hyperedge, ``"all"`` for every node that has
                no hyperedge of its own yet (as AllSet does, arXiv 2106.13264).

        Raises:
            ValueError: ``nodes`` is none of these.
            TypeError: called inside ``jax.jit``.
        """
        check_choice("nodes", nodes, ("isolated", "all"))
        graphs = [self.graph] if self.head is None else [self.graph, self.head]
        members = [graph._host_edges("with_self_loops")[:2] for graph in graphs]
        if nodes == "isolated":
            have = np.concatenate([node_idx for node_idx, _ in members])
        else:
            owners = [_owners(*pairs, self.num_hyperedges) for pairs in members]
            have = owners[0][owners[0] == owners[-1]]
        loops = np.setdiff1d(np.arange(self.num_nodes), have)
        new = self.num_hyperedges + np.arange(len(loops))
        ids, size = np.full(len(loops), PADDING), self.num_hyperedges + len(loops)
        return Hypergraph(*(graph._with_edges(loops, new, ids, size) for graph in graphs))

    @run_on_host()
    def pad(
        self,
        *,
        num_nodes: int | None = None,
        num_hyperedges: int | None = None,
        num_incidences: int | None = None,
        num_head_incidences: int | None = None,
    ) -> Hypergraph:
        """Pads to given capacities, so that differing hypergraphs share one compiled program.

        The new nodes and hyperedges are empty: they have degree 0 and results 0.

        Args:
            num_nodes: capacity in nodes; None leaves it.
            num_hyperedges: capacity in hyperedges; None leaves it.
            num_incidences: capacity in incidences; None leaves it.
            num_head_incidences: capacity in incidences of the heads of a directed hypergraph; None
                leaves it.

        Raises:
            TypeError: a capacity is not an integer.
            ValueError: a capacity is smaller than what is there, or ``num_head_incidences`` is
                given for a hypergraph that is not directed.
        """
        # Graph's own checks have other names for these.
        num_nodes = self.num_nodes + arguments.added_size("num_nodes", num_nodes, self.num_nodes)
        old = self.num_hyperedges
        num_hyperedges = old + arguments.added_size("num_hyperedges", num_hyperedges, old)

        def padded(name: str, graph: Graph, wanted: int | None) -> Graph:
            size = graph.num_edges + arguments.added_size(name, wanted, graph.num_edges)
            return graph.pad(num_src=num_nodes, num_dst=num_hyperedges, num_edges=size)

        graph = padded("num_incidences", self.graph, num_incidences)
        if self.head is not None:
            return Hypergraph(graph, padded("num_head_incidences", self.head, num_head_incidences))
        if num_head_incidences is not None:
            raise ValueError(
                "num_head_incidences is for directed hypergraphs, this one has no head, got "
                f"{num_head_incidences}"
            )
        return Hypergraph(graph)

    def incidence(self) -> tuple[Array, Array]:
        """The pairs ``(node_idx, hyperedge_idx)`` ordered by hyperedge, then node; padding is -1.

        Returns:
            Two arrays ``(num_incidences,)``.
        """
        return self.graph.cols, self.graph.rows

    def incidence_values(self, values: Any, fill_value: Any = 0) -> Array:
        """Brings values, such as weights, from the order of the input to that of ``graph``.

        For those of the heads of a directed hypergraph there is ``head.edge_values``.

        Args:
            values: ``(num_input_incidences, *features)``, one for each incidence that the
                hypergraph was built from.
            fill_value: what incidences get that were not there: self-loops that were added, and
                padding.

        Returns:
            ``(num_incidences, *features)`` in the dtype of ``values``, as
            :meth:`Graph.edge_values`.

        Raises:
            TypeError: ``values`` are not numbers, or ``fill_value`` is none.
            ValueError: ``values`` has not one row for each incidence of the input.
        """
        return self.graph._values(values, fill_value, "num_input_incidences")

    def to_input_order(self, values: Any, fill_value: Any = 0) -> Array:
        """Brings values of incidences back to the order of the input: undoes `incidence_values`.

        For those of the heads of a directed hypergraph there is ``head.to_input_order``.

        Args:
            values: ``(num_incidences, *features)`` in the order of ``graph``.
            fill_value: as for :meth:`Graph.to_input_order`.

        Returns:
            ``(num_input_incidences, *features)`` in the dtype of ``values``.

        Raises:
            TypeError: as :meth:`Graph.to_input_order`.
            ValueError: likewise.
        """
        return self.graph._to_input_order(values, fill_value, "num_incidences")

    def check(self, name: str = "hypergraph") -> Hypergraph:
        """The hypergraph, if its arrays are such as ops take: see :meth:`Graph.check`.

        Args:
            name: what errors call it.

        Raises:
            TypeError: an array is not of int32 or int64, or they are not all of one type.
            ValueError: lengths do not fit each other, or graph and head differ in their sizes.
        """
        graphs = {"graph": self.graph} | ({} if self.head is None else {"head": self.head})
        checked = {
            side: arguments.check_container(f"{name}.{side}", graph, Graph)
            for side, graph in graphs.items()
        }
        check_one_dtype(name, {f"{side}.indptr": g.indptr.dtype for side, g in graphs.items()})
        if len({(graph.num_src, graph.num_dst) for graph in graphs.values()}) > 1:
            sizes = " and ".join(f"{graph.num_src, graph.num_dst}" for graph in graphs.values())
            raise ValueError(
                f"graph and head of the {name} must have the same numbers of nodes and hyperedges, "
                f"got {sizes}"
            )
        return Hypergraph(**checked)

    @property
    def _plain(self) -> Hypergraph:
        """See :meth:`Graph._plain`."""
        return Hypergraph(self.graph._plain, self.head)

    def node_degrees(self) -> Array:
        """Number of hyperedges of each node: ``(num_nodes,)`` integers; of tails, if directed."""
        return self.graph.out_degrees()

    def hyperedge_degrees(self) -> Array:
        """Number of nodes of each hyperedge: ``(num_hyperedges,)`` integers, likewise."""
        return self.graph.in_degrees()


def _build(
    incidences: Sequence[tuple[str, Any, str, Any]],
    num_nodes: Any,
    num_hyperedges: Any,
    validate: bool,
) -> list[Graph]:
    """A graph from each set of pairs, which come with the arguments' names for the errors."""
    device = device_of(*(part for pairs in incidences for part in pairs))
    checked = [arguments.check_pairs(*pairs) for pairs in incidences]
    all_nodes, all_hyperedges = zip(*checked, strict=True)
    num_nodes = arguments.check_size("num_nodes", num_nodes, *all_nodes)
    num_hyperedges = arguments.check_size("num_hyperedges", num_hyperedges, *all_hyperedges)
    sizes = {"num_src": num_nodes, "num_dst": num_hyperedges}
    graphs = []
    for (node_name, _, hyperedge_name, _), pair in zip(incidences, checked, strict=True):
        if arguments.check_flag("validate", validate) and not is_traced(*pair):
            arguments.check_range(node_name, pair[0], "num_nodes", num_nodes)
            arguments.check_range(hyperedge_name, pair[1], "num_hyperedges", num_hyperedges)
        with on_host(True):  # what is traced stays so
            graph = Graph.from_edges(*pair, **sizes, validate=False).with_edge_split()
        graphs.append(graph)
    return to_device(graphs, device)


def _owners(node_idx: np.ndarray, hyperedge_idx: np.ndarray, num_hyperedges: int) -> np.ndarray:
    """The node that each hyperedge consists of; -1 where there is not just one."""
    alone = np.bincount(hyperedge_idx, minlength=num_hyperedges)[hyperedge_idx] == 1
    owners = np.full(num_hyperedges, PADDING)
    owners[hyperedge_idx[alone]] = node_idx[alone]
    return owners


# Exported functions that take hypergraphs can be serialized.
jax.export.register_pytree_node_serialization(
    Hypergraph,
    serialized_name="jax_gnn.Hypergraph",
    serialize_auxdata=lambda auxdata: b"",
    deserialize_auxdata=lambda data: (),
)
