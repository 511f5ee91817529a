// Running sums of counts, device side. No block waits for another.
#pragma once

#include "basics.cuh"

namespace jax_gnn::cuda {

constexpr int kScanThreads = 1024, kScanItems = 4;  // rows of a thread

// Adds one to a count that other threads add to.
template <typename Index>
__device__ __forceinline__ void count_one(Index* to) {
  using Word = std::conditional_t<sizeof(Index) == 8, unsigned long long, unsigned>;
  atomicAdd(reinterpret_cast<Word*>(to), Word{1});
}

// The number of drawn edges of a row.
template <typename Index>
__device__ __forceinline__ Index clamped(const Index* counts, int64_t row, Index fanout) {
  const Index count = counts[row];
  return count < 0 ? 0 : (count < fanout ? count : fanout);
}

// Sums of a block's warps, of each and all before it; of all of them at the end. A warp's last lane
// has its sum.
template <typename Index>
__device__ __forceinline__ void sum_warps(Index of_warp, Index* of_warps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // what was there has been read
  if (lane == 31) of_warps[warp] = of_warp;
  __syncthreads();
  if (warp == 0) {
    Index until = lane < static_cast<int>(blockDim.x / 32) ? of_warps[lane] : Index(0);
    for (int distance = 1; distance < 32; distance *= 2) {
      const Index other = __shfl_up_sync(kWholeWarp, until, distance);
      if (lane >= distance) until += other;
    }
    of_warps[lane] = until;
  }
  __syncthreads();
}

// The sum of `value` of a block's threads up to this one; of all of them in of_warps[31].
template <typename Index>
__device__ __forceinline__ Index sum_until(Index value, Index* of_warps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const Index other = __shfl_up_sync(kWholeWarp, value, distance);
    if (lane >= distance) value += other;
  }
  sum_warps(value, of_warps);
  return value + (warp > 0 ? of_warps[warp - 1] : Index(0));
}

// The sum of `value` of all threads of a block.
template <typename Index>
__device__ __forceinline__ Index sum_all(Index value, Index* of_warps) {
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  sum_warps(value, of_warps);
  return of_warps[31];
}

// The largest `value` of a block's threads up to this one.
template <typename Index>
__device__ __forceinline__ Index largest_until(Index value, Index* of_warps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const Index other = __shfl_up_sync(kWholeWarp, value, distance);
    if (lane >= distance && other > value) value = other;
  }
  __syncthreads();  // what was there has been read
  if (lane == 31) of_warps[warp] = value;
  __syncthreads();
  for (int other = 0; other < warp; ++other)
    value = of_warps[other] > value ? of_warps[other] : value;
  return value;
}

// Writes the row pointers of a tile's rows, num_edges at most. A block adds up all rows
// before by itself, so that none waits for another.
template <typename Index>
__device__ __forceinline__ void write_starts(int64_t tile_number, const Index* counts,
                                             int64_t num_rows, Index fanout, Index num_edges,
                                             Index* indptr, Index* of_warps) {
  static_assert(kScanThreads == 32 * 32, "a lane for each warp");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t tile = tile_number * kScanThreads * kScanItems;
  Index sum = 0;
  for (int64_t row = threadIdx.x; row < tile; row += kScanThreads)
    sum += clamped(counts, row, fanout);
  const Index before = sum_all(sum, of_warps);

  // A warp's rows stand side by side, those of an item at neighbouring lanes.
  const int64_t first = tile + warp * int64_t{32 * kScanItems} + lane;
  Index until[kScanItems], carry = 0;
#pragma unroll
  for (int item = 0; item < kScanItems; ++item) {
    const int64_t row = first + 32 * item;
    until[item] = row < num_rows ? clamped(counts, row, fanout) : Index(0);
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
    if (row < num_rows) indptr[row + 1] = end < num_edges ? end : num_edges;
  }
  if (tile_number == 0 && threadIdx.x == 0) indptr[0] = 0;
}

template <typename Index>
__global__ void __launch_bounds__(kScanThreads, 1)
    starts_kernel(const Index* counts, int64_t num_dst, Index fanout, Index num_edges,
                  Index* indptr) {
  wait_for_previous_launch();
  __shared__ Index of_warps[32];
  write_starts(blockIdx.x, counts, num_dst, fanout, num_edges, indptr, of_warps);
  allow_next_launch();
}

}  // namespace jax_gnn::cuda
