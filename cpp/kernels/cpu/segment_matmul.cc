#include "segment_matmul.h"

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "exp.h"
#include "half.h"
#include "pages.h"
#include "register_tile.h"

namespace jax_gnn::cpu {
namespace {

// --- Variants ------------------------------------------------------------------------------------

template <typename Work>
void run_all(const ParallelFor& parallel_for, int64_t tasks, const Work& work) {
  parallel_for(tasks, [&](int64_t task) {
    with_instruction_set<InstructionSet::kAvx512>([&](auto variant) JAX_GNN_LAMBDA {
      work.template run<TileOf<decltype(variant)::kInstructionSet>>(task);
    });
  });
}

// --- Groups --------------------------------------------------------------------------------------

// Row pointers of the weights: the first row of each, and the end of the last.
std::vector<int64_t> bounds_of(const Groups& groups) {
  std::vector<int64_t> starts(groups.num_sizes + 1, 0);
  for (int64_t i = 0; i < groups.num_sizes; ++i) {
    const int64_t size = std::max<int64_t>(groups.sizes[i], 0);
    starts[i + 1] = std::min(starts[i] + size, groups.num_rows);
  }
  std::vector<int64_t> bounds(groups.num_groups + 1);
  for (int64_t w = 0; w <= groups.num_groups; ++w) {
    bounds[w] = starts[std::clamp<int64_t>(groups.offset[0] + w, 0, groups.num_sizes)];
  }
  return bounds;
}

// Calls body(begin, end, weight) for the pieces of [first, last) that share a weight, or with
// weight -1 have none.
template <typename Body>
JAX_GNN_INLINE void for_each_piece(const std::vector<int64_t>& bounds, int64_t first, int64_t last,
                                   const Body& body) {
  const int64_t num_weights = static_cast<int64_t>(bounds.size()) - 1;
  int64_t weight = std::upper_bound(bounds.begin(), bounds.end(), first) - bounds.begin() - 1;
  for (; first < last; ++weight) {
    const int64_t end = weight < num_weights ? std::min(bounds[weight + 1], last) : last;
    if (end > first) body(first, end, weight < num_weights ? weight : -1);
    first = end;
  }
}

// Products are added up in runs of this many, then the runs: the error of long sums stays small.
constexpr int64_t kSteps = 128;

// --- The product in registers --------------------------------------------------------------------

template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t size)
      : data_(static_cast<T*>(::operator new(size * sizeof(T), std::align_val_t{64}))) {}
  Scratch(const Scratch&) = delete;
  ~Scratch() { ::operator delete(data_, std::align_val_t{64}); }
  T* get() const { return data_; }

 private:
  T* data_;
};

// Widens `count` numbers into as many, and fills up with zeros to `padded`.
template <int kLanes, typename T>
JAX_GNN_INLINE void widen_row(const T* from, int64_t count, Accumulator<T>* to, int64_t padded) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store<kLanes>(to + i, load<kLanes>(from + i));
  for (; i < count; ++i) to[i] = widen(from[i]);
  for (; i < padded; ++i) to[i] = 0;
}

// `count` numbers, narrowed.
template <int kLanes, typename Out>
JAX_GNN_INLINE void narrow_row(const Accumulator<Out>* from, int64_t count, Out* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store<kLanes>(to + i, load<kLanes>(from + i));
  for (; i < count; ++i) to[i] = narrow<Out>(from[i]);
}

// At most kLanes of `count` numbers, widened, zeros after them; and narrowed.
template <int kLanes, typename T>
JAX_GNN_INLINE Vector<Accumulator<T>, kLanes> load_some(const T* from, int64_t count) {
  if (count >= kLanes) return load<kLanes>(from);
  Vector<Accumulator<T>, kLanes> x = {};
  for (int64_t i = 0; i < count; ++i) x[i] = widen(from[i]);
  return x;
}
template <int kLanes, typename Out>
JAX_GNN_INLINE void store_some(Out* to, int64_t count, Vector<Accumulator<Out>, kLanes> x) {
  if (count >= kLanes) return store<kLanes>(to, x);
  for (int64_t i = 0; i < count; ++i) to[i] = narrow<Out>(x[i]);
}

