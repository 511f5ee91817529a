// Row sums over a sparse 0/1 matrix, without atomics.
//
// A team of lanes (a power of two, at most a warp) owns one row; each lane holds a few features and
// walks the row's entries, several in flight at once. A row with more than kLongRow entries would
// leave the rest of the block waiting for one team, so all teams of the block stride through it
// together and their sums are combined in a fixed order. Which rows those are depends on the row's
// length alone, and the cut into blocks on shapes alone: the same bits on every run and every GPU.
//
// Warp-wide instructions are reached only where the whole warp arrives (nothing returns early, and
// the branches around them are uniform), so that they always name all 32 lanes.

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "hypergraph_aggregate.h"
#include "pack.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kOverlap = 1;
constexpr int kUnroll = 4;            // words of features in flight in each lane
constexpr unsigned kShortRow = 8;     // more entries than this are walked by the teams of a warp
constexpr unsigned kLongRow = 32;     // more entries than this are walked by the whole block,
constexpr int kSharedBatches = 4;     // or more than the teams of a warp take in this many batches
constexpr int kMinThreads = 128;      // of a block
constexpr int kTeamThreads = 256;     // at most, where each team owns a row
constexpr int kMaxThreads = 512;      // at most, where the block owns one row
constexpr int kMinBlocks = 2;         // resident with kMaxThreads; bounds the registers of a thread
constexpr int64_t kFillBlocks = 128;  // about what it takes to give every multiprocessor work
constexpr int64_t kMaxGridX = 0x7fffffff;
constexpr int64_t kMaxGridY = 65535;
constexpr unsigned kWholeWarp = 0xffffffffu;

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

template <typename Index>
struct Row {
  using Size = std::make_unsigned_t<Index>;
  const Index* ids;
  Size count;
};

template <typename Index>
__device__ __forceinline__ Row<Index> load_row(const Csr<Index>& csr, int64_t row) {
  const Index nnz = static_cast<Index>(csr.nnz);
  const Index begin = min(max(__ldg(csr.indptr + row), Index(0)), nnz);
  const Index end = min(max(__ldg(csr.indptr + row + 1), Index(0)), nnz);
  return {csr.indices + begin, static_cast<typename Row<Index>::Size>(max(end, begin) - begin)};
}

// kLoads words of kVec features that one lane holds of one tile, for each of kOperands. The words
// lie a team's width apart, so that a team's load is contiguous.
template <typename T, typename Scale, typename Index, int kVec, int kLoads, int kOperands>
struct Sums {
  using Size = typename Row<Index>::Size;
  // The operands share the loads in flight, and with them the registers.
  static constexpr int kBatch = kUnroll / kOperands;

  Scale at[kOperands][kLoads][kVec] = {};

  static __device__ __forceinline__ int tile_width(const Team& team) {
    return team.lanes * kLoads * kVec;
  }
  static __device__ __forceinline__ int64_t first_column(const Team& team, int64_t tile) {
    return tile * tile_width(team) + team.lane * kVec;
  }

