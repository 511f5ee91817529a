"""Layouts of tables: names of columns, types, hypergraphs, many graphs, times of edges."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest

import jax_gnn
from jax_gnn import Graph, cli, convert
from jax_gnn.datasets import (
    load_any,
    load_csv,
    load_graph,
    load_graphs,
    load_hypergraph,
    load_relational,
    split_edges,
)

PAPERS = "Paper_ID,year,kind,Class\np1,2000,x,a\np2,,y,b\np3,2004,x,\n"
TYPES = {
    "nodes/paper.csv": PAPERS,
    "nodes/the_author.csv": "name,h\nann,3\nbob,5\n",
    "nodes/lab-1.csv": "id\n7\n",
    "edges/the_author-writes-paper.csv": "the_author,paper_id\nbob,p1\nann,p3\nbob,p1\n",
    "edges/the_author-is_in-lab-1.csv": "src,dst\nann,7\n",
    "edges/paper-cites-paper.csv": "citing,cited\np1,p2\n",
}
MOLECULES = {
    "nodes.csv": "graph,id,atom,label\nm2,0,C,9\nm1,0,N,8\nm2,1,C,8\nm1,1,C,9\nm1,2,N,9\n",
    "edges.csv": "graph,From,To\nm1,0,1\nm1,1,2\nm2,0,1\n",
    "graphs.csv": "id,target,split\nm1,0.5,train\nm2,,\nempty,1.5,validation\n",
}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "ends",
    [
        "source,target",
        "From,To",
        "Source ID,Target ID",
        "FromNodeId,ToNodeId",
        "head,tail",
        "u,v",
        "node1,node2",
        "sender_name,receiver_name",
    ],
)
def test_names_of_ends(tmp_path, ends):
    write(tmp_path, {"nodes.csv": "Node_ID,x\na,1\nb,2\n", "edges.csv": f"w,{ends}\n1,a,b\n"})
    data = load_csv(tmp_path)
    assert (data.src.tolist(), data.dst.tolist(), data.node_names) == ([0], [1], ("a", "b"))
    first, second = ends.split(",")
    assert data.notices == (
        "nodes.csv: took the column 'Node_ID' for id",
        f"edges.csv: took the column '{first}' for src, '{second}' for dst",
    )
    with pytest.warns(UserWarning, match=f"edges: took the column '{first}' for src"):
        graph = convert.from_table(tmp_path / "edges.csv", tmp_path / "nodes.csv").graph
    assert [ids.tolist() for ids in graph.edges()] == [[0], [1]]


@pytest.mark.parametrize(
    ("header", "row", "values", "names"),
    [
        ("id,CLASS", "red", [0], ("red",)),
        ("id,y", "1", [0], ("1",)),
        ("id,y", "0.5", [0.5], None),
        ("id,Target", "3", [3], None),
        ("id,class,label", "red,blue", [0], ("blue",)),  # the documented name counts
        ("id,x,y", "1,2", [-1], None),  # coordinates
    ],
)
def test_names_of_labels(tmp_path, header, row, values, names):
    write(tmp_path, {"nodes.csv": f"{header}\na,{row}\n", "edges.csv": "src,dst\na,a\n"})
    data = load_csv(tmp_path)
    assert (data.y.tolist(), data.label_names) == (values, names)


SHOP = {
    "nodes.csv": "customer,label,churned,joined\na,1,yes,3\nb,2,no,4\nc,3,yes,9\n",
    "edges.csv": "payer,payee,sum,joined\na,b,2,5\nb,c,3,6\nc,a,1,7\n",
}
NAMES = {"src": "payer", "dst": "payee", "node": "customer", "label": "churned"}
NAMES |= {"time": "joined", "weight": "sum"}


def test_named_columns(tmp_path):
    data = load_csv(write(tmp_path, SHOP), **NAMES)
    assert data.node_names == ("a", "b", "c") and data.label_names == ("no", "yes")
    assert data.y.tolist() == [1, 0, 1] and data.node_time.tolist() == [3, 4, 9]
    edges = zip(data.src.tolist(), data.dst.tolist(), strict=True)
    assert dict(zip(edges, data.edge_time.tolist(), strict=True)) == {
        (0, 1): 5, (1, 2): 6, (2, 0): 7
    }  # fmt: skip
    assert data.edge_weight.sum() == 6 and not data.notices
    assert data.feature_names == ("label", "joined")  # which is none here
    # Predictions read the same columns, of which labels and weights may be missing.
    later = {"nodes.csv": "customer,label,joined\nx,1,3\n", "edges.csv": "payer,payee\nx,x\n"}
    later = load_csv(write(tmp_path / "later", later), recipe=data.table_recipe)
    assert later.feature_names == data.feature_names and later.y.tolist() == [-1]
    numbers = load_csv(tmp_path, **NAMES | {"label": None, "target": "label"})
    assert numbers.regresses and numbers.y.tolist() == [1, 2, 3]
    types = {"nodes/payer.csv": SHOP["nodes.csv"], "nodes/payee.csv": "customer\na\n"}
    types |= {"edges/payer-pays-payee.csv": "x,payer,to\nb,1,a\n"}
    typed = load_relational(write(tmp_path / "types", types), node="customer", src="x", dst="to")
    assert (typed.src.tolist(), typed.dst.tolist()) == ([2], [0])  # payees come first


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"src": "from"}, r"edges.csv: expected the column from \(src\), got payer, payee, sum,"),
        ({"node": "id"}, r"nodes.csv: expected the column id \(node\), got customer"),
        ({"label": "y"}, r"nodes.csv: expected the column y \(label\), got customer"),
        ({"weight": "w"}, r"edges.csv: expected the column w \(weight\), got payer"),
        ({"time": "t"}, r"time: 't' is none of the columns customer, "),
        ({"target": "label"}, "label must be None beside target, got 'churned'"),
    ],
)
def test_named_columns_that_are_missing(tmp_path, names, message):
    with pytest.raises(ValueError, match=message):
        load_csv(write(tmp_path, SHOP), **NAMES | names)


def test_named_columns_of_the_command(tmp_path, capsys):
    nodes = [f"c{i},{'yn'[i % 2]},{i % 2 + 1}" for i in range(20)]
    edges = [f"c{i},c{(i + 2) % 20}" for i in range(20)]
    tables = {"nodes": ["customer,churned,income", *nodes], "edges": ["payer,payee", *edges]}
    files = {f"{name}.csv": "\n".join(lines) for name, lines in tables.items()}
    data, run = str(write(tmp_path, files)), str(tmp_path / "run")
    options = ["--src", "payer", "--dst", "payee", "--id", "customer", "--label", "churned"]
    assert cli.main(["data", data, *options]) == 0
    assert "churned: 2 classes, 20 of 20 known" in capsys.readouterr().out
    training = ["--splits", "1", "--epochs", "3", "--no-baseline", "--output", run]
    assert cli.main(["train", "sage", "--data", data, *options, *training]) == 0
    (tmp_path / "nodes.csv").write_text("customer,income\nc1,2\nc0,1\nc7,2\n")
    (tmp_path / "edges.csv").write_text("payer,payee\nc1,c7\n")
    output = tmp_path / "labels.csv"
    assert cli.main(["predict", run, "--data", data, "--output", str(output)]) == 0
    rows = [line.split(",")[0] for line in output.read_text().split()]
    assert rows == ["node", "c1", "c0", "c7"]
    assert cli.main(["train", "gcn", "--data", "digits", "--src", "payer"]) == 2
    assert "digits must be tables for src" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "cells", "parts"),
    [
        ("fold", "train,Dev,test,,test", [[0], [1], [2, 4]]),
        ("split", "train,train,valid,test,test", [[0, 1], [2], [4]]),  # the fourth has no label
        ("fold", "train,other,test,,test", [None, None, None]),  # a category
    ],
)
def test_splits(tmp_path, header, cells, parts):
    """A column of parts is the split, whatever its name, and no feature."""
    rows = zip("aabxa", cells.split(","), strict=True)
    lines = [f"n{i},{label.strip('x')},{cell}" for i, (label, cell) in enumerate(rows)]
    files = {"nodes.csv": "\n".join([f"id,label,{header}", *lines]), "edges.csv": "src,dst\n"}
    data = load_csv(write(tmp_path, files))
    ids = (data.train_idx, data.val_idx, data.test_idx)
    assert [None if part is None else part.tolist() for part in ids] == parts
    assert (data.x is None) == (parts[0] is not None) == (len(data.notices) == 2)


def test_hints_of_tables(tmp_path):
    """A feature that tells the label, edges that name no node, rows' numbers as edge features."""
    nodes = "\n".join(f"n{i},{i % 3},{'abc'[i % 3]},{i % 7},{i % 2}" for i in range(120))
    edges = "\n".join(f"n{i},n{i + 1},{i + 7},{i},{i / 2}" for i in range(119))
    edges = f"src,dst,row_id,row,sum\n{edges}\nn3,zz,1000,119,9"
    files = {"nodes.csv": f"id,label,name_of_label,x,y2\n{nodes}\n", "edges.csv": edges}
    told, left_out = (data := load_csv(write(tmp_path, files))).notices
    assert told.startswith("column 'name_of_label' tells 'label', as all rows of a value have")
    assert "edges.csv:121 has the dst 'zz', which is the id of no node; 1 of 120 rows" in left_out
    assert data.num_edges == 119 and data.edge_features.tolist() == [[i / 2] for i in range(119)]


