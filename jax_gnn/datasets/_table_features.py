"""Columns of a table of nodes or edges as features, which later tables get in the same way."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from jax_gnn._core.files import Memory
from jax_gnn.convert._columns import Column, numbers
from jax_gnn.convert._kinds import Kind, Reading, fill_value, read_kind

HASHED = 64
"""Number of features of a column of free text, of which a word counts in one."""
_DAY = 86_400 * 10**6  # microseconds
_LISTED = 5

Place = Callable[[int], str]


@dataclass(frozen=True)
class ColumnFeatures:
    """Description of the features that a column of a table becomes.

    Attributes:
        name: Name of the column.
        kind: Kind of the column.
        fill: Number that takes the place of missing ones, in units of the feature.
        indicator: Whether another feature says which numbers are missing.
        origin: Time from which days are counted, in microseconds since 1970.
        values: Values of a category.
        width: Number of numbers in a cell.
        form: Form of the cells, see `Reading.form`.
    """

    name: str
    kind: Kind
    fill: float = 0.0
    indicator: bool = False
    origin: float = 0.0
    values: tuple[str, ...] = ()
    width: int = 1
    form: str = ""

    @classmethod
    def of(cls, name: str, reading: Reading, fill: str) -> ColumnFeatures:
        """Describe the features of a column of the table of a training."""
        if reading.kind == "category":
            words = {word for word in reading.values.tolist() if word is not None}
            return cls(name, "category", values=tuple(sorted(words)))
        if reading.kind == "text":
            return cls(name, "text", width=HASHED)
        array, origin = reading.values, 0.0
        if reading.kind == "time":
            origin = float(np.nanmin(array) // _DAY * _DAY)
            array = (array - origin) / _DAY
        return cls(
            name,
            reading.kind,
            fill=fill_value(array, fill),
            indicator=fill == "indicator" and bool(reading.missing),
            origin=origin,
            width=int(np.prod(array.shape[1:])),
            form=reading.form,
        )

    @property
    def feature_names(self) -> list[str]:
        """Names of the features: ``KEY=VALUE`` for a value of a category."""
        if self.kind == "category":
            return [f"{self.name}={value}" for value in self.values]
        names = [self.name]
        if self.kind == "text" or self.width > 1:
            names = [f"{self.name}#{i}" for i in range(self.width)]
        return [*names, *[f"{self.name} is missing"] * self.indicator]

    def features(self, reading: Reading) -> np.ndarray:
        """Return ``(rows, features)`` float32 of a column of this kind."""
        cells, rows = reading.values, len(reading.values)
        if self.kind == "category":
            number = {value: i for i, value in enumerate(self.values)}
            codes = np.array([number.get(cell, -1) for cell in cells.tolist()], np.int64)
            return np.asarray(codes[:, None] == np.arange(len(self.values)), np.float32)
        if self.kind == "text":
            counts = np.zeros((rows, self.width), np.float32)
            for row, cell in enumerate(cells.tolist()):
                for word in re.findall(r"\w+", (cell or "").casefold()):
                    counts[row, zlib.crc32(word.encode()) % self.width] += 1
            counts /= np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1)
            return counts
        array = cells.reshape(rows, self.width)
        if self.kind == "time":
            array = (array - self.origin) / _DAY
        missing = np.isnan(array)
        with np.errstate(over="ignore"):  # large numbers become inf, which datasets refuse
            filled = np.where(missing, self.fill, array).astype(np.float32)
        flags = [missing.any(axis=1, keepdims=True).astype(np.float32)] * self.indicator
        return np.concatenate([filled, *flags], axis=1)


@dataclass
class TableFeatures:
    """Features of a table of nodes or edges, and what a reader of the table should know of them.

    Attributes:
        place: Description of the place of a row, for notices and errors.
        memory: Budget of memory.
        columns: Descriptions of the columns that become features.
        parts: Features of each of these columns, ``(rows, features)``.
        details: Description of each column of the table, by name.
        notices: Sentences about typos, missing numbers and unknown values.
        filled: Descriptions of missing cells that were filled.
        max_values: Largest number of values of a category that becomes features; None for all.
        is_lenient: Whether columns that cannot be read are left out, and all of a later table that
            lacks one.
    """

    place: Place
    memory: Memory
    columns: list[ColumnFeatures] = field(default_factory=list)
    parts: list[np.ndarray] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)
    max_values: int | None = None
    is_lenient: bool = False

    @property
    def x(self) -> np.ndarray | None:
        """Features of all columns, ``(rows, features)`` float32; None without any."""
        return np.concatenate(self.parts, axis=1) if self.parts else None

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the features; None without any."""
        return tuple(name for column in self.columns for name in column.feature_names) or None

    @property
    def recipe(self) -> dict[str, Any]:
        """Description of the columns, for tables to predict on."""
        unused = [name for name, text in self.details.items() if text.startswith("not used")]
        return {"columns": [asdict(column) for column in self.columns], "unused": unused}

    def read(self, table: Mapping[str, Column], fill: str, text: str) -> None:
        """Read the columns of a table of a training, by options as of `load_csv`."""
        for name, values in table.items():
            try:
                reading = read_kind(name, values, self.place)
                if not (reason := self._obstacle(reading, text)):
                    self._add(ColumnFeatures.of(name, reading, fill), reading)
            except ValueError as error:
                if not self.is_lenient:
                    raise
                reason = str(error)
            if reason:
                self.details[name] = f"not used: {reason}"
        how = {
            "zero": "zero",
            "indicator": "the mean of their column, beside a feature that says which",
        }.get(fill, f"the {fill} of their column")
        self._tell_filled(how, "; --fill-missing has other choices")

    def _obstacle(self, reading: Reading, text: str) -> str:
        """Return why a column becomes no features; "" if it does."""
        if reading.kind == "index":
            return "an index, which numbers or names the rows"
        if reading.kind == "empty":
            return "nothing but missing cells"
        if reading.kind in ("number", "time"):
            return ""
        count, is_text = len({*reading.values.tolist()} - {None}), reading.kind == "text"
        if is_text and text == "drop":
            return f"free text of {count:,} values; --text hash takes its words"
        if not is_text and self.max_values is not None and count > self.max_values:
            return f"a category of {count:,} values, more than the {self.max_values} of edges"
        return ""

    def follow(self, table: Mapping[str, Column], plan: Mapping[str, Any]) -> None:
        """Read the columns of a later table; `plan` is the `recipe` of that of the training."""
        known = {column["name"]: column for column in plan["columns"]}
        if missing := sorted(known.keys() - table.keys()):
            problem = f"lacks the columns {', '.join(map(repr, missing))}, which the model takes"
            if not self.is_lenient:
                raise ValueError(problem)
            self.notices.append(f"{problem}: there are no features")
            return
        for name, fields in known.items():
            column = ColumnFeatures(**{**fields, "values": tuple(fields["values"])})
            reading = read_kind(name, table[name], self.place, column.kind, column.form)
            self._add(column, reading)
        unused = [name for name in table if name not in known]
        self.details |= dict.fromkeys(unused, "not used: the model does not take it")
        if unknown := [name for name in unused if name not in plan["unused"]]:
            self.notices.append(
                "there are columns that the model does not know, which do not count: "
                + ", ".join(unknown)
            )
        self._tell_filled("those of the training", "")

    def _tell_filled(self, how: str, advice: str) -> None:
        """Add a notice of the missing numbers that were filled."""
        if self.filled:
            counts = ", ".join(self.filled)
            self.notices.append(f"missing numbers are filled with {how}: {counts}{advice}")

    def _add(self, column: ColumnFeatures, reading: Reading) -> None:
        """Add the features of a column."""
        name, place, rows = column.name, self.place, len(reading.values)
        self.memory.claim(f"column {name!r}", 8 * rows * len(column.feature_names))
        features = column.features(reading)
        if (is_infinite := np.isinf(features).any(axis=1)).any():
            where = place(int(is_infinite.argmax()))
            raise ValueError(
                f"column {name!r}: {where} has an infinite number; float32 has none beyond 3.4e38"
            )
        self.columns.append(column)
        self.parts.append(features)
        if reading.typos:
            self.notices.append(f"column {name!r}: {reading.typos}")
        if reading.how.startswith("with decimal commas"):
            self.notices.append(f"column {name!r}: numbers {reading.how}")
        self.notices += rounding_of(name, reading.values) if column.kind == "number" else ()
        if column.kind == "category":
            cells = reading.values.tolist()
            known = {*column.values, None}
            if unknown := [cell for cell in dict.fromkeys(cells) if cell not in known]:
                first = ((cell, place(cells.index(cell))) for cell in unknown[:_LISTED])
                listed = ", ".join(f"{cell!r:.40} ({where})" for cell, where in first)
                self.notices.append(
                    f"column {name!r} has {len(unknown)} values that the model does not know, "
                    f"which are zeros in all its features: {listed}"
                )
        self.details[name] = _description(column, reading)
        if reading.missing and column.kind in ("number", "time"):
            self.filled.append(f"{name} ({reading.missing:,})")


