"""Graphs from graphs, from hypergraphs and from points; encodings of where nodes are. Host only.

All work is done in numpy and scipy, and compiles nothing. What is padding in a graph is dropped,
but its nodes count, whether they are padding or not.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import scipy.sparse
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.arguments import check_choice, check_instance
from jax_gnn._core.ids import device_of, is_traced, namespace, on_host, to_device
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph

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


class Derived(NamedTuple):
    """A graph that was made of another one, and where its nodes and edges come from.

    Features of nodes go along as ``x[nodes]``, values in the old graph's order of edges as
    ``values[edges]``. Values in the order of the input are taken by ``graph.edge_values``, as the
    old graph took them.

    Attributes:
        graph: the new graph.
        nodes: ``(num_nodes,)`` int64, what each node was.
        edges: ``(num_edges,)`` int64, what each edge was, in the new graph's order.
    """

    graph: Graph
    nodes: np.ndarray
    edges: np.ndarray


# --- Parts of a graph ----------------------------------------------------------------------------


def subgraph(graph: Graph, nodes: Any) -> Derived:
    """Some nodes, and all edges between them.

    Args:
        graph: the graph, not bipartite.
        nodes: ``(count,)`` different ids, in the order that the nodes are to have; or a mask,
            ``(num_nodes,)`` booleans.

    Raises:
        TypeError: an argument has the wrong type, or called inside ``jax.jit``.
        ValueError: the graph is bipartite, the mask has another length, or an id is out of range
            or given twice.

    Example:
        >>> graph = Graph.from_edges([(0, 1), (1, 2), (2, 3)])
        >>> made = subgraph(graph, [3, 2])
        >>> made.graph.edges(), made.edges
        ((array([1]), array([0])), array([2]))
    """
    num_nodes, (src, dst, edge_ids) = _opened("subgraph", graph)
    chosen = arguments.to_numpy("nodes", nodes)
    if chosen.dtype == np.bool_:
        if chosen.shape != (num_nodes,):
            raise ValueError(
                f"nodes must be a mask of num_nodes={num_nodes}, got shape {chosen.shape}"
            )
        ids = np.flatnonzero(chosen)
    else:
        ids = _node_ids("nodes", nodes, num_nodes)
        arguments.check_distinct("nodes", ids.tolist())
    place = np.full(num_nodes, -1)
    place[ids] = np.arange(len(ids))
    kept = np.flatnonzero((place[src] >= 0) & (place[dst] >= 0))
    ends = place[src[kept]], place[dst[kept]]
    return _derived(graph, ends, edge_ids[kept], ids, kept)


def k_hop_subgraph(
    graph: Graph,
    nodes: Any,
    num_hops: int,
    *,
    direction: Literal["in", "out", "both"] = "in",
) -> Derived:
    """The nodes that are at most so many edges away from given ones, and all edges between them.

    A network of k layers computes for a node what its k-hop subgraph decides, but for degrees at
    the rim, for which layers such as GCN's need one hop more.

    Args:
        graph: the graph, not bipartite.
        nodes: an id, or ``(count,)`` different ids. They are the first nodes of the result, in this
            order; the others follow in theirs.
        num_hops: how many edges away.
        direction: ``"in"`` goes from destinations to sources, where messages come from; ``"out"``
            the other way, ``"both"`` either way.

    Raises:
        TypeError: an argument has the wrong type, or called inside ``jax.jit``.
        ValueError: the graph is bipartite, an id is out of range or given twice, ``num_hops`` is
            negative, or ``direction`` is none of these.

    Example:
        >>> graph = Graph.from_edges([(0, 1), (1, 2), (2, 3)])
        >>> k_hop_subgraph(graph, 2, num_hops=1).nodes
        array([2, 1])
    """
    num_nodes, (src, dst, _) = _opened("k_hop_subgraph", graph)
    roots = _node_ids("nodes", np.atleast_1d(arguments.to_numpy("nodes", nodes)), num_nodes)
    arguments.check_distinct("nodes", roots.tolist())
    check_choice("direction", direction, ("in", "out", "both"))
    seen = np.zeros(num_nodes, bool)
    seen[roots] = True
    for _ in range(arguments.check_size("num_hops", num_hops)):
        before, count = seen.copy(), seen.sum()
        if direction != "out":
            seen[src[before[dst]]] = True
        if direction != "in":
            seen[dst[before[src]]] = True
        if seen.sum() == count:
            break
    seen[roots] = False
    return subgraph(graph, np.concatenate([roots, np.flatnonzero(seen)]))


def connected_components(
    graph: Graph, *, connection: Literal["weak", "strong"] = "weak"
) -> np.ndarray:
    """The component that each node is in: ``(num_nodes,)``, numbered by their first nodes.

    Args:
        graph: the graph, not bipartite.
        connection: ``"weak"``: nodes are joined by edges of either direction; ``"strong"``: there
            are paths both ways.

    Raises:
        TypeError: ``graph`` is none, or called inside ``jax.jit``.
        ValueError: the graph is bipartite, or ``connection`` is none of these.

    Example:
        >>> connected_components(Graph.from_edges([(0, 2), (3, 1)]))
        array([0, 1, 0, 1])
    """
    num_nodes, (src, dst, _) = _opened("connected_components", graph)
    check_choice("connection", connection, ("weak", "strong"))
    if num_nodes == 0:
        return np.zeros(0, np.int64)
    import scipy.sparse.csgraph

    _, labels = scipy.sparse.csgraph.connected_components(
        _matrix(src, dst, num_nodes), connection=connection
    )
    _, first, labels = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[labels]


def largest_component(
    graph: Graph,
    *,
    num_components: int = 1,
    connection: Literal["weak", "strong"] = "weak",
) -> Derived:
    """The components that have the most nodes; of equal ones, those whose first node comes first.

    Args:
        graph: the graph, not bipartite.
        num_components: how many components are kept.
        connection: see :func:`connected_components`.

    Raises:
        TypeError: an argument has the wrong type, or called inside ``jax.jit``.
        ValueError: as :func:`connected_components`, or ``num_components`` is negative.

    Example:
        >>> largest_component(Graph.from_edges([(0, 2), (3, 1), (1, 4)])).nodes
        array([1, 3, 4])
    """
    labels = connected_components(graph, connection=connection)
    order = np.argsort(-np.bincount(labels), kind="stable")
    kept = order[: arguments.check_size("num_components", num_components)]
    return subgraph(graph, np.isin(labels, kept))


def remove_self_loops(graph: Graph) -> Derived:
    """The graph without edges from a node to itself; :meth:`Graph.with_self_loops` adds such.

    Args:
        graph: the graph, not bipartite.

    Raises:
        TypeError: ``graph`` is none, or called inside ``jax.jit``.
        ValueError: the graph is bipartite.

    Example:
        >>> remove_self_loops(Graph.from_edges([(0, 1), (1, 1)])).graph
        Graph(num_nodes=2, num_edges=1)
    """
    num_nodes, (src, dst, edge_ids) = _opened("remove_self_loops", graph)
    kept = np.flatnonzero(src != dst)
    return _derived(graph, (src[kept], dst[kept]), edge_ids[kept], np.arange(num_nodes), kept)


# --- Other graphs --------------------------------------------------------------------------------


def line_graph(graph: Graph, *, undirected: bool = False) -> Derived:
    """The graph whose nodes are the edges of another one, joined where one goes on in the other.

    Args:
        graph: the graph, not bipartite.
        undirected: whether the graph has each edge in both directions, and the two are one node: of
            edges with ``src <= dst``. Two nodes are then joined, in both directions, where their
            edges have a common end.

    Returns:
        ``nodes``: the place of each node among the edges of the graph; ``edges``: the node of the
        graph that each new edge goes through, the smaller one of two common ends.

    Raises:
        TypeError: an argument has the wrong type, or called inside ``jax.jit``.
        ValueError: the graph is bipartite.

    Example:
        >>> made = line_graph(Graph.from_edges([(0, 1), (1, 2), (1, 3)]))
        >>> made.graph.edges(), made.edges
        ((array([0, 0]), array([1, 2])), array([1, 1]))
    """
    num_nodes, (src, dst, _) = _opened("line_graph", graph)
    places = np.arange(len(src))
    if arguments.check_flag("undirected", undirected):
        places = places[src <= dst]
        src, dst = src[places], dst[places]
        numbers = np.arange(len(places))
        ends = _incidence(np.r_[numbers, numbers], np.r_[src, dst], len(places), num_nodes)
        common = (ends @ ends.T).tocoo()
        first, then = common.row[common.row != common.col], common.col[common.row != common.col]
        is_common = (src[first] == src[then]) | (src[first] == dst[then])
        through = np.where(is_common, src[first], dst[first])
    else:
        into, out_of = (_incidence(places, ends, len(places), num_nodes) for ends in (dst, src))
        goes_on = (into @ out_of.T).tocoo()
        first, then = goes_on.row, goes_on.col
        through = dst[first]
    order = np.lexsort((then, first))
    first, then, through = first[order], then[order], through[order]
    with on_host(True):
        line = Graph.from_edges(first, then, num_nodes=len(places))
    return Derived(_like(graph, line), places, through[line.edge_ids])


def clique_expansion(hypergraph: Hypergraph, hyperedge_weight: Any = None) -> tuple[Graph, Array]:
    """The graph in which nodes are joined that share a hyperedge, and the weights of its edges.

    Of a directed hypergraph, edges run from the tail of a hyperedge to its head. Nodes are not
    joined to themselves.

    Args:
        hypergraph: the hypergraph.
        hyperedge_weight: ``(num_hyperedges,)`` real numbers; None means ones.

    Returns:
        The graph, and ``(num_edges,)``, the sum of the weights of the hyperedges that two nodes
        share, in the graph's order: H W H^T off the diagonal.

    Raises:
        TypeError: an argument has the wrong type, or called inside ``jax.jit``.
        ValueError: there is not one weight for each hyperedge.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [1, 2]])
        >>> graph, weight = clique_expansion(hypergraph)
        >>> graph.rows, graph.cols
        (Array([0, 0, 1, 1, 2, 2], dtype=int32), Array([1, 2, 0, 2, 0, 1], dtype=int32))
        >>> weight
        Array([1., 1., 1., 2., 1., 2.], dtype=float32)
    """
    tail, head = _both_sides("clique_expansion", hypergraph)
    weight = np.ones(hypergraph.num_hyperedges)
    if hyperedge_weight is not None:
        weight = _real("hyperedge_weight", hyperedge_weight)
        if weight.shape != (hypergraph.num_hyperedges,):
            raise ValueError(
                f"hyperedge_weight must be (num_hyperedges={hypergraph.num_hyperedges},), got "
                f"shape {weight.shape}"
            )
    size = hypergraph.num_nodes, hypergraph.num_hyperedges
    sides = [scipy.sparse.coo_array((np.ones(len(v)), (v, e)), shape=size) for v, e in (tail, head)]
    scaled = scipy.sparse.csr_array(sides[1] * weight)
    shared = (scaled @ scipy.sparse.csr_array(sides[0]).T).tocoo()
    off = shared.row != shared.col
    with on_host(True):
        graph = Graph.from_edges(shared.col[off], shared.row[off], num_nodes=size[0])
    values = shared.data[off][graph.edge_ids].astype(_float())
    device = device_of(hypergraph.graph.rows)
    return _like(hypergraph.graph, graph), to_device(values, device)


def star_expansion(hypergraph: Hypergraph) -> Derived:
    """The graph that has a node for each hyperedge, too, joined to those that belong to it.

    Hyperedge i is node ``num_nodes + i``. Edges run both ways; of a directed hypergraph, from the
    tail to the hyperedge, and from there to the head.

    Args:
        hypergraph: the hypergraph.

    Returns:
        ``nodes``: the nodes, then the hyperedges, each numbered from 0; ``edges``: the place of
        each edge among the incidences, of ``graph`` or of ``receiving``.

    Raises:
        TypeError: ``hypergraph`` is none, or called inside ``jax.jit``.

    Example:
        >>> star_expansion(Hypergraph.from_hyperedges([[0, 1], [1]])).graph.edges()
        (array([0, 1, 1, 2, 2, 3]), array([2, 2, 3, 0, 1, 1]))
    """
    tail, head = _both_sides("star_expansion", hypergraph)
    num_nodes, num_hyperedges = hypergraph.num_nodes, hypergraph.num_hyperedges
    src = np.concatenate([tail[0], head[1] + num_nodes])
    dst = np.concatenate([tail[1] + num_nodes, head[0]])
    with on_host(True):
        graph = Graph.from_edges(src, dst, num_nodes=num_nodes + num_hyperedges)
    nodes = np.concatenate([np.arange(num_nodes), np.arange(num_hyperedges)])
    edges = np.concatenate([np.arange(len(tail[0])), np.arange(len(head[0]))])[graph.edge_ids]
    return Derived(_like(hypergraph.graph, graph), nodes, edges)


# --- Graphs of points ----------------------------------------------------------------------------


def knn_graph(x: Any, k: int, *, graph_ids: Any = None, loop: bool = False) -> Graph:
    """Edges into each point from its k nearest ones, in Euclidean distance.

    Args:
        x: ``(num_nodes, features)`` finite real numbers.
        k: how many; fewer where there are not as many.
        graph_ids: ``(num_nodes,)``, the graph of each point, as :class:`jax_gnn.Batch` has them:
            there are no edges between graphs, and none of points with a negative id.
        loop: whether a point may be among its own nearest ones; it is the first then.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a shape is wrong, a number is not finite, or ``k`` is negative.

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
        near = members[:, None][:, : k if loop else 0]
        wanted = min(k - loop, count - 1)
        if wanted > 0:
            _, others = cKDTree(points[members]).query(points[members], np.arange(1, wanted + 2))
            # A point may be missing among its own nearest ones, where many are equal.
            own = others == np.arange(count)[:, None]
            own[~own.any(1), -1] = True
            near = np.concatenate([near, members[others[~own].reshape(count, wanted)]], 1)
        src.append(near.ravel())
        dst.append(np.repeat(members, near.shape[1]))
    return Graph.from_edges(np.concatenate(src), np.concatenate(dst), num_nodes=len(points))


