// The two sums of a hypergraph aggregation, of nodes over hyperedges and of hyperedges over nodes:
// two launches in one call. The second begins while the first ends: it has its first ids when the
// sums of the hyperedges are there. These stay in L2 where they fit.

#include "edge_split_launch.h"
#include "hypergraph_aggregate.h"

namespace jax_gnn::cuda {

template <typename T, typename Acc>
cudaError_t hypergraph_aggregate(cudaStream_t stream, int threads, const Workspace& workspace,
                                 const Workspace& next_workspace,
                                 const Aggregation<EdgeSplit, T, Acc>& aggregation) {
  const auto& [to_hyperedges, to_nodes, x, scales, epilogue, width, y, sums] = aggregation;
  if (to_nodes.num_rows <= 0 || width <= 0) return cudaSuccess;
  if (width > static_cast<int64_t>(0xffffffffu / sizeof(Acc))) return cudaErrorInvalidValue;
  if (to_hyperedges.num_rows > 0) {
    JAX_GNN_RETURN_IF_CUDA_ERROR(row_sums(stream, Turn::kFirst, threads, to_hyperedges, x,
                                          scales.node_in, scales.hyperedge, NoEpilogue{}, width,
                                          sums, workspace));
  }
  const auto to_result = [&, &all = aggregation](const auto& epilogue) {
    const Acc* ones = nullptr;
    const bool has_first = all.to_hyperedges.num_rows > 0;
    return row_sums(stream, has_first ? Turn::kSecond : Turn::kOnly, threads, all.to_nodes,
                    static_cast<const Acc*>(all.sums), ones, all.scales.node_out, epilogue,
                    all.width, all.y, next_workspace);
  };
  return epilogue.any() ? to_result(epilogue) : to_result(NoEpilogue{});
}

#define JAX_GNN_INSTANTIATE(T, Acc) JAX_GNN_INSTANCE(hypergraph_aggregate<T, Acc>);

JAX_GNN_FOR_FLOATS_AND(JAX_GNN_INSTANTIATE, __half, __nv_bfloat16)

}  // namespace jax_gnn::cuda
