// Instances for integers.
#include "segment_fold.h"
#include "segment_scatter.h"

namespace jax_gnn::cpu {

template void segment_reduce(const ParallelFor&, const Csr<int32_t>&, Reduce, const int32_t*,
                             const int32_t*, Features, const Epilogue<int32_t, int32_t>&, int32_t*);
template void segment_reduce(const ParallelFor&, const Csr<int32_t>&, Reduce, const int64_t*,
                             const int64_t*, Features, const Epilogue<int64_t, int64_t>&, int64_t*);
template void segment_scatter(const ParallelFor&, int64_t, const int32_t*, int64_t, int64_t, Reduce,
                              const int32_t*, int64_t, int32_t*);
template void segment_scatter(const ParallelFor&, int64_t, const int32_t*, int64_t, int64_t, Reduce,
                              const int64_t*, int64_t, int64_t*);

}  // namespace jax_gnn::cpu
