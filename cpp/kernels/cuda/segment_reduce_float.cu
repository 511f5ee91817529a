// Instances for float.
#include "segment_reduce_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANCE(segment_reduce<float, float>);

}  // namespace jax_gnn::cuda
