// Designs of the two sums of a hypergraph aggregation by slots, a format that is built beforehand.
//
// Every row is cut into slots of kSlot entries, the last filled up with ids of -1 at its end; an
// empty row has one slot. With each slot comes its row, its place in the row, and whether it is the
// row's last. Hence a thread knows all that it must know of its entries after one load: nobody
// looks up where a row begins, and nobody compares rows.
//
// A team of lanes takes consecutive slots, several rounds of one. The features of a slot are all on
// their way at once, and the ids of the next round with them. A row within a team is stored by it.
// Else the team in which the row ends adds, always in the same order, what earlier teams of the
// block have left in shared memory, and what earlier blocks have left in the workspace (Tails, as
// in kernels/cuda/segment_tails.cuh; here places say without a search in which block a row begins).
// Blocks wait for earlier blocks only, and nobody adds atomically: the same bits on every run.
//
// Features and results are of one type here, so that both sums are one kernel, whose instructions
// the second launch finds in the cache.
#pragma once

#include "../../cpp/kernels/cuda/launch.cuh"
#include "../../cpp/kernels/cuda/pack.cuh"
#include "hypergraph_ptx.cuh"

namespace jax_gnn::designs {
namespace {

using cuda::add_word;
using cuda::kWholeWarp;
using cuda::Word;
using Index = int32_t;

constexpr int kMaxThreads = 1024;     // of a block; and of a multiprocessor: 64 registers each
constexpr unsigned kRelayEvery = 32;  // blocks, a power of two
constexpr int kFewTails = 8;          // are taken by one team

// x / by, where x * by < 2^32.
struct Divisor {
  unsigned by, magic;

  __device__ __forceinline__ unsigned divide(unsigned x) const {
    return by == 1 ? x : static_cast<unsigned>(uint64_t{x} * magic >> 32);
  }
};
inline Divisor divisor(unsigned by) {
  return {by, by == 1 ? 0 : static_cast<unsigned>((uint64_t{1} << 32) / by) + 1};
}

// One direction of the incidences. The slot behind the last is there too: a row of its own, -1.
template <int kSlot>
struct Slots {
  const uint2* places;  // row; 2 * place in the row + whether it is the last
  const uint4* ids;     // kSlot each; anything else than a column is nothing
  unsigned count, num_rows, num_cols;
};

// How slots are dealt out.
struct Cut {
  int lane_bits;      // log2 of the lanes of a team, at least of kSlot
  int team_bits;      // log2 of the teams of a block
  Divisor rounds;     // slots of a team
  Divisor per_block;  // slots of a block
};

struct Tails {
  unsigned char* base;
  uint64_t tag;  // of the launch
};

// One of the two sums. Null scales are ones.
template <int kSlot>
struct Phase {
  Slots<kSlot> slots;
  Cut cut;
  const float *col_scale, *row_scale;
  Tails tails;
};

// The place of a thread: team and lane, and its features.
struct Place {
  __device__ __forceinline__ Place(const Cut& cut, unsigned words)
      : lanes(1u << cut.lane_bits),
        lane(threadIdx.x & (lanes - 1)),
        team(threadIdx.x >> cut.lane_bits),
        word(blockIdx.y * lanes + lane),
        words(words),
        active(word < words) {}
  unsigned lanes, lane, team;
  unsigned word, words;  // of the row's
  bool active;
};

// ---- Where features come from and go to

// Rows in global memory.
template <typename T, int kVec>
struct GlobalRows {
  const T* rows;
  unsigned num_rows, word, row_bytes;
  bool active;

  __device__ __forceinline__ GlobalRows(const T* rows, unsigned num_rows, const Place& at)
      : rows(rows),
        num_rows(num_rows),
        word(at.word),
        row_bytes(at.words * static_cast<unsigned>(sizeof(Word<T, kVec>))),
        active(at.active) {}

  // What loads need at every turn.
  struct Reader {
    const unsigned char* base;  // the lane's word of row 0
    unsigned num_rows, row_bytes;

