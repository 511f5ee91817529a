"""Conversion of relational databases, in RelBench's classes or as tables of pandas."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jax_gnn.convert._columns import as_column
from jax_gnn.convert._data import Data, package
from jax_gnn.convert._kinds import read_kind
from jax_gnn.hetero import HeteroGraph
from jax_gnn.relational import EdgeType

ALWAYS = np.iinfo(np.int32).min
"""Time of rows without one, before every seed's time."""
_CYCLES = {"month": 12, "day": 31, "day_of_week": 7, "hour": 24, "minute": 60, "second": 60}


def from_relbench(
    database: Any, *, categorical: Iterable[str] = (), max_categories: int = 100
) -> Data:
    """Read a database as a graph: a node for each row, an edge for each foreign key.

    Fey et al., "Relational deep learning", ICML 2024. A foreign key ``fkey`` of table ``t`` to
    ``p`` makes edges ``(t, "f2p_fkey", p)`` and ``(p, "rev_f2p_fkey", t)``, as in RelBench; keys
    that are missing, or of no row, make none.

    Args:
        database: RelBench's ``Database``, or tables by name: mappings with the entries of its
            ``Table``, ``df`` of pandas, and perhaps ``pkey_col``, ``time_col`` and
            ``fkey_col_to_pkey_table``.
        categorical: names ``table.column`` of numbers, or long text, that are categories.
        max_categories: columns of text with more values are left out; the report says so.

    Returns:
        The graph with ``nodes[table]`` by kind of column: ``numbers`` (rows, columns) float32, NaN
        if missing, years of dates among them; ``categories`` (rows, columns) int32, -1 if missing;
        ``cycles`` (rows, columns, 6) float32, shares of dates in the year, month, week, day, hour
        and minute; ``embeddings`` (rows, features) float32, of columns of lists. ``time`` (rows,)
        int64, and ``edges[type]["time"]``, the later of both ends, are seconds since 1970, clipped
        to int32, whose least value stands for no time. ``node_names[table]`` has primary keys, or
        None, and ``categories["table.column"]`` the values by category.

    Raises:
        ImportError: pandas is not installed.
        TypeError: a table is no mapping with a data frame, times are no dates, or a column has
            values of another kind.
        ValueError: a column or table is not there, or primary keys are missing or repeated.

    Example:
        >>> import pandas as pd
        >>> users = {"df": pd.DataFrame({"id": [7, 9], "age": [30.0, None]}), "pkey_col": "id"}
        >>> visits = {"df": pd.DataFrame({"user": [9, 9, 7]})}
        >>> visits["fkey_col_to_pkey_table"] = {"user": "users"}
        >>> from_relbench({"users": users, "visits": visits}).graph.num_nodes
        {'users': 2, 'visits': 3}
    """
    pandas = package("pandas", "pandas")
    titles = {categorical} if isinstance(categorical, str) else {*categorical}
    tables = getattr(database, "table_dict", database)
    if not isinstance(tables, Mapping):
        raise TypeError(f"database must be tables by name, got {type(database).__name__}")
    records = {name: _record(name, table, pandas) for name, table in tables.items()}
    columns = [f"{name}.{column}" for name, (frame, *_) in records.items() for column in frame]
    if others := titles.difference(columns):
        raise ValueError(f"categorical must be of the columns {columns}, got {others.pop()!r}")
    nodes: dict[str, Any] = {}
    names: dict[str, Any] = {}
    values, report = {}, []
    for name, (frame, key, foreign, time) in records.items():
        for column in filter(None, (key, time, *foreign)):
            if column not in frame.columns:
                raise ValueError(f"{name} must have the column {column!r}, got {[*frame.columns]}")
        names[name] = None if key is None else frame[key].to_numpy()
        if key is not None and (frame[key].isna().any() or frame[key].duplicated().any()):
            raise ValueError(f"{name}.{key} must have a key of its own for each row")
        nodes[name] = {"time": np.full(len(frame), ALWAYS, np.int64)}
        if time is not None:
            if frame[time].dtype.kind != "M":
                raise TypeError(f"{name}.{time} must be dates, got {frame[time].dtype}")
            seconds = frame[time].to_numpy("datetime64[s]").astype(np.int64)
            # Layers count in int32: later times must not wrap to times before every seed's.
            seconds = np.clip(seconds, ALWAYS + 1, np.iinfo(np.int32).max)
            nodes[name]["time"] = np.where(frame[time].isna(), ALWAYS, seconds)
        kinds: dict[str, list[np.ndarray]] = defaultdict(list)
        for column in frame.columns:
            if column in (key, *foreign):
                continue
            title = f"{name}.{column}"
            try:
                encoded, categories = _encode(frame[column], title in titles, max_categories)
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"{title} must be numbers, dates, text, or lists of equally many numbers: "
                    f"{error}"
                ) from error
            if num_infinite := int(np.isinf(encoded.get("numbers", 0)).sum()):
                report.append(f"{title}: {num_infinite} of {len(frame)} are infinite")
            for kind, rows in encoded.items():
                kinds[kind].append(rows)
            if categories is not None:
                values[title] = categories
            elif not encoded:
                count = frame[column].nunique()
                report.append(f"{title} is left out: text of {count} values")
        nodes[name] |= {kind: np.concatenate(columns, 1) for kind, columns in kinds.items()}
    edges: dict[EdgeType, np.ndarray] = {}
    times: dict[EdgeType, Any] = {}
    for name, (frame, _, foreign, _) in records.items():
        for column, parent in foreign.items():
            if parent not in records or names[parent] is None:
                raise ValueError(f"{name}.{column} must lead to a table with keys, got {parent!r}")
            found = pandas.Index(names[parent]).get_indexer(frame[column])
            src = np.flatnonzero(found >= 0)
            if unknown := int(frame[column].notna().sum()) - len(src):
                report.append(f"{name}.{column}: {unknown} keys are of no row of {parent}")
            if unknown and not src.size:  # such as text, where the others are integers
                dtypes = f"{frame[column].dtype}, those of {parent} {names[parent].dtype}"
                warnings.warn(f"from_relbench: {report[-1]}; they are {dtypes}", stacklevel=2)
            edges[key := (name, f"f2p_{column}", parent)] = np.stack([src, found[src]])
            ends = nodes[name]["time"][src], nodes[parent]["time"][found[src]]
            times[key] = {"time": np.maximum(*ends)}
    graph = HeteroGraph.from_edges(edges, {k: len(r[0]) for k, r in records.items()}, inverse=True)
    return Data(graph, nodes, times, node_names=names, categories=values, report=tuple(report))


