"""Graphs of several types of nodes and edges, by name, as users of PyG and DGL know them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC
from jax_gnn._core.ids import is_traced, namespace, on_host
from jax_gnn.graph import Graph
from jax_gnn.relational import Part, RelationalGraph

EdgeType = tuple[str, str, str]


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

    Example:
        >>> edges = {("author", "writes", "paper"): [[0, 1, 1], [0, 0, 2]]}
        >>> graph = HeteroGraph.from_edges(edges, {"author": 2, "paper": 3}, inverse=True)
        >>> graph
        HeteroGraph(num_nodes={'author': 2, 'paper': 3}, num_edges=6,
            edge_types=('author__writes__paper', 'paper__rev_writes__author'))
        >>> x = graph.join({"author": jnp.ones((2, 4)), "paper": jnp.zeros((3, 4))})
        >>> x.shape, graph.split(x)["paper"].shape
        ((5, 4), (3, 4))
    """

    relational: RelationalGraph
    graphs: tuple[Graph | None, ...] = ()
    edge_types: tuple[EdgeType, ...] = field(default=(), kw_only=True, metadata=STATIC)
    inverse: bool = field(default=False, kw_only=True, metadata=STATIC)

    @classmethod
    def from_edges(
        cls,
        edges: Mapping[EdgeType, Any],
        num_nodes: Mapping[str, int],
        *,
        inverse: bool = False,
        self_relation: bool = False,
        parts: tuple[Part, ...] = ("from_pairs", "to_pairs"),
        validate: bool = True,
    ) -> HeteroGraph:
        """Builds a graph from edges by type, as :meth:`RelationalGraph.from_edge_dict`.

        Args:
            edges: by (source type, relation, destination type) the edges, ``(2, num_edges)``
                integers or a pair of arrays: PyG's ``data.edge_index_dict``, DGL's ``data_dict``.
            num_nodes: how many nodes each type has; a type may have none.
            inverse: whether to add each edge reversed, as edge type ``("paper", "rev_writes",
                "author")``.
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
            self_relation=self_relation,
            parts=parts,
            validate=validate,
        )
        types = [*edges]
        if inverse:
            types += [(dst, f"rev_{name}", src) for src, name, dst in edges]
        graphs = (None,) * len(types)
        return cls(relational, graphs, edge_types=tuple(types), inverse=bool(inverse))

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
        names = tuple("__".join(key) for key in self.edge_types)
        return (
            f"HeteroGraph(num_nodes={self.num_nodes}, num_edges={self.relational.num_edges},\n"
            f"    edge_types={names})"
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
        first = next(iter(given))
        shape = given[first].shape[1:]
        for name, x in given.items():
            if x.shape[1:] != shape:
                raise ValueError(
                    f"x_dict must have equal features for all types, got {x.shape[1:]} for "
                    f"{name!r} and {shape} for {first!r}"
                )
        dtype = jnp.result_type(*given.values())
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
            name: arguments.check_features(f"x_dict[{name!r}]", x, f"num_nodes[{name!r}]", size)
            for name, size in sizes.items()
            if (x := x_dict.get(name)) is not None
        }

    # --- Edges of one type ---------------------------------------------------------------------

    def edge_values(self, values: Mapping[EdgeType, ArrayLike], fill_value: Any = 0) -> Array:
        """Values of edges in the order of ``relational``, from a dict by type.

        Args:
            values: by edge type ``(num_edges, *features)`` in the order of the input, for all types
                that the graph was built from.
            fill_value: what edges of nodes to themselves get. A reversed edge has the value of the
                one that it reverses.

        Raises:
            ValueError: an edge type is missing or is none that the graph was built from.
        """
        given = self.edge_types[: len(self.edge_types) // (1 + self.inverse)]
        if set(values) != set(given):
            raise ValueError(
                f"values must be by the edge types that the graph was built from, got "
                f"{', '.join(map(str, values))}"
            )
        joined = jnp.concatenate([jnp.asarray(values[key]) for key in given])
        return self.relational.edge_values(joined, fill_value)

    def with_graphs(self, edge_types: Iterable[EdgeType] | None = None) -> HeteroGraph:
        """Adds the edges of some types, or of all, as graphs of their own. Host only.

        Their values of edges (:meth:`Graph.edge_values`) are in the order of the input.

        Args:
            edge_types: which; None means all.

        Raises:
            TypeError: called inside ``jax.jit``.
            ValueError: the graph has no such edge type.
        """
        nodes = self.relational.nodes
        if is_traced(nodes.rows):
            raise TypeError("with_graphs reads values: call it before jax.jit")
        if not (edge_types is None or isinstance(edge_types, Iterable)):
            raise TypeError(f"edge_types must be edge types, got {edge_types!r}")
        columns = nodes.cols, nodes.rows, self.relational.edge_types, nodes.edge_ids
        src, dst, rel, ids = map(np.asarray, columns)
        graphs = list(self.graphs)
        for key in self.edge_types if edge_types is None else edge_types:
            number = self._number("edge_types", key)
            edges = np.flatnonzero(rel == number)
            edges = edges[np.argsort(ids[edges], kind="stable")]
            starts, stops = self.slices[key[0]], self.slices[key[2]]
            with on_host(on_host.value or namespace(nodes.rows) is np):
                graphs[number] = Graph.from_edges(
                    src[edges] - starts.start,
                    dst[edges] - stops.start,
                    num_src=starts.stop - starts.start,
                    num_dst=stops.stop - stops.start,
                )
        return replace(self, graphs=tuple(graphs))

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


def _deserialized(data: bytes) -> tuple[Any, ...]:
    edge_types, inverse = json.loads(bytes(data))
    return tuple(map(tuple, edge_types)), inverse


jax.export.register_pytree_node_serialization(
    HeteroGraph,
    serialized_name="jax_gnn.HeteroGraph",
    serialize_auxdata=lambda static: json.dumps(static).encode(),
    deserialize_auxdata=_deserialized,
)
