"""Conversions of tables of edges and of nodes: CSV, data frames, Arrow."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from jax_gnn._core.arguments import check_flag
from jax_gnn._core.direction import MIN_REVERSED_SHARE, reversed_share
from jax_gnn._core.files import errors_in
from jax_gnn.convert import _data
from jax_gnn.convert._columns import Column, Table, encode, numbers, place_of, read_columns
from jax_gnn.convert._data import Container, Data, Tree
from jax_gnn.convert._kinds import (
    FILLS,
    blank_markers,
    fill_value,
    read_kind,
    whole_seconds,
)
from jax_gnn.convert._names import (
    HYPEREDGES,
    encode_names,
    end_words,
    find_ends,
    find_id,
    node_order,
    shared_names,
    taken_as,
)
from jax_gnn.graph import Graph
from jax_gnn.hetero import HeteroGraph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph

# Names are kept by kind: a type of nodes, which is "" without types, `HYPEREDGES`, or this one.
RELATIONS = "relations"
_NUMBERS = "time", "weight", "target", "y"  # roles of columns that hold no names
Roles: TypeAlias = Callable[[Sequence[str]], dict[str, str]]
"""A function that finds columns among all: their names by role, which is the documented name."""


def from_table(
    edges: Table,
    nodes: Table | None = None,
    *,
    src: str | None = None,
    dst: str | None = None,
    node: str | None = None,
    relation: str | None = None,
    hypergraph: bool = False,
    directed: bool | None = None,
    one_hot: str | Sequence[str] = (),
    labels: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    fill_missing: Literal["mean", "median", "zero", "indicator"] | None = None,
    recipe: str | None = None,
) -> Data:
    """Read a graph from a table of edges and, optionally, one of nodes.

    A table is the path of a CSV file with a header, by which commas, semicolons, tabs or bars part
    cells (TSV by its suffix, Parquet and Arrow by pyarrow), a mapping of columns, a data frame of
    pandas or polars, or any other object with the Arrow C stream interface, which pyarrow reads.
    Text may be compressed (``.gz``, ``.zst`` by pyarrow). A file of another suffix that begins with
    ``#`` is a list of edges in SNAP's format: comments, and fields between white space, of which
    the first two are source and destination. An entry (i, j) of a MatrixMarket file (``.mtx``) is
    an edge from i to j, which count from 1; with ``hypergraph``, a line of an hMETIS file
    (``.hgr``) is a hyperedge.

    Edges name nodes by text or integers. Edges with a missing name, or a name in no row of
    ``nodes``, are dropped. If some names are text, integers become text; 1.0 is 1. The index of a
    data frame is a column only if an argument has its name. ``report`` and one warning say what was
    dropped, missing or repeated.

    Args:
        edges: table with a row for each edge; or such tables by (source type, relation, destination
            type).
        nodes: table with a row for each node, or such tables by type. Without one, the nodes are
            the names in ``edges`` in ascending order.
        src: column of ``edges`` with the name of the source. None takes ``src``, or else the only
            column by a word such as ``source``, ``from``, ``head``, ``sender`` or ``u``, in any
            case, with its partner; ``report`` says which. By type, it may be the type of the nodes.
        dst: column of ``edges`` with the name of the destination; None as of ``src``.
        node: column of ``nodes`` with the name of the node. None takes ``id``, or else the only
            column by a word such as ``node``, ``node_id`` or ``name``.
        relation: column of ``edges`` with the name of the relation, for a table without types.
        hypergraph: whether ``dst`` names hyperedges: each row puts a node into one. None takes
            ``node`` and ``hyperedge``, too.
        directed: whether edges have a direction. If not, the graph has the reverse of each edge,
            too, of relations as inverse relations named ``rev_…``. None keeps the edges as they
            are, and reports it if less than a tenth of them have their reverse.
        one_hot: columns of either table that become a column for each of their values.
        labels: columns that become the numbers of their values, -1 if missing.
        ignore: columns of either table that are left out.
        fill_missing: number that takes the place of missing ones in columns of floats: the "mean"
            or "median" of the column, "zero", or by "indicator" the mean beside a column
            ``"KEY is missing"`` of zeros and ones. None leaves NaN.
        recipe: ``recipe`` of the data of a training: the same columns then become the same numbers,
            with its categories, relations and fills, and all arguments but the tables are those of
            that call. Labels may be missing; values that it does not know are none.

    Returns:
        ``Data`` of a ``Graph``; of a ``RelationalGraph`` with ``relation``, of a ``HeteroGraph``
        from tables by type, of a ``Hypergraph`` with ``hypergraph``, where columns of ``edges`` are
        ``incidences``. Other columns of numbers are float32, NaN if missing, or of 64 bits if
        float32 would round numbers beyond 2**24. Dates and times are seconds since 1970 as int64,
        or microseconds if some are no whole seconds. Columns of other text are dropped; columns
        of nodes that only number the rows are int64, which ``features()`` leaves out. Text is read
        as numbers if all cells are such or missing (``NA``, ``N/A``, ``null``, ``NaN``, ``None``,
        ``-``, ``?`` or nothing), also with thousands separators or one sign, as in ``$1,234.5``, or
        decimal commas; at most 1 % of cells may be typos, which count as missing.
        ``categories`` has the values of ``one_hot`` and ``labels``, of all tables together.

    Raises:
        ValueError: an argument does not fit, or a column or a relation is not that of the recipe.

    Example:
        >>> edges = {"src": ["ann", "bob"], "dst": ["bob", "eve"], "years": [2, 5]}
        >>> data = from_table(edges, directed=True)
        >>> data.node_names.tolist(), data.graph, data.edges["years"]
        (['ann', 'bob', 'eve'], Graph(num_nodes=3, num_edges=2), array([2., 5.], dtype=float32))
    """
    arguments = {
        "src": src,
        "dst": dst,
        "node": node,
        "relation": relation,
        "hypergraph": hypergraph,
        "directed": directed,
        "one_hot": [*_as_sequence(one_hot)],
        "labels": [*_as_sequence(labels)],
        "ignore": [*_as_sequence(ignore)],
        "fill_missing": fill_missing,
    }
    plan = Recipe(arguments, {}, {}, []) if recipe is None else Recipe(**json.loads(recipe))
    # A recipe has the arguments of its own call, in this order.
    src, dst, node, relation, hypergraph, directed, *choices = plan.arguments.values()
    one_hot, labels, ignore, fill_missing = choices
    by_type = isinstance(edges, Mapping) and any(isinstance(key, tuple) for key in edges)
    kinds = {"tables by type": by_type, "relation": relation is not None, "hypergraph": hypergraph}
    if len(chosen := [kind for kind, is_chosen in kinds.items() if is_chosen]) > 1:
        listed = " and ".join(chosen)
        raise ValueError(
            f"edges must be of one kind: by type, relation or hypergraph, got {listed}"
        )
    if by_type and not isinstance(nodes, Mapping | None):
        raise TypeError(f"nodes must be tables by type, as edges are, got {type(nodes).__name__}")
    roles = {"src": src, "dst": dst} | ({} if relation is None else {"relation": relation})
    if hypergraph and directed is not None:
        raise ValueError(f"directed must be None for a hypergraph, got {directed!r}")
    inverse = directed is not None and not check_flag("directed", directed)
    single_type = "", "", HYPEREDGES if hypergraph else ""
    report: list[str] = []
    edge_tables = [
        _read_table("edges", key, table, by_type, roles, report)
        for key, table in (edges if by_type else {single_type: edges}).items()
    ]
    # Tables of nodes fix the order of names; all others only add edges.
    node_tables = {
        kind: _read_table("nodes", kind, table, by_type, {"node": node}, report)
        for kind, table in ((nodes or {}) if by_type else {"": nodes}).items()
        if by_type or table is not None
    }
    tables = [*edge_tables, *node_tables.values()]
    if fill_missing not in (None, *FILLS):
        raise ValueError(
            f"fill_missing must be one of {', '.join(FILLS)} or None, got {fill_missing!r}"
        )
    for name in ignore:
        if all([table.columns.pop(name, None) is None for table in tables]) and recipe is None:
            raise ValueError(f"ignore must be among the columns of either table, got {name!r}")
    names = assign_ids(edge_tables, node_tables)
    for table in edge_tables:
        valid = np.logical_and.reduce([array >= 0 for array in table.ids.values()])
        if not valid.all():
            count = f"{len(valid) - int(valid.sum())} of {len(valid)}"
            report.append(f"{table.title}: {count} name no node, or nothing: dropped")
            table.is_kept = valid
            table.ids = {name: array[valid] for name, array in table.ids.items()}
    sizes = {kind: len(kind_names) for kind, kind_names in names.items()}
    ids = [list(table.ids.values()) for table in edge_tables]
    graph: Container
    if by_type:
        pairs = {table.key: part for table, part in zip(edge_tables, ids, strict=True)}
        graph = HeteroGraph.from_edges(pairs, sizes, inverse=inverse)
    elif hypergraph:
        size = sizes.pop(HYPEREDGES)
        graph = Hypergraph.from_incidence(*ids[0], num_nodes=sizes[""], num_hyperedges=size)
    elif relation is None:
        graph = Graph.from_edges(*ids[0], num_nodes=sizes[""])
    else:
        sources, destinations, relations = ids[0]
        relation_names = names.pop(RELATIONS)
        if recipe is not None:
            new, unknown = _renumbered(relation_names, plan.relations)
            if unknown:
                raise ValueError(f"edges must have the relations of the recipe, got {unknown[0]!r}")
            relations, relation_names = new[relations], _data.column(plan.relations)
        plan.relations[:] = relation_names.tolist()
        graph = RelationalGraph.from_triples(
            sources, relations, destinations, sizes[""], len(relation_names), inverse=inverse
        )
        texts = [before + str(name) for before in ("", "rev_") for name in relation_names.tolist()]
        graph = replace(graph, relation_names=tuple(texts[: len(texts) // (2 - inverse)]))
    repeated, total = _data.count_repeated(graph, inverse and not isinstance(graph, Graph))
    if repeated:
        report.append(f"edges: {repeated} of {total} repeat another: kept")
    if isinstance(graph, Graph):
        share = reversed_share(ids[0][0], ids[0][1], sizes[""])
        ends = ["", ""] if node_tables else [*edge_tables[0].roles.values()]
        report += [f"edges: {line}" for line in shared_names(ends, ids[0])]
        if directed is None and share < MIN_REVERSED_SHARE:
            report.append(
                f"edges: {share:.1%} have their reverse: kept as they are; directed=False adds the "
                "others, directed=True keeps them without this line"
            )
        graph = graph.symmetrized() if inverse else graph
    # Categories are shared by all tables that have the column.
    known_values = plan.categories if recipe is not None else None
    categories = _encode_categories(tables, one_hot, labels, known_values, report)
    for table in tables:
        known = plan.columns.get(table.title)
        plan.columns[table.title] = table.convert(labels, categories, fill_missing, report, known)
    plan.categories.update({name: values.tolist() for name, values in categories.items()})
    edge_names = names.pop(HYPEREDGES) if hypergraph else None
    parts: dict[str, Any] = {
        "edges": {table.key: table.columns for table in edge_tables},
        "nodes": {table.key: table.columns for table in node_tables.values()},
        "node_names": {kind: _unless_numbers(values) for kind, values in names.items()},
    }
    if not by_type:
        parts = {part: next(iter(values.values()), {}) for part, values in parts.items()}
    if edge_names is not None:
        parts["incidences"] = parts.pop("edges")
        parts["edge_names"] = _unless_numbers(edge_names)
    if report:
        warnings.warn(f"from_table: {'; '.join(report)}", stacklevel=2)
    text = recipe or json.dumps(plan._asdict(), default=str)
    return Data(graph, **parts, categories=categories, report=tuple(report), recipe=text)


class Recipe(NamedTuple):
    """Description of what `from_table` did, for other tables: JSON values.

    Attributes:
        arguments: Arguments of the call but the tables.
        categories: Values of columns of labels or one-hot columns, by name.
        columns: For each table by title, and for each of its other columns, a dictionary; None for
            columns that were dropped. It has the ``kind``, the ``form`` of cells, the ``unit`` of
            times, the number ``fill`` in the place of missing ones, and whether a column tells
            these, ``flag``.
        relations: Names of the relations in the order of their numbers.
    """

    arguments: dict[str, Any]
    categories: dict[str, list[Any]]
    columns: dict[str, dict[str, Any]]
    relations: list[Any]


@dataclass
class NamedTable:
    """Table of which some columns name nodes."""

    title: str  # name of the table in errors
    key: Any  # its type of nodes, or (source type, relation, destination type)
    # Columns of names by their names in errors; `assign_ids` replaces them by ids.
    ids: dict[str, Column]
    columns: dict[str, Column]  # columns by name
    roles: dict[str, str]  # names of columns by documented name, which is their role
    place: Callable[[int], str]  # description of the place of a row
    is_kept: np.ndarray | EllipsisType = ...  # the rows that are not dropped

    @classmethod
    def open(
        cls,
        title: str,
        key: Any,
        table: Table,
        roles_of: Roles,
        ids: Mapping[str, str],
        **fields: Any,
    ) -> Self:
        """Read a table, where `ids` are the roles of columns of names, and names by default."""

        def names_in(columns: Sequence[str]) -> list[str]:
            return [name for role, name in roles_of(columns).items() if role not in _NUMBERS]

        columns = read_columns(title, table, names_in, [*ids.values()])
        roles = roles_of([*columns])
        named = {f"{title}[{roles[r]!r}]": columns[roles[r]] for r in ids if r in roles}
        return cls(title, key, named, columns, roles, partial(place_of, table), **fields)

    def convert(
        self,
        labels: Sequence[str],
        categories: Mapping[str, np.ndarray],
        fill: str | None,
        report: list[str],
        plan: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Convert all other columns to numbers, in the rows that are kept.

        Returns:
            The columns as of `Recipe`, of which `plan` has those of a training.
        """
        done: dict[str, Any] = {}
        if plan is not None:
            lacking = [key for key, fields in plan.items() if fields and key not in self.columns]
            if lacking:
                raise ValueError(f"{self.title} must have the columns of the recipe: {lacking}")
        for key, values in [*self.columns.items()]:
            name = f"{self.title}[{key!r}]"
            if key in categories:  # already encoded
                missing, array = values < 0, values.astype(np.int32)
                if key not in labels:
                    array = (values[:, None] == np.arange(len(categories[key]))).astype(np.float32)
                fields: dict[str, Any] = {}
            else:
                known = None if plan is None else plan.get(key)
                if plan is not None and key not in plan:
                    report.append(f"{name} is not in the recipe: dropped")
                numeric = None
                if plan is None or known is not None:
                    numeric, fields = self._read(key, name, values, report, known)
                if numeric is None:
                    done[key] = None
                    del self.columns[key]
                    continue
                array, missing = numeric, np.isnan(numeric)
                if known is not None:
                    fields = dict(known)
                elif fill is not None and array.ndim == 1:
                    flag = fill == "indicator" and bool(missing.any())
                    fields |= {"fill": float(fill_value(array, fill)), "flag": flag}
                if "fill" in fields and array.dtype.kind == "f":
                    array = np.where(missing, fields["fill"], array).astype(array.dtype)
                if fields.get("flag"):
                    flags = missing[self.is_kept].astype(np.float32)
                    self.columns[f"{key} is missing"] = flags
                done[key] = fields
            if missing.any():
                remark = f", filled with {fields['fill']:.6g}" if "fill" in fields else ""
                report.append(f"{name}: {int(missing.sum())} of {missing.size} are missing{remark}")
            if array.dtype.kind == "f" and (num_infinite := int(np.isinf(array).sum())):
                report.append(f"{name}: {num_infinite} of {array.size} are infinite")
            self.columns[key] = array[self.is_kept]
        return done

    def _read(
        self,
        key: str,
        name: str,
        values: Column,
        report: list[str],
        known: Mapping[str, Any] | None,
    ) -> tuple[np.ndarray | None, dict[str, Any]]:
        """Return a column as numbers, None if it has none, and its fields; report how it was read.

        `known` are the fields of the column in a training, if any.
        """
        with errors_in(self.title):
            kind: Any = known and {"index": "number"}.get(known["kind"], known["kind"])
            reading = read_kind(key, values, self.place, kind, (known or {}).get("form", ""))
        if reading.kind in ("category", "text") or reading.values.dtype == object:
            report.append(f"{name} holds no numbers, and is in neither one_hot nor labels: dropped")
            return None, {}
        if reading.typos:
            report.append(f"{name}: {reading.typos}")
        by_name = ", so that features() takes it by name only" * self.title.startswith("nodes")
        if reading.kind == "time":
            times, unit = whole_seconds(reading.values)
            if known and known["unit"] != unit:  # that of the training
                unit = known["unit"]
                times = reading.values / (1 if unit.startswith("micro") else 10**6)
            form = f" ({reading.how})" * bool(reading.how)
            report.append(f"{name} holds times{form}: {unit}, {times.dtype}{by_name}")
            return times, {"kind": "time", "unit": unit, "form": reading.form}
        if reading.how:
            report.append(f"{name} holds numbers {reading.how}")
        is_index = (known["kind"] if known else reading.kind) == "index" and bool(by_name)
        if is_index and not np.isnan(reading.values).any():
            report.append(f"{name} only numbers the rows: kept in int64{by_name}")
            return reading.values.astype(np.int64), {"kind": "index"}
        array = numbers(reading.values)
        assert array is not None
        if array.dtype != np.float32:
            is_integer = array.dtype.kind in "iu"
            report.append(
                f"{name} has numbers beyond 2**24, which float32 rounds: kept in "
                f"{array.dtype}{by_name * is_integer}"
            )
        return array, {"kind": "number", "form": reading.form}