    __device__ __forceinline__ void load(Index row, Word<T, kVec>& word) const {
      load_below(row, num_rows, row_at(base, row, row_bytes), word);
    }
  };
  __device__ __forceinline__ Reader reader() const {
    Reader reader = {row_at(bytes(), word, sizeof(Word<T, kVec>)), active ? num_rows : 0,
                     row_bytes};
    hide(reader.base);
    hide(reader.num_rows);
    return reader;
  }
  __device__ __forceinline__ void store(Index row, const float (&sum)[kVec], float scale) const {
    if (!active || static_cast<unsigned>(row) >= num_rows) return;
    const unsigned char* to = row_at(row_at(bytes(), word, sizeof(Word<T, kVec>)), row, row_bytes);
    cuda::store_scaled(reinterpret_cast<T*>(const_cast<unsigned char*>(to)), sum, scale);
  }

 private:
  __device__ __forceinline__ const unsigned char* bytes() const {
    return reinterpret_cast<const unsigned char*>(rows);
  }
};

// A tile of each row in the shared memory of a cluster's blocks, dealt out row by row.
template <typename T, int kVec>
struct ClusterRows {
  unsigned base;  // the lane's word of the block's first row
  unsigned row_bytes, block_bits, num_rows;

  __device__ __forceinline__ ClusterRows(const void* rows, unsigned bits, unsigned count,
                                         const Place& at)
      : base(shared_address(rows) + at.lane * static_cast<unsigned>(sizeof(Word<T, kVec>))),
        row_bytes(at.lanes * static_cast<unsigned>(sizeof(Word<T, kVec>))),
        block_bits(bits),
        num_rows(at.active ? count : 0) {}

  __device__ __forceinline__ const ClusterRows& reader() const { return *this; }
  __device__ __forceinline__ unsigned at(Index row) const {
    return cluster_address(base + (static_cast<unsigned>(row) >> block_bits) * row_bytes,
                           row & ((1u << block_bits) - 1));
  }
  __device__ __forceinline__ void load(Index row, Word<T, kVec>& word) const {
    load_cluster_below(row, num_rows, at(row), word);
  }
  __device__ __forceinline__ void store(Index row, const float (&sum)[kVec], float scale) const {
    if (static_cast<unsigned>(row) >= num_rows) return;
    cuda::Pack<T, kVec> pack;
#pragma unroll
    for (int i = 0; i < kVec; ++i) cuda::narrow(scale * sum[i], pack.at[i]);
    Word<T, kVec> word;
    memcpy(&word, &pack, sizeof(word));
    store_cluster(at(row), word);
  }
};

// ---- Tails

// The tails that a block takes of a row in so many blocks before it, in order: those of relays, if
// there are any between, then what no relay has taken. See segment_tails.cuh.
struct Chain {
  int first_relay, num_relays, rest, num_tails;

