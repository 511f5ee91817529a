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
from jax_gnn.convert._names import ENDS, find, find_ends, find_id, find_label, taken_as
from jax_gnn.convert._table import NamedTable, assign_ids
from jax_gnn.datasets._dataset import NodeDataset
from jax_gnn.datasets._table_features import TableFeatures

D = TypeVar("D", bound=NodeDataset)

_PARTS = {"train": "train_idx", "val": "val_idx", "test": "test_idx"}
_PARTS |= {"training": "train_idx", "valid": "val_idx", "validation": "val_idx"}
# Words of columns by documented name; see `jax_gnn.convert._names`.
_WORDS = {
    "graph": ("graph", "graphid"),
    "time": ("time", "timestamp", "edgetime", "nodetime"),
    "weight": ("weight", "edgeweight"),
    "split": ("split",),
}


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
    """A table with a row for each node, or for each graph."""

    path: Path
    roles: dict[str, str]  # names of columns that are no features, by documented name
    ids: Column  # names of the rows
    features: TableFeatures
    y: np.ndarray  # labels, -1 or NaN if missing
    details: dict[str, str]  # description of each column, by name
    label: str = ""  # column of the labels; "" without any
    label_names: tuple[str, ...] | None = None
    split: Column | None = None
    graph: Column | None = None  # the graph of each node, of many graphs
    time: np.ndarray | None = None  # times of nodes
    notices: list[str] = field(default_factory=list)

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
            of_graphs: Whether nodes are of many graphs: a column names the graph, and nodes have
                no labels.
            counted: Whether nodes count from 1 in the order of the rows if there are no ids.
        """

        def roles_of(columns: Sequence[str]) -> dict[str, str]:
            others = [name for name in columns if name == "id" or name not in options.ignore]
            roles: dict[str, str] = {}
            for role in ("graph",) if of_graphs else ("split", *["time"] * (not kind)):
                roles[role] = find("", others, _WORDS[role], role)
            if of_graphs and not roles["graph"]:
                raise ValueError(f"expected the column graph, got {', '.join(columns)}")
            others = [name for name in others if name not in roles.values()]
            with contextlib.suppress(ValueError) if counted else contextlib.nullcontext():
                roles["id"] = find_id("", others, kind)
            if not of_graphs:
                name, role = find_label([name for name in others if name != roles.get("id")])
                roles[role] = name
            return {role: name for role, name in roles.items() if name}

        def names_in(columns: Sequence[str]) -> list[str]:
            roles = roles_of(columns)
            return [roles[role] for role in ("id", "graph", "label", "split") if role in roles]

        place = partial(place_of, path)
        with errors_in(path):
            table = read_columns("nodes", path, names_in)
            roles, rows = roles_of([*table]), len(next(iter(table.values())))
            if not rows:
                raise ValueError("expected a row for each node, got none")
            special = {role: table[name] for role, name in roles.items()}
            used = {name for role, name in roles.items() if role != "time"} | {*options.ignore}
            columns = {name: values for name, values in table.items() if name not in used}
            features = TableFeatures.read(
                {} if kind == "graph" else columns,
                place,
                memory,
                fill=options.fill_missing,
                text=options.text,
                recipe=recipe,
            )
            _warn_rounded(path, features.large)
            reason = "graphs have no features of their own" if kind == "graph" else "ignored"
            details = dict.fromkeys(table, f"not used: {reason}") | features.details
            uses = {"id": "names", "graph": "the graph of each node"}
            uses["split"] = "parts for training, validation and test"
            details |= {name: uses[role] for role, name in roles.items() if role in uses}
            ids = special.get("id", np.arange(1, rows + 1))
            self = cls(path, roles, ids, features, np.full(rows, -1), details)
            self.notices += taken_as(path.name, roles)
            self.graph, self.split = special.get("graph"), special.get("split")
            if "time" in roles:
                with contextlib.suppress(ValueError):  # else the column is a feature alone
                    self.time, _ = read_times(roles["time"], special["time"], place)
                    details[roles["time"]] += "; also the time of the node"
            for role in special.keys() & {"label", "target", "y"}:
                self._read_labels(role, roles[role], special[role], place)
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
        array = numbers(values) if role == "y" else None
        if array is not None and (array % 1)[~np.isnan(array)].any():
            role = "target"
        if role == "target":
            reading = read_kind(name, values, place, "number")
            notice = typo_notice(reading, values, place)
            self.notices += [f"column {name!r}: {notice}"] * bool(notice)
            self.y, kind = _rounded(self.path, name, reading.values), "numbers to regress on"
        else:
            classes, (self.y,) = encode({name: blank_markers(values)})
            if not _are_classes(classes.tolist()):
                raise ValueError(
                    f"column {name!r} has numbers that are no classes; call it 'target'"
                )
            self.label_names = tuple(map(str, classes.tolist()))
            kind = f"{classes.size:,} classes"
        known = len(self.y) - int(self.is_unlabelled.sum())
        self.label = name
        self.details[name] = f"{kind}, {known:,} of {len(self.y):,} known"

    def split_fields(self, names: Sequence[object], first: int = 0) -> dict[str, Any]:
        """Return the rows of each part by field of a dataset, from the number of the first row."""
        if self.split is None:
            return {}
        kinds, (codes,) = encode({"split": blank_markers(self.split)})
        fields = [_PARTS.get(str(kind).casefold(), "") for kind in kinds.tolist()]
        if "" in fields:
            kind = kinds.tolist()[fields.index("")]
            raise ValueError(
                f"column 'split': expected train, val, test or nothing, got {kind!r:.80}"
            )
        if (rows := np.flatnonzero((codes >= 0) & self.is_unlabelled)).size:
            where = f"{place_of(self.path, rows[0])} (node {names[rows[0]]!r})"
            kind = kinds.tolist()[codes[rows[0]]]
            raise ValueError(f"column 'split': {where} has {kind!r}, but no label")
        of_rows = np.array([*fields, ""])[codes]
        return {field: np.flatnonzero(of_rows == field) + first for field in fields}


@dataclass
class EdgeTable:
    """A table with a row for each edge, or for each node of a hyperedge."""

    path: Path
    roles: dict[str, str]  # names of columns that are used, by documented name
    ends: dict[str, Column]  # columns with the names of both ends, by name
    details: dict[str, str]  # description of each column, by name
    notices: list[str]
    weight: np.ndarray | None = None
    time: np.ndarray | None = None
    graph: Column | None = None  # the graph of each edge, of many graphs

    @classmethod
    def read(
        cls,
        path: Path,
        options: TableOptions,
        words: Sequence[tuple[str, str]] = ENDS,
        *,
        uses: Collection[str] = (),
    ) -> EdgeTable:
        """Read a table, whose ends are by one of the pairs of words; `uses` are other columns."""

        def roles_of(columns: Sequence[str]) -> dict[str, str]:
            ends = find_ends("", columns, words)
            others = [name for name in columns if name not in (*ends, *options.ignore)]
            found = {role: find("", others, _WORDS[role], role) for role in uses}
            return dict(zip(words[0], ends, strict=True)) | {k: v for k, v in found.items() if v}

        def names_in(columns: Sequence[str]) -> list[str]:
            roles = roles_of(columns)
            return [roles[role] for role in (*words[0], "graph") if role in roles]

        place = partial(place_of, path)
        with errors_in(path):
            table = read_columns("edges", path, names_in, words[0])
            roles = roles_of([*table])
            special = {role: table[name] for role, name in roles.items()}
            ends = {roles[role]: special[role] for role in words[0]}
            details = dict.fromkeys(table, "not used") | dict.fromkeys(ends, "ids")
            self = cls(path, roles, ends, details, taken_as(path.name, roles))
            self.graph = special.get("graph")
            if self.graph is not None:
                details[roles["graph"]] = "the graph of each edge"
            if "weight" in roles:
                name = roles["weight"]
                values = read_kind(name, special["weight"], place, "number").values
                if (rows := np.flatnonzero(~np.isfinite(values))).size:
                    raise ValueError(
                        f"column {name!r}: {place(rows[0])} has no finite number; {rows.size} of "
                        f"{len(values)} rows are such"
                    )
                self.weight, details[name] = _rounded(path, name, values), "edge weights"
            if "time" in roles:
                try:
                    self.time, unit = read_times(roles["time"], special["time"], place)
                    details[roles["time"]] = f"edge times, {unit}"
                except ValueError as error:  # such as of durations
                    self.notices.append(f"{path.name}: {error}; times are not used")
        return self


def _rounded(path: Path, name: str, values: Column) -> np.ndarray:
    """Return a column of numbers in float32, after a warning if that rounds them."""
    array = numbers(values)
    _warn_rounded(path, [name] * (array is not None and array.dtype != np.float32))
    return np.asarray(floats(values))


def _warn_rounded(path: Path, names: Sequence[str]) -> None:
    for name in names:
        warnings.warn(
            f"{path}: column {name!r} has numbers beyond 2**24, which float32 rounds: subtract the "
            "least, or divide",
            stacklevel=5,
        )


def _are_classes(names: list[str | int]) -> bool:
    """Return whether some names are text, or all are whole numbers."""
    try:
        return all(float(name).is_integer() for name in names)
    except ValueError:
        return True


def read_times(name: str, values: Column, place: Callable[[int], str]) -> tuple[np.ndarray, str]:
    """Return times as int64, whole numbers or seconds since 1970 for dates, and their unit.

    Raises:
        ValueError: A time is missing, or no whole number.
    """
    reading = read_kind(name, values, place)
    times, unit = reading.values, "whole numbers"
    if reading.kind == "time":
        times, unit = whole_seconds(times)
    elif isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        times = values  # which floats would round
    if times.dtype == object or times.ndim != 1:
        raise ValueError(f"column {name!r}: expected dates or whole numbers, got {reading.kind}")
    if (rows := np.flatnonzero(times.astype(float) % 1 != 0)).size:  # NaN included
        raise ValueError(
            f"column {name!r}: {place(rows[0])} has no time: expected a date or a whole number; "
            f"{rows.size} of {times.size} rows are such"
        )
    return times.astype(np.int64), unit


def number_ends(
    nodes: Mapping[str, NodeTable], edges: Sequence[tuple[EdgeTable, str, str]]
) -> tuple[dict[str, np.ndarray], list[list[np.ndarray]]]:
    """Number the ends of edges.

    Args:
        nodes: Tables of nodes by type; nodes of other types are the names that edges have.
        edges: Tables of edges, each with the types of both ends.

    Returns:
        The names by type, and for each table of edges the numbers of its ends.

    Raises:
        ValueError: An edge names no node; the error names its line.
    """

    def named(table: NodeTable | EdgeTable, key: Any, columns: Mapping[str, Column]) -> NamedTable:
        ids = {f"{name} of {table.path.name}": values for name, values in columns.items()}
        return NamedTable(table.path.name, key, ids, {}, partial(place_of, table.path))

    node_tables = {kind: named(table, kind, {"ids": table.ids}) for kind, table in nodes.items()}
    edge_tables = [named(table, (src, "", dst), table.ends) for table, src, dst in edges]
    with errors_in(next(iter(nodes.values())).path.parent):
        names = assign_ids(edge_tables, node_tables)
    pairs = [[*table.ids.values()] for table in edge_tables]
    for (table, *kinds), ids in zip(edges, pairs, strict=True):
        unknown = np.stack(ids) < 0
        if not unknown.any():
            continue
        row = int(np.flatnonzero(unknown.any(0))[0])
        side = int(unknown[:, row].argmax())
        name, values = [*table.ends.items()][side]
        value = values[row : row + 1].tolist()[0]
        value = getattr(value, "as_py", lambda value=value: value)()  # of Arrow
        problem = f"the {name} {value!r:.80}, which is the id of no node"
        problem = f"no {name}" if value is None else problem
        file = nodes[kinds[side] if kinds[side] in nodes else kinds[0]].path
        raise ValueError(
            f"{file}: {place_of(table.path, row)} has {problem}; "
            f"{unknown.any(0).sum()} of {unknown.shape[1]} rows are such: add the nodes to "
            f"{file.name}, or leave the rows out"
        )
    return names, pairs


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
    tables: dict[str, NodeTable | EdgeTable] = {**nodes}
    tables |= {table.path.name: table for table in edges}
    columns = {name for table in tables.values() for name in table.details}
    if absent := [name for name in options.ignore if name not in columns]:
        listed = ", ".join(name for table in nodes.values() for name in table.details)
        raise ValueError(f"ignore: {absent[0]!r} is none of the columns {listed}")
    details = {
        f"{name} of {title}" if title else name: text
        for title, table in tables.items()
        for name, text in table.details.items()
    }
    dataset._set("columns", tuple(details.items()))
    dataset._set("unused", tuple(name for name in details if details[name].startswith("not used")))
    told = [
        notice if notice.startswith(table.path.name) else f"{title}: {notice}".removeprefix(": ")
        for title, table in tables.items()
        for notice in table.notices
    ]
    dataset._set("notices", (*notices, *told))
    dataset._set("table_recipe", recipe)
    return dataset
