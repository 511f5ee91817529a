// Products of rows with their group's weights (FASTEN, sections 4 and 5).
//
// The Hopper kernel computes transposed products: the weights' fragments stay in registers over all
// consecutive tiles of a group, rows stream through shared memory and are the right-hand side of
// the matrix instructions as they lie. The plain kernel takes whatever that one does not: any size,
// any alignment, exact float32, float64, other GPUs.
//
// Needs a grid whose blocks all fit on the GPU or take their turn, as they wait for nobody, and for
// the Hopper kernel what segment_matmul_launch.h checks: sm_90a, rows of whole 16 bytes, a
// TensorMap. Promises that each row is written once, rows of no group without a product, whatever
// the sizes are; where results are scattered, so is what the inverse list says is not written.
#pragma once

#include "../segment_matmul.h"
#include "activation.cuh"
#include "group_tiles.cuh"
#ifndef JAX_GNN_EMULATED  // matrix instructions need a GPU
#include "hopper.cuh"
#endif
#include "pack.cuh"
#include "tile_product.cuh"

namespace jax_gnn::cuda {
namespace {

// The row that a list names, -1 where that is outside [0, size); without a list, `row` itself.
__device__ __forceinline__ int64_t listed(const int32_t* list, int64_t row, int64_t size) {
  if (list == nullptr) return row;
  const int64_t id = list[row];
  return id >= 0 && id < size ? id : -1;
}

// The row that a list names, of two lists that must be each other's inverse there: no two rows name
// one row.
__device__ __forceinline__ int64_t paired(const int32_t* list, const int32_t* inverse, int64_t row,
                                          int64_t size) {
  const int64_t id = listed(list, row, size);
  return list == nullptr || (id >= 0 && inverse[id] == row) ? id : -1;
}

// Operands and result of a product.
template <typename T, typename Out>
struct Product {
  const T* lhs;
  const T* rhs;
  const T* bias;
  const Out* residual;
  Out* out;
  int k, n;
  bool transposed, out_aligned;  // to 16 bytes
  Activation activation;
  RowLists<Accumulator<T>> lists;

  // The result of a row without a product.
  template <bool kExact>
  __device__ __forceinline__ Accumulator<T> without_product(int64_t row, int column) const {
    if (residual == nullptr) return 0;
    return activated<kExact>(activation, Accumulator<T>(widen(residual[row * n + column])));
  }
  // The row of lhs that a row of the product reads, -1: none.
  __device__ __forceinline__ int64_t source_of(int64_t row) const {
    return listed(lists.lhs_rows, row, lists.num_lhs);
  }
  // The row of the result that a row of the product is, -1: none.
  __device__ __forceinline__ int64_t target_of(int64_t row, int64_t num_rows) const {
    return paired(lists.out_rows, lists.inverse, row, num_rows);
  }
  // The row of the product that a row of the result is, -1: none.
  __device__ __forceinline__ int64_t source_at(int64_t row, int64_t num_rows) const {
    return paired(lists.inverse, lists.out_rows, row, num_rows);
  }
};

// Writes `columns` columns, from `first` on, of rows of the result that no row of the product is:
// those that `rows` has bits for, counted from `row` on. Called by a whole warp.
template <bool kExact, typename T, typename Out>
__device__ __forceinline__ void clear_rows(const Product<T, Out>& product, int64_t row,
                                           unsigned rows, int first, int columns) {
  for (; rows != 0; rows &= rows - 1) {
    const int64_t other = row + __ffs(rows) - 1;
    const int end = least(first + columns, product.n);
    for (int column = first + static_cast<int>(threadIdx.x) % 32; column < end; column += 32)
      narrow(product.template without_product<kExact>(other, column),
             product.out[other * product.n + column]);
  }
}

// The places of a block's tiles, in ranges: `chunk` of every gridDim.x chunks, so that all blocks
// work in the same part of memory, and an even part of what remains.
class Share {
 public:
  __device__ __forceinline__ Share(int64_t total, int chunk)
      : total_(total),
        chunk_(chunk),
        chunks_(chunk > 0 ? divide(total, int64_t{chunk} * gridDim.x) : 0) {}

  __device__ __forceinline__ bool next(int64_t& begin, int64_t& end) {
    if (done_ < chunks_) {
      begin = (done_ * gridDim.x + blockIdx.x) * chunk_;
      end = begin + chunk_;
    } else {
      const int64_t dealt = chunks_ * chunk_ * gridDim.x;
      begin = dealt + split(total_ - dealt, blockIdx.x, gridDim.x);
      end = dealt + split(total_ - dealt, blockIdx.x + 1, gridDim.x);
    }
    return done_++ <= chunks_;
  }

