// The walk of texts with products: a warp takes its entries by tiles of 16.
//
//   shared memory of a block:  open runs | matrices | sums and rows of all warps | one part a warp
//   a warp's part:             entries of two tiles | rows around its range | its first run |
//                              staged rows | scratch memory | tiles of rows that are reduced
//
// Rows that entries read are copied into the warp's part a tile ahead, while those of the tile
// before are computed (edge_tiles.cuh): with two stages from the start, with one as soon as the
// text has read all that is staged. Lanes share the columns of reduced rows, two of each 64, and
// walk the tile's entries one after another. Runs of rows are closed as in segment_runs.cuh, with
// the warp as the team. Barriers are those of the warp alone, but for sums over all entries of a
// block, for which all warps take part in as many tiles as the first one has.
#pragma once

#include "edge_region.cuh"
#include "edge_tiles.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kTileEntries = 16;
constexpr int kEntriesWords = 2 * sizeof(TileEntries) / sizeof(float);  // of two tiles

// An entry of a lane.
struct LaneEntry {
  Index row, col, place;
};

template <class Text>
__global__ void __launch_bounds__(Text::kThreads, Text::kMinBlocks)
    tile_kernel(Csr<Index> csr, RegionMessage<Text> message, Cut cut,
                Output<float, RegionOp<Text>, float, RegionRows<Text>> output, int64_t heads,
                bool fills, Start start, Tails<RegionOp<Text>, float> tails) {
  using Op = RegionOp<Text>;
  constexpr int kParts = Op::kParts, kVec = Op::kVec, kWarps = Text::kThreads / 32;
  // Entries whose parts are read together.
  constexpr int kBatch = kParts <= 4 ? 8 : kParts <= 8 ? 4 : kParts <= 16 ? 2 : 1;
  __shared__ BlockRuns block_runs;
  unsigned lane_number = threadIdx.x % 32, warp_start = threadIdx.x / 32 * Text::kMemory;
  hide(lane_number);  // or both are computed again wherever they are used
  hide(warp_start);
  const int lane = static_cast<int>(lane_number), warp = static_cast<int>(threadIdx.x / 32);
  const Column column = column_of<kVec>(lane, 32, cut.width, heads);
  float* const shared_heads = reinterpret_cast<float*>(dynamic_shared());
  float* const shared_tails = shared_heads + kWarps * kParts * 32;
  float* const matrices = shared_tails + kWarps * kParts * 32;
  float* const block = matrices + Text::kMatrices;
  float* const memory = block + Text::kBlockMemory + warp_start;
  auto* const tiles = reinterpret_cast<TileEntries*>(memory);
  auto* const around = reinterpret_cast<Index*>(memory + kEntriesWords);
  float* const first_run = memory + kEntriesWords + 4;
  if (threadIdx.x == 0) block_runs.num_long_gaps = 0;
  if (start == Start::kWaits) wait_for_previous_launch();

  const int64_t per_block = kWarps * cut.per_warp, block_begin = blockIdx.x * per_block;
  const int64_t begin = min(block_begin + warp * cut.per_warp, csr.count);
  const int64_t end = min(begin + cut.per_warp, csr.count);
  const int count = static_cast<int>(end - begin);
  const int64_t of_warp = Text::kSums ? min(cut.per_warp, csr.count - block_begin) : end - begin;
  const int num_tiles = static_cast<int>((of_warp + kTileEntries - 1) / kTileEntries);
  ask_for_edges(csr.rows, csr.count, per_block, block_runs.edges);
  if (lane == 0) ask_for_rows_around(csr.rows, csr.count, begin, count, around);
  Sizes sizes = {cut_size(csr.num_rows), cut_size(csr.num_cols), cut_size(csr.num_weights)};
  hide(sizes.rows);
  hide(sizes.cols);
  hide(sizes.weights);
  float* const lane_out = output.out + column.first;

  // Lanes 16 and above have the entries of those below.
  const int lane_entry = lane % kTileEntries;
  const Index lane_first = static_cast<Index>(begin) + lane_entry;
  const auto load_ids = [&](int tile) {
    const int at = tile * kTileEntries;
    const bool exists = at + lane_entry < count;
    LaneEntry ids = {-1, lane_first + at, lane_first + at};
    const auto load = [&](const Index* from, Index& to) {
      load_if(exists, reinterpret_cast<const unsigned*>(from + lane_first) + at,
              reinterpret_cast<unsigned&>(to));
    };
    load(csr.rows, ids.row);
    if (csr.cols != nullptr) load(csr.cols, ids.col);
    if (csr.order != nullptr) load(csr.order, ids.place);
    return ids;
  };
  // Writes the entries of a tile, and asks for their rows.
  const auto ask_for_rows = [&](const LaneEntry& ids, int tile) {
    const bool there = tile * kTileEntries + lane_entry < count &&
                       static_cast<unsigned>(ids.place) < sizes.weights;
    const bool valid = there && static_cast<unsigned>(ids.row) < sizes.rows &&
                       static_cast<unsigned>(ids.col) < sizes.cols;
    TileEntries& to = tiles[tile % 2];
    if (lane < kTileEntries) {
      to.entries[lane] = {ids.row, ids.col, ids.place,
                          static_cast<unsigned>(valid) | static_cast<unsigned>(there) << 1};
      to.ids[static_cast<int>(Id::kRow)][lane] = valid ? ids.row : -1;
      to.ids[static_cast<int>(Id::kCol)][lane] = valid ? ids.col : -1;
      to.ids[static_cast<int>(Id::kPlace)][lane] = valid ? ids.place : -1;
    }
    __syncwarp();
    Text::stage(message.in, to, lane,
                memory + Text::kStaged + tile % Text::kStages * Text::kStageWords);
    __pipeline_commit();
  };

  // Matrices are read while the ids and then the rows of the first tile are on their way.
  LaneEntry coming = load_ids(0);
  if (num_tiles > 0) ask_for_rows(coming, 0);
  coming = load_ids(1);
  if constexpr (Text::kMatrices > 0) Text::load_matrices(message.in, matrices);
  for (int i = static_cast<int>(threadIdx.x); i < Text::kBlockMemory; i += Text::kThreads)
    block[i] = 0;  // sums start from zero
  __pipeline_wait_prior(0);
  __syncthreads();

  float carry[kParts], run[kParts];
  set_neutral<Op>(carry);
  set_neutral<Op>(run);
  bool seen = false, left_open = false;
  const int one = 1, lanes = 32, team = 0;
  const Shared<float> shared = {block_runs, shared_heads, shared_tails};
  Runs<Op, float, float, RegionRows<Text>> runs{csr,      output, lanes,  lane,     one,
                                                team,     warp,   column, shared,   sizes,
                                                lane_out, carry,  seen,   left_open};
  // Its first run lies beside those of other warps' lanes, of which each has its own memory.
  TeamRun<Op, float> open = {first_run - warp * 32, around};
  if (count > 0) open.begin(tiles[0].entries[0].row);
  const auto close = [&] {
    open.close(run, 32, [&](const float (&sum)[kParts]) {
      output.store(lane_out, open.row, sum, sizes.rows);
    });
  };
  typename Text::Sums sums = {};
  const int g = lane / 4;

#pragma unroll 1
  for (int tile = 0; tile < num_tiles; ++tile) {
    const TileEntry* const now = tiles[tile % 2].entries;
    const TileEntry of_lane[2] = {now[g], now[g + 8]};
    const auto prefetch = [&] {
      __syncwarp();  // the text has read what was staged
      if (tile + 1 < num_tiles) {
        ask_for_rows(coming, tile + 1);
        coming = load_ids(tile + 2);
      }
    };
    Text::compute(message.in, message.out, matrices, block, memory,
                  memory + Text::kStaged + tile % Text::kStages * Text::kStageWords, of_lane, sums,
                  prefetch);
    __syncwarp();

    if constexpr (Text::kReduces) {
      const int left = min(count - tile * kTileEntries, kTileEntries);
      const TileEntry entry = now[lane % kTileEntries];
      Index before = __shfl_up_sync(kWholeWarp, entry.row, 1);
      if (lane == 0) before = open.row;
      const unsigned begins = __ballot_sync(kWholeWarp, lane < left && entry.row != before);
      const unsigned gaps = __ballot_sync(
          kWholeWarp,
          lane < left && static_cast<unsigned>(entry.row) - static_cast<unsigned>(before) > 1);
      const unsigned valid = __ballot_sync(kWholeWarp, lane < left && entry.valid());
#pragma unroll 1
      for (int first = 0; first < kTileEntries; first += kBatch) {
        float parts[kBatch][kParts];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) Text::read(memory, first + j, column.first, parts[j]);
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          if (begins >> first & 1u << j) {
            close();
            open.row = __shfl_sync(kWholeWarp, entry.row, first + j);
          }
          if (valid >> first & 1u << j) append<Op>(run, parts[j]);
        }
      }
      if (fills)
#pragma unroll 1
        for (unsigned rest = gaps; rest != 0; rest &= rest - 1) {
          const int j = __ffs(rest) - 1;
          runs.fill_gap(__shfl_sync(kWholeWarp, before, j), __shfl_sync(kWholeWarp, entry.row, j));
        }
    }
    __pipeline_wait_prior(0);
    __syncwarp();
  }

  if constexpr (Text::kSums) {
    __syncthreads();
    Text::finish(message.out, block, sums);
  }
  __pipeline_wait_prior(0);
  __syncwarp();
  if constexpr (!Text::kReduces) return;
  runs.close_last(open, count, fills, close);
  __syncwarp();
  runs.close_range(open, 32, run);
  runs.complete(per_block, cut.width, fills, tails);
}

}  // namespace
}  // namespace jax_gnn::cuda
