// Sums of the outer products of a group's rows: the weight gradient of segment_matmul (FASTEN,
// section 5.3, its third dimension of parallelism).
//
// Every block takes an even, contiguous range of the tiles and keeps the sum of a group in
// registers until the group ends. A group that lies in one block is written at once; parts of one
// that does not go to the workspace, where a second launch adds them up in the order of the blocks.
// Without `deterministic`, parts are added to the result by atomics instead.
#pragma once

#include "segment_matmul.cuh"

namespace jax_gnn::cuda {
namespace {

// What blocks leave for the second launch: a part of the group that was open at their begin, and
// one of the group that is open at their end. A block in the midst of a group leaves a tail alone.
struct OuterRecord {
  int head_group;  // -1: none; it ends in this block
  int first;       // the block where that group begins
};

// (parts, k, n) accumulators for heads, as many for tails, then the records.
template <typename Acc>
struct OuterWorkspace {
  Acc* base;
  int64_t size, blocks;  // of a part, of the grid
  __host__ __device__ Acc* head(int64_t block) const { return base + block * size; }
  __host__ __device__ Acc* tail(int64_t block) const { return base + (blocks + block) * size; }
  __host__ __device__ OuterRecord* records() const {
    return reinterpret_cast<OuterRecord*>(
        reinterpret_cast<unsigned char*>(base) +
        (2 * blocks * size * static_cast<int64_t>(sizeof(Acc)) + 15) / 16 * 16);
  }
};

template <typename T, typename Out>
struct OuterProduct {
  const T* lhs;
  const T* rhs;
  Out* out;
  int k, n;
  bool atomic, splits;  // whether blocks may share a group
  OuterWorkspace<Accumulator<T>> workspace;
};

template <typename Run>
constexpr int kLength = std::extent_v<std::remove_reference_t<Run>>;

template <typename Out, typename Acc, int kSize>
__device__ __forceinline__ void store_run(Out* out, const Acc (&run)[kSize]) {
  Pack<Out, kSize> pack;
#pragma unroll
  for (int i = 0; i < kSize; ++i) narrow(run[i], pack.at[i]);
  *reinterpret_cast<Pack<Out, kSize>*>(out) = pack;
}

// Hands `write` a function that stores a run of sums of a group at an offset: in the result where
// the whole group was in this block, else in the workspace. `opened`: whether the group's first
// tile was in this block; `ended`: whether its last one was.
template <typename T, typename Out, class Write>
__device__ __forceinline__ void write_sum(const OuterProduct<T, Out>& product, const Groups& groups,
                                          int group, bool opened, bool ended, const Write& write) {
  using Acc = Accumulator<T>;
  const unsigned weight = static_cast<unsigned>(group - *groups.offset);
  const bool whole = opened && ended;
  const bool to_part = !whole && !product.atomic;
  if (!to_part && weight >= groups.num_groups) return;
  Out* out = product.out + int64_t{weight} * product.k * product.n;
  Acc* part = reinterpret_cast<Acc*>(out);
  if (to_part)
    part = ended ? product.workspace.head(blockIdx.x) : product.workspace.tail(blockIdx.x);
  if constexpr (std::is_same_v<Out, Acc>) {
    if (!whole && product.atomic) {
      write([=](int64_t at, const auto& run) {
#pragma unroll
        for (int i = 0; i < kLength<decltype(run)>; ++i) atomicAdd(out + at + i, run[i]);
      });
      return;
    }
  } else if (whole) {
    write([=](int64_t at, const auto& run) { store_run(out + at, run); });
    return;
  }
  write([=](int64_t at, const auto& run) { store_run(part + at, run); });
}

// --- Hopper and later ----------------------------------------------------------------------------

// kTile by kTile of a result, by warps of 32 by kColumns each, over which the rows of a tile are
// dealt in kParts. A stage holds kRows rows of both sides.
template <typename T, int kTile_>
struct OuterTile {
  static constexpr int kTile = kTile_;
  static constexpr int kColumns = std::min(kTile, 64);
  static constexpr int kWarpsDown = kTile / 32, kWarpsAcross = kTile / kColumns;
  static constexpr int kParts = std::max(1, 4 / (kWarpsDown * kWarpsAcross));
  static constexpr int kWarps = kWarpsDown * kWarpsAcross * kParts;
  static constexpr int kThreads = 32 * kWarps + 32;
  static constexpr int kChunks = (kTile * static_cast<int>(sizeof(T)) + kChunkBytes - 1) /
                                 kChunkBytes;  // of a row of one side
  static constexpr int kRows = std::min(128, 128 / kChunks);
  static constexpr int kStageBytes = 2 * kChunks * kRows * kChunkBytes;
  static constexpr int kStepRows = 32 / sizeof(T);  // of a matrix instruction
  static constexpr int kBlocks = kTile == 128 ? 1 : 3;
  static constexpr int kStages =
      (220 / kBlocks * 1024 - 2048 - (kParts - 1) * kTile * kTile * 4) / kStageBytes;
  static constexpr int kReduceBytes = kParts > 1 ? kTile * kTile * 4 : 0;
  static constexpr int kSharedBytes = kStages * kStageBytes + kChunkAlign + kReduceBytes;
};

// The fragments of a warp for one step of rows, and where its sums belong.
template <typename T, int kColumns>
struct OuterFragments;

// Rows 2 q and 2 q + 1 of the eight stand in columns q and q + 4 of the fragments, and four
// neighbouring columns of a side in four fragments: reads of 16 bytes without bank conflicts.
template <int kColumns>
struct OuterFragments<float, kColumns> {
  unsigned a[2][4], b[kColumns / 8][2];

