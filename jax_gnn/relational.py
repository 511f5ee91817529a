"""The container of graphs whose edges have relations: graphs of nodes and of pairs, as a pytree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

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
from jax_gnn._core.triples import (
    IntoPairs,
    OutOfPairs,
    SortedTriples,
    destination_pairs,
    sort_triples,
    source_pairs,
)
from jax_gnn.graph import Graph, check_index, check_one_dtype, given_first

EdgeType = tuple[str, str, str]
Part = Literal["from_pairs", "to_pairs"]
PARTS: tuple[Part, ...] = get_args(Part)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RelationalGraph:
    """A directed graph, or a bipartite one, whose edges have a relation each.

    It is made of graphs, so that every op works on them: from nodes to nodes, from (source,
    relation) pairs to nodes, and from nodes to (destination, relation) pairs, of which only those
    count that occur. Relations are numbers from 0; build one with a ``from_…`` method. All sizes
    are shapes, those of pairs included, so that graphs of equal sizes share one compiled program;
    :meth:`pad` makes sizes equal.

    Whatever ops take or give for each edge is in one order in all parts: by destination, then
    relation, then source; equal edges in the order of the input. :meth:`edge_values` brings values
    there, :meth:`to_input_order` back. Hence ``nodes.cols`` need not ascend for each destination.

    Attributes:
        nodes: the edges from sources to destinations; its second half by source, then destination,
            then relation.
        edge_types: ``(num_edges,)``, the relation of each edge.
        pair_src: the (source, relation) pairs, numbered by relation, then source: what
            segmented products take. None where the part ``"from_pairs"`` was not built.
        out_of_pairs: what ``from_pairs`` has beside the arrays of ``nodes``; likewise.
        pair_dst: the (destination, relation) pairs, numbered by destination, then relation. None
            where the part ``"to_pairs"`` was not built.
        into_pairs: what ``to_pairs`` has beside the arrays of ``nodes``; likewise.
        num_relations: number of relations, those without edges included.
        node_type_sizes: how many nodes each type has, where nodes have types: they are numbered
            type by type.
        node_type_names: what the types are called.
        relation_names: what the relations are called: where nodes have types, (source type, name,
            destination type), and "self".
        self_relation: whether the last relation is that of an edge from each node to itself.

    Parts hold what is theirs alone, so that no array is there twice. Padding is as in
    :class:`Graph`: edges past ``nodes.indptr[-1]`` hold -1 in all arrays.

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
        """The edges from (source, relation) pairs to destinations; None where not built.

        ``num_src`` of it is the number of pairs. Into destinations they run as those of ``nodes``.
        """
        nodes, out = self.nodes, self.out_of_pairs
        if out is None:
            return None
        made = Graph(
            *(nodes.indptr, nodes.rows, out.cols),
            *(out.t_indptr, out.t_rows, out.t_cols, out.t_order, nodes.edge_ids),
            num_input_edges=nodes.num_input_edges,
        )
        return nodes._same_edges(made)

    @property
    def to_pairs(self) -> Graph | None:
        """The edges from sources to (destination, relation) pairs; None where not built.

        ``num_dst`` of it is the number of pairs. Out of sources they run as those of ``nodes``.
        """
        nodes, into = self.nodes, self.into_pairs
        if into is None:
            return None
        made = Graph(
            *(into.indptr, into.rows, nodes.cols),
            *(nodes.t_indptr, nodes.t_rows, into.t_cols, nodes.t_order, nodes.edge_ids),
            num_input_edges=nodes.num_input_edges,
        )
        return nodes._same_edges(made)

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
        """Number of nodes, padding included, of a graph that is not bipartite.

        Raises:
            ValueError: there are not as many sources as destinations.
        """
        return self.nodes.num_nodes

    @property
    def num_edges(self) -> int:
        """Number of edges, padding included."""
        return self.nodes.num_edges

    @property
    def num_src_pairs(self) -> int | None:
        """Number of (source, relation) pairs, padding included; None where they were not built."""
        return None if self.pair_src is None else self.pair_src.num_pairs

    @property
    def num_dst_pairs(self) -> int | None:
        """Number of (destination, relation) pairs, likewise."""
        return None if self.pair_dst is None else self.pair_dst.num_pairs

    @property
    def relation_ends(self) -> tuple[tuple[int, int] | None, ...] | None:
        """The types of nodes at both ends of each relation's edges, as numbers: source first.

        None for a relation that may have several, as that of nodes to themselves; None in all for a
        graph whose nodes have no types, or whose relations have no names of three parts. A graph
        of :meth:`from_edge_dict` has them.
        """
        types, relations = self.node_type_names, self.relation_names
        if types is None or relations is None:
            return None
        number = {name: i for i, name in enumerate(types)}
        ends = [None if isinstance(name, str) else (name[0], name[2]) for name in relations]
        if not {name for each in ends if each for name in each} <= number.keys():
            return None
        return tuple(each and (number[each[0]], number[each[1]]) for each in ends)

    @property
    def node_slices(self) -> tuple[slice, ...]:
        """The nodes of each type; of a graph without types all nodes."""
        sizes = (self.num_nodes,) if self.node_type_sizes is None else self.node_type_sizes
        stops = np.cumsum(sizes, dtype=int).tolist()
        return tuple(slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True))

    def __repr__(self) -> str:
        if not getattr(self.edge_types, "shape", None) or not repr(self.nodes).startswith(
            "Graph(num_"
        ):
            names = [f.name for f in fields(self)]  # a pytree of something else than arrays
        else:
            square = self.num_src == self.num_dst
            names = ["num_nodes"] if square else ["num_src", "num_dst"]
            names += ["num_edges", "num_relations", "num_src_pairs", "num_dst_pairs"]
        parts = {name: getattr(self, name) for name in names}
        given = (f"{name}={part!r}" for name, part in parts.items() if part is not None)
        return f"RelationalGraph({', '.join(given)})"

    # --- Building ------------------------------------------------------------------------------

    @classmethod
    def from_triples(
        cls,
        src: Any,
        rel: Any,
        dst: Any,
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
        """Builds a graph from edges in any order; one that is given twice counts twice.

        Works on host arrays, which are checked, and on traced arrays inside ``jax.jit``, which
        cannot be: there, and with ``validate=False``, edges with an id out of range are padding and
        are dropped. There, too, as many pairs are made as there may be, most of them padding.

        Args:
            src: ``(num_triples,)`` integers, where each edge starts.
            rel: ``(num_triples,)`` integers, its relation.
            dst: ``(num_triples,)`` integers, where it ends.
            num_nodes: number of nodes; by default the largest id plus one (host arrays only).
            num_relations: number of relations in ``rel``, likewise.
            num_src: number of sources of a bipartite graph, likewise the largest id plus one if
                only ``num_dst`` is given.
            num_dst: number of destinations of a bipartite graph, likewise.
            inverse: whether to add each edge reversed, as relation ``num_relations`` plus its own.
                It has the values of the one that it reverses (:meth:`edge_values`).
            self_relation: whether to add one relation more, the last, of an edge from each node to
                itself: a layer's weight for a node's own features. These edges were not in the
                input.
            parts: which of ``"from_pairs"`` and ``"to_pairs"`` to build; :meth:`with_parts` adds
                others.
            validate: whether ids out of range in host arrays are an error.

        Raises:
            TypeError: an array is not of integers, or a size is missing or not an integer.
            ValueError: an array is not one-dimensional, lengths differ, a size is negative, an id
                is out of range, ``num_nodes`` is given beside the other sizes, ``inverse`` or
                ``self_relation`` is wanted of a bipartite graph, or a part is unknown.
        """
        device = device_of(src, rel, dst)
        src, rel, dst = arguments.check_columns({"src": src, "rel": rel, "dst": dst})
        src_name = dst_name = "num_nodes"
        bipartite = num_src is not None or num_dst is not None
        if not bipartite:
            num_src = num_dst = arguments.check_size("num_nodes", num_nodes, src, dst)
        elif num_nodes is not None:
            raise ValueError(arguments.num_nodes_conflict(num_nodes, num_src, num_dst))
        else:
            src_name, dst_name = "num_src", "num_dst"
            num_src = arguments.check_size("num_src", num_src, src)
            num_dst = arguments.check_size("num_dst", num_dst, dst)
        num_relations = arguments.check_size("num_relations", num_relations, rel)
        inverse = arguments.check_flag("inverse", inverse)
        self_relation = arguments.check_flag("self_relation", self_relation)
        for name, wanted in (("inverse", inverse), ("self_relation", self_relation)):
            if wanted and bipartite:
                raise ValueError(
                    f"{name} is not for bipartite graphs: give num_nodes, got {num_src=} and "
                    f"{num_dst=}"
                )
        validate = arguments.check_flag("validate", validate) and not is_traced(src)
        edges = sort_triples(
            *(src, rel, dst),
            num_src=num_src,
            num_dst=num_dst,
            num_relations=num_relations,
            inverse=inverse,
            loops=self_relation,
        )
        if validate and edges.dropped():
            arguments.check_range("src", src, src_name, num_src)
            arguments.check_range("rel", rel, "num_relations", num_relations)
            arguments.check_range("dst", dst, dst_name, num_dst)
        graph = cls(
            Graph(*edges[:-1], None, None, id_count(src, edges.indptr.dtype)),
            edges.types,
            num_relations=num_relations * (1 + inverse) + self_relation,
            self_relation=self_relation,
        )
        return to_device(graph._with_parts(_check_parts("parts", parts)), device)

    @classmethod
    def from_edge_dict(
        cls,
        edges: Mapping[tuple[str, str, str], Any],
        num_nodes: Mapping[str, int],
        *,
        inverse: bool = False,
        inverse_prefix: str = "rev_",
        self_relation: bool = False,
        parts: tuple[Part, ...] = PARTS,
        validate: bool = True,
    ) -> RelationalGraph:
        """Builds a graph of several types of nodes, from edges by type as PyG and DGL have them.

        Nodes of all types are numbered one after another, type by type in the order of
        ``num_nodes``: those of the i-th type are ``node_slices[i]``. Relation i is the i-th of
        ``edges``; ``relation_names`` are its keys, those of inverse relations, such as ``("paper",
        "rev_writes", "author")``, and ``"self"``.

        Args:
            edges: by (type of the sources, relation, type of the destinations) the edges, as ids
                within these types: ``(2, num_edges)`` integers, sources first, or a pair of arrays
                ``(num_edges,)``; ``[]`` for none.
            num_nodes: how many nodes each type has.
            inverse: as for :meth:`from_triples`.
            inverse_prefix: what the name of an inverse relation has before that of the relation.
            self_relation: likewise.
            parts: likewise.
            validate: likewise.

        Raises:
            TypeError: ``edges`` or ``num_nodes`` is no mapping of that kind, or as
                :meth:`from_triples`.
            ValueError: a type has no number of nodes, an inverse relation has the name of another
                one, or as :meth:`from_triples`.
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
            kind = str(kind)  # of numpy's, too
            starts[kind] = sum(sizes.values())
            sizes[kind] = arguments.check_size(f"num_nodes[{kind!r}]", size)
        total = arguments.check_size("num_nodes", sum(sizes.values()))
        triples: list[tuple[Any, Any, Any]] = [(np.zeros(0, np.int64),) * 3]
        edge_types = tuple(_check_edge_type(key, sizes) for key in edges)
        for relation, (key, given) in enumerate(zip(edge_types, edges.values(), strict=True)):
            name = f"edges[{key!r}]"
            ends = _two_rows(name, given)
            ends = arguments.check_pairs(f"{name}[0]", ends[0], f"{name}[1]", ends[1])
            shifted = []
            for i, (ids, kind) in enumerate(zip(ends, (key[0], key[2]), strict=True)):
                if validate and not is_traced(ids):
                    size_name = f"num_nodes[{kind!r}]"
                    arguments.check_range(f"{name}[{i}]", ids, size_name, sizes[kind])
                where: Any = jnp.where if is_traced(ids) else np.where
                shifted.append(where(in_range(ids, sizes[kind]), ids + starts[kind], PADDING))
            triples.append((shifted[0], np.full(ids.shape, relation), shifted[1]))
        names: tuple[EdgeType | str, ...] = edge_types
        if arguments.check_flag("inverse", inverse):
            names += _inverses(edge_types, inverse_prefix)
        join: Any = jnp.concatenate if is_traced(*jax.tree.leaves(triples)) else np.concatenate
        with jax.numpy_dtype_promotion("standard"):  # ids of int32 inside jit, the others of int64
            src, rel, dst = (join(column) for column in zip(*triples, strict=True))
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
        """Adds parts that are not there yet: all, if none is named.

        Works on the host and inside ``jax.jit``, where as many pairs are made as there may be: a
        pair for each edge, or for each node and relation if that is less.

        Args:
            parts: ``"from_pairs"``, with ``pair_src``, and ``"to_pairs"``, with ``pair_dst``.

        Raises:
            ValueError: a part is unknown, or arrays are not those of a graph that was built.
        """
        graph = self._with_parts(_check_parts("parts", parts or PARTS))
        return graph if namespace(self.nodes.rows) is np else to_device(graph)

    def _with_parts(self, wanted: tuple[Part, ...]) -> RelationalGraph:
        nodes = self.nodes
        edges = SortedTriples(
            *(nodes.indptr, nodes.rows, nodes.cols),
            *(nodes.t_indptr, nodes.t_rows, nodes.t_cols, nodes.t_order),
            *(nodes.edge_ids, self.edge_types),
        )
        added: dict[str, Any] = {}
        if "from_pairs" in wanted and self.pair_src is None:
            pairs, out = source_pairs(edges, self.num_relations)
            added |= {"pair_src": pairs, "out_of_pairs": out}
        if "to_pairs" in wanted and self.pair_dst is None:
            pairs, into = destination_pairs(edges, self.num_relations)
            added |= {"pair_dst": pairs, "into_pairs": into}
        return replace(self, **added)

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
        """Pads to given capacities, so that differing graphs share one compiled program.

        The new nodes and pairs have no edges; new nodes are of no type.

        Args:
            num_nodes: capacity in nodes; None leaves it.
            num_src: capacity in sources of a bipartite graph; None leaves it.
            num_dst: capacity in destinations of a bipartite graph; None leaves it.
            num_edges: capacity in edges; None leaves it.
            num_src_pairs: capacity in (source, relation) pairs; None leaves it.
            num_dst_pairs: capacity in (destination, relation) pairs; None leaves it.

        Raises:
            TypeError: a capacity is not an integer.
            ValueError: a capacity is smaller than what is there, ``num_nodes`` is given beside
                ``num_src`` or ``num_dst``, or for a bipartite graph, or a capacity is given for
                a part that was not built.
        """
        nodes = self.nodes.pad(
            num_nodes=num_nodes, num_src=num_src, num_dst=num_dst, num_edges=num_edges
        )
        new = nodes.num_edges - self.num_edges
        padded: dict[str, Any] = {}
        for side, edges, part, wanted, size in (
            ("src", "out_of_pairs", "from_pairs", num_src_pairs, nodes.num_src),
            ("dst", "into_pairs", "to_pairs", num_dst_pairs, nodes.num_dst),
        ):
            pairs, rest = getattr(self, f"pair_{side}"), getattr(self, edges)
            if pairs is None:
                if wanted is not None:
                    raise ValueError(
                        f"num_{side}_pairs: the graph has no part {part!r}, got {wanted}"
                    )
                continue
            more = arguments.added_size(f"num_{side}_pairs", wanted, pairs.num_pairs)
            padded |= {f"pair_{side}": pairs.pad(more, size), edges: rest.pad(new, more)}
        types = pad_ids(self.edge_types, new)
        return replace(self, nodes=nodes, edge_types=types, **padded)

    # --- What ops take ---------------------------------------------------------------------------

    def check(self, name: str = "graph") -> RelationalGraph:
        """The graph, if its arrays are such as ops take; what they hold is not looked at.

        Args:
            name: what errors call it.

        Raises:
            TypeError: an array is not of int32 or int64, or they are not all of one type.
            ValueError: an array is not one-dimensional, lengths do not fit each other, or a name
                is given twice.
        """
        self.check_arrays(name)
        nodes = arguments.check_container(f"{name}.nodes", self.nodes, Graph)
        return replace(jax.tree.map(as_signed, self._plain), nodes=nodes)

    def check_arrays(self, name: str = "graph") -> None:
        """The same check alone: arrays of the host stay there."""
        for field_name in ("node_type_names", "relation_names"):
            arguments.check_distinct(f"{name}.{field_name}", getattr(self, field_name) or ())
        nodes = self.nodes
        arguments.check_instance(f"{name}.nodes", nodes, Graph)
        nodes.check_arrays(f"{name}.nodes")
        dtypes = {"nodes.rows": nodes.rows.dtype}
        lengths: dict[str, tuple[Any, int]] = {"edge_types": (self.edge_types, nodes.num_edges)}
        for side, edges, kind in (
            ("src", "out_of_pairs", OutOfPairs),
            ("dst", "into_pairs", IntoPairs),
        ):
            pairs_name = f"pair_{side}"
            pairs, rest = getattr(self, pairs_name), getattr(self, edges)
            if (pairs is None) != (rest is None):
                raise ValueError(
                    f"{name}: {pairs_name} and {edges} are built together, got "
                    f"{type(pairs).__name__} and {type(rest).__name__}"
                )
            if pairs is None:
                continue
            arguments.check_instance(f"{name}.{pairs_name}", pairs, Pairs)
            arguments.check_instance(f"{name}.{edges}", rest, kind)
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
            for array in _arrays(rest):
                length = size + 1 if "ptr" in array else nodes.num_edges
                lengths[f"{edges}.{array}"] = (getattr(rest, array), length)
        for vector, (array, length) in lengths.items():
            dtypes[vector] = check_index(f"{name}.{vector}", array)
            if array.shape != (length,):
                raise ValueError(f"{name}.{vector} must be ({length},), got shape {array.shape}")
        check_one_dtype(name, dtypes)

    def matrix(self, *, weighted: bool = False) -> RelationalMatrix:
        """The edges as the primitives take them, in all parts that are built.

        Args:
            weighted: whether there are weights of edges, whose order is wanted then.
        """

        def part(graph: Graph | None) -> Any:
            return None if graph is None else graph.matrix(weighted=weighted)

        return RelationalMatrix(
            self.nodes.matrix(weighted=weighted),
            self.edge_types,
            self.pair_src,
            part(self.from_pairs),
            self.pair_dst,
            part(self.to_pairs),
        )

    def _gated(self, weight: Any, dtype: Any, heads: int = 1) -> tuple[RelationalGraph, Any]:
        """See :meth:`Graph._gated`."""
        nodes, weight = self.nodes._gated(weight, dtype, heads)
        return replace(self, nodes=nodes), weight

    @property
    def _plain(self) -> RelationalGraph:
        """See :meth:`Graph._plain`."""
        return replace(self, nodes=self.nodes._plain)

    def edge_values(self, values: Any, fill_value: Any = 0) -> Array:
        """Brings values, such as weights, from the order of the input to the graph's order.

        Args:
            values: ``(num_triples, *features)``, one for each edge that the graph was built from.
            fill_value: what edges get that were not there: those of nodes to themselves, and
                padding. A reversed edge gets the value of the one that it reverses.

        Returns:
            ``(num_edges, *features)`` in the dtype of ``values``, as :meth:`Graph.edge_values`.

        Raises:
            TypeError: ``values`` are not numbers, or ``fill_value`` is none.
            ValueError: ``values`` has not one row for each edge of the input.
        """
        return self.nodes.edge_values(values, fill_value)

    def to_input_order(self, values: Any, fill_value: Any = 0) -> Array:
        """Brings values from the graph's order back to that of the input: undoes `edge_values`.

        Args:
            values: ``(num_edges, *features)``. Those of edges that were added, inverse ones
                included, are left out.
            fill_value: as for :meth:`Graph.to_input_order`.

        Returns:
            ``(num_triples, *features)`` in the dtype of ``values``.

        Raises:
            TypeError: as :meth:`Graph.to_input_order`.
            ValueError: likewise.
        """
        return self.nodes._to_input_order(values, fill_value, "num_edges", self.edge_types)

    def triples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The edges that the graph was built from, in that order, then those added. Host only.

        An inverse edge stands beside its own. Padding, and what was dropped, is left out.

        Returns:
            Sources, relations and destinations, ``(edges,)`` int64 each.

        Raises:
            TypeError: called inside ``jax.jit``.
        """
        src, dst, edge_ids = self.nodes._host_edges("triples")
        order = given_first(edge_ids)
        rel = np.asarray(self.edge_types)[order].astype(np.int64)
        return src[order], rel, dst[order]

    @run_on_host("nodes", "edge_types", "into_pairs")
    def norm(self, kind: Literal["mean"] = "mean", dtype: Any = float) -> Array:
        """Factors of edges that make sums over each relation means (R-GCN, arXiv 1703.06103).

        Args:
            kind: ``"mean"``: 1 / the number of edges into the same destination by the same
                relation.
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
        rows, types, into = self.nodes.rows, self.edge_types, self.into_pairs
        xp = namespace(rows, types)
        if into is not None:  # a pair's edges are those of a destination and a relation
            counts = take_ids(into.indptr, into.rows + 1) - take_ids(into.indptr, into.rows)
        else:
            first = xp.arange(self.num_edges) == 0
            new = first | (rows != xp.roll(rows, 1)) | (types != xp.roll(types, 1))
            number = xp.cumsum(new, dtype=rows.dtype) - 1
            counts = _counts(number, self.num_edges)[number]
        valid = in_range(rows, self.num_dst)
        share = 1 / xp.maximum(counts, 1).astype(dtype)
        return xp.where(valid, share, xp.zeros((), dtype))

    def in_degrees(self) -> Array:
        """Number of edges into each (destination, relation) pair: ``(num_dst_pairs,)`` integers.

        Raises:
            ValueError: the part ``"to_pairs"`` was not built.
        """
        return self._part("to_pairs").in_degrees()

    def out_degrees(self) -> Array:
        """Number of edges out of each (source, relation) pair: ``(num_src_pairs,)`` integers.

        Raises:
            ValueError: the part ``"from_pairs"`` was not built.
        """
        return self._part("from_pairs").out_degrees()

    @run_on_host("edge_types")
    def relation_degrees(self) -> Array:
        """Number of edges of each relation: ``(num_relations,)`` integers."""
        types, last = self.edge_types, self.num_relations
        valid = in_range(types, last)
        return _counts(namespace(types).where(valid, types, last), last + 1)[:last]

    def _part(self, name: Part) -> Graph:
        graph = getattr(self, name)
        if graph is None:
            raise ValueError(f"the graph has no part {name!r}: call with_parts({name!r}) before")
        return graph


def _check_parts(name: str, parts: Any) -> tuple[Part, ...]:
    if isinstance(parts, str) or not isinstance(parts, tuple | list):
        raise TypeError(f"{name} must be a tuple of names, got {parts!r}")
    for part in parts:
        arguments.check_choice(name, part, PARTS)
    return tuple(parts)


def _check_edge_type(key: Any, sizes: Mapping[str, int]) -> EdgeType:
    """An edge type as strings of Python, where numpy's were given."""
    of_three = isinstance(key, tuple) and len(key) == 3
    if not of_three or not all(isinstance(part, str) for part in key):
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


def _inverses(edge_types: tuple[EdgeType, ...], prefix: Any) -> tuple[EdgeType, ...]:
    if not isinstance(prefix, str):
        raise TypeError(f"inverse_prefix must be a string, got {prefix!r}")
    found = tuple((dst, prefix + name, src) for src, name, dst in edge_types)
    for inverse, of in zip(found, edge_types, strict=True):
        if inverse in edge_types:
            raise ValueError(
                f"edges has {inverse!r}, which is the name of the inverse of {of!r}, too: choose "
                f"another inverse_prefix than {prefix!r}, or inverse=False"
            )
    return found


def _two_rows(name: str, given: Any) -> Any:
    if isinstance(given, list | tuple) and not given:
        return given, given
    shape = getattr(given, "shape", None)
    if (shape is not None and len(shape) != 2) or not hasattr(given, "__len__") or len(given) != 2:
        raise ValueError(
            f"{name} must be (2, num_edges), sources and destinations, got "
            f"{arguments.described(given)}"
        )
    return given


def _arrays(part: Any) -> list[str]:
    return [f.name for f in fields(part) if not f.metadata]


def _deserialized(data: bytes) -> Any:
    return _tuples(json.loads(bytes(data)))


def _tuples(value: Any) -> Any:
    """Lists, as which JSON keeps tuples, as such."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# Exported functions that take graphs can be serialized.
for _kind in (RelationalGraph, Pairs, OutOfPairs, IntoPairs):
    jax.export.register_pytree_node_serialization(
        _kind,
        serialized_name=f"jax_gnn.{_kind.__name__}",
        serialize_auxdata=lambda static: json.dumps(static).encode(),
        deserialize_auxdata=_deserialized,
    )


def _counts(ids: Any, size: int) -> Any:
    """How often each id occurs, of ids in range."""
    if namespace(ids) is np:
        return np.bincount(ids, minlength=size).astype(ids.dtype)
    return jnp.zeros(size, ids.dtype).at[ids].add(1)
