"""Tables as people have them: kinds of columns, missing cells, typos, features of later tables."""

from __future__ import annotations

import csv
import datetime
import gzip
import math
import re

import jax
import numpy as np
import pytest

from jax_gnn import Graph, cli, convert, load
from jax_gnn.convert._data import objects
from jax_gnn.convert._kinds import read_kind
from jax_gnn.datasets import load_any, load_csv, load_graph, load_hypergraph

NAN = math.nan
DAY = 86_400


def write(folder, nodes, edges="src,dst\na,b\n"):
    folder.mkdir(exist_ok=True)
    (folder / "nodes.csv").write_text(nodes, encoding="utf-8")
    (folder / "edges.csv").write_text(edges, encoding="utf-8")
    return folder


def customers(folder, rows=5000):
    """Write two tables with all that keeps real ones from loading."""
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=rows)
    with (folder / "nodes.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        names = "id age income share since seen city bio visits none label"
        table.writerow(["", *names.split()])
        for i in range(rows):
            age = f"{40 + 20 * label[i] + 10 * rng.normal():.1f}"
            age = rng.choice(["NA", "", "n/a", "-", "null", "None"]) if i % 20 == 7 else age
            day = np.datetime64("2020-01-01") + int(rng.integers(1000))
            table.writerow(
                [
                    i,
                    f"c{i}",
                    "4O" if i in (17, 400) else age,
                    "N/A" if i % 50 == 0 else f"${rng.integers(10**6) / 10:,.2f}",
                    f"{rng.integers(100)} %",
                    day.item().strftime("%m/%d/%Y"),
                    f"{day} 10:30:00",
                    "" if i % 20 == 3 else ["Rome", "Oslo"][label[i]],
                    f"customer {i} likes {rng.choice(['tea', 'milk'])}",
                    rng.choice(["0", "1", "2", "3+"]),
                    "NA",
                    "" if i % 5 == 4 else "ab"[label[i]],
                ]
            )
    src, dst = rng.integers(rows, size=(2, 4 * rows))
    same = (label[src] == label[dst]) | (rng.random(len(src)) < 0.3)
    with (folder / "edges.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["src", "dst", "weight", "when"])
        for pair in zip(src[same], dst[same], strict=True):
            table.writerow([*(f"c{i}" for i in pair), f"{rng.random() * 2000:,.1f}", "2024-01-01"])


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", "NA", "3.5", "-", None, "?"], "number", [1, NAN, 3.5, NAN, NAN, NAN]),
        (["1,234.5", "3", "", "-1,000"], "number", [1234.5, 3, NAN, -1000]),
        (["$1,234.5", "$3", "N/A", "-$7"], "number", [1234.5, 3, NAN, -7]),
        (["12 %", "3%"], "number", [12, 3]),
        (["12 %", "3", "EUR 5"], "category", None),  # signs that do not agree
        (["1,23", "4,5", "-7"], "number", [1.23, 4.5, -7]),  # decimal commas
        (["1.234,5 €", "-2 €", ""], "number", [1234.5, -2, NAN]),
        (["1,234", "2,345"], "number", [1234, 2345]),  # decimal commas would do, too
        (["1,23", "4.5"], "category", None),
        (["1 234,5", "\u2212" + "2\u00a0000"], "number", [1234.5, -2000]),
        (["1'234 CHF", "5 CHF"], "number", [1234, 5]),
        (["12 34", "5"], "category", None),
        (["2024-01-05", "null", "1969-12-31"], "time", [19727 * DAY, NAN, -DAY]),
        (["1970-01-01T01:00+01:00", "1970-01-01 00:00:00.5"], "time", [0, 0.5]),
        (["1970-01-02", "9999-12-31T23:00-14:00"], "category", None),  # beyond the last year
        (["1/31/1970", "2/1/1970"], "time", [30 * DAY, 31 * DAY]),
        (["31.1.1970 06:00", "1.2.1970 00:00"], "time", [30.25 * DAY, 31 * DAY]),
        (["Jan 2, 1970", "Feb 1, 1970"], "time", [DAY, 31 * DAY]),
        ([datetime.date(1970, 1, 2), None], "time", [DAY, NAN]),
        (["31.01.70", "01.02.70"], "time", [30 * DAY, 31 * DAY]),
        (["1/31/70 1:00:01 AM"] * 2, "time", [30 * DAY + 3601] * 2),
        (["1970-1-2", "1970-01-03"], "time", [DAY, 2 * DAY]),
        (["1970-01-02 00:00:00 UTC", "1970-01-01 01:00:00 +0100"], "time", [DAY, 0]),
        (["1970-02", "1970-01"], "time", [31 * DAY, 0]),
        (["1", "missing", "\\N", "<NA>", "3"], "number", [1, NAN, NAN, NAN, 3]),
        (["NA", ""], "empty", None),
        (["a", "b"] * 10, "category", None),
        ([f"word {i}" for i in range(40)], "text", None),
        ([*"012" * 30, *["3+"] * 8], "category", None),
        ([str(i) for i in range(12)], "index", None),
    ],
)
def test_kinds(cells, kind, values):
    reading = read_kind("x", objects(cells), str)
    assert reading.kind == kind
    if values is not None:
        scale = 10**6 if kind == "time" else 1
        np.testing.assert_allclose(reading.values / scale, values)


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        ('id, x, "y z",,\n" a", 1,3 , ,\nb ,2,4,,\n', 'src , dst\na, b\n" b",a \n'),
        ("id|x|y z\na|1|3\nb|2|4\n", "src|dst\na|b\nb|a\n"),
        ('sep=;\n"id";x;"y\n z"\na;1;3;;\n;;\nb;2;4\n;;\n', "src;dst\na;b\n;\nb;a\n"),
    ],
)
def test_blanks_bars_and_columns_without_a_name(tmp_path, nodes, edges):
    """Blanks around names do not count, nor do empty columns that a spreadsheet appends."""
    data = load_csv(write(tmp_path, nodes, edges))
    assert data.feature_names == ("x", "y z") and data.x.tolist() == [[1, 3], [2, 4]]
    assert [*zip(data.src.tolist(), data.dst.tolist(), strict=True)] == [(1, 0), (0, 1)]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("id,x\na,1\nb,1e39\n", "column 'x': nodes.csv:3 has an infinite number; float32"),
        ("id,x\n00,1\n01,2\n", "has the src 'a', .*add the nodes to nodes.csv, where .* as '00'"),
        ('sep=;\nid;"a\nx"\n;\n"b\n";1\nb;2\n', "in nodes.csv:6 and nodes.csv:7"),
        ("id,,\na,1,2\n", "nodes.csv must have columns of different names, got '' twice"),
    ],
)
def test_refusals_name_the_place(tmp_path, nodes, message):
    with pytest.raises(ValueError, match=message):
        load_csv(write(tmp_path, nodes))


