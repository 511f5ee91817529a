#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../hypergraph.h"
#include "../workspace.h"

namespace jax_gnn::cuda {

// y = diag(node_out) B diag(hyperedge) A diag(node_in) x, with the incidence matrices A of
// `to_hyperedges`, (num_hyperedges, num_nodes), and B of `to_nodes`, (num_nodes, num_hyperedges),
// and with `own` added. x, y: (num_nodes, width). `threads` of a block. Workspaces: `sums`,
// (num_hyperedges, width), and one of each sum (segments.h), which also says how many blocks share
// its slots. Ids and places are checked: an incidence with an id out of range is padding. No
// allocation, no synchronisation, the same bits on every run.
template <typename T, typename Acc>
cudaError_t hypergraph_aggregate(cudaStream_t stream, int threads, const EdgeSplit& to_hyperedges,
                                 const EdgeSplit& to_nodes, const T* x,
                                 const HypergraphScales<Acc>& scales, const Own<T, Acc>& own,
                                 int64_t width, T* y, Acc* sums, const Workspace& workspace,
                                 const Workspace& next_workspace);

}  // namespace jax_gnn::cuda