 private:
  const int64_t total_;
  const int chunk_;
  const int64_t chunks_;
  int64_t done_ = 0;
};

#ifndef JAX_GNN_EMULATED
// --- Hopper --------------------------------------------------------------------------------------

// How rows come and go: both in order; written by ids; read by ids, or scaled, and written by ids,
// where there are any; or read so, and written in order.
enum class Order { kInPlace, kScattered, kListed, kGathered };

// Blocks of kWarpgroups warpgroups that compute 64 columns each, warps that load: one, or if rows
// are read by ids several, and where results may be listed warps that store. kChunks chunks of 128
// bytes hold a row.
template <typename T, typename Out, int kChunks_, int kWarpgroups_, int kRows_, Order kOrder>
struct HopperTile {
  static constexpr int kChunks = kChunks_, kWarpgroups = kWarpgroups_, kRows = kRows_;
  static constexpr bool kGathers = kOrder == Order::kListed || kOrder == Order::kGathered;
  static constexpr bool kStores = kOrder == Order::kListed || kOrder == Order::kScattered;
  static constexpr int kColumns = 64 * kWarpgroups;
  static constexpr int kSteps = 4 * kChunks;  // of 32 bytes of a row
  static constexpr int kStageBytes = kChunks * kRows * kChunkBytes;
  // Padded, where threads read what others have written: no conflicts.
  static constexpr int kResultRow = kColumns * static_cast<int>(sizeof(Out)) + (kStores ? 16 : 0);
  static constexpr int kResults = kStores && kChunks <= 4 ? 2 : 1;
  static constexpr int kResultBytes = kRows * kResultRow;
  // More warps than these, or more blocks with them, would take registers from the products.
  static constexpr int kBlocks = kWarpgroups == 2
                                     ? (kChunks <= 2 && kRows == 64 && !kStores ? 2 : 1)
                                 : kChunks > (kGathers ? 2 : 4) ? 1
                                 : kChunks > 2 || kStores       ? 2
                                                                : 3;
  static constexpr int kLoaders = !kGathers                                        ? 1
                                  : !kStores || (kWarpgroups == 1 && kChunks == 4) ? 4
                                                                                   : 2;
  static constexpr int kStorers = !kStores                           ? 0
                                  : kGathers                         ? kLoaders
                                  : kWarpgroups == 2 || kBlocks == 1 ? 3
                                  : kChunks == 4                     ? 1
                                                                     : 2;
  static constexpr int kThreads = 128 * kWarpgroups + 32 * (kLoaders + kStorers);
  static constexpr int kStatic = kGathers || kStores ? 11 : 7;  // KB, of static memory
  static constexpr int kSharedBytes = 226 * 1024 / kBlocks - kStatic * 1024;
  static constexpr int kStages =
      least(8, (kSharedBytes - kChunkAlign - kResults * kResultBytes) / kStageBytes);
};

// How weights lie: neighbouring columns in one word, or one by one.
enum class Weights { kPairs, kSingle };

// A thread's fragments of the weights of columns `column` and `column` + 1. All loads are issued
// before any of what they bring is used; `meanwhile` is called in between.
template <class Shape, Weights kWeights, typename T, class Meanwhile>
__device__ __forceinline__ void load_weights(const T* weights, int k, int n, int column,
                                             unsigned (&a)[Shape::kSteps][4],
                                             const Meanwhile& meanwhile) {
  constexpr bool kWords = sizeof(T) == 4;
  const int quad = threadIdx.x % 4;
  // One weight, in the lower bits.
  const auto one = [&](int depth, int j) -> unsigned {
    Word<T, 1> bits = 0;
    load_if(depth < k && j < n,
            reinterpret_cast<const Word<T, 1>*>(weights + int64_t{depth} * n + j), bits);
    return bits;
  };
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned* const two = &a[step][2 * half];
      const int depth = kWords ? step * 8 + half * 4 + quad : step * 16 + half * 8 + quad * 2;
      const T* const from = weights + int64_t{depth} * n + column;
      if constexpr (kWords && kWeights == Weights::kPairs) {
        uint2 bits = {0, 0};
        load_if(depth < k && column < n, reinterpret_cast<const uint2*>(from), bits);
        two[0] = bits.x;
        two[1] = bits.y;
      } else if constexpr (kWords) {
        two[0] = one(depth, column);
        two[1] = one(depth, column + 1);
      } else if constexpr (kWeights == Weights::kPairs) {
        two[0] = two[1] = 0;
        load_if(depth < k && column < n, reinterpret_cast<const unsigned*>(from), two[0]);
        load_if(depth < k && column < n, reinterpret_cast<const unsigned*>(from + n), two[1]);
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j)
          two[j] = one(depth, column + j) | one(depth + 1, column + j) << 16;
      }
    }
  __syncwarp();  // else the compiler waits for each load before it issues the next
  meanwhile();
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned &x = a[step][2 * half], &y = a[step][2 * half + 1];
      if constexpr (kWords) {
        x = to_tf32(x);
        y = to_tf32(y);
      } else if constexpr (kWeights == Weights::kPairs) {
        const unsigned upper = x, lower = y;
        x = __byte_perm(upper, lower, 0x5410);
        y = __byte_perm(upper, lower, 0x7632);
      }
    }
}

// The 4 by 4 words of the four lanes of a quad, transposed: lane i's word j is lane j's word i.
__device__ __forceinline__ void transpose_quad(unsigned (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; ++distance) {
    const bool is_upper = threadIdx.x & distance;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      unsigned& lower = words[pair * (3 - distance)];
      unsigned& upper = words[pair * (3 - distance) + distance];
      const unsigned other = __shfl_xor_sync(kWholeWarp, is_upper ? lower : upper, distance);
      (is_upper ? lower : upper) = other;
    }
  }
}

