// Attention over edges in one pass, where scores are made of keys: the weighted sum under a softmax
// (softmax_sums.cuh) whose scores are met on the way.
//
// Every team of lanes takes an even, contiguous range of entries, sorted by destination, and walks
// it in steps. Rows come by asynchronous copies into shared memory, asked for when the words of the
// step before are in registers, ids before them. A lane then has of a step's entries the scores of
// its head, dots over the lanes of the head. The cut depends on shapes only: the same bits on every
// run.
//
// Needs blocks of kAttendThreads threads; attend_bytes of dynamic shared memory, a workspace row
// for each block of a column of the grid, and a tag that no other launch has. Promises that all
// rows are written, empty ones too where it `fills`, that no row of an id out of range is
// read, and that any ids are survived.
#pragma once

#include <cuda_pipeline.h>

#include "../attention.h"
#include "edge_scores.cuh"
#include "lane_sums.cuh"
#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_runs.cuh"
#include "softmax_sums.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kAttendThreads = 128;  // of a block
constexpr int kAroundIds = 4;        // of which three are used
constexpr int kRingSteps = 4;        // of a ring of ids: two ahead, and two more

// Kinds of scores: numbers for each head, ⟨vector, leaky(row_key + col_key)⟩, or dots of
// keys, or those of edges with relations (TypedKeys), whose row_key is that of TypedKeys, or null.
enum class Scores { kOfHeads, kLeaky, kDots, kTyped };

// Whether scores are computed again from keys; else they are numbers of heads, or of relations.
template <Scores kScores>
constexpr bool has_keys = kScores == Scores::kLeaky || kScores == Scores::kDots;

// Rows that an entry brings: the value, its own key unless that is the value, and its row's.
template <bool kSame>
constexpr int kRowsOfEntry = kSame ? 2 : 3;

// Entries of a step, and blocks of a multiprocessor: with more, registers are spilled.
template <Scores kScores, typename T>
constexpr int kAttendStep = kScores == Scores::kLeaky && std::is_same_v<T, float> ? 8 : 4;
template <Scores kScores, typename T>
constexpr int kAttendBlocks = sizeof(T) > 4               ? 3
                              : kScores == Scores::kLeaky ? 4
                                                          : 5;

// Operands of attention with keys.
template <typename T, typename Acc>
struct Attended {
  const T* value;  // (num_cols, width)
  Keys<T, Acc> keys;
  const Acc* edge_scale;  // (num_weights, heads), null: ones
  int heads;
  TypedKeys<T, Acc> typed;  // if scores are of relations
};

// Scores from keys, for the kernel of one step (segment_step.cuh).
template <Scores kScores, bool kSame, typename T, typename Acc>
struct StepKeys {
  static constexpr bool kAny = true, kKeyed = true, kApart = !kSame;
  static constexpr int kKinds = 2;
  Keys<T, Acc> keys;
  const Acc* scales;  // of edges
  int head_bits;      // log2 of the lanes of a head

  __device__ __forceinline__ const Acc* edge_scale() const { return scales; }
  // Loads the operand of the lane's part of a score, beside the rows.
  template <int kVec>
  __device__ __forceinline__ void load(unsigned first, bool active, Acc (&vector)[kVec]) const {
    if constexpr (kScores == Scores::kLeaky)
      if (active)
#pragma unroll
        for (int i = 0; i < kVec; ++i) vector[i] = keys.vector[first + i];
  }
  template <int kVec, typename W>
  __device__ __forceinline__ void add(Acc& score, W left, W key, const Acc (&vector)[kVec]) const {
    if constexpr (kScores == Scores::kLeaky)
      add_leaky<T, kVec>(score, left, key, vector, keys.slope);
    else
      add_dot<T, kVec>(score, left, key);
  }
  template <unsigned kSize>
  __device__ __forceinline__ void scale(Acc (&scores)[kSize]) const {
    if constexpr (kScores == Scores::kDots)
      if (keys.scale != nullptr) {
        const Acc scale = *keys.scale;
#pragma unroll
        for (unsigned j = 0; j < kSize; ++j) scores[j] = rounded_product(scores[j], scale);
      }
  }
};

