"""Graphs split over devices: parts, the rows that travel, and models on them as on one device."""

from __future__ import annotations

import functools
import math
import re
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh
from op_spec import assert_close, same_bits

import flax_layers
import jax_gnn
from jax_gnn import Graph, Hypergraph, RelationalGraph
from jax_gnn._ops.relational_aggregate import api as relational
from jax_gnn.relational import edges_of
from jax_gnn.sharding import (
    Part,
    PartitionCosts,
    ShardedGraph,
    _exchange,
    _partition,
    _split,
    partition,
    shard_graph,
)
from jax_gnn.sharding._command import bytes_of, costs_of
from jax_gnn.sharding._exchange import plan_rounds, plan_shares
from jax_gnn.sharding._partition import Adjacency, SplitArgs, parse_graph
from jax_gnn.sharding._split import split_graph

METHODS = ("auto", "multilevel", "metis", "contiguous", "hash", "random", "one part")


def mesh_of(count: int, kind: AxisType = AxisType.Auto) -> Mesh:
    devices = jax.devices() if jax.device_count() >= count else jax.devices("cpu")
    return Mesh(np.array(devices[:count]), ("nodes",), axis_types=(kind,))


def random_graph(rng: np.random.Generator, num_nodes: int = 60, num_edges: int = 300) -> Graph:
    """Draw a graph with hubs in both directions, repeated edges, loops, isolated nodes, padding."""
    num_linked = rng.integers(num_nodes // 2, num_nodes)
    src, dst = rng.integers(0, num_linked, (2, num_edges))
    # Hubs: one node with an eighth of all edges out, one with as many in.
    src[: num_edges // 8], dst[num_edges // 8 : num_edges // 4] = rng.integers(0, num_linked, 2)
    src[-5:], dst[-5:] = src[:5], dst[:5]
    graph = Graph.from_edges(src, dst, num_nodes=num_nodes)
    return graph.pad(num_edges=num_edges + 7)


RELATIONS = ("a", "to", "b"), ("b", "to", "a"), ("b", "in", "b"), ("a", "no", "a")
TYPES = {"a": 22, "b": 33, "none": 0}


def random_relational(
    rng: np.random.Generator, self_relation: bool = False, num_nodes: int = 60
) -> RelationalGraph:
    """Draw a graph with types of nodes and edges, one of them without edges."""

    def edges(src: int, dst: int):
        pairs_of_types = np.stack([rng.integers(0, src - 2, 80), rng.integers(0, dst - 2, 80)])
        pairs_of_types[0, :10], pairs_of_types[1, 10:20] = rng.integers(0, (src, dst))
        pairs_of_types[:, -5:] = pairs_of_types[:, :5]
        return pairs_of_types

    edge_dict = {key: edges(TYPES[key[0]], TYPES[key[2]]) for key in RELATIONS[:3]}
    edge_dict[RELATIONS[3]] = []
    graph = RelationalGraph.from_edge_dict(edge_dict, TYPES, self_relation=self_relation)
    sizes = graph.num_src_pairs, graph.num_dst_pairs
    pairs = {
        f"num_{side}_pairs": (n or 0) + 2 for side, n in zip(("src", "dst"), sizes, strict=True)
    }
    return graph.pad(num_nodes=num_nodes, num_edges=graph.num_edges + 7, **pairs)


def random_hypergraph(rng: np.random.Generator) -> Hypergraph:
    """Draw a large hyperedge and a hub, repeated incidences, empty hyperedges, isolated nodes."""
    nodes, hyperedges = rng.integers(0, 50, 160), rng.integers(0, 22, 160)
    # A node in many hyperedges, and a hyperedge of many nodes.
    nodes[:20], hyperedges[20:60] = rng.integers(0, 50), rng.integers(0, 22)
    nodes[-5:], hyperedges[-5:] = nodes[:5], hyperedges[:5]
    hypergraph = Hypergraph.from_incidence(nodes, hyperedges, num_nodes=55, num_hyperedges=25)
    return hypergraph.pad(num_nodes=60, num_hyperedges=30, num_incidences=167)


def sharded(rng: np.random.Generator, graph, mesh: Mesh, method: str) -> ShardedGraph:
    parts: Any = method
    if method == "random":
        parts = rng.integers(0, mesh.size, graph.num_nodes)
    elif method == "one part":  # all other parts are empty
        parts = np.full(graph.num_nodes, rng.integers(mesh.size))
    elif method == "metis":
        pytest.importorskip("pymetis")
    return shard_graph(graph, mesh, "nodes", parts, copy_engines=bool(rng.integers(2)))


def applied(split: ShardedGraph, function, *values, **shared) -> Any:
    """Return the results of `ShardedGraph.apply` by one program, which compiles sooner."""
    run = functools.partial(split.apply, **shared)
    if isinstance(function, nnx.Module):
        return nnx.jit(run)(function, *values)
    return jax.jit(functools.partial(run, function))(*values)


# --- Parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_parts", [1, 2, 8])
@pytest.mark.parametrize("method", ["multilevel", "metis"])
def test_parts_are_balanced(method, num_parts, rng):
    """Edges are balanced in any graph whose nodes have less than 5 % of a part's edges."""
    if method == "metis":
        pytest.importorskip("pymetis")
    size = rng.integers(1000, 2000)
    src, dst = rng.integers(0, size, (2, 10 * size))
    graph = Graph.from_edges(src, (dst if rng.random() < 0.5 else src // 2), num_nodes=size)
    parts = partition(graph, num_parts, method)  # type: ignore[arg-type]
    assert parts.shape == (size,) and (parts >= 0).all() and (parts < num_parts).all()
    # Edges belong to the part of their destination.
    edges = np.bincount(parts, graph.in_degrees(), num_parts)
    assert edges.max() <= 1.05 * edges.mean()
    np.testing.assert_array_equal(parts, partition(graph, num_parts, method))  # type: ignore[arg-type]


def test_parts_are_many(rng):
    """The number of parts exceeds int8."""
    src, dst = rng.integers(0, 1000, (2, 10000))
    graph = Graph.from_edges(src, dst, num_nodes=1000)
    parts = partition(graph, 200)
    edges = np.bincount(parts, graph.in_degrees(), 200)
    assert len(edges) == 200 and (parts >= 0).all()
    assert edges.max() <= 1.05 * edges.mean() + graph.in_degrees().max()


def test_parts_keep_neighbours_together(rng):
    """Few edges are cut if groups of nodes have no edges between them."""
    groups = rng.permutation(800) % 16
    members = [np.flatnonzero(groups == i) for i in range(16)]
    src, dst = np.concatenate([rng.choice(nodes, (2, 500)) for nodes in members], 1)
    graph = Graph.from_edges(src, dst, num_nodes=800)
    for method in ("multilevel", "contiguous", "hash"):
        parts = partition(graph, 4, method)  # type: ignore[arg-type]
        cut = (parts[src] != parts[dst]).mean()
        assert cut < 0.3 if method == "multilevel" else cut > 0.6


def test_warning_where_no_partition_helps(rng, monkeypatch):
    monkeypatch.setattr(_partition, "FEW_EDGES", 0)
    graph = Graph.from_edges(*rng.integers(0, 400, (2, 8000)))
    with pytest.warns(UserWarning, match="no partition of this graph keeps neighbours together"):
        partition(graph, 4)
    partition(Graph.from_edges(np.arange(400), np.arange(400)[::-1]), 4)  # warnings are errors


def test_parts_of_garbage():
    """Ids out of range are ignored as neighbours; offsets beyond the edges are an error."""
    graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
    garbage = np.array([7, -3, 1 << 30, -(1 << 31)], np.int32)
    parts = partition(Graph(**{**vars(graph), "cols": garbage, "t_cols": garbage}), 2)
    assert set(parts) <= {0, 1}
    with pytest.raises(ValueError, match="out of range"):
        partition(Graph(**{**vars(graph), "indptr": np.asarray(graph.indptr) + 9}), 2)
    split = shard_graph(Hypergraph(Graph(**{**vars(graph), "cols": garbage})), mesh_of(2), "nodes")
    y = split.apply(lambda part, x: part.aggregate(x), split.shard(np.ones(4, np.float32)))
    assert np.isfinite(split.unshard(y)).all()


def test_random_numbers_differ_by_device(rng):
    """Keys for all devices become one for each; a model's own stream is refused by name."""
    sharded = shard_graph(random_graph(rng), mesh_of(2), "nodes", "hash")
    x = sharded.shard(np.ones((sharded.num_nodes, 4), np.float32))
    key = jax.random.key(0)
    drawn = applied(sharded, lambda part, x, key: jax.random.normal(key, (3,)), x, key=key)
    expected = [jax.random.normal(jax.random.fold_in(key, device), (3,)) for device in (0, 1)]
    np.testing.assert_array_equal(drawn, jnp.stack(expected))
    model = flax_layers.GCN(4, 64, 3, rngs=nnx.Rngs(0))
    logits = applied(sharded, model, x, rngs=key)
    assert np.isfinite(logits).all()
    with pytest.raises(ValueError, match=r"training mode: pass the model itself to apply"):
        sharded.apply(lambda part, x: model(part, x), x)
    # A model's own stream goes on, with other numbers on each device.
    masks = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    drawn = [sharded.apply(Masks(masks), x) for _ in range(2)]
    assert not any(same_bits(*pair) for pair in (drawn, drawn[0], drawn[1]))
    assert masks.rngs is not None and int(masks.rngs.count[...]) == 2


class Masks(nnx.Module):
    """Model that draws a mask in each call."""

    def __init__(self, dropout: nnx.Dropout) -> None:
        self.dropout = dropout

    def __call__(self, part: Part, x):
        return self.dropout(jnp.ones_like(x))


class Normalized(nnx.Module):
    """Model with a batch norm between convolutions."""

    def __init__(self, kind: str, rngs: nnx.Rngs) -> None:
        norm = nnx.BatchNorm if kind == "nnx" else flax_layers.NodeBatchNorm
        self.first = flax_layers.SAGEConv(6, 8, param_dtype=float, rngs=rngs)
        # Flax's statistics are float32, which its float64 parameters do not fit.
        self.norm: Any = norm(8, param_dtype=np.float32 if kind == "nnx" else float, rngs=rngs)
        self.second = flax_layers.GCNConv(8, 4, param_dtype=float, rngs=rngs)

    def __call__(self, graph: Graph, x):
        h = self.first(graph, x)
        if isinstance(self.norm, nnx.BatchNorm):
            h = self.norm(h.astype(np.float32))
        else:
            h = self.norm(None, h)
        return self.second(graph, jax.nn.relu(h))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("num_parts", [1, 3, 8])
@pytest.mark.parametrize("kind", ["nnx", "nodes", "gine", "empty parts"])
def test_batch_norms_of_all_devices(kind, num_parts, rng):
    """Logits, gradients and running statistics are those of one device."""
    graph, x, target = random_graph(rng), rng.normal(size=(60, 6)), rng.normal(size=(60, 4))
    method = "one part" if kind == "empty parts" else "random"
    split = sharded(rng, graph, mesh_of(num_parts), method)

    def loss(model, graph, x):
        if isinstance(graph, ShardedGraph):
            y = graph.unshard(graph.apply(model, graph.shard(x)))
        else:
            y = model(graph, x)
        return jnp.sum(jnp.sin(y) * target), y

    results = []
    for structure in (split, graph):
        model: Any = Normalized(kind, nnx.Rngs(0))
        if kind == "gine":
            options: Any = {"mlp_norm": "batch_norm", "param_dtype": float, "dropout_rate": 0.0}
            model = flax_layers.GINE(6, 8, 4, num_layers=2, rngs=nnx.Rngs(0), **options)
        gradients = nnx.jit(nnx.value_and_grad(loss, argnums=(0, 2), has_aux=True))
        for _ in range(2):
            value = gradients(model, structure, jnp.asarray(x))
        model.eval()
        evaluated = nnx.jit(loss)(model, structure, jnp.asarray(x))
        results.append((value, nnx.state(model, nnx.BatchStat), evaluated))
    tolerance = 1e-5 if kind == "nnx" else 1e-10
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        assert_close(a, b, tolerance, "on several devices")


def test_batch_norms_of_edges_need_a_mask():
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=4)
    split = shard_graph(graph, mesh_of(2), "nodes")
    norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    norm_of_edges = nnx.Sequential(lambda part: jnp.ones((part.num_edges + 3, 2)), norm)
    with pytest.raises(ValueError, match=r"must have num_own = 2 rows on a part, or a mask"):
        split.apply(norm_of_edges)


# --- Rows that travel ----------------------------------------------------------------------------


@pytest.fixture(params=["one host", "hosts"])
def hosts(request, monkeypatch) -> bool:
    """Count pairs of devices as hosts with slow links between them, so that rows are relayed."""
    if request.param == "hosts":
        for module in (_exchange, _split):
            monkeypatch.setattr(module, "DEVICES_PER_HOST", 2)
        monkeypatch.setattr(_exchange, "LATENCY", 0.0)
        monkeypatch.setattr(_exchange, "NETWORK_BANDWIDTH", 1e-3 * _exchange.HOST_BANDWIDTH)
    return request.param == "hosts"


def plan_cases(num_parts: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw counts of rows: even, uneven, of a ring, of a single pair and of a hub."""
    noise = rng.normal(size=(num_parts, num_parts))
    cases = {f"spread {x}": (5000 * np.exp(x * noise)).astype(int) for x in (0, 0.1, 2.0)}
    distance = (np.arange(num_parts) - np.arange(num_parts)[:, None]) % num_parts
    cases["ring"] = np.where((distance == 1) | (distance == num_parts - 1), 50_000, 9)
    cases["pair"] = np.where(distance == 1, 3, 2)
    cases["pair"][0, -1] = 1_000_000
    cases["hub"] = np.where(np.arange(num_parts)[:, None] == 0, 40_000, 0 * distance)
    for counts in cases.values():
        counts[np.diag_indices(num_parts)] = 0
    return cases


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8, 24])
def test_rounds(num_parts, rng):
    """All rows of all pairs are sent once, in few rounds, near the time of the slowest device."""
    for name, counts in plan_cases(num_parts, rng).items():
        rounds = plan_rounds(counts)
        assert len(rounds) <= _exchange.MAX_PERMUTES + 1
        check_rounds(rounds, counts)
        busiest = int(max(counts.sum(0).max(), counts.sum(1).max()))
        bandwidth = _exchange.HOST_BANDWIDTH if num_parts <= 8 else _exchange.NETWORK_BANDWIDTH
        least = busiest * _exchange.ROW_BYTES / bandwidth
        if num_parts > 1 and name != "spread 2.0":
            seconds = _exchange.time_rounds(rounds, num_parts)
            assert 0.5 * least <= seconds <= 1.5 * least + 3 * _exchange.LATENCY, name


def check_rounds(rounds: tuple[_exchange.Round, ...], counts: np.ndarray) -> None:
    """Check that shares have all rows, in slots of their own."""
    num_parts = len(counts)
    for step in rounds:
        # Each permutation is a matching.
        senders, receivers = np.array(step.pairs or [(0, 0)]).T
        assert len(set(senders)) == len(senders) and len(set(receivers)) == len(receivers)
    sent: dict[int, list[int]] = {part: [] for part in range(num_parts)}
    received: dict[int, list[int]] = {part: [] for part in range(num_parts)}
    for owner, reader in np.ndindex(*counts.shape):
        count, stop = int(counts[owner, reader]), 0
        for share in plan_shares(rounds, num_parts, owner, reader, count):
            # Shares of a pair follow each other, in slots that no other share has.
            assert share.start == stop
            stop = share.stop
            sent[owner] += range(share.sender, share.sender + share.stop - share.start)
            received[reader] += range(share.receiver, share.receiver + share.stop - share.start)
        assert stop == count
    slots = sum(step.slots(num_parts) for step in rounds)
    for places in (*sent.values(), *received.values()):
        assert len(set(places)) == len(places) and max(places, default=0) <= slots


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("num_parts", [1, 2, 8])
@pytest.mark.parametrize("method", METHODS)
def test_each_edge_is_somewhere(method, num_parts, kind, hosts, rng):
    """All edges are in the part of their destination, once, with a row for their source."""
    graph = random_graph(rng)
    split = sharded(rng, graph, mesh_of(num_parts, kind), method)
    ids = np.arange(1, graph.num_nodes + 1, dtype=np.float32)
    rows = split.shard(ids)
    np.testing.assert_array_equal(rows, split.node_ids + 1)
    np.testing.assert_array_equal(split.unshard(rows), ids)
    # Rows are ids, so that local rows name their nodes in the whole graph.
    halo = np.asarray(applied(split, lambda part, x: part.with_halo(x), rows))
    assert halo.dtype == ids.dtype
    values = rng.normal(size=(graph.num_edges, 2))
    sharded_values = np.asarray(split.shard_edges(values))
    edge_ids = []
    for part in range(num_parts):
        local = jax.tree.map(lambda leaf, part=part: np.asarray(leaf)[part], split.part)
        count = int(local.indptr[-1])
        places = local.edge_ids[:count]
        edge_ids += places.tolist()
        local_rows, local_cols = local.rows[:count], local.cols[:count]
        np.testing.assert_array_equal(halo[part][local_rows] - 1, np.asarray(graph.rows)[places])
        np.testing.assert_array_equal(halo[part][local_cols] - 1, np.asarray(graph.cols)[places])
        np.testing.assert_array_equal(
            sharded_values[part, :count], values[places].astype(sharded_values.dtype)
        )
        order = local.t_order[:count]
        np.testing.assert_array_equal(local.t_rows[:count], local_cols[order])
        np.testing.assert_array_equal(local.t_cols[:count], local_rows[order])
        assert (np.diff(local.t_rows[:count]) >= 0).all() and (local.edge_ids[count:] == -1).all()
        check_halo_edges(local, local_cols)
    assert sorted(edge_ids) == [*range(int(graph.indptr[-1]))]


def check_halo_edges(part: Part, cols) -> None:
    """Check that the halo edges, by source, are the edges whose sources come after own nodes."""
    num_own = part.exchange.num_own
    halo, first = relational.Halo(part.exchange, num_own, part.num_far).rows_of(part)
    assert first == np.searchsorted(part.t_rows[: len(cols)], num_own)
    valid = np.asarray(halo.rows) >= 0
    order = np.asarray(halo.order)[valid]
    assert (np.diff(halo.rows[valid]) >= 0).all() and halo.num_rows == part.num_src - num_own
    np.testing.assert_array_equal(np.sort(order), np.flatnonzero(cols >= num_own))
    np.testing.assert_array_equal(halo.rows[valid], part.cols[order] - num_own)
    np.testing.assert_array_equal(halo.cols[valid], part.rows[order])


@pytest.mark.parametrize("num_parts", [1, 2, 8])
@pytest.mark.parametrize("method", METHODS)
def test_edges_keep_their_relations(method, num_parts, hosts, rng):
    graph = random_relational(rng)
    split = sharded(rng, graph, mesh_of(num_parts), method)
    types = np.repeat([0, 1, -1], [22, 33, 5])
    ids = np.arange(1, 61, dtype=np.float32)
    halo = np.asarray(applied(split, lambda part, x: part.with_halo(x), split.shard(ids))) - 1
    edge_ids = []
    for number in range(num_parts):
        part = jax.tree.map(lambda leaf, number=number: np.asarray(leaf)[number], split.part)
        part.check_arrays()
        count = int(part.nodes.indptr[-1])
        places = part.nodes.edge_ids[:count]
        edge_ids += places.tolist()
        np.testing.assert_array_equal(part.edge_types[:count], graph.edge_types[places])
        for side in ("rows", "cols"):
            local = halo[number][getattr(part.nodes, side)[:count]]
            np.testing.assert_array_equal(local, np.asarray(getattr(graph.nodes, side))[places])
        valid = part.node_ids >= 0
        np.testing.assert_array_equal(halo[number][valid], part.node_ids[valid])
        own_ids = part.node_ids[: part.num_dst]
        # Nodes of a part are not sorted by type.
        expected = np.where(own_ids < 0, -1, types[own_ids])
        np.testing.assert_array_equal(part.node_types, expected)
    assert sorted(edge_ids) == [*range(int(graph.nodes.indptr[-1]))]


@pytest.mark.parametrize("num_parts", [1, 2, 8])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_aggregate(reduce, num_parts, hosts, rng):
    """Results and their first and second derivatives are those of `spmm` on the whole graph."""
    with jax.enable_x64(True):
        graph = random_graph(rng)
        method = str(rng.choice([m for m in METHODS if m != "metis"]))
        split = sharded(rng, graph, mesh_of(num_parts), method)
        names = ["out_scale", "result_scale"] + ["self_scale"] * (reduce != "max")
        scales = {name: rng.uniform(0.5, 1.5, 60) for name in names}
        x, residual, target = rng.normal(size=(3, 60, 2, 3))
        weight, bias = rng.uniform(0.5, 1.5, (graph.num_edges, 2)), rng.normal(size=(2, 3))
        arguments = jax.tree.map(jnp.asarray, (x, weight, scales, residual, bias))
        tangents = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), arguments)

        def loss_of(y, target):
            return jnp.sum(jnp.where(jnp.isfinite(y), jnp.sin(y), 0) * target)

        options = {"reduce": reduce, "activation": "relu"}

        def single(x, weight, scales, residual, bias):
            y = jax_gnn.spmm(graph, x, weight, residual=residual, bias=bias, **scales, **options)
            return loss_of(y, target)

        def parallel(x, weight, scales, residual, bias):
            def aggregate(part, x, weight, scales, residual, bias):
                epilogue = {"residual": residual, "bias": bias, **scales, **options}
                return part.aggregate(x, weight, **epilogue)

            nodes = jax.tree.map(split.shard, (x, scales, residual))
            rows, scales, residual = nodes
            weight = split.shard_edges(weight)
            y = split.apply(aggregate, rows, weight, scales, residual, bias=bias)
            return loss_of(y, split.shard(target))

        def run(loss):
            gradients = jax.value_and_grad(loss, (0, 1, 2, 3, 4))
            return jax.jit(lambda *pair: jax.jvp(gradients, *pair))(arguments, tangents)

        for a, b in zip(*map(jax.tree.leaves, (run(parallel), run(single))), strict=True):
            assert_close(a, b, 1e-10, "on several devices")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("num_parts", [1, 2, 3, 7, 8])
@pytest.mark.parametrize(
    "kind",
    [
        "weighted",
        "bases",
        "sums by basis",
        "narrow sums by basis",
        "batch",
        "transposed",
        "one part of pairs",
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_relational_aggregate(apart, kind, num_parts, hosts, rng, monkeypatch):
    """Results and their first and second derivatives are those of the whole graph's aggregate."""
    monkeypatch.setattr(relational, "halo_is_summed_apart", lambda counts: apart)
    graph = random_relational(rng)
    if kind == "one part of pairs":
        part = "to_pairs" if apart else "from_pairs"
        edges = edges_of(graph)
        count = int(edges.indptr[-1])
        triples = (ids[:count] for ids in (edges.cols, graph.edge_types, edges.rows))
        graph = RelationalGraph.from_triples(*triples, 60, 4, parts=(part,))
    method = str(rng.choice([m for m in METHODS if m != "metis"]))
    split = sharded(rng, graph, mesh_of(num_parts), method)
    shape, width = (60, 2, 3) if kind == "batch" else (60, 3), 1 if "narrow" in kind else 5
    x, target = rng.normal(size=shape), rng.normal(size=(*shape[:-1], width))
    rhs, weight, coefficients = rng.normal(size=(4, 3, width)), None, None
    options: Any = {}
    monkeypatch.setattr(relational, "sums_by_basis_pay", lambda *_, **__: "sums" in kind)
    if "bas" in kind:
        rhs, coefficients = rhs[:2], rng.normal(size=(4, 2))
    elif kind == "transposed":
        rhs, options = rhs.swapaxes(1, 2), {"transpose_rhs": True}
    elif kind == "weighted":
        weight = rng.normal(size=graph.num_edges)
    operands = jax.tree.map(jnp.asarray, (x, rhs, weight, coefficients))
    tangents = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), operands)

    def run(aggregate):
        def loss(operands):
            y = aggregate(*operands)
            return jnp.sum(jnp.sin(y) * target), y

        gradients = jax.value_and_grad(loss, has_aux=True)
        return jax.jit(lambda *pair: jax.jvp(gradients, *pair))((operands,), (tangents,))

    def on_parts(x, rhs, weight, coefficients):
        def aggregate(part, x, weight, rhs, coefficients):
            return part.aggregate(x, rhs, weight, coefficients=coefficients, **options)

        rows, weights = split.shard(x), None if weight is None else split.shard_edges(weight)
        y = split.apply(aggregate, rows, weights, rhs=rhs, coefficients=coefficients)
        return split.unshard(y)

    def on_one(x, rhs, weight, coefficients):
        named = {"coefficients": coefficients, **options}
        return jax_gnn.relational_aggregate(graph, x, rhs, weight, **named)

    for a, b in zip(*map(jax.tree.leaves, (run(on_parts), run(on_one))), strict=True):
        assert_close(a, b, 1e-12, "on several devices")


@pytest.mark.parametrize(
    ("scale", "options"),
    [
        (1, {"reduce": "sum"}),
        (30000, {"reduce": "mean"}),
        (1, {"reduce": "mean", "self_scale": 2, "out_scale": 0.5}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_aggregate_of_half_types(dtype, scale, options, rng):
    """Means do not overflow, and sums are rounded a few times at most."""
    graph = random_graph(rng)
    split = sharded(rng, graph, mesh_of(2), "random")
    x = (rng.uniform(1, 2, (60, 3)) * scale).astype(dtype)
    y = split.apply(lambda part, x: part.aggregate(x, **options), split.shard(x))
    expected = np.asarray(jax_gnn.spmm(graph, x.astype(np.float32), **options))
    assert y.dtype == dtype
    tolerance = (2 if len(options) == 1 else 4) * float(jnp.finfo(dtype).eps)
    assert_close(split.unshard(y).astype(np.float32), expected, tolerance, "sums")


def dependences(text: str) -> tuple[dict[str, set[str]], list[str], list[str]]:
    """Parse the computation with collectives: operands by instruction, collectives, kernels."""
    # HLO text has a computation in each paragraph.
    parts = re.split(r"\n(?=\S)", text)
    (body,) = (part for part in parts if "source_target_pairs" in part)
    needs: dict[str, set[str]] = {}
    collectives, kernels = [], []
    for name, definition in re.findall(r"^ +(?:ROOT )?%?([\w.-]+) = (.*)", body, re.MULTILINE):
        operands = [x for x in re.findall(r"%([\w.-]+)", definition) if x in needs]
        needs[name] = set(operands).union(*(needs[x] for x in operands))
        if "source_target_pairs" in definition:
            collectives.append(name)
        elif re.search(r"jax_gnn_segment_|\bdot\(|\bdot_general\b", definition):
            kernels.append(name)
    return needs, collectives, kernels


@pytest.mark.parametrize("kind", ["gcn", "gcn, copy engines", "rgcn"])
def test_what_rows_travel_beside(kind, rng, monkeypatch):
    """Half of the exchanges, all with copy engines, can run at the same time as a kernel."""
    copy_engines = kind == "gcn, copy engines"
    monkeypatch.setattr(relational, "halo_is_summed_apart", lambda counts: True)
    src, dst = rng.integers(0, 400, (2, 4000))
    src[:3900] = src[:3900] % 200 + dst[:3900] // 200 * 200  # few edges between the halves
    graph: Any = Graph.from_edges(src, dst, num_nodes=400)
    options: Any = {"num_layers": 3, "rngs": nnx.Rngs(0)}
    if kind == "rgcn":
        graph = RelationalGraph.from_triples(src, src % 3, dst, 400, 3)
        options |= {"num_relations": 3, "self_weight": False}
    parts = np.arange(400) // 200
    split = shard_graph(graph, mesh_of(2), "nodes", parts, copy_engines=copy_engines)
    model_type: Any = flax_layers.RGCN if kind == "rgcn" else flax_layers.GCN
    model = model_type(16, 16, 4, **options)
    model.eval()
    definition, params, state = nnx.split(model, nnx.Param, ...)
    x = split.shard(rng.normal(size=(400, 16)).astype(np.float32))

    def loss(params, x):
        return jnp.sum(jnp.sin(split.apply(nnx.merge(definition, params, state), x)))

    run = jax.jit(jax.value_and_grad(loss, (0, 1)))
    with jax_gnn.implementation("cpu" if split.mesh.devices[0].platform == "cpu" else "cuda"):
        compiled = run.lower(params, x).compile(split.compiler_options)
    needs, collectives, kernels = dependences(compiled.as_text())
    assert len(collectives) == 6 * len(split.part.exchange.rounds) > 0
    # A kernel overlaps an exchange if neither depends on the other.
    is_overlapped = [
        any(k not in needs[exchange] and exchange not in needs[k] for k in kernels)
        for exchange in collectives
    ]
    assert sum(is_overlapped) == len(collectives) // (1 if copy_engines else 2)


@pytest.mark.usefixtures("exact_products")
def test_rows_that_are_mapped_ahead(rng):
    """Rows are mapped early only for copy engines; results are equal, and wrong rows refused."""
    src = rng.integers(0, 60, 400)
    dst = np.where(np.arange(400) < 8, 59 - src, src // 30 * 30 + rng.integers(0, 30, 400))
    graph = Graph.from_edges(src, dst, num_nodes=60)
    x, kernel = rng.normal(size=(60, 4)), rng.normal(size=(4, 3))
    expected = np.asarray(jax_gnn.spmm(graph, x @ kernel, reduce="mean"))

    def aggregate(part, x, cut=None):
        sent = part.ahead(lambda x: x @ kernel, x)
        assert (sent is None) != part.exchange.by_copies
        return part.aggregate(x @ kernel, sent=None if sent is None else sent[:cut], reduce="mean")

    for copies in (False, True):
        split = shard_graph(graph, mesh_of(2), "nodes", np.arange(60) // 30, copy_engines=copies)
        y = split.apply(aggregate, split.shard(x))
        assert_close(split.unshard(y), expected, 1e-5, "means")
    with pytest.raises(ValueError, match="sent must be"):
        split.apply(functools.partial(aggregate, cut=1), split.shard(x))


@pytest.mark.parametrize("kind", ["gcn", "weighted", "gat"])
def test_rows_of_others_that_are_kept(kind, rng):
    """Sums with constant weights, and `jax.checkpoint`, keep no halo rows for the gradient."""
    halves = np.array([[0], [30]])
    src, dst = (rng.integers(0, 30, (2, 200)) + halves for _ in range(2))
    src[:, :40] = rng.integers(0, 7, (2, 40)) + halves[::-1]
    graph = Graph.from_edges(src.ravel(), dst.ravel(), num_nodes=60)
    split = shard_graph(graph, mesh_of(2), "nodes", np.repeat([0, 1], 30))
    model_type = {"gat": flax_layers.GAT}.get(kind, flax_layers.GCN)
    model: Any = model_type(6, 5, 4, num_layers=2, rngs=nnx.Rngs(0))
    model.eval()
    x = split.shard(rng.normal(size=(60, 6)).astype(np.float32))
    weights = (split.shard_edges(rng.random(graph.num_edges)),) * (kind == "weighted")
    halo = split.part.exchange.send.shape[1]

    def keeps_halo(model) -> bool:
        """Return whether a residual has the shape of halo features, alone or after own rows."""
        run = functools.partial(jax.vjp, lambda *values: split.apply(model, *values))
        _, residuals = jax.eval_shape(run, x, *weights)
        leaves = [leaf for leaf in jax.tree.leaves(residuals) if leaf.dtype == np.float32]
        # Residuals have a leading row for each of the two devices.
        rows = 2 * halo, 2 * (halo + split.node_ids.shape[1])
        return any(leaf.shape[0] in rows and leaf.size > leaf.shape[0] for leaf in leaves)

    assert keeps_halo(model) == (kind != "gcn")
    assert not keeps_halo(jax.checkpoint(model))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_of_the_compiled_program(dtype, hosts, rng):
    """The compiled program moves `rows_moved` rows, in their dtype."""
    split = sharded(rng, random_graph(rng), mesh_of(8), "random")
    x = split.shard(rng.normal(size=(60, 16)).astype(dtype))
    text = jax.jit(lambda x: split.apply(lambda part, x: part.with_halo(x), x)).lower(x).as_text()
    num_rows, element = 0, {"float32": "f32", "bfloat16": "bf16"}[dtype]
    for pairs, rows in re.findall(
        rf"collective_permute.*source_target_pairs = dense<.*?> : tensor<(\d+)x2xi64>.*"
        rf"-> tensor<(\d+)x16x{element}>",
        text,
    ):
        num_rows += int(pairs) * int(rows)
    for count, size, rows in re.findall(
        rf"all_to_all.*replica_groups = dense<.*?> : tensor<(\d+)x(\d+)xi64>.*"
        rf"-> tensor<(\d+)x16x{element}>",
        text,
    ):
        num_rows += int(count) * int(rows) * (int(size) - 1)
    assert any(step.relays for step in split.part.exchange.rounds) == hosts
    assert num_rows == split.rows_moved > 0


@pytest.mark.parametrize("wire_dtype", ["bfloat16", "float16"])
def test_rows_in_half_types_on_the_wire(wire_dtype, hosts, rng):
    """Rows of the halo and their gradients are rounded; other rows, vectors and integers not."""
    graph, parts, x = random_graph(rng), rng.integers(0, 4, 60), rng.normal(size=(60, 3))
    split, exact = (
        shard_graph(graph, mesh_of(4), "nodes", parts, wire_dtype=dtype)
        for dtype in (wire_dtype, None)
    )
    with jax.enable_x64(True):

        @jax.jit
        def fetch(split, x):
            return split.apply(lambda part, x: part.with_halo(x), x)

        @jax.jit
        def transpose(split, x, ct):
            return jax.vjp(functools.partial(fetch, split), x)[1](ct)[0]

        rows, num_own = split.shard(x), split.node_ids.shape[1]

        def rounded(rows):
            halo = np.asarray(jnp.asarray(rows[:, num_own:]).astype(wire_dtype), float)
            return np.concatenate([rows[:, :num_own], halo], 1)

        whole, ct = fetch(exact, rows), rng.normal(size=fetch(exact, rows).shape)
        assert same_bits(fetch(split, rows), rounded(whole)) and not same_bits(
            rounded(whole), whole
        )
        gradient = transpose(split, rows, ct)
        # Relays round sums of rounded gradients.
        expected, eps = transpose(exact, rows, ct), float(jnp.finfo(wire_dtype).eps)
        assert_close(gradient, expected, 4 * eps, "gradients")
        assert same_bits(gradient, transpose(exact, rows, rounded(ct))) != hosts
        assert same_bits(*(fetch(one, one.shard(x[:, 0])) for one in (split, exact)))
        assert same_bits(*(one.apply(lambda part: part.out_degrees()) for one in (split, exact)))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "name", ["gcn", "sage", "gat", "transformer", "rgcn", "hgt", "hgnnp, weighted"]
)
def test_models_in_half_types_on_the_wire(name, rng):
    """All rows of features of a step travel so; logits and gradients are near the exact ones."""
    graph, model = graph_and_model(name, rng)
    split = shard_graph(graph, mesh_of(3), "nodes", "hash", wire_dtype="bfloat16")
    x, target = jnp.asarray(rng.normal(size=(60, 6))), rng.normal(size=(60, 4))
    check_as_on_one_device(model, graph, split, x, target, tolerance=0.05)

    def loss(x, structure):
        if isinstance(structure, ShardedGraph):
            y = structure.unshard(structure.apply(model, structure.shard(x)))
        else:
            y = model(structure, x)
        return jnp.sum(jnp.sin(y) * target)

    gradients = jax.jit(jax.grad(loss))
    assert not np.allclose(gradients(x, split), gradients(x, graph), 1e-6, 0)
    rows = split.shard(x)
    run = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(split.apply(model, x)))))
    text = run.lower(rows).as_text()
    sent = re.findall(r"(?:collective_permute|all_to_all).*-> tensor<(?:\d+x){2,}([a-z]\w+)>", text)
    assert sent and {*sent} == {"bf16"}


@pytest.mark.parametrize("make", [random_graph, random_relational, random_hypergraph])
def test_counted_costs(make, rng):
    """Costs, counted without devices, are those of the arrays on a device."""
    graph = make(rng)
    with jax_gnn.host_arrays():
        args = SplitArgs.parse(parse_graph(graph), 3, "auto")
        pieces, places = split_graph(args, "")
        costs, exchanges = costs_of(pieces)
    split = shard_graph(graph, mesh_of(3), "nodes")
    num_bytes = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(split)]
    assert bytes_of(pieces, places) == sum(num_bytes)
    assert sum(exchange.sent for exchange in exchanges) == split.rows_moved
    np.testing.assert_array_equal(costs.nodes, (split.node_ids >= 0).sum(1))
    edges = getattr(split.part, "back", getattr(split.part, "nodes", split.part))
    np.testing.assert_array_equal(costs.edges, edges.indptr[:, -1])
    halo = costs.halo.sum()
    assert halo <= split.rows_moved
    assert halo <= sum(exchange.gathered for exchange in exchanges)
    if make is not random_hypergraph:  # the halo of each part is that of the partition
        counted = PartitionCosts.of(Adjacency.of(edges_of(graph)), 3, args.node_parts)
        for count, expected in zip(costs, counted, strict=True):
            np.testing.assert_array_equal(count, expected)


# --- Models --------------------------------------------------------------------------------------

MODELS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "gcn": (flax_layers.GCN, {}),
    "gcn of sums": (flax_layers.GCN, {"normalization": None, "add_self_loops": False}),
    "gin": (flax_layers.GIN, {}),
    "sage": (flax_layers.SAGE, {}),
    "sage of maxima": (flax_layers.SAGE, {"reduce": "max", "project": True}),
    "gat": (flax_layers.GAT, {"heads": 2}),
    "gatv2": (flax_layers.GATv2, {"heads": 2, "share_weights": True}),
    "transformer": (flax_layers.GraphTransformer, {"heads": 2, "gated": True}),
    "gine": (flax_layers.GINE, {}),
    "pna": (flax_layers.PNA, {"degree_histogram": (2, 3, 1)}),
}


# Models of graphs with relations.
RELATIONAL: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "rgcn": (flax_layers.RGCN, {}),
    "rgcn with an own relation": (flax_layers.RGCN, {}),
    "rgcn of bases": (flax_layers.RGCN, {"num_bases": 2, "self_weight": False}),
    "rgcn of blocks": (flax_layers.RGCN, {"num_blocks": 2}),
    "rgcn without features": (flax_layers.RGCN, {}),
    "rgcn of bases without features": (flax_layers.RGCN, {"num_bases": 2, "normalization": "sum"}),
    "rgat": (flax_layers.RGAT, {"heads": 2}),
    "rgat within relations": (
        flax_layers.RGAT,
        {"heads": 2, "softmax": "within", "attention": "multiplicative", "edge_in_features": 2},
    ),
    "hgt": (flax_layers.HGT, {"heads": 2}),
    "simplehgn": (flax_layers.SimpleHGN, {"heads": 2}),
    "hgt of types": (flax_layers.HGT, {"heads": 2, "node_types": (*TYPES,)}),
    "hgt of widths": (flax_layers.HGT, {"heads": 2, "node_types": (*TYPES,)}),
}


