#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "../segments.h"
#include "segment_reduce.h"

namespace jax_gnn::cuda {

// A text of edge_region.cuh that was compiled, and how it deals out its slots.
struct RegionText {
  std::string_view code, digest, name;  // see loaded_kernel
  int64_t slots, vec, unroll, parts, acc_bytes;
  int64_t shared;  // bytes of matrices and tiles, see Together

  // Numbers of a workspace for each slot, as RegionOp has them.
  int64_t room() const { return (parts + vec - 1) / vec; }
};

constexpr size_t kMaxRegionArrays = 32;

// Loads the text ahead of its first launch, which may be recorded.
cudaError_t load_region(const RegionText& text);

// Goes through the entries: one launch, no allocation, no synchronisation, the same bits on every
// run. `in` and `out`: the arrays, kMaxRegionArrays each. The workspace has `schedule.blocks` rows
// of workspace_bytes(slots * room) bytes each, 16-byte aligned. There must be entries.
cudaError_t edge_region(cudaStream_t stream, const Schedule& schedule, const Csr<int32_t>& csr,
                        const RegionText& text, void* const* in, void* const* out, void* workspace);

}  // namespace jax_gnn::cuda
