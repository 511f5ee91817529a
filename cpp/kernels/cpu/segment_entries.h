// What an entry of sorted segments reads.
#pragma once

#include <cstdint>

#include "../segments.h"
#include "half.h"
#include "vectorize.h"

namespace jax_gnn::cpu {

// How many entries ahead of use a row is prefetched. Rows lie one behind another in `cols`, so the
// stream of ids is known past the end of the row at hand.
constexpr int64_t kPrefetchDistance = 16;

// The row of the input that entry e reads, -1 for padding.
template <typename Index>
JAX_GNN_INLINE int64_t col_of(const Segments<Index>& segments, int64_t e) {
  const int64_t col = segments.cols ? static_cast<int64_t>(segments.cols[e]) : e;
  return in_range(col, segments.num_cols) ? col : -1;
}

// The weight of entry e, -1 for padding.
template <typename Index>
JAX_GNN_INLINE int64_t weight_of(const Segments<Index>& segments, int64_t e) {
  const int64_t index = segments.order ? static_cast<int64_t>(segments.order[e]) : e;
  return in_range(index, segments.num_weights) ? index : -1;
}

// Prefetches columns [column, column + count) of what is read a little later.
template <typename T, typename Index>
JAX_GNN_INLINE void prefetch_ahead(const Segments<Index>& segments, int64_t e, const T* in,
                                   int64_t width, int64_t column, int64_t count) {
  if (!segments.cols || e + kPrefetchDistance >= segments.count) return;
  const int64_t ahead = col_of(segments, e + kPrefetchDistance);
  if (ahead >= 0) prefetch(in + ahead * width + column, count * static_cast<int64_t>(sizeof(T)));
}

// The weights (heads,) of one entry, spread over a tile of columns.
template <int kTile, typename Acc>
JAX_GNN_INLINE void spread_heads(const Acc* weight, Features features, int64_t column,
                                 Acc (&spread)[kTile]) {
  if (features.heads == 1) {
    for (int k = 0; k < kTile; ++k) spread[k] = weight[0];
    return;
  }
  const int64_t group = features.width / features.heads;
  int64_t head = column / group, left = group - column % group;  // columns left of the head
  for (int k = 0; k < kTile; ++k) {
    spread[k] = weight[head];
    if (--left == 0) {
      left = group;
      ++head;
    }
  }
}

// Whether weight * p == q. The product is rounded as the maximum's result was.
template <typename T, typename Acc>
JAX_GNN_INLINE bool matches(const Select<T, Acc>& select, Acc weight, T row_key, T col_key) {
  const Acc row = widen(row_key), col = widen(col_key);
  const Acc p = select.weight_on_row ? row : col, q = select.weight_on_row ? col : row;
  return static_cast<Acc>(widen(narrow<T>(static_cast<Acc>(weight * p)))) == q;
}

}  // namespace jax_gnn::cpu
