"""Columns of tables, wherever they come from: arrays of numpy, or chunked arrays of Arrow."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn.convert._data import column, objects, package

WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})").fullmatch
"""An integer of 64 bits as it is printed: "007" is a name, or a number elsewhere."""
EXACT = 2**24
"""Largest number up to which float32 has all integers."""


def read_columns(name: str, table: Any, names: Sequence[str]) -> dict[str, Any]:
    """The columns of a table, by name, of one length.

    Args:
        name: what errors call the table.
        table: a path of a CSV or Parquet file, or of a list of edges as SNAP has them; a mapping of
            columns; whatever has the Arrow C stream interface; a data frame, whose index counts as
            a column only where ``names`` has its name.
        names: columns that hold names, of which a CSV file's "007" is one. The first columns of
            a list of edges are called so.

    Raises:
        TypeError: it is none of these.
        ValueError: columns differ in length, or two have one name.
    """
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        if path.suffix == ".parquet":
            table = package("pyarrow.parquet", "pyarrow").read_table(path)
        else:
            return _read_text(path, names)
    elif type(table).__name__ == "LazyFrame":
        table = table.collect()
    if isinstance(table, Mapping):
        columns = {str(key): _as_column(values) for key, values in table.items()}
    elif hasattr(table, "__arrow_c_stream__") and (arrow := _arrow(table)) is not None:
        index = (arrow.schema.pandas_metadata or {}).get("index_columns", ())  # names, or ranges
        arrow = arrow.drop_columns(
            [key for key in index if key in arrow.column_names and key not in names]
        )
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


# --- Text ----------------------------------------------------------------------------------------


def _read_text(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Columns of a CSV file, or of a list of edges, if it begins with a comment of SNAP's.

    Raises:
        ValueError: the file is not such text, or is damaged; the error names the line.
    """
    suffix = path.with_suffix("").suffix if path.suffix in (".gz", ".zst") else path.suffix
    with _opened(path, "utf-8-sig") as file:
        try:
            first = file.readline()
            lines = chain([first] if first else [], file)
            if first.startswith("#") and suffix not in (".csv", ".tsv"):
                columns = _read_list(path, lines, names)
            else:
                columns = _read_csv(path, lines, "excel-tab" if suffix == ".tsv" else "excel")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{_not_utf8(path)}; save the file as UTF-8") from error
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} must be a whole file, got a damaged one: {error}") from error
    return {key: _typed(cells, key in names) for key, cells in columns.items()}


def _opened(path: Path, codec: str) -> io.TextIOWrapper:
    """Text of a file, decompressed if its name ends with .gz or .zst; ends of lines stay."""
    if path.suffix == ".zst":
        binary = package("pyarrow", "pyarrow").input_stream(str(path))
    else:
        binary = gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")
    return io.TextIOWrapper(binary, codec, newline="")


def _not_utf8(path: Path) -> str:
    """Number of the first line that is not UTF-8, and what is wrong with it."""
    with _opened(path, "latin-1") as file:  # a character for each byte
        for number, line in enumerate(file, 1):
            try:
                line.encode("latin-1").decode()
            except UnicodeDecodeError:
                return f"{number} must be UTF-8, got {line.rstrip()!r:.80}"
    return "1 must be UTF-8"


def _read_csv(path: Path, lines: Iterable[str], dialect: str) -> dict[str, Sequence[str]]:
    """Cells of a CSV file with a header by column; empty lines are no rows."""
    rows = csv.reader(lines, dialect, strict=True)
    cells = []
    try:
        header = next(rows, [])
        _check_header(str(path), header)
        if not header:
            raise ValueError(f"{path} must have a header in its first line, got none")
        for row in rows:
            if len(row) != len(header):
                if not row:
                    continue
                raise ValueError(
                    f"{path}:{rows.line_num} must have {len(header)} cells as the header has, "
                    f"got {len(row)}"
                )
            cells.append(row)
    except csv.Error as error:
        raise ValueError(f"{path}:{rows.line_num} is no CSV: {error}") from error
    return dict(zip(header, zip(*cells, strict=True) if cells else [()] * len(header), strict=True))


