// Row sums over a sparse 0/1 matrix by rows: for matrices so small that latency decides.
//
// A team of lanes (a power of two, at most a warp) owns one row; each lane holds a few features and
// walks the row's entries, several in flight at once. A row with more than a few entries would
// leave other rows waiting for one team: the teams of its warp, or of its block, stride through it
// together, and their sums are combined in a fixed order. How a row is walked depends on the
// lengths of the rows in its warp, and the cut into blocks on shapes: the same bits on every run.
//
// Warp-wide instructions are reached only where the whole warp arrives (nothing returns early, and
// the branches around them are uniform), so that they always name all 32 lanes.

#pragma once

#include <algorithm>

#include "../csr.h"
#include "launch.cuh"
#include "pack.cuh"

namespace jax_gnn::cuda {
namespace rows {
namespace {

using Index = int32_t;

// What a launch may do before the one ahead of it in the stream has ended.
enum class Start {
  kWaits,
  // The one ahead is a launch of this file that writes `in` and nothing else that is read here:
  // find out which rows to gather, then wait.
  kReadsAhead,
};

constexpr int kMaxLanes = 16;         // of a team, where more features make more tiles
constexpr int kUnroll = 4;            // words of features in flight in each lane
constexpr unsigned kShortRow = 16;    // more entries than this are walked by the teams of a warp
constexpr unsigned kLongRow = 32;     // more entries than this are walked by the whole block,
constexpr int kSharedBatches = 4;     // or more than the teams of a warp take in this many batches
constexpr int kMinThreads = 128;      // of a block
constexpr int kTeamThreads = 256;     // at most, where each team owns a row
constexpr int kMaxThreads = 512;      // at most, where the block owns one row
constexpr int kMinBlocks = 2;         // resident with kMaxThreads; bounds the registers of a thread
constexpr int64_t kFillBlocks = 128;  // about what it takes to give every multiprocessor work

template <typename T, typename Scale>
struct Operand {
  const T* features;   // (cols, width)
  const Scale* scale;  // (cols,), null means ones
};

// How a launch divides rows and features.
struct Cut {
  int lane_bits;       // log2 of the lanes of a team
  int rows_per_block;  // the number of teams, or 1: the block owns one row
  int64_t tiles;       // of the features; a team covers one tile at a time
};

// The place of a thread in its block.
struct Team {
  __device__ explicit Team(const Cut& cut)
      : lanes(1 << cut.lane_bits),
        lane(threadIdx.x & (lanes - 1)),
        index(threadIdx.x >> cut.lane_bits),
        count(blockDim.x >> cut.lane_bits) {}
  int lanes, lane, index, count;
};

struct Row {
  using Size = uint32_t;
  const Index* ids;
  Size count;
};

__device__ __forceinline__ Row load_row(const Csr<Index>& csr, int64_t row) {
  const Index nnz = static_cast<Index>(csr.nnz);
  const Index begin = min(max(__ldg(csr.indptr + row), Index(0)), nnz);
  const Index end = min(max(__ldg(csr.indptr + row + 1), Index(0)), nnz);
  return {csr.indices + begin, static_cast<Row::Size>(max(end, begin) - begin)};
}

// Brings a team's ids into L2 while the launch before is still at work.
__device__ __forceinline__ void prefetch_ids(const Row& row, const Team& team) {
  constexpr int kSector = 32 / sizeof(Index);
  const Row::Size first = team.lane * kSector;
  if (first < row.count) prefetch_to_l2(row.ids + first);
}

// The rows that a thread helps to walk, one after another: first the one that its team owns, unless
// that is too long for a team; then those that the teams of its warp share; then those that the
// teams of its block share. All threads of a warp take the same steps, and those of a block the
// same last ones. One sequence, so that kernels have one copy of the code that walks: fetching cold
// instructions is a good part of a small launch's time.
class Walk {
 public:
  using Size = Row::Size;

