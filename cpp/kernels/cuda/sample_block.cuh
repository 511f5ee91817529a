// Sampled neighbourhoods, device side: a draw in one launch, the block of a tree in two, that of
// distinct nodes, behind a sort, in three.
#pragma once

#include "../sample_block.h"
#include "scan.cuh"

namespace jax_gnn::cuda {

constexpr int kDrawThreads = 256;  // of a block; a warp has a row

// --- Random numbers ------------------------------------------------------------------------------

// Threefry-2x32, 20 rounds.
__device__ __forceinline__ void threefry(const uint32_t* key, uint32_t& a, uint32_t& b) {
  const uint32_t words[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  a += words[0];
  b += words[1];
#pragma unroll
  for (int group = 0; group < 5; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int rotation = kRotations[group % 2][i];
      a += b;
      b = (b << rotation) | (b >> (32 - rotation));
      b ^= a;
    }
    a += words[(group + 1) % 3];
    b += words[(group + 2) % 3] + static_cast<uint32_t>(group + 1);
  }
}

// An integer below `size`, of 64 random bits: their product, rounded down.
__device__ __forceinline__ uint32_t below(uint32_t high, uint32_t low, uint32_t size) {
  const uint64_t carried = uint64_t{low} * size >> 32;
  return static_cast<uint32_t>((uint64_t{high} * size + carried) >> 32);
}

// --- Draws ---------------------------------------------------------------------------------------

// Floyd's algorithm, 32 rounds at a time, a lane for each. A round that draws what an earlier one
// has takes the last edge of its range, which no earlier one can have.
template <typename Index>
__global__ void draw_kernel(Random random, const Index* degrees, int64_t num_rows, int64_t fanout,
                            bool replace, Index* offsets, Index* counts) {
  wait_for_previous_launch();
  const int64_t row = blockIdx.x * int64_t{kDrawThreads / 32} + threadIdx.x / 32;
  if (row >= num_rows) return;
  const int lane = threadIdx.x % 32;
  const Index degree = degrees[row];
  const auto size = static_cast<uint32_t>(degree);
  const bool all = !replace && size <= static_cast<uint64_t>(fanout);
  Index* const to = offsets + row * fanout;
  if (lane == 0) {
    const auto max_count = static_cast<Index>(fanout);
    counts[row] =
        replace ? (degree > 0 ? max_count : Index(0)) : (degree < max_count ? degree : max_count);
  }
  for (int64_t first = 0; first < fanout; first += 32) {
    const int64_t step = first + lane;
    if (all) {
      if (step < fanout) to[step] = static_cast<Index>(step);
      continue;
    }
    uint32_t high = static_cast<uint32_t>(row);
    uint32_t low = (random.stream << 24) | static_cast<uint32_t>(step);
    threefry(random.key, high, low);
    const uint32_t last = size - static_cast<uint32_t>(fanout) + static_cast<uint32_t>(step);
    uint32_t drawn = below(high, low, replace ? size : last + 1);
    if (!replace) {
      for (int64_t other = 0; other < first; ++other)
        drawn = static_cast<uint32_t>(to[other]) == drawn ? last : drawn;
      const int rounds = fanout - first < 32 ? static_cast<int>(fanout - first) : 32;
      for (int other = 0; other < rounds; ++other) {
        const uint32_t had = __shfl_sync(kWholeWarp, drawn, other);
        if (other < lane && had == drawn) drawn = last;
      }
    }
    if (step < fanout) to[step] = static_cast<Index>(drawn);
    __syncwarp();  // the next rounds read these
  }
}

// --- Blocks of trees -----------------------------------------------------------------------------

// The other arrays: a thread for each offset, edge and destination, by the same number.
template <typename Index>
__global__ void tree_kernel(Drawn<Index> drawn, Block<Index> block, int64_t threads,
                            bool* overflow) {
  wait_for_previous_launch();
  const int64_t i = blockIdx.x * int64_t{kDrawThreads} + threadIdx.x;
  if (i >= threads) return;
  const int64_t num_dst = drawn.num_dst, total = block.indptr[num_dst];
  if (i == 0) *overflow = false;
  if (i < num_dst) block.sources[i] = drawn.nodes[i];
  if (i <= num_dst) block.t_indptr[i] = 0;
  Index* const ends = block.t_indptr + num_dst + 1;
  Index* const sources = block.sources + num_dst;
  if (i >= total && i < block.num_edges) {
    Index* const all[] = {block.rows,    block.cols,     block.t_rows, block.t_cols,
                          block.t_order, block.edge_ids, sources};
    for (Index* ids : all) ids[i] = -1;
    ends[i] = static_cast<Index>(total);
  }
  if (drawn.fanout == 0) return;
  const int64_t row = divide(i, drawn.fanout);
  if (row >= num_dst) return;
  int64_t slot = i - row * drawn.fanout;
  if (drawn.ascending) {
    // As many as are smaller; of equal ones, those before.
    const Index count = clamped(drawn.counts, row, static_cast<Index>(drawn.fanout));
    if (slot >= count) return;
    const Index offset = drawn.offsets[i];
    const Index* const offsets = drawn.offsets + (i - slot);
    int64_t smaller = 0;
    for (Index other = 0; other < count; ++other)
      smaller += offsets[other] < offset || (offsets[other] == offset && other < slot);
    slot = smaller;
  }
  const int64_t e = block.indptr[row] + slot;
  if (e >= block.indptr[row + 1]) return;
  const Index place = drawn.starts[row] + drawn.offsets[i];
  const auto bound = static_cast<std::make_unsigned_t<Index>>(drawn.num_whole);
  const Index node = is_id(place, bound) ? drawn.cols[place] : Index(-1);
  const auto num_nodes = static_cast<std::make_unsigned_t<Index>>(drawn.num_nodes);
  sources[e] = is_id(node, num_nodes) ? node : Index(-1);
  block.rows[e] = block.t_cols[e] = static_cast<Index>(row);
  block.cols[e] = block.t_rows[e] = static_cast<Index>(num_dst + e);
  block.t_order[e] = static_cast<Index>(e);
  block.edge_ids[e] = place;
  ends[e] = static_cast<Index>(e + 1);
}

// --- Blocks of distinct nodes --------------------------------------------------------------------

// A run is what one node has of the sorted ids: the destinations that it is, then the edges from
// it. Where there is no destination the source is new. Of the destinations that are one node, the
// first has its edges.
template <typename Index>
struct Runs : Sorted<Index> {
  int64_t count;  // of the sorted ids

