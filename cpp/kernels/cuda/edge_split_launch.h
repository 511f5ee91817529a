// Row sums over slots (edge_split.cuh), the host's side: in words of which size, and how slots are
// cut.
#pragma once

#include <algorithm>
#include <type_traits>

#include "../workspace.h"
#include "edge_split.cuh"
#include "launch.h"
#include "tags.h"

namespace jax_gnn::cuda {
namespace {

// Dynamic shared memory of a block: what is open where teams end, what waits for earlier blocks,
// and the ends of rows that begin before their team, or the slots of the block before.
template <typename Acc, int kVec>
size_t shared_bytes(int threads, int lanes) {
  return static_cast<size_t>(2 * threads + lanes) * kVec * sizeof(Acc);
}

// out[r, :] = row_scale[r] * sum_{j in row r} col_scale[c_j] * in[c_j, :]; a null scale means ones.
// in: (cols, width), out: (rows, width). A row without entries is zero whatever its scale. Rows
// go on with an Epilogue, or NoEpilogue. One launch. As many blocks share the slots as there
// are workspaces.
template <typename In, typename Out, typename Acc, int kVec, class RowEpilogue>
cudaError_t launch_sum(cudaStream_t stream, Turn turn, int most_threads, const EdgeSplit& split,
                       const In* in, const Acc* col_scale, const Acc* row_scale,
                       const RowEpilogue& epilogue, int64_t width, Out* out,
                       const Workspace& workspace) {
  const int64_t words = width / kVec;
  int lane_bits = 0, team_bits = 0;
  while (1 << lane_bits < 32 && (1 << lane_bits < kLeastLanes || int64_t{1} << lane_bits < words))
    ++lane_bits;
  const int lanes = 1 << lane_bits;
  while ((lanes << team_bits << 1) <= std::min(most_threads, kMaxThreads) ||
         lanes << team_bits < 32)
    ++team_bits;
  const int threads = lanes << team_bits;
  const int64_t count = std::max<int64_t>(split.num_slots - 1, 1);
  const int64_t rounds = ceil_div(count, workspace.blocks << team_bits);
  const int64_t per_block = rounds << team_bits;
  const int64_t blocks = ceil_div(count, per_block);
  const int64_t tiles = ceil_div(words, int64_t{lanes});
  if (tiles > kMaxGridY || split.num_slots > kMaxGridX || per_block > kMaxGridX)
    return cudaErrorInvalidConfiguration;
  if (!aligned(split.ids, sizeof(uint4)) || !aligned(split.places, sizeof(uint2)))
    return cudaErrorInvalidValue;
  const Sum<Acc, kVec> sum = {reinterpret_cast<const uint4*>(split.ids),
                              reinterpret_cast<const uint2*>(split.places),
                              static_cast<unsigned>(split.num_slots - 1),
                              static_cast<unsigned>(split.num_rows),
                              static_cast<unsigned>(split.num_cols),
                              col_scale,
                              row_scale,
                              lane_bits,
                              team_bits,
                              static_cast<unsigned>(rounds),
                              static_cast<unsigned>(per_block),
                              static_cast<unsigned>(words),
                              {static_cast<unsigned char*>(workspace.bytes), next_tag()}};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  const Plan plan = {grid, threads, shared_bytes<Acc, kVec>(threads, lanes)};
  const auto run = [&](auto one, auto scaled) {
    return launch(
        stream, plan,
        sum_kernel<decltype(one)::value, decltype(scaled)::value, In, Out, Acc, kVec, RowEpilogue>,
        sum, in, out, turn, epilogue);
  };
  const auto run_scaled = [&](auto scaled) {
    return rounds == 1 ? run(std::true_type{}, scaled) : run(std::false_type{}, scaled);
  };
  if constexpr (std::is_same_v<RowEpilogue, NoEpilogue> &&
                std::is_same_v<Out, Acc>)  // of the first sum only
    if (col_scale != nullptr) return run_scaled(std::true_type{});
  return run_scaled(std::false_type{});
}

template <typename In, typename Out, typename Acc, class RowEpilogue>
cudaError_t row_sums(cudaStream_t stream, Turn turn, int most_threads, const EdgeSplit& split,
                     const In* in, const Acc* col_scale, const Acc* row_scale,
                     const RowEpilogue& epilogue, int64_t width, Out* out,
                     const Workspace& workspace) {
  constexpr int kWide = 16 / sizeof(In);
  bool wide = readable<kWide>(in, width) && aligned(out, store_alignment<Out, kWide>);
  if constexpr (!std::is_same_v<RowEpilogue, NoEpilogue>)
    wide = wide && aligned(epilogue.self, store_alignment<Out, kWide>) &&
           aligned(epilogue.residual, store_alignment<Out, kWide>);
  if (wide)
    return launch_sum<In, Out, Acc, kWide>(stream, turn, most_threads, split, in, col_scale,
                                           row_scale, epilogue, width, out, workspace);
  return launch_sum<In, Out, Acc, 1>(stream, turn, most_threads, split, in, col_scale, row_scale,
                                     epilogue, width, out, workspace);
}

}  // namespace
}  // namespace jax_gnn::cuda
