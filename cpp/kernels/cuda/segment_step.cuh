// Small sums and means of rows, gathered or one after another: a team of lanes has one step of
// entries and no more. Nearly all their time is memory's latency and instructions on their way.
// Hence little code, no loop over entries, and two loads one after the other: ids, then features.
//
// A block loads the ids of its entries, and of as many before them: its window. Which entries end a
// row is then known as bits. A row that begins in the window is summed up here, and what of it lies
// in the block before once more, rather than waited for. A longer one goes on from the tails of
// blocks before (segment_tails.cuh). Where it is stored, always in the same order, what teams have
// of a row is added up from shared memory. The cut depends on shapes only: the same bits on every
// run.
//
// With dots, each row that is gathered is also multiplied with the row of `left` that it is added
// to (see Dots): these come by asynchronous copies, once for each run of a team's entries, as there
// are no registers for them. A team then has all of a row, hence up to 32 lanes.
//
// Under a softmax (softmax_sums.cuh) what scores are made of is asked for with the features, so
// that there are still two loads one after the other. Weights, and what rows within a team's
// entries are divided by, are then made while features are on their way. What a team has of a row
// is relative to the largest score that it has met. Scores of keys are made of features: their rows
// come by asynchronous copies, but for the values, and lanes add up those of a head together.
//
// Rows with an epilogue are stored by all teams alike, once their sums lie in shared memory, in
// order of rows: what each of a team's first ones reads is on its way while features are.
//
// Whether a row is handed on to a block follows from two ids, the first of the block and of the one
// before, which both sides read: hence nobody waits for what is not written, whatever ids are.
//
// Needs blocks of kStepThreads threads; a StepShared of dynamic shared memory; a workspace row for
// each block of a column of the grid, and a tag that no other launch has. segment_walk_launch.h
// provides them. Promises that all rows are written, empty ones too where it `fills`, that no
// row of an id out of range is read, and that any ids are survived.
#pragma once

#include <cuda_pipeline.h>

#include "lane_sums.cuh"
#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_output.cuh"
#include "segment_runs.cuh"
#include "segment_tails.cuh"
#include "softmax_sums.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kStepThreads = 256;  // of a block
constexpr int kStepLanes = 8;      // of a team, without dots
constexpr int kStepEntries = 8;    // of a team

// Entries of a block whose teams have so many lanes.
__host__ __device__ constexpr int step_block(int lanes) {
  return kStepThreads / lanes * kStepEntries;
}

// Operands of a launch. Sizes fit 31 bits, and so do places of weights with their heads 32.
template <typename T, typename Acc>
struct Step {
  const Index *rows, *cols, *order;  // as of a Csr
  unsigned count, num_rows, num_cols, num_weights;
  const T* in;
  const Acc* weight;  // null means ones; then there is no order
  T* out;
  unsigned width, heads;
  unsigned head_words;  // of kVec features, under a softmax
  float heads_per_feature;
  bool fills;
};

// Whether rows wait for their epilogue.
template <class RowEpilogue>
constexpr bool has_late_rows = !std::is_same_v<RowEpilogue, NoEpilogue>;
template <typename Acc>
constexpr bool has_late_rows<StoredStats<Acc>> = false;

// Rows that wait for their epilogue: sums of the rows that end in the block, [entry][lane].
template <class Op, typename Acc, bool kHasEpilogue>
struct EndedRows {};
template <class Op, typename Acc>
struct EndedRows<Op, Acc, true> {
  static constexpr int kBlock = step_block(kStepLanes), kRuns = kBlock * kStepLanes;
  Index places[kBlock];  // entries of the block that end a row, in order
  alignas(16) Pack<Acc, Op::kVec> sums[kRuns];
  Acc more[largest(kRuns * (Op::kParts - Op::kVec), 1)];
};

// Words of further rows of entries, [entry of a team][thread].
template <typename W, bool kAny>
struct FurtherWords {};
template <typename W>
struct FurtherWords<W, true> {
  alignas(16) W words[kStepEntries * kStepThreads];
};

// Numbers that weights of a team's entries are made of, [kind][thread][entry], a head's where its
// first lane is: of the block's entries, and of those of the block before.
template <typename Acc, int kKinds>
struct EntryNumbers {
  static constexpr int kSize = kKinds * kStepEntries * kStepThreads;
  alignas(16) Acc team[kSize];
  alignas(16) Acc before[kSize];
};
template <typename Acc>
struct EntryNumbers<Acc, 0> {};

