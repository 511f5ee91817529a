"""Tables of edges and of nodes: CSV, data frames, Arrow."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jax_gnn.convert._columns import encode, numbers, read_columns
from jax_gnn.convert._data import (
    Data,
    as_data,
    edges_by_type,
    edges_of,
    incidences_of,
    named,
    objects,
)
from jax_gnn.graph import Graph
from jax_gnn.hetero import HeteroGraph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph

RELATIONS = "relations"  # beside the types of nodes, of which a graph without types has one, ""


def from_table(
    edges: Any,
    nodes: Any = None,
    *,
    src: str = "src",
    dst: str = "dst",
    node: str = "id",
    relation: str | None = None,
    hypergraph: bool = False,
    one_hot: str | Sequence[str] = (),
    labels: str | Sequence[str] = (),
) -> Data:
    """Reads a graph from a table of edges and, perhaps, one of nodes.

    A table is the path of a CSV file with a header (TSV by its suffix, Parquet by pyarrow), a
    mapping of columns, or a data frame of pandas or polars, or whatever else has the Arrow C
    stream interface, which pyarrow reads. Text may be compressed (``.gz``, ``.zst`` by pyarrow). A
    file of another suffix that begins with ``#`` is a list of edges as SNAP has them: comments, and
    fields between white space, of which the first two are the ends.

    Edges name nodes by text or integers; one whose end is missing, or stands in no row of
    ``nodes``, is dropped. Where integers stand beside text, they are text, and 1.0 is 1. The index
    of a data frame is no column, unless it has the name of one that is asked for. What was dropped,
    missing or repeated is in ``report``, and one warning says it.

    Args:
        edges: a row for each edge; or such tables by (source type, relation, destination type).
        nodes: a row for each node, or tables by type. Without one, nodes are the names in
            ``edges`` in order.
        src: the column of ``edges`` that names where each starts.
        dst: that which names where it ends.
        node: the column of ``nodes`` that names each.
        relation: the column of ``edges`` that names the relation of each, if any; of one type.
        hypergraph: whether ``dst`` names hyperedges: each row says that a node is in one.
        one_hot: columns of either table that become a column for each of their values.
        labels: columns that become numbers of their values, -1 where missing.

    Returns:
        ``Data`` of a ``Graph``; of a ``RelationalGraph`` if ``relation`` is given, of a
        ``HeteroGraph`` of tables by type, of a ``Hypergraph``, whose memberships are
        ``incidences``, if that is wanted. All other columns of numbers are float32, NaN where
        missing, or of 64 bits if float32 would round numbers beyond 2**24, such as times; those of
        text are dropped. ``categories`` has the values of ``one_hot`` and
        ``labels``, those of all tables together.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: a table wants pyarrow, which is not installed.
        TypeError: a table is none of these, or names are neither text nor integers.
        ValueError: a column is not there or is named for two purposes, ``nodes`` names one twice or
            has none, rows differ in length, or options exclude each other.

    Example:
        >>> edges = {"src": ["ann", "bob"], "dst": ["bob", "eve"], "years": [2, 5]}
        >>> data = from_table(edges)
        >>> data.node_names.tolist(), data.graph, data.edges["years"]
        (['ann', 'bob', 'eve'], Graph(num_nodes=3, num_edges=2), array([2., 5.], dtype=float32))
    """
    by_type = isinstance(edges, Mapping) and any(isinstance(key, tuple) for key in edges)
    chosen = {"tables by type": by_type, "relation": relation is not None, "hypergraph": hypergraph}
    if sum(chosen.values()) > 1:
        given = " and ".join(option for option, wanted in chosen.items() if wanted)
        raise ValueError(f"edges must be of one kind: by type, relation or hypergraph, got {given}")
    if by_type and not isinstance(nodes, Mapping | None):
        raise TypeError(f"nodes must be tables by type, as edges are, got {type(nodes).__name__}")
    roles = [("src", src), ("dst", dst), *([] if relation is None else [("relation", relation)])]
    if len({column for _, column in roles}) < len(roles):
        options = ", ".join(f"{role}={column!r}" for role, column in roles)
        raise ValueError(f"edges must have a column for each of their ends, got {options}")
    alone = "", "", "hyperedges" if hypergraph else ""  # the only type of edges
    tables = [
        _Table.read("edges", key, table, by_type, roles)
        for key, table in (edges if by_type else {alone: edges}).items()
    ]
    node_tables = (nodes or {}) if by_type else {} if nodes is None else {"": nodes}
    members = {
        kind: _Table.read("nodes", kind, table, by_type, [("node", node)])
        for kind, table in node_tables.items()
    }
    report: list[str] = []
    names, triples = _ids(tables, members, report)
    sizes = {kind: len(each) for kind, each in names.items()}
    graph: Any
    if by_type:
        graph = HeteroGraph.from_edges(triples, sizes)
    elif hypergraph:
        hyperedges = names.pop("hyperedges")
        graph = Hypergraph.from_incidence(
            *triples[alone], num_nodes=sizes[""], num_hyperedges=len(hyperedges)
        )
    elif relation is None:
        graph = Graph.from_edges(*triples[alone], num_nodes=sizes[""])
    else:
        starts, stops, kinds = triples[alone]
        known = names.pop(RELATIONS)
        graph = RelationalGraph.from_triples(starts, kinds, stops, sizes[""], len(known))
        graph = replace(graph, relation_names=tuple(map(str, known.tolist())))
    repeated, total = _repeated(graph)
    if repeated:
        report.append(f"edges: {repeated} of {total} repeat another: kept")
    both = [*tables, *members.values()]
    categories = _categories(both, one_hot, labels)
    for table in both:
        table.convert(_listed(labels), categories, report)
    parts: dict[str, Any] = {
        "edges": {table.key: table.rest for table in tables},
        "nodes": {table.key: table.rest for table in members.values()},
        "node_names": {kind: _unless_numbers(each) for kind, each in names.items()},
    }
    if not by_type:
        parts = {part: next(iter(own.values()), {}) for part, own in parts.items()}
    if hypergraph:
        parts["incidences"] = parts.pop("edges")
        parts["edge_names"] = _unless_numbers(hyperedges)
    if report:
        warnings.warn(f"from_table: {'; '.join(report)}", stacklevel=2)
    return Data(graph, **parts, categories=categories, report=tuple(report))


@dataclass
class _Table:
    """A table that was read: the columns that name something, and all others.

    Of edges the former are ids once they are known, the latter arrays of the rows that are left.
    """

    title: str
    key: Any  # its type, or that of its edges
    names: dict[str, Any]  # by what errors call them
    rest: dict[str, Any]
    kept: np.ndarray | None = None  # which rows are left; None means all

    @classmethod
    def read(cls, part: str, key: Any, table: Any, by_type: bool, roles: Any) -> _Table:
        title = f"{part}[{key!r}]" if by_type else part
        if part == "edges" and (not isinstance(key, tuple) or len(key) != 3):
            raise ValueError(
                f"edges must be by (source type, relation, destination type), got the key {key!r}"
            )
        rest = read_columns(title, table, [column for _, column in roles])
        names = {}
        for role, column in roles:
            if column not in rest:
                known = ", ".join(map(repr, rest))
                raise ValueError(f"{role} must be a column of {title}, {known}, got {column!r}")
            names[f"{title}[{column!r}]"] = _whole(rest[column])
        own = {column for _, column in roles}
        return cls(title, key, names, {k: each for k, each in rest.items() if k not in own})

    def convert(self, labels: Sequence[str], categories: dict[str, Any], report: list[str]) -> None:
        """Turns all other columns into numbers, of the rows that are left."""
        for key, values in [*self.rest.items()]:
            name = f"{self.title}[{key!r}]"
            array: np.ndarray | None
            if key in categories:  # of which it has the numbers already
                missing, array = values < 0, values.astype(np.int32)
                if key not in labels:
                    array = (values[:, None] == np.arange(len(categories[key]))).astype(np.float32)
            else:
                array = numbers(values)
                if array is None:
                    report.append(
                        f"{name} holds no numbers, and is in neither one_hot nor labels: dropped"
                    )
                    del self.rest[key]
                    continue
                missing = np.isnan(array)
                if array.dtype != np.float32:
                    left_out = self.title.startswith("nodes") and array.dtype.kind in "iu"
                    report.append(
                        f"{name} has numbers beyond 2**24, which float32 rounds: kept in "
                        f"{array.dtype}{', so that features() takes it by name only' * left_out}"
                    )
            if missing.any():
                report.append(f"{name}: {int(missing.sum())} of {missing.size} are missing")
            self.rest[key] = array if self.kept is None else array[self.kept]


def _whole(values: Any) -> Any:
    """Names that are integers, as floats beside NaN, as integers beside None; none are rounded."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        return values
    there = np.isfinite(values)
    known = values[there]
    if (known != np.floor(known)).any() or (np.abs(known) >= 2**53).any():
        return values
    whole = np.where(there, values, 0).astype(np.int64).astype(object)
    whole[~there] = None
    return whole


