// Kernels that come as bytes: cubins that a runtime compiler made (jax_gnn/_ops/edge_region).
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace jax_gnn::cuda {

// The kernel of that name in `code`, of which `digest` tells it from all others. It is loaded once
// for each device, on the current one, and kept to the end of the process. Any thread may ask.
cudaError_t loaded_kernel(std::string_view code, std::string_view digest, std::string_view name,
                          cudaKernel_t* kernel);

}  // namespace jax_gnn::cuda
