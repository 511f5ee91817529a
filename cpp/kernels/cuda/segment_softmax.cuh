// Softmax over runs of equal ids, in one pass over device memory and without row pointers.
//
// A block takes an even part of the entries and up to 32 features, and brings them into shared
// memory tile by tile. There a thread has one feature of a chunk of consecutive entries in its
// registers. Totals (the maximum, then the sum) of runs that lie within a chunk need no one else;
// those of runs that span chunks are scanned over the teams of a warp and then over the warps. What
// belongs to runs that end in the tile is written at once. Entries of a run that began in an
// earlier tile of the block are read again, out of L2, when the run ends. Runs that span blocks are
// left to a second launch: the first leaves a record of each block's part of them in the workspace.
//
// Everything is combined in an order that depends on shapes and ids only. Threads of a warp, and
// of a block where it synchronises, take the same branches.
//
// Needs a workspace row of workspace_bytes for each block of entries, and spanning_runs_kernel
// after runs_kernel where there are several: see segment_softmax.cu. Promises that each entry is
// written once, padding with zeros.
#pragma once

#include <cuda_pipeline.h>

#include "basics.cuh"
#include "pack.cuh"

namespace jax_gnn::cuda {
namespace {

using Index = int32_t;

// Entries of a chunk; odd, so that the chunks of a warp lie in different banks.
constexpr int kChunk = 15;
constexpr unsigned kWholeChunk = (1u << kChunk) - 1;
constexpr int kUnroll = 4;  // ids in flight in each thread
// Threads of a block: their tiles fill 48 KiB of shared memory at most.
template <typename Acc>
constexpr int kThreads = 1024 / sizeof(Acc);
template <typename Acc>
constexpr int kResident = sizeof(Acc) == 8 ? 4 : 3;  // blocks on a multiprocessor; bounds registers

template <typename Acc>
constexpr Acc kInfinity = std::numeric_limits<Acc>::infinity();

// Shape of both launches, which the host chooses.
struct Cut {
  int lane_bits;   // log2 of the lanes of a team: one lane a feature
  int features;    // of a block
  unsigned tiles;  // of the features
  int word_bits;   // log2 of the 16-byte words of an entry's features, where there are many tiles
  bool words;      // copies may use them
  int64_t blocks;  // that share the entries
  int entries;     // of a tile
  int64_t even, rest;  // entries of a block; how many of the first blocks have one more
};

// Inputs are x for a softmax, y and t for its derivative.
template <bool kTangent, typename T>
struct Problem {
  static constexpr int kInputs = kTangent ? 2 : 1;
  const Index* rows;
  std::make_unsigned_t<Index> row_bound;
  int64_t count, width;
  const T* in[kInputs];
  T* out;
  unsigned char* workspace;
  Cut cut;
};

// Record of a block for the second launch: [begin, head_end) belongs to a run that began in a
// block before, [tail_begin, end) to one that began here and goes on. `through`: the head goes on
// too.
struct Header {
  int64_t head_end, tail_begin, through;
};
enum Part { kHead, kTail };

constexpr int64_t kHeaderBytes = 64;
static_assert(sizeof(Header) <= kHeaderBytes, "");

// The place of a thread.
template <typename Acc>
struct Place {
  __device__ Place(const Cut& cut, int64_t width, unsigned index)
      : bits(cut.lane_bits),
        lanes(1 << bits),
        lane(threadIdx.x & (lanes - 1)),
        chunk(threadIdx.x >> bits),
        chunks(kThreads<Acc> >> bits),
        block(index / cut.tiles),
        column(static_cast<int64_t>(index % cut.tiles) * cut.features),
        features(static_cast<int>(min(width - column, int64_t{cut.features}))),
        begin(block * cut.even + min(block, cut.rest)),
        end(begin + cut.even + (block < cut.rest)) {}
  int bits, lanes, lane;  // of the team; the lane's feature
  int chunk, chunks;      // of the thread; of the block
  int64_t block, column;  // first feature of the block
  int features;           // of the block
  int64_t begin, end;     // of the block's entries
};

template <int kInputs, typename T, typename Acc>
struct Shared {
  static constexpr int kCapacity = kThreads<Acc> * kChunk;
  static constexpr int kWarps = kThreads<Acc> / 32;
  alignas(16) T tiles[kInputs][kCapacity + 16 / sizeof(T)];
  unsigned starts[kCapacity / 32 + 2];  // bit e: entry e of the tile begins a run
  unsigned valid[kCapacity / 32 + 2];   // bit e: it is there, and no padding
  unsigned chunks[kWarps];              // lanes of the warp that are first of a chunk with a start
  Acc warp_totals[kThreads<Acc>];       // of the last run of a warp
  Acc totals[2][kThreads<Acc> + 32];    // of the run that ends in a chunk; last: that goes on
  int first, last;                      // start of a run in the tile, -1: none
  int end_thread;
  Header header;
};

// ---- Copies

// Offset of a tile in its buffer: words are aligned in the buffer as in the array.
template <typename T>
__device__ __forceinline__ int tile_skip(const Cut& cut, int64_t first) {
  return cut.tiles == 1 ? static_cast<int>(first) & (16 / sizeof(T) - 1) : 0;
}

// Calls word(a, b) or element(a, b), which copy one of them between offset a of a tile and offset b
// of an array, for `entries` entries; `first` is the offset of the first one's first feature.
template <typename T, typename Word, typename Element>
__device__ __forceinline__ void for_each_word(const Cut& cut, int features, int64_t width,
                                              int64_t first, int entries, const Word& word,
                                              const Element& element) {
  constexpr int kWord = 16 / sizeof(T);
  const bool flat = cut.tiles == 1;  // one contiguous stretch, which may begin within a word
  const int skip = tile_skip<T>(cut, first);
  const int length = flat ? entries * features : features;
  const int bits = flat ? 31 : cut.word_bits;
  const int count = flat ? (skip + length + kWord - 1) / kWord : entries << bits;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int entry = i >> bits;
    const int begin = (i & ((1u << bits) - 1)) * kWord - skip;
    const int at = entry * features + begin;
    const int64_t from = first + entry * width + begin;
    if (cut.words && begin >= 0 && begin + kWord <= length) {
      word(at, from);
    } else {
      for (int j = 0; j < kWord; ++j)
        if (begin + j >= 0 && begin + j < length) element(at + j, from + j);
    }
  }
}

// Offset of the thread's first entry in the buffer; the others follow a row of features apart.
template <bool kTangent, typename T, typename Acc>
__device__ __forceinline__ int tile_offset(const Problem<kTangent, T>& problem,
                                           const Place<Acc>& place, int64_t at) {
  return tile_skip<T>(problem.cut, at * problem.width + place.column) +
         place.chunk * kChunk * place.features + place.lane;
}

template <bool kTangent, typename T, typename Acc, typename Shared>
__device__ __forceinline__ void load_tiles(const Problem<kTangent, T>& problem,
                                           const Place<Acc>& place, int64_t at, int entries,
                                           Shared& shared) {
  const int64_t first = at * problem.width + place.column;
  const int skip = tile_skip<T>(problem.cut, first);
#pragma unroll
  for (int k = 0; k < problem.kInputs; ++k) {
    T* tile = shared.tiles[k] + skip;
    const T* in = problem.in[k];
    for_each_word<T>(
        problem.cut, place.features, problem.width, first, entries,
        [=](int to, int64_t from) { __pipeline_memcpy_async(tile + to, in + from, 16); },
        [=](int to, int64_t from) { tile[to] = in[from]; });
  }
  __pipeline_commit();
}

// Writes entries [begin, end) of the tile.
template <bool kTangent, typename T, typename Acc, typename Shared>
__device__ __forceinline__ void store_tile(const Problem<kTangent, T>& problem,
                                           const Place<Acc>& place, int64_t at, int begin, int end,
                                           const Shared& shared) {
  const int64_t first = at * problem.width + place.column;
  const T* tile = shared.tiles[0] + tile_skip<T>(problem.cut, first) + begin * place.features;
  T* out = problem.out;
  for_each_word<T>(
      problem.cut, place.features, problem.width, first + begin * problem.width, end - begin,
      [=](int from, int64_t to) {
        *reinterpret_cast<uint4*>(out + to) = *reinterpret_cast<const uint4*>(tile + from);
      },
      [=](int from, int64_t to) { out[to] = tile[from]; });
}

// ---- Runs of a tile

template <bool kTangent, typename T, typename Acc, typename Shared>
__device__ __forceinline__ void mark_runs(const Problem<kTangent, T>& problem,
                                          const Place<Acc>& place, int64_t at, int entries,
                                          Shared& shared) {
  const int end = (place.chunks * kChunk / 32 + 2) * 32;
  for (int base = threadIdx.x; base < end; base += kUnroll * kThreads<Acc>) {
    Index ids[kUnroll], before[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t e = at + base + i * kThreads<Acc>;
      ids[i] = load_or(e < problem.count, problem.rows + e, Index(0));
      before[i] = load_or(e > 0 && e < problem.count, problem.rows + e - 1, Index(0));
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int bit = base + i * kThreads<Acc>;
      const int64_t e = at + bit;
      const bool start = e == 0 || e == problem.count || ids[i] != before[i];
      const unsigned starts = __ballot_sync(kWholeWarp, bit <= entries && start);
      const unsigned valid =
          __ballot_sync(kWholeWarp, bit < entries && is_id(ids[i], problem.row_bound));
      if (threadIdx.x % 32 == 0 && bit < end) {
        shared.starts[bit / 32] = starts;
        shared.valid[bit / 32] = valid;
      }
    }
  }
  if (threadIdx.x == 0) shared.first = shared.last = -1;
}

// How a chunk lies in the runs of its tile.
struct Chunk {
  unsigned starts, valid;  // bit i: of entry i of the chunk
  int first;               // start in the chunk, -1: none
  int reach;               // lanes back to the last chunk of the warp with a start, or to the first
  bool open_before;        // no chunk of the warp before this one has a start
  int ends;                // where `totals` has the total of the run that the chunk ends within

