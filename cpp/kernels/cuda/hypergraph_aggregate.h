#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../hypergraph.h"
#include "../workspace.h"

namespace jax_gnn::cuda {

// `threads` of a block. There is a workspace of each sum (workspace.h), which also says how many
// blocks share its slots. Ids and places are checked: an incidence with an id out of range is
// padding. No allocation, no synchronisation, the same bits on every run.
template <typename T, typename Acc>
cudaError_t hypergraph_aggregate(cudaStream_t stream, int threads, const Workspace& workspace,
                                 const Workspace& next_workspace,
                                 const Aggregation<EdgeSplit, T, Acc>& aggregation);

}  // namespace jax_gnn::cuda
