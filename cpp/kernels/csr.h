#pragma once

#include <cstdint>

namespace jax_gnn {

// Rows of a sparse 0/1 matrix. Ids and indptr come from the user's arrays: kernels must check both.
template <typename Index>
struct Csr {
  const Index* indptr;   // rows + 1
  const Index* indices;  // nnz
  int64_t rows, cols, nnz;
};

}  // namespace jax_gnn
