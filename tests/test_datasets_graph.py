"""Graph datasets: Planetoid's files and .npz written small, read back; every way to be wrong."""

import dataclasses
import os
from collections import defaultdict

import numpy as np
import pytest
import scipy.sparse
from test_datasets import assert_same, csr_arrays, dump

from jax_gnn import datasets
from jax_gnn.datasets import GraphDataset, PickleFormatError, load_graph

# Planetoid's parts of 8 nodes: 0 and 1 train, 2 and 3 validate, 4 to 7 are in the range of the
# test nodes, where 5 is missing.
TEST_IDS = [7, 4, 6]
X = np.array([[1, 0], [0, 1], [2, 2], [0, 0], [0, 3], [0, 0], [5, 0], [0, 7]], np.float32)
Y = [1, 0, 2, 1, 0, -1, 2, 1]
NEIGHBOURS = {0: [1, 7, 1], 1: [0], 2: [2, 4], 3: [], 4: [2], 5: [], 6: [7], 7: [0]}
# Symmetric, without the self-loop of 2 and the second edge from 0 to 1; by destination.
SRC = [1, 7, 0, 4, 2, 7, 0, 6]
DST = [0, 0, 1, 2, 4, 6, 7, 7]


def toy(**changes):
    fields = {
        "name": "toy",
        "num_nodes": 8,
        "src": SRC,
        "dst": DST,
        "x": X,
        "y": Y,
        "train_idx": [0, 1],
        "val_idx": [2, 3],
        "test_idx": [4, 6, 7],
    }
    return GraphDataset(**(fields | changes))


def one_hot(nodes):
    return np.array([np.arange(3) == Y[node] for node in nodes], np.int32).reshape(-1, 3)


def parts():
    # Training rows are the first rows of all rows; test rows are apart.
    nodes = {"": [0, 1], "t": TEST_IDS, "all": [0, 1, 2, 3]}
    values = {}
    for prefix, ids in nodes.items():
        values[f"{prefix}x"] = scipy.sparse.csr_matrix(X[ids])
        values[f"{prefix}y"] = one_hot(ids)
    return values | {"graph": defaultdict(list, NEIGHBOURS)}


def write_planetoid(folder, protocol=4):
    for part, value in parts().items():
        dump(folder / f"ind.toy.{part}", value, protocol)
    (folder / "ind.toy.test.index").write_text("".join(f"{i}\n" for i in TEST_IDS))
    return folder


def npz_arrays(**changes):
    arrays = {name: value for name, value in vars(toy()).items() if value is not None}
    del arrays["name"], arrays["format"]
    return {key: value for key, value in (arrays | changes).items() if value is not None}


def write_npz(folder):
    np.savez(folder / "toy.npz", **npz_arrays())
    return folder / "toy.npz"


def write_sparse_npz(folder):
    np.savez_compressed(folder / "toy.npz", **npz_arrays(**csr_arrays(X)))
    return folder / "toy.npz"


WRITERS = {
    write_planetoid: datasets.load_planetoid,
    write_npz: datasets.load_graph_npz,
    write_sparse_npz: datasets.load_graph_npz,
}


@pytest.mark.parametrize("write", WRITERS)
def test_round_trip(tmp_path, write):
    source = write(tmp_path)
    for load in (load_graph, WRITERS[write]):
        assert_same(load(source), toy())
        assert_same(load(str(source)), toy())


# CSV


def write_csv(folder):
    """Nodes and edges in any order, one edge twice, columns in another order."""
    # The split of Planetoid by name.
    split = {0: "train", 1: "train", 2: "val", 3: "val", **dict.fromkeys(TEST_IDS, "test")}
    lines = [
        f"{X[i, 1]},{i},{'' if y < 0 else y},{split.get(i, '')},{X[i, 0]}\r\n"
        for i, y in enumerate(Y)
    ]
    (folder / "toy-nodes.csv").write_text("".join(["b,id,label,split,a\r\n", *lines]))
    # One edge is repeated, whose weights add up.
    pairs = [*zip(SRC, DST, strict=True), (SRC[0], DST[0])]
    lines = [f"{dst},0.5,{src}\n" for src, dst in reversed(pairs)]
    (folder / "toy-edges.csv").write_text("".join(["dst,weight,src\n", *lines]))


