// Sums over typed edges, each through its relation's weights, in one launch.
//
// Destinations are cut into tiles of 64. A block takes a share of the items (relational.h): it
// gathers an item's rows and sums them by destination into shared memory, multiplies that with the
// relation's weights, and keeps the tile's sum in registers over all items of the tile. Rows of the
// next step, of this item or the next, are on their way while it adds up, waits and multiplies. A
// tile that spans shares is completed by the block in which it ends, which takes what the blocks
// before it leave in the workspace (segment_tails.cuh says why this ends, and how words are told
// from what was there).
//
// Within an item edges are sorted by destination, and dealt in even ranges to teams of lanes, each
// of which holds a row. A team stores each run of equal destinations that it begins, but its first:
// that one waits for the barrier, after which it joins the runs ahead of it in the order of teams.
//
// Products are a policy: PlainProduct takes any GPU, width, alignment and type, HopperProduct
// (relational_tensor.cuh) has the matrix instructions. Needs what relational_aggregate_launch.h
// provides: a block a share, dynamic shared memory, a workspace, a tag that no other launch has.
// Promises the same bits on every run, and to survive any ids.
#pragma once

#include "../relational.h"
#include "activation.cuh"
#include "pack.cuh"
#include "segment_tails.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr int kMostTileWidth = 128;  // of rows of the input, and of the result

// What is computed.
template <typename T, typename Acc>
struct TileSums {
  const T* x;         // (num_cols, k)
  const T* weights;   // (num_types, k, n), or `transposed` (num_types, n, k)
  const Acc* scales;  // (count,), or null
  const T* bias;      // (n,), or null
  void* out;          // (num_rows, n), of T or, if `widens`, of Acc
  int k, n;
  bool transposed, widens;
  Activation activation;
};

// Sums (64, n) by multiply and add: 4 rows, and 4 of every 64 columns to a thread.
template <typename T_, int kVec_>
struct PlainProduct {
  using T = T_;
  using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
  static constexpr int kThreads = 256, kBlocks = 1, kLanes = 32, kVec = kVec_;
  static constexpr int kWords = most(1, kMostTileWidth / (kLanes * kVec));  // of a lane
  static constexpr int kUnroll = 4;                                         // edges in flight
  static constexpr int kWordBytes = kVec * static_cast<int>(sizeof(Acc));   // in the tile
  static constexpr int kSums = 4 * 8;                                       // of a thread
  static constexpr bool kExact = true;
  static constexpr int kStride = kMostTileWidth + 4;
  static constexpr int kTileBytes = kTileRows * kStride * static_cast<int>(sizeof(Acc));
  static constexpr int kAlign = 16;  // of the tile
  static constexpr int kWeightBytes = 0;

  Acc sum[kSums];

  static __device__ __forceinline__ unsigned char* word_at(unsigned char* tile, int row, int word) {
    return tile + (row * kStride + word * kVec) * static_cast<int>(sizeof(Acc));
  }
  static __device__ __forceinline__ void load_word(const unsigned char* at, Acc (&run)[kVec]) {
    memcpy(run, at, sizeof(run));
  }
  static __device__ __forceinline__ void store_word(unsigned char* at, const Acc (&run)[kVec]) {
    memcpy(at, run, sizeof(run));
  }

  __device__ __forceinline__ void ask_for_weights(const TileSums<T, Acc>& sums, int64_t type) {
    weights_ = sums.weights + type * sums.k * sums.n;
  }
  __device__ __forceinline__ void multiply(const TileSums<T, Acc>& sums,
                                           const unsigned char* tile) {
    const Acc* const left = reinterpret_cast<const Acc*>(tile) + first_row() * kStride;
    for (int d = 0; d < sums.k; ++d)
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const int column = column_of(c);
        if (column >= sums.n) continue;
        const Acc weight = widen(weights_[sums.transposed ? int64_t{column} * sums.k + d
                                                          : int64_t{d} * sums.n + column]);
#pragma unroll
        for (int r = 0; r < 4; ++r) sum[r * 8 + c] += left[r * kStride + d] * weight;
      }
  }
  // Hands over row, column and neighbouring sums.
  template <class Function>
  __device__ __forceinline__ void for_each(const Function& function) {
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        Acc one[1] = {sum[r * 8 + c]};
        function(first_row() + r, column_of(c), one);
        sum[r * 8 + c] = one[0];
      }
  }
  // Of what was stored to the multiplying hardware.
  static __device__ __forceinline__ void make_visible() {}
  static __device__ __forceinline__ unsigned char* first_tile(unsigned char* dynamic) {
    return dynamic;
  }

 private:
  const T* weights_;
  static __device__ __forceinline__ int first_row() { return threadIdx.x / 16 * 4; }
  static __device__ __forceinline__ int column_of(int c) {
    return c / 4 * 64 + c % 4 * 16 + threadIdx.x % 16;
  }
};

