#include "sort_pairs.h"

#include <algorithm>
#include <vector>

#include "vector.h"

namespace jax_gnn::cpu {
namespace {

// Counting sort: fills in where each key begins among the sorted, and after the last.
template <typename Index, typename Key>
void count_keys(int64_t count, int64_t num_keys, const Key& key, Index* starts) {
  std::fill(starts, starts + num_keys + 1, Index(0));
  for (int64_t i = 0; i < count; ++i) ++starts[key(i) + 1];
  for (int64_t k = 0; k < num_keys; ++k) starts[k + 1] += starts[k];
}

}  // namespace

template <typename Index>
void sort_pairs(const int64_t* rows, const int64_t* cols, int64_t count, int64_t num_rows,
                int64_t num_cols, const SortedPairs<Index>& by_row,
                const SortedPairs<Index>& by_col, Index* back) {
  std::vector<Index> valid;  // pairs that are no padding
  valid.reserve(count);
  for (int64_t i = 0; i < count; ++i)
    if (in_range(rows[i], num_rows) && in_range(cols[i], num_cols))
      valid.push_back(static_cast<Index>(i));
  const int64_t size = valid.size();

  // By column, then by row: columns stay in order.
  std::vector<Index> pairs(size);
  count_keys(size, num_cols, [&](int64_t i) { return cols[valid[i]]; }, by_col.indptr);
  std::vector<Index> next(by_col.indptr, by_col.indptr + num_cols + 1);
  for (const Index pair : valid) pairs[next[cols[pair]]++] = pair;
  count_keys(size, num_rows, [&](int64_t i) { return rows[pairs[i]]; }, by_row.indptr);
  next.assign(by_row.indptr, by_row.indptr + num_rows + 1);
  for (const Index pair : pairs) {
    const Index at = next[rows[pair]]++;
    by_row.rows[at] = static_cast<Index>(rows[pair]);
    by_row.cols[at] = static_cast<Index>(cols[pair]);
    by_row.order[at] = pair;
  }

  // By column once more: rows stay in order.
  next.assign(by_col.indptr, by_col.indptr + num_cols + 1);
  for (int64_t i = 0; i < size; ++i) {
    const Index at = next[by_row.cols[i]]++;
    by_col.rows[at] = by_row.cols[i];
    by_col.cols[at] = by_row.rows[i];
    by_col.order[at] = by_row.order[i];
    back[at] = static_cast<Index>(i);
  }
  for (Index* ids :
       {by_row.rows, by_row.cols, by_row.order, by_col.rows, by_col.cols, by_col.order, back})
    std::fill(ids + size, ids + count, Index(-1));
}

#define JAX_GNN_INSTANTIATE(Index)                                                    \
  template void sort_pairs(const int64_t*, const int64_t*, int64_t, int64_t, int64_t, \
                           const SortedPairs<Index>&, const SortedPairs<Index>&, Index*);

JAX_GNN_INSTANTIATE(int32_t)
JAX_GNN_INSTANTIATE(int64_t)

}  // namespace jax_gnn::cpu