  __device__ __forceinline__ Chain(int block, int length) {
    constexpr int kEvery = kRelayEvery;
    const int begin = block - length, last_relay = (block & -kEvery) - 1;
    first_relay = begin | (kEvery - 1);
    num_relays = (last_relay - first_relay + kEvery) / kEvery;
    rest = max(begin, last_relay + 1);
    num_tails = num_relays + block - rest;
  }
  __device__ __forceinline__ int block_of(int i) const {
    return i < num_relays ? first_relay + i * static_cast<int>(kRelayEvery) : rest + i - num_relays;
  }
};

template <int kVec>
__device__ __forceinline__ unsigned char* tail_at(const Tails& tails, unsigned block, int i,
                                                  const Place& at) {
  constexpr unsigned kPairs = kVec * sizeof(float) / 8;
  return tails.base + uint64_t{16} * ((block * kPairs + i) * uint64_t{at.words} + at.word);
}

template <int kVec>
__device__ __forceinline__ void put_tail(const Tails& tails, unsigned block, const Place& at,
                                         const float (&sum)[kVec]) {
  constexpr int kPairs = kVec * sizeof(float) / 8;
  if (!at.active) return;
  uint64_t payload[kPairs];
  memcpy(payload, sum, sizeof(sum));
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
    write_pair(tail_at<kVec>(tails, block, i, at), payload[i], tails.tag);
}

// Adds some of a chain's tails, from `first` on and before `last`, in order, and removes their
// tags: the same launch may be replayed.
template <int kVec>
__device__ __forceinline__ void take_tails(const Tails& tails, const Chain& chain, int first,
                                           int last, const Place& at, float (&sum)[kVec]) {
  constexpr int kPairs = kVec * sizeof(float) / 8, kBatch = 4;
  if (!at.active) return;
#pragma unroll 1
  for (int from = first; from < last; from += kBatch) {
    uint64_t payload[kBatch][kPairs];
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
#pragma unroll
        for (int i = 0; i < kPairs; ++i)
          if (from + j < last) {
            uint64_t tag;
            read_pair(tail_at<kVec>(tails, chain.block_of(from + j), i, at), payload[j][i], tag);
            complete &= tag == tails.tag;
          }
    } while (wait_unless(complete));
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      if (from + j < last) {
        float part[kVec];
        memcpy(part, payload[j], sizeof(part));
#pragma unroll
        for (int i = 0; i < kPairs; ++i)
          write_pair(tail_at<kVec>(tails, chain.block_of(from + j), i, at), 0, ~tails.tag);
#pragma unroll
        for (int i = 0; i < kVec; ++i) sum[i] += part[i];
      }
  }
}

// ---- One sum

template <int kSlot>
struct Slot {
  Index row;
  unsigned place;  // as in Slots
  Index ids[kSlot];
  Index own;  // id whose scale the lane loads for its team
};

template <int kSlot>
__device__ __forceinline__ Slot<kSlot> load_slot(const Slots<kSlot>& slots, unsigned index,
                                                 const Place& at, bool scaled) {
  constexpr unsigned kBytes = kSlot * sizeof(Index);
  const unsigned slot = min(index, slots.count);
  const unsigned char* from =
      row_at(reinterpret_cast<const unsigned char*>(slots.ids), slot, kBytes);
  const unsigned char* place_at =
      row_at(reinterpret_cast<const unsigned char*>(slots.places), slot, sizeof(uint2));
  hide(from);
  hide(place_at);  // all addresses first, then all loads
  uint4 words[kSlot / 4];
#pragma unroll
  for (int i = 0; i < kSlot / 4; ++i)
    words[i] = load_word(reinterpret_cast<const uint4*>(from) + i);
  const uint2 place = load_word(reinterpret_cast<const uint2*>(place_at));
  Slot<kSlot> result;
  result.own =
      load_below(0, scaled, reinterpret_cast<const Index*>(from) + at.lane % kSlot, Index(-1));
  memcpy(result.ids, words, sizeof(words));
  result.row = static_cast<Index>(place.x);
  result.place = place.y;
  return result;
}

// What is left in shared memory, a word of each thread.
template <int kVec>
struct ThreadSums {
  uint4* words;