  template <typename Acc, typename Shared>
  __device__ __forceinline__ Chunk(const Place<Acc>& place, Shared& shared) {
    const int bit = place.chunk * kChunk;
    starts = bits_from(shared.starts, bit);
    valid = place.lane < place.features ? bits_from(shared.valid, bit) : 0;
    first = __ffs(starts) - 1;
    const int warp = threadIdx.x / 32, base = threadIdx.x % 32 - place.lane;
    const unsigned chunks = __ballot_sync(kWholeWarp, place.lane == 0 && starts != 0);
    if (threadIdx.x % 32 == 0) shared.chunks[warp] = chunks;
    __syncthreads();
    const unsigned upto = chunks & (0xffffffffu >> (31 - base));
    const unsigned before = upto & ~(1u << base), after = chunks & ~(0xffffffffu >> (31 - base));
    reach = upto ? base - (31 - __clz(upto)) : base;
    open_before = before == 0;
    bool is_first = before == 0, is_last = after == 0;
    ends = after ? warp * 32 + __ffs(after) - 1 : -1;
#pragma unroll
    for (int other = 0; other < shared.kWarps; ++other) {
      const unsigned chunks = shared.chunks[other];
      if (chunks == 0) continue;
      if (other < warp) is_first = false;
      if (other > warp) is_last = false;
      if (other > warp && ends < 0) ends = other * 32 + __ffs(chunks) - 1;
    }
    ends = (ends < 0 ? kThreads<Acc> : ends) + place.lane;
    if (place.lane == 0 && starts != 0) {
      if (is_first) shared.first = bit + first;
      if (is_last) shared.last = bit + 31 - __clz(starts);
    }
  }

