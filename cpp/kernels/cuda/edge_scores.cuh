// Scores of edges, and weights from scores.
//
// Where scores are computed again it is by the same instructions: their bits must not differ, or
// the largest score's weight would be far from what it is where scores are large. Hence products
// that are not fused with what follows.
#pragma once

#include <limits>

#include "pack.cuh"

namespace jax_gnn::cuda {
namespace {

__device__ __forceinline__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double rounded_product(double a, double b) { return __dmul_rn(a, b); }

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

template <typename Acc>
constexpr Acc kLowest = std::numeric_limits<Acc>::lowest();

// Whether the LeakyReLU has its slope there: not at -inf, which stays what it is.
template <typename Acc>
__device__ __forceinline__ bool is_sloped(Acc x) {
  return x < 0 && x >= kLowest<Acc>;
}

template <typename Acc>
__device__ __forceinline__ Acc leaky(Acc x, Acc slope) {
  return is_sloped(x) ? rounded_product(slope, x) : x;
}

// To within a few digits of the last place where x is small; the softmax's largest weights are
// those.
__device__ __forceinline__ float quick_exponential(float x) {
  return approximate_exp2(x * 1.44269504f);
}
__device__ __forceinline__ double quick_exponential(double x) { return exp(x); }
__device__ __forceinline__ float quick_logarithm(float x) {
  return approximate_log2(x) * 0.693147181f;
}
__device__ __forceinline__ double quick_logarithm(double x) { return log(x); }

// sum += <vector, leaky(a + b)>
template <typename T, int kVec, typename Acc>
__device__ __forceinline__ void add_leaky(Acc& sum, Word<T, kVec> a, Word<T, kVec> b,
                                          const Acc (&vector)[kVec], Acc slope) {
  T left[kVec], right[kVec];
  memcpy(left, &a, sizeof(a));
  memcpy(right, &b, sizeof(b));
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const Acc z = widen(left[i]) + widen(right[i]);
    sum += vector[i] * (z > 0 ? z : slope * z);
  }
}

}  // namespace
}  // namespace jax_gnn::cuda
