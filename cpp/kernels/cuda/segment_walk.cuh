// Reduction of entries sorted by row, balanced over entries, without atomics (GeoT, section III).
//
// Every warp takes an even, contiguous range of entries, whatever the rows' lengths, and walks it
// in steps. A team of lanes holds a tile of features; a step deals kUnroll entries to each team of
// the warp, one behind another (sequential reduction) or side by side (parallel reduction). The sum
// of a run of equal rows is stored by the team that sees the run end; what is open at the end of a
// team's entries is carried on to the next team, to the next step, and to the next warp, always in
// the same order. What is open where a block ends is handed, through the workspace, to the block in
// which the run ends (see Tails). The cut depends on shapes only: the same bits on every run.
//
// Needs blocks of up to kMaxThreads threads, whole warps; dynamic shared memory, for two runs of
// each team's lanes a warp, and for dots their words; a workspace row for each block of a column of
// the grid; and a tag that no other launch has. segment_walk_launch.h provides them. Promises that
// all rows are written, empty ones too where it `fills`, and that any ids are survived.
#pragma once

#include <cuda_pipeline.h>

#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_output.cuh"
#include "segment_tails.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kMaxThreads = 256;  // of a block
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int kLongGap = 256;  // empty rows between two others: left to the whole block
constexpr int kLongGaps = 8;   // of a block, more are left to the teams that see them

// How entries and features are dealt out.
struct Cut {
  int lane_bits;     // log2 of the lanes of a team
  bool aligned;      // ids can be read in long words
  int64_t per_warp;  // entries of a warp, a multiple of a step's
  int64_t width;
};

// What steps leave for others of the block, in shared memory.
template <typename Acc>
struct Shared {
  Range* long_gaps;    // [kLongGaps]
  int* num_long_gaps;  // that were found, which may be more
  Index* edges;        // [8], see ask_for_edges
  Index* head_rows;    // [kMaxWarps]
  Acc* heads;          // [warp][part][lane]
  void* left_words;    // for messages with dots: words, [entry of a step][thread]
};

__device__ __forceinline__ unsigned cut_size(int64_t size) {
  return static_cast<unsigned>(min(size, int64_t{0x7fffffff}));
}

// The steps of reduce_kernel, on what a thread has. All by reference: the code that comes out is
// that of lambdas in the kernel.
template <class Message, class Op, bool kParallel>
struct Walk {
  using T = typename Message::T;
  using Acc = typename Message::Acc;
  static constexpr int kVec = Op::kVec, kParts = Op::kParts, kUnroll = Message::kUnroll;
  using Step = Ids<kUnroll, Acc>;

  // Loads the ids of a step.
  __device__ __forceinline__ void load_step(int64_t base, Step& ids) const {
    ids.first = base + (kParallel ? team_ : team_ * kUnroll);
    ids.stride = kParallel ? teams_ : 1;
    ids.full =
        cut_.aligned && base + teams_ * kUnroll <= end_ && base + teams_ * kUnroll < csr_.count;
    if (ids.full) {
      ids.count = kUnroll;
      if constexpr (kParallel) {
        load_each(rows_, ids, ids.row);
      } else {
        load_words<kUnroll>(rows_ + ids.first, ids.row);
        ids.row[kUnroll] = __ldg(rows_ + ids.first + kUnroll);
        if constexpr (Message::kGathers) {
          if (csr_.cols != nullptr) load_words<kUnroll>(csr_.cols + ids.first, ids.col);
          if (csr_.order != nullptr) load_words<kUnroll>(csr_.order + ids.first, ids.order);
          if (beside_) load_words<kUnroll>(message_.weights() + ids.first, ids.weight);
        }
      }
    } else {
      const int64_t left = kParallel ? (end_ - ids.first + teams_ - 1) / teams_ : end_ - ids.first;
      ids.count = static_cast<int>(min(max(left, int64_t{0}), int64_t{kUnroll}));
      load_each(rows_, ids, ids.row);
      if constexpr (!kParallel) {
        const int64_t next = min(ids.first + kUnroll, end_);
        ids.row[kUnroll] = load_or(next < csr_.count, rows_ + next, Index(-1));
      }
      if constexpr (Message::kGathers) {
        if (csr_.cols != nullptr) load_each(csr_.cols, ids, ids.col);
        if (csr_.order != nullptr) load_each(csr_.order, ids, ids.order);
      }
    }
    if constexpr (Message::kGathers) {
      if (csr_.cols == nullptr)
#pragma unroll
        for (int j = 0; j < kUnroll; ++j)
          ids.col[j] = j < ids.count ? static_cast<Index>(ids.first + j * ids.stride) : -1;
    }
  }

