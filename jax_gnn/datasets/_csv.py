"""Graphs in two CSV files, of nodes and of edges."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn._core.files import Memory, as_path, errors_in
from jax_gnn.convert import from_table
from jax_gnn.convert._columns import Column, encode, floats, numbers, read_columns
from jax_gnn.datasets._check import locate
from jax_gnn.datasets._dataset import GraphDataset

MAX_VALUES = 256
"""Largest number of different values of a column of text."""

SPLIT = {"train": "train_idx", "val": "val_idx", "test": "test_idx"}


def load_csv(path: str | os.PathLike[str]) -> GraphDataset:
    """Read ``NAMEnodes.csv`` and ``NAMEedges.csv``, where NAME is often empty.

    Both are CSV files with a header. Nodes have a column ``id``, text or integers. Optional columns
    are ``label``, a class or empty, or ``target``, a number to regress on, and ``split``, one of
    ``train``, ``val``, ``test`` or empty. All other columns are features: a column of numbers is
    one, a column of text with at most 256 values is one-hot. Edges have the columns ``src`` and
    ``dst``, which are ids, and optionally ``weight``; their other columns are left out, and
    repeated edges are removed. :func:`jax_gnn.convert.from_table` reads all other tables.

    Args:
        path: the folder, or one of the two files.
    """
    nodes_path, edges_path = locate(as_path("path", path), ("", "nodes.csv"), ("", "edges.csv"))
    memory = Memory(nodes_path, edges_path)
    # Edges are read first, so that a missing column is reported before any conversion.
    with errors_in(edges_path):
        edge_table = read_columns("edges", edges_path, ("src", "dst"))
        if not edge_table.keys() >= {"src", "dst"}:
            raise ValueError(f"expected the columns src and dst, got {', '.join(edge_table)}")
        used = ["src", "dst", "weight"]
        edges = {key: edge_table[key] for key in used if key in edge_table}
        if "weight" in edges:
            _check_finite(edges_path, edges, "weight")
    with errors_in(nodes_path):
        nodes = read_columns("nodes", nodes_path, ("id", "label", "split"))
        if "id" not in nodes:
            raise ValueError(f"expected the column id, got {', '.join(nodes)}")
        split = nodes.pop("split", None)
        # Columns of features: numbers must be finite, text becomes one-hot.
        one_hot = [
            key
            for key in nodes
            if key not in ("id", "label", "target") and _is_one_hot(nodes_path, nodes, key, memory)
        ]
        labels = ["label"] if "label" in nodes else []
        targets = nodes.pop("target", None)
        if targets is not None and (labels or floats(targets) is None):
            problem = "and not 'label' beside it" if labels else "of numbers"
            raise ValueError(f"column 'target': expected what to regress on, {problem}")
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # checked here
            data = from_table(edges, nodes, directed=True, one_hot=one_hot, labels=labels)
        num_nodes = data.graph.num_nodes
        # Conversion drops edges with unknown names, which here are an error.
        if data.graph.num_edges < len(edges["src"]):
            raise ValueError(_unknown_id(edges_path, edges, nodes["id"]))
        features = [key for key in nodes if key not in ("id", "label")]
        # All features are float32 in a dataset, in which large numbers lose digits.
        columns = [(nodes_path, key, data.nodes[key]) for key in features]
        columns += [(edges_path, key, data.edges[key]) for key in ("weight",) if key in edges]
        columns += [] if targets is None else [(nodes_path, "target", numbers(targets))]
        for file, key, column in columns:
            if column.dtype != np.float32:
                warnings.warn(
                    f"{file}: column {key!r} has numbers beyond 2**24, which float32 rounds: "
                    "subtract the least, or divide",
                    stacklevel=2,
                )
        if labels and not _are_classes(data.categories["label"].tolist()):
            raise ValueError("column 'label' has numbers that are no classes; call it 'target'")
        y: Any = data.nodes["label"] if labels else np.full(num_nodes, -1)
        y = y if targets is None else floats(targets)
        names = range(num_nodes) if data.node_names is None else data.node_names.tolist()
        parts = {} if split is None else _split(nodes_path, split, names, y)
        dataset = GraphDataset(
            name=nodes_path.name.removesuffix("nodes.csv").rstrip("-_.")
            or nodes_path.absolute().parent.name,
            num_nodes=num_nodes,
            src=data.graph.cols,
            dst=data.graph.rows,
            edge_weight=data.graph.edge_values(np.float32(data.edges["weight"]))
            if "weight" in edges
            else None,
            x=data.features(*features) if features else None,
            feature_names=_feature_names(features, data.categories),
            y=y,
            label_names=tuple(map(str, data.categories["label"].tolist())) if labels else None,
            node_names=tuple(map(str, names)),
            **parts,
        )
    # The command prints how each column is used, and which are not.
    uses = {
        "names": ["id"],
        "numbers": [key for key in features if key not in one_hot],
        "one-hot": [f"{key} ({len(data.categories[key])} values)" for key in one_hot],
        "classes": labels,
        "numbers to regress on": [] if targets is None else ["target"],
        "split": [] if split is None else ["split"],
        "edge weights": [key for key in ("weight",) if key in edges],
    }
    descriptions = (f"{', '.join(keys)} as {use}" for use, keys in uses.items() if keys)
    dataset._set("columns", tuple(descriptions))
    unused = tuple(f"{key} of {edges_path.name}" for key in edge_table if key not in edges)
    dataset._set("unused", unused)
    return dataset


def _is_one_hot(path: Path, nodes: dict[str, Column], key: str, memory: Memory) -> bool:
    """Return whether a column of features is text; check its values."""
    values = nodes[key]
    if floats(values) is not None:
        _check_finite(path, nodes, key)
        return False
    count = len(encode({key: values})[0])
    if count > MAX_VALUES:
        raise ValueError(
            f"column {key!r}: expected numbers, or text of at most {MAX_VALUES} values, "
            f"got {count}{_first_text(path, values)}"
        )
    memory.claim(f"column {key!r}", 8 * len(values) * count)
    return True


def _feature_names(
    columns: Sequence[str], categories: Mapping[str, np.ndarray]
) -> tuple[str, ...] | None:
    """Return the names of the features of some columns; None without columns."""
    names: list[str] = []
    for key in columns:
        values = categories[key].tolist() if key in categories else None
        names += [key] if values is None else [f"{key}={value}" for value in values]
    return tuple(names) or None


def _split(path: Path, column: Column, names: Sequence[str | int], y: np.ndarray) -> dict[str, Any]:
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
            place = f"line {_line(path, rows[0])} (node {names[rows[0]]!r})"
            raise ValueError(f"column 'split': {place} has {kind!r}, but no label")
    return parts


def _check_finite(path: Path, table: dict[str, Column], key: str) -> None:
    """Check that a column has a finite number in each row."""
    if (values := floats(table[key])) is None:
        raise ValueError(f"column {key!r}: expected numbers")
    rows = np.flatnonzero(~np.isfinite(values))
    if rows.size:
        node = f" (node {table['id'].item(rows[0])!r})" if "id" in table else ""
        count = f"{len(rows)} of {len(values)} rows are such" + ("; fill them" if node else "")
        raise ValueError(
            f"column {key!r}: line {_line(path, rows[0])}{node} has no finite number; {count}"
        )


def _first_text(path: Path, values: np.ndarray) -> str:
    """Describe the first cell that is text, if other cells of the column are numbers."""
    text = [isinstance(value, str) and not _is_number(value) for value in values.tolist()]
    if all(text) or not any(text):
        return ""
    row = text.index(True)
    return f"; line {_line(path, row)} has {values.item(row)!r:.80}, which is no number"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _unknown_id(path: Path, edges: dict[str, Column], ids: np.ndarray) -> str:
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
    return f"line {_line(path, row)} of {path.name} has {problem}; {count}"


def _line(path: Path, row: int) -> int:
    """Return the number of the last line of a table's row; blank lines are not rows."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, strict=True)
        next(lines)
        for cells in lines:
            row -= bool(cells)
            if row < 0:
                break
        return lines.line_num


def _are_classes(names: list[str | int]) -> bool:
    """Return whether some names are text, or all are whole numbers."""
    try:
        return all(float(name).is_integer() for name in names)
    except ValueError:
        return True
