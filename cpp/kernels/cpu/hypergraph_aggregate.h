#pragma once

#include <cstdint>

#include "../hypergraph.h"
#include "parallel.h"

namespace jax_gnn::cpu {

// Rows without entries are zero whatever their scale is.
template <typename Index, typename T, typename Acc>
void hypergraph_aggregate(const ParallelFor& parallel_for,
                          const Aggregation<RowPointers<Index>, T, Acc>& aggregation);

}  // namespace jax_gnn::cpu
