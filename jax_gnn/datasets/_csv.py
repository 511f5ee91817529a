"""Two CSV files, of nodes and of edges."""

from __future__ import annotations

import csv
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn.convert import from_table
from jax_gnn.convert._columns import encode, floats, numbers, read_columns
from jax_gnn.datasets._check import Memory, as_path, blame, locate
from jax_gnn.datasets._dataset import GraphDataset

MOST_VALUES = 256  # of a column of text
SPLIT = {"train": "train_idx", "val": "val_idx", "test": "test_idx"}


def load_csv(path: str | os.PathLike[str]) -> GraphDataset:
    """Reads ``NAMEnodes.csv`` and ``NAMEedges.csv``, where NAME is often nothing.

    Both are CSV files with a header. Nodes have a column ``id``, text or integers, and may have
    ``label``, empty where there is none, or ``target``, a number to regress on, and ``split``, one
    of ``train``, ``val``, ``test`` or empty. All other columns are features: of numbers one each,
    of text one for each of at most 256 values. Edges have the columns ``src`` and ``dst``, which
    are ids, and may have ``weight``; their other columns are left out, and duplicates are removed.
    :func:`jax_gnn.convert.from_table` reads all other tables.

    Args:
        path: the folder, or one of the two files.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file is not such a table, an id has no line or two, a number is missing or not
            finite, a column of text has more values, or a folder holds several datasets.
    """
    nodes_path, edges_path = locate(as_path("path", path), ("", "nodes.csv"), ("", "edges.csv"))
    memory = Memory(nodes_path, edges_path)
    with blame(edges_path):
        table = read_columns("edges", edges_path, ("src", "dst"))
        if not table.keys() >= {"src", "dst"}:
            raise ValueError(f"expected the columns src and dst, got {', '.join(table)}")
        edges: dict[str, Any] = {
            key: table[key] for key in ("src", "dst", "weight") if key in table
        }
        if "weight" in edges:
            _check_finite(edges_path, edges, "weight")
    with blame(nodes_path):
        nodes = read_columns("nodes", nodes_path, ("id", "label", "split"))
        if "id" not in nodes:
            raise ValueError(f"expected the column id, got {', '.join(nodes)}")
        split = nodes.pop("split", None)
        one_hot = []
        for key, values in nodes.items():
            if key in ("id", "label", "target"):
                continue
            if floats(values) is not None:
                _check_finite(nodes_path, nodes, key)
                continue
            found, _ = encode({key: values})
            if len(found) > MOST_VALUES:
                raise ValueError(
                    f"column {key!r}: expected numbers, or text of at most {MOST_VALUES} values, "
                    f"got {len(found)}{_first_text(nodes_path, values)}"
                )
            memory.claim(f"column {key!r}", 8 * len(values) * len(found))
            one_hot.append(key)
        labels = ["label"] if "label" in nodes else []
        targets = nodes.pop("target", None)
        if targets is not None and (labels or floats(targets) is None):
            problem = "and not 'label' beside it" if labels else "of numbers"
            raise ValueError(f"column 'target': expected what to regress on, {problem}")
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # all is checked here
            data = from_table(edges, nodes, one_hot=one_hot, labels=labels)
        num_nodes = data.graph.num_nodes
        if data.graph.num_edges < len(edges["src"]):
            raise ValueError(_stranger(edges_path, edges, nodes["id"]))
        parts: dict[str, Any] = {}
        if split is not None:
            kinds, codes = encode({"split": split})
            for number, kind in enumerate(kinds.tolist()):
                if kind not in SPLIT:
                    raise ValueError(
                        f"column 'split': expected {', '.join(SPLIT)} or nothing, got {kind!r:.80}"
                    )
                parts[SPLIT[kind]] = np.flatnonzero(codes[0] == number)
        features = [key for key in nodes if key not in ("id", "label")]
        known = [(nodes_path, key, data.nodes[key]) for key in features]
        known += [(edges_path, key, data.edges[key]) for key in ("weight",) if key in edges]
        known += [] if targets is None else [(nodes_path, "target", numbers(targets))]
        for file, key, column in known:
            if column.dtype != np.float32:
                warnings.warn(
                    f"{file}: column {key!r} has numbers beyond 2**24, which float32 rounds: "
                    "subtract the least, or divide",
                    stacklevel=2,
                )
        names = range(num_nodes) if data.node_names is None else data.node_names.tolist()
        if labels and not _are_classes(data.categories["label"].tolist()):
            raise ValueError("column 'label' has numbers that are no classes; call it 'target'")
        y: Any = data.nodes["label"] if labels else np.full(num_nodes, -1)
        y = y if targets is None else floats(targets)
        without = y < 0 if targets is None else np.isnan(y)
        for kind, field in SPLIT.items():
            rows = parts.get(field, np.zeros(0, int))
            if (rows := rows[without[rows]]).size:
                where = f"line {_line(nodes_path, rows[0])} (node {names[rows[0]]!r})"
                raise ValueError(f"column 'split': {where} has {kind!r}, but no label")
        made = GraphDataset(
            name=nodes_path.name.removesuffix("nodes.csv").rstrip("-_.")
            or nodes_path.absolute().parent.name,
            num_nodes=num_nodes,
            src=data.graph.cols,
            dst=data.graph.rows,
            edge_weight=data.graph.edge_values(np.float32(data.edges["weight"]))
            if "weight" in edges
            else None,
            x=data.features(*features) if features else None,
            feature_names=tuple(
                name
                for key in features
                for name in (
                    [f"{key}={value}" for value in data.categories[key].tolist()]
                    if key in data.categories
                    else [key]
                )
            )
            or None,
            y=y,
            label_names=tuple(map(str, data.categories["label"].tolist())) if labels else None,
            node_names=tuple(map(str, names)),
            **parts,
        )
    numeric = [key for key in features if key not in one_hot]
    taken = {
        "names": [key for key in ("id",) if key in nodes],
        "numbers": numeric,
        "one-hot": [f"{key} ({len(data.categories[key])} values)" for key in one_hot],
        "classes": labels,
        "numbers to regress on": [] if targets is None else ["target"],
        "split": [] if split is None else ["split"],
        "edge weights": [key for key in ("weight",) if key in edges],
    }
    told = (f"{', '.join(keys)} as {what}" for what, keys in taken.items() if keys)
    made._set("columns", tuple(told))
    made._set("unused", tuple(f"{key} of {edges_path.name}" for key in table if key not in edges))
    return made


