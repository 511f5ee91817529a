"""Tables of nodes and of edges in files: what all datasets of tables share."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jax_gnn._core.files import Memory, errors_in
from jax_gnn.convert._columns import Column, encode, floats, numbers, place_of, read_columns
from jax_gnn.convert._kinds import FILLS, blank_markers, read_kind, typo_notice, whole_seconds
from jax_gnn.convert._names import (
    ENDS,
    encode_names,
    find,
    find_ends,
    find_id,
    find_label,
    node_order,
    taken_as,
)
from jax_gnn.datasets._dataset import NodeDataset
from jax_gnn.datasets._table_features import TableFeatures

D = TypeVar("D", bound=NodeDataset)

PARTS = {"train": "train_idx", "val": "val_idx", "test": "test_idx"}
_PART_WORDS = {"valid": "val", "validation": "val", "training": "train"}
# Words of columns by documented name; see `jax_gnn.convert._names`.
_GRAPH, _TIME = ("graph", "graphid"), ("time", "timestamp", "edgetime", "nodetime")
_WEIGHT, _SPLIT = ("weight", "edgeweight"), ("split",)


@dataclass(frozen=True)
class TableOptions:
    """Options of how tables are read: see `load_csv`."""

    fill_missing: str = "mean"
    text: str = "drop"
    ignore: Sequence[str] = ()
    recipe: str | None = None

    def __post_init__(self) -> None:
        if self.fill_missing not in FILLS or self.text not in ("drop", "hash"):
            raise ValueError(
                f"fill_missing must be one of {', '.join(FILLS)} and text drop or hash, got "
                f"{self.fill_missing!r}, {self.text!r}"
            )


@dataclass
class NodeTable:
    """A table with a row for each node, or for each graph.

    Attributes:
        path: The file.
        header: Names of all its columns.
        ids: Names of the rows.
        features: Features of its columns.
        y: Labels, -1 or NaN if missing.
        label: Column of the labels; "" without one.
        label_names: Names of the classes; None without classes.
        split: Column that says which rows train, validate and test.
        graph: Column with the graph of each node, of many graphs.
        time: Times of nodes; None without any.
        details: Description of each column, by name.
        notices: Sentences about columns that were taken for others, and about cells.
        large: Columns of numbers that float32 rounds.
    """

    path: Path
    header: Collection[str]
    ids: Column
    features: TableFeatures
    y: np.ndarray
    label: str = ""
    label_names: tuple[str, ...] | None = None
    split: Column | None = None
    graph: Column | None = None
    time: np.ndarray | None = None
    details: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    large: list[str] = field(default_factory=list)

    @classmethod
    def read(
        cls,
        path: Path,
        memory: Memory,
        options: TableOptions,
        recipe: str | None,
        *,
        kind: str = "",
        of_graphs: bool = False,
        counted: bool = False,
    ) -> NodeTable:
        """Read a table.

        Args:
            path: The file.
            memory: Budget of memory.
            options: Options of how columns are read.
            recipe: `TableFeatures.recipe` of the table of a training.
            kind: Type of the nodes, after which a column of ids may be called; "graph" for graphs,
                whose other columns are no features.
            of_graphs: Whether nodes are of many graphs: then a column names the graph, and labels
                are none of nodes.
            counted: Whether nodes count from 1 in the order of the rows where there are no ids.
        """
        place = partial(place_of, path)
        roles: dict[str, str] = {}

        def names_in(columns: Sequence[str]) -> list[str]:
            """Find the columns of names, and keep them by role."""
            kept = [name for name in columns if name == "id" or name not in options.ignore]
            roles["graph"] = find("", kept, _GRAPH, "graph") if of_graphs else ""
            if of_graphs and not roles["graph"]:
                raise ValueError(f"expected the column graph, got {', '.join(columns)}")
            others = [name for name in kept if name != roles["graph"]]
            if counted and not any(name in others for name in ("id", "Id", "ID")):
                roles["id"] = ""
            else:
                roles["id"] = find_id("", others, kind)
            others = [name for name in others if name != roles["id"]]
            label, documented = ("", "") if of_graphs else find_label(others)
            roles.update(dict.fromkeys(("label", "target", "y"), ""), **{documented: label})
            roles["split"] = "" if of_graphs else find("", others, _SPLIT, "split")
            roles["time"] = find("", others, _TIME, "time") if not kind and not of_graphs else ""
            return [roles[role] for role in ("id", "graph", "label", "split")]

        with errors_in(path):
            table = read_columns("nodes", path, names_in)
            names_in([*table])
            columns = {
                name: values
                for name, values in table.items()
                if name == roles["id"] or name not in options.ignore
            }
            special = {role: columns.pop(name) for role, name in roles.items() if name in columns}
            rows = len(next(iter(table.values())))
            if not table or not rows:
                raise ValueError("expected a row for each node, got none")
            ids = special.get("id", np.arange(1, rows + 1))
            if "time" in special:
                columns[roles["time"]] = special["time"]
            details = {roles["id"]: "names"} if roles["id"] else {}
            if kind == "graph":
                details |= dict.fromkeys(columns, "not used: graphs have no features of their own")
                columns = {}
            features = TableFeatures.read(
                columns, place, memory, fill=options.fill_missing, text=options.text, recipe=recipe
            )
            ignored = (name for name in options.ignore if name in table)
            details |= features.details | dict.fromkeys(ignored, "not used: ignored")
            self = cls(path, table.keys(), ids, features, np.full(rows, -1), details=details)
            told = {role: roles[role] for role in ("id", "graph", "label", "target", "split")}
            self.notices += taken_as(path.name, told)
            self.graph, self.split = special.get("graph"), special.get("split")
            if self.graph is not None:
                details[roles["graph"]] = "the graph of each node"
            if "time" in special:
                self._read_time(roles["time"], special["time"], place)
            for role in ("label", "target", "y"):
                if role in special:
                    self._read_labels(role, roles[role], special[role], place)
            if self.split is not None:
                details[roles["split"]] = "parts for training, validation and test"
            self.large += features.large
            if recipe is None and (lacking := int(self.is_unlabelled.sum())) not in (0, rows):
                what = "graphs" if kind == "graph" else "nodes"
                self.notices.append(
                    f"column {self.label!r}: {lacking:,} of {rows:,} are missing; these {what} are "
                    "not trained on, and predicted by jax-gnn predict"
                )
            self.notices += features.notices
        return self

    @property
    def is_unlabelled(self) -> np.ndarray:
        """Rows without a label, ``(rows,)`` booleans."""
        return np.asarray(np.isnan(self.y) if self.y.dtype.kind == "f" else self.y < 0)

    def _read_labels(
        self, role: str, name: str, values: Column, place: Callable[[int], str]
    ) -> None:
        """Set labels from their column: classes, or numbers to regress on."""
        self.label = name
        if role == "y":
            array = numbers(values)
            is_fraction = array is not None and (array != np.floor(array))[~np.isnan(array)].any()
            role = "target" if is_fraction else "label"
        if role == "target":
            reading = read_kind(name, values, place, "number")
            notice = typo_notice(reading, values, place)
            self.notices += [f"column {name!r}: {notice}"] * bool(notice)
            array = numbers(reading.values)
            self.large += [name] * (array is not None and array.dtype != np.float32)
            self.y = np.asarray(floats(reading.values))
            kind = "numbers to regress on"
        else:
            classes, (self.y,) = encode({name: blank_markers(values)})
            if not _are_classes(classes.tolist()):
                raise ValueError(
                    f"column {name!r} has numbers that are no classes; call it 'target'"
                )
            self.label_names = tuple(map(str, classes.tolist()))
            kind = f"{classes.size:,} classes"
        known = len(self.y) - int(self.is_unlabelled.sum())
        self.details[name] = f"{kind}, {known:,} of {len(self.y):,} known"

    def _read_time(self, name: str, values: Column, place: Callable[[int], str]) -> None:
        """Set the times of nodes, if all have one."""
        with contextlib.suppress(ValueError):  # else the column is a feature alone
            self.time, _ = read_times(name, values, place)
            self.details[name] = self.details.get(name, "") + "; also the time of the node"

    def split_fields(self, names: Sequence[object], first: int = 0) -> dict[str, Any]:
        """Return the rows of each part by field of a dataset, from the number of the first row."""
        if self.split is None:
            return {}
        kinds, (codes,) = encode({"split": blank_markers(self.split)})
        place = partial(place_of, self.path)
        is_unlabelled, parts = self.is_unlabelled, {part: np.zeros(0, int) for part in PARTS}
        for number, kind in enumerate(kinds.tolist()):
            part = _PART_WORDS.get(str(kind).casefold(), str(kind).casefold())
            if part not in PARTS:
                raise ValueError(
                    f"column 'split': expected {', '.join(PARTS)} or nothing, got {kind!r:.80}"
                )
            parts[part] = np.append(parts[part], np.flatnonzero(codes == number))
            if (rows := np.flatnonzero((codes == number) & is_unlabelled)).size:
                where = f"{place(rows[0])} (node {names[rows[0]]!r})"
                raise ValueError(f"column 'split': {where} has {kind!r}, but no label")
        return {PARTS[part]: np.sort(rows) + first for part, rows in parts.items() if rows.size}


def _are_classes(names: list[str | int]) -> bool:
    """Return whether some names are text, or all are whole numbers."""
    try:
        return all(float(name).is_integer() for name in names)
    except ValueError:
        return True


def read_times(name: str, values: Column, place: Callable[[int], str]) -> tuple[np.ndarray, str]:
    """Return times as int64, whole numbers or seconds since 1970 for dates, and a description.

    Raises:
        ValueError: A time is missing, or no whole number.
    """
    reading = read_kind(name, values, place)
    times, unit = reading.values, "whole numbers"
    if reading.kind == "time":
        times, unit = whole_seconds(times)
    elif isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        times = values
    if times.dtype == object or times.ndim != 1:
        raise ValueError(f"column {name!r}: expected dates or whole numbers, got {reading.kind}")
    if (bad := np.flatnonzero(~(times.astype(float) % 1 == 0))).size:
        raise ValueError(
            f"column {name!r}: {place(bad[0])} has no time: expected a date or a whole number; "
            f"{bad.size} of {times.size} rows are such"
        )
    if not times.size:
        return times.astype(np.int64), unit
    ends = times.min(), times.max()
    if reading.kind == "time":
        ends = tuple(
            np.array([np.nanmin(reading.values), np.nanmax(reading.values)])
            .astype("M8[us]")
            .astype("M8[D]")
        )
    return times.astype(np.int64), f"{ends[0]} to {ends[1]}: {unit}"


@dataclass
class EdgeTable:
    """A table with a row for each edge, or for each node of a hyperedge.

    Attributes:
        path: The file.
        header: Names of all its columns.
        ends: Columns with the names of both ends, by name.
        weight: Weights; None without any.
        time: Times, int64; None without any.
        graph: Column with the graph of each edge, of many graphs.
        details: Description of each column, by name.
        notices: Sentences about columns that were taken for others.
        large: Columns of numbers that float32 rounds.
    """

    path: Path
    header: Collection[str]
    ends: dict[str, Column]
    weight: np.ndarray | None = None
    time: np.ndarray | None = None
    graph: Column | None = None
    details: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    large: list[str] = field(default_factory=list)

    @classmethod
    def read(
        cls,
        path: Path,
        options: TableOptions,
        words: Sequence[tuple[str, str]] = ENDS,
        *,
        uses: Collection[str] = ("weight", "time"),
    ) -> EdgeTable:
        """Read a table, whose ends are by one of the pairs of words; `uses` are other columns."""
        place = partial(place_of, path)
        roles: dict[str, str] = {}

        def names_in(columns: Sequence[str]) -> list[str]:
            """Find the columns of names, and keep them by role."""
            ends = find_ends("", columns, words)
            roles.update(zip(words[0], ends, strict=True))
            others = [name for name in columns if name not in (*ends, *options.ignore)]
            for role, known in (("weight", _WEIGHT), ("time", _TIME), ("graph", _GRAPH)):
                roles[role] = find("", others, known, role) if role in uses else ""
            return [*map(roles.get, (*words[0], "graph"))]  # type: ignore[list-item]

        with errors_in(path):
            table = read_columns("edges", path, names_in, words[0])
            names_in([*table])
            ends = {roles[role]: table[roles[role]] for role in words[0]}
            self = cls(path, table.keys(), ends, notices=taken_as(path.name, roles))
            if name := roles["weight"]:
                weights = read_kind(name, table[name], place, "number")
                if (rows := np.flatnonzero(~np.isfinite(weights.values))).size:
                    raise ValueError(
                        f"column {name!r}: {place(rows[0])} has no finite number; {rows.size} of "
                        f"{len(weights.values)} rows are such"
                    )
                array = numbers(weights.values)
                self.large += [name] * (array is not None and array.dtype != np.float32)
                self.weight = floats(weights.values)
            use = {"weight": "edge weights", "graph": "the graph of each edge"}
            if name := roles["time"]:
                self.time, span = read_times(name, table[name], place)
                use["time"] = f"edge times, {span}"
            self.graph = table.get(roles["graph"])
            role_of = {name: role for role, name in roles.items()}
            self.details = {
                name: use.get(role_of[name], "ids") if name in role_of else "not used"
                for name in table
            }
        return self


def number_ends(
    nodes: Mapping[str, NodeTable], edges: Sequence[tuple[EdgeTable, str, str]]
) -> tuple[dict[str, np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
    """Number the ends of edges.

    Args:
        nodes: Tables of nodes by type; nodes of other types are the names that edges have.
        edges: Tables of edges, each with the types of both ends.

    Returns:
        The names by type, and for each table of edges the numbers of its ends.

    Raises:
        ValueError: An edge names no node; the error names its line.
    """
    columns: dict[str, dict[str, Column]] = {
        kind: {f"ids of {table.path.name}": table.ids} for kind, table in nodes.items()
    }
    places: dict[str, list[tuple[int, int]]] = {}  # of the columns of a type after its ids
    for i, (edge_table, *kinds) in enumerate(edges):
        ends = zip(kinds, edge_table.ends.items(), strict=True)
        for side, (kind, (name, values)) in enumerate(ends):
            columns.setdefault(kind, {})[f"{name} of {edge_table.path.name}"] = values
            places.setdefault(kind, []).append((i, side))
    names: dict[str, np.ndarray] = {}
    ids = [[np.zeros(0, int)] * 2 for _ in edges]
    for kind, sources in columns.items():
        names[kind], codes = encode_names(sources)
        if kind in nodes:
            path = nodes[kind].path
            with errors_in(path):
                names[kind], row_of = node_order(
                    "nodes", names[kind], codes[0], partial(place_of, path)
                )
            codes = [row_of[code] for code in codes[1:]]
        for (i, side), code in zip(places.get(kind, ()), codes, strict=True):
            ids[i][side] = code
    for (edge_table, *kinds), (src, dst) in zip(edges, ids, strict=True):
        paths = [nodes[kind].path for kind in kinds if kind in nodes]
        check_ends(edge_table, (src, dst), paths)
    return names, [(src, dst) for src, dst in ids]


def check_ends(table: EdgeTable, ids: tuple[np.ndarray, np.ndarray], nodes: Sequence[Path]) -> None:
    """Check that both ends of all edges are nodes; an error names the first line where not."""
    unknown = np.stack(ids) < 0
    if not unknown.any():
        return
    row = int(np.flatnonzero(unknown.any(0))[0])
    side = int(unknown[:, row].argmax())
    name, values = [*table.ends.items()][side]
    value, file = values[row : row + 1].tolist()[0], nodes[min(side, len(nodes) - 1)]
    value = getattr(value, "as_py", lambda: value)()
    of = " of its graph" * (table.graph is not None)
    problem = f"the {name} {value!r:.80}, which is the id of no node{of}"
    problem = f"no {name}" if value is None else problem
    count = f"{unknown.any(0).sum()} of {unknown.shape[1]} rows are such"
    raise ValueError(
        f"{file}: {place_of(table.path, row)} has {problem}; {count}: add the nodes to "
        f"{file.name}, or leave the rows out"
    )


def finished(
    dataset: D,
    nodes: Mapping[str, NodeTable],
    edges: Sequence[EdgeTable],
    options: TableOptions,
    recipe: str,
    notices: Sequence[str] = (),
) -> D:
    """Set on a dataset what its tables say; tables of nodes are by what errors call them.

    Raises:
        ValueError: A column to ignore is in no table.
    """
    tables: list[NodeTable | EdgeTable] = [*nodes.values(), *edges]
    for name in options.ignore:
        if not any(name in table.header for table in tables):
            listed = ", ".join(name for table in nodes.values() for name in table.header)
            raise ValueError(f"ignore: {name!r} is none of the columns {listed}")
    for table in tables:
        for name in table.large:
            warnings.warn(
                f"{table.path}: column {name!r} has numbers beyond 2**24, which float32 rounds: "
                "subtract the least, or divide",
                stacklevel=3,
            )
    details: dict[str, str] = {}
    unused, told = [], [*notices]
    for title, table in nodes.items():
        of = f" of {title}" * bool(title)
        details |= {name + of: text for name, text in table.details.items()}
        unused += [
            f"{name or '(no name)'} of {table.path.name} ({why})"
            for name, why in table.features.unused.items()
        ]
        told += [f"{title}: {notice}" if title else notice for notice in table.notices]
    for edge_table in edges:
        of = f" of {edge_table.path.name}"
        details |= {name + of: text for name, text in edge_table.details.items()}
        unused += [name + of for name, text in edge_table.details.items() if text == "not used"]
        told += edge_table.notices
    dataset._set("unused", tuple(unused))
    dataset._set("notices", tuple(told))
    dataset._set("table_recipe", recipe)
    dataset._set("columns", tuple(details.items()))
    return dataset
