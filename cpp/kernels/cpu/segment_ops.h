// The operations of segment reductions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../segments.h"
#include "vector.h"

namespace jax_gnn::cpu {

template <typename Acc>
constexpr Acc kLeast =
    std::numeric_limits<Acc>::has_infinity ? -std::numeric_limits<Acc>::infinity()
                                           : std::numeric_limits<Acc>::lowest();

// Whether memory may hold results in the place of states, as the walk over short rows and
// segment_scatter.h have it: enter(leave(state, n)) == state where the operation does not count. A
// new operation, and one that derives from another, is safe without it and slower; declare it by a
// specialization. A sum of squares cannot: it would square its result.
template <class Op>
constexpr bool kResultIsState = false;

// An operation on numbers or vectors: messages enter, are joined, and leave as a result. Integers
// wrap around: this is compiled with -fwrapv. Members of an operation:
//   kMaxTile: the width of the widest tile
//   kWeighted: whether messages may have weights, which are multiplied with features before they
//     enter
//   kIdentity: the state of an empty row; join(kIdentity, state) == state
//   enter(message): the state of one message
//   join(a, b): the state of both, in any grouping
//   leave(state, entries): the result of a row of so many entries
//   counts(): whether `leave` depends on the number of entries; needed with kResultIsState
template <typename Acc>
struct Sum {
  static constexpr int kMaxTile = kWidestTile<Acc>;
  static constexpr bool kWeighted = !std::is_integral_v<Acc>;  // may messages have weights?
  static constexpr Acc kIdentity = 0;
  bool mean;

  template <typename V>
  JAX_GNN_INLINE V enter(V x) const {
    return x;
  }
  template <typename V>
  static JAX_GNN_INLINE V join(V a, V b) {
    return a + b;
  }
  template <typename V>
  JAX_GNN_INLINE V leave(V x, int64_t entries) const {
    return mean ? x / static_cast<Acc>(std::max<int64_t>(entries, 1)) : x;
  }
  bool counts() const { return mean; }
};
template <typename Acc>
constexpr bool kResultIsState<Sum<Acc>> = true;

template <typename Acc>
struct Product {
  static constexpr int kMaxTile = 8;
  static constexpr bool kWeighted = false;
  static constexpr Acc kIdentity = 1;

  template <typename V>
  JAX_GNN_INLINE V enter(V x) const {
    return x;
  }
  template <typename V>
  static JAX_GNN_INLINE V join(V a, V b) {
    return a * b;
  }
  template <typename V>
  JAX_GNN_INLINE V leave(V x, int64_t /*entries*/) const {
    return x;
  }
  bool counts() const { return false; }
};
template <typename Acc>
constexpr bool kResultIsState<Product<Acc>> = true;

// The minimum is the maximum of what has all signs, or all bits of integers, flipped.
template <typename Acc>
struct Maximum {
  using Bits = std::conditional_t<sizeof(Acc) == 8, uint64_t, uint32_t>;
  static constexpr int kMaxTile = kWidestTile<Acc>;
  static constexpr bool kWeighted = !std::is_integral_v<Acc>;
  static constexpr Acc kIdentity = kLeast<Acc>;
  static constexpr Bits kFlip =
      std::is_integral_v<Acc> ? ~Bits{0} : Bits{1} << (8 * sizeof(Acc) - 1);
  Bits flip;  // kFlip or 0

  template <typename V>
  JAX_GNN_INLINE V enter(V x) const {
    return bit_cast<V>(bit_cast<Vector<Bits, sizeof(V) / sizeof(Bits)>>(x) ^ flip);
  }
  template <typename V>
  static JAX_GNN_INLINE V join(V a, V b) {
    return larger(a, b);
  }
  template <typename V>
  JAX_GNN_INLINE V leave(V x, int64_t /*entries*/) const {
    return enter(x);
  }
  bool counts() const { return false; }
};
template <typename Acc>
constexpr bool kResultIsState<Maximum<Acc>> = true;

// Calls body(operation) for each reduction that is one operation: all but logsumexp.
template <typename Acc, typename Body>
void with_operation(Reduce reduce, const Body& body) {
  switch (reduce) {
    case Reduce::kSum:
      return body(Sum<Acc>{/*mean=*/false});
    case Reduce::kMean:
      return body(Sum<Acc>{/*mean=*/true});
    case Reduce::kMax:
      return body(Maximum<Acc>{0});
    case Reduce::kMin:
      return body(Maximum<Acc>{Maximum<Acc>::kFlip});
    case Reduce::kProd:
      return body(Product<Acc>{});
    case Reduce::kLogSumExp:
    case Reduce::kCount:
      return;
  }
}

}  // namespace jax_gnn::cpu
