"""Columns of tables of any source, as arrays of numpy or chunked arrays of Arrow.

Text stays in Arrow, which numbers its different values several times as fast as Python does.
"""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from jax_gnn.convert._data import column, objects, package

WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})").fullmatch
"""Match an integer of 64 bits as it is printed: "007" is a name, not an integer."""
_NO_TEXT = {".zip", ".bz2", ".xz", ".xls", ".xlsx", ".ods", ".json", ".jsonl", ".ndjson", ".orc"}
EXACT = 2**24
"""Largest number up to which float32 has all integers."""

Table: TypeAlias = Any
"""A path, a mapping of columns, a data frame, or an Arrow stream."""
Column: TypeAlias = Any
"""An array of numpy, or a chunked array of Arrow."""
Names: TypeAlias = Callable[[Sequence[str]], Sequence[str]]
"""A function that finds columns that hold names, such as "007" in a CSV file, among all columns."""
Value: TypeAlias = Any
"""A value of Python: text, a number, or a sign of a missing value."""


def read_columns(
    name: str, table: Table, names: Names = list, first: Sequence[str] = ("src", "dst")
) -> dict[str, Column]:
    """Read the columns of a table by name, and check that they have one length.

    Args:
        name: name of the table in errors.
        table: path of a CSV, Parquet or Arrow file, or of edges in the format of SNAP, MatrixMarket
            (``.mtx``) or hMETIS (``.hgr``); a mapping of columns; any object with the Arrow C
            stream interface; or a data frame, whose index is a column only if ``names`` finds it.
        names: function that finds the columns that hold names.
        first: names of the first columns of a list of edges.
    """
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        if path.suffix == ".parquet":
            table = package("pyarrow.parquet", "pyarrow").read_table(path)
        elif _suffix(path) in (".mtx", ".hgr"):
            read = _read_matrix if _suffix(path) == ".mtx" else _read_hmetis
            try:
                return read(path, first)
            except FileNotFoundError:
                raise
            except (OSError, EOFError, zlib.error) as error:
                raise ValueError(f"{path} must be a whole file: {error}") from error
        elif is_binary(path):
            table = package("pyarrow.feather", "pyarrow").read_table(path)
        else:
            return _read_text(path, names, first)
    elif type(table).__name__ == "LazyFrame":
        table = table.collect()
    if isinstance(table, Mapping):
        columns = {str(key): as_column(name, key, values) for key, values in table.items()}
    elif hasattr(table, "__arrow_c_stream__") and (arrow := _arrow(table)) is not None:
        index = (arrow.schema.pandas_metadata or {}).get("index_columns", ())  # names, or ranges
        is_name = names(arrow.column_names) if index else ()
        unused = [key for key in index if key in arrow.column_names and key not in is_name]
        arrow = arrow.drop_columns(unused)
        _check_header(name, arrow.column_names)
        columns = dict(zip(arrow.column_names, map(_simple, arrow.columns), strict=True))
    elif hasattr(table, "columns") and hasattr(table, "__getitem__"):
        index = [key for key in getattr(getattr(table, "index", None), "names", ()) if key]
        if index and not {*index}.isdisjoint(names([*map(str, table.columns), *index])):
            table = table.reset_index()
        _check_header(name, [*map(str, table.columns)])
        columns = {str(key): as_column(name, key, table[key]) for key in table.columns}
    else:
        raise TypeError(
            f"{name} must be a path, a mapping of columns, a data frame or an Arrow stream, got "
            f"{type(table).__name__}"
        )
    lengths = {key: len(values) for key, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name} must have columns of one length, got {lengths}")
    return columns


def _arrow(table: Table) -> Any:
    """Convert to a table of pyarrow; return None for data frames that it does not convert.

    These are all if pyarrow is missing, else those with a column that Arrow has no type for, such
    as pandas' columns of both text and integers.
    """
    try:
        return package("pyarrow", "pyarrow").table(table)
    except (ImportError, TypeError, ValueError, NotImplementedError) as error:
        if hasattr(table, "index") or (
            isinstance(error, ImportError) and hasattr(table, "columns")
        ):
            return None
        raise


