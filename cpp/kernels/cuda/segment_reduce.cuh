// Segment reductions, the host's side: which operator, which message, in words of which size; how
// entries are cut (segment_walk.cuh); launches.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "sddmm.h"
#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_output.cuh"
#include "segment_reduce.h"
#include "segment_tails.cuh"
#include "segment_walk.cuh"

namespace jax_gnn::cuda {
namespace {

// Parallel reduction is for narrow rows that lie one behind another.
template <class Message, class Op>
constexpr bool has_parallel =
    !Message::kGathers && sizeof(typename Message::T) <= 4 &&
    !std::is_integral_v<typename Message::T> && Op::kParts <= Op::kVec + 1;

// log2 of the lanes of a team.
template <int kVec>
int lane_bits_of(const Schedule& schedule, int64_t width) {
  int bits = 0;
  while (2 << bits <= std::min(schedule.lanes, 32) && (int64_t{kVec} << bits) < width) ++bits;
  return bits;
}

template <class Op, class Message>
cudaError_t launch_reduce(cudaStream_t stream, const Schedule& schedule,
                          const Segments<Index>& segments, const Message& message,
                          Features features, typename Message::T* out, void* workspace,
                          Start start = Start::kWaits) {
  using Acc = typename Message::Acc;
  using T = typename Message::T;
  constexpr int kVec = Op::kVec;
  const Output<T, Op, Acc> output = {out, segments.num_rows, features.width};
  // Where most rows are empty, filling them is most of the work: for all threads alike, beforehand.
  const bool fills = segments.num_rows <= 2 * segments.count;
  if (!fills) {
    const cudaError_t error = launch_fill(stream, start, output);
    if (error != cudaSuccess || segments.count == 0) return error;
  }
  Cut cut;
  cut.width = features.width;
  cut.lane_bits = lane_bits_of<kVec>(schedule, features.width);
  const int lanes = 1 << cut.lane_bits,
            threads = std::clamp(schedule.threads / 32 * 32, 32, kMaxThreads);
  const int64_t tiles = ceil_div(features.width, int64_t{lanes} * kVec);
  const int64_t step = 32 / lanes * Message::kUnroll;
  const int64_t warps = schedule.blocks * (threads / 32);
  cut.per_warp = ceil_div(ceil_div(segments.count, warps), step) * step;
  const int64_t blocks = ceil_div(segments.count, cut.per_warp * (threads / 32));
  cut.aligned = aligned(segments.rows, 16) && aligned(segments.cols, 16) &&
                aligned(segments.order, 16) && aligned(message.weights(), 16);
  if (tiles > kMaxGridY || blocks > kMaxGridX || cut.per_warp > 0x7fffffff)
    return cudaErrorInvalidConfiguration;
  const Tails<Op, Acc> tails = {static_cast<unsigned char*>(workspace), next_tag()};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  const size_t warp_bytes = static_cast<size_t>(lanes) * Op::kParts * sizeof(Acc);
  auto kernel = reduce_kernel<Message, Op, false>;
  if constexpr (has_parallel<Message, Op>)
    if (schedule.parallel) kernel = reduce_kernel<Message, Op, true>;
  const size_t row_words = Message::kDots ? kDotThreads * Message::kUnroll * kVec * sizeof(T) : 0;
  return launch(stream, {grid, threads, threads / 32 * 2 * warp_bytes + row_words}, kernel,
                segments, message, cut, output, features.heads, fills, start, tails);
}

template <typename T>
unsigned row_bytes_of(Features features) {
  return static_cast<unsigned>(features.width * sizeof(T));
}

// Kernels keep a row's bytes in 32 bits.
template <typename T>
bool addressable(Features features) {
  return features.width <= static_cast<int64_t>(0xffffffffu / sizeof(T));
}

// Whether rows can be moved in words of kVec features, none of which spans two heads.
template <int kVec, typename T>
bool fits(Features features, std::initializer_list<const T*> arrays) {
  if (features.width / features.heads % kVec != 0) return false;
  return std::all_of(arrays.begin(), arrays.end(),
                     [](const T* array) { return aligned(array, kVec * sizeof(T)); });
}

}  // namespace

template <typename T, typename Acc>
cudaError_t segment_reduce(cudaStream_t stream, const Schedule& schedule,
                           const Segments<Index>& entries, Reduce reduce, const T* in,
                           const Acc* weight, Features features, T* out, void* workspace) {
  if (entries.num_rows <= 0 || features.width <= 0) return cudaSuccess;
  Segments<Index> segments = entries;
  if (weight == nullptr) segments.order = nullptr;
  if (!addressable<T>(features)) return cudaErrorInvalidValue;
  const int heads = static_cast<int>(features.heads);
  const auto with_vec = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    const auto run = [&](auto op) {
      const auto with_message = [&](const auto& message) {
        return launch_reduce<decltype(op)>(stream, schedule, segments, message, features, out,
                                           workspace);
      };
      if (segments.cols == nullptr && weight == nullptr)
        return with_message(RowMessage<T, Acc, kVec>{in, features.width});
      return with_message(
          GatherMessage<T, Acc, kVec>{in, weight, row_bytes_of<T>(features), heads});
    };
    switch (reduce) {
      case Reduce::kSum:
        return run(SumOp<Acc, kVec>{});
      case Reduce::kMax:
        return run(ExtremumOp<true, Acc, kVec>{});
      case Reduce::kMin:
        return run(ExtremumOp<false, Acc, kVec>{});
      case Reduce::kProd:
        return run(ProdOp<Acc, kVec>{});
      case Reduce::kMean:
        if constexpr (!std::is_integral_v<T>) return run(MeanOp<Acc, kVec>{});
        break;
      case Reduce::kLogSumExp:
        if constexpr (!std::is_integral_v<T>) return run(LogSumExpOp<Acc, kVec>{});
        break;
    }
    return cudaErrorInvalidValue;
  };
  constexpr int kWide = 16 / sizeof(T);
  if (fits<kWide, T>(features, {in, out})) return with_vec(std::integral_constant<int, kWide>{});
  return with_vec(std::integral_constant<int, 1>{});
}

