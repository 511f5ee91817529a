// Products of small tiles through shared memory, for any size and alignment: what every GPU can do
// where the kernels for Hopper do not serve. Needs blocks of kTileThreads threads, all of which
// call each function, and a barrier between what fills shared memory and add. Tensor cores round
// float to tf32; ExactProduct rounds as multiplications and additions do.
#pragma once

#include <type_traits>

#include "pack.cuh"

namespace jax_gnn::cuda {

constexpr int kTileThreads = 256, kTileColumns = 64;

template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

// sum (kRows, 64) += left (kRows, kDepth) right (kDepth, 64) by multiply and add. kRows / 16 by 4
// results to a thread.
template <typename T, int kRows_>
class ExactProduct {
 public:
  using Acc = Accumulator<T>;
  static constexpr int kRows = kRows_, kDepth = 16;

  struct Shared {
    Acc left[kDepth][kRows + 4], right[kDepth][kTileColumns + 4];
    __device__ __forceinline__ void set_left(int row, int d, T x) { left[d][row] = widen(x); }
    __device__ __forceinline__ void set_left(int row, int d, T x, Acc factor) {
      left[d][row] = factor * widen(x);
    }
    __device__ __forceinline__ void set_right(int column, int d, T x) {
      right[d][column] = widen(x);
    }
  };

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < kMine; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) sum_[r][c] = 0;
  }
  __device__ __forceinline__ void add(const Shared& shared) {
    const int row = threadIdx.x / 16 * kMine, column = threadIdx.x % 16 * 4;
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
      for (int r = 0; r < kMine; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          sum_[r][c] += shared.left[d][row + r] * shared.right[d][column + c];
  }
  // Hands over row, column and sum.
  template <class Function>
  __device__ __forceinline__ void for_each(const Function& function) const {
    const int row = threadIdx.x / 16 * kMine, column = threadIdx.x % 16 * 4;
#pragma unroll
    for (int r = 0; r < kMine; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) function(row + r, column + c, sum_[r][c]);
  }

 private:
  static constexpr int kMine = kRows / 16;
  Acc sum_[kMine][4];
};

// sum (16, 8) += a (16, 32 bytes) b (32 bytes, 8) on the tensor cores of sm_80 and later; float is
// taken as tf32.
template <typename T>
__device__ __forceinline__ void multiply_fragments(float (&sum)[4], const unsigned (&a)[4],
                                                   const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, float>)
    multiply_tf32(sum, a, b);
  else if constexpr (std::is_same_v<T, __half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// A product on the tensor cores: four by two warps, kRows / 4 by 32 results each. Both sides lie
// along the depth; rows are padded against bank conflicts.
template <typename T, int kRows_>
class TensorProduct {
 public:
  using Acc = float;
  static constexpr int kRows = kRows_, kDepth = 32;

  struct Shared {
    static constexpr int kStride = kDepth + 16 / static_cast<int>(sizeof(T));
    alignas(16) T left[kRows][kStride], right[kTileColumns][kStride];
    __device__ __forceinline__ void set_left(int row, int d, T x) { left[row][d] = rounded(x); }
    __device__ __forceinline__ void set_left(int row, int d, T x, Acc factor) {
      narrow(factor * widen(x), x);
      left[row][d] = rounded(x);
    }
    __device__ __forceinline__ void set_right(int column, int d, T x) {
      right[column][d] = rounded(x);
    }

   private:
    static __device__ __forceinline__ T rounded(T x) {
      if constexpr (std::is_same_v<T, float>)
        return __uint_as_float(to_tf32(__float_as_uint(x)));
      else
        return x;
    }
  };

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kDown; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum_[i][j][e] = 0;
  }
  __device__ __forceinline__ void add(const Shared& shared) {
    constexpr int kWords = 4 / sizeof(T);  // elements of a word
    const int g = threadIdx.x % 32 / 4, word = threadIdx.x % 4 * kWords;
    const auto read = [](const T* from) { return *reinterpret_cast<const unsigned*>(from); };
#pragma unroll
    for (int step = 0; step < kDepth; step += 8 * kWords) {
      unsigned a[kDown][4], b[4][2];
#pragma unroll
      for (int i = 0; i < kDown; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          a[i][e] = read(
              &shared.left[first_row() + 16 * i + g + e % 2 * 8][step + word + e / 2 * 4 * kWords]);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          b[j][e] = read(&shared.right[first_column() + 8 * j + g][step + word + e * 4 * kWords]);
#pragma unroll
      for (int i = 0; i < kDown; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply_fragments<T>(sum_[i][j], a[i], b[j]);
    }
  }
  template <class Function>
  __device__ __forceinline__ void for_each(const Function& function) const {
    const int row = first_row() + threadIdx.x % 32 / 4;
    const int column = first_column() + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < kDown; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          function(row + 16 * i + e / 2 * 8, column + 8 * j + e % 2, sum_[i][j][e]);
  }

 private:
  static constexpr int kDown = kRows / 64;
  static __device__ __forceinline__ int first_row() { return threadIdx.x / 32 % 4 * (kRows / 4); }
  static __device__ __forceinline__ int first_column() { return threadIdx.x / 128 * 32; }
  float sum_[kDown][4][4];
};

// Products in the operands' precision, and products by default. Half types are exact
// on tensor cores, which all GPUs have that take these kernels, and the emulator has not.
#ifdef JAX_GNN_EMULATED
template <typename T, int kRows>
using HighestProduct = ExactProduct<T, kRows>;
template <typename T, int kRows>
using DefaultProduct = ExactProduct<T, kRows>;
#else
template <typename T, int kRows>
using HighestProduct =
    std::conditional_t<sizeof(T) == 2, TensorProduct<T, kRows>, ExactProduct<T, kRows> >;
template <typename T, int kRows>
using DefaultProduct =
    std::conditional_t<sizeof(T) == 8, ExactProduct<T, kRows>, TensorProduct<T, kRows> >;
#endif

}  // namespace jax_gnn::cuda