def as_column(name: str, key: object, values: Any) -> Column:
    """Convert a column of a mapping or a data frame."""
    if hasattr(values, "to_numpy") and not _is_arrow(values):  # of a data frame
        values = values.to_numpy()
    if _is_arrow(values):
        return _simple(values)
    is_column = isinstance(values, Iterable) and getattr(values, "ndim", 1) > 0
    if not is_column or isinstance(values, str):
        kind = type(values).__name__
        raise TypeError(f"{name}[{key!r}] must be a column, with a value for each row, got {kind}")
    return np.asarray(values) if hasattr(values, "dtype") else column(list(values))


def _check_header(name: str, header: Sequence[object]) -> None:
    repeated = [key for key, count in Counter(header).items() if count > 1]
    if repeated:
        raise ValueError(f"{name} must have columns of different names, got {repeated[0]!r} twice")


# --- Text ----------------------------------------------------------------------------------------


def _read_text(path: Path, names: Names, first: Sequence[str]) -> dict[str, Any]:
    """Read a CSV file, or a list of edges, which begins with a comment of SNAP's."""
    suffix = _suffix(path)
    if path.suffix.lower() in _NO_TEXT:
        raise ValueError(
            f"{path} must be CSV or TSV, perhaps with .gz or .zst, Parquet or Arrow: unpack it, or "
            "save it as such, or pass a data frame"
        )
    with opened(path, "utf-8-sig") as file:
        try:
            start = file.readline()
            if start.startswith("#") and suffix not in (".csv", ".tsv"):
                columns = _read_list(path, chain([start], file), first)
            else:
                columns = _read_csv(path, _rows(path, start, file))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{_not_utf8(path)}; save the file as UTF-8") from error
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} must be a whole file, got a damaged one: {error}") from error
    is_name = names([*columns])
    return {key: typed(cells, key in is_name) for key, cells in columns.items()}


def _rows(path: Path, start: str, file: io.TextIOWrapper) -> Iterator[tuple[int, list[str]]]:
    """Yield the last line and the cells of each row of a CSV file, the header first.

    Rows without a value are left out, as spreadsheets append such. Comma, semicolon, tab or bar
    part cells, by which the header, of which `start` is the first line, has most cells, bars last;
    or what a spreadsheet says there, ``sep=;``.
    """
    told = re.fullmatch("sep=(.)\\s*", start)
    head = [file.readline() if told else start]
    while sum(line.count('"') for line in head) % 2 and (line := file.readline()):
        head.append(line)  # a name in quotes goes on
    if told:
        sign = told[1]
    elif _suffix(path) == ".tsv":
        sign = "\t"
    else:
        counts = {s: len(next(csv.reader(head, delimiter=s), [])) for s in ",;\t|"}
        sign = max(counts, key=lambda s: (counts[s] > 1 and s != "|", counts[s]))
    rows = csv.reader(chain(head, file), delimiter=sign, strict=True, skipinitialspace=True)
    try:
        for cells in rows:
            if any(cells):
                yield rows.line_num + bool(told), cells
    except csv.Error as error:
        raise ValueError(f"{path}:{rows.line_num + bool(told)} is no CSV: {error}") from error


def _suffix(path: Path) -> str:
    """Return the suffix of a file before its compression's."""
    return path.with_suffix("").suffix if path.suffix in (".gz", ".zst") else path.suffix


def is_binary(path: Path) -> bool:
    """Return whether a file is a table of Parquet or Arrow."""
    return path.suffix in (".parquet", ".arrow", ".feather")


def opened(path: Path, codec: str) -> io.TextIOWrapper:
    """Open a text file, which is decompressed if its name ends with .gz or .zst."""
    if path.suffix == ".zst":
        binary = package("pyarrow", "pyarrow").input_stream(str(path))
    else:
        binary = gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")
    return io.TextIOWrapper(binary, codec, newline="")