@pytest.mark.parametrize("suffix", ["csv.zip", "xlsx", "jsonl"])
def test_files_that_are_no_tables(tmp_path, suffix):
    """A folder's error lists what is there; a path's says what will do."""
    for part in ("nodes", "edges"):
        (tmp_path / f"{part}.{suffix}").write_bytes(b"PK")
    with pytest.raises(FileNotFoundError, match=f"it has edges.{suffix}, nodes.{suffix}"):
        load_csv(tmp_path)
    with pytest.raises(ValueError, match=f"edges.{suffix} must be CSV or TSV, .* unpack it"):
        convert.from_table(tmp_path / f"edges.{suffix}")


def test_typos(tmp_path):
    """At most 1 % of cells are typos, which are told by line; more are an error."""
    lines = [f"n{i},{i / 2}" for i in range(300)]
    lines[4], lines[70] = "n4,4O", "n70,NA"
    nodes = write(tmp_path, "\n".join(["id,x", *lines]), "src,dst\nn1,n2\n") / "nodes.csv"
    with pytest.warns(UserWarning, match=r"nodes.csv:6 has '4O', no number: counted as missing"):
        data = convert.from_table(tmp_path / "edges.csv", nodes)
    assert np.flatnonzero(np.isnan(data.nodes["x"])).tolist() == [4, 70]
    lines[10:13] = "n10,x", "n11,y", "n12,z"
    write(tmp_path, "\n".join(["id,x", *lines]))
    three = "nodes.csv:6 has '4O', nodes.csv:12 has 'x', nodes.csv:13 has 'y';"
    for read in (
        lambda: load_csv(tmp_path),
        lambda: convert.from_table({"src": [], "dst": []}, nodes),
    ):
        with pytest.raises(ValueError, match=f"column 'x': 4 of 300 cells are no numbers: {three}"):
            read()


