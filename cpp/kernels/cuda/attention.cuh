// The gradients of attention over edges by source where a team has no whole heads
// (attention_back.cuh): weights from the softmax's statistics, for segment_reduce_vjp, and the
// scores' cotangents from its dots. And sums of a LeakyReLU's slopes.
#pragma once

#include "../attention.h"
#include "edge_scores.cuh"
#include "segment_walk.cuh"

namespace jax_gnn::cuda {
namespace {

// The contribution of an entry to its source, in a matrix whose rows are sources: the weight of the
// row that it gathers, and the factors of its score's cotangent, factor * dot - less.
template <typename Acc>
struct Contribution {
  Acc weight, factor, less;
};

// Entries by source.
template <typename Acc>
struct BySource {
  Csr<Index> csr;
  Attention<Acc> attention;             // without dst_score
  const AttentionRecord<Acc>* records;  // (num_dst, heads)
  int64_t heads;

  // The place of the entry in per-edge arrays.
  __device__ __forceinline__ int64_t place(int64_t entry) const {
    return csr.order != nullptr ? int64_t{csr.order[entry]} : entry;
  }

  // Whether an entry is no padding, and its contribution then.
  __device__ __forceinline__ bool find(int64_t entry, int64_t place, int64_t head,
                                       Contribution<Acc>& contribution) const {
    const Index row = csr.rows[entry];
    const Index col = csr.cols != nullptr ? csr.cols[entry] : static_cast<Index>(entry);
    if (!is_below(row, csr.num_rows) || !is_below(col, csr.num_cols) ||
        !is_below(place, csr.num_weights))
      return false;
    AttentionRecord<Acc> record;
    load_struct(records + col * heads + head, record);
    const bool additive = attention.edge_score == nullptr;
    const Acc summand = additive ? attention.src_score[row * heads + head]
                                 : attention.edge_score[place * heads + head];
    const Acc scale =
        attention.edge_scale != nullptr ? attention.edge_scale[place * heads + head] : Acc(1);
    const Acc sum = additive ? record.dst_score + summand : summand;
    const bool is_sloped = additive && !(sum >= 0);
    const Acc score = is_sloped ? rounded_product(attention.slope, sum) : sum;
    const Acc part = exponential((score - record.stats.top) - record.stats.log_sum);
    const Acc sloped = is_sloped ? part * attention.slope : part;
    contribution = {part * scale, sloped * scale, sloped * record.delta};
    return true;
  }

 private:
  static __device__ __forceinline__ bool is_below(int64_t id, int64_t size) {
    return static_cast<uint64_t>(id) < static_cast<uint64_t>(size);
  }
  // A struct in words of 16 bytes.
  template <typename From>
  static __device__ __forceinline__ void load_struct(const From* from, From& to) {
    constexpr int kWords = sizeof(From) / 16;
    uint4 words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      load_always(reinterpret_cast<const uint4*>(from) + i, words[i]);
    memcpy(&to, words, sizeof(to));
  }
};

// The weights of entries, in their own order; 0 for padding.
template <typename Acc>
__global__ void weigh_kernel(BySource<Acc> edges, Acc* weights) {
  allow_next_launch();
  wait_for_previous_launch();
  const int64_t heads = edges.heads, size = edges.csr.count * heads;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t entry = divide(i, heads);
    Contribution<Acc> contribution;
    const bool exists = edges.find(entry, edges.place(entry), i - entry * heads, contribution);
    weights[i] = exists ? contribution.weight : Acc(0);
  }
}

// Makes of entries' dots the cotangents of their scores, in their places; 0 for padding.
template <typename Acc>
__global__ void finish_scores_kernel(BySource<Acc> edges, const Acc* dots, Acc* to_score) {
  wait_for_previous_launch();
  const int64_t heads = edges.heads, size = edges.csr.count * heads;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t entry = divide(i, heads), head = i - entry * heads, place = edges.place(entry);
    Contribution<Acc> contribution;
    if (edges.find(entry, place, head, contribution))
      to_score[place * heads + head] = contribution.factor * dots[i] - contribution.less;
    else if (edges.csr.order == nullptr)
      to_score[i] = 0;
  }
}

// Messages that are slopes of a LeakyReLU at the sum of two keys, times factors and a vector. For
// few entries, and rows that are not read in words of 16 bytes; else see Slopes
// (segment_output.cuh).
template <typename T_, typename Acc_, int kVec_>
struct SlopeMessage {
  using T = T_;
  using Acc = Acc_;
  static constexpr int kVec = kVec_, kUnroll = 4, kMinBlocks = 2;
  static constexpr bool kGathers = true, kDots = false;
  Leaky<T, Acc> keys;
  const Acc *factor, *vector;
  unsigned row_bytes;
  int heads;

  // Weights that can be read beside the ids.
  __host__ __device__ const Acc* weights() const { return nullptr; }

  struct Loaded {
    Word<T, kVec> row_keys[kUnroll], col_keys[kUnroll];
    Acc factors[kUnroll], parts[kVec];
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
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      loaded.parts[i] =
          load_or(loaded.valid != 0 && vector != nullptr, vector + column.first + i, Acc(1));
  }
  __device__ __forceinline__ void value(const Loaded& loaded, int j, Acc (&x)[kVec]) const {
    Acc row[kVec], col[kVec];
    unpack<kVec, T>(loaded.row_keys[j], row);
    unpack<kVec, T>(loaded.col_keys[j], col);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const Acc term = loaded.factors[j] * loaded.parts[i];
      x[i] = row[i] + col[i] >= 0 ? term : term * keys.slope;
    }
  }
};

}  // namespace
}  // namespace jax_gnn::cuda
