// The tiles of rows that grouped products work on, found from the group sizes on the device.
//
// A tile lies in one group. The blocks of a persistent grid deal the tiles among themselves:
// nothing is built beforehand, and sizes may change from call to call (FASTEN, section 4, has a
// routing table instead). Each block sums up the sizes once, which leaves it an index; to find a
// tile it then looks through the sizes of a single share.
//
// Needs all threads of a block for the index, and whole warps for a walk. Promises that each row is
// in one tile of one block, whatever the sizes are, and that no row past num_rows is.
#pragma once

#include "../segment_matmul.h"
#include "basics.cuh"

namespace jax_gnn::cuda {

// Rows [row, row + count) of a group. The group after the last holds the rows of no group.
struct Tile {
  int group, row, count;  // count -1: there are no more tiles
  bool first, last;       // of its group
};

// A group costs more than its tiles: its weights are loaded, or its sum is written. To deal work
// out evenly, so many tiles are counted for it beyond its own.
constexpr int kGroupCost = 2;

__device__ __forceinline__ int group_size(const Groups& groups, int64_t group) {
  if (group >= groups.num_sizes) return 0;
  return static_cast<int>(min(int64_t{max(groups.sizes[group], 0)}, groups.num_rows));
}

// The weight of a group, if it has one.
struct Weight {
  unsigned index;
  bool exists;
};

__device__ __forceinline__ Weight weight_of(const Groups& groups, int group, int offset) {
  const unsigned index = static_cast<unsigned>(group) - static_cast<unsigned>(offset);
  return {index, group < groups.num_sizes && index < groups.num_groups};
}

// Rows and cost (in tiles) of the groups before each of kThreads shares of the groups, in shared
// memory. A group without rows has kEmptyTiles tiles; with `kRest`, rows of no group have tiles
// too.
template <int kThreads, int kEmptyTiles, bool kRest>
struct TileIndex {
  int64_t rows[kThreads + 1], cost[kThreads + 1], total;
  int share;

  static __device__ __forceinline__ int tiles_of(int size, int tile_rows) {
    return size == 0 ? kEmptyTiles : (size - 1) / tile_rows + 1;
  }
  static __device__ __forceinline__ int cost_of(int size, int tile_rows) {
    return size == 0 && kEmptyTiles == 0 ? 0 : tiles_of(size, tile_rows) + kGroupCost;
  }

  // Called by all threads of the block.
  __device__ __forceinline__ void build(const Groups& groups, int tile_rows) {
    constexpr int kWarps = kThreads / 32;
    __shared__ int64_t rows_of[kWarps], cost_of_warps[kWarps];
    const int mine = static_cast<int>(ceil_div(groups.num_sizes, kThreads));
    int64_t my_rows = 0, my_cost = 0;
#pragma unroll 4
    for (int i = 0; i < mine; ++i) {
      const int64_t group = int64_t{threadIdx.x} * mine + i;
      const int size = group_size(groups, group);
      my_rows += size;
      if (group < groups.num_sizes) my_cost += cost_of(size, tile_rows);
    }
    int64_t rows_to = my_rows, cost_to = my_cost;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int64_t other_rows = __shfl_up_sync(kWholeWarp, rows_to, distance);
      const int64_t other_cost = __shfl_up_sync(kWholeWarp, cost_to, distance);
      if (threadIdx.x % 32 >= distance) {
        rows_to += other_rows;
        cost_to += other_cost;
      }
    }
    if (threadIdx.x % 32 == 31) {
      rows_of[threadIdx.x / 32] = rows_to;
      cost_of_warps[threadIdx.x / 32] = cost_to;
    }
    __syncthreads();
    for (int warp = 0; warp < threadIdx.x / 32; ++warp) {
      rows_to += rows_of[warp];
      cost_to += cost_of_warps[warp];
    }
    rows[threadIdx.x] = rows_to - my_rows;
    cost[threadIdx.x] = cost_to - my_cost;
    if (threadIdx.x == kThreads - 1) {
      rows[kThreads] = rows_to;
      cost[kThreads] = cost_to;
      const int64_t rest = kRest ? max(groups.num_rows - rows_to, int64_t{0}) : 0;
      total = cost_to + ceil_div(rest, tile_rows);
      share = mine;
    }
    __syncthreads();
  }
};

