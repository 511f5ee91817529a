"""Attributions, compared with derivatives, removal by hand, and PyTorch Geometric's attention."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from test_transforms import edge_array, need

import flax_layers
from jax_gnn import (
    Batch,
    Graph,
    HeteroGraph,
    HGTWeights,
    Hypergraph,
    RelationalGraph,
    batch,
    hgt_attention,
    hyperedge_to_node,
    hypergraph_aggregate,
    hypergraph_norm,
    node_to_hyperedge,
    relational_aggregate,
    relational_lookup,
    segment_sum,
    spmm,
)
from jax_gnn.insight import attribute, fidelity, plot_neighborhood
from jax_gnn.insight._gates import GatedGraph, edges_of, gated, without_edges
from jax_gnn.transforms import k_hop_subgraph

N, F = 9, 3
Rng = np.random.Generator
MODELS: dict[str, Any] = {
    "GCN": flax_layers.GCN,
    "SAGE": flax_layers.SAGE,
    "max": functools.partial(flax_layers.SAGE, reduce="max"),
    "GIN": flax_layers.GIN,
    "GAT": functools.partial(flax_layers.GAT, heads=2),
    "transformer": functools.partial(flax_layers.GraphTransformer, heads=2),
}
WEIGHTED = "GCN", "SAGE", "GIN"


def model_of(name: str, num_layers: int = 2) -> Any:
    model = MODELS[name](F, 4, 3, num_layers=num_layers, rngs=nnx.Rngs(0))
    model.eval()
    return model


def random_graph(rng: Rng, padding: int = 2) -> tuple[Graph, jax.Array]:
    """The graph has self-loops, repeated edges, an isolated node, and padding."""
    src, dst = rng.integers(0, N - 1, (2, 16))
    graph = Graph.from_edges(src, dst, num_nodes=N)
    x = jnp.asarray(rng.normal(size=(N, F)), jnp.float32)
    return graph.pad(num_edges=16 + padding), x


def random_relations(rng: Rng) -> tuple[RelationalGraph, jax.Array]:
    """Return three relations with repeated edges, an isolated node, and padding; and features."""
    src, rel, dst = rng.integers(0, [[N - 1], [3], [N - 1]], (3, 20))
    graph = RelationalGraph.from_triples(src, rel, dst, num_nodes=N, num_relations=3)
    x = jnp.asarray(rng.normal(size=(N, F)), jnp.float32)
    return graph.pad(num_edges=22), x


def random_hypergraph(rng: Rng) -> tuple[Hypergraph, jax.Array]:
    """Return a hypergraph with repeated and missing incidences, and padding; and features."""
    node, hyperedge = rng.integers(0, [[N - 1], [5]], (2, 20))
    graph = Hypergraph.from_incidence(node, hyperedge, num_nodes=N, num_hyperedges=6)
    return graph.pad(num_incidences=22), jnp.asarray(rng.normal(size=(N, F)), jnp.float32)


RELATIONAL: dict[str, Any] = {
    "RGCN": flax_layers.RGCN,
    "RGCN-bases": functools.partial(flax_layers.RGCN, num_bases=2),
    "RGAT": functools.partial(flax_layers.RGAT, heads=2),
    "RGAT-within": functools.partial(flax_layers.RGAT, heads=2, softmax="within"),
    "HGT": functools.partial(flax_layers.HGT, heads=1, node_types=1),
}
HYPER: dict[str, Any] = {
    "HGNN": flax_layers.HGNN,
    "UniGCNII": flax_layers.UniGCNII,
    "UniGIN-max": functools.partial(flax_layers.UniGIN, hyperedge_reduce="max"),
    "UniGAT": functools.partial(flax_layers.UniGAT, heads=2),
    "attention": functools.partial(flax_layers.HypergraphAttention, heads=2),
    "AllDeepSets": flax_layers.AllDeepSets,
    "AllSetTransformer": functools.partial(flax_layers.AllSetTransformer, heads=2),
}


def other_model(name: str, rng: Rng) -> tuple[Any, Any, jax.Array]:
    """Return a model of relations or hyperedges, a graph and features."""
    of_relations = name in RELATIONAL
    graph, x = random_relations(rng) if of_relations else random_hypergraph(rng)
    options = {"num_relations": 3} if of_relations else {}
    model = (RELATIONAL if of_relations else HYPER)[name](F, 4, 3, **options, rngs=nnx.Rngs(0))
    model.eval()
    return model, graph, x


def custom_messages(graph: Graph, x) -> Any:
    """Sum messages that are computed outside of the ops of the library."""
    messages = jnp.where((graph.rows >= 0)[:, None], jnp.tanh(x[graph.cols]), 0)
    return segment_sum(messages, graph.rows, graph.num_nodes)


# --- Gates and removal ---------------------------------------------------------------------------


def test_graphs_without_some_edges(rng: Rng) -> None:
    """Removal under jit equals a graph built without the edges, for all containers."""
    # Under jit sizes are fixed: removed edges become padding behind the kept ones.
    removed = jax.jit(without_edges)
    for _ in range(5):
        graph, _ = random_graph(rng)
        keep = rng.integers(0, 2, graph.num_edges).astype(bool)
        for full in (graph, graph.transpose()):
            smaller, source = removed(full, keep)
            edges = edge_array(full)
            indices = np.flatnonzero(keep[: len(edges)])
            want = Graph.from_edges(edges[indices].T, num_nodes=N).pad(num_edges=graph.num_edges)
            for part in ("indptr", "rows", "cols", "t_indptr", "t_rows", "t_cols", "t_order"):
                np.testing.assert_array_equal(getattr(smaller, part), getattr(want, part), part)
            np.testing.assert_array_equal(source[: len(indices)], indices)
            assert (source[len(indices) :] == -1).all()
            np.testing.assert_array_equal(smaller.edge_ids[: len(indices)], full.edge_ids[indices])


@pytest.mark.parametrize("name", MODELS)
def test_gates(rng: Rng, name: str) -> None:
    """Gates act as edge weights where layers take weights; gates of 1 change nothing."""
    graph, x = random_graph(rng)
    model = model_of(name)
    model = nnx.jit(model)
    np.testing.assert_allclose(
        model(GatedGraph.of(graph, jnp.ones(graph.num_edges)), x), model(graph, x), atol=1e-6
    )
    gate = jnp.asarray(rng.uniform(0, 2, graph.num_edges), jnp.float32)
    if name in WEIGHTED:
        # Gates do not change degrees, so the scales of GCN are passed as of the ungated graph.
        if name == "GCN":
            output = model(GatedGraph.of(graph, gate), x, node_scale=jnp.ones(N))
            want = model(graph, x, gate, jnp.ones(N))
            np.testing.assert_allclose(output, want, atol=1e-5)
        else:
            output = model(GatedGraph.of(graph, gate), x)
            np.testing.assert_allclose(output, model(graph, x, gate), atol=1e-5)
    # A gate of 0 in a layer without degrees is an edge less; attention has them in its softmax.
    x = x[:, 0]
    keep = rng.integers(0, 2, graph.num_edges).astype(bool)
    gated_sum = spmm(GatedGraph.of(graph, jnp.asarray(keep, jnp.float32)).transpose(), x)
    np.testing.assert_allclose(
        gated_sum, spmm(without_edges(graph, keep)[0].transpose(), x), atol=1e-6
    )


def test_relational_graphs_without_some_edges(rng: Rng) -> None:
    removed = jax.jit(without_edges)
    layer = flax_layers.RGCN(F, 4, 2, num_relations=3, rngs=nnx.Rngs(0))
    layer.eval()
    for _ in range(3):
        graph, x = random_relations(rng)
        keep = rng.integers(0, 2, graph.num_edges).astype(bool)
        smaller, source = removed(graph, keep)
        rows, cols = (np.asarray(ids)[:20] for ids in (graph.nodes.rows, graph.nodes.cols))
        indices = np.flatnonzero(keep[:20])
        # Padding is the tail from 20 on, so only the first 20 edges can be kept.
        triples = cols[indices], np.asarray(graph.edge_types)[indices], rows[indices]
        want = RelationalGraph.from_triples(*triples, num_nodes=N, num_relations=3)
        np.testing.assert_allclose(layer(smaller, x), layer(want, x), atol=1e-5)
        np.testing.assert_array_equal(source, np.r_[indices, np.full(22 - len(indices), -1)])
        ids = np.asarray(graph.nodes.edge_ids)[indices]
        np.testing.assert_array_equal(smaller.nodes.edge_ids[: len(indices)], ids)


@pytest.mark.parametrize("name", [*RELATIONAL, *HYPER])
def test_gates_of_relations_and_incidences(rng: Rng, name: str) -> None:
    """Gates of 1 change nothing; integrated from 0, attributions are complete to 1e-4.

    Norms of AllDeepSets and AllSetTransformer make nearly all of their change where sums are
    smaller than 1e-4.
    """
    model, graph, x = other_model(name, rng)
    edges = edges_of(graph)
    call = nnx.jit(model)
    want = call(graph, x)
    np.testing.assert_allclose(call(gated(graph, jnp.ones(edges.num_edges)), x), want, atol=1e-5)
    attribution = attribute(model, graph, x, 0, index=3, method="integrated_gradients")
    assert attribution.features is not None and attribution.edges is not None
    if name.startswith("AllSet") or name == "AllDeepSets":
        return
    output = float(want[3, 0])
    # Completeness: attributions sum to the difference between the output and the reference.
    change = output - float(call(gated(graph, jnp.zeros(edges.num_edges)), x)[3, 0])
    assert abs(attribution.edges.sum() - change) <= 1e-4 * abs(change) + 2e-6 * abs(output)
    assert not attribution.edges[20:].any()
    change = output - float(call(graph, jnp.zeros_like(x))[3, 0])
    assert abs(attribution.features.sum() - change) <= 1e-4 * abs(change) + 2e-6 * abs(output)


def test_gates_are_weights_of_messages(rng: Rng) -> None:
    """Gates of relational edges and incidences leave degrees as they are."""
    graph, x = random_relations(rng)
    gate = jnp.asarray(rng.uniform(0, 2, 22), jnp.float32)
    rhs, table = (jnp.asarray(rng.normal(size=(3, n, 4)), jnp.float32) for n in (F, N))
    # Gates multiply the weights of edges, whichever way the sums are computed.
    for method in ("edges", "source_pairs", "destination_pairs"):
        options = {"method": method}
        actual = relational_aggregate(gated(graph, gate), x, rhs, gate, **options)
        want = relational_aggregate(graph, x, rhs, gate**2, **options)
        np.testing.assert_allclose(actual, want, atol=1e-4)
    actual, want = (
        relational_lookup(*operands)
        for operands in ((gated(graph, gate), table), (graph, table, gate))
    )
    np.testing.assert_allclose(actual, want, atol=1e-4)
    triples = graph.triples()
    with_inverse = RelationalGraph.from_triples(
        *triples, num_nodes=N, num_relations=3, inverse=True
    )
    layer = flax_layers.CompGCNConv(F, 4, num_relations=6, normalization="sum", rngs=nnx.Rngs(0))
    weight = jnp.asarray(rng.uniform(0, 2, 40), jnp.float32)
    inputs = x, jnp.ones((6, F))
    actual, want = (
        layer(gated(with_inverse, weight), *inputs)[0],
        layer(with_inverse, *inputs, weight)[0],
    )
    np.testing.assert_allclose(actual, want, atol=1e-4)
    hypergraph, x = random_hypergraph(rng)
    for kind in ("symmetric", "row"):
        scales = hypergraph_norm(hypergraph, normalization=kind).scales
        actual = hypergraph_aggregate(gated(hypergraph, gate), x, normalization=kind)
        want = hypergraph_aggregate(hypergraph, x, incidence_weight=gate, **scales)
        np.testing.assert_allclose(actual, want, atol=1e-5)
    for reduce in ("sum", "mean", "max"):
        for function in (node_to_hyperedge, hyperedge_to_node):
            rows = x if function is node_to_hyperedge else x[:6]
            actual = function(gated(hypergraph, gate), rows, reduce=reduce)
            want = function(hypergraph, rows, gate, reduce=reduce)
            np.testing.assert_allclose(actual, want, atol=1e-5)


# --- Methods -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GCN", "GAT"])
def test_gradients(rng: Rng, name: str) -> None:
    graph, x = random_graph(rng)
    model = model_of(name)
    attribution = attribute(model, graph, x, 1, index=[2, 4], method="input_x_gradient")
    call = jax.jit(lambda graph, x: model(graph, x)[jnp.array([2, 4]), 1].sum())
    want = x * jax.grad(call, 1)(graph, x)
    np.testing.assert_allclose(attribution.features, want, atol=1e-6)
    np.testing.assert_allclose(attribution.nodes, want.sum(1), atol=1e-6)
    # Central differences in three of the gates.
    step = 1e-2
    for edge in rng.integers(0, 16, 3):
        gates = [jnp.ones(graph.num_edges).at[edge].add(s) for s in (step, -step)]
        up, down = (call(GatedGraph.of(graph, gate), x) for gate in gates)
        assert abs(attribution.edges[edge] - (up - down) / (2 * step)) < 1e-3
    # Saliency is the absolute value of the same derivative.
    salient = attribute(model, graph, x, lambda y: y[jnp.array([2, 4]), 1].sum())
    np.testing.assert_allclose(salient.edges, np.abs(attribution.edges), atol=1e-6)
    assert not salient.edges[16:].any() and salient.target is None
    assert list(attribution.target) == [1, 1]


@pytest.mark.parametrize("name", ["GCN", "max", "GAT"])
def test_integrated_gradients_are_complete(rng: Rng, name: str) -> None:
    """Sums of attributions equal the change of the output to 1e-4, for features and for edges."""
    graph, x = random_graph(rng)
    model = model_of(name)
    start = jnp.asarray(rng.normal(size=F), jnp.float32)
    options = {"index": 3, "method": "integrated_gradients", "baseline": start}
    attribution = attribute(model, graph, x, 0, **options)
    call = nnx.jit(model)
    reference, output = (call(graph, rows + jnp.zeros_like(x))[3, 0] for rows in (start, x))
    without = call(GatedGraph.of(graph, jnp.zeros(graph.num_edges)), x)[3, 0]
    change = abs(float(output - reference)), abs(float(output - without))
    limits = [1e-4 * size + 2e-6 * abs(float(output)) for size in change]
    assert abs(attribution.features.sum() - (output - reference)) <= limits[0]
    assert abs(attribution.edges.sum() - (output - without)) <= limits[1]


@pytest.mark.parametrize("model", ["SAGE", "custom"])
def test_occlusion(rng: Rng, model: str) -> None:
    """Occlusion equals the change of a graph built without each edge, for any model."""
    graph, x = random_graph(rng)
    weight = jnp.asarray(rng.uniform(0.5, 1, graph.num_edges), jnp.float32)
    call = custom_messages if model == "custom" else model_of(model)
    named = {} if model == "custom" else {"edge_weight": weight}
    attribution = attribute(call, graph, x, 1, index=2, method="occlusion", **named)
    edges = edge_array(graph)
    output = call(graph, x, **named)[2, 1]
    assert not attribution.edges[16:].any()
    for edge in rng.integers(0, 16, 3):
        remaining = np.delete(np.arange(16), edge)
        smaller = Graph.from_edges(edges[remaining].T, num_nodes=N)
        arguments = {name: value[remaining] for name, value in named.items()}
        assert abs(attribution.edges[edge] - (output - call(smaller, x, **arguments)[2, 1])) < 1e-5
    node = int(rng.integers(N))
    fall = output - call(graph, x.at[node].set(0), **named)[2, 1]
    assert abs(attribution.nodes[node] - fall) < 1e-5


def test_gnn_explainer_finds_relevant_edges_and_features(rng: Rng) -> None:
    """Masks keep the one relevant feature, and the edges from nodes that have it."""
    # A star: only feature 0 of the leaves reaches the output, and only from half of the leaves.
    kind = rng.permutation(np.repeat([0, 1], 10))
    src = np.r_[np.arange(1, 21)]
    graph = Graph.from_edges(src, np.zeros(20, int), num_nodes=22)
    x = np.zeros((22, 2), np.float32)
    x[1:21, 0] = kind
    x[1:21, 1] = rng.normal(size=20)

    def model(graph: Graph, x) -> Any:
        y = spmm(graph, x[:, :1])
        return jnp.concatenate([y, 4 - y], 1)

    attribution = attribute(model, graph, x, index=0, method="gnn_explainer", num_steps=300)
    values = graph.edge_values(kind)
    assert attribution.edges[values == 1].min() > attribution.edges[values == 0].max()
    assert attribution.features[1, 0] > attribution.features[1, 1]
    assert not attribution.features[21].any()  # no output depends on it
    assert {src for src, _, _ in attribution.top_edges(10)} == set(np.flatnonzero(x[:, 0]).tolist())


@pytest.mark.parametrize("method", ["saliency", "gnn_explainer", "occlusion"])
def test_on_a_subgraph(rng: Rng, method) -> None:
    """Attributions within the hops equal those on the full graph; others are zero."""
    graph, x = random_graph(rng)
    model = model_of("SAGE")
    weight = jnp.asarray(rng.uniform(0.5, 1, graph.num_edges), jnp.float32)
    options = {"index": 3, "method": method, "edge_weight": weight, "num_steps": 0}
    # Two layers see two hops, so the subgraph holds all that the output depends on.
    part = attribute(model, graph, x, 1, num_hops=2, **options)
    assert part.edges.shape == (graph.num_edges,) and part.nodes.shape == (N,)
    if method == "gnn_explainer":  # its first masks depend on the number of edges
        full = attribute(model, graph, x, 1, **options)
        np.testing.assert_array_equal(part.edges > 0, full.edges > 0)
    else:
        full = attribute(model, graph, x, 1, **options)
        np.testing.assert_allclose(part.edges, full.edges, atol=1e-5)
        np.testing.assert_allclose(part.nodes, full.nodes, atol=1e-5)


@pytest.mark.parametrize(
    "layer", [flax_layers.GATConv, flax_layers.GATv2Conv, flax_layers.TransformerConv]
)
def test_attention(rng: Rng, layer) -> None:
    """Attention weights equal those that PyG's layers return."""
    geometric, torch = need("torch_geometric.nn"), need("torch")
    edges = np.unique(rng.integers(0, N, (30, 2)), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    graph = Graph.from_edges(edges.T, num_nodes=N)
    x = jnp.asarray(rng.normal(size=(N, F)), jnp.float32)
    ours = layer(F, 4, heads=2, rngs=nnx.Rngs(int(rng.integers(100))))
    attribution = attribute(ours, graph, x, method="attention")
    peer = getattr(geometric, layer.__name__)(F, 2, heads=2)
    copies = {
        "GATConv": {"lin.weight": "kernel", "att_src": "src_attention", "att_dst": "dst_attention"},
        "GATv2Conv": {"lin_l.weight": "kernel", "lin_r.weight": "dst_kernel", "att": "attention"},
        "TransformerConv": {
            "lin_query.weight": "query.kernel",
            "lin_key.weight": "key.kernel",
            "lin_query.bias": "query.bias",
            "lin_key.bias": "key.bias",
        },
    }[layer.__name__]
    # Parameters are copied to the layer of PyG; those without a counterpart become 0.
    state = peer.state_dict()
    for name, path in copies.items():
        value = np.asarray(functools.reduce(getattr, path.split("."), ours)[...])
        value = value.T if name.endswith("weight") else value
        state[name] = torch.tensor(value.reshape(state[name].shape))
    for name in state.keys() - copies.keys():
        state[name] = torch.zeros_like(state[name])
    peer.load_state_dict(state)
    edge_index = torch.tensor(edges.T.copy())
    _, (index, alpha) = peer(torch.tensor(np.asarray(x)), edge_index, return_attention_weights=True)
    want = {(int(u), int(v)): a.detach().numpy() for (u, v), a in zip(index.T, alpha, strict=True)}
    (weights,) = attribution.layers
    np.testing.assert_allclose(weights, [want[u, v] for u, v in edge_array(graph)], atol=1e-5)
    np.testing.assert_allclose(attribution.edges, weights.mean(1), atol=1e-6)


@pytest.mark.parametrize("method", ["source_pairs", "destination_pairs"])
@pytest.mark.parametrize("name", ["RGAT", "HGT"])
def test_attention_of_relations(rng: Rng, name: str, method) -> None:
    """Values under the weights of the edges sum up to the result, gates or not."""
    graph, _ = random_relations(rng)
    x, maps = (jnp.asarray(rng.normal(size=size)) for size in ((N, 4), (2, 3, 2, 2, 2)))
    x, maps = x.astype(jnp.float32), maps.astype(jnp.float32)
    edges, types = graph.nodes, graph.edge_types
    heads = x[edges.cols].reshape(-1, 2, 2)
    if name == "RGAT":
        model = flax_layers.RGATConv(
            4,
            4,
            heads=2,
            num_relations=3,
            use_bias=False,
            method=method,
            rngs=nnx.Rngs(int(rng.integers(100))),
        )
        values = jnp.einsum("ek,ekn->en", x[edges.cols], model.kernel[...][types])
        values = values.reshape(-1, 2, 2)
    else:

        def model(graph, x) -> Any:
            weights = HGTWeights.of(*maps)
            y = hgt_attention(graph, x, x, x, weights, heads=2, method=method)
            return y.reshape(N, 4)

        values = jnp.einsum("ehk,ehkn->ehn", heads, maps[1][types])
    (weights,) = attribute(model, graph, x, method="attention").layers
    assert not weights[20:].any()
    gate = jnp.asarray(rng.uniform(0, 2, graph.num_edges), jnp.float32)
    for variant, factors in ((graph, jnp.ones_like(gate)), (gated(graph, gate), gate)):
        messages = values * weights[..., None] * factors[:, None, None]
        want = segment_sum(messages, edges.rows, N).reshape(N, 4)
        np.testing.assert_allclose(model(variant, x), want, atol=2e-5)


def test_attention_of_models(rng: Rng) -> None:
    graph, x = random_graph(rng)
    attribution = attribute(nnx.jit(model_of("GAT")), graph, x, method="attention")
    assert [layer.shape for layer in attribution.layers] == [(18, 2), (18, 1)]
    assert not attribution.edges[16:].any()
    near = attribute(model_of("GAT"), graph, x, index=3, method="attention")
    reached = k_hop_subgraph(graph, 3, 2).edges
    assert set(np.flatnonzero(near.edges)) <= set(reached)
    np.testing.assert_array_equal(near.edges[near.edges > 0], attribution.edges[near.edges > 0])
    # Attention includes self-loops, which are no edges: the weights of edges sum to less than 1.
    totals = segment_sum(jnp.asarray(attribution.layers[0]), graph.rows, N)
    assert (np.asarray(totals) < 1).all() and attribution.features is None  # the rest is their own


def test_targets(rng: Rng) -> None:
    """Targets may be numbers, all rows, or a function that reads changing variables."""
    graph, x = random_graph(rng)
    scale = jnp.ones(())

    def model(graph: Graph, x) -> Any:
        return scale * spmm(graph, x).sum(1)

    first = attribute(model, graph, x)
    want = np.asarray(graph.out_degrees())
    np.testing.assert_allclose(first.features, np.repeat(want[:, None], F, 1))
    # A model that closes over a variable must see its new value.
    scale = jnp.full((), 2.0)
    np.testing.assert_allclose(attribute(model, graph, x).nodes, 2 * F * want)


def test_batches(rng: Rng) -> None:
    """A graph's edges count for that graph alone, by derivatives and by removal."""
    members = [random_graph(rng)[0] for _ in range(2)]
    batched, unpadded = (batch(members, num_graphs=size) for size in (3, 2))
    x = jnp.asarray(rng.normal(size=(2 * N, F)), jnp.float32)
    weights = jnp.asarray(rng.normal(size=(F, 2)), jnp.float32)

    def model(batched: Batch[Graph], x) -> Any:
        y = jnp.tanh(spmm(batched.graph, x) @ weights)
        return segment_sum(y, batched.graph_ids, batched.num_graphs)

    for method in ("saliency", "occlusion"):
        attribution = attribute(model, batched, x, index=1, method=method)
        assert not attribution.edges[:16].any() and attribution.edges[16:].any()
        assert not attribution.nodes[:N].any() and attribution.nodes[N:].any()
    assert fidelity(model, batched, x, attribution, num_edges=32).unfaithfulness < 1e-6
    # Graphs of padding count in no mean.
    for function in (
        lambda graphs: fidelity(model, graphs, x, attribution, num_edges=16),
        lambda graphs: attribute(model, graphs, x, method="gnn_explainer").edges,
    ):
        np.testing.assert_allclose(function(batched), function(unpadded), atol=1e-4)


def test_both_directions(rng: Rng) -> None:
    """The undirected score is the mean over all edges between the same two nodes."""
    graph, x = random_graph(rng)
    attribution = attribute(spmm, graph, x, method="input_x_gradient")
    edges = edge_array(graph)
    for number, value in enumerate(attribution.undirected()[:16]):
        same = (np.sort(edges, 1) == np.sort(edges[number])).all(1)
        np.testing.assert_allclose(value, attribution.edges[:16][same].mean(), atol=1e-5)
    assert not attribution.undirected()[16:].any()
    with pytest.raises(ValueError, match="no attributions to edges"):
        attribute(spmm, graph, x, edges=False).top_edges()


def test_options_of_the_model(rng: Rng) -> None:
    """Arguments that are no arrays are passed unchanged."""
    graph, x = random_graph(rng)
    model = flax_layers.GCN(F, 4, 2, rngs=nnx.Rngs(0))
    attribution = attribute(model, graph, x, index=1, deterministic=True)
    model.eval()
    np.testing.assert_array_equal(attribution.edges, attribute(model, graph, x, index=1).edges)
    scaled = attribute(lambda g, x, scale: scale * spmm(g, x), graph, x, 0, index=1, scale=2.0)
    want = 2 * np.asarray(attribute(spmm, graph, x, 0, index=1).edges)
    np.testing.assert_allclose(scaled.edges, want, rtol=1e-6)


def test_changed_parameters_change_attributions(rng: Rng) -> None:
    """Compiled programs are cached, and parameters are their arguments."""
    graph, x = random_graph(rng)
    model = model_of("SAGE")
    first = attribute(model, graph, x, 0, index=1)
    model.conv2.kernel[...] *= 2
    model.conv2.root.kernel[...] *= 2
    then = attribute(model, graph, x, 0, index=1)
    np.testing.assert_allclose(then.features, 2 * np.asarray(first.features), atol=1e-5)


def test_fidelity(rng: Rng) -> None:
    """Fidelity equals its definition, on graphs built from the remaining edges."""
    graph, x = random_graph(rng)
    model = model_of("GCN")
    scores = rng.normal(size=graph.num_edges)
    scores[16:] = 9  # padding is no edge
    result = fidelity(model, graph, x, scores, num_edges=6)
    ranks = np.argsort(np.argsort(scores)).astype(np.uint8)  # whose negatives wrap
    assert fidelity(model, graph, x, ranks, num_edges=6) == result
    # plus compares with the graph without the top edges, minus with the top edges alone.
    edges, order = edge_array(graph), np.argsort(-scores[:16])
    smaller = [Graph.from_edges(edges[o].T, num_nodes=N) for o in (order[6:], order[:6])]
    full, without, alone = (np.asarray(model(g, x)) for g in (graph, *smaller))
    assert result.plus == np.mean(full.argmax(1) != without.argmax(1))
    assert result.minus == np.mean(full.argmax(1) != alone.argmax(1))
    torch = need("torch")
    p, q = (torch.tensor(logits).softmax(-1) for logits in (full, alone))
    divergence = torch.nn.functional.kl_div(q.log(), p, reduction="none").sum(-1)
    assert abs(result.unfaithfulness - (1 - torch.exp(-divergence)).mean().item()) < 1e-5


# --- Pictures and errors -------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_picture(rng: Rng) -> None:
    graph, x = random_graph(rng)
    attribution = attribute(model_of("SAGE"), graph, x, index=2)
    # Edges are lines, drawn once for both directions; nodes are points.
    axes = plot_neighborhood(graph, 2, edges=attribution, labels=np.arange(N) % 3)
    edges = edge_array(graph)
    one_hop = set(edges[(edges == 2).any(1)].ravel()) | {2}
    two_hops = set(edges[np.isin(edges, list(one_hop)).any(1)].ravel()) | one_hop
    (lines,) = [
        collection for collection in axes.collections if hasattr(collection, "get_segments")
    ]
    want = {frozenset(e) for e in edges.tolist() if set(e) <= two_hops and e[0] != e[1]}
    assert len(lines.get_segments()) == len(want)
    assert len(axes.collections[1].get_offsets()) == len(two_hops)
    assert {text.get_text() for text in axes.texts} == {str(node) for node in two_hops}
    few = plot_neighborhood(graph, 2, edges=attribution, top_edges=1, ax=axes.figure.add_subplot())
    names = ["$x_$"] * graph.num_nodes  # which is no formula
    plot_neighborhood(
        graph, 2, edges=attribution, top_edges=0, names=names
    ).figure.draw_without_rendering()
    assert len(few.collections[0].get_segments()) == min(1, len(want))


GRAPH = Graph.from_edges([(0, 1), (1, 2)])
X = np.ones((3, 2), np.float32)
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: attribute(3, GRAPH, X), TypeError, "model must be callable, got 3"),
    (lambda: attribute(spmm, GRAPH, X[:2]), ValueError, r"x must be \(num_nodes=3"),
    (
        lambda: attribute(spmm, GRAPH, X > 0),
        TypeError,
        "x must be floating-point numbers, got bool",
    ),
    (lambda: attribute(spmm, GRAPH, X, 2), ValueError, r"target must be in \[0, 2\), got 2"),
    (
        lambda: attribute(flax_layers.GCN(2, 2, 2, rngs=nnx.Rngs(0)), GRAPH, X),
        ValueError,
        r"model changes what it holds .* call model.eval\(\) first",
    ),
    (lambda: attribute(spmm, GRAPH, X, index=3), ValueError, r"index\[0\] = 3 is outside"),
    (
        lambda: attribute(spmm, GRAPH, X, method="magic"),
        ValueError,
        "method must be one of 'saliency', .* got 'magic'",
    ),
    (lambda: attribute(spmm, GRAPH, X, num_hops=1), ValueError, "num_hops needs an index"),
    (
        lambda: attribute(custom_messages, GRAPH, X),
        ValueError,
        "no message of the model passes .* method='occlusion', or edges=False",
    ),
    (
        lambda: attribute(lambda g, x: (x, x), GRAPH, X),
        TypeError,
        "the model's output must be an array, unless target is a function of it, got tuple",
    ),
    (
        lambda: attribute(spmm, GRAPH, X, method="attention"),
        ValueError,
        "no op of the model tells attention by edge",
    ),
    (
        lambda: attribute(model_of("GCN"), GRAPH, np.ones((3, F), np.float32), edge_weight=X),
        ValueError,
        r"edge_weight must be \(num_edges=2, \*features\), in the graph's order, got",
    ),
    (
        lambda: attribute(spmm, GRAPH, X, method="integrated_gradients", baseline=np.ones(3)),
        ValueError,
        "baseline must be of a shape that broadcasts to x's, got",
    ),
    (lambda: jax.jit(lambda x: attribute(spmm, GRAPH, x))(X), TypeError, "outside of jax.jit"),
    (
        lambda: fidelity(spmm, GRAPH, X, np.ones(3), num_edges=1),
        ValueError,
        r"attribution must be \(num_edges=2,\), got shape \(3,\)",
    ),
    (
        lambda: plot_neighborhood(GRAPH, 0, labels=[1]),
        ValueError,
        r"labels must be \(num_nodes=3,\), got shape \(1,\)",
    ),
    (lambda: plot_neighborhood(GRAPH, 7), ValueError, r"nodes\[0\] = 7 is outside"),
    (lambda: plot_neighborhood(GRAPH, 0, names="ab"), ValueError, "names must be of num_nodes=3"),
    (
        lambda: plot_neighborhood(GRAPH, 0, edges=[0, np.nan]),
        ValueError,
        r"edges must be finite, got nan of edge 1 \(1 such\)",
    ),
    (lambda: plot_neighborhood(GRAPH, 0, edges=[1j, 0]), TypeError, "edges must be real numbers"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_errors(number: int) -> None:
    call, kind, message = BAD[number]
    with pytest.raises(kind, match=message):
        call()


# --- Relations and hyperedges --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["RGCN", "UniGIN-max"])
def test_occlusion_of_relations_and_incidences(rng: Rng, name: str) -> None:
    """Occlusion of an edge is the change of the output of a container built without it."""
    model, graph, x = other_model(name, rng)
    attribution = attribute(model, graph, x, 1, index=2, method="occlusion")
    assert not attribution.edges[20:].any()
    edges, edge = edges_of(graph), int(rng.integers(20))
    src, dst = (np.delete(np.asarray(ids)[:20], edge) for ids in (edges.cols, edges.rows))
    if name == "RGCN":
        rel = np.delete(np.asarray(graph.edge_types)[:20], edge)
        smaller = RelationalGraph.from_triples(src, rel, dst, num_nodes=N, num_relations=3)
    else:
        smaller = Hypergraph.from_incidence(src, dst, num_nodes=N, num_hyperedges=6)
    change = model(graph, x)[2, 1] - model(smaller, x)[2, 1]
    np.testing.assert_allclose(attribution.edges[edge], change, atol=1e-5)


def test_motif_of_relations(rng: Rng) -> None:
    """A node is of class 1 if an edge of relation 1 ends at it; other relations are noise."""
    size, count = 100, 400
    src, dst = rng.integers(0, size, (2, count))
    rel = np.where(rng.random(count) < 0.15, 1, 2 * rng.integers(0, 2, count))
    graph = RelationalGraph.from_triples(src, rel, dst, num_nodes=size, num_relations=3)
    labels = jnp.asarray(np.isin(np.arange(size), dst[rel == 1]).astype(int))
    x = jnp.ones((size, 2))
    model = flax_layers.RGCN(
        2, 8, 2, num_relations=3, num_layers=1, normalization="sum", rngs=nnx.Rngs(0)
    )
    optimizer = nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer) -> Any:
        def loss_fn(model) -> Any:
            logits = model(graph, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        optimizer.update(model, nnx.grad(loss_fn)(model))

    for _ in range(100):
        step(model, optimizer)
    index = np.flatnonzero(labels)
    # Only edges into nodes of the class can be its cause.
    incoming = np.isin(np.asarray(graph.nodes.rows), index)
    motif = np.asarray(graph.edge_types)[incoming] == 1
    for method in ("saliency", "integrated_gradients"):
        attribution = attribute(model, graph, x, 1, index=index, method=method)
        scores = attribution.edges[incoming]
        higher = (scores[motif][:, None] > scores[~motif]).mean()
        assert higher >= 0.9, method


def test_gnn_explainer_of_relations() -> None:
    """The mask keeps the one edge that makes the class, and drops those against it."""
    graph = RelationalGraph.from_triples([0, 1, 2], [0, 1, 2], [3, 3, 3], num_nodes=40)
    rhs = jnp.array([-1.0, 5.0, -1.0])[:, None, None]

    def model(graph, x) -> Any:
        y = relational_aggregate(graph, x, rhs)
        return jnp.concatenate([jnp.ones_like(y), y], 1)

    options = {"index": 3, "method": "gnn_explainer", "learning_rate": 0.05}
    attribution = attribute(model, graph, jnp.ones((40, 1)), **options)
    assert attribution.top_edges(1)[0][:3] == (1, 1, 3) and attribution.top_edges(2)[1][3] < 0.3
    assert fidelity(model, graph, jnp.ones((40, 1)), attribution, num_edges=1, index=3)[:2] == (
        1,
        0,
    )


def test_attributions_of_hyperedges(rng: Rng) -> None:
    """The score of a hyperedge is the sum over its incidences, also in a batch."""
    graphs = [random_hypergraph(rng)[0] for _ in range(2)]
    x = jnp.asarray(rng.normal(size=(2 * N, F)), jnp.float32)
    batched = batch(graphs, num_graphs=2)

    def model(batch, x) -> Any:
        return segment_sum(hypergraph_aggregate(batch.graph, x), batch.graph_ids, 2)

    attribution = attribute(model, batched, x, index=0, method="input_x_gradient")
    sums = attribution.hyperedges()
    assert sums.shape == (12,) and not sums[6:].any()
    node, hyperedge, most = attribution.top_edges(1)[0]
    assert most == attribution.edges.max()
    assert node in np.asarray(graphs[0].hyperedge_nodes)[graphs[0].graph.rows == hyperedge]
    np.testing.assert_allclose(sums.sum(), attribution.edges.sum(), rtol=1e-5)
    with pytest.raises(TypeError, match="incidences of a Hypergraph have no other way"):
        attribution.undirected()
    with pytest.raises(TypeError, match="the graph must be a Hypergraph, got Graph"):
        attribute(spmm, GRAPH, X).hyperedges()


def test_unsupported_containers() -> None:
    edges = np.array([[0, 1], [1, 0]])
    graph = HeteroGraph.from_edges({("a", "to", "a"): edges}, {"a": 2})
    x = jnp.ones((2, 3))
    assert attribute(lambda graph, x: x, graph, x).edges is None
    message = r"edges=True needs a jax_gnn.Graph, RelationalGraph or Hypergraph, got HeteroGraph"
    with pytest.raises(TypeError, match=message):
        attribute(lambda graph, x: x, graph, x, edges=True)
