#include "partition.h"

#include <algorithm>
#include <vector>

namespace jax_gnn::cpu {
namespace {

constexpr int32_t kNone = -1;

// Calls visit(neighbour) for the neighbours of a node.
template <typename Index, typename Visit>
void for_neighbors(const Neighbors<Index>& of, int64_t node, int64_t num_nodes, Visit visit) {
  if (of.indptr == nullptr) return;
  for (int64_t i = of.indptr[node]; i < of.indptr[node + 1]; ++i)
    if (of.nodes[i] >= 0 && of.nodes[i] < num_nodes) visit(static_cast<int64_t>(of.nodes[i]));
}

// All nodes by breadth-first search, so that most come after a neighbour.
template <typename Index>
std::vector<Index> breadth_first(const Neighbors<Index>& into, const Neighbors<Index>& out,
                                 int64_t num_nodes) {
  std::vector<Index> order;
  order.reserve(num_nodes);
  std::vector<bool> seen(num_nodes);
  const auto meet = [&](int64_t node) {
    if (seen[node]) return;
    seen[node] = true;
    order.push_back(static_cast<Index>(node));
  };
  size_t next = 0;
  for (int64_t root = 0; root < num_nodes; ++root) {
    for (meet(root); next < order.size(); ++next) {
      for_neighbors(into, order[next], num_nodes, meet);
      for_neighbors(out, order[next], num_nodes, meet);
    }
  }
  return order;
}

struct Loads {
  Loads(int64_t num_parts, PartLimits limits)
      : limits(limits), nodes(num_parts), edges(num_parts) {}

  void add(int32_t part, int64_t degree, int64_t sign) {
    nodes[part] += sign;
    edges[part] += sign * degree;
  }

  bool has_room(int32_t part, int64_t degree) const {
    return nodes[part] + 1 <= limits.nodes && edges[part] + degree <= limits.edges;
  }

  // Whether a node without which a part is too full weighs more than its mean where edges are too
  // many, less where nodes are.
  bool relieves(int32_t part, int64_t degree) const {
    const bool more = static_cast<double>(degree) * nodes[part] > static_cast<double>(edges[part]);
    const bool few_nodes = nodes[part] + 1 <= limits.nodes;
    const bool few_edges = edges[part] + degree <= limits.edges;
    return few_nodes ? more : few_edges ? !more : true;
  }

  // How full a part is; 1 at its limit.
  double share(int32_t part) const {
    return std::max(nodes[part] / limits.nodes, edges[part] / limits.edges);
  }

  // The emptiest part with room; of none, that with the fewest edges.
  int32_t emptiest(int64_t degree) const {
    int32_t best = kNone, fewest = 0;
    for (int32_t part = 0; part < static_cast<int32_t>(nodes.size()); ++part) {
      if (has_room(part, degree) && (best == kNone || share(part) < share(best))) best = part;
      if (edges[part] < edges[fewest]) fewest = part;
    }
    return best == kNone ? fewest : best;
  }

  PartLimits limits;
  std::vector<int64_t> nodes, edges;
};

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
  const auto order = breadth_first(into, out, num_nodes);
  const auto degree_of = [&](int64_t node) {
    return static_cast<int64_t>(into.indptr[node + 1] - into.indptr[node]);
  };
  Loads loads(num_parts, limits);
  if (refine) {
    for (int64_t node = 0; node < num_nodes; ++node) loads.add(parts[node], degree_of(node), 1);
  } else {
    std::fill(parts, parts + num_nodes, kNone);
  }
  std::vector<int64_t> near(num_parts);   // how many neighbours are in each part
  std::vector<int32_t> met;               // parts with any
  std::vector<char> again(num_nodes, 1);  // whether a neighbour has moved since the last look
  for (int64_t round = refine ? 1 : 0; round <= rounds; ++round) {
    int64_t moves = 0;
    for (int64_t place = 0; place < num_nodes; ++place) {
      const int64_t node = round == 0 || refine ? order[place] : place;
      const int64_t degree = degree_of(node);
      const int32_t old = parts[node];
      if (old != kNone) loads.add(old, degree, -1);
      const bool stays = old != kNone && loads.has_room(old, degree);
      if (stays && (refine || !again[node])) {
        loads.add(old, degree, 1);
        continue;
      }
      again[node] = round == 0;
      const auto count = [&](int64_t neighbor) {
        const int32_t part = parts[neighbor];
        if (part != kNone && near[part]++ == 0) met.push_back(part);
      };
      for_neighbors(into, node, num_nodes, count);
      for_neighbors(out, node, num_nodes, count);
      // The first time full parts are worth less (linear deterministic greedy), later only room
      // counts. Of given parts only those that are too full lose nodes: first such as lose little.
      const auto worth = [&](int32_t part) {
        return static_cast<double>(near[part]) * (round == 0 ? 1 - loads.share(part) : 1);
      };
      int32_t best = stays ? old : kNone;
      for (const int32_t part : met)
        if (loads.has_room(part, degree) && (best == kNone || worth(part) > worth(best)))
          best = part;
      const bool last = round == rounds || !refine;
      if (!stays && old != kNone && !last &&
          (best == kNone || worth(best) * round < worth(old) || !loads.relieves(old, degree)))
        best = old;
      if (best == kNone) best = loads.emptiest(degree);
      for (const int32_t part : met) near[part] = 0;
      met.clear();
      parts[node] = best;
      loads.add(best, degree, 1);
      if (best == old || round == 0) continue;
      ++moves;
      const auto wake = [&](int64_t neighbor) { again[neighbor] = 1; };
      for_neighbors(into, node, num_nodes, wake);
      for_neighbors(out, node, num_nodes, wake);
    }
    if (round > 0 && !refine && moves * 1000 < num_nodes) break;
  }
}

#define JAX_GNN_PARTITION(Index)                                                              \
  template struct Neighbors<Index>;                                                           \
  template void partition(const Neighbors<Index>&, const Neighbors<Index>&, int64_t, int64_t, \
                          PartLimits, int64_t, bool, int32_t*);
JAX_GNN_PARTITION(int32_t)
JAX_GNN_PARTITION(int64_t)

}  // namespace jax_gnn::cpu
