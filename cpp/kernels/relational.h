#pragma once

#include <cstdint>

namespace jax_gnn {

// Rows of the result in a tile.
constexpr int kTileRows = 64;

// Neighbouring entries of one tile and relation.
struct TileItem {
  int32_t tile, type, begin, end;
};

// Edges sorted by tile of destinations, then relation, then destination, in items, and the items in
// even shares. Ids come from the user's arrays: kernels must check them all.
struct Tiles {
  const int32_t* rows;    // (count,), ascending in an item; outside its tile an edge is padding
  const int32_t* cols;    // (count,): the row of the input; outside [0, num_cols): padding
  const int32_t* order;   // (count,): which weight an edge has; outside [0, count): padding
  const TileItem* items;  // (num_items,): those of a tile follow one another; tile -1: padding
  const int32_t* starts;  // (num_shares + 1,): the first item of each share, and the end
  int64_t count, num_rows, num_cols, num_items, num_shares, num_types;
};

}  // namespace jax_gnn
