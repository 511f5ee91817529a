// Dot products of pairs of gathered rows.
//
// A team of lanes (a power of two, at most a warp) takes one head of a few consecutive entries at a
// time, all their words in flight at once. Consecutive entries share a row of `a`: it is loaded
// where the row changes. The teams of a block lie side by side in the heads, then in the entries;
// the cut into blocks comes from shapes alone.
//
// Warp-wide instructions are reached only where the whole warp arrives: the loops around them have
// the same number of steps in all threads of a block, and what is out of range is not loaded.

#include <algorithm>
#include <type_traits>

#include "launch.cuh"
#include "pack.cuh"
#include "sddmm.h"

namespace jax_gnn::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;  // more entries make longer loops
// Entries in flight in each lane. Select has twice the operands.
template <bool kSelect>
constexpr int kBatch = kSelect ? 2 : 4;

// How the threads of a block are divided.
struct Cut {
  int lane_bits;  // log2 of the lanes of a team
  int heads;      // that teams hold side by side
  int slots;      // groups of so many teams, each with entries of its own
};

// What one of the ids of an entry points into: `ids` may be null, entry e then has id e.
template <typename Index>
struct Ids {
  const Index* ids;
  std::make_unsigned_t<Index> bound;
  int64_t size;

  Ids(const Index* ids, int64_t size) : ids(ids), bound(id_bound<Index>(size)), size(size) {}

  __device__ __forceinline__ Index load(bool valid, int64_t entry) const {
    return load_or(valid && ids, ids + entry, Index(-1));
  }
  // The id of an entry whose load has arrived, -1 for padding.
  __device__ __forceinline__ int64_t get(Index loaded, int64_t entry) const {
    if (ids) return is_id(loaded, bound) ? static_cast<int64_t>(loaded) : -1;
    return entry < size ? entry : -1;
  }
};

// The arrays that one side of the entries is gathered from: `values` are multiplied, `keys` say
// where (with a Select).
template <typename T>
struct Side {
  const T* values;
  const T* keys;
};

template <typename Acc, typename Index>
struct Weights {
  const Acc* at;  // (size, heads), null means ones
  Ids<Index> ids;
  bool on_row;  // see Select
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

template <bool kSelect, int kVec, typename T, typename Acc, typename Index>
__global__ void __launch_bounds__(kThreads)
    sddmm_kernel(Ids<Index> rows, Ids<Index> cols, int64_t count, Side<T> row_side,
                 Side<T> col_side, Weights<Acc, Index> weights, Features features, Cut cut,
                 Acc* out) {
  using W = Word<T, kVec>;
  constexpr int kEntries = kBatch<kSelect>;
  constexpr int kArrays = kSelect ? 2 : 1;
  const int lanes = 1 << cut.lane_bits, lane = threadIdx.x & (lanes - 1);
  const int team = threadIdx.x >> cut.lane_bits, slot = team / cut.heads;
  const int64_t depth = features.width / features.heads;
  const int64_t begin = split(count, blockIdx.x, gridDim.x);
  const int64_t end = split(count, blockIdx.x + 1, gridDim.x);
  const int64_t stride = static_cast<int64_t>(cut.slots) * kEntries;
  const bool weighted = kSelect && weights.at;
  allow_next_launch();
  wait_for_previous_launch();

  for (int64_t first_head = 0; first_head < features.heads; first_head += cut.heads) {
    const int64_t head = first_head + team % cut.heads;
    const bool active = slot < cut.slots && head < features.heads;
    Index next_rows[kEntries], next_cols[kEntries], next_weights[kEntries];
    const auto load_ids = [&](int64_t first) {
#pragma unroll
      for (int i = 0; i < kEntries; ++i) {
        const bool valid = active && first + i < end;
        next_rows[i] = rows.load(valid, first + i);
        next_cols[i] = cols.load(valid, first + i);
        if (kSelect) next_weights[i] = weights.ids.load(valid && weighted, first + i);
      }
    };
    load_ids(begin + slot * kEntries);
    for (int64_t base = begin; base < end; base += stride) {
      const int64_t first = base + slot * kEntries;
      int64_t row[kEntries], col[kEntries];
      Acc weight[kEntries];
      bool valid[kEntries];
#pragma unroll
      for (int i = 0; i < kEntries; ++i) {
        row[i] = rows.get(next_rows[i], first + i);
        col[i] = cols.get(next_cols[i], first + i);
        valid[i] = active && first + i < end && row[i] >= 0 && col[i] >= 0;
        weight[i] = 1;
        if (weighted) {
          const int64_t id = weights.ids.get(next_weights[i], first + i);
          valid[i] = valid[i] && id >= 0;
          weight[i] = load_or(valid[i], weights.at + id * features.heads + head, Acc(1));
        }
      }
      load_ids(first + stride);  // arrives while this batch's features are on their way

      Acc sum[kEntries] = {};
      for (int64_t feature = lane * kVec; feature < depth; feature += lanes * kVec) {
        const int64_t column = head * depth + feature;
        W left[kArrays][kEntries] = {}, right[kArrays][kEntries] = {};
#pragma unroll
        for (int k = 0; k < kArrays; ++k) {
          const T* from_row = (k == 0 ? row_side.values : row_side.keys) + column;
          const T* from_col = (k == 0 ? col_side.values : col_side.keys) + column;
#pragma unroll
          for (int i = 0; i < kEntries; ++i) {
            const bool fresh = valid[i] && (i == 0 || row[i] != row[i - 1] || !valid[i - 1]);
            load_if(fresh, reinterpret_cast<const W*>(from_row + row[i] * features.width),
                    left[k][i]);
            load_if(valid[i], reinterpret_cast<const W*>(from_col + col[i] * features.width),
                    right[k][i]);
          }
        }
#pragma unroll
        for (int i = 0; i < kEntries; ++i) {
          if (i > 0 && valid[i] && row[i] == row[i - 1] && valid[i - 1])
#pragma unroll
            for (int k = 0; k < kArrays; ++k) left[k][i] = left[k][i - 1];
          if constexpr (kSelect) {
            const W p = weights.on_row ? left[1][i] : right[1][i];
            const W q = weights.on_row ? right[1][i] : left[1][i];
            // Padding was not loaded: zeros match, and add zero.
            add_matching<T, kVec>(sum[i], left[0][i], right[0][i], weight[i], p, q);
          } else {
            add_dot<T, kVec>(sum[i], left[0][i], right[0][i]);
          }
        }
      }
#pragma unroll 1
      for (int offset = lanes / 2; offset > 0; offset /= 2)
#pragma unroll
        for (int i = 0; i < kEntries; ++i) sum[i] += __shfl_xor_sync(kWholeWarp, sum[i], offset);
#pragma unroll
      for (int i = 0; i < kEntries; ++i)
        if (active && lane == 0 && first + i < end)
          out[(first + i) * features.heads + head] = sum[i];
    }
  }
}

template <bool kSelect, int kVec, typename T, typename Acc, typename Index>
cudaError_t launch_sddmm(cudaStream_t stream, const Segments<Index>& segments, Side<T> row_side,
                         Side<T> col_side, const Weights<Acc, Index>& weights, Features features,
                         Acc* out) {
  const int64_t words = features.width / features.heads / kVec;
  Cut cut = {};
  while (cut.lane_bits < 5 && (int64_t{1} << cut.lane_bits) < words) ++cut.lane_bits;
  const int teams = kThreads >> cut.lane_bits;
  cut.heads = static_cast<int>(std::min<int64_t>(features.heads, teams));
  cut.slots = teams / cut.heads;
  const int64_t step = int64_t{cut.slots} * kBatch<kSelect>;
  const int64_t blocks = std::min(ceil_div(segments.count, step), kMaxBlocks);
  return launch(stream, {dim3(static_cast<unsigned>(blocks)), kThreads, 0},
                sddmm_kernel<kSelect, kVec, T, Acc, Index>,
                Ids<Index>(segments.rows, segments.num_rows),
                Ids<Index>(segments.cols, segments.num_cols), segments.count, row_side, col_side,
                weights, features, cut, out);
}

}  // namespace

