// Handler of the hypergraph primitive, written once. A Backend says on what it runs: its Context
// (thread pool or stream), its half types, and hypergraph_aggregate, which takes a context, the
// attributes and the workspaces, and returns an ffi::Error; and in which form it takes the
// incidences of a sum, two arrays in either: is_stage checks them, and stage<Index> puts them
// together.
#pragma once

#include "../kernels/hypergraph.h"
#include "segments.h"

namespace jax_gnn {

struct AggregateAttributes {
  int64_t threads;  // of a block
  bool has_own, has_residual, has_bias, relu;
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::AggregateAttributes,
                                      StructMember<int64_t>("threads"),
                                      StructMember<bool>("has_own"),
                                      StructMember<bool>("has_residual"),
                                      StructMember<bool>("has_bias"), StructMember<bool>("relu"));

namespace jax_gnn {

// y = relu(diag(node_scale_out) B diag(hyperedge_scale) A diag(node_scale_in) x + diag(self_scale)
// x
// + residual + bias), where A is sorted by hyperedge and B by node; any buffer stands for what is
// flagged as not there.
// The first workspace holds the hyperedge features A … in the accumulator type: the one
// intermediate of the computation. The others are those of the two sums.
template <typename Backend>
ffi::Error hypergraph_aggregate(typename Backend::Context context, Buffer x, Buffer node_scale_in,
                                Buffer hyperedge_scale, Buffer node_scale_out, Buffer self_scale,
                                Buffer residual, Buffer bias, Buffer to_hyperedges,
                                Buffer to_hyperedges_too, Buffer to_nodes, Buffer to_nodes_too,
                                ResultBuffer y, ResultBuffer sums, ResultBuffer workspace,
                                ResultBuffer next_workspace, AggregateAttributes attributes) {
  const ffi::DataType dtype = x.element_type(), acc_dtype = accumulator_type(dtype);
  const ffi::DataType index_dtype = to_hyperedges.element_type();
  if (x.dimensions().size() != 2) return invalid("x must have two dimensions");
  const int64_t num_nodes = x.dimensions()[0], width = x.dimensions()[1];
  const int64_t num_hyperedges = sums->dimensions().size() == 2 ? sums->dimensions()[0] : -1;
  if (!is_matrix(*y, num_nodes, width, dtype) ||
      !is_matrix(*sums, num_hyperedges, width, acc_dtype)) {
    return invalid("a result has the wrong shape or dtype");
  }
  for (const auto& buffer : {to_hyperedges_too, to_nodes, to_nodes_too})
    if (buffer.element_type() != index_dtype)
      return invalid("the index arrays must be of one integer type");
  if (!Backend::is_stage(to_hyperedges, to_hyperedges_too, num_hyperedges) ||
      !Backend::is_stage(to_nodes, to_nodes_too, num_nodes)) {
    return invalid("the index arrays have the wrong shapes");
  }
  if (!is_scale(node_scale_in, num_nodes, acc_dtype) ||
      !is_scale(node_scale_out, num_nodes, acc_dtype) ||
      !is_scale(hyperedge_scale, num_hyperedges, acc_dtype)) {
    return invalid("a scale has the wrong shape or dtype");
  }
  const EpilogueOperands epilogue_operands = {x,
                                              self_scale,
                                              self_scale,
                                              residual,
                                              bias,
                                              self_scale,
                                              attributes.has_own,
                                              false,
                                              attributes.has_residual,
                                              attributes.has_bias,
                                              attributes.relu,
                                              false};
  JAX_GNN_RETURN_IF_ERROR(epilogue_operands.check(num_nodes, width, dtype));
  if (!is_schedule(1, attributes.threads)) return invalid("the schedule is wrong");
  for (auto* scratch : {&workspace, &next_workspace}) {
    JAX_GNN_RETURN_IF_ERROR(check_workspace(**scratch, width, acc_dtype));
  }
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    return dispatch_index(index_dtype, [&](auto index) {
      using T = typename decltype(t)::type;
      using Acc = typename decltype(acc)::type;
      using Index = typename decltype(index)::type;
      using Incidences =
          decltype(Backend::template stage<Index>(to_nodes, to_nodes_too, num_nodes, 0));
      const Aggregation<Incidences, T, Acc> aggregation = {
          Backend::template stage<Index>(to_hyperedges, to_hyperedges_too, num_hyperedges,
                                         num_nodes),
          Backend::template stage<Index>(to_nodes, to_nodes_too, num_nodes, num_hyperedges),
          data<const T>(x),
          HypergraphScales<Acc>{scale_data<Acc>(node_scale_in, num_nodes),
                                scale_data<Acc>(hyperedge_scale, num_hyperedges),
                                scale_data<Acc>(node_scale_out, num_nodes)},
          epilogue_operands.template epilogue<T, Acc>(),
          width,
          data<T>(*y),
          data<Acc>(*sums)};
      return Backend::hypergraph_aggregate(context, attributes, make_workspace(*workspace),
                                           make_workspace(*next_workspace), aggregation);
    });
  });
}

}  // namespace jax_gnn
