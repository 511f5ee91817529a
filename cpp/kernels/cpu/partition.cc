#include "partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "partition_levels.h"

namespace jax_gnn::cpu {
namespace {

constexpr int64_t kBottom = 512;  // clusters that are dealt out, or kBottomOfPart for each part
constexpr int64_t kBottomOfPart = 14;  // if these are more
constexpr int kClusterRounds = 3, kMoveRounds = 8, kBottomRounds = 12;
constexpr double kLoose = 1.1;  // of a limit that is kept later
constexpr int kLoosenings = 2;
constexpr int64_t kTries = 32;          // ways of dealing out
constexpr int64_t kTryEdges = 1 << 22;  // edges that these may look at together
constexpr int64_t kAhead = 8;           // nodes ahead for whose neighbours memory is asked for

// Joins nodes to clusters by label propagation; clusters lie within parts, if there are any.
// Returns the cluster of each node, and their number.
template <typename Index, typename Level>
std::pair<std::vector<Index>, int64_t> cluster(const ParallelFor& parallel_for, const Level& graph,
                                               Load limit, int64_t num_parts,
                                               const int32_t* parts) {
  std::vector<Index> labels(graph.size), wanted(graph.size);
  std::iota(labels.begin(), labels.end(), Index{0});
  std::vector<Load> loads(graph.size);
  std::vector<Index> lone(num_parts, -1);  // of each part, the last cluster without neighbours
  for (int64_t node = 0; node < graph.size; ++node) {
    loads[node] = graph.load(node);
    if (graph.degree(node) > 0) continue;
    // Nodes without neighbours join each other: they would stay alone, and end the levels early.
    Index& label = lone[parts == nullptr ? 0 : parts[node]];
    if (label < 0 || !fits(loads[label] + loads[node], limit)) label = static_cast<Index>(node);
    if (label != node) loads[label] = loads[label] + loads[node];
    labels[node] = label;
  }
  std::vector<int64_t> grown(graph.size);  // the last block in which a cluster grew
  int64_t moves = graph.size;
  for (int round = 0; round < kClusterRounds && moves * 50 >= graph.size; ++round) {
    moves = 0;
    std::fill(grown.begin(), grown.end(), -1);
    const auto choose = [&](int64_t begin, int64_t end) {
      Sums<Index> sums;
      for (int64_t node = begin; node < end; ++node) {
        if (node + kAhead < end) graph.ask_for(node + kAhead, labels.data());
        sums.clear(graph.degree(node, kSample));
        graph.visit(node, kSample, [&](Index other, float weight) {
          if (other != node && (parts == nullptr || parts[other] == parts[node]))
            sums.add(labels[other], weight);
        });
        const Load load = graph.load(node);
        const Index old = labels[node];
        Index best = old;
        float most = 0;
        uint64_t rank = 0;
        sums.each([&](Index label, float sum) {
          if (label == old) most = std::max(most, sum);
        });
        sums.each([&](Index label, float sum) {
          if (label == old || sum < most || !fits(loads[label] + load, limit)) return;
          // Of equal ones a random one: ids would join all to few.
          const uint64_t bits = random_bits(static_cast<uint64_t>(label) * 31 + node + round);
          if (sum == most && best != old && bits <= rank) return;
          best = label, most = sum, rank = bits;
        });
        wanted[node] = best;
      }
    };
    const auto apply = [&](int64_t node, int64_t block) {
      const Index old = labels[node], label = wanted[node];
      // Two nodes of a block that chose each other would only swap.
      if (label == old || grown[old] == block || !fits(loads[label] + graph.load(node), limit))
        return;
      loads[old] = loads[old] - graph.load(node);
      loads[label] = loads[label] + graph.load(node);
      grown[label] = block;
      labels[node] = label;
      ++moves;
    };
    in_blocks(parallel_for, graph.size, choose, apply);
  }
  int64_t count = 0;
  std::fill(wanted.begin(), wanted.end(), Index{-1});
  for (Index& label : labels) {
    Index& number = wanted[label];
    if (number < 0) number = static_cast<Index>(count++);
    label = number;
  }
  return {std::move(labels), count};
}

template <typename Index, typename Level>
Coarse<Index> contract(const ParallelFor& parallel_for, const Level& graph,
                       const std::vector<Index>& labels, int64_t count) {
  std::vector<int64_t> starts(count + 2);
  for (const Index label : labels) ++starts[label + 2];
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  std::vector<Index> members(graph.size);
  for (int64_t node = 0; node < graph.size; ++node)
    members[starts[labels[node] + 1]++] = static_cast<Index>(node);
  Coarse<Index> coarse;
  coarse.size = count;
  coarse.loads.resize(count);
  coarse.starts.resize(count + 1);
  const int64_t tasks = (count + kTask - 1) / kTask;
  std::vector<Coarse<Index>> pieces(tasks);
  parallel_for(tasks, [&](int64_t task) {
    Sums<Index> sums;
    Coarse<Index>& piece = pieces[task];
    for (int64_t i = task * kTask; i < std::min((task + 1) * kTask, count); ++i) {
      int64_t degrees = 0;
      for (int64_t j = starts[i]; j < starts[i + 1]; ++j) degrees += graph.degree(members[j]);
      sums.clear(std::min(degrees, count));
      for (int64_t j = starts[i]; j < starts[i + 1]; ++j) {
        if (j + kAhead < graph.size) graph.ask_for(members[j + kAhead], labels.data());
        coarse.loads[i] = coarse.loads[i] + graph.load(members[j]);
        graph.visit(members[j], kAll, [&](Index other, float weight) {
          if (labels[other] != i) sums.add(labels[other], weight);
        });
      }
      sums.each([&](Index label, float sum) {
        piece.nodes.push_back(label);
        piece.weights.push_back(sum);
      });
      coarse.starts[i + 1] = static_cast<int64_t>(piece.nodes.size());  // within the piece
    }
  });
  for (int64_t i = 0; i < count; ++i) {
    if (i % kTask == 0) {
      const Coarse<Index>& piece = pieces[i / kTask];
      coarse.nodes.insert(coarse.nodes.end(), piece.nodes.begin(), piece.nodes.end());
      coarse.weights.insert(coarse.weights.end(), piece.weights.begin(), piece.weights.end());
    }
    coarse.starts[i + 1] += coarse.starts[i / kTask * kTask];
  }
  return coarse;
}

// Parts of the nodes of a level.
template <typename Level>
class Parts {
 public:
  Parts(const Level& graph, int64_t num_parts, Load limit, int32_t* parts)
      : graph_(graph), limit_(limit), parts_(parts), loads_(num_parts) {}

