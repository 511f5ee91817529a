"""The rows of graphs in slots of equal size, as kernels read them."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from op_spec import SCENARIOS, STACKABLE, Incidence, assert_close, same_bits, stack

from jax_gnn import Graph, Hypergraph, hypergraph_aggregate
from jax_gnn._core import ffi, ids
from jax_gnn._core.csr import EdgeSplit, block_diagonal, edge_split
from jax_gnn._core.ids import PADDING


def reference(indptr, cols) -> EdgeSplit:
    """Return the slots of each row, by a loop."""
    ids, places = [], []
    for row in range(len(indptr) - 1):
        members = list(cols[indptr[row] : indptr[row + 1]])
        slots = [members[i : i + 8] for i in range(0, len(members), 8)] or [[]]
        for place, slot in enumerate(slots):
            ids.append(slot + [PADDING] * (8 - len(slot)))
            places.append((row, 2 * place + (place == len(slots) - 1)))
    # The number of slots depends on shapes alone; unused slots come last.
    surplus = len(cols) // 8 + len(indptr) - len(ids)
    assert surplus > 0
    ids += [[PADDING] * 8] * surplus
    places += [(PADDING, 1)] * surplus
    return EdgeSplit(np.array(ids, indptr.dtype), np.array(places, indptr.dtype))


def assert_equal(actual: EdgeSplit, expected: EdgeSplit) -> None:
    assert isinstance(actual, EdgeSplit)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def assert_split(*graphs: Graph | None) -> None:
    for graph in graphs:
        assert graph is not None
        arrays = jax.tree.map(np.asarray, graph)
        assert all(isinstance(array, jax.Array) for array in jax.tree.leaves(graph))
        assert_equal(graph.split, reference(arrays.indptr, arrays.cols))
        assert_equal(graph.t_split, reference(arrays.t_indptr, arrays.t_cols))


def graph_of(incidence: Incidence) -> Graph:
    sizes = {"num_src": incidence.num_left, "num_dst": incidence.num_right}
    return Graph.from_edges(incidence.left, incidence.right, validate=False, **sizes)


def hypergraph_of(incidence: Incidence) -> Hypergraph:
    sizes = {"num_nodes": incidence.num_left, "num_hyperedges": incidence.num_right}
    return Hypergraph.from_incidence(incidence.left, incidence.right, validate=False, **sizes)


# --- The format ----------------------------------------------------------------------------------

DEGREES = {
    "random": None,
    "around-a-slot": [0, 7, 8, 9, 0, 16, 1, 15, 17, 24, 0],
    "full-slots": [8, 16, 8],  # the fewest that are surplus: one for each row, and one
    "one-each": [1] * 20,
    "giant": [2, 1001, 0],
    "empty": [0, 0, 0],
    "one-empty": [0],
    "no-rows": [],
}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("padding", [0, 3, 20])
@pytest.mark.parametrize("case", DEGREES)
def test_format(rng, case, padding, dtype):
    degrees = DEGREES[case]
    if degrees is None:
        degrees = rng.integers(0, 20, 50)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(dtype)
    cols = rng.integers(-1, 99, indptr[-1] + padding).astype(dtype)  # -1 is kept
    want = reference(indptr, cols)
    got = edge_split(indptr, cols)
    assert all(isinstance(array, np.ndarray) for array in got)
    assert_equal(got, want)
    with jax.enable_x64(dtype == np.int64):
        on_device = jnp.asarray(indptr), jnp.asarray(cols)
        for function in (edge_split, jax.jit(edge_split)):
            got = function(*on_device)
            assert all(isinstance(array, jax.Array) for array in got)
            assert_equal(got, want)


def test_rows_may_start_late():
    indptr, cols = np.array([2, 3, 12], np.int32), np.arange(14, dtype=np.int32)
    got = edge_split(indptr, cols)
    assert_equal(got, reference(indptr, cols))
    assert_equal(jax.jit(edge_split)(indptr, cols), got)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_any_indptr_stays_in_bounds(rng, dtype):
    limits = np.iinfo(dtype)
    with jax.enable_x64(dtype == np.int64):
        jitted = jax.jit(edge_split)
        for num_rows, count in ((0, 0), (0, 9), (7, 0), (7, 40), (40, 7)):
            cols = rng.integers(0, 99, count).astype(dtype)
            for indptr in (
                rng.choice([limits.min, limits.max, -1, 0, count, count + 1], num_rows + 1),
                rng.integers(limits.min, limits.max, num_rows + 1, dtype),
                rng.integers(-3, count + 4, num_rows + 1),
                np.linspace(count, 0, num_rows + 1),
                np.full(num_rows + 1, limits.max),
            ):
                got = edge_split(indptr.astype(dtype), cols)
                num_slots = count // 8 + num_rows + 1
                assert (got.ids.shape, got.places.shape) == ((num_slots, 8), (num_slots, 2))
                assert np.isin(got.ids, [*cols, PADDING]).all()
                assert np.isin(np.arange(-1, num_rows), got.places[:, 0]).all()
                assert (got.places[:, 0] < num_rows).all()
                assert_equal(jitted(indptr.astype(dtype), cols), got)


def test_native_call_with_wrong_arrays():
    split = ffi.host_function("edge_split")
    indptr, cols = np.zeros(4, np.int32), np.zeros(9, np.int32)
    ids, places = np.zeros((5, 8), np.int32), np.zeros((5, 2), np.int32)
    split(indptr, cols, ids, places)
    for arrays, error in (
        ((indptr[:0], cols, ids[:2], places[:2]), ValueError),
        ((indptr, cols, ids[1:], places), ValueError),
        ((indptr, cols, ids, places[1:]), ValueError),
        ((indptr, cols, ids[:, :7].copy(), places), TypeError),
        ((indptr, cols, ids, places[:, :1].copy()), TypeError),
        ((indptr, cols.astype(np.int64), ids, places), TypeError),
        ((indptr, cols, ids.astype(np.int64), places), TypeError),
        ((indptr, cols[::2], ids, places), TypeError),
    ):
        with pytest.raises(error):
            split(*arrays)


# --- Graphs --------------------------------------------------------------------------------------

SQUARE = Graph.from_edges([0, 1, 4, 1, 2], [1, 0, 2, 2, 2], num_nodes=6)


@pytest.mark.parametrize("scenario", [*SCENARIOS, "large"])
def test_with_edge_split(rng, scenario):
    graph = graph_of(Incidence.random(rng, scenario))
    assert graph.split is None
    assert graph.t_split is None
    got = graph.with_edge_split()
    assert_split(got)
    assert same_bits(jax.tree.leaves(got)[:8], jax.tree.leaves(graph)[:8])
    assert same_bits(jax.jit(Graph.with_edge_split)(graph), got)
    assert got.with_edge_split() is got
    assert repr(got) == repr(graph)


@pytest.mark.parametrize(
    "change",
    [
        Graph.transpose,
        Graph.with_self_loops,
        Graph.symmetrized,
        lambda graph: graph.pad(num_nodes=9, num_edges=30),
        lambda graph: graph.pad(),
        jax.jit(Graph.transpose),
        jax.jit(lambda graph: graph.pad(num_nodes=9, num_edges=30)),
    ],
)
def test_other_graphs_from_one(change):
    """Graphs made from a graph with a split have one."""
    changed = change(SQUARE.with_edge_split())
    assert_split(changed)
    assert same_bits(changed, change(SQUARE).with_edge_split())
    assert change(SQUARE).split is None


def test_vmap_over_stacked_graphs(rng):
    graphs = [graph_of(Incidence.random(rng, scenario)) for scenario in STACKABLE]
    want = stack([graph.with_edge_split() for graph in graphs])
    mapped = jax.jit(jax.vmap(Graph.with_edge_split))
    assert same_bits(mapped(stack(graphs)), want)


def test_copies_and_export():
    graph = SQUARE.with_edge_split()
    exported = jax.export.export(jax.jit(Graph.transpose))(graph)
    assert_split(jax.export.deserialize(exported.serialize()).call(graph).transpose())
    for again in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert_split(again)
        assert same_bits(again, graph)
    donated = jax.jit(lambda graph: jax.tree.map(jnp.negative, graph), donate_argnums=0)
    want = jax.tree.map(np.negative, graph)
    assert same_bits(donated(jax.tree.map(jnp.copy, graph)), want)


# --- Hypergraphs ---------------------------------------------------------------------------------

SMALL = Hypergraph.from_hyperedges([[0, 1], [1, 2, 4], []], num_nodes=6)
DIRECTED = Hypergraph.from_directed(
    [0, 1, 1, 4], [0, 0, 1, 1], [2, 3, 0], [1, 1, 0], num_nodes=6, num_hyperedges=3
)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_builders_of_hypergraphs(rng, scenario):
    incidence = Incidence.random(rng, scenario)
    assert_split(hypergraph_of(incidence).graph)
    sizes = {"num_nodes": incidence.num_left, "num_hyperedges": incidence.num_right}
    ids = incidence.left.astype(np.int32), incidence.right.astype(np.int32)
    traced = jax.jit(lambda *ids: Hypergraph.from_incidence(*ids, **sizes))(*ids)
    assert_split(traced.graph)


@pytest.mark.parametrize("hypergraph", [SMALL, DIRECTED], ids=["undirected", "directed"])
@pytest.mark.parametrize(
    "change",
    [
        lambda hypergraph: hypergraph,
        lambda hypergraph: hypergraph.dual,
        Hypergraph.with_self_loops,
        lambda hypergraph: hypergraph.with_self_loops("all"),
        lambda hypergraph: hypergraph.pad(num_nodes=8, num_hyperedges=5, num_incidences=30),
    ],
)
def test_other_hypergraphs_from_one(hypergraph, change):
    got = change(hypergraph)
    assert_split(got.graph, got.receiving)


def test_other_builders(rng):
    for hypergraph in (
        Hypergraph.from_scipy(scipy.sparse.coo_array(rng.integers(0, 2, (5, 4)))),
        Hypergraph.from_knn(rng.normal(size=(9, 2)), 3),
        Hypergraph.from_hyperedges([]),
    ):
        assert_split(hypergraph.graph)


def plain(hypergraph: Hypergraph) -> Hypergraph:
    """Made by hand from graphs without splits."""

    def without(graph: Graph) -> Graph:
        return Graph(*jax.tree.leaves(graph)[:8])

    head = None if hypergraph.head is None else without(hypergraph.head)
    return Hypergraph(without(hypergraph.graph), head)


@pytest.mark.parametrize("hypergraph", [SMALL, DIRECTED], ids=["undirected", "directed"])
def test_hypergraphs_of_plain_graphs(rng, hypergraph):
    x = rng.normal(size=(6, 3)).astype(np.float32)
    weight = rng.normal(size=3).astype(np.float32)
    assert plain(hypergraph).graph.split is None

    def energy(hypergraph: Hypergraph, x, weight):
        return jnp.sum(hypergraph_aggregate(hypergraph, x, weight) ** 2)

    gradient = jax.value_and_grad(energy, argnums=(1, 2))
    for function in (gradient, jax.jit(gradient)):
        assert same_bits(function(plain(hypergraph), x, weight), function(hypergraph, x, weight))
    batch = [stack([h, h.dual.dual]) for h in (plain(hypergraph), hypergraph)]
    mapped = jax.jit(jax.vmap(gradient, in_axes=(0, None, None)))
    assert same_bits(*(mapped(h, x, weight) for h in batch))
    assert plain(hypergraph).pad(num_incidences=9).graph.split is None


def test_aggregation_with_64_bit_indices(rng):
    x = rng.normal(size=(6, 3)).astype(np.float32)
    expected = hypergraph_aggregate(DIRECTED, x)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda ids: ids.astype(np.int64), DIRECTED)
        assert_split(wide.graph, wide.head)
        assert same_bits(wide.dual.dual, wide)
        for hypergraph in (wide, plain(wide)):
            assert_close(hypergraph_aggregate(hypergraph, x), expected, 1e-6, "value")


def test_a_batch_is_joined(rng):
    """Slots are those of the block-diagonal matrix, with surplus ones at other places."""
    graphs = [graph_of(Incidence.random(rng, name)).pad(num_edges=30) for name in STACKABLE]
    graphs = [graph.with_edge_split() for graph in graphs]
    batch = stack(graphs)
    joined, _ = block_diagonal(jax.vmap(lambda graph: graph.matrix(slots=True))(batch))
    assert joined.slots.ids.dtype == joined.slots.places.dtype == np.int32
    ids, places = map(np.asarray, joined.slots)
    no_row = sum(graph.num_dst for graph in graphs)  # not -1, as other slots may follow
    surplus = places[:, 0] == no_row
    assert (places[surplus] == (no_row, 1)).all()
    assert (ids[surplus] == PADDING).all()
    # The reference splits the block-diagonal matrix.
    all_indptr, all_cols = [np.zeros(1, np.int32)], []
    for i, graph in enumerate(graphs):
        size = int(graph.indptr[-1])
        all_indptr.append(all_indptr[-1][-1] + np.asarray(graph.indptr)[1:])
        all_cols.append(np.asarray(graph.cols)[:size] + i * graph.num_src)
    expected = reference(np.concatenate(all_indptr), np.concatenate(all_cols))
    is_slot = expected.places[:, 0] != PADDING
    np.testing.assert_array_equal(ids[~surplus], expected.ids[is_slot])
    np.testing.assert_array_equal(places[~surplus], expected.places[is_slot])


@pytest.mark.parametrize("num_entries", [0, 1, 7, 300])
@pytest.mark.parametrize("num_rows", [0, 1, 40])
def test_rows_of_entries(rng, num_rows, num_entries):
    indptr = np.sort(rng.integers(num_entries + 2, size=num_rows + 1)).astype(np.int32)
    rows = np.searchsorted(indptr, np.arange(num_entries), side="right") - 1
    expected = np.where(rows < num_rows, rows, -1)
    for dtype in (jnp.int32, jnp.int64):
        with jax.enable_x64(dtype == jnp.int64):
            pointers = jnp.asarray(indptr, dtype)
            found = ids.row_ids(pointers, num_entries)
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, expected)
