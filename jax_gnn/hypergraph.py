"""The container `Hypergraph`: a bipartite graph of incidences, or two of them, as a pytree.

An *incidence* is a (node, hyperedge) pair: the node belongs to the hyperedge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, device_of, is_traced, on_host, run_on_host, to_device
from jax_gnn.graph import Graph, check_one_dtype, register_serialization


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Hypergraph, stored as a bipartite graph from nodes to hyperedges.

    All sizes are shapes, so that hypergraphs of equal sizes share one compiled program; :meth:`pad`
    makes sizes equal. Build one with a ``from_…`` method, which also cuts the incidences into slots
    for the kernels (:meth:`Graph.with_edge_split`).

    Messages run from nodes to hyperedges, and from hyperedges to nodes. In a directed hypergraph,
    a hyperedge receives from the nodes of its tail, and sends to the nodes of its head.

    Attributes:
        graph: the incidences, as edges from nodes to hyperedges; of the tails, if directed. Values
            of incidences are in the order of its edges: by hyperedge, then node.
            :meth:`incidence_values` brings values there, :meth:`to_input_order` back.
        head: the incidences of the heads, also as edges from nodes to hyperedges; None for an
            undirected hypergraph.

    A node that is repeated in a hyperedge counts as often as it is repeated.

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
        """Incidences along which nodes receive: ``head``, or ``graph`` if undirected."""
        return self.graph if self.head is None else self.head

    @property
    def hyperedge_indptr(self) -> Array:
        """``(num_hyperedges + 1,)``, row pointers of the hyperedges into ``hyperedge_nodes``."""
        return self.graph.indptr

    @property
    def hyperedge_nodes(self) -> Array:
        """``(num_incidences,)``, the nodes of each hyperedge, ascending; -1 for padding."""
        return self.graph.cols

    @property
    def node_indptr(self) -> Array:
        """``(num_nodes + 1,)``, row pointers of the nodes into ``node_hyperedges``."""
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
        """Hypergraph with nodes and hyperedges swapped."""
        head = None if self.head is None else self.graph.transpose()
        return Hypergraph(self.receiving.transpose(), head)

    def __repr__(self) -> str:
        if any(not repr(graph).startswith("Graph(num_") for graph in (self.graph, self.receiving)):
            # A pytree whose leaves are not arrays.
            return f"Hypergraph(graph={self.graph!r}, head={self.head!r})"
        sizes = ["num_nodes", "num_hyperedges", "num_incidences"]
        parts = [f"{name}={getattr(self, name)}" for name in sizes]
        if self.head is not None:
            parts.append(f"num_head_incidences={self.head.num_edges}")
        return f"Hypergraph({', '.join(parts)})"

    @classmethod
    def from_incidence(
        cls,
        node_idx: ArrayLike,
        hyperedge_idx: ArrayLike,
        *,
        num_nodes: int | None = None,
        num_hyperedges: int | None = None,
        validate: bool = True,
    ) -> Hypergraph:
        """Build a hypergraph from (node, hyperedge) pairs in any order.

        Host arrays are checked. Traced arrays inside ``jax.jit`` cannot be: there, and with
        ``validate=False``, pairs with an id out of range count as padding and are dropped.

        Args:
            node_idx: ``(num_incidences,)`` integers, the node of each incidence.
            hyperedge_idx: ``(num_incidences,)`` integers, the hyperedge of each incidence.
            num_nodes: number of nodes; by default the largest id plus one (host arrays only).
            num_hyperedges: number of hyperedges; by default the largest id plus one.
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
        tail_nodes: ArrayLike,
        tail_hyperedges: ArrayLike,
        head_nodes: ArrayLike,
        head_hyperedges: ArrayLike,
        *,
        num_nodes: int | None = None,
        num_hyperedges: int | None = None,
        validate: bool = True,
    ) -> Hypergraph:
        """Build a directed hypergraph from pairs in any order; see :meth:`from_incidence`.

        Args:
            tail_nodes: ``(num_incidences,)`` integers, nodes that send to hyperedges.
            tail_hyperedges: ``(num_incidences,)`` integers, the hyperedges that receive from them.
            head_nodes: ``(num_head_incidences,)`` integers, nodes that receive from hyperedges.
            head_hyperedges: ``(num_head_incidences,)`` integers, the hyperedges that send to them.
            num_nodes: number of nodes; by default the largest id plus one (host arrays only).
            num_hyperedges: number of hyperedges; by default the largest id plus one.
            validate: whether ids out of range in host arrays are an error.
        """
        tail = ("tail_nodes", tail_nodes, "tail_hyperedges", tail_hyperedges)
        head = ("head_nodes", head_nodes, "head_hyperedges", head_hyperedges)
        return cls(*_build([tail, head], num_nodes, num_hyperedges, validate))

    @classmethod
    def from_hyperedges(
        cls, hyperedges: Iterable[Sequence[int]], *, num_nodes: int | None = None
    ) -> Hypergraph:
        """Build a hypergraph from one sequence of node ids per hyperedge.

        Args:
            hyperedges: the node ids of each hyperedge; a sequence may be empty.
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
        members = [
            arguments.check_ids(f"hyperedges[{i}]", hyperedge)
            for i, hyperedge in enumerate(hyperedges)
        ]
        no_ids = np.zeros(0, np.int64)
        num_nodes = arguments.check_size("num_nodes", num_nodes, no_ids, *members)
        for i, ids in enumerate(members):
            arguments.check_range(f"hyperedges[{i}]", ids, "num_nodes", num_nodes)
        return cls.from_incidence(
            np.concatenate([no_ids, *members]),
            np.repeat(np.arange(len(members)), [len(ids) for ids in members]),
            num_nodes=num_nodes,
            num_hyperedges=len(members),
        )

    @classmethod
    def from_scipy(cls, incidence: object) -> Hypergraph:
        """Build a hypergraph from a sparse incidence matrix.

        Args:
            incidence: ``(num_nodes, num_hyperedges)`` scipy sparse matrix or array of zeros and
                ones.

        Raises:
            TypeError: ``incidence`` is not a scipy sparse matrix or array.
            ValueError: ``incidence`` holds other values than zeros and ones, is not
                two-dimensional, or its index arrays are not those of a matrix of its shape.
        """
        coo = arguments.check_sparse("incidence", incidence, "(num_nodes, num_hyperedges)")
        coo.sum_duplicates()
        coo.eliminate_zeros()
        invalid = coo.data[coo.data != 1]
        if invalid.size:
            raise ValueError(
                f"incidence must hold zeros and ones, found {invalid[0]}; "
                "pass (incidence != 0) to ignore the values"
            )
        return cls.from_incidence(
            coo.row, coo.col, num_nodes=coo.shape[0], num_hyperedges=coo.shape[1]
        )

    @classmethod
    def from_knn(cls, features: ArrayLike, k: int) -> Hypergraph:
        """Build one hyperedge per node: the node and its ``k - 1`` nearest neighbors.

        HGNN turns features into a hypergraph this way (Feng et al. 2019, arXiv 1809.09401, section
        3.1). Distances are Euclidean, in float64; ties go to the smaller id. Runs on the host in
        O(num_nodes²).

        Args:
            features: ``(num_nodes, features)`` finite real numbers.
            k: size of each hyperedge, from 1 to ``num_nodes``.

        Raises:
            TypeError: ``features`` are not real numbers, or ``k`` is not an integer.
            ValueError: wrong shape, ``k`` out of range, or a feature that is not finite.
        """
        points = check_points("features", features)
        k = arguments.check_integer("k", k)
        n = points.shape[0]
        if not 1 <= k <= max(n, 1):
            raise ValueError(f"k must be between 1 and the number of nodes, {n}, got {k}")
        # |a|² + |b|² - 2ab finds candidates fast, up to its rounding error; the exact differences
        # a - b decide among them.
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
        """Add hyperedges of a single node, which is tail and head, at the end. Host only.

        The new incidences were not in the input: :meth:`incidence_values` gives them its
        ``fill_value``. Padding is dropped.

        Args:
            nodes: ``"isolated"`` for the nodes in no hyperedge, ``"all"`` for every node that has
                no hyperedge of its own yet (as in AllSet, arXiv 2106.13264).
        """
        arguments.check_choice("nodes", nodes, ("isolated", "all"))
        graphs = [self.graph] if self.head is None else [self.graph, self.head]
        members = [graph._host_edges("with_self_loops")[:2] for graph in graphs]
        # A directed hyperedge counts as a node's own if the node alone is its tail and its head.
        if nodes == "isolated":
            covered = np.concatenate([node_idx for node_idx, _ in members])
        else:
            single = [_single_nodes(*pairs, self.num_hyperedges) for pairs in members]
            covered = single[0][single[0] == single[-1]]
        loops = np.setdiff1d(np.arange(self.num_nodes), covered)
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
        """Pad to capacities, so that hypergraphs of different sizes share one compiled program.

        The new nodes and hyperedges are empty: they have degree 0 and results 0. A capacity of None
        leaves a size as it is.

        Args:
            num_nodes: capacity in nodes.
            num_hyperedges: capacity in hyperedges.
            num_incidences: capacity in incidences.
            num_head_incidences: capacity in incidences of the heads of a directed hypergraph.

        Raises:
            TypeError: a capacity is not an integer.
            ValueError: a capacity is smaller than the present size, or ``num_head_incidences`` is
                given for a hypergraph that is not directed.
        """
        # Checked here, since errors of Graph.pad would name num_src, num_dst and num_edges.
        num_nodes = self.num_nodes + arguments.added_size("num_nodes", num_nodes, self.num_nodes)
        size = self.num_hyperedges
        num_hyperedges = size + arguments.added_size("num_hyperedges", num_hyperedges, size)

        def padded(name: str, graph: Graph, capacity: int | None) -> Graph:
            num_edges = graph.num_edges + arguments.added_size(name, capacity, graph.num_edges)
            return graph.pad(num_src=num_nodes, num_dst=num_hyperedges, num_edges=num_edges)

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
        """Return the pairs ``(node_idx, hyperedge_idx)`` by hyperedge, then node; padding is -1.

        Returns:
            Two arrays ``(num_incidences,)``.
        """
        return self.graph.cols, self.graph.rows

    def incidence_values(self, values: ArrayLike, fill_value: ArrayLike = 0) -> Array:
        """Bring values, such as weights, from the order of the input to that of ``graph``.

        Values of the heads of a directed hypergraph go through ``head.edge_values``.

        Args:
            values: ``(num_input_incidences, *features)``, one row for each incidence of the input.
            fill_value: value of incidences that were not in the input: added self-loops, and
                padding.

        Returns:
            ``(num_incidences, *features)`` in the dtype of ``values``. Errors: as in
            :meth:`Graph.edge_values`.
        """
        return self.graph._values(values, fill_value, "num_input_incidences")

    def to_input_order(self, values: ArrayLike, fill_value: ArrayLike = 0) -> Array:
        """Bring values of incidences back to the order of the input: undo `incidence_values`.

        Values of the heads of a directed hypergraph go through ``head.to_input_order``.

        Args:
            values: ``(num_incidences, *features)`` in the order of ``graph``.
            fill_value: value of incidences of the input that the hypergraph lacks.

        Returns:
            ``(num_input_incidences, *features)`` in the dtype of ``values``. Errors: as in
            :meth:`Graph.to_input_order`.
        """
        return self.graph._to_input_order(values, fill_value, "num_incidences")

    def check(self, name: str = "hypergraph") -> Hypergraph:
        """Check dtypes and shapes of the arrays, not their values; return JAX arrays.

        Args:
            name: name of the hypergraph in errors.

        Raises:
            TypeError: an array is not of int32 or int64, or dtypes differ.
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
        """Hypergraph without factors of messages."""
        return Hypergraph(self.graph._plain, self.head)

    def node_degrees(self) -> Array:
        """Return the number of hyperedges (tails, if directed) of each node: ``(num_nodes,)``."""
        return self.graph.out_degrees()

    def hyperedge_degrees(self) -> Array:
        """Return the number of nodes (of tails, if directed) of each: ``(num_hyperedges,)``."""
        return self.graph.in_degrees()


