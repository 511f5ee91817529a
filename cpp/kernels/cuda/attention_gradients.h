#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../attention.h"
#include "../segments.h"
#include "../workspace.h"

namespace jax_gnn::cuda {

// All gradients of attention over the edges of small graphs in one launch, which goes through the
// entries by destination, whose rows are destinations and which have no order, and by source, the
// same transposed. There are entries, and heads of up to 16 words of 16 bytes, of several a power
// of two, and not one of two numbers. workspace: as for segment_reduce, three blocks for each 48
// entries. No allocation, no synchronisation, the same bits on every run.

// Gradients of keyed_attention, with keys.row_key of destinations and keys.col_key of sources:
// to_value: (num_src, width), to_row_key: (num_dst, width), to_col_key: (num_src, width), or null:
// added to `to_value`, where col_key is value; to_vector: (width), if there is one, else null.
template <typename T, typename Acc>
cudaError_t keyed_attention_gradients(cudaStream_t stream, const Csr<int32_t>& by_dst,
                                      const Csr<int32_t>& by_src, const T* value,
                                      const Attained<T, Acc>& attained, const Keys<T, Acc>& keys,
                                      const Acc* edge_scale, Features features, T* to_value,
                                      T* to_row_key, T* to_col_key, Acc* to_vector,
                                      const Workspace& workspace);

// Gradients of attention with scores of both ends: to_value as above, to_src_score: (num_src,
// heads), to_dst_score: (num_dst, heads).
template <typename T, typename Acc>
cudaError_t attention_gradients(cudaStream_t stream, const Csr<int32_t>& by_dst,
                                const Csr<int32_t>& by_src, const T* value,
                                const Attained<T, Acc>& attained, const Attention<Acc>& attention,
                                Features features, T* to_value, Acc* to_src_score,
                                Acc* to_dst_score, const Workspace& workspace);

}  // namespace jax_gnn::cuda