@pytest.mark.filterwarnings("ignore:from_table")
def test_a_recipe_of_from_table(tmp_path):
    edges = {"from": ["a", "b"], "to": ["b", "a"], "kind": ["x", "y"], "note": ["p", "q"]}
    nodes = {
        "name": ["a", "b", "c"],
        "age": ["20", "NA", "40"],
        "city": ["Oslo", "Rome", None],
        "since": ["1970-01-01", "1970-01-02", "1970-01-02"],
        "team": [2, 1, 2],
        "unused": [1, 2, 3],
    }
    options = {"relation": "kind", "one_hot": "city", "labels": "team", "ignore": "unused"}
    data = convert.from_table(edges, nodes, **options, fill_missing="indicator")
    # Without labels and ignored columns, with fewer relations, and a new city and column.
    later = {
        "name": ["d", "e", "f"],
        "age": [None, "1,5", "60"],
        "city": ["Bern", "Rome", "Oslo"],
        "since": ["1970-01-01T00:00:00.5", "1970-01-03", "NA"],
        "new": [1, 2, 3],
    }
    path = tmp_path / "edges.csv"
    path.write_text("from;to;kind\nd;e;y\n")
    again = convert.from_table(path, later, recipe=data.recipe)
    assert again.recipe == data.recipe and again.graph.relation_names == ("x", "y")
    assert again.graph.edge_types.tolist() == [1]
    assert again.nodes["age"].tolist() == [30, 1.5, 60]
    assert again.nodes["age is missing"].tolist() == [1, 0, 0]
    assert again.nodes["city"].tolist() == [[0, 0], [0, 1], [1, 0]]
    np.testing.assert_array_equal(again.nodes["since"], [0.5, 2 * DAY, 2 * DAY / 3])
    assert {*again.nodes} == {*data.nodes} - {"team"}
    assert any("'city': the recipe lacks 'Bern'" in line for line in again.report)
    assert any("nodes['new'] is not in the recipe: dropped" in line for line in again.report)
    # The same table has the same numbers; without missing ones, too, there is a column of these.
    same = convert.from_table(edges, nodes, recipe=data.recipe)
    for name, values in data.nodes.items():
        np.testing.assert_array_equal(same.nodes[name], values)
    nodes["age"] = [1, 2, 3]
    present = convert.from_table(edges, nodes, recipe=data.recipe)
    assert present.nodes["age is missing"].tolist() == [0, 0, 0]
    assert present.nodes["team"].tolist() == [1, 0, 1]
    del nodes["age"]
    with pytest.raises(ValueError, match=r"nodes must have the columns of the recipe: \['age'\]"):
        convert.from_table(edges, nodes, recipe=data.recipe)
    edges["kind"] = ["x", "z"]
    with pytest.raises(ValueError, match="edges must have the relations of the recipe, got 'z'"):
        convert.from_table(edges, nodes, recipe=data.recipe)


