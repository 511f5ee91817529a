"""Conversions: there and back is the identity, and what is wrong is said."""

from __future__ import annotations

import csv
import gzip
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from jax_gnn import Graph, HeteroGraph, Hypergraph, RelationalGraph, convert, host_arrays
from jax_gnn.convert import Data

Rng = np.random.Generator
NAMES = np.array(["ann", "Ζωή", "李", "🙂 e", "", "0", "a,b", 'q"t', "line\nbreak", "z"], object)
EDGE_TYPES = ("a", "likes", "a"), ("a", "likes", "b"), ("b", "with space", "a")


@pytest.fixture(autouse=True)
def on_the_host() -> Iterator[None]:
    with host_arrays():
        yield


def need(name: str):
    """Import a package or skip the test; warnings of the import are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


def columns(rng: Rng, size: int, prefix: str = "") -> dict[str, np.ndarray]:
    """Draw values of several dtypes and ranks."""
    return {
        f"{prefix}x": rng.normal(size=(size, 3)).astype(np.float32),
        f"{prefix}time": rng.integers(-(2**62), 2**62, size),
        f"{prefix}attr": rng.normal(size=(size, 2, 2)),
        f"{prefix}mask": rng.integers(2, size=size) > 0,
    }


def random_pairs(rng: Rng, num_src: int, num_dst: int, count: int) -> np.ndarray:
    """Draw edges, with self-loops and repetitions, in any order."""
    count = count if num_src and num_dst else 0
    return np.stack([rng.integers(max(size, 1), size=count) for size in (num_src, num_dst)])


def graphs(rng: Rng) -> list[Data]:
    """Draw an empty graph, nodes without edges, a node with self-loops, and multigraphs."""
    data = []
    for num_nodes, num_edges in ((0, 0), (4, 0), (1, 3), (6, 20), (9, 5)):
        src, dst = random_pairs(rng, num_nodes, num_nodes, num_edges)
        graph = Graph.from_edges(src, dst, num_nodes=num_nodes)
        edges = columns(rng, num_edges, "edge_")
        data.append(Data(graph, nodes=columns(rng, num_nodes), edges=edges))
    return data


def hetero(rng: Rng) -> Data:
    sizes = {"a": 5, "b": 3, "none": 0}
    edges = {key: random_pairs(rng, sizes[key[0]], sizes[key[2]], 6) for key in EDGE_TYPES[:2]}
    edges[EDGE_TYPES[2]] = np.zeros((2, 0), int)
    return Data(
        HeteroGraph.from_edges(edges, sizes),
        nodes={kind: columns(rng, sizes[kind]) for kind in ("a", "b")},
        edges={key: columns(rng, 6, "edge_") for key in EDGE_TYPES[:2]},
    )


def in_order(graph) -> list[Any]:
    """Return sizes and edges in the order of the input."""
    if isinstance(graph, HeteroGraph):
        graph = graph.relational
    if isinstance(graph, Hypergraph):
        graph = graph.graph
    kinds = [graph.edge_types] if isinstance(graph, RelationalGraph) else []
    nodes = graph.nodes if kinds else graph
    order = np.argsort(nodes.edge_ids)
    return [nodes.num_src, nodes.num_dst, *(a[order] for a in (nodes.cols, nodes.rows, *kinds))]


def assert_same(actual, expected) -> None:
    """Check that trees have equal arrays of equal dtypes."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def assert_equal(actual: Data, expected: Data, *parts: str) -> None:
    assert type(actual.graph) is type(expected.graph)
    for a, b in zip(in_order(actual.graph), in_order(expected.graph), strict=True):
        np.testing.assert_array_equal(a, b)
    for part in parts or ("nodes", "edges", "node_names", "n_node", "n_edge"):
        assert_same(getattr(actual, part), getattr(expected, part))


def batch(rng: Rng) -> Data:
    """Draw a batch of three graphs, one of them empty."""
    parts = [graphs(rng)[i] for i in (3, 0, 4)]
    counts = np.array([part.graph.num_nodes for part in parts])
    starts = np.cumsum(counts) - counts
    src, dst = np.concatenate(
        [
            np.stack(in_order(part.graph)[2:]) + start
            for part, start in zip(parts, starts, strict=True)
        ],
        axis=1,
    )
    join = lambda *arrays: np.concatenate(arrays)  # noqa: E731
    return Data(
        Graph.from_edges(src, dst, num_nodes=counts.sum()),
        nodes=jax.tree.map(join, *(part.nodes for part in parts)),
        edges=jax.tree.map(join, *(part.edges for part in parts)),
        globals={"y": rng.normal(size=(3, 2))},
        n_node=counts,
        n_edge=np.array([part.graph.num_edges for part in parts]),
    )


# --- Packages -------------------------------------------------------------------------------------


