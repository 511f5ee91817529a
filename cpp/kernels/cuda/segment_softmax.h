#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../segments.h"

namespace jax_gnn::cuda {

// Both: (count, width) arrays, `rows` sorted (csr.cols and order are null); padding gets 0.

// y = exp(x) over the sum of its row's.
template <typename T, typename Acc>
cudaError_t segment_softmax(cudaStream_t stream, const Csr<int32_t>& csr, const T* x, int64_t width,
                            T* y, void* workspace, int64_t workspace_blocks);

// out = y * (t - sum over the row of y * t): derivative of the softmax y along t, and its own
// transpose.
template <typename T, typename Acc>
cudaError_t segment_softmax_tangent(cudaStream_t stream, const Csr<int32_t>& csr, const T* y,
                                    const T* t, int64_t width, T* out, void* workspace,
                                    int64_t workspace_blocks);

}  // namespace jax_gnn::cuda
