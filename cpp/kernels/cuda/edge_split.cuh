// Row sums over a sparse 0/1 matrix whose rows are cut into slots of 8 entries: HyperGef's
// edge-split partition (section 4.1) in a format that is built beforehand (4.2).
//
// With each slot come its row, its place in the row, and whether it is the row's last. Hence a
// thread knows all that it must know of its entries after one load: nobody looks up where a row
// begins, and nobody compares rows.
//
// A team of lanes takes consecutive slots, one a round. The features of a slot are all on their way
// at once, and the ids of the next round with them. A row within a team is stored by it. Else the
// team in which the row ends adds, always in the same order, what earlier teams of the block have
// left in shared memory (HyperGef's grouping, 4.3). What is open where a block ends is handed,
// through the workspace, to the block in which the row ends (segment_tails.cuh); or, where teams
// have one slot, the next block sums up those few slots once more, which is faster than to wait.
// Nobody adds atomically, and the cut depends on shapes only: the same bits on every run.
//
// Needs the slots of an EdgeSplit, aligned to 16 bytes, one more than are counted; shared memory, a
// workspace and a tag, which edge_split_launch.h provides. Promises that each row whose last slot
// is there is written once, and that any ids and places are survived.
#pragma once

#include <cuda_pipeline.h>

#include "../hypergraph.h"
#include "basics.cuh"
#include "pack.cuh"
#include "segment_ops.cuh"
#include "segment_output.cuh"
#include "segment_tails.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kMaxThreads = 256;        // of a block
constexpr int kLeastLanes = kSlotSize;  // of a team: each loads the scale of one entry for all
constexpr Index kNothingFollows = -1;   // row of a slot
constexpr int kHalfSlot = kSlotSize / 2;
// Resident threads of a multiprocessor: 64 or 80 registers each.
template <bool kOne>
constexpr int resident_threads = kOne ? 1024 : 768;

// Operands of a launch, and how it deals out slots.
template <typename Acc, int kVec>
struct Sum {
  const uint4* ids;     // of a slot
  const uint2* places;  // of a slot: its row; 2 * its place in the row + whether it is the last
  unsigned count;       // slots; the one after the last is there too, and of no row
  unsigned num_rows, num_cols;
  const Acc *col_scale, *row_scale;  // null means ones
  int lane_bits;                     // log2 of the lanes of a team
  int team_bits;                     // log2 of the teams of a block
  unsigned rounds;                   // slots of a team
  unsigned per_block;                // slots of a block
  unsigned words;                    // of kVec features
  Tails<SumOp<Acc, kVec>, Acc> tails;
};

// The place of a thread.
struct Team {
  template <class Sum>
  __device__ __forceinline__ explicit Team(const Sum& sum)
      : lanes(1u << sum.lane_bits),
        lane(threadIdx.x & (lanes - 1)),
        index(threadIdx.x >> sum.lane_bits),
        word(blockIdx.y * lanes + lane),
        active(word < sum.words) {}
  unsigned lanes, lane, index;
  unsigned word;  // of the row's
  bool active;
};

// The position of a slot in the rows.
struct Place {
  Index row;
  unsigned word;  // as in Sum

  __device__ __forceinline__ bool is_last() const { return word & 1; }
  // Slots of the row before this one.
  __device__ __forceinline__ unsigned before() const { return word >> 1; }
};

struct Slot : Place {
  Index ids[kSlotSize];
  Index scaled_id;  // whose scale the lane loads for its team

  __device__ __forceinline__ bool has_more() const {
    Index all = ids[kHalfSlot];
#pragma unroll
    for (int j = kHalfSlot + 1; j < kSlotSize; ++j) all &= ids[j];
    return all >= 0;
  }
  // Whether the row is empty, asked of its last slot.
  __device__ __forceinline__ bool is_empty() const {
    Index all = ids[0];
#pragma unroll
    for (int j = 1; j < kSlotSize; ++j) all &= ids[j];
    return all < 0 && before() == 0;
  }
};