def test_jraph(rng):
    jraph = need("jraph")
    for data in (*graphs(rng), batch(rng)):
        graphs_tuple = convert.to_jraph(data)
        result = convert.from_jraph(graphs_tuple)
        assert_equal(result, data, "nodes", "edges", "globals")
        assert result.n_node.tolist() == graphs_tuple.n_node.tolist()
        assert_same(convert.to_jraph(result), graphs_tuple)
    # Padding graphs and other trees survive a round trip.
    padded = jraph.pad_with_graphs(graphs_tuple, 24, 40, 7)
    tree = padded._replace(nodes=[padded.nodes["x"], (padded.nodes["attr"],)], edges=None)
    assert_same(convert.to_jraph(convert.from_jraph(tree)), tree)


def test_pyg(rng):
    pyg = need("torch_geometric.data")
    for data in graphs(rng):
        data = replace(data, globals={"y": np.float32(rng.normal(size=(1, 3))), "title": "Ζωή"})
        converted = convert.to_pyg(data)
        result = convert.from_pyg(converted)
        assert converted.num_nodes == data.graph.num_nodes
        if data.graph.num_nodes not in (0, 1, data.graph.num_edges):  # where rows tell apart
            assert_equal(result, data, "nodes", "edges", "globals")
        again = convert.to_pyg(result)
        assert set(again.keys()) == set(converted.keys())
        assert_same(
            {k: v.numpy() for k, v in converted if k != "title"},
            {k: v.numpy() for k, v in again if k != "title"},
        )
    # A batch of graphs.
    data = batch(rng)
    converted = convert.to_pyg(data)
    assert isinstance(converted, pyg.Batch)
    assert converted.num_graphs == 3
    np.testing.assert_array_equal(converted.edge_index, in_order(data.graph)[2:])
    assert_equal(convert.from_pyg(converted), data, "nodes", "edges", "globals", "n_node", "n_edge")
    for count in (1, 2):  # rows of a whole graph are of one graph, and are not those of a batch
        single = pyg.Data(**converted[0].to_dict())
        single.y, single.title, single.u = converted.y[0].repeat(7), "Ζωή", converted.y[:1]
        batched = pyg.Batch.from_data_list([single] * count)
        result = convert.from_pyg(batched)
        assert [len(part) for part in result.globals["y"]] == [14] * count
        assert (
            result.globals["u"].shape == (count, 2) and result.globals["title"] == ["Ζωή"] * count
        )
        again = convert.to_pyg(result)
        assert again.title == batched.title and again[count - 1].y.equal(single.y)
    for value in (np.ones(3), np.float32(1), "ab"):
        with pytest.raises(
            ValueError, match=r"globals\['y'\] must have a row for each of 2 graphs"
        ):
            convert.to_pyg(replace(result, globals={"y": value}))
    # Sparse tensors have no array.
    single.x = single.x.to_sparse()
    with pytest.raises(TypeError, match=r"data\['x'\] must be .*sparse_coo: call its to_dense"):
        convert.from_pyg(single)
    # Several types, one of them without nodes.
    data = replace(hetero(rng), globals={"title": "李"})
    converted = convert.to_pyg(data)
    assert converted["none"].num_nodes == 0
    converted["a"].split = "train"
    result = convert.from_pyg(converted)
    assert_equal(result, data, "globals")
    assert result.report == ("data['a']['split'] has not 5 rows: dropped",)
    assert {k: dict(v) for k, v in result.nodes.items() if v}.keys() == data.nodes.keys()
    assert_same({k: result.edges[k] for k in data.edges}, data.edges)


def test_bfloat16(rng):
    torch = need("torch")
    need("torch_geometric")
    data = Data(Graph.from_edges([0], [1]), nodes={"x": np.asarray(jnp.ones((2, 3), jnp.bfloat16))})
    assert convert.to_pyg(data).x.dtype == torch.bfloat16
    assert_equal(convert.from_pyg(convert.to_pyg(data)), data, "nodes")


def test_dgl(rng):
    need("dgl")
    for data in (*graphs(rng), replace(batch(rng), globals={})):
        assert_equal(convert.from_dgl(convert.to_dgl(data)), data)
    data = hetero(rng)
    result = convert.from_dgl(convert.to_dgl(data))
    assert_equal(result, data, "n_node")
    assert_same({k: result.nodes[k] for k in data.nodes}, data.nodes)
    assert_same({k: result.edges[k] for k in data.edges}, data.edges)


