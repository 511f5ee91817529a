// Sums of the outer products of a group's rows: the weight gradient of segment_matmul (FASTEN,
// section 5.3, its third dimension of parallelism).
//
// Every block takes an even, contiguous range of the tiles and keeps the sum of a group in
// registers until the group ends. A group that lies in one block is written at once; parts of one
// that does not go to the workspace, where a second launch adds them up in the order of the blocks.
// Without `deterministic`, parts are added to the result by atomics instead.
//
// Needs a workspace of outer_workspace_bytes, and combine_outer_kernel after each of the others,
// or zero_kernel ahead of them where they add by atomics: see segment_outer_launch.h. Promises that
// all weights are written, whatever the sizes are.
#pragma once

#include "segment_matmul.cuh"

namespace jax_gnn::cuda {
namespace {

// Records of blocks for the second launch: a part (head) of the group that was open at their begin,
// where it ends, and one (tail) of the group that is open at their end. A block in the midst of a
// group leaves a tail alone.
struct OuterRecord {
  int head_group;  // -1: no head
  int has_tail;
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
  FactorLists<Accumulator<T>> lists;

  // The rows of lhs and rhs that a row reads, both -1 where it is left out.
  struct Sources {
    int64_t left, right;
  };
  __device__ __forceinline__ Sources sources_of(int64_t row) const {
    const Sources sources = {listed(lists.lhs_rows, row, lists.num_lhs),
                             listed(lists.rhs_rows, row, lists.num_rhs)};
    return sources.left < 0 || sources.right < 0 ? Sources{-1, -1} : sources;
  }
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
// tile was in this block; `ended`: whether its last one was. The result has the weight if it is
// below `num_groups`. One function for all places, so that what makes runs is there once.
template <typename T, typename Out, class Write>
__device__ __forceinline__ void write_sum(const OuterProduct<T, Out>& product, unsigned weight,
                                          int64_t num_groups, bool opened, bool ended,
                                          const Write& write) {
  using Acc = Accumulator<T>;
  const bool whole = opened && ended;
  const bool to_part = !whole && !product.atomic;
  if (!to_part && weight >= num_groups) return;
  Out* const out = product.out + int64_t{weight} * product.k * product.n;
  Acc* const part = ended ? product.workspace.head(blockIdx.x) : product.workspace.tail(blockIdx.x);
  if constexpr (std::is_same_v<Out, Acc>) {
    const bool adds = !whole && product.atomic;
    Acc* const to = to_part ? part : out;
    write([=](int64_t at, const auto& run) {
      if (!adds) return store_run(to + at, run);
#pragma unroll
      for (int i = 0; i < kLength<decltype(run)>; ++i) atomicAdd(to + at + i, run[i]);
    });
  } else {
    write([=](int64_t at, const auto& run) {
      if (whole)
        store_run(out + at, run);
      else
        store_run(part + at, run);
    });
  }
}

#ifndef JAX_GNN_EMULATED
// --- Hopper and later, with 227 KB of shared memory ----------------------------------------------

// Stages of a ring of tiles in shared memory, `kOther` bytes of which are taken, of a block of
// kBlocks on a multiprocessor. Memory's latency times its bandwidth is 40 KB a multiprocessor.
template <int kBlocks, int kStageBytes, int kOther>
struct OuterRing {
  static constexpr int kMaxShared = 228 * 1024 / kBlocks - 6 * 1024;  // beside static memory
  static constexpr int kStages = least(8, (kMaxShared - kChunkAlign - kOther) / kStageBytes);
  static constexpr int kSharedBytes = kStages * kStageBytes + kChunkAlign + kOther;
  static_assert(kStages >= 2 && kBlocks * kStages * kStageBytes >= 96 * 1024);
};

// kTile by kTile of a result, by warps of 32 by kColumns each, over which the rows of a tile
// are dealt in kParts. A stage holds kRows rows of both sides.
template <typename T, int kTile_, bool kLists_>
struct OuterTile {
  static constexpr int kTile = kTile_, kLoaders = kLists_ ? 2 : 1;
  static constexpr bool kLists = kLists_;
  static constexpr int kColumns = kTile == 128 ? 64 : 32;
  static constexpr int kWarpsDown = kTile / 32, kWarpsAcross = kTile / kColumns;
  static constexpr int kParts = largest(1, 4 / (kWarpsDown * kWarpsAcross));
  static constexpr int kWarps = kWarpsDown * kWarpsAcross * kParts;
  static constexpr int kThreads = 32 * (kWarps + kLoaders);
  static constexpr int kChunks = (kTile * static_cast<int>(sizeof(T)) + kChunkBytes - 1) /
                                 kChunkBytes;  // of a row of one side
  static constexpr int kRows = (kTile == 128 ? 256 : 128) / kChunks;
  static constexpr int kStageBytes = 2 * kChunks * kRows * kChunkBytes;
  static constexpr int kStepRows = 32 / sizeof(T);  // of a matrix instruction
  static constexpr int kBlocks = kTile == 128 ? 1 : 2;
  static constexpr int kReduceRounds = 2;  // to add up the parts takes memory for a half of them
  static constexpr int kReduceBytes = (kParts - 1) * kTile * kTile * 4 / kReduceRounds;
  using Ring = OuterRing<kBlocks, kStageBytes, kReduceBytes>;
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
  // Multiplies the left side's rows, of which `scales` has the factors.
  __device__ __forceinline__ void scale(const float* scales) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float factor = scales[threadIdx.x % 4 * 2 + odd];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        unsigned& word = a[i / 2][2 * odd + i % 2];
        word = __float_as_uint(__uint_as_float(word) * factor);
      }
    }
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
    // Both may point at the second half of a chunk.
    const int left_unit = static_cast<int>(shared_address(left) % kChunkBytes) / 16;
    const int right_unit = static_cast<int>(shared_address(right) % kChunkBytes) / 16;
    const unsigned char* const left_chunk = left - left_unit * 16;
    const unsigned char* const right_chunk = right - right_unit * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      read(left_chunk + (first_row + matrix / 2 * 8 + row) * kChunkBytes +
               ((left_unit + 2 * i + matrix % 2) ^ row) * 16,
           a[i][0], a[i][1], a[i][2], a[i][3]);
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2)
      read(right_chunk + (first_row + matrix % 2 * 8 + row) * kChunkBytes +
               ((right_unit + j + matrix / 2) ^ row) * 16,
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

// Common parts of both kernels for Hopper and later: rows on their way through shared memory,
// one warp that loads them, and where sums go. Barriers and tiles lie in shared memory.
// Shape::kLists: product.lists holds some, and each side has a warp that loads.
template <class Shape, typename T, typename Out>
class OuterPipeline {
 public:
  static constexpr bool kLists = Shape::kLists;
  static constexpr int kConsumers = Shape::kThreads - 32 * Shape::kLoaders;
  static constexpr int kChunkSize = Shape::kRows * kChunkBytes;
  static constexpr int kPerChunk = kChunkBytes / sizeof(T);
  using Walk = TileWalk<Shape::kThreads, 1, false>;

  struct Shared {
    Barrier filled[Shape::Ring::kStages], emptied[Shape::Ring::kStages];
    Tile tiles[Shape::Ring::kStages];
    float scales[kLists ? Shape::Ring::kStages : 1][kLists ? Shape::kRows : 1];
    typename Walk::Index index;
  };

  Tile tile;
  unsigned char* ring;

  __device__ __forceinline__ OuterPipeline(const TensorMap& lhs, const TensorMap& rhs,
                                           const Groups& groups,
                                           const OuterProduct<T, Out>& product, Shared& shared,
                                           unsigned char* dynamic)
      : ring(first_chunk(dynamic)), groups_(groups), product_(product), shared_(shared) {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < Shape::Ring::kStages; ++stage) {
        shared.filled[stage].init(kLists ? 65 : 1);
        shared.emptied[stage].init(kConsumers / 32);
      }
      make_barriers_visible();
      if (!kLists) {
        prefetch_map(lhs);
        prefetch_map(rhs);
      }
    }
    if (!product.atomic) allow_next_launch();
    wait_for_previous_launch();
    offset_ = *groups.offset;
    shared.index.build(groups, Shape::kRows);
    const int slices = static_cast<int>(ceil_div(product.n, Shape::kTile));
    first_row_ = static_cast<int>(blockIdx.y) / slices * Shape::kTile;
    first_column_ = static_cast<int>(blockIdx.y) % slices * Shape::kTile;
  }

