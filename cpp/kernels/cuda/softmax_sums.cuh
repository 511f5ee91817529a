// Sums under a softmax, and the weights of entries where scores are numbers for each head: what
// attention over edges is to the walks that carry it.
//
// What a softmax is relative to need not be the largest score, but one that is not much smaller. It
// is that of a run's first entry, until one is by kFar larger: then, rarely, what has been summed
// up is made smaller. So weights are one exponential each, sums and weights' sum grow side by side,
// and runs are joined (segment_runs.cuh) like any others, the earlier one first.
#pragma once

#include "../attention.h"
#include "edge_scores.cuh"
#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_output.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kQuad = 4;  // entries of which a lane computes weights together
template <typename Acc>
constexpr Acc kFar = 8;  // its exponential times any sum is far from overflow

template <typename Acc>
constexpr Acc kTiny = std::numeric_limits<Acc>::min();

template <typename Acc>
__device__ __forceinline__ Acc at_least_lowest(Acc score) {  // NaN too
  return score > kLowest<Acc> ? score : kLowest<Acc>;
}

// One over a sum of weights. Where that is NaN, what is to be divided is.
template <typename Acc>
__device__ __forceinline__ Acc one_over(Acc sum) {
  return reciprocal(sum > kTiny<Acc> ? sum : kTiny<Acc>);
}

// Sums under a softmax: of weighted features, of weights, and what these are relative to.
template <typename Acc, int kVec_>
struct SoftmaxSumOp {
  using Result = Acc;
  static constexpr int kVec = kVec_, kParts = kVec + 2, kSum = kVec, kTop = kVec + 1, kRoom = 2;
  static constexpr bool kCounts = false, kZeroIsNeutral = false;
  static __device__ __forceinline__ Acc neutral(int part) {
    return part == kTop ? kLeast<true, Acc> : Acc(0);
  }
  static __device__ __forceinline__ Acc empty() { return 0; }
  static __device__ __forceinline__ void combine(const Acc (&before)[kParts], Acc (&run)[kParts]) {
    const Acc top = extremum<true>(before[kTop], run[kTop]);
    const Acc of_before = shrink(before[kTop], top), of_run = shrink(run[kTop], top);
#pragma unroll
    for (int i = 0; i <= kSum; ++i) run[i] = before[i] * of_before + run[i] * of_run;
    run[kTop] = top;
  }
  static __device__ __forceinline__ void finish(const Acc (&run)[kParts], Acc (&x)[kVec]) {
    const Acc factor = one_over(run[kSum]);
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = run[i] * factor;
  }
  static __device__ __forceinline__ SoftmaxStats<Acc> stats(Acc sum, Acc top) {
    return {top, sum == 0 ? -kLeast<true, Acc> : quick_logarithm(sum)};
  }
  static __device__ __forceinline__ SoftmaxStats<Acc> stats(const Acc (&run)[kParts]) {
    return stats(run[kSum], run[kTop]);
  }
};

// Rows are written with their softmax's statistics, in place of an Epilogue.
template <typename Acc>
struct StoredStats {
  SoftmaxStats<Acc>* stats;  // (num_rows, heads); of a lane those of its head, or null
  int64_t heads;

  // Keeps the statistics of the head for the lane with which a head begins, and none for others.
  __device__ __forceinline__ void keep_for(const Column& column, int64_t width) {
    const bool begins = column.active && column.first == column.head * (width / heads);
    stats = begins ? stats + column.head : nullptr;
  }
};

template <typename T, class Op, typename Acc>
struct Output<T, Op, Acc, StoredStats<Acc>> {
  static constexpr int kVec = Op::kVec;

  T* out;
  int64_t num_rows, width;
  StoredStats<Acc> epilogue;

  // Writes the lane's word of a row that is below `limit`.
  __device__ __forceinline__ void store(T* lane_out, Index row, const Acc (&run)[Op::kParts],
                                        unsigned limit) const {
    if (static_cast<unsigned>(row) >= limit) return;
    Acc x[kVec];
    Op::finish(run, x);
    store_word<kVec>(
        row_at(lane_out, row, static_cast<unsigned>(width * static_cast<int64_t>(sizeof(T)))), x);
    if (epilogue.stats != nullptr) put(row, Op::stats(run));
  }
  __device__ __forceinline__ void store_empty(int64_t row, const Column& column) const {
    if (!column.active) return;
    const Acc x[kVec] = {};
    store_word<kVec>(out + row * width + column.first, x);
    if (epilogue.stats != nullptr) put(static_cast<Index>(row), {0, -kLeast<true, Acc>});
  }

