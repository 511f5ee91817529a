// Edge tiles: rows of 16 entries of a warp, in registers as tensor cores hold them, and products
// with matrices that all entries share. Generated texts are written with this
// (jax_gnn/_ops/edge_region/tile_codegen.py). Products need tensor cores of sm_80 or later.
//
// Lane 4 g + t has columns 8 j + 2 t and 8 j + 2 t + 1 of entries g and g + 8: x[j][e] of a *wide*
// row, where e counts the columns of the first entry, then of the second one. All lanes of a quad
// have *narrow* rows, x[k][q] of entry g + 8 k.
//
// Numbers are rounded to tf32, as XLA does by default; where kPrecise, they are sums of two such.
#pragma once

#include "edge_numbers.cuh"

#define JAX_GNN_WIDE(blocks, elements)               \
  _Pragma("unroll") for (int j = 0; j < blocks; ++j) \
      _Pragma("unroll") for (int e = 0; e < elements; ++e)
#define JAX_GNN_NARROW(entries, width)                \
  _Pragma("unroll") for (int k = 0; k < entries; ++k) \
      _Pragma("unroll") for (int q = 0; q < width; ++q)

namespace jax_gnn::cuda {
namespace {

__host__ __device__ constexpr int in_steps(int size, int step) { return (size + step - 1) / step; }

// An entry of a tile. It counts if it is valid; a padding entry may still have a place.
struct alignas(16) TileEntry {
  Index row, col, place;
  unsigned flags;
  __device__ __forceinline__ bool valid() const { return flags & 1; }
  __device__ __forceinline__ bool there() const { return flags & 2; }
};

// Rows of a warp's entries in shared memory, kStart words from the start of the warp's.
template <int kStart, int kStride>
struct EntryTile {
  static __device__ __forceinline__ float* row(float* memory, unsigned entry) {
    return memory + kStart + entry * kStride;
  }
};

// ---- Numbers of a row

// The numbers of a list, by an index that is constant where loops are unrolled.
template <int... kNumbers>
__device__ __forceinline__ constexpr int lookup(int i) {
  constexpr int kList[] = {kNumbers...};
  return kList[i];
}

// Element i of a narrow row, which differs between lanes.
template <int kWidth, typename T>
__device__ __forceinline__ T chosen(const T (&row)[kWidth], int i) {
  T x = row[0];
#pragma unroll
  for (int q = 1; q < kWidth; ++q) x = i == q ? row[q] : x;
  return x;
}

// The number that a lane of the quad has, for all of its lanes.
template <typename T>
__device__ __forceinline__ T quad_read(T x, int lane) {
  return __shfl_sync(kWholeWarp, x, static_cast<int>(threadIdx.x % 32 / 4 * 4) + lane);
}
__device__ __forceinline__ bool quad_read(bool x, int lane) {
  return quad_read(static_cast<int>(x), lane) != 0;
}

template <Join kJoin>
__device__ __forceinline__ float quad_join(float x) {
  return join_lanes<kJoin, 4>(x);
}

template <typename T>
__device__ __forceinline__ auto loaded_number(T x) {
  if constexpr (sizeof(T) == 1)
    return x != 0;
  else
    return number(x);
}

// A wide row of kWidth numbers, zeros unless `valid`, to elements kFirst and kFirst + 1 of each
// block.
template <int kWidth, int kWord, bool kOnce, int kFirst, typename T, typename R, int kBlocks,
          int kElements>
__device__ __forceinline__ void load_wide(bool valid, const T* row, int t,
                                          R (&to)[kBlocks][kElements]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const int column = 8 * j + 2 * t;
    const auto inside = [&](int i) { return valid && (kWidth % 8 == 0 || column + i < kWidth); };
    T pair[2];
    if constexpr (kWord == 2) {
      load_numbers<2, kOnce>(inside(0), row + column, pair);
    } else {
      load_number<kOnce>(inside(0), row + column, pair[0]);
      load_number<kOnce>(inside(1), row + column + 1, pair[1]);
    }
    to[j][kFirst] = loaded_number(pair[0]);
    to[j][kFirst + 1] = loaded_number(pair[1]);
  }
}

// Two neighbouring numbers of a row of kWidth.
template <int kWidth, int kWord, typename T>
__device__ __forceinline__ void store_pair(bool valid, T* row, int column, const T (&pair)[2]) {
  if (!valid) return;
  if constexpr (kWord == 2) {
    if (kWidth % 8 == 0 || column < kWidth) {
      Word<T, 2> word;
      memcpy(&word, pair, sizeof(word));
      *reinterpret_cast<Word<T, 2>*>(row + column) = word;
    }
  } else {
    if (kWidth % 8 == 0 || column < kWidth) row[column] = pair[0];
    if (kWidth % 8 == 0 || column + 1 < kWidth) row[column + 1] = pair[1];
  }
}

// ---- Staged rows: inputs of a tile's entries in shared memory, copied a tile ahead

enum class Id { kRow, kCol, kPlace };

// Lanes that copy a row of so many words.
__host__ __device__ constexpr int lanes_of_row(int pieces) {
  int lanes = 2;
  while (lanes < 32 && lanes < pieces) lanes *= 2;
  return lanes;
}

// The entries of a tile, and for each input's rows the ids of those that are read: -1 elsewhere.
struct TileEntries {
  TileEntry entries[16];
  Index ids[3][16];  // by Id
};

// The ids of the entries of which a lane copies words. Rows have kPieces words: lanes are shared
// out over whole rows, so that a lane has the same piece of each.
template <Id kId, int kPieces>
struct StagedIds {
  static constexpr int kLanes = lanes_of_row(kPieces), kRows = 32 / kLanes;  // read at once
  static constexpr int kSteps = 16 / kRows, kWords = in_steps(kPieces, kLanes);
  int row, piece;  // of the lane, the first ones
  Index ids[kSteps];

