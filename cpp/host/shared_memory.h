// The function of jax_gnn._cuda that Python calls on the host.
#pragma once

#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>

#include <algorithm>

namespace jax_gnn::host {

inline void define_shared_memory(nanobind::module_& m) {
  m.def(
      "shared_memory",
      [] {
        int count = 0, bytes = 0;
        if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
        for (int device = 0; device < count; ++device) {
          int of_device = 0;
          cudaDeviceGetAttribute(&of_device, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
          bytes = device == 0 ? of_device : std::min(bytes, of_device);
        }
        return bytes;
      },
      "Return the bytes of shared memory that a block may have on every GPU; 0 without GPUs.");
}

}  // namespace jax_gnn::host
