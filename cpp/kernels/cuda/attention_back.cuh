// The gradients of attention over edges, by source, in one pass.
//
// Every team of lanes takes an even, contiguous range of entries, sorted by source, and walks it in
// steps of four. Of an entry come the row of the result's cotangent, that of its destination's key
// if scores are of keys, and the record of its destination, by asynchronous copies into shared
// memory, asked for when the words of the step before are in registers; of a run of entries the
// rows of their source, each once in a step. Dots over the lanes of a head, of values and of keys,
// are added up for all entries of a step at once. Then one lane of a head has both dots of an
// entry: it makes of them the entry's weight, and its score's cotangent, which it writes, and the
// other lanes read both from shared memory. A lane has one word of a row, or two: what is done for
// an entry beside its words is then done for twice as many entries at once, by half as many lanes.
// It sums up its words of the sources' gradients in registers, where scores are numbers of the
// sources that of their gradient too, and runs are joined like any others (segment_runs.cuh). The
// cut depends on shapes only: the same bits on every run. The records are made by a launch ahead,
// which also makes zeros of all scores' cotangents, as an order may leave some out.
//
// Needs blocks of kBackThreads threads; BackLayout's bytes of dynamic shared memory, a workspace
// row for each block of a column of the grid, a tag that no other launch has, words of 16 bytes,
// and whole heads in a team, where a lane has two words heads of a power of two of words, at least
// 2 * kBackStep; the launch ahead must be that of the records, which does not let this one start
// before all else has ended. Promises that all rows are written, empty ones too where it `fills`,
// that each entry's place is written, those of padding as zeros, unless an order leaves it out,
// that no row of an id out of range is read, and that any ids are survived.
#pragma once

#include <cuda_pipeline.h>

#include "../attention.h"
#include "attention_walk.cuh"
#include "edge_scores.cuh"
#include "lane_sums.cuh"
#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_runs.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kRecordThreads = 256;  // of a block
constexpr int kRecordItems = 2;      // of a team, on their way together

// Makes the records of destinations, each by a team of 2^lane_bits lanes, which share out the
// head's words of kVec features; and zeros. count: destinations times heads; dst_score: null, or
// one each. has_next: another launch of the call follows.
template <int kVec, typename T, typename Acc>
__global__ void __launch_bounds__(kRecordThreads)
    record_kernel(Attained<T, Acc> from, const Acc* dst_score, int64_t count, int64_t words,
                  int lane_bits, AttentionRecord<Acc>* records, Acc* zeros, int64_t num_zeros,
                  bool has_next) {
  using W = Word<T, kVec>;
  using Record = AttentionRecord<Acc>;
  wait_for_previous_launch();
  if (has_next) allow_next_launch();
  const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t threads = gridDim.x * int64_t{blockDim.x}, teams = threads >> lane_bits;
  const int lanes = 1 << lane_bits, lane = threadIdx.x & (lanes - 1);
  const int team = (threadIdx.x % 32) >> lane_bits;
  // Ahead of what the next launch reads again, which L2 may keep.
  for (int64_t i = thread; i < num_zeros; i += threads) zeros[i] = 0;
  // Whole warps go on together.
  for (int64_t first = (thread - threadIdx.x % 32) >> lane_bits; first < count;
       first += kRecordItems * teams) {
    Acc sum[kRecordItems] = {};
    Record record[kRecordItems] = {};
    const auto item = [&](int i) { return first + team + i * teams; };
    for (int64_t at = lane; at < words; at += lanes) {
      W ct[kRecordItems] = {}, y[kRecordItems] = {};
#pragma unroll
      for (int i = 0; i < kRecordItems; ++i) {
        const int64_t word = item(i) * words + at;
        load_if(item(i) < count, reinterpret_cast<const W*>(from.ct) + word, ct[i]);
        load_if(item(i) < count, reinterpret_cast<const W*>(from.y) + word, y[i]);
      }
#pragma unroll
      for (int i = 0; i < kRecordItems; ++i) add_dot<T, kVec>(sum[i], ct[i], y[i]);
    }
#pragma unroll
    for (int i = 0; i < kRecordItems; ++i) {
      const bool writes = lane == 0 && item(i) < count;
      record[i].dst_score = load_or(writes && dst_score != nullptr, dst_score + item(i), Acc(0));
      record[i].delta =
          load_or(writes && from.log_sum_ct != nullptr, from.log_sum_ct + item(i), Acc(0));
      if (writes) record[i].stats = from.stats[item(i)];
    }
#pragma unroll
    for (int i = 0; i < kRecordItems; ++i) {
      for (int distance = lanes / 2; distance > 0; distance /= 2)
        sum[i] += __shfl_xor_sync(kWholeWarp, sum[i], distance);
      record[i].delta = sum[i] - record[i].delta;
      uint4 words_of[sizeof(Record) / 16];
      memcpy(words_of, &record[i], sizeof(Record));
      if (lane == 0 && item(i) < count)
#pragma unroll
        for (unsigned k = 0; k < sizeof(Record) / 16; ++k)
          reinterpret_cast<uint4*>(records + item(i))[k] = words_of[k];
    }
  }
}

