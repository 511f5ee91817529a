// All gradients of attention over the edges of small graphs in one launch: a team of lanes has one
// step of entries and no more (as in segment_step.cuh), as nearly all the time is memory's latency.
//
// There are two kinds of blocks. Those by source go through the transposed entries: of an entry
// come the result, its cotangent, the key and the statistics of its destination; they sum up what
// sources' values get, and their keys or scores. Those by destination go through the entries as the
// forward pass does: of an entry come the value and the key of its source; they sum up what
// destinations' keys or scores get, and the vector. Both compute scores and weights again, by the
// additions of the forward pass, so that nothing is handed from one kind to the other, and neither
// waits. The vector is added up by a few blocks more, the last ones, of what those by destination
// hand on: they wait for blocks that start earlier, which wait for none that start later. The
// cotangent of an entry's score is weight * (< ct, scale * value - y > + log_sum_ct): the
// difference is taken before the dot, so that there is one dot over the lanes, and no pass over the
// destinations ahead.
//
// A block has a window of entries, of which the first kGradientBefore teams have those before the
// block: they sum up what of the block's first row lies there once more, rather than that it is
// waited for. A longer row goes on from the tails of blocks before (segment_tails.cuh), which
// follows from two ids that both sides read: the block's first one and the window's.
//
// What an entry brings for its sums stays in registers, other rows go to shared memory by
// asynchronous copies, each lane's words for itself, once for each run of a team's entries if they
// are of the run's row.
//
// Needs blocks of kGradientThreads threads; GradientShared's bytes of dynamic shared memory; whole
// heads of up to kGradientLanes words of 16 bytes; a workspace row for each block of a column of
// the grid, of those by destination two, and tags that no other launch has. Promises that all rows
// are written, empty ones too, that no row of an id out of range is read, that any ids are
// survived, and the same bits on every run: the cut depends on shapes only.
#pragma once

#include <cuda_pipeline.h>

#include "../attention.h"
#include "attention_walk.cuh"
#include "edge_scores.cuh"
#include "lane_sums.cuh"
#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_output.cuh"
#include "segment_step.cuh"
#include "segment_tails.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kGradientThreads = 128;  // of a block
constexpr int kGradientLanes = 16;     // of a team
constexpr int kGradientEntries = 8;    // of a team
constexpr int kGradientTeams = kGradientThreads / kGradientLanes;
constexpr int kGradientBefore = 2;  // teams for what lies before the block
constexpr int kGradientOverlap = kGradientBefore * kGradientEntries;
constexpr int kGradientWindow = kGradientTeams * kGradientEntries;
constexpr int kGradientBlock = kGradientWindow - kGradientOverlap;  // entries of a block

// Blocks of a multiprocessor: with more, registers are spilled.
template <Scores kScores, typename T>
constexpr int kGradientBlocks = kScores == Scores::kLeaky && sizeof(T) != 4 ? 3 : 4;

// The entries of one kind of blocks, sorted by their rows.
struct GradientSide {
  const Index *rows, *cols, *order;  // as of a Csr; of entries by destination there is no order
  unsigned count, num_rows, num_cols, num_weights;
};

// Operands and results of the gradients.
template <typename T, typename Acc>
struct Gradients {
  GradientSide by_src, by_dst;
  unsigned src_blocks, dst_blocks;  // in this order, then those for the vector
  const T* value;                   // (num_src, width)
  Attained<T, Acc> attained;
  Attention<Acc> attention;               // of keys only the scale of edges
  Keys<T, Acc> keys;                      // row_key is of destinations, col_key of sources
  T *to_value, *to_col_key, *to_row_key;  // to_col_key: null where values are keys
  Acc *to_src_score, *to_dst_score;       // (num_src, heads), (num_dst, heads), of numbers of heads
  Acc* to_vector;                         // (width)
  unsigned width, heads;
  int head_bits;  // log2 of the lanes of a head
};

// Parts of the vector's gradient, from blocks by destination, handed on as tails are: in words of
// 16 bytes, of which 8 are the launch's tag; whoever takes a word removes the tag.
template <typename Acc, int kVec>
struct VectorParts {
  static constexpr int kPairs = kVec * static_cast<int>(sizeof(Acc)) / 8;

  unsigned char* base;  // [block][pair][word of a row]
  uint64_t tag;

