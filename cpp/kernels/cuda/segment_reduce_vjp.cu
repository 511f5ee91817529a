// segment_reduce_vjp: a kernel of sums that also takes dots, or two launches.
#include <algorithm>
#include <optional>
#include <type_traits>

#include "sddmm.h"
#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_walk_launch.h"

namespace jax_gnn::cuda {
namespace {

// log2 of the lanes of a head's words, if a team has whole heads of these; else none.
template <int kVec>
std::optional<int> head_bits_of(const Schedule& schedule, Features features) {
  const int64_t words = features.width / features.heads / kVec;
  int bits = 0;
  while (int64_t{1} << bits < words) ++bits;
  if (bits > lane_bits_of<kVec>(schedule, features.width)) return {};
  if (features.heads > 1 && words != int64_t{1} << bits) return {};
  return bits;
}

// Whether a team has all of a row.
template <int kVec>
bool holds_rows(const Schedule& schedule, int64_t width) {
  return int64_t{kVec} << lane_bits_of<kVec>(schedule, width) >= width;
}

}  // namespace

bool serves(const Schedule& schedule, const Csr<Index>& csr, Features features, bool sums) {
  if (schedule.kernel == Kernel::kWalk) return true;
  if (schedule.kernel == Kernel::kGather) return sums;
  return sums && schedule.lanes == kStepLanes && takes_one_step(schedule, csr, features);
}

template <typename T>
bool serves_with_dots(const Schedule& schedule, const Csr<Index>& csr, Features features) {
  const auto with_vec = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    if (!head_bits_of<kVec>(schedule, features)) return false;
    if (schedule.kernel == Kernel::kWalk) return true;
    if (!holds_rows<kVec>(schedule, features.width)) return false;
    if (schedule.kernel == Kernel::kGather) return kVec > 1 && std::is_same_v<T, float>;
    return schedule.lanes >= kStepLanes && takes_one_step(schedule, csr, features);
  };
  constexpr int kWide = 16 / sizeof(T);
  if (features.width / features.heads % kWide == 0)
    return with_vec(std::integral_constant<int, kWide>{});
  return sizeof(T) >= 4 && with_vec(std::integral_constant<int, 1>{});
}

template <typename T, typename Acc>
cudaError_t segment_reduce_vjp(cudaStream_t stream, const Schedule& schedule, bool one_pass,
                               const Csr<Index>& csr, const T* in, const Acc* weight, const T* left,
                               Features features, T* out, Acc* dots, void* workspace) {
  // Dots of entries that the order leaves out are 0.
  Start start = Start::kWaits;
  if (csr.order != nullptr && csr.num_weights > 0 && features.heads > 0) {
    using Op = SumOp<Acc, 1>;
    const Output<Acc, Op, Acc> output = {dots, csr.num_weights, features.heads, {}};
    const bool has_next = csr.count > 0 || (csr.num_rows > 0 && features.width > 0);
    start = Start::kReadsAhead;
    JAX_GNN_RETURN_IF_CUDA_ERROR(launch_fill(stream, has_next ? start : Start::kXla, output));
  }
  const auto all_dots = [&] {
    const Select<T, Acc>* all = nullptr;
    return sddmm(stream, csr, left, in, all, features, dots);
  };
  if (csr.num_rows <= 0 || features.width <= 0) return all_dots();
  if (!addressable<T>(features)) return cudaErrorInvalidValue;
  const int heads = static_cast<int>(features.heads);
  // In words of kVec features, if rows are.
  const auto try_one_pass = [&](auto vec, cudaError_t& error) {
    constexpr int kVec = decltype(vec)::value;
    using Op = SumOp<Acc, kVec>;
    if (!fits<kVec, T>(features, {in, left, out})) return false;
    const std::optional<int> head_bits = head_bits_of<kVec>(schedule, features);
    if (!head_bits) return false;
    Dots<T, Acc> row_dots = {left, dots, *head_bits, start};
    if (holds_rows<kVec>(schedule, features.width)) {
      if (schedule.kernel == Kernel::kStep) {
        const auto launch_with = [&](auto lanes) {
          constexpr int kLanes = decltype(lanes)::value;
          while (heads == 1 && 1 << row_dots.head_bits < kLanes)
            ++row_dots.head_bits;  // one is to write
          return launch_step<Op, kLanes>(stream, csr, in, weight, features, NoEpilogue{}, out,
                                         workspace, row_dots);
        };
        error = schedule.lanes == 8    ? launch_with(std::integral_constant<int, 8>{})
                : schedule.lanes == 16 ? launch_with(std::integral_constant<int, 16>{})
                                       : launch_with(std::integral_constant<int, 32>{});
        return true;
      }
      if constexpr (has_gather_walk<Op, T> && std::is_same_v<T, float>)  // others are spilled
        if (schedule.kernel == Kernel::kGather) {
          error = launch_gather<Op>(stream, schedule, csr, Gathered<T, Acc>{in, weight, heads},
                                    features.width, NoEpilogue{}, out, workspace, row_dots);
          return true;
        }
    }
    const GatherMessage<T, Acc, kVec, true> message = {
        in, weight, row_bytes_of<T>(features), heads, left, dots, *head_bits};
    Schedule small = schedule;
    small.threads = std::min(schedule.threads, kDotThreads);
    error = launch_reduce<Op>(stream, small, csr, message, features, out, workspace, start);
    return true;
  };
  cudaError_t error;
  if (one_pass) {
    if (try_one_pass(std::integral_constant<int, 16 / sizeof(T)>{}, error)) return error;
    if constexpr (sizeof(T) >= 4)  // copies into shared memory are of 4 bytes at least
      if (try_one_pass(std::integral_constant<int, 1>{}, error)) return error;
  }
  error = segment_reduce(stream, schedule, csr, Reduce::kSum, Input<T>{in}, weight, features,
                         Epilogue<T, Acc>{}, out, workspace);
  return error != cudaSuccess ? error : all_dots();
}

#define JAX_GNN_INSTANTIATE(T, Acc)      \
  JAX_GNN_INSTANCE(serves_with_dots<T>); \
  JAX_GNN_INSTANCE(segment_reduce_vjp<T, Acc>);
JAX_GNN_FOR_FLOATS_AND(JAX_GNN_INSTANTIATE, __half, __nv_bfloat16)

}  // namespace jax_gnn::cuda