constexpr int kSumThreads = 256;  // of a block
constexpr int kSumColumns = 8;    // of a block

// out[k] = the sum of column k of `parts`, (count, width).
template <typename Acc>
__global__ void __launch_bounds__(kSumThreads)
    sum_parts_kernel(const Acc* parts, int64_t count, int64_t width, Acc* out) {
  __shared__ Acc sums[kSumThreads];
  wait_for_previous_launch();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t column = blockIdx.x * int64_t{kSumColumns} + thread % kSumColumns;
  Acc sum = 0;
  if (column < width)
#pragma unroll 8
    for (int64_t i = thread / kSumColumns; i < count; i += kSumThreads / kSumColumns)
      sum += parts[i * width + column];
  sums[thread] = sum;
  __syncthreads();
  for (int distance = kSumThreads / 2; distance >= kSumColumns; distance /= 2) {
    if (thread < distance) sums[thread] += sums[thread + distance];
    __syncthreads();
  }
  if (thread < kSumColumns && column < width) out[column] = sums[thread];
}

constexpr int kBackThreads = 128;  // of a block
constexpr int kBackStep = 4;       // entries of a step
constexpr int kBackChunk = 16;     // entries whose ids are asked for at once
constexpr int kBackRing = 2 * kBackChunk;

// Blocks of a multiprocessor: with more, registers are spilled, or, of several words, there is no
// shared memory.
template <Scores kScores, bool kSame, int kWords, int kVec, typename Acc>
constexpr int kBackBlocks = sizeof(Acc) > 4                         ? 3
                            : kWords > 1 && kVec > 4                ? (has_keys<kScores> ? 2 : 3)
                            : kWords > 1 && has_keys<kScores>       ? (kSame ? 3 : 2)
                            : kWords > 1                            ? 4
                            : !has_keys<kScores>                    ? 5
                            : kScores == Scores::kLeaky && kVec > 4 ? 3
                                                                    : 4;

// Two sums of kVec features each: gradients of values and of keys.
template <typename Acc, int kVec_>
struct PairSumOp {
  using Result = Acc;
  static constexpr int kVec = kVec_, kParts = 2 * kVec, kRoom = 1;
  static constexpr bool kCounts = false, kZeroIsNeutral = true;
  static __device__ __forceinline__ Acc neutral(int) { return 0; }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = before[i] + run[i];
  }
};

// A sum of kVec features, and of a number of the head: gradients of values and of sources' scores.
template <typename Acc, int kVec_>
struct ScoredSumOp {
  using Result = Acc;
  static constexpr int kVec = kVec_, kParts = kVec + 1, kRoom = 1;
  static constexpr bool kCounts = false, kZeroIsNeutral = true;
  static __device__ __forceinline__ Acc neutral(int) { return 0; }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = before[i] + run[i];
  }
};

// The words of a lane in a row: the first, and the number of features from one to the next, those
// of all lanes of a head. So lanes side by side read words side by side.
struct LaneWords {
  int64_t first;
  unsigned apart;

  // Writes the lane's words of the row in which its first is at `at`.
  template <int kWords, int kFeatures, typename T, typename Acc>
  __device__ __forceinline__ void put(T* at, const Acc* x) const {
    constexpr int kVec = kFeatures / kWords;
#pragma unroll
    for (int w = 0; w < kWords; ++w) store_word<kVec>(at + w * apart, x + w * kVec);
  }
};

// Features of a word of 16 bytes, and how many words have kFeatures.
template <typename T>
constexpr int kWordFeatures = 16 / static_cast<int>(sizeof(T));
template <typename T, class Op>
constexpr int kLaneWords = Op::kVec / kWordFeatures<T>;

// Rows of sums, in place of an Epilogue.
struct SumRows {
  LaneWords at;
};

// Output of the sum of a head's numbers, beside the row.
template <typename Acc>
struct HeadSums {
  Acc* out;  // (num_rows, heads), or null; of a lane that of its head, or null
  int64_t heads;
  LaneWords at;

  // Keeps the sum of the head for the lane with which a head begins, and none for others.
  __device__ __forceinline__ void keep_for(const Column& column, int64_t width) {
    const bool begins = column.active && column.first == column.head * (width / heads);
    out = begins && out != nullptr ? out + column.head : nullptr;
  }
};

// Output of the second of two sums, beside the row.
template <typename T>
struct SecondRows {
  T* out;  // as the first
  LaneWords at;
};

// The sum of values, which all of these outputs write.
template <typename T, class Op, typename Acc, class RowEpilogue>
struct WordsOutput {
  static constexpr int kVec = Op::kVec, kWords = kLaneWords<T, Op>;