// How entries and features are dealt out.
struct AttendCut {
  int lane_bits;   // log2 of the lanes of a team
  int head_bits;   // and of a head, where scores are dots over them
  int tile_heads;  // that the tile of a team meets at most
  int steps;       // of a team
  int64_t width;
};

// Dynamic shared memory: rows [of an entry][entry][thread]; of each team scores, and scales of
// edges, [stage][kind][head][entry], those of TypedKeys between them; of each thread its part of a
// run; heads[warp][part][lane], and tails; of each team a ring of ids and the rows around its
// entries.
template <Scores kScores, bool kSame, class Op, typename T, typename Acc>
struct AttendLayout {
  using W = Word<T, Op::kVec>;
  static constexpr int kStages = 2;
  static constexpr int kStep = kAttendStep<kScores, T>, kRing = kRingSteps * kStep;
  static constexpr int kWords = kRowsOfEntry<kSame> * kStep * kAttendThreads;

  int lanes, team_ids, head_numbers, team_numbers;
  __host__ __device__ AttendLayout(const AttendCut& cut, bool has_third, int kinds)
      : lanes(1 << cut.lane_bits),
        team_ids((has_third ? 3 : 2) * kRing + kAroundIds),
        head_numbers(cut.tile_heads * kStep),
        team_numbers(kStages * kinds * head_numbers) {}

  __host__ __device__ int teams() const { return kAttendThreads / lanes; }
  __host__ __device__ int numbers_at() const { return kWords * static_cast<int>(sizeof(W)); }
  __host__ __device__ int runs_at() const {
    return numbers_at() + teams() * team_numbers * static_cast<int>(sizeof(Acc));
  }
  __host__ __device__ int ids_at() const {
    const int runs = kAttendThreads + kAttendThreads / 32 * 2 * lanes;
    return (runs_at() + runs * Op::kParts * static_cast<int>(sizeof(Acc)) + 15) / 16 * 16;
  }
  __host__ __device__ int bytes() const {
    return ids_at() + teams() * team_ids * static_cast<int>(sizeof(Index));
  }
};

// How a lane goes through its share of entries and heads: from which on, and how far at a time.
struct LaneShare {
  int entry, head, next_entry, next_head;
};
__device__ __forceinline__ LaneShare lane_share(int lane, int lanes, int heads) {
  const int entry = lane / heads, next_entry = lanes / heads;
  return {entry, lane - entry * heads, next_entry, lanes - next_entry * heads};
}

// Calls f(entry, head) for a lane's share of so many entries and heads.
template <class F>
__device__ __forceinline__ void for_share(const LaneShare& share, int heads, int entries,
                                          const F& f) {
  int entry = share.entry, head = share.head;
#pragma unroll 1
  while (entry < entries) {
    f(entry, head);
    entry += share.next_entry;
    head += share.next_head;
    if (head >= heads) {
      head -= heads;
      ++entry;
    }
  }
}

