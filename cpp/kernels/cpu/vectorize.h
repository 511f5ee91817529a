// What hot loops are written with.
#pragma once

#include <cstdint>

// One portable binary with AVX-512, AVX2 and baseline variants of the hot loops, chosen at load
// time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && \
    !defined(JAX_GNN_NO_MULTIVERSION)
#define JAX_GNN_MULTIVERSION \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define JAX_GNN_MULTIVERSION
#endif
#define JAX_GNN_INLINE inline __attribute__((always_inline))

namespace jax_gnn::cpu {

template <typename Index>
JAX_GNN_INLINE bool in_range(Index id, int64_t size) {
  return static_cast<uint64_t>(static_cast<int64_t>(id)) < static_cast<uint64_t>(size);
}

// Brings `bytes` bytes from `address` on into the cache.
JAX_GNN_INLINE void prefetch(const void* address, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(address) + b);
}

template <int kTile, typename Body>
JAX_GNN_INLINE void cover(int64_t first, int64_t last, const Body& body) {
  for (int64_t column = first; column < last; column += kTile)
    body.template operator()<kTile>(column < last - kTile ? column : last - kTile);
}

// Calls body<tile width>(column) so as to cover [first, last) with tiles of fixed width. The last
// one overlaps the one before where the width is no multiple: columns may be done twice, and must
// then come out the same.
template <typename Body>
JAX_GNN_INLINE void for_each_tile(int64_t first, int64_t last, const Body& body) {
  const int64_t width = last - first;
  if (width >= 64) return cover<64>(first, last, body);
  if (width >= 32) return cover<32>(first, last, body);
  if (width >= 16) return cover<16>(first, last, body);
  if (width >= 8) return cover<8>(first, last, body);
  if (width >= 4) return cover<4>(first, last, body);
  if (width >= 2) return cover<2>(first, last, body);
  if (width >= 1) return body.template operator()<1>(first);
}

}  // namespace jax_gnn::cpu
