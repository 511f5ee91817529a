"""The Graph container: builders, validation and methods; builders that Hypergraph has in common."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from op_spec import SCENARIOS, STACKABLE, Incidence, same_bits, stack
from segment_cases import with_far_padding

from jax_gnn import Graph, Hypergraph, host_arrays, sddmm, spmm

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
EDGE_ARRAYS = ("rows", "cols", "t_rows", "t_cols", "t_order", "edge_ids")
ARRAYS = ("indptr", "rows", "cols", "t_indptr", *EDGE_ARRAYS[2:])


def dense(graph: Graph) -> np.ndarray:
    """``(num_src, num_dst)`` counts, after checking all that the container promises."""
    arrays = {name: getattr(graph, name) for name in ARRAYS}
    assert all(isinstance(array, jax.Array) for array in arrays.values())
    assert {str(array.dtype) for array in arrays.values()} == {"int32"}
    assert all(arrays[name].shape == (graph.num_edges,) for name in EDGE_ARRAYS)
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    # Slots behind the last edge are padding, marked by -1 in every array of edges.
    size = arrays["indptr"][-1]
    assert all((arrays[name][size:] == -1).all() for name in EDGE_ARRAYS)
    # CSR by destination, and by source (t_): rows ascend, and so do columns within a row.
    for prefix, num_rows, num_cols in (
        ("", graph.num_dst, graph.num_src),
        ("t_", graph.num_src, graph.num_dst),
    ):
        indptr, rows, cols = (arrays[prefix + name] for name in ("indptr", "rows", "cols"))
        assert len(indptr) == num_rows + 1
        np.testing.assert_array_equal(np.repeat(np.arange(num_rows), np.diff(indptr)), rows[:size])
        assert ((cols[:size] >= 0) & (cols[:size] < num_cols)).all()
        assert (np.diff(cols)[np.diff(rows) == 0] >= 0).all()
    rows, cols, t_rows, t_cols, t_order = (
        arrays[name][:size] for name in ("rows", "cols", "t_rows", "t_cols", "t_order")
    )
    # t_order maps positions by source to positions by destination: a permutation.
    np.testing.assert_array_equal(np.sort(t_order), np.arange(size))
    np.testing.assert_array_equal(cols[t_order], t_rows)
    np.testing.assert_array_equal(rows[t_order], t_cols)
    matrix = np.zeros((graph.num_src, graph.num_dst))
    np.add.at(matrix, (cols, rows), 1)
    return matrix


# Builders from pairs of ids, and the names of the sizes of both sides.
BUILDERS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "Graph": (Graph.from_edges, "num_src", "num_dst"),
    "Hypergraph": (Hypergraph.from_incidence, "num_nodes", "num_hyperedges"),
}


def builder(kind: str, num_left: int, num_right: int, **options) -> Callable[..., Any]:
    """Return the builder of a container, with its sizes."""
    function, left_size, right_size = BUILDERS[kind]
    return functools.partial(function, **{left_size: num_left, right_size: num_right}, **options)


def build(incidence: Incidence, kind: str = "Graph", *, validate: bool = False) -> Any:
    function = builder(kind, incidence.num_left, incidence.num_right, validate=validate)
    return function(incidence.left.astype(np.int32), incidence.right.astype(np.int32))


def square(rng: np.random.Generator, num_nodes: int = 7, num_edges: int = 20) -> Graph:
    """Return a random multigraph with self-loops."""
    return Graph.from_edges(*rng.integers(0, num_nodes, (2, num_edges)), num_nodes=num_nodes)


SMALL = Graph.from_edges([0, 1, 4, 1, 2], [1, 0, 2, 2, 2], num_nodes=6)
# By container: a small one, one of other sizes, and sizes to pad the small one to.
CONTAINERS: dict[str, tuple[Any, Any, dict[str, int]]] = {
    "Graph": (
        SMALL,
        Graph.from_edges([0], [0], num_src=3, num_dst=1),
        {"num_nodes": 9, "num_edges": 8},
    ),
    "Hypergraph": (
        Hypergraph.from_hyperedges([[0, 1], [1, 2, 4], []], num_nodes=6),
        Hypergraph.from_hyperedges([[0]]),
        {"num_nodes": 9, "num_hyperedges": 4, "num_incidences": 8},
    ),
}


# --- from_edges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_from_edges(rng: np.random.Generator, scenario: str) -> None:
    incidence = Incidence.random(rng, scenario)
    graph = build(incidence, validate=scenario != "padding")
    np.testing.assert_array_equal(dense(graph), incidence.dense())
    sizes = (graph.num_src, graph.num_dst, graph.num_edges)
    assert sizes == (incidence.num_left, incidence.num_right, len(incidence.left))


def test_many_edges_on_several_threads(rng: np.random.Generator) -> None:
    """Half of the edges go into one node, and some ids are out of range."""
    # Enough edges for several threads; half of them share destination 77, a hub.
    num_src, num_dst, count = 70_001, 999, 1 << 19
    src = rng.integers(-9, num_src + 9, count)
    dst = np.where(rng.random(count) < 0.5, 77, rng.integers(-1, num_dst + 1, count))
    with host_arrays():
        graph = Graph.from_edges(src, dst, num_src=num_src, num_dst=num_dst, validate=False)
    places = np.flatnonzero((src >= 0) & (src < num_src) & (dst >= 0) & (dst < num_dst))
    order = places[np.lexsort((src[places], dst[places]))]  # stable
    t_order = np.lexsort((dst[order], src[order]))
    expected = {
        "indptr": np.searchsorted(dst[order], np.arange(num_dst + 1)),
        "rows": dst[order],
        "cols": src[order],
        "t_indptr": np.searchsorted(src[order][t_order], np.arange(num_src + 1)),
        "t_rows": src[order][t_order],
        "t_cols": dst[order][t_order],
        "t_order": t_order,
        "edge_ids": order,
    }
    for name, array in expected.items():
        actual = getattr(graph, name)
        np.testing.assert_array_equal(actual[: len(array)], array, err_msg=name)
        assert (actual[len(array) :] == -1).all()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_edge_ids(rng: np.random.Generator, scenario: str) -> None:
    """Edge ids are positions in the input; equal edges keep their order."""
    incidence = Incidence.random(rng, scenario)
    graph = build(incidence)
    size = int(graph.indptr[-1])
    edge_ids = np.asarray(graph.edge_ids)[:size]
    np.testing.assert_array_equal(np.sort(edge_ids), np.flatnonzero(incidence.valid))
    np.testing.assert_array_equal(incidence.left[edge_ids], graph.cols[:size])
    np.testing.assert_array_equal(incidence.right[edge_ids], graph.rows[:size])
    rows, cols = np.asarray(graph.rows)[:size], np.asarray(graph.cols)[:size]
    # The sort is stable: among equal edges, ids ascend.
    equal = (np.diff(rows) == 0) & (np.diff(cols) == 0)
    assert equal.any() or scenario != "duplicates"
    assert (np.diff(edge_ids)[equal] > 0).all()


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("kind", BUILDERS)
def test_ids_of_any_integer_type(kind: str, dtype: str) -> None:
    """Ids may be of a type that does not hold the sizes, on the host and inside jit."""
    src, dst = np.array([5, 0, 3, 100]), np.array([1, 1, 0, 0])
    function = builder(kind, 1000, 300)
    for call in (function, jax.jit(function)):
        with jax.enable_x64(dtype.endswith("64")):
            got = call(src.astype(dtype), dst.astype(dtype))
        assert same_bits(got, function(src, dst))


@pytest.mark.parametrize("kind", BUILDERS)
def test_ids_of_any_sequence_type(rng: np.random.Generator, kind: str) -> None:
    incidence = Incidence.random(rng, "random")
    function = builder(kind, incidence.num_left, incidence.num_right)
    for sequence in (list, tuple, jnp.asarray):
        got = function(sequence(incidence.left), sequence(incidence.right))
        assert same_bits(got, build(incidence, kind))


ALL_EDGES: dict[str, Callable[[np.ndarray], Any]] = {
    "array": np.array,
    "array of JAX": jnp.array,
    "lists": np.ndarray.tolist,
    "tuple": tuple,
    "pairs": lambda edges: [*zip(*edges.tolist(), strict=True)],
    "iterator": lambda edges: zip(*edges, strict=True),
}


@pytest.mark.parametrize("kind", ALL_EDGES)
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_all_edges_in_one_argument(rng: np.random.Generator, kind: str, count: int) -> None:
    edges = rng.integers(0, 5, (2, count))
    graph = Graph.from_edges(ALL_EDGES[kind](edges), num_nodes=5)
    assert same_bits(graph, Graph.from_edges(*edges, num_nodes=5))
    np.testing.assert_array_equal(graph.edges(), edges)


@pytest.mark.parametrize(
    ("edges", "error", "message"),
    [
        (
            [(0, 1), (0, 1, 2)],
            ValueError,
            r"src\[1\] must be \(source, destination\), got \(0, 1, 2\)",
        ),
        (np.zeros((5, 2), int), ValueError, r"\(2, num_edges\) .* shape \(5, 2\); transpose it"),
        ([[0, 1], [1, 2], [2, 0]], ValueError, r"a list of tuples .*got \[\[0, 1\], \[1, 2\]"),
        ([0, 1], ValueError, r"where dst is not given, .* got \[0, 1\]"),
        (np.arange(2), ValueError, r"got an array of int64 of shape \(2,\)"),
        (None, TypeError, "where dst is not given, .* got None"),
        ("01", TypeError, "got '01'"),
        ([("a", "b")], TypeError, "got <U1; jax_gnn.convert.from_table takes"),
        ([[0, 1], [2]], ValueError, "same length, got 2 and 1"),
    ],
)
def test_bad_edges(edges, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Graph.from_edges(edges)


def test_edges_in_the_order_of_the_input() -> None:
    """Reversed edges follow their originals, self-loops come last, and dropped edges are absent."""
    graph = Graph.from_edges([(2, 1), (0, 5), (1, 1), (0, 1)], num_nodes=3, validate=False)
    extended = graph.symmetrized().with_self_loops().pad(num_edges=20)
    # The edge (0, 5) is out of range; (1, 1) is a self-loop already, and symmetric.
    src, dst = extended.edges()
    assert sorted(zip(src[:5], dst[:5], strict=True)) == [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1)]
    assert {(src[0], dst[0]), (src[1], dst[1])} == {(2, 1), (1, 2)} and (src[2], dst[2]) == (1, 1)
    assert list(zip(src[5:], dst[5:], strict=True)) == [(0, 0), (2, 2)]
    with pytest.raises(TypeError, match="edges works on the host only"):
        jax.jit(Graph.edges)(graph)


@pytest.mark.parametrize("with_order", [False, True])
@pytest.mark.parametrize("where", ["host", "jit"])
def test_from_sorted(rng: np.random.Generator, where: str, with_order: bool) -> None:
    """Edges sorted by destination, with sources in any order, and padding anywhere."""
    num_src, num_dst, count = rng.integers(1, 9), rng.integers(1, 9), rng.integers(0, 30)
    src, dst = rng.integers(0, num_src, count), np.sort(rng.integers(0, num_dst, count))
    t_order = np.argsort(src, kind="stable")
    valid = np.arange(count)
    if where == "jit":
        bad = rng.random(count) < 0.2
        src = np.where(bad, rng.choice([-1, num_src, -(2**31)], count), src)
        valid = np.flatnonzero(~bad)
    sizes = {"num_src": int(num_src), "num_dst": int(num_dst)}
    build = functools.partial(Graph.from_sorted, **sizes)
    orders = {"t_order": t_order} if with_order else {}
    # On the host, ids are checked; only inside jit may padding stand anywhere.
    graph = (jax.jit(build) if where == "jit" else build)(src, dst, **orders)
    want = Graph.from_edges(src[valid], dst[valid], **sizes).pad(num_edges=count)
    np.testing.assert_array_equal(np.asarray(graph.edge_ids)[: len(valid)], valid)
    np.testing.assert_array_equal(np.asarray(graph.cols)[: len(valid)], src[valid])
    for name in ("indptr", "rows", "t_indptr", "t_rows", "t_cols"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(want, name), name)
    order = np.asarray(graph.t_order)
    np.testing.assert_array_equal(np.sort(order[: len(valid)]), np.arange(len(valid)))
    assert (order[len(valid) :] == -1).all()
    assert (np.asarray(graph.cols)[len(valid) :] == -1).all()
    np.testing.assert_array_equal(src[valid][order[: len(valid)]], want.t_rows[: len(valid)])
    assert int(graph.num_input_edges) == count


def test_from_sorted_drops_ids_out_of_range() -> None:
    graph = Graph.from_sorted([5, 0, -1, 1], [0, 0, 1, 1], num_nodes=2, validate=False)
    assert graph.num_edges == 4
    np.testing.assert_array_equal(dense(graph), [[1, 0], [0, 1]])
    np.testing.assert_array_equal(graph.edge_ids, [1, 3, -1, -1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"src": [0, 1], "dst": [1, 0]}, "dst must ascend, got dst[0] = 1 before dst[1] = 0"),
        ({"src": [0, 3], "dst": [0, 1], "num_nodes": 2}, "src[1] = 3 is outside"),
        ({"src": [1, 0], "dst": [0, 1], "t_order": [0, 1]}, "once, by source"),
        ({"src": [0, 0], "dst": [0, 1], "t_order": [1, 0]}, "by source, then destination"),
        ({"src": [1, 0], "dst": [0, 1], "t_order": [1, 1]}, "t_order must have each edge once"),
        ({"src": [1, 0], "dst": [0, 1], "t_order": [1, 2]}, "t_order[1] = 2 is outside"),
        ({"src": [1, 0], "dst": [0, 1], "t_order": [1]}, "same length"),
    ],
)
def test_bad_sorted_edges(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Graph.from_sorted(**arguments)


def test_default_sizes() -> None:
    assert repr(Graph.from_edges([4, 1], [0, 2])) == "Graph(num_nodes=5, num_edges=2)"
    assert repr(Graph.from_edges([0], [7])) == "Graph(num_nodes=8, num_edges=1)"
    one_given = Graph.from_edges([4, 1], [0, 2], num_src=9)
    assert repr(one_given) == "Graph(num_src=9, num_dst=3, num_edges=2)"
    other_given = Graph.from_edges([4, 1], [0, 2], num_dst=9)
    assert repr(other_given) == "Graph(num_src=5, num_dst=9, num_edges=2)"
    empty = Graph.from_edges(np.zeros(0, int), np.zeros(0, int))
    assert (empty.num_nodes, empty.num_edges) == (0, 0)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", BUILDERS)
def test_inside_jit_as_on_the_host(rng: np.random.Generator, kind: str, scenario: str) -> None:
    """Builders take two traced arrays, or one of them traced."""
    incidence = Incidence.random(rng, scenario)
    function = builder(kind, incidence.num_left, incidence.num_right)
    src, dst = incidence.left.astype(np.int32), incidence.right.astype(np.int32)
    want = build(incidence, kind)
    assert same_bits(jax.jit(function)(src, dst), want)
    assert same_bits(jax.jit(lambda dst: function(incidence.left, dst))(dst), want)


def test_ids_beyond_32_bits_beside_a_traced_array() -> None:
    """Ids on the host are dropped before JAX narrows them to 32 bits."""
    src = np.array([0, 2**32, 1, 2**31, -(2**32)])
    build = functools.partial(Graph.from_edges, num_src=2, num_dst=3, validate=False)
    for x64 in (False, True):
        with jax.enable_x64(x64):
            got = jax.jit(lambda dst: build(src, dst))(np.arange(5, dtype=np.int32) % 3)
        assert same_bits(got, build(src, np.arange(5) % 3))


def test_ids_beyond_int64_are_padding() -> None:
    src = np.array([1, 2**63, 2**64 - 1, 0], np.uint64)
    build = functools.partial(Graph.from_edges, num_nodes=2, validate=False)
    assert same_bits(build(src, [0, 1, 0, 1]), build([1, -1, -1, 0], [0, 1, 0, 1]))


@pytest.mark.parametrize("x64", [False, True])
def test_methods_of_hand_made_graphs_beyond_32_bits(rng: np.random.Generator, x64: bool) -> None:
    """Ids out of range are padding, for edge values and the transpose as well as -1."""
    graph = Graph.from_edges(rng.integers(0, 5, 20), rng.integers(0, 6, 20), num_src=5, num_dst=6)
    graph = graph.pad(num_edges=30)
    values = np.arange(1.0, 21.0, dtype=np.float32)
    with jax.enable_x64(x64):
        padded = with_far_padding(rng, graph)
        # with_far_padding draws ids out of range in place of -1.
        assert not np.isin(-1, padded.t_order)
        np.testing.assert_array_equal(
            padded.edge_values(values)[:20], graph.edge_values(values)[:20]
        )
        assert not np.isin(np.asarray(padded.edge_values(values))[20:], values).any()
        got, want = padded.transpose(), graph.transpose()
        for name in ("t_order", "edge_ids"):
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name))


@pytest.mark.parametrize("kind", BUILDERS)
def test_built_under_vmap(rng: np.random.Generator, kind: str) -> None:
    incidences = [Incidence.random(rng, scenario) for scenario in STACKABLE]
    src, dst = (
        np.stack([getattr(incidence, side) for incidence in incidences]).astype(np.int32)
        for side in ("left", "right")
    )
    sizes = incidences[0].num_left, incidences[0].num_right
    built = jax.jit(jax.vmap(builder(kind, *sizes)))(src, dst)
    assert same_bits(built, stack([build(incidence, kind) for incidence in incidences]))
    # The batch is no size.
    assert tuple(getattr(built, name) for name in BUILDERS[kind][1:]) == sizes


def test_64_bit_indices() -> None:
    """A size beyond 32 bits needs 64-bit indices; only shapes are evaluated here."""
    sizes = {"num_src": 2**31, "num_dst": 2}
    build = functools.partial(Graph.from_edges, **sizes)
    ids = jax.ShapeDtypeStruct((3,), np.int32)
    with pytest.raises(ValueError, match="need 64-bit indices: enable jax_enable_x64"):
        jax.eval_shape(build, ids, ids)
    with jax.enable_x64(True):
        graph = jax.eval_shape(build, ids, ids)
    assert {array.dtype for array in jax.tree.leaves(graph)} == {np.dtype("int64")}


@pytest.mark.parametrize(
    ("kind", "sizes", "error", "message"),
    [
        ("Graph", {}, TypeError, r"num_nodes must be given inside jax\.jit"),
        ("Graph", {"num_src": 3}, TypeError, r"num_dst must be given inside jax\.jit"),
        ("Graph", {"num_dst": 3}, TypeError, r"num_src must be given inside jax\.jit"),
        ("Graph", {"num_nodes": -2}, ValueError, "num_nodes must not be negative"),
        ("Hypergraph", {"num_nodes": 3}, TypeError, r"num_hyperedges must be given inside jax\."),
        ("Hypergraph", {"num_hyperedges": 3}, TypeError, r"num_nodes must be given inside jax\."),
        (
            "Hypergraph",
            {"num_nodes": -2, "num_hyperedges": 3},
            ValueError,
            "num_nodes must not be negative",
        ),
    ],
)
def test_bad_sizes_inside_jit(
    kind: str, sizes: dict[str, int], error: type[Exception], message: str
) -> None:
    function, ids = functools.partial(BUILDERS[kind][0], **sizes), np.zeros(2, np.int32)
    with pytest.raises(error, match=message):
        jax.jit(function)(ids, ids)


@pytest.mark.parametrize(("kind", "name"), [("Graph", "src"), ("Hypergraph", "node_idx")])
def test_bad_arrays_inside_jit(kind: str, name: str) -> None:
    function, ids = jax.jit(builder(kind, 2, 2)), np.zeros(2, np.int32)
    with pytest.raises(TypeError, match=f"{name} must be an array of integers, got float32"):
        function(np.zeros(2, np.float32), ids)
    with pytest.raises(ValueError, match=r"same length, got 2 and 3"):
        function(ids, np.zeros(3, np.int32))


# --- from_scipy ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("family", ["array", "matrix"])
@pytest.mark.parametrize("dtype", [bool, np.int8, np.float64])
def test_from_scipy(rng: np.random.Generator, kind: str, family: str, dtype) -> None:
    want = (3 * rng.normal(size=(6, 4)) * rng.integers(0, 2, (6, 4))).astype(dtype)
    matrix = getattr(scipy.sparse, f"{kind}_{family}")(want)
    graph = Graph.from_scipy(matrix)
    stored = np.zeros((6, 4))
    # Formats of blocks and diagonals store zeros between the entries, which are edges, too.
    stored[matrix.tocoo().row, matrix.tocoo().col] = 1
    np.testing.assert_array_equal(dense(graph), stored.T)
    values = np.asarray(graph.edge_values(matrix.tocoo().data))
    np.testing.assert_array_equal(values, want[graph.rows, graph.cols].astype(values.dtype))


def test_from_scipy_keeps_stored_zeros_and_duplicates() -> None:
    """Explicit zeros and duplicates are edges, as their values can be told apart."""
    matrix = scipy.sparse.coo_array(([1.0, 0, 2], ([0, 1, 0], [1, 0, 1])), shape=(2, 3))
    graph = Graph.from_scipy(matrix)
    np.testing.assert_array_equal(dense(graph), [[0, 1], [2, 0], [0, 0]])
    np.testing.assert_array_equal(graph.edge_values(matrix.data), [1, 2, 0])


@pytest.mark.parametrize(
    ("matrix", "error", "message"),
    [
        (np.eye(2), TypeError, "matrix must be a scipy sparse matrix or array, got ndarray"),
        (
            scipy.sparse.coo_array(np.array([0, 1])),
            ValueError,
            r"matrix must be \(num_dst, num_src\), got shape \(2,\)",
        ),
    ],
)
def test_bad_scipy(matrix, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Graph.from_scipy(matrix)


def forged(kind: str, **changes) -> Any:
    """Return a 4 by 4 matrix of ones in a format of scipy, some of its arrays replaced."""
    matrix = getattr(scipy.sparse, f"{kind}_array")(np.ones((4, 4), np.float32))
    for name, value in changes.items():
        setattr(matrix, name, np.array(value, np.int32) if isinstance(value, list) else value)
    return matrix


def rows_of(lengths: list[int]) -> np.ndarray:
    """Return rows of zeros for scipy's format of lists."""
    rows = np.empty(len(lengths), object)
    rows[:] = [[0] * length for length in lengths]
    return rows