  __device__ __forceinline__ void put(const float (&sum)[kVec]) const {
    memcpy(words + threadIdx.x, sum, sizeof(sum));
  }
  __device__ __forceinline__ void get(float (&sum)[kVec]) const {
    memcpy(sum, words + threadIdx.x, sizeof(sum));
  }
  // What teams have left, from `first` on and before `last`, in order, and then `sum`.
  __device__ __forceinline__ void add_before(unsigned first, unsigned last, const Place& at,
                                             float (&sum)[kVec]) const {
    constexpr unsigned kBatch = 4;
    float total[kVec] = {};
#pragma unroll 1
    for (unsigned team = first; team < last; team += kBatch) {
      float parts[kBatch][kVec] = {};
#pragma unroll
      for (unsigned j = 0; j < kBatch; ++j)
        if (team + j < last) memcpy(parts[j], words + (team + j) * at.lanes + at.lane, 16);
#pragma unroll
      for (unsigned j = 0; j < kBatch; ++j)
#pragma unroll
        for (int i = 0; i < kVec; ++i) total[i] += parts[j][i];
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum[i] = total[i] + sum[i];
  }
};

// The bytes of a block's shared memory that sum_slots takes: what is open where teams end, the ends
// of rows that begin before their team, and a place.
__host__ __device__ constexpr size_t sum_slots_bytes(int threads) {
  return static_cast<size_t>(threads) * 32 + 16;
}

// Called by the whole block. `wait` is called once by all its threads, after the first ids have
// been asked for, and before `in` is read or anything written.
template <typename T, int kVec, int kSlot, class In, class Out, class Wait>
__device__ __forceinline__ void sum_slots(const Phase<kSlot>& phase, unsigned block,
                                          const Place& at, const In& in, const Out& out,
                                          const Wait& wait) {
  static_assert(kVec * sizeof(float) == sizeof(uint4), "ThreadSums");
  const Slots<kSlot>& slots = phase.slots;
  const Cut& cut = phase.cut;
  uint4* shared = reinterpret_cast<uint4*>(dynamic_shared());
  const ThreadSums<kVec> tails = {shared}, heads = {shared + blockDim.x};
  unsigned* first_place = reinterpret_cast<unsigned*>(shared + 2 * blockDim.x);
  const bool scaled = phase.col_scale != nullptr;
  const unsigned rounds = cut.rounds.by;

  unsigned index = block * cut.per_block.by + at.team * rounds;
  Slot<kSlot> now = load_slot(slots, index, at, scaled);
  const unsigned scaled_rows = phase.row_scale != nullptr ? slots.num_rows : 0;
  // Zero for an empty row, whatever its scale.
  const auto scale_of = [&](Index row, Index first_id) {
    const float scale =
        load_below(row, scaled_rows, phase.row_scale + static_cast<unsigned>(row), 1.0f);
    return first_id < 0 ? 0.0f : scale;
  };
  float scale = scale_of(now.row, now.ids[0]);
  wait();
  if (threadIdx.x == 0) *first_place = now.place >> 1;

  const auto reader = in.reader();
  float run[kVec] = {};     // of the row that is open
  unsigned head_round = 0;  // in which a row ends that begins before the team
  unsigned round = 0;
#pragma unroll 1
  while (true) {
    // Most slots are not full: where none of the warp is, the rest costs nothing.
    constexpr int kHalf = kSlot > 4 ? 4 : kSlot;
    const bool more = kSlot > kHalf && __any_sync(kWholeWarp, now.ids[kSlot - kHalf] >= 0) != 0;
    Word<T, kVec> words[kSlot];
    const auto load = [&](int j) { reader.load(now.ids[j], words[j]); };
#pragma unroll
    for (int j = 0; j < kHalf; ++j) load(j);
    if (more)
#pragma unroll
      for (int j = kHalf; j < kSlot; ++j) load(j);
    const float own =
        load_below(now.own, slots.num_cols, phase.col_scale + static_cast<unsigned>(now.own), 1.0f);
    ++round;
    ++index;
    Slot<kSlot> next = now;
    if (round < rounds) next = load_slot(slots, index, at, scaled);
    const auto add = [&](int j) {
      add_word<T>(run, words[j], scaled ? __shfl_sync(kWholeWarp, own, j, at.lanes) : 1.0f);
    };
    const auto add_all = [&] {
#pragma unroll
      for (int j = 0; j < kHalf; ++j) add(j);
      if (more)
#pragma unroll
        for (int j = kHalf; j < kSlot; ++j) add(j);
    };
    if (scaled)  // so for the whole launch
      add_all();
    else
      add_all();
    if (now.place & 1) {
      if (__builtin_expect(now.place >> 1 >= round, 0)) {
        head_round = round;
        heads.put(run);
      } else {
        out.store(now.row, run, scale);
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) run[i] = 0;
    }
    if (round == rounds) break;
    now = next;
    scale = scale_of(now.row, now.ids[0]);
  }

  const bool open = (now.place & 1) == 0;
  if (open) tails.put(run);
  Index head_row = 0;
  float head_scale = 0;
  int head_begin = 0;  // slot of the block, or before it, in which that row begins
  if (head_round != 0) {
    const unsigned from = index - 1 - rounds + head_round, in_team = head_round - 1;
    const uint2 place = load_word(slots.places + from);
    head_row = static_cast<Index>(place.x);
    head_scale = scale_of(head_row, 0);
    head_begin = static_cast<int>(at.team * rounds + in_team) - static_cast<int>(place.y >> 1);
  }
  const bool ends = head_begin < 0;  // a row that begins before the block
  const bool ended = __syncthreads_or(ends) != 0;
  const unsigned block_place = *first_place;
  const bool passed = block_place > 0 && !ended;  // by a row that begins before and ends after
  const bool relays = passed && block % kRelayEvery == kRelayEvery - 1;
  const unsigned teams = 1u << cut.team_bits;
  const auto first_team = [&](int begin) {
    return cut.rounds.divide(static_cast<unsigned>(max(begin, 0)));
  };
  if (open && at.team == teams - 1) {
    const int begin = static_cast<int>(cut.per_block.by) - 1 - static_cast<int>(now.place >> 1);
    tails.add_before(first_team(begin), at.team, at, run);
    if (!relays) put_tail(phase.tails, block, at, run);
  }
  if (head_round != 0) {
    float head[kVec];
    heads.get(head);
    tails.add_before(first_team(head_begin), at.team, at, head);
    if (ends) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) run[i] = head[i];
    } else {
      out.store(head_row, head, head_scale);
    }
  }
  if (!ended && !relays) return;

