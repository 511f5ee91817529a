"""The RelationalGraph container: order of edges, pairs, parts, padding, norms, and checks.

A pair is a node and a relation that an edge of the node has. Parts are bipartite graphs between
nodes and pairs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from relational_cases import check_relational, skewed_triples

from jax_gnn import Graph, RelationalGraph, spmm
from jax_gnn._core.relations import RelationalMatrix

Rng = np.random.Generator


def extended(src, rel, dst, num_relations: int, num_nodes: int) -> Any:
    """Return triples and edge ids with inverse edges and the self-relation."""
    ids, nodes = np.arange(len(src)), np.arange(num_nodes)
    return (
        np.concatenate([src, dst, nodes]),
        np.concatenate([rel, rel + num_relations, np.full(num_nodes, 2 * num_relations)]),
        np.concatenate([dst, src, nodes]),
        np.concatenate([ids, ids, np.full(num_nodes, -1)]),
    )


@pytest.mark.parametrize("traced", [False, True])
def test_from_triples(rng: Rng, traced: bool) -> None:
    src, rel, dst = skewed_triples(rng, 300, 41, 23, 7)
    sizes = {"num_src": 41, "num_dst": 23, "num_relations": 9}
    build = partial(RelationalGraph.from_triples, **sizes)
    graph = (jax.jit(build) if traced else build)(src, rel, dst)
    check_relational(graph, src, rel, dst, np.arange(300))
    if traced:
        # Traced sizes are upper bounds: a pair for each edge, or for each node and relation.
        assert (graph.num_src_pairs, graph.num_dst_pairs) == (300, 23 * 9)
    values = rng.random((300, 2))
    order = np.lexsort((src, rel, dst))
    np.testing.assert_allclose(graph.edge_values(values), values[order], rtol=1e-6)


@pytest.mark.parametrize("traced", [False, True])
def test_ids_out_of_range_inverse_and_self_relation(rng: Rng, traced: bool) -> None:
    src, rel, dst = skewed_triples(rng, 120, 19, 19, 5)
    # Six ids of each array are out of range, so that their edges are dropped.
    corrupt = [part.copy() for part in (src, rel, dst)]
    for part, size in zip(corrupt, (19, 5, 19), strict=True):
        part[rng.integers(120, size=6)] = rng.choice([-1, -7, size, 2**31 - 1], 6)
    valid = np.logical_and.reduce(
        [(part >= 0) & (part < size) for part, size in zip(corrupt, (19, 5, 19), strict=True)]
    )
    options = {"inverse": True, "self_relation": True, "validate": False}
    build = partial(RelationalGraph.from_triples, num_nodes=19, num_relations=5, **options)
    graph = (jax.jit(build) if traced else build)(*corrupt)
    assert (graph.num_relations, graph.num_edges, graph.self_relation) == (11, 259, True)
    expected = extended(*(part[valid] for part in corrupt), 5, 19)
    # Expected ids refer to the valid edges; -1, of self-loops, stays -1.
    old = np.append(np.flatnonzero(valid), -1)
    check_relational(graph, *expected[:3], old[expected[3]])
    with pytest.raises(ValueError, match="outside"):
        RelationalGraph.from_triples(*corrupt, 19, 5)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (4, 0)])
def test_no_edges(sizes: tuple[int, int], traced: bool) -> None:
    empty, names = np.zeros(0, np.int32), ("num_nodes", "num_relations")
    build = partial(RelationalGraph.from_triples, **dict(zip(names, sizes, strict=True)))
    graph = (jax.jit(build) if traced else build)(empty, empty, empty)
    check_relational(graph, empty, empty, empty, empty)
    assert graph.norm().shape == (0,)


def test_one_relation_and_one_hub(rng: Rng) -> None:
    src = rng.integers(50, size=400)
    zeros = np.zeros(400, np.int64)
    graph = RelationalGraph.from_triples(src, zeros + 2, zeros, 50)
    check_relational(graph, src, zeros + 2, zeros, np.arange(400))
    assert (graph.num_relations, graph.num_dst_pairs) == (3, 1)
    np.testing.assert_array_equal(graph.in_degrees(), [400])
    np.testing.assert_array_equal(graph.out_degrees(), np.bincount(src)[np.unique(src)])
    np.testing.assert_array_equal(graph.relation_degrees(), [0, 0, 400])


def test_parts_are_built_on_request(rng: Rng) -> None:
    columns = skewed_triples(rng, 90, 12, 12, 4)
    bare = RelationalGraph.from_triples(*columns, 12, 4, parts=())
    assert bare.from_pairs is None and bare.to_pairs is None
    assert bare.matrix().from_pairs is None
    for name in ("in_degrees", "out_degrees"):
        with pytest.raises(ValueError, match="with_parts"):
            getattr(bare, name)()
    with_to_pairs = bare.with_parts("to_pairs")
    assert with_to_pairs.from_pairs is None and with_to_pairs.to_pairs is not None
    for graph in (with_to_pairs.with_parts(), jax.jit(RelationalGraph.with_parts)(with_to_pairs)):
        check_relational(graph, *columns, np.arange(90))
    assert with_to_pairs.with_parts("to_pairs").to_pairs is not None
    with pytest.raises(ValueError, match="must be one of"):
        bare.with_parts("pairs")
    with pytest.raises(TypeError, match="tuple of names"):
        RelationalGraph.from_triples(*columns, parts="to_pairs")


@pytest.mark.parametrize("traced", [False, True])
def test_pad(rng: Rng, traced: bool) -> None:
    columns = skewed_triples(rng, 70, 9, 14, 6)
    graph = RelationalGraph.from_triples(*columns, num_src=9, num_dst=14, num_relations=6)
    sizes = {"num_src": 11, "num_dst": 20, "num_edges": 75}
    pad = partial(RelationalGraph.pad, **sizes, num_src_pairs=60, num_dst_pairs=61)
    padded = (jax.jit(pad) if traced else pad)(graph)
    check_relational(padded, *columns, np.arange(70))
    assert (padded.num_src, padded.num_dst, padded.num_edges) == (11, 20, 75)
    assert (padded.num_src_pairs, padded.num_dst_pairs) == (60, 61)
    np.testing.assert_array_equal(padded.norm()[:70], graph.norm())
    np.testing.assert_array_equal(padded.norm()[70:], np.zeros(5))
    with pytest.raises(ValueError, match="num_src_pairs must be at least"):
        graph.pad(num_src_pairs=1)
    bare = RelationalGraph.from_triples(*columns, num_src=9, num_dst=14, parts=())
    with pytest.raises(ValueError, match="no part 'to_pairs'"):
        bare.pad(num_dst_pairs=70)


def test_norm(rng: Rng) -> None:
    src, rel, dst = skewed_triples(rng, 200, 15, 15, 5)
    graph = RelationalGraph.from_triples(src, rel, dst, 15, 5, self_relation=True)
    expected = 1 / np.array(
        [((rel == r) & (dst == v)).sum() for r, v in zip(rel, dst, strict=True)]
    )
    norm = graph.norm(dtype=jnp.float32)
    np.testing.assert_allclose(norm, graph.edge_values(expected, 1.0), rtol=1e-6)
    np.testing.assert_array_equal(jax.jit(RelationalGraph.norm)(graph), norm)
    options = {"self_relation": True, "parts": ("from_pairs",)}
    without = RelationalGraph.from_triples(src, rel, dst, 15, 5, **options)
    np.testing.assert_array_equal(without.norm(dtype=jnp.float32), norm)
    means = np.zeros(graph.num_dst_pairs or 0)
    np.add.at(means, np.asarray(graph.to_pairs.rows), np.asarray(norm))
    np.testing.assert_allclose(means, np.ones_like(means), rtol=1e-5)
    with jax.enable_x64(True):  # the default dtype is float64 then
        np.testing.assert_allclose(graph.norm(), graph.edge_values(expected, 1.0), rtol=1e-15)
    with pytest.raises(ValueError, match="kind must be"):
        graph.norm("sum")


def test_sums_by_way_of_pairs(rng: Rng) -> None:
    """Sums by way of pairs equal sums over nodes; all graphs have one order of edges."""
    src, rel, dst = skewed_triples(rng, 150, 20, 20, 6)
    graph = RelationalGraph.from_triples(src, rel, dst, 20, 6)
    x, weights = rng.random((20, 3)), rng.random(150)
    expected = np.zeros((20, 3))
    np.add.at(expected, dst, weights[:, None] * x[src])
    edge_weights = graph.edge_values(weights)
    augmented = RelationalGraph.from_triples(src, rel, dst, 20, 6, inverse=True, self_relation=True)
    for relational in (graph, augmented):  # inverse edges have the ids of those that they reverse
        # Edge ids are the values, so the input order must give 0 to 149 again.
        order = np.asarray(relational.nodes.edge_ids)
        np.testing.assert_array_equal(relational.to_input_order(order), np.arange(150))
    matrix = graph.matrix(weighted=True)
    assert isinstance(matrix, RelationalMatrix) and graph.pair_src and graph.pair_dst
    assert matrix.nodes.by_col.order is not None and graph.matrix().nodes.by_col.order is None
    by_source = spmm(graph.from_pairs, jnp.asarray(x)[graph.pair_src.nodes], edge_weights)
    by_destination = spmm(graph.to_pairs, jnp.asarray(x), edge_weights)
    summed = np.zeros((20, 3))
    np.add.at(summed, np.asarray(graph.pair_dst.sorted_nodes), np.asarray(by_destination))
    for result in (spmm(graph.nodes, jnp.asarray(x), edge_weights), by_source, summed):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_added_edges_ignore_the_edge_order(rng: Rng) -> None:
    """Adding edges does not depend on the order of a destination's edges."""
    src, rel, dst = skewed_triples(rng, 60, 9, 9, 5)
    nodes = RelationalGraph.from_triples(src, rel, dst, 9, 5).nodes
    plain = Graph.from_edges(src, dst, num_nodes=9)
    for derived, expected in (
        (nodes.symmetrized(), plain.symmetrized()),
        (nodes.with_self_loops(), plain.with_self_loops()),
    ):
        np.testing.assert_array_equal(derived.rows, expected.rows)
        np.testing.assert_array_equal(derived.cols, expected.cols)
        ids = np.asarray(derived.edge_ids)
        # An added edge has the id of an edge with the same nodes, or of its reverse.
        same = (src[ids] == derived.cols) & (dst[ids] == derived.rows)
        reverse = (dst[ids] == derived.cols) & (src[ids] == derived.rows)
        assert (same | reverse | (ids == -1)).all()