 private:
  __device__ __forceinline__ void put(Index row, const SoftmaxStats<Acc>& stats) const {
    using Pair = Word<Acc, 2>;
    Pair pair;
    memcpy(&pair, &stats, sizeof(pair));
    *reinterpret_cast<Pair*>(
        row_at(epilogue.stats, row,
               static_cast<unsigned>(epilogue.heads) * static_cast<unsigned>(sizeof(pair)))) = pair;
  }
};

// Weights that are given, in place of a Softmax.
struct NoSoftmax {
  static constexpr bool kAny = false, kKeyed = false, kApart = false;
  static constexpr int kKinds = 0;
};

// Weights for the kernel of one step (segment_step.cuh), from scores that are numbers for each
// head. kKinds: of numbers that an entry's weight is made of, the last its scale.
template <typename Acc>
struct StepSoftmax {
  static constexpr bool kAny = true, kKeyed = false, kApart = false;
  static constexpr int kKinds = 3;
  Attention<Acc> attention;

  __device__ __forceinline__ const Acc* edge_scale() const { return attention.edge_scale; }
};

// The softmax of a team's entries, all of whose scores are there, one run after another: of each
// entry its run's largest score, and sum of weights, which are relative to that.
template <typename Acc, unsigned kSize>
struct RunSoftmax {
  Acc tops[kSize], sums[kSize];

  // Makes weights of scores. `ends`: bit j: a run ends with entry j. Weights of runs that begin and
  // end here are divided by their sums.
  __device__ __forceinline__ void weigh(const Acc (&scores)[kSize], unsigned ends,
                                        Acc (&weights)[kSize]) {
    const auto begins = [&](unsigned j) { return j == 0 || (ends >> (j - 1) & 1); };
    const auto take_last = [&](Acc(&of_runs)[kSize]) {  // what a run's last entry has
#pragma unroll
      for (int j = kSize - 2; j >= 0; --j) of_runs[j] = ends >> j & 1 ? of_runs[j] : of_runs[j + 1];
    };
#pragma unroll
    for (unsigned j = 0; j < kSize; ++j) {
      const Acc score = at_least_lowest(scores[j]);
      tops[j] = begins(j) ? score : extremum<true>(tops[j - 1], score);
    }
    take_last(tops);
#pragma unroll
    for (unsigned j = 0; j < kSize; ++j) weights[j] = quick_exponential(scores[j] - tops[j]);
#pragma unroll
    for (unsigned j = 0; j < kSize; ++j)
      sums[j] = begins(j) ? weights[j] : sums[j - 1] + weights[j];
    take_last(sums);
#pragma unroll
    for (unsigned j = 1; j < kSize; ++j) {
      const bool is_whole = (ends & ((1u << j) - 1)) != 0 && ends >> j != 0;
      weights[j] *= is_whole ? one_over(sums[j]) : Acc(1);
    }
  }
  // Of the run that has an entry.
  template <int kParts>
  __device__ __forceinline__ void of_entry(unsigned j, Acc (&run)[kParts]) const {
    run[kParts - 2] = sums[j];
    run[kParts - 1] = tops[j];
  }
};

// Weights for a walk (segment_gather.cuh): a softmax of scores that are numbers for each head. A
// team's lanes share out what there is to do for the entries of a chunk: each has a weight computed
// once, four entries of a head by a lane, and all read it from shared memory.
//
// Numbers of a team lie there as [kind][head][kQuad + entry]: scores, of which entry -1 is what the
// run that goes on is relative to, weights, and where there are scales weights times these; after
// them as [kind][entry][head] what scores are made of, and scales, or as [kind][head][entry] where
// numbers are copied one by one. Offsets are in bytes.
template <typename Acc>
struct Softmax {
  static constexpr bool kAny = true;
  static constexpr unsigned kEntry = sizeof(Acc), kLine = kQuad * kEntry;
  Attention<Acc> attention;
  int chunk, heads;               // entries of a chunk, and heads of a tile
  int word_bits;                  // log2 of the heads whose numbers are copied at once
  int head_bits, quads;           // log2 of the heads, rounded up, and quads of so many
  unsigned of_head, of_kind;      // from one to the next
  unsigned requests, of_request;  // where what is asked for begins, and from one kind to the next
  unsigned request_entry, request_head;  // and from one entry or head to the next
  unsigned factors;                      // from weights to factors