@pytest.mark.parametrize("sign", ["\t", ";", ","])
def test_separators_of_cells(tmp_path, sign):
    # The header tells the separator; decimal commas are told by the column's name.
    price = '"1,5"' if sign == "," else "1,5"
    lines = ["id", "price, EUR" if sign == ";" else '"price, EUR"', "large"]
    nodes = [lines, ["a", price, '"1,234"'], ["b", "2", '"5,678"']]
    folder = write(
        tmp_path / "it",
        "".join(sign.join(row) + "\n" for row in nodes),
        f"src{sign}dst{sign}weight\na{sign}b{sign}{price}\n",
    )
    data = load_csv(folder)
    assert data.x.tolist() == [[1.5, 1234], [2, 5678]] and data.edge_weight.tolist() == [1.5]
    assert data.notices == ("column 'price, EUR': numbers with decimal commas",)
    columns = dict(data.columns)
    assert columns["weight of edges.csv"] == "edge weights with decimal commas"
    assert "with thousands separators (with decimal commas fits as well)" in columns["large"]
    with pytest.warns(
        UserWarning, match=r"nodes\['price, EUR'\] holds numbers with decimal commas"
    ):
        table = convert.from_table(folder / "edges.csv", folder / "nodes.csv", directed=True)
    assert table.nodes["price, EUR"].tolist() == [1.5, 2]
    write(folder, f"id{sign}label{sign}x\na{sign}b\n")
    with pytest.raises(ValueError, match=r"nodes.csv:2 must have 3 cells as the header has, got 2"):
        load_csv(folder)


def test_from_table_reads_times_fills_and_ignores():
    edges = {"src": [0, 1], "dst": [1, 2], "when": ["2024-01-01", "2024-01-02 00:00:01"]}
    nodes = {
        "id": [0, 1, 2],
        "age": ["1", "NA", "4"],
        "postcode": [7, 8, 9],
        "key": ["a", "NA", "b"],
    }
    with pytest.warns(UserWarning, match="seconds since 1970") as warned:
        data = convert.from_table(
            edges, nodes, labels="key", ignore=["postcode"], fill_missing="indicator"
        )
    assert data.edges["when"].tolist() == [1704067200, 1704153601]
    assert data.edges["when"].dtype == np.int64
    assert data.nodes["age"].tolist() == [1, 2.5, 4] and "postcode" not in data.nodes
    assert data.nodes["age is missing"].tolist() == [0, 1, 0]
    assert data.nodes["key"].tolist() == [0, -1, 1]
    assert "nodes['age']: 1 of 3 are missing, filled with 2.5" in str(warned[0].message)
    with pytest.raises(ValueError, match="ignore must be among the columns"):
        convert.from_table(edges, ignore="absent")


@pytest.mark.parametrize(
    ("fill", "values"),
    [
        ("mean", [[3], [2]]),
        ("median", [[2], [2]]),
        ("zero", [[0], [2]]),
        ("indicator", [[3, 1], [2, 0]]),
    ],
)
def test_fill(tmp_path, fill, values):
    write(tmp_path, "id,x\na,NA\nb,2\nc,1\nd,6\n")
    data = load_csv(tmp_path, fill_missing=fill)
    assert data.x[:2].tolist() == values
    assert ("x is missing" in data.feature_names) == (fill == "indicator")
    assert any("(1); --fill-missing has" in notice for notice in data.notices)


