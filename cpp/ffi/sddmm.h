// Handlers of sddmm and sddmm_select, written once. A Backend has a Context, half types, and the
// function sddmm, which returns an ffi::Error.
#pragma once

#include "segments.h"

namespace jax_gnn {

struct SddmmAttributes {
  bool gather;
  int64_t heads;
};

struct SddmmSelectAttributes {
  bool weighted, gather, ordered, weight_on_row;
  int64_t heads;
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::SddmmAttributes, StructMember<bool>("gather"),
                                      StructMember<int64_t>("heads"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::SddmmSelectAttributes,
                                      StructMember<bool>("weighted"), StructMember<bool>("gather"),
                                      StructMember<bool>("ordered"),
                                      StructMember<bool>("weight_on_row"),
                                      StructMember<int64_t>("heads"));

namespace jax_gnn {

// Common operands: a (num_rows, width), b (num_cols, width), out (count, heads).
inline ffi::Error check_sddmm(const Buffer& a, const Buffer& b, const Buffer& rows, int64_t heads,
                              Buffer& out) {
  if (a.dimensions().size() != 2 || b.dimensions().size() != 2 ||
      b.element_type() != a.element_type() || b.dimensions()[1] != a.dimensions()[1]) {
    return invalid("a and b must be matrices of one width and dtype");
  }
  if (!divides(heads, a.dimensions()[1])) return invalid("heads must divide the width");
  if (!is_matrix(out, static_cast<int64_t>(rows.element_count()), heads,
                 accumulator_type(a.element_type()))) {
    return invalid("the result has the wrong shape or dtype");
  }
  return ffi::Error::Success();
}

// out[e, h] = < a[rows[e], h, :], b[cols[e], h, :] >
template <typename Backend>
ffi::Error sddmm(typename Backend::Context context, Buffer a, Buffer b, Buffer rows, Buffer cols,
                 ResultBuffer out, SddmmAttributes attributes) {
  JAX_GNN_RETURN_IF_ERROR(check_sddmm(a, b, rows, attributes.heads, *out));
  const CsrOperands operands = {
      rows, cols, rows, attributes.gather, false, a.dimensions()[0], b.dimensions()[0], 0};
  JAX_GNN_RETURN_IF_ERROR(operands.check(/*weighted=*/false));
  return dispatch_float<Backend>(a.element_type(), [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    return Backend::sddmm(context, operands.csr(), data<const T>(a), data<const T>(b),
                          static_cast<const Select<T, Acc>*>(nullptr),
                          Features{a.dimensions()[1], attributes.heads}, data<Acc>(*out));
  });
}

// Dots over the features that match: see Select.
template <typename Backend>
ffi::Error sddmm_select(typename Backend::Context context, Buffer a, Buffer b, Buffer row_key,
                        Buffer col_key, Buffer weight, Buffer rows, Buffer cols, Buffer order,
                        ResultBuffer out, SddmmSelectAttributes attributes) {
  JAX_GNN_RETURN_IF_ERROR(check_sddmm(a, b, rows, attributes.heads, *out));
  const ffi::DataType dtype = a.element_type();
  const int64_t num_rows = a.dimensions()[0], num_cols = b.dimensions()[0];
  const int64_t width = a.dimensions()[1];
  if (!is_matrix(row_key, num_rows, width, dtype) || !is_matrix(col_key, num_cols, width, dtype)) {
    return invalid("the keys have the wrong shape or dtype");
  }
  int64_t num_weights = 0;
  if (attributes.weighted) {
    if (weight.dimensions().size() != 2) return invalid("the weights must have two dimensions");
    num_weights = weight.dimensions()[0];
    if (!is_matrix(weight, num_weights, attributes.heads, accumulator_type(dtype))) {
      return invalid("the weights have the wrong shape or dtype");
    }
  }
  const CsrOperands operands = {
      rows, cols, order, attributes.gather, attributes.ordered, num_rows, num_cols, num_weights};
  JAX_GNN_RETURN_IF_ERROR(operands.check(attributes.weighted));
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const Select<T, Acc> select = {data<const T>(row_key),
                                   data<const T>(col_key),
                                   nullptr,
                                   data_if<Acc>(attributes.weighted, weight),
                                   nullptr,
                                   attributes.weight_on_row};
    return Backend::sddmm(context, operands.csr(), data<const T>(a), data<const T>(b), &select,
                          Features{width, attributes.heads}, data<Acc>(*out));
  });
}

}  // namespace jax_gnn