# Differences of neighbours are positive after a wrap around of 32 bits.
WRAPS = [0, 2**30, 2**31 - 1, -(2**30), 1]
FORGED = [
    *[
        (kind, {"indptr": indptr}, message)
        for kind in ("csr", "csc")
        for indptr, message in (
            (WRAPS, "indptr must start at 0 and never decrease"),
            ([0, 10**9, 10**9, 10**9, 0], "indptr must start at 0 and never decrease"),
            ([-1, 4, 8, 12, 16], "indptr must start at 0"),
            ([0, 4, 8, 12, 17], "indptr ends at 17, but there are 16 indices"),
            ([0, 4, 8, 16], "indptr has 4 entries in place of 5"),
            ([0, 4, 8, 12, 16, 10**6], "indptr has 6 entries in place of 5"),
            ([[0, 4, 8, 12, 16]], "indptr must be a one-dimensional array of integers"),
            (np.array([0, 4, 8, 12, 16.0]), "indptr must be a one-dimensional array of integers"),
            ((0, 4, 8, 12, 16), "indptr must be a one-dimensional array of integers"),
        )
    ],
    ("csr", {"indices": [0] * 15 + [4]}, r"indices must be in \[0, 4\)"),
    ("csr", {"indices": np.full(16, 2**32)}, r"indices must be in \[0, 4\)"),
    ("csc", {"indices": [0] * 15 + [-1]}, r"indices must be in \[0, 4\)"),
    ("csr", {"indices": [0] * 15}, "indices has 15 entries in place of 16"),
    ("csr", {"data": np.ones(15)}, "indices has 16 entries in place of 15"),
    ("csr", {"data": np.ones((16, 1))}, r"data has shape \(16, 1\)"),
    ("bsr", {"indptr": [0, 10**6]}, "indptr ends at 1000000"),
    ("bsr", {"indices": [1]}, r"indices must be in \[0, 1\)"),
    ("bsr", {"data": np.ones((1, 3, 3))}, "do not divide"),
    ("bsr", {"data": np.ones((1, 0, 4))}, "data has shape"),
    ("coo", {"coords": (np.zeros(16, int), np.zeros(15, int))}, "same length"),
    ("coo", {"coords": (np.zeros((4, 4), int),) * 2}, "same length"),
    ("coo", {"data": np.ones(17)}, "same length"),
    ("coo", {"coords": (np.zeros(16, int), np.full(16, 4))}, "index 4 exceeds"),
    ("coo", {"coords": (np.full(16, -1), np.zeros(16, int))}, "negative .* index"),
    ("lil", {"data": rows_of([10**6, 4, 4, 4])}, r"rows\[0\] has 4 entries in place of 1000000"),
    ("lil", {"rows": rows_of([4, 4, 4])}, "rows has 3 entries in place of 4"),
    ("lil", {"rows": np.array([[4] * 4] * 4 + [None], object)[:4]}, "index 4 exceeds"),
    ("lil", {"rows": np.array([1, 2, 3, 4], object)}, "not a valid lil matrix: .* has no len"),
    ("dia", {"offsets": [0] * 10**6}, "offsets has 1000000 entries in place of 7"),
    ("dia", {"offsets": np.arange(7) + 2**32}, "offsets name a diagonal outside"),
    ("dok", {"_dict": {(2**40, 0): 1.0}}, "out of bounds|too large"),
    ("dok", {"_dict": {(4, 0): 1.0}}, "index 4 exceeds"),
    ("dok", {"_dict": {"a": 1.0}}, "not a valid dok matrix"),
]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    FORGED,
    ids=[f"{kind}-{'-'.join(changes)}-{message}" for kind, changes, message in FORGED],
)
@pytest.mark.parametrize("container", [Graph, Hypergraph])
def test_forged_scipy(container, kind: str, changes, message: str) -> None:
    """The conversions of scipy would write outside their arrays."""
    with pytest.raises(ValueError, match=message):
        container.from_scipy(forged(kind, **changes))


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, ">i4"])
def test_from_scipy_with_surplus_entries(dtype) -> None:
    """Entries outside all rows are ignored; index arrays may be of any integer type."""
    indptr, indices = np.array([0, 1, 1, 3, 3]).astype(dtype), np.arange(16).astype(dtype)
    graph = Graph.from_scipy(forged("csr", indptr=indptr, indices=indices))
    np.testing.assert_array_equal(graph.rows, [0, 2, 2])
    np.testing.assert_array_equal(graph.cols, [0, 1, 2])


