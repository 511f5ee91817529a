// Instances of segment_select.
#include "segment_reduce.cuh"

namespace jax_gnn::cuda {

template cudaError_t segment_select(cudaStream_t, const Schedule&, const Segments<int32_t>&,
                                    const Select<float, float>&, Features, float*, void*);
template cudaError_t segment_select(cudaStream_t, const Schedule&, const Segments<int32_t>&,
                                    const Select<double, double>&, Features, double*, void*);
template cudaError_t segment_select(cudaStream_t, const Schedule&, const Segments<int32_t>&,
                                    const Select<__half, float>&, Features, __half*, void*);
template cudaError_t segment_select(cudaStream_t, const Schedule&, const Segments<int32_t>&,
                                    const Select<__nv_bfloat16, float>&, Features, __nv_bfloat16*,
                                    void*);

}  // namespace jax_gnn::cuda
