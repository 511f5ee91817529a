#pragma once

#include <cstdint>

#include "../segment_matmul.h"
#include "parallel.h"

namespace jax_gnn::cpu {

// (T, Out): float, double, Half and BFloat16 to themselves, the half types to float too. The same
// bits on every run, whatever the number of threads.

// out[r, :] = activation(lhs[r, :] @ rhs[g] + bias[g]) for the rows r of group g, 0 for rows of no
// group. lhs: (num_rows, k), rhs: (num_groups, k, n), `transposed` (num_groups, n, k), bias:
// (num_groups, n) or null, out: (num_rows, n).
template <typename T, typename Out>
void segment_matmul(const ParallelFor& parallel_for, const Groups& groups, int64_t k, int64_t n,
                    bool transposed, Activation activation, const T* lhs, const T* rhs,
                    const T* bias, Out* out);

// out[g] = the sum over the rows r of group g of the outer products of lhs[r, :] and rhs[r, :].
// lhs: (num_rows, k), rhs: (num_rows, n), out: (num_groups, k, n).
template <typename T, typename Out>
void segment_outer(const ParallelFor& parallel_for, const Groups& groups, int64_t k, int64_t n,
                   const T* lhs, const T* rhs, Out* out);

}  // namespace jax_gnn::cpu
