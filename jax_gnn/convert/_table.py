"""Tables of edges and of nodes: CSV, data frames, Arrow."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jax_gnn.convert._columns import (
    Encoded,
    encode,
    floats,
    places,
    read_columns,
    union,
)
from jax_gnn.convert._data import (
    Data,
    as_data,
    edges_by_type,
    edges_of,
    named,
    num_edges,
    objects,
)
from jax_gnn.graph import Graph
from jax_gnn.hetero import HeteroGraph
from jax_gnn.relational import RelationalGraph

Table = str | os.PathLike[str] | Mapping[str, Any] | Any
ALONE = "", "", ""  # the type of edges of a graph without types


def from_table(
    edges: Any,
    nodes: Any = None,
    *,
    src: str = "src",
    dst: str = "dst",
    node: str = "id",
    relation: str | None = None,
    one_hot: str | Sequence[str] = (),
    labels: str | Sequence[str] = (),
) -> Data:
    """Reads a graph from a table of edges and, perhaps, one of nodes.

    A table is the path of a CSV file with a header (TSV by its suffix, Parquet by pyarrow), a
    mapping of columns, or a data frame of pandas or polars, or whatever else has the Arrow C
    stream interface, which pyarrow reads.

    Edges name nodes by text or integers; one whose end is missing, or stands in no row of
    ``nodes``, is dropped. Where integers stand beside text, they are text. What was dropped,
    missing or repeated is in ``report``, and one warning says it.

    Args:
        edges: a row for each edge; or such tables by (source type, relation, destination type).
        nodes: a row for each node, or tables by type. Without one, nodes are the names in
            ``edges`` in order.
        src: the column of ``edges`` that names where each starts.
        dst: that which names where it ends.
        node: the column of ``nodes`` that names each.
        relation: the column of ``edges`` that names the relation of each, if any; of one type.
        one_hot: columns of either table that become a column for each of their values.
        labels: columns that become numbers of their values, -1 where missing.

    Returns:
        ``Data`` of a ``Graph``, of a ``RelationalGraph`` if ``relation`` is given, or of a
        ``HeteroGraph`` of tables by type. All other columns of numbers are float32, NaN where
        missing; those of text are dropped. ``categories`` has the values of ``one_hot`` and
        ``labels``, those of all tables together.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: a table wants pyarrow, which is not installed.
        TypeError: a table is none of these, or names are neither text nor integers.
        ValueError: a column is not there, ``nodes`` names one twice or has none, or rows differ in
            length.

    Example:
        >>> edges = {"src": ["ann", "bob"], "dst": ["bob", "eve"], "years": [2, 5]}
        >>> data = from_table(edges)
        >>> data.node_names.tolist(), data.graph, data.edges["years"]
        (['ann', 'bob', 'eve'], Graph(num_nodes=3, num_edges=2), array([2., 5.], dtype=float32))
    """
    by_type = isinstance(edges, Mapping) and any(isinstance(key, tuple) for key in edges)
    if by_type and relation is not None:
        raise ValueError(f"relation must be None for tables by type, got {relation!r}")
    if by_type and not isinstance(nodes, Mapping | None):
        raise TypeError(f"nodes must be tables by type, as edges are, got {type(nodes).__name__}")
    roles = [("src", src), ("dst", dst), *([] if relation is None else [("relation", relation)])]
    tables = [
        _Table.read("edges", key if by_type else None, key, table, roles)
        for key, table in (edges if by_type else {ALONE: edges}).items()
    ]
    given = (nodes or {}) if by_type else {} if nodes is None else {"": nodes}
    members = {
        kind: _Table.read("nodes", kind if by_type else None, kind, table, [("node", node)])
        for kind, table in given.items()
    }
    report: list[str] = []
    names = _node_names(tables, members)
    triples = {table.key: table.ids(names, report) for table in tables}
    sizes = {kind: len(each) for kind, each in names.items()}
    graph: Any
    if by_type:
        graph = HeteroGraph.from_edges(triples, sizes)
    elif relation is None:
        graph = Graph.from_edges(*triples[ALONE], num_nodes=sizes[""])
    else:
        known = tables[0].names[2].values
        starts, stops, kinds = triples[ALONE]
        graph = RelationalGraph.from_triples(starts, kinds, stops, sizes[""], len(known))
        graph = replace(graph, relation_names=tuple(map(str, known.tolist())))
    repeated = _repeated(graph)
    if repeated:
        report.append(f"edges: {repeated} of {num_edges(graph)} repeat another: kept")
    both = [*tables, *members.values()]
    categories = _categories(both, one_hot, labels)
    parts: dict[str, Any] = {
        "edges": {table.key: table.arrays(categories, labels, report) for table in tables},
        "nodes": {
            kind: table.arrays(categories, labels, report) for kind, table in members.items()
        },
        "node_names": {kind: _unless_numbers(each) for kind, each in names.items()},
    }
    if not by_type:
        parts = {part: next(iter(own.values()), {}) for part, own in parts.items()}
    if report:
        warnings.warn(f"from_table: {'; '.join(report)}", stacklevel=2)
    return Data(graph, **parts, categories=categories, report=tuple(report))


@dataclass
class _Table:
    """A table that was read: its columns of names, encoded, and all others."""

    title: str
    key: Any  # its type, or that of its edges
    names: list[Encoded]
    rest: dict[str, Any]
    kept: np.ndarray | None = None  # which rows are left; None means all

    @classmethod
    def read(cls, part: str, kind: Any, key: Any, table: Any, roles: Any) -> _Table:
        title = part if kind is None else f"{part}[{kind!r}]"
        if part == "edges" and (not isinstance(key, tuple) or len(key) != 3):
            raise ValueError(
                f"edges must be by (source type, relation, destination type), got the key {key!r}"
            )
        rest = read_columns(title, table, {column for _, column in roles})
        names = []
        for role, column in roles:
            if column not in rest:
                known = ", ".join(map(repr, rest))
                raise ValueError(f"{role} must be a column of {title}, {known}, got {column!r}")
            names.append(_names(f"{title}[{column!r}]", rest[column]))
        own = {column for _, column in roles}
        return cls(title, key, names, {k: each for k, each in rest.items() if k not in own})

    def ids(self, names: Mapping[str, np.ndarray], report: list[str]) -> list[np.ndarray]:
        """Of edges the numbers of what they name; rows that name what is not there are dropped."""
        known = [names[self.key[0]], names[self.key[2]], *(each.values for each in self.names[2:])]
        ids = [
            _at(places(each, own.values), own.codes)
            for each, own in zip(known, self.names, strict=True)
        ]
        there = np.logical_and.reduce([each >= 0 for each in ids])
        if there.all():
            return ids
        count = len(there) - int(there.sum())
        report.append(f"{self.title}: {count} of {len(there)} name no node, or nothing: dropped")
        self.kept = there
        return [each[there] for each in ids]

    def arrays(
        self, categories: Mapping[str, np.ndarray], labels: Any, report: list[str]
    ) -> dict[str, np.ndarray]:
        """All other columns as numbers, of the rows that are left."""
        found = {}
        for key, values in self.rest.items():
            name = f"{self.title}[{key!r}]"
            array: np.ndarray | None
            if key in categories:
                encoded = encode(name, values)
                codes = _at(places(categories[key], encoded.values), encoded.codes)
                missing = codes < 0
                array = codes.astype(np.int32)
                if key not in _listed(labels):
                    array = (codes[:, None] == np.arange(len(categories[key]))).astype(np.float32)
            else:
                array = floats(values)
                if array is None:
                    report.append(f"{name} is text, in neither one_hot nor labels: dropped")
                    continue
                missing = np.isnan(array)
            if missing.any():
                report.append(f"{name}: {int(missing.sum())} of {missing.size} are missing")
            found[key] = array if self.kept is None else array[self.kept]
        return found


def _names(name: str, values: Any) -> Encoded:
    """A column of names: of text, or of integers, perhaps as floats beside what is missing."""
    encoded = encode(name, values)
    found = encoded.values
    if found.dtype.kind == "f" and (np.isfinite(found) & (found == np.floor(found))).all():
        found = found.astype(np.int64)
    kinds = {type(value) for value in found.tolist()} if found.dtype == object else set()
    if found.dtype.kind not in "iuO" or not kinds <= {str}:
        given = " and ".join(sorted(kind.__name__ for kind in kinds)) or str(found.dtype)
        raise TypeError(f"{name} must be text or integers, as it names nodes, got {given}")
    return encoded._replace(values=found)


def _node_names(tables: Sequence[_Table], members: Mapping[str, _Table]) -> dict[str, np.ndarray]:
    """The names of the nodes of each type: of its table, else of all edges, in order."""
    found: dict[str, list[np.ndarray]] = {kind: [] for kind in members}
    for table in tables:
        for kind, end in zip(table.key[::2], table.names, strict=False):
            found.setdefault(kind, []).append(end.values)
    names = {}
    for kind, parts in found.items():
        if kind not in members:
            names[kind] = union("the ends of edges", parts)
            continue
        title, encoded = members[kind].title, members[kind].names[0]
        if (encoded.codes < 0).any():
            row = int(np.flatnonzero(encoded.codes < 0)[0])
            raise ValueError(f"{title} must have a name for each node, got none in row {row}")
        counts = np.bincount(encoded.codes, minlength=len(encoded.values))
        if (counts > 1).any():
            name = encoded.values.tolist()[int(counts.argmax())]
            raise ValueError(f"{title} must name each node once, got {name!r} {counts.max()} times")
        names[kind] = encoded.values[encoded.codes]
    return names


def _at(numbers: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """``numbers[codes]``, -1 for -1."""
    if np.array_equal(numbers, np.arange(len(numbers))):
        return codes
    return np.append(numbers, -1)[codes]


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


def _categories(tables: Sequence[_Table], one_hot: Any, labels: Any) -> dict[str, np.ndarray]:
    """The values of columns by name, those of all tables together, in order."""
    found = {}
    for option, names in (("one_hot", _listed(one_hot)), ("labels", _listed(labels))):
        for name in names:
            parts = [encode(name, each.rest[name]).values for each in tables if name in each.rest]
            if not parts:
                known = ", ".join(repr(key) for table in tables for key in table.rest)
                raise ValueError(f"{option} must be among the columns {known}, got {name!r}")
            if name in found:
                raise ValueError(
                    f"one_hot and labels must not share a column, got {name!r} in both"
                )
            found[name] = union(name, parts)
    return found


def _repeated(graph: Any) -> int:
    """How many edges equal another one before them."""
    graph = graph.relational if isinstance(graph, HeteroGraph) else graph
    typed = isinstance(graph, RelationalGraph)
    nodes = graph.nodes if typed else graph
    same = True
    for array in (nodes.rows, nodes.cols, *([graph.edge_types] if typed else [])):
        ids = np.asarray(array)
        same = same & (ids[1:] == ids[:-1])
    return int(np.sum(same))


def _unless_numbers(names: np.ndarray) -> np.ndarray | None:
    return None if np.array_equal(names, np.arange(len(names))) else names


def to_table(
    data: Any,
    *,
    src: str = "src",
    dst: str = "dst",
    node: str = "id",
    relation: str = "relation",
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Makes tables of edges and of nodes: columns by name, for any library's data frame.

    Args:
        data: ``Data`` of a ``Graph``, a ``RelationalGraph`` or a ``HeteroGraph``, or one alone.
        src: what the column of edges is called that names where each starts.
        dst: likewise where it ends.
        node: the column of nodes that names each.
        relation: the column of edges with relations, of a ``RelationalGraph``.

    Returns:
        ``(edges, nodes)`` as :func:`from_table` takes them; of a ``HeteroGraph`` by type. What is
        in ``categories`` is its values again, None where it is missing.

    Raises:
        TypeError: ``data`` is none of these, or its arrays have no names.
        ValueError: a column has the name of one that names nodes, or a number of values is wrong.
    """
    data = as_data(data, Graph, RelationalGraph, HeteroGraph)

    def made(title: str, names: dict[str, Any], columns: Any) -> dict[str, Any]:
        columns = {key: _decoded(data, key, each) for key, each in named(title, columns).items()}
        for key in names.keys() & columns.keys():
            raise ValueError(
                f"{title} must have no column that is called {key!r}: name it otherwise"
            )
        return {**names, **columns}

    def called(names: Any, ids: np.ndarray) -> np.ndarray:
        return ids if names is None else np.asarray(names)[ids]

    graph = data.graph
    if isinstance(graph, HeteroGraph):
        names = dict(data.node_names or {})
        edges = {}
        for key, own in edges_by_type(graph).items():
            title = f"edges[{key!r}]"
            ends = {
                src: called(names.get(key[0]), own.src),
                dst: called(names.get(key[2]), own.dst),
            }
            edges[key] = made(title, ends, own.values(title, data.edges.get(key, {})))
        nodes = {
            kind: made(
                *(f"nodes[{kind!r}]", {node: called(names.get(kind), np.arange(size))}),
                data.nodes.get(kind, {}),
            )
            for kind, size in graph.num_nodes.items()
        }
        return edges, nodes
    own = edges_of(graph.nodes if isinstance(graph, RelationalGraph) else graph)
    ends = {src: called(data.node_names, own.src), dst: called(data.node_names, own.dst)}
    if isinstance(graph, RelationalGraph):
        kinds = np.asarray(graph.edge_types)[own.places]
        relations = graph.relation_names
        ends[relation] = called(relations and objects([*map(str, relations)]), kinds)
    nodes = made("nodes", {node: called(data.node_names, np.arange(graph.num_nodes))}, data.nodes)
    return made("edges", ends, own.values("edges", data.edges)), nodes


def _decoded(data: Data, key: str, values: Any) -> np.ndarray:
    """The values that labels or one-hot columns stand for."""
    values = np.asarray(values)
    if key not in data.categories:
        return values
    if values.ndim == 2:
        values = np.where(values.any(axis=1), values.argmax(axis=1), -1)
    known = data.categories[key]
    if (values >= 0).all():
        return known[values]
    return objects([*known.tolist(), None])[values]
