"""Negative edges, blocks for links, and walks: exact distributions and valid ids."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_checks import (
    check_distribution,
    check_one_program,
    counts_of,
    key_of,
    lumpy_edges,
    lumpy_graph,
    spoiled,
)

from jax_gnn import Graph, RelationalGraph
from jax_gnn.sampling import (
    corrupted_edges,
    link_blocks,
    negative_edges,
    random_walk,
    sample_neighbors,
)
from jax_gnn.sampling._negatives import _ticket_shares
from jax_gnn.sampling._search import distinct, edge_runs, has_edge

KEY = jax.random.key(0)
NODES, EDGES = 9, 40


def pairs(src, dst, size: int) -> np.ndarray:
    """Return how often each pair occurs; padding is not counted."""
    src, dst = np.ravel(src), np.ravel(dst)
    assert ((src < 0) == (dst < 0)).all()
    counts = np.zeros((size, size), int)
    np.add.at(counts, (src[src >= 0], dst[src >= 0]), 1)
    return counts


def powers(degrees: np.ndarray, power: float) -> np.ndarray:
    return np.where(degrees > 0, np.maximum(degrees, 1.0) ** power, 0 if power else 1)


# --- Look-up of edges ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "sorted", "relational", "padded"])
def test_edge_lookup(rng, kind):
    src, dst = lumpy_edges(rng, NODES, EDGES)
    rel = rng.integers(0, 3, EDGES)
    types = None
    if kind == "relational":
        relational = RelationalGraph.from_triples(src, rel, dst, num_nodes=NODES, num_relations=3)
        graph, types = relational.nodes, relational.edge_types
    elif kind == "sorted":
        order = np.argsort(dst, kind="stable")
        src, dst = src[order], dst[order]
        graph = Graph.from_sorted(src, dst, num_nodes=NODES)
    else:
        graph = Graph.from_edges(src, dst, num_nodes=NODES)
        if kind == "padded":
            graph = graph.pad(num_nodes=NODES + 2, num_edges=EDGES + 3)
    # All triples of ids, padding included.
    grid = np.stack(np.meshgrid(np.arange(-1, NODES), np.arange(-1, NODES), np.arange(-1, 3)))
    a, b, r = jnp.asarray(grid.reshape(3, -1), jnp.int32)
    want = ((src == a[:, None]) & (dst == b[:, None])).astype(int)
    if types is not None:
        want &= rel == r[:, None]
    relations = None if types is None else r
    first, counts = map(np.asarray, edge_runs(graph, types, a, b, relations))
    np.testing.assert_array_equal(counts, want.sum(1))
    np.testing.assert_array_equal(has_edge(graph, types, a, b, relations), want.any(1))
    # A run's edges are those with these ends, as places in the input.
    places = np.asarray(graph.edge_ids)[np.asarray(graph.t_order)]
    for number in np.flatnonzero(counts):
        assert want[number, places[first[number] : first[number] + counts[number]]].all()


def test_distinct_ids(rng):
    for count in (0, 1, 30):
        ids = rng.integers(-1, 12, count)
        distinct_ids, places = map(
            np.asarray, distinct(jnp.asarray(ids, jnp.int32), min(count, 12))
        )
        want = np.unique(ids[ids >= 0])
        np.testing.assert_array_equal(distinct_ids[: len(want)], want)
        assert (distinct_ids[len(want) :] == -1).all()
        np.testing.assert_array_equal(places, np.where(ids < 0, -1, np.searchsorted(want, ids)))


# --- Negative edges ------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0, 0.75, 1])
@pytest.mark.parametrize("exclude", [False, True])
def test_negative_edges_have_their_distribution(rng, power, exclude):
    graph = lumpy_graph(rng, NODES, EDGES)
    counts = counts_of(graph, NODES)
    options = {"degree_power": power, "exclude_edges": exclude}
    draw = jax.jit(
        lambda graph, key, num_nodes: negative_edges(
            graph, 4_000, key, num_nodes=num_nodes, **options
        )
    )
    src, dst = draw(graph, key_of(rng), NODES)
    # Ends are independent, by a power of the out- and of the in-degree.
    weights = np.outer(powers(counts.sum(1), power), powers(counts.sum(0), power))
    if exclude:
        weights[counts > 0] = 0
    drawn = pairs(src, dst, NODES)
    assert drawn.sum() > 3_000 or not weights.any()
    check_distribution(drawn, weights)


def test_shares_of_powers_of_degrees(rng):
    """Shares times their acceptance rates are in proportion to the powers."""
    degrees = rng.choice([0, 1, 2, 30, 5_000, 10**6], 200)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    starts, rates = map(np.asarray, _ticket_shares(jnp.asarray(indptr), int(indptr[-1]), 0.75))
    # Shares fill 31 bits within a factor of 8.
    shares = np.diff(starts.astype(np.int64))
    assert 2**28 < starts[-1] < 2**31 and ((rates >= 0) & (rates <= 1)).all()
    want = powers(degrees, 0.75)
    np.testing.assert_allclose(
        shares * rates.astype(float) * want.sum() / starts[-1], want, rtol=1e-5
    )


@pytest.mark.parametrize("power", [0, 0.75])
def test_negative_edges_of_relations(rng, power):
    """Pairs are of the relation's node types, and no edges of that relation."""
    sizes = {"a": 5, "b": 4}
    edges = {
        ("a", "to", "b"): (rng.integers(0, 5, 12), rng.integers(0, 4, 12)),
        ("b", "of", "b"): rng.integers(0, 4, (2, 6)),
        ("b", "in", "a"): (rng.integers(0, 4, 6), rng.integers(0, 5, 6)),
    }
    graph = RelationalGraph.from_edge_dict(edges, sizes, self_relation=True)
    graph = graph.pad(num_nodes=11, num_edges=40)
    # Nodes of the padding, 9 and 10, are never drawn.
    options = {"degree_power": power, "exclude_edges": True, "num_nodes": 9}
    draw = jax.jit(lambda graph, key: negative_edges(graph, 3_000, key, **options))
    src, dst = map(np.asarray, draw(graph, key_of(rng)))
    assert src.shape == dst.shape == (4, 3_000)
    out_degrees, in_degrees = (
        np.bincount(ids, minlength=9) for ids in (graph.triples()[0], graph.triples()[2])
    )
    ranges = [(slice(0, 5), slice(5, 9)), (slice(5, 9),) * 2, (slice(5, 9), slice(0, 5))]
    for relation, (sources, targets) in enumerate([*ranges, (slice(0, 9),) * 2]):
        weights = np.zeros((9, 9))
        weights[sources, targets] = np.outer(powers(out_degrees, power), powers(in_degrees, power))[
            sources, targets
        ]
        s, r, d = graph.triples()
        weights[s[r == relation], d[r == relation]] = 0
        check_distribution(pairs(src[relation], dst[relation], 9), weights)


