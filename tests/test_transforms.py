"""Transforms of graphs, compared with networkx, PyTorch Geometric and plain definitions.

Graphs are random multigraphs with self-loops, isolated nodes and padding, and empty ones.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import pytest
from op_spec import programs

from jax_gnn import Graph, Hypergraph, batch, host_arrays, transforms
from jax_gnn.transforms import Derived

Rng = np.random.Generator


def random_graph(rng: Rng, num_nodes: int = 12, num_edges: int = 16) -> Graph:
    """Return a graph with isolated nodes, padding, and self-loops that no input edge has."""
    num_edges *= num_nodes > 0
    src, dst = rng.integers(0, max(num_nodes - 2, 1), (2, num_edges))
    src[num_edges // 2 :: 5] = dst[num_edges // 2 :: 5]
    graph = Graph.from_edges(src, dst, num_nodes=num_nodes)
    graph = graph.with_self_loops() if rng.integers(2) else graph
    return graph.pad(num_edges=graph.num_edges + int(rng.integers(3)))


def graphs(rng: Rng, count: int = 20) -> Iterable[Graph]:
    with host_arrays():
        yield Graph.from_edges([], [], num_nodes=0)
        yield Graph.from_edges([], [], num_nodes=3)
        for _ in range(count):
            yield random_graph(rng, int(rng.integers(1, 14)))


def edge_array(graph: Graph) -> np.ndarray:
    """Return the edges ``(num_edges, 2)`` without padding, in the graph's order."""
    count = graph.indptr[-1]
    return np.stack([graph.cols[:count], graph.rows[:count]], 1)


def pairs(edges) -> Counter[tuple[int, int]]:
    return Counter((int(u), int(v)) for u, v in edges)


def networkx(graph: Graph) -> Any:
    nx = need("networkx")
    multigraph = nx.MultiDiGraph()
    multigraph.add_nodes_from(range(graph.num_nodes))
    multigraph.add_edges_from(
        (int(u), int(v), {"id": i}) for i, (u, v) in enumerate(edge_array(graph))
    )
    return multigraph


