// The (row, relation) pairs of edges that are sorted by row, then relation:
// jax_gnn/_ops/relation_pairs/primitive.py.
#pragma once

#include <cstdint>

#include "instances.h"

namespace jax_gnn {

// Edges; of padding, which is last, the row is -1.
template <typename Index>
struct TypedRows {
  const Index *rows, *types;  // (num_edges,)
  int64_t num_edges, num_relations;
};

// The arrays of a Pairs of the same names, which are numbered by row; where the edges of each
// start; and the number of each edge's pair.
template <typename Index>
struct RelationPairs {
  Index *nodes, *sizes, *sorted_nodes, *order, *places, *indptr, *numbers;
  int64_t num_pairs;  // room
};

}  // namespace jax_gnn