// Which items a block has, and what it shares of tiles with others. Follows from the plan alone,
// whatever that holds, and alike for all who ask.
struct Shares {
  const Tiles& tiles;

  __device__ __forceinline__ int start(int64_t share) const {
    return max(0, min(__ldg(tiles.starts + share), static_cast<int>(tiles.num_items)));
  }
  __device__ __forceinline__ bool is_tile(int tile) const {
    return static_cast<unsigned>(tile) < static_cast<unsigned>(ceil_div(tiles.num_rows, kTileRows));
  }
  // The tile that the share ahead of this one leaves to it, or -1.
  __device__ __forceinline__ int tile_into(int64_t share) const {
    // Loads are not under conditions: they are on their way together.
    const int64_t within = max(int64_t{0}, min(share, tiles.num_shares));
    const int at = start(within), last = static_cast<int>(tiles.num_items) - 1;
    if (last < 1) return -1;
    const int place = max(1, min(at, last));
    const int tile = __ldg(&tiles.items[place].tile), before = __ldg(&tiles.items[place - 1].tile);
    const bool is_there = share > 0 && share < tiles.num_shares && at == place;
    return is_there && tile == before && is_tile(tile) ? tile : -1;
  }
  __device__ __forceinline__ bool passed(int64_t share) const {
    const int tile = tile_into(share);
    const bool same = tile == tile_into(share + 1);
    return tile >= 0 && same;
  }
  // How many shares the tile that comes into this one reaches back, `most` at most: one, and all it
  // has passed. Called by whole warps.
  __device__ __forceinline__ int reach(int share, int most) const {
    int length = 1;
    for (bool begins = false; !begins && length < most;) {
      const unsigned stops =
          __ballot_sync(kWholeWarp, !passed(share - length - static_cast<int>(threadIdx.x % 32)));
      begins = stops != 0;
      length += begins ? __ffs(stops) - 1 : 32;
    }
    return min(length, most);
  }
};

// The sums of blocks that leave a tile to others, in the workspace.
template <class Product>
struct TileTails {
  using Acc = typename Product::Acc;
  static constexpr int kWords = Product::kSums * static_cast<int>(sizeof(Acc)) / 8;
  static constexpr int kBatch = 8;  // words that are waited for at once
  static_assert(kWords % kBatch == 0);

  unsigned char* base;  // [block][word][thread]
  uint64_t tag;