def test_csv(tmp_path):
    write_csv(tmp_path)
    names = {"label_names": tuple("012"), "node_names": tuple("01234567")}
    names["feature_names"] = "b", "a"
    names["edge_weight"] = np.full(8, 0.5, np.float32)
    names["edge_weight"][0] = 1  # it is there twice
    for source in (tmp_path, tmp_path / "toy-nodes.csv", str(tmp_path / "toy-edges.csv")):
        assert_same(load_graph(source), toy(x=X[:, ::-1], **names))


def test_csv_with_features_of_edges(tmp_path):
    """Columns by name, of the first of repeated edges; gaps are filled, text is one-hot."""
    (tmp_path / "nodes.csv").write_text("id,label\na,x\nb,y\nc,x\n")
    rows = "b,a,2,0.5,k,1\na,b,3,1,k,\nb,a,9,9,k,1\n"
    (tmp_path / "edges.csv").write_text("src,dst,z,length,kind,gap\n" + rows)
    dataset = load_graph(tmp_path)
    assert dataset.edge_features.tolist() == [[1, 1, 0.5, 2], [1, 1, 1, 3]]
    assert dataset.repeated == 1
    (tmp_path / "graphs.csv").write_text("id,label\ng,x\nh,y\n")
    (tmp_path / "nodes.csv").write_text("id,graph\na,h\nb,h\nc,g\nd,g\n")
    (tmp_path / "edges.csv").write_text("src,dst,z\na,b,2\nc,d,5\n")
    graphs = datasets.load_graphs(tmp_path)  # with the reverses
    assert graphs.edge_features.tolist() == [[5], [5], [2], [2]]


def test_csv_of_numbers_that_float32_rounds(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,target,x\n1,1700000001,1700000063\n2,,2\n")
    (tmp_path / "edges.csv").write_text("src,dst,weight\n1,2,9999999999\n")
    data = datasets.load_csv(tmp_path)
    assert data.edge_weight[0] == np.float32(1e10)
    told = [notice for notice in data.notices if "beyond 2**24" in notice]
    assert [notice.split("'")[1] for notice in told] == ["target", "x", "weight"]


def test_csv_of_text(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,kind,label\nÇel,b,\nann,a,red\n007,b,blue\n")
    (tmp_path / "edges.csv").write_text("src,dst\nann,007\n")
    data = datasets.load_csv(tmp_path)
    assert (data.name, data.node_names) == (tmp_path.name, ("Çel", "ann", "007"))
    assert (data.src.tolist(), data.dst.tolist(), data.y.tolist()) == ([1], [2], [-1, 1, 0])
    assert data.x.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert data.label_names == ("blue", "red") and data.feature_names == ("kind=a", "kind=b")


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        # Columns and ids that are missing or repeated.
        ("a\n1\n", "src,dst\n", "nodes.csv: expected the column id, got a; call the column"),
        ("id\n1\n1\n", "src,dst\n", "nodes.csv must have each name once, got 1 2 times"),
        (
            "id\nann\n",
            "src,dst\n\nann,ann\nann,bob\neve,bob\n",
            "nodes.csv: edges.csv:4 has the dst 'bob', .* no node; 2 of 3 rows are",
        ),
        ("id\n1\n", "src,dst\n,1\n", "nodes.csv: edges.csv:2 has no src; 1 of 1"),
        ("id,label,split\na,x,val\n\nb,,val\n", "src,dst\n", r"nodes.csv:4 \('b'\) has 'val', b"),
        ("id,target,split\n7,,val\n", "src,dst\n", r"nodes.csv:2 \(7\) has 'val', but"),
        ("id\n1\n", "src,dst,weight\n1,1,\n", "column 'weight': edges.csv:2 has no finite"),
        ("id\n1\n", "src,to\n1,1\n", "edges.csv: expected the columns src and dst, got src, to"),
        ("id,x\n1,inf\n", "src,dst\n", "nodes.csv: column 'x': nodes.csv:2 has an infinite"),
        # Labels, numbers to regress on, and splits.
        ("id,target\n1,a\n", "src,dst\n", "'target': 1 of 1 cells are no numbers: nodes.csv:2"),
        ("id,target,label\n1,2,a\n", "src,dst\n", "regress on, and not 'label' beside it"),
        ("id,label\n1,0.5\n", "src,dst\n", "'label' has numbers that are no classes; call it"),
        ("id,label\n1,$1.5\n2,$2\n", "src,dst\n", "'label' has numbers that are no classes"),
        ("id,split\n1,best\n", "src,dst\n", "nodes.csv: column 'split': expected train, .*'best'"),
        ("id,x\n1\n", "src,dst\n", r"nodes.csv: .*nodes.csv:2 must have 2 cells .*, got 1"),
        (
            "id,t\n" + "".join(f"{i},{i if i % 40 - 5 else 'x'}\n" for i in range(300)),
            "src,dst\n",
            "'t': 8 of 300 cells are no numbers: nodes.csv:7 has 'x', nodes.csv:47 has 'x', nodes",
        ),
    ],
)
def test_csv_refuses(tmp_path, nodes, edges, message):
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "edges.csv").write_text(edges)
    with pytest.raises(ValueError, match=message):
        load_graph(tmp_path)


