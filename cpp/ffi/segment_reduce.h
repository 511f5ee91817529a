// Handlers of segment_reduce, its derivatives and relatives, written once. A
// Backend says on what they run: its Context (thread pool or stream), its half types, and functions
// of the same names that take a context and a schedule and return an ffi::Error.
#pragma once

#include <string_view>

#include "segments.h"

namespace jax_gnn {

struct ReduceAttributes {
  int64_t reduce;  // enum Reduce
  bool weighted, has_own, has_out_scale, has_residual, has_bias, relu, has_result_scale, has_halo,
      has_end;
  bool gather, ordered;
  std::string_view kernel;
  int64_t lanes, threads;
};

struct ReduceVjpAttributes {
  bool gather, ordered, one_pass;
  std::string_view kernel;
  int64_t lanes, threads;
};

struct SelectAttributes {
  bool has_value, weighted, factored, gather, ordered, weight_on_row;
  int64_t heads;
  std::string_view kernel;
  int64_t lanes, threads;
};

struct ScatterAttributes {
  int64_t reduce;  // enum Reduce
};

struct OrderAttributes {
  int64_t num_segments;
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    jax_gnn::ReduceAttributes, StructMember<int64_t>("reduce"), StructMember<bool>("weighted"),
    StructMember<bool>("has_own"), StructMember<bool>("has_out_scale"),
    StructMember<bool>("has_residual"), StructMember<bool>("has_bias"), StructMember<bool>("relu"),
    StructMember<bool>("has_result_scale"), StructMember<bool>("has_halo"),
    StructMember<bool>("has_end"), StructMember<bool>("gather"), StructMember<bool>("ordered"),
    StructMember<std::string_view>("kernel"), StructMember<int64_t>("lanes"),
    StructMember<int64_t>("threads"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::ReduceVjpAttributes, StructMember<bool>("gather"),
                                      StructMember<bool>("ordered"), StructMember<bool>("one_pass"),
                                      StructMember<std::string_view>("kernel"),
                                      StructMember<int64_t>("lanes"),
                                      StructMember<int64_t>("threads"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    jax_gnn::SelectAttributes, StructMember<bool>("has_value"), StructMember<bool>("weighted"),
    StructMember<bool>("factored"), StructMember<bool>("gather"), StructMember<bool>("ordered"),
    StructMember<bool>("weight_on_row"), StructMember<int64_t>("heads"),
    StructMember<std::string_view>("kernel"), StructMember<int64_t>("lanes"),
    StructMember<int64_t>("threads"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::ScatterAttributes, StructMember<int64_t>("reduce"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::OrderAttributes,
                                      StructMember<int64_t>("num_segments"));

namespace jax_gnn {

// out[r, :] = reduce over the entries e of row r of weight[order[e], head] * in[cols[e], :], then
// the epilogue. With a halo, `in` is followed by its rows.
template <typename Backend>
ffi::Error segment_reduce(typename Backend::Context context, Buffer in, Buffer weight,
                          Buffer self_scale, Buffer out_scale, Buffer residual, Buffer bias,
                          Buffer result_scale, Buffer halo, Buffer rows, Buffer cols, Buffer order,
                          Buffer end, ResultBuffer out, ResultBuffer workspace,
                          ReduceAttributes attributes) {
  const ffi::DataType dtype = in.element_type(), acc_dtype = accumulator_type(dtype);
  if (in.dimensions().size() == 0 || out->dimensions().size() == 0) {
    return invalid("the input and the result must have rows");
  }
  const int64_t width = row_width(in), num_rows = out->dimensions()[0];
  if (row_width(*out) != width || out->element_type() != dtype) {
    return invalid("the result has the wrong shape or dtype");
  }
  int64_t num_weights = 0, heads = 1;
  if (attributes.weighted) {
    if (weight.dimensions().size() != 2) return invalid("the weights must have two dimensions");
    num_weights = weight.dimensions()[0];
    heads = weight.dimensions()[1];
    if (weight.element_type() != acc_dtype || !divides(heads, width)) {
      return invalid("the weights have the wrong shape or dtype");
    }
  }
  const int64_t num_local = in.dimensions()[0];
  int64_t num_halo = 0;
  if (attributes.has_halo) {
    if (halo.dimensions().size() == 0) return invalid("the halo must have rows");
    num_halo = halo.dimensions()[0];
    if (row_width(halo) != width || halo.element_type() != dtype) {
      return invalid("the halo has the wrong shape or dtype");
    }
  }
  const CsrOperands operands = {rows,
                                cols,
                                order,
                                attributes.gather,
                                attributes.ordered,
                                num_rows,
                                num_local + num_halo,
                                num_weights};
  JAX_GNN_RETURN_IF_ERROR(operands.check(attributes.weighted));
  if (attributes.reduce < 0 || attributes.reduce >= static_cast<int64_t>(Reduce::kCount)) {
    return invalid("there is no such reduction");
  }
  const Reduce reduce = static_cast<Reduce>(attributes.reduce);
  const bool real = dtype != ffi::S32 && dtype != ffi::S64;
  if (!real && (attributes.weighted || !takes_integers(reduce))) {
    return invalid("integers have no weights, nor this reduction");
  }
  if (attributes.weighted && !takes_weights(reduce)) {
    return invalid("this reduction has no weights");
  }
  const EpilogueOperands epilogue = {in,
                                     self_scale,
                                     out_scale,
                                     residual,
                                     bias,
                                     result_scale,
                                     attributes.has_own,
                                     attributes.has_out_scale,
                                     attributes.has_residual,
                                     attributes.has_bias,
                                     attributes.relu,
                                     attributes.has_result_scale};
  if (epilogue.any() && !(real && (reduce == Reduce::kSum || reduce == Reduce::kMean))) {
    return invalid("only sums and means of floating-point numbers have an epilogue");
  }
  if (attributes.has_own && num_local < num_rows) {
    return invalid("own features need a row for each of the result");
  }
  JAX_GNN_RETURN_IF_ERROR(epilogue.check(num_rows, width, dtype));
  if (!is_schedule(attributes.kernel, attributes.lanes, attributes.threads)) {
    return invalid("the schedule is wrong");
  }
  JAX_GNN_RETURN_IF_ERROR(check_workspace(*workspace, width, acc_dtype));
  if (attributes.has_end && !is_index(end, 1, ffi::S32)) return invalid("end must be one int32");
  Csr<int32_t> csr = operands.csr();
  csr.end = data_if<int32_t>(attributes.has_end, end);
  return dispatch_number<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    return Backend::segment_reduce(
        context, attributes, make_workspace(*workspace), csr, reduce,
        Input<T>{data<const T>(in), data_if<T>(attributes.has_halo, halo), num_local},
        data_if<Acc>(attributes.weighted, weight), Features{width, heads},
        epilogue.template epilogue<T, Acc>(), data<T>(*out));
  });
}

// out[r, :] = sum over the entries e of row r of weight[order[e], head] * in[cols[e], :], and
// dots[order[e], head] = < left[r, head, :], in[cols[e], head, :] >: the derivatives of a weighted
// sum, given the transposed Csr.
template <typename Backend>
ffi::Error segment_reduce_vjp(typename Backend::Context context, Buffer in, Buffer weight,
                              Buffer left, Buffer rows, Buffer cols, Buffer order, ResultBuffer out,
                              ResultBuffer dots, ResultBuffer workspace,
                              ReduceVjpAttributes attributes) {
  const ffi::DataType dtype = in.element_type(), acc_dtype = accumulator_type(dtype);
  if (in.dimensions().size() != 2 || left.dimensions().size() != 2 ||
      weight.dimensions().size() != 2) {
    return invalid("the inputs and the weights must have two dimensions");
  }
  const int64_t num_cols = in.dimensions()[0], width = in.dimensions()[1];
  const int64_t num_rows = left.dimensions()[0];
  const int64_t num_weights = weight.dimensions()[0], heads = weight.dimensions()[1];
  if (!is_matrix(left, num_rows, width, dtype) || !is_matrix(*out, num_rows, width, dtype)) {
    return invalid("the inputs or the result have the wrong shape or dtype");
  }
  if (!is_matrix(weight, num_weights, heads, acc_dtype) ||
      !is_matrix(*dots, num_weights, heads, acc_dtype) || !divides(heads, width)) {
    return invalid("the weights or the dots have the wrong shape or dtype");
  }
  const CsrOperands operands = {
      rows, cols, order, attributes.gather, attributes.ordered, num_rows, num_cols, num_weights};
  JAX_GNN_RETURN_IF_ERROR(operands.check(/*weighted=*/true));
  if (!is_schedule(attributes.kernel, attributes.lanes, attributes.threads)) {
    return invalid("the schedule is wrong");
  }
  JAX_GNN_RETURN_IF_ERROR(check_workspace(*workspace, width, acc_dtype));
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    return Backend::segment_reduce_vjp(context, attributes, make_workspace(*workspace),
                                       operands.csr(), data<const T>(in), data<const Acc>(weight),
                                       data<const T>(left), Features{width, heads}, data<T>(*out),
                                       data<Acc>(*dots));
  });
}

// out[r, :] = sum of factor * value[col] over the entries of row r that match: see Select.
template <typename Backend>
ffi::Error segment_select(typename Backend::Context context, Buffer row_key, Buffer col_key,
                          Buffer value, Buffer weight, Buffer factor, Buffer rows, Buffer cols,
                          Buffer order, ResultBuffer out, ResultBuffer workspace,
                          SelectAttributes attributes) {
  const ffi::DataType dtype = row_key.element_type(), acc_dtype = accumulator_type(dtype);
  if (row_key.dimensions().size() != 2 || col_key.dimensions().size() != 2) {
    return invalid("the keys must have two dimensions");
  }
  const int64_t num_rows = row_key.dimensions()[0], width = row_key.dimensions()[1];
  const int64_t num_cols = col_key.dimensions()[0], heads = attributes.heads;
  if (!is_matrix(col_key, num_cols, width, dtype) || !is_matrix(*out, num_rows, width, dtype) ||
      (attributes.has_value && !is_matrix(value, num_cols, width, dtype))) {
    return invalid("the keys, the values or the result have the wrong shape or dtype");
  }
  const bool weighted = attributes.weighted || attributes.factored;
  const Buffer& either = attributes.weighted ? weight : factor;
  if (weighted && either.dimensions().size() != 2) {
    return invalid("the weights must have two dimensions");
  }
  const int64_t num_weights = weighted ? either.dimensions()[0] : 0;
  if (!divides(heads, width) ||
      (attributes.weighted && !is_matrix(weight, num_weights, heads, acc_dtype)) ||
      (attributes.factored && !is_matrix(factor, num_weights, heads, acc_dtype))) {
    return invalid("the weights have the wrong shape or dtype");
  }
  const CsrOperands operands = {
      rows, cols, order, attributes.gather, attributes.ordered, num_rows, num_cols, num_weights};
  JAX_GNN_RETURN_IF_ERROR(operands.check(weighted));
  if (!is_schedule(attributes.kernel, attributes.lanes, attributes.threads)) {
    return invalid("the schedule is wrong");
  }
  JAX_GNN_RETURN_IF_ERROR(check_workspace(*workspace, width, acc_dtype));
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const Select<T, Acc> select = {data<const T>(row_key),
                                   data<const T>(col_key),
                                   data_if<T>(attributes.has_value, value),
                                   data_if<Acc>(attributes.weighted, weight),
                                   data_if<Acc>(attributes.factored, factor),
                                   attributes.weight_on_row};
    return Backend::segment_select(context, attributes, make_workspace(*workspace), operands.csr(),
                                   select, Features{width, heads}, data<T>(*out));
  });
}