  // Called by the whole block. `marks` has one word a warp in shared memory.
  __device__ __forceinline__ Walk(const Csr<Index>& csr, const Cut& cut, const Team& team,
                                  unsigned* marks)
      : index(row_of_team(team.index)), lane_bits_(cut.lane_bits), marks_(marks) {
    const bool owns = team.index < cut.rows_per_block && index < csr.rows;
    own_ = owns ? load_row(csr, index) : Row{csr.indices, 0};
    const unsigned teams_of_warp = 32 / team.lanes;
    const Size long_row = max(kLongRow, kSharedBatches * kUnroll * teams_of_warp);
    const bool by_block = owns && (cut.rows_per_block == 1 || own_.count > long_row);
    bool by_warp = owns && !by_block && own_.count > kShortRow;
    of_warp_ = __ballot_sync(kWholeWarp, by_warp && team.lane == 0);
    if (2 * __popc(of_warp_) > teams_of_warp) {  // each by itself is as fast: all are long
      by_warp = false;
      of_warp_ = 0;
    }
    stores = owns && !by_block && !by_warp;
    row = {own_.ids, stores ? own_.count : 0};
    prefetch_ids(own_, team);
    const unsigned of_block = __ballot_sync(kWholeWarp, by_block && team.lane == 0);
    if (threadIdx.x % 32 == 0) marks_[threadIdx.x / 32] = of_block;
    next_warp_ = __syncthreads_or(by_block) ? 0 : blockDim.x / 32;
  }

  __device__ __forceinline__ bool next(const Csr<Index>& csr, const Team& team) {
    if (of_warp_ != 0) {
      const int owner = __ffs(of_warp_) - 1;
      of_warp_ &= of_warp_ - 1;
      row.ids = csr.indices + __shfl_sync(kWholeWarp, own_.ids - csr.indices, owner);
      row.count = __shfl_sync(kWholeWarp, own_.count, owner);
      index = row_of_team(static_cast<int>((threadIdx.x & ~31u) + owner) >> lane_bits_);
      teams = 32 / team.lanes;
    } else {
      while (of_block_ == 0) {
        if (next_warp_ == blockDim.x / 32) return false;
        of_block_ = marks_[next_warp_++];
      }
      index = row_of_team(static_cast<int>(next_warp_ * 32 - 33 + __ffs(of_block_)) >> lane_bits_);
      of_block_ &= of_block_ - 1;
      row = load_row(csr, index);
      teams = team.count;
    }
    stores = (team.index & (teams - 1)) == 0;
    return true;
  }

  __device__ __forceinline__ bool by_block(const Team& team) const { return teams == team.count; }

  Row row;
  int64_t index;  // of the row
  int teams = 1;  // that walk it
  bool stores;    // the team is the first of those

 private:
  // Neighbouring rows go to different blocks: long rows like to come together.
  static __device__ __forceinline__ int64_t row_of_team(int team) {
    return blockIdx.x + static_cast<int64_t>(team) * gridDim.x;
  }

  Row own_;
  int lane_bits_;
  unsigned* marks_;
  unsigned of_warp_, of_block_ = 0;  // lanes whose rows are still to be walked
  unsigned next_warp_;               // from which to take rows of the block
};

// kLoads words of kVec features that one lane holds of one tile. The words lie a team's width
// apart, so that a team's load is contiguous.
template <typename T, typename Scale, int kVec, int kLoads>
struct Sums {
  using Size = Row::Size;

  Scale at[kLoads][kVec] = {};

  static __device__ __forceinline__ int tile_width(const Team& team) {
    return team.lanes * kLoads * kVec;
  }
  static __device__ __forceinline__ int64_t first_column(const Team& team, int64_t tile) {
    return tile * tile_width(team) + team.lane * kVec;
  }

  static __device__ __forceinline__ void load_ids(Index (&ids)[kUnroll], const Row& row,
                                                  Size first) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
      ids[i] = load_or(first + i < row.count, row.ids + first + i, Index(-1));
  }

  // Adds the team's part of the row that is being walked: batches of kUnroll entries, in turn with
  // the other teams that walk it.
  __device__ __forceinline__ void add(const Csr<Index>& csr, const Walk& walk,
                                      const Operand<T, Scale>& operand, const Team& team,
                                      int64_t column, int64_t width) {
    if (column >= width) return;
    const Row& row = walk.row;
    const Size first = (team.index & (walk.teams - 1)) * kUnroll;
    const Size stride = walk.teams * kUnroll;
    Index next[kUnroll];
    load_ids(next, row, first);
    for (Size entry = first; entry < row.count; entry += stride) {
      Index ids[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) ids[i] = next[i];
      load_ids(next, row, entry + stride);  // arrives while this batch's features are on their way
      Scale factors[kUnroll];
      Word<T, kVec> words[kUnroll][kLoads];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const bool valid = static_cast<Size>(ids[i]) < static_cast<Size>(csr.cols);
        factors[i] =
            load_or(valid && operand.scale, operand.scale + static_cast<Size>(ids[i]), Scale(1));
        const T* features =
            operand.features + column + static_cast<Size>(ids[i]) * static_cast<uint64_t>(width);
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          const int offset = j * team.lanes * kVec;
          words[i][j] = {};
          load_if(valid && (j == 0 || column + offset < width),
                  reinterpret_cast<const Word<T, kVec>*>(features + offset), words[i][j]);
        }
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
#pragma unroll
        for (int j = 0; j < kLoads; ++j) add_word<T>(at[j], words[i][j], factors[i]);
    }
  }

