// The handler of typed_scores. A Backend has a Context, half types, and a function of the same name
// that returns an ffi::Error.
#pragma once

#include "../kernels/typed_scores.h"
#include "segments.h"

namespace jax_gnn {

struct TypedScoresAttributes {
  int64_t heads;
  double slope;
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::TypedScoresAttributes,
                                      StructMember<int64_t>("heads"),
                                      StructMember<double>("slope"));

namespace jax_gnn {

// out[e, h] = leaky(< x[rows[e], :], of_x[types[e], h, :] > +
//                   < value[cols[e], h, :], of_value[types[e], h, :] >)
template <typename Backend>
ffi::Error typed_scores(typename Backend::Context context, ffi::AnyBuffer value,
                        ffi::AnyBuffer of_value, ffi::AnyBuffer x, ffi::AnyBuffer of_x,
                        ffi::AnyBuffer types, ffi::AnyBuffer rows, ffi::AnyBuffer cols,
                        ffi::Result<ffi::AnyBuffer> out, TypedScoresAttributes attributes) {
  const ffi::DataType dtype = value.element_type();
  const int64_t heads = attributes.heads;
  if (value.dimensions().size() != 2 || of_value.dimensions().size() != 2 ||
      x.dimensions().size() != 2 || x.element_type() != dtype) {
    return invalid("value, its vectors and x must be matrices of one dtype");
  }
  const int64_t width = value.dimensions()[1], depth = x.dimensions()[1];
  const int64_t num_types = of_value.dimensions()[0];
  if (!divides(heads, width)) return invalid("heads must divide the width");
  if (!is_matrix(of_value, num_types, width, dtype) || of_x.element_type() != dtype ||
      !has_shape(of_x, {num_types, heads, depth})) {
    return invalid("the vectors have the wrong shape or dtype");
  }
  const CsrOperands operands = {
      rows, cols, rows, true, false, x.dimensions()[0], value.dimensions()[0], 0};
  const ffi::Error error = operands.check(/*weighted=*/false);
  if (error.failure()) return error;
  if (!is_index(types, operands.count(), ffi::S32)) {
    return invalid("there must be an int32 type for each edge");
  }
  if (!is_matrix(*out, operands.count(), heads, accumulator_type(dtype))) {
    return invalid("the result has the wrong shape or dtype");
  }
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const TypedScores<T, Acc> scores = {data<const int32_t>(types),
                                        num_types,
                                        data<const T>(x),
                                        data<const T>(of_x),
                                        depth,
                                        data<const T>(value),
                                        data<const T>(of_value),
                                        Features{width, heads},
                                        static_cast<Acc>(attributes.slope)};
    return Backend::typed_scores(context, operands.csr(), scores, data<Acc>(*out));
  });
}

}  // namespace jax_gnn