def _check_finite(path: Path, table: dict[str, Any], key: str) -> None:
    """Numbers, of which none is missing."""
    if (values := floats(table[key])) is None:
        raise ValueError(f"column {key!r}: expected numbers")
    rows = np.flatnonzero(~np.isfinite(values))
    if rows.size:
        node = f" (node {table['id'].item(rows[0])!r})" if "id" in table else ""
        count = f"{len(rows)} of {len(values)} rows are such" + ("; fill them" if node else "")
        raise ValueError(
            f"column {key!r}: line {_line(path, rows[0])}{node} has no finite number; {count}"
        )


def _first_text(path: Path, values: Any) -> str:
    """Where numbers end: the first cell that is text, of a column in which others are numbers."""
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


def _stranger(path: Path, edges: dict[str, Any], ids: Any) -> str:
    """What is said of edges with ends that are no nodes: the first, where it is, how many."""
    known, *ends = encode({"id": ids, "src": edges["src"], "dst": edges["dst"]})[1]
    strange = ~np.isin(np.stack(ends), known)
    row = int(np.flatnonzero(strange.any(0))[0])
    end = "src" if strange[0, row] else "dst"
    given = edges[end].item(row)
    has = f"no {end}" if given is None else f"the {end} {given!r:.80}, which is the id of no node"
    count = f"{strange.any(0).sum()} of {strange.shape[1]} rows are such"
    return f"line {_line(path, row)} of {path.name} has {has}; {count}"


def _line(path: Path, row: int) -> int:
    """The number of the line that a row of a table ends on; blank lines are no rows."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, strict=True)
        next(lines)
        for cells in lines:
            row -= bool(cells)
            if row < 0:
                break
        return lines.line_num


def _are_classes(names: list[Any]) -> bool:
    """Whether not all are numbers of which some are not whole."""
    try:
        return all(float(name).is_integer() for name in names)
    except ValueError:
        return True
