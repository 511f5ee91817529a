#include "segment_matmul_launch.h"
#include "segment_outer_launch.h"

namespace jax_gnn::cuda {

template cudaError_t segment_matmul(cudaStream_t, const MatmulSchedule&, const Groups&, int64_t,
                                    int64_t, bool, bool, Activation, const double*, const double*,
                                    const double*, const double*, const RowLists<double>&, double*);
template cudaError_t segment_outer(cudaStream_t, const MatmulSchedule&, const Groups&, int64_t,
                                   int64_t, bool, bool, const double*, const double*,
                                   const FactorLists<double>&, double*, void*);

}  // namespace jax_gnn::cuda
