#include "segment_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "half.h"
#include "segment_walk.h"

namespace jax_gnn::cpu {
namespace {

template <typename T, typename Accumulator>
struct Softmax {
  using Acc = Accumulator;
  static constexpr int kStates = 2;  // maximum, sum of exponentials relative to it
  const T* x;
  T* y;
  int64_t width;

  JAX_GNN_INLINE void measure(int64_t begin, int64_t end, Acc* state) const {
    Acc *maximum = state, *sum = state + width;
    for (int64_t k = 0; k < width; ++k) {
      maximum[k] = -std::numeric_limits<Acc>::infinity();
      sum[k] = 0;
      for (int64_t e = begin; e < end; ++e) {
        const Acc v = widen(x[e * width + k]);
        if (v > maximum[k] || v != v) maximum[k] = v;
      }
      for (int64_t e = begin; e < end; ++e)
        sum[k] += std::exp(static_cast<Acc>(widen(x[e * width + k])) - maximum[k]);
    }
  }

  JAX_GNN_INLINE void apply(int64_t begin, int64_t end, const Acc* state) const {
    const Acc *maximum = state, *sum = state + width;
    for (int64_t e = begin; e < end; ++e)
      for (int64_t k = 0; k < width; ++k)
        y[e * width + k] = narrow<T>(static_cast<Acc>(
            std::exp(static_cast<Acc>(widen(x[e * width + k])) - maximum[k]) / sum[k]));
  }

  void combine(Acc* into, const Acc* from) const {
    for (int64_t k = 0; k < width; ++k) {
      const Acc a = into[k], b = from[k], maximum = b > a || b != b ? b : a;
      const auto part = [&](Acc sum, Acc own) {
        return own == maximum ? sum : sum * std::exp(own - maximum);
      };
      into[width + k] = part(into[width + k], a) + part(from[width + k], b);
      into[k] = maximum;
    }
  }
};

template <typename T, typename Accumulator>
struct Tangent {
  using Acc = Accumulator;
  static constexpr int kStates = 1;  // sum of y * t
  const T *y, *t;
  T* out;
  int64_t width;

  JAX_GNN_INLINE void measure(int64_t begin, int64_t end, Acc* sum) const {
    std::fill(sum, sum + width, Acc(0));
    for (int64_t e = begin; e < end; ++e)
      for (int64_t k = 0; k < width; ++k)
        sum[k] += static_cast<Acc>(widen(y[e * width + k])) * widen(t[e * width + k]);
  }

  JAX_GNN_INLINE void apply(int64_t begin, int64_t end, const Acc* sum) const {
    for (int64_t e = begin; e < end; ++e)
      for (int64_t k = 0; k < width; ++k)
        out[e * width + k] = narrow<T>(
            static_cast<Acc>(widen(y[e * width + k]) * (widen(t[e * width + k]) - sum[k])));
  }