def test_edges_alone(tmp_path):
    """A table of edges is data for the prediction of edges, with relations if it has them."""
    facts = "head,relation,tail,weight\nb,likes,a,1\na,knows,b,2\nb,knows,a,2\n"
    file = write(tmp_path, {"facts.csv": facts}) / "facts.csv"
    graph, relational = load_any(str(file))
    assert graph.node_names == relational.node_names == ("a", "b") and graph.num_edges == 2
    assert relational.relation_names == ("knows", "likes") and relational.rel.tolist() == [0, 0, 1]
    assert relational.src.tolist() == [1, 0, 1] and not graph.has_label().any()
    ratings = write(tmp_path / "folder", {"edges.csv": "user_id,item_id\n1,2\n2,7\n"})
    shared, ends = (
        "1 names are of 'user_id' and of 'item_id', one node each",
        ("user_id", "item_id"),
    )
    assert shared in load_graph(ratings, src=ends[0], dst=ends[1]).notices[0]
    with pytest.warns(UserWarning, match=shared):
        convert.from_table(ratings / "edges.csv", src=ends[0], dst=ends[1])
    file.write_text("src,dst,type\na,b,x\n,b,x\n")
    with pytest.raises(ValueError, match=r"facts.csv:3 has no src; 1 of 2 rows are such: leave "):
        load_relational(file)


