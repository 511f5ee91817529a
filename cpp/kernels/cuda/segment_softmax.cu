// Softmax over runs of equal ids, the host's side: how entries and features are cut, and both
// launches.
#include <algorithm>

#include "launch.h"
#include "segment_softmax.cuh"
#include "segment_softmax.h"

namespace jax_gnn::cuda {
namespace {

template <bool kTangent, typename Acc, typename T>
cudaError_t launch_both(cudaStream_t stream, Problem<kTangent, T> problem,
                        int64_t workspace_blocks) {
  if (problem.count <= 0 || problem.width <= 0) return cudaSuccess;
  constexpr int kWord = 16 / sizeof(T);
  Cut& cut = problem.cut;
  const int64_t tiles = ceil_div(problem.width, 32);
  // Even tiles, of whole words.
  cut.features = static_cast<int>(
      std::min(problem.width, ceil_div(ceil_div(problem.width, tiles), kWord) * kWord));
  cut.tiles = static_cast<unsigned>(ceil_div(problem.width, cut.features));
  while (1 << cut.lane_bits < cut.features) ++cut.lane_bits;
  while (kWord << cut.word_bits < cut.features) ++cut.word_bits;
  cut.words = aligned(problem.out, 16) && (cut.tiles == 1 || problem.width % kWord == 0);
  for (const T* in : problem.in) cut.words = cut.words && aligned(in, 16);
  // One less than the chunks hold: the bit after the last entry says whether its run ends there.
  const int capacity = (kThreads<Acc> >> cut.lane_bits) * kChunk - 1;
  cut.blocks = std::min(
      {workspace_blocks, ceil_div(problem.count, capacity), kMaxGridX / 2 / int64_t{cut.tiles}});
  if (cut.blocks < 1) return cudaErrorInvalidConfiguration;
  cut.even = problem.count / cut.blocks;
  cut.rest = problem.count % cut.blocks;
  const int64_t max_entries = cut.even + (cut.rest > 0);
  cut.entries = static_cast<int>(ceil_div(max_entries, ceil_div(max_entries, capacity)));
  const dim3 grid(static_cast<unsigned>(cut.blocks * cut.tiles));
  const cudaError_t error =
      launch(stream, {grid, kThreads<Acc>, 0}, runs_kernel<kTangent, T, Acc>, problem);
  if (error != cudaSuccess || cut.blocks == 1) return error;
  return launch(stream, {dim3(2 * grid.x), kThreads<Acc>, 0},
                spanning_runs_kernel<kTangent, T, Acc>, problem);
}

}  // namespace

template <typename T, typename Acc>
cudaError_t segment_softmax(cudaStream_t stream, const Csr<int32_t>& csr, const T* x, int64_t width,
                            T* y, void* workspace, int64_t workspace_blocks) {
  const Problem<false, T> problem = {
      csr.rows, id_bound<int32_t>(csr.num_rows),        csr.count, width, {x},
      y,        static_cast<unsigned char*>(workspace), {}};
  return launch_both<false, Acc>(stream, problem, workspace_blocks);
}

template <typename T, typename Acc>
cudaError_t segment_softmax_tangent(cudaStream_t stream, const Csr<int32_t>& csr, const T* y,
                                    const T* t, int64_t width, T* out, void* workspace,
                                    int64_t workspace_blocks) {
  const Problem<true, T> problem = {
      csr.rows, id_bound<int32_t>(csr.num_rows),        csr.count, width, {y, t},
      out,      static_cast<unsigned char*>(workspace), {}};
  return launch_both<true, Acc>(stream, problem, workspace_blocks);
}

#define JAX_GNN_INSTANTIATE(T, Acc)          \
  JAX_GNN_INSTANCE(segment_softmax<T, Acc>); \
  JAX_GNN_INSTANCE(segment_softmax_tangent<T, Acc>);
JAX_GNN_FOR_FLOATS_AND(JAX_GNN_INSTANTIATE, __half, __nv_bfloat16)

}  // namespace jax_gnn::cuda