  template <bool kFull>
  __device__ __forceinline__ void load(const unsigned char* left, const unsigned char* right,
                                       int chunk_bytes, int first_row, int valid) {
    const int quad = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int row = 2 * quad + odd;
      const int at = (first_row + row) * kChunkBytes + (g ^ row) * 16;
      const bool is_valid = row < valid;
      const auto read = [&](const unsigned char* from) {
        uint4 word = *reinterpret_cast<const uint4*>(from + at);
        if (!kFull && !is_valid) word = {};
        return word;
      };
      const uint4 word = read(left);
      a[0][2 * odd] = word.x;
      a[0][2 * odd + 1] = word.y;
      a[1][2 * odd] = word.z;
      a[1][2 * odd + 1] = word.w;
#pragma unroll
      for (int chunk = 0; chunk < kColumns / 32; ++chunk) {
        const uint4 other = read(right + chunk * chunk_bytes);
        b[4 * chunk][odd] = other.x;
        b[4 * chunk + 1][odd] = other.y;
        b[4 * chunk + 2][odd] = other.z;
        b[4 * chunk + 3][odd] = other.w;
      }
    }
  }
  static __device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4],
                                                  const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  // Hands `store` all runs of neighbouring sums, with row and column of the first in the warp's
  // part.
  template <class Store>
  static __device__ __forceinline__ void for_runs(const float (&sum)[2][kColumns / 8][4],
                                                  const Store& store) {
    const int quad = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int j = 0; j < kColumns / 8; j += 4) {
          const float run[4] = {sum[i][j][e], sum[i][j + 1][e], sum[i][j + 2][e], sum[i][j + 3][e]};
          store(g * 4 + 2 * i + e / 2, j * 8 + quad * 8 + e % 2 * 4, run);
        }
  }
};

template <typename T, int kColumns>
struct OuterFragments {
  unsigned a[2][4], b[kColumns / 8][2];

  static __device__ __forceinline__ void read(const unsigned char* from, unsigned& one,
                                              unsigned& two, unsigned& three, unsigned& four) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(one), "=r"(two), "=r"(three), "=r"(four)
                 : "r"(shared_address(from)));
  }
  // Rows from `valid` on count as zeros: a register holds rows 2 q, 2 q + 1 of eight.
  static __device__ __forceinline__ void cut(unsigned& word, int half, int valid) {
    const int row = half * 8 + threadIdx.x % 4 * 2;
    if (row >= valid)
      word = 0;
    else if (row + 1 >= valid)
      word &= 0xffff;
  }
  template <bool kFull>
  __device__ __forceinline__ void load(const unsigned char* left, const unsigned char* right, int,
                                       int first_row, int valid) {
    const int lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
    // `left` may point at the second half of a chunk.
    const int left_unit = static_cast<int>(shared_address(left) % kChunkBytes) / 16;
    const unsigned char* left_chunk = left - left_unit * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      read(left_chunk + (first_row + matrix / 2 * 8 + row) * kChunkBytes +
               ((left_unit + 2 * i + matrix % 2) ^ row) * 16,
           a[i][0], a[i][1], a[i][2], a[i][3]);
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2)
      read(right + (first_row + matrix % 2 * 8 + row) * kChunkBytes + ((j + matrix / 2) ^ row) * 16,
           b[j][0], b[j][1], b[j + 1][0], b[j + 1][1]);
    if (!kFull && valid < 16) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) cut(a[i][e], e / 2, valid);
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) cut(b[j][e], e, valid);
    }
  }
  static __device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4],
                                                  const unsigned (&b)[2]) {
    if constexpr (std::is_same_v<T, __half>)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
          "%7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  template <class Store>
  static __device__ __forceinline__ void for_runs(const float (&sum)[2][kColumns / 8][4],
                                                  const Store& store) {
    const int quad = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; e += 2)
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
          const float run[2] = {sum[i][j][e], sum[i][j][e + 1]};
          store(i * 16 + e * 4 + g, j * 8 + quad * 2, run);
        }
  }
};

