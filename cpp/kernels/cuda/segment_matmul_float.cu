#include "segment_matmul_launch.h"
#include "segment_outer_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANCE(segment_matmul<float, float, float>);
JAX_GNN_INSTANCE(segment_outer<float, float, float>);

}  // namespace jax_gnn::cuda