def test_negative_edges_of_a_bipartite_graph(rng):
    src, dst = rng.integers(0, 4, 15), rng.integers(0, 7, 15)
    graph = Graph.from_edges(src, dst, num_src=5, num_dst=8)
    drawn = negative_edges(graph, 3_000, key_of(rng), exclude_edges=True, num_nodes=(4, 7))
    weights = np.ones((4, 7))
    weights[src, dst] = 0
    counts = np.zeros((4, 7), int)
    np.add.at(counts, tuple(map(np.asarray, drawn)), 1)
    check_distribution(counts, weights)


def test_negatives_that_do_not_exist_are_padding():
    all_pairs = np.indices((3, 3)).reshape(2, -1)
    graph = Graph.from_edges(*all_pairs, num_nodes=3)
    for result in (
        negative_edges(graph, 5, KEY, exclude_edges=True),
        negative_edges(Graph.from_edges([], [], num_nodes=4), 5, KEY, degree_power=1),
        negative_edges(Graph.from_edges([], [], num_nodes=0), 5, KEY),
        negative_edges(graph, 5, KEY, num_nodes=0),
        corrupted_edges(graph, [0, 1], [1, 2], 3, KEY, exclude_edges=True),
        corrupted_edges(graph, [-1, 1, 3], [1, -5, 0], 3, KEY),
    ):
        assert all((np.asarray(ids) == -1).all() for ids in result)
    assert negative_edges(graph, 0, KEY)[0].shape == (0,)
    assert corrupted_edges(graph, [], [], 3, KEY)[0].shape == (0, 3)
    no_relations = RelationalGraph.from_triples([], [], [], num_nodes=3, num_relations=0)
    assert negative_edges(no_relations, 2, KEY)[0].shape == (0, 2)


