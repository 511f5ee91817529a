#include "segment_order.h"

#include <algorithm>
#include <vector>

#include "vector.h"

namespace jax_gnn::cpu {

namespace {

constexpr int64_t kLeastBuckets = 1 << 16;

}  // namespace

// Counts ids into buckets. Where few ids are below a large bound, by digits, from the lowest.
template <typename Index>
void segment_order(const Index* ids, int64_t count, int64_t num_segments, Index* order) {
  const int64_t range = num_segments + 1;  // the last is for ids out of range
  const int64_t base = std::min(range, std::max(kLeastBuckets, 4 * count));
  std::vector<int64_t> start(static_cast<size_t>(base) + 1);
  std::vector<Index> before;  // the order by lower digits
  for (int64_t unit = 1;; unit *= base) {
    const auto bucket = [&](int64_t i) {
      const int64_t id =
          in_range(ids[i], num_segments) ? static_cast<int64_t>(ids[i]) : num_segments;
      return static_cast<size_t>(base == range ? id : id / unit % base);
    };
    std::fill(start.begin(), start.end(), 0);
    for (int64_t i = 0; i < count; ++i) ++start[bucket(i) + 1];
    for (size_t b = 1; b < start.size(); ++b) start[b] += start[b - 1];
    for (int64_t k = 0; k < count; ++k) {
      const int64_t i = before.empty() ? k : static_cast<int64_t>(before[static_cast<size_t>(k)]);
      order[start[bucket(i)]++] = static_cast<Index>(i);
    }
    if (unit > num_segments / base) return;
    before.assign(order, order + count);
  }
}

template void segment_order(const int32_t*, int64_t, int64_t, int32_t*);
template void segment_order(const int64_t*, int64_t, int64_t, int64_t*);

}  // namespace jax_gnn::cpu
