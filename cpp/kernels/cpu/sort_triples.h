#pragma once

#include <cstdint>

#include "../instances.h"
#include "parallel.h"

namespace jax_gnn::cpu {

// Edges with a relation each, in any order, and what to add to them: for relation r the reversed
// edges as relation num_relations + r, and a loop at each node as the relation after all others.
struct Triples {
  const int64_t* src;
  const int64_t* rel;  // or null: there is one relation
  const int64_t* dst;
  int64_t count, num_src, num_dst, num_relations;
  bool inverse, loops;

  int64_t total() const { return count * (inverse ? 2 : 1) + (loops ? num_src : 0); }
  int64_t total_relations() const { return num_relations * (inverse ? 2 : 1) + (loops ? 1 : 0); }
};

// Results: edges by destination, relation and source and, in the second half, by
// source, destination and relation; padding last and -1 throughout.
template <typename Index>
struct SortedTriples {
  Index* indptr;    // (num_dst + 1,), where each destination starts
  Index* rows;      // (total,), destinations
  Index* cols;      // (total,), sources
  Index* types;     // (total,), relations; or null
  Index* ids;       // (total,), where each edge, or the one that it reverses, was; -1 for a loop
  Index* t_indptr;  // (num_src + 1,), where each source starts
  Index* t_rows;    // (total,), sources
  Index* t_cols;    // (total,), destinations
  Index* t_order;   // (total,), where each of these is in the first half
};

// Sorts triples, stably, in linear time; those with an id out of range are padding.
template <typename Index>
void sort_triples(const ParallelFor& parallel_for, const Triples& triples,
                  const SortedTriples<Index>& sorted);

// Writes the second half, given `rows`, which ascend, and `cols`: all of the first `valid` of
// `count` in range, and the others padding.
template <typename Index>
void sort_by_source(const ParallelFor& parallel_for, int64_t count, int64_t valid, int64_t num_src,
                    const SortedTriples<Index>& sorted);

// Edges by destination, relation and source: what pairs are built of.
template <typename Index>
struct SortedEdges {
  const Index* rows;
  const Index* cols;
  const Index* types;
  int64_t count, valid;  // those past the first `valid` are padding
  int64_t num_src, num_dst, num_relations;

  // Whether all ids that are not padding are in range: they are written by.
  bool sound() const;
};

// (node, relation) pairs; the arrays are `count` long, of which as many are written as pairs occur.
template <typename Index>
struct NodePairs {
  Index* nodes;         // by relation, then node: the nodes
  Index* sizes;         // (num_relations,), how many pairs each relation has
  Index* sorted_nodes;  // by node, then relation: the nodes
  Index* order;         // where each of these is by relation
  Index* places;        // the inverse
};

// The (source, relation) pairs, numbered by relation, and the edges out of them by pair, then
// destination. Gives how many there are. Edges must be sound, here and below.
template <typename Index>
int64_t source_pairs(const ParallelFor& parallel_for, const SortedEdges<Index>& edges,
                     const NodePairs<Index>& pairs, Index* cols, Index* t_indptr, Index* t_rows,
                     Index* t_cols, Index* t_order);

// The (destination, relation) pairs, numbered by destination, and the edges into them.
template <typename Index>
int64_t destination_pairs(const ParallelFor& parallel_for, const SortedEdges<Index>& edges,
                          const NodePairs<Index>& pairs, Index* indptr, Index* rows, Index* t_cols);

}  // namespace jax_gnn::cpu
