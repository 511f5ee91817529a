// Instances for float.
#include "attention_gradients_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANTIATE(float, float)

}  // namespace jax_gnn::cuda
