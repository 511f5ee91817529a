"""Datasets: every format written small, read back and compared; every way to be wrong."""

import dataclasses
import pickle
import sys
import zipfile

import numpy as np
import pytest
import scipy.sparse

from jax_gnn import datasets
from jax_gnn.convert import from_table
from jax_gnn.datasets import GraphDataset, HypergraphDataset, load_hypergraph

# Node 4 is in no hyperedge, hyperedge 1 is a single node; sorted by hyperedge, then node.
NODES = [0, 1, 3, 2, 0, 2, 3]
HYPEREDGES = [0, 0, 0, 1, 2, 2, 2]
X = np.array([[0.5, 0, 2], [0, 0, 0], [1, -1, 0], [0, 3, 0], [0, 0, 0.25]], np.float32)
Y = [2, 0, 1, 0, 2]
LABELS = ("red", "green", "blue")
NODE_NAMES = ("Ann", "Bo, Jr.", "Ç\x85\u2028\x1c\x0b", "", "")


# All tests vary this dataset, whose arrays are in the order of the container.
def toy(**changes):
    fields = {
        "name": "toy",
        "node_idx": NODES,
        "hyperedge_idx": HYPEREDGES,
        "num_nodes": 5,
        "num_hyperedges": 3,
        "x": X,
        "y": Y,
    }
    return HypergraphDataset(**(fields | changes))


def assert_same(actual, expected):
    """Check that datasets are the same, whatever the format of their files."""
    assert type(actual) is type(expected)
    for field in dataclasses.fields(expected):
        if field.name == "format":
            continue
        a, b = getattr(actual, field.name), getattr(expected, field.name)
        if isinstance(b, np.ndarray):
            assert a is not None and a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, err_msg=field.name)
        else:
            assert a == b, field.name


# Writers: one small dataset in each format; each gives what to load and what to expect.


def npz_arrays(**changes):
    arrays = {
        "num_nodes": 5,
        "num_hyperedges": 3,
        "node_idx": np.array(NODES, np.int32),
        "hyperedge_idx": np.array(HYPEREDGES, np.int32),
        "y": np.array(Y, np.int32),
        "x": X,
    }
    return {key: value for key, value in (arrays | changes).items() if value is not None}


def csr_arrays(matrix):
    """Return the keys of sparse features, which replace the key of dense ones."""
    csr = scipy.sparse.csr_matrix(matrix)
    parts = {"data": csr.data, "indices": csr.indices, "indptr": csr.indptr, "shape": csr.shape}
    return {"x": None} | {f"x_{name}": np.asarray(part) for name, part in parts.items()}


def sparse_arrays(matrix, **changes):
    return npz_arrays(**(csr_arrays(matrix) | changes))


def write_npz(folder):
    # All optional fields at once.
    splits = np.array([[0, 1], [3, 2]])
    extra = {"train_splits": splits, "train_idx": splits[0], "test_idx": np.array([2, 3, 4])}
    names = {"label_names": np.array(LABELS), "node_names": np.array(list("abcdé"))}
    np.savez(folder / "toy.npz", **npz_arrays(**extra, **names))
    return folder / "toy.npz", toy(**extra, label_names=LABELS, node_names=tuple("abcdé"))


def write_sparse_npz(folder):
    np.savez_compressed(folder / "toy.npz", **sparse_arrays(X))
    return folder / "toy.npz", toy()


def allset_lines(order=(3, 0, 4, 2, 1), extra=()):
    """Lines of ``.content`` in any order, with labels 10, 20, 30; then of ``.edges``."""
    rows = [[i, *X[i].tolist(), 10 * (Y[i] + 1)] for i in order]
    content = ["\t".join(map(str, row)) for row in [*rows, *extra]]
    # Hyperedges count from 5, the number of nodes, on. The file is in no order.
    edges = [f"{v}\t{e + 5}" for v, e in zip(NODES, HYPEREDGES, strict=True)][::-1]
    return content, edges


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def write_allset(folder):
    # Classes 10, 20, 30 become 0, 1, 2 in the order of their labels.
    content, edges = allset_lines()
    write_lines(folder / "toy.content", content)
    write_lines(folder / "toy.edges", [*edges, edges[0]])  # one is there twice
    return folder, toy(label_names=("10", "20", "30"))


