// Sums over the elements of vectors, and of products of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "half.h"
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

// The sums of the elements of each of as many vectors of 32 bytes as have elements.
JAX_GNN_INLINE Vector<float, 8> sums_of_vectors(const Vector<float, 8> (&x)[8]) {
  using V = Vector<float, 8>;
  const auto pairs = [](V a, V b) JAX_GNN_LAMBDA {  // of neighbours, in halves of 16 bytes
    return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
  };
  const V low = pairs(pairs(x[0], x[1]), pairs(x[2], x[3]));
  const V high = pairs(pairs(x[4], x[5]), pairs(x[6], x[7]));
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
}
JAX_GNN_INLINE Vector<double, 4> sums_of_vectors(const Vector<double, 4> (&x)[4]) {
  using V = Vector<double, 4>;
  const auto pairs = [](V a, V b) JAX_GNN_LAMBDA {
    return __builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7);
  };
  const V low = pairs(x[0], x[1]), high = pairs(x[2], x[3]);
  return __builtin_shufflevector(low, high, 0, 1, 4, 5) +
         __builtin_shufflevector(low, high, 2, 3, 6, 7);
}

// The sum of term<lanes>(k), which are elements k, k + 1 … of a sequence, over [0, count).
template <typename Acc, typename Term>
JAX_GNN_INLINE Acc sum_of_terms(int64_t count, const Term& term) {
  constexpr int kLanes = 32 / sizeof(Acc), kFew = 16 / sizeof(Acc);
  Acc sum = 0;
  int64_t k = 0;
  if (count >= kLanes) {
    auto sums = term.template operator()<kLanes>(0), odd_sums = sums - sums;
    for (k = kLanes; k + 2 * kLanes <= count; k += 2 * kLanes) {
      sums += term.template operator()<kLanes>(k);
      odd_sums += term.template operator()<kLanes>(k + kLanes);
    }
    for (; k + kLanes <= count; k += kLanes) sums += term.template operator()<kLanes>(k);
    sum = sum_of_elements(sums + odd_sums);
  }
  for (; k + kFew <= count; k += kFew) sum += sum_of_elements(term.template operator()<kFew>(k));
  for (; k < count; ++k) sum += term.template operator()<1>(k);
  return sum;
}

// sums[i] = the sum of all terms(i)<lanes>(k) over [0, count), for i in [0, size). The order of
// additions does not depend on i, so that a sum has the same bits wherever it is asked for.
template <typename Acc, typename Terms>
JAX_GNN_INLINE void sums_of_terms(int64_t size, int64_t count, const Terms& terms, Acc* sums) {
  constexpr int kLanes = 32 / sizeof(Acc);
  if (count == 0 || count % kLanes != 0) {
    for (int64_t i = 0; i < size; ++i) sums[i] = sum_of_terms<Acc>(count, terms(i));
    return;
  }
  for (int64_t i = 0; i < size; i += kLanes) {  // several at once, the last ones over again
    const int64_t left = std::min<int64_t>(size - i, kLanes);
    Vector<Acc, kLanes> lane_sums[kLanes];
    unrolled<kLanes>([&](int lane) JAX_GNN_LAMBDA {
      const auto term = terms(i + std::min<int64_t>(lane, left - 1));
      lane_sums[lane] = term.template operator()<kLanes>(0);
      for (int64_t k = kLanes; k < count; k += kLanes)
        lane_sums[lane] += term.template operator()<kLanes>(k);
    });
    const auto result = sums_of_vectors(lane_sums);
    std::memcpy(sums + i, &result, left * sizeof(Acc));
  }
}

// Terms of the dot of two rows.
template <typename T>
struct RowProduct {
  const T *a, *b;

  template <int kLanes>
  JAX_GNN_INLINE auto operator()(int64_t k) const {
    return load<kLanes>(a + k) * load<kLanes>(b + k);
  }
};

}  // namespace jax_gnn::cpu
