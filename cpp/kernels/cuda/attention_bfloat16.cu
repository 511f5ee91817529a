// Instances for bfloat16.
#include "attention_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANTIATE(__nv_bfloat16, float)

}  // namespace jax_gnn::cuda