# --- Values of edges -----------------------------------------------------------------------------


@pytest.mark.parametrize("features", [(), (3,), (2, 2)])
def test_edge_values(rng: np.random.Generator, features: tuple[int, ...]) -> None:
    incidence = Incidence.random(rng, "padding")
    graph = build(incidence).pad(num_edges=30)
    size = int(graph.indptr[-1])
    values = rng.normal(size=(24, *features)).astype(np.float32)
    for function in (Graph.edge_values, jax.jit(Graph.edge_values)):
        got = np.asarray(function(graph, values, 7))
        np.testing.assert_array_equal(got[:size], values[np.asarray(graph.edge_ids)[:size]])
        assert (got[size:] == 7).all()
        assert got.dtype == np.float32
        # Dropped edges have no value in the graph, so the input gets the fill value for them.
        restored = graph.to_input_order(got, 9)
        valid = np.isin(np.arange(24), np.asarray(graph.edge_ids))
        np.testing.assert_array_equal(restored, np.where(valid, values.T, np.float32(9)).T)


def test_edge_values_in_the_order_of_the_input(rng: np.random.Generator) -> None:
    """Padding has no value in the input; values in any other order than the graph's are refused."""
    values = np.arange(5.0, dtype=np.float32)
    loops = SMALL.with_self_loops().pad(num_edges=14)
    np.testing.assert_array_equal(loops.to_input_order(loops.edge_values(values)), values)
    with pytest.raises(ValueError, match="in which symmetrized added 2"):
        SMALL.symmetrized().to_input_order(np.ones(7))
    with pytest.raises(ValueError, match=r"values must be \(num_edges=5, .*, got shape \(4,\)"):
        SMALL.to_input_order(np.ones(4))
    with pytest.raises(TypeError, match="call it on what a function under"):
        jax.jit(Graph.to_input_order)(SMALL, values)
    with pytest.raises(ValueError, match="needs num_input_edges of the graph, got None"):
        dataclasses.replace(SMALL, num_input_edges=None).to_input_order(values)
    x = rng.normal(size=(6, 2)).astype(np.float32)
    right, wider = spmm(SMALL, x, SMALL.edge_values(values)), SMALL.pad(num_edges=6)
    np.testing.assert_array_equal(spmm(wider, x, wider.edge_values(values)), right)
    with pytest.raises(ValueError, match=r"weight must be \(num_edges=6.*got shape \(5,\)"):
        jax.jit(spmm)(wider, x, values)


