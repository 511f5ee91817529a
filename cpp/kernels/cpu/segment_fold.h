// The reductions over segments, as reducers of segment_walk.h, for all dtypes: each unit that
// includes this instantiates some, so that they build side by side.
#pragma once

#include <cmath>
#include <type_traits>

#include "exp.h"
#include "segment_entries.h"
#include "segment_ops.h"
#include "segment_reduce.h"
#include "segment_walk.h"

namespace jax_gnn::cpu {
namespace {

// The messages weight * in, and where results go.
template <typename T, typename Acc, typename Index>
struct Messages {
  Csr<Index> csr;
  const T* in;
  const Acc* weight;
  Features features;
  T* out;

  // Calls body(v, message) for each vector of columns of an entry; not for padding. Returns the
  // number of entries that it is called for.
  template <bool kWeighted, int kTile, typename Body>
  JAX_GNN_INLINE int64_t load_entry(const Tile<Acc, kTile>& tile, int64_t e,
                                    const Body& body) const {
    constexpr int kLanes = Tile<Acc, kTile>::kLanes;
    const int64_t col = col_of(csr, e);
    if (col < 0) return 0;
    const T* source = in + col * features.width + tile.column;
    const Acc* weights = nullptr;
    if (kWeighted && weight) {
      const int64_t index = weight_of(csr, e);
      if (index < 0) return 0;
      weights = weight + index * features.heads;
    }
    tile.for_each_weight(weights, [&](int v, auto w) JAX_GNN_LAMBDA {
      body(v, w * load<kLanes>(source + v * kLanes));
    });
    return 1;
  }

  // Loads the entries from `begin` on that are of the row. Moves `begin` to where they end.
  template <bool kWeighted, int kTile, typename Body>
  JAX_GNN_INLINE int64_t load_run(const Tile<Acc, kTile>& tile, int64_t row, int64_t& begin,
                                  int64_t end, const Body& body) const {
    int64_t entries = 0;
    for (; begin < end && csr.rows[begin] == row; ++begin) {
      prefetch_ahead(csr, begin, in, features.width, tile.column, kTile);
      entries += load_entry<kWeighted>(tile, begin, body);
    }
    return entries;
  }

  template <int kTile>
  JAX_GNN_INLINE T* target(const Tile<Acc, kTile>& tile, int64_t row) const {
    return out + row * features.width + tile.column;
  }

  template <int kTile>
  JAX_GNN_INLINE void fill_tile(Acc value, const Tile<Acc, kTile>& tile, int64_t row,
                                int64_t last_row) const {
    const T narrowed = narrow<T>(value);
    if (kTile == features.width) {
      std::fill(out + row * kTile, out + last_row * kTile, narrowed);
    } else {
      for (; row < last_row; ++row) std::fill_n(target(tile, row), kTile, narrowed);
    }
  }

  // The first tile of a task fills for all of them: rows lie one after another.
  template <int kTile>
  JAX_GNN_INLINE void fill_with(Acc value, const Tile<Acc, kTile>& tile, int64_t row,
                                int64_t last_row) const {
    if (features.width > kTaskColumns) return fill_tile(value, tile, row, last_row);
    if (tile.column > 0) return;
    std::fill(out + row * features.width, out + last_row * features.width, narrow<T>(value));
  }
};

template <typename Op, typename T, typename Index>
struct Fold : Messages<T, Accumulator<T>, Index> {
  using Acc = Accumulator<T>;
  static constexpr int kStates = 1, kMaxTile = Op::kMaxTile;
  Op op;

  template <int kTile>
  JAX_GNN_INLINE Run<Acc, 1, kTile> run(const Tile<Acc, kTile>& tile, int64_t row, int64_t begin,
                                        int64_t end) const {
    using V = typename Tile<Acc, kTile>::V;
    Run<Acc, 1, kTile> run;
    auto& state = run.state[0];
    unrolled<Tile<Acc, kTile>::kVectors>(
        [&](int v) JAX_GNN_LAMBDA { state[v] = broadcast<V>(Op::kIdentity); });
    int64_t entries = 0;
    if constexpr (Tile<Acc, kTile>::kVectors == 1) {
      const int64_t first = begin;
      begin = join_dense<kTile>(row, begin, end, state[0]);
      entries = begin - first;
    }
    entries += this->template load_run<Op::kWeighted>(
        tile, row, begin, end,
        [&](int v, V message) JAX_GNN_LAMBDA { state[v] = Op::join(state[v], op.enter(message)); });
    run.end = begin;
    run.entries = entries;
    return run;
  }

  // Joins several entries of a narrow tile in one vector, where neighbouring entries are neighbours
  // in memory. Returns the first entry that is left.
  template <int kTile, typename V>
  JAX_GNN_INLINE int64_t join_dense(int64_t row, int64_t begin, int64_t end, V& state) const {
    constexpr int kLanes = 32 / sizeof(Acc), kBatch = kLanes / kTile;
    const auto fits = [&](int64_t e)
                          JAX_GNN_LAMBDA { return e <= end && this->csr.rows[e - 1] == row; };
    if (this->csr.cols || this->weight || this->features.width != kTile ||
        !fits(begin + 2 * kBatch))
      return begin;
    auto wide = broadcast<Vector<Acc, kLanes>>(Op::kIdentity);
    for (; fits(begin + kBatch); begin += kBatch)
      wide = Op::join(wide, op.enter(load<kLanes>(this->in + begin * kTile)));
    V parts[kBatch];
    std::memcpy(parts, &wide, sizeof parts);
    JAX_GNN_UNROLL
    for (const V& part : parts) state = Op::join(state, part);
    return begin;
  }

