// Instances for float.
#include "attention_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANTIATE(float, float)

}  // namespace jax_gnn::cuda
