#pragma once

#include <cstdint>

#include "../segments.h"
#include "parallel.h"

namespace jax_gnn::cpu {

// Operands and results are (count, width), `rows` sorted; csr.cols and order are null; padding gets
// 0. The workspace has `blocks` rows of workspace_bytes(...) bytes each, 16-byte aligned.

// y = exp(x) over the sum of its row's.
template <typename T, typename Acc, typename Index>
void segment_softmax(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* x,
                     int64_t width, T* y);

// out = y * (t - sum over the row of y * t): derivative of the softmax y along t, and its own
// transpose.
template <typename T, typename Acc, typename Index>
void segment_softmax_tangent(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* y,
                             const T* t, int64_t width, T* out);

}  // namespace jax_gnn::cpu