  static __device__ __forceinline__ void load_ids(Index (&ids)[kBatch], const Row<Index>& row,
                                                  Size first) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      ids[i] = load_or(first + i < row.count, row.ids + first + i, Index(-1));
  }

  // Adds kBatch entries from `first`, then from `first + stride`, and so on to the row's end.
  __device__ __forceinline__ void add(const Csr<Index>& csr, const Row<Index>& row, Size first,
                                      Size stride, const Operand<T, Scale> (&operands)[kOperands],
                                      const Team& team, int64_t column, int64_t width) {
    if (column >= width) return;
    Index next[kBatch];
    load_ids(next, row, first);
    for (Size entry = first; entry < row.count; entry += stride) {
      Index ids[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) ids[i] = next[i];
      load_ids(next, row, entry + stride);  // arrives while this batch's features are on their way
      Scale factors[kBatch][kOperands];
      Word<T, kVec> words[kBatch][kOperands][kLoads];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const bool valid = static_cast<Size>(ids[i]) < static_cast<Size>(csr.cols);
#pragma unroll
        for (int k = 0; k < kOperands; ++k) {
          const Operand<T, Scale>& operand = operands[k];
          factors[i][k] =
              load_or(valid && operand.scale, operand.scale + static_cast<Size>(ids[i]), Scale(1));
          const T* features =
              operand.features + column + static_cast<Size>(ids[i]) * static_cast<uint64_t>(width);
#pragma unroll
          for (int j = 0; j < kLoads; ++j) {
            const int offset = j * team.lanes * kVec;
            words[i][k][j] = {};
            load_if(valid && (j == 0 || column + offset < width),
                    reinterpret_cast<const Word<T, kVec>*>(features + offset), words[i][k][j]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
#pragma unroll
        for (int k = 0; k < kOperands; ++k)
#pragma unroll
          for (int j = 0; j < kLoads; ++j) add_word<T>(at[k][j], words[i][k][j], factors[i][k]);
    }
  }

  // Called by the whole block: sums `row` over all teams into partial[operand][warp][feature of the
  // tile]. The caller adds up the warps, and synchronises before the next call.
  __device__ __forceinline__ void add_together(const Csr<Index>& csr, const Row<Index>& row,
                                               const Operand<T, Scale> (&operands)[kOperands],
                                               const Team& team, int64_t column, int64_t width,
                                               Scale* partial) {
    add(csr, row, static_cast<Size>(team.index * kBatch), static_cast<Size>(team.count * kBatch),
        operands, team, column, width);
    combine_teams_of_warp(team);
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    if (threadIdx.x % 32 < team.lanes) {
#pragma unroll
      for (int k = 0; k < kOperands; ++k)
#pragma unroll
        for (int j = 0; j < kLoads; ++j)
#pragma unroll
          for (int v = 0; v < kVec; ++v)
            partial[(k * warps + warp) * tile_width(team) + (j * team.lanes + team.lane) * kVec +
                    v] = at[k][j][v];
    }
    __syncthreads();
  }

  // Called by the whole warp: every team of it gets the sum over all of them.
  __device__ __forceinline__ void combine_teams_of_warp(const Team& team) {
#pragma unroll
    for (int k = 0; k < kOperands; ++k)
#pragma unroll
      for (int j = 0; j < kLoads; ++j)
#pragma unroll
        for (int v = 0; v < kVec; ++v)
          for (int offset = team.lanes; offset < 32; offset *= 2)
            at[k][j][v] += __shfl_xor_sync(kWholeWarp, at[k][j][v], offset);
  }

  // The caller has the first operand's sum of a row.
  template <typename Out>
  __device__ __forceinline__ void store_row(Out* out_row, Scale scale, const Team& team,
                                            int64_t column, int64_t width) const {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int64_t first = column + j * team.lanes * kVec;
      if (first < width) store_scaled(out_row + first, at[0][j], scale);
    }
  }

  static __device__ __forceinline__ Scale total(const Scale* partial, const Team& team, int operand,
                                                int feature) {
    const int warps = blockDim.x / 32;
    Scale sum = 0;
    for (int warp = 0; warp < warps; ++warp)
      sum += partial[(operand * warps + warp) * tile_width(team) + feature];
    return sum;
  }
};

// The row that a thread's team owns, and the rows of its block that all teams walk together.
template <typename Index>
class RowsOfBlock {
 public:
  // Called by the whole block. `marks` has one word a warp in shared memory.
  __device__ __forceinline__ RowsOfBlock(const Csr<Index>& csr, const Cut& cut, const Team& team,
                                         typename Row<Index>::Size long_row, unsigned* marks)
      : lane_bits_(cut.lane_bits), marks_(marks) {
    const bool owns = team.index < cut.rows_per_block && own_index(team) < csr.rows;
    own = owns ? load_row(csr, own_index(team)) : Row<Index>{csr.indices, 0};
    const bool together = owns && (cut.rows_per_block == 1 || own.count > long_row);
    alone = owns && !together;
    const unsigned mark = __ballot_sync(kWholeWarp, together && team.lane == 0);
    if (threadIdx.x % 32 == 0) marks_[threadIdx.x / 32] = mark;
    any_together_ = __syncthreads_or(together);
  }

  __device__ __forceinline__ int64_t own_index(const Team& team) const {
    return row_of_team(team.index);
  }

  // Calls body(row index) for each row that the block walks together; uniform over the block.
  template <typename Body>
  __device__ __forceinline__ void for_each_together(Body body) const {
    if (!any_together_) return;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp)
      for (unsigned mark = marks_[warp]; mark != 0; mark &= mark - 1)
        body(row_of_team(static_cast<int>(warp * 32 + __ffs(mark) - 1) >> lane_bits_));
  }

  Row<Index> own;
  bool alone;  // the team has a row and walks it by itself

 private:
  // Neighbouring rows go to different blocks: long rows like to come together.
  static __device__ __forceinline__ int64_t row_of_team(int team) {
    return blockIdx.x + static_cast<int64_t>(team) * gridDim.x;
  }

  int lane_bits_;
  unsigned* marks_;
  bool any_together_;
};

