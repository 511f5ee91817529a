"""Graphs made from graphs, hypergraphs and points, and encodings of the positions of nodes.

All work is done on the host in numpy and scipy, and compiles nothing. Padding edges are dropped;
all nodes count, whether they are padding or not. Every function raises a TypeError for arguments of
the wrong type and inside ``jax.jit``, and a ValueError for arguments of the wrong shape or out of
range, and for bipartite graphs.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import jax
import numpy as np
import scipy.sparse
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.ids import device_of, is_traced, on_host, to_device
from jax_gnn.graph import Graph, placed_like
from jax_gnn.hypergraph import Hypergraph, check_points

__all__ = [
    "Derived",
    "clique_expansion",
    "connected_components",
    "k_hop_subgraph",
    "knn_graph",
    "laplacian_encoding",
    "largest_component",
    "line_graph",
    "radius_graph",
    "random_walk_encoding",
    "remove_self_loops",
    "star_expansion",
    "subgraph",
]

DENSE_NODES = 1024
"""Nodes of a graph up to which all its eigenvectors are computed, which is faster than a few."""
MAX_COORDINATE = 1e150
"""Largest magnitude of a point's numbers, as float64 holds the squares of larger ones no more."""


class Derived(NamedTuple):
    """Graph that was made of an original graph, and the origin of its nodes and edges.

    The new nodes have the features ``x[nodes]``, and the new edges the values ``values[edges]`` in
    the original graph's order. ``graph.edge_values`` takes values in the order of the input, as
    that of the original graph does.

    Attributes:
        graph: the new graph.
        nodes: ``(num_nodes,)`` int64, the original node of each node.
        edges: ``(num_edges,)`` int64, the original edge of each edge, in the new graph's order.
    """

    graph: Graph
    nodes: np.ndarray
    edges: np.ndarray


# --- Parts of a graph ----------------------------------------------------------------------------


def subgraph(graph: Graph, nodes: ArrayLike) -> Derived:
    """Take some nodes, and all edges between them.

    Args:
        graph: the graph, not bipartite.
        nodes: ``(count,)`` distinct ids, in the order of the new nodes; or a mask, ``(num_nodes,)``
            booleans.

    Example:
        >>> graph = Graph.from_edges([(0, 1), (1, 2), (2, 3)])
        >>> part = subgraph(graph, [3, 2])
        >>> part.graph.edges(), part.edges
        ((array([1]), array([0])), array([2]))
    """
    num_nodes, (src, dst, edge_ids) = _nodes_and_edges("subgraph", graph)
    selection = arguments.to_numpy("nodes", nodes)
    if selection.dtype == np.bool_:
        arguments.check_shape("nodes", selection, f"a mask of {num_nodes=}", num_nodes)
        ids = np.flatnonzero(selection)
    else:
        ids = _node_ids(nodes, num_nodes)
    new_ids = np.full(num_nodes, -1)
    new_ids[ids] = np.arange(len(ids))
    edges = np.flatnonzero((new_ids[src] >= 0) & (new_ids[dst] >= 0))
    return _derived(graph, new_ids[src[edges]], new_ids[dst[edges]], edge_ids[edges], ids, edges)


def k_hop_subgraph(
    graph: Graph, nodes: ArrayLike, num_hops: int, *, direction: Literal["in", "out", "both"] = "in"
) -> Derived:
    """Take the nodes within some hops of root nodes, and all edges between them.

    The k-hop subgraph of a node decides the output of k layers, except that layers which use
    degrees, such as GCN's, need one hop more for those of the outermost nodes.

    Args:
        graph: the graph, not bipartite.
        nodes: ids of the roots, one or ``(count,)`` distinct ones. They are the first nodes of the
            result; the nodes reached from them follow in their order in ``graph``.
        num_hops: maximum number of edges between a root and a node.
        direction: ``"in"`` walks from destinations to sources, where messages come from; ``"out"``
            from sources to destinations; ``"both"`` in both directions.

    Example:
        >>> graph = Graph.from_edges([(0, 1), (1, 2), (2, 3)])
        >>> k_hop_subgraph(graph, 2, num_hops=1).nodes
        array([2, 1])
    """
    num_nodes, (src, dst, _) = _nodes_and_edges("k_hop_subgraph", graph)
    roots = _node_ids(np.atleast_1d(arguments.to_numpy("nodes", nodes)), num_nodes)
    arguments.check_choice("direction", direction, ("in", "out", "both"))
    is_reached = np.zeros(num_nodes, bool)
    is_reached[roots] = True
    for _ in range(arguments.check_size("num_hops", num_hops)):
        before, count = is_reached.copy(), is_reached.sum()
        if direction != "out":
            is_reached[src[before[dst]]] = True
        if direction != "in":
            is_reached[dst[before[src]]] = True
        if is_reached.sum() == count:
            break
    is_reached[roots] = False
    return subgraph(graph, np.concatenate([roots, np.flatnonzero(is_reached)]))