  __device__ __forceinline__ bool starts_at(int i) const { return starts >> i & 1; }
  __device__ __forceinline__ bool valid_at(int i) const { return valid >> i & 1; }

 private:
  static __device__ __forceinline__ unsigned bits_from(const unsigned* words, int bit) {
    return __funnelshift_r(words[bit / 32], words[bit / 32 + 1], bit % 32) & kWholeChunk;
  }
};

// The monoids that totals are taken in.
template <typename Acc>
struct Max {
  static __device__ __forceinline__ Acc identity() { return -kInfinity<Acc>; }
  __device__ __forceinline__ Acc operator()(Acc a, Acc b) const { return max(a, b); }
};
template <typename Acc>
struct Sum {
  static __device__ __forceinline__ Acc identity() { return 0; }
  __device__ __forceinline__ Acc operator()(Acc a, Acc b) const { return a + b; }
};

// Calls use(i, total of the run of entry i) for the entries of a chunk, last one first. `carry` is
// the total of the entries before the tile of a run that goes on in it. Called by the whole block.
// Leaves in `totals` the totals of the runs that span chunks.
template <typename Op, typename Acc, typename Shared, typename Use>
__device__ __forceinline__ void for_each_total(Op op, const Place<Acc>& place, const Chunk& chunk,
                                               const Acc (&values)[kChunk], Acc carry, Acc* totals,
                                               Shared& shared, const Use& use) {
  Acc running[kChunk];  // total of an entry's run, from its start or that of the chunk
  Acc total = place.chunk == 0 ? carry : op.identity();
  Acc head = op.identity();
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (i == chunk.first) head = total;
    total = chunk.starts_at(i) ? values[i] : op(total, values[i]);
    running[i] = total;
  }

