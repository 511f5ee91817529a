"""Edges with relations sorted by both ends, and their pairs: natively, or in JAX if traced.

Edges are sorted by destination, then relation, then source, and by source, then destination, then
relation. Edges with an id out of range are padding: -1 in all arrays, and last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import ffi
from jax_gnn._core.arrays import empty_vector
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
from jax_gnn._core.relations import Pairs
from jax_gnn._ops.relation_pairs.primitive import (
    number_runs,
    relation_pairs,
    relation_sizes,
    scatter_values,
)
from jax_gnn._ops.segment_order.primitive import sorted_ids


class SortedTriples(NamedTuple):
    """Edges sorted by both ends, as the `Graph` arrays of the same names; and their relations."""

    indptr: Any
    rows: Any
    cols: Any
    t_indptr: Any
    t_rows: Any
    t_cols: Any
    t_order: Any
    edge_ids: Any
    types: Any  # None without relations

    def dropped(self) -> bool:
        """Whether an id of edges in numpy was out of range."""
        return bool(self.indptr[-1] < len(self.rows))


class _PairEdges:
    """Base of the arrays of a `Graph` between nodes and pairs that one between nodes lacks."""

    def pad(self, edges: int, pairs: int) -> Any:
        """Append padding: numbers of edges and of pairs."""
        arrays = {
            name: pad_indptr(ids, pairs) if "indptr" in name else pad_ids(ids, edges)
            for name, ids in vars(self).items()
        }
        return type(self)(**arrays)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class OutOfPairs(_PairEdges):
    """Edges out of pairs: the arrays of a `Graph` that differ from those of edges out of nodes."""

    cols: Any
    t_indptr: Any
    t_rows: Any
    t_cols: Any
    t_order: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class IntoPairs(_PairEdges):
    """Edges into pairs: the arrays of a `Graph` that differ from those of edges into nodes."""

    indptr: Any
    rows: Any
    t_cols: Any


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
    """Sort edges by both ends, equal edges in the order of the input.

    Args:
        src: ``(edges,)``, int64 in numpy, or traced.
        rel: ``(edges,)``, int64 in numpy, or traced; None for edges without relations.
        dst: ``(edges,)``, int64 in numpy, or traced.
        num_src: number of sources.
        num_dst: number of destinations.
        num_relations: number of relations.
        inverse: whether to add each edge reversed, as relation ``num_relations`` + its own.
        loops: whether to add an edge from each node to itself, as the last relation.
    """
    count = src.shape[0] * (1 + inverse) + (num_src if loops else 0)
    dtype = index_dtype(num_src, num_dst, num_relations * (1 + inverse) + loops, count)
    if not is_traced(src, rel, dst):
        sizes = {"indptr": num_dst + 1, "t_indptr": num_src + 1}
        edges = SortedTriples._make(
            None if name == "types" and rel is None else empty_vector(sizes.get(name, count), dtype)
            for name in SortedTriples._fields
        )
        ffi.host_function("sort_triples")(
            src=np.ascontiguousarray(src),
            rel=None if rel is None else np.ascontiguousarray(rel),
            dst=np.ascontiguousarray(dst),
            num_relations=num_relations,
            inverse=inverse,
            loops=loops,
            **edges._asdict(),
        )
        return edges

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
    # Sorts are stable, so that the last key is sorted first.
    order = sorted_ids(src, num_src)[1]
    if not without_types:
        order = order[sorted_ids(rel[order], num_relations)[1]]
    order = order[sorted_ids(dst[order], num_dst)[1]]
    src, rel, dst, ids = (part[order] for part in (src, rel, dst, ids))
    t_src, t_order = sorted_ids(src, num_src)
    padding = dst == PADDING  # padding is last in both orders

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


def sort_by_source(
    rows: np.ndarray, cols: np.ndarray, num_valid: int, num_src: int
) -> tuple[Any, Any, Any, Any]:
    """Return the arrays of a `Graph` by source, for edges in numpy by destination.

    Args:
        rows: ``(edges,)``, destinations, which ascend.
        cols: ``(edges,)``, sources, in the same dtype.
        num_valid: number of edges before the padding.
        num_src: number of sources.

    Returns:
        ``t_indptr``, ``t_rows``, ``t_cols`` and ``t_order``.
    """
    sizes = {"t_indptr": num_src + 1, **dict.fromkeys(("t_rows", "t_cols", "t_order"), len(rows))}
    arrays = {name: empty_vector(size, rows.dtype) for name, size in sizes.items()}
    ffi.host_function("sort_by_source")(rows=rows, cols=cols, num_valid=num_valid, **arrays)
    return arrays["t_indptr"], arrays["t_rows"], arrays["t_cols"], arrays["t_order"]


def source_pairs(edges: SortedTriples, num_relations: int) -> tuple[Pairs, OutOfPairs]:
    """Return the (source, relation) pairs, numbered by relation, then source, and their edges.

    Pairs of traced edges are padded to their largest possible number.
    """
    num_src, count, dtype = edges.t_indptr.shape[0] - 1, edges.rows.shape[0], edges.rows.dtype
    if not is_traced(*edges):
        out = OutOfPairs(*(empty_vector(count + (i == 1), dtype) for i in range(5)))
        pairs, size = _host_pairs("source_pairs", edges, num_relations, vars(out))
        out = replace(out, t_indptr=out.t_indptr[: size + 1])
        return Pairs(**pairs, num_nodes=num_src, by_node=False), out

    t_types = take_ids(edges.types, edges.t_order)
    t_types = jnp.where(in_range(t_types, num_relations), t_types, num_relations).astype(dtype)
    by_rel = sorted_ids(t_types, num_relations)[1]
    columns = t_types, edges.t_rows, edges.t_cols, edges.t_order
    rel, src, t_cols, t_order = (ids[by_rel] for ids in columns)
    valid = rel < num_relations
    # Equal (relation, source) pairs are runs: the number of a run is the number of its pair.
    number, first = number_runs(valid, rel, src)
    rows = jnp.where(valid, number, PADDING)
    # The node, the relation and the first edge of each pair are written at once. The row after the
    # last pair has the end of the edges.
    limit = max_pairs(count, num_src, num_relations)
    fill = (jnp.asarray(x, dtype) for x in (PADDING, num_relations, edges.t_indptr[-1]))
    table = jnp.broadcast_to(jnp.stack([*fill]), (limit + 1, 3))
    first_edges = jnp.stack([src, rel, jnp.arange(count, dtype=dtype)], axis=1)
    table = table.at[jnp.where(first < 0, limit + 1, first)].set(first_edges, mode="drop")
    nodes, sizes = table[:limit, 0], relation_sizes(table[:limit, 1], num_relations)
    out = OutOfPairs(scatter_values(t_order, rows, PADDING), table[:, 2], rows, t_cols, t_order)
    order = sorted_ids(nodes, num_src)[1]
    arrays = (nodes, sizes, nodes[order], order, inverse_permutation(order))
    return Pairs(*arrays, num_nodes=num_src, by_node=False), out


def destination_pairs(edges: SortedTriples, num_relations: int) -> tuple[Pairs, IntoPairs]:
    """Return the (destination, relation) pairs, numbered by destination, and their edges.

    Pairs of traced edges are padded to their largest possible number.
    """
    num_dst, count, dtype = edges.indptr.shape[0] - 1, edges.rows.shape[0], edges.rows.dtype
    if not is_traced(*edges):
        into = IntoPairs(*(empty_vector(count + (i == 0), dtype) for i in range(3)))
        pairs, size = _host_pairs("destination_pairs", edges, num_relations, vars(into))
        into = replace(into, indptr=into.indptr[: size + 1])
        return Pairs(**pairs, num_nodes=num_dst, by_node=True), into

    limit = max_pairs(count, num_dst, num_relations)
    arrays = relation_pairs(edges.rows, edges.types, num_relations=num_relations, num_pairs=limit)
    *arrays, indptr, rows = (ids.astype(dtype) for ids in arrays)
    into_pairs = IntoPairs(indptr, rows, take_ids(rows, edges.t_order))
    return Pairs(*arrays, num_nodes=num_dst, by_node=True), into_pairs


def max_pairs(count: int, num_nodes: int, num_relations: int) -> int:
    """Return the largest number of (node, relation) pairs of ``count`` edges."""
    return num_nodes * num_relations if at_most(num_nodes * num_relations, count) else count


def _host_pairs(
    name: str, edges: SortedTriples, num_relations: int, results: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], int]:
    """Call a compiled function, and return the arrays of the pairs and their number."""
    count, dtype = edges.rows.shape[0], edges.rows.dtype
    names = ("nodes", "sorted_nodes", "order", "places")
    pairs = {field: empty_vector(count, dtype) for field in names}
    sizes = empty_vector(num_relations, dtype)
    size = ffi.host_function(name)(
        edge_rows=np.ascontiguousarray(edges.rows),
        edge_cols=np.ascontiguousarray(edges.cols),
        edge_types=np.ascontiguousarray(edges.types),
        num_valid=int(edges.indptr[-1]),
        num_src=edges.t_indptr.size - 1,
        num_dst=edges.indptr.size - 1,
        sizes=sizes,
        **pairs,
        **results,
    )
    return {"sizes": sizes, **{field: ids[:size] for field, ids in pairs.items()}}, size