  static __device__ __forceinline__ bool is_loader() { return threadIdx.x >= kConsumers; }

  // The work of the warp that loads.
  __device__ __forceinline__ void load(const TensorMap& lhs, const TensorMap& rhs) {
    Walk walk(groups_, Shape::kRows, shared_.index);
    walk.enter_part(!product_.splits);
    using Copy = TileCopy<T, Shape::kRows, Shape::kChunks>;
    const Copy copy_left(lhs, product_.k, first_row_), copy_right(rhs, product_.n, first_column_);
    for (; walk.has_next(); at_.advance(Shape::Ring::kStages)) {
      const Tile tile = walk.next();
      if (threadIdx.x % 32 != 0) continue;
      Barrier& filled = shared_.filled[at_.stage];
      shared_.emptied[at_.stage].wait(at_.parity ^ 1);
      shared_.tiles[at_.stage] = tile;
      if (tile.count == 0) {
        filled.arrive();
        continue;
      }
      filled.arrive_expecting(2 * Copy::kBytes);
      unsigned char* const stage = ring + at_.stage * Shape::kStageBytes;
      copy_left(tile.row, stage, filled);
      copy_right(tile.row, stage + Shape::kStageBytes / 2, filled);
    }
    if (threadIdx.x % 32 == 0) {
      shared_.emptied[at_.stage].wait(at_.parity ^ 1);
      shared_.tiles[at_.stage] = {0, 0, -1, false, false};
      shared_.filled[at_.stage].arrive();
    }
  }

