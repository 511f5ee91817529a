// Entries are dealt out to tasks as in segment_walk.h, and a task goes through its share in blocks
// that end where rows end. Of a block, weights are computed first, across entries and heads, into a
// few arrays that fit into the first cache; then its rows are summed up, tile by tile. A row that
// does not fit into a block, or that more than one task has a part of, has a state, from which its
// sums start and in which they are left.
#include "edge_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>

#include "dot.h"
#include "exp.h"
#include "half.h"
#include "leaky.h"
#include "pages.h"
#include "segment_walk.h"

namespace jax_gnn::cpu {
namespace {

constexpr int64_t kBlockEntries = 256;   // at most
constexpr int64_t kBlockNumbers = 1024;  // entries times heads: at most, but for many heads

// Calls body(integral_constant kLanes, k) so as to cover [first, last) once, by powers of two of
// elements.
template <int kLanes, typename Body>
JAX_GNN_INLINE void cover_once(int64_t first, int64_t last, const Body& body) {
  for (; first + kLanes <= last; first += kLanes)
    body(std::integral_constant<int, kLanes>{}, first);
  if constexpr (kLanes > 1) cover_once<kLanes / 2>(first, last, body);
}

template <typename Acc>
constexpr int kVectorLanes = 32 / sizeof(Acc);

// What a block has of a row: entries [begin, end) of those that are no padding.
template <typename Acc>
struct Part {
  int64_t row;
  int32_t begin, end;
  bool finishes;  // the row's result is written
  Acc* state;     // of a row that other blocks have a part of, else null
};

// A block, without padding.
template <typename Acc, typename Index>
struct Block {
  int64_t first_entry;  // where it begins, padding included
  int32_t count, num_parts;
  Index col[kBlockEntries], place[kBlockEntries];
  Part<Acc> parts[kBlockEntries];
};

// Numbers for the entries of a block or its parts, (entries, heads), and some to spare, so that
// whole vectors may be used.
template <typename Acc>
class Numbers {
 public:
  Numbers(int64_t entries, int64_t heads)
      : heads_(heads), data_(new Acc[entries * heads + kVectorLanes<Acc>]()) {}
  JAX_GNN_INLINE Acc* operator[](int64_t entry) const { return &data_[entry * heads_]; }

  // Calls body(k) for vectors from element k on that cover `entries` entries.
  template <typename Body>
  JAX_GNN_INLINE void for_each_vector(int64_t entries, const Body& body) const {
    for (int64_t k = 0; k < entries * heads_; k += kVectorLanes<Acc>) body(k);
  }

 private:
  int64_t heads_;
  std::unique_ptr<Acc[]> data_;
};

template <typename Acc>
JAX_GNN_INLINE void exponentiate(const Numbers<Acc>& numbers, int64_t entries) {
  constexpr int kLanes = kVectorLanes<Acc>;
  Acc* const x = numbers[0];
  numbers.for_each_vector(entries, [&](int64_t k) JAX_GNN_LAMBDA {
    store<kLanes>(x + k, exp<kLanes>(load<kLanes>(x + k)));
  });
}

// How numbers of heads spread over a tile of columns.
template <typename Acc, int kTile>
class Spread {
 public:
  static constexpr int kLanes = Shape<Acc, kTile>::kLanes;
  static constexpr int kVectors = Shape<Acc, kTile>::kVectors;
  using V = typename Shape<Acc, kTile>::V;

  JAX_GNN_INLINE Spread(Features features, int64_t column) : whole_vectors_(true) {
    const int64_t group = features.width / features.heads;
    auto head = static_cast<int32_t>(column / group);
    int64_t left = (head + 1) * group - column;
    for (int k = 0; k < kTile; ++k) {
      head_[k] = head;
      whole_vectors_ &= head == head_[k / kLanes * kLanes];
      if (--left == 0) {
        ++head;
        left = group;
      }
    }
  }

  // Calls body(v, number) for each vector of columns.
  template <typename Body>
  JAX_GNN_INLINE void for_each(const Acc* numbers, const Body& body) const {
    if (head_[0] == head_[kTile - 1]) {
      const V all = broadcast<V>(numbers[head_[0]]);
      unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA { body(v, all); });
    } else if (whole_vectors_) {
      unrolled<kVectors>([&](int v)
                             JAX_GNN_LAMBDA { body(v, broadcast<V>(numbers[head_[v * kLanes]])); });
    } else {
      Acc spread[kTile];
      for (int k = 0; k < kTile; ++k) spread[k] = numbers[head_[k]];
      unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA { body(v, load<kLanes>(spread + v * kLanes)); });
    }
  }

