"""Sampling by relation and by node type: contents of blocks, and distributions of draws."""

from __future__ import annotations

import itertools
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_checks import (
    check_compiled_once,
    check_distribution,
    in_range,
    key_of,
    lumpy_edges,
    spoiled_field,
)

from jax_gnn import HeteroGraph, RelationalGraph
from jax_gnn.sampling import Blocks, sample_neighbors

KEY = jax.random.key(0)
NODES, EDGES, RELATIONS = 12, 90, 4
FANOUTS = {"all": (3, 4), "by relation": ({0: 2, 1: 1, 3: 4}, {2: 3, 1: 3}), "mixed": (3, {1: 2})}


def lumpy_relational(rng: np.random.Generator, **options) -> RelationalGraph:
    src, dst = lumpy_edges(rng, NODES, EDGES)
    rel = rng.integers(0, RELATIONS, EDGES)
    graph = RelationalGraph.from_triples(
        src, rel, dst, num_nodes=NODES, num_relations=RELATIONS, **options
    )
    return graph.pad(num_nodes=NODES + 3, num_edges=EDGES + 5)


def check_relational_blocks(blocks: Blocks, graph: RelationalGraph, seeds: np.ndarray) -> None:
    """Compare edges with the sampled graph's, sorted by relation, and pairs with the edges'."""
    ids = np.asarray(blocks.node_ids)
    valid = (seeds >= 0) & (seeds < graph.num_nodes)
    np.testing.assert_array_equal(ids[: len(seeds)], np.where(valid, seeds, -1))
    for block, next_block in itertools.pairwise((*blocks.graphs, None)):
        assert next_block is None or block.num_dst == next_block.num_src
        block.check()
        nodes = block.nodes
        size = int(nodes.indptr[-1])
        src, dst, rel, places = (
            np.asarray(array)[:size]
            for array in (nodes.cols, nodes.rows, block.edge_types, nodes.edge_ids)
        )
        assert (np.asarray(block.edge_types)[size:] == -1).all()
        np.testing.assert_array_equal(ids[src], np.asarray(graph.nodes.cols)[places])
        np.testing.assert_array_equal(ids[dst], np.asarray(graph.nodes.rows)[places])
        np.testing.assert_array_equal(rel, np.asarray(graph.edge_types)[places])
        assert (np.diff(dst * RELATIONS + rel) >= 0).all()
        # By source, edges ascend by destination, then relation.
        order = np.asarray(nodes.t_order)[:size]
        assert (np.diff((src * block.num_dst + dst)[order] * RELATIONS + rel[order]) >= 0).all()
        for pairs, number, endpoints in (
            (block.pair_src, None if block.from_pairs is None else block.from_pairs.cols, src),
            (block.pair_dst, None if block.to_pairs is None else block.to_pairs.rows, dst),
        ):
            if pairs is None:
                continue
            number = np.asarray(number)[:size]
            # Pairs name the node at their end of the edge.
            by_number = pairs.sorted_nodes if pairs.by_node else pairs.nodes
            np.testing.assert_array_equal(np.asarray(by_number)[number], endpoints)
            unique_pairs = np.unique(np.stack([rel, endpoints]), axis=1)
            np.testing.assert_array_equal(
                pairs.sizes, np.bincount(unique_pairs[0], minlength=RELATIONS)
            )