# The container


def test_container_sorts_and_removes_duplicates():
    order = [6, 2, 2, 0, 1, 3, 5, 4, 0, 7]
    shuffled = toy(src=np.array(SRC)[order], dst=np.array(DST)[order])
    assert_same(shuffled, toy())
    assert shuffled.src.dtype == shuffled.dst.dtype == np.int32


def test_weights_of_repeated_edges_add_up():
    data = toy(src=[0, 1, 0], dst=[1, 0, 1], edge_weight=[1, 2, 4])
    assert data.edge_weight.tolist() == [2, 5] and data.dst.tolist() == [0, 1]
    assert (data.repeated, toy().repeated) == (1, 0)
    assert dataclasses.replace(data, name="same").repeated == 0
    with pytest.raises(ValueError, match="edge_weight: expected one row for each of 8 edges"):
        toy(edge_weight=np.ones(7))
    with pytest.raises(ValueError, match="edge_weight: row 1 is not finite"):
        toy(src=[0, 1], dst=[1, 0], edge_weight=[1, np.nan])


def test_container_properties():
    data = toy()
    assert (data.num_edges, data.num_features, data.num_classes) == (8, 2, 3)
    assert "num_edges=8" in repr(data)
    assert len(repr(data)) < 200
    split = data.published_split
    assert [split.train.tolist(), split.valid.tolist()] == [[0, 1], [2, 3]]
    assert split.test.tolist() == [4, 6, 7]
    for part in ("train_idx", "val_idx", "test_idx"):
        assert toy(**{part: None}).published_split is None


def test_graph():
    graph = toy().graph()
    assert (graph.num_nodes, graph.num_edges) == (8, 8)
    np.testing.assert_array_equal(graph.cols, SRC)
    np.testing.assert_array_equal(graph.rows, DST)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"src": [*SRC[:-1], 8]}, r"src\[7\] = 8 is outside \[0, 8\)"),
        ({"dst": [-1, *DST[1:]]}, r"dst\[0\] = -1 is outside \[0, 8\)"),
        ({"dst": DST[1:]}, "dst: expected as many entries as src has, 8, got 7"),
    ],
)
def test_container_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        toy(**changes)