def test_features_of_a_later_table(tmp_path):
    """Missing numbers, new categories and words get the features of the training's table."""
    bio = [f"{word} {i}" for i, word in enumerate(["tea", "milk"] * 10)]
    lines = [
        f"n{i},{'NA' if i == 3 else i % 4},{'ab'[i % 2]},2020-01-0{1 + i % 3},{bio[i]}"
        for i in range(20)
    ]
    edges = "src,dst\nn1,n2\n"
    first = load_csv(
        write(tmp_path / "a", "\n".join(["id,x,kind,day,bio", *lines]), edges),
        fill_missing="indicator",
        text="hash",
    )
    new = "id,day,kind,bio,x\nn1,NA,c,Tea,\nn2,2020-01-11,b,,5\n"
    later = load_csv(write(tmp_path / "b", new, edges), recipe=first.table_recipe)
    assert later.feature_names == first.feature_names
    assert later.feature_names[:5] == ("x", "x is missing", "kind=a", "kind=b", "day")
    mean, day = 27 / 19, 19 / 20  # of 0, 1, 2, 3 without a 3, and of 0, 1, 2
    np.testing.assert_allclose(later.x[:, :5], [[mean, 1, 0, 0, day], [5, 0, 0, 1, 10]], rtol=1e-6)
    tea = later.x[0, 5:]
    assert tea.sum() == 1 and first.x[::2, 5 + tea.argmax()].all() and not later.x[1, 5:].any()
    assert any("'kind' has 1 values that the model does not know" in n for n in later.notices)
    with pytest.raises(ValueError, match="lacks the columns 'bio', 'day', 'kind', which the model"):
        load_csv(write(tmp_path / "c", "id,x\nn1,1\nn2,2\n", edges), recipe=first.table_recipe)


@pytest.mark.filterwarnings("ignore:from_table")
def test_forms_of_a_later_table(tmp_path):
    """Days are first, and commas decimal, in a later table where both might be meant otherwise."""
    assert "day/month/year fits as well" in read_kind("x", objects(["1/2/2024"]), str).how
    first = 'id,time,price\na,31/1/2024,"1,5"\nb,1/1/2024,"2,25"\n'
    later = 'id,time,price\na,2/1/2024,"1,234"\nb,3/1/2024,"2,345"\n'
    old = load_csv(write(tmp_path / "old", first))
    new = load_csv(write(tmp_path / "new", later), recipe=old.table_recipe)
    np.testing.assert_allclose(new.x, [[1, 1.234], [2, 2.345]], rtol=1e-6)
    assert np.datetime64(int(new.node_time[0]), "s") == np.datetime64("2024-01-02")
    files = [
        [tmp_path / name / f"{part}.csv" for part in ("edges", "nodes")] for name in ("old", "new")
    ]
    recipe = convert.from_table(*files[0]).recipe
    nodes = convert.from_table(*files[1], recipe=recipe).nodes
    np.testing.assert_array_equal(nodes["time"], new.node_time)
    np.testing.assert_allclose(nodes["price"], [1.234, 2.345], rtol=1e-6)


def test_features_of_edges(tmp_path):
    """Edges have features as nodes, and those of a later table are those of the training's."""
    nodes, head = "id,x\na,1\nb,2\nc,3\n", "src,dst,time,fee,kind,when,note,mixed\n"
    rows = [f"a,b,31/1/2024,{i or ''},{'xy'[i % 2]},{i + 1}/1/2024,n {i} {i}," for i in range(25)]
    rows = [f"{row}{'q' if i > 22 else i}" for i, row in enumerate(rows)]
    edges = head + "\n".join(row.replace("a,b", f"a,{'bc'[i % 2]}") for i, row in enumerate(rows))
    old = load_csv(write(tmp_path / "old", nodes, edges))
    columns = dict(old.columns)
    assert old.edge_features.shape == (2, 4)  # the fee, both kinds, the days
    assert columns["kind of edges.csv"] == "feature of edges: category of 2 values (x, y)"
    assert columns["note of edges.csv"].startswith("not used: free text of 25")
    assert columns["mixed of edges.csv"].startswith("not used: column 'mixed'")
    later = head + "b,a,2/1/2024,,z,2/1/2024,,\nc,a,3/1/2024,7,y,,,\n"
    new = load_csv(write(tmp_path / "new", nodes, later), recipe=old.table_recipe)
    day = (np.datetime64("2024-01-02") - np.datetime64("2024-01-01")).astype(int)
    np.testing.assert_allclose(new.edge_features[0], [12.5, 0, 0, day])
    np.testing.assert_allclose(new.edge_features[1, :3], [7, 0, 1])
    assert np.datetime64(int(new.edge_time[0]), "s") == np.datetime64("2024-01-02")
    plain = load_csv(write(tmp_path / "c", nodes, "src,dst\na,b\n"), recipe=old.table_recipe)
    assert plain.edge_features is None and any("lacks the columns" in n for n in plain.notices)
    many = head + "\n".join(f"a,b,1,1,{i % 33},,," for i in range(99)).replace(",1,1,", ",1,1,k")
    columns = dict(load_csv(write(tmp_path / "d", nodes, many)).columns)
    assert (
        columns["kind of edges.csv"]
        == "not used: a category of 33 values, more than the 32 of edges"
    )


