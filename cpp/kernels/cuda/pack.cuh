#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

namespace jax_gnn::cuda {

// Loads where `valid` holds, and leaves `value` alone elsewhere. Not through the read-only path:
// what is read may be written while the kernel already runs (see Start). Written in PTX so that
// the address is computed outside the condition: the compiler otherwise turns each load into a
// branch of its own and waits for one before it issues the next.
__device__ __forceinline__ void load_if(bool valid, const unsigned short* from,
                                        unsigned short& value) {
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p ld.global.u16 %0, [%1];\n}"
               : "+h"(value)
               : "l"(from), "r"(static_cast<int>(valid)));
}
__device__ __forceinline__ void load_if(bool valid, const unsigned* from, unsigned& value) {
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p ld.global.u32 %0, [%1];\n}"
               : "+r"(value)
               : "l"(from), "r"(static_cast<int>(valid)));
}
__device__ __forceinline__ void load_if(bool valid, const uint2* from, uint2& value) {
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %3, 0;\n @p ld.global.v2.u32 {%0, %1}, [%2];\n}"
               : "+r"(value.x), "+r"(value.y)
               : "l"(from), "r"(static_cast<int>(valid)));
}
__device__ __forceinline__ void load_if(bool valid, const uint4* from, uint4& value) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
      " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
      : "l"(from), "r"(static_cast<int>(valid)));
}

// A word that one load instruction brings; features stay packed in it until they are added.
template <int kBytes>
struct WordOf;
template <>
struct WordOf<2> {
  using type = unsigned short;
};
template <>
struct WordOf<4> {
  using type = unsigned;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<16> {
  using type = uint4;
};
template <typename T, int kVec>
using Word = typename WordOf<kVec* static_cast<int>(sizeof(T))>::type;

// One value, or `otherwise` where `valid` does not hold; *from is then not read.
template <typename T>
__device__ __forceinline__ T load_or(bool valid, const T* from, T otherwise) {
  Word<T, 1> word;
  memcpy(&word, &otherwise, sizeof(T));
  load_if(valid, reinterpret_cast<const Word<T, 1>*>(from), word);
  memcpy(&otherwise, &word, sizeof(T));
  return otherwise;
}

// Entries [at, at + kSize) of an array in 16-byte words.
template <int kSize, typename T>
__device__ __forceinline__ void load_words(const T* at, T* to) {
  constexpr int kWords = kSize * sizeof(T) / 16;
  uint4 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __ldg(reinterpret_cast<const uint4*>(at) + i);
  memcpy(to, words, sizeof(words));
}

// The lane's place in a row, from its place in row 0. One instruction: rows have less than 4 GB.
template <typename T>
__device__ __forceinline__ T* row_at(T* from, int32_t row, unsigned row_bytes) {
  uint64_t at;
  asm("mad.wide.u32 %0, %1, %2, %3;"
      : "=l"(at)
      : "r"(row), "r"(row_bytes), "l"(reinterpret_cast<uint64_t>(from)));
  return reinterpret_cast<T*>(at);
}

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ int32_t widen(int32_t value) { return value; }
__device__ __forceinline__ int64_t widen(int64_t value) { return value; }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ __forceinline__ void narrow(float value, float& out) { out = value; }
__device__ __forceinline__ void narrow(double value, double& out) { out = value; }
__device__ __forceinline__ void narrow(int32_t value, int32_t& out) { out = value; }
__device__ __forceinline__ void narrow(int64_t value, int64_t& out) { out = value; }
__device__ __forceinline__ void narrow(float value, __half& out) { out = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& out) {
  out = __float2bfloat16_rn(value);
}

// sum += factor * features
template <typename T, int kVec, typename Acc>
__device__ __forceinline__ void add_word(Acc (&sum)[kVec], Word<T, kVec> word, Acc factor) {
  T features[kVec];
  memcpy(features, &word, sizeof(word));
#pragma unroll
  for (int i = 0; i < kVec; ++i) sum[i] += factor * widen(features[i]);
}

// sum += <a, b>
template <typename T, int kVec, typename Acc>
__device__ __forceinline__ void add_dot(Acc& sum, Word<T, kVec> a, Word<T, kVec> b) {
  T left[kVec], right[kVec];
  memcpy(left, &a, sizeof(a));
  memcpy(right, &b, sizeof(b));
#pragma unroll
  for (int i = 0; i < kVec; ++i) sum += widen(left[i]) * widen(right[i]);
}

// Whether weight * p == q where features are stored: the product is rounded as a result is.
template <typename T, typename Acc>
__device__ __forceinline__ bool matches(Acc weight, T p, T q) {
  T product;
  narrow(weight * widen(p), product);
  return widen(product) == widen(q);
}

// The largest access that a store of kVec features may use.
template <typename T, int kVec>
constexpr size_t store_alignment = kVec * sizeof(T) < 16 ? kVec * sizeof(T) : 16;

template <typename T, int kVec>
struct alignas(store_alignment<T, kVec>) Pack {
  T at[kVec];
};

// Writes factor * sum; `address` is aligned to store_alignment<T, kVec>.
template <typename T, int kVec, typename Acc>
__device__ __forceinline__ void store_scaled(T* address, const Acc (&sum)[kVec], Acc factor) {
  Pack<T, kVec> pack;
#pragma unroll
  for (int i = 0; i < kVec; ++i) narrow(factor * sum[i], pack.at[i]);
  *reinterpret_cast<Pack<T, kVec>*>(address) = pack;
}

}  // namespace jax_gnn::cuda