// The same of transposed weights, whose rows are whole 16 bytes: a quad reads 64 bytes of a row.
template <class Shape, typename T, class Meanwhile>
__device__ __forceinline__ void load_transposed(const T* weights, int k, int n, int column,
                                                unsigned (&a)[Shape::kSteps][4],
                                                const Meanwhile& meanwhile) {
  unsigned words[Shape::kSteps / 2][2][4];
#pragma unroll
  for (int i = 0; i < Shape::kSteps / 2; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int depth = (16 * i + static_cast<int>(threadIdx.x) % 4 * 4) * 4 / int{sizeof(T)};
      uint4 bits = {0, 0, 0, 0};
      load_if(depth < k && column + j < n,
              reinterpret_cast<const uint4*>(weights + int64_t{column + j} * k + depth), bits);
      memcpy(words[i][j], &bits, sizeof(bits));
    }
  __syncwarp();
  meanwhile();
#pragma unroll
  for (int i = 0; i < Shape::kSteps / 2; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      transpose_quad(words[i][j]);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const unsigned bits = words[i][j][word];
        a[2 * i + word / 2][word % 2 * 2 + j] = sizeof(T) == 4 ? to_tf32(bits) : bits;
      }
    }
}

// The same of a group's weights, however they lie.
template <class Shape, typename T, typename Out, class Meanwhile>
__device__ __forceinline__ void load_weights_of(const Product<T, Out>& product, unsigned group,
                                                int column, unsigned (&a)[Shape::kSteps][4],
                                                const Meanwhile& meanwhile) {
  const int k = product.k, n = product.n;
  const T* const weights = product.rhs + int64_t{group} * k * n;
  if (product.transposed)
    load_transposed<Shape>(weights, k, n, column, a, meanwhile);
  else if (n % 2 == 0)
    load_weights<Shape, Weights::kPairs>(weights, k, n, column, a, meanwhile);
  else
    load_weights<Shape, Weights::kSingle>(weights, k, n, column, a, meanwhile);
}

template <typename Out>
__device__ __forceinline__ void store_pair(Out* out, bool has_second, bool together, float first,
                                           float second) {
  if (together) {
    Pack<Out, 2> pack;
    narrow(first, pack.at[0]);
    narrow(second, pack.at[1]);
    Word<Out, 2> bits;  // else the compiler stores half types to shared memory one by one
    memcpy(&bits, &pack, sizeof(bits));
    *reinterpret_cast<Word<Out, 2>*>(out) = bits;
  } else {
    narrow(first, out[0]);
    if (has_second) narrow(second, out[1]);
  }
}

// sum (kRows, 64), transposed: a thread's part of a tile's product with the weights in `a`, of rows
// that matrix instructions may see.
template <class Shape, typename T>
__device__ __forceinline__ void multiply_tile(const unsigned char* rows,
                                              const unsigned (&a)[Shape::kSteps][4],
                                              float (&sum)[Shape::kRows / 2]) {
  const uint64_t b = matrix_descriptor(rows);
  warpgroup_arrive();
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    // Descriptors count in 16 bytes.
    const int offset_bytes = step / 4 * Shape::kRows * kChunkBytes + step % 4 * 32;
    Multiply<T, Shape::kRows>::add(sum, a[step], b + offset_bytes / 16, step > 0);
  }
  warpgroup_commit();
  warpgroup_wait();
}

// The row of the tile, and the column, of the thread's two, of sum j.
__device__ __forceinline__ int row_of_sum(int j) {
  return j / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + j % 2;
}
constexpr __host__ __device__ int column_of_sum(int j) { return j / 2 % 2; }

template <int kSums>
__device__ __forceinline__ void scale_rows(const float* scales, float (&sum)[kSums]) {
#pragma unroll
  for (int j = 0; j < kSums; ++j) sum[j] *= scales[row_of_sum(j)];
}

template <int kSums>
__device__ __forceinline__ void activate(Activation activation, const float (&bias)[2],
                                         float (&sum)[kSums]) {
#pragma unroll
  for (int j = 0; j < kSums; ++j)
    sum[j] = activated<false>(activation, sum[j] + bias[column_of_sum(j)]);
}

// Adds what lies at place_of(row), if that is somewhere, to the thread's sums of the first `count`
// rows.
template <int kSums, class PlaceOf>
__device__ __forceinline__ void add_to_sums(int count, bool has_second, bool together,
                                            const PlaceOf& place_of, float (&sum)[kSums]) {
#pragma unroll
  for (int j = 0; j < kSums / 2; ++j) {
    const int at = j / 2 * 4 + j % 2, row = row_of_sum(at);
    if (row >= count) continue;
    if (const auto* const place = place_of(row); place != nullptr) {
      Pack<std::decay_t<decltype(*place)>, 2> pack = {};
      if (together) {
        memcpy(&pack, __builtin_assume_aligned(place, sizeof(pack)), sizeof(pack));
      } else {
        pack.at[0] = place[0];
        if (has_second) pack.at[1] = place[1];
      }
      sum[at] += widen(pack.at[0]);
      sum[at + 2] += widen(pack.at[1]);
    }
  }
}

// Stores the thread's sums of the first `count` rows at place_of(row), if that is somewhere.
template <int kSums, class PlaceOf>
__device__ __forceinline__ void store_sums(const float (&sum)[kSums], int count, bool has_second,
                                           bool together, const PlaceOf& place_of) {
#pragma unroll
  for (int j = 0; j < kSums / 2; ++j) {
    const int at = j / 2 * 4 + j % 2, row = row_of_sum(at);
    if (row >= count) continue;
    if (auto* const place = place_of(row); place != nullptr)
      store_pair(place, has_second, together, sum[at], sum[at + 2]);
  }
}