template <Scores kScores, bool kSame, class Op, typename T, typename Acc>
__global__ void __launch_bounds__(kAttendThreads, kAttendBlocks<kScores, T>)
    attend_kernel(Csr<Index> csr, Attended<T, Acc> attended, AttendCut cut,
                  Output<T, Op, Acc, StoredStats<Acc>> result, bool fills, Tails<Op, Acc> tails) {
  constexpr int kVec = Op::kVec, kParts = Op::kParts, kTop = Op::kTop, kSum = Op::kSum;
  static_assert(kScores != Scores::kOfHeads);
  using Layout = AttendLayout<kScores, kSame, Op, T, Acc>;
  constexpr int kStep = Layout::kStep, kRing = Layout::kRing;
  using W = Word<T, kVec>;
  __shared__ BlockRuns block_runs;
  constexpr bool kTyped = kScores == Scores::kTyped;
  const TypedKeys<T, Acc>& typed = attended.typed;
  const bool ordered = csr.order != nullptr, scaled = attended.edge_scale != nullptr;
  const bool has_rows = !kTyped || attended.keys.row_key != nullptr;
  const bool numbered = kTyped && !has_rows;
  // What entries have beside rows and columns: of typed ones, which have no order, the type.
  const Index* const third = kTyped ? typed.types : csr.order;
  const int kinds = 1 + numbered + scaled;
  const Layout layout(cut, third != nullptr, kinds);
  const int lanes = layout.lanes, lane = threadIdx.x & (lanes - 1);
  const int teams = 32 >> cut.lane_bits, team = (threadIdx.x % 32) >> cut.lane_bits;
  const int warps = kAttendThreads / 32, warp = threadIdx.x / 32;
  const int block_team = threadIdx.x >> cut.lane_bits;
  const Column column = column_of<kVec>(lane, lanes, cut.width, attended.heads);
  unsigned char* const bytes = dynamic_shared();
  W* const lane_words = reinterpret_cast<W*>(bytes) + threadIdx.x;
  Acc* const numbers =
      reinterpret_cast<Acc*>(bytes + layout.numbers_at()) + block_team * layout.team_numbers;
  Acc* const first_runs = reinterpret_cast<Acc*>(bytes + layout.runs_at());  // [part][thread]
  Acc* const shared_heads = first_runs + kParts * kAttendThreads;
  Acc* const shared_tails = shared_heads + warps * kParts * lanes;
  Index* const ring =  // of rows; then of columns, and third ids
      reinterpret_cast<Index*>(bytes + layout.ids_at()) + block_team * layout.team_ids;
  Index* const around = ring + layout.team_ids - kAroundIds;  // rows before, after and of the first
  if (threadIdx.x == 0) block_runs.num_long_gaps = 0;
  wait_for_previous_launch();
  __syncthreads();

  const int64_t per_team = int64_t{cut.steps} * kStep, per_block = layout.teams() * per_team;
  const int64_t begin = min(blockIdx.x * per_block + block_team * per_team, csr.count);
  const int count = static_cast<int>(min(per_team, csr.count - begin));
  ask_for_edges(csr.rows, csr.count, per_block, block_runs.edges);
  // The first team of a warp has most.
  const int steps = (__shfl_sync(kWholeWarp, count, 0) + kStep - 1) / kStep;

  Sizes sizes = {cut_size(csr.num_rows), cut_size(csr.num_cols), cut_size(csr.num_weights)};
  const Sizes of_ids = sizes;
  const unsigned num_thirds = kTyped ? cut_size(typed.num_types) : of_ids.weights;
  if (!column.active) sizes = {0, 0, 0};
  const unsigned row_bytes = static_cast<unsigned>(cut.width) * static_cast<unsigned>(sizeof(T));
  T* const lane_out = result.out + column.first;
  const int heads = attended.heads;
  const int first_head =
      heads > 1 ? __shfl_sync(kWholeWarp, static_cast<int>(column.head), 0, lanes) : 0;
  const int head = column.active ? static_cast<int>(column.head) - first_head : 0;
  Output<T, Op, Acc, StoredStats<Acc>> output = result;
  output.epilogue.keep_for(column, cut.width);

  const unsigned head_bytes = static_cast<unsigned>(heads) * static_cast<unsigned>(sizeof(Acc));
  const LaneShare share = lane_share(lane, lanes, cut.tile_heads);

  // Asks for the ids of a step. Where there are no entries left, the last one's.
  const auto ask_for_ids = [&](int step) {
    if (step >= steps) return;
#pragma unroll 1
    for (int i = lane; i < kStep; i += lanes) {
      const int entry = step * kStep + i;
      const int64_t at = begin + min(entry, count - 1);
      Index* to = ring + (entry & (kRing - 1));
      copy_async<sizeof(Index)>(true, csr.rows + at, to);
      if (csr.cols != nullptr)
        copy_async<sizeof(Index)>(true, csr.cols + at, to + kRing);
      else
        to[kRing] = static_cast<Index>(at);
      if (third != nullptr) copy_async<sizeof(Index)>(true, third + at, to + 2 * kRing);
    }
  };
  // Looks at a step's ids, which are there, and asks for what its entries bring; of those that are
  // none columns become -1. Whether all are there.
  const auto ask_for_entries = [&](int step, int stage) {
    bool valid = true;
#pragma unroll 1
    for (int i = lane; i < kStep; i += lanes) {
      const int entry = step * kStep + i;
      Index* id = ring + (entry & (kRing - 1));
      const bool exists = entry < count && static_cast<unsigned>(id[0]) < of_ids.rows &&
                          static_cast<unsigned>(id[kRing]) < of_ids.cols &&
                          (third == nullptr || static_cast<unsigned>(id[2 * kRing]) < num_thirds);
      if (!exists) id[kRing] = -1;
      valid &= exists;
    }
    const bool all_valid = __all_sync(kWholeWarp, valid) != 0;
    if (!all_valid) __syncwarp();
    const int at = step * kStep & (kRing - 1);
    Index cols[kStep];
    read_shared(reinterpret_cast<const unsigned char*>(ring + kRing + at), cols);
    W* to = lane_words;
    const auto copy_rows = [&](const T* from) {
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        copy_async<sizeof(W)>(
            static_cast<unsigned>(cols[j]) < sizes.cols,
            reinterpret_cast<const W*>(row_at(from + column.first, cols[j], row_bytes)), to);
        to += kAttendThreads;
      }
    };
    copy_rows(attended.value);
    if constexpr (!kSame) copy_rows(attended.keys.col_key);
    if (has_rows) {
      Index rows[kStep];
      read_shared(reinterpret_cast<const unsigned char*>(ring + at), rows);
      const T* const from = attended.keys.row_key + column.first;
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        if (j == 0 || rows[j] != rows[j - 1])
          copy_async<sizeof(W)>(static_cast<unsigned>(rows[j]) < sizes.rows,
                                reinterpret_cast<const W*>(row_at(from, rows[j], row_bytes)), to);
        to += kAttendThreads;
      }
    }
    // Numbers of edges, by lanes side by side those of an entry.
    const auto copy_numbers = [&](const Acc* from, int kind) {
      Acc* const to = numbers + (stage * kinds + kind) * layout.head_numbers;
      for_share(share, cut.tile_heads, kStep, [&](int j, int h) {
        const Index* id = ring + at + j;
        const bool exists = id[kRing] >= 0 && first_head + h < heads;
        const Index place = ordered ? id[2 * kRing] : static_cast<Index>(begin + step * kStep + j);
        copy_async<sizeof(Acc)>(exists, row_at(from + first_head + h, place, head_bytes),
                                to + h * kStep + j);
      });
    };
    if (numbered) copy_numbers(typed.at_row, 1);
    if (scaled) copy_numbers(attended.edge_scale, kinds - 1);
    return all_valid;
  };

  if (lane == 0) ask_for_rows_around(csr.rows, csr.count, begin, count, around);
  Acc vector[kVec] = {}, scale = 1;
  if constexpr (kScores == Scores::kLeaky) {
    if (column.active)
#pragma unroll
      for (int i = 0; i < kVec; ++i) vector[i] = attended.keys.vector[column.first + i];
  }
  if constexpr (kScores == Scores::kDots)
    if (attended.keys.scale != nullptr) scale = *attended.keys.scale;
  ask_for_ids(0);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncwarp();

  Acc carry[kParts], run[kParts];
  set_neutral<Op>(carry);
  set_neutral<Op>(run);
  bool seen = false, left_open = false;
  const Shared<Acc> shared = {block_runs, shared_heads, shared_tails};
  Runs<Op, T, Acc, StoredStats<Acc>> runs{csr,    output, lanes, lane,     teams, team, warp,
                                          column, shared, sizes, lane_out, carry, seen, left_open};
  W of_type = {};        // the vector of the last entry's relation, and the lane's share of what
  Acc at_pair = 0;       // its row has with the other one
  Index last_type = -1;  // and that relation
  TeamRun<Op, Acc> open = {first_runs, around};
  bool whole = true;  // no entry of the step is padding
  if (steps > 0) {
    open.begin(ring[0]);
    whole = ask_for_entries(0, 0);
  }
  ask_for_ids(1);
  __pipeline_commit();
  const auto close = [&]() {
    open.close(run, kAttendThreads,
               [&](const Acc(&sum)[kParts]) { output.store(lane_out, open.row, sum, sizes.rows); });
  };

