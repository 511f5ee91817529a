// The gradients of attention over edges: weights by source from the softmax's statistics, for
// segment_reduce_vjp, and the scores' cotangents from its dots.
#pragma once

#include "../edge_attention.h"
#include "edge_scores.cuh"
#include "segment_messages.cuh"

namespace jax_gnn::cuda {
namespace {

// Entries by source: what each is to its source, the weight of what it gathers, and what makes its
// dot its score's cotangent, factor * dot - less.
template <typename Acc>
struct BySource {
  Csr<Index> csr;
  Attention<Acc> attention;             // without dst_score
  const AttentionRecord<Acc>* records;  // (num_dst, heads)
  int64_t heads;

  // What an entry and head depend on; of padding `row` is negative.
  struct Pair {
    int64_t row, col, place;  // where the head's numbers lie
    AttentionRecord<Acc> record;
    Acc score, scale;
  };
  struct Found {
    Acc weight, factor, less;
  };

  // Numbers below this are of entries and heads.
  __device__ __forceinline__ int64_t size() const { return csr.count * heads; }

  // Calls f(number, pair) for numbers from `first` on, `stride` apart, below size(). What kTogether
  // pairs read is in flight together.
  template <int kTogether, class F>
  __device__ __forceinline__ void for_pairs(int64_t first, int64_t stride, const F& f) const {
#pragma unroll 1
    for (int64_t base = first; base < size(); base += kTogether * stride) {
      Pair pairs[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) find(base + i * stride, pairs[i]);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) load(pairs[i]);
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (base + i * stride < size()) f(base + i * stride, pairs[i]);
    }
  }

  __device__ __forceinline__ Found compute(const Pair& pair) const {
    const bool additive = attention.edge_score == nullptr;
    const AttentionRecord<Acc>& record = pair.record;
    const Acc sum = additive ? record.dst_score + pair.score : pair.score;
    const bool is_sloped = additive && !(sum > 0);
    const Acc score = is_sloped ? rounded_product(attention.slope, sum) : sum;
    const Acc part = exponential((score - record.stats.top) - record.stats.log_sum);
    const Acc sloped = is_sloped ? part * attention.slope : part;
    return {part * pair.scale, sloped * pair.scale, sloped * record.delta};
  }

 private:
  __device__ __forceinline__ void find(int64_t number, Pair& pair) const {
    const bool is_there = number < size();
    const int64_t entry = is_there ? divide(number, heads) : 0, head = number - entry * heads;
    const Index row = load_or(is_there, csr.rows + entry, Index(-1));
    const Index col =
        csr.cols != nullptr ? load_or(is_there, csr.cols + entry, Index(-1)) : Index(entry);
    const int64_t place = csr.order != nullptr
                              ? int64_t{load_or(is_there, csr.order + entry, Index(-1))}
                              : (is_there ? entry : -1);
    const bool valid = is_below(row, csr.num_rows) && is_below(col, csr.num_cols) &&
                       is_below(place, csr.num_weights);
    pair.row = valid ? row * heads + head : -1;
    pair.col = col * heads + head;
    pair.place = place * heads + head;
  }
  __device__ __forceinline__ void load(Pair& pair) const {
    const bool valid = pair.row >= 0, additive = attention.edge_score == nullptr;
    constexpr int kWords = sizeof(pair.record) / 16;
    uint4 words[kWords] = {};
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      load_if(valid, reinterpret_cast<const uint4*>(records + pair.col) + i, words[i]);
    memcpy(&pair.record, words, sizeof(words));
    pair.score = load_or(
        valid, additive ? attention.src_score + pair.row : attention.edge_score + pair.place,
        Acc(0));
    pair.scale = load_or(valid && attention.edge_scale != nullptr,
                         attention.edge_scale + pair.place, Acc(1));
  }
  static __device__ __forceinline__ bool is_below(int64_t id, int64_t size) {
    return static_cast<uint64_t>(id) < static_cast<uint64_t>(size);
  }
};

constexpr int kPairsTogether = 4;

// The weights of entries, in their own order; 0 for padding. Where they have places in another one,
// makes the cotangents of all scores 0: an order may leave some out.
template <typename Acc>
__global__ void weigh_kernel(BySource<Acc> edges, Acc* weights, Acc* to_score) {
  allow_next_launch();
  wait_for_previous_launch();
  const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  if (edges.csr.order != nullptr)
    for (int64_t i = first; i < edges.csr.num_weights * edges.heads; i += stride) to_score[i] = 0;
  edges.template for_pairs<kPairsTogether>(first, stride, [&](int64_t at, const auto& pair) {
    weights[at] = pair.row >= 0 ? edges.compute(pair).weight : Acc(0);
  });
}

// Makes of entries' dots the cotangents of their scores, in their places; 0 for padding.
template <typename Acc>
__global__ void finish_scores_kernel(BySource<Acc> edges, const Acc* dots, Acc* to_score) {
  allow_next_launch();
  wait_for_previous_launch();
  const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  edges.template for_pairs<kPairsTogether>(first, stride, [&](int64_t at, const auto& pair) {
    if (pair.row >= 0) {
      const auto found = edges.compute(pair);
      to_score[pair.place] = found.factor * dots[at] - found.less;
    } else if (edges.csr.order == nullptr) {
      to_score[at] = 0;
    }
  });
}

// Of entries: slopes of a LeakyReLU at the sum of two keys, times their factors.
template <typename T_, typename Acc_, int kVec_>
struct SlopeMessage {
  using T = T_;
  using Acc = Acc_;
  static constexpr int kVec = kVec_, kUnroll = 4, kMinBlocks = 2;
  static constexpr bool kGathers = true, kDots = false;
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

}  // namespace
}  // namespace jax_gnn::cuda
