// Reduction of entries sorted by row, balanced over entries, without atomics (GeoT, section III).
//
// Every warp takes an even, contiguous range of entries, whatever the rows' lengths, and walks it
// in steps. A team of lanes holds a tile of features; a step deals kUnroll entries to each team of
// the warp, one behind another (sequential reduction) or side by side (parallel reduction). The sum
// of a run of equal rows is stored by the team that sees the run end; what is open at the end of a
// team's entries is carried on to the next team, to the next step, and to the next warp, always in
// the same order. What is open where a block ends is handed, through the workspace, to the block in
// which the run ends (see Tails). The cut depends on shapes only: the same bits on every run.
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

template <class Message, class Op, bool kParallel>
__global__ void __launch_bounds__(kMaxThreads, Message::kMinBlocks)
    reduce_kernel(Segments<Index> segments, Message message, Cut cut,
                  Output<typename Message::T, Op, typename Message::Acc> output, int64_t heads,
                  bool fills, Start start, Tails<Op, typename Message::Acc> tails) {
  using Acc = typename Message::Acc;
  constexpr int kVec = Op::kVec, kParts = Op::kParts, kUnroll = Message::kUnroll;
  __shared__ Range long_gaps[kLongGaps];
  __shared__ int num_long_gaps;
  __shared__ Index edges[8];  // see below
  __shared__ Index head_rows[kMaxWarps];
  __shared__ int marks[kMaxWarps];  // bit 0: a run ends in the warp, bit 1: its first run waits

  const int lanes = 1 << cut.lane_bits, lane = threadIdx.x & (lanes - 1);
  const int teams = 32 >> cut.lane_bits, team = (threadIdx.x % 32) >> cut.lane_bits;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const Column column = column_of<kVec>(lane, lanes, cut.width, heads);
  // heads[warp][part][lane], then tails.
  Acc* shared_heads = reinterpret_cast<Acc*>(dynamic_shared());
  Acc* shared_tails = shared_heads + warps * kParts * lanes;
  // For messages with dots: words, [entry of a step][thread].
  [[maybe_unused]] void* left_words = shared_tails + warps * kParts * lanes;
  if (threadIdx.x == 0) num_long_gaps = 0;
  allow_next_launch();
  if (start == Start::kWaits) wait_for_previous_launch();
  __syncthreads();

  const int64_t begin =
      min((static_cast<int64_t>(blockIdx.x) * warps + warp) * cut.per_warp, segments.count);
  const int64_t end = min(begin + cut.per_warp, segments.count);
  const Index* rows = segments.rows;

  // Pairs of ids: on either side of the first entry of the block before, of this and of the next
  // block, then the first and the last of all. They are on their way while entries are walked.
  const int64_t per_block = warps * cut.per_warp;
  if (threadIdx.x < 8) {
    const int pair = threadIdx.x / 2, second = threadIdx.x % 2;
    const int64_t at = pair == 3 ? second * (segments.count - 1)
                                 : (int64_t{blockIdx.x} + pair - 1) * per_block - 1 + second;
    if (at >= 0 && at < segments.count)
      __pipeline_memcpy_async(&edges[threadIdx.x], rows + at, sizeof(Index));
    else
      edges[threadIdx.x] = -1;
  }
  __pipeline_commit();

  const auto cut_size = [](int64_t size) {
    return static_cast<unsigned>(min(size, int64_t{0x7fffffff}));
  };
  Sizes sizes = {cut_size(segments.num_rows), cut_size(segments.num_cols),
                 cut_size(segments.num_weights)};
  if (!column.active) sizes = {0, 0, 0};
  typename Message::T* lane_out = output.out + column.first;
  hide(lane_out);  // or it is computed anew for every store

  bool beside = false;  // weights are read with the ids
  if constexpr (Message::kGathers && !Message::kDots)
    beside = message.weights() != nullptr && heads == 1 && segments.order == nullptr;
  const bool whole = (static_cast<int64_t>(blockIdx.y) + 1) * lanes * kVec <= cut.width;
  const auto load_step = [&](int64_t base, Ids<kUnroll, Acc>& ids) {
    ids.first = base + (kParallel ? team : team * kUnroll);
    ids.stride = kParallel ? teams : 1;
    ids.full =
        cut.aligned && base + teams * kUnroll <= end && base + teams * kUnroll < segments.count;
    if (ids.full) {
      ids.count = kUnroll;
      if constexpr (kParallel) {
        load_each(rows, ids, ids.row);
      } else {
        load_words<kUnroll>(rows + ids.first, ids.row);
        ids.row[kUnroll] = __ldg(rows + ids.first + kUnroll);
        if constexpr (Message::kGathers) {
          if (segments.cols != nullptr) load_words<kUnroll>(segments.cols + ids.first, ids.col);
          if (segments.order != nullptr) load_words<kUnroll>(segments.order + ids.first, ids.order);
          if (beside) load_words<kUnroll>(message.weights() + ids.first, ids.weight);
        }
      }
    } else {
      const int64_t left = kParallel ? (end - ids.first + teams - 1) / teams : end - ids.first;
      ids.count = static_cast<int>(min(max(left, int64_t{0}), int64_t{kUnroll}));
      load_each(rows, ids, ids.row);
      if constexpr (!kParallel) {
        const int64_t next = min(ids.first + kUnroll, end);
        ids.row[kUnroll] = load_or(next < segments.count, rows + next, Index(-1));
      }
      if constexpr (Message::kGathers) {
        if (segments.cols != nullptr) load_each(segments.cols, ids, ids.col);
        if (segments.order != nullptr) load_each(segments.order, ids, ids.order);
      }
    }
    if constexpr (Message::kGathers) {
      if (segments.cols == nullptr)
#pragma unroll
        for (int j = 0; j < kUnroll; ++j)
          ids.col[j] = j < ids.count ? static_cast<Index>(ids.first + j * ids.stride) : -1;
    }
  };
  // Something else than the last row of all, to follow it.
  const auto beyond_last = [&]() {
    const Index last = rows[segments.count - 1];
    return last == kLeast<true, Index> ? kLeast<false, Index> : kLeast<true, Index>;
  };

  // Called by a team that sees a row follow another: the rows between are empty.
  const auto fill_gap = [&](int64_t row, int64_t next) {
    if (!is_row(row, output.num_rows) || !is_row(next, output.num_rows)) return;
    if (next - row > kLongGap) {
      const unsigned whole_team = (kWholeWarp >> (32 - lanes)) << team * lanes;
      const int place =
          __shfl_sync(whole_team, lane == 0 ? atomicAdd(&num_long_gaps, 1) : 0, team * lanes);
      if (place < kLongGaps) {
        long_gaps[place] = {row, next};
        return;
      }
    }
#pragma unroll 1
    for (int64_t empty = row + 1; empty < next; ++empty) output.store_empty(empty, column);
  };

  Acc carry[kParts];  // of the run that is open, from where it or the warp's range begins
  set_neutral<Op>(carry);
  bool seen = false;       // a run has ended in the warp
  bool left_open = false;  // a run goes on where the warp's range begins

  // Takes the step's entries of all teams: `head` is the run that was open where a team's entries
  // begin if it ends among them, `tail` what is open where they end.
  const auto carry_on = [&](bool has_end, Index head_row, Acc(&head)[kParts], Acc(&tail)[kParts]) {
    const unsigned ends = __ballot_sync(kWholeWarp, has_end);
    const unsigned before = ends & ((1u << (threadIdx.x % 32 & ~(lanes - 1))) - 1);
    Acc in[kParts];
    set_neutral<Op>(in);
    if (teams > 1) {
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
        if (team > 0) in[i] = other;
        tail[i] = __shfl_sync(kWholeWarp, tail[i], 32 - lanes + lane);
      }
    }
    if (before == 0) Op::combine(carry, in);
    if (has_end) {
      Op::combine(in, head);
      if (left_open && !seen && before == 0) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) shared_heads[(warp * kParts + i) * lanes + lane] = head[i];
        if (lane == 0) head_rows[warp] = head_row;
      } else {
        output.store(lane_out, head_row, head, sizes.rows);
      }
    }
    if (ends == 0) Op::combine(carry, tail);
