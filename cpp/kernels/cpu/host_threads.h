// Threads for work on the host, where XLA lends none.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "parallel.h"

namespace jax_gnn::cpu {

// Loops on as many threads as so many items are worth. The calling thread is one of them, and the
// only one where the system refuses others. What a task throws is thrown again.
inline ParallelFor host_threads(int64_t items) {
  constexpr int64_t kItems = 1 << 17, kMaxThreads = 16;
  int64_t num_threads = std::clamp<int64_t>(items / kItems, 1, kMaxThreads);
  if (num_threads > 1)
    num_threads = std::min<int64_t>(num_threads, std::thread::hardware_concurrency());
  return [num_threads](int64_t count, const std::function<void(int64_t)>& task) {
    std::atomic<int64_t> next{0};
    std::exception_ptr error;
    std::mutex lock;
    const auto work = [&] {
      try {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(i);
      } catch (...) {
        const std::lock_guard<std::mutex> locked(lock);
        error = std::current_exception();
        next = count;
      }
    };
    std::vector<std::thread> threads;
    try {
      while (static_cast<int64_t>(threads.size()) + 1 < std::min(count, num_threads))
        threads.emplace_back(work);
    } catch (const std::system_error&) {
    }
    work();
    for (std::thread& thread : threads) thread.join();
    if (error) std::rethrow_exception(error);
  };
}

}  // namespace jax_gnn::cpu
