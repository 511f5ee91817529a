// Handlers of segment_matmul and segment_outer, written once. A Backend has a Context, half types,
// and functions of the same names that take a schedule and a workspace and return an ffi::Error.
#pragma once

#include <string_view>

#include "../kernels/segment_matmul.h"
#include "segments.h"

namespace jax_gnn {

struct MatmulAttributes {
  bool transposed, exact, has_bias, has_residual, scaled, gathers, scatters;
  int64_t activation;  // enum Activation
  std::string_view kernel;
  int64_t tile, chunk, blocks;
};

struct OuterAttributes {
  bool exact, deterministic, scaled, left, right;
  int64_t chunk, blocks;
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    jax_gnn::MatmulAttributes, StructMember<bool>("transposed"), StructMember<bool>("exact"),
    StructMember<bool>("has_bias"), StructMember<bool>("has_residual"),
    StructMember<bool>("scaled"), StructMember<bool>("gathers"), StructMember<bool>("scatters"),
    StructMember<int64_t>("activation"), StructMember<std::string_view>("kernel"),
    StructMember<int64_t>("tile"), StructMember<int64_t>("chunk"), StructMember<int64_t>("blocks"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::OuterAttributes, StructMember<bool>("exact"),
                                      StructMember<bool>("deterministic"),
                                      StructMember<bool>("scaled"), StructMember<bool>("left"),
                                      StructMember<bool>("right"), StructMember<int64_t>("chunk"),
                                      StructMember<int64_t>("blocks"));

namespace jax_gnn {

inline ffi::Error check_groups(const Buffer& sizes, const Buffer& offset, const Buffer& workspace) {
  if (!is_index(sizes, static_cast<int64_t>(sizes.element_count()), ffi::S32) ||
      !is_index(offset, 1, ffi::S32)) {
    return invalid("group_sizes and group_offset must be int32 vectors, the latter of length 1");
  }
  if (workspace.element_type() != ffi::U8) return invalid("the workspace must be bytes");
  return ffi::Error::Success();
}

// Calls body(Type<T>, Type<Accumulator>, Type<Out>): results have the operands' type, or that of
// the accumulator.
template <typename Backend, typename Body>
ffi::Error dispatch_product(ffi::DataType dtype, ffi::DataType out, const Body& body) {
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    if (out == dtype) return body(t, acc, t);
    if (out == accumulator_type(dtype)) return body(t, acc, acc);
    return invalid("the result must have the operands' type, or that of the accumulator");
  });
}

// Whether a list of rows, if it is there, is one of so many ids.
inline bool is_list(bool exists, const Buffer& rows, int64_t num_rows) {
  return !exists || is_index(rows, num_rows, ffi::S32);
}

// Whether factors of rows, if they are there, are so many in the type that is added up in.
inline bool is_row_scale(bool exists, const Buffer& scale, int64_t num_rows, ffi::DataType dtype) {
  return !exists ||
         (scale.element_type() == accumulator_type(dtype) && has_shape(scale, {num_rows}));
}

// out[s, :] = activation(scale[r] * (lhs[l, :] @ rhs[g]) + bias[g] + residual[s]) for the rows r of
// group g, where l is lhs_rows[r] and s is out_rows[r], else activation(residual[s]).
template <typename Backend>
ffi::Error segment_matmul(typename Backend::Context context, Buffer lhs, Buffer rhs,
                          Buffer group_sizes, Buffer group_offset, Buffer bias, Buffer residual,
                          Buffer scale, Buffer lhs_rows, Buffer out_rows, Buffer inverse,
                          ResultBuffer out, ResultBuffer workspace, MatmulAttributes attributes) {
  JAX_GNN_RETURN_IF_ERROR(check_groups(group_sizes, group_offset, *workspace));
  const ffi::DataType dtype = lhs.element_type();
  if (lhs.dimensions().size() != 2 || rhs.dimensions().size() != 3) {
    return invalid("lhs must have two dimensions, rhs three");
  }
  const int64_t num_lhs = lhs.dimensions()[0], k = lhs.dimensions()[1];
  const int64_t num_rows =
      attributes.gathers ? static_cast<int64_t>(lhs_rows.element_count()) : num_lhs;
  const int64_t num_groups = rhs.dimensions()[0];
  const int64_t n = rhs.dimensions()[attributes.transposed ? 1 : 2];
  if (rhs.element_type() != dtype || rhs.dimensions()[attributes.transposed ? 2 : 1] != k) {
    return invalid("lhs and rhs disagree in shape or dtype");
  }
  if (attributes.has_bias && !is_matrix(bias, num_groups, n, dtype)) {
    return invalid("the bias has the wrong shape or dtype");
  }
  if (!is_list(attributes.gathers, lhs_rows, num_rows) ||
      !is_list(attributes.scatters, out_rows, num_rows) ||
      !is_list(attributes.scatters, inverse, num_rows)) {
    return invalid("the lists of rows must be int32 vectors of one length");
  }
  if (!is_row_scale(attributes.scaled, scale, num_rows, dtype)) {
    return invalid("the scale has the wrong shape or dtype");
  }
  if (!is_matrix(*out, num_rows, n, out->element_type())) {
    return invalid("the result has the wrong shape");
  }
  if (attributes.has_residual && !is_matrix(residual, num_rows, n, out->element_type())) {
    return invalid("the residual has the wrong shape or dtype");
  }
  if (attributes.activation < 0 ||
      attributes.activation > static_cast<int64_t>(Activation::kTanh)) {
    return invalid("there is no such activation");
  }
  if (attributes.kernel != "persistent" && attributes.kernel != "single") {
    return invalid("the schedule is wrong");
  }
  const Groups groups = {data<const int32_t>(group_sizes), data<const int32_t>(group_offset),
                         static_cast<int64_t>(group_sizes.element_count()), num_groups, num_rows};
  return dispatch_product<Backend>(dtype, out->element_type(), [&](auto t, auto acc, auto o) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    using Out = typename decltype(o)::type;
    return Backend::segment_matmul(
        context, attributes, groups, k, n, attributes.transposed,
        static_cast<Activation>(attributes.activation), data<const T>(lhs), data<const T>(rhs),
        data_if<T>(attributes.has_bias, bias), data_if<Out>(attributes.has_residual, residual),
        RowLists<Acc>{data_if<int32_t>(attributes.gathers, lhs_rows), num_lhs,
                      data_if<int32_t>(attributes.scatters, out_rows),
                      data_if<int32_t>(attributes.scatters, inverse),
                      data_if<Acc>(attributes.scaled, scale)},
        data<Out>(*out));
  });
}

