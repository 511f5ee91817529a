// Instances for float32.
#include "segment_fold.h"
#include "segment_scatter.h"

namespace jax_gnn::cpu {

template void segment_reduce(const ParallelFor&, const Csr<int32_t>&, Reduce, const float*,
                             const float*, Features, const Epilogue<float, float>&, float*);
template void segment_scatter(const ParallelFor&, int64_t, const int32_t*, int64_t, int64_t, Reduce,
                              const float*, int64_t, float*);

}  // namespace jax_gnn::cpu
