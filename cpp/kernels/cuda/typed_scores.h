#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../typed_scores.h"

namespace jax_gnn::cuda {

// out: (count, heads), 0 for padding. There is no order. One launch.
template <typename T, typename Acc>
cudaError_t typed_scores(cudaStream_t stream, const Csr<int32_t>& csr,
                         const TypedScores<T, Acc>& scores, Acc* out);

}  // namespace jax_gnn::cuda