def test_edge_values_are_differentiable(rng: np.random.Generator) -> None:
    graph = build(Incidence.random(rng, "padding"))
    weight = rng.normal(size=24).astype(np.float32)
    gradient = jax.grad(lambda values: jnp.vdot(graph.edge_values(values), weight))(np.ones(24))
    want = np.zeros(24, np.float32)
    size = int(graph.indptr[-1])
    # The gradient scatters cotangents to the ids; dropped edges have a gradient of 0.
    want[np.asarray(graph.edge_ids)[:size]] = weight[:size]
    np.testing.assert_array_equal(gradient, want)


@pytest.mark.parametrize("count", [0, 4, 6])
def test_number_of_edge_values(count: int) -> None:
    """The number of values is checked for all derived graphs, but not inside jit."""
    values = np.ones((count, 2), np.float32)
    dropped = Graph.from_edges([0, 7, 1, 1, 9], [0, 1, 0, 1, 0], num_nodes=2, validate=False)
    built = jax.jit(functools.partial(Graph.from_edges, num_nodes=6))(
        *map(np.asarray, SMALL.edges())
    )
    derived = SMALL.symmetrized().with_self_loops(), SMALL.pad(num_edges=9), SMALL.transpose()
    for graph in (SMALL, dropped, dropped.with_self_loops(), built, *derived):
        assert int(graph.num_input_edges) == 5
        with pytest.raises(
            ValueError, match=r"\(num_input_edges=5, \*features\).*" + f"\\({count}"
        ):
            graph.edge_values(values)
        with pytest.raises(ValueError, match="num_input_edges=5"):
            jax.jit(graph.edge_values)(values)  # the graph is a constant
    # Inside jit the number of input edges is traced: missing values become NaN instead.
    got = np.asarray(jax.jit(Graph.edge_values)(SMALL, values))[:, 0]
    np.testing.assert_array_equal(np.isnan(got), np.asarray(SMALL.edge_ids) >= count)