  __device__ __forceinline__ StagedIds(const TileEntries& tile, int lane)
      : row(lane / kLanes), piece(lane % kLanes) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) ids[i] = tile.ids[static_cast<int>(kId)][row + i * kRows];
  }

  // Asks for rows of kPieces * kWord bytes, to rows of kStride bytes.
  template <int kWord, int kStride>
  __device__ __forceinline__ void copy(const void* array, float* to) const {
    const auto* const from = static_cast<const unsigned char*>(array) + piece * kWord;
    auto* const bytes = reinterpret_cast<unsigned char*>(to) + row * kStride + piece * kWord;
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
#pragma unroll
      for (int w = 0; w < kWords; ++w)
        if (kPieces % kLanes == 0 || piece + w * kLanes < kPieces)
          copy_or_zeros<kWord>(ids[i] >= 0,
                               row_at(from + w * kLanes * kWord, ids[i], kPieces * kWord),
                               bytes + i * kRows * kStride + w * kLanes * kWord);
  }
};

// A staged row, kStart words from the first one's, in rows of kStride bytes.
template <typename T, int kStart, int kStride>
__device__ __forceinline__ const T* staged_row(const float* staged, int entry) {
  return reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(staged + kStart) +
                                    entry * kStride);
}

// Columns of a staged row, as load_wide.
template <int kWidth, int kFirst, typename T, typename R, int kBlocks, int kElements>
__device__ __forceinline__ void read_wide(const T* row, int t, R (&to)[kBlocks][kElements]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const int column = 8 * j + 2 * t;
    const auto word = *reinterpret_cast<const Word<T, 2>*>(row + column);
    T pair[2];
    memcpy(pair, &word, sizeof(word));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const R x = loaded_number(pair[i]);
      to[j][kFirst + i] = kWidth % 8 == 0 || column + i < kWidth ? x : R(0);
    }
  }
}

// ---- Reduced rows, of which a lane has two neighbouring columns of each 64

template <class Tile, int kWidth, int kParts>
__device__ __forceinline__ void read_tile(float* memory, int entry, int64_t place,
                                          float (&parts)[kParts], int first) {
  float words[2];
  take_numbers<2>(Tile::row(memory, entry) + (place < kWidth ? place : 0), words);
#pragma unroll
  for (int i = 0; i < 2; ++i) parts[first + i] = words[i];
}

template <int kWidth, typename T, int kParts>
__device__ __forceinline__ void store_chunk(T* row, unsigned place, const float (&run)[kParts],
                                            int first) {
  T words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) words[i] = cast<T>(run[first + i]);
  if constexpr (kWidth % 2 == 0) {
    if (place < kWidth) store_numbers<2>(row + place, words);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (place + i < kWidth) row[place + i] = words[i];
  }
}

