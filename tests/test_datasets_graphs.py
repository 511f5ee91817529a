import gzip
from pathlib import Path

import numpy as np
import pytest

from jax_gnn.datasets import GraphsDataset, load_graph, load_graphs, random_folds

# A triangle with two tags, and a pair.
SIZES, SRC, DST = [3, 2], [0, 1, 1, 2, 2, 0, 3, 4], [1, 0, 2, 1, 0, 2, 4, 3]
X = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0, 1]], np.float32)


def toy(**changes):
    edges = {"src": SRC, "dst": DST}
    fields = {"name": "toy", "num_nodes": 5, "sizes": SIZES, "x": X, "y": [1, 0], **edges}
    return GraphsDataset(**fields | changes)


def check_toy(dataset, names=("-1", "1"), **changes):
    expected = toy(label_names=names, **changes)
    for name in ("sizes", "src", "dst", "x", "y"):
        np.testing.assert_array_equal(getattr(dataset, name), getattr(expected, name), err_msg=name)
    assert (dataset.label_names, dataset.repeated, dataset.name) == (names, 0, "toy")


def write_tu(folder: Path, **changes: str) -> Path:
    pairs = "".join(f"{s + 1}, {d + 1}\n" for s, d in zip(SRC, DST, strict=True))
    files = {"A": pairs, "graph_indicator": "1\n1\n1\n2\n2\n", "graph_labels": "1\n-1\n"}
    files |= {"node_labels": "3\n3\n7\n7\n7\n", "edge_labels": "1\n" * 8}
    for name, text in (files | changes).items():
        if text:
            (folder / f"toy_{name}.txt").write_text(text)
    return folder


def test_tu(tmp_path):
    dataset = load_graphs(write_tu(tmp_path))
    check_toy(dataset)
    assert dataset.unused == () and dataset.edge_features.tolist() == [[1]] * 8
    # Attributes follow one-hot labels.
    write_tu(tmp_path, node_attributes="0.5, 1\n" * 5)
    dataset = load_graphs(tmp_path / "toy_A.txt")
    assert dataset.x.shape == (5, 4) and (dataset.x[:, 2:] == [0.5, 1]).all()
    write_tu(tmp_path, graph_labels="nan\n4\n", graph_attributes="1\n2\n")
    dataset = load_graphs(tmp_path / "toy_A.txt")
    assert dataset.y.tolist() == [-1, 0] and dataset.label_names == ("4",)
    assert dataset.unused == ("toy_graph_attributes.txt",)


def test_tu_features_of_edges(tmp_path):
    """Lines of edges are in any order; a repeated edge has the features of its first line."""
    lines = [*zip(DST, SRC, strict=True), (DST[0], SRC[0])]
    files = {"A": "".join(f"{s + 1}, {d + 1}\n" for s, d in lines)}
    files |= {"edge_labels": "".join(f"{5 + (s > d)}\n" for s, d in lines[:-1]) + "7\n"}
    files |= {"edge_attributes": "".join(f"{10 * s + d}.5\n" for s, d in lines)}
    dataset = load_graphs(write_tu(tmp_path, **files))
    src, dst = dataset.src, dataset.dst
    expected = np.stack([src < dst, src > dst, 0 * src, 10 * src + dst + 0.5], 1)
    np.testing.assert_array_equal(dataset.edge_features, expected)
    # Rows of a batch, which has the second graph before the first one.
    batch, rows = dataset.batch([1, 0], num_edges=12), dataset.edges_of([1, 0])
    values = np.asarray(batch.graph.edge_values(dataset.edge_features[rows]))
    nodes = dataset.nodes_of([1, 0])
    for value, s, d in zip(values, batch.graph.cols, batch.graph.rows, strict=True):
        assert value[3] == (0 if d < 0 else 10 * nodes[s] + nodes[d] + 0.5)


