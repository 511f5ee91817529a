"""Partitions by method: hidden structure, counted costs, padding, and sizes at the limits."""

from __future__ import annotations

import re
import warnings

import jax
import numpy as np
import pytest

import jax_gnn
from jax_gnn import Graph, Hypergraph, cli
from jax_gnn.sharding import PartitionCosts, _partition, partition, partition_costs
from jax_gnn.sharding._partition import Adjacency, SplitArgs, parse_graph


def communities(rng: np.random.Generator, num_nodes: int, count: int) -> tuple[Graph, np.ndarray]:
    """Return a graph with one edge in ten between communities, and the community of each node."""
    of_node = rng.permutation(num_nodes) % count
    members = np.argsort(of_node, kind="stable").reshape(count, -1)
    src = rng.integers(0, num_nodes, 8 * num_nodes)
    near = members[of_node[src], rng.integers(0, members.shape[1], src.size)]
    dst = np.where(rng.random(src.size) < 0.1, rng.integers(0, num_nodes, src.size), near)
    return Graph.from_edges(src, dst, num_nodes=num_nodes), of_node


@pytest.mark.parametrize("count", [8, 64])
def test_hidden_communities_are_found(count, rng):
    """Parts fetch as few rows as those of the communities; several threads find the same."""
    graph, of_node = communities(rng, 64_000, count)
    edges = Adjacency.of(jax.device_get(graph))
    costs = partition_costs(graph, 8)
    best = PartitionCosts.of(edges, 8, (of_node % 8).astype(np.int32))
    assert next(iter(costs)) == "multilevel"
    assert costs["multilevel"].halo.sum() <= 1.1 * best.halo.sum() < costs["hash"].halo.sum() / 2
    np.testing.assert_array_equal(partition(graph, 8), partition(graph, 8, "multilevel"))


def test_ordered_ids_are_kept():
    """Ranges of ids win where neighbours have similar ids."""
    ids = np.arange(4000)
    graph = Graph.from_edges(ids, (ids + 1) % 4000, num_nodes=4000)
    costs = partition_costs(graph, 4, ["hash", "contiguous"])
    assert [*costs] == ["contiguous", "hash"] and (costs["contiguous"].halo == 1).all()
    assert PartitionCosts.of(Adjacency.of(graph), 4, partition(graph, 4)).halo.max() <= 2


def test_padding_changes_no_partition(rng):
    """Nodes without edges are clustered, so that the others still are."""
    graph, _ = communities(rng, 16_000, 64)
    halo, padded = (
        partition_costs(graph, 8, ["multilevel"])["multilevel"].halo.sum()
        for graph in (graph, graph.pad(num_nodes=76_000, num_edges=130_000))
    )
    assert padded < 1.25 * halo


def test_nodes_of_dense_hypergraphs_are_balanced(rng):
    """Each part has nodes, where ranges of nodes and hyperedges would fetch fewer rows."""
    hypergraph = Hypergraph(Graph.from_edges(*rng.integers(0, 400, (2, 20_000)), num_nodes=400))
    with jax_gnn.host_arrays():
        args = SplitArgs.parse(parse_graph(hypergraph), 4, "auto")
    assert np.bincount(args.node_parts, minlength=4).min() > 50


def test_metis_ignores_ids_out_of_range():
    """METIS gets the same graph without these ids, of which scipy would read beyond its arrays."""
    pytest.importorskip("pymetis")
    graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
    garbage = np.array([1 << 30, -(1 << 31), 3, -1], np.int32)
    parts = partition(Graph(**{**vars(graph), "cols": garbage, "t_cols": garbage}), 2, "metis")
    assert set(parts) <= {0, 1}


def test_partitions_of_extreme_sizes():
    """Graphs without nodes have parts, and offsets near the end of int32 are no overflow."""
    empty = Adjacency.of(Graph.from_edges([], [], num_nodes=0))
    assert _partition.partition_nodes(empty, 3, "auto").shape == (0,)
    none = np.zeros(0, np.int32)
    large = Adjacency(np.array([0, 2**30 + 5, 2**31 - 1], np.int32), none, none, none)
    assert [*_partition.partition_nodes(large, 2, "contiguous")] == [0, 1]


@pytest.mark.parametrize("num_parts", [1, 3, 200])
def test_costs_are_counted(num_parts, rng):
    """Rows are counted once for each part that fetches them."""
    src, dst = rng.integers(0, 500, (2, 3000))
    graph = Graph.from_edges(src, dst, num_nodes=500)
    parts = rng.integers(0, num_parts, 500).astype(np.int32)
    costs = PartitionCosts.of(Adjacency.of(graph), num_parts, parts)
    needed = {(s, parts[d]) for s, d in zip(src, dst, strict=True) if parts[s] != parts[d]}
    expected = np.bincount([part for _, part in needed], minlength=num_parts)
    np.testing.assert_array_equal(costs.halo, expected)
    np.testing.assert_array_equal(costs.nodes, np.bincount(parts, minlength=num_parts))
    np.testing.assert_array_equal(costs.edges, np.bincount(parts[dst], minlength=num_parts))


def test_a_graph_without_structure_is_told(rng, monkeypatch, tmp_path, capsys):
    """A warning says that parts of a large random graph fetch nearly all rows."""
    monkeypatch.setattr(_partition, "FEW_EDGES", 10_000)
    src, dst = rng.integers(0, 1000, (2, 40_000))
    text = r"parts fetch \d.\d\d rows for each node, at random 3\.00"
    with pytest.warns(UserWarning, match=text):
        partition(Graph.from_edges(src, dst, num_nodes=1000), 4)
    # The command prints it, too, for its own choice of a method.
    data = tmp_path / "data.npz"
    np.savez(data, num_nodes=1000, src=src, dst=dst)
    for options, count in (([], 1), (["--method", "hash"], 0)):
        assert cli.main(["partition", str(data), "--parts", "4", *options]) == 0
        lines = re.findall(f"jax-gnn: warning: no partition .*{text}", capsys.readouterr().err)
        assert len(lines) == count
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        partition(communities(rng, 6400, 8)[0], 4)