  const int warp = threadIdx.x / 32, base = threadIdx.x % 32 - place.lane;
#pragma unroll 1
  for (int offset = place.lanes; offset < 32; offset *= 2) {
    const Acc before = __shfl_up_sync(kWholeWarp, total, offset);
    if (offset <= chunk.reach) total = op(before, total);
  }
  Acc before = __shfl_up_sync(kWholeWarp, total, place.lanes);
  if (base == 0) before = op.identity();
  if (base + place.lanes == 32) shared.warp_totals[warp * place.lanes + place.lane] = total;
  __syncthreads();
  if (chunk.open_before) {
    Acc warps = op.identity();
    for (int other = 0; other < warp; ++other) {
      const Acc warp_total = shared.warp_totals[other * place.lanes + place.lane];
      warps = shared.chunks[other] ? warp_total : op(warps, warp_total);
    }
    before = op(warps, before);
  }
  head = op(before, head);  // total of the run that ends in the chunk
  if (chunk.starts) totals[threadIdx.x] = head;
  if (place.chunk == place.chunks - 1)
    totals[kThreads<Acc> + place.lane] =
        chunk.starts ? running[kChunk - 1] : op(before, running[kChunk - 1]);
  __syncthreads();

  total = totals[chunk.ends];
#pragma unroll
  for (int i = kChunk - 1; i >= 0; --i) {
    use(i, total);
    if (i > 0 && chunk.starts_at(i)) total = i == chunk.first ? head : running[i - 1];
  }
}

