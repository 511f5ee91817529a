// Instances for float64.
#include "segment_fold.h"

namespace jax_gnn::cpu {

template void segment_reduce(const ParallelFor&, const Csr<int32_t>&, Reduce, const double*,
                             const double*, Features, const Epilogue<double, double>&, double*);

}  // namespace jax_gnn::cpu