 private:
  int32_t head_[kTile];  // that each column belongs to
  bool whole_vectors_;   // the columns of each vector belong to one head
};

// Columns in tiles, those of wide heads in tiles of their own.
template <typename Acc, typename Body>
JAX_GNN_INLINE void for_each_tile_once(Features features, const Body& body) {
  constexpr int64_t kWideHead = 16;
  const int64_t group = features.width / features.heads;
  const int64_t step = group >= kWideHead ? group : features.width;
  for (int64_t first = 0; first < features.width; first += step)
    cover_once<kWidestTile<Acc>>(first, first + step, body);
}

// Adds up weight * in[col, :] for the rows of a block, and finishes those that end there, times
// `factor` where that is given, by part.
template <typename T, typename Index>
JAX_GNN_INLINE void sum_up(const Csr<Index>& csr, const Block<Accumulator<T>, Index>& block,
                           const T* in, Features features, const Numbers<Accumulator<T>>& weights,
                           const Numbers<Accumulator<T>>* factors, T* out) {
  using Acc = Accumulator<T>;
  const int64_t width = features.width;
  for_each_tile_once<Acc>(features, [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
    constexpr int kTile = decltype(tile)::value;
    constexpr int kLanes = Shape<Acc, kTile>::kLanes, kVectors = Shape<Acc, kTile>::kVectors;
    using V = typename Shape<Acc, kTile>::V;
    const Spread<Acc, kTile> spread(features, column);
    for (int32_t p = 0; p < block.num_parts; ++p) {
      const Part<Acc>& part = block.parts[p];
      V sum[kVectors];
      unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA { sum[v] = broadcast<V>(Acc(0)); });
      if (part.state) {
        unrolled<kVectors>(
            [&](int v) JAX_GNN_LAMBDA { sum[v] = load<kLanes>(part.state + column + v * kLanes); });
      }
      for (int32_t i = part.begin; i < part.end; ++i) {
        prefetch_ahead(csr, block.first_entry + i, in, width, column, kTile);
        const T* const from = in + static_cast<int64_t>(block.col[i]) * width + column;
        spread.for_each(weights[i], [&](int v, V weight) JAX_GNN_LAMBDA {
          sum[v] += weight * load<kLanes>(from + v * kLanes);
        });
      }
      if (part.state) {
        unrolled<kVectors>(
            [&](int v) JAX_GNN_LAMBDA { store<kLanes>(part.state + column + v * kLanes, sum[v]); });
      }
      if (!part.finishes) continue;
      T* const to = out + part.row * width + column;
      if (factors) {
        spread.for_each((*factors)[p], [&](int v, V factor) JAX_GNN_LAMBDA {
          store<kLanes>(to + v * kLanes, sum[v] * factor);
        });
      } else {
        unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA { store<kLanes>(to + v * kLanes, sum[v]); });
      }
    }
  });
}

// Multiplies weights by those numbers of edges that belong to the entries.
template <typename Acc, typename Index>
JAX_GNN_INLINE void scale(const Block<Acc, Index>& block, const Acc* scales, int64_t heads,
                          const Numbers<Acc>& weights) {
  cover_once<kVectorLanes<Acc>>(0, heads, [&](auto lanes, int64_t h) JAX_GNN_LAMBDA {
    constexpr int kLanes = decltype(lanes)::value;
    for (int32_t i = 0; i < block.count; ++i) {
      const Acc* const from = scales + static_cast<int64_t>(block.place[i]) * heads + h;
      store<kLanes>(weights[i] + h, load<kLanes>(weights[i] + h) * load<kLanes>(from));
    }
  });
}

// A Kernel is what becomes of a block:
//   csr, features, state_size(); Scratch(kernel, entries): arrays for the entries of a block
//   expect(col, place): prefetches what the entry's weights are computed from
//   run(block, scratch): all that there is to do
//   start(state); combine(into, from); finish(row, state): of rows with states
//   fill(row, last_row): rows without entries
// Here: rows are weighted sums, normalized at last. A state: the sums, the maxima that they are
// relative to, the sums of exponentials.
template <typename T, typename Index>
struct Forward {
  using Acc = Accumulator<T>;
  Csr<Index> csr;
  const T* value;
  Attention<Acc> attention;
  Features features;
  T* out;
  SoftmaxStats<Acc>* stats;

