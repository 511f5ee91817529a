"""The container `HeteroGraph`: names of node and edge types over a `RelationalGraph`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC, promoted
from jax_gnn._core.ids import device_of, is_traced, namespace, on_host, run_on_host, to_device
from jax_gnn.graph import Graph, placed_like, register_serialization
from jax_gnn.relational import PARTS, Edges, EdgeType, Part, RelationalGraph


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class HeteroGraph:
    """Graph with several types of nodes and edges, as in PyG and DGL.

    Layers and ops take ``relational``, whose relation i is ``edge_types[i]``, and one array with a
    row for each node, type by type: :meth:`join` builds it from a dict by type, and :meth:`split`
    turns results into such a dict. Methods marked *host only* raise a TypeError inside ``jax.jit``.

    Attributes:
        relational: all edges; nodes are numbered type by type.
        graphs: for each edge type, the graph of its edges, from the nodes of its source type to
            those of its destination type; None for types that :meth:`with_graphs` did not add.
        edge_types: (source type, relation, destination type) of each relation, including inverse
            relations, but not that of nodes to themselves.
        inverse: whether the second half of ``edge_types`` are inverse relations.
        num_input_edges: ``(types,)``, the number of edges in the input of each type, dropped ones
            included; None for a graph that was put together by hand.

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
        edges: Mapping[EdgeType, Edges],
        num_nodes: Mapping[str, int],
        *,
        inverse: bool = False,
        inverse_prefix: str = "rev_",
        self_relation: bool = False,
        parts: tuple[Part, ...] = PARTS,
        validate: bool = True,
    ) -> HeteroGraph:
        """Build a graph from edges by type; errors are those of `RelationalGraph.from_edge_dict`.

        Args:
            edges: edges by (source type, relation, destination type), ``(2, num_edges)`` integers
                or a pair of arrays: PyG's ``data.edge_index_dict``, DGL's ``data_dict``.
            num_nodes: number of nodes of each type; may be 0.
            inverse: whether to add each edge reversed, with an edge type such as ``("paper",
                "rev_writes", "author")``.
            inverse_prefix: prefix of the name of an inverse relation.
            self_relation: whether to add a last relation, of each node to itself.
            parts: the parts to build, see :class:`RelationalGraph`.
            validate: whether ids out of range are an error.
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
        columns: Any = edges.values()
        counts = [np.shape(pair[0])[0] if len(pair) else 0 for pair in columns]
        indptr, graphs = relational.nodes.indptr, (None,) * len(types)
        static: Any = {"edge_types": types, "inverse": bool(inverse)}
        sizes: Any = np.array(counts, indptr.dtype)
        graph = cls(relational, graphs, num_input_edges=sizes, **static)
        return cast(HeteroGraph, to_device(graph, device_of(indptr)))

    # --- Names and sizes -----------------------------------------------------------------------

    @property
    def node_types(self) -> tuple[str, ...]:
        """Names of the node types, in the order of their nodes."""
        return self.relational.node_type_names or ()

    @property
    def num_nodes(self) -> dict[str, int]:
        """Number of nodes of each type."""
        sizes = self.relational.node_type_sizes or ()
        return dict(zip(self.node_types, sizes, strict=True))

    @property
    def slices(self) -> dict[str, slice]:
        """Rows of each type in an array of all nodes."""
        return dict(zip(self.node_types, self.relational.node_slices, strict=True))

    def relation(self, edge_type: EdgeType) -> int:
        """Return the number of an edge type in ``relational``; a ValueError if it has none."""
        return self._number("edge_type", edge_type)

    def _number(self, name: str, edge_type: EdgeType) -> int:
        if not isinstance(edge_type, tuple) or edge_type not in self.edge_types:
            types = ", ".join(map(str, self.edge_types))
            raise ValueError(
                f"edge type {edge_type!r} is none of the graph's: {name} must be among {types}, "
                f"got {edge_type!r}"
            )
        return self.edge_types.index(edge_type)

    def __repr__(self) -> str:
        if not getattr(getattr(self.relational, "edge_types", None), "shape", None):
            # A pytree whose leaves are not arrays.
            text = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
            return f"HeteroGraph({text})"
        return (
            f"HeteroGraph(num_nodes={self.num_nodes}, num_edges={self.relational.num_edges},\n"
            f"    edge_types={self.edge_types})"
        )

    # --- Arrays by type ------------------------------------------------------------------------

    def join(self, x_dict: Mapping[str, ArrayLike]) -> Array:
        """Join features of nodes, in a dict by type, to one array.

        Args:
            x_dict: for each type ``(nodes of the type, *features)``, of equal features. A type
                without nodes may be left out, and one that sends no edges, whose rows become zeros.

        Returns:
            ``(num_nodes, *features)`` in the promoted dtype; zeros for padding nodes.

        Raises:
            ValueError: a key is no node type, a type that sends edges is missing, or shapes do not
                fit; the error names the type.
        """
        features = self.check_features(x_dict)
        # No message reads the features of nodes that send nothing.
        senders = {src for src, _, _ in self.edge_types}
        for name, size in self.num_nodes.items():
            if name not in features and size and name in senders:
                raise ValueError(
                    f"x_dict lacks the type {name!r}, which sends edges, got {', '.join(features)}"
                )
        if not features:
            raise ValueError(f"x_dict must have features of {', '.join(self.node_types)}, got none")
        shape, dtype = _features("x_dict", features)
        rows = [
            features[name].astype(dtype) if name in features else jnp.zeros((size, *shape), dtype)
            for name, size in self.num_nodes.items()
        ]
        padding = self.relational.num_nodes - sum(self.num_nodes.values())
        return jnp.concatenate([*rows, jnp.zeros((padding, *shape), dtype)])

    def split(self, x: ArrayLike) -> dict[str, Array]:
        """Split an array ``(num_nodes, *features)`` into a dict by node type."""
        x = arguments.check_features("x", x, "num_nodes", self.relational.num_nodes)
        return {name: x[rows] for name, rows in self.slices.items()}

    def check_features(self, x_dict: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Check keys and numbers of rows of a dict by node type, and return JAX arrays.

        Raises:
            TypeError: ``x_dict`` is no mapping, or not of arrays.
            ValueError: a key is no node type, or rows are not the nodes of the type.
        """
        if not isinstance(x_dict, Mapping):
            raise TypeError(f"x_dict must be a mapping by node type, got {type(x_dict).__name__}")
        sizes = self.num_nodes
        for name in x_dict:
            if name not in sizes:
                types = ", ".join(map(repr, sizes))
                raise ValueError(
                    f"x_dict has the key {name!r}, which is none of the types {types}, got "
                    f"{', '.join(map(repr, x_dict))}"
                )
        return {
            name: arguments.check_features(
                f"x_dict[{name!r}]", x_dict[name], f"num_nodes[{name!r}]", size
            )
            for name, size in sizes.items()
            if name in x_dict
        }

    # --- Edges of one type ---------------------------------------------------------------------

    @run_on_host()
    def edge_values(self, values: Mapping[EdgeType, ArrayLike], fill_value: ArrayLike = 0) -> Array:
        """Join values of edges, in a dict by type, to one array in the order of ``relational``.

        Args:
            values: ``(num_edges, *features)`` in the order of the input, for each edge type of the
                input.
            fill_value: value of edges from nodes to themselves. A reversed edge has the value of
                its edge.

        Returns:
            ``(num_edges, *features)`` in the promoted dtype.

        Raises:
            TypeError: values are no mapping, or not of numbers.
            ValueError: an edge type is missing or not in the input, types have different features,
                or a type does not have one value for each edge (which is not checked for a graph
                that is an argument of a jitted function). Errors name the type.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be a mapping by edge type, got {type(values).__name__}")
        types = self._input_types
        if set(values) != set(types) or not types:
            raise ValueError(
                f"values must be by the edge types that the graph was built from, got "
                f"{', '.join(map(str, values))}"
            )
        names = {key: f"values[{key!r}]" for key in types}
        arrays = {key: arguments.to_array(name, values[key]) for key, name in names.items()}
        xp = namespace(self.relational.nodes.edge_ids, *arrays.values())
        for key, name in names.items():
            arrays[key] = arguments.as_numbers(name, arrays[key], xp)
            if arrays[key].ndim == 0:
                raise ValueError(f"{name} must be (num_edges, *features), got a scalar")
        _, dtype = _features("values", arrays)
        if not is_traced(self.num_input_edges):
            for key, count in zip(types, self._input_counts("edge_values"), strict=True):
                if len(arrays[key]) != count:
                    raise ValueError(
                        f"{names[key]} must be (num_input_edges={count}, *features), got shape "
                        f"{arrays[key].shape}"
                    )
        joined = xp.concatenate([array.astype(dtype) for array in arrays.values()])
        return self.relational.edge_values(joined, fill_value)

    def to_input_order(self, values: ArrayLike, fill_value: ArrayLike = 0) -> dict[EdgeType, Array]:
        """Bring values of edges back to the order of the input: undo :meth:`edge_values`.

        Args:
            values: ``(num_edges, *features)`` in the order of ``relational``.
            fill_value: value of edges of the input that the graph lacks.

        Returns:
            ``(num_edges, *features)`` for each edge type of the input. Errors: as in
            :meth:`Graph.to_input_order`, and a ValueError if ``num_input_edges`` is None.
        """
        joined = self.relational.to_input_order(values, fill_value)
        # The input of the relational graph has the edges of one type after those of another.
        bounds = np.cumsum([0, *self._input_counts("to_input_order")])
        pieces = zip(self._input_types, bounds[:-1], bounds[1:], strict=True)
        return {key: joined[start:stop] for key, start, stop in pieces}

    def _require_host(self, caller: str) -> None:
        if is_traced(self.relational.nodes.rows):
            raise TypeError(f"{caller} works on the host only: call it before jax.jit")

    def _input_counts(self, caller: str) -> list[int]:
        """Return the number of edges of the input for each of its types."""
        if self.num_input_edges is None:
            raise ValueError(
                f"{caller} needs the number of edges that each type was built from, got "
                f"num_input_edges=None: build the graph by from_edges, or call relational.{caller}"
            )
        return [int(count) for count in np.asarray(self.num_input_edges)]

    @property
    def _input_types(self) -> tuple[EdgeType, ...]:
        """Edge types of the input, without inverse ones."""
        return self.edge_types[: len(self.edge_types) // (1 + self.inverse)]

    def _edges(self, edge_type: EdgeType) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return edges of one type in the order of the input.

        Returns:
            Sources and destinations within their types; the position of each edge in the input of
            its type, or None if ``num_input_edges`` is None.
        """
        nodes, number = self.relational.nodes, self.relation(edge_type)
        ids, types = map(np.asarray, (nodes.edge_ids, self.relational.edge_types))
        edges = np.flatnonzero(types == number)
        edges = edges[np.argsort(ids[edges], kind="stable")]
        src, dst = (np.asarray(array)[edges].astype(int) for array in (nodes.cols, nodes.rows))
        positions = None
        if self.num_input_edges is not None:
            # The input has the edges type by type; inverse types have the ids of their types.
            preceding = np.asarray(self.num_input_edges)[: number % len(self._input_types)]
            positions = ids[edges].astype(int) - preceding.sum(dtype=int)
        src_start, dst_start = (self.slices[name].start for name in edge_type[::2])
        return src - src_start, dst - dst_start, positions

    def edges(self) -> dict[EdgeType, tuple[np.ndarray, np.ndarray]]:
        """Return the edges by the edge types of the input, in its order. Host only.

        Returns:
            For each type sources and destinations, ``(edges,)`` int64 each, within their types, as
            :meth:`from_edges` takes them.
        """
        self._require_host("edges")
        return {key: self._edges(key)[:2] for key in self._input_types}

    def with_graphs(self, edge_types: Iterable[EdgeType] | None = None) -> HeteroGraph:
        """Add graphs of the edges of single types. Host only.

        Their values of edges (:meth:`Graph.edge_values`) are in the order of the input. An unknown
        edge type raises a ValueError.

        Args:
            edge_types: edge types to add a graph for; None means all.
        """
        self._require_host("with_graphs")
        if not (edge_types is None or isinstance(edge_types, Iterable)):
            raise TypeError(f"edge_types must be edge types, got {edge_types!r}")
        sizes, graphs = self.num_nodes, list(self.graphs)
        with on_host(True):
            for key in self.edge_types if edge_types is None else edge_types:
                number = self._number("edge_types", key)
                src, dst, positions = self._edges(key)
                graph = Graph.from_edges(src, dst, num_src=sizes[key[0]], num_dst=sizes[key[2]])
                if positions is not None:
                    count = self._input_counts("with_graphs")[number % len(self._input_types)]
                    num_input_edges: Any = np.asarray(count, graph.edge_ids.dtype)
                    graph = graph._renumbered(positions, num_input_edges)
                graphs[number] = graph
        return placed_like(self.relational.nodes.rows, replace(self, graphs=tuple(graphs)))

    def graph(self, edge_type: EdgeType) -> Graph:
        """Return the graph of one edge type, which :meth:`with_graphs` added; else a ValueError."""
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
        """Number the types in another order, such as that of a model. Host only.

        Features, values of edges and results by name stay as they are. Layers that take
        ``relational`` know relations by number, so that they need the numbers of their training.
        Padding is left out. Names that are not the types of the graph raise a ValueError.

        Args:
            node_types: all node types in the new order; None keeps the order.
            edge_types: all edge types of the input in the new order, or ``edge_types`` of another
                graph, with inverse ones; None keeps the order.
        """
        relational, input_types = self.relational, self._input_types
        self._require_host("in_order")
        new_nodes = self.node_types if node_types is None else tuple(node_types)
        types = self.edge_types if edge_types is None else tuple(edge_types)
        arguments.numbers_by_name(
            "node types", self.node_types, new_nodes, "the graph", "node_types"
        )
        expected = input_types if len(types) == len(input_types) else self.edge_types
        arguments.numbers_by_name("edge types", expected, types, "the graph", "edge_types")
        # The prefix of inverse relations is not kept, but names of both kinds differ by it alone.
        inverse = self.edge_types[len(input_types) :]
        prefix = inverse[0][1].removesuffix(input_types[0][1]) if inverse else ""
        edges = {key: self._edges(key) for key in types[: len(input_types)]}
        with on_host(True):
            graph = HeteroGraph.from_edges(
                {key: columns[:2] for key, columns in edges.items()},
                {name: self.num_nodes[name] for name in new_nodes},
                inverse=self.inverse,
                inverse_prefix=prefix,
                self_relation=relational.self_relation,
                parts=relational._parts,
            )
            if self.num_input_edges is not None:
                # Edge ids are positions in the input, whose types have the new order, too.
                by_type = dict(zip(input_types, self._input_counts("in_order"), strict=True))
                counts: Any = np.array([by_type[key] for key in edges], int)
                starts = np.cumsum(counts) - counts
                columns: Any = zip(edges.values(), starts, strict=True)
                ids = [positions + start for (_, _, positions), start in columns]
                nodes = graph.relational.nodes
                dtype = nodes.edge_ids.dtype
                edge_ids = np.concatenate([*ids, np.zeros(0, int)])
                num_input_edges: Any = np.asarray(counts.sum(), dtype)
                nodes = nodes._renumbered(edge_ids, num_input_edges)
                graph = replace(
                    graph,
                    relational=replace(graph.relational, nodes=nodes),
                    num_input_edges=counts.astype(dtype),
                )
            pairs = zip(self.edge_types, self.graphs, strict=True)
            graph = graph.with_graphs(key for key, member in pairs if member is not None)
        return placed_like(relational.nodes.rows, graph)


def _features(name: str, arrays: Mapping[Any, Array]) -> tuple[tuple[int, ...], Any]:
    """Return the shape of a row, which must be that of all types, and the promoted dtype."""
    first = next(iter(arrays))
    shape = arrays[first].shape[1:]
    for key, x in arrays.items():
        if x.shape[1:] != shape:
            raise ValueError(
                f"{name} must have equal features for all types, got {x.shape[1:]} for "
                f"{key!r} and {shape} for {first!r}"
            )
    return shape, promoted(*(x.dtype for x in arrays.values()))


register_serialization(HeteroGraph)
