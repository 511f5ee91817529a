"""HeteroGraph: names of node and edge types over one RelationalGraph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jax_gnn import HeteroGraph, RelationalGraph

WRITES, CITES, HAS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "has", "tag"),
)
SIZES = {"author": 3, "paper": 4, "nobody": 0, "tag": 2}
EDGES: dict[Any, Any] = {
    WRITES: [[2, 0, 1, 2], [3, 0, 0, 1]],
    CITES: np.array([[0, 1, 3], [1, 1, 0]]),
    HAS: (np.array([3, 0]), np.array([1, 1])),
}


def make(**options) -> HeteroGraph:
    return HeteroGraph.from_edges(EDGES, SIZES, **options)


def test_names_and_sizes() -> None:
    graph = make(inverse=True, self_relation=True)
    assert graph.node_types == ("author", "paper", "nobody", "tag")
    assert graph.num_nodes == SIZES
    assert graph.slices["tag"] == slice(7, 9)
    assert graph.edge_types[:4] == (WRITES, CITES, HAS, ("paper", "rev_writes", "author"))
    assert graph.relational.num_relations == 7
    assert graph.relation(HAS) == 2
    assert repr(graph).startswith("HeteroGraph(num_nodes={'author': 3, 'paper': 4, 'nobody': 0")
    assert "HeteroGraph(relational=" in repr(jax.tree.map(lambda _: None, graph))


def test_join_and_split() -> None:
    graph = make()
    x = {name: np.full((size, 2), i, np.float32) for i, (name, size) in enumerate(SIZES.items())}
    joined = graph.join(x)
    np.testing.assert_array_equal(joined[:, 0], [0, 0, 0, 1, 1, 1, 1, 3, 3])
    for name, rows in graph.split(joined).items():
        np.testing.assert_array_equal(rows, x[name])
    # Types may lack features if they have no nodes or send no edges.
    del x["nobody"], x["tag"]  # without nodes; sends no edges
    np.testing.assert_array_equal(graph.join(x)[7:], np.zeros((2, 2)))
    assert (
        graph.join({"paper": x["paper"], "author": x["author"].astype(np.float16)}).dtype
        == np.float32
    )
    gradient = jax.grad(lambda x: (graph.join(x) ** 2).sum())(jax.tree.map(jnp.asarray, x))
    np.testing.assert_array_equal(gradient["paper"], 2 * x["paper"])


def test_graph_of_one_edge_type() -> None:
    graph = make(inverse=True).with_graphs()
    writes = graph.graph(WRITES)
    assert (writes.num_src, writes.num_dst) == (3, 4)
    values = np.arange(4.0)
    expected = {tuple(pair): v for *pair, v in zip(*EDGES[WRITES], values, strict=True)}
    actual = zip(
        writes.cols.tolist(), writes.rows.tolist(), writes.edge_values(values), strict=True
    )
    assert {(u, v): w for u, v, w in actual} == expected
    reverse = graph.graph(("paper", "rev_writes", "author"))
    actual = zip(
        reverse.rows.tolist(), reverse.cols.tolist(), reverse.edge_values(values), strict=True
    )
    assert {(u, v): w for u, v, w in actual} == expected
    with pytest.raises(
        ValueError, match=r"'cites', 'paper'\) have no graph of their own: call with_graphs"
    ):
        make().with_graphs([WRITES]).graph(CITES)


def test_names_of_numpy() -> None:
    key = tuple(np.array(WRITES))
    graph = HeteroGraph.from_edges(
        {key: EDGES[WRITES]}, dict(zip(np.array([*SIZES]), SIZES.values(), strict=True))
    )
    assert graph.edge_types == (WRITES,)
    assert {type(name) for name in (*graph.edge_types[0], *graph.node_types)} == {str}


def test_edge_values() -> None:
    graph = make(inverse=True, self_relation=True)
    values = {key: np.arange(len(EDGES[key][0])) + 10.0 * i for i, key in enumerate(EDGES)}
    ordered = np.asarray(graph.edge_values(dict(reversed(values.items())), fill_value=-1))
    types = np.asarray(graph.relational.edge_types)
    for i, key in enumerate(EDGES):
        # Inverse relations are numbered after the three relations and have the same values.
        for relation in (i, i + 3):
            assert sorted(ordered[types == relation]) == sorted(values[key])
    assert (ordered[types == 6] == -1).all()
    with pytest.raises(
        ValueError, match="values must be by the edge types that the graph was built"
    ):
        graph.edge_values({WRITES: np.arange(4.0)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {WRITES: np.ones(3), CITES: np.ones(4)},
            r"must be \(num_input_edges=4, .* got shape \(3,\)",
        ),  # same sum
        ({CITES: np.ones(4), HAS: np.ones(1)}, r"must be \(num_input_edges=3, .* got shape \(4,\)"),
        ({HAS: np.ones(3)}, r"must be \(num_input_edges=2, .* got shape \(3,\)"),
        ({CITES: np.ones((3, 2))}, r"equal features for all types, got \(2,\) for .*'cites'"),
        ({CITES: None}, r"'cites', 'paper'\)\] must be"),
        ({CITES: 1.0}, r"'cites', 'paper'\)\] must be \(num_edges, \*features\), got a scalar"),
    ],
)
@pytest.mark.parametrize("inverse", [False, True])
def test_bad_edge_values(change, message: str, inverse: bool) -> None:
    values = {key: np.ones(len(EDGES[key][0])) for key in EDGES} | change
    with pytest.raises((TypeError, ValueError), match=message) as error:
        make(inverse=inverse).edge_values(values)
    assert any(str(key) in str(error.value) for key in change)


@pytest.mark.parametrize("inverse", [False, True])
def test_values_of_dropped_edges(inverse: bool) -> None:
    """Values survive the way to the graph and back, also in another order of types."""
    # Author 9 and paper -1 are out of range: one edge of each type is dropped.
    edges = {WRITES: [[9, 0, 2], [1, 3, 0]], CITES: [[2, 0, 3], [3, -1, 0]], HAS: [[], []]}
    values = {WRITES: np.arange(1.0, 4), CITES: np.arange(4.0, 7), HAS: np.zeros(0)}
    graph = HeteroGraph.from_edges(edges, SIZES, validate=False, inverse=inverse)
    for variant in (graph, graph.in_order([*SIZES][::-1], [*edges][::-1]).with_graphs()):
        ordered = variant.edge_values(values)
        assert sorted(ordered[ordered > 0].tolist()) == sorted([2, 3, 4, 6] * (1 + inverse))
        restored = variant.to_input_order(ordered, fill_value=-1)
        assert {key: rows.tolist() for key, rows in restored.items()} == {
            WRITES: [-1, 2, 3],
            CITES: [4, -1, 6],
            HAS: [],
        }
        with pytest.raises(ValueError, match=r"'cites'.* must be \(num_input_edges=3, .*\(1,\)"):
            graph.edge_values(values | {CITES: np.ones(1)})
    for key in variant.edge_types:
        # An inverse type takes the values of the type that it reverses.
        kind = key if key in edges else next(k for k in edges if k[1] == key[1][len("rev_") :])
        alone = variant.graph(key).edge_values(values[kind])
        assert sorted(alone.tolist()) == [v for v in restored[kind].tolist() if v > 0]
    # A graph that users build by hand does not know the sizes of its input.
    by_hand = replace(graph, num_input_edges=None)
    for call in (
        lambda: by_hand.edge_values(values),
        lambda: by_hand.to_input_order(np.ones(by_hand.relational.num_edges)),
    ):
        with pytest.raises(ValueError, match=r"got num_input_edges=None: .* call relational\."):
            call()


def test_inverse_names_that_clash() -> None:
    twins = {WRITES: EDGES[WRITES], ("paper", "rev_writes", "author"): [[0], [1]]}
    for kind in (HeteroGraph.from_edges, RelationalGraph.from_edge_dict):
        with pytest.raises(ValueError, match=r"'rev_writes', 'author'\), .* inverse of .*'writes'"):
            kind(twins, SIZES, inverse=True)
    graph = HeteroGraph.from_edges(twins, SIZES, inverse=True, inverse_prefix="~")
    assert graph.edge_types[2:] == (
        ("paper", "~writes", "author"),
        ("author", "~rev_writes", "paper"),
    )
    assert graph.relational.relation_names == graph.edge_types
    with pytest.raises(TypeError, match="inverse_prefix must be a string, got 3"):
        HeteroGraph.from_edges(twins, SIZES, inverse=True, inverse_prefix=3)


def test_in_order(rng: np.random.Generator) -> None:
    """The result equals a graph that was built with its types in that order."""
    kinds = [str(kind) for kind in rng.permutation([*SIZES])]
    types = [[*EDGES][i] for i in rng.permutation(len(EDGES))]
    options: dict[str, Any] = {"inverse": True, "self_relation": True, "inverse_prefix": "~"}
    sizes = {kind: SIZES[kind] for kind in kinds}
    expected = HeteroGraph.from_edges({key: EDGES[key] for key in types}, sizes, **options)
    original = make(**options).with_graphs([HAS])
    # Inverse types may be listed or left to follow their originals.
    for edge_types in (types, expected.edge_types):
        reordered = original.in_order(kinds, edge_types)
        assert jax.tree.structure(reordered) == jax.tree.structure(expected.with_graphs([HAS]))
        for a, b in zip(
            *map(jax.tree.leaves, (reordered.relational, expected.relational)), strict=True
        ):
            np.testing.assert_array_equal(a, b)
    assert original.in_order().edge_types == original.edge_types
    for wrong, message in (
        ({"node_types": ["author", "paper"]}, "node_types lacks the node types 'nobody', 'tag'"),
        ({"edge_types": [WRITES, CITES]}, r"edge_types lacks the edge types \('paper', 'has'"),
        ({"node_types": [*SIZES, "tag"]}, "node types of node_types must differ from each other"),
    ):
        with pytest.raises(ValueError, match=message):
            make().in_order(**wrong)
    with pytest.raises(TypeError, match="in_order works on the host only"):
        jax.jit(lambda graph: graph.in_order())(original)


def test_through_jit_and_export() -> None:
    graph = make().with_graphs([HAS])

    def total(graph: HeteroGraph, x) -> Any:
        return graph.split(graph.join(x))["paper"].sum() + graph.graph(HAS).in_degrees().sum()

    x = {name: jnp.ones((size, 2)) for name, size in SIZES.items()}
    assert jax.jit(total)(graph, x) == 10
    # Exported programs need stable names of the container's fields.
    exported = jax.export.export(jax.jit(total))(graph, x).serialize()
    assert jax.export.deserialize(exported).call(graph, x) == 10
    with pytest.raises(TypeError, match="with_graphs works on the host only"):
        jax.jit(lambda graph: graph.with_graphs())(graph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paper": None}, "x_dict lacks the type 'paper', which sends edges"),
        ({"papr": np.ones((4, 2))}, "x_dict has the key 'papr', which is none of the types"),
        ({"tag": np.ones((3, 2))}, r"x_dict\['tag'\] must be \(num_nodes\['tag'\]=2"),
        ({"tag": np.ones((2, 3))}, r"equal features for all types, got \(3,\) for 'tag'"),
        ({"tag": np.ones((2, 2), int)}, r"x_dict\['tag'\] must be float16"),
    ],
)
def test_bad_features(change: dict[str, Any], message: str) -> None:
    x = {name: np.ones((size, 2), np.float32) for name, size in SIZES.items()} | change
    with pytest.raises((ValueError, TypeError), match=message):
        make().join({name: rows for name, rows in x.items() if rows is not None})


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="x_dict must be a mapping by node type, got list"):
        make().join([])
    with pytest.raises(ValueError, match=r"x_dict\['tag'\] must be"):
        make().join({name: None if name == "tag" else np.ones((SIZES[name], 2)) for name in SIZES})
    with pytest.raises(ValueError, match="x_dict must have features of author, paper"):
        HeteroGraph.from_edges({}, SIZES).join({})
    with pytest.raises(ValueError, match=r"x must be \(num_nodes=9, \*features\)"):
        make().split(np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"edge type \('a', 'b', 'c'\) is none of the graph's"):
        make().relation(("a", "b", "c"))
    with pytest.raises(ValueError, match=r"num_nodes says nothing about the type 'writer'"):
        HeteroGraph.from_edges({("writer", "writes", "paper"): [[0], [0]]}, SIZES)
    with pytest.raises(ValueError, match=r"edges\[\('author', 'writes', 'paper'\)\]\[1\]\[0\] = 4"):
        HeteroGraph.from_edges({WRITES: [[0], [4]]}, SIZES)


def test_edges_round_trip() -> None:
    graph = make(inverse=True)
    rebuilt = HeteroGraph.from_edges(graph.edges(), graph.num_nodes, inverse=True)
    assert list(graph.edges()) == [*EDGES]
    for array, expected in zip(jax.tree.leaves(graph), jax.tree.leaves(rebuilt), strict=True):
        np.testing.assert_array_equal(array, expected)
    with pytest.raises(TypeError, match="edges works on the host only"):
        jax.jit(HeteroGraph.edges)(graph)