template <class Op, typename T, typename Acc, class RowEpilogue, bool kDots, int kLanes,
          class Softmax = NoSoftmax>
struct StepShared {
  static constexpr int kWaiting = 2 * kStepThreads;  // place of what waits for blocks before
  static constexpr int kRuns = kWaiting + kLanes;
  static constexpr int kWindow = 2 * step_block(kLanes);

  alignas(16) Index cols[kWindow];    // of entries that count, else -1
  alignas(16) Index places[kWindow];  // of weights
  alignas(16) Index rows[kWindow + 1];
  unsigned ends[kWindow / 32];  // bits of entries that another row follows
  unsigned gaps[kWindow / 32];  // of those that empty rows follow
  // [team of the window][lane]: what of a row is open where the team's entries end.
  alignas(16) Pack<Acc, Op::kVec> sums[kRuns];
  Acc more[largest(kRuns * (Op::kParts - Op::kVec), 1)];
  EndedRows<Op, Acc, has_late_rows<RowEpilogue>> ended;
  FurtherWords<Word<T, Op::kVec>, kDots || Softmax::kKeyed> left;
  FurtherWords<Word<T, Op::kVec>, Softmax::kKeyed> before;
  FurtherWords<Word<T, Op::kVec>, Softmax::kApart> keys, keys_before;
  EntryNumbers<Acc, Softmax::kKinds> numbers;
};

// An entry's id, or `otherwise` where there are not so many.
__device__ __forceinline__ unsigned load_id(const Index* ids, unsigned entry, unsigned count,
                                            unsigned otherwise) {
  const auto* from = reinterpret_cast<const unsigned*>(ids);
  load_below(entry, count, row_at(from, static_cast<Index>(entry), sizeof(Index)), otherwise);
  return otherwise;
}

template <class Op, typename T, typename Acc, class RowEpilogue = NoEpilogue, class Dots = NoDots,
          int kTeamLanes = kStepLanes, class Softmax = NoSoftmax>
__global__ void __launch_bounds__(kStepThreads, 2)
    step_kernel(const __grid_constant__ Step<T, Acc> step,
                const __grid_constant__ RowEpilogue epilogue, const __grid_constant__ Dots dots,
                const __grid_constant__ Softmax softmax, Tails<Op, Acc> tails) {
  static_assert(is_linear<Op> || Softmax::kAny);
  constexpr int kVec = Op::kVec, kParts = Op::kParts;
  constexpr unsigned kLanes = kTeamLanes, kEntries = kStepEntries, kThreads = kStepThreads;
  constexpr unsigned kTeams = kThreads / kLanes, kBlock = step_block(kLanes), kWindow = 2 * kBlock;
  constexpr bool kHasEpilogue = has_late_rows<RowEpilogue>, kSoftmax = Softmax::kAny;
  constexpr bool kKeyed = Softmax::kKeyed, kHasLeft = Dots::kAny || kKeyed;
  using Shared = StepShared<Op, T, Acc, RowEpilogue, Dots::kAny, kTeamLanes, Softmax>;
  using W = Word<T, kVec>;
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared());
  const RunSlots<Op, Acc> open = {shared.sums, shared.more};
  const unsigned lane = threadIdx.x % kLanes, team = threadIdx.x / kLanes;
  bool reads_ahead = false;
  if constexpr (Dots::kAny) reads_ahead = dots.start == Start::kReadsAhead;
  if (!reads_ahead) wait_for_previous_launch();

  // Whether entries have places of weights that are to be looked at.
  const bool has_places = kSoftmax ? step.order != nullptr : step.weight != nullptr;

  // Places in the window: those of the block before, of this, and the first of the next.