def test_edge_values_beyond_32_bits_are_refused() -> None:
    """Values are times of 64 bits, while JAX has 32."""
    for call in (SMALL.edge_values, SMALL.to_input_order):
        assert call([-(2**31), 0, 1, 2, 2**31 - 1]).dtype == np.int32
        for large in (2**31, -(2**40)):
            with pytest.raises(ValueError, match=f"must fit in int32, .*, got {large}: subtract"):
                call([0, 1, 2, 3, large])
        with jax.enable_x64(True):
            assert 2**40 in call(np.array([0, 1, 2, 3, 2**40]))


def test_edge_values_of_no_edges() -> None:
    graph = Graph.from_edges(np.zeros(0, int), np.zeros(0, int), num_nodes=2).pad(num_edges=3)
    np.testing.assert_array_equal(graph.edge_values(np.ones((0, 2)), 5), np.full((3, 2), 5))


# --- Other graphs from one -----------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_transpose(rng: np.random.Generator, scenario: str) -> None:
    incidence = Incidence.random(rng, scenario)
    graph = build(incidence)
    transposed = graph.transpose()
    np.testing.assert_array_equal(dense(transposed), incidence.dense().T)
    # The transpose has the bits of a graph built from swapped arrays.
    reversed_ids = dataclasses.replace(
        incidence,
        num_left=incidence.num_right,
        num_right=incidence.num_left,
        left=incidence.right,
        right=incidence.left,
    )
    assert same_bits(transposed, build(reversed_ids))
    assert same_bits(transposed.transpose(), graph)
    assert same_bits(jax.jit(Graph.transpose)(graph), transposed)


