// The order of ids on a GPU: see ../cpu/segment_order.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace jax_gnn::cuda {

// The number of ids of scratch memory.
int64_t segment_order_scratch(int64_t count);

// order = the positions of `ids`, sorted by id, ids out of range last; the sort is stable.
template <typename Index>
cudaError_t segment_order(cudaStream_t stream, const Index* ids, int64_t count,
                          int64_t num_segments, Index* order, Index* scratch);

}  // namespace jax_gnn::cuda
