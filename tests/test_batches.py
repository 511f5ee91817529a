"""Batches of small graphs: an op on a batch gives the results of its graphs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import programs, same_bits

import jax_gnn
from jax_gnn import (
    Batch,
    Graph,
    Hypergraph,
    RelationalGraph,
    batch,
    batch_budget,
    host_arrays,
    hypergraph_aggregate,
    pack,
    relational_aggregate,
    spmm,
    unbatch,
)

SIZES = (3, 1, 5, 0, 4)  # nodes
Builder = Callable[[np.random.Generator, int], Any]


def edges(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.integers(0, max(size, 1), (2, 2 * size))


def relational(rng: np.random.Generator, size: int) -> RelationalGraph:
    src, dst = edges(rng, size)
    rel = rng.integers(0, 2, len(src))
    options = {"num_nodes": size, "num_relations": 2, "self_relation": True}
    return RelationalGraph.from_triples(src, rel, dst, **options)


def directed(rng: np.random.Generator, size: int) -> Hypergraph:
    columns = *edges(rng, size), *edges(rng, size)
    return Hypergraph.from_directed(*columns, num_nodes=size, num_hyperedges=size)


BUILDERS: dict[str, Builder] = {
    "Graph": lambda rng, size: Graph.from_edges(edges(rng, size), num_nodes=size),
    "more edges": lambda rng, size: BUILDERS["Graph"](rng, size).symmetrized().with_self_loops(),
    "Hypergraph": lambda rng, size: Hypergraph.from_incidence(
        *edges(rng, size), num_nodes=size, num_hyperedges=size + 1
    ),
    "directed": directed,
    "RelationalGraph": relational,
}


def aggregated(graph, x) -> Any:
    if isinstance(graph, Hypergraph):
        return hypergraph_aggregate(graph, x)
    if isinstance(graph, RelationalGraph):
        # The same weights at each call: results are compared between calls.
        weights = np.random.default_rng(0).normal(size=(3, 2, 2)).astype(np.float32)
        return relational_aggregate(graph, x, weights)
    return spmm(graph, x)


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("kind", BUILDERS)
def test_batch_and_unbatch(rng: np.random.Generator, kind: str, on_host: bool) -> None:
    with host_arrays() if on_host else contextlib.nullcontext():
        graphs = [BUILDERS[kind](rng, size) for size in SIZES]
    # Capacities leave 3 padding nodes and 2 padding graphs.
    batched = batch(graphs, num_nodes=16, num_graphs=7)
    assert (batched.num_graphs, batched.graph.num_nodes, int(batched.count)) == (7, 16, 5)
    np.testing.assert_array_equal(batched.num_nodes, [*SIZES, 0, 0])
    np.testing.assert_array_equal(batched.graph_ids, [*np.repeat(range(5), SIZES), -1, -1, -1])
    np.testing.assert_array_equal(batched.mask, [True] * 5 + [False] * 2)
    np.testing.assert_array_equal(batched.node_mask, np.arange(16) < 13)
    for member, original in zip(unbatch(batched), graphs, strict=True):
        assert jax.tree.structure(member) == jax.tree.structure(original) and same_bits(
            member, original
        )
    x = [rng.normal(size=(size, 2)).astype(np.float32) for size in SIZES]
    # Rows of padding nodes are zero.
    joined = batched.join_nodes(x)
    assert isinstance(joined, jax.Array) and not joined[13:].any()
    outputs = batched.split_nodes(aggregated(batched.graph, joined))
    for got, graph, features in zip(outputs, graphs, x, strict=True):
        if len(features):
            np.testing.assert_allclose(got, aggregated(graph, features), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", BUILDERS)
def test_values_of_edges_in_a_batch(rng: np.random.Generator, kind: str) -> None:
    graphs = [BUILDERS[kind](rng, size) for size in SIZES]
    values = [rng.normal(size=(2 * size, 3)).astype(np.float32) for size in SIZES]

    def ordered(graph, values) -> np.ndarray:
        if isinstance(graph, Hypergraph):
            return np.asarray(graph.incidence_values(values, 7))
        return np.asarray(graph.edge_values(values, 7))

    joined = np.asarray(batch(graphs).join_edges(values, fill_value=7))
    expected = [ordered(graph, features) for graph, features in zip(graphs, values, strict=True)]
    np.testing.assert_array_equal(joined, np.concatenate(expected))


def test_padding_of_edges_is_dropped(rng: np.random.Generator) -> None:
    graphs = [BUILDERS["Graph"](rng, size) for size in SIZES]
    padded = [graph.pad(num_edges=graph.num_edges + 3) for graph in graphs]
    assert same_bits(batch(padded), batch(graphs))
    assert same_bits(batch(graphs, num_edges=30).graph, batch(graphs).graph.pad(num_edges=30))


def test_from_edges(rng: np.random.Generator) -> None:
    edge_lists = [edges(rng, size) for size in SIZES]
    graphs = [
        Graph.from_edges(pair, num_nodes=n) for pair, n in zip(edge_lists, SIZES, strict=True)
    ]
    capacities = {"num_nodes": 20, "num_edges": 40, "num_graphs": 6}
    assert same_bits(Batch.from_edges(edge_lists, SIZES, **capacities), batch(graphs, **capacities))
    # 5 is the first id beyond the third graph: unchecked, it would be a node of the next graph.
    edge_lists[2][1, 4] = 5
    with pytest.raises(ValueError, match=r"edges\[2\] must have ids in \[0, sizes\[2\]=5\), got"):
        Batch.from_edges(edge_lists, SIZES)
    batched = Batch.from_edges(edge_lists, SIZES, validate=False)
    assert int(batched.graph.indptr[-1]) == batched.graph.num_edges - 1  # the bad edge is dropped
    assert Batch.from_edges([], []).num_graphs == 0


def test_a_thousand_sizes_compile_one_step(rng: np.random.Generator) -> None:
    """Building, weighting, padding and batching compile nothing; the step is the only program."""
    traces = []

    @jax.jit
    def step(batched: Batch[Graph], x, weight) -> Any:
        traces.append(batched)
        y = spmm(batched.graph, x, weight)
        return jax_gnn.segment_sum(y, batched.graph_ids, batched.num_graphs, True)

    def run(start: int, stop: int) -> Any:
        sizes = range(start, stop)
        with host_arrays():
            graphs = [Graph.from_edges(edges(rng, size), num_nodes=size) for size in sizes]
        batched = batch(graphs, num_nodes=13_000, num_edges=26_000, num_graphs=16)
        x = batched.join_nodes([np.ones((size, 1), np.float32) for size in sizes])
        return step(
            batched, x, batched.join_edges([np.ones(2 * size, np.float32) for size in sizes])
        )

    run(0, 5)
    with programs() as seen:
        outputs = [run(size, size + 10) for size in range(0, 1000, 10)]
    assert not seen and len(traces) == 1
    np.testing.assert_array_equal(outputs[-1][:10, 0], 2 * np.arange(990, 1000))


def test_a_batch_in_transformations(rng: np.random.Generator) -> None:
    batched = batch([BUILDERS["Graph"](rng, size) for size in SIZES], num_graphs=6)
    again = jax.jit(lambda batched: batched)(batched)
    assert isinstance(again, Batch) and same_bits(again, batched)
    assert same_bits(jax.jit(lambda batched: batched.mask)(batched), batched.mask)
    with pytest.raises(TypeError, match="unbatch works on the host only"):
        jax.jit(unbatch)(batched)
    with pytest.raises(TypeError, match="batch works on the host only"):
        jax.jit(lambda graph: batch([graph]))(BUILDERS["Graph"](rng, 3))


@pytest.mark.parametrize("kind", BUILDERS)
def test_packed_groups_fit_the_budget(rng: np.random.Generator, kind: str) -> None:
    graphs = [BUILDERS[kind](rng, int(size)) for size in rng.integers(1, 9, 40)]
    budget = batch_budget(graphs, 6)
    assert budget["num_graphs"] == 6 and all(size % 8 == 0 for size in [*budget.values()][:-1])
    groups = list(pack(graphs, budget))
    assert [i for group in groups for i in group] == list(range(40))
    assert 1 < len(groups) < 20
    structures = set()
    for group in groups[:3]:
        batched = batch([graphs[i] for i in group], **budget)
        structures.add(str(jax.tree.map(jnp.shape, batched)))
    # All batches of a budget have equal shapes, so they share one program.
    assert len(structures) == 1
    for current, following in itertools.pairwise(groups):  # no batch had room for the next
        with pytest.raises(ValueError, match="must be at least the present"):
            batch([graphs[i] for i in (*current, following[0])], **budget)


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: batch([]), ValueError, "graphs must hold one graph at least, got none"),
    (lambda: batch(3), TypeError, "graphs must be a sequence of graphs, got int"),
    (lambda: batch([1]), TypeError, r"graphs\[0\] must be a jax_gnn.Graph, got int"),
    (
        lambda: batch([PAIR, Hypergraph.from_hyperedges([[0]])]),
        TypeError,
        r"graphs\[1\] must be a jax_gnn.Graph, got Hypergraph",
    ),
    (
        lambda: batch([PAIR, Graph.from_edges([0], [0], num_src=2)]),
        ValueError,
        r"graphs\[1\] must not be bipartite, got Graph\(num_src=2",
    ),
    (
        lambda: batch([PAIR, PAIR], num_nodes=3),
        ValueError,
        "num_nodes must be at least .* 4, got 3",
    ),
    (lambda: batch([PAIR, PAIR], num_graphs=1), ValueError, "num_graphs must be .* 2, got 1"),
    (
        lambda: batch([PAIR], num_incidences=9),
        ValueError,
        "num_incidences is none of a Graph's sizes, got 9",
    ),
    (
        lambda: batch(
            [RelationalGraph.from_triples([0], [0], [1], num_relations=n) for n in (1, 2)]
        ),
        ValueError,
        r"graphs\[1\] must have the relations and parts of graphs\[0\]",
    ),
    (
        lambda: batch([RelationalGraph.from_edge_dict({}, {"a": 2})]),
        ValueError,
        r"graphs\[0\] must not have types of nodes",
    ),
    (
        lambda: batch([PAIR]).join_nodes([np.ones((3, 2))]),
        ValueError,
        r"values\[0\] must be \(2, 2\), got shape \(3, 2\)",
    ),
    (lambda: batch([PAIR]).join_edges([]), ValueError, "values must be those of 1 graphs, got 0"),
    (lambda: batch([PAIR]).split_nodes([1]), ValueError, r"values must be \(num_nodes=2, "),
    (
        lambda: pack([PAIR, PAIR], {"num_nodes": 1}),
        ValueError,
        "budget holds num_nodes=1, which is too small for graph 0 of 2",
    ),
    (lambda: pack([PAIR], {"nodes": 1}), ValueError, r"budget must be of num_nodes.*\['nodes'\]"),
    (
        lambda: pack({"num_nodes": [2, -1]}, {"num_nodes": 2}),
        ValueError,
        r"sizes\['num_nodes'\] must not be negative, got -1",
    ),
    (
        lambda: pack({"num_nodes": [2**62, 2**62]}, {"num_nodes": 2**62}),
        ValueError,
        r"sizes must add up to 2\*\*61 at most",
    ),
    (lambda: batch_budget([PAIR], 0), ValueError, "num_graphs must be positive, got 0"),
    (lambda: Batch.from_edges([[0, 1]], [2]), ValueError, r"edges\[0\] must be \(2, num_edges\)"),
    (lambda: Batch.from_edges([], [2]), ValueError, "edges and sizes must have the same length"),
    (lambda: unbatch(PAIR), TypeError, "batch must be a jax_gnn.Batch, got Graph"),
]
PAIR = Graph.from_edges([(0, 1)])


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_input(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_batch_in_place_of_a_graph() -> None:
    batched = batch([Graph.from_edges([0], [1])])
    with pytest.raises(TypeError, match=r"must be a jax_gnn.Graph, got Batch; pass batch.graph"):
        spmm(batched, np.ones((2, 1)))


def test_repr_shows_shapes() -> None:
    # Printing the arrays of such a batch would fill the screen.
    batched = batch([Graph.from_edges([0] * 500, [1] * 500)] * 300)
    assert repr(batched) == (
        "Batch(graph=Graph(num_nodes=600, num_edges=150000), graph_ids=int32[600], "
        "num_nodes=int32[300], num_inputs=int32[300,1], count=int32[])"
    )
