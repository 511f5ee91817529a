"""Splits of edges, pairs without an edge, and facts as text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_datasets_relational import write

from jax_gnn import Graph, datasets
from jax_gnn.datasets import RelationalDataset
from jax_gnn.datasets._edges import Pairs


def pairs_of(edges: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(*edges.tolist(), strict=True))


def multigraph(rng: np.random.Generator, num_nodes: int = 40, num_edges: int = 150) -> Graph:
    """Draw a graph with repeated edges, self-loops and isolated nodes."""
    src, dst = rng.integers(0, num_nodes - 3, (2, num_edges))
    src, dst = np.append(src, [*src[:20], 1, 1]), np.append(dst, [*dst[:20], 1, 1])
    return Graph.from_edges(src, dst, num_nodes=num_nodes)


@pytest.mark.parametrize("undirected", [True, False])
def test_pairs_are_numbered(undirected):
    for num_nodes in (1, 2, 5, 9):
        pairs = Pairs(num_nodes, undirected)
        nodes = pairs.nodes(np.arange(pairs.count))
        assert len({*pairs_of(nodes)}) == pairs.count
        assert (nodes[0] < nodes[1] if undirected else nodes[0] != nodes[1]).all()
        np.testing.assert_array_equal(
            pairs.numbers(*nodes.astype(np.int64)), np.arange(pairs.count)
        )
    large = Pairs(2**31 - 1, undirected)
    # Where the root of a number is rounded: at the first and last pair of a node.
    root = np.arange(2, 2**31 - 1, 2**20)
    corners = root * (root - 1) // 2
    numbers = np.concatenate([corners, corners - 1, [large.count - 1]])
    np.testing.assert_array_equal(large.numbers(*large.nodes(numbers).astype(np.int64)), numbers)


@pytest.mark.parametrize("undirected", [True, False])
def test_split_edges(undirected, rng):
    graph = multigraph(rng)
    graph = graph.symmetrized() if undirected else graph
    split = datasets.split_edges(graph, valid=0.1, test=0.2, seed=3)
    edges = {*zip(*(column.tolist() for column in graph.edges()), strict=True)}
    proper = {(min(e), max(e)) if undirected else e for e in edges if e[0] != e[1]}
    parts = [pairs_of(part) for part in (split.train, split.valid, split.test)]
    count = len(proper)
    # An edge and its reverse are in one part, which may have one edge more for that.
    sizes = [len(part) for part in parts[1:]]
    assert all(0 <= size - int(count * a) <= 1 for size, a in zip(sizes, (0.1, 0.2), strict=True))
    part_of = {pair: i for i, part in enumerate(parts) for pair in part}
    assert all(part_of.get((v, u), i) == i for (u, v), i in part_of.items())
    together = [*parts[0], *parts[1], *parts[2]]
    assert len(together) == count and {*together} == proper
    # Negatives are distinct, and no edges of the whole graph.
    negatives = pairs_of(split.valid_negatives) + pairs_of(split.test_negatives)
    assert [split.valid_negatives.shape, split.test_negatives.shape] == [
        split.valid.shape,
        split.test.shape,
    ]
    assert len({*negatives}) == len(negatives) and not {*negatives} & edges
    assert all(u < v if undirected else u != v for u, v in negatives)
    # Graphs for a model grow by the validation edges, and keep self-loops.
    seen: set[Any] = {(u, v) for u, v in edges if u == v}
    for visible_graph, part in ((split.train_graph, parts[0]), (split.test_graph, parts[1])):
        seen |= {*part} | {(v, u) for u, v in part if undirected}
        assert sorted(zip(*(e.tolist() for e in visible_graph.edges()), strict=True)) == sorted(
            seen
        )
        assert visible_graph.num_nodes == graph.num_nodes
    again = datasets.split_edges(graph, valid=0.1, test=0.2, seed=3)
    np.testing.assert_array_equal(again.test, split.test)
    reseeded = datasets.split_edges(graph, valid=0.1, test=0.2, seed=4)
    assert not np.array_equal(reseeded.test, split.test)


def test_negative_edges_are_all_that_are_left():
    """All pairs without an edge are drawn, with equal probability."""
    path = Graph.from_edges([0, 1, 2], [1, 2, 3]).symmetrized()
    assert {*pairs_of(datasets.negative_edges(path, 3, seed=0))} == {(0, 2), (0, 3), (1, 3)}
    directed = datasets.negative_edges(path, 6, seed=0, undirected=False)
    assert {*pairs_of(directed)} == {(0, 2), (2, 0), (0, 3), (3, 0), (1, 3), (3, 1)}
    drawn = [pairs_of(datasets.negative_edges(path, 1, seed=s))[0] for s in range(600)]
    # All pairs without an edge are drawn, about equally often.
    counts = [drawn.count(pair) for pair in ((0, 2), (0, 3), (1, 3))]
    assert sum(counts) == 600 and min(counts) > 150
    assert datasets.negative_edges(path, 0, seed=0).shape == (2, 0)


@pytest.mark.parametrize(
    ("edges", "options", "message"),
    [
        ([(0, 1), (1, 0), (1, 2)], {"undirected": True}, "that from 1 to 2, has no reverse"),
        ([(0, 1)] * 40, {}, "graph has 1 edges, of which valid=0.05 takes none"),
        ([(0, 1)], {"valid": 0, "test": 1.0}, "their sum below 1, got valid=0, test=1.0"),
        ([(0, 0)], {"valid": 0, "test": 0}, "graph has 0 edges, and so none to train on"),
        (
            [(u, v) for u in range(6) for v in range(6)],
            {"valid": 0.2},
            "graph has 0 pairs of different nodes without an edge, and 4 are wanted",
        ),
    ],
)
def test_split_edges_refuses(edges, options, message):
    with pytest.raises(ValueError, match=message):
        datasets.split_edges(Graph.from_edges(edges), seed=0, **options)


def relational(src, rel, dst, num_nodes: int) -> RelationalDataset:
    return RelationalDataset(
        name="facts",
        num_nodes=num_nodes,
        num_relations=int(np.max(rel)) + 1,
        src=np.asarray(src),
        rel=np.asarray(rel),
        dst=np.asarray(dst),
        y=np.full(num_nodes, -1),
    )


def test_with_split_edges(rng):
    """Relation 1 is the inverse of 0, 2 is symmetric; 3 has one edge, the only one of a node."""
    src, dst = rng.integers(0, 20, (2, 300))
    symmetric = rng.integers(0, 20, (2, 60))
    src = np.concatenate([src, dst, *symmetric, [0]])
    dst = np.concatenate([dst, src[:300], *symmetric[::-1], [20]])
    rel = np.repeat([0, 1, 2, 3], [300, 300, 120, 1])
    dataset = relational(src, rel, dst, 21)
    split = datasets.with_split_edges(dataset, valid=0.1, test=0.2, seed=0)
    parts = [split.train_edges, split.val_edges, split.test_edges]
    assert all(part is not None for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(dataset.num_edges))  # type: ignore[arg-type]
    for part, share in zip(parts[1:], (0.1, 0.2), strict=True):
        assert part is not None and abs(len(part) - share * dataset.num_edges) <= 2
    part_of = np.empty(dataset.num_edges, int)
    for number, part in enumerate(parts):
        part_of[part] = number
    facts = zip(split.src.tolist(), split.rel.tolist(), split.dst.tolist(), strict=True)
    of_fact = dict(zip(facts, part_of.tolist(), strict=True))
    inverse = {0: 1, 1: 0, 2: 2}
    assert all(of_fact[d, inverse[r], s] == p for (s, r, d), p in of_fact.items() if r < 3)
    assert of_fact[0, 3, 20] == 0
    again = datasets.with_split_edges(dataset, valid=0.1, test=0.2, seed=0)
    np.testing.assert_array_equal(again.test_edges, split.test_edges)
    assert datasets.with_split_edges(dataset, valid=0, seed=0).val_edges.size == 0  # type: ignore[union-attr]
    few = relational([0, 1], [0, 0], [1, 0], 2)
    with pytest.raises(ValueError, match=r"'facts' has 2 edges, of which valid=0.1 takes none"):
        datasets.with_split_edges(few, seed=0)
    with pytest.raises(ValueError, match=r"2 edges, which are too few facts for valid=0.5 and te"):
        datasets.with_split_edges(few, valid=0.5, test=0, seed=0)


TEXT = {
    "train.txt": "Zürich\tin\tCH\r\nBern\tin\tCH\nBern\tin\tCH\n\nGenf\tnear\tFR\n",
    "valid.txt": "Genf\tin\tCH\n",
    "test.txt": "FR\tnear\tCH\n",
}


def facts_of(dataset: RelationalDataset, part: str) -> set[tuple[str, str, str]]:
    names, relations = dataset.node_names, dataset.relation_names
    assert names and relations
    columns = (getattr(dataset, column)[getattr(dataset, part)] for column in ("src", "rel", "dst"))
    return {
        (names[s], relations[r], names[d])
        for s, r, d in zip(*(column.tolist() for column in columns), strict=True)
    }


def test_load_triples(tmp_path):
    dataset = datasets.load_relational(write(tmp_path, TEXT))
    assert dataset.node_names == ("Zürich", "CH", "Bern", "Genf", "FR")
    assert dataset.relation_names == ("in", "near")
    for part, name in (("train", "train"), ("val", "valid"), ("test", "test")):
        lines = {tuple(line.split("\t")) for line in TEXT[f"{name}.txt"].splitlines() if line}
        assert facts_of(dataset, f"{part}_edges") == lines
    assert datasets.load_triples(tmp_path / "test.txt").num_edges == 5
    relations = {"relations.dict": "1\tin\n0\tnear\n"}
    nodes = {"entity2id.txt": "6\nCH\t0\nBern\t1\nGenf\t2\nFR\t3\nnowhere\t5\nZürich\t4\n"}
    numbered = datasets.load_triples(write(tmp_path, relations | nodes))
    assert numbered.relation_names == ("near", "in")
    assert numbered.node_names == ("CH", "Bern", "Genf", "FR", "Zürich", "nowhere")
    assert facts_of(numbered, "train_edges") == facts_of(dataset, "train_edges")
    for name in ("valid.txt", "test.txt"):
        (tmp_path / name).unlink()
    alone = datasets.load_triples(tmp_path / "train.txt")
    assert alone.num_edges == 3 and alone.train_edges is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train.txt": "a b c\n"}, r"train\.txt: line 1: expected source, relation and destinat"),
        ({"train.txt": "a\t\tc\n"}, r"line 1: .* separated by tabs, got 'a\\t\\tc'"),
        ({"train.txt": "\n"}, r"train\.txt: the file has no facts"),
        ({"test.txt": "Bern\tin\tCH\n"}, r"test_edges: edge \(Bern, in, CH\) is in train_edges"),
        ({"entities.dict": "0\ta\n2\tb\n"}, "number 1 has no name, but number 2 has one"),
        ({"entities.dict": "0\ta\n0\tb\n"}, "line 2: number 0 is there twice"),
        ({"entities.dict": "0\ta\n1\ta\n"}, "the name 'a' is there twice"),
        ({"entities.dict": "0\ta\tb\n"}, "line 1: expected a name and its number"),
        ({"relations.dict": "0\tin\n"}, "line 5: 'near' is not in the dictionary of relations"),
    ],
)
def test_load_triples_refuses(files, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        datasets.load_triples(write(tmp_path, TEXT | files))


def test_load_triples_misses_files(tmp_path):
    write(tmp_path, TEXT)
    (tmp_path / "valid.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"valid\.txt does not exist; expected valid\.txt"):
        datasets.load_triples(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist; expected a folder"):
        datasets.load_triples(tmp_path / "nowhere")
