#pragma once

#include <cstdint>

#include "parallel.h"

namespace jax_gnn::cpu {

// Rows of `row_bytes` bytes: out[i] = in[ids[i]], zeros where an id is outside [0, num_rows).
void gather_rows(const ParallelFor& parallel_for, const int32_t* ids, int64_t count,
                 int64_t num_rows, const char* in, int64_t row_bytes, char* out);

}  // namespace jax_gnn::cpu