  __device__ __forceinline__ unsigned char* word(int64_t block, int i) const {
    return base + 16 * ((block * kWords + i) * Product::kThreads + threadIdx.x);
  }
  __device__ __forceinline__ void put(int64_t block, const Acc (&sum)[Product::kSums]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      uint64_t bits;
      memcpy(&bits, sum + i * (8 / sizeof(Acc)), 8);
      write_pair(word(block, i), bits, tag);
    }
  }
  // What a thread keeps for itself lies after all words.
  __device__ __forceinline__ uint4* kept(int64_t block, int i) const {
    constexpr int64_t kBytes = int64_t{16} * kWords * Product::kThreads;
    return reinterpret_cast<uint4*>(base + gridDim.x * kBytes + block * (kBytes / 2)) +
           i * Product::kThreads + threadIdx.x;
  }
  __device__ __forceinline__ void keep(int64_t block, const Acc (&sum)[Product::kSums]) const {
    constexpr int kPer = 16 / sizeof(Acc);
#pragma unroll
    for (int i = 0; i < Product::kSums / kPer; ++i) {
      uint4 bits;
      memcpy(&bits, sum + i * kPer, 16);
      *kept(block, i) = bits;
    }
  }
  __device__ __forceinline__ void restore(int64_t block, Acc (&sum)[Product::kSums]) const {
    constexpr int kPer = 16 / sizeof(Acc);
#pragma unroll
    for (int i = 0; i < Product::kSums / kPer; ++i) {
      const uint4 bits = *kept(block, i);
      memcpy(sum + i * kPer, &bits, 16);
    }
  }
  // Adds what a block has put.
  __device__ __forceinline__ void take(int64_t block, Acc (&sum)[Product::kSums]) const {
#pragma unroll
    for (int first = 0; first < kWords; first += kBatch) {
      uint64_t words[kBatch];
      bool complete;
      do {
        complete = true;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          uint64_t found;
          read_pair(word(block, first + i), words[i], found);
          complete &= found == tag;
        }
      } while (wait_unless(complete));
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        write_pair(word(block, first + i), 0, ~tag);
        Acc part[8 / sizeof(Acc)];
        memcpy(part, &words[i], 8);
#pragma unroll
        for (int j = 0; j < 8 / static_cast<int>(sizeof(Acc)); ++j)
          sum[(first + i) * (8 / sizeof(Acc)) + j] += part[j];
      }
    }
  }
};

// Where a team is in the block's edges, a step at a time: what it reads next.
template <class Product>
struct EdgeCursor {
  const Tiles& tiles;
  const int team, lane, last_item;
  int item, at, end, steps;
  TileItem current, ahead;

  __device__ __forceinline__ EdgeCursor(const Tiles& tiles, int team, int lane, int first, int last)
      : tiles(tiles), team(team), lane(lane), last_item(last), item(first) {
    ahead = load(first);
    enter();
  }
  __device__ __forceinline__ TileItem load(int index) const {
    TileItem found = {-1, -1, 0, 0};
    if (index < last_item) {
      const uint4 word = __ldg(reinterpret_cast<const uint4*>(tiles.items + index));
      memcpy(&found, &word, sizeof(found));
      const int count = static_cast<int>(tiles.count);
      found.begin = max(0, min(found.begin, count));
      found.end = max(found.begin, min(found.end, count));
    }
    return found;
  }
  // The edges of each team.
  static __device__ __forceinline__ int share(const TileItem& item) {
    constexpr unsigned kTeams = Product::kThreads / Product::kLanes;
    return static_cast<int>((static_cast<unsigned>(item.end - item.begin) + kTeams - 1) / kTeams);
  }
  static __device__ __forceinline__ int steps_of(const TileItem& item) {
    return max(1, (share(item) + Product::kUnroll - 1) / Product::kUnroll);
  }
  __device__ __forceinline__ void enter() {
    current = ahead;
    ahead = load(item + 1);
    const int size = share(current);
    const unsigned last = current.end;  // what it is compared with is below 2^32
    at = static_cast<int>(min(current.begin + static_cast<unsigned>(team * size), last));
    end = static_cast<int>(min(static_cast<unsigned>(at) + static_cast<unsigned>(size), last));
    steps = steps_of(current);
  }
  __device__ __forceinline__ void advance() {
    at += Product::kUnroll;
    if (--steps > 0) return;
    ++item;
    enter();
  }
};

