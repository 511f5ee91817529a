#include "partition.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "pages.h"
#include "vector.h"

namespace jax_gnn::cpu {
namespace {

constexpr int32_t kNone = -1;

// State of a node: not met by the search, met, or in a part, numbered from kFirst on.
constexpr int64_t kUnmet = 0, kMet = 1, kFirst = 2;

constexpr int64_t kIdsAhead = 64;  // of how many neighbours memory is asked for ahead

struct Loads {
  Loads(int64_t num_parts, PartLimits limits)
      : limits(limits), nodes(num_parts), edges(num_parts) {}

  void add(int32_t part, int64_t degree, int64_t sign) {
    nodes[part] += sign;
    edges[part] += sign * degree;
  }

  bool fits(int32_t part) const {
    return nodes[part] <= limits.nodes && edges[part] <= limits.edges;
  }

  bool has_room(int32_t part, int64_t degree) const {
    return nodes[part] + 1 <= limits.nodes && edges[part] + degree <= limits.edges;
  }

  // Whether a node without which a part is too full weighs more than its mean where edges are too
  // many, less where nodes are.
  bool relieves(int32_t part, int64_t degree) const {
    const bool many_edges =
        static_cast<double>(degree) * nodes[part] > static_cast<double>(edges[part]);
    const bool few_nodes = nodes[part] + 1 <= limits.nodes;
    const bool few_edges = edges[part] + degree <= limits.edges;
    return few_nodes ? many_edges : few_edges ? !many_edges : true;
  }

  // How full a part is; 1 at its limit.
  double share(int32_t part) const {
    return std::max(nodes[part] / limits.nodes, edges[part] / limits.edges);
  }

  // The emptiest part with room; of none, that with the fewest edges.
  int32_t emptiest(int64_t degree) const {
    int32_t best = kNone, smallest = 0;
    for (int32_t part = 0; part < static_cast<int32_t>(nodes.size()); ++part) {
      if (has_room(part, degree) && (best == kNone || share(part) < share(best))) best = part;
      if (edges[part] < edges[smallest]) smallest = part;
    }
    return best == kNone ? smallest : best;
  }

  PartLimits limits;
  std::vector<int64_t> nodes, edges;
};

// Most time goes to memory: a look at a node reads what is known of its neighbours, which are all
// over the graph. Hence that is one byte where there are few parts, and it is asked for ahead.
template <typename Index, typename State>
class Dealer {
 public:
  Dealer(const Neighbors<Index>& into, const Neighbors<Index>& out, int64_t num_nodes,
         int64_t num_parts, PartLimits limits)
      : halves_{into, out},
        num_halves_(out.indptr == nullptr ? 1 : 2),
        num_nodes_(num_nodes),
        states_(new State[num_nodes]),
        loads_(num_parts, limits),
        near_(num_parts + kFirst),
        met_(num_parts + kFirst + 1) {
    expect_writes(states_.get(), num_nodes);
    std::fill_n(states_.get(), num_nodes, state_of(kUnmet, true));
  }

  static bool can_have(int64_t num_parts) {
    return 2 * (num_parts + kFirst) - 1 <= std::numeric_limits<State>::max();
  }

  // The first time full parts are worth less (linear deterministic greedy).
  void deal_out() {
    search([&](int64_t node) {
      const auto worth = [&](int32_t part) { return near(part) * (1 - loads_.share(part)); };
      const int32_t part = best(node, kNone, worth);
      put(node, part == kNone ? loads_.emptiest(degree_of(node)) : part, true);
    });
  }

  // Moves nodes where more of their neighbours are; those are awake of which a neighbour has moved
  // since the last look.
  void improve(int64_t rounds) {
    const auto worth = [&](int32_t part) { return near(part); };
    bool is_improving = true;
    for (int64_t round = 0; round < rounds && is_improving; ++round) {
      int64_t moves = 0;
      for (int64_t node = 0; node < num_nodes_; ++node) {
        const int32_t old = part_of(node);
        const bool stays = loads_.fits(old);
        if (stays && !awake(node)) continue;
        loads_.add(old, degree_of(node), -1);
        look<true>(node, [](int64_t) {});
        int32_t part = best(node, stays ? old : kNone, worth);
        if (part == kNone) part = loads_.emptiest(degree_of(node));
        forget();
        put(node, part, false);
        if (part == old) continue;
        ++moves;
        for_neighbors(node,
                      [&, states = states_.get()](int64_t neighbor) { states[neighbor] |= 1; });
      }
      is_improving = moves * 1000 >= num_nodes_;
    }
  }

