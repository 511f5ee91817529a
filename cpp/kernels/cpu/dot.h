// Sums over the elements of vectors, and of products of rows.
#pragma once

#include <cstdint>
#include <cstring>

#include "vector.h"

namespace jax_gnn::cpu {

template <typename V>
JAX_GNN_INLINE Element<V> sum_of_elements(V x) {
  constexpr int kHalf = sizeof(V) / sizeof(Element<V>) / 2;
  if constexpr (kHalf == 0) {
    return x;
  } else {
    Vector<Element<V>, kHalf> halves[2];
    std::memcpy(halves, &x, sizeof x);
    return sum_of_elements(halves[0] + halves[1]);
  }
}

// The sum of term<lanes>(k), which are elements k, k + 1 … of a sequence, over [0, count).
template <typename Acc, typename Term>
JAX_GNN_INLINE Acc sum_of_terms(int64_t count, const Term& term) {
  constexpr int kLanes = 32 / sizeof(Acc), kFew = 16 / sizeof(Acc);
  Acc sum = 0;
  int64_t k = 0;
  if (count >= kLanes) {
    auto sums = term.template operator()<kLanes>(0), more = sums - sums;
    for (k = kLanes; k + 2 * kLanes <= count; k += 2 * kLanes) {
      sums += term.template operator()<kLanes>(k);
      more += term.template operator()<kLanes>(k + kLanes);
    }
    for (; k + kLanes <= count; k += kLanes) sums += term.template operator()<kLanes>(k);
    sum = sum_of_elements(sums + more);
  }
  for (; k + kFew <= count; k += kFew) sum += sum_of_elements(term.template operator()<kFew>(k));
  for (; k < count; ++k) sum += term.template operator()<1>(k);
  return sum;
}

}  // namespace jax_gnn::cpu
