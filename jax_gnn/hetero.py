"""Graphs of several types of nodes and edges, by name, as users of PyG and DGL know them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC, promoted
from jax_gnn._core.ids import device_of, is_traced, namespace, on_host, run_on_host, to_device
from jax_gnn.graph import Graph
from jax_gnn.relational import PARTS, EdgeType, Part, RelationalGraph


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class HeteroGraph:
    """A graph of several types of nodes and edges: names over one :class:`RelationalGraph`.

    Layers and ops take ``relational``, whose relation i is ``edge_types[i]``, and one array with a
    row for each node, type by type: :meth:`join` makes it of a dict by type, :meth:`split` turns
    results into such a dict.

    Attributes:
        relational: all edges; nodes are numbered type by type.
        graphs: for each edge type its edges alone, from the nodes of its source type to those of
            its destination type; None for those that :meth:`with_graphs` was not asked for.
        edge_types: (source type, relation, destination type) of each relation, inverse ones
            included, one of nodes to themselves not.
        inverse: whether the second half of these are inverse ones.
        num_input_edges: ``(types,)``, the number of edges that each type was built from, dropped
            ones included; None of a graph that was put together by hand.

    Example:
        >>> edges = {("author", "writes", "paper"): [[0, 1, 1], [0, 0, 2]]}
        >>> graph = HeteroGraph.from_edges(edges, {"author": 2, "paper": 3}, inverse=True)
        >>> graph
        HeteroGraph(num_nodes={'author': 2, 'paper': 3}, num_edges=6,
            edge_types=(('author', 'writes', 'paper'), ('paper', 'rev_writes', 'author')))
        >>> x = graph.join({"author": jnp.ones((2, 4)), "paper": jnp.zeros((3, 4))})
        >>> x.shape, graph.split(x)["paper"].shape
        ((5, 4), (3, 4))
    """

    relational: RelationalGraph
    graphs: tuple[Graph | None, ...] = ()
    num_input_edges: Array | None = field(default=None, kw_only=True)
    edge_types: tuple[EdgeType, ...] = field(default=(), kw_only=True, metadata=STATIC)
    inverse: bool = field(default=False, kw_only=True, metadata=STATIC)

    @classmethod
    def from_edges(
        cls,
        edges: Mapping[EdgeType, Any],
        num_nodes: Mapping[str, int],
        *,
        inverse: bool = False,
        inverse_prefix: str = "rev_",
        self_relation: bool = False,
        parts: tuple[Part, ...] = PARTS,
        validate: bool = True,
    ) -> HeteroGraph:
        """Builds a graph from edges by type, as :meth:`RelationalGraph.from_edge_dict`.

        Args:
            edges: by (source type, relation, destination type) the edges, ``(2, num_edges)``
                integers or a pair of arrays: PyG's ``data.edge_index_dict``, DGL's ``data_dict``.
            num_nodes: how many nodes each type has; a type may have none.
            inverse: whether to add each edge reversed, as edge type ``("paper", "rev_writes",
                "author")``.
            inverse_prefix: what is before the name of a relation in that of its inverse.
            self_relation: whether to add one relation more, of each node to itself.
            parts: what to build, see :class:`RelationalGraph`.
            validate: whether ids out of range are an error.

        Raises:
            TypeError: as :meth:`RelationalGraph.from_edge_dict`.
            ValueError: likewise; errors name the edge type.
        """
        relational = RelationalGraph.from_edge_dict(
            edges,
            num_nodes,
            inverse=inverse,
            inverse_prefix=inverse_prefix,
            self_relation=self_relation,
            parts=parts,
            validate=validate,
        )
        types: Any = (relational.relation_names or ())[: len(edges) * (1 + inverse)]
        counts = [np.shape(ends[0])[0] if len(ends) else 0 for ends in edges.values()]
        indptr = relational.nodes.indptr
        sizes: Any = np.array(counts, indptr.dtype)
        graph = cls(
            *(relational, (None,) * len(types)),
            num_input_edges=sizes,
            edge_types=types,
            inverse=bool(inverse),
        )
        return to_device(graph, device_of(indptr))

    # --- Names and sizes -----------------------------------------------------------------------

    @property
    def node_types(self) -> tuple[str, ...]:
        """The names of the node types, in the order of their nodes."""
        return self.relational.node_type_names or ()

    @property
    def num_nodes(self) -> dict[str, int]:
        """How many nodes each type has."""
        sizes = self.relational.node_type_sizes or ()
        return dict(zip(self.node_types, sizes, strict=True))

    @property
    def slices(self) -> dict[str, slice]:
        """Which rows of an array of all nodes are those of each type."""
        return dict(zip(self.node_types, self.relational.node_slices, strict=True))

    def relation(self, edge_type: EdgeType) -> int:
        """The number that an edge type has in ``relational``.

        Raises:
            ValueError: the graph has no such edge type.
        """
        return self._number("edge_type", edge_type)

    def _number(self, name: str, edge_type: Any) -> int:
        if not isinstance(edge_type, tuple) or edge_type not in self.edge_types:
            known = ", ".join(map(str, self.edge_types))
            raise ValueError(
                f"edge type {edge_type!r} is none of the graph's: {name} must be among {known}, "
                f"got {edge_type!r}"
            )
        return self.edge_types.index(edge_type)

    def __repr__(self) -> str:
        if not getattr(getattr(self.relational, "edge_types", None), "shape", None):
            # A pytree of something else than arrays.
            given = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
            return f"HeteroGraph({', '.join(given)})"
        return (
            f"HeteroGraph(num_nodes={self.num_nodes}, num_edges={self.relational.num_edges},\n"
            f"    edge_types={self.edge_types})"
        )

    # --- Arrays by type ------------------------------------------------------------------------

    def join(self, x_dict: Mapping[str, ArrayLike]) -> Array:
        """One array of what nodes have, from a dict by type.

        Args:
            x_dict: by type ``(nodes of the type, *features)``, of equal features. A type without
                nodes may be left out, and one that sends no edges, whose rows are zeros then.

        Returns:
            ``(num_nodes, *features)`` in the dtype that they promote to; padding nodes get zeros.

        Raises:
            ValueError: a key is no type of nodes, a type that sends edges is missing, or shapes do
                not fit; the error names the type.
        """
        given = self.check_features(x_dict)
        senders = {src for src, _, _ in self.edge_types}
        for name, size in self.num_nodes.items():
            if name not in given and size and name in senders:
                raise ValueError(
                    f"x_dict lacks the type {name!r}, which sends edges, got {', '.join(given)}"
                )
        if not given:
            raise ValueError(f"x_dict must have features of {', '.join(self.node_types)}, got none")
        shape, dtype = _features("x_dict", given)
        rows = [
            given[name].astype(dtype) if name in given else jnp.zeros((size, *shape), dtype)
            for name, size in self.num_nodes.items()
        ]
        padding = self.relational.num_nodes - sum(self.num_nodes.values())
        return jnp.concatenate([*rows, jnp.zeros((padding, *shape), dtype)])

    def split(self, x: ArrayLike) -> dict[str, Array]:
        """A dict by type of what nodes have, from one array.

        Args:
            x: ``(num_nodes, *features)``.

        Raises:
            ValueError: it has another number of rows.
        """
        x = arguments.check_features("x", x, "num_nodes", self.relational.num_nodes)
        return {name: x[rows] for name, rows in self.slices.items()}

    def check_features(self, x_dict: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """What a dict by type has, as arrays, if its keys and numbers of rows are the graph's.

        Raises:
            TypeError: it is no mapping, or not of arrays.
            ValueError: a key is no type of nodes, or rows are not those of the type.
        """
        if not isinstance(x_dict, Mapping):
            raise TypeError(f"x_dict must be a mapping by node type, got {type(x_dict).__name__}")
        sizes = self.num_nodes
        for name in x_dict:
            if name not in sizes:
                known = ", ".join(map(repr, sizes))
                raise ValueError(
                    f"x_dict has the key {name!r}, which is none of the types {known}, got "
                    f"{', '.join(map(repr, x_dict))}"
                )
        return {
            name: arguments.check_features(
                *(f"x_dict[{name!r}]", x_dict[name], f"num_nodes[{name!r}]", size)
            )
            for name, size in sizes.items()
            if name in x_dict
        }

    # --- Edges of one type ---------------------------------------------------------------------

    @run_on_host()
    def edge_values(self, values: Mapping[EdgeType, ArrayLike], fill_value: Any = 0) -> Array:
        """Values of edges in the order of ``relational``, from a dict by type.

        Args:
            values: by edge type ``(num_edges, *features)`` in the order of the input, for all types
                that the graph was built from.
            fill_value: what edges of nodes to themselves get. A reversed edge has the value of the
                one that it reverses.

        Returns:
            ``(num_edges, *features)`` in the dtype that the values promote to.

        Raises:
            TypeError: values are no mapping, or not of numbers.
            ValueError: an edge type is missing or is none that the graph was built from, or a type
                has other features than another, or not one value for each edge (which cannot be
                seen of a graph that was passed to ``jax.jit``). Errors name the type.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be a mapping by edge type, got {type(values).__name__}")
        types = self._types_given
        if set(values) != set(types) or not types:
            raise ValueError(
                f"values must be by the edge types that the graph was built from, got "
                f"{', '.join(map(str, values))}"
            )
        names = {key: f"values[{key!r}]" for key in types}
        given = {key: arguments.to_array(name, values[key]) for key, name in names.items()}
        xp = namespace(self.relational.nodes.edge_ids, *given.values())
        for key, name in names.items():
            given[key] = arguments.as_numbers(name, given[key], xp)
            if given[key].ndim == 0:
                raise ValueError(f"{name} must be (num_edges, *features), got a scalar")
        _, dtype = _features("values", given)
        if not is_traced(self.num_input_edges):
            for key, count in zip(types, self._input_counts("edge_values"), strict=True):
                if len(given[key]) != count:
                    raise ValueError(
                        f"{names[key]} must be (num_input_edges={count}, *features), got shape "
                        f"{given[key].shape}"
                    )
        joined = xp.concatenate([each.astype(dtype) for each in given.values()])
        return self.relational.edge_values(joined, fill_value)

    def to_input_order(self, values: ArrayLike, fill_value: Any = 0) -> dict[EdgeType, Array]:
        """Brings values of edges back to the order of the input: undoes :meth:`edge_values`.

        Args:
            values: ``(num_edges, *features)`` in the order of ``relational``.
            fill_value: as for :meth:`Graph.to_input_order`.

        Returns:
            By edge type ``(num_edges, *features)``, for all types that the graph was built from.

        Raises:
            TypeError: as :meth:`Graph.to_input_order`.
            ValueError: likewise, or ``num_input_edges`` is None.
        """
        joined = self.relational.to_input_order(values, fill_value)
        ends = np.cumsum([0, *self._input_counts("to_input_order")])
        pieces = zip(self._types_given, ends[:-1], ends[1:], strict=True)
        return {key: joined[start:end] for key, start, end in pieces}

    def _input_counts(self, caller: str) -> list[int]:
        """Number of edges of the input by type."""
        if self.num_input_edges is None:
            raise ValueError(
                f"{caller} needs the number of edges that each type was built from, got "
                f"num_input_edges=None: build the graph by from_edges, or call relational.{caller}"
            )
        return np.asarray(self.num_input_edges).tolist()

    @property
    def _types_given(self) -> tuple[EdgeType, ...]:
        """The edge types that the graph was built from."""
        return self.edge_types[: len(self.edge_types) // (1 + self.inverse)]

    def _edges(self, edge_type: EdgeType) -> tuple[np.ndarray, np.ndarray, Any, np.ndarray]:
        """Edges of one type in the order of the input.

        Returns:
            Sources and destinations within their types; the number of each edge among those of the
            type in the input, None where ``num_input_edges`` is; places in ``relational``.
        """
        nodes, number = self.relational.nodes, self.relation(edge_type)
        ids, kinds = map(np.asarray, (nodes.edge_ids, self.relational.edge_types))
        places = np.flatnonzero(kinds == number)
        places = places[np.argsort(ids[places], kind="stable")]
        src, dst = (np.asarray(array)[places].astype(int) for array in (nodes.cols, nodes.rows))
        numbers = None
        if self.num_input_edges is not None:
            before = np.asarray(self.num_input_edges)[: number % len(self._types_given)]
            numbers = ids[places].astype(int) - before.sum(dtype=int)
        starts = [self.slices[end].start for end in edge_type[::2]]
        return src - starts[0], dst - starts[1], numbers, places

    def edges(self) -> dict[EdgeType, tuple[np.ndarray, np.ndarray]]:
        """The edges by the edge types that the graph was built from, in that order. Host only.

        Returns:
            By type sources and destinations, ``(edges,)`` int64 each, within their types: what
            :meth:`from_edges` takes.

        Raises:
            TypeError: called inside ``jax.jit``.
        """
        if is_traced(self.relational.nodes.rows):
            raise TypeError("edges works on the host only: call it before jax.jit")
        return {key: self._edges(key)[:2] for key in self._types_given}

    def with_graphs(self, edge_types: Iterable[EdgeType] | None = None) -> HeteroGraph:
        """Adds the edges of some types, or of all, as graphs of their own. Host only.

        Their values of edges (:meth:`Graph.edge_values`) are in the order of the input.

        Args:
            edge_types: which; None means all.

        Raises:
            TypeError: called inside ``jax.jit``.
            ValueError: the graph has no such edge type.
        """
        if is_traced(self.relational.nodes.rows):
            raise TypeError("with_graphs reads values: call it before jax.jit")
        if not (edge_types is None or isinstance(edge_types, Iterable)):
            raise TypeError(f"edge_types must be edge types, got {edge_types!r}")
        sizes, graphs = self.num_nodes, list(self.graphs)
        with on_host(True):
            for key in self.edge_types if edge_types is None else edge_types:
                number = self._number("edge_types", key)
                src, dst, ids, _ = self._edges(key)
                graph = Graph.from_edges(src, dst, num_src=sizes[key[0]], num_dst=sizes[key[2]])
                if ids is not None:
                    count = self._input_counts("with_graphs")[number % len(self._types_given)]
                    graph = graph._renumbered(ids, np.asarray(count, graph.edge_ids.dtype))
                graphs[number] = graph
        return self._like(replace(self, graphs=tuple(graphs)))

    def _like(self, graph: HeteroGraph) -> HeteroGraph:
        """Graph of host arrays, where the arrays of this one are."""
        rows = self.relational.nodes.rows
        return graph if namespace(rows) is np else to_device(graph, device_of(rows))

    def graph(self, edge_type: EdgeType) -> Graph:
        """The edges of one type alone.

        Raises:
            ValueError: there is no such edge type, or :meth:`with_graphs` was not asked for it.
        """
        graph = self.graphs[self.relation(edge_type)]
        if graph is None:
            raise ValueError(
                f"the edges {edge_type!r} have no graph of their own: call with_graphs before"
            )
        return graph

    # --- Numbers of types ----------------------------------------------------------------------

    def in_order(
        self, node_types: Sequence[str] | None = None, edge_types: Sequence[EdgeType] | None = None
    ) -> HeteroGraph:
        """The same graph with its types numbered in another order, such as a model's. Host only.

        What goes by name stays as it is: features, values of edges, results. Layers that take
        ``relational`` know relations by number, so that they need the numbers they were trained on.
        Padding is left out.

        Args:
            node_types: all node types in the order wanted; None leaves it.
            edge_types: likewise all edge types that the graph was built from, or ``edge_types`` of
                another graph, with inverse ones.

        Raises:
            TypeError: called inside ``jax.jit``.
            ValueError: these are not the types of the graph; the error names them.
        """
        relational, given = self.relational, self._types_given
        if is_traced(relational.edge_types):
            raise TypeError("in_order reads values: call it before jax.jit")
        kinds = self.node_types if node_types is None else tuple(node_types)
        types = self.edge_types if edge_types is None else tuple(edge_types)
        arguments.numbers_by_name("node types", self.node_types, kinds, "the graph", "node_types")
        known = given if len(types) == len(given) else self.edge_types
        arguments.numbers_by_name("edge types", known, types, "the graph", "edge_types")
        inverse = self.edge_types[len(given) :]
        prefix = inverse[0][1].removesuffix(given[0][1]) if inverse else ""
        edges = {key: self._edges(key) for key in types[: len(given)]}
        with on_host(True):
            graph = HeteroGraph.from_edges(
                {key: ends[:2] for key, ends in edges.items()},
                {name: self.num_nodes[name] for name in kinds},
                inverse=self.inverse,
                inverse_prefix=prefix,
                self_relation=relational.self_relation,
                parts=tuple(part for part in PARTS if getattr(relational, part) is not None),
            )
            if self.num_input_edges is not None:
                by_type: Any = dict(zip(given, self._input_counts("in_order"), strict=True))
                counts: Any = np.array([by_type[key] for key in edges], int)
                starts = np.cumsum(counts) - counts
                ids = [e[2] + first for e, first in zip(edges.values(), starts, strict=True)]
                nodes = graph.relational.nodes
                dtype = nodes.edge_ids.dtype
                nodes = nodes._renumbered(
                    np.concatenate([*ids, np.zeros(0, int)]), np.asarray(counts.sum(), dtype)
                )
                graph = replace(
                    graph,
                    relational=replace(graph.relational, nodes=nodes),
                    num_input_edges=counts.astype(dtype),
                )
            alone = zip(self.edge_types, self.graphs, strict=True)
            graph = graph.with_graphs(key for key, own in alone if own is not None)
        return self._like(graph)


def _features(name: str, given: Mapping[Any, Array]) -> tuple[tuple[int, ...], Any]:
    """The shape of a row, which must be that of all types, and the dtype that all promote to."""
    first = next(iter(given))
    shape = given[first].shape[1:]
    for key, x in given.items():
        if x.shape[1:] != shape:
            raise ValueError(
                f"{name} must have equal features for all types, got {x.shape[1:]} for "
                f"{key!r} and {shape} for {first!r}"
            )
    return shape, promoted(*(x.dtype for x in given.values()))


def _deserialized(data: bytes) -> tuple[Any, ...]:
    edge_types, *flags = json.loads(bytes(data))
    return tuple(map(tuple, edge_types)), *flags


jax.export.register_pytree_node_serialization(
    HeteroGraph,
    serialized_name="jax_gnn.HeteroGraph",
    serialize_auxdata=lambda static: json.dumps(static).encode(),
    deserialize_auxdata=_deserialized,
)