  T* out;
  int64_t num_rows, width;
  RowEpilogue epilogue;

 protected:
  __device__ __forceinline__ unsigned row_bytes() const {
    return static_cast<unsigned>(width) * static_cast<unsigned>(sizeof(T));
  }
  __device__ __forceinline__ void put(T* lane_out, Index row, const Acc* x) const {
    epilogue.at.template put<kWords, kVec>(row_at(lane_out, row, row_bytes()), x);
  }
};

template <typename T, class Op, typename Acc>
struct Output<T, Op, Acc, SumRows> : WordsOutput<T, Op, Acc, SumRows> {
  // Writes the lane's words of a row that is below `limit`.
  __device__ __forceinline__ void store(T* lane_out, Index row, const Acc (&run)[Op::kParts],
                                        unsigned limit) const {
    if (static_cast<unsigned>(row) < limit) this->put(lane_out, row, run);
  }
  __device__ __forceinline__ void store_empty(int64_t row, const Column& column) const {
    const Acc x[Op::kVec] = {};
    if (column.active) this->put(this->out + this->epilogue.at.first, static_cast<Index>(row), x);
  }
};

template <typename T, class Op, typename Acc>
struct Output<T, Op, Acc, HeadSums<Acc>> : WordsOutput<T, Op, Acc, HeadSums<Acc>> {
  // Writes the lane's words of a row that is below `limit`.
  __device__ __forceinline__ void store(T* lane_out, Index row, const Acc (&run)[Op::kParts],
                                        unsigned limit) const {
    if (static_cast<unsigned>(row) >= limit) return;
    this->put(lane_out, row, run);
    if (this->epilogue.out != nullptr) put_sum(row, run[Op::kVec]);
  }
  __device__ __forceinline__ void store_empty(int64_t row, const Column& column) const {
    if (!column.active) return;
    const Acc x[Op::kVec] = {};
    this->put(this->out + this->epilogue.at.first, static_cast<Index>(row), x);
    if (this->epilogue.out != nullptr) put_sum(static_cast<Index>(row), 0);
  }

 private:
  __device__ __forceinline__ void put_sum(Index row, Acc sum) const {
    *row_at(this->epilogue.out, row,
            static_cast<unsigned>(this->epilogue.heads) * static_cast<unsigned>(sizeof(sum))) = sum;
  }
};

template <typename T, class Op, typename Acc>
struct Output<T, Op, Acc, SecondRows<T>> : WordsOutput<T, Op, Acc, SecondRows<T>> {
  // Writes the lane's words of a row that is below `limit`.
  __device__ __forceinline__ void store(T* lane_out, Index row, const Acc (&run)[Op::kParts],
                                        unsigned limit) const {
    if (static_cast<unsigned>(row) >= limit) return;
    this->put(lane_out, row, run);
    this->put(this->epilogue.out + (lane_out - this->out), row, run + Op::kVec);
  }
  __device__ __forceinline__ void store_empty(int64_t row, const Column& column) const {
    if (!column.active) return;
    const Acc x[Op::kVec] = {};
    this->put(this->out + this->epilogue.at.first, static_cast<Index>(row), x);
    this->put(this->epilogue.out + this->epilogue.at.first, static_cast<Index>(row), x);
  }
};

// Operands of the gradients. Rows of the matrix are sources, columns destinations.
template <typename T, typename Acc>
struct Back {
  const T* ct;                          // (num_cols, width)
  const T* value;                       // (num_rows, width)
  const AttentionRecord<Acc>* records;  // (num_cols, heads)
  Attention<Acc> attention;             // without dst_score; of keys only the scale of edges
  Keys<T, Acc> keys;                    // row_key is of destinations, col_key of sources
  Acc* to_score;                        // (num_weights, heads)
  Acc* parts;                           // (blocks, width), which add up to the vector's gradient
  int heads;
  TypedVectors<T> of_rows;  // of scores of relations: theirs, which score' times is added to out
};

// Layout of a thread's rows, those of kBackStep entries: [row][word][thread].
template <Scores kScores, bool kSame>
struct BackRows {
  static constexpr bool kKeyed = has_keys<kScores>;
  static constexpr int kStep = kBackStep;
  static constexpr int kCt = 0, kKey = kStep, kValue = kKeyed ? kKey + kStep : kKey,
                       kSelfKey = kKeyed && !kSame ? kValue + kStep : kValue,
                       kCount = kSelfKey + kStep;
};

