"""Blocks, the result of sampling: bipartite graphs of static shapes, one for each layer.

The second half of the module builds one block in plain JAX, as the kernels do bit for bit.
"""

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
from jax.typing import ArrayLike

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
    """Sampled neighbourhoods of seeds, as one bipartite graph for each layer of a model.

    The sources of a block are its destinations, in their order, followed by the drawn nodes:
    destination i is source i, so that a layer takes ``x`` for its sources and ``x[:num_dst]`` for
    its destinations. The sources of a block are the destinations of the block before it. All shapes
    follow from the number of seeds, fanouts and capacities.

    Attributes:
        graphs: the blocks, :class:`jax_gnn.Graph` or :class:`jax_gnn.RelationalGraph` like the
            sampled graph, the outermost layer's first, whose sources have features; the seeds are
            the destinations of the final one.
        node_ids: ``(graphs[0].num_src,)``, ids in the sampled graph of the first block's sources;
            -1 is padding. The seeds come first. :meth:`node_values` gathers features.
        overflow: ``()`` bool, whether a capacity was too small, so that edges were left out.
        seed_ids: ``(graphs[0].num_src,)``, number of the seed from which each source was reached,
            -1 for padding; None unless blocks are trees or disjoint. Readouts take them as ids of
            graphs.
        node_type_sizes: number of nodes of each type in the sampled graph, if nodes have types.

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
        return int(self.graphs[-1].num_dst)

    @property
    def node_type_names(self) -> tuple[str, ...] | None:
        """Names of the node types; None if they have no names, or there are no types."""
        return getattr(self.graphs[0], "node_type_names", None)

    @property
    def edge_ids(self) -> tuple[Array, ...]:
        """Places of each block's edges in the sampled graph's order; -1 is padding.

        These are the blocks' own ``edge_ids``: ``blocks.graphs[i].edge_values(values)`` selects the
        values of a block's edges from values in the sampled graph's order.
        """
        graphs = (g.nodes if isinstance(g, RelationalGraph) else g for g in self.graphs)
        return tuple(graph.edge_ids for graph in graphs)

    @property
    def node_types(self) -> Array | None:
        """Type of each source of the first block, -1 for padding; None without types."""
        if self.node_type_sizes is None:
            return None
        ids, stops = self.node_ids, np.cumsum(self.node_type_sizes).tolist()
        types: Any = sum((ids >= stop).astype(ids.dtype) for stop in stops)
        types = namespace(ids).where((ids >= 0) & (types < len(stops)), types, PADDING)
        return types  # type: ignore[no-any-return]

    def places_of_types(self) -> list[Array]:
        """Return, for each type, each source's place among its nodes; -1 for other sources."""
        sizes = self.node_type_sizes or (np.iinfo(np.dtype(self.node_ids.dtype)).max,)
        starts, xp = np.cumsum([0, *sizes[:-1]]).tolist(), namespace(self.node_ids)
        shifted = [(self.node_ids - start, size) for start, size in zip(starts, sizes, strict=True)]
        return [xp.where(in_range(ids, size), ids, PADDING) for ids, size in shifted]

    def node_values(
        self, values: ArrayLike | Mapping[str, ArrayLike | None]
    ) -> Array | dict[str, Array | None]:
        """Select the rows of the first block's sources from rows of the sampled graph's nodes.

        Args:
            values: ``(num_nodes, *features)``, such as features, one row for each node of the
                sampled graph; or by node type, in the order of types, one row for each node of the
                type, or None if the type has no features.

        Returns:
            ``(graphs[0].num_src, *features)`` in the dtype of ``values``, zeros for padding. If
            ``values`` has too few rows, missing rows are NaN (of integers, the extreme value).
            Arrays of numpy give one of numpy. By type, one row for each source, zeros for sources
            of other types; but values of a type with fewer nodes than there are sources are
            returned unchanged, so that a linear map has fewer rows: :meth:`source_rows` selects the
            sources' rows afterwards.

        Raises:
            TypeError: ``values`` are not numbers.
            ValueError: ``values`` is a scalar, or has other types than the graph.
        """
        if not isinstance(values, Mapping):
            return values_of(self.node_ids, values)
        names, is_small = self.node_type_names, self.few_nodes()
        if len(values) != len(is_small) or (names is not None and tuple(values) != names):
            expected = f"the types {names}" if names else f"{len(is_small)} types"
            raise ValueError(f"values must be by {expected} in that order, got {', '.join(values)}")
        result: dict[str, Array | None] = {}
        for (name, rows), places, small in zip(
            values.items(), self.places_of_types(), is_small, strict=True
        ):
            if rows is None:
                result[name] = None
            elif small:
                result[name] = arguments.as_numbers("values", rows, namespace(places, rows))
            else:
                result[name] = values_of(places, rows)
        return result

    def few_nodes(self) -> list[bool]:
        """Return for each type whether it has fewer nodes than the first block has sources."""
        sources = self.node_ids.shape[0]
        return [size < sources for size in self.node_type_sizes or (sources,)]

    def source_rows(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Expand rows by type, as of :meth:`node_values`, to one row for each source.

        Args:
            values: by type, in the order of types, one row for each source, or for each node of a
                type that has fewer.

        Returns:
            By type ``(graphs[0].num_src, *features)``.

        Raises:
            ValueError: there are more or fewer types than the graph has, or another number of rows.
        """
        sources = self.node_ids.shape[0]
        sizes = self.node_type_sizes or (sources,)
        result = {}
        for (name, rows), places, size in zip(
            values.items(), self.places_of_types(), sizes, strict=True
        ):
            if len(rows) not in (sources, min(size, sources)):
                nodes = f", or of {size} nodes" if size < sources else ""
                raise ValueError(
                    f"values[{name!r}] must have a row for each of {sources} sources{nodes}, as "
                    f"node_values gives, got {len(rows)}"
                )
            result[name] = rows if len(rows) == sources else values_of(places, rows)
        return result

    def __repr__(self) -> str:
        try:
            sizes = ", ".join(f"{graph.num_src} -> {graph.num_dst}" for graph in self.graphs)
            edges = [graph.num_edges for graph in self.graphs]
        except AttributeError:  # a pytree of something else than arrays
            return f"Blocks({self.graphs}, {self.node_ids}, {self.overflow})"
        return f"Blocks(num_seeds={self.num_seeds}, graphs=[{sizes}], num_edges={edges})"


def _deserialize(data: bytes) -> tuple[tuple[int, ...] | None]:
    (sizes,) = json.loads(bytes(data))
    return (None if sizes is None else tuple(sizes),)


jax.export.register_pytree_node_serialization(
    Blocks,
    serialized_name="jax_gnn.Blocks",
    serialize_auxdata=lambda static: json.dumps(static).encode(),
    deserialize_auxdata=_deserialize,
)

# --- One layer's block ---------------------------------------------------------------------------


class DrawnEdges(NamedTuple):
    """Edges by destination, ascending; padding comes last.

    Attributes:
        indptr: ``(num_dst + 1,)``, row pointers.
        rows: ``(edges,)``, destination of each edge, numbered within the block; -1 for padding.
        places: ``(edges,)``, place of each edge in the sampled graph.
        nodes: ``(edges,)``, id of each edge's source in the sampled graph.
    """

    indptr: Array
    rows: Array
    places: Array
    nodes: Array


def compact_draws(
    starts: Array,
    offsets: Array,
    counts: Array,
    cols: Array,
    num_nodes: int,
    num_edges: int,
    *,
    ascending: bool,
) -> DrawnEdges:
    """Return the drawn edges of all rows without gaps.

    Args:
        starts: ``(rows,)``, start of each row in ``cols``.
        offsets: ``(rows, fanout)``, drawn edges, as offsets in their row.
        counts: ``(rows,)``, number of valid draws, which come first.
        cols: ``(num_whole,)``, sources of the sampled graph's edges.
        num_nodes: number of nodes of the sampled graph.
        num_edges: room for edges; further ones are left out.
        ascending: whether the edges of a row are put in the sampled graph's order.
    """
    fanout = offsets.shape[1]
    if ascending:
        is_valid = jnp.arange(fanout, dtype=counts.dtype) < counts[:, None]
        largest = np.iinfo(np.dtype(offsets.dtype)).max
        offsets = jnp.sort(jnp.where(is_valid, offsets, largest), axis=1, stable=False)
    zero = jnp.zeros(1, counts.dtype)
    indptr = jnp.concatenate([zero, jnp.cumsum(counts, dtype=counts.dtype)])
    indptr = jnp.minimum(indptr, num_edges)  # rows of an invalid graph may overlap
    edges = jnp.arange(num_edges, dtype=indptr.dtype)
    rows = jnp.where(edges < indptr[-1], row_ids(indptr, num_edges), PADDING)
    columns = edges - indptr[rows]
    places = starts[rows] + offsets.reshape(-1)[jnp.clip(rows * fanout + columns, 0)]
    places = jnp.where(rows < 0, PADDING, places)
    nodes = take_ids(cols, places)
    return DrawnEdges(indptr, rows, places, jnp.where(in_range(nodes, num_nodes), nodes, PADDING))


def tree_block(nodes: Array, drawn: DrawnEdges) -> list[Array]:
    """Build a block in which each edge has a source of its own, without a sort.

    Arguments and results: as of :func:`sort_sources` and :func:`distinct_block`.
    """
    num_dst, num_edges, dtype = nodes.shape[0], drawn.rows.shape[0], drawn.rows.dtype
    edges = jnp.arange(num_edges, dtype=dtype)
    valid = drawn.rows >= 0
    sources = jnp.where(valid, num_dst + edges, PADDING)
    # Sources are numbered like edges: the transpose has the edges in the same order.
    t_indptr = jnp.concatenate(
        [jnp.zeros(num_dst + 1, dtype), jnp.minimum(edges + 1, drawn.indptr[-1])]
    )
    t_order = jnp.where(valid, edges, PADDING)
    arrays = [drawn.indptr, drawn.rows, sources, t_indptr, sources, drawn.rows, t_order]
    arrays += [drawn.places, jnp.concatenate([nodes, drawn.nodes])]
    return [*(ids.astype(nodes.dtype) for ids in arrays), jnp.zeros((), bool)]


class SortedSources(NamedTuple):
    """Drawn edges, and the sorted ids of all candidates for the block's sources.

    Candidates are the destinations, then the edges' sources.

    Attributes:
        nodes: ``(num_dst,)``, ids of the destinations.
        indptr: ``(num_dst + 1,)``, as of :class:`DrawnEdges`.
        rows: ``(edges,)``, as of :class:`DrawnEdges`.
        places: ``(edges,)``, as of :class:`DrawnEdges`.
        keys: ``(num_dst + edges,)`` unsigned, ids of the candidates, ascending; ``num_nodes`` is
            padding.
        order: ``(num_dst + edges,)``, number of each sorted candidate; ascending within those of
            one node (and seed).
        seeds: ``(num_dst,)``, seed of each destination, below ``num_dst``, if a node is one source
            for each seed; else None.
    """

    nodes: Array
    indptr: Array
    rows: Array
    places: Array
    keys: Array
    order: Array
    seeds: Array | None = None


def sort_sources(
    nodes: Array, drawn: DrawnEdges, num_nodes: int, seeds: Array | None = None
) -> SortedSources:
    """Sort the candidates for sources by id, then by seed, then by number.

    Args:
        nodes: ``(num_dst,)``, ids of the destinations.
        drawn: the edges.
        num_nodes: number of nodes of the sampled graph.
        seeds: as of :class:`SortedSources`.
    """
    ids = jnp.concatenate([nodes, drawn.nodes]).astype(drawn.rows.dtype)
    if seeds is None:
        keys, order = sorted_ids(ids, num_nodes)
    else:  # two stable sorts, by the minor key first
        minor = jnp.concatenate([seeds, take_ids(seeds, drawn.rows)])
        by_seed = sorted_ids(minor, nodes.shape[0])[1]
        keys, order = sorted_ids(ids[by_seed], num_nodes)
        order = by_seed[order]
    keys = keys.astype(f"u{keys.dtype}")
    return SortedSources(nodes, drawn.indptr, drawn.rows, drawn.places, keys, order, seeds)


def distinct_block(edges: SortedSources, num_nodes: int, num_src: int) -> list[Array]:
    """Build a block in which each node (of each seed) is one source.

    Args:
        edges: the drawn edges and sorted candidates.
        num_nodes: number of nodes of the sampled graph.
        num_src: room for sources; edges from further nodes, those of the largest ids, are left out.

    Returns:
        The arrays of the block's graph, from ``indptr`` to ``edge_ids`` in the order of
        :class:`Graph`'s, its sources' ids, and whether an edge was left out.
    """
    nodes, indptr, rows, places, keys, order, seeds = edges
    num_dst, num_edges = nodes.shape[0], rows.shape[0]
    dtype, count = rows.dtype, num_dst + num_edges
    steps = jnp.arange(count, dtype=dtype)

    # Runs of candidates of one node: the first of a run decides the source's number. It is a
    # destination if there is one, else an edge, whose source is new.
    differs = keys[1:] != keys[:-1]
    if seeds is not None:
        minor = jnp.concatenate([seeds, take_ids(seeds, rows)])[order]
        differs |= minor[1:] != minor[:-1]
    is_first = jnp.concatenate([jnp.ones(1, bool), differs])[:count]
    head = jax.lax.cummax(jnp.where(is_first, steps, 0))
    is_edge = order >= num_dst
    is_new = is_first & is_edge & (keys < num_nodes)
    sums = jnp.cumsum(jnp.stack([is_new, is_edge]), axis=1, dtype=dtype)  # one pass for two sums
    num_new, earlier_edges = sums[0], sums[1] - is_edge.astype(dtype)

    # Destinations keep their number; new sources follow them, by id.
    number = jnp.where(is_new, num_dst - 1 + num_new, order)
    source = jnp.where(keys < num_nodes, number[head], PADDING)
    overflow = num_dst + jnp.concatenate([jnp.zeros(1, dtype), num_new])[-1] > num_src
    source = jnp.where(source < num_src, source, PADDING)
    place = jnp.where(is_new, number, num_src)
    sources = jnp.concatenate([nodes, jnp.full(num_src - num_dst, PADDING, nodes.dtype)])
    sources = sources.at[place].set(keys.astype(nodes.dtype), mode="drop")
    edge = jnp.where(is_edge, order - num_dst, num_edges)
    cols = jnp.full(num_edges, PADDING, dtype).at[edge].set(source, mode="drop")

    # If sources may overflow, edges are compacted: `target` is the new place of each edge.
    target = jnp.arange(num_edges, dtype=dtype)
    bound = min(count, num_dst + num_nodes) if seeds is None else count
    if num_src < bound:
        target = compaction_targets(cols >= 0).astype(dtype)
        indptr = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(cols >= 0, dtype=dtype)])[indptr]
        rows, places, cols = (scatter_ids(ids, target) for ids in (rows, places, cols))

    # The transpose: an edge's place is its source's start plus the number of earlier edges there.
    source = jnp.where(is_edge & (source >= 0), source, num_src)
    counts = jnp.zeros(num_src + 1, dtype).at[source + 1].add(1, mode="drop")
    t_indptr = jnp.cumsum(counts, dtype=dtype)
    t_place = t_indptr[source] + earlier_edges - earlier_edges[head]
    t_place = jnp.where(source < num_src, t_place, num_edges)
    t_order = jnp.full(num_edges, PADDING, dtype)
    t_order = t_order.at[t_place].set(take_ids(target, edge), mode="drop")
    t_rows, t_cols = take_ids(cols, t_order), take_ids(rows, t_order)
    arrays = [indptr, rows, cols, t_indptr, t_rows, t_cols, t_order, places, sources]
    return [*(ids.astype(nodes.dtype) for ids in arrays), overflow]


def source_seeds(graph: Graph, seeds: Array) -> Array:
    """Return the seed of each source of a tree's or disjoint block, from those of destinations."""
    starts, xp = graph.t_indptr, namespace(seeds)
    first_edge = xp.where(starts[1:] > starts[:-1], starts[:-1], PADDING)
    new = take_ids(seeds, take_ids(graph.t_cols, first_edge))
    result: Array = xp.concatenate([seeds, new[seeds.shape[0] :]])
    return result
