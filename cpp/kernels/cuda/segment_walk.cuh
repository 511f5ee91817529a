// Reduction of entries sorted by row, balanced over entries, without atomics (GeoT, section III).
//
// Every warp takes an even, contiguous range of entries, whatever the rows' lengths, and walks it
// in steps. A team of lanes holds a tile of features; a step deals kUnroll entries to each team of
// the warp, one after another (sequential reduction). The sum of a run of equal rows is stored by
// the team that sees the run end; what is open at the end of a team's entries is carried on to the
// next team, to the next step, and to the next warp, always in the same order. What is open where a
// block ends is handed, through the workspace, to the block in which the run ends (see Tails). The
// cut depends on shapes only: the same bits on every run.
//
// Results narrower than a sector are put side by side in shared memory first, where the warp's step
// has many rows: those between its first and its last, empty ones too, begin and end in it.
//
// Needs blocks of up to kMaxThreads threads, whole warps; dynamic shared memory, for two runs of
// each team's lanes a warp, for dots their words, and for narrow results kStagedBytes a warp; a
// workspace row for each block of a column of the grid; and a tag that no other launch has.
// segment_walk_launch.h provides them. Promises that all rows are written, empty ones too where it
// `fills`, and that any ids are survived.
#pragma once

#include <cuda_pipeline.h>

#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_runs.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kStagedBytes = 4 << 10;    // of a warp
constexpr unsigned kMinStagedRows = 32;  // rows of a step: fewer are written as they end

// Bytes ahead of the rows that are staged.
template <class Op, typename Acc>
__host__ __device__ constexpr int runs_bytes(int warps, int lanes) {
  return (warps * 2 * lanes * Op::kParts * static_cast<int>(sizeof(Acc)) + 15) / 16 * 16;
}

// Whether a message makes the parts of a run by itself, not features.
template <class Message>
constexpr bool makes_parts = false;

// Whether rows are short, see RowMessage.
template <class Message>
constexpr bool is_short = false;
template <typename T, typename Acc, int kVec>
constexpr bool is_short<RowMessage<T, Acc, kVec, true>> = true;

// Of a block, as registers are shared out.
template <class Message>
constexpr int max_threads = kMaxThreads;

// How entries and features are dealt out.
struct Cut {
  int lane_bits;     // log2 of the lanes of a team
  bool aligned;      // ids can be read in long words
  int64_t per_warp;  // entries of a warp, a multiple of a step's
  int64_t width;
};

// The steps of reduce_kernel, on what a thread has. All by reference: the code that comes out is
// that of lambdas in the kernel.
template <class Message, class Op>
struct Walk {
  using T = typename Message::T;
  using Acc = typename Message::Acc;
  static constexpr int kVec = Op::kVec, kParts = Op::kParts, kUnroll = Message::kUnroll;
  using Step = Ids<kUnroll, Acc>;

  // Loads the ids of a step.
  __device__ __forceinline__ void load_step(int64_t base, Step& ids) const {
    ids.first = base + team_ * kUnroll;
    ids.full =
        cut_.aligned && base + teams_ * kUnroll <= end_ && base + teams_ * kUnroll < csr_.count;
    if (ids.full) {
      ids.count = kUnroll;
      load_words<kUnroll>(rows_ + ids.first, ids.row);
      ids.row[kUnroll] = __ldg(rows_ + ids.first + kUnroll);
      if constexpr (Message::kGathers) {
        if (csr_.cols != nullptr) load_words<kUnroll>(csr_.cols + ids.first, ids.col);
        if (csr_.order != nullptr) load_words<kUnroll>(csr_.order + ids.first, ids.order);
        if (beside_) load_words<kUnroll>(message_.weights() + ids.first, ids.weight);
      }
    } else {
      const int64_t left = end_ - ids.first;
      ids.count = static_cast<int>(min(max(left, int64_t{0}), int64_t{kUnroll}));
      load_each(rows_, ids, ids.row);
      const int64_t next = min(ids.first + kUnroll, end_);
      ids.row[kUnroll] = load_or(next < csr_.count, rows_ + next, Index(-1));
      if constexpr (Message::kGathers) {
        if (csr_.cols != nullptr) load_each(csr_.cols, ids, ids.col);
        if (csr_.order != nullptr) load_each(csr_.order, ids, ids.order);
      }
    }
    if constexpr (Message::kGathers) {
      if (csr_.cols == nullptr)
#pragma unroll
        for (int j = 0; j < kUnroll; ++j)
          ids.col[j] = j < ids.count ? static_cast<Index>(ids.first + j) : -1;
    }
  }

  // Loads what the entries of a step bring.
  __device__ __forceinline__ void load_features(const Step& ids,
                                                typename Message::Loaded& loaded) const {
    if constexpr (Message::kDots) {
      message_.load(ids, sizes_, csr_.order != nullptr, beside_, column_, loaded, left_words_);
      __pipeline_commit();
    } else {
      message_.load(ids, sizes_, csr_.order != nullptr, Message::kGathers ? beside_ : whole_,
                    column_, loaded);
    }
  }

