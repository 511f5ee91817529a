#include "sort_triples.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "pages.h"
#include "vector.h"

namespace jax_gnn::cpu {
namespace {

// Memory is slow where writes go all over it. Hence ids of nodes are cut into ranges, edges are
// dealt out to these, and then sorted range by range, within caches.
constexpr int kRangeBits = 9;         // so many ranges at most
constexpr int kDigitBits = 11;        // as many places are written to in turn by a pass of a sort
constexpr int64_t kCached = 1 << 14;  // so few stay in a cache, and a pass may write to
constexpr int kCachedBits = 13;       // as many places as there are triples
constexpr int64_t kFew = 256;         // so few are sorted faster by comparing
constexpr int64_t kRange = 4096;      // fewer in a range gain nothing
constexpr int64_t kPart = 1 << 17;    // fewer are not worth a thread
constexpr int64_t kMaxParts = 64;

int bit_width(int64_t number) {
  int width = 0;
  for (; number > 0; number >>= 1) ++width;
  return width;
}

template <typename Index>
struct Triple {
  Index src, rel, dst, id;
};

// Memory that is not set to anything.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t size) : memory_(new T[size]) { expect_writes(data(), size); }
  T* data() const { return memory_.get(); }
  T& operator[](int64_t i) const { return memory_[i]; }

 private:
  std::unique_ptr<T[]> memory_;
};

// Reads the triple at a place, added ones included; false if it is padding.
template <typename Index>
bool read(const Triples& t, int64_t place, Triple<Index>* triple) {
  const bool reversed = place >= t.count;
  const int64_t i = reversed ? place - t.count : place;
  if (reversed && !(t.inverse && i < t.count)) {  // a loop
    const auto node = static_cast<Index>(t.inverse ? i - t.count : i);
    *triple = {node, static_cast<Index>(t.total_relations() - 1), node, Index(-1)};
    return true;
  }
  const int64_t src = t.src[i], dst = t.dst[i], rel = t.rel ? t.rel[i] : 0;
  *triple = {static_cast<Index>(reversed ? dst : src),
             static_cast<Index>(reversed ? t.num_relations + rel : rel),
             static_cast<Index>(reversed ? src : dst), static_cast<Index>(i)};
  return in_range(src, t.num_src) & in_range(dst, t.num_dst) & in_range(rel, t.num_relations);
}

// Turns counts, stored one place after, into the start of each key.
template <typename Index>
void add_up(Index* starts, int64_t num_keys) {
  for (int64_t k = 0; k < num_keys; ++k) starts[k + 1] += starts[k];
}

// Ranges of nodes, and where each starts among the edges that are dealt out to them.
struct Ranges {
  Ranges(int64_t num_nodes, int64_t num_edges)
      : shift(std::max(
            0, bit_width(num_nodes - 1) - std::min(kRangeBits, bit_width(num_edges / kRange)))),
        starts((std::max<int64_t>(num_nodes - 1, 0) >> shift) + 2) {}

  int64_t count() const { return static_cast<int64_t>(starts.size()) - 1; }
  int64_t size(int64_t range) const { return starts[range + 1] - starts[range]; }

