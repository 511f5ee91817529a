// What edge regions have of linear maps: rows of entries times a matrix that all share, and sums
// over entries of all products of two rows, which are the gradients of such matrices. Tensor cores
// make them, of sm_80 and later.
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

// A matrix of an array, number (i, j) at start + i * down + j * across: as fragments in shared
// memory, those of neighbouring columns side by side. By the whole block.
template <int kInner, int kColumns, bool kPrecise, typename T>
__device__ __forceinline__ void load_matrix(const T* from, int start, int down, int across,
                                            float* to) {
  constexpr int kTiles = in_steps(kColumns, 8), kNumbers = in_steps(kInner, 8) * kTiles * 64;
#pragma unroll 4
  for (int i = threadIdx.x; i < kNumbers; i += blockDim.x) {
    const int lane = i / 2 % 32, fragment = i / 64;
    const int row = fragment / kTiles * 8 + lane % 4 + i % 2 * 4;
    const int column = fragment % kTiles * 8 + lane / 4;
    const bool there = row < kInner && column < kColumns;
    to[i] = there ? Split<kPrecise>::kept(widen(from[start + row * down + column * across])) : 0.0f;
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
      const float* at = matrix + tile * 64 + 2 * lane;
#pragma unroll 2
      for (int step = 0; step < kSteps; ++step) {
        LeftFragment<kPrecise> a;
        a.load(
            [&](int down, int across) { return from[down * From::kStride + step * 8 + across]; });
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (kTiles % kTogether == 0 || tile + i < kTiles) {
            float b[2];
            const auto pair =
                *reinterpret_cast<const Word<float, 2>*>(at + (step * kTiles + i) * 64);
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

// The sum over rows of a block of all products of a number of one and a number of another:
// (kDown, kAcross), dealt out to the warps.
template <int kDown, int kAcross, int kWarps, bool kPrecise>
class OuterSum {
 public:
  __device__ __forceinline__ OuterSum() {
#pragma unroll
    for (int i = 0; i < kMine; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum_[i][e] = 0;
  }
  // Adds what all warps have in two tiles; a warp has `numbers` numbers of memory. Called by the
  // whole block, between barriers.
  template <class X, class Y>
  __device__ __forceinline__ void add(float* memory, int numbers) {
    static_assert(X::kRows == Y::kRows && X::kWidth == kDown && Y::kWidth == kAcross);
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (int warp = 0; warp < kWarps; ++warp, memory += numbers)
#pragma unroll 1
      for (int row = 0; row < X::kRows; row += 8) {
        const float *const x = X::row(memory, row + t) + g, *const y = Y::row(memory, row + t) + g;
        LeftFragment<kPrecise> a;
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
          const int tile = first() + i, from = tile / kTilesAcross * 16;
          if (tile >= kTiles) break;
          if (i == 0 || !kSharesRows)
            a.load([&](int down, int across) { return x[from + down + across * X::kStride]; });
          const float* const b = y + tile % kTilesAcross * 8;
          multiply_add(sum_[i], a, Split<kPrecise>(b[0]), Split<kPrecise>(b[4 * Y::kStride]));
        }
      }
  }
  __device__ __forceinline__ void store(float* to) const {
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < kMine; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int tile = first() + i;
        const int row = tile / kTilesAcross * 16 + g + e / 2 * 8;
        const int column = tile % kTilesAcross * 8 + 2 * t + e % 2;
        if (row < kDown && column < kAcross) to[row * kAcross + column] = sum_[i][e];
      }
  }

 private:
  static constexpr int kTilesAcross = in_steps(kAcross, 8);
  static constexpr int kTiles = in_steps(kDown, 16) * kTilesAcross;
  static constexpr int kMine = in_steps(kTiles, kWarps);  // neighbouring ones
  static constexpr bool kSharesRows = kTilesAcross % kMine == 0;
  static __device__ __forceinline__ int first() {
    return static_cast<int>(threadIdx.x / 32) * kMine;
  }
  float sum_[kMine][4];
};

}  // namespace
}  // namespace jax_gnn::cuda