def test_missing_targets(tmp_path):
    write(tmp_path, {"nodes.csv": "id,y\na,0.5\nb,N/A\nc,\n", "edges.csv": "src,dst\na,a\n"})
    data = load_csv(tmp_path)
    assert data.regresses and data.has_label().tolist() == [True, False, False] and data.y[0] == 0.5


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ("id\na\n", "source,target,from,to\na,a,a,a\n", "'source', 'target' or 'from', 'to' may"),
        ("node,vertex\na,b\n", "src,dst\na,a\n", "each of the columns 'node', 'vertex' may be"),
        ("id,class,y\na,1,2\n", "src,dst\na,a\n", "columns 'class', 'y' may be meant: call the"),
        ("id\n", "src,dst\n", "nodes.csv: expected a row for each node, got none"),
        ("id\na\na\n", "src,dst\n", "got 'a' 2 times, in nodes.csv:2 and nodes.csv:3"),
    ],
)
def test_tables_refuse(tmp_path, nodes, edges, message):
    write(tmp_path, {"nodes.csv": nodes, "edges.csv": edges})
    with pytest.raises(ValueError, match=message):
        load_csv(tmp_path)


@pytest.mark.parametrize("name", ["z", None])
def test_unknown_id_of_parquet(tmp_path, name):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    for part, columns in (
        ("nodes", {"id": ["a"]}),
        ("edges", {"src": ["a", "a"], "dst": ["a", name]}),
    ):
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{part}.parquet")
    with pytest.raises(
        ValueError, match="row 2 has no dst" if name is None else "has the dst 'z', w"
    ):
        load_csv(tmp_path)


