#include "half.h"
#include "segment_entries.h"
#include "segment_reduce.h"
#include "segment_walk.h"

namespace jax_gnn::cpu {
namespace {

template <typename T, typename Accumulator, typename Index>
struct Selection {
  using Acc = Accumulator;
  static constexpr int kStates = 1;
  Segments<Index> segments;
  Select<T, Acc> select;
  Features features;
  T* out;

  template <int kTile>
  JAX_GNN_INLINE int64_t run(int64_t row, int64_t begin, int64_t end, int64_t column,
                             Acc (&state)[1][kTile]) const {
    const int64_t width = features.width;
    for (int k = 0; k < kTile; ++k) state[0][k] = 0;
    const T* row_key = select.row_key + row * width + column;
    for (int64_t e = begin; e < end; ++e) {
      prefetch_ahead(segments, e, select.col_key, width, column, kTile);
      const int64_t col = col_of(segments, e);
      const int64_t index = select.weight || select.factor ? weight_of(segments, e) : 0;
      if (col < 0 || index < 0) continue;
      const T* col_key = select.col_key + col * width + column;
      Acc weight[kTile], factor[kTile];
      if (select.weight)
        spread_heads(select.weight + index * features.heads, features, column, weight);
      if (select.factor)
        spread_heads(select.factor + index * features.heads, features, column, factor);
      for (int k = 0; k < kTile; ++k) {
        const Acc p = select.weight ? weight[k] : Acc(1);
        const Acc f = select.factor ? factor[k] : Acc(1);
        const Acc v =
            select.value ? static_cast<Acc>(widen(select.value[col * width + column + k])) : Acc(1);
        state[0][k] += matches(select, p, row_key[k], col_key[k]) ? f * v : Acc(0);
      }
    }
    return 0;
  }

  template <int kTile>
  JAX_GNN_INLINE void store(int64_t row, int64_t column, int64_t /*entries*/,
                            const Acc (&state)[1][kTile]) const {
    for (int k = 0; k < kTile; ++k) out[row * features.width + column + k] = narrow<T>(state[0][k]);
  }

  JAX_GNN_INLINE void fill(int64_t row, int64_t last_row, int64_t column,
                           int64_t last_column) const {
    for (; row < last_row; ++row)
      for (int64_t c = column; c < last_column; ++c) out[row * features.width + c] = T{};
  }

  void combine(Acc* into, const Acc* from, int64_t width) const {
    for (int64_t k = 0; k < width; ++k) into[k] += from[k];
  }
};

}  // namespace

template <typename T, typename Acc, typename Index>
void segment_select(const ParallelFor& parallel_for, const Segments<Index>& segments,
                    const Select<T, Acc>& select, Features features, T* out) {
  const Selection<T, Acc, Index> selection = {segments, select, features, out};
  reduce_segments(parallel_for, selection, segments, features.width, 2);
}

#define JAX_GNN_INSTANTIATE(T, Acc, Index)                                                        \
  template void segment_select(const ParallelFor&, const Segments<Index>&, const Select<T, Acc>&, \
                               Features, T*);
#define JAX_GNN_INSTANTIATE_INDEX(Index)     \
  JAX_GNN_INSTANTIATE(float, float, Index)   \
  JAX_GNN_INSTANTIATE(double, double, Index) \
  JAX_GNN_INSTANTIATE(Half, float, Index)    \
  JAX_GNN_INSTANTIATE(BFloat16, float, Index)

JAX_GNN_INSTANTIATE_INDEX(int32_t)

}  // namespace jax_gnn::cpu