// Dynamic shared memory: words [row][word][thread]; of each head of a team records [stage][entry],
// [kind][entry] sums over lanes, then what follows of them, and numbers [kind][stage][entry]; of
// each thread its part of a run; of each team a ring of ids and the rows around its entries. At the
// end heads[warp][part][lane], and tails, are in place of the words, after parts of the vector's
// gradient.
template <Scores kScores, bool kSame, class Op, typename T, typename Acc>
struct BackLayout {
  using Record = AttentionRecord<Acc>;
  static constexpr int kStep = kBackStep, kStages = 2, kWords = kLaneWords<T, Op>;
  static constexpr int kWordBytes = BackRows<kScores, kSame>::kCount * kWords * kBackThreads * 16;
  static constexpr int kNumbers = kStages * kStep;  // of a kind and a head
  static constexpr int kSumsAt = kStages * kStep * static_cast<int>(sizeof(Record));
  static constexpr int kNumbersAt = kSumsAt + 2 * kStep * static_cast<int>(sizeof(Acc));
  static constexpr int kPartBytes =
      kScores == Scores::kLeaky ? Op::kVec * kBackThreads * static_cast<int>(sizeof(Acc)) : 0;
  static_assert(kPartBytes + 2 * kBackThreads * Op::kParts * static_cast<int>(sizeof(Acc)) <=
                kWordBytes);

  int lanes, team_ids, tile_heads, head_bytes;
  __host__ __device__ BackLayout(const AttendCut& cut, bool ordered, bool scaled)
      : lanes(1 << cut.lane_bits),
        team_ids((kScores == Scores::kTyped ? 4 : 2 + ordered) * kBackRing + kAroundIds),
        tile_heads(cut.tile_heads) {
    const int kinds = !has_keys<kScores> + scaled;
    const int bytes = kNumbersAt + kinds * kNumbers * static_cast<int>(sizeof(Acc));
    head_bytes = (bytes / 16 | 1) * 16;  // odd, or heads' numbers are in the same banks
  }

  __host__ __device__ int teams() const { return kBackThreads / lanes; }
  __host__ __device__ int runs_at() const { return kWordBytes + teams() * tile_heads * head_bytes; }
  __host__ __device__ int ids_at() const {
    return runs_at() + kBackThreads * Op::kParts * static_cast<int>(sizeof(Acc));
  }
  __host__ __device__ int bytes() const {
    return ids_at() + teams() * team_ids * static_cast<int>(sizeof(Index));
  }
};

