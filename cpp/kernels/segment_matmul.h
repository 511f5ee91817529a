#pragma once

#include <cstdint>

namespace jax_gnn {

enum class Activation : int64_t { kNone = 0, kRelu = 1, kSilu = 2, kGelu = 3, kTanh = 4 };

// Rows sorted by group. Sizes below 0 count as 0; rows past their sum belong to no group.
struct Groups {
  const int32_t* sizes;                     // (num_sizes,)
  const int32_t* offset;                    // (1,): sizes[offset] is the size of weight 0
  int64_t num_sizes, num_groups, num_rows;  // num_groups: of the weights
};

// Which rows a product reads and where it writes them; null: row i itself, at i, times 1. Whatever
// ids hold, nothing is read or written elsewhere.
template <typename Acc>
struct RowLists {
  const int32_t* lhs_rows;  // (num_rows,): row i reads lhs[lhs_rows[i]], zeros where out of range
  int64_t num_lhs;          // rows of lhs
  const int32_t* out_rows;  // (num_rows,): row i is written there, not at all where out of range
  const int32_t* inverse;   // (num_rows,): which row is written at each place, 0 where out of range
  const Acc* scale;         // (num_rows,): factors of the products, before bias and activation

  __host__ __device__ bool any() const {
    return lhs_rows != nullptr || out_rows != nullptr || scale != nullptr;
  }
};

// The same of both factors of a sum of outer products.
template <typename Acc>
struct FactorLists {
  const int32_t* lhs_rows;
  int64_t num_lhs;
  const int32_t* rhs_rows;
  int64_t num_rhs;
  const Acc* scale;

  __host__ __device__ bool any() const {
    return lhs_rows != nullptr || rhs_rows != nullptr || scale != nullptr;
  }
};

}  // namespace jax_gnn
