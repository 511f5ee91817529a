// The result's rows: how they are written, and which of them are empty. Needs a result whose rows
// are aligned to the word, as is what an epilogue adds to them, and a bias aligned to 16 bytes
// where a word has several features; promises that no row outside of [0, num_rows) is written.
#pragma once

#include "basics.cuh"
#include "pack.cuh"
#include "segment_messages.cuh"
#include "segment_ops.cuh"

namespace jax_gnn::cuda {
namespace {

// Results are written as they are: in place of an Epilogue.
struct NoEpilogue {};

// Runs in shared memory, which have a place each: sums of features, and what runs have beside
// these.
template <class Op, typename Acc>
struct RunSlots {
  static constexpr int kVec = Op::kVec, kMore = Op::kParts - kVec;
  Pack<Acc, kVec>* sums;
  Acc* more;

  __device__ __forceinline__ void put(const Acc (&run)[Op::kParts], unsigned at) const {
    memcpy(&sums[at], run, sizeof(sums[at]));
#pragma unroll
    for (int i = 0; i < kMore; ++i) more[at * kMore + i] = run[kVec + i];
  }
  __device__ __forceinline__ void get(Acc (&run)[Op::kParts], unsigned at) const {
    memcpy(run, &sums[at], sizeof(sums[at]));
#pragma unroll
    for (int i = 0; i < kMore; ++i) run[kVec + i] = more[at * kMore + i];
  }
};

// Operands of an epilogue that are loaded ahead: the scales of the row, and the lane's
// word of its own features, or where these do not count of its residual. There are no registers for
// more.
template <class RowEpilogue, int kVec>
struct Ahead {};
template <typename T, typename Acc, int kVec>
struct Ahead<Epilogue<T, Acc>, kVec> {
  Word<T, kVec> word;
  Acc out_scale, result_scale;
};

// The result's rows, of which a lane writes one word. `lane_out` is out + column.first.
template <typename T, class Op, typename Acc, class RowEpilogue = NoEpilogue>
struct Output {
  static constexpr int kVec = Op::kVec;
  static constexpr bool kHasEpilogue = !std::is_same_v<RowEpilogue, NoEpilogue>;
  using Ahead = cuda::Ahead<RowEpilogue, kVec>;
  using Result = typename Op::Result;

  T* out;
  int64_t num_rows, width;
  RowEpilogue epilogue;

  // Asks for what the epilogue of a row below `limit` reads, ahead of its use.
  __device__ __forceinline__ void ask(T* lane_out, Index row, unsigned limit, Ahead& ahead) const {
    if constexpr (kHasEpilogue) {
      const bool valid = static_cast<unsigned>(row) < limit;
      load_beside(epilogue.self != nullptr ? epilogue.self : epilogue.residual, lane_out, row,
                  valid, ahead.word);
      ahead.out_scale = load_scale(epilogue.out_scale, row, valid);
      ahead.result_scale = load_scale(epilogue.result_scale, row, valid);
    }
  }

  // Writes the lane's word of a row that is below `limit`, with what was asked for.
  __device__ __forceinline__ void store(T* lane_out, Index row, const Acc (&run)[Op::kParts],
                                        unsigned limit, const Ahead& ahead) const {
    Result x[kVec];
    Op::finish(run, x);
    if (static_cast<unsigned>(row) < limit) {
      finish(lane_out, row, ahead, x);
      store_word<kVec>(row_at(lane_out, row, row_bytes()), x);
    }
  }

  // Stores a row whose operands of the epilogue are loaded here.
  __device__ __forceinline__ void store(T* lane_out, Index row, const Acc (&run)[Op::kParts],
                                        unsigned limit) const {
    Ahead ahead;
    ask(lane_out, row, limit, ahead);
    store(lane_out, row, run, limit, ahead);
  }