def need(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


def check(derived: Derived, graph: Graph) -> None:
    """Check the maps from new nodes and edges to the original ones, and values of the input."""
    derived_edges, edges = edge_array(derived.graph), edge_array(graph)
    assert derived.graph.num_nodes == len(derived.nodes) and len(derived_edges) == len(
        derived.edges
    )
    np.testing.assert_array_equal(derived.nodes[derived_edges], edges[derived.edges])
    inside = np.isin(edges, derived.nodes).all(1)
    assert pairs(edges[derived.edges]) <= pairs(edges[inside])
    count = int(derived.graph.num_input_edges)
    assert count == graph.num_input_edges
    # Values of input edges follow their edges; added loops have none.
    values = np.arange(1.0, count + 1)
    of_all = np.asarray(graph.edge_values(values))[: len(edges)]
    np.testing.assert_array_equal(derived.graph.edge_values(values), of_all[derived.edges])


# --- Parts ---------------------------------------------------------------------------------------


def test_subgraph(rng: Rng) -> None:
    for graph in graphs(rng):
        nodes = rng.permutation(graph.num_nodes)[: rng.integers(graph.num_nodes + 1)]
        derived = transforms.subgraph(graph, nodes)
        check(derived, graph)
        np.testing.assert_array_equal(derived.nodes, nodes)
        want = networkx(graph).subgraph(nodes.tolist()).edges(data="id")
        assert sorted(derived.edges) == sorted(number for *_, number in want)
        mask = np.isin(np.arange(graph.num_nodes), nodes)
        np.testing.assert_array_equal(transforms.subgraph(graph, mask).nodes, np.sort(nodes))


@pytest.mark.parametrize("direction", ["in", "out", "both"])
def test_k_hop_subgraph(rng: Rng, direction) -> None:
    for graph in graphs(rng):
        if graph.num_nodes == 0:
            continue
        roots = rng.permutation(graph.num_nodes)[:2]
        hops = int(rng.integers(4))
        derived = transforms.k_hop_subgraph(graph, roots, hops, direction=direction)
        check(derived, graph)
        np.testing.assert_array_equal(derived.nodes[: len(roots)], roots)
        # Walks along edges give successors; along reversed edges, predecessors.
        walked = networkx(graph)
        walked = {"in": walked.reverse(), "out": walked, "both": walked.to_undirected()}[direction]
        distances = need("networkx").multi_source_dijkstra_path_length(walked, set(roots.tolist()))
        assert set(derived.nodes.tolist()) == {
            n for n, distance in distances.items() if distance <= hops
        }
        if direction != "both":
            geometric, torch = need("torch_geometric.utils"), need("torch")
            flow = {"in": "source_to_target", "out": "target_to_source"}[direction]
            subset, _, _, mask = geometric.k_hop_subgraph(
                torch.tensor(roots),
                hops,
                torch.tensor(edge_array(graph).T.copy()).long(),
                num_nodes=graph.num_nodes,
                flow=flow,
            )
            assert sorted(derived.nodes) == subset.tolist()
            np.testing.assert_array_equal(np.sort(derived.edges), np.flatnonzero(mask))


@pytest.mark.parametrize("connection", ["weak", "strong"])
def test_components(rng: Rng, connection) -> None:
    nx = need("networkx")
    for graph in graphs(rng):
        labels = transforms.connected_components(graph, connection=connection)
        finders = {
            "weak": nx.weakly_connected_components,
            "strong": nx.strongly_connected_components,
        }
        want = {frozenset(component) for component in finders[connection](networkx(graph))}
        numbers = np.unique(labels)
        assert {frozenset(np.flatnonzero(labels == i).tolist()) for i in numbers} == want
        # Components are numbered by their first node.
        first = [int(np.argmax(labels == i)) for i in numbers]
        assert numbers.tolist() == list(range(len(want))) and first == sorted(first)
        derived = transforms.largest_component(graph, num_components=2, connection=connection)
        check(derived, graph)
        ordered = sorted(want, key=lambda nodes: (-len(nodes), min(nodes)))
        assert derived.nodes.tolist() == sorted(
            node for component in ordered[:2] for node in component
        )


def test_self_loops(rng: Rng) -> None:
    for graph in graphs(rng):
        derived = transforms.remove_self_loops(graph)
        check(derived, graph)
        edges = edge_array(graph)
        np.testing.assert_array_equal(derived.edges, np.flatnonzero(edges[:, 0] != edges[:, 1]))


# --- Other graphs --------------------------------------------------------------------------------


def test_line_graph(rng: Rng) -> None:
    nx = need("networkx")
    for graph in graphs(rng):
        derived = transforms.line_graph(graph)
        multigraph = networkx(graph)
        # A node of the line graph is an edge of the graph, named by its position.
        number = {(u, v, key): i for u, v, key, i in multigraph.edges(keys=True, data="id")}
        want = pairs((number[e], number[f]) for e, f in nx.line_graph(multigraph).edges())
        assert pairs(edge_array(derived.graph)) == want
        np.testing.assert_array_equal(derived.nodes, np.arange(len(number)))
        np.testing.assert_array_equal(
            edge_array(graph)[edge_array(derived.graph)[:, 0], 1], derived.edges
        )


def test_line_graph_of_undirected_edges(rng: Rng) -> None:
    nx = need("networkx")
    for graph in graphs(rng):
        graph = graph.symmetrized()
        simple = nx.Graph(networkx(graph))
        edges = sorted(tuple(sorted(edge)) for edge in simple.edges())
        graph = Graph.from_edges(
            [*edges, *((v, u) for u, v in edges if u != v)], num_nodes=graph.num_nodes
        )
        derived = transforms.line_graph(graph, undirected=True)
        of_nodes = [tuple(edge) for edge in edge_array(graph)[derived.nodes].tolist()]
        assert sorted(of_nodes) == edges
        pair_counts = pairs(edge_array(derived.graph))
        assert not pair_counts or max(pair_counts.values()) == 1
        number = {edge: i for i, edge in enumerate(of_nodes)}
        want = {
            frozenset(number[tuple(sorted(edge))] for edge in joined)
            for joined in nx.line_graph(simple).edges()
        }
        assert {frozenset(pair) for pair in pair_counts} == want and len(pair_counts) == 2 * len(
            want
        )
        for (first, then), through in zip(edge_array(derived.graph), derived.edges, strict=True):
            assert through in of_nodes[first] and through in of_nodes[then]


def test_expansions_of_hypergraphs(rng: Rng) -> None:
    for number in range(10):
        size, count = int(rng.integers(1, 8)), int(rng.integers(0, 5))
        members = [rng.integers(0, size, rng.integers(5)) for _ in range(count)]
        hypergraph = Hypergraph.from_hyperedges(members, num_nodes=size)
        incidence = np.zeros((size, count))
        for i, nodes in enumerate(members):
            np.add.at(incidence[:, i], nodes, 1)
        heads = incidence
        if number % 2:
            heads = rng.integers(0, 2, (size, count))
            hypergraph = Hypergraph.from_directed(
                *np.concatenate(
                    [
                        np.zeros((2, 0), int),
                        *(
                            np.stack([nodes, np.full(len(nodes), i)])
                            for i, nodes in enumerate(members)
                        ),
                    ],
                    1,
                ),
                *np.nonzero(heads),
                num_nodes=size,
                num_hyperedges=count,
            )
        weight = rng.uniform(0.5, 2, count)
        graph, of_edges = transforms.clique_expansion(hypergraph, weight)
        dense = np.zeros((size, size))
        edges = edge_array(graph)
        dense[edges[:, 1], edges[:, 0]] = of_edges
        want = heads * weight @ incidence.T
        # Members of a hyperedge are joined with each other, not with themselves.
        np.fill_diagonal(want, 0)
        np.testing.assert_allclose(dense, want, rtol=1e-5)
        assert graph.num_edges == np.count_nonzero(want)
        derived = transforms.star_expansion(hypergraph.pad(num_incidences=40))
        dense = np.zeros((size + count, size + count))
        np.add.at(dense, tuple(edge_array(derived.graph)[:, ::-1].T), 1)
        np.testing.assert_array_equal(dense[size:, :size], incidence.T)
        np.testing.assert_array_equal(dense[:size, size:], heads)
        assert dense.sum() == incidence.sum() + heads.sum()
        np.testing.assert_array_equal(derived.nodes, [*range(size), *range(count)])
        to_hyperedges = edge_array(derived.graph)[:, 1] >= size
        side = {True: hypergraph.graph, False: hypergraph.receiving}
        for (u, v), edge, forth in zip(
            edge_array(derived.graph), derived.edges, to_hyperedges, strict=True
        ):
            node, hyperedge = (u, v) if forth else (v, u)
            assert (side[bool(forth)].cols[edge], side[bool(forth)].rows[edge]) == (
                node,
                hyperedge - size,
            )


# --- Points --------------------------------------------------------------------------------------


def points(rng: Rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points, some equal; their graphs; and distances, infinite between graphs."""
    count = int(rng.integers(0, 20))
    x = rng.normal(size=(count, 3)).round(1)
    x[: count // 3] = x[:1]
    ids = rng.integers(-1, 3, count)
    distance = np.sqrt(np.square(x[:, None] - x).sum(-1))
    # A graph id of -1 marks padding, which is near to nothing.
    distance[(ids[:, None] != ids) | (ids[:, None] < 0)] = np.inf
    return x, ids, distance


@pytest.mark.parametrize("loop", [False, True])
def test_knn_graph(rng: Rng, loop: bool) -> None:
    for _ in range(20):
        x, ids, distance = points(rng)
        k = int(rng.integers(5))
        graph = transforms.knn_graph(x, k, graph_ids=ids, loop=loop)
        candidates = distance.copy()
        # With loops, a point is its own nearest neighbour.
        np.fill_diagonal(candidates, np.where(ids >= 0, -1.0, np.inf) if loop else np.inf)
        edges = edge_array(graph)
        assert max(pairs(edges).values(), default=1) == 1
        for node, row in enumerate(candidates):
            near = edges[edges[:, 1] == node, 0]
            nearest = np.sort(row[np.isfinite(row)])[:k]
            np.testing.assert_allclose(np.sort(row[near]), nearest)  # ties may be broken either way


@pytest.mark.parametrize("most", [None, 0, 2])
def test_radius_graph(rng: Rng, most: int | None) -> None:
    for loop in (False, True) * 10:
        x, ids, distance = points(rng)
        radius = float(rng.uniform(0, 2))
        graph = transforms.radius_graph(x, radius, graph_ids=ids, loop=loop, max_num_neighbors=most)
        np.fill_diagonal(distance, np.inf)
        edges = edge_array(graph)
        assert max(pairs(edges).values(), default=1) == 1
        is_loop = edges[:, 0] == edges[:, 1]
        assert sorted(edges[is_loop, 0]) == (np.flatnonzero(ids >= 0).tolist() if loop else [])
        for node, row in enumerate(distance):
            near = edges[(edges[:, 1] == node) & ~is_loop, 0]
            within = np.sort(row[row <= radius])
            np.testing.assert_allclose(np.sort(row[near]), within[:most])


# --- Encodings -----------------------------------------------------------------------------------


def test_laplacian_encoding(rng: Rng, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eigenvectors of the smallest eigenvalues, of fixed sign, by either solver, in batches too."""
    nx = need("networkx")
    graph = Graph.from_edges(nx.gnm_random_graph(24, 60, seed=int(rng.integers(2**31))).edges())
    graph = transforms.largest_component(graph).graph.symmetrized()
    size = graph.num_nodes
    encoding = np.asarray(transforms.laplacian_encoding(graph, 4))
    laplacian = nx.normalized_laplacian_matrix(nx.Graph(networkx(graph)), range(size)).toarray()
    want = np.linalg.eigvalsh(laplacian)
    np.testing.assert_allclose(laplacian @ encoding, encoding * want[1:5], atol=1e-5)
    np.testing.assert_allclose(encoding.T @ encoding, np.eye(4), atol=1e-5)
    assert (np.take_along_axis(encoding, np.abs(encoding).argmax(0)[None], 0) > 0).all()
    # Graphs above this size take the sparse solver.
    monkeypatch.setattr(transforms, "DENSE_NODES", 8)
    path = Graph.from_edges(np.arange(19), np.arange(1, 20)).symmetrized()
    for members in ([graph], [path] * 30, [graph, path]):  # an eigenvalue 0 for each component
        joined = batch(members).graph
        sparse_encoding = np.asarray(transforms.laplacian_encoding(joined, 4))
        nodes = range(joined.num_nodes)
        matrix = nx.normalized_laplacian_matrix(nx.Graph(networkx(joined)), nodes).toarray()
        values = np.linalg.eigvalsh(matrix)[1:5]
        np.testing.assert_allclose(matrix @ sparse_encoding, sparse_encoding * values, atol=1e-5)
    monkeypatch.undo()
    geometric, torch = need("torch_geometric"), need("torch")
    data = geometric.data.Data(
        edge_index=torch.tensor(edge_array(graph).T.copy()).long(), num_nodes=size
    )
    transform = geometric.transforms.AddLaplacianEigenvectorPE(4, "pe", is_undirected=True)
    of_peer = transform(data).pe.numpy()
    # Eigenvectors of equal eigenvalues may be rotated against each other.
    gaps = np.diff(want)[[0, 1, 2, 3]].clip(max=np.diff(want)[1:5])
    alone = gaps > 1e-3  # where no other eigenvalue is near
    np.testing.assert_allclose(np.abs(encoding[:, alone]), np.abs(of_peer[:, alone]), atol=1e-3)
    batched = batch([graph, Graph.from_edges([], [], num_nodes=2), graph], num_nodes=2 * size + 3)
    batch_encoding = transforms.laplacian_encoding(batched.graph, 4, graph_ids=batched.graph_ids)
    zeros = np.zeros((2, 3))
    np.testing.assert_allclose(batch_encoding[size : size + 2, 1:], zeros)
    assert not batch_encoding[-1].any()
    np.testing.assert_allclose(batch_encoding[:size], encoding, atol=1e-5)
    np.testing.assert_allclose(batch_encoding[size + 2 : -1], encoding, atol=1e-5)


def test_random_walk_encoding(rng: Rng) -> None:
    for graph in graphs(rng):
        weight = rng.uniform(0, 2, graph.num_edges).round(1)
        for values in (None, weight):
            encoding = transforms.random_walk_encoding(graph, 5, values)
            step = np.zeros((graph.num_nodes,) * 2)
            edges = edge_array(graph)
            np.add.at(step, tuple(edges.T), 1 if values is None else values[: len(edges)])
            # Rows without edges stay zero: a walk ends there.
            total = step.sum(1, keepdims=True)
            step = np.divide(step, total, out=np.zeros_like(step), where=total > 0)
            want = [np.diag(np.linalg.matrix_power(step, i)) for i in range(1, 6)]
            np.testing.assert_allclose(encoding, np.stack(want, 1), atol=1e-6)
    geometric, torch = need("torch_geometric"), need("torch")
    graph = Graph.from_edges(np.unique(edges, axis=0).T, num_nodes=graph.num_nodes)  # merged there
    edge_index = torch.tensor(edge_array(graph).T.copy()).long()
    data = geometric.data.Data(edge_index=edge_index, num_nodes=graph.num_nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse tensors are in beta
        want = geometric.transforms.AddRandomWalkPE(5, "pe")(data).pe
    np.testing.assert_allclose(transforms.random_walk_encoding(graph, 5), want, atol=1e-6)


# --- All of them ---------------------------------------------------------------------------------


def on_graphs(graph: Graph) -> list[Any]:
    return [
        transforms.subgraph(graph, [0]),
        transforms.k_hop_subgraph(graph, 0, 2),
        transforms.largest_component(graph),
        transforms.remove_self_loops(graph),
        transforms.line_graph(graph),
        transforms.laplacian_encoding(graph, 2),
        transforms.random_walk_encoding(graph, 2),
    ]


def test_nothing_is_compiled(rng: Rng) -> None:
    with programs() as seen:
        for size in range(3, 23):
            src, dst = rng.integers(0, size, (2, 2 * size))
            on_graphs(Graph.from_edges(src, dst, num_nodes=size))
            hypergraph = Hypergraph.from_incidence(src, dst)
            transforms.clique_expansion(hypergraph)
            transforms.star_expansion(hypergraph)
            transforms.knn_graph(rng.normal(size=(size, 2)), 3)
            transforms.radius_graph(rng.normal(size=(size, 2)), 1)
    assert not seen


def test_results_are_on_the_device_of_the_graph() -> None:
    device = jax.devices()[-1]
    src, dst = jax.device_put(
        (np.array([0, 1, 2], np.int32), np.array([1, 1, 0], np.int32)), device
    )
    results = on_graphs(Graph.from_edges(src, dst, num_nodes=3))
    for array in jax.tree.leaves(results):
        assert isinstance(array, np.ndarray) or (array.committed and array.devices() == {device})
    with host_arrays():
        results = on_graphs(Graph.from_edges([0, 1], [1, 1]))
    assert all(isinstance(array, np.ndarray) for array in jax.tree.leaves(results[:5]))


GRAPH = Graph.from_edges([(0, 1), (1, 2)])
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: transforms.subgraph(GRAPH, [0, 3]), ValueError, r"nodes\[1\] = 3 is outside"),
    (lambda: transforms.subgraph(GRAPH, [0, 0]), ValueError, "nodes must differ from each other"),
    (lambda: transforms.subgraph(GRAPH, [True]), ValueError, r"mask of num_nodes=3, got .*\(1,\)"),
    (lambda: transforms.subgraph("g", [0]), TypeError, "graph must be a jax_gnn.Graph, got str"),
    (lambda: transforms.k_hop_subgraph(GRAPH, 0, -1), ValueError, "num_hops must not be negative"),
    (lambda: transforms.k_hop_subgraph(GRAPH, 0.5, 1), TypeError, "nodes must be an array of int"),
    (
        lambda: transforms.k_hop_subgraph(GRAPH, 0, 1, direction="up"),
        ValueError,
        "direction must be one of 'in', 'out', 'both', got 'up'",
    ),
    (
        lambda: transforms.line_graph(Graph.from_edges([0], [0], num_src=1, num_dst=2)),
        ValueError,
        "a bipartite graph has no num_nodes",
    ),
    (lambda: jax.jit(transforms.line_graph)(GRAPH), TypeError, "line_graph works on the host only"),
    (lambda: transforms.knn_graph([1.0], 1), ValueError, r"x must be \(num_nodes, features\), got"),
    (lambda: transforms.knn_graph([[np.nan]], 1), ValueError, r"x must be finite, got nan at \[0"),
    (lambda: transforms.knn_graph([[0], [-1e200]], 1), ValueError, "x must be at most 1e[+]150 in"),
    (lambda: transforms.radius_graph([[1.0]], -1), ValueError, "radius must not be negative"),
    (
        lambda: transforms.radius_graph([[1.0]], 1, graph_ids=[0, 0]),
        ValueError,
        r"graph_ids must be \(num_nodes=1,\), got shape \(2,\)",
    ),
    (
        lambda: transforms.random_walk_encoding(GRAPH, 2, [1.0]),
        ValueError,
        r"edge_weight must be \(num_edges=2,\), got shape \(1,\)",
    ),
    (
        lambda: transforms.clique_expansion(Hypergraph.from_hyperedges([[0]]), ["a"]),
        TypeError,
        "hyperedge_weight must be real numbers",
    ),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_errors(number: int) -> None:
    call, kind, message = BAD[number]
    with pytest.raises(kind, match=message):
        call()
