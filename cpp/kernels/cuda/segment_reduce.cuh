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

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <type_traits>

#include "launch.cuh"
#include "pack.cuh"
#include "segment_reduce.h"

namespace jax_gnn::cuda {
namespace {

using Index = int32_t;
constexpr int kMaxThreads = 256;  // of a block
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int kLongGap = 256;    // empty rows between two others: left to the whole block
constexpr int kLongGaps = 8;     // of a block, more are left to the teams that see them
constexpr int kRelayEvery = 32;  // blocks, a power of two

// --- What is reduced -----------------------------------------------------------------------------

// An operator works on runs: arrays of kParts accumulators for kVec features.
template <typename Acc, int kVec_>
struct SumOp {
  static constexpr int kVec = kVec_, kParts = kVec, kRows = 1;
  static constexpr bool kCounts = false, kZeroIsNeutral = true;
  static __device__ __forceinline__ Acc neutral(int) { return 0; }
  static __device__ __forceinline__ Acc empty() { return 0; }
  static __device__ __forceinline__ void from(const Acc (&x)[kVec], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) run[i] = x[i];
  }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = before[i] + run[i];
  }
  static __device__ __forceinline__ void finish(const Acc (&run)[kParts], Acc (&x)[kVec]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = run[i];
  }
};

// The last part counts entries.
template <typename Acc, int kVec_>
struct MeanOp {
  static constexpr int kVec = kVec_, kParts = kVec + 1, kRows = 1;
  static constexpr bool kCounts = true, kZeroIsNeutral = false;
  static __device__ __forceinline__ Acc neutral(int) { return 0; }
  static __device__ __forceinline__ Acc empty() { return 0; }
  static __device__ __forceinline__ void from(const Acc (&x)[kVec], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) run[i] = x[i];
    run[kVec] = 1;
  }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = before[i] + run[i];
  }
  static __device__ __forceinline__ void finish(const Acc (&run)[kParts], Acc (&x)[kVec]) {
    const Acc count = run[kVec] > 0 ? run[kVec] : Acc(1);
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = run[i] / count;
  }
};

// NaN wins, as in jax.ops.
template <bool kMax, typename Acc>
__device__ __forceinline__ Acc extremum(Acc a, Acc b) {
  if constexpr (std::is_same_v<Acc, float>) {
    float result;
    if constexpr (kMax)
      asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    else
      asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
  } else {
    const bool first = kMax ? a > b : a < b;
    return first || a != a ? a : b;
  }
}

// What a maximum (or minimum) of nothing is.
template <bool kMax, typename Acc, class Limits = std::numeric_limits<Acc>>
constexpr Acc kLeast = Limits::has_infinity ? (kMax ? -Limits::infinity() : Limits::infinity())
                                            : (kMax ? Limits::lowest() : Limits::max());

template <bool kMax, typename Acc, int kVec_>
struct ExtremumOp : SumOp<Acc, kVec_> {
  using SumOp<Acc, kVec_>::kParts;
  static constexpr bool kZeroIsNeutral = false;
  static __device__ __forceinline__ Acc neutral(int) { return kLeast<kMax, Acc>; }
  static __device__ __forceinline__ Acc empty() { return kLeast<kMax, Acc>; }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = extremum<kMax>(before[i], run[i]);
  }
};

template <typename Acc, int kVec_>
struct ProdOp : SumOp<Acc, kVec_> {
  using SumOp<Acc, kVec_>::kParts;
  static constexpr bool kZeroIsNeutral = false;
  static __device__ __forceinline__ Acc neutral(int) { return 1; }
  static __device__ __forceinline__ Acc empty() { return 1; }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) run[i] = before[i] * run[i];
  }
};

