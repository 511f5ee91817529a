// Entries are dealt out to tasks as in segment_walk.h, and a task goes through its share in blocks
// that end where rows end. Of a block, weights are computed first, across entries and heads, into a
// few arrays that fit into L1; then its rows are summed up, tile by tile. A row that
// does not fit into a block, or that more than one task has a part of, has a state, from which its
// sums start and in which they are left.
#include "attention.h"

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
constexpr int64_t kAhead = 16;           // entries: how far ahead rows are prefetched

template <typename Acc>
constexpr int kVectorLanes = 32 / sizeof(Acc);

// The part of a row in a block: its valid entries [begin, end).
template <typename Acc>
struct Part {
  int64_t row;
  int32_t begin, end;
  Acc* state;  // of a row that other blocks have a part of, else null: the row is finished
};

// A block, without padding. Columns go on with those of the entries that follow, which are read
// ahead of; so that whole vectors may be used, all that is after is in range.
template <typename Acc, typename Index>
struct Block {
  int32_t count, num_parts;
  bool in_order;  // places are those of one entry after the other
  Index row[kBlockEntries + kAhead], col[kBlockEntries + kAhead], place[kBlockEntries + kAhead];
  Part<Acc> parts[kBlockEntries];
};

// Numbers for the entries of a block or its parts, (entries, heads), and some to spare, so that
// whole vectors may be used.
template <typename T, typename Acc = T>
class Numbers {
 public:
  Numbers(int64_t entries, int64_t heads)
      : heads_(heads), data_(new T[entries * heads + kVectorLanes<Acc>]()) {}
  JAX_GNN_INLINE T* operator[](int64_t entry) const { return &data_[entry * heads_]; }

  // Calls body(k) for vectors from element k on that cover `entries` entries.
  template <typename Body>
  JAX_GNN_INLINE void for_each_vector(int64_t entries, const Body& body) const {
    for (int64_t k = 0; k < entries * heads_; k += kVectorLanes<Acc>) body(k);
  }

 private:
  int64_t heads_;
  std::unique_ptr<T[]> data_;
};

// Vectors of the number at `from`. GCC makes inserts of a vector that is built of its elements.
template <typename V, typename Acc, int... k>
JAX_GNN_INLINE V repeated(const Acc* from, std::integer_sequence<int, k...>) {
  const V x = load<sizeof...(k)>(from);
  return __builtin_shufflevector(x, x, (0 * k)...);
}
template <typename V, typename Acc>
JAX_GNN_INLINE V repeated(const Acc* from) {
  if constexpr (std::is_arithmetic_v<V>) {
    return *from;
  } else {
    return repeated<V>(from, std::make_integer_sequence<int, sizeof(V) / sizeof(Acc)>());
  }
}

// from[ids[k]] for each element k of a vector.
template <typename Acc, typename Index, int... k>
JAX_GNN_INLINE auto gathered(const Acc* from, const Index* ids, std::integer_sequence<int, k...>) {
  return Vector<Acc, sizeof...(k)>{from[ids[k]]...};
}
template <typename Acc, typename Index>
JAX_GNN_INLINE auto gathered(const Acc* from, const Index* ids) {
  return gathered(from, ids, std::make_integer_sequence<int, kVectorLanes<Acc>>());
}

// to[i, :] = from[ids[i], :] for `count` entries, or what that and to[i, :] add up to.
template <bool kAdd, typename Acc, typename Index>
JAX_GNN_INLINE void gather_heads(const Acc* from, const Index* ids, int32_t count, int64_t heads,
                                 Acc* to) {
  constexpr int kWidest = kVectorLanes<Acc>;
  if (heads == 1) {  // across entries
    for (int32_t i = 0; i < count; i += kWidest) {
      auto x = gathered(from, ids + i);
      if constexpr (kAdd) x += load<kWidest>(to + i);
      store<kWidest>(to + i, x);
    }
    return;
  }
  cover_once<kWidest>(0, heads, [&](auto lanes, int64_t h) JAX_GNN_LAMBDA {
    constexpr int kLanes = decltype(lanes)::value;
    for (int32_t i = 0; i < count; ++i) {
      auto x = load<kLanes>(from + static_cast<int64_t>(ids[i]) * heads + h);
      if constexpr (kAdd) x += load<kLanes>(to + i * heads + h);
      store<kLanes>(to + i * heads + h, x);
    }
  });
}