  __device__ bool is_node(int64_t i) const {
    return this->keys[i] < static_cast<std::make_unsigned_t<Index>>(this->num_nodes);
  }
  __device__ bool is_edge(int64_t i) const { return this->at[i] >= this->num_dst; }
  __device__ Index owner(int64_t i) const {
    const int64_t at = this->at[i];
    return this->seeds[at < this->num_dst ? at : this->rows[at - this->num_dst]];
  }
  // Whether two sorted ids are the same source. Both are nodes.
  __device__ bool same(int64_t i, int64_t j) const {
    return this->keys[i] == this->keys[j] && (this->seeds == nullptr || owner(i) == owner(j));
  }
  __device__ bool is_first(int64_t i) const { return i == 0 || !same(i - 1, i); }

  // The last place from i on, in steps of 1 or -1, up to which `holds`. It is found in as many
  // steps as its distance has bits, as most runs are short.
  template <typename Holds>
  __device__ int64_t last(int64_t i, int sign, const Holds& holds) const {
    const int64_t limit = sign > 0 ? count - 1 - i : i;
    int64_t low = 0, high = 1;  // it holds at low; and not at high, once that is found
    while (high <= limit && holds(i + sign * high)) {
      low = high;
      high *= 2;
    }
    if (high > limit) high = limit + 1;
    while (low + 1 < high) {
      const int64_t middle = low + (high - low) / 2;
      (holds(i + sign * middle) ? low : high) = middle;
    }
    return i + sign * low;
  }
  // The number of edges of the run whose first destination is i.
  __device__ Index edges_of(int64_t i) const {
    const auto is_own = [&](int64_t j) { return same(i, j); };
    const auto is_destination = [&](int64_t j) { return same(i, j) && !is_edge(j); };
    return static_cast<Index>(last(i, 1, is_own) - last(i, 1, is_destination));
  }
};

// Counts that many threads add to stand so far apart that they are in different parts of the cache.
constexpr int kCountStride = 32;

// Results of one kernel that the next ones read.
template <typename Index>
struct DistinctScratch {
  Index* sums;         // (3, tiles): new sources, edges, and those from destinations
  Index* counts;       // (num_dst,), edges from each destination
  Index* sources;      // (num_edges,), of each edge, -1 if it is left out
  Index* ranks;        // (num_edges,), edges of this source before it
  Index* edge_counts;  // (edge_tiles, kCountStride), first how many edges are not left out
  int64_t tiles, edge_tiles, dst_tiles;
};

// Counts at a place of the sorted ids: see DistinctScratch::sums. `edges_of` tells how many
// edges the destination there has as a source.
template <typename Index, typename EdgesOf>
__device__ __forceinline__ void parts_at(const Runs<Index>& runs, int64_t i, Index* parts,
                                         const EdgesOf& edges_of) {
  parts[0] = parts[1] = parts[2] = 0;
  if (i >= runs.count || !runs.is_node(i)) return;
  const bool is_first = runs.is_first(i);
  if (runs.is_edge(i)) {
    parts[0] = is_first;
    parts[1] = 1;
  } else if (is_first) {
    parts[2] = edges_of();
  }
}

template <typename Index>
__global__ void __launch_bounds__(kScanThreads, 1)
    distinct_sums_kernel(Runs<Index> runs, DistinctScratch<Index> scratch) {
  wait_for_previous_launch();
  __shared__ Index of_warps[32];
  const int64_t i = blockIdx.x * int64_t{kScanThreads} + threadIdx.x;
  Index parts[3];
  parts_at(runs, i, parts, [&] { return runs.edges_of(i); });
  for (int part = 0; part < 3; ++part) {
    const Index sum = sum_all(parts[part], of_warps);
    if (threadIdx.x == 0) scratch.sums[part * scratch.tiles + blockIdx.x] = sum;
  }
  if (i < runs.count && !runs.is_edge(i)) scratch.counts[runs.at[i]] = parts[2];
  if (i < scratch.edge_tiles) scratch.edge_counts[i * kCountStride] = 0;
  allow_next_launch();
}

// Sources, where their edges start, and what source each edge has. The last blocks do it for
// destinations, the others for all else.
template <typename Index>
__global__ void __launch_bounds__(kScanThreads, 1)
    distinct_sources_kernel(Runs<Index> runs, DistinctScratch<Index> scratch, Block<Index> block,
                            bool* overflow) {
  wait_for_previous_launch();
  __shared__ Index of_warps[32];
  const auto num_edges = static_cast<Index>(block.num_edges);
  if (blockIdx.x >= scratch.tiles) {
    write_starts(blockIdx.x - scratch.tiles, scratch.counts, runs.num_dst, num_edges, num_edges,
                 block.t_indptr, of_warps);
    allow_next_launch();
    return;
  }
  const int64_t i = blockIdx.x * int64_t{kScanThreads} + threadIdx.x, num_dst = runs.num_dst;
  Index parts[3], until[3], all[3];
  parts_at(runs, i, parts, [&] { return scratch.counts[runs.at[i]]; });
  for (int part = 0; part < 3; ++part) {
    Index before = 0, after = 0;
    for (int64_t tile = threadIdx.x; tile < scratch.tiles; tile += kScanThreads) {
      const Index sum = scratch.sums[part * scratch.tiles + tile];
      (tile < blockIdx.x ? before : after) += sum;
    }
    before = sum_all(before, of_warps);
    all[part] = before + sum_all(after, of_warps);
    until[part] = before + sum_until(parts[part], of_warps);
  }

  // Where the run starts, and where its edges do. Only the tile's first run may start before it.
  const bool exists = i < runs.count && runs.is_node(i);
  const bool is_edge = exists && runs.is_edge(i);
  const bool is_first = exists && runs.is_first(i);
  Index head = is_first ? static_cast<Index>(i) : Index(-1);
  Index first = is_edge && (is_first || !runs.is_edge(i - 1)) ? static_cast<Index>(i) : Index(-1);
  if (threadIdx.x == 0 && exists) {
    const auto is_own = [&](int64_t j) { return runs.same(i, j); };
    const auto is_edge_of_node = [&](int64_t j) { return runs.same(i, j) && runs.is_edge(j); };
    if (head < 0) head = static_cast<Index>(runs.last(i, -1, is_own));
    if (first < 0 && is_edge) first = static_cast<Index>(runs.last(i, -1, is_edge_of_node));
  }
  head = largest_until(head, of_warps);
  first = largest_until(first, of_warps);

  const int64_t used = num_dst + all[0];
  if (i == 0) *overflow = used > block.num_src;
  if (i < num_dst) block.sources[i] = runs.nodes[i];
  if (i >= used && i < block.num_src) block.sources[i] = -1;
  if (i >= used && i > num_dst && i <= block.num_src) block.t_indptr[i] = all[1];
  if (i < runs.count && runs.is_edge(i)) {
    Index source = -1;
    const int64_t e = runs.at[i] - num_dst;
    if (is_edge) {
      if (head == first) {
        source = static_cast<Index>(num_dst - 1 + until[0]);
        // Edges from destinations come first, then those of the new sources before.
        if (i == first && source > num_dst && source <= block.num_src)
          block.t_indptr[source] = all[2] + until[1] - 1 - until[2];
        if (source >= block.num_src) source = -1;
        if (i == first && source >= 0) block.sources[source] = static_cast<Index>(runs.keys[i]);
      } else {
        source = runs.at[head];
      }
      scratch.ranks[e] = static_cast<Index>(i - first);
      if (source >= 0) count_one(scratch.edge_counts + e / kScanThreads * kCountStride);
    }
    scratch.sources[e] = source;
  }
  allow_next_launch();
}

// The edges, by destination and by source: a thread for each, and for each destination. Those that
// have no source are left out if `drops`.
template <typename Index>
__global__ void __launch_bounds__(kScanThreads, 1)
    distinct_edges_kernel(Runs<Index> runs, DistinctScratch<Index> scratch, Block<Index> block,
                          bool drops) {
  wait_for_previous_launch();
  __shared__ Index of_warps[32];
  const int64_t e = blockIdx.x * int64_t{kScanThreads} + threadIdx.x, num_dst = runs.num_dst;
  const bool is_edge = e < block.num_edges;
  const Index source = is_edge ? scratch.sources[e] : Index(-1);
  Index before = 0, after = 0;
  for (int64_t tile = threadIdx.x; tile < scratch.edge_tiles; tile += kScanThreads)
    (tile < blockIdx.x ? before : after) += scratch.edge_counts[tile * kCountStride];
  before = sum_all(before, of_warps);
  const Index all = before + sum_all(after, of_warps);
  const Index edge_counts = before + sum_until(Index(source >= 0), of_warps) - (source >= 0);

  const Index drawn = runs.indptr[num_dst];
  if (e <= num_dst && !(drops && runs.indptr[e] < drawn))
    block.indptr[e] = drops ? all : runs.indptr[e];
  if (!is_edge) return;
  const Index row = runs.rows[e];
  if (drops && e < drawn) {  // rows that start here
    for (int64_t next = e > 0 ? runs.rows[e - 1] + 1 : 0; next <= row; ++next)
      block.indptr[next] = edge_counts;
  }
  const Index to = drops ? edge_counts : static_cast<Index>(e);
  if (!drops || source >= 0) {
    block.rows[to] = row;
    block.cols[to] = source;
    block.edge_ids[to] = runs.places[e];
  }
  if (e >= all) {
    block.t_rows[e] = block.t_cols[e] = block.t_order[e] = -1;
    if (drops) block.rows[e] = block.cols[e] = block.edge_ids[e] = -1;
  }
  if (source >= 0) {
    const int64_t place = block.t_indptr[source] + scratch.ranks[e];
    block.t_rows[place] = source;
    block.t_cols[place] = row;
    block.t_order[place] = to;
  }
}

}  // namespace jax_gnn::cuda