// out[r, :] = reduce over the entries e with ids[e] == r of in[e, :], for ids in any order.
template <typename Backend>
ffi::Error segment_scatter(typename Backend::Context context, Buffer in, Buffer ids,
                           ResultBuffer out, ScatterAttributes attributes) {
  const ffi::DataType dtype = in.element_type();
  if (in.dimensions().size() == 0 || out->dimensions().size() == 0) {
    return invalid("the input and the result must have rows");
  }
  const int64_t count = in.dimensions()[0], width = row_width(in);
  if (row_width(*out) != width || out->element_type() != dtype || !is_index(ids, count, ffi::S32)) {
    return invalid("the ids or the result have the wrong shape or dtype");
  }
  const Reduce reduce = static_cast<Reduce>(attributes.reduce);
  if (reduce != Reduce::kSum && reduce != Reduce::kMax && reduce != Reduce::kMin &&
      reduce != Reduce::kProd) {
    return invalid("there is no such reduction by ids in any order");
  }
  return dispatch_number<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    if constexpr (std::is_same_v<T, typename decltype(acc)::type>) {
      return Backend::segment_scatter(context, data<const int32_t>(ids), count,
                                      out->dimensions()[0], reduce, data<const T>(in), width,
                                      data<T>(*out));
    } else {
      return invalid("half types are not reduced by ids in any order");
    }
  });
}

