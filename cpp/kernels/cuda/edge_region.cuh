// Edge regions: what an entry brings is computed by a text that is written at run time
// (jax_gnn/_ops/edge_region/slot_kernel.py). The walk of segment_walk.cuh takes it as a message;
// the sums, maxima and minima of a row are parts of one operator. Texts with products have a walk
// of their own (edge_tile_walk.cuh), which takes the same parameters.
//
// A lane has kVec neighbouring slots of kWidth. What a slot means is up to the text. It has:
//   Entry, Once          what is loaded of an entry, and of what all entries share
//   load, load_once      which load it, and zeros where there is nothing to be read
//   value                makes the parts of an entry, and writes what is the entry's own
//   store                writes the parts of a row
//   kind                 how a part is joined to others
//   extreme_of           for a part of kind kTies or kExpSum, the part with the extreme
// Rows are aligned to the words that the text reads and writes: its handler checks that.
#pragma once

#include "edge_numbers.cuh"
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
                loaded.first, parts);
  }
};

template <class Text>
constexpr bool makes_parts<RegionMessage<Text>> = true;
template <class Text>
constexpr int max_threads<RegionMessage<Text>> = Text::kThreads;

template <class Text>
struct RegionOp {
  using Acc = typename Text::Acc;
  using Result = Acc;
  static constexpr int kVec = Text::kVec, kParts = Text::kParts;
  static constexpr int kRoom = (kParts + kVec - 1) / kVec;
  static constexpr bool kCounts = false, kZeroIsNeutral = false;
  static __device__ __forceinline__ Acc neutral(int part) {
    const Join kind = Text::kind(part);
    return kind == Join::kMax   ? kLeast<true, Acc>
           : kind == Join::kMin ? kLeast<false, Acc>
                                : Acc(0);
  }
  static __device__ __forceinline__ Acc joined(Join kind, Acc before, Acc after) {
    return kind == Join::kSum   ? before + after
           : kind == Join::kMax ? extremum<true>(before, after)
                                : extremum<false>(before, after);
  }
  static __device__ constexpr bool is_of_extreme(int part) {
    return Text::kind(part) == Join::kTies || Text::kind(part) == Join::kExpSum;
  }
  // The ties, or the sum, of two runs whose extremes are `early` and `late`.
  static __device__ __forceinline__ Acc joined_at(Join kind, Join extreme, Acc early, Acc late,
                                                  Acc before, Acc after) {
    if (kind == Join::kTies) {
      const Acc whole = joined(extreme, early, late);
      return (early == whole ? before : Acc(0)) + (late == whole ? after : Acc(0));
    }
    const Acc distance = early > late ? late - early : early - late;
    const Acc factor = early == late ? Acc(1) : quick_exponential(distance);
    return early > late ? before + factor * after : factor * before + after;
  }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (!is_of_extreme(i)) continue;
      const int at = Text::extreme_of(i);
      run[i] = joined_at(Text::kind(i), Text::kind(at), before[at], run[at], before[i], run[i]);
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (!is_of_extreme(i)) run[i] = joined(Text::kind(i), before[i], run[i]);
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

}  // namespace
}  // namespace jax_gnn::cuda