  // Called by the whole block after combine_teams_of_warp: writes every warp's sums to
  // partial[warp][feature of the tile] in shared memory.
  __device__ __forceinline__ void put(const Team& team, Scale* partial) const {
    if (threadIdx.x % 32 < team.lanes) {
#pragma unroll
      for (int j = 0; j < kLoads; ++j)
#pragma unroll
        for (int v = 0; v < kVec; ++v)
          partial[threadIdx.x / 32 * tile_width(team) + (j * team.lanes + team.lane) * kVec + v] =
              at[j][v];
    }
    __syncthreads();
  }

  // Called by the whole warp: every team of it gets the sum over all of them.
  __device__ __forceinline__ void combine_teams_of_warp(const Team& team) {
#pragma unroll 1
    for (int offset = team.lanes; offset < 32; offset *= 2)
#pragma unroll
      for (int j = 0; j < kLoads; ++j)
#pragma unroll
        for (int v = 0; v < kVec; ++v) at[j][v] += __shfl_xor_sync(kWholeWarp, at[j][v], offset);
  }

  template <typename Out>
  __device__ __forceinline__ void store_row(Out* out_row, Scale scale, const Team& team,
                                            int64_t column, int64_t width) const {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int64_t first = column + j * team.lanes * kVec;
      if (first < width) store_scaled(out_row + first, at[j], scale);
    }
  }

  static __device__ __forceinline__ Scale total(const Scale* partial, const Team& team,
                                                int feature) {
    const int warps = blockDim.x / 32;
    Scale sum = 0;
#pragma unroll 1
    for (int warp = 0; warp < warps; ++warp) sum += partial[warp * tile_width(team) + feature];
    return sum;
  }
};

// A row without entries is zero even where its scale is not finite, as 1 / degree is.
template <typename Scale>
__device__ __forceinline__ Scale scale_of_row(const Scale* scale, const Row& row, int64_t index) {
  if (row.count == 0) return 0;
  return scale ? __ldg(scale + index) : Scale(1);
}

template <typename In, typename Out, typename Scale, int kVec, int kLoads>
__global__ void __launch_bounds__(kMaxThreads, kMinBlocks)
    gather_reduce_kernel(Csr<Index> csr, Operand<In, Scale> in, const Scale* row_scale, Out* out,
                         int64_t width, Cut cut, bool reads_ahead) {
  using LaneSums = Sums<In, Scale, kVec, kLoads>;
  __shared__ unsigned marks[kMaxThreads / 32];
  Scale* partial = reinterpret_cast<Scale*>(dynamic_shared());
  const Team team(cut);
  allow_next_launch();
  if (!reads_ahead) wait_for_previous_launch();
  Walk walk(csr, cut, team, marks);
  if (reads_ahead) wait_for_previous_launch();

  do {
    const Scale scale = scale_of_row(row_scale, walk.row, walk.index);
    Out* out_row = out + walk.index * width;
    for (int64_t tile = blockIdx.y; tile < cut.tiles; tile += gridDim.y) {
      const int64_t column = LaneSums::first_column(team, tile);
      LaneSums sums;
      sums.add(csr, walk, in, team, column, width);
      if (walk.teams > 1) sums.combine_teams_of_warp(team);
      if (walk.by_block(team)) {
        sums.put(team, partial);
        const int64_t first = tile * LaneSums::tile_width(team);
        for (int i = threadIdx.x; i < LaneSums::tile_width(team); i += blockDim.x)
          if (first + i < width)
            narrow(scale * LaneSums::total(partial, team, i), out_row[first + i]);
        __syncthreads();
      } else if (walk.stores) {
        sums.store_row(out_row, scale, team, column, width);
      }
    }
  } while (walk.next(csr, team));
}

