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

// Memory is slow where writes go all over it. Hence ids of nodes are cut into so many ranges at
// most, edges are dealt out to these, and then sorted range by range, within caches.
constexpr int kRangeBits = 8;
constexpr int kDigitBits = 11;  // as many places are written to in turn by a pass of a sort
constexpr int64_t kFew = 256;   // so few are sorted faster by comparing

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

// Of counts, kept one place after, where each key starts.
template <typename Index>
void add_up(Index* starts, int64_t num_keys) {
  for (int64_t k = 0; k < num_keys; ++k) starts[k + 1] += starts[k];
}

// Which range of nodes each edge belongs to, and where each range starts among the edges.
struct Ranges {
  explicit Ranges(int64_t num_nodes)
      : shift(std::max(0, bit_width(num_nodes - 1) - kRangeBits)),
        starts((std::max<int64_t>(num_nodes - 1, 0) >> shift) + 2) {}

  int64_t count() const { return static_cast<int64_t>(starts.size()) - 1; }
  void add(int64_t node) { ++starts[(node >> shift) + 1]; }
  void begin() {
    add_up(starts.data(), count());
    next = starts;
  }
  int64_t place(int64_t node) { return next[node >> shift]++; }

  int shift;
  std::vector<int64_t> starts, next;
};

// Sorts stably by a few bits of one id.
template <typename Index>
void sort_by_digit(const Triple<Index>* from, Triple<Index>* to, int64_t size,
                   Index Triple<Index>::* key, int shift, int bits) {
  const Index mask = (Index(1) << bits) - 1;
  int64_t next[(1 << kDigitBits) + 1] = {};
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
  for (const auto& [key, bits] : keys)
    for (int shift = 0; shift < bits; shift += kDigitBits) {
      sort_by_digit(triples, other, size, key, shift, std::min(kDigitBits, bits - shift));
      std::swap(triples, other);
    }
  return triples;
}

int64_t longest(const std::vector<int64_t>& starts) {
  int64_t size = 0;
  for (size_t k = 1; k < starts.size(); ++k) size = std::max(size, starts[k] - starts[k - 1]);
  return size;
}

// Sorts what `read` gives for each place stably by its first id, a node, in a buffer of as many,
// and gives it to `write`, with its new place.
template <typename Index, typename Read, typename Write>
void sort_by_node(int64_t count, int64_t num_nodes, const Read& read,
                  const Buffer<Triple<Index>>& buffer, const Write& write) {
  Ranges ranges(num_nodes);
  for (int64_t i = 0; i < count; ++i) ranges.add(read(i).src);
  ranges.begin();
  for (int64_t i = 0; i < count; ++i) {
    const Triple<Index> triple = read(i);
    buffer[ranges.place(triple.src)] = triple;
  }
  const Buffer<Triple<Index>> other(longest(ranges.starts));
  for (int64_t r = 0; r < ranges.count(); ++r) {
    const int64_t start = ranges.starts[r], size = ranges.starts[r + 1] - start;
    const Triple<Index>* const found = sort_range<Index>(buffer.data() + start, other.data(), size,
                                                         {{&Triple<Index>::src, ranges.shift}});
    for (int64_t i = 0; i < size; ++i) write(start + i, found[i]);
  }
}

// Writes values at places that are a permutation; range by range, in a buffer of as many.
template <typename Index, typename Value>
void scatter(int64_t count, const Index* places, const Value& value, Index* to,
             const Buffer<Triple<Index>>& buffer) {
  Ranges ranges(count);
  for (int64_t i = 0; i < count; ++i) ranges.add(places[i]);
  ranges.begin();
  for (int64_t i = 0; i < count; ++i)
    buffer[ranges.place(places[i])] = {places[i], 0, 0, static_cast<Index>(value(i))};
  for (int64_t i = 0; i < count; ++i) to[buffer[i].src] = buffer[i].id;
}

}  // namespace

