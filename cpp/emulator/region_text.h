// In place of a runtime compiler's cubin: a shared object with one function, which runs a whole
// launch of the kernel of a text. It has an emulator of its own.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "../kernels/cuda/edge_channel_walk.cuh"
#include "../kernels/cuda/edge_tile_walk.cuh"
#include "emulator.cc"

namespace emulator {

template <typename... Parameters, size_t... kPlaces>
bool run_by_address(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                    void** parameters, std::index_sequence<kPlaces...>) {
  const std::tuple<std::decay_t<Parameters>...> copies(
      *static_cast<std::decay_t<Parameters>*>(parameters[kPlaces])...);
  return run(grid, block, shared, [&] { std::apply(kernel, copies); });
}
template <typename... Parameters>
bool run_by_address(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                    void** parameters) {
  return run_by_address(kernel, grid, block, shared, parameters,
                        std::index_sequence_for<Parameters...>());
}

}  // namespace emulator

// The function of an instantiated kernel.
#define JAX_GNN_REGION(name, ...)                                                                 \
  extern "C" __attribute__((visibility("default"))) bool name(dim3 grid, dim3 block,              \
                                                              size_t shared, void** parameters) { \
    return emulator::run_by_address(__VA_ARGS__, grid, block, shared, parameters);                \
  }
