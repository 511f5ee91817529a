// segment_select: a walk over what matches.
#include <type_traits>

#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_walk_launch.h"

namespace jax_gnn::cuda {

template <typename T, typename Acc>
cudaError_t segment_select(cudaStream_t stream, const Schedule& schedule, const Csr<Index>& entries,
                           const Select<T, Acc>& select, Features features, T* out,
                           void* workspace) {
  if (entries.num_rows <= 0 || features.width <= 0) return cudaSuccess;
  Csr<Index> csr = entries;
  if (select.weight == nullptr && select.factor == nullptr) csr.order = nullptr;
  if (!addressable<T>(features)) return cudaErrorInvalidValue;
  const int heads = static_cast<int>(features.heads);
  const auto with_vec = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    const SelectMessage<T, Acc, kVec> message = {select, row_bytes_of<T>(features), heads};
    return launch_reduce<SumOp<Acc, kVec>>(stream, schedule, csr, message, features, out,
                                           workspace);
  };
  constexpr int kWide = 16 / sizeof(T);
  if (fits<kWide, T>(features, {select.row_key, select.col_key, select.value, out}))
    return with_vec(std::integral_constant<int, kWide>{});
  return with_vec(std::integral_constant<int, 1>{});
}

JAX_GNN_INSTANCE(segment_select<float, float>);
JAX_GNN_INSTANCE(segment_select<double, double>);
JAX_GNN_INSTANCE(segment_select<__half, float>);
JAX_GNN_INSTANCE(segment_select<__nv_bfloat16, float>);

}  // namespace jax_gnn::cuda
