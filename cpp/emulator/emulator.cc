#include "emulator.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {
namespace {

constexpr size_t kStackBytes = 128 << 10;  // sanitizers go through all of it at every switch
constexpr size_t kMaxShared = 227 << 10;   // of an H200

enum class State { kReady, kInWarp, kInBlock, kReturned };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<unsigned char[]> stack;
  dim3 place;
  State state;
  // Of the warp instruction that it waits at, or has passed.
  Instruction instruction;
  unsigned mask;
  uint64_t value;
  Lanes lanes;
  void* sanitizer;
};

std::mutex running;  // a launch at a time
std::vector<std::unique_ptr<Fiber>> fibers;
int size;        // threads of the block
int alive;       // of them, have not returned
int arrived;     // at the barrier
Fiber* current;  // nobody: the scheduler
ucontext_t scheduler;
const std::function<void()>* body;
std::vector<unsigned char> shared;
std::map<const void*, uint64_t> pairs;  // that are not taken yet, with their tags
bool arrived_value, met_value;  // of the barrier: those that have come so far; the last time

// Address sanitizer wants to know of every switch.
void* scheduler_sanitizer;
const void* scheduler_stack;
size_t scheduler_stack_bytes;
#if defined(__SANITIZE_ADDRESS__)
void leave(void** from, const void* stack, size_t bytes) {
  __sanitizer_start_switch_fiber(from, stack, bytes);
}
void enter(void* from, const void** stack, size_t* bytes) {
  __sanitizer_finish_switch_fiber(from, stack, bytes);
}
#else
void leave(void**, const void*, size_t) {}
void enter(void*, const void**, size_t*) {}
#endif

void resume(Fiber& fiber) {
  current = &fiber;
  threadIdx = fiber.place;
  leave(&scheduler_sanitizer, fiber.stack.get(), kStackBytes);
  swapcontext(&scheduler, &fiber.context);
  enter(scheduler_sanitizer, nullptr, nullptr);
  current = nullptr;
}

void yield() {
  Fiber& fiber = *current;
  leave(&fiber.sanitizer, scheduler_stack, scheduler_stack_bytes);
  swapcontext(&fiber.context, &scheduler);
  enter(fiber.sanitizer, nullptr, nullptr);
}

void release_barrier_if_all_arrived() {
  if (arrived == 0 || arrived < alive) return;
  met_value = arrived_value;
  arrived_value = false;
  arrived = 0;
  for (int i = 0; i < size; ++i)
    if (fibers[i]->state == State::kInBlock) fibers[i]->state = State::kReady;
}

// The entry of a fiber.
void start() {
  enter(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  (*body)();
  current->state = State::kReturned;
  --alive;
  release_barrier_if_all_arrived();
  leave(nullptr, scheduler_stack, scheduler_stack_bytes);
  setcontext(&scheduler);
}

void prepare(Fiber& fiber, unsigned at) {
  fiber.place = {at % blockDim.x, at / blockDim.x % blockDim.y, at / (blockDim.x * blockDim.y)};
  fiber.state = State::kReady;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, start, 0);
}

void run_block(bool backward) {
  for (int i = 0; i < size; ++i) prepare(*fibers[i], static_cast<unsigned>(i));
  alive = size;
  arrived = 0;
  arrived_value = false;
  std::fill(shared.begin(), shared.end(), 0xff);  // NaN: nobody has written it
  for (bool progress = true; progress;) {
    progress = false;
    for (int i = 0; i < size; ++i) {
      Fiber& fiber = *fibers[backward ? size - 1 - i : i];
      if (fiber.state != State::kReady) continue;
      progress = true;
      resume(fiber);
    }
  }
  for (int i = 0; i < size; ++i) {
    if (fibers[i]->state == State::kReturned) continue;
    threadIdx = fibers[i]->place;
    fail(fibers[i]->state == State::kInBlock ? "a barrier that not all threads arrive at"
                                             : "a warp instruction that not all lanes arrive at");
  }
}

}  // namespace

void fail(const char* what) {
  std::fprintf(stderr, "CUDA on a CPU: %s (block %u %u %u of %u %u %u, thread %u %u %u of %u)\n",
               what, blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z,
               threadIdx.x, threadIdx.y, threadIdx.z, blockDim.x * blockDim.y * blockDim.z);
  std::abort();
}

bool run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads < 1 || threads > 1024 || shared_bytes > kMaxShared || grid.x < 1 || grid.y < 1 ||
      grid.z < 1 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    return false;
  const std::lock_guard lock(running);
  size = static_cast<int>(threads);
  while (fibers.size() < threads) {
    fibers.push_back(std::make_unique<Fiber>());
    fibers.back()->stack.reset(new unsigned char[kStackBytes]);
  }
  shared.assign(shared_bytes, 0);
  shared.shrink_to_fit();
  body = &kernel;
  gridDim = grid;
  blockDim = block;
  bool backward = false;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        run_block(backward);
        backward = !backward;
      }
  if (!pairs.empty()) fail("words for another block, which took none of them");
  return true;
}

unsigned char* dynamic_shared() { return shared.data(); }

const Lanes& exchange(Instruction instruction, unsigned mask, uint64_t value) {
  const int index = static_cast<int>(threadIdx.x);  // blocks with warps have one dimension
  const int first = index / 32 * 32, lane = index % 32;
  if (!(mask >> lane & 1)) fail("a warp instruction whose mask leaves out a lane that runs it");
  Fiber& fiber = *current;
  fiber.state = State::kInWarp;
  fiber.instruction = instruction;
  fiber.mask = mask;
  fiber.value = value;
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    if (first + i >= size) fail("a warp instruction that names a lane that is not there");
    const Fiber& other = *fibers[first + i];
    if (other.state == State::kReturned)
      fail("a warp instruction that names a lane that has returned");
    if (other.state != State::kInWarp || other.mask != mask) {
      yield();  // until the last one comes
      return fiber.lanes;
    }
    if (other.instruction != instruction) fail("lanes of a warp at different instructions");
  }
  Lanes all = {};
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) all[i] = fibers[first + i]->value;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) {
      fibers[first + i]->lanes = all;
      fibers[first + i]->state = State::kReady;
    }
  return fiber.lanes;
}

void note_pair(const void* at, uint64_t tag) {
  const auto [entry, is_new] = pairs.emplace(at, tag);
  if (is_new) return;
  if (entry->second != ~tag)
    fail("a second pair of words for a block that has not taken the first");
  pairs.erase(entry);
}

bool meet(bool value) {
  arrived_value |= value;
  ++arrived;
  current->state = State::kInBlock;
  release_barrier_if_all_arrived();
  if (current->state != State::kReady) yield();
  return met_value;
}

}  // namespace emulator