  // Deals all nodes out, in the order of a search from random nodes: each to the part of most of
  // its neighbours, where full parts are worth less.
  void deal_out(uint64_t seed) {
    std::vector<int64_t> roots(graph_.size), queue;
    std::iota(roots.begin(), roots.end(), int64_t{0});
    for (int64_t i = graph_.size - 1; i > 0; --i)
      std::swap(roots[i], roots[random_bits(seed << 40 | i) % (i + 1)]);
    std::fill_n(parts_, graph_.size, -1);
    std::fill(loads_.begin(), loads_.end(), Load{});
    std::vector<bool> is_met(graph_.size);
    std::vector<double> near(loads_.size());
    for (const int64_t root : roots) {
      size_t place = queue.size();
      if (!is_met[root]) queue.push_back(root);
      is_met[root] = true;
      for (; place < queue.size(); ++place) {
        const int64_t node = queue[place];
        const Load load = graph_.load(node);
        std::fill(near.begin(), near.end(), 1e-3);
        graph_.visit(node, kAll, [&](int64_t other, float weight) {
          if (parts_[other] >= 0) near[parts_[other]] += weight;
          if (!is_met[other]) queue.push_back(other);
          is_met[other] = true;
        });
        int32_t best = -1, emptiest = 0;
        double most = -1;
        for (int32_t part = 0; part < static_cast<int32_t>(loads_.size()); ++part) {
          if (share(loads_[part], limit_) < share(loads_[emptiest], limit_)) emptiest = part;
          const double worth = near[part] * (1 - share(loads_[part], limit_));
          if (worth > most && fits(loads_[part] + load, limit_)) best = part, most = worth;
        }
        put(node, best < 0 ? emptiest : best);
      }
    }
  }

  // Counts what each part has, of given parts.
  void count() {
    std::fill(loads_.begin(), loads_.end(), Load{});
    for (int64_t node = 0; node < graph_.size; ++node) put(node, parts_[node]);
  }

  // Improves with a wider limit, then with the limit itself: parts that are full exchange nodes.
  void loosen(const ParallelFor& parallel_for, int rounds) {
    const Load limit = limit_;
    limit_ = {limit.nodes * kLoose, limit.edges * kLoose};
    improve(parallel_for, rounds);
    limit_ = limit;
    improve(parallel_for, rounds);
  }