#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int at = step * kStep & (kRing - 1), stage = step & 1;
    Index rows[kStep];
    read_shared(reinterpret_cast<const unsigned char*>(ring + at), rows);
    // Vectors of relations, where another begins; while rows are on their way.
    W of_value[kTyped ? kStep : 1], of_row[kTyped ? kStep : 1];
    unsigned new_types = 0, new_pairs = 0;  // bit j: the entry's type, or row or type, is another
    if constexpr (kTyped) {
      Index types[kStep];
      read_shared(reinterpret_cast<const unsigned char*>(ring + 2 * kRing + at), types);
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        const bool exists = column.active && static_cast<unsigned>(types[j]) < num_thirds;
        const bool is_new = types[j] != (j > 0 ? types[j - 1] : last_type) || (j == 0 && step == 0);
        const bool is_new_pair = is_new || rows[j] != (j > 0 ? rows[j - 1] : open.row);
        new_types |= static_cast<unsigned>(is_new) << j;
        new_pairs |= static_cast<unsigned>(is_new_pair) << j;
        const auto load = [&](bool needed, const T* from, W& to) {
          to = {};
          load_if(needed,
                  reinterpret_cast<const W*>(row_at(from + column.first, types[j], row_bytes)), to);
        };
        load(exists && is_new, typed.of_value, of_value[j]);
        load(exists && is_new_pair && has_rows, typed.of_row, of_row[j]);
      }
      last_type = types[kStep - 1];
    }
    __pipeline_wait_prior(0);
    __syncwarp();
    const Acc* const of_head =
        numbers + (stage * kinds * cut.tile_heads + head) * kStep;  // and of other kinds after
    // Scores, then weights.
    Acc weight[kStep];
    constexpr int kKey = kSame ? 0 : kStep, kLeft = kKey + kStep;  // among rows of entries
    W left = {}, values[kStep];
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      if (has_rows && (j == 0 || rows[j] != rows[j - 1]))
        left = lane_words[(kLeft + j) * kAttendThreads];
      values[j] = lane_words[j * kAttendThreads];
      const W key = kSame ? values[j] : lane_words[(kKey + j) * kAttendThreads];
      weight[j] = 0;
      if constexpr (kScores == Scores::kLeaky)
        add_leaky<T, kVec>(weight[j], left, key, vector, attended.keys.slope);
      else if constexpr (!kTyped)
        add_dot<T, kVec>(weight[j], left, key);
      else {
        if (new_types >> j & 1) of_type = of_value[j];
        add_dot<T, kVec>(weight[j], key, of_type);
        if (new_pairs >> j & 1) {
          at_pair = 0;
          add_dot<T, kVec>(at_pair, left, of_row[j]);
        }
        weight[j] += at_pair;
      }
    }
    // All words are read: the next step's may take their places.
    const bool now_whole = whole;
    if (step + 1 < steps) whole = ask_for_entries(step + 1, stage ^ 1);
    ask_for_ids(step + 2);
    __pipeline_commit();

    const Held held = add_over_lanes(weight, cut.head_bits);
    Acc* const scores = numbers + (stage * kinds * cut.tile_heads + head) * kStep;
    if (held.writes && (column.active || heads == 1))
