// Exponentials of vectors, within about an ulp; exact at 0, 0 for -inf, NaN for NaN. Reduction of
// the argument and polynomials after Cephes (S. L. Moshier, expf.c and exp.c). And logarithms.
#pragma once

#include <cstdint>

#include "vector.h"

namespace jax_gnn::cpu {

// A maximum to take exponents relative to; one that is not finite speaks for itself.
template <typename V>
JAX_GNN_INLINE V finite_or_zero(V maximum) {
  const V zero = broadcast<V>(0);
  return maximum - maximum == zero ? maximum : zero;
}

// Constants of the exponential, by dtype.
template <typename Acc>
struct ExpOf;

template <>
struct ExpOf<float> {
  using Bits = uint32_t;
  using SignedBits = int32_t;
  static constexpr int kMantissa = 23, kBias = 127;
  static constexpr float kLowest = -104, kHighest = 89;  // beyond these the result is 0, inf
  static constexpr float kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;
  static constexpr float kRound = 0x1.8p23f;  // adding this rounds to an integer

  template <typename V>
  static JAX_GNN_INLINE V reduced(V r) {
    V p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * (r * r) + r + 1.0f;
  }
};

template <>
struct ExpOf<double> {
  using Bits = uint64_t;
  using SignedBits = int64_t;
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr double kLowest = -746, kHighest = 710;
  static constexpr double kLog2High = 6.93145751953125e-1, kLog2Low = 1.42860682030941723212e-6;
  static constexpr double kRound = 0x1.8p52;

  template <typename V>
  static JAX_GNN_INLINE V reduced(V r) {
    const V square = r * r;
    V p = 1.26177193074810590878e-4 * square + 3.02994407707441961300e-2;
    p = (p * square + 9.99999999999999999910e-1) * r;
    V q = 3.00198505138664455042e-6 * square + 2.52448340349684104192e-3;
    q = q * square + 2.27265548208155028766e-1;
    q = q * square + 2.00000000000000000005e0;
    return 2.0 * (p / (q - p)) + 1.0;
  }
};

// exp(x) is 2^power times reduced(r).
template <int kLanes, typename V>
struct Reduction {
  using E = ExpOf<Element<V>>;
  using Bits = Vector<typename E::Bits, kLanes>;
  using Power = Vector<typename E::SignedBits, kLanes>;
  V r;
  Power power;

  JAX_GNN_INLINE explicit Reduction(V x) {
    const V shifted = x * Element<V>(1.44269504088896340736) + E::kRound;
    const V rounded = shifted - E::kRound;
    r = x - rounded * E::kLog2High - rounded * E::kLog2Low;
    power = bit_cast<Power>(bit_cast<Bits>(shifted) - bit_cast<Bits>(broadcast<V>(E::kRound)));
  }

  static JAX_GNN_INLINE V power_of_two(Power n) {
    return bit_cast<V>((bit_cast<Bits>(n) + E::kBias) << E::kMantissa);
  }
};

template <int kLanes, typename V>
JAX_GNN_INLINE V exp(V x) {
  using E = ExpOf<Element<V>>;
  const V low = broadcast<V>(E::kLowest), high = broadcast<V>(E::kHighest);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Reduction<kLanes, V> reduction(x);
  // Twice the square root of the power of two: each is a normal number.
  const auto half = reduction.power >> 1;
  return E::reduced(reduction.r) * reduction.power_of_two(half) *
         reduction.power_of_two(reduction.power - half);
}

// The exponential where |x| is at most 80: the result is a normal number.
template <int kLanes, typename V>
JAX_GNN_INLINE V exp_of_small(V x) {
  const Reduction<kLanes, V> reduction(x);
  return ExpOf<Element<V>>::reduced(reduction.r) * reduction.power_of_two(reduction.power);
}

// Logarithms of numbers from 2^-64 to 2^64, inf and NaN: a number's bits are one to within 0.06,
// and Halley's steps cube the error, but for that of the exponential.
template <int kLanes, typename V>
JAX_GNN_INLINE V log(V x) {
  using E = ExpOf<Element<V>>;
  constexpr int kSteps = sizeof(Element<V>) == 4 ? 2 : 3;
  constexpr auto kUnit = typename E::Bits{1} << E::kMantissa;
  constexpr auto kLog2 = Element<V>(0.69314718055994530942);
  const auto bits = bit_cast<typename Reduction<kLanes, V>::Power>(x) -
                    static_cast<typename E::SignedBits>(E::kBias * kUnit);
  V y = convert<V>(bits) * (kLog2 / static_cast<Element<V>>(kUnit));
  JAX_GNN_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    const V power = exp<kLanes>(y);
    y += 2 * (x - power) / (x + power);
  }
  return x - x == 0 ? y : x;
}

}  // namespace jax_gnn::cpu