template <typename T, typename Acc, typename Index>
cudaError_t sddmm(cudaStream_t stream, const Segments<Index>& segments, const T* a, const T* b,
                  const Select<T, Acc>* select, Features features, Acc* out) {
  if (segments.count <= 0 || features.heads <= 0) return cudaSuccess;
  const Side<T> row_side = {a, select ? select->row_key : a};
  const Side<T> col_side = {b, select ? select->col_key : b};
  const Weights<Acc, Index> weights = {select ? select->weight : nullptr,
                                       Ids<Index>(segments.order, segments.num_weights),
                                       select && select->weight_on_row};
  const int64_t depth = features.width / features.heads;
  const auto fits = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    return readable<kVec>(row_side.values, depth) && readable<kVec>(row_side.keys, depth) &&
           readable<kVec>(col_side.values, depth) && readable<kVec>(col_side.keys, depth);
  };
  const auto go = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    return select ? launch_sddmm<true, kVec>(stream, segments, row_side, col_side, weights,
                                             features, out)
                  : launch_sddmm<false, kVec>(stream, segments, row_side, col_side, weights,
                                              features, out);
  };
  constexpr std::integral_constant<int, 16 / sizeof(T)> kWide;
  constexpr std::integral_constant<int, 8 / sizeof(T)> kHalf;
  if (fits(kWide)) return go(kWide);
  if (kHalf > 1 && fits(kHalf)) return go(kHalf);
  return go(std::integral_constant<int, 1>());
}

#define JAX_GNN_SDDMM(T, Acc, Index)                                                   \
  template cudaError_t sddmm(cudaStream_t, const Segments<Index>&, const T*, const T*, \
                             const Select<T, Acc>*, Features, Acc*);
#define JAX_GNN_INSTANTIATE(Index)     \
  JAX_GNN_SDDMM(float, float, Index)   \
  JAX_GNN_SDDMM(double, double, Index) \
  JAX_GNN_SDDMM(__half, float, Index)  \
  JAX_GNN_SDDMM(__nv_bfloat16, float, Index)

JAX_GNN_INSTANTIATE(int32_t)

}  // namespace jax_gnn::cuda
