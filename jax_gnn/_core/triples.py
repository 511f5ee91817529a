"""Edges with relations sorted both ways, and their pairs: natively, or if traced in JAX.

Edges are sorted by destination, then relation, then source, and by source, then destination, then
relation. Those with an id out of range are padding: -1 in all arrays, and last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import ffi
from jax_gnn._core.csr import inverse_permutation
from jax_gnn._core.ids import (
    PADDING,
    at_most,
    in_range,
    index_dtype,
    is_traced,
    pad_ids,
    pad_indptr,
    row_starts,
    take_ids,
)
from jax_gnn._core.pairs import number_runs, relation_pairs, relation_sizes, scatter_values
from jax_gnn._core.relations import Pairs
from jax_gnn._core.sort import sorted_ids


class SortedTriples(NamedTuple):
    """Edges both ways, as the arrays of a `Graph` of the same names; and their relations."""

    indptr: Any
    rows: Any
    cols: Any
    t_indptr: Any
    t_rows: Any
    t_cols: Any
    t_order: Any
    edge_ids: Any
    types: Any  # None where there are no relations

    def dropped(self) -> bool:
        """Whether an id was out of range, of edges in numpy."""
        return bool(self.indptr[-1] < len(self.rows))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class OutOfPairs:
    """Edges out of pairs, as far as their arrays differ from those of the edges out of nodes.

    They are those of a `Graph` of the same names.
    """

    cols: Any
    t_indptr: Any
    t_rows: Any
    t_cols: Any
    t_order: Any

    def pad(self, edges: int, pairs: int) -> OutOfPairs:
        """Appends so many of both."""
        return replace(
            self,
            cols=pad_ids(self.cols, edges),
            t_indptr=pad_indptr(self.t_indptr, pairs),
            t_rows=pad_ids(self.t_rows, edges),
            t_cols=pad_ids(self.t_cols, edges),
            t_order=pad_ids(self.t_order, edges),
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class IntoPairs:
    """Edges into pairs, likewise."""

    indptr: Any
    rows: Any
    t_cols: Any

    def pad(self, edges: int, pairs: int) -> IntoPairs:
        """Appends so many of both."""
        return replace(
            self,
            indptr=pad_indptr(self.indptr, pairs),
            rows=pad_ids(self.rows, edges),
            t_cols=pad_ids(self.t_cols, edges),
        )


def sort_triples(
    src: Any,
    rel: Any,
    dst: Any,
    *,
    num_src: int,
    num_dst: int,
    num_relations: int = 1,
    inverse: bool = False,
    loops: bool = False,
) -> SortedTriples:
    """Sorts edges both ways, equal ones in the order of the input.

    Args:
        src: ``(edges,)``, int64 in numpy, or traced.
        rel: likewise; None of edges without relations, whose ``types`` are None.
        dst: likewise.
        num_src: number of sources.
        num_dst: number of destinations.
        num_relations: number of relations.
        inverse: whether to add each edge reversed, as relation ``num_relations`` + its own.
        loops: whether to add an edge from each node to itself, as the relation after all others.
    """
    count = src.shape[0] * (1 + inverse) + (num_src if loops else 0)
    dtype = index_dtype(num_src, num_dst, num_relations * (1 + inverse) + loops, count)
    if not is_traced(src, rel, dst):
        ends = [empty_vector(size + 1, dtype) for size in (num_dst, num_src)]
        edges = [empty_vector(count, dtype) for _ in range(6)]
        types = None if rel is None else empty_vector(count, dtype)
        arrays = (ends[0], *edges[:2], ends[1], *edges[2:], types)
        contiguous = (x if x is None else np.ascontiguousarray(x) for x in (src, rel, dst))
        sort = ffi.host_function("sort_triples")
        sort(*contiguous, num_relations, inverse, loops, *arrays)
        return SortedTriples._make(arrays)

    without_types = rel is None
    rel = jnp.zeros_like(dst) if rel is None else rel
    valid = in_range(src, num_src) & in_range(rel, num_relations) & in_range(dst, num_dst)
    ids = jnp.arange(src.shape[0], dtype=dtype)
    src, rel, dst = (jnp.where(valid, part, PADDING).astype(dtype) for part in (src, rel, dst))
    if inverse:
        reversed_rel = jnp.where(valid, rel + num_relations, PADDING).astype(dtype)
        src, dst = jnp.concatenate([src, dst]), jnp.concatenate([dst, src])
        rel, ids = jnp.concatenate([rel, reversed_rel]), jnp.concatenate([ids, ids])
        num_relations *= 2
    if loops:
        nodes = jnp.arange(num_src, dtype=dtype)
        src, dst = (jnp.concatenate([part, nodes]) for part in (src, dst))
        rel = jnp.concatenate([rel, jnp.full(num_src, num_relations, dtype)])
        ids = jnp.concatenate([ids, jnp.full(num_src, PADDING, dtype)])
        num_relations += 1
    # From the last key to the first, as a sort keeps the order of those before.
    order = sorted_ids(src, num_src)[1]
    if not without_types:
        order = order[sorted_ids(rel[order], num_relations)[1]]
    order = order[sorted_ids(dst[order], num_dst)[1]]
    src, rel, dst, ids = (part[order] for part in (src, rel, dst, ids))
    t_src, t_order = sorted_ids(src, num_src)
    padding = dst == PADDING  # the same places in both orders

    def masked(ids: Array) -> Array:
        return jnp.where(padding, PADDING, ids)

    return SortedTriples(
        row_starts(jnp.where(padding, num_dst, dst), num_dst).astype(dtype),
        dst,
        src,
        row_starts(t_src, num_src).astype(dtype),
        masked(t_src),
        masked(dst[t_order]),
        masked(t_order),
        masked(ids),
        None if without_types else rel,
    )


def sort_by_source(rows: Any, cols: Any, valid: int, num_src: int) -> tuple[Any, Any, Any, Any]:
    """Edges by source, of edges by destination in numpy: all that a `Graph` has of that order.

    Args:
        rows: ``(edges,)``, destinations, which ascend.
        cols: ``(edges,)``, sources, in the same dtype.
        valid: how many are edges, in range; the rest is padding.
        num_src: number of sources.

    Returns:
        ``t_indptr``, ``t_rows``, ``t_cols`` and ``t_order``.
    """
    sizes = (num_src + 1, len(rows), len(rows), len(rows))
    indptr, t_rows, t_cols, order = (empty_vector(size, rows.dtype) for size in sizes)
    sort = ffi.host_function("sort_by_source")
    sort(rows, cols, valid, indptr, t_rows, t_cols, order)
    return indptr, t_rows, t_cols, order


def source_pairs(edges: SortedTriples, num_relations: int) -> tuple[Pairs, OutOfPairs]:
    """The (source, relation) pairs, numbered by relation, then source, and the edges out of them.

    On the host as many as there are; of traced edges as there may be, the rest padding.
    """
    num_src, count, dtype = edges.t_indptr.shape[0] - 1, *_kind(edges)
    if not is_traced(*edges):
        results = [empty_vector(count + (i == 1), dtype) for i in range(5)]
        found, size = _host_pairs("source_pairs", edges, num_relations, results)
        results[1] = results[1][: size + 1]
        return Pairs(*found, num_nodes=num_src, by_node=False), OutOfPairs(*results)

    t_types = take_ids(edges.types, edges.t_order)
    t_types = jnp.where(in_range(t_types, num_relations), t_types, num_relations).astype(dtype)
    by_rel = sorted_ids(t_types, num_relations)[1]
    columns = t_types, edges.t_rows, edges.t_cols, edges.t_order
    rel, src, t_cols, t_order = (ids[by_rel] for ids in columns)
    valid = rel < num_relations
    number, first = number_runs(valid, rel, src)
    rows = jnp.where(valid, number, PADDING)
    # What pairs have of their first edges, at once; past the last pair the place where edges end.
    room, last = max_pairs(count, num_src, num_relations), edges.t_indptr[-1].astype(dtype)
    ends = jnp.stack([jnp.asarray(PADDING, dtype), jnp.asarray(num_relations, dtype), last])
    own = jnp.stack([src, rel, jnp.arange(count, dtype=dtype)], axis=1)
    table = jnp.broadcast_to(ends, (room + 1, 3))
    table = table.at[jnp.where(first < 0, room + 1, first)].set(own, mode="drop")
    nodes, sizes = table[:room, 0], relation_sizes(table[:room, 1], num_relations)
    out = OutOfPairs(scatter_values(t_order, rows, PADDING), table[:, 2], rows, t_cols, t_order)
    order = sorted_ids(nodes, num_src)[1]
    pairs = (nodes, sizes, nodes[order], order, inverse_permutation(order))
    return Pairs(*pairs, num_nodes=num_src, by_node=False), out


def destination_pairs(edges: SortedTriples, num_relations: int) -> tuple[Pairs, IntoPairs]:
    """The (destination, relation) pairs, numbered by destination, and the edges into them.

    On the host as many as there are; of traced edges as there may be, the rest padding.
    """
    num_dst, count, dtype = edges.indptr.shape[0] - 1, *_kind(edges)
    if not is_traced(*edges):
        results = [empty_vector(count + (i == 0), dtype) for i in range(3)]
        found, size = _host_pairs("destination_pairs", edges, num_relations, results)
        results[0] = results[0][: size + 1]
        return Pairs(*found, num_nodes=num_dst, by_node=True), IntoPairs(*results)

    room = max_pairs(count, num_dst, num_relations)
    found = relation_pairs(edges.rows, edges.types, num_relations=num_relations, num_pairs=room)
    *pairs, indptr, rows = (ids.astype(dtype) for ids in found)
    into = IntoPairs(indptr, rows, take_ids(rows, edges.t_order))
    return Pairs(*pairs, num_nodes=num_dst, by_node=True), into


def max_pairs(count: int, num_nodes: int, num_relations: int) -> int:
    """How many pairs of a node and a relation some edges may have."""
    return num_nodes * num_relations if at_most(num_nodes * num_relations, count) else count


def empty_vector(size: int, dtype: Any) -> np.ndarray:
    """A vector that, if large, XLA takes over on a CPU, by its alignment, in place of a copy."""
    alignment, num_bytes = 64, size * np.dtype(dtype).itemsize
    if num_bytes < 1 << 16:  # a copy takes less time
        return np.empty(size, dtype)
    memory = np.empty(num_bytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + memory.size - alignment].view(dtype)


def _kind(edges: SortedTriples) -> tuple[int, Any]:
    return edges.rows.shape[0], edges.rows.dtype


def _host_pairs(
    name: str, edges: SortedTriples, num_relations: int, results: list[np.ndarray]
) -> tuple[list[np.ndarray], int]:
    """Calls the compiled function of that name; the arrays of the pairs, and how many they are."""
    edges = SortedTriples(*map(np.ascontiguousarray, edges))
    count, dtype = _kind(edges)
    pairs = [empty_vector(num_relations if i == 1 else count, dtype) for i in range(5)]
    size = ffi.host_function(name)(
        *(edges.rows, edges.cols, edges.types),
        *(int(edges.indptr[-1]), edges.t_indptr.size - 1, edges.indptr.size - 1),
        *pairs,
        *results,
    )
    return [part if i == 1 else part[:size] for i, part in enumerate(pairs)], size
