"""Layerwise inference in chunks, compared with the same model on the whole graph."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import flax_layers
from flax_layers import SAGE, HeteroModel, layerwise_inference
from jax_gnn import Graph, HeteroGraph, Hypergraph, RelationalGraph, host_arrays
from jax_gnn.sampling import node_chunks
from jax_gnn.sharding import PartFiles, save_parts

pytestmark = pytest.mark.usefixtures("float64")

OF_GRAPHS = "GCN", "GIN", "SAGE", "GAT", "GATv2", "GraphTransformer"
WEIGHTED = "GCN", "GIN", "SAGE"


def make_graph(rng: np.random.Generator, num_nodes: int, num_edges: int) -> Graph:
    src, dst = rng.integers(0, max(num_nodes, 1), (2, num_edges))
    dst[: num_edges // 3] = num_nodes // 2  # a hub
    return Graph.from_edges(src, dst, num_nodes=num_nodes)


def check(model, graph, x, chunk_edges, **values):
    """Compare layerwise inference, on the device and on the host, with the model."""
    on_device = jax.tree.map(jnp.asarray, x)
    want = model(graph, on_device, **values, deterministic=True)
    # Three ways: the model, chunks on the device, chunks on the host.
    y = layerwise_inference(model, graph, on_device, chunk_edges=chunk_edges, **values)
    hosted = layerwise_inference(model, graph, x, chunk_edges=chunk_edges, **values)
    for result in (y, hosted):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-10), result, want
        )
    return hosted


@pytest.mark.parametrize("name", OF_GRAPHS)
@pytest.mark.parametrize("chunk_edges", [1, 37, 1000])
def test_graphs(name, chunk_edges, rng):
    graph = make_graph(rng, 23, 91)
    options = {"heads": 2} if name in ("GAT", "GATv2", "GraphTransformer") else {}
    model = getattr(flax_layers, name)(
        5, 8, 3, num_layers=3, rngs=nnx.Rngs(0), param_dtype=jnp.float64, **options
    )
    x = rng.normal(size=(23, 5))
    hosted = check(model, graph, x, chunk_edges)
    assert isinstance(hosted, np.ndarray)
    if name in WEIGHTED and chunk_edges == 37:
        check(model, graph, x, chunk_edges, edge_weight=rng.uniform(size=graph.num_edges))


OPTIONS = [
    (flax_layers.GCN, {"normalization": None}),
    (flax_layers.GCN, {"add_self_loops": False, "use_bias": False}),
    (flax_layers.GIN, {"learn_eps": True, "mlp_features": 6}),
    (SAGE, {"reduce": "max", "project": True, "self_weight": False, "l2_normalize": True}),
    (flax_layers.GATv2, {"add_self_loops": False, "share_weights": True}),
    (flax_layers.GraphTransformer, {"gated": True}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_options(kind, options, rng):
    model = kind(5, 8, 3, num_layers=2, rngs=nnx.Rngs(0), param_dtype=jnp.float64, **options)
    check(model, make_graph(rng, 11, 40), rng.normal(size=(11, 5)), 17)


@pytest.mark.parametrize("features", [True, False])
def test_weights_of_relations(features, rng):
    triples = (rng.integers(0, size, 80) for size in (17, 3, 17))
    graph = RelationalGraph.from_triples(
        *triples, num_nodes=17, num_relations=3, self_relation=True
    )
    model = flax_layers.RGCN(
        5 if features else 17, 8, 3, num_relations=3, rngs=nnx.Rngs(0), param_dtype=jnp.float64
    )
    if features:
        check(model, graph, rng.normal(size=(17, 5)), 20)
    else:
        y = layerwise_inference(model, graph, None, chunk_edges=20)
        np.testing.assert_allclose(y, model(graph, deterministic=True), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["RGCN", "RGAT", "HGT"])
def test_types_of_nodes(name, rng):
    sizes = {"a": 9, "b": 14}
    end_sizes = {("a", "to", "b"): (9, 14), ("b", "of", "a"): (14, 9), ("b", "on", "b"): (14, 14)}
    edges = {key: [rng.integers(0, size, 40) for size in pair] for key, pair in end_sizes.items()}
    graph = HeteroGraph.from_edges(edges, sizes)
    options = {"node_types": ("a", "b"), "relation_ends": tuple(end_sizes)} if name == "HGT" else {}
    heads = {} if name == "RGCN" else {"heads": 2}
    model = HeteroModel(
        {"a": 4, "b": 14},
        getattr(flax_layers, name)(
            8, 8, 3, num_relations=3, rngs=nnx.Rngs(1), param_dtype=jnp.float64, **heads, **options
        ),
        rngs=nnx.Rngs(0),
        param_dtype=jnp.float64,
    )
    check(model, graph, {"a": rng.normal(size=(9, 4)), "b": None}, 30)


@pytest.mark.parametrize("num_parts", [1, 5, 8])
@pytest.mark.parametrize("name", [*OF_GRAPHS, "RGCN", "RGAT", "HGT"])
def test_parts_in_files(name, num_parts, tmp_path, rng):
    """Parts that are read one after another, some of them empty, give the result of the graph."""
    is_relational, options = name in ("RGCN", "RGAT", "HGT"), {}
    if name not in ("GCN", "GIN", "SAGE", "RGCN"):
        options["heads"] = 2
    sizes = {"a": 9, "b": 14}
    graph: Any = make_graph(rng, 23, 91)
    if is_relational:
        ends = {("a", "to", "b"): (9, 14), ("b", "of", "a"): (14, 9)}
        edges = {key: [rng.integers(0, size, 40) for size in pair] for key, pair in ends.items()}
        graph = RelationalGraph.from_edge_dict(edges, sizes)
        options["num_relations"] = 2
        if name == "HGT":
            options |= {"node_types": ("a", "b"), "relation_ends": tuple(ends)}
    model = getattr(flax_layers, name)(
        5, 8, 3, num_layers=2, rngs=nnx.Rngs(0), param_dtype=jnp.float64, **options
    )
    save_parts(tmp_path / "parts", graph, num_parts, rng.integers(0, max(num_parts - 2, 1), 23))
    np.save(tmp_path / "x.npy", rng.normal(size=(23, 5)))
    parts, x = PartFiles(tmp_path / "parts"), np.load(tmp_path / "x.npy", mmap_mode="r")
    assert (len(parts), parts.num_nodes, parts.num_edges) == (num_parts, 23, graph.num_edges)
    values = [{}, {"edge_weight": rng.uniform(size=graph.num_edges)}][: 1 + (name in WEIGHTED)]
    for edge_values in values:
        want = model(graph, jnp.asarray(x), **edge_values, deterministic=True)
        if isinstance(want, dict):
            want = np.concatenate([*want.values()])
        y = layerwise_inference(model, parts, x, **edge_values)
        assert isinstance(y, np.ndarray)
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-12)


def test_errors_of_parts_in_files(tmp_path, rng):
    model = SAGE(5, 8, 3, rngs=nnx.Rngs(0))
    relational = flax_layers.RGCN(5, 8, 3, num_relations=1, rngs=nnx.Rngs(0))
    save_parts(tmp_path, make_graph(rng, 23, 91), 2)
    parts, x = PartFiles(tmp_path), np.zeros((23, 5))
    for number in (-1, len(parts)):
        with pytest.raises(ValueError, match=f"number must be from 0 and below .*got {number}"):
            parts.block(number)
    with pytest.raises(TypeError, match="x must be an array of numpy for PartFiles, got None"):
        layerwise_inference(model, parts, None)
    with pytest.raises(TypeError, match=r"graph must be a jax_gnn\.RelationalGraph, got"):
        layerwise_inference(relational, parts, x)
    with pytest.raises(ValueError, match="x must have shape"):
        layerwise_inference(model, parts, x[1:])
    (tmp_path / "1.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"1\.npz does not exist"):
        layerwise_inference(model, parts, x)
    save_parts(tmp_path, Hypergraph.from_hyperedges([[0, 1], [1, 2]]), 2)
    with pytest.raises(ValueError, match="must have parts of a graph, got those of a hypergraph"):
        PartFiles(tmp_path)


def test_host_graphs_and_tiny_graphs(rng):
    model = SAGE(5, 8, 3, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    with host_arrays():
        graph = make_graph(rng, 23, 91)
    check(model, graph, rng.normal(size=(23, 5)), 37)
    for num_nodes, num_edges in ((1, 0), (7, 0), (1, 3)):
        check(model, make_graph(rng, num_nodes, num_edges), rng.normal(size=(num_nodes, 5)), 2)
    assert layerwise_inference(model, make_graph(rng, 0, 0), np.zeros((0, 5))).shape == (0, 3)
    # Padding adds nodes without edges.
    padded = make_graph(rng, 23, 91).pad(num_nodes=40, num_edges=200)
    check(model, padded, rng.normal(size=(40, 5)), 37)


def test_batch_axes(rng):
    model = SAGE(5, 8, 3, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    check(model, make_graph(rng, 23, 91), rng.normal(size=(23, 2, 5)), 37)


def test_chunks(rng):
    """Each node is in one chunk, with all edges into it."""
    graph = make_graph(rng, 50, 300)
    chunks = node_chunks(graph, 37)
    assert chunks.num_edges == max(37, int(graph.in_degrees().max()))
    rows, cols = np.asarray(graph.rows), np.asarray(graph.cols)
    seen, edges = [], []
    for i in range(len(chunks)):
        blocks = chunks.block(i)
        ids = np.asarray(blocks.node_ids)
        (block,) = blocks.graphs
        seen += ids[: block.num_dst][ids[: block.num_dst] >= 0].tolist()
        # Edges are those of the graph, named by their places.
        src, dst = block.edges()
        places = np.asarray(blocks.edge_ids[0])
        places = places[places >= 0]
        np.testing.assert_array_equal(cols[places], ids[src])
        np.testing.assert_array_equal(rows[places], ids[dst])
        edges += places.tolist()
        assert not blocks.overflow
    assert seen == list(range(50))
    assert sorted(edges) == list(range(300))


def test_garbage_reads_nothing_out_of_range(rng):
    graph = make_graph(rng, 20, 60)
    # Columns and row pointers out of range.
    sources = rng.integers(-(2**31), 2**31, 60).astype(np.int32)
    pointers = rng.integers(-100, 200, 21).astype(np.int32)
    broken = Graph(**vars(graph) | {"cols": jnp.asarray(sources), "indptr": jnp.asarray(pointers)})
    chunks = node_chunks(broken, 13)
    for i in range(len(chunks)):
        blocks = chunks.block(i)
        assert (np.asarray(blocks.node_ids) < 20).all()
        places = np.asarray(blocks.edge_ids[0])
        assert ((places >= -1) & (places < 60)).all()


def test_errors(rng):
    graph = make_graph(rng, 20, 60)
    model = SAGE(5, 8, 3, rngs=nnx.Rngs(0))
    x = jnp.ones((20, 5))
    with pytest.raises(ValueError, match="chunk_edges must be"):
        layerwise_inference(model, graph, x, chunk_edges=0)
    with pytest.raises(TypeError, match=r"model must be one of GCN, GIN, SAGE, .*got 3"):
        layerwise_inference(3, graph, x)
    with pytest.raises(TypeError, match=r"graph must be a jax_gnn\.Graph, got int"):
        layerwise_inference(model, 3, x)
    with pytest.raises(ValueError, match="x must have shape"):
        layerwise_inference(model, graph, x[:7])
    with pytest.raises(ValueError, match="edge_weight must have num_edges = 60 rows"):
        layerwise_inference(model, graph, x, edge_weight=jnp.ones(3))
    with pytest.raises(ValueError, match=r"graph must be known, .*got a traced one"):
        jax.jit(node_chunks)(graph)
    bipartite = Graph.from_edges([0], [0], num_src=2, num_dst=3)
    with pytest.raises(ValueError, match="one kind of nodes, got num_src=2 and num_dst=3"):
        node_chunks(bipartite)
