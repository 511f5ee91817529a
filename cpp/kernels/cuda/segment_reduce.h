#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../segments.h"

namespace jax_gnn::cuda {

// Kernels: one of all reductions, where the teams of a warp have the entries of its steps one
// after another (segment_walk.cuh); or of sums and means one where each team has a range of its own
// (segment_gather.cuh), or one step and no more (segment_step.cuh).
enum class Kernel { kWalk, kGather, kStep };

// How entries and features are dealt out to threads (GeoT, table I).
struct Schedule {
  Kernel kernel;
  int lanes;       // of a team, which holds a tile of features; a power of two up to 32
  int threads;     // of a block
  int64_t blocks;  // that share the entries: rows of the workspace
};

// Whether the kernel that a schedule names can reduce the entries: to sums or means of
// floating-point numbers, or to anything.
bool serves(const Schedule& schedule, const Csr<int32_t>& csr, Features features, bool sums);

// Whether it can take dots of T in the same pass: teams need whole heads, and beside the walk whole
// rows.
template <typename T>
bool serves_with_dots(const Schedule& schedule, const Csr<int32_t>& csr, Features features);

// The workspace has `schedule.blocks` rows of workspace_bytes(...) bytes each, 16-byte aligned.
// One launch, another before it where most rows are empty; no allocation, no synchronisation, the
// same bits on every run.

// out[r, :] = reduce over the entries e of row r of weight[e, head] * in[cols[e], :].
// in: (num_cols, width), weight: (num_weights, heads) or null, out: (num_rows, width). Empty rows
// are what the reduction makes of nothing, as in jax.ops. Accumulates in Acc. Weights only where
// takes_weights(reduce), integers, which have none, only where takes_integers(reduce); only sums
// and means of floating-point numbers have an epilogue, and only sums by the kernel kGather a halo.
template <typename T, typename Acc>
cudaError_t segment_reduce(cudaStream_t stream, const Schedule& schedule, const Csr<int32_t>& csr,
                           Reduce reduce, const Input<T>& in, const Acc* weight, Features features,
                           const Epilogue<T, Acc>& epilogue, T* out, void* workspace);

// The derivatives of a weighted sum, given the sum's `in` over the transposed entries:
// out[r, :] = sum over the entries e of row r of weight[e, head] * in[cols[e], :], and
// dots[e, head] = < left[r, head, :], in[cols[e], head, :] >, 0 for padding.
// left and out: (num_rows, width), weight and dots: (num_weights, heads). One pass is a launch that
// reads `in` once; without it there are two. Another before them zeroes dots in order.
template <typename T, typename Acc>
cudaError_t segment_reduce_vjp(cudaStream_t stream, const Schedule& schedule, bool one_pass,
                               const Csr<int32_t>& csr, const T* in, const Acc* weight,
                               const T* left, Features features, T* out, Acc* dots,
                               void* workspace);

// out[r, :] = sum over the entries of row r that match, see Select. out: (num_rows, width).
template <typename T, typename Acc>
cudaError_t segment_select(cudaStream_t stream, const Schedule& schedule, const Csr<int32_t>& csr,
                           const Select<T, Acc>& select, Features features, T* out,
                           void* workspace);

}  // namespace jax_gnn::cuda
