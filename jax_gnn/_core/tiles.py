"""Edges in the order of tiles: what sums typed edges in one launch goes through.

Destinations are cut into tiles of 64. Edges lie by tile, then relation, then destination; those of
one tile and relation are an item, and items are dealt in shares that take about the same time.
Since all is linear, items are cut wherever a share ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import STATIC
from jax_gnn._core.csr import Csr, sort_both_ways
from jax_gnn._core.ids import MAX_SIZE, PADDING, in_range, is_traced, namespace

TILE_ROWS = 64  # as kTileRows in relational.h
ITEM_COST = 160  # of an item, in edges: as measured at 64 features, see docs/kernels.md
LEAST_SHARE = 512  # of the cost: less is not worth a block of its own
MOST_SHARES = 396  # three blocks for each of an H200's multiprocessors
SHORTEST_CUT = 32  # edges: an item is not cut nearer to its ends


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Tiles:
    """Edges by tile of 64 destinations, relation, destination. Ids out of range are padding.

    Attributes:
        rows: ``(num_edges,)``, destinations; -1, last: padding.
        cols: ``(num_edges,)``, sources.
        order: ``(num_edges,)``, which weight an edge has.
        items: ``(num_items, 4)``, tile, relation, first edge, and the one after the last. Each tile
            has at least one item, which may have no edges; those of a tile of -1 are padding, last.
        starts: ``(num_shares + 1,)``, the first item of each share, and where the last one ends.
        num_rows: number of destinations.
    """

    rows: Any
    cols: Any
    order: Any
    items: Any
    starts: Any
    num_rows: int = field(kw_only=True, metadata=STATIC)

    @property
    def num_shares(self) -> int:
        """Number of shares: blocks of a launch."""
        return self.starts.shape[-1] - 1

    @property
    def num_items(self) -> int:
        """Number of items, padding included."""
        return self.items.shape[-2]

    def pad(self, new: int) -> Tiles:
        """Appends items that are padding, and shares as of so many items, which have none."""
        shares = _shares_of(self.rows.shape[0] + ITEM_COST * (self.num_items + new))
        xp = namespace(self.items, self.starts)
        items = xp.pad(self.items, ((0, new), (0, 0)), constant_values=PADDING)
        more = max(shares - self.num_shares, 0)
        return replace(self, items=items, starts=xp.pad(self.starts, (0, more), mode="edge"))


def build_tiles(
    csr: Csr, types: Any, *, num_cols: int, num_types: int, num_shares: int | None = None
) -> Tiles:
    """Sorts edges into tiles: on the host in numpy or, if traced, in JAX with room for all cases.

    Args:
        csr: the edges by destination, with both ends.
        types: ``(num_edges,)``, the relation of each edge in the order of the weights.
        num_cols: number of sources.
        num_types: number of relations.
        num_shares: how many even shares there are; by default as many as are worth a block.

    Returns:
        numpy arrays for numpy arrays, else arrays of JAX; int32.
    """
    traced = is_traced(csr.rows, csr.cols, csr.order, types)
    xp: Any = jnp if traced else np
    rows, cols, types = (xp.asarray(ids) for ids in (csr.rows, csr.cols, types))
    count, num_rows = rows.shape[0], csr.num_rows
    num_tiles = -(-num_rows // TILE_ROWS)
    if max(count, num_rows, num_cols) > MAX_SIZE - TILE_ROWS:
        raise ValueError("edges and nodes in tiles must be less than 2**31")
    # An order out of range makes an edge padding, as other ids do.
    order = xp.arange(count, dtype=np.int32) if csr.order is None else xp.asarray(csr.order)
    valid = in_range(rows, num_rows) & in_range(cols, num_cols) & in_range(order, count)
    edge_types = types[xp.clip(order, 0, max(count - 1, 0))] if count else types
    valid &= in_range(edge_types, num_types)
    tile = xp.where(valid, rows // TILE_ROWS, num_tiles)
    keys = (tile, edge_types) if traced else (tile.astype(np.int64), edge_types.astype(np.int64))
    places = sort_both_ways(*keys, num_tiles, num_types)[1]
    padding = places == PADDING
    if count:
        tile = xp.where(padding, num_tiles, tile[places]).astype(np.int32)
        edge_types = xp.where(padding, 0, edge_types[places]).astype(np.int32)
    rows, cols, order = (
        xp.where(padding, PADDING, ids[places]).astype(np.int32) for ids in (rows, cols, order)
    )
    num_edges = xp.sum(~padding, dtype=np.int32)

    # An item begins where tile or relation change; tiles without edges have one of their own.
    begins = ~padding
    begins = begins & xp.concatenate(
        [
            xp.ones(min(count, 1), bool),
            (tile[1:] != tile[:-1]) | (edge_types[1:] != edge_types[:-1]),
        ]
    )
    begins = _places(begins, min(count, num_tiles * num_types), count)
    tile, edge_types = (
        xp.concatenate([ids, xp.full(1, last, np.int32)])[begins]
        for ids, last in ((tile, num_tiles), (edge_types, 0))
    )
    # Edges' tiles ascend: where a tile without edges would begin.
    tiles = xp.arange(num_tiles, dtype=np.int32)
    place = xp.searchsorted(tile, tiles).astype(np.int32)
    missing = xp.concatenate([tile, xp.full(1, num_tiles, np.int32)])[place] != tiles
    missing = _places(missing, num_tiles, num_tiles)
    place = xp.concatenate([place, xp.full(1, begins.shape[0], np.int32)])[missing]
    tile = xp.concatenate([tile, missing])
    edge_types = xp.concatenate([edge_types, xp.zeros_like(missing)])
    begins = xp.concatenate([begins, xp.concatenate([begins, xp.full(1, count, np.int32)])[place]])
    begins = xp.minimum(begins, num_edges)
    merged = xp.argsort(tile, stable=True)
    tile, edge_types, begins = tile[merged], edge_types[merged], begins[merged]
    num_items = xp.sum(tile < num_tiles, dtype=np.int32)

    # Shares end at even parts of the cost, which goes up with edges and items; costs are in units
    # that keep them small.
    capacity = tile.shape[0]
    unit = max(1, -(-(count + ITEM_COST * capacity) // (MAX_SIZE // 2)))
    if num_shares is None:
        # Of traced edges there may be any number of items.
        num_shares = _shares_of(count + ITEM_COST * (num_tiles if traced else capacity))
    index = xp.arange(capacity, dtype=np.int32)
    item_cost = -(-ITEM_COST // unit)
    costs = begins // unit + item_cost * index
    total = num_edges // unit + item_cost * num_items
    part = xp.arange(1, num_shares, dtype=np.int32)
    targets = total // num_shares * part + total % num_shares * part // num_shares
    costs = xp.where(index < num_items, costs, MAX_SIZE)
    at = xp.maximum(xp.searchsorted(costs, targets, side="right") - 1, 0).astype(np.int32)
    ends = xp.concatenate([begins[1:], xp.reshape(num_edges, 1)])
    if capacity == 0:  # no destinations
        cuts = at = xp.zeros(num_shares - 1, np.int32)
        begin = end = cuts
    else:
        begin, end = begins[at], ends[at]
        cuts = begin + xp.maximum(targets - costs[at] - item_cost, 0) * unit
    is_cut = (cuts - begin >= SHORTEST_CUT) & (end - cuts >= SHORTEST_CUT)
    is_cut = is_cut & xp.concatenate([xp.ones(min(num_shares - 1, 1), bool), cuts[1:] != cuts[:-1]])
    after = ~is_cut & (end - cuts < SHORTEST_CUT) & (cuts > begin)
    new = xp.cumsum(is_cut, dtype=np.int32)
    starts = at + xp.where(is_cut | after, 1, 0) + xp.where(is_cut, new - 1, new)
    total_new = xp.sum(is_cut, dtype=np.int32)
    starts = xp.concatenate(
        [xp.zeros(1, np.int32), starts, xp.reshape(num_items + total_new, 1)]
    ).astype(np.int32)
    # Each cut is an item more, after the one that it cuts.
    cut = _places(is_cut, num_shares - 1, num_shares - 1)
    cut_at = xp.concatenate([at, xp.full(1, capacity, np.int32)])[cut]
    cut_begin = xp.concatenate([cuts, xp.full(1, count, np.int32)])[cut]
    source = xp.concatenate([index, cut_at])
    begins = xp.concatenate([begins, cut_begin])
    merged = xp.argsort(source, stable=True)
    source, begins = source[merged], xp.minimum(begins[merged], num_edges)
    source = (
        xp.concatenate([tile, xp.full(1, num_tiles, np.int32)])[source],
        xp.concatenate([edge_types, xp.zeros(1, np.int32)])[source],
    )
    tile = xp.where(source[0] == num_tiles, PADDING, source[0])
    ends = xp.concatenate([begins[1:], xp.reshape(num_edges, 1)])[: begins.shape[0]]
    items = xp.stack([tile, source[1], begins, ends], 1).astype(np.int32)
    return Tiles(rows, cols, order, items, starts, num_rows=num_rows)


def _shares_of(cost: int) -> int:
    """Shares of such a cost, in edges, that are worth a block each."""
    return min(max(cost // LEAST_SHARE, 1), MOST_SHARES)


def _places(mask: Any, capacity: int, fill: int) -> Any:
    """Where a mask holds, in order; of traced ones, filled up to a capacity."""
    if isinstance(mask, Array):
        (places,) = jnp.nonzero(mask, size=capacity, fill_value=fill)
        return places.astype(np.int32)
    return np.flatnonzero(mask).astype(np.int32)
