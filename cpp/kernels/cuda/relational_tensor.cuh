// The products of relational_aggregate.cuh by Hopper's matrix instructions: transposed, as those of
// segment_matmul.cuh, so that weights come from L2 while rows are gathered, and the
// tile of sums is the right-hand side as it lies in shared memory.
//
// Needs sm_90a, rows of whole 16 bytes.
#pragma once

#include <cuda_pipeline.h>

#include "hopper.cuh"
#include "relational_aggregate.cuh"
#include "tile_product.cuh"

namespace jax_gnn::cuda {
namespace {

// kChunks chunks of 128 bytes hold a row; each of kWarpgroups warpgroups has 64 columns.
template <typename T_, int kChunks, int kWarpgroups>
struct HopperProduct {
  using T = T_;
  using Acc = float;
  static constexpr int kThreads = 128 * kWarpgroups;
  static constexpr int kBlocks = (kChunks == 4 ? 2 : 3) / kWarpgroups;
  static constexpr int kLanes = 8 * kChunks, kVec = 16 / static_cast<int>(sizeof(T));
  static constexpr int kWords = 1, kUnroll = 8, kSums = 32, kWordBytes = 16;
  static constexpr bool kExact = false;
  static constexpr int kTileBytes = kChunks * kTileRows * kChunkBytes, kAlign = kChunkAlign;
  static constexpr int kSteps = 4 * kChunks;  // of 32 bytes of a row
  static constexpr int kGroup =
      kSteps < 8 ? kSteps : 8;  // steps whose fragments are in registers at once
  static constexpr int kWeightBytes = kThreads / 32 * kSteps * 512;

  float sum[kSums];

  static __device__ __forceinline__ unsigned char* first_tile(unsigned char* dynamic) {
    return first_chunk(dynamic);
  }
  static __device__ __forceinline__ unsigned char* word_at(unsigned char* tile, int row, int word) {
    return tile + word / 8 * kTileRows * kChunkBytes + row * kChunkBytes +
           (word % 8 ^ row % 8) * 16;
  }
  static __device__ __forceinline__ void load_word(const unsigned char* at, float (&run)[kVec]) {
    T values[kVec];
    const uint4 bits = *reinterpret_cast<const uint4*>(at);
    memcpy(values, &bits, sizeof(bits));
#pragma unroll
    for (int i = 0; i < kVec; ++i) run[i] = widen(values[i]);
  }
  static __device__ __forceinline__ void store_word(unsigned char* at, const float (&run)[kVec]) {
    T values[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      if constexpr (sizeof(T) == 4)
        values[i] = __uint_as_float(to_tf32(__float_as_uint(run[i])));
      else
        narrow(run[i], values[i]);
    uint4 bits;
    memcpy(&bits, values, sizeof(bits));
    *reinterpret_cast<uint4*>(at) = bits;
  }
  static __device__ __forceinline__ void make_visible() {
#if JAX_GNN_ON_HOPPER
    make_visible_to_copies();
#endif
  }

  // The warp has read its weights of the relation before.
  __device__ __forceinline__ void ask_for_weights(const TileSums<T, float>& sums, int64_t type) {
    const T* const weights = sums.weights + type * sums.k * sums.n;
    const int k = sums.k, n = sums.n, lane = threadIdx.x % 32, first_column = threadIdx.x / 32 * 16;
    unsigned char* const slice = weights_slice();
    __syncwarp();
    if (sums.transposed) {
      constexpr int kPieces = kSteps * 2;  // of 16 bytes, of a column
#pragma unroll
      for (int i = 0; i < 16 * kPieces / 32; ++i) {
        const int piece = (i * 32 + lane) % kPieces, c = (i * 32 + lane) / kPieces;
        const int depth = piece * kVec;
        copy_async<16>(depth < k && first_column + c < n, weights + (first_column + c) * k + depth,
                       slice + place_transposed(c, piece * 4));
      }
    } else if (n % kVec == 0) {
      constexpr int kPieces = 16 / kVec, kRowsAtOnce = 32 / kPieces;  // pieces of a row
      const int piece = lane % kPieces, depth = lane / kPieces;
      const int column = first_column + piece * kVec;
      // Steps of 8 rows and more leave what is permuted as it is.
      const T* const from = weights + depth * n + column;
      unsigned char* const to = slice + place_plain(depth, piece * kVec);
      const int rows = column < n ? k - depth : 0;
#pragma unroll
      for (int i = 0; i < kDepth / kRowsAtOnce; ++i)
        copy_async<16>(i * kRowsAtOnce < rows, from + i * kRowsAtOnce * n,
                       to + i * kRowsAtOnce * 16 * static_cast<int>(sizeof(T)));
    } else {
#pragma unroll 4
      for (int i = lane; i < kDepth * 16; i += 32) {
        const int depth = i / 16, c = i % 16;
        Word<T, 1> bits = 0;
        load_if(depth < k && first_column + c < n,
                reinterpret_cast<const Word<T, 1>*>(weights + depth * n + first_column + c), bits);
        *reinterpret_cast<Word<T, 1>*>(slice + place_plain(depth, c)) = bits;
      }
    }
    __pipeline_commit();
  }
  __device__ __forceinline__ void multiply(const TileSums<T, float>& sums,
                                           const unsigned char* tile) {
    __pipeline_wait_prior(0);
    __syncwarp();
    if (sums.transposed)
      multiply_with<true>(tile);
    else
      multiply_with<false>(tile);
  }
  template <class Function>
  __device__ __forceinline__ void for_each(const Function& function) {
    const int quad = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < kTileRows / 8; ++j)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        float pair[2] = {sum[4 * j + odd], sum[4 * j + 2 + odd]};
        function(8 * j + 2 * quad + odd, column(), pair);
        sum[4 * j + odd] = pair[0];
        sum[4 * j + 2 + odd] = pair[1];
      }
  }