// sums[p, :] is what numbers[i, :] of the entries of part p add up to.
template <typename Acc, typename Index>
JAX_GNN_INLINE void sum_parts(const Block<Acc, Index>& block, int64_t heads,
                              const Numbers<Acc>& numbers, const Numbers<Acc>& sums) {
  constexpr int kWidest = kVectorLanes<Acc>;
  if (heads == 1) {  // across entries
    for (int32_t p = 0; p < block.num_parts; ++p) {
      const Acc *at = numbers[block.parts[p].begin], *const end = numbers[block.parts[p].end];
      Acc sum = 0;
      if (end - at >= 2 * kWidest) {
        auto wide = load<kWidest>(at);
        for (at += kWidest; end - at >= kWidest; at += kWidest) wide += load<kWidest>(at);
        sum = sum_of_elements(wide);
      }
      for (; at < end; ++at) sum += *at;
      *sums[p] = sum;
    }
    return;
  }
  cover_once<kWidest>(0, heads, [&](auto lanes, int64_t h) JAX_GNN_LAMBDA {
    constexpr int kLanes = decltype(lanes)::value;
    for (int32_t p = 0; p < block.num_parts; ++p) {
      auto sum = broadcast<Vector<Acc, kLanes>>(Acc(0));
      for (int32_t i = block.parts[p].begin; i < block.parts[p].end; ++i)
        sum += load<kLanes>(numbers[i] + h);
      store<kLanes>(sums[p] + h, sum);
    }
  });
}

// How numbers of heads spread over a tile of columns.
enum class Spread { kOneHead, kWholeVectors, kAny };

template <typename Acc, int kTile>
class Heads {
 public:
  static constexpr int kLanes = Shape<Acc, kTile>::kLanes;
  static constexpr int kVectors = Shape<Acc, kTile>::kVectors;
  using V = typename Shape<Acc, kTile>::V;

  JAX_GNN_INLINE Heads(Features features, int64_t column) {
    const int64_t group = features.width / features.heads;
    head_[0] = static_cast<int32_t>(column / group);
    if (column + kTile <= (head_[0] + 1) * group) {
      spread_ = Spread::kOneHead;
      return;
    }
    spread_ = Spread::kWholeVectors;
    int64_t left = (head_[0] + 1) * group - column;
    for (int k = 1; k < kTile; ++k) {
      const bool next = --left == 0;
      head_[k] = head_[k - 1] + next;
      left = next ? group : left;
      if (next && k % kLanes != 0) spread_ = Spread::kAny;
    }
  }

  // Calls body(integral_constant kSpread).
  template <typename Body>
  JAX_GNN_INLINE void with_spread(const Body& body) const {
    if constexpr (kTile > 1) {
      if (spread_ == Spread::kAny) return body(std::integral_constant<Spread, Spread::kAny>{});
    }
    if constexpr (kVectors > 1) {
      if (spread_ == Spread::kWholeVectors)
        return body(std::integral_constant<Spread, Spread::kWholeVectors>{});
    }
    body(std::integral_constant<Spread, Spread::kOneHead>{});
  }

  // Calls body(v, number) for each vector of columns.
  template <Spread kSpread, typename Body>
  JAX_GNN_INLINE void for_each(const Acc* numbers, const Body& body) const {
    if constexpr (kSpread == Spread::kOneHead) {
      const V all = repeated<V>(numbers + head_[0]);
      unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA { body(v, all); });
    } else if constexpr (kSpread == Spread::kWholeVectors) {
      unrolled<kVectors>([&](int v)
                             JAX_GNN_LAMBDA { body(v, repeated<V>(numbers + head_[v * kLanes])); });
    } else {
      Acc spread[kTile];
      for (int k = 0; k < kTile; ++k) spread[k] = numbers[head_[k]];
      unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA { body(v, load<kLanes>(spread + v * kLanes)); });
    }
  }

 private:
  int32_t head_[kTile];  // that each column belongs to
  Spread spread_;
};

// Columns in tiles, those of wide heads in tiles of their own.
template <typename Variant, typename Acc, typename Body>
JAX_GNN_INLINE void for_each_tile_once(Features features, const Body& body) {
  constexpr int64_t kWideHead = 16;
  const int64_t group = features.width / features.heads;
  const int64_t step = group >= kWideHead ? group : features.width;
  for (int64_t first = 0; first < features.width; first += step)
    cover_once<kWidestTileOf<Variant, Acc>>(first, first + step, body);
}