@pytest.mark.parametrize("side", ["src", "dst", "both"])
@pytest.mark.parametrize("power", [0, 0.75, 1])
def test_corrupted_edges_have_their_distribution(rng, side, power):
    graph = lumpy_graph(rng, NODES, EDGES)
    counts = counts_of(graph, NODES)
    src, dst = (ids[[3, EDGES // 2 - 1, 0]] for ids in graph.edges())
    links = np.append(src, -1), np.append(dst, 2)
    options = {"side": side, "degree_power": power, "exclude_edges": True}
    options |= {"num_nodes": NODES}
    draw = jax.jit(lambda graph, key: corrupted_edges(graph, *links, 1_000, key, **options))
    negatives = np.asarray(draw(graph, key_of(rng)))
    assert (negatives[:, -1] == -1).all()
    # The distribution over (source, destination), for each given edge.
    for number, (s, d) in enumerate(zip(src, dst, strict=True)):
        heads = powers(counts.sum(1), power) * (counts[:, d] == 0)
        tails = powers(counts.sum(0), power) * (counts[s] == 0)
        weights = np.zeros((NODES, NODES))  # a coin for each draw, also for rejected ones
        for column, degrees, tosses in (
            (heads, counts.sum(1), side != "dst"),
            (tails, counts.sum(0), side != "src"),
        ):
            share = column / powers(degrees, power).sum() * tosses
            if column is heads:
                weights[:, d] += share
            else:
                weights[s] += share
        check_distribution(pairs(*negatives[:, number], NODES), weights)


def test_corrupted_edges_where_one_side_has_no_negatives():
    # Every pair (0, x) is an edge: only sources can be drawn.
    star = Graph.from_edges(np.zeros(50, int), np.arange(50), num_nodes=50)
    src, dst = corrupted_edges(star, [0], [1], 1000, KEY, exclude_edges=True)
    assert (np.asarray(src) > 0).all() and (np.asarray(dst) == 1).all()


def test_corrupted_triples(rng):
    src, dst = lumpy_edges(rng, NODES, EDGES)
    rel = rng.integers(0, 2, EDGES)
    graph = RelationalGraph.from_triples(src, rel, dst, num_nodes=NODES, num_relations=2)
    links = src[:4], dst[:4]
    negatives = corrupted_edges(
        graph, *links, 3_000, key_of(rng), rel=[*rel[:3], -1], side="dst", exclude_edges=True
    )
    assert (np.asarray(negatives)[:, 3] == -1).all()
    for number in range(3):
        weights = np.zeros((NODES, NODES))
        weights[src[number]] = 1
        same = rel == rel[number]
        weights[src[same], dst[same]] = 0
        check_distribution(pairs(*np.asarray(negatives)[:, number], NODES), weights)


# --- Blocks for links ----------------------------------------------------------------------------


@pytest.mark.parametrize("exclude", ["edges", "both", None])
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"capacity": [12, 14]}], ids=str)
def test_link_blocks_equal_those_of_a_graph_without_the_edges(rng, exclude, options):
    """Blocks are equal to the bit, except for the places of edges."""
    src, dst = lumpy_edges(rng, NODES, EDGES)
    padded = {"num_nodes": NODES + 3, "num_edges": EDGES + 5}
    graph = Graph.from_edges(src, dst, num_nodes=NODES).pad(**padded)
    chosen = rng.integers(0, EDGES, 4)
    heads = np.r_[src[chosen], -1, rng.integers(0, NODES, 2)]
    tails = np.r_[dst[chosen], 2, rng.integers(0, NODES, 2)]
    key = key_of(rng)
    blocks, src_place, dst_place = jax.jit(
        lambda graph: link_blocks(graph, heads, tails, (3, 2), key, exclude=exclude, **options)
    )(graph)
    # Reference: remove the edges from the graph, and sample that.
    excluded = np.zeros(EDGES, bool)
    for s, d in zip(heads, tails, strict=True):
        if exclude:
            excluded |= (src == s) & (dst == d)
        if exclude == "both":
            excluded |= (src == d) & (dst == s)
    smaller = Graph.from_edges(src[~excluded], dst[~excluded], num_nodes=NODES).pad(**padded)
    seeds = blocks.node_ids[: blocks.num_seeds]
    sample = jax.jit(lambda graph, seeds: sample_neighbors(graph, seeds, (3, 2), key, **options))
    want = sample(smaller, seeds)
    # Maps places in the smaller graph to places in the whole one.
    places = np.flatnonzero(~excluded[np.asarray(graph.edge_ids)[:EDGES]])
    places = np.append(places, [-1] * (EDGES + 6 - len(places)))
    np.testing.assert_array_equal(blocks.node_ids, want.node_ids)
    assert bool(blocks.overflow) == bool(want.overflow)
    for block, expected in zip(blocks.graphs, want.graphs, strict=True):
        np.testing.assert_array_equal(block.edge_ids, places[np.asarray(expected.edge_ids)])
        for name in ("indptr", "rows", "cols", "t_indptr", "t_rows", "t_cols", "t_order"):
            np.testing.assert_array_equal(getattr(block, name), getattr(expected, name))
    valid = heads >= 0
    for nodes, place in ((heads, src_place), (tails, dst_place)):
        np.testing.assert_array_equal(np.asarray(place)[~valid], -1)
        np.testing.assert_array_equal(np.asarray(seeds)[np.asarray(place)[valid]], nodes[valid])
    # Seeds are the distinct ends, ascending.
    valid_seeds = np.asarray(seeds)[np.asarray(seeds) >= 0]
    np.testing.assert_array_equal(valid_seeds, np.unique([heads[valid], tails[valid]]))


