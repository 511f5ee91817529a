// Launches that overlap the one ahead of them in the stream, and what their cuts are made of.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace jax_gnn::cuda {

constexpr int64_t kMaxGridX = 0x7fffffff;
constexpr int64_t kMaxGridY = 65535;
constexpr unsigned kWholeWarp = 0xffffffffu;

// Lets a launch that overlaps this one begin. Before Hopper it begins at the end all the same.
__device__ __forceinline__ void allow_next_launch() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Waits for the launch that this one overlaps, if any, and for what it has written.
__device__ __forceinline__ void wait_for_previous_launch() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

inline bool aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Whether rows of `width` features can be read in words of kVec.
template <int kVec, typename T>
bool readable(const T* features, int64_t width) {
  return width % kVec == 0 && aligned(features, kVec * sizeof(T));
}

// Programmatic dependent launches came with Hopper.
inline bool can_overlap() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9;
}

// What the host decides about a launch.
struct Plan {
  dim3 grid;
  int threads;    // of a block
  size_t shared;  // dynamic, bytes
};

// The kernel may start before the one ahead of it has ended: it waits by itself.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(cudaStream_t stream, const Plan& plan, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = plan.grid;
  config.blockDim = dim3(plan.threads);
  config.dynamicSmemBytes = plan.shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = can_overlap() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace jax_gnn::cuda