  // Moves nodes to the part of most of their neighbours, and out of parts that are too full: first
  // those that lose little.
  void improve(const ParallelFor& parallel_for, int rounds) {
    std::vector<uint8_t> awake(graph_.size, 1), moves_out(graph_.size);
    int64_t moves = graph_.size;
    // As many rounds again make room at any price.
    for (int round = 1; round <= 2 * rounds; ++round) {
      const bool is_over = overload() > 1;
      if (!is_over && (moves * 1000 < graph_.size || round > rounds)) break;
      moves = 0;
      const int patience = round <= rounds ? round : 0;
      const auto choose = [&](int64_t begin, int64_t end) {
        Near near(loads_.size());
        for (int64_t node = begin; node < end; ++node) {
          moves_out[node] = (awake[node] || !fits(loads_[parts_[node]], limit_)) &&
                            best_part(node, patience, near) != parts_[node];
          awake[node] = 0;
        }
      };
      Near near(loads_.size());
      const auto apply = [&](int64_t node, int64_t) {
        if (!moves_out[node]) return;
        const int32_t old = parts_[node], part = best_part(node, patience, near);
        if (part == old) return;
        loads_[old] = loads_[old] - graph_.load(node);
        put(node, part);
        graph_.visit(node, kAll, [&](int64_t other, float) { awake[other] = 1; });
        ++moves;
      };
      in_blocks(parallel_for, graph_.size, choose, apply);
    }
  }

  double overload() const {
    double most = 0;
    for (const Load load : loads_) most = std::max(most, share(load, limit_));
    return most;
  }

  double cut() const {
    double sum = 0;
    for (int64_t node = 0; node < graph_.size; ++node)
      graph_.visit(node, kAll, [&](int64_t other, float weight) {
        sum += parts_[other] == parts_[node] ? 0 : weight;
      });
    return sum;
  }

 private:
  // Weights of edges to each part.
  struct Near {
    explicit Near(size_t num_parts) : sums(num_parts) {}
    std::vector<float> sums;
    std::vector<int32_t> met;
  };

  void put(int64_t node, int32_t part) {
    parts_[node] = part;
    loads_[part] = loads_[part] + graph_.load(node);
  }

  int32_t best_part(int64_t node, int patience, Near& near) const {
    const int32_t old = parts_[node];
    const bool is_over = !fits(loads_[old], limit_);
    const Load load = graph_.load(node);
    graph_.visit(node, kAll, [&](int64_t other, float weight) {
      const int32_t part = parts_[other];
      if (near.sums[part] == 0) near.met.push_back(part);
      near.sums[part] += weight;
    });
    int32_t best = old;
    float most = is_over ? -1 : near.sums[old];
    double least = share(loads_[old], limit_);
    const auto offer = [&](int32_t part) {
      const Load sum = loads_[part] + load;
      if (part == old || !fits(sum, limit_) || near.sums[part] < most) return;
      if (near.sums[part] == most && share(sum, limit_) >= least) return;
      best = part, most = near.sums[part], least = share(sum, limit_);
    };
    for (const int32_t part : near.met) offer(part);
    if (is_over) {
      const auto count = static_cast<int32_t>(loads_.size());
      if (best == old)
        for (int32_t part = 0; part < count; ++part) offer(part);
      // Where all are full, of nodes or of edges, to the one that is the least so.
      for (int32_t part = 0; part < count && patience == 0 && most < 0; ++part) {
        const double full = share(loads_[part] + load, limit_);
        if (full < least) best = part, least = full;
      }
      if (patience > 0 && near.sums[best] * static_cast<float>(patience) < near.sums[old])
        best = old;
    }
    for (const int32_t part : near.met) near.sums[part] = 0;
    near.met.clear();
    return best;
  }