def _not_utf8(path: Path) -> str:
    """Return the number of the first line that is not UTF-8, and the line."""
    with opened(path, "latin-1") as file:  # a character for each byte
        for number, line in enumerate(file, 1):
            if "\ufffd" in line.encode("latin-1").decode(errors="replace"):
                return f"{number} must be UTF-8, got {line.rstrip()!r:.80}"
    return "1 must be UTF-8"


def _read_csv(path: Path, rows: Iterator[tuple[int, list[str]]]) -> dict[str, Sequence[str]]:
    """Return the cells of each column of a CSV file with a header.

    Columns without a name and without a value, as spreadsheets write them, are left out.
    """
    header = [" ".join(cell.split()) for cell in next(rows, (1, []))[1]]
    width = len(header)
    if not header:
        raise ValueError(f"{path} must have a header in its first line, got none")
    cells = []
    for number, row in rows:
        if len(row) != width and (len(row) < width or any(row[width:])):
            raise ValueError(
                f"{path}:{number} must have {width} cells as the header has, got {len(row)}"
            )
        cells.append(row if len(row) == width else row[:width])
    columns = [*zip(*cells, strict=True)] if cells else [()] * width
    table = [
        (key, values) for key, values in zip(header, columns, strict=True) if key or any(values)
    ]
    _check_header(str(path), [key for key, _ in table])
    return dict(table)


def place_of(table: Table, row: int) -> str:
    """Return the place of a row: the file and its line if the table is a file of text."""
    if not isinstance(table, str | os.PathLike) or is_binary(path := Path(table)):
        return f"row {row + 1}"
    if _suffix(path) in (".mtx", ".hgr"):
        return f"entry {row + 1} of {path.name}"
    with opened(path, "utf-8-sig") as file:
        start = file.readline()
        if not start.startswith("#") or _suffix(path) in (".csv", ".tsv"):
            return f"{path.name}:{next(islice(_rows(path, start, file), row + 1, None))[0]}"
        rows = (i for i, line in enumerate(file, 2) if line.strip() and not line.startswith("#"))
        return f"{path.name}:{next(islice(rows, row, None))}"


