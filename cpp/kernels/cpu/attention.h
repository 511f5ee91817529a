#pragma once

#include "../attention.h"
#include "../segments.h"
#include "parallel.h"

namespace jax_gnn::cpu {

// Results have the same bits for any number of threads. csr.order gives the place of an entry in
// edge_score, edge_scale and to_score. An entry whose row, column or place is out
// of range is padding.

// out[r, h, :] = sum over the entries of row r of weight * value[col, h, :], where the weight is
// edge_scale times the softmax of the scores over the row; and its statistics. Rows are
// destinations, columns sources. value: (num_cols, width), out: (num_rows, width),
// stats: (num_rows, heads).
template <typename T, typename Acc, typename Index>
void attention(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* value,
               const Attention<Acc>& attention, Features features, T* out,
               SoftmaxStats<Acc>* stats);

// By source: rows are sources, columns destinations, whose dst_score is; records are scratch
// memory, (num_cols, heads). With p the softmax,
//   out[r, h, :] = sum over the entries of row r of p * edge_scale * ct[col, h, :]
//   to_score[place, h] = p * (edge_scale * < ct[col, h, :], value[r, h, :] > - delta) * slope
//   to_src_score[r, h] = sum over the entries of row r of to_score[place, h]
// where slope is that of the LeakyReLU at the entry, 1 with edge_score; 0 where no entry has its
// place. value and out: (num_rows, width), to_score: (num_weights, heads), to_src_score:
// (num_rows, heads), or null.
template <typename T, typename Acc, typename Index>
void attention_vjp(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* value,
                   const Attained<T, Acc>& attained, const Attention<Acc>& attention,
                   Features features, T* out, Acc* to_src_score, Acc* to_score,
                   AttentionRecord<Acc>* records);

// Gradients by source where scores are dot products, keys.scale * < row_key[col, h, :],
// col_key[r, h, :] >. to_score is that of < , >, and
//   to_key[r, h, :] = sum over the entries of row r of to_score[place, h] * row_key[col, h, :]
template <typename T, typename Acc, typename Index>
void keyed_attention_vjp(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* value,
                         const Attained<T, Acc>& attained, const Keys<T, Acc>& keys,
                         const Acc* edge_scale, Features features, T* out, T* to_key, Acc* to_score,
                         AttentionRecord<Acc>* records);

// out[e, h] = sum over the features of head h of vector * leaky(row_key[rows[e]] +
// col_key[cols[e]]), 0 for padding. vector: (width,), out: (count, heads).
template <typename T, typename Acc, typename Index>
void leaky_scores(const ParallelFor& parallel_for, const Csr<Index>& csr,
                  const Leaky<T, Acc>& leaky, const Acc* vector, Features features, Acc* out);

// out[r, :] = vector * sum over the entries of row r of factor[place, head] * slope, where slope is
// that of the LeakyReLU at row_key[r] + col_key[col]. factor: (num_weights, heads), vector:
// (width), null: ones, out: (num_rows, width).
template <typename T, typename Acc, typename Index>
void leaky_sum(const ParallelFor& parallel_for, const Csr<Index>& csr, const Leaky<T, Acc>& leaky,
               const Acc* factor, const Acc* vector, Features features, T* out);

}  // namespace jax_gnn::cpu