def write_cornell(folder):
    # Nodes and classes count from 1.
    write_lines(folder / "hyperedges-toy.txt", ["4,1,2,1", "3", "1,3,4"])  # node 1 repeated
    write_lines(folder / "node-labels-toy.txt", [y + 1 for y in Y])
    write_lines(folder / "label-names-toy.txt", LABELS)
    write_lines(folder / "node-names-toy.txt", NODE_NAMES)
    return folder, toy(x=None, label_names=LABELS, node_names=NODE_NAMES)


def dump(path, value, protocol=4):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol))


def write_hypergcn(folder, protocol=4):
    folder = folder / "toy"
    folder.mkdir()
    # Hyperedges as lists with a repeated member, as sets, and of numpy scalars.
    hypergraph = {"b": [3, 1, 0, 1], np.int32(7): {2}, "a": [np.int64(0), np.int64(2), 3]}
    dump(folder / "hypergraph.pickle", hypergraph, protocol)
    dump(folder / "labels.pickle", Y, protocol)
    dump(folder / "features.pickle", scipy.sparse.csr_matrix(X), protocol)
    # Splits sort by number: 2 comes before 10.
    for number, train, test in ((10, [1, 2], [0, 3, 4]), (2, [4, 0], [3, 1, 2])):
        split = {"train": list(map(np.int64, train)), "test": test}
        dump(folder / "splits" / f"{number}.pickle", split, protocol)
    return folder, toy(train_splits=[[0, 4], [1, 2]], train_idx=[0, 4], test_idx=[1, 2, 3])


WRITERS = {
    write_npz: datasets.load_npz,
    write_sparse_npz: datasets.load_npz,
    write_allset: datasets.load_allset,
    write_cornell: datasets.load_cornell,
    write_hypergcn: datasets.load_hypergcn,
}


@pytest.mark.parametrize("write", WRITERS)
def test_round_trip(tmp_path, write):
    source, expected = write(tmp_path)
    assert_same(load_hypergraph(source), expected)
    assert_same(load_hypergraph(str(source)), expected)
    assert_same(WRITERS[write](source), expected)


# The container


def test_container_sorts_and_removes_duplicates():
    order = [6, 2, 2, 0, 1, 3, 5, 4, 0]
    shuffled = toy(node_idx=np.array(NODES)[order], hyperedge_idx=np.array(HYPEREDGES)[order])
    assert_same(shuffled, toy())
    assert shuffled.node_idx.dtype == shuffled.y.dtype == np.int32
    assert toy(x=X.astype(np.float64)).x.dtype == np.float32
    assert toy(train_idx=[3, 0, 3, 0]).train_idx.tolist() == [3, 0]


def test_container_properties():
    data = toy()
    assert (data.num_incidences, data.num_features, data.num_classes) == (7, 3, 3)
    assert toy(x=None).num_features == 0
    assert toy(y=[-1] * 5).num_classes == 0
    assert toy(label_names=(*LABELS, "unused")).num_classes == 4
    assert "num_incidences=7" in repr(data)
    assert len(repr(data)) < 200


def test_empty_dataset():
    empty = toy(node_idx=[], hyperedge_idx=[], num_nodes=0, num_hyperedges=0, x=None, y=[])
    assert (empty.num_incidences, empty.num_classes) == (0, 0)


@pytest.mark.parametrize(
    ("self_loops", "loops"), [("none", []), ("isolated", [4]), ("all", [0, 1, 3, 4])]
)
def test_hypergraph(self_loops, loops):
    # Hyperedge 1 is already a self-loop of node 2.
    node_idx, hyperedge_idx = map(np.asarray, toy().hypergraph(self_loops=self_loops).incidence())
    np.testing.assert_array_equal(node_idx, NODES + loops)
    np.testing.assert_array_equal(hyperedge_idx, HYPEREDGES + [3 + i for i in range(len(loops))])


def test_hypergraph_keeps_sizes():
    hypergraph = toy(num_nodes=5, num_hyperedges=9).hypergraph(self_loops="none")
    assert (hypergraph.num_nodes, hypergraph.num_hyperedges) == (5, 9)
    with pytest.raises(ValueError, match="self_loops must be 'none', 'isolated' or 'all'"):
        toy().hypergraph(self_loops="some")