  __device__ __forceinline__ unsigned char* pair(unsigned block, int i, unsigned word,
                                                 unsigned words) const {
    return base + 16 * ((uint64_t{block} * kPairs + i) * words + word);
  }
  __device__ __forceinline__ void put(unsigned block, unsigned word, unsigned words,
                                      const Acc (&part)[kVec]) const {
    uint64_t pairs[kPairs];
    memcpy(pairs, part, sizeof(part));
#pragma unroll
    for (int i = 0; i < kPairs; ++i) write_pair(pair(block, i, word, words), pairs[i], tag);
  }
};

// Blocks for the vector have so many lanes of a tile each, whose parts they share out.
constexpr int kVectorLanes = 4, kVectorBlocks = kGradientLanes / kVectorLanes;

// Adds up the parts of a block's lanes, always in the same order.
template <typename Acc, int kVec>
__device__ __forceinline__ void sum_vector(const VectorParts<Acc, kVec>& parts, unsigned block,
                                           unsigned blocks, unsigned words, Acc* to_vector) {
  constexpr int kPairs = VectorParts<Acc, kVec>::kPairs, kBatch = 16 / kPairs;
  constexpr unsigned kGroups = kGradientThreads / kVectorLanes, kWarps = kGradientThreads / 32;
  const unsigned lane = threadIdx.x % kVectorLanes, group = threadIdx.x / kVectorLanes;
  const unsigned word = blockIdx.y * kGradientLanes + block * kVectorLanes + lane;
  Acc sum[kVec] = {};
#pragma unroll 1
  for (unsigned first = group; word < words && first < blocks; first += kBatch * kGroups) {
    uint64_t pairs[kBatch][kPairs] = {};
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
#pragma unroll
        for (int i = 0; i < kPairs; ++i)
          if (first + j * kGroups < blocks) {
            uint64_t word_tag;
            read_pair(parts.pair(first + j * kGroups, i, word, words), pairs[j][i], word_tag);
            complete &= word_tag == parts.tag;
          }
    } while (wait_unless(complete));
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (first + j * kGroups < blocks)
#pragma unroll
        for (int i = 0; i < kPairs; ++i)
          write_pair(parts.pair(first + j * kGroups, i, word, words), 0, ~parts.tag);
      Acc part[kVec];
      memcpy(part, pairs[j], sizeof(part));
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[i] += part[i];
    }
  }
  Acc* const sums = reinterpret_cast<Acc*>(dynamic_shared());  // [warp][lane][feature]
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
#pragma unroll
    for (int distance = kVectorLanes; distance < 32; distance *= 2)
      sum[i] += __shfl_xor_sync(kWholeWarp, sum[i], distance);
    if (threadIdx.x % 32 == lane)
      sums[(threadIdx.x / 32 * kVectorLanes + lane) * kVec + i] = sum[i];
  }
  __syncthreads();
  if (threadIdx.x >= kVectorLanes || word >= words) return;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    Acc total = 0;
#pragma unroll
    for (unsigned warp = 0; warp < kWarps; ++warp)
      total += sums[(warp * kVectorLanes + lane) * kVec + i];
    to_vector[word * kVec + i] = total;
  }
}

// Sums of a kind of blocks: for sources the gradients of values, then of keys if these are apart;
// for destinations those of keys. Where scores are numbers of heads, their gradient comes last.
template <Scores kScores, bool kSame, bool kBySource, typename T, typename Acc_>
struct GradientOp {
  using Acc = Acc_;
  using Result = Acc;
  static constexpr bool kKeyed = has_keys<kScores>;
  static constexpr int kVec = 16 / sizeof(T);
  static constexpr int kWords = kBySource ? (kKeyed && !kSame ? 2 : 1) : (kKeyed ? 1 : 0);
  static constexpr int kKeys = kBySource && !kSame ? kVec : 0;  // where those of keys begin
  static constexpr int kNumber = kWords * kVec;                 // and the number
  static constexpr int kParts = kNumber + !kKeyed, kRoom = 1;
  static constexpr bool kCounts = false, kZeroIsNeutral = true;
  static __device__ __forceinline__ Acc neutral(int) { return 0; }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = before[i] + run[i];
  }
};

// Shared memory of either kind. Words are [row][entry of a team][thread]. Behind them, for each
// team and head of its tile, numbers: [kind][entry of a team].
template <Scores kScores, bool kSame, typename Acc>
struct GradientShared {
  static constexpr bool kKeyed = has_keys<kScores>;
  static constexpr int kRows = kKeyed ? 3 : 2;
  static constexpr int kStats = 0, kLogSumCt = 2, kScale = 3, kDstScore = 4, kSrcScore = 5;
  static constexpr int kWeight = kKeyed ? 4 : 6, kToScore = kWeight + 1, kKinds = kWeight + 2;
  static constexpr int kMaxParts = 2 * 16 / 2;  // of halves

