"""What sampling gives: bipartite graphs of static shapes, one for each layer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC
from jax_gnn._core.ids import (
    PADDING,
    compaction_targets,
    in_range,
    namespace,
    row_ids,
    scatter_ids,
    take_ids,
)
from jax_gnn._core.public import public
from jax_gnn._core.sort import sorted_ids
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._rows import values_of


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Blocks:
    """The neighbourhoods of seeds, as one bipartite graph for each layer of a model.

    The sources of a block are its destinations, in their order, and behind them what was drawn:
    destination i is source i, so that a layer takes ``x`` for its sources and ``x[:num_dst]`` for
    its destinations. The sources of a block are the destinations of the one before it. All shapes
    follow from the number of seeds, fanouts and capacities.

    Attributes:
        graphs: the blocks, :class:`jax_gnn.Graph` or :class:`jax_gnn.RelationalGraph` as the whole
            one, the outermost layer's first, whose sources have features; the last one's
            destinations are the seeds.
        node_ids: ``(graphs[0].num_src,)``, which node of the whole graph each source of the first
            block is; -1 is padding. The seeds come first. :meth:`node_values` gathers features.
        overflow: ``()`` bool, whether a capacity was too small, so that edges were left out.
        seed_ids: ``(graphs[0].num_src,)``, which seed each source was reached from, -1 for padding,
            where each belongs to one: of trees and of disjoint neighbourhoods; else None. These
            are ids of graphs, as readouts take them.
        node_type_sizes: how many nodes of each type the whole graph has, where nodes have types.

    Example:
        >>> whole = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> blocks = sample_neighbors(whole, jnp.array([2]), (2, 2), jax.random.key(0))
        >>> blocks
        Blocks(num_seeds=1, graphs=[7 -> 3, 3 -> 1], num_edges=[6, 2])
        >>> blocks.node_ids
        Array([ 2,  1, -1,  0, -1, -1, -1], dtype=int32)
    """

    graphs: tuple[Any, ...]
    node_ids: Array
    overflow: Array
    seed_ids: Array | None = None
    node_type_sizes: tuple[int, ...] | None = field(default=None, kw_only=True, metadata=STATIC)

    @property
    def num_seeds(self) -> int:
        """Number of seeds, padding included."""
        return self.graphs[-1].num_dst

    @property
    def node_type_names(self) -> tuple[str, ...] | None:
        """What the types of nodes are called; None where they have no names, or there are none."""
        return getattr(self.graphs[0], "node_type_names", None)

    @property
    def edge_ids(self) -> tuple[Array, ...]:
        """Where the edges of each block are in the whole graph's order; -1 is padding.

        These are the blocks' own ``edge_ids``: ``blocks.graphs[i].edge_values(values)`` takes
        values in the whole graph's order to those of a block.
        """
        graphs = (g.nodes if isinstance(g, RelationalGraph) else g for g in self.graphs)
        return tuple(graph.edge_ids for graph in graphs)

    @property
    def node_types(self) -> Any:
        """The type of each source of the first block, -1 for padding; None without types."""
        if self.node_type_sizes is None:
            return None
        ids, stops = self.node_ids, np.cumsum(self.node_type_sizes).tolist()
        before: Any = sum((ids >= stop).astype(ids.dtype) for stop in stops)
        return namespace(ids).where((ids >= 0) & (before < len(stops)), before, PADDING)

    def places_of_types(self) -> list[Any]:
        """For each type the place that each source has among its nodes; -1 for other sources."""
        sizes = self.node_type_sizes or (np.iinfo(self.node_ids.dtype).max,)
        starts, xp = np.cumsum([0, *sizes[:-1]]).tolist(), namespace(self.node_ids)
        own = ((self.node_ids - start, size) for start, size in zip(starts, sizes, strict=True))
        return [xp.where(in_range(ids, size), ids, PADDING) for ids, size in own]

    def node_values(self, values: Any) -> Any:
        """Rows of the whole graph's nodes, such as features, of the first block's sources.

        Args:
            values: ``(num_nodes, *features)``, one row for each node of the whole graph; or by type
                a row for each node of the type, in the order of types, and None where they have no
                features.

        Returns:
            ``(graphs[0].num_src, *features)`` in the dtype of ``values``, zeros for padding. Where
            ``values`` has too few rows, the rest are NaN (of integers, the extreme value). Of
            arrays of numpy it is one. By type a row for each source, zeros where it is of another;
            of a type with fewer nodes than there are sources its values as they are, so that a map
            has fewer rows: :meth:`source_rows` takes the rows then.

        Raises:
            TypeError: ``values`` are not numbers.
            ValueError: ``values`` is a scalar, or has other types than the graph.
        """
        if not isinstance(values, Mapping):
            return values_of(self.node_ids, values)
        names, wanted = self.node_type_names, len(self.few_nodes())
        if len(values) != wanted or (names is not None and tuple(values) != names):
            told = f"the types {names}" if names else f"{wanted} types"
            raise ValueError(f"values must be by {told} in that order, got {', '.join(values)}")
        found = {}
        kinds = zip(values.items(), self.places_of_types(), self.few_nodes(), strict=True)
        for (name, own), places, few in kinds:
            if few and own is not None:
                found[name] = arguments.as_numbers("values", own, namespace(places, own))
            else:
                found[name] = None if own is None else values_of(places, own)
        return found

    def few_nodes(self) -> list[bool]:
        """For each type whether it has fewer nodes than the first block has sources."""
        sources = self.node_ids.shape[0]
        return [size < sources for size in self.node_type_sizes or (sources,)]

    def source_rows(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A row for each source of what :meth:`node_values` gave by type, or was made of it.

        Args:
            values: by type, in the order of types, a row for each source, or for each node of a
                type that has fewer.

        Returns:
            By type ``(graphs[0].num_src, *features)``.

        Raises:
            ValueError: there are more or fewer types than the graph has, or another number of rows.
        """
        sources, sizes = self.node_ids.shape[0], self.node_type_sizes or (self.node_ids.shape[0],)
        found = {}
        for (name, own), places, size in zip(
            values.items(), self.places_of_types(), sizes, strict=True
        ):
            if len(own) not in (sources, min(size, sources)):
                nodes = f", or of {size} nodes" if size < sources else ""
                raise ValueError(
                    f"values[{name!r}] must have a row for each of {sources} sources{nodes}, as "
                    f"node_values gives, got {len(own)}"
                )
            found[name] = own if len(own) == sources else values_of(places, own)
        return found

    def __repr__(self) -> str:
        try:
            sizes = ", ".join(f"{graph.num_src} -> {graph.num_dst}" for graph in self.graphs)
            edges = [graph.num_edges for graph in self.graphs]
        except AttributeError:  # a pytree of something else than arrays
            return f"Blocks({self.graphs}, {self.node_ids}, {self.overflow})"
        return f"Blocks(num_seeds={self.num_seeds}, graphs=[{sizes}], num_edges={edges})"