// A row without entries is zero even where its scale is not finite, as 1 / degree is.
template <typename Scale, typename Index>
__device__ __forceinline__ Scale scale_of_row(const Scale* scale, const Row<Index>& row,
                                              int64_t index) {
  if (row.count == 0) return 0;
  return scale ? __ldg(scale + index) : Scale(1);
}

// Lets a launch that overlaps this one begin. Before Hopper it begins at the end all the same.
__device__ __forceinline__ void allow_next_launch() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Waits for the launch that this one overlaps, if any, and for what it has written.
__device__ __forceinline__ void wait_for_previous_launch() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Brings a team's ids into L2 while the launch before is still at work.
template <typename Index>
__device__ __forceinline__ void prefetch_ids(const Row<Index>& row, const Team& team) {
  constexpr int kSector = 32 / sizeof(Index);
  const typename Row<Index>::Size first = team.lane * kSector;
  if (first < row.count) asm volatile("prefetch.global.L2 [%0];" ::"l"(row.ids + first));
}

template <typename In, typename Out, typename Scale, typename Index, int kVec, int kLoads>
__global__ void __launch_bounds__(kMaxThreads, kMinBlocks)
    gather_reduce_kernel(Csr<Index> csr, Operand<In, Scale> in, const Scale* row_scale, Out* out,
                         int64_t width, Cut cut) {
  using LaneSums = Sums<In, Scale, Index, kVec, kLoads, 1>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  __shared__ unsigned marks[kMaxThreads / 32];
  Scale* partial = reinterpret_cast<Scale*>(shared_bytes);
  const Operand<In, Scale> operands[1] = {in};
  const Team team(cut);
  allow_next_launch();
  // A team takes few entries by itself; more are shared by the teams of its warp, and yet more by
  // those of the block. Where a team is a warp there is no step between.
  const unsigned teams_of_warp = 32 / team.lanes;
  const unsigned long_row = max(kLongRow, kSharedBatches * LaneSums::kBatch * teams_of_warp);
  const RowsOfBlock<Index> rows(csr, cut, team, long_row, marks);
  const bool shared = rows.alone && teams_of_warp > 1 && rows.own.count > kShortRow;
  const unsigned shared_of_warp = __ballot_sync(kWholeWarp, shared && team.lane == 0);
  prefetch_ids(rows.own, team);
  wait_for_previous_launch();

  for (int64_t tile = blockIdx.y; tile < cut.tiles; tile += gridDim.y) {
    const int64_t column = LaneSums::first_column(team, tile);
    if (rows.alone && !shared) {
      const Scale scale = scale_of_row(row_scale, rows.own, rows.own_index(team));
      LaneSums sums;
      sums.add(csr, rows.own, 0, LaneSums::kBatch, operands, team, column, width);
      sums.store_row(out + rows.own_index(team) * width, scale, team, column, width);
    }
    for (unsigned mark = shared_of_warp; mark != 0; mark &= mark - 1) {
      const int owner = __ffs(mark) - 1;
      const Row<Index> row = {
          csr.indices + __shfl_sync(kWholeWarp, rows.own.ids - csr.indices, owner),
          __shfl_sync(kWholeWarp, rows.own.count, owner)};
      const int64_t index = __shfl_sync(kWholeWarp, rows.own_index(team), owner);
      const Scale scale = scale_of_row(row_scale, row, index);
      LaneSums sums;
      sums.add(csr, row, team.index % teams_of_warp * LaneSums::kBatch,
               teams_of_warp * LaneSums::kBatch, operands, team, column, width);
      sums.combine_teams_of_warp(team);
      if (threadIdx.x % 32 < team.lanes)
        sums.store_row(out + index * width, scale, team, column, width);
    }
    rows.for_each_together([&](int64_t index) {
      const Row<Index> row = load_row(csr, index);
      const Scale scale = scale_of_row(row_scale, row, index);
      LaneSums sums;
      sums.add_together(csr, row, operands, team, column, width, partial);
      const int64_t first = tile * LaneSums::tile_width(team);
      for (int i = threadIdx.x; i < LaneSums::tile_width(team); i += blockDim.x)
        if (first + i < width)
          narrow(scale * LaneSums::total(partial, team, 0, i), out[index * width + first + i]);
      __syncthreads();
    });
  }
}

