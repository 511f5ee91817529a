// Messages of the entries of a step: their ids, and the features that these point at, scaled.
//
// A message loads all of a step's entries before any is used, so that the loads stay in flight
// together. Where the whole warp has all its entries, and all ids are in range, it does so
// without further checks; else each load is under a condition of its own.
//
// Needs whole warps, ids of a step as segment_walk.cuh loads them, and rows that are aligned to the
// word. Promises that no row of an id out of range is read: such entries bring what changes no
// result.
#pragma once

#include <cuda_pipeline.h>

#include <cstring>
#include <type_traits>

#include "../segments.h"
#include "basics.cuh"
#include "lane_sums.cuh"
#include "pack.cuh"

namespace jax_gnn::cuda {
namespace {

using Index = int32_t;
constexpr int kDotThreads = 128;  // of a block where there are dots, for the shared memory

// The features and the head of a lane.
struct Column {
  int64_t first, head;
  bool active;
};

template <int kVec>
__device__ __forceinline__ Column column_of(int lane, int lanes, int64_t width, int64_t heads) {
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * lanes + lane) * kVec;
  const bool active = first < width;
  return {first, active && heads > 1 ? first / (width / heads) : 0, active};
}

// The ids of one step of a team, and its weights where they lie beside them.
template <int kSize, typename Acc>
struct Ids {
  int64_t first;  // entry of the team
  int count;      // of the team's entries, at most kSize
  bool full;      // the whole warp has all its entries, and arrays can be read in long words
  Index row[kSize + 1], col[kSize], order[kSize];
  Acc weight[kSize];
};

// Entry first + j of an array for each j below `count`, -1 elsewhere.
template <int kSize, typename Acc>
__device__ __forceinline__ void load_each(const Index* from, const Ids<kSize, Acc>& ids,
                                          Index* to) {
#pragma unroll
  for (int j = 0; j < kSize; ++j) to[j] = load_or(j < ids.count, from + ids.first + j, Index(-1));
}

// Sizes are those of a Csr, cut to 32 bits, and 0 for lanes without features.
struct Sizes {
  unsigned rows, cols, weights;
};

template <int kVec, typename T, typename Acc>
__device__ __forceinline__ void unpack(Word<T, kVec> word, Acc (&x)[kVec]) {
  T features[kVec];
  memcpy(features, &word, sizeof(word));
#pragma unroll
  for (int i = 0; i < kVec; ++i) x[i] = widen(features[i]);
}

// Unpacks several words.
template <typename T, typename W, int kWords, int kFeatures, typename Acc>
__device__ __forceinline__ void unpack_words(const W (&words)[kWords], Acc (&x)[kFeatures]) {
  T features[kFeatures];
  static_assert(sizeof(features) == sizeof(words));
  memcpy(features, words, sizeof(words));
#pragma unroll
  for (int i = 0; i < kFeatures; ++i) x[i] = widen(features[i]);
}

// The features of row e for entry e. Short rows have kVec features, fewer than 16 bytes: a lane
// holds one, and reads those of a step in words of 16 bytes, to which `in` is aligned.
template <typename T_, typename Acc_, int kVec_, bool kShort_ = false>
struct RowMessage {
  using T = T_;
  using Acc = Acc_;
  static constexpr bool kShort = kShort_;
  static constexpr int kVec = kVec_, kUnroll = 8, kMinBlocks = kShort ? 4 : kVec > 4 ? 2 : 3;
  static constexpr bool kGathers = false, kDots = false;
  const T* in;
  int64_t width;

  // Weights that can be read beside the ids.
  __host__ __device__ const Acc* weights() const { return nullptr; }

  struct Loaded {
    Word<T, kVec> words[kUnroll];
    unsigned valid;  // bit j: entry j is there, and what it points at
  };
  __device__ __forceinline__ void load(const Ids<kUnroll, Acc>& ids, const Sizes&, bool, bool whole,
                                       const Column& column, Loaded& loaded) const {
    const int64_t width = kShort ? kVec : this->width;
    const T* from = in + ids.first * width + column.first;
    if (ids.full && whole) {
      loaded.valid = (1u << kUnroll) - 1;
      if constexpr (kShort) {
        load_words<kUnroll>(reinterpret_cast<const Word<T, kVec>*>(from), loaded.words);
      } else {
#pragma unroll
        for (int j = 0; j < kUnroll; ++j) {
          loaded.words[j] = __ldcs(reinterpret_cast<const Word<T, kVec>*>(from));
          from += width;
        }
      }
      return;
    }
    const int count = column.active ? ids.count : 0;
    loaded.valid = (1u << ids.count) - 1;
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      loaded.words[j] = {};
      load_if(j < count, reinterpret_cast<const Word<T, kVec>*>(from), loaded.words[j]);
      from += width;
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
    const Acc* at = from + static_cast<int64_t>(ordered ? ids.order[j] : j) * heads;
    weights[j] = load_or(weight != nullptr && is_valid, at, is_valid ? Acc(1) : Acc(0));
  }
}

// The features of row cols[e] for entry e, times its weight. With dots, on the way the dot of each
// of those rows with the row of `left` that its entry is reduced into: what is gathered serves
// both. Rows of `left` are copied into shared memory, each lane's words for itself, as there are no
// registers for them.
template <typename T_, typename Acc_, int kVec_, bool kDots_ = false>
struct GatherMessage {
  using T = T_;
  using Acc = Acc_;
  static constexpr int kVec = kVec_, kUnroll = 8, kMinBlocks = 2;
  static constexpr bool kGathers = true, kDots = kDots_;
  const T* in;
  const Acc* weight;
  unsigned row_bytes;
  int heads;
  // For dots.
  const T* left = nullptr;  // (num_rows, width)
  Acc* dots = nullptr;      // (num_weights, heads)
  int head_bits = 0;        // log2 of the lanes of a head, all of one team