#pragma unroll
  for (unsigned i = 0; i < kWindow; i += kThreads) {
    const unsigned place = i + threadIdx.x;
    if constexpr (kWindow < kThreads)
      if (place >= kWindow) break;                                // whole warps
    const unsigned entry = blockIdx.x * kBlock + place - kBlock;  // before the first: too large
    const unsigned row = load_id(step.rows, entry, step.count, ~0u);
    const unsigned next = load_id(step.rows, entry + 1, step.count, ~0u);
    const unsigned col = load_id(step.cols, entry, step.cols != nullptr ? step.count : 0, entry);
    const unsigned weight =
        load_id(step.order, entry, step.order != nullptr ? step.count : 0, entry);
    const bool valid =
        row < step.num_rows && col < step.num_cols && (!has_places || weight < step.num_weights);
    shared.rows[place] = static_cast<Index>(row);
    if (place == kWindow - 1) shared.rows[kWindow] = static_cast<Index>(next);
    shared.cols[place] = valid ? static_cast<Index>(col) : -1;
    shared.places[place] = static_cast<Index>(weight);
    const unsigned ends = __ballot_sync(kWholeWarp, row != next);
    const unsigned gaps =
        __ballot_sync(kWholeWarp, row + 1 < next && next < step.num_rows && row < step.num_rows);
    if (threadIdx.x % 32 == 0) {
      shared.ends[place / 32] = ends;
      shared.gaps[place / 32] = gaps;
    }
  }
  const unsigned first_of_all = step.rows[0], last_of_all = step.rows[step.count - 1];
  const unsigned first_feature = (blockIdx.y * kLanes + lane) * kVec;
  const bool active = first_feature < step.width;
  unsigned head =
      static_cast<unsigned>((static_cast<float>(first_feature) + 0.5f) * step.heads_per_feature);
  if constexpr (kSoftmax) head = min(head, step.heads - 1);  // of lanes without features, too
  const T* const lane_in = step.in + first_feature;
  T* const lane_out = step.out + first_feature;
  const unsigned row_bytes = step.width * static_cast<unsigned>(sizeof(T));
  const unsigned num_cols = active ? step.num_cols : 0, num_rows = active ? step.num_rows : 0;
  __syncthreads();

  struct Loaded {
    Index cols[kEntries];
    W words[kEntries];
    Acc weights[kEntries];
  };
  const auto load = [&](unsigned place, Loaded& loaded) {
#pragma unroll
    for (unsigned j = 0; j < kEntries; ++j) {
      loaded.words[j] = {};
      loaded.weights[j] = 1;
      load_below(static_cast<unsigned>(loaded.cols[j]), num_cols,
                 reinterpret_cast<const W*>(row_at(lane_in, loaded.cols[j], row_bytes)),
                 loaded.words[j]);
    }
    if (step.weight != nullptr)
#pragma unroll
      for (unsigned j = 0; j < kEntries; ++j) {
        const unsigned at = static_cast<unsigned>(shared.places[place + j]) * step.heads + head;
        loaded.weights[j] = load_below_or(static_cast<unsigned>(loaded.cols[j]), num_cols,
                                          step.weight + at, Acc(1));
      }
  };
  // Asks for the numbers that weights are made of. The lanes that the tile has of a head share them
  // out: copies of one number take as long as those of several.
  const unsigned head_bytes = step.heads * static_cast<unsigned>(sizeof(Acc));
  unsigned head_lanes = 1, head_lane = 0;
  if constexpr (kSoftmax) {
    const unsigned tile = blockIdx.y * kLanes, begin = max(head * step.head_words, tile);
    head_lane = tile + lane - begin;
    head_lanes = min((head + 1) * step.head_words, tile + kLanes) - begin;
  }
  const unsigned numbers_at = (threadIdx.x - head_lane) * kEntries;
  constexpr unsigned kOfKind = kEntries * kThreads;
  const auto ask = [&](unsigned place, const auto& col_of, Acc* numbers) {
    if constexpr (kSoftmax) {
      const Acc* const scales = softmax.edge_scale();
      if (!active || (kKeyed && scales == nullptr)) return;
#pragma unroll 1
      for (unsigned j = head_lane; j < kEntries; j += head_lanes) {
        const Index col = col_of(j), at = shared.places[place + j];
        const auto copy = [&](unsigned kind, const Acc* from, Index id) {
          copy_async<sizeof(Acc)>(col >= 0, row_at(from + head, id, head_bytes),
                                  numbers + kind * kOfKind + numbers_at + j);
        };
        if constexpr (!kKeyed) {
          const Attention<Acc>& attention = softmax.attention;
          if (attention.edge_score == nullptr) {
            copy(0, attention.src_score, col);
            copy(1, attention.dst_score, shared.rows[place + j]);
          } else {
            copy(0, attention.edge_score, at);
          }
        }
        if (scales != nullptr) copy(Softmax::kKinds - 1, scales, at);
      }
    }
  };
  // Asks for rows of entries beside the values.
  const auto ask_for_rows = [&](const T* rows, const Loaded& loaded, W* words) {
#pragma unroll
    for (unsigned j = 0; j < kEntries; ++j)
      copy_async<sizeof(W)>(static_cast<unsigned>(loaded.cols[j]) < num_cols,
                            row_at(rows + first_feature, loaded.cols[j], row_bytes),
                            words + j * kThreads + threadIdx.x);
  };
  // Makes weights of numbers that are there. `ends`: bit j: a run ends with entry j.
  const auto weigh = [&](const Acc* numbers, unsigned ends, Loaded& loaded,
                         RunSoftmax<Acc, kEntries>& runs) {
    if constexpr (kSoftmax) {
      const auto get = [&](unsigned kind, Acc(&of_entries)[kEntries]) {
        read_shared(reinterpret_cast<const unsigned char*>(numbers + kind * kOfKind + numbers_at),
                    of_entries);
      };
      Acc scores[kEntries], others[kEntries];
      get(0, scores);
      if constexpr (kKeyed) {
        softmax.scale(scores);
      } else if (softmax.attention.edge_score == nullptr) {
        get(1, others);
#pragma unroll
        for (unsigned j = 0; j < kEntries; ++j)
          scores[j] = leaky(others[j] + scores[j], softmax.attention.slope);
      }
#pragma unroll
      for (unsigned j = 0; j < kEntries; ++j)
        if (loaded.cols[j] < 0) scores[j] = kLeast<true, Acc>;
      runs.weigh(scores, ends, loaded.weights);
      if (softmax.edge_scale() != nullptr) {
        get(Softmax::kKinds - 1, others);
#pragma unroll
        for (unsigned j = 0; j < kEntries; ++j) loaded.weights[j] *= others[j];
      }
    }
  };
  const auto add = [&](const Loaded& loaded, unsigned j, Acc(&run)[kParts]) {
    Acc x[kVec];
    unpack<kVec, T>(loaded.words[j], x);
#pragma unroll
    for (int i = 0; i < kVec; ++i) run[i] += loaded.weights[j] * x[i];
    if constexpr (Op::kCounts) run[kVec] += loaded.cols[j] >= 0 ? Acc(1) : Acc(0);
  };
  const Column column = {static_cast<int64_t>(first_feature), 0, active};
  const Output<T, Op, Acc, RowEpilogue> output = {step.out, step.num_rows, step.width, epilogue};
  using Ahead = cuda::Ahead<RowEpilogue, kVec>;
  RunSlots<Op, Acc> ended = {};
  if constexpr (kHasEpilogue) ended = {shared.ended.sums, shared.ended.more};
  // Writes the row's statistics, by the lane where a head begins.
  unsigned num_stats = 0;  // rows, of a lane where a head begins
  if constexpr (kSoftmax) {
    num_stats = first_feature == head * step.head_words * kVec ? num_rows : 0;
    hide(num_stats);
  }
  const auto store_stats = [&](Index row, const SoftmaxStats<Acc>& stats, bool stores) {
    if constexpr (kSoftmax) {
      using Pair = Word<Acc, 2>;
      Pair pair;
      memcpy(&pair, &stats, sizeof(pair));
      store_below(static_cast<unsigned>(row), stores ? num_stats : 0,
                  reinterpret_cast<Pair*>(row_at(epilogue.stats + head, row, 2 * head_bytes)),
                  pair);
    }
  };
  // Writes the lane's word of a row that is below `bound`, which ends at a place of the window.
  // With an epilogue that is not yet done.
  const auto store = [&](unsigned place, const Acc(&run)[kParts], unsigned bound) {
    const Index row = shared.rows[place];
    if constexpr (kHasEpilogue) {
      if (bound > 0) ended.put(run, (place - kBlock) * kLanes + lane);
    } else {
      Acc x[kVec];
      T features[kVec];
      W word;
      if constexpr (kSoftmax)
        memcpy(x, run, sizeof(x));  // it has been divided
      else
        Op::finish(run, x);
#pragma unroll
      for (int i = 0; i < kVec; ++i) narrow(x[i], features[i]);
      memcpy(&word, features, sizeof(word));
      store_below(static_cast<unsigned>(row), bound,
                  reinterpret_cast<W*>(row_at(lane_out, row, row_bytes)), word);
    }
  };
  // Makes rows empty: every `stride`-th from `row` on and before `end`.
  const auto fill = [&](unsigned row, unsigned end, unsigned stride) {
#pragma unroll 1
    for (; row < end; row += stride)
      if constexpr (kHasEpilogue) {
        output.store_empty(row, column);
      } else {
        const Index at = static_cast<Index>(row);
        store_below(row, num_rows, reinterpret_cast<W*>(row_at(lane_out, at, row_bytes)), W{});
        store_stats(at, {0, -kLeast<true, Acc>}, true);
      }
  };
  // Writes a run that is all of a row, or had to wait.
  const auto store_whole = [&](unsigned place, const Acc(&run)[kParts], unsigned bound) {
    if constexpr (kSoftmax) {
      Acc x[kVec], divided[kParts] = {};
      Op::finish(run, x);
      memcpy(divided, x, sizeof(x));
      store(place, divided, bound);
      store_stats(shared.rows[place], Op::stats(run), bound > 0);
    } else {
      store(place, run, bound);
    }
  };

  const unsigned window_team = kTeams + team, place = window_team * kEntries;
  const Index first_row = shared.rows[kBlock];
  const bool crosses = static_cast<unsigned>(first_row) < step.num_rows;
  const bool crosses_in = crosses && shared.rows[0] == first_row;
  const bool crosses_out = crosses && shared.rows[kWindow] == first_row;
  // The team has entries of the block before that belong to a row which goes on in this one.
  const unsigned place_before = team * kEntries;
  const bool repeats =
      crosses && !crosses_in && shared.rows[place_before + kEntries - 1] == first_row;
  Loaded loaded, before;
  Acc *numbers_of_team = nullptr, *numbers_before = nullptr;
  if constexpr (kSoftmax) {
    numbers_of_team = shared.numbers.team;
    numbers_before = shared.numbers.before;
  }
