// How rows of sorted entries are dealt out to tasks and put together again.
//
// Entries and ends of rows form one sequence, in which the end of a row follows its entries; tasks
// take even shares of it. One giant row, a million empty ones, or anything between makes even work.
// A task ends the rows whose ends it has. What it has of the row after those is a partial result;
// partial results of a row are combined in the order of the tasks. The cut depends on sizes and ids
// alone: the same bits for any number of threads. That ids are sorted is a promise of the caller:
// where they are not, results are unspecified, but nothing outside the buffers is read or written.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "../segments.h"
#include "parallel.h"
#include "segment_entries.h"

namespace jax_gnn::cpu {

constexpr int64_t kTaskColumns = 4096;  // at most

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

// The entries between the padding at both ends. That may be -1 at either.
struct Bounds {
  int64_t begin, end;
};

template <typename Index>
Bounds valid_entries(const Csr<Index>& csr) {
  const Index* rows = csr.rows;
  int64_t begin = 0;
  if (csr.count > 0 && rows[0] < 0) {
    if (rows[csr.count - 1] < 0) {  // at both ends
      while (begin < csr.count && rows[begin] < 0) ++begin;
    } else {
      begin = partition(0, csr.count, [&](int64_t e) { return rows[e] < 0; });
    }
  }
  return {begin,
          partition(begin, csr.count, [&](int64_t e) { return in_range(rows[e], csr.num_rows); })};
}

// Where share `index` of `count` starts.
template <typename Index>
Position share(const Csr<Index>& csr, const Bounds& bounds, int64_t index, int64_t count) {
  const int64_t entries = bounds.end - bounds.begin, items = entries + csr.num_rows;
  const int64_t item = even_share(items, index, count);
  const int64_t entry =
      partition(std::max<int64_t>(item - csr.num_rows, 0), std::min(item, entries),
                [&](int64_t e) { return csr.rows[bounds.begin + e] < item - e; });
  return {bounds.begin + entry, item - entry};
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

// What a run of entries of one row makes: the state of the row, kStates accumulators a column.
template <typename Acc, int kStates, int kTile>
struct Run {
  using V = typename Shape<Acc, kTile>::V;
  int64_t end, entries;  // where it ends, and how many entries are not padding
  V state[kStates][Shape<Acc, kTile>::kVectors];

  JAX_GNN_INLINE void save(Acc* to, Features features, int64_t column) const {
    for_each_vector([&](int s, int v, int k) JAX_GNN_LAMBDA {
      jax_gnn::cpu::store<Shape<Acc, kTile>::kLanes>(to + s * features.width + column + k,
                                                     state[s][v]);
    });
  }

  JAX_GNN_INLINE void restore(const Acc* from, Features features, int64_t column) {
    for_each_vector([&](int s, int v, int k) JAX_GNN_LAMBDA {
      state[s][v] = load<Shape<Acc, kTile>::kLanes>(from + s * features.width + column + k);
    });
  }

 private:
  template <typename Body>
  static JAX_GNN_INLINE void for_each_vector(const Body& body) {
    constexpr int kVectors = Shape<Acc, kTile>::kVectors, kLanes = Shape<Acc, kTile>::kLanes;
    unrolled<kStates * kVectors>(
        [&](int i) JAX_GNN_LAMBDA { body(i / kVectors, i % kVectors, i % kVectors * kLanes); });
  }
};

// A Reducer works on tiles of columns:
//   Acc, kStates, Features features; kMaxTile: the width of the widest tile
//   Run<kTile> run(tile, row, begin, end): reduces entries from `begin` on, while they are of row
//     `row`, which there is, and before `end`
//   store(tile, row, run), fill(tile, row, last_row): finish a row, and rows without entries
//   bool prefers_scatter(entries, rows), scatter(tile, begin, end, row, last_row): whether to
//   reduce
//     and finish all of these rows at once, and how
//   combine(Acc* into, const Acc* from): joins states (kStates, width)
template <typename Reducer, typename Index>
struct ShareTile {
  using Acc = typename Reducer::Acc;
  const Reducer& reducer;
  const Csr<Index>& csr;
  const Bounds& bounds;
  Position from, to;
  const Carries<Acc>& carries;
  int64_t task;

  template <int kTile>
  JAX_GNN_INLINE void operator()(std::integral_constant<int, kTile>, int64_t column) const {
    const Tile<Acc, kTile> tile(reducer.features, column);
    const Index* rows = csr.rows;
    Carry carry = {-1, 0, -1, 0};
    int64_t entry = from.entry, row = from.row;
    // The first row may have begun in the share before; even if none of its entries are left.
    bool head = row < to.row && entry > bounds.begin && rows[entry - 1] == row;
    while (head || entry < to.entry) {
      if constexpr (kTile <= Reducer::kScatterTile) {
        // Tiles share a Carry, and must all go the same way through ids, whatever these are. Where
        // columns are dealt out too, tiles differ in width.
        if (!head && row == from.row + (carry.head_row >= 0) &&
            reducer.features.width <= kTaskColumns &&
            reducer.prefers_scatter(to.entry - entry, to.row - row)) {
          const int64_t end =
              partition(entry, to.entry, [&](int64_t e) { return rows[e] < to.row; });
          reducer.scatter(tile, entry, end, row, to.row);
          entry = end;
          row = to.row;
          continue;
        }
      }
      const int64_t id = head ? row : rows[entry];
      if (id < row || id > to.row || id >= csr.num_rows) {  // ids are not sorted after all
        ++entry;
        continue;
      }
      const auto run = reducer.run(tile, id, entry, to.entry);
      reducer.fill(tile, row, id);
      row = id;
      if (head) {
        carry.head_row = row++;
        carry.head_entries = run.entries;
        run.save(carries.head(task), reducer.features, column);
      } else if (row < to.row) {
        reducer.store(tile, row++, run);
      } else {
        carry.tail_row = row;
        carry.tail_entries = run.entries;
        run.save(carries.tail(task), reducer.features, column);
      }
      entry = run.end;
      head = false;
    }
    reducer.fill(tile, row, to.row);
    if (column == 0) carries.of(task) = carry;
  }
};

// Puts together the rows that more than one task had a part of.
template <typename Reducer>
void finish_carried(const Reducer& reducer, const Carries<typename Reducer::Acc>& carries,
                    int64_t tasks) {
  typename Reducer::Acc* sum = nullptr;  // of the parts so far
  int64_t entries = 0;
  const auto add = [&](typename Reducer::Acc* state, int64_t state_entries) {
    if (sum) {
      reducer.combine(sum, state);
    } else {
      sum = state;
    }
    entries += state_entries;
  };
  for (int64_t task = 0; task < tasks; ++task) {
    const Carry& carry = carries.of(task);
    if (carry.head_row >= 0) {
      add(carries.head(task), carry.head_entries);
      for (int64_t column = 0; column < reducer.features.width; ++column) {
        Run<typename Reducer::Acc, Reducer::kStates, 1> run;
        run.entries = entries;
        run.restore(sum, reducer.features, column);
        reducer.store(Tile<typename Reducer::Acc, 1>(reducer.features, column), carry.head_row,
                      run);
      }
      sum = nullptr;
      entries = 0;
    }
    if (carry.tail_row >= 0) add(carries.tail(task), carry.tail_entries);
  }
}

// Reduces all rows in so many tasks for each share of the columns. False: nothing has come of it,
// as the tasks' rows overlap, ids not being sorted.
template <typename Reducer, typename Index>
bool reduce_in_tasks(const ParallelFor& parallel_for, const Reducer& reducer, const Csr<Index>& csr,
                     const Bounds& bounds, int64_t tasks) {
  const int64_t width = reducer.features.width;
  const int64_t column_tasks = (width + kTaskColumns - 1) / kTaskColumns;
  const Carries<typename Reducer::Acc> carries(tasks, Reducer::kStates * width);
  std::atomic<bool> apart{true};
  parallel_for(tasks * column_tasks, [&](int64_t task) {
    const int64_t index = task / column_tasks, first_column = task % column_tasks * kTaskColumns;
    const Position from = share(csr, bounds, index, tasks);
    const Position to = share(csr, bounds, index + 1, tasks);
    // Rows from the first to the last are covered: they overlap only where some go backward.
    if (from.row > to.row) {
      apart.store(false, std::memory_order_relaxed);
      return;
    }
    const ShareTile<Reducer, Index> tile = {reducer, csr, bounds, from, to, carries, index};
    const int64_t last_column = std::min(first_column + kTaskColumns, width);
    with_vectors([&](auto variant) JAX_GNN_LAMBDA {
      constexpr int kMaxTile =
          kWidestTileOf<decltype(variant), typename Reducer::Acc, Reducer::kMaxTile>;
      for_each_tile<kMaxTile>(reducer.features, first_column, last_column, tile);
    });
  });
  if (!apart) return false;
  finish_carried(reducer, carries, tasks);
  return true;
}

// Reduces all rows. `cost`: scalar operations for a column of an entry.
template <typename Reducer, typename Index>
void reduce_segments(const ParallelFor& parallel_for, const Reducer& reducer, const Csr<Index>& csr,
                     double cost) {
  const int64_t width = reducer.features.width;
  if (csr.num_rows == 0 || width == 0) return;
  constexpr int64_t kTasks = 1024;  // at most, where one has all columns
  const Bounds bounds = valid_entries(csr);
  const int64_t column_tasks = (width + kTaskColumns - 1) / kTaskColumns;
  const double items = static_cast<double>(csr.count) + static_cast<double>(csr.num_rows);
  const int64_t tasks = task_count(
      items * std::max<double>(std::min(width, kTaskColumns), 4) * cost, kTasks / column_tasks);
  if (!reduce_in_tasks(parallel_for, reducer, csr, bounds, tasks))
    reduce_in_tasks(parallel_for, reducer, csr, bounds, 1);
}

}  // namespace jax_gnn::cpu
