// Rows are finished block by block, while a block is in L1. A row that does not fit
// into a block, or that more than one task has a part of, is measured first: each part leaves a
// state, states are joined in the order of the parts, and then applied to all parts. The cut
// depends on sizes and ids alone: the same bits for any number of threads.
#include "segment_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "exp.h"
#include "half.h"
#include "pages.h"
#include "segment_walk.h"

namespace jax_gnn::cpu {
namespace {

constexpr int64_t kBlock = 8192;        // numbers
constexpr int64_t kBlockColumns = 512;  // at most
constexpr int kMaxTile = 32;            // columns

struct Area {
  int64_t begin, end;  // entries
  int64_t first_column, last_column;

  JAX_GNN_INLINE int64_t columns() const { return last_column - first_column; }
  JAX_GNN_INLINE int64_t entries_of_block() const { return kBlock / columns(); }

  // Calls body(area) for blocks of the area.
  template <typename Body>
  JAX_GNN_INLINE void for_each_block(const Body& body) const {
    for (int64_t first = begin; first < end; first += entries_of_block())
      body(Area{first, std::min(first + entries_of_block(), end), first_column, last_column});
  }
};

// A tile of columns of a matrix (entries, width) whose first entry is `origin`.
template <typename T, int kTile>
struct Columns {
  using Acc = Accumulator<std::remove_const_t<T>>;
  static constexpr int kLanes = Shape<Acc, kTile>::kLanes;
  using V = typename Shape<Acc, kTile>::V;
  T* at;
  int64_t width, origin;

  JAX_GNN_INLINE V get(int64_t entry, int v) const {
    return load<kLanes>(at + (entry - origin) * width + v * kLanes);
  }
  JAX_GNN_INLINE void set(int64_t entry, int v, V value) const {
    store<kLanes>(at + (entry - origin) * width + v * kLanes, value);
  }
};

// A number for each column of a tile.
template <typename Acc, int kTile>
struct Row {
  using V = typename Shape<Acc, kTile>::V;
  static constexpr int kLanes = Shape<Acc, kTile>::kLanes;
  static constexpr int kVectors = Shape<Acc, kTile>::kVectors;
  V at[kVectors];

  JAX_GNN_INLINE explicit Row(Acc value) {
    JAX_GNN_UNROLL
    for (V& vector : at) vector = broadcast<V>(value);
  }
  JAX_GNN_INLINE explicit Row(const Acc* from) {
    JAX_GNN_UNROLL
    for (int v = 0; v < kVectors; ++v) at[v] = load<kLanes>(from + v * kLanes);
  }
  JAX_GNN_INLINE void save(Acc* to) const {
    JAX_GNN_UNROLL
    for (int v = 0; v < kVectors; ++v) store<kLanes>(to + v * kLanes, at[v]);
  }

  // Minus infinity, the maximum of a part of a row that has nothing else, would make NaN of it.
  JAX_GNN_INLINE void replace_infinity() {
    const V lowest = broadcast<V>(-std::numeric_limits<Acc>::infinity());
    JAX_GNN_UNROLL
    for (V& vector : at) vector = vector == lowest ? broadcast<V>(0) : vector;
  }

  // Calls body(entry, v, at[v]) for all entries.
  template <typename Body>
  JAX_GNN_INLINE void for_each(int64_t begin, int64_t end, const Body& body) {
    for (int64_t e = begin; e < end; ++e) JAX_GNN_UNROLL
    for (int v = 0; v < kVectors; ++v) body(e, v, at[v]);
  }

  // Loads the entries of one row, from `begin` on and before `limit`; returns where they end.
  template <typename Index, typename Body>
  JAX_GNN_INLINE int64_t for_each_of_row(const Index* rows, int64_t begin, int64_t limit,
                                         const Body& body) {
    const Index row = rows[begin];
    int64_t e = begin;
    do {
      JAX_GNN_UNROLL
      for (int v = 0; v < kVectors; ++v) body(e, v, at[v]);
    } while (++e < limit && rows[e] == row);
    return e;
  }
};

// A Kernel has
//   block(area): finishes whole rows, which fit into a block
//   measure(area, state), apply(area, state): what some entries of a row add to its state; finishes
//     them. States are (kStates, width).
//   combine(into, from): joins states

// y = exp(x) over the sum of its row's. The state: what exponents are relative to, the maximum or 0
// where all are small, and the sum of such exponentials.
template <typename T, typename Index>
struct Softmax {
  using Acc = Accumulator<T>;
  static constexpr int kStates = 2;
  const Index* rows;
  const T* x;
  T* y;
  int64_t width;

