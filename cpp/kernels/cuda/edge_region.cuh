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
//   load_matrices        brings what rows of entries are multiplied with to shared memory
//   stage, multiply      put rows of entries into tiles, and multiply these, kStages times in turn;
//                        values read the products (edge_products.cuh)
// Rows are aligned to the words that the text reads and writes: its handler checks that.
#pragma once

#include "edge_products.cuh"
#include "segment_walk.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kMaxArrays = 32;
constexpr int kRegionThreads = 128;  // of a block

// The arrays of a region, in the order of its inputs or of its outputs.
struct Arrays {
  void* at[kMaxArrays];
};

enum class Join { kSum, kMax, kMin };

// ---- What texts are written with

#define JAX_GNN_EACH_SLOT(i) _Pragma("unroll") for (int i = 0; i < kVec; ++i)

// kCount numbers in words of kWord numbers, zeros where `valid` does not hold; kOnce where nothing
// else reads them.
template <int kWord, bool kOnce, int kCount, typename T>
__device__ __forceinline__ void load_numbers(bool valid, const T* from, T (&to)[kCount]) {
  if constexpr (sizeof(T) * kWord == 1) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = valid ? from[i] : T(0);
  } else {
    using W = Word<T, kWord>;
    W words[kCount / kWord] = {};
#pragma unroll
    for (int i = 0; i < kCount / kWord; ++i) {
      const W* const word = reinterpret_cast<const W*>(from) + i;
      if constexpr (kOnce)
        load_once_if(valid, word, words[i]);
      else
        load_if(valid, word, words[i]);
    }
    memcpy(to, words, sizeof(to));
  }
}

template <bool kOnce, typename T>
__device__ __forceinline__ void load_number(bool valid, const T* from, T& to) {
  T one[1];
  load_numbers<1, kOnce>(valid, from, one);
  to = one[0];
}

// Likewise kept out of the caches' way: results are not read here again.
template <int kWord, int kCount, typename T>
__device__ __forceinline__ void store_numbers(T* to, const T (&from)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += kWord) {
    if constexpr (sizeof(T) * kWord == 1) {
      to[i] = from[i];
    } else {
      Word<T, kWord> word;
      memcpy(&word, from + i, sizeof(word));
      __stcs(reinterpret_cast<Word<T, kWord>*>(to + i), word);
    }
  }
}

// Numbers in shared memory, likewise in words.
template <int kWord, int kCount>
__device__ __forceinline__ void put_numbers(float* to, const float (&from)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += kWord) {
    Word<float, kWord> word;
    memcpy(&word, from + i, sizeof(word));
    *reinterpret_cast<Word<float, kWord>*>(to + i) = word;
  }
}
template <int kWord, int kCount>
__device__ __forceinline__ void take_numbers(const float* from, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += kWord) {
    const auto word = *reinterpret_cast<const Word<float, kWord>*>(from + i);
    memcpy(to + i, &word, sizeof(word));
  }
}

// The row of an array whose rows have kWidth numbers.
template <typename T, unsigned kWidth>
__device__ __forceinline__ T* row_of(void* array, Index row) {
  return row_at(static_cast<T*>(array), row, kWidth * static_cast<unsigned>(sizeof(T)));
}

template <typename T>
__device__ __forceinline__ T number(T value) {
  return value;
}
__device__ __forceinline__ float number(__half value) { return widen(value); }
__device__ __forceinline__ float number(__nv_bfloat16 value) { return widen(value); }

template <typename T, typename From>
__device__ __forceinline__ T cast(From value) {
  if constexpr (std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>) {
    T result;
    narrow(static_cast<float>(value), result);
    return result;
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != From(0);
  } else {
    return static_cast<T>(value);
  }
}

