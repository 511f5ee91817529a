// Instances for float32.
#include "segment_fold.h"
#include "segment_scatter.h"

namespace jax_gnn::cpu {

JAX_GNN_INSTANCE(segment_reduce<float, float, int32_t>);
JAX_GNN_INSTANCE(segment_scatter<float, int32_t>);

}  // namespace jax_gnn::cpu