// From shapes alone, never from values. False: more rows than one grid can hold. A lane holds
// kLoads words of kVec features.
template <typename In, typename Scale, int kVec, int kLoads>
bool plan_launch(const Csr<Index>& csr, int64_t width, Plan* plan, Cut* cut) {
  int lanes = 1;
  while (lanes < kMaxLanes && int64_t{lanes} * kVec < width) lanes *= 2;
  const auto tiles = [&] { return ceil_div(width, int64_t{lanes} * kVec * kLoads); };
  const int64_t average = csr.nnz / csr.rows;
  if (average > kLongRow) {
    // The block owns a row. Where that makes few blocks, narrower tiles make more of them; a team
    // still takes whole 32-byte sectors.
    while (lanes * kVec * sizeof(In) > 32 && csr.rows * tiles() < kFillBlocks) lanes /= 2;
    cut->rows_per_block = 1;
    plan->threads = kMinThreads;  // and as many as take the average row in about two batches
    while (plan->threads < kMaxThreads && int64_t{plan->threads} / lanes * (2 * kUnroll) < average)
      plan->threads *= 2;
  } else {
    plan->threads = kTeamThreads;
    while (plan->threads > kMinThreads &&
           ceil_div(csr.rows, plan->threads / lanes) * tiles() < kFillBlocks)
      plan->threads /= 2;
    cut->rows_per_block = plan->threads / lanes;
  }

  cut->lane_bits = 0;
  while (1 << cut->lane_bits < lanes) ++cut->lane_bits;
  cut->tiles = tiles();
  const int64_t row_blocks = ceil_div(csr.rows, cut->rows_per_block);
  if (row_blocks > kMaxGridX) return false;
  plan->grid =
      dim3(static_cast<unsigned>(row_blocks), static_cast<unsigned>(std::min(tiles(), kMaxGridY)));
  plan->shared = static_cast<size_t>(plan->threads / 32) * lanes * kVec * kLoads * sizeof(Scale);
  return true;
}

template <int kVec, int kLoads, typename In, typename Out, typename Scale>
cudaError_t launch_sums(cudaStream_t stream, Start start, const Csr<Index>& csr,
                        Operand<In, Scale> in, const Scale* row_scale, Out* out, int64_t width) {
  Plan plan;
  Cut cut;
  if (!plan_launch<In, Scale, kVec, kLoads>(csr, width, &plan, &cut))
    return cudaErrorInvalidConfiguration;
  return launch(stream, plan, gather_reduce_kernel<In, Out, Scale, kVec, kLoads>, csr, in,
                row_scale, out, width, cut, start == Start::kReadsAhead);
}

// out[r, :] = row_scale[r] * sum_{j in row r} col_scale[c_j] * in[c_j, :]; a null scale means ones.
// in: (cols, width), col_scale: (cols,), row_scale: (rows,), out: (rows, width). A row with no
// entries is zero whatever its scale. One launch; the same bits on every run.
template <typename In, typename Out, typename Scale>
cudaError_t gather_reduce(cudaStream_t stream, Start start, const Csr<Index>& csr, const In* in,
                          const Scale* col_scale, const Scale* row_scale, Out* out, int64_t width) {
  if (csr.rows <= 0) return cudaSuccess;
  const Operand<In, Scale> operand = {in, col_scale};
  constexpr int kWide = 16 / sizeof(In);
  constexpr int kHalf = 8 / sizeof(In);
  const auto run = [&](auto vec, auto loads) {
    return launch_sums<decltype(vec)::value, decltype(loads)::value>(stream, start, csr, operand,
                                                                     row_scale, out, width);
  };
  constexpr std::integral_constant<int, 1> kOne;
  if (readable<kWide>(in, width) && aligned(out, store_alignment<Out, kWide>))
    return run(std::integral_constant<int, kWide>{}, kOne);
  if constexpr (kHalf > 1)
    if (readable<kHalf>(in, width) && aligned(out, store_alignment<Out, kHalf>))
      return run(std::integral_constant<int, kHalf>{}, kOne);
  if (width <= 32) return run(kOne, kOne);
  // As many as stay in registers.
  return run(kOne, std::integral_constant<int, sizeof(Scale) == 8 ? 2 : 4>{});
}

}  // namespace
}  // namespace rows
}  // namespace jax_gnn::cuda
