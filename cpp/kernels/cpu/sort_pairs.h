#pragma once

#include <cstdint>

namespace jax_gnn::cpu {

// Where the results go: pairs sorted by row, then column, padding last and -1 throughout.
template <typename Index>
struct SortedPairs {
  Index* indptr;  // (num_rows + 1,), where each row starts
  Index* rows;    // (count,)
  Index* cols;    // (count,)
  Index* order;   // (count,), where each pair was before
};

// Sorts pairs both ways, stably, in linear time; those with an id out of range are padding. `back`:
// where each pair of by_col, whose rows are the columns, stands in by_row.
template <typename Index>
void sort_pairs(const int64_t* rows, const int64_t* cols, int64_t count, int64_t num_rows,
                int64_t num_cols, const SortedPairs<Index>& by_row,
                const SortedPairs<Index>& by_col, Index* back);

}  // namespace jax_gnn::cpu