HYPERGRAPHS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "hgnn": (flax_layers.HGNN, {"use_bias": False}),
    "hgnn of learned weights": (flax_layers.HGNN, {"num_hyperedges": 30}),
    "hgnnp, weighted": (flax_layers.HGNNP, {}),
    "unigin": (flax_layers.UniGIN, {}),
    "unisage of maxima": (flax_layers.UniSAGE, {"hyperedge_reduce": "max", "node_reduce": "mean"}),
    "unigcnii": (flax_layers.UniGCNII, {}),
}


def graph_and_model(name: str, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return a random graph for a model, and the model from 6 to 4 features."""
    kind, options = (MODELS | RELATIONAL | HYPERGRAPHS)[name]
    graph: Any = random_hypergraph(rng) if name in HYPERGRAPHS else random_graph(rng)
    if name in RELATIONAL:
        graph, options = random_relational(rng), {**options, "num_relations": len(RELATIONS)}
    model = kind(6, 8, 4, num_layers=2, param_dtype=float, rngs=nnx.Rngs(0), **options)
    model.eval()
    return graph, model


class OwnModel(nnx.Module):
    """Model as a user writes one: convolutions and other functions."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = flax_layers.GATv2Conv(6, 24, heads=2, param_dtype=float, rngs=rngs)
        self.second = flax_layers.SAGEConv(24, 4, param_dtype=float, rngs=rngs)
        self.third = flax_layers.CGConv(4, 4, param_dtype=float, rngs=rngs)
        self.fourth = flax_layers.FAConv(4, 4, param_dtype=float, rngs=rngs)

    def __call__(self, graph: Graph, x):
        h = self.third(graph, self.second(graph, jnp.tanh(self.first(graph, x))))
        return self.fourth(graph, h, x0=h)


def check_as_on_one_device(
    model, graph, split: ShardedGraph, x, target, weights=(), tolerance: float = 1e-10
) -> None:
    """Compare logits and all gradients; those of several devices have the same bits in each run."""
    definition, params, state = nnx.split(model, nnx.Param, ...)
    sharded_weights = [split.shard_edges(weight) for weight in weights]

    def loss(params, x, graph):
        model = nnx.merge(definition, params, state)
        if isinstance(graph, ShardedGraph):
            is_featureless = not jax.tree.leaves(x)  # embeddings stand for features
            rows = x if is_featureless else graph.shard(x)
            y = graph.unshard(graph.apply(model, rows, *sharded_weights))
        else:
            y = model(graph, x, *weights)
            y = jnp.concatenate([*y.values()]) if isinstance(y, dict) else y
        y = y[: len(target)]
        return jnp.sum(jnp.sin(y) * target), y

    run = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    actual, expected = (run(params, x, structure) for structure in (split, graph))
    for a, b in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        assert_close(a, b, tolerance, "on several devices")
    assert same_bits(actual, run(params, x, split))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("num_parts", [1, 2, 8])
@pytest.mark.parametrize("name", [*MODELS, "own", "weighted", *RELATIONAL, *HYPERGRAPHS])
def test_models_as_on_one_device(name, num_parts, hosts, rng):
    rngs = nnx.Rngs(int(rng.integers(1 << 30)))
    kind, options = (MODELS | RELATIONAL | HYPERGRAPHS).get(name, MODELS["gcn"])
    graph: Any = random_hypergraph(rng) if name in HYPERGRAPHS else random_graph(rng)
    in_features: Any = 60 if name.endswith("without features") else 6
    if name in RELATIONAL:
        graph = random_relational(rng, name == "rgcn with an own relation")
        options = {**options, "num_relations": len(RELATIONS)}
    if "node_types" in options:
        options["relation_ends"] = RELATIONS
    if name == "hgt of widths":
        in_features = {"a": 6, "b": 3, "none": 2}
    model: Any = OwnModel(rngs)
    if name != "own":
        sizes = in_features, 8, 4
        model = kind(*sizes, num_layers=2, param_dtype=float, rngs=rngs, **options)
    model.eval()
    method = str(rng.choice([m for m in METHODS if m != "metis"]))
    axes = rng.choice([AxisType.Auto, AxisType.Explicit])
    split = sharded(rng, graph, mesh_of(num_parts, axes), method)
    x: Any = jnp.asarray(rng.normal(size=(60, 6)))
    if name == "hgt of widths":
        x = {kind: x[: TYPES[kind], :width] for kind, width in in_features.items()}
    elif in_features == 60:
        x = None
    weights = [rng.random(graph.num_edges)] if name == "weighted" else []
    if name == "hgnnp, weighted":
        weights = [rng.random(30)]
    if "edge_in_features" in options:
        weights = [rng.normal(size=(graph.num_edges, 2))]
    # The last 5 nodes of the graph are padding, which has no type.
    target = rng.normal(size=(55 if isinstance(x, dict) else 60, 4))
    check_as_on_one_device(model, graph, split, x, target, weights)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("name", ["gcn", "gat", "rgcn", "hgnn"])
def test_without_edges(name, num_parts, rng):
    """Parts have no empty arrays: XLA of jaxlib 0.11 crashes at them on several GPUs."""
    kind, options = (MODELS | RELATIONAL | HYPERGRAPHS)[name]
    graph: Any = Graph.from_edges([], [], num_nodes=9)
    if name in RELATIONAL:
        graph = RelationalGraph.from_triples([], [], [], 9, 2)
        options = {"num_relations": 2}
    elif name in HYPERGRAPHS:
        graph = Hypergraph.from_incidence([], [], num_nodes=9, num_hyperedges=0)
    model: Any = kind(3, 4, 2, param_dtype=float, rngs=nnx.Rngs(0), **options)
    model.eval()
    split, x = shard_graph(graph, mesh_of(num_parts), "nodes"), rng.normal(size=(9, 3))
    for path, leaf in jax.tree.leaves_with_path(split.part):
        # Arrays of the exchange are not read.
        assert leaf.size or "exchange" in jax.tree_util.keystr(path)
    check_as_on_one_device(model, graph, split, x, np.ones((9, 1)))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("num_parts", [1, 8])
@pytest.mark.parametrize("types", [True, False])
def test_model_behind_types(types, num_parts, rng):
    """Features of one type and embeddings of another, or embeddings of nodes without types."""
    graph, rngs = random_relational(rng, num_nodes=55), nnx.Rngs(0)
    x: Any = {"a": rng.normal(size=(22, 6)), "b": None, "none": None}
    sizes = {"a": 6, "b": 33, "none": 0}
    if not types:
        graph = replace(graph, node_type_names=None, node_type_sizes=None)
        x, sizes = {"node": None}, {"node": 55}
    options: Any = {"num_relations": len(RELATIONS), "param_dtype": float, "rngs": rngs}
    inner = flax_layers.RGAT(4, 8, 3, num_layers=2, heads=2, **options)
    model = flax_layers.HeteroModel(sizes, inner, param_dtype=float, rngs=rngs)
    model.eval()
    split = sharded(rng, graph, mesh_of(num_parts), "random")
    check_as_on_one_device(model, graph, split, x, rng.normal(size=(55, 3)))


@pytest.mark.parametrize("after", [1, 4])
def test_embeddings_go_on_over_other_devices(after, tmp_path, rng):
    """Rows of nodes and their moments, saved by two devices, train on over other devices."""
    ocp, optax = (pytest.importorskip(name) for name in ("orbax.checkpoint", "optax"))
    with jax.enable_x64(True):
        graph, labels = random_graph(rng), rng.integers(0, 3, 60)
        model = flax_layers.GCN(5, 8, 3, num_layers=2, param_dtype=float, rngs=nnx.Rngs(0))
        model.eval()
        optimizer = optax.adam(0.01)

        def steps(split: ShardedGraph, state, count: int):
            classes, valid = split.shard(labels), split.shard(np.ones(60))

            def loss(rows):
                logits = split.apply(model, rows)
                logs = jax.nn.log_softmax(logits) * jax.nn.one_hot(classes, 3)
                return -(logs.sum(-1) * valid).sum() / 60, logits

            @jax.jit
            def step(state, _: None):
                rows, moments = state
                (value, logits), slope = jax.value_and_grad(loss, has_aux=True)(rows)
                change, moments = optimizer.update(slope, moments)
                return (optax.apply_updates(rows, change), moments), (value, split.unshard(logits))

            return jax.lax.scan(step, state, None, count)

        first, x = sharded(rng, graph, mesh_of(2), "random"), rng.normal(size=(60, 5))
        rows = first.shard(x)
        state, _ = steps(first, (rows, optimizer.init(rows)), 3)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / "state", {"state": state, "node_ids": first.node_ids})
            like = {"state": state, "node_ids": first.node_ids}
            like = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), like)
            restored = checkpointer.restore(tmp_path / "state", like)

        second = sharded(rng, graph, mesh_of(after), "random")
        resharded = jax.tree.map(
            lambda leaf: second.shard(leaf, restored["node_ids"]) if leaf.ndim else leaf,
            restored["state"],
        )
        np.testing.assert_array_equal(second.unshard(resharded[0]), first.unshard(state[0]))
        # Training continues on other devices as on the first ones.
        results = steps(second, resharded, 5)[1]
        expected_results = steps(first, state, 5)[1]
        for actual, expected, name in zip(
            results, expected_results, ("the losses", "the logits"), strict=True
        ):
            assert_close(actual, expected, 1e-6, name)


