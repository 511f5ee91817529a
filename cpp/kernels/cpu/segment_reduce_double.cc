// Instances for float64.
#include "segment_fold.h"
#include "segment_scatter.h"

namespace jax_gnn::cpu {

template void segment_reduce(const ParallelFor&, const Csr<int32_t>&, Reduce, const double*,
                             const double*, Features, const Epilogue<double, double>&, double*);
template void segment_scatter(const ParallelFor&, int64_t, const int32_t*, int64_t, int64_t, Reduce,
                              const double*, int64_t, double*);

}  // namespace jax_gnn::cpu