def connected_components(
    graph: Graph, *, connection: Literal["weak", "strong"] = "weak"
) -> np.ndarray:
    """Number the components by their first nodes, and return that of each node: ``(num_nodes,)``.

    Args:
        graph: the graph, not bipartite.
        connection: ``"weak"``: edges of either direction join nodes; ``"strong"``: there are paths
            in both directions.

    Example:
        >>> connected_components(Graph.from_edges([(0, 2), (3, 1)]))
        array([0, 1, 0, 1])
    """
    num_nodes, (src, dst, _) = _nodes_and_edges("connected_components", graph)
    arguments.check_choice("connection", connection, ("weak", "strong"))
    if num_nodes == 0:
        return np.zeros(0, np.int64)
    import scipy.sparse.csgraph

    _, labels = scipy.sparse.csgraph.connected_components(
        _sparse(dst, src, (num_nodes, num_nodes)), connection=connection
    )
    _, first, labels = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[labels]


def largest_component(
    graph: Graph, *, num_components: int = 1, connection: Literal["weak", "strong"] = "weak"
) -> Derived:
    """Take the components with the most nodes; ties go to the component of the first node.

    Args:
        graph: the graph, not bipartite.
        num_components: number of components to take.
        connection: ``"weak"`` or ``"strong"``, see :func:`connected_components`.

    Example:
        >>> largest_component(Graph.from_edges([(0, 2), (3, 1), (1, 4)])).nodes
        array([1, 3, 4])
    """
    labels = connected_components(graph, connection=connection)
    order = np.argsort(-np.bincount(labels), kind="stable")
    largest = order[: arguments.check_size("num_components", num_components)]
    return subgraph(graph, np.isin(labels, largest))


def remove_self_loops(graph: Graph) -> Derived:
    """Remove edges from a node to itself; :meth:`Graph.with_self_loops` adds them.

    Args:
        graph: the graph, not bipartite.

    Example:
        >>> remove_self_loops(Graph.from_edges([(0, 1), (1, 1)])).graph
        Graph(num_nodes=2, num_edges=1)
    """
    num_nodes, (src, dst, edge_ids) = _nodes_and_edges("remove_self_loops", graph)
    edges = np.flatnonzero(src != dst)
    nodes = np.arange(num_nodes)
    return _derived(graph, src[edges], dst[edges], edge_ids[edges], nodes, edges)


# --- Other graphs --------------------------------------------------------------------------------


def line_graph(graph: Graph, *, undirected: bool = False) -> Derived:
    """Build the graph whose nodes are the edges of a graph, joined where one follows the other.

    Args:
        graph: the graph, not bipartite.
        undirected: whether the graph has each edge in both directions, and the two are one node,
            that of the edge with ``src <= dst``. Two nodes are then joined, in both directions, if
            their edges share an endpoint.

    Returns:
        ``nodes``: the edge of the graph that each node is; ``edges``: the node of the graph that
        each new edge passes through, the smaller one of two shared endpoints.

    Example:
        >>> line = line_graph(Graph.from_edges([(0, 1), (1, 2), (1, 3)]))
        >>> line.graph.edges(), line.edges
        ((array([0, 0]), array([1, 2])), array([1, 1]))
    """
    num_nodes, (src, dst, _) = _nodes_and_edges("line_graph", graph)
    edges = np.arange(len(src))
    # Products of edge-by-node incidence matrices have an entry for each pair of adjacent edges.
    if arguments.check_flag("undirected", undirected):
        edges = edges[src <= dst]
        src, dst = src[edges], dst[edges]
        rows = np.arange(len(edges))
        incidence = _sparse(np.r_[rows, rows], np.r_[src, dst], (len(edges), num_nodes))
        adjacent = (incidence @ incidence.T).tocoo()
        off_diagonal = adjacent.row != adjacent.col
        first, second = adjacent.row[off_diagonal], adjacent.col[off_diagonal]
        is_source_shared = (src[first] == src[second]) | (src[first] == dst[second])
        shared = np.where(is_source_shared, src[first], dst[first])
    else:
        size = len(edges), num_nodes
        adjacent = (_sparse(edges, dst, size) @ _sparse(edges, src, size).T).tocoo()
        first, second = adjacent.row, adjacent.col
        shared = dst[first]
    order = np.lexsort((second, first))
    first, second, shared = first[order], second[order], shared[order]
    line = _on_host(first, second, len(edges))
    return Derived(placed_like(graph.rows, line), edges, shared[line.edge_ids])


