#pragma once

#include <cstdint>

#include "../segments.h"
#include "parallel.h"

namespace jax_gnn::cpu {

// out[e, h] = < a[rows[e], h, :], b[cols[e], h, :] >, 0 for padding. a: (num_rows, width),
// b: (num_cols, width), out: (count, heads). With `select` (its value and factor are not used) only
// features that match count. csr.order serves the weights of `select` alone.
template <typename T, typename Acc, typename Index>
void sddmm(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* a, const T* b,
           const Select<T, Acc>* select, Features features, Acc* out);

}  // namespace jax_gnn::cpu