#pragma unroll
  for (unsigned j = 0; j < kEntries; ++j) loaded.cols[j] = shared.cols[place + j];
  ask(place, [&](unsigned j) { return shared.cols[place + j]; }, numbers_of_team);
  load(place, loaded);
  // Lanes add up scores of keys together.
  const bool repeats_too = kKeyed ? __any_sync(kWholeWarp, repeats) : repeats;
  W left_before = {};
  if (repeats_too) {
    const auto col_before = [&](unsigned j) {
      const bool exists = repeats && shared.rows[place_before + j] == first_row;
      return exists ? shared.cols[place_before + j] : Index(-1);
    };
#pragma unroll
    for (unsigned j = 0; j < kEntries; ++j) before.cols[j] = col_before(j);
    ask(place_before, col_before, numbers_before);
    if constexpr (kKeyed) {
      const T* const lane_keys = softmax.keys.row_key + first_feature;
      load_below(static_cast<unsigned>(first_row), num_rows,
                 reinterpret_cast<const W*>(row_at(lane_keys, first_row, row_bytes)), left_before);
      ask_for_rows(step.in, before, shared.before.words);
    } else {
      load(place_before, before);
    }
    if constexpr (Softmax::kApart)
      ask_for_rows(softmax.keys.col_key, before, shared.keys_before.words);
  }
  if constexpr (Softmax::kApart) ask_for_rows(softmax.keys.col_key, loaded, shared.keys.words);

  if constexpr (kHasLeft) {
    const T* lane_left = nullptr;
    if constexpr (kKeyed)
      lane_left = softmax.keys.row_key + first_feature;
    else
      lane_left = dots.left + first_feature;
    const unsigned row_ends = shared.ends[place / 32] >> place % 32;
#pragma unroll
    for (unsigned j = 0; j < kEntries; ++j)
      if (j == 0 || (row_ends >> (j - 1) & 1)) {
        const Index row = shared.rows[place + j];
        copy_async<sizeof(W)>(static_cast<unsigned>(row) < num_rows,
                              row_at(lane_left, row, row_bytes),
                              shared.left.words + j * kThreads + threadIdx.x);
      }
    __pipeline_commit();
    if (reads_ahead) wait_for_previous_launch();
  }

  // Rows with an epilogue: the n-th of those that end in the block is the team's where n is the
  // team, or that and a multiple of all. Of the first ones it asks for what their epilogue reads.
  constexpr unsigned kPrefetched = 2;
  unsigned num_ended = 0;
  Index ended_rows[kPrefetched];
  Ahead prefetched[kPrefetched];
  const auto ended_row = [&](unsigned n) {  // -1: there is none, or it waits for blocks before
    Index row = -1;
    if constexpr (kHasEpilogue)
      if (n < num_ended) row = shared.rows[shared.ended.places[n]];
    return crosses_in && row == first_row ? Index(-1) : row;
  };
  if constexpr (kHasEpilogue) {
    const unsigned word = kBlock / 32 + threadIdx.x / 32, bit = threadIdx.x % 32;
    unsigned rank = __popc(shared.ends[word] & ((1u << bit) - 1));
#pragma unroll
    for (unsigned i = kBlock / 32; i < kWindow / 32; ++i) {
      const unsigned count = __popc(shared.ends[i]);
      if (i < word) rank += count;
      num_ended += count;
    }
    if (shared.ends[word] >> bit & 1)
      shared.ended.places[rank] = static_cast<Index>(kBlock + threadIdx.x);
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < kPrefetched; ++i) {
      ended_rows[i] = ended_row(team + i * kTeams);
      output.ask(lane_out, ended_rows[i], num_rows, prefetched[i]);
    }
  }

  const auto bits_of = [&](const unsigned (&bits)[kWindow / 32]) {
    return bits[place / 32] >> place % 32 & ((1u << kEntries) - 1);
  };
  bool has_long_gap = false;
  if (step.fills)
