// What scores of edges with relations are made of.
#pragma once

#include <cstdint>

#include "segments.h"

namespace jax_gnn {

// Scores of edges with relations, before their softmax: of each head h
// leaky(< x[rows[e], :], of_x[types[e], h, :] > + < value[cols[e], h, :], of_value[types[e], h, :]
// >).
template <typename T, typename Acc>
struct TypedScores {
  const int32_t* types;  // (count,), outside [0, num_types) the edge is padding
  int64_t num_types;
  const T* x;     // (num_rows, depth), which heads share
  const T* of_x;  // (num_types, heads * depth)
  int64_t depth;
  const T* value;     // (num_cols, width)
  const T* of_value;  // (num_types, width)
  Features features;  // of a value
  Acc slope;
};

}  // namespace jax_gnn