def _read_table(
    part: str,
    key: Any,
    table: Table,
    by_type: bool,
    choices: Mapping[str, str | None],
    report: list[str],
) -> NamedTable:
    """Read a table of "edges" or "nodes"; `choices` are names of columns by role, or None."""
    title = f"{part}[{key!r}]" if by_type else part
    if part == "edges" and (not isinstance(key, tuple) or len(key) != 3):
        raise ValueError(
            f"edges must be by (source type, relation, destination type), got the key {key!r}"
        )

    def roles_of(columns: Sequence[str]) -> dict[str, str]:
        for role, name in choices.items():
            if name not in (None, *columns):
                listed = ", ".join(map(repr, columns))
                raise ValueError(f"{role} must be a column of {title}, {listed}, got {name!r}")
        with errors_in(title):
            if part == "nodes":
                return {"id": choices["node"] or find_id(columns, str(key))}
            words = end_words(key[0], key[2])
            ends = find_ends(columns, words, choices["src"], choices["dst"])
        names = [*ends, *[name for role, name in choices.items() if role == "relation" and name]]
        if len({*names}) < len(names):
            options = ", ".join(f"{role}={names[i]!r}" for i, role in enumerate(choices))
            raise ValueError(f"edges must have a column for each of their ends, got {options}")
        return dict(zip(choices, names, strict=True))

    ids = {"id" if role == "node" else role: name or role for role, name in choices.items()}
    named = NamedTable.open(title, key, table, roles_of, ids)
    matches = {role: name for role, name in named.roles.items() if name not in choices.values()}
    report += taken_as(title, matches)
    for name in named.roles.values():
        del named.columns[name]
    return named


