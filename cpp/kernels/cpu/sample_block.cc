#include "sample_block.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "vector.h"

namespace jax_gnn::cpu {
namespace {

// --- Random numbers ------------------------------------------------------------------------------

constexpr int kLanes = 16;  // rows that are drawn for at once
using Words = Vector<uint32_t, kLanes>;
using Wide = Vector<uint64_t, kLanes>;

struct Bits {
  Words high, low;
};

template <int kRotation>
JAX_GNN_INLINE void mix(Words& a, Words& b) {
  a += b;
  b = (b << kRotation) | (b >> (32 - kRotation));
  b ^= a;
}

// Threefry-2x32, 20 rounds.
JAX_GNN_INLINE Bits threefry(const uint32_t* key, Words a, Words b) {
  const uint32_t words[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
  a += words[0];
  b += words[1];
  JAX_GNN_UNROLL
  for (int group = 0; group < 5; ++group) {
    if (group % 2 == 0) {
      mix<13>(a, b);
      mix<15>(a, b);
      mix<26>(a, b);
      mix<6>(a, b);
    } else {
      mix<17>(a, b);
      mix<29>(a, b);
      mix<16>(a, b);
      mix<24>(a, b);
    }
    a += words[(group + 1) % 3];
    b += words[(group + 2) % 3] + static_cast<uint32_t>(group + 1);
  }
  return {a, b};
}

// Integers below `size`, of 64 random bits: their product, rounded down.
JAX_GNN_INLINE Words below(const Bits& random, Words size) {
  const Wide wide = convert<Wide>(size);
  const Wide low = convert<Wide>(random.low) * wide >> 32;
  return convert<Words>((convert<Wide>(random.high) * wide + low) >> 32);
}

// --- Draws ---------------------------------------------------------------------------------------

// Rows that are drawn for together: Floyd's algorithm, a round of all of them at a time.
struct Lanes {
  int count = 0;
  Words rows = {}, bases = {};  // without replacement: degrees less the fanout
};

template <typename Index>
JAX_GNN_INLINE void draw(const Random& random, const Lanes& lanes, int64_t fanout, bool replace,
                         Words* columns, Index* offsets) {
  for (int64_t step = 0; step < fanout; ++step) {
    const auto number = static_cast<uint32_t>(step);
    const Bits bits =
        threefry(random.key, lanes.rows, broadcast<Words>((random.stream << 24) | number));
    if (replace) {
      columns[step] = below(bits, lanes.bases);
    } else {
      const Words last = lanes.bases + number;
      Words drawn = below(bits, last + 1);
      for (int64_t other = 0; other < step; ++other) drawn = columns[other] == drawn ? last : drawn;
      columns[step] = drawn;
    }
  }
  for (int lane = 0; lane < lanes.count; ++lane) {
    Index* const to = offsets + lanes.rows[lane] * fanout;
    for (int64_t step = 0; step < fanout; ++step)
      to[step] = static_cast<Index>(columns[step][lane]);
  }
}

template <typename Index>
JAX_GNN_INLINE void draw_rows(const Random& random, const Index* degrees, int64_t begin,
                              int64_t end, int64_t fanout, bool replace, Words* columns,
                              Index* offsets, Index* counts) {
  Lanes lanes;
  for (int64_t row = begin; row < end; ++row) {
    const Index degree = degrees[row];
    const auto size = static_cast<uint32_t>(degree);
    const auto max_count = static_cast<Index>(fanout);
    counts[row] = replace ? (degree > 0 ? max_count : Index(0)) : std::min(degree, max_count);
    if (!replace && size <= static_cast<uint64_t>(fanout)) {  // all of them
      for (int64_t step = 0; step < fanout; ++step)
        offsets[row * fanout + step] = static_cast<Index>(step);
      continue;
    }
    lanes.rows[lanes.count] = static_cast<uint32_t>(row);
    lanes.bases[lanes.count] = replace ? size : size - static_cast<uint32_t>(fanout);
    if (++lanes.count == kLanes) {
      draw(random, lanes, fanout, replace, columns, offsets);
      lanes.count = 0;
    }
  }
  if (lanes.count > 0) draw(random, lanes, fanout, replace, columns, offsets);
}

// Integers of edges that were drawn of a row, modulo 2^32, in the order of draws: where each
// begins, the same without those drawn before, and its size.
struct DrawnSet {
  explicit DrawnSet(int64_t fanout) : begins(fanout), reduced(fanout), sizes(fanout) {}
  std::vector<uint32_t> begins, reduced, sizes;
};

// Draws of one row. A draw without replacement is among what is left: it goes past the edges that
// were drawn and start up to it.
template <typename Index>
JAX_GNN_INLINE Index draw_weighted(const Random& random, const uint32_t* sums, int64_t row,
                                   Index degree, int64_t fanout, bool replace, DrawnSet& drawn_set,
                                   Index* offsets) {
  uint32_t left = sums[degree] - sums[0];
  int64_t count = 0;
  Bits bits = {};
  Words lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = static_cast<uint32_t>(lane);
  for (int64_t step = 0; step < fanout; ++step) {
    if (step % kLanes == 0) {
      const uint32_t number = (random.stream << 24) | static_cast<uint32_t>(step);
      bits = threefry(random.key, broadcast<Words>(static_cast<uint32_t>(row)), lanes + number);
    }
    const uint64_t low = uint64_t{bits.low[step % kLanes]} * left >> 32;
    auto value = static_cast<uint32_t>((uint64_t{bits.high[step % kLanes]} * left + low) >> 32);
    if (!replace) {
      uint32_t passed = 0;
      for (int64_t j = 0; j < step; ++j)
        passed += drawn_set.reduced[j] <= value ? drawn_set.sizes[j] : 0;
      value += passed;
    }
    Index first = 0, last = degree - 1;
    while (first < last) {
      const Index middle = first + (last - first) / 2;
      if (sums[middle + 1] - sums[0] > value) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    offsets[step] = first;
    count += left > 0;
    if (replace) continue;
    const uint32_t begin = sums[first] - sums[0];
    const uint32_t size = left > 0 ? sums[first + 1] - sums[first] : 0;
    uint32_t earlier = 0;
    for (int64_t j = 0; j < step; ++j) {
      earlier += drawn_set.begins[j] < begin ? drawn_set.sizes[j] : 0;
      drawn_set.reduced[j] -= drawn_set.begins[j] > begin ? size : 0;
    }
    drawn_set.begins[step] = begin;
    drawn_set.reduced[step] = begin - earlier;
    drawn_set.sizes[step] = size;
    left -= size;
  }
  return static_cast<Index>(count);
}

// --- Edges by destination ------------------------------------------------------------------------

// Lines up what was drawn: indptr, rows and edge_ids of a block, and where each edge comes from, in
// the whole graph, -1 where the graph names no node. Gives how many edges there are.
template <typename Index>
int64_t line_up(const ParallelFor& parallel_for, const Drawn<Index>& drawn,
                const Block<Index>& block, Index* nodes) {
  int64_t total = 0;
  block.indptr[0] = 0;
  for (int64_t row = 0; row < drawn.num_dst; ++row) {
    total += std::clamp<int64_t>(drawn.counts[row], 0, drawn.fanout);
    total = std::min(total, block.num_edges);
    block.indptr[row + 1] = static_cast<Index>(total);
  }
  constexpr double kOperations = 64;  // of an edge, whose source is far off in memory
  const int64_t tasks =
      task_count(kOperations * static_cast<double>(total), std::min<int64_t>(drawn.num_dst, 1024));
  parallel_for(tasks, [&](int64_t task) {
    const int64_t first = even_share(drawn.num_dst, task, tasks);
    const int64_t last = even_share(drawn.num_dst, task + 1, tasks);
    for (int64_t row = first; row < last; ++row) {
      const Index* offsets = drawn.offsets + row * drawn.fanout;
      Index* const begin = block.edge_ids + block.indptr[row];
      Index* const end = block.edge_ids + block.indptr[row + 1];
      std::fill(block.rows + block.indptr[row], block.rows + block.indptr[row + 1],
                static_cast<Index>(row));
      const auto count = std::clamp<int64_t>(drawn.counts[row], 0, drawn.fanout);
      if (drawn.ascending && end - begin < count) {  // the smallest ones
        std::partial_sort_copy(offsets, offsets + count, begin, end);
      } else {
        std::copy_n(offsets, end - begin, begin);
        if (drawn.ascending) std::sort(begin, end);
      }
      for (Index* place = begin; place != end; ++place) *place += drawn.starts[row];
    }
    constexpr int64_t kAhead = 16;
    const int64_t begin = block.indptr[first], end = block.indptr[last];
    for (int64_t e = begin; e < end; ++e) {
      const Index ahead = block.edge_ids[std::min(e + kAhead, end - 1)];
      if (in_range(ahead, drawn.num_whole)) prefetch(drawn.cols + ahead, 1);
      const Index place = block.edge_ids[e];
      const Index node = in_range(place, drawn.num_whole) ? drawn.cols[place] : Index(-1);
      nodes[e] = in_range(node, drawn.num_nodes) ? node : Index(-1);
    }
  });
  for (Index* ids : {block.rows, block.edge_ids, nodes})
    std::fill(ids + total, ids + block.num_edges, Index(-1));
  return total;
}

// Orders edges by source: those of one source stay in order, those without one are left out.
template <typename Index>
void by_source(const Block<Index>& block) {
  std::fill(block.t_indptr, block.t_indptr + block.num_src + 1, Index(0));
  for (int64_t e = 0; e < block.num_edges; ++e)
    if (block.cols[e] >= 0) ++block.t_indptr[block.cols[e] + 1];
  for (int64_t s = 0; s < block.num_src; ++s) block.t_indptr[s + 1] += block.t_indptr[s];
  std::vector<Index> next(block.t_indptr, block.t_indptr + block.num_src);
  for (int64_t e = 0; e < block.num_edges; ++e) {
    const Index source = block.cols[e];
    if (source < 0) continue;
    const Index at = next[source]++;
    block.t_rows[at] = source;
    block.t_cols[at] = block.rows[e];
    block.t_order[at] = static_cast<Index>(e);
  }
  const int64_t total = block.t_indptr[block.num_src];
  for (Index* ids : {block.t_rows, block.t_cols, block.t_order})
    std::fill(ids + total, ids + block.num_edges, Index(-1));
}

// Leaves edges without a source out; the others move up.
template <typename Index>
void drop_without_source(const Drawn<Index>& drawn, const Block<Index>& block) {
  int64_t position = 0, e = 0;
  for (int64_t row = 0; row < drawn.num_dst; ++row) {
    const int64_t end = block.indptr[row + 1];
    for (; e < end; ++e) {
      if (block.cols[e] < 0) continue;
      block.rows[position] = block.rows[e];
      block.edge_ids[position] = block.edge_ids[e];
      block.cols[position++] = block.cols[e];
    }
    block.indptr[row + 1] = static_cast<Index>(position);
  }
  for (Index* ids : {block.rows, block.edge_ids, block.cols})
    std::fill(ids + position, ids + e, Index(-1));
}

// --- Distinct nodes ------------------------------------------------------------------------------

// A set of nodes, as bits, which numbers them by id.
class NodeSet {
 public:
  explicit NodeSet(int64_t num_nodes)
      : size_(num_nodes / 32 + 1),
        words_(static_cast<Word*>(std::calloc(static_cast<size_t>(size_), sizeof(Word)))) {
    if (!words_) throw std::bad_alloc();
  }

  template <typename Index>
  void add(Index node) {
    words_[node >> 5].bits |= uint32_t{1} << (node & 31);
  }

  // After all have been added: gives how many there are.
  int64_t count() {
    uint32_t before = 0;
    for (int64_t w = 0; w < size_; ++w) {
      words_[w].before = before;
      before += static_cast<uint32_t>(__builtin_popcount(words_[w].bits));
    }
    return before;
  }

  // The number of nodes of the set before this one.
  template <typename Index>
  JAX_GNN_INLINE int64_t number(Index node) const {
    const Word word = words_[node >> 5];
    const uint32_t lower = (uint32_t{1} << (node & 31)) - 1;
    return word.before + static_cast<uint32_t>(__builtin_popcount(word.bits & lower));
  }

  // Calls body(node) for each, in ascending order.
  template <typename Body>
  void for_each(const Body& body) const {
    for (int64_t w = 0; w < size_; ++w)
      for (uint32_t bits = words_[w].bits; bits != 0; bits &= bits - 1)
        body(32 * w + __builtin_ctz(bits));
  }

 private:
  struct Word {
    uint32_t bits, before;
  };
  struct Free {
    void operator()(Word* words) const { std::free(words); }
  };
  int64_t size_;
  std::unique_ptr<Word[], Free> words_;
};

// --- Blocks --------------------------------------------------------------------------------------

template <typename Index>
void tree_block(const ParallelFor& parallel_for, const Drawn<Index>& drawn,
                const Block<Index>& block) {
  const int64_t num_dst = drawn.num_dst, num_edges = block.num_edges;
  std::copy_n(drawn.nodes, num_dst, block.sources);
  const int64_t total = line_up(parallel_for, drawn, block, block.sources + num_dst);
  std::fill_n(block.t_indptr, num_dst + 1, Index(0));
  for (int64_t e = 0; e < num_edges; ++e) {
    const bool valid = e < total;
    block.cols[e] = block.t_rows[e] = static_cast<Index>(valid ? num_dst + e : -1);
    block.t_cols[e] = block.rows[e];
    block.t_order[e] = static_cast<Index>(valid ? e : -1);
    block.t_indptr[num_dst + 1 + e] = static_cast<Index>(std::min(e + 1, total));
  }
}

// Numbers sources: each node is one, the first destination that it is, or behind these, by id.
// Writes the ids of new sources, as many as there is room for, and the source of each of `total`
// edges that start at `nodes`, -1 for none. Gives how many sources there are.
template <typename Index>
int64_t number_nodes(const ParallelFor& parallel_for, const Drawn<Index>& drawn,
                     const Block<Index>& block, const Index* nodes, int64_t total) {
  const int64_t num_dst = drawn.num_dst, num_src = block.num_src;
  NodeSet set(drawn.num_nodes);
  for (int64_t i = 0; i < num_dst; ++i)
    if (in_range(drawn.nodes[i], drawn.num_nodes)) set.add(drawn.nodes[i]);
  for (int64_t e = 0; e < total; ++e)
    if (nodes[e] >= 0) set.add(nodes[e]);

  std::vector<Index> sources(set.count(), Index(-1));
  for (int64_t i = num_dst - 1; i >= 0; --i)
    if (in_range(drawn.nodes[i], drawn.num_nodes))
      sources[set.number(drawn.nodes[i])] = static_cast<Index>(i);
  int64_t count = num_dst;
  auto source = sources.begin();
  set.for_each([&](int64_t node) {
    if (*source < 0) {
      if (count < num_src) {
        *source = static_cast<Index>(count);
        block.sources[count] = static_cast<Index>(node);
      }
      ++count;
    }
    ++source;
  });
  const int64_t tasks = task_count(16 * static_cast<double>(total), 1024);
  parallel_for(tasks, [&](int64_t task) {
    const int64_t end = even_share(total, task + 1, tasks);
    for (int64_t e = even_share(total, task, tasks); e < end; ++e)
      block.cols[e] = nodes[e] < 0 ? Index(-1) : sources[set.number(nodes[e])];
  });
  return count;
}

// Sorts entries by keys of theirs, unsigned integers; those of one key stay in order.
template <typename Index, typename Key>
void sort_by(std::vector<Index>& entries, const Key& key) {
  using Word = decltype(key(Index()));
  constexpr int kBits = 11;
  constexpr size_t kDigits = size_t{1} << kBits;
  Word max_key = 0;
  for (const Index entry : entries) max_key = std::max(max_key, key(entry));
  std::vector<Index> sorted(entries.size());
  for (int shift = 0; shift < 8 * static_cast<int>(sizeof(Word)) && max_key >> shift != 0;
       shift += kBits) {
    const auto digit = [&](Index entry) { return key(entry) >> shift & (kDigits - 1); };
    size_t starts[kDigits + 1] = {};
    for (const Index entry : entries) ++starts[digit(entry) + 1];
    for (size_t d = 0; d < kDigits; ++d) starts[d + 1] += starts[d];
    for (const Index entry : entries) sorted[starts[digit(entry)]++] = entry;
    entries.swap(sorted);
  }
}

// Numbers the nodes by a sort: for graphs of more nodes than bits are worth, and where nodes of
// different seeds are different sources, by id, then seed.
template <typename Index>
int64_t number_sorted(const Drawn<Index>& drawn, const Block<Index>& block, const Index* nodes,
                      int64_t total) {
  using Word = std::make_unsigned_t<Index>;
  const auto num_dst = static_cast<Index>(drawn.num_dst);
  std::vector<Word> ids(num_dst + total), seeds(num_dst + total);
  std::vector<Index> entries;
  entries.reserve(ids.size());
  for (Index i = 0; i < num_dst + static_cast<Index>(total); ++i) {
    const Index node = i < num_dst ? drawn.nodes[i] : nodes[i - num_dst];
    if (!in_range(node, drawn.num_nodes)) continue;
    ids[i] = static_cast<Word>(node);
    if (drawn.seeds != nullptr)
      seeds[i] = static_cast<Word>(drawn.seeds[i < num_dst ? i : block.rows[i - num_dst]]);
    entries.push_back(i);
  }
  sort_by(entries, [&](Index i) { return seeds[i]; });
  sort_by(entries, [&](Index i) { return ids[i]; });

  std::fill_n(block.cols, total, Index(-1));
  int64_t count = num_dst;
  Index source = -1;
  for (size_t k = 0; k < entries.size(); ++k) {
    const Index entry = entries[k], before = entries[k > 0 ? k - 1 : 0];
    if (k == 0 || ids[entry] != ids[before] || seeds[entry] != seeds[before]) {
      source = entry;  // a destination, as these come first
      if (entry >= num_dst) {
        source = count < block.num_src ? static_cast<Index>(count) : Index(-1);
        if (source >= 0) block.sources[source] = static_cast<Index>(ids[entry]);
        ++count;
      }
    }
    if (entry >= num_dst) block.cols[entry - num_dst] = source;
  }
  return count;
}

template <typename Index>
bool distinct_block(const ParallelFor& parallel_for, const Drawn<Index>& drawn,
                    const Block<Index>& block) {
  const int64_t num_dst = drawn.num_dst, num_src = block.num_src;
  Index* const nodes = block.t_rows;  // for now
  const int64_t total = line_up(parallel_for, drawn, block, nodes);
  std::copy_n(drawn.nodes, num_dst, block.sources);
  constexpr int64_t kNodes = 32;  // bits of so many nodes take as long as to sort an edge
  const bool sorted = drawn.seeds != nullptr || drawn.num_nodes / kNodes > num_dst + total;
  const int64_t count = sorted ? number_sorted(drawn, block, nodes, total)
                               : number_nodes(parallel_for, drawn, block, nodes, total);
  if (count < num_src) std::fill(block.sources + count, block.sources + num_src, Index(-1));
  std::fill(block.cols + total, block.cols + block.num_edges, Index(-1));
  const int64_t max_sources =
      drawn.seeds ? block.num_edges : std::min(block.num_edges, drawn.num_nodes);
  if (num_src < num_dst + max_sources)
    drop_without_source(drawn, block);  // it may be that some are left out
  by_source(block);
  return count > num_src;
}

}  // namespace

template <typename Index>
void sample_uniform(const ParallelFor& parallel_for, const Random& random, const Index* degrees,
                    int64_t num_rows, int64_t fanout, bool replace, Index* offsets, Index* counts) {
  const double steps = static_cast<double>(fanout);
  const double operations = static_cast<double>(num_rows) * steps * (16 + steps / 16);
  const int64_t tasks = task_count(operations, std::max<int64_t>(num_rows / kLanes, 1));
  parallel_for(tasks, [&](int64_t task) {
    const std::unique_ptr<Words[]> columns(new Words[fanout]);
    const int64_t begin = even_share(num_rows, task, tasks);
    const int64_t end = even_share(num_rows, task + 1, tasks);
    with_instruction_set<InstructionSet::kAvx512>([&](auto) JAX_GNN_LAMBDA {
      draw_rows(random, degrees, begin, end, fanout, replace, columns.get(), offsets, counts);
    });
  });
}

template <typename Index>
void sample_weighted(const ParallelFor& parallel_for, const Random& random,
                     const Weighted<Index>& rows, int64_t fanout, bool replace, Index* offsets,
                     Index* counts) {
  const double steps = static_cast<double>(fanout);
  const double operations = static_cast<double>(rows.num_rows) * steps * (64 + steps);
  const int64_t tasks = task_count(operations, std::max<int64_t>(rows.num_rows, 1));
  parallel_for(tasks, [&](int64_t task) {
    DrawnSet drawn_set(fanout);
    const int64_t end = even_share(rows.num_rows, task + 1, tasks);
    with_instruction_set<InstructionSet::kAvx512>([&](auto) JAX_GNN_LAMBDA {
      for (int64_t row = even_share(rows.num_rows, task, tasks); row < end; ++row) {
        const auto start = std::clamp<int64_t>(rows.starts[row], 0, rows.num_whole);
        const auto degree = std::clamp<int64_t>(rows.degrees[row], 0, rows.num_whole - start);
        counts[row] = 0;
        std::fill_n(offsets + row * fanout, fanout, Index(0));
        if (degree == 0) continue;
        counts[row] = draw_weighted(random, rows.sums + start, row, static_cast<Index>(degree),
                                    fanout, replace, drawn_set, offsets + row * fanout);
      }
    });
  });
}

template <typename Index>
bool sample_block(const ParallelFor& parallel_for, bool tree, const Drawn<Index>& drawn,
                  const Block<Index>& block) {
  if (!tree) return distinct_block(parallel_for, drawn, block);
  tree_block(parallel_for, drawn, block);
  return false;
}

#define JAX_GNN_INSTANTIATE(Index)          \
  JAX_GNN_INSTANCE(sample_uniform<Index>);  \
  JAX_GNN_INSTANCE(sample_weighted<Index>); \
  JAX_GNN_INSTANCE(sample_block<Index>);

JAX_GNN_INSTANTIATE(int32_t)
JAX_GNN_INSTANTIATE(int64_t)

}  // namespace jax_gnn::cpu