# --- Errors and degrees --------------------------------------------------------------------------


def test_gradients_to_kernels_do_not_wait_for_rows():
    """A barrier orders the gradients of each layer but the first, whose input has none."""
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=4)
    model = flax_layers.GCN(3, 4, 2, num_layers=3, rngs=nnx.Rngs(0))
    definition, params = nnx.split(model)
    split = shard_graph(graph, mesh_of(1), "nodes")
    x = split.shard(np.ones((4, 3), np.float32))

    def parallel(params):
        return split.apply(nnx.merge(definition, params), x, deterministic=True).sum()

    def single(params):
        return nnx.merge(definition, params)(graph, x[0], deterministic=True).sum()

    for loss, count in ((parallel, 2), (single, 0)):
        program = str(jax.make_jaxpr(jax.grad(loss, allow_int=True))(params))
        assert program.count("optimization_barrier") == count


def test_errors_name_the_argument():
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
    two, eight = mesh_of(2), mesh_of(8)
    bipartite = Graph.from_edges([0], [1], num_src=1, num_dst=2)
    cases: list[tuple[tuple[Any, ...], type[Exception], str]] = [
        ((graph, eight, "nodes"), ValueError, r"graph must have a node for each of 8 devices.* 3"),
        ((graph, two, "rows"), ValueError, r"axis must be one of .*nodes.*, got 'rows'"),
        ((graph, None, "nodes"), TypeError, "mesh must be a .*Mesh, got NoneType"),
        ((graph.rows, two, "nodes"), TypeError, "graph must be a jax_gnn.Graph"),
        ((bipartite, two, "nodes"), ValueError, "bipartite"),
        (
            (graph, two, "nodes", "ring"),
            ValueError,
            "method must be one of .*multilevel.*got 'ring'",
        ),
        ((graph, two, "nodes", [0, 1]), ValueError, r"method must .* shape \(3,\), got shape \(2,"),
        ((graph, two, "nodes", [0, 1, 2]), ValueError, r"method\[2\] = 2 is outside"),
        ((graph, two, "nodes", [0.5, 1, 2]), TypeError, "method must be an array of integers"),
    ]
    for arguments, kind, message in cases:
        with pytest.raises(kind, match=message):
            shard_graph(*arguments)
    with pytest.raises(ValueError, match=r"wire_dtype must be one of .*bfloat16.*got 'float32'"):
        shard_graph(graph, two, "nodes", wire_dtype="float32")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_parts must be 1 to num_nodes = 3, got 4"):
        partition(graph, 4)
    with pytest.raises(TypeError, match=r"before jax\.jit"):
        jax.jit(lambda graph: partition(graph, 2))(graph)