# .npz


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (npz_arrays(dst=None), "lacks 'dst' of the keys of a graph .* file has .*num_nodes, src, "),
        (npz_arrays(src=[9] * 8), r"src\[0\] = 9 is outside"),
    ],
)
def test_npz_refuses(tmp_path, arrays, message):
    np.savez(tmp_path / "toy.npz", **arrays)
    with pytest.raises(ValueError, match=message) as caught:
        load_graph(tmp_path / "toy.npz")
    assert str(tmp_path / "toy.npz") in str(caught.value)


def test_hypergraphs_are_no_graphs(tmp_path):
    path = write_npz(tmp_path)
    with pytest.raises(ValueError, match=r"lacks '.*' of the keys of a hypergraph dataset"):
        datasets.load_hypergraph(path)


# Planetoid


def test_planetoid_by_one_of_its_files(tmp_path):
    write_planetoid(tmp_path)
    assert_same(load_graph(tmp_path / "ind.toy.allx"), toy())
    for file in list(tmp_path.iterdir()):
        (tmp_path / file.name.replace("toy", "other")).write_bytes(file.read_bytes())
    assert_same(load_graph(tmp_path / "ind.other.test.index"), toy(name="other"))


def test_planetoid_validates_with_500_nodes(tmp_path):
    write_planetoid(tmp_path)
    # There are more nodes after the training nodes than validate.
    for part, value in {"allx": np.zeros((600, 2)), "ally": np.eye(3)[np.zeros(600, int)]}.items():
        dump(tmp_path / f"ind.toy.{part}", value)
    for part, value in {"x": np.zeros((2, 2)), "y": np.eye(3)[[0, 0]]}.items():
        dump(tmp_path / f"ind.toy.{part}", value)
    (tmp_path / "ind.toy.test.index").write_text("600 601 604")
    data = load_graph(tmp_path)
    np.testing.assert_array_equal(data.val_idx, np.arange(2, 502))
    assert data.num_nodes == 605
    assert data.y[600:].tolist() == [1, 0, -1, -1, 2]


@pytest.mark.parametrize("largest", [9, 11])
def test_planetoid_with_more_nodes_than_features(tmp_path, largest):
    """Nodes after those with features, such as NELL's relations, have edges alone."""
    write_planetoid(tmp_path)
    dump(tmp_path / "ind.toy.graph", NEIGHBOURS | {8: [0], largest: [8] if largest == 9 else []})
    num_extra = largest - 7
    expected = toy(
        num_nodes=8 + num_extra,
        src=[*SRC, 0, 8] + [8, 9] * (largest == 9),
        dst=[*DST, 8, 0] + [9, 8] * (largest == 9),
        x=np.pad(X, ((0, num_extra), (0, 0))),
        y=[*Y, *[-1] * num_extra],
    )
    assert_same(load_graph(tmp_path), expected)


@pytest.mark.parametrize("part", [*parts(), "test.index"])
def test_planetoid_needs_all_files(tmp_path, part):
    write_planetoid(tmp_path)
    (tmp_path / f"ind.toy.{part}").unlink()
    with pytest.raises(FileNotFoundError, match=rf"ind.toy.{part} does not exist; expected ind"):
        load_graph(tmp_path)


