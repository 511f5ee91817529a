#include "segment_matmul_launch.h"
#include "segment_outer_launch.h"

namespace jax_gnn::cuda {

JAX_GNN_INSTANCE(segment_matmul<double, double, double>);
JAX_GNN_INSTANCE(segment_outer<double, double, double>);

}  // namespace jax_gnn::cuda
