// Features in words: loads of up to 16 bytes, arithmetic on what they bring, and stores. Needs
// pointers that are aligned to the word (readable in launch.h). Widening is exact, narrowing rounds
// to nearest, and what a condition leaves out is neither read nor written.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "ptx.cuh"

namespace jax_gnn::cuda {

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

// One value, or `otherwise` unless id < bound.
template <typename T>
__device__ __forceinline__ T load_below_or(unsigned id, unsigned bound, const T* from,
                                           T otherwise) {
  Word<T, 1> word;
  memcpy(&word, &otherwise, sizeof(T));
  load_below(id, bound, reinterpret_cast<const Word<T, 1>*>(from), word);
  memcpy(&otherwise, &word, sizeof(T));
  return otherwise;
}

// Entries [at, at + kSize) of an array in words of up to 16 bytes.
template <int kSize, typename T>
__device__ __forceinline__ void load_words(const T* at, T* to) {
  constexpr int kBytes = kSize * sizeof(T), kWordBytes = kBytes < 16 ? kBytes : 16;
  using W = typename WordOf<kWordBytes>::type;
  W words[kBytes / kWordBytes];
#pragma unroll
  for (int i = 0; i < kBytes / kWordBytes; ++i)
    words[i] = __ldg(reinterpret_cast<const W*>(at) + i);
  memcpy(to, words, sizeof(words));
}

// The lane's place in a row, from its place in row 0. Rows have less than 4 GB.
template <typename T>
__device__ __forceinline__ T* row_at(T* from, int32_t row, unsigned row_bytes) {
  return reinterpret_cast<T*>(
      multiply_add(static_cast<unsigned>(row), row_bytes, reinterpret_cast<uint64_t>(from)));
}

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ int32_t widen(int32_t value) { return value; }
__device__ __forceinline__ int64_t widen(int64_t value) { return value; }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ void narrow(const T& value, T& out) {
  out = value;
}
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

// Reads shared memory in words of 16 bytes.
template <int kSize, typename T>
__device__ __forceinline__ void read_shared(const unsigned char* from, T (&to)[kSize]) {
  constexpr int kWords = kSize * sizeof(T) / 16;
  uint4 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const uint4*>(from)[i];
  memcpy(to, words, sizeof(words));
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

// Writes a word of results; `address` is aligned to store_alignment<T, kVec>.
template <int kVec, typename T, typename Acc>
__device__ __forceinline__ void store_word(T* address, const Acc* x) {
  Pack<T, kVec> pack;
#pragma unroll
  for (int i = 0; i < kVec; ++i) narrow(x[i], pack.at[i]);
  *reinterpret_cast<Pack<T, kVec>*>(address) = pack;
}

// Copies a word; both addresses are aligned to it.
template <int kVec, typename T>
__device__ __forceinline__ void copy_word(const T* from, T* to) {
  *reinterpret_cast<Pack<T, kVec>*>(to) = *reinterpret_cast<const Pack<T, kVec>*>(from);
}

// Writes factor * sum, likewise.
template <typename T, int kVec, typename Acc>
__device__ __forceinline__ void store_scaled(T* address, const Acc (&sum)[kVec], Acc factor) {
  Pack<T, kVec> pack;
#pragma unroll
  for (int i = 0; i < kVec; ++i) narrow(factor * sum[i], pack.at[i]);
  *reinterpret_cast<Pack<T, kVec>*>(address) = pack;
}

}  // namespace jax_gnn::cuda
