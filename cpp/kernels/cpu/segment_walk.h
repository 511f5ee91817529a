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
      begin = partition_point(0, csr.count, [&](int64_t e) { return rows[e] < 0; });
    }
  }
  return {begin, partition_point(begin, csr.count,
                                 [&](int64_t e) { return in_range(rows[e], csr.num_rows); })};
}

// The entries and rows of a task.
struct Share {
  const Bounds& bounds;
  Position from, to;
  int64_t task;
};

// The start of share `index` of `count`.
template <typename Index>
Position share(const Csr<Index>& csr, const Bounds& bounds, int64_t index, int64_t count) {
  const int64_t entries = bounds.end - bounds.begin, items = entries + csr.num_rows;
  const int64_t item = even_share(items, index, count);
  const int64_t entry =
      partition_point(std::max<int64_t>(item - csr.num_rows, 0), std::min(item, entries),
                      [&](int64_t e) { return csr.rows[bounds.begin + e] < item - e; });
  return {bounds.begin + entry, item - entry};
}

// The rows that a task has in common with others: the first row that it ends, if entries of that
// row lie before, and the row that it does not end.
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

// The result of a run of entries of one row: its state, kStates accumulators a column.
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
  const Share& share;
  const Carries<Acc>& carries;

  template <int kTile>
  JAX_GNN_INLINE void operator()(std::integral_constant<int, kTile>, int64_t column) const {
    const Tile<Acc, kTile> tile(reducer.features, column);
    const Position from = share.from, to = share.to;
    const int64_t task = share.task;
    const Index* rows = csr.rows;
    Carry carry = {-1, 0, -1, 0};
    int64_t entry = from.entry, row = from.row;
    // The first row may have begun in the share before; even if none of its entries are left.
    bool head = row < to.row && entry > share.bounds.begin && rows[entry - 1] == row;
    while (head || entry < to.entry) {
      if constexpr (kTile <= Reducer::kScatterTile) {
        // Tiles share a Carry, and must all go the same way through ids, whatever these are. Where
        // columns are dealt out too, tiles differ in width.
        if (!head && row == from.row + (carry.head_row >= 0) &&
            reducer.features.width <= kTaskColumns &&
            reducer.prefers_scatter(to.entry - entry, to.row - row)) {
          const int64_t end =
              partition_point(entry, to.entry, [&](int64_t e) { return rows[e] < to.row; });
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

// Deals sorted entries and rows out to tasks: walk(carries, column_task, share) for each, where
// `carries` have `state_size` numbers a state; then joins the states of rows that tasks share, by
// combine(into, from), and ends with finish(row, state, entries). Where the tasks' rows overlap, as
// ids are not sorted after all, one task walks everything.
template <typename Acc, typename Index, typename Walk, typename Combine, typename Finish>
void walk_in_tasks(const ParallelFor& parallel_for, const Csr<Index>& csr, int64_t num_tasks,
                   int64_t column_tasks, int64_t state_size, const Walk& walk,
                   const Combine& combine, const Finish& finish) {
  const Bounds bounds = valid_entries(csr);
  const auto walk_all = [&](int64_t tasks) {
    const Carries<Acc> carries(tasks, state_size);
    std::atomic<bool> apart{true};
    parallel_for(tasks * column_tasks, [&](int64_t task) {
      const int64_t index = task / column_tasks;
      const Share part = {bounds, share(csr, bounds, index, tasks),
                          share(csr, bounds, index + 1, tasks), index};
      // Rows from the first to the last are covered: they overlap only where some go backward.
      if (part.from.row > part.to.row)
        apart.store(false, std::memory_order_relaxed);
      else
        walk(carries, task % column_tasks, part);
    });
    if (!apart) return false;
    Acc* sum = nullptr;  // of the parts so far
    int64_t entries = 0;
    const auto add = [&](Acc* state, int64_t state_entries) {
      if (sum) {
        combine(sum, state);
      } else {
        sum = state;
      }
      entries += state_entries;
    };
    for (int64_t task = 0; task < tasks; ++task) {
      const Carry& carry = carries.of(task);
      if (carry.head_row >= 0) {
        add(carries.head(task), carry.head_entries);
        finish(carry.head_row, sum, entries);
        sum = nullptr;
        entries = 0;
      }
      if (carry.tail_row >= 0) add(carries.tail(task), carry.tail_entries);
    }
    return true;
  };
  if (!walk_all(num_tasks)) walk_all(1);
}

// Reduces all rows. `cost`: scalar operations for a column of an entry.
template <typename Reducer, typename Index>
void reduce_segments(const ParallelFor& parallel_for, const Reducer& reducer, const Csr<Index>& csr,
                     double cost) {
  using Acc = typename Reducer::Acc;
  const Features features = reducer.features;
  const int64_t width = features.width;
  if (csr.num_rows == 0 || width == 0) return;
  constexpr int64_t kTasks = 1024;  // at most, where one has all columns
  const int64_t column_tasks = (width + kTaskColumns - 1) / kTaskColumns;
  const double items = static_cast<double>(csr.count) + static_cast<double>(csr.num_rows);
  const int64_t tasks = task_count(
      items * std::max<double>(std::min(width, kTaskColumns), 4) * cost, kTasks / column_tasks);
  walk_in_tasks<Acc>(
      parallel_for, csr, tasks, column_tasks, Reducer::kStates * width,
      [&](const Carries<Acc>& carries, int64_t column_task, const Share& share) {
        const ShareTile<Reducer, Index> tile = {reducer, csr, share, carries};
        const int64_t first_column = column_task * kTaskColumns;
        const int64_t last_column = std::min(first_column + kTaskColumns, width);
        with_vectors([&](auto variant) JAX_GNN_LAMBDA {
          constexpr int kMaxTile = kWidestTileOf<decltype(variant), Acc, Reducer::kMaxTile>;
          for_each_tile<kMaxTile>(features, first_column, last_column, tile);
        });
      },
      [&](Acc* into, const Acc* from) { reducer.combine(into, from); },
      [&](int64_t row, const Acc* state, int64_t entries) {
        for (int64_t column = 0; column < width; ++column) {
          Run<Acc, Reducer::kStates, 1> run;
          run.entries = entries;
          run.restore(state, features, column);
          reducer.store(Tile<Acc, 1>(features, column), row, run);
        }
      });
}

}  // namespace jax_gnn::cpu
