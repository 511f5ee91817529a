"""The container `RelationalGraph`: edges with relations, as graphs of nodes and of pairs.

A *pair* is a (source, relation) or (destination, relation) combination that some edge has. A *part*
is the graph between nodes and one kind of pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC
from jax_gnn._core.ids import (
    PADDING,
    as_signed,
    device_of,
    id_count,
    in_range,
    is_traced,
    namespace,
    pad_ids,
    run_on_host,
    take_ids,
    to_device,
)
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._ops.relation_pairs.triples import (
    IntoPairs,
    OutOfPairs,
    SortedTriples,
    destination_pairs,
    sort_triples,
    source_pairs,
)
from jax_gnn.graph import (
    Graph,
    check_index,
    check_one_dtype,
    check_sizes,
    input_order,
    register_serialization,
)

EdgeType = tuple[str, str, str]
Edges = ArrayLike | Sequence[ArrayLike]
Part = Literal["from_pairs", "to_pairs"]
PARTS: tuple[Part, ...] = get_args(Part)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RelationalGraph:
    """Directed or bipartite graph in which each edge has a relation.

    It is made of graphs, so that every op works on them: from nodes to nodes, from (source,
    relation) pairs to nodes, and from nodes to (destination, relation) pairs; only pairs that occur
    are stored. Relations are numbers from 0. Build a graph with a ``from_…`` method. All sizes,
    those of pairs included, are shapes, so that graphs of equal sizes share one compiled program;
    :meth:`pad` makes sizes equal.

    Values of edges are in one order in all parts: by destination, then relation, then source; equal
    edges in the order of the input. :meth:`edge_values` brings values there, and
    :meth:`to_input_order` back. Hence ``nodes.cols`` need not ascend for each destination.

    Attributes:
        nodes: the edges from sources to destinations; its second half is sorted by source, then
            destination, then relation.
        edge_types: ``(num_edges,)``, the relation of each edge.
        pair_src: the (source, relation) pairs, numbered by relation, then source, as segmented
            products take them; None without the part ``"from_pairs"``.
        out_of_pairs: arrays of ``from_pairs`` that ``nodes`` does not have; None without that part.
        pair_dst: the (destination, relation) pairs, numbered by destination, then relation; None
            without the part ``"to_pairs"``.
        into_pairs: arrays of ``to_pairs`` that ``nodes`` does not have; None without that part.
        num_relations: number of relations, those without edges included.
        node_type_sizes: number of nodes of each type, if nodes have types: nodes are numbered type
            by type.
        node_type_names: names of the node types.
        relation_names: names of the relations: if nodes have types, (source type, name, destination
            type), and "self".
        self_relation: whether the last relation is that of an edge from each node to itself.

    Padding is as in :class:`Graph`: edges past ``nodes.indptr[-1]`` hold -1 in all arrays.

    Example:
        >>> graph = RelationalGraph.from_triples([0, 1, 1], [0, 1, 1], [2, 2, 0], num_nodes=3)
        >>> graph
        RelationalGraph(num_nodes=3, num_edges=3, num_relations=2, num_src_pairs=2, num_dst_pairs=3)
        >>> graph.nodes.rows, graph.edge_types
        (Array([0, 2, 2], dtype=int32), Array([1, 0, 1], dtype=int32))
        >>> graph.edge_values([0.5, 1.0, 2.0])  # from the order of the input
        Array([2. , 0.5, 1. ], dtype=float32)
    """

    nodes: Graph
    edge_types: Array
    pair_src: Pairs | None = None
    out_of_pairs: OutOfPairs | None = None
    pair_dst: Pairs | None = None
    into_pairs: IntoPairs | None = None
    num_relations: int = field(kw_only=True, metadata=STATIC)
    node_type_sizes: tuple[int, ...] | None = field(default=None, kw_only=True, metadata=STATIC)
    node_type_names: tuple[str, ...] | None = field(default=None, kw_only=True, metadata=STATIC)
    relation_names: tuple[EdgeType | str, ...] | None = field(
        default=None, kw_only=True, metadata=STATIC
    )
    self_relation: bool = field(default=False, kw_only=True, metadata=STATIC)

    # --- Graphs of pairs -------------------------------------------------------------------------

    @property
    def from_pairs(self) -> Graph | None:
        """Edges from (source, relation) pairs to destinations; None without this part.

        Its ``num_src`` is the number of pairs. Its edges by destination are those of ``nodes``.
        """
        return self._of_pairs(self.out_of_pairs)

    @property
    def to_pairs(self) -> Graph | None:
        """Edges from sources to (destination, relation) pairs; None without this part.

        Its ``num_dst`` is the number of pairs. Its edges by source are those of ``nodes``.
        """
        return self._of_pairs(self.into_pairs)

    def _of_pairs(self, edges: OutOfPairs | IntoPairs | None) -> Graph | None:
        """Return ``nodes`` with the arrays of a part in place of its own."""
        if edges is None:
            return None
        arrays = self.nodes._arrays | {f.name: getattr(edges, f.name) for f in fields(edges)}
        return self.nodes._same_edges(Graph(**arrays | {"split": None, "t_split": None}))

    # --- Sizes ---------------------------------------------------------------------------------

    @property
    def num_src(self) -> int:
        """Number of sources, padding included."""
        return self.nodes.num_src

    @property
    def num_dst(self) -> int:
        """Number of destinations, padding included."""
        return self.nodes.num_dst

    @property
    def num_nodes(self) -> int:
        """Number of nodes, padding included; a bipartite graph raises a ValueError."""
        return self.nodes.num_nodes

    @property
    def num_edges(self) -> int:
        """Number of edges, padding included."""
        return self.nodes.num_edges

    @property
    def num_src_pairs(self) -> int | None:
        """Number of (source, relation) pairs, padding included; None without that part."""
        return None if self.pair_src is None else self.pair_src.num_pairs

    @property
    def num_dst_pairs(self) -> int | None:
        """Number of (destination, relation) pairs, padding included; None without that part."""
        return None if self.pair_dst is None else self.pair_dst.num_pairs

    @property
    def relation_ends(self) -> tuple[tuple[int, int] | None, ...] | None:
        """Node types, as numbers, of the source and the destination of each relation.

        None for a relation between several types, such as that of nodes to themselves. The tuple is
        None if nodes have no types, or relations have no names of three parts. A graph of
        :meth:`from_edge_dict` has both.
        """
        types, relations = self.node_type_names, self.relation_names
        if types is None or relations is None:
            return None
        numbers = {name: i for i, name in enumerate(types)}
        # A relation that is a mere string, such as "self", joins nodes of several types.
        pairs = [None if isinstance(name, str) else (name[0], name[2]) for name in relations]
        if not {name for pair in pairs if pair for name in pair} <= numbers.keys():
            return None
        return tuple(pair and (numbers[pair[0]], numbers[pair[1]]) for pair in pairs)

    @property
    def node_slices(self) -> tuple[slice, ...]:
        """Slices of the nodes of each type; one slice of all nodes if they have no types."""
        sizes = (self.num_nodes,) if self.node_type_sizes is None else self.node_type_sizes
        stops = np.cumsum(sizes, dtype=int).tolist()
        return tuple(slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True))

    def __repr__(self) -> str:
        if not getattr(self.edge_types, "shape", None) or not repr(self.nodes).startswith(
            "Graph(num_"
        ):
            names = [f.name for f in fields(self)]  # a pytree whose leaves are not arrays
        else:
            is_square = self.num_src == self.num_dst
            names = ["num_nodes"] if is_square else ["num_src", "num_dst"]
            names += ["num_edges", "num_relations", "num_src_pairs", "num_dst_pairs"]
        parts = {name: getattr(self, name) for name in names}
        text = ", ".join(f"{name}={part!r}" for name, part in parts.items() if part is not None)
        return f"RelationalGraph({text})"

    # --- Building ------------------------------------------------------------------------------

    @classmethod
    def from_triples(
        cls,
        src: ArrayLike,
        rel: ArrayLike,
        dst: ArrayLike,
        num_nodes: int | None = None,
        num_relations: int | None = None,
        *,
        num_src: int | None = None,
        num_dst: int | None = None,
        inverse: bool = False,
        self_relation: bool = False,
        parts: tuple[Part, ...] = PARTS,
        validate: bool = True,
    ) -> RelationalGraph:
        """Build a graph from edges in any order; repeated edges are kept.

        Host arrays are checked. Traced arrays inside ``jax.jit`` cannot be: there, and with
        ``validate=False``, edges with an id out of range count as padding and are dropped. Inside
        ``jax.jit``, the number of pairs is an upper bound, and most of them are padding.

        Args:
            src: ``(num_triples,)`` integers, the source of each edge.
            rel: ``(num_triples,)`` integers, the relation of each edge.
            dst: ``(num_triples,)`` integers, the destination of each edge.
            num_nodes: number of nodes; by default the largest id plus one (host arrays only).
            num_relations: number of relations in ``rel``; by default the largest id plus one.
            num_src: number of sources of a bipartite graph; the largest source plus one if only
                ``num_dst`` is given.
            num_dst: number of destinations of a bipartite graph; the largest destination plus one
                if only ``num_src`` is given.
            inverse: whether to add each edge reversed, as relation ``num_relations`` plus its own.
                A reversed edge has the values of its edge (:meth:`edge_values`).
            self_relation: whether to add a last relation with an edge from each node to itself: a
                layer's weight for a node's own features. These edges are not in the input.
            parts: ``"from_pairs"`` and ``"to_pairs"``, the parts to build; :meth:`with_parts` adds
                a missing one.
            validate: whether ids out of range in host arrays are an error.

        Raises:
            TypeError: an array is not of integers, or a size is missing or not an integer.
            ValueError: an array is not one-dimensional, lengths differ, a size is negative, an id
                is out of range, ``num_nodes`` is given beside the other sizes, ``inverse`` or
                ``self_relation`` is set for a bipartite graph, or a part is unknown.
        """
        device = device_of(src, rel, dst)
        columns = arguments.check_columns({"src": src, "rel": rel, "dst": dst})
        senders, relations, receivers = columns
        is_bipartite = num_src is not None or num_dst is not None
        names, num_src, num_dst = check_sizes(senders, receivers, num_nodes, num_src, num_dst)
        num_relations = arguments.check_size("num_relations", num_relations, relations)
        inverse = arguments.check_flag("inverse", inverse)
        self_relation = arguments.check_flag("self_relation", self_relation)
        for name, is_set in (("inverse", inverse), ("self_relation", self_relation)):
            if is_set and is_bipartite:
                raise ValueError(
                    f"{name} is not for bipartite graphs: give num_nodes, got {num_src=} and "
                    f"{num_dst=}"
                )
        validate = arguments.check_flag("validate", validate) and not is_traced(senders)
        edges = sort_triples(
            *columns,
            num_src=num_src,
            num_dst=num_dst,
            num_relations=num_relations,
            inverse=inverse,
            loops=self_relation,
        )
        # Sorting drops ids out of range anyway, so that their search is for the error alone.
        if validate and edges.dropped():
            arguments.check_range("src", senders, names[0], num_src)
            arguments.check_range("rel", relations, "num_relations", num_relations)
            arguments.check_range("dst", receivers, names[1], num_dst)
        sorted_graph = cls(
            Graph(*edges[:-1], None, None, id_count(senders, edges.indptr.dtype)),
            edges.types,
            num_relations=num_relations * (1 + inverse) + self_relation,
            self_relation=self_relation,
        )
        graph: RelationalGraph = to_device(sorted_graph._with_parts(_check_parts(parts)), device)
        return graph

    @classmethod
    def from_edge_dict(
        cls,
        edges: Mapping[EdgeType, Edges],
        num_nodes: Mapping[str, int],
        *,
        inverse: bool = False,
        inverse_prefix: str = "rev_",
        self_relation: bool = False,
        parts: tuple[Part, ...] = PARTS,
        validate: bool = True,
    ) -> RelationalGraph:
        """Build a graph of several node types, from edges by type as in PyG and DGL.

        Nodes are numbered type by type in the order of ``num_nodes``: those of the i-th type are
        ``node_slices[i]``. Relation i is the i-th of ``edges``. ``relation_names`` are the keys of
        ``edges``, those of inverse relations, such as ``("paper", "rev_writes", "author")``, and
        ``"self"``.

        Args:
            edges: edges by (source type, relation, destination type), as ids within these types:
                ``(2, num_edges)`` integers, sources first, or a pair of arrays ``(num_edges,)``;
                ``[]`` for none.
            num_nodes: number of nodes of each type.
            inverse: whether to add each edge reversed, as in :meth:`from_triples`.
            inverse_prefix: prefix of the name of an inverse relation.
            self_relation: whether to add edges from each node to itself, as in
                :meth:`from_triples`.
            parts: the parts to build, as in :meth:`from_triples`.
            validate: whether ids out of range in host arrays are an error.

        Raises:
            TypeError: ``edges`` or ``num_nodes`` is no mapping of that kind.
            ValueError: a type has no number of nodes, or an inverse relation has the name of
                another relation. Other errors: as in :meth:`from_triples`.
        """
        if not isinstance(edges, Mapping) or not isinstance(num_nodes, Mapping):
            raise TypeError(
                "edges and num_nodes must be mappings, by (source type, relation, destination "
                f"type) and by type, got {type(edges).__name__} and {type(num_nodes).__name__}"
            )
        validate = arguments.check_flag("validate", validate)
        starts: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for kind, size in num_nodes.items():
            if not isinstance(kind, str):
                raise TypeError(f"num_nodes must be by names of types, got {kind!r}")
            kind = str(kind)  # numpy's strings become Python's
            starts[kind] = sum(sizes.values())
            sizes[kind] = arguments.check_size(f"num_nodes[{kind!r}]", size)
        total = arguments.check_size("num_nodes", sum(sizes.values()))
        # The ids of each type are shifted to the numbers of all nodes; ids out of range become
        # padding, so that they do not end up among the nodes of the next type.
        triples: list[tuple[Any, Any, Any]] = [(np.zeros(0, np.int64),) * 3]
        edge_types = tuple(_check_edge_type(key, sizes) for key in edges)
        for relation, (key, columns) in enumerate(zip(edge_types, edges.values(), strict=True)):
            name = f"edges[{key!r}]"
            columns = _two_rows(name, columns)
            pair = arguments.check_pairs(f"{name}[0]", columns[0], f"{name}[1]", columns[1])
            shifted = []
            for i, (ids, kind) in enumerate(zip(pair, (key[0], key[2]), strict=True)):
                if validate and not is_traced(ids):
                    size_name = f"num_nodes[{kind!r}]"
                    arguments.check_range(f"{name}[{i}]", ids, size_name, sizes[kind])
                where: Any = jnp.where if is_traced(ids) else np.where
                shifted.append(where(in_range(ids, sizes[kind]), ids + starts[kind], PADDING))
            triples.append((shifted[0], np.full(ids.shape, relation), shifted[1]))
        names: tuple[EdgeType | str, ...] = edge_types
        if arguments.check_flag("inverse", inverse):
            names += _inverses(edge_types, inverse_prefix)
        concatenate: Any = np.concatenate
        if is_traced(*jax.tree.leaves(triples)):
            concatenate = jnp.concatenate
        with jax.numpy_dtype_promotion("standard"):  # traced ids are int32, host ids int64
            src, rel, dst = (concatenate(column) for column in zip(*triples, strict=True))
        graph = cls.from_triples(
            src,
            rel,
            dst,
            num_nodes=total,
            num_relations=len(edges),
            inverse=inverse,
            self_relation=self_relation,
            parts=parts,
            validate=False,
        )
        return replace(
            graph,
            node_type_sizes=tuple(sizes.values()),
            node_type_names=tuple(sizes),
            relation_names=(*names, *(["self"] if self_relation else [])),
        )

    def with_parts(self, *parts: Part) -> RelationalGraph:
        """Add missing parts: all, if none is named.

        Works on the host and inside ``jax.jit``, where the number of pairs is an upper bound: a
        pair for each edge, or for each node and relation if that is less.

        Args:
            parts: ``"from_pairs"``, with ``pair_src``, and ``"to_pairs"``, with ``pair_dst``.

        Raises:
            ValueError: a part is unknown, or arrays are not those of a graph that was built.
        """
        graph = self._with_parts(_check_parts(parts or PARTS))
        return graph if namespace(self.nodes.rows) is np else to_device(graph)

    def _with_parts(self, parts: tuple[Part, ...]) -> RelationalGraph:
        arrays = {name: getattr(self.nodes, name) for name in SortedTriples._fields[:-1]}
        edges, graph = SortedTriples(**arrays, types=self.edge_types), self
        if "from_pairs" in parts and self.pair_src is None:
            pairs, out_of_pairs = source_pairs(edges, self.num_relations)
            graph = replace(graph, pair_src=pairs, out_of_pairs=out_of_pairs)
        if "to_pairs" in parts and self.pair_dst is None:
            pairs, into_pairs = destination_pairs(edges, self.num_relations)
            graph = replace(graph, pair_dst=pairs, into_pairs=into_pairs)
        return graph

    @property
    def _parts(self) -> tuple[Part, ...]:
        """The parts that are built."""
        return tuple(part for part in PARTS if getattr(self, part) is not None)

    def _with_edges(self, nodes: Graph, edge_types: Any) -> RelationalGraph:
        """Return a graph of other edges, with the relations and the parts of this one."""
        pairs: Any = dict.fromkeys(("pair_src", "out_of_pairs", "pair_dst", "into_pairs"))
        graph = replace(self, nodes=nodes, edge_types=edge_types, **pairs)
        return graph._with_parts(self._parts)

    @run_on_host()
    def pad(
        self,
        *,
        num_nodes: int | None = None,
        num_src: int | None = None,
        num_dst: int | None = None,
        num_edges: int | None = None,
        num_src_pairs: int | None = None,
        num_dst_pairs: int | None = None,
    ) -> RelationalGraph:
        """Pad to capacities, so that graphs of different sizes share one compiled program.

        The new nodes and pairs have no edges; new nodes are of no type. A capacity of None leaves a
        size as it is.

        Args:
            num_nodes: capacity in nodes.
            num_src: capacity in sources of a bipartite graph.
            num_dst: capacity in destinations of a bipartite graph.
            num_edges: capacity in edges.
            num_src_pairs: capacity in (source, relation) pairs.
            num_dst_pairs: capacity in (destination, relation) pairs.

        Raises:
            ValueError: a capacity is given for a part that was not built. Other errors: as in
                :meth:`Graph.pad`.
        """
        nodes = self.nodes.pad(
            num_nodes=num_nodes, num_src=num_src, num_dst=num_dst, num_edges=num_edges
        )
        new_edges = nodes.num_edges - self.num_edges
        padded: dict[str, Any] = {}
        # The arrays of a part grow by its pairs, and by the edges of the graph.
        for side, edges_name, part, capacity, size in (
            ("src", "out_of_pairs", "from_pairs", num_src_pairs, nodes.num_src),
            ("dst", "into_pairs", "to_pairs", num_dst_pairs, nodes.num_dst),
        ):
            pairs, edges = getattr(self, f"pair_{side}"), getattr(self, edges_name)
            if pairs is None:
                if capacity is not None:
                    raise ValueError(
                        f"num_{side}_pairs: the graph has no part {part!r}, got {capacity}"
                    )
                continue
            new_pairs = arguments.added_size(f"num_{side}_pairs", capacity, pairs.num_pairs)
            padded[f"pair_{side}"] = pairs.pad(new_pairs, size)
            padded[edges_name] = edges.pad(new_edges, new_pairs)
        types = pad_ids(self.edge_types, new_edges)
        return replace(self, nodes=nodes, edge_types=types, **padded)

    # --- Arrays for ops --------------------------------------------------------------------------

    def check(self, name: str = "graph") -> RelationalGraph:
        """Check dtypes and shapes of the arrays, not their values; return the graph as JAX arrays.

        Args:
            name: name of the graph in errors.

        Raises:
            TypeError: an array is not of int32 or int64, or dtypes differ.
            ValueError: an array is not one-dimensional, lengths do not fit each other, or a name
                of a type or relation occurs twice.
        """
        self.check_arrays(name)
        nodes = arguments.check_container(f"{name}.nodes", self.nodes, Graph)
        graph: RelationalGraph = jax.tree.map(as_signed, self._plain)
        return replace(graph, nodes=nodes)  # which may have gates

    def check_arrays(self, name: str = "graph") -> None:
        """Check dtypes and shapes of the arrays as `check` does; leave arrays on the host there."""
        for field_name in ("node_type_names", "relation_names"):
            arguments.check_distinct(f"{name}.{field_name}", getattr(self, field_name) or ())
        nodes = self.nodes
        arguments.check_instance(f"{name}.nodes", nodes, Graph)
        nodes.check_arrays(f"{name}.nodes")
        # Vectors by name, with the lengths that the graph and its pairs demand.
        dtypes = {"nodes.rows": nodes.rows.dtype}
        lengths: dict[str, tuple[Any, int]] = {"edge_types": (self.edge_types, nodes.num_edges)}
        for side, edges_name, kind in (
            ("src", "out_of_pairs", OutOfPairs),
            ("dst", "into_pairs", IntoPairs),
        ):
            pairs_name = f"pair_{side}"
            pairs, edges = getattr(self, pairs_name), getattr(self, edges_name)
            if (pairs is None) != (edges is None):
                raise ValueError(
                    f"{name}: {pairs_name} and {edges_name} are built together, got "
                    f"{type(pairs).__name__} and {type(edges).__name__}"
                )
            if pairs is None:
                continue
            arguments.check_instance(f"{name}.{pairs_name}", pairs, Pairs)
            arguments.check_instance(f"{name}.{edges_name}", edges, kind)
            num_nodes, by_node = getattr(nodes, f"num_{side}"), side == "dst"
            if (pairs.num_nodes, pairs.by_node) != (num_nodes, by_node):
                order = "node" if by_node else "relation"
                raise ValueError(
                    f"{name}.{pairs_name} must be of num_{side}={num_nodes} nodes, numbered by "
                    f"{order}, got {pairs.num_nodes} nodes, numbered by "
                    f"{'node' if pairs.by_node else 'relation'}"
                )
            size = getattr(pairs.nodes, "size", -1)
            for array in ("nodes", "sorted_nodes", "order", "places"):
                lengths[f"{pairs_name}.{array}"] = (getattr(pairs, array), size)
            lengths[f"{pairs_name}.sizes"] = (pairs.sizes, self.num_relations)
            for array in [f.name for f in fields(edges) if not f.metadata]:
                length = size + 1 if "ptr" in array else nodes.num_edges
                lengths[f"{edges_name}.{array}"] = (getattr(edges, array), length)
        for vector, (array, length) in lengths.items():
            dtypes[vector] = check_index(f"{name}.{vector}", array)
            arguments.check_shape(f"{name}.{vector}", array, f"({length},)", length)
        check_one_dtype(name, dtypes)

    def matrix(self, *, weighted: bool = False) -> RelationalMatrix:
        """Return the edges as the primitives take them, in all parts that are built.

        Args:
            weighted: whether edges have weights, so that their order by source is needed.
        """
        from_pairs, to_pairs = (
            None if graph is None else graph.matrix(weighted=weighted)
            for graph in (self.from_pairs, self.to_pairs)
        )
        nodes = self.nodes.matrix(weighted=weighted)
        return RelationalMatrix(
            nodes, self.edge_types, self.pair_src, from_pairs, self.pair_dst, to_pairs
        )

    def _gated(
        self, weight: Array | None, dtype: DTypeLike, heads: int = 1
    ) -> tuple[RelationalGraph, Array | None]:
        """Return the graph and the edge weights that an op works with: see `Graph._gated`."""
        nodes, weight = self.nodes._gated(weight, dtype, heads)
        return replace(self, nodes=nodes), weight

    @property
    def _plain(self) -> RelationalGraph:
        """Graph without factors of messages."""
        return replace(self, nodes=self.nodes._plain)

    def edge_values(self, values: ArrayLike, fill_value: ArrayLike = 0) -> Array:
        """Bring values, such as weights, from the order of the input to the graph's order.

        Args:
            values: ``(num_triples, *features)``, one row for each edge of the input.
            fill_value: value of edges from nodes to themselves, and of padding. A reversed edge
                gets the value of its edge.

        Returns:
            ``(num_edges, *features)`` in the dtype of ``values``. Errors: as in
            :meth:`Graph.edge_values`.
        """
        return self.nodes.edge_values(values, fill_value)

    def to_input_order(self, values: ArrayLike, fill_value: ArrayLike = 0) -> Array:
        """Bring values from the graph's order back to that of the input: undo `edge_values`.

        Args:
            values: ``(num_edges, *features)``. Values of added edges, inverse ones included, are
                left out.
            fill_value: value of edges of the input that the graph lacks.

        Returns:
            ``(num_triples, *features)`` in the dtype of ``values``. Errors: as in
            :meth:`Graph.to_input_order`.
        """
        return self.nodes._to_input_order(values, fill_value, "num_edges", self.edge_types)

    def triples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the edges in the order of the input, then edges added later. Host only.

        An inverse edge follows the edge that it reverses. Padding and dropped edges are left out.

        Returns:
            Sources, relations and destinations, ``(edges,)`` int64 each.
        """
        src, dst, edge_ids = self.nodes._host_edges("triples")
        order = input_order(edge_ids)
        rel = np.asarray(self.edge_types)[order].astype(np.int64)
        return src[order], rel, dst[order]

    @run_on_host("nodes", "edge_types", "into_pairs")
    def norm(self, kind: Literal["mean"] = "mean", dtype: DTypeLike = float) -> Array:
        """Return factors of edges that turn sums over each relation into means (arXiv 1703.06103).

        Args:
            kind: ``"mean"``: 1 / the number of edges with the same destination and relation.
            dtype: float16, bfloat16, float32 or float64; by default float32, or float64 where 64
                bits are on.

        Returns:
            ``(num_edges,)``, in the graph's order; 0 for padding.

        Raises:
            TypeError: ``dtype`` is none of these.
            ValueError: ``kind`` is unknown.
        """
        arguments.check_choice("kind", kind, ("mean",))
        dtype = arguments.check_float_dtype("dtype", dtype)
        rows, types, pairs = self.nodes.rows, self.edge_types, self.into_pairs
        xp = namespace(rows, types)
        if pairs is not None:  # the edges of a pair have the same destination and relation
            counts = take_ids(pairs.indptr, pairs.rows + 1) - take_ids(pairs.indptr, pairs.rows)
        else:  # edges are sorted by destination, then relation: count the runs of equal ones
            is_first = xp.arange(self.num_edges) == 0
            is_first |= (rows != xp.roll(rows, 1)) | (types != xp.roll(types, 1))
            run = xp.cumsum(is_first, dtype=rows.dtype) - 1
            counts = _counts(run, self.num_edges)[run]
        valid = in_range(rows, self.num_dst)
        inverse_counts = 1 / xp.maximum(counts, 1).astype(dtype)
        return cast(Array, xp.where(valid, inverse_counts, xp.zeros((), dtype)))

    def in_degrees(self) -> Array:
        """Return the number of edges into each (destination, relation) pair: ``(num_dst_pairs,)``.

        A graph without the part ``"to_pairs"`` raises a ValueError.
        """
        return self._part("to_pairs").in_degrees()

    def out_degrees(self) -> Array:
        """Return the number of edges out of each (source, relation) pair: ``(num_src_pairs,)``.

        A graph without the part ``"from_pairs"`` raises a ValueError.
        """
        return self._part("from_pairs").out_degrees()

    @run_on_host("edge_types")
    def relation_degrees(self) -> Array:
        """Return the number of edges of each relation: ``(num_relations,)`` integers."""
        types, size = self.edge_types, self.num_relations
        valid = in_range(types, size)
        # Padding counts as a further relation, which is cut off.
        return cast(Array, _counts(namespace(types).where(valid, types, size), size + 1)[:size])

    def _part(self, name: Part) -> Graph:
        graph: Graph | None = getattr(self, name)
        if graph is None:
            raise ValueError(f"the graph has no part {name!r}: call with_parts({name!r}) before")
        return graph


