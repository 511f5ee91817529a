// Tags of launches, which tell the words that one launch leaves in a workspace from all others
// (segment_tails.cuh).
#pragma once

#include <atomic>
#include <cstdint>
#include <random>

namespace jax_gnn::cuda {

// A tag that no other launch of the process has. Any thread may ask.
inline uint64_t next_tag() {
  static std::atomic<uint64_t> launches{[] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }()};
  uint64_t x = launches.fetch_add(0x9e3779b97f4a7c15);  // splitmix64
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace jax_gnn::cuda
