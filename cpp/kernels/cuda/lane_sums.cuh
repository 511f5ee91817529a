// Sums over the lanes of a team, for several entries at once. Needs whole warps; the order of the
// additions depends on sizes alone.
#pragma once

#include "basics.cuh"

namespace jax_gnn::cuda {

// The sums that a lane holds after add_over_lanes: those of `count` entries from `first` on.
// Several lanes hold the same where there are more of them than entries; `writes` says which is to
// write them.
struct Held {
  int first, count;
  bool writes;
};

// Adds each of kSize values (a power of two) over teams of 2^lane_bits lanes. A step sends half of
// the values that a lane has left to another lane, and takes as many for the rest: kSize - 1
// shuffles for as many lanes, one more for each doubling. Called by whole warps.
template <int kSize, typename Acc>
__device__ __forceinline__ Held add_over_lanes(Acc (&sum)[kSize], int lane_bits) {
  const int lane = threadIdx.x % 32;
  Held held = {0, kSize, true};
  int left = lane_bits;
#pragma unroll
  for (int size = kSize; size > 1; size /= 2) {
    if (left == 0) break;
    const int bit = --left;
    const bool upper = lane >> bit & 1;
#pragma unroll
    for (int i = 0; i < size / 2; ++i) {
      const Acc other = upper ? sum[i] : sum[i + size / 2];
      const Acc half = upper ? sum[i + size / 2] : sum[i];
      sum[i] = half + __shfl_xor_sync(kWholeWarp, other, 1 << bit);
    }
    held.count = size / 2;
    held.first += upper ? size / 2 : 0;
  }
  for (; left > 0; --left) {
    const int bit = left - 1;
    sum[0] += __shfl_xor_sync(kWholeWarp, sum[0], 1 << bit);
    held.writes &= !(lane >> bit & 1);
  }
  return held;
}

// Adds over at least kSize lanes, a power of two, each kSize values of several kinds: the
// lane's first of a kind is then that of the entry (lane / (lanes / kSize)) % kSize. The same
// additions in the same order. Called by whole warps.
template <int kSize, int kCount, typename Acc>
__device__ __forceinline__ void add_over_many_lanes(Acc (&sum)[kCount], int lanes) {
  int distance = lanes / 2;
#pragma unroll
  for (int size = kSize / 2; size > 0; size /= 2) {
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int first = 0; first < kCount; first += kSize)
#pragma unroll
      for (int i = first; i < first + size; ++i) {
        const Acc other = upper ? sum[i] : sum[i + size];
        const Acc half = upper ? sum[i + size] : sum[i];
        sum[i] = half + __shfl_xor_sync(kWholeWarp, other, distance);
      }
    distance /= 2;
  }
#pragma unroll
  for (int level = 2; level < 32 / kSize; level *= 2) {
    if (distance == 0) break;
#pragma unroll
    for (int first = 0; first < kCount; first += kSize)
      sum[first] += __shfl_xor_sync(kWholeWarp, sum[first], distance);
    distance /= 2;
  }
}

}  // namespace jax_gnn::cuda
