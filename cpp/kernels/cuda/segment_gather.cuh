// Reduction of gathered rows, by entries sorted by the row that they are reduced into. The walk of
// segment_walk.cuh for what is bound by L2: few registers go into ids, and loads of
// features never run dry.
//
// Every team of lanes takes an even, contiguous range of entries. Rows, columns and weights come by
// asynchronous copies into a ring in shared memory, chunks ahead of their use, each lane for its
// own entries, which it also checks. Teams read them back as broadcasts. Eight entries are in
// flight; while one half of them is added up, the other is on its way, and the next four follow. A
// run that ends is stored by its team, but the first if it may have begun before: that waits, in
// shared memory, until teams, warps and blocks are joined (segment_runs.cuh). Where rows have an
// epilogue, a step's runs wait there, too, until the next step's features are on their way: its
// code stands once, not after each entry, and its latency is not added to theirs. The cut depends
// on shapes, and on where entries end, if that is told: the same bits on every run.
//
// With dots, each row that is gathered is also multiplied with the row of `left` that it is added
// to. Those are copied into shared memory a step ahead, once for each run of a step, each lane's
// words for itself. With Slopes, too, which are what is summed up then.
//
// Under a softmax of scores (softmax_sums.cuh), what these are made of is asked for where a chunk
// is looked at, and becomes weights where the chunk's turn comes, by the lanes of the team side by
// side.
//
// Needs blocks of up to kGatherThreads threads, whole warps; gather_shared_bytes of dynamic shared
// memory, a workspace row for each block of a column of the grid, and a tag that no other launch
// has. segment_walk_launch.h provides them. Promises that all rows are written, empty ones too
// where it `fills`, that no row of an id out of range is read, and that any ids are survived.
#pragma once

#include <cuda_pipeline.h>

#include "lane_sums.cuh"
#include "segment_messages.cuh"
#include "segment_ops.cuh"
#include "segment_runs.cuh"
#include "softmax_sums.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kGatherThreads = 128;  // of a block
// Blocks of a multiprocessor: with more, registers are spilled.
template <class Softmax, class Dots = NoDots>
constexpr int kGatherBlocks = Softmax::kAny || Dots::kSlopes ? 4 : 5;
constexpr int kStepBits = 3, kStep = 1 << kStepBits, kHalf = kStep / 2;  // entries in flight
constexpr int kChunks = 4;                                               // that a ring holds
constexpr int kAroundWords = 8;  // of which three are used; rings are aligned to 16 bytes

// How entries and features are dealt out.
struct GatherCut {
  int lane_bits;   // log2 of the lanes of a team
  int chunk_bits;  // log2 of the entries of a chunk, at least a step's
  int max_heads;   // that the tile of a team meets
  int chunks;      // of a team
  int64_t width;
};

// The number of entries, and of chunks of them that a team has.
struct Extent {
  int64_t count;
  int chunks;
};

template <bool kHasEnd>
__device__ __forceinline__ Extent extent_of(const Csr<Index>& csr, const GatherCut& cut,
                                            int block_teams) {
  if (!kHasEnd || csr.end == nullptr) return {csr.count, cut.chunks};
  // One at least, as that may be padding, too. Read anew wherever it is asked for.
  const int64_t end = *static_cast<const volatile Index*>(csr.end);
  const int64_t count = max(min(end, csr.count), int64_t{1});
  const int64_t of_team = ceil_div(count, int64_t{gridDim.x} * block_teams);
  return {count, static_cast<int>((of_team + (1 << cut.chunk_bits) - 1) >> cut.chunk_bits)};
}

// The rows that are gathered, and their weights.
template <typename T_, typename Acc_>
struct Gathered {
  using T = T_;
  using Acc = Acc_;
  static constexpr bool kHasHalo = false;
  const T* in;
  const Acc* weight;  // null means ones
  int heads;
};

// Rows of two arrays, as if the second were appended to the first.
template <typename T, typename Acc>
struct Joined : Gathered<T, Acc> {
  static constexpr bool kHasHalo = true;
  Joined(const Gathered<T, Acc>& local, const Input<T>& input)
      : Gathered<T, Acc>(local), halo(input.halo), num_local(static_cast<Index>(input.num_local)) {}
  const T* halo;
  Index num_local;
};