def _read_list(path: Path, lines: Iterable[str], names: Sequence[str]) -> dict[str, Sequence[str]]:
    """Fields of a list of edges by column: white space separates, comments begin with "#".

    The last comment before the edges is a header, if it has as many fields as an edge.
    """
    header: list[str] = []
    cells: list[list[str]] = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            header = header if cells else line[1:].split()
        elif fields := line.split():
            if len(fields) != len(cells[0] if cells else fields):
                raise ValueError(
                    f"{path}:{number} must have {len(cells[0])} fields as the first edge has, got "
                    f"{len(fields)}"
                )
            cells.append(fields)
    width = len(cells[0]) if cells else len(names)
    header = header if len(header) == width else [*map(str, range(width))]
    if not {*names} <= {*header}:
        header = [*names, *header[len(names) :]][:width]
    _check_header(str(path), header)
    return dict(zip(header, zip(*cells, strict=True) if cells else [()] * width, strict=True))


def _typed(cells: Sequence[str], is_name: bool) -> np.ndarray:
    """Integers, else, but for names, numbers, else text; None for what is missing among objects.

    Names such as "1.0" are integers if all others are, as pandas writes these beside empty cells.
    """
    whole = [cell.removesuffix(".0") for cell in cells] if is_name else cells
    if all(WHOLE(cell) for cell in whole if cell):
        return column([int(cell) if cell else None for cell in whole])
    if not is_name and not any("_" in cell or not cell.isascii() for cell in cells):
        try:
            return np.array([float(cell or "nan") for cell in cells])
        except ValueError:
            pass
    return objects([cell or None for cell in cells])


# --- Arrow ----------------------------------------------------------------------------------------


def _is_arrow(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] == "pyarrow"


def _is_view(kind: Any) -> bool:
    """Whether a type is Arrow's view of strings, which polars has and few functions take."""
    return str(kind) == "string_view"


def _simple(values: Any) -> Any:
    """An array of numpy, without a copy where it may be; text remains Arrow's."""
    import pyarrow

    if not isinstance(values, pyarrow.ChunkedArray):
        values = pyarrow.chunked_array([values])
    kind, types = values.type, pyarrow.types
    if types.is_dictionary(kind):
        if _is_view(kind.value_type):
            return values.cast(pyarrow.dictionary(pyarrow.int32(), pyarrow.large_string()))
        return values.cast(kind.value_type) if types.is_integer(kind.value_type) else values
    if types.is_string(kind) or types.is_large_string(kind):
        return values
    if _is_view(kind):
        return values.cast(pyarrow.large_string())
    if types.is_fixed_size_list(kind) and values.null_count == 0:
        rows = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in values.chunks]
        return np.concatenate([np.zeros(0, np.float32)[:0], *rows]).reshape(-1, kind.list_size)
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if numbers and (values.null_count == 0 or types.is_floating(kind)):
        return values.to_numpy()
    return column(values.to_pylist())


# --- Numbers and names ----------------------------------------------------------------------------


def numbers(values: Any) -> np.ndarray | None:
    """A column as numbers, ``(rows, *features)``, NaN for what is missing; None if it is text.

    They are float32, or what the column has, 64 bits mostly, if it has numbers beyond 2**24 that
    float32 rounds, such as times.
    """
    if _is_arrow(values):
        return None
    if values.dtype == object:
        values = column([math.nan if is_missing(value) else value for value in values.tolist()])
        values = values if len(values) else np.zeros(0)
    if values.dtype.kind not in "biuf":
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # too large becomes inf
        rounded = values.astype(np.float32)
        if values.dtype.kind == "b" or np.can_cast(values.dtype, np.float32):
            return rounded
        large = (values > EXACT) | (values < -EXACT)
        exact = rounded[large].astype(values.dtype) == values[large]
    return rounded if exact.all() else values


def floats(values: Any) -> np.ndarray | None:
    """Same column in float32."""
    found = numbers(values)
    with np.errstate(over="ignore"):  # too large becomes inf
        return None if found is None else found.astype(np.float32)