  // Loads rows that are read, or scaled, by lists: in copies of 16 bytes, by all lanes of a
  // warp for each side.
  __device__ __forceinline__ void load_lists() {
    const auto& lists = product_.lists;
    const int lane = threadIdx.x % 32;
    const bool is_left = threadIdx.x < kConsumers + 32;
    const int64_t num_rows = is_left ? lists.num_lhs : lists.num_rhs;
    const int64_t num_others = is_left ? lists.num_rhs : lists.num_lhs;
    const int* const rows = is_left ? lists.lhs_rows : lists.rhs_rows;
    const int* const others = is_left ? lists.rhs_rows : lists.lhs_rows;
    const T* const matrix = is_left ? product_.lhs : product_.rhs;
    const int columns = is_left ? product_.k : product_.n;
    const int column = is_left ? first_row_ : first_column_;
    Walk walk(groups_, Shape::kRows, shared_.index);
    walk.enter_part(!product_.splits);
    struct Ahead {
      Tile tile;
      RowIds<Shape::kRows> ids, others;
    };
    const auto advance = [&](Ahead& ahead) {
      ahead.tile.count = -1;
      if (!walk.has_next()) return;
      ahead.tile = walk.next();
#pragma unroll
      for (int i = 0; i < Shape::kRows / 32; ++i) {
        const int row = i * 32 + lane, at = ahead.tile.row + row;
        const bool valid = row < ahead.tile.count;
        ahead.ids[i] = ahead.others[i] = valid ? at : -1;
        if (valid && rows != nullptr) ahead.ids[i] = rows[at];
        if (valid && others != nullptr) ahead.others[i] = others[at];
      }
    };
    // Ids are fetched two tiles ahead.
    Ahead now, next, later;
    advance(now);
    advance(next);
    for (; now.tile.count >= 0; now = next, next = later, at_.advance(Shape::Ring::kStages)) {
      advance(later);
      Barrier& filled = shared_.filled[at_.stage];
      shared_.emptied[at_.stage].wait(at_.parity ^ 1);
      if (now.tile.count > 0) {
#pragma unroll
        for (int i = 0; i < Shape::kRows / 32; ++i)  // left out, whatever this side's row holds
          if (!is_id(now.others[i], static_cast<unsigned>(num_others))) now.ids[i] = -1;
        start_rows<Shape::kRows, Shape::kRows, Shape::kChunks>(
            matrix, num_rows, columns, column, now.ids, 0,
            shared_address(ring + at_.stage * Shape::kStageBytes) +
                (is_left ? 0 : Shape::kStageBytes / 2));
        if (lists.scale != nullptr && is_left)
#pragma unroll
          for (int i = 0; i < Shape::kRows / 32; ++i) {
            const int row = i * 32 + lane;
            start_copy<4>(shared_address(&shared_.scales[at_.stage][row]),
                          lists.scale + now.tile.row + row, row < now.tile.count);
          }
      }
      arrive_when_copied(filled);
      if (lane == 0 && is_left) {
        shared_.tiles[at_.stage] = now.tile;
        filled.arrive();
      }
    }
    shared_.emptied[at_.stage].wait(at_.parity ^ 1);
    arrive_when_copied(shared_.filled[at_.stage]);
    if (lane == 0 && is_left) {
      shared_.tiles[at_.stage] = {0, 0, -1, false, false};
      shared_.filled[at_.stage].arrive();
    }
  }