// The tile that is number `number` of all, counted over the groups and then over the rows of no
// group, found by all kThreads threads of a block; for few groups. count -1: there is none.
template <int kThreads>
__device__ __forceinline__ Tile find_tile(const Groups& groups, int tile_rows, int number) {
  constexpr int kWarps = kThreads / 32;
  __shared__ unsigned rows_of[kWarps], tiles_of[kWarps];
  __shared__ Tile result;
  // Sums stop at num_rows and at more tiles than there are, whatever the sizes are.
  const unsigned num_rows = static_cast<unsigned>(groups.num_rows);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int mine = static_cast<int>(ceil_div(groups.num_sizes, kThreads));
  const int first = static_cast<int>(threadIdx.x) * mine;
  const auto add = [&](unsigned a, unsigned b) { return min(a + b, num_rows); };
  const auto add_tiles = [](unsigned a, unsigned b) { return min(a + b, 1u << 30); };
  const auto tiles_in = [&](unsigned size) { return size == 0 ? 0 : (size - 1) / tile_rows + 1; };
  const auto size_of = [&](int i) { return static_cast<unsigned>(group_size(groups, first + i)); };
  unsigned my_rows = 0, my_tiles = 0;
#pragma unroll 4
  for (int i = 0; i < mine; ++i) {
    const unsigned size = size_of(i);
    my_rows = add(my_rows, size);
    my_tiles = add_tiles(my_tiles, tiles_in(size));
  }
  unsigned rows = my_rows, tiles = my_tiles;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned other_rows = __shfl_up_sync(kWholeWarp, rows, distance);
    const unsigned other_tiles = __shfl_up_sync(kWholeWarp, tiles, distance);
    if (lane >= distance) {
      rows = add(rows, other_rows);
      tiles = add_tiles(tiles, other_tiles);
    }
  }
  if (lane == 31) {
    rows_of[warp] = rows;
    tiles_of[warp] = tiles;
  }
  if (threadIdx.x == 0) result.count = -1;
  rows = __shfl_up_sync(kWholeWarp, rows, 1);  // before this thread's groups
  tiles = __shfl_up_sync(kWholeWarp, tiles, 1);
  if (lane == 0) rows = tiles = 0;
  __syncthreads();
#pragma unroll
  for (int other = 0; other < kWarps; ++other)
    if (other < warp) {
      rows = add(rows, rows_of[other]);
      tiles = add_tiles(tiles, tiles_of[other]);
    }
  const auto set = [&](int group, unsigned row, unsigned size, unsigned tile) {
    result.group = group;
    result.row =
        static_cast<int>(min(uint64_t{row} + uint64_t{tile} * tile_rows, uint64_t{num_rows}));
    result.count = static_cast<int>(
        min(min(size - tile * tile_rows, static_cast<unsigned>(tile_rows)), num_rows - result.row));
  };
  unsigned tile = static_cast<unsigned>(number) - tiles;
  if (tile < my_tiles)
    for (int i = 0; i < mine; ++i) {
      const unsigned size = size_of(i), count = tiles_in(size);
      if (tile < count) {
        set(first + i, rows, size, tile);
        break;
      }
      rows = add(rows, size);
      tile -= count;
    }
  else if (threadIdx.x == kThreads - 1) {  // after all groups, or ahead of this thread's
    const unsigned rest = num_rows - add(rows, my_rows);
    if (static_cast<unsigned>(number) >= tiles && tile - my_tiles < tiles_in(rest))
      set(static_cast<int>(groups.num_sizes), num_rows - rest, rest, tile - my_tiles);
  }
  __syncthreads();
  return result;
}

// Goes through tiles; all calls are made by a whole warp, which holds the next sizes in its lanes.
template <int kThreads, int kEmptyTiles, bool kRest>
class TileWalk {
 public:
  using Index = TileIndex<kThreads, kEmptyTiles, kRest>;

  __device__ __forceinline__ TileWalk(const Groups& groups, int tile_rows, const Index& index)
      : groups_(groups), index_(index), tile_rows_(tile_rows) {}

