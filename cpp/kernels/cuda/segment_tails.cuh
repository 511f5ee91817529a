// How a run that spans blocks is completed: by tails, handed from block to block through the
// workspace.
//
// The ids on either side of a block's first entry say whether a run crosses into it: those of valid
// rows do. A block is *passed* if the run that crosses into it crosses out of it too. A block that
// is crossed into but not passed *takes* the tail of the block before it, and while those are
// passed, of the blocks before, back to where the run begins. So that this takes few steps, every
// kRelayEvery-th block is a relay: if it is passed, it takes the run's tails since the last relay,
// and hands them on with its own.
//
// Who writes a tail and who takes it follows from these ids alone, whatever they are: a block that
// is crossed out of writes its tail, and exactly one takes it. Blocks wait for earlier blocks only,
// which start earlier (as in CUB's decoupled look-back, of which this is the case without a chain
// of sums). Hence nobody waits for ever.
//
// The workspace may hold anything at first. Hence a tail is made of words of 16 bytes, of which 8
// are the launch's tag, a 64-bit random number: words are read and written at once (PTX: accesses
// of .b128 are atomic), so whoever finds the tag has the other 8 bytes too, and needs no fence. The
// same launch replayed from a graph has the same tag: whoever takes a word removes the tag, and all
// are taken before the launch ends, so that a replay finds none that it has not written itself.
#pragma once

#include "segment_messages.cuh"
#include "segment_ops.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kRelayEvery = 32;  // blocks, a power of two

// The tails that a block takes of a run in so many blocks before it, in order: those of relays, if
// there are any between, then what no relay has taken.
struct Chain {
  int first_relay, num_relays, rest, num_tails;

  __device__ __forceinline__ Chain(int block, int length) {
    const int begin = block - length;
    const int last_relay = (block & -kRelayEvery) - 1;
    first_relay = begin | (kRelayEvery - 1);
    num_relays = (last_relay - first_relay + kRelayEvery) / kRelayEvery;
    rest = max(begin, last_relay + 1);
    num_tails = num_relays + block - rest;
  }
  __device__ __forceinline__ int block_of(int i) const {
    return i < num_relays ? first_relay + i * kRelayEvery : rest + i - num_relays;
  }
};

// The number of blocks that the run crossing into this one reaches back: one, and all passed ones.
// Called by whole warps. `passed`: whether the run enters a block, any from 1 on, at its first
// entry.
template <class Passed>
__device__ __forceinline__ int blocks_of_run(int block, bool relays, const Passed& passed) {
  const int max_length = relays ? kRelayEvery - 1 : block;
  int length = 1;
  for (bool begins = false; !begins && length < max_length;) {
    bool pass_flags[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int other = block - length - static_cast<int>(threadIdx.x % 32) - 32 * i;
      const bool is_passed = passed(max(other, 1));
      pass_flags[i] = other > 0 && is_passed;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (!begins) {
        const unsigned stops = __ballot_sync(kWholeWarp, !pass_flags[i]);
        begins = stops != 0;
        length += begins ? __ffs(stops) - 1 : 32;
      }
  }
  return min(length, max_length);
}

// The tails of blocks, in the workspace.
template <class Op, typename Acc>
struct Tails {
  static constexpr int kWords = (Op::kParts * static_cast<int>(sizeof(Acc)) + 7) / 8;
  static constexpr int kBatch = kWords < 4 ? 4 / kWords : 1;  // tails that are waited for at once
  static_assert(kWords * 16 <= 4 * Op::kRoom * static_cast<int>(sizeof(Acc)) * Op::kVec,
                "workspace_bytes");

  unsigned char* base;  // [block][word][lane of all tiles]
  uint64_t tag;

  __device__ __forceinline__ void put(int64_t block, const Column& column, int64_t width,
                                      const Acc (&run)[Op::kParts]) const {
    if (!column.active) return;
    uint64_t words[kWords] = {};
    memcpy(words, run, sizeof(run));
#pragma unroll
    for (int i = 0; i < kWords; ++i) write_pair(word(block, i, column, width), words[i], tag);
  }

  // Appends some of a chain's tails to the run, from `first` on and before `last`, in order.
  __device__ __forceinline__ void take(int first, int last, const Chain& chain,
                                       const Column& column, int64_t width,
                                       Acc (&run)[Op::kParts]) const {
    if (!column.active) return;
#pragma unroll 1
    for (int at = first; at < last; at += kBatch) {
      uint64_t words[kBatch][kWords];
      bool complete;
      do {
        complete = true;
#pragma unroll
        for (int j = 0; j < kBatch; ++j)
#pragma unroll
          for (int i = 0; i < kWords; ++i)
            if (at + j < last) {
              uint64_t word_tag;
              read_pair(word(chain.block_of(at + j), i, column, width), words[j][i], word_tag);
              complete &= word_tag == tag;
            }
      } while (wait_unless(complete));
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (at + j < last) {
#pragma unroll
          for (int i = 0; i < kWords; ++i)
            write_pair(word(chain.block_of(at + j), i, column, width), 0, ~tag);
          Acc part[Op::kParts];
          memcpy(part, words[j], sizeof(part));
          append<Op>(run, part);
        }
    }
  }

 private:
  __device__ __forceinline__ unsigned char* word(int64_t block, int i, const Column& column,
                                                 int64_t width) const {
    return base + 16 * ((block * kWords + i) * (width / Op::kVec) + column.first / Op::kVec);
  }
};

}  // namespace
}  // namespace jax_gnn::cuda