  // Loads what the entries of a step bring.
  __device__ __forceinline__ void load_features(const Step& ids,
                                                typename Message::Loaded& loaded) const {
    if constexpr (Message::kDots) {
      message_.load(ids, sizes_, csr_.order != nullptr, beside_, column_, loaded,
                    shared_.left_words);
      __pipeline_commit();
    } else {
      message_.load(ids, sizes_, csr_.order != nullptr, Message::kGathers ? beside_ : whole_,
                    column_, loaded);
    }
  }

  // Something else than the last row of all, to follow it.
  __device__ __forceinline__ Index beyond_last() const {
    const Index last = rows_[csr_.count - 1];
    return last == kLeast<true, Index> ? kLeast<false, Index> : kLeast<true, Index>;
  }

  // The row of the entry that follows each of a step's.
  __device__ __forceinline__ void find_rows_after(Step& ids, Index (&after)[kUnroll]) const {
    if constexpr (kParallel) {
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        const int64_t next = ids.first + j * teams_ + 1;
        after[j] = j >= ids.count      ? ids.row[j]
                   : next < csr_.count ? load_or(true, rows_ + next, Index(0))
                                       : beyond_last();
      }
    } else {
      if (!ids.full && ids.first + ids.count == csr_.count && ids.count > 0)
        ids.row[kUnroll] = beyond_last();
      // Entries beyond the last take the row of the one that follows them all: no end lies there.
      if (!ids.full)
#pragma unroll
        for (int j = 0; j < kUnroll; ++j)
          if (j >= ids.count) ids.row[j] = ids.row[kUnroll];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) after[j] = ids.row[j + 1];
    }
  }

  // Takes the step's entries of all teams: `head` is the run that was open where a team's entries
  // begin if it ends among them, `tail` what is open where they end.
  __device__ __forceinline__ void carry_on(bool has_end, Index head_row, Acc (&head)[kParts],
                                           Acc (&tail)[kParts]) {
    const int lanes = lanes_;
    const unsigned ends = __ballot_sync(kWholeWarp, has_end);
    const unsigned before = ends & ((1u << (threadIdx.x % 32 & ~(lanes - 1))) - 1);
    Acc in[kParts];
    set_neutral<Op>(in);
    if (teams_ > 1) {
      const int top = (threadIdx.x % 32 | (lanes - 1)) + 1;  // lane after the team's last
      const unsigned upto = ends & (kWholeWarp >> (32 - top));
#pragma unroll 1
      for (int distance = lanes; distance < 32; distance *= 2) {
        // No run has ended in the last `distance` lanes up to the team's.
        const bool joins = top > distance && upto >> (top - distance) == 0;
        Acc other[kParts];
#pragma unroll
        for (int i = 0; i < kParts; ++i) other[i] = __shfl_up_sync(kWholeWarp, tail[i], distance);
        if (joins) Op::combine(other, tail);
      }
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const Acc other = __shfl_up_sync(kWholeWarp, tail[i], lanes);
        if (team_ > 0) in[i] = other;
        tail[i] = __shfl_sync(kWholeWarp, tail[i], 32 - lanes + lane_);
      }
    }
    if (before == 0) Op::combine(carry_, in);
    if (has_end) {
      Op::combine(in, head);
      if (left_open_ && !seen_ && before == 0) {
#pragma unroll
        for (int i = 0; i < kParts; ++i)
          shared_.heads[(warp_ * kParts + i) * lanes + lane_] = head[i];
        if (lane_ == 0) shared_.head_rows[warp_] = head_row;
      } else {
        output_.store(lane_out_, head_row, head, sizes_.rows);
      }
    }
    if (ends == 0) Op::combine(carry_, tail);
