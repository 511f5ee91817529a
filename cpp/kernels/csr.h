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

// The same matrix with the row of each entry: the incidences of a hypergraph.
template <typename Index>
struct Incidences {
  const Index* indptr;  // (num_rows + 1,), says which rows are empty
  const Index* rows;    // (count,), ascending, padding at the ends
  const Index* cols;    // (count,)
  int64_t count, num_rows, num_cols;

  Csr<Index> csr() const { return {indptr, cols, num_rows, num_cols, count}; }
};

// What a hypergraph aggregation multiplies by. Null means ones.
template <typename Acc>
struct HypergraphScales {
  const Acc* node_in;    // (num_nodes,), multiplies what is summed
  const Acc* hyperedge;  // (num_hyperedges,)
  const Acc* node_out;   // (num_nodes,), multiplies the result
};

}  // namespace jax_gnn