template <class Product>
__global__ void __launch_bounds__(Product::kThreads, Product::kBlocks)
    relational_aggregate_kernel(Tiles tiles,
                                TileSums<typename Product::T, typename Product::Acc> sums,
                                TileTails<Product> tails) {
  using T = typename Product::T;
  using Acc = typename Product::Acc;
  constexpr int kThreads = Product::kThreads, kLanes = Product::kLanes, kVec = Product::kVec;
  constexpr int kWords = Product::kWords, kUnroll = Product::kUnroll;
  constexpr int kTeams = kThreads / kLanes, kWordBytes = Product::kWordBytes;
  static_assert(kUnroll <= kLanes);
  __shared__ int head_rows[kTeams], last_rows[kTeams];
  const int lane = threadIdx.x % kLanes, team = threadIdx.x / kLanes;
  // Two tiles, so that one can be filled while the other is multiplied; then the first run of each
  // team: heads[team][word][lane].
  unsigned char* const first_tile = Product::first_tile(dynamic_shared());
  unsigned char* const heads = first_tile + 2 * Product::kTileBytes + Product::kWeightBytes;
  const auto clear_tile = [&](unsigned char* tile) {
    constexpr int kTileWords = Product::kTileBytes / 16;
    uint4* const words = reinterpret_cast<uint4*>(tile);
#pragma unroll
    for (int i = 0; i < (kTileWords + kThreads - 1) / kThreads; ++i) {
      const int at = i * kThreads + threadIdx.x;
      if (kTileWords % kThreads == 0 || at < kTileWords) words[at] = {0, 0, 0, 0};
    }
  };
  wait_for_previous_launch();
  const Shares shares = {tiles};
  const int block = static_cast<int>(blockIdx.x);
  const int first_item = shares.start(block);
  const int last_item = max(first_item, shares.start(block + 1));
  const int tile_in = shares.tile_into(block);
  int tile_out = shares.tile_into(block + 1);
  const bool passed = tile_in >= 0 && tile_in == tile_out;
  const bool relays = passed && block % kRelayEvery == kRelayEvery - 1;
  const bool takes = !passed || relays;  // where a tile comes in
  const int reach =
      tile_in >= 0 && takes ? shares.reach(block, relays ? kRelayEvery - 1 : block) : 1;

  Product product;
#pragma unroll
  for (int i = 0; i < Product::kSums; ++i) product.sum[i] = 0;

  const auto activate = [&](auto activation) {
#pragma unroll
    for (int i = 0; i < Product::kSums; ++i)
      product.sum[i] = activated<Product::kExact>(activation(), product.sum[i]);
  };
  const auto store_as = [&](int tile, auto* out) {
    const int64_t first_row = int64_t{tile} * kTileRows;
    const int rows = static_cast<int>(min(tiles.num_rows - first_row, int64_t{kTileRows}));
    out += first_row * sums.n;
    product.for_each([&](int row, int column, const auto& run) {
      constexpr int kRun = sizeof(run) / sizeof(Acc);
      if (row >= rows || column >= sums.n) return;
      auto* const at = out + row * sums.n + column;
      if (sums.n % kRun == 0) {
        store_scaled(at, run, Acc(1));
      } else {
#pragma unroll
        for (int i = 0; i < kRun; ++i)
          if (column + i < sums.n) narrow(run[i], at[i]);
      }
    });
  };
  const auto store = [&](int tile) {
    if (!shares.is_tile(tile)) return;
    if (sums.bias != nullptr)
      product.for_each([&](int, int column, auto& run) {
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(run) / sizeof(Acc)); ++i)
          run[i] += widen(load_or(column + i < sums.n, sums.bias + column + i, T{}));
      });
    switch (sums.activation) {
      case Activation::kNone:
        break;
      case Activation::kRelu:
        activate([] { return Activation::kRelu; });
        break;
      case Activation::kSilu:
        activate([] { return Activation::kSilu; });
        break;
      case Activation::kGelu:
        activate([] { return Activation::kGelu; });
        break;
      case Activation::kTanh:
        activate([] { return Activation::kTanh; });
        break;
    }
    if constexpr (!std::is_same_v<T, Acc>)
      if (!sums.widens) return store_as(tile, static_cast<T*>(sums.out));
    store_as(tile, static_cast<Acc*>(sums.out));
  };

  const unsigned num_cols = static_cast<unsigned>(tiles.num_cols);
  const unsigned row_bytes = static_cast<unsigned>(sums.k * sizeof(T));
  const auto has_word = [&](int word) { return (word * kLanes + lane) * kVec < sums.k; };
  const T* lane_x = sums.x + (has_word(0) ? lane * kVec : 0);
  hide(lane_x);

  // Of the coming step, of edge `lane` of the team: no row where there is no edge.
  int coming_row, coming_col, coming_order;
  const bool weighted = sums.scales != nullptr;
  EdgeCursor<Product> cursor(tiles, team, lane, first_item, last_item);
  const auto ask_for_ids = [&] {
    const int at = cursor.at + lane;
    const bool valid = lane < kUnroll && at < cursor.end;
    // Without a sign: what a plan holds may be anything.
    const unsigned row = static_cast<unsigned>(load_or(valid, tiles.rows + at, -1));
    coming_row =
        static_cast<int>(row - static_cast<unsigned>(cursor.current.tile) * unsigned{kTileRows});
    coming_col = load_or(valid, tiles.cols + at, -1);
    coming_order = load_or(valid && weighted, tiles.order + at, weighted ? -1 : 0);
    if (!valid) coming_row = -1;
    cursor.advance();
  };

  clear_tile(first_tile);
  ask_for_ids();
  __syncthreads();

  // The tile that comes in is completed last, when the block ahead has had its time: else all would
  // wait in a row.
  bool comes_in = tile_in >= 0;
  bool has_open = tile_in >= 0 || first_item == last_item, is_kept = false;
  int open_tile = tile_in, which = 0;
  TileItem item = cursor.load(first_item);
  for (int index = first_item;; ++index) {
    const bool ends = index >= last_item;
    if (has_open && (ends || item.tile != open_tile)) {
      if (comes_in && !ends) {
        tails.keep(block, product.sum);
        is_kept = true;
      } else {
        if (comes_in && takes) {
          const Chain chain(block, reach);
#pragma unroll 1
          for (int i = 0; i < chain.num_tails; ++i) tails.take(chain.block_of(i), product.sum);
        }
        if (ends && tile_out >= 0)
          tails.put(block, product.sum);
        else
          store(open_tile);
      }
      comes_in = false;
#pragma unroll
      for (int i = 0; i < Product::kSums; ++i) product.sum[i] = 0;
    }
    if (ends) {
      if (!is_kept) break;
      tails.restore(block, product.sum);
      is_kept = false;
      comes_in = true;
      tile_out = -1;
      open_tile = tile_in;
      continue;
    }
    open_tile = item.tile;
    has_open = true;
    unsigned char* const tile = first_tile + which * Product::kTileBytes;

    const bool has_edges = item.begin < item.end;
    const bool multiplies = has_edges && item.type >= 0 && item.type < tiles.num_types;
    if (multiplies) product.ask_for_weights(sums, item.type);
    constexpr int kNowhere = -1;
    int open_row = kNowhere, head_row = kNowhere;
    Acc run[kWords][kVec] = {};
    // Stores the open run, if there is one: a team's first where it waits, in the place of a row.
    const auto close = [&] {
      const bool is_open = open_row >= 0, is_head = head_row < 0;
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        if (!is_open || !has_word(word)) continue;
        const int at = word * kLanes + lane;
        Product::store_word(is_head ? heads + (team * kWords * kLanes + at) * kWordBytes
                                    : Product::word_at(tile, open_row, at),
                            run[word]);
      }
      if (is_head) head_row = open_row;
    };