template <typename T, typename Scale, typename Index, int kVec, int kLoads>
__global__ void __launch_bounds__(kMaxThreads, kMinBlocks)
    gather_dot_kernel(Csr<Index> csr, Operand<T, Scale> x, Operand<T, Scale> y, Scale* out,
                      int64_t width, Cut cut) {
  using LaneSums = Sums<T, Scale, Index, kVec, kLoads, 2>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  __shared__ unsigned marks[kMaxThreads / 32];
  Scale* partial = reinterpret_cast<Scale*>(shared_bytes);
  const Operand<T, Scale> operands[2] = {x, y};
  const Team team(cut);
  const RowsOfBlock<Index> rows(csr, cut, team, kLongRow, marks);

  Scale dot = 0;
  if (rows.alone)
    for (int64_t tile = 0; tile < cut.tiles; ++tile) {
      const int64_t column = LaneSums::first_column(team, tile);
      LaneSums sums;
      sums.add(csr, rows.own, 0, LaneSums::kBatch, operands, team, column, width);
#pragma unroll
      for (int j = 0; j < kLoads; ++j)
        if (column + j * team.lanes * kVec < width)
#pragma unroll
          for (int v = 0; v < kVec; ++v) dot += sums.at[0][j][v] * sums.at[1][j][v];
    }
  for (int offset = team.lanes / 2; offset > 0; offset /= 2)
    dot += __shfl_xor_sync(kWholeWarp, dot, offset);
  if (rows.alone && team.lane == 0) out[rows.own_index(team)] = dot;

  rows.for_each_together([&](int64_t index) {
    const Row<Index> row = load_row(csr, index);
    Scale together = 0;  // of the first warp, which finishes the row
    for (int64_t tile = 0; tile < cut.tiles; ++tile) {
      const int64_t first = tile * LaneSums::tile_width(team);
      LaneSums sums;
      sums.add_together(csr, row, operands, team, LaneSums::first_column(team, tile), width,
                        partial);
      if (threadIdx.x < 32)
        for (int i = threadIdx.x; i < LaneSums::tile_width(team) && first + i < width; i += 32)
          together += LaneSums::total(partial, team, 0, i) * LaneSums::total(partial, team, 1, i);
      __syncthreads();
    }
    if (threadIdx.x < 32) {
      for (int offset = 16; offset > 0; offset /= 2)
        together += __shfl_xor_sync(kWholeWarp, together, offset);
      if (threadIdx.x == 0) out[index] = together;
    }
  });
}

// What the host decides about a launch.
struct Plan {
  Cut cut;
  int threads;
  dim3 grid;
  size_t shared;
};

