#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../csr.h"

namespace jax_gnn::cuda {

// What a launch may do before the one ahead of it in the stream has ended.
enum class Start {
  kWaits,
  // The one ahead is a gather_reduce that writes `in` and nothing else that is read here: find out
  // which rows to gather, then wait.
  kReadsAhead,
};

// Both functions make at most one launch, on `stream`, without allocation or synchronisation, and
// give the same bits on every run. Ids outside [0, csr.cols) are padding: skipped, their features
// and scales never read. Row bounds are clamped to [0, csr.nnz]. Features are row-major.

// out[r, :] = row_scale[r] * sum_{j in row r} col_scale[c_j] * in[c_j, :]; a null scale means ones.
// in: (cols, width), col_scale: (cols,), row_scale: (rows,), out: (rows, width). A row with no
// entries is zero whatever its scale. The sum is taken in Scale.
template <typename In, typename Out, typename Scale, typename Index>
cudaError_t gather_reduce(cudaStream_t stream, Start start, const Csr<Index>& csr, const In* in,
                          const Scale* col_scale, const Scale* row_scale, Out* out, int64_t width);

// out[r] = < sum_{j in row r} x_scale[c_j] x[c_j, :], sum_{j in row r} y_scale[c_j] y[c_j, :] >
// x, y: (cols, width), x_scale, y_scale: (cols,) or null, out: (rows,). Sums are taken in Scale.
template <typename T, typename Scale, typename Index>
cudaError_t gather_dot(cudaStream_t stream, const Csr<Index>& csr, const T* x, const Scale* x_scale,
                       const T* y, const Scale* y_scale, Scale* out, int64_t width);

}  // namespace jax_gnn::cuda
