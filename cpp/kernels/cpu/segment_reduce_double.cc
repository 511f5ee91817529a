// Instances for float64.
#include "segment_fold.h"
#include "segment_scatter.h"

namespace jax_gnn::cpu {

JAX_GNN_INSTANCE(segment_reduce<double, double, int32_t>);
JAX_GNN_INSTANCE(segment_scatter<double, int32_t>);

}  // namespace jax_gnn::cpu