@pytest.mark.parametrize("part", parts())
def test_planetoid_does_not_execute(tmp_path, part):
    """Pickles are read as those of HyperGCN are, whose tests have attacks of all kinds."""
    dump(write_planetoid(tmp_path) / f"ind.toy.{part}", os.system)
    with pytest.raises(PickleFormatError, match=rf"ind.toy.{part}: .* names (posix|nt)\.system"):
        load_graph(tmp_path)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("x", X[[0, 2]], "ind.toy.x: x and y are not the first rows of allx and ally"),
        ("x", X[:1], "ind.toy.y: expected 1 nodes, got 2"),
        ("x", X[:2, :1], "ind.toy.x: 1 features, but allx has 2"),
        ("x", X[0], "ind.toy.x: features: expected 2 axes"),
        ("x", [[1, 2]], "ind.toy.x: expected a scipy CSR matrix or an array, got list"),
        ("y", one_hot([1, 0]), "ind.toy.x: x and y are not the first rows"),
        ("tx", X[:2], "ind.toy.ty: expected 2 nodes, got 3"),
        ("tx", X[TEST_IDS, :1], "ind.toy.tx: 1 features, but allx has 2"),
        ("tx", X[TEST_IDS] * np.nan, "ind.toy.tx: features: row 0 is not finite"),
        ("ty", one_hot([4]), "ind.toy.ty: expected 3 nodes, got 1"),
        ("ty", np.ones((3, 3)), "ind.toy.ty: labels: expected one-hot rows"),
        ("ty", np.full((3, 3), 0.5), "ind.toy.ty: labels: expected one-hot rows"),
        ("ty", np.array([1, 0, 2]), "ind.toy.ty: labels: expected 2 axes"),
        ("ty", np.zeros((3, 3)), "ind.toy.ty: row 0 has no label"),
        ("y", np.zeros((2, 3)), "ind.toy.y: row 0 has no label"),
        ("allx", X[:3], "ind.toy.ally: expected 3 nodes, got 4"),
        ("ally", one_hot([0, 1]), "ind.toy.ally: expected 4 nodes, got 2"),
        ("graph", [[1]], "ind.toy.graph: expected a dictionary of neighbours, got list"),
        ("graph", {-8: []}, r"ind.toy.graph: node\[0\] = -8 is outside"),
        ("graph", {0: [2 * 10**9]}, "ind.toy.graph: 2000000001 nodes would take"),
        ("graph", {"a": []}, "ind.toy.graph: node: expected integers"),
        ("graph", {0: [1, -1]}, r"ind.toy.graph: neighbours of 0\[1\] = -1 is outside"),
        ("graph", {0: 1}, "ind.toy.graph: neighbours of 0: expected 1 axes"),
        ("graph", {0: ["a"]}, "ind.toy.graph: neighbours of 0: expected integers"),
    ],
)
def test_planetoid_refuses(tmp_path, part, value, message):
    write_planetoid(tmp_path)
    dump(tmp_path / f"ind.toy.{part}", value)
    with pytest.raises(ValueError, match=message) as caught:
        load_graph(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7 4", "expected 3 nodes, got 2"),
        ("7 4\n4", "line 2: test node 4 is there twice"),
        ("7 4 3", "line 1: expected a test node from 4 to .*, got '3'"),
        ("7 4 x", "line 1: expected a test node .*, got 'x'"),
        ("7 4 99999999999", "line 1: expected a test node .*, got '99999999999'"),
        (f"7 4 {10**30}", "line 1: expected a test node .*, got '1000"),
        ("7 4 2000000000", "2000000001 nodes would take .* bytes of memory"),
    ],
)
def test_planetoid_refuses_test_nodes(tmp_path, text, message):
    path = write_planetoid(tmp_path) / "ind.toy.test.index"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"ind.toy.test.index: {message}"):
        load_graph(tmp_path)


# Digits


def test_digits():
    data = load_graph("digits")
    assert (data.num_nodes, data.num_features, data.num_classes) == (1797, 64, 10)
    assert_same(datasets.digits_graph(k=10), data)
    edges = set(zip(data.src.tolist(), data.dst.tolist(), strict=True))
    assert edges == {(dst, src) for src, dst in edges}
    assert not any(src == dst for src, dst in edges)
    near = datasets.digits(k=10)
    members = set(zip(near.node_idx.tolist(), near.hyperedge_idx.tolist(), strict=True))
    assert edges == {(i, j) for v, e in members if v != e for i, j in ((v, e), (e, v))}