// Not through the read-only path: what is asked for first must stay ahead of the wait for the
// launch before, all else after it.
template <class Sum>
__device__ __forceinline__ Place load_place(const Sum& sum, unsigned index) {
  uint2 place;
  load_word(sum.places + min(index, sum.count), place);
  return {static_cast<Index>(place.x), place.y};
}
template <class Sum>
__device__ __forceinline__ Slot load_slot(const Sum& sum, unsigned index, const Team& team) {
  const unsigned slot = min(index, sum.count);
  const unsigned char* from =
      row_at(reinterpret_cast<const unsigned char*>(sum.ids), slot, kSlotSize * sizeof(Index));
  const unsigned char* place_at =
      row_at(reinterpret_cast<const unsigned char*>(sum.places), slot, sizeof(uint2));
  hide(from);
  hide(place_at);  // all addresses first, then all loads
  uint4 words[kSlotSize / 4];
#pragma unroll
  for (int i = 0; i < kSlotSize / 4; ++i)
    load_word(reinterpret_cast<const uint4*>(from) + i, words[i]);
  uint2 place;
  load_word(reinterpret_cast<const uint2*>(place_at), place);
  Slot result;
  result.scaled_id =
      load_below_or(0, sum.col_scale != nullptr,
                    reinterpret_cast<const Index*>(from) + team.lane % kSlotSize, Index(-1));
  memcpy(result.ids, words, sizeof(words));
  result.row = static_cast<Index>(place.x);
  result.word = place.y;
  return result;
}

// Partial sums of teams in shared memory, a part of each thread.
template <typename Acc, int kVec>
struct Shared {
  using Part = Pack<Acc, kVec>;
  Part* parts;

  __device__ __forceinline__ void put(const Acc (&sum)[kVec], unsigned at) const {
    Part part;
    memcpy(&part, sum, sizeof(sum));
    parts[at] = part;
  }
  __device__ __forceinline__ void get(Acc (&sum)[kVec], unsigned at) const {
    const Part part = parts[at];
    memcpy(sum, &part, sizeof(sum));
  }
  // Parts of teams, from `first` on and before `last`, in order, and then `sum`.
  __device__ __forceinline__ void add_before(unsigned first, unsigned last, const Team& team,
                                             Acc (&sum)[kVec]) const {
    constexpr unsigned kBatch = 4;
    Acc total[kVec] = {};
#pragma unroll 1
    for (unsigned from = first; from < last; from += kBatch) {
      Acc batch[kBatch][kVec] = {};
#pragma unroll
      for (unsigned j = 0; j < kBatch; ++j)
        if (from + j < last) get(batch[j], (from + j) * team.lanes + team.lane);
#pragma unroll
      for (unsigned j = 0; j < kBatch; ++j)
#pragma unroll
        for (int i = 0; i < kVec; ++i) total[i] += batch[j][i];
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum[i] = total[i] + sum[i];
  }
};

// Operands of an epilogue that are fetched before the row's end: the lane's word of the row's own
// features and their scale, or, without these, the word of its residual, and 1. There are no
// registers for both.
template <class RowEpilogue, int kVec>
struct Fetched {};
template <typename T, typename Acc, int kVec>
struct Fetched<Epilogue<T, Acc>, kVec> {
  Word<T, kVec> word;
  Acc factor;
};

// The rows of the result, as a thread sees them: what each goes on with, and how they are written.
// By reference, as the code that comes out is then that of lambdas in the kernel.
template <typename Out, typename Acc, int kVec, class RowEpilogue>
struct ResultRows {
  using Beside = Fetched<RowEpilogue, kVec>;
  const Sum<Acc, kVec>& sum;
  const Team& team;
  Out* const& out;
  const RowEpilogue& epilogue;
  const unsigned& row_bytes;

  // Sends for what an epilogue reads.
  __device__ __forceinline__ Beside fetch(Index row) const {
    Beside beside = {};
    if constexpr (!std::is_same_v<RowEpilogue, NoEpilogue>) {
      const bool has_self = epilogue.self != nullptr;
      fetch_word(has_self ? epilogue.self : epilogue.residual, row, beside.word);
      beside.factor = load_below_or(
          static_cast<unsigned>(row), has_self ? sum.num_rows : 0,
          epilogue.self_scale.data + epilogue.self_scale.stride * static_cast<unsigned>(row),
          Acc(1));
    }
    return beside;
  }
  __device__ __forceinline__ void store(Index row, const Acc (&run)[kVec], Acc factor,
                                        const Beside& beside) const {
    if (!team.active || !is_id(row, sum.num_rows)) return;
    Out* to = row_at(out + uint64_t{team.word} * kVec, row, row_bytes);
    if constexpr (std::is_same_v<RowEpilogue, NoEpilogue>) {
      store_scaled(to, run, factor);
    } else {
      Acc total[kVec];
#pragma unroll
      for (int i = 0; i < kVec; ++i) total[i] = factor * run[i];
      add_word<Out>(total, beside.word, beside.factor);
      if (epilogue.self != nullptr && epilogue.residual != nullptr) {
        Word<Out, kVec> word;
        fetch_word(epilogue.residual, row, word);
        add_word<Out>(total, word, Acc(1));
      }
      if (epilogue.bias != nullptr)
#pragma unroll
        for (int i = 0; i < kVec; ++i) total[i] += __ldg(epilogue.bias + team.word * kVec + i);
      if (epilogue.relu)
#pragma unroll
        for (int i = 0; i < kVec; ++i) total[i] = total[i] < 0 ? Acc(0) : total[i];  // NaN stays
      store_scaled(to, total, Acc(1));
    }
  }

