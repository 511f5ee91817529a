// Numbers of edge regions: loads and stores in words, conversions, and the functions that generated
// texts call (jax_gnn/_ops/edge_region/cuda_text.py).
#pragma once

#include "basics.cuh"
#include "edge_scores.cuh"
#include "pack.cuh"
#include "segment_messages.cuh"
#include "segment_ops.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kMaxArrays = 32;

// The arrays of a region, in the order of its inputs or of its outputs.
struct Arrays {
  void* at[kMaxArrays];
};

// kTies counts the entries that attain a maximum or minimum, which is another part; kExpSum adds up
// numbers times exp(score - maximum), where another part is the maximum of scores.
enum class Join { kSum, kMax, kMin, kTies, kExpSum };

#define JAX_GNN_EACH_SLOT(i) _Pragma("unroll") for (int i = 0; i < kVec; ++i)

// kCount numbers in words of kWord numbers, zeros where `valid` does not hold; kOnce where nothing
// else reads them.
template <int kWord, bool kOnce, int kCount, typename T>
__device__ __forceinline__ void load_numbers(bool valid, const T* from, T (&to)[kCount]) {
  if constexpr (sizeof(T) * kWord == 1) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = valid ? from[i] : T(0);
  } else {
    using W = Word<T, kWord>;
    W words[kCount / kWord] = {};
#pragma unroll
    for (int i = 0; i < kCount / kWord; ++i) {
      const W* const word = reinterpret_cast<const W*>(from) + i;
      if constexpr (kOnce)
        load_once_if(valid, word, words[i]);
      else
        load_if(valid, word, words[i]);
    }
    memcpy(to, words, sizeof(to));
  }
}

template <bool kOnce, typename T>
__device__ __forceinline__ void load_number(bool valid, const T* from, T& to) {
  T one[1];
  load_numbers<1, kOnce>(valid, from, one);
  to = one[0];
}

// Likewise kept out of the caches' way: results are not read here again.
template <int kWord, int kCount, typename T>
__device__ __forceinline__ void store_numbers(T* to, const T (&from)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += kWord) {
    if constexpr (sizeof(T) * kWord == 1) {
      to[i] = from[i];
    } else {
      Word<T, kWord> word;
      memcpy(&word, from + i, sizeof(word));
      __stcs(reinterpret_cast<Word<T, kWord>*>(to + i), word);
    }
  }
}

// Numbers of shared memory, in words.
template <int kWord, int kCount>
__device__ __forceinline__ void put_numbers(float* to, const float (&from)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += kWord) {
    Word<float, kWord> word;
    memcpy(&word, from + i, sizeof(word));
    *reinterpret_cast<Word<float, kWord>*>(to + i) = word;
  }
}
template <int kWord, int kCount>
__device__ __forceinline__ void take_numbers(const float* from, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += kWord) {
    const auto word = *reinterpret_cast<const Word<float, kWord>*>(from + i);
    memcpy(to + i, &word, sizeof(word));
  }
}

// The row of an array whose rows have kWidth numbers.
template <typename T, unsigned kWidth>
__device__ __forceinline__ T* row_of(void* array, Index row) {
  return row_at(static_cast<T*>(array), row, kWidth * static_cast<unsigned>(sizeof(T)));
}

template <typename T>
__device__ __forceinline__ T number(T value) {
  return value;
}
__device__ __forceinline__ float number(__half value) { return widen(value); }
__device__ __forceinline__ float number(__nv_bfloat16 value) { return widen(value); }

template <typename T, typename From>
__device__ __forceinline__ T cast(From value) {
  if constexpr (std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>) {
    T result;
    narrow(static_cast<float>(value), result);
    return result;
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != From(0);
  } else {
    return static_cast<T>(value);
  }
}

// Both operands are computed by all lanes, as they may need numbers of other lanes: a shuffle in a
// branch that some lanes do not take would wait for these for ever.
template <typename T>
__device__ __forceinline__ T select(bool which, T x, T y) {
  return which ? x : y;
}
template <typename T>
__device__ __forceinline__ T or_zero(bool valid, T x) {
  return valid ? x : T(0);
}
template <typename T>
__device__ __forceinline__ T absolute(T x) {
  return x < 0 ? -x : x;
}