def test_names_of_a_table():
    data = from_table({"src": ["b", "a"], "dst": ["a", "c"]}, directed=True)
    names = {"node_names": data.node_names, "label_names": np.array(["t", "u"], object)}
    dataset = GraphDataset(name="g", num_nodes=3, src=[0], dst=[1], y=[0, 1, 0], **names)
    assert dataset.node_names == ("a", "b", "c") and dataset.label_names == ("t", "u")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # Sizes and ids.
        ({"name": 3}, "name: expected a string"),
        ({"num_nodes": 2.0}, r"num_nodes: expected an integer, got 2\.0"),
        ({"num_nodes": -1}, "num_nodes: expected a number from 0"),
        ({"num_hyperedges": 2**31}, "num_hyperedges: expected a number from 0"),
        ({"num_nodes": 3}, r"node_idx\[2\] = 3 is outside \[0, 3\)"),
        ({"num_hyperedges": 2}, r"hyperedge_idx\[4\] = 2 is outside \[0, 2\)"),
        ({"node_idx": [-1, *NODES[1:]]}, r"node_idx\[0\] = -1 is outside \[0, 5\)"),
        ({"node_idx": np.array(NODES, float)}, "node_idx: expected integers, got dtype float64"),
        ({"node_idx": [NODES]}, r"node_idx: expected 1 axes, got shape \(1, 7\)"),
        ({"node_idx": [[0], [1, 2]]}, r"node_idx: expected integers, got \[\[0\], \[1, 2\]\]"),
        ({"hyperedge_idx": HYPEREDGES[1:]}, "hyperedge_idx: expected as many .* 7, got 6"),
        # Features and labels.
        ({"x": X[:4]}, "x: expected one row for each of 5 nodes"),
        ({"x": X[0]}, "x: expected 2 axes"),
        ({"x": X.astype(str)}, "x: expected real numbers"),
        ({"x": X.astype(complex)}, "x: expected real numbers"),
        ({"x": X / np.where(X == 3, np.nan, 1)}, "x: row 3 is not finite"),
        ({"x": X.astype(float) * 1e300}, "x: row 0 is not finite in float32"),
        ({"y": Y[:4]}, "y: expected 5 entries"),
        ({"y": [-2, *Y[1:]]}, r"y\[0\] = -2 is outside"),
        ({"y": np.array(Y, str)}, "y: expected integers"),
        # Splits, which name labelled nodes and are disjoint.
        ({"train_idx": [0, 5]}, r"train_idx\[1\] = 5 is outside \[0, 5\)"),
        ({"train_splits": [[0, 1], [1, 7]]}, r"train_splits\[1, 1\] = 7 is outside"),
        ({"train_splits": [0, 1]}, "train_splits: expected 2 axes"),
        ({"test_idx": [0.0]}, "test_idx: expected integers"),
        ({"test_idx": [1], "y": [0, -1, 0, 0, 0]}, "test_idx: node 1 has no label"),
        ({"train_idx": [0, 1], "test_idx": [1, 2]}, "test_idx: node 1 is in train_idx too"),
        ({"train_idx": [0, 1], "val_idx": [2, 1]}, "val_idx: node 1 is in train_idx too"),
        ({"val_idx": [2], "test_idx": [2, 3]}, "test_idx: node 2 is in val_idx too"),
        # Names.
        ({"label_names": ("a", "b")}, "label_names: 2 names, but y holds class 2"),
        ({"label_names": (1, 2, 3)}, "label_names: expected strings"),
        ({"label_names": np.array(["a", 2, "c"], object)}, "label_names: expected strings"),
        ({"label_names": ("a", "b", "\ud800")}, r"label_names: '\\ud800' is not Unicode"),
        ({"node_names": ("a", "b")}, "node_names: expected 5 names"),
    ],
)
def test_container_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        toy(**changes)


# .npz


