"""Kinds of columns: numbers, times, categories, free text, indices; one reader for all tables.

A *word* is a cell of text without the blanks around it. Words are parsed once for all cells that
have them. A *typo* is a cell that is none of what almost all cells of its column are.
"""

from __future__ import annotations

import datetime
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from jax_gnn.convert._columns import Column, encode, is_missing, normalized, numbers, typed
from jax_gnn.convert._data import objects

Kind: TypeAlias = Literal["number", "time", "category", "text", "index", "empty"]

LABEL_MARKERS = frozenset({"", "na", "n/a", "#n/a", "<na>", "n.a.", "null", "(null)", "\\n", "nan"})
"""Words that stand for missing labels, in lower case: "none" may be a class."""
MARKERS = LABEL_MARKERS | {"none", "-", "--", "?", ".", "nat", "missing", "unknown", "#div/0!"}
"""Words that stand for missing numbers and times, in lower case."""
FILLS = "mean", "median", "zero", "indicator"
"""Ways to fill missing numbers; "indicator" is the mean, and a column that says which."""
MAX_VALUES = 256
"""Largest number of values of a category; a column with more of them is free text."""
MAX_TYPOS = 0.01
"""Largest share of typos that count as missing; up to `_MIXED`, typos are an error."""
_MIXED = 0.1
_FEW = 12  # numbers besides which a repeated word is a value of a category, such as "3+"
_MIN_ROWS = 10  # below this number of rows, 0, 1, 2 may be numbers by chance
_SAMPLE = 50  # words on which a parser is tried before it parses all
_MICROSECONDS = 10**6
_EPOCH = datetime.datetime(1970, 1, 1)

