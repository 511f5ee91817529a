// In place of CUDA's: what the host's side of the kernels uses.
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>

#include "emulator.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidKernelImage = 200,
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

// ---- Kernels that come as bytes

// Shared objects in place of cubins. A kernel is there a function that runs a whole launch, see
// region_text.h.
using emulated_launch = bool(dim3 grid, dim3 block, size_t shared, void** parameters);
using cudaLibrary_t = void*;
using cudaKernel_t = emulated_launch*;

inline cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, void*, void*,
                                       unsigned, void*, void*, unsigned) {
  const int file = memfd_create("kernels", MFD_CLOEXEC);
  const char* at = static_cast<const char*>(code);
  uint64_t left = 0;  // the bytes are led by how many follow, as a cubin's headers tell its size
  std::memcpy(&left, at, sizeof left);
  at += sizeof left;
  while (left > 0) {
    const ssize_t written = write(file, at, left);
    if (written <= 0) return cudaErrorInvalidKernelImage;
    at += written;
    left -= static_cast<uint64_t>(written);
  }
  // The file stays open: a second one of the same number would be taken for the first.
  *library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  return *library != nullptr ? cudaSuccess : cudaErrorInvalidKernelImage;
}
inline cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  dlclose(library);
  return cudaSuccess;
}
inline cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library,
                                        const char* name) {
  *kernel = reinterpret_cast<cudaKernel_t>(dlsym(library, name));
  return *kernel != nullptr ? cudaSuccess : cudaErrorInvalidValue;
}
struct cudaFuncAttributes {};
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }

inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** parameters) {
  {
    const std::lock_guard lock(emulator::asking);
    if (config->dynamicSmemBytes > emulator::most_shared(kernel)) return cudaErrorInvalidValue;
  }
  const auto run = reinterpret_cast<cudaKernel_t>(const_cast<void*>(kernel));
  return run(config->gridDim, config->blockDim, config->dynamicSmemBytes, parameters)
             ? cudaSuccess
             : cudaErrorInvalidConfiguration;
}
