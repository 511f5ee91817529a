#pragma once

#include <cstdint>

#include "parallel.h"

namespace jax_gnn::cpu {

// The neighbours of each node: one half of a graph, those before `indptr[node + 1]`.
template <typename Index>
struct Neighbors {
  const Index* indptr;  // (num_nodes + 1,)
  const Index* nodes;
  int64_t count;  // of nodes

  bool sound(int64_t num_nodes) const;
};

// Nodes, and edges that end there.
struct Load {
  double nodes = 0, edges = 0;
};

// Deals the nodes of a graph out to parts within a limit, so that few edges lie between parts. An
// edge counts where it ends: `into` has the sources of edges by destination, `out` the destinations
// by source, or nothing where these are the same. Ids out of range are no neighbours. A node with
// more edges than a part may have goes where fewest are. The result does not depend on threads.
//
// A multilevel method. Nodes are joined to clusters by label propagation under a limit of a
// cluster's size (Meyerhenke, Sanders and Schulz, "Partitioning complex networks via
// size-constrained clustering", SEA 2014), clusters again, until few are left; these are dealt out
// by linear deterministic greedy (Stanton and Kliot, "Streaming graph partitioning for large
// distributed graphs", KDD 2012); and at each level on the way back nodes move to the part of most
// of their neighbours.
//
// `parts`: (num_nodes,); with `refine` parts to begin with, all in range, which then are improved
// by clusters within them.
template <typename Index>
void partition(const ParallelFor& parallel_for, const Neighbors<Index>& into,
               const Neighbors<Index>& out, int64_t num_nodes, int64_t num_parts, Load limit,
               bool refine, int32_t* parts);

// Writes the number of rows that each part fetches from others: nodes of another part with an edge
// into it. `out` has the destinations of edges by source; parts are in range.
template <typename Index>
void count_halo(const ParallelFor& parallel_for, const Neighbors<Index>& out, int64_t num_nodes,
                const int32_t* parts, int64_t num_parts, int64_t* counts);

}  // namespace jax_gnn::cpu
