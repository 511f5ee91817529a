#include "relational_aggregate_launch.h"

namespace jax_gnn::cuda {

#define JAX_GNN_INSTANTIATE(T, Acc)                                                             \
  template cudaError_t relational_aggregate(cudaStream_t, const Tiles&, int64_t, int64_t, bool, \
                                            bool, bool, Activation, const T*, const T*,         \
                                            const Acc*, const T*, void*, void*);

JAX_GNN_INSTANTIATE(float, float)
JAX_GNN_INSTANTIATE(double, double)
JAX_GNN_INSTANTIATE(__half, float)
JAX_GNN_INSTANTIATE(__nv_bfloat16, float)

}  // namespace jax_gnn::cuda
