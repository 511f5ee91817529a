"""Columns of tables, wherever they come from: arrays of numpy, or chunked arrays of Arrow."""

from __future__ import annotations

import csv
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jax_gnn.convert._data import column, objects, package

WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})").fullmatch
"""An integer of 64 bits as it is printed: "007" is a name, or a number elsewhere."""


def read_columns(name: str, table: Any, names: Collection[str]) -> dict[str, Any]:
    """The columns of a table, by name, of one length.

    Args:
        name: what errors call the table.
        table: a path of a CSV or Parquet file; a mapping of columns; whatever has the Arrow C
            stream interface; a data frame.
        names: columns that hold names, of which a CSV file's "007" is one.

    Raises:
        TypeError: it is none of these.
        ValueError: columns differ in length, or two have one name.
    """
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        if path.suffix == ".parquet":
            table = package("pyarrow.parquet", "pyarrow").read_table(path)
        else:
            return _read_csv(path, names)
    if isinstance(table, Mapping):
        columns = {str(key): _as_column(values) for key, values in table.items()}
    elif hasattr(table, "__arrow_c_stream__") and (arrow := _arrow(table)) is not None:
        _check_header(name, arrow.column_names)
        columns = dict(zip(arrow.column_names, map(_simple, arrow.columns), strict=True))
    elif hasattr(table, "columns") and hasattr(table, "__getitem__"):
        _check_header(name, list(table.columns))
        columns = {str(key): _as_column(table[key]) for key in table.columns}
    else:
        raise TypeError(
            f"{name} must be a path, a mapping of columns, a data frame or an Arrow stream, got "
            f"{type(table).__name__}"
        )
    lengths = {key: len(values) for key, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name} must have columns of one length, got {lengths}")
    return columns


def _arrow(table: Any) -> Any:
    """A table of pyarrow; None where that is missing, and the table can do without."""
    try:
        return package("pyarrow", "pyarrow").table(table)
    except ImportError:
        if hasattr(table, "columns") and hasattr(table, "__getitem__"):
            return None
        raise


def _as_column(values: Any) -> Any:
    if hasattr(values, "to_numpy") and not _is_arrow(values):
        values = values.to_numpy()  # of a data frame
    if _is_arrow(values):
        return _simple(values)
    return np.asarray(values) if hasattr(values, "dtype") else column(list(values))


def _check_header(name: str, header: Sequence[Any]) -> None:
    twice = [key for key, count in Counter(header).items() if count > 1]
    if twice:
        raise ValueError(f"{name} must have columns of different names, got {twice[0]!r} twice")


# --- CSV ------------------------------------------------------------------------------------------


def _read_csv(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Columns of a CSV file with a header; in TSV files tabs separate. An empty cell is missing."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, "excel-tab" if path.suffix == ".tsv" else "excel")
        try:
            header = next(rows, [])
            _check_header(str(path), header)
            cells = []
            for row in rows:
                if len(row) != len(header):
                    if not row:
                        continue
                    raise ValueError(
                        f"{path}:{rows.line_num} must have {len(header)} cells as the header has, "
                        f"got {len(row)}"
                    )
                cells.append(row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}:{rows.line_num} is no CSV in UTF-8: {error}") from error
    values: Any = zip(*cells, strict=True) if cells else [()] * len(header)
    return {k: _typed(each, k in names) for k, each in zip(header, values, strict=True)}


def _typed(cells: Sequence[str], is_name: bool) -> np.ndarray:
    """Integers, else, but for names, numbers, else text; None for what is missing among objects."""
    if all(WHOLE(cell) for cell in cells if cell):
        return column([int(cell) if cell else None for cell in cells])
    if not is_name and not any("_" in cell for cell in cells):
        try:
            return np.array([float(cell or "nan") for cell in cells])
        except ValueError:
            pass
    return objects([cell or None for cell in cells])


# --- Arrow ----------------------------------------------------------------------------------------


def _is_arrow(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] == "pyarrow"


def _simple(values: Any) -> Any:
    """An array of numpy, without a copy where it may be; text remains Arrow's."""
    import pyarrow

    if not isinstance(values, pyarrow.ChunkedArray):
        values = pyarrow.chunked_array([values])
    kind, types = values.type, pyarrow.types
    if types.is_dictionary(kind):
        return values.cast(kind.value_type) if types.is_integer(kind.value_type) else values
    if types.is_string(kind) or types.is_large_string(kind):
        return values
    if getattr(types, "is_string_view", lambda _: False)(kind):
        return values.cast(pyarrow.large_string())
    if types.is_fixed_size_list(kind) and values.null_count == 0:
        rows = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in values.chunks]
        return np.concatenate([np.zeros(0, np.float32)[:0], *rows]).reshape(-1, kind.list_size)
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if numbers and (values.null_count == 0 or types.is_floating(kind)):
        return values.to_numpy()
    return column(values.to_pylist())


