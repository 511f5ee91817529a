// Edge regions: what an entry brings is computed by a text that is written at run time
// (jax_gnn/_ops/edge_region/cuda_codegen.py). The walk of segment_walk.cuh takes it as a message;
// the sums, maxima and minima of a row are parts of one operator.
//
// A lane has kVec neighbouring slots of kWidth. What a slot means is up to the text. It has:
//   Entry, Once          what is loaded of an entry, and of what all entries share
//   load, load_once      which load it, and zeros where there is nothing to be read
//   value                makes the parts of an entry, and writes what is the entry's own
//   store                writes the parts of a row
//   kind                 how a part is joined to others
//   load_matrices        loads the matrices of products to shared memory
//   compute              computes the rows of the entries of a tile (edge_tiles.cuh), from where
//                        `value` reads them, and adds to Sums, those over all entries of the block
//   finish               writes these
// Rows are aligned to the words that the text reads and writes: its handler checks that.
#pragma once

#include "edge_tiles.cuh"
#include "segment_walk.cuh"

namespace jax_gnn::cuda {
namespace {

// ---- What the walk takes

template <class Text>
struct RegionMessage {
  using Acc = typename Text::Acc;
  using T = Acc;
  static constexpr int kVec = Text::kVec, kUnroll = Text::kUnroll, kMinBlocks = Text::kMinBlocks;
  static constexpr bool kGathers = true, kDots = false;
  Arrays in, out;

  // What can be read beside the ids.
  __host__ __device__ const Acc* weights() const { return nullptr; }

  struct Loaded {
    typename Text::Entry entries[kUnroll];
    typename Text::Once once;
    Index rows[kUnroll], cols[kUnroll], places[kUnroll];
    unsigned valid, there;  // bit j: entry j counts; it has a place, which may be padding's
    unsigned first;         // slot of the lane
    bool active;
    float* memory;  // shared memory of the warp
    int in_warp;    // the number of the team's first entry there
  };
  __device__ __forceinline__ void load(const Ids<kUnroll, Acc>& ids, const Sizes& sizes,
                                       bool ordered, bool, const Column& column,
                                       Loaded& loaded) const {
    loaded.valid = loaded.there = 0;
    loaded.first = static_cast<unsigned>(column.first);
    loaded.active = column.active;
    Text::load_once(in, column.active, loaded.first, loaded.once);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const Index place = ordered ? ids.order[j] : static_cast<Index>(ids.first + j);
      const bool there =
          j < ids.count && static_cast<unsigned>(place) < sizes.weights && column.active;
      const bool valid = there && static_cast<unsigned>(ids.row[j]) < sizes.rows &&
                         static_cast<unsigned>(ids.col[j]) < sizes.cols;
      loaded.rows[j] = ids.row[j];
      loaded.cols[j] = ids.col[j];
      loaded.places[j] = place;
      loaded.there |= static_cast<unsigned>(there) << j;
      loaded.valid |= static_cast<unsigned>(valid) << j;
      Text::load(in, valid, ids.row[j], ids.col[j], place, loaded.first, loaded.entries[j]);
    }
  }
  __device__ __forceinline__ void value(const Loaded& loaded, int j,
                                        Acc (&parts)[Text::kParts]) const {
    Text::value(loaded.entries[j], loaded.once, in, out, loaded.active, loaded.there >> j & 1,
                loaded.valid >> j & 1, loaded.rows[j], loaded.cols[j], loaded.places[j],
                loaded.first, loaded.memory, loaded.in_warp + j, parts);
  }
};

template <class Text>
constexpr bool makes_parts<RegionMessage<Text>> = true;
template <class Text>
constexpr bool reads_ahead<RegionMessage<Text>> = Text::kMemory == 0;
template <class Text>
constexpr int max_threads<RegionMessage<Text>> = Text::kThreads;

// The rows of a tile, computed by the warp. Shared memory has the matrices, what warps of the block
// leave for each other, then for each warp its entries, scratch memory and tiles: kMatrices,
// kBlockMemory and kMemory words, of which only texts with products have any.
template <class Text>
struct Together<RegionMessage<Text>> {
  using Message = RegionMessage<Text>;
  __device__ __forceinline__ Together(const Message& message, void* shared, int warp, int team)
      : message_(message),
        matrices_(static_cast<float*>(shared)),
        block_(matrices_ + Text::kMatrices),
        memory_(block_ + Text::kBlockMemory + warp * Text::kMemory),
        in_warp_(team * Text::kUnroll) {
    if constexpr (Text::kMatrices > 0) Text::load_matrices(message.in, matrices_);
    for (int i = static_cast<int>(threadIdx.x); i < Text::kBlockMemory; i += Text::kThreads)
      block_[i] = 0;  // sums start from zero
    if constexpr (Text::kMatrices + Text::kBlockMemory > 0) __syncthreads();
  }
  __device__ __forceinline__ void make(typename Message::Loaded& loaded) {
    loaded.memory = memory_;
    loaded.in_warp = in_warp_;
    if constexpr (Text::kMemory > 0) {
      auto* const tile = reinterpret_cast<TileEntry*>(memory_);
      // The first lane of a team tells the warp of the team's entries.
      if (loaded.first == 0)
#pragma unroll
        for (int j = 0; j < Text::kUnroll; ++j)
          tile[in_warp_ + j] = {loaded.rows[j], loaded.cols[j], loaded.places[j],
                                (loaded.valid >> j & 1u) | (loaded.there >> j & 1u) << 1};
      __syncwarp();
      const int g = static_cast<int>(threadIdx.x % 32 / 4);
      compute({tile[g], tile[g + 8]});
    }
  }
  // Sums over all entries are added by the whole block: warps with fewer steps than its first one
  // take part with entries that do not count.
  __device__ __forceinline__ void finish(const Cut& cut, int64_t begin, int64_t count) {
    if constexpr (Text::kSums) {
      constexpr int kEntries = 16;
      const int64_t first = int64_t{blockIdx.x} * (blockDim.x / 32) * cut.per_warp;
      const int64_t most = min(cut.per_warp, count - first);
      const int64_t own = max(min(cut.per_warp, count - begin), int64_t{0});
      const TileEntry none = {0, 0, 0, 0};
      for (int64_t i = (own + kEntries - 1) / kEntries; i < (most + kEntries - 1) / kEntries; ++i)
        compute({none, none});
      __syncthreads();
      Text::finish(message_.out, block_, sums_);
    }
  }