  // Waits for the next tile, for the other warps. False: all is done.
  __device__ __forceinline__ bool next() {
    if (ends_) return false;
    shared_.filled[at_.stage].wait(at_.parity);
    tile = shared_.tiles[at_.stage];
    ends_ = tile.count < 0;
    if (!ends_) open_ = tile.group;
    if (tile.first) opened_ = true;
    return open_ >= 0;
  }
  // The tile's left side; the right one is half a stage later.
  __device__ __forceinline__ unsigned char* left() const {
    return ring + at_.stage * Shape::kStageBytes;
  }
  // The factors of the tile's rows, if any.
  __device__ __forceinline__ const float* scales() const {
    return kLists && product_.lists.scale != nullptr ? shared_.scales[at_.stage] : nullptr;
  }
  // The warp has read the tile.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared_.emptied[at_.stage].arrive();
    at_.advance(Shape::Ring::kStages);
  }
  // Whether the group's last tile in this block has been added.
  __device__ __forceinline__ bool completes() const { return tile.last || ends_; }

  // Stores the group's sum, all that is in this block of it. Hands `for_runs` a function that takes
  // row and column in the block's tile and a run of sums.
  template <class ForRuns>
  __device__ __forceinline__ void write(const ForRuns& for_runs) {
    write_sum(product_, weight_of(groups_, open_, offset_).index, groups_.num_groups, opened_,
              tile.last, [&](const auto& store) {
                for_runs([&](int row, int column, const auto& run) {
                  row += first_row_;
                  column += first_column_;
                  if (row < product_.k && column < product_.n)
                    store(int64_t{row} * product_.n + column, run);
                });
              });
    if (tile.last && !opened_) head_group_ = open_;
    has_tail_ = !tile.last;
    open_ = -1;
    opened_ = false;
  }

  __device__ __forceinline__ void end() const {
    if (threadIdx.x == 0 && blockIdx.y == 0)
      product_.workspace.records()[blockIdx.x] = {head_group_, has_tail_};
  }

 private:
  const Groups& groups_;
  const OuterProduct<T, Out>& product_;
  Shared& shared_;
  int offset_, first_row_, first_column_;
  RingIndex at_;
  int open_ = -1;  // the group whose sum is in registers
  int head_group_ = -1;
  bool opened_ = false, has_tail_ = false, ends_ = false;
};

