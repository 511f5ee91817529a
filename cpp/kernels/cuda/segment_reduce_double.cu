// Instances for double and integers.
#include "segment_reduce_launch.h"

namespace jax_gnn::cuda {

template cudaError_t segment_reduce(cudaStream_t, const Schedule&, const Csr<int32_t>&, Reduce,
                                    const Input<double>&, const double*, Features,
                                    const Epilogue<double, double>&, double*, void*);
template cudaError_t segment_reduce(cudaStream_t, const Schedule&, const Csr<int32_t>&, Reduce,
                                    const Input<int32_t>&, const int32_t*, Features,
                                    const Epilogue<int32_t, int32_t>&, int32_t*, void*);
template cudaError_t segment_reduce(cudaStream_t, const Schedule&, const Csr<int32_t>&, Reduce,
                                    const Input<int64_t>&, const int64_t*, Features,
                                    const Epilogue<int64_t, int64_t>&, int64_t*, void*);

}  // namespace jax_gnn::cuda