// The warp that loads.
template <class Shape, class Walk, typename T, typename Out>
struct RowLoader {
  const TensorMap& rows;
  const Groups& groups;
  const Product<T, Out>& product;
  const int &chunk, &offset, &k, &n;
  const typename Walk::Index& index;
  unsigned char* const& ring;
  Barrier *announced, *filled, *emptied;
  Tile* tiles;

  // Sends for the rows of each tile of the block, and announces that there are no more.
  __device__ __forceinline__ void load_all(RingIndex& at) const {
    constexpr int kStages = Shape::kStages;
    Walk walk(groups, Shape::kRows, index);
    Share share(index.total, chunk);
    const TileCopy<T, Shape::kRows, Shape::kChunks> copy(rows, k, 0);
    const int64_t weight_bytes = int64_t{k} * n * sizeof(T);
    const bool prefetches = weight_bytes % 16 == 0 && weight_bytes < 1 << 20;
    int64_t begin, end;
    while (share.next(begin, end)) {
      if (begin == end) break;
      walk.seek(begin);
      for (bool first = true; walk.place() < end; first = false, at.advance(kStages)) {
        const Tile tile = walk.next();
        if (threadIdx.x % 32 != 0) continue;
        const Weight weight = weight_of(groups, tile.group, offset);
        emptied[at.stage].wait(at.parity ^ 1);
        tiles[at.stage] = tile;
        announced[at.stage].arrive();
        if (!weight.exists || tile.count == 0) {
          filled[at.stage].arrive();
          continue;
        }
        filled[at.stage].arrive_expecting(copy.kBytes);
        copy(tile.row, ring + at.stage * Shape::kStageBytes, filled[at.stage]);
        if (prefetches && (tile.first || first))
          prefetch_to_l2(reinterpret_cast<const char*>(product.rhs) + weight.index * weight_bytes,
                         static_cast<unsigned>(weight_bytes));
      }
    }
    if (threadIdx.x % 32 == 0) {
      emptied[at.stage].wait(at.parity ^ 1);
      tiles[at.stage].count = -1;
      announced[at.stage].arrive();
    }
  }
};

// The warps that load where rows are read, or scaled, by lists: what RowLoader does, in copies of
// 16 bytes, which barriers count by their threads. Each has an even part of a tile's rows.
template <class Shape, class Walk, typename T, typename Out>
struct RowGatherer {
  static constexpr int kMine = Shape::kRows / Shape::kLoaders;
  static_assert(kMine <= 32);

  const Groups& groups;
  const Product<T, Out>& product;
  const int &chunk, &offset, &k, &n;
  const typename Walk::Index& index;
  unsigned char* const& ring;
  float (*scales)[Shape::kRows];
  Barrier *announced, *filled, *emptied;
  Tile* tiles;

  // A tile, the id that this lane has of its rows, and whether its weight was not the last one's.
  struct Ahead {
    Tile tile;
    RowIds<kMine> ids;
    bool enters;
  };

  __device__ __forceinline__ void load_all(RingIndex& at) const {
    const auto& lists = product.lists;
    const int lane = threadIdx.x % 32;
    const int loader = threadIdx.x / 32 - 4 * Shape::kWarpgroups, first_row = loader * kMine;
    Walk walk(groups, Shape::kRows, index);
    Share share(index.total, chunk);
    const int64_t weight_bytes = int64_t{k} * n * sizeof(T);
    const bool prefetches = weight_bytes % 16 == 0 && weight_bytes < 1 << 20;
    int64_t begin = 0, end = 0;
    const auto advance = [&](Ahead& ahead) {
      bool enters = false;
      while (begin == end || walk.place() >= end) {
        if (!share.next(begin, end) || begin == end) {
          ahead.tile.count = -1;
          begin = end;
          return;
        }
        walk.seek(begin);
        enters = true;
      }
      ahead.tile = walk.next();
      ahead.enters = enters || ahead.tile.first;
      const int row = first_row + lane % kMine;
      ahead.ids[0] = -1;
      if (row < ahead.tile.count) {
        ahead.ids[0] = ahead.tile.row + row;
        if (lists.lhs_rows != nullptr) ahead.ids[0] = lists.lhs_rows[ahead.tile.row + row];
      }
    };
    // Ids are fetched two tiles ahead.
    Ahead now, next, later;
    advance(now);
    advance(next);
    for (; now.tile.count >= 0; now = next, next = later, at.advance(Shape::kStages)) {
      advance(later);
      const Weight weight = weight_of(groups, now.tile.group, offset);
      emptied[at.stage].wait(at.parity ^ 1);
      if (loader == 0 && lane == 0) {
        tiles[at.stage] = now.tile;
        announced[at.stage].arrive();
        if (weight.exists && prefetches && now.enters)
          prefetch_to_l2(reinterpret_cast<const char*>(product.rhs) + weight.index * weight_bytes,
                         static_cast<unsigned>(weight_bytes));
      }
      if (weight.exists && now.tile.count > 0) {
        start_rows<kMine, Shape::kRows, Shape::kChunks>(
            product.lhs, lists.num_lhs, k, 0, now.ids, first_row,
            shared_address(ring + at.stage * Shape::kStageBytes));
      }
      const int row = first_row + lane;
      if (lists.scale != nullptr && lane < kMine)
        start_copy<4>(shared_address(&scales[at.stage][row]), lists.scale + now.tile.row + row,
                      row < now.tile.count);
      arrive_when_copied(filled[at.stage]);
    }
    emptied[at.stage].wait(at.parity ^ 1);
    if (loader == 0 && lane == 0) {
      tiles[at.stage].count = -1;
      announced[at.stage].arrive();
    }
  }
};