def test_npz_optional_parts_may_be_absent(tmp_path):
    np.savez(tmp_path / "toy.npz", **npz_arrays(x=None))
    assert_same(load_hypergraph(tmp_path / "toy.npz"), toy(x=None))
    np.savez(tmp_path / "toy.npz", **npz_arrays(y=None))
    unlabelled = load_hypergraph(tmp_path / "toy.npz")
    assert not unlabelled.has_label().any() and unlabelled.y.shape == (5,)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (npz_arrays(label=np.zeros(5, int)), "has the key 'label', which is none of a hypergraph"),
        (npz_arrays(node_idx=None), "lacks 'node_idx'"),
        ({}, "lacks 'num_nodes', .* none at all"),
        (npz_arrays(num_nodes=np.array([5])), "num_nodes: expected an integer"),
        (npz_arrays(num_nodes=3), r"node_idx\[2\] = 3 is outside"),
        (npz_arrays(y=np.array(Y, object)), "cannot read 'y': Object arrays cannot be loaded"),
        (npz_arrays(y=np.array(Y, complex)), "y: expected integers, got dtype complex128"),
        (npz_arrays(y=np.array(Y)[:2]), "y: expected 5 entries"),
        (npz_arrays(label_names=np.array([b"a", b"b", b"c"])), "label_names: expected strings"),
        (
            npz_arrays(label_names=np.full(3, 0x110000, np.uint32).view("U1")),
            "label_names: expected strings, got what is not Unicode",
        ),
        # Sparse features, whose parts contradict each other.
        (sparse_arrays(X, x=X), "both dense features 'x' and sparse ones"),
        (sparse_arrays(X, x_shape=None), "lacks 'x_shape'"),
        (sparse_arrays(X, x_data=None), "lacks 'x_data'"),
        (sparse_arrays(X, x_shape=np.array([5])), "x_shape: expected two integers"),
        (sparse_arrays(X, x_shape=np.array([5, -3])), "x_shape: expected a number from 0"),
        (sparse_arrays(X, x_shape=np.array([5, 2])), "x: not a valid CSR matrix: .*indices"),
        (sparse_arrays(X, x_shape=np.array([4, 3])), "x: not a valid CSR .*: indptr has 6 entries"),
        (sparse_arrays(X, x_indptr=np.array([0, 4, 2, 4, 5, 6])), "x: not a valid CSR matrix"),
        (
            sparse_arrays(X[:2], x_indptr=np.array([0, 10**9, 0], np.int32)),
            "x: not a valid CSR matrix: indptr must start at 0 and never decrease",
        ),
        (
            sparse_arrays(X[:4], x_indptr=np.array([0, 2**30, 2**31 - 1, -(2**30), 1], np.int32)),
            "x: not a valid CSR matrix: indptr must start at 0 and never decrease",
        ),
        # scipy itself accepts some of these, and would then read other memory.
        (sparse_arrays(X, x_indptr=np.array([1, 2, 2, 4, 5, 6])), "indptr must start at 0"),
        (sparse_arrays(X, x_indptr=np.array([0, 2, 2, 4, 5, 7])), "indptr ends at 7"),
        (sparse_arrays(X, x_indices=np.full(6, 2**32)), r"indices must be in \[0, 3\)"),
        (sparse_arrays(X, x_data=np.ones(5)), "indices has 6 entries in place of 5"),
        (sparse_arrays(X, x_indices=-np.ones(6, int)), "x: not a valid CSR matrix"),
        (sparse_arrays(X, x_indices=np.ones(6)), "x_indices: expected integers"),
        (sparse_arrays(X, x_data=np.array(list("abcdef"))), "x_data: expected real numbers"),
        (sparse_arrays(X[:4]), "x: expected one row for each of 5 nodes"),
        (sparse_arrays(X, x_shape=np.array([5, 2**62])), "x_shape: expected a number from 0 to"),
        # Small files that would take gigabytes.
        (sparse_arrays(X, x_shape=np.array([5, 2 * 10**8])), "x would take .* bytes of memory"),
        (npz_arrays(num_hyperedges=2 * 10**9), "num_hyperedges would take .* bytes of memory"),
        (npz_arrays(y=np.zeros((2**40, 0), int)), "'y': it would take .* bytes of memory"),
    ],
)
def test_npz_refuses(tmp_path, arrays, message):
    np.savez(tmp_path / "toy.npz", **arrays)
    with pytest.raises(ValueError, match=message) as caught:
        load_hypergraph(tmp_path / "toy.npz")
    assert str(tmp_path / "toy.npz") in str(caught.value)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("shape", [(10**9,), (3, 10**12), (-1,), (2**40, 0)])