def clique_expansion(
    hypergraph: Hypergraph, hyperedge_weight: ArrayLike | None = None
) -> tuple[Graph, Array]:
    """Build the graph that joins nodes which share a hyperedge, and the weights of its edges.

    In a directed hypergraph, edges run from the tail of a hyperedge to its head. Nodes are not
    joined to themselves.

    Args:
        hypergraph: the hypergraph.
        hyperedge_weight: ``(num_hyperedges,)`` real numbers; None means ones.

    Returns:
        The graph, and ``(num_edges,)``, the sum of the weights of the hyperedges that two nodes
        share, in the graph's order: H W H^T off the diagonal.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [1, 2]])
        >>> graph, weight = clique_expansion(hypergraph)
        >>> graph.rows, graph.cols
        (Array([0, 0, 1, 1, 2, 2], dtype=int32), Array([1, 2, 0, 2, 0, 1], dtype=int32))
        >>> weight
        Array([1., 1., 1., 2., 1., 2.], dtype=float32)
    """
    tail, head = _both_sides("clique_expansion", hypergraph)
    size = hypergraph.num_nodes, hypergraph.num_hyperedges
    weight = np.ones(size[1])
    if hyperedge_weight is not None:
        weight = _weights("hyperedge_weight", hyperedge_weight, "num_hyperedges", size[1])
    scaled = _sparse(head[0], head[1], size, weight[head[1]])
    shared = (scaled @ _sparse(tail[0], tail[1], size).T).tocoo()
    off_diagonal = shared.row != shared.col
    src, dst = shared.col[off_diagonal], shared.row[off_diagonal]
    graph = _on_host(src, dst, size[0])
    values = shared.data[off_diagonal][graph.edge_ids].astype(_float_dtype())
    rows = hypergraph.graph.rows
    return placed_like(rows, graph), to_device(values, device_of(rows))


def star_expansion(hypergraph: Hypergraph) -> Derived:
    """Build the graph with a further node for each hyperedge, joined to the nodes in it.

    Hyperedge i is node ``num_nodes + i``. Edges run in both directions; in a directed hypergraph,
    from the tail to the hyperedge, and from the hyperedge to the head.

    Args:
        hypergraph: the hypergraph.

    Returns:
        ``nodes``: the nodes, then the hyperedges, each numbered from 0; ``edges``: the incidence of
        each edge, in ``graph`` or in ``receiving``.

    Example:
        >>> star_expansion(Hypergraph.from_hyperedges([[0, 1], [1]])).graph.edges()
        (array([0, 1, 1, 2, 2, 3]), array([2, 2, 3, 0, 1, 1]))
    """
    tail, head = _both_sides("star_expansion", hypergraph)
    num_nodes, num_hyperedges = hypergraph.num_nodes, hypergraph.num_hyperedges
    src = np.concatenate([tail[0], head[1] + num_nodes])
    dst = np.concatenate([tail[1] + num_nodes, head[0]])
    graph = _on_host(src, dst, num_nodes + num_hyperedges)
    nodes = np.concatenate([np.arange(num_nodes), np.arange(num_hyperedges)])
    edges = np.concatenate([np.arange(len(tail[0])), np.arange(len(head[0]))])[graph.edge_ids]
    return Derived(placed_like(hypergraph.graph.rows, graph), nodes, edges)


# --- Graphs of points ----------------------------------------------------------------------------


