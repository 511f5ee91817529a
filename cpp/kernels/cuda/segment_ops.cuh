// The operators of segment reductions. They work on runs: arrays of kParts accumulators for kVec
// features of the entries joined so far. An entry's features enter by `from`, runs are joined by
// `combine`, the earlier one first, and a row's result leaves by `finish`, as
// Results. Their tails take kRoom times a workspace of their width. Needs nothing but the numbers;
// empty rows and NaN come out as jax.ops has them.
//
// kZeroIsNeutral: what `from` makes of zeros changes no run, so that padding is read as zeros.
// kCounts: the last part is the number of entries; needs is_linear.
#pragma once

#include <limits>
#include <type_traits>

#include "ptx.cuh"

namespace jax_gnn::cuda {
namespace {

// Whether runs are sums of features, so that kernels may add features to them in the place of
// `from` and `combine`. Only what is declared here is: an operator that derives from a sum and has
// another `from`, such as a sum of squares, is not.
template <class Op>
constexpr bool is_linear = false;

template <typename Acc, int kVec_>
struct SumOp {
  using Result = Acc;
  static constexpr int kVec = kVec_, kParts = kVec, kRoom = 1;
  static constexpr bool kCounts = false, kZeroIsNeutral = true;
  static __device__ __forceinline__ Acc neutral(int) { return 0; }
  static __device__ __forceinline__ Acc empty() { return 0; }
  static __device__ __forceinline__ void from(const Acc (&x)[kVec], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) run[i] = x[i];
  }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = before[i] + run[i];
  }
  static __device__ __forceinline__ void finish(const Acc (&run)[kParts], Acc (&x)[kVec]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = run[i];
  }
};
template <typename Acc, int kVec>
constexpr bool is_linear<SumOp<Acc, kVec>> = true;

template <typename Acc>
constexpr Acc kEpsilon = std::numeric_limits<Acc>::epsilon();

__device__ __forceinline__ float reciprocal(float x) { return approximate_reciprocal(x); }
__device__ __forceinline__ double reciprocal(double x) { return 1 / x; }

// The last part counts entries: those of a step at once, where a run ends.
template <typename Acc, int kVec_>
struct MeanOp {
  using Result = Acc;
  static constexpr int kVec = kVec_, kParts = kVec + 1, kRoom = 1;
  static constexpr bool kCounts = true, kZeroIsNeutral = true;
  static __device__ __forceinline__ Acc neutral(int) { return 0; }
  static __device__ __forceinline__ Acc empty() { return 0; }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = before[i] + run[i];
  }
  // Divides by the count. Its reciprocal is the sum of two numbers, both positive, so that
  // infinities stay what they are: as good as a division, in a fraction of the time.
  static __device__ __forceinline__ void finish(const Acc (&run)[kParts], Acc (&x)[kVec]) {
    const Acc count = run[kVec] > 1 ? run[kVec] : Acc(1);
    constexpr Acc kLess = 1 - 2 * kEpsilon<Acc>;
    const Acc high = reciprocal(count) * kLess;
    const Acc low = fma(-high, count, Acc(1)) * high;
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = fma(run[i], high, run[i] * low);
  }
};
template <typename Acc, int kVec>
constexpr bool is_linear<MeanOp<Acc, kVec>> = true;

// NaN wins, as in jax.ops.
template <bool kMax, typename Acc>
__device__ __forceinline__ Acc extremum(Acc a, Acc b) {
  if constexpr (std::is_same_v<Acc, float>) {
    return kMax ? max_or_nan(a, b) : min_or_nan(a, b);
  } else {
    const bool first = kMax ? a > b : a < b;
    return first || a != a ? a : b;
  }
}

// The maximum (or minimum) of an empty set.
template <bool kMax, typename Acc, class Limits = std::numeric_limits<Acc>>
constexpr Acc kLeast = Limits::has_infinity ? (kMax ? -Limits::infinity() : Limits::infinity())
                                            : (kMax ? Limits::lowest() : Limits::max());

template <bool kMax, typename Acc, int kVec_>
struct ExtremumOp : SumOp<Acc, kVec_> {
  using SumOp<Acc, kVec_>::kParts;
  static constexpr bool kZeroIsNeutral = false;
  static __device__ __forceinline__ Acc neutral(int) { return kLeast<kMax, Acc>; }
  static __device__ __forceinline__ Acc empty() { return kLeast<kMax, Acc>; }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = extremum<kMax>(before[i], run[i]);
  }
};

template <typename Acc, int kVec_>
struct ProdOp : SumOp<Acc, kVec_> {
  using SumOp<Acc, kVec_>::kParts;
  static constexpr bool kZeroIsNeutral = false;
  static __device__ __forceinline__ Acc neutral(int) { return 1; }
  static __device__ __forceinline__ Acc empty() { return 1; }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = before[i] * run[i];
  }
};

// exp(x - top); infinities cancel.
template <typename Acc>
__device__ __forceinline__ Acc shrink(Acc x, Acc top) {
  if (x == top) return 1;
  if constexpr (sizeof(Acc) == 4)
    return __expf(x - top);
  else
    return exp(x - top);
}
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }

// Maxima, then the sums of exp(x - maximum).
template <typename Acc, int kVec_>
struct LogSumExpOp {
  using Result = Acc;
  static constexpr int kVec = kVec_, kParts = 2 * kVec, kRoom = 1;
  static constexpr bool kCounts = false, kZeroIsNeutral = false;
  static __device__ __forceinline__ Acc neutral(int part) {
    return part < kVec ? kLeast<true, Acc> : Acc(0);
  }
  static __device__ __forceinline__ Acc empty() { return kLeast<true, Acc>; }
  static __device__ __forceinline__ void from(const Acc (&x)[kVec], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      run[i] = x[i];
      run[kVec + i] = 1;
    }
  }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const Acc top = extremum<true>(before[i], run[i]);
      run[kVec + i] =
          before[kVec + i] * shrink(before[i], top) + run[kVec + i] * shrink(run[i], top);
      run[i] = top;
    }
  }
  static __device__ __forceinline__ void finish(const Acc (&run)[kParts], Acc (&x)[kVec]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = run[i] + logarithm(run[kVec + i]);
  }
};

template <class Op, typename Acc>
__device__ __forceinline__ void set_neutral(Acc (&run)[Op::kParts]) {
#pragma unroll
  for (int i = 0; i < Op::kParts; ++i) run[i] = Op::neutral(i);
}

template <class Op, typename Acc>
__device__ __forceinline__ void append(Acc (&run)[Op::kParts], Acc (&after)[Op::kParts]) {
  Op::combine(run, after);
#pragma unroll
  for (int i = 0; i < Op::kParts; ++i) run[i] = after[i];
}

}  // namespace
}  // namespace jax_gnn::cuda