@pytest.mark.parametrize("dtype", ["<i8", "<U0", "<U1000", "(9,9)<f8"])
def test_npz_headers_that_claim_too_much(tmp_path, taking_less_than, method, shape, dtype):
    path = tmp_path / "toy.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        for key, value in npz_arrays(label_names=None).items():
            with archive.open(f"{key}.npy", "w") as file:
                np.lib.format.write_array(file, np.asarray(value))
        # A header claims more than the archive holds.
        header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
        size = len(header).to_bytes(2, "little")
        archive.writestr("label_names.npy", b"\x93NUMPY\x01\x00" + size + header + b"\0")
    with taking_less_than(2**20), pytest.raises(ValueError, match="cannot read 'label_names': "):
        load_hypergraph(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_npz_of_other_compressions(tmp_path, taking_less_than, method):
    """Python reads whole blocks of these, of which one holds 45 MB in 45 bytes."""
    path = tmp_path / "toy.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        for key in npz_arrays():
            archive.writestr(f"{key}.npy", bytes(2**22))
    with taking_less_than(2**20), pytest.raises(ValueError, match="compressed by a method"):
        load_hypergraph(path)


def test_npz_damage(tmp_path):
    path, _ = write_sparse_npz(tmp_path)
    intact = path.read_bytes()
    # Cut files are never read.
    for length in range(0, len(intact), 97):
        path.write_bytes(intact[:length])
        with pytest.raises(ValueError, match=r"not a .npz file, or cut off"):
            load_hypergraph(path)
    refused = 0
    # Flipped bytes are noticed by checksums, except in dates and the like.
    for position in range(0, len(intact), 31):
        path.write_bytes(
            intact[:position] + bytes([intact[position] ^ 0xFF]) + intact[position + 1 :]
        )
        try:
            assert_same(load_hypergraph(path), toy())  # dates and the like do not matter
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 20


def test_npz_of_something_else(tmp_path):
    path = tmp_path / "toy.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key in npz_arrays():
            archive.writestr(key, b"no array")
    with pytest.raises(ValueError, match="cannot read 'num_nodes': the magic string"):
        load_hypergraph(path)
    dump(path, Y)
    with pytest.raises(ValueError, match=r"not a .npz file"):
        load_hypergraph(path)


# AllSet


def test_allset_leaves_out_lines_of_hyperedges(tmp_path):
    noise = [[5, 0.3, -1, 4, 0], [6, 0, 0, 0, 0], [7, 1, 2, 3, 0]]
    # Lines of hyperedges have any content, lines of unused ids zeros.
    nothing = [[i, 0, 0, 0, 0] for i in (8, 9, 12)]
    content, edges = allset_lines(extra=noise + nothing)
    # Where hyperedges have lines, the last node has to be in one: it could be a hyperedge else.
    write_lines(tmp_path / "toy.content", content)
    write_lines(tmp_path / "toy.edges", [*edges, "4\t7"])
    expected = toy(
        node_idx=[*NODES, 4], hyperedge_idx=[*HYPEREDGES, 2], label_names=("10", "20", "30")
    )
    assert_same(load_hypergraph(tmp_path / "toy.edges"), expected)
    write_lines(tmp_path / "toy.edges", edges)
    with pytest.raises(ValueError, match="id 4 may be a node or an empty hyperedge"):
        load_hypergraph(tmp_path)


@pytest.mark.parametrize(
    ("content", "edges", "message"),
    [
        # Edges: columns, sizes, numbers.
        (None, ["0 2", "1 2 3"], "toy.edges: line 2: expected 2 columns, as before, got 3"),
        (None, ["0 5 1"], "toy.edges: expected 2 columns"),
        (None, ["0 5", "0 2000000000"], "toy.edges: .*1999999996 hyperedges would take"),
        (None, ["0 2000000000"], "toy.edges: 2000000000 nodes .* would take"),
        (None, ["0 x"], "toy.edges: line 1: expected numbers, got '0 x'"),
        (None, ["0.5 5"], "toy.edges: line 1: node 0.5 is not an integer"),
        (None, ["-1 5"], "toy.edges: line 1: node -1 is not an integer from 0"),
        (None, ["1e30 5"], r"toy.edges: line 1: node 1e\+30 is not an integer from 0"),
        (None, ["0 5", "3 2"], "toy.edges: line 2: node 3 is not below the smallest .*, 2"),
        (None, [" "], "toy.edges: the file is empty"),
        (None, ["4 6"], "toy.content: node 5 has no line"),
        # Content: rows, ids, labels.
        ([], None, "toy.content: the file is empty"),
        (["0", "1"], None, "toy.content: expected at least 2 columns"),
        (["0 1 2", "1 1 2 3"], None, "toy.content: line 2: expected 3 columns, .* got 4"),
        (["0 1 2 3", "1 1 2 3", "2 1 2 3", "1 1 2 3"], None, "line 4: id 1 is there twice"),
        (["", "nan 1 2"], None, "toy.content: line 2: id nan is not an integer"),
        ([f"{i} 1 2" for i in (0, 1, 3, 4)], None, "toy.content: node 2 has no line"),
        ([f"{i} 1 {i}.5" for i in range(5)], None, "line 1: label 0.5 is not an integer"),
        ([f"{i} 1 -1" for i in range(5)], None, "line 1: label -1 is not an integer from 0"),
        ([f"{i} inf 1" for i in range(5)], None, "toy.content: x: row 0 is not finite"),
        ([f"{i} 1 2" for i in (*range(5), 9)], ["4 5"], "line 6: id 9 is neither a node nor"),
    ],
)
def test_allset_refuses(tmp_path, content, edges, message):
    good_content, good_edges = allset_lines()
    write_lines(tmp_path / "toy.content", good_content if content is None else content)
    write_lines(tmp_path / "toy.edges", good_edges if edges is None else edges)
    with pytest.raises(ValueError, match=message):
        load_hypergraph(tmp_path)


@pytest.mark.parametrize("suffix", [".content", ".edges"])
def test_allset_needs_both_files(tmp_path, suffix):
    write_allset(tmp_path)
    (tmp_path / f"toy{suffix}").unlink()
    with pytest.raises(FileNotFoundError, match=rf"toy\{suffix} does not exist; expected NAME.con"):
        load_hypergraph(tmp_path)


def test_folder_of_several_datasets(tmp_path):
    _, expected = write_allset(tmp_path)
    for suffix in (".content", ".edges"):
        (tmp_path / f"toy{suffix}").with_stem("other").write_bytes(
            (tmp_path / f"toy{suffix}").read_bytes()
        )
    with pytest.raises(ValueError, match=r"several datasets \(other, toy\); name a file"):
        load_hypergraph(tmp_path)
    assert_same(load_hypergraph(tmp_path / "toy.content"), expected)


# Cornell


def test_cornell_names_are_optional(tmp_path):
    write_cornell(tmp_path)
    for file in ("label-names-toy.txt", "node-names-toy.txt"):
        (tmp_path / file).unlink()
    assert_same(load_hypergraph(tmp_path / "hyperedges-toy.txt"), toy(x=None))


@pytest.mark.parametrize(
    ("file", "lines", "message"),
    [
        # Members of hyperedges.
        ("hyperedges", ["1,2", "1,x"], "line 2: expected nodes separated by .*, got 'x'"),
        ("hyperedges", ["1,2", "", "1"], "line 2: expected nodes separated by commas .*, got ''"),
        ("hyperedges", ["1,2", "0,1"], "line 2: expected nodes .* from 1 .*, got '0'"),
        ("hyperedges", ["1,6"], "line 1: node 6 is beyond the 5 nodes of node-labels-toy.txt"),
        ("hyperedges", [f"{10**30}"], "line 1: expected nodes"),
        ("hyperedges", ["1_0"], "line 1: expected nodes .*, got '1_0'"),
        ("hyperedges", [], "the file is empty"),
        # One label a node, and a name for each label and node.
        ("node-labels", ["1", "2,3", "1", "1", "1"], "line 2: expected one label, got 2"),
        ("node-labels", ["0"] * 5, "line 1: expected a label from 1 .*, got '0'"),
        ("node-labels", ["red"] * 5, "line 1: expected a label .*, got 'red'"),
        ("label-names", ["red", "green"], "label-names-toy.txt: expected 3 names, .* got 2"),
        ("node-names", ["Ann", "Bo"], "node-names-toy.txt: expected 5 names, .*, got 2"),
        ("node-names", ["Ann"] * 6, "node-names-toy.txt: expected 5 names, .*, got 6"),
    ],
)
def test_cornell_refuses(tmp_path, file, lines, message):
    write_cornell(tmp_path)
    write_lines(tmp_path / f"{file}-toy.txt", lines)
    with pytest.raises(ValueError, match=message) as caught:
        load_hypergraph(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_cornell_with_one_long_name(tmp_path, taking_less_than):
    """An array of strings would give each the length of the longest."""
    write_lines(tmp_path / "hyperedges-toy.txt", ["1"])
    write_lines(tmp_path / "node-labels-toy.txt", ["1"] * 10_000)
    write_lines(tmp_path / "node-names-toy.txt", ["x"] * 9_999 + ["y" * 10_000])
    with taking_less_than(2**25):
        assert len(load_hypergraph(tmp_path).node_names) == 10_000


def test_cornell_needs_labels_and_text(tmp_path):
    write_cornell(tmp_path)
    (tmp_path / "node-names-toy.txt").write_bytes(b"\xff\xfe\n" * 5)
    with pytest.raises(ValueError, match=r"node-names-toy.txt: .*utf-8"):
        load_hypergraph(tmp_path)
    (tmp_path / "node-labels-toy.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"node-labels-toy.txt does not exist; expected"):
        load_hypergraph(tmp_path)


# HyperGCN


def test_hypergcn_optional_parts_may_be_absent(tmp_path):
    folder, _ = write_hypergcn(tmp_path)
    (folder / "features.pickle").unlink()
    for split in (folder / "splits").iterdir():
        split.unlink()
    assert_same(load_hypergraph(folder), toy(x=None))


@pytest.mark.parametrize("file", ["hypergraph", "labels"])
def test_hypergcn_needs(tmp_path, file):
    folder, _ = write_hypergcn(tmp_path)
    (folder / f"{file}.pickle").unlink()
    with pytest.raises(FileNotFoundError, match=f"{file}.pickle does not exist; expected HyperGCN"):
        load_hypergraph(folder)


def test_hypergcn_reads_arrays_of_any_layout(tmp_path):
    folder, expected = write_hypergcn(tmp_path)
    dump(folder / "labels.pickle", np.array(Y, ">i2"))
    dump(folder / "features.pickle", np.asfortranarray(X.astype(">f8")))
    assert_same(load_hypergraph(folder), expected)


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        (
            "hypergraph",
            [[0, 1]],
            "hypergraph.pickle: expected a dictionary of hyperedges, got list",
        ),
        # Members of hyperedges.
        ("hypergraph", {"a": [0, 5]}, r"hyperedge 'a'\[1\] = 5 is outside \[0, 5\)"),
        ("hypergraph", {"a": ["x"]}, "hyperedge 'a': expected integers"),
        ("hypergraph", {"a": 3}, "hyperedge 'a': expected 1 axes"),
        ("hypergraph", {"a": [10**30]}, "hyperedge 'a': expected integers, got dtype object"),
        # Labels, of any integer type.
        ("labels", {"a": 1}, "labels.pickle: labels: expected integers"),
        ("labels", [0, 1.5], "labels.pickle: labels: expected integers"),
        ("labels", [[0, 1]] * 5, "labels.pickle: labels: expected integers, got list"),
        ("labels", np.array(Y, object), "labels.pickle: dtype 'O8' is not a plain number type"),
        ("labels", np.array(Y, "i4,i4"), "labels.pickle: dtype 'V8' is not a plain number type"),
        ("features", "none", "features.pickle: expected a scipy CSR matrix or an array, got str"),
        ("features", X[:2], "features.pickle: features: expected one row for each of 5 nodes"),
        # Splits, of equal sizes.
        ("splits/2", [0, 1], "2.pickle: expected a dictionary with 'train' and 'test'"),
        ("splits/2", {"train": [0]}, "2.pickle: expected a dictionary with 'train' and 'test'"),
        ("splits/2", {"train": [9], "test": [0]}, r"2.pickle: train\[0\] = 9 is outside"),
        ("splits/11", {"train": [1], "test": [0]}, "11.pickle: train: 1 nodes, but .* has 2"),
        ("splits/1", {"train": [1, 0], "test": [0]}, "1.pickle: test: node 0 is in train, too"),
    ],
)
def test_hypergcn_refuses(tmp_path, file, value, message):
    folder, _ = write_hypergcn(tmp_path)
    dump(folder / f"{file}.pickle", value)
    with pytest.raises(ValueError, match=message) as caught:
        load_hypergraph(folder)
    assert str(folder) in str(caught.value)


# Digits


def test_digits():
    data = load_hypergraph("digits")
    assert (data.num_nodes, data.num_features, data.num_classes) == (1797, 64, 10)
    assert (data.x.min(), data.x.max()) == (0, 1)
    assert_same(datasets.digits(k=10), data)
    members = data.node_idx.reshape(1797, 10)  # sorted by hyperedge, all of one size
    for image in (0, 1000, 1796):
        distance = np.square(data.x - data.x[image]).sum(axis=1)
        np.testing.assert_array_equal(members[image], np.sort(np.argsort(distance)[:10]))
    # Neighbours mostly are of one class: labels belong to images.
    assert (data.y[members] == data.y[:, None]).mean() > 0.95
    assert datasets.digits(k=3).num_incidences == 3 * 1797


def test_digits_refuses(monkeypatch):
    with pytest.raises(ValueError, match="k must be between 1 and"):
        datasets.digits(k=0)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'jax-gnn-kernels\[train\]'"):
        datasets.digits()


# Stand-in features


def test_noisy_label_features():
    data = toy(x=None, y=[2, 0, 1, -1, 2], label_names=LABELS)
    exact = datasets.with_noisy_label_features(data, num_features=4, noise=0, seed=0)
    # Unlabelled nodes get noise only, so zeros without noise.
    one_hot = np.eye(4, dtype=np.float32)[[2, 0, 1, 3, 2]] * [[1], [1], [1], [0], [1]]
    assert_same(exact, dataclasses.replace(data, x=one_hot))
    noisy = datasets.with_noisy_label_features(data, num_features=5000, noise=0.5, seed=1)
    noise = noisy.x - np.pad(exact.x, ((0, 0), (0, 4996)))
    np.testing.assert_allclose(noise.std(axis=1), 0.5, rtol=0.05)  # also after the padding
    np.testing.assert_allclose(noise.mean(axis=1), 0, atol=0.05)
    again = datasets.with_noisy_label_features(data, num_features=5000, noise=0.5, seed=1)
    assert_same(again, noisy)
    assert datasets.with_noisy_label_features(data, seed=0).num_features == 100


def test_random_features():
    data = datasets.with_random_features(toy(x=None), num_features=5000, seed=3)
    np.testing.assert_allclose(data.x.std(axis=1), 1, rtol=0.05)
    assert_same(datasets.with_random_features(toy(), num_features=5000, seed=3), data)
    reseeded = datasets.with_random_features(toy(), num_features=5000, seed=4)
    assert not np.array_equal(reseeded.x, data.x)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"num_features": 2}, "num_features must be at least the number of classes, 3, got 2"),
        ({}, {"noise": -1.0}, "noise must be a finite standard deviation"),
        ({}, {"noise": float("nan")}, "noise must be a finite standard deviation"),
        ({"y": [-1] * 5}, {}, "dataset 'toy' has no labels"),
    ],
)
def test_features_refuse(changes, options, message):
    with pytest.raises(ValueError, match=message):
        datasets.with_noisy_label_features(toy(**changes), seed=0, **options)
    with pytest.raises(ValueError, match="num_features must be at least 1"):
        datasets.with_random_features(toy(), num_features=0, seed=0)