template <class Shape, typename T, typename Out>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    hopper_outer_kernel(const __grid_constant__ CUtensorMap lhs,
                        const __grid_constant__ CUtensorMap rhs, Groups groups,
                        OuterProduct<T, Out> product) {
  constexpr int kStages = Shape::kStages, kRows = Shape::kRows;
  constexpr int kChunkSize = kRows * kChunkBytes, kPerChunk = kChunkBytes / sizeof(T);
  extern __shared__ unsigned char shared_bytes[];
  unsigned char* const ring = reinterpret_cast<unsigned char*>(
      (reinterpret_cast<uintptr_t>(shared_bytes) + kChunkAlign - 1) / kChunkAlign * kChunkAlign);
  __shared__ Barrier filled[kStages], emptied[kStages];
  __shared__ Tile tiles[kStages];
  using Walk = TileWalk<Shape::kThreads, 1, false>;
  __shared__ typename Walk::Index index;
  __shared__ int first_block;  // where the group begins that is open where this block begins
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      filled[stage].init(1);
      emptied[stage].init(Shape::kWarps);
    }
    make_barriers_visible();
  }
  allow_next_launch();
  wait_for_previous_launch();
  index.build(groups, kRows);
  const int k = product.k, n = product.n;
  const int slices = static_cast<int>(ceil_div(n, Shape::kTile));
  const int first_row = static_cast<int>(blockIdx.y) / slices * Shape::kTile;
  const int first_column = static_cast<int>(blockIdx.y) % slices * Shape::kTile;
  RingIndex at;

  if (threadIdx.x >= 32 * Shape::kWarps) {  // loads
    Walk walk(groups, kRows, index);
    walk.enter_part(!product.splits);
    first_block = static_cast<int>(part_of(index.total, walk.place_of_group(), gridDim.x));
    const int left_chunks = static_cast<int>(ceil_div(min(k - first_row, Shape::kTile), kPerChunk));
    const int right_chunks =
        static_cast<int>(ceil_div(min(n - first_column, Shape::kTile), kPerChunk));
    for (; walk.has_next(); at.advance(kStages)) {
      const Tile tile = walk.next();
      if (threadIdx.x % 32 != 0) continue;
      emptied[at.stage].wait(at.parity ^ 1);
      tiles[at.stage] = tile;
      if (tile.count == 0) {
        filled[at.stage].arrive();
        continue;
      }
      filled[at.stage].arrive_expecting((left_chunks + right_chunks) * kChunkSize);
      unsigned char* const stage = ring + at.stage * Shape::kStageBytes;
      for (int chunk = 0; chunk < left_chunks; ++chunk)
        copy_box(lhs, first_row + chunk * kPerChunk, tile.row, stage + chunk * kChunkSize,
                 filled[at.stage]);
      for (int chunk = 0; chunk < right_chunks; ++chunk)
        copy_box(rhs, first_column + chunk * kPerChunk, tile.row,
                 stage + (Shape::kChunks + chunk) * kChunkSize, filled[at.stage]);
    }
    if (threadIdx.x % 32 == 0) {
      emptied[at.stage].wait(at.parity ^ 1);
      tiles[at.stage] = {0, 0, -1, false, false};
      filled[at.stage].arrive();
    }
    return;
  }

  const int warp = threadIdx.x / 32;
  const int part = warp / (Shape::kWarpsDown * Shape::kWarpsAcross);
  const int row = warp % Shape::kWarpsDown * 32;
  const int column = warp / Shape::kWarpsDown % Shape::kWarpsAcross * Shape::kColumns;
  using Fragments = OuterFragments<T, Shape::kColumns>;
  float sum[2][Shape::kColumns / 8][4] = {};
  bool opened = false;
  int head_group = -1;
  int open = -1;  // the group whose sum is in registers
  for (bool ends = false; !ends; at.advance(kStages)) {
    filled[at.stage].wait(at.parity);
    const Tile tile = tiles[at.stage];
    ends = tile.count < 0;
    if (!ends) open = tile.group;
    if (tile.first) opened = true;
    const unsigned char* left = ring + at.stage * Shape::kStageBytes +
                                row / kPerChunk * kChunkSize + row % kPerChunk * sizeof(T);
    const unsigned char* right =
        ring + at.stage * Shape::kStageBytes + (Shape::kChunks + column / kPerChunk) * kChunkSize;
    const auto add = [&](auto full) {
      constexpr bool kFull = decltype(full)::value;
#pragma unroll(kFull ? kRows / Shape::kStepRows / Shape::kParts : 1)
      for (int begin = part * Shape::kStepRows; begin < (kFull ? kRows : tile.count);
           begin += Shape::kParts * Shape::kStepRows) {
        Fragments fragments;
        fragments.template load<kFull>(left, right, kChunkSize, begin, tile.count - begin);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int j = 0; j < Shape::kColumns / 8; ++j)
            Fragments::multiply(sum[m][j], fragments.a[m], fragments.b[j]);
      }
    };
    if (tile.count == kRows)
      add(std::true_type{});
    else
      add(std::false_type{});
    __syncwarp();
    if (threadIdx.x % 32 == 0) emptied[at.stage].arrive();
    if (!tile.last && !ends) continue;
    if (open < 0) break;

    // The group is complete, or the block is.
    if (Shape::kParts > 1) {
      float* const shared = reinterpret_cast<float*>(ring + kStages * Shape::kStageBytes);
      float* const mine =
          shared + (threadIdx.x % (32 * Shape::kWarps / Shape::kParts)) * Shape::kColumns;
      for (int other = 1; other < Shape::kParts; ++other) {
        if (part == other)
#pragma unroll
          for (int j = 0; j < Shape::kColumns; ++j)
            mine[(j + threadIdx.x) % Shape::kColumns] = sum[j / 4 % 2][j / 8][j % 4];
        sync_some<32 * Shape::kWarps>(1);
        if (part == 0)
#pragma unroll
          for (int j = 0; j < Shape::kColumns; ++j)
            sum[j / 4 % 2][j / 8][j % 4] += mine[(j + threadIdx.x) % Shape::kColumns];
        sync_some<32 * Shape::kWarps>(1);
      }
    }
    if (part == 0)
      write_sum(product, groups, open, opened, tile.last, [&](const auto& store) {
        Fragments::for_runs(sum, [&](int run_row, int run_column, const auto& run) {
          const int to_row = first_row + row + run_row,
                    to_column = first_column + column + run_column;
          if (to_row < k && to_column < n) store(int64_t{to_row} * n + to_column, run);
        });
      });
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int j = 0; j < Shape::kColumns / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[m][j][e] = 0;
    if (tile.last && !opened) head_group = open;
    open = -1;
    opened = false;
  }
  if (threadIdx.x == 0 && blockIdx.y == 0)
    product.workspace.records()[blockIdx.x] = {head_group, head_group < 0 ? 0 : first_block};
}

