// Instances for integers.
#include "segment_fold.h"
#include "segment_scatter.h"

namespace jax_gnn::cpu {

JAX_GNN_INSTANCE(segment_reduce<int32_t, int32_t, int32_t>);
JAX_GNN_INSTANCE(segment_reduce<int64_t, int64_t, int32_t>);
JAX_GNN_INSTANCE(segment_scatter<int32_t, int32_t>);
JAX_GNN_INSTANCE(segment_scatter<int64_t, int32_t>);

}  // namespace jax_gnn::cpu