  struct Scratch {
    Numbers<Acc> weights, tops, sums, logs;  // all but the first by part
    Scratch(const Forward& kernel, int64_t entries)
        : weights(entries, kernel.features.heads),
          tops(entries, kernel.features.heads),
          sums(entries, kernel.features.heads),
          logs(entries, kernel.features.heads) {}
  };

  int64_t state_size() const { return features.width + 2 * features.heads; }
  JAX_GNN_INLINE Acc* tops_of(Acc* state) const { return state + features.width; }
  JAX_GNN_INLINE Acc* sums_of(Acc* state) const { return tops_of(state) + features.heads; }

  void start(Acc* state) const {
    std::fill_n(state, state_size(), Acc(0));
    std::fill_n(tops_of(state), features.heads, -std::numeric_limits<Acc>::infinity());
  }

  // Makes a head of the state relative to another maximum.
  void rescale(Acc* state, int64_t h, Acc top) const {
    Acc& own = tops_of(state)[h];
    Acc& sum = sums_of(state)[h];
    const Acc factor = sum == 0 ? Acc(0) : std::exp(finite_or_zero(own) - finite_or_zero(top));
    own = top;
    sum *= factor;
    const int64_t group = features.width / features.heads;
    for (int64_t k = h * group; k < (h + 1) * group; ++k) state[k] *= factor;
  }

  void combine(Acc* into, Acc* from) const {
    for (int64_t h = 0; h < features.heads; ++h) {
      const Acc top = larger(tops_of(into)[h], tops_of(from)[h]);
      rescale(into, h, top);
      rescale(from, h, top);
      sums_of(into)[h] += sums_of(from)[h];
    }
    for (int64_t k = 0; k < features.width; ++k) into[k] += from[k];
  }

  // Of sums of exponentials: 0 and inf where there is nothing to sum up.
  template <typename V>
  static JAX_GNN_INLINE V inverse(V sum) {
    return sum == 0 ? broadcast<V>(Acc(0)) : 1 / sum;
  }
  template <int kLanes, typename V>
  static JAX_GNN_INLINE V log_sum(V sum) {
    return sum == 0 ? broadcast<V>(std::numeric_limits<Acc>::infinity()) : log<kLanes>(sum);
  }

  void finish(int64_t row, Acc* state) const {
    const int64_t group = features.width / features.heads;
    for (int64_t h = 0; h < features.heads; ++h) {
      const Acc sum = sums_of(state)[h];
      stats[row * features.heads + h] = {finite_or_zero(tops_of(state)[h]), log_sum<1>(sum)};
      for (int64_t k = h * group; k < (h + 1) * group; ++k)
        out[row * features.width + k] = narrow<T>(state[k] * inverse(sum));
    }
  }

  void fill(int64_t row, int64_t last_row) const {
    std::fill(out + row * features.width, out + last_row * features.width, T{});
    const SoftmaxStats<Acc> none = {0, std::numeric_limits<Acc>::infinity()};
    std::fill(stats + row * features.heads, stats + last_row * features.heads, none);
  }

  JAX_GNN_INLINE void expect(int64_t col, int64_t place) const {
    const int64_t heads = features.heads, bytes = std::min<int64_t>(heads * sizeof(Acc), 256);
    if (attention.edge_score) {
      if (csr.order) prefetch(attention.edge_score + place * heads, bytes);
    } else {
      prefetch(attention.src_score + col * heads, bytes);
    }
    if (attention.edge_scale && csr.order) prefetch(attention.edge_scale + place * heads, bytes);
  }

  // Weights are scores relative to the largest of the row; and those.
  JAX_GNN_INLINE void score(const Block<Acc, Index>& block, const Scratch& scratch) const {
    const int64_t heads = features.heads;
    cover_once<kVectorLanes<Acc>>(0, heads, [&](auto lanes, int64_t h) JAX_GNN_LAMBDA {
      constexpr int kLanes = decltype(lanes)::value;
      using V = Vector<Acc, kLanes>;
      for (int32_t p = 0; p < block.num_parts; ++p) {
        const Part<Acc>& part = block.parts[p];
        V top = broadcast<V>(-std::numeric_limits<Acc>::infinity());
        if (part.state) top = load<kLanes>(tops_of(part.state) + h);
        if (attention.edge_score) {
          for (int32_t i = part.begin; i < part.end; ++i) {
            const V x = load<kLanes>(attention.edge_score +
                                     static_cast<int64_t>(block.place[i]) * heads + h);
            store<kLanes>(scratch.weights[i] + h, x);
            top = larger(top, x);
          }
        } else if (part.begin < part.end) {
          const V own = load<kLanes>(attention.dst_score + part.row * heads + h);
          for (int32_t i = part.begin; i < part.end; ++i) {
            const V other =
                load<kLanes>(attention.src_score + static_cast<int64_t>(block.col[i]) * heads + h);
            const V x = leaky(own + other, attention.slope);
            store<kLanes>(scratch.weights[i] + h, x);
            top = larger(top, x);
          }
        }
        store<kLanes>(scratch.tops[p] + h, top);
        top = finite_or_zero(top);
        for (int32_t i = part.begin; i < part.end; ++i) {
          Acc* const at = scratch.weights[i] + h;
          store<kLanes>(at, load<kLanes>(at) - top);
        }
      }
    });
  }