 private:
  struct Entries {
    TileEntry of_lane[2];
  };
  __device__ __forceinline__ void compute(const Entries& entries) {
    Text::compute(message_.in, message_.out, matrices_, block_, memory_, entries.of_lane, sums_);
    __syncwarp();
  }

  const Message& message_;
  float *matrices_, *block_, *memory_;
  int in_warp_;
  typename Text::Sums sums_ = {};
};

template <class Text>
struct RegionOp {
  using Acc = typename Text::Acc;
  using Result = Acc;
  static constexpr int kVec = Text::kVec, kParts = Text::kParts;
  static constexpr int kRoom = (kParts + kVec - 1) / kVec;
  static constexpr bool kCounts = false, kZeroIsNeutral = false;
  static __device__ __forceinline__ Acc neutral(int part) {
    const Join kind = Text::kind(part);
    return kind == Join::kSum   ? Acc(0)
           : kind == Join::kMax ? kLeast<true, Acc>
                                : kLeast<false, Acc>;
  }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const Join kind = Text::kind(i);
      run[i] = kind == Join::kSum   ? before[i] + run[i]
               : kind == Join::kMax ? extremum<true>(before[i], run[i])
                                    : extremum<false>(before[i], run[i]);
    }
  }
};

// In place of an Epilogue: the arrays that rows are written to.
template <class Text>
struct RegionRows {
  Arrays arrays;
};

template <class Text, class Op, typename Acc>
struct Output<Acc, Op, Acc, RegionRows<Text>> {
  static constexpr int kVec = Op::kVec;
  using Result = Acc;

  Acc* out;  // only counts slots
  int64_t num_rows, width;
  RegionRows<Text> epilogue;

  __device__ __forceinline__ void store(Acc* lane_out, Index row, const Acc (&run)[Op::kParts],
                                        unsigned limit) const {
    if (static_cast<unsigned>(row) < limit)
      Text::store(epilogue.arrays, row, static_cast<unsigned>(lane_out - out), run);
  }
  __device__ __forceinline__ void store_empty(int64_t row, const Column& column) const {
    if (!column.active) return;
    Acc run[Op::kParts];
    set_neutral<Op>(run);
    Text::store(epilogue.arrays, static_cast<Index>(row), static_cast<unsigned>(column.first), run);
  }
};

// What a text launches.
template <class Text>
constexpr auto region_kernel = reduce_kernel<RegionMessage<Text>, RegionOp<Text>, RegionRows<Text>>;

}  // namespace
}  // namespace jax_gnn::cuda