@pytest.mark.parametrize("exclude", ["edges", "both", None])
@pytest.mark.parametrize("fanouts", [(3, 2), ({0: 2, 2: 1, 4: 9}, {3: 1, 1: 2})], ids=str)
def test_link_blocks_of_relations(rng, exclude, fanouts):
    """Blocks equal those of a graph without the given triples and their inverses."""
    src, dst = lumpy_edges(rng, NODES, EDGES)
    sizes = {"num_nodes": NODES, "num_relations": 2, "inverse": True, "self_relation": True}
    rel = rng.integers(0, 2, EDGES)

    def build(keep) -> RelationalGraph:
        graph = RelationalGraph.from_triples(src[keep], rel[keep], dst[keep], parts=(), **sizes)
        return graph.pad(num_nodes=NODES + 3, num_edges=2 * EDGES + NODES + 5)

    chosen = rng.integers(0, EDGES, 4)
    facts = np.stack([src, rel, dst])[:, chosen].T.tolist()
    facts += [[int(rng.integers(NODES)), 1, 3], [-1, 0, 2], [2, -1, 3]]
    # Some facts are given as their inverse edge.
    edges = [(t, r + 2 * (r >= 0), h) if rng.integers(2) else (h, r, t) for h, r, t in facts]
    heads, kinds, tails = np.array(edges).T
    key = key_of(rng)
    links = {"rel": kinds, "exclude": exclude}
    blocks, *places = jax.jit(
        lambda graph: link_blocks(graph, heads, tails, fanouts, key, **links)
    )(build(slice(None)))
    ids = np.asarray(blocks.node_ids)
    # No block may have an excluded edge.
    excluded = {edge for edge in edges if min(edge) >= 0} if exclude else set()
    if exclude == "both":
        excluded |= {(t, (r + 2) % 4, h) for h, r, t in excluded}
    for block in blocks.graphs:
        size = int(block.nodes.indptr[-1])
        sources, kind, targets = (
            np.asarray(array)[:size]
            for array in (block.nodes.cols, block.edge_types, block.nodes.rows)
        )
        assert not excluded & {
            *zip(ids[sources].tolist(), kind.tolist(), ids[targets].tolist(), strict=True)
        }
    if exclude == "both":  # without both edges of a fact, the smaller graph can be built
        triples = zip(src.tolist(), rel.tolist(), dst.tolist(), strict=True)
        keep = np.array([triple not in excluded for triple in triples])
        seeds = ids[: blocks.num_seeds]
        want = jax.jit(lambda graph: sample_neighbors(graph, seeds, fanouts, key))(build(keep))
        np.testing.assert_array_equal(ids, want.node_ids)
        for block, expected in zip(blocks.graphs, want.graphs, strict=True):
            np.testing.assert_array_equal(block.edge_types, expected.edge_types)
            for name in ("indptr", "rows", "cols", "t_indptr", "t_rows", "t_cols", "t_order"):
                actual_ids, expected_ids = (
                    getattr(array.nodes, name) for array in (block, expected)
                )
                np.testing.assert_array_equal(actual_ids, expected_ids)
    valid = (heads >= 0) & (tails >= 0) & (kinds >= 0)
    for nodes, place in zip((heads, tails), places, strict=True):
        np.testing.assert_array_equal(np.asarray(place)[~valid], -1)
        np.testing.assert_array_equal(ids[np.asarray(place)[valid]], nodes[valid])