def is_missing(value: Any) -> bool:
    """Whether a value of Python stands for none."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # pandas'


def encode(columns: Mapping[str, Any]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Numbers the different values of some columns, of all together, in their order.

    Args:
        columns: by what errors call them; integers beside text are text.

    Returns:
        The values, integers or objects mostly; and for each column ``(rows,)`` the numbers of its
        values, -1 for what is missing.

    Raises:
        TypeError: values have no order among each other.
        ValueError: a column is not one-dimensional.
    """
    parts = list(columns.values())
    if all(map(_is_arrow, parts)):
        return _encode_arrow(parts)
    for name, part in columns.items():
        if not _is_arrow(part) and part.ndim != 1:
            raise ValueError(f"{name} must be one-dimensional, got shape {part.shape}")
    if any(_is_arrow(part) or part.dtype.kind not in "iu" for part in parts):
        return _encode_objects(columns)
    if max((int(part.max()) for part in parts if part.size), default=0) >= 2**63:
        return _encode_objects(columns)
    return _encode_integers([part.astype(np.int64, copy=False) for part in parts])


def _encode_objects(columns: Mapping[str, Any]) -> tuple[np.ndarray, list[np.ndarray]]:
    listed = [c.to_pylist() if _is_arrow(c) else c.tolist() for c in columns.values()]
    listed = [[*map(_name, values)] for values in listed]
    kinds = {type(value) for values in listed for value in values} - {type(None)}
    if kinds == {int, str}:
        listed = [[value if value is None else str(value) for value in part] for part in listed]
        kinds = {str}
    try:
        names = sorted({value for values in listed for value in values} - {None})
    except TypeError as error:
        given = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"{', '.join(columns)} must be of one type, got {given}") from error
    number = {None: -1, **{name: i for i, name in enumerate(names)}}
    codes = [np.fromiter(map(number.__getitem__, part), np.int32, len(part)) for part in listed]
    return objects(names) if kinds <= {str} else column(names), codes


def _name(value: Any) -> Any:
    """A value of Python, as sets compare it: 1.0 is 1; None if it is missing."""
    value = value.item() if isinstance(value, np.generic) else value
    if is_missing(value):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _encode_integers(parts: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    given = [part for part in parts if part.size]
    low = min((int(part.min()) for part in given), default=0)
    high = max((int(part.max()) for part in given), default=-1)
    count = sum(part.size for part in given)
    if high - low >= 4 * count + 1024:  # few of too many for an array of all
        with contextlib.suppress(ImportError):
            pyarrow = package("pyarrow", "pyarrow")
            return _encode_arrow([pyarrow.chunked_array([part]) for part in parts])
        names, codes = np.unique(np.concatenate(parts), return_inverse=True)  # 6 times as long
        return names, np.split(codes, np.cumsum([part.size for part in parts])[:-1])
    there = np.zeros(high - low + 1, bool)
    shifted = [part - low if low else part for part in parts]
    for part in shifted:
        there[part] = True
    names = np.flatnonzero(there)
    if len(names) < len(there):
        number = np.cumsum(there, dtype=np.int32 if len(names) < 2**31 else np.int64) - 1
        shifted = [number[part] for part in shifted]
    return names + low, shifted


def _encode_arrow(parts: list[Any]) -> tuple[np.ndarray, list[np.ndarray]]:
    import pyarrow
    import pyarrow.compute

    if len({part.type for part in parts}) > 1:
        parts = [part.cast(pyarrow.large_string()) for part in parts]
    joined = pyarrow.chunked_array([c for part in parts for c in part.chunks], parts[0].type)
    if not pyarrow.types.is_dictionary(joined.type):
        joined = pyarrow.compute.dictionary_encode(joined)
    chunks = joined.unify_dictionaries().chunks
    is_text = not pyarrow.types.is_integer(joined.type.value_type)
    words = chunks[-1].dictionary.to_pylist() if chunks else []
    codes = [
        chunk.indices.cast(pyarrow.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
        for chunk in chunks
    ]
    numbers = np.concatenate([np.zeros(0, np.int32), *codes]).astype(np.int32, copy=False)
    used = np.zeros(len(words) + 1, bool)
    used[numbers] = True  # -1 is the last
    order = sorted(np.flatnonzero(used[:-1]).tolist(), key=words.__getitem__)
    place = np.full(len(words) + 1, -1, np.int32)
    place[order] = np.arange(len(order))
    ends = np.cumsum([len(part) for part in parts])[:-1]
    names = [words[i] for i in order]
    codes = np.split(place[numbers], ends)
    return (objects(names) if is_text else np.array(names, np.int64)), codes
