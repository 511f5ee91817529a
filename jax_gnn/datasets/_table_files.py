"""Tables of nodes and of edges in files: what all datasets of tables share."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from jax_gnn._core.files import Memory, errors_in
from jax_gnn.convert._columns import encode
from jax_gnn.convert._kinds import (
    FILLS,
    MAX_TYPOS,
    Kind,
    as_words,
    blank_markers,
    read_kind,
    whole_seconds,
)
from jax_gnn.convert._names import (
    HYPEREDGES,
    end_words,
    find,
    find_ends,
    find_id,
    find_label,
    taken_as,
    word_of,
)
from jax_gnn.convert._table import NamedTable, Roles, assign_ids
from jax_gnn.datasets._dataset import NodeDataset
from jax_gnn.datasets._table_features import TableFeatures, rounding_of

D = TypeVar("D", bound=NodeDataset)

_PARTS = {"train": "train_idx", "val": "val_idx", "test": "test_idx"}
_PARTS |= {"training": "train_idx", "testing": "test_idx"}
_PARTS |= dict.fromkeys(("valid", "validation", "dev"), "val_idx")
# Words of columns by role; see `jax_gnn.convert._names`.
_WORDS = {
    "graph": ("graph", "graphid"),
    "time": ("time", "timestamp", "edgetime", "nodetime"),
    "weight": ("weight", "edgeweight"),
    "relation": ("relation", "rel", "predicate", "type", "edgetype"),
    "split": ("split",),
}
_MASK_WORD = re.compile("^is|mask$")  # of columns of a part: "train_mask", "is_train"
_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0", "none")
_MIN_ROWS, _MAX_ROWS = 10, 10_000  # for a value of a column that tells the label, and in all
_MAX_EDGE_VALUES = 32  # of a category; edges are many, and each value is a feature of all
_SAMPLE = 100  # rows that may show that a column has no parts of the data
_USES = {"id": "names", "graph": "the graph of each row", "split": "parts of the data"}


@dataclass(frozen=True)
class TableOptions:
    """Options of how tables are read: see `load_csv`."""

    fill_missing: str = "mean"
    text: str = "drop"
    ignore: Sequence[str] = ()
    recipe: str | None = None
    src: str | None = None
    dst: str | None = None
    node: str | None = None
    label: str | None = None
    target: str | None = None
    time: str | None = None
    weight: str | None = None

    def __post_init__(self) -> None:
        if self.fill_missing not in FILLS or self.text not in ("drop", "hash"):
            raise ValueError(
                f"fill_missing must be one of {', '.join(FILLS)} and text drop or hash, got "
                f"{self.fill_missing!r}, {self.text!r}"
            )
        if self.label is not None and self.target is not None and not self.recipe:
            raise ValueError(f"label must be None beside target, got {self.label!r}")

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The recipe as a tree, which is empty without a recipe."""
        return json.loads(self.recipe) if self.recipe else {}

    @cached_property
    def names(self) -> dict[str, str]:
        """Names of columns by role, which the recipe has if there is one."""
        roles = "src", "dst", "node", "label", "target", "time", "weight"
        names = {role: name for role in roles if (name := getattr(self, role)) is not None}
        return dict(self.plan.get("roles", {})) if self.recipe else names

    def column(self, role: str, columns: Sequence[str], *, lenient: bool = False) -> str | None:
        """Return the column that is named for a role; None if words of columns are to find it.

        A table to predict on may lack labels and weights; `lenient` is for one table of several.
        """
        name = self.names.get(role)
        if name in (None, *columns):
            return name
        if self.recipe and role in ("label", "target", "weight"):
            return ""
        if lenient or role == "time":
            return None
        raise ValueError(f"expected the column {name} ({role}), got {', '.join(columns)}")