// The whole of warp_outer_kernel.
template <class Shape, typename T, typename Out>
__device__ __forceinline__ void sum_by_warps(const TensorMap& lhs, const TensorMap& rhs,
                                             const Groups& groups,
                                             const OuterProduct<T, Out>& product) {
  using Pipeline = OuterPipeline<Shape, T, Out>;
  using Fragments = OuterFragments<T, Shape::kColumns>;
  constexpr int kRows = Shape::kRows;
  extern __shared__ unsigned char dynamic[];
  __shared__ typename Pipeline::Shared shared;
  Pipeline pipeline(lhs, rhs, groups, product, shared, dynamic);
  if (Pipeline::is_loader()) {
    if constexpr (Shape::kLists)
      pipeline.load_lists();
    else
      pipeline.load(lhs, rhs);
    return;
  }
  const int warp = threadIdx.x / 32;
  const int part = warp / (Shape::kWarpsDown * Shape::kWarpsAcross);
  const int row = warp % Shape::kWarpsDown * 32;
  const int column = warp / Shape::kWarpsDown % Shape::kWarpsAcross * Shape::kColumns;
  float sum[2][Shape::kColumns / 8][4] = {};
  while (pipeline.next()) {
    const int count = pipeline.tile.count;
    const unsigned char* left = pipeline.left() + row / Pipeline::kPerChunk * Pipeline::kChunkSize +
                                row % Pipeline::kPerChunk * sizeof(T);
    const unsigned char* right = pipeline.left() + Shape::kStageBytes / 2 +
                                 column / Pipeline::kPerChunk * Pipeline::kChunkSize +
                                 column % Pipeline::kPerChunk * sizeof(T);
    const float* const scales = pipeline.scales();
    const auto add = [&](auto full) {
      constexpr bool kFull = decltype(full)::value;
#pragma unroll(kFull ? 4 : 1)
      for (int begin = part * Shape::kStepRows; begin < (kFull ? kRows : count);
           begin += Shape::kParts * Shape::kStepRows) {
        Fragments fragments;
        fragments.template load<kFull>(left, right, Pipeline::kChunkSize, begin, count - begin);
        if constexpr (Shape::kLists && sizeof(T) == 4)
          if (scales != nullptr) fragments.scale(scales + begin);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int j = 0; j < Shape::kColumns / 8; ++j)
            multiply_fragments<T>(sum[m][j], fragments.a[m], fragments.b[j]);
      }
    };
    if (count == kRows)
      add(std::true_type{});
    else
      add(std::false_type{});
    pipeline.release();
    if (!pipeline.completes()) continue;
    if constexpr (Shape::kParts > 1) {
      constexpr int kSums = Shape::kColumns / Shape::kReduceRounds, kAcross = Shape::kColumns / 8;
      constexpr int kPartThreads = 32 * Shape::kWarps / Shape::kParts;
      float* const others =
          reinterpret_cast<float*>(pipeline.ring + Shape::Ring::kStages * Shape::kStageBytes) +
          threadIdx.x % kPartThreads;
#pragma unroll
      for (int first = 0; first < Shape::kColumns; first += kSums) {
        const auto for_sums = [&](int other, const auto& function) {
#pragma unroll
          for (int j = 0; j < kSums; ++j)
            function(sum[(first + j) / 4 / kAcross][(first + j) / 4 % kAcross][j % 4],
                     others[((other - 1) * kSums + j) * kPartThreads]);
        };
        if (part > 0) for_sums(part, [](float& sum, float& partial) { partial = sum; });
        sync_some<Shape::kParts * kPartThreads>(1);
        if (part == 0)
          for (int other = 1; other < Shape::kParts; ++other)
            for_sums(other, [](float& sum, float& partial) { sum += partial; });
        sync_some<Shape::kParts * kPartThreads>(1);
      }
    }
    pipeline.write([&](const auto& store) {
      if (part == 0)
        Fragments::for_runs(sum, [&](int run_row, int run_column, const auto& run) {
          store(row + run_row, column + run_column, run);
        });
    });
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int j = 0; j < Shape::kColumns / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[m][j][e] = 0;
  }
  pipeline.end();
}