template <Scores kScores, bool kSame, class Op, typename T, typename Acc, class RowEpilogue>
__global__ void __launch_bounds__(
    kBackThreads, kBackBlocks<kScores, kSame, kLaneWords<T, Op>, kWordFeatures<T>, Acc>)
    back_kernel(Csr<Index> csr, Back<T, Acc> back, AttendCut cut,
                Output<T, Op, Acc, RowEpilogue> result, bool fills, Tails<Op, Acc> tails) {
  constexpr int kWords = kLaneWords<T, Op>, kVec = kWordFeatures<T>, kFeatures = Op::kVec;
  constexpr int kParts = Op::kParts, kStep = kBackStep, kRing = kBackRing;
  constexpr int kChunkSteps = kBackChunk / kStep;
  constexpr bool kKeyed = has_keys<kScores>, kLeaky = kScores == Scores::kLeaky;
  constexpr bool kTyped = kScores == Scores::kTyped;
  constexpr bool kOnce = kWords > 1;  // a lane has at most one entry of a step for its own
  constexpr int kSums = kKeyed ? 2 * kStep : kStep;
  constexpr int kOfKeys = kSame ? 0 : kFeatures;  // where a run has the gradient of keys
  using Layout = BackLayout<kScores, kSame, Op, T, Acc>;
  using Rows = BackRows<kScores, kSame>;
  using Record = AttentionRecord<Acc>;
  using W = Word<T, kVec>;
  __shared__ BlockRuns block_runs;
  const Attention<Acc>& attention = back.attention;
  const bool ordered = csr.order != nullptr, scaled = attention.edge_scale != nullptr;
  const bool additive = kScores == Scores::kOfHeads && attention.edge_score == nullptr;
  const Layout layout(cut, ordered, scaled);
  const int lanes = layout.lanes, lane = threadIdx.x & (lanes - 1);
  const int teams = 32 >> cut.lane_bits, team = (threadIdx.x % 32) >> cut.lane_bits;
  const int warps = kBackThreads / 32, warp = threadIdx.x / 32;
  const int block_team = threadIdx.x >> cut.lane_bits;
  const int heads = back.heads;
  // As if a lane's words lay side by side; then where they are.
  const Column column = column_of<kFeatures>(lane, lanes, cut.width, heads);
  const int head_lanes = 1 << cut.head_bits, head_lane = lane & (head_lanes - 1);
  const LaneWords at_row = {column.first - head_lane * (kFeatures - kVec),
                            static_cast<unsigned>(head_lanes * kVec)};
  const int first_head =
      heads > 1 ? __shfl_sync(kWholeWarp, static_cast<int>(column.head), 0, lanes) : 0;
  const int head = column.active ? static_cast<int>(column.head) - first_head : 0;
  Output<T, Op, Acc, RowEpilogue> output = result;
  output.epilogue.at = at_row;
  if constexpr (!kKeyed) output.epilogue.keep_for(column, cut.width);
  // Entries of a step that are the lane's own, of its head: from which on, and how far apart. Where
  // it has one at most, that whose sums it holds.
  int first_of_lane = head_lane;
  if constexpr (kOnce) {
    const int bits = cut.head_bits - 2;
    first_of_lane = (head_lane & ((1 << bits) - 1)) == 0 ? head_lane >> bits : kStep;
  }
  if (!column.active && heads > 1) first_of_lane = kStep;

  unsigned char* const bytes = dynamic_shared();
  W* const lane_words = reinterpret_cast<W*>(bytes) + threadIdx.x;
  unsigned char* const of_head =
      bytes + Layout::kWordBytes + (block_team * layout.tile_heads + head) * layout.head_bytes;
  Record* const records = reinterpret_cast<Record*>(of_head);
  unsigned char* const head_sums = of_head + Layout::kSumsAt;
  Acc* const sums_of_head = reinterpret_cast<Acc*>(head_sums);
  Acc* const numbers = reinterpret_cast<Acc*>(of_head + Layout::kNumbersAt);
  Acc* const first_runs = reinterpret_cast<Acc*>(bytes + layout.runs_at());  // [part][thread]
  Acc* const shared_heads = reinterpret_cast<Acc*>(bytes + Layout::kPartBytes);
  Acc* const shared_tails = shared_heads + warps * kParts * lanes;
  Index* const ring =  // of rows; then of columns, order, and rows' types
      reinterpret_cast<Index*>(bytes + layout.ids_at()) + block_team * layout.team_ids;
  Index* const around = ring + layout.team_ids - kAroundIds;  // rows before, after and of the first
  if (threadIdx.x == 0) block_runs.num_long_gaps = 0;
  if (back.parts != nullptr) allow_next_launch();
  __syncthreads();

  const int64_t per_team = int64_t{cut.steps} * kStep, per_block = layout.teams() * per_team;
  const int64_t begin = min(blockIdx.x * per_block + block_team * per_team, csr.count);
  const int count = static_cast<int>(min(per_team, csr.count - begin));
  ask_for_edges(csr.rows, csr.count, per_block, block_runs.edges);
  // The first team of a warp has most.
  const int steps = (__shfl_sync(kWholeWarp, count, 0) + kStep - 1) / kStep;

  Sizes sizes = {cut_size(csr.num_rows), cut_size(csr.num_cols), cut_size(csr.num_weights)};
  const Sizes of_ids = sizes;
  if (!column.active) sizes = {0, 0, 0};
  unsigned row_bytes = static_cast<unsigned>(cut.width) * static_cast<unsigned>(sizeof(T));
  unsigned num_weights = of_ids.weights;
  const unsigned head_bytes = static_cast<unsigned>(heads) * static_cast<unsigned>(sizeof(Acc));
  const unsigned record_bytes =
      static_cast<unsigned>(heads) * static_cast<unsigned>(sizeof(Record));
  T* const lane_out = output.out + at_row.first;
  Acc slope = kKeyed ? back.keys.slope : attention.slope;
  if (!kKeyed && !kTyped && !additive) slope = 1;
  const auto of_lane = [](const auto* from, int64_t at) {
    return from != nullptr ? from + at : from;
  };
  // Numbers of heads: of sources, or in entries' places.
  const Acc* lane_numbers =
      of_lane(additive ? attention.src_score : attention.edge_score, column.head);
  const Acc* const lane_scales = of_lane(attention.edge_scale, column.head);
  const Record* lane_records = back.records + column.head;
  Acc* lane_to_score = back.to_score + column.head;
  const T *lane_ct = back.ct + at_row.first, *lane_value = back.value + at_row.first;
  const T* lane_row_key = of_lane(back.keys.row_key, at_row.first);
  const T* lane_col_key = of_lane(back.keys.col_key, at_row.first);
  if constexpr (kWords > 1) {  // there are registers for them
    hide(sizes.rows);
    hide(sizes.cols);
    hide(row_bytes);
    hide(num_weights);
    hide(slope);
    hide(lane_records);
    hide(lane_to_score);
    hide(lane_ct);
    hide(lane_value);
    if constexpr (kKeyed) hide(lane_row_key);
    if constexpr (kKeyed && !kSame) hide(lane_col_key);
    if constexpr (!kKeyed) hide(lane_numbers);
  }

  // Asks for the ids of a chunk. Where there are no entries left, the last one's.
  const auto ask_for_ids = [&](int chunk) {
    if (chunk * kChunkSteps >= steps) return;
#pragma unroll 1
    for (int i = lane; i < kBackChunk; i += lanes) {
      const int entry = chunk * kBackChunk + i;
      const Index at = static_cast<Index>(begin) + min(entry, count - 1);
      Index* to = ring + (entry & (kRing - 1));
      copy_async<sizeof(Index)>(true, row_at(csr.rows, at, sizeof(Index)), to);
      if (csr.cols != nullptr)
        copy_async<sizeof(Index)>(true, row_at(csr.cols, at, sizeof(Index)), to + kRing);
      else
        to[kRing] = at;
      if (ordered)
        copy_async<sizeof(Index)>(true, row_at(csr.order, at, sizeof(Index)), to + 2 * kRing);
    }
  };
  // Looks at a chunk's ids, which are there: columns of padding become -1. Whether there is none.
  const auto look_at_ids = [&](int chunk) {
    bool valid = true;
#pragma unroll 1
    for (int i = lane; i < kBackChunk; i += lanes) {
      const int entry = chunk * kBackChunk + i;
      Index* id = ring + (entry & (kRing - 1));
      const bool exists = entry < count && static_cast<unsigned>(id[0]) < of_ids.rows &&
                          static_cast<unsigned>(id[kRing]) < of_ids.cols &&
                          (!ordered || static_cast<unsigned>(id[2 * kRing]) < of_ids.weights);
      if (!exists) id[kRing] = -1;
      valid &= exists;
      if constexpr (kTyped)
        copy_async<sizeof(Index)>(static_cast<unsigned>(id[0]) < of_ids.rows,
                                  back.of_rows.types + id[0], id + 3 * kRing);
    }
    const bool all_valid = __all_sync(kWholeWarp, valid) != 0;
    if (!all_valid) __syncwarp();
    return all_valid;
  };
  // Calls f(entry of the step, its ids) for the lane's own.
  const auto for_lane_entries = [&](int step, const auto& f) {
    Index* const ids = ring + (step * kStep & (kRing - 1));
    if constexpr (kOnce) {
      if (first_of_lane < kStep) f(first_of_lane, ids + first_of_lane);
    } else {
#pragma unroll 1
      for (int j = first_of_lane; j < kStep; j += head_lanes) f(j, ids + j);
    }
  };
  // The place of an entry in per-edge arrays.
  const auto place_of = [&](int step, int j, const Index* id) {
    return ordered ? id[2 * kRing] : static_cast<Index>(begin) + step * kStep + j;
  };
  // Asks for what the entries of a step bring.
  const auto ask_for_entries = [&](int step, int stage) {
    const unsigned char* const at =
        reinterpret_cast<const unsigned char*>(ring + (step * kStep & (kRing - 1)));
    Index rows[kStep], cols[kStep];
    read_shared(at, rows);
    read_shared(at + kRing * sizeof(Index), cols);
    const auto copy = [&](const T* from, Index id, unsigned size, int row) {
#pragma unroll
      for (int w = 0; w < kWords; ++w)
        copy_async<sizeof(W)>(static_cast<unsigned>(id) < size,
                              row_at(from + w * at_row.apart, id, row_bytes),
                              lane_words + (row * kWords + w) * kBackThreads);
    };
#pragma unroll
    for (int j = 0; j < kStep; ++j) copy(lane_ct, cols[j], sizes.cols, Rows::kCt + j);
    if constexpr (kKeyed)
#pragma unroll
      for (int j = 0; j < kStep; ++j) copy(lane_row_key, cols[j], sizes.cols, Rows::kKey + j);
#pragma unroll
    for (int j = 0; j < kStep; ++j)
      if (j == 0 || rows[j] != rows[j - 1]) {
        copy(lane_value, rows[j], sizes.rows, Rows::kValue + j);
        if constexpr (kKeyed && !kSame) copy(lane_col_key, rows[j], sizes.rows, Rows::kSelfKey + j);
      }
    for_lane_entries(step, [&](int j, const Index* id) {
      const bool exists = id[kRing] >= 0;
      const auto* from =
          reinterpret_cast<const unsigned char*>(row_at(lane_records, id[kRing], record_bytes));
      auto* record = reinterpret_cast<unsigned char*>(records + stage * kStep + j);
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(Record)); i += 16)
        copy_async<16>(exists, from + i, record + i);
      if (kKeyed && !scaled) return;
      Acc* number = numbers + stage * kStep + j;
      if constexpr (!kKeyed) {
        const Index from_id = additive ? id[0] : place_of(step, j, id);
        copy_async<sizeof(Acc)>(exists, row_at(lane_numbers, from_id, head_bytes), number);
        number += Layout::kNumbers;
      }
      if (scaled)
        copy_async<sizeof(Acc)>(exists, row_at(lane_scales, place_of(step, j, id), head_bytes),
                                number);
    });
  };

  if (lane == 0) ask_for_rows_around(csr.rows, csr.count, begin, count, around);
  Acc vector[kWords][kVec] = {}, to_vector[kFeatures] = {}, scale = 1;
  if constexpr (kLeaky) {
    if (column.active)
#pragma unroll
      for (int w = 0; w < kWords; ++w)
#pragma unroll
        for (int i = 0; i < kVec; ++i)
          vector[w][i] = back.keys.vector[at_row.first + w * at_row.apart + i];
  }
  if constexpr (kScores == Scores::kDots)
    if (back.keys.scale != nullptr) scale = *back.keys.scale;
  ask_for_ids(0);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncwarp();

  Acc carry[kParts], run[kParts];
  set_neutral<Op>(carry);
  set_neutral<Op>(run);
  bool seen = false, left_open = false;
  const Shared<Acc> shared = {block_runs, shared_heads, shared_tails};
  Runs<Op, T, Acc, RowEpilogue> runs{csr,    output, lanes, lane,     teams, team, warp,
                                     column, shared, sizes, lane_out, carry, seen, left_open};
  TeamRun<Op, Acc> open = {first_runs, around};
  bool whole = true;  // no entry of the chunk is padding
  if (steps > 0) {
    whole = look_at_ids(0);
    open.begin(ring[0]);
  }
  wait_for_previous_launch();  // for the records
  if (steps > 0) ask_for_entries(0, 0);
  __pipeline_commit();
  const auto close = [&]() {
    open.close(run, kBackThreads,
               [&](const Acc(&sum)[kParts]) { output.store(lane_out, open.row, sum, sizes.rows); });
  };

