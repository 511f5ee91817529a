// Products of small matrices in registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "half.h"
#include "vector.h"

namespace jax_gnn::cpu {

// A tile of the result stays in registers: kRows rows of two vectors. Unlike the loops that memory
// limits, these gain from all that AVX-512 has, and want tiles made to measure.
template <int kBytes_, int kRows_>
struct RegisterTile {
  static constexpr int kBytes = kBytes_, kRows = kRows_;
  template <typename Acc>
  static constexpr int kLanes = kBytes / static_cast<int>(sizeof(Acc));
  template <typename Acc>
  static constexpr int kColumns = 2 * kLanes<Acc>;
};

template <InstructionSet kSet>
using TileOf = std::conditional_t<
    kSet == InstructionSet::kBaseline, RegisterTile<16, 4>,
    std::conditional_t<kSet == InstructionSet::kAvx2, RegisterTile<32, 6>, RegisterTile<64, 8>>>;

// A factor of a product: element (i, s) is data[i * stride + s], or, kAcross, data[s * stride + i].
template <typename Acc, bool kAcross>
struct Factor {
  const Acc* data;
  int64_t stride;

  JAX_GNN_INLINE Acc at(int64_t i, int64_t s) const {
    return kAcross ? data[s * stride + i] : data[i * stride + s];
  }
};

// Rows of a matrix.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
};

// out[i, :] = init[i, :] + the sum over s of a(i, s) * panel[s, :], for kRows rows and the first
// kVectors of the two vectors of columns that a panel has; rows of a panel lie `stride` apart.
// Prefetches kRows * steps numbers from `next` on.
template <typename Tile, int kRows, int kVectors, typename Acc, bool kAcross>
JAX_GNN_INLINE void multiply_tile(Factor<Acc, kAcross> a, const Acc* panel, int64_t stride,
                                  int64_t steps, Rows<const Acc> init, Rows<Acc> out,
                                  const Acc* next) {
  constexpr int kLanes = Tile::template kLanes<Acc>;
  using V = Vector<Acc, kLanes>;
  V sums[kRows][kVectors] = {};
  for (int64_t s = 0; s < steps; ++s) {
    __builtin_prefetch(next + s * kRows);
    V columns[kVectors];
    JAX_GNN_UNROLL
    for (int v = 0; v < kVectors; ++v) columns[v] = load<kLanes>(panel + v * kLanes);
    panel += stride;
    JAX_GNN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Acc factor = a.at(i, s);
      JAX_GNN_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[i][v] += factor * columns[v];
    }
  }
  JAX_GNN_UNROLL
  for (int i = 0; i < kRows; ++i) {
    JAX_GNN_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const V before = load<kLanes>(init.data + i * init.stride + v * kLanes);
      store<kLanes>(out.data + i * out.stride + v * kLanes, before + sums[i][v]);
    }
  }
}

// Calls body(rows, vectors), integral constants, for the largest tile that `rows` rows fill, of one
// vector where that is enough; returns its rows.
template <int kRows, typename Body>
JAX_GNN_INLINE int with_tile(int64_t rows, bool narrow, const Body& body) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return with_tile<kRows / 2>(rows, narrow, body);
  }
  if (narrow) {
    body(std::integral_constant<int, kRows>{}, std::integral_constant<int, 1>{});
  } else {
    body(std::integral_constant<int, kRows>{}, std::integral_constant<int, 2>{});
  }
  return kRows;
}

}  // namespace jax_gnn::cpu