// On Hopper half types have warpgroup_outer_kernel, and this is not compiled for them.
template <class Shape, typename T, typename Out>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    warp_outer_kernel(const __grid_constant__ TensorMap lhs, const __grid_constant__ TensorMap rhs,
                      Groups groups, OuterProduct<T, Out> product) {
#if JAX_GNN_SINCE_HOPPER
  if constexpr (sizeof(T) == 4 || !JAX_GNN_ON_HOPPER)
    sum_by_warps<Shape>(lhs, rhs, groups, product);
#else
  __trap();
#endif
}

// --- Hopper --------------------------------------------------------------------------------------

// kTile by kTile of a result of a half type, by warpgroups of 64 by kTile each: the matrix
// instructions take both sides from a stage as they lie.
template <typename T, int kTile_, bool kLists_>
struct WarpgroupTile {
  static constexpr int kTile = kTile_, kLoaders = kLists_ ? 2 : 1;
  static constexpr bool kLists = kLists_;
  static constexpr int kConsumers = 2 * kTile, kThreads = kConsumers + 32 * kLoaders;
  static constexpr int kRows = 128, kChunks = kTile / 64;
  static constexpr int kStageBytes = 2 * kChunks * kRows * kChunkBytes;
  static constexpr int kBlocks = kTile == 128 ? 1 : 2;
  using Ring = OuterRing<kBlocks, kStageBytes, 0>;
};

// Lane q of a quad holds columns 2 q and 2 q + 1 of four eights of columns; afterwards all columns
// of eight q.
__device__ __forceinline__ void gather_eights(float (&run)[8]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (threadIdx.x & bit) != 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i / 2 & bit) continue;
      float& low = run[i];
      float& high = run[i + 2 * bit];
      const float received = __shfl_xor_sync(kWholeWarp, upper ? low : high, bit);
      (upper ? low : high) = received;
    }
  }
}

template <class Shape, typename T, typename Out>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    warpgroup_outer_kernel(const __grid_constant__ TensorMap lhs,
                           const __grid_constant__ TensorMap rhs, Groups groups,
                           OuterProduct<T, Out> product) {
#if JAX_GNN_ON_HOPPER
  using Pipeline = OuterPipeline<Shape, T, Out>;
  constexpr int kChunkSize = Pipeline::kChunkSize;
  extern __shared__ unsigned char dynamic[];
  __shared__ typename Pipeline::Shared shared;
  Pipeline pipeline(lhs, rhs, groups, product, shared, dynamic);
  if (Pipeline::is_loader()) {
    if constexpr (Shape::kLists)
      pipeline.load_lists();
    else
      pipeline.load(lhs, rhs);
    return;
  }
  const int warp = threadIdx.x / 32, quad = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
  float sum[Shape::kTile / 2];
  bool fresh = true;
  while (pipeline.next()) {
    // Tiles without rows are multiplied too, as zeros: the compiler waits for each matrix
    // instruction where there are branches around them.
    const int count = pipeline.tile.count;
    unsigned char *const left = pipeline.left(), *const right = left + Shape::kStageBytes / 2;
    if (count < Shape::kRows) {  // clears the rows after
      const int first = max(count, 0), rows = Shape::kRows - first;
      for (int i = threadIdx.x; i < rows * Shape::kChunks * 2 * 8; i += Shape::kConsumers)
        *reinterpret_cast<uint4*>(left + i / 8 / rows * kChunkSize +
                                  (first + i / 8 % rows) * kChunkBytes + i % 8 * 16) = {};
      make_visible_to_copies();
      sync_some<Shape::kConsumers>(1);
    } else if (Shape::kLists) {
      make_visible_to_copies();  // and to matrix instructions
    }
    const uint64_t a = matrix_descriptor(left + warp / 4 * kChunkSize);
    const uint64_t b = matrix_descriptor(right, kChunkSize);
    warpgroup_arrive();
#pragma unroll
    for (int row = 0; row < Shape::kRows; row += 16) {
      const int offset = row * kChunkBytes / 16;  // descriptors count in 16 bytes
      Multiply<T, Shape::kTile>::add(sum, a + offset, b + offset, !fresh || row > 0);
    }
    warpgroup_commit();
    warpgroup_wait();
    pipeline.release();
    fresh = pipeline.completes();
    if (!fresh) continue;
    pipeline.write([&](const auto& store) {
#pragma unroll
      for (int j = 0; j < Shape::kTile / 2; j += 16)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float run[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) run[i] = sum[j + i / 2 * 4 + half * 2 + i % 2];
          gather_eights(run);
          store(warp * 16 + g + 8 * half, j * 2 + quad * 8, run);
        }
    });
  }
  pipeline.end();