// Maxima, then the sums of exp(x - maximum).
template <typename Acc, int kVec_>
struct LogSumExpOp {
  static constexpr int kVec = kVec_, kParts = 2 * kVec, kRows = 2;
  static constexpr bool kCounts = false, kZeroIsNeutral = false;
  static __device__ __forceinline__ Acc neutral(int part) {
    return part < kVec ? kLeast<true, Acc> : Acc(0);
  }
  static __device__ __forceinline__ Acc empty() { return kLeast<true, Acc>; }
  static __device__ __forceinline__ void from(const Acc (&x)[kVec], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      run[i] = x[i];
      run[kVec + i] = 1;
    }
  }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const Acc top = extremum<true>(before[i], run[i]);
      run[kVec + i] =
          before[kVec + i] * shrink(before[i], top) + run[kVec + i] * shrink(run[i], top);
      run[i] = top;
    }
  }
  static __device__ __forceinline__ void finish(const Acc (&run)[kParts], Acc (&x)[kVec]) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = run[i] + logarithm(run[kVec + i]);
  }

 private:
  // exp(x - top); infinities cancel.
  static __device__ __forceinline__ Acc shrink(Acc x, Acc top) {
    if (x == top) return 1;
    if constexpr (sizeof(Acc) == 4)
      return __expf(x - top);
    else
      return exp(x - top);
  }
  static __device__ __forceinline__ Acc logarithm(Acc x) {
    if constexpr (sizeof(Acc) == 4)
      return logf(x);
    else
      return log(x);
  }
};

// --- What entries bring --------------------------------------------------------------------------

// Where a lane stands in the features.
struct Column {
  int64_t first, head;
  bool active;
};

// The ids of one step of a team, and its weights where they lie beside them.
template <int kSize, typename Acc>
struct Ids {
  int64_t first;  // entry of the team
  int stride;     // from one entry of the team to the next
  int count;      // of the team's entries, at most kSize
  bool full;      // the whole warp has all its entries, and arrays can be read in long words
  Index row[kSize + 1], col[kSize], order[kSize];
  Acc weight[kSize];
};

// Entries [at, at + kSize) of an array in 16-byte words.
template <int kSize, typename T>
__device__ __forceinline__ void load_words(const T* at, T* to) {
  constexpr int kWords = kSize * sizeof(T) / 16;
  uint4 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __ldg(reinterpret_cast<const uint4*>(at) + i);
  memcpy(to, words, sizeof(words));
}

// Entry first + j * stride of an array for each j below `count`, -1 elsewhere.
template <int kSize, typename Acc>
__device__ __forceinline__ void load_each(const Index* from, const Ids<kSize, Acc>& ids,
                                          Index* to) {
#pragma unroll
  for (int j = 0; j < kSize; ++j)
    to[j] = load_or(j < ids.count, from + ids.first + j * ids.stride, Index(-1));
}

// A message loads what a step's entries bring before any of it is used: loads stay in flight
// together. Sizes are those of Segments, cut to 32 bits, and 0 for lanes without features.
struct Sizes {
  unsigned rows, cols, weights;
};

template <typename T>
__device__ __forceinline__ T* row_at(T* from, Index row, unsigned row_bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(from) +
                              static_cast<uint64_t>(static_cast<unsigned>(row)) * row_bytes);
}

template <int kVec, typename T, typename Acc>
__device__ __forceinline__ void unpack(Word<T, kVec> word, Acc (&x)[kVec]) {
  T features[kVec];
  memcpy(features, &word, sizeof(word));
#pragma unroll
  for (int i = 0; i < kVec; ++i) x[i] = widen(features[i]);
}

// The features of row e for entry e.
template <typename T_, typename Acc_, int kVec_>
struct RowMessage {
  using T = T_;
  using Acc = Acc_;
  static constexpr int kVec = kVec_, kUnroll = 8, kMinBlocks = kVec > 4 ? 2 : 3;
  static constexpr bool kGathers = false;
  const T* in;
  int64_t width;

  // What can be read beside the ids.
  __host__ __device__ const Acc* weights() const { return nullptr; }

  struct Loaded {
    Word<T, kVec> words[kUnroll];
    unsigned valid;  // bit j: entry j is there, and what it points at
  };
  __device__ __forceinline__ void load(const Ids<kUnroll, Acc>& ids, const Sizes&, bool, bool whole,
                                       const Column& column, Loaded& loaded) const {
    const T* from = in + ids.first * width + column.first;
    const int64_t stride = ids.stride * width;
    if (ids.full && whole) {
      loaded.valid = (1u << kUnroll) - 1;
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        loaded.words[j] = __ldcs(reinterpret_cast<const Word<T, kVec>*>(from));
        from += stride;
      }
      return;
    }
    const int count = column.active ? ids.count : 0;
    loaded.valid = (1u << ids.count) - 1;
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      loaded.words[j] = {};
      load_if(j < count, reinterpret_cast<const Word<T, kVec>*>(from), loaded.words[j]);
      from += stride;
    }
  }
  __device__ __forceinline__ void value(const Loaded& loaded, int j, Acc (&x)[kVec]) const {
    unpack<kVec, T>(loaded.words[j], x);
  }
};

