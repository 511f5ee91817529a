// Reads of an entry of sorted segments, and weights spread over columns.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../segments.h"
#include "half.h"
#include "vector.h"

namespace jax_gnn::cpu {

// The row of the input that entry e reads, -1 for padding.
template <typename Index>
JAX_GNN_INLINE int64_t col_of(const Csr<Index>& csr, int64_t e) {
  if (!csr.cols) return e;
  const int64_t col = static_cast<int64_t>(csr.cols[e]);
  return in_range(col, csr.num_cols) ? col : -1;
}

// The weight of entry e, -1 for padding.
template <typename Index>
JAX_GNN_INLINE int64_t weight_of(const Csr<Index>& csr, int64_t e) {
  if (!csr.order) return e;
  const int64_t index = static_cast<int64_t>(csr.order[e]);
  return in_range(index, csr.num_weights) ? index : -1;
}

// Prefetches columns [column, column + count) of the row that is read a little later. Rows lie one
// after another in `cols`, so the stream of ids is known past the end of the row at hand.
template <typename T, typename Index>
JAX_GNN_INLINE void prefetch_ahead(const Csr<Index>& csr, int64_t e, const T* in, int64_t width,
                                   int64_t column, int64_t count) {
  constexpr int64_t kDistance = 16;  // entries
  if (!csr.cols || e + kDistance >= csr.count) return;
  const int64_t ahead = col_of(csr, e + kDistance);
  if (ahead >= 0) prefetch(in + ahead * width + column, count * static_cast<int64_t>(sizeof(T)));
}

// Prefetches the weights that are read a little later, where these do not lie in a row.
template <typename Acc, typename Index>
JAX_GNN_INLINE void prefetch_weights_ahead(const Csr<Index>& csr, int64_t e, const Acc* weights,
                                           int64_t heads) {
  constexpr int64_t kDistance = 16;  // entries
  if (!csr.order || e + kDistance >= csr.count) return;
  const int64_t ahead = weight_of(csr, e + kDistance);
  if (ahead >= 0) __builtin_prefetch(weights + ahead * heads);
}

// kTile columns from `column` on, and the heads that they belong to.
template <typename Acc, int kTile>
class Tile {
 public:
  static constexpr int kLanes = Shape<Acc, kTile>::kLanes;
  static constexpr int kVectors = Shape<Acc, kTile>::kVectors;
  using V = typename Shape<Acc, kTile>::V;

  JAX_GNN_INLINE Tile(Features features, int64_t first) : column(first) {
    const int64_t group = features.width / features.heads;
    whole_vectors_ = true;
    for (int k = 0; k < kTile; ++k) {
      head_[k] = static_cast<int32_t>((first + k) / group);
      whole_vectors_ &= head_[k] == head_[k / kLanes * kLanes];
    }
  }

  // Calls body(v, weight) for each vector of columns; `weights` (heads,) are those of an entry,
  // null means ones.
  template <typename Body>
  JAX_GNN_INLINE void for_each_weight(const Acc* weights, const Body& body) const {
    if (!weights || head_[0] == head_[kTile - 1]) {
      const V all = broadcast<V>(weights ? weights[head_[0]] : Acc(1));
      unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA { body(v, all); });
      return;
    }
    Acc spread[kTile];
    if (whole_vectors_) {
      for (int k = 0; k < kTile; k += kLanes)
        store<kLanes>(spread + k, broadcast<V>(weights[head_[k]]));
    } else {
      for (int k = 0; k < kTile; ++k) spread[k] = weights[head_[k]];
    }
    unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA { body(v, load<kLanes>(spread + v * kLanes)); });
  }

  int64_t column;

 private:
  int32_t head_[kTile];  // that each column belongs to
  bool whole_vectors_;   // the columns of each vector belong to one head
};

// Calls body(integral_constant kTile, column) for tiles that cover [first, last). Columns of wide
// heads are in tiles of their own.
template <int kMaxTile, typename Body>
JAX_GNN_INLINE void for_each_tile(Features features, int64_t first, int64_t last,
                                  const Body& body) {
  constexpr int64_t kWideHead = 16;
  const int64_t group = features.width / features.heads;
  const bool wide = features.heads > 1 && group >= kWideHead;
  while (first < last) {
    const int64_t end = wide ? std::min(last, (first / group + 1) * group) : last;
    for_each_tile<kMaxTile>(first, end, body);
    first = end;
  }
}

// Whether weight * p == q, element by element. The product is rounded as the maximum's result was.
template <int kLanes, typename T, typename Acc, typename V>
JAX_GNN_INLINE auto matches(const Select<T, Acc>& select, V weight, const T* row_key,
                            const T* col_key) {
  const V p = load<kLanes>(select.weight_on_row ? row_key : col_key);
  const V q = load<kLanes>(select.weight_on_row ? col_key : row_key);
  return rounded<T, kLanes>(weight * p) == q;
}

}  // namespace jax_gnn::cpu
