// Instances of segment_reduce_vjp.
#include "segment_reduce.cuh"

namespace jax_gnn::cuda {

#define JAX_GNN_INSTANTIATE(T, Acc)                                                                \
  template cudaError_t segment_reduce_vjp(cudaStream_t, const Schedule&, const Segments<int32_t>&, \
                                          const T*, const Acc*, const T*, Features, T*, Acc*,      \
                                          void*);
JAX_GNN_INSTANTIATE(float, float)
JAX_GNN_INSTANTIATE(double, double)
JAX_GNN_INSTANTIATE(__half, float)
JAX_GNN_INSTANTIATE(__nv_bfloat16, float)

}  // namespace jax_gnn::cuda