@pytest.mark.parametrize("parts", [(), ("from_pairs",), ("from_pairs", "to_pairs")])
@pytest.mark.parametrize(
    "options", [{}, {"replace": True}, {"tree": True}, {"disjoint": True}, {"capacity": (14, 20)}]
)
@pytest.mark.parametrize("fanouts", FANOUTS)
def test_blocks(rng, fanouts, options, parts):
    graph = lumpy_relational(rng, parts=parts)
    seeds, by_layer = rng.integers(-2, NODES + 5, 9), FANOUTS[fanouts]
    blocks = sample_neighbors(graph, seeds, by_layer, key_of(rng), **options)
    check_relational_blocks(blocks, graph, seeds)
    ids = np.asarray(blocks.node_ids)
    rows, rel = np.asarray(graph.nodes.rows), np.asarray(graph.edge_types)
    for block, fanout in zip(blocks.graphs, by_layer[::-1], strict=True):
        dst, relations = np.asarray(block.nodes.rows), np.asarray(block.edge_types)
        places = np.asarray(block.nodes.edge_ids)
        for i in range(block.num_dst):
            is_candidate = (rows == ids[i]) & (ids[i] >= 0)
            # Over all relations, or for each relation by itself.
            kinds = [(is_candidate, dst == i, fanout)]
            if isinstance(fanout, dict):
                kinds = [
                    (is_candidate & (rel == r), (dst == i) & (relations == r), fanout.get(r, 0))
                    for r in range(RELATIONS)
                ]
            for candidates, drawn, limit in kinds:
                want = min(candidates.sum(), limit)
                if options.get("replace"):
                    want = limit if candidates.any() else 0
                if "capacity" in options:
                    assert drawn.sum() <= want
                else:
                    assert drawn.sum() == want
                if not options.get("replace"):
                    assert len(np.unique(places[drawn])) == drawn.sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_relations_are_drawn_independently(rng, weighted):
    """Subsets of a relation's edges are equally likely, and independent of other relations."""
    rel = np.array([0, 0, 0, 1, 1, 1, 2])
    graph = RelationalGraph.from_triples(np.arange(7), rel, np.zeros(7, int), num_nodes=7)
    weights = np.array([1, 2, 3, 2, 2, 4, 1.0]) if weighted else None
    blocks = sample_neighbors(
        graph,
        np.zeros(20_000, int),
        ({0: 1, 1: 1},),
        key_of(rng),
        edge_probability=weights,
        tree=True,
    )
    drawn = np.asarray(blocks.edge_ids[0]).reshape(-1, 2)
    counts = np.zeros((7, 7), int)
    np.add.at(counts, tuple(drawn.T), 1)
    # Relation 0 has the first draw of each row, relation 1 the second.
    share = np.ones(7) if weights is None else weights
    want = np.outer(share * (rel == 0), share * (rel == 1))
    check_distribution(counts, want)


@pytest.mark.parametrize("replace", [False, True])
def test_self_relation_comes_in_addition(rng, replace):
    """Other edges equal those drawn from the graph without a self-relation, to the bit."""
    src, dst = lumpy_edges(rng, NODES, EDGES)
    rel, key = rng.integers(0, RELATIONS - 1, EDGES), key_of(rng)
    plain, looped = (
        RelationalGraph.from_triples(
            src, rel, dst, NODES, RELATIONS - 1, self_relation=has_loops, parts=()
        ).pad(num_nodes=NODES + 3, num_edges=EDGES + NODES + 5)
        for has_loops in (False, True)
    )
    seeds = rng.integers(-2, NODES + 5, 9)
    blocks = sample_neighbors(looped, seeds, (3, 4), key, replace=replace)
    check_relational_blocks(blocks, looped, seeds)
    block = blocks.graphs[-1]
    assert block.self_relation
    dst, src, kind = (np.asarray(x) for x in (block.nodes.rows, block.nodes.cols, block.edge_types))
    # Each valid seed has its loop, and no other node has one.
    loops = kind == RELATIONS - 1
    np.testing.assert_array_equal(
        np.sort(dst[loops]), np.flatnonzero((seeds >= 0) & (seeds < NODES))
    )
    ids = np.asarray(blocks.node_ids)
    np.testing.assert_array_equal(ids[src[loops]], ids[dst[loops]])
    want = sample_neighbors(plain, seeds, (3, 4), key, replace=replace)
    plain_block, valid = want.graphs[-1], np.asarray(want.graphs[-1].nodes.rows) >= 0
    drawn = ~loops & (dst >= 0)
    for name in ("rows", "edge_ids"):
        actual = np.asarray(getattr(block.nodes, name))[drawn]
        expected = np.asarray(getattr(plain_block.nodes, name))[valid]
        if name == "edge_ids":  # places in both graphs, as places in the input
            actual, expected = (
                np.asarray(looped.nodes.edge_ids)[actual],
                np.asarray(plain.nodes.edge_ids)[expected],
            )
        np.testing.assert_array_equal(actual, expected)
    # A mapping draws of its relations only.
    partial = sample_neighbors(looped, seeds, ({0: 2},), key)
    assert not (np.asarray(partial.graphs[0].edge_types) == RELATIONS - 1).any()
    # Beside times, edges of the self relation have none, whatever their entries say.
    times, limits = rng.integers(9, size=looped.num_edges), rng.integers(9, size=len(seeds))
    blocks = sample_neighbors(
        looped, seeds, (3,), key, replace=replace, edge_time=times, seed_time=limits
    )
    block = blocks.graphs[0]
    rows, places = np.asarray(block.nodes.rows), np.asarray(block.nodes.edge_ids)
    is_self = np.asarray(block.edge_types) == RELATIONS - 1
    valid = rows >= 0
    drawn = valid & ~is_self
    assert (times[places[drawn]] <= limits[rows[drawn]]).all()
    is_node = (seeds >= 0) & (seeds < NODES)
    np.testing.assert_array_equal(np.bincount(rows[valid & is_self], minlength=9), is_node)
    types, ends = np.asarray(looped.edge_types), np.asarray(looped.nodes.rows)
    for i, (seed, limit) in enumerate(zip(np.asarray(seeds).tolist(), limits, strict=True)):
        count = ((ends == seed) & (types < RELATIONS - 1) & (times <= limit)).sum()
        assert (rows[drawn] == i).sum() == (3 if replace and count else min(count, 3))


