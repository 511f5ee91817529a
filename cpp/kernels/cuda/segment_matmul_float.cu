#include "segment_matmul_launch.h"
#include "segment_outer_launch.h"

namespace jax_gnn::cuda {

template cudaError_t segment_matmul(cudaStream_t, const MatmulSchedule&, const Groups&, int64_t,
                                    int64_t, bool, bool, Activation, const float*, const float*,
                                    const float*, const float*, const RowLists<float>&, float*);
template cudaError_t segment_outer(cudaStream_t, const MatmulSchedule&, const Groups&, int64_t,
                                   int64_t, bool, bool, const float*, const float*,
                                   const FactorLists<float>&, float*, void*);

}  // namespace jax_gnn::cuda
