// Runs of equal rows that lie across teams, warps and blocks: how they are joined, always in the
// same order, and how the empty rows between them are filled. What walks entries is built on it.
//
// Needs whole warps, a block's entries after those of the block before, a workspace row for each
// block of a column of the grid, and a tag that no other launch has.
#pragma once

#include <cuda_pipeline.h>

#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_output.cuh"
#include "segment_tails.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kMaxThreads = 256;  // of a block that walks entries one by one
constexpr int kMaxWarps = 16;     // of any block
constexpr int kLongGap = 256;     // empty rows between two others: left to the whole block
constexpr int kLongGaps = 8;      // of a block, more are left to the teams that see them

// State of a block in shared memory: what teams and warps leave for others.
struct BlockRuns {
  Range long_gaps[kLongGaps];
  int num_long_gaps;  // may exceed kLongGaps; 0 at first
  Index edges[8];     // see ask_for_edges
  Index head_rows[kMaxWarps];
  int marks[kMaxWarps];  // bit 0: a run ends in the warp, bit 1: its first run waits
};

// BlockRuns, and the runs that are open, in dynamic shared memory.
template <typename Acc>
struct Shared {
  BlockRuns& block;
  Acc* heads;  // [warp][part][lane]
  Acc* tails;  // [warp][part][lane]
};

__device__ __forceinline__ unsigned cut_size(int64_t size) {
  return static_cast<unsigned>(min(size, int64_t{0x7fffffff}));
}

// Asks for pairs of ids: on either side of the first entry of the block before, of this and of the
// next block, then the first and the last of all. They are on their way while entries are walked.
__device__ __forceinline__ void ask_for_edges(const Index* rows, int64_t count, int64_t per_block,
                                              Index* edges) {
  if (threadIdx.x < 8) {
    const int pair = threadIdx.x / 2, second = threadIdx.x % 2;
    const int64_t at = pair == 3 ? second * (count - 1)
                                 : (int64_t{blockIdx.x} + pair - 1) * per_block - 1 + second;
    if (at >= 0 && at < count)
      __pipeline_memcpy_async(&edges[threadIdx.x], rows + at, sizeof(Index));
    else
      edges[threadIdx.x] = -1;
  }
  __pipeline_commit();
}

// The run that a team has open as it walks a contiguous range of entries, and the protocol by which
// it is closed. The first run of the range may have begun in the range before: its sum stays in
// shared memory until Runs::close_range joins it to that of the team before. All other runs begin
// in the range, and go to the output.
template <class Op, typename Acc>
struct TeamRun {
  Acc* first_runs;      // [part][thread], in shared memory
  const Index* around;  // in shared memory: rows before and after the range, and its first row
  Index row = 0;
  unsigned state = 0;  // bit 0: it was open where the range begins; bit 1: a run has ended

  __device__ __forceinline__ void begin(Index first_row) {
    row = first_row;
    state = around[0] == row;
  }

  // Closes the run: `store(sum)` where it began in the range.
  template <class Store>
  __device__ __forceinline__ void close(Acc (&run)[Op::kParts], int threads, const Store& store) {
    Acc ended[Op::kParts];  // elsewhere, or sums are moved about at every turn for the store
#pragma unroll
    for (int i = 0; i < Op::kParts; ++i) {
      ended[i] = run[i];
      hide(ended[i]);
    }
    if (state == 1) {
#pragma unroll
      for (int i = 0; i < Op::kParts; ++i) first_runs[i * threads + threadIdx.x] = ended[i];
    } else {
      store(ended);
    }
    state |= 2;
    set_neutral<Op>(run);
  }
};

// Asks for the rows around a team's range of entries, for TeamRun. Called by one lane of the team.
__device__ __forceinline__ void ask_for_rows_around(const Index* rows, int64_t num_entries,
                                                    int64_t begin, int count, Index* around) {
  const auto ask_for_row = [&](bool exists, int64_t at, Index* to) {
    if (exists)
      copy_async<sizeof(Index)>(true, rows + at, to);
    else
      *to = -1;
  };
  ask_for_row(begin > 0, begin - 1, around);
  ask_for_row(begin + count < num_entries, begin + count, around + 1);
  ask_for_row(count > 0, begin, around + 2);
}