template <typename T, typename Acc>
cudaError_t segment_reduce_vjp(cudaStream_t stream, const Schedule& schedule,
                               const Segments<Index>& segments, const T* in, const Acc* weight,
                               const T* left, Features features, T* out, Acc* dots,
                               void* workspace) {
  // Dots of entries that the order leaves out are 0.
  Start start = Start::kWaits;
  if (segments.order != nullptr && segments.num_weights > 0 && features.heads > 0) {
    using Op = SumOp<Acc, 1>;
    const Output<Acc, Op, Acc> output = {dots, segments.num_weights, features.heads};
    start = Start::kReadsAhead;
    const cudaError_t error = launch_fill(stream, start, output);
    if (error != cudaSuccess) return error;
  }
  const auto all_dots = [&] {
    const Select<T, Acc>* all = nullptr;
    return sddmm(stream, segments, left, in, all, features, dots);
  };
  if (segments.num_rows <= 0 || features.width <= 0) return all_dots();
  if (!addressable<T>(features)) return cudaErrorInvalidValue;
  const int64_t depth = features.width / features.heads;
  // In one pass if a team has whole heads.
  const auto try_one_pass = [&](auto vec, cudaError_t& error) {
    constexpr int kVec = decltype(vec)::value;
    const int64_t words = depth / kVec;
    const int lane_bits = lane_bits_of<kVec>(schedule, features.width);
    if (!fits<kVec, T>(features, {in, left, out})) return false;
    int head_bits = 0;
    while (int64_t{1} << head_bits < words) ++head_bits;
    if (head_bits > lane_bits || (features.heads > 1 && words != int64_t{1} << head_bits))
      return false;
    const GatherMessage<T, Acc, kVec, true> message = {
        in,   weight,   row_bytes_of<T>(features), static_cast<int>(features.heads), left,
        dots, head_bits};
    Schedule small = schedule;
    small.threads = std::min(schedule.threads, kDotThreads);
    error = launch_reduce<SumOp<Acc, kVec>>(stream, small, segments, message, features, out,
                                            workspace, start);
    return true;
  };
  cudaError_t error;
  if (try_one_pass(std::integral_constant<int, 16 / sizeof(T)>{}, error)) return error;
  if constexpr (sizeof(T) >= 4)  // copies into shared memory are of 4 bytes at least
    if (try_one_pass(std::integral_constant<int, 1>{}, error)) return error;
  error = segment_reduce(stream, schedule, segments, Reduce::kSum, in, weight, features, out,
                         workspace);
  return error != cudaSuccess ? error : all_dots();
}

template <typename T, typename Acc>
cudaError_t segment_select(cudaStream_t stream, const Schedule& schedule,
                           const Segments<Index>& entries, const Select<T, Acc>& select,
                           Features features, T* out, void* workspace) {
  if (entries.num_rows <= 0 || features.width <= 0) return cudaSuccess;
  Segments<Index> segments = entries;
  if (select.weight == nullptr && select.factor == nullptr) segments.order = nullptr;
  if (!addressable<T>(features)) return cudaErrorInvalidValue;
  const int heads = static_cast<int>(features.heads);
  const auto with_vec = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    const SelectMessage<T, Acc, kVec> message = {select, row_bytes_of<T>(features), heads};
    return launch_reduce<SumOp<Acc, kVec>>(stream, schedule, segments, message, features, out,
                                           workspace);
  };
  constexpr int kWide = 16 / sizeof(T);
  if (fits<kWide, T>(features, {select.row_key, select.col_key, select.value, out}))
    return with_vec(std::integral_constant<int, kWide>{});
  return with_vec(std::integral_constant<int, 1>{});
}

}  // namespace jax_gnn::cuda
