// Instances for half types.
#include "segment_fold.h"

namespace jax_gnn::cpu {

JAX_GNN_INSTANCE(segment_reduce<Half, float, int32_t>);
JAX_GNN_INSTANCE(segment_reduce<BFloat16, float, int32_t>);

}  // namespace jax_gnn::cpu