// Rows of a factor in the accumulator type: themselves, or widened into `scratch`.
template <int kLanes, typename T>
JAX_GNN_INLINE const Accumulator<T>* widen_rows(const T* from, int64_t count,
                                                Accumulator<T>* scratch) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    return from;
  } else {
    widen_row<kLanes>(from, count, scratch, count);
    return scratch;
  }
}

// The row that a list names, -1 where that is outside [0, size); without a list, `row` itself.
JAX_GNN_INLINE int64_t listed(const int32_t* list, int64_t row, int64_t size) {
  if (list == nullptr) return row;
  const int64_t id = list[row];
  return id >= 0 && id < size ? id : -1;
}

// The row that a list names, of two lists that must be each other's inverse there: no two rows name
// one row.
JAX_GNN_INLINE int64_t paired(const int32_t* list, const int32_t* inverse, int64_t row,
                              int64_t size) {
  const int64_t id = listed(list, row, size);
  return list == nullptr || (id >= 0 && inverse[id] == row) ? id : -1;
}

// Fetches numbers into the caches ahead of their use: rows that a list names come from anywhere.
template <int kIsWritten, typename T>
JAX_GNN_INLINE void prefetch(const T* from, int64_t count) {
  constexpr int64_t kPerLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < count; i += kPerLine) __builtin_prefetch(from + i, kIsWritten, 2);
}