def test_edge_lookup_in_a_transposed_graph(rng):
    """Columns of a relational graph do not ascend, as edges are sorted by relation first."""
    src, dst = lumpy_edges(rng, NODES, EDGES)
    relational = RelationalGraph.from_triples(src, rng.integers(0, 3, EDGES), dst, num_nodes=NODES)
    graph = relational.nodes.pad(num_edges=EDGES + 3).transpose()
    heads, tails = (jnp.asarray(ids.ravel(), jnp.int32) for ids in np.indices((NODES, NODES)))
    want = np.zeros((NODES, NODES), bool)
    want[dst, src] = True
    np.testing.assert_array_equal(has_edge(graph, None, heads, tails, None), want.ravel())
    order = np.asarray(graph.t_order)[:EDGES]
    for half, counterpart in (("t_rows", "cols"), ("t_cols", "rows")):
        ids = np.asarray(getattr(graph, half))[:EDGES]
        np.testing.assert_array_equal(ids, np.asarray(getattr(graph, counterpart))[order])
    assert (np.asarray(graph.t_order)[EDGES:] == -1).all()


def test_link_blocks_without_edges():
    graph = Graph.from_edges([0, 1], [1, 2], num_nodes=3)
    blocks, src, dst = link_blocks(graph, [], [], (2, 2), KEY)
    assert (blocks.num_seeds, src.shape, dst.shape) == (0, (0,), (0,))
    empty = Graph.from_edges([], [], num_nodes=3)
    blocks, src, _ = link_blocks(empty, [0, 2], [1, 9], (2,), KEY, exclude="both")
    np.testing.assert_array_equal(src, [0, -1])
    assert blocks.graphs[0].indptr[-1] == 0


# --- Walks ---------------------------------------------------------------------------------------


def transitions(counts: np.ndarray, p: float, q: float) -> np.ndarray:
    """Return node2vec's probabilities ``[t, v, x]`` of a step from v, reached from t, to x."""
    size = len(counts)
    # 1 / q for far nodes, 1 for near ones, 1 / p for the way back.
    weights = np.where(counts[:, None, :] > 0, 1.0, 1 / q) * np.ones((size, size, size))
    weights[np.arange(size), :, np.arange(size)] = 1 / p
    weights *= counts[None]
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)


