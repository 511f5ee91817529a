#pragma once

#include <cstdint>

#include "../segments.h"
#include "parallel.h"

namespace jax_gnn::cpu {

// The workspace has `blocks` rows of workspace_bytes(...) bytes each, 16-byte aligned. The same
// bits on every run, whatever the number of threads.

// out[r, :] = reduce over the entries e of row r of weight[e, head] * in[cols[e], :].
// in: (num_cols, width), weight: (num_weights, heads) or null, out: (num_rows, width). Empty rows
// are what the reduction makes of nothing, as in jax.ops. Accumulates in Acc. Weights only where
// takes_weights(reduce), integers, which have none, only where takes_integers(reduce); only sums
// and means of floating-point numbers have an epilogue.
template <typename T, typename Acc, typename Index>
void segment_reduce(const ParallelFor& parallel_for, const Csr<Index>& csr, Reduce reduce,
                    const T* in, const Acc* weight, Features features,
                    const Epilogue<T, Acc>& epilogue, T* out);

// out[r, :] = reduce over the entries e with ids[e] == r of in[e, :], for ids in any order. in:
// (count, width), out: (num_rows, width). No mean and no logsumexp. At most `threads` tasks at a
// time.
template <typename T, typename Index>
void segment_scatter(const ParallelFor& parallel_for, int64_t threads, const Index* ids,
                     int64_t count, int64_t num_rows, Reduce reduce, const T* in, int64_t width,
                     T* out);

// out[r, :] = sum over the entries of row r that match, see Select. out: (num_rows, width).
template <typename T, typename Acc, typename Index>
void segment_select(const ParallelFor& parallel_for, const Csr<Index>& csr,
                    const Select<T, Acc>& select, Features features, T* out);

}  // namespace jax_gnn::cpu