  template <int kTile>
  JAX_GNN_INLINE Columns<const T, kTile> in(int64_t column) const {
    return {x + column, width, 0};
  }
  template <int kTile>
  JAX_GNN_INLINE Columns<T, kTile> out(int64_t column) const {
    return {y + column, width, 0};
  }

  // The numbers of a block: x relative to a maximum, then the exponentials of that or of x itself.
  class Scratch {
   public:
    JAX_GNN_INLINE explicit Scratch(const Area& area) : area_(area) {}

    template <int kTile>
    JAX_GNN_INLINE Columns<Acc, kTile> columns(int64_t column) {
      return {at_ + column - area_.first_column, area_.columns(), area_.begin};
    }

    // Fills the scratch with exponentials of x itself, and says whether all are of numbers so small
    // that no maximum need be subtracted: what is divided is then as exact, or more so.
    JAX_GNN_INLINE bool exponentiate_small(const T* x, int64_t width) {
      const T* const from = x + area_.begin * width + area_.first_column;
      const int64_t entries = area_.end - area_.begin, columns = area_.columns();
      if (columns == width) return exponentiate_small(from, entries * columns, at_);
      bool all = true;
      for (int64_t e = 0; e < entries; ++e)
        all &= exponentiate_small(from + e * width, columns, at_ + e * columns);
      return all;
    }

    JAX_GNN_INLINE void exponentiate() {
      constexpr int kLanes = 32 / sizeof(Acc);
      const int64_t count = (area_.end - area_.begin) * area_.columns();
      int64_t k = 0;
      for (; k + kLanes <= count; k += kLanes)
        store<kLanes>(at_ + k, exp<kLanes>(load<kLanes>(at_ + k)));
      for (; k < count; ++k) at_[k] = exp<1>(at_[k]);
    }

   private:
    static JAX_GNN_INLINE bool exponentiate_small(const T* from, int64_t count, Acc* to) {
      constexpr int kLanes = 32 / sizeof(Acc);
      constexpr Acc kSmall = 32;  // exp(-2 * kSmall) / 2^30 is a normal number
      int64_t k = 0;
      auto small = Vector<Acc, kLanes>{} == Vector<Acc, kLanes>{};
      for (; k + kLanes <= count; k += kLanes) {
        __builtin_prefetch(from + k + kBlock);  // the next block
        const auto v = load<kLanes>(from + k);
        small &= v * v <= kSmall * kSmall;  // false for NaN
        store<kLanes>(to + k, exp_of_small<kLanes>(v));
      }
      bool all = true;
      for (int lane = 0; lane < kLanes; ++lane) all &= small[lane] != 0;
      for (; k < count; ++k) {
        const Acc v = load<1>(from + k);
        all &= v * v <= kSmall * kSmall;
        to[k] = exp_of_small<1>(v);
      }
      return all;
    }

    Area area_;
    Acc at_[kBlock];
  };

  template <int kTile>
  struct Larger {
    Columns<const T, kTile> from;
    template <typename V>
    JAX_GNN_INLINE void operator()(int64_t e, int v, V& maximum) const {
      maximum = larger(maximum, from.get(e, v));
    }
  };

  template <int kTile>
  struct Plus {
    Columns<Acc, kTile> from;
    template <typename V>
    JAX_GNN_INLINE void operator()(int64_t e, int v, V& sum) const {
      sum += from.get(e, v);
    }
  };

  template <int kTile>
  static JAX_GNN_INLINE void center(const Columns<const T, kTile>& in, int64_t begin, int64_t end,
                                    Row<Acc, kTile>& maximum, const Columns<Acc, kTile>& to) {
    maximum.for_each(begin, end, [&](int64_t e, int v, auto& m) JAX_GNN_LAMBDA {
      to.set(e, v, in.get(e, v) - m);
    });
  }

  template <int kTile>
  static JAX_GNN_INLINE void divide(const Columns<Acc, kTile>& from, int64_t begin, int64_t end,
                                    Row<Acc, kTile>& sum, const Columns<T, kTile>& out) {
    // Not times the inverse: the share of a lone entry is 1 exactly.
    sum.for_each(begin, end, [&](int64_t e, int v, auto& s) JAX_GNN_LAMBDA {
      out.set(e, v, from.get(e, v) / s);
    });
  }