  uint4 words[kRows][kGradientEntries][kGradientThreads];
  alignas(16) Acc waiting[kMaxParts][kGradientLanes];  // what waits for blocks before
  alignas(16) Index cols[kGradientWindow];             // of entries that count, else -1
  alignas(16) Index places[kGradientWindow];           // of weights
  alignas(16) Index rows[kGradientWindow + 4];
  unsigned ends[kGradientWindow / 32];  // bits of entries that another row follows
  unsigned gaps[kGradientWindow / 32];  // of those that empty rows follow
  unsigned counted[kGradientWindow / 32];
  alignas(16) Acc numbers[1];

  __host__ __device__ static constexpr int64_t bytes(int head_bits) {
    const int64_t numbers = kGradientTeams * (kGradientLanes >> head_bits) * kKinds;
    return static_cast<int64_t>(sizeof(GradientShared)) +
           numbers * kGradientEntries * static_cast<int64_t>(sizeof(Acc));
  }
};

template <Scores kScores, bool kSame, bool kBySource, typename T, typename Acc, class OpenTails>
__device__ __forceinline__ void sum_gradients(const Gradients<T, Acc>& from,
                                              const GradientSide& side, unsigned block,
                                              unsigned blocks, const OpenTails& tails,
                                              const VectorParts<Acc, 16 / sizeof(T)>& parts) {
  using Op = GradientOp<kScores, kSame, kBySource, T, Acc>;
  using Shared = GradientShared<kScores, kSame, Acc>;
  using W = uint4;
  constexpr bool kKeyed = has_keys<kScores>, kLeaky = kScores == Scores::kLeaky;
  constexpr int kVec = Op::kVec, kParts = Op::kParts;
  constexpr unsigned kLanes = kGradientLanes, kEntries = kGradientEntries;
  constexpr unsigned kThreads = kGradientThreads, kTeams = kGradientTeams;
  constexpr unsigned kWindow = kGradientWindow, kOverlap = kGradientOverlap;
  constexpr unsigned kBlockEntries = kGradientBlock;
  static_assert(kWindow % 32 == 0 && kWindow <= kThreads && kOverlap <= kBlockEntries && kVec <= 8);
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared());
  const unsigned thread = threadIdx.x, lane = thread % kLanes, team = thread / kLanes;

  // Ids on either side of the block's first entry, and of the next block's, and so far before these
  // as the window reaches: whether a row is handed on.
  const unsigned begin_entry = block * kBlockEntries, end_entry = begin_entry + kBlockEntries;
  const unsigned first_id = load_id(side.rows, begin_entry, side.count, ~0u);
  const unsigned before_id = load_id(side.rows, begin_entry - kOverlap, side.count, ~0u);
  const unsigned next_id = load_id(side.rows, end_entry, side.count, ~0u);
  const unsigned last_id = load_id(side.rows, end_entry - kOverlap, side.count, ~0u);
  const bool crosses_in = first_id < side.num_rows && before_id == first_id;
  const bool crosses_out = next_id < side.num_rows && last_id == next_id;
  // Places in the window: those before the block, of which only the first row's count, its own, and
  // the first of the next.
  if (thread < kWindow) {                                    // whole warps
    const unsigned entry = begin_entry + thread - kOverlap;  // before the first: too large
    const unsigned row = load_id(side.rows, entry, side.count, ~0u);
    const unsigned next = load_id(side.rows, entry + 1, side.count, ~0u);
    const unsigned col = load_id(side.cols, entry, side.count, ~0u);
    const unsigned weight =
        load_id(side.order, entry, side.order != nullptr ? side.count : 0, entry);
    const bool is_taken = thread >= kOverlap || (row == first_id && !crosses_in);
    const bool counts = row < side.num_rows && col < side.num_cols && weight < side.num_weights;
    const bool valid = is_taken && counts;
    shared.rows[thread] = is_taken ? static_cast<Index>(row) : -1;
    if (thread == kWindow - 1) shared.rows[kWindow] = static_cast<Index>(next);
    shared.cols[thread] = valid ? static_cast<Index>(col) : -1;
    shared.places[thread] = static_cast<Index>(weight);
    const unsigned ends = __ballot_sync(kWholeWarp, row != next);
    const unsigned gaps =
        __ballot_sync(kWholeWarp, row + 1 < next && next < side.num_rows && row < side.num_rows);
    const unsigned counted = __ballot_sync(kWholeWarp, valid);
    if (thread % 32 == 0) {
      shared.ends[thread / 32] = ends;
      shared.gaps[thread / 32] = gaps;
      shared.counted[thread / 32] = counted;
    }
  }
  const unsigned first_of_all = side.rows[0], last_of_all = side.rows[side.count - 1];
  const unsigned first_feature = (blockIdx.y * kLanes + lane) * kVec;
  const bool active = first_feature < from.width;
  const unsigned head_lanes = 1u << from.head_bits, head_lane = lane & (head_lanes - 1);
  const unsigned tile_head = lane >> from.head_bits;
  const unsigned head = (blockIdx.y * kLanes >> from.head_bits) + tile_head;
  const bool has_head = active || from.heads == 1;
  const unsigned row_bytes = from.width * static_cast<unsigned>(sizeof(T));
  const unsigned head_bytes = from.heads * static_cast<unsigned>(sizeof(Acc));
  const unsigned num_cols = active ? side.num_cols : 0, num_rows = active ? side.num_rows : 0;
  const bool scaled = from.attention.edge_scale != nullptr;
  const bool has_log_sum_ct = from.attained.log_sum_ct != nullptr;
  Acc* const numbers =
      shared.numbers + (team * (kLanes >> from.head_bits) + tile_head) * Shared::kKinds * kEntries;
  W* const lane_words = &shared.words[0][0][thread];
  const auto word_of = [&](unsigned row, unsigned j) -> W& {
    return lane_words[(row * kEntries + j) * kThreads];
  };
  const auto number = [&](int kind, unsigned j) -> Acc& { return numbers[kind * kEntries + j]; };
  __syncthreads();

  const bool in_block = team >= kGradientBefore;
  const unsigned place = team * kEntries;
  const auto bits_of = [&](const unsigned (&bits)[kWindow / 32]) {
    return bits[place / 32] >> place % 32 & ((1u << kEntries) - 1);
  };
  const unsigned ends = bits_of(shared.ends), counted = bits_of(shared.counted);
  const auto begins = [&](unsigned j) { return j == 0 || (ends >> (j - 1) & 1) != 0; };
  Index cols[kEntries];
  read_shared(reinterpret_cast<const unsigned char*>(shared.cols + place), cols);

  // Rows of the entries: by source cotangent and result, by destination value and key.
  constexpr bool kHasWords2 = kBySource || (kKeyed && !kSame);
  W words1[kEntries], words2[kHasWords2 ? kEntries : 1];
  const T* const one_rows = kBySource ? from.attained.ct : from.value;
  const T* const two_rows = kBySource ? from.attained.y : from.keys.col_key;