def test_node_types_of_blocks(rng):
    """Blocks of numpy and of JAX have types of sources, and gather features by type."""
    sizes = {"a": 5, "b": 0, "c": 8}
    edges = {
        (src, "to", dst): [rng.integers(0, sizes[of], 20) for of in (src, dst)]
        for src, dst in (("a", "c"), ("c", "a"))
    }
    graph = HeteroGraph.from_edges(edges, sizes)
    seeds = {"c": rng.integers(-1, 9, 4), "a": rng.integers(0, 5, 2)}
    blocks = sample_neighbors(graph, seeds, (3, 2), key_of(rng))
    assert blocks.node_type_sizes == (5, 0, 8)
    assert blocks.node_type_names == ("a", "b", "c")
    ids = np.asarray(blocks.node_ids)
    want = np.where(ids < 0, -1, np.where(ids < 5, 0, 2))
    np.testing.assert_array_equal(blocks.node_types, want)
    starts, places = (0, 5, 5), blocks.places_of_types()
    for kind, (start, type_places) in enumerate(zip(starts, places, strict=True)):
        np.testing.assert_array_equal(type_places, np.where(want == kind, ids - start, -1))
    features = {name: rng.normal(size=(size, 2)) for name, size in sizes.items()} | {"c": None}
    # Blocks are pytrees: the same on the host.
    hosted = jax.tree.map(np.asarray, blocks)
    for sample in (blocks, hosted):
        rows = sample.node_values(features)
        assert rows["c"] is None and rows["a"].shape == (
            5,
            2,
        )  # a row for each node, as these are fewer than sources
        with pytest.raises(ValueError, match=r"values\['b'\] must have .* or of 0 nodes, .* got 1"):
            sample.source_rows({"a": rows["a"], "b": rows["a"][:1], "c": rows["a"]})
        rows = sample.source_rows(rows | {"c": ids})
        np.testing.assert_array_equal(rows["c"], ids)
        np.testing.assert_allclose(
            rows["a"], np.where(want[:, None] == 0, features["a"][np.clip(ids, 0, 4)], 0), rtol=1e-6
        )
        assert not np.asarray(rows["b"])[want != 1].any()
    for wrong in ({"a": features["a"]}, features | {"d": None}):
        with pytest.raises(ValueError, match=r"values must be by the types \('a', 'b', 'c'\), got"):
            blocks.node_values(wrong)
    untyped = sample_neighbors(lumpy_relational(rng), [1], (2,), KEY)
    assert untyped.node_types is None
    (type_places,) = untyped.places_of_types()
    np.testing.assert_array_equal(type_places, untyped.node_ids)
    # Static fields survive serialisation.
    serialized = jax.export.export(jax.jit(lambda b: b.node_types))(blocks).serialize()
    types = jax.export.deserialize(serialized).call(blocks)
    np.testing.assert_array_equal(types, want)


def test_values_by_type_in_any_order(rng):
    """``jax.jit`` sorts the keys of dicts, so their order does not count for values."""
    sizes = {"user": 5, "item": 40}
    edges = {("user", "buys", "item"): [rng.integers(0, size, 60) for size in sizes.values()]}
    blocks = sample_neighbors(
        HeteroGraph.from_edges(edges, sizes, inverse=True), {"item": [3, 7]}, (3, 2), KEY
    )
    features = {name: rng.normal(size=(size, 2)) for name, size in sizes.items()}

    def select(blocks, features):
        rows = blocks.node_values(features)
        return rows, blocks.source_rows(dict(reversed(rows.items())))

    expected = select(blocks, features)
    assert [*expected[0]] == [*expected[1]] == ["user", "item"]
    features = dict(reversed(features.items()))
    for function in (select, jax.jit(select)):
        jax.tree.map(np.testing.assert_array_equal, function(blocks, features), expected)


def test_one_program(rng):
    def call(graph, seeds, key):
        return sample_neighbors(graph, seeds, FANOUTS["by relation"], key)

    check_compiled_once(
        call, lambda: (lumpy_relational(rng, parts=()), rng.integers(-1, NODES, 6), key_of(rng))
    )


