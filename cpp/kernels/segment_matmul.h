#pragma once

#include <cstdint>

#include "instances.h"

namespace jax_gnn {

enum class Activation : int64_t { kNone = 0, kRelu = 1, kSilu = 2, kGelu = 3, kTanh = 4 };

// Rows sorted by group. Sizes below 0 count as 0; rows past their sum belong to no group.
struct Groups {
  const int32_t* sizes;                     // (num_sizes,)
  const int32_t* offset;                    // (1,): sizes[offset] is the size of weight 0
  int64_t num_sizes, num_groups, num_rows;  // num_groups: of the weights
};

// Row lists of segment_matmul: the rows that it reads and writes, and their scales. Null:
// row i is row i of lhs, is written at i, or is multiplied with 1. Ids come from the user's arrays:
// kernels must check them all.
template <typename Acc>
struct RowLists {
  const int32_t* lhs_rows;  // (num_rows,): row i reads lhs[lhs_rows[i]], zeros where that is
                            // outside [0, num_lhs)
  int64_t num_lhs;          // rows of lhs
  const int32_t* out_rows;  // (num_rows,): row i is written at out_rows[i], nowhere where that is
                            // outside [0, num_rows)
  const int32_t* inverse;  // (num_rows,): which row of the product each row of the result is; zeros
                           // are written where that is outside [0, num_rows). As out_rows, or null.
                           // Kernels may write only what both agree on, and may leave what is
                           // neither written nor outside
  const Acc* scale;        // (num_rows,): factors of the products, before bias and activation

  bool any() const { return lhs_rows != nullptr || out_rows != nullptr || scale != nullptr; }
};

// Row lists of segment_outer. Rows for which either id is out of range are left out, whatever the
// row that the other names holds.
template <typename Acc>
struct FactorLists {
  const int32_t* lhs_rows;  // (num_rows,): row i reads lhs[lhs_rows[i]]
  int64_t num_lhs;          // rows of lhs
  const int32_t* rhs_rows;  // (num_rows,): row i reads rhs[rhs_rows[i]]
  int64_t num_rhs;          // rows of rhs
  const Acc* scale;         // (num_rows,): factors of the outer products

  bool any() const { return lhs_rows != nullptr || rhs_rows != nullptr || scale != nullptr; }
};

}  // namespace jax_gnn
