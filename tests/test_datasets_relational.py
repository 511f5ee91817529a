"""Datasets of edges with relations: what the loaders read, and what they refuse."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_gnn import datasets
from jax_gnn._core import files
from jax_gnn.datasets import RelationalDataset

TRIPLES = """\
# people
<http://a/Ann> <http://r/knows> <http://a/Bo> .
<http://a/Bo> <http://r/knows> <http://a/Ann>.

<http://a/Ann> <http://r/name> "A \\"n\\" n"@en-GB . # a comment
_:b1 <http://r/knows> <http://a/Ann> .
<http://a/Bo> <http://r/age> "4"^^<http://t/int> .
<http://a/Bo> <http://r/knows> <http://a/Ann> .
"""
NODES = ('"4"^^<http://t/int>', '"A \\"n\\" n"@en-gb', "<http://a/Ann>", "<http://a/Bo>", "_:b1")
TABLES = {
    "completeDataset.tsv": "id\tperson\tlabel_group\n1\thttp://a/Ann\t1\n2\thttp://a/Bo\t0\n",
    "trainingSet.tsv": "person\tid\tlabel_group\nhttp://a/Ann\t1.0\t1.0\n",
    "testSet.tsv": "person\tid\tlabel_group\nhttp://a/Bo\t2.0\t0.0\n",
}
HGB = {
    "link.dat": "0\t2\t0\t1\n2\t0\t1\t1.0\n1\t3\t0\t1\n",
    "label.dat": "0\tOne\t0\t2,0\n",
    "label.dat.test": "1\tTwo\t0\t1\n",
    "info.dat": json.dumps(
        {
            "node.dat": {"node type": {"0": "movie", "1": "actor"}},
            "link.dat": {
                "link type": {
                    "0": {"start": 0, "end": 1, "meaning": "has"},
                    "1": {"start": 1, "end": 0, "meaning": "in"},
                }
            },
            "label.dat": {"node type": {"0": {"0": "a", "1": "b", "2": "c"}}},
        }
    ),
}
NPZ: dict[str, Any] = {
    "num_nodes": 5,
    "num_relations": 3,
    "src": [0, 1, 2, 0],
    "rel": [2, 0, 0, 2],
    "dst": [4, 3, 3, 4],
    "relation_names": np.array(["a", "b", "c"]),
    "node_names_utf8": np.frombuffer("é\nb\n\nd\ne".encode(), np.uint8),
    "node_type": np.array([0, 0, 1, 1, -1], np.int8),
    "node_type_names": np.array(["p", "q"]),
    "x_p": np.ones((2, 3)),
    "x_q_data": np.array([2.0]),
    "x_q_indices": np.array([1]),
    "x_q_indptr": np.array([0, 0, 1]),
    "x_q_shape": np.array([2, 2]),
    "unknown": np.zeros(3),
}


def write(folder: Path, files) -> Path:
    for name, text in files.items():
        data = text if isinstance(text, bytes) else text.encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def check(data: RelationalDataset, **expected) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(getattr(data, name), value, err_msg=name)


@pytest.mark.parametrize("name", ["toy_stripped.nt.gz", "toy.nt"])
def test_triples(tmp_path, name):
    folder = write(tmp_path, {name: TRIPLES, **TABLES})
    for source in (folder, folder / name):
        data = datasets.load_relational(source)
        assert repr(data) == (
            "RelationalDataset('toy', num_nodes=5, num_edges=5, num_relations=3, num_classes=2)"
        )
        assert data.node_names == NODES
        assert data.relation_names == ("http://r/knows", "http://r/age", "http://r/name")
        check(data, src=[3, 4, 2, 3, 2], rel=[0, 0, 0, 1, 2], dst=[2, 2, 3, 0, 1])
        check(data, y=[-1, -1, 1, 0, -1], train_idx=[2], test_idx=[3], label_names=("0", "1"))
    # Inverse relations and the self-relation follow the relations of the file.
    graph = data.graph()
    assert (graph.num_relations, graph.num_edges, graph.self_relation) == (7, 15, True)
    bare = data.graph(inverse=False, self_relation=False)
    assert (bare.num_relations, bare.num_edges) == (3, 5)


@pytest.mark.parametrize("odd", ["\x85", "\u2028", "\x1c", "\x0c"])
def test_names_with_what_python_takes_for_line_ends(tmp_path, odd):
    """Names keep such characters, and later lines have the numbers that editors show."""
    node = f"a{odd}" if odd > "\x20" else "a"
    triples = f'<{node}> <b> "c{odd}" .\n'
    files = {"toy.nt": triples, "testSet.tsv": f"n\tlabel\n{node}\tred{odd}\n"}
    data = datasets.load_rdf(write(tmp_path, files))
    assert (data.node_names, data.label_names) == ((f'"c{odd}"', f"<{node}>"), (f"red{odd}",))
    write(tmp_path, {"testSet.tsv": files["testSet.tsv"] + "a\n"})
    with pytest.raises(ValueError, match=r"testSet\.tsv: line 3: expected 2 columns"):
        datasets.load_rdf(tmp_path)
    hgb = {"node.dat": f"0\tx{odd}\t0\n1\ty\t0\n2\tz\t1\t{odd}\n3\tw\t1\n"}
    hgb["label.dat"] = f"0\tO{odd}e\t0\t1\n"
    (folder := tmp_path / "hgb").mkdir()
    check(datasets.load_hgb(write(folder, HGB | hgb)), node_type=[0, 0, 1, 1], train_idx=[0])
    write(folder, {"label.dat": hgb["label.dat"] + "1\n"})
    with pytest.raises(ValueError, match=r"label\.dat: line 2: expected 4 columns, got 1"):
        datasets.load_hgb(folder)


def test_triples_without_tables(tmp_path):
    data = datasets.load_rdf(write(tmp_path, {"toy.nt": TRIPLES}))
    assert data.train_idx is None and data.label_names is None and data.num_classes == 0
    empty = datasets.load_rdf(write(tmp_path, {"toy.nt": "\n# nothing\n"}))
    assert (empty.num_nodes, empty.num_edges, empty.num_relations) == (0, 0, 0)


# What N-Triples mean, and how that is written in canonical form.
TERMS = {
    "<http://e/café>": [r"<http://e/caf\u00E9>", r"<http://e/caf\U000000e9>"],
    "<http://e/😀>": [r"<http://e/\U0001F600>"],
    '"café"': [r'"caf\u00e9"', '"café"^^<http://www.w3.org/2001/XMLSchema#string>'],
    r'"\\ \" \n \r"': [r'"\u005C \u0022 \u000A \U0000000D"'],
    '"\t\b\f\'\x0b\x85\u2028"': [r'"\t\b\f\'\u000B\u0085\u2028"'],
    r'"\\u00E9"': [r'"\u005Cu00E9"'],
    '"x"@en-gb': ['"x"@en-GB', '"x" @EN-gb'],
    '"1"^^<http://t/é>': [r'"1"^^<http://t/\u00e9>', '"1" ^^ <http://t/é>'],
    "_:a.1-b": [],
    '"01"^^<http://t/é>': [],
    "<http://e/caf%C3%A9>": [],  # as it is written: nothing else is normalized
    "<http://e/cafe\u0301>": [],
    "<http://E/café>": [],
    '"X"@en-gb': [],
}


def test_terms_are_what_they_mean(tmp_path):
    """Spellings of a term are one node; blanks may be missing, lines line_end in all ways."""
    # Comments, and all kinds of line ends.
    line_ends = (" \t# a comment: <a> <b> <c> .\r", "\r\n", "\n")
    lines = [
        f"<s><p{escape}>{term}.{line_end}"
        for name, aliases in TERMS.items()
        for term, escape, line_end in zip(
            (name, *aliases), (r"\u00e9", "é", "é"), line_ends, strict=False
        )
    ]
    table = {"testSet.tsv": "id\tn\tlabel\n1\thttp://e/caf\\u00E9\t1\n2\thttp://e/😀\t0\n"}
    data = datasets.load_rdf(write(tmp_path, {"toy.nt": "\ufeff" + "".join(lines), **table}))
    assert data.node_names == tuple(sorted(["<s>", *TERMS]))
    assert (data.num_edges, data.relation_names) == (len(TERMS), ("pé",))
    assert data.test_idx is not None and data.y[data.test_idx].tolist() == [1, 0]


# Escapes and blanks that the grammar of N-Triples forbids, then missing or wrong terms.
NO_TRIPLES: tuple[str, ...] = (
    r"<a> <b> <\u00ZZ> .",
    r"<a> <b> <\n> .",
    r"<\> <b> <c> .",
    r'<a> <b> "\x" .',
)
NO_TRIPLES += (r'<a> <b> "\uD800" .', r'<a> <b> "\U00110000" .', r'<a> <b> "\uD83D\uDE00" .')
NO_TRIPLES += ("<a> <b> _:c#d .", "<a> <b> _: .", "<a> <b> _:-c .", '<a> <b> "c"@en-.', "\xa0")
NO_TRIPLES += ('<a> <b> "c"^^_:d .', "<a>\u2003<b> <c> .", "<a> <b> <c> .\x0b", '<a> <b> "c"@é .')
NO_TRIPLES += ("<a> <b> .", "<a> <b> <c>", "<a> _:b <c> .", '"a" <b> <c> .', "<a> <b> <c> . <d>")
NO_TRIPLES += ('<a> <b> "c .', '<a> <b> "c\\" .', "<a> <b c> <d> .", '<a> <b> "c"@ .', "a b c .")


@pytest.mark.parametrize("line", NO_TRIPLES)
def test_a_line_that_is_no_triple(tmp_path, line):
    folder = write(tmp_path, {"toy.nt.gz": f"<a> <b> <c> .\n\n{line}\n"})
    with pytest.raises(ValueError, match=r"toy\.nt\.gz: line 3 is no triple"):
        datasets.load_rdf(folder)


def test_damaged_triples(tmp_path):
    intact = gzip.compress(TRIPLES.encode())
    for data, message in (
        # Damage in compressed data, then in text.
        (intact[:-20], "damaged after line"),
        (b"no gzip", "damaged after line 0"),
        (intact[:15] + b"\xff\x00" + intact[17:], "damaged|is no triple|not UTF-8"),
        (gzip.compress(b"<a> <b> <\xff> .\n"), "line 1 is not UTF-8"),
        (gzip.compress(b"#" * (2**20 + 1)), "line 1 is longer"),
    ):
        (tmp_path / "toy.nt.gz").write_bytes(data)
        with pytest.raises(ValueError, match=rf"toy\.nt\.gz: .*({message})"):
            datasets.load_rdf(tmp_path)


def test_a_small_file_of_very_many_triples(tmp_path, monkeypatch):
    """Triples that compress to a thousandth of their size are refused."""
    monkeypatch.setattr(files, "_SMALL_FILE", 1)
    (tmp_path / "toy.nt.gz").write_bytes(gzip.compress(b"<a> <b> <c> .\n" * 100_000, 9))
    with pytest.raises(ValueError, match=r"toy\.nt\.gz: the triples would take"):
        datasets.load_rdf(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("testSet.tsv", "", "line 1: expected the columns"),
        ("testSet.tsv", "id\tlabel\n", "line 1: expected the columns"),
        ("testSet.tsv", "n\tlabel\nhttp://a/Bo\n", "line 2: expected 2 columns, got 1"),
        ("testSet.tsv", "n\tlabel\nhttp://a/Eve\t0\n", "line 2: <http://a/Eve> is no node"),
        (
            "testSet.tsv",
            "n\tlabel\nhttp://a/Ann\t1\n",
            r"testSet\.tsv: line 2: <http://a/Ann> is in trainingSet\.tsv too",
        ),
        (
            "testSet.tsv",
            "n\tlabel\nhttp://a/Ann\t0\n",
            "line 2: <.*> has the label '0' .*'1' before",
        ),
        ("other.nt", TRIPLES, "expected one file"),
    ],
)
def test_tables_and_folders(tmp_path, name, text, message):
    folder = write(tmp_path, {"toy.nt": TRIPLES, **TABLES, name: text})
    with pytest.raises(ValueError, match=message):
        datasets.load_rdf(folder)


def test_hgb(tmp_path):
    folder = write(tmp_path, HGB)
    for source in (folder, folder / "link.dat"):
        data = datasets.load_relational(source)
        check(data, num_nodes=4, src=[0, 1, 2], rel=[0, 0, 1], dst=[2, 3, 0])
        check(data, node_type=[0, 0, 1, 1], train_idx=[0], test_idx=[1], y=[-1] * 4)
        check(data, y_multilabel=np.array([[1, 0, 1], [0, 1, 0], [0] * 3, [0] * 3], bool))
        assert data.node_type_names == ("movie", "actor")
        assert (data.relation_names, data.label_names) == (("has", "in"), ("a", "b", "c"))
        assert data.num_classes == 3
    # Without info.dat and test labels, names are numbers.
    single = HGB | {"label.dat": "0\tOne\t0\t2\n"}
    del single["info.dat"], single["label.dat.test"]
    (folder / "info.dat").unlink()
    (folder / "label.dat.test").unlink()
    data = datasets.load_hgb(write(folder, single))
    check(data, y=[2, -1, -1, -1], y_multilabel=None, node_type=[0, -1, -1, -1])
    assert data.relation_names == ("0", "1")


NODES_OF_HGB = "4\tFive\t2\t0.5,1\n0\tOne\t0\n1\tTwo\t0\n3\t\t1\t\n2\tThree\t1\t1\n"


def test_hgb_nodes_are_those_of_node_dat(tmp_path):
    """One has neither edge nor label; and types, relations and classes may have names alone."""
    info = json.loads(HGB["info.dat"])
    # Names of unused types, relations and classes count.
    info["node.dat"]["node type"] |= {"2": "genre", "3": "award"}
    info["link.dat"]["link type"]["0"] |= {"start": 1, "end": 1}  # node.dat knows better
    info["link.dat"]["link type"] |= {"2": {"meaning": "none"}}
    info["label.dat"]["node type"]["0"] |= {"3": "d"}
    files = HGB | {"node.dat": NODES_OF_HGB, "info.dat": json.dumps(info)}
    data = datasets.load_hgb(write(tmp_path, files))
    check(data, num_nodes=5, node_type=[0, 0, 1, 1, 2], src=[0, 1, 2], train_idx=[0])
    assert data.node_type_sizes == {"movie": 2, "actor": 2, "genre": 1, "award": 0}
    assert data.relation_names == ("has", "in", "none")
    assert data.label_names == ("a", "b", "c", "d") and data.num_classes == 4
    graph = data.graph(inverse=False, self_relation=False)
    assert (graph.num_nodes, graph.num_relations) == (5, 3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        # Ids and types must be those of node.dat.
        ("link.dat", "0\t5\t0\t1\n", r"line 1: expected a node of node\.dat from 0 to 4, got '5'"),
        ("label.dat", "5\tSix\t0\t1\n", r"label\.dat: line 1: expected a node of node\.dat from"),
        ("label.dat", "0\tOne\t1\t1\n", "line 1: node 0 has type 1 here and 0 in node"),
        ("node.dat", "0\tOne\t0\n0\tTwo\t0\n", r"node\.dat: line 2: node 0 is there twice"),
        ("node.dat", "0\tOne\t0\n2\tTwo\t0\n", r"node\.dat: node 1 has no line, but node 2"),
        ("node.dat", "0\tOne\n", r"node\.dat: line 1: expected 3 or 4 columns, got 2"),
        ("node.dat", "0\tOne\t-1\n", r"node\.dat: line 1: expected a type from 0 .*'-1'"),
        ("node.dat", "0\tOne\t2000000000\n", r"link\.dat: line 1: expected a node of node\.dat"),
    ],
)
def test_hgb_refuses_what_is_not_in_node_dat(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        datasets.load_hgb(write(tmp_path, HGB | {"node.dat": NODES_OF_HGB, name: text}))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("link.dat", "0\t1\t0\t1\n0\t1\t0\n", r"link\.dat: line 2: expected 4 columns, got 3"),
        ("link.dat", "0\t-1\t0\t1\n", r"link\.dat: line 1: expected a node from 0 to .*, got '-1'"),
        ("link.dat", "0\tx\t0\t1\n", r"link\.dat: line 1: expected a node .*, got 'x'"),
        # Single large numbers would take gigabytes.
        ("link.dat", "0\t2000000000\t0\t1\n", "2000000001 nodes would take"),
        ("link.dat", "0\t1\t2000000000\t1\n", "2000000001 relations would take"),
        ("label.dat", "0\tOne\t2000000000\t1,0\n", "2000000001 types would take"),
        ("label.dat", "0\tOne\t0\t1,2000000000\n", "2000000001 classes would take"),
        ("label.dat", "0\tOne\t0\t2000000000\n", "2000000001 classes would take"),
        ("label.dat", "0\tOne\t0\t\n", r"label\.dat: line 1: expected classes .*, got ''"),
        ("label.dat.test", "0\tOne\t0\t1\n", r"dat\.test: line 1: node 0 is in label\.dat too"),
        ("info.dat", "{", r"info\.dat: "),
        ("info.dat", "[" * 100_000, r"info\.dat: "),
    ],
)
def test_hgb_refuses(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        datasets.load_hgb(write(tmp_path, HGB | {name: text}))


def save(folder: Path, **changes) -> Path:
    arrays = {name: value for name, value in (NPZ | changes).items() if value is not None}
    np.savez_compressed(folder / "toy.npz", **arrays)
    return folder / "toy.npz"


def test_npz_with_types_and_edge_splits(tmp_path):
    """Edges are sorted, without duplicates; what names edges follows them, also one given twice."""
    # Without labels, splits name edges by their position in the file.
    splits = {"train_idx": [3, 1, 0, 1], "test_idx": [2]}
    data = datasets.load_relational(save(tmp_path, **splits))
    check(data, src=[1, 2, 0], rel=[0, 0, 2], dst=[3, 3, 4], y=[-1] * 5)
    check(data, train_edges=[2, 0], test_edges=[1], val_edges=None, train_idx=None)
    assert data.node_names == ("é", "b", "", "d", "e")
    assert data.x_by_type is not None and [*data.x_by_type] == ["p", "q"]
    np.testing.assert_array_equal(data.x_by_type["q"], [[0, 0], [0, 2]])


def test_types_of_a_graph(tmp_path):
    """Graphs have sizes of types if nodes are numbered type by type."""
    data = datasets.load_relational(save(tmp_path))
    assert data.node_type_sizes is None and data.graph().node_type_sizes is None
    types = np.array([0, 0, 1, 1, 1], np.int8)
    data = datasets.load_relational(save(tmp_path, node_type=types, x_q_data=None))
    assert data.node_type_sizes == {"p": 2, "q": 3}
    graph = data.graph()
    assert (graph.node_type_names, graph.node_type_sizes) == (("p", "q"), (2, 3))


def test_npz_with_labels(tmp_path):
    names = {"class_names": np.array(["u", "v"]), "y": [0, 1, -1, -1, -1]}
    data = datasets.load_relational_npz(save(tmp_path, **names, train_idx_20=[0], test_idx_20=[1]))
    check(data, train_idx=[0], test_idx=[1], label_names=("u", "v"), train_edges=None)
    hgb = {"hgb_train_idx": [1], "hgb_test_idx": [0], "train_idx_20": [0], "val_idx_20": [1]}
    check(datasets.load_relational_npz(save(tmp_path, **names, **hgb)), train_idx=[1], val_idx=None)
    multi = save(tmp_path, y_multilabel=[[1, 1], [0, 1]], train_idx=[0], test_idx=[1])
    data = datasets.load_relational_npz(multi)
    assert data.y_multilabel is not None and data.y_multilabel.shape == (5, 2)
    check(data, train_idx=[0], num_classes=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rel": None}, "lacks 'rel' of the keys of a relational dataset"),
        ({"rel": [0, 1]}, "src, rel, dst: expected as many"),
        ({"rel": [0, 1, 3, 2]}, r"rel\[2\] = 3 is outside \[0, 3\)"),
        ({"relation_names": np.array(["a"])}, "relation_names: expected 3 names"),
        (
            {"relation_names": np.array(["a", "b", "a"])},
            "relation_names must differ from each other",
        ),
        ({"node_type_names": np.array(["p", "p"])}, "node_type_names must differ .* got 'p' as"),
        (
            {"class_names": np.array(["a", "b", "c", "b"])},
            "label_names must differ from each other, got 'b' as number 1 and as number 3",
        ),
        (
            {"node_type_names": np.array(["p", "q", "q_data"])},
            "x_q_data may be of the type 'q' or 'q_data'",
        ),
        ({"node_type": None}, "node_type: missing"),
        ({"node_type": [0, 0, 1, 1, 2]}, "node_type: 2 has none of 2"),
        ({"node_type": [0]}, "node_type: expected 5 entries, got 1"),
        ({"x_p": np.ones((3, 3))}, r"x_by_type\['p'\]: expected one row for each of 2"),
        ({"x_q_shape": np.array([2, 2**30])}, "x_q would take"),
        ({"y_multilabel": np.full((2, 2), 3)}, "y_multilabel: expected zeros and ones"),
        ({"y_multilabel": np.ones((6, 2), int)}, "y_multilabel: expected zeros and ones"),
        ({"y_multilabel": np.zeros((2, 2), int), "train_idx": [0]}, "node 0 has no label"),
        ({"train_idx": [1], "val_idx": [2, 1]}, "val_edges: edge .* is in train_edges"),
        ({"train_idx": [0], "test_idx": [3]}, r"test_edges: edge \(é, c, e\) is in train_e"),
        ({"val_idx": [0], "test_idx": [2, 3]}, r"test_edges: edge \(é, c, e\) is in val_edges too"),
        ({"train_idx": [7]}, r"train_edges\[0\] = 7 is outside \[0, 4\)"),
        ({"node_names_utf8": np.zeros(3)}, "node_names_utf8: expected bytes"),
        ({"node_names_utf8": np.array([255], np.uint8)}, "node_names_utf8: not UTF-8"),
        ({"num_nodes": 2**31 - 1}, "num_nodes would take"),
        ({"num_relations": 2**31 - 1, "relation_names": None}, "num_relations would take"),
    ],
)
def test_npz_refuses(tmp_path, changes, message):
    with pytest.raises(ValueError, match=rf"toy\.npz: .*{message}"):
        datasets.load_relational_npz(save(tmp_path, **changes))


def test_npz_with_a_key_twice(tmp_path):
    path = save(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("rel", archive.read("rel.npy"))
    with pytest.raises(ValueError, match=r"toy\.npz: has 'rel' twice"):
        datasets.load_relational_npz(path)


def test_formats_are_found_or_named(tmp_path):
    write(tmp_path, {"toy.nt": TRIPLES, **HGB})
    with pytest.raises(ValueError, match="several formats"):
        datasets.load_relational(tmp_path)
    with pytest.raises(ValueError, match=re.escape("is not one of NAME.nt and NAME.nt.gz")):
        datasets.load_rdf(tmp_path / "link.dat")
    for missing in ("nowhere", "nowhere/link.dat"):
        with pytest.raises(FileNotFoundError, match="nowhere does not exist; expected a folder"):
            datasets.load_hgb(tmp_path / missing)
    with pytest.raises(ValueError, match=r"label\.dat is a file; expected a folder with link\.dat"):
        datasets.load_hgb(tmp_path / "label.dat")
    with pytest.raises(FileNotFoundError, match="digits"):
        datasets.load_relational("digits")
