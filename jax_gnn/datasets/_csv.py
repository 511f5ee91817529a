"""Graphs in two CSV files, of nodes and of edges."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jax_gnn._core.files import Memory, as_path, errors_in
from jax_gnn.convert import from_table
from jax_gnn.convert._columns import Column, encode, floats, numbers, place_of, read_columns
from jax_gnn.convert._kinds import FILLS, blank_markers, read_kind, typo_notice
from jax_gnn.datasets._check import locate
from jax_gnn.datasets._dataset import GraphDataset
from jax_gnn.datasets._table_features import TableFeatures

SPLIT = {"train": "train_idx", "val": "val_idx", "test": "test_idx"}
SUFFIXES = "csv", "csv.gz", "csv.zst", "tsv", "tsv.gz", "tsv.zst", "parquet", "arrow", "feather"
_TABLE = re.compile(
    rf"(?P<name>.*?)(?P<part>nodes|edges)\.({'|'.join(map(re.escape, SUFFIXES))})"
).fullmatch


def load_csv(
    path: str | os.PathLike[str],
    *,
    fill_missing: Literal["mean", "median", "zero", "indicator"] = "mean",
    text: Literal["drop", "hash"] = "drop",
    ignore: Sequence[str] = (),
    recipe: str | None = None,
) -> GraphDataset:
    """Read ``NAMEnodes.csv`` and ``NAMEedges.csv``, where NAME is often empty.

    Both are CSV files with a header, which may end with ``.gz`` or ``.zst``; or TSV, Parquet or
    Arrow files. Nodes have a column ``id``, text or integers. Optional columns are ``label``, a
    class or empty, or ``target``, a number to regress on, and ``split``, one of ``train``, ``val``,
    ``test`` or empty. All other columns are features: numbers as they are, dates and times in days,
    text of at most 256 values one-hot. Columns that only number or name the rows, and free text,
    are left out. Edges have the columns ``src`` and ``dst``, which are ids, and optionally
    ``weight``; their other columns are left out, and repeated edges are removed.
    :func:`jax_gnn.convert.from_table`, which reads all other tables, says how cells are read.

    The ``notices`` of the dataset say what was missing, filled or not understood, and
    ``columns`` what each column was taken for.

    Args:
        path: the folder, or one of the two files.
        fill_missing: number that takes the place of a missing one: the "mean" or "median" of the
            column, "zero", or by "indicator" the mean, beside a feature of zeros and ones that says
            which.
        text: "hash" makes 64 features of the words of a column of free text, by their hashes.
        ignore: columns of nodes that are left out.
        recipe: ``table_recipe`` of the dataset of a training: columns then become the same
            features, and other settings do not count.
    """
    if fill_missing not in FILLS or text not in ("drop", "hash"):
        raise ValueError(
            f"fill_missing must be one of {', '.join(FILLS)} and text drop or hash, got "
            f"{fill_missing!r}, {text!r}"
        )
    nodes_path, edges_path = _locate_tables(as_path("path", path))
    memory = Memory(nodes_path, edges_path)
    node_place, edge_place = partial(place_of, nodes_path), partial(place_of, edges_path)
    notices: list[str] = []
    # Edges are read first, so that a missing column is reported before any conversion.
    with errors_in(edges_path):
        edge_table = read_columns("edges", edges_path, ("src", "dst"))
        if not edge_table.keys() >= {"src", "dst"}:
            raise ValueError(f"expected the columns src and dst, got {', '.join(edge_table)}")
        used = ["src", "dst", "weight"]
        edges = {key: edge_table[key] for key in used if key in edge_table}
        if "weight" in edges:
            weights = read_kind("weight", edges["weight"], edge_place, "number")
            if (rows := np.flatnonzero(~np.isfinite(weights.values))).size:
                raise ValueError(
                    f"column 'weight': {edge_place(rows[0])} has no finite number; {rows.size} of "
                    f"{len(weights.values)} rows are such"
                )
            edges["weight"] = weights.values
    with errors_in(nodes_path):
        nodes = read_columns("nodes", nodes_path, ("id", "label", "split"))
        if "id" not in nodes:
            raise ValueError(f"expected the column id, got {', '.join(nodes)}")
        if absent := [key for key in ignore if key not in nodes and key not in edge_table]:
            raise ValueError(f"ignore: {absent[0]!r} is none of the columns {', '.join(nodes)}")
        nodes = {key: nodes[key] for key in nodes if key == "id" or key not in ignore}
        split = nodes.pop("split", None)
        targets = nodes.pop("target", None)
        labels = {key: blank_markers(nodes.pop(key)) for key in ("label",) if key in nodes}
        names_table = {"id": nodes.pop("id"), **labels}
        if targets is not None:
            if labels:
                raise ValueError(
                    "column 'target': expected what to regress on, and not 'label' beside it"
                )
            target = read_kind("target", targets, node_place, "number")
            notice = typo_notice(target, targets, node_place)
            notices += [f"column 'target': {notice}"] * bool(notice)
            targets = target.values
        features = TableFeatures.read(
            nodes, node_place, memory, fill=fill_missing, text=text, recipe=recipe
        )
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # checked here
            data = from_table(edges, names_table, directed=True, labels=[*labels])
        num_nodes = data.graph.num_nodes
        # Conversion drops edges with unknown names, which here are an error.
        if data.graph.num_edges < len(edges["src"]):
            raise ValueError(_unknown_id(edge_place, edges, names_table["id"]))
        # All features are float32 in a dataset, in which large numbers lose digits.
        large = [(nodes_path, key) for key in features.large]
        for file, key, column in (
            (edges_path, "weight", edges.get("weight")),
            (nodes_path, "target", targets),
        ):
            if column is not None and (array := numbers(column)) is not None:
                large += [(file, key)] * (array.dtype != np.float32)
        for file, key in large:
            warnings.warn(
                f"{file}: column {key!r} has numbers beyond 2**24, which float32 rounds: "
                "subtract the least, or divide",
                stacklevel=2,
            )
        if labels and not _are_classes(data.categories["label"].tolist()):
            raise ValueError("column 'label' has numbers that are no classes; call it 'target'")
        y: Any = data.nodes["label"] if labels else np.full(num_nodes, -1)
        y = y if targets is None else floats(targets)
        unlabelled = int((np.isnan(y) if targets is not None else y < 0).sum())
        names = range(num_nodes) if data.node_names is None else data.node_names.tolist()
        parts = {} if split is None else _split(node_place, blank_markers(split), names, y)
        dataset = GraphDataset(
            name=nodes_path.name[: nodes_path.name.index("nodes.")].rstrip("-_.")
            or nodes_path.absolute().parent.name,
            num_nodes=num_nodes,
            src=data.graph.cols,
            dst=data.graph.rows,
            edge_weight=data.graph.edge_values(np.float32(data.edges["weight"]))
            if "weight" in edges
            else None,
            x=features.x,
            feature_names=features.feature_names,
            y=y,
            label_names=tuple(map(str, data.categories["label"].tolist())) if labels else None,
            node_names=tuple(map(str, names)),
            **parts,
        )
    key = "label" if labels else "target"
    if unlabelled < num_nodes and unlabelled and recipe is None:
        notices.append(
            f"column {key!r}: {unlabelled:,} of {num_nodes:,} are missing; these nodes are not "
            "trained on, and predicted by jax-gnn predict"
        )
    unused = [f"{key} of {edges_path.name}" for key in edge_table if key not in edges]
    unused += [
        f"{key or '(no name)'} of {nodes_path.name} ({why})" for key, why in features.unused.items()
    ]
    dataset._set("unused", tuple(unused))
    dataset._set("notices", tuple(notices + features.notices))
    dataset._set("table_recipe", features.recipe)
    # The command prints what each column was taken for.
    known = f"{num_nodes - unlabelled:,} of {num_nodes:,} known"
    details = {"id": "names", **features.details, **dict.fromkeys(ignore, "not used: ignored")}
    details |= {key: f"{data.categories[key].size:,} classes, {known}" for key in labels}
    details |= {} if targets is None else {"target": f"numbers to regress on, {known}"}
    details |= {} if split is None else {"split": "parts for training, validation and test"}
    roles = {"src": "ids", "dst": "ids", "weight": "edge weights"}
    details |= {f"{key} of {edges_path.name}": roles.get(key, "not used") for key in edge_table}
    dataset._set("columns", tuple(details.items()))
    return dataset


def _locate_tables(path: Path) -> list[Path]:
    """Return the tables of nodes and of edges, from their folder or one of them."""
    folder, is_folder = (path, True) if path.is_dir() else (path.parent, False)
    matches = [match for file in folder.glob("*") if (match := _TABLE(file.name))]
    if not is_folder:
        name = (_TABLE(path.name) or {"name": None})["name"]
        matches = [match for match in matches if match["name"] == name]
    parts = {match["part"]: folder / match.string for match in matches}
    if len({match["name"] for match in matches}) != 1 or not len(matches) == len(parts) == 2:
        return locate(path, ("", "nodes.csv"), ("", "edges.csv"))  # whose errors say what is wrong
    return [parts["nodes"], parts["edges"]]


def _split(
    place: Callable[[int], str], column: Column, names: Sequence[str | int], y: np.ndarray
) -> dict[str, Any]:
    """Return the nodes of each part by field, which must have a label."""
    kinds, codes = encode({"split": column})
    lacks_label = y < 0 if y.dtype.kind in "iu" else np.isnan(y)
    parts = {}
    for number, kind in enumerate(kinds.tolist()):
        if kind not in SPLIT:
            raise ValueError(
                f"column 'split': expected {', '.join(SPLIT)} or nothing, got {kind!r:.80}"
            )
        parts[SPLIT[kind]] = np.flatnonzero(codes[0] == number)
    for kind, field in SPLIT.items():
        rows = parts.get(field, np.zeros(0, int))
        if (rows := rows[lacks_label[rows]]).size:
            where = f"{place(rows[0])} (node {names[rows[0]]!r})"
            raise ValueError(f"column 'split': {where} has {kind!r}, but no label")
    return parts


def _unknown_id(place: Callable[[int], str], edges: dict[str, Column], ids: np.ndarray) -> str:
    """Describe the first edge with an id of no node, its line, and the number of such edges."""
    # Ids are encoded together with names in edges, as both may mix text and integers.
    codes = encode({"id": ids, "src": edges["src"], "dst": edges["dst"]})[1]
    unknown = ~np.isin(np.stack(codes[1:]), codes[0])
    row = int(np.flatnonzero(unknown.any(0))[0])
    column = "src" if unknown[0, row] else "dst"
    value = edges[column].item(row)
    problem = f"the {column} {value!r:.80}, which is the id of no node"
    problem = f"no {column}" if value is None else problem
    count = f"{unknown.any(0).sum()} of {unknown.shape[1]} rows are such"
    return f"{place(row)} has {problem}; {count}"


def _are_classes(names: list[str | int]) -> bool:
    """Return whether some names are text, or all are whole numbers."""
    try:
        return all(float(name).is_integer() for name in names)
    except ValueError:
        return True
