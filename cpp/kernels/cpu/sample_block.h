// Sampled neighbourhoods: which edges of each row are drawn, and the block that is built of these.
// Both give what jax_gnn/sampling/_draw.py and _blocks.py compute, bit for bit.
#pragma once

#include <cstdint>

#include "parallel.h"

namespace jax_gnn::cpu {

// Which random numbers a draw takes: two words of a key, and a stream below 256.
struct Random {
  uint32_t key[2];
  uint32_t stream;
};

// Draws up to `fanout` of the `degrees[row]` edges of each row, all equally likely: offsets
// (num_rows, fanout), of which the first counts[row] count.
template <typename Index>
void sample_uniform(const ParallelFor& parallel_for, const Random& random, const Index* degrees,
                    int64_t num_rows, int64_t fanout, bool replace, Index* offsets, Index* counts);

// The same in proportion to integers of the edges, one after another: differences of `sums`, modulo
// 2^32, which those of a row do not exceed.
template <typename Index>
struct Weighted {
  const uint32_t* sums;  // (num_whole + 1,)
  const Index* starts;   // (num_rows,), where rows start
  const Index* degrees;  // (num_rows,)
  int64_t num_rows, num_whole;
};
template <typename Index>
void sample_weighted(const ParallelFor& parallel_for, const Random& random,
                     const Weighted<Index>& rows, int64_t fanout, bool replace, Index* offsets,
                     Index* counts);

// What was drawn of the edges into nodes; and how many sources a block has room for.
template <typename Index>
struct Drawn {
  const Index* nodes;    // (num_dst,), ids of the destinations; out of range: padding
  const Index* starts;   // (num_dst,), where their edges start
  const Index* offsets;  // (num_dst, fanout), which of these were drawn
  const Index* counts;   // (num_dst,), how many of them count
  const Index* cols;     // (num_whole,), where each edge of the whole graph comes from
  const Index* seeds;    // (num_dst,), if nodes of different seeds are different sources; or null
  int64_t num_dst, fanout, num_whole, num_nodes;
};

// The arrays of a jax_gnn.Graph with num_edges edges from num_src sources, and the sources' ids.
template <typename Index>
struct Block {
  Index *indptr, *rows, *cols, *t_indptr, *t_rows, *t_cols, *t_order, *edge_ids, *sources;
  int64_t num_edges, num_src;
};

// Builds a block. Of a `tree` each edge has a source of its own: num_src is num_dst + num_edges.
// Otherwise each node, or each node of a seed, is one source. Gives whether there were more than
// num_src, so that edges were left out.
template <typename Index>
bool sample_block(const ParallelFor& parallel_for, bool tree, const Drawn<Index>& drawn,
                  const Block<Index>& block);

}  // namespace jax_gnn::cpu