def radius_graph(
    x: Any,
    radius: float,
    *,
    graph_ids: Any = None,
    loop: bool = False,
    max_num_neighbors: int | None = None,
) -> Graph:
    """Edges between all points whose Euclidean distance is at most a radius, in both directions.

    Args:
        x: ``(num_nodes, features)`` finite real numbers.
        radius: the distance, not negative.
        graph_ids: see :func:`knn_graph`.
        loop: whether points have an edge to themselves.
        max_num_neighbors: how many edges a point may have into it, loops not counted: those from
            the nearest ones are kept. None means all.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a shape is wrong, or a number is negative or not finite.

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

    found = [np.zeros((0, 2), np.int64)]
    for members in groups:
        pairs = cKDTree(points[members]).query_pairs(radius, output_type="ndarray")
        found.append(members[pairs.reshape(-1, 2)])
    pairs = np.concatenate(found)
    src, dst = np.concatenate([pairs, pairs[:, ::-1]]).T
    if max_num_neighbors is not None:
        most = arguments.check_size("max_num_neighbors", max_num_neighbors)
        order = np.lexsort((src, np.square(points[src] - points[dst]).sum(1), dst))
        src, dst = src[order], dst[order]
        rank = np.arange(len(dst)) - np.searchsorted(dst, dst)
        src, dst = src[rank < most], dst[rank < most]
    if loop:
        own = np.concatenate([src[:0], *groups])
        src, dst = np.concatenate([src, own]), np.concatenate([dst, own])
    order = np.lexsort((src, dst))
    return Graph.from_edges(src[order], dst[order], num_nodes=len(points))


# --- Encodings -----------------------------------------------------------------------------------


def laplacian_encoding(graph: Graph, k: int, *, graph_ids: Any = None) -> Array:
    """Eigenvectors of the normalized Laplacian of the smallest eigenvalues but the first.

    ``I - D^-1/2 A D^-1/2`` of the symmetric part of A, in which edges count as often as they are
    there; nodes without edges have a 0 in place of the 1. Dwivedi et al., "Benchmarking graph
    neural networks", 2020, section 4. Of each vector, which is of length 1, the entry of the
    largest magnitude is positive: the first of those that are within 1e-6 of it. Models
    should not rely on signs, nor on vectors that share an eigenvalue.

    Args:
        graph: the graph, not bipartite.
        k: number of eigenvectors; of graphs with fewer, the rest are zeros.
        graph_ids: ``(num_nodes,)``, the graph of each node, as :class:`jax_gnn.Batch` has them:
            each gets its own eigenvectors, and nodes with a negative id get zeros. None: one graph.

    Returns:
        ``(num_nodes, k)`` in float32, or in float64 where 64 bits are on.

    Raises:
        TypeError: an argument has the wrong type, or called inside ``jax.jit``.
        ValueError: the graph is bipartite, ``k`` is negative, or ids have another length.

    Example:
        >>> path = Graph.from_edges([(0, 1), (1, 2)]).symmetrized()
        >>> laplacian_encoding(path, 1)[:, 0].round(3)
        Array([ 0.707,  0.   , -0.707], dtype=float32)
    """
    num_nodes, (src, dst, _) = _opened("laplacian_encoding", graph)
    k = arguments.check_size("k", k)
    adjacency = _matrix(src, dst, num_nodes)
    adjacency = (adjacency + adjacency.T) / 2
    degree = np.asarray(adjacency.sum(1)).ravel()
    scale = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1e-300)), 0)
    scaled = scipy.sparse.csr_array(scale[:, None] * adjacency * scale)
    result = np.zeros((num_nodes, k))
    for members in _groups(graph_ids, num_nodes):
        block = scaled[members][:, members]
        vectors = _eigenvectors(block, degree[members] > 0, min(k + 1, len(members)))[:, 1:]
        magnitude = np.abs(vectors)
        top = np.argmax(magnitude >= magnitude.max(0, initial=0) - 1e-6, axis=0)
        sign = np.where(vectors[top, np.arange(len(top))] < 0, -1, 1)
        result[members, : vectors.shape[1]] = vectors * sign
    return to_device(result.astype(_float()), device_of(graph.rows))


def _eigenvectors(block: Any, has_edges: np.ndarray, count: int) -> np.ndarray:
    """Those of the smallest eigenvalues of the Laplacian of a graph."""
    size = block.shape[0]
    if size <= DENSE_NODES or count >= size:
        return np.linalg.eigh(np.diag(has_edges.astype(float)) - block.toarray())[1][:, :count]
    import scipy.sparse.linalg

    # The largest of 2 - L, from which no system of equations must be solved.
    shifted = scipy.sparse.diags_array(2.0 - has_edges) + block
    start = np.random.default_rng(0).standard_normal(size)  # the same in every call
    values, vectors = scipy.sparse.linalg.eigsh(shifted, count, which="LA", v0=start)
    return vectors[:, np.argsort(-values, kind="stable")]


def random_walk_encoding(graph: Graph, num_steps: int, edge_weight: Any = None) -> Array:
    """How likely a random walk is back where it began, after 1, 2, … steps.

    ``diag((D^-1 A)^i)``, where a walk follows edges from sources to destinations. Dwivedi et al.,
    "Graph neural networks with learnable structural and positional representations", ICLR 2022,
    section 3.2. A walk ends where no edge goes on.

    Args:
        graph: the graph, not bipartite; a batch of graphs is one.
        num_steps: how many steps.
        edge_weight: ``(num_edges,)`` in the graph's order, not negative: a walk takes an edge in
            proportion. None means ones.

    Returns:
        ``(num_nodes, num_steps)`` in float32, or in float64 where 64 bits are on.

    Raises:
        TypeError: an argument has the wrong type, or called inside ``jax.jit``.
        ValueError: the graph is bipartite, ``num_steps`` is negative, or weights are negative, not
            finite or of another length.

    Example:
        >>> triangle = Graph.from_edges([(0, 1), (1, 2), (2, 0)]).symmetrized()
        >>> random_walk_encoding(triangle, 3)[0]
        Array([0.  , 0.5 , 0.25], dtype=float32)
    """
    num_nodes, (src, dst, _) = _opened("random_walk_encoding", graph)
    num_steps = arguments.check_size("num_steps", num_steps)
    weight = None
    if edge_weight is not None:
        weight = _real("edge_weight", edge_weight)
        if weight.shape != (graph.num_edges,):
            raise ValueError(
                f"edge_weight must be (num_edges={graph.num_edges},), got shape {weight.shape}"
            )
        weight = weight[: len(src)]
        if not (np.isfinite(weight) & (weight >= 0)).all():
            raise ValueError("edge_weight must be finite and not negative")
    forward = _matrix(src, dst, num_nodes, weight).T
    total = np.asarray(forward.sum(1)).ravel()
    share = np.divide(1, total, out=np.zeros(num_nodes), where=total > 0)
    back = scipy.sparse.csr_array((share[:, None] * forward).T)
    result = np.zeros((num_nodes, num_steps))
    for start in range(0, num_nodes, 512):  # rows of powers, as columns
        rows = np.arange(start, min(start + 512, num_nodes))
        power: Any = scipy.sparse.eye_array(num_nodes, format="csr")[:, rows]
        for i in range(num_steps):
            power = back @ power
            if scipy.sparse.issparse(power) and power.nnz > power.shape[0] * len(rows) / 50:
                power = power.toarray()  # in small graphs they stay sparse, in others soon not
            result[rows, i] = power[rows, np.arange(len(rows))]
    return to_device(result.astype(_float()), device_of(graph.rows))


# --- What they share -----------------------------------------------------------------------------


def _opened(caller: str, graph: Graph) -> tuple[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The number of nodes, and the edges in the graph's order without padding."""
    check_instance("graph", graph, Graph)
    return graph.num_nodes, graph._host_edges(caller)


