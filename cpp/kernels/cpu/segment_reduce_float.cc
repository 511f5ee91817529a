// Instances for float32.
#include "segment_fold.h"

namespace jax_gnn::cpu {

template void segment_reduce(const ParallelFor&, const Csr<int32_t>&, Reduce, const float*,
                             const float*, Features, const Epilogue<float, float>&, float*);

}  // namespace jax_gnn::cpu
