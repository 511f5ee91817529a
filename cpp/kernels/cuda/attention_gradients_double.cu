// Instances for double.
#include "attention_gradients_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANTIATE(double, double)

}  // namespace jax_gnn::cuda