def test_tu_without_features_and_with_numbers(tmp_path):
    parts = {"node_labels": "", "graph_labels": "", "graph_attributes": "0.5\n-2.5\n"}
    dataset = load_graphs(write_tu(tmp_path, **parts))
    np.testing.assert_array_equal(dataset.x, np.eye(2)[[1, 1, 1, 0, 0]])  # degrees
    assert dataset.regresses and dataset.y.tolist() == [0.5, -2.5] and dataset.num_classes == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph_labels": ""}, "toy_graph_labels.txt does not exist; it has the labels"),
        ({"graph_labels": "1, 0\n0, 1\n"}, "toy_graph_labels.txt: expected one class .* 2 numbers"),
        ({"graph_labels": "1\n"}, "toy_graph_indicator.txt: node of graph 2, but 1 have labels"),
        ({"graph_indicator": "2\n1\n1\n2\n2\n"}, "expected graphs from 1, one after another"),
        ({"node_labels": "1\n2\n"}, "toy_node_labels.txt: expected 5 lines, one for each node"),
        ({"edge_labels": "1\n2\n"}, "toy_edge_labels.txt: expected 8 lines, one for each edge"),
        ({"A": "1, 9\n", "edge_labels": ""}, "an edge has an end outside 5 nodes"),
        ({"A": "1, 4\n", "edge_labels": ""}, r"edge \(0, 3\) joins two graphs"),
        ({"A": "1, 2, 3\n"}, "toy_A.txt: expected 2 numbers on a line, got 3"),
        ({"A": "1, b\n"}, "toy_A.txt: could not convert"),
    ],
)
def test_tu_refuses(tmp_path, changes, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_graphs(write_tu(tmp_path, **changes))


GIN = "2\n3 1\n4 2 1 2\n4 2 0 2\n6 2 0 1\n2 -1\n6 1 1\n6 1 0\n"


def test_gin(tmp_path):
    path = tmp_path / "toy.txt"
    path.write_text(GIN)
    check_toy(load_graphs(path))
    folder = tmp_path / "10fold_idx"
    folder.mkdir()
    for number in range(10):
        (folder / f"test_idx-{number + 1}.txt").write_text(f"{number}\n" if number < 2 else "")
    assert load_graphs(path).folds.tolist() == [0, 1]
    (folder / "test_idx-1.txt").write_text("")
    assert load_graphs(path).folds.tolist() == [-1, 1]
    (folder / "test_idx-4.txt").write_text("1\n")
    with pytest.raises(ValueError, match="graph 1 is in folds 2 and 4"):
        load_graphs(path)
    (folder / "test_idx-4.txt").write_text("")
    path.write_text(GIN.replace("6 ", "4 "))  # one tag: degrees
    np.testing.assert_array_equal(load_graphs(path).x, np.eye(2)[[1, 1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("two\n", "line 1: expected the number of graphs, got 'two'"),
        ("1\n2\n", "line 2: expected the nodes of a graph and its label, got '2'"),
        ("1\n2 0\n0 1 1\n", "the file ends too early: expected a node: its tag, .* got ''"),
        ("1\n2 0\n0 1 1\n0\n", "line 4: expected a node: its tag, its number of .* got '0'"),
        ("2\n1 0\n0 0\n", "the file ends too early: expected the nodes of a graph and its label"),
        ("1\n1 0\n0 1 1\n", r"line 3: expected 1 neighbours below 1, got \[1\]"),
        ("1\n1 0\n0 2 0\n", r"line 3: expected 2 neighbours below 1, got \[0\]"),
        ("0\n1 0\n", "expected 0 graphs, got more lines"),
    ],
)
def test_gin_refuses(tmp_path, text, message):
    (tmp_path / "toy.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_graphs(tmp_path / "toy.txt")


def write_gz(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with gzip.open(folder / f"{name.replace('_', '-')}.csv.gz", "wt") as file:
            file.write(text)


def test_ogb(tmp_path):
    folder = tmp_path / "toy"
    edges = "0,1\n1,2\n2,0\n0,1\n"  # each once
    write_gz(folder / "raw", edge=edges, num_node_list="3\n2\n", num_edge_list="3\n1\n")
    write_gz(folder / "raw", node_feat="4\n4\n6\n6\n6\n", graph_label="1\n0\n", edge_feat="1\n" * 4)
    write_gz(folder / "split" / "scaffold", train="0\n", valid="1\n", test="")
    dataset = load_graphs(folder)
    check_toy(dataset, ("0", "1"))
    assert dataset.edge_features.tolist() == [[1]] * 8
    assert (dataset.train_idx.tolist(), dataset.val_idx.tolist()) == ([0], [1])
    write_gz(folder / "raw", graph_label="1.5\n\n", node_feat="0.5,1\n" * 5)
    write_gz(folder / "split" / "scaffold", valid="")
    dataset = load_graphs(folder)
    assert dataset.y.dtype == np.float32 and dataset.has_label().tolist() == [True, False]
    assert dataset.x.tolist() == [[0.5, 1]] * 5
    write_gz(folder / "raw", graph_label="1,0\n1,1\n")
    with pytest.raises(ValueError, match="expected one label for a graph, got 2 tasks"):
        load_graphs(folder)


def test_ogb_of_nodes(tmp_path):
    write_gz(tmp_path / "raw", edge="0,1\n1,2\n", node_label="1\nnan\n0\n", node_feat="1.5\n" * 3)
    write_gz(tmp_path / "split" / "time", train="0\n", valid="2\n", test="")
    dataset = load_graph(tmp_path)
    assert (dataset.src.tolist(), dataset.dst.tolist()) == ([1, 0, 2, 1], [0, 1, 1, 2])
    assert dataset.y.tolist() == [1, -1, 0] and dataset.train_idx.tolist() == [0]


def test_container(rng):
    dataset = toy()
    # Graphs in another order, with padding.
    batch = dataset.batch([1, 0], num_nodes=8, num_edges=8, num_graphs=3)
    assert batch.graph_ids.tolist() == [0, 0, 1, 1, 1, -1, -1, -1]
    assert dataset.nodes_of([1, 0]).tolist() == [3, 4, 0, 1, 2]
    degrees = np.asarray(batch.graph.in_degrees())[:5]
    assert degrees.tolist() == [1, 1, 2, 2, 2]
    assert (dataset.num_graphs, dataset.num_edges, dataset.num_classes) == (2, 8, 2)
    assert "num_graphs=2" in repr(dataset)
    for changes, message in (
        ({"sizes": [3, 3]}, "sizes: expected 5 together, got 6"),
        ({"y": [1, 0, 1]}, "y: expected 2 entries, one for each graph, got 3"),
        ({"train_idx": [0], "test_idx": [0]}, "test_idx: graph 0 is in train_idx too"),
        ({"folds": [0]}, "folds: expected 2 entries, got 1"),
        ({"y": np.array([0.5, np.inf])}, "y: expected finite numbers or NaN"),
        ({"y": np.array([0.5, 1]), "label_names": ("a",)}, "label_names: y are numbers"),
        ({"y": np.array([0.5, np.nan]), "train_idx": [1]}, r"graph 1 has no label \(y is NaN\)"),
    ):
        with pytest.raises(ValueError, match=message):
            toy(**changes)


def test_folds(rng):
    y = rng.integers(-1, 3, 100)
    folds = random_folds(y, 10, seed=3)
    # Folds are balanced over all examples and within classes.
    assert (folds[y < 0] == -1).all() and np.ptp(np.bincount(folds[y >= 0])) <= 1
    for label in range(3):
        assert np.ptp(np.bincount(folds[y == label], minlength=10)) <= 1
    np.testing.assert_array_equal(folds, random_folds(y, 10, seed=3))
    with pytest.raises(ValueError, match="folds must be from 2 to the 2 labels, got 3"):
        random_folds(np.array([0, 1, -1]), 3, seed=0)
