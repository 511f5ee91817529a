// Instances for half.
#include "attention_gradients_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANTIATE(__half, float)

}  // namespace jax_gnn::cuda