// Row lists of three tiles in turn: where their rows go, and which row of the product each row
// is that has such a row's own number.
template <class Shape>
struct StoredRows {
  int places[3][Shape::kRows], sources[3][Shape::kRows];
};

// The warps that store where rows are listed: those that multiply need not wait then until memory
// takes what they have. Each has a part of a tile's rows, which it writes one after another,
// neighbouring lanes to neighbouring bytes; and it clears the same rows of the result where nobody
// writes them.
template <class Shape, typename T, typename Out>
struct RowStorer {
  static constexpr int kMine = (Shape::kRows - 1) / Shape::kStorers + 1;

  const Groups& groups;
  const Product<T, Out>& product;
  const unsigned char* results;
  StoredRows<Shape>& stored_rows;
  Barrier *announced, *emptied, *staged, *stored;
  const Tile* tiles;

  __device__ __forceinline__ void store_all() const {
    const int lane = threadIdx.x % 32, first = first_row();
    const int first_column = blockIdx.y * Shape::kColumns;
    const int row_bytes = product.n * static_cast<int>(sizeof(Out));
    RingIndex at;
    Part now = ask(at, 0), next = ask(at, 1);
    int slot = 0;
    for (RingIndex result; now.count >= 0; result.advance(Shape::kResults)) {
      const Part later = ask(at, slot == 0 ? 2 : slot - 1);
      wait_for_copies_but<2>();
      __syncwarp();
      staged[result.stage].wait(result.parity);
      const int* const places = stored_rows.places[slot] + first;
      const unsigned char* const rows =
          results + result.stage * Shape::kResultBytes + first * Shape::kResultRow;
      if (row_bytes % 16 == 0 && product.out_aligned)
        store_rows<uint4>(rows, places, now.count, first_column);
      else if (row_bytes % 8 == 0)
        store_rows<uint2>(rows, places, now.count, first_column);
      else
        store_rows<Word<Out, 1>>(rows, places, now.count, first_column);
      __syncwarp();
      if (lane == 0) stored[result.stage].arrive();
      if (product.lists.inverse != nullptr)
        for (int i = 0; i < now.count; i += 32) {
          const bool clears =
              i + lane < now.count && !is_id(stored_rows.sources[slot][first + i + lane],
                                             static_cast<unsigned>(groups.num_rows));
          clear_rows<false>(product, int64_t{now.row} + i, __ballot_sync(kWholeWarp, clears),
                            first_column, Shape::kColumns);
        }
      now = next;
      next = later;
      slot = slot == 2 ? 0 : slot + 1;
    }
  }

 private:
  struct Part {
    int row, count;  // -1: there is no tile
  };

  static __device__ __forceinline__ int first_row() {
    return kMine * (static_cast<int>(threadIdx.x) / 32 - 4 * Shape::kWarpgroups - Shape::kLoaders);
  }

  // The warp's part of the next tile, whose ids it asks for. Two tiles later they are there, in
  // shared memory: of registers that loads fill, none could be moved on before.
  __device__ __forceinline__ Part ask(RingIndex& at, int slot) const {
    const auto& lists = product.lists;
    const int lane = threadIdx.x % 32, first = first_row();
    announced[at.stage].wait(at.parity);
    const Tile tile = tiles[at.stage];
    if (tile.count < 0) {
      commit_copies();
      return {0, -1};
    }
    __syncwarp();
    if (lane == 0) emptied[at.stage].arrive();
    at.advance(Shape::kStages);
    const Part part = {tile.row + first, max(min(tile.count - first, kMine), 0)};
    for (int i = lane; i < part.count; i += 32) {
      int* const place = &stored_rows.places[slot][first + i];
      if (lists.out_rows != nullptr)
        start_copy<4>(shared_address(place), lists.out_rows + part.row + i, true);
      else
        *place = part.row + i;
      if (lists.inverse != nullptr)
        start_copy<4>(shared_address(&stored_rows.sources[slot][first + i]),
                      lists.inverse + part.row + i, true);
    }
    commit_copies();
    return part;
  }