// --- Everywhere ----------------------------------------------------------------------------------

constexpr int kPlainOuterTile = 64, kPlainOuterRows = 16;

// 64 by 64 of a result, 4 by 4 to a thread.
template <typename T, typename Out>
__global__ void __launch_bounds__(kPlainThreads)
    plain_outer_kernel(Groups groups, OuterProduct<T, Out> product, int tile_rows) {
  using Acc = Accumulator<T>;
  __shared__ Acc left[kPlainOuterRows][kPlainOuterTile], right[kPlainOuterRows][kPlainOuterTile];
  __shared__ Tile shared_tile;
  using Walk = TileWalk<kPlainThreads, 1, false>;
  __shared__ typename Walk::Index index;
  __shared__ int first_block;  // where the group begins that is open where this block begins
  allow_next_launch();
  wait_for_previous_launch();
  index.build(groups, tile_rows);
  const int k = product.k, n = product.n;
  const int slices = static_cast<int>(ceil_div(n, kPlainOuterTile));
  const int first_row = static_cast<int>(blockIdx.y) / slices * kPlainOuterTile;
  const int first_column = static_cast<int>(blockIdx.y) % slices * kPlainOuterTile;
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  Walk walk(groups, tile_rows, index);  // of the first warp
  if (threadIdx.x < 32) {
    walk.enter_part(!product.splits);
    first_block = static_cast<int>(part_of(index.total, walk.place_of_group(), gridDim.x));
  }
  Acc sum[4][4] = {};
  bool opened = false;
  int head_group = -1;
  int open = -1;  // the group whose sum is in registers
  for (bool ends = false; !ends;) {
    if (threadIdx.x < 32) {
      const Tile tile = walk.has_next() ? walk.next() : Tile{0, 0, -1, false, false};
      if (threadIdx.x == 0) shared_tile = tile;
    }
    __syncthreads();
    const Tile tile = shared_tile;
    ends = tile.count < 0;
    if (!ends) open = tile.group;
    if (tile.first) opened = true;
    for (int begin = 0; begin < tile.count; begin += kPlainOuterRows) {
      for (int j = threadIdx.x; j < kPlainOuterRows * kPlainOuterTile; j += kPlainThreads) {
        const int r = j / kPlainOuterTile, c = j % kPlainOuterTile;
        const int64_t from = int64_t{tile.row} + begin + r;
        const bool valid = begin + r < tile.count;
        left[r][c] =
            valid && first_row + c < k ? widen(product.lhs[from * k + first_row + c]) : Acc(0);
        right[r][c] = valid && first_column + c < n
                          ? widen(product.rhs[from * n + first_column + c])
                          : Acc(0);
      }
      __syncthreads();
#pragma unroll
      for (int r = 0; r < kPlainOuterRows; ++r)
#pragma unroll
        for (int a = 0; a < 4; ++a)
#pragma unroll
          for (int b = 0; b < 4; ++b) sum[a][b] += left[r][row + a] * right[r][column + b];
      __syncthreads();
    }
    if (open >= 0 && (tile.last || ends)) {
      write_sum(product, groups, open, opened, tile.last, [&](const auto& store) {
#pragma unroll
        for (int a = 0; a < 4; ++a)
#pragma unroll
          for (int b = 0; b < 4; ++b)
            if (first_row + row + a < k && first_column + column + b < n) {
              const Acc run[1] = {sum[a][b]};
              store(int64_t{first_row + row + a} * n + first_column + column + b, run);
            }
      });
#pragma unroll
      for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int b = 0; b < 4; ++b) sum[a][b] = 0;
      if (tile.last && !opened) head_group = open;
      open = -1;
      opened = false;
    }
    __syncthreads();  // shared_tile has been read
  }
  if (threadIdx.x == 0 && blockIdx.y == 0)
    product.workspace.records()[blockIdx.x] = {head_group, head_group < 0 ? 0 : first_block};
}