constexpr int64_t round_up(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

// --- Activations ---------------------------------------------------------------------------------

template <int kLanes, typename V>
JAX_GNN_INLINE V times_sigmoid(V x, V slope) {
  return x / (Element<V>(1) + exp<kLanes>(-slope));
}

template <int kLanes, typename V>
JAX_GNN_INLINE V tanh(V x) {
  using Acc = Element<V>;
  const V e = exp<kLanes>(Acc(-2) * (x < Acc(0) ? -x : x));
  const V far = (Acc(1) - e) / (Acc(1) + e);
  // Near 0 that cancels: the continued fraction x / (1 + x² / (3 + x² / (5 + …))).
  const V square = x * x;
  V near = broadcast<V>(17);
  JAX_GNN_UNROLL
  for (int odd = 15; odd > 0; odd -= 2) near = Acc(odd) + square / near;
  return square < Acc(0.25) ? x / near : x < Acc(0) ? -far : far;
}

template <int kLanes, typename V>
JAX_GNN_INLINE V activate(Activation activation, V x) {
  using Acc = Element<V>;
  switch (activation) {
    case Activation::kRelu:
      return x < Acc(0) ? broadcast<V>(Acc(0)) : x;
    case Activation::kSilu:
      return times_sigmoid<kLanes>(x, x);
    case Activation::kGelu:  // 1 + tanh(u) is twice the sigmoid of 2 u
      return times_sigmoid<kLanes>(x, Acc(1.5957691216057308) * (x + Acc(0.044715) * (x * x * x)));
    case Activation::kTanh:
      return tanh<kLanes>(x);
    default:
      return x;
  }
}

// --- Rows times their group's weight -------------------------------------------------------------

template <typename T, typename Out>
struct Matmul {
  using Acc = Accumulator<T>;

  std::vector<int64_t> bounds;
  int64_t num_rows, k, n, tasks;
  bool transposed;
  Activation activation;
  const T *lhs, *rhs, *bias;
  const Out* residual;
  RowLists<Acc> lists;
  Out* out;

  template <typename Tile>
  JAX_GNN_INLINE void run(int64_t task) const {
    constexpr int kLanes = Tile::template kLanes<Acc>, kRows = Tile::kRows;
    const int64_t first = even_share(num_rows, task, tasks);
    const int64_t last = even_share(num_rows, task + 1, tasks);
    clear_other_groups<kLanes>(first, last);
    constexpr int64_t kColumns = Tile::template kColumns<Acc>;
    const int64_t panels = (n + kColumns - 1) / kColumns;
    // Rows of the left factor that are gathered or widened, and stay in the cache, at a time.
    const int64_t rows = round_up(std::max<int64_t>(16384 / std::max<int64_t>(k, 1), 64), kRows);
    const bool copies = lists.lhs_rows != nullptr || !std::is_same_v<T, Acc>;
    const Scratch<Acc> packed(panels * (k + 1) * kColumns), copied(copies ? rows * k : 1);
    for_each_piece(
        bounds, first, last, [&](int64_t begin, int64_t end, int64_t weight) JAX_GNN_LAMBDA {
          if (weight < 0) return clear<kLanes>(begin, end);
          for (int64_t p = 0; p < panels; ++p) {
            pack<Tile>(weight, p * kColumns, packed.get() + p * (k + 1) * kColumns);
          }
          for (int64_t row = begin; row < end; row += rows) {
            const int64_t count = std::min(rows, end - row);
            const Acc* const a = rows_of<kLanes>(row, count, copied.get());
            for (int64_t p = 0; p < panels; ++p) {
              const Acc* const panel = packed.get() + p * (k + 1) * kColumns;
              for (int64_t i = 0; i < count;) {
                const int done = multiply<Tile>(a + i * k, panel, row + i, count - i, p * kColumns);
                if (p == 0) prefetch_rows(row + count + i, std::min(row + count + i + done, last));
                i += done;
              }
            }
          }
        });
  }

 private:
  // The left factor's rows, in the accumulator type: themselves or copied.
  template <int kLanes>
  JAX_GNN_INLINE const Acc* rows_of(int64_t row, int64_t count, Acc* copied) const {
    if (lists.lhs_rows == nullptr) return widen_rows<kLanes>(lhs + row * k, count * k, copied);
    const auto source = [&](int64_t i) JAX_GNN_LAMBDA {
      return listed(lists.lhs_rows, row + i, lists.num_lhs);
    };
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = source(i);
      widen_row<kLanes>(lhs + std::max<int64_t>(from, 0) * k, from < 0 ? 0 : k, copied + i * k, k);
    }
    return copied;
  }

  // Fetches the left factor's rows ahead of their copy, while others are multiplied.
  JAX_GNN_INLINE void prefetch_rows(int64_t begin, int64_t end) const {
    if (lists.lhs_rows == nullptr) return;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t from = listed(lists.lhs_rows, row, lists.num_lhs);
      if (from >= 0) prefetch<0>(lhs + from * k, k);
    }
  }

  // The row of the result that a row of the product is, -1: none.
  JAX_GNN_INLINE int64_t target_of(int64_t row) const {
    return paired(lists.out_rows, lists.inverse, row, num_rows);
  }

  // A row of the result without a product.
  template <int kLanes>
  JAX_GNN_INLINE void clear_row(int64_t row) const {
    Out* const to = out + row * n;
    if (residual == nullptr) return std::fill(to, to + n, Out{});
    for (int64_t j = 0; j < n; j += kLanes) {
      const auto x = load_some<kLanes>(residual + row * n + j, n - j);
      store_some<kLanes>(to + j, n - j, activate<kLanes>(activation, x));
    }
  }

  // The result of rows of no group.
  template <int kLanes>
  JAX_GNN_INLINE void clear(int64_t begin, int64_t end) const {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t to = target_of(row);
      if (to >= 0) clear_row<kLanes>(to);
    }
  }

  // Rows of the result that no row of the product is.
  template <int kLanes>
  JAX_GNN_INLINE void clear_other_groups(int64_t begin, int64_t end) const {
    if (lists.inverse == nullptr) return;
    for (int64_t row = begin; row < end; ++row) {
      if (paired(lists.inverse, lists.out_rows, row, num_rows) < 0) clear_row<kLanes>(row);
    }
  }

  // A panel: columns [column, column + kColumns) of a weight, with their biases ahead.
  template <typename Tile>
  JAX_GNN_INLINE void pack(int64_t weight, int64_t column, Acc* panel) const {
    constexpr int kLanes = Tile::template kLanes<Acc>;
    constexpr int64_t kColumns = Tile::template kColumns<Acc>;
    const int64_t width = std::min(n - column, kColumns);
    widen_row<kLanes>(bias ? bias + weight * n + column : nullptr, bias ? width : 0, panel,
                      kColumns);
    panel += kColumns;
    const T* const from = rhs + weight * k * n;
    if (!transposed) {
      for (int64_t s = 0; s < k; ++s) {
        widen_row<kLanes>(from + s * n + column, width, panel + s * kColumns, kColumns);
      }
      return;
    }
    for (int64_t j = 0; j < kColumns; ++j) {
      for (int64_t s = 0; s < k; ++s) {
        panel[s * kColumns + j] = j < width ? widen(from[(column + j) * k + s]) : Acc(0);
      }
    }
  }

  // Computes one tile: columns from `column` on of at most `count` rows from `row` on, of which it
  // returns the number.
  template <typename Tile>
  JAX_GNN_INLINE int multiply(const Acc* a, const Acc* panel, int64_t row, int64_t count,
                              int64_t column) const {
    constexpr int kLanes = Tile::template kLanes<Acc>;
    constexpr int kColumns = Tile::template kColumns<Acc>;
    const int64_t width = std::min<int64_t>(n - column, kColumns);
    alignas(64) Acc tile[Tile::kRows * kColumns];
    alignas(64) static constexpr Acc kZeros[kColumns] = {};
    Rows<Acc> to = {tile, kColumns};
    bool direct = false;
    if constexpr (std::is_same_v<Out, Acc>) {
      direct = activation == Activation::kNone && width % kLanes == 0 &&
               lists.out_rows == nullptr && lists.scale == nullptr && residual == nullptr;
      if (direct) to = {out + row * n + column, n};
    }
    if (lists.out_rows != nullptr) {
      for (int64_t i = 0; i < std::min<int64_t>(count, Tile::kRows); ++i) {
        const int64_t place = target_of(row + i);
        if (place >= 0) prefetch<1>(out + place * n + column, width);
      }
    }
    const int rows =
        with_tile<Tile::kRows>(count, width <= kLanes, [&](auto rows, auto vectors) JAX_GNN_LAMBDA {
          Rows<const Acc> init = {lists.scale ? kZeros : panel, 0};  // the biases
          int64_t s = 0;
          do {
            multiply_tile<Tile, decltype(rows)::value, decltype(vectors)::value>(
                Factor<Acc, false>{a + s, k}, panel + (s + 1) * kColumns, kColumns,
                std::min(kSteps, k - s), init, to, a + decltype(rows)::value * (k + s));
            init = {to.data, to.stride};
            s += kSteps;
          } while (s < k);
        });
    if (direct) return rows;
    for (int i = 0; i < rows; ++i) {
      const int64_t place = target_of(row + i);
      if (place < 0) continue;
      const Acc* const from = tile + i * kColumns;
      Out* const to_row = out + place * n + column;
      const Acc scale = lists.scale ? lists.scale[row + i] : Acc(1);
      for (int64_t j = 0; j < width; j += kLanes) {
        auto x = load<kLanes>(from + j);
        if (lists.scale != nullptr) x = load<kLanes>(panel + j) + scale * x;
        if (residual != nullptr)
          x += load_some<kLanes>(residual + place * n + column + j, width - j);
        if (activation != Activation::kNone) x = activate<kLanes>(activation, x);
        store_some<kLanes>(to_row + j, width - j, x);
      }
    }
    return rows;
  }
};

