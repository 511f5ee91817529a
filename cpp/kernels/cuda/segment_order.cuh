// The order of ids, device side: a stable sort by digits, from the lowest. Of each digit there are
// two launches: counts of each part of the ids, and the ids at their new places.
#pragma once

#include "scan.cuh"

namespace jax_gnn::cuda {

constexpr int kOrderThreads = 1024, kOrderItems = 4;  // ids of a thread, of those read at once
constexpr int kOrderTile = kOrderThreads * kOrderItems;
constexpr int kMaxOrderParts = 128;  // a block adds up the counts of all parts
constexpr int kLeastDigitBits = 5, kMaxDigitBits = 9;

// Ids by one digit. An id out of range counts as the bound.
template <typename Index>
struct OrderPass {
  const Index* ids;    // (count,)
  const Index* order;  // (count,), where each was at first; null in the first pass
  Index* to_ids;       // (count,), the same after the pass; null in the last
  Index* to_order;     // (count,)
  Index* counts;       // (parts, 1 << bits), ids of each part with each digit
  int64_t count, bound, part_size;
  int shift, bits;

  __device__ Index id_at(int64_t i) const {
    const Index id = ids[i], last = static_cast<Index>(bound);
    return is_id(id, static_cast<std::make_unsigned_t<Index>>(bound)) ? id : last;
  }
  __device__ unsigned digit_of(Index id) const {
    return static_cast<unsigned>(id >> shift) & ((1u << bits) - 1);
  }
  __device__ int64_t part_end() const {
    const int64_t end = (blockIdx.x + int64_t{1}) * part_size;
    return end < count ? end : count;
  }
};

// Lanes of the warp that have an id with the same digit.
__device__ __forceinline__ unsigned peers_of(unsigned digit, int bits, bool has_id) {
  unsigned peers = __ballot_sync(kWholeWarp, has_id);
  for (int bit = 0; bit < bits; ++bit) {
    const bool is_set = (digit >> bit & 1) != 0;
    const unsigned set = __ballot_sync(kWholeWarp, is_set);
    peers &= is_set ? set : ~set;
  }
  return peers;
}

template <typename Index>
__global__ void __launch_bounds__(kOrderThreads, 1) order_counts_kernel(OrderPass<Index> pass) {
  wait_for_previous_launch();
  __shared__ unsigned counts[1 << kMaxDigitBits];
  const int lane = threadIdx.x % 32, digits = 1 << pass.bits;
  for (int digit = threadIdx.x; digit < digits; digit += kOrderThreads) counts[digit] = 0;
  __syncthreads();
  const int64_t end = pass.part_end();
  for (int64_t first = blockIdx.x * pass.part_size; first < end; first += kOrderThreads) {
    const int64_t i = first + threadIdx.x;
    const unsigned digit = i < end ? pass.digit_of(pass.id_at(i)) : 0;
    const unsigned peers = peers_of(digit, pass.bits, i < end);
    if (i < end && lane == __ffs(peers) - 1)
      atomicAdd(counts + digit, static_cast<unsigned>(__popc(peers)));
  }
  __syncthreads();
  for (int digit = threadIdx.x; digit < digits; digit += kOrderThreads)
    pass.counts[blockIdx.x * int64_t{digits} + digit] = static_cast<Index>(counts[digit]);
  allow_next_launch();
}

// The place of the block's ids with a digit, for the thread with its number: after those of smaller
// digits and of earlier parts.
template <typename Index>
__device__ __forceinline__ Index first_place(const OrderPass<Index>& pass, Index* shared,
                                             Index* of_warps) {
  const int digits = 1 << pass.bits, teams = kOrderThreads / digits;
  const int digit = threadIdx.x % digits, team = threadIdx.x / digits;
  Index before = 0, all = 0;
#pragma unroll 8
  for (int64_t part = team; part < gridDim.x; part += teams) {
    const Index count = pass.counts[part * digits + digit];
    all += count;
    before += part < blockIdx.x ? count : Index(0);
  }
  shared[threadIdx.x] = all;
  shared[kOrderThreads + threadIdx.x] = before;
  __syncthreads();
  all = before = 0;
  if (team == 0) {
    for (int other = 0; other < teams; ++other) {
      all += shared[other * digits + digit];
      before += shared[kOrderThreads + other * digits + digit];
    }
  }
  return sum_until(all, of_warps) - all + before;
}

template <typename Index>
__global__ void __launch_bounds__(kOrderThreads, 1) order_kernel(OrderPass<Index> pass) {
  wait_for_previous_launch();
  __shared__ union {
    Index sums[2 * kOrderThreads];            // of parts
    uint16_t counts[32][1 << kMaxDigitBits];  // of each warp, then of the warps before
    Index tile[kOrderTile];                   // in the order of digits
  } shared;
  __shared__ Index places[1 << kMaxDigitBits], of_warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, digits = 1 << pass.bits;
  const bool has_digit = static_cast<int>(threadIdx.x) < digits;
  Index place = first_place(pass, shared.sums, of_warps);  // of the next id with the thread's digit

  const int64_t end = pass.part_end();
  for (int64_t tile = blockIdx.x * pass.part_size; tile < end; tile += kOrderTile) {
    const int64_t first = tile + warp * int64_t{32 * kOrderItems} + lane;
    Index ids[kOrderItems], orders[kOrderItems];
    int ranks[kOrderItems];
#pragma unroll
    for (int item = 0; item < kOrderItems; ++item) {
      const int64_t i = first + 32 * item;
      ids[item] = i < end ? pass.id_at(i) : Index(0);
      orders[item] = i < end && pass.order != nullptr ? pass.order[i] : static_cast<Index>(i);
    }
    __syncthreads();  // what was shared has been read
    for (int digit = lane; digit < digits; digit += 32) shared.counts[warp][digit] = 0;
    __syncwarp();
#pragma unroll
    for (int item = 0; item < kOrderItems; ++item) {
      const bool has_id = first + 32 * item < end;
      const unsigned digit = pass.digit_of(ids[item]);
      const unsigned peers = peers_of(digit, pass.bits, has_id);
      const int before = shared.counts[warp][digit];
      ranks[item] = before + __popc(peers & ((1u << lane) - 1));
      __syncwarp();
      if (has_id && lane == __ffs(peers) - 1)
        shared.counts[warp][digit] = static_cast<uint16_t>(before + __popc(peers));
      __syncwarp();
    }
    __syncthreads();
    unsigned digit_count = 0;  // ids of the tile with the thread's digit
    if (has_digit) {
#pragma unroll 8
      for (int other = 0; other < 32; ++other) {
        const unsigned count = shared.counts[other][threadIdx.x];
        shared.counts[other][threadIdx.x] = static_cast<uint16_t>(digit_count);
        digit_count += count;
      }
    }
    const Index until = sum_until(static_cast<Index>(digit_count), of_warps);
    if (has_digit) {
      // An id at place p of the tile goes to p + places[its digit].
      const Index start = until - static_cast<Index>(digit_count);
      for (int other = 0; other < 32; ++other)
        shared.counts[other][threadIdx.x] += static_cast<uint16_t>(start);
      places[threadIdx.x] = place - start;
      place += static_cast<Index>(digit_count);
    }
    __syncthreads();
#pragma unroll
    for (int item = 0; item < kOrderItems; ++item)
      ranks[item] += shared.counts[warp][pass.digit_of(ids[item])];
    const auto bring_in_order = [&](Index* values) {
      __syncthreads();
#pragma unroll
      for (int item = 0; item < kOrderItems; ++item)
        if (first + 32 * item < end) shared.tile[ranks[item]] = values[item];
      __syncthreads();
#pragma unroll
      for (int item = 0; item < kOrderItems; ++item)
        values[item] = shared.tile[threadIdx.x + item * kOrderThreads];
    };
    bring_in_order(ids);
    bring_in_order(orders);
#pragma unroll
    for (int item = 0; item < kOrderItems; ++item) {
      const int at = static_cast<int>(threadIdx.x) + item * kOrderThreads;
      if (tile + at >= end) continue;
      const int64_t to = at + places[pass.digit_of(ids[item])];
      pass.to_order[to] = orders[item];
      if (pass.to_ids != nullptr) pass.to_ids[to] = ids[item];
    }
  }
  if (pass.to_ids != nullptr) allow_next_launch();
}

}  // namespace jax_gnn::cuda
