// Levels of a multilevel partition: the graph, and clusters of the nodes of the level before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "partition.h"
#include "vector.h"

namespace jax_gnn::cpu {

constexpr int64_t kAll = INT64_MAX / 2;
constexpr int64_t kSample = 24;  // neighbours of a half that a node chooses its cluster by
constexpr int64_t kBlocks = 64, kTask = 1024;

inline Load operator+(Load a, Load b) { return {a.nodes + b.nodes, a.edges + b.edges}; }
inline Load operator-(Load a, Load b) { return {a.nodes - b.nodes, a.edges - b.edges}; }
inline bool fits(Load load, Load limit) {
  return load.nodes <= limit.nodes && load.edges <= limit.edges;
}

// How full a part is; 1 at its limit.
inline double share(Load load, Load limit) {
  return std::max(load.nodes / limit.nodes, load.edges / std::max(limit.edges, 1e-9));
}

inline uint64_t random_bits(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The given graph: edges of weight 1.
template <typename Index>
struct Finest {
  Neighbors<Index> halves[2];
  int num_halves;
  int64_t size;

  Load load(int64_t node) const {
    return {1, static_cast<double>(halves[0].indptr[node + 1] - halves[0].indptr[node])};
  }

  // The number of neighbours, at most `limit` of each half.
  int64_t degree(int64_t node, int64_t limit = kAll) const {
    int64_t sum = 0;
    for (int h = 0; h < num_halves; ++h)
      sum += std::min<int64_t>(halves[h].indptr[node + 1] - halves[h].indptr[node], limit);
    return sum;
  }

  // Calls visit(neighbour, weight) for neighbours, at most `limit` of each half.
  template <typename Visit>
  void visit(int64_t node, int64_t limit, Visit visit) const {
    for (int h = 0; h < num_halves; ++h) {
      const int64_t begin = halves[h].indptr[node], end = halves[h].indptr[node + 1];
      const int64_t step = std::max<int64_t>((end - begin + limit - 1) / limit, 1);
      for (int64_t i = begin + (step > 1 ? node % step : 0); i < end; i += step)
        if (in_range(halves[h].nodes[i], size)) visit(halves[h].nodes[i], 1.0f);
    }
  }

  template <typename State>
  JAX_GNN_INLINE void ask_for(int64_t node, const State* states) const {
    for (int h = 0; h < num_halves; ++h) {
      const int64_t begin = halves[h].indptr[node], end = halves[h].indptr[node + 1];
      for (int64_t i = begin; i < std::min(end, begin + kSample); ++i)
        if (in_range(halves[h].nodes[i], size)) __builtin_prefetch(states + halves[h].nodes[i]);
    }
  }
};

// Clusters of a finer level, and the weights of edges between them, in both directions.
template <typename Index>
struct Coarse {
  int64_t size = 0;
  std::vector<Load> loads;
  std::vector<int64_t> starts;
  std::vector<Index> nodes;
  std::vector<float> weights;

  Load load(int64_t node) const { return loads[node]; }
  int64_t degree(int64_t node, int64_t = kAll) const { return starts[node + 1] - starts[node]; }

  template <typename Visit>
  void visit(int64_t node, int64_t, Visit visit) const {
    for (int64_t i = starts[node]; i < starts[node + 1]; ++i) visit(nodes[i], weights[i]);
  }

  template <typename State>
  JAX_GNN_INLINE void ask_for(int64_t node, const State* states) const {
    for (int64_t i = starts[node]; i < std::min(starts[node + 1], starts[node] + kSample); ++i)
      __builtin_prefetch(states + nodes[i]);
  }
};

// Sums of weights by key: a small hash table that stays in a cache.
template <typename Index>
class Sums {
 public:
  void clear(int64_t max_keys) {
    for (const int64_t slot : used_) keys_[slot] = -1;
    used_.clear();
    while (static_cast<int64_t>(keys_.size()) < 2 * max_keys || keys_.empty()) {
      keys_.assign(std::max<size_t>(2 * keys_.size(), 64), -1);
      sums_.resize(keys_.size());
    }
  }

  void add(Index key, float weight) {
    const uint64_t mask = keys_.size() - 1;
    uint64_t slot = (static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15 >> 32) & mask;
    while (keys_[slot] != key) {
      if (keys_[slot] == -1) {
        keys_[slot] = key;
        sums_[slot] = 0;
        used_.push_back(static_cast<int64_t>(slot));
        break;
      }
      slot = (slot + 1) & mask;
    }
    sums_[slot] += weight;
  }

  template <typename Visit>
  void each(Visit visit) const {
    for (const int64_t slot : used_) visit(keys_[slot], sums_[slot]);
  }

 private:
  std::vector<Index> keys_;
  std::vector<float> sums_;
  std::vector<int64_t> used_;
};

// Runs choose(begin, end) for the nodes of a block on several threads, then, on one, apply(node)
// for each; block by block. apply(node, first) knows the first node of its block. A choice sees
// what was applied to the blocks before, so that the result does not depend on the number of
// threads.
template <typename Choose, typename Apply>
void in_blocks(const ParallelFor& parallel_for, int64_t size, const Choose& choose,
               const Apply& apply) {
  const int64_t block = std::clamp<int64_t>(size / kBlocks, 1, 1 << 18);
  for (int64_t first = 0; first < size; first += block) {
    const int64_t last = std::min(first + block, size);
    const int64_t tasks = (last - first + kTask - 1) / kTask;
    const auto run = [&](int64_t i) {
      choose(first + i * kTask, std::min(first + (i + 1) * kTask, last));
    };
    if (tasks == 1)
      run(0);
    else
      parallel_for(tasks, run);
    for (int64_t node = first; node < last; ++node) apply(node, first);
  }
}

}  // namespace jax_gnn::cpu
