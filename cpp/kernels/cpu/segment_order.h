#pragma once

#include <cstdint>

namespace jax_gnn::cpu {

// order: the positions of `ids` (count,) sorted by id, those of the same id in the order in which
// they stand; ids outside [0, num_segments) last.
template <typename Index>
void segment_order(const Index* ids, int64_t count, int64_t num_segments, Index* order);

}  // namespace jax_gnn::cpu