// Weights of a step's valid entries; 1 where there are none, 0 for padding.
template <typename Acc, int kUnroll>
__device__ __forceinline__ void load_weights(const Acc* weight, int heads,
                                             const Ids<kUnroll, Acc>& ids, bool ordered,
                                             unsigned valid, const Column& column,
                                             Acc (&weights)[kUnroll]) {
  const Acc* from = weight + column.head;
  if (!ordered) from += ids.first * heads;
#pragma unroll
  for (int j = 0; j < kUnroll; ++j) {
    const bool is_valid = valid >> j & 1;
    const Acc* at = from + static_cast<int64_t>(ordered ? ids.order[j] : j * ids.stride) * heads;
    weights[j] = load_or(weight != nullptr && is_valid, at, is_valid ? Acc(1) : Acc(0));
  }
}

// The features of row cols[e] for entry e, times its weight.
template <typename T_, typename Acc_, int kVec_>
struct GatherMessage {
  using T = T_;
  using Acc = Acc_;
  static constexpr int kVec = kVec_, kUnroll = 8, kMinBlocks = 2;
  static constexpr bool kGathers = true;
  const T* in;
  const Acc* weight;
  unsigned row_bytes;
  int heads;

  // What can be read beside the ids.
  __host__ __device__ const Acc* weights() const { return weight; }

  struct Loaded {
    Word<T, kVec> words[kUnroll];
    Acc weights[kUnroll];
    unsigned valid;
  };
  // Called by the whole warp. `beside`: the weights are in ids.
  __device__ __forceinline__ void load(const Ids<kUnroll, Acc>& ids, const Sizes& sizes,
                                       bool ordered, bool beside, const Column& column,
                                       Loaded& loaded) const {
    const T* from = in + column.first;
    bool all_valid = ids.full;
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) all_valid &= static_cast<unsigned>(ids.col[j]) < sizes.cols;
    if (ordered)
#pragma unroll
      for (int j = 0; j < kUnroll; ++j)
        all_valid &= static_cast<unsigned>(ids.order[j]) < sizes.weights;
    if (__all_sync(kWholeWarp, all_valid)) {
      loaded.valid = (1u << kUnroll) - 1;
#pragma unroll
      for (int j = 0; j < kUnroll; ++j)
        loaded.words[j] =
            __ldg(reinterpret_cast<const Word<T, kVec>*>(row_at(from, ids.col[j], row_bytes)));
      if (beside) {
#pragma unroll
        for (int j = 0; j < kUnroll; ++j) loaded.weights[j] = ids.weight[j];
        return;
      }
    } else {
      loaded.valid = 0;
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        bool valid = static_cast<unsigned>(ids.col[j]) < sizes.cols;
        if (ordered) valid = valid && static_cast<unsigned>(ids.order[j]) < sizes.weights;
        loaded.valid |= static_cast<unsigned>(valid) << j;
        loaded.words[j] = {};
        load_if(valid, reinterpret_cast<const Word<T, kVec>*>(row_at(from, ids.col[j], row_bytes)),
                loaded.words[j]);
      }
    }
    load_weights(weight, heads, ids, ordered, loaded.valid, column, loaded.weights);
  }
  __device__ __forceinline__ void value(const Loaded& loaded, int j, Acc (&x)[kVec]) const {
    unpack<kVec, T>(loaded.words[j], x);
    if constexpr (!std::is_integral_v<Acc>)
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[i] *= loaded.weights[j];
  }
};

// What matches, see Select.
template <typename T_, typename Acc_, int kVec_>
struct SelectMessage {
  using T = T_;
  using Acc = Acc_;
  static constexpr int kVec = kVec_, kUnroll = 4, kMinBlocks = 2;
  static constexpr bool kGathers = true;
  Select<T, Acc> select;
  unsigned row_bytes;
  int heads;

  // What can be read beside the ids.
  __host__ __device__ const Acc* weights() const { return nullptr; }