#pragma unroll
  for (unsigned j = 0; j < kEntries; ++j) {
    words1[j] = {};
    load_below(static_cast<unsigned>(cols[j]), num_cols,
               reinterpret_cast<const W*>(row_at(one_rows + first_feature, cols[j], row_bytes)),
               words1[j]);
  }
  if constexpr (kHasWords2)
#pragma unroll
    for (unsigned j = 0; j < kEntries; ++j) {
      words2[j] = {};
      load_below(static_cast<unsigned>(cols[j]), num_cols,
                 reinterpret_cast<const W*>(row_at(two_rows + first_feature, cols[j], row_bytes)),
                 words2[j]);
    }
  // Rows in shared memory: by source the key of the entry's destination, value and key of the row,
  // by destination the row's cotangent, result and key.
  constexpr unsigned kQuery = kBySource ? 0 : 2, kCt = 0, kY = 1;
  constexpr unsigned kValue = kKeyed ? 1 : 0, kSelfKey = kSame ? kValue : kValue + 1;
  const auto copy = [&](bool valid, const T* rows, Index row, unsigned to, unsigned j) {
    copy_async<16>(valid, row_at(rows + first_feature, row, row_bytes), &word_of(to, j));
  };
  if constexpr (kBySource && kKeyed)
#pragma unroll
    for (unsigned j = 0; j < kEntries; ++j)
      copy(static_cast<unsigned>(cols[j]) < num_cols, from.keys.row_key, cols[j], kQuery, j);
  {
    Index rows[kEntries];
    read_shared(reinterpret_cast<const unsigned char*>(shared.rows + place), rows);
#pragma unroll
    for (unsigned j = 0; j < kEntries; ++j)
      if (begins(j)) {
        const bool exists = static_cast<unsigned>(rows[j]) < num_rows;
        if constexpr (kBySource) {
          copy(exists, from.value, rows[j], kValue, j);
          if constexpr (kKeyed && !kSame) copy(exists, from.keys.col_key, rows[j], kSelfKey, j);
        } else {
          copy(exists, from.attained.ct, rows[j], kCt, j);
          copy(exists, from.attained.y, rows[j], kY, j);
          if constexpr (kKeyed) copy(exists, from.keys.row_key, rows[j], kQuery, j);
        }
      }
  }
  // Numbers of entries, which the lanes of a head share out.
  if (has_head)