def _encode(
    series: Any, is_categorical: bool, max_categories: int
) -> tuple[dict[str, np.ndarray], Any]:
    """Return arrays of a column by kind, none if it is left out, and the values of categories."""
    first = series.dropna().iloc[:1].tolist()
    if series.dtype.kind == "M":
        years = series.dt.year.to_numpy(np.float32)[:, None]
        shares = [getattr(series.dt, part) / size for part, size in _CYCLES.items()]
        return {"numbers": years, "cycles": np.stack(shares, 1, dtype=np.float32)[:, None]}, None
    if series.dtype.kind in "iuf" and not is_categorical:
        return {"numbers": series.to_numpy(np.float32, na_value=np.nan)[:, None]}, None
    if first and isinstance(first[0], list | tuple | np.ndarray):
        known, rows = series.notna(), np.zeros((len(series), len(first[0])), np.float32)
        rows[known] = np.stack(series[known].tolist())
        return {"embeddings": rows}, None
    if series.dtype.kind not in "bmM" and not is_categorical:  # such as decimals, dates as text
        reading = read_kind("", as_column("", "", series), str)
        if reading.kind == "time" or (reading.kind == "number" and not isinstance(first[0], str)):
            kind = "datetime64[us]" if reading.kind == "time" else np.float32
            return _encode(type(series)(reading.values.astype(kind)), False, 0)
    if series.nunique() > max_categories and not is_categorical:
        return {}, None
    codes, values = series.factorize(sort=True)
    return {"categories": codes.astype(np.int32)[:, None]}, values


def _record(name: str, table: Any, pandas: Any) -> Any:
    """Return frame, primary key, foreign keys and time column of a table."""
    names = "df", "pkey_col", "fkey_col_to_pkey_table", "time_col"
    values = table if isinstance(table, Mapping) else {n: getattr(table, n, None) for n in names}
    frame, key, foreign, time = map(values.get, names)
    if not isinstance(frame, pandas.DataFrame):
        got = f"{type(table).__name__} with {type(frame).__module__}.{type(frame).__name__}"
        raise TypeError(f"{name} must have a data frame of pandas, df, got {got}")
    if not frame.columns.is_unique:
        repeated = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(f"{name} must have columns of different names, got {repeated!r} twice")
    if foreign is not None and not isinstance(foreign, Mapping):
        raise TypeError(f"{name} must have tables by foreign key, got {type(foreign).__name__}")
    return frame, key, foreign or {}, time