  // Weights that can be read beside the ids.
  __host__ __device__ const Acc* weights() const { return weight; }

  struct Loaded {
    Word<T, kVec> words[kUnroll];
    Acc weights[kUnroll];
    unsigned valid;
  };
  // Called by the whole warp. `beside`: the weights are in ids. `left_words`: shared memory, for
  // dots.
  __device__ __forceinline__ void load(const Ids<kUnroll, Acc>& ids, const Sizes& sizes,
                                       bool ordered, bool beside, const Column& column,
                                       Loaded& loaded, void* left_words = nullptr) const {
    constexpr int kWordBytes = sizeof(Word<T, kVec>);
    auto* shared = static_cast<Word<T, kVec>*>(left_words) + threadIdx.x;
    const T *from = in + column.first, *from_left = left + column.first;
    bool all_valid = ids.full;
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) all_valid &= static_cast<unsigned>(ids.col[j]) < sizes.cols;
    if (kDots)
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) all_valid &= static_cast<unsigned>(ids.row[j]) < sizes.rows;
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
      if constexpr (kDots)
#pragma unroll
        for (int j = 0; j < kUnroll; ++j)
          copy_async<kWordBytes>(true, row_at(from_left, ids.row[j], row_bytes),
                                 shared + j * kDotThreads);
      if (ordered) {
#pragma unroll
        for (int j = 0; j < kUnroll; ++j)
          loaded.weights[j] = __ldg(row_at(weight + column.head, ids.order[j],
                                           static_cast<unsigned>(heads * sizeof(Acc))));
        return;
      }
      if (beside || weight == nullptr) {
#pragma unroll
        for (int j = 0; j < kUnroll; ++j) loaded.weights[j] = beside ? ids.weight[j] : Acc(1);
        return;
      }
    } else {
      Sizes again = sizes;  // or comparisons are done beforehand, and kept
      hide(again.rows);
      hide(again.cols);
      hide(again.weights);
      loaded.valid = 0;
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        bool valid = static_cast<unsigned>(ids.col[j]) < again.cols;
        if (kDots) valid = valid && static_cast<unsigned>(ids.row[j]) < again.rows;
        if (ordered) valid = valid && static_cast<unsigned>(ids.order[j]) < again.weights;
        loaded.valid |= static_cast<unsigned>(valid) << j;
        loaded.words[j] = {};
        load_if(valid, reinterpret_cast<const Word<T, kVec>*>(row_at(from, ids.col[j], row_bytes)),
                loaded.words[j]);
        if constexpr (kDots)
          copy_async<kWordBytes>(valid, row_at(from_left, ids.row[j], row_bytes),
                                 shared + j * kDotThreads);
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

  // Stores the dots of what was loaded. Called by the whole warp.
  __device__ __forceinline__ void dot(const Ids<kUnroll, Acc>& ids, const Index* order,
                                      unsigned num_weights, const Column& column,
                                      const Loaded& loaded, const void* left_words) const {
    const auto* shared = static_cast<const Word<T, kVec>*>(left_words) + threadIdx.x;
    Acc sum[kUnroll] = {};
    __pipeline_wait_prior(0);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j)
      add_dot<T, kVec>(sum[j], shared[j * kDotThreads], loaded.words[j]);
    const Held held = add_over_lanes(sum, head_bits);
    const bool writes = held.writes && (column.active || heads == 1);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      if (j == held.count) break;
      const int place = held.first + j;
      if (!writes || place >= ids.count) continue;
      const int64_t entry = ids.first + place, to = order != nullptr ? order[entry] : entry;
      if (static_cast<uint64_t>(to) < num_weights) dots[to * heads + column.head] = sum[j];
    }
  }
};

// Values that match, see Select.
template <typename T_, typename Acc_, int kVec_>
struct SelectMessage {
  using T = T_;
  using Acc = Acc_;
  static constexpr int kVec = kVec_, kUnroll = 4, kMinBlocks = 2;
  static constexpr bool kGathers = true, kDots = false;
  Select<T, Acc> select;
  unsigned row_bytes;
  int heads;

  // Weights that can be read beside the ids.
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

}  // namespace
}  // namespace jax_gnn::cuda