// out[g] = the sum over the rows r of group g of scale[r] times the outer product of lhs[l, :] and
// rhs[s, :], where l is lhs_rows[r] and s is rhs_rows[r].
template <typename Backend>
ffi::Error segment_outer(typename Backend::Context context, Buffer lhs, Buffer rhs,
                         Buffer group_sizes, Buffer group_offset, Buffer scale, Buffer lhs_rows,
                         Buffer rhs_rows, ResultBuffer out, ResultBuffer workspace,
                         OuterAttributes attributes) {
  JAX_GNN_RETURN_IF_ERROR(check_groups(group_sizes, group_offset, *workspace));
  const ffi::DataType dtype = lhs.element_type();
  if (lhs.dimensions().size() != 2 || rhs.dimensions().size() != 2 ||
      out->dimensions().size() != 3) {
    return invalid("lhs and rhs must have two dimensions, the result three");
  }
  const int64_t num_lhs = lhs.dimensions()[0], k = lhs.dimensions()[1];
  const int64_t num_rhs = rhs.dimensions()[0], n = rhs.dimensions()[1];
  const int64_t num_groups = out->dimensions()[0];
  const int64_t num_rows =
      attributes.left ? static_cast<int64_t>(lhs_rows.element_count()) : num_lhs;
  if (rhs.element_type() != dtype) return invalid("lhs and rhs disagree in dtype");
  if (!is_list(attributes.left, lhs_rows, num_rows) ||
      !is_list(attributes.right, rhs_rows, num_rows) ||
      (!attributes.right && num_rhs != num_rows)) {
    return invalid("lhs and rhs, or the int32 lists of their rows, disagree in rows");
  }
  if (!is_row_scale(attributes.scaled, scale, num_rows, dtype)) {
    return invalid("the scale has the wrong shape or dtype");
  }
  if (!has_shape(*out, {num_groups, k, n})) return invalid("the result has the wrong shape");
  const Groups groups = {data<const int32_t>(group_sizes), data<const int32_t>(group_offset),
                         static_cast<int64_t>(group_sizes.element_count()), num_groups, num_rows};
  return dispatch_product<Backend>(dtype, out->element_type(), [&](auto t, auto acc, auto o) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    using Out = typename decltype(o)::type;
    return Backend::segment_outer(
        context, attributes, *workspace, groups, k, n, data<const T>(lhs), data<const T>(rhs),
        FactorLists<Acc>{data_if<int32_t>(attributes.left, lhs_rows), num_lhs,
                         data_if<int32_t>(attributes.right, rhs_rows), num_rhs,
                         data_if<Acc>(attributes.scaled, scale)},
        data<Out>(*out));
  });
}

}  // namespace jax_gnn
