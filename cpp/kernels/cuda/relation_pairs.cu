// Pairs of rows and relations, the host's side: launches.
#include <algorithm>
#include <limits>

#include "launch.h"
#include "relation_pairs.cuh"
#include "relation_pairs.h"

namespace jax_gnn::cuda {

namespace {

int64_t tiles_of(int64_t num_edges, int64_t num_relations, int64_t num_pairs) {
  return ceil_div(std::max({num_edges, num_relations, num_pairs + 1}), kPairThreads);
}

}  // namespace

int64_t relation_pairs_scratch(int64_t num_edges, int64_t num_relations, int64_t num_pairs) {
  return 2 * (num_relations + 2) * tiles_of(num_edges, num_relations, num_pairs) + 1;
}

template <typename Index>
cudaError_t relation_pairs(cudaStream_t stream, const TypedRows<Index>& edges,
                           const RelationPairs<Index>& pairs, Index* scratch) {
  const int64_t tiles = tiles_of(edges.num_edges, edges.num_relations, pairs.num_pairs);
  const int64_t counts = (edges.num_relations + 1) * tiles;
  const int64_t sums = std::max<int64_t>(ceil_div(counts, kScanThreads * kScanItems), 1);
  if (tiles > kMaxGridX || sums > kMaxGridX) return cudaErrorInvalidConfiguration;
  PairScratch<Index> parts{};
  parts.valid = scratch;
  parts.first = parts.valid + tiles;
  parts.counts = parts.first + tiles;
  parts.starts = parts.counts + counts;
  parts.tiles = tiles;
  const Plan plan{dim3(static_cast<unsigned>(tiles)), kPairThreads, 0};
  JAX_GNN_RETURN_IF_CUDA_ERROR(launch(stream, plan, pair_counts_kernel<Index>, edges, parts));
  const auto limit = std::numeric_limits<Index>::max();
  JAX_GNN_RETURN_IF_CUDA_ERROR(launch(stream, {dim3(static_cast<unsigned>(sums)), kScanThreads, 0},
                                      starts_kernel<Index>, static_cast<const Index*>(parts.counts),
                                      counts, limit, limit, parts.starts));
  return launch(stream, plan, pairs_kernel<Index>, edges, parts, pairs);
}

#define JAX_GNN_INSTANTIATE(Index) JAX_GNN_INSTANCE(relation_pairs<Index>);
JAX_GNN_INSTANTIATE(int32_t)
JAX_GNN_INSTANTIATE(int64_t)

}  // namespace jax_gnn::cuda
