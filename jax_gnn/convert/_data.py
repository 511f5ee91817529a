"""Results of conversions, and the helpers that conversions share."""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jax_gnn._core.arrays import summarize_fields
from jax_gnn.graph import Graph, input_order
from jax_gnn.hetero import HeteroGraph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import EdgeType, RelationalGraph

Container: TypeAlias = Graph | Hypergraph | RelationalGraph | HeteroGraph
Tree: TypeAlias = Any
"""Arrays by name, or any other pytree of arrays."""


@dataclass(frozen=True, eq=False)
class Data:
    """Graph with the values of its nodes and edges, as arrays of the host.

    Arrays keep their dtypes. Values of edges are in the order of the input:
    ``data.graph.edge_values(data.edges["weight"])`` is in the order that ops take.

    Attributes:
        graph: the structure.
        nodes: ``(num_nodes, *features)`` by name; for a :class:`jax_gnn.HeteroGraph` such a
            dictionary by type; from jraph any tree of arrays.
        edges: ``(num_edges, *features)`` by name; for a :class:`jax_gnn.Hypergraph`
            ``(num_hyperedges, *features)``, for a ``HeteroGraph`` such a dictionary by edge type.
        incidences: ``(num_incidences, *features)`` by name, for hypergraphs only.
        globals: values of the graph by name; for a batch with a row for each graph.
        node_names: ``(num_nodes,)``, names of the nodes; None if they are 0, 1, 2, …
        edge_names: ``(num_edges,)``, names of hyperedges, or keys of parallel edges.
        n_node: ``(num_graphs,)``, number of nodes of each graph of a batch; None for one graph. The
            nodes of a batch are in the order of its graphs, as are the edges.
        n_edge: ``(num_graphs,)``, number of edges of each graph of a batch; None for one graph.
        categories: the values that labels or one-hot columns stand for, by name of the column.
        report: a line for everything that was repeated, missing or dropped.
        recipe: JSON by which :func:`from_table` treats other tables alike; None elsewhere.

    Raises:
        TypeError: ``graph`` is not a graph.
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
    recipe: str | None = None

    def __repr__(self) -> str:
        return summarize_fields(replace(self, recipe=None))

    def __post_init__(self) -> None:
        graph = self.graph
        if not isinstance(graph, Container):
            raise TypeError(
                "graph must be a Graph, Hypergraph, RelationalGraph or HeteroGraph, got "
                f"{type(graph).__name__}"
            )
        if isinstance(graph, HeteroGraph):
            # Values of edges of a HeteroGraph are checked on conversion only.
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
            name = "n_node" if self.n_edge is None else "n_edge"
            raise ValueError(f"n_node and n_edge must be given together, got {name} alone")
        if self.n_node is not None:
            check_counts("n_node", self.n_node, "nodes", graph.num_nodes)
            check_counts("n_edge", self.n_edge, "edges", num_edges(graph), len(self.n_node))

    def features(self, *names: str) -> np.ndarray:
        """Concatenate columns of ``nodes``: ``(num_nodes, features)`` float32.

        Args:
            names: names of the columns; by default all of floating-point numbers.

        Raises:
            ValueError: a column does not exist.
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
        empty = np.zeros((self.graph.num_nodes, 0), np.float32)
        return np.concatenate([empty, *(c.reshape(len(c), -1) for c in columns)], axis=1)


def num_edges(graph: Graph | RelationalGraph | Hypergraph) -> int:
    """Return the number of edges without padding, or of hyperedges."""
    if isinstance(graph, Hypergraph):
        return graph.num_hyperedges
    nodes = graph.nodes if isinstance(graph, RelationalGraph) else graph
    return int(np.asarray(nodes.indptr[-1]))


def check_rows(name: str, tree: Tree, rows: str, size: int) -> None:
    """Raise ValueError unless all arrays of a tree have ``size`` rows."""
    for path, array in jax.tree_util.tree_leaves_with_path(tree):
        shape = np.shape(array)
        if shape[:1] != (size,):
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} must have a row for each of {size} {rows}, "
                f"got shape {shape}"
            )


def check_counts(
    name: str, counts: ArrayLike | None, what: str, total: int, length: int | None = None
) -> None:
    """Raise ValueError unless counts of the graphs of a batch add up to a total."""
    array = np.asarray(counts)
    if array.ndim != 1 or array.dtype.kind not in "iu" or length not in (None, len(array)):
        shape = "(num_graphs,)" if length is None else f"({length},), as n_node is,"
        raise ValueError(
            f"{name} must be {shape} integers, got {array.dtype} of shape {array.shape}"
        )
    if (array < 0).any() or array.sum() != total:
        raise ValueError(
            f"{name} must add up to the number of {what}, {total}, got {int(array.sum())}"
        )


# --- Edges in the order of the input --------------------------------------------------------------


class Edges(NamedTuple):
    """Edges in the order of the input, then edges that were added to the graph; all int64."""

    src: np.ndarray  # source of each edge
    dst: np.ndarray  # destination of each edge
    ids: Any  # number of each edge in the input, -1 if it was added; None if unknown
    # Position of each edge in the graph's order; None for a type of a `HeteroGraph`.
    places: np.ndarray | None
    count: Any = None  # number of edges of the input, dropped ones included; None if unknown

    def values(self, name: str, tree: Tree) -> Any:
        """Return the values of these edges, from arrays with a row for each edge of the input."""
        if not jax.tree.leaves(tree):
            return tree
        if self.ids is None:
            raise ValueError(
                f"{name} must be left out for a graph that does not know the edges it was built "
                "from, as num_input_edges is None, got values"
            )
        # Edges such as self-loops of a layer were never in the input.
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
    """Return the edges of a graph."""
    src, dst, ids = graph._host_edges("a conversion")
    order = input_order(ids)
    return Edges(src[order], dst[order], ids[order], order, graph.num_input_edges)


