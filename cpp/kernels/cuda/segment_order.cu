// The order of ids, the host's side: launches.
#include <algorithm>
#include <limits>

#include "launch.h"
#include "segment_order.cuh"
#include "segment_order.h"

namespace jax_gnn::cuda {

namespace {

int64_t parts_of(int64_t count) {
  return std::min<int64_t>(ceil_div(count, kOrderTile), kMaxOrderParts);
}

}  // namespace

int64_t segment_order_scratch(int64_t count) {
  return 3 * count + (parts_of(count) << kMaxDigitBits);
}

template <typename Index>
cudaError_t segment_order(cudaStream_t stream, const Index* ids, int64_t count,
                          int64_t num_segments, Index* order, Index* scratch) {
  if (count == 0) return cudaSuccess;
  const int64_t largest = std::numeric_limits<Index>::max();
  if (count > largest) return cudaErrorInvalidConfiguration;
  OrderPass<Index> pass{};
  pass.count = count;
  pass.bound = std::min(num_segments, largest);  // larger than any id
  int bits = 1;
  while (pass.bound >> bits != 0) ++bits;
  const int passes = (bits + kMaxDigitBits - 1) / kMaxDigitBits;
  pass.bits = std::max((bits + passes - 1) / passes, kLeastDigitBits);
  const int64_t parts = parts_of(count);
  pass.part_size = ceil_div(ceil_div(count, kOrderTile), parts) * kOrderTile;
  pass.counts = scratch + 3 * count;
  const Plan plan{dim3(static_cast<unsigned>(parts)), kOrderThreads, 0};
  // Passes write the order to the result and to scratch in turn, the last one to the result.
  const Index *from_ids = ids, *from_order = nullptr;
  for (int left = passes - 1; left >= 0; --left) {
    pass.ids = from_ids;
    pass.order = from_order;
    pass.to_order = left % 2 == 0 ? order : scratch;
    pass.to_ids = left == 0 ? nullptr : scratch + (left % 2 == 0 ? 2 : 1) * count;
    JAX_GNN_RETURN_IF_CUDA_ERROR(launch(stream, plan, order_counts_kernel<Index>, pass));
    JAX_GNN_RETURN_IF_CUDA_ERROR(launch(stream, plan, order_kernel<Index>, pass));
    from_ids = pass.to_ids;
    from_order = pass.to_order;
    pass.shift += pass.bits;
  }
  return cudaSuccess;
}

#define JAX_GNN_INSTANTIATE(Index) \
  template cudaError_t segment_order(cudaStream_t, const Index*, int64_t, int64_t, Index*, Index*);
JAX_GNN_INSTANTIATE(int32_t)
JAX_GNN_INSTANTIATE(int64_t)

}  // namespace jax_gnn::cuda
