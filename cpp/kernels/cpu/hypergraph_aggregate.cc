#include "hypergraph_aggregate.h"

#include <algorithm>

#include "half.h"
#include "parallel.h"
#include "vector.h"

namespace jax_gnn::cpu {
namespace {

// Incidences between the prefetch of a row and its use. Rows lie one after another in `indices`,
// so the stream of ids is known past the end of the row at hand.
constexpr int64_t kPrefetchDistance = 16;

template <typename Index>
JAX_GNN_INLINE int64_t clamped(Index value, int64_t low, int64_t high) {
  return std::clamp(static_cast<int64_t>(value), low, high);
}

// acc[0:kTile] = sum over the row's ids of scale[id] * in[id, column : column + kTile].
template <int kTile, typename In, typename Scale, typename Index>
JAX_GNN_INLINE void reduce_row(const RowPointers<Index>& incidences, int64_t begin, int64_t end,
                               const In* in, const Scale* scale, int64_t width, int64_t column,
                               Scale* acc) {
  for (int k = 0; k < kTile; ++k) acc[k] = Scale(0);
  for (int64_t j = begin; j < end; ++j) {
    if (j + kPrefetchDistance < incidences.nnz) {
      const Index ahead = incidences.indices[j + kPrefetchDistance];
      if (in_range(ahead, incidences.cols))
        prefetch(in + ahead * width + column, kTile * static_cast<int64_t>(sizeof(In)));
    }
    const Index id = incidences.indices[j];
    if (!in_range(id, incidences.cols)) continue;
    const In* row = in + id * width + column;
    const Scale s = scale ? scale[id] : Scale(1);
    for (int k = 0; k < kTile; ++k) acc[k] += s * static_cast<Scale>(widen(row[k]));
  }
}

template <typename In, typename Out, typename Scale, typename Index>
struct GatherReduceTile {
  const RowPointers<Index>& incidences;
  int64_t row, begin, end;
  const In* in;
  const Scale* col_scale;
  Scale row_scale;
  const Epilogue<Out, Scale>& epilogue;
  Out* out;
  int64_t width;

  template <int kTile>
  JAX_GNN_INLINE void operator()(std::integral_constant<int, kTile>, int64_t column) const {
    Scale acc[kTile];
    reduce_row<kTile>(incidences, begin, end, in, col_scale, width, column, acc);
    for (int k = 0; k < kTile; ++k) acc[k] *= row_scale;
    const auto add = [&](const Out* rows, Scale s) JAX_GNN_LAMBDA {
      const Out* from = rows + row * width + column;
      for (int k = 0; k < kTile; ++k) acc[k] += s * static_cast<Scale>(widen(from[k]));
    };
    if (epilogue.self)
      add(epilogue.self, epilogue.self_scale.data[row * epilogue.self_scale.stride]);
    if (epilogue.residual) add(epilogue.residual, Scale(1));
    if (epilogue.bias)
      for (int k = 0; k < kTile; ++k) acc[k] += epilogue.bias[column + k];
    if (epilogue.relu)
      for (int k = 0; k < kTile; ++k) acc[k] = acc[k] < 0 ? Scale(0) : acc[k];  // NaN stays
    Out* target = out + row * width + column;
    for (int k = 0; k < kTile; ++k) target[k] = narrow<Out>(acc[k]);
  }
};

template <typename In, typename Out, typename Scale, typename Index>
JAX_GNN_INLINE void gather_reduce_rows(const RowPointers<Index>& incidences, int64_t first,
                                       int64_t end, const In* in, const Scale* col_scale,
                                       const Scale* row_scale, const Epilogue<Out, Scale>& epilogue,
                                       Out* out, int64_t width) {
  for (int64_t row = first; row < end; ++row) {
    const int64_t from = clamped(incidences.indptr[row], 0, incidences.nnz);
    const int64_t to = clamped(incidences.indptr[row + 1], from, incidences.nnz);
    // A row without entries is zero even where its scale is not finite, as 1 / degree is.
    const Scale scale = from == to ? Scale(0) : row_scale ? row_scale[row] : Scale(1);
    cover_once<64>(0, width,
                   GatherReduceTile<In, Out, Scale, Index>{incidences, row, from, to, in, col_scale,
                                                           scale, epilogue, out, width});
  }
}

// Splits the rows into tasks of about equal work, ids plus rows, and calls rows(first, last) for
// each. A row belongs to one task and is summed in one order, so results do not depend on the
// threads.
template <typename Index, typename Rows>
void for_balanced_rows(const ParallelFor& parallel_for, const RowPointers<Index>& incidences,
                       int64_t width, const Rows& rows) {
  const int64_t items = incidences.nnz + incidences.rows;
  const int64_t tasks = task_count(
      static_cast<double>(items) * static_cast<double>(std::max<int64_t>(width, 4)), 1024);
  // First row at or after an even share of the work. Row 0 and the last row are pinned, so that
  // every row is covered whatever indptr holds.
  const auto bound = [&](int64_t task) -> int64_t {
    if (task == 0) return 0;
    if (task == tasks) return incidences.rows;
    const int64_t target = even_share(items, task, tasks);
    return partition_point(0, incidences.rows, [&](int64_t row) {
      return clamped(incidences.indptr[row], 0, incidences.nnz) + row < target;
    });
  };
  parallel_for(tasks, [&](int64_t task) { rows(bound(task), bound(task + 1)); });
}

// out[r, :] = row_scale[r] * sum_{j in row r} col_scale[c_j] * in[c_j, :]; a null scale means ones.
// Each row goes on with an epilogue.
template <typename In, typename Out, typename Scale, typename Index>
void gather_reduce(const ParallelFor& parallel_for, const RowPointers<Index>& incidences,
                   const In* in, const Scale* col_scale, const Scale* row_scale,
                   const Epilogue<Out, Scale>& epilogue, Out* out, int64_t width) {
  for_balanced_rows(parallel_for, incidences, width, [&](int64_t first, int64_t end) {
    with_vectors([&](auto) JAX_GNN_LAMBDA {
      gather_reduce_rows(incidences, first, end, in, col_scale, row_scale, epilogue, out, width);
    });
  });
}

}  // namespace

template <typename Index, typename T, typename Acc>
void hypergraph_aggregate(const ParallelFor& parallel_for,
                          const Aggregation<RowPointers<Index>, T, Acc>& all) {
  gather_reduce(parallel_for, all.to_hyperedges, all.x, all.scales.node_in, all.scales.hyperedge,
                Epilogue<Acc, Acc>{}, all.sums, all.width);
  const Acc *sums = all.sums, *ones = nullptr;
  gather_reduce(parallel_for, all.to_nodes, sums, ones, all.scales.node_out, all.epilogue, all.y,
                all.width);
}

#define JAX_GNN_INSTANTIATE(T, Acc)                        \
  JAX_GNN_INSTANCE(hypergraph_aggregate<int32_t, T, Acc>); \
  JAX_GNN_INSTANCE(hypergraph_aggregate<int64_t, T, Acc>);
JAX_GNN_FOR_FLOATS(JAX_GNN_INSTANTIATE)

}  // namespace jax_gnn::cpu
