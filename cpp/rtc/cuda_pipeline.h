// In place of CUDA's, for a runtime compiler: copies into shared memory that are waited for later.
#pragma once

__device__ __forceinline__ void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if (bytes == 4)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
  else if (bytes == 8)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void __pipeline_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void __pipeline_wait_prior(int) {  // all, wherever it is asked here
  asm volatile("cp.async.wait_all;" ::: "memory");
}