// Runs of a step whose epilogue waits.
template <class RowEpilogue>
constexpr int kClosedRuns = std::is_same_v<RowEpilogue, NoEpilogue> ? 0 : kStep;
template <typename Acc>
constexpr int kClosedRuns<StoredStats<Acc>> = 0;

// Words of rows that dots are taken with, of each thread: of a step, and of the next.
template <class Dots>
constexpr int kLeftWords = Dots::kAny ? 2 * kStep : 0;

// Bytes of a team in shared memory: a ring of weights for each head, or what makes weights of a
// chunk.
template <typename Acc, class Softmax>
__host__ __device__ int team_weight_bytes(const GatherCut& cut, const Softmax& softmax) {
  if constexpr (Softmax::kAny)
    return softmax.team_bytes();
  else
    return (cut.max_heads * kChunks << cut.chunk_bits) * static_cast<int>(sizeof(Acc));
}

// Dynamic shared memory: of each team a ring of ids and the rows around its entries, and its
// weights; of each thread its part of a run, and of runs whose epilogue waits;
// heads[warp][part][lane], and tails; and of each thread words for dots.
template <class Op, typename Acc, class RowEpilogue, class Dots, class Softmax>
__host__ __device__ int64_t gather_shared_bytes(const GatherCut& cut, const Softmax& softmax,
                                                bool ordered, int threads) {
  const int64_t ring = int64_t{kChunks} << cut.chunk_bits, teams = threads >> cut.lane_bits;
  const int64_t ids = (ordered ? 3 : 2) * ring + kAroundWords;
  const int64_t runs =
      threads * (1 + kClosedRuns<RowEpilogue>)+threads / 32 * int64_t{2} * (1 << cut.lane_bits);
  return teams * (ids * sizeof(Index) + team_weight_bytes<Acc>(cut, softmax)) +
         runs * Op::kParts * sizeof(Acc) + int64_t{threads} * kLeftWords<Dots> * 16;
}

template <class Op, class Rows, class RowEpilogue = NoEpilogue, class Dots = NoDots,
          class Softmax = NoSoftmax>