  JAX_GNN_INLINE void block(const Area& area) const {
    Scratch scratch(area);
    if (!scratch.exponentiate_small(x, width)) {
      for_each_tile<kMaxTile>(
          area.first_column, area.last_column, [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
            constexpr int kTile = decltype(tile)::value;
            const auto from = in<kTile>(column);
            for (int64_t begin = area.begin, end; begin < area.end; begin = end) {
              Row<Acc, kTile> maximum(-std::numeric_limits<Acc>::infinity());
              end = maximum.for_each_of_row(rows, begin, area.end, Larger<kTile>{from});
              center(from, begin, end, maximum, scratch.template columns<kTile>(column));
            }
          });
      scratch.exponentiate();
    }
    for_each_tile<kMaxTile>(area.first_column, area.last_column,
                            [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
                              constexpr int kTile = decltype(tile)::value;
                              const auto from = scratch.template columns<kTile>(column);
                              for (int64_t begin = area.begin, end; begin < area.end; begin = end) {
                                Row<Acc, kTile> sum(Acc(0));
                                end = sum.for_each_of_row(rows, begin, area.end, Plus<kTile>{from});
                                divide(from, begin, end, sum, out<kTile>(column));
                              }
                            });
  }

  // Fills the scratch of a block, given what exponents are relative to. Says whether that need not
  // be a maximum.
  JAX_GNN_INLINE bool exponentials(const Area& area, const Acc* state, Scratch& scratch) const {
    const bool absolute = std::all_of(state + area.first_column, state + area.last_column,
                                      [](Acc maximum) { return maximum == 0; });
    if (absolute && scratch.exponentiate_small(x, width)) return true;
    for_each_tile<kMaxTile>(area.first_column, area.last_column,
                            [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
                              constexpr int kTile = decltype(tile)::value;
                              Row<Acc, kTile> maximum(state + column);
                              maximum.replace_infinity();
                              center(in<kTile>(column), area.begin, area.end, maximum,
                                     scratch.template columns<kTile>(column));
                            });
    scratch.exponentiate();
    return false;
  }

  // Adds the exponentials up, given what they are relative to, and says the same.
  JAX_GNN_INLINE bool sum_up(const Area& area, Acc* state) const {
    std::fill(state + width + area.first_column, state + width + area.last_column, Acc(0));
    bool small = true;
    area.for_each_block([&](const Area& block) JAX_GNN_LAMBDA {
      Scratch scratch(block);
      small &= exponentials(block, state, scratch);
      Acc sums[kBlockColumns];
      for_each_tile<kMaxTile>(block.first_column, block.last_column,
                              [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
                                constexpr int kTile = decltype(tile)::value;
                                Row<Acc, kTile> sum(state + width + column);
                                sum.for_each(block.begin, block.end,
                                             Plus<kTile>{scratch.template columns<kTile>(column)});
                                sum.save(sums + column - block.first_column);
                              });
      std::copy_n(sums, block.columns(), state + width + block.first_column);
    });
    return small;
  }

  JAX_GNN_INLINE void measure(const Area& area, Acc* state) const {
    std::fill(state + area.first_column, state + area.last_column, Acc(0));
    if (sum_up(area, state)) return;
    for_each_tile<kMaxTile>(
        area.first_column, area.last_column, [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
          constexpr int kTile = decltype(tile)::value;
          Row<Acc, kTile> maximum(-std::numeric_limits<Acc>::infinity());
          maximum.for_each(area.begin, area.end, Larger<kTile>{in<kTile>(column)});
          maximum.save(state + column);
        });
    sum_up(area, state);
  }

  JAX_GNN_INLINE void apply(const Area& area, const Acc* state) const {
    area.for_each_block([&](const Area& block) JAX_GNN_LAMBDA {
      Scratch scratch(block);
      exponentials(block, state, scratch);
      for_each_tile<kMaxTile>(block.first_column, block.last_column,
                              [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
                                constexpr int kTile = decltype(tile)::value;
                                Row<Acc, kTile> sum(state + width + column);
                                divide(scratch.template columns<kTile>(column), block.begin,
                                       block.end, sum, out<kTile>(column));
                              });
    });
  }

  void combine(Acc* into, const Acc* from) const {
    for (int64_t k = 0; k < width; ++k) {
      const Acc a = into[k], b = from[k], maximum = larger(a, b);
      const auto part = [&](Acc sum, Acc part_maximum) {
        return part_maximum == maximum ? sum : sum * std::exp(part_maximum - maximum);
      };
      into[width + k] = part(into[width + k], a) + part(from[width + k], b);
      into[k] = maximum;
    }
  }
};

// out = y * (t - sum over the row of y * t). The state: that sum.
template <typename T, typename Index>
struct Tangent {
  using Acc = Accumulator<T>;
  static constexpr int kStates = 1;
  const Index* rows;
  const T *y, *t;
  T* out;
  int64_t width;