#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    __pipeline_wait_prior(0);
    __syncwarp();
    const int at = step * kStep & (kRing - 1);
    Index rows[kStep];
    read_shared(reinterpret_cast<const unsigned char*>(ring + at), rows);
    // Shares of dots with values; then of scores. A lane's words are added up as those of two lanes
    // that have one each, to the same bits.
    Acc sums[kSums];
    W ct[kStep][kWords], keys[kScores == Scores::kDots ? kStep : 1][kWords];
    Acc z[kLeaky ? kStep : 1][kFeatures];
    W self_value[kWords] = {}, self_key[kWords] = {};
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      const auto word_at = [&](int row, int w) {
        return lane_words[((row + j) * kWords + w) * kBackThreads];
      };
      if (j == 0 || rows[j] != rows[j - 1])
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          self_value[w] = word_at(Rows::kValue, w);
          self_key[w] = word_at(Rows::kSelfKey, w);
        }
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        ct[j][w] = word_at(Rows::kCt, w);
        Acc sum = 0, score = 0;
        add_dot<T, kVec>(sum, self_value[w], ct[j][w]);
        sums[j] = w > 0 ? sums[j] + sum : sum;
        if constexpr (kKeyed) {
          const W key = word_at(Rows::kKey, w);
          if constexpr (kLeaky) {
            Acc source[kVec], other[kVec];
            unpack<kVec, T>(key, other);
            unpack<kVec, T>(self_key[w], source);
#pragma unroll
            for (int i = 0; i < kVec; ++i) z[j][w * kVec + i] = other[i] + source[i];
            add_leaky<T, kVec>(score, key, self_key[w], vector[w], slope);
          } else {
            keys[j][w] = key;
            add_dot<T, kVec>(score, key, self_key[w]);
          }
          sums[kStep + j] = w > 0 ? sums[kStep + j] + score : score;
        }
      }
    }
    // All words are read: the next step's may take their places.
    const int next = step + 1, stage = step & 1;
    bool next_whole = whole;
    if (next < steps) {
      if (next % kChunkSteps == 0) next_whole = look_at_ids(next / kChunkSteps);
      ask_for_entries(next, stage ^ 1);
    }
    if (step % kChunkSteps == 0) ask_for_ids(step / kChunkSteps + 1);
    __pipeline_commit();

    // Vectors of rows, which are wanted last.
    W of_rows[kTyped ? kStep : 1][kWords];
    if constexpr (kTyped) {
      Index types[kStep];
      read_shared(reinterpret_cast<const unsigned char*>(ring + 3 * kRing + at), types);
      const unsigned num_types = column.active ? cut_size(back.of_rows.num_types) : 0;
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        const bool is_new = j == 0 || rows[j] != rows[j - 1];
        const T* const from = row_at(back.of_rows.vectors + at_row.first, types[j], row_bytes);
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          of_rows[j][w] = {};
          load_if(is_new && static_cast<unsigned>(types[j]) < num_types,
                  reinterpret_cast<const W*>(from + w * at_row.apart), of_rows[j][w]);
        }
      }
    }
    if constexpr (kOnce) {
      add_over_many_lanes<kStep>(sums, head_lanes);
    } else {
      const Held held = add_over_lanes(sums, cut.head_bits);
      if (held.writes && (column.active || heads == 1))
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          if (i == held.count) break;
          sums_of_head[held.first + i] = sums[i];
        }
      __syncwarp();
    }
    // Weights, and cotangents of scores.
    for_lane_entries(step, [&](int j, const Index* id) {
      const Index place = place_of(step, j, id);
      const Acc dot = kOnce ? sums[0] : sums_of_head[j];
      Acc weight = 0, to_score = 0;
      if (id[kRing] >= 0) {
        const Record record = records[stage * kStep + j];
        const Acc* number = numbers + stage * kStep + j;
        Acc score, sloped = 1;
        if constexpr (kKeyed) {
          score = kOnce ? sums[kStep] : sums_of_head[kStep + j];
          if constexpr (!kLeaky) {
            score = rounded_product(score, scale);
            sloped = scale;
          }
        } else {
          const Acc sum = record.dst_score + *number;  // of which one is 0 unless scores are sums
          const bool below = kTyped ? is_sloped(sum) : !(sum >= 0);
          score = below ? rounded_product(slope, sum) : sum;
          if (below) sloped = slope;
          number += Layout::kNumbers;
        }
        const Acc edge_scale = scaled ? *number : Acc(1);
        const Acc share = exponential((score - record.stats.top) - record.stats.log_sum);
        weight = share * edge_scale;
        to_score = share * sloped * (edge_scale * dot - record.delta);
      }
      sums_of_head[j] = weight;
      sums_of_head[kStep + j] = to_score;
      if (step * kStep + j < count && static_cast<unsigned>(place) < num_weights)
        *row_at(lane_to_score, place, head_bytes) = to_score;
    });
    __syncwarp();
    Acc weights[kStep], to_scores[kStep];
    read_shared(head_sums, weights);
    read_shared(head_sums + kStep * sizeof(Acc), to_scores);
    if constexpr (kLeaky)
      if (!whole) {  // whatever rows hold that only padding reads
        Index cols[kStep];
        read_shared(reinterpret_cast<const unsigned char*>(ring + kRing + at), cols);
#pragma unroll
        for (int j = 0; j < kStep; ++j)
#pragma unroll
          for (int i = 0; i < kFeatures; ++i) z[j][i] = cols[j] < 0 ? Acc(0) : z[j][i];
      }
    unsigned gaps = 0;  // bit j: rows before that of the step's entry j are empty
    const Index row_before = open.row;
    Acc of_row[kFeatures] = {};
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      if (rows[j] != open.row) {
        if (static_cast<unsigned>(rows[j]) - static_cast<unsigned>(open.row) != 1) gaps |= 1u << j;
        close();
        open.row = rows[j];
      }
      Acc x[kFeatures];
      unpack_words<T>(ct[j], x);