  struct Loaded {
    Word<T, kVec> row_keys[kUnroll], col_keys[kUnroll], values[kUnroll];
    Acc weights[kUnroll], factors[kUnroll];
    unsigned valid;
  };
  __device__ __forceinline__ void load(const Ids<kUnroll, Acc>& ids, const Sizes& sizes,
                                       bool ordered, bool, const Column& column,
                                       Loaded& loaded) const {
    loaded.valid = 0;
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      bool valid = static_cast<unsigned>(ids.row[j]) < sizes.rows &&
                   static_cast<unsigned>(ids.col[j]) < sizes.cols;
      if (ordered) valid = valid && static_cast<unsigned>(ids.order[j]) < sizes.weights;
      loaded.valid |= static_cast<unsigned>(valid) << j;
      const auto load_word = [&](const T* rows, Index row, Word<T, kVec>& word) {
        word = {};
        load_if(valid && rows != nullptr,
                reinterpret_cast<const Word<T, kVec>*>(row_at(rows + column.first, row, row_bytes)),
                word);
      };
      load_word(select.row_key, ids.row[j], loaded.row_keys[j]);
      load_word(select.col_key, ids.col[j], loaded.col_keys[j]);
      load_word(select.value, ids.col[j], loaded.values[j]);
    }
    load_weights(select.weight, heads, ids, ordered, loaded.valid, column, loaded.weights);
    load_weights(select.factor, heads, ids, ordered, loaded.valid, column, loaded.factors);
  }
  __device__ __forceinline__ void value(const Loaded& loaded, int j, Acc (&x)[kVec]) const {
    Acc row[kVec], col[kVec], value[kVec];
    unpack<kVec, T>(loaded.row_keys[j], row);
    unpack<kVec, T>(loaded.col_keys[j], col);
    unpack<kVec, T>(loaded.values[j], value);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      (select.weight_on_row ? row : col)[i] *= loaded.weights[j];
      const Acc one = select.value != nullptr ? value[i] : Acc(1);
      x[i] = row[i] == col[i] ? loaded.factors[j] * one : Acc(0);
    }
  }
};

// --- Where the cut falls -------------------------------------------------------------------------

struct Cut {
  int lane_bits;     // log2 of the lanes of a team
  bool aligned;      // ids can be read in long words
  int64_t per_warp;  // entries of a warp, a multiple of a step's
  int64_t width;
};

// --- Runs ----------------------------------------------------------------------------------------

template <class Op, typename Acc>
__device__ __forceinline__ void set_neutral(Acc (&run)[Op::kParts]) {
#pragma unroll
  for (int i = 0; i < Op::kParts; ++i) run[i] = Op::neutral(i);
}

template <class Op, typename Acc>
__device__ __forceinline__ void append(Acc (&run)[Op::kParts], Acc (&after)[Op::kParts]) {
  Op::combine(run, after);
#pragma unroll
  for (int i = 0; i < Op::kParts; ++i) run[i] = after[i];
}

// The result's rows, of which a lane writes one word.
template <typename T, class Op, typename Acc>
struct Output {
  T* out;
  int64_t num_rows, width;

  // Writes the lane's word of a row that is below `limit`; `lane_out` is out + column.first.
  __device__ __forceinline__ void store(T* lane_out, Index row, const Acc (&run)[Op::kParts],
                                        unsigned limit) const {
    Acc x[Op::kVec];
    Op::finish(run, x);
    if (static_cast<unsigned>(row) < limit)
      write(row_at(lane_out, row, static_cast<unsigned>(width) * static_cast<unsigned>(sizeof(T))),
            x);
  }
  __device__ __forceinline__ void store_empty(int64_t row, const Column& column) const {
    if (!column.active) return;
    Acc x[Op::kVec];
#pragma unroll
    for (int i = 0; i < Op::kVec; ++i) x[i] = Op::empty();
    write(out + row * width + column.first, x);
  }

 private:
  static __device__ __forceinline__ void write(T* address, const Acc (&x)[Op::kVec]) {
    Pack<T, Op::kVec> pack;
#pragma unroll
    for (int i = 0; i < Op::kVec; ++i) narrow(x[i], pack.at[i]);
    *reinterpret_cast<Pack<T, Op::kVec>*>(address) = pack;
  }
};

__device__ __forceinline__ bool is_row(int64_t row, int64_t num_rows) {
  return static_cast<uint64_t>(row) < static_cast<uint64_t>(num_rows);
}

template <int kVec>
__device__ __forceinline__ Column column_of(int lane, int lanes, int64_t width, int64_t heads) {
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * lanes + lane) * kVec;
  const bool active = first < width;
  return {first, active && heads > 1 ? first / (width / heads) : 0, active};
}

// --- From block to block -------------------------------------------------------------------------