#pragma unroll 1
    for (int left = max(1, cursor.share(item)); left > 0; left -= kUnroll) {
      // Which of the team's edges may begin a run, and which count.
      const bool is_valid =
          static_cast<unsigned>(coming_col) < num_cols &&
          static_cast<unsigned>(coming_order) < static_cast<unsigned>(tiles.count);
      const int row = static_cast<unsigned>(coming_row) < kTileRows ? coming_row : kNowhere;
      const int before = __shfl_sync(kWholeWarp, row, max(lane - 1, 0), kLanes);
      const int first_lane = threadIdx.x % 32 - lane;
      const bool may_begin = row >= 0 && row != (lane == 0 ? open_row : before);
      const unsigned begins = __ballot_sync(kWholeWarp, may_begin) >> first_lane;
      const unsigned counts = __ballot_sync(kWholeWarp, row >= 0 && is_valid) >> first_lane;
      // The rows of the edges, a byte each: shuffled here, not where a team goes its own way.
      unsigned rows = (static_cast<unsigned>(row) & 0xff) << lane % 4 * 8;
      rows |= __shfl_xor_sync(kWholeWarp, rows, 1);
      rows |= __shfl_xor_sync(kWholeWarp, rows, 2);
      unsigned rows_of[kUnroll / 4];
#pragma unroll
      for (int i = 0; i < kUnroll / 4; ++i)
        rows_of[i] = __shfl_sync(kWholeWarp, rows, 4 * i, kLanes);
      const int col = is_valid ? coming_col : 0;
      Acc scale = 1;
      if (weighted) scale = load_or(is_valid, sums.scales + coming_order, Acc(0));
      // Loads are not under conditions, or the compiler would wait for one before the next: what
      // counts for nothing reads the first row. Teams have as many edges, but the last ones.
      Word<T, kVec> features[kUnroll][kWords];
      const auto load = [&](int first) {
#pragma unroll
        for (int j = first; j < first + kUnroll / 2; ++j) {
          const int from = __shfl_sync(kWholeWarp, col, j, kLanes);
          const T* const at = row_at(lane_x, from, row_bytes);
#pragma unroll
          for (int word = 0; word < kWords; ++word)
            load_always(reinterpret_cast<const Word<T, kVec>*>(
                            has_word(word) ? at + word * kLanes * kVec : at),
                        features[j][word]);
        }
      };
      const auto add = [&](int first) {
#pragma unroll
        for (int j = first; j < first + kUnroll / 2; ++j) {
          const Acc factor = weighted ? __shfl_sync(kWholeWarp, scale, j, kLanes) : Acc(1);
          if (begins >> j & 1) {
            const int next = rows_of[j / 4] >> j % 4 * 8 & 0xff;
            if (next != open_row) {  // else there was padding between
              close();
              open_row = next;
#pragma unroll
              for (int word = 0; word < kWords; ++word)
#pragma unroll
                for (int i = 0; i < kVec; ++i) run[word][i] = 0;
            }
          }
          if (counts >> j & 1)
#pragma unroll
            for (int word = 0; word < kWords; ++word)
              add_word<T, kVec>(run[word], features[j][word], factor);
        }
      };
      const bool is_short = left <= kUnroll / 2;
      if (has_edges) load(0);
      if (!is_short) load(kUnroll / 2);
      ask_for_ids();
      if (has_edges) add(0);
      if (!is_short) add(kUnroll / 2);
    }
    if (multiplies) {
      close();
      if (lane == 0) {
        head_rows[team] = head_row;
        last_rows[team] = open_row;
      }
    }
    const TileItem next_item = cursor.load(index + 1);
    if (multiplies) {
      __syncthreads();
      // The first team of those whose first runs are of one row adds them up.
      const auto continues = [&](int t) { return t > 0 && last_rows[t - 1] == head_rows[t]; };
      const int shared_row = head_rows[team];
      if (shared_row >= 0 && !(continues(team) && head_rows[team - 1] == shared_row)) {
        const bool is_there = continues(team);
#pragma unroll
        for (int word = 0; word < kWords; ++word) {
          if (!has_word(word)) continue;
          const int at = word * kLanes + lane;
          unsigned char* const to = Product::word_at(tile, shared_row, at);
#pragma unroll
          for (int i = 0; i < kVec; ++i) run[word][i] = 0;
          if (is_there) Product::load_word(to, run[word]);
          for (int t = team; t < kTeams && head_rows[t] == shared_row; ++t) {
            Acc head[kVec];
            Product::load_word(heads + (t * kWords * kLanes + at) * kWordBytes, head);
#pragma unroll
            for (int i = 0; i < kVec; ++i) run[word][i] += head[i];
          }
          Product::store_word(to, run[word]);
        }
      }
      clear_tile(first_tile + (which ^ 1) * Product::kTileBytes);
      Product::make_visible();
      __syncthreads();
      product.multiply(sums, tile);
      which ^= 1;
    } else if (has_edges) {
      __syncthreads();  // a relation that there is not: what was stored is dropped
      clear_tile(tile);
      __syncthreads();
    }
    item = next_item;
  }
}

}  // namespace
}  // namespace jax_gnn::cuda
