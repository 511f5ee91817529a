#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

namespace jax_gnn::cpu {

// Runs task(0) … task(count - 1), in any order and on any threads, and returns when all are done.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& task)>;

// The number of tasks, of about 10 us each, for a number of scalar operations.
inline int64_t task_count(double operations, int64_t limit) {
  return std::max<int64_t>(std::min(static_cast<int64_t>(operations / (1 << 16)), limit), 1);
}

// The first item of share `index`, where `count` items are dealt out to `shares`.
inline int64_t even_share(int64_t count, int64_t index, int64_t shares) {
  return count / shares * index + count % shares * index / shares;
}

// The first of [low, high) for which `predicate` does not hold.
template <typename Predicate>
int64_t partition_point(int64_t low, int64_t high, const Predicate& predicate) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (predicate(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace jax_gnn::cpu
