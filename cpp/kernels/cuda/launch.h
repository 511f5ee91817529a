// Launches, the host's side: what a launch consists of, what GPUs allow, and what arrays do.
//
// launch() starts a kernel that, unless its plan says otherwise, may overlap the one ahead of it in
// the stream, as the kernel waits for that by itself (basics.cuh). Nothing here allocates,
// synchronises, or remembers a device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "basics.cuh"

// Returns from a launcher with the error of a call that fails.
#define JAX_GNN_RETURN_IF_CUDA_ERROR(...) \
  if (const cudaError_t failure = __VA_ARGS__; failure != cudaSuccess) return failure

namespace jax_gnn::cuda {

constexpr int64_t kMaxGridX = 0x7fffffff;
constexpr int64_t kMaxGridY = 65535;

inline bool aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Whether rows of `width` features can be read in words of kVec.
template <int kVec, typename T>
bool readable(const T* features, int64_t width) {
  return width % kVec == 0 && aligned(features, kVec * sizeof(T));
}

// What ids of rows of an array of that size are below: for is_id.
template <typename Index>
std::make_unsigned_t<Index> id_bound(int64_t size) {
  constexpr Index kMax = std::numeric_limits<Index>::max();
  return static_cast<std::make_unsigned_t<Index>>(size > kMax ? int64_t{kMax} : size) +
         (size > kMax);
}

// An attribute of the current device; 0 if there is none.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  const bool success = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
  return success ? value : 0;
}

// The major number. 9 is Hopper, whose matrix instructions are its own.
inline int compute_capability() { return device_attribute(cudaDevAttrComputeCapabilityMajor); }

// 1 if there is no device.
inline int num_multiprocessors() {
  return largest(device_attribute(cudaDevAttrMultiProcessorCount), 1);
}

// Bytes that a block may have at most.
inline int max_shared_memory() { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

// Shape of a launch, which the host chooses.
struct Plan {
  dim3 grid;
  int threads;           // of a block
  size_t shared;         // dynamic, bytes
  bool overlaps = true;  // whether it may start before the kernel ahead of it has ended
};

// Dynamic shared memory that every kernel may have unasked, bytes: what its own arrays, which are
// no larger than 40 KiB, leave of 48.
constexpr size_t kUnaskedShared = 8 << 10;

// Allows a kernel the plan's shared memory.
template <typename Kernel>
cudaError_t allow_shared(Kernel* kernel, const Plan& plan) {
  if (plan.shared <= kUnaskedShared) return cudaSuccess;
  // What is allowed belongs to the kernel on the current device. It is asked for at every launch,
  // so that nothing need be remembered of devices; it is no work of the stream, and may be done
  // while that is captured.
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(plan.shared));
}

// The plan as CUDA takes it.
inline cudaLaunchConfig_t configuration(cudaStream_t stream, const Plan& plan,
                                        cudaLaunchAttribute& overlap) {
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = plan.grid;
  config.blockDim = dim3(plan.threads);
  config.dynamicSmemBytes = plan.shared;
  config.stream = stream;
  config.attrs = &overlap;
  // Overlapping launches came with Hopper.
  config.numAttrs = plan.overlaps && compute_capability() >= 9 ? 1 : 0;
  return config;
}

// A kernel that may start before the one ahead of it has ended waits by itself.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(cudaStream_t stream, const Plan& plan, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  JAX_GNN_RETURN_IF_CUDA_ERROR(allow_shared(kernel, plan));
  cudaLaunchAttribute overlap = {};
  const cudaLaunchConfig_t config = configuration(stream, plan, overlap);
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// The same of a kernel whose types are not known here: its parameters by address.
inline cudaError_t launch_by_address(cudaStream_t stream, const Plan& plan, const void* kernel,
                                     void** parameters) {
  JAX_GNN_RETURN_IF_CUDA_ERROR(allow_shared(kernel, plan));
  cudaLaunchAttribute overlap = {};
  const cudaLaunchConfig_t config = configuration(stream, plan, overlap);
  return cudaLaunchKernelExC(&config, kernel, parameters);
}

}  // namespace jax_gnn::cuda