def test_errors_of_hypergraphs():
    hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
    directed = Hypergraph.from_directed([0], [0], [1], [0], num_nodes=4)
    with pytest.raises(ValueError, match="graph must not be a directed hypergraph"):
        shard_graph(directed, mesh_of(2), "nodes")
    split = shard_graph(hypergraph, mesh_of(2), "nodes", [0, 0, 1, 1])
    rows, rngs = split.shard(np.ones((4, 2), np.float32)), nnx.Rngs(0)
    assert split.part.num_hyperedges == 1 and split.rows_moved == 2
    with pytest.raises(ValueError, match=r"values must be \(num_hyperedges = 2"):
        split.shard_edges(np.ones(1))
    learned = flax_layers.HGNN(2, 4, 2, num_hyperedges=1, rngs=rngs)
    with pytest.raises(ValueError, match=r"has 2 hyperedges, but .* num_hyperedges=1 learnable"):
        applied(split, learned, rows)
    members = flax_layers.HGNNConv(2, 4, rngs=rngs)
    with pytest.raises(ValueError, match="incidence_weight must be None on a device's part"):
        applied(split, lambda part, x: members(part, x, None, jnp.ones(5)), rows)
    for unsupported in (
        flax_layers.UniGAT,
        flax_layers.HypergraphAttention,
        flax_layers.AllDeepSets,
    ):
        with pytest.raises(TypeError, match=r"must be a jax_gnn.Hypergraph, got HypergraphPart"):
            applied(split, unsupported(2, 4, 2, rngs=rngs), rows)