def test_networkx(rng):
    networkx = need("networkx")
    for kind in ("Graph", "DiGraph", "MultiGraph", "MultiDiGraph"):
        for num_nodes, num_edges in ((0, 0), (3, 0), (1, 3), (7, 20)):
            graph = getattr(networkx, kind)(title="李", more=[1])
            # Nodes may be text, empty or not ASCII, and tuples.
            names = [*NAMES[: num_nodes - 1], ("pair", 1)][:num_nodes]
            for name in names:
                graph.add_node(name, age=int(rng.integers(9)), vector=[1.0, float(rng.normal())])
            for i, (src, dst) in enumerate(
                random_pairs(rng, num_nodes, num_nodes, num_edges).T.tolist()
            ):
                key = {"key": f"k{i}"} if "Multi" in kind else {}
                graph.add_edge(names[src], names[dst], weight=float(rng.normal()), **key)
            if num_nodes > 1:
                graph.nodes[names[1]]["only"] = "here"
            data = convert.from_networkx(graph)
            result = convert.to_networkx(data, directed=graph.is_directed())
            assert networkx.utils.graphs_equal(result, graph)
            assert list(result.nodes) == list(graph.nodes)
            assert result.is_multigraph() == graph.is_multigraph() or not num_edges
    for data in graphs(rng):
        result = convert.from_networkx(convert.to_networkx(data, multigraph=True))
        actual, expected = (
            sorted(zip(*map(np.ndarray.tolist, in_order(item.graph)[2:]), times, strict=True))
            for item in (result, data)
            for times in [item.edges["edge_time"].tolist() if item.edges else []]
        )
        assert actual == expected  # sorted, as networkx orders edges by source
        if data.graph.num_nodes:
            assert_same(
                {k: v.tolist() for k, v in result.nodes.items()},
                {k: v.tolist() for k, v in data.nodes.items()},
            )
    # Names of attributes that are not text cannot be columns.
    for part in ("nodes", "edges", "graph"):
        mixed = networkx.path_graph(2)
        places = {"nodes": mixed.nodes[0], "edges": mixed.edges[0, 1], "graph": mixed.graph}
        places[part].update({"v": 1.0, 1: 20})
        with pytest.raises(TypeError, match=rf"attributes of .*{part} must have text .* got 1: re"):
            convert.from_networkx(mixed)
    with pytest.raises(ValueError, match="node_names must differ from each other, got 'a' 2 times"):
        convert.to_networkx(Data(PAIR, node_names=np.array(["a", "a"])))
    with pytest.raises(ValueError, match="multigraph must be True: 2 edges are parallel"):
        convert.to_networkx(Graph.from_edges([0, 0, 0], [1, 1, 1]), multigraph=False)


def test_hypernetx(rng):
    if int(need("pandas").__version__.partition(".")[0]) > 2:
        pytest.skip("HyperNetX 2 reads properties with pandas 2 only")
    hypernetx = need("hypernetx")
    # Names and properties of both sides.
    hyperedges = {name: list(NAMES[rng.choice(10, 3, replace=False)]) for name in ("e", "f", "李")}
    original = hypernetx.Hypergraph(hyperedges, edge_properties={"e": {"weight": 2.5, "kind": "z"}})
    data = convert.from_hypernetx(original)
    result = convert.to_hypernetx(data)
    assert result.incidence_dict == original.incidence_dict
    assert result.edges["e"].kind == "z" and result.edges["e"].weight == 2.5
    again = convert.from_hypernetx(result)
    assert_equal(again, data, "nodes", "edges", "incidences", "node_names", "edge_names")
    with pytest.warns(
        UserWarning, match="2 nodes in no hyperedge, 1 hyperedges without nodes, 1 inc"
    ):
        convert.to_hypernetx(Hypergraph.from_hyperedges([[0, 0, 1], []], num_nodes=4))


def test_dhg(rng):
    dhg = need("dhg")
    original = dhg.Hypergraph(
        6, [(0, 1, 2), (4,), (2, 3)], [1.0, 2.5, 3.0], v_weight=[1, 2, 3, 4, 5, 6]
    )
    result = convert.to_dhg(convert.from_dhg(original))
    assert (result.e, result.v_weight, result.num_v) == (original.e, original.v_weight, 6)
    # Directed, then undirected graphs.
    edges, weights = [(0, 1), (1, 0), (2, 2), (3, 0)], [1.0, 2.5, 3.0, 4.0]
    original = dhg.DiGraph(5, edges, weights)
    assert convert.to_dhg(convert.from_dhg(original)).e == original.e
    original = dhg.Graph(5, edges[1:], weights[1:])
    result = convert.to_dhg(convert.from_dhg(original), directed=False)
    assert (result.e, result.num_v) == (original.e, 5)
    with pytest.warns(UserWarning, match="1 equal edges"):
        convert.to_dhg(Graph.from_edges([0, 0], [1, 1]))


# --- Sparse matrices ------------------------------------------------------------------------------


