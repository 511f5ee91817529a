// The walks over entries (segment_walk.cuh, segment_gather.cuh, segment_step.cuh), the host's side:
// how entries and features are cut, and launches.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "launch.h"
#include "segment_gather.cuh"
#include "segment_reduce.h"
#include "segment_step.cuh"
#include "segment_walk.cuh"
#include "tags.h"

namespace jax_gnn::cuda {
namespace {

// log2 of the lanes of a team.
template <int kVec>
int lane_bits_of(const Schedule& schedule, int64_t width) {
  int bits = 0;
  while (2 << bits <= std::min(schedule.lanes, 32) && (int64_t{kVec} << bits) < width) ++bits;
  return bits;
}

template <class Op, typename T, typename Acc, class RowEpilogue>
cudaError_t launch_fill(cudaStream_t stream, Start next,
                        const Output<T, Op, Acc, RowEpilogue>& output) {
  const int64_t blocks = std::min<int64_t>(ceil_div(output.num_rows * output.width, 1024), 2048);
  return launch(stream, {dim3(static_cast<unsigned>(blocks)), 256, 0},
                fill_kernel<Op, T, Acc, RowEpilogue>, output, next);
}

// The start of a kernel with or without dots.
template <class Dots>
Start start_of(const Dots& dots) {
  if constexpr (Dots::kAny) return dots.start;
  return Start::kWaits;
}

// Of what follows a launch that fills rows: nothing of this call, if there are no entries.
inline Start start_behind(const Csr<Index>& csr, Start next) {
  return csr.count > 0 ? next : Start::kXla;
}

// Where most rows are empty, filling them is most of the work: for all threads alike, beforehand.
inline bool fills_on_the_way(const Csr<Index>& csr) { return csr.num_rows <= 2 * csr.count; }

template <class Op, class Message, class RowEpilogue = NoEpilogue>
cudaError_t launch_reduce(cudaStream_t stream, const Schedule& schedule, const Csr<Index>& csr,
                          const Message& message, Features features, typename Message::T* out,
                          void* workspace, Start start = Start::kWaits,
                          const RowEpilogue& epilogue = {}) {
  using Acc = typename Message::Acc;
  using T = typename Message::T;
  static_assert(!Op::kCounts || is_linear<Op>);
  constexpr int kVec = Op::kVec;
  const Output<T, Op, Acc, RowEpilogue> output = {out, csr.num_rows, features.width, epilogue};
  const bool fills = fills_on_the_way(csr);
  if (!fills) {
    const Start next = start_behind(csr, start);
    cudaError_t error;
    if constexpr (is_short<Message>)
      error = launch_fill(stream, next, Output<T, Op, Acc>{out, csr.num_rows, features.width, {}});
    else
      error = launch_fill(stream, next, output);
    if (error != cudaSuccess || csr.count == 0) return error;
  }
  Cut cut;
  cut.width = features.width;
  cut.lane_bits = lane_bits_of<kVec>(schedule, features.width);
  const int lanes = 1 << cut.lane_bits,
            threads = std::clamp(schedule.threads / 32 * 32, 32, kMaxThreads);
  const int64_t tiles = ceil_div(features.width, int64_t{lanes} * kVec);
  const int64_t step = 32 / lanes * Message::kUnroll;
  const int64_t warps = schedule.blocks * (threads / 32);
  cut.per_warp = ceil_div(ceil_div(csr.count, warps), step) * step;
  const int64_t blocks = ceil_div(csr.count, cut.per_warp * (threads / 32));
  cut.aligned = aligned(csr.rows, 16) && aligned(csr.cols, 16) && aligned(csr.order, 16) &&
                aligned(message.weights(), 16);
  if (tiles > kMaxGridY || blocks > kMaxGridX || cut.per_warp > 0x7fffffff)
    return cudaErrorInvalidConfiguration;
  const Tails<Op, Acc> tails = {static_cast<unsigned char*>(workspace), next_tag()};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  const auto kernel = reduce_kernel<Message, Op, RowEpilogue>;
  const size_t row_words = Message::kDots      ? kDotThreads * Message::kUnroll * kVec * sizeof(T)
                           : is_short<Message> ? threads / 32 * kStagedBytes
                                               : 0;
  const size_t shared = runs_bytes<Op, Acc>(threads / 32, lanes) + row_words;
  return launch(stream, {grid, threads, shared}, kernel, csr, message, cut, output, features.heads,
                fills, start, tails);
}

// Sums and means of rows that are read in words of 16 bytes have a walk of their own.
template <class Op, typename T>
constexpr bool has_gather_walk =
    is_linear<Op> && !std::is_integral_v<T> && Op::kVec * sizeof(T) == 16;

template <class Op, class Rows, typename T, class RowEpilogue, class Dots = NoDots>
cudaError_t launch_gather(cudaStream_t stream, const Schedule& schedule, const Csr<Index>& csr,
                          const Rows& gathered, int64_t width, const RowEpilogue& epilogue, T* out,
                          void* workspace, const Dots& dots = {}) {
  static_assert(is_linear<Op>);
  using Acc = typename Rows::Acc;
  constexpr int kVec = Op::kVec;
  const Output<T, Op, Acc, RowEpilogue> output = {out, csr.num_rows, width, epilogue};
  const bool fills = fills_on_the_way(csr);
  if (!fills) {
    const cudaError_t error = launch_fill(stream, start_behind(csr, start_of(dots)), output);
    if (error != cudaSuccess || csr.count == 0) return error;
  }
  GatherCut cut;
  cut.width = width;
  cut.lane_bits = lane_bits_of<kVec>(schedule, width);
  const int lanes = 1 << cut.lane_bits,
            threads = std::clamp(schedule.threads / 32 * 32, 32, kGatherThreads);
  const int64_t tile = int64_t{lanes} * kVec, tiles = ceil_div(width, tile);
  const bool many = gathered.weight != nullptr && gathered.heads > 1;
  // A tile may begin and end within a head.
  const int64_t depth = width / gathered.heads, max_heads = (tile - 2) / depth + 2;
  cut.max_heads = many ? static_cast<int>(std::min<int64_t>(gathered.heads, max_heads)) : 1;
  const int64_t teams = threads / lanes;
  const int64_t entries = ceil_div(csr.count, schedule.blocks * teams);  // of a team
  // What dots take of shared memory leaves no room for more than 16 entries with their order.
  const int max_bits = Dots::kAny && csr.order != nullptr ? 4 : 5;
  cut.chunk_bits = many ? kStepBits : std::clamp(cut.lane_bits, kStepBits, max_bits);
  const int64_t chunks = ceil_div(entries, int64_t{1} << cut.chunk_bits);
  const int64_t blocks = ceil_div(csr.count, (chunks << cut.chunk_bits) * teams);
  if (tiles > kMaxGridY || blocks > kMaxGridX || chunks << cut.chunk_bits > 0x3fffffff)
    return cudaErrorInvalidConfiguration;
  cut.chunks = static_cast<int>(chunks);
  const Tails<Op, Acc> tails = {static_cast<unsigned char*>(workspace), next_tag()};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  const int64_t shared = gather_shared_bytes<Op, Acc, RowEpilogue, Dots>(
      cut, NoSoftmax{}, csr.order != nullptr, threads);
  return launch(stream, {grid, threads, static_cast<size_t>(shared)},
                gather_kernel<Op, Rows, RowEpilogue, Dots>, csr, gathered, cut, output, dots,
                NoSoftmax{}, fills, tails);
}

// Sums and means have a kernel for teams of no more than one step.
template <class Op, typename T>
constexpr bool has_step = is_linear<Op> && !std::is_integral_v<T>;

// Whether a schedule's teams can have all entries in one step, as step_kernel has them: they are of
// kStepLanes lanes, where dots are taken too of 8, 16 or 32.
inline bool takes_one_step(const Schedule& schedule, const Csr<Index>& csr, Features features) {
  constexpr int64_t kMaxEntries = int64_t{1} << 30, kMaxWidth = int64_t{1} << 20;
  return schedule.threads == kStepThreads &&
         csr.count <= std::min(schedule.blocks * step_block(schedule.lanes), kMaxEntries) &&
         features.width <= kMaxWidth && csr.num_weights <= (kMaxEntries << 2) / features.heads;
}

template <class Op, int kLanes = kStepLanes, typename T, typename Acc, class RowEpilogue,
          class Dots = NoDots, class Softmax = NoSoftmax>
cudaError_t launch_step(cudaStream_t stream, const Csr<Index>& csr, const T* in, const Acc* weight,
                        Features features, const RowEpilogue& epilogue, T* out, void* workspace,
                        const Dots& dots = {}, const Softmax& softmax = {}) {
  const bool fills = fills_on_the_way(csr);
  if (!fills) {
    const Output<T, Op, Acc, RowEpilogue> output = {out, csr.num_rows, features.width, epilogue};
    const cudaError_t error = launch_fill(stream, start_behind(csr, start_of(dots)), output);
    if (error != cudaSuccess || csr.count == 0) return error;
  }
  const auto cut = [](int64_t size) {
    return static_cast<unsigned>(std::min<int64_t>(size, std::numeric_limits<Index>::max()));
  };
  const Step<T, Acc> step = {csr.rows,
                             csr.cols,
                             csr.order,
                             static_cast<unsigned>(csr.count),
                             cut(csr.num_rows),
                             cut(csr.num_cols),
                             cut(csr.num_weights),
                             in,
                             weight,
                             out,
                             static_cast<unsigned>(features.width),
                             static_cast<unsigned>(features.heads),
                             static_cast<unsigned>(features.width / features.heads / Op::kVec),
                             static_cast<float>(features.heads) / features.width,
                             fills};
  const Tails<Op, Acc> tails = {static_cast<unsigned char*>(workspace), next_tag()};
  const int64_t blocks = ceil_div(csr.count, int64_t{step_block(kLanes)});
  const int64_t tiles = ceil_div(features.width, int64_t{kLanes} * Op::kVec);
  if (tiles > kMaxGridY) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  using Shared = StepShared<Op, T, Acc, RowEpilogue, Dots::kAny, kLanes, Softmax>;
  return launch(stream, {grid, kStepThreads, sizeof(Shared)},
                step_kernel<Op, T, Acc, RowEpilogue, Dots, kLanes, Softmax>, step, epilogue, dots,
                softmax, tails);
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
}  // namespace jax_gnn::cuda
