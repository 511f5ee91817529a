// Sums over typed edges, the host's side: which product takes the operands.
#pragma once

#include "launch.h"
#include "relational_aggregate.cuh"
#include "relational_aggregate.h"
#include "tags.h"
#ifndef JAX_GNN_EMULATED  // without matrix instructions
#include "relational_tensor.cuh"
#endif

namespace jax_gnn::cuda {
namespace {

template <class Product>
cudaError_t launch_tiles(cudaStream_t stream, const Tiles& tiles,
                         const TileSums<typename Product::T, typename Product::Acc>& sums,
                         void* workspace) {
  using Acc = typename Product::Acc;
  static_assert(TileTails<Product>::kWords * 24 * Product::kThreads <=
                tile_workspace_bytes(sizeof(Acc)));
  constexpr int kTeams = Product::kThreads / Product::kLanes;
  constexpr size_t kHeadBytes = kTeams * Product::kWords * Product::kLanes * Product::kWordBytes;
  const size_t shared =
      Product::kAlign - 16 + 2 * Product::kTileBytes + Product::kWeightBytes + kHeadBytes;
  const TileTails<Product> tails = {static_cast<unsigned char*>(workspace), next_tag()};
  return launch(stream, {dim3(static_cast<unsigned>(tiles.num_shares)), Product::kThreads, shared},
                relational_aggregate_kernel<Product>, tiles, sums, tails);
}

}  // namespace

template <typename T, typename Acc>
cudaError_t relational_aggregate(cudaStream_t stream, const Tiles& given, int64_t k, int64_t n,
                                 bool transposed, [[maybe_unused]] bool exact, bool widens,
                                 Activation activation, const T* x, const T* weights,
                                 const Acc* scales, const T* bias, void* out, void* workspace) {
  if (given.num_rows <= 0 || n <= 0) return cudaSuccess;
  Tiles tiles = given;
  if (tiles.num_cols == 0) tiles.count = 0;  // what is dropped reads the first row
  if (k > kMaxTileWidth || n > kMaxTileWidth || tiles.num_shares < 1 ||
      tiles.num_shares > kMaxGridX)
    return cudaErrorInvalidValue;
  const TileSums<T, Acc> sums = {
      x,          weights, scales,    bias, out, static_cast<int>(k), static_cast<int>(n),
      transposed, widens,  activation};
#ifndef JAX_GNN_EMULATED
  if constexpr (sizeof(T) <= 4) {
    if (compute_capability() == 9 && !(exact && sizeof(T) == 4) && k > 0 &&
        k * sizeof(T) % 16 == 0 && aligned(x, 16) && aligned(weights, 16) && aligned(out, 8)) {
      const auto launch_chunks = [&](auto chunks) {
        constexpr int kChunks = decltype(chunks)::value;
        return n <= 64 ? launch_tiles<HopperProduct<T, kChunks, 1>>(stream, tiles, sums, workspace)
                       : launch_tiles<HopperProduct<T, kChunks, 2>>(stream, tiles, sums, workspace);
      };
      if (k * sizeof(T) <= 128) return launch_chunks(std::integral_constant<int, 1>());
      if (sizeof(T) == 2 || k * sizeof(T) <= 256)
        return launch_chunks(std::integral_constant<int, 2>());
      if constexpr (sizeof(T) == 4) return launch_chunks(std::integral_constant<int, 4>());
    }
  }
#endif
  if (readable<16 / sizeof(T)>(x, k))
    return launch_tiles<PlainProduct<T, 16 / sizeof(T)>>(stream, tiles, sums, workspace);
  return launch_tiles<PlainProduct<T, 1>>(stream, tiles, sums, workspace);
}

}  // namespace jax_gnn::cuda