 private:
  static constexpr bool kFloat = sizeof(T) == 4;
  static constexpr int kDepth = kSteps * 32 / static_cast<int>(sizeof(T));

  // In a warpgroup, row g of the fragments of warp w is column 16 w + 2 g, row g + 8 the next.
  static __device__ __forceinline__ int column() {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2;
  }
  // Each warp has the weights of its 16 columns, of which it reads nothing but its own copies.
  static __device__ __forceinline__ unsigned char* weights_slice() {
    return first_tile(dynamic_shared()) + 2 * kTileBytes + threadIdx.x / 32 * kSteps * 512;
  }
  // Where in the slice a weight is, column by column or row by row: permuted so that fragments are
  // read without bank conflicts. `word`: of 4 bytes, of the column.
  static __device__ __forceinline__ int place_transposed(int c, int word) {
    return c * kSteps * 32 + (word / 4 ^ c / 2 % 8) * 16 + word % 4 * 4;
  }
  static __device__ __forceinline__ int place_plain(int depth, int c) {
    const int at = (depth * 16 + c) * static_cast<int>(sizeof(T));
    return at ^ (kFloat ? (depth & 2) << 4 : (depth & 4) << 3);
  }
  template <bool kTransposed>
  __device__ __forceinline__ void multiply_with(const unsigned char* tile) {
#if JAX_GNN_ON_HOPPER
    const uint64_t b = matrix_descriptor(tile);
#pragma unroll
    for (int first = 0; first < kSteps; first += kGroup) {
      unsigned a[kGroup][4];
#pragma unroll
      for (int step = 0; step < kGroup; ++step) read_fragments<kTransposed>(first + step, a[step]);
      // Sums must not be moved to other registers while they are added to.
#pragma unroll
      for (int i = 0; i < kSums; ++i) hide(sum[i]);
      warpgroup_arrive();
#pragma unroll
      for (int step = 0; step < kGroup; ++step) {
        const int at = first + step;
        // Descriptors count in 16 bytes.
        const int offset_bytes = at / 4 * kTileRows * kChunkBytes + at % 4 * 32;
        Multiply<T, kTileRows>::add(sum, a[step], b + offset_bytes / 16, true);
      }
      warpgroup_commit();
      warpgroup_wait();
#pragma unroll
      for (int i = 0; i < kSums; ++i) hide(sum[i]);
    }
#else
    __trap();
#endif
  }
  template <bool kTransposed>
  static __device__ __forceinline__ void read_fragments(int step, unsigned (&a)[4]) {
    // Steps, and halves of them, leave what is permuted as it is, but for units of columns.
    const int quad = threadIdx.x % 4, c = threadIdx.x % 32 / 4 * 2;
    const unsigned char* const slice = weights_slice();
    constexpr int kHalfRows = kFloat ? 4 : 8, kRowBytes = 16 * static_cast<int>(sizeof(T));
    const auto word = [](const unsigned char* at) {
      return *reinterpret_cast<const unsigned*>(at);
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned &x = a[2 * half], &y = a[2 * half + 1];
      if constexpr (kTransposed) {
        x = word(slice + place_transposed(c, step * 8 + half * 4 + quad));
        y = word(slice + place_transposed(c + 1, step * 8 + half * 4 + quad));
      } else if constexpr (kFloat) {
        const uint2 pair = *reinterpret_cast<const uint2*>(
            slice + place_plain(quad, c) + (2 * step + half) * kHalfRows * kRowBytes);
        x = pair.x;
        y = pair.y;
      } else {
        const int rows = (2 * step + half) * kHalfRows * kRowBytes;
        const unsigned upper = word(slice + place_plain(2 * quad, c) + rows);
        const unsigned lower = word(slice + place_plain(2 * quad + 1, c) + rows);
        x = __byte_perm(upper, lower, 0x5410);
        y = __byte_perm(upper, lower, 0x7632);
      }
      if constexpr (kFloat) {
        x = to_tf32(x);
        y = to_tf32(y);
      }
    }
  }
};

}  // namespace
}  // namespace jax_gnn::cuda