  // Goes to a place on the scale of the costs, below index.total: to the tile there or, where no
  // tile is, the next group's first.
  __device__ __forceinline__ void seek(int64_t place) {
    const int lane = threadIdx.x % 32;
    at_ = place;
    if (place >= index_.cost[kThreads]) {
      group_ = base_ = static_cast<int>(groups_.num_sizes);
      row_ = index_.rows[kThreads];
      size_ = static_cast<int>(max(groups_.num_rows - row_, int64_t{0}));
      done_ = static_cast<int>((place - index_.cost[kThreads]) * tile_rows_);
      return;
    }
    int share = -1;  // the last that begins at the place or before it
    for (int first = 0; first < kThreads; first += 32)
      share += __popc(__ballot_sync(kWholeWarp, index_.cost[first + lane] <= place));
    int64_t rows = index_.rows[share], cost = index_.cost[share];
    unsigned beyond = 0;
    for (base_ = share * index_.share;; base_ += 32) {
      sizes_ = group_size(groups_, int64_t{base_} + lane);
      int64_t rows_to = sizes_;
      int64_t cost_to = base_ + lane < groups_.num_sizes ? Index::cost_of(sizes_, tile_rows_) : 0;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int64_t other_rows = __shfl_up_sync(kWholeWarp, rows_to, distance);
        const int64_t other_cost = __shfl_up_sync(kWholeWarp, cost_to, distance);
        if (lane >= distance) {
          rows_to += other_rows;
          cost_to += other_cost;
        }
      }
      beyond = __ballot_sync(kWholeWarp, cost + cost_to > place);
      const int last = beyond != 0 ? __ffs(beyond) - 1 : 31;
      rows += __shfl_sync(kWholeWarp, rows_to, last);
      cost += __shfl_sync(kWholeWarp, cost_to, last);
      if (beyond != 0) break;
    }
    ahead_ = group_size(groups_, int64_t{base_} + 32 + lane);
    group_ = base_ + __ffs(beyond) - 1;
    size_ = current_size();
    row_ = rows - size_;
    const int64_t tile = place - cost + Index::cost_of(size_, tile_rows_);
    if (tile < Index::tiles_of(size_, tile_rows_)) {
      done_ = static_cast<int>(tile * tile_rows_);
    } else {
      at_ = cost;
      enter(group_ + 1);
    }
  }

  // Position of the next tile on the scale of costs.
  __device__ __forceinline__ int64_t place() const { return at_; }

  // The tiles of a block are those in an even part of all places or, if `whole`, of the groups that
  // begin there. Goes to the first.
  __device__ __forceinline__ void enter_part(bool whole) {
    whole_ = whole;
    const int64_t begin = split(index_.total, blockIdx.x, gridDim.x);
    end_ = split(index_.total, blockIdx.x + 1, gridDim.x);
    if (begin < end_)
      seek(begin);
    else
      at_ = end_ = index_.total;
    while (whole && done_ > 0 && at_ < index_.total) next();
  }
  __device__ __forceinline__ bool has_next() const {
    return at_ < index_.total && (at_ < end_ || (whole_ && done_ > 0));
  }

  // The next tile; there must be one.
  __device__ __forceinline__ Tile next() {
    while (kEmptyTiles == 0 && done_ >= size_) enter(group_ + 1);
    const int count = min(size_ - done_, tile_rows_);
    Tile tile;
    tile.group = group_;
    tile.row = static_cast<int>(min(row_ + done_, groups_.num_rows));
    tile.count = static_cast<int>(min(int64_t{count}, groups_.num_rows - tile.row));
    tile.first = done_ == 0;
    done_ += count;
    ++at_;
    tile.last = done_ >= size_;
    if (tile.last && group_ < groups_.num_sizes) {
      at_ += kGroupCost;
      enter(group_ + 1);
    }
    return tile;
  }

 private:
  __device__ __forceinline__ void enter(int group) {
    row_ += size_;
    group_ = group;
    done_ = 0;
    if (group_ - base_ == 32) {
      base_ += 32;
      sizes_ = ahead_;
      ahead_ = group_size(groups_, int64_t{base_} + 32 + threadIdx.x % 32);
    }
    size_ = current_size();
  }
  __device__ __forceinline__ int current_size() const {
    return group_ < groups_.num_sizes ? __shfl_sync(kWholeWarp, sizes_, group_ - base_)
                                      : static_cast<int>(max(groups_.num_rows - row_, int64_t{0}));
  }

  const Groups& groups_;
  const Index& index_;
  const int tile_rows_;
  int group_, base_, size_, done_ = 0, sizes_, ahead_;
  int64_t row_, at_, end_;
  bool whole_;
};

}  // namespace jax_gnn::cuda