def test_from_edge_dict(rng: Rng) -> None:
    sizes = {"paper": 5, "author": 7, "term": 3}
    edges = {
        ("author", "writes", "paper"): rng.integers([[7], [5]], size=(2, 20)),
        ("paper", "has", "term"): tuple(rng.integers([[5], [3]], size=(2, 9))),
        ("paper", "cites", "paper"): np.zeros((2, 0), np.int64),
    }
    graph = RelationalGraph.from_edge_dict(edges, sizes, inverse=True, self_relation=True)
    # Types are numbered one after another: papers 0 to 4, authors 5 to 11, terms 12 to 14.
    writes, has, _ = edges.values()
    src = np.concatenate([writes[0] + 5, has[0]])
    dst = np.concatenate([writes[1], has[1] + 12])
    rel = np.repeat([0, 1], [20, 9])
    check_relational(graph, *extended(src, rel, dst, 3, 15))
    assert graph.node_type_sizes == (5, 7, 3)
    assert graph.node_type_names == ("paper", "author", "term")
    assert graph.node_slices == (slice(0, 5), slice(5, 12), slice(12, 15))
    twice = replace(graph, node_type_names=("a", "b", "a"))
    with pytest.raises(
        ValueError, match=r"graph\.node_type_names must differ from each other, got"
    ):
        twice.check()
    inverse = ("paper", "rev_writes", "author")
    assert graph.relation_names[:4:3] == (("author", "writes", "paper"), inverse)
    assert graph.relation_names[-1] == "self"
    key = ("term", "of", "paper")
    for bad in (-1, 3):  # an id of the next type, or of none
        ids = {key: np.array([[bad, 1], [0, 4]])}
        loose = RelationalGraph.from_edge_dict(ids, sizes, validate=False)
        check_relational(loose, [13], [0], [4], [1])
        with pytest.raises(ValueError, match=r"'paper'\)\]\[0\]\[0\] = .* is outside"):
            RelationalGraph.from_edge_dict(ids, sizes)
    for bad_edges, message in (
        ({("term", "of", "book"): np.zeros((2, 1), int)}, "says nothing about the type 'book'"),
        ({key: np.zeros((3, 1), int)}, "must be \\(2, num_edges\\)"),
        ({key: np.zeros(2, int)}, "must be \\(2, num_edges\\)"),
        ({"of": np.zeros((2, 1), int)}, "three strings"),
        ([key], "must be mappings"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            RelationalGraph.from_edge_dict(bad_edges, sizes)


def test_arguments() -> None:
    build = RelationalGraph.from_triples
    with pytest.raises(ValueError, match="src and rel must have the same length"):
        build([0, 1], [0], [1, 0])
    with pytest.raises(ValueError, match="give it or those"):
        build([0], [0], [0], 1, num_src=1)
    with pytest.raises(ValueError, match="inverse is not for bipartite"):
        build([0], [0], [0], num_src=1, inverse=True)
    with pytest.raises(ValueError, match="self_relation is not for bipartite"):
        build([0], [0], [0], num_dst=1, self_relation=True)
    with pytest.raises(ValueError, match=r"rel\[0\] = 3 is outside \[0, num_relations=2\)"):
        build([0], [3], [0], 1, 2)
    with pytest.raises(TypeError, match="num_relations must be given"):
        jax.jit(lambda ids: build(ids, ids, ids, 3))(np.zeros(2, np.int32))


def test_check_names_the_culprit(rng: Rng) -> None:
    graph = RelationalGraph.from_triples(*skewed_triples(rng, 30, 6, 6, 3))
    larger = RelationalGraph.from_triples(*skewed_triples(rng, 31, 6, 6, 3), 6, 3)
    for changed, message in (
        ({"edge_types": graph.edge_types[1:]}, r"g.edge_types must be \(30,\)"),
        ({"edge_types": graph.edge_types.astype(float)}, "g.edge_types must be an int32"),
        ({"out_of_pairs": None}, "pair_src and out_of_pairs are built together"),
        ({"pair_dst": graph.pair_src}, "g.pair_dst must be of .* numbered by node, got"),
        ({"into_pairs": larger.into_pairs}, r"g.into_pairs.*must be \(\d+,\), got shape"),
        ({"into_pairs": graph.out_of_pairs}, "g.into_pairs must be a jax_gnn.IntoPairs, got Out"),
        ({"nodes": larger.nodes}, "must"),
        ({"nodes": None}, "g.nodes must be a jax_gnn.Graph"),
        ({"num_relations": 5}, "g.pair_src.sizes must be"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            replace(graph, **changed).check("g")


def test_garbage_in_arrays_is_refused_or_harmless(rng: Rng) -> None:
    graph = RelationalGraph.from_triples(*skewed_triples(rng, 40, 6, 6, 3), 6, 3, parts=())
    # Only indptr 7 is plausible: all others must be refused before memory is read at them.
    for name in ("indptr", "rows", "cols", "edge_types"):
        for value in (-5, 2**31 - 1, 7):
            held = graph if name == "edge_types" else graph.nodes
            bad = getattr(held, name).at[-1].set(value)
            if name == "edge_types":
                broken = replace(graph, edge_types=bad)
            else:
                broken = replace(graph, nodes=replace(graph.nodes, **{name: bad}))
            try:
                broken.with_parts()
            except ValueError as error:
                assert "out of range" in str(error)
            else:
                assert (name, value) == ("indptr", 7)


def test_pytree_repr_and_export(rng: Rng) -> None:
    graph = RelationalGraph.from_edge_dict(
        {("a", "r", "b"): np.zeros((2, 1), int)}, {"a": 1, "b": 2}
    )
    assert repr(graph) == (
        "RelationalGraph(num_nodes=3, num_edges=1, num_relations=1, num_src_pairs=1, "
        "num_dst_pairs=1)"
    )
    assert "nodes=" in repr(jax.tree.map(lambda _: None, graph))
    exported = jax.export.export(jax.jit(lambda graph: graph.norm()))(graph)
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(graph), graph.norm())


def test_a_batch_of_graphs(rng: Rng) -> None:
    sizes = {"num_edges": 30, "num_src_pairs": 30, "num_dst_pairs": 30}
    graphs = [
        RelationalGraph.from_triples(*skewed_triples(rng, count, 8, 8, 4), 8, 4).pad(**sizes)
        for count in (20, 30)
    ]
    batch = jax.tree.map(lambda *parts: jnp.stack(parts), *graphs)
    x = jnp.asarray(rng.random((8, 2)))
    batched = jax.vmap(lambda graph: spmm(graph.nodes, x, graph.norm()))(batch)
    for graph, sums in zip(graphs, batched, strict=True):
        np.testing.assert_allclose(spmm(graph.nodes, x, graph.norm()), sums, rtol=1e-5, atol=1e-5)


def test_triples_in_the_order_of_the_input(rng: np.random.Generator) -> None:
    src, rel, dst = rng.integers(0, 4, (3, 12))
    graph = RelationalGraph.from_triples(src, rel, dst, num_nodes=5, self_relation=True)
    columns = np.array(graph.pad(num_edges=20).triples())
    np.testing.assert_array_equal(columns[:, :12], [src, rel, dst])
    np.testing.assert_array_equal(
        columns[:, 12:], [range(5), [graph.num_relations - 1] * 5, range(5)]
    )
    inverse = RelationalGraph.from_triples(src, rel, dst, num_nodes=5, inverse=True)
    pairs = np.array(inverse.triples()).reshape(3, 12, 2)
    for (a, r, b), expected in zip(pairs[:, :, 0].T, zip(src, rel, dst, strict=True), strict=True):
        relations = inverse.num_relations // 2
        assert expected in ((a, r, b), (b, r - relations, a))
