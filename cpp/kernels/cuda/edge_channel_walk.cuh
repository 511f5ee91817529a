// The walk of texts whose rows have channels (jax_gnn/_ops/edge_region/channel_kernel.py): a lane
// has all numbers of its channel, and a warp takes a range of entries one by one.
//
//   grid:                      x: ranges of entries, y: 32 channels of one group of components
//   shared memory of a block:  open runs | kChannelWords numbers for each warp
//
// A text cuts its results into groups of components, so that the sums of a group fit in registers.
// What entries of one row share is loaded where the row begins, other numbers an entry ahead. Runs
// of rows are closed as in segment_runs.cuh, with the warp as the team. There are no barriers of
// the block before the last entry.
#pragma once

#include "edge_region.cuh"

namespace jax_gnn::cuda {
namespace {

// A number in global memory, which the compiler cannot tell from other memory by its address; one
// that is read once does not displace others from the caches.
template <bool kOnce, typename T>
__device__ __forceinline__ T load_global(const T* from) {
  T value;
  if constexpr (sizeof(T) == 1) {
    value = *from;
  } else {
    Word<T, 1> word;
    const auto* const words = reinterpret_cast<const Word<T, 1>*>(from);
    if constexpr (kOnce) {
      word = __ldcs(words);
    } else {
      load_always(words, word);
    }
    memcpy(&value, &word, sizeof(value));
  }
  return value;
}

// Stores a number that is not read again soon; half types have no such instruction of their own.
template <typename T, typename Acc>
__device__ __forceinline__ void store_once(T* to, Acc number) {
  const T value = cast<T>(number);
  Word<T, 1> word;
  memcpy(&word, &value, sizeof(word));
  __stcs(reinterpret_cast<Word<T, 1>*>(to), word);
}

// Stores kCount numbers of each lane, side by side, through memory in which neighbours meet.
template <int kCount, typename T, typename Acc>
__device__ __forceinline__ void store_channels(Acc* staged, T* to, const Acc (&numbers)[kCount]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kCount == 1) {
    store_once(to + lane, numbers[0]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) staged[lane * kCount + i] = numbers[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kCount; ++i) store_once(to + i * 32 + lane, staged[i * 32 + lane]);
    __syncwarp();
  }
}

// Adds kSize numbers, a power of two, over lanes up to kDistance apart. Lanes exchange halves of
// the numbers that they have left, as in lane_sums.cuh.
template <int kSize, int kDistance, typename Acc>
__device__ __forceinline__ void add_over_warp(Acc* sums) {
  constexpr int kHalf = kSize / 2;
  const bool upper = threadIdx.x & kDistance;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const Acc other = upper ? sums[i] : sums[i + kHalf];
    sums[i] = upper ? sums[i + kHalf] : sums[i];
    sums[i] += __shfl_xor_sync(kWholeWarp, other, kDistance);
  }
  if constexpr (kHalf == 0) sums[0] += __shfl_xor_sync(kWholeWarp, sums[0], kDistance);
  if constexpr (kDistance > 1) add_over_warp<kHalf, kDistance / 2>(sums);
}

// Stores kCount sums over the channels of a warp; kRoom is the next power of two, at most 32.
template <int kCount, int kRoom, typename Acc>
__device__ __forceinline__ void store_sums(Acc* to, Acc (&sums)[kRoom]) {
  add_over_warp<kRoom, 16>(sums);
  const int lane = static_cast<int>(threadIdx.x % 32), sum = lane / (32 / kRoom);
  if (lane % (32 / kRoom) == 0 && sum < kCount) __stcs(to + sum, sums[0]);
}

template <class Text, int kGroup>
struct ChannelGroup : Text {
  static __device__ __forceinline__ void store(const Arrays& out, Index row, unsigned first,
                                               const typename Text::Acc (&run)[Text::kParts]) {
    Text::template store_row<kGroup>(out, row, first % Text::kSlots, run);
  }
};

template <class Text>
using ChannelRows =
    Output<typename Text::Acc, RegionOp<Text>, typename Text::Acc, RegionRows<Text>>;

