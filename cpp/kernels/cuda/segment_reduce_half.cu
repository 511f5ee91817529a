// Instances for half types.
#include "segment_reduce_launch.h"

namespace jax_gnn::cuda {

template cudaError_t segment_reduce(cudaStream_t, const Schedule&, const Csr<int32_t>&, Reduce,
                                    const Input<__half>&, const float*, Features,
                                    const Epilogue<__half, float>&, __half*, void*);
template cudaError_t segment_reduce(cudaStream_t, const Schedule&, const Csr<int32_t>&, Reduce,
                                    const Input<__nv_bfloat16>&, const float*, Features,
                                    const Epilogue<__nv_bfloat16, float>&, __nv_bfloat16*, void*);

}  // namespace jax_gnn::cuda