def _read_list(path: Path, lines: Iterable[str], names: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the fields of each column of a list of edges.

    White space separates fields; comments begin with "#". The last comment before the edges is a
    header, if it has as many fields as an edge.
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


def numbered_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the numbers and fields of lines of a MatrixMarket or hMETIS file but its comments."""
    with opened(path, "utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip() and not line.startswith("%"):
                yield number, line.split()


def _read_matrix(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return rows and columns from 1, and any weights, of a MatrixMarket file.

    SciPy's reader is not used: damaged files can end the process in it.
    """
    with opened(path, "utf-8-sig") as file:
        banner = file.readline().lower().split()
    fields = [*numbered_fields(path)]
    field, symmetry = banner[3:] if len(banner) == 5 else ("", "")
    if banner[:3] != ["%%matrixmarket", "matrix", "coordinate"] or field == "complex":
        raise ValueError(f"{path}:1 must be %%MatrixMarket matrix coordinate, with real numbers")
    number, width = fields[0][0] if fields else 1, 2 if field == "pattern" else 3
    try:
        num_rows, num_cols, entries = map(int, fields[0][1])
        cells = np.zeros((len(fields) - 1, 3))
        for row, (number, line) in enumerate(fields[1:]):  # noqa: B007 (errors name the number)
            i, j, *value = line
            if len(line) != width or not (0 < int(i) <= num_rows and 0 < int(j) <= num_cols):
                raise ValueError(f"expected {width} fields, and indices from 1")
            cells[row] = int(i), int(j), *map(float, value or "1")
        if len(cells) != entries:
            raise ValueError(f"expected {entries} entries, got {len(cells)}")
    except (ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"{path}:{number} is no line of a MatrixMarket file: {error}") from error
    if symmetry != "general":
        mirrored = cells[cells[:, 0] != cells[:, 1]][:, [1, 0, 2]]
        mirrored[:, 2] *= -1 if symmetry == "skew-symmetric" else 1
        cells = np.concatenate([cells, mirrored])
    columns = dict(zip(names, cells[:, :2].astype(np.int64).T, strict=False))
    return columns | ({} if field == "pattern" else {"weight": cells[:, 2]})


def _read_hmetis(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return nodes and hyperedges from 1, and weights of hyperedges if any, of an hMETIS file."""
    lines = [*numbered_fields(path)]
    number = lines[0][0] if lines else 1
    try:
        num_hyperedges, num_nodes, *form = map(int, lines[0][1])
        weighted = form not in ([], [10])
        nodes, weights, sizes = [], [], []
        for number, fields in lines[1 : num_hyperedges + 1]:  # noqa: B007 (errors name it)
            members = [int(field) for field in fields[weighted:]]
            if not members or not 1 <= min(members) <= max(members) <= num_nodes:
                raise ValueError(f"nodes must be from 1 to {num_nodes}")
            nodes += members
            weights += [int(fields[0])] * len(members) if weighted else []
            sizes.append(len(members))
        if len(sizes) != num_hyperedges:
            raise ValueError(f"there must be {num_hyperedges} hyperedges, got {len(sizes)}")
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}:{number} is no line of hMETIS's format: {error}") from error
    ids = np.array(nodes, np.int64), np.repeat(np.arange(1, len(sizes) + 1), sizes)
    columns = dict(zip(names, ids, strict=False))
    return columns | ({"weight": np.array(weights, np.int64)} if weighted else {})


def typed(cells: Sequence[str], is_name: bool) -> np.ndarray:
    """Convert cells to integers, else to floats unless they are names, else to text.

    Empty cells are NaN or None. Blanks around names do not count. If all names are integers, "1.0"
    is one: pandas writes integers so in a column with empty cells.
    """
    cells = [cell.strip() for cell in cells] if is_name else cells
    integers = [cell.removesuffix(".0") for cell in cells] if is_name else cells
    if all(WHOLE(cell) for cell in integers if cell):
        return column([int(cell) if cell else None for cell in integers])
    if not is_name and not any("_" in cell or not cell.isascii() for cell in cells):
        try:
            return np.array([float(cell or "nan") for cell in cells])
        except ValueError:
            pass
    return objects([cell or None for cell in cells])


# --- Arrow ----------------------------------------------------------------------------------------


def _is_arrow(values: object) -> bool:
    return type(values).__module__.partition(".")[0] == "pyarrow"


def _simple(values: Any) -> Column:
    """Convert a column of Arrow to numpy, without a copy if possible; text remains in Arrow."""
    import pyarrow

    if not isinstance(values, pyarrow.ChunkedArray):
        values = pyarrow.chunked_array([values])
    kind, types = values.type, pyarrow.types
    # Few functions of Arrow take its views of strings, which polars uses.
    if types.is_dictionary(kind):
        if str(kind.value_type) == "string_view":
            return values.cast(pyarrow.dictionary(pyarrow.int32(), pyarrow.large_string()))
        return values.cast(kind.value_type) if types.is_integer(kind.value_type) else values
    if types.is_string(kind) or types.is_large_string(kind):
        return values
    if str(kind) == "string_view":
        return values.cast(pyarrow.large_string())
    if types.is_fixed_size_list(kind) and values.null_count == 0:
        rows = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in values.chunks]
        return np.concatenate([np.zeros(0, np.float32)[:0], *rows]).reshape(-1, kind.list_size)
    if types.is_timestamp(kind) or types.is_date(kind):
        return values.cast(pyarrow.timestamp("us"), safe=False).to_numpy()
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if is_number and (values.null_count == 0 or types.is_floating(kind)):
        return values.to_numpy()
    return column(values.to_pylist())


# --- Numbers and names ----------------------------------------------------------------------------


def numbers(values: Column) -> np.ndarray | None:
    """Return a column as numbers, ``(rows, *features)``, NaN if missing; None if it is text.

    The dtype is float32, or that of the column if float32 would round numbers beyond 2**24, such as
    times.
    """
    if _is_arrow(values):
        return None
    if values.dtype == object:
        cells = [math.nan if is_missing(value) else value for value in values.tolist()]
        if {*map(type, cells)} == {bool, float}:  # switches, some of which are missing
            cells = [*map(float, cells)]
        values = column(cells)
        values = values if len(values) else np.zeros(0)
    if values.dtype.kind not in "biuf":
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # large numbers become inf
        rounded: np.ndarray = values.astype(np.float32)
        if values.dtype.kind == "b" or np.can_cast(values.dtype, np.float32):
            return rounded
        large = (values > EXACT) | (values < -EXACT)
        exact = rounded[large].astype(values.dtype) == values[large]
    return rounded if exact.all() else np.asarray(values)


def is_missing(value: Value) -> bool:
    """Return whether a value stands for a missing one."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # pandas'


def encode(columns: Mapping[str, Column]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Number the different values of some columns together, in ascending order.

    Args:
        columns: the columns by their names in errors. If some values are text, integers become
            text.

    Returns:
        The values, mostly integers or objects; and for each column ``(rows,)`` the numbers of its
        values, -1 if missing.
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


def _encode_objects(columns: Mapping[str, Column]) -> tuple[np.ndarray, list[np.ndarray]]:
    parts = [c.to_pylist() if _is_arrow(c) else c.tolist() for c in columns.values()]
    parts = [[*map(normalized, values)] for values in parts]
    kinds = {kind for part in parts for kind in {*map(type, part)}} - {type(None)}
    if kinds == {int, str}:
        parts = [[value if value is None else str(value) for value in part] for part in parts]
        kinds = {str}
    if kinds == {str}:
        with contextlib.suppress(ImportError, UnicodeEncodeError):  # a third of the time
            arrow = package("pyarrow", "pyarrow").chunked_array
            return _encode_arrow([arrow([part], "large_string") for part in parts])
    try:
        names = sorted({value for values in parts for value in values} - {None})
    except TypeError as error:
        types = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"{', '.join(columns)} must be of one type, got {types}") from error
    number = {None: -1, **{name: i for i, name in enumerate(names)}}
    codes = [np.fromiter(map(number.__getitem__, part), np.int32, len(part)) for part in parts]
    return objects(names) if kinds <= {str} else column(names), codes


def normalized(value: Value) -> Value:
    """Return a value as sets compare it: 1.0 is 1; None if it is missing."""
    if type(value) is str:
        return value
    value = value.item() if isinstance(value, np.generic) else value
    if is_missing(value):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _encode_integers(parts: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    low = min((int(part.min()) for part in parts if part.size), default=0)
    high = max((int(part.max()) for part in parts if part.size), default=-1)
    count = sum(part.size for part in parts)
    if high - low >= 4 * count + 1024:  # too sparse for an array of the whole range
        with contextlib.suppress(ImportError):
            pyarrow = package("pyarrow", "pyarrow")
            return _encode_arrow([pyarrow.chunked_array([part]) for part in parts])
        # Without Arrow, this takes 6 times as long.
        names, codes = np.unique(np.concatenate(parts), return_inverse=True)
        return names, np.split(codes, np.cumsum([part.size for part in parts])[:-1])
    is_used = np.zeros(high - low + 1, bool)
    shifted = [part - low if low else part for part in parts]
    for part in shifted:
        is_used[part] = True
    names = np.flatnonzero(is_used)
    if len(names) < len(is_used):
        number = np.cumsum(is_used, dtype=np.int32 if len(names) < 2**31 else np.int64) - 1
        shifted = [number[part] for part in shifted]
    return names + low, shifted


def _encode_arrow(parts: list[Column]) -> tuple[np.ndarray, list[np.ndarray]]:
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
    # The arrays by word have one more element, which -1, a missing value, picks.
    is_used = np.zeros(len(words) + 1, bool)
    is_used[numbers] = True
    order = sorted(np.flatnonzero(is_used[:-1]).tolist(), key=words.__getitem__)
    ranks = np.full(len(words) + 1, -1, np.int32)
    ranks[order] = np.arange(len(order))
    stops = np.cumsum([len(part) for part in parts])[:-1]
    names = [words[i] for i in order]
    codes = np.split(ranks[numbers], stops)
    return (objects(names) if is_text else np.array(names, np.int64)), codes