#pragma unroll 1
    for (unsigned j = head_lane; j < kEntries; j += head_lanes) {
      const bool exists = (counted >> j & 1) != 0;
      const Index row = shared.rows[place + j], col = shared.cols[place + j];
      const Index dst = kBySource ? col : row;
      copy_async<2 * sizeof(Acc)>(exists, row_at(from.attained.stats + head, dst, 2 * head_bytes),
                                  &number(Shared::kStats, 2 * j));
      if (has_log_sum_ct)
        copy_async<sizeof(Acc)>(exists, row_at(from.attained.log_sum_ct + head, dst, head_bytes),
                                &number(Shared::kLogSumCt, j));
      if (scaled)
        copy_async<sizeof(Acc)>(
            exists, row_at(from.attention.edge_scale + head, shared.places[place + j], head_bytes),
            &number(Shared::kScale, j));
      if constexpr (!kKeyed) {
        copy_async<sizeof(Acc)>(exists, row_at(from.attention.dst_score + head, dst, head_bytes),
                                &number(Shared::kDstScore, j));
        copy_async<sizeof(Acc)>(
            exists, row_at(from.attention.src_score + head, kBySource ? row : col, head_bytes),
            &number(Shared::kSrcScore, j));
      }
    }
  __pipeline_commit();

  Acc vector[kVec] = {}, scale = 1;
  if constexpr (kLeaky)
    if (active)
#pragma unroll
      for (int i = 0; i < kVec; ++i) vector[i] = from.keys.vector[first_feature + i];
  if constexpr (kScores == Scores::kDots)
    if (from.keys.scale != nullptr) scale = *from.keys.scale;

  // Writes the lane's part of a row that is below `bound`: 0 or the number of rows.
  T* const row_out = (kBySource ? from.to_value : from.to_row_key) + first_feature;
  Acc* const number_out = (kBySource ? from.to_src_score : from.to_dst_score) + head;
  const auto store = [&](Index row, const Acc(&run)[kParts], unsigned bound) {
    const auto put = [&](T* to, const Acc* sums) {
      T features[kVec];
      W word;
#pragma unroll
      for (int i = 0; i < kVec; ++i) narrow(sums[i], features[i]);
      memcpy(&word, features, sizeof(word));
      store_below(static_cast<unsigned>(row), bound,
                  reinterpret_cast<W*>(row_at(to, row, row_bytes)), word);
    };
    if constexpr (Op::kWords > 0) put(row_out, run);
    if constexpr (Op::kWords > 1) put(from.to_col_key + first_feature, run + kVec);
    if constexpr (!kKeyed) {
      Word<Acc, 1> word;
      memcpy(&word, &run[Op::kNumber], sizeof(word));
      store_below(static_cast<unsigned>(row), head_lane == 0 ? bound : 0,
                  reinterpret_cast<Word<Acc, 1>*>(row_at(number_out, row, head_bytes)), word);
    }
  };
  // Makes rows empty: every `stride`-th from `row` on and before `end`.
  const auto fill = [&](unsigned row, unsigned end, unsigned stride) {
    const Acc nothing[kParts] = {};
#pragma unroll 1
    for (; row < end; row += stride) store(static_cast<Index>(row), nothing, num_rows);
  };
  bool has_long_gap = false;
  if (in_block)
#pragma unroll 1
    for (unsigned gaps = bits_of(shared.gaps); gaps != 0; gaps &= gaps - 1) {
      const Index* const rows = shared.rows + place + __ffs(gaps) - 1;
      if (rows[1] - rows[0] > kLongGap)
        has_long_gap = true;
      else
        fill(rows[0] + 1, rows[1], 1);
    }

  // The begin, in the window, of the row that is open where the team's entries begin; 0 if before.
  int at = static_cast<int>(place / 32);
  unsigned bits = shared.ends[at] & ((1u << place % 32) - 1);