def test_values_of_the_transpose(rng: np.random.Generator) -> None:
    graph = build(Incidence.random(rng, "duplicates"))
    values = rng.normal(size=24)
    np.testing.assert_array_equal(
        graph.transpose().edge_values(values), graph.edge_values(values)[graph.t_order]
    )


def test_self_loops(rng: np.random.Generator) -> None:
    graph = square(rng)
    values = rng.uniform(1, 2, 20)
    added = graph.with_self_loops()
    matrix = dense(graph)
    want = matrix + np.diag(np.diag(matrix) == 0)
    np.testing.assert_array_equal(dense(added), want)
    assert added.num_edges == want.sum()
    assert same_bits(added.with_self_loops(), added)
    # Added loops have no id, so they take the fill value.
    new = np.asarray(added.edge_ids) < 0
    np.testing.assert_array_equal(added.rows[new], np.flatnonzero(np.diag(matrix) == 0))
    np.testing.assert_array_equal(added.edge_values(values)[~new], graph.edge_values(values))
    assert (np.asarray(added.edge_values(values, 9))[new] == 9).all()


@pytest.mark.parametrize("loops", [False, True])
def test_symmetrized(rng: np.random.Generator, loops: bool) -> None:
    graph = square(rng)
    graph = graph.with_self_loops() if loops else graph
    added = graph.symmetrized()
    matrix = dense(graph)
    np.testing.assert_array_equal(dense(added), np.maximum(matrix, matrix.T))
    assert same_bits(added.symmetrized(), added)
    # Every new edge has the position of an edge the other way.
    values = rng.uniform(1, 2, 20)
    undirected = {
        frozenset(edge)
        for edge in zip(*map(np.ndarray.tolist, weighted(graph, values)), strict=True)
    }
    for edge in zip(*map(np.ndarray.tolist, weighted(added, values)), strict=True):
        assert frozenset(edge) in undirected


