// The products of relational_aggregate.cuh by Hopper's matrix instructions: transposed, as those of
// segment_matmul.cuh, so that weights come from the second cache straight into registers, and the
// tile of sums is the right-hand side as it lies in shared memory.
//
// Needs sm_90a, rows of whole 16 bytes.
#pragma once

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
  static constexpr int kBlocks = kChunks == 4 ? (kWarpgroups == 2 ? 1 : 3) : 4 / kWarpgroups;
  static constexpr int kLanes = 8 * kChunks, kVec = 16 / static_cast<int>(sizeof(T));
  static constexpr int kWords = 1, kUnroll = 8, kSums = 32;
  static constexpr bool kExact = false;
  static constexpr int kTileBytes = kChunks * kTileRows * kChunkBytes, kAlign = kChunkAlign;
  static constexpr int kSteps = 4 * kChunks;              // of 32 bytes of a row
  static constexpr int kAhead = kSteps < 8 ? kSteps : 8;  // for which weights are asked at once

  float sum[kSums];

  static __device__ __forceinline__ unsigned char* first_tile(unsigned char* dynamic) {
    return first_chunk(dynamic);
  }
  static __device__ __forceinline__ int place(int row, int word) {
    return word / 8 * kTileRows * kChunkBytes + row * kChunkBytes + (word % 8 ^ row % 8) * 16;
  }
  static __device__ __forceinline__ void load_word(const unsigned char* tile, int row, int word,
                                                   float (&run)[kVec]) {
    T values[kVec];
    const uint4 bits = *reinterpret_cast<const uint4*>(tile + place(row, word));
    memcpy(values, &bits, sizeof(bits));
#pragma unroll
    for (int i = 0; i < kVec; ++i) run[i] = widen(values[i]);
  }
  static __device__ __forceinline__ void store_word(unsigned char* tile, int row, int word,
                                                    const float (&run)[kVec]) {
    T values[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      if constexpr (sizeof(T) == 4)
        values[i] = __uint_as_float(to_tf32(__float_as_uint(run[i])));
      else
        narrow(run[i], values[i]);
    uint4 bits;
    memcpy(&bits, values, sizeof(bits));
    *reinterpret_cast<uint4*>(tile + place(row, word)) = bits;
  }
  static __device__ __forceinline__ void make_visible() { make_visible_to_copies(); }

  __device__ __forceinline__ void ask_for_weights(const TileSums<T, float>& sums, int64_t type) {
    weights_ = sums.weights + type * sums.k * sums.n;
    ask(sums, 0);
  }
  __device__ __forceinline__ void multiply(const TileSums<T, float>& sums,
                                           const unsigned char* tile) {
    const uint64_t b = matrix_descriptor(tile);
#pragma unroll
    for (int first = 0; first < kSteps; first += kAhead) {
      if (first > 0) ask(sums, first);
      finish_weights(sums);
      warpgroup_arrive();
#pragma unroll
      for (int step = 0; step < kAhead; ++step) {
        const int at = first + step;
        // Descriptors count in 16 bytes.
        const int offset_bytes = at / 4 * kTileRows * kChunkBytes + at % 4 * 32;
        Multiply<T, kTileRows>::add(sum, a_[step], b + offset_bytes / 16, true);
      }
      warpgroup_commit();
      warpgroup_wait();
    }
  }
  template <class Function>
  __device__ __forceinline__ void for_each(const Function& function) const {
    const int quad = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < kTileRows / 8; ++j)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float pair[2] = {sum[4 * j + odd], sum[4 * j + 2 + odd]};
        function(8 * j + 2 * quad + odd, column(), pair);
      }
  }

 private:
  const T* weights_;
  unsigned a_[kAhead][4];

  // In a warpgroup, row g of the fragments of warp w is column 16 w + 2 g, row g + 8 the next.
  static __device__ __forceinline__ int column() {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2;
  }
  static constexpr bool kFloat = sizeof(T) == 4;

  // Sends for the fragments of kAhead steps from `first` on. Nothing is done with what they bring.
  __device__ __forceinline__ void ask(const TileSums<T, float>& sums, int first) {
    const int k = sums.k, n = sums.n, c = column(), quad = threadIdx.x % 4;
    const auto one = [&](int depth, int j) -> unsigned {
      Word<T, 1> bits = 0;
      load_if(depth < k && j < n,
              reinterpret_cast<const Word<T, 1>*>(
                  weights_ + (sums.transposed ? j * k + depth : depth * n + j)),
              bits);
      return bits;
    };
    const bool pairs = !sums.transposed && n % 2 == 0;
#pragma unroll
    for (int step = 0; step < kAhead; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned* const two = &a_[step][2 * half];
        const int at = first + step;
        const int depth = kFloat ? at * 8 + half * 4 + quad : at * 16 + half * 8 + quad * 2;
        const bool is_there = depth < k && c < n;
        two[0] = two[1] = 0;
        if constexpr (kFloat) {
          if (pairs) {
            uint2 bits = {0, 0};
            load_if(is_there, reinterpret_cast<const uint2*>(weights_ + depth * n + c), bits);
            two[0] = bits.x;
            two[1] = bits.y;
          } else {
            two[0] = one(depth, c);
            two[1] = one(depth, c + 1);
          }
        } else if (pairs) {
          const unsigned* const from = reinterpret_cast<const unsigned*>(weights_ + depth * n + c);
          load_if(is_there, from, two[0]);
          load_if(is_there, reinterpret_cast<const unsigned*>(weights_ + (depth + 1) * n + c),
                  two[1]);
        } else if (sums.transposed) {  // k is even
#pragma unroll
          for (int j = 0; j < 2; ++j)
            load_if(depth < k && c + j < n,
                    reinterpret_cast<const unsigned*>(weights_ + (c + j) * k + depth), two[j]);
        } else {
#pragma unroll
          for (int j = 0; j < 2; ++j) two[j] = one(depth, c + j) | one(depth + 1, c + j) << 16;
        }
      }
  }
  // Makes operands of what has come.
  __device__ __forceinline__ void finish_weights(const TileSums<T, float>& sums) {
    const bool pairs = !sums.transposed && sums.n % 2 == 0;
#pragma unroll
    for (int step = 0; step < kAhead; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned &x = a_[step][2 * half], &y = a_[step][2 * half + 1];
        if constexpr (kFloat) {
          x = to_tf32(x);
          y = to_tf32(y);
        } else if (pairs) {
          const unsigned upper = x, lower = y;
          x = __byte_perm(upper, lower, 0x5410);
          y = __byte_perm(upper, lower, 0x7632);
        }
      }
  }
};

}  // namespace
}  // namespace jax_gnn::cuda
