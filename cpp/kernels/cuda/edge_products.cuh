// What edge regions have of linear maps: rows of entries times a matrix that all share. Tensor
// cores make them, of sm_80 and later.
//
// A warp puts rows of its entries into shared memory, into a tile. Matrices are there too, once for
// a block, in the order in which lanes hold them. Numbers are rounded to tf32, as XLA does by
// default; where kPrecise, taken as sums of two such. What nobody writes of a tile
// must be zeros.
#pragma once

#include "basics.cuh"
#include "pack.cuh"

namespace jax_gnn::cuda {
namespace {

__host__ __device__ constexpr int in_steps(int size, int step) { return (size + step - 1) / step; }

// kRows rows of kWidth numbers, kAt numbers from where a warp's memory begins. Rows are a multiple
// of 16; they lie kStride numbers apart, which has room for whole steps of numbers.
template <int kAt, int kRows_, int kWidth_, int kStride_>
struct EntryTile {
  static constexpr int kRows = kRows_, kWidth = kWidth_, kStride = kStride_;
  static __device__ __forceinline__ float* row(float* memory, unsigned row) {
    return memory + kAt + row * kStride;
  }
  // The number of a row that is flat: kWidth numbers, then those of the row after it.
  static __host__ __device__ constexpr unsigned place(unsigned number) {
    return number / kWidth * kStride + number % kWidth;
  }
};

// Not called in templates: for these, a host's compiler would want them declared.
__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float float_of(unsigned bits) { return __uint_as_float(bits); }

// A number for tensor cores, rounded or as the sum of two.
template <bool kPrecise>
struct Split {
  unsigned high, low = 0;
  Split() = default;
  __device__ __forceinline__ explicit Split(float x) : high(to_tf32(bits_of(x))) {
    if constexpr (kPrecise) {
      const float rest = x - float_of(high);
      if (rest - rest == 0) low = to_tf32(bits_of(rest));  // of infinities nothing is left
    }
  }
  // Of a matrix, whose numbers are rounded once.
  static __device__ __forceinline__ float kept(float x) {
    return kPrecise ? x : float_of(to_tf32(bits_of(x)));
  }
  static __device__ __forceinline__ Split of_kept(float x) {
    if constexpr (kPrecise) return Split(x);
    Split split;
    split.high = bits_of(x);
    return split;
  }
};

template <bool kPrecise>
struct LeftFragment {
  unsigned high[4], low[4];
  // number(i, j): of row i and column j from where the lane's are.
  template <class Number>
  __device__ __forceinline__ void load(const Number& number) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Split<kPrecise> x(number(e % 2 * 8, e / 2 * 4));
      high[e] = x.high;
      low[e] = x.low;
    }
  }
};

template <bool kPrecise>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const LeftFragment<kPrecise>& a,
                                             const Split<kPrecise>& first,
                                             const Split<kPrecise>& second) {
  const unsigned high[2] = {first.high, second.high}, low[2] = {first.low, second.low};
  if constexpr (kPrecise) {
    multiply_tf32(sum, a.low, high);
    multiply_tf32(sum, a.high, low);
  }
  multiply_tf32(sum, a.high, high);
}

// A matrix of an array, number (i, j) at start + i * down + j * across, with `group` columns side
// by side, then `apart` to the next ones: as fragments in shared memory, those of neighbouring
// columns side by side. By the whole block.
template <int kInner, int kColumns, bool kPrecise, typename T>
__device__ __forceinline__ void load_matrix(const T* from, int start, int down, int across,
                                            int group, int apart, float* to) {
  constexpr int kTiles = in_steps(kColumns, 8), kNumbers = in_steps(kInner, 8) * kTiles * 64;
#pragma unroll 4
  for (int i = threadIdx.x; i < kNumbers; i += blockDim.x) {
    const int lane = i / 2 % 32, fragment = i / 64;
    const int row = fragment / kTiles * 8 + lane % 4 + i % 2 * 4;
    const int column = fragment % kTiles * 8 + lane / 4;
    const bool there = row < kInner && column < kColumns;
    const int at = start + row * down + column % group * across + column / group * apart;
    to[i] = there ? Split<kPrecise>::kept(widen(from[at])) : 0.0f;
  }
}

// Rows of a warp times a matrix that load_matrix has loaded.
template <class From, class To, bool kPrecise>
__device__ __forceinline__ void multiply_rows(float* memory, const float* matrix) {
  constexpr int kSteps = in_steps(From::kWidth, 8), kTiles = in_steps(To::kWidth, 8);
  constexpr int kTogether = least(kTiles, 8);
  static_assert(From::kRows == To::kRows);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  static_assert(kSteps == 0, "the GPU's tensor cores take no float");
#endif
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (int row = 0; row < From::kRows; row += 16) {
    const float* const from = From::row(memory, row + g) + t;
    float* const to = To::row(memory, row + g) + 2 * t;
#pragma unroll 1
    for (int tile = 0; tile < kTiles; tile += kTogether) {
      float sum[kTogether][4] = {};
#pragma unroll 2
      for (int step = 0; step < kSteps; ++step) {
        LeftFragment<kPrecise> a;
        a.load(
            [&](int down, int across) { return from[down * From::kStride + step * 8 + across]; });
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (kTiles % kTogether == 0 || tile + i < kTiles) {
            const float* const at = matrix + (step * kTiles + tile + i) * 64;
            const auto pair = reinterpret_cast<const Word<float, 2>*>(at)[lane];
            float b[2];
            memcpy(b, &pair, sizeof(b));
            multiply_add(sum[i], a, Split<kPrecise>::of_kept(b[0]), Split<kPrecise>::of_kept(b[1]));
          }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (kTiles % kTogether == 0 || tile + i < kTiles)
#pragma unroll
          for (int down = 0; down < 2; ++down) {
            Word<float, 2> pair;
            memcpy(&pair, sum[i] + 2 * down, sizeof(pair));
            *reinterpret_cast<Word<float, 2>*>(to + down * 8 * To::kStride + (tile + i) * 8) = pair;
          }
    }
  }
}

}  // namespace
}  // namespace jax_gnn::cuda