@pytest.mark.parametrize("num_parts", [1, 2, 8])
def test_hypergraphs_without_hyperedges(num_parts):
    hypergraph = Hypergraph.from_incidence([], [], num_nodes=9, num_hyperedges=0)
    split = shard_graph(hypergraph, mesh_of(num_parts), "nodes")
    x = np.arange(9, dtype=np.float32)
    y = split.apply(lambda part, x: part.aggregate(x, self_scale=2), split.shard(x))
    np.testing.assert_array_equal(split.unshard(y), 2 * x)


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("method", ["auto", "hash"])
def test_degrees_are_of_the_whole_graph(num_parts, method, rng):
    graph = random_graph(rng)
    sharded = shard_graph(graph, mesh_of(num_parts), "nodes", method)
    in_degrees, out_degrees = applied(sharded, lambda part: (part.in_degrees(), part.out_degrees()))
    local = out_degrees[:, : sharded.node_ids.shape[1]]
    np.testing.assert_array_equal(sharded.unshard(in_degrees), graph.in_degrees())
    np.testing.assert_array_equal(sharded.unshard(local), graph.out_degrees())
    halo = applied(sharded, lambda part, x: part.with_halo(x), local.astype(float))
    np.testing.assert_array_equal(halo, out_degrees)
    relational = random_relational(rng)
    relations = shard_graph(relational, mesh_of(num_parts), "nodes", method)
    counts = applied(relations, lambda part: part.relation_degrees())
    np.testing.assert_array_equal(counts, [relational.relation_degrees()] * num_parts)
    for degrees in (sharded.part.out_degrees, relations.part.relation_degrees):
        with pytest.raises(ValueError, match=r"^part must be within ShardedGraph\.apply"):
            degrees()