  int shift;
  std::vector<int64_t> starts;
};

// Deals edges out to ranges, in their order: `node` says to which one each belongs, -1 for none,
// and `write` is given the place, and the edge.
template <typename Node, typename Write>
Ranges deal(const ParallelFor& parallel_for, int64_t num_edges, int64_t num_nodes, const Node& node,
            const Write& write) {
  Ranges ranges(num_nodes, num_edges);
  const int64_t parts = std::clamp<int64_t>(num_edges / kPart, 1, kMaxParts);
  std::vector<std::vector<int64_t>> next(parts);
  const auto visit = [&](int64_t part, const auto& visit_edge) {
    const int64_t end = even_share(num_edges, part + 1, parts);
    for (int64_t i = even_share(num_edges, part, parts); i < end; ++i)
      if (const int64_t id = node(i); id >= 0) visit_edge(next[part][id >> ranges.shift], i);
  };
  parallel_for(parts, [&](int64_t part) {
    next[part].resize(ranges.count());
    visit(part, [](int64_t& count, int64_t) { ++count; });
  });
  int64_t at = 0;
  for (int64_t range = 0; range < ranges.count(); ++range) {
    for (auto& of_part : next) {
      const int64_t count = std::exchange(of_part[range], at);
      at += count;
    }
    ranges.starts[range + 1] = at;
  }
  parallel_for(parts,
               [&](int64_t part) { visit(part, [&](int64_t& to, int64_t i) { write(to++, i); }); });
  return ranges;
}

// Sorts stably by a few bits of one id.
template <typename Index>
void sort_by_digit(const Triple<Index>* from, Triple<Index>* to, int64_t size,
                   Index Triple<Index>::* key, int shift, int bits) {
  const Index mask = (Index(1) << bits) - 1;
  int64_t next[(1 << kCachedBits) + 1];
  std::fill(next, next + mask + 2, 0);
  for (int64_t i = 0; i < size; ++i) ++next[((from[i].*key >> shift) & mask) + 1];
  add_up(next, mask);
  for (int64_t i = 0; i < size; ++i) to[next[(from[i].*key >> shift) & mask]++] = from[i];
}

// Sorts triples by the last key, then the one ahead, and so on; `bits` says how many low bits of
// each differ. Both buffers are written; gives which one holds the result.
template <typename Index>
Triple<Index>* sort_range(Triple<Index>* triples, Triple<Index>* other, int64_t size,
                          std::initializer_list<std::pair<Index Triple<Index>::*, int>> keys) {
  if (size < kFew) {
    for (const auto& [key, bits] : keys)
      std::stable_sort(triples, triples + size,
                       [key = key](const auto& a, const auto& b) { return a.*key < b.*key; });
    return triples;
  }
  const int max_bits =
      size <= kCached ? std::clamp(bit_width(size), kDigitBits, kCachedBits) : kDigitBits;
  for (const auto& [key, bits] : keys) {
    const int passes = (bits + max_bits - 1) / max_bits;
    for (int pass = 0, shift = 0; pass < passes; ++pass) {
      const int digit = (bits - shift) / (passes - pass);
      sort_by_digit(triples, other, size, key, shift, digit);
      std::swap(triples, other);
      shift += digit;
    }
  }
  return triples;
}

// Sorts what `read` gives for each place stably by its first id, a node, in a buffer of as many,
// and gives it to `write`, with its new place.
template <typename Index, typename Read, typename Write>
void sort_by_node(const ParallelFor& parallel_for, int64_t count, int64_t num_nodes,
                  const Read& read, const Buffer<Triple<Index>>& buffer, const Write& write) {
  const Ranges ranges = deal(
      parallel_for, count, num_nodes, [&](int64_t i) { return read(i).src; },
      [&](int64_t at, int64_t i) { buffer[at] = read(i); });
  parallel_for(ranges.count(), [&](int64_t range) {
    const int64_t start = ranges.starts[range], size = ranges.size(range);
    const Buffer<Triple<Index>> other(size);
    const Triple<Index>* const triples = sort_range<Index>(
        buffer.data() + start, other.data(), size, {{&Triple<Index>::src, ranges.shift}});
    for (int64_t i = 0; i < size; ++i) write(start + i, triples[i]);
  });
}

// Writes values at places that are a permutation; range by range, in a buffer of as many.
template <typename Index, typename Value>
void scatter(const ParallelFor& parallel_for, int64_t count, const Index* places,
             const Value& value, Index* to, const Buffer<Triple<Index>>& buffer) {
  const Ranges ranges = deal(
      parallel_for, count, count, [&](int64_t i) { return places[i]; },
      [&](int64_t at, int64_t i) { buffer[at] = {places[i], 0, 0, static_cast<Index>(value(i))}; });
  parallel_for(ranges.count(), [&](int64_t range) {
    for (int64_t i = ranges.starts[range]; i < ranges.starts[range + 1]; ++i)
      to[buffer[i].src] = buffer[i].id;
  });
}

// Turns counts of a range's nodes, stored one place after in `starts`, into row pointers.
template <typename Index>
void begin_nodes(Index* starts, int64_t num_nodes, const Ranges& ranges, int64_t range) {
  const int64_t end = std::min((range + 1) << ranges.shift, num_nodes);
  auto at = static_cast<Index>(ranges.starts[range]);
  for (int64_t node = range << ranges.shift; node < end; ++node)
    starts[node + 1] = at += starts[node + 1];
}

}  // namespace