#pragma unroll
    for (int i = 0; i < kParts; ++i) carry[i] = tail[i];
    seen |= ends != 0;
  };

  Ids<kUnroll, Acc> coming;
  if constexpr (Message::kGathers) load_step(begin, coming);
  const Index row_before = load_or(begin > 0, rows + begin - 1, Index(0));
  if (start == Start::kReadsAhead) wait_for_previous_launch();
  for (int64_t base = begin; base < end; base += teams * kUnroll) {
    if constexpr (!Message::kGathers) load_step(base, coming);
    Ids<kUnroll, Acc> ids = coming;
    typename Message::Loaded loaded;
    if constexpr (Message::kDots) {
      message.load(ids, sizes, segments.order != nullptr, beside, column, loaded, left_words);
      __pipeline_commit();
    } else {
      message.load(ids, sizes, segments.order != nullptr, Message::kGathers ? beside : whole,
                   column, loaded);
    }
    // The next step's ids arrive while this step's features do.
    if constexpr (Message::kGathers)
      if (base + teams * kUnroll < end) load_step(base + teams * kUnroll, coming);
    if constexpr (Message::kDots)
      message.dot(ids, segments.order, cut_size(segments.num_weights), column, loaded, left_words);
    if (base == begin)
      left_open = begin > 0 && __shfl_sync(kWholeWarp, ids.row[0], 0) == row_before;

    Index after[kUnroll];  // the row of the entry that follows
    if constexpr (kParallel) {
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        const int64_t next = ids.first + j * teams + 1;
        after[j] = j >= ids.count          ? ids.row[j]
                   : next < segments.count ? load_or(true, rows + next, Index(0))
                                           : beyond_last();
      }
    } else {
      if (!ids.full && ids.first + ids.count == segments.count && ids.count > 0)
        ids.row[kUnroll] = beyond_last();
      // Entries beyond the last take the row of the one that follows them all: no end lies there.
      if (!ids.full)
#pragma unroll
        for (int j = 0; j < kUnroll; ++j)
          if (j >= ids.count) ids.row[j] = ids.row[kUnroll];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) after[j] = ids.row[j + 1];
    }

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
        carry_on(has_end, head_row, head, run);
        has_end = false;
        set_neutral<Op>(run);
      }
    }
    if constexpr (!kParallel) {
      count_up(kUnroll - 1);
      __syncwarp();
      carry_on(has_end, head_row, head, run);
    }
    if (fills)
      for (; gaps != 0; gaps &= gaps - 1) {
        const int64_t entry = ids.first + (__ffs(gaps) - 1) * ids.stride;
        fill_gap(rows[entry], entry + 1 < segments.count ? int64_t{rows[entry + 1]} : -1);
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
  if (fills) {
    const auto fill = [&](Range range, int64_t part, int64_t parts) {  // what lies between
#pragma unroll 1
      for (int64_t row = range.first + 1 + part; row < range.last; row += parts)
        output.store_empty(row, column);
    };
#pragma unroll 1
    for (int i = 0; i < min(num_long_gaps, kLongGaps); ++i)
      fill(long_gaps[i], block_team, block_teams);
    // All blocks alike fill what lies before the first row that has entries, and after the last.
    const bool padded = !is_row(edges[6], output.num_rows) || !is_row(edges[7], output.num_rows);
    const Range range = padded ? rows_with_entries(segments) : Range{edges[6], edges[7]};
    const int64_t part = int64_t{blockIdx.x} * block_teams + block_team;
    const int64_t parts = int64_t{gridDim.x} * block_teams;
    fill({-1, range.first}, part, parts);
    fill({range.last, output.num_rows}, part, parts);
  }

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