def knn_graph(
    x: ArrayLike, k: int, *, graph_ids: ArrayLike | None = None, loop: bool = False
) -> Graph:
    """Join each point to its k nearest neighbors in Euclidean distance, by edges into the point.

    Args:
        x: ``(num_nodes, features)`` real numbers of a magnitude of at most 1e150.
        k: number of neighbors; smaller graphs have fewer.
        graph_ids: ``(num_nodes,)``, the graph of each point, as in :class:`jax_gnn.Batch`: there
            are no edges between graphs, and none of points with a negative id.
        loop: whether a point counts as its own first neighbor.

    Example:
        >>> knn_graph([[0.0], [1.0], [3.0]], k=1).edges()
        (array([1, 0, 1]), array([0, 1, 2]))
    """
    points, groups = _points(x, graph_ids)
    k, loop = arguments.check_size("k", k), arguments.check_flag("loop", loop)
    from scipy.spatial import cKDTree

    src, dst = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for members in groups:
        count = len(members)
        neighbors = members[:, None][:, : k if loop else 0]
        num_neighbors = min(k - loop, count - 1)
        if num_neighbors > 0:
            ranks = np.arange(1, num_neighbors + 2)
            _, nearest = cKDTree(points[members]).query(points[members], ranks)
            # A point that coincides with many may not be among its own nearest points; the farthest
            # one is left out in its place.
            is_itself = nearest == np.arange(count)[:, None]
            is_itself[~is_itself.any(1), -1] = True
            nearest = nearest[~is_itself].reshape(count, num_neighbors)
            neighbors = np.concatenate([neighbors, members[nearest]], 1)
        src.append(neighbors.ravel())
        dst.append(np.repeat(members, neighbors.shape[1]))
    return Graph.from_edges(np.concatenate(src), np.concatenate(dst), num_nodes=len(points))


def radius_graph(
    x: ArrayLike,
    radius: float,
    *,
    graph_ids: ArrayLike | None = None,
    loop: bool = False,
    max_num_neighbors: int | None = None,
) -> Graph:
    """Join all points whose Euclidean distance is at most a radius, in both directions.

    Args:
        x: ``(num_nodes, features)`` real numbers of a magnitude of at most 1e150.
        radius: the distance, not negative.
        graph_ids: ``(num_nodes,)``, the graph of each point, see :func:`knn_graph`.
        loop: whether points have an edge to themselves.
        max_num_neighbors: maximum number of edges into a point, without loops: edges from the
            nearest points are kept. None means all.

    Example:
        >>> radius_graph([[0.0], [1.0], [3.0]], radius=1.5).edges()
        (array([1, 0]), array([0, 1]))
    """
    points, groups = _points(x, graph_ids)
    radius = arguments.check_finite("radius", radius)
    if radius < 0:
        raise ValueError(f"radius must not be negative, got {radius}")
    loop = arguments.check_flag("loop", loop)
    from scipy.spatial import cKDTree

    edges = [np.zeros((0, 2), np.int64)]
    for members in groups:
        pairs = cKDTree(points[members]).query_pairs(radius, output_type="ndarray")
        edges.append(members[pairs.reshape(-1, 2)])
    pairs = np.concatenate(edges)
    src, dst = np.concatenate([pairs, pairs[:, ::-1]]).T
    if max_num_neighbors is not None:
        limit = arguments.check_size("max_num_neighbors", max_num_neighbors)
        order = np.lexsort((src, np.square(points[src] - points[dst]).sum(1), dst))
        src, dst = src[order], dst[order]
        rank = np.arange(len(dst)) - np.searchsorted(dst, dst)
        src, dst = src[rank < limit], dst[rank < limit]
    if loop:
        loops = np.concatenate([src[:0], *groups])
        src, dst = np.concatenate([src, loops]), np.concatenate([dst, loops])
    order = np.lexsort((src, dst))
    return Graph.from_edges(src[order], dst[order], num_nodes=len(points))


# --- Encodings -----------------------------------------------------------------------------------


