// Where the weights of entries come from. Most are read: then they are a pointer, to (num_weights,
// heads) numbers, and null means ones. Others are computed, by the teams of lanes of the walks:
// each lane its share of the entries and heads of its team's tile, into shared memory, from which
// all lanes read them. Then they are a struct with
//   Acc             their type,
//   ==, != nullptr  that they are not null,
//   heads           of a row, and tile_heads, that the tile of a team meets at most,
//   Inputs          what one of them is computed from; its size is a multiple of 16 bytes,
//   load(...)       the same into registers, and ask(...), into shared memory, by asynchronous
//                   copies,
//   compute(inputs) the weight, and what makes the dot with the row that an entry is added to what
//                   is wanted of it.
//
// Needs whole warps. Promises that nothing of an entry that is not valid is read, and weights of 0.
#pragma once

#include "../segments.h"
#include "basics.cuh"

namespace jax_gnn::cuda {
namespace {

template <class Weights>
constexpr bool kComputes = !std::is_pointer_v<Weights>;

template <class Weights>
struct WeightType {
  using type = typename Weights::Acc;
};
template <typename Acc>
struct WeightType<const Acc*> {
  using type = Acc;
};

struct NoInputs {};
template <class Weights, bool kComputed = kComputes<Weights>>
struct InputsOf {
  using type = NoInputs;
};
template <class Weights>
struct InputsOf<Weights, true> {
  using type = typename Weights::Inputs;
};

// An entry's ids, and whether all are in range.
struct Entry {
  int32_t row, col;
  int64_t place;  // of what it has in arrays of weights
  bool valid;
};

// What is wanted of an entry's dot: factor * dot - less.
template <typename Acc>
struct DotTerms {
  Acc factor, less;
};

template <typename Acc>
struct Computed {
  Acc weight;
  DotTerms<Acc> terms;
};

// Shared memory for computed weights, of a team: for each head of its tile, weights of kSize
// entries; with dots their terms.
template <int kSize, bool kDots, typename Acc>
__host__ __device__ constexpr int64_t computed_bytes(int heads) {
  return int64_t{kSize} * heads * (kDots ? 3 : 1) * sizeof(Acc);
}

// How a lane goes through its share of entries and heads: from which on, and how far at a time.
struct LaneShare {
  int entry, head, next_entry, next_head;
};
__device__ __forceinline__ LaneShare lane_share(int lane, int lanes, int heads) {
  const int entry = lane / heads, next_entry = lanes / heads;
  return {entry, lane - entry * heads, next_entry, lanes - next_entry * heads};
}

// Calls f(entry, head) for a lane's share of so many entries and heads.
template <class F>
__device__ __forceinline__ void for_share(const LaneShare& share, int heads, int entries,
                                          const F& f) {
  int entry = share.entry, head = share.head;
#pragma unroll 1
  while (entry < entries) {
    f(entry, head);
    entry += share.next_entry;
    head += share.next_head;
    if (head >= heads) {
      head -= heads;
      ++entry;
    }
  }
}

// Computes the weights of kSize entries, `to` [head][entry], and with dots their terms. Lanes that
// read them wait for the others of the team first. `entry_of`: of a number below kSize. kTogether:
// of a lane, whose loads are in flight together.
template <int kSize, int kTogether, bool kDots, class Weights, class EntryOf>
__device__ __forceinline__ void compute_weights(const Weights& weights, int lane, int lanes,
                                                int first_head, const EntryOf& entry_of,
                                                typename Weights::Acc* to,
                                                DotTerms<typename Weights::Acc>* terms) {
  using Acc = typename Weights::Acc;
  const int size = kSize * weights.tile_heads;
#pragma unroll 1
  for (int first = lane; first < size; first += kTogether * lanes) {
    typename Weights::Inputs inputs[kTogether];
    bool valid[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = first + i * lanes, head = first_head + at / kSize;
      const Entry entry = entry_of(at % kSize);
      valid[i] = at < size && entry.valid && head < weights.heads;
      weights.load(valid[i], entry, head, inputs[i]);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = first + i * lanes;
      const Computed<Acc> computed = weights.compute(inputs[i]);
      if (at < size) {
        to[at] = valid[i] ? computed.weight : Acc(0);
        if constexpr (kDots) terms[at] = valid[i] ? computed.terms : DotTerms<Acc>{0, 0};
      }
    }
  }
}

}  // namespace
}  // namespace jax_gnn::cuda
