// Half-precision storage types. Arithmetic happens in float; conversions are branch-free and work
// on vectors as on single numbers, without compiler support for _Float16.
#pragma once

#include <cstdint>
#include <cstring>

#include "vector.h"

namespace jax_gnn::cpu {

struct BFloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

// Half types accumulate in float, all others in themselves.
template <typename T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<BFloat16> {
  using type = float;
};
template <>
struct AccumulatorOf<Half> {
  using type = float;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::type;

// Below, U is uint32_t or a vector of them, F the same of float.

template <typename F, typename U>
JAX_GNN_INLINE F widen_bits(BFloat16, U bits) {
  return bit_cast<F>(bits << 16);
}

// The 5-bit exponent becomes an 8-bit one by adding 112; that of inf and NaN is filled up.
// Subnormal numbers get the exponent of 2^-14 and lose that again: no step of it has a subnormal
// float, which XLA's threads take for 0.
template <typename F, typename U>
JAX_GNN_INLINE F widen_bits(Half, U bits) {
  const U magnitude = (bits & 0x7fffu) << 13;
  const U sign = (bits & 0x8000u) << 16;
  const U special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  const U normal = (magnitude + 0x38000000u) | special;
  const U subnormal = bit_cast<U>(bit_cast<F>(magnitude + 0x38800000u) - 0x1p-14f);
  return bit_cast<F>((magnitude < 0x00800000u ? subnormal : normal) | sign);
}

// Round to nearest even; NaN stays NaN.
template <typename U, typename F>
JAX_GNN_INLINE U narrow_bits(BFloat16, F x) {
  const U bits = bit_cast<U>(x);
  const U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U quiet = (bits >> 16) | 0x40u;
  return (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
}

template <typename U, typename F>
JAX_GNN_INLINE U narrow_bits(Half, F x) {
  const U bits = bit_cast<U>(x);
  const U sign = (bits >> 16) & 0x8000u;
  const U magnitude = bits & 0x7fffffffu;
  // Normal range: rebias the exponent by -112 and round the 13 lost bits to nearest even.
  const U normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal range: adding 0.5 aligns the mantissa at 2^-24, and the addition itself rounds.
  const U subnormal = bit_cast<U>(bit_cast<F>(magnitude) + 0.5f) - 0x3f000000u;
  const U infinite = magnitude - magnitude + 0x7c00u, nan = infinite + 0x200u;
  U half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x47800000u ? infinite : half;  // overflow and inf
  half = magnitude > 0x7f800000u ? nan : half;
  return half | sign;
}

// kLanes consecutive numbers, widened.
template <int kLanes, typename T>
JAX_GNN_INLINE Vector<Accumulator<T>, kLanes> load(const T* from) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    Vector<T, kLanes> value;
    std::memcpy(&value, from, sizeof value);
    return value;
  } else {
    Vector<uint16_t, kLanes> bits;
    std::memcpy(&bits, from, sizeof bits);
    return widen_bits<Vector<float, kLanes>>(T{}, convert<Vector<uint32_t, kLanes>>(bits));
  }
}

// Writes kLanes consecutive numbers, narrowed.
template <int kLanes, typename T>
JAX_GNN_INLINE void store(T* to, Vector<Accumulator<T>, kLanes> value) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    std::memcpy(to, &value, sizeof value);
  } else {
    const auto bits =
        convert<Vector<uint16_t, kLanes>>(narrow_bits<Vector<uint32_t, kLanes>>(T{}, value));
    std::memcpy(to, &bits, sizeof bits);
  }
}

// Rounds to the dtype of storage, and back.
template <typename T, int kLanes, typename V>
JAX_GNN_INLINE V rounded(V value) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    return value;
  } else {
    return widen_bits<V>(T{}, narrow_bits<Vector<uint32_t, kLanes>>(T{}, value));
  }
}

template <typename T>
JAX_GNN_INLINE Accumulator<T> widen(T x) {
  return load<1>(&x);
}

template <typename T>
JAX_GNN_INLINE T narrow(Accumulator<T> x) {
  T result;
  store<1>(&result, x);
  return result;
}

#define JAX_GNN_FOR_FLOATS(INSTANTIATE) JAX_GNN_FOR_FLOATS_AND(INSTANTIATE, Half, BFloat16)

}  // namespace jax_gnn::cpu
