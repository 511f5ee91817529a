// Scores of edges with relations, the host's side: in words of which size, and how edges are cut.
#include <algorithm>
#include <type_traits>

#include "launch.h"
#include "typed_scores.cuh"
#include "typed_scores.h"

namespace jax_gnn::cuda {
namespace {

constexpr int64_t kMaxBlocks = 2112;  // sixteen for each multiprocessor of an H200

}  // namespace

template <typename T, typename Acc>
cudaError_t typed_scores(cudaStream_t stream, const Csr<int32_t>& csr,
                         const TypedScores<T, Acc>& scores, Acc* out) {
  const auto [width, heads] = scores.features;
  if (csr.count <= 0 || heads <= 0) return cudaSuccess;
  const int64_t depth = width / heads, longest = std::max(width, heads * scores.depth);
  if (longest > static_cast<int64_t>(0xffffffffu / sizeof(T))) return cudaErrorInvalidValue;
  const auto go = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    int lane_bits = 0;
    while (lane_bits < 5 && (int64_t{kVec} << lane_bits) < std::max(depth, scores.depth))
      ++lane_bits;
    const int64_t step = kEntries * (32 >> lane_bits) * (kThreads / 32);
    const int64_t blocks = std::min((csr.count + step - 1) / step, kMaxBlocks);
    return launch(stream, {dim3(static_cast<unsigned>(blocks)), kThreads, 0},
                  typed_scores_kernel<kVec, T, Acc>, csr, scores, lane_bits, out);
  };
  constexpr int kWide = 16 / sizeof(T);
  const bool fits = readable<kWide>(scores.x, scores.depth) &&
                    readable<kWide>(scores.of_x, scores.depth) &&
                    readable<kWide>(scores.value, depth) && readable<kWide>(scores.of_value, depth);
  return fits ? go(std::integral_constant<int, kWide>()) : go(std::integral_constant<int, 1>());
}

#define JAX_GNN_INSTANTIATE(T, Acc)                                                                \
  template cudaError_t typed_scores(cudaStream_t, const Csr<int32_t>&, const TypedScores<T, Acc>&, \
                                    Acc*);
JAX_GNN_INSTANTIATE(float, float)
JAX_GNN_INSTANTIATE(double, double)
JAX_GNN_INSTANTIATE(__half, float)
JAX_GNN_INSTANTIATE(__nv_bfloat16, float)

}  // namespace jax_gnn::cuda