#pragma unroll
      for (int i = 0; i < kFeatures; ++i) run[i] += weights[j] * x[i];
      if constexpr (!kKeyed) run[kFeatures] += to_scores[j];
      if constexpr (kTyped) {
        if (j == 0 || rows[j] != rows[j - 1]) unpack_words<T>(of_rows[j], of_row);
#pragma unroll
        for (int i = 0; i < kFeatures; ++i) run[i] += to_scores[j] * of_row[i];
      }
      if constexpr (kScores == Scores::kDots) {
        unpack_words<T>(keys[j], x);
#pragma unroll
        for (int i = 0; i < kFeatures; ++i) run[kOfKeys + i] += to_scores[j] * x[i];
      }
      if constexpr (kLeaky) {
        const Acc sloped = to_scores[j] * slope;
#pragma unroll
        for (int i = 0; i < kFeatures; ++i) {
          const Acc part = z[j][i] >= 0 ? to_scores[j] : sloped;
          to_vector[i] += part * z[j][i];
          run[kOfKeys + i] += part * vector[i / kVec][i % kVec];
        }
      }
    }
    if (fills)
#pragma unroll 1
      for (; gaps != 0; gaps &= gaps - 1) {
        const int j = __ffs(gaps) - 1;
        runs.fill_gap(j > 0 ? ring[at + j - 1] : row_before, ring[at + j]);
      }
    whole = next_whole;
  }

  __pipeline_wait_prior(0);
  __syncwarp();
  runs.close_last(open, count, fills, close);
  __syncthreads();         // what follows takes the place of the words
  if constexpr (kLeaky) {  // what the block has of the vector's gradient
    Acc* const parts = reinterpret_cast<Acc*>(bytes);  // [feature][thread]
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) parts[i * kBackThreads + threadIdx.x] = to_vector[i];
    __syncthreads();
    if (threadIdx.x < lanes && column.active) {
      Acc* const to = back.parts + blockIdx.x * cut.width + at_row.first;
#pragma unroll
      for (int i = 0; i < kFeatures; ++i) {
        Acc sum = 0;
#pragma unroll 1
        for (int other = 0; other < kBackThreads; other += lanes)
          sum += parts[i * kBackThreads + other + lane];
        to[i / kVec * at_row.apart + i % kVec] = sum;
      }
    }
  }
  runs.close_range(open, kBackThreads, run);
  runs.complete(per_block, cut.width, fills, tails);
}

}  // namespace
}  // namespace jax_gnn::cuda
