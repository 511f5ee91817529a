#include "segment_reduce.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "half.h"
#include "segment_entries.h"
#include "segment_walk.h"

namespace jax_gnn::cpu {
namespace {

// Integers wrap around.
template <typename Acc>
JAX_GNN_INLINE Acc plus(Acc a, Acc b) {
  if constexpr (std::is_integral_v<Acc>) {
    using Unsigned = std::make_unsigned_t<Acc>;
    return static_cast<Acc>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

template <typename Acc>
JAX_GNN_INLINE Acc times(Acc a, Acc b) {
  if constexpr (std::is_integral_v<Acc>) {
    using Unsigned = std::make_unsigned_t<Acc>;
    return static_cast<Acc>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
  } else {
    return a * b;
  }
}

template <typename Acc>
constexpr Acc kLeast =
    std::numeric_limits<Acc>::has_infinity ? -std::numeric_limits<Acc>::infinity()
                                           : std::numeric_limits<Acc>::lowest();
template <typename Acc>
constexpr Acc kGreatest =
    std::numeric_limits<Acc>::has_infinity ? std::numeric_limits<Acc>::infinity()
                                           : std::numeric_limits<Acc>::max();

struct Sum {
  template <typename Acc>
  static constexpr Acc identity = 0;
  template <typename Acc>
  static JAX_GNN_INLINE Acc join(Acc a, Acc b) {
    return plus(a, b);
  }
};

struct Product {
  template <typename Acc>
  static constexpr Acc identity = 1;
  template <typename Acc>
  static JAX_GNN_INLINE Acc join(Acc a, Acc b) {
    return times(a, b);
  }
};

// NaN wins.
struct Maximum {
  template <typename Acc>
  static constexpr Acc identity = kLeast<Acc>;
  template <typename Acc>
  static JAX_GNN_INLINE Acc join(Acc a, Acc b) {
    return b > a || b != b ? b : a;
  }
};

struct Minimum {
  template <typename Acc>
  static constexpr Acc identity = kGreatest<Acc>;
  template <typename Acc>
  static JAX_GNN_INLINE Acc join(Acc a, Acc b) {
    return b < a || b != b ? b : a;
  }
};

// What all reductions of weight * in share.
template <typename T, typename Accumulator, typename Index>
struct Message {
  using Acc = Accumulator;
  Segments<Index> segments;
  const T* in;
  const Acc* weight;
  Features features;
  T* out;

  // Calls body(const Acc (&message)[kTile]) for the entries that count.
  template <int kTile, typename Body>
  JAX_GNN_INLINE int64_t for_each(int64_t begin, int64_t end, int64_t column, Body&& body) const {
    int64_t entries = 0;
    for (int64_t e = begin; e < end; ++e) {
      prefetch_ahead(segments, e, in, features.width, column, kTile);
      const int64_t col = col_of(segments, e);
      if (col < 0) continue;
      const T* source = in + col * features.width + column;
      Acc message[kTile];
      for (int k = 0; k < kTile; ++k) message[k] = static_cast<Acc>(widen(source[k]));
      if (weight) {
        const int64_t index = weight_of(segments, e);
        if (index < 0) continue;
        Acc spread[kTile];
        spread_heads(weight + index * features.heads, features, column, spread);
        for (int k = 0; k < kTile; ++k) message[k] = times(spread[k], message[k]);
      }
      body(message);
      ++entries;
    }
    return entries;
  }

  JAX_GNN_INLINE T* row_of_out(int64_t row) const { return out + row * features.width; }

  JAX_GNN_INLINE void fill_with(Acc value, int64_t row, int64_t last_row, int64_t column,
                                int64_t last_column) const {
    const T narrowed = narrow<T>(value);
    for (; row < last_row; ++row)
      for (int64_t c = column; c < last_column; ++c) row_of_out(row)[c] = narrowed;
  }
};

template <typename Op, typename Acc, int kTile>
struct JoinTile {
  Acc (&state)[kTile];
  JAX_GNN_INLINE void operator()(const Acc (&message)[kTile]) const {
    for (int k = 0; k < kTile; ++k) state[k] = Op::join(state[k], message[k]);
  }
};

template <typename Op, typename T, typename Accumulator, typename Index>
struct Fold : Message<T, Accumulator, Index> {
  using Acc = Accumulator;
  static constexpr int kStates = 1;
  bool mean;

  template <int kTile>
  JAX_GNN_INLINE int64_t run(int64_t /*row*/, int64_t begin, int64_t end, int64_t column,
                             Acc (&state)[1][kTile]) const {
    for (int k = 0; k < kTile; ++k) state[0][k] = Op::template identity<Acc>;
    return this->template for_each<kTile>(begin, end, column, JoinTile<Op, Acc, kTile>{state[0]});
  }

  template <int kTile>
  JAX_GNN_INLINE void store(int64_t row, int64_t column, int64_t entries,
                            const Acc (&state)[1][kTile]) const {
    T* target = this->row_of_out(row) + column;
    if (mean) {
      const Acc count = static_cast<Acc>(entries > 0 ? entries : 1);
      for (int k = 0; k < kTile; ++k) target[k] = narrow<T>(static_cast<Acc>(state[0][k] / count));
    } else {
      for (int k = 0; k < kTile; ++k) target[k] = narrow<T>(state[0][k]);
    }
  }

  JAX_GNN_INLINE void fill(int64_t row, int64_t last_row, int64_t column,
                           int64_t last_column) const {
    this->fill_with(Op::template identity<Acc>, row, last_row, column, last_column);
  }

  void combine(Acc* into, const Acc* from, int64_t width) const {
    for (int64_t k = 0; k < width; ++k) into[k] = Op::join(into[k], from[k]);
  }
};

// What exponents are taken relative to; a maximum that is not finite speaks for itself.
template <typename Acc>
JAX_GNN_INLINE Acc finite_or_zero(Acc maximum) {
  return maximum - maximum == 0 ? maximum : Acc(0);
}

template <typename Acc, int kTile>
struct ExpSumTile {
  const Acc (&maximum)[kTile];
  Acc (&sum)[kTile];
  JAX_GNN_INLINE void operator()(const Acc (&message)[kTile]) const {
    for (int k = 0; k < kTile; ++k) sum[k] += std::exp(message[k] - finite_or_zero(maximum[k]));
  }
};

// The state is the maximum, and the sum of exponentials relative to it: two passes over a run, the
// second one over what is hot.
template <typename T, typename Accumulator, typename Index>
struct LogSumExp : Message<T, Accumulator, Index> {
  using Acc = Accumulator;
  static constexpr int kStates = 2;

  template <int kTile>
  JAX_GNN_INLINE int64_t run(int64_t /*row*/, int64_t begin, int64_t end, int64_t column,
                             Acc (&state)[2][kTile]) const {
    for (int k = 0; k < kTile; ++k) state[0][k] = kLeast<Acc>;
    for (int k = 0; k < kTile; ++k) state[1][k] = 0;
    this->template for_each<kTile>(begin, end, column, JoinTile<Maximum, Acc, kTile>{state[0]});
    return this->template for_each<kTile>(begin, end, column,
                                          ExpSumTile<Acc, kTile>{state[0], state[1]});
  }

  template <int kTile>
  JAX_GNN_INLINE void store(int64_t row, int64_t column, int64_t /*entries*/,
                            const Acc (&state)[2][kTile]) const {
    T* target = this->row_of_out(row) + column;
    for (int k = 0; k < kTile; ++k)
      target[k] = narrow<T>(std::log(state[1][k]) + finite_or_zero(state[0][k]));
  }

  JAX_GNN_INLINE void fill(int64_t row, int64_t last_row, int64_t column,
                           int64_t last_column) const {
    this->fill_with(kLeast<Acc>, row, last_row, column, last_column);
  }

  void combine(Acc* into, const Acc* from, int64_t width) const {
    for (int64_t k = 0; k < width; ++k) {
      const Acc a = into[k], b = from[k], maximum = Maximum::join(a, b);
      const auto part = [&](Acc sum, Acc own) {
        return sum == 0 ? Acc(0) : sum * std::exp(finite_or_zero(own) - finite_or_zero(maximum));
      };
      into[width + k] = part(into[width + k], a) + part(from[width + k], b);
      into[k] = maximum;
    }
  }
};

}  // namespace

template <typename T, typename Acc, typename Index>
void segment_reduce(const ParallelFor& parallel_for, const Segments<Index>& segments, Reduce reduce,
                    const T* in, const Acc* weight, Features features, T* out) {
  const Message<T, Acc, Index> message = {segments, in, weight, features, out};
  const auto run = [&](const auto& reducer, double cost) {
    reduce_segments(parallel_for, reducer, segments, features.width, cost);
  };
  switch (reduce) {
    case Reduce::kSum:
    case Reduce::kMean:
      return run(Fold<Sum, T, Acc, Index>{message, reduce == Reduce::kMean}, 1);
    case Reduce::kMax:
      return run(Fold<Maximum, T, Acc, Index>{message, false}, 1);
    case Reduce::kMin:
      return run(Fold<Minimum, T, Acc, Index>{message, false}, 1);
    case Reduce::kProd:
      return run(Fold<Product, T, Acc, Index>{message, false}, 1);
    case Reduce::kLogSumExp:
      if constexpr (!std::is_integral_v<Acc>) run(LogSumExp<T, Acc, Index>{message}, 8);
  }
}

#define JAX_GNN_REDUCE(T, Acc, Index)                                                        \
  template void segment_reduce(const ParallelFor&, const Segments<Index>&, Reduce, const T*, \
                               const Acc*, Features, T*);
#define JAX_GNN_INSTANTIATE(Index)        \
  JAX_GNN_REDUCE(int32_t, int32_t, Index) \
  JAX_GNN_REDUCE(int64_t, int64_t, Index) \
  JAX_GNN_REDUCE(float, float, Index)     \
  JAX_GNN_REDUCE(double, double, Index)   \
  JAX_GNN_REDUCE(Half, float, Index)      \
  JAX_GNN_REDUCE(BFloat16, float, Index)

JAX_GNN_INSTANTIATE(int32_t)

}  // namespace jax_gnn::cpu