  // The row that crosses into the block ends in it, or is handed on by it.
  int length = static_cast<int>(cut.per_block.divide(block_place + cut.per_block.by - 1));
  if (relays) length = min(length, static_cast<int>(kRelayEvery) - 1);
  const Chain chain(static_cast<int>(block), length);
  const bool takes = relays ? at.team == teams - 1 : ends;
  const bool few = chain.num_tails <= kFewTails;
  int from = 0, last = takes ? chain.num_tails : 0;
  if (!few) {  // teams take equal parts, the first that farthest back
    const int share = (chain.num_tails + static_cast<int>(teams) - 1) >> cut.team_bits;
    from = static_cast<int>(at.team) * share;
    last = min(from + share, chain.num_tails);
  }
  float taken[kVec] = {};
  take_tails(phase.tails, chain, from, last, at, taken);
  if (!few) {
    __syncthreads();  // all have read what teams had left
    tails.put(taken);
    __syncthreads();
    if (takes) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) taken[i] = 0;
      tails.add_before(0, teams, at, taken);
    }
  }
  if (!takes) return;
#pragma unroll
  for (int i = 0; i < kVec; ++i) taken[i] += run[i];
  if (relays)
    put_tail(phase.tails, block, at, taken);
  else
    out.store(head_row, taken, head_scale);
}

// ---- Kernels

// One sum a launch; the second has its first ids when the first ends. kResident: threads of a
// multiprocessor, by the registers of a thread.
template <typename T, int kVec, int kSlot, int kResident>
__global__ void __launch_bounds__(256, kResident / 256)
    slots_kernel(const __grid_constant__ Phase<kSlot> phase, const T* in, T* out, unsigned words,
                 bool reads_ahead) {
  cuda::allow_next_launch();
  if (!reads_ahead) cuda::wait_for_previous_launch();
  const Place at(phase.cut, words);
  const GlobalRows<T, kVec> from(in, phase.slots.num_cols, at);
  const GlobalRows<T, kVec> to(out, phase.slots.num_rows, at);
  sum_slots<T, kVec, kSlot>(phase, blockIdx.x, at, from, to, [&] {
    if (reads_ahead) cuda::wait_for_previous_launch();
  });
}

template <int kSlot>
struct Phases {
  Phase<kSlot> at[2];
};

// The barrier of all blocks of a launch, which must all be resident. Every time its sign changes
// and the rest comes back to what it was: nobody has to reset it between launches.
class GridBarrier {
 public:
  // Called before any block can have left the barrier.
  __device__ __forceinline__ explicit GridBarrier(unsigned* counter)
      : counter_(counter), before_(threadIdx.x == 0 ? read_acquire(counter) : 0) {}