  JAX_GNN_INLINE void run(const Block<Acc, Index>& block, const Scratch& scratch) const {
    const int64_t heads = features.heads;
    score(block, scratch);
    exponentiate(scratch.weights, block.count);
    for (int32_t p = 0; p < block.num_parts; ++p)
      if (Acc* const state = block.parts[p].state)
        for (int64_t h = 0; h < heads; ++h) rescale(state, h, scratch.tops[p][h]);
    cover_once<kVectorLanes<Acc>>(0, heads, [&](auto lanes, int64_t h) JAX_GNN_LAMBDA {
      constexpr int kLanes = decltype(lanes)::value;
      for (int32_t p = 0; p < block.num_parts; ++p) {
        const Part<Acc>& part = block.parts[p];
        auto sum = broadcast<Vector<Acc, kLanes>>(Acc(0));
        for (int32_t i = part.begin; i < part.end; ++i) sum += load<kLanes>(scratch.weights[i] + h);
        if (part.state) {
          sum += load<kLanes>(sums_of(part.state) + h);
          store<kLanes>(sums_of(part.state) + h, sum);
        }
        store<kLanes>(scratch.sums[p] + h, sum);
      }
    });
    scratch.sums.for_each_vector(block.num_parts, [&](int64_t k) JAX_GNN_LAMBDA {
      constexpr int kLanes = kVectorLanes<Acc>;
      const auto sum = load<kLanes>(scratch.sums[0] + k);
      store<kLanes>(scratch.logs[0] + k, log_sum<kLanes>(sum));
      store<kLanes>(scratch.sums[0] + k, inverse(sum));
      store<kLanes>(scratch.tops[0] + k, finite_or_zero(load<kLanes>(scratch.tops[0] + k)));
    });
    for (int32_t p = 0; p < block.num_parts; ++p) {
      if (!block.parts[p].finishes) continue;
      SoftmaxStats<Acc>* const to = stats + block.parts[p].row * heads;
      for (int64_t h = 0; h < heads; ++h) to[h] = {scratch.tops[p][h], scratch.logs[p][h]};
    }
    if (attention.edge_scale) scale(block, attention.edge_scale, heads, scratch.weights);
    sum_up(csr, block, value, features, scratch.weights, &scratch.sums, out);
  }
};

// Rows are plain sums, as weights are known. A state: the sums, and those of scores' cotangents.
template <typename T, typename Index>
struct Backward {
  using Acc = Accumulator<T>;
  Csr<Index> csr;
  const T *ct, *value;
  const AttentionRecord<Acc>* records;
  Attention<Acc> attention;
  Features features;
  T* out;
  Acc *to_src_score, *to_score;

  struct Scratch {
    Numbers<Acc> weights, deltas, sums, dots;
    std::unique_ptr<Acc[]> row;  // of values, widened
    Scratch(const Backward& kernel, int64_t entries)
        : weights(entries, kernel.features.heads),
          deltas(entries, kernel.features.heads),
          sums(entries, kernel.features.heads),
          dots(entries, kernel.features.heads),
          row(std::is_same_v<T, Acc> ? nullptr : new Acc[kernel.features.width]) {}
  };

  int64_t state_size() const { return features.width + features.heads; }
  void start(Acc* state) const { std::fill_n(state, state_size(), Acc(0)); }
  void combine(Acc* into, const Acc* from) const {
    for (int64_t k = 0; k < state_size(); ++k) into[k] += from[k];
  }
  void finish(int64_t row, const Acc* state) const {
    for (int64_t k = 0; k < features.width; ++k)
      out[row * features.width + k] = narrow<T>(state[k]);
    if (to_src_score)
      std::copy_n(state + features.width, features.heads, to_src_score + row * features.heads);
  }
  void fill(int64_t row, int64_t last_row) const {
    std::fill(out + row * features.width, out + last_row * features.width, T{});
    if (to_src_score)
      std::fill(to_src_score + row * features.heads, to_src_score + last_row * features.heads,
                Acc(0));
  }

