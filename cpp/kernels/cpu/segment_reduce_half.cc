// Instances for half types.
#include "segment_fold.h"

namespace jax_gnn::cpu {

template void segment_reduce(const ParallelFor&, const Csr<int32_t>&, Reduce, const Half*,
                             const float*, Features, const Epilogue<Half, float>&, Half*);
template void segment_reduce(const ParallelFor&, const Csr<int32_t>&, Reduce, const BFloat16*,
                             const float*, Features, const Epilogue<BFloat16, float>&, BFloat16*);

}  // namespace jax_gnn::cpu