  // Branches at the ends of short narrow rows cost more than the rows themselves. Without them, the
  // results serve as the states.
  static constexpr int kScatterTile = kResultIsState<Op> && std::is_same_v<T, Acc> ? 16 : 0;
  bool prefers_scatter(int64_t entries, int64_t rows) const {
    return !op.counts() && entries < 16 * rows;
  }

  template <int kTile>
  JAX_GNN_INLINE void scatter(const Tile<Acc, kTile>& tile, int64_t begin, int64_t end, int64_t row,
                              int64_t last_row) const {
    constexpr int kLanes = Tile<Acc, kTile>::kLanes;
    this->fill_tile(op.leave(Op::kIdentity, 0), tile, row, last_row);
    const auto join_all = [&](const auto& load_entry) JAX_GNN_LAMBDA {
      for (int64_t e = begin; e < end; ++e) {
        const int64_t id = this->csr.rows[e];
        if (id < row || id >= last_row) continue;  // ids are not sorted after all
        T* const target = this->target(tile, id);
        load_entry(e, [&](int v, auto message) JAX_GNN_LAMBDA {
          T* const place = target + v * kLanes;
          const auto state = op.enter(load<kLanes>(place));
          cpu::store<kLanes>(place, op.leave(Op::join(state, op.enter(message)), 1));
        });
      }
    };
    if (this->csr.cols || this->weight) {
      join_all([&](int64_t e, const auto& body)
                   JAX_GNN_LAMBDA { this->template load_entry<Op::kWeighted>(tile, e, body); });
    } else {
      const T* const in = this->in + tile.column;
      const int64_t width = this->features.width;
      join_all([&](int64_t e, const auto& body) JAX_GNN_LAMBDA {
        unrolled<Tile<Acc, kTile>::kVectors>(
            [&](int v) JAX_GNN_LAMBDA { body(v, load<kLanes>(in + e * width + v * kLanes)); });
      });
    }
  }

  template <int kTile>
  JAX_GNN_INLINE void store(const Tile<Acc, kTile>& tile, int64_t row,
                            const Run<Acc, 1, kTile>& run) const {
    constexpr int kLanes = Tile<Acc, kTile>::kLanes;
    T* const target = this->target(tile, row);
    unrolled<Tile<Acc, kTile>::kVectors>([&](int v) JAX_GNN_LAMBDA {
      cpu::store<kLanes>(target + v * kLanes, op.leave(run.state[0][v], run.entries));
    });
  }

  template <int kTile>
  JAX_GNN_INLINE void fill(const Tile<Acc, kTile>& tile, int64_t row, int64_t last_row) const {
    this->fill_with(op.leave(Op::kIdentity, 0), tile, row, last_row);
  }

  void combine(Acc* into, const Acc* from) const {
    for (int64_t k = 0; k < this->features.width; ++k) into[k] = Op::join(into[k], from[k]);
  }
};

// A sum or mean whose rows have an epilogue.
template <typename T, typename Index>
struct FinishedSum : Fold<Sum<Accumulator<T>>, T, Index> {
  using Acc = Accumulator<T>;
  using Base = Fold<Sum<Acc>, T, Index>;
  Epilogue<T, Acc> epilogue;

  // Applies the epilogue to vector v of a row's sum or mean.
  template <int kTile, typename V>
  JAX_GNN_INLINE V finish(const Tile<Acc, kTile>& tile, int64_t row, int v, V x) const {
    constexpr int kLanes = Tile<Acc, kTile>::kLanes;
    const int64_t column = tile.column + v * kLanes, place = row * this->features.width + column;
    const auto scale = [&](const RowScale<Acc>& scales)
                           JAX_GNN_LAMBDA { return scales.data[row * scales.stride]; };
    if (epilogue.self) x += scale(epilogue.self_scale) * load<kLanes>(epilogue.self + place);
    if (epilogue.out_scale.data) x *= scale(epilogue.out_scale);
    if (epilogue.residual) x += load<kLanes>(epilogue.residual + place);
    if (epilogue.bias) x += load<kLanes>(epilogue.bias + column);
    if (epilogue.relu) x = x < 0 ? broadcast<V>(Acc(0)) : x;  // NaN stays
    if (epilogue.result_scale.data) x *= scale(epilogue.result_scale);
    return x;
  }

  template <int kTile>
  JAX_GNN_INLINE void store(const Tile<Acc, kTile>& tile, int64_t row,
                            const Run<Acc, 1, kTile>& run) const {
    constexpr int kLanes = Tile<Acc, kTile>::kLanes;
    T* const target = this->target(tile, row);
    unrolled<Tile<Acc, kTile>::kVectors>([&](int v) JAX_GNN_LAMBDA {
      const auto x = this->op.leave(run.state[0][v], run.entries);
      cpu::store<kLanes>(target + v * kLanes, finish(tile, row, v, x));
    });
  }