  JAX_GNN_INLINE void expect(int64_t col, int64_t place) const {
    const int64_t heads = features.heads, bytes = std::min<int64_t>(heads * sizeof(Acc), 256);
    prefetch(records + col * heads, 4 * bytes);
    if (!csr.order) return;
    __builtin_prefetch(to_score + place * heads, /*write=*/1);
    if (attention.edge_score) prefetch(attention.edge_score + place * heads, bytes);
    if (attention.edge_scale) prefetch(attention.edge_scale + place * heads, bytes);
  }

  // Weights without the scale, and what goes with them.
  JAX_GNN_INLINE void weigh(const Block<Acc, Index>& block, const Scratch& scratch) const {
    const int64_t heads = features.heads;
    cover_once<kVectorLanes<Acc>>(0, heads, [&](auto lanes, int64_t h) JAX_GNN_LAMBDA {
      constexpr int kLanes = decltype(lanes)::value;
      using V = Vector<Acc, kLanes>;
      for (int32_t p = 0; p < block.num_parts; ++p) {
        const Part<Acc>& part = block.parts[p];
        if (part.begin == part.end) continue;
        const Acc* const own =
            attention.edge_score ? nullptr : attention.src_score + part.row * heads + h;
        for (int32_t i = part.begin; i < part.end; ++i) {
          const Fields<V> record =
              fields<kLanes>(records + static_cast<int64_t>(block.col[i]) * heads + h);
          V score;
          if (attention.edge_score) {
            score = load<kLanes>(attention.edge_score +
                                 static_cast<int64_t>(block.place[i]) * heads + h);
          } else {
            const V sum = record.dst_score + load<kLanes>(own);
            store<kLanes>(scratch.sums[i] + h, sum);
            score = leaky(sum, attention.slope);
          }
          store<kLanes>(scratch.weights[i] + h, (score - record.top) - record.log_sum);
          store<kLanes>(scratch.deltas[i] + h, record.delta);
        }
      }
    });
    exponentiate(scratch.weights, block.count);
  }

  JAX_GNN_INLINE void take_dots(const Block<Acc, Index>& block, const Scratch& scratch) const {
    const int64_t width = features.width, heads = features.heads, group = width / heads;
    const int64_t columns_ahead = std::min<int64_t>(width, 256);
    constexpr int kLanes = kVectorLanes<Acc>;
    for (int32_t p = 0; p < block.num_parts; ++p) {
      const Part<Acc>& part = block.parts[p];
      const Acc* row;
      if constexpr (std::is_same_v<T, Acc>) {
        row = value + part.row * width;
      } else {
        cover_once<kLanes>(0, width, [&](auto lanes, int64_t k) JAX_GNN_LAMBDA {
          constexpr int kWide = decltype(lanes)::value;
          store<kWide>(&scratch.row[k], load<kWide>(value + part.row * width + k));
        });
        row = scratch.row.get();
      }
      for (int32_t i = part.begin; i < part.end; ++i) {
        prefetch_ahead(csr, block.first_entry + i, ct, width, 0, columns_ahead);
        const T* const other = ct + static_cast<int64_t>(block.col[i]) * width;
        Acc* const dots = scratch.dots[i];
        int64_t h = 0;
        if (group % kLanes == 0) {  // several heads at once
          for (; h + kLanes <= heads; h += kLanes) {
            Vector<Acc, kLanes> products[kLanes];
            unrolled<kLanes>([&](int k) JAX_GNN_LAMBDA {
              const Product<T> product = {row + (h + k) * group, other + (h + k) * group};
              products[k] = product.template operator()<kLanes>(0);
              for (int64_t more = kLanes; more < group; more += kLanes)
                products[k] += product.template operator()<kLanes>(more);
            });
            store<kLanes>(dots + h, sums_of_each(products));
          }
        }
        for (; h < heads; ++h)
          dots[h] = sum_of_terms<Acc>(group, Product<T>{row + h * group, other + h * group});
      }
    }
  }

