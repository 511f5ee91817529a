// Sampled neighbourhoods: which edges of each row are drawn, and the block that is built of these.
// All kernels give what jax_gnn/_ops/sample_block/xla.py computes, bit for bit.
#pragma once

#include <cstdint>
#include <type_traits>

#include "instances.h"

namespace jax_gnn {

// The random numbers of a draw: two words of a key, and a stream below 256.
struct Random {
  const uint32_t* key;
  uint32_t stream;
};

// Drawn edges into nodes.
template <typename Index>
struct Drawn {
  const Index* nodes;    // (num_dst,), ids of the destinations; out of range: padding
  const Index* starts;   // (num_dst,), where their edges start
  const Index* offsets;  // (num_dst, fanout), which of these were drawn
  const Index* counts;   // (num_dst,), how many of them count
  const Index* cols;     // (num_whole,), where each edge of the whole graph comes from
  const Index* seeds;    // (num_dst,), if nodes of different seeds are different sources; or null
  int64_t num_dst, fanout, num_whole, num_nodes;
  bool ascending;  // whether those of a node are put in the whole graph's order
};

// Drawn edges one after another, and the sorted ids of destinations and, after these, of the edges'
// sources; equal ids keep their order.
template <typename Index>
struct Sorted {
  const Index* nodes;                       // (num_dst,)
  const Index* indptr;                      // (num_dst + 1,), where the edges of each start
  const Index* rows;                        // (num_edges,), their destinations; padding: -1
  const Index* places;                      // (num_edges,), where each is in the whole graph
  const std::make_unsigned_t<Index>* keys;  // (num_dst + num_edges,), ids; out of range: padding
  const Index* at;                          // (num_dst + num_edges,), where each was
  const Index* seeds;                       // as of Drawn
  int64_t num_dst, num_nodes;
};

// The arrays of a jax_gnn.Graph with num_edges edges from num_src sources, and the sources' ids.
template <typename Index>
struct Block {
  Index *indptr, *rows, *cols, *t_indptr, *t_rows, *t_cols, *t_order, *edge_ids, *sources;
  int64_t num_edges, num_src;
};

}  // namespace jax_gnn