@pytest.mark.parametrize(
    ("header", "cells", "parts"),
    [
        ("train_mask,val_mask,test_mask", ["1,0,0", "0,1,0", "0,0,1"], [[0], [1], [2]]),
        ("is_train,is_test", ["True,False", ",TRUE", "false,"], [[0], [], [1]]),
        ("train,test", ["1,1", "0,1", "1,0"], None),  # no parts, as a row is in both
        ("train,test", ["1,0", "0,2", "1,0"], None),
        ("val_mask,test_mask", ["1,0", "0,1", "1,0"], None),
    ],
)
def test_masks_are_the_split(tmp_path, header, cells, parts):
    rows = [f"n{i},{i % 2},{i * i},{cell}\n" for i, cell in enumerate(cells)]
    nodes = f"id,label,x,{header}\n{''.join(rows)}"
    data = load_csv(write(tmp_path, nodes, "src,dst\nn0,n1\n"))
    if parts is None:
        assert data.train_idx is None and len(data.feature_names) == 3
    else:
        found = [data.train_idx, data.val_idx, data.test_idx]
        assert [[] if rows is None else rows.tolist() for rows in found] == parts
        assert data.feature_names == ("x",)


def test_columns_that_are_no_features(tmp_path):
    lines = [f"{i},n{i},{90 - i * i % 90},{i % 3},word {i},NA" for i in range(30)]
    write(tmp_path, "\n".join(["row,id,user_id,x,text,none", *lines]), "src,dst\nn1,n2\n")
    data = load_csv(tmp_path)
    assert data.feature_names == ("user_id", "x")  # squares repeat, so that they are no names
    assert load_csv(tmp_path, ignore=["user_id"]).feature_names == ("x",)
    details = dict(data.columns)
    assert details["row"].startswith("not used: an index")
    assert details["text"].startswith("not used: free text of 30 values")
    assert details["none"].startswith("not used: nothing but missing")
    with pytest.raises(ValueError, match="ignore: 'y' is none of the columns"):
        load_csv(tmp_path, ignore=["y"])


