// The two sums of a hypergraph aggregation, of nodes over hyperedges and of hyperedges over nodes:
// two launches in one call, of which the second begins while the first ends. The sums of the
// hyperedges stay in L2 between them where they fit.
//
// Small hypergraphs go by rows (row_sums.cuh), where the second launch has found its rows when the
// first ends. All others go by incidences: each sum deals them out evenly, whatever the lengths of
// the rows (segment_reduce.cuh; the edge-split partition of HyperGef, section 4.1), and what is
// open where a part ends is added up in shared memory (its section 4.3) before anything is written.

#include "hypergraph_aggregate.h"
#include "row_sums.cuh"
#include "segment_reduce.cuh"

namespace jax_gnn::cuda {
namespace {

constexpr Index kNoRow = -1;

// The features of row cols[e] for entry e, times the scales of its column and of its row. Of teams
// with as many lanes as entries, each lane loads the scales of one entry for all.
template <typename In, typename Out, typename Acc_, int kVec_>
struct ScaledMessage {
  using T = Out;
  using Acc = Acc_;
  static constexpr int kVec = kVec_, kUnroll = 8, kMinBlocks = 2;
  static constexpr bool kGathers = true, kDots = false;
  const In* in;
  const Index *rows, *cols;
  const Acc *row_scale, *col_scale;
  unsigned row_bytes, num_rows, num_cols;
  int lanes;

  // What can be read beside the ids.
  __host__ __device__ const Acc* weights() const { return nullptr; }

  struct Loaded {
    Word<In, kVec> words[kUnroll];
    Acc factors[kUnroll];
    static constexpr unsigned valid = ~0u;  // zeros do no harm
  };
  // Called by the whole warp.
  __device__ __forceinline__ void load(const Ids<kUnroll, Acc>& ids, const Sizes& sizes, bool, bool,
                                       const Column& column, Loaded& loaded) const {
    const In* from = in + column.first;
    bool all_valid = ids.full;
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) all_valid &= static_cast<unsigned>(ids.col[j]) < sizes.cols;
    if (__all_sync(kWholeWarp, all_valid)) {
#pragma unroll
      for (int j = 0; j < kUnroll; ++j)
        loaded.words[j] =
            __ldg(reinterpret_cast<const Word<In, kVec>*>(row_at(from, ids.col[j], row_bytes)));
    } else {
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        loaded.words[j] = {};
        load_if(static_cast<unsigned>(ids.col[j]) < sizes.cols,
                reinterpret_cast<const Word<In, kVec>*>(row_at(from, ids.col[j], row_bytes)),
                loaded.words[j]);
      }
    }
    const auto factor_of = [&](Index row, Index col) {
      return load_or(col_scale != nullptr && static_cast<unsigned>(col) < num_cols, col_scale + col,
                     Acc(1)) *
             load_or(row_scale != nullptr && static_cast<unsigned>(row) < num_rows, row_scale + row,
                     Acc(1));
    };
    if (lanes < kUnroll) {
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) loaded.factors[j] = factor_of(ids.row[j], ids.col[j]);
      return;
    }
    const int place = threadIdx.x % kUnroll;
    const int64_t entry = ids.first + place * ids.stride;
    const Acc mine = factor_of(load_or(place < ids.count, rows + entry, kNoRow),
                               load_or(place < ids.count, cols + entry, kNoRow));
#pragma unroll
    for (int j = 0; j < kUnroll; ++j)
      loaded.factors[j] = __shfl_sync(kWholeWarp, mine, (threadIdx.x % 32 & ~(lanes - 1)) + j);
  }
  __device__ __forceinline__ void value(const Loaded& loaded, int j, Acc (&x)[kVec]) const {
    unpack<kVec, In>(loaded.words[j], x);
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] *= loaded.factors[j];
  }
};

template <typename In, typename Out, typename Acc>
cudaError_t reduce(cudaStream_t stream, const Schedule& schedule,
                   const Incidences<Index>& incidences, const In* in, const Acc* col_scale,
                   const Acc* row_scale, int64_t width, Out* out, void* workspace) {
  const Segments<Index> segments = {incidences.rows,  incidences.cols,     nullptr,
                                    incidences.count, incidences.num_rows, incidences.num_cols,
                                    incidences.count};
  const Features features = {width, 1};
  const auto with_vec = [&](auto vec) {
    constexpr int kVec = decltype(vec)::value;
    const ScaledMessage<In, Out, Acc, kVec> message = {in,
                                                       incidences.rows,
                                                       incidences.cols,
                                                       row_scale,
                                                       col_scale,
                                                       row_bytes_of<In>(features),
                                                       static_cast<unsigned>(incidences.num_rows),
                                                       static_cast<unsigned>(incidences.num_cols),
                                                       1 << lane_bits_of<kVec>(schedule, width)};
    return launch_reduce<SumOp<Acc, kVec>>(stream, schedule, segments, message, features, out,
                                           workspace);
  };
  constexpr int kWide = 16 / sizeof(In);
  if (width % kWide == 0 && aligned(in, 16) && aligned(out, store_alignment<Out, kWide>))
    return with_vec(std::integral_constant<int, kWide>{});
  return with_vec(std::integral_constant<int, 1>{});
}

}  // namespace

template <typename T, typename Acc>
cudaError_t hypergraph_aggregate(cudaStream_t stream, const HypergraphSchedule& schedule,
                                 const Incidences<Index>& to_hyperedges,
                                 const Incidences<Index>& to_nodes, const T* x,
                                 const HypergraphScales<Acc>& scales, int64_t width, T* y,
                                 Acc* sums, void* workspace, void* next_workspace) {
  if (to_nodes.num_rows <= 0 || width <= 0) return cudaSuccess;
  if (!addressable<Acc>({width, 1})) return cudaErrorInvalidValue;
  const Acc* ones = nullptr;
  cudaError_t error = cudaSuccess;
  if (schedule.by_rows) {
    error = rows::gather_reduce(stream, rows::Start::kWaits, to_hyperedges.csr(), x, scales.node_in,
                                scales.hyperedge, sums, width);
    if (error != cudaSuccess) return error;
    // Without hyperedges there was no launch ahead.
    const auto start = to_hyperedges.num_rows > 0 ? rows::Start::kReadsAhead : rows::Start::kWaits;
    return rows::gather_reduce(stream, start, to_nodes.csr(), static_cast<const Acc*>(sums), ones,
                               scales.node_out, y, width);
  }
  if (to_hyperedges.num_rows > 0)
    error = reduce(stream, schedule.to_hyperedges, to_hyperedges, x, scales.node_in, ones, width,
                   sums, workspace);
  if (error != cudaSuccess) return error;
  return reduce(stream, schedule.to_nodes, to_nodes, static_cast<const Acc*>(sums),
                scales.hyperedge, scales.node_out, width, y, next_workspace);
}

#define JAX_GNN_INSTANTIATE(T, Acc)                                                                \
  template cudaError_t hypergraph_aggregate(                                                       \
      cudaStream_t, const HypergraphSchedule&, const Incidences<Index>&, const Incidences<Index>&, \
      const T*, const HypergraphScales<Acc>&, int64_t, T*, Acc*, void*, void*);

JAX_GNN_INSTANTIATE(float, float)
JAX_GNN_INSTANTIATE(double, double)
JAX_GNN_INSTANTIATE(__half, float)
JAX_GNN_INSTANTIATE(__nv_bfloat16, float)

}  // namespace jax_gnn::cuda
