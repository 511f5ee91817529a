// Sampled neighbourhoods on a GPU: see ../sample_block.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../sample_block.h"

namespace jax_gnn::cuda {

// Draws up to `fanout` of the `degrees[row]` edges of each row, all equally likely: offsets
// (num_rows, fanout), of which the first counts[row] count.
template <typename Index>
cudaError_t sample_uniform(cudaStream_t stream, const Random& random, const Index* degrees,
                           int64_t num_rows, int64_t fanout, bool replace, Index* offsets,
                           Index* counts);

// Builds the block of a tree, each of whose edges has a source of its own: num_src is
// num_dst + num_edges. No edge is left out: overflow is false.
template <typename Index>
cudaError_t sample_tree(cudaStream_t stream, const Drawn<Index>& drawn, const Block<Index>& block,
                        bool* overflow);

// The number of ids of scratch memory of sample_distinct.
int64_t distinct_scratch(int64_t num_dst, int64_t num_edges, int64_t num_src);

// Builds the block of which each node is one source. Edges from the largest ids, which there is no
// room for, are left out: overflow is true.
template <typename Index>
cudaError_t sample_distinct(cudaStream_t stream, const Sorted<Index>& sorted,
                            const Block<Index>& block, Index* scratch, bool* overflow);

}  // namespace jax_gnn::cuda
