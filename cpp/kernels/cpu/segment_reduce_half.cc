// Instances for half types.
#include "segment_fold.h"

namespace jax_gnn::cpu {

template void segment_reduce(const ParallelFor&, const Csr<int32_t>&, Reduce, const Half*,
                             const float*, Features, Half*);
template void segment_reduce(const ParallelFor&, const Csr<int32_t>&, Reduce, const BFloat16*,
                             const float*, Features, BFloat16*);

}  // namespace jax_gnn::cpu