def edges_of(graph: Graph | RelationalGraph) -> Graph:
    """Return the edges without their relations."""
    return graph.nodes if isinstance(graph, RelationalGraph) else graph


def _check_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    if isinstance(parts, str) or not isinstance(parts, tuple | list):
        raise TypeError(f"parts must be a tuple of names, got {parts!r}")
    for part in parts:
        arguments.check_choice("parts", part, PARTS)
    return tuple(parts)


def _check_edge_type(key: object, sizes: Mapping[str, int]) -> EdgeType:
    """Check an edge type, and return it with numpy's strings turned into Python's."""
    if not (
        isinstance(key, tuple) and len(key) == 3 and all(isinstance(part, str) for part in key)
    ):
        raise TypeError(
            "edges must be by (source type, relation, destination type), three strings, got "
            f"{key!r}"
        )
    for kind in (key[0], key[2]):
        if kind not in sizes:
            raise ValueError(
                f"num_nodes says nothing about the type {kind!r} of edges[{key!r}], got those of "
                f"{', '.join(map(repr, sizes))}"
            )
    src, name, dst = map(str, key)
    return src, name, dst


def _inverses(edge_types: tuple[EdgeType, ...], prefix: str) -> tuple[EdgeType, ...]:
    if not isinstance(prefix, str):
        raise TypeError(f"inverse_prefix must be a string, got {prefix!r}")
    inverses = tuple((dst, prefix + name, src) for src, name, dst in edge_types)
    for inverse, edge_type in zip(inverses, edge_types, strict=True):
        if inverse in edge_types:
            raise ValueError(
                f"edges has {inverse!r}, which is the name of the inverse of {edge_type!r}, too: "
                f"choose another inverse_prefix than {prefix!r}, or inverse=False"
            )
    return inverses


def _two_rows(name: str, edges: Any) -> Any:
    if isinstance(edges, list | tuple) and not edges:
        return edges, edges
    shape = getattr(edges, "shape", None)
    if (shape is not None and len(shape) != 2) or not hasattr(edges, "__len__") or len(edges) != 2:
        raise ValueError(
            f"{name} must be (2, num_edges), sources and destinations, got "
            f"{arguments.described(edges)}"
        )
    return edges


def _counts(ids: Any, size: int) -> Any:
    """Count the occurrences of each id; all ids are in range."""
    if namespace(ids) is np:
        return np.bincount(ids, minlength=size).astype(ids.dtype)
    return jnp.zeros(size, ids.dtype).at[ids].add(1)


for _kind in (RelationalGraph, Pairs, OutOfPairs, IntoPairs):
    register_serialization(_kind)