  // Writes `count` rows to their places, in words.
  template <typename Word>
  __device__ __forceinline__ void store_rows(const unsigned char* rows, const int* places,
                                             int count, int first_column) const {
    constexpr int kBatch = 8;  // words on their way
    const int words = least(Shape::kColumns, product.n - first_column) *
                      static_cast<int>(sizeof(Out)) / static_cast<int>(sizeof(Word));
    const int lane = threadIdx.x % 32, row_step = 32 / words, word_step = 32 % words;
    const unsigned out_bytes = product.n * static_cast<unsigned>(sizeof(Out));
    const uint64_t out = reinterpret_cast<uint64_t>(product.out + first_column);
    int row = lane / words, word = lane % words;
    for (int done = 0; done < count * words; done += 32 * kBatch) {
      unsigned to[kBatch];
      uint64_t place[kBatch];
      Word bits[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int from = min(row, count - 1);
        to[i] = places[from];
        bits[i] = *reinterpret_cast<const Word*>(rows + from * Shape::kResultRow +
                                                 word * static_cast<int>(sizeof(Word)));
        place[i] = out + word * sizeof(Word);
        if (row >= count) to[i] = ~0u;
        row += row_step;
        word += word_step;
        if (word >= words) {
          word -= words;
          ++row;
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        store_below(to[i], static_cast<unsigned>(groups.num_rows),
                    reinterpret_cast<Word*>(multiply_add(to[i], out_bytes, place[i])), bits[i]);
    }
  }
};

template <class Shape, typename T, typename Out>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    hopper_matmul_kernel(const __grid_constant__ TensorMap rows, Groups groups,
                         Product<T, Out> product, int chunk) {
#if JAX_GNN_ON_HOPPER
  constexpr int kStages = Shape::kStages, kResults = Shape::kResults;
  constexpr bool kGathers = Shape::kGathers, kStores = Shape::kStores;
  extern __shared__ unsigned char shared_bytes[];
  unsigned char* const ring = first_chunk(shared_bytes);
  unsigned char* const results = ring + kStages * Shape::kStageBytes;
  __shared__ Barrier announced[kStages], filled[kStages], emptied[kStages];
  __shared__ Barrier staged[kResults], stored[kResults];
  __shared__ Tile tiles[kStages];
  using Walk = TileWalk<Shape::kThreads, 0, true>;
  __shared__ typename Walk::Index index;
  __shared__ float scales[kGathers ? kStages : 1][Shape::kRows];
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      announced[stage].init(1);
      filled[stage].init(kGathers ? 32 * Shape::kLoaders : 1);
      emptied[stage].init(4 * Shape::kWarpgroups + Shape::kStorers);
    }
    for (int result = 0; kStores && result < kResults; ++result) {
      staged[result].init(4 * Shape::kWarpgroups);
      stored[result].init(Shape::kStorers);
    }
    make_barriers_visible();
    if (!kGathers) prefetch_map(rows);
  }
  wait_for_previous_launch();
  const int offset = *groups.offset;
  index.build(groups, Shape::kRows);
  const int k = product.k, n = product.n;
  RingIndex at;

  if (threadIdx.x >= 128 * Shape::kWarpgroups) {
    if constexpr (kStores)
      if (threadIdx.x >= 128 * Shape::kWarpgroups + 32 * Shape::kLoaders) {
        __shared__ StoredRows<Shape> stored_rows;
        const RowStorer<Shape, T, Out> storer = {groups,  product, results, stored_rows, announced,
                                                 emptied, staged,  stored,  tiles};
        storer.store_all();
        return;
      }
    if constexpr (kGathers) {
      const RowGatherer<Shape, Walk, T, Out> loader = {groups, product, chunk, offset, k,
                                                       n,      index,   ring,  scales, announced,
                                                       filled, emptied, tiles};
      loader.load_all(at);
    } else {
      const RowLoader<Shape, Walk, T, Out> loader = {rows,   groups,  product, chunk, offset,
                                                     k,      n,       index,   ring,  announced,
                                                     filled, emptied, tiles};
      loader.load_all(at);
    }
    return;
  }

  // In a warpgroup, row g of the fragments of warp w is column 16 w + 2 g, row g + 8 the next.
  const int first_column = blockIdx.y * Shape::kColumns;
  const int column = first_column + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2;
  unsigned a[Shape::kSteps][4];
  float bias[2] = {0, 0};
  int held = -1;  // the group whose weights are in registers
  // Results of full rows leave together; others are stored from registers.
  const bool leaves = gridDim.y == 1 && n * sizeof(Out) % 16 == 0 && product.out_aligned;
  RingIndex slot;  // of results that are stored by others
  for (;; at.advance(kStages)) {
    announced[at.stage].wait(at.parity);
    const Tile tile = tiles[at.stage];
    if (tile.count < 0) break;
    const Weight weight = weight_of(groups, tile.group, offset);
    float sum[Shape::kRows / 2];
    if (weight.exists && tile.count > 0) {
      if (tile.group != held) {
        held = tile.group;
        load_weights_of<Shape>(product, weight.index, column, a, [] {});
        if (product.bias != nullptr)
#pragma unroll
          for (int j = 0; j < 2; ++j)
            if (column + j < n)
              bias[j] = widen(product.bias[int64_t{weight.index} * n + column + j]);
      }
      filled[at.stage].wait(at.parity);
      if constexpr (kGathers) make_visible_to_copies();  // and to matrix instructions
      multiply_tile<Shape, T>(ring + at.stage * Shape::kStageBytes, a, sum);
      if constexpr (kGathers)
        if (product.lists.scale != nullptr) scale_rows(scales[at.stage], sum);
    } else {
      filled[at.stage].wait(at.parity);
#pragma unroll
      for (float& x : sum) x = 0;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) emptied[at.stage].arrive();
    if (product.residual != nullptr && column < n) {
      const int32_t* const out_rows = kStores ? product.lists.out_rows : nullptr;
      add_to_sums(
          tile.count, column + 1 < n, n % 2 == 0,
          [&](int row) -> const Out* {
            const int64_t place = listed(out_rows, int64_t{tile.row} + row, groups.num_rows);
            return place < 0 ? nullptr : product.residual + place * n + column;
          },
          sum);
    }
    if (product.bias != nullptr || product.activation != Activation::kNone) {
      if (!weight.exists) bias[0] = bias[1] = 0, held = -1;
      activate(product.activation, bias, sum);
    }
    if constexpr (kStores) {
      stored[slot.stage].wait(slot.parity ^ 1);
      unsigned char* const result = results + slot.stage * Shape::kResultBytes;
      if (column < n)
        store_sums(sum, Shape::kRows, true, true, [&](int row) {
          return reinterpret_cast<Out*>(result + row * Shape::kResultRow) + column - first_column;
        });
      __syncwarp();
      if (threadIdx.x % 32 == 0) staged[slot.stage].arrive();
      slot.advance(kResults);
    } else {
      const auto store = [&](int count, Out* out) {
        if (column < n)
          store_sums(sum, count, column + 1 < n, n % 2 == 0,
                     [&](int row) { return out + column + int64_t{row} * n; });
      };
      Out* const out = product.out + int64_t{tile.row} * n;
      if (leaves) {
        if (threadIdx.x == 0) wait_until_read();
        sync_some<128 * Shape::kWarpgroups>(1);
        store(Shape::kRows, reinterpret_cast<Out*>(results));
        make_visible_to_copies();
        sync_some<128 * Shape::kWarpgroups>(1);
        if (threadIdx.x == 0 && tile.count > 0)
          copy_out(out, results, static_cast<unsigned>(tile.count * n * sizeof(Out)));
      } else {
        store(tile.count, out);
      }
    }
  }
  if (!kStores && threadIdx.x == 0) wait_until_written();
#else
  __trap();
#endif
}

