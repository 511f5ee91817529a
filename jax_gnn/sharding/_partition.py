"""Partitions of a graph's nodes into parts of equal size with few edges between them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast, get_args

import jax
import numpy as np
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.ffi import host_function
from jax_gnn._core.ids import PADDING, in_range, is_traced
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.hetero import HeteroGraph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph, edges_of

Method = Literal["auto", "multilevel", "metis", "contiguous", "hash"]
"""Way to deal nodes out, see :func:`partition`."""

MAX_NODE_RATIO, MAX_EDGE_RATIO = 1.25, 1.05
"""Upper bounds of the nodes and edges of a part, relative to the mean."""

NODE_COST, HALO_COST = 4.0, 10.0
"""Time of a layer for a node of a part, and for a row that the part fetches, in units of the time
for an edge: an edge reads a row from memory, a node has a row of a product, and links between
devices are a tenth as fast as memory."""

FEW_EDGES, CYCLES = 5_000_000, 3
"""Number of edges below which a graph is partitioned in several cycles, each of which refines the
parts of the cycle before, and the number of cycles."""


class Adjacency(NamedTuple):
    """Neighbours of the nodes of a graph, in numpy."""

    indptr: np.ndarray  # (num_nodes + 1,), start of each node in `cols`
    cols: np.ndarray  # (num_edges,), sources of the edges into each node
    t_indptr: np.ndarray  # (num_nodes + 1,), start of each node in `t_cols`
    t_cols: np.ndarray  # (num_edges,), destinations of the edges out of each node

    @classmethod
    def of(cls, graph: Graph) -> Adjacency:
        """Return the neighbours in a graph."""
        return cls(*jax.device_get((graph.indptr, graph.cols, graph.t_indptr, graph.t_cols)))

    @classmethod
    def of_incidences(cls, incidences: Graph, *, joined: bool) -> Adjacency:
        """Return a symmetric graph of a hypergraph, whose first nodes are those of the hypergraph.

        If ``joined``, hyperedges are nodes, too, each a neighbour of its nodes. Otherwise nodes
        have an edge to themselves for each of their hyperedges.
        """
        by_hyperedge, nodes, by_node, hyperedges = cls.of(incidences)
        num_nodes, num_hyperedges = incidences.num_src, incidences.num_dst
        if not joined:
            loops = np.repeat(np.arange(num_nodes, dtype=by_node.dtype), np.diff(by_node))
            return cls(by_node, loops, by_node, loops)
        # Rows of nodes come first, then those of hyperedges, which count from num_nodes on.
        nodes, hyperedges = nodes[: by_hyperedge[-1]], hyperedges[: by_node[-1]]
        largest = max(num_nodes + num_hyperedges, len(nodes) + len(hyperedges))
        dtype = np.promote_types(by_node.dtype, np.min_scalar_type(-largest))
        is_edge = in_range(hyperedges, num_hyperedges)
        hyperedges = np.where(is_edge, hyperedges.astype(dtype) + num_nodes, PADDING)
        nodes = np.where(in_range(nodes, num_nodes), nodes, PADDING)
        indptr = np.concatenate([by_node, by_hyperedge[1:].astype(dtype) + len(hyperedges)])
        cols = np.concatenate([hyperedges, nodes]).astype(dtype)
        return cls(indptr.astype(dtype), cols, indptr.astype(dtype), cols)


@public
def partition(graph: Graph, num_parts: int, method: Method = "auto") -> np.ndarray:
    """Deal the nodes of a graph out to parts. Host only.

    An edge belongs to the part of its destination. "multilevel" and "metis" keep the edges of a
    part below 1.05 of the mean and its nodes below 1.25, unless single nodes have too many edges.

    - "auto": "multilevel", "contiguous" or "hash", whichever makes the slowest part fastest by
      count, see :func:`partition_costs`.
    - "multilevel": nodes are joined to clusters by label propagation, level by level (Meyerhenke,
      Sanders and Schulz, "Partitioning complex networks via size-constrained clustering", SEA
      2014); the last clusters are dealt out by linear deterministic greedy (Stanton and Kliot, KDD
      2012), and nodes move to the part of most of their neighbours at each level on the way back.
    - "metis": Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning
      irregular graphs", SIAM J. Sci. Comput. 1998; then nodes move as above. Needs `pymetis`.
    - "contiguous": ranges of ids, for graphs in which neighbours have similar ids.
    - "hash": at random, the same in each run.

    Args:
        graph: the graph, which is not bipartite.
        num_parts: number of parts.
        method: name of the method.

    Returns:
        ``(num_nodes,)`` int32, the part of each node.

    Raises:
        TypeError: called inside ``jax.jit``, or ``num_parts`` is not an integer.
        ValueError: the graph is bipartite, there are more parts than nodes, or the method is
            unknown.
        ImportError: the method is "metis", and `pymetis` is not installed.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 0, 3, 2], num_nodes=4)
        >>> partition(graph, 2, "contiguous")
        array([0, 0, 1, 1], dtype=int32)
    """
    edges, num_parts = _adjacency(graph, num_parts)
    arguments.check_choice("method", method, get_args(Method))
    return partition_nodes(edges, num_parts, method)


def _adjacency(graph: Graph, num_parts: int) -> tuple[Adjacency, int]:
    """Check the arguments of :func:`partition`, and return the neighbours of nodes."""
    arguments.check_instance("graph", graph, Graph)
    num_nodes = graph.num_nodes
    num_parts = arguments.check_integer("num_parts", num_parts)
    if not 1 <= num_parts <= num_nodes:
        raise ValueError(f"num_parts must be 1 to num_nodes = {num_nodes}, got {num_parts}")
    if is_traced(graph.indptr):
        raise TypeError("graph must be partitioned before jax.jit")
    return Adjacency.of(graph), num_parts


def partition_nodes(edges: Adjacency, num_parts: int, method: str) -> np.ndarray:
    """Return the part of each node, int32; arguments as of :func:`partition`, checked."""
    indptr, num_nodes = edges.indptr, len(edges.indptr) - 1
    if method == "auto":
        compared = [*compare(edges, num_parts).values()]
        warn_of_no_gain([costs for _, costs in compared])
        return compared[0][0]
    if method == "hash":
        return (np.random.default_rng(0).permutation(num_nodes) % num_parts).astype(np.int32)
    if method == "contiguous":
        # Boundaries split nodes and edges evenly, with equal weight.
        position, centre = np.arange(num_nodes) + 0.5, indptr[:-1] + np.diff(indptr) / 2
        share = (position / num_nodes + centre / max(indptr[-1], 1)) / (2 if indptr[-1] else 1)
        return cast(np.ndarray, np.minimum(share * num_parts, num_parts - 1).astype(np.int32))
    parts = np.empty(num_nodes, np.int32)
    is_given = method == "metis" and num_nodes > 0
    if is_given:
        parts[:] = _metis(edges, num_parts)
    # Neighbours in one direction suffice for a symmetric graph.
    symmetric = np.array_equal(indptr, edges.t_indptr) and np.array_equal(edges.cols, edges.t_cols)
    for cycle in range(CYCLES if indptr[-1] < FEW_EDGES else 1):
        host_function("partition")(
            indptr=indptr,
            cols=edges.cols,
            t_indptr=None if symmetric else edges.t_indptr,
            t_cols=None if symmetric else edges.t_cols,
            num_parts=num_parts,
            max_nodes=max(MAX_NODE_RATIO * num_nodes / num_parts, -(-num_nodes // num_parts)),
            max_edges=MAX_EDGE_RATIO * float(indptr[-1]) / num_parts,
            refine=is_given or cycle > 0,
            parts=parts,
        )
    return parts


@public
class PartitionCosts(NamedTuple):
    """Nodes, edges and fetched rows of each part of a partition.

    Attributes:
        nodes: ``(num_parts,)``, nodes of each part.
        edges: ``(num_parts,)``, edges into these.
        halo: ``(num_parts,)``, nodes of other parts with an edge into the part, whose rows it
            fetches in each layer.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> partition_costs(graph, 2)["contiguous"]
        PartitionCosts(nodes=array([2, 2]), edges=array([2, 2]), halo=array([1, 1]))
    """

    nodes: np.ndarray
    edges: np.ndarray
    halo: np.ndarray

    @classmethod
    def of(cls, edges: Adjacency, num_parts: int, parts: np.ndarray) -> PartitionCosts:
        """Count the costs of the part of each node."""
        halo = np.empty(num_parts, np.int64)
        host_function("count_halo")(
            t_indptr=edges.t_indptr,
            t_cols=edges.t_cols,
            parts=np.ascontiguousarray(parts, np.int32),
            counts=halo,
        )
        degrees = np.diff(edges.indptr)
        return cls(
            np.bincount(parts, minlength=num_parts),
            np.bincount(parts, degrees, num_parts).astype(np.int64),
            halo,
        )

    @property
    def slowest(self) -> float:
        """Estimated time of a layer in the slowest part, in units of the time for an edge."""
        return float((self.edges + NODE_COST * self.nodes + HALO_COST * self.halo).max())


COMPARED: tuple[Method, ...] = ("multilevel", "contiguous", "hash")
"""Methods that "auto" chooses from; "hash" shows what the others gain."""


@public
def partition_costs(
    graph: Graph, num_parts: int, methods: Sequence[Method] = COMPARED
) -> dict[str, PartitionCosts]:
    """Count what partitions of a graph by several methods cost. Host only.

    Args:
        graph: the graph, which is not bipartite.
        num_parts: number of parts.
        methods: names of methods, see :func:`partition`.

    Returns:
        The costs by method, those with the fastest slowest part first.

    Raises:
        TypeError: as of :func:`partition`.
        ValueError: as of :func:`partition`, or there are no methods.
        ImportError: as of :func:`partition`.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 0, 3, 2], num_nodes=4)
        >>> partition_costs(graph, 2, ["contiguous"])["contiguous"].halo
        array([0, 0])
    """
    edges, num_parts = _adjacency(graph, num_parts)
    if not methods:
        raise ValueError("methods must be names of methods, got none")
    for method in methods:
        arguments.check_choice("methods", method, get_args(Method))
    results = compare(edges, num_parts, methods)
    return {method: costs for method, (_, costs) in results.items()}


def compare(
    edges: Adjacency, num_parts: int, methods: Sequence[Method] = COMPARED
) -> dict[Method, tuple[np.ndarray, PartitionCosts]]:
    """Return the parts by method and their costs, those with the fastest slowest part first."""
    results: dict[Method, tuple[np.ndarray, PartitionCosts]] = {}
    for method in methods:
        parts = partition_nodes(edges, num_parts, method)
        results[method] = parts, PartitionCosts.of(edges, num_parts, parts)
    return dict(sorted(results.items(), key=lambda item: item[1][1].slowest))


def warn_of_no_gain(compared: Sequence[PartitionCosts]) -> None:
    """Warn if the first parts of a large graph fetch nearly as many rows as those at random."""
    halo, nodes = int(compared[0].halo.sum()), int(compared[0].nodes.sum())
    random = max(int(costs.halo.sum()) for costs in compared[1:])
    if compared[0].edges.sum() >= FEW_EDGES and halo > 0.9 * random:
        warnings.warn(
            f"no partition of this graph keeps neighbours together: parts fetch {halo / nodes:.2f} "
            f"rows for each node, at random {random / nodes:.2f}. Samples "
            "(jax_gnn.sampling.neighbor_batches), wire_dtype='bfloat16', or features split over "
            "the devices move fewer",
            stacklevel=2,
        )


def _metis(edges: Adjacency, num_parts: int) -> np.ndarray:
    """Return METIS's parts, balanced by the sum of a node's degree and the mean degree."""
    try:
        import pymetis
    except ImportError as error:
        raise ImportError(
            "method='metis' needs pymetis: pip install 'jax-gnn-kernels[scale]'; 'multilevel' "
            "does not"
        ) from error
    import scipy.sparse

    # METIS takes symmetric graphs without self-loops; scipy checks no ids.
    indptr = edges.indptr
    size, num_edges = len(indptr) - 1, int(indptr[-1])
    is_edge = in_range(edges.cols[:num_edges], size)
    values = is_edge, np.where(is_edge, edges.cols[:num_edges], 0), indptr
    matrix = scipy.sparse.csr_array(values, shape=(size, size))
    symmetric = (matrix + matrix.T).tocsr()
    symmetric.setdiag(0)
    symmetric.eliminate_zeros()
    _, parts = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(symmetric.indptr, symmetric.indices),
        vweights=np.diff(indptr) + max(num_edges // size, 1),
        options=pymetis.Options(seed=0),
    )
    return np.asarray(parts)


# --- Graphs of all kinds -------------------------------------------------------------------------

Splittable = Graph | RelationalGraph | Hypergraph
"""Graphs that can be split."""


class SplitArgs(NamedTuple):
    """Checked arguments of a split: a graph, and the part of each node and hyperedge."""

    graph: Splittable  # the graph, with arrays in numpy
    num_parts: int  # number of parts
    node_parts: np.ndarray  # (num_nodes,) integers, the part of each node
    # (num_hyperedges,) integers; None if the graph is not a hypergraph.
    hyperedge_parts: np.ndarray | None = None

    @classmethod
    def parse(cls, graph: Splittable, num_parts: int, method: Method | ArrayLike) -> SplitArgs:
        """Assign nodes, and hyperedges if there are any, to parts, by a method or as given."""
        incidences = graph.graph if isinstance(graph, Hypergraph) else None
        if isinstance(method, str):
            arguments.check_choice("method", method, get_args(Method))
            joined = isinstance(graph, Hypergraph) and method in ("auto", "multilevel", "metis")
            if isinstance(graph, Hypergraph):
                edges = Adjacency.of_incidences(graph.graph, joined=joined)
            else:
                edges = Adjacency.of(edges_of(graph))
            # Ranges of joined ids would separate nodes from hyperedges.
            is_auto = joined and method == "auto"
            parts = partition_nodes(edges, num_parts, "multilevel" if is_auto else method)
            if incidences is not None and joined:
                node_parts, hyperedge_parts = np.split(parts, [incidences.num_src])
                return cls(graph, num_parts, node_parts, hyperedge_parts)
        else:
            parts = _check_parts(method, graph.num_nodes, num_parts)
        if incidences is None:
            return cls(graph, num_parts, parts)
        return cls(graph, num_parts, parts, majority_parts(incidences, parts, num_parts))


def _check_parts(method: ArrayLike, num_nodes: int, num_parts: int) -> np.ndarray:
    node_parts: np.ndarray = arguments.check_ids("method", method)
    if node_parts.shape != (num_nodes,):
        raise ValueError(
            f"method must be one of {get_args(Method)}, or parts of shape ({num_nodes},), got "
            f"shape {node_parts.shape}"
        )
    arguments.check_range("method", node_parts, "devices", num_parts)
    return node_parts


def parse_graph(graph: Graph | RelationalGraph | HeteroGraph | Hypergraph) -> Splittable:
    """Check that a graph can be split, and copy it to the host."""
    # All kinds of graphs are checked before any work; arrays are copied at once.
    if isinstance(graph, HeteroGraph):
        graph = graph.relational
    if isinstance(graph, Hypergraph):
        graph.check()
        if graph.head is not None:
            raise ValueError(f"graph must not be a directed hypergraph, got {graph}")
    else:
        if not isinstance(graph, RelationalGraph):
            arguments.check_instance("graph", graph, Graph)
        graph.check_arrays()
    if is_traced(*jax.tree.leaves(graph)):
        raise TypeError("graph must be sharded before jax.jit")
    return cast(Splittable, jax.device_get(graph))


def majority_parts(incidences: Graph, node_parts: np.ndarray, num_parts: int) -> np.ndarray:
    """Return the part of most nodes of each hyperedge, from the part of each node."""
    nodes, hyperedges, size = incidences.cols, incidences.rows, incidences.num_dst
    valid = in_range(nodes, incidences.num_src) & in_range(hyperedges, size)
    nodes, hyperedges = nodes[valid], hyperedges[valid].astype(np.int64)
    # Parts are rotated by the hyperedge's id, so that ties go to all parts in turn.
    rotated = (node_parts[nodes] - hyperedges) % num_parts
    members = np.bincount(hyperedges * num_parts + rotated, minlength=size * num_parts)
    parts = members.reshape(size, num_parts).argmax(1) + np.arange(size)
    return np.asarray(parts % num_parts)