#pragma unroll
      for (int j = 0; j < kStep; ++j)
        if (j < held.count) scores[held.first + j] = weight[j];
    __syncwarp();
    read_shared(reinterpret_cast<const unsigned char*>(scores), weight);
    if constexpr (kScores == Scores::kDots)
#pragma unroll
      for (int j = 0; j < kStep; ++j) weight[j] = rounded_product(weight[j], scale);
    if (numbered) {
      Acc at_row[kStep];
      read_shared(reinterpret_cast<const unsigned char*>(of_head + layout.head_numbers), at_row);
#pragma unroll
      for (int j = 0; j < kStep; ++j) weight[j] += at_row[j];
    }
    if (!now_whole) {
      Index cols[kStep];
      read_shared(reinterpret_cast<const unsigned char*>(ring + kRing + at), cols);
#pragma unroll
      for (int j = 0; j < kStep; ++j)
        if (cols[j] < 0) weight[j] = kLeast<true, Acc>;
    }
    if constexpr (kTyped) {
      if (typed.scores != nullptr && (column.active || heads == 1)) {
        const int head_lanes = 1 << cut.head_bits, head_lane = lane & (head_lanes - 1);
        Acc* const to = typed.scores + (begin + step * kStep) * heads + first_head + head;
#pragma unroll
        for (int j = 0; j < kStep; ++j)
          if ((j & (head_lanes - 1)) == head_lane && step * kStep + j < count)
            to[j * heads] = weight[j];
      }
#pragma unroll
      for (int j = 0; j < kStep; ++j)
        if (is_sloped(weight[j])) weight[j] = rounded_product(typed.slope, weight[j]);
    }
    Acc top[kStep];  // what each is relative to
    const auto begins = [&](int j) {
      return j > 0 ? rows[j] != rows[j - 1] : rows[0] != open.row || step == 0;
    };
    const auto find_tops = [&](auto far) {
      bool is_far = false;
      Acc last = run[kTop];
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        const Acc score = weight[j] > kLowest<Acc> ? weight[j] : kLowest<Acc>;
        const bool takes_score = decltype(far)::value ? !(score <= last) : false;
        last = begins(j) || takes_score ? score : last;
        top[j] = last;
        is_far |= !(weight[j] - last <= kFar<Acc>);
      }
      return is_far;
    };
    if (find_tops(std::false_type())) {
      find_tops(std::true_type());
#pragma unroll
      for (int j = kStep - 2; j >= 0; --j)
        if (!begins(j + 1)) top[j] = top[j + 1];
      if (!begins(0)) {
        const Acc factor = shrink(run[kTop], top[0]);
#pragma unroll
        for (int i = 0; i <= kSum; ++i) run[i] *= factor;
        run[kTop] = top[0];
      }
    }
    unsigned gaps = 0;  // bit j: rows before that of the step's entry j are empty
    const Index row_before = open.row;
    Acc scales[kStep] = {};
    if (scaled)
      read_shared(
          reinterpret_cast<const unsigned char*>(of_head + (kinds - 1) * layout.head_numbers),
          scales);
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      weight[j] = quick_exponential(weight[j] - top[j]);
      hide(weight[j]);  // or each waits for its own where it is used
    }
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      if (rows[j] != open.row) {
        if (static_cast<unsigned>(rows[j]) - static_cast<unsigned>(open.row) != 1) gaps |= 1u << j;
        if (j > 0) run[kTop] = top[j - 1];
        close();
        open.row = rows[j];
      }
      run[kSum] += weight[j];
      const Acc factor = scaled ? weight[j] * scales[j] : weight[j];
      Acc x[kVec];
      unpack<kVec, T>(values[j], x);
#pragma unroll
      for (int i = 0; i < kVec; ++i) run[i] += factor * x[i];
    }
    run[kTop] = top[kStep - 1];
    if (fills)
#pragma unroll 1
      for (; gaps != 0; gaps &= gaps - 1) {
        const int j = __ffs(gaps) - 1;
        runs.fill_gap(j > 0 ? ring[at + j - 1] : row_before, ring[at + j]);
      }
  }

  __pipeline_wait_prior(0);
  __syncwarp();
  runs.close_last(open, count, fills, close);
  __syncwarp();
  runs.close_range(open, kAttendThreads, run);
  runs.complete(per_block, cut.width, fills, tails);
}

}  // namespace
}  // namespace jax_gnn::cuda