// --- The second launch ---------------------------------------------------------------------------

// One row of blocks for each block of the first launch: adds up the group that ended there.
// Together they clear the weights that no size is for.
template <typename T, typename Out>
__global__ void __launch_bounds__(kPlainThreads)
    combine_outer_kernel(Groups groups, OuterProduct<T, Out> product) {
  using Acc = Accumulator<T>;
  allow_next_launch();
  wait_for_previous_launch();
  const OuterRecord* records = product.workspace.records();
  const int64_t size = product.workspace.size;
  const int64_t mine = blockIdx.y * int64_t{kPlainThreads} + threadIdx.x;
  const int64_t stride = int64_t{gridDim.y} * kPlainThreads;
  const int block = blockIdx.x, offset = *groups.offset;
  const auto [group, first] = records[block];
  const unsigned weight = static_cast<unsigned>(group - offset);
  if (group >= 0 && weight < groups.num_groups) {
    for (int64_t j = mine; j < size; j += stride) {
      Acc sum = 0;
#pragma unroll 8
      for (int other = first; other < block; ++other) sum += product.workspace.tail(other)[j];
      sum += product.workspace.head(block)[j];
      narrow(sum, product.out[int64_t{weight} * size + j]);
    }
  }
  if (offset == 0 && groups.num_groups <= groups.num_sizes) return;
  for (int64_t other = blockIdx.x; other < groups.num_groups; other += gridDim.x)
    if (other + offset < 0 || other + offset >= groups.num_sizes)
      for (int64_t j = mine; j < size; j += stride) narrow(Acc(0), product.out[other * size + j]);
}

