#pragma once

#include <cstdint>

namespace jax_gnn::cpu {

// The neighbours of each node: one half of a graph, those before `indptr[node + 1]`.
template <typename Index>
struct Neighbors {
  const Index* indptr;  // (num_nodes + 1,)
  const Index* nodes;
  int64_t count;  // of nodes

  bool sound(int64_t num_nodes) const;
};

// Limits of a part: its nodes, and the edges that end there.
struct PartLimits {
  double nodes, edges;
};

// Gives each node a part where most of its neighbours are and which has room: node by node, by
// breadth-first search, then again, as often as told, where that is better. A node with more edges
// than there is room for goes where fewest are. Edges count where they end: `into` has the sources
// of edges by destination, `out` the destinations by source, or nothing where these are the same.
// Ids out of range are no neighbours.
//
// `parts`: (num_nodes,); with `refine` parts to begin with, all in range, which only lose nodes
// where they are too full.
template <typename Index>
void partition(const Neighbors<Index>& into, const Neighbors<Index>& out, int64_t num_nodes,
               int64_t num_parts, PartLimits limits, int64_t rounds, bool refine, int32_t* parts);

}  // namespace jax_gnn::cpu