  template <int kTile>
  struct PlusProduct {
    Columns<const T, kTile> y, t;
    template <typename V>
    JAX_GNN_INLINE void operator()(int64_t e, int v, V& sum) const {
      sum += y.get(e, v) * t.get(e, v);
    }
  };

  template <int kTile>
  JAX_GNN_INLINE PlusProduct<kTile> products(int64_t column) const {
    return {{y + column, width, 0}, {t + column, width, 0}};
  }

  template <int kTile>
  JAX_GNN_INLINE void finish(int64_t begin, int64_t end, int64_t column,
                             Row<Acc, kTile>& sum) const {
    const auto from = products<kTile>(column);
    const Columns<T, kTile> to = {out + column, width, 0};
    sum.for_each(begin, end, [&](int64_t e, int v, auto& s) JAX_GNN_LAMBDA {
      to.set(e, v, from.y.get(e, v) * (from.t.get(e, v) - s));
    });
  }

  JAX_GNN_INLINE void block(const Area& area) const {
    for_each_tile<kMaxTile>(
        area.first_column, area.last_column, [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
          constexpr int kTile = decltype(tile)::value;
          for (int64_t begin = area.begin, end; begin < area.end; begin = end) {
            Row<Acc, kTile> sum(Acc(0));
            end = sum.for_each_of_row(rows, begin, area.end, products<kTile>(column));
            finish(begin, end, column, sum);
          }
        });
  }

  JAX_GNN_INLINE void measure(const Area& area, Acc* state) const {
    for_each_tile<kMaxTile>(area.first_column, area.last_column,
                            [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
                              constexpr int kTile = decltype(tile)::value;
                              Row<Acc, kTile> sum(Acc(0));
                              sum.for_each(area.begin, area.end, products<kTile>(column));
                              sum.save(state + column);
                            });
  }

  JAX_GNN_INLINE void apply(const Area& area, const Acc* state) const {
    for_each_tile<kMaxTile>(area.first_column, area.last_column,
                            [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
                              Row<Acc, decltype(tile)::value> sum(state + column);
                              finish(area.begin, area.end, column, sum);
                            });
  }

