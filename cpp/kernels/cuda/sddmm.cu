// Dot products of pairs of gathered rows, the host's side: in words of which size, and how entries
// are cut.
#include <algorithm>
#include <type_traits>

#include "launch.h"
#include "sddmm.cuh"
#include "sddmm.h"

namespace jax_gnn::cuda {
namespace {

constexpr int64_t kMaxBlocks = 528;  // four for each multiprocessor of an H200

template <Pairs kPairs, int kVec, typename T, typename Acc>
cudaError_t launch_sddmm(cudaStream_t stream, const Csr<Index>& csr, Side<T> row_side,
                         Side<T> col_side, const Acc* weights, bool weight_on_row,
                         Features features, Acc* out, Acc slope = 0) {
  const int64_t words = features.width / features.heads / kVec;
  Cut cut = {};
  while (cut.lane_bits < 5 && (int64_t{1} << cut.lane_bits) < words) ++cut.lane_bits;
  while (cut.lane_bits + cut.head_bits < 5 && (int64_t{1} << cut.head_bits) < features.heads)
    ++cut.head_bits;
  const int64_t step = kEntries<kPairs> * (32 >> (cut.lane_bits + cut.head_bits));
  cut.per_warp = ceil_div(ceil_div(csr.count, kMaxBlocks * (kThreads / 32)), step) * step;
  cut.aligned = aligned(csr.rows, 16) && aligned(csr.cols, 16) && aligned(csr.order, 16);
  const int64_t blocks = ceil_div(csr.count, cut.per_warp * (kThreads / 32));
  const int64_t heads = ceil_div(features.heads, int64_t{1} << cut.head_bits);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(std::min(heads, kMaxGridY)));
  return launch(stream, {grid, kThreads, 0}, sddmm_kernel<kPairs, kVec, T, Acc>, csr, row_side,
                col_side, weights, weight_on_row, features, cut, out, slope);
}

}  // namespace

template <typename T, typename Acc>
cudaError_t sddmm(cudaStream_t stream, const Csr<Index>& csr, const T* a, const T* b,
                  const Select<T, Acc>* select, Features features, Acc* out) {
  if (csr.count <= 0 || features.heads <= 0) return cudaSuccess;
  if (features.width > static_cast<int64_t>(0xffffffffu / sizeof(T))) return cudaErrorInvalidValue;
  const Side<T> row_side = {a, select ? select->row_key : a};
  const Side<T> col_side = {b, select ? select->col_key : b};
  const int64_t depth = features.width / features.heads;
  const auto fits = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    return readable<kVec>(row_side.values, depth) && readable<kVec>(row_side.keys, depth) &&
           readable<kVec>(col_side.values, depth) && readable<kVec>(col_side.keys, depth);
  };
  const auto go = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    const auto launch = [&](auto pairs) {
      return launch_sddmm<decltype(pairs)::value, kVec>(
          stream, csr, row_side, col_side, select ? select->weight : nullptr,
          select && select->weight_on_row, features, out);
    };
    return select ? launch(std::integral_constant<Pairs, Pairs::kMatching>())
                  : launch(std::integral_constant<Pairs, Pairs::kDots>());
  };
  constexpr std::integral_constant<int, 16 / sizeof(T)> kWide;
  constexpr std::integral_constant<int, 8 / sizeof(T)> kHalf;
  if (fits(kWide)) return go(kWide);
  if (kHalf > 1 && fits(kHalf)) return go(kHalf);
  return go(std::integral_constant<int, 1>());
}

template <typename T, typename Acc>
cudaError_t leaky_scores(cudaStream_t stream, const Csr<Index>& csr, const Leaky<T, Acc>& leaky,
                         const Acc* vector, Features features, Acc* out) {
  if (csr.count <= 0 || features.heads <= 0) return cudaSuccess;
  if (features.width > static_cast<int64_t>(0xffffffffu / sizeof(T))) return cudaErrorInvalidValue;
  const int64_t depth = features.width / features.heads;
  const auto go = [&](auto vec) {
    return launch_sddmm<Pairs::kLeaky, decltype(vec)::value>(
        stream, csr, Side<T>{leaky.row_key, nullptr}, Side<T>{leaky.col_key, nullptr}, vector,
        false, features, out, leaky.slope);
  };
  constexpr int kWide = 16 / sizeof(T);
  if (readable<kWide>(leaky.row_key, depth) && readable<kWide>(leaky.col_key, depth) &&
      aligned(vector, 16))
    return go(std::integral_constant<int, kWide>());
  return go(std::integral_constant<int, 1>());
}

#define JAX_GNN_INSTANTIATE(T, Acc) \
  JAX_GNN_INSTANCE(sddmm<T, Acc>);  \
  JAX_GNN_INSTANCE(leaky_scores<T, Acc>);
JAX_GNN_FOR_FLOATS_AND(JAX_GNN_INSTANTIATE, __half, __nv_bfloat16)

}  // namespace jax_gnn::cuda