# One entry


KNOWN = {  # a format of each loader
    datasets.load_graph: "digits: .*load_graph_npz",
    datasets.load_hypergraph: "digits: .*load_npz",
    datasets.load_graphs: "a folder with NAME_A.txt: TUDataset",
    datasets.load_relational: "NAME.npz: plain arrays .see load_relational_npz",
}


@pytest.mark.parametrize("load", KNOWN)
def test_unknown_sources(tmp_path, load):
    with pytest.raises(FileNotFoundError, match=f"nowhere does not exist; known are {KNOWN[load]}"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=f"is an empty folder; known are {KNOWN[load]}"):
        load(tmp_path)
    (tmp_path / "notes.md").write_text("1,2")
    for source in (tmp_path, tmp_path / "notes.md"):
        with pytest.raises(ValueError, match=f"is of no known format; known are {KNOWN[load]}"):
            load(source)
    write_npz(tmp_path)
    with pytest.raises(ValueError, match=r"is a folder of \.npz files; name one of them"):
        load(tmp_path)


def test_folders_of_several_formats(tmp_path):
    write_npz(tmp_path)
    _, expected = write_allset(tmp_path)
    assert_same(load_hypergraph(tmp_path), expected)
    write_cornell(tmp_path)
    with pytest.raises(ValueError, match="files of several formats"):
        load_hypergraph(tmp_path)


