// Instructions that CUDA C++ has no name for, beyond those of the library, apart from the kernels:
// a stand-in that defines the guard lets these run on a CPU.
#ifndef JAX_GNN_DESIGNS_PTX
#define JAX_GNN_DESIGNS_PTX

#include <cuda_runtime.h>

#include <cstdint>

#include "../../cpp/kernels/cuda/ptx.cuh"

namespace jax_gnn::designs {

using cuda::dynamic_shared;
using cuda::hide;
using cuda::prefetch_to_l2;
using cuda::read_pair;
using cuda::wait_unless;
using cuda::write_pair;

// *from, or zeros unless id < bound: compared in here, or a predicate goes through a register.
// Not through the read-only path: the same launch may have written what is read.
__device__ __forceinline__ void load_below(unsigned id, unsigned bound, const void* from,
                                           uint4& word) {
  asm volatile(
      "{\n .reg .pred p;\n setp.lt.u32 p, %5, %6;\n"
      " mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
      " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(word.x), "=&r"(word.y), "=&r"(word.z), "=&r"(word.w)
      : "l"(from), "r"(id), "r"(bound));
}

// Loads that stay behind the wait for the launch ahead, as those of __ldg may not.
__device__ __forceinline__ uint4 load_word(const uint4* from) {
  uint4 word;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from)
               : "memory");
  return word;
}
__device__ __forceinline__ uint2 load_word(const uint2* from) {
  uint2 word;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(word.x), "=r"(word.y)
               : "l"(from)
               : "memory");
  return word;
}

// Of a float; `otherwise` unless id < bound.
__device__ __forceinline__ float load_below(unsigned id, unsigned bound, const float* from,
                                            float otherwise) {
  asm volatile("{\n .reg .pred p;\n setp.lt.u32 p, %2, %3;\n @p ld.global.f32 %0, [%1];\n}"
               : "+f"(otherwise)
               : "l"(from), "r"(id), "r"(bound));
  return otherwise;
}
__device__ __forceinline__ int load_below(unsigned id, unsigned bound, const int* from,
                                          int otherwise) {
  asm volatile("{\n .reg .pred p;\n setp.lt.u32 p, %2, %3;\n @p ld.global.u32 %0, [%1];\n}"
               : "+r"(otherwise)
               : "l"(from), "r"(id), "r"(bound));
  return otherwise;
}

// base + id * bytes. With mad.wide it takes three instructions.
__device__ __forceinline__ const unsigned char* row_at(const unsigned char* base, unsigned id,
                                                       unsigned bytes) {
  uint64_t offset;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(offset) : "r"(id), "r"(bytes));
  return base + offset;
}

// A counter in global memory.
__device__ __forceinline__ void add_release(unsigned* counter, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned read_acquire(const unsigned* counter) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// The barrier of all threads of a cluster, in two halves. Not aligned: warps may be divergent.
__device__ __forceinline__ void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void wait_cluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Shared memory of a cluster: the address of `local`, which is this block's, in that of `rank`.
__device__ __forceinline__ unsigned cluster_address(unsigned local, unsigned rank) {
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(local), "r"(rank));
  return address;
}
__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}
__device__ __forceinline__ void load_cluster_below(unsigned id, unsigned bound, unsigned from,
                                                   uint4& word) {
  asm volatile(
      "{\n .reg .pred p;\n setp.lt.u32 p, %5, %6;\n"
      " mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
      " @p ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(word.x), "=&r"(word.y), "=&r"(word.z), "=&r"(word.w)
      : "r"(from), "r"(id), "r"(bound)
      : "memory");
}
__device__ __forceinline__ void store_cluster(unsigned to, const uint4& word) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
}

}  // namespace jax_gnn::designs

#endif  // JAX_GNN_DESIGNS_PTX