def laplacian_encoding(graph: Graph, k: int, *, graph_ids: ArrayLike | None = None) -> Array:
    """Return eigenvectors of the normalized Laplacian for its smallest eigenvalues but the first.

    The Laplacian is ``I - D^-1/2 A D^-1/2`` of the symmetric part of A, which counts repeated
    edges; nodes without edges have a 0 in place of the 1. See Dwivedi et al., "Benchmarking graph
    neural networks", 2020, section 4. Vectors have length 1, and their entry of the largest
    magnitude, the first within 1e-6, is positive. Models should not rely on signs, nor on vectors
    that share an eigenvalue.

    Args:
        graph: the graph, not bipartite.
        k: number of eigenvectors; graphs with fewer get zeros for the rest.
        graph_ids: ``(num_nodes,)``, the graph of each node, as in :class:`jax_gnn.Batch`: each
            graph has its own eigenvectors, and nodes with a negative id get zeros. None: one graph.

    Returns:
        ``(num_nodes, k)`` in float32, or in float64 where 64 bits are on.

    Example:
        >>> path = Graph.from_edges([(0, 1), (1, 2)]).symmetrized()
        >>> laplacian_encoding(path, 1)[:, 0].round(3)
        Array([ 0.707,  0.   , -0.707], dtype=float32)
    """
    num_nodes, (src, dst, _) = _nodes_and_edges("laplacian_encoding", graph)
    k = arguments.check_size("k", k)
    adjacency = _sparse(dst, src, (num_nodes, num_nodes))
    adjacency = (adjacency + adjacency.T) / 2
    degree = np.asarray(adjacency.sum(1)).ravel()
    scale = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1e-300)), 0)
    scaled = scipy.sparse.csr_array(scale[:, None] * adjacency * scale)
    result = np.zeros((num_nodes, k))
    for members in _groups(graph_ids, num_nodes):
        block = scaled[members][:, members]
        vectors = _eigenvectors(block, degree[members], min(k + 1, len(members)))[:, 1:]
        magnitude = np.abs(vectors)
        top = np.argmax(magnitude >= magnitude.max(0, initial=0) - 1e-6, axis=0)
        sign = np.where(vectors[top, np.arange(len(top))] < 0, -1, 1)
        result[members, : vectors.shape[1]] = vectors * sign
    return cast(Array, to_device(result.astype(_float_dtype()), device_of(graph.rows)))


def _eigenvectors(block: Any, degree: np.ndarray, count: int) -> np.ndarray:
    """Return the eigenvectors for the smallest eigenvalues of the Laplacian of a graph."""
    size, has_edges = block.shape[0], degree > 0
    if size <= DENSE_NODES or count >= size:
        return np.linalg.eigh(np.diag(has_edges.astype(float)) - block.toarray())[1][:, :count]
    import scipy.sparse.csgraph
    import scipy.sparse.linalg

    # Each component has an eigenvector for 0, of which Lanczos' method may miss some.
    num_zeros, labels = scipy.sparse.csgraph.connected_components(block, directed=False)
    squares = np.where(has_edges, degree, 1)
    roots = np.sqrt(squares / np.bincount(labels, squares)[labels])
    zeros = _sparse(np.arange(size), labels, (size, num_zeros), roots)[:, :count]
    if num_zeros >= count:
        return np.asarray(zeros.toarray())
    # The largest eigenvalues of 2 - L need no solution of linear systems, unlike the smallest of L.
    shifted = scipy.sparse.diags_array(2.0 - has_edges) + block
    operator = scipy.sparse.linalg.LinearOperator(
        shifted.shape, lambda x: shifted @ x - 2 * (zeros @ (zeros.T @ x)), dtype=float
    )
    start = np.random.default_rng(0).standard_normal(size)  # the same in every call
    values, vectors = scipy.sparse.linalg.eigsh(operator, count - num_zeros, which="LA", v0=start)
    return np.hstack([zeros.toarray(), vectors[:, np.argsort(-values, kind="stable")]])


def random_walk_encoding(
    graph: Graph, num_steps: int, edge_weight: ArrayLike | None = None
) -> Array:
    """Return the probability that a random walk is at its start after 1, 2, … steps.

    This is ``diag((D^-1 A)^i)``; a walk follows edges from sources to destinations, and ends at a
    node without outgoing edges. See Dwivedi et al., "Graph neural networks with learnable
    structural and positional representations", ICLR 2022, section 3.2.

    Args:
        graph: the graph, not bipartite; a batch of graphs is one.
        num_steps: number of steps.
        edge_weight: ``(num_edges,)`` in the graph's order, not negative: relative probabilities of
            the edges of a source. None means ones.

    Returns:
        ``(num_nodes, num_steps)`` in float32, or in float64 where 64 bits are on.

    Example:
        >>> triangle = Graph.from_edges([(0, 1), (1, 2), (2, 0)]).symmetrized()
        >>> random_walk_encoding(triangle, 3)[0]
        Array([0.  , 0.5 , 0.25], dtype=float32)
    """
    num_nodes, (src, dst, _) = _nodes_and_edges("random_walk_encoding", graph)
    num_steps = arguments.check_size("num_steps", num_steps)
    weight = None
    if edge_weight is not None:
        weight = _weights("edge_weight", edge_weight, "num_edges", graph.num_edges)[: len(src)]
        if not (np.isfinite(weight) & (weight >= 0)).all():
            raise ValueError("edge_weight must be finite and not negative")
    forward = _sparse(src, dst, (num_nodes, num_nodes), weight)
    total = np.asarray(forward.sum(1)).ravel()
    inverse_total = np.divide(1, total, out=np.zeros(num_nodes), where=total > 0)
    backward = scipy.sparse.csr_array((inverse_total[:, None] * forward).T)
    result = np.zeros((num_nodes, num_steps))
    # 512 rows of the power at a time, as columns of its transpose, which bounds the memory.
    for start in range(0, num_nodes, 512):
        rows = np.arange(start, min(start + 512, num_nodes))
        power: Any = scipy.sparse.eye_array(num_nodes, format="csr")[:, rows]
        for i in range(num_steps):
            power = backward @ power
            if scipy.sparse.issparse(power) and power.nnz > power.shape[0] * len(rows) / 50:
                power = power.toarray()  # faster from 2 % of entries on
            result[rows, i] = power[rows, np.arange(len(rows))]
    return cast(Array, to_device(result.astype(_float_dtype()), device_of(graph.rows)))


