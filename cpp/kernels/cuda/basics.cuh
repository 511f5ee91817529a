// Basics of all device code: the standard headers that a runtime compiler has too
// (rtc/), warps, sizes, even parts of ranges, and launches that overlap the one ahead of them.
//
// Device headers are the files *.cuh of this folder. They include one another, plain structs of the
// folder above, and CUDA's headers for device code, and nothing else: nvcc takes them, NVRTC
// (.ci/device-headers compiles each alone) and, with cpp/emulator, a C++ compiler. What launches
// kernels is in headers *.h, which only hosts include.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ptx.cuh"

namespace jax_gnn::cuda {

constexpr unsigned kWholeWarp = 0xffffffffu;

// Lets the launch after this one begin, which waits by itself for what this one writes. Only where
// that is a launch of the same call: XLA's kernels may read before they wait, as none of XLA's lets
// them begin before its end. Before Hopper it begins at the end all the same.
__device__ __forceinline__ void allow_next_launch() {
#if __CUDA_ARCH__ >= 900
  trigger_next_launch();
#endif
}

// Waits for the launch that this one overlaps, if any, and for what it has written.
__device__ __forceinline__ void wait_for_previous_launch() {
#if __CUDA_ARCH__ >= 900
  synchronize_with_previous_launch();
#endif
}

__host__ __device__ constexpr int least(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int largest(int a, int b) { return a > b ? a : b; }

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

// a / b of numbers that are not negative. GPUs divide 32 bits several times as fast as 64.
__host__ __device__ inline int64_t divide(int64_t a, int64_t b) {
  if ((a | b) >> 32 != 0) return a / b;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

// The begin of part `index` of `parts` even parts of [0, count).
__host__ __device__ inline int64_t split(int64_t count, int64_t index, int64_t parts) {
  const int64_t even = divide(count, parts), rest = count - even * parts;
  return even * index + (index < rest ? index : rest);
}

// Whether an id is below `bound` (see id_bound). Ids are compared in their own width, as unsigned
// numbers: negative ones are then too large.
template <typename Index>
__device__ __forceinline__ bool is_id(Index id, std::make_unsigned_t<Index> bound) {
  return static_cast<std::make_unsigned_t<Index>>(id) < bound;
}

}  // namespace jax_gnn::cuda
