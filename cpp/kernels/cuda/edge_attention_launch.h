// Attention over edges, the host's side: which walks, in words of which size. Its instances are
// several units, which compile side by side.
#pragma once

#include <algorithm>
#include <type_traits>

#include "edge_attention.cuh"
#include "edge_attention.h"
#include "sddmm.h"
#include "segment_walk_launch.h"

namespace jax_gnn::cuda {
namespace {

// Heads that the tile of a team meets, which may begin within one.
template <int kVec>
int tile_heads_of(int lanes, Features features) {
  const int64_t words = features.width / features.heads / kVec;  // of a head
  const int64_t most = lanes > 1 ? (lanes - 2) / words + 2 : 1;
  return static_cast<int>(std::min<int64_t>({features.heads, most, lanes}));
}

// What teams of fewer lanes take of shared memory is more than some devices have.
inline bool takes_gather_walk(const Schedule& schedule, int lanes) {
  return schedule.parallel && lanes >= 4;
}

// Shared memory for computed weights in the kernel of one step; with the rest of what that takes,
// all devices have it.
constexpr int64_t kMostComputed = 48 << 10;

// The softmaxes' statistics.
template <typename Acc>
cudaError_t launch_stats(cudaStream_t stream, const Schedule& schedule, const Csr<Index>& csr,
                         const Attention<Acc>& attention, int64_t heads, SoftmaxStats<Acc>* stats,
                         void* workspace) {
  const Features features = {heads, 1};
  const auto with_vec = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    const ScoreMessage<Acc, kVec> message = {attention, row_bytes_of<Acc>(features),
                                             static_cast<int>(heads)};
    return launch_reduce<SoftmaxOp<Acc, kVec>>(stream, schedule, csr, message, features, stats,
                                               workspace);
  };
  constexpr int kWide = 16 / sizeof(Acc);
  if (fits<kWide, Acc>(features,
                       {attention.dst_score, attention.src_score, attention.edge_score}) &&
      aligned(stats, 16))
    return with_vec(std::integral_constant<int, kWide>{});
  return with_vec(std::integral_constant<int, 1>{});
}

// Sums of rows with computed weights, by the walk that the schedule says.
template <typename T, class Weights>
cudaError_t launch_weighted(cudaStream_t stream, const Schedule& schedule, const Csr<Index>& csr,
                            const T* in, Weights weights, Features features, T* out,
                            void* workspace) {
  using Acc = typename Weights::Acc;
  const auto with_vec = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    using Op = SumOp<Acc, kVec>;
    if (schedule.lanes == kStepLanes && takes_one_step(schedule, csr, features)) {
      weights.tile_heads = tile_heads_of<kVec>(kStepLanes, features);
      return launch_step<Op>(stream, csr, in, weights, features, NoEpilogue{}, out, workspace);
    }
    const int lanes = 1 << lane_bits_of<kVec>(schedule, features.width);
    weights.tile_heads = tile_heads_of<kVec>(lanes, features);
    if constexpr (has_gather_walk<Op, T>)
      if (takes_gather_walk(schedule, lanes))
        return launch_gather<Op>(stream, schedule, csr,
                                 Gathered<T, Weights>{in, weights, weights.heads}, features.width,
                                 NoEpilogue{}, out, workspace);
    const GatherMessage<T, Acc, kVec, false, Weights> message = {
        in, weights, row_bytes_of<T>(features), weights.heads};
    return launch_reduce<Op>(stream, schedule, csr, message, features, out, workspace);
  };
  constexpr int kWide = 16 / sizeof(T);
  if (fits<kWide, T>(features, {in, out})) return with_vec(std::integral_constant<int, kWide>{});
  return with_vec(std::integral_constant<int, 1>{});
}

}  // namespace

template <typename T, typename Acc>
cudaError_t edge_attention(cudaStream_t stream, const Schedule& schedule,
                           const Schedule& score_schedule, const Csr<Index>& csr, const T* value,
                           const Attention<Acc>& attention, Features features, T* out,
                           SoftmaxStats<Acc>* stats, void* workspace, void* score_workspace) {
  if (csr.num_rows <= 0) return cudaSuccess;
  if (!addressable<T>(features) || !addressable<SoftmaxStats<Acc>>({features.heads, 1}))
    return cudaErrorInvalidValue;
  const cudaError_t error =
      launch_stats(stream, score_schedule, csr, attention, features.heads, stats, score_workspace);
  if (error != cudaSuccess || features.width <= 0) return error;
  const SoftmaxWeights<Acc, false> weights = {attention, stats, nullptr,
                                              static_cast<int>(features.heads), 0};
  return launch_weighted(stream, schedule, csr, value, weights, features, out, workspace);
}

