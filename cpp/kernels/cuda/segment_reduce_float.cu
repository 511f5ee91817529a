// Instances for float.
#include "segment_reduce_launch.h"

namespace jax_gnn::cuda {

template cudaError_t segment_reduce(cudaStream_t, const Schedule&, const Csr<int32_t>&, Reduce,
                                    const Input<float>&, const float*, Features,
                                    const Epilogue<float, float>&, float*, void*);

}  // namespace jax_gnn::cuda
