// Instances for double and integers.
#include "segment_reduce_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANCE(segment_reduce<double, double>);
JAX_GNN_INSTANCE(segment_reduce<int32_t, int32_t>);
JAX_GNN_INSTANCE(segment_reduce<int64_t, int64_t>);

}  // namespace jax_gnn::cuda
