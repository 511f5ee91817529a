#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "../segment_matmul.h"

namespace jax_gnn::cuda {

// How a kernel deals out rows. segment_matmul: `single` tiles have a block each, on Hopper; others
// have at most `tile` rows, and at most `blocks` blocks take `chunk` neighbouring ones of every
// blocks * chunk, or one range each if `chunk` is 0.
// segment_outer: `blocks` blocks take a range each, of whole groups if `chunk` is not 0.
struct MatmulSchedule {
  bool single;
  int64_t tile, chunk, blocks;
};

// Whether a product can have a block for each tile: a block holds two chunks of its rows at most,
// and looks through all groups. No other GPU than Hopper does it.
template <typename T, typename Out>
constexpr bool can_be_single(int64_t k, const Groups& groups) {
  constexpr int64_t kMaxBytes = 256, kMaxGroups = 1024;
  const int64_t bytes = k * static_cast<int64_t>(sizeof(T));
  return std::is_same_v<T, Out> && sizeof(T) <= 4 && bytes > 0 && bytes <= kMaxBytes &&
         bytes % 16 == 0 && groups.num_sizes <= kMaxGroups;
}

// Workspace of segment_outer: two results a block, and a note.
constexpr int64_t outer_workspace_bytes(int64_t blocks, int64_t k, int64_t n, int64_t acc_bytes) {
  return (2 * blocks * k * n * acc_bytes + 15) / 16 * 16 + 8 * blocks;
}

// (T, Acc, Out): float, double, __half and __nv_bfloat16, what they are added up in, and either of
// both. `exact`: float products in full precision rather than in tf32.

// out[s, :] = activation(scale[r] * (lhs[l, :] @ rhs[g]) + bias[g] + residual[s]) for the rows r of
// group g, read at l and written at s as `lists` says; activation(residual[s]) for rows of no
// group, and where no row is written. lhs: (num_lhs, k), rhs: (num_groups, k, n), `transposed`
// (num_groups, n, k), bias: (num_groups, n) or null, residual: (num_rows, n) or null, counts as 0,
// out: (num_rows, n).
template <typename T, typename Acc, typename Out>
cudaError_t segment_matmul(cudaStream_t stream, const MatmulSchedule& schedule,
                           const Groups& groups, int64_t k, int64_t n, bool transposed, bool exact,
                           Activation activation, const T* lhs, const T* rhs, const T* bias,
                           const Out* residual, const RowLists<Acc>& lists, Out* out);

// out[g] = the sum over the rows r of group g of scale[r] times the outer product of a row of lhs
// and one of rhs, as `lists` says. lhs: (num_lhs, k), rhs: (num_rhs, n), out: (num_groups, k, n).
template <typename T, typename Acc, typename Out>
cudaError_t segment_outer(cudaStream_t stream, const MatmulSchedule& schedule, const Groups& groups,
                          int64_t k, int64_t n, bool exact, bool deterministic, const T* lhs,
                          const T* rhs, const FactorLists<Acc>& lists, Out* out, void* workspace);

}  // namespace jax_gnn::cuda