  // Something else than the last row of all, to follow it.
  __device__ __forceinline__ Index beyond_last() const {
    const Index last = rows_[csr_.count - 1];
    return last == kLeast<true, Index> ? kLeast<false, Index> : kLeast<true, Index>;
  }

  // The row of the entry that follows each of a step's.
  __device__ __forceinline__ void find_rows_after(Step& ids, Index (&after)[kUnroll]) const {
    if (!ids.full && ids.first + ids.count == csr_.count && ids.count > 0)
      ids.row[kUnroll] = beyond_last();
    // Entries beyond the last take the row of the one that follows them all: no end lies there.
    if (!ids.full)
#pragma unroll
      for (int j = 0; j < kUnroll; ++j)
        if (j >= ids.count) ids.row[j] = ids.row[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) after[j] = ids.row[j + 1];
  }

  const Csr<Index>& csr_;
  const Message& message_;
  const Cut& cut_;
  const int &teams_, &team_;  // of a warp
  const Column& column_;
  const Index* const& rows_;
  const int64_t& end_;  // of the warp's entries
  const Sizes& sizes_;
  void* const& left_words_;  // for messages with dots: words, [entry of a step][thread]
  const bool& beside_;       // weights are read with the ids
  const bool& whole_;        // all lanes of the block have features
};

