// Storage types and what arithmetic happens in: half types widen to float, all others are their own
// accumulators. Conversions are branch-free so that loops over them vectorise without compiler
// support for _Float16.
#pragma once

#include <cstdint>
#include <cstring>

namespace jax_gnn::cpu {

struct BFloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float widen(BFloat16 x) { return bits_to_float(static_cast<uint32_t>(x.bits) << 16); }

// Scaling by 2^112 moves the 5-bit exponent into the 8-bit one and normalises subnormals for free;
// only inf and NaN need the exponent filled up afterwards.
inline float widen(Half x) {
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const float scaled = bits_to_float(magnitude) * bits_to_float(0x77800000u);  // 2^112
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return bits_to_float(float_to_bits(scaled) | special | sign);
}

template <typename T>
inline T widen(T x) {
  return x;
}

template <typename T, typename Acc>
inline T narrow(Acc x) {
  return x;
}

// Round to nearest even; NaN stays NaN.
template <>
inline BFloat16 narrow<BFloat16>(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded)};
}

template <>
inline Half narrow<Half>(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal range: rebias the exponent by -112 and round the 13 lost bits to nearest even.
  const uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal range: adding 0.5 aligns the mantissa at 2^-24, and the addition itself rounds.
  const uint32_t subnormal = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x47800000u ? 0x7c00u : half;  // overflow and inf
  half = magnitude > 0x7f800000u ? 0x7e00u : half;   // NaN
  return {static_cast<uint16_t>(half | sign)};
}

}  // namespace jax_gnn::cpu
