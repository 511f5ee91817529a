// The gradients of attention over edges: weights that are computed from the softmax's statistics
// where they are used, and the scores' cotangents.
#pragma once

#include "../edge_attention.h"
#include "edge_scores.cuh"
#include "segment_gather.cuh"
#include "segment_step.cuh"
#include "segment_walk.cuh"

namespace jax_gnn::cuda {
namespace {

// One number or struct in words of up to 16 bytes, zeros where `valid` does not hold.
template <typename From>
__device__ __forceinline__ void load_struct(bool valid, const From* from, From& to) {
  constexpr int kBytes = sizeof(From) > 16 ? 16 : sizeof(From);
  constexpr int kWords = sizeof(From) / kBytes;
  using W = typename WordOf<kBytes>::type;
  W words[kWords] = {};
#pragma unroll
  for (int i = 0; i < kWords; ++i) load_if(valid, reinterpret_cast<const W*>(from) + i, words[i]);
  memcpy(&to, words, sizeof(to));
}
template <typename From>
__device__ __forceinline__ void copy_struct(bool valid, const From* from, From& to) {
  constexpr int kBytes = sizeof(From) > 16 ? 16 : sizeof(From);
#pragma unroll
  for (unsigned i = 0; i < sizeof(From); i += kBytes)
    copy_async<kBytes>(valid, reinterpret_cast<const unsigned char*>(from) + i,
                       reinterpret_cast<unsigned char*>(&to) + i);
}

// The weights of attention, of a matrix whose rows are sources.
template <typename Acc_>
struct SoftmaxWeights {
  using Acc = Acc_;

  Attention<Acc> attention;             // without dst_score
  const AttentionRecord<Acc>* records;  // (num_dst, heads)
  int heads, tile_heads;

  __host__ __device__ constexpr bool operator==(decltype(nullptr)) const { return false; }
  __host__ __device__ constexpr bool operator!=(decltype(nullptr)) const { return true; }

  struct alignas(16) Inputs {
    AttentionRecord<Acc> record;
    Acc score, scale;
  };

  __device__ __forceinline__ void load(bool valid, const Entry& entry, int head,
                                       Inputs& inputs) const {
    for_inputs(entry, head, inputs, [&](bool present, const auto* from, auto& to) {
      load_struct(valid && present, from, to);
    });
  }
  __device__ __forceinline__ void ask(bool valid, const Entry& entry, int head,
                                      Inputs& inputs) const {
    for_inputs(entry, head, inputs, [&](bool present, const auto* from, auto& to) {
      copy_struct(valid && present, from, to);
    });
  }
  __device__ __forceinline__ Computed<Acc> compute(const Inputs& inputs) const {
    const bool additive = attention.edge_score == nullptr;
    const AttentionRecord<Acc>& record = inputs.record;
    const Acc sum = additive ? record.dst_score + inputs.score : inputs.score;
    const bool is_sloped = additive && !(sum > 0);
    const Acc score = is_sloped ? rounded_product(attention.slope, sum) : sum;
    const Acc part = exponential((score - record.stats.top) - record.stats.log_sum);
    const Acc scale = attention.edge_scale != nullptr ? inputs.scale : Acc(1);
    const Acc sloped = is_sloped ? part * attention.slope : part;
    return {part * scale, {sloped * scale, sloped * record.delta}};
  }

 private:
  // Calls f(whether it is there, where it is, where it goes) for all that a weight depends on.
  template <class F>
  __device__ __forceinline__ void for_inputs(const Entry& entry, int head, Inputs& inputs,
                                             const F& f) const {
    const auto at = [&](int64_t id) { return id * heads + head; };
    const bool additive = attention.edge_score == nullptr;
    f(true, records + at(entry.col), inputs.record);
    f(true, additive ? attention.src_score + at(entry.row) : attention.edge_score + at(entry.place),
      inputs.score);
    f(attention.edge_scale != nullptr, attention.edge_scale + at(entry.place), inputs.scale);
  }
};

// Of entries: slopes of a LeakyReLU at the sum of two keys, times their factors.
template <typename T_, typename Acc_, int kVec_>
struct SlopeMessage {
  using T = T_;
  using Acc = Acc_;
  static constexpr int kVec = kVec_, kUnroll = 4, kMinBlocks = 2;
  static constexpr bool kGathers = true, kDots = false, kComputed = false;
  Leaky<T, Acc> keys;
  const Acc* factor;
  unsigned row_bytes;
  int heads;

  // What can be read beside the ids.
  __host__ __device__ const Acc* weights() const { return nullptr; }

  struct Loaded {
    Word<T, kVec> row_keys[kUnroll], col_keys[kUnroll];
    Acc factors[kUnroll];
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
        load_if(valid,
                reinterpret_cast<const Word<T, kVec>*>(row_at(rows + column.first, row, row_bytes)),
                word);
      };
      load_word(keys.col_key, ids.col[j], loaded.col_keys[j]);
      load_word(keys.row_key, ids.row[j], loaded.row_keys[j]);
    }
    load_weights(factor, heads, ids, ordered, loaded.valid, column, loaded.factors);
  }
  __device__ __forceinline__ void value(const Loaded& loaded, int j, Acc (&x)[kVec]) const {
    Acc row[kVec], col[kVec];
    unpack<kVec, T>(loaded.row_keys[j], row);
    unpack<kVec, T>(loaded.col_keys[j], col);
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      x[i] = row[i] + col[i] > 0 ? loaded.factors[j] : loaded.factors[j] * keys.slope;
  }
};

__device__ __forceinline__ bool is_below(int64_t id, int64_t size) {
  return static_cast<uint64_t>(id) < static_cast<uint64_t>(size);
}

// Makes of each valid entry's dot its score's cotangent, in its place.
template <typename Acc>
__global__ void finish_scores_kernel(Csr<Index> csr, SoftmaxWeights<Acc> weights, Acc* dots) {
  allow_next_launch();
  wait_for_previous_launch();
  const int64_t size = csr.count * weights.heads;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t at = divide(i, weights.heads);
    const int head = static_cast<int>(i - at * weights.heads);
    const Entry entry = {csr.rows[at], csr.cols != nullptr ? csr.cols[at] : static_cast<Index>(at),
                         csr.order != nullptr ? int64_t{csr.order[at]} : at, true};
    if (!is_below(entry.row, csr.num_rows) || !is_below(entry.col, csr.num_cols) ||
        !is_below(entry.place, csr.num_weights))
      continue;
    typename SoftmaxWeights<Acc>::Inputs inputs;
    weights.load(true, entry, head, inputs);
    const DotTerms<Acc> terms = weights.compute(inputs).terms;
    Acc& dot = dots[entry.place * weights.heads + head];
    dot = terms.factor * dot - terms.less;
  }
}

}  // namespace
}  // namespace jax_gnn::cuda
