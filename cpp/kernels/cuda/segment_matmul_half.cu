#include "segment_matmul_launch.h"
#include "segment_outer_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANCE(segment_matmul<__half, float, __half>);
JAX_GNN_INSTANCE(segment_outer<__half, float, __half>);
JAX_GNN_INSTANCE(segment_matmul<__half, float, float>);
JAX_GNN_INSTANCE(segment_outer<__half, float, float>);

}  // namespace jax_gnn::cuda