  __host__ __device__ void cut(int entries, int tile_heads) {
    chunk = entries;
    heads = tile_heads;
    head_bits = 0;
    while (1 << head_bits < heads) ++head_bits;
    quads = chunk / kQuad << head_bits;
    of_head = (chunk + kQuad) * kEntry;
    of_kind = heads * of_head;
    requests = (scaled() ? 3 : 2) * of_kind;
    of_request = chunk * heads * kEntry;
    request_entry = word_bits > 0 ? heads * kEntry : kEntry;
    request_head = word_bits > 0 ? kEntry : chunk * kEntry;
    factors = scaled() ? of_kind : 0;
  }
  __host__ __device__ bool additive() const { return attention.edge_score == nullptr; }
  __host__ __device__ bool scaled() const { return attention.edge_scale != nullptr; }
  __host__ __device__ int team_bytes() const {
    return requests + (1 + additive() + scaled()) * of_request;
  }
};

// Four entries of a head: the first, and where their scores lie, and what has been asked for.
struct Quad {
  int entry;
  unsigned scores, requests;
};
template <class Softmax>
__device__ __forceinline__ Quad quad_of(const Softmax& softmax, unsigned numbers_at, int i) {
  const int line = i >> softmax.head_bits, head = i - (line << softmax.head_bits);
  const bool exists = i < softmax.quads && head < softmax.heads;
  return {exists ? line * kQuad : softmax.chunk,
          numbers_at + head * softmax.of_head + (1 + line) * softmax.kLine,
          numbers_at + softmax.requests + line * kQuad * softmax.request_entry +
              head * softmax.request_head};
}

// The weights of a team's chunk. All by reference, as Runs.
template <typename Acc, class Softmax>
struct ChunkWeights {
  // Asks for what an entry's scores are made of, and its scales. `place`: where it has numbers.
  __device__ __forceinline__ void ask(int i, bool exists, Index row, Index col, Index place,
                                      int first_head, int num_heads) const {
    const Attention<Acc>& attention = softmax_.attention;
    const unsigned row_bytes = static_cast<unsigned>(num_heads) * sizeof(Acc);
    const int bits = softmax_.word_bits;
#pragma unroll 1
    for (int h = 0; h < softmax_.heads; h += 1 << bits) {
      const bool copies = exists && first_head + h < num_heads;
      unsigned to = requests_at_ + i * softmax_.request_entry + h * softmax_.request_head;
      const auto copy = [&](const Acc* from, Index at) {
        from = row_at(from + first_head + h, at, row_bytes);
        if (bits == 0) copy_async<sizeof(Acc)>(copies, from, bytes_ + to);
        if (bits == 1) copy_async<2 * sizeof(Acc)>(copies, from, bytes_ + to);
        if constexpr (sizeof(Acc) == 4)
          if (bits == 2) copy_async<4 * sizeof(Acc)>(copies, from, bytes_ + to);
        to += softmax_.of_request;
      };
      if (softmax_.additive()) {
        copy(attention.src_score, col);
        copy(attention.dst_score, row);
      } else {
        copy(attention.edge_score, place);
      }
      if (softmax_.scaled()) copy(attention.edge_scale, place);
    }
  }