def incidences_of(hypergraph: Hypergraph) -> Edges:
    """Return the incidences of an undirected hypergraph, as edges from nodes to hyperedges."""
    if hypergraph.head is not None:
        raise ValueError("data must be of an undirected hypergraph, got a directed one")
    return edges_of(hypergraph.graph)


def edges_by_type(graph: HeteroGraph) -> dict[EdgeType, Edges]:
    """Return the edges of each type, with ids within the types of their nodes."""
    is_known = graph.num_input_edges is not None
    counts = np.asarray(graph.num_input_edges).tolist() if is_known else [None]
    counts *= len(graph.edge_types)  # inverse types repeat the counts
    return {
        key: Edges(*graph._edges(key), None, count)
        for key, count in zip(graph.edge_types, counts, strict=False)
    }


# --- Arguments and names --------------------------------------------------------------------------


def as_data(data: object, *kinds: type) -> Data:
    """Return ``Data`` of one of these classes of graphs, from such data or a graph alone."""
    graph = data.graph if isinstance(data, Data) else data
    if not isinstance(graph, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        kind = type(graph).__name__ if graph is data else f"one of {type(graph).__name__}"
        raise TypeError(f"data must be a {expected}, or Data of one, got {kind}")
    return data if isinstance(data, Data) else Data(graph)


def named(name: str, tree: Tree) -> Mapping[str, Any]:
    """Check that a tree is arrays by name; errors call it ``name``."""
    if not isinstance(tree, Mapping):
        raise TypeError(f"{name} must be a mapping by name, got {type(tree).__name__}")
    if keys := [key for key in tree if not isinstance(key, str)]:
        raise TypeError(f"{name} must have text as names, got {keys[0]!r}: rename it")
    return tree


def package(module: str, pip: str) -> Any:
    """Import a module of an optional package; the ImportError says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # installed, but broken
        raise ImportError(f"{module} is not installed: pip install {pip}") from error


def objects(values: Sequence[object]) -> np.ndarray:
    """Return an array of objects, which may be tuples."""
    return np.fromiter(values, object, len(values))


def names_of(values: Iterable[object]) -> np.ndarray | None:
    """Return names as an array of objects; None if they are 0, 1, 2 and so on."""
    names = list(values)
    are_numbers = all(type(name) is int for name in names) and names == list(range(len(names)))
    return None if are_numbers else objects(names)


def as_list(names: Iterable[object] | None, size: int) -> list[Any]:
    """Return names as values of Python; by default 0, 1, 2 and so on."""
    if names is None:
        return list(range(size))
    return names.tolist() if isinstance(names, np.ndarray) else list(names)


def distinct(name: str, names: Iterable[object] | None, size: int) -> list[Any]:
    """Return names as values of Python, after a check that they differ from each other."""
    values = as_list(names, size)
    if len(set(values)) < len(values):
        value, count = Counter(values).most_common(1)[0]
        raise ValueError(f"{name} must differ from each other, got {value!r} {count} times")
    return values


# --- Columns of values of Python ------------------------------------------------------------------


def column(values: list[object]) -> np.ndarray:
    """Return numbers, or lists of numbers of one shape, as an array; other values as objects."""
    kinds = {type(value) for value in values}
    if kinds == {int}:
        for dtype in (np.int64, np.uint64):
            with contextlib.suppress(OverflowError):
                return np.array(values, dtype)
        return objects(values)
    is_plain = kinds == {bool} or kinds <= {int, float} or kinds <= {list, np.ndarray}
    if kinds and (is_plain or all(issubclass(kind, np.generic) for kind in kinds)):
        # Lists of several lengths and integers of more than 64 bits stay objects.
        with contextlib.suppress(ValueError, OverflowError):
            array = np.asarray(values)
            if array.dtype.kind in "biufc":
                return array
    return objects(values)


def columns(title: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Convert dictionaries of attributes, which errors call ``title``, to columns by name."""
    names = named(title, dict.fromkeys(name for row in rows for name in row))
    return {name: column([row.get(name) for row in rows]) for name in names}


def attributes(table: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Convert columns by name to dictionaries of attributes, without missing values."""
    rows: list[dict[str, Any]] = [{} for _ in range(size)]
    for name, values in table.items():
        for row, value in zip(rows, np.asarray(values).tolist(), strict=True):
            if value is not None:
                row[name] = value
    return rows


def count_repeated(graph: Container, inverse: bool) -> tuple[int, int]:
    """Return the number of edges or incidences that repeat another, and of all.

    If `inverse`, each edge has an inverse edge, which does not count.
    """
    graph = graph.relational if isinstance(graph, HeteroGraph) else graph
    # The graph that holds the edges, or the incidences, of each kind of container.
    edges = graph.nodes if isinstance(graph, RelationalGraph) else graph
    edges = edges.graph if isinstance(edges, Hypergraph) else edges
    types = [graph.edge_types] if isinstance(graph, RelationalGraph) else []
    same: Any = True  # edges are sorted, so that repetitions are adjacent
    for array in (edges.rows, edges.cols, *types):
        ids = np.asarray(array)
        same = same & (ids[1:] == ids[:-1])
    # An inverse edge repeats another if the edge that it reverses does.
    return int(np.sum(same)) // (1 + inverse), edges.num_edges // (1 + inverse)