#pragma unroll 1
  while (bits == 0 && at > 0) bits = shared.ends[--at];
  const unsigned begin = bits == 0 ? 0 : at * 32 + 32 - __clz(bits);
  const bool waits = crosses_in && begin <= kOverlap;
  const unsigned begin_team = waits ? unsigned{kGradientBefore} : begin / kEntries;

  __pipeline_wait_prior(0);
  __syncwarp();
  // Dots over the lanes of a head: of cotangents, and of scores.
  Acc dots[kEntries] = {}, scores[kEntries] = {};
  {
    W value = {}, self_key = {}, ct = {}, y = {}, query = {};
#pragma unroll
    for (unsigned j = 0; j < kEntries; ++j) {
      if (begins(j)) {
        if constexpr (kBySource) {
          value = word_of(kValue, j);
          if constexpr (kKeyed) self_key = word_of(kSelfKey, j);
        } else {
          ct = word_of(kCt, j);
          y = word_of(kY, j);
          if constexpr (kKeyed) query = word_of(kQuery, j);
        }
      }
      if constexpr (kBySource) {
        ct = words1[j];
        y = words2[j];
        if constexpr (kKeyed) query = word_of(kQuery, j);
      } else {
        value = words1[j];
        if constexpr (kKeyed) self_key = kSame ? words1[j] : words2[kHasWords2 ? j : 0];
      }
      const Acc factor = scaled ? number(Shared::kScale, j) : Acc(1);
      Acc of_ct[kVec], of_value[kVec], of_y[kVec];
      unpack<kVec, T>(ct, of_ct);
      unpack<kVec, T>(value, of_value);
      unpack<kVec, T>(y, of_y);
#pragma unroll
      for (int i = 0; i < kVec; ++i) dots[j] += of_ct[i] * (factor * of_value[i] - of_y[i]);
      if constexpr (kLeaky) add_leaky<T, kVec>(scores[j], query, self_key, vector, from.keys.slope);
      if constexpr (kScores == Scores::kDots) add_dot<T, kVec>(scores[j], query, self_key);
    }
  }
  const Held held = add_over_lanes(dots, from.head_bits);
  if constexpr (kKeyed) add_over_lanes(scores, from.head_bits);
  // Weights, and cotangents of scores, by the lane that has the sums.
  if (held.writes && has_head)