def test_sparse(rng):
    for num_dst, num_src, count in ((4, 7, 12), (3, 3, 0), (0, 2, 0), (1, 1, 3)):
        src, dst = random_pairs(rng, num_src, num_dst, count)
        matrix = scipy.sparse.coo_array((rng.normal(size=count), (dst, src)), (num_dst, num_src))
        data = convert.from_scipy(matrix)
        result = convert.to_scipy(data)
        for actual, expected in zip(
            (result.row, result.col, result.data), (dst, src, matrix.data), strict=True
        ):
            np.testing.assert_array_equal(actual, expected)
        assert result.shape == matrix.shape
        summed = convert.to_scipy(data, format="csr").toarray()
        np.testing.assert_allclose(summed, matrix.toarray(), rtol=1e-5, atol=1e-6)
        # JAX holds vectors as values, scipy numbers only.
        dense = replace(data, edges={"weight": rng.normal(size=(count, 2)).astype(np.float32)})
        for kind, read in (("bcoo", convert.from_bcoo), ("bcsr", convert.from_bcsr)):
            converted = getattr(convert, f"to_{kind}")(dense)
            assert converted.shape == (num_dst, num_src, 2)
            again = getattr(convert, f"to_{kind}")(read(converted))
            assert_same(again.data, converted.data)
            assert_same(again.indices, converted.indices)
        assert_equal(convert.from_bcoo(convert.to_bcoo(dense)), dense)
        np.testing.assert_allclose(convert.to_bcoo(data).todense(), matrix.toarray(), 1e-5, 1e-6)


def test_padding_of_a_matrix_is_dropped():
    padded = jax.experimental.sparse.BCOO.fromdense(jnp.eye(3), nse=5)
    data = convert.from_bcoo(padded)
    assert data.graph.num_edges == 3
    assert data.report == ("matrix: 2 of 5 entries are padding: dropped",)
    assert convert.from_bcsr(jax.experimental.sparse.BCSR.from_bcoo(padded)).graph.num_edges == 3


def test_incidence():
    hypergraph = Hypergraph.from_hyperedges([[2, 0], [], [1, 2]], num_nodes=4)
    matrix = convert.to_scipy(hypergraph)
    assert matrix.toarray().tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0]]
    with pytest.raises(ValueError, match="undirected"):
        convert.to_scipy(Hypergraph.from_directed([0], [0], [1], [0]))


# --- Tables ---------------------------------------------------------------------------------------


def tables(rng: Rng, num_nodes: int = 10, num_edges: int = 30) -> tuple[Any, Any]:
    src, dst = random_pairs(rng, num_nodes, num_nodes, num_edges)
    names = rng.permutation(NAMES)[:num_nodes]
    kinds = NAMES[rng.integers(4, size=num_nodes)]
    edges = {"src": names[src], "dst": names[dst], "weight": np.float32(rng.normal(size=len(src)))}
    return edges, {
        "id": names,
        "age": np.float32(rng.normal(size=num_nodes)),
        "kind": kinds,
        "class": kinds,
    }