def assign_ids(
    edge_tables: Sequence[NamedTable], node_tables: Mapping[str, NamedTable]
) -> dict[str, np.ndarray]:
    """Replace names in tables of edges by ids, -1 for unknown names.

    Returns:
        The names by kind, in the order of the table of nodes, or else ascending.
    """
    # All columns that name one kind are encoded together: nodes first, then edges.
    columns: dict[str, list[tuple[NamedTable, str]]] = {
        kind: [(table, name) for name in table.ids] for kind, table in node_tables.items()
    }
    for table in edge_tables:
        for kind, name in zip((table.key[0], table.key[2], RELATIONS), table.ids, strict=False):
            columns.setdefault(kind, []).append((table, name))
    names = {}
    for kind, sources in columns.items():
        names[kind], codes = encode_names({name: table.ids[name] for table, name in sources})
        if kind in node_tables:
            table = node_tables[kind]
            names[kind], number = node_order(table.title, names[kind], codes[0], table.place)
            sources, codes = sources[1:], [number[code] for code in codes[1:]]
        for (table, name), code in zip(sources, codes, strict=True):
            table.ids[name] = code
    return names


def _as_sequence(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


def _encode_categories(
    tables: Sequence[NamedTable],
    one_hot: Sequence[str],
    labels: Sequence[str],
    known: Mapping[str, list[Any]] | None,
    report: list[str],
) -> dict[str, np.ndarray]:
    """Replace the values of columns by their numbers, and return the values by column.

    `known` has the values of a training by column; others become -1.
    """
    categories: dict[str, np.ndarray] = {}
    for option, names in (("one_hot", one_hot), ("labels", labels)):
        for name in names:
            sources = [table for table in tables if name in table.columns]
            if not sources and known is not None and option == "labels":
                continue
            if not sources:
                keys = ", ".join(repr(key) for table in tables for key in table.columns)
                keys = keys or "of nodes"
                raise ValueError(f"{option} must be among the columns {keys}, got {name!r}")
            if name in categories:
                raise ValueError(f"one_hot and labels must share no column, got {name!r} in both")
            columns = {f"{table.title}[{name!r}]": table.columns[name] for table in sources}
            if option == "labels":
                columns = {title: blank_markers(values) for title, values in columns.items()}
            categories[name], codes = encode(columns)
            if known is not None:
                new, unknown = _renumbered(categories[name], known[name])
                report += [f"{name!r}: the recipe lacks {word!r:.80}" for word in unknown[:1]]
                codes, categories[name] = [new[code] for code in codes], _data.column(known[name])
            for table, code in zip(sources, codes, strict=True):
                table.columns[name] = code
    return categories


def _renumbered(values: np.ndarray, known: Sequence[Any]) -> tuple[np.ndarray, list[str]]:
    """Return the numbers of values among known ones, -1 for others and for -1; and the others."""
    numbers_of = {str(value): i for i, value in enumerate(known)}
    words = [*map(str, values.tolist())]
    places = np.array([*(numbers_of.get(word, -1) for word in words), -1], np.int32)
    return places, [word for word in words if word not in numbers_of]


def _unless_numbers(names: np.ndarray) -> np.ndarray | None:
    """Return the names, or None if they are the numbers of the nodes."""
    return None if np.array_equal(names, np.arange(len(names))) else names


def to_table(
    data: Data | Container,
    *,
    src: str = "src",
    dst: str = "dst",
    node: str = "id",
    relation: str = "relation",
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Make tables of edges and of nodes: columns by name, for data frames of any library.

    Args:
        data: a ``Graph``, a ``RelationalGraph``, a ``HeteroGraph`` or an undirected ``Hypergraph``,
            or ``Data`` of one. Values of hyperedges are left out.
        src: name of the column of edges with the source.
        dst: name of the column of edges with the destination.
        node: name of the column of nodes with the name of the node.
        relation: name of the column of edges with the relation, of a ``RelationalGraph``.

    Returns:
        ``(edges, nodes)`` as :func:`from_table` takes them, for a ``HeteroGraph`` by type. Columns
        in ``categories`` have their values again, None if missing.
    """
    data = _data.as_data(data, Graph, RelationalGraph, HeteroGraph, Hypergraph)

    def table(title: str, names: dict[str, np.ndarray], columns: Tree) -> dict[str, np.ndarray]:
        values = {
            key: _decode(data, key, array) for key, array in _data.named(title, columns).items()
        }
        for key in names.keys() & values.keys():
            raise ValueError(
                f"{title} must have no column that is called {key!r}: name it otherwise"
            )
        return {**names, **values}

    graph = data.graph
    if isinstance(graph, HeteroGraph):
        names, edge_tables = dict(data.node_names or {}), {}
        for key, edges in _data.edges_by_type(graph).items():
            title = f"edges[{key!r}]"
            node_names = {
                src: _select(names.get(key[0]), edges.src),
                dst: _select(names.get(key[2]), edges.dst),
            }
            edge_tables[key] = table(
                title, node_names, edges.values(title, data.edges.get(key, {}))
            )
        node_tables = {
            kind: table(
                f"nodes[{kind!r}]",
                {node: _select(names.get(kind), np.arange(size))},
                data.nodes.get(kind, {}),
            )
            for kind, size in graph.num_nodes.items()
        }
        return edge_tables, node_tables
    dst_names, columns = data.node_names, data.edges
    if isinstance(graph, Hypergraph):
        edges = _data.incidences_of(graph)
        dst_names, columns = data.edge_names, data.incidences
    else:
        edges = _data.edges_of(graph.nodes if isinstance(graph, RelationalGraph) else graph)
    edge_names = {src: _select(data.node_names, edges.src), dst: _select(dst_names, edges.dst)}
    if isinstance(graph, RelationalGraph):
        types = np.asarray(graph.edge_types)[edges.places]
        relations = graph.relation_names
        edge_names[relation] = _select(relations and _data.objects([*map(str, relations)]), types)
    node_names = {node: _select(data.node_names, np.arange(graph.num_nodes))}
    nodes = table("nodes", node_names, data.nodes)
    return table("edges", edge_names, edges.values("edges", columns)), nodes


def _select(names: Iterable[Any] | None, ids: np.ndarray) -> np.ndarray:
    """Return the names of some ids, or the ids if they have no names."""
    return ids if names is None else np.asarray(np.asarray(names)[ids])


def _decode(data: Data, key: str, values: Any) -> np.ndarray:
    """Return the values that labels or one-hot columns stand for."""
    codes = np.asarray(values)
    if key not in data.categories:
        return codes
    # Rows of one-hot columns without a one stand for missing values.
    if codes.ndim == 2:
        codes = np.where(codes.any(axis=1), codes.argmax(axis=1), -1)
    categories = data.categories[key]
    if (codes >= 0).all():
        return np.asarray(categories[codes])
    return np.asarray(_data.objects([*categories.tolist(), None])[codes])