def weighted(graph: Graph, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.asarray(graph.rows), np.asarray(graph.cols), np.asarray(graph.edge_values(values))


@pytest.mark.parametrize("change", [Graph.with_self_loops, Graph.symmetrized])
def test_added_edges_of_padded_bipartite_and_empty_graphs(change: Callable[[Graph], Graph]) -> None:
    # Both methods drop padding.
    padded = SMALL.pad(num_edges=20)
    assert same_bits(change(padded), change(SMALL))
    with pytest.raises(TypeError, match=f"{change.__name__} works on the host only"):
        jax.jit(change)(SMALL)
    with pytest.raises(ValueError, match=r"bipartite graph has no num_nodes.*num_src=3.*num_dst=2"):
        change(Graph.from_edges([0], [0], num_src=3, num_dst=2))
    nothing = Graph.from_edges(np.zeros(0, int), np.zeros(0, int), num_nodes=0)
    assert same_bits(change(nothing), nothing)


# --- Padding -------------------------------------------------------------------------------------


def test_pad(rng: np.random.Generator) -> None:
    incidence = Incidence.random(rng, "random")
    graph = build(incidence)
    padded = graph.pad(num_src=15, num_dst=11, num_edges=40)
    assert (padded.num_src, padded.num_dst, padded.num_edges) == (15, 11, 40)
    want = np.zeros((15, 11))
    want[:9, :6] = incidence.dense()
    np.testing.assert_array_equal(dense(padded), want)
    np.testing.assert_array_equal(padded.edge_ids[:24], graph.edge_ids)
    nodes = SMALL.pad(num_nodes=9)
    assert (nodes.num_nodes, nodes.num_edges) == (9, 5)
    np.testing.assert_array_equal(dense(nodes)[:6, :6], dense(SMALL))


@pytest.mark.parametrize("kind", CONTAINERS)
def test_pad_inside_jit(kind: str) -> None:
    small, _, sizes = CONTAINERS[kind]
    assert same_bits(jax.jit(lambda graph: graph.pad(**sizes))(small), small.pad(**sizes))
    assert same_bits(small.pad(), small)


def test_transpose_of_padded() -> None:
    padded = SMALL.pad(num_nodes=9, num_edges=8)
    assert same_bits(padded.transpose(), SMALL.transpose().pad(num_nodes=9, num_edges=8))
    assert same_bits(padded.transpose().transpose(), padded)


def test_bad_padding_of_nodes() -> None:
    with pytest.raises(ValueError, match="give it or those, not both"):
        SMALL.pad(num_nodes=9, num_dst=9)
    with pytest.raises(ValueError, match="bipartite graph has no num_nodes"):
        SMALL.pad(num_src=9).pad(num_nodes=10)


# --- The container -------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_degrees(rng: np.random.Generator, scenario: str) -> None:
    incidence = Incidence.random(rng, scenario)
    graph, matrix = build(incidence), incidence.dense()
    np.testing.assert_array_equal(graph.out_degrees(), matrix.sum(1))
    np.testing.assert_array_equal(graph.in_degrees(), matrix.sum(0))


@pytest.mark.parametrize("kind", CONTAINERS)
def test_pytree(kind: str) -> None:
    small, unlike, _ = CONTAINERS[kind]
    leaves, structure = jax.tree.flatten(small)
    assert same_bits(jax.tree.unflatten(structure, leaves), small)
    # All sizes are shapes, nothing is static: containers of any size share compiled functions.
    assert jax.tree.structure(unlike) == structure
    assert hash(structure) == hash(jax.tree.structure(unlike))
    same = jax.jit(lambda tree: tree)(small)
    assert type(same) is type(small) and same_bits(same, small)
    # Checkpoints name arrays by these paths.
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(small)]
    splits = [f"{name}.{part}" for name in ("split", "t_split") for part in ("ids", "places")]
    prefix, splits = ("", []) if kind == "Graph" else (".graph", splits)
    assert paths == [f"{prefix}.{name}" for name in (*ARRAYS, *splits, "num_input_edges")]