template <class Text, int kGroup>
__device__ __forceinline__ void walk_channels(
    const Csr<Index>& csr, const Arrays& in, const Cut& cut, const ChannelRows<Text>& to,
    bool fills, const Tails<RegionOp<Text>, typename Text::Acc>& tails_of_blocks,
    BlockRuns& block_runs, Index (&around)[4]) {
  using Group = ChannelGroup<Text, kGroup>;
  using Op = RegionOp<Group>;
  using Acc = typename Text::Acc;
  using Rows = RegionRows<Group>;
  constexpr int kParts = Text::kParts, kWarps = Text::kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const Column column = column_of<1>(lane, 32, cut.width, 1);
  const unsigned channel = static_cast<unsigned>(column.first) % Text::kSlots;
  const unsigned readable = min(channel, Text::kChannels - 1);
  Acc* const heads = reinterpret_cast<Acc*>(dynamic_shared());
  Acc* const tails = heads + kWarps * kParts * 32;
  const Arrays& out = to.epilogue.arrays;

  const int64_t begin = min((blockIdx.x * int64_t{kWarps} + warp) * cut.per_warp, csr.count);
  const int count = static_cast<int>(min(cut.per_warp, csr.count - begin));
  ask_for_edges(csr.rows, csr.count, kWarps * cut.per_warp, block_runs.edges);
  if (lane == 0) ask_for_rows_around(csr.rows, csr.count, begin, count, around);
  const Sizes sizes = {cut_size(csr.num_rows), cut_size(csr.num_cols), cut_size(csr.num_weights)};
  // Ids of 32 entries, one a lane: -1 as the column of an entry that does not count, and as the
  // place of one that does not exist.
  struct Entry {
    Index row, col, place;
  };
  const auto load_ids = [&](int first) {
    const bool exists = first + lane < count;
    const int64_t at = begin + first + lane;
    Entry entry = {exists ? csr.rows[at] : -1, static_cast<Index>(at), static_cast<Index>(at)};
    if (csr.cols != nullptr) entry.col = exists ? csr.cols[at] : -1;
    if (csr.order != nullptr) entry.place = exists ? csr.order[at] : -1;
    if (!exists || static_cast<unsigned>(entry.place) >= sizes.weights) entry.place = -1;
    const bool valid = entry.place >= 0 && static_cast<unsigned>(entry.row) < sizes.rows &&
                       static_cast<unsigned>(entry.col) < sizes.cols;
    if (!valid) entry.col = -1;
    return entry;
  };
  Entry batch = load_ids(0), coming = load_ids(32);
  const auto entry_of = [&](int i) {
    if (i > 0 && i % 32 == 0) {
      batch = coming;
      coming = load_ids(i + 32);
    }
    return Entry{__shfl_sync(kWholeWarp, batch.row, i % 32),
                 __shfl_sync(kWholeWarp, batch.col, i % 32),
                 __shfl_sync(kWholeWarp, batch.place, i % 32)};
  };

  Acc carry[kParts], run[kParts];
  set_neutral<Op>(carry);
  set_neutral<Op>(run);
  bool seen = false, left_open = false;
  const int one = 1, lanes = 32, team = 0;
  const Output<Acc, Op, Acc, Rows> output = {to.out, to.num_rows, to.width, {out}};
  Acc* const lane_out = output.out + column.first;
  const Shared<Acc> shared = {block_runs, heads, tails};
  Runs<Op, Acc, Acc, Rows> runs{csr,    output, lanes, lane,     one,   team, warp,
                                column, shared, sizes, lane_out, carry, seen, left_open};
  // The first run of a warp lies where close_range leaves it.
  TeamRun<Op, Acc> open = {heads + warp * (kParts - 1) * 32, around};
  __pipeline_wait_prior(0);
  __syncwarp();
  Acc shared_by_row[Text::kRow], numbers[Text::kEntry];
  const auto load_row = [&] {
    const bool valid = static_cast<unsigned>(open.row) < sizes.rows;
    Text::template load_row<kGroup>(in, valid, open.row, readable, shared_by_row);
  };
  const auto load = [&](const Entry& entry) {
    Text::template load<kGroup>(in, entry.col >= 0, entry.row, entry.col, entry.place, readable,
                                numbers);
  };
  const auto close = [&] {
    open.close(run, 32,
               [&](const Acc(&sum)[kParts]) { output.store(lane_out, open.row, sum, sizes.rows); });
  };
  Entry next = entry_of(0);
  if (count > 0) {
    open.begin(around[2]);
    load_row();
    load(next);
  }
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const Entry entry = next;
    Acc now[Text::kEntry];
#pragma unroll
    for (int j = 0; j < Text::kEntry; ++j) now[j] = numbers[j];
    next = entry_of(i + 1);
    load(next);
    if (entry.row != open.row) {
      close();
      if (fills && static_cast<unsigned>(entry.row) - static_cast<unsigned>(open.row) > 1)
        runs.fill_gap(open.row, entry.row);
      open.row = entry.row;
      load_row();
    }
    if (entry.col >= 0)
      Text::template value<kGroup>(now, shared_by_row, out, entry.place, channel, run);
    else if (entry.place >= 0)
      Text::template blank<kGroup>(out, entry.place, channel);
  }
  runs.close_last(open, count, fills, close);
  __syncwarp();
  runs.close_range(open, 32, run);
  runs.complete(kWarps * cut.per_warp, cut.width, fills,
                Tails<Op, Acc>{tails_of_blocks.base, tails_of_blocks.tag});
}

template <class Text, int kGroup, typename... Arguments>
__device__ __forceinline__ void walk_group(int group, Arguments&... arguments) {
  if constexpr (kGroup + 1 < Text::kGroups) {
    if (group > kGroup) return walk_group<Text, kGroup + 1>(group, arguments...);
  }
  walk_channels<Text, kGroup>(arguments...);
}

template <class Text>
__global__ void __launch_bounds__(Text::kThreads, Text::kMinBlocks)
    channel_kernel(Csr<Index> csr, RegionMessage<Text> message, Cut cut, ChannelRows<Text> output,
                   int64_t heads, bool fills, Start start,
                   Tails<RegionOp<Text>, typename Text::Acc> tails) {
  __shared__ BlockRuns block_runs;
  __shared__ Index around[Text::kThreads / 32][4];
  if (threadIdx.x == 0) block_runs.num_long_gaps = 0;
  if (start == Start::kWaits) wait_for_previous_launch();
  __syncthreads();
  walk_group<Text, 0>(static_cast<int>(blockIdx.y * 32 / Text::kSlots), csr, message.in, cut,
                      output, fills, tails, block_runs, around[threadIdx.x / 32]);
}

}  // namespace
}  // namespace jax_gnn::cuda
