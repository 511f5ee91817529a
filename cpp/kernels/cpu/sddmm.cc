#include "sddmm.h"

#include <algorithm>

#include "dot.h"
#include "edge_attention.h"
#include "leaky.h"
#include "segment_entries.h"

namespace jax_gnn::cpu {
namespace {

template <typename T>
struct Product {
  const T *a, *b;

  template <int kLanes>
  JAX_GNN_INLINE auto operator()(int64_t k) const {
    return load<kLanes>(a + k) * load<kLanes>(b + k);
  }
};

template <typename T, typename Acc>
struct SelectedProduct {
  Product<T> product;
  const Select<T, Acc>& select;
  const T *row_key, *col_key;
  Acc weight;

  template <int kLanes>
  JAX_GNN_INLINE auto operator()(int64_t k) const {
    using V = Vector<Acc, kLanes>;
    const auto match = matches<kLanes>(select, broadcast<V>(weight), row_key + k, col_key + k);
    return match ? product.template operator()<kLanes>(k) : broadcast<V>(Acc(0));
  }
};

template <typename T, typename Acc>
struct LeakyProduct {
  const Acc* vector;
  const T *row_key, *col_key;
  Acc slope;

  template <int kLanes>
  JAX_GNN_INLINE auto operator()(int64_t k) const {
    return load<kLanes>(vector + k) *
           leaky(load<kLanes>(row_key + k) + load<kLanes>(col_key + k), slope);
  }
};

template <typename T, typename Acc, typename Index>
JAX_GNN_INLINE void leaky_entries(const Csr<Index>& csr, int64_t first, int64_t last,
                                  const Leaky<T, Acc>& keys, const Acc* vector, Features features,
                                  Acc* out) {
  const int64_t width = features.width, heads = features.heads, group = width / heads;
  for (int64_t e = first; e < last; ++e) {
    prefetch_ahead(csr, e, keys.col_key, width, 0, std::min<int64_t>(width, 256));
    const int64_t row = csr.rows[e], col = col_of(csr, e);
    Acc* const target = out + e * heads;
    if (!in_range(row, csr.num_rows) || col < 0) {
      std::fill(target, target + heads, Acc(0));
      continue;
    }
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t k = h * group;
      target[h] = sum_of_terms<Acc>(
          group, LeakyProduct<T, Acc>{vector + k, keys.row_key + row * width + k,
                                      keys.col_key + col * width + k, keys.slope});
    }
  }
}

template <typename T, typename Acc, typename Index>
JAX_GNN_INLINE void sddmm_entries(const Csr<Index>& csr, int64_t first, int64_t last, const T* a,
                                  const T* b, const Select<T, Acc>* select, Features features,
                                  Acc* out) {
  const int64_t width = features.width, heads = features.heads, group = width / heads;
  for (int64_t e = first; e < last; ++e) {
    prefetch_ahead(csr, e, b, width, 0, std::min<int64_t>(width, 256));
    const int64_t row = csr.rows[e], col = col_of(csr, e);
    const int64_t index = select && select->weight ? weight_of(csr, e) : 0;
    Acc* const target = out + e * heads;
    if (!in_range(row, csr.num_rows) || col < 0 || index < 0) {
      std::fill(target, target + heads, Acc(0));
      continue;
    }
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t in_row = row * width + h * group, in_col = col * width + h * group;
      const Product<T> product = {a + in_row, b + in_col};
      if (select) {
        const Acc weight = select->weight ? select->weight[index * heads + h] : Acc(1);
        target[h] = sum_of_terms<Acc>(
            group, SelectedProduct<T, Acc>{product, *select, select->row_key + in_row,
                                           select->col_key + in_col, weight});
      } else {
        target[h] = sum_of_terms<Acc>(group, product);
      }
    }
  }
}

// Calls entries(first, last), which is inlined, for even shares of all entries.
template <typename Entries>
void for_each_share(const ParallelFor& parallel_for, int64_t count, int64_t width,
                    const Entries& entries) {
  const int64_t tasks = task_count(
      static_cast<double>(count) * static_cast<double>(std::max<int64_t>(width, 8)), count);
  parallel_for(tasks, [&](int64_t task) {
    const int64_t first = even_share(count, task, tasks), last = even_share(count, task + 1, tasks);
    with_vectors([&](auto) JAX_GNN_LAMBDA { entries(first, last); });
  });
}

}  // namespace

template <typename T, typename Acc, typename Index>
void sddmm(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* a, const T* b,
           const Select<T, Acc>* select, Features features, Acc* out) {
  for_each_share(parallel_for, csr.count, features.width,
                 [&](int64_t first, int64_t last) JAX_GNN_LAMBDA {
                   sddmm_entries(csr, first, last, a, b, select, features, out);
                 });
}

template <typename T, typename Acc, typename Index>
void leaky_scores(const ParallelFor& parallel_for, const Csr<Index>& csr,
                  const Leaky<T, Acc>& leaky, const Acc* vector, Features features, Acc* out) {
  for_each_share(parallel_for, csr.count, features.width,
                 [&](int64_t first, int64_t last) JAX_GNN_LAMBDA {
                   leaky_entries(csr, first, last, leaky, vector, features, out);
                 });
}

#define JAX_GNN_INSTANTIATE(T, Acc, Index)                                                \
  template void sddmm(const ParallelFor&, const Csr<Index>&, const T*, const T*,          \
                      const Select<T, Acc>*, Features, Acc*);                             \
  template void leaky_scores(const ParallelFor&, const Csr<Index>&, const Leaky<T, Acc>&, \
                             const Acc*, Features, Acc*);
#define JAX_GNN_INSTANTIATE_INDEX(Index)     \
  JAX_GNN_INSTANTIATE(float, float, Index)   \
  JAX_GNN_INSTANTIATE(double, double, Index) \
  JAX_GNN_INSTANTIATE(Half, float, Index)    \
  JAX_GNN_INSTANTIATE(BFloat16, float, Index)

JAX_GNN_INSTANTIATE_INDEX(int32_t)

}  // namespace jax_gnn::cpu