#pragma unroll 1
    for (unsigned gaps = bits_of(shared.gaps); gaps != 0; gaps &= gaps - 1) {
      const Index* const rows = shared.rows + place + __ffs(gaps) - 1;
      if (rows[1] - rows[0] > kLongGap)
        has_long_gap = true;
      else
        fill(rows[0] + 1, rows[1], 1);
    }

  // The begin, in the window, of the row that is open where the team's entries begin; 0 if before.
  int word = static_cast<int>(place / 32);
  unsigned bits = shared.ends[word] & ((1u << place % 32) - 1);
#pragma unroll 1
  while (bits == 0 && word > 0) bits = shared.ends[--word];
  const unsigned begin = bits == 0 ? 0 : word * 32 + 32 - __clz(bits);
  const bool waits = crosses_in && begin <= kBlock;
  const unsigned begin_team = waits ? kTeams : begin / kEntries;

  // No branches: the sum that is the team's first to end is kept, others are stored.
  const unsigned ends = bits_of(shared.ends), first_end = __ffs(ends) - 1;
  constexpr int kSums = kSoftmax ? kVec : kParts;
  Acc run[kParts], first_run[kParts];
  set_neutral<Op>(run);
  set_neutral<Op>(first_run);
  RunSoftmax<Acc, kEntries> runs;
  Acc vector[kVec] = {};
  // Makes scores of keys, by whole warps. `left_of(j)`: the word of the entry's row.
  const auto score = [&](const Loaded& loaded, const auto& left_of, const W* keys, Acc* numbers) {
    if constexpr (kKeyed) {
      Acc scores[kEntries] = {};
#pragma unroll
      for (unsigned j = 0; j < kEntries; ++j) {
        W key = loaded.words[j];
        if constexpr (Softmax::kApart) key = keys[j * kThreads + threadIdx.x];
        softmax.add(scores[j], left_of(j), key, vector);
      }
      const Held held = add_over_lanes(scores, softmax.head_bits);
      if (held.writes && (active || step.heads == 1))
#pragma unroll
        for (unsigned j = 0; j < kEntries; ++j)
          if (static_cast<int>(j) < held.count) numbers[numbers_at + held.first + j] = scores[j];
      __syncwarp();
    }
  };
  if constexpr (kKeyed) softmax.load(first_feature, active, vector);
  if constexpr (kSoftmax) {
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();
    if constexpr (kKeyed) {
      const W* keys = nullptr;
      if constexpr (Softmax::kApart) keys = shared.keys.words;
      W left = {};
      const auto left_of = [&](unsigned j) {
        if (j == 0 || (ends >> (j - 1) & 1)) left = shared.left.words[j * kThreads + threadIdx.x];
        return left;
      };
      score(loaded, left_of, keys, numbers_of_team);
    }
    weigh(numbers_of_team, ends, loaded, runs);
#pragma unroll
    for (unsigned j = 1; j < kEntries; ++j) {
      const bool stores = j != first_end && (ends >> j & 1);
      store_stats(shared.rows[place + j], Op::stats(runs.sums[j], runs.tops[j]), stores);
    }
  }
  Acc dot[kEntries] = {};          // the lane's share
  unsigned left_at = threadIdx.x;  // the row's word
  if constexpr (Dots::kAny) __pipeline_wait_prior(0);
