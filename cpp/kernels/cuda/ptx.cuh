// Instructions that CUDA C++, or a runtime compiler, has no name for. Each does what its comment
// says and nothing else; addresses are of global memory, aligned to what is read, unless a comment
// says otherwise. cpp/emulator has the same functions in C++.
#pragma once

#ifdef JAX_GNN_EMULATED
#include "../../emulator/ptx.h"
#else

#include <cstdint>

namespace jax_gnn::cuda {

// cudaTriggerProgrammaticLaunchCompletion and cudaGridDependencySynchronize, which a runtime
// compiler does not know: from sm_90 on.
__device__ __forceinline__ void trigger_next_launch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void synchronize_with_previous_launch() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The block's dynamic shared memory, aligned to 16 bytes.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  return shared_bytes;
}

// Loads where `valid` holds, and leaves `value` alone elsewhere. Not through the read-only path:
// what is read may be written while the kernel already runs (see Start). Written in PTX so that
// the address is computed outside the condition: the compiler otherwise turns each load into a
// branch of its own and waits for one before it issues the next.
#define JAX_GNN_LOADS_IF(name, cache)                                                       \
  __device__ __forceinline__ void name(bool valid, const unsigned short* from,              \
                                       unsigned short& value) {                             \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p ld.global" cache           \
                 ".u16 %0, [%1];\n}"                                                        \
                 : "+h"(value)                                                              \
                 : "l"(from), "r"(static_cast<int>(valid)));                                \
  }                                                                                         \
  __device__ __forceinline__ void name(bool valid, const unsigned* from, unsigned& value) { \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p ld.global" cache           \
                 ".u32 %0, [%1];\n}"                                                        \
                 : "+r"(value)                                                              \
                 : "l"(from), "r"(static_cast<int>(valid)));                                \
  }                                                                                         \
  __device__ __forceinline__ void name(bool valid, const uint2* from, uint2& value) {       \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %3, 0;\n @p ld.global" cache           \
                 ".v2.u32 {%0, %1}, [%2];\n}"                                               \
                 : "+r"(value.x), "+r"(value.y)                                             \
                 : "l"(from), "r"(static_cast<int>(valid)));                                \
  }                                                                                         \
  __device__ __forceinline__ void name(bool valid, const uint4* from, uint4& value) {       \
    asm volatile(                                                                           \
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"                                       \
        " @p ld.global" cache ".v4.u32 {%0, %1, %2, %3}, [%4];\n}"                          \
        : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)                        \
        : "l"(from), "r"(static_cast<int>(valid)));                                         \
  }
JAX_GNN_LOADS_IF(load_if, "")
// As load_if, of what is read once: it gives way in the caches to what is read again.
JAX_GNN_LOADS_IF(load_once_if, ".cs")
#undef JAX_GNN_LOADS_IF

// 1 / x of a normal x, within two units in the last place.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Loads where id < bound, and leaves `word` alone elsewhere; as load_if. Compared in here, or the
// predicate goes through a register.
__device__ __forceinline__ void load_below(unsigned id, unsigned bound, const unsigned short* from,
                                           unsigned short& word) {
  asm volatile("{\n .reg .pred p;\n setp.lt.u32 p, %2, %3;\n @p ld.global.u16 %0, [%1];\n}"
               : "+h"(word)
               : "l"(from), "r"(id), "r"(bound));
}
__device__ __forceinline__ void load_below(unsigned id, unsigned bound, const unsigned* from,
                                           unsigned& word) {
  asm volatile("{\n .reg .pred p;\n setp.lt.u32 p, %2, %3;\n @p ld.global.u32 %0, [%1];\n}"
               : "+r"(word)
               : "l"(from), "r"(id), "r"(bound));
}
__device__ __forceinline__ void load_below(unsigned id, unsigned bound, const uint2* from,
                                           uint2& word) {
  asm volatile("{\n .reg .pred p;\n setp.lt.u32 p, %3, %4;\n @p ld.global.v2.u32 {%0, %1}, [%2];\n}"
               : "+r"(word.x), "+r"(word.y)
               : "l"(from), "r"(id), "r"(bound));
}
__device__ __forceinline__ void load_below(unsigned id, unsigned bound, const uint4* from,
                                           uint4& word) {
  asm volatile(
      "{\n .reg .pred p;\n setp.lt.u32 p, %5, %6;\n"
      " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w)
      : "l"(from), "r"(id), "r"(bound));
}

// Stores where id < bound. No branch: what follows is not held up, nor done twice.
__device__ __forceinline__ void store_below(unsigned id, unsigned bound, unsigned short* to,
                                            unsigned short word) {
  asm volatile("{\n .reg .pred p;\n setp.lt.u32 p, %1, %2;\n @p st.global.u16 [%0], %3;\n}"
               :
               : "l"(to), "r"(id), "r"(bound), "h"(word)
               : "memory");
}
__device__ __forceinline__ void store_below(unsigned id, unsigned bound, unsigned* to,
                                            unsigned word) {
  asm volatile("{\n .reg .pred p;\n setp.lt.u32 p, %1, %2;\n @p st.global.u32 [%0], %3;\n}"
               :
               : "l"(to), "r"(id), "r"(bound), "r"(word)
               : "memory");
}
__device__ __forceinline__ void store_below(unsigned id, unsigned bound, uint2* to, uint2 word) {
  asm volatile("{\n .reg .pred p;\n setp.lt.u32 p, %1, %2;\n @p st.global.v2.u32 [%0], {%3, %4};\n}"
               :
               : "l"(to), "r"(id), "r"(bound), "r"(word.x), "r"(word.y)
               : "memory");
}
__device__ __forceinline__ void store_below(unsigned id, unsigned bound, uint4* to, uint4 word) {
  asm volatile(
      "{\n .reg .pred p;\n setp.lt.u32 p, %1, %2;\n"
      " @p st.global.v4.u32 [%0], {%3, %4, %5, %6};\n}"
      :
      : "l"(to), "r"(id), "r"(bound), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
      : "memory");
}

