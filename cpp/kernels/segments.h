#pragma once

#include <cstdint>

#include "instances.h"

namespace jax_gnn {

// Entries sorted by the row they are reduced into: the elements of segments, or the nonzeros of a
// sparse matrix. Ids come from the user's arrays: kernels must check them all.
template <typename Index>
struct Csr {
  const Index* rows;   // (count,), non-decreasing; outside [0, num_rows) the entry is padding
  const Index* cols;   // (count,): the row of the input that an entry reads, outside [0, num_cols)
                       // the entry is padding; null: entry e reads row e
  const Index* order;  // (count,): which weight an entry has, outside [0, num_weights) the entry is
                       // padding; null: entry e has weight e
  int64_t count, num_rows, num_cols, num_weights;
  const Index* end = nullptr;  // one number, from which on entries are padding; null: not told
};

// Reductions, and how many there are.
enum class Reduce { kSum, kMean, kMax, kMin, kProd, kLogSumExp, kCount };

// Handlers refuse weights, and integers, where these are false: kernels need no case for them.
constexpr bool takes_weights(Reduce reduce) {
  return reduce == Reduce::kSum || reduce == Reduce::kMean || reduce == Reduce::kMax ||
         reduce == Reduce::kMin;
}
constexpr bool takes_integers(Reduce reduce) {
  return reduce == Reduce::kSum || reduce == Reduce::kMax || reduce == Reduce::kMin ||
         reduce == Reduce::kProd;
}

// Features of a row: `heads` groups of width / heads each; weights have one number a head.
struct Features {
  int64_t width, heads;
};

// The rows that entries read: those from num_local on lie in `halo`, where it is not null.
template <typename T>
struct Input {
  const T* rows;
  const T* halo = nullptr;
  int64_t num_local = 0;
};

// A factor for each row: data[r], or with a stride of 0 one for all. Null means ones.
template <typename Acc>
struct RowScale {
  const Acc* data;
  int64_t stride;
};

// The epilogue of a row's sum or mean, before it is rounded and written: y = result_scale[r] *
// relu(out_scale[r] * (sum + self_scale[r] * self[r, :]) + residual[r, :] + bias), relu if `relu`.
// All arrays but scales have the features of the result.
template <typename T, typename Acc>
struct Epilogue {
  const T* self;             // (num_rows, width), null: none
  RowScale<Acc> self_scale;  // null where `self` is
  RowScale<Acc> out_scale;
  const T* residual;  // (num_rows, width), null: none
  const Acc* bias;    // (width,), null: none
  bool relu;
  RowScale<Acc> result_scale;

  bool any() const {
    return self != nullptr || out_scale.data != nullptr || residual != nullptr || bias != nullptr ||
           relu || result_scale.data != nullptr;
  }
};

// out[r] += factor * value[col] only where weight * p == q. What the derivatives of a maximum are
// made of: p and q are the two sides' keys.
template <typename T, typename Acc>
struct Select {
  const T* row_key;    // (num_rows, width)
  const T* col_key;    // (num_cols, width)
  const T* value;      // (num_cols, width), null means ones
  const Acc* weight;   // (num_weights, heads), null means ones
  const Acc* factor;   // (num_weights, heads), null means ones
  bool weight_on_row;  // weight * row_key == col_key, else weight * col_key == row_key
};

}  // namespace jax_gnn