template <typename Index>
void sort_by_source(const ParallelFor& parallel_for, int64_t count, int64_t valid, int64_t num_src,
                    const SortedTriples<Index>& sorted) {
  using Edge = Triple<Index>;
  for (Index* ids : {sorted.t_rows, sorted.t_cols, sorted.t_order}) expect_writes(ids, count);
  const Ranges to_src = deal(
      parallel_for, valid, num_src, [&](int64_t i) { return sorted.cols[i]; },
      [&](int64_t at, int64_t i) {
        sorted.t_rows[at] = sorted.cols[i];
        sorted.t_cols[at] = sorted.rows[i];
        sorted.t_order[at] = static_cast<Index>(i);
      });
  std::fill(sorted.t_indptr, sorted.t_indptr + num_src + 1, Index(0));
  parallel_for(to_src.count(), [&](int64_t range) {
    const int64_t start = to_src.starts[range], size = to_src.size(range);
    const Buffer<Edge> edges(size), other(size);
    for (int64_t i = 0; i < size; ++i)
      edges[i] = {sorted.t_rows[start + i], 0, sorted.t_cols[start + i], sorted.t_order[start + i]};
    const Edge* const ordered =
        sort_range<Index>(edges.data(), other.data(), size, {{&Edge::src, to_src.shift}});
    for (int64_t i = 0; i < size; ++i) {
      ++sorted.t_indptr[ordered[i].src + 1];
      sorted.t_rows[start + i] = ordered[i].src;
      sorted.t_cols[start + i] = ordered[i].dst;
      sorted.t_order[start + i] = ordered[i].id;
    }
    begin_nodes(sorted.t_indptr, num_src, to_src, range);
  });
  for (Index* ids : {sorted.t_rows, sorted.t_cols, sorted.t_order})
    std::fill(ids + valid, ids + count, Index(-1));
}

template <typename Index>
void sort_triples(const ParallelFor& parallel_for, const Triples& triples,
                  const SortedTriples<Index>& sorted) {
  using Edge = Triple<Index>;
  const int64_t num_src = triples.num_src, num_dst = triples.num_dst;
  for (Index* ids : {sorted.rows, sorted.cols, sorted.ids}) expect_writes(ids, triples.total());
  const Ranges to_dst = deal(
      parallel_for, triples.total(), num_dst,
      [&](int64_t i) {
        Edge edge;
        return read(triples, i, &edge) ? edge.dst : Index(-1);
      },
      [&](int64_t at, int64_t i) {
        Edge edge;
        read(triples, i, &edge);
        sorted.rows[at] = edge.dst;
        sorted.cols[at] = edge.src;
        if (sorted.types) sorted.types[at] = edge.rel;
        sorted.ids[at] = edge.id;
      });
  const int64_t size = to_dst.starts.back();

  // By destination, relation and source.
  const int src_bits = bit_width(num_src - 1), rel_bits = bit_width(triples.total_relations() - 1);
  std::fill(sorted.indptr, sorted.indptr + num_dst + 1, Index(0));
  parallel_for(to_dst.count(), [&](int64_t range) {
    const int64_t start = to_dst.starts[range], count = to_dst.size(range);
    const Buffer<Edge> edges(count), other(count);
    for (int64_t i = 0; i < count; ++i)
      edges[i] = {sorted.cols[start + i], sorted.types ? sorted.types[start + i] : Index(0),
                  sorted.rows[start + i], sorted.ids[start + i]};
    const Edge* const ordered = sort_range<Index>(
        edges.data(), other.data(), count,
        {{&Edge::src, src_bits}, {&Edge::rel, rel_bits}, {&Edge::dst, to_dst.shift}});
    for (int64_t i = 0; i < count; ++i) {
      const Edge edge = ordered[i];
      ++sorted.indptr[edge.dst + 1];
      sorted.rows[start + i] = edge.dst;
      sorted.cols[start + i] = edge.src;
      if (sorted.types) sorted.types[start + i] = edge.rel;
      sorted.ids[start + i] = edge.id;
    }
    begin_nodes(sorted.indptr, num_dst, to_dst, range);
  });

  for (Index* ids : {sorted.rows, sorted.cols, sorted.types, sorted.ids})
    if (ids) std::fill(ids + size, ids + triples.total(), Index(-1));
  sort_by_source(parallel_for, triples.total(), size, num_src, sorted);
}

template <typename Index>
bool SortedEdges<Index>::sound() const {
  if (valid < 0 || valid > count) return false;
  bool good = true;
  for (int64_t i = 0; i < valid; ++i)
    good &=
        in_range(rows[i], num_dst) & in_range(cols[i], num_src) & in_range(types[i], num_relations);
  return good;
}