def test_extreme_walks_end():
    """Walks end even if all edges have tiny weights, as no node is near."""
    # Opposite corners of a square have no edge, and neighbours have no common neighbour.
    square = Graph.from_edges([0, 0, 1, 2], [1, 2, 3, 3], num_nodes=4).symmetrized()
    walk = jax.jit(lambda graph: random_walk(graph, [0, 1], 30, KEY, p=1e10, q=1e10))
    walks = np.asarray(walk(square))
    assert (abs(walks[:, 1:] % 3 - walks[:, :-1] % 3) > 0).all() and (walks >= 0).all()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("p", "q"),
    [
        (1, 1),
        (0.25, 4),
        (4, 0.25),
        (0.5, 1),
        (10, 10),
        (0.1, 0.1),
        (1e10, 1e10),
        (1e3, 1e-3),
        (1e-10, 1e10),
        (1e25, 1e26),
        (1e200, 1e-200),
    ],
)
def test_walks_have_their_distribution(rng, p, q, reverse):
    """Chi-square test of two steps, from a hub and from another node."""
    graph = lumpy_graph(rng, NODES, int(rng.choice([30, 300])))
    counts = counts_of(graph, NODES)
    counts = counts.T if reverse else counts
    first = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    starts = np.repeat([0, rng.integers(1, NODES)], 3_000)
    walk = jax.jit(lambda graph, key: random_walk(graph, starts, 2, key, p=p, q=q, reverse=reverse))
    walks = np.asarray(walk(graph, key_of(rng)))
    assert walks.shape == (6_000, 3)
    for start in set(starts.tolist()):
        own_walks = walks[walks[:, 0] == start] + 1  # outcome 0: the walk ended
        pair_counts = np.zeros((NODES + 1, NODES + 1), int)
        np.add.at(pair_counts, (own_walks[:, 1], own_walks[:, 2]), 1)
        # Chance of both steps; walks may end after none or one.
        joint = first[start][:, None] * transitions(counts, p, q)[start]
        weights = np.zeros_like(pair_counts, float)
        weights[1:, 1:] = joint
        weights[1:, 0] = first[start] * (counts.sum(1) == 0)
        weights[0, 0] = counts[start].sum() == 0
        check_distribution(pair_counts, weights)


def test_walks_follow_edges_and_end(rng):
    graph = lumpy_graph(rng, NODES, EDGES)
    counts = counts_of(graph, NODES + 3)
    starts = np.r_[rng.integers(0, NODES + 3, 40), -1, -7, 99]
    for p, q in ((1, 1), (0.5, 2)):
        walk = jax.jit(lambda graph, key, p=p, q=q: random_walk(graph, starts, 6, key, p=p, q=q))
        walks = np.asarray(walk(graph, key_of(rng)))
        np.testing.assert_array_equal(
            walks[:, 0], np.where(starts > 50, -1, np.maximum(starts, -1))
        )
        for a, b in zip(walks.T[:-1], walks.T[1:], strict=True):
            ended = (a < 0) | (counts[a].sum(1) == 0)
            assert (b[ended] == -1).all()
            assert (counts[a[~ended], b[~ended]] > 0).all()
    assert random_walk(graph, starts, 0, KEY).shape == (43, 1)
    assert random_walk(graph, [], 4, KEY, p=2).shape == (0, 5)
    # A node without edges ends the walk at once.
    nothing = Graph.from_edges([], [], num_nodes=2)
    np.testing.assert_array_equal(random_walk(nothing, [0], 2, KEY, q=3), [[0, -1, -1]])


