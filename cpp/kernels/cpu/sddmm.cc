#include "sddmm.h"

#include <algorithm>

#include "attention.h"
#include "dot.h"
#include "leaky.h"
#include "segment_entries.h"

namespace jax_gnn::cpu {
namespace {

template <typename T, typename Acc>
struct SelectedProduct {
  RowProduct<T> product;
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

// out[e, h] = the sum of terms(row, col, k) of what both ends of the entry and the head have from
// these elements on, 0 for padding.
template <typename T, typename Acc, typename Index, typename Terms>
JAX_GNN_INLINE void sum_entries(const Csr<Index>& csr, int64_t first, int64_t last, const T* in,
                                Features features, const Terms& terms, Acc* out) {
  constexpr int64_t kNumbers = 256;  // at a time
  const int64_t width = features.width, heads = features.heads, group = width / heads;
  if (csr.num_rows == 0 || csr.num_cols == 0) {
    std::fill(out + first * heads, out + last * heads, Acc(0));
    return;
  }
  int64_t e = first, h = 0, row = 0, col = 0;
  bool padding = false;
  while (e < last) {
    int64_t at_row[kNumbers], at_col[kNumbers], at_head[kNumbers], size = 0;
    bool left_out[kNumbers], any = false;
    Acc* const to = out + e * heads + h;
    for (; size < kNumbers && e < last; ++size) {
      if (h == 0) {
        prefetch_ahead(csr, e, in, width, 0, std::min<int64_t>(width, 256));
        row = csr.rows[e];
        col = col_of(csr, e);
        padding = !in_range(row, csr.num_rows) || col < 0;
        row = padding ? 0 : row * width;
        col = padding ? 0 : col * width;
      }
      at_head[size] = h * group;
      at_row[size] = row + h * group;
      at_col[size] = col + h * group;
      left_out[size] = padding;
      any |= padding;
      if (++h == heads) {
        h = 0;
        ++e;
      }
    }
    sums_of_terms(
        size, group,
        [&](int64_t i) JAX_GNN_LAMBDA { return terms(at_row[i], at_col[i], at_head[i]); }, to);
    for (int64_t i = 0; any && i < size; ++i) to[i] = left_out[i] ? Acc(0) : to[i];
  }
}

template <typename T, typename Acc, typename Index>
JAX_GNN_INLINE void leaky_entries(const Csr<Index>& csr, int64_t first, int64_t last,
                                  const Leaky<T, Acc>& keys, const Acc* vector, Features features,
                                  Acc* out) {
  const auto terms = [&](int64_t row, int64_t col, int64_t k) JAX_GNN_LAMBDA {
    return LeakyProduct<T, Acc>{vector + k, keys.row_key + row, keys.col_key + col, keys.slope};
  };
  sum_entries(csr, first, last, keys.col_key, features, terms, out);
}

template <typename T, typename Acc, typename Index>
JAX_GNN_INLINE void product_entries(const Csr<Index>& csr, int64_t first, int64_t last, const T* a,
                                    const T* b, Features features, Acc* out) {
  const auto terms = [&](int64_t row, int64_t col, int64_t)
                         JAX_GNN_LAMBDA { return RowProduct<T>{a + row, b + col}; };
  sum_entries(csr, first, last, b, features, terms, out);
}

template <typename T, typename Acc, typename Index>
JAX_GNN_INLINE void selected_entries(const Csr<Index>& csr, int64_t first, int64_t last, const T* a,
                                     const T* b, const Select<T, Acc>& select, Features features,
                                     Acc* out) {
  const int64_t width = features.width, heads = features.heads, group = width / heads;
  for (int64_t e = first; e < last; ++e) {
    prefetch_ahead(csr, e, b, width, 0, std::min<int64_t>(width, 256));
    const int64_t row = csr.rows[e], col = col_of(csr, e);
    const int64_t index = select.weight ? weight_of(csr, e) : 0;
    Acc* const target = out + e * heads;
    if (!in_range(row, csr.num_rows) || col < 0 || index < 0) {
      std::fill(target, target + heads, Acc(0));
      continue;
    }
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t in_row = row * width + h * group, in_col = col * width + h * group;
      const Acc weight = select.weight ? select.weight[index * heads + h] : Acc(1);
      target[h] = sum_of_terms<Acc>(group, SelectedProduct<T, Acc>{{a + in_row, b + in_col},
                                                                   select,
                                                                   select.row_key + in_row,
                                                                   select.col_key + in_col,
                                                                   weight});
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
                   if (select) {
                     selected_entries(csr, first, last, a, b, *select, features, out);
                   } else {
                     product_entries(csr, first, last, a, b, features, out);
                   }
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

#define JAX_GNN_INSTANTIATE(T, Acc)         \
  JAX_GNN_INSTANCE(sddmm<T, Acc, int32_t>); \
  JAX_GNN_INSTANCE(leaky_scores<T, Acc, int32_t>);
JAX_GNN_FOR_FLOATS(JAX_GNN_INSTANTIATE)

}  // namespace jax_gnn::cpu
