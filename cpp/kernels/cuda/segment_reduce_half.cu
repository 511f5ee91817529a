// Instances for half types.
#include "segment_reduce_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANCE(segment_reduce<__half, float>);
JAX_GNN_INSTANCE(segment_reduce<__nv_bfloat16, float>);

}  // namespace jax_gnn::cuda