#pragma unroll
    for (int i = 0; i < kParts; ++i) carry_[i] = tail[i];
    seen_ |= ends != 0;
  }

  // Called by a team that sees a row follow another: the rows between are empty.
  __device__ __forceinline__ void fill_gap(int64_t row, int64_t next) const {
    if (!is_row(row, output_.num_rows) || !is_row(next, output_.num_rows)) return;
    if (next - row > kLongGap) {
      const unsigned whole_team = (kWholeWarp >> (32 - lanes_)) << team_ * lanes_;
      const int place = __shfl_sync(
          whole_team, lane_ == 0 ? atomicAdd(shared_.num_long_gaps, 1) : 0, team_ * lanes_);
      if (place < kLongGaps) {
        shared_.long_gaps[place] = {row, next};
        return;
      }
    }
#pragma unroll 1
    for (int64_t empty = row + 1; empty < next; ++empty) output_.store_empty(empty, column_);
  }

  // Writes the empty rows that no team has written.
  __device__ __forceinline__ void fill_long_gaps(int block_team, int block_teams) const {
    const auto fill = [&](Range range, int64_t part, int64_t parts) {  // what lies between
#pragma unroll 1
      for (int64_t row = range.first + 1 + part; row < range.last; row += parts)
        output_.store_empty(row, column_);
    };
#pragma unroll 1
    for (int i = 0; i < min(*shared_.num_long_gaps, kLongGaps); ++i)
      fill(shared_.long_gaps[i], block_team, block_teams);
    // All blocks alike fill what lies before the first row that has entries, and after the last.
    const bool padded =
        !is_row(shared_.edges[6], output_.num_rows) || !is_row(shared_.edges[7], output_.num_rows);
    const Range range =
        padded ? rows_with_entries(csr_) : Range{shared_.edges[6], shared_.edges[7]};
    const int64_t part = int64_t{blockIdx.x} * block_teams + block_team;
    const int64_t parts = int64_t{gridDim.x} * block_teams;
    fill({-1, range.first}, part, parts);
    fill({range.last, output_.num_rows}, part, parts);
  }

  const Csr<Index>& csr_;
  const Message& message_;
  const Cut& cut_;
  const Output<T, Op, Acc>& output_;
  const int &lanes_, &lane_;  // of a team
  const int &teams_, &team_;  // of a warp
  const int& warp_;           // of the block
  const Column& column_;
  const Shared<Acc>& shared_;
  const Index* const& rows_;
  const int64_t &begin_, &end_;  // of the warp's entries
  const Sizes& sizes_;
  T* const& lane_out_;
  const bool& beside_;    // weights are read with the ids
  const bool& whole_;     // all lanes of the block have features
  Acc (&carry_)[kParts];  // of the run that is open, from where it or the warp's range begins
  bool& seen_;            // a run has ended in the warp
  bool& left_open_;       // a run goes on where the warp's range begins
};

// Asks for pairs of ids: on either side of the first entry of the block before, of this and of the
// next block, then the first and the last of all. They are on their way while entries are walked.
__device__ __forceinline__ void ask_for_edges(const Csr<Index>& csr, int64_t per_block,
                                              Index* edges) {
  if (threadIdx.x < 8) {
    const int pair = threadIdx.x / 2, second = threadIdx.x % 2;
    const int64_t at = pair == 3 ? second * (csr.count - 1)
                                 : (int64_t{blockIdx.x} + pair - 1) * per_block - 1 + second;
    if (at >= 0 && at < csr.count)
      __pipeline_memcpy_async(&edges[threadIdx.x], csr.rows + at, sizeof(Index));
    else
      edges[threadIdx.x] = -1;
  }
  __pipeline_commit();
}