// Loads that stay where they are, before or after a wait for the launch ahead; those of __ldg may
// be moved.
__device__ __forceinline__ void load_word(const uint2* from, uint2& word) {
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(word.x), "=r"(word.y)
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ void load_word(const uint4* from, uint4& word) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from)
               : "memory");
}

// As load_if, where there is always something to be read.
__device__ __forceinline__ void load_always(const unsigned short* from, unsigned short& word) {
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(word) : "l"(from));
}
__device__ __forceinline__ void load_always(const unsigned* from, unsigned& word) {
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(word) : "l"(from));
}
__device__ __forceinline__ void load_always(const uint2* from, uint2& word) {
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(word.x), "=r"(word.y) : "l"(from));
}
__device__ __forceinline__ void load_always(const uint4* from, uint4& word) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from));
}

// a * b + c. The sum is not part of it: mad.wide becomes three instructions.
__device__ __forceinline__ uint64_t multiply_add(unsigned a, unsigned b, uint64_t c) {
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product + c;
}

// Keeps the compiler from knowing the value: it is then neither computed again nor beforehand.
__device__ __forceinline__ void hide(unsigned& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void hide(float& value) { asm volatile("" : "+f"(value)); }
__device__ __forceinline__ void hide(double& value) { asm volatile("" : "+d"(value)); }
template <typename T>
__device__ __forceinline__ void hide(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}

// Copies kBytes into shared memory, through L1, until __pipeline_wait_prior. Zeros
// where `valid` does not hold; *from is then not read.
template <int kBytes>
__device__ __forceinline__ void copy_async(bool valid, const void* from, void* to) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "n"(kBytes),
                 "r"(valid ? kBytes : 0)
               : "memory");
}

// As copy_async; a predicate takes fewer instructions than a size.
template <int kBytes>
__device__ __forceinline__ void copy_or_zeros(bool valid, const void* from, void* to) {
  asm volatile(
      "{\n .reg .pred p;\n setp.eq.u32 p, %3, 0;\n"
      " cp.async.ca.shared.global [%0], [%1], %2, p;\n}"
      :
      : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "n"(kBytes),
        "r"(static_cast<unsigned>(valid))
      : "memory");
}

// Two words of 8 bytes that other blocks may read and write meanwhile, at once.
__device__ __forceinline__ void write_pair(void* to, uint64_t first, uint64_t second) {
  asm volatile("{.reg .b128 w; mov.b128 w, {%1, %2}; st.relaxed.gpu.global.b128 [%0], w;}"
               :
               : "l"(to), "l"(first), "l"(second)
               : "memory");
}
__device__ __forceinline__ void read_pair(const void* from, uint64_t& first, uint64_t& second) {
  asm volatile("{.reg .b128 w; ld.relaxed.gpu.global.b128 w, [%2]; mov.b128 {%0, %1}, w;}"
               : "=l"(first), "=l"(second)
               : "l"(from)
               : "memory");
}
// Whether to read again what another block is to write: not if it is `complete`.
__device__ __forceinline__ bool wait_unless(bool complete) { return !complete; }

// 1 / x to within a digit of the last place.
__device__ __forceinline__ float approximate_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 2^x to within two digits of the last place, 0 where that is below all normal numbers.
__device__ __forceinline__ float approximate_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// log2(x) of a normal number, to within two digits of the last place of 1 or of itself.
__device__ __forceinline__ float approximate_log2(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// To within 11 bits.
__device__ __forceinline__ float approximate_tanh(float x) {
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Maximum and minimum in which NaN wins.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ __forceinline__ float min_or_nan(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// To the nearest number of 10 bits of fraction, of two the larger one; of sm_80 and later.
__device__ __forceinline__ unsigned to_tf32(unsigned bits) {
  unsigned rounded = bits;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
#endif
  return rounded;
}

// The bits of x for a product that ignores those beyond 10 bits of fraction, by one instruction
// rather than two: cut off, the product with 1 + 0.7 / 2^11 is within 0.7 of the last bit that
// stays, and right on average. Numbers that have no more bits stay as they are.
__device__ __forceinline__ unsigned nearly_tf32(float x) {
  return __float_as_uint(x * 1.00034180f);
}

// sum (16, 8) += a (16, 8) b (8, 8) of such numbers, by a warp; of sm_80 and later.
__device__ __forceinline__ void multiply_tf32(float (&sum)[4], const unsigned (&a)[4],
                                              const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

}  // namespace jax_gnn::cuda

#endif  // JAX_GNN_EMULATED
