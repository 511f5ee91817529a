"""HGT's subgraphs: their contents and distribution."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import jax
import numpy as np
import pytest
from sampling_checks import check_compiled_once, check_distribution, in_range, key_of, spoiled_field

from jax_gnn import HeteroGraph
from jax_gnn.sampling import Subgraph, _budget, _subgraphs, hgt_subgraph

KEY = jax.random.key(0)
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
SIZES = {"author": 5, "paper": 7, "venue": 3}
LAYERS = ({"author": 2, "paper": 3}, 2, {"paper": 1})


def edges_of(rng: np.random.Generator):
    cites = rng.integers(0, 7, (2, 18))
    cites[:, -2:] = cites[:, :1]  # repeated edges
    return {WRITES: np.stack([rng.integers(0, 5, 12), rng.integers(0, 6, 12)]), CITES: cites}


def library(rng: np.random.Generator, **options) -> HeteroGraph:
    return HeteroGraph.from_edges(edges_of(rng), SIZES, inverse=True, **options)


def seeds_of(rng: np.random.Generator):
    return {"paper": rng.integers(-2, 9, 4), "author": rng.integers(-1, 6, 2)}


def triples_of(graph: HeteroGraph) -> np.ndarray:
    """Return source, relation and destination of each edge, ``(edges, 3)``."""
    nodes, types = graph.relational.nodes, graph.relational.edge_types
    count = int(nodes.indptr[-1])
    return np.stack([np.asarray(x)[:count] for x in (nodes.cols, types, nodes.rows)], axis=1)


def budgets(triples: np.ndarray, chosen: set[int]) -> dict[int, float]:
    """Return the budgets of nodes that are not chosen, by algorithm 2 of the paper."""
    budget: dict[int, float] = defaultdict(float)
    degrees: dict[Any, int] = defaultdict(int)
    # In-degrees by relation normalise the shares.
    for _, rel, dst in triples:
        degrees[rel, dst] += 1
    for src, rel, dst in triples:
        if dst in chosen and src not in chosen:
            budget[src] += 1 / degrees[rel, dst]
    return budget


def check_part(part: Subgraph, graph: HeteroGraph, seeds, layers, room: int) -> None:
    triples, ids = triples_of(graph), np.asarray(part.node_ids)
    part.graph.relational.check()
    assert part.graph.node_types == graph.node_types
    assert part.graph.edge_types == graph.edge_types
    columns: dict[str, list[int]] = {}
    for kind, rows in part.graph.slices.items():
        type_ids = ids[rows]
        columns[kind] = type_ids.tolist()
        first = graph.slices[kind].start
        # Seeds come first, out-of-range and repeated ones as padding.
        expected = [first + i if 0 <= i < SIZES[kind] else -1 for i in seeds.get(kind, [])]
        expected = [-1 if i in expected[:n] else i for n, i in enumerate(expected)]
        assert columns[kind][: len(expected)] == expected
        columns[kind] = columns[kind][len(expected) :]
        assert (
            (type_ids == -1) | ((type_ids >= first) & (type_ids < graph.slices[kind].stop))
        ).all()
    # No node is chosen twice.
    valid_ids = ids[ids >= 0]
    assert len(set(valid_ids)) == len(valid_ids)
    chosen = set(valid_ids) - {i for column in columns.values() for i in column}
    # Layer by layer: exactly the nodes with a budget may be drawn.
    for layer in layers:
        budget = budgets(triples, chosen)
        for kind in graph.node_types:
            count = layer if isinstance(layer, int) else layer.get(kind, 0)
            drawn, columns[kind] = columns[kind][:count], columns[kind][count:]
            rows = graph.slices[kind]
            can = {i for i in budget if rows.start <= i < rows.stop}
            drawn = [i for i in drawn if i >= 0]
            assert set(drawn) <= can and len(drawn) == min(count, len(can))
            chosen |= set(drawn)
    assert chosen == set(valid_ids) and not any(columns.values())

    # Edges among the chosen nodes, renumbered and sorted by destination and relation.
    place = {i: n for n, i in enumerate(ids.tolist()) if i >= 0}
    inner = [e for e in triples.tolist() if e[0] in place and e[2] in place]
    want = sorted(([place[s], r, place[d]] for s, r, d in inner), key=lambda e: (e[2], e[1]))
    assert bool(part.overflow) == (len(want) > room)
    edges = triples_of(part.graph).tolist()
    if len(want) <= room:
        assert sorted(edges) == sorted(want)
    keys = [(d, r) for _, r, d in edges]
    assert keys == sorted(keys) and len(edges) == min(len(want), room)


@pytest.mark.parametrize("room", [None, 12])
@pytest.mark.parametrize("parts", [(), ("from_pairs", "to_pairs")])
def test_nodes_and_edges(rng, parts, room):
    graph, seeds = library(rng, parts=parts), seeds_of(rng)
    part = hgt_subgraph(graph, seeds, LAYERS, key_of(rng), num_edges=room)
    limit = graph.relational.num_edges if room is None else room
    check_part(part, graph, seeds, LAYERS, limit)


def outcomes(graph: HeteroGraph, seed: int, kinds: list[str]):
    """Return the probability of each result of two layers with one node of each type."""
    triples = triples_of(graph)

    def layer(chosen: tuple[int, ...]) -> list[tuple[tuple[int, ...], float]]:
        budget, choices = budgets(triples, set(chosen)), []
        for kind in kinds:
            rows = graph.slices[kind]
            squares = {i: b**2 for i, b in budget.items() if rows.start <= i < rows.stop}
            total = sum(squares.values())
            choices.append([(i, b / total) for i, b in squares.items()] or [(-1, 1.0)])
        return [
            (tuple(i for i, _ in choice), float(np.prod([c for _, c in choice])))
            for choice in itertools.product(*choices)
        ]

    # Both layers draw one node of each type; chances multiply.
    chances: dict[Any, float] = defaultdict(float)
    for first, chance in layer((seed,)):
        for second, second_chance in layer((seed, *first)):
            chances[(*first, *second)] += chance * second_chance
    return chances


def test_distribution(rng):
    """Nodes are drawn by the squares of budgets, summed over relations and repeated edges."""
    edges = edges_of(rng)
    # Five edges enter the seed, so that budgets differ.
    edges[CITES][1, :5] = 2
    graph = HeteroGraph.from_edges(edges, SIZES, inverse=True)
    draw = jax.jit(jax.vmap(lambda key: hgt_subgraph(graph, {"paper": [2]}, (1, 1), key).node_ids))
    ids = np.asarray(draw(jax.random.split(key_of(rng), 4000)))
    # Columns: two authors; the seed and two papers; two venues, which no edge reaches.
    drawn = ids[:, [0, 3, 1, 4]]
    assert (ids[:, 2] == graph.slices["paper"].start + 2).all() and (ids[:, 5:] == -1).all()
    want = outcomes(graph, graph.slices["paper"].start + 2, ["author", "paper"])
    counts: dict[Any, int] = dict.fromkeys(want, 0)
    for row in drawn.tolist():
        assert tuple(row) in counts
        counts[tuple(row)] += 1
    check_distribution(np.array(list(counts.values())), np.array(list(want.values())))


def test_chunks_of_edges(rng, monkeypatch):
    graph, seeds, key = library(rng), seeds_of(rng), key_of(rng)
    want = hgt_subgraph(graph, seeds, LAYERS, key)
    # Small chunks, so that several are visited.
    monkeypatch.setattr(_budget, "CHUNK", 3)
    monkeypatch.setattr(_subgraphs, "CHUNK", 3)
    part = jax.jit(lambda graph: hgt_subgraph(graph, seeds, LAYERS, key))(graph)
    jax.tree.map(np.testing.assert_array_equal, part, want)


def test_one_program(rng):
    def call(graph, seeds, key):
        return hgt_subgraph(graph, seeds, LAYERS, key, num_edges=20)

    check_compiled_once(call, lambda: (library(rng, parts=()), seeds_of(rng), key_of(rng)))


def test_values_of_edges(rng):
    """Values are given by type, as for the whole graph."""
    graph, seeds = library(rng), seeds_of(rng)
    values = {
        kind: rng.normal(size=n).astype(np.float32) for kind, n in ((WRITES, 12), (CITES, 18))
    }
    part = hgt_subgraph(graph, seeds, LAYERS, key_of(rng))
    part_values, want = part.graph.edge_values(values), np.asarray(graph.edge_values(values))
    ids = np.asarray(part.node_ids)
    # Repeated edges have several values, in any order.
    values_by_edge: dict[Any, list[float]] = defaultdict(list)
    for edge, value in zip(triples_of(graph).tolist(), want, strict=False):
        values_by_edge[tuple(edge)].append(float(value))
    for (src, rel, dst), value in zip(
        triples_of(part.graph), np.asarray(part_values), strict=False
    ):
        assert float(value) in values_by_edge[ids[src], rel, ids[dst]]


@pytest.mark.parametrize("name", ["indptr", "cols", "edge_types"])
def test_corrupt_graphs(rng, name):
    graph = library(rng, parts=())
    relational = spoiled_field(rng, graph.relational, name)
    graph = HeteroGraph(relational, edge_types=graph.edge_types)
    part = hgt_subgraph(graph, seeds_of(rng), LAYERS, key_of(rng))
    in_range(part.node_ids, relational.num_nodes)
    # Ends of edges are numbers of chosen nodes.
    in_range(part.graph.relational.nodes.cols, len(part.node_ids))
    in_range(part.graph.relational.nodes.rows, len(part.node_ids))


GRAPH = library(np.random.default_rng(0))


def test_a_sample_has_a_layer():
    with pytest.raises(ValueError, match="or a mapping by node type, got none"):
        hgt_subgraph(GRAPH, {"paper": [0]}, (), KEY)


def test_seeds_without_neighbours(rng):
    graph = library(rng)
    for seeds in ({}, {"venue": [1]}, {"paper": np.zeros(0, int)}):
        part = hgt_subgraph(graph, seeds, (2, 0), KEY)
        assert (np.asarray(part.node_ids) >= 0).sum() == ("venue" in seeds)
        assert int(part.graph.relational.nodes.indptr[-1]) == 0