// ---- Totals

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float reciprocal(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double reciprocal(double x) { return 1.0 / x; }

// exp(x - maximum), 0 for -inf even if that is the maximum.
template <typename Acc>
__device__ __forceinline__ Acc shifted_exp(Acc x, Acc maximum) {
  return exponential(x - (maximum == -kInfinity<Acc> ? Acc(0) : maximum));
}

// Totals of one feature of a run: for a softmax of x the maximum and, relative to it, the sum of
// exponentials; for its derivative the sum of y * t.
template <bool kTangent, typename Acc>
struct Totals {
  static constexpr int kCount = kTangent ? 1 : 2;
  Acc at[kCount];

  static __device__ __forceinline__ Totals none() {
    if constexpr (kTangent) {
      return {{Acc(0)}};
    } else {
      return {{-kInfinity<Acc>, Acc(0)}};
    }
  }

  // The result of an entry of the run.
  template <typename T>
  __device__ __forceinline__ Acc finish(const T (&in)[kTangent ? 2 : 1]) const {
    if constexpr (kTangent) {
      return widen(in[0]) * (widen(in[1]) - at[0]);
    } else {
      return shifted_exp<Acc>(widen(in[0]), at[0]) * reciprocal(at[1]);
    }
  }
};

// ---- Launches

template <typename Acc, typename Totals, typename Shared>
__device__ __forceinline__ Totals read_totals(const Shared& shared, int index) {
  Totals totals;
#pragma unroll
  for (int k = 0; k < Totals::kCount; ++k) totals.at[k] = shared.totals[k][index];
  return totals;
}

// The row of the workspace that block `block` writes: its header and two records of totals.
template <bool kTangent, typename Acc>
struct Row {
  using Run = Totals<kTangent, Acc>;
  template <typename Problem>
  __device__ __forceinline__ Row(const Problem& problem, int64_t block)
      : width(problem.width), record_bytes((width * Run::kCount * sizeof(Acc) + 15) / 16 * 16) {
    bytes = problem.workspace + block * (kHeaderBytes + 2 * record_bytes);
  }
  __device__ __forceinline__ Header& header() const { return *reinterpret_cast<Header*>(bytes); }
  __device__ __forceinline__ Acc& total(Part part, int k, int64_t feature) const {
    return reinterpret_cast<Acc*>(bytes + kHeaderBytes + part * record_bytes)[k * width + feature];
  }
  template <typename Place>
  __device__ __forceinline__ void record(Part part, const Place& place, const Run& run) const {
    if (place.chunk == 0 && place.lane < place.features)
#pragma unroll
      for (int k = 0; k < Run::kCount; ++k) total(part, k, place.column + place.lane) = run.at[k];
  }

  int64_t width, record_bytes;
  unsigned char* bytes;
};

// Writes entries [from, to) of one run, whose totals are known. Called by the whole block.
template <bool kTangent, typename T, typename Acc, typename Shared>
__device__ __forceinline__ void finish_run(const Problem<kTangent, T>& problem,
                                           const Place<Acc>& place, int64_t from, int64_t to,
                                           const Totals<kTangent, Acc>& totals, Shared& shared) {
  const bool valid = is_id(problem.rows[from], problem.row_bound);
  const int step = place.chunks * kChunk;
  for (int64_t at = from; at < to; at += step) {
    const int entries = static_cast<int>(min(int64_t{step}, to - at));
    __syncthreads();  // the tiles are free
    load_tiles(problem, place, at, entries, shared);
    __pipeline_wait_prior(0);
    __syncthreads();
    if (place.lane < place.features) {
      const int offset = tile_offset(problem, place, at);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        T in[Problem<kTangent, T>::kInputs];
#pragma unroll
        for (int k = 0; k < problem.kInputs; ++k)
          in[k] = shared.tiles[k][offset + i * place.features];
        narrow(valid ? totals.finish(in) : Acc(0), shared.tiles[0][offset + i * place.features]);
      }
    }
    __syncthreads();
    store_tile(problem, place, at, 0, entries, shared);
  }
}