// One tile of 64 rows by 64 columns a block, for products so small that the blocks of a persistent
// grid would meet the latencies of one tile after another: here those of all tiles overlap.
template <typename T, int kChunks_>
struct SingleTile {
  static constexpr int kChunks = kChunks_, kRows = 64, kColumns = 64, kThreads = 128;
  static constexpr int kSteps = 4 * kChunks;
  static constexpr int kBlocks = 5;  // on a multiprocessor
  static constexpr int kResultRow = kColumns * static_cast<int>(sizeof(T)) + 16;  // no conflicts
  static constexpr int kSharedBytes =
      kChunkAlign + largest(kChunks * kRows * kChunkBytes, kRows* kResultRow);
};

template <class Shape, typename T>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    single_matmul_kernel(Groups groups, Product<T, T> product) {
#if JAX_GNN_ON_HOPPER
  extern __shared__ unsigned char shared_bytes[];
  unsigned char* const rows = first_chunk(shared_bytes);
  __shared__ float scales[Shape::kRows];
  __shared__ int places[Shape::kRows];
  constexpr int kMine = Shape::kRows / 4;  // of a warp
  wait_for_previous_launch();
  const int offset = *groups.offset;
  const auto& lists = product.lists;
  const Tile tile = find_tile<Shape::kThreads>(groups, Shape::kRows, blockIdx.x);
  const int k = product.k, n = product.n, first_column = blockIdx.y * Shape::kColumns;
  // There is a block for each 64 rows of the result, and more. Two of its warps ask here for which
  // of them there is a row, and look at the end.
  const int64_t result_row = int64_t{blockIdx.x} * Shape::kRows + threadIdx.x;
  const bool asks =
      lists.inverse != nullptr && threadIdx.x < Shape::kRows && result_row < groups.num_rows;
  const int source = load_or(asks, lists.inverse + result_row, 0);
  const Weight weight = weight_of(groups, tile.group, offset);
  const bool multiplies = weight.exists && tile.count > 0;
  if (tile.count > 0) {
    const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * kMine;
    RowIds<kMine> ids = {-1};
    if (first_row + lane % kMine < tile.count) {
      ids[0] = tile.row + first_row + lane % kMine;
      if (lists.lhs_rows != nullptr) ids[0] = lists.lhs_rows[ids[0]];
    }
    if (threadIdx.x < Shape::kRows) {
      const int row = static_cast<int>(threadIdx.x), at = tile.row + row;
      const bool valid = row < tile.count;
      if (lists.scale != nullptr)
        start_copy<4>(shared_address(&scales[row]), lists.scale + at, valid);
      if (lists.out_rows != nullptr)
        start_copy<4>(shared_address(&places[row]), lists.out_rows + at, valid);
      else
        places[row] = at;
    }
    const int column = first_column + threadIdx.x / 32 * 16 + lane / 4 * 2;
    const auto place_of = [&](int row) { return listed(places, row, groups.num_rows); };
    float sum[Shape::kRows / 2], bias[2] = {0, 0};
    if (multiplies) {
      unsigned a[Shape::kSteps][4];
      load_weights_of<Shape>(product, weight.index, column, a, [&] {
        start_rows<kMine, Shape::kRows, Shape::kChunks>(product.lhs, lists.num_lhs, k, 0, ids,
                                                        first_row, shared_address(rows));
      });
      if (product.bias != nullptr)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          if (column + j < n) bias[j] = widen(product.bias[int64_t{weight.index} * n + column + j]);
      wait_for_copies();
      make_visible_to_copies();  // and to matrix instructions
      __syncthreads();
      multiply_tile<Shape, T>(rows, a, sum);
      if (lists.scale != nullptr) scale_rows(scales, sum);
    } else {
      wait_for_copies();
#pragma unroll
      for (float& x : sum) x = 0;
    }
    __syncthreads();  // rows have been read, places are there
    if (product.residual != nullptr && column < n)
      add_to_sums(
          tile.count, column + 1 < n, n % 2 == 0,
          [&](int row) -> const T* {
            const int64_t place = place_of(row);
            return place < 0 ? nullptr : product.residual + place * n + column;
          },
          sum);
    if (product.bias != nullptr || product.activation != Activation::kNone)
      activate(product.activation, bias, sum);
    const int columns = least(Shape::kColumns, n - first_column);
    const bool together = n % 2 == 0;
    if (n * sizeof(T) % 16 == 0 && product.out_aligned) {
      if (column < n)
        store_sums(sum, Shape::kRows, column + 1 < n, together, [&](int row) {
          return reinterpret_cast<T*>(rows + row * Shape::kResultRow) + column - first_column;
        });
      __syncthreads();
      const int units = columns * static_cast<int>(sizeof(T)) / 16;
      const int unit = static_cast<int>(threadIdx.x) % units, step = Shape::kThreads / units;
      if (static_cast<int>(threadIdx.x) < step * units)
#pragma unroll 8
        for (int row = static_cast<int>(threadIdx.x) / units; row < tile.count; row += step)
          if (const int64_t place = place_of(row); place >= 0)
            reinterpret_cast<uint4*>(product.out + place * n + first_column)[unit] =
                reinterpret_cast<const uint4*>(rows + row * Shape::kResultRow)[unit];
    } else if (column < n) {
      store_sums(sum, tile.count, column + 1 < n, together, [&](int row) {
        const int64_t place = place_of(row);
        return place < 0 ? nullptr : product.out + place * n + column;
      });
    }
  }
  const bool clears = asks && !is_id(source, static_cast<unsigned>(groups.num_rows));
  clear_rows<false>(product, result_row - threadIdx.x % 32, __ballot_sync(kWholeWarp, clears),
                    first_column, Shape::kColumns);
#else
  __trap();
#endif
}