  // Of given parts only those that are too full lose nodes: first such as lose little.
  void relieve(int64_t rounds, const int32_t* parts) {
    const auto order = search([](int64_t) {});
    for (int64_t node = 0; node < num_nodes_; ++node) put(node, parts[node], true);
    const auto worth = [&](int32_t part) { return near(part); };
    for (int64_t round = 1; round <= rounds; ++round) {
      for (int64_t place = 0; place < num_nodes_; ++place) {
        const int64_t node = order[place], degree = degree_of(node);
        const int32_t old = part_of(node);
        if (loads_.fits(old)) continue;
        loads_.add(old, degree, -1);
        look<false>(node, [](int64_t) {});
        int32_t part = best(node, kNone, worth);
        if (round < rounds &&
            (part == kNone || near(part) * round < near(old) || !loads_.relieves(old, degree)))
          part = old;
        if (part == kNone) part = loads_.emptiest(degree);
        forget();
        put(node, part, true);
      }
    }
  }

  int32_t part_of(int64_t node) const {
    return static_cast<int32_t>((states_[node] >> 1) - kFirst);
  }

 private:
  static State state_of(int64_t mark, bool awake) {
    return static_cast<State>(2 * mark + (awake ? 1 : 0));
  }

  bool awake(int64_t node) const { return states_[node] & 1; }

  int64_t degree_of(int64_t node) const {
    return static_cast<int64_t>(halves_[0].indptr[node + 1] - halves_[0].indptr[node]);
  }

  void put(int64_t node, int32_t part, bool awake) {
    states_[node] = state_of(kFirst + part, awake);
    loads_.add(part, degree_of(node), 1);
  }

  // Calls visit(neighbour) for the neighbours of a node. `in_order` says that nodes are visited in
  // the order of their ids, so that the ids behind its own are those of the next.
  template <bool in_order = false, typename Visit>
  void for_neighbors(int64_t node, Visit visit) const {
    const int64_t num_nodes = num_nodes_;
    for (int half = 0; half < num_halves_; ++half) {
      const auto [indptr, nodes, count] = halves_[half];
      const int64_t stop = indptr[node + 1];
      for (int64_t i = indptr[node]; i < stop; ++i) {
        if (in_order) ask_for(nodes[std::min(i + kIdsAhead, count - 1)]);
        if (in_range(nodes[i], num_nodes)) visit(static_cast<int64_t>(nodes[i]));
      }
    }
  }

  // Prefetches are always inline: compilers drop calls of a function that does nothing else.

  JAX_GNN_INLINE void ask_for(Index neighbor) const {  // one past the end if out of range
    __builtin_prefetch(states_.get() + std::min(static_cast<uint64_t>(neighbor),
                                                static_cast<uint64_t>(num_nodes_)));
  }

  // Prefetches for three nodes that are visited soon: the row pointer of the third, the ids of the
  // second's neighbours, the states of the first's.
  JAX_GNN_INLINE void ask_for(int64_t third, int64_t second, int64_t first) const {
    constexpr int64_t kLine = 64 / sizeof(Index);
    for (int half = 0; half < num_halves_; ++half) {
      const auto [indptr, nodes, count] = halves_[half];
      __builtin_prefetch(&indptr[third]);
      int64_t i = indptr[second], stop = std::min<int64_t>(indptr[second + 1], i + kIdsAhead);
      for (; i < stop; i += kLine) __builtin_prefetch(&nodes[i]);
      i = indptr[first], stop = std::min<int64_t>(indptr[first + 1], i + kIdsAhead);
      for (; i < stop; ++i) ask_for(nodes[i]);
    }
  }

  // Counts the neighbours of each kind, without a branch that would often be foretold wrongly.
  template <bool in_order, typename Visit>
  void look(int64_t node, Visit visit) {
    const State* const states = states_.get();
    int32_t* const met = met_.data();
    int64_t* const near = near_.data();
    int64_t num_met = 0;
    for_neighbors<in_order>(node, [&](int64_t neighbor) {
      const int64_t mark = states[neighbor] >> 1;
      met[num_met] = static_cast<int32_t>(mark);
      num_met += near[mark]++ == 0;
      visit(neighbor);
    });
    num_met_ = num_met;
  }

