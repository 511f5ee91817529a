// The handler of relational_aggregate by tiles. A Backend has a Context, half types, and a function
// of the same name that takes a workspace and returns an ffi::Error.
#pragma once

#include "../kernels/relational.h"
#include "../kernels/segment_matmul.h"
#include "segments.h"

namespace jax_gnn {

struct TileAttributes {
  bool transposed, exact, has_bias, weighted;
  int64_t activation;  // enum Activation
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::TileAttributes, StructMember<bool>("transposed"),
                                      StructMember<bool>("exact"), StructMember<bool>("has_bias"),
                                      StructMember<bool>("weighted"),
                                      StructMember<int64_t>("activation"));

namespace jax_gnn {

// out[v, :] = activation(the sum over the edges e of v of weight[order[e]] * x[cols[e], :] @
// rhs[type of e] + bias).
template <typename Backend>
ffi::Error relational_aggregate(typename Backend::Context context, ffi::AnyBuffer x,
                                ffi::AnyBuffer rhs, ffi::AnyBuffer weight, ffi::AnyBuffer rows,
                                ffi::AnyBuffer cols, ffi::AnyBuffer order, ffi::AnyBuffer items,
                                ffi::AnyBuffer starts, ffi::AnyBuffer bias,
                                ffi::Result<ffi::AnyBuffer> out,
                                ffi::Result<ffi::AnyBuffer> workspace, TileAttributes attributes) {
  const ffi::DataType dtype = x.element_type(), acc_dtype = accumulator_type(dtype);
  if (x.dimensions().size() != 2 || rhs.dimensions().size() != 3 || out->dimensions().size() != 2) {
    return invalid("x and the result must have two dimensions, the weights three");
  }
  const int64_t num_cols = x.dimensions()[0], k = x.dimensions()[1];
  const int64_t num_types = rhs.dimensions()[0];
  const int64_t n = rhs.dimensions()[attributes.transposed ? 1 : 2];
  if (rhs.element_type() != dtype || rhs.dimensions()[attributes.transposed ? 2 : 1] != k) {
    return invalid("x and the weights disagree in shape or dtype");
  }
  const auto count = static_cast<int64_t>(rows.element_count());
  if (!is_index(rows, count, ffi::S32) || !is_index(cols, count, ffi::S32) ||
      !is_index(order, count, ffi::S32)) {
    return invalid("rows, cols and order must be int32 vectors of one length");
  }
  if (attributes.weighted && (weight.element_type() != acc_dtype || !has_shape(weight, {count}))) {
    return invalid("there must be a weight for each edge, of the accumulator's type");
  }
  if (items.element_type() != ffi::S32 || items.dimensions().size() != 2 ||
      items.dimensions()[1] != 4 || starts.element_type() != ffi::S32 ||
      starts.dimensions().size() != 1 || starts.dimensions()[0] < 2) {
    return invalid("items must be int32 (num_items, 4), starts a vector of at least two");
  }
  const int64_t num_rows = out->dimensions()[0];
  const bool widens = out->element_type() != dtype;
  if (out->dimensions()[1] != n || (widens && out->element_type() != acc_dtype)) {
    return invalid("the result has the wrong shape or dtype");
  }
  if (attributes.has_bias && (bias.element_type() != dtype || !has_shape(bias, {n}))) {
    return invalid("the bias has the wrong shape or dtype");
  }
  if (attributes.activation < 0 ||
      attributes.activation > static_cast<int64_t>(Activation::kTanh)) {
    return invalid("there is no such activation");
  }
  const Tiles tiles = {data<const int32_t>(rows),
                       data<const int32_t>(cols),
                       data<const int32_t>(order),
                       data<const TileItem>(items),
                       data<const int32_t>(starts),
                       count,
                       num_rows,
                       num_cols,
                       items.dimensions()[0],
                       starts.dimensions()[0] - 1,
                       num_types};
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    return Backend::relational_aggregate(
        context, attributes, *workspace, tiles, k, n, widens,
        static_cast<Activation>(attributes.activation), data<const T>(x), data<const T>(rhs),
        data_if<Acc>(attributes.weighted, weight), data_if<T>(attributes.has_bias, bias),
        out->untyped_data());
  });
}

}  // namespace jax_gnn