def test_walks_along_repeated_edges(rng):
    """The single edge onward is drawn, though nearly all edges return, which p discourages."""
    # From node 1, a thousand edges return and one leads on; weights are equal in all.
    src, dst = np.r_[0, [1] * 1000, 1], np.r_[1, [0] * 1000, 2]
    graph = Graph.from_edges(src, dst, num_nodes=3)
    walks = np.asarray(random_walk(graph, np.zeros(800, int), 2, key_of(rng), p=1000))
    assert (walks[:, 1] == 1).all()
    check_distribution(np.bincount(walks[:, 2], minlength=3), np.array([1000 / 1000, 0, 1]))


# --- Inside jit, and bad input -------------------------------------------------------------------


CALLS = {
    "negative_edges": lambda graph, ids, key: negative_edges(
        graph, 16, key, degree_power=0.5, exclude_edges=True
    ),
    "corrupted_edges": lambda graph, ids, key: corrupted_edges(
        graph, ids, ids[::-1], 3, key, degree_power=1, exclude_edges=True
    ),
    "link_blocks": lambda graph, ids, key: link_blocks(
        graph, ids, ids[::-1], (3, 2), key, exclude="both"
    ),
    "random_walk": lambda graph, ids, key: random_walk(graph, ids, 3, key),
    "node2vec": lambda graph, ids, key: random_walk(graph, ids, 3, key, p=2, q=0.5),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_program_gives_the_same_inside_jit(rng, name):
    check_one_program(CALLS[name], rng, NODES, EDGES)


@pytest.mark.parametrize("name", CALLS)
def test_garbage_gives_ids_in_range(rng, name):
    """Garbage in index arrays gives ids in range, and every loop ends."""
    graph = lumpy_graph(rng, NODES, EDGES)
    # Garbage must not give ids out of range.
    broken = spoiled(rng, graph)
    result = CALLS[name](broken, jnp.asarray(rng.integers(-3, 15, 8)), key_of(rng))
    ids = (
        result[0].node_ids
        if name == "link_blocks"
        else jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(result)])
    )
    assert ((np.asarray(ids) >= -1) & (np.asarray(ids) < NODES + 3)).all()


GRAPH = Graph.from_edges([0, 1], [1, 2], num_nodes=3)
BIPARTITE = Graph.from_edges([0, 1], [1, 2], num_src=2, num_dst=3)
RELATIONAL = RelationalGraph.from_triples([0], [0], [1], num_nodes=3)
LINKS = {"graph": GRAPH, "src": [0], "dst": [1], "key": KEY}
ARGUMENTS = {
    negative_edges: {"graph": GRAPH, "num": 2, "key": KEY},
    corrupted_edges: {**LINKS, "num": 1},
    link_blocks: {**LINKS, "fanouts": (2,)},
    random_walk: {"graph": GRAPH, "starts": [0], "length": 2, "key": KEY},
}
BAD_ARGUMENTS = [
    (negative_edges, {"num_nodes": (1, 2, 3)}, "^num_nodes must be"),
    (negative_edges, {"num_nodes": jnp.ones(())}, "^num_nodes must be an integer"),
    (corrupted_edges, {"dst": [1, 2]}, "^src and dst must"),
    (corrupted_edges, {"graph": RELATIONAL}, "^rel must be given for"),
    (corrupted_edges, {"rel": [0]}, "^rel is for a jax_gnn.RelationalGraph alone"),
    (link_blocks, {"dst": []}, "^src and dst must"),
    (link_blocks, {"graph": RELATIONAL}, "^rel must be given for"),
    (link_blocks, {"rel": [0]}, "^rel is for a jax_gnn.RelationalGraph alone"),
    (
        link_blocks,
        {"graph": RELATIONAL.pad(num_nodes=9), "rel": [0], "exclude": "both"},
        "^exclude must not be 'both' for a graph without inverse relations",
    ),
    (random_walk, {"q": np.inf}, "^q must be finite"),
]


@pytest.mark.parametrize(("function", "changes", "message"), BAD_ARGUMENTS)
def test_bad_arguments(function, changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        function(**ARGUMENTS[function] | changes)
