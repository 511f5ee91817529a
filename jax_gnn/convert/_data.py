"""What a conversion gives, and what all conversions need of it."""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._core.arrays import summarize_fields
from jax_gnn.graph import Graph, given_first
from jax_gnn.hetero import HeteroGraph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import EdgeType, RelationalGraph

Container: TypeAlias = Graph | Hypergraph | RelationalGraph | HeteroGraph


@dataclass(frozen=True, eq=False)
class Data:
    """A graph with all that its nodes and edges have, as arrays of the host.

    Arrays keep the dtypes that they came with. Those of edges are in the order of the edges as they
    were given: ``data.graph.edge_values(data.edges["weight"])`` is in the order that ops take.

    Attributes:
        graph: the structure.
        nodes: by name ``(num_nodes, *features)``; of a :class:`jax_gnn.HeteroGraph` by type such
            dicts. Of jraph whatever tree of arrays it had.
        edges: by name ``(num_edges, *features)``; of a :class:`jax_gnn.Hypergraph`
            ``(num_hyperedges, *features)``, of a ``HeteroGraph`` by edge type such dicts.
        incidences: by name ``(num_incidences, *features)``, of a hypergraph only.
        globals: by name what belongs to the whole; of a batch a row for each graph.
        node_names: ``(num_nodes,)``, what nodes were called; None where they are their numbers.
        edge_names: ``(num_edges,)``, the names of hyperedges, the keys of parallel edges.
        n_node: ``(num_graphs,)``, how many nodes each graph of a batch has; None for one graph. The
            graphs of a batch are one after another, their edges too.
        n_edge: ``(num_graphs,)``, how many edges each has, likewise.
        categories: by the name of a column the values that its labels or one-hot columns stand for.
        report: a line for whatever was repeated, missing or dropped.

    Raises:
        TypeError: ``graph`` is no graph.
        ValueError: an array has not a row for each node, or counts do not add up.

    Example:
        >>> graph = jax_gnn.Graph.from_edges([0, 1], [1, 0])
        >>> data = Data(graph, nodes={"x": np.ones((2, 8))}, edges={"weight": np.ones(2)})
        >>> data.features("x").shape, to_scipy(data).shape
        ((2, 8), (2, 2))
    """

    graph: Any
    nodes: Any = field(default_factory=dict)
    edges: Any = field(default_factory=dict)
    incidences: Any = field(default_factory=dict)
    globals: Any = field(default_factory=dict)
    node_names: Any = None
    edge_names: Any = None
    n_node: np.ndarray | None = None
    n_edge: np.ndarray | None = None
    categories: Mapping[str, np.ndarray] = field(default_factory=dict)
    report: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return summarize_fields(self)

    def __post_init__(self) -> None:
        graph = self.graph
        if not isinstance(graph, Container):
            raise TypeError(
                "graph must be a Graph, Hypergraph, RelationalGraph or HeteroGraph, got "
                f"{type(graph).__name__}"
            )
        if isinstance(graph, HeteroGraph):
            for kind, columns in named("nodes", self.nodes).items():
                check_rows(f"nodes[{kind!r}]", columns, "nodes", graph.num_nodes.get(kind, 0))
            return
        if jax.tree.leaves(self.nodes):
            check_rows("nodes", self.nodes, "nodes", graph.num_nodes)
        if self.node_names is not None:
            check_rows("node_names", np.asarray(self.node_names), "nodes", graph.num_nodes)
        if isinstance(graph, Hypergraph):
            check_rows("edges", self.edges, "hyperedges", graph.num_hyperedges)
        if (self.n_node is None) != (self.n_edge is None):
            given = "n_node" if self.n_edge is None else "n_edge"
            raise ValueError(f"n_node and n_edge must be given together, got {given} alone")
        if self.n_node is not None:
            check_counts("n_node", self.n_node, "nodes", graph.num_nodes)
            check_counts("n_edge", self.n_edge, "edges", num_edges(graph), len(self.n_node))

    def features(self, *names: str) -> np.ndarray:
        """Columns of ``nodes`` beside each other: ``(num_nodes, features)`` float32.

        Args:
            names: which; by default all of floating-point numbers.

        Raises:
            ValueError: there is no such column.
        """
        for name in names:
            if name not in self.nodes:
                raise ValueError(f"names must be among {', '.join(self.nodes)}, got {name!r}")
        chosen = names or [
            name
            for name, values in self.nodes.items()
            if jnp.issubdtype(np.asarray(values).dtype, np.inexact)
        ]
        columns = [np.asarray(self.nodes[name], np.float32) for name in chosen]
        none = np.zeros((self.graph.num_nodes, 0), np.float32)
        return np.concatenate([none, *(c.reshape(len(c), -1) for c in columns)], axis=1)


