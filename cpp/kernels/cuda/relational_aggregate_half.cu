#include "relational_aggregate_launch.h"

namespace jax_gnn::cuda {

template cudaError_t relational_aggregate(cudaStream_t, const Tiles&, int64_t, int64_t, bool, bool,
                                          bool, Activation, const __half*, const __half*,
                                          const float*, const __half*, void*, void*);

}  // namespace jax_gnn::cuda
