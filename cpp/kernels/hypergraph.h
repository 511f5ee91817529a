#pragma once

#include <cstdint>

#include "segments.h"

namespace jax_gnn {

constexpr int kSlotSize = 8;

// Rows of a sparse 0/1 matrix. Ids and indptr come from the user's arrays: kernels must check both.
template <typename Index>
struct RowPointers {
  const Index* indptr;   // rows + 1
  const Index* indices;  // nnz
  int64_t rows, cols, nnz;
};

// The rows of a sparse 0/1 matrix, cut into slots (jax_gnn/_core/csr.py, edge_split). Ids and
// places come from the user's arrays: kernels must check both.
struct EdgeSplit {
  const int32_t* ids;     // (num_slots, kSlotSize): columns; outside [0, num_cols) padding
  const int32_t* places;  // (num_slots, 2): the row; 2 * the slot's place in it + whether it is the
                          // last. Outside [0, num_rows) it is no row; so the last slot's. What
                          // follows a row of -1 may be passed over
  int64_t num_slots;      // at least 1
  int64_t num_rows, num_cols;
};

// Scales of a hypergraph aggregation. Null means ones.
template <typename Acc>
struct HypergraphScales {
  const Acc* node_in;    // (num_nodes,), multiplies what is summed
  const Acc* hyperedge;  // (num_hyperedges,)
  const Acc* node_out;   // (num_nodes,), multiplies the result
};

// y = epilogue(diag(node_out) B diag(hyperedge) A diag(node_in) x), with the incidence matrices A
// of `to_hyperedges`, (num_hyperedges, num_nodes), and B of `to_nodes`, (num_nodes,
// num_hyperedges).
template <class Incidences, typename T, typename Acc>
struct Aggregation {
  Incidences to_hyperedges, to_nodes;
  const T* x;  // (num_nodes, width)
  HypergraphScales<Acc> scales;
  Epilogue<T, Acc> epilogue;  // without out_scale and result_scale
  int64_t width;
  T* y;       // (num_nodes, width)
  Acc* sums;  // (num_hyperedges, width), the features of the hyperedges
};

}  // namespace jax_gnn