// Puts results in place of the entries of a tile, those of runs that end in it; leaves in shared
// memory the totals of runs that span chunks. `carry` is that of the run that goes on in the tile.
template <bool kTangent, typename T, typename Acc, typename Shared>
__device__ __forceinline__ void finish_tile(const Problem<kTangent, T>& problem,
                                            const Place<Acc>& place, const Chunk& chunk, int64_t at,
                                            const Totals<kTangent, Acc>& carry, Shared& shared) {
  T* tile = shared.tiles[0] + tile_offset(problem, place, at);
  Acc values[kChunk];
  const auto put = [&](int i, Acc value) {
    if (place.lane < place.features)
      narrow(chunk.valid_at(i) ? value : Acc(0), tile[i * place.features]);
  };
  if constexpr (kTangent) {
    const T* other = shared.tiles[1] + tile_offset(problem, place, at);
    Acc y[kChunk], t[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      y[i] = chunk.valid_at(i) ? widen(tile[i * place.features]) : Acc(0);
      t[i] = chunk.valid_at(i) ? widen(other[i * place.features]) : Acc(0);
      values[i] = y[i] * t[i];
    }
    for_each_total(Sum<Acc>(), place, chunk, values, carry.at[0], shared.totals[0], shared,
                   [&](int i, Acc sum) { put(i, y[i] * (t[i] - sum)); });
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      values[i] = chunk.valid_at(i) ? widen(tile[i * place.features]) : -kInfinity<Acc>;
    Acc maximum = 0;  // of the first run
    for_each_total(Max<Acc>(), place, chunk, values, carry.at[0], shared.totals[0], shared,
                   [&](int i, Acc run_maximum) {
                     values[i] = shifted_exp(values[i], run_maximum);
                     maximum = run_maximum;
                   });
    const Acc sum = carry.at[1] * shifted_exp(carry.at[0], maximum);
    for_each_total(Sum<Acc>(), place, chunk, values, sum, shared.totals[1], shared,
                   [&](int i, Acc run_sum) { put(i, values[i] * reciprocal(run_sum)); });
  }
}

template <bool kTangent, typename T, typename Acc>
__global__ void __launch_bounds__(kThreads<Acc>, kResident<Acc>)
    runs_kernel(const __grid_constant__ Problem<kTangent, T> problem) {
  using Run = Totals<kTangent, Acc>;
  __shared__ Shared<Problem<kTangent, T>::kInputs, T, Acc> shared;
  const Place<Acc> place(problem.cut, problem.width, blockIdx.x);
  const auto leave = [&](Part part, const Run& run) {
    Row<kTangent, Acc>(problem, place.block).record(part, place, run);
  };
  if (threadIdx.x == 0) shared.header = {place.begin, place.end, 0};
  Run carry = Run::none();
  int64_t open = place.begin - 1;  // where the run began that goes on, here or in a block before
  bool continues = false;
  if (problem.cut.blocks > 1) allow_next_launch();  // for the runs that span them
  wait_for_previous_launch();

  for (int64_t at = place.begin; at < place.end; at += problem.cut.entries) {
    const int entries = static_cast<int>(min(int64_t{problem.cut.entries}, place.end - at));
    load_tiles(problem, place, at, entries, shared);
    mark_runs(problem, place, at, entries, shared);
    __pipeline_wait_prior(0);
    __syncthreads();
    const bool continued = !(shared.starts[0] & 1);
    const Chunk chunk(place, shared);

    finish_tile(problem, place, chunk, at, carry, shared);
    __syncthreads();

    const int first = shared.first, last = shared.last;
    if (first >= 0) {
      const bool is_head = continued && open < place.begin;
      store_tile(problem, place, at, is_head ? first : 0, last, shared);
      if (continued) {
        const auto run = read_totals<Acc, Run>(shared, (first / kChunk << place.bits) + place.lane);
        if (is_head) {
          if (threadIdx.x == 0) shared.header.head_end = at + first;
          leave(kHead, run);
        } else {
          finish_run(problem, place, open, at, run, shared);
        }
      }
      open = at + last;
    }
    continues = last < entries;
    carry = continues ? read_totals<Acc, Run>(shared, kThreads<Acc> + place.lane) : Run::none();
    __syncthreads();
  }

  if (continues) leave(open < place.begin ? kHead : kTail, carry);
  if (threadIdx.x == 0 && place.column == 0) {
    Header header = shared.header;
    if (continues && open < place.begin) {
      header.head_end = place.end;
      header.through = 1;
    } else if (continues) {
      header.tail_begin = open;
    }
    Row<kTangent, Acc>(problem, place.block).header() = header;
  }
}