 private:
  // The lane's word of a row of what lies as the result does; zeros where there is none.
  template <class W>
  __device__ __forceinline__ void fetch_word(const Out* rows, Index row, W& word) const {
    word = {};
    load_below(
        static_cast<unsigned>(row), team.active && rows != nullptr ? sum.num_rows : 0,
        reinterpret_cast<const W*>(row_at(rows + uint64_t{team.word} * kVec, row, row_bytes)),
        word);
  }
};

// Scales of rows.
template <typename Acc, int kVec>
struct RowScales {
  const Sum<Acc, kVec>& sum;
  const unsigned& scaled_rows;

  __device__ __forceinline__ Acc scale(Index row) const {
    return load_below_or(static_cast<unsigned>(row), scaled_rows,
                         sum.row_scale + static_cast<unsigned>(row), Acc(1));
  }
  // Of the row that a slot ends; zero for an empty row, whatever its scale.
  __device__ __forceinline__ Acc scale_of(const Slot& slot) const {
    const Acc factor = scale(slot.row);
    return slot.is_empty() ? Acc(0) : factor;
  }
};

// The features that a slot's ids point at, as a thread sees them.
template <bool kScaled, typename In, typename Acc, int kVec>
struct SlotFeatures {
  using Words = Word<In, kVec>[kSlotSize];
  const Sum<Acc, kVec>& sum;
  const unsigned char* const& lane_in;
  const unsigned &row_bytes, &num_cols;
  const int& lanes;

