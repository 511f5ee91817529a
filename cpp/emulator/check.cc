// Whether the emulator finds faults, each in a process of its own. Prints what it missed.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "../kernels/cuda/launch.h"
#include "../kernels/cuda/ptx.cuh"

using namespace jax_gnn::cuda;

namespace {

__global__ void reverse(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  const int other = values[63 - threadIdx.x];
  out[threadIdx.x] = __shfl_xor_sync(kWholeWarp, other, 31);
}
__global__ void partial_barrier(int*) {
  if (threadIdx.x < 32) __syncthreads();
  __syncwarp();
  if (threadIdx.x >= 32) __syncthreads();
  if (threadIdx.x >= 32) __syncthreads();
  if (threadIdx.x < 16) __syncwarp();
}
__global__ void lane_returned(int* out) {
  if (threadIdx.x == 3) return;
  out[0] = __shfl_sync(kWholeWarp, 1, 0);
}
__global__ void different_instructions(int* out) {
  out[0] = threadIdx.x % 2 != 0 ? __ballot_sync(kWholeWarp, 1) : __shfl_sync(kWholeWarp, 1, 0);
}
__global__ void outside_the_mask(int* out) { out[0] = __shfl_sync(0xffffu, 1, 0); }
__global__ void unaligned(int* out) {
  uint4 word = {};
  load_if(true, reinterpret_cast<const uint4*>(out + 1), word);
}
__global__ void uses_shared(int* out, int last) {
  reinterpret_cast<int*>(dynamic_shared())[last] = 1;
  out[0] = reinterpret_cast<int*>(dynamic_shared())[last];
}
__global__ void hands_on_a_pair(int* out) {
  if (threadIdx.x == 0) write_pair(out, 1, blockIdx.x == 0 ? 2 : ~uint64_t{2});
}
__global__ void leaves_a_pair(int* out) {
  if (threadIdx.x == 0 && blockIdx.x == 0) write_pair(out, 1, 2);
}
__global__ void waits_for_later_block(int* out) {
  while (blockIdx.x == 0 && wait_unless(out[0] == 1)) {
  }
  out[0] = 1;
}

bool aborts(void (*kernel)(int*)) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    std::freopen("/dev/null", "w", stderr);
    alignas(16) int out[64] = {};
    launch(nullptr, {dim3(2), 64, 0}, kernel, static_cast<int*>(out));
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

}  // namespace

int main() {
  int missed = 0;
  const auto expect = [&](const char* what, bool holds) {
    if (!holds) std::printf("the emulator missed: %s\n", what);
    missed += !holds;
  };
  int out[64];
  launch(nullptr, {dim3(1), 64, 0}, reverse, static_cast<int*>(out));
  for (int i = 0; i < 64; ++i) expect("what a kernel computes", out[i] == 63 - (i ^ 31));
  int* none = nullptr;
  expect("a launch that is too large",
         launch(nullptr, {dim3(1), 2048, 0}, reverse, none) == cudaErrorInvalidConfiguration);
  constexpr size_t kShared = 200 << 10;
  const auto plain_launch = [&](size_t shared) {
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    config.dynamicSmemBytes = shared;
    return cudaLaunchKernelEx(&config, uses_shared, static_cast<int*>(out), 0);
  };
  expect("a launch with shared memory", plain_launch(8 << 10) == cudaSuccess);
  expect("more shared memory than is allowed", plain_launch(kShared) != cudaSuccess);
  expect("that a kernel's own arrays take of it", plain_launch(48 << 10) != cudaSuccess);
  for (int device = 0; device < emulator::kDevices; ++device) {
    cudaSetDevice(device);
    expect("that the other device allowed nothing here", plain_launch(kShared) != cudaSuccess);
    out[0] = 0;
    const int last = static_cast<int>(kShared / sizeof(int)) - 1;
    const Plan plan = {dim3(1), 1, kShared};
    expect("that `launch` asks on each device",
           launch(nullptr, plan, uses_shared, static_cast<int*>(out), last) == cudaSuccess);
    expect("what it computes there", out[0] == 1);
  }
  cudaSetDevice(0);
  expect("a barrier that not all reach", aborts(partial_barrier));
  expect("a lane that has returned", aborts(lane_returned));
  expect("different instructions", aborts(different_instructions));
  expect("a lane outside the mask", aborts(outside_the_mask));
  expect("an unaligned word", aborts(unaligned));
  expect("a wait for a later block", aborts(waits_for_later_block));
  expect("that a pair was taken", !aborts(hands_on_a_pair));
  expect("a pair that nobody takes", aborts(leaves_a_pair));
  return missed != 0;
}