def _like(graph: Graph, made: Graph) -> Graph:
    """What was made on the host, where the graph that it was made of is."""
    return made if namespace(graph.rows) is np else to_device(made, device_of(graph.rows))


def _derived(
    graph: Graph,
    ends: tuple[np.ndarray, np.ndarray],
    edge_ids: np.ndarray,
    nodes: np.ndarray,
    edges: np.ndarray,
) -> Derived:
    """A graph of some edges of another, which takes values of the same input."""
    with on_host(True):
        made = Graph.from_edges(*ends, num_nodes=len(nodes))
    order = made.edge_ids
    made = made._renumbered(edge_ids, graph.num_input_edges)
    made = made if graph.split is None else made.with_edge_split()
    return Derived(_like(graph, made), nodes, edges[order])


def _node_ids(name: str, ids: Any, num_nodes: int) -> np.ndarray:
    found = arguments.check_ids(name, ids)
    arguments.check_range(name, found, "num_nodes", num_nodes)
    return found


def _matrix(src: np.ndarray, dst: np.ndarray, num_nodes: int, weight: Any = None) -> Any:
    """A, ``(num_nodes, num_nodes)``, in which edges that are there twice count twice."""
    values = np.ones(len(src)) if weight is None else weight
    coo = scipy.sparse.coo_array((values, (dst, src)), shape=(num_nodes, num_nodes))
    return scipy.sparse.csr_array(coo)


