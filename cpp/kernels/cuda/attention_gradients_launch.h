// All gradients of attention over edges in one launch, the host's side. Its instances are several
// units, which compile side by side.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attention_gradients.cuh"
#include "attention_gradients.h"
#include "segment_walk_launch.h"

namespace jax_gnn::cuda {
namespace {

template <Scores kScores, bool kSame, typename T, typename Acc>
cudaError_t launch_gradients(cudaStream_t stream, const Csr<Index>& by_dst,
                             const Csr<Index>& by_src, Gradients<T, Acc> gradients,
                             Features features, const Workspace& workspace) {
  constexpr int kVec = 16 / sizeof(T);
  constexpr int64_t kMaxEdges = int64_t{1} << 30;
  const int64_t words = features.width / features.heads / kVec;  // of a head
  int head_bits = 0;
  while (int64_t{1} << head_bits < words) ++head_bits;
  const bool whole = words == int64_t{1} << head_bits;
  if (features.heads == 1)
    while (1 << head_bits < kGradientLanes) ++head_bits;
  const int64_t shared = GradientShared<kScores, kSame, Acc>::bytes(head_bits);
  const int64_t tiles = ceil_div(features.width, int64_t{kGradientLanes} * kVec);
  const auto blocks_of = [](const Csr<Index>& csr) {
    return ceil_div(csr.count, int64_t{kGradientBlock});
  };
  const int64_t src_blocks = blocks_of(by_src), dst_blocks = blocks_of(by_dst);
  if (1 << head_bits > kGradientLanes || (features.heads > 1 && !whole) || tiles > kMaxGridY ||
      by_src.count <= 0 || by_dst.count <= 0 || by_dst.order != nullptr ||
      std::max(by_src.count, by_dst.count) > kMaxEdges || !addressable<T>(features) ||
      src_blocks + 2 * dst_blocks > workspace.blocks || shared > max_shared_memory())
    return cudaErrorInvalidValue;
  const auto side = [](const Csr<Index>& csr) {
    const auto cut = [](int64_t size) {
      return static_cast<unsigned>(std::min<int64_t>(size, std::numeric_limits<Index>::max()));
    };
    return GradientSide{csr.rows,          csr.cols,          csr.order,           cut(csr.count),
                        cut(csr.num_rows), cut(csr.num_cols), cut(csr.num_weights)};
  };
  gradients.by_src = side(by_src);
  gradients.by_dst = side(by_dst);
  gradients.src_blocks = static_cast<unsigned>(src_blocks);
  gradients.dst_blocks = static_cast<unsigned>(dst_blocks);
  gradients.width = static_cast<unsigned>(features.width);
  gradients.heads = static_cast<unsigned>(features.heads);
  gradients.head_bits = head_bits;
  auto* bytes = static_cast<unsigned char*>(workspace.bytes);
  const SourceTails<kScores, kSame, T, Acc> of_src = {bytes, next_tag()};
  bytes += src_blocks * workspace_bytes(features.width, sizeof(Acc));
  const DestinationTails<kScores, kSame, T, Acc> of_dst = {bytes, next_tag()};
  bytes += dst_blocks * workspace_bytes(features.width, sizeof(Acc));
  const VectorParts<Acc, kVec> parts = {bytes, next_tag()};
  const int64_t vector_blocks = kScores == Scores::kLeaky ? kVectorBlocks : 0;
  const dim3 grid(static_cast<unsigned>(src_blocks + dst_blocks + vector_blocks),
                  static_cast<unsigned>(tiles));
  return launch(stream, {grid, kGradientThreads, static_cast<size_t>(shared)},
                gradients_kernel<kScores, kSame, T, Acc>, gradients, of_src, of_dst, parts);
}

}  // namespace

template <typename T, typename Acc>
cudaError_t keyed_attention_gradients(cudaStream_t stream, const Csr<Index>& by_dst,
                                      const Csr<Index>& by_src, const T* value,
                                      const Attained<T, Acc>& attained, const Keys<T, Acc>& keys,
                                      const Acc* edge_scale, Features features, T* to_value,
                                      T* to_row_key, T* to_col_key, Acc* to_vector,
                                      const Workspace& workspace) {
  if (!fits<16 / sizeof(T), T>(features, {value, attained.y, attained.ct, keys.row_key,
                                          keys.col_key, to_value, to_row_key, to_col_key}))
    return cudaErrorInvalidValue;
  Gradients<T, Acc> gradients = {};
  gradients.value = value;
  gradients.attained = attained;
  gradients.attention.edge_scale = edge_scale;
  gradients.keys = keys;
  gradients.to_value = to_value;
  gradients.to_col_key = to_col_key;
  gradients.to_row_key = to_row_key;
  gradients.to_vector = to_vector;
  const bool same = to_col_key == nullptr, leaky = keys.vector != nullptr;
  const auto launch_kind = leaky  ? same ? launch_gradients<Scores::kLeaky, true, T, Acc>
                                         : launch_gradients<Scores::kLeaky, false, T, Acc>
                           : same ? launch_gradients<Scores::kDots, true, T, Acc>
                                  : launch_gradients<Scores::kDots, false, T, Acc>;
  return launch_kind(stream, by_dst, by_src, gradients, features, workspace);
}

template <typename T, typename Acc>
cudaError_t attention_gradients(cudaStream_t stream, const Csr<Index>& by_dst,
                                const Csr<Index>& by_src, const T* value,
                                const Attained<T, Acc>& attained, const Attention<Acc>& attention,
                                Features features, T* to_value, Acc* to_src_score,
                                Acc* to_dst_score, const Workspace& workspace) {
  if (attention.dst_score == nullptr ||
      !fits<16 / sizeof(T), T>(features, {value, attained.y, attained.ct, to_value}))
    return cudaErrorInvalidValue;
  Gradients<T, Acc> gradients = {};
  gradients.value = value;
  gradients.attained = attained;
  gradients.attention = attention;
  gradients.to_value = to_value;
  gradients.to_src_score = to_src_score;
  gradients.to_dst_score = to_dst_score;
  return launch_gradients<Scores::kOfHeads, false, T, Acc>(stream, by_dst, by_src, gradients,
                                                           features, workspace);
}

#define JAX_GNN_INSTANTIATE(T, Acc)                    \
  JAX_GNN_INSTANCE(keyed_attention_gradients<T, Acc>); \
  JAX_GNN_INSTANCE(attention_gradients<T, Acc>);

}  // namespace jax_gnn::cuda
