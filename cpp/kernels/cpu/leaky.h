#pragma once

#include <limits>

#include "vector.h"

namespace jax_gnn::cpu {

// LeakyReLU, without a branch, which nobody could predict; NaN stays.
template <typename V, typename Acc>
JAX_GNN_INLINE V leaky(V z, Acc slope) {
  const V zero = broadcast<V>(Acc(0));
  return (zero < z ? z : zero) + slope * (zero < z ? zero : z);
}

// LeakyReLU of a score: -inf stays -inf, whatever the slope is.
template <typename V, typename Acc>
JAX_GNN_INLINE V leaky_score(V z, Acc slope) {
  const V least = broadcast<V>(std::numeric_limits<Acc>::lowest());
  return z < least ? z : leaky(z, slope);
}

// The derivative of leaky.
template <typename V, typename Acc>
JAX_GNN_INLINE V leaky_slope(V z, Acc slope) {
  return z >= 0 ? broadcast<V>(Acc(1)) : broadcast<V>(slope);
}

}  // namespace jax_gnn::cpu
