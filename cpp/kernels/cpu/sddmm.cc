#include "sddmm.h"

#include <algorithm>

#include "half.h"
#include "segment_entries.h"

namespace jax_gnn::cpu {
namespace {

constexpr int kLanes = 16;

// The sum of term(k) over [0, count), in kLanes sums side by side.
template <typename Acc, typename Term>
JAX_GNN_INLINE Acc dot(int64_t count, const Term& term) {
  Acc lanes[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes)
    for (int i = 0; i < kLanes; ++i) lanes[i] += term(k + i);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  for (; k < count; ++k) lanes[0] += term(k);
  return lanes[0];
}

template <typename T, typename Acc>
struct Product {
  const T *a, *b;
  JAX_GNN_INLINE Acc operator()(int64_t k) const {
    return static_cast<Acc>(widen(a[k])) * static_cast<Acc>(widen(b[k]));
  }
};

template <typename T, typename Acc>
struct SelectedProduct {
  Product<T, Acc> product;
  const Select<T, Acc>& select;
  const T *row_key, *col_key;
  Acc weight;
  JAX_GNN_INLINE Acc operator()(int64_t k) const {
    return matches(select, weight, row_key[k], col_key[k]) ? product(k) : Acc(0);
  }
};

template <typename T, typename Acc, typename Index>
JAX_GNN_MULTIVERSION void sddmm_entries(const Segments<Index>& segments, int64_t first,
                                        int64_t last, const T* a, const T* b,
                                        const Select<T, Acc>* select, Features features, Acc* out) {
  const int64_t width = features.width, heads = features.heads, group = width / heads;
  for (int64_t e = first; e < last; ++e) {
    prefetch_ahead(segments, e, b, width, 0, std::min<int64_t>(width, 256));
    const int64_t row = segments.rows[e], col = col_of(segments, e);
    const int64_t index = select && select->weight ? weight_of(segments, e) : 0;
    Acc* const target = out + e * heads;
    if (!in_range(row, segments.num_rows) || col < 0 || index < 0) {
      std::fill(target, target + heads, Acc(0));
      continue;
    }
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t in_row = row * width + h * group, in_col = col * width + h * group;
      const Product<T, Acc> product = {a + in_row, b + in_col};
      if (select) {
        const Acc weight = select->weight ? select->weight[index * heads + h] : Acc(1);
        target[h] =
            dot<Acc>(group, SelectedProduct<T, Acc>{product, *select, select->row_key + in_row,
                                                    select->col_key + in_col, weight});
      } else {
        target[h] = dot<Acc>(group, product);
      }
    }
  }
}

}  // namespace

template <typename T, typename Acc, typename Index>
void sddmm(const ParallelFor& parallel_for, const Segments<Index>& segments, const T* a, const T* b,
           const Select<T, Acc>* select, Features features, Acc* out) {
  const int64_t count = segments.count;
  const int64_t tasks = task_count(
      static_cast<double>(count) * static_cast<double>(std::max<int64_t>(features.width, 8)),
      count);
  parallel_for(tasks, [&](int64_t task) {
    sddmm_entries(segments, even_share(count, task, tasks), even_share(count, task + 1, tasks), a,
                  b, select, features, out);
  });
}

#define JAX_GNN_INSTANTIATE(T, Acc, Index)                                            \
  template void sddmm(const ParallelFor&, const Segments<Index>&, const T*, const T*, \
                      const Select<T, Acc>*, Features, Acc*);
#define JAX_GNN_INSTANTIATE_INDEX(Index)     \
  JAX_GNN_INSTANTIATE(float, float, Index)   \
  JAX_GNN_INSTANTIATE(double, double, Index) \
  JAX_GNN_INSTANTIATE(Half, float, Index)    \
  JAX_GNN_INSTANTIATE(BFloat16, float, Index)

JAX_GNN_INSTANTIATE_INDEX(int32_t)

}  // namespace jax_gnn::cpu