#else
  __trap();
#endif
}

#endif
// --- Everywhere ----------------------------------------------------------------------------------

template <class Tiles, typename T, typename Out>
__global__ void __launch_bounds__(kTileThreads)
    plain_outer_kernel(Groups groups, OuterProduct<T, Out> product, int tile_rows) {
  using Acc = typename Tiles::Acc;
  using Walk = TileWalk<kTileThreads, 1, false>;
  constexpr int kDepth = Tiles::kDepth;  // rows at a time
  __shared__ typename Tiles::Shared shared;
  __shared__ typename Walk::Index index;
  __shared__ Tile shared_tile;
  if (!product.atomic) allow_next_launch();
  wait_for_previous_launch();
  const int offset = *groups.offset;
  index.build(groups, tile_rows);
  const int k = product.k, n = product.n;
  const int slices = static_cast<int>(ceil_div(n, kTileColumns));
  const int first_row = static_cast<int>(blockIdx.y) / slices * Tiles::kRows;
  const int first_column = static_cast<int>(blockIdx.y) % slices * kTileColumns;
  Walk walk(groups, tile_rows, index);  // of the first warp
  if (threadIdx.x < 32) walk.enter_part(!product.splits);
  Tiles tiles;
  tiles.clear();
  bool opened = false, has_tail = false;
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
    for (int begin = 0; begin < tile.count; begin += kDepth) {
      using Sources = typename OuterProduct<T, Out>::Sources;
      const auto fill = [&](const T* from, int features, int first, int size,
                            int64_t Sources::* side, const auto& set) {
        for (int j = threadIdx.x; j < kDepth * size; j += kTileThreads) {
          const int row = j / size, feature = j % size;
          const int64_t at = int64_t{tile.row} + begin + row;
          const bool valid = begin + row < tile.count && first + feature < features;
          const int64_t source = valid ? product.sources_of(at).*side : -1;
          set(feature, row, source >= 0 ? from[source * features + first + feature] : T{},
              source >= 0 ? at : -1);
        }
      };
      fill(product.lhs, k, first_row, Tiles::kRows, &Sources::left,
           [&](int feature, int row, T x, int64_t at) {
             if (product.lists.scale != nullptr && at >= 0)
               shared.set_left(feature, row, x, product.lists.scale[at]);
             else
               shared.set_left(feature, row, x);
           });
      fill(product.rhs, n, first_column, kTileColumns, &Sources::right,
           [&](int feature, int row, T x, int64_t) { shared.set_right(feature, row, x); });
      __syncthreads();
      tiles.add(shared);
      __syncthreads();
    }
    if (open >= 0 && (tile.last || ends)) {
      write_sum(product, weight_of(groups, open, offset).index, groups.num_groups, opened,
                tile.last, [&](const auto& store) {
                  tiles.for_each([&](int row, int column, Acc sum) {
                    row += first_row;
                    column += first_column;
                    const Acc run[1] = {sum};
                    if (row < k && column < n) store(int64_t{row} * n + column, run);
                  });
                });
      tiles.clear();
      if (tile.last && !opened) head_group = open;
      has_tail = !tile.last;
      open = -1;
      opened = false;
    }
    __syncthreads();  // shared_tile has been read
  }
  if (threadIdx.x == 0 && blockIdx.y == 0)
    product.workspace.records()[blockIdx.x] = {head_group, has_tail};
}