@dataclass
class FileTable(NamedTable):
    """Table in a file, some of whose columns have a role."""

    path: Path = field(kw_only=True)
    details: dict[str, str] = field(init=False)  # description of each column, by name
    notices: list[str] = field(default_factory=list)
    time: np.ndarray | None = None
    unit: str = ""  # of the times
    form: str = ""  # of the times, see `Reading.form`

    @classmethod
    def read_file(cls, path: Path, key: Any, roles_of: Roles, ids: Sequence[str]) -> Self:
        """Read a file, of which the columns with the roles `ids` name nodes."""
        self = cls.open(path.name, key, path, roles_of, {role: role for role in ids}, path=path)
        self.details = dict.fromkeys(self.columns, "not used")
        self.details |= {self.roles[role]: use for role, use in _USES.items() if role in self.roles}
        return self

    def read_times(self, unit: str = "", form: str = "") -> None:
        """Set times as int64: whole numbers, or seconds since 1970 for dates.

        Raises:
            ValueError: A time is missing or no whole number, or finer than `unit`, that of others.
        """
        values = self.columns[name := self.roles["time"]]
        reading = read_kind(name, values, self.place, form=form)
        times, read_unit = reading.values, "whole numbers"
        if reading.kind == "time":
            times, read_unit = whole_seconds(times)
            if unit == f"micro{read_unit}":
                times, read_unit = times * 10**6, unit
        elif isinstance(values, np.ndarray) and values.dtype.kind in "iu":
            times = values  # which floats would round
        if times.dtype == object or times.ndim != 1 or read_unit == f"micro{unit}":
            raise ValueError(
                f"column {name!r}: expected {unit or 'dates or whole numbers'}, got {reading.kind}"
            )
        decimal = times.astype(float)
        is_time = (np.abs(decimal) < 2**63) & (np.floor(decimal) == decimal)  # NaN is none
        if (rows := np.flatnonzero(~is_time)).size:
            raise ValueError(
                f"column {name!r}: {self.place(rows[0])} has no time: expected a date or a whole "
                f"number; {rows.size} of {times.size} rows are such"
            )
        self.time, self.unit, self.form = times.astype(np.int64), read_unit, reading.form

    def rounded(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return a column of numbers in float32, and tell if that rounds them."""
        self.notices += rounding_of(name, values)
        with np.errstate(over="ignore"):  # large numbers become inf, which datasets refuse
            return values.astype(np.float32)


@dataclass
class NodeTable(FileTable):
    """Table with a row for each node, or for each graph."""

    features: TableFeatures = field(init=False)
    y: np.ndarray = field(init=False)  # labels, -1 or NaN if missing
    label_names: tuple[str, ...] | None = None

    @classmethod
    def read(
        cls,
        path: Path,
        memory: Memory,
        options: TableOptions,
        plan: Mapping[str, Any] | None,
        *,
        kind: str = "",
        uses: Sequence[str] = ("split", "time", "label"),
        unit: str = "",
        of_graphs: bool = False,
        counted: bool = False,
    ) -> NodeTable:
        """Read a table.

        `plan` is the `TableFeatures.recipe` of the table of a training, if any. A column of ids may
        be called after `kind`, the type of nodes; without one, `counted` nodes count from 1. `uses`
        are roles of columns besides ids, `unit` is that of the times of edges. Graphs have no
        features of their own.
        """

        def roles_of(columns: Sequence[str]) -> dict[str, str]:
            others = [name for name in columns if name == "id" or name not in options.ignore]
            roles = {}
            for role in uses:
                if role in _WORDS:
                    name = options.column(role, columns, lenient=bool(kind))
                    roles[role] = find(others, _WORDS[role], role) if name is None else name
            if not roles.get("graph", "graph"):
                raise ValueError(f"expected the column graph, got {', '.join(columns)}")
            others = [name for name in others if name not in roles.values()]
            with contextlib.suppress(ValueError) if counted else contextlib.nullcontext():
                name = options.column("node", columns, lenient=bool(kind))
                roles["id"] = find_id(others, kind) if name is None else name
            if "label" in uses:
                role = "target" if "target" in options.names else "label"
                name = options.column(role, columns, lenient=bool(kind))
                if name is None:
                    name, role = find_label([name for name in others if name != roles.get("id")])
                roles[role] = name
            return {role: name for role, name in roles.items() if name}

        with errors_in(path):
            self = cls.read_file(path, kind, roles_of, ["id"])
            rows = len(next(iter(self.columns.values())))
            if not rows:
                raise ValueError("expected a row for each node, got none")
            self.ids = self.ids or {f"id of {path.name}": np.arange(1, rows + 1)}
            if "split" not in self.roles and self.roles.keys() & {"label", "target", "y"}:
                used = {*self.roles.values(), *options.ignore}
                others = [name for name in self.columns if name not in used]
                if not self._find_masks(others):
                    self._find_split(others)
            used = {name for role, name in self.roles.items() if role != "time"} | {*options.ignore}
            columns = {name: cells for name, cells in self.columns.items() if name not in used}
            self.features = TableFeatures(self.place, memory)
            if plan:
                self.features.follow(columns, plan)
            elif not of_graphs:
                self.features.read(columns, options.fill_missing, options.text)
            reason = "graphs have no features of their own" if of_graphs else "ignored"
            unused = self.columns.keys() - self.roles.values()
            self.details |= dict.fromkeys(unused, f"not used: {reason}") | self.features.details
            if "time" in self.roles:
                name, kind = self.roles["time"], "graph" if of_graphs else "node"
                try:
                    forms = {column.name: column.form for column in self.features.columns}
                    self.read_times(unit, forms.get(name, ""))
                    also = "" if of_graphs else f"{self.details[name]}; also "
                    self.details[name] = f"{also}the time of the {kind}"
                except ValueError as error:  # the column is a feature alone
                    self.notices.append(f"{error}; {kind}s have no times")
            self.y = np.full(rows, -1)
            for role in self.roles.keys() & {"label", "target", "y"}:
                self._read_labels(role, self.roles[role])
                lacking = int(self.is_unlabelled.sum())
                if lacking not in (0, rows) and not options.recipe:
                    self.notices.append(
                        f"column {self.roles[role]!r}: {lacking:,} of {rows:,} are missing; these "
                        "rows are not trained on, and predicted by jax-gnn predict"
                    )
                if not options.recipe and self.label_names:
                    self._tell_leaks(self.roles[role])
            self.notices += self.features.notices
        return self

    def _find_masks(self, others: Sequence[str]) -> bool:
        """Take masks, such as "train_mask" and "test_mask", as the split; return whether."""
        parts = {name: _PARTS.get(_MASK_WORD.sub("", word_of(name)), "") for name in others}
        parts = {name: part.removesuffix("_idx") for name, part in parts.items() if part}
        if len(parts) < 2 or "train" not in parts.values():
            return False
        cells = np.array([np.char.lower(as_words(self.columns[k]).astype(str)) for k in parts])
        in_part = np.isin(cells, _TRUE)
        if not (in_part | np.isin(cells, _FALSE)).all() or (in_part.sum(0) > 1).any():
            return False
        words = np.array([*parts.values(), None], object)
        self.roles["split"] = split = ", ".join(parts)
        self.columns = {name: x for name, x in self.columns.items() if name not in parts}
        self.columns[split] = words[np.where(in_part.any(0), in_part.argmax(0), -1)]
        self.details |= dict.fromkeys(parts, "mask of a part of the data")
        return True

    def _find_split(self, others: Sequence[str]) -> None:
        """Take the first column of nothing but two parts of the data, and more, as the split."""
        for name in others:
            for cells in (self.columns[name][:_SAMPLE], self.columns[name]):
                words = {word.casefold() for word in as_words(cells).tolist() if word}
                if not words <= _PARTS.keys():
                    break
            if len(words) > 1 and words <= _PARTS.keys():
                self.roles["split"], self.details[name] = name, _USES["split"]
                return

    @property
    def is_unlabelled(self) -> np.ndarray:
        """Rows without a label, ``(rows,)`` booleans."""
        return np.asarray(np.isnan(self.y) if self.y.dtype.kind == "f" else self.y < 0)

    def _read_labels(self, role: str, name: str) -> None:
        """Set labels from their column: classes, or numbers to regress on."""
        values, reading, has_classes = self.columns[name], None, role != "target"
        # A "label" or "y" has classes, text and typos among them, but for numbers with fractions.
        with contextlib.suppress(ValueError) if has_classes else contextlib.nullcontext():
            kind: Kind | None = None if has_classes else "number"
            reading = read_kind(name, values, self.place, kind)
        if has_classes and reading is not None and reading.kind in ("number", "index"):
            known = reading.values[~np.isnan(reading.values)]
            has_classes = bool((np.floor(known) == known).all())
        if has_classes or reading is None:
            classes, (self.y,) = encode({name: blank_markers(values)})
            self.label_names = tuple(map(str, classes.tolist()))
            text = f"{classes.size:,} classes"
        elif role == "label":
            raise ValueError(
                f"column {name!r} has numbers that are no classes; call it 'target', or name it by "
                "target (--target)"
            )
        else:
            self.notices += [f"column {name!r}: {reading.typos}"] * bool(reading.typos)
            text = f"numbers {reading.how}{' ' * bool(reading.how)}to regress on"
            self.y = self.rounded(name, reading.values)
        num_known = len(self.y) - int(self.is_unlabelled.sum())
        self.details[name] = f"{text}, {num_known:,} of {len(self.y):,} known"

    def _tell_leaks(self, label: str) -> None:
        """Add a notice of features that tell the label, as its name beside its number does."""
        known = np.flatnonzero(~self.is_unlabelled)
        known = known[:: max(1, len(known) // _MAX_ROWS)]
        y = self.y[known]
        for column, part in zip(self.features.columns, self.features.parts, strict=True):
            cells = part[known].argmax(1) if column.kind == "category" else part[known, 0]
            values, codes = np.unique(cells, return_inverse=True)
            pairs = np.unique(codes * len(known) + y)
            if y.any() and len(pairs) == len(values) <= len(known) / _MIN_ROWS:
                self.notices.append(
                    f"column {column.name!r} tells {label!r}, as all rows of a value have one "
                    "class: --ignore it if it is not known before"
                )

    def split_fields(self, names: Sequence[object], first: int = 0) -> dict[str, Any]:
        """Return the rows of each part by field of a dataset, from the number of the first row."""
        if "split" not in self.roles:
            return {}
        name = self.roles["split"]
        kinds, (codes,) = encode({name: blank_markers(self.columns[name])})
        parts = [_PARTS.get(str(kind).casefold(), "") for kind in kinds.tolist()]
        if "" in parts:
            kind = kinds.tolist()[parts.index("")]
            raise ValueError(
                f"column {name!r}: expected train, val, test or nothing, got {kind!r:.80}"
            )
        of_rows = np.array([*parts, ""])[codes]
        if (rows := np.flatnonzero((of_rows != "") & self.is_unlabelled)).size:
            where = f"column {name!r}: {self.place(rows[0])} ({names[rows[0]]!r})"
            problem = f"{where} has {kinds.tolist()[codes[rows[0]]]!r}, but no label"
            if (of_rows[rows] != "test_idx").any():
                raise ValueError(problem)
            # Rows whose labels a competition keeps for itself.
            self.notices.append(f"{problem}; {rows.size:,} rows are such, and are not tested on")
            of_rows[rows] = ""
        return {part: np.flatnonzero(of_rows == part) + first for part in {*of_rows} - {""}}

    def fields(self, names: np.ndarray) -> dict[str, Any]:
        """Return the fields of a dataset that are of its nodes."""
        return {
            "num_nodes": len(self.y),
            "x": self.features.x,
            "feature_names": self.features.feature_names,
            "y": self.y,
            "label_names": self.label_names,
            "node_names": tuple(map(str, names.tolist())),
            "node_time": self.time,
            **self.split_fields(names.tolist()),
        }


@dataclass
class EdgeTable(FileTable):
    """Table with a row for each edge, or for each node of a hyperedge."""

    weight: np.ndarray | None = None
    features: np.ndarray | None = None
    recipe: dict[str, Any] = field(default_factory=dict)  # of the features and the times

    @classmethod
    def read(
        cls,
        path: Path,
        options: TableOptions,
        uses: Sequence[str] = (),
        ends: tuple[str, str] = ("", ""),
        unit: str = "",
    ) -> EdgeTable:
        """Read a table of edges between two types.

        `uses` are roles of columns besides ends, `unit` is that of the times of other tables.
        """
        words = end_words(*ends)

        def roles_of(columns: Sequence[str]) -> dict[str, str]:
            typed = ends not in (("", ""), ("", HYPEREDGES))
            known = (options.column(role, columns, lenient=typed) for role in ("src", "dst"))
            roles = dict(zip(words[0], find_ends(columns, words, *known), strict=True))
            others = [name for name in columns if name not in (*roles.values(), *options.ignore)]
            for role in uses:
                name = options.column(role, columns)
                roles[role] = find(others, _WORDS[role], role) if name is None else name
            return {role: name for role, name in roles.items() if name}

        with errors_in(path):
            self = cls.read_file(path, (ends[0], "", ends[1]), roles_of, words[0])
            names = (self.roles.get(role) for role in (*words[0], "relation"))
            self.details |= dict.fromkeys(filter(None, names), "ids")
            if name := self.roles.get("weight", ""):
                reading = read_kind(name, self.columns[name], self.place, "number")
                values, how = reading.values, f" {reading.how}" * bool(reading.how)
                if (rows := np.flatnonzero(~np.isfinite(values))).size:
                    raise ValueError(
                        f"column {name!r}: {self.place(rows[0])} has no finite number; {rows.size} "
                        f"of {len(values)} rows are such"
                    )
                self.weight, self.details[name] = self.rounded(name, values), f"edge weights{how}"
            if name := self.roles.get("time", ""):
                try:
                    self.read_times(unit, options.plan.get("edges", {}).get("time", ""))
                    self.details[name] = f"edge times, {self.unit}"
                except ValueError as error:  # such as of durations
                    self.notices.append(f"{error}; times are not used")
            if uses and not any(ends):  # edges between types have no features
                self._read_features(options, {*self.roles.values(), *options.ignore})
        return self

    def _read_features(self, options: TableOptions, others: set[str]) -> None:
        """Read the columns, but for others, as features of edges."""
        columns = {name: self.columns[name] for name in sorted(self.columns.keys() - others)}
        features = TableFeatures(
            self.place, Memory(self.path), max_values=_MAX_EDGE_VALUES, is_lenient=True
        )
        if plan := options.plan.get("edges"):
            features.follow(columns, plan)
        else:
            features.read(columns, options.fill_missing, options.text)
        for name, text in features.details.items():
            is_unused = text.startswith("not used")
            self.details[name] = text if is_unused else f"feature of edges: {text}"
        self.notices += features.notices
        self.features = features.x
        self.recipe = {**features.recipe, "time": self.form}


def number_ends(
    nodes: Mapping[str, NodeTable], edges: Sequence[EdgeTable]
) -> tuple[dict[str, np.ndarray], list[list[np.ndarray]]]:
    """Number the ends of edges.

    Nodes of types that have no table are the names that edges have.

    Returns:
        The names by type, and for each table of edges the numbers of its ends.

    Raises:
        ValueError: An edge names no node; the error names its line.
    """
    columns = [[*table.ids.values()] for table in edges]
    with errors_in(edges[0].path.parent):
        names = assign_ids(edges, nodes)
    pairs = [[*table.ids.values()] for table in edges]
    for table, ids, cells in zip(edges, pairs, columns, strict=True):
        unknown = np.stack(ids) < 0
        if not (is_unknown := unknown.any(0)).any():
            continue
        row = int(np.flatnonzero(is_unknown)[0])
        side = int(unknown[:, row].argmax())
        name = [*table.roles.values()][side]
        value = encode({name: cells[side][row : row + 1]})[0].tolist()
        problem = (
            f"the {name} {value[0]!r:.80}, which is the id of no node" if value else f"no {name}"
        )
        count = f"{is_unknown.sum():,} of {unknown.shape[1]:,} rows are such"
        problem = f"{table.place(row)} has {problem}; {count}"
        if is_unknown.mean() <= MAX_TYPOS:
            table.notices.append(f"{problem}, and left out")
            table.is_kept = rows = np.flatnonzero(~is_unknown)
            for part in ("weight", "features", "time"):
                if (values := getattr(table, part)) is not None:
                    setattr(table, part, values[rows])
            ids[:] = [column[rows] for column in ids]
            continue
        kind = table.key[2 * side] if table.key[2 * side] in nodes else table.key[0]
        file, known = nodes.get(kind, table).path, next(iter(names[kind].tolist()), "")
        add = f"add the nodes to {file.name}, where ids are such as {known!r:.80}, or "
        raise ValueError(f"{file}: {problem}: {add * (kind in nodes)}leave the rows out")
    return names, pairs


def finished(
    dataset: D,
    tables: Mapping[str, FileTable],
    options: TableOptions,
    recipe: Mapping[str, Any],
    notices: Sequence[str] = (),
) -> D:
    """Set on a dataset what its tables say, which are by what descriptions call them.

    Raises:
        ValueError: A column to ignore, or one that is named for a role, is in no table.
    """
    columns = dict.fromkeys(name for table in tables.values() for name in table.details)
    named = [] if options.recipe else [*options.names.items()]
    for option, name in [*named, *(("ignore", name) for name in options.ignore)]:
        if name not in columns:
            raise ValueError(f"{option}: {name!r} is none of the columns {', '.join(columns)}")
    details: dict[str, str] = {}
    all_notices = [*notices]
    for title, table in tables.items():
        prefix, suffix = (f"{title}: ", f" of {title}") if title else ("", "")
        details |= {f"{name}{suffix}": text for name, text in table.details.items()}
        given = options.names.values()
        guessed = {role: name for role, name in table.roles.items() if name not in given}
        all_notices += taken_as(table.title, guessed)
        all_notices += [f"{prefix}{notice}" for notice in table.notices]
    dataset._set("columns", tuple(details.items()))
    dataset._set("unused", tuple(name for name in details if details[name].startswith("not used")))
    dataset._set("notices", tuple(all_notices))
    roles = {"roles": options.names} if options.names else {}
    of_edges = [table.recipe for table in tables.values() if isinstance(table, EdgeTable)]
    edges = {"edges": of_edges[0]} if len(of_edges) == 1 and of_edges[0] else {}
    dataset._set("table_recipe", json.dumps({**recipe, **edges, **roles}))
    return dataset
