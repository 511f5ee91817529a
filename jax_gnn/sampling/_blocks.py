"""Blocks, the result of sampling: bipartite graphs of static shapes, one for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC
from jax_gnn._core.ids import PADDING, in_range, namespace, take_ids
from jax_gnn._core.public import public
from jax_gnn.graph import Graph, register_serialization
from jax_gnn.relational import edges_of
from jax_gnn.sampling._rows import values_of

Rows = TypeVar("Rows")


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
        graphs = map(edges_of, self.graphs)
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
                sampled graph; or by node type one row for each node of the type, or None if the
                type has no features. Types without names must be in their order.

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
        values, is_small = self._in_order_of_types(values), self.few_nodes()
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
            values: by type one row for each source, or for each node of a type that has fewer.
                Types without names must be in their order.

        Returns:
            By type ``(graphs[0].num_src, *features)``.

        Raises:
            ValueError: the types are not those of the graph, or there is another number of rows.
        """
        values, sources = self._in_order_of_types(values), self.node_ids.shape[0]
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

    def _in_order_of_types(self, values: Mapping[str, Rows]) -> Mapping[str, Rows]:
        """Return values in the order of the node types: ``jax.jit`` sorts the keys of dicts."""
        names, sizes = self.node_type_names, self.node_type_sizes or (0,)
        if len(values) != len(sizes) or (names is not None and {*values} != {*names}):
            expected = f"the types {names}" if names else f"{len(sizes)} types"
            raise ValueError(f"values must be by {expected}, got {', '.join(values)}")
        return values if names is None else {name: values[name] for name in names}

    def __repr__(self) -> str:
        try:
            sizes = ", ".join(f"{graph.num_src} -> {graph.num_dst}" for graph in self.graphs)
            edges = [graph.num_edges for graph in self.graphs]
        except AttributeError:  # a pytree of something else than arrays
            return f"Blocks({self.graphs}, {self.node_ids}, {self.overflow})"
        return f"Blocks(num_seeds={self.num_seeds}, graphs=[{sizes}], num_edges={edges})"


register_serialization(Blocks)


def source_seeds(graph: Graph, seeds: Array) -> Array:
    """Return the seed of each source of a tree's or disjoint block, from those of destinations."""
    starts, xp = graph.t_indptr, namespace(seeds)
    first_edge = xp.where(starts[1:] > starts[:-1], starts[:-1], PADDING)
    new = take_ids(seeds, take_ids(graph.t_cols, first_edge))
    return cast(Array, xp.concatenate([seeds, new[seeds.shape[0] :]]))