def test_types(tmp_path):
    """A file for each type; names of types may hold the separators of words."""
    data = load_relational(write(tmp_path, TYPES))
    assert data.node_type_names == ("lab-1", "paper", "the_author")
    assert data.node_names == ("7", "p1", "p2", "p3", "ann", "bob")
    relations = "paper-cites-paper", "the_author-is_in-lab-1", "the_author-writes-paper"
    assert data.relation_names == relations
    triples = zip(data.src.tolist(), data.rel.tolist(), data.dst.tolist(), strict=True)
    assert {*triples} == {(1, 0, 2), (4, 1, 0), (5, 2, 1), (4, 2, 3)} and data.repeated == 1
    assert data.y.tolist() == [-1, 0, 1, -1, -1, -1] and data.label_names == ("a", "b")
    np.testing.assert_array_equal(
        data.x_by_type["paper"], [[2000, 1, 0], [2002, 0, 1], [2004, 1, 0]]
    )
    assert data.x_by_type["the_author"].tolist() == [[3], [5]] and "lab-1" not in data.x_by_type
    assert "paper.csv: took the column 'Paper_ID' for id, 'Class' for label" in data.notices
    assert dict(data.columns)["year of paper"].endswith("1 of 3 missing, filled with 2002")
    # Later tables get the features of the training, by type.
    later = {**TYPES, "nodes/paper.csv": "id,kind,year\nq,z,\np1,y,2010\np2,x,1\np3,x,1\n"}
    again = load_relational(write(tmp_path / "later", later), recipe=data.table_recipe)
    np.testing.assert_array_equal(again.x_by_type["paper"][:2], [[2002, 0, 0], [2010, 0, 1]])
    assert again.predicted.tolist() == [1, 2, 3, 4] and not again.has_label().any()


def test_type_called_graph(tmp_path):
    """A type may be called as a part of another layout; a column of labels may be empty."""
    nodes = {"nodes/graph.csv": "id,x,label\n1,2,a\n2,3,b\n", "nodes/b.csv": "id,label\n5,\n"}
    data = load_relational(write(tmp_path, {**nodes, "edges/graph-r-b.csv": "graph,b\n1,5\n"}))
    assert data.x_by_type["graph"].tolist() == [[2], [3]] and data.y.tolist() == [-1, 0, 1]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"edges/paper-paper.csv": "src,dst\n"},
            "joins no two types; types of nodes are lab-1, paper, the_a",
        ),
        ({"nodes/the_author.csv": "id,label\nann,1\nbob,1\n"}, "has labels of paper and the_au"),
        ({"edges/paper-cites-paper.csv": "src,dst\np1,p9\n"}, "paper.csv:2 has the dst 'p9', w"),
        ({"nodes.csv": "id\n1\n"}, "has the folders nodes and edges, and beside it nodes.csv"),
        ({"nodes/paper.tsv": "id\n"}, "has paper.csv and paper.tsv: keep one"),
        ({"nodes/lab-1.csv": "id,split\n7,train\n"}, "lab-1.csv:2 .* has 'train', but no label"),
    ],
)
def test_types_refuse(tmp_path, files, message):
    with pytest.raises(ValueError, match=message):
        load_any(str(write(tmp_path, TYPES | files)))


