#pragma once

#include <cstdint>

#include "../segment_matmul.h"
#include "parallel.h"

namespace jax_gnn::cpu {

// (T, Acc, Out): float, double, Half and BFloat16, what they are added up in, and either of both.
// The same bits on every run, whatever the number of threads.

// out[s, :] = activation(scale[r] * (lhs[l, :] @ rhs[g]) + bias[g] + residual[s]) for the rows r of
// group g, read at l and written at s as `lists` says; activation(residual[s]) for rows of no
// group, and where no row is written. lhs: (num_lhs, k), rhs: (num_groups, k, n), `transposed`
// (num_groups, n, k), bias: (num_groups, n) or null, residual: (num_rows, n) or null, counts as 0,
// out: (num_rows, n).
template <typename T, typename Acc, typename Out>
void segment_matmul(const ParallelFor& parallel_for, const Groups& groups, int64_t k, int64_t n,
                    bool transposed, Activation activation, const T* lhs, const T* rhs,
                    const T* bias, const Out* residual, const RowLists<Acc>& lists, Out* out);

// out[g] = the sum over the rows r of group g of scale[r] times the outer product of a row of lhs
// and one of rhs, as `lists` says. lhs: (num_lhs, k), rhs: (num_rhs, n), out: (num_groups, k, n).
template <typename T, typename Acc, typename Out>
void segment_outer(const ParallelFor& parallel_for, const Groups& groups, int64_t k, int64_t n,
                   const T* lhs, const T* rhs, const FactorLists<Acc>& lists, Out* out);

}  // namespace jax_gnn::cpu
