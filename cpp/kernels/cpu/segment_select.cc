#include "attention.h"
#include "leaky.h"
#include "pages.h"
#include "segment_entries.h"
#include "segment_reduce.h"
#include "segment_walk.h"

namespace jax_gnn::cpu {
namespace {

// Sums over the entries of rows. Terms::for_each(tile, row, col, index, body) calls body(v, term)
// for each vector of columns of an entry.
template <typename Terms, typename Index>
struct Selection {
  using T = typename Terms::Number;
  using Acc = Accumulator<T>;
  static constexpr int kStates = 1, kMaxTile = Terms::kMaxTile, kScatterTile = 0;
  Csr<Index> csr;
  Terms terms;
  Features features;
  T* out;

  template <int kTile>
  JAX_GNN_INLINE Run<Acc, 1, kTile> run(const Tile<Acc, kTile>& tile, int64_t row, int64_t begin,
                                        int64_t end) const {
    using V = typename Tile<Acc, kTile>::V;
    Run<Acc, 1, kTile> run;
    unrolled<Tile<Acc, kTile>::kVectors>(
        [&](int v) JAX_GNN_LAMBDA { run.state[0][v] = broadcast<V>(Acc(0)); });
    const bool weighted = terms.weighted();
    for (; begin < end && csr.rows[begin] == row; ++begin) {
      prefetch_ahead(csr, begin, terms.col_key(), features.width, tile.column, kTile);
      if (weighted) prefetch_weights_ahead(csr, begin, terms.weights(), features.heads);
      const int64_t col = col_of(csr, begin);
      const int64_t index = weighted ? weight_of(csr, begin) : 0;
      if (col < 0 || index < 0) continue;
      terms.for_each(tile, features, row, col, index,
                     [&](int v, V term) JAX_GNN_LAMBDA { run.state[0][v] += term; });
    }
    run.end = begin;
    run.entries = 0;
    return run;
  }

  template <int kTile>
  JAX_GNN_INLINE void store(const Tile<Acc, kTile>& tile, int64_t row,
                            const Run<Acc, 1, kTile>& run) const {
    constexpr int kLanes = Tile<Acc, kTile>::kLanes;
    unrolled<Tile<Acc, kTile>::kVectors>([&](int v) JAX_GNN_LAMBDA {
      cpu::store<kLanes>(out + row * features.width + tile.column + v * kLanes, run.state[0][v]);
    });
  }

  template <int kTile>
  JAX_GNN_INLINE void fill(const Tile<Acc, kTile>& tile, int64_t row, int64_t last_row) const {
    for (; row < last_row; ++row) std::fill_n(out + row * features.width + tile.column, kTile, T{});
  }

  void combine(Acc* into, const Acc* from) const {
    for (int64_t k = 0; k < features.width; ++k) into[k] += from[k];
  }
};

// factor * value where weight * p == q.
template <typename T>
struct SelectedTerms {
  using Number = T;
  using Acc = Accumulator<T>;
  static constexpr int kMaxTile = 16;
  Select<T, Acc> select;

  bool weighted() const { return select.weight || select.factor; }
  JAX_GNN_INLINE const Acc* weights() const {
    return select.factor ? select.factor : select.weight;
  }
  JAX_GNN_INLINE const T* col_key() const { return select.col_key; }

  template <int kTile, typename Body>
  JAX_GNN_INLINE void for_each(const Tile<Acc, kTile>& tile, Features features, int64_t row,
                               int64_t col, int64_t index, const Body& body) const {
    using V = typename Tile<Acc, kTile>::V;
    constexpr int kLanes = Tile<Acc, kTile>::kLanes;
    const int64_t in_row = row * features.width + tile.column;
    const int64_t in_col = col * features.width + tile.column, first = index * features.heads;
    const T* const row_key = select.row_key + in_row;
    const T* const col_key = select.col_key + in_col;
    const T* const value = select.value ? select.value + in_col : nullptr;
    V factors[Tile<Acc, kTile>::kVectors];
    tile.for_each_weight(select.factor ? select.factor + first : nullptr,
                         [&](int v, V factor) JAX_GNN_LAMBDA { factors[v] = factor; });
    tile.for_each_weight(
        select.weight ? select.weight + first : nullptr, [&](int v, V weight) JAX_GNN_LAMBDA {
          const V term = value ? factors[v] * load<kLanes>(value + v * kLanes) : factors[v];
          const auto match =
              matches<kLanes>(select, weight, row_key + v * kLanes, col_key + v * kLanes);
          body(v, match ? term : broadcast<V>(Acc(0)));
        });
  }
};

// vector * factor * slope.
template <typename T>
struct LeakyTerms {
  using Number = T;
  using Acc = Accumulator<T>;
  static constexpr int kMaxTile = kWidestTile<Acc>;
  Leaky<T, Acc> keys;
  const Acc* factor;
  const Acc* vector;

  bool weighted() const { return true; }
  JAX_GNN_INLINE const Acc* weights() const { return factor; }
  JAX_GNN_INLINE const T* col_key() const { return keys.col_key; }

  template <int kTile, typename Body>
  JAX_GNN_INLINE void for_each(const Tile<Acc, kTile>& tile, Features features, int64_t row,
                               int64_t col, int64_t index, const Body& body) const {
    constexpr int kLanes = Tile<Acc, kTile>::kLanes;
    const T* const row_key = keys.row_key + row * features.width + tile.column;
    const T* const col_key = keys.col_key + col * features.width + tile.column;
    tile.for_each_weight(factor + index * features.heads, [&](int v, auto weight) JAX_GNN_LAMBDA {
      const auto z = load<kLanes>(row_key + v * kLanes) + load<kLanes>(col_key + v * kLanes);
      const auto term = weight * leaky_slope(z, keys.slope);
      body(v, vector != nullptr ? term * load<kLanes>(vector + tile.column + v * kLanes) : term);
    });
  }
};

}  // namespace

template <typename T, typename Acc, typename Index>
void segment_select(const ParallelFor& parallel_for, const Csr<Index>& csr,
                    const Select<T, Acc>& select, Features features, T* out) {
  const Selection<SelectedTerms<T>, Index> selection = {csr, {select}, features, out};
  reduce_segments(parallel_for, selection, csr, 2);
}

template <typename T, typename Acc, typename Index>
void leaky_sum(const ParallelFor& parallel_for, const Csr<Index>& csr, const Leaky<T, Acc>& leaky,
               const Acc* factor, const Acc* vector, Features features, T* out) {
  expect_writes(out, csr.num_rows * features.width);
  const Selection<LeakyTerms<T>, Index> selection = {csr, {leaky, factor, vector}, features, out};
  reduce_segments(parallel_for, selection, csr, 2);
}

#define JAX_GNN_INSTANTIATE(T, Acc)                  \
  JAX_GNN_INSTANCE(segment_select<T, Acc, int32_t>); \
  JAX_GNN_INSTANCE(leaky_sum<T, Acc, int32_t>);
JAX_GNN_FOR_FLOATS(JAX_GNN_INSTANTIATE)

}  // namespace jax_gnn::cpu