// Adds up weight * in[col, :] for the rows of a block, and finishes those that are whole, times
// `factor` where that is given, by part. Others' sums are at `place` of their states.
template <typename Variant, typename T, typename Index>
JAX_GNN_INLINE void sum_up(const Block<Accumulator<T>, Index>& block, const T* in,
                           Features features, const Numbers<Accumulator<T>>& weights,
                           const Numbers<Accumulator<T>>* factors, T* out, int64_t place = 0) {
  using Acc = Accumulator<T>;
  const int64_t width = features.width;
  for_each_tile_once<Variant, Acc>(features, [&](auto tile, int64_t column) JAX_GNN_LAMBDA {
    constexpr int kTile = decltype(tile)::value;
    constexpr int kLanes = Shape<Acc, kTile>::kLanes, kVectors = Shape<Acc, kTile>::kVectors;
    using V = typename Shape<Acc, kTile>::V;
    const Heads<Acc, kTile> heads(features, column);
    heads.with_spread([&](auto spread) JAX_GNN_LAMBDA {
      constexpr Spread kSpread = decltype(spread)::value;
      for (int32_t p = 0; p < block.num_parts; ++p) {
        const Part<Acc>& part = block.parts[p];
        V sum[kVectors];
        unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA { sum[v] = broadcast<V>(Acc(0)); });
        for (int32_t i = part.begin; i < part.end; ++i) {
          const auto row_of = [&](int32_t entry) JAX_GNN_LAMBDA {
            return in + static_cast<int64_t>(block.col[entry]) * width + column;
          };
          prefetch(row_of(i + kAhead), kTile * static_cast<int64_t>(sizeof(T)));
          const T* const from = row_of(i);
          heads.template for_each<kSpread>(weights[i], [&](int v, V weight) JAX_GNN_LAMBDA {
            sum[v] += weight * load<kLanes>(from + v * kLanes);
          });
        }
        if (part.state) {
          unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA {
            Acc* const to = part.state + place + column + v * kLanes;
            store<kLanes>(to, load<kLanes>(to) + sum[v]);
          });
          continue;
        }
        T* const to = out + part.row * width + column;
        if (factors) {
          heads.template for_each<kSpread>((*factors)[p], [&](int v, V factor) JAX_GNN_LAMBDA {
            store<kLanes>(to + v * kLanes, sum[v] * factor);
          });
        } else {
          unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA { store<kLanes>(to + v * kLanes, sum[v]); });
        }
      }
    });
  });
}