  void combine(Acc* into, const Acc* from) const {
    for (int64_t k = 0; k < width; ++k) into[k] += from[k];
  }
};

template <typename Kernel>
void run_block(const Kernel& kernel, const Area& area) {
  with_vectors([&](auto) JAX_GNN_LAMBDA { kernel.block(area); });
}

template <typename Kernel>
void run_measure(const Kernel& kernel, const Area& area, typename Kernel::Acc* state) {
  if (area.begin < area.end)
    with_vectors([&](auto) JAX_GNN_LAMBDA { kernel.measure(area, state); });
}

template <typename Kernel>
void run_apply(const Kernel& kernel, const Area& area, const typename Kernel::Acc* state) {
  if (area.begin < area.end) with_vectors([&](auto) JAX_GNN_LAMBDA { kernel.apply(area, state); });
}

// A share of the entries: those of a row that goes on from the share before, up to head_end; whole
// rows; those of a row that goes on in the next, from tail_begin. If one row fills the whole share
// and more, it is the tail.
struct Part {
  int64_t begin, head_end, tail_begin, end;
};

template <typename Index>
Part part_of(const Index* rows, const Bounds& bounds, int64_t begin, int64_t end) {
  begin = std::clamp(begin, bounds.begin, bounds.end);
  end = std::clamp(end, begin, bounds.end);
  Part part = {begin, begin, end, end};
  if (begin == end) return part;
  if (end < bounds.end && rows[end] == rows[end - 1])
    part.tail_begin = partition_point(begin, end, [&](int64_t e) { return rows[e] != rows[end]; });
  if (begin > bounds.begin && rows[begin - 1] == rows[begin] && part.tail_begin > begin)
    part.head_end =
        partition_point(begin, part.tail_begin, [&](int64_t e) { return rows[e] == rows[begin]; });
  return part;
}

template <typename Kernel, typename Index>
void finish_whole_rows(const Kernel& kernel, const Index* rows, Area area) {
  for (const int64_t end = area.end; area.begin < end; area.begin = area.end) {
    area.end = std::min(area.begin + area.entries_of_block(), end);
    if (area.end < end)  // back to where a row begins
      while (area.end > area.begin && rows[area.end] == rows[area.end - 1]) --area.end;
    if (area.end > area.begin) {
      run_block(kernel, area);
    } else {  // the row does not fit
      area.end =
          partition_point(area.begin, end, [&](int64_t e) { return rows[e] == rows[area.begin]; });
      const auto state = std::make_unique<typename Kernel::Acc[]>(Kernel::kStates * kernel.width);
      run_measure(kernel, area, state.get());
      run_apply(kernel, area, state.get());
    }
  }
}

template <typename Kernel, typename Index, typename T>
void normalize(const ParallelFor& parallel_for, const Kernel& kernel, const Csr<Index>& csr,
               double cost, T* out) {
  using Acc = typename Kernel::Acc;
  const int64_t count = csr.count, width = kernel.width;
  if (count == 0 || width == 0) return;
  expect_writes(out, count * width);
  const Index* rows = csr.rows;
  const Bounds bounds = valid_entries(csr);
  const int64_t column_tasks = (width + kBlockColumns - 1) / kBlockColumns;
  const int64_t tasks = task_count(
      static_cast<double>(count) * static_cast<double>(std::min(width, kBlockColumns)) * cost,
      std::min(count, std::max<int64_t>(1024 / column_tasks, 1)));
  const auto share = [&](int64_t task) { return even_share(count, task, tasks); };
  const auto part = [&](int64_t task) {
    return part_of(rows, bounds, share(task), share(task + 1));
  };
  const Carries<Acc> carries(tasks, Kernel::kStates * width);
  const auto for_each_area = [&](const auto& body) {
    parallel_for(tasks * column_tasks, [&](int64_t task) {
      const int64_t index = task / column_tasks;
      const int64_t first = task % column_tasks * kBlockColumns;
      const Part p = part(index);
      const auto area = [&](int64_t begin, int64_t end) {
        return Area{begin, end, first, std::min(first + kBlockColumns, width)};
      };
      body(index, p, area);
    });
  };

  for_each_area([&](int64_t task, const Part& p, const auto& area) {
    run_measure(kernel, area(p.begin, p.head_end), carries.head(task));
    run_measure(kernel, area(p.tail_begin, p.end), carries.tail(task));
    finish_whole_rows(kernel, rows, area(p.head_end, p.tail_begin));
    const Area columns = area(0, 0);
    for (int64_t e = share(task); e < share(task + 1); ++e) {
      if (e == p.begin) e = p.end;  // the rest is padding
      if (e < share(task + 1))
        std::fill_n(out + e * width + columns.first_column, columns.columns(), T{});
    }
  });

  // Rows that more than one share has a part of: all parts get the whole row's state.
  const int64_t size = Kernel::kStates * width;
  int64_t first = -1;  // the share in which the row at hand begins
  for (int64_t task = 0; task < tasks; ++task) {
    const Part p = part(task);
    if (first >= 0 && p.head_end > p.begin) {
      Acc* const state = carries.tail(first);
      kernel.combine(state, carries.head(task));
      std::copy_n(state, size, carries.head(task));
      for (int64_t t = first + 1; t < task; ++t) std::copy_n(state, size, carries.tail(t));
      first = -1;
    }
    if (p.end > p.tail_begin) {
      if (first >= 0) {
        kernel.combine(carries.tail(first), carries.tail(task));
      } else {
        first = task;
      }
    }
  }

  if (tasks == 1) return;
  for_each_area([&](int64_t task, const Part& p, const auto& area) {
    run_apply(kernel, area(p.begin, p.head_end), carries.head(task));
    run_apply(kernel, area(p.tail_begin, p.end), carries.tail(task));
  });
}

}  // namespace

template <typename T, typename Acc, typename Index>
void segment_softmax(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* x,
                     int64_t width, T* y) {
  normalize(parallel_for, Softmax<T, Index>{csr.rows, x, y, width}, csr, 2, y);
}

template <typename T, typename Acc, typename Index>
void segment_softmax_tangent(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* y,
                             const T* t, int64_t width, T* out) {
  normalize(parallel_for, Tangent<T, Index>{csr.rows, y, t, out, width}, csr, 2, out);
}

#define JAX_GNN_INSTANTIATE(T, Acc)                   \
  JAX_GNN_INSTANCE(segment_softmax<T, Acc, int32_t>); \
  JAX_GNN_INSTANCE(segment_softmax_tangent<T, Acc, int32_t>);
JAX_GNN_FOR_FLOATS(JAX_GNN_INSTANTIATE)

}  // namespace jax_gnn::cpu