  // Makes weights of what has been asked for. `begins`: bit i: a run begins with entry i. Columns
  // of the chunk's entries lie at `cols_at`; where not `all_valid` some may be -1. Whether for some
  // entry of the warp what weights are relative to has changed since its run began. Called by whole
  // warps.
  __device__ __forceinline__ bool weigh(unsigned begins, bool all_valid, unsigned cols_at) const {
    Acc slope = softmax_.attention.slope;
    hide(slope);  // or it is read for each entry
    for_quads([&](const Quad& quad) {
      Acc scores[kQuad];
      get_requests(quad.requests, scores);
      if (softmax_.additive()) {
        Acc others[kQuad];
        get_requests(quad.requests + softmax_.of_request, others);
#pragma unroll
        for (int k = 0; k < kQuad; ++k) scores[k] = leaky(others[k] + scores[k], slope);
      }
      if (!all_valid) {
        Index cols[kQuad];
        read_shared(bytes_ + cols_at + quad.entry * sizeof(Index), cols);
#pragma unroll
        for (int k = 0; k < kQuad; ++k)
          if (cols[k] < 0) scores[k] = kLeast<true, Acc>;
      }
      put(scores, quad.scores);
    });
    __syncwarp();
    bool is_far = false;
    for_quads([&](const Quad& quad) {
      Acc scores[kQuad];
      read_shared(bytes_ + quad.scores, scores);
      const unsigned next = begins >> quad.entry, past = begins & ((1u << quad.entry) - 1);
      const int last = 31 - __clz(past);  // a run's begin before the quad, or -1
      Acc top = at_least_lowest(
          number(quad.scores + (last - quad.entry) * static_cast<int>(sizeof(Acc))));
#pragma unroll
      for (int k = 0; k < kQuad; ++k) {
        top = next >> k & 1 ? at_least_lowest(scores[k]) : top;
        const Acc distance = scores[k] - top;
        is_far |= !(distance <= kFar<Acc>);
        scores[k] = quick_exponential(distance);
      }
      put(scores, quad.scores + softmax_.of_kind);
    });
    is_far = __any_sync(kWholeWarp, is_far) != 0;
    __syncwarp();
    if (is_far) {
      weigh_far(begins);
      __syncwarp();
    }
    if (softmax_.scaled()) {
      for_quads([&](const Quad& quad) {
        Acc weights[kQuad], scales[kQuad];
        read_shared(bytes_ + quad.scores + softmax_.of_kind, weights);
        get_requests(quad.requests + (1 + softmax_.additive()) * softmax_.of_request, scales);
#pragma unroll
        for (int k = 0; k < kQuad; ++k) weights[k] *= scales[k];
        put(weights, quad.scores + 2 * softmax_.of_kind);
      });
      __syncwarp();
    }
    return is_far;
  }

  __device__ __forceinline__ Acc& number(unsigned at) const {
    return *reinterpret_cast<Acc*>(bytes_ + at);
  }
  // The requested numbers of a quad.
  __device__ __forceinline__ void get_requests(unsigned at, Acc (&numbers)[kQuad]) const {
    if (softmax_.word_bits == 0) {
      read_shared(bytes_ + at, numbers);
    } else {
#pragma unroll
      for (int k = 0; k < kQuad; ++k) numbers[k] = number(at + k * softmax_.request_entry);
    }
  }
  __device__ __forceinline__ void put(const Acc (&numbers)[kQuad], unsigned at) const {
    Pack<Acc, kQuad> pack;
    memcpy(&pack, numbers, sizeof(pack));
    *reinterpret_cast<Pack<Acc, kQuad>*>(bytes_ + at) = pack;
  }
  // Calls f(quad) for each of the lane's.
  template <class F>
  __device__ __forceinline__ void for_quads(const F& f) const {
    Quad quad = first_;
#pragma unroll 1
    for (int i = lane_;;) {
      if (quad.entry < softmax_.chunk) f(quad);
      i += lanes_;
      if (i >= softmax_.quads) break;
      quad = quad_of(softmax_, numbers_at_, i);
    }
  }

  // Weights relative to the largest score that a run has in the chunk and had before it.
  __device__ __forceinline__ void weigh_far(unsigned begins) const {
#pragma unroll 1
    for (int head = lane_; head < softmax_.heads; head += lanes_) {
      const unsigned at = numbers_at_ + head * softmax_.of_head + softmax_.kLine;
      const auto score = [&](int i) -> Acc& { return number(at + i * sizeof(Acc)); };
#pragma unroll 1
      for (int i = 0, end = 0; i < softmax_.chunk; i = end) {
        Acc& run_top = score(begins >> i & 1 ? i : -1);
        Acc top = at_least_lowest(run_top);
#pragma unroll 1
        for (end = i; end == i || (end < softmax_.chunk && !(begins >> end & 1)); ++end)
          if (score(end) > top) top = score(end);
#pragma unroll 1
        for (int k = i; k < end; ++k)
          number(at + softmax_.of_kind + k * sizeof(Acc)) = quick_exponential(score(k) - top);
        run_top = top;
      }
    }
  }

  const Softmax& softmax_;
  unsigned char* const& bytes_;                // shared memory
  const unsigned &numbers_at_, &requests_at_;  // of the team
  const Quad& first_;                          // of the lane
  const int &lanes_, &lane_;
};

}  // namespace
}  // namespace jax_gnn::cuda