def num_edges(graph: Any) -> int:
    """How many edges there are, padding left out; of a hypergraph hyperedges."""
    if isinstance(graph, Hypergraph):
        return graph.num_hyperedges
    nodes = graph.nodes if isinstance(graph, RelationalGraph) else graph
    return int(np.asarray(nodes.indptr[-1]))


def check_rows(name: str, tree: Any, rows: str, size: int) -> None:
    """Refuses what has no array, or not as many rows as there are nodes or edges."""
    for path, array in jax.tree_util.tree_leaves_with_path(tree):
        shape = np.shape(array)
        if shape[:1] != (size,):
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} must have a row for each of {size} {rows}, "
                f"got shape {shape}"
            )


def check_counts(name: str, counts: Any, what: str, total: int, length: int | None = None) -> None:
    """Refuses numbers by graph of a batch that do not add up."""
    counts = np.asarray(counts)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or length not in (None, len(counts)):
        wanted = "(num_graphs,)" if length is None else f"({length},), as n_node is,"
        raise ValueError(
            f"{name} must be {wanted} integers, got {counts.dtype} of shape {counts.shape}"
        )
    if (counts < 0).any() or counts.sum() != total:
        raise ValueError(
            f"{name} must add up to the number of {what}, {total}, got {int(counts.sum())}"
        )


# --- Edges in the order of the input --------------------------------------------------------------


class Edges(NamedTuple):
    """Edges in the order of the input, those that were added last; all int64."""

    src: np.ndarray
    dst: np.ndarray
    ids: Any
    """Number of each edge in the input, -1 if it was added; None if the numbers are unknown."""
    places: np.ndarray
    """Place of each edge in the graph's order."""
    count: Any = None
    """Number of edges of the input, dropped ones included; None if unknown."""

    def values(self, name: str, tree: Any) -> Any:
        """Arrays with a row for each of these edges, from a tree of them by edge of the input.

        Raises:
            ValueError: there are more or fewer rows, or edges that were added have none.
        """
        if not jax.tree.leaves(tree):
            return tree
        if self.ids is None:
            raise ValueError(
                f"{name} must be left out for a graph that does not know the edges it was built "
                "from, as num_input_edges is None, got values"
            )
        if (self.ids < 0).any():
            raise ValueError(
                f"{name} must have a value for each edge, got none for the "
                f"{int((self.ids < 0).sum())} edges that were added to the graph"
            )
        count = int(self.ids.max(initial=-1)) + 1 if self.count is None else int(self.count)
        check_rows(name, tree, "edges", count)
        if np.array_equal(self.ids, np.arange(count)):
            return tree
        return jax.tree.map(lambda array: np.asarray(array)[self.ids], tree)


def edges_of(graph: Graph) -> Edges:
    """The edges of a graph."""
    size = int(np.asarray(graph.indptr[-1]))
    src, dst, ids = (np.asarray(a)[:size] for a in (graph.cols, graph.rows, graph.edge_ids))
    order = given_first(ids)
    src, dst, ids = (array[order].astype(np.int64) for array in (src, dst, ids))
    return Edges(src, dst, ids, order, graph.num_input_edges)


def incidences_of(hypergraph: Hypergraph) -> Edges:
    """The incidences of an undirected hypergraph, from nodes to hyperedges.

    Raises:
        ValueError: it is directed.
    """
    if hypergraph.head is not None:
        raise ValueError("data must be of an undirected hypergraph, got a directed one")
    return edges_of(hypergraph.graph)


