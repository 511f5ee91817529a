// In place of CUDA's: what the host's side of the kernels uses.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <type_traits>

#include "emulator.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
};
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidConfiguration ? "invalid configuration argument"
                                                : "invalid argument";
}

// Launches end before they return: streams order nothing.
struct emulated_stream;
using cudaStream_t = emulated_stream*;

enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
  cudaDevAttrMultiProcessorCount,
};

// A machine of two GPUs; which one is current is up to each thread.
namespace emulator {
constexpr int kDevices = 2;
inline thread_local int current_device = 0;
}  // namespace emulator
inline cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= emulator::kDevices) return cudaErrorInvalidValue;
  emulator::current_device = device;
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulator::kDevices;
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = emulator::current_device;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9
           : attribute == cudaDevAttrMultiProcessorCount  ? 2
                                                          : 227 << 10;
  return cudaSuccess;
}

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
namespace emulator {
// Of each kernel on each device: the dynamic shared memory that it may have. Unasked, a GPU grants
// 48 KiB, a kernel's own arrays among them, whose size is not known here: so what is left beside
// the largest.
inline std::mutex asking;
inline std::map<std::pair<int, const void*>, size_t> allowed_shared;
template <typename Kernel>
size_t& most_shared(Kernel* kernel) {
  const auto key = std::make_pair(current_device, reinterpret_cast<const void*>(kernel));
  return allowed_shared.emplace(key, 8 << 10).first->second;
}
}  // namespace emulator
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int value) {
  if (value < 0 || value > 227 << 10) return cudaErrorInvalidValue;
  const std::lock_guard lock(emulator::asking);
  emulator::most_shared(kernel) = static_cast<size_t>(value);
  return cudaSuccess;
}

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  {
    const std::lock_guard lock(emulator::asking);
    if (config->dynamicSmemBytes > emulator::most_shared(kernel)) return cudaErrorInvalidValue;
  }
  const std::tuple<std::decay_t<Parameters>...> copies(arguments...);
  const bool taken = emulator::run(config->gridDim, config->blockDim, config->dynamicSmemBytes,
                                   [&] { std::apply(kernel, copies); });
  return taken ? cudaSuccess : cudaErrorInvalidConfiguration;
}