__global__ void __launch_bounds__(kGatherThreads, kGatherBlocks<Softmax, Dots>)
    gather_kernel(Csr<Index> csr, Rows gathered, GatherCut cut,
                  Output<typename Rows::T, Op, typename Rows::Acc, RowEpilogue> result, Dots dots,
                  Softmax softmax, bool fills, Tails<Op, typename Rows::Acc> tails) {
  using T = typename Rows::T;
  using Acc = typename Rows::Acc;
  constexpr int kVec = Op::kVec, kParts = Op::kParts, kClosed = kClosedRuns<RowEpilogue>;
  constexpr bool kDots = Dots::kAny && !Dots::kSlopes;
  using W = Word<T, kVec>;
  __shared__ BlockRuns block_runs;
  const int lanes = 1 << cut.lane_bits, lane = threadIdx.x & (lanes - 1);
  const int teams = 32 >> cut.lane_bits, team = (threadIdx.x % 32) >> cut.lane_bits;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int block_team = threadIdx.x >> cut.lane_bits, block_teams = blockDim.x >> cut.lane_bits;
  const Column column = column_of<kVec>(lane, lanes, cut.width, gathered.heads);
  const bool ordered = csr.order != nullptr;
  const bool weighted = Softmax::kAny || gathered.weight != nullptr;
  const bool beside =  // weights lie as ids do
      !Softmax::kAny && weighted && !ordered && gathered.heads == 1;
  const bool apart = weighted && !beside, later = apart || Dots::kAny;

  const int chunk_size = 1 << cut.chunk_bits, ring_size = kChunks << cut.chunk_bits;
  const int team_words = (ordered ? 3 : 2) * ring_size + kAroundWords;
  const int team_weights = team_weight_bytes<Acc>(cut, softmax) / static_cast<int>(sizeof(Acc));
  unsigned char* const shared_bytes = dynamic_shared();
  Index* const all_ids = reinterpret_cast<Index*>(shared_bytes);
  Acc* const all_weights = reinterpret_cast<Acc*>(all_ids + block_teams * team_words);
  Acc* const weights = all_weights + block_team * team_weights;
  Acc* const first_runs = all_weights + block_teams * team_weights;  // [part][thread]
  Acc* const closed = first_runs + kParts * blockDim.x;
  const RunSlots<Op, Acc> closed_runs = {
      // [entry of a step][thread]
      reinterpret_cast<Pack<Acc, kVec>*>(closed), closed + kClosed * kVec * blockDim.x};
  Acc* const shared_heads = closed + kClosed * kParts * blockDim.x;
  Acc* const shared_tails = shared_heads + warps * kParts * lanes;
  W* const left_words = reinterpret_cast<W*>(shared_tails + warps * kParts * lanes) + threadIdx.x;
  if (threadIdx.x == 0) block_runs.num_long_gaps = 0;
  bool reads_ahead = false;
  if constexpr (Dots::kAny) reads_ahead = dots.start == Start::kReadsAhead;
  if (!reads_ahead) wait_for_previous_launch();
  __syncthreads();

  // Others have no registers for it.
  constexpr bool kHasEnd = std::is_same_v<Op, SumOp<Acc, kVec>> && !Dots::kAny && !Rows::kHasHalo;
  const Extent extent = extent_of<kHasEnd>(csr, cut, block_teams);
  const int64_t per_team = int64_t{extent.chunks} << cut.chunk_bits;
  const int64_t per_block = block_teams * per_team;
  const int64_t begin = min(blockIdx.x * per_block + block_team * per_team, extent.count);
  const int count = static_cast<int>(min(per_team, extent.count - begin));
  ask_for_edges(csr.rows, extent.count, per_block, block_runs.edges);
  // The first team of a warp has most.
  const int chunks = (__shfl_sync(kWholeWarp, count, 0) + chunk_size - 1) >> cut.chunk_bits;

  Sizes sizes = {cut_size(csr.num_rows), cut_size(csr.num_cols), cut_size(csr.num_weights)};
  const unsigned num_rows = sizes.rows, num_cols = sizes.cols;
  const unsigned num_weights = sizes.weights;
  if (!column.active) sizes = {0, 0, 0};
  Output<T, Op, Acc, RowEpilogue> output = result;
  if constexpr (Softmax::kAny) output.epilogue.keep_for(column, cut.width);
  T* const lane_out = output.out + column.first;
  const T* lane_in = gathered.in + column.first;
  hide(lane_in);
  const T* lane_halo = nullptr;  // where its row would begin that is the first own one
  const T* lane_left = nullptr;
  if constexpr (Dots::kAny) lane_left = dots.left + column.first;
  const unsigned row_bytes = static_cast<unsigned>(cut.width) * static_cast<unsigned>(sizeof(T));
  if constexpr (Rows::kHasHalo) {
    lane_halo = gathered.halo + column.first - static_cast<int64_t>(gathered.num_local) * cut.width;
    hide(lane_halo);
  }
  const int first_head =
      gathered.heads > 1 ? __shfl_sync(kWholeWarp, static_cast<int>(column.head), 0, lanes) : 0;

  // Offsets in shared memory of the operands of a step.
  const int head = column.active ? static_cast<int>(column.head) - first_head : 0;
  unsigned ring_bytes = static_cast<unsigned>(ring_size * sizeof(Index));
  unsigned rows_at = static_cast<unsigned>(block_team * team_words * sizeof(Index));
  unsigned weights_at =
      static_cast<unsigned>(block_teams * team_words * sizeof(Index) +
                            (block_team * team_weights + head * ring_size) * sizeof(Acc));
  unsigned numbers_at = weights_at, requests_at = 0, scores_at = 0;
  Quad first_quad = {};
  if constexpr (Softmax::kAny) {
    numbers_at = static_cast<unsigned>(block_teams * team_words * sizeof(Index) +
                                       block_team * softmax.team_bytes());
    scores_at = numbers_at + head * softmax.of_head + softmax.kLine;
    requests_at = numbers_at + softmax.requests;
    hide(numbers_at);
    hide(requests_at);
    first_quad = quad_of(softmax, numbers_at, lane);
    hide(first_quad.scores);
    hide(first_quad.requests);
    hide(scores_at);
  }
  unsigned num_readable = sizes.cols;
  hide(ring_bytes);
  hide(rows_at);
  hide(weights_at);
  hide(num_readable);
  Index* const ring =  // of rows; then of columns, and order
      reinterpret_cast<Index*>(shared_bytes + rows_at);
  Index* const around = ring + team_words - kAroundWords;  // rows before, after and of the first

  // Calls f(entry of the team, its place in the ring) for the lane's own entries of a chunk.
  const auto for_lane_entries = [&](int chunk, const auto& f) {
#pragma unroll 1
    for (int i = lane; i < chunk_size; i += lanes) {
      const int entry = (chunk << cut.chunk_bits) + i;
      f(entry, entry & (ring_size - 1));
    }
  };
  // Asks for the ids of a chunk. Where there are no entries left, the last one's.
  const auto ask_for_ids = [&](int chunk) {
    if (chunk < chunks)
      for_lane_entries(chunk, [&](int entry, int place) {
        const auto at = static_cast<Index>(begin + min(entry, count - 1));
        const auto copy = [&](const auto* from, auto* to) {
          copy_async<sizeof(*to)>(true, row_at(from, at, sizeof(*to)), to);
        };
        Index* to = ring + place;
        copy(csr.rows, to);
        if (csr.cols != nullptr)
          copy(csr.cols, to + ring_size);
        else
          to[ring_size] = at;
        if (ordered) copy(csr.order, to + 2 * ring_size);
        if (beside) copy(gathered.weight, weights + place);
      });
    __pipeline_commit();
  };
  const auto is_valid = [&](int entry, const Index* id) {
    return entry < count && static_cast<unsigned>(id[0]) < num_rows &&
           static_cast<unsigned>(id[ring_size]) < num_cols &&
           (!ordered || static_cast<unsigned>(id[2 * ring_size]) < num_weights);
  };
  const ChunkWeights<Acc, Softmax> chunk_weights = {
      softmax, shared_bytes, numbers_at, requests_at, first_quad, lanes, lane};
  if constexpr (Softmax::kAny)  // of heads that no lane of the tile has, too: all are looked at
#pragma unroll 1
    for (int h = lane; h < softmax.heads; h += lanes)
      chunk_weights.number(numbers_at + h * softmax.of_head + softmax.kLine - softmax.kEntry) = 0;
  unsigned begins = 0;  // bit i: another run begins with entry i of the chunk
  unsigned num_places = 0, first_lane = 0, team_lanes = 0;
  if constexpr (Softmax::kAny) {
    num_places = ordered ? num_weights : kWholeWarp;
    first_lane = threadIdx.x % 32 - lane;
    team_lanes = kWholeWarp >> (32 - lanes) << first_lane;
    hide(num_places);
    hide(first_lane);
    hide(team_lanes);
  }
  // Looks at a chunk whose ids are there: padding gets an invalid column, and a weight of zero.
  // Asks for weights that do not lie beside the ids. Returns whether the warp can read all there
  // is.
  const auto begin_chunk = [&](int chunk) {
    bool valid = column.active;
    if constexpr (Softmax::kAny) {
      begins = 0;
#pragma unroll 1
      for (int first = 0; first < chunk_size; first += lanes) {
        const int i = first + lane, entry = (chunk << cut.chunk_bits) + i;
        bool begins_run = false;
        if (i < chunk_size) {
          const unsigned bytes = static_cast<unsigned>(entry) * sizeof(Index);
          const unsigned mask = ring_bytes - 1, offset = rows_at + (bytes & mask);
          const auto id = [&](unsigned at) -> Index& {
            return *reinterpret_cast<Index*>(shared_bytes + at);
          };
          const Index row = id(offset), col = id(offset + ring_bytes);
          const Index place =
              ordered ? id(offset + 2 * ring_bytes) : static_cast<Index>(begin + entry);
          begins_run = row != id(rows_at + ((bytes - sizeof(Index)) & mask));
          const bool exists = entry < count && static_cast<unsigned>(row) < num_rows &&
                              static_cast<unsigned>(col) < num_cols &&
                              static_cast<unsigned>(place) < num_places;
          chunk_weights.ask(i, exists, row, col, place, first_head, gathered.heads);
          if (!exists) id(offset + ring_bytes) = -1;
          valid &= exists;
        }
        const unsigned bits = __ballot_sync(kWholeWarp, begins_run) & team_lanes;
        begins |= bits >> first_lane << first;
      }
      begins |= chunk == 0;
    } else {
      for_lane_entries(chunk, [&](int entry, int place) {
        Index* id = ring + place;
        const bool exists = is_valid(entry, id);
        if (apart) {
          const int64_t at = ordered ? int64_t{id[2 * ring_size]} : begin + entry;
#pragma unroll 1
          for (int h = 0; h < cut.max_heads; ++h)
            copy_async<sizeof(Acc)>(exists && first_head + h < gathered.heads,
                                    gathered.weight + at * gathered.heads + first_head + h,
                                    weights + h * ring_size + place);
        }
        if (!exists) {
          id[ring_size] = -1;
          if (beside) weights[place] = 0;
        }
        valid &= exists;
      });
    }
    if (apart && !Dots::kAny) __pipeline_commit();
    const bool all_valid = __all_sync(kWholeWarp, valid) != 0;
    if (!all_valid) __syncwarp();
    return all_valid;
  };

  // Asks for the rows that a step's dots are taken with, once for each run. What begin_chunk has
  // asked for comes with them.
  const auto ask_for_left = [&](int step) {
    if constexpr (Dots::kAny) {
      Index rows[kStep];
      read_shared(shared_bytes + rows_at + ((step << kStepBits) & (ring_size - 1)) * sizeof(Index),
                  rows);
      W* const to = left_words + (step & 1) * kStep * blockDim.x;
#pragma unroll
      for (int j = 0; j < kStep; ++j)
        if (j == 0 || rows[j] != rows[j - 1])
          copy_async<sizeof(W)>(static_cast<unsigned>(rows[j]) < sizes.rows,
                                row_at(lane_left, rows[j], row_bytes), to + j * blockDim.x);
      __pipeline_commit();
    }
  };

  if (lane == 0) ask_for_rows_around(csr.rows, extent.count, begin, count, around);
  if (!weighted)
    for (int i = lane; i < ring_size; i += lanes) weights[i] = 1;
#pragma unroll
  for (int chunk = 0; chunk < kChunks - 1; ++chunk) ask_for_ids(chunk);

  Acc carry[kParts], run[kParts];
  set_neutral<Op>(carry);
  set_neutral<Op>(run);
  bool seen = false, left_open = false;
  const Shared<Acc> shared = {block_runs, shared_heads, shared_tails};
  Runs<Op, T, Acc, RowEpilogue> runs{csr,    output, lanes, lane,     teams, team, warp,
                                     column, shared, sizes, lane_out, carry, seen, left_open};

  TeamRun<Op, Acc> open = {first_runs, around};
  unsigned waiting = 0;  // bit j: the run before the step's entry j waits for its epilogue
  const auto close = [&](int entry) {
    open.close(run, blockDim.x, [&](const Acc(&sum)[kParts]) {
      if (entry < kClosed) {
        closed_runs.put(sum, entry * blockDim.x + threadIdx.x);
        waiting |= 1u << entry;
      } else {
        output.store(lane_out, open.row, sum, sizes.rows);
      }
    });
  };

  unsigned at = 0;  // of the step's rows, from where the ring begins, bytes
  W words[kStep];
  bool all_valid = false;
  const auto load_half = [&](unsigned at, int half) {
    Index cols[kHalf];
    read_shared(shared_bytes + rows_at + ring_bytes + at + half * sizeof(cols), cols);
    W* to = words + half * kHalf;
    const auto address = [&](int j) {
      const T* from = lane_in;
      if constexpr (Rows::kHasHalo) from = cols[j] < gathered.num_local ? lane_in : lane_halo;
      return reinterpret_cast<const W*>(row_at(from, cols[j], row_bytes));
    };
    if (all_valid) {
#pragma unroll
      for (int j = 0; j < kHalf; ++j) load_always(address(j), to[j]);
    } else {
#pragma unroll
      for (int j = 0; j < kHalf; ++j) {
        to[j] = {};
        load_below(static_cast<unsigned>(cols[j]), num_readable, address(j), to[j]);
      }
    }
  };
  Acc high[kVec], low[kVec];  // of slopes
  if constexpr (Dots::kSlopes)
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      high[i] =
          load_or(dots.vector != nullptr && column.active, dots.vector + column.first + i, Acc(1));
      low[i] = high[i] * dots.slope;
    }
  Acc dot[kStep];     // the lane's share
  W left = {};        // of the run's row
  unsigned gaps = 0;  // bit j: rows before that of the step's entry j are empty
  const auto add_half = [&](int half, const W* step_left) {
    constexpr bool kLooksAtCols = !Softmax::kAny && (Op::kCounts || !Op::kZeroIsNeutral);
    const unsigned char* const from = shared_bytes + rows_at + at + half * kHalf * sizeof(Index);
    Index rows[kHalf], cols[kHalf];
    read_shared(from, rows);
    if constexpr (kLooksAtCols) read_shared(from + ring_bytes, cols);
    Acc factors[kHalf], entry_weights[kHalf];
    unsigned half_scores = 0;  // where scores lie, then weights, and factors
    if constexpr (Softmax::kAny) {
      half_scores = scores_at +
                    (at & (chunk_size * sizeof(Index) - 1)) * (sizeof(Acc) / sizeof(Index)) +
                    half * sizeof(factors);
      const unsigned half_weights = half_scores + softmax.of_kind;
      read_shared(shared_bytes + half_weights, entry_weights);
      read_shared(shared_bytes + half_weights + softmax.factors, factors);
    } else if constexpr (!std::is_integral_v<Acc>)
      read_shared(
          shared_bytes + weights_at + at * (sizeof(Acc) / sizeof(Index)) + half * sizeof(factors),
          factors);
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      if (rows[j] != open.row) {
        if (static_cast<unsigned>(rows[j]) - static_cast<unsigned>(open.row) != 1)
          gaps |= 1u << (half * kHalf + j);
        close(half * kHalf + j);
        open.row = rows[j];
        if constexpr (Softmax::kAny)
          run[Op::kTop] = at_least_lowest(
              *reinterpret_cast<const Acc*>(shared_bytes + half_scores + j * sizeof(Acc)));
        if constexpr (Dots::kAny) left = step_left[(half * kHalf + j) * blockDim.x];
      }
      if constexpr (kDots) {
        dot[half * kHalf + j] = 0;
        add_dot<T, kVec>(dot[half * kHalf + j], left, words[half * kHalf + j]);
      }
      Acc x[kVec];
      unpack<kVec, T>(words[half * kHalf + j], x);
      if constexpr (Dots::kSlopes) {
        Acc left_values[kVec];
        unpack<kVec, T>(left, left_values);
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[i] = left_values[i] + x[i] >= 0 ? high[i] : low[i];
      }
      if constexpr (Softmax::kAny) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) run[i] += factors[j] * x[i];
        run[Op::kSum] += entry_weights[j];
        continue;
      }
      if constexpr (!std::is_integral_v<Acc>)
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[i] *= factors[j];
      const bool exists = !kLooksAtCols || cols[j] >= 0;
      if constexpr (Op::kCounts) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) run[i] += x[i];
        run[kVec] += exists ? Acc(1) : Acc(0);
      } else if constexpr (!Softmax::kAny) {
        Acc one[kParts];
        Op::from(x, one);
        if (!exists) set_neutral<Op>(one);
        append<Op>(run, one);
      }
    }
  };

  // Ids are asked for two chunks ahead, and looked at one step ahead.
  if (chunks > 0) {
    __pipeline_wait_prior(kChunks - 2);
    __syncwarp();
    all_valid = begin_chunk(0);
    ask_for_left(0);
    open.begin(ring[0]);
    load_half(0, 0);
    load_half(0, 1);
    if (later) __pipeline_wait_prior(0);
  }
  if (reads_ahead) wait_for_previous_launch();
  const int steps_mask = (1 << (cut.chunk_bits - kStepBits)) - 1;
  const int steps = chunks << (cut.chunk_bits - kStepBits);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    if (later && (step & steps_mask) == 0) {
      __pipeline_wait_prior(1);  // all but the ids that were asked for last
      __syncwarp();
      if constexpr (Softmax::kAny) {
        Acc* const top = reinterpret_cast<Acc*>(shared_bytes + scores_at) - 1;
        *top = run[Op::kTop];
        if (chunk_weights.weigh(begins, all_valid, rows_at + ring_bytes + at)) {
          const Acc factor = shrink(run[Op::kTop], *top);
#pragma unroll
          for (int i = 0; i <= Op::kSum; ++i) run[i] *= factor;
          run[Op::kTop] = *top;
        }
        if (step == 0) run[Op::kTop] = at_least_lowest(top[1]);
      }
    } else if (Dots::kAny) {
      __pipeline_wait_prior(0);
    }
    const int next = step + 1;
    if ((next & steps_mask) == 0) {
      __pipeline_wait_prior(kChunks - 3);
      __syncwarp();
      if (next < steps) {
        const int chunk = next >> (cut.chunk_bits - kStepBits);
        all_valid = begin_chunk(chunk);
        ask_for_left(next);
        ask_for_ids(chunk + kChunks - 2);
      } else {
        all_valid = false;
        num_readable = 0;
      }
    } else {
      ask_for_left(next);
    }
    const unsigned next_at = (at + kStep * sizeof(Index)) & (ring_bytes - 1);
    const Index row_before = open.row;
    const W* const step_left = left_words + (step & 1) * kStep * blockDim.x;
    if constexpr (Dots::kAny) left = step_left[0];
    add_half(0, step_left);
    load_half(next_at, 0);
    add_half(1, step_left);
    const Index* const rows = reinterpret_cast<const Index*>(shared_bytes + rows_at + at);
    const auto before = [&](int j) { return j > 0 ? rows[j - 1] : row_before; };
    if constexpr (kClosed > 0)