#pragma unroll
  for (unsigned j = 0; j < kEntries; ++j) {
    const bool begins = j > 0 && (ends >> (j - 1) & 1), is_first = j == first_end;
    if constexpr (Dots::kAny) {
      if (begins) left_at = j * kThreads + threadIdx.x;
      add_dot<T, kVec>(dot[j], shared.left.words[left_at], loaded.words[j]);
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) run[i] = begins ? Acc(0) : run[i];
    add(loaded, j, run);
#pragma unroll
    for (int i = 0; i < kSums; ++i) first_run[i] = is_first ? run[i] : first_run[i];
    if (j > 0) store(place + j, run, !is_first && (ends >> j & 1) ? num_rows : 0);
  }
  if constexpr (kSoftmax) {
    runs.of_entry(0, first_run);
    runs.of_entry(kEntries - 1, run);
  }
  open.put(run, kThreads + threadIdx.x);
  if constexpr (Dots::kAny) {
    const Held held = add_over_lanes(dot, dots.head_bits);
    const bool writes = held.writes && (active || step.heads == 1);
#pragma unroll
    for (unsigned j = 0; j < kEntries; ++j) {
      if (static_cast<int>(j) == held.count) break;
      const unsigned at = place + held.first + j, to = shared.places[at];
      if (writes && blockIdx.x * kBlock + at - kBlock < step.count && to < step.num_weights)
        dots.dots[to * step.heads + (active ? head : 0)] = shared.cols[at] >= 0 ? dot[j] : Acc(0);
    }
  }
  if (repeats_too) {
    set_neutral<Op>(run);
    if constexpr (kKeyed) {
      const W* keys = nullptr;
      if constexpr (Softmax::kApart) keys = shared.keys_before.words;
#pragma unroll
      for (unsigned j = 0; j < kEntries; ++j)
        before.words[j] = shared.before.words[j * kThreads + threadIdx.x];
      score(before, [&](unsigned) { return left_before; }, keys, numbers_before);
    }
    weigh(numbers_before, 0, before, runs);
#pragma unroll
    for (unsigned j = 0; j < kEntries; ++j) add(before, j, run);
    if constexpr (kSoftmax) runs.of_entry(0, run);
    if (repeats) open.put(run, threadIdx.x);
  }
  has_long_gap = __syncthreads_or(has_long_gap) != 0;

  // What teams of the window have, from `first` on and before `last`, in order, and then the run.
  const auto add_before = [&](unsigned first, unsigned last, Acc(&run)[kParts]) {
    Acc total[kParts] = {};
    const auto shrink_to = [&](Acc(&run)[kParts], Acc top) {
      if constexpr (kSoftmax) {
        const Acc factor = shrink(run[Op::kTop], top);
#pragma unroll
        for (int i = 0; i <= Op::kSum; ++i) run[i] *= factor;
        run[Op::kTop] = 0;
      }
    };
    Acc top = 0;
    if constexpr (kSoftmax) {
      top = run[Op::kTop];
#pragma unroll 4
      for (unsigned at = first; at < last; ++at)
        top = extremum<true>(open.more[(at * kLanes + lane) * open.kMore + Op::kTop - kVec], top);
    }
#pragma unroll 1
    for (unsigned at = first; at < last; at += 2) {
      Acc one[kParts], two[kParts];
      open.get(one, at * kLanes + lane);
      open.get(two, (at + 1) * kLanes + lane);
      shrink_to(one, top);
      shrink_to(two, top);
#pragma unroll
      for (int i = 0; i < kParts; ++i) total[i] += one[i];
      if (at + 1 < last)
#pragma unroll
        for (int i = 0; i < kParts; ++i) total[i] += two[i];
    }
    shrink_to(run, top);
    if constexpr (kSoftmax) total[Op::kTop] = top;
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = total[i] + run[i];
  };
  if (ends != 0) {
    if (begin != place) add_before(begin_team, window_team, first_run);
    if (waits) open.put(first_run, Shared::kWaiting + lane);
    store_whole(place + first_end, first_run, waits ? 0 : num_rows);
  }
  if constexpr (kHasEpilogue) {
    const auto finish = [&](unsigned n, Index row, const Ahead& ahead) {
      if (row < 0) return;
      Acc sum[kParts];
      ended.get(sum, (shared.ended.places[n] - kBlock) * kLanes + lane);
      output.store(lane_out, row, sum, num_rows, ahead);
    };
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < kPrefetched; ++i)
      finish(team + i * kTeams, ended_rows[i], prefetched[i]);
