"""The Hypergraph container: builders, validation and methods."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import scipy.sparse
import test_graph
from op_spec import SCENARIOS, STACKABLE, Incidence, assert_close, same_bits, stack

from jax_gnn import Hypergraph, hypergraph_aggregate
from jax_gnn._core.ids import index_dtype


def dense(hypergraph: Hypergraph) -> np.ndarray:
    """``(num_nodes, num_hyperedges)`` counts, after checking all that the container promises."""
    # Both directions, hyperedges to nodes and back, must hold the same incidence matrix.
    matrices = []
    for indptr, indices, num_cols in (
        (hypergraph.hyperedge_indptr, hypergraph.hyperedge_nodes, hypergraph.num_nodes),
        (hypergraph.node_indptr, hypergraph.node_hyperedges, hypergraph.num_hyperedges),
    ):
        assert isinstance(indptr, jax.Array)
        assert indptr.dtype == indices.dtype == np.int32
        assert indices.shape == (hypergraph.num_incidences,)
        indptr, indices = np.asarray(indptr), np.asarray(indices)
        assert indptr[0] == 0
        assert (np.diff(indptr) >= 0).all()
        assert (indices[indptr[-1] :] == -1).all()
        matrix = np.zeros((len(indptr) - 1, num_cols))
        for row in range(len(matrix)):
            members = indices[indptr[row] : indptr[row + 1]]
            assert (np.diff(members) >= 0).all()
            assert ((members >= 0) & (members < num_cols)).all()
            np.add.at(matrix[row], members, 1)
        matrices.append(matrix)
    np.testing.assert_array_equal(matrices[0].T, matrices[1])
    return matrices[1]


build = functools.partial(test_graph.build, kind="Hypergraph")
SMALL = test_graph.CONTAINERS["Hypergraph"][0]


# --- from_incidence ------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_from_incidence(rng: np.random.Generator, scenario: str) -> None:
    incidence = Incidence.random(rng, scenario)
    hypergraph = build(incidence, validate=scenario != "padding")
    np.testing.assert_array_equal(dense(hypergraph), incidence.dense())
    assert hypergraph.num_nodes == incidence.num_left
    assert hypergraph.num_hyperedges == incidence.num_right
    assert hypergraph.num_incidences == len(incidence.left)


def test_order_of_pairs_does_not_matter(rng: np.random.Generator) -> None:
    incidence = Incidence.random(rng, "duplicates")
    order = rng.permutation(len(incidence.left))
    permuted = replace(incidence, left=incidence.left[order], right=incidence.right[order])
    graphs = [replace(build(pairs).graph, edge_ids=None) for pairs in (incidence, permuted)]
    assert same_bits(*graphs)


def test_default_sizes() -> None:
    hypergraph = Hypergraph.from_incidence([4, 1], [0, 2])
    assert (hypergraph.num_nodes, hypergraph.num_hyperedges) == (5, 3)
    empty = Hypergraph.from_incidence(np.zeros(0, int), np.zeros(0, int))
    assert (empty.num_nodes, empty.num_hyperedges, empty.num_incidences) == (0, 0, 0)


def test_index_type() -> None:
    """Sizes beyond 32 bits need 64-bit indices; such hypergraphs are too large to be built here."""
    assert index_dtype(2**31 - 1, 5) == np.int32
    with pytest.raises(ValueError, match="need 64-bit indices: enable jax_enable_x64"):
        index_dtype(5, 2**31)
    with jax.enable_x64(True):
        assert index_dtype(5, 2**31) == np.int64


# --- Other builders ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, functools.partial(np.array, dtype=np.uint8)]
)
def test_from_hyperedges(kind: Callable[[Any], Any]) -> None:
    members = [[3, 1], [], [0], [2, 3, 3]]
    hypergraph = Hypergraph.from_hyperedges(kind(ids) if ids else ids for ids in members)
    want = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 2]])
    np.testing.assert_array_equal(dense(hypergraph), want)


def test_from_no_hyperedges() -> None:
    assert dense(Hypergraph.from_hyperedges([])).shape == (0, 0)
    assert dense(Hypergraph.from_hyperedges([], num_nodes=3)).shape == (3, 0)
    assert dense(Hypergraph.from_hyperedges([[], []], num_nodes=3)).shape == (3, 2)


def test_members_out_of_range_are_named_by_hyperedge_and_place() -> None:
    with pytest.raises(ValueError, match=r"hyperedges\[1\]\[1\] = -1 is outside"):
        Hypergraph.from_hyperedges([[0], [1, -1]], num_nodes=3)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok"])
@pytest.mark.parametrize("family", ["array", "matrix"])
@pytest.mark.parametrize("dtype", [bool, np.int8, np.float64])
def test_from_scipy(rng: np.random.Generator, kind: str, family: str, dtype) -> None:
    want = rng.integers(0, 2, (6, 4)).astype(dtype)
    incidence = getattr(scipy.sparse, f"{kind}_{family}")(want)
    np.testing.assert_array_equal(dense(Hypergraph.from_scipy(incidence)), want)


def test_from_scipy_with_explicit_zeros() -> None:
    incidence = scipy.sparse.coo_array(([1.0, 0.0], ([0, 1], [1, 0])), shape=(2, 3))
    hypergraph = Hypergraph.from_scipy(incidence)
    assert hypergraph.num_incidences == 1
    np.testing.assert_array_equal(dense(hypergraph), [[0, 1, 0], [0, 0, 0]])
    assert incidence.nnz == 2  # the argument is left as it was


@pytest.mark.parametrize(
    ("incidence", "error", "message"),
    [
        (scipy.sparse.csr_array([[0.5, 1]]), ValueError, r"zeros and ones, found 0\.5"),
        (scipy.sparse.csr_array([[-1, 1]]), ValueError, "zeros and ones, found -1"),
        (
            scipy.sparse.coo_array(([1, 1], ([0, 0], [1, 1])), shape=(2, 2)),
            ValueError,
            "zeros and ones, found 2",
        ),
    ],
)
def test_bad_scipy(incidence, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Hypergraph.from_scipy(incidence)


def nearest(points: np.ndarray, k: int) -> np.ndarray:
    """The dense incidence matrix of k nearest neighbours, by plain sorting."""
    n = len(points)
    incidence = np.zeros((n, n))
    for i in range(n):
        distances = np.sum((points - points[i]) ** 2, axis=1)
        # A point is its own nearest neighbour, even among duplicates.
        distances[i] = -1
        incidence[np.argsort(distances, kind="stable")[:k], i] = 1
    return incidence


@pytest.mark.parametrize("k", [1, 2, 5, 19])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_from_knn(rng: np.random.Generator, k: int, dtype: str) -> None:
    points = (100 * rng.normal(size=(19, 3))).astype(dtype)
    hypergraph = Hypergraph.from_knn(points, k)
    np.testing.assert_array_equal(dense(hypergraph), nearest(points.astype(float), k))
    assert (np.asarray(hypergraph.hyperedge_degrees()) == k).all()


@pytest.mark.parametrize("k", [1, 3, 7])
def test_knn_among_equals(rng: np.random.Generator, k: int) -> None:
    """The node itself comes first, then the smaller ids."""
    grid = rng.integers(0, 3, (40, 2)).astype(float)  # many ties and many duplicates
    np.testing.assert_array_equal(dense(Hypergraph.from_knn(grid, k)), nearest(grid, k))
    copies = rng.normal(size=(12, 5))[rng.integers(0, 12, 40)]
    np.testing.assert_array_equal(dense(Hypergraph.from_knn(copies, k)), nearest(copies, k))
    equal = np.full((7, 4), 0.1)
    np.testing.assert_array_equal(dense(Hypergraph.from_knn(equal, k)), nearest(equal, k))


def test_knn_far_from_the_origin(rng: np.random.Generator) -> None:
    # |a|² + |b|² - 2ab would cancel to zero at this distance from the origin.
    points = rng.normal(size=(30, 3)) + 1e7
    points[0] = 0
    np.testing.assert_array_equal(dense(Hypergraph.from_knn(points, 4)), nearest(points, 4))


def test_knn_of_no_points() -> None:
    assert dense(Hypergraph.from_knn(np.zeros((0, 3)), 1)).shape == (0, 0)


# --- Directed ------------------------------------------------------------------------------------

DIRECTED = Hypergraph.from_directed(
    [0, 1, 1, 4], [0, 0, 1, 1], [2, 3, 0], [1, 1, 0], num_nodes=6, num_hyperedges=3
)


def heads_of(hypergraph: Hypergraph) -> np.ndarray:
    return dense(Hypergraph(hypergraph.head))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_from_directed(rng: np.random.Generator, scenario: str) -> None:
    tails, heads = (Incidence.random(rng, scenario) for _ in range(2))
    arrays = [
        ids.astype(np.int32)
        for incidence in (tails, heads)
        for ids in (incidence.left, incidence.right)
    ]
    options = {"num_nodes": tails.num_left, "num_hyperedges": tails.num_right}
    sized = functools.partial(Hypergraph.from_directed, validate=scenario != "padding", **options)
    hypergraph = sized(*arrays)
    np.testing.assert_array_equal(dense(hypergraph), tails.dense())
    np.testing.assert_array_equal(heads_of(hypergraph), heads.dense())
    np.testing.assert_array_equal(hypergraph.node_degrees(), tails.dense().sum(1))
    np.testing.assert_array_equal(hypergraph.hyperedge_degrees(), tails.dense().sum(0))
    assert same_bits(jax.jit(sized)(*arrays), hypergraph)


def test_default_sizes_of_directed() -> None:
    """The largest of the ids of both sides."""
    hypergraph = Hypergraph.from_directed([0, 5], [1, 0], [2], [7])
    assert (hypergraph.num_nodes, hypergraph.num_hyperedges) == (6, 8)
    assert hypergraph.head.num_edges == 1
    assert repr(hypergraph) == (
        "Hypergraph(num_nodes=6, num_hyperedges=8, num_incidences=2, num_head_incidences=1)"
    )


def test_dual_of_directed() -> None:
    """The dual swaps the steps from nodes to hyperedges and from hyperedges to nodes."""
    np.testing.assert_array_equal(dense(DIRECTED.dual), heads_of(DIRECTED).T)
    np.testing.assert_array_equal(heads_of(DIRECTED.dual), dense(DIRECTED).T)
    assert same_bits(DIRECTED.dual.dual, DIRECTED)


def test_self_loops_of_directed() -> None:
    added = DIRECTED.with_self_loops()  # only 5 is in no tail and no head
    loops = np.zeros((6, 1))
    loops[5] = 1
    np.testing.assert_array_equal(dense(added), np.hstack([dense(DIRECTED), loops]))
    np.testing.assert_array_equal(heads_of(added), np.hstack([heads_of(DIRECTED), loops]))
    # A hyperedge of its own has the node as tail and as head: 0 has one, 1 does not.
    hypergraph = Hypergraph.from_directed([0, 1], [0, 1], [0, 2], [0, 1])
    added = hypergraph.with_self_loops("all")
    np.testing.assert_array_equal(dense(added)[:, 2:], [[0, 0], [1, 0], [0, 1]])
    np.testing.assert_array_equal(heads_of(added)[:, 2:], [[0, 0], [1, 0], [0, 1]])


def test_padding_of_directed(rng: np.random.Generator) -> None:
    padded = DIRECTED.pad(num_nodes=8, num_hyperedges=5, num_incidences=9, num_head_incidences=7)
    assert (padded.num_nodes, padded.num_hyperedges, padded.num_incidences) == (8, 5, 9)
    assert padded.head.num_edges == 7
    x = rng.normal(size=(6, 2)).astype(np.float32)
    # Features of padded nodes are NaN, so any use of them shows.
    wide = np.full((8, 2), np.nan, np.float32)
    wide[:6] = x
    got = hypergraph_aggregate(padded, wide, normalization="symmetric")
    want = hypergraph_aggregate(DIRECTED, x, normalization="symmetric")
    assert_close(got[:6], want, 1e-6, "value")
    assert (np.asarray(got[6:]) == 0).all()
    with pytest.raises(ValueError, match="num_head_incidences must be at least the present 3"):
        DIRECTED.pad(num_head_incidences=2)
    with pytest.raises(ValueError, match="num_head_incidences is for directed hypergraphs"):
        SMALL.pad(num_head_incidences=9)


# --- Values of incidences ------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_incidence_values(rng: np.random.Generator, scenario: str) -> None:
    incidence = Incidence.random(rng, scenario)
    hypergraph = build(incidence)
    values = rng.normal(size=(len(incidence.left), 2))
    got = np.asarray(hypergraph.incidence_values(values))
    want = np.zeros((incidence.num_left, incidence.num_right, 2))
    pairs, valid = (incidence.left, incidence.right), incidence.valid
    # Repeated incidences add up, so that their order does not matter.
    np.add.at(want, tuple(ids[valid] for ids in pairs), values[valid].astype(got.dtype))
    nodes, hyperedges = map(np.asarray, hypergraph.incidence())
    rebuilt = np.zeros_like(want)
    np.add.at(rebuilt, (nodes[nodes >= 0], hyperedges[nodes >= 0]), got[nodes >= 0])
    np.testing.assert_allclose(rebuilt, want, atol=1e-12)
    assert (got[nodes < 0] == 0).all()
    np.testing.assert_array_equal(
        hypergraph.to_input_order(got), np.where(valid[:, None], values.astype(got.dtype), 0)
    )


def test_incidence_values_of_self_loops_and_padding() -> None:
    hypergraph = Hypergraph.from_incidence([3, 0, 1], [0, 1, 0], num_nodes=5)
    added = hypergraph.with_self_loops().pad(num_incidences=7)
    np.testing.assert_array_equal(added.incidence()[0], [1, 3, 0, 2, 4, -1, -1])
    np.testing.assert_array_equal(
        added.incidence_values([1.0, 2.0, 3.0], fill_value=9), [3, 1, 2, 9, 9, 9, 9]
    )
    with pytest.raises(ValueError, match=r"values must be \(num_input_incidences, "):
        hypergraph.incidence_values(1.0)
    with pytest.raises(ValueError, match=r"\(num_input_incidences=3, .* shape \(2,\)"):
        added.incidence_values([1.0, 2.0])
    with pytest.raises(ValueError, match=r"\(num_incidences=7, .* shape \(3,\)"):
        added.to_input_order([1.0, 2.0, 3.0])


# --- Self-loops and padding ----------------------------------------------------------------------


def test_self_loops_of_isolated_nodes() -> None:
    added = SMALL.with_self_loops()
    loops = np.zeros((6, 2))
    loops[[3, 5], [0, 1]] = 1
    np.testing.assert_array_equal(dense(added), np.hstack([dense(SMALL), loops]))
    assert same_bits(added.with_self_loops(), added)


def test_self_loops_of_all_nodes() -> None:
    hypergraph = Hypergraph.from_hyperedges([[0, 1], [2], [1], [3, 3]], num_nodes=5)
    added = hypergraph.with_self_loops("all")
    loops = np.zeros((5, 3))  # 1 and 2 are alone in a hyperedge already
    loops[[0, 3, 4], [0, 1, 2]] = 1
    np.testing.assert_array_equal(dense(added), np.hstack([dense(hypergraph), loops]))
    assert (np.asarray(added.node_degrees()) > 0).all()


def test_self_loops_of_padded_hypergraph() -> None:
    padded = SMALL.pad(num_incidences=20)
    assert same_bits(padded.with_self_loops(), SMALL.with_self_loops())


def test_bad_self_loops() -> None:
    with pytest.raises(ValueError, match="nodes must be one of 'isolated', 'all', got 'none'"):
        SMALL.with_self_loops("none")
    with pytest.raises(TypeError, match="with_self_loops works on the host only"):
        jax.jit(Hypergraph.with_self_loops)(SMALL)


def test_padding(rng: np.random.Generator) -> None:
    incidence = Incidence.random(rng, "random")
    hypergraph = build(incidence)
    padded = hypergraph.pad(num_nodes=15, num_hyperedges=11, num_incidences=40)
    sizes = (padded.num_nodes, padded.num_hyperedges, padded.num_incidences)
    assert sizes == (15, 11, 40)
    n, m = hypergraph.num_nodes, hypergraph.num_hyperedges
    np.testing.assert_array_equal(dense(padded)[:n, :m], incidence.dense())
    assert dense(padded).sum() == incidence.dense().sum()


# --- The container -------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_incidence_and_degrees(rng: np.random.Generator, scenario: str) -> None:
    incidence = Incidence.random(rng, scenario)
    hypergraph, matrix = build(incidence), incidence.dense()
    np.testing.assert_array_equal(hypergraph.node_degrees(), matrix.sum(1))
    np.testing.assert_array_equal(hypergraph.hyperedge_degrees(), matrix.sum(0))
    nodes, hyperedges = map(np.asarray, hypergraph.incidence())
    valid = incidence.valid.sum()
    assert (nodes[valid:] == -1).all()
    assert (hyperedges[valid:] == -1).all()
    pairs = np.stack([hyperedges, nodes], 1)[:valid]
    want = np.stack([incidence.right, incidence.left], 1)[incidence.valid]
    np.testing.assert_array_equal(pairs, want[np.lexsort(want.T[::-1])])
    again = Hypergraph.from_incidence(
        nodes,
        hyperedges,
        num_nodes=hypergraph.num_nodes,
        num_hyperedges=hypergraph.num_hyperedges,
        validate=False,
    )
    np.testing.assert_array_equal(dense(again), dense(hypergraph))
    assert same_bits(again.incidence(), hypergraph.incidence())


def test_dual(rng: np.random.Generator) -> None:
    hypergraph = build(Incidence.random(rng, "padding"))
    np.testing.assert_array_equal(dense(hypergraph.dual), dense(hypergraph).T)
    assert same_bits(hypergraph.dual.dual, hypergraph)
    assert hypergraph.dual.num_nodes == hypergraph.num_hyperedges


def test_repr() -> None:
    assert repr(SMALL) == "Hypergraph(num_nodes=6, num_hyperedges=3, num_incidences=5)"
    shapes = jax.eval_shape(lambda hypergraph: hypergraph, SMALL)
    assert repr(shapes) == repr(SMALL)
    axes = jax.tree.map(lambda _: None, SMALL)  # as for jax.vmap: no arrays
    assert axes.node_indptr is None
    assert repr(axes).startswith("Hypergraph(graph=Graph(indptr=None, ")


def test_vmap_over_stacked_hypergraphs(rng: np.random.Generator) -> None:
    hypergraphs = [build(Incidence.random(rng, scenario)) for scenario in STACKABLE]
    stacked = stack(hypergraphs)
    x = rng.normal(size=(hypergraphs[0].num_nodes, 3)).astype(np.float32)
    y = jax.vmap(hypergraph_aggregate, in_axes=(0, None))(stacked, x)
    degrees = jax.vmap(Hypergraph.node_degrees)(stacked)
    pairs = jax.vmap(Hypergraph.incidence)(stacked)
    for i, hypergraph in enumerate(hypergraphs):
        assert_close(y[i], hypergraph_aggregate(hypergraph, x), 1e-5, f"{i}")
        np.testing.assert_array_equal(degrees[i], hypergraph.node_degrees())
        assert same_bits([pair[i] for pair in pairs], hypergraph.incidence())


@pytest.mark.parametrize(
    ("build_wrongly", "error", "culprit"),
    [
        (lambda: Hypergraph.from_hyperedges([[0], [0, [1, 2]]]), ValueError, r"hyperedges\[1\]"),
        (lambda: Hypergraph.from_incidence([[0], [1, 2]], [0]), ValueError, "node_idx"),
        (lambda: Hypergraph.from_knn([[1, 2], [3]], 1), ValueError, "features"),
        (lambda: Hypergraph.from_knn([["a", "b"]], 1), TypeError, "features"),
        (lambda: Hypergraph.from_knn([[1j], [2]], 1), TypeError, "features"),
    ],
    ids=["ragged hyperedge", "ragged ids", "ragged features", "text", "complex"],
)
def test_errors_name_the_culprit(
    build_wrongly: Callable[[], Hypergraph], error: type[Exception], culprit: str
) -> None:
    with pytest.raises(error, match=culprit):
        build_wrongly()


def test_hyperedges_by_name() -> None:
    """Iterating over a dict would build hyperedges of its keys."""
    with pytest.raises(TypeError, match=r"got dict; jax_gnn\.convert\.from_table takes names"):
        Hypergraph.from_hyperedges({"a": [0, 1]})