  JAX_GNN_INLINE void run(const Block<Acc, Index>& block, const Scratch& scratch) const {
    constexpr int kLanes = kVectorLanes<Acc>;
    using V = Vector<Acc, kLanes>;
    const int64_t heads = features.heads;
    weigh(block, scratch);
    take_dots(block, scratch);
    if (attention.edge_scale) scale(block, attention.edge_scale, heads, scratch.dots);
    scratch.dots.for_each_vector(block.count, [&](int64_t k) JAX_GNN_LAMBDA {
      const auto at = [&](const Numbers<Acc>& numbers)
                          JAX_GNN_LAMBDA { return load<kLanes>(numbers[0] + k); };
      V result = at(scratch.weights) * (at(scratch.dots) - at(scratch.deltas));
      if (!attention.edge_score) result *= leaky_slope(at(scratch.sums), attention.slope);
      store<kLanes>(scratch.dots[0] + k, result);
    });
    cover_once<kLanes>(0, heads, [&](auto lanes, int64_t h) JAX_GNN_LAMBDA {
      constexpr int kWide = decltype(lanes)::value;
      for (int32_t i = 0; i < block.count; ++i) {
        store<kWide>(to_score + static_cast<int64_t>(block.place[i]) * heads + h,
                     load<kWide>(scratch.dots[i] + h));
      }
      if (!to_src_score) return;
      for (int32_t p = 0; p < block.num_parts; ++p) {
        const Part<Acc>& part = block.parts[p];
        Acc* const to =
            part.state ? part.state + features.width + h : to_src_score + part.row * heads + h;
        auto sum = broadcast<Vector<Acc, kWide>>(Acc(0));
        if (part.state) sum = load<kWide>(to);
        for (int32_t i = part.begin; i < part.end; ++i) sum += load<kWide>(scratch.dots[i] + h);
        store<kWide>(to, sum);
        if (part.state && part.finishes) store<kWide>(to_src_score + part.row * heads + h, sum);
      }
    });
    if (attention.edge_scale) scale(block, attention.edge_scale, heads, scratch.weights);
    sum_up(csr, block, ct, features, scratch.weights, nullptr, out);
  }

 private:
  // Those of several records, an AttentionRecord of vectors.
  template <typename V>
  struct Fields {
    V dst_score, top, log_sum, delta;
  };

  template <int kLanes>
  static JAX_GNN_INLINE Fields<Vector<Acc, kLanes>> fields(const AttentionRecord<Acc>* from) {
    using V = Vector<Acc, kLanes>;
    static_assert(sizeof *from == 4 * sizeof(Acc));
    if constexpr (kLanes == 1) {
      return {from->dst_score, from->stats.top, from->stats.log_sum, from->delta};
    } else if constexpr (kLanes == 8) {
      // Records four apart share a vector, which then are transposed by halves.
      const auto both = [&](int k) JAX_GNN_LAMBDA {
        const auto low = bit_cast<Vector<Acc, 4>>(from[k]),
                   high = bit_cast<Vector<Acc, 4>>(from[k + 4]);
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
      };
      const auto low = [](V a, V b) JAX_GNN_LAMBDA {
        return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
      };
      const auto high = [](V a, V b) JAX_GNN_LAMBDA {
        return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
      };
      const V a = both(0), b = both(1), c = both(2), d = both(3);
      const V first = low(a, c), second = low(b, d), third = high(a, c), fourth = high(b, d);
      return {low(first, second), high(first, second), low(third, fourth), high(third, fourth)};
    } else {
      Acc fields[4][kLanes];
      for (int k = 0; k < kLanes; ++k) {
        fields[0][k] = from[k].dst_score;
        fields[1][k] = from[k].stats.top;
        fields[2][k] = from[k].stats.log_sum;
        fields[3][k] = from[k].delta;
      }
      return {load<kLanes>(fields[0]), load<kLanes>(fields[1]), load<kLanes>(fields[2]),
              load<kLanes>(fields[3])};
    }
  }

  template <typename U>
  struct Product {
    const Acc* a;
    const U* b;

    template <int kLanes>
    JAX_GNN_INLINE auto operator()(int64_t k) const {
      return load<kLanes>(a + k) * load<kLanes>(b + k);
    }
  };
};

// Terms of the dot of two rows.
template <typename T>
struct RowProduct {
  const T *a, *b;

  template <int kLanes>
  JAX_GNN_INLINE auto operator()(int64_t k) const {
    return load<kLanes>(a + k) * load<kLanes>(b + k);
  }
};