// The runs of a block, on what a thread has. All by reference: the code that comes out is that of
// lambdas in the kernel.
template <class Op, typename T, typename Acc, class RowEpilogue>
struct Runs {
  static constexpr int kVec = Op::kVec, kParts = Op::kParts;

  // Takes the entries of all teams: whether a run ends among a team's, the run that was open where
  // they begin if that ends among them and `waits` for what is before them, and `tail`, what is
  // open where they end.
  __device__ __forceinline__ void carry_on(bool has_end, bool waits, Index head_row,
                                           Acc (&head)[kParts], Acc (&tail)[kParts]) {
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
    if (waits) {
      Op::combine(in, head);
      if (left_open_ && !seen_ && before == 0) {
#pragma unroll
        for (int i = 0; i < kParts; ++i)
          shared_.heads[(warp_ * kParts + i) * lanes + lane_] = head[i];
        if (lane_ == 0) shared_.block.head_rows[warp_] = head_row;
      } else {
        output_.store(lane_out_, head_row, head, sizes_.rows);
      }
    }
    if (ends == 0) Op::combine(carry_, tail);
#pragma unroll
    for (int i = 0; i < kParts; ++i) carry_[i] = tail[i];
    seen_ |= ends != 0;
  }

  // Closes the run of a team whose range of entries ends with it, and fills the gap after it.
  template <class Close>
  __device__ __forceinline__ void close_last(const TeamRun<Op, Acc>& open, int count, bool fills,
                                             const Close& close) const {
    if (count > 0 && open.around[1] != open.row) {
      close();
      if (fills) fill_gap(open.row, open.around[1]);
    }
  }

  // Takes the ranges of all teams, each in one piece, after close_last.
  __device__ __forceinline__ void close_range(const TeamRun<Op, Acc>& open, int threads,
                                              Acc (&run)[kParts]) {
    Acc first_run[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) first_run[i] = open.first_runs[i * threads + threadIdx.x];
    left_open_ = __shfl_sync(kWholeWarp, open.state & 1, 0) != 0;
    carry_on(open.state > 1, open.state == 3, open.around[2], first_run, run);
  }

  // Called by a team that sees a row follow another: the rows between are empty.
  __device__ __forceinline__ void fill_gap(int64_t row, int64_t next) const {
    if (!is_row(row, output_.num_rows) || !is_row(next, output_.num_rows)) return;
    if (next - row > kLongGap) {
      const unsigned whole_team = (kWholeWarp >> (32 - lanes_)) << team_ * lanes_;
      const int place = __shfl_sync(
          whole_team, lane_ == 0 ? atomicAdd(&shared_.block.num_long_gaps, 1) : 0, team_ * lanes_);
      if (place < kLongGaps) {
        shared_.block.long_gaps[place] = {row, next};
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
    for (int i = 0; i < min(shared_.block.num_long_gaps, kLongGaps); ++i)
      fill(shared_.block.long_gaps[i], block_team, block_teams);
    // All blocks alike fill what lies before the first row that has entries, and after the last.
    const bool padded = !is_row(shared_.block.edges[6], output_.num_rows) ||
                        !is_row(shared_.block.edges[7], output_.num_rows);
    const Range range =
        padded ? rows_with_entries(csr_) : Range{shared_.block.edges[6], shared_.block.edges[7]};
    const int64_t part = int64_t{blockIdx.x} * block_teams + block_team;
    const int64_t parts = int64_t{gridDim.x} * block_teams;
    fill({-1, range.first}, part, parts);
    fill({range.last, output_.num_rows}, part, parts);
  }

  // Joins the warps' open runs, in order, by the first team, and the blocks'. `per_block`: entries.
  // Called once, by the whole block.
  __device__ __forceinline__ void complete(int64_t per_block, int64_t width, bool fills,
                                           const Tails<Op, Acc>& tails) {
    const int warps = static_cast<int>(blockDim.x / 32), lanes = lanes_, lane = lane_;
    if (team_ == 0) {
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        shared_.tails[(warp_ * kParts + i) * lanes + lane] = carry_[i];
      if (lane == 0) shared_.block.marks[warp_] = seen_ | (seen_ && left_open_) << 1;
    }
    __pipeline_wait_prior(0);
    __syncthreads();
    const auto crosses = [&](int pair) {
      return shared_.block.edges[2 * pair] == shared_.block.edges[2 * pair + 1] &&
             is_row(shared_.block.edges[2 * pair], output_.num_rows);
    };
    const bool crosses_in = crosses(1), crosses_out = crosses(2);
    const bool passed =
        crosses_in && crosses_out && shared_.block.edges[3] == shared_.block.edges[4];
    const bool relays = passed && blockIdx.x % kRelayEvery == kRelayEvery - 1;
    // The run that waits for the blocks before this one replaces the first warp's first run.
    const auto keep = [&](const Acc(&run)[kParts]) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) shared_.heads[i * lanes + lane] = run[i];
    };
    if (threadIdx.x < lanes) {
      bool ends = false;
      set_neutral<Op>(carry_);
#pragma unroll 1
      for (int w = 0; w < warps; ++w) {
        const int mark = shared_.block.marks[w];
        Acc head[kParts], tail[kParts];  // both are read at once, though there may be no head
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          head[i] = shared_.heads[(w * kParts + i) * lanes + lane];
          tail[i] = shared_.tails[(w * kParts + i) * lanes + lane];
        }
        if (mark & 2) {
          Op::combine(carry_, head);
          if (crosses_in && !ends)
            keep(head);
          else
            output_.store(lane_out_, shared_.block.head_rows[w], head, sizes_.rows);
        }
        if (!(mark & 1)) Op::combine(carry_, tail);
        ends |= mark & 1;
#pragma unroll
        for (int i = 0; i < kParts; ++i) carry_[i] = tail[i];
      }
      if (relays)
        keep(carry_);
      else if (crosses_out)
        tails.put(blockIdx.x, column_, width, carry_);
    }