template <typename Index>
void sort_triples(const Triples& triples, const SortedTriples<Index>& sorted) {
  using Edge = Triple<Index>;
  const int64_t num_src = triples.num_src, num_dst = triples.num_dst;
  Ranges to_dst(num_dst), to_src(num_src);
  for_each(triples, [&](int64_t src, int64_t, int64_t dst, int64_t) {
    to_dst.add(dst);
    to_src.add(src);
  });
  to_dst.begin();
  to_src.begin();
  const int64_t size = to_dst.starts.back();
  for_each(triples, [&](int64_t src, int64_t rel, int64_t dst, int64_t id) {
    const int64_t at = to_dst.place(dst);
    sorted.rows[at] = static_cast<Index>(dst);
    sorted.cols[at] = static_cast<Index>(src);
    sorted.types[at] = static_cast<Index>(rel);
    sorted.ids[at] = static_cast<Index>(id);
  });

  const int64_t most = std::max(longest(to_dst.starts), longest(to_src.starts));
  const Buffer<Edge> edges(most), other(most);
  std::fill(sorted.indptr, sorted.indptr + num_dst + 1, Index(0));
  std::fill(sorted.t_indptr, sorted.t_indptr + num_src + 1, Index(0));
  const int src_bits = bit_width(num_src - 1), rel_bits = bit_width(triples.total_relations() - 1);

  // By destination, relation and source; at the same time edges are dealt out by source.
  for (int64_t r = 0; r < to_dst.count(); ++r) {
    const int64_t start = to_dst.starts[r], count = to_dst.starts[r + 1] - start;
    for (int64_t i = 0; i < count; ++i)
      edges[i] = {sorted.cols[start + i], sorted.types[start + i], sorted.rows[start + i],
                  sorted.ids[start + i]};
    const Edge* const found = sort_range<Index>(
        edges.data(), other.data(), count,
        {{&Edge::src, src_bits}, {&Edge::rel, rel_bits}, {&Edge::dst, to_dst.shift}});
    for (int64_t i = 0; i < count; ++i) {
      const Edge edge = found[i];
      ++sorted.indptr[edge.dst + 1];
      sorted.rows[start + i] = edge.dst;
      sorted.cols[start + i] = edge.src;
      sorted.types[start + i] = edge.rel;
      sorted.ids[start + i] = edge.id;
      const int64_t at = to_src.place(edge.src);
      sorted.t_rows[at] = edge.src;
      sorted.t_cols[at] = edge.dst;
      sorted.t_order[at] = static_cast<Index>(start + i);
    }
  }
  add_up(sorted.indptr, num_dst);

  // By source: destinations and relations stay in order.
  for (int64_t r = 0; r < to_src.count(); ++r) {
    const int64_t start = to_src.starts[r], count = to_src.starts[r + 1] - start;
    for (int64_t i = 0; i < count; ++i)
      edges[i] = {sorted.t_rows[start + i], 0, sorted.t_cols[start + i], sorted.t_order[start + i]};
    const Edge* const found =
        sort_range<Index>(edges.data(), other.data(), count, {{&Edge::src, to_src.shift}});
    for (int64_t i = 0; i < count; ++i) {
      ++sorted.t_indptr[found[i].src + 1];
      sorted.t_rows[start + i] = found[i].src;
      sorted.t_cols[start + i] = found[i].dst;
      sorted.t_order[start + i] = found[i].id;
    }
  }
  add_up(sorted.t_indptr, num_src);
  for (Index* ids : {sorted.rows, sorted.cols, sorted.types, sorted.ids, sorted.t_rows,
                     sorted.t_cols, sorted.t_order})
    std::fill(ids + size, ids + triples.total(), Index(-1));
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
int64_t source_pairs(const SortedEdges<Index>& edges, const NodePairs<Index>& pairs, Index* cols,
                     Index* t_indptr, Index* t_rows, Index* t_cols, Index* t_order) {
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
  const Buffer<Edge> other(longest(starts));
  const int src_bits = bit_width(edges.num_src - 1);
  int64_t pair = -1;
  for (int64_t rel = 0; rel < num_relations; ++rel) {
    const int64_t before = pair, start = starts[rel], count = starts[rel + 1] - start;
    const Edge* const found =
        sort_range<Index>(buffer.data() + start, other.data(), count, {{&Edge::src, src_bits}});
    Index node = -1;
    for (int64_t i = 0; i < count; ++i) {
      if (found[i].src != node) {
        node = found[i].src;
        pairs.nodes[++pair] = node;
        t_indptr[pair] = static_cast<Index>(start + i);
      }
      t_rows[start + i] = static_cast<Index>(pair);
      t_cols[start + i] = found[i].dst;
      t_order[start + i] = found[i].id;
    }
    pairs.sizes[rel] = static_cast<Index>(pair - before);
  }
  const int64_t num_pairs = pair + 1;
  t_indptr[num_pairs] = static_cast<Index>(valid);
  scatter(valid, t_order, [&](int64_t i) { return t_rows[i]; }, cols, buffer);

  sort_by_node<Index>(
      num_pairs, edges.num_src,
      [&](int64_t i) { return Edge{pairs.nodes[i], 0, 0, static_cast<Index>(i)}; }, buffer,
      [&](int64_t at, const Edge& edge) {
        pairs.sorted_nodes[at] = edge.src;
        pairs.order[at] = edge.id;
      });
  scatter(num_pairs, pairs.order, [](int64_t i) { return i; }, pairs.places, buffer);
  for (Index* ids : {cols, t_rows, t_cols, t_order})
    std::fill(ids + valid, ids + edges.count, Index(-1));
  return num_pairs;
}

template <typename Index>
int64_t destination_pairs(const SortedEdges<Index>& edges, const NodePairs<Index>& pairs,
                          Index* indptr, Index* rows, Index* t_cols) {
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
      valid, edges.num_src, [&](int64_t i) { return Edge{edges.cols[i], 0, 0, rows[i]}; }, buffer,
      [&](int64_t at, const Edge& edge) { t_cols[at] = edge.id; });
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