// The ids on either side of a block's first entry say whether a run crosses into it: those of valid
// rows do. A block is *passed* if the run that crosses into it crosses out of it too. A block that
// is crossed into but not passed *takes* the tail of the block before it, and while those are
// passed, of the blocks before, back to where the run begins. So that this takes few steps, every
// kRelayEvery-th block is a relay: if it is passed, it takes the run's tails since the last relay,
// and hands them on with its own.
//
// Who writes a tail and who takes it follows from these ids alone, whatever they are: a block that
// is crossed out of writes its tail, and exactly one takes it. Blocks wait for earlier blocks only,
// which start earlier (as in CUB's decoupled look-back, of which this is the case without a chain
// of sums). Hence nobody waits for ever.
//
// The workspace may hold anything at first. Hence a tail is made of words of 16 bytes, of which 8
// are the launch's tag, a 64-bit random number: words are read and written at once (PTX: accesses
// of .b128 are atomic), so whoever finds the tag has the other 8 bytes too, and needs no fence. The
// same launch replayed from a graph has the same tag: whoever takes a word removes the tag, and all
// are taken before the launch ends, so that a replay finds none that it has not written itself.
template <class Op, typename Acc>
struct Tails {
  static constexpr int kWords = (Op::kParts * static_cast<int>(sizeof(Acc)) + 7) / 8;
  static constexpr int kBatch = kWords < 4 ? 4 / kWords : 1;  // tails that are waited for at once
  static_assert(kWords * 16 <= 4 * static_cast<int>(sizeof(Acc)) * Op::kVec, "workspace_bytes");

  unsigned char* base;  // [block][word][lane of all tiles]
  uint64_t tag;

  __device__ __forceinline__ void put(int64_t block, const Column& column, int64_t width,
                                      const Acc (&run)[Op::kParts]) const {
    if (!column.active) return;
    uint64_t words[kWords] = {};
    memcpy(words, run, sizeof(run));
#pragma unroll
    for (int i = 0; i < kWords; ++i) write(word(block, i, column, width), words[i], tag);
  }

  // Appends the tails of blocks block_of(i) to the run, first <= i < last, in order.
  template <typename BlockOf>
  __device__ __forceinline__ void take(int first, int last, const BlockOf& block_of,
                                       const Column& column, int64_t width,
                                       Acc (&run)[Op::kParts]) const {
    if (!column.active) return;
#pragma unroll 1
    for (int at = first; at < last; at += kBatch) {
      uint64_t words[kBatch][kWords];
      bool complete;
      do {
        complete = true;
#pragma unroll
        for (int j = 0; j < kBatch; ++j)
#pragma unroll
          for (int i = 0; i < kWords; ++i)
            if (at + j < last)
              complete &= read(word(block_of(at + j), i, column, width), words[j][i]);
      } while (!complete);
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (at + j < last) {
#pragma unroll
          for (int i = 0; i < kWords; ++i) write(word(block_of(at + j), i, column, width), 0, ~tag);
          Acc part[Op::kParts];
          memcpy(part, words[j], sizeof(part));
          append<Op>(run, part);
        }
    }
  }

 private:
  __device__ __forceinline__ unsigned char* word(int64_t block, int i, const Column& column,
                                                 int64_t width) const {
    return base + 16 * ((block * kWords + i) * (width / Op::kVec) + column.first / Op::kVec);
  }
  static __device__ __forceinline__ void write(unsigned char* to, uint64_t value, uint64_t tag) {
    asm volatile("{.reg .b128 w; mov.b128 w, {%1, %2}; st.relaxed.gpu.global.b128 [%0], w;}"
                 :
                 : "l"(to), "l"(value), "l"(tag)
                 : "memory");
  }
  __device__ __forceinline__ bool read(const unsigned char* from, uint64_t& value) const {
    uint64_t found;
    asm volatile("{.reg .b128 w; ld.relaxed.gpu.global.b128 w, [%2]; mov.b128 {%0, %1}, w;}"
                 : "=l"(value), "=l"(found)
                 : "l"(from)
                 : "memory");
    return found == tag;
  }
};

// A tag that no other launch has.
uint64_t next_tag() {
  static std::atomic<uint64_t> launches{[] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }()};
  uint64_t x = launches.fetch_add(0x9e3779b97f4a7c15);  // splitmix64
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// --- Empty rows at either end --------------------------------------------------------------------