def _ids(
    tables: Sequence[_Table], members: Mapping[str, _Table], report: list[str]
) -> tuple[dict[str, np.ndarray], dict[Any, list[np.ndarray]]]:
    """The names of the nodes of each type, and of relations; and of each table of edges the ids.

    Names are those of the table of nodes, else those of all edges in order.
    """
    columns: dict[str, list[tuple[_Table, str]]] = {
        kind: [(table, name) for name in table.names] for kind, table in members.items()
    }
    for table in tables:
        for kind, name in zip((table.key[0], table.key[2], RELATIONS), table.names, strict=False):
            columns.setdefault(kind, []).append((table, name))
    names = {}
    for kind, own in columns.items():
        names[kind], codes = encode({name: table.names[name] for table, name in own})
        kinds = set() if names[kind].dtype.kind in "iu" else {*map(type, names[kind].tolist())}
        if not kinds <= {str} and kinds != {int}:
            given = " and ".join(sorted(each.__name__ for each in kinds))
            titles = ", ".join(name for _, name in own)
            raise TypeError(f"{titles} must be text or integers, as names are, got {given}")
        if kind in members:
            rows, *codes = codes
            names[kind], number = _once(members[kind].title, names[kind], rows)
            own, codes = own[1:], [number[each] for each in codes]  # -1 is the last
        for (table, name), each in zip(own, codes, strict=True):
            table.names[name] = each
    triples = {}
    for table in tables:
        ids = list(table.names.values())
        there = np.logical_and.reduce([each >= 0 for each in ids])
        if not there.all():
            count = len(there) - int(there.sum())
            what = f"{count} of {len(there)} name no node, or nothing: dropped"
            report.append(f"{table.title}: {what}")
            table.kept, ids = there, [each[there] for each in ids]
        triples[table.key] = ids
    return names, triples


