#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../attention.h"
#include "../segments.h"

namespace jax_gnn::cuda {

// out[e, h] = < a[rows[e], h, :], b[cols[e], h, :] >, 0 for padding. a: (num_rows, width),
// b: (num_cols, width), out: (count, heads). With `select` (its value and factor are not used) only
// features that match count, and csr.order serves its weights. Without, order says where
// results go: those that it leaves out are not written. One launch.
template <typename T, typename Acc>
cudaError_t sddmm(cudaStream_t stream, const Csr<int32_t>& csr, const T* a, const T* b,
                  const Select<T, Acc>* select, Features features, Acc* out);

// out[e, h] = < vector[h, :], leaky(row_key[rows[e], h, :] + col_key[cols[e], h, :]) >, 0 for
// padding. vector: (width,), out: (count, heads). There is no order. One launch.
template <typename T, typename Acc>
cudaError_t leaky_scores(cudaStream_t stream, const Csr<int32_t>& csr, const Leaky<T, Acc>& leaky,
                         const Acc* vector, Features features, Acc* out);

}  // namespace jax_gnn::cuda