# --- One layer's block ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """Edges by destination, ascending, those that count first.

    Attributes:
        indptr: ``(num_dst + 1,)``.
        rows: ``(edges,)``, the place of each destination, -1 where an edge does not count.
        places: ``(edges,)``, where it is in the whole graph.
        nodes: ``(edges,)``, its source's id in the whole graph.
    """

    indptr: Array
    rows: Array
    places: Array
    nodes: Array


def lined_up(
    starts: Array,
    offsets: Array,
    counts: Array,
    cols: Array,
    num_nodes: int,
    num_edges: int,
    *,
    ascending: bool,
) -> Drawn:
    """What was drawn of each row, one behind the other.

    Args:
        starts: ``(rows,)``, where the rows start in ``cols``.
        offsets: ``(rows, fanout)``, which of the row's edges were drawn.
        counts: ``(rows,)``, how many of them count.
        cols: the whole graph's.
        num_nodes: ids of nodes are below.
        num_edges: room; what is beyond it is left out.
        ascending: whether those of a row are put in the whole graph's order.
    """
    if ascending:
        is_drawn = jnp.arange(offsets.shape[1], dtype=counts.dtype) < counts[:, None]
        last = jnp.iinfo(offsets.dtype).max
        offsets = jnp.sort(jnp.where(is_drawn, offsets, last), axis=1, stable=False)
    zero = jnp.zeros(1, counts.dtype)
    indptr = jnp.concatenate([zero, jnp.cumsum(counts, dtype=counts.dtype)])
    indptr = jnp.minimum(indptr, num_edges)  # where rows overlap there may be more
    edges = jnp.arange(num_edges, dtype=indptr.dtype)
    rows = jnp.where(edges < indptr[-1], row_ids(indptr, num_edges), PADDING)
    slots = edges - indptr[rows]
    fanout = offsets.shape[1]
    places = starts[rows] + offsets.reshape(-1)[jnp.clip(rows * fanout + slots, 0)]
    places = jnp.where(rows < 0, PADDING, places)
    nodes = take_ids(cols, places)
    return Drawn(indptr, rows, places, jnp.where(in_range(nodes, num_nodes), nodes, PADDING))


def tree_block(nodes: Array, drawn: Drawn) -> list[Array]:
    """Each edge has a source of its own: by source they are in the same order. No sort.

    Args:
        nodes: ``(num_dst,)``, the destinations' ids.
        drawn: the edges.

    Returns:
        As :func:`distinct_block`.
    """
    num_dst, num_edges = nodes.shape[0], drawn.rows.shape[0]
    dtype = drawn.rows.dtype
    edges = jnp.arange(num_edges, dtype=dtype)
    there = drawn.rows >= 0
    sources = jnp.where(there, num_dst + edges, PADDING)
    before = jnp.zeros(num_dst + 1, dtype)
    t_indptr = jnp.concatenate([before, jnp.minimum(edges + 1, drawn.indptr[-1])])
    t_order = jnp.where(there, edges, PADDING)
    first = drawn.indptr, drawn.rows, sources
    own = [*first, t_indptr, sources, drawn.rows, t_order, drawn.places]
    own.append(jnp.concatenate([nodes, drawn.nodes]))
    return [*(ids.astype(nodes.dtype) for ids in own), jnp.zeros((), bool)]


class Sorted(NamedTuple):
    """Edges that are lined up, and the ids of all sources, sorted: what a block is made of.

    Attributes:
        nodes: ``(num_dst,)``, the destinations' ids.
        indptr: ``(num_dst + 1,)``, as of :class:`Drawn`.
        rows: ``(edges,)``, likewise.
        places: ``(edges,)``, likewise.
        keys: ``(num_dst + edges,)`` unsigned, the ids of destinations, then of the edges' sources,
            ascending; ``num_nodes`` is padding.
        at: ``(num_dst + edges,)``, where each was; of one node, and seed, they ascend.
        seeds: ``(num_dst,)``, the seed of each destination, below ``num_dst``, if nodes of several
            seeds are to be several sources; else None.
    """

    nodes: Any
    indptr: Any
    rows: Any
    places: Any
    keys: Any
    at: Any
    seeds: Any = None


def sorted_sources(nodes: Array, drawn: Drawn, num_nodes: int, seeds: Any = None) -> Sorted:
    """Sorts what may be sources.

    Args:
        nodes: ``(num_dst,)``, the destinations' ids.
        drawn: the edges.
        num_nodes: ids are below.
        seeds: as of :class:`Sorted`.
    """
    ids = jnp.concatenate([nodes, drawn.nodes]).astype(drawn.rows.dtype)
    # Of one node, destinations come first, then edges, in their order. Padding comes last.
    if seeds is None:
        keys, at = sorted_ids(ids, num_nodes)
    else:
        own = jnp.concatenate([seeds, take_ids(seeds, drawn.rows)])
        first = sorted_ids(own, nodes.shape[0])[1]
        keys, at = sorted_ids(ids[first], num_nodes)
        at = first[at]
    keys = keys.astype(f"u{keys.dtype}")
    return Sorted(nodes, drawn.indptr, drawn.rows, drawn.places, keys, at, seeds)


def distinct_block(edges: Sorted, num_nodes: int, num_src: int) -> list[Array]:
    """Each node is one source, found by one sort, which orders the edges by source, too.

    Args:
        edges: what was drawn.
        num_nodes: how many nodes.
        num_src: room for sources; edges from nodes beyond it, those of the largest ids, are left
            out.

    Returns:
        The arrays of the block's graph, from ``indptr`` to ``edge_ids`` in the order of
        :class:`Graph`'s, its sources' ids, and whether an edge was left out.
    """
    nodes, indptr, rows, places, keys, at, seeds = edges
    num_dst, num_edges = nodes.shape[0], rows.shape[0]
    dtype, count = rows.dtype, num_dst + num_edges
    steps = jnp.arange(count, dtype=dtype)
    is_other = keys[1:] != keys[:-1]
    if seeds is not None:
        own = jnp.concatenate([seeds, take_ids(seeds, rows)])[at]
        is_other |= own[1:] != own[:-1]
    is_first = jnp.concatenate([jnp.ones(1, bool), is_other])[:count]
    head = jax.lax.cummax(jnp.where(is_first, steps, 0))  # where the node's run starts
    is_edge = at >= num_dst
    is_new = is_first & is_edge & (keys < num_nodes)
    sums = jnp.cumsum(jnp.stack([is_new, is_edge]), axis=1, dtype=dtype)  # both at once
    new, earlier = sums[0], sums[1] - is_edge.astype(dtype)
    # A node that is a destination has its place; new ones come behind these, by id.
    own = jnp.where(is_new, num_dst - 1 + new, at)
    source = jnp.where(keys < num_nodes, own[head], PADDING)
    overflow = num_dst + jnp.concatenate([jnp.zeros(1, dtype), new])[-1] > num_src
    source = jnp.where(source < num_src, source, PADDING)

    place = jnp.where(is_new, own, num_src)
    sources = jnp.concatenate([nodes, jnp.full(num_src - num_dst, PADDING, nodes.dtype)])
    sources = sources.at[place].set(keys.astype(nodes.dtype), mode="drop")
    edge = jnp.where(is_edge, at - num_dst, num_edges)
    cols = jnp.full(num_edges, PADDING, dtype).at[edge].set(source, mode="drop")

    target = jnp.arange(num_edges, dtype=dtype)  # where an edge goes
    most = min(count, num_dst + num_nodes) if seeds is None else count
    if num_src < most:  # it may be that some are left out
        target = compaction_targets(cols >= 0).astype(dtype)
        indptr = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(cols >= 0, dtype=dtype)])[indptr]
        rows, places, cols = (scatter_ids(ids, target) for ids in (rows, places, cols))

    # By source: an edge's place is where its source starts, and how many came before it there.
    source = jnp.where(is_edge & (source >= 0), source, num_src)
    counts = jnp.zeros(num_src + 1, dtype).at[source + 1].add(1, mode="drop")
    t_indptr = jnp.cumsum(counts, dtype=dtype)
    t_place = t_indptr[source] + earlier - earlier[head]
    t_place = jnp.where(source < num_src, t_place, num_edges)
    t_order = jnp.full(num_edges, PADDING, dtype)
    t_order = t_order.at[t_place].set(take_ids(target, edge), mode="drop")
    t_rows, t_cols = take_ids(cols, t_order), take_ids(rows, t_order)
    found = [indptr, rows, cols, t_indptr, t_rows, t_cols, t_order, places, sources]
    return [*(ids.astype(nodes.dtype) for ids in found), overflow]


def seeds_of_sources(graph: Graph, seeds: Any) -> Any:
    """Which seed each source of a block belongs to, as the destinations of its edges do.

    Of arrays of numpy it is one.

    Args:
        graph: the block, of a tree or of disjoint neighbourhoods.
        seeds: ``(num_dst,)``, the seed of each destination.
    """
    starts, xp = graph.t_indptr, namespace(seeds)
    first = xp.where(starts[1:] > starts[:-1], starts[:-1], PADDING)
    new = take_ids(seeds, take_ids(graph.t_cols, first))
    return xp.concatenate([seeds, new[seeds.shape[0] :]])


def _deserialized(data: bytes) -> tuple[Any, ...]:
    (sizes,) = json.loads(bytes(data))
    return (None if sizes is None else tuple(sizes),)


jax.export.register_pytree_node_serialization(
    Blocks,
    serialized_name="jax_gnn.Blocks",
    serialize_auxdata=lambda static: json.dumps(static).encode(),
    deserialize_auxdata=_deserialized,
)
