// segment_reduce, the host's side: which operator, which message, in words of which size. Its
// instances are several units, which compile side by side.
#pragma once

#include <type_traits>

#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_walk_launch.h"

namespace jax_gnn::cuda {

template <int kVec>
using Vec = std::integral_constant<int, kVec>;

template <typename T, typename Acc>
cudaError_t segment_reduce(cudaStream_t stream, const Schedule& schedule, const Csr<Index>& entries,
                           Reduce reduce, const Input<T>& input, const Acc* weight,
                           Features features, const Epilogue<T, Acc>& epilogue, T* out,
                           void* workspace) {
  if (entries.num_rows <= 0 || features.width <= 0) return cudaSuccess;
  Csr<Index> csr = entries;
  if (weight == nullptr) csr.order = nullptr;
  if (!addressable<T>(features)) return cudaErrorInvalidValue;
  const T* const in = input.rows;
  const int heads = static_cast<int>(features.heads);
  const auto with_vec = [&](auto vec, auto is_short) {
    constexpr int kVec = decltype(vec)::value;
    const auto run = [&](auto op, const auto& row_epilogue) {
      using Op = decltype(op);
      using RowEpilogue = std::decay_t<decltype(row_epilogue)>;
      const auto with_message = [&](const auto& message, const auto& row_epilogue) {
        return launch_reduce<Op>(stream, schedule, csr, message, features, out, workspace,
                                 Start::kWaits, row_epilogue);
      };
      if constexpr (is_short) {
        return with_message(RowMessage<T, Acc, kVec, true>{in, kVec}, Staged<T>{});
      } else {
        const Gathered<T, Acc> gathered = {in, weight, heads};
        if (input.halo != nullptr) {
          if constexpr (has_gather_walk<Op, T> && std::is_same_v<Op, SumOp<Acc, kVec>> &&
                        !std::is_same_v<RowEpilogue, NoEpilogue>)
            if (schedule.kernel == Kernel::kGather)
              return launch_gather<Op>(stream, schedule, csr, Joined<T, Acc>{gathered, input},
                                       features.width, row_epilogue, out, workspace);
          return cudaErrorInvalidValue;
        }
        if constexpr (has_step<Op, T>)
          if (schedule.kernel == Kernel::kStep)
            return launch_step<Op>(stream, csr, in, weight, features, row_epilogue, out, workspace);
        if constexpr (has_gather_walk<Op, T>)
          if (schedule.kernel == Kernel::kGather)
            return launch_gather<Op>(stream, schedule, csr, gathered, features.width, row_epilogue,
                                     out, workspace);
        if constexpr (std::is_same_v<RowEpilogue, NoEpilogue>)
          if (csr.cols == nullptr && weight == nullptr)
            return with_message(RowMessage<T, Acc, kVec>{in, features.width}, row_epilogue);
        return with_message(
            GatherMessage<T, Acc, kVec>{in, weight, row_bytes_of<T>(features), heads},
            row_epilogue);
      }
    };
    const auto run_linear = [&](auto op) {
      if constexpr (!std::is_integral_v<T>)
        if (epilogue.any() || input.halo != nullptr) return run(op, epilogue);
      return run(op, NoEpilogue{});
    };
    switch (reduce) {
      case Reduce::kSum:
        return run_linear(SumOp<Acc, kVec>{});
      case Reduce::kMax:
        return run(ExtremumOp<true, Acc, kVec>{}, NoEpilogue{});
      case Reduce::kMin:
        return run(ExtremumOp<false, Acc, kVec>{}, NoEpilogue{});
      case Reduce::kProd:
        return run(ProdOp<Acc, kVec>{}, NoEpilogue{});
      case Reduce::kMean:
        if constexpr (!std::is_integral_v<T>) return run_linear(MeanOp<Acc, kVec>{});
        break;
      case Reduce::kLogSumExp:
        if constexpr (!std::is_integral_v<T>) return run(LogSumExpOp<Acc, kVec>{}, NoEpilogue{});
        break;
      case Reduce::kCount:
        break;
    }
    return cudaErrorInvalidValue;
  };
  constexpr int kWide = 16 / sizeof(T);
  const bool is_plain = csr.cols == nullptr && weight == nullptr && input.halo == nullptr &&
                        !epilogue.any() && schedule.kernel == Kernel::kWalk;
  const auto is_short = [&](int vec) {
    return is_plain && features.width == vec && aligned(in, 16) && aligned(csr.rows, 16) &&
           aligned(out, vec * sizeof(T));
  };
  if (is_short(1)) return with_vec(Vec<1>{}, std::true_type{});
  if constexpr (kWide > 2)
    if (is_short(2)) return with_vec(Vec<2>{}, std::true_type{});
  if constexpr (kWide > 4)
    if (is_short(4)) return with_vec(Vec<4>{}, std::true_type{});
  if (fits<kWide, T>(features, {in, input.halo, out, epilogue.self, epilogue.residual}) &&
      aligned(epilogue.bias, 16))
    return with_vec(Vec<kWide>{}, std::false_type{});
  return with_vec(Vec<1>{}, std::false_type{});
}

}  // namespace jax_gnn::cuda
