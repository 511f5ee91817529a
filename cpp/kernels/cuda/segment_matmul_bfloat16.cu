#include "segment_matmul_launch.h"
#include "segment_outer_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANCE(segment_matmul<__nv_bfloat16, float, __nv_bfloat16>);
JAX_GNN_INSTANCE(segment_outer<__nv_bfloat16, float, __nv_bfloat16>);
JAX_GNN_INSTANCE(segment_matmul<__nv_bfloat16, float, float>);
JAX_GNN_INSTANCE(segment_outer<__nv_bfloat16, float, float>);

}  // namespace jax_gnn::cuda