    const int block_teams = warps * teams_, block_team = warp_ * teams_ + team_;
    if (fills) fill_long_gaps(block_team, block_teams);

    // The run that crosses into the block ends in it, or is handed on.
    if (!crosses_in || (passed && !relays)) return;
    const int block = static_cast<int>(blockIdx.x);
    const Index row = shared_.block.edges[3];
    const bool many =
        crosses(0) &&
        shared_.block.edges[1] == shared_.block.edges[2];  // the block before was passed through
    const int length = many ? blocks_of_run(block, relays,
                                            [&](int other) {
                                              const Index* at = csr_.rows + other * per_block;
                                              return at[-1] == row && at[0] == row;
                                            })
                            : 1;
    const Chain chain(block, length);
    // Teams take equal parts, the first that farthest back.
    Acc run[kParts];
    set_neutral<Op>(run);
    const int share = many ? (chain.num_tails + block_teams - 1) / block_teams : 1;
    tails.take(block_team * share, min((block_team + 1) * share, chain.num_tails), chain, column_,
               width, run);
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
        for (int i = 0; i < kParts; ++i)
          shared_.tails[(warp_ * kParts + i) * lanes + lane] = run[i];
      __syncthreads();
      set_neutral<Op>(run);
      if (threadIdx.x < lanes)
#pragma unroll 1
        for (int w = 0; w < warps; ++w) {
          Acc part[kParts];
#pragma unroll
          for (int i = 0; i < kParts; ++i) part[i] = shared_.tails[(w * kParts + i) * lanes + lane];
          append<Op>(run, part);
        }
    }
    if (threadIdx.x >= lanes) return;
    Acc open_run[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) open_run[i] = shared_.heads[i * lanes + lane];
    append<Op>(run, open_run);
    if (relays)
      tails.put(block, column_, width, run);
    else
      output_.store(lane_out_, row, run, sizes_.rows);
  }

  const Csr<Index>& csr_;
  const Output<T, Op, Acc, RowEpilogue>& output_;
  const int &lanes_, &lane_;  // of a team
  const int &teams_, &team_;  // of a warp
  const int& warp_;           // of the block
  const Column& column_;
  const Shared<Acc>& shared_;
  const Sizes& sizes_;
  T* const& lane_out_;
  Acc (&carry_)[kParts];  // of the run that is open, from where it or the warp's range begins
  bool& seen_;            // a run has ended in the warp
  bool& left_open_;       // a run goes on where the warp's range begins
};

}  // namespace
}  // namespace jax_gnn::cuda