// --- Sums of outer products ----------------------------------------------------------------------

template <typename T, typename Out>
struct Outer {
  using Acc = Accumulator<T>;

  std::vector<int64_t> bounds;
  int64_t num_rows, k, n, tasks;
  const T *lhs, *rhs;
  FactorLists<Acc> lists;
  Out* out;
  Acc* partial;  // (tasks, 2, k, n): sums of a task's first and last group, where others share it

  template <typename Tile>
  JAX_GNN_INLINE void run(int64_t task) const {
    constexpr int kLanes = Tile::template kLanes<Acc>;
    constexpr int64_t kColumns = Tile::template kColumns<Acc>;
    const int64_t panels = (n + kColumns - 1) / kColumns;
    const int64_t first = even_share(num_rows, task, tasks);
    const int64_t last = even_share(num_rows, task + 1, tasks);
    const Scratch<Acc> packed(panels * kSteps * kColumns), sums(panels * k * kColumns);
    const Scratch<Acc> copied(copies() || !std::is_same_v<T, Acc> ? kSteps * k : 1);
    const T* right_rows[kSteps];
    alignas(64) const Acc zeros[kColumns] = {};
    for_each_piece(
        bounds, first, last, [&](int64_t begin, int64_t end, int64_t weight) JAX_GNN_LAMBDA {
          if (weight < 0) return;
          for (int64_t row = begin; row < end; row += kSteps) {
            const int64_t steps = std::min(kSteps, end - row);
            const Acc* const a = rows_of<kLanes>(row, steps, copied.get(), right_rows);
            for (int64_t p = 0; p < panels; ++p) {
              const int64_t width = std::min(n - p * kColumns, kColumns);
              Acc* const panel = packed.get() + p * kSteps * kColumns;
              for (int64_t s = 0; s < steps; ++s) {
                const T* const from = copies() ? right_rows[s] : rhs + (row + s) * n;
                widen_row<kLanes>(from + p * kColumns, from ? width : 0, panel + s * kColumns,
                                  kColumns);
              }
              if (p == 0) prefetch_rows(row + steps, std::min(row + steps + kSteps, last));
              for (int64_t i = 0; i < k;) {
                Acc* const tile = sums.get() + (p * k + i) * kColumns;
                i += with_tile<Tile::kRows>(
                    k - i, width <= kLanes, [&](auto rows, auto vectors) JAX_GNN_LAMBDA {
                      multiply_tile<Tile, decltype(rows)::value, decltype(vectors)::value>(
                          Factor<Acc, true>{a + i, k}, panel, kColumns, steps,
                          row == begin ? Rows<const Acc>{zeros, 0}
                                       : Rows<const Acc>{tile, kColumns},
                          Rows<Acc>{tile, kColumns}, a + (k + i) * steps);
                    });
              }
            }
          }
          const bool shared = bounds[weight] < first || bounds[weight + 1] > last;
          const bool is_first = bounds[weight] <= first;
          for (int64_t i = 0; i < k; ++i) {
            for (int64_t p = 0; p < panels; ++p) {
              const int64_t width = std::min(n - p * kColumns, kColumns), at = i * n + p * kColumns;
              const Acc* const from = sums.get() + (p * k + i) * kColumns;
              if (shared) {
                std::copy(from, from + width, partial_of(task, is_first) + at);
              } else {
                narrow_row<kLanes>(from, width, out + weight * k * n + at);
              }
            }
          }
        });
  }

