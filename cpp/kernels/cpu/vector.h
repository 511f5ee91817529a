// Vectors, and tiles of columns, for hot loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "instruction_set.h"

#ifdef __clang__
#define JAX_GNN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define JAX_GNN_UNROLL _Pragma("GCC unroll 16")
#endif

namespace jax_gnn::cpu {

// kLanes numbers, a power of two; the compiler's vector type, with the arithmetic of its elements.
// A vector of one is the number itself.
template <typename T, int kLanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <typename T>
struct VectorOf<T, 1> {
  using type = T;
};
template <typename T, int kLanes>
using Vector = typename VectorOf<T, kLanes>::type;

template <typename V, bool = std::is_arithmetic_v<V>>
struct ElementOf {
  using type = V;
};
template <typename V>
struct ElementOf<V, false> {
  using type = std::decay_t<decltype(std::declval<V>()[0])>;
};
template <typename V>
using Element = typename ElementOf<V>::type;

template <typename To, typename From>
JAX_GNN_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Converts each element.
template <typename To, typename From>
JAX_GNN_INLINE To convert(From from) {
  if constexpr (std::is_arithmetic_v<From>) {
    return static_cast<To>(from);
  } else {
    return __builtin_convertvector(from, To);
  }
}

template <typename V, typename T>
JAX_GNN_INLINE V broadcast(T value) {
  if constexpr (std::is_arithmetic_v<V>) {
    return value;
  } else {
    return static_cast<Element<V>>(value) - V{};  // minus zero changes nothing
  }
}

// Calls body(0) … body(kCount - 1), constants for the compiler from the start: after a loop, even
// an unrolled one, GCC leaves the vectors of an array in memory.
template <typename Body, int... k>
JAX_GNN_INLINE void unrolled(const Body& body, std::integer_sequence<int, k...>) {
  (body(k), ...);
}
template <int kCount, typename Body>
JAX_GNN_INLINE void unrolled(const Body& body) {
  unrolled(body, std::make_integer_sequence<int, kCount>());
}

// A tile of kTile columns is this many vectors of that many elements. 32 bytes at most: AVX-512
// gains nothing from more where memory is the limit, and AVX2 has no more.
template <typename Acc, int kTile>
struct Shape {
  static constexpr int kLanes =
      kTile * sizeof(Acc) < 32 ? kTile : 32 / static_cast<int>(sizeof(Acc));
  static constexpr int kVectors = kTile / kLanes;
  using V = Vector<Acc, kLanes>;
};

template <typename V>
JAX_GNN_INLINE V larger(V a, V b) {  // NaN wins
  return ((b > a) | (b != b)) ? b : a;
}

// Columns of the widest tile: they stay in registers, and more of them would not be faster.
#ifndef JAX_GNN_TILE_BYTES
#define JAX_GNN_TILE_BYTES 256
#endif
template <typename Acc>
constexpr int kWidestTile = JAX_GNN_TILE_BYTES / sizeof(Acc);

// The widest tile in code for an instruction set, kLimit columns at most.
template <typename Variant, typename Acc, int kLimit = kWidestTile<Acc>>
constexpr int kWidestTileOf = Variant::kFewTiles ? std::min<int>(kLimit, 64 / sizeof(Acc)) : kLimit;

template <typename Index>
JAX_GNN_INLINE bool in_range(Index id, int64_t size) {
  return static_cast<uint64_t>(static_cast<int64_t>(id)) < static_cast<uint64_t>(size);
}

// Brings `bytes` bytes from `address` on into the caches: 3 to all levels, 2 from the second on.
template <int kLocality = 3>
JAX_GNN_INLINE void prefetch(const void* address, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64)
    __builtin_prefetch(static_cast<const char*>(address) + b, 0, kLocality);
}

template <int kTile, typename Body>
JAX_GNN_INLINE void cover(int64_t first, int64_t last, const Body& body) {
  for (int64_t column = first; column < last; column += kTile)
    body(std::integral_constant<int, kTile>{}, std::min(column, last - kTile));
}

// Calls body(integral_constant kTile, column) so as to cover [first, last) with tiles of one width,
// at most kMaxTile. The last one overlaps the one before where the width is no multiple: columns
// may be done twice, and must then come out the same.
template <int kMaxTile, typename Body>
JAX_GNN_INLINE void for_each_tile(int64_t first, int64_t last, const Body& body) {
  const int64_t width = last - first;
  if constexpr (kMaxTile >= 64)
    if (width >= 64) return cover<64>(first, last, body);
  if constexpr (kMaxTile >= 32)
    if (width >= 32) return cover<32>(first, last, body);
  if constexpr (kMaxTile >= 16)
    if (width >= 16) return cover<16>(first, last, body);
  if (width >= 8) return cover<8>(first, last, body);
  if (width >= 4) return cover<4>(first, last, body);
  if (width >= 2) return cover<2>(first, last, body);
  return cover<1>(first, last, body);
}

// Covers each column of [first, last) once: by tiles of kTile columns, then narrower ones.
template <int kTile, typename Body>
JAX_GNN_INLINE void cover_once(int64_t first, int64_t last, const Body& body) {
  for (; first + kTile <= last; first += kTile) body(std::integral_constant<int, kTile>{}, first);
  if constexpr (kTile > 1) cover_once<kTile / 2>(first, last, body);
}

}  // namespace jax_gnn::cpu
