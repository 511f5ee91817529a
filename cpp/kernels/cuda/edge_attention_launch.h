// Attention over edges, the host's side: which walks, in words of which size. Its instances are
// several units, which compile side by side.
#pragma once

#include <algorithm>
#include <type_traits>

#include "edge_attention.cuh"
#include "edge_attention.h"
#include "edge_attention_walk.cuh"
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

template <typename T>
bool readable_in_words(Features features, std::initializer_list<const T*> arrays) {
  return fits<16 / sizeof(T)>(features, arrays);
}

// Blocks that a device holds at once, where a multiprocessor holds at most so many.
inline int64_t blocks_at_once(int64_t shared, int64_t most) {
  int device = 0, bytes = 0, processors = 0;
  const bool found =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device) ==
          cudaSuccess &&
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
  if (!found) return most;
  constexpr int64_t kReserved = 2 << 10;  // of a block: static, and the system's
  return processors * std::clamp<int64_t>(bytes / (shared + kReserved), 1, most);
}

// Statistics of rows without entries.
template <typename Acc>
struct NoStats : SumOp<Acc, 1> {
  using Result = SoftmaxStats<Acc>;
  static __device__ __forceinline__ Result empty() { return {0, -kLeast<true, Acc>}; }
};

// The sum under a softmax, and its statistics, in one pass.
template <Scores kScores, bool kSame, int kVec, int kAhead, typename T, typename Acc>
cudaError_t launch_attend(cudaStream_t stream, const Csr<Index>& csr,
                          const Attended<T, Acc>& attended, Features features, T* out,
                          SoftmaxStats<Acc>* stats, const Workspace& workspace) {
  using Op = SoftmaxSumOp<Acc, kVec>;
  if (csr.num_rows <= 0) return cudaSuccess;
  if (features.width <= 0 || !addressable<T>(features) ||
      !addressable<SoftmaxStats<Acc>>({features.heads, 1}))
    return cudaErrorInvalidValue;
  const bool fills = fills_on_the_way(csr);
  if (!fills) {
    const Output<T, SumOp<Acc, 1>, Acc> rows = {out, csr.num_rows, features.width, {}};
    const Output<SoftmaxStats<Acc>, NoStats<Acc>, Acc> of_rows = {
        stats, csr.num_rows, features.heads, {}};
    cudaError_t error = launch_fill(stream, Start::kWaits, rows);
    if (error == cudaSuccess) error = launch_fill(stream, Start::kWaits, of_rows);
    if (error != cudaSuccess || csr.count == 0) return error;
  }
  AttendCut cut;
  cut.width = features.width;
  cut.lane_bits = 2;  // ids of narrower teams would take too much of shared memory
  while (cut.lane_bits < 5 && int64_t{kVec} << cut.lane_bits < features.width) ++cut.lane_bits;
  const int lanes = 1 << cut.lane_bits, teams = kAttendThreads / lanes;
  cut.tile_heads = tile_heads_of<kVec>(lanes, features);
  cut.head_bits = 0;
  const int64_t words = features.width / features.heads / kVec;  // of a head
  if (features.heads == 1)
    cut.head_bits = cut.lane_bits;
  else
    while (int64_t{1} << cut.head_bits < words) ++cut.head_bits;
  const bool whole_heads = words <= lanes && (features.heads == 1 || words == 1 << cut.head_bits);
  if (kScores != Scores::kOfHeads && !whole_heads) return cudaErrorInvalidValue;
  const AttendLayout<kScores, kSame, kAhead, Op, T, Acc> layout(
      cut, csr.order != nullptr, kinds_of<kScores>(attended.attention));
  constexpr int kStep = kAttendStep<kScores>;
  const int64_t at_once = blocks_at_once(layout.bytes(), kAttendBlocks<kAhead, Acc>);
  const int64_t entries = ceil_div(csr.count, std::min(workspace.blocks, at_once) * teams);
  const int64_t steps = ceil_div(entries, kStep);
  const int64_t blocks = ceil_div(csr.count, steps * kStep * teams);
  const int64_t tiles = ceil_div(features.width, int64_t{lanes} * kVec);
  if (tiles > kMaxGridY || blocks > kMaxGridX || steps * kStep > 0x3fffffff)
    return cudaErrorInvalidConfiguration;
  cut.steps = static_cast<int>(steps);
  const Output<T, Op, Acc, StoredStats<Acc>> output = {
      out, csr.num_rows, features.width, {stats, features.heads}};
  const Tails<Op, Acc> tails = {static_cast<unsigned char*>(workspace.bytes), next_tag()};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  return launch(stream, {grid, kAttendThreads, static_cast<size_t>(layout.bytes())},
                attend_kernel<kScores, kSame, kAhead, Op, T, Acc>, csr, attended, cut, output,
                fills, tails);
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
cudaError_t edge_attention(cudaStream_t stream, const Csr<Index>& csr, const T* value,
                           const Attention<Acc>& attention, Features features, T* out,
                           SoftmaxStats<Acc>* stats, const Workspace& workspace) {
  const Attended<T, Acc> attended = {value, attention, {}, static_cast<int>(features.heads)};
  constexpr int kVec = 16 / sizeof(T);
  if (!readable_in_words(features, {value, out}))
    return launch_attend<Scores::kOfHeads, false, 1, 1>(stream, csr, attended, features, out, stats,
                                                        workspace);
  // Where a team is a warp, rows that are further ahead pay for fewer warps.
  if (features.width >= 32 * kVec)
    return launch_attend<Scores::kOfHeads, false, kVec, 2>(stream, csr, attended, features, out,
                                                           stats, workspace);
  return launch_attend<Scores::kOfHeads, false, kVec, 1>(stream, csr, attended, features, out,
                                                         stats, workspace);
}

template <typename T, typename Acc>
cudaError_t keyed_attention(cudaStream_t stream, const Csr<Index>& csr, const T* value,
                            const Keys<T, Acc>& keys, const Acc* edge_scale, Features features,
                            T* out, SoftmaxStats<Acc>* stats, const Workspace& workspace) {
  const Attention<Acc> attention = {nullptr, nullptr, nullptr, edge_scale, 0};
  const Attended<T, Acc> attended = {value, attention, keys, static_cast<int>(features.heads)};
  if (!readable_in_words(features, {value, keys.row_key, keys.col_key, out}))
    return cudaErrorInvalidValue;
  constexpr int kVec = 16 / sizeof(T);
  if (keys.vector == nullptr)
    return launch_attend<Scores::kDots, false, kVec, 1>(stream, csr, attended, features, out, stats,
                                                        workspace);
  if (keys.col_key == value)
    return launch_attend<Scores::kLeaky, true, kVec, 1>(stream, csr, attended, features, out, stats,
                                                        workspace);
  return launch_attend<Scores::kLeaky, false, kVec, 1>(stream, csr, attended, features, out, stats,
                                                       workspace);
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
  using Weights = SoftmaxWeights<Acc>;
  Weights weights = {attention, records, heads, 0};
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

#define JAX_GNN_INSTANTIATE(T, Acc)                                                            \
  template cudaError_t edge_attention(cudaStream_t, const Csr<int32_t>&, const T*,             \
                                      const Attention<Acc>&, Features, T*, SoftmaxStats<Acc>*, \
                                      const Workspace&);                                       \
  template cudaError_t keyed_attention(cudaStream_t, const Csr<int32_t>&, const T*,            \
                                       const Keys<T, Acc>&, const Acc*, Features, T*,          \
                                       SoftmaxStats<Acc>*, const Workspace&);                  \
  template cudaError_t edge_attention_vjp(cudaStream_t, const Schedule&, const Csr<int32_t>&,  \
                                          const T*, const T*, const AttentionRecord<Acc>*,     \
                                          const Attention<Acc>&, Features, T*, Acc*, void*);   \
  template cudaError_t leaky_sum(cudaStream_t, const Schedule&, const Csr<int32_t>&,           \
                                 const Leaky<T, Acc>&, const Acc*, Features, T*, void*);

}  // namespace jax_gnn::cuda