#endif
// --- Everywhere ----------------------------------------------------------------------------------

template <class Tiles, typename T, typename Out>
__global__ void __launch_bounds__(kTileThreads)
    plain_matmul_kernel(Groups groups, Product<T, Out> product) {
  using Acc = typename Tiles::Acc;
  using Walk = TileWalk<kTileThreads, 0, true>;
  constexpr int kRows = Tiles::kRows, kDepth = Tiles::kDepth;
  __shared__ typename Tiles::Shared shared;
  __shared__ typename Walk::Index index;
  __shared__ Tile shared_tile;
  wait_for_previous_launch();
  const int offset = *groups.offset;
  index.build(groups, kRows);
  const int k = product.k, n = product.n;
  const int first_column = blockIdx.y * kTileColumns;
  Walk walk(groups, kRows, index);  // of the first warp
  if (threadIdx.x < 32) walk.enter_part(false);
  for (;;) {
    if (threadIdx.x < 32) {
      const Tile tile = walk.has_next() ? walk.next() : Tile{0, 0, -1, false, false};
      if (threadIdx.x == 0) shared_tile = tile;
    }
    __syncthreads();
    if (shared_tile.count < 0) break;
    const Tile tile = shared_tile;
    const Weight weight = weight_of(groups, tile.group, offset);
    Tiles tiles;
    tiles.clear();
    const T* weights = product.rhs + int64_t{weight.index} * k * n;
    for (int depth = 0; depth < (weight.exists ? k : 0); depth += kDepth) {
      for (int j = threadIdx.x; j < kRows * kDepth; j += kTileThreads) {
        const int row = j / kDepth, d = j % kDepth;
        int64_t from = -1;
        if (row < tile.count && depth + d < k) from = product.source_of(int64_t{tile.row} + row);
        shared.set_left(row, d, from >= 0 ? product.lhs[from * k + depth + d] : T{});
      }
      for (int j = threadIdx.x; j < kTileColumns * kDepth; j += kTileThreads) {
        const int column = product.transposed ? j / kDepth : j % kTileColumns;
        const int d = product.transposed ? j % kDepth : j / kTileColumns;
        const bool valid = first_column + column < n && depth + d < k;
        const int64_t from = product.transposed ? int64_t{first_column + column} * k + depth + d
                                                : int64_t{depth + d} * n + first_column + column;
        shared.set_right(column, d, valid ? weights[from] : T{});
      }
      __syncthreads();
      tiles.add(shared);
      __syncthreads();
    }
    tiles.for_each([&](int row, int column, Acc sum) {
      column += first_column;
      if (row >= tile.count || column >= n) return;
      const int64_t at = int64_t{tile.row} + row, to = product.target_of(at, groups.num_rows);
      if (to < 0) return;
      if (weight.exists) {
        if (product.lists.scale != nullptr) sum *= product.lists.scale[at];
        if (product.bias != nullptr) sum += widen(product.bias[int64_t{weight.index} * n + column]);
      }
      if (product.residual != nullptr) sum += widen(product.residual[to * n + column]);
      narrow(activated<true>(product.activation, sum), product.out[to * n + column]);
    });
    __syncthreads();  // shared_tile has been read
  }
  if (product.lists.inverse == nullptr) return;
  const int64_t end = split(groups.num_rows, blockIdx.x + 1, gridDim.x);
  for (int64_t row = split(groups.num_rows, blockIdx.x, gridDim.x) + threadIdx.x / 32 * 32;
       row < end; row += kTileThreads) {
    const int64_t mine = row + threadIdx.x % 32;
    const bool clears = mine < end && product.source_at(mine, groups.num_rows) < 0;
    clear_rows<true>(product, row, __ballot_sync(kWholeWarp, clears), first_column, kTileColumns);
  }
}

}  // namespace
}  // namespace jax_gnn::cuda
