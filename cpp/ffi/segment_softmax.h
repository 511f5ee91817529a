// Handlers of segment_softmax and segment_softmax_tangent, written once. A Backend has a Context,
// half types, and functions of the same names that return an ffi::Error.
#pragma once

#include "segments.h"

namespace jax_gnn {

struct SoftmaxAttributes {
  int64_t num_rows;
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::SoftmaxAttributes,
                                      StructMember<int64_t>("num_rows"));

namespace jax_gnn {

// Checks the operands of both, `x` and perhaps others like it, and calls
// run(Type<T>, Type<Acc>, csr, width).
template <typename Backend, typename Run>
ffi::Error normalize(std::initializer_list<Buffer> like, const Buffer& rows, Buffer& out,
                     Buffer& workspace, SoftmaxAttributes attributes, const Run& run) {
  const ffi::DataType dtype = out.element_type();
  if (out.dimensions().size() != 2) return invalid("the result must have two dimensions");
  const int64_t count = out.dimensions()[0], width = out.dimensions()[1];
  for (const Buffer& buffer : like) {
    if (!is_matrix(buffer, count, width, dtype)) {
      return invalid("operands and result must have the same shape and dtype");
    }
  }
  if (!is_index(rows, count, ffi::S32)) return invalid("every entry must have an int32 row");
  if (attributes.num_rows < 0) return invalid("num_rows must not be negative");
  JAX_GNN_RETURN_IF_ERROR(check_workspace(workspace, width, accumulator_type(dtype)));
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    const Csr<int32_t> csr = {data<const int32_t>(rows), nullptr, nullptr, count,
                              attributes.num_rows,       count,   0};
    return run(t, acc, csr, width);
  });
}

// y = exp(x) over the sum of its row's.
template <typename Backend>
ffi::Error segment_softmax(typename Backend::Context context, Buffer x, Buffer rows, ResultBuffer y,
                           ResultBuffer workspace, SoftmaxAttributes attributes) {
  return normalize<Backend>(
      {x}, rows, *y, *workspace, attributes, [&](auto t, auto acc, const auto& csr, int64_t width) {
        using T = typename decltype(t)::type;
        using Acc = typename decltype(acc)::type;
        return Backend::template segment_softmax<T, Acc>(context, make_workspace(*workspace), csr,
                                                         data<const T>(x), width, data<T>(*y));
      });
}

// out = y * (t - sum over the row of y * t)
template <typename Backend>
ffi::Error segment_softmax_tangent(typename Backend::Context context, Buffer y, Buffer t,
                                   Buffer rows, ResultBuffer out, ResultBuffer workspace,
                                   SoftmaxAttributes attributes) {
  return normalize<Backend>({y, t}, rows, *out, *workspace, attributes,
                            [&](auto type, auto acc, const auto& csr, int64_t width) {
                              using T = typename decltype(type)::type;
                              using Acc = typename decltype(acc)::type;
                              return Backend::template segment_softmax_tangent<T, Acc>(
                                  context, make_workspace(*workspace), csr, data<const T>(y),
                                  data<const T>(t), width, data<T>(*out));
                            });
}

}  // namespace jax_gnn
