#include "segment_entries.h"
#include "segment_reduce.h"
#include "segment_walk.h"

namespace jax_gnn::cpu {
namespace {

template <typename T, typename Index>
struct Selection {
  using Acc = Accumulator<T>;
  static constexpr int kStates = 1, kMaxTile = 16, kScatterTile = 0;
  Csr<Index> csr;
  Select<T, Acc> select;
  Features features;
  T* out;

  template <int kTile>
  JAX_GNN_INLINE Run<Acc, 1, kTile> run(const Tile<Acc, kTile>& tile, int64_t row, int64_t begin,
                                        int64_t end) const {
    using V = typename Tile<Acc, kTile>::V;
    constexpr int kLanes = Tile<Acc, kTile>::kLanes;
    Run<Acc, 1, kTile> run;
    JAX_GNN_UNROLL
    for (V& vector : run.state[0]) vector = broadcast<V>(Acc(0));
    const int64_t width = features.width;
    const bool weighted = select.weight || select.factor;
    for (; begin < end && csr.rows[begin] == row; ++begin) {
      prefetch_ahead(csr, begin, select.col_key, width, tile.column, kTile);
      const int64_t col = col_of(csr, begin);
      const int64_t index = weighted ? weight_of(csr, begin) * features.heads : 0;
      if (col < 0 || index < 0) continue;
      const T* const row_key = select.row_key + row * width + tile.column;
      const T* const col_key = select.col_key + col * width + tile.column;
      const T* const value = select.value ? select.value + col * width + tile.column : nullptr;
      V factors[Tile<Acc, kTile>::kVectors];
      tile.for_each_weight(select.factor ? select.factor + index : nullptr,
                           [&](int v, V factor) JAX_GNN_LAMBDA { factors[v] = factor; });
      tile.for_each_weight(
          select.weight ? select.weight + index : nullptr, [&](int v, V weight) JAX_GNN_LAMBDA {
            const V term = value ? factors[v] * load<kLanes>(value + v * kLanes) : factors[v];
            const auto match =
                matches<kLanes>(select, weight, row_key + v * kLanes, col_key + v * kLanes);
            run.state[0][v] += match ? term : broadcast<V>(Acc(0));
          });
    }
    run.end = begin;
    run.entries = 0;
    return run;
  }

  template <int kTile>
  JAX_GNN_INLINE void store(const Tile<Acc, kTile>& tile, int64_t row,
                            const Run<Acc, 1, kTile>& run) const {
    constexpr int kLanes = Tile<Acc, kTile>::kLanes;
    JAX_GNN_UNROLL
    for (int v = 0; v < Tile<Acc, kTile>::kVectors; ++v)
      cpu::store<kLanes>(out + row * features.width + tile.column + v * kLanes, run.state[0][v]);
  }

  template <int kTile>
  JAX_GNN_INLINE void fill(const Tile<Acc, kTile>& tile, int64_t row, int64_t last_row) const {
    for (; row < last_row; ++row) std::fill_n(out + row * features.width + tile.column, kTile, T{});
  }

  void combine(Acc* into, const Acc* from) const {
    for (int64_t k = 0; k < features.width; ++k) into[k] += from[k];
  }
};

}  // namespace

template <typename T, typename Acc, typename Index>
void segment_select(const ParallelFor& parallel_for, const Csr<Index>& csr,
                    const Select<T, Acc>& select, Features features, T* out) {
  reduce_segments(parallel_for, Selection<T, Index>{csr, select, features, out}, csr, 2);
}

#define JAX_GNN_INSTANTIATE(T, Acc, Index)                                                   \
  template void segment_select(const ParallelFor&, const Csr<Index>&, const Select<T, Acc>&, \
                               Features, T*);
#define JAX_GNN_INSTANTIATE_INDEX(Index)     \
  JAX_GNN_INSTANTIATE(float, float, Index)   \
  JAX_GNN_INSTANTIATE(double, double, Index) \
  JAX_GNN_INSTANTIATE(Half, float, Index)    \
  JAX_GNN_INSTANTIATE(BFloat16, float, Index)

JAX_GNN_INSTANTIATE_INDEX(int32_t)

}  // namespace jax_gnn::cpu