  __device__ __forceinline__ void arrive() const {
    __syncthreads();
    if (threadIdx.x != 0) return;
    const bool first = blockIdx.x == 0 && blockIdx.y == 0;
    add_release(counter_, first ? 0x80000000u - (gridDim.x * gridDim.y - 1) : 1);
  }
  __device__ __forceinline__ void wait() const {
    if (threadIdx.x == 0)
      while (wait_unless((read_acquire(counter_) ^ before_) >> 31)) {
      }
    __syncthreads();
  }

 private:
  unsigned* counter_;
  unsigned before_;
};

// The blocks of a launch are a cluster, one for each tile of the features.
class ClusterBarrier {
 public:
  __device__ __forceinline__ explicit ClusterBarrier(unsigned*) {}
  __device__ __forceinline__ void arrive() const { arrive_cluster(); }
  __device__ __forceinline__ void wait() const { wait_cluster(); }
};

// Brings the first ids of a sum that is still to come.
template <int kSlot>
__device__ __forceinline__ void prefetch_slots(const Phase<kSlot>& phase) {
  const unsigned lane = threadIdx.x & ((1u << phase.cut.lane_bits) - 1);
  const unsigned team = threadIdx.x >> phase.cut.lane_bits;
  const unsigned slot =
      min(blockIdx.x * phase.cut.per_block.by + team * phase.cut.rounds.by, phase.slots.count);
  if (lane == 0) prefetch_to_l2(phase.slots.ids + slot * uint64_t{kSlot / 4});
  if (lane == 1) prefetch_to_l2(phase.slots.places + slot);
}

// Both sums in one launch, with a barrier between; h in global memory. kCopies of the code: with
// one there are fewer cold instructions to fetch, with two the parameters take no registers.
template <class Barrier, typename T, int kVec, int kSlot, int kResident, int kCopies>
__global__ void __launch_bounds__(kResident, 1)
    one_launch_kernel(const __grid_constant__ Phases<kSlot> phases, const T* x, T* h, T* y,
                      unsigned words, unsigned* counter) {
  cuda::wait_for_previous_launch();
  const Barrier barrier(counter);
#pragma unroll kCopies
  for (int i = 0; i < 2; ++i) {
    const Phase<kSlot>& phase = phases.at[i];
    const Place at(phase.cut, words);
    const GlobalRows<T, kVec> from(i == 0 ? x : h, phase.slots.num_cols, at);
    const GlobalRows<T, kVec> to(i == 0 ? h : y, phase.slots.num_rows, at);
    sum_slots<T, kVec, kSlot>(phase, blockIdx.x, at, from, to, [&] {
      if (i == 1)
        barrier.wait();
      else
        prefetch_slots(phases.at[1]);
    });
    if (i == 0) barrier.arrive();
  }
}

// Both sums in one launch of a cluster for each tile of the features; h in its shared memory.
template <typename T, int kVec, int kSlot, int kResident>
__global__ void __launch_bounds__(kResident, 1)
    cluster_kernel(const __grid_constant__ Phases<kSlot> phases, const T* x, T* y, unsigned words,
                   unsigned block_bits) {
  cuda::wait_for_previous_launch();
  arrive_cluster();
  const Place at(phases.at[0].cut, words);
  const ClusterRows<T, kVec> h(dynamic_shared() + sum_slots_bytes(static_cast<int>(blockDim.x)),
                               block_bits, phases.at[0].slots.num_rows, at);
  const GlobalRows<T, kVec> from(x, phases.at[0].slots.num_cols, at);
  const GlobalRows<T, kVec> to(y, phases.at[1].slots.num_rows, at);
  // Nobody writes to a block that has not begun.
  sum_slots<T, kVec, kSlot>(phases.at[0], blockIdx.x, at, from, h, [&] {
    prefetch_slots(phases.at[1]);
    wait_cluster();
  });
  arrive_cluster();
  sum_slots<T, kVec, kSlot>(phases.at[1], blockIdx.x, at, h, to, [] { wait_cluster(); });
  arrive_cluster();  // nobody ends while others read its memory
  wait_cluster();
}

}  // namespace
}  // namespace jax_gnn::designs