// ---- Products

// Not called in templates: for these, a host's compiler would want them declared.
__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float float_of(unsigned bits) { return __uint_as_float(bits); }

// A number for tensor cores, rounded or as the sum of two.
template <bool kPrecise>
struct Split {
  unsigned high, low = 0;
  Split() = default;
  __device__ __forceinline__ explicit Split(float x)
      : high(kPrecise ? to_tf32(bits_of(x)) : nearly_tf32(x)) {
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
  // The same of numbers that have been through Split::kept.
  template <class Number>
  __device__ __forceinline__ void load_kept(const Number& number) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const auto x = Split<kPrecise>::of_kept(number(e % 2 * 8, e / 2 * 4));
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

// The place of a number of a fragment in shared memory. Those of the upper half of the lanes change
// places by eight, so that a lane can read a row of the transposed fragment, of which rows are 16
// numbers apart, without bank conflicts.
__device__ __forceinline__ int in_fragment(int i) { return i ^ i / 32 % 2 * 8; }

// Loads a matrix to shared memory as fragments. Number (i, j) is at start + i * down + j % group *
// across + j / group * apart of the array. Of each step of eight rows, lane 4 g + t of a fragment
// has rows 2 t and 2 t + 1 of column g, so that a lane's neighbouring columns of one product are
// its operands of the next one. So number (i, j) of a fragment is its word i + 8 j, but for
// in_fragment. Called by the whole block.
template <int kInner, int kColumns, bool kPrecise, typename T>
__device__ __forceinline__ void load_matrix(const T* from, int start, int down, int across,
                                            int group, int apart, float* to) {
  constexpr int kTiles = in_steps(kColumns, 8), kNumbers = in_steps(kInner, 8) * kTiles * 64;
  const bool is_plain = group >= kColumns && start % 4 == 0;
  const bool by_columns = is_plain && across == 1 && down % 4 == 0 && kColumns % 4 == 0;
  const bool by_rows = is_plain && down == 1 && across % 4 == 0 && kInner % 4 == 0;
  if (!by_columns && !by_rows) {
#pragma unroll 4
    for (int i = threadIdx.x; i < kNumbers; i += blockDim.x) {
      const int row = i / 64 / kTiles * 8 + i % 8, column = i / 64 % kTiles * 8 + i % 64 / 8;
      const bool there = row < kInner && column < kColumns;
      const int at = start + row * down + column % group * across + column / group * apart;
      to[i / 64 * 64 + in_fragment(i % 64)] = there ? Split<kPrecise>::kept(widen(from[at])) : 0.0f;
    }
    return;
  }
  // Words of four numbers, several on their way at once. A warp has eight rows of sixteen columns,
  // or columns of sixteen rows: no more than two of its lanes store to a bank.
  constexpr int kWords = kNumbers / 4, kBatch = 4;
  for (int first = static_cast<int>(threadIdx.x); first < kWords; first += kBatch * blockDim.x) {
    T numbers[kBatch][4] = {};
    int rows[kBatch], columns[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int word = first + b * static_cast<int>(blockDim.x), rest = word / 8;
      const int blocks = 2 * (by_columns ? kTiles : in_steps(kInner, 8));
      const int one = rest / blocks * 8 + word % 8, four = rest % blocks * 4;
      rows[b] = by_columns ? one : four;
      columns[b] = by_columns ? four : one;
      const bool there = word < kWords && rows[b] < kInner && columns[b] < kColumns;
      load_numbers<4, false>(there, from + start + rows[b] * down + columns[b] * across,
                             numbers[b]);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b * static_cast<int>(blockDim.x) >= kWords) break;
      float* const fragment = to + (rows[b] / 8 * kTiles + columns[b] / 8) * 64;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = rows[b] + (by_rows ? e : 0), column = columns[b] + (by_rows ? 0 : e);
        fragment[in_fragment(row % 8 + column % 8 * 8)] =
            Split<kPrecise>::kept(widen(numbers[b][e]));
      }
    }
  }
}

