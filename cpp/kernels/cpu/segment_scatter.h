// Reductions by ids in any order, without a sort: for large results, where each entry misses the
// cache. Each unit that includes this instantiates some.
#pragma once

#include <algorithm>

#include "pages.h"
#include "segment_ops.h"
#include "segment_reduce.h"

namespace jax_gnn::cpu {
namespace {

// A task has a rectangle of the result to itself, and goes through all ids for it. So each number
// is reduced in the order of the entries, for any number of tasks.
template <typename Op, typename T, typename Index>
struct Scatter {
  static_assert(kResultIsState<Op>);
  static constexpr int64_t kMaxEntries = 1024, kBytes = 1 << 16, kAhead = 16;
  const Index* ids;
  int64_t count, num_rows;
  const T* in;
  int64_t width;
  T* out;
  Op op;

  JAX_GNN_INLINE void fill(int64_t row, int64_t last_row, int64_t first, int64_t last) const {
    const T identity = op.leave(Op::kIdentity, 0);
    if (last - first == width) {
      std::fill(out + row * width, out + last_row * width, identity);
    } else {
      for (; row < last_row; ++row)
        std::fill(out + row * width + first, out + row * width + last, identity);
    }
  }

  JAX_GNN_INLINE void operator()(int64_t row, int64_t last_row, int64_t first, int64_t last) const {
    fill(row, last_row, first, last);
    const int64_t row_bytes = (last - first) * static_cast<int64_t>(sizeof(T));
    const int64_t block =
        std::clamp<int64_t>(kBytes / std::max<int64_t>(row_bytes, 1), 16, kMaxEntries);
    for (int64_t begin = 0; begin < count; begin += block) {
      // The entries of a block that are the task's, without a branch for each.
      int32_t entries[kMaxEntries + kAhead];
      int64_t size = 0;
      const int64_t end = std::min(block, count - begin);
      for (int64_t e = 0; e < end; ++e) {
        entries[size] = static_cast<int32_t>(e);
        size += in_range(static_cast<int64_t>(ids[begin + e]) - row, last_row - row);
      }
      if (size == 0) continue;
      std::fill_n(entries + size, kAhead, entries[size - 1]);
      cover_once<Op::kMaxTile>(first, last, [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
        join<decltype(tile)::value>(begin, entries, size, column);
      });
    }
  }

  template <int kTile>
  JAX_GNN_INLINE void join(int64_t begin, const int32_t* entries, int64_t size,
                           int64_t column) const {
    constexpr int kLanes = Shape<T, kTile>::kLanes;
    using V = typename Shape<T, kTile>::V;
    const T* const source = in + begin * width + column;
    const auto target = [&](int32_t e) JAX_GNN_LAMBDA {
      return out + static_cast<int64_t>(ids[begin + e]) * width + column;
    };
    for (int64_t k = 0; k < size; ++k) {
      prefetch(target(entries[k + kAhead]), kTile * sizeof(T));
      T* const to = target(entries[k]);
      const T* const from = source + entries[k] * width;
      unrolled<Shape<T, kTile>::kVectors>([&](int v) JAX_GNN_LAMBDA {
        V state, message;
        std::memcpy(&state, to + v * kLanes, sizeof state);
        std::memcpy(&message, from + v * kLanes, sizeof message);
        state = op.leave(Op::join(op.enter(state), op.enter(message)), 1);
        std::memcpy(to + v * kLanes, &state, sizeof state);
      });
    }
  }
};

}  // namespace

template <typename T, typename Index>
void segment_scatter(const ParallelFor& parallel_for, int64_t threads, const Index* ids,
                     int64_t count, int64_t num_rows, Reduce reduce, const T* in, int64_t width,
                     T* out) {
  if (std::is_sorted(ids, ids + count)) {
    const Csr<Index> csr = {ids, nullptr, nullptr, count, num_rows, count, 0};
    return segment_reduce<T, T>(parallel_for, csr, reduce, in, nullptr, {width, 1}, {}, out);
  }
  expect_writes(out, num_rows * width);
  constexpr int64_t kLine = 64 / sizeof(T), kMaxOwners = 16;
  const int64_t lines = (width + kLine - 1) / kLine;
  const int64_t parts = std::clamp<int64_t>(lines, 1, threads);  // of the columns
  const int64_t owners = std::clamp<int64_t>(threads / parts, 1, kMaxOwners);
  with_operation<T>(reduce, [&](const auto& op) {
    const Scatter<std::decay_t<decltype(op)>, T, Index> scatter = {ids,   count, num_rows, in,
                                                                   width, out,   op};
    parallel_for(parts * owners, [&](int64_t task) {
      const int64_t part = task % parts, owner = task / parts;
      const auto cut = [&](int64_t i) {
        return std::min(even_share(lines, i, parts) * kLine, width);
      };
      with_vectors([&](auto) JAX_GNN_LAMBDA {
        scatter(even_share(num_rows, owner, owners), even_share(num_rows, owner + 1, owners),
                cut(part), cut(part + 1));
      });
    });
  });
}

}  // namespace jax_gnn::cpu
