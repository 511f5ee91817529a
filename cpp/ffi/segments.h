// What the handlers of segment primitives share: the checks of the index operands, of weights, of
// schedules and of workspaces. Operands that a primitive does without are flagged by attributes;
// any buffer stands in their place, and is not looked at.
#pragma once

#include <algorithm>

#include "../kernels/segments.h"
#include "../kernels/workspace.h"
#include "checks.h"

namespace jax_gnn {

inline bool is_index(const ffi::AnyBuffer& buffer, int64_t size, ffi::DataType dtype) {
  return buffer.element_type() == dtype && has_shape(buffer, {size});
}

inline bool is_matrix(const ffi::AnyBuffer& buffer, int64_t rows, int64_t width,
                      ffi::DataType dtype) {
  return buffer.element_type() == dtype && has_shape(buffer, {rows, width});
}

// The numbers of a row of (rows, *features).
inline int64_t row_width(const ffi::AnyBuffer& buffer) {
  int64_t width = 1;
  for (size_t i = 1; i < buffer.dimensions().size(); ++i) width *= buffer.dimensions()[i];
  return width;
}

template <typename T>
const T* data_if(bool present, const ffi::AnyBuffer& buffer) {
  return present ? static_cast<const T*>(buffer.untyped_data()) : nullptr;
}

// The index operands of a Csr, and their check. Without `cols` entry e reads row e, without `order`
// it has weight e.
struct CsrOperands {
  ffi::AnyBuffer rows, cols, order;
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

// As bytes: (blocks, workspace_bytes(...)).
inline ffi::Error check_workspace(const ffi::AnyBuffer& buffer, int64_t width,
                                  ffi::DataType acc_dtype) {
  const int64_t bytes = workspace_bytes(width, ffi::ByteWidth(acc_dtype));
  const auto dims = buffer.dimensions();
  if (buffer.element_type() == ffi::U8 && dims.size() == 2 && dims[0] >= 1 && dims[1] == bytes) {
    return ffi::Error::Success();
  }
  return invalid("the workspace must be bytes of shape (blocks, " + std::to_string(bytes) + ")");
}

inline Workspace make_workspace(ffi::AnyBuffer& buffer) {
  return {buffer.untyped_data(), buffer.dimensions()[0]};
}

inline bool is_schedule(int64_t lanes, int64_t threads) {
  return lanes >= 1 && lanes <= 32 && (lanes & (lanes - 1)) == 0 && threads >= 32 &&
         threads <= 1024 && threads % 32 == 0;
}

}  // namespace jax_gnn
