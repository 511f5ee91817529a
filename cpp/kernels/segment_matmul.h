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

}  // namespace jax_gnn