// How a kernel variant holds features: kLoads words of kVec features a lane.
struct Holding {
  int vec, loads, operands;
  size_t feature_bytes, sum_bytes;
};

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// From shapes alone, never from values. False: more rows than one grid can hold.
template <typename Index>
bool plan_launch(const Csr<Index>& csr, int64_t width, const Holding& holding, Plan* plan) {
  const bool splits_features = holding.operands == 1;  // a dot needs all features in one block
  int lanes = 1;
  while (lanes < 32 && int64_t{lanes} * holding.vec < width) lanes *= 2;
  const auto tiles = [&] { return ceil_div(width, int64_t{lanes} * holding.vec * holding.loads); };
  const auto blocks = [&](int64_t row_blocks) {
    return splits_features ? row_blocks * tiles() : row_blocks;
  };

  const int64_t average = csr.nnz / csr.rows;
  if (average > kLongRow) {
    // The block owns a row. Where that makes few blocks, narrower tiles make more of them; a team
    // still takes whole 32-byte sectors.
    while (splits_features && lanes * holding.vec * holding.feature_bytes > 32 &&
           blocks(csr.rows) < kFillBlocks)
      lanes /= 2;
    plan->cut.rows_per_block = 1;
    plan->threads = kMinThreads;  // and as many as take the average row in about two batches
    while (plan->threads < kMaxThreads &&
           int64_t{plan->threads} / lanes * (2 * kUnroll / holding.operands) < average)
      plan->threads *= 2;
  } else {
    plan->threads = kTeamThreads;
    while (plan->threads > kMinThreads &&
           blocks(ceil_div(csr.rows, plan->threads / lanes)) < kFillBlocks)
      plan->threads /= 2;
    plan->cut.rows_per_block = plan->threads / lanes;
  }

  plan->cut.lane_bits = 0;
  while (1 << plan->cut.lane_bits < lanes) ++plan->cut.lane_bits;
  plan->cut.tiles = tiles();
  const int64_t row_blocks = ceil_div(csr.rows, plan->cut.rows_per_block);
  if (row_blocks > kMaxGridX) return false;
  plan->grid = dim3(static_cast<unsigned>(row_blocks),
                    splits_features ? static_cast<unsigned>(std::min(tiles(), kMaxGridY)) : 1);
  plan->shared = static_cast<size_t>(plan->threads / 32) * holding.operands * lanes * holding.vec *
                 holding.loads * holding.sum_bytes;
  return true;
}

// Ids and bounds are compared in the width of Index.
template <typename Index>
Csr<Index> clamp_sizes(const Csr<Index>& csr) {
  constexpr int64_t kMaxIndex = std::numeric_limits<Index>::max();
  Csr<Index> clamped = csr;
  clamped.nnz = std::min(csr.nnz, kMaxIndex);
  if (csr.cols > kMaxIndex) clamped.cols = static_cast<int64_t>(kMaxIndex) + (sizeof(Index) < 8);
  return clamped;
}

// Programmatic dependent launches came with Hopper.
bool can_overlap() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9;
}

template <int kVec, int kLoads, typename In, typename Out, typename Scale, typename Index>
cudaError_t launch_reduce(cudaStream_t stream, Launch launch, const Csr<Index>& csr,
                          Operand<In, Scale> in, const Scale* row_scale, Out* out, int64_t width) {
  Plan plan;
  if (!plan_launch(csr, width, {kVec, kLoads, 1, sizeof(In), sizeof(Scale)}, &plan))
    return cudaErrorInvalidConfiguration;
  cudaLaunchConfig_t config = {};
  config.gridDim = plan.grid;
  config.blockDim = dim3(plan.threads);
  config.dynamicSmemBytes = plan.shared;
  config.stream = stream;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = kOverlap && launch == Launch::kOverlapsPrevious && can_overlap() ? 1 : 0;
  return cudaLaunchKernelEx(&config, gather_reduce_kernel<In, Out, Scale, Index, kVec, kLoads>,
                            clamp_sizes(csr), in, row_scale, out, width, plan.cut);
}

template <int kVec, int kLoads, typename T, typename Scale, typename Index>
cudaError_t launch_dot(cudaStream_t stream, const Csr<Index>& csr, Operand<T, Scale> x,
                       Operand<T, Scale> y, Scale* out, int64_t width) {
  Plan plan;
  if (!plan_launch(csr, width, {kVec, kLoads, 2, sizeof(T), sizeof(Scale)}, &plan))
    return cudaErrorInvalidConfiguration;
  cudaLaunchConfig_t config = {};
  config.gridDim = plan.grid;
  config.blockDim = dim3(plan.threads);
  config.dynamicSmemBytes = plan.shared;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, gather_dot_kernel<T, Scale, Index, kVec, kLoads>,
                            clamp_sizes(csr), x, y, out, width, plan.cut);
}

