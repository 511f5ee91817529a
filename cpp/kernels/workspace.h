// Scratch memory of kernels: what blocks leave for one another.
#pragma once

#include <cstdint>

namespace jax_gnn {

// Bytes that a block of entries hands to the blocks that its first and its last row reach into: 64,
// then four accumulators a feature. Multiples of 16 bytes.
constexpr int64_t workspace_bytes(int64_t width, int64_t acc_bytes) {
  return 64 + 2 * ((2 * width * acc_bytes + 15) / 16 * 16);
}

// The parts of all blocks.
struct Workspace {
  void* bytes;  // aligned to 16
  int64_t blocks;
};

}  // namespace jax_gnn
