// In place of CUDA's: copies have arrived at once.
#pragma once

#include <cstddef>
#include <cstring>

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
inline void __pipeline_commit() {}
inline void __pipeline_wait_prior(int) {}
