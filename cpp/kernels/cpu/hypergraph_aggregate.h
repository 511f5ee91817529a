#pragma once

#include <cstdint>

#include "../hypergraph.h"
#include "parallel.h"

namespace jax_gnn::cpu {

// out[r, :] = row_scale[r] * sum_{j in row r} col_scale[c_j] * in[c_j, :]; a null scale means ones.
// Rows without entries are zero whatever their scale is. To each row `own` is added.
template <typename In, typename Out, typename Scale, typename Index>
void gather_reduce(const ParallelFor& parallel_for, const RowPointers<Index>& incidences,
                   const In* in, const Scale* col_scale, const Scale* row_scale,
                   const Own<Out, Scale>& own, Out* out, int64_t width);

}  // namespace jax_gnn::cpu
