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
  const int64_t limit = std::numeric_limits<Index>::max();
  if (blocks > kMaxGridX || tiles > kMaxGridX || threads > limit)
    return cudaErrorInvalidConfiguration;
  JAX_GNN_RETURN_IF_CUDA_ERROR(launch(stream, {dim3(static_cast<unsigned>(tiles)), kScanThreads, 0},
                                      starts_kernel<Index>, drawn.counts, drawn.num_dst,
                                      static_cast<Index>(drawn.fanout),
                                      static_cast<Index>(block.num_edges), block.indptr));
  return launch(stream, {dim3(static_cast<unsigned>(blocks)), kDrawThreads, 0}, tree_kernel<Index>,
                drawn, block, threads, overflow);
}

namespace {

int64_t tiles_of(int64_t threads) { return std::max<int64_t>(ceil_div(threads, kScanThreads), 1); }

}  // namespace

int64_t distinct_scratch(int64_t num_dst, int64_t num_edges, int64_t num_src) {
  const int64_t tiles = tiles_of(std::max(num_dst + num_edges, num_src + 1));
  return 3 * tiles + num_dst + 2 * num_edges + tiles_of(num_edges) * kCountStride;
}

template <typename Index>
cudaError_t sample_distinct(cudaStream_t stream, const Sorted<Index>& sorted,
                            const Block<Index>& block, Index* scratch, bool* overflow) {
  const int64_t num_dst = sorted.num_dst, num_edges = block.num_edges;
  const int64_t count = num_dst + num_edges, threads = std::max(count, block.num_src + 1);
  DistinctScratch<Index> parts{};
  parts.tiles = tiles_of(threads);
  parts.edge_tiles = tiles_of(num_edges);
  parts.dst_tiles = std::max<int64_t>(ceil_div(num_dst, kScanThreads * kScanItems), 1);
  parts.sums = scratch;
  parts.counts = parts.sums + 3 * parts.tiles;
  parts.sources = parts.counts + num_dst;
  parts.ranks = parts.sources + num_edges;
  parts.edge_counts = parts.ranks + num_edges;
  // Sums of counts are in the ids' type.
  const int64_t blocks = parts.tiles + parts.dst_tiles, limit = std::numeric_limits<Index>::max();
  if (blocks > kMaxGridX || threads > limit) return cudaErrorInvalidConfiguration;
  const Runs<Index> runs{sorted, count};
  const auto plan = [](int64_t blocks) {
    return Plan{dim3(static_cast<unsigned>(blocks)), kScanThreads, 0};
  };
  JAX_GNN_RETURN_IF_CUDA_ERROR(
      launch(stream, plan(parts.tiles), distinct_sums_kernel<Index>, runs, parts));
  JAX_GNN_RETURN_IF_CUDA_ERROR(
      launch(stream, plan(blocks), distinct_sources_kernel<Index>, runs, parts, block, overflow));
  // As many sources as there may be, if nodes of different seeds are not different ones.
  const int64_t max_sources =
      sorted.seeds == nullptr ? std::min(count, num_dst + sorted.num_nodes) : count;
  return launch(stream, plan(tiles_of(std::max(num_edges, num_dst + 1))),
                distinct_edges_kernel<Index>, runs, parts, block, block.num_src < max_sources);
}

#define JAX_GNN_INSTANTIATE(Index)         \
  JAX_GNN_INSTANCE(sample_uniform<Index>); \
  JAX_GNN_INSTANCE(sample_tree<Index>);    \
  JAX_GNN_INSTANCE(sample_distinct<Index>);
JAX_GNN_INSTANTIATE(int32_t)
JAX_GNN_INSTANTIATE(int64_t)

}  // namespace jax_gnn::cuda