template <typename T, typename Acc>
cudaError_t edge_attention_vjp(cudaStream_t stream, const Schedule& schedule, const Csr<Index>& csr,
                               const T* ct, const T* value, const AttentionRecord<Acc>* records,
                               const Attention<Acc>& attention, Features features, T* out,
                               Acc* to_score, void* workspace) {
  if (!addressable<T>(features)) return cudaErrorInvalidValue;
  // Of entries that the order leaves out, zeros.
  Start start = Start::kWaits;
  if (csr.order != nullptr && csr.num_weights > 0) {
    const Output<Acc, SumOp<Acc, 1>, Acc> output = {to_score, csr.num_weights, features.heads, {}};
    start = Start::kReadsAhead;
    const cudaError_t error = launch_fill(stream, start, output);
    if (error != cudaSuccess) return error;
  }
  const int heads = static_cast<int>(features.heads);
  using Weights = SoftmaxWeights<Acc, true>;
  Weights weights = {attention, nullptr, records, heads, 0};
  // In one pass if a team has whole heads.
  const auto try_one_pass = [&](auto vec, cudaError_t& error) {
    constexpr int kVec = decltype(vec)::value;
    using Op = SumOp<Acc, kVec>;
    if (!fits<kVec, T>(features, {ct, value, out})) return false;
    const int64_t words = features.width / heads / kVec;
    const int lane_bits = lane_bits_of<kVec>(schedule, features.width);
    int head_bits = 0;
    while (int64_t{1} << head_bits < words) ++head_bits;
    if (head_bits > lane_bits || (heads > 1 && words != int64_t{1} << head_bits)) return false;
    weights.tile_heads = tile_heads_of<kVec>(1 << lane_bits, features);
    Dots<T, Acc> taken = {value, to_score, head_bits, start};
    // Kernels for teams that have all of a row.
    if (int64_t{kVec} << lane_bits >= features.width) {
      if (schedule.lanes >= kStepLanes && takes_one_step(schedule, csr, features) &&
          step_computed_bytes<true>(weights, schedule.lanes) <= kMostComputed) {
        const auto launch_with = [&](auto lanes) {
          constexpr int kLanes = decltype(lanes)::value;
          while (heads == 1 && 1 << taken.head_bits < kLanes) ++taken.head_bits;  // one is to write
          return launch_step<Op, kLanes>(stream, csr, ct, weights, features, NoEpilogue{}, out,
                                         workspace, taken);
        };
        error = schedule.lanes == 8    ? launch_with(std::integral_constant<int, 8>{})
                : schedule.lanes == 16 ? launch_with(std::integral_constant<int, 16>{})
                                       : launch_with(std::integral_constant<int, 32>{});
        return true;
      }
      if constexpr (has_gather_walk<Op, T> && std::is_same_v<T, float>)  // others are spilled
        if (takes_gather_walk(schedule, 1 << lane_bits)) {
          error = launch_gather<Op>(stream, schedule, csr, Gathered<T, Weights>{ct, weights, heads},
                                    features.width, NoEpilogue{}, out, workspace, taken);
          return true;
        }
    }
    const GatherMessage<T, Acc, kVec, true, Weights> message = {
        ct, weights, row_bytes_of<T>(features), heads, value, to_score, head_bits};
    Schedule small = schedule;
    small.threads = std::min(schedule.threads, kDotThreads);
    error = launch_reduce<Op>(stream, small, csr, message, features, out, workspace, start);
    return true;
  };
  cudaError_t error = cudaSuccess;
  if (csr.num_rows > 0 && features.width > 0) {
    if (try_one_pass(std::integral_constant<int, 16 / sizeof(T)>{}, error)) return error;
    if constexpr (sizeof(T) >= 4)  // copies into shared memory are of 4 bytes at least
      if (try_one_pass(std::integral_constant<int, 1>{}, error)) return error;
    error = launch_weighted(stream, schedule, csr, ct, weights, features, out, workspace);
    if (error != cudaSuccess) return error;
  }
  if (csr.count <= 0) return cudaSuccess;
  const Select<T, Acc>* all = nullptr;
  error = sddmm(stream, csr, value, ct, all, features, to_score);
  if (error != cudaSuccess) return error;
  const int64_t blocks = std::min<int64_t>(ceil_div(csr.count * features.heads, 256), 2048);
  return launch(stream, {dim3(static_cast<unsigned>(blocks)), 256, 0}, finish_scores_kernel<Acc>,
                csr, weights, to_score);
}

template <typename T, typename Acc>
cudaError_t leaky_sum(cudaStream_t stream, const Schedule& schedule, const Csr<Index>& csr,
                      const Leaky<T, Acc>& leaky, const Acc* factor, Features features, T* out,
                      void* workspace) {
  if (csr.num_rows <= 0 || features.width <= 0) return cudaSuccess;
  if (!addressable<T>(features)) return cudaErrorInvalidValue;
  const auto with_vec = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    const SlopeMessage<T, Acc, kVec> message = {leaky, factor, row_bytes_of<T>(features),
                                                static_cast<int>(features.heads)};
    return launch_reduce<SumOp<Acc, kVec>>(stream, schedule, csr, message, features, out,
                                           workspace);
  };
  constexpr int kWide = 16 / sizeof(T);
  if (fits<kWide, T>(features, {leaky.row_key, leaky.col_key, out}))
    return with_vec(std::integral_constant<int, kWide>{});
  return with_vec(std::integral_constant<int, 1>{});
}

#define JAX_GNN_INSTANTIATE(T, Acc)                                                           \
  template cudaError_t edge_attention(cudaStream_t, const Schedule&, const Schedule&,         \
                                      const Csr<int32_t>&, const T*, const Attention<Acc>&,   \
                                      Features, T*, SoftmaxStats<Acc>*, void*, void*);        \
  template cudaError_t edge_attention_vjp(cudaStream_t, const Schedule&, const Csr<int32_t>&, \
                                          const T*, const T*, const AttentionRecord<Acc>*,    \
                                          const Attention<Acc>&, Features, T*, Acc*, void*);  \
  template cudaError_t leaky_sum(cudaStream_t, const Schedule&, const Csr<int32_t>&,          \
                                 const Leaky<T, Acc>&, const Acc*, Features, T*, void*);

}  // namespace jax_gnn::cuda