// NaN wins.
template <typename T>
__device__ __forceinline__ T greater(T a, T b) {
  return extremum<true>(a, b);
}
template <typename T>
__device__ __forceinline__ T lesser(T a, T b) {
  return extremum<false>(a, b);
}
// In four instructions, a fifth of those of expf and a division. The power has the exponent's
// error, 2^-24 of x, which is 1e-6 of the result where that is 1e-6.
__device__ __forceinline__ float logistic(float x) {
  return approximate_reciprocal(1 + approximate_exp2(x * -1.44269504f));
}
__device__ __forceinline__ double logistic(double x) { return 1 / (1 + exp(-x)); }
// sin(x + kQuarters pi/2). The reduction of large arguments is a call: inlined, it is most of the
// code of a row.
__device__ __noinline__ float far_sine(float x, bool is_cosine) {
  return is_cosine ? cosf(x) : sinf(x);
}
template <int kQuarters>
__device__ __forceinline__ float sine(float x) {
  // Cody and Waite: pi/2 in three parts. The polynomials are those of Cephes (Moshier).
  const float quarters = rintf(x * 0.636619772f);
  float rest = fmaf(quarters, -1.57079625f, x);
  rest = fmaf(quarters, -7.54978942e-08f, rest);
  rest = fmaf(quarters, -5.39030295e-15f, rest);
  const int quadrant = static_cast<int>(quarters) + kQuarters;
  const float square = rest * rest;
  float sum = fmaf(-1.9515295891e-4f, square, 8.3321608736e-3f);
  sum = fmaf(fmaf(sum, square, -1.6666654611e-1f), square * rest, rest);
  float cosine = fmaf(2.443315711809948e-5f, square, -1.388731625493765e-3f);
  cosine = fmaf(cosine, square, 4.166664568298827e-2f);
  cosine = fmaf(cosine, square * square, fmaf(-0.5f, square, 1.0f));
  float value = quadrant & 1 ? cosine : sum;
  value = quadrant & 2 ? -value : value;
  if (fabsf(x) > 105615.0f) value = far_sine(x, kQuarters == 1);
  return value;
}
template <int kQuarters>
__device__ __forceinline__ double sine(double x) {
  return kQuarters == 1 ? cos(x) : sin(x);
}
// log1p of numbers from 0 to 1, in half the instructions: x + x^2 times a polynomial, which was
// fitted at 4,000 points. Within 1.3 units in the last place.
__device__ __forceinline__ float log1p_of_fraction(float x) {
  constexpr float kTerms[] = {-0.00382745266f, 0.0224889815f, -0.0619307756f,
                              0.111093156f,    -0.15605633f,  0.197806343f,
                              -0.249746814f,   0.333319843f,  -0.499999791f};
  float sum = kTerms[0];
#pragma unroll
  for (int i = 1; i < 9; ++i) sum = fmaf(sum, x, kTerms[i]);
  return fmaf(x * x, sum, x);
}
template <typename T>
__device__ __forceinline__ T sign(T x) {
  return x > 0 ? T(1) : x < 0 ? T(-1) : x;  // zeros and NaN are what they are
}
template <int kPower, typename T>
__device__ __forceinline__ T power(T x) {
  if constexpr (kPower < 0) {
    return T(1) / power<-kPower>(x);
  } else if constexpr (kPower == 0) {
    return T(1);
  } else if constexpr (kPower % 2 == 1) {
    return kPower == 1 ? x : x * power<kPower - 1>(x);
  } else {
    const T half = power<kPower / 2>(x);
    return half * half;
  }
}

// What `lanes` neighbouring lanes have, a power of two, joined. Called by the whole warp.
template <Join kJoin, typename T>
__device__ __forceinline__ T join(T a, T b) {
  if constexpr (kJoin == Join::kSum) return a + b;
  if constexpr (kJoin != Join::kSum) return extremum<kJoin == Join::kMax>(a, b);
}
template <Join kJoin, int kLanes, typename T>
__device__ __forceinline__ T join_lanes(T value) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2)
    value = join<kJoin>(value, __shfl_xor_sync(kWholeWarp, value, distance));
  return value;
}
template <Join kJoin, typename T>
__device__ __forceinline__ T neutral_of() {
  if constexpr (kJoin == Join::kSum) return T(0);
  if constexpr (kJoin != Join::kSum) return kLeast<kJoin == Join::kMax, T>;
}

}  // namespace
}  // namespace jax_gnn::cuda