def edges_by_type(graph: HeteroGraph) -> dict[EdgeType, Edges]:
    """The edges of each type, by number within the types at their ends."""
    known = graph.num_input_edges is not None
    counts = np.asarray(graph.num_input_edges).tolist() if known else [None]
    counts *= len(graph.edge_types)  # an inverse type has those of the type that it reverses
    return {
        key: Edges(*graph._edges(key), count)
        for key, count in zip(graph.edge_types, counts, strict=False)
    }


# --- What conversions take and give ---------------------------------------------------------------


def as_data(data: Any, *kinds: type) -> Data:
    """What is given, if it is of one of these graphs, or such a graph alone.

    Raises:
        TypeError: it is something else.
    """
    found = data if isinstance(data, Data) else None
    graph = data if found is None else found.graph
    if not isinstance(graph, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        given = type(graph).__name__ if found is None else f"one of {type(graph).__name__}"
        raise TypeError(f"data must be a {wanted}, or Data of one, got {given}")
    return Data(graph) if found is None else found


def named(name: str, tree: Any) -> Mapping[str, Any]:
    """Arrays by name, for who takes no other trees.

    Raises:
        TypeError: these have no names.
    """
    if not isinstance(tree, Mapping):
        raise TypeError(f"{name} must be a mapping by name, got {type(tree).__name__}")
    if other := [key for key in tree if not isinstance(key, str)]:
        raise TypeError(f"{name} must have text as names, got {other[0]!r}: rename it")
    return tree


def package(module: str, pip: str) -> Any:
    """A module of a package that is imported only where it is used.

    Raises:
        ImportError: it is not installed; the error says how to.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # installed, but broken
        raise ImportError(f"{module} is not installed: pip install {pip}") from error


def objects(values: Sequence[Any]) -> np.ndarray:
    """Values of any kind, tuples too, as one array of them."""
    return np.fromiter(values, object, len(values))


def names_of(values: Iterable[Any]) -> np.ndarray | None:
    """Names of any kind as an array; None where they are 0, 1, 2, ..."""
    names = list(values)
    numbers = all(type(name) is int for name in names) and names == list(range(len(names)))
    return None if numbers else objects(names)


def listed(names: Any, size: int) -> list[Any]:
    """Names as values of Python; by default 0, 1, 2, ..."""
    if names is None:
        return list(range(size))
    return names.tolist() if isinstance(names, np.ndarray) else list(names)


def distinct(name: str, names: Any, size: int) -> list[Any]:
    """Names likewise, of which none is given twice.

    Raises:
        ValueError: one is.
    """
    values = listed(names, size)
    if len(set(values)) < len(values):
        value, count = Counter(values).most_common(1)[0]
        raise ValueError(f"{name} must differ from each other, got {value!r} {count} times")
    return values


# --- Columns of values of Python ------------------------------------------------------------------


def column(values: list[Any]) -> np.ndarray:
    """One value for each node or edge: numbers and lists of one shape as numbers, else objects.

    None stands for a value that is missing.
    """
    kinds = {type(value) for value in values}
    if kinds == {int}:
        for dtype in (np.int64, np.uint64):
            with contextlib.suppress(OverflowError):
                return np.array(values, dtype)
        return objects(values)
    plain = kinds == {bool} or kinds <= {int, float} or kinds <= {list, np.ndarray}
    if kinds and (plain or all(issubclass(kind, np.generic) for kind in kinds)):
        with contextlib.suppress(
            ValueError, OverflowError
        ):  # rows of several lengths, large numbers
            array = np.asarray(values)
            if array.dtype.kind in "biufc":
                return array
    return objects(values)


def columns(title: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Dicts of attributes, one for each node or edge, as columns by name.

    Raises:
        TypeError: a name is no text; the error calls the rows ``title``.
    """
    names = named(title, dict.fromkeys(name for row in rows for name in row))
    return {name: column([row.get(name) for row in rows]) for name in names}


def attributes(table: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Columns by name as dicts, one for each node or edge, without what is missing."""
    rows: list[dict[str, Any]] = [{} for _ in range(size)]
    for name, values in table.items():
        for row, value in zip(rows, np.asarray(values).tolist(), strict=True):
            if value is not None:
                row[name] = value
    return rows