def rounding_of(name: str, values: np.ndarray) -> list[str]:
    """Return a sentence about a column of numbers that float32 rounds, if it does."""
    array = numbers(values)
    assert array is not None
    told = f"column {name!r} has numbers beyond 2**24, which float32 rounds: subtract the least"
    return [f"{told}, or divide"] * (array.dtype != np.float32)


def _description(column: ColumnFeatures, reading: Reading) -> str:
    """Describe a column and its features in one line."""
    array, missing = reading.values, reading.missing
    how = f" {reading.how}" * bool(reading.how)
    lacking = f"; {missing:,} of {len(array):,} missing" * bool(missing)
    if column.kind == "category":
        shown = ", ".join(column.values[:_LISTED]) + ", …" * (len(column.values) > _LISTED)
        return f"category of {len(column.values)} values ({shown}){lacking and lacking + ', zeros'}"
    if column.kind == "text":
        return f"free text: {column.width} counts of words by hash{lacking}"
    if column.width > 1:
        return f"{column.width} numbers each{lacking}"
    lacking += f", filled with {column.fill:.6g}" * bool(missing)
    lacking += ", and a feature that says which" * column.indicator
    lacking += f"; {reading.num_typos} of them typos" * bool(reading.typos)
    if missing == len(array):
        return f"{column.kind}{lacking}"
    low, high = np.nanmin(array), np.nanmax(array)
    if column.kind == "number":
        return f"number{how}, {low:.6g} to {high:.6g}{lacking}"
    days = [np.datetime64(int(time), "us").astype("datetime64[D]") for time in (low, high)]
    origin = np.datetime64(int(column.origin), "us").astype("datetime64[D]")
    form = f" ({reading.how})" * bool(reading.how)
    return f"time{form}, {days[0]} to {days[1]}: days since {origin}{lacking}"
