// Operands and results of attention over edges, for the kernels of both backends.
#pragma once

#include <cstdint>

namespace jax_gnn {

// The kinds of scores, in the order that Python numbers them: edges have them; those of both ends,
// see Attention; of keys, see Keys: dot products, or through a LeakyReLU; and see TypedKeys.
enum class ScoreKind : int64_t { kPerEdge, kEnds, kDots, kLeaky, kTyped };

// Scores of edges, and what becomes of their softmax over the edges into each destination. An
// edge's score is edge_score, or where that is null leaky(dst_score + src_score), where leaky(z) is
// z above 0 and slope * z elsewhere. -inf leaves an edge out.
template <typename Acc>
struct Attention {
  const Acc* dst_score;   // (num_dst, heads)
  const Acc* src_score;   // (num_src, heads)
  const Acc* edge_score;  // (num_weights, heads)
  const Acc* edge_scale;  // (num_weights, heads), factors of the weights, null: ones
  Acc slope;
};

// The softmax of a destination: an edge's weight is exp((score - top) - log_sum), without the
// scale. `top` is a number near the largest score, and finite, and log_sum the logarithm of the sum
// of exp(score - top), but inf where there is nothing to sum up: then weights are 0.
template <typename Acc>
struct SoftmaxStats {
  Acc top, log_sum;
};

// Scores of edges that are made of rows of both ends, over the features of a head:
// < vector, leaky(row_key[row] + col_key[col]) >, or scale * < row_key[row], col_key[col] >.
template <typename T, typename Acc>
struct Keys {
  const T* row_key;   // (num_rows, width)
  const T* col_key;   // (num_cols, width)
  const Acc* vector;  // (width), null: dot products
  const Acc* scale;   // one number, null: 1
  Acc slope;
};

// Operands of the scores of edges with relations, beside the values of sources. A head's score is
// leaky(< row, of_row[type] > + < value[col], of_value[type] >), where the first dot may be given.
template <typename T, typename Acc>
struct TypedKeys {
  const int32_t* types;  // (count,), outside [0, num_types) the edge is left out
  int64_t num_types;
  const T* of_value;  // (num_types, width)
  const T* row;       // (num_rows, width), of one head; null: `at_row` instead
  const T* of_row;    // (num_types, width)
  const Acc* at_row;  // (count, heads), null where there are rows
  Acc* scores;        // (count, heads), what the LeakyReLU is applied to, -inf for padding; or null
  Acc slope;
};

// Vectors of sources' relations.
template <typename T>
struct TypedVectors {
  const int32_t* types;  // (num_rows,), outside [0, num_types) a row has none; null: no row has one
  int64_t num_types;
  const T* vectors;  // (num_types, width)
};

// Results of attention, and their cotangents.
template <typename T, typename Acc>
struct Attained {
  const T *y, *ct;                 // (num_dst, width); null for y: < ct, y > is taken for 0
  const SoftmaxStats<Acc>* stats;  // (num_dst, heads)
  const Acc* log_sum_ct;           // (num_dst, heads), of the statistics' log_sum, null: zeros
};

// The part of a destination in the derivative of an edge, one word of four numbers. `delta` is
// taken from what a weight's cotangent is: score' = weight * (scale * < ct, value > - delta). It is
// < ct, y > less log_sum_ct.
template <typename Acc>
struct AttentionRecord {
  Acc dst_score;  // 0 where there are edge_scores
  SoftmaxStats<Acc> stats;
  Acc delta;
};

// The slopes of a LeakyReLU between rows: 1 in features where row_key[row] + col_key[col] > 0,
// `slope` elsewhere.
template <typename T, typename Acc>
struct Leaky {
  const T* row_key;  // (num_rows, width)
  const T* col_key;  // (num_cols, width)
  Acc slope;
};

}  // namespace jax_gnn
