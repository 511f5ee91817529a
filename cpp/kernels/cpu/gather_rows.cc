#include "gather_rows.h"

#include "pages.h"
#include "vector.h"

namespace jax_gnn::cpu {
namespace {

constexpr int64_t kAhead = 16;  // rows that are prefetched

// In pieces of kBytes, the last of which may overlap the one before.
template <int kBytes>
JAX_GNN_INLINE void copy_row(const char* from, int64_t bytes, char* to) {
  struct Piece {
    char data[kBytes];
  };
  for (int64_t b = 0; b < bytes; b += kBytes) {
    const int64_t at = std::min(b, bytes - kBytes);
    Piece piece;
    std::memcpy(&piece, from + at, kBytes);
    std::memcpy(to + at, &piece, kBytes);
  }
}

template <int kBytes>
JAX_GNN_INLINE void gather(const int32_t* ids, int64_t begin, int64_t end, int64_t last,
                           int64_t num_rows, const char* in, int64_t row_bytes, char* out) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t ahead = ids[std::min(i + kAhead, last)], id = ids[i];
    if (in_range(ahead, num_rows))
      prefetch(in + ahead * row_bytes, std::min<int64_t>(row_bytes, 512));
    char* const to = out + i * row_bytes;
    if (in_range(id, num_rows)) {
      copy_row<kBytes>(in + id * row_bytes, row_bytes, to);
    } else {
      std::memset(to, 0, row_bytes);
    }
  }
}

}  // namespace

void gather_rows(const ParallelFor& parallel_for, const int32_t* ids, int64_t count,
                 int64_t num_rows, const char* in, int64_t row_bytes, char* out) {
  expect_writes(out, count * row_bytes);
  const int64_t tasks = task_count(static_cast<double>(count) * (row_bytes + 16) / 4, 1024);
  parallel_for(tasks, [&](int64_t task) {
    const int64_t begin = even_share(count, task, tasks), end = even_share(count, task + 1, tasks);
    with_vectors([&](auto) JAX_GNN_LAMBDA {
      const auto run = [&](auto bytes) JAX_GNN_LAMBDA {
        gather<decltype(bytes)::value>(ids, begin, end, count - 1, num_rows, in, row_bytes, out);
      };
      if (row_bytes >= 32) return run(std::integral_constant<int, 32>{});
      if (row_bytes >= 8) return run(std::integral_constant<int, 8>{});
      if (row_bytes >= 4) return run(std::integral_constant<int, 4>{});
      return run(std::integral_constant<int, 1>{});
    });
  });
}

}  // namespace jax_gnn::cpu
