// How rows of sorted entries are dealt out to tasks and put together again.
//
// Entries and ends of rows form one sequence, in which the end of a row follows its entries; tasks
// take even shares of it. One giant row, a million empty ones, or anything between makes even work.
// A task ends the rows whose ends it has. What it has of the row after those is a partial result;
// partial results of a row are combined in the order of the tasks. The cut depends on sizes and ids
// alone: the same bits for any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "../segments.h"
#include "parallel.h"
#include "vectorize.h"

namespace jax_gnn::cpu {

// A share starts at an entry and at the row whose end comes next.
struct Position {
  int64_t entry, row;
};

// The first of [low, high) for which `predicate` does not hold.
template <typename Predicate>
int64_t partition(int64_t low, int64_t high, const Predicate& predicate) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (predicate(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The entries that are not padding at either end. Padding of rows with -1 may come first or last.
struct Bounds {
  int64_t begin, end;
};

template <typename Index>
Bounds valid_entries(const Segments<Index>& segments) {
  const Index* rows = segments.rows;
  const int64_t begin = segments.count > 0 && rows[0] < 0
                            ? partition(
                                  0, segments.count, [&](int64_t e) { return rows[e] < 0; })
                            : 0;
  return {begin, partition(begin, segments.count,
                           [&](int64_t e) { return in_range(rows[e], segments.num_rows); })};
}

// Where share `index` of `count` starts.
template <typename Index>
Position share(const Segments<Index>& segments, const Bounds& bounds, int64_t index,
               int64_t count) {
  const int64_t entries = bounds.end - bounds.begin, items = entries + segments.num_rows;
  const int64_t item = even_share(items, index, count);
  const int64_t entry =
      partition(std::max<int64_t>(item - segments.num_rows, 0), std::min(item, entries),
                [&](int64_t e) { return segments.rows[bounds.begin + e] < item - e; });
  return {bounds.begin + entry, item - entry};
}

// The first entry from `begin` on that is not of row `row`.
template <typename Index>
JAX_GNN_INLINE int64_t end_of_run(const Index* rows, int64_t begin, int64_t end, Index row) {
  constexpr int64_t kStride = 16;  // ids are sorted: long rows are skipped through
  while (begin + kStride < end && rows[begin + kStride] == row) begin += kStride;
  while (begin < end && rows[begin] == row) ++begin;
  return begin;
}

// What tasks leave of rows that they share with others: of the first row that a task ends, if
// entries of that row lie before, and of the row that it does not end.
struct Carry {
  int64_t head_row, head_entries, tail_row, tail_entries;  // a row is -1 where there is none
};

template <typename Acc>
class Carries {
 public:
  Carries(int64_t tasks, int64_t size)  // of a state
      : size_(size), carries_(new Carry[tasks]), states_(new Acc[2 * tasks * size]) {}
  Carry& of(int64_t task) const { return carries_[task]; }
  Acc* head(int64_t task) const { return &states_[2 * task * size_]; }
  Acc* tail(int64_t task) const { return &states_[(2 * task + 1) * size_]; }

 private:
  int64_t size_;
  std::unique_ptr<Carry[]> carries_;
  std::unique_ptr<Acc[]> states_;
};

// A Reducer reduces runs of entries that share a row, for a tile of columns:
//   Acc, kStates: a state is kStates accumulators a column
//   run<kTile>(row, begin, end, column, Acc (&state)[kStates][kTile]) -> number of entries that
//   count store<kTile>(row, column, entries, state): finishes a row fill(first_row, last_row,
//   column, last_column): finishes rows without entries combine(Acc* into, const Acc* from, int64_t
//   width): joins states (kStates, width)
template <typename Reducer>
struct RunTile {
  using Acc = typename Reducer::Acc;
  const Reducer& reducer;
  int64_t row, begin, end, width;
  Acc* partial;      // (kStates, width) to leave the state in, null: the row is finished
  int64_t* entries;  // with `partial`

  template <int kTile>
  JAX_GNN_INLINE void operator()(int64_t column) const {
    Acc state[Reducer::kStates][kTile];
    const int64_t counted = reducer.template run<kTile>(row, begin, end, column, state);
    if (!partial) return reducer.template store<kTile>(row, column, counted, state);
    for (int s = 0; s < Reducer::kStates; ++s)
      for (int k = 0; k < kTile; ++k) partial[s * width + column + k] = state[s][k];
    *entries = counted;
  }
};

template <typename Reducer, typename Index>
JAX_GNN_MULTIVERSION void reduce_share(const Reducer& reducer, const Segments<Index>& segments,
                                       const Bounds& bounds, Position from, Position to,
                                       int64_t first_column, int64_t last_column, int64_t width,
                                       const Carries<typename Reducer::Acc>& carries,
                                       int64_t task) {
  const Index* rows = segments.rows;
  Carry carry = {-1, 0, -1, 0};
  int64_t entry = from.entry, row = from.row;
  // The first row may have begun in the share before; even if none of its entries are left.
  bool head = row < to.row && entry > bounds.begin && rows[entry - 1] == row;
  while (head || entry < to.entry) {
    const Index id = head ? static_cast<Index>(row) : rows[entry];
    const int64_t end = end_of_run(rows, entry, to.entry, id);
    if (id >= row && id <= to.row && id < segments.num_rows) {  // else ids are not sorted after all
      const bool tail = id == to.row;
      reducer.fill(row, id, first_column, last_column);
      if (head) carry.head_row = id;
      if (tail) carry.tail_row = id;
      for_each_tile(first_column, last_column,
                    RunTile<Reducer>{reducer, id, entry, end, width,
                                     head   ? carries.head(task)
                                     : tail ? carries.tail(task)
                                            : nullptr,
                                     tail ? &carry.tail_entries : &carry.head_entries});
      row = id + !tail;
    }
    entry = end;
    head = false;
  }
  reducer.fill(row, to.row, first_column, last_column);
  if (first_column == 0) carries.of(task) = carry;
}

template <typename Reducer>
struct StoreTile {
  const Reducer& reducer;
  int64_t row, entries, width;
  const typename Reducer::Acc* from;

  template <int kTile>
  JAX_GNN_INLINE void operator()(int64_t column) const {
    typename Reducer::Acc state[Reducer::kStates][kTile];
    for (int s = 0; s < Reducer::kStates; ++s)
      for (int k = 0; k < kTile; ++k) state[s][k] = from[s * width + column + k];
    reducer.template store<kTile>(row, column, entries, state);
  }
};

// Puts together the rows that more than one task had a part of.
template <typename Reducer>
void finish_carried(const Reducer& reducer, const Carries<typename Reducer::Acc>& carries,
                    int64_t tasks, int64_t width) {
  typename Reducer::Acc* sum = nullptr;  // of the parts so far
  int64_t entries = 0;
  const auto add = [&](typename Reducer::Acc* state, int64_t state_entries) {
    if (sum) {
      reducer.combine(sum, state, width);
    } else {
      sum = state;
    }
    entries += state_entries;
  };
  for (int64_t task = 0; task < tasks; ++task) {
    const Carry& carry = carries.of(task);
    if (carry.head_row >= 0) {
      add(carries.head(task), carry.head_entries);
      for_each_tile(0, width, StoreTile<Reducer>{reducer, carry.head_row, entries, width, sum});
      sum = nullptr;
      entries = 0;
    }
    if (carry.tail_row >= 0) add(carries.tail(task), carry.tail_entries);
  }
}

// Reduces all rows. `cost`: scalar operations for a column of an entry.
template <typename Reducer, typename Index>
void reduce_segments(const ParallelFor& parallel_for, const Reducer& reducer,
                     const Segments<Index>& segments, int64_t width, double cost) {
  if (segments.num_rows == 0 || width == 0) return;
  constexpr int64_t kColumns = 4096;  // of a task, at most
  constexpr int64_t kTasks = 1024;    // at most, where one has all columns
  const Bounds bounds = valid_entries(segments);
  const int64_t column_tasks = (width + kColumns - 1) / kColumns;
  const double items = static_cast<double>(segments.count) + static_cast<double>(segments.num_rows);
  const int64_t tasks = task_count(items * std::max<double>(std::min(width, kColumns), 4) * cost,
                                   kTasks / column_tasks);
  const Carries<typename Reducer::Acc> carries(tasks, Reducer::kStates * width);
  parallel_for(tasks * column_tasks, [&](int64_t task) {
    const int64_t index = task / column_tasks, first_column = task % column_tasks * kColumns;
    reduce_share(reducer, segments, bounds, share(segments, bounds, index, tasks),
                 share(segments, bounds, index + 1, tasks), first_column,
                 std::min(first_column + kColumns, width), width, carries, index);
  });
  finish_carried(reducer, carries, tasks, width);
}

}  // namespace jax_gnn::cpu