@pytest.mark.parametrize("num_parts", [1, 3])
def test_padded_parts(num_parts, rng):
    graph, relational = random_graph(rng), random_relational(rng)
    sharded = shard_graph(graph, mesh_of(num_parts), "nodes")
    x = rng.normal(size=(graph.num_nodes, 3))
    rows = sharded.shard(x)
    y = applied(sharded, lambda part, x: part.pad(num_edges=part.num_edges + 9).aggregate(x), rows)
    np.testing.assert_allclose(sharded.unshard(y), jax_gnn.spmm(graph, jnp.asarray(x)), atol=1e-4)
    relations = shard_graph(relational, mesh_of(num_parts), "nodes")
    for split in (sharded, relations):
        with pytest.raises(ValueError, match=r"^num_dst must be None for a part, .* got 99"):
            split.apply(lambda part: part.pad(num_dst=99).indptr)


def test_errors_of_rows():
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
    split = shard_graph(graph, mesh_of(2), "nodes", "contiguous")
    rows = split.shard(np.ones((3, 2)))
    # Each array of the wrong shape is named.
    for call, message in (
        (lambda: split.shard(np.ones((4, 2))), r"values must be \(num_nodes = 3, .*\(4, 2\)"),
        (lambda: split.shard(1.0), "values must be"),
        (lambda: split.shard_edges(np.ones(2)), r"values must be \(num_edges = 3"),
        (lambda: split.unshard(np.ones((3, 2))), r"rows must have the shape \(2, 2, \.\.\.\)"),
        (lambda: split.shard(np.ones((2, 3, 2)), [[0, 1], [2, -1]]), r"shape \(2, 2, \.\.\.\)"),
        (lambda: split.shard(rows, [0, 1, 2]), r"node_ids must be \(devices, capacity\), with"),
        (lambda: split.shard(rows, [[0, 1], [1, 2]]), "node_ids must .*each of num_nodes = 3 once"),
        (lambda: split.shard(rows, [[0, 1], [-2, 2]]), "node_ids must .*-1 for padding"),
        (lambda: split.apply(len, np.ones((3, 2))), r"values must have the shape \(2, \.\.\.\)"),
        (lambda: applied(split, lambda p, x: p.with_halo(x[:1]), rows), r"x must be \(num_own=2"),
        (lambda: applied(split, lambda p, x: p.aggregate(x[:1]), rows), r"x must be \(num_own=2"),
        (lambda: applied(split, lambda p, x: p.aggregate(x, np.ones(9)), rows), "weight must be"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    for call in (lambda part, x: part.with_halo(x > 0), lambda part, x: part.aggregate(x > 0)):
        with pytest.raises(TypeError, match="x must be float16, "):
            applied(split, call, rows)
    for values in (None, ["a", "b", "c"]):
        with pytest.raises(TypeError, match="values must be an array of numbers"):
            split.shard(values)
    np.testing.assert_array_equal(split.apply(lambda part: part.num_dst), [2, 2])
    assert math.isclose(float(split.unshard(rows).sum()), 6)
    model = flax_layers.GCN(2, 4, 2, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="got ShardedGraph; its apply calls models"):
        model(split, rows)
    with pytest.raises(ValueError, match=r"x must be .*num_src"):  # ops take rows of all sources
        applied(split, jax_gnn.spmm, rows)
    single = jax.tree.map(lambda leaf: leaf[0], split.part)
    with pytest.raises(ValueError, match=r"part must be within ShardedGraph\.apply"):
        single.with_halo(jnp.ones((2, 2)))
    # Fields of different splits do not fit together.
    other_split = shard_graph(graph, mesh_of(2), "nodes", [0, 0, 0])
    for change in ({"part": other_split.part}, {"mesh": mesh_of(1)}, {"axis": "rows"}):
        with pytest.raises(ValueError, match="part, node_ids and mesh must be of one split, got "):
            replace(split, **change).apply(model, rows)


def test_errors_of_models_on_parts_with_relations():
    edges = {("a", "to", "b"): ([0, 1], [0, 0]), ("b", "in", "b"): ([0], [1])}
    graph = jax_gnn.HeteroGraph.from_edges(edges, {"a": 2, "b": 2})
    split = shard_graph(graph, mesh_of(2), "nodes", "contiguous")
    rows, rngs = split.shard(np.ones((4, 2), np.float32)), nnx.Rngs(0)
    assert str(split.part).startswith("RelationalGraph(") and split.num_nodes == 4
    one_hot = flax_layers.RGCN(3, 4, 2, num_relations=2, rngs=rngs)
    relation_ends = [(0, 1), (1, 2)]
    types = flax_layers.HGT(
        2, 4, 2, num_relations=2, node_types=3, relation_ends=relation_ends, rngs=rngs
    )
    rgat = flax_layers.RGAT(2, 4, 2, num_relations=3, rngs=rngs)
    for call, message in (
        (lambda: applied(split, one_hot), "in_features = 3 sources where there is no x, got 4"),
        (lambda: applied(split, types, rows), "graph must have 3 types of nodes, got 2"),
        (lambda: applied(split, rgat, rows), "num_relations = 3, inverse ones included, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="got ShardedGraph; its apply calls models"):
        rgat(split, rows)
    for x, message in (
        ({"c": np.ones((2, 2))}, r"values must be by name of types, \('a', 'b'\), got 'c'"),
        ({"b": np.ones((3, 2))}, r"values\['b'\] must be \(nodes = 2, ...\), got"),
    ):
        with pytest.raises(ValueError, match=message):
            split.shard(x)
    x = split.shard({"a": np.ones((2, 1)), "b": np.full((2, 1), 2.0)})
    np.testing.assert_array_equal(split.unshard(x["b"])[:, 0], [0, 0, 2, 2])


def test_without_pymetis(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    graph = Graph.from_edges([0, 1], [1, 0], num_nodes=2)
    with pytest.raises(ImportError, match=r"pip install .*\[scale\]"):
        partition(graph, 2, "metis")
