// Instances for float.
#include "edge_attention_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANTIATE(float, float)

}  // namespace jax_gnn::cuda
