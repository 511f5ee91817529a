// Sampled neighbourhoods, the host's side: launches.
#include <algorithm>
#include <limits>

#include "launch.h"
#include "sample_block.cuh"
#include "sample_block.h"

namespace jax_gnn::cuda {

template <typename Index>
cudaError_t sample_uniform(cudaStream_t stream, const Random& random, const Index* degrees,
                           int64_t num_rows, int64_t fanout, bool replace, Index* offsets,
                           Index* counts) {
  if (num_rows == 0) return cudaSuccess;
  const int64_t blocks = ceil_div(num_rows, kDrawThreads / 32);
  if (blocks > kMaxGridX) return cudaErrorInvalidConfiguration;
  return launch(stream, {dim3(static_cast<unsigned>(blocks)), kDrawThreads, 0}, draw_kernel<Index>,
                random, degrees, num_rows, fanout, replace, offsets, counts);
}

template <typename Index>
cudaError_t sample_tree(cudaStream_t stream, const Drawn<Index>& drawn, const Block<Index>& block,
                        bool* overflow) {
  const int64_t threads =
      std::max({drawn.num_dst * drawn.fanout, block.num_edges, drawn.num_dst + 1});
  const int64_t blocks = ceil_div(threads, kDrawThreads);
  const int64_t tiles = std::max<int64_t>(ceil_div(drawn.num_dst, kScanThreads * kScanItems), 1);
  // Sums of counts are in the ids' type.
  const int64_t most = std::numeric_limits<Index>::max();
  if (blocks > kMaxGridX || tiles > kMaxGridX || threads > most)
    return cudaErrorInvalidConfiguration;
  const cudaError_t error =
      launch(stream, {dim3(static_cast<unsigned>(tiles)), kScanThreads, 0}, starts_kernel<Index>,
             drawn.counts, drawn.num_dst, static_cast<Index>(drawn.fanout),
             static_cast<Index>(block.num_edges), block.indptr);
  if (error != cudaSuccess) return error;
  return launch(stream, {dim3(static_cast<unsigned>(blocks)), kDrawThreads, 0}, tree_kernel<Index>,
                drawn, block, threads, overflow);
}

#define JAX_GNN_INSTANTIATE(Index)                                                                 \
  template cudaError_t sample_uniform(cudaStream_t, const Random&, const Index*, int64_t, int64_t, \
                                      bool, Index*, Index*);                                       \
  template cudaError_t sample_tree(cudaStream_t, const Drawn<Index>&, const Block<Index>&, bool*);
JAX_GNN_INSTANTIATE(int32_t)
JAX_GNN_INSTANTIATE(int64_t)

}  // namespace jax_gnn::cuda
