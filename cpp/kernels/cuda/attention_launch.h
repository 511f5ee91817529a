// Attention over edges, the host's side: which walks, in words of which size. Its instances are
// several units, which compile side by side.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attention.cuh"
#include "attention.h"
#include "attention_back.cuh"
#include "attention_walk.cuh"
#include "segment_reduce.h"
#include "segment_walk_launch.h"

namespace jax_gnn::cuda {
namespace {

// Heads that the tile of a team meets, which may begin within one.
template <int kVec>
int tile_heads_of(int lanes, Features features) {
  const int64_t words = features.width / features.heads / kVec;  // of a head
  const int64_t max_heads = lanes > 1 ? (lanes - 2) / words + 2 : 1;
  return static_cast<int>(std::min<int64_t>({features.heads, max_heads, lanes}));
}

// Blocks that a device holds at once, where a multiprocessor holds at most so many. `shared`: bytes
// of a block, which become more where they would allow for more blocks than that: what is not
// shared memory is L1, which all that is on its way passes, and if it is 28 KB, the
// rest of an H200's, walks take half as long again.
inline int64_t blocks_at_once(int64_t& shared, int64_t max_blocks) {
  constexpr int64_t kReserved = 2 << 10;  // of a block: static, and the system's
  const int64_t bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  const int64_t resident = std::clamp<int64_t>(bytes * 6 / 7 / (shared + kReserved), 1, max_blocks);
  if (resident < max_blocks) shared = std::max(shared, bytes / (resident + 1));
  return num_multiprocessors() * resident;
}

// Of a team. Ids of narrower ones would take too much of shared memory.
template <int kVec>
int attend_lane_bits(int64_t width) {
  int bits = 2;
  while (bits < 5 && int64_t{kVec} << bits < width) ++bits;
  return bits;
}

// How features are dealt out: whether a team has whole heads. Steps are left open.
template <int kVec>
bool cut_features(Features features, AttendCut& cut) {
  cut.width = features.width;
  cut.lane_bits = attend_lane_bits<kVec>(features.width);
  const int lanes = 1 << cut.lane_bits;
  cut.tile_heads = tile_heads_of<kVec>(lanes, features);
  cut.head_bits = 0;
  const int64_t words = features.width / features.heads / kVec;  // of a head
  if (features.heads == 1)
    cut.head_bits = cut.lane_bits;
  else
    while (int64_t{1} << cut.head_bits < words) ++cut.head_bits;
  return words <= lanes && (features.heads == 1 || words == 1 << cut.head_bits);
}

// Statistics of rows without entries.
template <typename Acc>
struct NoStats : SumOp<Acc, 1> {
  using Result = SoftmaxStats<Acc>;
  static __device__ __forceinline__ Result empty() { return {0, -kLeast<true, Acc>}; }
};

// Rows, and their statistics.
template <class Op, typename T, typename Acc>
cudaError_t launch_fill(cudaStream_t stream, Start next,
                        const Output<T, Op, Acc, StoredStats<Acc>>& output) {
  const Output<T, SumOp<Acc, 1>, Acc> rows = {output.out, output.num_rows, output.width, {}};
  const Output<SoftmaxStats<Acc>, NoStats<Acc>, Acc> of_rows = {
      output.epilogue.stats, output.num_rows, output.epilogue.heads, {}};
  const cudaError_t error = launch_fill(stream, Start::kWaits, rows);
  return error == cudaSuccess ? launch_fill(stream, next, of_rows) : error;
}

// Whether one step can deal out all entries (segment_step.cuh).
template <class Op, int kLanes, class Softmax, typename T, typename Acc>
bool takes_one_step(const Csr<Index>& csr, Features features, const Workspace& workspace) {
  using Shared = StepShared<Op, T, Acc, StoredStats<Acc>, false, kLanes, Softmax>;
  const Schedule schedule = {Kernel::kStep, kLanes, kStepThreads, workspace.blocks};
  return takes_one_step(schedule, csr, features) &&
         static_cast<int64_t>(sizeof(Shared)) <= max_shared_memory();
}

// Lanes of a team of one step that has scores of keys, of whole heads.
constexpr int kKeyedStepLanes = 16;

// The sum under a softmax of scores that are numbers for each head, and its statistics, in one
// pass: the walk of weighted sums.
template <int kVec, typename T, typename Acc>
cudaError_t launch_softmax(cudaStream_t stream, Kernel kernel, const Csr<Index>& csr,
                           const T* value, const Attention<Acc>& attention, Features features,
                           T* out, SoftmaxStats<Acc>* stats, const Workspace& workspace) {
  using Op = SoftmaxSumOp<Acc, kVec>;
  using RowEpilogue = StoredStats<Acc>;
  if (csr.num_rows <= 0) return cudaSuccess;
  if (features.width <= 0 || !addressable<T>(features) ||
      !addressable<SoftmaxStats<Acc>>({features.heads, 1}))
    return cudaErrorInvalidValue;
  const RowEpilogue epilogue = {stats, features.heads};
  const Acc* const no_weight = nullptr;
  if (kernel == Kernel::kStep) {
    if (!takes_one_step<Op, kStepLanes, StepSoftmax<Acc>, T, Acc>(csr, features, workspace))
      return cudaErrorInvalidConfiguration;
    return launch_step<Op>(stream, csr, value, no_weight, features, epilogue, out, workspace.bytes,
                           NoDots{}, StepSoftmax<Acc>{attention});
  }
  const Output<T, Op, Acc, RowEpilogue> output = {out, csr.num_rows, features.width, epilogue};
  const bool fills = fills_on_the_way(csr);
  if (!fills) {
    const cudaError_t error = launch_fill(stream, start_behind(csr, Start::kWaits), output);
    if (error != cudaSuccess || csr.count == 0) return error;
  }
  const auto trailing = [](int64_t size) {  // log2 of what a size is a multiple of
    int bits = 0;
    while (bits < 8 && size >> bits != 0 && (size >> bits) % 2 == 0) ++bits;
    return bits;
  };
  GatherCut cut;
  cut.width = features.width;
  cut.lane_bits = attend_lane_bits<kVec>(features.width);
  const int lanes = 1 << cut.lane_bits, teams = kGatherThreads / lanes;
  const int64_t tile = int64_t{lanes} * kVec, tiles = ceil_div(features.width, tile);
  const int64_t depth = features.width / features.heads;
  const bool whole_heads = tiles == 1 || tile % depth == 0;  // of each tile
  cut.max_heads = whole_heads
                      ? static_cast<int>(std::min<int64_t>(features.heads, ceil_div(tile, depth)))
                      : tile_heads_of<kVec>(lanes, features);
  cut.chunk_bits = std::max(cut.lane_bits, kStepBits);
  Softmax<Acc> softmax = {};
  softmax.attention = attention;
  // Heads whose numbers are copied at once: those of a row, and of a tile, are a multiple of them.
  const int max_bits = sizeof(Acc) == 4 ? 2 : 1;
  if (whole_heads) {
    softmax.word_bits = std::min({max_bits, trailing(features.heads), trailing(cut.max_heads)});
    const Acc* const arrays[] = {attention.dst_score, attention.src_score, attention.edge_score,
                                 attention.edge_scale};
    for (const Acc* array : arrays)
      while (!aligned(array, sizeof(Acc) << softmax.word_bits)) --softmax.word_bits;
  }
  // Chunks of as many entries as a team has lanes, fewer where that takes too much shared memory,
  // or leaves teams without any.
  constexpr int64_t kMaxShared = 48 << 10;
  constexpr int64_t kFew = 64;  // entries of a team, up to which all tiles are walked at once
  int64_t shared, entries;
  for (++cut.chunk_bits;;) {
    softmax.cut(1 << --cut.chunk_bits, cut.max_heads);
    shared = gather_shared_bytes<Op, Acc, RowEpilogue, NoDots>(cut, softmax, csr.order != nullptr,
                                                               kGatherThreads);
    const int64_t at_once = blocks_at_once(shared, kGatherBlocks<Softmax<Acc>>);
    const int64_t once = ceil_div(csr.count * tiles, at_once * teams);
    entries = std::max(once <= kFew ? once : int64_t{1},
                       ceil_div(csr.count, std::min(workspace.blocks, at_once) * teams));
    if (cut.chunk_bits == kStepBits || (shared <= kMaxShared && 1 << cut.chunk_bits <= entries))
      break;
  }
  const int64_t chunks = ceil_div(entries, int64_t{1} << cut.chunk_bits);
  const int64_t blocks = ceil_div(csr.count, (chunks << cut.chunk_bits) * teams);
  if (tiles > kMaxGridY || blocks > kMaxGridX || chunks << cut.chunk_bits > 0x3fffffff)
    return cudaErrorInvalidConfiguration;
  cut.chunks = static_cast<int>(chunks);
  const Tails<Op, Acc> tails = {static_cast<unsigned char*>(workspace.bytes), next_tag()};
  const Gathered<T, Acc> gathered = {value, nullptr, static_cast<int>(features.heads)};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  return launch(stream, {grid, kGatherThreads, static_cast<size_t>(shared)},
                gather_kernel<Op, Gathered<T, Acc>, RowEpilogue, NoDots, Softmax<Acc>>, csr,
                gathered, cut, output, NoDots{}, softmax, fills, tails);
}

// Entries up to which an attention of relations may begin beside the product ahead of it. Blocks
// that do share a multiprocessor with that, which leaves them a small L1 to the end: on an
// H200 BGS's 2.2 million edges took 303 us in place of 267, MUTAG's 0.17 million 26 in place of 28.
constexpr int64_t kOverlappedEntries = 1 << 18;

// The sum under a softmax of scores that are made of keys, and its statistics, in one pass.
template <Scores kScores, bool kSame, int kVec, typename T, typename Acc>
cudaError_t launch_attend(cudaStream_t stream, Kernel kernel, const Csr<Index>& csr,
                          const Attended<T, Acc>& attended, Features features, T* out,
                          SoftmaxStats<Acc>* stats, const Workspace& workspace) {
  using Op = SoftmaxSumOp<Acc, kVec>;
  if (csr.num_rows <= 0) return cudaSuccess;
  if (features.width <= 0 || !addressable<T>(features) ||
      !addressable<SoftmaxStats<Acc>>({features.heads, 1}))
    return cudaErrorInvalidValue;
  const Output<T, Op, Acc, StoredStats<Acc>> output = {
      out, csr.num_rows, features.width, {stats, features.heads}};
  AttendCut cut;
  if (!cut_features<kVec>(features, cut)) return cudaErrorInvalidValue;
  constexpr bool kTyped = kScores == Scores::kTyped;
  if (kernel == Kernel::kStep) {
    if constexpr (!kTyped) {
      using InStep = StepKeys<kScores, kSame, T, Acc>;
      if (1 << cut.head_bits <= kKeyedStepLanes &&
          takes_one_step<Op, kKeyedStepLanes, InStep, T, Acc>(csr, features, workspace)) {
        int head_bits = cut.head_bits;  // of one head all lanes
        while (features.heads == 1 && 1 << head_bits < kKeyedStepLanes) ++head_bits;
        const Acc* const no_weight = nullptr;
        return launch_step<Op, kKeyedStepLanes>(
            stream, csr, attended.value, no_weight, features, output.epilogue, out, workspace.bytes,
            NoDots{}, InStep{attended.keys, attended.edge_scale, head_bits});
      }
    }
    return cudaErrorInvalidConfiguration;
  }
  const bool fills = fills_on_the_way(csr);
  if (!fills) {
    const cudaError_t error = launch_fill(stream, start_behind(csr, Start::kWaits), output);
    if (error != cudaSuccess || csr.count == 0) return error;
  }
  const int lanes = 1 << cut.lane_bits, teams = kAttendThreads / lanes;
  const AttendLayout<kScores, kSame, Op, T, Acc> layout(
      cut, kTyped || csr.order != nullptr,
      1 + (attended.typed.at_row != nullptr) + (attended.edge_scale != nullptr));
  constexpr int kStep = kAttendStep<kScores, T>;
  int64_t shared = layout.bytes();
  const int64_t at_once = blocks_at_once(shared, kAttendBlocks<kScores, T>);
  const int64_t entries = ceil_div(csr.count, std::min(workspace.blocks, at_once) * teams);
  const int64_t steps = ceil_div(entries, kStep);
  const int64_t blocks = ceil_div(csr.count, steps * kStep * teams);
  const int64_t tiles = ceil_div(features.width, int64_t{lanes} * kVec);
  if (tiles > kMaxGridY || blocks > kMaxGridX || steps * kStep > 0x3fffffff)
    return cudaErrorInvalidConfiguration;
  cut.steps = static_cast<int>(steps);
  const Tails<Op, Acc> tails = {static_cast<unsigned char*>(workspace.bytes), next_tag()};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  const bool overlaps = !kTyped || csr.count <= kOverlappedEntries;
  return launch(stream, {grid, kAttendThreads, static_cast<size_t>(shared), overlaps},
                attend_kernel<kScores, kSame, Op, T, Acc>, csr, attended, cut, output, fills,
                tails);
}

// Makes the records, and zeros of the scores' cotangents where an order may leave some out.
template <typename T, typename Acc>
cudaError_t launch_records(cudaStream_t stream, const Csr<Index>& csr,
                           const Attained<T, Acc>& attained, const Acc* dst_score,
                           Features features, AttentionRecord<Acc>* records, Acc* to_score) {
  constexpr int kWide = 16 / sizeof(T);
  const bool wide = fits<kWide, T>(features, {attained.y, attained.ct});
  const int64_t of_head = features.width / features.heads / (wide ? kWide : 1);
  const int64_t words = attained.y != nullptr ? of_head : 0;
  int lane_bits = 0;
  while (lane_bits < 5 && int64_t{1} << lane_bits < words) ++lane_bits;
  const int64_t count = csr.num_cols * features.heads;
  const int64_t zeros = csr.order != nullptr ? csr.num_weights * features.heads : 0;
  constexpr int64_t kZeros = 8;  // of a thread
  const int64_t threads =
      std::max(ceil_div(count, kRecordItems) << lane_bits, ceil_div(zeros, kZeros));
  const int64_t blocks = std::clamp<int64_t>(ceil_div(threads, kRecordThreads), 1, 1 << 20);
  return launch(stream, {dim3(static_cast<unsigned>(blocks)), kRecordThreads, 0},
                wide ? record_kernel<kWide, T, Acc> : record_kernel<1, T, Acc>, attained, dst_score,
                count, words, lane_bits, records, to_score, zeros, csr.count > 0);
}

// Whether a lane may have two words: not where there are no registers for them, or so little shared
// memory that too few warps are on their way.
template <Scores kScores, bool kSame, typename T>
constexpr bool kHasTwoWords =
    sizeof(T) == 4 ||
    (sizeof(T) == 2 && (!has_keys<kScores> || (kScores == Scores::kDots && kSame)));

// Calls f(words of a lane): two, if it may have two, where a head has so many that each lane has at
// most one entry of a step for its own, one elsewhere.
template <bool kTwoWords, typename T, class F>
cudaError_t with_lane_words(Features features, const F& f) {
  if constexpr (kTwoWords) {
    const int64_t words = features.width / features.heads / kWordFeatures<T>;  // of a head
    if (words >= 2 * kBackStep && (words & (words - 1)) == 0)
      return f(std::integral_constant<int, 2>{});
  }
  return f(std::integral_constant<int, 1>{});
}

// The gradients by source, in one pass. There are whole heads in a team. to_vector: (width), if
// there is a vector.
template <Scores kScores, bool kSame, class Op, class RowEpilogue, typename T, typename Acc>
cudaError_t launch_back(cudaStream_t stream, const Csr<Index>& csr,
                        const Attained<T, Acc>& attained, const Back<T, Acc>& back,
                        AttentionRecord<Acc>* records, Features features, T* out,
                        const RowEpilogue& epilogue, Acc* to_vector, const Workspace& workspace) {
  constexpr int kFeatures = Op::kVec, kStep = kBackStep;  // of a lane; of a team
  AttendCut cut;
  if (!cut_features<kFeatures>(features, cut) || !addressable<T>(features) ||
      !addressable<AttentionRecord<Acc>>({features.heads, 1}))
    return cudaErrorInvalidValue;
  const Output<T, Op, Acc, RowEpilogue> output = {out, csr.num_rows, features.width, epilogue};
  const auto fill = [&](auto* to, int64_t rows, int64_t width) {
    using To = std::remove_pointer_t<decltype(to)>;
    const Output<To, SumOp<Acc, 1>, Acc> zeros = {to, rows, width, {}};
    return to != nullptr ? launch_fill(stream, Start::kWaits, zeros) : cudaSuccess;
  };
  const auto sum_parts = [&](int64_t count) {
    if (to_vector == nullptr) return cudaSuccess;
    const int64_t blocks = ceil_div(features.width, kSumColumns);
    return launch(stream, {dim3(static_cast<unsigned>(blocks)), kSumThreads, 0},
                  sum_parts_kernel<Acc>, back.parts, count, features.width, to_vector);
  };
  const bool fills = fills_on_the_way(csr);
  cudaError_t error = cudaSuccess;
  if (!fills && csr.num_rows > 0) {
    error = fill(out, csr.num_rows, features.width);
    if constexpr (!std::is_same_v<RowEpilogue, SumRows>) {
      const int64_t width =
          std::is_same_v<RowEpilogue, HeadSums<Acc>> ? features.heads : features.width;
      if (error == cudaSuccess) error = fill(epilogue.out, csr.num_rows, width);
    }
  }
  if (error == cudaSuccess)
    error = launch_records(stream, csr, attained, back.attention.dst_score, features, records,
                           back.to_score);
  if (error != cudaSuccess) return error;
  if (csr.count == 0) return sum_parts(0);
  const int lanes = 1 << cut.lane_bits, teams = kBackThreads / lanes;
  const BackLayout<kScores, kSame, Op, T, Acc> layout(cut, csr.order != nullptr,
                                                      back.attention.edge_scale != nullptr);
  int64_t shared = layout.bytes();
  const int64_t at_once =
      blocks_at_once(shared, kBackBlocks<kScores, kSame, kLaneWords<T, Op>, kWordFeatures<T>, Acc>);
  const int64_t entries = ceil_div(csr.count, std::min(workspace.blocks, at_once) * teams);
  const int64_t steps = ceil_div(entries, kStep);
  const int64_t blocks = ceil_div(csr.count, steps * kStep * teams);
  const int64_t tiles = ceil_div(features.width, int64_t{lanes} * kFeatures);
  if (tiles > kMaxGridY || blocks > kMaxGridX || steps * kStep > 0x3fffffff)
    return cudaErrorInvalidConfiguration;
  cut.steps = static_cast<int>(steps);
  const Tails<Op, Acc> tails = {static_cast<unsigned char*>(workspace.bytes), next_tag()};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  error = launch(stream, {grid, kBackThreads, static_cast<size_t>(shared)},
                 back_kernel<kScores, kSame, Op, T, Acc, RowEpilogue>, csr, back, cut, output,
                 fills, tails);
  return error == cudaSuccess ? sum_parts(blocks) : error;
}

}  // namespace

template <typename T, typename Acc>
cudaError_t attention(cudaStream_t stream, Kernel kernel, const Csr<Index>& csr, const T* value,
                      const Attention<Acc>& attention, Features features, T* out,
                      SoftmaxStats<Acc>* stats, const Workspace& workspace) {
  constexpr int kVec = 16 / sizeof(T);
  const auto attend = fits<kVec, T>(features, {value, out}) ? launch_softmax<kVec, T, Acc>
                                                            : launch_softmax<1, T, Acc>;
  return attend(stream, kernel, csr, value, attention, features, out, stats, workspace);
}

template <typename T, typename Acc>
cudaError_t keyed_attention(cudaStream_t stream, Kernel kernel, const Csr<Index>& csr,
                            const T* value, const Keys<T, Acc>& keys, const Acc* edge_scale,
                            Features features, T* out, SoftmaxStats<Acc>* stats,
                            const Workspace& workspace) {
  const Attended<T, Acc> attended = {value, keys, edge_scale, static_cast<int>(features.heads), {}};
  constexpr int kVec = 16 / sizeof(T);
  if (!fits<kVec, T>(features, {value, keys.row_key, keys.col_key, out}))
    return cudaErrorInvalidValue;
  const bool same = keys.col_key == value, leaky = keys.vector != nullptr;
  const auto attend = leaky  ? same ? launch_attend<Scores::kLeaky, true, kVec, T, Acc>
                                    : launch_attend<Scores::kLeaky, false, kVec, T, Acc>
                      : same ? launch_attend<Scores::kDots, true, kVec, T, Acc>
                             : launch_attend<Scores::kDots, false, kVec, T, Acc>;
  return attend(stream, kernel, csr, attended, features, out, stats, workspace);
}

template <typename T, typename Acc>
cudaError_t typed_attention(cudaStream_t stream, Kernel kernel, const Csr<Index>& csr,
                            const T* value, const TypedKeys<T, Acc>& keys, const Acc* edge_scale,
                            Features features, T* out, SoftmaxStats<Acc>* stats,
                            const Workspace& workspace) {
  constexpr int kVec = 16 / sizeof(T);
  if (csr.order != nullptr || (keys.row == nullptr) == (keys.at_row == nullptr) ||
      (keys.row != nullptr && features.heads != 1) ||
      !fits<kVec, T>(features, {value, keys.row, keys.of_value, keys.of_row, out}))
    return cudaErrorInvalidValue;
  Keys<T, Acc> of_rows = {};
  of_rows.row_key = keys.row;
  const Attended<T, Acc> attended = {value, of_rows, edge_scale, static_cast<int>(features.heads),
                                     keys};
  return launch_attend<Scores::kTyped, true, kVec>(stream, kernel, csr, attended, features, out,
                                                   stats, workspace);
}

template <typename T, typename Acc>
cudaError_t keyed_attention_vjp(cudaStream_t stream, const Csr<Index>& csr, const T* value,
                                const Attained<T, Acc>& attained, const Keys<T, Acc>& keys,
                                const Acc* edge_scale, Features features, T* out, T* to_col_key,
                                Acc* to_score, Acc* to_vector, AttentionRecord<Acc>* records,
                                Acc* parts, const Workspace& workspace) {
  constexpr int kVec = 16 / sizeof(T);
  if (!fits<kVec, T>(features, {attained.ct, value, keys.row_key, keys.col_key, out, to_col_key}))
    return cudaErrorInvalidValue;
  const Attention<Acc> attention = {nullptr, nullptr, nullptr, edge_scale, 0};
  const Back<T, Acc> back = {attained.ct, value,    records, attention,
                             keys,        to_score, parts,   static_cast<int>(features.heads),
                             {}};
  const auto with_scores = [&](auto scores) {
    constexpr Scores kScores = decltype(scores)::value;
    const auto run = [&](auto same, const auto& epilogue) {
      constexpr bool kSame = decltype(same)::value;
      return with_lane_words<kHasTwoWords<kScores, kSame, T>, T>(features, [&](auto words) {
        constexpr int kFeatures = decltype(words)::value * kVec;
        using Op = std::conditional_t<kSame, SumOp<Acc, kFeatures>, PairSumOp<Acc, kFeatures>>;
        return launch_back<kScores, kSame, Op>(stream, csr, attained, back, records, features, out,
                                               epilogue, to_vector, workspace);
      });
    };
    return to_col_key == nullptr ? run(std::true_type{}, SumRows{})
                                 : run(std::false_type{}, SecondRows<T>{to_col_key, {}});
  };
  return keys.vector == nullptr ? with_scores(std::integral_constant<Scores, Scores::kDots>{})
                                : with_scores(std::integral_constant<Scores, Scores::kLeaky>{});
}

// The gradients by source of scores that are numbers of heads, or those of relations, in one pass.
template <Scores kScores, typename T, typename Acc>
cudaError_t launch_numbers_back(cudaStream_t stream, const Csr<Index>& csr, const T* value,
                                const Attained<T, Acc>& attained, const Attention<Acc>& attention,
                                const TypedVectors<T>& of_rows, Features features, T* out,
                                Acc* to_src_score, Acc* to_score, AttentionRecord<Acc>* records,
                                const Workspace& workspace) {
  constexpr int kVec = 16 / sizeof(T);
  if (!fits<kVec, T>(features, {attained.ct, value, of_rows.vectors, out}))
    return cudaErrorInvalidValue;
  const Back<T, Acc> back = {attained.ct, value,    records, attention,
                             {},          to_score, nullptr, static_cast<int>(features.heads),
                             of_rows};
  const HeadSums<Acc> sums = {to_src_score, features.heads, {}};
  return with_lane_words<kHasTwoWords<kScores, false, T>, T>(features, [&](auto words) {
    using Op = ScoredSumOp<Acc, decltype(words)::value * kVec>;
    return launch_back<kScores, false, Op>(stream, csr, attained, back, records, features, out,
                                           sums, static_cast<Acc*>(nullptr), workspace);
  });
}

template <typename T, typename Acc>
cudaError_t attention_vjp(cudaStream_t stream, const Csr<Index>& csr, const T* value,
                          const Attained<T, Acc>& attained, const Attention<Acc>& attention,
                          Features features, T* out, Acc* to_src_score, Acc* to_score,
                          AttentionRecord<Acc>* records, const Workspace& workspace) {
  return launch_numbers_back<Scores::kOfHeads>(stream, csr, value, attained, attention,
                                               TypedVectors<T>{}, features, out, to_src_score,
                                               to_score, records, workspace);
}

template <typename T, typename Acc>
cudaError_t typed_attention_vjp(cudaStream_t stream, const Csr<Index>& csr, const T* value,
                                const Attained<T, Acc>& attained, const Attention<Acc>& attention,
                                const TypedVectors<T>& of_rows, Features features, T* out,
                                Acc* to_src_score, Acc* to_score, AttentionRecord<Acc>* records,
                                const Workspace& workspace) {
  return launch_numbers_back<Scores::kTyped>(stream, csr, value, attained, attention, of_rows,
                                             features, out, to_src_score, to_score, records,
                                             workspace);
}

template <typename T, typename Acc>
cudaError_t attention_vjp(cudaStream_t stream, const Schedule& schedule, bool one_pass,
                          const Csr<Index>& csr, const T* value, const Attained<T, Acc>& attained,
                          const Attention<Acc>& attention, Features features, T* out,
                          Acc* to_src_score, Acc* to_score, AttentionRecord<Acc>* records,
                          Acc* scratch, void* workspace) {
  JAX_GNN_RETURN_IF_CUDA_ERROR(
      launch_records(stream, csr, attained, attention.dst_score, features, records, to_score));
  const BySource<Acc> edges = {csr, attention, records, features.heads};
  const int64_t size = csr.count * features.heads;
  const Plan plan = {dim3(static_cast<unsigned>(std::min<int64_t>(ceil_div(size, 256), 2048))), 256,
                     0};
  Acc* const dots = scratch + size;
  if (size > 0) {
    JAX_GNN_RETURN_IF_CUDA_ERROR(launch(stream, plan, weigh_kernel<Acc>, edges, scratch));
  }
  Csr<Index> in_order = csr;  // weights and dots in the entries' order
  in_order.order = nullptr;
  in_order.num_weights = csr.count;
  JAX_GNN_RETURN_IF_CUDA_ERROR(segment_reduce_vjp(stream, schedule, one_pass, in_order, attained.ct,
                                                  scratch, value, features, out, dots, workspace));
  if (size > 0) {
    JAX_GNN_RETURN_IF_CUDA_ERROR(launch(stream, plan, finish_scores_kernel<Acc>, edges,
                                        static_cast<const Acc*>(dots), to_score));
  }
  if (to_src_score == nullptr) return cudaSuccess;
  Csr<Index> places = csr;  // whose rows are summed up
  places.cols = csr.order;
  places.num_cols = csr.num_weights;
  places.order = nullptr;
  return segment_reduce<Acc, Acc>(stream, schedule, places, Reduce::kSum, Input<Acc>{to_score},
                                  nullptr, Features{features.heads, 1}, {}, to_src_score,
                                  workspace);
}

template <typename T, typename Acc>
cudaError_t leaky_sum(cudaStream_t stream, Kernel kernel, const Csr<Index>& csr,
                      const Leaky<T, Acc>& leaky, const Acc* factor, const Acc* vector,
                      Features features, T* out, const Workspace& workspace) {
  if (csr.num_rows <= 0 || features.width <= 0) return cudaSuccess;
  if (!addressable<T>(features)) return cudaErrorInvalidValue;
  using RowSlopes = Slopes<T, Acc>;
  constexpr int kWide = 16 / sizeof(T);
  const int heads = static_cast<int>(features.heads);
  const int64_t at_once = int64_t{num_multiprocessors()} * kGatherBlocks<NoSoftmax, RowSlopes>;
  const bool gathers = kernel == Kernel::kGather;
  const Schedule schedule = {kernel, gathers ? 16 : 32, kGatherThreads,
                             std::min(workspace.blocks, at_once)};
  const bool wide = fits<kWide, T>(features, {leaky.row_key, leaky.col_key, out});
  if (!wide && gathers) return cudaErrorInvalidConfiguration;
  if (gathers)
    return launch_gather<SumOp<Acc, kWide>>(
        stream, schedule, csr, Gathered<T, Acc>{leaky.col_key, factor, heads}, features.width,
        NoEpilogue{}, out, workspace.bytes, RowSlopes{leaky.row_key, vector, leaky.slope});
  const auto with_vec = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    const SlopeMessage<T, Acc, kVec> message = {leaky, factor, vector, row_bytes_of<T>(features),
                                                heads};
    return launch_reduce<SumOp<Acc, kVec>>(stream, schedule, csr, message, features, out,
                                           workspace.bytes);
  };
  return wide ? with_vec(std::integral_constant<int, kWide>{})
              : with_vec(std::integral_constant<int, 1>{});
}

#define JAX_GNN_INSTANTIATE(T, Acc)                                                                \
  JAX_GNN_INSTANCE(attention<T, Acc>);                                                             \
  JAX_GNN_INSTANCE(keyed_attention<T, Acc>);                                                       \
  JAX_GNN_INSTANCE(typed_attention<T, Acc>);                                                       \
  JAX_GNN_INSTANCE(typed_attention_vjp<T, Acc>);                                                   \
  JAX_GNN_INSTANCE(keyed_attention_vjp<T, Acc>);                                                   \
  JAX_GNN_INSTANCE(leaky_sum<T, Acc>);                                                             \
  template cudaError_t attention_vjp(cudaStream_t, const Csr<int32_t>&, const T*,                  \
                                     const Attained<T, Acc>&, const Attention<Acc>&, Features, T*, \
                                     Acc*, Acc*, AttentionRecord<Acc>*, const Workspace&);         \
  template cudaError_t attention_vjp(                                                              \
      cudaStream_t, const Schedule&, bool, const Csr<int32_t>&, const T*, const Attained<T, Acc>&, \
      const Attention<Acc>&, Features, T*, Acc*, Acc*, AttentionRecord<Acc>*, Acc*, void*);

}  // namespace jax_gnn::cuda
