// Instances for half.
#include "attention_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANTIATE(__half, float)

}  // namespace jax_gnn::cuda
