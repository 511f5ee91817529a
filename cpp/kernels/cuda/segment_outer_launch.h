// Sums of outer products, the host's side: which kernel of segment_outer.cuh takes the operands,
// and what follows it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "launch.h"
#include "segment_matmul.h"
#include "segment_outer.cuh"
#ifndef JAX_GNN_EMULATED
#include "tensor_map.h"
#endif

namespace jax_gnn::cuda {
namespace {

#ifndef JAX_GNN_EMULATED
template <class Shape, class Kernel, typename T, typename Out>
cudaError_t launch_tiles(cudaStream_t stream, Kernel kernel, const Groups& groups, unsigned blocks,
                         const OuterProduct<T, Out>& product) {
  TensorMap lhs = {}, rhs = {};
  if (!Shape::kLists) {
    JAX_GNN_RETURN_IF_CUDA_ERROR(
        describe(product.lhs, groups.num_rows, product.k, Shape::kRows, Shape::kChunks, lhs));
    JAX_GNN_RETURN_IF_CUDA_ERROR(
        describe(product.rhs, groups.num_rows, product.n, Shape::kRows, Shape::kChunks, rhs));
  }
  const dim3 grid(blocks, static_cast<unsigned>(ceil_div(product.k, Shape::kTile) *
                                                ceil_div(product.n, Shape::kTile)));
  return launch(stream, {grid, Shape::kThreads, Shape::Ring::kSharedBytes}, kernel, lhs, rhs,
                groups, product);
}
#endif

template <class Tiles, typename T, typename Out>
cudaError_t launch_plain(cudaStream_t stream, const Groups& groups, unsigned blocks,
                         const OuterProduct<T, Out>& product) {
  const int64_t slices = ceil_div(product.k, Tiles::kRows) * ceil_div(product.n, kTileColumns);
  if (slices > kMaxGridY) return cudaErrorInvalidConfiguration;
  return launch(stream, {dim3(blocks, static_cast<unsigned>(slices)), kTileThreads, 0},
                plain_outer_kernel<Tiles, T, Out>, groups, product, 256);
}

}  // namespace

template <typename T, typename Acc, typename Out>
cudaError_t segment_outer(cudaStream_t stream, const MatmulSchedule& schedule, const Groups& groups,
                          int64_t k, int64_t n, bool exact, bool deterministic, const T* lhs,
                          const T* rhs, const FactorLists<Acc>& lists, Out* out, void* workspace) {
  constexpr int64_t kMax = 1 << 24;
  if (groups.num_groups <= 0 || k <= 0 || n <= 0) return cudaSuccess;
  if (k > kMax || n > kMax || groups.num_rows > 0x7fffffff || groups.num_sizes > 1 << 30)
    return cudaErrorInvalidValue;
  const bool atomic = !deterministic && std::is_same_v<Out, Acc>;
  OuterProduct<T, Out> product = {lhs,
                                  rhs,
                                  out,
                                  static_cast<int>(k),
                                  static_cast<int>(n),
                                  atomic,
                                  schedule.chunk == 0,
                                  {static_cast<Acc*>(workspace), k * n, 0},
                                  lists};
  const int64_t blocks = std::max<int64_t>(schedule.blocks, 1);
  product.workspace.blocks = blocks;
  if (atomic) {
    const int64_t size = groups.num_groups * k * n;
    const auto filling = static_cast<unsigned>(std::min<int64_t>(ceil_div(size, 1024), 1056));
    JAX_GNN_RETURN_IF_CUDA_ERROR(
        launch(stream, {dim3(filling), 256, 0}, zero_kernel<Out>, out, size));
  }
  const auto grid_x = static_cast<unsigned>(blocks);
  const auto sum_up = [&]() -> cudaError_t {
#ifndef JAX_GNN_EMULATED
    if constexpr (sizeof(T) <= 4) {
      // Half types go from memory to matrix units as they lie: nothing can scale them on the way.
      // And products that widen have no variant for lists, to be compiled in half the time.
      constexpr bool kTakesLists = std::is_same_v<T, Out>;
      const bool takes_lists = kTakesLists && (lists.scale == nullptr || sizeof(T) == 4);
      const int capability = compute_capability();
      const bool large = capability >= 9 && max_shared_memory() >= 227 * 1024;
      if ((takes_lists || !lists.any()) && !(exact && sizeof(T) == 4) && large &&
          groups.num_rows > 0 && k * sizeof(T) % 16 == 0 && n * sizeof(T) % 16 == 0 &&
          aligned(lhs, 16) && aligned(rhs, 16)) {
        const auto by_warps = [&](auto tile) {
          constexpr int kTile = decltype(tile)::value;
          const auto with = [&](auto shape) {
            using Shape = decltype(shape);
            return launch_tiles<Shape>(stream, warp_outer_kernel<Shape, T, Out>, groups, grid_x,
                                       product);
          };
          if constexpr (kTakesLists)
            if (product.lists.any()) return with(OuterTile<T, kTile, true>());
          return with(OuterTile<T, kTile, false>());
        };
        const int64_t larger = std::max(k, n);
        constexpr std::integral_constant<int, 64> k64;
        constexpr std::integral_constant<int, 128> k128;
        if constexpr (sizeof(T) == 2)
          if (capability == 9) {
            const auto by_warpgroups = [&](auto tile) {
              constexpr int kTile = decltype(tile)::value;
              const auto with = [&](auto shape) {
                using Shape = decltype(shape);
                return launch_tiles<Shape>(stream, warpgroup_outer_kernel<Shape, T, Out>, groups,
                                           grid_x, product);
              };
              if constexpr (kTakesLists)
                if (product.lists.any()) return with(WarpgroupTile<T, kTile, true>());
              return with(WarpgroupTile<T, kTile, false>());
            };
            return larger <= 64 ? by_warpgroups(k64) : by_warpgroups(k128);
          }
        if (larger <= 32) return by_warps(std::integral_constant<int, 32>{});
        return larger <= 64 ? by_warps(k64) : by_warps(k128);
      }
    }
#endif
    return exact ? launch_plain<HighestProduct<T, 64>>(stream, groups, grid_x, product)
                 : launch_plain<DefaultProduct<T, 64>>(stream, groups, grid_x, product);
  };
  const cudaError_t error = sum_up();
  if (error != cudaSuccess || atomic) return error;
  const auto combine = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    const auto slices = std::min<int64_t>(ceil_div(k * n, 32 * kVec), 1 << 16);
    return launch(stream, {dim3(static_cast<unsigned>(slices)), kCombineThreads, 0},
                  combine_outer_kernel<kVec, T, Out>, groups, product);
  };
  if constexpr (sizeof(T) <= 4)
    if (k * n % 4 == 0 && k * n > 8192) return combine(std::integral_constant<int, 4>{});
  return combine(std::integral_constant<int, 1>{});
}

}  // namespace jax_gnn::cuda