def test_one_command(tmp_path, capsys):
    """A table of 5,000 rows with all of this trains, and predicts for a table without labels."""
    customers(tmp_path)
    out, source = tmp_path / "out", str(tmp_path)
    options = ["--splits", "1", "--epochs", "10", "--no-baseline", "--output", str(out)]
    assert cli.main(["data", source]) == 0
    printed = re.sub(" +", " ", capsys.readouterr().out)
    for text in (
        "age: number, ",
        "252 of 5,000 missing, filled with ",
        "income: number with thousands separators and $, ",
        "since: time (month/day/year), 2020-01-01 to 2022-",
        "city: category of 2 values (Oslo, Rome); 250 of 5,000 missing, zeros\n",
        "bio: not used: free text",
        "label: 2 classes, 4,000 of 5,000 known\n",
        "column 'age': nodes.csv:19 has '4O', nodes.csv:402 has '4O', no number",
    ):
        assert text in printed
    assert cli.main(["train", "gcn", "--data", source, *options, "--drop", "share"]) == 0
    assert "not trained on, and predicted by jax-gnn predict" in capsys.readouterr().err
    # Nodes of a later table: an unknown city, a missing age, and no edges.
    lines = [line.split("|") for line in (
        "c0|NA|$5.00|01/01/2020|2020-01-01 00:00:00|Bern|new|3+",
        "c1|60|$5.00|01/01/2020|2020-01-01 00:00:00|Oslo|new|1",
    )]  # fmt: skip
    (new := tmp_path / "new").mkdir()
    with (new / "nodes.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["id", "age", "income", "since", "seen", "city", "bio", "visits"], *lines]
        )
    (new / "edges.csv").write_text("src,dst\nc0,c1\n")
    arguments = ["predict", str(out / "checkpoint"), "--data", str(new)]
    assert cli.main([*arguments, "--output", str(tmp_path / "p.csv")]) == 0
    err = capsys.readouterr().err
    assert "does not know, which are zeros in all its features: 'Bern' (nodes.csv:2)" in err
    assert "filled with those of the training: age (1)" in err
    with (tmp_path / "p.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert [row["node"] for row in rows] == ["c0", "c1"] and rows[1]["label"] == "b"
    # The features by hand: the mean age of the training, no city, days since the first one.
    with (tmp_path / "nodes.csv").open() as file:
        ages = [row["age"] for row in csv.DictReader(file)]
    mean = np.mean([float(age) for age in ages if age[:1].isdigit() and "O" not in age])
    values = {"age": [mean, 60], "income": 5, "city=Oslo": [0, 1]}
    values |= {"visits=3+": [1, 0], "visits=1": [0, 1]}
    trained = load(out)
    x = np.zeros((2, len(trained.numbering.features)), np.float32)
    for name, column in values.items():
        x[:, trained.numbering.features.index(name)] = column
    graph = Graph.from_edges([0], [1], num_nodes=2).symmetrized()
    probability = jax.nn.softmax(trained(graph, x), axis=1).max(axis=1)
    np.testing.assert_allclose([float(r["probability"]) for r in rows], probability, rtol=1e-4)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_data_frames(package):
    """Categories, times with a zone, nullable numbers and lazy frames are columns, too."""
    frames = pytest.importorskip(package)
    times = [datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC), None]
    columns = {
        "id": ["a", "b"],
        "kind": ["x", None],
        "time": times,
        "n": [None, 3],
        "x": ["1", "NA"],
        "on": [True, None],
    }
    table = frames.DataFrame(columns)
    if package == "pandas":
        table = table.astype({"kind": "category", "n": "Int64"})
    else:
        table = table.with_columns(frames.col("kind").cast(frames.Categorical)).lazy()
    with pytest.warns(UserWarning, match="seconds since 1970"):
        data = convert.from_table({"src": ["a"], "dst": ["b"]}, table, one_hot="kind")
    assert data.nodes["kind"].tolist() == [[1], [0]]
    for name, values in (("time", [DAY, NAN]), ("n", [NAN, 3]), ("x", [1, NAN]), ("on", [1, NAN])):
        np.testing.assert_array_equal(data.nodes[name], values)


def test_pandas_columns_of_several_types():
    """Arrow converts no such column; names are text then, and the index still names nodes."""
    pandas = pytest.importorskip("pandas")
    edges = pandas.DataFrame({"src": [7, "007"], "dst": ["007", 7], "w": [1j, 2]})
    index = pandas.Index(["007", 7], name="id")
    nodes = pandas.DataFrame({"x": [1.5, math.inf], "note": ["a", 1]}, index=index)
    with pytest.warns(UserWarning, match=r"edges\['w'\] holds no .*\['x'\]: 1 of 2 are infinite"):
        data = convert.from_table(edges, nodes, directed=True)
    assert data.node_names.tolist() == ["007", "7"] and data.nodes["x"].tolist() == [1.5, math.inf]
    assert data.graph.num_edges == 2
    for column in (3, "ab"):
        with pytest.raises(TypeError, match=r"edges\['src'\] must be a column, .* got"):
            convert.from_table({"src": column, "dst": [1, 2]})