// NaN wins.
template <typename T>
__device__ __forceinline__ T greater(T a, T b) {
  return extremum<true>(a, b);
}
template <typename T>
__device__ __forceinline__ T lesser(T a, T b) {
  return extremum<false>(a, b);
}
__device__ __forceinline__ float logistic(float x) { return reciprocal(1 + expf(-x)); }
__device__ __forceinline__ double logistic(double x) { return 1 / (1 + exp(-x)); }
// log1p of numbers from 0 to 1, in half the instructions: x + x^2 times a polynomial, which was
// fitted at 4,000 points. Within 1.3 units in the last place.
__device__ __forceinline__ float log1p_of_fraction(float x) {
  constexpr float kTerms[] = {-0.00382745266f, 0.0224889815f, -0.0619307756f,
                              0.111093156f,    -0.15605633f,  0.197806343f,
                              -0.249746814f,   0.333319843f,  -0.499999791f};
  float sum = kTerms[0];
#pragma unroll
  for (int i = 1; i < 9; ++i) sum = fmaf(sum, x, kTerms[i]);
  return fmaf(x * x, sum, x);
}
template <typename T>
__device__ __forceinline__ T sign(T x) {
  return x > 0 ? T(1) : x < 0 ? T(-1) : x;  // zeros and NaN are what they are
}
template <int kPower, typename T>
__device__ __forceinline__ T power(T x) {
  if constexpr (kPower < 0) {
    return T(1) / power<-kPower>(x);
  } else if constexpr (kPower == 0) {
    return T(1);
  } else if constexpr (kPower % 2 == 1) {
    return kPower == 1 ? x : x * power<kPower - 1>(x);
  } else {
    const T half = power<kPower / 2>(x);
    return half * half;
  }
}

// What `lanes` neighbouring lanes have, a power of two, joined. Called by the whole warp.
template <Join kJoin, typename T>
__device__ __forceinline__ T join(T a, T b) {
  if constexpr (kJoin == Join::kSum) return a + b;
  if constexpr (kJoin != Join::kSum) return extremum<kJoin == Join::kMax>(a, b);
}
template <Join kJoin, int kLanes, typename T>
__device__ __forceinline__ T join_lanes(T value) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2)
    value = join<kJoin>(value, __shfl_xor_sync(kWholeWarp, value, distance));
  return value;
}
template <Join kJoin, typename T>
__device__ __forceinline__ T neutral_of() {
  if constexpr (kJoin == Join::kSum) return T(0);
  if constexpr (kJoin != Join::kSum) return kLeast<kJoin == Join::kMax, T>;
}

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
    float* memory;  // of the warp, with its tiles
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
constexpr int max_threads<RegionMessage<Text>> = kRegionThreads;

// Tells one stage's functions from another's.
template <int kStage>
struct Stage {};

// Products with matrices. Shared memory has these, then the tiles of each warp.
template <class Text>
struct Together<RegionMessage<Text>> {
  using Message = RegionMessage<Text>;
  __device__ __forceinline__ Together(const Message& message, void* shared, int warp, int team)
      : message_(message),
        matrices_(static_cast<float*>(shared)),
        memory_(matrices_ + Text::kMatrices + warp * Text::kTiles),
        in_warp_(team * Text::kUnroll) {
    if constexpr (Text::kStages > 0) {
      Text::load_matrices(message.in, matrices_);
      for (int i = threadIdx.x % 32; i < Text::kTiles; i += 32) memory_[i] = 0;
      __syncthreads();
    }
  }
  __device__ __forceinline__ void make(typename Message::Loaded& loaded) const {
    loaded.memory = memory_;
    loaded.in_warp = in_warp_;
    make_stages<0>(loaded);
  }

 private:
  template <int kStage>
  __device__ __forceinline__ void make_stages(const typename Message::Loaded& loaded) const {
    if constexpr (kStage < Text::kStages) {
#pragma unroll
      for (int j = 0; j < Text::kUnroll; ++j)
        Text::stage(Stage<kStage>(), loaded.entries[j], loaded.once, message_.in, loaded.active,
                    loaded.valid >> j & 1, loaded.rows[j], loaded.cols[j], loaded.places[j],
                    loaded.first, memory_, in_warp_ + j);
      __syncwarp();
      Text::multiply(Stage<kStage>(), memory_, matrices_);
      __syncwarp();
      make_stages<kStage + 1>(loaded);
    }
  }

  const Message& message_;
  float *matrices_, *memory_;  // the warp's tiles
  int in_warp_;
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
