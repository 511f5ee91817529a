#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../attention.h"
#include "../workspace.h"
#include "segment_reduce.h"

namespace jax_gnn::cuda {

// Workspaces are as for segment_reduce, those of sums under a softmax for twice the width. No array
// of edges times features, nor in the forward pass one of edges times heads. No allocation, no
// synchronisation, the same bits on every run.

// out[r, :] = sum over the entries e of row r of weight[e, head] * value[cols[e], :], where the
// weight is scale times the softmax of the scores (see Attention) over the row's entries, and
// stats: (num_rows, heads), the softmax's statistics. Rows are destinations. One launch, two more
// where most rows are empty. There are features. The kernel is kWalk or kStep, which is refused
// with cudaErrorInvalidConfiguration where a team's step cannot have all entries, or its shared
// memory is more than the GPU has.
template <typename T, typename Acc>
cudaError_t attention(cudaStream_t stream, Kernel kernel, const Csr<int32_t>& csr, const T* value,
                      const Attention<Acc>& attention, Features features, T* out,
                      SoftmaxStats<Acc>* stats, const Workspace& workspace);

// Attention whose scores are computed from keys (see Keys), whose heads have the features of
// values: up to 32 words of 16 bytes, and where there are several heads a power of two. edge_scale:
// (num_weights, heads), null: ones.
template <typename T, typename Acc>
cudaError_t keyed_attention(cudaStream_t stream, Kernel kernel, const Csr<int32_t>& csr,
                            const T* value, const Keys<T, Acc>& keys, const Acc* edge_scale,
                            Features features, T* out, SoftmaxStats<Acc>* stats,
                            const Workspace& workspace);

// Attention with scores of edges with relations (see TypedKeys), for the same heads. Entries have
// no order.
template <typename T, typename Acc>
cudaError_t typed_attention(cudaStream_t stream, Kernel kernel, const Csr<int32_t>& csr,
                            const T* value, const TypedKeys<T, Acc>& keys, const Acc* edge_scale,
                            Features features, T* out, SoftmaxStats<Acc>* stats,
                            const Workspace& workspace);

// The derivatives, rows being sources and columns destinations, whose dst_score is:
// out[r, :] = sum over the entries e of row r of weight[e, head] * ct[cols[e], :],
// to_score[e, head], (num_weights, heads): see AttentionRecord, times the LeakyReLU's slope; 0 for
// padding, and
// to_src_score: (num_rows, heads), the sums of that over the entries of row r; or null.
// records: (num_cols, heads), scratch: (2, csr.count, heads). The launches of segment_reduce_vjp,
// in `one_pass` or two, two before them and one after them, or two. For heads as keyed_attention
// has them, without a schedule and scratch: two launches, more where most rows are empty.
template <typename T, typename Acc>
cudaError_t attention_vjp(cudaStream_t stream, const Schedule& schedule, bool one_pass,
                          const Csr<int32_t>& csr, const T* value, const Attained<T, Acc>& attained,
                          const Attention<Acc>& attention, Features features, T* out,
                          Acc* to_src_score, Acc* to_score, AttentionRecord<Acc>* records,
                          Acc* scratch, void* workspace);
template <typename T, typename Acc>
cudaError_t attention_vjp(cudaStream_t stream, const Csr<int32_t>& csr, const T* value,
                          const Attained<T, Acc>& attained, const Attention<Acc>& attention,
                          Features features, T* out, Acc* to_src_score, Acc* to_score,
                          AttentionRecord<Acc>* records, const Workspace& workspace);

// The last with scores of edges with relations, as typed_attention writes them, to which the slope
// is applied; and to out[r, :] the row's vector (see TypedVectors) times to_src_score[r, head] is
// added.
template <typename T, typename Acc>
cudaError_t typed_attention_vjp(cudaStream_t stream, const Csr<int32_t>& csr, const T* value,
                                const Attained<T, Acc>& attained, const Attention<Acc>& attention,
                                const TypedVectors<T>& of_rows, Features features, T* out,
                                Acc* to_src_score, Acc* to_score, AttentionRecord<Acc>* records,
                                const Workspace& workspace);

// The derivatives of keyed_attention by source, for the same heads. Rows are sources, columns
// destinations, of which keys.row_key is, as keys.col_key is of sources:
// out[r, :] = sum over the entries e of row r of weight[e, head] * ct[cols[e], :];
// to_score[e, head], (num_weights, heads): see AttentionRecord, times the dots' scale; 0 for
// padding;
// to_col_key: the gradient of col_key, as far as scores go, or null: added to `out`, where col_key
// is value;
// to_vector: (width), the gradient of the vector, if there is one: else null.
// records: (num_cols, heads), and parts: (workspace.blocks, width), if there is a vector, are
// scratch memory. Two launches, a third for the vector; more where most rows are empty.
template <typename T, typename Acc>
cudaError_t keyed_attention_vjp(cudaStream_t stream, const Csr<int32_t>& csr, const T* value,
                                const Attained<T, Acc>& attained, const Keys<T, Acc>& keys,
                                const Acc* edge_scale, Features features, T* out, T* to_col_key,
                                Acc* to_score, Acc* to_vector, AttentionRecord<Acc>* records,
                                Acc* parts, const Workspace& workspace);

// out[r, :] = vector times the sum over the entries e of row r of factor[e, head] times the slope,
// see Leaky. factor: (num_weights, heads), vector: (width), null: ones, out: (num_rows, width). One
// launch, as segment_reduce, by kWalk or kGather, which is refused likewise where rows are no whole
// words of 16 bytes.
template <typename T, typename Acc>
cudaError_t leaky_sum(cudaStream_t stream, Kernel kernel, const Csr<int32_t>& csr,
                      const Leaky<T, Acc>& leaky, const Acc* factor, const Acc* vector,
                      Features features, T* out, const Workspace& workspace);

}  // namespace jax_gnn::cuda