// --- The second launch ---------------------------------------------------------------------------

constexpr int kCombineThreads = 512;

// Adds up the parts of groups that blocks share. Each lane has kVec columns of all results, each
// warp the parts of an even range of the first launch's blocks, up to kBatch of which are read at
// once, however they fall into groups. Also clears the weights that no size is for.
template <int kVec, typename T, typename Out>
__global__ void __launch_bounds__(kCombineThreads)
    combine_outer_kernel(Groups groups, OuterProduct<T, Out> product) {
  using Sum = Pack<Accumulator<T>, kVec>;
  constexpr int kWarps = kCombineThreads / 32, kColumns = 32 * kVec;
  constexpr int kBatch = kVec == 1 ? 17 : 9;
  __shared__ Sum open[kWarps][32];  // the sum after a warp's last head, or of all its parts
  __shared__ bool has_head[kWarps];
  wait_for_previous_launch();
  const auto& workspace = product.workspace;
  const int64_t size = workspace.size;
  const int offset = *groups.offset;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t begin = split(workspace.blocks, warp, kWarps);
  const int64_t end = split(workspace.blocks, warp + 1, kWarps);
  const auto add = [](Sum& sum, const Sum& other) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum.at[i] += other.at[i];
  };
  for (int64_t from = blockIdx.x * int64_t{kColumns}; from < size;
       from += gridDim.x * int64_t{kColumns}) {
    const int64_t at = from + lane * kVec;
    const auto store = [&](int64_t weight, const Sum& sum) {
      if (at < size && weight < groups.num_groups)
        store_run(product.out + weight * size + at, sum.at);
    };
    Sum sum = {}, first_sum = {};
    bool has_first = false;  // a group that ends in the warp's range; it may have begun ahead of it
    unsigned first_weight = 0;
    for (int64_t first = begin; first < end; first += kBatch) {
      OuterRecord record = {-1, 0};
      if (lane < kBatch && first + lane < end) record = workspace.records()[first + lane];
      const unsigned heads = __ballot_sync(kWholeWarp, record.head_group >= 0);
      const unsigned tails = __ballot_sync(kWholeWarp, record.has_tail != 0);
      const unsigned weight = weight_of(groups, record.head_group, offset).index;
      // What does not exist is read from elsewhere, and not used: loads without a condition are all
      // in flight at once.
      const auto read = [&](unsigned exists, const auto* part) {
        return *reinterpret_cast<const Sum*>(exists != 0 && at < size ? part + at : workspace.base);
      };
      Sum head[kBatch], tail[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        head[i] = read(heads >> i & 1, workspace.head(first + i));
        tail[i] = read(tails >> i & 1, workspace.tail(first + i));
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (heads >> i & 1) {
          add(sum, head[i]);
          const unsigned ended = __shfl_sync(kWholeWarp, weight, i);
          if (has_first) {
            store(ended, sum);
          } else {
            has_first = true;
            first_weight = ended;
            first_sum = sum;
          }
          sum = {};
        }
        if (tails >> i & 1) add(sum, tail[i]);
      }
    }
    open[warp][lane] = sum;
    if (lane == 0) has_head[warp] = has_first;
    __syncthreads();
    if (has_first) {
      int other = warp - 1;
      while (other > 0 && !has_head[other]) --other;
      Sum total = {};
      for (other = max(other, 0); other < warp; ++other) add(total, open[other][lane]);
      add(total, first_sum);
      store(first_weight, total);
    }
    if (offset != 0 || groups.num_groups > groups.num_sizes)
      for (int64_t weight = warp; weight < groups.num_groups; weight += kWarps)
        if (weight + offset < 0 || weight + offset >= groups.num_sizes) store(weight, Sum{});
    __syncthreads();
  }
}

template <typename Out>
__global__ void zero_kernel(Out* out, int64_t size) {
  allow_next_launch();
  wait_for_previous_launch();
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x)
    narrow(Accumulator<Out>(0), out[i]);
}

}  // namespace
}  // namespace jax_gnn::cuda