#pragma unroll 1
    for (unsigned n = team + kPrefetched * kTeams; n < num_ended; n += kTeams) {
      Ahead ahead;
      const Index row = ended_row(n);
      output.ask(lane_out, row, num_rows, ahead);
      finish(n, row, ahead);
    }
  }

  if (step.fills) {
    if (has_long_gap)
#pragma unroll 1
      for (unsigned i = kBlock; i < kWindow; ++i)
        if ((shared.gaps[i / 32] >> i % 32 & 1) && shared.rows[i + 1] - shared.rows[i] > kLongGap)
          fill(shared.rows[i] + 1 + team, shared.rows[i + 1], kTeams);
    // All blocks alike fill what lies before the first row that has entries, and after the last.
    unsigned first = first_of_all, last = last_of_all;
    if (first >= step.num_rows || last >= step.num_rows) {
      const Range range =
          rows_with_entries({step.rows, nullptr, nullptr, step.count, step.num_rows, 0, 0});
      first = static_cast<unsigned>(range.first);
      last = static_cast<unsigned>(range.last);
    }
    const unsigned part = blockIdx.x * kTeams + team, parts = gridDim.x * kTeams;
    fill(part, first, parts);
    fill(last + 1 + part, step.num_rows, parts);
  }
  // For most blocks that is all.
  if (!crosses_in && !crosses_out) return;

  const int64_t width = step.width;
  const int block = static_cast<int>(blockIdx.x);
  const bool passed = crosses_in && crosses_out;
  const bool relays = passed && block % kRelayEvery == kRelayEvery - 1;
  if (crosses_out && team == kTeams - 1) {
    open.get(run, kThreads + threadIdx.x);
    if (begin != place) add_before(begin_team, window_team, run);
    if (relays)
      open.put(run, Shared::kWaiting + lane);
    else
      tails.put(block, column, width, run);
  }
  if (!crosses_in || (passed && !relays)) return;
  const auto enters = [&](int other) {
    const Index* const at = step.rows + other * int64_t{kBlock};
    return at[0] == first_row && at[-int64_t{kBlock}] == first_row;
  };
  const Chain chain(block,
                    block > 1 && enters(block - 1) ? blocks_of_run(block, relays, enters) : 1);
  // Teams take equal parts, the first that farthest back.
  const int share = (chain.num_tails + int{kTeams} - 1) / int{kTeams};
  const int from = static_cast<int>(team) * share;
  Acc carried[kParts];
  set_neutral<Op>(carried);
  tails.take(from, min(from + share, chain.num_tails), chain, column, width, carried);
  __syncthreads();  // what teams had left has been read
  open.put(carried, threadIdx.x);
  __syncthreads();
  if (team != 0) return;
  open.get(run, Shared::kWaiting + lane);
  add_before(0, min(static_cast<unsigned>(chain.num_tails), kTeams), run);
  if (relays)
    tails.put(block, column, width, run);
  else if constexpr (kHasEpilogue)
    output.store(lane_out, first_row, run, num_rows);
  else
    store_whole(kBlock, run, num_rows);
}

}  // namespace
}  // namespace jax_gnn::cuda