def test_graphs(tmp_path):
    """Ids are of their graph, which may come in any order; a graph may be empty."""
    data = load_graphs(write(tmp_path, MOLECULES))
    assert data.sizes.tolist() == [3, 2, 0] and data.graph_names == ("m1", "m2", "empty")
    # One-way edges get their reverses.
    edges = {*zip(data.src.tolist(), data.dst.tolist(), strict=True)}
    assert edges == {(0, 1), (1, 0), (1, 2), (2, 1), (3, 4), (4, 3)}
    assert data.feature_names == ("atom=C", "atom=N", "label")
    np.testing.assert_array_equal(data.x, [[0, 1, 8], [1, 0, 9], [0, 1, 9], [1, 0, 9], [1, 0, 8]])
    np.testing.assert_array_equal(data.y, [0.5, np.nan, 1.5])
    assert data.train_idx.tolist() == [0] and data.val_idx.tolist() == [2]
    again = load_graphs(tmp_path, recipe=data.table_recipe)
    assert len(again.notices) == 2 and again.notices[1].startswith("edges.csv: took the column")
    bare = {"nodes.csv": "graph,id\nm1,0\nm1,1\nm2,5\n", "edges.csv": "src,dst\n0,1\n"}
    bare = load_graphs(write(tmp_path / "bare", MOLECULES | bare))
    assert bare.feature_names == ("degree=0", "degree=1") and bare.x[:, 1].tolist() == [1, 1, 0]
    for files, message in (
        ({"edges.csv": "graph,src,dst\nm2,0,2\n"}, "edges.csv:2 has the dst '2 of m2', which"),
        ({"edges.csv": "src,dst\n0,1\n"}, "edges.csv has no column graph: .* name once, got 0 2"),
        ({"graphs.csv": "id\nm1\nm1\n"}, "graphs.csv must have each name once, got 'm1' 2 times"),
        ({"graphs.csv": "id\nm1\n"}, "nodes.csv:2 has a graph that is not in graphs.csv"),
        ({"nodes.csv": "id\n1\n"}, "nodes.csv: expected the column graph, got id"),
        (
            {"nodes.csv": "graph,id\nm1,0\nm1,0\n"},
            "got '0 of m1' 2 times, in nodes.csv:2 and nodes.csv:3",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            load_graphs(write(tmp_path, MOLECULES | files))


def test_hypergraphs(tmp_path):
    tables = {"nodes.csv": "id,x,label\n3,5,a\n1,4,b\n2,3,\n"}
    rows = {"hyperedges.csv": "hyperedge,node\nq,3\np,1\np,3\n"}
    named = load_hypergraph(write(tmp_path / "a", tables | rows))
    assert (named.node_idx.tolist(), named.hyperedge_idx.tolist()) == ([0, 1, 0], [0, 0, 1])
    lists = load_hypergraph(write(tmp_path / "b", tables | {"x.hgr": "2 3\n1 3\n3\n"}))
    for data in (named, lists):
        assert data.node_names == ("3", "1", "2") and data.y.tolist() == [0, 1, -1]
        assert data.x[:, 0].tolist() == [5, 4, 3]
    assert (lists.node_idx.tolist(), lists.hyperedge_idx.tolist()) == ([0, 1, 0], [0, 0, 1])
    rows = load_hypergraph(write(tmp_path / "c", {"nodes.csv": "x\n1\n2\n", "x.hgr": "1 2\n1 2\n"}))
    assert rows.node_names == ("1", "2")
    with pytest.raises(ValueError, match=r"entry 2 of x.hgr has the node 3, which is the id of no"):
        load_hypergraph(write(tmp_path / "c", {"x.hgr": "1 3\n1 3\n"}))
    with pytest.raises(ValueError, match=r"has a.hgr and x.hgr: keep one"):
        load_hypergraph(write(tmp_path / "c", {"a.hgr": "1 1\n1\n"}))
    with pytest.raises(ValueError, match=r"has hyperedges.csv, and beside it edges.csv, which is"):
        load_any(str(write(tmp_path / "a", {"edges.csv": "src,dst\n"})))


def test_times(tmp_path, capsys):
    """Edges are split by time: the last ones test; the earliest time of an edge counts."""
    lines = [f"{i % 20},{(3 * i + 1) % 20},2024-01-{1 + i % 28:02d}" for i in range(100)]
    nodes = "\n".join(["id,x,Time", *(f"{i},{i * i % 7},{i % 5}" for i in range(20))])
    write(tmp_path, {"nodes.csv": nodes, "edges.csv": "\n".join(["src,dst,time", *lines])})
    data = load_graph(tmp_path)
    assert data.edge_time.dtype == np.int64 and data.edge_time.min() == 1704067200
    assert data.node_time.tolist() == [i % 5 for i in range(20)] and "Time" in data.feature_names
    graph = Graph.from_edges([0, 1, 0, 2, 3, 1, 0], [1, 0, 2, 3, 0, 2, 1], num_nodes=6)
    # Dates of nodes are in the unit of edges.
    dates = {
        "nodes.csv": "id,time\na,1970-01-02\n",
        "edges.csv": "src,dst,time\na,a,1970-01-01T00:00:00.5\n",
    }
    dates = load_csv(write(tmp_path / "dates", dates))
    assert (dates.edge_time.tolist(), dates.node_time.tolist()) == ([500_000], [86_400 * 10**6])
    for cells, text in (
        ("x", "got category"),
        ("1e300", "no time"),
        ("inf", "no time"),
        ("1\na,a,", "edges.csv:3 has no time: .*; 1 of 2"),
    ):
        tables = {"nodes.csv": "id\na\n", "edges.csv": f"src,dst,time\na,a,{cells}\n"}
        other = load_csv(write(tmp_path / "other", tables))
        assert other.edge_time is None and re.search(text, other.notices[0])
    order = [5, 1, 3, 2, 4, 6, 9]
    times = np.asarray(graph.edge_values(np.array(order)))
    split = split_edges(graph, valid=0.2, test=0.4, seed=0, undirected=False, edge_time=times)
    pairs = [{*map(tuple, part.T.tolist())} for part in (split.train, split.valid, split.test)]
    # (0, 1) is of time 5, and stays with its reverse; (1, 2) is the last.
    assert pairs[2] >= {(1, 2), (0, 1), (1, 0)} and pairs[1] == {(3, 0)}
    with pytest.raises(ValueError, match=r"edge_time must be \(7,\), got shape \(1,\)"):
        split_edges(graph, valid=0.2, test=0.2, seed=0, edge_time=[1])
    options = ["--epochs", "2", "--output", str(tmp_path / "run"), "--valid", "0.1"]
    assert cli.main(["train", "gcn", "--task", "link", "--data", str(tmp_path), *options]) == 0
    assert "edges are split by time: " in capsys.readouterr().err
    assert cli.main(["data", str(tmp_path)]) == 0
    assert "used by --task link, which splits edges by them" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["sage", "rgcn", "hgnn", "gin"])
def test_nodes_are_split_by_time(tmp_path, capsys, model):
    """The earliest rows with labels train, the last test, in each layout."""
    files = generated("rgcn" if model == "sage" else model)
    if model == "sage":
        files = {"nodes.csv": files["nodes/item.csv"], "edges.csv": "src,dst\nn0,n1\nn1,n2\n"}
    name = {"gin": "graphs.csv", "rgcn": "nodes/item.csv"}.get(model, "nodes.csv")
    header, *rows = files[name].splitlines()
    days = np.random.default_rng(1).permutation(len(rows))
    lines = [f"{row},{np.datetime64('2024-01-01') + day}" for row, day in zip(rows, days, strict=1)]
    files[name] = "\n".join([f"{header},Seen", *lines])
    source = str(write(tmp_path / "data", files))
    words = ["--data", source, "--epochs", "1", "--splits", "1", "--layers", "1"]
    words += ["--task", "graph"] if model == "gin" else ["--no-baseline"]
    out = tmp_path / "out"
    assert cli.main(["train", model, *words, "--time", "Seen", "--output", str(out)]) == 0
    assert "s are split by time: 25 to train, 12 to validate, 13 to test" in capsys.readouterr().err
    ids = np.concatenate([*vars(jax_gnn.load(out).split).values()])
    assert ids.tolist() == [i for i in np.argsort(days).tolist() if not rows[i].endswith(",")]
    # Without the column, or with a missing time, an error names what is missing.
    assert cli.main(["train", model, *words, "--split", "time", "--output", str(out)]) == 2
    kind = "graphs" if model == "gin" else "nodes"
    assert f"has no times of {kind} to split by" in capsys.readouterr().err
    files[name] += f"\nlast{',1' * header.count(',')},"
    write(tmp_path / "data", files)
    assert cli.main(["train", model, *words, "--split", "time", "--time", "Seen"]) == 2
    assert f"column 'Seen': {name.rpartition('/')[2]}:62 has no time" in capsys.readouterr().err


def test_typed_edges_have_times(tmp_path, capsys):
    """Nodes see the edges of all types up to their own time, and those without times."""
    files = generated("rgcn")
    for name, column in (("nodes/item.csv", "Time"), ("edges/user-buys-item.csv", "time")):
        header, *rows = files[name].splitlines()
        lines = (f"{row},2024-01-{1 + i % 28:02d}" for i, row in enumerate(rows))
        files[name] = "\n".join([f"{header},{column}", *lines])
    files["edges/user-knows-user.csv"] = "src,dst\nu0,u1\nu1,u2\n"
    source = str(write(tmp_path / "data", files))
    data = load_relational(source)
    times = np.unique(data.edge_time[data.rel == 0])
    assert times.min() == 1704067200 and (np.diff(times) == 86400).all()
    assert data.relation_names[0] == "user-buys-item"
    assert (data.edge_time[data.rel == 1] == np.iinfo(np.int64).min).all()
    assert "edges without times count as before all others" in " ".join(data.notices)
    words = ["--data", source, "--epochs", "1", "--splits", "1", "--no-baseline", "--edge-time"]
    words += ["--layers", "1", "--batch-size", "8", "--output", str(tmp_path / "out")]
    assert cli.main(["train", "rgcn", *words]) == 0
    assert "all edges up to each node's time" in capsys.readouterr().out
    # One table of times that cannot be read leaves all edges without.
    files["edges/user-knows-user.csv"] = "src,dst,time\nu0,u1,soon\n"
    data = load_relational(str(write(tmp_path / "unread", files)))
    assert data.edge_time is None and any("times are not used" in text for text in data.notices)


def shuffled(text, keep=slice(None)):
    """Return a table with its rows in the opposite order, with some of the columns."""
    header, *rows = [line.split(",")[keep] for line in text.splitlines()]
    return "\n".join(map(",".join, [header, *rows[::-1]])) + "\n"


def generated(kind, size=60):
    """Return the files of a layout, whose labels are those of a column."""
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=size)
    nodes = "".join(
        f"n{i},{rng.normal() + 4 * label[i]:.3f},{'' if i % 6 == 5 else 'ab'[label[i]]}\n"
        for i in range(size)
    )
    pairs = rng.integers(size, size=(3 * size, 2)).tolist()
    if kind == "hgnn":
        rows = "".join(f"n{i},h{j % 10} {label[i]}\n" for i, j in pairs)
        return {"nodes.csv": f"id,x,label\n{nodes}", "hyperedges.csv": f"node,hyperedge\n{rows}"}
    if kind == "gin":
        atoms = "".join(f"n{i},{j},{i % 3 + 4 * label[i]}\n" for i in range(size) for j in range(4))
        bonds = "".join(f"n{i},{j},{j + 1}\n" for i in range(size) for j in range(3))
        graphs = "\n".join(",".join(line.split(",")[::2]) for line in nodes.splitlines())
        files = {"nodes.csv": f"graph,id,x\n{atoms}", "edges.csv": f"graph,src,dst\n{bonds}"}
        return {**files, "graphs.csv": f"id,label\n{graphs}\n"}
    rows = "".join(f"u{i % 9},n{j}\n" for i, j in pairs)
    users = "".join(f"u{i},{i % 4}\n" for i in range(9))
    return {
        "nodes/item.csv": f"id,x,label\n{nodes}",
        "nodes/user.csv": f"id,age\n{users}",
        "edges/user-buys-item.csv": f"user,item\n{rows}",
    }