# --- Numbers and names ----------------------------------------------------------------------------


class Encoded(NamedTuple):
    """A column as numbers of its values: ``values[codes]``, where -1 is missing."""

    values: np.ndarray
    codes: np.ndarray


def floats(values: Any) -> np.ndarray | None:
    """A column as float32, ``(rows, *features)``, NaN for what is missing; None if it is text."""
    if _is_arrow(values):
        return None
    if values.dtype == object:
        values = column([math.nan if is_missing(value) else value for value in values.tolist()])
    if values.dtype.kind not in "biuf":
        return None
    return values.astype(np.float32)


def is_missing(value: Any) -> bool:
    """Whether a value of Python stands for none."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # pandas'


def encode(name: str, values: Any) -> Encoded:
    """Numbers the different values of a column in their order, text by its code points.

    Raises:
        TypeError: values have no order among each other.
        ValueError: the column is not one-dimensional.
    """
    if _is_arrow(values):
        return _encode_arrow(values)
    if values.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {values.shape}")
    if values.dtype.kind in "iu":
        return _encode_integers(values)
    if values.dtype.kind in "fb":
        found, codes = np.unique(values, return_inverse=True)
        missing = np.isnan(found) if found.dtype.kind == "f" else np.zeros(len(found), bool)
        codes = np.where(missing[codes], -1, codes) if len(found) else codes
        return Encoded(found[~missing], codes)  # NaN is last
    listed = values.tolist()
    number = {value: -1 for value in listed if not is_missing(value)}
    found = ordered(name, number)
    number = {value: i for i, value in enumerate(found.tolist())}
    codes = np.fromiter((number.get(value, -1) for value in listed), np.int32, len(listed))
    return Encoded(found, codes)


def ordered(name: str, values: Collection[Any]) -> np.ndarray:
    """Different values of Python in order: of integers int64, else objects."""
    try:
        found = sorted(values)
    except TypeError as error:
        kinds = " and ".join(sorted({type(value).__name__ for value in values}))
        raise TypeError(f"{name} must be of one type, got {kinds}") from error
    array = column(found)
    return array if array.dtype.kind in "iu" and array.ndim == 1 else objects(found)


def _encode_integers(values: np.ndarray) -> Encoded:
    if not len(values):
        return Encoded(np.zeros(0, np.int64), np.zeros(0, np.int32))
    low, high = int(values.min()), int(values.max())
    if high - low >= 4 * len(values) + 1024 or high >= 2**63:  # too few of too many
        return Encoded(*np.unique(values, return_inverse=True))
    there = np.zeros(high - low + 1, bool)
    shifted = values if low == 0 else values - low
    there[shifted] = True
    found = np.flatnonzero(there)
    if len(found) == len(there):
        return Encoded(found + low, shifted)
    number = np.cumsum(there, dtype=np.int32 if len(found) < 2**31 else np.int64) - 1
    return Encoded(found + low, number[shifted])


def _encode_arrow(values: Any) -> Encoded:
    import pyarrow
    import pyarrow.compute

    if not pyarrow.types.is_dictionary(values.type):
        values = pyarrow.compute.dictionary_encode(values)
    chunks = values.unify_dictionaries().chunks
    if not chunks:
        return Encoded(objects([]), np.zeros(0, np.int32))
    words = chunks[-1].dictionary.to_pylist()
    codes = np.concatenate(
        [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in chunks]
    ).astype(np.int32, copy=False)
    used = np.zeros(len(words) + 1, bool)
    used[codes] = True  # -1 is the last
    order = sorted(np.flatnonzero(used[:-1]).tolist(), key=words.__getitem__)
    place = np.full(len(words) + 1, -1, np.int32)
    place[order] = np.arange(len(order))
    return Encoded(objects([words[i] for i in order]), place[codes])


def union(name: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """All different values of some arrays, in order; numbers beside text are text."""
    parts = _alike(parts)
    if parts and all(part.dtype != object for part in parts):
        return np.unique(np.concatenate(parts))
    return ordered(name, {value for part in parts for value in part.tolist()})


def places(names: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where each value stands among names; -1 for those that are none."""
    names, values = _alike([names, values])
    if np.array_equal(names, values):
        return np.arange(len(names))
    if names.dtype == object or values.dtype == object:
        number = {name: i for i, name in enumerate(names.tolist())}
        return np.array([number.get(value, -1) for value in values.tolist()], np.int64)
    if not len(names):
        return np.full(len(values), -1)
    order = np.argsort(names, kind="stable")
    found = np.searchsorted(names, values, sorter=order)
    found = order[np.minimum(found, len(names) - 1)]
    return np.where(names[found] == values, found, -1)


def _alike(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same arrays; where some are of text, those of numbers as text."""
    if len({part.dtype == object for part in parts if part.size}) < 2:
        return list(parts)
    return [part if part.dtype == object else objects([*map(str, part.tolist())]) for part in parts]