def read(*args, **options) -> Data:
    """Read a table without warnings, which another test covers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return convert.from_table(*args, **options)


OPTIONS = {"one_hot": "kind", "labels": ["class"]}


@pytest.mark.parametrize("how", ["mapping", "csv", "pandas", "polars", "pyarrow"])
def test_table(how, rng, tmp_path):
    edges, nodes = tables(rng)
    if how == "csv":  # where empty cells are missing values
        for table in (edges, nodes):
            table.update(
                {k: np.where(v == "", "none", v) for k, v in table.items() if v.dtype == object}
            )
    sources: Any = edges, nodes
    if how == "csv":
        sources = tmp_path / "edges.csv", tmp_path / "nodes.csv"
        for path, table in zip(sources, (edges, nodes), strict=True):
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows(
                    [table, *zip(*(v.tolist() for v in table.values()), strict=True)]
                )
    elif how == "pyarrow":
        sources = tuple(need("pyarrow").table(table) for table in sources)
    elif how != "mapping":
        sources = tuple(need(how).DataFrame(table) for table in sources)
    # The graph, labels and features are those of the columns.
    data = read(*sources, **OPTIONS)
    number = {name: i for i, name in enumerate(nodes["id"].tolist())}
    assert in_order(data.graph)[:2] == [10, 10]
    for ids, column in zip(in_order(data.graph)[2:], ("src", "dst"), strict=True):
        assert ids.tolist() == [number[name] for name in edges[column]]
    np.testing.assert_allclose(data.edges["weight"], edges["weight"], rtol=1e-6)
    kinds = sorted(set(nodes["kind"]))
    assert data.categories["kind"].tolist() == kinds
    assert data.nodes["class"].tolist() == [kinds.index(kind) for kind in nodes["kind"]]
    assert data.nodes["kind"].dtype == data.nodes["age"].dtype == np.float32
    np.testing.assert_array_equal(data.nodes["kind"].argmax(1), data.nodes["class"])
    np.testing.assert_array_equal(data.features("age", "kind")[:, 0], data.nodes["age"])
    result = convert.to_table(data)
    for actual, expected in zip(result, (edges, nodes), strict=True):
        assert list(actual) == list(expected)
        assert_same(actual, expected)
    assert_equal(read(*result, **OPTIONS), data)


def test_table_of_ids(rng):
    """Integers of 64 bits, dense and sparse, are in ascending order without a table of nodes."""
    for low, high in ((-(2**63), 2**63 - 1), (2**40, 2**40 + 9), (0, 6), (3, 2**20)):
        src, dst = rng.integers(low, high, size=(2, 40), endpoint=True)
        data = read({"src": src, "dst": dst})
        names = np.unique([src, dst])
        node_names = np.arange(len(names)) if data.node_names is None else data.node_names
        np.testing.assert_array_equal(node_names, names)
        np.testing.assert_array_equal(node_names[np.stack(in_order(data.graph)[2:])], [src, dst])
        # A table of nodes fixes the order.
        shuffled = rng.permutation(names)
        again = read({"src": src, "dst": dst}, {"id": shuffled})
        np.testing.assert_array_equal(shuffled[np.stack(in_order(again.graph)[2:])], [src, dst])
    text = read({"src": np.array(["1", "2", "b"]), "dst": [2, 1, 1]})
    assert text.node_names.tolist() == ["1", "2", "b"]  # numbers become text
    assert read({"src": [], "dst": []}).graph.num_nodes == 0


def test_tables_of_arrow(rng):
    """Read categories, several chunks, missing numbers, vectors."""
    pyarrow = need("pyarrow")
    edges, nodes = tables(rng)
    expected = read(edges, {"id": nodes["id"]})
    chunked = pyarrow.table(edges)
    # Chunks of different sizes, one empty.
    chunked = pyarrow.concat_tables([chunked.slice(0, 7), chunked.slice(7, 0), chunked.slice(7)])
    categories = chunked.set_column(0, "src", chunked["src"].dictionary_encode())
    vectors = pyarrow.array([[i, i + 0.5] for i in range(10)], pyarrow.list_(pyarrow.float32(), 2))
    node_columns = {"id": nodes["id"], "v": vectors, "n": pyarrow.array([None, *range(9)])}
    for table in (chunked, categories):
        data = read(table, pyarrow.table(node_columns))
        assert_equal(data, expected, "edges", "node_names")
        assert data.nodes["v"].tolist() == [[i, i + 0.5] for i in range(10)]
        np.testing.assert_array_equal(data.nodes["n"], [np.nan, *range(9)])
    polars = need("polars")
    frame = polars.DataFrame(edges).with_columns(polars.col("dst").cast(polars.Categorical))
    assert_equal(read(frame, {"id": nodes["id"]}), expected, "edges", "node_names")


def test_table_of_relations(rng):
    edges, _ = tables(rng)
    edges["how"] = NAMES[rng.integers(3, size=30)]
    data = read(edges, relation="how")
    assert data.graph.relation_names == tuple(sorted(set(edges["how"])))
    result = convert.to_table(data, relation="how")[0]
    assert_same(result, {key: edges[key] for key in result})
    assert result.keys() == edges.keys()


def test_table_of_memberships(rng):
    edges, nodes = tables(rng)
    edges["dst"] = rng.permutation(edges["dst"])
    data = read(edges, nodes, hypergraph=True, **OPTIONS)
    assert data.graph.num_nodes == 10
    assert data.edge_names.tolist() == sorted(set(edges["dst"]))
    result = convert.to_table(data)
    assert_same(result, (edges, nodes))
    assert_equal(
        read(*result, hypergraph=True, **OPTIONS), data, "nodes", "incidences", "edge_names"
    )


def test_tables_by_type(rng):
    edges = {
        ("author", "writes", "paper"): {"src": ["ann", "李"], "dst": [7, 3], "order": [1.0, 2.0]},
        ("paper", "cites", "paper"): {"src": [3, 7], "dst": [4, 7]},
    }
    nodes = {"paper": {"id": [3, 4, 7, 9], "year": [1.0, 2.0, 3.0, 4.0]}}
    data = read(edges, nodes)
    assert data.graph.num_nodes == {"paper": 4, "author": 2}
    tables = convert.to_table(data)
    for key, table in edges.items():
        assert {name: values.tolist() for name, values in tables[0][key].items()} == table
    assert tables[1]["paper"]["id"].tolist() == [3, 4, 7, 9]
    assert tables[1]["author"]["id"].tolist() == ["ann", "李"]


def edges_lost(rng: Rng) -> tuple[Data, list[np.ndarray]]:
    """Return edges by type, some with ids out of range, and the values of all others."""
    first, second = ("a", "w", "b"), ("b", "w", "b")
    edges = {first: [[9, 0, 9, 1, 1], [0, 0, 0, 1, 7]], second: [[0, 3, 1], [1, 0, 0]]}
    graph = HeteroGraph.from_edges(edges, {"a": 2, "b": 2}, validate=False)
    values = rng.normal(size=5), rng.normal(size=3)
    remaining = [values[0][[1, 3]], values[1][[0, 2]]]
    return Data(graph, edges={first: {"w": values[0]}, second: {"w": values[1]}}), remaining


def test_values_of_edges_that_were_lost(rng):
    data, remaining = edges_lost(rng)
    for table, expected in zip(convert.to_table(data)[0].values(), remaining, strict=True):
        np.testing.assert_array_equal(table["w"], expected)
    # Values have a row for each edge of the input, dropped ones included.
    few = replace(data, edges={key: {"w": part["w"][1:]} for key, part in data.edges.items()})
    with pytest.raises(ValueError, match=r"must have a row for each of 5 edges, got shape \(4,\)"):
        convert.to_table(few)
    by_hand = replace(data.graph, num_input_edges=None)
    with pytest.raises(ValueError, match=r"edges\[.* must be left out .* num_input_edges is None"):
        convert.to_table(replace(data, graph=by_hand))
    assert convert.to_table(by_hand)[0].keys() == data.edges.keys()


@pytest.mark.parametrize("package", ["pyg", "dgl"])
def test_values_of_edges_that_were_lost_elsewhere(package, rng):
    need({"pyg": "torch_geometric", "dgl": "dgl"}[package])
    data, remaining = edges_lost(rng)
    result = getattr(convert, f"from_{package}")(getattr(convert, f"to_{package}")(data))
    for columns, expected in zip(result.edges.values(), remaining, strict=True):
        np.testing.assert_array_equal(columns["w"], expected)


def test_table_says_what_it_changed():
    edges = {
        "src": ["a", "b", "b", "who", None],
        "dst": ["b", "a", "a", "a", "b"],
        "weight": [1.0, None, 3.0, 4.0, 5.0],
        "note": ["x", "y", "z", "u", "v"],
    }
    nodes = {"id": ["a", "b", "c"], "kind": ["k", None, "l"]}
    with pytest.warns(UserWarning, match="from_table: edges: 2 of 5 name no node.*; ") as caught:
        data = convert.from_table(edges, nodes, labels="kind")
    assert len(caught) == 1
    assert data.report == (
        "edges: 2 of 5 name no node, or nothing: dropped",
        "edges: 1 of 3 repeat another: kept",
        "edges['weight']: 1 of 5 are missing",
        "edges['note'] holds no numbers, and is in neither one_hot nor labels: dropped",
        "nodes['kind']: 1 of 3 are missing",
    )
    assert data.nodes["kind"].tolist() == [0, -1, 1]
    np.testing.assert_array_equal(data.edges["weight"], [1, np.nan, 3])


def test_csv_files(tmp_path):
    """Read numbers, names that look like numbers, missing cells, a byte order mark, tabs."""
    path = tmp_path / "a.csv"
    path.write_text("\ufeffsrc,dst,w,t\r\n007,7,1e3,\r\n7,007,-2,5\r\n", encoding="utf-8")
    data = read(path)
    assert data.node_names.tolist() == ["007", "7"]
    np.testing.assert_array_equal(data.edges["t"], [np.nan, 5])
    assert data.edges["w"].tolist() == [1000, -2]
    path = tmp_path / "a.tsv"
    path.write_text("src\tdst\n1\t2\n\n2\t0\n")
    assert read(path).graph.num_edges == 2
    # Errors name the line of the file.
    for text, message in (
        ("src,dst\n1\n", r"a.csv:2 must have 2 cells as the header has, got 1"),
        ("src,src\n", "'src' twice"),
        ("", "a.csv must have a header in its first line, got none"),
    ):
        (tmp_path / "a.csv").write_text(text)
        with pytest.raises(ValueError, match=message):
            convert.from_table(tmp_path / "a.csv")


def test_text_files(tmp_path):
    """Read compressed text, SNAP's lists of edges, a header alone, whole numbers as floats."""
    text = "src,dst,w\n1.0,2,5\n2.0,1,6\n"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    data = read(tmp_path / "a.csv.gz")
    assert data.node_names.tolist() == [1, 2]
    assert data.edges["w"].tolist() == [5, 6]
    # The last comment before the edges is the header.
    lists = "# Directed graph\n# FromNodeId\tToNodeId\tSign\n30\t1412\t-1\n#\n\n1412 4 1\n"
    (tmp_path / "a.txt").write_text(lists)
    data = read(tmp_path / "a.txt")
    assert data.node_names.tolist() == [4, 30, 1412]
    assert data.edges["Sign"].tolist() == [-1, 1]
    assert_equal(read(tmp_path / "a.txt", src="FromNodeId", dst="ToNodeId"), data)
    (tmp_path / "a.txt").write_text("# Nodes: 0\n")
    (tmp_path / "h.csv").write_text("src,dst,w\n")
    for path in ("a.txt", "h.csv"):
        assert read(tmp_path / path).graph.num_edges == 0
    assert convert.from_table(tmp_path / "h.csv").edges["w"].shape == (0,)
    for name, content, message in (
        ("l.csv", "src,dst\na,b\nzoë,b\n".encode("latin-1"), "l.csv:3 must be UTF-8, got 'zo"),
        ("s.txt", b"# a\n1 2\n1 2 3\n", "s.txt:3 must have 2 fields as the first edge has, got 3"),
        ("d.csv.gz", gzip.compress(text.encode())[:-9], "d.csv.gz must be a whole file, got a dam"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            convert.from_table(tmp_path / name)


def test_numbers_that_float32_rounds():
    """Numbers that float32 rounds, such as times, keep their dtype and are reported."""
    edges = {"src": [0, 1], "dst": [1, 0], "time": [1_700_000_001, 1_700_000_063]}
    edges |= {"some": [2**30 + 1, None], "small": [2**24, -(2**24)], "even": [2**40, 0]}
    nodes = {"id": [0, 1], "since": np.array([2**63 - 1, 0]), "x": [1, 2]}
    with pytest.warns(UserWarning, match="beyond 2"):
        data = convert.from_table(edges, nodes)
    assert data.edges["time"].dtype == np.int64
    assert data.edges["time"].tolist() == edges["time"]
    np.testing.assert_array_equal(data.edges["some"], [2**30 + 1, np.nan])
    assert data.edges["small"].dtype == data.edges["even"].dtype == np.float32
    assert data.features().tolist() == [[1], [2]]
    message = "has numbers beyond 2**24, which float32 rounds: kept in int64"
    assert f"edges['time'] {message}" in data.report
    assert f"nodes['since'] {message}, so that features() takes it by name only" in data.report


def test_names_of_several_kinds():
    """Names may be unsigned, whole floats among integers, or numbers among text."""
    big = {"src": np.array([2**64 - 1, 1], np.uint64), "dst": np.array([2**63, 1], np.uint64)}
    assert read(big).node_names.tolist() == [1, 2**63, 2**64 - 1]
    assert read({"src": [2**64 - 1, 1], "dst": [2**63, 2]}).node_names.tolist()[-1] == 2**64 - 1
    assert read({"src": [-1, 0], "dst": big["dst"]}).node_names.tolist() == [-1, 0, 1, 2**63]
    assert read({"src": [0, 0.0, "a"], "dst": [1, 1.0, 2]}).node_names.tolist() == [*"012a"]
    assert read({"src": [0, 0.0], "dst": [1, np.float64(1)]}).node_names is None


def test_frames(tmp_path):
    """Read an index that an argument names, lazy frames, and categories with text."""
    pandas, polars = need("pandas"), need("polars")
    edges = {"src": ["b"], "dst": ["c"]}
    nodes = pandas.DataFrame({"id": [*"abc"], "f": [1.0, 2.0, 3.0]})
    nodes = nodes[nodes.f > 1]
    nodes.to_parquet(tmp_path / "nodes.parquet")
    # The same table as columns, as an index, and in a file.
    for source in (nodes, nodes.set_index("id"), tmp_path / "nodes.parquet"):
        data = read(edges, source)
        assert data.node_names.tolist() == ["b", "c"]
        assert [*data.nodes] == ["f"] and data.features().tolist() == [[2], [3]]
    frame = polars.DataFrame({"src": [*"ab"], "dst": [*"ba"], "how": [*"xy"]})
    expected = read(frame, labels="how")
    # Categories are text, in lazy frames too.
    for kind in (polars.Categorical, polars.Enum(["b", "a", "x", "y"])):
        for names in (["src"], ["dst", "how"], ["src", "dst", "how"]):
            lazy = frame.lazy().with_columns(polars.col(names).cast(kind))
            for source in (lazy, lazy.collect()):
                assert_equal(read(source, labels="how"), expected)


# --- Errors ---------------------------------------------------------------------------------------


def graphs_tuple(**changes):
    """Return an object with the attributes of jraph's class."""
    parts: dict[str, Any] = {
        "nodes": np.ones((3, 2)),
        "edges": None,
        "senders": [0, 1],
        "receivers": [1, 2],
        "globals": None,
        "n_node": [2, 1],
        "n_edge": [1, 1],
    }
    return type("GraphsTuple", (), parts | changes)()


PAIR = Graph.from_edges([0, 1], [1, 0])
EDGES = {"src": ["a"], "dst": ["b"]}
TYPE_ERRORS = [
    (convert.from_jraph, [1], "graphs must be a jraph.GraphsTuple, got list"),
    (convert.from_networkx, {}, "graph must be one of networkx, got dict"),
    (convert.from_dgl, 1, "graph must be a DGLGraph, got int"),
    (convert.from_dhg, {0: [1]}, "graph must be .* of DHG, got dict"),
    (convert.from_hypernetx, {0: [1]}, "hypergraph must be .*, got dict"),
    (convert.from_bcoo, np.eye(2), "matrix must be a BCOO .*, got ndarray"),
    (convert.to_scipy, np.eye(2), "data must be a Graph or Hypergraph.*ndarray"),
    (Data, [0, 1], "graph must be a Graph, .*, got list"),
    (convert.from_table, 3, "edges must be a path, .*, got int"),
    (
        convert.from_table,
        {"src": [1.5], "dst": [1]},
        r"edges\['src'\], edges\['dst'\] must be text or integers, as names are, got float",
    ),
]
# Counts that do not add up, values without a row for each node or edge, wrong columns.
VALUE_ERRORS = [
    (lambda: convert.from_jraph(graphs_tuple(n_node=[2, 2])), "n_node must add up to .* 3, got 4"),
    (lambda: convert.from_jraph(graphs_tuple(n_edge=[3, 1])), "n_edge must add up to .* 2, got 4"),
    (lambda: convert.from_jraph(graphs_tuple(n_edge=[2])), r"n_edge must be \(2,\), .*\(1,\)"),
    (
        lambda: convert.from_jraph(graphs_tuple(globals=np.ones(3))),
        r"globals must have a row for each of 2 graphs, got shape \(3,\)",
    ),
    (lambda: Data(PAIR, n_node=np.array([2])), "must be given together, got n_node alone"),
    (lambda: convert.to_scipy(PAIR, format="lil"), "format must be one of .*'lil'"),
    (lambda: convert.to_scipy(PAIR, "w"), "values must be among edges, , got 'w'"),
    (lambda: Data(PAIR, nodes={"x": np.ones(3)}), r"nodes\['x'\] must .* of 2 nodes, .*\(3,\)"),
    (
        lambda: convert.to_scipy(Data(PAIR, edges={"weight": np.ones(3)})),
        r"edges\['weight'\] must have a row for each of 2 edges, got shape \(3,\)",
    ),
    (
        lambda: convert.to_scipy(Data(PAIR.with_self_loops(), edges={"weight": np.ones(2)})),
        r"edges\['weight'\] must have a value for each edge, got none for the 2 edges",
    ),
    (lambda: read(EDGES, {"id": [*"aba"]}), "nodes must have each name once, got 'a' 2 times"),
    (lambda: read(EDGES, {"id": ["a", None]}), "nodes must have a name .*, got none in row 2"),
    (lambda: read({"from": ["a"], "to": ["b"]}, src="src"), "src must be .*'to', got 'src'"),
    (lambda: read(EDGES, labels="kind"), "labels must be among the columns of .*got 'kind'"),
    (lambda: read({"src": [1, 2], "dst": [1]}), "one length, got {'src': 2, 'dst': 1}"),
    (lambda: read(EDGES, relation="src"), "for each of their ends, got src='src', .*='src'"),
    (
        lambda: read(EDGES, relation="src", hypergraph=True),
        "edges must be of one kind: .*, got relation and hypergraph",
    ),
    (lambda: read({("a", "b"): EDGES}), r"edges must be by \(source type.*the key \('a', 'b'\)"),
]


@pytest.mark.parametrize("function,argument,message", TYPE_ERRORS, ids=lambda case: None)
def test_type_errors_name_the_argument(function, argument, message):
    with pytest.raises(TypeError, match=message) as caught:
        function(argument)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call,message", VALUE_ERRORS, ids=lambda case: None)
def test_value_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["jraph", "torch_geometric", "dgl", "networkx", "dhg", "hypernetx"]
)
def test_a_missing_package_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, f"{name}.data", None)
    convert_graph = {"torch_geometric": convert.to_pyg}.get(name) or getattr(convert, f"to_{name}")
    graph = Hypergraph.from_hyperedges([[0]]) if name == "hypernetx" else PAIR
    with pytest.raises(
        ImportError, match=rf"{name}.* is not installed: pip install {re.escape(name[:5])}"
    ):
        convert_graph(graph)


def test_data_are_told_by_shapes():
    graph = Graph.from_edges([0, 1], [1, 0])
    data = Data(graph, nodes={"x": np.ones((2, 8))}, report=("one",))
    assert repr(data) == (
        "Data(graph=Graph(num_nodes=2, num_edges=2), nodes={'x': float64[2,8]}, report=['one'])"
    )
