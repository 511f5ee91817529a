// Pairs of rows and relations on a GPU: see ../relation_pairs.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../relation_pairs.h"

namespace jax_gnn::cuda {

// The number of ids of scratch memory.
int64_t relation_pairs_scratch(int64_t num_edges, int64_t num_relations, int64_t num_pairs);

template <typename Index>
cudaError_t relation_pairs(cudaStream_t stream, const TypedRows<Index>& edges,
                           const RelationPairs<Index>& pairs, Index* scratch);

}  // namespace jax_gnn::cuda
