// Edge regions, the host's side. What is launched was compiled at run time, so its parameters are
// passed by address; they are those of reduce_kernel and tile_kernel, whatever the text.
#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "edge_region.cuh"
#include "edge_region.h"
#include "loaded_kernels.h"
#include "segment_walk_launch.h"

namespace jax_gnn::cuda {
namespace {

static_assert(kMaxRegionArrays == kMaxArrays);

// What parameters look like whose types depend on the text: RegionMessage, Output and Tails.
struct MessageParameter {
  Arrays in, out;
};
struct OutputParameter {
  void* out;
  int64_t num_rows, width;
  Arrays arrays;
};
struct TailsParameter {
  void* base;
  uint64_t tag;
};

}  // namespace

cudaError_t loaded_kernel(std::string_view code, std::string_view digest, std::string_view name,
                          cudaKernel_t* kernel) {
  using Kernels = std::map<std::string, cudaKernel_t, std::less<>>;  // by digest
  static std::shared_mutex loading;
  static std::map<int, Kernels> of_devices;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const auto find = [&] {
    const auto kernels = of_devices.find(device);
    if (kernels == of_devices.end()) return false;
    const auto kernel_of_digest = kernels->second.find(digest);
    if (kernel_of_digest == kernels->second.end()) return false;
    *kernel = kernel_of_digest->second;
    return true;
  };
  {
    const std::shared_lock lock(loading);
    if (find()) return cudaSuccess;
  }
  const std::unique_lock lock(loading);
  if (find()) return cudaSuccess;
  const std::string bytes(code);  // aligned, as an attribute need not be
  cudaLibrary_t library;
  error = cudaLibraryLoadData(&library, bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error != cudaSuccess) return error;
  error = cudaLibraryGetKernel(kernel, library, std::string(name).c_str());
  if (error != cudaSuccess) {
    cudaLibraryUnload(library);
    return error;
  }
  of_devices[device].emplace(digest, *kernel);
  return cudaSuccess;
}

cudaError_t load_region(const RegionText& text) {
  cudaKernel_t kernel;
  cudaError_t error = loaded_kernel(text.code, text.digest, text.name, &kernel);
  if (error != cudaSuccess) return error;
  // Code is brought to the device when it is first asked for: not while a stream is recorded.
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

cudaError_t edge_region(cudaStream_t stream, const Schedule& schedule, const Csr<int32_t>& csr,
                        const RegionText& text, void* const* in, void* const* out,
                        void* workspace) {
  cudaKernel_t kernel;
  cudaError_t error = loaded_kernel(text.code, text.digest, text.name, &kernel);
  if (error != cudaSuccess) return error;
  MessageParameter message;
  std::copy_n(in, kMaxArrays, message.in.at);
  std::copy_n(out, kMaxArrays, message.out.at);
  const int lanes = schedule.lanes, threads = schedule.threads;
  const int64_t tiles = ceil_div(text.slots, lanes * text.vec);
  const int64_t step = 32 / lanes * text.unroll, warps = schedule.blocks * (threads / 32);
  Cut cut = {};
  cut.width = text.slots;
  while (1 << cut.lane_bits < lanes) ++cut.lane_bits;
  cut.per_warp = ceil_div(ceil_div(csr.count, warps), step) * step;
  cut.aligned = aligned(csr.rows, 16) && aligned(csr.cols, 16) && aligned(csr.order, 16);
  const int64_t blocks = ceil_div(csr.count, cut.per_warp * (threads / 32));
  if (tiles > kMaxGridY || blocks > kMaxGridX || cut.per_warp > 0x7fffffff)
    return cudaErrorInvalidConfiguration;
  OutputParameter output = {workspace, csr.num_rows, text.slots, message.out};
  int64_t heads = 1;
  bool fills = true;
  Start start = Start::kWaits;
  TailsParameter tails = {workspace, next_tag()};
  Csr<int32_t> entries = csr;
  void* parameters[] = {&entries, &message, &cut, &output, &heads, &fills, &start, &tails};
  const size_t runs = (threads / 32 * 2 * lanes * text.parts * text.acc_bytes + 15) / 16 * 16;
  const size_t shared = runs + static_cast<size_t>(text.shared);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  return launch_by_address(stream, {grid, threads, shared}, reinterpret_cast<const void*>(kernel),
                           parameters);
}

}  // namespace jax_gnn::cuda
