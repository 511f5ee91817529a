// Runs CUDA kernels on a CPU, one thread at a time: for tests on machines without a GPU.
//
// The headers of this folder stand for those of CUDA, so that a C++ compiler builds the kernels as
// they are. A thread of a block is a fiber, which runs until it waits for others. Blocks run one
// after another, in order: a kernel may wait for an earlier block, and one that waits for a later
// one is found out. So is a barrier or a warp instruction that not all arrive at which it names.
// The order of threads changes from block to block; what else would show a race, a real GPU and
// compute-sanitizer must say.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Of the thread that runs.
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

// Ends the process, with a message and the place of the running thread.
[[noreturn]] void fail(const char* what);

// Calls `kernel` in every thread of every block. False: no GPU would take such a launch.
bool run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel);

// The block's dynamic shared memory.
unsigned char* dynamic_shared();

// What a warp instruction is, so that threads which meet at different ones are found out.
enum class Instruction { kSync, kBallot, kShuffle };

// Waits for the lanes of `mask`, and gives the values that all these have brought.
using Lanes = std::array<uint64_t, 32>;
const Lanes& exchange(Instruction instruction, unsigned mask, uint64_t value);

// Waits for all threads of the block that have not returned; whether any brought true.
bool meet(bool value);

// A pair of words was written for another block, of which the second is a tag; the one that takes
// it writes the tag's complement there. A launch must not end before all are taken.
void note_pair(const void* at, uint64_t tag);

}  // namespace emulator
