#include "edge_split.h"

#include <algorithm>

namespace jax_gnn::cpu {

template <typename Index>
void edge_split(const Index* indptr, int64_t num_rows, const Index* cols, int64_t count, Index* ids,
                Index* places) {
  Index* const ids_end = ids + kSlotSize * num_slots(num_rows, count);
  Index* const places_end = places + 2 * num_slots(num_rows, count);
  int64_t at = std::clamp<int64_t>(indptr[0], 0, count);
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t end = std::clamp<int64_t>(indptr[row + 1], at, count);
    int64_t place = 0;
    for (; end - at > kSlotSize; at += kSlotSize, place += 2) {
      ids = std::copy_n(cols + at, kSlotSize, ids);
      *places++ = static_cast<Index>(row);
      *places++ = static_cast<Index>(place);
    }
    std::fill(std::copy(cols + at, cols + end, ids), ids + kSlotSize, Index(-1));
    ids += kSlotSize;
    *places++ = static_cast<Index>(row);
    *places++ = static_cast<Index>(place + 1);
    at = end;
  }
  std::fill(ids, ids_end, Index(-1));
  while (places != places_end) {
    *places++ = -1;
    *places++ = 1;
  }
}

#define JAX_GNN_INSTANTIATE(Index) \
  template void edge_split(const Index*, int64_t, const Index*, int64_t, Index*, Index*);

JAX_GNN_INSTANTIATE(int32_t)
JAX_GNN_INSTANTIATE(int64_t)

}  // namespace jax_gnn::cpu