  __device__ __forceinline__ void store_empty(int64_t row, const Column& column) const {
    if (!column.active) return;
    Result x[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = Op::empty();
    T* const lane_out = out + column.first;
    Ahead ahead;
    ask(lane_out, static_cast<Index>(row), kAnyRow, ahead);
    finish(lane_out, static_cast<Index>(row), ahead, x);
    store_word<kVec>(lane_out + row * width, x);
  }

 private:
  static constexpr unsigned kAnyRow = 0x80000000u;

  __device__ __forceinline__ unsigned row_bytes() const {
    return static_cast<unsigned>(width) * static_cast<unsigned>(sizeof(T));
  }

  // A row's factor, 1 where there is none. In 32 bits, as rows are.
  static __device__ __forceinline__ Acc load_scale(const RowScale<Acc>& scales, Index row,
                                                   bool valid) {
    return load_or(valid && scales.data != nullptr,
                   scales.data + static_cast<unsigned>(row) * static_cast<unsigned>(scales.stride),
                   Acc(1));
  }

  // The lane's word of a row of what lies as the result does; zeros where there is none.
  template <typename W>
  __device__ __forceinline__ void load_beside(const T* rows, T* lane_out, Index row, bool valid,
                                              W& word) const {
    const uint64_t lane_rows =
        reinterpret_cast<uint64_t>(rows) +
        (reinterpret_cast<uint64_t>(lane_out) - reinterpret_cast<uint64_t>(out));
    word = {};
    load_if(valid && rows != nullptr,
            row_at(reinterpret_cast<const W*>(lane_rows), row, row_bytes()), word);
  }

  // All that is still to be read is asked for before any of it is used.
  __device__ __forceinline__ void finish(T* lane_out, Index row, const Ahead& ahead,
                                         Result (&x)[kVec]) const {
    if constexpr (kHasEpilogue) {
      const bool has_self = epilogue.self != nullptr;
      const Acc self_scale = load_scale(epilogue.self_scale, row, has_self);
      Word<T, kVec> second = {};
      if (has_self) load_beside(epilogue.residual, lane_out, row, true, second);
      static_assert(kVec == 1 || kVec * sizeof(Acc) % 16 == 0);
      Acc bias[kVec] = {}, beside[kVec], residual[kVec];
      if (epilogue.bias != nullptr) {
        const Acc* const from = epilogue.bias + (lane_out - out);
        if constexpr (kVec > 1)
          load_words<kVec>(from, bias);
        else
          bias[0] = __ldg(from);
      }
      unpack<kVec, T>(ahead.word, beside);
      unpack<kVec, T>(second, residual);
      const Acc beside_scale = has_self ? self_scale * ahead.out_scale : Acc(1);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        x[i] = fma(ahead.out_scale, x[i], bias[i]);
        x[i] = fma(beside_scale, beside[i], x[i]) + residual[i];
        if (epilogue.relu) x[i] = x[i] < 0 ? Acc(0) : x[i];  // NaN stays
        x[i] *= ahead.result_scale;
      }
    }
  }
};

// An Epilogue's substitute: some rows wait side by side in shared memory, as rows that are narrower
// than a sector cost a write of one each, and neighbouring lanes have rows of far apart.
template <typename T>
struct Staged {
  T* words;              // of the lane, of the first of them
  unsigned first, rows;  // which rows; none unless a kernel says so

  __device__ __forceinline__ bool has(Index row) const {
    return static_cast<unsigned>(row) - first < rows;
  }
};

template <typename T, class Op, typename Acc>
struct Output<T, Op, Acc, Staged<T>> {
  static constexpr int kVec = Op::kVec;
  using Result = typename Op::Result;

  T* out;
  int64_t num_rows, width;
  Staged<T> epilogue;