#pragma unroll
    for (unsigned i = 0; i < kEntries; ++i) {
      if (static_cast<int>(i) == held.count) break;
      const unsigned j = held.first + i;
      Acc weight = 0, to_score = 0;
      if (counted >> j & 1) {
        Acc score = scores[i], slope = 1;
        if constexpr (kScores == Scores::kDots) {
          score = rounded_product(score, scale);
          slope = scale;
        }
        if constexpr (!kKeyed) {
          const Acc sum = number(Shared::kDstScore, j) + number(Shared::kSrcScore, j);
          score = leaky(sum, from.attention.slope);
          if (!(sum >= 0)) slope = from.attention.slope;
        }
        const Acc top = number(Shared::kStats, 2 * j), log_sum = number(Shared::kStats, 2 * j + 1);
        const Acc share = exponential((score - top) - log_sum);
        weight = scaled ? share * number(Shared::kScale, j) : share;
        const Acc delta = has_log_sum_ct ? number(Shared::kLogSumCt, j) : Acc(0);
        to_score = share * slope * (dots[i] + delta);
      }
      number(Shared::kWeight, j) = weight;
      number(Shared::kToScore, j) = to_score;
    }
  __syncwarp();
  Acc weights[kEntries], to_scores[kEntries];  // anything in lanes without features
  if constexpr (kBySource)
    read_shared(reinterpret_cast<const unsigned char*>(&number(Shared::kWeight, 0)), weights);
  read_shared(reinterpret_cast<const unsigned char*>(&number(Shared::kToScore, 0)), to_scores);

  // Runs of threads wait in place of their words that are read: what is open where the team's
  // entries end, and the sum that is the team's first to end.
  constexpr unsigned kRunWords = ceil_div(kParts * sizeof(Acc), 16), kFirst = kEntries / 2;
  constexpr unsigned kFree = kBySource && kSame ? 2 : 1;  // row of words that sums do not read
  static_assert(kRunWords <= kFirst && kFree < Shared::kRows);
  const auto put_run = [&](const Acc(&run)[kParts], unsigned at) {
    W words[kRunWords] = {};
    memcpy(words, run, sizeof(run));
#pragma unroll
    for (unsigned i = 0; i < kRunWords; ++i) word_of(kFree, at + i) = words[i];
  };
  const auto get_run = [&](unsigned team, unsigned at, Acc(&run)[kParts]) {
    W words[kRunWords];
#pragma unroll
    for (unsigned i = 0; i < kRunWords; ++i)
      words[i] = shared.words[kFree][at + i][team * kLanes + lane];
    memcpy(run, words, sizeof(run));
  };

  // The sum that is the team's first to end is kept, others are stored.
  const unsigned first_end = __ffs(ends) - 1;
  Acc run[kParts] = {}, to_vector[kVec] = {};
  {
    W query = {}, self_key = {};
#pragma unroll
    for (unsigned j = 0; j < kEntries; ++j) {
      if constexpr (kLeaky)
        if (begins(j)) (kBySource ? self_key : query) = word_of(kBySource ? kSelfKey : kQuery, j);
#pragma unroll
      for (int i = 0; i < kParts; ++i) run[i] = begins(j) ? Acc(0) : run[i];
      if constexpr (kBySource) {
        Acc x[kVec];
        unpack<kVec, T>(words1[j], x);
#pragma unroll
        for (int i = 0; i < kVec; ++i) run[i] += weights[j] * x[i];
        if constexpr (kKeyed) query = word_of(kQuery, j);
      } else if constexpr (kKeyed) {
        self_key = kSame ? words1[j] : words2[kHasWords2 ? j : 0];
      }
      if constexpr (kScores == Scores::kDots) {
        Acc x[kVec];
        unpack<kVec, T>(kBySource ? query : self_key, x);
#pragma unroll
        for (int i = 0; i < kVec; ++i) run[Op::kKeys + i] += to_scores[j] * x[i];
      }
      if constexpr (kLeaky) {
        Acc z[kVec], other[kVec];
        unpack<kVec, T>(query, z);
        unpack<kVec, T>(self_key, other);
        const Acc sloped = to_scores[j] * from.keys.slope;
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          z[i] += other[i];
          if constexpr (!kBySource)  // whatever rows hold that only padding reads
            if (!(counted >> j & 1)) z[i] = 0;
          const Acc part = z[i] >= 0 ? to_scores[j] : sloped;
          run[Op::kKeys + i] += part * vector[i];
          if constexpr (!kBySource) to_vector[i] += part * z[i];
        }
      }
      if constexpr (!kKeyed) run[Op::kNumber] += to_scores[j];
      if (j == first_end) put_run(run, kFirst);
      if (j > 0)
        store(shared.rows[place + j], run,
              in_block && j != first_end && (ends >> j & 1) ? num_rows : 0);
    }
  }
  put_run(run, 0);
  if constexpr (kLeaky && !kBySource) {
    W words[2] = {};
    if (!in_block)
#pragma unroll
      for (int i = 0; i < kVec; ++i) to_vector[i] = 0;
    static_assert(sizeof(to_vector) <= sizeof(words));
    memcpy(words, to_vector, sizeof(to_vector));
    word_of(kCt, 0) = words[0];
    word_of(kCt, 1) = words[1];
  }
  has_long_gap = __syncthreads_or(has_long_gap) != 0;

  // What teams have, from `first` on and before `last`, in order, and then the run.
  const auto add_before = [&](unsigned first, unsigned last, Acc(&run)[kParts]) {
    Acc total[kParts] = {};
#pragma unroll 1
    for (unsigned at = first; at < last; ++at) {
      Acc part[kParts];
      get_run(at, 0, part);
#pragma unroll
      for (int i = 0; i < kParts; ++i) total[i] += part[i];
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = total[i] + run[i];
  };
  if (in_block && ends != 0) {
    Acc first_run[kParts];
    get_run(team, kFirst, first_run);
    if (begin != place) add_before(begin_team, team, first_run);
    if (waits)
#pragma unroll
      for (int i = 0; i < kParts; ++i) shared.waiting[i][lane] = first_run[i];
    store(shared.rows[place + first_end], first_run, waits ? 0 : num_rows);
  }
  if constexpr (kLeaky && !kBySource)
    if (team == 0 && active) {  // which has stored nothing
      Acc sum[kVec] = {};
#pragma unroll 1
      for (unsigned other = kGradientBefore; other < kTeams; ++other) {
        const W words[2] = {shared.words[kCt][0][other * kLanes + lane],
                            shared.words[kCt][1][other * kLanes + lane]};
        Acc part[kVec];
        memcpy(part, words, sizeof(part));
#pragma unroll
        for (int i = 0; i < kVec; ++i) sum[i] += part[i];
      }
      parts.put(block, first_feature / kVec, from.width / kVec, sum);
    }

  if (has_long_gap)
#pragma unroll 1
    for (unsigned i = kOverlap; i < kWindow; ++i)
      if ((shared.gaps[i / 32] >> i % 32 & 1) && shared.rows[i + 1] - shared.rows[i] > kLongGap)
        fill(shared.rows[i] + 1 + team, shared.rows[i + 1], kTeams);
  // All blocks alike fill what lies before the first row that has entries, and after the last.
  unsigned first = first_of_all, last = last_of_all;
  if (first >= side.num_rows || last >= side.num_rows) {
    const Range range =
        rows_with_entries({side.rows, nullptr, nullptr, side.count, side.num_rows, 0, 0});
    first = static_cast<unsigned>(range.first);
    last = static_cast<unsigned>(range.last);
  }
  fill(block * kTeams + team, first, blocks * kTeams);
  fill(last + 1 + block * kTeams + team, side.num_rows, blocks * kTeams);

  // For most blocks that is all.
  if (!crosses_in && !crosses_out) return;
  const int64_t width = from.width;
  const Column column = {static_cast<int64_t>(first_feature), 0, active};
  const bool passed = crosses_in && crosses_out && first_id == next_id;
  const Index first_row = static_cast<Index>(first_id);
  const bool relays = passed && block % kRelayEvery == kRelayEvery - 1;
  if (crosses_out && team == kTeams - 1) {
    get_run(team, 0, run);
    if (begin != place) add_before(begin_team, team, run);
    if (relays)
#pragma unroll
      for (int i = 0; i < kParts; ++i) shared.waiting[i][lane] = run[i];
    else
      tails.put(block, column, width, run);
  }
  if (!crosses_in || (passed && !relays)) return;
  const auto enters = [&](int other) {
    const Index* const at = side.rows + other * int64_t{kBlockEntries};
    return at[0] == first_row && at[-int64_t{kOverlap}] == first_row;
  };
  const int this_block = static_cast<int>(block);
  const Chain chain(this_block, block > 1 && enters(this_block - 1)
                                    ? blocks_of_run(this_block, relays, enters)
                                    : 1);
  // Teams take equal parts, the first that farthest back.
  const int share = (chain.num_tails + int{kTeams} - 1) / int{kTeams};
  const int from_tail = static_cast<int>(team) * share;
  Acc carried[kParts] = {};
  tails.take(from_tail, min(from_tail + share, chain.num_tails), chain, column, width, carried);
  __syncthreads();  // what teams had left has been read
  put_run(carried, 0);
  __syncthreads();
  if (team != 0) return;
#pragma unroll
  for (int i = 0; i < kParts; ++i) run[i] = shared.waiting[i][lane];
  add_before(0, min(static_cast<unsigned>(chain.num_tails), kTeams), run);
  if (relays)
    tails.put(block, column, width, run);
  else
    store(first_row, run, num_rows);
}

