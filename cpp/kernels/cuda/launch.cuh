// Launches that overlap the one ahead of them in the stream, and what their cuts are made of.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

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

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

// a / b of numbers that are not negative. GPUs divide 32 bits several times as fast as 64.
__host__ __device__ inline int64_t divide(int64_t a, int64_t b) {
  if ((a | b) >> 32 != 0) return a / b;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

// Where part `index` of `parts` even parts of [0, count) begins.
__host__ __device__ inline int64_t split(int64_t count, int64_t index, int64_t parts) {
  const int64_t even = divide(count, parts), rest = count - even * parts;
  return even * index + (index < rest ? index : rest);
}

inline bool aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Whether rows of `width` features can be read in words of kVec.
template <int kVec, typename T>
bool readable(const T* features, int64_t width) {
  return width % kVec == 0 && aligned(features, kVec * sizeof(T));
}

// Ids are compared in their own width, as unsigned numbers: negative ones are then too large.
template <typename Index>
std::make_unsigned_t<Index> id_bound(int64_t size) {
  constexpr Index kMax = std::numeric_limits<Index>::max();
  return static_cast<std::make_unsigned_t<Index>>(size > kMax ? int64_t{kMax} : size) +
         (size > kMax);
}

template <typename Index>
__device__ __forceinline__ bool is_id(Index id, std::make_unsigned_t<Index> bound) {
  return static_cast<std::make_unsigned_t<Index>>(id) < bound;
}

// The major number; 0 if there is no device. 9 is Hopper, whose matrix instructions are its own.
inline int compute_capability() {
  int device = 0, major = 0;
  const bool found =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
  return found ? major : 0;
}

// Bytes that a block may have at most.
inline int most_shared_memory() {
  int device = 0, bytes = 0;
  const bool found = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                            device) == cudaSuccess;
  return found ? bytes : 0;
}

// What the host decides about a launch.
struct Plan {
  dim3 grid;
  int threads;    // of a block
  size_t shared;  // dynamic, bytes
};

// Dynamic shared memory that a kernel may have unasked, bytes.
constexpr size_t kUnaskedShared = 48 << 10;

// The kernel may start before the one ahead of it has ended: it waits by itself.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(cudaStream_t stream, const Plan& plan, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  if (plan.shared > kUnaskedShared) {
    // What is allowed belongs to the kernel on the current device. It is asked for at every launch,
    // so that nothing need be remembered of devices; it is no work of the stream, and may be done
    // while that is captured.
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(plan.shared));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = plan.grid;
  config.blockDim = dim3(plan.threads);
  config.dynamicSmemBytes = plan.shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = compute_capability() >= 9 ? 1 : 0;  // they came with Hopper
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace jax_gnn::cuda