  void combine(Acc* into, const Acc* from) const {
    for (int64_t k = 0; k < width; ++k) into[k] += from[k];
  }
};

// A share of the entries begins inside a row that goes on from the share before, up to head_end,
// and ends inside one that goes on in the next, from tail_begin. Either may be empty. If one row
// fills the whole share and more, it is the tail.
struct Part {
  int64_t begin, head_end, tail_begin, end;
};

template <typename Index>
Part part_of(const Segments<Index>& segments, int64_t begin, int64_t end) {
  const Index* rows = segments.rows;
  Part part = {begin, begin, end, end};
  if (begin == end) return part;
  if (end < segments.count && rows[end] == rows[end - 1])
    while (part.tail_begin > begin && rows[part.tail_begin - 1] == rows[end]) --part.tail_begin;
  if (begin > 0 && rows[begin - 1] == rows[begin] && part.tail_begin > begin)
    while (part.head_end < end && rows[part.head_end] == rows[begin]) ++part.head_end;
  return part;
}

template <typename Kernel, typename Index, typename T>
void normalize(const ParallelFor& parallel_for, const Kernel& kernel,
               const Segments<Index>& segments, int64_t width, T* out) {
  using Acc = typename Kernel::Acc;
  const int64_t count = segments.count;
  if (count == 0 || width == 0) return;
  const Index* rows = segments.rows;
  const int64_t tasks =
      task_count(static_cast<double>(count) * static_cast<double>(std::max<int64_t>(width, 4)) * 8,
                 std::min<int64_t>(count, 1024));
  const auto part = [&](int64_t task) {
    return part_of(segments, even_share(count, task, tasks), even_share(count, task + 1, tasks));
  };
  const Carries<Acc> carries(tasks, Kernel::kStates * width);
  const auto apply = [&](int64_t begin, int64_t end, const Acc* state) {
    if (begin == end) return;
    if (in_range(rows[begin], segments.num_rows)) {
      kernel.apply(begin, end, state);
    } else {
      std::fill(out + begin * width, out + end * width, T{});
    }
  };
  parallel_for(tasks, [&](int64_t task) {
    const Part p = part(task);
    if (p.head_end > p.begin) kernel.measure(p.begin, p.head_end, carries.head(task));
    if (p.end > p.tail_begin) kernel.measure(p.tail_begin, p.end, carries.tail(task));
    std::vector<Acc> state(static_cast<size_t>(Kernel::kStates * width));
    for (int64_t e = p.head_end; e < p.tail_begin;) {
      const int64_t end = end_of_run(rows, e, p.tail_begin, rows[e]);
      kernel.measure(e, end, state.data());
      apply(e, end, state.data());
      e = end;
    }
  });
  // Rows that more than one share has a part of: all parts get the whole row's state.
  int64_t first = -1;  // the share in which the row at hand begins
  for (int64_t task = 0; task < tasks; ++task) {
    const Part p = part(task);
    if (first >= 0 && p.head_end > p.begin) {
      Acc* const state = carries.tail(first);
      kernel.combine(state, carries.head(task));
      std::copy_n(state, Kernel::kStates * width, carries.head(task));
      for (int64_t t = first + 1; t < task; ++t)
        std::copy_n(state, Kernel::kStates * width, carries.tail(t));
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
  parallel_for(tasks, [&](int64_t task) {
    const Part p = part(task);
    apply(p.begin, p.head_end, carries.head(task));
    apply(p.tail_begin, p.end, carries.tail(task));
  });
}

}  // namespace

template <typename T, typename Acc, typename Index>
void segment_softmax(const ParallelFor& parallel_for, const Segments<Index>& segments, const T* x,
                     int64_t width, T* y) {
  normalize(parallel_for, Softmax<T, Acc>{x, y, width}, segments, width, y);
}

template <typename T, typename Acc, typename Index>
void segment_softmax_tangent(const ParallelFor& parallel_for, const Segments<Index>& segments,
                             const T* y, const T* t, int64_t width, T* out) {
  normalize(parallel_for, Tangent<T, Acc>{y, t, out, width}, segments, width, out);
}

#define JAX_GNN_INSTANTIATE(T, Acc, Index)                                                    \
  template void segment_softmax<T, Acc>(const ParallelFor&, const Segments<Index>&, const T*, \
                                        int64_t, T*);                                         \
  template void segment_softmax_tangent<T, Acc>(const ParallelFor&, const Segments<Index>&,   \
                                                const T*, const T*, int64_t, T*);
#define JAX_GNN_INSTANTIATE_INDEX(Index)     \
  JAX_GNN_INSTANTIATE(float, float, Index)   \
  JAX_GNN_INSTANTIATE(double, double, Index) \
  JAX_GNN_INSTANTIATE(Half, float, Index)    \
  JAX_GNN_INSTANTIATE(BFloat16, float, Index)

JAX_GNN_INSTANTIATE_INDEX(int32_t)

}  // namespace jax_gnn::cpu