@pytest.mark.parametrize("kind", CONTAINERS)
def test_frozen(kind: str) -> None:
    small = CONTAINERS[kind][0]
    name = dataclasses.fields(small)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(small, name, getattr(small, name))


def test_repr() -> None:
    assert repr(SMALL) == "Graph(num_nodes=6, num_edges=5)"
    assert repr(SMALL.pad(num_src=9)) == "Graph(num_src=9, num_dst=6, num_edges=5)"
    assert repr(jax.eval_shape(lambda graph: graph, SMALL)) == repr(SMALL)
    axes = jax.tree.map(lambda _: None, SMALL)
    assert repr(axes).startswith("Graph(indptr=None, rows=None, ")


def test_vmap_over_stacked_graphs(rng: np.random.Generator) -> None:
    graphs = [build(Incidence.random(rng, scenario)) for scenario in STACKABLE]
    values = rng.normal(size=24)
    stacked = stack(graphs)
    assert (stacked.num_src, stacked.num_dst, stacked.num_edges) == (9, 6, 24)
    for function in (
        Graph.transpose,
        Graph.in_degrees,
        Graph.out_degrees,
        functools.partial(Graph.edge_values, values=values),
        functools.partial(Graph.pad, num_src=12, num_edges=30),
    ):
        assert same_bits(jax.vmap(function)(stacked), stack([function(graph) for graph in graphs]))


def test_export() -> None:
    exported = jax.export.export(jax.jit(Graph.transpose))(SMALL)
    result = jax.export.deserialize(exported.serialize()).call(SMALL)
    assert repr(result) == repr(SMALL.transpose())
    assert same_bits(result, SMALL.transpose())


# --- What ops refuse -----------------------------------------------------------------------------

GRAPH = Graph.from_edges([0, 1, 2], [1, 0, 0], num_src=3, num_dst=2)
SPLIT = GRAPH.with_edge_split()
UNFIT: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "floats": ({"cols": np.ones(3)}, TypeError, r"graph\.cols must be an int32 or int64 array"),
    "narrow": ({"t_rows": np.ones(3, np.int16)}, TypeError, r"graph\.t_rows .*got int16"),
    "a list": ({"t_order": [0, 1, 2]}, TypeError, r"graph\.t_order .*got list"),
    "an axis": ({"rows": np.ones((3, 1), np.int32)}, ValueError, r"graph\.rows must be one-dim"),
    "no rows": ({"indptr": np.ones(0, np.int32)}, ValueError, r"graph\.indptr must have at least"),
    "lengths": ({"cols": np.ones(2, np.int32)}, ValueError, r"graph: rows, cols must have one"),
    "types": (
        {"t_indptr": np.ones(4, np.int64)},
        TypeError,
        r"arrays of graph must have one dtype",
    ),
    "slots": ({"split": SPLIT.t_split}, ValueError, r"graph\.split\.ids must be .*with_edge_split"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_ops_check_the_arrays_of_a_graph(case: str) -> None:
    changes, error, message = UNFIT[case]
    graph = dataclasses.replace(GRAPH, **changes)
    x = jnp.ones((3, 2))
    for call in (lambda: spmm(graph, x), lambda: sddmm(graph, x[:2], x), graph.check):
        with pytest.raises(error, match=message):
            call()
    with pytest.raises(error, match=message.replace("graph", "part", 1)):
        graph.check("part")


def test_numpy_arrays_of_64_bits() -> None:
    """Without 64 bits, ids become int32, and those that do not fit are padding."""
    # An id beyond 32 bits would wrap around to a valid one if it were only cast.
    graph = jax.tree.map(lambda ids: np.asarray(ids, np.int64), GRAPH)
    graph.cols[-1] = graph.t_rows[-1] = 2**40
    checked = graph.check()
    assert {array.dtype for array in jax.tree.leaves(checked)} == {np.dtype(np.int32)}
    np.testing.assert_array_equal(spmm(graph, jnp.ones((3, 1)))[:, 0], [2, 0])
