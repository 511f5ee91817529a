// The Python module jax_gnn._cuda: CUDA handlers. It imports without a GPU or a driver.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>

#include <string>

#include "../kernels/cuda/hypergraph_aggregate.h"
#include "hypergraph_aggregate.h"
#include "module.h"

namespace jax_gnn {
namespace {

struct Cuda {
  using Context = cudaStream_t;
  using Half = __half;
  using BFloat16 = __nv_bfloat16;

  template <typename... Args>
  static ffi::Error gather_reduce(Context stream, const Args&... args) {
    return status(cuda::gather_reduce(stream, cuda::Start::kWaits, args...));
  }

  template <typename... Args>
  static ffi::Error gather_reduce_next(Context stream, const Args&... args) {
    return status(cuda::gather_reduce(stream, cuda::Start::kReadsAhead, args...));
  }

  template <typename... Args>
  static ffi::Error gather_dot(Context stream, const Args&... args) {
    return status(cuda::gather_dot(stream, args...));
  }

 private:
  static ffi::Error status(cudaError_t error) {
    if (error == cudaSuccess) return ffi::Error::Success();
    return ffi::Error(ffi::ErrorCode::kInternal,
                      std::string("jax_gnn: CUDA error: ") + cudaGetErrorString(error));
  }
};

// Handlers only launch on the given stream, so XLA may record them into command buffers.
XLA_FFI_DEFINE_HANDLER(
    kHypergraphAggregate,
    [](cudaStream_t stream, auto... args) { return hypergraph_aggregate<Cuda>(stream, args...); },
    bind_hypergraph_aggregate(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(
    kHyperedgeDot,
    [](cudaStream_t stream, auto... args) { return hyperedge_dot<Cuda>(stream, args...); },
    bind_hyperedge_dot(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});

}  // namespace

NB_MODULE(_cuda, m) {
  m.def("targets", [] {
    return targets(
        {{"hypergraph_aggregate", kHypergraphAggregate}, {"hyperedge_dot", kHyperedgeDot}});
  });
  m.attr("compiler") = JAX_GNN_CUDA_COMPILER;
  m.attr("architectures") = JAX_GNN_CUDA_ARCHITECTURES;
}

}  // namespace jax_gnn