// Columns of the product of the rows of a tile with a matrix that load_matrix has loaded, from the
// first fragment of these columns on. x(j, e) is element e of block j of the rows, of kSteps
// blocks; a row of what is in memory, the matrix or its transpose, has kMatrixTiles blocks.
template <int kSteps, int kMatrixTiles, bool kPrecise, bool kTransposed, class X, int kTiles>
__device__ __forceinline__ void multiply_tile(const float* matrix, const X& x,
                                              float (&product)[kTiles][4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  static_assert(kSteps == 0, "the GPU's tensor cores take no float");
#endif
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float* const first =
      matrix + in_fragment(kTransposed ? lane % 4 * 16 + lane / 4 : 2 * lane);
  const float* const second = matrix + in_fragment(lane % 4 * 16 + 8 + lane / 4);
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) product[n][e] = 0;
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    LeftFragment<kPrecise> a;
    a.load([&](int down, int across) { return x(j, down / 8 * 2 + across / 4); });
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float b[2];
      if constexpr (kTransposed) {
        b[0] = first[(n * kMatrixTiles + j) * 64];
        b[1] = second[(n * kMatrixTiles + j) * 64];
      } else {
        take_numbers<2>(first + (j * kMatrixTiles + n) * 64, b);
      }
      multiply_add(product[n], a, Split<kPrecise>::of_kept(b[0]), Split<kPrecise>::of_kept(b[1]));
    }
  }
}

// ---- Sums over all entries of a block, such as gradients of what entries share
//
// The warps of a block leave rows of their tiles in shared memory, those of entry i of warp w in
// row 16 w + i. Either they share out the fragments of the sums, or each warp adds up those of its
// own entries in registers, without barriers, and the warps' sums are added up in turn at the end.

// Fragments of 16 x 8 sums that a warp has of rows x columns.
__host__ __device__ constexpr int outer_fragments(int rows, int columns, int warps) {
  return in_steps(in_steps(rows, 16) * in_steps(columns, 8), warps);
}

// Words of such sums.
__host__ __device__ constexpr int outer_words(int rows, int columns, int warps) {
  return warps * outer_fragments(rows, columns, warps) * 128;
}

// Adds the products of the numbers of rows of `left` and `right`, in rows of kLeftStride and
// kRightStride, to sums in shared memory, fragment by fragment, four numbers a lane. Numbers have
// been through Split::kept.
template <int kWarps, int kRows, int kColumns, int kLeftStride, int kRightStride, bool kPrecise>
__device__ __forceinline__ void accumulate_outer(const float* left, const float* right,
                                                 float* sums) {
  constexpr int kTiles = in_steps(kColumns, 8), kCount = in_steps(kRows, 16) * kTiles;
  constexpr int kFragments = outer_fragments(kRows, kColumns, kWarps);
  // A warp's fragments are side by side: those of the same rows share their left operands.
  constexpr bool kShares = kTiles % kFragments == 0 || kFragments % kTiles == 0;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const float* const left_at = left + lane % 4 * kLeftStride + lane / 4;
  const float* const right_at = right + lane % 4 * kRightStride + lane / 4;
  float* const sums_at = sums + (warp * kFragments * 32 + lane) * 4;
  float sum[kFragments][4];
#pragma unroll
  for (int i = 0; i < kFragments; ++i) take_numbers<4>(sums_at + i * 128, sum[i]);
#pragma unroll 2
  for (int step = 0; step < kWarps * 16; step += 8) {
    LeftFragment<kPrecise> a;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const int fragment = warp * kFragments + i;
      if (kCount % kWarps != 0 && fragment >= kCount) continue;
      if (!kShares || i % kTiles == 0)
        a.load_kept([&](int down, int across) {
          return left_at[(step + across) * kLeftStride + fragment / kTiles * 16 + down];
        });
      const float* const b = right_at + step * kRightStride + fragment % kTiles * 8;
      multiply_add(sum[i], a, Split<kPrecise>::of_kept(b[0]),
                   Split<kPrecise>::of_kept(b[4 * kRightStride]));
    }
  }
#pragma unroll
  for (int i = 0; i < kFragments; ++i) put_numbers<4>(sums_at + i * 128, sum[i]);
}