@pytest.mark.parametrize("suffix", ["csv.gz", "csv.zst", "parquet", "arrow", "tsv"])
def test_files_of_tables(tmp_path, suffix):
    nodes = {"id": ["a", "b"], "kind": ["x", "y"], "day": ["2020-01-01", "2020-01-03"]}
    expected = load_csv(write(tmp_path / "plain", "id,kind,day\na,x,2020-01-01\nb,y,2020-01-03\n"))
    folder = tmp_path / "other"
    folder.mkdir()
    for name, table in (("nodes", nodes), ("edges", {"src": ["a"], "dst": ["b"]})):
        rows = [[*table], *zip(*table.values(), strict=True)]
        path, comma = folder / f"{name}.{suffix}", "\t" if suffix == "tsv" else ","
        text = "\n".join(comma.join(row) for row in rows).encode()
        if suffix in ("csv.gz", "tsv"):
            path.write_bytes(gzip.compress(text) if suffix == "csv.gz" else text)
            continue
        pyarrow = pytest.importorskip("pyarrow")
        if suffix == "csv.zst":
            with pyarrow.output_stream(str(path)) as file:
                file.write(text)
            continue
        columns = pyarrow.table(table)
        if name == "nodes":  # as categories and times
            day = pyarrow.array(map(datetime.date.fromisoformat, nodes["day"]))
            columns = columns.set_column(1, "kind", columns["kind"].dictionary_encode())
            columns = columns.set_column(2, "day", day)
        if suffix == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(columns, path)
        else:
            pytest.importorskip("pyarrow.feather").write_feather(columns, path)
    data = load_graph(folder)
    np.testing.assert_array_equal(data.x, [[1, 0, 0], [0, 1, 2]])
    assert data.feature_names == expected.feature_names == ("kind=x", "kind=y", "day")
    np.testing.assert_array_equal(data.x, expected.x)


def test_files_of_edges(tmp_path):
    (tmp_path / "a.txt").write_text("# Nodes: 3\n30\t1412\n1412 4\n")
    head = "%%MatrixMarket matrix coordinate"
    (tmp_path / "b.mtx").write_text(f"{head} real general\n4 4 2\n1 2 0.5\n3 1 2\n")
    (tmp_path / "c.hgr").write_text("% comment\n2 5 1\n7 1 2\n8 5 2 3\n")
    snap, matrix = load_graph(tmp_path / "a.txt"), load_graph(tmp_path / "b.mtx")
    assert snap.node_names == ("4", "30", "1412") and snap.src.tolist() == [2, 1]
    assert (matrix.num_nodes, matrix.src.tolist(), matrix.dst.tolist()) == (4, [2, 0], [0, 1])
    assert matrix.edge_weight.tolist() == [2, 0.5]
    hypergraph = load_hypergraph(tmp_path / "c.hgr")
    assert (hypergraph.num_nodes, hypergraph.node_idx.tolist()) == (5, [0, 1, 1, 2, 4])
    assert convert.from_table(tmp_path / "b.mtx", directed=True).edges["weight"].tolist() == [
        0.5,
        2,
    ]
    data = convert.from_table(tmp_path / "c.hgr", hypergraph=True)
    assert data.incidences["weight"].tolist() == [7, 7, 8, 8, 8]
    assert [type(data).__name__ for data in load_any(str(tmp_path / "a.txt"))] == ["GraphDataset"]
    (tmp_path / "c.hgr").write_text("2 5\n1 2\n5 6\n")
    with pytest.raises(ValueError, match=r"c.hgr:3 is no line of hMETIS.* from 1 to 5"):
        load_hypergraph(tmp_path / "c.hgr")
    (tmp_path / "b.mtx").write_text(f"{head} real general\n99999999 99999999 1\n1 2 0.5\n")
    with pytest.raises(ValueError, match="bytes of memory"):
        load_graph(tmp_path / "b.mtx")
    with pytest.raises(ValueError, match="must be tables for fill_missing"):
        load_graph("digits", fill_missing="zero")