@pytest.mark.parametrize("model", ["rgcn", "hgnn", "gin"])
def test_one_command(tmp_path, capsys, model):
    """Each layout trains by one command, and predicts by names, whatever the order of rows."""
    files = generated(model)
    source = str(write(tmp_path / "data", files))
    name = {"gin": "graphs.csv", "hgnn": "nodes.csv", "rgcn": "nodes/item.csv"}[model]
    new = {key: shuffled(text, slice(-1 if key == name else None)) for key, text in files.items()}
    later = str(write(tmp_path / "new", new))
    out = tmp_path / "out"
    options = ["--epochs", "20", "--splits", "1", "--output", str(out), "--data", source]
    words = ["--task", "graph"] if model == "gin" else ["--no-baseline"]
    assert cli.main(["train", model, *words, *options]) == 0
    tables = []
    for path, data in (("p.csv", source), ("q.csv", later)):
        file = str(tmp_path / path)
        assert cli.main(["predict", str(out), "--data", data, "--output", file]) == 0
        with (tmp_path / path).open() as lines:
            rows = [[*row.values()] for row in csv.DictReader(lines)]
        tables.append({row[0]: row[1] for row in rows})
        assert len(rows) == 60
    assert tables[0] == tables[1]
    known = {line.split(",")[0]: line.split(",")[-1] for line in files[name].splitlines()[1:]}
    assert np.mean([tables[1][key] == value for key, value in known.items() if value]) > 0.8