template <typename Index>
int64_t source_pairs(const ParallelFor& parallel_for, const SortedEdges<Index>& edges,
                     const NodePairs<Index>& pairs, Index* cols, Index* t_indptr, Index* t_rows,
                     Index* t_cols, Index* t_order) {
  using Edge = Triple<Index>;
  const int64_t valid = edges.valid, num_relations = edges.num_relations;
  std::vector<int64_t> starts(num_relations + 1);
  for (int64_t i = 0; i < valid; ++i) ++starts[edges.types[i] + 1];
  add_up(starts.data(), num_relations);
  const Buffer<Edge> buffer(valid);
  std::vector<int64_t> next = starts;
  for (int64_t i = 0; i < valid; ++i)
    buffer[next[edges.types[i]]++] = {edges.cols[i], 0, edges.rows[i], static_cast<Index>(i)};

  // The edges of a pair meet where those of its relation are sorted by source.
  int64_t max_size = 0;
  for (int64_t rel = 0; rel < num_relations; ++rel)
    max_size = std::max(max_size, starts[rel + 1] - starts[rel]);
  const Buffer<Edge> other(max_size);
  const int src_bits = bit_width(edges.num_src - 1);
  int64_t pair = -1;
  for (int64_t rel = 0; rel < num_relations; ++rel) {
    const int64_t before = pair, start = starts[rel], count = starts[rel + 1] - start;
    const Edge* const ordered =
        sort_range<Index>(buffer.data() + start, other.data(), count, {{&Edge::src, src_bits}});
    Index node = -1;
    for (int64_t i = 0; i < count; ++i) {
      if (ordered[i].src != node) {
        node = ordered[i].src;
        pairs.nodes[++pair] = node;
        t_indptr[pair] = static_cast<Index>(start + i);
      }
      t_rows[start + i] = static_cast<Index>(pair);
      t_cols[start + i] = ordered[i].dst;
      t_order[start + i] = ordered[i].id;
    }
    pairs.sizes[rel] = static_cast<Index>(pair - before);
  }
  const int64_t num_pairs = pair + 1;
  t_indptr[num_pairs] = static_cast<Index>(valid);
  scatter(parallel_for, valid, t_order, [&](int64_t i) { return t_rows[i]; }, cols, buffer);

  sort_by_node<Index>(
      parallel_for, num_pairs, edges.num_src,
      [&](int64_t i) { return Edge{pairs.nodes[i], 0, 0, static_cast<Index>(i)}; }, buffer,
      [&](int64_t at, const Edge& edge) {
        pairs.sorted_nodes[at] = edge.src;
        pairs.order[at] = edge.id;
      });
  scatter(parallel_for, num_pairs, pairs.order, [](int64_t i) { return i; }, pairs.places, buffer);
  for (Index* ids : {cols, t_rows, t_cols, t_order})
    std::fill(ids + valid, ids + edges.count, Index(-1));
  return num_pairs;
}

template <typename Index>
int64_t destination_pairs(const ParallelFor& parallel_for, const SortedEdges<Index>& edges,
                          const NodePairs<Index>& pairs, Index* indptr, Index* rows,
                          Index* t_cols) {
  using Edge = Triple<Index>;
  const int64_t valid = edges.valid, num_relations = edges.num_relations;
  std::vector<int64_t> next(num_relations + 1);
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
  for (int64_t r = 0; r < num_relations; ++r) pairs.sizes[r] = static_cast<Index>(next[r + 1]);
  add_up(next.data(), num_relations);
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int64_t at = next[pairs.order[i]]++;
    pairs.nodes[at] = pairs.sorted_nodes[i];
    pairs.order[i] = static_cast<Index>(at);
    pairs.places[at] = static_cast<Index>(i);
  }
  const Buffer<Edge> buffer(valid);
  sort_by_node<Index>(
      parallel_for, valid, edges.num_src,
      [&](int64_t i) { return Edge{edges.cols[i], 0, 0, rows[i]}; }, buffer,
      [&](int64_t at, const Edge& edge) { t_cols[at] = edge.id; });
  for (Index* ids : {rows, t_cols}) std::fill(ids + valid, ids + edges.count, Index(-1));
  return num_pairs;
}

#define JAX_GNN_INSTANTIATE(Index)         \
  JAX_GNN_INSTANCE(sort_triples<Index>);   \
  JAX_GNN_INSTANCE(sort_by_source<Index>); \
  template struct SortedEdges<Index>;      \
  JAX_GNN_INSTANCE(source_pairs<Index>);   \
  JAX_GNN_INSTANCE(destination_pairs<Index>);

JAX_GNN_INSTANTIATE(int32_t)
JAX_GNN_INSTANTIATE(int64_t)

}  // namespace jax_gnn::cpu
