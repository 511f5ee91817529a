// Checks of shapes, which end in an ffi::Error, and the switch from element types at run time to
// templates. The Python side checks the same with better messages; this is the second lock.
#pragma once

#include <cstdint>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace jax_gnn {

namespace ffi = ::xla::ffi;
using Buffer = ffi::AnyBuffer;
using ResultBuffer = ffi::Result<ffi::AnyBuffer>;

inline ffi::Error invalid(const std::string& message) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "jax_gnn: " + message);
}

// Returns from a handler with the error of a check that fails.
#define JAX_GNN_RETURN_IF_ERROR(check) \
  if (ffi::Error error = (check); error.failure()) return error

template <typename T>
struct Type {
  using type = T;
};

template <typename AnyBuffer>
bool has_shape(const AnyBuffer& buffer, std::initializer_list<int64_t> shape) {
  const auto dims = buffer.dimensions();
  return dims.size() == shape.size() && std::equal(dims.begin(), dims.end(), shape.begin());
}

// A scale vector of `size` elements, or the single 1 that stands for all of them.
inline bool is_scale(const Buffer& buffer, int64_t size, ffi::DataType dtype) {
  return buffer.element_type() == dtype && (has_shape(buffer, {1}) || has_shape(buffer, {size}));
}

template <typename T>
const T* scale_data(const Buffer& buffer, int64_t size) {
  return has_shape(buffer, {size}) ? static_cast<const T*>(buffer.untyped_data()) : nullptr;
}

template <typename T, typename AnyBuffer>
T* data(AnyBuffer& buffer) {
  return static_cast<T*>(buffer.untyped_data());
}

// Half types accumulate in float, all others in themselves.
inline ffi::DataType accumulator_type(ffi::DataType dtype) {
  return dtype == ffi::F16 || dtype == ffi::BF16 ? ffi::F32 : dtype;
}

// Calls body(Type<T>, Type<Accumulator>) for the element type, with the backend's own half types.
template <typename Backend, typename Body>
ffi::Error dispatch_float(ffi::DataType dtype, const Body& body) {
  switch (dtype) {
    case ffi::F32:
      return body(Type<float>{}, Type<float>{});
    case ffi::F64:
      return body(Type<double>{}, Type<double>{});
    case ffi::F16:
      return body(Type<typename Backend::Half>{}, Type<float>{});
    case ffi::BF16:
      return body(Type<typename Backend::BFloat16>{}, Type<float>{});
    default:
      return invalid("the features must be float16, bfloat16, float32 or float64");
  }
}

// Likewise for floats and integers.
template <typename Backend, typename Body>
ffi::Error dispatch_number(ffi::DataType dtype, const Body& body) {
  switch (dtype) {
    case ffi::S32:
      return body(Type<int32_t>{}, Type<int32_t>{});
    case ffi::S64:
      return body(Type<int64_t>{}, Type<int64_t>{});
    default:
      return dispatch_float<Backend>(dtype, body);
  }
}

template <typename Body>
ffi::Error dispatch_index(ffi::DataType dtype, const Body& body) {
  switch (dtype) {
    case ffi::S32:
      return body(Type<int32_t>{});
    case ffi::S64:
      return body(Type<int64_t>{});
    default:
      return invalid("the indices must be int32 or int64");
  }
}

}  // namespace jax_gnn