def _incidence(rows: np.ndarray, cols: np.ndarray, num_rows: int, num_cols: int) -> Any:
    coo = scipy.sparse.coo_array((np.ones(len(rows)), (rows, cols)), shape=(num_rows, num_cols))
    return scipy.sparse.csr_array(coo)


def _both_sides(caller: str, hypergraph: Hypergraph) -> list[tuple[np.ndarray, np.ndarray]]:
    """Nodes and hyperedges of the incidences that send, and of those that receive."""
    check_instance("hypergraph", hypergraph, Hypergraph)
    sides = hypergraph.graph, hypergraph.receiving
    return [side._host_edges(caller)[:2] for side in sides]


def _real(name: str, values: Any) -> np.ndarray:
    if is_traced(values):
        raise TypeError(f"{name} must not be traced: this works on the host only")
    found = arguments.to_numpy(name, values)
    if not arguments.is_real(found.dtype):
        raise TypeError(f"{name} must be real numbers, got {found.dtype}")
    return found.astype(np.float64)


def _points(x: Any, graph_ids: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    points = _real("x", x)
    if points.ndim != 2:
        raise ValueError(f"x must be (num_nodes, features), got shape {points.shape}")
    if not np.isfinite(points).all():
        node, feature = np.argwhere(~np.isfinite(points))[0]
        raise ValueError(f"x must be finite, got {points[node, feature]} at [{node}, {feature}]")
    points = points if points.shape[1] else np.zeros((len(points), 1))
    return points, _groups(graph_ids, len(points))


def _groups(graph_ids: Any, num_nodes: int) -> list[np.ndarray]:
    """The nodes of each graph that has some."""
    if graph_ids is None:
        return [np.arange(num_nodes)] if num_nodes else []
    ids = arguments.check_ids("graph_ids", graph_ids)
    if ids.shape != (num_nodes,):
        raise ValueError(f"graph_ids must be (num_nodes={num_nodes},), got shape {ids.shape}")
    order = np.argsort(ids, kind="stable")
    order = order[ids[order] >= 0]
    starts = np.flatnonzero(np.diff(ids[order], prepend=-1))
    return np.split(order, starts)[1:] if len(order) else []


def _float() -> Any:
    return jax.dtypes.canonicalize_dtype(np.float64)
