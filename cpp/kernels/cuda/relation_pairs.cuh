// Pairs of rows and relations, device side, in three launches: counts of each tile of edges, sums
// of these over relations and tiles, and all arrays.
#pragma once

#include "../relation_pairs.h"
#include "scan.cuh"

namespace jax_gnn::cuda {

constexpr int kPairThreads = 256;  // edges of a tile

// Results of one kernel that the next ones read. Pairs of no relation are counted as of one more.
template <typename Index>
struct PairScratch {
  Index* valid;   // (tiles,), edges that are no padding
  Index* first;   // (tiles,), those that are the first of their pair
  Index* counts;  // (num_relations + 1, tiles), the same by relation
  Index* starts;  // (num_relations + 1, tiles) and one more: their sums
  int64_t tiles;
};

template <typename Index>
__device__ __forceinline__ bool is_first(const TypedRows<Index>& edges, int64_t e) {
  return e < edges.num_edges && edges.rows[e] >= 0 &&
         (e == 0 || edges.rows[e] != edges.rows[e - 1] || edges.types[e] != edges.types[e - 1]);
}

template <typename Index>
__device__ __forceinline__ int64_t relation(const TypedRows<Index>& edges, int64_t e) {
  const auto bound = static_cast<std::make_unsigned_t<Index>>(edges.num_relations);
  return is_id(edges.types[e], bound) ? static_cast<int64_t>(edges.types[e]) : edges.num_relations;
}

template <typename Index>
__global__ void pair_counts_kernel(TypedRows<Index> edges, PairScratch<Index> scratch) {
  wait_for_previous_launch();
  __shared__ Index of_warps[32];
  Index* const counts = scratch.counts + blockIdx.x;
  for (int64_t i = threadIdx.x; i <= edges.num_relations; i += kPairThreads)
    counts[i * scratch.tiles] = 0;
  __syncthreads();
  const int64_t e = blockIdx.x * int64_t{kPairThreads} + threadIdx.x;
  const bool first = is_first(edges, e);
  if (first) count_one(counts + relation(edges, e) * scratch.tiles);
  const Index valid = sum_all(Index(e < edges.num_edges && edges.rows[e] >= 0), of_warps);
  const Index all = sum_all(Index(first), of_warps);
  if (threadIdx.x == 0) {
    scratch.valid[blockIdx.x] = valid;
    scratch.first[blockIdx.x] = all;
  }
  allow_next_launch();
}

template <typename Index>
__global__ void pairs_kernel(TypedRows<Index> edges, PairScratch<Index> scratch,
                             RelationPairs<Index> pairs) {
  wait_for_previous_launch();
  __shared__ Index of_warps[32];
  __shared__ Index relations[kPairThreads];  // of the first edges of pairs, others: -1
  const int64_t e = blockIdx.x * int64_t{kPairThreads} + threadIdx.x;
  const bool first = is_first(edges, e);
  const int64_t own_relation = first ? relation(edges, e) : -1;
  relations[threadIdx.x] = static_cast<Index>(own_relation);
  Index before = 0, after = 0, valid = 0;
  for (int64_t tile = threadIdx.x; tile < scratch.tiles; tile += kPairThreads) {
    (tile < blockIdx.x ? before : after) += scratch.first[tile];
    valid += scratch.valid[tile];
  }
  before = sum_all(before, of_warps);
  const Index all = before + sum_all(after, of_warps);
  valid = sum_all(valid, of_warps);
  const Index number = before + sum_until(Index(first), of_warps) - 1;

  if (e < edges.num_edges) pairs.numbers[e] = edges.rows[e] >= 0 ? number : Index(-1);
  if (e >= all && e < pairs.num_pairs) {
    pairs.nodes[e] = pairs.sorted_nodes[e] = -1;
    pairs.order[e] = pairs.places[e] = static_cast<Index>(e);
  }
  if (e >= all && e <= pairs.num_pairs) pairs.indptr[e] = valid;
  if (e < edges.num_relations)
    pairs.sizes[e] = scratch.starts[(e + 1) * scratch.tiles] - scratch.starts[e * scratch.tiles];
  if (!first || number >= pairs.num_pairs) return;
  pairs.indptr[number] = static_cast<Index>(e);
  pairs.sorted_nodes[number] = edges.rows[e];
  Index place = scratch.starts[own_relation * scratch.tiles + blockIdx.x];
  for (unsigned other = 0; other < threadIdx.x; ++other) place += relations[other] == own_relation;
  pairs.order[number] = place;
  if (place >= pairs.num_pairs) return;
  pairs.places[place] = number;
  pairs.nodes[place] = edges.rows[e];
}

}  // namespace jax_gnn::cuda