// out[i, :] = in[ids[i], :], zeros where an id is out of range.
template <typename Backend>
ffi::Error gather_rows(typename Backend::Context context, Buffer in, Buffer ids, ResultBuffer out) {
  if (in.dimensions().size() == 0 || out->dimensions().size() == 0) {
    return invalid("the input and the result must have rows");
  }
  const int64_t count = out->dimensions()[0], width = row_width(in);
  if (row_width(*out) != width || out->element_type() != in.element_type() ||
      !is_index(ids, count, ffi::S32)) {
    return invalid("the ids or the result have the wrong shape or dtype");
  }
  const int64_t row_bytes = width * static_cast<int64_t>(ffi::ByteWidth(in.element_type()));
  return Backend::gather_rows(context, data<const int32_t>(ids), count, in.dimensions()[0],
                              data<const char>(in), row_bytes, data<char>(*out));
}

// order = the positions of `ids`, sorted by id, ids out of range last; the sort is stable.
template <typename Backend>
ffi::Error segment_order(typename Backend::Context context, Buffer ids, ResultBuffer order,
                         ResultBuffer scratch, OrderAttributes attributes) {
  const int64_t count = static_cast<int64_t>(ids.element_count());
  const ffi::DataType dtype = ids.element_type();
  if (!is_index(ids, count, dtype) || !is_index(*order, count, dtype) ||
      !is_index(*scratch, Backend::segment_order_scratch(count), dtype)) {
    return invalid("ids, order or scratch have the wrong shape or dtype");
  }
  if (attributes.num_segments < 0) return invalid("num_segments must not be negative");
  return dispatch_index(dtype, [&](auto index) {
    using Index = typename decltype(index)::type;
    return Backend::segment_order(context, data<const Index>(ids), count, attributes.num_segments,
                                  data<Index>(*order), data<Index>(*scratch));
  });
}

}  // namespace jax_gnn