// The records of destinations, of which each has a number for each head.
template <typename T, typename Acc>
void make_records(const ParallelFor& parallel_for, const Attained<T, Acc>& attained,
                  const Acc* dst_score, int64_t num_rows, Features features,
                  AttentionRecord<Acc>* records) {
  const int64_t count = num_rows * features.heads, group = features.width / features.heads;
  const int64_t tasks = task_count(static_cast<double>(num_rows) * features.width, 1024);
  parallel_for(tasks, [&](int64_t task) {
    with_vectors([&](auto) JAX_GNN_LAMBDA {
      for (int64_t i = even_share(count, task, tasks); i < even_share(count, task + 1, tasks);
           ++i) {
        const RowProduct<T> product = {attained.ct + i * group, attained.y + i * group};
        const Acc less = attained.log_sum_ct ? attained.log_sum_ct[i] : Acc(0);
        records[i] = {dst_score ? dst_score[i] : Acc(0), attained.stats[i],
                      sum_of_terms<Acc>(group, product) - less};
      }
    });
  });
}

// A task's way through its share.
template <typename Kernel, typename Index>
struct Walk {
  using Acc = typename Kernel::Acc;
  const Kernel& kernel;
  const Csr<Index>& csr;
  Position from, to;
  Acc *head, *tail, *inner;  // states

  // What the task leaves of rows that it shares.
  JAX_GNN_INLINE Carry run(const Bounds& bounds) const {
    const Index* const rows = csr.rows;
    const int64_t heads = kernel.features.heads;
    const int64_t limit = std::clamp<int64_t>(kBlockNumbers / heads, 1, kBlockEntries);
    const typename Kernel::Scratch scratch(kernel, limit);
    Block<Acc, Index> block;
    Carry carry = {-1, 0, -1, 0};
    int64_t row = from.row;  // the first that nothing has been done about
    Open open = {-1, nullptr};
    // The first row may have begun in the share before; even if none of its entries are left.
    if (row < to.row && from.entry > bounds.begin && rows[from.entry - 1] == row) {
      kernel.start(head);
      open = {row, head};
      carry.head_row = row++;
    }
    for (int64_t begin = from.entry, end; begin < to.entry; begin = end) {
      end = std::min(begin + limit, to.entry);
      if (end < to.entry) {  // back to where a row begins, if that is in the block
        int64_t cut = end;
        while (cut > begin && rows[cut] == rows[cut - 1]) --cut;
        if (cut > begin) end = cut;
      }
      fill(block, begin, end, row, open, carry);
      kernel.run(block, scratch);
    }
    if (row < to.row) kernel.fill(row, to.row);
    return carry;
  }

 private:
  // A row that other blocks have a part of.
  struct Open {
    int64_t row;
    Acc* state;
  };

  JAX_GNN_INLINE void fill(Block<Acc, Index>& block, int64_t begin, int64_t end, int64_t& row,
                           Open& open, Carry& carry) const {
    const Index* const rows = csr.rows;
    block.first_entry = begin;
    block.count = 0;
    block.num_parts = 0;
    for (int64_t e = begin; e < end;) {
      const int64_t id = rows[e];
      if (!in_range(id, csr.num_rows) || id > to.row || (id < row && id != open.row)) {
        // Ids are not sorted after all.
        ++e;
        continue;
      }
      Part<Acc>& part = block.parts[block.num_parts++];
      part.row = id;
      part.begin = block.count;
      do {
        const int64_t col = col_of(csr, e), place = weight_of(csr, e);
        if (col >= 0 && place >= 0) {
          block.col[block.count] = static_cast<Index>(col);
          block.place[block.count++] = static_cast<Index>(place);
          kernel.expect(col, place);
        }
      } while (++e < end && rows[e] == id);
      part.end = block.count;
      const bool ends = id < to.row && (e < end || end == to.entry || rows[end] != id);
      if (id != open.row) {
        kernel.fill(row, id);
        row = id + 1;
        open = {id, nullptr};
        if (!ends) {
          open.state = id == to.row ? tail : inner;
          kernel.start(open.state);
          if (id == to.row) carry.tail_row = id;
        }
      }
      part.state = open.state;
      part.finishes = ends && open.state != head;
      if (ends) open.row = -1;
    }
  }
};

