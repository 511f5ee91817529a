// Sampled neighbourhoods, device side: a draw in one launch, the block of a tree in two.
#pragma once

#include "../sample_block.h"
#include "basics.cuh"

namespace jax_gnn::cuda {

constexpr int kDrawThreads = 256;                   // of a block; a warp has a row
constexpr int kScanThreads = 1024, kScanItems = 4;  // rows of a thread

// --- Random numbers ------------------------------------------------------------------------------

// Threefry-2x32, 20 rounds.
__device__ __forceinline__ void threefry(const uint32_t* key, uint32_t& a, uint32_t& b) {
  const uint32_t words[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  a += words[0];
  b += words[1];
#pragma unroll
  for (int group = 0; group < 5; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int rotation = kRotations[group % 2][i];
      a += b;
      b = (b << rotation) | (b >> (32 - rotation));
      b ^= a;
    }
    a += words[(group + 1) % 3];
    b += words[(group + 2) % 3] + static_cast<uint32_t>(group + 1);
  }
}

// An integer below `size`, of 64 random bits: their product, rounded down.
__device__ __forceinline__ uint32_t below(uint32_t high, uint32_t low, uint32_t size) {
  const uint64_t carried = uint64_t{low} * size >> 32;
  return static_cast<uint32_t>((uint64_t{high} * size + carried) >> 32);
}

// --- Draws ---------------------------------------------------------------------------------------

// Floyd's algorithm, 32 rounds at a time, a lane for each. A round that draws what an earlier one
// has takes the last edge of its range, which no earlier one can have.
template <typename Index>
__global__ void draw_kernel(Random random, const Index* degrees, int64_t num_rows, int64_t fanout,
                            bool replace, Index* offsets, Index* counts) {
  wait_for_previous_launch();
  const int64_t row = blockIdx.x * int64_t{kDrawThreads / 32} + threadIdx.x / 32;
  if (row >= num_rows) return;
  const int lane = threadIdx.x % 32;
  const Index degree = degrees[row];
  const auto size = static_cast<uint32_t>(degree);
  const bool all = !replace && size <= static_cast<uint64_t>(fanout);
  Index* const to = offsets + row * fanout;
  if (lane == 0) {
    const auto most = static_cast<Index>(fanout);
    counts[row] = replace ? (degree > 0 ? most : Index(0)) : (degree < most ? degree : most);
  }
  for (int64_t first = 0; first < fanout; first += 32) {
    const int64_t step = first + lane;
    if (all) {
      if (step < fanout) to[step] = static_cast<Index>(step);
      continue;
    }
    uint32_t high = static_cast<uint32_t>(row);
    uint32_t low = (random.stream << 24) | static_cast<uint32_t>(step);
    threefry(random.key, high, low);
    const uint32_t last = size - static_cast<uint32_t>(fanout) + static_cast<uint32_t>(step);
    uint32_t drawn = below(high, low, replace ? size : last + 1);
    if (!replace) {
      for (int64_t other = 0; other < first; ++other)
        drawn = static_cast<uint32_t>(to[other]) == drawn ? last : drawn;
      const int rounds = fanout - first < 32 ? static_cast<int>(fanout - first) : 32;
      for (int other = 0; other < rounds; ++other) {
        const uint32_t had = __shfl_sync(kWholeWarp, drawn, other);
        if (other < lane && had == drawn) drawn = last;
      }
    }
    if (step < fanout) to[step] = static_cast<Index>(drawn);
    __syncwarp();  // the next rounds read these
  }
}

// --- Blocks of trees -----------------------------------------------------------------------------

// How many edges of a row count.
template <typename Index>
__device__ __forceinline__ Index clamped(const Index* counts, int64_t row, Index fanout) {
  const Index count = counts[row];
  return count < 0 ? 0 : (count < fanout ? count : fanout);
}

// Sums of a block's warps, of each and all before it. A warp's last lane has its sum.
template <typename Index>
__device__ __forceinline__ void sum_warps(Index of_warp, Index* of_warps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // what was there has been read
  if (lane == 31) of_warps[warp] = of_warp;
  __syncthreads();
  if (warp == 0) {
    Index until = of_warps[lane];
    for (int distance = 1; distance < 32; distance *= 2) {
      const Index other = __shfl_up_sync(kWholeWarp, until, distance);
      if (lane >= distance) until += other;
    }
    of_warps[lane] = until;
  }
  __syncthreads();
}

// Where the edges of each destination start, at most at num_edges. A block has a tile of rows, and
// adds up all rows before by itself, so that no block waits for another.
template <typename Index>
__global__ void starts_kernel(const Index* counts, int64_t num_dst, Index fanout, Index num_edges,
                              Index* indptr) {
  wait_for_previous_launch();
  __shared__ Index of_warps[32];
  static_assert(kScanThreads == 32 * 32, "a lane for each warp");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t tile = blockIdx.x * int64_t{kScanThreads * kScanItems};
  Index sum = 0;
  for (int64_t row = threadIdx.x; row < tile; row += kScanThreads)
    sum += clamped(counts, row, fanout);
  for (int distance = 16; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(kWholeWarp, sum, distance);
  sum_warps(sum, of_warps);
  const Index before = of_warps[31];

  // A warp's rows stand side by side, those of an item at neighbouring lanes.
  const int64_t first = tile + warp * int64_t{32 * kScanItems} + lane;
  Index until[kScanItems], carry = 0;
#pragma unroll
  for (int item = 0; item < kScanItems; ++item) {
    const int64_t row = first + 32 * item;
    until[item] = row < num_dst ? clamped(counts, row, fanout) : Index(0);
    for (int distance = 1; distance < 32; distance *= 2) {
      const Index other = __shfl_up_sync(kWholeWarp, until[item], distance);
      if (lane >= distance) until[item] += other;
    }
    until[item] += carry;
    carry = __shfl_sync(kWholeWarp, until[item], 31);
  }
  sum_warps(carry, of_warps);
  const Index ahead = before + (warp > 0 ? of_warps[warp - 1] : Index(0));
#pragma unroll
  for (int item = 0; item < kScanItems; ++item) {
    const int64_t row = first + 32 * item;
    const Index end = ahead + until[item];
    if (row < num_dst) indptr[row + 1] = end < num_edges ? end : num_edges;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) indptr[0] = 0;
  allow_next_launch();
}

// The other arrays: a thread for each offset, edge and destination, by the same number.
template <typename Index>
__global__ void tree_kernel(Drawn<Index> drawn, Block<Index> block, int64_t threads,
                            bool* overflow) {
  wait_for_previous_launch();
  const int64_t i = blockIdx.x * int64_t{kDrawThreads} + threadIdx.x;
  if (i >= threads) return;
  const int64_t num_dst = drawn.num_dst, total = block.indptr[num_dst];
  if (i == 0) *overflow = false;
  if (i < num_dst) block.sources[i] = drawn.nodes[i];
  if (i <= num_dst) block.t_indptr[i] = 0;
  Index* const ends = block.t_indptr + num_dst + 1;
  Index* const sources = block.sources + num_dst;
  if (i >= total && i < block.num_edges) {
    Index* const all[] = {block.rows,    block.cols,     block.t_rows, block.t_cols,
                          block.t_order, block.edge_ids, sources};
    for (Index* ids : all) ids[i] = -1;
    ends[i] = static_cast<Index>(total);
  }
  if (drawn.fanout == 0) return;
  const int64_t row = divide(i, drawn.fanout);
  if (row >= num_dst) return;
  const int64_t e = block.indptr[row] + (i - row * drawn.fanout);
  if (e >= block.indptr[row + 1]) return;
  const Index place = drawn.starts[row] + drawn.offsets[i];
  const auto bound = static_cast<std::make_unsigned_t<Index>>(drawn.num_whole);
  const Index node = is_id(place, bound) ? drawn.cols[place] : Index(-1);
  const auto most = static_cast<std::make_unsigned_t<Index>>(drawn.num_nodes);
  sources[e] = is_id(node, most) ? node : Index(-1);
  block.rows[e] = block.t_cols[e] = static_cast<Index>(row);
  block.cols[e] = block.t_rows[e] = static_cast<Index>(num_dst + e);
  block.t_order[e] = static_cast<Index>(e);
  block.edge_ids[e] = place;
  ends[e] = static_cast<Index>(e + 1);
}

}  // namespace jax_gnn::cuda
