#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../relational.h"
#include "../segment_matmul.h"

namespace jax_gnn::cuda {

// What relational_aggregate needs for each share.
constexpr int64_t tile_workspace_bytes(int64_t acc_bytes) { return 64 * 128 * 3 * acc_bytes; }

// Widths that it takes.
constexpr int64_t kMaxTileWidth = 128;

// out[v, :] = activation(sum over the edges e = (u -> v) of scales[e] * x[u, :] @ weights[type of
// e]
// + bias), 0 for no edges. x: (num_cols, k), weights: (num_types, k, n), `transposed` (num_types,
// n, k), scales: (count,) or null, bias: (n,) or null, out: (num_rows, n) of T or, if `widens`, of
// Acc. `exact`: float products in full precision rather than in tf32. (T, Acc): float, double,
// __half and __nv_bfloat16 in float.
template <typename T, typename Acc>
cudaError_t relational_aggregate(cudaStream_t stream, const Tiles& tiles, int64_t k, int64_t n,
                                 bool transposed, bool exact, bool widens, Activation activation,
                                 const T* x, const T* weights, const Acc* scales, const T* bias,
                                 void* out, void* workspace);

}  // namespace jax_gnn::cuda