template <class Message, class Op, class RowEpilogue = NoEpilogue>
__global__ void __launch_bounds__(max_threads<Message>, Message::kMinBlocks)
    reduce_kernel(Csr<Index> csr, Message message, Cut cut,
                  Output<typename Message::T, Op, typename Message::Acc, RowEpilogue> result,
                  int64_t heads, bool fills, Start start, Tails<Op, typename Message::Acc> tails) {
  using T = typename Message::T;
  using Acc = typename Message::Acc;
  constexpr bool kShort = is_short<Message>;
  __shared__ BlockRuns block_runs;
  using Steps = Walk<Message, Op>;
  constexpr int kVec = Op::kVec, kParts = Op::kParts, kUnroll = Message::kUnroll;
  const int lane_bits = kShort ? 0 : cut.lane_bits;
  const int lanes = 1 << lane_bits, lane = threadIdx.x & (lanes - 1);
  const int teams = 32 >> lane_bits, team = (threadIdx.x % 32) >> lane_bits;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int64_t width = kShort ? kVec : cut.width;
  const Column column = kShort ? Column{0, 0, true} : column_of<kVec>(lane, lanes, width, heads);
  // heads[warp][part][lane], then tails.
  Acc* const shared_heads = reinterpret_cast<Acc*>(dynamic_shared());
  Acc* const shared_tails = shared_heads + warps * kParts * lanes;
  void* const left_words = shared_tails + warps * kParts * lanes;
  if (threadIdx.x == 0) block_runs.num_long_gaps = 0;
  if (start == Start::kWaits) wait_for_previous_launch();
  __syncthreads();

  const int64_t begin =
      min((static_cast<int64_t>(blockIdx.x) * warps + warp) * cut.per_warp, csr.count);
  const int64_t end = min(begin + cut.per_warp, csr.count);
  const Index* rows = csr.rows;
  const int64_t per_block = warps * cut.per_warp;
  ask_for_edges(csr.rows, csr.count, per_block, block_runs.edges);

  Sizes sizes = {cut_size(csr.num_rows), cut_size(csr.num_cols), cut_size(csr.num_weights)};
  if (!column.active) sizes = {0, 0, 0};
  Output<T, Op, Acc, RowEpilogue> output = result;
  T* lane_out = output.out + column.first;
  hide(lane_out);       // or it is computed again for every store
  T* staged = nullptr;  // the warp's
  if constexpr (kShort) {
    output.width = kVec;
    staged = reinterpret_cast<T*>(dynamic_shared() + runs_bytes<Op, Acc>(warps, lanes) +
                                  warp * kStagedBytes);
    output.epilogue = {staged + column.first, 0, 0};
  }

  bool beside = false;
  if constexpr (Message::kGathers && !Message::kDots)
    beside = message.weights() != nullptr && heads == 1 && csr.order == nullptr;
  const bool whole = (static_cast<int64_t>(blockIdx.y) + 1) * lanes * kVec <= width;
  Acc carry[kParts];
  set_neutral<Op>(carry);
  bool seen = false, left_open = false;
  const Shared<Acc> shared = {block_runs, shared_heads, shared_tails};
  Steps walk{csr, message, cut, teams, team, column, rows, end, sizes, left_words, beside, whole};
  Runs<Op, T, Acc, RowEpilogue> runs{csr,    output, lanes, lane,     teams, team, warp,
                                     column, shared, sizes, lane_out, carry, seen, left_open};

  typename Steps::Step coming;
  if constexpr (Message::kGathers) walk.load_step(begin, coming);
  const Index row_before = load_or(begin > 0, rows + begin - 1, Index(0));
  if (start == Start::kReadsAhead) wait_for_previous_launch();
  for (int64_t base = begin; base < end; base += teams * kUnroll) {
    if constexpr (!Message::kGathers) walk.load_step(base, coming);
    typename Steps::Step ids = coming;
    typename Message::Loaded loaded;
    walk.load_features(ids, loaded);
    // The next step's ids arrive while this step's features do.
    if constexpr (Message::kGathers)
      if (base + teams * kUnroll < end) walk.load_step(base + teams * kUnroll, coming);
    if constexpr (Message::kDots)
      message.dot(ids, csr.order, cut_size(csr.num_weights), column, loaded, left_words);
    if (base == begin)
      left_open = begin > 0 && __shfl_sync(kWholeWarp, ids.row[0], 0) == row_before;
    Index after[kUnroll];  // the row of the entry that follows
    walk.find_rows_after(ids, after);
    bool stages = false;  // rows between the step's first and last
    if constexpr (kShort)
      if (ids.full) {
        const Index first = __shfl_sync(kWholeWarp, ids.row[0], 0);
        const Index last = __shfl_sync(kWholeWarp, ids.row[kUnroll - 1], 31);
        const unsigned between = static_cast<unsigned>(last) - static_cast<unsigned>(first) - 1;
        constexpr unsigned max_rows = kStagedBytes / (kVec * sizeof(T));
        stages = static_cast<unsigned>(first) < sizes.rows &&
                 static_cast<unsigned>(last) < sizes.rows && between >= kMinStagedRows &&
                 between <= max_rows;
        if (stages) {
          output.epilogue.first = static_cast<unsigned>(first) + 1;
          output.epilogue.rows = between;
          __syncwarp();  // the step before is done with what is there
          for (unsigned word = threadIdx.x % 32; word < between * lanes; word += 32)
            output.put_empty(staged + word * kVec);
          __syncwarp();
        }
      }
    bool has_end = false;
    Index head_row = 0;
    unsigned gaps = 0;  // bit j: rows after that of entry j are empty
    Acc head[kParts], run[kParts];
    set_neutral<Op>(head);
    set_neutral<Op>(run);
    unsigned uncounted = loaded.valid;
    const auto count_up = [&](int last) {  // to the run, entries up to the last
      if constexpr (Op::kCounts) {
        const unsigned upto = (2u << last) - 1;
        run[kVec] += static_cast<Acc>(__popc(uncounted & upto));
        uncounted &= ~upto;
      }
    };
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      Acc x[kVec], one[kParts];
      if constexpr (makes_parts<Message>)
        message.value(loaded, j, one);
      else
        message.value(loaded, j, x);
      if constexpr (Op::kCounts) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) run[i] += x[i];
      } else {
        if constexpr (!makes_parts<Message>) Op::from(x, one);
        if (!Op::kZeroIsNeutral && !(loaded.valid >> j & 1)) set_neutral<Op>(one);
        append<Op>(run, one);
      }
      if (ids.row[j] != after[j]) {
        count_up(j);
        output.store(lane_out, ids.row[j], run, has_end ? sizes.rows : 0);
#pragma unroll
        for (int i = 0; i < kParts; ++i) head[i] = has_end ? head[i] : run[i];
        head_row = has_end ? head_row : ids.row[j];
        has_end = true;
        set_neutral<Op>(run);
        if (static_cast<unsigned>(after[j]) - static_cast<unsigned>(ids.row[j]) != 1 ||
            ids.row[j] < 0)
          gaps |= 1u << j;
      }
    }
    count_up(kUnroll - 1);
    __syncwarp();
    runs.carry_on(has_end, has_end, head_row, head, run);
    if constexpr (kShort)
      if (stages) {
        __syncwarp();
        T* const to = output.out + int64_t{output.epilogue.first} * kVec;
        for (unsigned word = threadIdx.x % 32; word < output.epilogue.rows * lanes; word += 32)
          copy_word<kVec>(staged + word * kVec, to + word * kVec);
        output.epilogue.rows = 0;
        // Gaps between the step's entries are written by now.
        if (team + 1 < teams)
          gaps = 0;
        else
          gaps &= 1u << (kUnroll - 1);
      }
    if (fills)
      for (; gaps != 0; gaps &= gaps - 1) {
        const int64_t entry = ids.first + __ffs(gaps) - 1;
        runs.fill_gap(rows[entry], entry + 1 < csr.count ? int64_t{rows[entry + 1]} : -1);
      }
  }

  runs.complete(per_block, width, fills, tails);
}

}  // namespace
}  // namespace jax_gnn::cuda