template <typename Out>
__global__ void zero_kernel(Out* out, int64_t size) {
  allow_next_launch();
  wait_for_previous_launch();
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x)
    narrow(Accumulator<Out>(0), out[i]);
}

// --- The host's side -----------------------------------------------------------------------------

template <class Shape, typename T, typename Out>
cudaError_t launch_hopper_outer(cudaStream_t stream, const Groups& groups, unsigned blocks,
                                const OuterProduct<T, Out>& product) {
  const auto kernel = hopper_outer_kernel<Shape, T, Out>;
  static const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
  if (allowed != cudaSuccess) return allowed;
  CUtensorMap lhs, rhs;
  cudaError_t error =
      describe(product.lhs, groups.num_rows, product.k, Shape::kRows, kMapType<T>, lhs);
  if (error != cudaSuccess) return error;
  error = describe(product.rhs, groups.num_rows, product.n, Shape::kRows, kMapType<T>, rhs);
  if (error != cudaSuccess) return error;
  const dim3 grid(blocks, static_cast<unsigned>(ceil_div(product.k, Shape::kTile) *
                                                ceil_div(product.n, Shape::kTile)));
  return launch(stream, {grid, Shape::kThreads, Shape::kSharedBytes}, kernel, lhs, rhs, groups,
                product);
}

inline bool has_copy_engine() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9;
}

}  // namespace

template <typename T, typename Out>
cudaError_t segment_outer(cudaStream_t stream, const MatmulSchedule& schedule, const Groups& groups,
                          int64_t k, int64_t n, bool exact, bool deterministic, const T* lhs,
                          const T* rhs, Out* out, void* workspace) {
  using Acc = Accumulator<T>;
  constexpr int64_t kMax = 1 << 24;
  if (groups.num_groups <= 0 || k <= 0 || n <= 0) return cudaSuccess;
  if (k > kMax || n > kMax || groups.num_rows > 0x7fffffff || groups.num_sizes > 1 << 30)
    return cudaErrorInvalidValue;
  const bool atomic = !deterministic && std::is_same_v<Out, Acc>;
  OuterProduct<T, Out> product = {lhs,
                                  rhs,
                                  out,
                                  static_cast<int>(k),
                                  static_cast<int>(n),
                                  atomic,
                                  schedule.chunk == 0,
                                  {static_cast<Acc*>(workspace), k * n, 0}};
  const int64_t blocks = std::max<int64_t>(schedule.blocks, 1);
  product.workspace.blocks = blocks;
  cudaError_t error = cudaSuccess;
  if (atomic) {
    const int64_t size = groups.num_groups * k * n;
    const auto filling = static_cast<unsigned>(std::min<int64_t>(ceil_div(size, 1024), 1056));
    error = launch(stream, {dim3(filling), 256, 0}, zero_kernel<Out>, out, size);
    if (error != cudaSuccess) return error;
  }
  const auto grid_x = static_cast<unsigned>(blocks);
  bool done = false;
  if constexpr (sizeof(T) <= 4) {
    if (has_copy_engine() && !(exact && sizeof(T) == 4) && groups.num_rows > 0 &&
        k * sizeof(T) % 16 == 0 && n * sizeof(T) % 16 == 0 && aligned(lhs, 16) &&
        aligned(rhs, 16)) {
      const int64_t larger = std::max(k, n);
      if (larger <= 32)
        error = launch_hopper_outer<OuterTile<T, 32>>(stream, groups, grid_x, product);
      else if (larger <= 64)
        error = launch_hopper_outer<OuterTile<T, 64>>(stream, groups, grid_x, product);
      else
        error = launch_hopper_outer<OuterTile<T, 128>>(stream, groups, grid_x, product);
      done = true;
    }
  }
  if (!done) {
    const int64_t slices = ceil_div(k, kPlainOuterTile) * ceil_div(n, kPlainOuterTile);
    if (slices > kMaxGridY) return cudaErrorInvalidConfiguration;
    error = launch(stream, {dim3(grid_x, static_cast<unsigned>(slices)), kPlainThreads, 0},
                   plain_outer_kernel<T, Out>, groups, product, 256);
  }
  if (error != cudaSuccess || atomic) return error;
  const dim3 grid(grid_x, static_cast<unsigned>(std::min<int64_t>(ceil_div(k * n, 1024), 64)));
  return launch(stream, {grid, kPlainThreads, 0}, combine_outer_kernel<T, Out>, groups, product);
}

}  // namespace jax_gnn::cuda
