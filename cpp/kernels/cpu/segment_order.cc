#include "segment_order.h"

#include <vector>

#include "vector.h"

namespace jax_gnn::cpu {

template <typename Index>
void segment_order(const ParallelFor& /*parallel_for*/, const Index* ids, int64_t count,
                   int64_t num_segments, Index* order) {
  std::vector<int64_t> start(static_cast<size_t>(num_segments) + 2);
  const auto bucket = [&](int64_t i) {
    return static_cast<size_t>(in_range(ids[i], num_segments) ? static_cast<int64_t>(ids[i])
                                                              : num_segments);
  };
  for (int64_t i = 0; i < count; ++i) ++start[bucket(i) + 1];
  for (size_t b = 1; b < start.size(); ++b) start[b] += start[b - 1];
  for (int64_t i = 0; i < count; ++i) order[start[bucket(i)]++] = static_cast<Index>(i);
}

template void segment_order(const ParallelFor&, const int32_t*, int64_t, int64_t, int32_t*);
template void segment_order(const ParallelFor&, const int64_t*, int64_t, int64_t, int64_t*);

}  // namespace jax_gnn::cpu