  // Sums of those groups that no task has alone: none, or several in the order of the tasks.
  void finish(int64_t weight) const {
    const int64_t begin = bounds[weight], end = bounds[weight + 1];
    Out* const target = out + weight * k * n;
    if (begin == end) {
      std::fill(target, target + k * n, Out{});
      return;
    }
    const int64_t first = task_of(begin), last = task_of(end - 1);
    if (first == last) return;
    Acc* const sum = partial_of(first, begin <= even_share(num_rows, first, tasks));
    for (int64_t task = first + 1; task <= last; ++task) {
      const Acc* const term = partial_of(task, true);
      for (int64_t i = 0; i < k * n; ++i) sum[i] += term[i];
    }
    narrow_row<16 / sizeof(Acc)>(sum, k * n, target);
  }

 private:
  // Whether rows of the left factor are not those of lhs in order.
  JAX_GNN_INLINE bool copies() const {
    return lists.lhs_rows != nullptr || lists.rhs_rows != nullptr || lists.scale != nullptr;
  }

  // The left factor's rows, in the accumulator type: themselves or copied. With a copy, also where
  // the right one's are, null for rows that are left out, which are zeros on the left.
  template <int kLanes>
  JAX_GNN_INLINE const Acc* rows_of(int64_t row, int64_t count, Acc* copied,
                                    const T** right_rows) const {
    if (!copies()) return widen_rows<kLanes>(lhs + row * k, count * k, copied);
    const T* left_rows[kSteps];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t left = listed(lists.lhs_rows, row + i, lists.num_lhs);
      const int64_t right = listed(lists.rhs_rows, row + i, lists.num_rhs);
      const bool valid = left >= 0 && right >= 0;
      left_rows[i] = valid ? lhs + left * k : nullptr;
      right_rows[i] = valid ? rhs + right * n : nullptr;
    }
    for (int64_t i = 0; i < count; ++i) {
      const T* const from = left_rows[i];
      Acc* const to = copied + i * k;
      widen_row<kLanes>(from, from ? k : 0, to, k);
      if (from == nullptr || lists.scale == nullptr) continue;
      const Acc scale = lists.scale[row + i];
      for (int64_t j = 0; j < k; ++j) to[j] *= scale;
    }
    return copied;
  }

  // Fetches rows of both factors ahead of their copy, while others are multiplied.
  JAX_GNN_INLINE void prefetch_rows(int64_t begin, int64_t end) const {
    if (lists.lhs_rows == nullptr && lists.rhs_rows == nullptr) return;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t left = listed(lists.lhs_rows, row, lists.num_lhs);
      const int64_t right = listed(lists.rhs_rows, row, lists.num_rhs);
      if (left < 0 || right < 0) continue;
      prefetch<0>(lhs + left * k, k);
      prefetch<0>(rhs + right * n, n);
    }
  }

  Acc* partial_of(int64_t task, bool is_first) const {
    return partial + (2 * task + (is_first ? 0 : 1)) * k * n;
  }

  int64_t task_of(int64_t row) const {
    int64_t task = row * tasks / num_rows;
    while (even_share(num_rows, task, tasks) > row) --task;
    while (even_share(num_rows, task + 1, tasks) <= row) ++task;
    return task;
  }
};

}  // namespace