// Gives what belongs to the entries of numbers of edges.
template <typename Acc, typename Index>
JAX_GNN_INLINE void of_entries(const Block<Acc, Index>& block, const Acc* of_edges, int64_t heads,
                               const Numbers<Acc>& to) {
  if (block.in_order) {
    std::copy_n(of_edges + block.place[0] * heads, block.count * heads, to[0]);
  } else {
    gather_heads</*kAdd=*/false>(of_edges, block.place, block.count, heads, to[0]);
  }
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
  static constexpr int kLanes = kVectorLanes<Acc>;
  Csr<Index> csr;
  const T* value;
  Attention<Acc> attention;
  Features features;
  T* out;
  SoftmaxStats<Acc>* stats;

  struct Scratch {
    Numbers<Acc> scores, weights, tops, sums, logs;  // the last three by part
    Scratch(const Forward& kernel, int64_t entries)
        : scores(entries, kernel.features.heads),
          weights(entries, kernel.features.heads),
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
    Acc& state_top = tops_of(state)[h];
    Acc& sum = sums_of(state)[h];
    if (state_top == top) return;
    const Acc factor =
        sum == 0 ? Acc(0) : std::exp(finite_or_zero(state_top) - finite_or_zero(top));
    state_top = top;
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

  // Inverse and logarithm of a sum of exponentials: 0 and inf where there is nothing to sum up.
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

  JAX_GNN_INLINE void score(const Block<Acc, Index>& block, const Scratch& scratch) const {
    const int64_t heads = features.heads;
    if (attention.edge_score) return of_entries(block, attention.edge_score, heads, scratch.scores);
    Acc* const scores = scratch.scores[0];
    gather_heads<false>(attention.dst_score, block.row, block.count, heads, scores);
    gather_heads<true>(attention.src_score, block.col, block.count, heads, scores);
    scratch.scores.for_each_vector(block.count, [&](int64_t k) JAX_GNN_LAMBDA {
      store<kLanes>(scores + k, leaky_score(load<kLanes>(scores + k), attention.slope));
    });
  }

  // Weights are the exponentials of the scores themselves, tops 0. Says whether the scores are so
  // small that this is as exact as what is relative to the largest.
  JAX_GNN_INLINE bool weigh_small(const Block<Acc, Index>& block, const Scratch& scratch) const {
    constexpr Acc kSmall = 32;
    Acc* const scores = scratch.scores[0];
    std::fill(scores + block.count * features.heads, scores + block.count * features.heads + kLanes,
              Acc(0));
    using V = Vector<Acc, kLanes>;
    auto small = V{} == V{};
    scratch.scores.for_each_vector(block.count, [&](int64_t k) JAX_GNN_LAMBDA {
      const V x = load<kLanes>(scores + k);
      small &= x * x <= kSmall * kSmall;  // false for NaN
      store<kLanes>(scratch.weights[0] + k, exp_of_small<kLanes>(x));
    });
    bool all = true;
    for (int lane = 0; lane < kLanes; ++lane) all &= small[lane] != 0;
    for (int32_t p = 0; p < block.num_parts; ++p) {
      if (Acc* const state = block.parts[p].state) {
        for (int64_t h = 0; h < features.heads; ++h)
          all &= tops_of(state)[h] == 0 || sums_of(state)[h] == 0;
      }
    }
    std::fill_n(scratch.tops[0], block.num_parts * features.heads, Acc(0));
    if (!all) return false;
    for (int32_t p = 0; p < block.num_parts; ++p) {  // the only entry of a row weighs 1 exactly
      const Part<Acc>& part = block.parts[p];
      if (part.state || part.end - part.begin != 1) continue;
      std::copy_n(scratch.scores[part.begin], features.heads, scratch.tops[p]);
      std::fill_n(scratch.weights[part.begin], features.heads, Acc(1));
    }
    return true;
  }

  // Weights are relative to tops, the largest of each row.
  JAX_GNN_INLINE void weigh(const Block<Acc, Index>& block, const Scratch& scratch) const {
    cover_once<kLanes>(0, features.heads, [&](auto lanes, int64_t h) JAX_GNN_LAMBDA {
      constexpr int kWide = decltype(lanes)::value;
      for (int32_t p = 0; p < block.num_parts; ++p) {
        const Part<Acc>& part = block.parts[p];
        auto top = broadcast<Vector<Acc, kWide>>(-std::numeric_limits<Acc>::infinity());
        if (part.state) top = load<kWide>(tops_of(part.state) + h);
        for (int32_t i = part.begin; i < part.end; ++i)
          top = larger(top, load<kWide>(scratch.scores[i] + h));
        store<kWide>(scratch.tops[p] + h, top);
        top = finite_or_zero(top);
        for (int32_t i = part.begin; i < part.end; ++i)
          store<kWide>(scratch.weights[i] + h, load<kWide>(scratch.scores[i] + h) - top);
      }
    });
    scratch.weights.for_each_vector(block.count, [&](int64_t k) JAX_GNN_LAMBDA {
      Acc* const at = scratch.weights[0] + k;
      store<kLanes>(at, exp<kLanes>(load<kLanes>(at)));
    });
  }

  template <typename Variant>
  JAX_GNN_INLINE void run(const Block<Acc, Index>& block, const Scratch& scratch) const {
    const int64_t heads = features.heads;
    score(block, scratch);
    if (!weigh_small(block, scratch)) weigh(block, scratch);
    sum_parts(block, heads, scratch.weights, scratch.sums);
    for (int32_t p = 0; p < block.num_parts; ++p) {
      Acc* const state = block.parts[p].state;
      for (int64_t h = 0; state && h < heads; ++h) {
        rescale(state, h, scratch.tops[p][h]);
        sums_of(state)[h] += scratch.sums[p][h];
      }
    }
    scratch.sums.for_each_vector(block.num_parts, [&](int64_t k) JAX_GNN_LAMBDA {
      const auto sum = load<kLanes>(scratch.sums[0] + k);
      store<kLanes>(scratch.logs[0] + k, log_sum<kLanes>(sum));
      store<kLanes>(scratch.sums[0] + k, inverse(sum));
      store<kLanes>(scratch.tops[0] + k, finite_or_zero(load<kLanes>(scratch.tops[0] + k)));
    });
    for (int32_t p = 0; p < block.num_parts; ++p) {
      if (block.parts[p].state) continue;
      SoftmaxStats<Acc>* const to = stats + block.parts[p].row * heads;
      for (int64_t h = 0; h < heads; ++h) to[h] = {scratch.tops[p][h], scratch.logs[p][h]};
    }
    if (attention.edge_scale) {  // scores are done with
      of_entries(block, attention.edge_scale, heads, scratch.scores);
      scratch.weights.for_each_vector(block.count, [&](int64_t k) JAX_GNN_LAMBDA {
        Acc* const at = scratch.weights[0] + k;
        store<kLanes>(at, load<kLanes>(at) * load<kLanes>(scratch.scores[0] + k));
      });
    }
    sum_up<Variant>(block, value, features, scratch.weights, &scratch.sums, out);
  }
};

// Rows are plain sums, as weights are known. A state: the sums, and those of scores' cotangents or
// of what keys get.
template <typename T, typename Index>
struct Backward {
  using Acc = Accumulator<T>;
  static constexpr int kLanes = kVectorLanes<Acc>;
  Csr<Index> csr;
  const T *ct, *value;
  const AttentionRecord<Acc>* records;
  Attention<Acc> attention;
  Keys<T, Acc> keys;  // of dot products, that of a row being a column's here; null: none
  Features features;
  T *out, *to_key;
  Acc *to_src_score, *to_score;

  struct Scratch {
    Numbers<Acc> weights, deltas, sums, dots, scales;
    Numbers<int64_t, Acc> at_row, at_col;  // which number of the rows and of the columns
    Scratch(const Backward& kernel, int64_t entries)
        : weights(entries, kernel.features.heads),
          deltas(entries, kernel.features.heads),
          sums(entries, kernel.features.heads),
          dots(entries, kernel.features.heads),
          scales(entries, kernel.features.heads),
          at_row(entries, kernel.features.heads),
          at_col(entries + kAhead, kernel.features.heads) {}
  };

  int64_t state_size() const {
    return features.width + (keys.row_key ? features.width : features.heads);
  }
  void start(Acc* state) const { std::fill_n(state, state_size(), Acc(0)); }
  void combine(Acc* into, const Acc* from) const {
    for (int64_t k = 0; k < state_size(); ++k) into[k] += from[k];
  }
  void finish(int64_t row, const Acc* state) const {
    for (int64_t k = 0; k < features.width; ++k)
      out[row * features.width + k] = narrow<T>(state[k]);
    for (int64_t k = 0; to_key && k < features.width; ++k)
      to_key[row * features.width + k] = narrow<T>(state[features.width + k]);
    if (to_src_score)
      std::copy_n(state + features.width, features.heads, to_src_score + row * features.heads);
  }
  void fill(int64_t row, int64_t last_row) const {
    std::fill(out + row * features.width, out + last_row * features.width, T{});
    if (to_key) std::fill(to_key + row * features.width, to_key + last_row * features.width, T{});
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

  JAX_GNN_INLINE void find(const Block<Acc, Index>& block, const Scratch& scratch) const {
    const int64_t heads = features.heads;
    const auto fill = [&](const Index* ids, int64_t entries, int64_t* to) JAX_GNN_LAMBDA {
      if (heads == 1) {
        std::copy_n(ids, entries, to);
        return;
      }
      for (int64_t i = 0; i < entries; ++i)
        for (int64_t h = 0; h < heads; ++h) to[i * heads + h] = ids[i] * heads + h;
    };
    fill(block.row, block.count, scratch.at_row[0]);
    fill(block.col, block.count + kAhead, scratch.at_col[0]);
    std::fill_n(scratch.at_row[block.count], kLanes, 0);
  }

  // Weights without the scale, and what goes with them.
  JAX_GNN_INLINE void weigh(const Block<Acc, Index>& block, const Scratch& scratch) const {
    using V = Vector<Acc, kLanes>;
    const bool additive = attention.src_score != nullptr;
    if (attention.edge_score) of_entries(block, attention.edge_score, features.heads, scratch.sums);
    if (keys.row_key) take_dots(block, scratch, keys.col_key, keys.row_key, scratch.sums);
    const Acc scale = keys.scale ? *keys.scale : Acc(1);
    scratch.weights.for_each_vector(block.count, [&](int64_t k) JAX_GNN_LAMBDA {
      const Fields<V> record = fields(scratch.at_col[0] + k);
      V score;
      if (!additive) {
        score = load<kLanes>(scratch.sums[0] + k) * scale;
        // Stored, and hence rounded as forward, where a product is not part of the difference.
        store<kLanes>(scratch.sums[0] + k, score);
      } else {
        const V sum = record.dst_score + gathered(attention.src_score, scratch.at_row[0] + k);
        store<kLanes>(scratch.sums[0] + k, sum);
        score = leaky_score(sum, attention.slope);
      }
      store<kLanes>(scratch.weights[0] + k, exp<kLanes>((score - record.top) - record.log_sum));
      store<kLanes>(scratch.deltas[0] + k, record.delta);
    });
  }

  // Dots of an entry's row with its column.
  JAX_GNN_INLINE void take_dots(const Block<Acc, Index>& block, const Scratch& scratch,
                                const T* of_rows, const T* of_cols,
                                const Numbers<Acc>& dots) const {
    const int64_t heads = features.heads, group = features.width / heads;
    const int64_t count = block.count * heads, ahead = kAhead * heads;
    const int64_t *const rows = scratch.at_row[0], *const cols = scratch.at_col[0];
    const auto product = [&](int64_t k) JAX_GNN_LAMBDA {
      prefetch(of_cols + cols[k + ahead] * group, group * static_cast<int64_t>(sizeof(T)));
      return RowProduct<T>{of_rows + rows[k] * group, of_cols + cols[k] * group};
    };
    sums_of_terms(count, group, product, dots[0]);
  }

  template <typename Variant>
  JAX_GNN_INLINE void run(const Block<Acc, Index>& block, const Scratch& scratch) const {
    using V = Vector<Acc, kLanes>;
    const int64_t heads = features.heads;
    const bool scaled = attention.edge_scale != nullptr;
    find(block, scratch);
    weigh(block, scratch);
    take_dots(block, scratch, value, ct, scratch.dots);
    const bool additive = attention.src_score != nullptr;
    const Acc scale = keys.scale ? *keys.scale : Acc(1);
    if (scaled) of_entries(block, attention.edge_scale, heads, scratch.scales);
    scratch.dots.for_each_vector(block.count, [&](int64_t k) JAX_GNN_LAMBDA {
      const auto at = [&](const Numbers<Acc>& numbers)
                          JAX_GNN_LAMBDA { return load<kLanes>(numbers[0] + k); };
      V dot = at(scratch.dots), weight = at(scratch.weights);
      if (scaled) dot *= at(scratch.scales);
      V result = scale * weight * (dot - at(scratch.deltas));
      if (additive) result *= leaky_slope(at(scratch.sums), attention.slope);
      store<kLanes>(scratch.dots[0] + k, result);
      if (scaled) store<kLanes>(scratch.weights[0] + k, weight * at(scratch.scales));
    });
    cover_once<kLanes>(0, heads, [&](auto lanes, int64_t h) JAX_GNN_LAMBDA {
      constexpr int kWide = decltype(lanes)::value;
      for (int32_t i = 0; i < block.count; ++i) {
        store<kWide>(to_score + static_cast<int64_t>(block.place[i]) * heads + h,
                     load<kWide>(scratch.dots[i] + h));
      }
    });
    if (to_src_score) {
      sum_parts(block, heads, scratch.dots, scratch.sums);
      for (int32_t p = 0; p < block.num_parts; ++p) {
        const Part<Acc>& part = block.parts[p];
        Acc* const to = part.state ? part.state + features.width : to_src_score + part.row * heads;
        for (int64_t h = 0; h < heads; ++h)
          to[h] = (part.state ? to[h] : Acc(0)) + scratch.sums[p][h];
      }
    }
    sum_up<Variant>(block, ct, features, scratch.weights, nullptr, out);
    if (to_key)
      sum_up<Variant>(block, keys.row_key, features, scratch.dots, nullptr, to_key, features.width);
  }

 private:
  // The fields of several records: an AttentionRecord of vectors.
  template <typename V>
  struct Fields {
    V dst_score, top, log_sum, delta;
  };

  // The fields of the records with these ids.
  JAX_GNN_INLINE Fields<Vector<Acc, kLanes>> fields(const int64_t* ids) const {
    using V = Vector<Acc, kLanes>;
    static_assert(sizeof *records == 4 * sizeof(Acc));
    if constexpr (kLanes == 8) {
      // Records four apart share a vector, which then are transposed by halves.
      const auto sum_pair = [&](int k) JAX_GNN_LAMBDA {
        const auto low = bit_cast<Vector<Acc, 4>>(records[ids[k]]),
                   high = bit_cast<Vector<Acc, 4>>(records[ids[k + 4]]);
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
      };
      const auto low = [](V a, V b) JAX_GNN_LAMBDA {
        return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
      };
      const auto high = [](V a, V b) JAX_GNN_LAMBDA {
        return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
      };
      const V a = sum_pair(0), b = sum_pair(1), c = sum_pair(2), d = sum_pair(3);
      const V first = low(a, c), second = low(b, d), third = high(a, c), fourth = high(b, d);
      return {low(first, second), high(first, second), low(third, fourth), high(third, fourth)};
    } else {
      Acc fields[4][kLanes];
      for (int k = 0; k < kLanes; ++k) {
        const AttentionRecord<Acc>& from = records[ids[k]];
        fields[0][k] = from.dst_score;
        fields[1][k] = from.stats.top;
        fields[2][k] = from.stats.log_sum;
        fields[3][k] = from.delta;
      }
      return {load<kLanes>(fields[0]), load<kLanes>(fields[1]), load<kLanes>(fields[2]),
              load<kLanes>(fields[3])};
    }
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
      constexpr int64_t kDots = 64;  // at a time
      const int64_t last = even_share(count, task + 1, tasks);
      for (int64_t first = even_share(count, task, tasks); first < last; first += kDots) {
        const int64_t size = std::min(kDots, last - first);
        Acc dots[kDots] = {};
        if (attained.y)
          sums_of_terms(
              size, group,
              [&](int64_t i) JAX_GNN_LAMBDA {
                return RowProduct<T>{attained.ct + (first + i) * group,
                                     attained.y + (first + i) * group};
              },
              dots);
        for (int64_t k = 0; k < size; ++k) {
          const int64_t i = first + k;
          const Acc less = attained.log_sum_ct ? attained.log_sum_ct[i] : Acc(0);
          records[i] = {dst_score ? dst_score[i] : Acc(0), attained.stats[i], dots[k] - less};
        }
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
  Acc *head, *tail, *inner, *other_inner;  // states

  // Walks the share; returns the rows that the task has in common with others.
  template <typename Variant>
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
      if (end < to.entry && rows[begin] != rows[end])  // back to where a row begins
        end = partition_point(begin, end, [&](int64_t e) { return rows[e] != rows[end]; });
      load_entries(block, begin, end);
      if (block.count == 0) continue;
      const Open before = open;
      find_parts(block, end < to.entry && rows[end] == rows[end - 1], row, open, carry);
      kernel.template run<Variant>(block, scratch);
      if (open.row != before.row) close(before);
    }
    close(open);
    if (row < to.row) kernel.fill(row, to.row);
    return carry;
  }

 private:
  // A row that other blocks have a part of.
  struct Open {
    int64_t row;
    Acc* state;
  };

  // Finishes the row, but for those that tasks share.
  JAX_GNN_INLINE void close(const Open& open) const {
    if (open.state == inner || open.state == other_inner) kernel.finish(open.row, open.state);
  }

  JAX_GNN_INLINE void load_entries(Block<Acc, Index>& block, int64_t begin, int64_t end) const {
    using Unsigned = std::make_unsigned_t<Index>;
    const auto size = [](int64_t n) JAX_GNN_LAMBDA {
      return static_cast<Unsigned>(std::min<int64_t>(n, std::numeric_limits<Index>::max()));
    };
    const Unsigned num_rows = size(csr.num_rows), num_cols = size(csr.num_cols),
                   num_weights = size(csr.num_weights);
    const auto count = static_cast<int32_t>(end - begin);
    for (int32_t i = 0; i < count; ++i) {
      const auto e = static_cast<Index>(begin + i);
      block.row[i] = csr.rows[begin + i];
      block.col[i] = csr.cols ? csr.cols[begin + i] : e;
      block.place[i] = csr.order ? csr.order[begin + i] : e;
    }
    Unsigned padding = 0;
    for (int32_t i = 0; i < count; ++i) {
      padding |= (static_cast<Unsigned>(block.row[i]) >= num_rows) |
                 (static_cast<Unsigned>(block.col[i]) >= num_cols) |
                 (static_cast<Unsigned>(block.place[i]) >= num_weights);
    }
    block.count = count;
    block.in_order = !csr.order && !padding;
    if (padding) {
      block.count = 0;
      for (int32_t i = 0; i < count; ++i) {
        const Index row = block.row[i], col = block.col[i], place = block.place[i];
        block.row[block.count] = row;
        block.col[block.count] = col;
        block.place[block.count] = place;
        block.count += in_range(row, csr.num_rows) && in_range(col, csr.num_cols) &&
                       in_range(place, csr.num_weights);
      }
    }
    for (int32_t i = 0; i < block.count; ++i) kernel.expect(block.col[i], block.place[i]);
    for (int64_t i = 0; i < kAhead; ++i) {
      const int64_t e = end + i, col = e < csr.count ? col_of(csr, e) : 0;
      block.row[block.count + i] = 0;
      block.col[block.count + i] = in_range(col, csr.num_cols) ? static_cast<Index>(col) : 0;
      block.place[block.count + i] = 0;
    }
  }

  // Rows are those of the share in ascending order, unless ids are not sorted: then some are left
  // out.
  JAX_GNN_INLINE void find_parts(Block<Acc, Index>& block, bool continues, int64_t& row, Open& open,
                                 Carry& carry) const {
    block.num_parts = 0;
    for (int32_t i = 0; i < block.count; ++i) {  // without a branch at the ends of rows
      block.parts[block.num_parts].end = i + 1;
      block.num_parts += i + 1 == block.count || block.row[i] != block.row[i + 1];
    }
    Acc* const free = open.state == inner ? other_inner : inner;
    int32_t begin = 0, part_count = 0;
    for (int32_t p = 0; p < block.num_parts; ++p) {
      const int32_t end = block.parts[p].end;
      const int64_t id = block.row[begin];
      Part<Acc>& part = block.parts[part_count];
      part = {id, begin, end, nullptr};
      begin = end;
      if (id == open.row) {
        part.state = open.state;
        ++part_count;
        continue;
      }
      if (id < row || id > to.row) continue;
      kernel.fill(row, id);
      row = id + 1;
      open = {id, nullptr};
      if (id == to.row || (continues && p + 1 == block.num_parts)) {
        open.state = id == to.row ? tail : free;
        kernel.start(open.state);
        if (id == to.row) carry.tail_row = id;
        part.state = open.state;
      }
      ++part_count;
    }
    block.num_parts = part_count;
  }
};

template <typename Kernel, typename Index>
void run_all(const ParallelFor& parallel_for, const Kernel& kernel, const Csr<Index>& csr) {
  using Acc = typename Kernel::Acc;
  if (csr.num_rows == 0) return;
  const Features features = kernel.features;
  expect_writes(kernel.out, csr.num_rows * features.width);
  const double items = static_cast<double>(csr.count) + static_cast<double>(csr.num_rows);
  const double cost =
      static_cast<double>(features.width) + 16 * static_cast<double>(features.heads);
  const int64_t size = kernel.state_size();
  const int64_t limit = std::clamp<int64_t>((1 << 22) / (size + 1), 1, 1024);
  walk_in_tasks<Acc>(
      parallel_for, csr, task_count(items * cost, limit), /*column_tasks=*/1, size,
      [&](const Carries<Acc>& carries, int64_t, const Share& share) {
        const std::unique_ptr<Acc[]> inner(new Acc[2 * size]);
        const int64_t task = share.task;
        const Walk<Kernel, Index> walk = {kernel,
                                          csr,
                                          share.from,
                                          share.to,
                                          carries.head(task),
                                          carries.tail(task),
                                          inner.get(),
                                          inner.get() + size};
        with_vectors([&](auto variant) JAX_GNN_LAMBDA {
          carries.of(task) = walk.template run<decltype(variant)>(share.bounds);
        });
      },
      [&](Acc* into, Acc* from) { kernel.combine(into, from); },
      [&](int64_t row, Acc* state, int64_t) { kernel.finish(row, state); });
}

}  // namespace

template <typename T, typename Acc, typename Index>
void attention(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* value,
               const Attention<Acc>& attention, Features features, T* out,
               SoftmaxStats<Acc>* stats) {
  run_all(parallel_for, Forward<T, Index>{csr, value, attention, features, out, stats}, csr);
}

namespace {

template <typename T, typename Acc, typename Index>
void run_backward(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* value,
                  const Attained<T, Acc>& attained, const Attention<Acc>& attention,
                  const Keys<T, Acc>& keys, Features features, T* out, T* to_key, Acc* to_src_score,
                  Acc* to_score, AttentionRecord<Acc>* records) {
  make_records(parallel_for, attained, attention.dst_score, csr.num_cols, features, records);
  const int64_t count = csr.num_weights * features.heads;
  expect_writes(to_score, count);
  if (to_key) expect_writes(to_key, csr.num_rows * features.width);
  const int64_t tasks = task_count(static_cast<double>(count), 64);
  parallel_for(tasks, [&](int64_t task) {
    std::fill(to_score + even_share(count, task, tasks),
              to_score + even_share(count, task + 1, tasks), Acc(0));
  });
  run_all(parallel_for,
          Backward<T, Index>{csr, attained.ct, value, records, attention, keys, features, out,
                             to_key, to_src_score, to_score},
          csr);
}

}  // namespace

template <typename T, typename Acc, typename Index>
void attention_vjp(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* value,
                   const Attained<T, Acc>& attained, const Attention<Acc>& attention,
                   Features features, T* out, Acc* to_src_score, Acc* to_score,
                   AttentionRecord<Acc>* records) {
  run_backward<T, Acc, Index>(parallel_for, csr, value, attained, attention, {}, features, out,
                              nullptr, to_src_score, to_score, records);
}

template <typename T, typename Acc, typename Index>
void keyed_attention_vjp(const ParallelFor& parallel_for, const Csr<Index>& csr, const T* value,
                         const Attained<T, Acc>& attained, const Keys<T, Acc>& keys,
                         const Acc* edge_scale, Features features, T* out, T* to_key, Acc* to_score,
                         AttentionRecord<Acc>* records) {
  Attention<Acc> attention = {};
  attention.edge_scale = edge_scale;
  run_backward<T, Acc, Index>(parallel_for, csr, value, attained, attention, keys, features, out,
                              to_key, nullptr, to_score, records);
}

#define JAX_GNN_INSTANTIATE(T, Acc)                 \
  JAX_GNN_INSTANCE(attention<T, Acc, int32_t>);     \
  JAX_GNN_INSTANCE(attention_vjp<T, Acc, int32_t>); \
  JAX_GNN_INSTANCE(keyed_attention_vjp<T, Acc, int32_t>);
JAX_GNN_FOR_FLOATS(JAX_GNN_INSTANTIATE)

}  // namespace jax_gnn::cpu