  // Features [begin, end) of the slot.
  __device__ __forceinline__ void load(const Slot& slot, Words& words, int begin, int end) const {
#pragma unroll
    for (int j = begin; j < end; ++j) {
      words[j] = {};
      load_below(static_cast<unsigned>(slot.ids[j]), num_cols,
                 reinterpret_cast<const Word<In, kVec>*>(row_at(lane_in, slot.ids[j], row_bytes)),
                 words[j]);
    }
  }
  // One for the lane, of those that its team needs.
  __device__ __forceinline__ Acc load_scale(const Slot& slot) const {
    return kScaled ? load_below_or(static_cast<unsigned>(slot.scaled_id), sum.num_cols,
                                   sum.col_scale + static_cast<unsigned>(slot.scaled_id), Acc(1))
                   : Acc(1);
  }
  __device__ __forceinline__ void add(Acc (&run)[kVec], const Words& words, Acc scale, int begin,
                                      int end) const {
#pragma unroll
    for (int j = begin; j < end; ++j)
      add_word<In>(run, words[j], kScaled ? __shfl_sync(kWholeWarp, scale, j, lanes) : Acc(1));
  }
};

// The order of a call's launches. The second reads ahead: the first writes its `in`, and nothing
// else that it reads.
enum class Turn { kOnly, kFirst, kSecond };

// `kOne`: a team has one slot. The code is then shorter, which is what counts in small sums: most
// of their time is instructions on their way.
template <bool kOne, bool kScaled, typename In, typename Out, typename Acc, int kVec,
          class RowEpilogue>
__global__ void __launch_bounds__(kMaxThreads, resident_threads<kOne> / kMaxThreads)
    sum_kernel(const __grid_constant__ Sum<Acc, kVec> sum, const In* in, Out* out, Turn turn,
               RowEpilogue epilogue) {
  const bool reads_ahead = turn == Turn::kSecond;
  if (!reads_ahead) wait_for_previous_launch();
  // The second may read ahead what this one has waited for.
  if (turn == Turn::kFirst) allow_next_launch();
  const Team team(sum);
  const unsigned teams = 1u << sum.team_bits, rounds = kOne ? 1 : sum.rounds;
  const unsigned per_block = kOne ? teams : sum.per_block, first = blockIdx.x * per_block;
  unsigned index = first + team.index * rounds;
  Slot now = load_slot(sum, index, team);
  // The first slot of the block, and of the next: on their way meanwhile.
  Place start, next_start;
  __shared__ Place starts[2];
  if (kOne) {
    start = load_place(sum, first);
    next_start = load_place(sum, first + per_block);
  } else if (threadIdx.x < 2) {
    const unsigned at = min(first + threadIdx.x * per_block, sum.count);
    __pipeline_memcpy_async(&starts[threadIdx.x], &sum.places[at], sizeof(Place));
    __pipeline_commit();
  }
  const unsigned out_bytes = sum.words * kVec * static_cast<unsigned>(sizeof(Out));
  const ResultRows<Out, Acc, kVec, RowEpilogue> rows = {sum, team, out, epilogue, out_bytes};
  Fetched<RowEpilogue, kVec> beside = rows.fetch(now.is_last() ? now.row : kNothingFollows);
  if (reads_ahead) wait_for_previous_launch();

  const Shared<Acc, kVec> open_ends = {reinterpret_cast<Pack<Acc, kVec>*>(dynamic_shared())},
                          relay_run = {open_ends.parts + blockDim.x},
                          heads = {relay_run.parts + team.lanes}, past = heads;
  const int lanes = static_cast<int>(team.lanes);
  const unsigned scaled_rows = sum.row_scale != nullptr ? sum.num_rows : 0;
  const RowScales<Acc, kVec> scales = {sum, scaled_rows};
  Acc scale = scales.scale_of(now);

  // Sizes that loads and stores need at every turn.
  const unsigned row_bytes = sum.words * static_cast<unsigned>(sizeof(Word<In, kVec>));
  const unsigned char* lane_in =
      row_at(reinterpret_cast<const unsigned char*>(in), team.word, sizeof(Word<In, kVec>));
  unsigned num_cols = team.active ? sum.num_cols : 0;
  hide(lane_in);
  hide(num_cols);
  const SlotFeatures<kScaled, In, Acc, kVec> features = {sum, lane_in, row_bytes, num_cols, lanes};
  using Words = typename SlotFeatures<kScaled, In, Acc, kVec>::Words;

  // A row that begins up to `again` slots before the block is summed up here once more; what began
  // earlier is handed on by blocks before. Both sides of a border judge by the place after it.
  const unsigned again = kOne ? teams : 0;
  const auto is_handed_on = [&](const Place& place) {
    return is_id(place.row, sum.num_rows) && place.before() > again;
  };
  const bool repeats = kOne && is_id(start.row, sum.num_rows) && start.before() != 0 &&
                       start.before() <= min(again, first);

  Acc run[kVec] = {};       // of the row that is open
  unsigned head_round = 0;  // in which a row ends that begins before the team
  unsigned round = 0;
  if (kOne) {
    Words words;
    features.load(now, words, 0, kSlotSize);
    const Acc col_scale = features.load_scale(now);
    Slot repeated = now;
    if (repeats)
      repeated = load_slot(
          sum, team.index < start.before() ? first - start.before() + team.index : sum.count, team);
    features.add(run, words, col_scale, 0, kSlotSize);
    if (repeats) {
      features.load(repeated, words, 0, kSlotSize);
      Acc part[kVec] = {};
      features.add(part, words, features.load_scale(repeated), 0, kSlotSize);
      past.put(part, threadIdx.x);
    }
    if (now.is_last()) {
      if (now.before() == 0)
        rows.store(now.row, run, scale, beside);
      else
        head_round = 1;
    }
  } else {
    // There are more slots than are used: the last blocks find only those.
    const bool works = __all_sync(kWholeWarp, now.row == kNothingFollows) == 0;
#pragma unroll 1
    while (works) {
      // Most slots are not full: where none of the warp is, the rest costs nothing.
      const bool more = __any_sync(kWholeWarp, now.has_more()) != 0;
      Words words;
      features.load(now, words, 0, kHalfSlot);
      if (more) features.load(now, words, kHalfSlot, kSlotSize);
      const Acc col_scale = features.load_scale(now);
      ++round;
      ++index;
      Slot next = now;
      if (round < rounds) next = load_slot(sum, index, team);
      features.add(run, words, col_scale, 0, kHalfSlot);
      if (more) features.add(run, words, col_scale, kHalfSlot, kSlotSize);
      if (now.is_last()) {
        if (__builtin_expect(now.before() >= round, 0)) {
          head_round = round;
          heads.put(run, threadIdx.x);
        } else {
          rows.store(now.row, run, scale, beside);
        }
#pragma unroll
        for (int i = 0; i < kVec; ++i) run[i] = 0;
      }
      if (round == rounds) break;
      now = next;
      scale = scales.scale_of(now);
      beside = rows.fetch(now.is_last() ? now.row : kNothingFollows);
    }
  }

  if (!kOne) {
    __pipeline_wait_prior(0);
    __syncthreads();
    start = starts[0];
    next_start = starts[1];
  }

  const bool crosses_in = blockIdx.x != 0 && is_handed_on(start);
  const bool crosses_out = blockIdx.x + 1 != gridDim.x && is_handed_on(next_start);
  if (!now.is_last()) open_ends.put(run, threadIdx.x);
  Index head_row = now.row;
  Acc head_scale = scale;
  int head_begin = static_cast<int>(team.index) - static_cast<int>(now.before());
  if (!kOne && head_round != 0) {
    const unsigned in_team = head_round - 1;
    const Place place = load_place(sum, index - rounds + in_team);
    head_row = place.row;
    head_scale = scales.scale(head_row);
    // Slot of the block, or before it, in which that row begins.
    head_begin = static_cast<int>(team.index * rounds + in_team) - static_cast<int>(place.before());
  }
  // In most small sums that is all.
  if (!__syncthreads_or(head_round != 0 || !now.is_last() || crosses_in || crosses_out)) return;

  const int block = static_cast<int>(blockIdx.x);
  // A row that is handed on to this block and to the next. The place after a border says that it
  // has passed the block before: the next block judges by the same.
  const auto passes = [&](const Place& begin, const Place& end) {
    return is_handed_on(begin) && is_id(end.row, sum.num_rows) && begin.row == end.row &&
           end.before() > per_block + again;
  };
  const bool passed = crosses_in && crosses_out && passes(start, next_start);
  const bool relays = passed && block % kRelayEvery == kRelayEvery - 1;
  const Column column = {int64_t{team.word} * kVec, 0, team.active};
  const int64_t width = int64_t{sum.words} * kVec;
  // Adds what teams before have of a row that begins in that slot of the block, or before it.
  const auto add_before = [&](int begin, Acc(&run)[kVec]) {
    open_ends.add_before(static_cast<unsigned>(max(begin, 0)) / rounds, team.index, team, run);
    if (repeats && begin < 0) past.add_before(0, start.before(), team, run);
  };
  if (crosses_out && team.index == teams - 1) {
    add_before(static_cast<int>(per_block) - 1 - static_cast<int>(now.before()), run);
    if (relays)
      relay_run.put(run, team.lane);
    else
      sum.tails.put(block, column, width, run);
  }
  if (head_round != 0) {
    if (!kOne) heads.get(run, threadIdx.x);
    add_before(head_begin, run);
    if (head_begin < 0 && crosses_in)
      relay_run.put(run, team.lane);
    else
      rows.store(head_row, run, head_scale, kOne ? beside : rows.fetch(head_row));
  }
  if (!crosses_in || (passed && !relays)) return;

  // The row that crosses into the block ends in it, or is handed on by it.
  const Acc factor = relays ? Acc(1) : scales.scale(start.row);
  const bool many = start.before() > per_block + again;  // it may have passed the block before
  const int length = many ? blocks_of_run(block, relays,
                                          [&](int other) {
                                            const unsigned at = other * per_block;
                                            const Place begin = load_place(sum, at),
                                                        end = load_place(sum, at + per_block);
                                            return end.row == start.row && passes(begin, end);
                                          })
                          : 1;
  const Chain chain(block, length);
  // Teams take equal parts, the first that farthest back.
  const int share = many ? (chain.num_tails + static_cast<int>(teams) - 1) >> sum.team_bits : 1;
  const int from = static_cast<int>(team.index) * share;
  Acc carried[kVec] = {};
  sum.tails.take(from, min(from + share, chain.num_tails), chain, column, width, carried);
  __syncthreads();  // all have read what teams had left
  if (many) {
    open_ends.put(carried, threadIdx.x);
    __syncthreads();
  }
  if (team.index != 0) return;
  if (many) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) carried[i] = 0;
    open_ends.add_before(0, teams, team, carried);
  }
  Acc mine[kVec];
  relay_run.get(mine, team.lane);
#pragma unroll
  for (int i = 0; i < kVec; ++i) carried[i] += mine[i];
  if (relays)
    sum.tails.put(block, column, width, carried);
  else
    rows.store(start.row, carried, factor, rows.fetch(start.row));
}

}  // namespace
}  // namespace jax_gnn::cuda
