#include "sort_triples.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "vector.h"

namespace jax_gnn::cpu {
namespace {

// What a sort moves: whole triples, so that each of its writes is one to one cache line.
template <typename Index>
struct Triple {
  Index src, rel, dst, id;
};

// Visits all triples that are no padding.
template <typename Visit>
void for_each(const Triples& t, const Visit& visit) {
  for (const bool reversed : {false, true}) {
    if (reversed && !t.inverse) break;
    for (int64_t i = 0; i < t.count; ++i)
      if (in_range(t.src[i], t.num_src) && in_range(t.dst[i], t.num_dst) &&
          in_range(t.rel[i], t.num_relations)) {
        if (reversed)
          visit(t.dst[i], t.num_relations + t.rel[i], t.src[i], i);
        else
          visit(t.src[i], t.rel[i], t.dst[i], i);
      }
  }
  if (t.loops)
    for (int64_t node = 0; node < t.num_src; ++node) visit(node, t.total_relations() - 1, node, -1);
}

// Of counts, kept one place behind, where each key starts.
template <typename Index>
void add_up(Index* starts, int64_t num_keys) {
  for (int64_t k = 0; k < num_keys; ++k) starts[k + 1] += starts[k];
}

// Fills in the row of each entry.
template <typename Index>
void expand(const Index* indptr, int64_t num_rows, Index* rows) {
  for (int64_t row = 0; row < num_rows; ++row)
    std::fill(rows + indptr[row], rows + indptr[row + 1], static_cast<Index>(row));
}

}  // namespace

template <typename Index>
void sort_triples(const Triples& triples, const SortedTriples<Index>& sorted) {
  const int64_t num_src = triples.num_src, num_dst = triples.num_dst;
  const int64_t num_relations = triples.total_relations();
  std::vector<Index> type_starts(num_relations + 1);
  std::fill(sorted.indptr, sorted.indptr + num_dst + 1, Index(0));
  std::fill(sorted.t_indptr, sorted.t_indptr + num_src + 1, Index(0));
  for_each(triples, [&](int64_t src, int64_t rel, int64_t dst, int64_t) {
    ++sorted.t_indptr[src + 1];
    ++type_starts[rel + 1];
    ++sorted.indptr[dst + 1];
  });
  add_up(sorted.t_indptr, num_src);
  add_up(type_starts.data(), num_relations);
  add_up(sorted.indptr, num_dst);
  const int64_t size = sorted.indptr[num_dst];

  // By source, then relation, then destination, from one buffer to the other.
  std::unique_ptr<Triple<Index>[]> from(new Triple<Index>[size]), to(new Triple<Index>[size]);
  std::vector<Index> next(sorted.t_indptr, sorted.t_indptr + num_src + 1);
  for_each(triples, [&](int64_t src, int64_t rel, int64_t dst, int64_t id) {
    to[next[src]++] = {static_cast<Index>(src), static_cast<Index>(rel), static_cast<Index>(dst),
                       static_cast<Index>(id)};
  });
  from.swap(to);
  for (int64_t i = 0; i < size; ++i) to[type_starts[from[i].rel]++] = from[i];
  from.swap(to);
  next.assign(sorted.indptr, sorted.indptr + num_dst + 1);
  for (int64_t i = 0; i < size; ++i) to[next[from[i].dst]++] = from[i];
  from.reset();

  // By source once more: destinations and relations stay in order.
  next.assign(sorted.t_indptr, sorted.t_indptr + num_src + 1);
  for (int64_t i = 0; i < size; ++i) {
    const Triple<Index> triple = to[i];
    sorted.rows[i] = triple.dst;
    sorted.cols[i] = triple.src;
    sorted.types[i] = triple.rel;
    sorted.ids[i] = triple.id;
    const Index at = next[triple.src]++;
    sorted.t_cols[at] = triple.dst;
    sorted.t_order[at] = static_cast<Index>(i);
  }
  expand(sorted.t_indptr, num_src, sorted.t_rows);
  for (Index* ids : {sorted.rows, sorted.cols, sorted.types, sorted.ids, sorted.t_rows,
                     sorted.t_cols, sorted.t_order})
    std::fill(ids + size, ids + triples.total(), Index(-1));
}

template <typename Index>
bool SortedEdges<Index>::sound() const {
  if (valid < 0 || valid > count) return false;
  bool good = true;
  for (int64_t i = 0; i < valid; ++i)
    good &= in_range(rows[i], num_dst) & in_range(types[i], num_relations) &
            in_range(t_rows[i], num_src) & in_range(t_order[i], valid);
  return good;
}

template <typename Index>
int64_t source_pairs(const SortedEdges<Index>& edges, const NodePairs<Index>& pairs, Index* cols,
                     Index* t_indptr, Index* t_rows, Index* t_cols, Index* t_order) {
  const int64_t valid = edges.valid, num_relations = edges.num_relations;
  // Edges by source, sorted by relation: those of a pair meet.
  std::vector<Index> next(num_relations + 1);
  for (int64_t i = 0; i < valid; ++i) ++next[edges.types[edges.t_order[i]] + 1];
  add_up(next.data(), num_relations);
  const std::vector<Index> starts = next;
  for (int64_t i = 0; i < valid; ++i) {
    const Index at = next[edges.types[edges.t_order[i]]]++;
    t_rows[at] = edges.t_rows[i];  // for now
    t_cols[at] = edges.t_cols[i];
    t_order[at] = edges.t_order[i];
  }
  std::vector<Index> node_starts(edges.num_src + 1);
  int64_t pair = -1;
  for (int64_t rel = 0; rel < num_relations; ++rel) {
    const int64_t before = pair;
    Index node = -1;
    for (int64_t i = starts[rel]; i < starts[rel + 1]; ++i) {
      if (t_rows[i] != node) {
        node = t_rows[i];
        pairs.nodes[++pair] = node;
        ++node_starts[node + 1];
        t_indptr[pair] = static_cast<Index>(i);
      }
      t_rows[i] = static_cast<Index>(pair);
      cols[t_order[i]] = static_cast<Index>(pair);
    }
    pairs.sizes[rel] = static_cast<Index>(pair - before);
  }
  const int64_t num_pairs = pair + 1;
  t_indptr[num_pairs] = static_cast<Index>(valid);
  add_up(node_starts.data(), edges.num_src);
  for (int64_t i = 0; i < num_pairs; ++i) {
    const Index at = node_starts[pairs.nodes[i]]++;
    pairs.sorted_nodes[at] = pairs.nodes[i];
    pairs.order[at] = static_cast<Index>(i);
    pairs.places[i] = at;
  }
  for (Index* ids : {cols, t_rows, t_cols, t_order})
    std::fill(ids + valid, ids + edges.count, Index(-1));
  return num_pairs;
}

template <typename Index>
int64_t destination_pairs(const SortedEdges<Index>& edges, const NodePairs<Index>& pairs,
                          Index* indptr, Index* rows, Index* t_cols) {
  const int64_t valid = edges.valid, num_relations = edges.num_relations;
  std::vector<Index> next(num_relations + 1);
  int64_t pair = -1;
  Index node = -1, rel = -1;
  for (int64_t i = 0; i < valid; ++i) {
    if (edges.rows[i] != node || edges.types[i] != rel) {
      node = edges.rows[i];
      rel = edges.types[i];
      pairs.sorted_nodes[++pair] = node;
      pairs.order[pair] = rel;  // for now
      indptr[pair] = static_cast<Index>(i);
      ++next[rel + 1];
    }
    rows[i] = static_cast<Index>(pair);
  }
  const int64_t num_pairs = pair + 1;
  indptr[num_pairs] = static_cast<Index>(valid);
  std::copy(next.begin() + 1, next.end(), pairs.sizes);
  add_up(next.data(), num_relations);
  for (int64_t i = 0; i < num_pairs; ++i) {
    const Index at = next[pairs.order[i]]++;
    pairs.nodes[at] = pairs.sorted_nodes[i];
    pairs.order[i] = at;
    pairs.places[at] = static_cast<Index>(i);
  }
  for (int64_t i = 0; i < valid; ++i) t_cols[i] = rows[edges.t_order[i]];
  for (Index* ids : {rows, t_cols}) std::fill(ids + valid, ids + edges.count, Index(-1));
  return num_pairs;
}

#define JAX_GNN_INSTANTIATE(Index)                                                               \
  template void sort_triples(const Triples&, const SortedTriples<Index>&);                       \
  template struct SortedEdges<Index>;                                                            \
  template int64_t source_pairs(const SortedEdges<Index>&, const NodePairs<Index>&, Index*,      \
                                Index*, Index*, Index*, Index*);                                 \
  template int64_t destination_pairs(const SortedEdges<Index>&, const NodePairs<Index>&, Index*, \
                                     Index*, Index*);

JAX_GNN_INSTANTIATE(int32_t)
JAX_GNN_INSTANTIATE(int64_t)

}  // namespace jax_gnn::cpu