#pragma unroll 1
      for (; waiting != 0; waiting &= waiting - 1) {
        const int j = __ffs(waiting) - 1;
        Acc ended[kParts];
        closed_runs.get(ended, j * blockDim.x + threadIdx.x);
        output.store(lane_out, before(j), ended, sizes.rows);
      }
    load_half(next_at, 1);
    if constexpr (kDots) {
      const Held held = add_over_lanes(dot, dots.head_bits);
      const bool writes = held.writes && (column.active || gathered.heads == 1);
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        if (j == held.count) break;
        const int place = held.first + j, entry = (step << kStepBits) + place;
        const bool exists = rows[ring_size + place] >= 0 &&
                            static_cast<unsigned>(rows[place]) < cut_size(csr.num_rows);
        const int64_t to = ordered ? int64_t{rows[2 * ring_size + place]} : begin + entry;
        if (writes && entry < count && static_cast<uint64_t>(to) < num_weights)
          dots.dots[to * gathered.heads + column.head] = exists ? dot[j] : Acc(0);
      }
    }
    if (fills)
#pragma unroll 1
      for (; gaps != 0; gaps &= gaps - 1) {
        const int j = __ffs(gaps) - 1;
        runs.fill_gap(before(j), rows[j]);
      }
    at = next_at;
  }

  __pipeline_wait_prior(0);
  __syncwarp();
  runs.close_last(open, count, fills, [&] { close(kStep); });
  __syncwarp();
  runs.close_range(open, blockDim.x, run);
  // Computed again, as there are no registers to keep it in.
  runs.complete(
      block_teams * (int64_t{extent_of<kHasEnd>(csr, cut, block_teams).chunks} << cut.chunk_bits),
      cut.width, fills, tails);
}

}  // namespace
}  // namespace jax_gnn::cuda