template <class Message, class Op, bool kParallel>
__global__ void __launch_bounds__(kMaxThreads, Message::kMinBlocks)
    reduce_kernel(Csr<Index> csr, Message message, Cut cut,
                  Output<typename Message::T, Op, typename Message::Acc> output, int64_t heads,
                  bool fills, Start start, Tails<Op, typename Message::Acc> tails) {
  using Acc = typename Message::Acc;
  __shared__ Range long_gaps[kLongGaps];
  __shared__ int num_long_gaps;
  __shared__ Index edges[8];
  __shared__ Index head_rows[kMaxWarps];
  __shared__ int marks[kMaxWarps];  // bit 0: a run ends in the warp, bit 1: its first run waits
  using Steps = Walk<Message, Op, kParallel>;
  constexpr int kVec = Op::kVec, kParts = Op::kParts, kUnroll = Message::kUnroll;
  const int lanes = 1 << cut.lane_bits, lane = threadIdx.x & (lanes - 1);
  const int teams = 32 >> cut.lane_bits, team = (threadIdx.x % 32) >> cut.lane_bits;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const Column column = column_of<kVec>(lane, lanes, cut.width, heads);
  // heads[warp][part][lane], then tails.
  Acc* const shared_heads = reinterpret_cast<Acc*>(dynamic_shared());
  Acc* const shared_tails = shared_heads + warps * kParts * lanes;
  void* const left_words = shared_tails + warps * kParts * lanes;
  if (threadIdx.x == 0) num_long_gaps = 0;
  allow_next_launch();
  if (start == Start::kWaits) wait_for_previous_launch();
  __syncthreads();

  const int64_t begin =
      min((static_cast<int64_t>(blockIdx.x) * warps + warp) * cut.per_warp, csr.count);
  const int64_t end = min(begin + cut.per_warp, csr.count);
  const Index* rows = csr.rows;
  const int64_t per_block = warps * cut.per_warp;
  ask_for_edges(csr, per_block, edges);

  Sizes sizes = {cut_size(csr.num_rows), cut_size(csr.num_cols), cut_size(csr.num_weights)};
  if (!column.active) sizes = {0, 0, 0};
  typename Message::T* lane_out = output.out + column.first;
  hide(lane_out);  // or it is computed anew for every store

  bool beside = false;
  if constexpr (Message::kGathers && !Message::kDots)
    beside = message.weights() != nullptr && heads == 1 && csr.order == nullptr;
  const bool whole = (static_cast<int64_t>(blockIdx.y) + 1) * lanes * kVec <= cut.width;
  Acc carry[kParts];
  set_neutral<Op>(carry);
  bool seen = false, left_open = false;
  const Shared<Acc> shared = {long_gaps, &num_long_gaps, edges,
                              head_rows, shared_heads,   left_words};
  Steps walk{csr,  message, cut, output, lanes,    lane,   teams, team,  warp, column,   shared,
             rows, begin,   end, sizes,  lane_out, beside, whole, carry, seen, left_open};

  typename Steps::Step coming;
  if constexpr (Message::kGathers) walk.load_step(begin, coming);
  const Index row_before = load_or(begin > 0, rows + begin - 1, Index(0));
  if (start == Start::kReadsAhead) wait_for_previous_launch();
  for (int64_t base = begin; base < end; base += teams * kUnroll) {
    if constexpr (!Message::kGathers) walk.load_step(base, coming);
    typename Steps::Step ids = coming;
    typename Message::Loaded loaded;
    walk.load_features(ids, loaded);
    // The next step's ids arrive while this step's features do.
    if constexpr (Message::kGathers)
      if (base + teams * kUnroll < end) walk.load_step(base + teams * kUnroll, coming);
    if constexpr (Message::kDots)
      message.dot(ids, csr.order, cut_size(csr.num_weights), column, loaded, shared.left_words);
    if (base == begin)
      left_open = begin > 0 && __shfl_sync(kWholeWarp, ids.row[0], 0) == row_before;
    Index after[kUnroll];  // the row of the entry that follows
    walk.find_rows_after(ids, after);
    bool has_end = false;
    Index head_row = 0;
    unsigned gaps = 0;  // bit j: rows after that of entry j are empty
    Acc head[kParts], run[kParts];
    set_neutral<Op>(head);
    set_neutral<Op>(run);
    unsigned uncounted = loaded.valid;
    const auto count_up = [&](int last) {  // to the run, entries up to the last
      if constexpr (Op::kCounts) {
        const unsigned upto = (2u << last) - 1;
        run[kVec] += static_cast<Acc>(__popc(uncounted & upto));
        uncounted &= ~upto;
      }
    };
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      Acc x[kVec], one[kParts];
      message.value(loaded, j, x);
      if constexpr (Op::kCounts) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) run[i] += x[i];
      } else {
        Op::from(x, one);
        if (!Op::kZeroIsNeutral && !(loaded.valid >> j & 1)) set_neutral<Op>(one);
        append<Op>(run, one);
      }
      if (ids.row[j] != after[j]) {
        count_up(j);
        output.store(lane_out, ids.row[j], run, has_end ? sizes.rows : 0);
#pragma unroll
        for (int i = 0; i < kParts; ++i) head[i] = has_end ? head[i] : run[i];
        head_row = has_end ? head_row : ids.row[j];
        has_end = true;
        set_neutral<Op>(run);
        if (static_cast<unsigned>(after[j]) - static_cast<unsigned>(ids.row[j]) != 1 ||
            ids.row[j] < 0)
          gaps |= 1u << j;
      }
      if constexpr (kParallel) {
        count_up(j);
        __syncwarp();
        walk.carry_on(has_end, head_row, head, run);
        has_end = false;
        set_neutral<Op>(run);
      }
    }
    if constexpr (!kParallel) {
      count_up(kUnroll - 1);
      __syncwarp();
      walk.carry_on(has_end, head_row, head, run);
    }
    if (fills)
      for (; gaps != 0; gaps &= gaps - 1) {
        const int64_t entry = ids.first + (__ffs(gaps) - 1) * ids.stride;
        walk.fill_gap(rows[entry], entry + 1 < csr.count ? int64_t{rows[entry + 1]} : -1);
      }
  }

  // The warps' open runs, in order, by the first team.
  if (team == 0) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) shared_tails[(warp * kParts + i) * lanes + lane] = carry[i];
    if (lane == 0) marks[warp] = seen | (seen && left_open) << 1;
  }
  __pipeline_wait_prior(0);
  __syncthreads();
  const auto crosses = [&](int pair) {
    return edges[2 * pair] == edges[2 * pair + 1] && is_row(edges[2 * pair], output.num_rows);
  };
  const bool crosses_in = crosses(1), crosses_out = crosses(2);
  const bool passed = crosses_in && crosses_out && edges[3] == edges[4];
  const bool relays = passed && blockIdx.x % kRelayEvery == kRelayEvery - 1;
  // What waits for the blocks before this one takes the place of the first warp's first run.
  const auto keep = [&](const Acc(&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) shared_heads[i * lanes + lane] = run[i];
  };
  if (threadIdx.x < lanes) {
    bool ends = false;
    set_neutral<Op>(carry);
#pragma unroll 1
    for (int w = 0; w < warps; ++w) {
      const int mark = marks[w];
      Acc head[kParts], tail[kParts];  // both are read at once, though there may be no head
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        head[i] = shared_heads[(w * kParts + i) * lanes + lane];
        tail[i] = shared_tails[(w * kParts + i) * lanes + lane];
      }
      if (mark & 2) {
        Op::combine(carry, head);
        if (crosses_in && !ends)
          keep(head);
        else
          output.store(lane_out, head_rows[w], head, sizes.rows);
      }
      if (!(mark & 1)) Op::combine(carry, tail);
      ends |= mark & 1;
#pragma unroll
      for (int i = 0; i < kParts; ++i) carry[i] = tail[i];
    }
    if (relays)
      keep(carry);
    else if (crosses_out)
      tails.put(blockIdx.x, column, cut.width, carry);
  }

  const int block_teams = blockDim.x >> cut.lane_bits, block_team = threadIdx.x >> cut.lane_bits;
  if (fills) walk.fill_long_gaps(block_team, block_teams);

  // The run that crosses into the block ends in it, or is handed on.
  if (!crosses_in || (passed && !relays)) return;
  const int block = static_cast<int>(blockIdx.x);
  const Index row = edges[3];
  const bool many = crosses(0) && edges[1] == edges[2];  // the block before was passed through
  const int length = many ? blocks_of_run(block, relays,
                                          [&](int other) {
                                            const Index* at = rows + other * per_block;
                                            return at[-1] == row && at[0] == row;
                                          })
                          : 1;
  const Chain chain(block, length);
  // Teams take equal parts, the first that farthest back.
  Acc run[kParts];
  set_neutral<Op>(run);
  const int share = many ? (chain.num_tails + block_teams - 1) / block_teams : 1;
  tails.take(block_team * share, min((block_team + 1) * share, chain.num_tails), chain, column,
             cut.width, run);
  if (many) {
    for (int distance = lanes; distance < 32; distance *= 2) {
      Acc other[kParts];
#pragma unroll
      for (int i = 0; i < kParts; ++i) other[i] = __shfl_up_sync(kWholeWarp, run[i], distance);
      if (threadIdx.x % 32 >= distance) Op::combine(other, run);
    }
    __syncthreads();  // the first team has read what is in shared memory
    if (threadIdx.x % 32 >= 32 - lanes)
#pragma unroll
      for (int i = 0; i < kParts; ++i) shared_tails[(warp * kParts + i) * lanes + lane] = run[i];
    __syncthreads();
    set_neutral<Op>(run);
    if (threadIdx.x < lanes)
#pragma unroll 1
      for (int w = 0; w < warps; ++w) {
        Acc part[kParts];
#pragma unroll
        for (int i = 0; i < kParts; ++i) part[i] = shared_tails[(w * kParts + i) * lanes + lane];
        append<Op>(run, part);
      }
  }
  if (threadIdx.x >= lanes) return;
  Acc kept[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) kept[i] = shared_heads[i * lanes + lane];
  append<Op>(run, kept);
  if (relays)
    tails.put(block, column, cut.width, run);
  else
    output.store(lane_out, row, run, sizes.rows);
}

}  // namespace
}  // namespace jax_gnn::cuda