def _once(title: str, names: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The names of a table of nodes, and for all names the rows; -1 for those that have none."""
    if (rows < 0).any():
        row = int(np.flatnonzero(rows < 0)[0])
        raise ValueError(f"{title} must have a name for each node, got none in row {row}")
    counts = np.bincount(rows, minlength=1)
    if counts.max() > 1:
        name = names.tolist()[int(counts.argmax())]
        raise ValueError(f"{title} must name each node once, got {name!r} {counts.max()} times")
    number = np.full(len(names) + 1, -1)
    number[rows] = np.arange(len(rows))
    return names[rows], number


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


def _categories(tables: Sequence[_Table], one_hot: Any, labels: Any) -> dict[str, np.ndarray]:
    """The values of columns by name, those of all tables together; columns become their numbers."""
    found: dict[str, np.ndarray] = {}
    for option, names in (("one_hot", _listed(one_hot)), ("labels", _listed(labels))):
        for name in names:
            own = [table for table in tables if name in table.rest]
            if not own:
                known = ", ".join(repr(key) for table in tables for key in table.rest) or "of nodes"
                raise ValueError(f"{option} must be among the columns {known}, got {name!r}")
            if name in found:
                raise ValueError(f"one_hot and labels must share no column, got {name!r} in both")
            found[name], codes = encode({f"{t.title}[{name!r}]": t.rest[name] for t in own})
            for table, each in zip(own, codes, strict=True):
                table.rest[name] = each
    return found


def _repeated(graph: Any) -> tuple[int, int]:
    """How many edges or incidences equal another one before them, and of how many."""
    graph = graph.graph if isinstance(graph, Hypergraph) else graph
    graph = graph.relational if isinstance(graph, HeteroGraph) else graph
    typed = isinstance(graph, RelationalGraph)
    nodes = graph.nodes if typed else graph
    same = True
    for array in (nodes.rows, nodes.cols, *([graph.edge_types] if typed else [])):
        ids = np.asarray(array)
        same = same & (ids[1:] == ids[:-1])
    return int(np.sum(same)), nodes.num_edges


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
        data: ``Data`` of a ``Graph``, a ``RelationalGraph``, a ``HeteroGraph`` or an undirected
            ``Hypergraph``, or one alone. Of a hypergraph what hyperedges have is left out.
        src: what the column of edges is called that names where each starts.
        dst: likewise where it ends.
        node: the column of nodes that names each.
        relation: the column of edges with relations, of a ``RelationalGraph``.

    Returns:
        ``(edges, nodes)`` as :func:`from_table` takes them, of a ``HeteroGraph`` by type. What is
        in ``categories`` is its values again, None where it is missing.

    Raises:
        TypeError: ``data`` is none of these, or its arrays have no names.
        ValueError: a column has the name of one that names nodes, a number of values is wrong, or
            the hypergraph is directed.
    """
    data = as_data(data, Graph, RelationalGraph, HeteroGraph, Hypergraph)

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
    stop_names, columns = data.node_names, data.edges
    if isinstance(graph, Hypergraph):
        own = incidences_of(graph)
        stop_names, columns = data.edge_names, data.incidences
    else:
        own = edges_of(graph.nodes if isinstance(graph, RelationalGraph) else graph)
    ends = {src: called(data.node_names, own.src), dst: called(stop_names, own.dst)}
    if isinstance(graph, RelationalGraph):
        kinds = np.asarray(graph.edge_types)[own.places]
        relations = graph.relation_names
        ends[relation] = called(relations and objects([*map(str, relations)]), kinds)
    nodes = made("nodes", {node: called(data.node_names, np.arange(graph.num_nodes))}, data.nodes)
    return made("edges", ends, own.values("edges", columns)), nodes


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