template <Scores kScores, bool kSame, typename T, typename Acc>
using SourceTails = Tails<GradientOp<kScores, kSame, true, T, Acc>, Acc>;
template <Scores kScores, bool kSame, typename T, typename Acc>
using DestinationTails = Tails<GradientOp<kScores, kSame, false, T, Acc>, Acc>;

template <Scores kScores, bool kSame, typename T, typename Acc>
__global__ void __launch_bounds__(kGradientThreads, kGradientBlocks<kScores, T>)
    gradients_kernel(const __grid_constant__ Gradients<T, Acc> gradients,
                     SourceTails<kScores, kSame, T, Acc> of_src,
                     DestinationTails<kScores, kSame, T, Acc> of_dst,
                     VectorParts<Acc, 16 / sizeof(T)> parts) {
  wait_for_previous_launch();
  const unsigned src_blocks = gradients.src_blocks, dst_blocks = gradients.dst_blocks;
  unsigned block = blockIdx.x;
  if (block < src_blocks) {
    sum_gradients<kScores, kSame, true>(gradients, gradients.by_src, block, src_blocks, of_src,
                                        parts);
    return;
  }
  block -= src_blocks;
  if (kScores != Scores::kLeaky || block < dst_blocks) {
    sum_gradients<kScores, kSame, false>(gradients, gradients.by_dst, block, dst_blocks, of_dst,
                                         parts);
    return;
  }
  if constexpr (kScores == Scores::kLeaky)
    sum_vector(parts, block - dst_blocks, dst_blocks, gradients.width / (16 / sizeof(T)),
               gradients.to_vector);
}

}  // namespace
}  // namespace jax_gnn::cuda