def test_times(rng):
    """Times apply over all relations; blocks are sorted by relation nevertheless."""
    graph = lumpy_relational(rng)
    # Fanouts above all degrees take every edge that is early enough.
    times, seeds = rng.integers(0, 9, graph.num_edges), rng.integers(-1, NODES, 6)
    limits = rng.integers(0, 9, 6)
    blocks = sample_neighbors(
        graph, seeds, (99, 99), key_of(rng), edge_time=times, seed_time=limits
    )
    check_relational_blocks(blocks, graph, seeds)
    places, rows = np.asarray(blocks.edge_ids[-1]), np.asarray(blocks.graphs[-1].nodes.rows)
    for i, seed in enumerate(seeds):
        allowed = (np.asarray(graph.nodes.rows) == seed) & (times <= limits[i]) & (seed >= 0)
        np.testing.assert_array_equal(np.sort(places[rows == i]), np.flatnonzero(allowed))


@pytest.mark.parametrize("name", ["indptr", "cols", "edge_types"])
def test_corrupt_graphs(rng, name):
    graph = spoiled_field(rng, lumpy_relational(rng, parts=()), name)
    for fanouts in FANOUTS.values():
        blocks = sample_neighbors(graph, np.arange(-1, NODES), fanouts, key_of(rng))
        in_range(blocks.node_ids, graph.num_nodes)
        for block in blocks.graphs:
            in_range(block.nodes.edge_ids, graph.num_edges)
            in_range(block.nodes.cols, block.num_src)
            in_range(block.edge_types, RELATIONS)


# --- Types of nodes ------------------------------------------------------------------------------

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def library(rng: np.random.Generator) -> HeteroGraph:
    edges = {
        WRITES: np.stack([rng.integers(0, 5, 20), rng.integers(0, 8, 20)]),
        CITES: rng.integers(0, 8, (2, 30)),
    }
    return HeteroGraph.from_edges(edges, {"author": 5, "paper": 8}, inverse=True)


def test_types_of_nodes(rng):
    """Seeds by type and fanouts by name equal those of the joined nodes."""
    graph, key = library(rng), key_of(rng)
    papers, authors = rng.integers(-1, 9, 5), rng.integers(-1, 6, 4)
    fanouts = ({WRITES: 2, ("paper", "rev_writes", "author"): 3}, 2)
    blocks = sample_neighbors(graph, {"paper": papers, "author": authors}, fanouts, key)
    # Papers follow the five authors, whatever the order of the mapping, whose keys jit sorts.
    joined = np.r_[
        np.where(authors >= 5, -1, authors), np.where((papers < 0) | (papers >= 8), -1, papers + 5)
    ]
    numbers = ({0: 2, graph.relation(("paper", "rev_writes", "author")): 3}, 2)
    want = sample_neighbors(graph.relational, joined, numbers, key)
    jax.tree.map(np.testing.assert_array_equal, blocks, want)
    assert blocks.graphs[0].relation_names == graph.relational.relation_names
    np.testing.assert_array_equal(blocks.node_ids[:9], joined)


GRAPH = library(np.random.default_rng(0))


@pytest.mark.parametrize("on_host", [False, True])
def test_no_edges_and_no_seeds(on_host):
    graph = RelationalGraph.from_triples([], [], [], num_nodes=3, num_relations=2)
    key = np.array([0, 1], np.uint32) if on_host else jax.random.key(0)
    graph = jax.tree.map(np.asarray, graph) if on_host else graph
    for seeds in (np.array([0, 2], np.int32), np.zeros(0, np.int32)):
        times = {"edge_time": np.zeros(0), "seed_time": np.ones(len(seeds))}
        for fanout, options in ((2, times), ({0: 1, 1: 2}, {})):
            blocks = sample_neighbors(
                graph, seeds if on_host else jnp.asarray(seeds), (fanout,), key, **options
            )
            ids = np.asarray(blocks.node_ids)
            np.testing.assert_array_equal(ids[ids >= 0], seeds)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"fanouts": {CITES: 2}}, TypeError, "fanouts must be a sequence with a positive integer"),
        (
            {"edge_time": np.zeros(100, int), "seed_time": [0], "fanouts": ({CITES: 1},)},
            ValueError,
            "fanouts must be numbers over all relations where edge_time is given",
        ),
    ],
)
def test_bad_arguments(changes, error, message):
    arguments = {"seeds": {"paper": [0]}, "fanouts": (2,), "key": KEY}
    with pytest.raises(error, match=re.escape(message)):
        sample_neighbors(GRAPH, **{**arguments, **changes})