  const Level& graph_;
  Load limit_;
  int32_t* parts_;
  std::vector<Load> loads_;
};

template <typename Index, typename Level>
void solve(const ParallelFor& parallel_for, const Level& graph, int64_t num_parts, Load limit,
           Load cluster_limit, bool refine, int32_t* parts) {
  const bool is_small = graph.size <= std::max(kBottom, kBottomOfPart * num_parts);
  std::vector<Index> labels;
  int64_t count = graph.size;
  if (!is_small)
    std::tie(labels, count) =
        cluster<Index>(parallel_for, graph, cluster_limit, num_parts, refine ? parts : nullptr);
  if (count >= graph.size * 9 / 10) {  // also without nodes
    if (!refine) {
      int64_t edges = graph.size + 1;  // nodes take time, too
      for (int64_t node = 0; node < graph.size; ++node) edges += graph.degree(node);
      const int64_t tries = std::clamp<int64_t>(kTryEdges / edges, 1, kTries);
      std::vector<std::vector<int32_t>> results(tries);
      std::vector<double> costs(tries);
      const ParallelFor alone = [](int64_t n, const auto& task) {
        for (int64_t i = 0; i < n; ++i) task(i);
      };
      parallel_for(tries, [&](int64_t i) {
        results[i].resize(graph.size);
        Parts<Level> dealt(graph, num_parts, limit, results[i].data());
        dealt.deal_out(i);
        dealt.improve(alone, kBottomRounds);
        for (int j = 0; j < kLoosenings; ++j) dealt.loosen(alone, kBottomRounds);
        costs[i] = (dealt.cut() + 1) * std::pow(std::max(dealt.overload(), 1.0), 2);
      });
      const auto best = std::min_element(costs.begin(), costs.end()) - costs.begin();
      std::copy(results[best].begin(), results[best].end(), parts);
      return;
    }
  } else {
    const Coarse<Index> coarse = contract(parallel_for, graph, labels, count);
    std::vector<int32_t> coarse_parts(count);
    if (refine)
      for (int64_t node = 0; node < graph.size; ++node) coarse_parts[labels[node]] = parts[node];
    solve<Index>(parallel_for, coarse, num_parts, limit, cluster_limit, refine,
                 coarse_parts.data());
    for (int64_t node = 0; node < graph.size; ++node) parts[node] = coarse_parts[labels[node]];
  }
  Parts<Level> level(graph, num_parts, limit, parts);
  level.count();
  level.improve(parallel_for, kMoveRounds);
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
void partition(const ParallelFor& parallel_for, const Neighbors<Index>& into,
               const Neighbors<Index>& out, int64_t num_nodes, int64_t num_parts, Load limit,
               bool refine, int32_t* parts) {
  const Finest<Index> graph{{into, out}, out.indptr == nullptr ? 1 : 2, num_nodes};
  const auto clusters = static_cast<double>(std::max(kBottom, kBottomOfPart * num_parts));
  const double edges = static_cast<double>(into.indptr[num_nodes] - into.indptr[0]);
  const Load cluster_limit{std::max(num_nodes / clusters, 1.0), std::max(edges / clusters, 1.0)};
  solve<Index>(parallel_for, graph, num_parts, limit, cluster_limit, refine, parts);
}

template <typename Index>
void count_halo(const ParallelFor& parallel_for, const Neighbors<Index>& out, int64_t num_nodes,
                const int32_t* parts, int64_t num_parts, int64_t* counts) {
  const int64_t tasks = std::clamp<int64_t>(num_nodes / kTask, 1, kBlocks);
  std::vector<std::vector<int64_t>> sums(tasks, std::vector<int64_t>(num_parts));
  parallel_for(tasks, [&](int64_t task) {
    std::vector<int64_t> reader(num_parts, -1);  // the last node that a part reads
    const int64_t end = even_share(num_nodes, task + 1, tasks);
    for (int64_t node = even_share(num_nodes, task, tasks); node < end; ++node) {
      reader[parts[node]] = node;
      for (int64_t i = out.indptr[node]; i < out.indptr[node + 1]; ++i) {
        if (!in_range(out.nodes[i], num_nodes)) continue;
        const int32_t part = parts[out.nodes[i]];
        sums[task][part] += reader[part] != node;
        reader[part] = node;
      }
    }
  });
  std::fill_n(counts, num_parts, 0);
  for (const auto& sum : sums)
    for (int64_t part = 0; part < num_parts; ++part) counts[part] += sum[part];
}

#define JAX_GNN_PARTITION(Index)                                                                 \
  template struct Neighbors<Index>;                                                              \
  template void partition(const ParallelFor&, const Neighbors<Index>&, const Neighbors<Index>&,  \
                          int64_t, int64_t, Load, bool, int32_t*);                               \
  template void count_halo(const ParallelFor&, const Neighbors<Index>&, int64_t, const int32_t*, \
                           int64_t, int64_t*);
JAX_GNN_PARTITION(int32_t)
JAX_GNN_PARTITION(int64_t)

}  // namespace jax_gnn::cpu
