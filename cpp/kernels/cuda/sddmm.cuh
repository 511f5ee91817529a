// Dot products of pairs of gathered rows; of those of their features that match; or of a vector and
// the LeakyReLU of their sums.
//
// Every warp takes an even, contiguous range of entries and walks it in steps. A team of lanes (a
// power of two, at most a warp) holds one head of kEntries entries in a step, all their words in
// flight at once, and adds up the lanes' shares for all of them together (see add_over_lanes). The
// teams of a warp lie side by side in the heads, then in the entries. The cut comes from shapes
// alone.
//
// Needs blocks of kThreads threads and rows that are aligned to the word (sddmm.cu). Promises that
// each entry's dots are written once, those of padding as zeros, unless an order leaves the entry
// out, and that any ids are survived.
#pragma once

#include "../segments.h"
#include "basics.cuh"
#include "edge_scores.cuh"
#include "lane_sums.cuh"
#include "pack.cuh"

namespace jax_gnn::cuda {
namespace {

using Index = int32_t;
constexpr int kThreads = 128;

// The result of a pair of rows a and b: <a, b>; <a, b> where they match, see Select; or
// <vector, leaky(a + b)>.
enum class Pairs { kDots, kMatching, kLeaky };

// Entries in flight in each lane. Select has twice the operands, and a vector takes registers.
template <Pairs kPairs>
constexpr int kEntries = kPairs == Pairs::kDots ? 8 : 4;

// How warps are divided.
struct Cut {
  int lane_bits;     // log2 of the lanes of a team
  int head_bits;     // log2 of the heads that teams hold side by side
  bool aligned;      // ids can be read in long words
  int64_t per_warp;  // entries, a multiple of a step's
};

// The arrays that one side of the entries is gathered from: `values` are multiplied, `keys` say
// where (with a Select).
template <typename T>
struct Side {
  const T* values;
  const T* keys;
};

// As row_at, in plain C++: the compiler then issues the loads of a step earlier, 3 %.
template <typename T>
__device__ __forceinline__ T* plain_row_at(T* from, Index row, unsigned row_bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(from) +
                              static_cast<uint64_t>(static_cast<unsigned>(row)) * row_bytes);
}

// Ids of a step. Those that are not there are padding.
template <int kSize>
struct Ids {
  bool full;  // the whole warp has all its entries, and arrays can be read in long words
  Index row[kSize], col[kSize], order[kSize];
};

// sum += <a, b>, only where weight * p == q.
template <typename T, int kVec, typename Acc>
__device__ __forceinline__ void add_matching(Acc& sum, Word<T, kVec> a, Word<T, kVec> b, Acc weight,
                                             Word<T, kVec> p, Word<T, kVec> q) {
  T left[kVec], right[kVec], scaled[kVec], other[kVec];
  memcpy(left, &a, sizeof(a));
  memcpy(right, &b, sizeof(b));
  memcpy(scaled, &p, sizeof(p));
  memcpy(other, &q, sizeof(q));
#pragma unroll
  for (int i = 0; i < kVec; ++i)
    if (matches(weight, scaled[i], other[i])) sum += widen(left[i]) * widen(right[i]);
}

// `weights` with a Select; with kLeaky the vector, aligned to 16 bytes where a word has several
// features.
template <Pairs kPairs, int kVec, typename T, typename Acc>
__global__ void __launch_bounds__(kThreads, 4)
    sddmm_kernel(Csr<Index> csr, Side<T> row_side, Side<T> col_side, const Acc* weights,
                 bool weight_on_row, Features features, Cut cut, Acc* out, Acc slope) {
  using W = Word<T, kVec>;
  constexpr bool kSelect = kPairs == Pairs::kMatching;
  constexpr int kSize = kEntries<kPairs>;
  const int lanes = 1 << cut.lane_bits, lane = threadIdx.x & (lanes - 1);
  const int heads = 1 << cut.head_bits;
  const int team = (threadIdx.x % 32) >> cut.lane_bits, slot = team >> cut.head_bits;
  const int step = kSize * (32 >> (cut.lane_bits + cut.head_bits));
  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int64_t begin = min(warp * cut.per_warp, csr.count);
  const int64_t end = min(begin + cut.per_warp, csr.count);
  const int64_t depth = features.width / features.heads;
  const unsigned row_bytes = static_cast<unsigned>(features.width * sizeof(T));
  const auto cut_size = [](int64_t size) {
    return static_cast<unsigned>(min(size, int64_t{0x7fffffff}));
  };
  const unsigned num_rows = cut_size(csr.num_rows), num_cols = cut_size(csr.num_cols);
  const unsigned num_weights = cut_size(csr.num_weights);
  const bool ordered = csr.order != nullptr;
  wait_for_previous_launch();

  const auto load_step = [&](int64_t base, Ids<kSize>& ids) {
    const int64_t first = base + slot * kSize;
    ids.full = cut.aligned && base + step <= end;
    const auto load = [&](const Index* from, Index* to) {
      if (ids.full)
        load_words<kSize>(from + first, to);
      else
#pragma unroll
        for (int j = 0; j < kSize; ++j) to[j] = load_or(first + j < end, from + first + j, -1);
    };
    load(csr.rows, ids.row);
    if (csr.cols != nullptr)
      load(csr.cols, ids.col);
    else
#pragma unroll
      for (int j = 0; j < kSize; ++j) ids.col[j] = static_cast<Index>(first + j);
    if (kSelect && ordered) load(csr.order, ids.order);
  };

  for (int64_t base_head = int64_t{blockIdx.y} << cut.head_bits; base_head < features.heads;
       base_head += int64_t{gridDim.y} << cut.head_bits) {
    const int64_t head = base_head + (team & (heads - 1));
    const bool active = head < features.heads;
    Ids<kSize> coming;
    load_step(begin, coming);
    for (int64_t base = begin; base < end; base += step) {
      const Ids<kSize> ids = coming;
      const int64_t first = base + slot * kSize;
      unsigned valid = 0;  // bit j: entry j is not padding
      Acc weight[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        bool is_valid = active && static_cast<unsigned>(ids.row[j]) < num_rows &&
                        static_cast<unsigned>(ids.col[j]) < num_cols;
        if constexpr (kSelect) {
          const int64_t at = ordered ? int64_t{ids.order[j]} : first + j;
          if (weights != nullptr) is_valid &= static_cast<uint64_t>(at) < num_weights;
          weight[j] =
              load_or(is_valid && weights != nullptr, weights + at * features.heads + head, Acc(1));
        }
        valid |= static_cast<unsigned>(is_valid) << j;
      }
      constexpr unsigned kAll = (1u << kSize) - 1;
      const bool all_valid = !kSelect && __all_sync(kWholeWarp, valid == kAll);
      if (base + step < end) load_step(base + step, coming);  // arrives while the features do

      Acc sum[kSize] = {};
      for (int64_t feature = lane * kVec; feature < depth; feature += lanes * kVec) {
        const int64_t column = head * depth + feature;
        W left[kSize], right[kSize];
        Acc vector[kVec];
        if constexpr (kPairs == Pairs::kLeaky) {
          if constexpr (kVec > 1 && kVec * sizeof(Acc) % 16 == 0)
            load_words<kVec>(weights + (active ? column : feature), vector);
          else
#pragma unroll
            for (int i = 0; i < kVec; ++i)
              vector[i] = __ldg(weights + (active ? column : feature) + i);
        }
        const auto add = [&](Acc& sum, W left, W right) {
          if constexpr (kPairs == Pairs::kLeaky)
            add_leaky<T, kVec>(sum, left, right, vector, slope);
          else
            add_dot<T, kVec>(sum, left, right);
        };
        if (all_valid) {
          const auto load = [&](const T* from, Index row) {
            return __ldg(reinterpret_cast<const W*>(plain_row_at(from + column, row, row_bytes)));
          };
#pragma unroll
          for (int j = 0; j < kSize; ++j) right[j] = load(col_side.values, ids.col[j]);
          constexpr int kHalf = kSize / 2;  // rows are mostly the same, and soon there
#pragma unroll
          for (int half = 0; half < kSize; half += kHalf) {
#pragma unroll
            for (int j = half; j < half + kHalf; ++j) left[j] = load(row_side.values, ids.row[j]);
#pragma unroll
            for (int j = half; j < half + kHalf; ++j) add(sum[j], left[j], right[j]);
          }
          continue;
        }
        const auto load = [&](const T* from, Index row, int j, W& word) {
          word = {};
          load_if(valid >> j & 1,
                  reinterpret_cast<const W*>(plain_row_at(from + column, row, row_bytes)), word);
        };
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          load(col_side.values, ids.col[j], j, right[j]);
          load(row_side.values, ids.row[j], j, left[j]);
        }
        // Padding was not loaded: zeros match, and add zero.
        if constexpr (kSelect) {
          W row_keys[kSize], col_keys[kSize];
#pragma unroll
          for (int j = 0; j < kSize; ++j) {
            load(col_side.keys, ids.col[j], j, col_keys[j]);
            load(row_side.keys, ids.row[j], j, row_keys[j]);
          }
#pragma unroll
          for (int j = 0; j < kSize; ++j) {
            const W p = weight_on_row ? row_keys[j] : col_keys[j];
            const W q = weight_on_row ? col_keys[j] : row_keys[j];
            add_matching<T, kVec>(sum[j], left[j], right[j], weight[j], p, q);
          }
        } else {
#pragma unroll
          for (int j = 0; j < kSize; ++j) add(sum[j], left[j], right[j]);
        }
      }
      if constexpr (kPairs == Pairs::kLeaky)  // a vector's NaN times what padding has
#pragma unroll
        for (int j = 0; j < kSize; ++j) sum[j] = valid >> j & 1 ? sum[j] : Acc(0);
      __syncwarp();
      const Held held = add_over_lanes(sum, cut.lane_bits);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if (j == held.count) break;
        const int64_t entry = first + held.first + j;
        if (!held.writes || !active || entry >= end) continue;
        const int64_t to = !kSelect && ordered ? int64_t{csr.order[entry]} : entry;
        if (kSelect || !ordered || static_cast<uint64_t>(to) < num_weights)
          out[to * features.heads + head] = sum[j];
      }
    }
  }
}

}  // namespace
}  // namespace jax_gnn::cuda
