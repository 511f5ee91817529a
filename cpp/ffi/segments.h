// Common parts of the handlers of segment primitives: the checks of the index operands, of weights,
// of schedules and of workspaces. Operands that a primitive does without are flagged by attributes;
// any buffer stands in their place, and is not looked at.
#pragma once

#include <algorithm>
#include <string_view>

#include "../kernels/segments.h"
#include "../kernels/workspace.h"
#include "checks.h"

namespace jax_gnn {

inline bool is_index(const Buffer& buffer, int64_t size, ffi::DataType dtype) {
  return buffer.element_type() == dtype && has_shape(buffer, {size});
}

inline bool is_matrix(const Buffer& buffer, int64_t rows, int64_t width, ffi::DataType dtype) {
  return buffer.element_type() == dtype && has_shape(buffer, {rows, width});
}

// The numbers of a row of (rows, *features).
inline int64_t row_width(const Buffer& buffer) {
  int64_t width = 1;
  for (size_t i = 1; i < buffer.dimensions().size(); ++i) width *= buffer.dimensions()[i];
  return width;
}

template <typename T>
const T* data_if(bool present, const Buffer& buffer) {
  return present ? static_cast<const T*>(buffer.untyped_data()) : nullptr;
}

// A factor for each row, or one for all of them.
inline bool is_row_scale(const Buffer& scale, int64_t num_rows, ffi::DataType dtype) {
  return is_index(scale, num_rows, dtype) || is_index(scale, 1, dtype);
}

template <typename T>
RowScale<T> row_scale(bool present, const Buffer& scale) {
  return {data_if<T>(present, scale), present && scale.element_count() > 1};
}

// The operands of an Epilogue, and their check. `self` has the rows and features of the result.
struct EpilogueOperands {
  Buffer self, self_scale, out_scale, residual, bias, result_scale;
  bool has_own, has_out_scale, has_residual, has_bias, relu, has_result_scale;

  bool any() const {
    return has_own || has_out_scale || has_residual || has_bias || relu || has_result_scale;
  }

  ffi::Error check(int64_t num_rows, int64_t width, ffi::DataType dtype) const {
    const ffi::DataType acc_dtype = accumulator_type(dtype);
    if ((has_own && !is_row_scale(self_scale, num_rows, acc_dtype)) ||
        (has_out_scale && !is_row_scale(out_scale, num_rows, acc_dtype)) ||
        (has_result_scale && !is_row_scale(result_scale, num_rows, acc_dtype))) {
      return invalid("the rows' scales have the wrong shape or dtype");
    }
    const auto exists = [](const Buffer& buffer, int64_t size, ffi::DataType type) {
      return buffer.element_type() == type && static_cast<int64_t>(buffer.element_count()) == size;
    };
    if ((has_residual && !exists(residual, num_rows * width, dtype)) ||
        (has_bias && !exists(bias, width, acc_dtype))) {
      return invalid("the residual or the bias has the wrong shape or dtype");
    }
    return ffi::Error::Success();
  }

  template <typename T, typename Acc>
  Epilogue<T, Acc> epilogue() const {
    return {data_if<T>(has_own, self),
            row_scale<Acc>(has_own, self_scale),
            row_scale<Acc>(has_out_scale, out_scale),
            data_if<T>(has_residual, residual),
            data_if<Acc>(has_bias, bias),
            relu,
            row_scale<Acc>(has_result_scale, result_scale)};
  }
};

// The index operands of a Csr, and their check. Without `cols` entry e reads row e, without `order`
// it has weight e.
struct CsrOperands {
  Buffer rows, cols, order;
  bool gather, ordered;
  int64_t num_rows, num_cols, num_weights;

  int64_t count() const { return static_cast<int64_t>(rows.element_count()); }

  ffi::Error check(bool weighted) const {
    if (!is_index(rows, count(), ffi::S32) || (gather && !is_index(cols, count(), ffi::S32)) ||
        (ordered && !is_index(order, count(), ffi::S32))) {
      return invalid("rows, cols and order must be int32 vectors of one length");
    }
    if (!gather && num_cols != count()) return invalid("without cols, every entry has its own row");
    if (weighted && !ordered && num_weights != count()) {
      return invalid("without order, every entry has its own weight");
    }
    return ffi::Error::Success();
  }

  Csr<int32_t> csr() const {
    return {data<const int32_t>(rows),
            data_if<int32_t>(gather, cols),
            data_if<int32_t>(ordered, order),
            count(),
            num_rows,
            num_cols,
            num_weights};
  }
};

inline bool divides(int64_t heads, int64_t width) { return heads >= 1 && width % heads == 0; }

// Checks a workspace of bytes: (blocks, workspace_bytes(...)).
inline ffi::Error check_workspace(const Buffer& buffer, int64_t width, ffi::DataType acc_dtype) {
  const int64_t bytes = workspace_bytes(width, ffi::ByteWidth(acc_dtype));
  const auto dims = buffer.dimensions();
  if (buffer.element_type() == ffi::U8 && dims.size() == 2 && dims[0] >= 1 && dims[1] == bytes) {
    return ffi::Error::Success();
  }
  return invalid("the workspace must be bytes of shape (blocks, " + std::to_string(bytes) + ")");
}

inline Workspace make_workspace(Buffer& buffer) {
  return {buffer.untyped_data(), buffer.dimensions()[0]};
}

inline bool is_schedule(int64_t lanes, int64_t threads) {
  return lanes >= 1 && lanes <= 32 && (lanes & (lanes - 1)) == 0 && threads >= 32 &&
         threads <= 1024 && threads % 32 == 0;
}

// Checks a schedule that names one of the kernels over sorted entries.
inline bool is_schedule(std::string_view kernel, int64_t lanes, int64_t threads) {
  return (kernel == "walk" || kernel == "gather" || kernel == "step") &&
         is_schedule(lanes, threads);
}

}  // namespace jax_gnn
