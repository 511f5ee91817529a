#pragma once

#include <cstdint>

#include "../hypergraph.h"

namespace jax_gnn::cpu {

// Suffices for any rows, with a slot to spare.
inline int64_t num_slots(int64_t num_rows, int64_t count) {
  return count / kSlotSize + num_rows + 1;
}

// Cuts the rows of a CSR matrix into slots of 8 entries, the last of a row filled up with -1; an
// empty row has one slot. ids: (num_slots, 8), the columns. places: (num_slots, 2), the row, and
// twice the slot's place in its row, plus 1 if it is the row's last; (-1, 1) for surplus slots.
//
// A row that indptr starts out of range, or before the end of the row ahead, starts at the nearest
// place that is neither.
template <typename Index>
void edge_split(const Index* indptr, int64_t num_rows, const Index* cols, int64_t count, Index* ids,
                Index* places);

}  // namespace jax_gnn::cpu