_SIGNS = "%", "$", "€", "£", "¥", "₹", "USD", "EUR", "GBP", "CHF"
_WITH_COMMAS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?").fullmatch
_DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d*)(,\d*)?").fullmatch
_GAP = re.compile("(?<=[0-9])[ '\u2019\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
_ISO = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?", re.ASCII).fullmatch
_DATES = {
    "year-month-day": "%Y-%m-%d",
    "year-month": "%Y-%m",
    "year/month/day": "%Y/%m/%d",
    "day.month.year": "%d.%m.%Y",
    "month/day/year": "%m/%d/%Y",
    "day/month/year": "%d/%m/%Y",
    "day-month-year": "%d-%m-%Y",
    "day month year": "%d %b %Y",
    "day-month-year by name": "%d-%b-%Y",
    "day month year by name": "%d %B %Y",
    "month day, year": "%b %d, %Y",
    "month day, year by name": "%B %d, %Y",
}
_DATES |= {f"{how} of two digits": form.lower() for how, form in [*_DATES.items()][3:6]}
_CLOCKS = "", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p"
_INDEX_NAME = re.compile(r"|(?i:id|index|idx|uuid|guid|unnamed: 0|rowid|.*[_ .-]id)").fullmatch


class Reading(NamedTuple):
    """A column as it was understood.

    Attributes:
        kind: Kind of the column.
        values: Numbers, ``(rows, *features)``, NaN if missing; times in microseconds since 1970 in
            UTC, float64; words, None if missing, for all other kinds.
        how: Description of how cells were read, if not plainly.
        num_typos: Number of cells that count as missing, as they were not understood.
        typos: Description of these cells and where they are; "" without any.
    """

    kind: Kind
    values: np.ndarray
    how: str = ""
    num_typos: int = 0
    typos: str = ""

    @property
    def form(self) -> str:
        """The `how` of the cells, without what else might fit."""
        return self.how.partition(" (")[0]

    @property
    def missing(self) -> int:
        """Number of cells that are missing, typos included."""
        if self.values.dtype == object:
            return sum(value is None for value in self.values.tolist())
        return int(np.isnan(self.values).sum())


def read_kind(
    name: str,
    values: Column,
    place: Callable[[int], str],
    kind: Kind | None = None,
    form: str = "",
) -> Reading:
    """Return what a column of a table holds.

    Args:
        name: Name of the column, which tells indices from numbers.
        values: The column, as `read_columns` returns it.
        place: Description of the place of a row, for errors.
        kind: Kind of the column in an earlier table; None finds the kind.
        form: `Reading.form` of the column in an earlier table, which has priority: 2/1/2024 is in
            January if days were first there.

    Raises:
        ValueError: More than 1 % of the cells are typos; the error names the first three.
    """
    if kind in (None, "time") and (times := _times(values)) is not None:
        return Reading("time", times)
    if kind in (None, "number") and (array := numbers(values)) is not None:
        present = ~np.isnan(array)
        if not present.any() and array.ndim == 1 and kind is None:
            return Reading("empty", array)
        is_index = kind is None and _is_index(name, array)
        return Reading("index" if is_index else "number", array)
    arrow = not isinstance(values, np.ndarray)  # numbers its values faster than Python does
    names, (codes,) = encode({name: values if arrow else as_words(values)})
    words = [str(word).strip() for word in names.tolist()]
    if kind not in ("category", "text", "index"):
        parsed = _parsed(name, words, codes, place, kind, form)
        if parsed is not None:
            is_index = kind is None and parsed.kind == "number" and _is_index(name, parsed.values)
            return parsed._replace(kind="index") if is_index else parsed
    distinct, rows = len(words), len(codes)
    cells = objects([*(word or None for word in words), None])[codes]
    if kind is None:
        is_text = distinct > MAX_VALUES or (rows >= 2 * _MIN_ROWS and distinct > rows / 2)
        kind = "text" if is_text else "category"
        kind = "index" if distinct == rows and _INDEX_NAME(name) else kind
    return Reading(kind, cells)


def blank_markers(values: Column) -> np.ndarray:
    """Return a column of labels or parts with None for words that stand for missing ones."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    words = as_words(values).tolist()
    cells = ["" if word is None or word.casefold() in LABEL_MARKERS else word for word in words]
    return typed(cells, True)  # the numbers among them are integers


def as_words(values: Column) -> np.ndarray:
    """Return the cells of a column as text without blanks around it, None if missing."""
    cells = values.tolist() if isinstance(values, np.ndarray) else values.to_pylist()
    words = (None if cell is None else str(cell).strip() for cell in map(normalized, cells))
    return objects([word or None for word in words])


def _is_index(name: str, array: np.ndarray) -> bool:
    """Return whether numbers only number the rows."""
    is_whole = np.isfinite(array) & (array == np.floor(array))
    if array.ndim != 1 or len(array) < 2 or not is_whole.all():
        return False
    counts_rows = np.array_equal(array - array[0], np.arange(len(array))) and array[0] in (0, 1)
    has_name = _INDEX_NAME(name) is not None and len(np.unique(array)) == len(array)
    return has_name or bool(len(array) >= _MIN_ROWS and counts_rows)


# --- Text that is numbers or times ----------------------------------------------------------------


def _parsed(
    name: str,
    words: Sequence[str],
    codes: np.ndarray,
    place: Callable[[int], str],
    kind: Kind | None,
    form: str,
) -> Reading | None:
    """Return words as numbers or times; None if they are neither, unless the kind is known."""
    words = [word.replace("\N{MINUS SIGN}", "-") for word in words]
    is_marker = np.array([word.casefold() in MARKERS for word in words], bool)
    candidates = [word for word, marker in zip(words, is_marker, strict=True) if not marker]
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    if not candidates:
        kind = kind or "empty"
        return Reading(kind, np.full(len(codes), np.nan))
    best: tuple[int, Kind, str, np.ndarray] | None = None
    alternatives: list[str] = []
    # The first of equally good parsers is taken: that of the form, if there is one.
    parsers = sorted(_parsers(candidates), key=lambda item: bool(form) and item[1] != form)
    for found, how, parse in parsers:
        if best is not None and best[0] == 0 and best[2] == form:
            break  # plain cells, or the form of the training
        sample = candidates[:: max(1, len(candidates) // _SAMPLE)]
        refused = sum(map(math.isnan, map(parse, sample)))
        if kind not in (None, found) or refused > len(sample) * (0.5 if kind is None else 0.99):
            continue
        array = np.array([math.nan if m else parse(w) for w, m in zip(words, is_marker)])  # noqa: B905
        bad = int(counts[np.isnan(array) & ~is_marker].sum())
        if bad == 0 and best is not None and best[0] == 0:
            alternatives.append(how)
        elif best is None or bad < best[0]:
            best = bad, found, how, array
    if best is None and kind is None:
        return None
    if best is None:
        best = len(codes), kind or "number", "", np.full(len(words), np.nan)
    bad, found, how, array = best
    is_bad = np.append(np.isnan(array) & ~is_marker, False)
    # A word that many cells have beside few numbers, such as "3+", is a value and no typo.
    repeated = bad > is_bad.sum() and (~np.isnan(array)).sum() <= _FEW
    if kind is None and (bad > _MIXED * len(codes) or (repeated and bad > MAX_TYPOS * len(codes))):
        return None
    rows = np.flatnonzero(is_bad[codes])[:3].tolist()
    typos = ", ".join(f"{place(row)} has {words[codes[row]]!r:.40}" for row in rows)
    if bad > MAX_TYPOS * len(codes):
        raise ValueError(
            f"column {name!r}: {bad} of {len(codes)} cells are no {found}s: {typos}; correct them, "
            "or ignore the column"
        )
    if alternatives and how != form and ("/" in how or "thousands" in how):
        how += f" ({alternatives[0]} fits as well)"
    if typos:
        typos += f" and {bad - 3} more" * (bad > 3) + f", no {found}: counted as missing"
    return Reading(found, np.append(array, np.nan)[codes], how, bad, typos)


def _parsers(words: Sequence[str]) -> Iterator[tuple[Kind, str, Callable[[str], float]]]:
    """Yield kinds, descriptions and parsers that some of the words suggest; NaN is a refusal."""
    yield "number", "", _number
    text = "".join(words)
    signs = "", *(sign for sign in _SIGNS if sign in text)
    has_separators = "," in text or any(map(_GAP.search, words))
    for commas in ("thousands separators", "decimal commas")[: 1 + ("," in text)]:
        for sign in signs:
            how = " and ".join([*[commas] * has_separators, *[sign] * bool(sign)])
            parse = functools.partial(_decorated, sign, commas == "decimal commas")
            if how:
                yield "number", f"with {how}", parse
    if any(char.isdigit() for char in text):
        yield "time", "", functools.partial(_time, "")
        for how, date in _DATES.items():
            for clock in _CLOCKS:
                yield "time", how, functools.partial(_time, date + clock)


def _number(word: str) -> float:
    if "_" in word or not word.isascii():  # float() takes 1_0 and the digits of all scripts
        return math.nan
    try:
        return float(word)
    except ValueError:
        return math.nan


def _decorated(sign: str, decimal_commas: bool, word: str) -> float:
    """Return a number with thousands separators or a decimal comma, and a sign at either end."""
    if sign:
        minus = word.startswith("-") and not word.endswith(sign)
        body = word[1:].strip() if minus else word
        if body.startswith(sign):
            word = body.removeprefix(sign)
        elif body.endswith(sign):
            word = body.removesuffix(sign)
        else:
            return math.nan
        word = "-" * minus + word.strip()
    word = _GAP.sub("", word)
    if decimal_commas:
        is_such = _DECIMAL_COMMA(word)
        return _number(word.replace(".", "").replace(",", ".")) if is_such else math.nan
    return _number(word.replace(",", "") if _WITH_COMMAS(word) else word)


def _time(form: str, word: str) -> float:
    """Return microseconds since 1970 of a time in a form, or in ISO 8601 without one."""
    try:
        if form:
            return _since_epoch(datetime.datetime.strptime(word, form))
        iso = _ISO(word) and word.removesuffix(" UTC").replace(" +", "+")
        return _since_epoch(datetime.datetime.fromisoformat(iso or ""))
    except (ValueError, OverflowError):  # a zone may lead beyond the year 9999
        return math.nan


def _since_epoch(time: datetime.date) -> float:
    """Return microseconds since 1970; times without a zone are taken for UTC."""
    if not isinstance(time, datetime.datetime):
        time = datetime.datetime.combine(time, datetime.time())
    if time.tzinfo is not None:
        time = time.astimezone(datetime.UTC).replace(tzinfo=None)
    return float((time - _EPOCH) // datetime.timedelta(microseconds=1))


def _times(values: Column) -> np.ndarray | None:
    """Return a column of times in microseconds since 1970; None if it holds anything else."""
    if not isinstance(values, np.ndarray):
        return None
    if values.dtype.kind == "M":
        microseconds = values.astype("datetime64[us]").astype(np.int64).astype(np.float64)
        return np.where(np.isnat(values), np.nan, microseconds)
    if values.dtype != object:
        return None
    cells = [None if is_missing(cell) else cell for cell in values.tolist()]
    present = [cell for cell in cells if cell is not None]
    if not present or not all(isinstance(cell, datetime.date) for cell in present):
        return None
    return np.array([math.nan if cell is None else _since_epoch(cell) for cell in cells])


def fill_value(array: np.ndarray, fill: str) -> float:
    """Return the number that takes the place of missing ones: mean, median or zero."""
    present = array[np.isfinite(array)]
    if fill == "zero" or not present.size:
        return 0.0
    return float(np.median(present) if fill == "median" else present.mean(dtype=np.float64))


def whole_seconds(microseconds: np.ndarray) -> tuple[np.ndarray, str]:
    """Return times as integers, or floats if some are missing, and their unit in words."""
    present = ~np.isnan(microseconds)
    is_whole = (microseconds[present] % _MICROSECONDS == 0).all()
    scaled = microseconds / _MICROSECONDS if is_whole else microseconds
    unit = "seconds" if is_whole else "microseconds"
    return (scaled.astype(np.int64) if present.all() else scaled), f"{unit} since 1970 (UTC)"