// The entry farthest from `from`, towards either end, up to which all are valid, if beyond it none
// is. Called by whole warps.
__device__ __forceinline__ int64_t last_valid(const Segments<Index>& segments, int64_t from,
                                              bool forward) {
  const int direction = forward ? 1 : -1;
  int64_t valid = 0, invalid = forward ? segments.count - from : from + 1;  // distances
  while (invalid - valid > 1) {
    const int64_t step = ceil_div(invalid - valid, 32), probe = valid + step * (threadIdx.x % 32);
    const unsigned beyond = __ballot_sync(
        kWholeWarp,
        probe >= invalid || !is_row(segments.rows[from + direction * probe], segments.num_rows));
    const int top = beyond != 0 ? __ffs(beyond) - 2 : 31;
    valid += step * top;
    invalid = min(invalid, valid + step);
  }
  return from + direction * valid;
}

struct Range {
  int64_t first, last;
};

// The first and the last row that have entries, if there are any. Called by whole blocks.
__device__ __noinline__ Range rows_with_entries(Segments<Index> segments) {
  __shared__ int64_t found;
  const Index* rows = segments.rows;
  int64_t some = is_row(rows[0], segments.num_rows) ? 0 : segments.count - 1;
  if (!is_row(rows[some], segments.num_rows)) {  // padding at both ends: where is anything else?
    bool any = false;
    for (int64_t base = threadIdx.x; !any && base - threadIdx.x < segments.count;
         base += 8 * blockDim.x) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int64_t at = min(base + i * blockDim.x, segments.count - 1);
        if (is_row(rows[at], segments.num_rows)) {
          any = true;
          found = at;  // any of them will do
        }
      }
      any = __syncthreads_or(any);
    }
    if (!any) return {segments.num_rows, segments.num_rows};
    some = found;
  }
  return {rows[last_valid(segments, some, false)], rows[last_valid(segments, some, true)]};
}

// --- The kernels ---------------------------------------------------------------------------------

