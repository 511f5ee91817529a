// Handlers of sampled neighbourhoods: see ../kernels/sample_block.h.
#pragma once

#include "../kernels/sample_block.h"
#include "checks.h"
#include "segments.h"

namespace jax_gnn {

struct UniformAttributes {
  int64_t stream;
  bool replace;
};

struct BlockAttributes {
  int64_t num_nodes;
  bool disjoint, tree, ascending;
};

struct DistinctAttributes {
  int64_t num_nodes;
  bool disjoint;
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::UniformAttributes, StructMember<int64_t>("stream"),
                                      StructMember<bool>("replace"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::BlockAttributes, StructMember<int64_t>("num_nodes"),
                                      StructMember<bool>("disjoint"), StructMember<bool>("tree"),
                                      StructMember<bool>("ascending"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::DistinctAttributes,
                                      StructMember<int64_t>("num_nodes"),
                                      StructMember<bool>("disjoint"));

namespace jax_gnn {

// Draws edges of each row, and counts the valid ones.
template <typename Backend>
ffi::Error sample_uniform(typename Backend::Context context, Buffer degrees, Buffer key,
                          ResultBuffer offsets, ResultBuffer counts, UniformAttributes attributes) {
  const int64_t num_rows = static_cast<int64_t>(degrees.element_count());
  const ffi::DataType dtype = degrees.element_type();
  const auto dims = offsets->dimensions();
  const int64_t fanout = dims.size() == 2 ? dims[1] : -1;
  if (!is_index(degrees, num_rows, dtype) || !is_index(*counts, num_rows, dtype) ||
      !is_matrix(*offsets, num_rows, fanout, dtype) || !is_index(key, 2, ffi::U32)) {
    return invalid("degrees, offsets, counts or key have the wrong shape or dtype");
  }
  const Random random{data<const uint32_t>(key), static_cast<uint32_t>(attributes.stream)};
  return dispatch_index(dtype, [&](auto index) {
    using Index = typename decltype(index)::type;
    return Backend::sample_uniform(context, random, data<const Index>(degrees), num_rows, fanout,
                                   attributes.replace, data<Index>(*offsets), data<Index>(*counts));
  });
}

// Draws edges in proportion to integer weights, given as running sums.
template <typename Backend>
ffi::Error sample_weighted(typename Backend::Context context, Buffer sums, Buffer starts,
                           Buffer degrees, Buffer key, ResultBuffer offsets, ResultBuffer counts,
                           UniformAttributes attributes) {
  const int64_t num_sums = static_cast<int64_t>(sums.element_count());
  const int64_t num_rows = static_cast<int64_t>(degrees.element_count());
  const ffi::DataType dtype = degrees.element_type();
  const auto dims = offsets->dimensions();
  const int64_t fanout = dims.size() == 2 ? dims[1] : -1;
  if (num_sums < 1 || !is_index(sums, num_sums, ffi::U32) || !is_index(starts, num_rows, dtype) ||
      !is_index(degrees, num_rows, dtype) || !is_index(*counts, num_rows, dtype) ||
      !is_matrix(*offsets, num_rows, fanout, dtype) || !is_index(key, 2, ffi::U32)) {
    return invalid("sums, starts, degrees, offsets, counts or key have the wrong shape or dtype");
  }
  const Random random{data<const uint32_t>(key), static_cast<uint32_t>(attributes.stream)};
  return dispatch_index(dtype, [&](auto index) {
    using Index = typename decltype(index)::type;
    const typename Backend::template Weighted<Index> rows{
        data<const uint32_t>(sums), data<const Index>(starts), data<const Index>(degrees), num_rows,
        num_sums - 1};
    return Backend::sample_weighted(context, random, rows, fanout, attributes.replace,
                                    data<Index>(*offsets), data<Index>(*counts));
  });
}

// The arrays of a bipartite graph, and whether it has left out nodes.
struct BlockBuffers {
  ResultBuffer indptr, rows, cols, t_indptr, t_rows, t_cols, t_order, edge_ids, sources;
  ffi::Result<ffi::Buffer<ffi::PRED>> overflow;

  int64_t num_edges() { return static_cast<int64_t>(rows->element_count()); }
  int64_t num_src() { return static_cast<int64_t>(sources->element_count()); }

  bool good(int64_t num_dst, ffi::DataType dtype) {
    for (auto ids : {rows, cols, t_rows, t_cols, t_order, edge_ids})
      if (!is_index(*ids, num_edges(), dtype)) return false;
    return is_index(*indptr, num_dst + 1, dtype) && is_index(*t_indptr, num_src() + 1, dtype) &&
           is_index(*sources, num_src(), dtype) && overflow->element_count() == 1 &&
           num_src() >= num_dst;
  }

  template <typename Index>
  Block<Index> block() {
    return {data<Index>(*indptr),
            data<Index>(*rows),
            data<Index>(*cols),
            data<Index>(*t_indptr),
            data<Index>(*t_rows),
            data<Index>(*t_cols),
            data<Index>(*t_order),
            data<Index>(*edge_ids),
            data<Index>(*sources),
            num_edges(),
            num_src()};
  }
};

// A bipartite graph of edges that were drawn into nodes.
template <typename Backend>
ffi::Error sample_block(typename Backend::Context context, Buffer nodes, Buffer starts,
                        Buffer offsets, Buffer counts, Buffer cols, Buffer seeds,
                        ResultBuffer indptr, ResultBuffer rows, ResultBuffer block_cols,
                        ResultBuffer t_indptr, ResultBuffer t_rows, ResultBuffer t_cols,
                        ResultBuffer t_order, ResultBuffer edge_ids, ResultBuffer sources,
                        ffi::Result<ffi::Buffer<ffi::PRED>> overflow, BlockAttributes attributes) {
  const ffi::DataType dtype = nodes.element_type();
  const auto size_of = [](const Buffer& buffer) {
    return static_cast<int64_t>(buffer.element_count());
  };
  BlockBuffers buffers{indptr, rows,    block_cols, t_indptr, t_rows,
                       t_cols, t_order, edge_ids,   sources,  overflow};
  const int64_t num_dst = size_of(nodes), num_whole = size_of(cols);
  const auto dims = offsets.dimensions();
  const int64_t fanout = dims.size() == 2 ? dims[1] : -1;
  if (!is_index(nodes, num_dst, dtype) || !is_index(starts, num_dst, dtype) ||
      !is_index(counts, num_dst, dtype) || !is_matrix(offsets, num_dst, fanout, dtype) ||
      !is_index(cols, num_whole, dtype) || !is_index(seeds, num_dst, dtype)) {
    return invalid("nodes, starts, offsets, counts, cols or seeds have the wrong shape or dtype");
  }
  if (!buffers.good(num_dst, dtype) || attributes.num_nodes < 0 ||
      (attributes.tree && buffers.num_src() != num_dst + buffers.num_edges())) {
    return invalid("the block has the wrong shapes or dtypes");
  }
  return dispatch_index(dtype, [&](auto index) {
    using Index = typename decltype(index)::type;
    const Drawn<Index> drawn{data<const Index>(nodes),
                             data<const Index>(starts),
                             data<const Index>(offsets),
                             data<const Index>(counts),
                             data<const Index>(cols),
                             attributes.disjoint ? data<const Index>(seeds) : nullptr,
                             num_dst,
                             fanout,
                             num_whole,
                             attributes.num_nodes,
                             attributes.ascending};
    return Backend::sample_block(context, attributes.tree, drawn, buffers.block<Index>(),
                                 overflow->typed_data());
  });
}

// The same of edges that are lined up, and ids that are sorted, where each node is one source.
template <typename Backend>
ffi::Error sample_distinct(typename Backend::Context context, Buffer nodes, Buffer drawn_indptr,
                           Buffer drawn_rows, Buffer places, Buffer keys, Buffer at, Buffer seeds,
                           ResultBuffer indptr, ResultBuffer rows, ResultBuffer cols,
                           ResultBuffer t_indptr, ResultBuffer t_rows, ResultBuffer t_cols,
                           ResultBuffer t_order, ResultBuffer edge_ids, ResultBuffer sources,
                           ffi::Result<ffi::Buffer<ffi::PRED>> overflow, ResultBuffer scratch,
                           DistinctAttributes attributes) {
  const ffi::DataType dtype = nodes.element_type();
  const auto size_of = [](const Buffer& buffer) {
    return static_cast<int64_t>(buffer.element_count());
  };
  BlockBuffers buffers{indptr, rows,    cols,     t_indptr, t_rows,
                       t_cols, t_order, edge_ids, sources,  overflow};
  const int64_t num_dst = size_of(nodes), num_edges = buffers.num_edges();
  const int64_t count = num_dst + num_edges;
  const ffi::DataType unsigned_dtype = dtype == ffi::S64 ? ffi::U64 : ffi::U32;
  if (!is_index(nodes, num_dst, dtype) || !is_index(drawn_indptr, num_dst + 1, dtype) ||
      !is_index(drawn_rows, num_edges, dtype) || !is_index(places, num_edges, dtype) ||
      !is_index(keys, count, unsigned_dtype) || !is_index(at, count, dtype) ||
      !is_index(seeds, num_dst, dtype) || !buffers.good(num_dst, dtype) ||
      !is_index(*scratch, Backend::distinct_scratch(num_dst, num_edges, buffers.num_src()),
                dtype) ||
      attributes.num_nodes < 0) {
    return invalid("the edges or the block have the wrong shapes or dtypes");
  }
  return dispatch_index(dtype, [&](auto index) {
    using Index = typename decltype(index)::type;
    const Sorted<Index> sorted{data<const Index>(nodes),
                               data<const Index>(drawn_indptr),
                               data<const Index>(drawn_rows),
                               data<const Index>(places),
                               data<const std::make_unsigned_t<Index>>(keys),
                               data<const Index>(at),
                               attributes.disjoint ? data<const Index>(seeds) : nullptr,
                               num_dst,
                               attributes.num_nodes};
    return Backend::sample_distinct(context, sorted, buffers.block<Index>(), data<Index>(*scratch),
                                    overflow->typed_data());
  });
}

}  // namespace jax_gnn