template <typename T, typename Acc, typename Out>
void segment_matmul(const ParallelFor& parallel_for, const Groups& groups, int64_t k, int64_t n,
                    bool transposed, Activation activation, const T* lhs, const T* rhs,
                    const T* bias, const Out* residual, const RowLists<Acc>& lists, Out* out) {
  expect_writes(out, groups.num_rows * n);
  // Every task packs the weights of its rows: it should have many rows of one group.
  const double operations = static_cast<double>(groups.num_rows) * static_cast<double>(k * n + 1);
  const int64_t tasks = std::clamp<int64_t>(static_cast<int64_t>(operations / (1 << 21)), 1,
                                            std::max<int64_t>(groups.num_rows / 512, 1));
  run_all(parallel_for, tasks,
          Matmul<T, Out>{bounds_of(groups), groups.num_rows, k, n, tasks, transposed, activation,
                         lhs, rhs, bias, residual, lists, out});
}

template <typename T, typename Acc, typename Out>
void segment_outer(const ParallelFor& parallel_for, const Groups& groups, int64_t k, int64_t n,
                   const T* lhs, const T* rhs, const FactorLists<Acc>& lists, Out* out) {
  // Makes as many tasks as the work is worth, but no more memory for them than the operands take.
  const int64_t rows = groups.num_rows, size = k * n;
  const double operations = static_cast<double>(rows) * static_cast<double>(size + 1);
  const double affordable = static_cast<double>(rows) * static_cast<double>(k + n) /
                            static_cast<double>(2 * std::max<int64_t>(size, 1));
  const int64_t tasks = std::clamp<int64_t>(
      static_cast<int64_t>(std::min(operations / (1 << 21), affordable)), 1, 64);
  const Scratch<Acc> partial(tasks > 1 ? 2 * tasks * size : 1);
  const Outer<T, Out> work = {bounds_of(groups), rows, k, n, tasks, lhs, rhs, lists, out,
                              partial.get()};
  run_all(parallel_for, tasks, work);
  const int64_t shares = task_count(
      static_cast<double>(groups.num_groups) * static_cast<double>(size), groups.num_groups);
  parallel_for(shares, [&](int64_t share) {
    const int64_t last = even_share(groups.num_groups, share + 1, shares);
    for (int64_t w = even_share(groups.num_groups, share, shares); w < last; ++w) work.finish(w);
  });
}

#define JAX_GNN_INSTANTIATE(T, Acc, Out)         \
  JAX_GNN_INSTANCE(segment_matmul<T, Acc, Out>); \
  JAX_GNN_INSTANCE(segment_outer<T, Acc, Out>);

JAX_GNN_INSTANTIATE(float, float, float)
JAX_GNN_INSTANTIATE(double, double, double)
JAX_GNN_INSTANTIATE(Half, float, Half)
JAX_GNN_INSTANTIATE(Half, float, float)
JAX_GNN_INSTANTIATE(BFloat16, float, BFloat16)
JAX_GNN_INSTANTIATE(BFloat16, float, float)

}  // namespace jax_gnn::cpu
