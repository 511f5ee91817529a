// Products of rows with their group's weights, the host's side: which kernel of segment_matmul.cuh
// takes the operands, in tiles of which size.
#pragma once

#include <algorithm>
#include <type_traits>

#include "launch.h"
#include "segment_matmul.cuh"
#include "segment_matmul.h"
#ifndef JAX_GNN_EMULATED
#include "tensor_map.h"
#endif

namespace jax_gnn::cuda {
namespace {

// Blocks of a persistent grid: no more than there are tiles, nor than fit on the GPU at once.
inline unsigned num_blocks(const MatmulSchedule& schedule, const Groups& groups, int tile_rows,
                           int blocks_per_multiprocessor) {
  const int64_t tiles = ceil_div(groups.num_rows, tile_rows) + groups.num_sizes + 1;
  return static_cast<unsigned>(
      std::clamp<int64_t>(std::min(schedule.blocks, tiles), 1,
                          int64_t{num_multiprocessors()} * blocks_per_multiprocessor));
}

#ifndef JAX_GNN_EMULATED
template <class Shape, typename T, typename Out>
cudaError_t launch_hopper(cudaStream_t stream, const MatmulSchedule& schedule, const Groups& groups,
                          const Product<T, Out>& product) {
  const auto kernel = hopper_matmul_kernel<Shape, T, Out>;
  TensorMap rows = {};
  if (!Shape::kGathers) {
    JAX_GNN_RETURN_IF_CUDA_ERROR(
        describe(product.lhs, groups.num_rows, product.k, Shape::kRows, Shape::kChunks, rows));
  }
  const dim3 grid(num_blocks(schedule, groups, Shape::kRows, Shape::kBlocks),
                  static_cast<unsigned>(ceil_div(product.n, Shape::kColumns)));
  return launch(stream, {grid, Shape::kThreads, Shape::kSharedBytes}, kernel, rows, groups, product,
                static_cast<int>(schedule.chunk));
}

template <int kChunks, typename T>
cudaError_t launch_single(cudaStream_t stream, const Groups& groups, const Product<T, T>& product) {
  using Shape = SingleTile<T, kChunks>;
  const int64_t tiles = ceil_div(groups.num_rows, Shape::kRows) + groups.num_sizes + 1;
  const dim3 grid(static_cast<unsigned>(tiles),
                  static_cast<unsigned>(ceil_div(product.n, Shape::kColumns)));
  return launch(stream, {grid, Shape::kThreads, Shape::kSharedBytes},
                single_matmul_kernel<Shape, T>, groups, product);
}

// Whether the kernels for Hopper have a variant for lists: not where the product widens, to be
// compiled in half the time.
template <typename T, typename Out>
constexpr bool kTakesLists = std::is_same_v<T, Out>;

template <typename T, int kChunks, typename Out>
cudaError_t launch_chunks(cudaStream_t stream, const MatmulSchedule& schedule, const Groups& groups,
                          const Product<T, Out>& product) {
  constexpr int kLargest = kChunks == 1 ? 128 : 64;
  const auto with_columns = [&](auto columns) {
    constexpr int kWarpgroups = decltype(columns)::value;
    const auto with = [&](auto shape) {
      return launch_hopper<decltype(shape)>(stream, schedule, groups, product);
    };
    if constexpr (kTakesLists<T, Out>) {
      const bool gathers = product.lists.lhs_rows != nullptr || product.lists.scale != nullptr;
      if constexpr (kChunks == 8)  // too wide for two warps to fetch; more leave no room for others
        if (gathers && product.lists.out_rows == nullptr)
          return with(HopperTile<T, Out, kChunks, kWarpgroups, 64, Order::kGathered>());
      if (gathers) return with(HopperTile<T, Out, kChunks, kWarpgroups, 64, Order::kListed>());
      if (product.lists.out_rows != nullptr)
        return with(HopperTile<T, Out, kChunks, kWarpgroups, 64, Order::kScattered>());
    }
    return schedule.tile < kLargest
               ? with(HopperTile<T, Out, kChunks, kWarpgroups, 64, Order::kInPlace>())
               : with(HopperTile<T, Out, kChunks, kWarpgroups, kLargest, Order::kInPlace>());
  };
  if constexpr (kChunks < 8)
    if (product.n > 64) return with_columns(std::integral_constant<int, 2>());
  return with_columns(std::integral_constant<int, 1>());
}
#endif

}  // namespace

template <typename T, typename Acc, typename Out>
cudaError_t segment_matmul(cudaStream_t stream, const MatmulSchedule& schedule,
                           const Groups& groups, int64_t k, int64_t n, bool transposed, bool exact,
                           Activation activation, const T* lhs, const T* rhs, const T* bias,
                           const Out* residual, const RowLists<Acc>& lists, Out* out) {
  constexpr int64_t kMax = 1 << 30;
  if (groups.num_rows <= 0 || n <= 0) return cudaSuccess;
  if (k > kMax || n > kMax || groups.num_rows > 0x7fffffff || lists.num_lhs > 0x7fffffff ||
      groups.num_sizes > kMax)
    return cudaErrorInvalidValue;
  const Product<T, Out> product = {lhs,
                                   rhs,
                                   bias,
                                   residual,
                                   out,
                                   static_cast<int>(k),
                                   static_cast<int>(n),
                                   transposed,
                                   aligned(out, 16),
                                   activation,
                                   lists};
#ifndef JAX_GNN_EMULATED
  if constexpr (sizeof(T) <= 4) {
    const int64_t chunks = ceil_div(k * sizeof(T), kChunkBytes);
    if ((kTakesLists<T, Out> || !lists.any()) && compute_capability() == 9 &&
        !(exact && sizeof(T) == 4) && k > 0 && chunks <= 8 && k * sizeof(T) % 16 == 0 &&
        aligned(lhs, 16) && aligned(rhs, transposed ? 16 : 8) && aligned(residual, 8) &&
        aligned(out, 8)) {
      if constexpr (std::is_same_v<T, Out>)
        if (schedule.single)
          return chunks <= 1 ? launch_single<1>(stream, groups, product)
                             : launch_single<2>(stream, groups, product);
      if (chunks <= 1) return launch_chunks<T, 1>(stream, schedule, groups, product);
      if (chunks <= 2) return launch_chunks<T, 2>(stream, schedule, groups, product);
      if (chunks <= 4) return launch_chunks<T, 4>(stream, schedule, groups, product);
      return launch_chunks<T, 8>(stream, schedule, groups, product);
    }
  }
#endif
  const auto plain = [&](auto tiles) {
    using Tiles = decltype(tiles);
    const dim3 grid(num_blocks(schedule, groups, Tiles::kRows, 3),
                    static_cast<unsigned>(ceil_div(n, kTileColumns)));
    if (grid.y > kMaxGridY) return cudaErrorInvalidConfiguration;
    return launch(stream, {grid, kTileThreads, 0}, plain_matmul_kernel<Tiles, T, Out>, groups,
                  product);
  };
  constexpr int kRows = sizeof(T) == 8 ? 64 : 128;
  return exact ? plain(HighestProduct<T, kRows>()) : plain(DefaultProduct<T, kRows>());
}

}  // namespace jax_gnn::cuda
