#include "sddmm.h"

#include <algorithm>

#include "segment_entries.h"

namespace jax_gnn::cpu {
namespace {

template <typename V>
JAX_GNN_INLINE Element<V> sum_of_elements(V x) {
  constexpr int kHalf = sizeof(V) / sizeof(Element<V>) / 2;
  if constexpr (kHalf == 0) {
    return x;
  } else {
    Vector<Element<V>, kHalf> halves[2];
    std::memcpy(halves, &x, sizeof x);
    return sum_of_elements(halves[0] + halves[1]);
  }
}

// The sum of term<lanes>(k), which are elements k, k + 1 … of a sequence, over [0, count).
template <typename Acc, typename Term>
JAX_GNN_INLINE Acc sum_of_terms(int64_t count, const Term& term) {
  constexpr int kLanes = 32 / sizeof(Acc), kFew = 16 / sizeof(Acc);
  Acc sum = 0;
  int64_t k = 0;
  if (count >= kLanes) {
    auto sums = term.template operator()<kLanes>(0), more = sums - sums;
    for (k = kLanes; k + 2 * kLanes <= count; k += 2 * kLanes) {
      sums += term.template operator()<kLanes>(k);
      more += term.template operator()<kLanes>(k + kLanes);
    }
    for (; k + kLanes <= count; k += kLanes) sums += term.template operator()<kLanes>(k);
    sum = sum_of_elements(sums + more);
  }
  for (; k + kFew <= count; k += kFew) sum += sum_of_elements(term.template operator()<kFew>(k));
  for (; k < count; ++k) sum += term.template operator()<1>(k);
  return sum;
}

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

}  // namespace

template <typename T, typename Acc, typename Index>
void sddmm(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* a, const T* b,
           const Select<T, Acc>* select, Features features, Acc* out) {
  const int64_t count = csr.count;
  const int64_t tasks = task_count(
      static_cast<double>(count) * static_cast<double>(std::max<int64_t>(features.width, 8)),
      count);
  parallel_for(tasks, [&](int64_t task) {
    const int64_t first = even_share(count, task, tasks), last = even_share(count, task + 1, tasks);
    with_vectors(
        [&](auto) JAX_GNN_LAMBDA { sddmm_entries(csr, first, last, a, b, select, features, out); });
  });
}

#define JAX_GNN_INSTANTIATE(T, Acc, Index)                                       \
  template void sddmm(const ParallelFor&, const Csr<Index>&, const T*, const T*, \
                      const Select<T, Acc>*, Features, Acc*);
#define JAX_GNN_INSTANTIATE_INDEX(Index)     \
  JAX_GNN_INSTANTIATE(float, float, Index)   \
  JAX_GNN_INSTANTIATE(double, double, Index) \
  JAX_GNN_INSTANTIATE(Half, float, Index)    \
  JAX_GNN_INSTANTIATE(BFloat16, float, Index)

JAX_GNN_INSTANTIATE_INDEX(int32_t)

}  // namespace jax_gnn::cpu