def check_points(name: str, values: ArrayLike) -> np.ndarray:
    """Check that values are finite real numbers ``(num_nodes, features)``; return float64."""
    if is_traced(values):
        raise TypeError(f"{name} must not be traced: this works on the host only")
    points = arguments.to_numpy(name, values)
    if points.dtype != bool and not arguments.is_real(points.dtype):
        raise TypeError(f"{name} must be real numbers, got {points.dtype}")
    points = points.astype(np.float64)
    arguments.check_shape(name, points, "(num_nodes, features)", None, None)
    if not np.isfinite(points).all():
        node, feature = np.argwhere(~np.isfinite(points))[0]
        raise ValueError(
            f"{name} must be finite, got {points[node, feature]} at [{node}, {feature}]"
        )
    return points


def _build(
    incidences: Sequence[tuple[str, ArrayLike, str, ArrayLike]],
    num_nodes: int | None,
    num_hyperedges: int | None,
    validate: bool,
) -> list[Graph]:
    """Build a graph from each set of pairs, whose arrays follow their names for errors."""
    device = device_of(*(array for pairs in incidences for array in pairs))
    checked = [arguments.check_pairs(*pairs) for pairs in incidences]
    # Tails and heads share the ids, and so the sizes, of nodes and hyperedges.
    all_nodes, all_hyperedges = zip(*checked, strict=True)
    num_nodes = arguments.check_size("num_nodes", num_nodes, *all_nodes)
    num_hyperedges = arguments.check_size("num_hyperedges", num_hyperedges, *all_hyperedges)
    sizes = {"num_src": num_nodes, "num_dst": num_hyperedges}
    graphs = []
    for (node_name, _, hyperedge_name, _), pair in zip(incidences, checked, strict=True):
        if arguments.check_flag("validate", validate) and not is_traced(*pair):
            arguments.check_range(node_name, pair[0], "num_nodes", num_nodes)
            arguments.check_range(hyperedge_name, pair[1], "num_hyperedges", num_hyperedges)
        with on_host(True):  # one transfer at the end; traced arrays stay traced
            graph = Graph.from_edges(*pair, **sizes, validate=False).with_edge_split()
        graphs.append(graph)
    return cast(list[Graph], to_device(graphs, device))


def _single_nodes(
    node_idx: np.ndarray, hyperedge_idx: np.ndarray, num_hyperedges: int
) -> np.ndarray:
    """Return the node of each hyperedge with a single node, and -1 for other hyperedges."""
    is_single = np.bincount(hyperedge_idx, minlength=num_hyperedges)[hyperedge_idx] == 1
    nodes = np.full(num_hyperedges, PADDING)
    nodes[hyperedge_idx[is_single]] = node_idx[is_single]
    return nodes


register_serialization(Hypergraph)
