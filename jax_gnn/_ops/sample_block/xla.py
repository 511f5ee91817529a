"""Draws among the edges of each node, and blocks of the drawn edges, in plain ``jax.numpy``."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.ids import (
    PADDING,
    compaction_targets,
    in_range,
    row_ids,
    scatter_ids,
    search_rows,
    take_ids,
)
from jax_gnn._core.op import align_varying
from jax_gnn._core.random_bits import KeyWords, bits, integers_below
from jax_gnn._ops.segment_order.primitive import sorted_ids

_MAX_UNROLLED = 32  # rounds up to this fanout are one fused loop over rows, without a pass for each


def uniform(
    degrees: Array, key: KeyWords | Array, *, fanout: int, stream: int, replace: bool
) -> list[Array]:
    """Draw edges of each row, all equally likely.

    Without replacement this is Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM
    1987): round j draws among the first ``degree - fanout + j + 1`` edges, and takes the last of
    these if the edge was drawn before. All subsets are equally likely, and a row of a million edges
    takes as long as one of ten.

    Args:
        degrees: ``(rows,)`` integers from 0.
        key: two words.
        fanout: number of edges to draw from each row.
        stream: number of the random stream.
        replace: whether an edge may be drawn again.

    Returns:
        ``(rows, fanout)`` offsets from 0, in the dtype of ``degrees``; and the number of valid
        draws of each row, ``(rows,)``, which come first.
    """
    shape = fanout, degrees.shape[0]
    rows = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.uint32)[None], shape)
    steps = jnp.broadcast_to(jnp.arange(fanout, dtype=jnp.uint32)[:, None], shape)
    random = bits((key[0], key[1]), stream, rows, steps)
    sizes = degrees.astype(jnp.uint32)[None]
    if replace:
        counts = jnp.where(degrees > 0, fanout, 0).astype(degrees.dtype)
        return [integers_below(random, sizes).T.astype(degrees.dtype), counts]

    size = jnp.uint32(fanout)
    # Round j may take edges up to `limits[j]`; that edge itself has not been drawn before.
    limits = jnp.where(sizes > size, sizes - size, 0) + steps
    drawn = integers_below(random, limits + 1)
    if fanout <= _MAX_UNROLLED:
        columns: list[Array] = []
        for step in range(fanout):
            column = drawn[step]
            for earlier in columns:
                column = jnp.where(earlier == column, limits[step], column)
            columns.append(column)
        drawn = jnp.stack(columns)
    else:

        def body(step: Array, drawn: Array) -> Array:
            repeats = (drawn == drawn[step][None]) & (steps < step.astype(jnp.uint32))
            return drawn.at[step].set(jnp.where(repeats.any(axis=0), limits[step], drawn[step]))

        drawn = jax.lax.fori_loop(0, fanout, body, drawn)
    # Rows of no more than `fanout` edges are taken whole, in order.
    offsets = jnp.where(sizes <= size, steps, drawn).T.astype(degrees.dtype)
    return [offsets, jnp.minimum(degrees, fanout)]


def weighted(
    sums: Array,
    starts: Array,
    degrees: Array,
    key: KeyWords | Array,
    *,
    fanout: int,
    stream: int,
    replace: bool,
) -> list[Array]:
    """Draw edges of each row in proportion to their shares.

    With replacement, a draw inverts the distribution: a search in the prefix sums. Without, edges
    are drawn one after another in proportion to the remaining shares, the distribution of the
    largest exponential keys (Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
    Information Processing Letters 2006).

    Rows start at the edges `starts`, ``(rows,)``; `sums` are those of
    `jax_gnn.sampling.EdgeProbability`.
    Other arguments, and results: as of `uniform`.
    """
    rows, dtype = jnp.arange(starts.shape[0], dtype=jnp.uint32), starts.dtype
    sums, starts, degrees, *_ = align_varying([sums, starts, degrees, key[0], key[1]])
    key = key[0], key[1]
    final = starts + jnp.maximum(degrees - 1, 0)  # last edge of each row
    base = sums[starts]
    total = jnp.where(degrees > 0, sums[starts + degrees] - base, 0)
    if replace:
        steps = jnp.arange(fanout, dtype=jnp.uint32)
        shape = fanout, starts.shape[0]
        steps = jnp.broadcast_to(steps[:, None], shape)
        index, low, high, offset, size = (
            jnp.broadcast_to(x, shape) for x in (rows, starts, final, base, total)
        )
        value = integers_below(bits(key, stream, index, steps), size)
        offsets = search_rows(low, high, lambda place: sums[place + 1] - offset > value) - low
        return [offsets.T, jnp.where(total > 0, fanout, 0).astype(dtype)]

    # Each edge is an interval [begin, begin + size) of its row's total. A draw takes a value in the
    # total less the sizes of the edges drawn before (`remaining`). The value is mapped to the row's
    # total by adding the size of each earlier interval whose begin, in the line with all drawn
    # intervals cut out (`reduced`), is not after the value.
    def draw(step: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        offsets, begins, reduced, sizes, remaining, counts = state
        value = integers_below(bits(key, stream, rows, step), remaining)
        passed = jnp.where(reduced <= value[None], sizes, 0)
        value += passed.sum(axis=0, dtype=jnp.uint32)
        place = search_rows(starts, final, lambda place: sums[place + 1] - base > value)
        begin = sums[place] - base
        size = jnp.where(remaining > 0, sums[place + 1] - sums[place], 0)
        earlier = jnp.where(begins < begin[None], sizes, 0).sum(axis=0, dtype=jnp.uint32)
        reduced = jnp.where(begins > begin[None], reduced - size[None], reduced)
        return (
            offsets.at[step].set(place - starts),
            begins.at[step].set(begin),
            reduced.at[step].set(begin - earlier),
            sizes.at[step].set(size),
            remaining - size,
            counts + (remaining > 0).astype(dtype),
        )

    zeros = jnp.zeros((fanout, starts.shape[0]), jnp.uint32)
    state = [zeros.astype(dtype), zeros, zeros, zeros, total, jnp.zeros_like(degrees)]
    # A loop's state must vary over the mesh axes over which its results do.
    state = align_varying(state)
    offsets, *_, counts = jax.lax.fori_loop(0, fanout, draw, tuple(state))
    return [offsets.T, counts]


# --- Blocks --------------------------------------------------------------------------------------


class DrawnEdges(NamedTuple):
    """Edges by destination, ascending; padding comes last."""

    indptr: Array  # (num_dst + 1,), row pointers
    rows: Array  # (edges,), destination of each edge, numbered within the block; -1 for padding
    places: Array  # (edges,), place of each edge in the sampled graph
    nodes: Array  # (edges,), id of each edge's source in the sampled graph


def compact_draws(
    starts: Array,  # (rows,), start of each row in `cols`
    offsets: Array,  # (rows, fanout), drawn edges, as offsets in their row
    counts: Array,  # (rows,), number of valid draws, which come first
    cols: Array,  # (num_whole,), sources of the sampled graph's edges
    num_nodes: int,  # number of nodes of the sampled graph
    num_edges: int,  # room for edges; further ones are left out
    *,
    ascending: bool,  # whether the edges of a row are put in the sampled graph's order
) -> DrawnEdges:
    """Return the drawn edges of all rows without gaps."""
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
    """Sort the candidates for sources by id, then by seed (see `SortedSources`), then by number."""
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