// Writes such sums to columns of a matrix whose rows have kStride numbers.
template <int kWarps, int kRows, int kColumns, int kStride>
__device__ __forceinline__ void store_outer(float* to, const float* sums) {
  constexpr int kTiles = in_steps(kColumns, 8), kCount = in_steps(kRows, 16) * kTiles;
  constexpr int kFragments = outer_fragments(kRows, kColumns, kWarps);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < kFragments; ++i) {
    const int fragment = warp * kFragments + i;
    if (fragment >= kCount) continue;
    float sum[4];
    take_numbers<4>(sums + (fragment * 32 + lane) * 4, sum);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = fragment / kTiles * 16 + lane / 4 + e / 2 * 8;
      const int column = fragment % kTiles * 8 + lane % 4 * 2 + e % 2;
      if (row < kRows && column < kColumns) to[row * kStride + column] = sum[e];
    }
  }
}

// Adds the products of the rows of a warp's tile to sums in registers. `left` and `right` are the
// memory of the whole block.
template <int kRows, int kColumns, int kLeftStride, int kRightStride, bool kPrecise, int kFragments>
__device__ __forceinline__ void accumulate_own_outer(const float* left, const float* right,
                                                     float (&sums)[kFragments][4]) {
  constexpr int kTiles = in_steps(kColumns, 8);
  static_assert(kFragments == in_steps(kRows, 16) * kTiles, "one fragment for 16 x 8 sums");
  const int entry = static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 4);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float* const left_at = left + entry * kLeftStride + lane / 4;
  const float* const right_at = right + entry * kRightStride + lane / 4;
#pragma unroll
  for (int step = 0; step < 16; step += 8) {
    float b[kTiles][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) b[n][i] = right_at[(step + 4 * i) * kRightStride + n * 8];
#pragma unroll
    for (int m = 0; m < in_steps(kRows, 16); ++m) {
      LeftFragment<kPrecise> a;
      a.load_kept([&](int down, int across) {
        return left_at[(step + across) * kLeftStride + m * 16 + down];
      });
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        multiply_add(sums[m * kTiles + n], a, Split<kPrecise>::of_kept(b[n][0]),
                     Split<kPrecise>::of_kept(b[n][1]));
    }
  }
}

// Adds such sums up, warp after warp, and writes them to columns of a matrix whose rows have
// kStride numbers. Called by the whole block.
template <int kWarps, int kRows, int kColumns, int kStride, int kFragments>
__device__ __forceinline__ void store_own_outer(float* to, float* memory,
                                                const float (&sums)[kFragments][4]) {
  constexpr int kTiles = in_steps(kColumns, 8);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int w = 0; w < kWarps; ++w) {
    if (warp == w)
#pragma unroll
      for (int i = 0; i < kFragments; ++i) {
        float sum[4] = {0, 0, 0, 0};
        float* const at = memory + (i * 32 + lane) * 4;
        if (w > 0) take_numbers<4>(at, sum);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] += sums[i][e];
        put_numbers<4>(at, sum);
      }
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < kFragments * 128; i += kWarps * 32) {
    const int fragment = i / 128, of = i / 4 % 32, e = i % 4;
    const int row = fragment / kTiles * 16 + of / 4 + e / 2 * 8;
    const int column = fragment % kTiles * 8 + of % 4 * 2 + e % 2;
    if (row < kRows && column < kColumns) to[row * kStride + column] = memory[i];
  }
  __syncthreads();
}

// Adds the sums of a block's lanes over their entries, by way of shared memory. Wide rows have
// kElements of a block of columns, narrow ones have all numbers in each lane of a quad. Called by
// the whole block.
template <int kWarps, int kWidth, bool kWide, int kBlocks, int kElements>
__device__ __forceinline__ void store_columns(float* to, float* memory,
                                              const float (&sums)[kBlocks][kElements]) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < kBlocks; ++j)
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      float x = sums[j][e];
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2)
        x += __shfl_xor_sync(kWholeWarp, x, distance);
      const int column = kWide ? 8 * j + 2 * lane + e : e;
      if (lane < (kWide ? 4 : 1) && column < kWidth) memory[warp * kWidth + column] = x;
    }
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < kWidth; column += 32 * kWarps) {
    float x = memory[column];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) x += memory[w * kWidth + column];
    to[column] = x;
  }
  __syncthreads();
}

}  // namespace
}  // namespace jax_gnn::cuda
