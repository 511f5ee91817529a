// Handlers of the hypergraph primitives, written once. A Backend says on what they run: its Context
// (thread pool or stream), its half types, and functions that return an ffi::Error: gather_reduce,
// gather_dot, and gather_reduce_next, which reads what the gather_reduce just before it writes.
#pragma once

#include "../kernels/csr.h"
#include "checks.h"

namespace jax_gnn {

template <typename Index>
Csr<Index> make_csr(const ffi::AnyBuffer& indptr, const ffi::AnyBuffer& indices, int64_t cols) {
  return {data<const Index>(indptr), data<const Index>(indices),
          static_cast<int64_t>(indptr.element_count()) - 1, cols,
          static_cast<int64_t>(indices.element_count())};
}

inline bool is_csr(const ffi::AnyBuffer& indptr, const ffi::AnyBuffer& indices,
                   ffi::DataType dtype) {
  return indptr.element_type() == dtype && indices.element_type() == dtype &&
         indptr.dimensions().size() == 1 && indptr.element_count() >= 1 &&
         indices.dimensions().size() == 1;
}

// y = diag(node_scale_out) H diag(hyperedge_scale) H^T diag(node_scale_in) x. The workspace holds
// the hyperedge features H^T … in the accumulator type: the one intermediate of the computation.
template <typename Backend>
ffi::Error hypergraph_aggregate(typename Backend::Context context, ffi::AnyBuffer x,
                                ffi::AnyBuffer node_scale_in, ffi::AnyBuffer hyperedge_scale,
                                ffi::AnyBuffer node_scale_out, ffi::AnyBuffer hyperedge_indptr,
                                ffi::AnyBuffer hyperedge_nodes, ffi::AnyBuffer node_indptr,
                                ffi::AnyBuffer node_hyperedges, ffi::Result<ffi::AnyBuffer> y,
                                ffi::Result<ffi::AnyBuffer> workspace) {
  const ffi::DataType dtype = x.element_type(), acc_dtype = accumulator_type(dtype);
  const ffi::DataType index_dtype = hyperedge_indptr.element_type();
  if (x.dimensions().size() != 2) return invalid("x must have two dimensions");
  if (!is_csr(hyperedge_indptr, hyperedge_nodes, index_dtype) ||
      !is_csr(node_indptr, node_hyperedges, index_dtype)) {
    return invalid("the four index arrays must be vectors of one integer type");
  }
  const int64_t num_nodes = x.dimensions()[0], width = x.dimensions()[1];
  const int64_t num_hyperedges = static_cast<int64_t>(hyperedge_indptr.element_count()) - 1;
  if (!has_shape(node_indptr, {num_nodes + 1})) return invalid("x and node_indptr disagree");
  if (!is_scale(node_scale_in, num_nodes, acc_dtype) ||
      !is_scale(node_scale_out, num_nodes, acc_dtype) ||
      !is_scale(hyperedge_scale, num_hyperedges, acc_dtype)) {
    return invalid("a scale has the wrong shape or dtype");
  }
  if (y->element_type() != dtype || !has_shape(*y, {num_nodes, width}) ||
      workspace->element_type() != acc_dtype || !has_shape(*workspace, {num_hyperedges, width})) {
    return invalid("a result has the wrong shape or dtype");
  }
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    return dispatch_index(index_dtype, [&](auto index) {
      using T = typename decltype(t)::type;
      using Acc = typename decltype(acc)::type;
      using Index = typename decltype(index)::type;
      const auto to_hyperedges = make_csr<Index>(hyperedge_indptr, hyperedge_nodes, num_nodes);
      const auto to_nodes = make_csr<Index>(node_indptr, node_hyperedges, num_hyperedges);
      ffi::Error error = Backend::gather_reduce(
          context, to_hyperedges, data<const T>(x), scale_data<Acc>(node_scale_in, num_nodes),
          scale_data<Acc>(hyperedge_scale, num_hyperedges), data<Acc>(*workspace), width);
      if (error.failure()) return error;
      return Backend::gather_reduce_next(
          context, to_nodes, data<const Acc>(*workspace), static_cast<const Acc*>(nullptr),
          scale_data<Acc>(node_scale_out, num_nodes), data<T>(*y), width);
    });
  });
}