  int64_t near(int32_t part) const { return near_[kFirst + part]; }

  void forget() {
    for (int64_t i = 0; i < num_met_; ++i) near_[met_[i]] = 0;
    num_met_ = 0;
  }

  // The best of a part and the parts of neighbours that have room.
  template <typename Worth>
  int32_t best(int64_t node, int32_t part, Worth worth) const {
    auto max_value = part == kNone ? decltype(worth(0)){} : worth(part);
    for (int64_t i = 0; i < num_met_; ++i) {
      const auto other = static_cast<int32_t>(met_[i] - kFirst);
      if (other < 0 || !loads_.has_room(other, degree_of(node))) continue;
      const auto value = worth(other);
      if (part != kNone && value <= max_value) continue;
      part = other;
      max_value = value;
    }
    return part;
  }

  // Calls visit(node) for all nodes by breadth-first search, so that most come after a neighbour,
  // with what look() finds. The nodes in that order.
  template <typename Visit>
  std::unique_ptr<Index[]> search(Visit visit) {
    std::unique_ptr<Index[]> nodes(new Index[num_nodes_ + 1]);  // one is written in vain
    expect_writes(nodes.get(), num_nodes_ + 1);
    Index* const order = nodes.get();
    State* const states = states_.get();
    int64_t size = 0, place = 0;
    const auto meet = [&, order, states](int64_t node) {
      const int is_new = states[node] >> 1 == kUnmet;  // no branch, likewise
      order[size] = static_cast<Index>(node);
      size += is_new;
      states[node] = static_cast<State>(states[node] + 2 * kMet * is_new);
    };
    for (int64_t root = 0; root < num_nodes_; ++root) {
      for (meet(root); place < size; ++place) {
        if (place + 16 < size) ask_for(order[place + 16], order[place + 8], order[place + 3]);
        look<false>(order[place], meet);
        visit(order[place]);
        forget();
      }
    }
    return nodes;
  }

  Neighbors<Index> halves_[2];
  int num_halves_;
  int64_t num_nodes_;
  std::unique_ptr<State[]> states_;
  Loads loads_;
  std::vector<int64_t> near_;  // how many neighbours are in each part, from kFirst on
  std::vector<int32_t> met_;   // of what kinds there are any, and one that is written in vain
  int64_t num_met_ = 0;
};

template <typename Index, typename State>
void deal(const Neighbors<Index>& into, const Neighbors<Index>& out, int64_t num_nodes,
          int64_t num_parts, PartLimits limits, int64_t rounds, bool refine, int32_t* parts) {
  Dealer<Index, State> dealer(into, out, num_nodes, num_parts, limits);
  if (refine) {
    dealer.relieve(rounds, parts);
  } else {
    dealer.deal_out();
    dealer.improve(rounds);
  }
  for (int64_t node = 0; node < num_nodes; ++node) parts[node] = dealer.part_of(node);
}

}  // namespace

template <typename Index>
bool Neighbors<Index>::sound(int64_t num_nodes) const {
  if (indptr == nullptr) return true;
  if (indptr[0] < 0 || indptr[num_nodes] > count) return false;
  for (int64_t node = 0; node < num_nodes; ++node)
    if (indptr[node] > indptr[node + 1]) return false;
  return true;
}

template <typename Index>
void partition(const Neighbors<Index>& into, const Neighbors<Index>& out, int64_t num_nodes,
               int64_t num_parts, PartLimits limits, int64_t rounds, bool refine, int32_t* parts) {
  const auto run =
      Dealer<Index, uint8_t>::can_have(num_parts) ? &deal<Index, uint8_t> : &deal<Index, uint32_t>;
  run(into, out, num_nodes, num_parts, limits, rounds, refine, parts);
}

#define JAX_GNN_PARTITION(Index)                                                              \
  template struct Neighbors<Index>;                                                           \
  template void partition(const Neighbors<Index>&, const Neighbors<Index>&, int64_t, int64_t, \
                          PartLimits, int64_t, bool, int32_t*);
JAX_GNN_PARTITION(int32_t)
JAX_GNN_PARTITION(int64_t)

}  // namespace jax_gnn::cpu