template <class Message, class Op, bool kParallel>
__global__ void __launch_bounds__(kMaxThreads, Message::kMinBlocks)
    reduce_kernel(Segments<Index> segments, Message message, Cut cut,
                  Output<typename Message::T, Op, typename Message::Acc> output, int64_t heads,
                  bool fills, Tails<Op, typename Message::Acc> tails) {
  using Acc = typename Message::Acc;
  constexpr int kVec = Op::kVec, kParts = Op::kParts, kUnroll = Message::kUnroll;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
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
  Acc* shared_heads = reinterpret_cast<Acc*>(shared_bytes);
  Acc* shared_tails = shared_heads + warps * kParts * lanes;
  if (threadIdx.x == 0) num_long_gaps = 0;
  allow_next_launch();
  wait_for_previous_launch();
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
  asm volatile("" : "+l"(lane_out));  // or it is computed anew for every store

  bool beside = false;  // weights are read with the ids
  if constexpr (Message::kGathers)
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
    if constexpr (Message::kGathers)
      if (segments.cols == nullptr)
#pragma unroll
        for (int j = 0; j < kUnroll; ++j)
          ids.col[j] = j < ids.count ? static_cast<Index>(ids.first + j * ids.stride) : -1;
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
  for (int64_t base = begin; base < end; base += teams * kUnroll) {
    if constexpr (!Message::kGathers) load_step(base, coming);
    Ids<kUnroll, Acc> ids = coming;
    typename Message::Loaded loaded;
    message.load(ids, sizes, segments.order != nullptr, Message::kGathers ? beside : whole, column,
                 loaded);
    // The next step's ids arrive while this step's features do.
    if constexpr (Message::kGathers)
      if (base + teams * kUnroll < end) load_step(base + teams * kUnroll, coming);
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
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      Acc x[kVec], one[kParts];
      message.value(loaded, j, x);
      Op::from(x, one);
      if (!Op::kZeroIsNeutral && !(loaded.valid >> j & 1)) set_neutral<Op>(one);
      append<Op>(run, one);
      if (ids.row[j] != after[j]) {
        output.store(lane_out, ids.row[j], run, has_end ? sizes.rows : 0);
#pragma unroll
        for (int i = 0; i < kParts; ++i) head[i] = has_end ? head[i] : run[i];
        head_row = has_end ? head_row : ids.row[j];
        has_end = true;
        set_neutral<Op>(run);
        if (after[j] != ids.row[j] + 1 || ids.row[j] < 0) gaps |= 1u << j;
      }
      if constexpr (kParallel) {
        __syncwarp();
        carry_on(has_end, head_row, head, run);
        has_end = false;
        set_neutral<Op>(run);
      }
    }
    if constexpr (!kParallel) {
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
  int chain = 1;  // blocks before this one that are the run's
  if (many) {
    const int most = relays ? kRelayEvery - 1 : block;
    for (bool begins = false; !begins && chain < most;) {
      bool passed_each[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int other = block - chain - static_cast<int>(threadIdx.x % 32) - 32 * i;
        const Index* at = rows + max(other, 1) * per_block;
        passed_each[i] = other > 0 && at[-1] == row && at[0] == row;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (!begins) {
          const unsigned stops = __ballot_sync(kWholeWarp, !passed_each[i]);
          begins = stops != 0;
          chain += begins ? __ffs(stops) - 1 : 32;
        }
    }
    chain = min(chain, most);
  }
  // Relays, if there are any between, then what no relay has taken.
  const int run_begin = block - chain;
  const int first_relay = run_begin | (kRelayEvery - 1);
  const int last_relay = (block & -kRelayEvery) - 1;
  const int num_relays = (last_relay - first_relay + kRelayEvery) / kRelayEvery;
  const int rest = max(run_begin, last_relay + 1);
  const int num_tails = num_relays + block - rest;
  // Teams take equal parts, the first that farthest back.
  Acc run[kParts];
  set_neutral<Op>(run);
  const int share = many ? (num_tails + block_teams - 1) / block_teams : 1;
  tails.take(
      block_team * share, min((block_team + 1) * share, num_tails),
      [&](int i) { return i < num_relays ? first_relay + i * kRelayEvery : rest + i - num_relays; },
      column, cut.width, run);
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

// Makes all rows empty.
template <class Op, typename T, typename Acc>
__global__ void fill_kernel(Output<T, Op, Acc> output) {
  allow_next_launch();
  wait_for_previous_launch();
  const int64_t size = output.num_rows * output.width;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x)
    narrow(Op::empty(), output.out[i]);
}

// --- The host's side -----------------------------------------------------------------------------

// Parallel reduction is for narrow rows that lie one behind another.
template <class Message, class Op>
constexpr bool has_parallel =
    !Message::kGathers && sizeof(typename Message::T) <= 4 &&
    !std::is_integral_v<typename Message::T> && Op::kParts <= Op::kVec + 1;

template <class Op, class Message>
cudaError_t launch_reduce(cudaStream_t stream, const Schedule& schedule,
                          const Segments<Index>& segments, const Message& message,
                          Features features, typename Message::T* out, void* workspace) {
  using Acc = typename Message::Acc;
  using T = typename Message::T;
  constexpr int kVec = Op::kVec;
  const Output<T, Op, Acc> output = {out, segments.num_rows, features.width};
  // Where most rows are empty, filling them is most of the work: for all threads alike, beforehand.
  const bool fills = segments.num_rows <= 2 * segments.count;
  if (!fills) {
    const int64_t blocks =
        std::min<int64_t>(ceil_div(segments.num_rows * features.width, 1024), 2048);
    const cudaError_t error = launch(stream, {dim3(static_cast<unsigned>(blocks)), 256, 0},
                                     fill_kernel<Op, T, Acc>, output);
    if (error != cudaSuccess || segments.count == 0) return error;
  }
  Cut cut;
  cut.width = features.width;
  cut.lane_bits = 0;
  while (2 << cut.lane_bits <= std::min(schedule.lanes, 32) &&
         (int64_t{kVec} << cut.lane_bits) < features.width)
    ++cut.lane_bits;
  const int lanes = 1 << cut.lane_bits,
            threads = std::clamp(schedule.threads / 32 * 32, 32, kMaxThreads);
  const int64_t tiles = ceil_div(features.width, int64_t{lanes} * kVec);
  const int64_t step = 32 / lanes * Message::kUnroll;
  const int64_t warps = schedule.blocks * (threads / 32);
  cut.per_warp = ceil_div(ceil_div(segments.count, warps), step) * step;
  const int64_t blocks = ceil_div(segments.count, cut.per_warp * (threads / 32));
  cut.aligned = aligned(segments.rows, 16) && aligned(segments.cols, 16) &&
                aligned(segments.order, 16) && aligned(message.weights(), 16);
  if (tiles > kMaxGridY || blocks > kMaxGridX || cut.per_warp > 0x7fffffff)
    return cudaErrorInvalidConfiguration;
  const Tails<Op, Acc> tails = {static_cast<unsigned char*>(workspace), next_tag()};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  const size_t warp_bytes = static_cast<size_t>(lanes) * Op::kParts * sizeof(Acc);
  auto kernel = reduce_kernel<Message, Op, false>;
  if constexpr (has_parallel<Message, Op>)
    if (schedule.parallel) kernel = reduce_kernel<Message, Op, true>;
  return launch(stream, {grid, threads, threads / 32 * 2 * warp_bytes}, kernel, segments, message,
                cut, output, features.heads, fills, tails);
}

template <typename T>
unsigned row_bytes_of(Features features) {
  return static_cast<unsigned>(features.width * sizeof(T));
}

// Kernels keep a row's bytes in 32 bits.
template <typename T>
bool addressable(Features features) {
  return features.width <= static_cast<int64_t>(0xffffffffu / sizeof(T));
}

// Whether rows can be moved in words of kVec features, none of which spans two heads.
template <int kVec, typename T>
bool fits(Features features, std::initializer_list<const T*> arrays) {
  if (features.width / features.heads % kVec != 0) return false;
  return std::all_of(arrays.begin(), arrays.end(),
                     [](const T* array) { return aligned(array, kVec * sizeof(T)); });
}

}  // namespace

template <typename T, typename Acc>
cudaError_t segment_reduce(cudaStream_t stream, const Schedule& schedule,
                           const Segments<Index>& entries, Reduce reduce, const T* in,
                           const Acc* weight, Features features, T* out, void* workspace) {
  if (entries.num_rows <= 0 || features.width <= 0) return cudaSuccess;
  Segments<Index> segments = entries;
  if (weight == nullptr) segments.order = nullptr;
  if (!addressable<T>(features)) return cudaErrorInvalidValue;
  const int heads = static_cast<int>(features.heads);
  const auto with_vec = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    const auto run = [&](auto op) {
      const auto with_message = [&](const auto& message) {
        return launch_reduce<decltype(op)>(stream, schedule, segments, message, features, out,
                                           workspace);
      };
      if (segments.cols == nullptr && weight == nullptr)
        return with_message(RowMessage<T, Acc, kVec>{in, features.width});
      return with_message(
          GatherMessage<T, Acc, kVec>{in, weight, row_bytes_of<T>(features), heads});
    };
    switch (reduce) {
      case Reduce::kSum:
        return run(SumOp<Acc, kVec>{});
      case Reduce::kMax:
        return run(ExtremumOp<true, Acc, kVec>{});
      case Reduce::kMin:
        return run(ExtremumOp<false, Acc, kVec>{});
      case Reduce::kProd:
        return run(ProdOp<Acc, kVec>{});
      case Reduce::kMean:
        if constexpr (!std::is_integral_v<T>) return run(MeanOp<Acc, kVec>{});
        break;
      case Reduce::kLogSumExp:
        if constexpr (!std::is_integral_v<T>) return run(LogSumExpOp<Acc, kVec>{});
        break;
    }
    return cudaErrorInvalidValue;
  };
  constexpr int kWide = 16 / sizeof(T);
  if (fits<kWide, T>(features, {in, out})) return with_vec(std::integral_constant<int, kWide>{});
  return with_vec(std::integral_constant<int, 1>{});
}

template <typename T, typename Acc>
cudaError_t segment_select(cudaStream_t stream, const Schedule& schedule,
                           const Segments<Index>& entries, const Select<T, Acc>& select,
                           Features features, T* out, void* workspace) {
  if (entries.num_rows <= 0 || features.width <= 0) return cudaSuccess;
  Segments<Index> segments = entries;
  if (select.weight == nullptr && select.factor == nullptr) segments.order = nullptr;
  if (!addressable<T>(features)) return cudaErrorInvalidValue;
  const int heads = static_cast<int>(features.heads);
  const auto with_vec = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    const SelectMessage<T, Acc, kVec> message = {select, row_bytes_of<T>(features), heads};
    return launch_reduce<SumOp<Acc, kVec>>(stream, schedule, segments, message, features, out,
                                           workspace);
  };
  constexpr int kWide = 16 / sizeof(T);
  if (fits<kWide, T>(features, {select.row_key, select.col_key, select.value, out}))
    return with_vec(std::integral_constant<int, kWide>{});
  return with_vec(std::integral_constant<int, 1>{});
}

}  // namespace jax_gnn::cuda
