// In place of CUDA's: what kernels are written with.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda_runtime_api.h"

#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __noinline__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

// ---- Warps and blocks

inline void __syncthreads() { emulator::meet(false); }
inline int __syncthreads_or(int value) { return emulator::meet(value != 0); }
inline void __syncwarp(unsigned mask = ~0u) {
  emulator::exchange(emulator::Instruction::kSync, mask, 0);
}
inline unsigned __ballot_sync(unsigned mask, int value) {
  const emulator::Lanes& lanes =
      emulator::exchange(emulator::Instruction::kBallot, mask, value != 0);
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= static_cast<unsigned>(lanes[i]) << i;
  return result;
}
inline int __all_sync(unsigned mask, int value) { return __ballot_sync(mask, value) == mask; }
inline int __any_sync(unsigned mask, int value) { return __ballot_sync(mask, value) != 0; }

namespace emulator {
// The value of lane `from`, if that is one of a warp's; else the thread's own.
template <typename T>
T shuffle(unsigned mask, T value, int from) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const Lanes& lanes = exchange(Instruction::kShuffle, mask, bits);
  if (from < 0 || from > 31) return value;
  if (!(mask >> from & 1)) fail("a shuffle from a lane that its mask leaves out");
  std::memcpy(&value, &lanes[from], sizeof(T));
  return value;
}
}  // namespace emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int first = static_cast<int>(threadIdx.x % 32) & -width;
  return emulator::shuffle(mask, value, first | (from & (width - 1)));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
  return emulator::shuffle(mask, value, static_cast<int>(threadIdx.x % 32 - distance));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
  return emulator::shuffle(mask, value, static_cast<int>(threadIdx.x % 32 + distance));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return emulator::shuffle(mask, value, static_cast<int>(threadIdx.x % 32) ^ bits);
}

// ---- Memory

namespace emulator {
// GPUs take words at multiples of their size only.
template <typename T>
T* checked(T* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) != 0) fail("a word that is not aligned");
  return at;
}
}  // namespace emulator

template <typename T>
T __ldg(const T* from) {
  return *emulator::checked(from);
}
template <typename T>
T __ldcs(const T* from) {
  return *emulator::checked(from);
}
template <typename T>
void __stcs(T* to, T value) {
  *emulator::checked(to) = value;
}
template <typename T>
T atomicAdd(T* to, T value) {
  const T old = *to;
  *to += value;
  return old;
}
inline int atomicMin(int* to, int value) {
  const int old = *to;
  *to = value < old ? value : old;
  return old;
}

// ---- Arithmetic

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
inline int __clz(unsigned x) { return x == 0 ? 32 : __builtin_clz(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof x);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }

// As CUDA has them: of mixed types, and numbers win over NaN.
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(T(a), T(b));
  return T(b) < T(a) ? T(b) : T(a);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(T(a), T(b));
  return T(a) < T(b) ? T(b) : T(a);
}
