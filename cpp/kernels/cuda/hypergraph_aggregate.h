#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../csr.h"
#include "segment_reduce.h"

namespace jax_gnn::cuda {

struct HypergraphSchedule {
  bool by_rows;  // for small hypergraphs, else by incidences, as the schedules say
  Schedule to_hyperedges, to_nodes;
};

// y = diag(node_out) B diag(hyperedge) A diag(node_in) x, with the incidence matrices A of
// `to_hyperedges`, (num_hyperedges, num_nodes), and B of `to_nodes`, (num_nodes, num_hyperedges).
// x, y: (num_nodes, width). Workspaces: `sums`, (num_hyperedges, width), and those of the two
// schedules, see segment_reduce.h. Ids are checked: an incidence with one out of range is padding.
// No allocation, no synchronisation, the same bits on every run.
template <typename T, typename Acc>
cudaError_t hypergraph_aggregate(cudaStream_t stream, const HypergraphSchedule& schedule,
                                 const Incidences<int32_t>& to_hyperedges,
                                 const Incidences<int32_t>& to_nodes, const T* x,
                                 const HypergraphScales<Acc>& scales, int64_t width, T* y,
                                 Acc* sums, void* workspace, void* next_workspace);

}  // namespace jax_gnn::cuda
