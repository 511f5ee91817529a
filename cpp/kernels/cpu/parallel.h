#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

namespace jax_gnn::cpu {

// Runs task(0) … task(count - 1), in any order and on any threads, and returns when all are done.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& task)>;

// How many tasks, given a number of scalar operations: about 10 us each.
inline int64_t task_count(double operations, int64_t limit) {
  return std::max<int64_t>(std::min(static_cast<int64_t>(operations / (1 << 16)), limit), 1);
}

// Where share `index` of `count` items' `shares` starts.
inline int64_t even_share(int64_t count, int64_t index, int64_t shares) {
  return count / shares * index + count % shares * index / shares;
}

}  // namespace jax_gnn::cpu