  template <int kTile>
  JAX_GNN_INLINE void fill(const Tile<Acc, kTile>& tile, int64_t row, int64_t last_row) const {
    Run<Acc, 1, kTile> empty = {};
    for (; row < last_row; ++row) store(tile, row, empty);
  }

  template <int kTile>
  JAX_GNN_INLINE void scatter(const Tile<Acc, kTile>& tile, int64_t begin, int64_t end, int64_t row,
                              int64_t last_row) const {
    constexpr int kLanes = Tile<Acc, kTile>::kLanes;
    Base::scatter(tile, begin, end, row, last_row);
    for (; row < last_row; ++row) {
      T* const target = this->target(tile, row);
      unrolled<Tile<Acc, kTile>::kVectors>([&](int v) JAX_GNN_LAMBDA {
        T* const place = target + v * kLanes;
        cpu::store<kLanes>(place, finish(tile, row, v, load<kLanes>(place)));
      });
    }
  }
};

// The state is the maximum, and the sum of exponentials relative to it: two passes over a run, the
// second one over what is hot.
template <typename T, typename Index>
struct LogSumExp : Messages<T, Accumulator<T>, Index> {
  using Acc = Accumulator<T>;
  static constexpr int kStates = 2, kMaxTile = 8;
  static constexpr int kScatterTile = 0;

  template <int kTile>
  JAX_GNN_INLINE Run<Acc, 2, kTile> run(const Tile<Acc, kTile>& tile, int64_t row, int64_t begin,
                                        int64_t end) const {
    using V = typename Tile<Acc, kTile>::V;
    Run<Acc, 2, kTile> run;
    auto& maximum = run.state[0];
    auto& sum = run.state[1];
    JAX_GNN_UNROLL
    for (V& vector : maximum) vector = broadcast<V>(kLeast<Acc>);
    JAX_GNN_UNROLL
    for (V& vector : sum) vector = broadcast<V>(Acc(0));
    run.end = begin;
    run.entries = this->template load_run<false>(
        tile, row, run.end, end,
        [&](int v, V message) JAX_GNN_LAMBDA { maximum[v] = larger(maximum[v], message); });
    this->template load_run<false>(tile, row, begin, end, [&](int v, V message) JAX_GNN_LAMBDA {
      sum[v] += exp<Tile<Acc, kTile>::kLanes>(message - finite_or_zero(maximum[v]));
    });
    return run;
  }

  template <int kTile>
  JAX_GNN_INLINE void store(const Tile<Acc, kTile>& tile, int64_t row,
                            const Run<Acc, 2, kTile>& run) const {
    T* const target = this->target(tile, row);
    Acc maximum[kTile], sum[kTile];
    std::memcpy(maximum, run.state[0], sizeof maximum);
    std::memcpy(sum, run.state[1], sizeof sum);
    for (int k = 0; k < kTile; ++k)
      target[k] = narrow<T>(std::log(sum[k]) + finite_or_zero(maximum[k]));
  }

  template <int kTile>
  JAX_GNN_INLINE void fill(const Tile<Acc, kTile>& tile, int64_t row, int64_t last_row) const {
    this->fill_with(kLeast<Acc>, tile, row, last_row);
  }

  void combine(Acc* into, const Acc* from) const {
    const int64_t width = this->features.width;
    for (int64_t k = 0; k < width; ++k) {
      const Acc a = into[k], b = from[k], maximum = larger(a, b);
      const auto part = [&](Acc sum, Acc part_maximum) {
        return sum == 0 ? Acc(0)
                        : sum * std::exp(finite_or_zero(part_maximum) - finite_or_zero(maximum));
      };
      into[width + k] = part(into[width + k], a) + part(from[width + k], b);
      into[k] = maximum;
    }
  }
};

}  // namespace

template <typename T, typename Acc, typename Index>
void segment_reduce(const ParallelFor& parallel_for, const Csr<Index>& csr, Reduce reduce,
                    const T* in, const Acc* weight, Features features,
                    const Epilogue<T, Acc>& epilogue, T* out) {
  const Messages<T, Acc, Index> messages = {csr, in, weight, features, out};
  const auto run = [&](const auto& reducer, double cost) {
    reduce_segments(parallel_for, reducer, csr, cost);
  };
  with_operation<Acc>(reduce, [&](const auto& op) {
    using Op = std::decay_t<decltype(op)>;
    const Fold<Op, T, Index> fold = {messages, op};
    if constexpr (std::is_same_v<Op, Sum<Acc>> && !std::is_integral_v<Acc>)
      if (epilogue.any()) return run(FinishedSum<T, Index>{fold, epilogue}, 1);
    run(fold, 1);
  });
  if constexpr (!std::is_integral_v<Acc>)
    if (reduce == Reduce::kLogSumExp) run(LogSumExp<T, Index>{messages}, 8);
}

}  // namespace jax_gnn::cpu
