// In place of kernels/cuda/ptx.cuh: the same functions in C++.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstring>

namespace jax_gnn::cuda {

// Launches do not overlap.
inline void trigger_next_launch() {}
inline void synchronize_with_previous_launch() {}

inline unsigned char* dynamic_shared() { return emulator::dynamic_shared(); }

template <typename Word>
void load_if(bool valid, const Word* from, Word& value) {
  if (valid) value = *emulator::checked(from);
}

template <typename Word>
void load_once_if(bool valid, const Word* from, Word& value) {
  load_if(valid, from, value);
}

inline float reciprocal(float x) { return 1 / x; }

template <typename Word>
void load_below(unsigned id, unsigned bound, const Word* from, Word& word) {
  load_if(id < bound, from, word);
}

template <typename Word>
void store_below(unsigned id, unsigned bound, Word* to, Word word) {
  if (id < bound) *emulator::checked(to) = word;
}

template <typename Word>
void load_word(const Word* from, Word& word) {
  word = *emulator::checked(from);
}

template <typename Word>
void load_always(const Word* from, Word& word) {
  word = *emulator::checked(from);
}

inline uint64_t multiply_add(unsigned a, unsigned b, uint64_t c) { return uint64_t{a} * b + c; }

template <typename T>
void hide(T&) {}

template <int kBytes>
void copy_async(bool valid, const void* from, void* to) {
  if (reinterpret_cast<uintptr_t>(from) % kBytes != 0 && valid)
    emulator::fail("a copy from where it is not aligned");
  if (valid)
    std::memcpy(to, from, kBytes);
  else
    std::memset(to, 0, kBytes);
}

inline void write_pair(void* to, uint64_t first, uint64_t second) {
  const uint64_t pair[] = {first, second};
  if (reinterpret_cast<uintptr_t>(to) % sizeof pair != 0)
    emulator::fail("a pair that is not aligned");
  emulator::note_pair(to, second);
  std::memcpy(to, pair, sizeof pair);
}
inline void read_pair(const void* from, uint64_t& first, uint64_t& second) {
  uint64_t pair[2];
  std::memcpy(pair, from, sizeof pair);
  first = pair[0];
  second = pair[1];
}
// Blocks run in order: what has not been written will not be.
inline bool wait_unless(bool there) {
  if (!there) emulator::fail("waits for what no block before has written");
  return false;
}

inline float approximate_reciprocal(float x) { return 1 / x; }

inline float approximate_exp2(float x) { return std::exp2(x); }

inline float approximate_log2(float x) { return std::log2(x); }

inline float approximate_tanh(float x) { return std::tanh(x); }

inline float max_or_nan(float a, float b) { return a != a || b != b ? NAN : std::fmax(a, b); }
inline float min_or_nan(float a, float b) { return a != a || b != b ? NAN : std::fmin(a, b); }

}  // namespace jax_gnn::cuda