  // Writes the lane's word of a row that is below `limit`.
  __device__ __forceinline__ void store(T* lane_out, Index row, const Acc (&run)[Op::kParts],
                                        unsigned limit) const {
    if (static_cast<unsigned>(row) >= limit) return;
    Result x[kVec];
    Op::finish(run, x);
    const unsigned row_bytes = static_cast<unsigned>(width) * static_cast<unsigned>(sizeof(T));
    T* const to = epilogue.has(row)
                      ? epilogue.words + (static_cast<unsigned>(row) - epilogue.first) * width
                      : row_at(lane_out, row, row_bytes);
    store_word<kVec>(to, x);
  }
  __device__ __forceinline__ void store_empty(int64_t row, const Column& column) const {
    if (!column.active) return;
    put_empty(out + row * width + column.first);
  }
  static __device__ __forceinline__ void put_empty(T* to) {
    Result x[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = Op::empty();
    store_word<kVec>(to, x);
  }
};

__device__ __forceinline__ bool is_row(int64_t row, int64_t num_rows) {
  return static_cast<uint64_t>(row) < static_cast<uint64_t>(num_rows);
}

// The entry farthest from `from`, towards either end, up to which all are valid, if beyond it none
// is. Called by whole warps.
__device__ __forceinline__ int64_t last_valid(const Csr<Index>& csr, int64_t from, bool forward) {
  const int direction = forward ? 1 : -1;
  int64_t valid = 0, invalid = forward ? csr.count - from : from + 1;  // distances
  while (invalid - valid > 1) {
    const int64_t step = ceil_div(invalid - valid, 32), probe = valid + step * (threadIdx.x % 32);
    const unsigned beyond = __ballot_sync(
        kWholeWarp, probe >= invalid || !is_row(csr.rows[from + direction * probe], csr.num_rows));
    const int top = beyond != 0 ? __ffs(beyond) - 2 : 31;
    valid += step * top;
    invalid = min(invalid, valid + step);
  }
  return from + direction * valid;
}

struct Range {
  int64_t first, last;
};

// The first and the last row that have entries, if there are any. Called by whole blocks.
__device__ __noinline__ Range rows_with_entries(Csr<Index> csr) {
  __shared__ int64_t valid_at;
  const Index* rows = csr.rows;
  int64_t some = is_row(rows[0], csr.num_rows) ? 0 : csr.count - 1;
  if (!is_row(rows[some], csr.num_rows)) {  // padding at both ends: where is anything else?
    bool any = false;
    for (int64_t base = threadIdx.x; !any && base - threadIdx.x < csr.count;
         base += 8 * blockDim.x) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int64_t at = min(base + i * blockDim.x, csr.count - 1);
        if (is_row(rows[at], csr.num_rows)) {
          any = true;
          valid_at = at;  // any of them will do
        }
      }
      any = __syncthreads_or(any);
    }
    if (!any) return {csr.num_rows, csr.num_rows};
    some = valid_at;
  }
  return {rows[last_valid(csr, some, false)], rows[last_valid(csr, some, true)]};
}

// The point at which a kernel waits for the launch before it: the start, or after reading the ids,
// or all operands. Then that launch must be one that does not let it start before all else has
// ended, and that does not write what it reads first. A kernel of XLA's starts when that launch has
// ended.
enum class Start { kWaits, kReadsAhead, kXla };

// Sums alone, in place of Dots.
struct NoDots {
  static constexpr bool kAny = false, kSlopes = false;
};

// Dots that a sum of gathered rows computes on its way: dots[e, head] = < left[r, head, :],
// in[cols[e], head, :] > of each entry e of row r, at the place of its weight. 0 for padding;
// nothing for an entry whose place is out of range.
template <typename T, typename Acc>
struct Dots {
  static constexpr bool kAny = true, kSlopes = false;
  const T* left;  // (num_rows, width)
  Acc* dots;      // (num_weights, heads)
  int head_bits;  // log2 of the lanes of a head, all of one team
  Start start;
};

// A substitute of Dots: the summands are a vector times the slopes of a LeakyReLU, 1 where
// left[r, :] + in[cols[e], :] is 0 or above, and `slope` elsewhere.
template <typename T, typename Acc>
struct Slopes {
  static constexpr bool kAny = true, kSlopes = true;
  static constexpr Start start = Start::kWaits;
  const T* left;      // (num_rows, width)
  const Acc* vector;  // (width), null means ones
  Acc slope;
};

// Makes all rows empty.
template <class Op, typename T, typename Acc, class RowEpilogue = NoEpilogue>
__global__ void fill_kernel(Output<T, Op, Acc, RowEpilogue> output, Start next) {
  if (next == Start::kWaits) allow_next_launch();
  wait_for_previous_launch();
  if (next == Start::kReadsAhead) allow_next_launch();
  const int64_t words = output.kHasEpilogue ? output.width / Op::kVec : output.width;
  const int64_t size = output.num_rows * words;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    if constexpr (output.kHasEpilogue) {
      const int64_t row = divide(i, words);
      output.store_empty(row, {(i - row * words) * Op::kVec, 0, true});
    } else {
      narrow(Op::empty(), output.out[i]);
    }
  }
}

}  // namespace
}  // namespace jax_gnn::cuda