# --- Shared helpers ------------------------------------------------------------------------------


def _nodes_and_edges(
    caller: str, graph: Graph
) -> tuple[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the number of nodes, and the edges in the graph's order without padding."""
    arguments.check_instance("graph", graph, Graph)
    return graph.num_nodes, graph._host_edges(caller)


def _on_host(src: np.ndarray, dst: np.ndarray, num_nodes: int) -> Graph:
    """Build a graph of arrays in numpy."""
    with on_host(True):
        return Graph.from_edges(src, dst, num_nodes=num_nodes)


def _derived(
    graph: Graph,
    src: np.ndarray,
    dst: np.ndarray,
    edge_ids: np.ndarray,
    nodes: np.ndarray,
    edges: np.ndarray,
) -> Derived:
    """Build a graph of some edges of another, whose input it keeps."""
    part = _on_host(src, dst, len(nodes))
    order = part.edge_ids
    part = part._renumbered(edge_ids, graph.num_input_edges)._split_like(graph)
    return Derived(placed_like(graph.rows, part), nodes, edges[order])


def _node_ids(nodes: ArrayLike, num_nodes: int) -> np.ndarray:
    ids: np.ndarray = arguments.check_ids("nodes", nodes)
    arguments.check_range("nodes", ids, "num_nodes", num_nodes)
    arguments.check_distinct("nodes", ids.tolist())
    return ids


def _sparse(
    rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], values: np.ndarray | None = None
) -> Any:
    """Build a scipy matrix of ones or ``values``, in which repeated entries add up."""
    values = np.ones(len(rows)) if values is None else values
    return scipy.sparse.csr_array(scipy.sparse.coo_array((values, (rows, cols)), shape=shape))


def _both_sides(caller: str, hypergraph: Hypergraph) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return nodes and hyperedges of the sending, and of the receiving incidences."""
    arguments.check_instance("hypergraph", hypergraph, Hypergraph)
    sides = hypergraph.graph, hypergraph.receiving
    return [side._host_edges(caller)[:2] for side in sides]


def _weights(name: str, values: ArrayLike, size_name: str, size: int) -> np.ndarray:
    if is_traced(values):
        raise TypeError(f"{name} must not be traced: this works on the host only")
    weights = arguments.check_real_vector(name, values, size_name, size)
    return np.asarray(weights).astype(np.float64)


def _points(x: ArrayLike, graph_ids: ArrayLike | None) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the points, with a feature at least, and the ids of the points of each graph."""
    points = check_points("x", x)
    if (largest := np.abs(points).max(initial=0)) > MAX_COORDINATE:
        raise ValueError(f"x must be at most {MAX_COORDINATE:g} in magnitude, got {largest:g}")
    points = points if points.shape[1] else np.zeros((len(points), 1))
    return points, _groups(graph_ids, len(points))


def _groups(graph_ids: ArrayLike | None, num_nodes: int) -> list[np.ndarray]:
    """Return the nodes of each graph that has some."""
    if graph_ids is None:
        return [np.arange(num_nodes)] if num_nodes else []
    ids = arguments.check_ids("graph_ids", graph_ids)
    arguments.check_shape("graph_ids", ids, f"({num_nodes=},)", num_nodes)
    order = np.argsort(ids, kind="stable")
    order = order[ids[order] >= 0]
    starts = np.flatnonzero(np.diff(ids[order], prepend=-1))
    return np.split(order, starts)[1:] if len(order) else []


def _float_dtype() -> np.dtype[Any]:
    return jax.dtypes.canonicalize_dtype(np.float64)
