// Sampled neighbourhoods on a CPU: see ../sample_block.h.
#pragma once

#include <cstdint>

#include "../sample_block.h"
#include "parallel.h"

namespace jax_gnn::cpu {

// Draws up to `fanout` of the `degrees[row]` edges of each row, all equally likely: offsets
// (num_rows, fanout), of which the first counts[row] count.
template <typename Index>
void sample_uniform(const ParallelFor& parallel_for, const Random& random, const Index* degrees,
                    int64_t num_rows, int64_t fanout, bool replace, Index* offsets, Index* counts);

// Draws edges one after another, in proportion to their integer weights: differences of `sums`,
// modulo 2^32, which those of a row do not exceed.
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

// Builds a block. Of a `tree` each edge has a source of its own: num_src is num_dst + num_edges.
// Otherwise each node, or each node of a seed, is one source. Gives whether there were more than
// num_src, so that edges were left out.
template <typename Index>
bool sample_block(const ParallelFor& parallel_for, bool tree, const Drawn<Index>& drawn,
                  const Block<Index>& block);

}  // namespace jax_gnn::cpu
