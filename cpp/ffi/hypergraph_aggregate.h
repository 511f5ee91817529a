// Handler of the hypergraph primitive, written once. A Backend says on what it runs: its Context
// (thread pool or stream), its half types, and hypergraph_aggregate, which takes a context, the
// attributes and the workspaces, and returns an ffi::Error.
#pragma once

#include "../kernels/csr.h"
#include "segments.h"

namespace jax_gnn {

struct AggregateAttributes {
  bool by_rows;
  int64_t lanes, threads, next_lanes, next_threads;  // of the two sums
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::AggregateAttributes, StructMember<bool>("by_rows"),
                                      StructMember<int64_t>("lanes"),
                                      StructMember<int64_t>("threads"),
                                      StructMember<int64_t>("next_lanes"),
                                      StructMember<int64_t>("next_threads"));

namespace jax_gnn {

// The entries of a sparse matrix of ones, sorted by row.
struct SortedBuffers {
  const ffi::AnyBuffer &indptr, &rows, &cols;

  bool valid(ffi::DataType dtype) const {
    return indptr.element_type() == dtype && rows.element_type() == dtype &&
           cols.element_type() == dtype && indptr.dimensions().size() == 1 &&
           indptr.element_count() >= 1 && cols.dimensions().size() == 1 &&
           has_shape(rows, {cols.dimensions()[0]});
  }

  int64_t num_rows() const { return static_cast<int64_t>(indptr.element_count()) - 1; }

  template <typename Index>
  Incidences<Index> incidences(int64_t num_cols) const {
    return {data<const Index>(indptr),
            data<const Index>(rows),
            data<const Index>(cols),
            static_cast<int64_t>(cols.element_count()),
            num_rows(),
            num_cols};
  }
};

// y = diag(node_scale_out) B diag(hyperedge_scale) A diag(node_scale_in) x, where A is sorted by
// hyperedge and B by node. The first workspace holds the hyperedge features A … in the accumulator
// type: the one intermediate of the computation. The others are those of the two sums.
template <typename Backend>
ffi::Error hypergraph_aggregate(
    typename Backend::Context context, ffi::AnyBuffer x, ffi::AnyBuffer node_scale_in,
    ffi::AnyBuffer hyperedge_scale, ffi::AnyBuffer node_scale_out, ffi::AnyBuffer hyperedge_indptr,
    ffi::AnyBuffer hyperedge_ids, ffi::AnyBuffer hyperedge_nodes, ffi::AnyBuffer node_indptr,
    ffi::AnyBuffer node_ids, ffi::AnyBuffer node_hyperedges, ffi::Result<ffi::AnyBuffer> y,
    ffi::Result<ffi::AnyBuffer> sums, ffi::Result<ffi::AnyBuffer> workspace,
    ffi::Result<ffi::AnyBuffer> next_workspace, AggregateAttributes attributes) {
  const SortedBuffers to_hyperedges{hyperedge_indptr, hyperedge_ids, hyperedge_nodes};
  const SortedBuffers to_nodes{node_indptr, node_ids, node_hyperedges};
  const ffi::DataType dtype = x.element_type(), acc_dtype = accumulator_type(dtype);
  const ffi::DataType index_dtype = hyperedge_indptr.element_type();
  if (x.dimensions().size() != 2) return invalid("x must have two dimensions");
  if (!to_hyperedges.valid(index_dtype) || !to_nodes.valid(index_dtype)) {
    return invalid("the index arrays must be vectors of one integer type, ids in pairs");
  }
  const int64_t num_nodes = x.dimensions()[0], width = x.dimensions()[1];
  const int64_t num_hyperedges = to_hyperedges.num_rows();
  if (!has_shape(node_indptr, {num_nodes + 1})) return invalid("x and node_indptr disagree");
  if (!is_scale(node_scale_in, num_nodes, acc_dtype) ||
      !is_scale(node_scale_out, num_nodes, acc_dtype) ||
      !is_scale(hyperedge_scale, num_hyperedges, acc_dtype)) {
    return invalid("a scale has the wrong shape or dtype");
  }
  if (!is_matrix(*y, num_nodes, width, dtype) ||
      !is_matrix(*sums, num_hyperedges, width, acc_dtype)) {
    return invalid("a result has the wrong shape or dtype");
  }
  if (!is_schedule(attributes.lanes, attributes.threads) ||
      !is_schedule(attributes.next_lanes, attributes.next_threads)) {
    return invalid("the schedule is wrong");
  }
  for (auto* each : {&workspace, &next_workspace}) {
    const ffi::Error error = check_workspace(**each, width, acc_dtype);
    if (error.failure()) return error;
  }
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    return dispatch_index(index_dtype, [&](auto index) {
      using T = typename decltype(t)::type;
      using Acc = typename decltype(acc)::type;
      using Index = typename decltype(index)::type;
      return Backend::hypergraph_aggregate(
          context, attributes, make_workspace(*workspace), make_workspace(*next_workspace),
          to_hyperedges.incidences<Index>(num_nodes), to_nodes.incidences<Index>(num_hyperedges),
          data<const T>(x),
          HypergraphScales<Acc>{scale_data<Acc>(node_scale_in, num_nodes),
                                scale_data<Acc>(hyperedge_scale, num_hyperedges),
                                scale_data<Acc>(node_scale_out, num_nodes)},
          width, data<T>(*y), data<Acc>(*sums));
    });
  });
}

// The argument list once more, as the FFI wants it; `binding` already holds the context.
template <typename Binding>
auto bind_hypergraph_aggregate(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()  // x
      .template Arg<ffi::AnyBuffer>()  // node_scale_in
      .template Arg<ffi::AnyBuffer>()  // hyperedge_scale
      .template Arg<ffi::AnyBuffer>()  // node_scale_out
      .template Arg<ffi::AnyBuffer>()  // hyperedge_indptr
      .template Arg<ffi::AnyBuffer>()  // hyperedge_ids
      .template Arg<ffi::AnyBuffer>()  // hyperedge_nodes
      .template Arg<ffi::AnyBuffer>()  // node_indptr
      .template Arg<ffi::AnyBuffer>()  // node_ids
      .template Arg<ffi::AnyBuffer>()  // node_hyperedges
      .template Ret<ffi::AnyBuffer>()  // y
      .template Ret<ffi::AnyBuffer>()  // sums
      .template Ret<ffi::AnyBuffer>()  // workspace
      .template Ret<ffi::AnyBuffer>()  // next_workspace
      .template Attrs<AggregateAttributes>();
}

}  // namespace jax_gnn