OF_GRAPHS = datasets.load_planetoid, datasets.load_graph_npz, datasets.load_csv


@pytest.mark.parametrize("load", [*WRITERS.values(), *OF_GRAPHS])
def test_loaders_name_what_is_missing(tmp_path, load):
    with pytest.raises(FileNotFoundError, match=r"nowhere.* does not exist; expected"):
        load(tmp_path / "nowhere")
    (tmp_path / "notes.csv").write_text("1,2")
    with pytest.raises(ValueError, match=r"notes\.csv"):
        load(tmp_path / "notes.csv")
    with pytest.raises((FileNotFoundError, ValueError), match=r"expected|has no"):
        load(tmp_path)


@pytest.mark.parametrize("name", [name for name in datasets.__all__ if name.startswith("load_")])
def test_loaders_want_the_path_of_a_file(name):
    load = getattr(datasets, name)
    for value, error in ((3, TypeError), (b"x", TypeError), (None, TypeError), ("", ValueError)):
        with pytest.raises(error, match=rf"(path|source) must be the path .*, got {value!r}"):
            load(value)
    with pytest.raises(ValueError, match="/dev/null is "):
        load("/dev/null")


def test_a_folder_called_digits(tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    _, expected = write_allset(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    assert_same(load_hypergraph("./digits"), expected)
    assert load_hypergraph("digits").num_nodes == 1797
