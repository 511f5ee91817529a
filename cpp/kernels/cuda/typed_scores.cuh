// Scores of edges with relations: the dots of what lies at both ends with vectors of the relation,
// added up, through a LeakyReLU.
//
// Every warp takes steps of neighbouring edges. A team of lanes (a power of two, at most a warp)
// holds kEntries edges of one head, the words of one end of all of them in flight at once, and adds
// up the lanes' shares for all together (see add_over_lanes). Edges lie by destination, then by
// relation, so that of the four rows that an edge reads, those of the destination and of the
// vectors are mostly in the first cache.
//
// Needs blocks of kThreads threads and rows that are aligned to the word (typed_scores.cu).
// Promises that each score is written once, those of padding as zeros, and that any ids are
// survived.
#pragma once

#include "../typed_scores.h"
#include "basics.cuh"
#include "edge_scores.cuh"
#include "lane_sums.cuh"
#include "pack.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kThreads = 128, kEntries = 4;

// sum[j] += < row at[j] of `rows`, row types[j] of `vectors` >, of a lane's words. Edges that are
// not `valid` read nothing.
template <int kVec, typename T, typename Acc>
__device__ __forceinline__ void add_dots(Acc (&sum)[kEntries], unsigned valid, int lane, int lanes,
                                         int64_t depth, const T* rows,
                                         const int32_t (&at)[kEntries], unsigned row_bytes,
                                         const T* vectors, const int32_t (&types)[kEntries],
                                         unsigned vector_bytes) {
  using W = Word<T, kVec>;
  for (int64_t feature = lane * kVec; feature < depth; feature += lanes * kVec) {
    W left[kEntries] = {}, right[kEntries] = {};
#pragma unroll
    for (int j = 0; j < kEntries; ++j) {
      const bool is_valid = valid >> j & 1;
      load_if(is_valid, reinterpret_cast<const W*>(row_at(rows + feature, at[j], row_bytes)),
              left[j]);
      load_if(is_valid,
              reinterpret_cast<const W*>(row_at(vectors + feature, types[j], vector_bytes)),
              right[j]);
    }
#pragma unroll
    for (int j = 0; j < kEntries; ++j) add_dot<T, kVec>(sum[j], left[j], right[j]);
  }
}

template <int kVec, typename T, typename Acc>
__global__ void __launch_bounds__(kThreads)
    typed_scores_kernel(Csr<int32_t> csr, TypedScores<T, Acc> scores, int lane_bits, Acc* out) {
  const int lanes = 1 << lane_bits, lane = threadIdx.x & (lanes - 1);
  const int team = (threadIdx.x % 32) >> lane_bits;
  const int step = kEntries * (32 >> lane_bits);
  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int64_t warps = int64_t{gridDim.x} * (kThreads / 32);
  const int64_t heads = scores.features.heads, width = scores.features.width;
  const int64_t value_depth = width / heads;
  const auto row_bytes = [](int64_t size) { return static_cast<unsigned>(size * sizeof(T)); };
  allow_next_launch();
  wait_for_previous_launch();

  for (int64_t base = warp * step; base < csr.count; base += warps * step) {
    const int64_t first = base + team * kEntries;
    int32_t row[kEntries], col[kEntries], type[kEntries];
    unsigned valid = 0;  // bit j: edge j is not padding
#pragma unroll
    for (int j = 0; j < kEntries; ++j) {
      const bool is_there = first + j < csr.count;
      row[j] = load_or(is_there, csr.rows + first + j, -1);
      col[j] = load_or(is_there, csr.cols + first + j, -1);
      type[j] = load_or(is_there, scores.types + first + j, -1);
    }
#pragma unroll
    for (int j = 0; j < kEntries; ++j) {
      const bool is_valid = static_cast<uint64_t>(int64_t{row[j]}) < csr.num_rows &&
                            static_cast<uint64_t>(int64_t{col[j]}) < csr.num_cols &&
                            static_cast<uint64_t>(int64_t{type[j]}) < scores.num_types;
      valid |= static_cast<unsigned>(is_valid) << j;
    }
    for (int64_t head = 0; head < heads; ++head) {
      Acc sum[kEntries] = {};
      add_dots<kVec>(sum, valid, lane, lanes, value_depth, scores.value + head * value_depth, col,
                     row_bytes(width), scores.of_value + head * value_depth, type,
                     row_bytes(width));
      add_dots<kVec>(sum, valid, lane, lanes, scores.depth, scores.x, row, row_bytes(scores.depth),
                     scores.of_x + head * scores.depth, type, row_bytes(heads * scores.depth));
      __syncwarp();
      const Held held = add_over_lanes(sum, lane_bits);
#pragma unroll
      for (int j = 0; j < kEntries; ++j) {
        if (j == held.count) break;
        const int64_t entry = first + held.first + j;
        if (held.writes && entry < csr.count)
          out[entry * heads + head] = leaky(sum[j], scores.slope);
      }
    }
  }
}

}  // namespace
}  // namespace jax_gnn::cuda