bool aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Whether rows of `width` features can be read in words of kVec.
template <int kVec, typename T>
bool readable(const T* features, int64_t width) {
  return width % kVec == 0 && aligned(features, kVec * sizeof(T));
}

}  // namespace

template <typename In, typename Out, typename Scale, typename Index>
cudaError_t gather_reduce(cudaStream_t stream, Launch launch, const Csr<Index>& csr, const In* in,
                          const Scale* col_scale, const Scale* row_scale, Out* out, int64_t width) {
  if (csr.rows <= 0 || width <= 0) return cudaSuccess;
  const Operand<In, Scale> operand = {in, col_scale};
  constexpr int kWide = 16 / sizeof(In);
  constexpr int kHalf = 8 / sizeof(In);
  if (readable<kWide>(in, width) && aligned(out, store_alignment<Out, kWide>))
    return launch_reduce<kWide, 1>(stream, launch, csr, operand, row_scale, out, width);
  if constexpr (kHalf > 1)
    if (readable<kHalf>(in, width) && aligned(out, store_alignment<Out, kHalf>))
      return launch_reduce<kHalf, 1>(stream, launch, csr, operand, row_scale, out, width);
  if (width <= 32) return launch_reduce<1, 1>(stream, launch, csr, operand, row_scale, out, width);
  constexpr int kLoads = sizeof(Scale) == 8 ? 2 : 4;  // as many as stay in registers
  return launch_reduce<1, kLoads>(stream, launch, csr, operand, row_scale, out, width);
}

template <typename T, typename Scale, typename Index>
cudaError_t gather_dot(cudaStream_t stream, const Csr<Index>& csr, const T* x, const Scale* x_scale,
                       const T* y, const Scale* y_scale, Scale* out, int64_t width) {
  if (csr.rows <= 0) return cudaSuccess;
  const Operand<T, Scale> left = {x, x_scale};
  const Operand<T, Scale> right = {y, y_scale};
  // Narrower than the words and tiles of gather_reduce: two sums have to stay in registers.
  constexpr int kWide = sizeof(T) == 8 ? 2 : 4;
  if (readable<kWide>(x, width) && readable<kWide>(y, width))
    return launch_dot<kWide, 1>(stream, csr, left, right, out, width);
  if (width <= 32) return launch_dot<1, 1>(stream, csr, left, right, out, width);
  return launch_dot<1, 2>(stream, csr, left, right, out, width);
}

#define JAX_GNN_REDUCE(In, Out, Scale, Index)                                            \
  template cudaError_t gather_reduce(cudaStream_t, Launch, const Csr<Index>&, const In*, \
                                     const Scale*, const Scale*, Out*, int64_t);
#define JAX_GNN_DOT(T, Scale, Index)                                                       \
  template cudaError_t gather_dot(cudaStream_t, const Csr<Index>&, const T*, const Scale*, \
                                  const T*, const Scale*, Scale*, int64_t);
#define JAX_GNN_INSTANTIATE(Index)                   \
  JAX_GNN_REDUCE(float, float, float, Index)         \
  JAX_GNN_REDUCE(double, double, double, Index)      \
  JAX_GNN_REDUCE(__half, float, float, Index)        \
  JAX_GNN_REDUCE(float, __half, float, Index)        \
  JAX_GNN_REDUCE(__nv_bfloat16, float, float, Index) \
  JAX_GNN_REDUCE(float, __nv_bfloat16, float, Index) \
  JAX_GNN_DOT(float, float, Index)                   \
  JAX_GNN_DOT(double, double, Index)                 \
  JAX_GNN_DOT(__half, float, Index)                  \
  JAX_GNN_DOT(__nv_bfloat16, float, Index)

JAX_GNN_INSTANTIATE(int32_t)
JAX_GNN_INSTANTIATE(int64_t)

}  // namespace jax_gnn::cuda