template <typename Kernel, typename Index>
bool run_in_tasks(const ParallelFor& parallel_for, const Kernel& kernel, const Csr<Index>& csr,
                  const Bounds& bounds, int64_t tasks) {
  using Acc = typename Kernel::Acc;
  const Carries<Acc> carries(tasks, kernel.state_size());
  std::atomic<bool> apart{true};
  parallel_for(tasks, [&](int64_t task) {
    const Position from = share(csr, bounds, task, tasks);
    const Position to = share(csr, bounds, task + 1, tasks);
    // Rows from the first to the last are covered: they overlap only where some go backward.
    if (from.row > to.row) {
      apart.store(false, std::memory_order_relaxed);
      return;
    }
    const std::unique_ptr<Acc[]> inner(new Acc[kernel.state_size()]);
    const Walk<Kernel, Index> walk = {
        kernel, csr, from, to, carries.head(task), carries.tail(task), inner.get()};
    with_vectors([&](auto) JAX_GNN_LAMBDA { carries.of(task) = walk.run(bounds); });
  });
  if (!apart) return false;
  Acc* state = nullptr;  // of the parts so far of a row that tasks share
  const auto add = [&](Acc* part) {
    if (state) {
      kernel.combine(state, part);
    } else {
      state = part;
    }
  };
  for (int64_t task = 0; task < tasks; ++task) {
    const Carry& carry = carries.of(task);
    if (carry.head_row >= 0) {
      add(carries.head(task));
      kernel.finish(carry.head_row, state);
      state = nullptr;
    }
    if (carry.tail_row >= 0) add(carries.tail(task));
  }
  return true;
}

template <typename Kernel, typename Index>
void run_all(const ParallelFor& parallel_for, const Kernel& kernel, const Csr<Index>& csr) {
  if (csr.num_rows == 0) return;
  const Features features = kernel.features;
  expect_writes(kernel.out, csr.num_rows * features.width);
  const Bounds bounds = valid_entries(csr);
  const double items = static_cast<double>(csr.count) + static_cast<double>(csr.num_rows);
  const double cost =
      static_cast<double>(features.width) + 16 * static_cast<double>(features.heads);
  const int64_t limit = std::clamp<int64_t>((1 << 22) / (kernel.state_size() + 1), 1, 1024);
  if (!run_in_tasks(parallel_for, kernel, csr, bounds, task_count(items * cost, limit)))
    run_in_tasks(parallel_for, kernel, csr, bounds, 1);  // rows are not sorted
}

}  // namespace

template <typename T, typename Acc, typename Index>
void edge_attention(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* value,
                    const Attention<Acc>& attention, Features features, T* out,
                    SoftmaxStats<Acc>* stats) {
  run_all(parallel_for, Forward<T, Index>{csr, value, attention, features, out, stats}, csr);
}

template <typename T, typename Acc, typename Index>
void edge_attention_vjp(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* value,
                        const Attained<T, Acc>& attained, const Attention<Acc>& attention,
                        Features features, T* out, Acc* to_src_score, Acc* to_score,
                        AttentionRecord<Acc>* records) {
  make_records(parallel_for, attained, attention.dst_score, csr.num_cols, features, records);
  const int64_t count = csr.num_weights * features.heads;
  expect_writes(to_score, count);
  const int64_t tasks = task_count(static_cast<double>(count), 64);
  parallel_for(tasks, [&](int64_t task) {
    std::fill(to_score + even_share(count, task, tasks),
              to_score + even_share(count, task + 1, tasks), Acc(0));
  });
  run_all(parallel_for,
          Backward<T, Index>{csr, attained.ct, value, records, attention, features, out,
                             to_src_score, to_score},
          csr);
}

#define JAX_GNN_INSTANTIATE(T, Acc, Index)                                                       \
  template void edge_attention(const ParallelFor&, const Csr<Index>&, const T*,                  \
                               const Attention<Acc>&, Features, T*, SoftmaxStats<Acc>*);         \
  template void edge_attention_vjp(const ParallelFor&, const Csr<Index>&, const T*,              \
                                   const Attained<T, Acc>&, const Attention<Acc>&, Features, T*, \
                                   Acc*, Acc*, AttentionRecord<Acc>*);
#define JAX_GNN_INSTANTIATE_INDEX(Index)     \
  JAX_GNN_INSTANTIATE(float, float, Index)   \
  JAX_GNN_INSTANTIATE(double, double, Index) \
  JAX_GNN_INSTANTIATE(Half, float, Index)    \
  JAX_GNN_INSTANTIATE(BFloat16, float, Index)

JAX_GNN_INSTANTIATE_INDEX(int32_t)

}  // namespace jax_gnn::cpu