// The nearest block, `from` or beyond it in the given direction, through which its run does not go.
// Called by the whole block.
template <bool kTangent, typename Acc, typename Problem>
__device__ __forceinline__ int64_t nearest_end(const Problem& problem, int64_t from, int direction,
                                               int* end_thread) {
  for (;; from += direction * kThreads<Acc>) {
    if (threadIdx.x == 0) *end_thread = kThreads<Acc>;
    __syncthreads();
    const int64_t block = from + direction * static_cast<int>(threadIdx.x);
    const bool ends = block < 0 || block >= problem.cut.blocks ||
                      !Row<kTangent, Acc>(problem, block).header().through;
    const unsigned lanes = __ballot_sync(kWholeWarp, ends);
    if (lanes && threadIdx.x % 32 == 0)
      atomicMin(end_thread, static_cast<int>(threadIdx.x) + __ffs(lanes) - 1);
    __syncthreads();
    const int nearest = *end_thread;
    __syncthreads();
    if (nearest < kThreads<Acc>) return from + direction * nearest;
  }
}

// The total over all chunks, in every thread. Called by the whole block.
template <typename Op, typename Acc, typename Shared>
__device__ __forceinline__ Acc combine_chunks(Op op, const Place<Acc>& place, Acc total,
                                              Shared& shared) {
  for (int offset = place.lanes; offset < 32; offset *= 2)
    total = op(total, __shfl_xor_sync(kWholeWarp, total, offset));
  if (threadIdx.x % 32 < place.lanes)
    shared.warp_totals[threadIdx.x / 32 * place.lanes + place.lane] = total;
  __syncthreads();
  total = op.identity();
  for (int warp = 0; warp < shared.kWarps; ++warp)
    total = op(total, shared.warp_totals[warp * place.lanes + place.lane]);
  __syncthreads();
  return total;
}

// The runs that span blocks. Two blocks for each of the first launch: one for its first run, one
// for its last.
template <bool kTangent, typename T, typename Acc>
__global__ void __launch_bounds__(kThreads<Acc>)
    spanning_runs_kernel(const __grid_constant__ Problem<kTangent, T> problem) {
  using Run = Totals<kTangent, Acc>;
  __shared__ Shared<Problem<kTangent, T>::kInputs, T, Acc> shared;
  const Place<Acc> place(problem.cut, problem.width, blockIdx.x / 2);
  const Part part = blockIdx.x % 2 == 0 ? kHead : kTail;
  wait_for_previous_launch();

  const Header header = Row<kTangent, Acc>(problem, place.block).header();
  const int64_t from = part == kHead ? place.begin : header.tail_begin;
  const int64_t to = part == kHead ? header.head_end : place.end;
  if (from >= to) return;
  int64_t first = place.block, last = place.block;  // blocks of the run
  if (part == kHead) first = nearest_end<kTangent, Acc>(problem, first - 1, -1, &shared.end_thread);
  if (part == kTail || header.through)
    last = nearest_end<kTangent, Acc>(problem, last + 1, 1, &shared.end_thread);

  const int64_t feature = place.column + place.lane;
  const auto for_each_record = [&](const auto& use) {
    if (place.lane >= place.features) return;
    for (int64_t block = first + place.chunk; block <= last; block += place.chunks) {
      const Row<kTangent, Acc> row(problem, block);
      Run run;
#pragma unroll
      for (int k = 0; k < Run::kCount; ++k)
        run.at[k] = row.total(block == first ? kTail : kHead, k, feature);
      use(run);
    }
  };
  Run total = Run::none();
  if constexpr (kTangent) {
    for_each_record([&](const Run& run) { total.at[0] += run.at[0]; });
    total.at[0] = combine_chunks(Sum<Acc>(), place, total.at[0], shared);
  } else {
    for_each_record([&](const Run& run) { total.at[0] = max(total.at[0], run.at[0]); });
    total.at[0] = combine_chunks(Max<Acc>(), place, total.at[0], shared);
    for_each_record(
        [&](const Run& run) { total.at[1] += run.at[1] * shifted_exp(run.at[0], total.at[0]); });
    total.at[1] = combine_chunks(Sum<Acc>(), place, total.at[1], shared);
  }
  finish_run(problem, place, from, to, total, shared);
}

}  // namespace
}  // namespace jax_gnn::cuda