// out[e] = < sum_{v in e} x_scale[v] x[v], sum_{v in e} y_scale[v] y[v] >. The rows of the nodes
// are not read: they are operands because the derivatives of the primitive need them.
template <typename Backend>
ffi::Error hyperedge_dot(typename Backend::Context context, ffi::AnyBuffer x,
                         ffi::AnyBuffer x_scale, ffi::AnyBuffer y, ffi::AnyBuffer y_scale,
                         ffi::AnyBuffer hyperedge_indptr, ffi::AnyBuffer hyperedge_nodes,
                         ffi::AnyBuffer /*node_indptr*/, ffi::AnyBuffer /*node_hyperedges*/,
                         ffi::Result<ffi::AnyBuffer> out) {
  const ffi::DataType dtype = x.element_type(), acc_dtype = accumulator_type(dtype);
  const ffi::DataType index_dtype = hyperedge_indptr.element_type();
  if (x.dimensions().size() != 2) return invalid("x must have two dimensions");
  const int64_t num_nodes = x.dimensions()[0], width = x.dimensions()[1];
  if (y.element_type() != dtype || !has_shape(y, {num_nodes, width})) {
    return invalid("x and y must have the same shape and dtype");
  }
  if (!is_csr(hyperedge_indptr, hyperedge_nodes, index_dtype)) {
    return invalid("the index arrays must be vectors of one integer type");
  }
  if (!is_scale(x_scale, num_nodes, acc_dtype) || !is_scale(y_scale, num_nodes, acc_dtype)) {
    return invalid("a scale has the wrong shape or dtype");
  }
  const int64_t num_hyperedges = static_cast<int64_t>(hyperedge_indptr.element_count()) - 1;
  if (out->element_type() != acc_dtype || !has_shape(*out, {num_hyperedges})) {
    return invalid("the result has the wrong shape or dtype");
  }
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    return dispatch_index(index_dtype, [&](auto index) {
      using T = typename decltype(t)::type;
      using Acc = typename decltype(acc)::type;
      using Index = typename decltype(index)::type;
      const auto to_hyperedges = make_csr<Index>(hyperedge_indptr, hyperedge_nodes, num_nodes);
      return Backend::gather_dot(context, to_hyperedges, data<const T>(x),
                                 scale_data<Acc>(x_scale, num_nodes), data<const T>(y),
                                 scale_data<Acc>(y_scale, num_nodes), data<Acc>(*out), width);
    });
  });
}

// The argument lists once more, as the FFI wants them; `binding` already holds the context.
template <typename Binding>
auto bind_hypergraph_aggregate(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()   // x
      .template Arg<ffi::AnyBuffer>()   // node_scale_in
      .template Arg<ffi::AnyBuffer>()   // hyperedge_scale
      .template Arg<ffi::AnyBuffer>()   // node_scale_out
      .template Arg<ffi::AnyBuffer>()   // hyperedge_indptr
      .template Arg<ffi::AnyBuffer>()   // hyperedge_nodes
      .template Arg<ffi::AnyBuffer>()   // node_indptr
      .template Arg<ffi::AnyBuffer>()   // node_hyperedges
      .template Ret<ffi::AnyBuffer>()   // y
      .template Ret<ffi::AnyBuffer>();  // workspace
}

template <typename Binding>
auto bind_hyperedge_dot(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()   // x
      .template Arg<ffi::AnyBuffer>()   // x_scale
      .template Arg<ffi::AnyBuffer>()   // y
      .template Arg<ffi::AnyBuffer>()   // y_scale
      .template Arg<ffi::AnyBuffer>()   // hyperedge_indptr
      .template Arg<ffi::AnyBuffer>()   // hyperedge_nodes
      .template Arg<ffi::AnyBuffer>()   // node_indptr
      .template Arg<ffi::AnyBuffer>()   // node_hyperedges
      .template Ret<ffi::AnyBuffer>();  // out
}

}  // namespace jax_gnn
