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

template <int kBytes>
void copy_or_zeros(bool valid, const void* from, void* to) {
  copy_async<kBytes>(valid, from, to);
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
inline bool wait_unless(bool complete) {
  if (!complete) emulator::fail("waits for what no block before has written");
  return false;
}

inline float approximate_reciprocal(float x) { return 1 / x; }

inline float approximate_exp2(float x) { return std::exp2(x); }

inline float approximate_log2(float x) { return std::log2(x); }

inline float approximate_tanh(float x) { return std::tanh(x); }

inline float max_or_nan(float a, float b) { return a != a || b != b ? NAN : std::fmax(a, b); }
inline float min_or_nan(float a, float b) { return a != a || b != b ? NAN : std::fmin(a, b); }

inline unsigned to_tf32(unsigned bits) {
  return std::isfinite(__uint_as_float(bits)) ? (bits + 0x1000) & ~0x1fffu : bits;
}

inline unsigned nearly_tf32(float x) { return __float_as_uint(x * 1.00034180f) & ~0x1fffu; }

inline void multiply_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const auto lanes = [](unsigned first, unsigned second) {
    return emulator::exchange(emulator::Instruction::kShuffle, ~0u,
                              static_cast<uint64_t>(second) << 32 | first);
  };
  const emulator::Lanes left[] = {lanes(a[0], a[1]), lanes(a[2], a[3])}, right = lanes(b[0], b[1]);
  const auto number = [](uint64_t pair, int second) {
    const auto bits = static_cast<unsigned>(pair >> 32 * second);
    if (to_tf32(bits) != bits) emulator::fail("a number that is not rounded to tf32");
    return __uint_as_float(bits);
  };
  const int lane = static_cast<int>(threadIdx.x % 32), row = lane / 4, column = lane % 4 * 2;
  for (int e = 0; e < 4; ++e)
    for (int k = 0; k < 8; ++k)
      sum[e] += number(left[k / 4][row * 4 + k % 4], e / 2) *
                number(right[(column + e % 2) * 4 + k % 4], k / 4);
}

}  // namespace jax_gnn::cuda
